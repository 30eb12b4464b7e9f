"""Which edges of a trie lead to sequences that a filter keeps, and how far the nearest of them ends.

A sequence that ends in a tail belongs to the one edge that leads there, and a row is kept where one of its edges is: so
the levels are gone through from the last to the first, in time linear in the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.limits import UNREACHABLE
from .kept import Kept
from .transition_table import TransitionTable

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class EdgeTargets:
    """What each edge of a trie leads to, among its S rows and then its Q sequences, in the order of `trie.item_start`.

    A sequence that ends in a row is not among the targets; `ends` are such rows.
    """

    below: NDArray[Any]  # (E,) integers
    ends: NDArray[np.int64]  # (A,) rows in which the first A sequences end

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.below.nbytes + self.ends.nbytes


_targets: Kept[EdgeTargets] = Kept()


def edge_targets(table: TransitionTable) -> EdgeTargets:
    """Return what the edges of a trie lead to, found the first time that they are asked for: 4 bytes an edge."""
    return _targets.made(table, lambda: _edge_targets(table))


def _edge_targets(table: TransitionTable) -> EdgeTargets:
    rows, target = table.num_rows, table.edges.target
    ends = np.flatnonzero(table.rows.accepting)
    below = target.astype(np.int32 if rows + table.num_sequences < 2**31 else np.int64)
    tails = np.flatnonzero(target >= rows)
    last = np.flatnonzero(table.edges.token[table.num_edges :] == table.vocab_size).astype(target.dtype)
    below[tails] = rows + ends.size + np.searchsorted(last, target[tails] - target.dtype.type(rows))
    return EdgeTargets(below, ends)


@dataclass(frozen=True, eq=False)
class KeptEdges:
    """What of a trie leads to a sequence that is kept."""

    edges: Bools  # (E,)
    ends: Bools  # (S,) rows in which a kept sequence ends
    distance: NDArray[np.int32] | None  # (S,) fewest tokens from each row to the end of a kept sequence; if asked for

    @property
    def any(self) -> bool:
        """Whether any sequence is kept."""
        return bool(self.edges.any())  # every sequence has a first token


def kept_edges(table: TransitionTable, sequences: Bools, distances: bool = False) -> KeptEdges:
    """Return what of a trie leads to kept sequences (Q,); distances: and how far their ends are."""
    known, rows = edge_targets(table), table.num_rows
    source = np.concatenate([np.zeros(rows, np.bool_), sequences])
    ends = np.zeros(rows, np.bool_)
    ends[known.ends] = sequences[: known.ends.size]
    edges = np.empty(table.num_edges, np.bool_)
    for here, span in _levels_upwards(table):
        edges[span] = source[known.below[span]]
        at, starts = _rows_with_edges(table, here, span)
        source[here] = ends[here]
        source[at] |= np.logical_or.reduceat(edges[span], starts) if at.size else False
    return KeptEdges(edges, ends, _distance(table, edges, ends) if distances else None)


def _distance(table: TransitionTable, edges: Bools, ends: Bools) -> NDArray[np.int32]:
    """Return the fewest tokens from each row to the end of a kept sequence, UNREACHABLE where there is none: (S,)."""
    near = table.distance.copy()  # from tails, of which each has one sequence, to its end
    near[: table.num_rows] = np.where(ends, 0, UNREACHABLE)
    for here, span in _levels_upwards(table):
        at, starts = _rows_with_edges(table, here, span)
        if at.size:
            far = np.where(edges[span], np.minimum(near[table.edges.target[span]], UNREACHABLE - 1) + 1, UNREACHABLE)
            near[at] = np.minimum(near[at], np.minimum.reduceat(far, starts))
    return near[: table.num_rows]


def _levels_upwards(table: TransitionTable) -> Iterator[tuple[slice, slice]]:
    """Give the rows and the edges of each level, the last one first."""
    start, edge_start = table.trie.level_start, table.rows.edge_start
    for low, high in reversed(list(pairwise(start.tolist()))):
        yield slice(low, high), slice(int(edge_start[low]), int(edge_start[high]))


def _rows_with_edges(table: TransitionTable, rows: slice, edges: slice) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return those of a level's rows that have edges, and where each one's begin among the level's."""
    starts = table.rows.edge_start[rows.start : rows.stop + 1]
    at = np.flatnonzero(starts[1:] > starts[:-1])
    return at + rows.start, starts[:-1][at] - edges.start
