"""Spark as the engine of a build: the active session, which may be a cluster's, or a new one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, MaskwrightError, MissingDependencyError, error_from_json, error_to_json
from ...table.shards import AGAIN, ShardRecord
from .plan import CODES, ITEM, ROW, SHARD, Plan, shard_expression
from .shard_task import build_shard

_HASHES = 1 << 30  # values of the hash by which rows are sampled
_PATH = "regexp_replace(url_decode(replace(_metadata.file_path, '+', '%2B')), '^file:/+', '/')"  # it is a URI


class Spark:
    """See `Engine`. memory: of the driver of a new session, which is all there is on one machine."""

    def __init__(self, memory: int | None) -> None:
        try:
            from pyspark.sql import SparkSession
        except ModuleNotFoundError:
            raise MissingDependencyError(
                "building shards with Spark needs it, and Java 17: pip install 'maskwright[spark]'"
            ) from None
        builder = SparkSession.builder.appName("maskwright build")
        if SparkSession.getActiveSession() is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else its workers run whatever python3 is
            if memory is not None:
                builder = builder.config("spark.driver.memory", f"{memory // 2**20}m")
        self._session = builder.getOrCreate()

    def sample(self, plan: Plan, share: float) -> NDArray[Any]:
        from pyspark.sql import functions

        given = self._given(plan)
        if share < 1:
            given = given.where(functions.expr(f"pmod(xxhash64({ROW}), {_HASHES}) < {int(share * _HASHES)}"))
        codes = [
            functions.expr(f"coalesce(get({CODES}, {level}), 0)").alias(f"c{level}") for level in range(plan.length)
        ]
        with _reading():
            return np.array(given.select(*codes).collect(), np.int64).reshape(-1, plan.length)

    def write_parts(self, plan: Plan, numbers: Sequence[int], folder: Path) -> None:
        from pyspark.sql import functions

        assert plan.splitters is not None
        codes = [f"coalesce(get({CODES}, {level}), 0)" for level in range(plan.length)]
        rows = self._given(plan).withColumn(
            SHARD, functions.expr(shard_expression(codes, plan.vocab_size, plan.splitters))
        )
        if len(numbers) < plan.num_shards:
            rows = rows.where(functions.col(SHARD).isin(list(numbers)))
        with _reading():
            rows.repartition(len(numbers), SHARD).write.partitionBy(SHARD).parquet(folder.as_uri())

    def build(self, folder: Path, plan: Plan, numbers: Sequence[int], workers: int) -> Iterator[ShardRecord]:
        tasks = self._session.sparkContext.parallelize(list(numbers), len(numbers))
        with _reading():
            made = tasks.map(_Task(folder)).collect()
        for told in made:
            if "error" in told:
                raise error_from_json(told["error"])
            yield ShardRecord(**told)

    def _given(self, plan: Plan) -> Any:  # pyspark's types are of strings of SQL
        """Return the rows of all files, numbered."""
        from pyspark.sql import functions

        quoted = [_quoted(name) for name in plan.sids]
        schema = [f"{name} {'array<bigint>' if len(quoted) == 1 else 'bigint'}" for name in quoted]
        columns = [functions.expr(quoted[0] if len(quoted) == 1 else f"array({', '.join(quoted)})").alias(CODES)]
        if plan.items is not None:
            schema.append(f"{_quoted(plan.items)} {'string' if plan.text_items else 'bigint'}")
            columns.append(functions.expr(_quoted(plan.items)).alias(ITEM))
        paths = [re.sub(r"([]\[*?{}\\])", r"\\\1", f"file://{file.path}") for file in plan.files]  # these are patterns
        rows = self._session.read.schema(", ".join(schema)).parquet(*paths).select(
            *columns, functions.expr(_PATH).alias("mw_file"), functions.col("_metadata.row_index").alias("mw_index"),
        )  # fmt: skip
        firsts = self._session.createDataFrame(
            [(file.path, file.first) for file in plan.files], "mw_file string, mw_first bigint"
        )
        numbered = rows.join(functions.broadcast(firsts), "mw_file")
        named = [functions.expr(f"mw_first + mw_index AS {ROW}"), CODES, *([] if plan.items is None else [ITEM])]
        return numbered.select(*named)


def _quoted(name: str) -> str:
    """Return the name of a column in SQL."""
    return f"`{name.replace('`', '``')}`"


class _Task:
    """The task of a shard: a function of its number, which executors unpickle."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, number: int) -> dict[str, Any]:
        try:
            return asdict(build_shard(self._folder, number))
        except MaskwrightError as error:
            return {"error": error_to_json(error)}


@contextmanager
def _reading() -> Iterator[None]:
    """Raise DataError for what Spark could not do, after it tried again by itself."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        said = next((line for line in reversed(lines) if re.match(r"[\w.]*Error: ", line)), lines[0])  # of a worker
        raise DataError(f"Spark could not read or write the data, or run the tasks ({said}): {AGAIN}") from None
