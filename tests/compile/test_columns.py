"""Columns of catalogues, and updates by id: kept in files and logs, followed, and never seen in part."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.compile.columns import Column
from maskwright.table import item_ids, update_log
from maskwright.table.item_ids import IdIndex, ItemIds
from maskwright.table.update_log import UpdateLog

V, L, OFFSETS = 40, 3, [0, 10, 20]
LARGE: dict[str, Any] = {"capacity": 4_000, "widths": (4_000,) * L}
SMALL: dict[str, Any] = {"capacity": 5, "widths": (5,) * L}  # so that it must compact
KINDS = {"price": "float", "stock": "int", "sold": "bool", "category": "str"}


def some_values(random, count, missing=0.2):
    drawn = {
        "price": random.normal(size=count).round(2).tolist(),
        "stock": random.integers(-5, 5, count).tolist(),
        "sold": (random.random(count) < 0.5).tolist(),
        "category": random.choice(["hat", "shoe", "Hüte", ""], count).tolist(),
    }
    return {
        name: [None if random.random() < missing else value for value in values] for name, values in drawn.items()
    }  # fmt: skip


def some_catalogue(random, count=60, strings=True, **options):
    ids = [f"item-{i}" for i in range(count)] if strings else list(range(100, 100 + count))
    sids, columns = random.integers(0, 5, (count, L)), some_values(random, count)
    made = mw.Catalogue.of(sids, ids, V, offsets=OFFSETS, columns=columns, **{"kind": "matrix", **options})
    model = {
        each: [(tuple(sid), {name: values[at] for name, values in columns.items()})]
        for at, (each, sid) in enumerate(zip(ids, sids.tolist(), strict=True))
    }
    return made, model


def seen(version):
    """What a version has: ids, with the semantic ID and the values of each of their items."""
    found = {}
    ids = list(dict.fromkeys(version.ids))
    for each, rows in zip(ids, version.rows_of(ids), strict=True):
        if not rows.size:
            continue
        sids = version.code_tokens.codes(version.tokens_of(rows)).tolist()
        values = {name: column.at(rows) for name, column in version.columns.items()}
        found[each] = [(tuple(sid), {name: each[at] for name, each in values.items()}) for at, sid in enumerate(sids)]
    members = sorted({sid for items in found.values() for sid, _ in items})
    tokens = version.code_tokens.tokens(np.array(members or np.empty((0, L), int)).reshape(-1, L))
    assert version.table.contains(tokens).all()
    assert version.table.num_sequences == len(members)
    return found


# ---------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("given", "kind", "values"),
    [
        ([1, None, 3], "int", [1, None, 3]),
        ([1, 2.5, None], "float", [1.0, 2.5, None]),
        ([True, None], "bool", [True, None]),
        (["a", None, "a"], "str", ["a", None, "a"]),
        (np.array([1.5, math.nan]), "float", [1.5, None]),
        (np.array([3, 4], np.uint8), "int", [3, 4]),
        (np.array([True, False]), "bool", [True, False]),
        (np.array(["a", "b"]), "str", ["a", "b"]),
        ([np.float32(1.5), math.nan, 2], "float", [1.5, None, 2.0]),
        ([np.int8(3), None], "int", [3, None]),
        (np.ma.array([5, 7, 9], mask=[0, 1, 0]), "int", [5, None, 9]),  # as DuckDB gives them
        (np.ma.array([True, False], mask=[0, 1]), "bool", [True, None]),
        (np.ma.array([0.5, math.inf, math.nan], mask=[0, 1, 0]), "float", [0.5, None, None]),
        (np.ma.array(["a", "b"], mask=[1, 0], dtype=object), "str", [None, "b"]),
        ([np.str_("a"), np.str_("b")], "str", ["a", "b"]),
    ],
)
def test_a_column_has_one_kind(given, kind, values):
    column = Column.of("x", given, len(given))
    assert column.kind == kind
    found = column.at(np.arange(len(values)))
    assert found == values
    assert [type(each) for each in found] == [type(each) for each in values]


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("x", [1, "a"], "has int, str"),
        ("x", [True, 1], "has bool, int"),
        ("x", [None, None], "has no value"),
        ("x", [1, 2, 3], "3 values for 2 items"),
        ("x", [[1], [2]], "has list"),
        ("x", [math.inf, 1.0], "finite"),
        ("x", [1 << 63, 1], "64 bits"),
        ("x", ["\ud800", "a"], "lone surrogate"),
        ("x", np.array([math.inf, 1.0]), "infinite"),
        ("x", np.array([1 << 63, 1], np.uint64), "64 bits"),
        ("x", [1.5, 10**400], "finite"),
        ("\ufb01", [1, 2], "another name"),  # which Python reads as "fi" in an expression
        ("id", [1, 2], "another name"),
        ("a b", [1, 2], "another name"),
        ("class", [1, 2], "another name"),
    ],
)
def test_a_wrong_column_is_refused_by_name(name, given, why):
    with pytest.raises(mw.errors.ConstraintError, match=why) as raised:
        mw.Catalogue.of([[1], [2]], [1, 2], 4, columns={name: given})
    assert raised.value.argument == "columns"


def test_arrow_columns_are_as_lists():
    pa = pytest.importorskip("pyarrow")
    values = some_values(np.random.default_rng(0), 50)
    for name, given in values.items():
        for array in (pa.array(given), pa.chunked_array([given[:20], given[20:]]), pa.array(given).dictionary_encode()):
            column = Column.of(name, array, 50)
            assert column.kind == KINDS[name]
            assert column.at(np.arange(50)) == given
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["hat", None]))
    assert Column.of("x", coded, 3).at(np.arange(3)) == ["hat", None, None]
    with pytest.raises(mw.errors.ConstraintError, match="timestamp"):
        Column.of("x", pa.array([0], pa.timestamp("s")), 1)


@pytest.mark.parametrize("kind", ["matrix", "table"])
def test_columns_are_kept_in_files(kind, tmp_path):
    made, _ = some_catalogue(np.random.default_rng(1), kind=kind)
    made.save(tmp_path / "shop")
    read = mw.Catalogue.load(tmp_path / "shop")
    assert {name: column.kind for name, column in read.columns.items()} == KINDS
    rows = np.arange(len(made))
    assert {n: c.at(rows) for n, c in read.columns.items()} == {n: c.at(rows) for n, c in made.columns.items()}
    plain = mw.Catalogue.of([[1]], [1], 4)
    plain.save(tmp_path / "plain")
    header = (tmp_path / "plain").read_bytes()[:2000]
    assert rb"\"version\": 1" in header  # which readers without columns can read
    assert rb"\"version\": 3" in (tmp_path / "shop").read_bytes()[:20_000]


def test_columns_keep_their_order_and_their_log(tmp_path):
    """The log of a catalogue that was made here is that of the file, too."""
    columns = {"z": [1, 2], "a": ["x", None], "m": [True, False]}
    made = mw.Catalogue.of([[1], [2]], ["a", "b"], 4, kind="matrix", columns=columns)
    made.save(tmp_path / "fixed")
    shop = made.live(log=tmp_path / "log")
    shop.put(["a"], columns={"z": [5], "a": ["y"]})
    shop.close()
    shop = mw.Catalogue.open(tmp_path / "fixed", log=tmp_path / "log")
    assert list(shop.columns) == list(columns)
    shop.close()
    shop = made.live(log=tmp_path / "log")
    shop.save(tmp_path / "shop")
    shop.put(["b"], columns={"z": [6]})
    shop.close()
    shop = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log")
    assert list(shop.columns) == list(columns)
    assert {name: column.at(np.arange(2)) for name, column in shop.columns.items()} == {
        "z": [5, 6], "a": ["y", None], "m": [True, False]
    }  # fmt: skip
    assert (shop.epoch, shop.fixed().epoch) == (2, 0)


def test_columns_come_from_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    values = some_values(np.random.default_rng(2), 40)
    sids = np.random.default_rng(3).integers(0, 4, (40, 2))
    for part in range(2):
        rows = slice(20 * part, 20 * part + 20)
        table = {"id": list(range(rows.start, rows.stop)), "sid": sids[rows].tolist()}
        pq.write_table(
            pa.table({**table, **{name: each[rows] for name, each in values.items()}}), tmp_path / f"{part}.parquet"
        )
    read = mw.Catalogue.from_parquet(tmp_path, 4, sids="sid", items="id", columns=list(values))
    assert {name: column.at(np.arange(40)) for name, column in read.columns.items()} == values
    one = mw.Catalogue.from_parquet(tmp_path, 4, sids="sid", items="id", columns="stock")
    assert one.columns["stock"].at(np.arange(40)) == values["stock"]
    with pytest.raises(mw.errors.ConstraintError, match="the column 'id' needs another name"):
        mw.Catalogue.from_parquet(tmp_path, 4, sids="sid", items="id", columns=["id"])
    with pytest.raises(mw.errors.ConstraintError, match="no column 'colour'"):
        mw.Catalogue.from_parquet(tmp_path, 4, sids="sid", items="id", columns=["colour"])


# ------------------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize("strings", [True, False])
def test_rows_of_ids_are_those_of_a_dictionary(strings):
    random = np.random.default_rng(4)
    drawn = random.integers(-50, 50, 300).tolist()
    ids = [f"{'é' * (each % 3)}{each}" if each else "" for each in drawn] if strings else drawn
    index, later = IdIndex(ItemIds.of(ids[:200])), ids[200:]
    for at, each in enumerate(later):
        index.append(200 + at, ItemIds.of([each]))
    asked = [*sorted(set(ids), key=str), "no such" if strings else 999, 5.5, None, True]
    for count in (0, 150, 230, 300):
        expected = [
            [row for row in range(count) if ids[row] == each and type(ids[row]) is type(each)] for each in asked
        ]
        assert [rows.tolist() for rows in index.rows(asked, count)] == expected


def test_ids_that_cannot_be_there_have_no_rows():
    made = mw.Catalogue.of([[1], [2], [3]], [5, -7, 5], 4)
    for given in ([5, -7, 8], np.array([5, -7, 8]), [np.int64(5), np.int8(-7), 8]):
        assert [rows.tolist() for rows in made.rows_of(given)] == [[0, 2], [1], []]
    assert [rows.tolist() for rows in made.rows_of([1 << 63, -(1 << 70), 5, "5", [5]])] == [[], [], [0, 2], [], []]
    assert made.rows_of([]) == []
    made = mw.Catalogue.of([[1], [2]], ["5", "é"], 4)
    asked = ["é", "\ud800", "5" * 100_000, "", 5]
    assert [rows.tolist() for rows in made.rows_of(asked)] == [[1], [], [], [], []]
    shop = mw.Catalogue.of([[1], [2]], ["5", "é"], 4, kind="matrix").live()
    shop.insert([[3], [0]], ["x" * 20_000, "5"])
    shop = shop.publish()
    assert [rows.tolist() for rows in shop.rows_of(["x" * 20_000, "5", "x" * 20_001])] == [[2], [0, 3], []]
    shop.put(["5"], [[2]])
    shop.delete(["é"])
    shop = shop.publish()
    assert [rows.tolist() for rows in shop.rows_of(["5", "é"])] == [[4], []]
    assert [rows.tolist() for rows in shop.rows_of(["5", "é"], removed=True)] == [[0, 3, 4], [1]]


def test_ids_whose_keys_are_alike_are_told_apart(monkeypatch):
    monkeypatch.setattr(item_ids, "index_keys", lambda ids: np.zeros(len(ids), np.uint64))
    ids = ["a", "b", "a", "", "é", "b"]
    index = IdIndex(ItemIds.of(ids))
    index.append(6, ItemIds.of(["c", "a"]))
    expected = [[0, 2, 7], [1, 5], [3], [4], [6], []]
    assert [rows.tolist() for rows in index.rows(["a", "b", "", "é", "c", "d"], 8)] == expected


def test_fifty_ids_of_a_million_are_found_at_once():
    random = np.random.default_rng(0)
    for ids in (random.permutation(1_000_000), [f"item-{i:09}" for i in random.permutation(1_000_000)]):
        held = ItemIds.of(ids)
        index, wanted = IdIndex(held), range(0, 1_000_000, 20_000)
        asked = [held[row] for row in wanted]
        assert [rows.tolist() for rows in index.rows(asked, 1_000_000)] == [[row] for row in wanted]
        times = []
        for _ in range(20):
            began = time.thread_time()
            index.rows(asked, 1_000_000)
            times.append(time.thread_time() - began)
        assert min(times) < 0.001  # a look at all of them takes ten times as long


# ------------------------------------------------------------------------------------------------------------- puts


def put_by_hand(model, items, sids, columns):
    for at, each in enumerate(items):
        values = {name: given[at] for name, given in columns.items()}
        before = model.get(each)
        if sids is None:
            model[each] = [(sid, {**old, **values}) for sid, old in before]
        else:
            old = before[0][1] if before else dict.fromkeys(KINDS)
            model[each] = [(tuple(sids[at]), {**old, **values})]


@pytest.mark.parametrize("strings", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_random_updates_leave_what_a_dictionary_has(strings, seed, tmp_path):
    random = np.random.default_rng(seed)
    fixed, model = some_catalogue(random, strings=strings)
    fixed.save(tmp_path / "shop")
    now = mw.Catalogue.open(tmp_path / "shop", 500, log=tmp_path / "log")
    follower = mw.Catalogue.open(tmp_path / "shop", 500, log=tmp_path / "log", follow=True)
    assert seen(now) == model
    every = [f"item-{i}" for i in range(80)] if strings else list(range(100, 180))
    earlier = []
    for step in range(60):
        items = random.choice(every, random.integers(1, 6), replace=False).tolist()
        columns = {n: v for n, v in some_values(random, len(items)).items() if random.random() < 0.5}
        kind = random.integers(4)
        there = [each for each in items if each in model]
        if kind == 0 and there:
            epoch = now.delete(there)
            for each in there:
                del model[each]
        elif kind == 1 and there:
            columns = {name: values[: len(there)] for name, values in columns.items()}
            epoch = now.put(there, columns=columns)
            put_by_hand(model, there, None, columns)
        elif kind == 2:
            sids = random.integers(0, 5, (len(items), L)).tolist()
            epoch = now.insert(sids, items, columns)
            for at, each in enumerate(items):
                values = {name: columns[name][at] if name in columns else None for name in KINDS}
                model.setdefault(each, []).append((tuple(sids[at]), values))
        else:
            sids = [
                list(model[each][0][0])
                if each in model and random.random() < 0.5
                else random.integers(0, 5, L).tolist()
                for each in items
            ]
            epoch = now.put(items, sids, columns)
            put_by_hand(model, items, sids, columns)
        now = now.publish()
        assert now.epoch == epoch == step + 1
        assert seen(now) == model
        earlier.append((now, {each: list(items) for each, items in model.items()}))
        if step % 10 == 9:
            follower = follower.publish()
            assert follower.epoch == now.epoch
            assert seen(follower) == model
        if step == 30:
            now.save(tmp_path / "shop")
    for version, then in earlier[::7]:  # no later update shows in them
        assert seen(version) == then
    now.close()
    again = mw.Catalogue.open(tmp_path / "shop", 500, log=tmp_path / "log")
    assert seen(again) == model
    assert again.epoch == now.epoch
    fixed = again.fixed()
    rows = fixed.rows_of(list(model))
    for each, held in zip(model, rows, strict=True):
        assert [{n: c.at(held)[at] for n, c in fixed.columns.items()} for at in range(held.size)] == [
            values for _, values in model[each]
        ]


@pytest.mark.parametrize(
    ("items", "sids", "columns", "why"),
    [
        (["item-0", "item-0"], None, {}, "comes twice"),
        (["new"], None, {"price": [1.0]}, "needs a semantic ID"),
        (["item-0", "item-1"], [[0, 0, 0], [0, 0, 99]], {}, "code 99"),
        (["item-0"], [[0, 0, 0], [1, 1, 1]], {}, "one each"),
        ([], [[0, 0, 0]], {}, "one each"),
        ([5], [[0, 0, 0]], {}, "strings"),
        (["item-0"], None, {"colour": ["red"]}, "'colour'"),
        (["item-0"], None, {"price": ["red"]}, "finite numbers"),
        (["item-0"], None, {"stock": [1.5]}, "integers of 64 bits"),
        (["item-0"], None, {"price": [1.0, 2.0]}, "one each"),
        (["item-0"], None, {"price": [10**400]}, "finite numbers"),
        (["item-0"], None, {"price": np.array([math.inf])}, "finite numbers"),
        (["item-0"], None, {"stock": np.array([1 << 63], np.uint64)}, "integers of 64 bits"),
    ],
)
def test_a_wrong_put_changes_nothing(items, sids, columns, why, tmp_path):
    fixed, model = some_catalogue(np.random.default_rng(5))
    now = fixed.live(log=tmp_path / "log")
    size = (tmp_path / "log").stat().st_size
    with pytest.raises(mw.errors.ConstraintError, match=why):
        now.put(items, sids, columns)
    assert (tmp_path / "log").stat().st_size == size
    assert seen(now.publish()) == model


def test_values_of_an_update_may_be_arrays():
    shop, model = some_catalogue(np.random.default_rng(9))[0].live(), {}
    values = {"price": np.array([2.5, math.nan]), "stock": np.array([3, 4], np.int8)}
    shop.put(np.array(["item-0", "item-1"]), None, values)
    shop.put(["item-2"], np.array([[0, 1, 2]]), {"sold": [np.True_], "category": np.array(["Hüte"])})
    shop.insert([[1, 1, 1]], ["new"], {"price": [np.float32(0.5)]})
    model = seen(shop.publish())
    assert [model[each][0][1]["price"] for each in ("item-0", "item-1", "new")] == [2.5, None, 0.5]
    assert [model[each][0][1]["stock"] for each in ("item-0", "item-1", "new")] == [3, 4, None]
    assert (model["item-2"][0][1]["sold"], model["item-2"][0][1]["category"]) == (True, "Hüte")
    pa = pytest.importorskip("pyarrow")
    shop.put(pa.array(["item-0", "item-1"]), None, {"price": pa.array([None, 1.5])})
    shop.put(["item-3", "item-4"], None, {"stock": np.ma.array([5, 7], mask=[0, 1])})
    assert [seen(shop.publish())[each][0][1]["stock"] for each in ("item-3", "item-4")] == [5, None]
    assert [seen(shop.publish())[each][0][1]["price"] for each in ("item-0", "item-1")] == [None, 1.5]


def test_an_update_of_a_kind_that_is_not_known_is_refused(tmp_path):
    fixed, _ = some_catalogue(np.random.default_rng(10))
    fixed.save(tmp_path / "shop")
    shop = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log")
    follower = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log", follow=True)
    shop.close()
    log = UpdateLog(tmp_path / "log", (tmp_path / "log").read_bytes())
    log.append(4, b"what comes in a later release")
    log.close()
    with pytest.raises(mw.errors.TableFileError, match="update of kind 4"):
        mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log")
    with pytest.raises(mw.errors.TableFileError, match="update of kind 4"):
        follower.publish()


def some_update(random, model, every):
    """An update of a model, and what makes it in a catalogue."""
    items = random.choice(every, int(random.integers(1, 5)), replace=False).tolist()
    columns = {n: v for n, v in some_values(random, len(items)).items() if random.random() < 0.5}
    there = [each for each in items if each in model]
    kind, model = int(random.integers(6)), {each: list(held) for each, held in model.items()}
    if kind == 0 and 0 < len(there) < len(model):
        for each in there:
            del model[each]
        return model, lambda shop: shop.delete(there)
    if kind in (1, 2) and there:
        columns = {name: values[: len(there)] for name, values in columns.items()}
        put_by_hand(model, there, None, columns)
        return model, lambda shop: shop.put(there, columns=columns)
    sids = random.integers(0, 5, (len(items), L)).tolist()
    if kind == 3:
        for at, each in enumerate(items):
            values = {name: columns[name][at] if name in columns else None for name in KINDS}
            model.setdefault(each, []).append((tuple(sids[at]), values))
        return model, lambda shop: shop.insert(sids, items, columns)
    for at, each in enumerate(items):
        if each in model and random.random() < 0.3:
            sids[at] = list(model[each][0][0])
    put_by_hand(model, items, sids, columns)
    return model, lambda shop: shop.put(items, sids, columns)


def some_updates(count, seed=12):
    """A catalogue, and so many updates of it, with what there is after each."""
    random = np.random.default_rng(seed)
    fixed, model = some_catalogue(random, count=8, strings=bool(seed % 2))
    every = [f"item-{i}" for i in range(12)] if seed % 2 else list(range(100, 112))
    models, updates = [model], []
    for _ in range(count):
        model, update = some_update(random, model, every)
        models.append(model)
        updates.append(update)
    return fixed, models, updates


@pytest.mark.parametrize("seed", [14, 15])
def test_a_log_that_is_cut_anywhere_holds_whole_updates(seed, tmp_path):
    fixed, models, updates = some_updates(4, seed)
    fixed.save(tmp_path / "shop")
    now = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log")
    ends = [(tmp_path / "log").stat().st_size]
    for update in updates:
        assert update(now) == len(ends)
        ends.append((tmp_path / "log").stat().st_size)
    now.close()
    whole = (tmp_path / "log").read_bytes()
    for size in range(len(whole) + 1):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:size])
        epoch = max(0, sum(end <= size for end in ends) - 1)
        if size >= ends[0]:  # a header that is cut off was of a log that nothing was written to
            follower = mw.Catalogue.open(tmp_path / "shop", log=cut, follow=True)
            assert (follower.epoch, seen(follower)) == (epoch, models[epoch])
        again = mw.Catalogue.open(tmp_path / "shop", log=cut)
        assert (again.epoch, seen(again)) == (epoch, models[epoch])
        again.close()


def write_until_killed(folder):
    """Make updates and save now and then, and say of each that it was acknowledged."""
    _, _, updates = some_updates(MOST)
    shop = mw.Catalogue.open(Path(folder) / "shop", log=Path(folder) / "log", **LARGE)
    for epoch in range(shop.epoch, MOST):
        assert updates[epoch](shop) == epoch + 1
        os.write(1, b"%d\n" % (epoch + 1))
        if epoch % 25 == 0:
            shop.save(Path(folder) / "shop")


MOST = 3_000


def test_a_process_that_is_killed_loses_no_update_that_it_acknowledged(tmp_path):
    """Nor is half of one seen, by the next that opens the log or by one that follows it."""
    fixed, models, _ = some_updates(MOST)
    fixed.save(tmp_path / "shop")
    mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log").close()
    follower = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log", follow=True, **SMALL)
    program = f"from {__name__} import write_until_killed as write; write({str(tmp_path)!r})"
    random, epoch, followed = np.random.default_rng(0), 0, set()
    for _ in range(5):
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as writer:
            first = writer.stdout.readline()
            end = time.monotonic() + random.random()
            while time.monotonic() < end:
                follower = follower.publish()
                assert seen(follower) == models[follower.epoch]
                followed.add(follower.epoch)
            writer.kill()
            acknowledged = int((first + writer.stdout.read()).split(b"\n")[-2])
        assert acknowledged > epoch
        again = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log", **LARGE)
        epoch = again.epoch
        assert epoch in (acknowledged, acknowledged + 1)  # the last may be in the log, and not be told any more
        assert seen(again) == models[epoch]
        again.close()
        follower = follower.publish()
        assert (follower.epoch, seen(follower)) == (epoch, models[epoch])
    assert len(followed) > 20


def test_a_put_that_cannot_be_written_is_not_made(tmp_path, monkeypatch):
    fixed, models, updates = some_updates(30)
    shop = fixed.live(log=tmp_path / "log", **LARGE)
    for epoch, update in enumerate(updates):
        with monkeypatch.context() as patched:
            patched.setattr(update_log.os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("no space left")))
            with pytest.raises(OSError, match="no space"):
                update(shop)
        now = shop.publish()
        assert (now.epoch, seen(now)) == (epoch, models[epoch])
        assert update(shop) == epoch + 1
    shop.close()
    again = fixed.live(log=tmp_path / "log", **LARGE)
    assert (again.epoch, seen(again)) == (30, models[30])


def test_an_insert_that_finds_no_room_is_not_made(tmp_path):
    fixed, models, updates = some_updates(200)
    shop, refused = fixed.live(log=tmp_path / "log", **SMALL), 0
    for epoch, update in enumerate(updates):
        try:
            assert update(shop) == epoch + 1
        except mw.errors.ConstraintError:
            refused += 1
            now = shop.publish()
            assert (now.epoch, seen(now)) == (epoch, models[epoch])
            shop.compact()
            assert update(shop) == epoch + 1
        assert seen(shop.publish()) == models[epoch + 1]
    assert refused > 5
    shop.close()
    again = fixed.live(log=tmp_path / "log", **SMALL)
    assert (again.epoch, seen(again)) == (200, models[200])


def test_threads_put_while_another_saves(tmp_path):
    fixed, model = some_catalogue(np.random.default_rng(14))
    fixed.save(tmp_path / "shop")
    shop = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log", **LARGE)
    follower = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log", follow=True, **SMALL)
    models, epochs, done = [{} for _ in range(4)], [], threading.Event()
    for at, (each, held) in enumerate(model.items()):
        models[at % 4][each] = held

    def put(own, seed):
        random, every = np.random.default_rng(seed), [*models[own], *(f"{own}-{i}" for i in range(5))]
        for _ in range(60):
            models[own], update = some_update(random, models[own], every)
            epochs.append(update(shop))

    def save():
        while not done.is_set():
            shop.save(tmp_path / "shop")

    threads = [threading.Thread(target=put, args=(own, 20 + own)) for own in range(4)]
    saver = threading.Thread(target=save)
    for each in (*threads, saver):
        each.start()
    while any(each.is_alive() for each in threads):
        follower = follower.publish()
        seen(follower)  # each sequence has its items
    for each in threads:
        each.join()
    done.set()
    saver.join()
    assert sorted(epochs) == list(range(1, 241))
    model = models[0] | models[1] | models[2] | models[3]
    for version in (shop.publish(), follower.publish()):
        assert (version.epoch, seen(version)) == (240, model)
    shop.close()
    again = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log", **LARGE)
    assert (again.epoch, seen(again)) == (240, model)


def test_changes_of_columns_need_no_more_rows():
    fixed, _ = some_catalogue(np.random.default_rng(7))
    now = fixed.live(capacity=10)
    for price in range(200):
        now.put(["item-3", "item-4"], columns={"price": [price, -price]})
    version = now.publish()
    assert len(version) == len(fixed)
    assert version.num_added == 0
    assert version.columns["price"].at(np.array([3, 4])) == [199.0, -199.0]


def peak_of(call):
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_column_is_copied_once_after_a_version_was_published():
    count = 200_000
    sids = np.stack(np.unravel_index(np.arange(count), (60, 60, 60)), axis=1)
    columns = {"price": np.zeros(count), "brand": ["x"] * count}
    shop = mw.Catalogue.of(sids, np.arange(count), 60, kind="matrix", columns=columns).live()
    earlier = shop.publish()
    shop.put([1], columns={"price": [1.0], "brand": ["y"]})
    shop.put([2], [[59, 0, 0]])  # has room for more rows
    values = {"price": [2.0, 3.0], "brand": ["y", "z"]}
    assert peak_of(lambda: shop.put([1, 3], [[0, 0, 1], [59, 0, 1]], values)) < 100_000
    assert peak_of(shop.publish) < 3_000_000
    assert peak_of(lambda: shop.put([5], columns={"price": [5.0]})) > 8 * count
    assert not earlier.columns["price"].values.any()
    assert set(earlier.columns["brand"].at(np.arange(10))) == {"x"}


@pytest.mark.parametrize("published", [1, 7])
def test_changes_of_columns_keep_memory_flat(published):
    """New texts each time, too."""
    random = np.random.default_rng(11)
    fixed, _ = some_catalogue(random, count=200)
    shop, versions = fixed.live(), []
    items = [f"item-{i}" for i in range(100)]

    def change(first, last):
        for step in range(first, last):
            shop.put(items, columns={"price": [float(step)] * 100, "category": [f"{step}-{i}" for i in range(100)]})
            if step % published == 0:
                now = shop.publish()
                assert now.columns["category"].at(np.arange(100)) == [f"{step}-{i}" for i in range(100)]
                if step in (7, 357):
                    versions.append((step, now))

    change(0, 50)
    tracemalloc.start()
    change(50, 100)
    before = tracemalloc.get_traced_memory()[0]
    change(100, 400)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after < before + 1_000_000  # 30,000 texts would need three of them
    for step, version in versions:
        assert version.columns["category"].at(np.arange(100)) == [f"{step}-{i}" for i in range(100)]
        assert version.keeps(f"category == '{step}-5'").sum() == 1
        assert not version.keeps(f"category == '{step + 1}-5'").any()


def test_updates_and_searches_go_on_at_once(tmp_path):
    fixed, _ = some_catalogue(np.random.default_rng(8))
    now = fixed.live(capacity=100, log=tmp_path / "log")
    faults, done = [], threading.Event()

    def read():
        while not done.is_set():
            version = now.publish()
            one, other = (version.columns["stock"].at(version.rows_of([each])[0])[0] for each in ("item-1", "item-2"))
            if one != other:
                faults.append((one, other))

    readers = [threading.Thread(target=read) for _ in range(2)]
    now.put(["item-1", "item-2"], columns={"stock": [0, 0]})
    for each in readers:
        each.start()
    for stock in range(150):
        now.put(["item-1", "item-2"], columns={"stock": [stock, stock]})
    done.set()
    for each in readers:
        each.join()
    assert not faults
    assert Path(tmp_path / "log").stat().st_size > 0
