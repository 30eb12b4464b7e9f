"""Logs of live sets: one writer at a time, and a log that begins anew behind a saved base, whenever a crash comes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.errors import TableFileError
from maskwright.table import file, live_sids, update_log
from maskwright.table.live_sids import LiveSids
from maskwright.table.sorted_matrix import SortedMatrix
from tests.strategies.item_sets import Changing

OPTIONS: dict[str, Any] = {"capacity": 300, "widths": (300,) * 4}


def counts_of(live: LiveSids) -> Counter[tuple[int, ...]]:
    """The items of a live set, each as often as it is there."""
    rows, counts = live.items()
    return Counter(dict(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True)))


def opened(folder: Path, base: SortedMatrix) -> Counter[tuple[int, ...]]:
    """The items that are there after a crash that left a folder."""
    if (folder / "base").exists():
        live = LiveSids.load(folder / "base", log=folder / "log", **OPTIONS)
    else:
        live = LiveSids(base, log=folder / "log", **OPTIONS)
    found = counts_of(live)
    assert live.publish().num_sequences == len(found)
    live.close()
    return found


@pytest.mark.skipif(update_log.fcntl is None, reason="there are no such locks here")
def test_one_live_set_at_a_time_writes_to_a_log(tmp_path):
    base, path = mw.sort_sids([[1, 1]], 4), tmp_path / "log"
    live = LiveSids(base, log=path)
    with pytest.raises(TableFileError, match="another live set writes to") as found:
        LiveSids(base, log=path)
    assert "close()" in str(found.value.remedies[0])
    other = "import sys, maskwright as mw\nfrom maskwright.table.live_sids import LiveSids\n"
    other += "LiveSids(mw.sort_sids([[1, 1]], 4), log=sys.argv[1])"
    process = subprocess.run([sys.executable, "-c", other, str(path)], capture_output=True, text=True, check=False)
    assert "another live set writes to" in process.stderr
    live.insert([[2, 2]])
    live.compact(save=tmp_path / "base")  # the lock goes over to the new file
    with pytest.raises(TableFileError, match="another live set writes to"):
        LiveSids.load(tmp_path / "base", log=path)
    live.close()
    for change in (live.insert, live.delete):
        with pytest.raises(ValueError, match="was closed"):
            change([[3, 3]])
    with pytest.raises(ValueError, match="was closed"):
        live.compact(save=tmp_path / "base")
    assert LiveSids.load(tmp_path / "base", log=path).publish().num_sequences == 2


def test_a_crash_while_a_base_is_saved_and_its_log_begins_anew_loses_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "live"
    folder.mkdir()
    c = Changing("few tokens", 21, log=folder / "log", **OPTIONS)
    crashes: list[tuple[Path, Counter[tuple[int, ...]]]] = []

    def crash(*_: Any) -> None:
        """What a crash at this point leaves, and what it must not lose."""
        copy = tmp_path / f"crash {len(crashes)}"
        shutil.copytree(folder, copy)
        crashes.append((copy, Counter(c.items)))

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

    write, save = update_log.write, file.save_file
    joined = live_sids.join

    def meanwhile(*given: Any) -> Any:
        found = joined(*given)
        c.update()  # while base and delta are joined
        return found

    def saved(*given: Any) -> Any:
        c.update()  # while the base is written
        return save(*given)

    sizes = []
    for step in range(4):
        for _ in range(3):
            c.update()
        with monkeypatch.context() as patched:
            patched.setattr(live_sids, "join", meanwhile)
            patched.setattr(file, "save_file", around(saved))
            for module in (file.os, update_log.os):
                patched.setattr(module, "replace", around(os.replace))
            if step % 2 == 0:
                patched.setattr(update_log, "write", torn)
            before = len(crashes)
            c.live.compact(save=folder / "base")
            assert len(crashes) >= before + 6
        sizes.append((folder / "log").stat().st_size)
        assert sizes[-1] < 700  # the updates that came meanwhile, and no others
        assert counts_of(c.live) == c.items
        c.update()
        crash()
    for copy, items in crashes:
        assert opened(copy, c.base) == items
        again = LiveSids.load(copy / "base", log=copy / "log", **OPTIONS) if (copy / "base").exists() else None
        if again is not None:  # what was recovered can be written to, saved and opened again
            again.insert([[0, 0, 0, 0]])
            again.compact(save=copy / "base")
            again.close()
            assert opened(copy, c.base) == items + Counter([(0, 0, 0, 0)])


def test_every_byte_of_a_log_that_began_anew_may_be_the_last(tmp_path):
    c = Changing("few tokens", 22, log=tmp_path / "log", **OPTIONS)
    c.update()
    c.live.compact(save=tmp_path / "base")
    states = [((tmp_path / "log").stat().st_size, Counter(c.items))]
    for _ in range(2):
        add = c.draw(2)
        c.live.insert(add)
        c.items.update(map(tuple, add.tolist()))
        states.append(((tmp_path / "log").stat().st_size, Counter(c.items)))
    c.live.close()
    data = (tmp_path / "log").read_bytes()
    for size in range(len(data) + 1):
        (tmp_path / "log").write_bytes(data[:size])
        wanted = [items for end, items in states if end <= size] or [states[0][1]]
        assert opened(tmp_path, c.base) == wanted[-1]


def test_a_base_that_cannot_be_saved_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    c = Changing("few tokens", 23, log=tmp_path / "log", **OPTIONS)
    c.update()
    before = (tmp_path / "log").read_bytes()
    with pytest.raises(FileNotFoundError, match="no folder"):
        c.live.compact(save=tmp_path / "nowhere" / "base")

    def full(*_: Any) -> None:
        raise OSError(28, "no space left on device")

    for where, name in ((file, "save_file"), (update_log, "write")):
        with monkeypatch.context() as patched:
            patched.setattr(where, name, full)
            with pytest.raises(OSError, match="no space left"):
                c.live.compact(save=tmp_path / "base")
        assert (tmp_path / "log").read_bytes() == before
        assert not list(tmp_path.glob("*.part"))
        assert counts_of(c.live) == c.items
    c.update()
    c.live.close()
    assert opened(tmp_path, c.base) == c.items  # of the base that was saved and the log that was not begun anew


def test_what_is_no_base_or_no_log_of_it_is_refused(tmp_path):
    base = mw.sort_sids([[1, 1], [1, 1], [2, 2]], 4)
    live = LiveSids(base, log=tmp_path / "log")
    live.insert([[3, 3]])
    shutil.copy(tmp_path / "log", tmp_path / "old")
    live.compact(save=tmp_path / "base")
    live.close()
    again = LiveSids.load(tmp_path / "base", log=tmp_path / "old")  # as a crash would have left it
    assert again.base.num_items == 4
    assert again.publish().num_sequences == 3
    again.close()
    short = (tmp_path / "old").read_bytes()[:-1]
    (tmp_path / "old").write_bytes(short)
    with pytest.raises(TableFileError, match="less in it than the base"):
        LiveSids.load(tmp_path / "base", log=tmp_path / "old")
    with pytest.raises(TableFileError, match="a log of another base"):
        LiveSids(base, log=tmp_path / "log")
    damaged = bytearray((tmp_path / "base").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "base").write_bytes(damaged)
    with pytest.raises(TableFileError, match="was changed after it was written"):
        LiveSids.load(tmp_path / "base")
    with pytest.raises(FileNotFoundError):
        LiveSids.load(tmp_path / "none")
    empty = LiveSids(mw.sort_sids(np.array([[1, 1]]), 4))
    empty.delete([[1, 1]])
    with pytest.raises(mw.errors.ConstraintError, match="the set is empty"):
        empty.compact(save=tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
