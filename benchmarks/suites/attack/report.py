"""The report of the suite."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from ...harness import RESULTS, Bar, grid, write_report
from . import __doc__ as about

_AFTER = 0.25  # of the requests, before memory counts: until cache, arena and allocator are full
_MOST, _FLAT = 2.0, 1.05


def report() -> None:
    """Write `results/attack.md` of the parts that were measured."""
    bars: list[Bar] = []
    parts: list[str] = []
    machine: dict[str, Any] = {}
    for part in ("latency", "memory"):
        path = RESULTS / f"attack-{part}.json"
        if not path.exists():
            continue
        kept = json.loads(path.read_text())
        machine = kept["machine"]
        made, lines = (_latency if part == "latency" else _memory)(kept["results"])
        bars += made
        parts += lines
    if machine:
        results = {"machine": machine, "versions": {"maskwright": version("maskwright")}}
        write_report(RESULTS / "attack.md", "A server under attack", about.split("\n\n")[0], results, bars, parts)


def _latency(records: list[dict[str, Any]]) -> tuple[list[Bar], list[str]]:
    *times, last = records
    found = {(each["constraint"], each["attack"]): each for each in times}
    bars: list[Bar] = []
    for kind in ("known", "new"):
        before, after = (found[kind, when]["latency_ms"]["p99"] for when in ("without", "with"))
        bars.append((
            f"99th percentile of well-behaved clients under attack, constraints that are {kind}",
            f"{_MOST:g} times that without", f"{after:,.0f} ms, {after / before:.2f} times", after <= _MOST * before,
        ))  # fmt: skip
    failed = sum(last["failed"].values())
    bars.append(("requests of theirs that failed", "0", str(failed), not failed))
    alive = last["health"] == 200 and last["answers"] == 200
    bars.append(("the server afterwards", "alive", "alive" if alive else "not well", alive))
    rows = [
        [
            each["constraint"], each["attack"], each["requests"],
            *(float(each["latency_ms"][name]) for name in ("p50", "p99", "worst")),
        ]
        for each in times
    ]  # fmt: skip
    seen = [[name, count] for name, count in last["seen"].items()]
    return bars, [
        *grid(("constraint", "attack", "requests", "p50 ms", "p99 ms", "worst ms"), rows),
        *grid(("what became of attackers", "times"), seen),
    ]


def _memory(records: list[dict[str, Any]]) -> tuple[list[Bar], list[str]]:
    later = records[int(_AFTER * len(records)) :]
    held = [each["server_bytes"] + each["process_bytes"] for each in later]
    flat = max(held) <= _FLAT * held[0]
    statuses = {status for each in records for status in each["statuses"]}
    bars: list[Bar] = [
        (
            f"memory of the server and its processes, {records[-1]['requests']:,} requests, after the first quarter",
            "flat within 5 %", f"{held[0] / 1e6:,.0f} MB, then {max(held) / 1e6:,.0f} MB at most", flat,
        ),
        ("requests that failed", "0", "0" if statuses == {"200"} else ", ".join(sorted(statuses)), statuses == {"200"}),
    ]  # fmt: skip
    rows = [[each["requests"], each["server_bytes"] / 1e6, each["process_bytes"] / 1e6] for each in records]
    return bars, grid(("requests", "server MB", "processes MB"), rows)
