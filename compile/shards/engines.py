"""What a build of shards asks of an engine for data: a random sample, rows written by shard, and tasks run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from ...table.shards import ShardRecord
from .plan import Plan

EngineName = Literal["duckdb", "spark"]


class Engine(Protocol):
    """An engine. It reads the files of a plan, and writes and runs nothing but what is asked for here."""

    def sample(self, plan: Plan, share: float) -> NDArray[Any]:
        """Return the codes (n, L) of a share of all rows, chosen by a hash of their numbers."""

    def write_parts(self, plan: Plan, numbers: Sequence[int], folder: Path) -> None:
        """Write the rows of some shards to a new folder: shard K to mw_shard=K/*.parquet, rows in any order."""

    def build(self, folder: Path, plan: Plan, numbers: Sequence[int], workers: int) -> Iterator[ShardRecord]:
        """Run the task of each of some shards, and a task that fails again; yield what each made, in any order."""


def engine_named(name: EngineName, memory: int | None) -> Engine:
    """Return an engine; memory: bytes that it may take. Raises MissingDependencyError, ValueError."""
    if name == "duckdb":
        from .duckdb_engine import DuckDb

        return DuckDb(memory)
    if name == "spark":
        from .spark_engine import Spark

        return Spark(memory)
    raise ValueError(f'engine must be "duckdb" or "spark", not {name!r}')
