"""Long runs of a live set: updates, snapshots, filters, compaction, saved bases and searches, against Python sets."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime.decode import beam_search, sample_sequences
from maskwright.table.live_sids import LiveSids
from maskwright.table.snapshot import LiveFilter
from tests.marks import marked
from tests.support.backends import backend, out

V, L = 7, 3
OPTIONS: dict[str, Any] = {"capacity": 60, "widths": (60, 40, 20)}
LONG = [("numpy", 10_000), ("torch", 2000)]
Row = tuple[int, ...]


class Living:
    """A live set, what was published of it, searches that go on, and sets of Python that say what is right."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name, (self.ops, self.into) = name, backend(name)
        self.rng, self.folder = np.random.default_rng(seed), folder
        drawn = self.rng.integers(0, V, (40, L))
        self.items: Counter[Row] = Counter(map(tuple, drawn.tolist()))
        self.live = LiveSids(mw.sort_sids(drawn, V), log=folder / "log", **OPTIONS)
        self.publish()
        self.dev = self.ops.to_device(self.snapshot)
        self.kept: list[tuple[LiveFilter, set[Row]]] = []
        self.done: Counter[str] = Counter()

    def publish(self) -> None:
        self.snapshot, self.there = self.live.publish(), set(self.items)

    def insert(self) -> None:
        rows = self.rng.integers(0, V, (int(self.rng.integers(1, 6)), L))
        with suppress(mw.errors.ConstraintError):
            self.live.insert(rows)
            self.items.update(map(tuple, rows.tolist()))
            return
        self.done["full"] += 1
        self.compact()
        self.live.insert(rows)
        self.items.update(map(tuple, rows.tolist()))

    def delete(self) -> None:
        known = sorted(self.items.elements())
        gone = [known[i] for i in self.rng.permutation(len(known))[: self.rng.integers(1, 6)]]
        self.live.delete(np.array(gone, np.int64).reshape(-1, L))
        self.items = self.items - Counter(gone)

    def compact(self) -> None:
        self.live.compact()

    def save(self) -> None:
        if self.items:
            self.live.compact(save=self.folder / "base")
        self.live.close()
        if (self.folder / "base").exists():
            self.live = LiveSids.load(self.folder / "base", log=self.folder / "log", **OPTIONS)
        else:
            self.live = LiveSids(self.live.base, log=self.folder / "log", **OPTIONS)
        self.refresh()

    def refresh(self) -> None:
        """Publish, and take the filters over, with what came if it is even."""
        before = self.there
        self.publish()
        self.dev = self.ops.with_snapshot(self.dev, self.snapshot)
        came = {row for row in self.there - before if sum(row) % 2 == 0}
        self.kept = [
            (kept.at(self.snapshot, new=lambda rows: rows.sum(axis=1) % 2 == 0), (rows & self.there) | came)
            for kept, rows in self.kept
        ]

    def filter(self) -> None:
        keep = self.rng.random(self.snapshot.num_sequences) < self.rng.choice([0.0, 0.1, 0.5, 1.0])
        self.kept.append((self.snapshot.filter(keep), set(map(tuple, self.snapshot.sids[keep].tolist()))))
        if len(self.kept) > 2:
            (a, in_a), (b, in_b), _ = self.kept
            joined = [(a & b, in_a & in_b), (a | b, in_a | in_b), (~a, self.there - in_a)]
            self.kept = [joined[int(self.rng.integers(3))], self.kept[2]]

    def search(self) -> None:
        """Search under the filters, while the set changes: all that is kept comes back, and nothing else."""
        dev = self.ops.with_filters(self.dev, [kept for kept, _ in self.kept]) if self.kept else self.dev
        wanted = [rows for _, rows in self.kept] or [self.there]
        snapshot, logits = self.snapshot, self.rng.standard_normal((L, V)).astype(np.float32)

        def step(tokens: Any, cache: Any, t: int) -> Any:
            (self.insert, self.delete, self.compact)[int(self.rng.integers(3))]()
            return self.into(logits[np.full(len(tokens), t)]), cache

        found = beam_search(step, None, dev, ops=self.ops, batch=len(wanted), beams=V**L, max_tokens=L)
        for row, rows in enumerate(wanted):
            tokens = out(found.tokens)[row][out(found.valid)[row]]
            assert sorted(map(tuple, tokens.tolist())) == sorted(rows)
            ended = snapshot.sequences(out(found.states)[row][out(found.valid)[row]])
            np.testing.assert_array_equal(ended, tokens)
            scores = out(found.scores)[row][: len(rows)]
            assert (scores[1:] <= scores[:-1] + 1e-5).all()

    def sample(self) -> None:
        """Draw under the filters: all that is drawn is kept; and matchers allow it."""
        dev = self.ops.with_filters(self.dev, [kept for kept, _ in self.kept]) if self.kept else self.dev
        wanted: list[tuple[Any, set[Row]]] = list(self.kept) or [(self.snapshot, self.there)]
        random: Any = self.rng
        if self.name == "torch":
            import torch

            random = torch.Generator().manual_seed(int(self.rng.integers(1 << 30)))

        def step(tokens: Any, cache: Any, t: int) -> Any:
            return self.into(np.zeros((len(tokens), V), np.float32)), cache

        found = sample_sequences(step, None, dev, random, ops=self.ops, batch=len(wanted), samples=4, max_tokens=L)
        for row, (constraint, rows) in enumerate(wanted):
            assert out(found.valid)[row].all() == bool(rows)
            if rows:
                assert set(map(tuple, out(found.tokens)[row].tolist())) <= rows
                assert mw.Matcher(constraint).accepts(out(found.tokens)[row][0].tolist())

    def run(self, steps: int) -> None:
        weights = {
            "insert": 6,
            "delete": 5,
            "compact": 1,
            "save": 0.5,
            "refresh": 4,
            "filter": 3,
            "search": 3,
            "sample": 1,
        }
        share = np.array(list(weights.values())) / sum(weights.values())
        for _ in range(steps):
            name = str(self.rng.choice(list(weights), p=share))
            getattr(self, name)()
            self.done[name] += 1
            assert self.snapshot.num_sequences == len(self.there)
        self.live.close()
        assert set(weights) <= set(self.done)


@pytest.mark.parametrize(
    ("name", "steps"),
    marked([("numpy", 200), ("torch", 100), *LONG], slow=LONG),
)
def test_whatever_happens_in_between_searches_return_what_is_live_and_kept(name, steps, tmp_path):
    Living(name, tmp_path, steps).run(steps)
