"""A catalogue that a process changes while engines serve it, and which answers were right at which time.

As a program: change the catalogue in a folder for some seconds, and write down when each change began and when it was
acknowledged. Clocks are `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import maskwright as mw

COUNT, LENGTH, CODES, OFFSETS = 5000, 3, 200, (300, 500, 700)
Sid = tuple[int, ...]


def draw(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Return semantic IDs as tokens."""
    return (rng.integers(0, CODES, (count, LENGTH)) + np.array(OFFSETS)).tolist()


def begin(folder: Path, vocab_size: int) -> dict[str, Any]:
    """Write a catalogue, its log and a filter; return options of an engine that serve them."""
    sids = draw(np.random.default_rng(0), COUNT)
    mw.Catalogue.of(sids, range(COUNT), vocab_size=vocab_size, kind="matrix").save(folder / "items")
    mw.Catalogue.open(folder / "items", log=folder / "log").close()
    np.save(folder / "keep.npy", np.arange(COUNT) % 5 == 0)
    return {
        "catalogues": {"items": {"file": str(folder / "items"), "log": str(folder / "log")}},
        "filters": {"kept": {"catalogue": "items", "keep": str(folder / "keep.npy")}},
    }


def change(folder: Path, seconds: float) -> None:
    """Insert and delete items and let the filter keep others, some fifty times a second."""
    rng, shop = np.random.default_rng(1), mw.Catalogue.open(folder / "items", log=folder / "log")
    there, rows, until = list(range(COUNT)), COUNT, time.monotonic() + seconds
    with (folder / "journal").open("w") as journal:

        def do(call: Callable[[], None], **told: Any) -> None:
            began = time.monotonic()
            call()
            json.dump({"began": began, "acknowledged": time.monotonic(), **told}, journal)
            journal.write("\n")

        def replace(keep: np.ndarray) -> None:
            np.save(folder / "new.npy", keep)
            (folder / "new.npy").replace(folder / "keep.npy")

        while time.monotonic() < until:
            ids, sids = list(range(rows, rows + 50)), draw(rng, 50)
            do(lambda ids=ids, sids=sids: shop.insert(sids, ids), insert=dict(zip(ids, sids, strict=True)))
            rows += 50
            there += ids
            rng.shuffle(there)
            gone, there = there[:50], there[50:]
            do(lambda gone=gone: shop.delete(gone), delete=gone)
            keep = rng.random(rows) < 0.1
            do(lambda keep=keep: replace(keep), keep=np.flatnonzero(keep).tolist())
            if rng.random() < 0.03:
                shop.save(folder / "items")
            time.sleep(0.02)
    shop.close()


class Judge:
    """Which answers may be given: every item of a state of the catalogue that was there while a request ran.

    State 0 is that of `begin`, state k that after k changes of a journal.
    """

    def __init__(self, journal: Iterable[str]) -> None:
        self._began, self._over = [-math.inf], []  # when a state could first be seen, and when it no longer may be
        self._lives: dict[int, tuple[Sid, int, float]] = {}
        self._kept: list[set[int]] = []
        self._of: dict[Sid, list[int]] = {}
        sids, keep = draw(np.random.default_rng(0), COUNT), set(range(0, COUNT, 5))
        self._insert(zip(range(COUNT), sids, strict=True), 0)
        self._kept.append(keep)
        for state, change in enumerate(map(json.loads, journal), 1):
            self._began.append(change["began"])
            self._over.append(change["acknowledged"])
            self._insert(((int(item), sid) for item, sid in change.get("insert", {}).items()), state)
            for item in change.get("delete", []):
                sid, first, _ = self._lives[item]
                self._lives[item] = sid, first, state
            keep = set(change["keep"]) if "keep" in change else keep
            self._kept.append(keep)
        self._over.append(math.inf)

    def _insert(self, items: Iterable[tuple[int, list[int]]], state: int) -> None:
        for item, sid in items:
            self._lives[item] = tuple(sid), state, math.inf
            self._of.setdefault(tuple(sid), []).append(item)

    @property
    def states(self) -> int:
        """How many states there were."""
        return len(self._over)

    def is_right(self, sids: list[list[int]], sent: float, answered: float, filtered: bool, deny: list[int]) -> bool:
        """Return whether one state that was there from `sent` to `answered` has all semantic IDs of an answer."""
        return any(
            all(self._has(tuple(sid), state, filtered, deny) for sid in sids)
            for state, (began, over) in enumerate(zip(self._began, self._over, strict=True))
            if began <= answered and over >= sent
        )

    def _has(self, sid: Sid, state: int, filtered: bool, deny: list[int]) -> bool:
        return any(
            self._lives[item][1] <= state < self._lives[item][2]
            and item not in deny
            and (not filtered or item in self._kept[state])
            for item in self._of.get(sid, [])
        )


def asked(rng: np.random.Generator) -> tuple[dict[str, Any], bool, list[int]]:
    """Return the fields of a request, and whether it is filtered and which items it denies."""
    filtered, deny = bool(rng.random() < 0.5), rng.integers(0, COUNT, 20).tolist() if rng.random() < 0.3 else []
    fields: dict[str, Any] = {"maskwright_catalogue": "items"}
    if filtered:
        fields["maskwright_filter"] = "kept"
    if deny:
        fields["maskwright_deny"] = deny
    return fields, filtered, deny


if __name__ == "__main__":
    change(Path(sys.argv[1]), float(sys.argv[2]))
