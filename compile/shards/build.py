"""`build_shards`: an engine partitions a dataset, tasks build shards, and a manifest closes the build."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...errors import Advice, ConstraintError, DataError, TableError, TableFileError
from ...table.shards import AGAIN, MANIFEST, Manifest, Shard, ShardRecord, write_text
from ..parquet import import_parquet
from ..sequences import progress_bar
from .engines import Engine, EngineName, engine_named
from .plan import PARTS, PLAN, Plan, sample_share, splitters_of
from .shard_task import file_of, parts_of, record_of

_ROW_BYTES = 110  # of a task beside tokens and ids: row numbers, what sorting takes, and what is read at once
_TASK_BYTES = 150e6  # of a task that has no rows
_ENGINE_SHARE = 0.4  # of the memory: DuckDB takes up to twice its limit


def build_shards(
    dataset: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    vocab_size: int,
    *,
    shards: int,
    sids: str | Sequence[str],
    items: str | None = None,
    offsets: int | Sequence[int] = 0,
    engine: EngineName = "duckdb",
    memory: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Manifest:
    """Build a catalogue in shards from the Parquet files in a folder and in those below it; return the manifest.

    The engine writes the rows of each shard; one task sorts each; the manifest is written last. A build that was
    interrupted goes on where it stopped if it is called again alike, with either engine. Shards hold about as many rows
    each. `merge_shards` joins them.

    folder: where the shards come to be, on a disk that all machines of the engine share. vocab_size: V.
    sids: the column with a list of codes in each row, or columns of one code each. items: the column of ids, integers
    or strings; without it the id of an item is the number of its row. offsets: as of `Catalogue.of`.
    shards: how many; there are fewer where one ID has as many items as several would hold.
    engine: "duckdb" in this process, or "spark": the active session, or a new one.
    memory: bytes that all of it may take at once; None for what the machine has. workers: tasks at once with DuckDB,
    None for one a processor, as far as the memory goes. progress: whether to show a bar; None for long builds on a
    terminal.

    Raises MissingDependencyError, FileNotFoundError; ConstraintError naming the file and the row, or an argument;
    DataError for files that cannot be read, or changed meanwhile, a task that failed three times, and a folder that
    holds another build or is in use.
    """
    source, target = Path(dataset).absolute(), Path(folder).absolute()
    if source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        raise ConstraintError(f"{folder} lies in the dataset, whose files it would add to: choose another folder")
    asked = Plan.of(source, vocab_size, shards, sids, items, offsets)
    target.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        chosen = engine_named(engine, None if memory is None else int(memory * _ENGINE_SHARE))
        plan = _planned(target, asked, chosen)
        records = _finished(target, plan)
        missing = [number for number in range(plan.num_shards) if number not in records]
        if missing:
            _write_parts(target, plan, chosen, missing)
            at_once = _workers(target, plan, missing, memory, workers)
            with progress_bar(plan.count, progress) as report:
                for record in chosen.build(target, plan, missing, at_once):
                    records[int(record.file.split("-")[1].split(".")[0])] = record
                    if report is not None:
                        report("building shards", sum(each.rows for each in records.values()), plan.count)
        manifest = _manifest(target, plan, records)
        if missing or not _is_there(manifest):
            plan.check_unchanged()
            manifest.save()
        shutil.rmtree(target / PARTS, ignore_errors=True)
    return manifest


def _planned(target: Path, asked: Plan, engine: Engine) -> Plan:
    """Return the plan of a folder: that of the build which is there, or a new one. Raises DataError."""
    path = target / PLAN
    for leftover in [*target.glob("*.part"), *target.glob("*.spill")]:  # of a build that was killed
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    if path.exists():
        try:
            found = Plan.from_json(path.read_text())
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} is damaged ({error}): empty the folder, and build again") from None
        if replace(found, splitters=None) != asked:
            raise DataError(f"{target} holds a build of other files, or with other options: build in a new folder")
        return found
    if any(target.glob("shard-*")) or (target / MANIFEST).exists():
        raise DataError(f"{path} is missing, but there are shards beside it: empty the folder, and build again")
    sample = engine.sample(asked, sample_share(asked.count, asked.shards))
    if not len(sample):
        raise DataError(f"the engine read no rows of the {asked.count:,} in {len(asked.files)} files")
    plan = replace(asked, splitters=splitters_of(sample, asked.shards))
    write_text(path, plan.to_json())
    return plan


def _finished(target: Path, plan: Plan) -> dict[int, ShardRecord]:
    """Return the shards that an earlier build finished, by number."""
    found = {}
    for number in range(plan.num_shards):
        path = target / file_of(number)
        try:
            shard = Shard.load(path, plan.key)
        except (FileNotFoundError, TableFileError):
            continue
        found[number] = record_of(path, shard.matrix, len(shard.rows))
    return found


def _write_parts(target: Path, plan: Plan, engine: Engine, missing: list[int]) -> None:
    """Have the engine write the rows of the shards that are missing, unless an earlier build did."""
    parts = target / PARTS
    if parts.exists() and all(parts_of(target, number) for number in missing):
        return  # the folder got its name once all was written
    shutil.rmtree(parts, ignore_errors=True)
    made = parts.with_name(f"{PARTS}.{uuid.uuid4().hex}.part")
    try:
        engine.write_parts(plan, missing, made)
        os.replace(made, parts)
    finally:
        for leftover in (made, made.with_name(f"{made.name}.spill")):
            shutil.rmtree(leftover, ignore_errors=True)


def _workers(target: Path, plan: Plan, missing: list[int], memory: int | None, workers: int | None) -> int:
    """Return how many tasks may run at once. Raises ConstraintError if the memory is less than one takes."""
    pq = import_parquet(target)
    rows = max(sum(pq.read_metadata(path).num_rows for path in parts_of(target, number)) for number in missing)
    tokens = plan.length * (1 if plan.vocab_size <= 1 << 8 else 2 if plan.vocab_size <= 1 << 16 else 4)
    needed = int(_TASK_BYTES + rows * (_ROW_BYTES + 4 * tokens))
    wanted = workers or os.cpu_count() or 1
    if memory is None:
        return wanted
    if needed > memory:
        raise ConstraintError(
            f"a shard of {rows:,} rows takes {needed / 1e9:.2f} GB to build, of {memory / 1e9:.2f} GB allowed",
            remedies=[Advice("Raise {}, or {} in a new folder", ("memory", "shards"))],
        )
    return max(1, min(wanted, memory // needed))


def _manifest(target: Path, plan: Plan, records: dict[int, ShardRecord]) -> Manifest:
    """Return the manifest of shards, all of which are there. Raises DataError if rows are missing."""
    rows = sum(record.rows for record in records.values())
    if rows != plan.count:
        raise DataError(f"the shards have {rows:,} rows, the files {plan.count:,}: build in a new folder")
    assert plan.splitters is not None
    dataset = {
        "files": [{"path": file.path, "bytes": file.bytes, "rows": file.rows} for file in plan.files],
        "sids": list(plan.sids),
        "items": plan.items,
    }
    try:
        return Manifest(
            target, plan.key, plan.vocab_size, plan.offsets, dataset, plan.splitters,
            tuple(records[number] for number in range(plan.num_shards)),
        )  # fmt: skip
    except TableError as error:
        raise DataError(f"the shards do not fit each other ({error}): empty the folder, and build again") from None


def _is_there(manifest: Manifest) -> bool:
    """Return whether the manifest is in its folder already."""
    try:
        return Manifest.load(manifest.folder) == manifest
    except (FileNotFoundError, TableFileError):
        return False


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold a folder, so that no two builds write to it. Raises DataError. The lock goes with the process."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: files are renamed into place all the same
        yield
        return
    with (target / "lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another build is at work in {target}: let it end, or stop it. {AGAIN}") from None
        yield
