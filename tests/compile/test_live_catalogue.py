"""Live catalogues: against dictionaries of Python, with filters, compaction, and items found by decoders."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import beam_search
from maskwright.table.live_sids import LiveSids
from tests.strategies.item_sets import some_logits

V, L, CODES = 24, 3, 6
OFFSETS = [0, 6, 12]


class Shop:
    """A live catalogue beside a list of rows: (id, codes) or None of those that are gone."""

    def __init__(self, seed: int, strings: bool) -> None:
        self.rng, self.strings, self.made = np.random.default_rng(seed), strings, 0
        codes, ids = self.draw(60)
        self.catalogue = mw.Catalogue.of(codes, ids, vocab_size=V, offsets=OFFSETS, kind="matrix")
        self.live = self.catalogue.live(capacity=200, widths=(200,) * L)
        self.rows: list[Any] = list(zip(ids, map(tuple, codes.tolist()), strict=True))

    def draw(self, count: int) -> tuple[np.ndarray, list[Any]]:
        numbers = range(self.made, self.made + count)
        self.made += count
        ids = [f"item {i}" * (1 + i % 3) if self.strings else 7 * i for i in numbers]
        return self.rng.integers(0, CODES, (count, L)), ids

    def update(self) -> None:
        codes, ids = self.draw(int(self.rng.integers(1, 9)))
        self.live.insert(codes, ids)
        self.rows += list(zip(ids, map(tuple, codes.tolist()), strict=True))
        there = [row for row, item in enumerate(self.rows) if item is not None]
        gone = self.rng.choice(there, min(len(there), int(self.rng.integers(1, 9))), replace=False).tolist()
        self.live.delete([self.rows[row][0] for row in gone])
        for row in gone:
            self.rows[row] = None

    def of(self, codes: tuple[int, ...], kept: Any) -> list[Any]:
        """Ids of the kept items with these codes, in the order of their rows."""
        return [item[0] for item, keep in zip(self.rows, kept, strict=True) if keep and item and item[1] == codes]


@pytest.mark.parametrize("strings", [False, True])
def test_items_that_are_kept_come_back_and_no_others(strings):
    shop = Shop(1, strings)
    weights = some_logits(L, V, 3)

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return weights[np.full(len(tokens), t)], cache

    dev = numpy_ops.to_device(shop.live.publish().table)
    before: list[Any] = []
    for at in range(12):
        shop.update()
        if at % 5 == 4:
            shop.live.compact()
            assert shop.live.num_added == 0
        shop.update()
        now = shop.live.publish()
        dev = numpy_ops.with_snapshot(dev, now.table)
        assert now.num_items == sum(item is not None for item in shop.rows)
        keeps = [shop.rng.random(len(shop.rows)) < share for share in (0.6, 0.2)]
        a, b = (now.filter(keep) for keep in keeps)
        filters = [a, b, a & b, a | b, ~a]
        wanted = [keeps[0], keeps[1], keeps[0] & keeps[1], keeps[0] | keeps[1], ~keeps[0]]
        found = beam_search(
            step, None, numpy_ops.with_filters(dev, filters), ops=numpy_ops, batch=5, beams=400, max_tokens=L
        )
        for row, (items, keep) in enumerate(zip(now.items(found, filters=filters), wanted, strict=True)):
            expected = [item for item, one in zip(shop.rows, keep, strict=True) if item is not None and one]
            assert sorted(items) == sorted(item for item, _ in expected)
            assert int(found.valid[row].sum()) == len({codes for _, codes in expected})  # none leads to no item
            best = tuple((found.tokens[row, 0] - OFFSETS).tolist())
            assert items[: len(shop.of(best, keep))] == shop.of(best, keep)
        whole = beam_search(step, None, dev, ops=numpy_ops, batch=1, beams=400, max_tokens=L)
        everything = sorted(item[0] for item in shop.rows if item is not None)
        assert sorted(now.items(whole)[0]) == everything
        assert sorted(now.items(now.states(whole.tokens[0][whole.valid[0]]))) == everything
        before.append((now, everything, whole, shop.live.fixed()))
    for then, everything, whole, saved in before:  # what was published stays what it was
        assert sorted(then.items(whole)[0]) == everything
        assert sorted(saved.ids) == everything


def test_a_filter_of_items_goes_over_to_later_snapshots():
    shop = Shop(2, strings=False)
    for at in range(6):
        first = shop.live.publish()
        keep = shop.rng.random(len(shop.rows)) < 0.5
        kept = first.filter(keep)
        shop.update()
        if at % 2:
            shop.live.compact()
        shop.update()
        now = shop.live.publish()
        asked: list[int] = []

        def even(rows: Any, asked: list[int] = asked) -> Any:
            asked.extend(rows.tolist())
            return rows % 2 == 0

        came = [row for row in range(keep.size, len(shop.rows)) if shop.rows[row] is not None]
        for new, more in ((True, came), (False, []), (even, [row for row in came if row % 2 == 0])):
            moved = kept.at(now.table, new=new)
            rows = [row for row in range(keep.size) if keep[row] and shop.rows[row] is not None] + more
            assert np.flatnonzero(moved.items).tolist() == rows
            assert moved.num_sequences == len({shop.rows[row][1] for row in rows})
        assert asked == came
        out = [shop.rows[row][0] for row in rows]
        assert np.flatnonzero(~now.without(out).items & now.table.items.live).tolist() == rows


def test_what_cannot_be_done_is_refused_by_name_and_changes_nothing(tmp_path):
    shop = Shop(3, strings=True)
    shop.live.publish()
    for change, message in (
        (lambda: shop.live.delete(["item 0", "no such item"]), "no item 'no such item' to delete: none was removed"),
        (lambda: shop.live.insert([[0, 0, 0]], [5]), "item ids must be strings"),
        (lambda: shop.live.insert([[0, 0, 0]], ["a", "b"]), "2 item ids for 1 semantic IDs"),
        (lambda: shop.live.insert([[0, 0, 99]], ["a"]), "code 99 at position 2"),
        (lambda: shop.live.live(), "has another table"),
        (lambda: shop.catalogue.insert([[0, 0, 0]], ["a"]), "is fixed: its items neither come nor go"),
        (lambda: shop.catalogue.publish(), "is fixed"),
        (lambda: mw.Catalogue.of([[0]], ["a"], 4).live(), "has another table"),
        (lambda: shop.live.shards(2), "shards are of sorted matrices"),
        (lambda: shop.live.publish().filter([True]), r"keep has shape \(1,\), .* each of the 60 rows of items"),
        (lambda: shop.live.publish().items([0], filters=shop.catalogue.filter([True] * 60)), "of another catalogue"),
    ):
        with pytest.raises(mw.errors.ConstraintError, match=message):
            change()
    assert shop.live.publish().num_items == 60
    assert shop.live.num_added == 0
    with pytest.raises(TypeError, match="knows sequences, not items"):
        LiveSids(shop.catalogue.table).publish().input_rows([0])
    with pytest.raises(mw.errors.TableError, match="knows no items"):
        mw.Catalogue(LiveSids(shop.catalogue.table).publish(), shop.catalogue.ids, shop.catalogue.code_tokens)
    shop.live.fixed().save(tmp_path / "file")
    assert list(mw.Catalogue.load(tmp_path / "file").ids) == [item for item, _ in shop.rows]
    shop.live.delete([item for item, _ in shop.rows])
    with pytest.raises(mw.errors.ConstraintError, match="no item left"):
        shop.live.fixed()


def test_a_put_always_has_room(tmp_path):
    """Sequences may crowd below one prefix, or be more than the capacity: of one put, and of one after the other."""
    codes = np.array([[a, b, c, d] for a in range(3) for b in range(3) for c in range(5) for d in range(5)])
    shop = mw.Catalogue.of(codes[::9], np.arange(25), 5, kind="matrix")
    shop.save(tmp_path / "file")
    shop = mw.Catalogue.open(tmp_path / "file", capacity=20, widths=(20, 8, 4, 2), log=tmp_path / "log")
    expected = dict(enumerate(codes[::9].tolist()))
    first = shop.publish()
    with pytest.raises(mw.errors.DeltaFullError, match="is full at depth"):
        shop.insert(codes[1:4], [100, 101, 102])
    with pytest.raises(mw.errors.DeltaFullError, match="has room for 20"):
        shop.insert(codes[1::5][:40], range(100, 140))
    epoch = 0
    for rows in ([1, 2, 3, 4, 5], range(5, 60), [60], [61], [62], range(200, 225)):
        for attempt in range(2):  # the second time all is there, and stays
            epoch = shop.put([100 + row for row in rows], codes[list(rows)])
            assert attempt or shop.num_added <= 20
        expected |= {100 + row: codes[row].tolist() for row in rows}
        now = shop.publish()
        states = now.states(list(expected.values()))
        assert set(expected) == set(now.items(states))
        assert now.num_items == len(expected)
    assert first.num_items == 25
    with pytest.raises(mw.errors.ConstraintError, match="no item 7777"):
        shop.put([7777], None)
    shop.close()
    again = mw.Catalogue.open(tmp_path / "file", capacity=20, widths=(20, 8, 4, 2), log=tmp_path / "log")
    assert again.epoch == epoch == 12
    assert dict(
        zip(again.ids, again.code_tokens.codes(again.tokens_of(np.arange(len(again)))).tolist(), strict=True)
    ) == (expected)


def test_a_new_item_copies_no_column():
    shop = mw.Catalogue.of([[0, 0]] * 100, np.arange(100), 4, kind="matrix", columns={"price": [1] * 100}).live()
    seen = []
    for item, code in ((200, 1), (201, 2), (0, 3)):  # new ones, and one whose semantic ID changes
        shop.put([item], [[code, code]], {"price": [item]})
        seen.append(shop.publish().columns["price"].values)
    assert np.shares_memory(seen[0], seen[1])
    assert np.shares_memory(seen[1], seen[2])


def test_updates_and_snapshots_go_on_while_a_thread_compacts():
    shop = Shop(4, strings=False)
    stop = threading.Event()

    def compact() -> None:
        while not stop.is_set():
            shop.live.compact()

    thread = threading.Thread(target=compact)
    thread.start()
    try:
        for _ in range(60):
            shop.update()
            now = shop.live.publish()
            rows = [row for row, item in enumerate(shop.rows) if item is not None]
            states = now.states(np.array([shop.rows[row][1] for row in rows]) + OFFSETS)
            assert sorted(now.items(states)) == sorted(shop.rows[row][0] for row in rows)
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()


def of_codes(codes, ids, vocab_size):
    return mw.Catalogue.of(codes, ids, vocab_size, kind="matrix").live(capacity=10)


def test_a_filter_is_taken_over_within_its_catalogue_alone():
    one, other = (of_codes([[3, 1], [3, 0]], ["a", "b"], 8) for _ in range(2))
    kept = one.publish().filter([True, False])
    with pytest.raises(mw.errors.ConstraintError, match="of another live catalogue"):
        kept.at(other.publish().table, new=False)
    with pytest.raises(mw.errors.ConstraintError, match="with other tokens"):
        kept.at(of_codes([[3, 1, 1]], ["a"], 8).publish().table, new=False)
    one.insert([[2, 2]], ["c"])
    assert kept.at(one.publish().table, new=np.True_).num_sequences == 2
    with pytest.raises(TypeError, match="new must be True, False or a function"):
        kept.at(one.publish().table, new=1)


def test_nothing_that_comes_changes_nothing():
    live = of_codes([[3, 1], [3, 0]], ["a", "b"], 8)
    live.insert([], [])
    live.insert(np.empty((0, 2), int), [])
    assert live.publish().num_items == 2


def test_a_version_stays_what_it_is_and_all_have_one_store():
    first = of_codes([[3, 1], [3, 0]], ["a", "b"], 8)
    first.insert([[2, 2]], ["c"])
    second = first.publish()
    second.delete(["a"])
    third = first.publish()
    assert [list(each.items(each.states([[3, 1], [2, 2]]))) for each in (first, second, third)] == [
        ["a"], ["a", "c"], ["c"],
    ]  # fmt: skip
    assert [(each.num_items, len(each)) for each in (first, second, third)] == [(2, 2), (3, 3), (2, 3)]
    assert list(first.fixed().ids) == list(third.fixed().ids) == ["b", "c"]
    assert third.fixed().fixed().num_items == 2
