"""What the device benchmark checks before it times anything: each check must see a wrong result."""

import itertools

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import torch

import maskwright as mw
from benchmarks.beams import for_search, random_logits, search_torch
from benchmarks.harness import Spread
from benchmarks.suites.device import checks, roofline
from maskwright.runtime import numpy_ops, torch_ops

BATCH, BEAMS, VOCAB, LENGTH = 2, 5, 16, 4


@pytest.fixture(scope="module")
def search():
    sids = np.random.default_rng(0).integers(0, VOCAB, (300, LENGTH))
    table = mw.compile_sids(sids, VOCAB)
    logits = for_search(random_logits(BATCH, BEAMS, VOCAB, LENGTH), BEAMS)
    return table, logits, checks.wanted(table, logits, BATCH, BEAMS)


def test_a_search_equal_to_numpys_passes_and_a_wrong_score_or_beam_does_not(search):
    table, logits, expected = search
    found = search_torch(torch_ops.to_device(table), [torch.tensor(x) for x in logits], BATCH, BEAMS)
    checks.check_search("torch", found, expected)
    scores = found.scores.clone()
    scores[1, 2] += 0.01
    with pytest.raises(SystemExit, match="beam 2 of input 1 scores"):
        checks.check_search("torch", found._replace(scores=scores), expected)
    tokens = found.tokens.clone()
    tokens[0, 3, 1] ^= 1
    with pytest.raises(SystemExit, match="beam 3 of input 0 is"):
        checks.check_search("torch", found._replace(tokens=tokens), expected)


def test_a_wrong_bit_a_wrong_logit_and_a_wrong_state_are_seen(search):
    table, _, _ = search
    host, dev = numpy_ops.to_device(table), torch_ops.to_device(table)
    start, logits = numpy_ops.start(host, 3), np.random.default_rng(0).standard_normal((3, VOCAB), dtype=np.float32)
    masks = numpy_ops.bitmask(host, start)
    checks.check_masks("bitmask", torch_ops.bitmask(dev, torch_ops.start(dev, 3)), masks)
    wrong = masks.copy()
    wrong[2, 0] ^= 1
    with pytest.raises(SystemExit, match="the mask of row 2"):
        checks.check_masks("bitmask", wrong, masks)

    masked = torch_ops.mask_logits(dev, torch.tensor(logits), torch_ops.start(dev, 3))
    checks.check_masked("mask_logits", masked, logits, masks)
    with pytest.raises(SystemExit, match="what is masked of row 2"):
        checks.check_masked("mask_logits", masked, logits, wrong)

    tokens = np.array([np.flatnonzero(row > -np.inf)[0] for row in masked.numpy()])
    after = numpy_ops.advance(host, start, tokens)
    checks.check_state("advance", torch_ops.advance(dev, torch_ops.start(dev, 3), torch.tensor(tokens)), after)
    with pytest.raises(SystemExit, match="advance: "):
        checks.check_state("advance", start, after)


def test_a_step_that_chooses_other_beams_once_is_seen(search, monkeypatch):
    table, logits, _ = search
    dev, given = torch_ops.to_device(table), [torch.tensor(x) for x in logits]
    assert checks.check_order(dev, given, BATCH, BEAMS, 3) == 3 * LENGTH

    select, calls = torch_ops.select, itertools.count()

    def early(*arguments):
        selection = select(*arguments)
        return selection._replace(tokens=selection.tokens ^ 1) if next(calls) == 9 else selection

    monkeypatch.setattr(torch_ops, "select", early)
    with pytest.raises(SystemExit, match="chose other beams"):
        checks.check_order(dev, given, BATCH, BEAMS, 3)


def test_lines_say_what_a_step_costs_and_needs():
    timed = roofline.Timed("SID, a step", "jax.jit: maskwright", lambda: None, 8 * 10**6, "SID 10^6, search", 8)
    seconds = Spread(1e-4, 8e-4, 9e-4)
    line = list(roofline.lines("NVIDIA H100 80GB HBM3", [(timed, seconds)]))[-2]
    compiled = roofline.compiled_bytes("NVIDIA H100 80GB HBM3")["SID 10^6, search"] / 8 / 1e6
    assert line.split(" | ")[2:] == ["1", f"{compiled:.3g}", f"{1e6 / 3.35e6:.3g}", "100 |"]
    on_tpu, step = roofline.compiled_bytes("TPU v6 lite"), "nested, bitmask, 64 rows"
    assert on_tpu[step] < roofline.compiled_bytes("H100")[step]
    assert roofline.compiled_bytes("this CPU, one thread") == {}
    assert roofline.of_device("AMD EPYC", roofline.BANDWIDTH) is None
