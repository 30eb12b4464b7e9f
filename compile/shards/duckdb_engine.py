"""DuckDB as the engine of a build: in this process, out of core, and tasks in processes of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, MissingDependencyError
from ...table.shards import ShardRecord
from .local_tasks import run_tasks
from .plan import CODES, ITEM, ROW, SHARD, Plan, shard_expression

_HASHES = 1 << 30  # values of the hash by which rows are sampled


class DuckDb:
    """See `Engine`. memory: bytes that DuckDB may take; what does not fit is written to a folder beside the parts."""

    def __init__(self, memory: int | None) -> None:
        try:
            import duckdb
        except ModuleNotFoundError:
            raise MissingDependencyError(
                "building shards with DuckDB needs it: pip install 'maskwright[build]'"
            ) from None
        self._duckdb, self._memory = duckdb, memory

    def sample(self, plan: Plan, share: float) -> NDArray[Any]:
        with self._connected(plan, None) as connection:
            chosen = "" if share >= 1 else f"WHERE hash({ROW}) % {_HASHES} < {int(share * _HASHES)}"
            codes = ", ".join(f"TRY_CAST({CODES}[{level + 1}] AS BIGINT) AS c{level}" for level in range(plan.length))
            columns = connection.execute(f"SELECT {codes} FROM given {chosen}").fetchnumpy()
        parts = [np.ma.filled(columns[f"c{level}"], 0) for level in range(plan.length)]
        return np.stack(parts, axis=1)

    def write_parts(self, plan: Plan, numbers: Sequence[int], folder: Path) -> None:
        assert plan.splitters is not None
        codes = [f"coalesce(TRY_CAST({CODES}[{level + 1}] AS BIGINT), 0)" for level in range(plan.length)]
        expression = shard_expression(codes, plan.vocab_size, plan.splitters)
        item = "" if plan.items is None else f", {ITEM}"
        rows = f"SELECT {ROW}, {CODES}{item}, {expression} AS {SHARD} FROM given"
        if len(numbers) < plan.num_shards:
            rows = f"SELECT * FROM ({rows}) WHERE {SHARD} IN ({', '.join(map(str, numbers))})"
        with self._connected(plan, folder.with_name(f"{folder.name}.spill")) as connection:
            connection.execute(f"COPY ({rows}) TO {_text(folder)} (FORMAT parquet, PARTITION_BY ({SHARD}))")

    def build(self, folder: Path, plan: Plan, numbers: Sequence[int], workers: int) -> Iterator[ShardRecord]:
        return run_tasks(folder, plan, numbers, workers)

    @contextmanager
    def _connected(self, plan: Plan, spill: Path | None) -> Iterator[Any]:
        """Yield a connection in which the view `given` has the rows of all files, numbered."""
        with self._duckdb.connect(":memory:") as connection:
            connection.execute("SET preserve_insertion_order = false; SET enable_progress_bar = false")
            if self._memory is not None:
                connection.execute(f"SET memory_limit = '{self._memory // 10**6} MB'")
            if spill is not None:
                connection.execute(f"SET temp_directory = {_text(spill)}")
            names = ", ".join(
                _text(re.sub(r"([\[*?])", r"[\1]", file.path)) for file in plan.files
            )  # these are patterns
            firsts = ", ".join(f"({_text(file.path)}, {file.first})" for file in plan.files)
            columns = [f'"{name.replace(chr(34), 2 * chr(34))}"' for name in plan.sids]
            codes = columns[0] if len(columns) == 1 else f"[{', '.join(columns)}]"
            item = "" if plan.items is None else f', "{plan.items.replace(chr(34), 2 * chr(34))}" AS {ITEM}'
            try:
                connection.execute(
                    f"CREATE VIEW given AS SELECT mw_first + file_row_number AS {ROW}, {codes} AS {CODES}{item} "
                    f"FROM read_parquet([{names}], filename = 'mw_file', file_row_number = true, union_by_name = true, "
                    f"hive_partitioning = false) JOIN (VALUES {firsts}) AS of_files(mw_path, mw_first) "
                    "ON mw_file = mw_path"
                )
                yield connection
            except self._duckdb.Error as error:
                raise DataError(f"DuckDB could not read or write the data: {error}") from None


def _text(value: object) -> str:
    """Return a literal of SQL."""
    return "'" + str(value).replace("'", "''") + "'"
