"""Of equal scores every backend takes the first beam's, and of one beam the lowest token, as numpy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.table.sid_filter import SidFilter
from tests.marks import marked
from tests.support.backends import ALL, FAST, backend, compiled, out

BYTES = mw.Vocabulary.from_bytes([bytes([b]) for b in range(97, 123)] + [b"", b"ab", b"{", b"}", b'"', b":"], eos=26)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(("batch", "n", "k"), [(2, 300, 7), (3, 8, 8), (2, 3, 5), (1, 20_001, 70), (2, 5000, 9)])
@pytest.mark.parametrize("values", [1, 3, 300])
def test_of_equal_scores_the_first_comes_first(name, batch, n, k, values):
    ops, into = backend(name)
    rng = np.random.default_rng(n + values)
    scores = rng.integers(0, values, (batch, n)).astype(np.float32) - values // 2
    scores[rng.random(scores.shape) < 0.3] = -np.inf
    for found, wanted in zip(ops.arrays.top_k(into(scores), k), numpy_ops.arrays.top_k(scores, k), strict=True):
        np.testing.assert_array_equal(out(found), wanted)


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("n", "k"), [(300, 7), (20_001, 70)])
def test_torch_takes_the_first_of_equal_numbers_of_any_type(kind, n, k):
    torch = pytest.importorskip("torch")
    ops, _ = backend("torch")
    scores = np.random.default_rng(n).integers(-9, 9, (2, n)).astype(np.float64)
    best, at = ops.arrays.top_k(torch.tensor(scores).to(getattr(torch, kind)), k)
    wanted, places = numpy_ops.arrays.top_k(scores, k)
    assert str(best.dtype) == f"torch.{kind}"
    np.testing.assert_array_equal(at, places)
    np.testing.assert_array_equal(best.double(), wanted)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(("n", "k"), [(10, 10), (1_500, 40), (20_000, 70)])
def test_the_two_zeros_are_equal(name, n, k):
    ops, into = backend(name)
    rng = np.random.default_rng(n)
    scores = np.where(rng.random((2, n)) < 0.5, rng.choice([0.0, -0.0], (2, n)), -1.0).astype(np.float32)
    for found, wanted in zip(ops.arrays.top_k(into(scores), k), numpy_ops.arrays.top_k(scores, k), strict=True):
        np.testing.assert_array_equal(out(found), wanted)


@pytest.mark.parametrize("copies", [1, 200])
def test_torch_tells_apart_the_closest_numbers(copies):
    torch = pytest.importorskip("torch")
    ops, _ = backend("torch")
    numbers = [0.0, -0.0, 1e-45, -1e-45, 1.0, np.nextafter(np.float32(1), np.float32(2)), -np.inf, np.inf, -1.0, -0.0]
    scores = np.array([numbers * copies, numbers[::-1] * copies], np.float32)
    for found, wanted in zip(
        ops.arrays.top_k(torch.tensor(scores), 10), numpy_ops.arrays.top_k(scores, 10), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_torch_passes_derivatives_on_to_the_first_of_equals():
    torch = pytest.importorskip("torch")
    ops, _ = backend("torch")
    scores = torch.zeros(1, 4, requires_grad=True)
    ops.arrays.top_k(scores, 2)[0].sum().backward()
    assert scores.grad.tolist() == [[1, 1, 0, 0]]


def sids(count: int, vocab: int, low: int = 0) -> list[list[int]]:
    return np.random.default_rng(vocab).integers(low, vocab, (count, 3)).tolist()


def filtered(of: Any, count: int) -> Any:
    return of.filter(np.random.default_rng(count).random(count) < 0.6)


ENDED = [row[: 1 + i % 3] for i, row in enumerate(sids(300, 31))]  # tokens below and above the end, which is 12
ENDED = [[token + (token >= 12) for token in row] for row in ENDED]
KINDS: dict[str, Any] = {
    "nothing": lambda: None,
    "trie": lambda: mw.compile_sids(sids(400, 32), 32),
    "wide trie": lambda: mw.compile_sids(sids(3000, 4096), 4096),
    "lengths and an end": lambda: mw.compile_sequences(ENDED, vocab_size=32, eos=12),
    "matrix": lambda: mw.sort_sids(sids(400, 32), 32),
    "filtered matrix": lambda: filtered(mw.sort_sids(sids(400, 32), 32), 400),
    "filtered trie": lambda: filtered(mw.compile_sids(sids(400, 32), 32), 400),
    "filtered lengths": lambda: filtered(mw.compile_sequences(ENDED, vocab_size=32, eos=12), 300),
    "text": lambda: mw.compile_regex("[a-z]{2,5}|\\{x\\}", BYTES),
    "nested": lambda: mw.compile_grammar('start: "{" start* "}" | /[a-c]/', BYTES),
}


def placed(ops: Any, made: Any) -> Any:
    if isinstance(made, SidFilter):
        is_placed = ops is numpy_ops and isinstance(made.table, mw.TransitionTable)
        of = made.table if is_placed else ops.to_device(made.table)
        return ops.with_filters(of, [made], [0])
    return None if made is None else ops.to_device(made)


def size_of(made: Any, dev: Any) -> int:
    return 32 if made is None else dev.vocab_size


def few_values(rows: int, vocab: int, seed: int) -> np.ndarray:
    """Logits with many equals: the rows are alike, so that their softmax has the very same sum."""
    row = np.random.default_rng(seed).integers(0, 3, vocab).astype(np.float32)
    return np.tile(row, (rows, 1))


BATCH, BEAMS, STEPS = 2, 5, 3


PLAIN = [(name, kind, "plain") for name in FAST for kind in KINDS]
AS_A_WHOLE = [(name, kind, "compiled") for name in FAST for kind in KINDS]


@pytest.mark.parametrize(  # in JAX each operation alone takes long to compile, and says nothing more of most kinds
    ("name", "kind", "way"),
    [
        *marked(PLAIN, slow=[("jax", kind, "plain") for kind in KINDS if kind not in ("trie", "filtered lengths")]),
        *marked(AS_A_WHOLE, long=AS_A_WHOLE),
    ],
)
def test_beams_of_equal_scores_are_those_of_numpy(name, kind, way):
    ops, into = backend(name)
    made = KINDS[kind]()
    host, dev = placed(numpy_ops, made), placed(ops, made)
    vocab = size_of(made, host)

    def step(logits: Any, state: Any, scores: Any, level: int) -> Any:
        return ops.select(dev, logits, state, scores, BEAMS, level)

    select = step
    if way == "compiled" and name == "jax":
        select = compiled(name, step, 3)
    elif way == "compiled":
        import torch

        torch._dynamo.reset()  # another kind is other code
        select = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")
    if made is None:
        state, expected = (backend(each).state(np.zeros(BATCH, np.int32)) for each in (name, "numpy"))
    else:
        state, expected = ops.start(dev, BATCH), numpy_ops.start(host, BATCH)
    m = 1
    for level in range(STEPS):
        logits = few_values(BATCH * m, vocab, level)
        scores = np.random.default_rng(level).integers(-1, 1, (BATCH, m)).astype(np.float32)
        own = select(into(logits), state, into(scores), level)
        wanted = numpy_ops.select(host, logits, expected, scores, BEAMS, level)
        alive = wanted.scores > -np.inf
        assert alive.any()
        np.testing.assert_allclose(out(own.scores), wanted.scores, rtol=1e-5)
        np.testing.assert_array_equal(np.where(alive, out(own.tokens), 0), np.where(alive, wanted.tokens, 0))
        if wanted.parents is not None:
            np.testing.assert_array_equal(np.where(alive, out(own.parents), 0), np.where(alive, wanted.parents, 0))
        state, expected, m = own.state, wanted.state, BEAMS


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nothing"])
@pytest.mark.parametrize("name", marked(ALL, long=["jax"]))
def test_candidates_of_equal_scores_are_the_lowest_tokens(name, kind):
    ops, into = backend(name)
    made = KINDS[kind]()
    dev = placed(ops, made)
    vocab = dev.vocab_size
    candidates = compiled(name, lambda logits, state, level: ops.candidates(dev, logits, state, BEAMS, level), 2)
    mask = compiled(name, lambda logits, state: ops.mask_logits(dev, logits, state))
    advance = compiled(name, lambda state, tokens: ops.advance(dev, state, tokens))
    state = ops.start(dev, 1)
    for depth in range(3):
        logits = few_values(1, vocab, depth)
        allowed = np.flatnonzero(out(mask(into(logits), state))[0] > -np.inf)
        order = sorted(allowed, key=lambda token: (-logits[0, token], token))[:BEAMS]
        for level in (None, depth):
            best = candidates(into(logits), state, level)
            assert out(best.tokens)[0, : len(order)].tolist() == order, (depth, level)
        letters = [token for token in allowed if token != getattr(dev, "eos", None)]
        if not letters:
            break
        state = advance(state, into(np.array([letters[0]])))


@pytest.mark.parametrize("name", ALL)
def test_five_beams_of_three_equal_tokens_are_in_their_order(name):
    ops, into = backend(name)
    dev = ops.to_device(mw.compile_sids([[0], [1], [2]], 3))
    found = ops.select(
        dev, into(np.zeros((1, 3), np.float32)), ops.start(dev, 1), into(np.zeros((1, 1), np.float32)), 5, 0
    )
    assert out(found.tokens).tolist() == [[0, 1, 2, 0, 0]]
