"""Compile sets of token sequences: semantic IDs of one length, or ragged sequences such as entity names."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..automata.sequence_sort import Progress, sort
from ..automata.trie import Trie, build_trie, fill_masks
from ..errors import Advice, ConstraintError
from ..kernels.arrays import IntArray
from ..kernels.limits import MOST_TOKENS
from ..table.filter_bits import MOST_ROWS
from ..table.groups import (
    NO_ACTIONS,
    NO_SITES,
    Bases,
    Edges,
    Rows,
    TableArrays,
    TokenClasses,
    TrieLevels,
    no_exits,
)
from ..table.sorted_matrix import SortedMatrix, in_order, lay_out
from ..table.transition_table import TransitionTable
from ..vocabulary.token_ids import EndTokens, checked_ends

_NO_OFFSETS = np.empty(0, np.int64)
LONG_BUILD = 2_000_000  # sequences; below this a build takes well under a second and shows no progress
_MASK_SHARE = 8  # a level gets masks where they cost at most 1/8 of its edges


def compile_sids(sids: object, vocab_size: int, *, eos: EndTokens | None = None) -> TransitionTable:
    """Compile a set of semantic IDs of one length into a table.

    Args:
        sids: (N, L) integers of any dtype, in any order, duplicates allowed: an array, a memory map, a nested list, or
            an Arrow column of (fixed-size) lists.
        vocab_size: V; tokens lie in 0 .. V - 1.
        eos: A token that ends a sequence, or a list of such tokens; without it sequences end by themselves after L
            tokens.

    Returns:
        The table, a trie, whose `input_rows` leads from states back to the N rows.

    Raises:
        ConstraintError: The input is empty, of another shape or dtype, or has a token outside the vocabulary, in the
            row that it names.

    Examples:
        >>> table = compile_sids([[3, 1, 2], [3, 1, 0], [0, 2, 2]], vocab_size=4)
        >>> table.contains([[3, 1, 0], [3, 1, 1]])
        array([ True, False])
    """
    array = rectangle(sids)
    count, length = array.shape
    return _compile(array.reshape(-1), _NO_OFFSETS, length, count, vocab_size, eos)


def sort_sids(sids: object, vocab_size: int) -> SortedMatrix:
    """Sort a set of semantic IDs of one length: a constraint by itself, which takes the place of a table.

    There is no EOS: sequences end by themselves after L tokens.

    Args:
        sids: As in `compile_sids`; if they are sorted already, that alone is found out.
        vocab_size: V; tokens lie in 0 .. V - 1.

    Returns:
        A `SortedMatrix`, with `filter`, `contains`, `find` and `input_rows`. `np.save` of its `sids` is its file.

    Raises:
        ConstraintError: As in `compile_sids`, and for 2^31 rows or more.

    Examples:
        >>> matrix = sort_sids([[3, 1, 2], [3, 1, 0], [0, 2, 2]], vocab_size=4)
        >>> matrix.contains([[3, 1, 0], [3, 1, 1]])
        array([ True, False])
    """
    array = rectangle(sids)
    check_vocabulary_size(vocab_size)
    count, length = array.shape
    if count > MOST_ROWS:
        raise ConstraintError(f"{count:,} rows are more than a sorted matrix may have, {MOST_ROWS:,}: use compile_sids")
    values = array.reshape(-1).view()
    values.flags.writeable = False
    index, same = np.empty(0, np.int32), np.empty(count, np.bool_)
    if in_order(values, length, int(vocab_size), same) < count:
        with progress_bar(count) as progress:
            try:
                index, shared = sort(values, _NO_OFFSETS, length, count, int(vocab_size), progress)
            except IndexError as error:
                raise _bad_token(int(error.args[0]), values, _NO_OFFSETS, length, int(vocab_size)) from None
        same = shared < 0
    starts = np.flatnonzero(~same)
    columns = np.empty((length, starts.size), np.min_scalar_type(int(vocab_size) - 1))
    lay_out(values, index, same, columns)
    item_start = np.append(starts, count).astype(np.int32) if starts.size < count else np.empty(0, np.int32)
    for made in (columns, item_start, index):
        made.flags.writeable = False  # given away: the matrix need not copy them
    return SortedMatrix(int(vocab_size), columns, item_start, index)


def compile_sequences(
    values: object, offsets: ArrayLike | None = None, *, vocab_size: int, eos: EndTokens | None = None
) -> TransitionTable:
    """Compile a set of token sequences of any lengths, one of which may be the prefix of another.

    Args:
        values: A list of sequences or an Arrow column of lists; with offsets (K,) integers, all sequences one after the
            other.
        offsets: (N + 1,), where each sequence starts in `values`.
        vocab_size: V; tokens lie in 0 .. V - 1.
        eos: The token a model writes to end a sequence, or a list of such tokens; none may occur in a sequence. Without
            it, a sequence that is the prefix of another may end or go on.

    Returns:
        The table, a trie, whose `input_rows` leads from states back to the N sequences.

    Raises:
        ConstraintError: The input is empty, has an empty sequence, is of another shape or dtype, or has a token outside
            the vocabulary, in the row that it names.

    Examples:
        >>> table = compile_sequences([[5, 6], [5, 6, 7], [2]], vocab_size=8, eos=0)
        >>> table.accepts([5, 6]), table.accepts([5]), table.accepts([5, 6, 7, 0])
        (True, False, True)
    """
    if offsets is not None:
        flat, starts = _as_array(values, "values"), _as_array(offsets, "offsets")
    elif _is_arrow(values):
        flat, starts = _from_arrow(values)
    else:
        flat, starts = _from_rows(values)
    if flat.ndim != 1 or starts.ndim != 1:
        raise ConstraintError(f"values and offsets must have one axis each, not {flat.ndim} and {starts.ndim}")
    if starts.size < 2:
        raise ConstraintError("the set is empty: nothing could be decoded")
    starts = starts.astype(np.int64)
    if starts[0] < 0 or starts[-1] > flat.size:
        raise ConstraintError(f"offsets run from {starts[0]} to {starts[-1]}, but there are {flat.size} values")
    lengths = np.diff(starts)
    if (lengths <= 0).any():
        row = int(np.argmax(lengths <= 0))
        if lengths[row] < 0:
            raise ConstraintError(f"offsets fall at row {row}: from {starts[row]} to {starts[row + 1]}")
        raise ConstraintError(f"row {row} is empty: a sequence has at least one token")
    return _compile(flat, starts, 0, starts.size - 1, vocab_size, eos)


def _compile(
    values: NDArray[Any], offsets: IntArray, length: int, count: int, vocab_size: int, eos: EndTokens | None
) -> TransitionTable:
    check_vocabulary_size(vocab_size)
    ends = checked_ends(eos, int(vocab_size))
    values, offsets = values.view(), offsets.view()
    values.flags.writeable = offsets.flags.writeable = False  # one kernel for arrays, memory maps and Arrow buffers
    with progress_bar(count) as progress:
        try:
            trie = build_trie(values, offsets, length, count, int(vocab_size), progress=progress)
        except IndexError as error:
            raise _bad_token(int(error.args[0]), values, offsets, length, int(vocab_size)) from None
    for end in ends:
        _refuse_end_inside(trie, end, values, offsets, length)
    return TransitionTable(
        _arrays(trie, int(vocab_size)), vocab_size=int(vocab_size), eos=ends[0] if ends else None,
        source=_source_hash(values, offsets, length), other_ends=ends[1:],
    )  # fmt: skip


def _arrays(trie: Trie, vocab_size: int) -> TableArrays:
    """Return the arrays of a table, read-only; each base is the mask of one row and has no classes."""
    base, masks = _masks(trie, vocab_size)
    count = len(masks)
    none = np.empty(0, np.int32)
    arrays = TableArrays(
        rows=Rows(trie.row_start, trie.accepting, base, none),
        edges=Edges(trie.edge_token, trie.edge_target),
        bases=Bases(
            masks=masks,
            mask=np.arange(count, dtype=np.int32),
            class_list=np.zeros(count, np.int32),
            target_start=np.zeros(count + 1, np.int32),
            target=none,
        ),
        classes=TokenClasses(np.zeros(1, np.int32), trie.edge_token[:0], none),
        trie=TrieLevels(trie.level_start, trie.item_start, trie.item_row),
        actions=NO_ACTIONS,
        exits=no_exits(trie.edge_token.dtype),
        sites=NO_SITES,
    )
    for array in arrays.by_name().values():
        array.flags.writeable = False  # given away: the table need not copy them
    return arrays


# ------------------------------------------------------------------------------------------------------ input


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def rectangle(sids: object) -> NDArray[Any]:
    """Return semantic IDs as an array (N, L), neither of which is 0."""
    if _is_arrow(sids):
        values, offsets = _from_arrow(sids)
        lengths = np.diff(offsets)
        if lengths.size and (lengths != lengths[0]).any():
            row = int(np.argmax(lengths != lengths[0]))
            raise ConstraintError(
                f"row {row} has {lengths[row]} tokens, row 0 has {lengths[0]}: "
                "semantic IDs have one length, use compile_sequences for ragged sequences"
            )
        array = values.reshape(len(lengths), int(lengths[0]) if lengths.size else 0)
    else:
        array = _as_array(sids, "sids")
        if array.ndim != 2:
            raise ConstraintError(f"sids must have shape (N, L), not {array.shape}")
    count, length = array.shape
    if count == 0:
        raise ConstraintError("the set is empty: nothing could be decoded")
    if length == 0:
        raise ConstraintError("row 0 is empty: a semantic ID has at least one token")
    return array


def check_vocabulary_size(vocab_size: object) -> None:
    if not is_integer(vocab_size) or not 1 <= vocab_size <= MOST_TOKENS:
        said = f"must be an integer from 1 to {MOST_TOKENS:,}, not {vocab_size!r}"
        raise ConstraintError(said, argument="vocab_size")


def _is_arrow(source: object) -> bool:
    return type(source).__module__.split(".")[0] == "pyarrow"


def _from_arrow(column: Any) -> tuple[NDArray[Any], IntArray]:
    """Return flat values and offsets (N + 1,) of an Arrow list column; nulls are refused by row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        raise ConstraintError(
            f"a pyarrow {type(column).__name__} was given: pass one column of it, such as table['sid']"
        )
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # older releases keep a chunked result
            column = pa.concat_arrays(column.chunks)
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise ConstraintError(f"the column holds {kind}: a column of integer lists is needed, one list a row")
    if not pa.types.is_integer(kind.value_type):
        raise ConstraintError(f"the column holds lists of {kind.value_type}: tokens must be integers")
    if column.null_count:
        row = int(pc.index(column.is_null(), True).as_py())
        raise ConstraintError(f"row {row} is null: drop it or give it a sequence")
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        flat = column.flatten()
        offsets = np.arange(0, len(column) * size + 1, size) if size else np.zeros(len(column) + 1, np.int64)
    else:
        offsets = column.offsets.to_numpy().astype(np.int64)
        flat = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        offsets = offsets - offsets[0]
    if flat.null_count:
        at = int(pc.index(flat.is_null(), True).as_py())
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        raise ConstraintError(f"row {row} has a null at position {at - int(offsets[row])}: drop it or give it a token")
    return flat.to_numpy(zero_copy_only=False), offsets


def _from_rows(sequences: Any) -> tuple[NDArray[Any], IntArray]:
    """Return flat values and offsets (N + 1,) of a list of sequences."""
    try:
        rows = [_as_array(row, f"row {i}") for i, row in enumerate(sequences)]
    except TypeError:
        raise ConstraintError(f"a list of sequences is needed, not {type(sequences).__name__}") from None
    for i, row in enumerate(rows):
        if row.ndim != 1:
            raise ConstraintError(
                f"row {i} has {row.ndim} axes: each row must be one sequence of tokens; "
                "if all tokens are in one array, say with offsets= where each sequence starts"
            )
        if row.dtype.kind == "i" and row.size and row.min() < 0:
            raise ConstraintError(f"row {i} has token {row.min()} at position {int(row.argmin())}: tokens start at 0")
    lengths = [row.size for row in rows]
    # uint64 beside signed types would make floats of all
    flat = np.concatenate([row.astype(np.uint64) for row in rows]) if rows else np.empty(0, np.uint64)
    return flat, np.cumsum([0, *lengths])


def _as_array(source: object, name: str) -> NDArray[Any]:
    if isinstance(source, np.ma.MaskedArray) and np.any(source.mask):
        where = np.argwhere(source.mask)[0].tolist()
        raise ConstraintError(f"{name} has a masked entry at {where}: drop such rows, or fill them with filled()")
    try:
        array = np.asarray(source)
    except ValueError:  # a list of rows that differ in length or depth
        raise _uneven(source, name) from None
    if array.dtype.kind not in "iu":
        if array.size == 0:
            return array.astype(np.int64)
        raise ConstraintError(f"{name} has dtype {array.dtype}: tokens must be integers{_first_other(source, array)}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    array = np.require(array, requirements="A")  # kernels read whole numbers at addresses that are multiples of theirs
    return np.ascontiguousarray(array) if array.ndim else array


def _uneven(source: Any, name: str) -> ConstraintError:
    """Return the error for nested lists that are no array, naming the first row unlike row 0."""
    sizes = [len(row) if hasattr(row, "__len__") else -1 for row in source]
    row = next((i for i, size in enumerate(sizes) if size != sizes[0]), 0)
    if name != "sids" or row == 0 or -1 in (sizes[0], sizes[row]):
        return ConstraintError(f"{name} is not a rectangle of integers: each row must be one sequence of tokens")
    return ConstraintError(
        f"row {row} has {sizes[row]} tokens, row 0 has {sizes[0]}: "
        "semantic IDs have one length, use compile_sequences for ragged sequences"
    )


def _first_other(source: object, array: NDArray[Any]) -> str:
    """Say where the first value that is no token stands."""
    if array is not source and isinstance(source, (list, tuple)):  # numbers that no one integer type holds
        for row, values in enumerate(source):
            for value in values if isinstance(values, (list, tuple)) else [values]:
                if not is_integer(value) or not 0 <= value <= MOST_TOKENS:
                    return f", and row {row} has {value!r}"
    if array.dtype.kind != "f":
        return ""
    rows = array.reshape(array.shape[0], -1) if array.ndim else array.reshape(1, 1)
    for row, fraction in enumerate((rows != np.floor(rows)).any(axis=1).tolist()):
        if fraction:
            return f", and row {row} is {rows[row].tolist()}"
    return "; all are whole numbers, so convert with .astype(np.int64)"


def _row_of(at: int, offsets: IntArray, length: int) -> tuple[int, int]:
    """Return (row, position in the row) of a flat index."""
    if not offsets.size:
        return at // length, at % length
    row = int(np.searchsorted(offsets, at, side="right")) - 1
    return row, at - int(offsets[row])


def _bad_token(at: int, values: NDArray[Any], offsets: IntArray, length: int, vocab_size: int) -> ConstraintError:
    row, position = _row_of(at, offsets, length)
    return ConstraintError(
        f"row {row} has token {values[at]} at position {position}, outside 0 .. {vocab_size - 1}",
        remedies=[Advice(f"Correct the row, or raise {{}}, now {vocab_size}", ("vocab_size",))],
    )


def _refuse_end_inside(trie: Trie, eos: int, values: NDArray[Any], offsets: IntArray, length: int) -> None:
    if not (trie.edge_token == eos).any():
        return
    begin, stop = (int(offsets[0]), int(offsets[-1])) if offsets.size else (0, values.size)
    row, position = _row_of(begin + int(np.argmax(values[begin:stop] == eos)), offsets, length)
    raise ConstraintError(
        f"row {row} has the eos token {eos} at position {position}",
        remedies=[Advice("Leave it out of the sequences, or leave out {} if they end with it already", ("eos",))],
    )


def _source_hash(values: NDArray[Any], offsets: IntArray, length: int) -> str:
    """SHA-256 of the input as given: type, lengths and bytes."""
    digest = hashlib.sha256(f"sequences {values.dtype.str} {length};".encode())
    digest.update(offsets.view(np.uint8).data)
    digest.update(values.view(np.uint8).data)
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------------ masks


def _masks(trie: Trie, vocab_size: int) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """Return base_row (H,) and masks (U, words) for the levels whose edges outweigh them."""
    words = -(-vocab_size // 32)
    per_edge = trie.edge_token.itemsize + trie.edge_target.itemsize
    dense = []
    for level in range(trie.level_start.size - 1):
        lo, hi = int(trie.level_start[level]), int(trie.level_start[level + 1])
        edges = int(trie.row_start[hi] - trie.row_start[lo])
        if (hi - lo) * words * 4 * _MASK_SHARE <= edges * per_edge:
            dense.append((lo, hi))
    base_row = np.full(dense[-1][1] if dense else 0, -1, np.int32)
    used = 0
    for lo, hi in dense:
        base_row[lo:hi] = np.arange(used, used + hi - lo)
        used += hi - lo
    masks = np.zeros((used, words), np.uint32)
    fill_masks(trie.row_start, trie.edge_token, base_row, masks)
    return base_row, masks


# ------------------------------------------------------------------------------------------------------ progress


@contextmanager
def progress_bar(count: int, wanted: bool | None = None) -> Iterator[Progress | None]:
    """Show a progress bar if it is wanted; None: for long builds on a terminal."""
    if wanted is False or (wanted is None and (count < LONG_BUILD or not sys.stderr.isatty())):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done)

        yield report
