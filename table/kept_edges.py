"""Which edges of a trie lead to sequences that a filter keeps, and how far the nearest of them ends.

A row is kept where one of its edges is, and a sequence that ends in a tail belongs to the one edge that leads there. So
the levels are gone through from the last to the first, with the bits of all edges of a level at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..kernels.limits import UNREACHABLE
from .filter_bits import Runs, Words, booleans_of, place_bits, spread_bits, take_bits, words_of
from .grouped import GroupedArrays
from .weak_cache import Kept


@dataclass(frozen=True, eq=False)
class _TrieLevel:
    """What the edges of a level lead to, as bits of its edges, of its rows and of all sequences."""

    row: int  # the first of the level's
    edge: int  # the first of the level's
    to_rows: Words  # edges that lead to rows: those of the next level, in order
    to_tails: Words  # edges that lead to tails
    sequences: Words  # those which end in these tails, in the order of the edges
    edges_of_rows: Runs  # the edges of each row that has some
    with_edges: Words  # rows that have edges
    ends: Words  # rows in which a sequence ends
    ends_before: int  # such rows of earlier levels
    masks: slice  # those of the level's rows, among all of the table

    @property
    def arrays(self) -> tuple[Words, ...]:
        return self.to_rows, self.to_tails, self.sequences, self.edges_of_rows.ends, self.with_edges, self.ends


@dataclass(frozen=True, eq=False)
class _TrieLevels:
    levels: tuple[_TrieLevel, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for level in self.levels for array in level.arrays)


_known: Kept[_TrieLevels] = Kept()


def _levels_of(table: GroupedArrays) -> tuple[_TrieLevel, ...]:
    """Return what is known of the levels of a trie, found the first time: some 4 bits an edge and a bit a sequence."""
    return _known.made(
        table, lambda: _TrieLevels(tuple(_level(table, low, high) for low, high in _spans(table)))
    ).levels


def _spans(table: GroupedArrays) -> list[tuple[int, int]]:
    return list(pairwise(table.trie.level_start.tolist()))


def _level(table: GroupedArrays, low: int, high: int) -> _TrieLevel:
    rows, accepting = table.num_rows, table.rows.accepting
    start, bases = table.rows.edge_start[low : high + 1].astype(np.int64), table.rows.base[low:high]
    target = table.edges.target[start[0] : start[-1]]
    in_tails = target >= rows
    ends_before, ends = (int(np.count_nonzero(accepting[:count])) for count in (low, rows))
    is_end = np.flatnonzero(table.edges.token[table.num_edges :] == table.vocab_size)
    sequences = np.zeros(table.num_sequences, np.bool_)
    sequences[ends + np.searchsorted(is_end, target[in_tails] - target.dtype.type(rows))] = True
    with_edges = start[1:] > start[:-1]
    first_mask, masked = (int(bases[0]), bases.size) if bases.size and bases[0] >= 0 else (0, 0)
    return _TrieLevel(
        row=low,
        edge=int(start[0]),
        to_rows=words_of(~in_tails),
        to_tails=words_of(in_tails),
        sequences=words_of(sequences),
        edges_of_rows=Runs.of(np.append(start[:-1][with_edges], start[-1]) - start[0]),
        with_edges=words_of(with_edges),
        ends=words_of(accepting[low:high]),
        ends_before=ends_before,
        masks=slice(first_mask, first_mask + masked),
    )


@dataclass(frozen=True, eq=False)
class KeptEdges:
    """What of a trie leads to a sequence that is kept."""

    edges: Words  # E bits
    ends: Words  # S bits: rows in which a kept sequence ends
    distance: NDArray[np.int32] | None  # (S,) fewest tokens from each row to the end of a kept sequence; if asked for

    @property
    def any(self) -> bool:
        """Whether any sequence is kept."""
        return bool(self.edges.any())  # every sequence has a first token


def kept_edges(
    table: GroupedArrays, sequences: Words, distances: bool = False, masks: NDArray[np.uint32] | None = None
) -> KeptEdges:
    """Return what of a trie leads to kept sequences, bits of which are given as `SidFilter.rows`.

    distances: and how far their ends are. masks: of the shape of `table.bases.masks` and 0; the tokens of what is kept
    are set in it.
    """
    edges, ends = (np.zeros(count // 32 + 1, np.uint32) for count in (table.num_edges, table.num_rows))
    rows = np.zeros(1, np.uint32)
    for level in reversed(_levels_of(table)):
        tails, here = np.zeros_like(level.to_tails), np.zeros_like(level.to_rows)
        take_bits(sequences, level.sequences, tails)
        spread_bits(tails, 0, level.to_tails, here)
        spread_bits(rows, 0, level.to_rows, here)
        place_bits(here, level.edge, edges)
        if masks is not None and level.masks.stop:
            spread_bits(here, 0, table.bases.masks[level.masks].reshape(-1), masks[level.masks].reshape(-1))
        rows, of_rows = np.zeros_like(level.ends), np.zeros_like(level.with_edges)
        spread_bits(sequences, level.ends_before, level.ends, rows)
        place_bits(rows, level.row, ends)
        level.edges_of_rows.write_any(here, of_rows)
        spread_bits(of_rows, 0, level.with_edges, rows)
    return KeptEdges(edges, ends, _distance(table, edges, ends) if distances else None)


def _distance(table: GroupedArrays, kept: Words, ends: Words) -> NDArray[np.int32]:
    """Return the fewest tokens from each row to the end of a kept sequence, UNREACHABLE where there is none: (S,)."""
    edges = booleans_of(kept, table.num_edges)
    near = table.distance.copy()  # from tails, of which each has one sequence, to its end
    near[: table.num_rows] = np.where(booleans_of(ends, table.num_rows), 0, UNREACHABLE)
    for low, high in reversed(_spans(table)):
        start = table.rows.edge_start[low : high + 1].astype(np.int64)
        span, at = slice(int(start[0]), int(start[-1])), np.flatnonzero(start[1:] > start[:-1])
        if at.size:
            far = np.where(edges[span], np.minimum(near[table.edges.target[span]], UNREACHABLE - 1) + 1, UNREACHABLE)
            near[low + at] = np.minimum(near[low + at], np.minimum.reduceat(far, start[at] - start[0]))
    return near[: table.num_rows]
