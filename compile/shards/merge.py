"""Joining shards: the catalogue that one build of all rows would have made."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import ConstraintError, DataError
from ...table.filter_bits import MOST_ROWS
from ...table.item_ids import ItemIds
from ...table.shards import AGAIN, Manifest
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from ..sequences import compile_sids
from ..sid_tokens import CodeTokens


def merged(
    folder: str | os.PathLike[str], kind: Literal["table", "matrix"]
) -> tuple[TransitionTable | SortedMatrix, ItemIds, CodeTokens]:
    """Return the table or sorted matrix of all shards in a folder, the ids of their items, and what stands for codes.

    Raises FileNotFoundError if there is no manifest; TableFileError naming a shard that is missing, truncated or
    changed; ConstraintError for more rows than a sorted matrix may have.
    """
    manifest = Manifest.load(folder)
    if kind not in ("table", "matrix"):
        raise ConstraintError(f'must be "table" or "matrix", not {kind!r}', argument="kind")
    if manifest.num_items > MOST_ROWS:
        raise ConstraintError(
            f"{manifest.num_items:,} rows are more than a sorted matrix may have, {MOST_ROWS:,}: use the shards"
        )
    matrix, ids = _joined(manifest)
    known = CodeTokens(manifest.offsets)
    if kind == "matrix":
        return matrix, ids, known
    return compile_sids(_in_order_of_input(matrix), manifest.vocab_size), ids, known


def _joined(manifest: Manifest) -> tuple[SortedMatrix, ItemIds]:
    """Return the matrix of all shards, and ids in the order of the input (N,)."""
    count, distinct = manifest.num_items, manifest.num_sequences
    columns = np.empty((manifest.length, distinct), np.min_scalar_type(manifest.vocab_size - 1))
    item_row, item_start = np.empty(count, np.int32), np.empty(distinct + 1 if distinct < count else 0, np.int32)
    parts: list[ItemIds] = []
    rows = np.empty(count, np.int64)  # of the ids, as they are read
    item, sequence = 0, 0
    for number, record in enumerate(manifest.shards):
        shard = manifest.shard(number)
        matrix = shard.matrix
        if (matrix.num_items, matrix.num_sequences) != (record.rows, record.sequences):
            raise DataError(f"{record.file} has other rows than the manifest says: {AGAIN}")
        items, sequences = slice(item, item + record.rows), slice(sequence, sequence + record.sequences)
        columns[:, sequences] = matrix.columns
        item_row[items] = shard.rows[matrix.item_row] if matrix.item_row.size else shard.rows
        if item_start.size:
            own = matrix.item_start[:-1] if matrix.item_start.size else np.arange(record.sequences)
            item_start[sequences] = own + item
        rows[items] = shard.rows
        parts.append(shard.ids)
        item, sequence = items.stop, sequences.stop
    item_start[-1:] = count
    is_sorted = np.array_equal(item_row, np.arange(count))
    ids = _by_row(parts, rows)
    del parts, rows
    made = columns, item_start, item_row[:0] if is_sorted else item_row
    for array in made:
        array.flags.writeable = False  # given away: the matrix need not copy them
    return SortedMatrix(manifest.vocab_size, *made), ids


def _by_row(parts: list[ItemIds], rows: NDArray[np.int64]) -> ItemIds:
    """Return the ids of parts, which are of rows (N,), in the order of these."""
    numbers = np.empty(len(rows), np.int64)
    if all(part.numbers is not None for part in parts):
        at = 0
        for part in parts:
            assert part.numbers is not None
            numbers[rows[at : at + len(part)]] = part.numbers
            at += len(part)
        return ItemIds(numbers, None, None)
    numbers[rows] = np.arange(len(rows))
    return ItemIds.joined(parts).take(numbers)


def _in_order_of_input(matrix: SortedMatrix) -> NDArray[Any]:
    """Return the sequence of each input row (N, L)."""
    groups = np.diff(matrix.item_start) if matrix.item_start.size else None
    out = np.empty((matrix.num_items, matrix.length), matrix.columns.dtype)
    for level, column in enumerate(matrix.columns):
        tokens = column if groups is None else np.repeat(column, groups)
        out[matrix.item_row if matrix.item_row.size else slice(None), level] = tokens
    return out
