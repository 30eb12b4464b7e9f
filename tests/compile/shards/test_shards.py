"""Builds of catalogues in shards, with DuckDB: merged they are the single build, whatever was killed or damaged."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.compile.shards import duckdb_engine, local_tasks
from maskwright.compile.shards.plan import shard_expression, splitters_of
from maskwright.compile.shards.shard_task import build_shard
from maskwright.table import shards as files
from maskwright.table.file import FileKind, read_arrays, write_arrays
from maskwright.table.filter_bits import booleans_of
from maskwright.table.shards import Manifest
from tests.strategies.datasets import same_catalogues, skewed_ids, write_dataset

pytest.importorskip("pyarrow")
duckdb = pytest.importorskip("duckdb")

VOCAB, OFFSETS = 130, [10, 40, 70, 100]
OPTIONS: dict[str, Any] = {"sids": "sid", "items": "item", "offsets": OFFSETS}


@pytest.fixture
def in_process(monkeypatch):
    """Build shards in this process, and note which."""
    built = []

    def run(folder, plan, numbers, workers):
        for number in numbers:
            built.append(number)
            yield build_shard(folder, number)

    monkeypatch.setattr(duckdb_engine, "run_tasks", run)
    return built


@pytest.fixture
def dataset(tmp_path):
    return write_dataset(tmp_path / "data", skewed_ids(3000, 4, 30), [f"é{i}" * (i % 3) for i in range(3000)], files=4)


def build(dataset: Path, folder: Path, shards: int = 4, **options: Any) -> Manifest:
    return mw.Catalogue.build_shards(dataset, folder, VOCAB, shards=shards, **{**OPTIONS, **options})


# ------------------------------------------------------------------------------------------- merged equals single


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("ids", ["numbers", "strings", None])
@pytest.mark.parametrize("kind", ["table", "matrix"])
def test_merged_is_the_single_build(tmp_path, in_process, shards, ids, kind):
    rng = np.random.default_rng(shards)
    sids = skewed_ids(2000, 5, 40, seed=shards)
    items = rng.permutation(2000) if ids != "strings" else [f"ü{i}" for i in rng.permutation(2000)]
    data = write_dataset(tmp_path / "data", sids, items, files=3, columns=shards == 2)
    options = {"sids": [f"c{i}" for i in range(5)] if shards == 2 else "sid", "offsets": 10}
    manifest = mw.Catalogue.build_shards(data, tmp_path / "out", 60, shards=shards, items=ids and "item", **options)
    single = mw.Catalogue.from_parquet(data, 60, items="item", kind=kind, **options)
    if ids is None:
        single = mw.Catalogue(single.table, mw.Catalogue.of(sids, np.arange(2000), 60).ids, single.code_tokens)
    same_catalogues(mw.Catalogue.merge_shards(tmp_path / "out", kind=kind), single)
    assert len(manifest.shards) == shards
    assert manifest.num_items == 2000
    assert manifest.num_sequences == len(np.unique(sids, axis=0))
    assert not list((tmp_path / "out").glob("parts*"))


@pytest.mark.parametrize("devices", [1, 3, 5])
def test_devices_have_the_merged_rows_and_find_their_items(tmp_path, dataset, in_process, devices):
    manifest = build(dataset, tmp_path / "out", 5)
    merged = mw.Catalogue.merge_shards(tmp_path / "out", kind="matrix")
    sharded = mw.Catalogue.open_shards(tmp_path / "out", devices)
    columns = np.concatenate([sharded.columns(number) for number in range(devices)], axis=1)
    assert np.array_equal(columns, merged.table.columns)
    states = np.random.default_rng(0).integers(0, merged.table.num_sequences, 20)
    for state, file, place in zip(states, *sharded.locate(states), strict=True):
        shard = manifest.shard(file)
        ids = shard.ids.at(shard.matrix.input_rows(place)[0])
        assert sorted(ids) == sorted(merged.ids.at(merged.table.input_rows(state)[0]))


@pytest.mark.parametrize("devices", [1, 3, 5])
def test_a_filter_of_files_is_a_column_of_the_dataset(tmp_path, dataset, in_process, devices):
    """Columns are in the order of the manifest's files, as they are for the merged catalogue."""
    import pyarrow.parquet as pq

    manifest = build(dataset, tmp_path / "out", 5)
    sharded, merged = (
        mw.Catalogue.open_shards(tmp_path / "out", devices),
        mw.Catalogue.merge_shards(tmp_path / "out", kind="matrix"),
    )
    names = [name for file in manifest.dataset["files"] for name in pq.read_table(file["path"])["item"].to_pylist()]
    keep = np.array([hash(name) % 3 == 0 for name in names])
    kept, wanted = sharded.filter(keep), merged.table.filter(keep).sequences
    found = np.zeros(0, np.bool_)
    for number in range(devices):
        out = np.zeros(sharded.columns(number).shape[1] // 32 + 1, np.uint32)
        sharded.item_order(number).write_kept(kept.items, out)
        found = np.append(found, booleans_of(out, sharded.columns(number).shape[1]))
    assert np.array_equal(found, wanted)
    state = int(np.flatnonzero(wanted)[0])  # the items behind a beam, those that are kept alone
    file, place = (int(one[0]) for one in sharded.locate([state]))
    shard = manifest.shard(file)
    rows = shard.matrix.input_rows(place)[0]
    ids = shard.ids.at(rows[kept.keeps(shard.rows[rows])])
    assert sorted(ids) == sorted(merged.ids.at(merged.table.filter(keep).input_rows(state)[0]))


@pytest.mark.parametrize(
    "sids",
    [
        np.arange(60).reshape(20, 3),  # sorted, all different
        np.full((50, 2), 3),  # one ID for all: it is never cut
        np.array([[0, 0]] * 5 + [[7, 1]] + [[9, 9]] * 30),
        np.array([[5]]),
    ],
)
def test_odd_sets(tmp_path, in_process, sids):
    data = write_dataset(tmp_path / "data", sids, np.arange(len(sids)), files=2)
    manifest = mw.Catalogue.build_shards(data, tmp_path / "out", 60, shards=4, sids="sid", items="item")
    assert len(manifest.shards) <= min(4, len(np.unique(sids, axis=0)))
    for kind in ("table", "matrix"):
        single = mw.Catalogue.from_parquet(data, 60, sids="sid", items="item", kind=kind)
        same_catalogues(mw.Catalogue.merge_shards(tmp_path / "out", kind=kind), single)


def test_shards_are_as_large_whatever_the_skew(tmp_path, in_process, monkeypatch):
    monkeypatch.setattr("maskwright.compile.shards.build.sample_share", lambda count, shards: 0.5)
    sids = skewed_ids(60_000, 4, 60)
    sids[:30_000, 0] = 3  # half of all below one first code
    data = write_dataset(tmp_path / "data", np.sort(sids.view("i8,i8,i8,i8"), axis=0).view("i8").reshape(-1, 4), None)
    manifest = mw.Catalogue.build_shards(data, tmp_path / "out", 60, shards=5, sids="sid")
    sizes = [shard.rows for shard in manifest.shards]
    assert max(sizes) <= 1.1 * min(sizes)
    assert sum(before.last[0] == after.first[0] for before, after in pairwise(manifest.shards)) >= 2


@pytest.mark.parametrize(("length", "vocab"), [(1, 5), (9, 2048), (5, 2**31 - 1)])
def test_the_expression_counts_the_splitters_not_above_a_row(length, vocab):
    rng = np.random.default_rng(length)
    rows = rng.integers(0, min(vocab, 3) if length > 1 else vocab, (400, length)) * (vocab // 3 if length > 1 else 1)
    splitters = splitters_of(rows[rng.permutation(400)[:50]], vocab, 9)
    codes = [f"c{level}::BIGINT" for level in range(length)]
    table = {f"c{level}": rows[:, level] for level in range(length)}
    with duckdb.connect() as connection:
        import pyarrow as pa

        connection.register("given", pa.table(table))
        found = connection.execute(f"SELECT {shard_expression(codes, vocab, splitters)} AS n FROM given").fetchnumpy()
    assert found["n"].tolist() == [sum(at <= tuple(row) for at in splitters) for row in rows.tolist()]


# ----------------------------------------------------------------------------------- killed, resumed and damaged


def test_a_killed_process_is_begun_again(tmp_path, dataset, monkeypatch):
    begun = []

    class Killed(subprocess.Popen):  # the first process
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            begun.append(self)
            if len(begun) == 1:
                self.send_signal(signal.SIGKILL)

    monkeypatch.setattr(local_tasks.subprocess, "Popen", Killed)
    build(dataset, tmp_path / "out", workers=1)
    assert [process.returncode for process in begun] == [-signal.SIGKILL, 0]
    single = mw.Catalogue.from_parquet(dataset, VOCAB, **OPTIONS)
    same_catalogues(mw.Catalogue.merge_shards(tmp_path / "out"), single)


def test_a_process_that_ends_three_times_is_an_error_by_name(tmp_path, dataset, monkeypatch):
    monkeypatch.setattr(local_tasks.sys, "executable", "/bin/false")
    with pytest.raises(mw.errors.DataError, match=r"shard \d of 4 ended 3 times, last with status 1 .*: run the same"):
        build(dataset, tmp_path / "out", workers=1)
    with pytest.raises(FileNotFoundError, match="the build did not end"):
        mw.Catalogue.merge_shards(tmp_path / "out")


KILLED = """
import os, signal, sys
import maskwright as mw
from maskwright.compile.shards import build, duckdb_engine
from maskwright.compile.shards.shard_task import build_shard
from tests.compile.shards.test_shards import OPTIONS, VOCAB

data, folder, moment = sys.argv[1:]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def tasks(folder, plan, numbers, workers):
    for number in numbers:
        if moment == "shards" and number == 2:
            die()
        yield build_shard(folder, number)

duckdb_engine.run_tasks = tasks
replace = os.replace
if moment == "parts":  # all is written, under another name
    os.replace = lambda a, b: die() if b.name.startswith("parts-") and "." not in b.name else replace(a, b)
if moment == "manifest":
    os.replace = lambda a, b: die() if b.name == "manifest.json" else replace(a, b)
mw.Catalogue.build_shards(data, folder, VOCAB, shards=4, **OPTIONS)
"""


@pytest.mark.parametrize(
    ("moment", "left"), [pytest.param("parts", 4, marks=pytest.mark.long), ("shards", 2), ("manifest", 0)]
)
def test_a_killed_build_goes_on_where_it_stopped(tmp_path, dataset, in_process, moment, left):
    command = [sys.executable, "-c", KILLED, str(dataset), str(tmp_path / "out"), moment]
    root = Path(__file__).parents[3]
    assert subprocess.run(command, cwd=root).returncode == -signal.SIGKILL
    with pytest.raises(FileNotFoundError, match="run the same `maskwright build` again"):
        Manifest.load(tmp_path / "out")
    build(dataset, tmp_path / "out")
    assert len(in_process) == left
    same_catalogues(mw.Catalogue.merge_shards(tmp_path / "out"), mw.Catalogue.from_parquet(dataset, VOCAB, **OPTIONS))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "lock", "manifest.json", "plan.json", *(f"shard-0000{number}.safetensors" for number in range(4))
    }  # fmt: skip


def test_a_second_run_makes_only_what_is_missing(tmp_path, dataset, in_process):
    manifest = build(dataset, tmp_path / "out")
    assert sorted(in_process) == [0, 1, 2, 3]
    stamp = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    assert build(dataset, tmp_path / "out") == manifest
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == stamp
    in_process.clear()
    (tmp_path / "out" / manifest.shards[1].file).unlink()
    damaged = tmp_path / "out" / manifest.shards[3].file
    damaged.write_bytes(damaged.read_bytes()[:-10])
    assert build(dataset, tmp_path / "out") == manifest  # byte for byte: checksums are equal
    assert sorted(in_process) == [1, 3]
    (tmp_path / "out" / "manifest.json").write_text("{")
    assert build(dataset, tmp_path / "out") == Manifest.load(tmp_path / "out") == manifest
    assert sorted(in_process) == [1, 3]


def test_damaged_shards_are_refused_by_name(tmp_path, dataset, in_process):
    manifest = build(dataset, tmp_path / "out", shards=2)
    path = tmp_path / "out" / manifest.shards[1].file
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        mw.errors.TableFileError, match=r"shard-00001.safetensors is truncated or was changed .* run the same"
    ):
        mw.Catalogue.merge_shards(tmp_path / "out")
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(mw.errors.TableFileError, match=r"shard-00001.safetensors is truncated or was changed"):
        mw.Catalogue.merge_shards(tmp_path / "out")
    path.unlink()
    with pytest.raises(mw.errors.TableFileError, match=r"shard-00001.safetensors is missing: run the same"):
        mw.Catalogue.merge_shards(tmp_path / "out")


def test_a_shard_of_another_version_is_refused_by_name(tmp_path, dataset, in_process):
    manifest = build(dataset, tmp_path / "out", shards=1)
    path = tmp_path / "out" / manifest.shards[0].file
    kind = FileKind("maskwright.shard", "shard", 1, 1, "")
    header, arrays = read_arrays(path, kind, None)
    write_arrays(path, kind, {**header, "version": 2}, arrays)
    with pytest.raises(
        mw.errors.TableFileError, match="has format version 2, this maskwright reads 1: build the shards"
    ):
        files.Shard.load(path, manifest.build)


def test_damaged_manifests_are_refused_by_name(tmp_path, dataset, in_process):
    build(dataset, tmp_path / "out", shards=2)
    path = tmp_path / "out" / "manifest.json"
    whole = path.read_text()
    told = json.loads(whole)

    def refused(text: str, match: str) -> None:
        path.write_text(text)
        with pytest.raises(mw.errors.TableFileError, match=match):
            mw.Catalogue.merge_shards(tmp_path / "out")

    refused(whole[:100], "is damaged .* run the same")
    refused("[]", "is damaged")
    refused("{}", "is damaged")
    refused(json.dumps({**told, "format": "other"}), "is no manifest")
    refused(json.dumps({**told, "version": 2}), "has another format version, this maskwright reads 1")
    refused(json.dumps({**told, "vocab_size": 131}), "was changed after it was written: run the same")
    del told["checksum"]
    swapped = {**told, "shards": told["shards"][::-1]}
    refused(sealed(swapped), "begins before")
    outside = {**told, "shards": [{**told["shards"][0], "file": "../x"}, told["shards"][1]]}
    refused(sealed(outside), "a file in another folder")


def sealed(told: dict[str, Any]) -> str:
    """Return a manifest with a checksum that fits."""
    return json.dumps({**told, "checksum": hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()})


def test_a_shard_of_another_build_is_not_taken(tmp_path, dataset, in_process):
    build(dataset, tmp_path / "a", shards=2)
    build(dataset, tmp_path / "b", shards=3)
    (tmp_path / "a" / "shard-00000.safetensors").write_bytes((tmp_path / "b" / "shard-00000.safetensors").read_bytes())
    in_process.clear()
    build(dataset, tmp_path / "a", shards=2)
    assert in_process == [0]


def test_rows_that_another_plan_wrote_are_not_taken(tmp_path, dataset, in_process):
    command = [sys.executable, "-c", KILLED, str(dataset), str(tmp_path / "out"), "shards"]
    assert subprocess.run(command, cwd=Path(__file__).parents[3]).returncode == -signal.SIGKILL
    (tmp_path / "out" / "plan.json").unlink()
    with pytest.raises(mw.errors.DataError, match=r"has files, such as parts-.*, but no plan.json of a build"):
        build(dataset, tmp_path / "out", items=None)
    for shard in (tmp_path / "out").glob("shard-*"):
        shard.unlink()
    (parts,) = (tmp_path / "out").glob("parts-*")
    build(dataset, tmp_path / "b", items=None)
    (tmp_path / "b" / "plan.json").replace(tmp_path / "out" / "plan.json")
    build(dataset, tmp_path / "out", items=None)  # with the rows of the other build beside it
    assert list(mw.Catalogue.merge_shards(tmp_path / "out").ids) == list(range(3000))
    assert parts.exists()


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ["notes.part", "x.spill/y", "parts/z.parquet", "shard-1.csv", "manifest.json", "a/b"])
def test_files_of_others_stay_and_are_refused(tmp_path, dataset, in_process, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    (tmp_path / "out" / "lock").write_text("mine too")
    before = contents(tmp_path)
    with pytest.raises(
        mw.errors.DataError, match=r"has files, such as .*, but no plan.json of a build: build in a new or an"
    ):
        build(dataset, tmp_path / "out")
    assert contents(tmp_path) == before


def test_files_of_others_that_came_later_stay(tmp_path, dataset, in_process):
    build(dataset, tmp_path / "out")
    for name in ("notes.part", "parts/z", "parts.part/z", "shard-00001.safetensors.part"):
        (tmp_path / "out" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_text("mine")
    half = [f"plan.json.{'0' * 32}.part", f"shard-00003.safetensors.{'f' * 32}.part"]
    for name in half:
        (tmp_path / "out" / name).write_text("half")
    before = contents(tmp_path)
    build(dataset, tmp_path / "out")
    assert contents(tmp_path) == {path: held for path, held in before.items() if Path(path).name not in half}


@pytest.mark.parametrize("folder", [".", "data/..", "data", "data/parts"])
@pytest.mark.parametrize("source", ["data/parts", "data/parts/part-0.parquet"])
def test_a_dataset_in_the_folder_of_shards_is_refused(tmp_path, in_process, folder, source):
    write_dataset(tmp_path / "data" / "parts", skewed_ids(20, 4, 30), range(20), files=2)
    before = contents(tmp_path)
    with pytest.raises(
        mw.errors.ConstraintError, match=r"lies in the dataset|of the dataset lies in .*: choose another folder"
    ):
        build(tmp_path / source, tmp_path / folder)
    assert contents(tmp_path) == before


# -------------------------------------------------------------------------------------------------- interrupted


INTERRUPTED = """
import os
import signal
import sys
import maskwright as mw
from maskwright.compile.shards import local_tasks
from tests.compile.shards.test_shards import OPTIONS, VOCAB

local_tasks._PROGRAM = local_tasks._PROGRAM.replace(
    "main()", "import os, sys, time; open(f'{sys.argv[1]}.{os.getpid()}', 'w'); time.sleep(60)"
)
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs these tests may have had it ignored
begun = local_tasks.subprocess.Popen

class Told(begun):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os.write(1, f"{self.pid}\\n".encode())  # at once, as two threads begin programs

local_tasks.subprocess.Popen = Told
mw.Catalogue.build_shards(*sys.argv[1:], VOCAB, shards=4, workers=2, **OPTIONS)
"""


def test_an_interrupt_of_the_terminal_ends_all_at_once(tmp_path, dataset):
    command = [sys.executable, "-c", INTERRUPTED, str(dataset), str(tmp_path / "out")]
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        begun = [int(process.stdout.readline()) for _ in range(2)]
        until = time.monotonic() + 30
        while not all((tmp_path / f"out.{pid}").exists() for pid in begun) and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to it, and to what it began
        out, errors = process.communicate(timeout=30)  # its tasks take 60 s
    assert process.returncode == -signal.SIGINT, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert out == ""  # no task was begun again
    for pid in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# ---------------------------------------------------------------------------------------------- refused by name


@pytest.mark.parametrize(
    ("row", "sid", "item", "message"),
    [
        (7, [1, 2, 3], "x", r"row 2 of .*part-1.parquet has 3 codes, the first of all has 4"),
        (7, None, "x", r"row 2 of .*part-1.parquet has no codes"),
        (7, [1, None, 3, 4], "x", r"row 2 of .*part-1.parquet has a null at position 1"),
        (3, [1, 2, 3, 40], "x", r"row 3 of .*part-0.parquet has code 40 at position 3, outside 0 .. 29: the offset is"),
        (3, [-1, 2, 3, 4], "x", r"row 3 of .*part-0.parquet has code -1 at position 0"),
        (9, [1, 2, 3, 4], None, r"row 4 of .*part-1.parquet has no item id"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, in_process, row, sid, item, message):
    sids, items = skewed_ids(10, 4, 30).tolist(), [str(i) for i in range(10)]
    sids[row], items[row] = sid, item
    with pytest.raises(mw.errors.ConstraintError, match=message):
        build(write_dataset(tmp_path / "data", sids, items, files=2), tmp_path / "out", shards=2)


@pytest.mark.parametrize("sids", [[[-1 - row % 3, row % 30] for row in range(20)], [[row + 35] for row in range(20)]])
def test_a_wrong_code_in_all_rows_is_named(tmp_path, in_process, sids):
    data = write_dataset(tmp_path / "data", sids, range(20))
    with pytest.raises(
        mw.errors.ConstraintError, match=r"row \d+ of .*part-0.parquet has code -?\d+ at position 0, outside"
    ):
        mw.Catalogue.build_shards(data, tmp_path / "out", 30, shards=3, sids="sid")


def write_ids(folder: Path, *files: Any) -> Path:
    """Write a file of items for each Arrow array of ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for number, ids in enumerate(files):
        sids = [[row % 7, row] for row in range(len(ids))]
        pq.write_table(pa.table({"sid": sids, "item": ids}), folder / f"part-{number}.parquet")
    return folder


def test_item_ids_without_a_sign_are_kept_or_refused_by_name(tmp_path, in_process):
    import pyarrow as pa

    options = {"shards": 2, "sids": "sid", "items": "item"}
    most = 2**63 - 1
    whole = write_ids(tmp_path / "a", pa.array([most, 0, 5], pa.uint64()), pa.array([7] * 9, pa.uint64()))
    mw.Catalogue.build_shards(whole, tmp_path / "out", 30, **options)
    assert list(mw.Catalogue.merge_shards(tmp_path / "out").ids) == [most, 0, 5, *[7] * 9]
    above = write_ids(tmp_path / "b", pa.array([1] * 9, pa.uint64()), pa.array([5, 6, most + 1, 7], pa.uint64()))
    with pytest.raises(
        mw.errors.ConstraintError, match=rf"row 2 of .*part-1.parquet has item id {most + 1}: integers must"
    ):
        mw.Catalogue.build_shards(above, tmp_path / "out_b", 30, **options)
    mixed = write_ids(tmp_path / "c", pa.array([1, 2**60 + 1], pa.int64()), pa.array([1, 2**60 + 3], pa.uint64()))
    with pytest.raises(mw.errors.ConstraintError, match=r"part-1.parquet has column 'item' of uint64, others of anoth"):
        mw.Catalogue.build_shards(mixed, tmp_path / "out_c", 30, **options)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["SID", "sid", "item"], "has columns 'SID' and 'sid', which engines take for one: rename all but 'sid'"),
        (["sid", "item", "Item"], "has columns 'item' and 'Item', which engines take for one: rename all but 'item'"),
        (["sid", "item", "mw_first"], "has a column 'mw_first', a name that the build gives to columns of its own"),
        (["sid", "item", "MW_row"], "has a column 'MW_row', a name"),
        (["sid", "item", "File_Row_Number"], "has a column 'File_Row_Number', a name"),
    ],
)
def test_columns_that_engines_mistake_are_refused_by_name(tmp_path, in_process, names, message):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "data").mkdir()
    held = [[[row, 1] for row in range(9)] if name.casefold() == "sid" else list(range(9)) for name in names]
    pq.write_table(pa.table(held, names), tmp_path / "data" / "part-0.parquet")
    with pytest.raises(mw.errors.ConstraintError, match=message):
        mw.Catalogue.build_shards(tmp_path / "data", tmp_path / "out", 30, shards=2, sids="sid", items="item")


def test_wrong_calls_are_refused_by_name(tmp_path, dataset, in_process):
    def refused(
        match: str, error: type[Exception] = mw.errors.ConstraintError, folder: str = "new", **options: Any
    ) -> None:
        with pytest.raises(error, match=match):
            build(options.pop("source", dataset), tmp_path / folder, **options)

    refused("has no column 'sids'; it has", sids="sids")
    refused("column 'item' of string: lists of integers are needed", sids="item")
    refused("column 'sid' of list.*: integers are needed", sids=["sid", "sid"])
    refused("column 'sid' of list.*: item ids are integers or strings", items="sid")
    refused("offsets must be a number, or 4 of them", offsets=[1, 2])
    refused("shards must be an integer, 1 or more", shards=0)
    refused('engine must be "duckdb" or "spark"', ValueError, engine="ray")
    refused("workers is for DuckDB: the configuration of Spark", engine="spark", workers=2)
    for name, value in (("workers", 0), ("workers", True), ("memory", "4GB"), ("memory", 0), ("memory", 1e9)):
        refused(f"{name} must be an integer, 1 or more, not {value!r}", **{name: value})
    refused("there is no file and no folder", FileNotFoundError, source=tmp_path / "absent")
    refused("lies in the dataset", folder="data/out")
    refused(r"takes 0.15 GB to build, of 0.15 GB allowed. Raise memory, or shards in a new folder", memory=150_000_000)
    build(dataset, tmp_path / "out")
    refused("holds a build of other files, or with other options", mw.errors.DataError, folder="out", shards=5)
    (dataset / "part-0.parquet").touch()
    refused("holds a build of other files, or with other options", mw.errors.DataError, folder="out")
    (tmp_path / "out" / "plan.json").write_text("{")
    refused("plan.json is damaged .*: build in a new folder", mw.errors.DataError, folder="out")
    (tmp_path / "out" / "plan.json").unlink()
    refused("has files, such as manifest.json, but no plan.json of a build", mw.errors.DataError, folder="out")
    import fcntl

    with (tmp_path / "new" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused("another build is at work", mw.errors.DataError)


def test_a_file_that_changes_meanwhile_is_refused(tmp_path, dataset, in_process, monkeypatch):
    written = duckdb_engine.DuckDb.write_parts

    def write_then_change(self, plan, numbers, folder):
        written(self, plan, numbers, folder)
        (dataset / "part-0.parquet").touch()

    monkeypatch.setattr(duckdb_engine.DuckDb, "write_parts", write_then_change)
    with pytest.raises(mw.errors.DataError, match=r"part-0.parquet was changed or removed while shards were built"):
        build(dataset, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_names_of_files_and_columns_are_taken_as_they_are(tmp_path, in_process):
    data = write_dataset(tmp_path / "a+b [1] %20 é'*", skewed_ids(50, 4, 30), range(50), names=('s"i`d', "it em"))
    options = {"sids": 's"i`d', "items": "it em"}
    build(data, tmp_path / "out", **options)
    single = mw.Catalogue.from_parquet(data, VOCAB, **{**OPTIONS, **options})
    same_catalogues(mw.Catalogue.merge_shards(tmp_path / "out"), single)
