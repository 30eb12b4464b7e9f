"""A line for each step: what must move, what compiled code moves, the least time that takes, and what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ...harness import RESULTS, Spread, grid

T = TypeVar("T")

BANDWIDTH = {"H100": 3.35e12, "H200": 4.8e12, "TPU v5 lite": 0.82e12, "TPU v6 lite": 1.64e12}
"""Bytes a second of the large memory of devices, by a part of their names."""

COMPILED = {"H100": "h100", "H200": "h100", "TPU v5 lite": "v5e", "TPU v6 lite": "v6e"}
"""Targets of the record of compiled code, by a part of a device's name."""

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


def compiled_bytes(device: str) -> dict[str, int]:
    """Return the bytes that XLA's code moves on a device, by step, as recorded; none for a device without a record."""
    path, target = RESULTS / "device-compiled.json", of_device(device, COMPILED)
    if target is None or not path.exists():
        return {}
    records = json.loads(path.read_text())["results"]["records"]
    return {step: each[target]["moved_bytes"] for step, each in records.items() if "moved_bytes" in each[target]}


def of_device(name: str, values: Mapping[str, T]) -> T | None:
    """Return the value of a device, None of one that is not known."""
    return next((value for part, value in values.items() if part in name), None)


def lines(device: str, measured: list[tuple[Timed, Spread]]) -> Iterator[str]:
    """Yield the table of steps, given the seconds of their runs."""
    moves, most = compiled_bytes(device), of_device(device, BANDWIDTH)
    yield f"*Measured* on {device}. What compiled code moves is XLA's, so JAX's alone, and not measured. {STATIC}."
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
