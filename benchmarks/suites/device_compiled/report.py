"""The report: what was compiled, a table for each device, and what the steps would take if memory alone counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...harness import Bar, grid
from .targets import TARGETS, Target

Records = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Records by step and target."""

ABOUT = (
    "Steps compiled for devices that were not there. Nothing was run: operations, gathers, copies and bytes are "
    "counted in the compiled code, cycles are XLA's estimates, which leave out gathers, copies and Pallas "
    "kernels. Bytes leave out the rows of a table that a Pallas kernel copies. B = 2, M = 70, "
    "V = 2,048, L = 8 for semantic IDs; 8 rows of 131,072 float32 logits for tables of text, but where it says 64."
)


def bars(records: Records) -> list[Bar]:
    """Return how many steps each compiler took."""
    found: list[Bar] = []
    for name in TARGETS:
        of = [each[name] for each in records.values() if name in each]
        done = sum("over" not in each for each in of)
        found.append((f"steps compiled for {name}", str(len(of)), str(done), done == len(of)))
    return found


def parts(records: Records) -> Iterator[str]:
    """Yield the lines of a table for each device."""
    headings = ["step", "operations", "cycles", "gathers", "sorts", "scatters", "copied of the table, MB",
                "moved, MB", "least time by memory, us", "temporaries, MB", "compiled in, s"]  # fmt: skip
    for name, target in TARGETS.items():
        yield f"## {name}"
        yield ""
        rows = [_row(step, each[name], target) for step, each in records.items() if name in each]
        yield from grid(headings, rows)


def _row(step: str, record: Mapping[str, Any], target: Target) -> list[Any]:
    if "over" in record:
        return [step, *[None] * 9, f"over {record['over']:.0f}"]
    return [
        step,
        *(record[name] for name in ("operations", "cycles", "gathers", "sorts", "scatters")),
        record["table_copy_bytes"] / 1e6,
        record["moved_bytes"] / 1e6,
        least_us(record, target),
        record["temporary_bytes"] / 1e6,
        record["seconds"],
    ]


def least_us(record: Mapping[str, Any], target: Target) -> float:
    """Return the microseconds that the bytes of a step need at the device's bandwidth: a bound, no estimate."""
    moved: int = record["moved_bytes"]
    return 1e6 * moved / target.bandwidth
