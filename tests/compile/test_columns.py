"""Columns of catalogues, and updates by id: kept in files and logs, followed, and never seen in part."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pytest

import maskwright as mw
from maskwright.compile.columns import Column
from maskwright.table.item_ids import IdIndex, ItemIds

V, L, OFFSETS = 40, 3, [0, 10, 20]
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
        ([5], [[0, 0, 0]], {}, "strings"),
        (["item-0"], None, {"colour": ["red"]}, "'colour'"),
        (["item-0"], None, {"price": ["red"]}, "finite numbers"),
        (["item-0"], None, {"stock": [1.5]}, "integers of 64 bits"),
        (["item-0"], None, {"price": [1.0, 2.0]}, "one each"),
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


def test_a_log_that_is_cut_anywhere_holds_whole_updates(tmp_path):
    random = np.random.default_rng(6)
    fixed, model = some_catalogue(random, count=6)
    fixed.save(tmp_path / "shop")
    now = mw.Catalogue.open(tmp_path / "shop", log=tmp_path / "log")
    ends, states = [(tmp_path / "log").stat().st_size], [dict(model)]
    for sid in ([0, 1, 2], [3, 3, 3]):
        items = ["item-1", "item-2", f"new-{sid[0]}"]
        columns = some_values(random, 3)
        now.put(items, [sid] * 3, columns)
        put_by_hand(model, items, [sid] * 3, columns)
        ends.append((tmp_path / "log").stat().st_size)
        states.append({each: list(held) for each, held in model.items()})
    now.close()
    whole = (tmp_path / "log").read_bytes()
    for size in range(len(whole) + 1):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:size])
        expected = states[max(0, sum(end <= size for end in ends) - 1)]
        if size >= ends[0]:  # a header that is cut off was of a log that nothing was written to
            assert seen(mw.Catalogue.open(tmp_path / "shop", log=cut, follow=True)) == expected
        again = mw.Catalogue.open(tmp_path / "shop", log=cut)
        assert seen(again) == expected
        again.close()


def test_changes_of_columns_need_no_more_rows():
    fixed, _ = some_catalogue(np.random.default_rng(7))
    now = fixed.live(capacity=10)
    for price in range(200):
        now.put(["item-3", "item-4"], columns={"price": [price, -price]})
    version = now.publish()
    assert len(version) == len(fixed)
    assert version.num_added == 0
    assert version.columns["price"].at(np.array([3, 4])) == [199.0, -199.0]


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
