"""A short campaign finds nothing, and the fuzzer sees what it is for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import islice

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import jax_ops, torch_ops

from . import checks
from .campaign import Campaign, replay
from .cases import KINDS, Case
from .checks import VOCABULARY, check_of
from .generation import cases
from .workers import DifferenceError, Rehearsal, run

SHORT = tuple(kind for kind in KINDS if kind != "http")  # whose process takes a second to begin


def test_a_short_campaign_finds_nothing(tmp_path):
    campaign = Campaign(SHORT, 1, tmp_path, say=print)
    for kind in SHORT:
        made_up = (case for case in cases(kind, 1) if case.attack is None)  # attacks take seconds
        for case in islice(made_up, 15):
            campaign.attempt(case)
    assert not campaign.findings, campaign.counts()
    assert all(tried.get("done", 0) for tried in campaign.counts()["cases"].values())


@pytest.mark.parametrize(("minutes", "tried"), [("0", 0), ("1e-6", 1)])
def test_a_campaign_says_how_many_cases_it_tried_and_fails_without_any(minutes, tried, tmp_path):
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", minutes, "--kind", "choices", "--seed", "1"]
    out = subprocess.run([*command, "--findings", tmp_path], cwd=mw.__path__[0], capture_output=True, text=True)
    assert f"cases that were tried: {tried}\n" in out.stdout
    assert ("ERROR: no case of choices was tried" in out.stdout) == (not tried)
    assert out.returncode == int(not tried)


def _grow(steps):
    held = np.ones(560 << 17)  # 560 MB
    assert held[-1]


def _spin(steps):
    with steps("spinning", seconds=0):
        while True:
            pass


def _differ(steps):
    raise DifferenceError("one has another")


def _crash(steps):
    os.abort()


@pytest.mark.parametrize(
    ("check", "found"),
    [
        (lambda steps: None, "done"),
        (lambda steps: mw.Budget(seconds=-1), "refused"),
        (lambda steps: mw.compile_regex("(", mw.Vocabulary.from_bytes([b"a"])), "refused"),
        (lambda steps: [][0], "foreign"),
        (lambda steps: int("a"), "foreign"),
        (_grow, "overrun"),
        (_spin, "overrun"),
        (_differ, "difference"),
        (_crash, "crash"),
    ],
)
def test_a_worker_says_how_a_case_ended(check, found):
    began = time.monotonic()
    assert run(check).found == found
    assert time.monotonic() - began < 30


def test_a_finding_is_kept_and_tried_again(tmp_path, monkeypatch):
    campaign = Campaign(["grammar"], 1, tmp_path, say=lambda line: None)
    compile_grammar, case = mw.compile_grammar, Case("grammar", 'start: "a"')
    with monkeypatch.context() as patch:
        patch.setattr(mw, "compile_grammar", lambda *given, **options: {}["a"] if options else compile_grammar(*given))
        for _ in range(2):
            assert campaign.attempt(case).found == "foreign"
        assert campaign.findings == [(case, replay(tmp_path / "grammar-1.json"))]  # one place, however often
    assert not replay(tmp_path / "grammar-1.json").is_wrong


def test_threads_that_read_other_masks_are_found(monkeypatch):
    made = iter(range(2))  # the table of the threads, and that of the same texts alone
    monkeypatch.setattr(
        mw, "compile_json_schema", lambda source, *given, **options: mw.compile_regex("ab*"[next(made) :], VOCABULARY)
    )
    assert run(check_of(Case("threads", {"const": 1}))).found == "difference"


def test_a_table_that_an_interrupt_spoils_is_found(monkeypatch):
    compile_regex, calls = mw.compile_regex, [0]

    def compile_(*given, **options):
        calls[0] += 1
        return compile_regex("a*" if calls[0] > 3 else "b*", VOCABULARY)

    monkeypatch.setattr(mw, "compile_json_schema", compile_)
    assert run(check_of(Case("signals", {"const": 1}))).found == "difference"


@pytest.mark.parametrize("backend", [torch_ops, jax_ops])
def test_a_backend_with_another_mask_is_found(backend, monkeypatch):
    bitmask = backend.bitmask
    monkeypatch.setattr(backend, "bitmask", lambda *given: ~bitmask(*given))
    monkeypatch.setattr(checks, "forged", lambda *given: mw.compile_regex("ab*", VOCABULARY))
    with pytest.raises(DifferenceError, match="other masks"):  # here: a fork lacks threads that JAX has
        check_of(Case("device", 0, seed=32))(Rehearsal())
