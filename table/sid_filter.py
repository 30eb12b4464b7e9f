"""`SidFilter`: which items of a sorted matrix or a table may come back, such as those in stock in one country."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConstraintError
from ..kernels.arrays import IntArray
from .filter_bits import Runs, Words, booleans_of, one_for_each, put_in_order, words_of
from .grouped import GroupedArrays
from .weak_cache import Kept

_groups: Kept[Runs] = Kept()  # the items of each sequence


class SequenceSet(Protocol):
    """What a filter is of: a sorted matrix, or a table of sequences, of Q distinct sequences from N input rows."""

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""

    @property
    def vocabulary(self) -> str:
        """The fingerprint of the vocabulary."""

    @property
    def eos(self) -> int | None:
        """The token that ends a sequence, the first of `ends`; None where sequences end by themselves."""

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end a sequence; () where sequences end by themselves."""

    @property
    def other_ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence, beside `eos`."""

    @property
    def fixed_length(self) -> int | None:
        """The length of every sequence, None where lengths differ or EOS is needed to end."""

    @property
    def max_length(self) -> int | None:
        """Most tokens in a sequence."""

    @property
    def num_sequences(self) -> int:
        """Q."""

    @property
    def num_items(self) -> int:
        """N."""

    @property
    def item_start(self) -> IntArray:
        """Where the items of each sequence begin, (Q + 1,); (0,) if each has one."""

    @property
    def item_row(self) -> IntArray:
        """The input row of each item, (N,); (0,) if they are in order."""

    @property
    def memory(self) -> int:
        """Bytes in this process."""

    def to_table(self) -> Any:
        """Return this: it is put on a device as it is."""

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of sids (N, L) is in the set: bool (N,)."""

    def sequences_of(self, sids: ArrayLike) -> NDArray[np.int64]:
        """Return which sequence each row of sids (N, L) is: (N,); Q for one that is none."""

    def sequence_numbers(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which sequence ends in each state (n,); -1 or Q for none."""

    def input_rows(self, states: ArrayLike) -> list[IntArray]:
        """Return the input rows of each sequence (N,) that a decoder ended with."""

    def shortest_of(self, rows: Words) -> int:
        """Return the fewest tokens in a sequence whose bit is set, of any sequence where none is."""


@dataclass(frozen=True, eq=False)
class SidFilter:
    """A choice among the items of a sorted matrix or of a table of sequences; as a constraint, those it keeps alone.

    Filters of one matrix or table are joined by `&`, `|` and `~`, item by item: of two items with one sequence a filter
    may keep one. Decoders, a `Matcher` and `to_device` take a filter in place of its table; `ops.with_filters` gives
    each row of a batch its own. Whatever is allowed leads to an item that the filter keeps.
    """

    table: SequenceSet
    items: Words  # (N // 32 + 1,) bit i of word w: item 32 w + i, in the order of the table, is kept; 0 beyond N

    def __post_init__(self) -> None:
        """Keep nobody from relying on the bits: they are read-only."""
        self.items.flags.writeable = False

    @classmethod
    def of(cls, table: SequenceSet, keep: Any) -> SidFilter:
        """Return the filter of a table that keeps items: (N,) booleans in the order of the input rows."""
        words = words_of(one_for_each(keep, table.num_items))
        if table.item_row.size:
            ordered = np.zeros_like(words)
            put_in_order(words, np.ascontiguousarray(table.item_row, np.int32).view(np.uint32), ordered)
            words = ordered
        return cls(table, words)

    def __repr__(self) -> str:
        """Say how much it keeps."""
        return f"SidFilter({self.num_items:,} of {self.table.num_items:,} items)"

    def __and__(self, other: SidFilter) -> SidFilter:
        """Return the filter that keeps what both keep."""
        return SidFilter(self.table, self.items & self._same(other))

    def __or__(self, other: SidFilter) -> SidFilter:
        """Return the filter that keeps what either keeps."""
        return SidFilter(self.table, self.items | self._same(other))

    def __invert__(self) -> SidFilter:
        """Return the filter that keeps what this one does not."""
        return SidFilter(self.table, _cut(~self.items, self.table.num_items))

    def _same(self, other: SidFilter) -> Words:
        """Return the items of another filter; raise ConstraintError if it is of another matrix or table."""
        if not isinstance(other, SidFilter):
            raise TypeError(f"a filter is joined with a filter, as filter() makes one, not a {type(other).__name__}")
        if other.table is not self.table:
            kind = "tables" if isinstance(self.table, GroupedArrays) else "matrices"
            raise ConstraintError(f"filters of different {kind} cannot be joined: make both of one")
        return other.items

    @property
    def matrix(self) -> Any:
        """The sorted matrix that this is a filter of. Raises TypeError for a filter of a table."""
        if isinstance(self.table, GroupedArrays):
            raise TypeError("this is a filter of a table, not of a sorted matrix")
        return self.table

    @cached_property
    def rows(self) -> Words:
        """Return which sequences stand for an item that is kept: bits as of `items`, (Q // 32 + 1,)."""
        start = self.table.item_start
        if not start.size or start.size - 1 == self.table.num_items:
            return self.items
        rows = np.zeros(self.table.num_sequences // 32 + 1, np.uint32)
        _groups.made(self.table, lambda: Runs.of(start)).write_any(self.items, rows)
        rows.flags.writeable = False
        return rows

    @property
    def sequences(self) -> NDArray[np.bool_]:
        """Which sequences stand for an item that is kept: (Q,)."""
        return booleans_of(self.rows, self.table.num_sequences)

    @property
    def num_items(self) -> int:
        """How many items are kept."""
        return int(np.unpackbits(self.items.view(np.uint8)).sum())

    @property
    def num_sequences(self) -> int:
        """How many sequences stand for an item that is kept."""
        return int(np.unpackbits(self.rows.view(np.uint8)).sum())

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""
        return self.table.vocab_size

    @property
    def vocabulary(self) -> str:
        """The fingerprint of the vocabulary."""
        return self.table.vocabulary

    @property
    def eos(self) -> int | None:
        """The token that ends a sequence, the first of `ends`; None where sequences end by themselves."""
        return self.table.eos

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end a sequence; () where sequences end by themselves."""
        return self.table.ends

    @property
    def other_ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence, beside `eos`."""
        return self.table.other_ends

    @property
    def fixed_length(self) -> int | None:
        """The length of every sequence of the table, None where lengths differ or EOS is needed to end."""
        return self.table.fixed_length

    @cached_property
    def min_length(self) -> int:
        """Fewest tokens in a sequence that is kept; in one of the table where none is."""
        return self.table.shortest_of(self.rows)

    @property
    def max_length(self) -> int | None:
        """Most tokens in a sequence of the table."""
        return self.table.max_length

    @property
    def memory(self) -> int:
        """Bytes of the filter, without its table."""
        return int(self.items.nbytes)

    nbytes = memory

    def to_table(self) -> SidFilter:
        """Return this filter: it is put on a device as it is, with its table."""
        return self

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of sids (N, L) stands for an item that is kept: bool (N,)."""
        found: NDArray[np.bool_] = _bits(self.rows, self.table.sequences_of(sids))  # the bit of Q, of none, is 0
        return found

    def input_rows(self, states: ArrayLike) -> list[IntArray]:
        """Return the input rows that are kept of each sequence (N,) that a decoder ended with, as of the table."""
        found = self.table.input_rows(states)
        start = self.table.item_start
        numbers = np.maximum(self.table.sequence_numbers(np.atleast_1d(np.asarray(states)).astype(np.int64)), 0)
        out = []
        for number, rows in zip(numbers.tolist(), found, strict=True):
            first = int(start[number]) if start.size else number
            out.append(rows[_bits(self.items, first + np.arange(rows.size))])
        return out


def _bits(words: Words, at: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which bits `at` (n,) are set."""
    found: NDArray[np.bool_] = (words[at >> 5] >> (at & 31).astype(np.uint32)) & 1 != 0
    return found


def _cut(words: Words, count: int) -> Words:
    """Return words of bits, which may be written to, with those from `count` on 0."""
    words[-1] &= np.uint32((1 << (count & 31)) - 1)
    return words
