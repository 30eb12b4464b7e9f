"""A line for each step: what must move, what compiled code moves, the least time that takes, and what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...harness import RESULTS, Spread, grid

BANDWIDTH = {"H100": 3.35e12, "H200": 4.8e12, "TPU v5 lite": 0.82e12, "TPU v6 lite": 1.64e12}
"""Bytes a second of the large memory of devices, by a part of their names."""

STATIC = "dense+CSR as published: 33 us a step for the constraint alone, V = 2,048, L = 8, B = 2, M = 70, on a TPU v6e"

HEADINGS = ["step", "method", "must move, MB", "compiled code moves, MB", "least by what must move, us", "measured, us"]


@dataclass(frozen=True)
class Timed:
    """A step to time on a device."""

    step: str
    method: str
    run: Callable[[], Any]
    must_move: int  # bytes that no code can avoid, all parts together
    compiled: str = ""  # the name of this very run in the record of compiled code; empty: not recorded
    parts: int = 1  # steps that one run makes


def compiled_bytes() -> dict[str, int]:
    """Return the bytes that compiled code moves on an H100, by step, as recorded; none without a record."""
    path = RESULTS / "device-compiled.json"
    if not path.exists():
        return {}
    records = json.loads(path.read_text())["results"]["records"]
    return {
        step: each["h100"]["moved_bytes"] for step, each in records.items() if "moved_bytes" in each.get("h100", {})
    }


def bandwidth_of(name: str) -> float | None:
    """Return the bytes a second of a device, None of one that is not known."""
    return next((most for part, most in BANDWIDTH.items() if part in name), None)


def lines(device: str, measured: list[tuple[Timed, Spread]]) -> Iterator[str]:
    """Yield the table of steps, given the seconds of their runs."""
    moves, most = compiled_bytes(), bandwidth_of(device)
    yield f"*Measured* on {device}. *Compiled* for an H100, by XLA, so for JAX alone. {STATIC}."
    yield ""
    rows = [
        [
            timed.step,
            timed.method,
            timed.must_move / timed.parts / 1e6,
            moves[timed.compiled] / timed.parts / 1e6 if timed.compiled in moves else None,
            None if most is None else 1e6 * timed.must_move / timed.parts / most,
            1e6 * seconds.median / timed.parts,
        ]
        for timed, seconds in measured
    ]
    yield from grid(HEADINGS, rows)
