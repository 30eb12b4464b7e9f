"""`SidFilter`: which items of a sorted matrix or a table may come back, such as those in stock in one country."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Advice, ConstraintError
from ..kernels.arrays import IntArray
from .files_filter import MOST_ITEMS, FilesFilter
from .filter_bits import Runs, Words, booleans_of, put_in_order, words_of
from .grouped import token_rows
from .kept_edges import kept_edges
from .sharded_files import ShardedFiles
from .sorted_matrix import MOST_ROWS, SortedMatrix
from .transition_table import TransitionTable
from .weak_cache import Kept

_groups: Kept[Runs] = Kept()  # the items of each sequence


@dataclass(frozen=True, eq=False)
class SidFilter:
    """A choice among the items of a sorted matrix or of a table of sequences; as a constraint, those it keeps alone.

    Filters of one matrix or table are joined by `&`, `|` and `~`, item by item: of two items with one sequence a filter
    may keep one. Decoders, a `Matcher` and `put` take a filter in place of its table; `ops.filtered` gives each row of
    a batch its own. Whatever is allowed leads to an item that the filter keeps.
    """

    table: SortedMatrix | TransitionTable
    items: Words  # (N // 32 + 1,) bit i of word w: item 32 w + i, in the order of the table, is kept; 0 beyond N

    def __post_init__(self) -> None:
        """Keep nobody from relying on the bits: they are read-only."""
        self.items.flags.writeable = False

    def __repr__(self) -> str:
        """Say how much it keeps."""
        return f"SidFilter({self.num_items:,} of {_num_items(self.table):,} items)"

    def __and__(self, other: SidFilter) -> SidFilter:
        """Return the filter that keeps what both keep."""
        return SidFilter(self.table, self.items & self._same(other))

    def __or__(self, other: SidFilter) -> SidFilter:
        """Return the filter that keeps what either keeps."""
        return SidFilter(self.table, self.items | self._same(other))

    def __invert__(self) -> SidFilter:
        """Return the filter that keeps what this one does not."""
        return SidFilter(self.table, _cut(~self.items, _num_items(self.table)))

    def _same(self, other: SidFilter) -> Words:
        """Return the items of another filter; raise ConstraintError if it is of another matrix or table."""
        if not isinstance(other, SidFilter):
            raise TypeError(f"a filter is joined with a filter, as filter_sids makes one, not a {type(other).__name__}")
        if other.table is not self.table:
            kind = "matrices" if isinstance(self.table, SortedMatrix) else "tables"
            raise ConstraintError(f"filters of different {kind} cannot be joined: make both of one")
        return other.items

    @property
    def matrix(self) -> SortedMatrix:
        """The sorted matrix that this is a filter of. Raises TypeError for a filter of a table."""
        if not isinstance(self.table, SortedMatrix):
            raise TypeError("this is a filter of a table, not of a sorted matrix")
        return self.table

    @cached_property
    def rows(self) -> Words:
        """Return which sequences stand for an item that is kept: bits as of `items`, (Q // 32 + 1,)."""
        start, _ = _items_of(self.table)
        if not start.size or start.size - 1 == _num_items(self.table):
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
        shortest = self.table.min_length
        if isinstance(self.table, SortedMatrix) or shortest == self.table.max_length or not self.rows.any():
            return shortest
        near = kept_edges(self.table, self.rows, distances=True).distance
        assert near is not None
        return int(near[0])

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
        at = self.table.find(sids) if isinstance(self.table, SortedMatrix) else _sequences_of(self.table, sids)
        found: NDArray[np.bool_] = _bits(self.rows, at)  # Q, of no sequence, has a bit that is 0
        return found

    def input_rows(self, states: ArrayLike) -> list[IntArray]:
        """Return the input rows that are kept of each sequence (N,) that a decoder ended with, as of the table."""
        found = self.table.input_rows(states)
        start, _ = _items_of(self.table)
        numbers = np.atleast_1d(np.asarray(states)).astype(np.int64)
        if isinstance(self.table, TransitionTable):
            numbers = np.maximum(self.table.sequence_numbers(numbers), 0)
        out = []
        for number, rows in zip(numbers.tolist(), found, strict=True):
            first = int(start[number]) if start.size else number
            out.append(rows[_bits(self.items, first + np.arange(rows.size))])
        return out


@overload
def filter_sids(table: SortedMatrix | TransitionTable, keep: object) -> SidFilter: ...
@overload
def filter_sids(table: ShardedFiles, keep: object) -> FilesFilter: ...
def filter_sids(table: SortedMatrix | TransitionTable | ShardedFiles, keep: object) -> SidFilter | FilesFilter:
    """Return a filter that keeps some of the items of a sorted matrix, of a table of sequences, or of files.

    keep: (N,) booleans, one for each row that `sort_sids`, `compile_sids` or `compile_sequences` was given, in that
    order: an array, or a column of Arrow, Polars, pandas or DuckDB. 10^7 items take some 10 ms. Of `ShardedFiles`: one
    for each row of the dataset of the build, whose files are in the order of `manifest.dataset["files"]`.

    Raises ConstraintError for anything but booleans, for null, and where there are not as many as items; TypeError for
    the table of a text, which has no items.

    >>> from maskwright import sort_sids
    >>> matrix = sort_sids([[3, 1, 2], [0, 2, 2], [3, 1, 0]], vocab_size=4)
    >>> in_stock, new = filter_sids(matrix, [True, True, False]), filter_sids(matrix, [True, False, True])
    >>> (in_stock & new).contains([[3, 1, 2], [0, 2, 2], [3, 1, 0]])
    array([ True, False, False])
    """
    if isinstance(table, ShardedFiles):
        count, most = table.manifest.num_items, MOST_ITEMS
    elif isinstance(table, SortedMatrix) or (isinstance(table, TransitionTable) and table.is_trie):
        count, most = _num_items(table), MOST_ROWS
    else:
        raise TypeError(
            "table must be a SortedMatrix, as sort_sids makes one, a table of compile_sids or compile_sequences, or "
            "ShardedFiles, not "
            + ("the table of a text" if isinstance(table, TransitionTable) else f"a {type(table).__name__}")
        )
    column = booleans(keep)
    if column.shape != (count,):
        raise ConstraintError(
            f"keep has shape {column.shape}, one boolean is needed for each of the {count:,} input rows",
            argument="keep",
        )
    if count > most:
        raise ConstraintError(f"{count:,} rows are more than a filter may have, {most:,}", argument="table")
    words = words_of(column)
    if isinstance(table, ShardedFiles):
        return FilesFilter(table, words)
    _, row = _items_of(table)
    if not row.size:
        return SidFilter(table, words)
    ordered = np.zeros_like(words)
    put_in_order(words, np.ascontiguousarray(row, np.int32).view(np.uint32), ordered)
    return SidFilter(table, ordered)


def _num_items(table: SortedMatrix | TransitionTable) -> int:
    """Return how many input rows a matrix or a table has."""
    return table.num_items if isinstance(table, SortedMatrix) else int(table.trie.item_row.size)


def _items_of(table: SortedMatrix | TransitionTable) -> tuple[IntArray, IntArray]:
    """Return `item_start` and `item_row` of a matrix or a table."""
    found = table if isinstance(table, SortedMatrix) else table.trie
    return found.item_start, found.item_row


def _sequences_of(table: TransitionTable, sids: ArrayLike) -> NDArray[np.int64]:
    """Return which sequence each row of sids (N, L) is, EOS behind it or not: (N,); Q for one that is none."""
    tokens = token_rows(sids)
    inside = table.contains(tokens)
    states = np.zeros(inside.shape, np.int64)
    if table.ends and tokens.size:  # EOS leads from many sequences to one state
        going = np.ones(inside.shape, np.bool_)
        for column, is_end in zip(tokens.T, np.isin(tokens, table.ends).T, strict=True):
            going &= ~is_end
            states = np.where(going, table.walk(column[:, None], states), states)
    else:
        states = table.walk(tokens)
    return np.where(inside, table.sequence_numbers(states), table.num_sequences)


def _bits(words: Words, at: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which bits `at` (n,) are set."""
    found: NDArray[np.bool_] = (words[at >> 5] >> (at & 31).astype(np.uint32)) & 1 != 0
    return found


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
