"""`build_shards`: an engine partitions a dataset, tasks build shards, and a manifest closes the build."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...errors import Advice, ConstraintError, DataError, TableError, TableFileError
from ...table.shards import AGAIN, Manifest, Shard, ShardRecord, write_text
from ..parquet import import_parquet
from ..sequences import is_integer, progress_bar
from .engines import Engine, EngineName, engine_named
from .plan import PLAN, Plan, sample_share, splitters_of
from .shard_task import file_of, parts_folder, parts_of, record_of

_ROW_BYTES = 110  # of a task beside tokens and ids: row numbers, what sorting takes, and what is read at once
_TASK_BYTES = 150e6  # of a task that has no rows
_ENGINE_SHARE = 0.4  # of the memory: DuckDB takes up to twice its limit
_LOCK = "lock"

_HALF_MADE = re.compile(r"(plan\.json|manifest\.json|shard-\d{5,}\.safetensors)\.[0-9a-f]{32}\.part")
"""Names of files that a build was writing when it was killed."""

_HALF_MADE_PARTS = re.compile(r"parts-[0-9a-f]{64}\.[0-9a-f]{32}\.part(\.spill)?")
"""Names of folders that an engine was writing when it was killed."""


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
    """Build a catalogue in shards from the Parquet files in a folder and in those below it.

    The engine writes the rows of each shard; one task sorts each; the manifest is written last. A build that was
    interrupted goes on where it stopped if it is called again alike, with either engine. Shards hold about as many rows
    each. `Catalogue.merge_shards` joins them.

    Args:
        dataset: The folder, or a file.
        folder: Where the shards come to be, on a disk that all machines of the engine share. It must be new, empty, or
            of the same build, and apart from the dataset.
        vocab_size: V; tokens lie in 0 .. V - 1.
        shards: How many; there are fewer where one ID has as many items as several would hold.
        sids: The column with a list of codes in each row, or columns of one code each.
        items: The column of ids, integers or strings; without it the id of an item is the number of its row.
        offsets: As in `Catalogue.of`.
        engine: "duckdb" in this process, or "spark": the active session, or a new one.
        memory: Bytes that all of it may take at once; None for what the machine has.
        workers: Tasks at once with DuckDB, None for one a processor, as far as the memory goes; Spark's configuration
            says how many it runs.
        progress: Whether to show a bar; None for long builds on a terminal.

    Returns:
        The manifest.

    Raises:
        MissingDependencyError: The engine or pyarrow is not installed.
        FileNotFoundError: There is no such dataset.
        ConstraintError: The file and row, or the argument, that it names is wrong.
        DataError: Files cannot be read or changed meanwhile, a task failed three times, or the folder holds another
            build or other files, or is in use.

    Examples:
        >>> build_shards("items", "shards", 2048, shards=16, sids="sid", items="item_id")  # doctest: +SKIP
    """
    source, target = Path(dataset).absolute(), Path(folder).absolute()
    _check_options(engine, memory, workers)
    if source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        raise ConstraintError(f"{folder} lies in the dataset, whose files it would add to: choose another folder")
    asked = Plan.of(source, vocab_size, shards, sids, items, offsets)
    for path in (source, *(Path(file.path) for file in asked.files)):
        if path.resolve().is_relative_to(target.resolve()):
            raise ConstraintError(f"{path} of the dataset lies in {folder}: choose another folder for the shards")
    _check_folder(target)
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
        shutil.rmtree(parts_folder(target, plan), ignore_errors=True)
    return manifest


def _check_options(engine: EngineName, memory: int | None, workers: int | None) -> None:
    """Raise ConstraintError for memory or workers that are no numbers, or that the engine does not heed."""
    for name, value in (("memory", memory), ("workers", workers)):
        if value is not None and (not is_integer(value) or value < 1):
            raise ConstraintError(f"must be an integer, 1 or more, not {value!r}", argument=name)
    if engine == "spark" and workers is not None:
        raise ConstraintError(
            "is for DuckDB: the configuration of Spark says how many tasks it runs at once", argument="workers"
        )


def _check_folder(target: Path) -> None:
    """Raise DataError for a folder with files that no build wrote, or without the plan of the build that did."""
    if not target.is_dir() or (target / PLAN).exists():
        return
    names = sorted(path.name for path in target.iterdir())
    other = [name for name in names if name != _LOCK and not (name.startswith(PLAN) and _HALF_MADE.fullmatch(name))]
    if other:
        raise DataError(
            f"{target} has files, such as {other[0]}, but no {PLAN} of a build: build in a new or an empty folder"
        )


def _tidy(target: Path) -> None:
    """Delete what a build that was killed had not finished writing."""
    for path in target.iterdir():
        if _HALF_MADE.fullmatch(path.name):
            path.unlink()
        elif _HALF_MADE_PARTS.fullmatch(path.name):
            shutil.rmtree(path)


def _planned(target: Path, asked: Plan, engine: Engine) -> Plan:
    """Return the plan of a folder: that of the build which is there, or a new one. Raises DataError."""
    path = target / PLAN
    if path.exists():
        try:
            found = Plan.from_json(path.read_text())
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} is damaged ({error}): build in a new folder") from None
        if replace(found, splitters=None) != asked:
            raise DataError(f"{target} holds a build of other files, or with other options: build in a new folder")
        _tidy(target)
        return found
    _tidy(target)
    sample = engine.sample(asked, sample_share(asked.count, asked.shards))
    if not len(sample):
        raise DataError(f"the engine read no rows of the {asked.count:,} in {len(asked.files)} files")
    plan = replace(asked, splitters=splitters_of(sample, asked.vocab_size, asked.shards))
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
    parts = parts_folder(target, plan)
    if parts.exists() and all(parts_of(target, plan, number) for number in missing):
        return  # the folder got its name once all was written
    shutil.rmtree(parts, ignore_errors=True)
    made = parts.with_name(f"{parts.name}.{uuid.uuid4().hex}.part")
    try:
        engine.write_parts(plan, missing, made)
        os.replace(made, parts)
    finally:
        for leftover in (made, made.with_name(f"{made.name}.spill")):
            shutil.rmtree(leftover, ignore_errors=True)


def _workers(target: Path, plan: Plan, missing: list[int], memory: int | None, workers: int | None) -> int:
    """Return how many tasks may run at once. Raises ConstraintError if the memory is less than one takes."""
    pq = import_parquet(target)
    rows = max(sum(pq.read_metadata(path).num_rows for path in parts_of(target, plan, number)) for number in missing)
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
        raise DataError(f"the shards do not fit each other ({error}): build in a new folder") from None


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
    with (target / _LOCK).open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another build is at work in {target}: let it end, or stop it. {AGAIN}") from None
        yield
