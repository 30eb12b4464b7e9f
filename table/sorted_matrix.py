"""`SortedMatrix`: the sequences of a set in order, one of the constraints that `runtime` applies to logits.

Where a table has a state for each prefix, here a prefix is the interval of rows that begin with it. Nothing is built
but the order: arXiv 2504.09135, algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import TableError
from ..kernels.arrays import BoolArray, Int, Int64Array, IntArray, IntegerArray, UintArray
from ..kernels.compiled import kernel
from ..kernels.limits import MOST_TOKENS
from .filter_bits import MOST_ROWS, Words
from .sid_filter import SidFilter
from .transition_table import integer_vocabulary

_TOGETHER = 1024  # rows copied at once in `lay_out`
_NO_ROWS = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class SortedMatrix:
    """Distinct sequences of one length in lexicographic order, checked when made.

    Q sequences of L tokens, from N input rows. `columns` is all there is to it: `np.save` of `sids` is its file, of
    which `sort_sids` then only sees that it is sorted. The way back to the rows of what it was made from first is
    `item_row`, to be saved beside it or used to put the items into the same order.
    """

    vocab_size: int
    columns: NDArray[np.unsignedinteger[Any]]  # (L, Q), the smallest type that holds V - 1
    item_start: IntArray = field(default_factory=lambda: _NO_ROWS)  # (Q + 1,) groups of equal rows; (0,) if all differ
    item_row: IntArray = field(default_factory=lambda: _NO_ROWS)  # (N,) input rows; (0,) if they were sorted

    eos = None  # sequences end by themselves, as those of a table that has none
    ends = other_ends = ()

    def __post_init__(self) -> None:
        """Check the matrix, once: TableError."""
        columns = np.asarray(self.columns)
        columns = np.require(columns, columns.dtype.newbyteorder("="), ["C", "A"])
        if columns.ndim != 2 or columns.dtype.kind != "u" or not columns.size:
            raise TableError(f"columns must be unsigned integers (L, Q), not {columns.dtype} {columns.shape}")
        if columns.shape[1] > MOST_ROWS:
            raise TableError(f"{columns.shape[1]:,} rows are more than a sorted matrix may have, {MOST_ROWS:,}")
        if type(self.vocab_size) is not int or not 1 <= self.vocab_size <= MOST_TOKENS:
            raise TableError(f"vocab_size must be an integer from 1 to {MOST_TOKENS:,}, not {self.vocab_size!r}")
        if self.vocab_size - 1 > np.iinfo(columns.dtype).max:
            raise TableError(
                f"columns of {columns.dtype} cannot hold the tokens of a vocabulary of {self.vocab_size:,}"
            )
        if int(columns.max()) >= self.vocab_size:
            raise TableError(f"a sequence has token {columns.max()}, outside 0 .. {self.vocab_size - 1}")
        if self.item_start.size not in (0, columns.shape[1] + 1):
            raise TableError(f"item_start has {self.item_start.size} entries, {columns.shape[1] + 1} are needed, or 0")
        if self.item_start.size and (self.item_start[0] != 0 or (np.diff(self.item_start) < 1).any()):
            raise TableError("item_start must begin with 0 and rise: each sequence stands for one input row at least")
        if self.item_row.size not in (0, self.num_items):
            raise TableError(f"item_row has {self.item_row.size} entries, there are {self.num_items} input rows")
        if self.item_row.size and not 0 <= self.item_row.min() <= self.item_row.max() < self.num_items:
            raise TableError(f"item_row has rows outside 0 .. {self.num_items - 1}")
        if columns.dtype.itemsize == 8:  # which no vocabulary needs
            columns = columns.astype(np.uint32)
        for name, array in (("columns", columns), ("item_start", self.item_start), ("item_row", self.item_row)):
            array = array.astype(array.dtype.newbyteorder("="), copy=False)
            frozen = array.copy() if array.flags.writeable else array
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)
        widths, branches = (np.ones(self.length, np.int64) for _ in range(2))
        row = measure(self.columns, widths, branches)
        if row >= 0:
            raise TableError(f"row {row} does not come after row {row - 1}: make the matrix with sort_sids")
        object.__setattr__(self, "_widths", tuple(widths.tolist()))
        object.__setattr__(self, "_branches", tuple(branches.tolist()))

    def __setstate__(self, fields: dict[str, Any]) -> None:
        """Take the arrays of a pickle or copy, which can be written to, as read-only ones again."""
        for value in fields.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        self.__dict__.update(fields)

    def __repr__(self) -> str:
        """Say how large it is."""
        return (
            f"SortedMatrix({self.num_sequences:,} sequences of {self.length} tokens, {self.nbytes:,} bytes, "
            f"vocab_size={self.vocab_size})"
        )

    @property
    def length(self) -> int:
        """L: the tokens of each sequence."""
        return int(self.columns.shape[0])

    @property
    def fixed_length(self) -> int:
        """L, as of a table whose sequences are all as long."""
        return self.length

    min_length = max_length = fixed_length

    @property
    def vocabulary(self) -> str:
        """The fingerprint of the vocabulary, as of a table of semantic IDs: one of bare integers."""
        return integer_vocabulary(self.vocab_size)

    @property
    def num_sequences(self) -> int:
        """Q: distinct sequences."""
        return int(self.columns.shape[1])

    @property
    def num_items(self) -> int:
        """N: input rows."""
        return int(self.item_start[-1]) if self.item_start.size else self.num_sequences

    @property
    def sids(self) -> NDArray[np.unsignedinteger[Any]]:
        """The distinct sequences (Q, L), in order."""
        return self.columns.T

    def to_table(self) -> SortedMatrix:
        """Return this matrix: it is put on a device as it is."""
        return self

    @property
    def memory(self) -> int:
        """Bytes of the matrix in this process, with the way back to input rows."""
        return self.nbytes + self.item_start.nbytes + self.item_row.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the sequences, without the map back to input rows, which stays on the host."""
        return int(self.columns.nbytes)

    @property
    def widths(self) -> tuple[int, ...]:
        """The longest run of rows whose first 0 .. L - 1 tokens are alike: how long an interval can be at a depth."""
        widths: tuple[int, ...] = self.__dict__["_widths"]
        return widths

    @property
    def branches(self) -> tuple[int, ...]:
        """The most tokens that can follow at each depth 0 .. L - 1."""
        branches: tuple[int, ...] = self.__dict__["_branches"]
        return branches

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of sids (N, L) is in the set: bool (N,)."""
        return self.find(sids) < self.num_sequences

    def find(self, sids: ArrayLike) -> NDArray[np.int64]:
        """Return where each row of sids (N, L) stands among the distinct sequences; Q where it is not one: (N,)."""
        array = np.asarray(sids)
        if array.size == 0 and array.ndim < 2:
            return np.empty(0, np.int64)
        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise ValueError(f"sids must be integers (N, L), not {array.dtype} {array.shape}")
        out = np.full(array.shape[0], self.num_sequences, np.int64)
        if array.shape[1] == self.length:
            find_rows(self.columns, self.first_row_of, np.require(array, np.int64, ["C", "A"]), out)
        return out

    @cached_property
    def first_row_of(self) -> NDArray[np.int64]:
        """Return where the sequences with each first token begin, and where the last end: (V + 1,)."""
        tokens = np.arange(self.vocab_size, dtype=np.int64).astype(self.columns.dtype)
        return np.append(np.searchsorted(self.columns[0], tokens), self.num_sequences)

    sequences_of = find

    def sequence_numbers(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which sequence each state (n,) is of: a state is a sequence's place."""
        return states

    def shortest_of(self, rows: Words) -> int:
        """Return L, the tokens of any sequence."""
        return self.length

    def filter(self, keep: Any) -> SidFilter:
        """Return a filter that keeps some of the items.

        keep: (N,) booleans, one for each row that `sort_sids` was given, in that order: an array, or a column of Arrow,
        Polars, pandas or DuckDB. 10^7 items take some 10 ms.

        Raises ConstraintError for anything but booleans, for null, and where there are not as many as items.

        >>> from maskwright import sort_sids
        >>> matrix = sort_sids([[3, 1, 2], [0, 2, 2], [3, 1, 0]], vocab_size=4)
        >>> in_stock, new = matrix.filter([True, True, False]), matrix.filter([True, False, True])
        >>> (in_stock & new).contains([[3, 1, 2], [0, 2, 2], [3, 1, 0]])
        array([ True, False, False])
        """
        return SidFilter.of(self, keep)

    def input_rows(self, states: ArrayLike) -> list[IntArray]:
        """Return the input rows of each sequence (N,) that a decoder ended with; an empty array where there is none.

        states: the `node` of final states, or a `Matcher`'s `state`: a sequence's place among the distinct ones.
        """
        array = np.atleast_1d(np.asarray(states))
        if array.size and not 0 <= array.min() <= array.max() <= self.num_sequences:
            stray = int(array.min() if array.min() < 0 else array.max())
            raise ValueError(f"state {stray} is none of this matrix: its states are 0 .. {self.num_sequences}")
        out = []
        for at in array.tolist():
            first, stop = at, min(at + 1, self.num_sequences)
            if self.item_start.size and at < self.num_sequences:
                first, stop = int(self.item_start[at]), int(self.item_start[at + 1])
            out.append(self.item_row[first:stop] if self.item_row.size else np.arange(first, stop, dtype=np.int32))
        return out


@kernel
def measure(columns: UintArray, widths: Int64Array, branches: Int64Array) -> int:
    """Write runs and branches by depth (L,); return the first row that does not come after the one before, or -1."""
    length, count = columns.shape
    first, children = np.zeros(length, np.int64), np.ones(length, np.int64)
    for i in range(1, count + 1):
        shared = 0  # tokens alike in this row and the one before
        if i < count:
            while shared < length and columns[shared, i] == columns[shared, i - 1]:
                shared += 1
            if shared == length or columns[shared, i] < columns[shared, i - 1]:
                return i
        for depth in range(shared + 1 if i < count else 0, length):
            widths[depth] = max(widths[depth], i - first[depth])
            branches[depth] = max(branches[depth], children[depth])
            first[depth], children[depth] = i, 1
        if i < count:
            children[shared] += 1
    return -1


@kernel
def find_rows(columns: UintArray, first_rows: Int64Array, sids: IntArray, out: Int64Array) -> None:
    """Write where each of sids (N, L) stands in the sorted columns (L, Q), where it does; first_rows: (V + 1,)."""
    length = columns.shape[0]
    limit = np.uint64(first_rows.size - 1)
    for i in range(sids.shape[0]):
        if np.uint64(sids[i, 0]) >= limit:  # a negative token becomes a huge unsigned one
            continue
        low, high = first_rows[np.int64(sids[i, 0])], first_rows[np.int64(sids[i, 0]) + 1]
        stop = high
        while low < high:
            middle = (low + high) >> 1
            depth = 1
            while depth < length and np.uint64(columns[depth, middle]) == np.uint64(sids[i, depth]):
                depth += 1
            if depth < length and np.uint64(columns[depth, middle]) < np.uint64(sids[i, depth]):
                low = middle + 1
            else:
                high = middle
        if low < stop:
            same = True
            for depth in range(1, length):
                same &= np.uint64(columns[depth, low]) == np.uint64(sids[i, depth])
            if same:
                out[i] = low


@kernel
def in_order(values: IntegerArray, length: int, vocab_size: int, same: BoolArray) -> int:
    """Return how many rows of values (N * L,) are sorted, up to the first that is not or has a token outside 0 .. V.

    Writes whether each is the same as the one before it.
    """
    limit = np.uint64(vocab_size)
    for i in range(same.size):
        begin = i * length
        differ = 0  # 1 from where it is larger than the row before
        for j in range(begin, begin + length):
            token = np.uint64(values[j])  # a negative token becomes a huge one
            if token >= limit:
                return i
            if i and not differ:
                before = np.uint64(values[j - length])
                if token < before:
                    return i
                differ = 1 if token > before else 0
        same[i] = i > 0 and not differ
    return int(same.size)


@kernel
def lay_out(values: IntegerArray, index: IntArray, same: BoolArray, columns: UintArray) -> Int:
    """Write the rows of values (N * L,) in the order of index (N,), but the `same` ones, into columns (L, Q).

    index (0,): as they stand. Rows lie in no order, so a block of them is touched first: cache misses then overlap.
    """
    length = columns.shape[0]
    block = np.empty((_TOGETHER, length), columns.dtype)
    at, touched = 0, np.int64(0)
    for lo in range(0, same.size, _TOGETHER):
        hi = min(lo + _TOGETHER, same.size)
        filled = 0
        if index.size:
            for i in range(lo, hi):
                touched += np.int64(values[index[i] * length])
        for i in range(lo, hi):
            if not same[i]:
                begin = (index[i] if index.size else i) * length
                for j in range(length):
                    block[filled, j] = values[begin + j]
                filled += 1
        for j in range(length):
            for i in range(filled):
                columns[j, at + i] = block[i, j]
        at += filled
    return touched  # so that no compiler leaves the reading out
