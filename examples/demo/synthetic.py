"""A made-up catalogue with cluster structure, and users whose histories follow their interests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dataset import Catalogue, Dataset, Ints, TestRows
from .quantizer import Floats, residual_kmeans


@dataclass(frozen=True)
class SyntheticConfig:
    """Sizes and habits of the made-up world; times run from 0 to 1, the present.

    branching   clusters inside each cluster, from the top level down
    spread      standard deviation of the centres around their parents, level by level, then of the items
    loyal       probability that a user stays in the cluster of one of their last three items
    related     probability that a user goes on to the cluster related to that of their last item
    relisted    share of the items that are an earlier item listed again: same content, so the same ID
    freshness   time after which an item draws 1/e of the attention it drew when it was new
    activity    time between a user's first and last event
    """

    items: int = 4000
    users: int = 20_000
    levels: int = 4
    codes: int = 256
    dimension: int = 32
    branching: tuple[int, ...] = (12, 8, 4)
    spread: tuple[float, ...] = (1.0, 0.5, 0.3, 0.15)
    shortest: int = 4
    longest: int = 11
    loyal: float = 0.6
    related: float = 0.25
    relisted: float = 0.01
    freshness: float = 0.1
    activity: float = 0.3


def synthetic_dataset(config: SyntheticConfig, seed: int) -> Dataset:
    """Return a catalogue and histories drawn from `seed`; the last event of every user is a test row."""
    random = np.random.default_rng(seed)
    embeddings, leaf = _embeddings(config, random)
    born = _births(leaf, random)
    sids, _ = residual_kmeans(embeddings, levels=config.levels, codes=config.codes, seed=seed)
    titles = tuple(f"item {item} of cluster {cluster}" for item, cluster in enumerate(leaf))
    catalogue = Catalogue(sids, config.codes, np.argsort(np.argsort(born, kind="stable")), titles)
    events = _histories(config, leaf, born, random)
    return Dataset(
        name="synthetic catalogue",
        catalogue=catalogue,
        train=tuple(items[:-1] for items in events),
        test=TestRows(tuple(items[:-1] for items in events), np.array([items[-1] for items in events])),
    )


def _embeddings(config: SyntheticConfig, random: np.random.Generator) -> tuple[Floats, Ints]:
    """Return items drawn from hierarchical Gaussians and the lowest cluster of each: (n, d) and (n,)."""
    centres = np.zeros((1, config.dimension))
    for children, spread in zip(config.branching, config.spread, strict=False):
        centres = np.repeat(centres, children, axis=0)
        centres = centres + spread * random.standard_normal(centres.shape)
    leaf = random.integers(len(centres), size=config.items)
    noise = config.spread[len(config.branching)] * random.standard_normal((config.items, config.dimension))
    embeddings = centres[leaf] + noise
    again = random.permutation(config.items)[: 2 * round(config.relisted * config.items)].reshape(2, -1)
    embeddings[again[0]], leaf[again[0]] = embeddings[again[1]], leaf[again[1]]
    return embeddings, leaf


def _births(leaf: Ints, random: np.random.Generator) -> Floats:
    """Return when each item appears: (n,). The first item of a cluster has always been there."""
    born = random.random(len(leaf))
    for cluster in np.unique(leaf):
        members = np.flatnonzero(leaf == cluster)
        born[members[np.argmin(born[members])]] = 0.0
    return born


def _histories(config: SyntheticConfig, leaf: Ints, born: Floats, random: np.random.Generator) -> list[Ints]:
    """Return every user's items, oldest first; all users take a step at once."""
    users, steps = config.users, config.longest
    members = [np.flatnonzero(leaf == cluster) for cluster in range(int(leaf.max()) + 1)]
    occupied = np.flatnonzero([len(items) > 0 for items in members])
    widest = max(len(items) for items in members)
    shelf = np.full((len(members), widest), -1)
    for row, items in zip(shelf, members, strict=True):
        row[: len(items)] = items
    appeal = random.gumbel(size=len(leaf)) * 0.5  # log of an item's popularity
    related = random.permutation(occupied)[np.searchsorted(occupied, np.arange(len(members))) % len(occupied)]

    end = 1.0 - 0.3 * random.random(users) ** 3  # most users are still active at present
    times = end[:, None] - config.activity * np.sort(random.random((users, steps)), axis=1)[:, ::-1]
    times = np.maximum(times, 0.0)
    chosen = np.zeros((users, steps), dtype=np.int64)
    for step in range(steps):
        cluster: Ints = random.choice(occupied, size=users)
        if step:
            back = random.integers(1, min(step, 3) + 1, size=users)
            recent = leaf[chosen[np.arange(users), step - back]]
            habit = random.random(users)
            cluster = np.where(habit < config.loyal + config.related, related[leaf[chosen[:, step - 1]]], cluster)
            cluster = np.where(habit < config.loyal, recent, cluster)
        candidates = shelf[cluster]  # (users, widest)
        waited = times[:, step, None] - born[candidates]
        weight = appeal[candidates] - waited / config.freshness + random.gumbel(size=candidates.shape)
        weight = np.where((candidates >= 0) & (waited >= 0), weight, -np.inf)
        chosen[:, step] = candidates[np.arange(users), weight.argmax(axis=1)]
    lengths = random.integers(config.shortest, config.longest + 1, size=users)
    return [items[-length:] for items, length in zip(chosen, lengths, strict=True)]
