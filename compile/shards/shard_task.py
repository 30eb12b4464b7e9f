"""The task that makes one shard of the rows that an engine wrote, and the loop of a process that makes several."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConstraintError, DataError, MaskwrightError, error_to_json
from ...table.item_ids import ItemIds
from ...table.shards import AGAIN, Shard, ShardRecord, sha256
from ...table.sorted_matrix import SortedMatrix
from ..parquet import import_parquet, reading
from ..sequences import sort_sids
from .plan import CODES, ITEM, PLAN, ROW, SHARD, Plan

if TYPE_CHECKING:
    import pyarrow as pa


_BATCH = 1 << 17  # rows read at once


def file_of(number: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{number:05d}.safetensors"


def parts_folder(folder: Path, plan: Plan) -> Path:
    """Return the folder with what the engine wrote for a plan, shard=K/*.parquet; no other plan has the same."""
    return folder / f"parts-{plan.key}"


def parts_of(folder: Path, plan: Plan, number: int) -> list[Path]:
    """Return the files that the engine wrote for a shard."""
    return sorted((parts_folder(folder, plan) / f"{SHARD}={number}").glob("*.parquet"))


def build_shard(folder: Path, number: int) -> ShardRecord:
    """Make one shard in the folder of a build, in full or not at all, and return what the manifest says of it.

    Raises ConstraintError naming the file and the row of an item that is wrong, and DataError for parts that cannot be
    read.
    """
    plan = Plan.from_json((folder / PLAN).read_text())
    tokens, rows, ids = _read(plan, parts_of(folder, plan, number), number)
    matrix = sort_sids(tokens, plan.vocab_size)
    del tokens
    path = folder / file_of(number)
    Shard(matrix, rows, ids).save(path, plan.key)
    return record_of(path, matrix, len(rows))


def record_of(path: Path, matrix: SortedMatrix, rows: int) -> ShardRecord:
    """Return what the manifest says of a shard's file."""
    first, last = (tuple(matrix.columns[:, at].tolist()) for at in (0, -1))
    return ShardRecord(path.name, sha256(path), path.stat().st_size, rows, matrix.num_sequences, first, last)


def _read(plan: Plan, paths: list[Path], number: int) -> tuple[NDArray[Any], NDArray[np.int64], ItemIds]:
    """Return tokens (n, L), the numbers of rows (n,), ascending, and ids (n,)."""
    pq = import_parquet("the rows of a shard")
    count = 0
    for path in paths:
        with reading(path):
            count += pq.read_metadata(path).num_rows
    if not count:
        raise DataError(f"the engine wrote no rows for shard {number}: {AGAIN}")
    tokens = np.empty((count, plan.length), np.min_scalar_type(plan.vocab_size - 1))
    rows = np.empty(count, np.int64)
    ids: list[ItemIds] = []
    at = 0
    for path in paths:
        with reading(path), pq.ParquetFile(path) as file:
            for part in file.iter_batches(_BATCH):
                stop = at + len(part)
                rows[at:stop] = part.column(ROW).to_numpy()
                _tokens(plan, part.column(CODES), rows[at:stop], tokens[at:stop])
                if plan.items is not None:
                    ids.append(_ids(plan, part.column(ITEM), rows[at:stop]))
                at = stop
    if (np.diff(rows) > 0).all():
        return tokens, rows, ItemIds.joined(ids) if ids else ItemIds(rows, None, None)
    order = np.argsort(rows)
    rows, tokens = rows[order], tokens[order]
    return tokens, rows, ItemIds.joined(ids).take(order) if ids else ItemIds(rows, None, None)


def _ids(plan: Plan, column: pa.Array, rows: NDArray[np.int64]) -> ItemIds:
    if column.null_count:
        where = plan.place_of(int(rows[np.argmax(column.is_null().to_numpy(zero_copy_only=False))]))
        raise ConstraintError(f"{where} has no item id: drop it or give it one")
    if str(column.type) == "uint64":
        numbers = column.to_numpy(zero_copy_only=False)
        at = int(np.argmax(numbers))
        if numbers[at] > np.iinfo(np.int64).max:
            where = plan.place_of(int(rows[at]))
            raise ConstraintError(f"{where} has item id {numbers[at]}: integers must fit 64 bits with a sign")
    return ItemIds.of(column)


def _tokens(plan: Plan, column: pa.Array, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Write the tokens of codes (n, L). Raises ConstraintError naming the row of one that is wrong."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != plan.length)
    if wrong.size:
        found = "no codes" if lengths[wrong[0]] < 0 else f"{lengths[wrong[0]]} codes"
        raise ConstraintError(
            f"{plan.place_of(int(rows[wrong[0]]))} has {found}, the first of all has {plan.length}: "
            "semantic IDs have one length"
        )
    flat = column.flatten()
    if flat.null_count:
        at = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
        where = plan.place_of(int(rows[at // plan.length]))
        raise ConstraintError(f"{where} has a null at position {at % plan.length}: drop it or give it a code")
    codes = flat.to_numpy(zero_copy_only=False).reshape(-1, plan.length)
    for level, offset in enumerate(plan.offsets):
        values, most = codes[:, level], plan.vocab_size - 1 - offset
        bad = (values < 0) | (values > most)
        if bad.any():
            at = int(np.argmax(bad))
            raise ConstraintError(
                f"{plan.place_of(int(rows[at]))} has code {values[at]} at position {level}, outside 0 .. {most}: "
                f"the offset is {offset:,}, and there are {plan.vocab_size:,} tokens"
            )
        out[:, level] = values.astype(np.int64) + offset


def main() -> None:
    """Make the shards whose numbers are the lines of standard input, and write a line for each.

    It is JSON: what the manifest says of the shard, or the error.
    """
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        try:
            told = asdict(build_shard(folder, int(line)))
        except MaskwrightError as error:
            told = {"error": error_to_json(error)}
        print(json.dumps(told), flush=True)
