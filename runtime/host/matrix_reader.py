"""How a `Matcher` reads a sorted matrix."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import Advice, ConstraintError
from ...table.filter_bits import count_before
from .host_reader import HostReader

Interval = tuple[int, int, int]
"""The rows low .. high that begin with the tokens so far, and how many tokens these are."""


def nothing_kept() -> ConstraintError:
    """Return the error for a filter that keeps nothing, where something must be written."""
    return ConstraintError(
        "the filter keeps no item: nothing could be written",
        remedies=[Advice("Ask its num_items before, and answer such a request without the model.")],
    )


LEAP = 64  # rows for each token of the vocabulary from which on it is quicker to search for each than to read all rows


class MatrixReader(HostReader[Interval]):
    """Reads a sorted matrix, or those of its rows that a filter keeps.

    A place is the rows that begin with the tokens so far, and how many tokens these are: (low, high, depth).
    """

    parts = 3

    def __init__(self, columns: NDArray[Any], vocab_size: int, kept: NDArray[np.uint32] | None = None) -> None:
        """Read the rows of sorted columns (L, Q), all or those whose bits are set in `kept` (Q // 32 + 1 or more,)."""
        super().__init__(vocab_size, None)
        self._kept, self._before = kept, np.empty(0 if kept is None else kept.size, np.int32)
        if kept is not None:
            count_before(kept, self._before)
        self._columns = columns
        self._views = [memoryview(column) for column in columns]
        self.length, self.count = int(columns.shape[0]), int(columns.shape[1])

    @staticmethod
    def of_filter(columns: NDArray[Any], vocab_size: int, kept: NDArray[np.uint32]) -> MatrixReader:
        """Return the reader of the rows that a filter keeps. Raises ConstraintError if there is none."""
        reader = MatrixReader(columns, vocab_size, kept)
        if not reader._is_kept(0, reader.count):
            raise nothing_kept()
        return reader

    def start(self) -> Interval:
        """Return the place of a sequence with nothing written yet."""
        return 0, self.count, 0

    def budgets(self, constraint: object) -> None:
        """Do nothing: how far the end is, is known at every depth."""

    def distance(self, place: Interval) -> int:
        """Return the tokens that a sequence lacks at a place."""
        return self.length - place[2]

    def farthest(self, place: Interval) -> int:
        """Return the distance that every token leads to."""
        return self.length - place[2] - 1

    def made(self, place: Interval, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only. room leaves nothing out: budgets hold all of a sequence, or are none.

        For all sequences are as long.
        """
        tokens = self.allowed(place).astype(np.uint32)
        mask = np.zeros(self.words, np.uint32)
        np.bitwise_or.at(mask, tokens >> 5, np.uint32(1) << (tokens & 31))
        mask.flags.writeable = False
        return mask

    def allowed(self, place: Interval) -> NDArray[Any]:
        """Return the tokens that a place allows."""
        low, high, depth = place
        if depth == self.length:
            return np.empty(0, np.uint32)
        run = self._columns[depth, low:high]
        if self._kept is not None:
            run = run[self._bits(low, high)]
        if run.size > LEAP * self.size:
            begins = np.searchsorted(run, np.arange(self.size, dtype=run.dtype))
            return np.flatnonzero(np.diff(begins, append=run.size))
        first = np.ones(run.size, np.bool_)
        np.not_equal(run[1:], run[:-1], out=first[1:])
        found: NDArray[Any] = run[first]
        return found

    def step(self, place: Interval, token: int) -> Interval | None:
        """Return the place that a token leads to; None if it is not allowed."""
        low, high, depth = place
        if depth == self.length:
            return None
        column = self._views[depth]
        low = bisect_left(column, token, low, high)
        if low == high or column[low] != token:
            return None
        high = bisect_right(column, token, low, high)
        return (low, high, depth + 1) if self._is_kept(low, high) else None

    def _is_kept(self, low: int, high: int) -> bool:
        """Return whether a row of low .. high is kept."""
        return self._kept is None or self._count(low) < self._count(high)

    def _count(self, row: int) -> int:
        """Return how many rows before one are kept."""
        assert self._kept is not None
        word = int(self._kept[row >> 5]) & ((1 << (row & 31)) - 1)
        return int(self._before[row >> 5]) + word.bit_count()

    def _bits(self, low: int, high: int) -> NDArray[np.bool_]:
        """Return which rows of low .. high are kept."""
        assert self._kept is not None
        words = self._kept[low >> 5 : (high >> 5) + 1].astype("<u4").view(np.uint8)
        return np.unpackbits(words, bitorder="little").view(np.bool_)[low & 31 :][: high - low]

    def ends(self, place: Interval) -> bool:
        """Return whether a sequence is complete at a place."""
        return place[2] == self.length

    def configuration(self, place: Interval) -> tuple[int, tuple[int, ...]]:
        """Return the first row of a place, which is its `node` on a device, and no sites."""
        return place[0], ()
