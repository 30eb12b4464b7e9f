"""Random members of a set of sequences, such as negatives to train against: uniform, or by a weight of each input row.

A member is drawn by its rank among all in lexicographic order. A sorted matrix has that order; in a trie the numbers of
sequences below edges lead from the start to the member of a rank.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .sorted_matrix import SortedMatrix
from .transition_table import TransitionTable


class Members(NamedTuple):
    """Drawn sequences."""

    tokens: NDArray[np.int64]  # (n, L), -1 past a sequence's end
    lengths: NDArray[np.int64]  # (n,)
    states: NDArray[np.int64]  # (n,) final states, for `input_rows`


class MemberSampler:
    """Draws members of a table of sequences, or of a sorted matrix, with replacement.

    table: from `compile_sids`, `compile_sequences` or `sort_sids`. weights: (N,) for each input row how likely it is
    beside others, such as how often an item was bought: 0 or more; rows with one sequence add up. Left out: each
    distinct sequence is as likely as any other.

    Of a table it keeps 8 bytes for each edge, and with weights 8 for each sequence.

    Raises TypeError for what is no set of sequences; ValueError for other weights.

    >>> matrix = SortedMatrix(4, np.array([[0, 3], [2, 1]], np.uint8))  # of rows (0, 2) and (3, 1)
    >>> MemberSampler(matrix, weights=[0, 1]).sample(3, seed=0).tokens.tolist()
    [[3, 1], [3, 1], [3, 1]]
    """

    def __init__(self, table: TransitionTable | SortedMatrix, weights: ArrayLike | None = None) -> None:
        if isinstance(table, SortedMatrix):
            self._walk: _MatrixWalk | _TrieWalk = _MatrixWalk(table)
        elif isinstance(table, TransitionTable) and table.is_trie:
            self._walk = _TrieWalk(table)
        else:
            raise TypeError(
                f"members are drawn from tables of sequences and sorted matrices, not from {table!r}: draw texts with "
                "sample_sequences"
            )
        self._up_to: NDArray[np.float64] | None = None  # weights of sequences by rank, added up
        if weights is not None:
            self._up_to = np.cumsum(self._walk.by_rank(_checked(weights, self._walk.num_items)))

    def sample(self, n: int, seed: int | np.random.Generator) -> Members:
        """Return `n` members; seed: a number, or a generator that goes on from call to call."""
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
            raise ValueError(f"n={n!r} must be a number of members, 0 or more")
        generator = np.random.default_rng(seed)
        if self._up_to is None:
            ranks = generator.integers(0, self._walk.num_sequences, n)
        else:
            total = self._up_to[-1]
            ranks = np.searchsorted(self._up_to, generator.random(n) * total, side="right")
            ranks = np.minimum(ranks, np.searchsorted(self._up_to, total))  # where rounding led behind the last
        return self.of_ranks(ranks)

    def of_ranks(self, ranks: NDArray[np.int64]) -> Members:
        """Return the members of ranks (n,), their places among all distinct ones in lexicographic order."""
        return self._walk.of_ranks(ranks)


def _checked(weights: ArrayLike, count: int) -> NDArray[np.float64]:
    """Return weights of `count` input rows."""
    array = np.asarray(weights)
    if array.shape != (count,) or array.dtype.kind not in "fiu":
        raise ValueError(f"weights must be {count:,} numbers, one for each input row, not {array.dtype} {array.shape}")
    array = array.astype(np.float64)
    if not (np.isfinite(array).all() and array.min() >= 0 and array.max() > 0):
        raise ValueError("weights must be finite and 0 or more, and one of them above 0")
    return array


def _of_groups(weights: NDArray[np.float64], starts: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sums of weights between starts, which rise from 0."""
    return np.asarray(np.add.reduceat(weights, starts[:-1]))


class _MatrixWalk:
    """Members of a sorted matrix by rank, which is their place."""

    def __init__(self, matrix: SortedMatrix) -> None:
        self._matrix = matrix
        self.num_sequences, self.num_items = matrix.num_sequences, matrix.num_items

    def by_rank(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights by rank, of those of input rows."""
        matrix = self._matrix
        weights = weights[matrix.item_row] if matrix.item_row.size else weights
        return _of_groups(weights, matrix.item_start) if matrix.item_start.size else weights

    def of_ranks(self, ranks: NDArray[np.int64]) -> Members:
        """Return the members of ranks (n,)."""
        tokens = self._matrix.columns[:, ranks].T.astype(np.int64)
        return Members(tokens, np.full(len(ranks), self._matrix.length), ranks)


class _TrieWalk:
    """Members of a trie by rank: the number of members that come before, a sequence before those that go on from it."""

    def __init__(self, table: TransitionTable) -> None:
        self._table = table
        self.num_sequences, self.num_items = table.num_sequences, table.num_items
        self._ends = np.flatnonzero(table.edges.token[table.num_edges :] == table.vocab_size)  # tail entries
        below = np.ones(table.num_edges, np.int64)  # members below each edge
        of_row = np.zeros(table.num_rows, np.int64)
        for rows, edges in reversed(self._levels()):
            target = table.edges.target[edges]
            inner = target < table.num_rows
            below[edges][inner] = of_row[target[inner]]
            up_to = np.append(0, np.cumsum(below[edges]))
            first = table.rows.edge_start[rows.start : rows.stop + 1] - edges.start
            of_row[rows] = table.rows.accepting[rows] + np.diff(up_to[first])
        self._before = np.append(0, np.cumsum(below))  # members below all edges in front of each

    def _levels(self) -> list[tuple[slice, slice]]:
        """Return the rows and the edges of each level."""
        start, edge_start = self._table.trie.level_start, self._table.rows.edge_start
        bounds = [(int(a), int(b)) for a, b in pairwise(start)]
        return [(slice(a, b), slice(int(edge_start[a]), int(edge_start[b]))) for a, b in bounds]

    def _end_of(self, target: NDArray[Any]) -> NDArray[np.int64]:
        """Return which of the final tail entries the tails of states (n,) lead to."""
        return np.searchsorted(self._ends, target - self._table.num_rows)

    def by_rank(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights by rank, of those of input rows."""
        table, trie = self._table, self._table.trie
        by_end = _of_groups(weights[trie.item_row], trie.item_start)  # rows in order, then tails
        out = np.empty(self.num_sequences)
        accepting = np.flatnonzero(table.rows.accepting)
        first = np.zeros(table.num_rows, np.int64)  # rank of the first member at or below each row
        for rows, edges in self._levels():
            counts = np.diff(table.rows.edge_start[rows.start : rows.stop + 1])
            start = first[rows] + table.rows.accepting[rows] - self._before[table.rows.edge_start[rows]]
            rank = np.repeat(start, counts) + self._before[edges]
            target = table.edges.target[edges]
            inner = target < table.num_rows
            first[target[inner]] = rank[inner]
            out[rank[~inner]] = by_end[accepting.size + self._end_of(target[~inner])]
        out[first[accepting]] = by_end[: accepting.size]
        return out

    def of_ranks(self, ranks: NDArray[np.int64]) -> Members:
        """Return the members of ranks (n,)."""
        table, edges = self._table, self._table.edges
        state, rest = np.zeros(len(ranks), np.int64), ranks.astype(np.int64)
        longest = table.max_length or 0  # None of graphs alone
        tokens = np.full((len(ranks), longest), -1, np.int64)
        lengths = np.zeros(len(ranks), np.int64)
        for t in range(longest):
            in_row = state < table.num_rows
            row = np.where(in_row, state, 0)
            ends = in_row & table.rows.accepting[row] & (rest == 0)
            place = rest - table.rows.accepting[row] + self._before[table.rows.edge_start[row]]
            edge = np.where(in_row & ~ends, np.searchsorted(self._before, place, side="right") - 1, 0)
            edge = np.where(in_row, edge, table.num_edges + state - table.num_rows)
            token = edges.token[edge].astype(np.int64)
            goes = ~ends & (token < table.vocab_size)
            tokens[:, t] = np.where(goes, token, -1)
            lengths += goes
            inner = goes & in_row
            rest = np.where(inner, place - self._before[edge * inner], rest)
            state = np.where(inner, edges.target[edge * inner], np.where(goes, state + 1, state))
        return Members(tokens, lengths, state)
