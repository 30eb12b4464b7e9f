"""Logs of live catalogues: ids and semantic IDs of acknowledged updates are there, whenever a crash comes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.compile.catalogue_file import read_live
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import beam_search
from maskwright.table import file, live_sids, update_log
from maskwright.table.live_sids import LiveSids
from maskwright.table.sorted_matrix import SortedMatrix
from tests.strategies.item_sets import some_logits

V, L, CODES = 24, 3, 6
OFFSETS = [0, 6, 12]
OPTIONS: dict[str, Any] = {"capacity": 200, "widths": (200,) * L}
Rows = list[Any]  # (id, codes) of each row, None of those that are gone


class Shop:
    """A live catalogue with a log, beside a list of rows."""

    def __init__(self, folder: Path, seed: int, strings: bool, count: int = 20) -> None:
        self.rng, self.strings, self.made = np.random.default_rng(seed), strings, 0
        folder.mkdir()
        codes, ids = self.draw(count)
        self.catalogue = mw.Catalogue.of(
            codes, ids, vocab_size=V, offsets=OFFSETS, kind="matrix", metadata={"of": "a shop"}
        )
        self.log = folder / "log"
        self.live = self.catalogue.live(log=self.log, **OPTIONS)
        self.rows: Rows = list(zip(ids, map(tuple, codes.tolist()), strict=True))

    def draw(self, count: int) -> tuple[np.ndarray, list[Any]]:
        numbers = range(self.made, self.made + count)
        self.made += count
        ids = [f"ü{i}" * (i % 3) or f"i{i}" for i in numbers] if self.strings else [7 * i - 9 for i in numbers]
        return self.rng.integers(0, CODES, (count, L)), ids

    def insert(self, most: int = 4) -> None:
        codes, ids = self.draw(int(self.rng.integers(1, most)))
        self.live.insert(codes, ids)
        self.rows += list(zip(ids, map(tuple, codes.tolist()), strict=True))

    def delete(self, most: int = 4) -> None:
        there = [row for row, item in enumerate(self.rows) if item is not None]
        gone = self.rng.choice(there, min(len(there) - 1, int(self.rng.integers(1, most))), replace=False).tolist()
        self.live.delete([self.rows[row][0] for row in gone])
        for row in gone:
            self.rows[row] = None


def opened(folder: Path, catalogue: mw.Catalogue) -> mw.Catalogue:
    """What is there after a crash that left a folder."""
    if (folder / "base").exists():
        return mw.Catalogue.open(folder / "base", log=folder / "log", **OPTIONS)
    return catalogue.live(log=folder / "log", **OPTIONS)


def check(live: mw.Catalogue, rows: Rows) -> None:
    """Hold a live catalogue against rows: by number, by sequence, by id and in what a search finds."""
    now = live.publish()
    assert now.table.items.live.tolist() == [item is not None for item in rows]
    there = [row for row, item in enumerate(rows) if item is not None]
    assert now.ids.at(np.array(there)) == [rows[row][0] for row in there]
    codes = {rows[row][1] for row in there}
    assert now.table.num_sequences == len(codes)
    for each in codes:
        wanted = [rows[row][0] for row in there if rows[row][1] == each]
        assert now.items(now.states([np.add(each, OFFSETS).tolist()])) == wanted
    assert now.num_items == len(there)
    saved = live.fixed()
    assert list(saved.ids) == [rows[row][0] for row in there]
    assert (saved.metadata, saved.code_tokens.offsets) == ({"of": "a shop"}, tuple(OFFSETS))


@pytest.mark.parametrize("strings", [False, True])
def test_every_byte_of_a_log_may_be_the_last(strings, tmp_path):
    shop = Shop(tmp_path / "live", 1, strings)
    states = [(shop.log.stat().st_size, [*shop.rows])]
    for _ in range(2):
        for change in (shop.insert, shop.delete):
            change()
            states.append((shop.log.stat().st_size, [*shop.rows]))
    data, copy = shop.log.read_bytes(), tmp_path / "copy"
    for size in range(len(data) + 1):
        copy.write_bytes(data[:size])
        again = shop.catalogue.live(log=copy, **OPTIONS)
        wanted = [rows for end, rows in states if end <= size] or [states[0][1]]
        check(again, wanted[-1])
        again.close()
    copy.write_bytes(data[:-1])
    again = shop.catalogue.live(log=copy, **OPTIONS)
    new = ["new", "new"] if strings else [5000, 5000]
    again.insert([[1, 2, 3], [0, 0, 0]], new)  # written behind the last whole update
    again.close()
    rows = states[-2][1] + list(zip(new, [(1, 2, 3), (0, 0, 0)], strict=True))
    again = shop.catalogue.live(log=copy, **OPTIONS)
    check(again, rows)
    again.delete(new[:1])  # an id of before the crash
    again.close()
    check(shop.catalogue.live(log=copy, **OPTIONS), [*rows[:-2], None, None])


def test_a_search_finds_what_was_inserted_before_a_crash(tmp_path):
    shop = Shop(tmp_path / "live", 2, strings=True)
    for _ in range(4):
        shop.insert()
        shop.delete()
    shutil.copy(shop.log, tmp_path / "log")
    now = shop.catalogue.live(log=tmp_path / "log", **OPTIONS).publish()
    keep = shop.rng.random(len(shop.rows)) < 0.5
    weights = some_logits(L, V, 3)

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return weights[np.full(len(tokens), t)], cache

    filters = [now.filter(keep), now.filter(~keep)]
    dev = numpy_ops.with_filters(numpy_ops.to_device(now.table), filters)
    found = now.items(beam_search(step, None, dev, ops=numpy_ops, batch=2, beams=200, max_tokens=L), filters=filters)
    for items, kept in zip(found, (keep, ~keep), strict=True):
        assert sorted(items) == sorted(item[0] for item, one in zip(shop.rows, kept, strict=True) if item and one)


def test_a_log_that_does_not_fit_is_refused_by_name(tmp_path):
    shop = Shop(tmp_path / "live", 3, strings=True)
    first_rows = [*shop.rows]
    shop.insert()
    first = shop.log.stat().st_size
    shop.insert()
    shop.delete()
    with pytest.raises(mw.errors.TableFileError, match="another live set writes to"):
        shop.catalogue.live(log=shop.log)
    shop.live.close()
    data = bytearray(shop.log.read_bytes())
    data[first + 12] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(mw.errors.TableFileError, match=f"is damaged at byte {first}, and updates after it are whole"):
        shop.catalogue.live(log=tmp_path / "damaged")
    assert (tmp_path / "damaged").read_bytes() == data
    matrix, ids = shop.catalogue.table, [f"{each}!" for each in shop.catalogue.ids]
    assert isinstance(matrix, SortedMatrix)
    codes = [item[1] for item in first_rows[:20]]
    kinds = {"vocab_size": V, "offsets": OFFSETS, "kind": "matrix"}
    others = (codes, ids), (codes[::-1], list(shop.catalogue.ids))
    for other in (mw.Catalogue.of(*each, **kinds) for each in others):
        with pytest.raises(mw.errors.TableFileError, match="is a log of another base"):
            other.live(log=shop.log)
    LiveSids(matrix, log=tmp_path / "sids").close()
    with pytest.raises(mw.errors.TableFileError, match="is no log of a live catalogue"):
        shop.catalogue.live(log=tmp_path / "sids")
    with pytest.raises(mw.errors.TableFileError, match="is no log of a live set"):
        LiveSids(matrix, log=shop.log)
    check(shop.catalogue.live(log=shop.log, **OPTIONS), shop.rows)


def test_an_update_that_is_refused_or_cannot_be_written_is_not_made(tmp_path, monkeypatch):
    shop = Shop(tmp_path / "live", 4, strings=False)
    shop.insert()
    size = shop.log.stat().st_size
    for call in (
        lambda: shop.live.insert([[99, 0, 0]], [1]),
        lambda: shop.live.insert([[0, 0, 0]], ["a string"]),
        lambda: shop.live.delete([123_456]),
    ):
        with pytest.raises(mw.errors.ConstraintError):
            call()
    write = update_log.os.pwrite

    def full(handle: int, data: bytes, at: int) -> int:
        write(handle, data[:5], at)
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(update_log.os, "pwrite", full)
        for call in (lambda: shop.live.insert([[1, 2, 3]], [1]), lambda: shop.live.delete([shop.rows[0][0]])):
            with pytest.raises(OSError, match="no space left"):
                call()
    with monkeypatch.context() as patched:
        patched.setattr(update_log, "MOST_BYTES", 10)
        with pytest.raises(mw.errors.ConstraintError, match="more than a log can hold in one record") as caught:
            shop.live.insert([[1, 2, 3]], [1])
        assert "several calls" in str(caught.value.remedies[0])
    assert shop.log.stat().st_size == size
    check(shop.live, shop.rows)
    shop.live.close()
    for call in (
        lambda: shop.live.insert([[1, 2, 3]], [1]),
        lambda: shop.live.delete([shop.rows[0][0]]),
        lambda: shop.live.save(tmp_path / "base"),
    ):
        with pytest.raises(ValueError, match="this live catalogue was closed"):
            call()


def test_a_log_goes_on_over_compactions(tmp_path):
    catalogue = mw.Catalogue.of([[0, 0]], ["first"], vocab_size=32, kind="matrix")
    live = catalogue.live(4, widths=(4, 4), log=tmp_path / "log")
    for first in (1, 5, 9):
        live.insert([[first + i, 0] for i in range(4)], [f"{first + i}" for i in range(4)])
        live.compact()
    live.delete(["first", "6"])
    live.close()
    again = catalogue.live(4, widths=(4, 4), log=tmp_path / "log")  # the delta has not room for all
    assert sorted(again.fixed().ids) == sorted(str(i) for i in range(1, 13) if i != 6)
    now = again.publish()
    assert now.items(now.states([[i, 0] for i in range(1, 13) if i != 6])) == [str(i) for i in range(1, 13) if i != 6]


@pytest.mark.parametrize("strings", [False, True])
def test_a_crash_while_items_are_saved_and_a_log_begins_anew_loses_nothing(strings, tmp_path, monkeypatch):
    folder = tmp_path / "live"
    shop = Shop(folder, 5, strings)
    crashes: list[tuple[Path, Rows]] = []

    def crash() -> None:
        """What a crash at this point leaves, and what it must not lose."""
        copy = tmp_path / f"crash {len(crashes)}"
        shutil.copytree(folder, copy)
        crashes.append((copy, [*shop.rows]))

    def around(function: Any) -> Any:
        def wrapped(*given: Any, **options: Any) -> Any:
            crash()
            found = function(*given, **options)
            crash()
            return found

        return wrapped

    def torn(handle: int, data: bytes, at: int) -> None:
        """Write a log that begins anew a few bytes at a time, each of which a crash may follow."""
        for begin in range(0, len(data) if at == 0 else 0, 37):
            write(handle, data[: begin + 37], at)
            crash()
        write(handle, data, at)

    write, save, joined = update_log.write, file.save_file, live_sids.join

    def meanwhile(*given: Any) -> Any:
        found = joined(*given)
        shop.insert()  # while base and delta are joined
        return found

    def saved(*given: Any) -> Any:
        shop.delete()  # while the rows are written
        shop.insert()
        return save(*given)

    for step in range(3):
        for change in (shop.insert, shop.delete):
            change()
        with monkeypatch.context() as patched:
            patched.setattr(live_sids, "join", meanwhile)
            patched.setattr(file, "save_file", around(saved))
            for module in (file.os, update_log.os):
                patched.setattr(module, "replace", around(module.replace))
            if step % 2 == 0:
                patched.setattr(update_log, "write", torn)
            before = len(crashes)
            shop.live.save(folder / "base")
            assert len(crashes) >= before + 6
        assert shop.log.stat().st_size < 400  # the updates that came meanwhile, and no others
        check(shop.live, shop.rows)
        shop.insert()
        crash()
    for copy, rows in crashes:
        again = opened(copy, shop.catalogue)
        check(again, rows)
        if (copy / "base").exists():  # what was recovered can be written to, saved and opened again
            again.insert([[0, 0, 0]], ["x" if strings else 9999])
            again.save(copy / "base")
            again.close()
            check(opened(copy, shop.catalogue), [*rows, ("x" if strings else 9999, (0, 0, 0))])


def test_an_empty_string_is_an_id(tmp_path):
    catalogue = mw.Catalogue.of([[0, 0]], ["first"], vocab_size=4, kind="matrix")
    live = catalogue.live(log=tmp_path / "log")
    live.insert([[1, 1], [1, 2]], ["", ""])
    live.close()
    live = catalogue.live(log=tmp_path / "log")
    assert list(live.fixed().ids) == ["first", "", ""]
    live.save(tmp_path / "base")
    live.delete([""])
    live.close()
    assert list(mw.Catalogue.open(tmp_path / "base", log=tmp_path / "log").fixed().ids) == ["first"]


def test_files_that_are_no_live_catalogue_are_refused_by_name(tmp_path):
    shop = Shop(tmp_path / "live", 6, strings=True)
    shop.insert()
    base = tmp_path / "base"
    shop.live.save(base)
    check(mw.Catalogue.open(base, **OPTIONS), shop.rows)
    _, rows, *_ = read_live(base, None)
    assert list(rows.ids) == [item[0] for item in shop.rows]
    assert rows.live.all()
    for path in (shop.log, tmp_path / "live" / ".." / "live" / "log"):
        with pytest.raises(mw.errors.ConstraintError, match="base and log are two files"):
            shop.live.save(path)
    with pytest.raises(mw.errors.ConstraintError, match="base and log are two files"):
        mw.Catalogue.open(base, log=base)
    shop.catalogue.save(tmp_path / "plain")
    with pytest.raises(mw.errors.TableFileError, match="not one that maskwright wrote for a catalogue"):
        mw.Catalogue.load(base)
    plain = mw.Catalogue.open(tmp_path / "plain", log=tmp_path / "plain.log", **OPTIONS)  # of a fixed one
    plain.insert([[1, 2, 3]], ["new"])
    plain.close()
    plain = mw.Catalogue.open(tmp_path / "plain", log=tmp_path / "plain.log", **OPTIONS)
    assert plain.items(plain.states([[1, 8, 15]]))[-1] == "new"
    plain.save(tmp_path / "plain")
    plain.close()
    again = mw.Catalogue.open(tmp_path / "plain", log=tmp_path / "plain.log", **OPTIONS)
    assert list(again.publish().ids) == list(plain.publish().ids)
    again.close()
    other = mw.Vocabulary.from_bytes([b"", b"a"], eos=0)
    for path in (base, tmp_path / "plain"):
        with pytest.raises(mw.errors.VocabularyMismatchError):
            mw.Catalogue.open(path, vocabulary=other)
    mw.Catalogue.of([[0]], [1], vocab_size=4).save(tmp_path / "table")
    with pytest.raises(mw.errors.ConstraintError, match="has another table"):
        mw.Catalogue.open(tmp_path / "table")
    data = bytearray(base.read_bytes())
    data[-1] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(mw.errors.TableFileError):
        mw.Catalogue.open(tmp_path / "damaged")
    with pytest.raises(FileNotFoundError):
        mw.Catalogue.open(tmp_path / "missing")
    shop.live.delete([item[0] for item in shop.rows])
    with pytest.raises(mw.errors.ConstraintError, match="there is no item left"):
        shop.live.save(base)
    shop.live.close()
    again = mw.Catalogue.open(base, log=shop.log, **OPTIONS)
    assert again.num_items == 0
    again.insert([[1, 1, 1]], ["new"])
    again.save(base)
    again.close()
    check(mw.Catalogue.open(base, log=shop.log, **OPTIONS), [None] * len(shop.rows) + [("new", (1, 1, 1))])


def check_followed(followed: mw.Catalogue, rows: Rows) -> None:
    """Hold a catalogue that follows a log against rows, as `check` does."""
    check(followed, rows)
    assert followed.publish().table is followed.publish().table


@pytest.mark.parametrize("capacity", [200, 3])
def test_followers_have_what_is_whole_in_the_log_over_saves_compactions_and_other_writers(capacity, tmp_path):
    shop = Shop(tmp_path / "live", 6, strings=True)
    base, options = tmp_path / "live" / "base", {"capacity": capacity, "widths": (capacity,) * L}
    shop.catalogue.save(base)
    often, seldom = (mw.Catalogue.open(base, log=shop.log, follow=True, **options) for _ in range(2))
    new = 0
    for step in range(60):
        shop.insert(9 if step % 5 else 2)
        shop.delete()
        if step % 7 == 3:
            shop.live.save(base)
            shop.insert()
        if step % 11 == 5:
            shop.live.compact()
        if step % 13 == 8:
            shop.live.close()
            shop.live = mw.Catalogue.open(base, log=shop.log, **OPTIONS)
        if step % 9 == 4:
            new += 1
            check_followed(mw.Catalogue.open(base, log=shop.log, follow=True, **options), shop.rows)
        check_followed(often, shop.rows)
        if step % 20 == 19:
            check_followed(seldom, shop.rows)
    assert new > 3


def test_a_follower_waits_for_the_rest_of_an_update(tmp_path):
    shop = Shop(tmp_path / "live", 7, strings=False)
    states = [(shop.log.stat().st_size, [*shop.rows])]
    shop.catalogue.save(tmp_path / "base")
    for change in (shop.insert, shop.delete, shop.insert):
        change()
        states.append((shop.log.stat().st_size, [*shop.rows]))
    data, log = shop.log.read_bytes(), tmp_path / "log"
    log.write_bytes(data[: states[0][0]])
    followed = mw.Catalogue.open(tmp_path / "base", log=log, follow=True, **OPTIONS)
    for size in range(states[0][0], len(data) + 1):
        with log.open("ab") as file:
            file.write(data[size - 1 : size] if size > states[0][0] else b"")
        check_followed(followed, [rows for end, rows in states if end <= size][-1])


def test_a_log_that_cannot_be_followed_is_refused_by_its_place_until_it_can(tmp_path):
    shop = Shop(tmp_path / "live", 8, strings=True)
    base, log = tmp_path / "base", tmp_path / "log"
    shop.catalogue.save(base)
    with pytest.raises(FileNotFoundError, match="log"):
        mw.Catalogue.open(base, log=log, follow=True)
    log.write_bytes(shop.log.read_bytes()[:9])
    with pytest.raises(mw.errors.TableFileError, match="is a log of another base"):
        mw.Catalogue.open(base, log=log, follow=True)
    with pytest.raises(mw.errors.ConstraintError, match="base and log are two files"):
        mw.Catalogue.open(base, log=base, follow=True)
    mw.Catalogue.of([[1, 2, 3]], [1], vocab_size=V).save(tmp_path / "table")
    with pytest.raises(mw.errors.ConstraintError, match="of sorted matrices"):
        mw.Catalogue.open(tmp_path / "table", log=shop.log, follow=True)
    with pytest.raises(mw.errors.ConstraintError, match="log is needed to follow"):
        mw.Catalogue.open(base, follow=True)
    shutil.copy(shop.log, log)
    followed = mw.Catalogue.open(base, log=log, follow=True, **OPTIONS)
    first = log.stat().st_size
    for change in (shop.insert, shop.delete):
        change()
    data = shop.log.read_bytes()
    for damaged, said in (
        (data[: first + 12] + bytes([data[first + 12] ^ 1]) + data[first + 13 :], f"is damaged at byte {first}"),
        (data[: first - 4], "is a log of another base"),
        (b"MWITEM1\n" + bytes(100), "is a log of another base"),
    ):
        log.write_bytes(damaged)
        for _ in range(2):
            with pytest.raises(mw.errors.TableFileError, match=said):
                followed.publish()
    log.unlink()
    with pytest.raises(FileNotFoundError):
        followed.publish()
    log.write_bytes(data)
    check_followed(followed, shop.rows)
    for call in (lambda: followed.insert([[1, 2, 3]], ["a"]), lambda: followed.delete(["a"]), followed.compact,
                 followed.close, lambda: followed.save(tmp_path / "other")):  # fmt: skip
        with pytest.raises(mw.errors.ConstraintError, match="follows the log of another process"):
            call()


def test_processes_follow_one_log_while_another_writes_and_saves(tmp_path):
    mw.Catalogue.of([[0, 0]], [0], vocab_size=600, kind="matrix").save(tmp_path / "base")
    mw.Catalogue.open(tmp_path / "base", log=tmp_path / "log").close()
    program = "import sys, maskwright as mw\n"
    program += "shop = mw.Catalogue.open(sys.argv[1], 64, log=sys.argv[2])\n"
    program += "for i in range(1, 500):\n    shop.insert([[i, i]], [i])\n    shop.delete([i - 1])\n"
    program += "    if i % 40 == 0: shop.save(sys.argv[1])"
    followed = mw.Catalogue.open(tmp_path / "base", 64, log=tmp_path / "log", follow=True)
    command = [sys.executable, "-c", program, str(tmp_path / "base"), str(tmp_path / "log")]
    writer, seen = subprocess.Popen(command), [0]
    while writer.poll() is None or seen[-1] < 499:
        over = writer.poll() is not None
        now = followed.publish()
        there = sorted(now.ids.at(np.flatnonzero(now.table.items.live)))
        assert there in ([seen[-1]], [there[0]], [there[0], there[0] + 1])
        assert there[0] >= seen[-1]
        assert now.table.contains([[i, i] for i in there]).all()
        assert now.table.num_sequences == len(there)
        seen += [there[0]] * (there[0] > seen[-1])
        assert not over or seen[-1] == 499
    assert writer.returncode == 0
    assert len(seen) > 20


def test_a_follower_compacts_beside_what_it_reads_and_filters(tmp_path):
    """A writer inserts faster than the follower compacts: it may neither wait for itself nor lose a row."""
    rng = np.random.default_rng(9)
    mw.Catalogue.of([[0, 0, 0]], [0], vocab_size=64, kind="matrix").save(tmp_path / "base")
    shop = mw.Catalogue.open(tmp_path / "base", 20_000, widths=(20_000,) * 3, log=tmp_path / "log")
    followed = mw.Catalogue.open(tmp_path / "base", 40, log=tmp_path / "log", follow=True, widths=(40,) * 3)
    sids, there = np.zeros((1, 3), np.int64), np.ones(1, bool)
    for step in range(150):
        new = rng.integers(0, 64, (int(rng.integers(1, 60)), 3))
        shop.insert(new, range(len(sids), len(sids) + len(new)))
        sids, there = np.concatenate([sids, new]), np.append(there, np.ones(len(new), bool))
        gone = rng.choice(np.flatnonzero(there), min(5, there.sum() - 1), replace=False)
        shop.delete(gone)
        there[gone] = False
        now = followed.publish()
        deny = rng.choice(len(sids), min(len(sids), 600 if step % 10 == 0 else 8), replace=False)
        keep = rng.random(len(sids)) < 0.5
        kept = {
            "all": (now.filter(np.ones(len(sids), bool)), there),
            "some": (now.filter(keep), there & keep),
            "without": (now.without(deny), there & ~np.isin(np.arange(len(sids)), deny)),
            "some without": (now.filter(keep).without_rows(deny), there & keep & ~np.isin(np.arange(len(sids)), deny)),
        }
        for found, want in kept.values():
            codes = set(map(tuple, sids[want].tolist()))
            assert found.num_sequences == len(codes)
            assert not codes or found.contains(sorted(codes)).all()
            assert found.items.tolist() == want.tolist()
        some = sids[rng.choice(np.flatnonzero(there), min(9, int(there.sum())), replace=False)]
        for rows, sid in zip(now.table.input_rows(now.states(some)), some, strict=True):
            assert rows.tolist() == np.flatnonzero(there & (sids == sid).all(1)).tolist()
