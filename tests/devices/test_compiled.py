"""Every step compiles for every device, and does no more there than the kept record says.

`make test-devices` runs this, in an environment that has the compilers; no device is needed. The record is
`benchmarks/results/device-compiled.json`, which `make bench-devices` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.harness import RESULTS
from benchmarks.suites.device_compiled.__main__ import NAME, versions
from benchmarks.suites.device_compiled.compiler import Compiler
from benchmarks.suites.device_compiled.steps import STEPS
from benchmarks.suites.device_compiled.targets import TARGETS

RATCHET = ("operations", "cycles", "gathers", "sorts", "scatters", "loops", "table_copy_bytes", "moved_bytes",
           "temporary_bytes")  # fmt: skip
"""Counts that may only fall."""

SLACK = 0.9  # of a kept count: what falls below makes the record worthless
PAIRS = [(step, target) for step in STEPS for target in TARGETS]
KEPT = json.loads((RESULTS / f"{NAME}.json").read_text())["results"]


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with Compiler() as made:
        yield made


def test_the_record_is_of_these_compilers_and_these_steps():
    assert KEPT["versions"] == versions()
    assert {(step, target) for step, each in KEPT["records"].items() for target in each} == set(PAIRS)


@pytest.mark.parametrize(("step", "target"), PAIRS, ids=lambda each: each)
def test_a_step_compiles_and_does_no_more_than_is_kept(compiler, step, target):
    kept, found = KEPT["records"][step][target], compiler.compile(step, target)
    if "over" in kept:  # it took too long when the record was made, and may still
        assert "over" in found, "it compiles in time now: make bench-devices"
        return
    assert "over" not in found, f"it takes over {found['over']:.0f} s to compile, {kept['seconds']} are kept"
    worse, better = changes(kept, found)
    assert not worse, f"more than is kept: {worse}"
    assert not better, f"less than is kept, make bench-devices: {better}"


def changes(kept: dict[str, Any], found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what became more, and what became less by over 10 %: what is kept and what was found, by count."""
    pairs = {what: (kept[what] or 0, found[what] or 0) for what in RATCHET}
    worse = {what: (old, new) for what, (old, new) in pairs.items() if new > old}
    return worse, {what: (old, new) for what, (old, new) in pairs.items() if new < SLACK * old}
