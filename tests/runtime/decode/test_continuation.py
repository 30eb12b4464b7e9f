"""Decoding that begins behind tokens that are there already, against the sequences of the set that begin so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime.decode import Continuation, beam_search, continue_from, sample_sequences, sample_unbiased
from tests.oracles import naive
from tests.support.backends import backend, out

SIDS = [(1, 2, 3), (1, 2, 5), (1, 4, 3), (7, 7, 7), (7, 2, 1), (9, 2, 1), (7, 2, 3)]
RAGGED = [(1,), (1, 2), (1, 2, 3), (4, 1), (5, 6, 7, 8), (7, 1), (7, 1, 2), (1, 5, 5)]
KINDS = {
    "sids": lambda: (mw.compile_sids(SIDS, 10), SIDS, None),
    "matrix": lambda: (mw.sort_sids(SIDS, 10), SIDS, None),
    "sids with eos": lambda: (mw.compile_sids(SIDS, 10, eos=0), SIDS, 0),
    "ragged": lambda: (mw.compile_sequences(RAGGED, vocab_size=10), RAGGED, None),
    "ragged with eos": lambda: (mw.compile_sequences(RAGGED, vocab_size=10, eos=0), RAGGED, 0),
}
SOME = ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)]  # compiling takes JAX seconds
BEGUN = np.array([[1], [7], [2]])  # nothing begins with the last


def model_of(b: Any) -> tuple[np.ndarray, Any]:
    """Return logits by step and token before, and the step function of them."""
    logits = np.random.default_rng(0).normal(size=(6, 10, 10)).astype(np.float32)
    into = b.into(logits)
    return logits, lambda tokens, cache, t: (into[t][tokens], cache)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("kind", KINDS)
def test_beams_are_the_sequences_that_begin_so_best_first(name, kind):
    b = backend(name)
    table, rows, eos = KINDS[kind]()
    logits, step = model_of(b)
    dev = b.ops.to_device(table)
    given = continue_from(dev, b.into(BEGUN), ops=b.ops)
    found = beam_search(step, None, given, ops=b.ops, batch=3, beams=8, max_tokens=5)
    for i, begun in enumerate(BEGUN[:, 0].tolist()):
        rest = {row[1:] for row in rows if row[0] == begun}
        expected = naive.ranking(rest, logits, eos)
        valid = out(found.valid)[i]
        assert valid.tolist() == [True] * len(rest) + [False] * (8 - len(rest))
        tokens = [tuple(t for t in row if t >= 0) for row in out(found.tokens)[i][valid].tolist()]
        assert tokens == [row for _, row in expected]
        np.testing.assert_allclose(out(found.scores)[i][valid], [score for score, _ in expected], rtol=1e-4, atol=1e-5)
        for row, back in zip(tokens, table.input_rows(out(found.states)[i][valid]), strict=True):
            assert [rows[at] for at in back.tolist()] == [(begun, *row)]


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ragged"])
def test_samples_are_sequences_that_begin_so(name, kind):
    b = backend(name)
    table, rows, _ = KINDS[kind]()
    _, step = model_of(b)
    given = continue_from(b.ops.to_device(table, distances=True), b.into(BEGUN[:2]), ops=b.ops)
    random = np.random.default_rng(0) if name == "numpy" else None
    if name == "torch":
        import torch

        random = torch.Generator().manual_seed(0)
    drawn = sample_sequences(step, None, given, random, ops=b.ops, batch=2, samples=40, max_tokens=2)
    assert out(drawn.valid).all()
    for i, begun in enumerate(BEGUN[:2, 0].tolist()):
        found = {tuple(t for t in row if t >= 0) for row in out(drawn.tokens)[i].tolist()}
        assert found == {row[1:] for row in rows if row[0] == begun and len(row) < 4}
    one = sample_unbiased(step, None, given, random, ops=b.ops, batch=2, candidates=4, max_tokens=2)
    for begun, row in zip(BEGUN[:2, 0].tolist(), out(one.tokens).tolist(), strict=True):
        assert (begun, *(t for t in row if t >= 0)) in rows


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_state_may_be_given_as_it_is(name):
    b = backend(name)
    table, _, _ = KINDS["sids"]()
    _, step = model_of(b)
    dev = b.ops.to_device(table)
    start = Continuation(dev, b.ops.start(dev, 2), 0)
    options: dict[str, Any] = {"ops": b.ops, "batch": 2, "beams": 4, "max_tokens": 3}
    for mine, plain in zip(
        beam_search(step, None, start, **options), beam_search(step, None, dev, **options), strict=True
    ):
        np.testing.assert_array_equal(out(mine), out(plain))
    with pytest.raises(ValueError, match="one state a row"):
        beam_search(step, None, start, **{**options, "batch": 3})


def test_what_is_complete_already_has_nothing_to_search():
    b = backend("numpy")
    _, step = model_of(b)
    dev = b.ops.to_device(mw.compile_sids(SIDS, 10))
    whole = continue_from(dev, np.array(SIDS[:2]), ops=b.ops)
    with pytest.raises(ValueError, match="no more than 3 tokens: there is nothing to search"):
        beam_search(step, None, whole, ops=b.ops, batch=2, beams=2, max_tokens=3)
    with pytest.raises(ValueError, match="no more than 3 tokens: there is nothing to draw"):
        sample_sequences(step, None, whole, np.random.default_rng(0), ops=b.ops, batch=2, max_tokens=3)
    begun = continue_from(dev, BEGUN, ops=b.ops)
    with pytest.raises(ValueError, match="max_tokens=1 is less than the shortest sequence, 2 tokens"):
        beam_search(step, None, begun, ops=b.ops, batch=3, beams=2, max_tokens=1)
