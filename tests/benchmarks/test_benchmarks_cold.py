"""The programs of cold starts run, and their bars are told from what they measure."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from benchmarks.peers import tekken
from benchmarks.suites.cold import programs
from benchmarks.suites.cold.__main__ import bars, run, to_first_mask
from maskwright.kernels.compiled import LIBRARY


@pytest.mark.long
@pytest.mark.skipif(LIBRARY is None, reason="numba compiles the kernels of this process")
@pytest.mark.parametrize("kind", programs.OURS)
def test_each_program_runs_without_numba_and_a_second_process_has_the_same_masks(kind, tmp_path):
    tokenizer, vocabulary = tekken(), tmp_path / "vocabulary.pickle"
    vocabulary.write_bytes(pickle.dumps((tokenizer.tokens, tokenizer.special, tokenizer.eos)))
    told = [run(Path(sys.executable), programs.OURS[kind], vocabulary, tmp_path / "cache") for _ in range(2)]
    assert told[0]["masks"] == told[1]["masks"]
    assert not told[0]["numba"]
    assert to_first_mask(told[0]["taken"]) > 0


def record(seconds: float, size: int) -> dict[str, object]:
    stages = {"numpy": 0.05, "import": seconds / 4, "first mask": seconds, "torch": 9.0, "a text": 9.0}
    each = {when: dict.fromkeys(programs.OURS, stages) for when in ("first", "second")}
    return {**each, "others": {"llguidance": {"import": 0.3}}, "wheel": {"bytes": size}}


def test_bars_are_held_where_all_is_quick_and_missed_where_it_is_not():
    assert all(held for *_, held in bars(record(0.1, 1_000_000)))
    assert not any(held for *_, held in bars(record(9.0, 9_000_000)))


def test_torch_and_a_text_are_not_on_the_way_to_the_first_mask():
    assert to_first_mask({"numpy": 1.0, "import": 2.0, "first mask": 3.0, "torch": 10.0, "a text": 20.0}) == 6.0
