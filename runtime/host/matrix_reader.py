"""How a `Matcher` reads a sorted matrix."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...table.sorted_matrix import SortedMatrix
from .host_reader import HostReader

Interval = tuple[int, int, int]
"""The rows low .. high that begin with the tokens so far, and how many tokens these are."""

_LEAP = 64  # rows for each token of the vocabulary from which on it is quicker to search for each than to read all rows


class MatrixReader(HostReader[Interval]):
    """Reads a sorted matrix.

    A place is the rows that begin with the tokens so far, and how many tokens these are: (low, high, depth).
    """

    parts = 3

    def __init__(self, matrix: SortedMatrix) -> None:
        super().__init__(matrix.vocab_size, matrix.eos)
        self._columns = matrix.columns
        self._views = [memoryview(column) for column in matrix.columns]
        self.length, self.count = matrix.length, matrix.num_sequences

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
        if high - low > _LEAP * self.size:
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
        return low, bisect_right(column, token, low, high), depth + 1

    def ends(self, place: Interval) -> bool:
        """Return whether a sequence is complete at a place."""
        return place[2] == self.length

    def configuration(self, place: Interval) -> tuple[int, tuple[int, ...]]:
        """Return the first row of a place, which is its `node` on a device, and no sites."""
        return place[0], ()
