"""The part of a live set that seldom changes: a sorted matrix in shapes with room, and bits of its live rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .filter_bits import Runs, Words, booleans_of, spread_bits, words_of
from .first_rows import first_rows
from .sorted_matrix import SortedMatrix

Masks = NDArray[np.uint8]

ROOM = 4
"""Capacities of the delta that a base has room for besides its rows."""

_MASK_BYTES = 8 << 20  # of masks after a first token, which are published each time


@dataclass(frozen=True)
class BaseShape:
    """All that is static of a base on a device. Of what it says is the most, a base has at most so much."""

    count: int  # rows
    widths: tuple[int, ...]  # (L,) the longest interval by depth
    branches: tuple[int, ...]  # (L,) most tokens by depth; 2 at least, as a delta may branch anywhere
    masked: int  # depths that have masks: 1, or 2
    firsts: tuple[tuple[int, int] | None, ...]  # (L,) where the first rows of a depth begin, and end with their room

    @staticmethod
    def around(matrix: SortedMatrix, capacity: int) -> BaseShape:
        """Return shapes with room for several times as many more rows as a delta has."""
        room = ROOM * capacity
        size = matrix.vocab_size
        masked = 2 if matrix.length > 1 and (size + 2) * mask_width(size) <= _MASK_BYTES else 1
        spans: list[tuple[int, int] | None] = []
        begin = 0
        for rows in first_rows(matrix, masked, least=1):
            spans.append(None if rows is None else (begin, begin + rows.size + room))
            begin += 0 if rows is None else rows.size + room
        return BaseShape(
            count=matrix.num_sequences + room,
            widths=tuple(
                min(most, size) if depth >= masked and spans[depth] is None else most  # all rows are read there
                for depth, most in enumerate(width + max(4, width // 4) for width in matrix.widths)
            ),
            branches=tuple(min(max(2, size), most + max(2, most // 4)) for most in matrix.branches),
            masked=masked,
            firsts=tuple(spans),
        )

    def holding(self, matrix: SortedMatrix, capacity: int) -> BaseShape:
        """Return these shapes if a matrix fits in, else others around it."""
        fits = matrix.num_sequences <= self.count
        fits &= all(a <= b for a, b in zip(matrix.widths, self.widths, strict=True))
        fits &= all(a <= b for a, b in zip(matrix.branches, self.branches, strict=True))
        for depth, span in enumerate(self.firsts):
            if span is not None and fits:
                fits &= prefix_rows(matrix, depth).size <= span[1] - span[0]
        return self if fits else BaseShape.around(matrix, capacity)


def mask_width(vocab_size: int) -> int:
    """Return the bytes of a mask: a multiple of 8, with a bit more than there are tokens."""
    return 8 * (vocab_size // 64 + 1)


def prefix_rows(matrix: SortedMatrix, depth: int) -> NDArray[np.int32]:
    """Return the first row of each prefix of depth + 1 tokens."""
    new = np.zeros(matrix.num_sequences, np.bool_)
    new[0] = True
    for column in matrix.columns[: depth + 1]:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new).astype(np.int32)


@dataclass(frozen=True, eq=False)
class LiveBase:
    """A sorted matrix in a shape."""

    matrix: SortedMatrix
    shape: BaseShape
    first_rows: tuple[NDArray[np.int32] | None, ...]  # (L,) of (k,)

    @staticmethod
    def of(matrix: SortedMatrix, shape: BaseShape) -> LiveBase:
        """Return a matrix in a shape that holds it."""
        rows = (None if span is None else prefix_rows(matrix, depth) for depth, span in enumerate(shape.firsts))
        return LiveBase(matrix, shape, tuple(rows))

    @property
    def first_words(self) -> int:
        """Words of the bits of first rows."""
        return max((span[1] for span in self.shape.firsts if span), default=0) // 32 + 1

    def item_counts(self) -> NDArray[np.int32]:
        """Return how many items have each sequence: (Q,)."""
        if self.matrix.item_start.size:
            return np.diff(self.matrix.item_start).astype(np.int32)
        return np.ones(self.matrix.num_sequences, np.int32)

    def bits_of(self, live: NDArray[np.bool_]) -> Words:
        """Return a bit for each row that is live (Q,), in words for as many as the shape has."""
        return words_of(live, self.shape.count)

    def live_rows(self, bits: Words) -> NDArray[np.bool_]:
        """Return which rows are live: (Q,)."""
        return booleans_of(bits, self.matrix.num_sequences)

    def masks_of(self, bits: Words) -> Masks:
        """Return masks (R, K): of first tokens, of second ones after each first where there are, and of nothing."""
        size, columns, live = self.matrix.vocab_size, self.matrix.columns, self.live_rows(bits)
        width = 8 * mask_width(size)
        masks = np.zeros((size + 2 if self.shape.masked == 2 else 2, width), np.bool_)
        masks[0, columns[0][live]] = True
        if self.shape.masked == 2:
            masks[1 + columns[0][live].astype(np.int64), columns[1][live]] = True
        return np.packbits(masks, axis=1, bitorder="little")

    @cached_property
    def _prefixes(self) -> list[tuple[Runs, Words]]:
        """Return by depth that has masks the rows of each prefix, and masks of these prefixes alone."""
        columns, size = self.matrix.columns, self.matrix.vocab_size
        found = []
        for depth in range(self.shape.masked):
            rows = prefix_rows(self.matrix, depth)
            masks = np.zeros((size + 2 if self.shape.masked == 2 else 2, 8 * mask_width(size)), np.bool_)
            masks[1 + columns[0][rows].astype(np.int64) if depth else 0, columns[depth][rows]] = True
            packed = np.packbits(masks, axis=1, bitorder="little")
            found.append((Runs.of(np.append(rows, self.matrix.num_sequences)), packed.reshape(-1).view(np.uint32)))
        return found

    @cached_property
    def _first_runs(self) -> list[tuple[int, Runs]]:
        """Return of each depth that keeps first rows where their bits begin, and the rows of each prefix."""
        count = self.matrix.num_sequences
        return [
            (span[0], Runs.of(np.append(rows, count)))
            for span, rows in zip(self.shape.firsts, self.first_rows, strict=True)
            if span is not None and rows is not None
        ]

    def write_masks(self, bits: Words, out: Masks) -> None:
        """Write masks (R, K), as of `masks_of`, of rows whose bits are set; out is 0 before, and contiguous.

        It reads the prefixes that are kept with the base, not its rows.
        """
        words = out.reshape(-1).view(np.uint32)
        for runs, last in self._prefixes:
            found = np.zeros(runs.count // 32 + 1, np.uint32)
            runs.write_any(bits, found)
            spread_bits(found, 0, last, words)

    def firsts_of(self, bits: Words) -> Words:
        """Return a bit for each first row below whose token a row is live."""
        out = np.zeros(self.first_words, np.uint32)
        for begin, runs in self._first_runs:
            runs.write_any(bits, out, begin)
        return out

    def allow(self, rows: NDArray[Any], masks: Masks) -> None:
        """Allow the first tokens of rows (N, L), and the second ones after them, in masks."""
        first = rows[:, 0].astype(np.int64)
        np.bitwise_or.at(masks[0], first >> 3, _bit_of(first))
        if self.shape.masked == 2:
            second = rows[:, 1].astype(np.int64)
            np.bitwise_or.at(masks, (1 + first, second >> 3), _bit_of(second))

    def forbid(self, lost: NDArray[Any], bits: Words, masks: Masks, in_delta: Callable[[NDArray[Any]], bool]) -> None:
        """Forbid in masks what only rows (N, L) had that are gone; in_delta says whether a delta has a prefix."""
        begins = self.matrix.first_row_of
        column = self.matrix.columns[min(1, self.matrix.length - 1)]
        for tokens in set(map(tuple, lost[:, : self.shape.masked].tolist())):
            prefix, first = np.array(tokens, lost.dtype), tokens[0]
            low, high = int(begins[first]), int(begins[first + 1])
            if self.shape.masked == 2:
                second = tokens[1]
                run = column[low:high]
                low, high = low + int(run.searchsorted(prefix[1])), low + int(run.searchsorted(prefix[1], "right"))
                if any_bit(bits, low, high) or in_delta(prefix):
                    continue
                masks[1 + first, second >> 3] &= ~np.uint8(1 << (second & 7))
                gone = not masks[1 + first].any()
            else:
                gone = not any_bit(bits, low, high) and not in_delta(prefix)
            if gone:
                masks[0, first >> 3] &= ~np.uint8(1 << (first & 7))

    def refresh_firsts(self, turned: NDArray[np.int64], bits: Words, firsts: Words) -> None:
        """Set the bits of first rows again, whose tokens rows (N,) have that came or went."""
        for span, rows in zip(self.shape.firsts, self.first_rows, strict=True):
            if span is None or rows is None:
                continue
            # of one type, or numpy copies the rows of all prefixes
            for entry in np.unique(np.searchsorted(rows, turned.astype(rows.dtype), "right") - 1).tolist():
                stop = int(rows[entry + 1]) if entry + 1 < rows.size else self.matrix.num_sequences
                at = span[0] + entry
                bit = np.uint32(1 << (at & 31))
                firsts[at >> 5] &= ~bit
                if any_bit(bits, int(rows[entry]), stop):
                    firsts[at >> 5] |= bit


def _bit_of(token: NDArray[np.int64]) -> NDArray[np.uint8]:
    bits: NDArray[np.uint8] = np.left_shift(1, token & 7).astype(np.uint8)
    return bits


def any_bit(bits: Words, low: int, high: int) -> bool:
    """Return whether a bit from low up to high is set."""
    if low >= high:
        return False
    first, last = low >> 5, high >> 5
    head, tail = (0xFFFFFFFF << (low & 31)) & 0xFFFFFFFF, (1 << (high & 31)) - 1
    if first == last:
        return bool(int(bits[first]) & head & tail)
    if int(bits[first]) & head or int(bits[last]) & tail:
        return True
    return bool(bits[first + 1 : last].any())
