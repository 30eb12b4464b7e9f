"""The benchmark of JSON Schema: its schemas mean what they say, and it calls a wrong engine wrong."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
import time

import jsonschema
import numpy as np
import pytest

from benchmarks import peers
from benchmarks.harness import ROOT
from benchmarks.peers import workers
from benchmarks.suites.json_schema import cases, engines, measuring, report

TOY = peers.Tokenizer(
    [b"", b"", b"", *(bytes([i]) for i in range(256))], [0, 1, 2], 2, lambda text: [b + 3 for b in text.encode()]
)


class Naive:
    """An engine that takes any token, and lets a text end if it is one of the schema's."""

    def __init__(self, tokenizer):
        pass

    def compile(self, schema):
        if "refuse" in schema:
            raise ValueError("no")
        time.sleep(schema.get("seconds", 0))
        return schema

    def session(self, schema):
        text = bytearray()
        bits = np.zeros(9, np.uint32)

        def mask():
            bits[0] = 4 * (text.decode() in schema.get("takes", ()))

        def commit(token):
            text.append(token - 3)
            return text[-1] != ord("!")

        return peers.Session(mask, commit, lambda: bits, peers.no_fault)


@pytest.fixture
def naive(monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "naive", Naive)
    return measuring.Here("naive", TOY, 0.2)


def ask(naive, schema, valid=(), invalid=()):
    case = cases.case_of("g", "i", schema, list(valid), list(invalid))
    return naive.ask(case, [TOY.encode(test["data"]) for test in case["tests"]])


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case["id"])
def test_every_instance_is_valid_or_not_as_it_is_listed(case):
    validator = jsonschema.Draft202012Validator(case["schema"], format_checker=jsonschema.FormatChecker())
    for test in case["tests"]:
        assert validator.is_valid(test["data"]) == test["valid"], test["data"]


def test_an_engine_that_is_right_passes_and_each_step_is_timed(naive):
    found = ask(naive, {"takes": ["ab", "c"]}, ["ab", "c"], ["abc", "x!yz"])
    assert found["outcome"] == "pass"
    assert len(found["steps_ns"]) == 2 + 1 + 3 + 2  # none after a refusal
    assert found["first_s"] > 0


def test_a_wrong_accept_is_the_worst_outcome(naive):
    assert ask(naive, {"takes": ["ab"]}, ["ab", "c"])["outcome"] == "wrong refusal"
    found = ask(naive, {"takes": ["ab", "d"]}, ["ab", "c"], ["e", "d"])
    assert (found["outcome"], found["tests"]) == ("wrong accept", [3])


def test_refusing_a_schema_is_kept_apart_with_its_reason(naive):
    found = ask(naive, {"refuse": True}, ["a"])
    assert (found["outcome"], found["error"]) == ("refused", "ValueError: no")


def test_a_schema_that_takes_too_long_is_left(naive):
    assert ask(naive, {"seconds": 3})["outcome"] == "timeout"
    assert ask(naive, {"takes": ["a"]}, ["a"])["outcome"] == "pass"


def test_whole_tables_are_measured_apart_and_within_the_same_time(naive, monkeypatch):
    class Table:
        nbytes = 1000

        def __init__(self, schema):
            self.seconds = schema["seconds"]

        def to_table(self):
            time.sleep(self.seconds)
            return self

    monkeypatch.setattr(naive.bench.engine, "compile", Table)
    found = naive.whole(cases.case_of("g", "i", {"seconds": 0.01}, [], []))
    assert found["bytes"] == 1000
    assert found["whole_s"] >= 0.01
    assert naive.whole(cases.case_of("g", "i", {"seconds": 3}, [], [])) == {"outcome": "timeout"}
    assert naive.whole(cases.case_of("g", "i", {}, [], [])) == {"whole": "KeyError: 'seconds'"}


def test_what_is_refused_for_the_order_of_members_is_told_from_what_is_refused_in_any(monkeypatch):
    here = measuring.Here("maskwright", TOY, 30.0)
    inner = {"type": "object", "properties": {"c": {"type": "integer"}, "d": {"type": "boolean"}}}
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": inner}, "b": {"type": "string"}}}
    valid = [
        {"a": [{"c": 1, "d": True}], "b": "x", "e": None},
        {"b": "x", "a": [{"c": 1, "d": True}, {"e": "\u00e9", "d": True, "c": 1}]},
        {"e": [], "a": [{"d": True, "c": 1}], "b": "x"},
        {"b": 1, "a": [{"d": True, "c": 1}]},  # not valid in truth, and called so to be refused
        {"b": "x", "a": [{"d": True, "c": 1.5}]},
    ]
    found = here.ask(case := cases.case_of("g", "i", schema, valid, []), [TOY.encode(json.dumps(v)) for v in valid])
    assert (found["outcome"], found["tests"]) == ("wrong refusal", [1, 2, 3, 4])
    assert here.reordered(case, found["tests"]) == {"refused in order": [3, 4]}
    here.limit = 0.1
    monkeypatch.setattr(here.bench, "reordered", lambda *_: time.sleep(3))
    assert here.reordered(case, found["tests"]) == {"refused in order": [1, 2, 3, 4]}


def test_an_engine_apart_is_ended_after_its_time_and_started_anew(tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, sys, time\n"
        "print(json.dumps({'setup_s': 1}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    case, texts = json.loads(line)\n"
        "    if case['schema'] == 'loop':\n"
        "        while True: pass\n"
        "    if case['schema'] == 'die': sys.exit(1)\n"
        "    print(json.dumps({'outcome': 'pass', 'steps_ns': [1] * 200000, 'error': texts}), flush=True)\n"
    )
    monkeypatch.setattr(workers, "ROOT", tmp_path)
    monkeypatch.setattr(measuring, "WORKER", "worker")
    apart = measuring.Apart("naive", 0.3)
    outcomes = [apart.ask({"schema": what}, [[1]])["outcome"] for what in ("fine", "loop", "fine", "die", "fine")]
    apart.close()
    assert outcomes == ["pass", "timeout", "pass", "died", "pass"]


def test_a_limit_is_for_each_group(tmp_path):
    path = tmp_path / "cases.jsonl.xz"
    with lzma.open(path, "wt") as file:
        file.writelines(json.dumps(case) + "\n" for case in cases.CASES)
    assert cases.limited(cases.read(path), None) == cases.CASES
    groups = [case["group"] for case in cases.limited(cases.read(path), 1)]
    assert groups == ["records", "recursion", "logic", "scalars"]


def test_bars_are_held_against_all_schemas():
    def record(engine, outcome, first_s, ns):
        found = {"engine": engine, "id": "i", "group": "g", "outcome": outcome, "setup_s": 1.0, "steps_ns": ns}
        return {**found, "first_s": first_s, "bytes": 1000}

    ours = [record("maskwright", "pass", 0.002, [1000] * 100)] * 96 + [
        record("maskwright", "wrong accept", 6.0, [])
    ] * 4
    theirs = [record("llguidance", "pass", 0.001, [9000])] * 100
    rows = report.bars(report.summary([*ours, *theirs], ["maskwright", "llguidance"]))
    held = {what: held for what, _, _, held in rows}
    assert held == {
        "schemas passed": True,
        "invalid instances accepted": False,
        "valid instances refused as they are written": True,
        "valid instances refused with members in the schema's order": True,
        "schema to first mask, p50": True,
        "schema to first mask, p99": False,
        "schema to first mask, worst": False,
        "mask and advance, p50": True,
        "mask and advance, p99": True,
        "mask and advance, worst": True,
        "bytes of a table, shared part aside, p50": True,
    }
    assert [row[3] for row in report.bars(report.summary(ours, ["maskwright"]))][4:6] == [None, None]


@pytest.mark.slow
def test_it_runs_and_maskwright_passes(tmp_path):
    pytest.importorskip("mistral_common")
    command = [
        sys.executable,
        "-m",
        "benchmarks.suites.json_schema",
        "--quick",
        "--engines",
        "maskwright",
        "--out",
        tmp_path,
    ]
    subprocess.run([*command, "--out", tmp_path], check=True, capture_output=True, cwd=ROOT)
    results = json.loads((tmp_path / "json_schema.json").read_text())["results"]
    (total,) = (row for row in results["summary"] if row["group"] == "all")
    assert (total["schemas"], total["pass"]) == (4, 4)
    assert results["faults"] == []
    assert "| maskwright | 4 | 4 | 0 |" in (tmp_path / "json_schema.md").read_text()
    assert (tmp_path / "json_schema.png").read_bytes().startswith(b"\x89PNG")
