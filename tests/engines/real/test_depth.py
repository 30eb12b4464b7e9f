"""Constraints of any depth, sent to processes of real engines that are then asked something ordinary."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.strategies import deep_sources as deep

HERE = Path(__file__).parent
SLOW = 30.0  # seconds on a shared clock: of 10^6 levels the engine reads 20 MB before maskwright does
VLLM: list[tuple[str, str, deep.Source]] = [
    *(("json", name, deep.SCHEMAS[name]) for name in ("properties", "items", "anyOf", "not", "$ref", "enum")),
    *(("regex", name, deep.PATTERNS[name]) for name in ("groups", "repeats", "lookaheads")),
    *(("grammar", name, deep.GRAMMARS["ebnf"][name]) for name in ("groups", "repeats", "rules")),
    *(("grammar", f"{name} in Lark's", deep.GRAMMARS["lark"][name]) for name in ("groups", "rules", "terminals")),
    *(("structural_tag", name, deep.TAGS[name]) for name in ("sequence", "tag", "schema")),
    ("choice", "lists", deep.CHOICES["lists"]),
]


def environment(**more: str) -> dict[str, str]:
    paths = [str(HERE.parent / "stand_ins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    known = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": os.pathsep.join(paths), **more}
    known.pop("MASKWRIGHT_ENGINE_OPTIONS", None)
    return known


@pytest.fixture(scope="module")
def server(vllm_server) -> Iterator[str]:
    """Run vLLM's server; return where it is."""
    with vllm_server() as url:
        yield url


def post(url: str, constraint: str) -> tuple[int, Any]:
    """Return status and answer of a completion; constraint: JSON text of `structured_outputs`."""
    body = f'{{"model": "tiny", "prompt": "x ", "max_tokens": 24, "structured_outputs": {constraint}}}'.encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("as_text", [True, False])
def test_vllm_answers_any_depth_and_goes_on(server: str, as_text: bool) -> None:
    digits = '{"regex": "[0-9]{3}"}'
    assert post(server, digits)[0] == 200
    wrong, count = [], 0
    for kind, name, source in VLLM:
        if not as_text and kind not in ("json", "choice"):
            continue
        for levels in deep.LEVELS:
            text = source(levels)
            given = json.dumps(text) if as_text and kind != "choice" else text
            began = time.perf_counter()
            status, answer = post(server, f'{{"{kind}": {given}}}')
            seconds = time.perf_counter() - began
            fine, plain = post(server, digits)
            count += 1
            ordinary = fine == 200 and re.fullmatch("[0-9]{3}", plain)
            if status not in (200, 400) or seconds > SLOW or not ordinary:
                wrong.append((kind, name, levels, status, round(seconds, 1), str(answer)[:200], fine))
            if levels == 10 and kind != "choice" and status != 200:
                wrong.append((kind, name, levels, status, answer[:200]))
    assert not wrong
    assert count == 4 * (len(VLLM) if as_text else 7)


def test_sglang_answers_any_depth_and_goes_on(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    command = [sys.executable, str(HERE / "run_sglang_depth.py"), str(model), str(tmp_path / "told.json")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert len(told) == 60
    wrong = {
        name: (status, text[:200], seconds, plain)
        for name, (status, text, seconds, plain) in told.items()
        if seconds > SLOW or not re.fullmatch("[0-9]{3}", plain) or (name.endswith(" 10") and status != 200)
    }
    assert not wrong


UNNAMED = """
import sys
from importlib import metadata
import vllm
from vllm.sampling_params import SamplingParams
from vllm.v1.structured_output import StructuredOutputManager
before = dict(vars(SamplingParams)), dict(vars(StructuredOutputManager))
(point,) = [point for point in metadata.entry_points(group="vllm.general_plugins") if point.name == "maskwright"]
numba = "numba" in sys.modules
point.load()()
assert (dict(vars(SamplingParams)), dict(vars(StructuredOutputManager))) == before
assert ("numba" in sys.modules) == numba
print(sorted(name for name in sys.modules if name.partition(".")[0] == "maskwright"))
"""


def test_a_plugin_that_vllm_does_not_name_adds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    for named in ({}, {"VLLM_PLUGINS": "other"}):
        known = {name: value for name, value in environment(**named).items() if named or name != "VLLM_PLUGINS"}
        done = subprocess.run([sys.executable, "-c", UNNAMED], env=known, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
        said = "['maskwright', 'maskwright.engines', 'maskwright.engines.vllm', 'maskwright.engines.vllm.plugin']"
        assert done.stdout.splitlines()[-1] == said
