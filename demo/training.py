"""Training the transformer to predict each item of a history from the items before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

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
    windows = _windows(sequences, model.history)
    if not windows:
        raise ValueError("there is nothing to train on: no training sequence has two items or more")
    order = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Transformer(model, levels=catalogue.length, codes=catalogue.codes)
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=training.rate, weight_decay=training.weight_decay, betas=(0.9, 0.95)
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, training))
        network.train()
        queue: list[int] = []
        for _ in range(training.steps):
            while len(queue) < training.batch:
                queue.extend(order.permutation(len(windows)).tolist())
            rows, queue = queue[: training.batch], queue[training.batch :]
            blocks, counts = blocks_of([windows[row] for row in rows], catalogue.sids, model.history + 1)
            loss = _loss(network, blocks, counts)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return network.eval()


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
    place = torch.arange(blocks.shape[1])
    predicted = (place > 0) & (place < counts[:, None])  # (B, N)
    return functional.cross_entropy(network(blocks)[predicted].flatten(0, 1), blocks[predicted][:, 1:].flatten())
