"""`SidFilter`: which items of a sorted matrix may come back, such as those in stock where a request comes from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Advice, ConstraintError
from .filter_bits import or_by_group, put_in_order
from .sorted_matrix import IntArray, SortedMatrix

Words = NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class SidFilter:
    """A choice among the items of a matrix, and as a constraint: the sequences that stand for an item it keeps.

    Filters of one matrix are joined by `&`, `|` and `~`, item by item: of two items with one sequence a filter may keep
    one. Decoders, a `Matcher` and `put` take a filter in place of its matrix; `ops.filtered` gives each row of a batch
    its own. Whatever is allowed leads to an item that the filter keeps.
    """

    matrix: SortedMatrix
    items: Words  # (N // 32 + 1,) bit i of word w: item 32 w + i, in the order of the matrix, is kept; 0 beyond N

    eos = None
    ends = other_ends = ()
    fixed_length = min_length = max_length = property(lambda self: self.matrix.length)

    def __post_init__(self) -> None:
        """Keep nobody from relying on the bits: they are read-only."""
        self.items.flags.writeable = False

    def __repr__(self) -> str:
        """Say how much it keeps."""
        return f"SidFilter({self.num_items:,} of {self.matrix.num_items:,} items)"

    def __and__(self, other: SidFilter) -> SidFilter:
        """Return the filter that keeps what both keep."""
        return SidFilter(self.matrix, self.items & self._same(other))

    def __or__(self, other: SidFilter) -> SidFilter:
        """Return the filter that keeps what either keeps."""
        return SidFilter(self.matrix, self.items | self._same(other))

    def __invert__(self) -> SidFilter:
        """Return the filter that keeps what this one does not."""
        return SidFilter(self.matrix, _cut(~self.items, self.matrix.num_items))

    def _same(self, other: SidFilter) -> Words:
        """Return the items of another filter; raise ConstraintError if it is of another matrix."""
        if not isinstance(other, SidFilter):
            raise TypeError(f"a filter is joined with a filter, as filter_sids makes one, not a {type(other).__name__}")
        if other.matrix is not self.matrix:
            raise ConstraintError("filters of different matrices cannot be joined: make both of one matrix")
        return other.items

    @cached_property
    def rows(self) -> Words:
        """Return which sequences stand for an item that is kept: bits as of `items`, (Q // 32 + 1,)."""
        if not self.matrix.item_start.size:
            return self.items
        rows = np.zeros(self.matrix.num_sequences // 32 + 1, np.uint32)
        or_by_group(self.items, np.ascontiguousarray(self.matrix.item_start, np.int32), rows)
        rows.flags.writeable = False
        return rows

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
        return self.matrix.vocab_size

    @property
    def vocabulary(self) -> str:
        """The fingerprint of the vocabulary."""
        return self.matrix.vocabulary

    @property
    def memory(self) -> int:
        """Bytes of the filter, without its matrix."""
        return int(self.items.nbytes)

    nbytes = memory

    def to_table(self) -> SidFilter:
        """Return this filter: it is put on a device as it is, with its matrix."""
        return self

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of sids (N, L) stands for an item that is kept: bool (N,)."""
        at = self.matrix.find(sids)  # Q, of no sequence, has a bit that is 0
        found: NDArray[np.bool_] = (self.rows[at >> 5] >> (at & 31).astype(np.uint32)) & 1 != 0
        return found

    def input_rows(self, states: ArrayLike) -> list[IntArray]:
        """Return the input rows that are kept of each sequence (N,) that a decoder ended with, as of the matrix."""
        found = self.matrix.input_rows(states)
        out = []
        for node, rows in zip(np.atleast_1d(np.asarray(states)).tolist(), found, strict=True):
            first = int(self.matrix.item_start[node]) if self.matrix.item_start.size else node
            at = first + np.arange(rows.size)
            out.append(rows[(self.items[at >> 5] >> (at & 31).astype(np.uint32)) & 1 != 0])
        return out


def filter_sids(matrix: SortedMatrix, keep: Any) -> SidFilter:
    """Return a filter that keeps some of the items of a sorted matrix.

    keep: (N,) booleans, one for each row that `sort_sids` was given, in that order: an array, or a column of Arrow,
    Polars, pandas or DuckDB. 10^7 items take some 20 ms.

    Raises ConstraintError for anything but booleans, for null, and where there are not as many as items.

    >>> from maskwright import sort_sids
    >>> matrix = sort_sids([[3, 1, 2], [0, 2, 2], [3, 1, 0]], vocab_size=4)
    >>> in_stock, new = filter_sids(matrix, [True, True, False]), filter_sids(matrix, [True, False, True])
    >>> (in_stock & new).contains([[3, 1, 2], [0, 2, 2], [3, 1, 0]])
    array([ True, False, False])
    """
    if not isinstance(matrix, SortedMatrix):
        raise TypeError(f"matrix must be a SortedMatrix, as sort_sids makes one, not a {type(matrix).__name__}")
    column = booleans(keep)
    if column.shape != (matrix.num_items,):
        raise ConstraintError(
            f"keep has shape {column.shape}, one boolean is needed for each of the {matrix.num_items:,} input rows",
            argument="keep",
        )
    words = np.zeros(matrix.num_items // 32 + 1, np.uint32)
    packed = np.packbits(column, bitorder="little")
    words.view(np.uint8)[: packed.size] = packed
    if not matrix.item_row.size:
        return SidFilter(matrix, words)
    ordered = np.zeros_like(words)
    put_in_order(words, np.ascontiguousarray(matrix.item_row, np.int32).view(np.uint32), ordered)
    return SidFilter(matrix, ordered)


def _cut(words: Words, count: int) -> Words:
    """Return words of bits, which may be written to, with those from `count` on 0."""
    words[-1] &= np.uint32((1 << (count & 31)) - 1)
    return words


def booleans(column: Any) -> NDArray[np.bool_]:
    """Return a column of booleans as an array; raise ConstraintError for other values and for null."""
    nulls = getattr(column, "null_count", 0)
    nulls = nulls() if callable(nulls) else nulls
    if isinstance(column, np.ma.MaskedArray):  # what DuckDB's fetchnumpy gives
        nulls, column = int(np.broadcast_to(column.mask, column.shape).sum()), column.data
    if nulls:
        raise ConstraintError(
            f"keep has {nulls:,} nulls, of which nothing says whether to keep them",
            argument="keep",
            remedies=[Advice("Fill them first, as with fill_null(False).")],
        )
    if hasattr(column, "to_numpy"):
        try:
            column = column.to_numpy(zero_copy_only=False)  # an Arrow array, whose booleans are bits
        except TypeError:
            column = column.to_numpy()
    array = np.asarray(column)
    if array.dtype != np.bool_:
        raise ConstraintError(
            f"keep must be booleans, not {array.dtype}",
            argument="keep",
            remedies=[Advice("Pass a comparison, as in stock > 0, not numbers or row numbers.")],
        )
    return array
