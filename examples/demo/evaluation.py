"""Constrained and unconstrained beam search over the same histories, side by side."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.compile.sequences import compile_sids
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search
from maskwright.table.transition_table import TransitionTable

from .dataset import Catalogue, Ints, TestRows
from .model import START, Transformer, blocks_of, tokens_of


@dataclass(frozen=True)
class Found:
    """What one kind of search returned for R rows with M beams, best first.

    sids (R, M, L) codes, exists (R, M) whether the ID is in the allowed set, returned (R, M) whether the
    beam holds an ID at all, ms_per_step (P,) for each of the P batches.
    """

    sids: Ints
    exists: NDArray[np.bool_]
    returned: NDArray[np.bool_]
    ms_per_step: NDArray[np.float64]

    def recall(self, targets: Ints, k: int) -> float:
        """Return the share of rows whose target (R, L) is among the first k IDs.

        An item counts as found when its ID is returned, also where another item has the same ID.
        """
        hit = self.returned & (self.sids == targets[:, None]).all(axis=-1)
        return float(hit[:, :k].any(axis=1).mean())


@dataclass(frozen=True)
class Measures:
    """Shares of 1, over the rows of one search, and the median time of a step with its model, in ms."""

    share_valid: float
    recall_at_1: float
    recall_at_10: float
    ms_per_step: float


@dataclass(frozen=True)
class Comparison:
    """Both searches over the same rows.

    ids             distinct IDs in the allowed set
    random_at_1     recall@1 expected of one ID drawn uniformly from the set: 1 / ids
    overhead_ms     what the constraint adds to a step: quartiles over batches run one after the other
    """

    rows: int
    ids: int
    unconstrained: Measures
    constrained: Measures
    random_at_1: float
    overhead_ms: tuple[float, float, float]


def allowed_set(catalogue: Catalogue, items: Ints, vocab_size: int) -> TransitionTable:
    """Return the table that allows exactly the IDs of `items`."""
    return compile_sids(tokens_of(catalogue.sids[items]), vocab_size=vocab_size)


def search_both(
    network: Transformer,
    catalogue: Catalogue,
    rows: TestRows,
    table: TransitionTable,
    *,
    beams: int,
    batch: int,
) -> tuple[Found, Found]:
    """Return what unconstrained and constrained search find for every row.

    The two take turns, batch by batch and each first every other time, so that whatever else the machine
    does meets both alike. Reading the histories is not timed: both share it.
    """
    allowed = torch_ops.to_device(table)
    tokens: tuple[list[Ints], list[Ints]] = ([], [])
    returned: tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]] = ([], [])
    timed: tuple[list[float], list[float]] = ([], [])
    for turn, begin in enumerate(range(0, len(rows), batch)):
        part = rows.take(np.arange(begin, min(begin + batch, len(rows))))
        blocks, counts = blocks_of(part.histories, catalogue.sids, network.config.history)
        step, cache = network.decoder(blocks, counts, beams)
        for kind in (0, 1) if turn % 2 else (1, 0):
            before = time.perf_counter()
            with torch.no_grad():
                out = beam_search(
                    step,
                    cache,
                    allowed if kind else None,
                    ops=torch_ops,
                    batch=len(part),
                    beams=beams,
                    max_tokens=catalogue.length,
                    start_token=START,
                )
            timed[kind].append(1e3 * (time.perf_counter() - before) / catalogue.length)
            tokens[kind].append(out.tokens.numpy())
            returned[kind].append(out.valid.numpy())
    unconstrained, constrained = (
        _found(np.concatenate(tokens[kind]), np.concatenate(returned[kind]), np.array(timed[kind]), table)
        for kind in (0, 1)
    )
    return unconstrained, constrained


def _found(
    tokens: Ints, returned: NDArray[np.bool_], ms_per_step: NDArray[np.float64], table: TransitionTable
) -> Found:
    exists = table.contains(np.maximum(tokens, 0).reshape(-1, tokens.shape[-1])).reshape(returned.shape)
    return Found(tokens - tokens_of(np.zeros_like(tokens)), exists & returned, returned, ms_per_step)


def compare(unconstrained: Found, constrained: Found, targets: Ints, ids: int) -> Comparison:
    """Return the measures of two searches for the same targets (R, L)."""
    low, median, high = np.percentile(constrained.ms_per_step - unconstrained.ms_per_step, (25, 50, 75))
    return Comparison(
        rows=len(targets),
        ids=ids,
        unconstrained=_measures(unconstrained, targets),
        constrained=_measures(constrained, targets),
        random_at_1=1 / ids,
        overhead_ms=(float(low), float(median), float(high)),
    )


def _measures(found: Found, targets: Ints) -> Measures:
    return Measures(
        share_valid=float(found.exists.sum() / found.returned.sum()),
        recall_at_1=found.recall(targets, 1),
        recall_at_10=found.recall(targets, 10),
        ms_per_step=float(np.median(found.ms_per_step)),
    )
