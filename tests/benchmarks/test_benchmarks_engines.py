"""The suite inside serving engines: its inputs, and how its bars follow from what it measures."""

from __future__ import annotations

import json

import jsonschema
import pytest

from benchmarks import gate
from benchmarks.suites.engines.__main__ import ENGINES, bars, cases, report
from benchmarks.suites.engines.tiny import ROWS


def record(us: float, finished: int, difference: float) -> dict:
    """Return a record in which ours takes so many microseconds, and peers a hundred."""
    each = lambda value: {"mean": value, "p50": value, "p99": 5 * value}  # noqa: E731
    classes = {name: dict.fromkeys(("first", "later", "accept"), each(us if name == "maskwright" else 100.0))
               for name in ("maskwright", "guidance", "xgrammar")}  # fmt: skip
    batch = {name: dict.fromkeys(("clock_ms", "processor_ms"), each(us if name == "maskwright" else 100.0))
             for name in ("maskwright", "xgrammar")}  # fmt: skip
    answers = {"answers": 128, "finished": finished, "finished but invalid": 128 - finished}
    through = {
        engine: {name: {**answers, "start_s": 20.0 + us if name == "maskwright" else 20.0} for name in ENGINES[engine]}
        for engine in ENGINES
    }
    beams = {"beams": 70, "exist": 70, "in the exact search": finished - 58, "largest difference": difference}
    return {
        "data": "its own", "versions": {"vllm": "0"}, "machine": {"processor": "a", "cores": 2},
        "rows": {"cases": 64, "tokens": 9, "refused": dict.fromkeys(classes, 0), "rows": classes, "batch": batch},
        **through, "beams": {"items, 70 beams, prompt 0": beams},
    }  # fmt: skip


def test_bars_are_held_where_all_is_quick_and_whole_and_missed_where_it_is_not(tmp_path):
    good, bad = record(2.0, 128, 1e-6), record(90.0, 127, 1e-3)
    assert all(held for *_, held in bars(good))
    assert [what for what, *_, held in bars(bad) if held] == ["beams of SGLang that exist"]
    assert bars({"versions": {}}) == []
    report(good, tmp_path)
    assert "| items, 70 beams, prompt 0 | 70 | 70 | 70 | 1e-06 |" in (tmp_path / "engines.md").read_text()


def test_the_gate_compares_ours_with_each_peer():
    found = gate.ratios({"engines": record(2.0, 128, 1e-6)})
    assert found["engines: fill in vLLM's classes, p99, over xgrammar"] == pytest.approx(0.02)
    assert found["engines: 256 rows on two threads, over xgrammar"] == pytest.approx(0.02)
    assert len(found) == 7


def test_each_schema_has_an_instance_of_it(tmp_path):
    made = cases(None)
    assert len(made) == ROWS
    for schema, text in made:
        jsonschema.validate(json.loads(text), json.loads(schema))
    line = {"id": "a", "group": "g", "schema": {"type": "integer"}, "tests": [{"valid": False, "data": "x"}]}
    more = {**line, "tests": [{"valid": False, "data": "x"}, {"valid": True, "data": 7}]}
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, (line, more))))
    assert cases(tmp_path / "data.jsonl") == [('{"type": "integer"}', "7")]
