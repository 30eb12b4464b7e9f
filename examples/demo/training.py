"""Training the transformer to predict each item of a history from the items before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from maskwright.runtime.integrations.self_draft import DraftHead, Transition, draft_loss

from .dataset import Catalogue, Ints
from .model import ModelConfig, Transformer, blocks_of


@dataclass(frozen=True)
class TrainingConfig:
    """AdamW with a linear warm-up and a cosine decay over `steps` batches."""

    steps: int = 400
    batch: int = 32
    rate: float = 5e-3
    weight_decay: float = 0.1
    warm_up: float = 0.1


def train(
    catalogue: Catalogue, sequences: Sequence[Ints], model: ModelConfig, training: TrainingConfig, seed: int
) -> Transformer:
    """Return a transformer trained on every prefix of every sequence; the global random state is kept."""
    with _seeded(seed):
        network = Transformer(model, levels=catalogue.length, codes=catalogue.codes)
        _fit([network], catalogue, sequences, model.history, training, seed, lambda *batch: _loss(network, *batch))
    return network.eval()


def train_drafting(
    catalogue: Catalogue,
    sequences: Sequence[Ints],
    model: ModelConfig,
    training: TrainingConfig,
    seed: int,
    *,
    transition: Transition = "gru",
    placeholders: bool = True,
    next_token: float = 0.0,
) -> tuple[Transformer, DraftHead]:
    """Return a transformer and a head that drafts for it, trained together on every prefix of every sequence.

    The loss is the head's; next_token: the weight of the transformer's own, which beam search over it needs. Batches
    and the transformer's first weights are those of `train` with the same seed.
    """
    with _seeded(seed):
        network = Transformer(model, levels=catalogue.length, codes=catalogue.codes)
        head = DraftHead(
            model.width,
            network.vocab_size,
            catalogue.length,
            transition=transition,
            placeholders=placeholders,
            embedding=network.embedding,
        )

        def loss(blocks: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
            predicted = predicted_columns(blocks, counts)
            hidden = network.read_prefixes(blocks, head.placeholders)[predicted]
            out = draft_loss(head, hidden, blocks[predicted][:, 1:])
            return out + next_token * _loss(network, blocks, counts) if next_token else out

        _fit([network, head], catalogue, sequences, model.history, training, seed, loss)
    return network.eval(), head.eval()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw torch's random numbers from a seed, and go on with the global ones afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _fit(
    modules: Sequence[nn.Module],
    catalogue: Catalogue,
    sequences: Sequence[Ints],
    history: int,
    training: TrainingConfig,
    seed: int,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Minimise the loss of batches of windows, blocks (B, N, L + 1) and counts (B,), drawn in an order by seed."""
    windows = _windows(sequences, history)
    if not windows:
        raise ValueError("there is nothing to train on: no training sequence has two items or more")
    order = np.random.default_rng(seed)
    parameters = list(dict.fromkeys(parameter for module in modules for parameter in module.parameters()))
    optimizer = torch.optim.AdamW(parameters, lr=training.rate, weight_decay=training.weight_decay, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, training))
    for module in modules:
        module.train()
    queue: list[int] = []
    for _ in range(training.steps):
        while len(queue) < training.batch:
            queue.extend(order.permutation(len(windows)).tolist())
        rows, queue = queue[: training.batch], queue[training.batch :]
        loss = loss_of(*blocks_of([windows[row] for row in rows], catalogue.sids, history + 1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()


def _windows(sequences: Sequence[Ints], history: int) -> list[Ints]:
    """Cut sequences so that a window's items fit the model; neighbours share one item, so no step is lost."""
    return [
        sequence[begin : begin + history + 1]
        for sequence in sequences
        for begin in range(0, len(sequence) - 1, history)
    ]


def _rate(step: int, training: TrainingConfig) -> float:
    warm_up = max(1, round(training.warm_up * training.steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm_up) / max(1, training.steps - warm_up))


def _loss(network: Transformer, blocks: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over the tokens of all items but each row's first."""
    predicted = predicted_columns(blocks, counts)
    return functional.cross_entropy(network(blocks)[predicted].flatten(0, 1), blocks[predicted][:, 1:].flatten())


def predicted_columns(blocks: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return which blocks are items to predict, all but each row's first: bool (B, N)."""
    place = torch.arange(blocks.shape[1])
    return (place > 0) & (place < counts[:, None])
