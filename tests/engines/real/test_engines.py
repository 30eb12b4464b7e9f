"""The real engines with a tiny model of random weights: `make test-engines`, in an environment that has them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import maskwright as mw
from benchmarks.suites.engines.tiny import ROWS, schemas
from tests.engines.real import living

HERE = Path(__file__).parent


def run(program: str, *given: Path, options: str = "", **environment: str) -> dict:
    """Run a program beside this file with an engine of its own; return what it wrote into the last path given."""
    paths = [str(HERE.parent / "stand_ins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    known = {
        **os.environ, "VLLM_PLUGINS": "maskwright", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONPATH": os.pathsep.join(paths), **environment,
    }  # fmt: skip
    known.pop("MASKWRIGHT_ENGINE_OPTIONS", None)
    known |= {"MASKWRIGHT_ENGINE_OPTIONS": options} if options else {}
    command = [sys.executable, str(HERE / program), *map(str, given)]
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(given[-1].read_text())


@pytest.mark.parametrize(("engine", "speculative"), [("vllm", ""), ("vllm", "1"), ("sglang", "")])
def test_every_answer_ends_and_keeps_to_its_schema_and_faults_are_the_clients(engine, speculative, model, tmp_path):
    pytest.importorskip(engine)
    asked, out = tmp_path / "schemas.json", tmp_path / "out.json"
    asked.write_text(json.dumps(schemas()))
    told = run(f"run_{engine}.py", model, asked, out, SPECULATIVE=speculative)
    assert len(told["answers"]) == 2 * ROWS
    for (text, reason), schema in zip(told["answers"], schemas() * 2, strict=True):
        assert reason == "stop"
        jsonschema.validate(json.loads(text), schema)
    assert {name: answer[1] for name, answer in told["others"].items()} == dict.fromkeys(told["others"], "stop")
    assert told["others"]["regex"][0][4] == "-"
    assert "/properties/a/type" in told["error"]
    if speculative:
        assert sum(kept for _, kept in told["drafts"]) > 100
        assert any(kept < proposed for proposed, kept in told["drafts"])


def test_what_sglang_writes_after_a_thought_keeps_to_its_schema(model, tmp_path):
    pytest.importorskip("sglang")
    asked, out = tmp_path / "schemas.json", tmp_path / "out.json"
    asked.write_text(json.dumps(schemas()))
    told = run("run_sglang.py", model, asked, out, THINKS="1", SGLANG_MAX_THINK_TOKENS="8")
    closed = 0
    for (text, reason), schema in zip(told["answers"], schemas() * 2, strict=True):
        thought, end, answer = text.rpartition("</think>")
        assert reason == "stop"
        if end:  # a random model may also end its text within the thought, which is free
            assert thought
            jsonschema.validate(json.loads(answer), schema)
            closed += 1
    assert closed > 1.8 * ROWS


def test_vllm_keeps_to_catalogues_beside_other_constraints_and_searches_them_exactly(model, tmp_path):
    pytest.importorskip("vllm")
    asked, out = tmp_path / "schemas.json", tmp_path / "out.json"
    asked.write_text(json.dumps(schemas()))
    rng = np.random.default_rng(0)
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    sids, keep = rng.integers(0, 200, (5000, 3)) + np.array([300, 500, 700]), rng.random(5000) < 0.2
    mw.Catalogue.of(sids, np.arange(5000), vocab_size=size, kind="matrix").save(tmp_path / "items")
    mw.compile_sids(sids, vocab_size=size).save(tmp_path / "table")
    np.save(tmp_path / "keep.npy", keep)
    options = {
        "catalogues": {name: str(tmp_path / name) for name in ("items", "table")},
        "filters": {"kept": {"catalogue": "items", "keep": str(tmp_path / "keep.npy")}},
    }
    told = run("run_vllm_catalogues.py", model, asked, out, options=json.dumps(options))
    there = set(map(tuple, sids.tolist()))
    kept = set(map(tuple, sids[keep & (np.arange(5000) > 2)].tolist()))
    assert told["cancelled"] > 3
    assert sum(name.startswith(("sid", "filter", "table")) for name in told["preempted"]) > 3
    assert len(told["answers"]) + told["cancelled"] == 96
    for name, (tokens, reason) in told["answers"].items():
        (kind, number), text = name.split(), told["texts"][name]
        if kind == "json":
            jsonschema.validate(json.loads(text), schemas()[int(number) % 64])
        elif kind == "regex":
            assert re.fullmatch("[0-9]{4}-[0-9]{2}", text)
        elif kind != "free":
            assert tuple(tokens[:3]) in (kept if kind == "filter" else there)
            assert tokens[3:] == ([1] if reason == "stop" else [])
    assert told["left"] == 0
    assert "names 'no'" in told["errors"]["name"]
    assert "takes, 3" in told["errors"]["length"]
    assert told["empty"] == [1]
    for name, (distinct, by_rank, by_sequence) in told["beams"].items():
        assert distinct == int(name.split()[0])
        assert max(by_rank, by_sequence) < 1e-5  # from the exact search, and from the model on each sequence


def test_sglang_searches_catalogues_exactly_beside_other_requests(model, tmp_path):
    pytest.importorskip("sglang")
    rng = np.random.default_rng(0)
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    sids, keep = rng.integers(0, 200, (100_000, 4)) + np.array([200, 400, 600, 800]), rng.random(100_000) < 0.1
    mw.Catalogue.of(sids, np.arange(len(sids)), vocab_size=size, kind="matrix").save(tmp_path / "items")
    mw.compile_sids(sids, vocab_size=size).save(tmp_path / "table")
    np.save(tmp_path / "keep.npy", keep)
    options = {
        "catalogues": {name: str(tmp_path / name) for name in ("items", "table")},
        "filters": {"kept": {"catalogue": "items", "keep": str(tmp_path / "keep.npy")}},
    }
    told = run("run_sglang_catalogues.py", model, tmp_path / "out.json", options=json.dumps(options))
    there = set(map(tuple, sids.tolist()))
    kept = set(map(tuple, sids[keep & (np.arange(len(sids)) > 2)].tolist()))
    assert len(told["beams"]) == 12
    for name, (tokens, exact, worst) in told["beams"].items():
        kind, width, _ = name.split()
        assert len(set(map(tuple, tokens))) == len(tokens) == int(width)
        assert set(map(tuple, tokens)) <= (kept if kind == "kept" else there)
        if kind != "kept":
            assert set(map(tuple, tokens)) == set(map(tuple, exact))
            assert worst < 1e-5
    assert "names 'no'" in told["errors"]["name"]
    assert "beam_width of 2 or more" in told["errors"]["beams"]
    assert "takes 4" in told["errors"]["length"]
    assert told["free"] == 4
    assert re.fullmatch("[0-9]{3}", told["text"])


@pytest.mark.parametrize("processes", [1, 2])
def test_items_and_filters_change_while_vllm_serves(model, tmp_path, processes):
    """Two: one admits requests, another has the engine. Both follow the log."""
    pytest.importorskip("vllm")
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    options = json.dumps(living.begin(tmp_path, size))
    told = run(
        "run_vllm_living.py", model, tmp_path, tmp_path / "out.json", options=options,
        VLLM_ENABLE_V1_MULTIPROCESSING=str(processes - 1),
    )  # fmt: skip
    judge = living.Judge((tmp_path / "journal").read_text().splitlines())
    assert told["writer"] == 0
    assert judge.states > 100
    assert told["preempted"] > 3 or processes == 2
    assert len(told["answers"]) > 200
    for tokens, reason, *rest in told["answers"]:
        assert tokens[3:] == ([1] if reason == "stop" else [])
        assert judge.is_right([tokens[:3]], *rest)


def test_items_and_filters_change_while_sglang_searches(model, tmp_path):
    pytest.importorskip("sglang")
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    options = json.dumps(living.begin(tmp_path, size))
    told = run("run_sglang_living.py", model, tmp_path, tmp_path / "out.json", options=options)
    judge = living.Judge((tmp_path / "journal").read_text().splitlines())
    assert told["writer"] == 0
    assert judge.states > 100
    assert len(told["answers"]) > 50
    for beams, *rest in told["answers"]:
        assert len(set(map(tuple, beams))) == told["width"]
        assert judge.is_right(beams, *rest)
