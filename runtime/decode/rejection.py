"""Distributions of a round: filtered logits, and the rules of recursive rejection sampling."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..device.backend import Array, Operations
from ..device.checks import check_logits
from .followers import DeviceFollower, HostFollower
from .sampling import CheckedFilters, _finite, _floor, _split, _uniform, draw


class Run(NamedTuple):
    """What a round needs of a run."""

    ops: Operations
    follower: DeviceFollower | HostFollower
    filters: CheckedFilters
    random: list[Any]  # what is left to draw from


def filtered(run: Run, logits: Array, level: int, place: Array | None = None) -> Any:
    """Return tempered logits (N, V) with -inf where the table or a filter does not allow a token.

    A row without a distribution is -inf throughout.
    """
    ops, filters = run.ops, run.filters
    check_logits(run.follower.size, logits.shape)
    x = logits / (ops.arrays.zeros((1, 1), like=logits) + (filters.temperature or 1.0))
    sound = _finite(ops.arrays.logsumexp(x))  # of all that the model has, as in `sample`
    x = x[:, : run.follower.size]
    x = run.follower.mask(x, level, place)
    total = ops.arrays.logsumexp(x)
    valid = _finite(total) & sound
    x = ops.arrays.where(valid[:, None], x, -float("inf"))
    if filters.temperature == 0:
        return x
    floor = _floor(ops, x, ops.arrays.where(valid, total, 0.0)[:, None], filters)
    return x if floor is None else ops.arrays.where(x >= floor, x, -float("inf"))


def probabilities(ops: Operations, x: Array, filters: CheckedFilters) -> Any:
    """Return the distribution (N, V) of filtered logits; 0 throughout where there is none."""
    xp = ops.arrays
    if filters.temperature == 0:
        best = x.argmax(-1)[:, None]
        first = xp.arange(x.shape[1], like=best) == best
        return xp.where(first & (x > -float("inf")), 1.0, xp.zeros((1, 1), like=x))
    total = xp.logsumexp(x)
    return xp.exp(x - xp.where(_finite(total), total, 0.0)[:, None])


def log_probs_of(ops: Operations, x: Array, token: Array, filters: CheckedFilters) -> Any:
    """Return the log-probabilities of tokens (N,) under filtered logits; 0 of token -1."""
    xp = ops.arrays
    if filters.temperature == 0:
        return xp.zeros((x.shape[0],), like=x)
    total = xp.logsumexp(x)
    found = xp.take(x, xp.where(token < 0, 0, token)[:, None])[:, 0] - xp.where(_finite(total), total, 0.0)
    return xp.where(token < 0, 0.0, xp.where(found > 0, 0.0, found))


def accepts(ops: Operations, uniform: Array, p: Array, q: Array) -> Any:
    """Return whether tokens of probability p and q (B, 1) are taken: min(1, p / q) of the time, never where p is 0."""
    return uniform * q[:, 0] < p[:, 0]


def rest_of(ops: Operations, p: Array, q: Array) -> Any:
    """Return what of p (B, V) is left after a token drawn from q was not taken."""
    xp = ops.arrays
    rest = xp.where(p > q, p - q, 0.0)
    total = rest.sum(-1)[:, None]
    return xp.where(total > 0, rest / xp.where(total > 0, total, 1.0), p)  # nothing left: rejected by rounding


def without(ops: Operations, x: Array, token: Array) -> Any:
    """Return logits (N, V) without a token (N,) of each row."""
    xp = ops.arrays
    return xp.where(xp.arange(x.shape[1], like=token) == token[:, None], -float("inf"), x)


def drawn_from(run: Run, weights: Array) -> Any:
    """Return a token drawn from each row of weights (N, V); -1 where all are 0."""
    ops = run.ops
    if run.filters.temperature == 0:
        found = weights.argmax(-1)
    else:
        found = draw(ops, weights, uniforms(run, (weights.shape[0], 2), weights))
    return ops.arrays.where((weights > 0).any(-1), found, -1)


def uniforms(run: Run, shape: tuple[int, ...], like: Array) -> Any:
    """Return uniform numbers; 0 at temperature 0, where nothing is left to chance."""
    if run.filters.temperature == 0:
        return run.ops.arrays.zeros(shape, like=like)
    now, run.random[0] = _split(run.ops, run.random[0])
    return _uniform(run.ops, now, shape, like)
