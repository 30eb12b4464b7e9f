"""`LiveItems`: which items stand for each sequence of a snapshot, where items have numbers of their own.

An item is a row: those of the base come first, each inserted one is the next. Rows are never used again: of a deleted
item the row stays, and stands for nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sorted_matrix import SortedMatrix

Bools = NDArray[np.bool_]
Tokens = NDArray[np.unsignedinteger[Any]]


class GrowingArray:
    """An array that is appended to; what `view` returned before never changes."""

    def __init__(self, first: NDArray[Any]) -> None:
        self._array, self._size = first, len(first)

    def append(self, more: NDArray[Any]) -> None:
        """Append rows, at a cost that does not depend on how many there are, mostly."""
        if not len(more):  # the first array may be read-only
            return
        size = self._size + len(more)
        if size > len(self._array):
            grown = np.empty((max(size, len(self._array) * 3 // 2), *self._array.shape[1:]), self._array.dtype)
            grown[: self._size] = self._array[: self._size]
            self._array = grown
        self._array[self._size : size] = more
        self._size = size

    def view(self) -> NDArray[Any]:
        """Return all rows up to now; a thread that appends meanwhile does no harm."""
        size = self._size  # read first: an array that takes the place of another has as many rows at least
        return self._array[:size]


class ItemIndex:
    """Which of the first rows have each sequence of one base; and, by their tokens, rows that came later.

    tokens: (N, L) of these rows. alive: (N,) those that were not deleted before. It is worked out when it is first
    asked for, or by `build`.
    """

    def __init__(self, base: SortedMatrix, tokens: Tokens, alive: Bools) -> None:
        self.base, self.count = base, len(tokens)
        self._tokens, self._alive = tokens, alive
        self._later: dict[bytes, list[int]] = {}
        self._lock = threading.Lock()
        self._built: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]] | None = None

    def append(self, rows: range, tokens: Tokens) -> None:
        """Take rows that came later, with their tokens (n, L)."""
        for row, each in zip(rows, tokens, strict=True):
            self._later.setdefault(each.tobytes(), []).append(row)

    def build(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Return the place in the base of each row (N,), Q where it has none; rows in this order; where each begins."""
        with self._lock:
            if self._built is None:
                self._built = self._made()
            return self._built

    def _made(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        base = self.base
        if self.count == base.num_items and (base.item_row.size or base.item_start.size):  # made of these very rows
            place = np.empty(self.count, np.int32)
            sequences = np.arange(base.num_sequences, dtype=np.int32)
            of = np.repeat(sequences, np.diff(base.item_start)) if base.item_start.size else sequences
            place[base.item_row if base.item_row.size else slice(None)] = of
        else:
            place = base.find(self._tokens).astype(np.int32)
            place[~self._alive] = base.num_sequences
        order = np.argsort(place, kind="stable").astype(np.int32)
        start = np.searchsorted(place[order], np.arange(base.num_sequences + 1))
        for row in np.flatnonzero((place == base.num_sequences) & self._alive).tolist():  # of the delta
            self._later.setdefault(self._tokens[row].tobytes(), []).append(row)
        return place, order, start

    def rows_of(self, node: int, tokens: Tokens) -> NDArray[np.int64]:
        """Return the rows of a sequence, ascending: its place in the base, or Q, and its tokens (L,)."""
        _, order, start = self.build()
        old = order[start[node] : start[node + 1]] if node < self.base.num_sequences else order[:0]
        later = self._later.get(tokens.tobytes(), [])
        return np.sort(np.concatenate([old.astype(np.int64), np.array(later[:], np.int64)]))


@dataclass(frozen=True, eq=False)
class LiveItems:
    """The items of a snapshot: N rows, of which some are live."""

    index: ItemIndex
    tokens: Tokens  # (N, L)
    live: Bools  # (N,)
    owner: object  # stands for the live catalogue, by its identity

    def rows_of(self, node: int, tokens: Tokens, kept: Bools) -> NDArray[np.int64]:
        """Return the rows of a sequence that are kept (N,), as of `ItemIndex.rows_of`."""
        rows = self.index.rows_of(node, tokens)
        rows = rows[rows < kept.size]
        return rows[kept[rows]]

    def sequences_of(self, kept: Bools) -> tuple[Bools, Tokens]:
        """Return which sequences of the base have an item that is kept (Q,), and the tokens of kept items of others."""
        place, _, _ = self.index.build()
        matrix = self.index.base
        out = np.zeros(matrix.num_sequences + 1, np.bool_)
        rows = np.flatnonzero(kept[: place.size])
        out[place[rows]] = True
        later = np.flatnonzero(kept[place.size :]) + place.size
        others = np.concatenate([rows[place[rows] == matrix.num_sequences], later])
        tokens = self.tokens[others]
        found = matrix.find(tokens)
        out[found] = True
        return out[:-1], tokens[found == matrix.num_sequences]
