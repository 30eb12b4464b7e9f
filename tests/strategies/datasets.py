"""Made-up datasets of items in Parquet files, and whether two catalogues are the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import maskwright as mw
from maskwright.table.item_ids import ItemIds
from maskwright.table.shards import Manifest, Shard, ShardRecord, sha256
from maskwright.table.sorted_matrix import SortedMatrix


def skewed_ids(count: int, length: int, codes: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return random IDs (count, length) with frequent codes and many collisions."""
    return np.minimum(np.random.default_rng(seed).zipf(1.3, (count, length)) - 1, codes - 1)


def write_dataset(
    folder: Path, sids: Any, items: Any, *, files: int = 1, columns: bool = False,
    names: Sequence[str] = ("sid", "item"),
) -> Path:  # fmt: skip
    """Write items to a new folder of Parquet files; columns: a column for each code, c0, c1, .."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    ids = range(len(sids)) if items is None else items
    for number, part in enumerate(np.array_split(np.arange(len(sids)), files)):
        kind = pa.int32() if number % 2 else pa.int64()  # files may differ in it
        rows = [sids[row] if isinstance(sids, list) else sids[row].tolist() for row in part.tolist()]
        if columns:
            table = {f"c{level}": pa.array(column, kind) for level, column in enumerate(zip(*rows, strict=True))}
        else:
            table = {names[0]: pa.array(rows, pa.list_(kind))}
        found = [ids[row] for row in part.tolist()]
        table[names[1]] = pa.array(found, pa.string() if isinstance(ids[0], str) else pa.int64())
        pq.write_table(pa.table(table), folder / f"part-{number}.parquet", row_group_size=100)
    return folder


def same_catalogues(found: mw.Catalogue, wanted: mw.Catalogue) -> None:
    """Assert that two catalogues have the same arrays, of the same types, and the same ids and offsets."""

    def arrays(catalogue: mw.Catalogue) -> dict[str, np.ndarray[Any, Any]]:
        if isinstance(catalogue.table, SortedMatrix):
            own = {name: getattr(catalogue.table, name) for name in ("columns", "item_start", "item_row")}
        else:
            own = catalogue.table.arrays.by_name()
        return own | catalogue.ids.by_name()

    assert type(found.table) is type(wanted.table)
    assert arrays(found).keys() == arrays(wanted).keys()
    for name, array in arrays(wanted).items():
        assert arrays(found)[name].dtype == array.dtype, name
        assert np.array_equal(arrays(found)[name], array), name
    assert found.code_tokens.offsets == wanted.code_tokens.offsets
    if isinstance(wanted.table, mw.TransitionTable):
        assert found.table.source == wanted.table.source


def write_files(folder: Path, matrix: SortedMatrix, cuts: list[int], build: str = "of a test") -> Manifest:
    """Write the sequences of a matrix as shards that begin at these rows, as a build does, with their items."""
    folder.mkdir(exist_ok=True)
    records = []
    start = matrix.item_start if matrix.item_start.size else np.arange(matrix.num_sequences + 1)
    order = matrix.item_row if matrix.item_row.size else np.arange(matrix.num_items)
    sequence = np.empty(matrix.num_items, np.int64)
    sequence[order] = np.repeat(np.arange(matrix.num_sequences), np.diff(start))
    for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, matrix.num_sequences], strict=True)):
        rows = np.ascontiguousarray(matrix.columns[:, low:high])
        path = folder / f"shard-{number}.bin"
        own = np.sort(order[start[low] : start[high]]).astype(np.int64)
        own_matrix = mw.sort_sids(matrix.sids[sequence[own]], matrix.vocab_size)
        assert np.array_equal(own_matrix.columns, rows)
        Shard(own_matrix, own, ItemIds(own, None, None)).save(path, build)
        ends = (tuple(rows[:, at].tolist()) for at in (0, -1))
        records.append(ShardRecord(path.name, sha256(path), path.stat().st_size, own.size, high - low, *ends))
    manifest = Manifest(folder, build, matrix.vocab_size, (0,) * matrix.length, {}, (), tuple(records))
    manifest.save()
    return manifest
