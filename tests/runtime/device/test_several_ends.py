"""Operations on tables with several end tokens: against tables with one, whose end has the weight of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode.beam import beam_search
from maskwright.runtime.decode.sampling import sample, sample_sequences
from tests.oracles import naive
from tests.strategies import end_tokens
from tests.strategies.end_tokens import Pair
from tests.support.backends import backend, bits_of, out

ROWS = 6


def each(kinds: Any, of_jax: Any) -> Any:
    """Kinds by all libraries; JAX, which compiles for seconds, has some of them, and most of these are slow."""
    ways = ("numpy", "torch", "torch gathers")
    pairs = [(kind, way) for kind in kinds for way in ways]
    pairs += [
        (kind, "jax") if kind in end_tokens.IDS else pytest.param(kind, "jax", marks=pytest.mark.slow)
        for kind in of_jax
    ]
    return pytest.mark.parametrize(("kind", "library"), pairs, indirect=["library"])


@pytest.fixture(params=["numpy", "torch", "jax"])
def library(request, monkeypatch) -> Any:
    name, _, way = request.param.partition(" ")
    found = backend(name)
    if way:  # as on any device
        from maskwright.runtime.device.torch import compat

        monkeypatch.setattr(compat, "is_plain", lambda *x: False)
    return found


def logits_of(rng: np.random.Generator, *shape: int, odd: bool = False) -> np.ndarray:
    logits = rng.normal(size=shape).astype(np.float32) * 3
    if odd:
        logits[rng.random(shape) < 0.1] = -np.inf
    return logits


def walked(pair: Pair, rng: np.random.Generator, steps: int) -> tuple[np.ndarray, Any]:
    """Tokens (ROWS, steps) that are mostly allowed, and the specification's states on the way with one end."""
    state, columns, states = numpy_ops.start(pair.one, ROWS), [], []
    for _ in range(steps):
        states.append(state)
        allowed = pair.allowed(bits_of(numpy_ops.bitmask(pair.one, state), pair.one.vocab_size))
        column = rng.integers(-1, pair.one.vocab_size + 1, ROWS)
        for row, legal in enumerate(map(np.flatnonzero, allowed)):
            ends = np.intersect1d(legal, pair.ends)
            if rng.random() < 0.9 and legal.size:
                column[row] = rng.choice(ends if ends.size and rng.random() < 0.3 else legal)
        columns.append(column)
        state = numpy_ops.advance(pair.one, state, pair.mapped(column))
    return np.stack(columns, 1), [*states, state]


def same_state(got: Any, wanted: Any) -> None:
    for mine, theirs in zip(got, wanted, strict=True):
        assert np.array_equal(out(mine), theirs)


def whole(kind: str, seed: int) -> Pair:
    several, one, vocabularies = end_tokens.pair(kind, seed)
    return Pair(several.to_table(), one.to_table(), vocabularies)


@each(end_tokens.KINDS, ["sequences", "nested"])
def test_ends_are_allowed_and_lead_where_one_end_does(kind, library):
    ops, into = library
    pair = whole(kind, 11)
    rng, size, one = np.random.default_rng(11), pair.one.vocab_size, pair.one
    dev = ops.to_device(pair.several, distances=True)
    assert dev.ends == pair.ends
    assert dev.eos == pair.ends[0]
    tokens, states = walked(pair, rng, 2 if "jax" in ops.__name__ else 5)
    state = ops.start(dev, ROWS)
    left = rng.integers(0, 6, ROWS)
    for t, column in enumerate(tokens.T):
        same_state(state, states[t])
        for remaining in (None, left):
            given = None if remaining is None else into(remaining)
            wanted = pair.allowed(bits_of(numpy_ops.bitmask(one, states[t], remaining), size))
            assert np.array_equal(bits_of(out(ops.bitmask(dev, state, given)), size), wanted)
            logits = logits_of(rng, ROWS, size + 3, odd=True)
            masked = np.where(np.pad(wanted, ((0, 0), (0, 3))), logits, -np.inf)
            assert np.array_equal(out(ops.mask_logits(dev, into(logits), state, given)), masked)
            assert np.array_equal(out(ops.mask_logits_(dev, into(logits.copy()), state, given)), masked)
        if kind in end_tokens.IDS:
            width = max(one.widths)
            found, allowed = map(out, ops.allowed_tokens(dev, state, width))
            assert found.shape == (ROWS, width + len(pair.ends))
            wanted = pair.allowed(bits_of(numpy_ops.bitmask(one, states[t]), size))
            for row in range(ROWS):
                assert sorted(found[row][allowed[row]]) == np.flatnonzero(wanted[row]).tolist()
        state = ops.advance(dev, state, into(column))
    same_state(state, states[-1])
    ended = pair.mapped(tokens)
    assert np.array_equal(out(ops.contains(dev, into(tokens))), numpy_ops.contains(one, ended))


@each(end_tokens.KINDS, ["sids", "nested"])
def test_an_end_is_ranked_by_what_all_ends_hold(kind, library):
    ops, into = library
    pair = whole(kind, 12)
    rng, size, one = np.random.default_rng(12), pair.one.vocab_size, pair.one
    dev = ops.to_device(pair.several)
    tokens, states = walked(pair, rng, 3)
    state = ops.start(dev, ROWS)
    for t in range(3):
        logits = logits_of(rng, ROWS, size, odd=t == 1)
        merged = pair.merged(logits).astype(np.float32)
        got, wanted = ops.candidates(dev, into(logits), state, 4), numpy_ops.candidates(one, merged, states[t], 4)
        np.testing.assert_allclose(out(got.scores), wanted.scores, rtol=1e-4, atol=1e-5)
        assert np.array_equal(out(got.tokens), wanted.tokens)
        same_state(got.states, wanted.states)
        assert not np.isin(out(got.tokens)[out(got.scores) > -np.inf], pair.ends[1:]).any()
        np.testing.assert_allclose(
            out(ops.log_mass(dev, into(logits), state)),
            numpy_ops.log_mass(one, merged, states[t]),
            rtol=1e-4,
            atol=1e-5,
        )
        for renormalize in (False, True):
            end = ops.end_scores(dev, into(logits), state, renormalize)
            given = numpy_ops.end_scores(one, merged, states[t], renormalize)
            np.testing.assert_allclose(out(end), given, rtol=1e-4, atol=1e-5)
            scores = rng.normal(size=(2, 3)).astype(np.float32)  # no ties
            level = t if one.is_trie else 0
            if one.is_trie and t:
                continue  # rows are at other depths
            picked = ops.select(dev, into(logits), state, into(scores), 3, level, renormalize)
            expected = numpy_ops.select(one, merged, states[t], scores, 3, level, renormalize)
            np.testing.assert_allclose(out(picked.scores), expected.scores, rtol=1e-4, atol=1e-5)
            assert np.array_equal(out(picked.tokens), expected.tokens)
        if t == 0:  # by the definition
            for row in range(ROWS):
                p = naive.log_softmax(logits[row])
                wanted_end = np.logaddexp.reduce(p[list(pair.ends)])
                may = numpy_ops.accepting(one, states[t])[row]
                assert np.isclose(out(ops.end_scores(dev, into(logits), state))[row], wanted_end) if may else True
        state = ops.advance(dev, state, into(tokens[:, t]))


@each(["sids", "choices", "nested"], ["nested"])
def test_log_probs_count_each_end_as_itself(kind, library):
    ops, into = library
    pair = whole(kind, 13)
    rng, size = np.random.default_rng(13), pair.one.vocab_size
    tokens, _states = walked(pair, rng, 4)
    tokens = np.clip(tokens, 0, size - 1)
    logits = logits_of(rng, ROWS, 4, size)
    got = out(ops.log_probs(ops.to_device(pair.several), into(logits), into(tokens), by_position=True))
    for row in range(ROWS):
        state, going = numpy_ops.start(pair.one, 1), True
        for t, token in enumerate(tokens[row]):
            if not going:
                assert got[row, t] == 0
                continue
            allowed = pair.allowed(bits_of(numpy_ops.bitmask(pair.one, state), size))[0]
            if not allowed[token]:
                assert got[row, t] == -np.inf
                break
            p = naive.log_softmax(np.where(allowed, logits[row, t], -np.inf))
            assert np.isclose(got[row, t], p[token], atol=1e-5)
            state = numpy_ops.advance(pair.one, state, pair.mapped(np.array([token])))
            going = token not in pair.ends


@each(["sequences", "any text", "nested"], ["nested"])
def test_each_end_is_drawn_as_often_as_the_model_says(kind, library):
    ops, into = library
    pair = whole(kind, 14)
    rng, size, n = np.random.default_rng(14), pair.one.vocab_size, 1000
    matcher = mw.Matcher(pair.one, max_tokens=pair.one.min_length + 2)
    while not matcher.is_accepting:
        matcher.advance(int(np.flatnonzero(bits_of(matcher.mask()[None], size)[0])[0]))
    prefix = np.array(matcher.tokens, np.int64)
    dev = ops.to_device(pair.several)
    state = ops.start(dev, n)
    for token in prefix:
        state = ops.advance(dev, state, into(np.full(n, token)))
    logits = np.repeat(logits_of(rng, 1, size) / 3, n, 0)
    logits[:, list(pair.ends)] = np.log(size / 8) + np.arange(len(pair.ends)) * 0.5
    uniforms = rng.random((n, 2)).astype(np.float32)
    drawn = sample(dev, into(logits), state, into(uniforms), ops=ops)
    legal = bits_of(out(ops.bitmask(dev, state)), size)[0]
    p = np.exp(naive.log_softmax(np.where(legal, logits[0], -np.inf)))
    counts = np.bincount(out(drawn.tokens), minlength=size)
    assert counts[~legal].sum() == 0
    assert out(drawn.valid).all()
    for end in pair.ends:
        assert abs(counts[end] - n * p[end]) <= 5 * np.sqrt(n * p[end]) + 1
    np.testing.assert_allclose(out(drawn.log_probs), np.log(p[out(drawn.tokens)]), atol=1e-3)


@each(["sids", "choices", "nested"], ["choices"])
def test_searches_and_draws_of_whole_sequences_end_by_any_end(kind, library):
    ops, into = library
    pair = whole(kind, 15)
    rng, size = np.random.default_rng(15), pair.one.vocab_size
    steps, beams = 7, 4
    logits = logits_of(rng, steps + 1, size)
    logits[:, list(pair.ends)] += 2
    merged = np.stack([pair.merged(row[None])[0] for row in logits]).astype(np.float32)

    def step_of(rows: np.ndarray) -> Any:
        return lambda tokens, cache, t: (into(np.repeat(rows[t][None], tokens.shape[0], 0)), cache)

    one = {"batch": 1, "beams": beams, "max_tokens": steps, "renormalize": kind == "nested"}
    got = beam_search(step_of(logits), None, ops.to_device(pair.several), ops=ops, **one)
    wanted = beam_search(
        lambda tokens, cache, t: (np.repeat(merged[t][None], len(tokens), 0), cache),
        None,
        pair.one,
        ops=numpy_ops,
        **one,
    )
    np.testing.assert_allclose(out(got.scores), wanted.scores, rtol=1e-4, atol=1e-5)
    assert np.array_equal(out(got.valid), wanted.valid)
    assert wanted.valid.any()
    uniforms = into(rng.random((steps + 1, 32, 2)).astype(np.float32))
    dev = ops.to_device(pair.several, distances=True)
    drawn = sample_sequences(step_of(logits), None, dev, uniforms, ops=ops, batch=1, samples=32, max_tokens=steps)
    assert out(drawn.valid).all()
    for tokens, length in zip(out(drawn.tokens)[0], out(drawn.lengths)[0], strict=True):
        assert pair.one.accepts(tokens[:length])
        assert not np.isin(tokens[:length], pair.ends).any()


@each(["nested", "choices", "grammar"], ["grammar"])
def test_tables_that_are_read_on_demand_have_all_ends(kind, library):
    ops, into = library
    pair = end_tokens.pair(kind, 16)
    spec = Pair(pair.several, pair.one.to_table(), None)
    rng, size = np.random.default_rng(16), pair.one.vocab_size
    dev = ops.to_device(pair.several, on_demand=True)
    tokens, states = walked(spec, rng, 4)
    state = ops.start(dev, ROWS)
    for t in range(4):
        wanted = pair.allowed(bits_of(numpy_ops.bitmask(spec.one, states[t]), size))
        assert np.array_equal(bits_of(out(ops.bitmask(dev, state)), size), wanted)
        logits = logits_of(rng, ROWS, size)
        assert np.array_equal(out(ops.mask_logits(dev, into(logits), state)), np.where(wanted, logits, -np.inf))
        merged = pair.merged(logits).astype(np.float32)
        got, best = ops.candidates(dev, into(logits), state, 3), numpy_ops.candidates(spec.one, merged, states[t], 3)
        np.testing.assert_allclose(out(got.scores), best.scores, rtol=1e-4, atol=1e-5)
        assert np.array_equal(out(got.tokens), best.tokens)
        scores = rng.normal(size=(2, 3)).astype(np.float32)  # no ties
        picked = ops.select(dev, into(logits), state, into(scores), 3, 0, True)
        expected = numpy_ops.select(spec.one, merged, states[t], scores, 3, 0, True)
        np.testing.assert_allclose(out(picked.scores), expected.scores, rtol=1e-4, atol=1e-5)
        state = ops.advance(dev, state, into(np.clip(tokens[:, t], 0, size - 1)))
        states[t + 1] = numpy_ops.advance(spec.one, states[t], pair.mapped(np.clip(tokens[:, t], 0, size - 1)))


def test_narrow_types_of_tokens_do_not_wrap(library):
    ops, into = library
    table = mw.compile_sequences([[5, 6]], vocab_size=400, eos=[300, 44 + 256, 0])
    dev = ops.to_device(table)
    state = ops.start(dev, 1)
    for token in (5, 6):
        state = ops.advance(dev, state, into(np.array([token], np.int8)))
    for token, leads in ((0, True), (44, False)):
        reached = ops.advance(dev, state, into(np.array([token], np.uint8)))
        assert bool(out(ops.accepting(dev, reached))[0]) == leads


def test_half_precision_logits_are_summed_in_32_bits():
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops

    table = mw.compile_sequences([[5]], vocab_size=8, eos=[0, 1])
    dev = torch_ops.to_device(table)
    state = torch_ops.advance(dev, torch_ops.start(dev, 1), torch.tensor([5]))
    logits = torch.tensor([[20.0, 20, 1, 1, 1, 1, 1, 1]], dtype=torch.bfloat16)
    p = torch.log_softmax(logits.float(), -1)[0, :2].logsumexp(0)
    torch.testing.assert_close(torch_ops.end_scores(dev, logits, state)[0], p)
    masked = torch_ops.mask_logits(dev, logits, state)
    assert masked.dtype == torch.bfloat16
    assert torch.equal(masked > -torch.inf, torch.arange(8)[None] < 2)


def test_operations_are_compiled_with_all_ends():
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops

    pair = whole("nested", 17)
    dev, size = torch_ops.to_device(pair.several, distances=True), pair.one.vocab_size

    def steps(logits: Any, tokens: Any, state: Any) -> tuple[Any, ...]:
        masked, words = torch_ops.mask_logits(dev, logits, state), torch_ops.bitmask(dev, state)
        end = torch_ops.end_scores(dev, logits, state)
        return (
            masked,
            words,
            end,
            torch_ops.candidates(dev, logits, state, 3).scores,
            torch_ops.advance(dev, state, tokens).node,
        )

    logits = torch.from_numpy(logits_of(np.random.default_rng(17), ROWS, size))
    given = logits, torch.arange(ROWS) % size, torch_ops.start(dev, ROWS)
    compiled = torch.compile(steps, fullgraph=True, backend="eager")
    for got, wanted in zip(compiled(*given), steps(*given), strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_jitted_function_takes_a_table_with_all_ends():
    jax = pytest.importorskip("jax")
    from maskwright.runtime import jax_ops

    dev = jax_ops.to_device(mw.compile_sequences([[5, 6], [5]], vocab_size=40, eos=[0, 33, 1]))

    @jax.jit
    def step(dev: Any, logits: Any, tokens: Any, state: Any) -> tuple[Any, Any]:
        state = jax_ops.advance(dev, state, tokens)
        return jax_ops.mask_logits(dev, logits, state), jax_ops.end_scores(dev, logits, state)

    masked, end = step(dev, jax.numpy.zeros((2, 40)), jax.numpy.array([5, 6]), jax_ops.start(dev, 2))
    assert np.argwhere(np.isfinite(masked)).tolist() == [[0, 0], [0, 1], [0, 6], [0, 33]]
    np.testing.assert_allclose(end, [np.log(3 / 40), -np.inf], rtol=1e-5)
