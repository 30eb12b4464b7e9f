"""The gate over benchmark records: it fails by name and number where a ratio is worse, and only there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gate


def record(ours: float = 2.0, theirs: float = 10.0, tail: float = 9.0) -> dict[str, Any]:
    """Return the results of JSON Schemas: microseconds of a mask, ours, a peer's, and our 99th percentile."""

    def row(engine: str, p50: float, p99: float) -> dict[str, Any]:
        times = {"p50": p50, "p99": p99}
        return {"engine": engine, "group": "all", "first_ms": times, "step_us": times}

    return {"summary": [row("maskwright", ours, tail), row("llguidance", theirs, 30.0)]}


def build(ours: float) -> list[dict[str, Any]]:
    """Return the results of building sets: seconds, ours and a baseline's."""
    alike = {"count": 1000, "input": "uint16"}
    return [{**alike, "method": "maskwright", "seconds": ours}, {**alike, "method": "dense+CSR", "seconds": 2.0}]


@pytest.fixture
def held(tmp_path, capsys):
    """A function that writes kept and new records and returns the gate's answer and what it printed."""

    def run(kept: dict[str, Any], new: dict[str, Any], *options: str) -> tuple[int, str]:
        for folder, records in (("kept", kept), ("new", new)):
            (tmp_path / folder).mkdir(exist_ok=True)
            for name, results in records.items():
                (tmp_path / folder / f"{name}.json").write_text(json.dumps({"machine": {}, "results": results}))
        code = gate.main([str(tmp_path / "new"), "--kept", str(tmp_path / "kept"), *options])
        return code, capsys.readouterr().out

    return run


def test_the_same_record_passes(held):
    code, said = held({"json_schema": record()}, {"json_schema": record()})
    assert (code, said) == (0, "4 ratios compared, 0 worse\n")


def test_a_slower_machine_changes_no_ratio(held):
    slower = {"summary": [
        {**row, **{key: {q: 7 * v for q, v in row[key].items()} for key in ("first_ms", "step_us")}}
        for row in record()["summary"]
    ]}  # fmt: skip
    assert held({"json_schema": record()}, {"json_schema": slower})[0] == 0


def test_a_worse_ratio_fails_with_its_name_and_both_numbers(held):
    code, said = held({"sid-build": build(1.0)}, {"sid-build": build(1.3)})
    assert code == 1
    line = "sid-build: build, 1,000 IDs of uint16, over dense+CSR: 0.65, +30% over the kept 0.5 (15% is tolerated)"
    assert line in said.splitlines()
    assert said.splitlines()[-1] == "1 ratios compared, 1 worse"


@pytest.mark.parametrize(("ours", "code"), [(1.14, 0), (1.16, 1), (0.5, 0)])
def test_a_median_may_be_worse_by_the_tolerance_and_no_more(held, ours, code):
    assert held({"sid-build": build(1.0)}, {"sid-build": build(ours)})[0] == code


def test_a_tail_may_vary_more_than_a_median(held):
    kept = {"json_schema": record()}
    assert held(kept, {"json_schema": record(tail=9.0 * 1.35)})[0] == 0
    code, said = held(kept, {"json_schema": record(tail=9.0 * 1.45)})
    assert code == 1
    assert "mask and advance, p99, over llguidance" in said
    assert "p50" not in said


def test_a_faster_peer_is_a_worse_ratio(held):
    assert held({"json_schema": record()}, {"json_schema": record(theirs=5.0)})[0] == 1


def test_a_tolerance_can_be_given(held):
    assert held({"sid-build": build(1.0)}, {"sid-build": build(1.3)}, "--median", "0.5")[0] == 0


def test_a_ratio_that_is_missing_fails_unless_the_record_is_partial(held):
    kept, new = {"json_schema": record()}, {"json_schema": {"summary": record()["summary"][:1]}}
    code, said = held(kept, new)
    assert code == 1
    assert "json_schema: mask and advance, p50, over llguidance: not measured, 0.2 is kept" in said
    assert held(kept, new, "--partial")[0] == 0


def test_records_of_other_suites_are_not_asked_for_and_new_ones_are_counted(held):
    code, said = held({"json_schema": record()}, {"sid-build": build(1.0)})
    assert (code, said) == (0, "0 ratios compared, 0 worse, 1 new\n")


def test_a_folder_without_records_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="has no records: give a folder with some of sid-build"):
        gate.in_folder(tmp_path)


@pytest.mark.parametrize("path", sorted(gate.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_kept_record_has_ratios_or_is_known_to_have_none(path: Path):
    without = {
        "attack-memory", "catalogue-build", "device-compiled", "sid-branches", "sid-huge", "sid-vocabulary",
        "self_draft-longer",
    }  # fmt: skip
    found = gate.ratios({path.stem: json.loads(path.read_text())["results"]})
    assert bool(found) != (path.stem in without)
    assert all(value > 0 for value in found.values())
