"""Cases of several kinds in turn, each in a process of its own, and what they have found."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from .cases import Case
from .checks import check_of, load_tables, warm
from .device_checks import load_backends
from .generation import cases
from .http_requests import load_model
from .workers import Outcome, Rehearsal, run

CHECKED = ("table_file", "matcher")
"""Kinds of cases for kernels that check bounds: all that they do is in kernels that are soon compiled."""
_REHEARSED = 100  # cases


class Campaign:
    """Tries cases until its time is over. Findings of one place are kept once, and counted."""

    def __init__(self, kinds: Sequence[str], seed: int, folder: Path | None, *, say: Callable[[str], None]) -> None:
        """folder: where findings are kept as JSON, None for nowhere. say: takes each finding as it comes."""
        self.findings: list[tuple[Case, Outcome]] = []
        self._sources = {kind: cases(kind, seed) for kind in kinds}
        self._folder, self._say = folder, say
        self._outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self._seconds: Counter[str] = Counter()
        prepare(kinds)

    def run(self, seconds: float) -> None:
        """Try cases for so long, as much time for one kind as for another."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            kind = min(self._sources, key=lambda each: self._seconds[each])
            began = time.monotonic()
            self.attempt(next(self._sources[kind]))
            self._seconds[kind] += time.monotonic() - began  # type: ignore[assignment]

    def attempt(self, case: Case) -> Outcome:
        """Try one case, and note how it ended."""
        outcome = run(check_of(case))
        self._outcomes[case.kind][outcome.found] += 1
        if outcome.is_wrong:
            place = case.kind, outcome.found, outcome.where
            self._seen[place] += 1
            if self._seen[place] == 1:
                self._keep(case, outcome)
        return outcome

    def _keep(self, case: Case, outcome: Outcome) -> None:
        self.findings.append((case, outcome))
        shown = case.attack or json.dumps(case.source)[:300]
        self._say(f"{case.kind} {outcome.found}: {outcome.where}\n  {shown}\n  {outcome.detail.strip()[-600:]}")
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = self._folder / f"{case.kind}-{len(self.findings)}.json"
            told = {"case": case.to_json(), "found": outcome.found, "where": outcome.where, "detail": outcome.detail}
            file.write_text(json.dumps(told, indent=2))

    @property
    def tried(self) -> Counter[str]:
        """How many cases of each kind were tried."""
        return Counter({kind: counter.total() for kind, counter in self._outcomes.items()})

    def counts(self) -> dict[str, Any]:
        """Return how many cases of each kind ended in which way, and how often each place was found."""
        found = {" ".join(place): count for place, count in self._seen.items()}
        return {"cases": {kind: dict(counter) for kind, counter in self._outcomes.items()}, "findings": found}


def prepare(kinds: Sequence[str]) -> None:
    """Load all that cases of some kinds need before workers are forked, so that they are charged for nothing else."""
    warm()
    if {"table_file", "device", "matcher"} & set(kinds):
        load_tables()
    if "device" in kinds:
        load_backends()
    if "http" in kinds:
        load_model()
    if os.environ.get("NUMBA_BOUNDSCHECK"):
        for kind in kinds:
            rehearse(kind)


def rehearse(kind: str) -> None:
    """Try cases in this process, so that their kernels are compiled. What they find is found again by workers."""
    for case in islice(cases(kind, 0), _REHEARSED):
        with contextlib.suppress(Exception):
            check_of(case)(Rehearsal())


def replay(file: Path) -> Outcome:
    """Return how a case that was kept ends now."""
    case = Case.from_json(json.loads(file.read_text())["case"])
    prepare([case.kind])
    return run(check_of(case))
