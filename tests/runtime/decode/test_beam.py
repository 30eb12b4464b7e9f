"""Beam search against exhaustive scoring, in numpy, torch and JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.runtime.decode import beam_search
from tests.marks import marked
from tests.oracles import naive
from tests.support.backends import ALL, backend


def bigram(name: str, weights: np.ndarray, beams: int) -> Any:
    """A model whose logits (L, B, V, V) depend on step, batch element and previous token."""
    _, into = backend(name)
    table = into(weights)
    rows = into(np.repeat(np.arange(weights.shape[1]), beams))
    return lambda tokens, cache, t: (table[t, rows, tokens], cache)


def search(name: str, table: mw.TransitionTable, weights: np.ndarray, beams: int, **options: Any) -> list[np.ndarray]:
    ops = backend(name).ops
    step = bigram(name, weights, beams)
    options = {"max_tokens": table.max_length, **options}
    found = beam_search(step, None, ops.to_device(table), ops=ops, batch=weights.shape[1], beams=beams, **options)
    return [np.asarray(x) for x in found]


def check(name, table, rows, eos, weights, beams, **options):
    tokens, lengths, scores, valid, states = search(name, table, weights, beams, **options)
    oracle = {"penalty": options.get("length_penalty", 0.0), "renormalize": options.get("renormalize", False)}
    members = {row for row in rows if len(row) <= options.get("max_tokens", table.max_length)}
    for b in range(weights.shape[1]):
        every = naive.ranking(members, weights[:, b], eos, **oracle)
        ranking, exact = every[:beams], {sequence: score for score, sequence in every}
        kept = len(ranking)
        assert valid[b].tolist() == [True] * kept + [False] * (beams - kept)
        found = [tuple(tokens[b, i, : lengths[b, i]].tolist()) for i in range(kept)]
        assert len(set(found)) == kept
        for sequence, (score, expected) in zip(found, ranking, strict=True):  # float32 may swap what is all but equal
            assert sequence == expected or abs(exact[sequence] - score) < 1e-5
        np.testing.assert_allclose(scores[b, :kept], [score for score, _ in ranking], rtol=1e-4, atol=1e-4)
        assert (scores[b, kept:] == -np.inf).all()
        assert (tokens[b, kept:] == -1).all()
        assert (lengths[b, kept:] == 0).all()
        for i, sequence in enumerate(found):
            assert (tokens[b, i, len(sequence) :] == -1).all()
            at = [r for r, row in enumerate(rows) if row == sequence]
            assert table.input_rows(states[b, i])[0].tolist() == at


few = settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", marked(ALL, slow=["jax"]))
@few
@given(case=naive.sid_sets(), spare=st.integers(0, 3), renormalize=st.booleans(), seed=st.integers(0, 99))
def test_with_enough_beams_the_result_is_the_exact_ranking_of_all_sids(name, case, spare, renormalize, seed):
    rows, vocab = case
    table = mw.compile_sids(np.array(rows), vocab)
    weights = np.random.default_rng(seed).normal(size=(table.max_length, 2, vocab, vocab)).astype(np.float32)
    check(name, table, rows, None, weights, len(set(rows)) + spare, renormalize=renormalize)


@pytest.mark.parametrize("name", marked(ALL, slow=["jax"]))
@few
@given(
    case=naive.ragged_sets(eos=0), with_eos=st.booleans(), penalty=st.sampled_from([0.0, 0.7, 1.0]),
    renormalize=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_with_enough_beams_the_result_is_the_exact_ranking_of_all_sequences(
    name, case, with_eos, penalty, renormalize, seed
):
    rows, vocab = case
    eos = 0 if with_eos else None
    if renormalize and not with_eos:
        renormalize = False  # without EOS a prefix ends at no cost: there is no distribution to renormalize
    table = mw.compile_sequences([list(row) for row in rows], vocab_size=vocab, eos=eos)
    weights = np.random.default_rng(seed).normal(size=(table.max_length + 1, 2, vocab, vocab)).astype(np.float32)
    beams = len(set(rows)) + 1
    check(name, table, rows, eos, weights, beams, length_penalty=penalty, renormalize=renormalize)
    shorter = max(table.min_length, table.max_length - 1)
    check(name, table, rows, eos, weights, beams, max_tokens=shorter)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("count_eos", [False, True])
def test_the_empty_sequence_is_a_result_where_the_table_has_it(name, penalty, count_eos):
    """Of a regular expression, scored by EOS at the first step; it counts as one token."""
    vocab = mw.Vocabulary.from_bytes([b"", b"a", b"b"], eos=0)
    table = mw.compile_regex("(a|bb){0,2}", vocab)
    rows = [(), (1,), (1, 1), (2, 2), (1, 2, 2), (2, 2, 1), (2, 2, 2, 2)]
    weights = np.random.default_rng(3).normal(size=(5, 2, 3, 3)).astype(np.float32)
    weights[0, 0, 0, 0] = 4.0  # the best of the first input
    options = {"length_penalty": penalty, "count_eos": count_eos, "max_tokens": 4}
    tokens, lengths, scores, valid, states = search(name, table, weights, len(rows) + 1, **options)
    for b in range(2):
        ranking = []
        for row in rows:
            total = naive.ranking({row}, weights[:, b], 0)[0][0]
            ranking.append((total / max(1, len(row) + count_eos) ** penalty, row))
        ranking.sort(reverse=True)
        assert valid[b].tolist() == [True] * len(rows) + [False]
        found = [tuple(tokens[b, i, : lengths[b, i]].tolist()) for i in range(len(rows))]
        assert found == [row for _, row in ranking]
        np.testing.assert_allclose(scores[b, :-1], [score for score, _ in ranking], rtol=1e-4, atol=1e-4)
        assert states[b][found.index(())] == 0
    assert lengths[0, 0] == 0


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_few_beams_keep_the_best_of_all_allowed_continuations_at_every_step(name):
    """A step-by-step beam search over tuples, with allowed tokens far below the unmasked top."""
    rng = np.random.default_rng(0)
    vocab, beams = 50, 4
    rows = sorted({tuple(r) for r in rng.integers(0, vocab, (200, 3)).tolist()})
    table = mw.compile_sids(np.array(rows), vocab)
    weights = rng.normal(size=(3, 2, vocab, vocab)).astype(np.float32)
    tokens, _, scores, valid, _ = search(name, table, weights, beams)
    for b in range(2):
        live = [(0.0, ())]
        for t in range(3):
            grown = []
            for total, prefix in live:
                p = naive.log_softmax(weights[t, b, prefix[-1] if prefix else 0])
                grown += [(total + p[a], (*prefix, a)) for a in naive.allowed_after(set(rows), prefix, None)]
            live = sorted(grown, reverse=True)[:beams]
        assert [tuple(x) for x in tokens[b].tolist()] == [prefix for _, prefix in live]
        np.testing.assert_allclose(scores[b], [total for total, _ in live], rtol=1e-4)
        assert valid[b].all()


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_beams_never_cross(name):
    table = mw.compile_sids([[1, 2], [3, 4]], 6)
    weights = np.zeros((2, 1, 6, 6), np.float32)
    weights[1, 0, 1, 4] = weights[1, 0, 3, 2] = 50.0  # the model insists on the crossed pairs
    tokens, _, _, valid, _ = search(name, table, weights, 5)
    assert sorted(map(tuple, tokens[0][valid[0]].tolist())) == [(1, 2), (3, 4)]


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_what_the_model_rules_out_is_flagged_and_the_rest_is_found(name):
    rows = [(1, 2), (3, 4), (5, 1), (0, 0)]
    table = mw.compile_sids(np.array(rows), 6)
    weights = np.zeros((2, 2, 6, 6), np.float32)
    weights[0, 0, 0, 3] = -np.inf  # (3, 4) is impossible for the first input
    weights[1, 0, 5] = np.nan  # after 5 the model breaks down
    weights[:, 1] = np.nan  # for the second input it does at once
    tokens, _, scores, valid, _ = search(name, table, weights, 4)
    assert sorted(map(tuple, tokens[0][valid[0]].tolist())) == [(0, 0), (1, 2)]
    assert not valid[1].any()
    assert (scores[~valid] == -np.inf).all()
    assert (tokens[~valid] == -1).all()


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_the_cache_follows_its_beam(name):
    """The cache holds each beam's own tokens, in a tree of arrays; the last step checks them."""
    ops, into = backend(name)
    rng = np.random.default_rng(4)
    rows = rng.integers(0, 30, (400, 4))
    table = mw.compile_sids(rows, 30)
    weights = rng.normal(size=(4, 2, 30, 30)).astype(np.float32)
    inner = bigram(name, weights, 6)
    seen: list[Any] = []

    def step(tokens, cache, t):
        logits, _ = inner(tokens, None, t)
        written = [*cache["written"], tokens]
        seen.append(written)
        return logits, {"written": written, "nothing": None, "pair": cache["pair"]}

    rows_of_beams = into(np.repeat(np.arange(2), 6))
    cache = {"written": [], "nothing": None, "pair": (rows_of_beams, [rows_of_beams])}
    found = beam_search(step, cache, ops.to_device(table), ops=ops, batch=2, beams=6, max_tokens=4)
    last = np.stack([np.asarray(x) for x in seen[-1]], axis=1).reshape(2, 6, 4)[:, :, 1:]
    for b in range(2):
        tokens = np.asarray(found.tokens[b])
        assert sorted(map(tuple, last[b].tolist())) == sorted(map(tuple, tokens[:, :3].tolist()))


def test_a_custom_gather_is_used_and_a_cache_that_is_no_tree_is_refused():
    ops, _ = backend("torch")
    table = mw.compile_sids([[0, 1, 1], [0, 2, 0], [1, 1, 1]], 3)
    weights = np.random.default_rng(0).normal(size=(3, 1, 3, 3)).astype(np.float32)
    calls = []

    def gather(cache, index):
        calls.append(index.tolist())
        return cache

    step = bigram("torch", weights, 2)
    options = {"ops": ops, "batch": 1, "beams": 2, "max_tokens": 3}
    beam_search(step, object(), ops.to_device(table), gather=gather, **options)
    assert calls
    assert all(len(index) == 2 for index in calls)
    with pytest.raises(TypeError, match="the cache holds a object"):
        beam_search(step, object(), ops.to_device(table), **options)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_without_a_constraint_the_search_is_over_everything(name):
    ops, _ = backend(name)
    weights = np.random.default_rng(1).normal(size=(3, 2, 4, 4)).astype(np.float32)
    found = beam_search(bigram(name, weights, 64), None, None, ops=ops, batch=2, beams=64, max_tokens=3)
    every = {tuple(s) for s in np.stack(np.meshgrid(*[range(4)] * 3), -1).reshape(-1, 3).tolist()}
    for b in range(2):
        ranking = naive.ranking(every, weights[:, b], None)
        assert [tuple(x) for x in np.asarray(found.tokens[b]).tolist()] == [s for _, s in ranking]
    assert np.asarray(found.valid).all()


@pytest.mark.parametrize("name", ALL)
def test_impossible_requests_are_refused(name):
    ops, _ = backend(name)
    dev = ops.to_device(mw.compile_sids([[0, 1, 2]], 3))
    step = bigram(name, np.zeros((3, 1, 3, 3), np.float32), 1)
    with pytest.raises(ValueError, match="max_tokens=2 is less than the shortest sequence, 3 tokens"):
        beam_search(step, None, dev, ops=ops, batch=1, beams=1, max_tokens=2)
    if name != "numpy":
        with pytest.raises(TypeError, match="a constraint from to_device is needed"):
            beam_search(step, None, mw.compile_sids([[0, 1, 2]], 3), ops=ops, batch=1, beams=1, max_tokens=3)
    with pytest.raises(TypeError, match=r"dev must come from ops.to_device, or be None, not a list"):
        beam_search(step, None, [[0, 1, 2]], ops=ops, batch=1, beams=1, max_tokens=3)
    with pytest.raises(ValueError, match="must be positive, not 1, 0 and 3"):
        beam_search(step, None, dev, ops=ops, batch=1, beams=0, max_tokens=3)


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("eos", [None, 0])
def test_the_whole_search_compiles_in_torch(eos, compiler):
    torch = pytest.importorskip("torch")
    ops, _ = backend("torch")
    rng = np.random.default_rng(0)
    table = mw.compile_sids(rng.integers(1, 40, (800, 3)), 40, eos=eos)
    dev = ops.to_device(table)
    step = bigram("torch", rng.normal(size=(4, 2, 40, 40)).astype(np.float32), 5)

    def run():
        return beam_search(step, None, dev, ops=ops, batch=2, beams=5, max_tokens=3)

    plain, quick = run(), torch.compile(run, fullgraph=True, backend=compiler)()
    assert torch.equal(plain.tokens, quick.tokens)
    torch.testing.assert_close(plain.scores, quick.scores)


@pytest.mark.long
@pytest.mark.parametrize("eos", [None, 0])
def test_the_whole_search_jits_in_jax_with_the_table_as_an_argument(eos):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    ops, _ = backend("jax")
    rng = np.random.default_rng(0)
    table = mw.compile_sids(rng.integers(1, 40, (800, 3)), 40, eos=eos)
    weights = jnp.asarray(rng.normal(size=(4, 2, 40, 40)), jnp.float32)
    rows = jnp.repeat(jnp.arange(2), 5)

    def run(dev, weights):
        step = lambda tokens, cache, t: (weights[t, rows, tokens], cache)  # noqa: E731
        return beam_search(step, None, dev, ops=ops, batch=2, beams=5, max_tokens=3)

    plain, quick = run(ops.to_device(table), weights), jax.jit(run)(ops.to_device(table), weights)
    np.testing.assert_array_equal(plain.tokens, quick.tokens)
    np.testing.assert_allclose(plain.scores, quick.scores, rtol=1e-5)
