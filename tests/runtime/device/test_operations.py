"""Operations on a table: numpy against sets of tuples, torch and JAX against numpy."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata import sequence_sort
from maskwright.automata import trie as trie_module
from maskwright.runtime import numpy_ops
from maskwright.runtime.device.device_table import State
from tests.marks import marked
from tests.oracles import naive
from tests.strategies.tables import every_node
from tests.support.backends import ALL, FAST, backend, compiled, out

few = settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def tables(draw: Any) -> tuple[mw.TransitionTable, set[naive.Tokens], int | None]:
    kind = draw(st.sampled_from(["sids", "sids with eos", "sequences", "sequences with eos"]))
    eos = 0 if "eos" in kind else None
    if kind.startswith("sids"):
        rows, vocab = draw(naive.sid_sets())
        if eos is not None:
            rows, vocab = [tuple(t + 1 for t in row) for row in rows], vocab + 1
        table = mw.compile_sids(np.array(rows), vocab, eos=eos)
    else:
        rows, vocab = draw(naive.ragged_sets(eos=eos))
        table = mw.compile_sequences([list(row) for row in rows], vocab_size=vocab, eos=eos)
    return table, set(rows), eos


def logits_for(nodes: np.ndarray, vocab: int, seed: int = 0, special: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(nodes.size, vocab)).astype(np.float32)
    if special:
        for value in (-np.inf, np.nan, np.inf):
            logits[rng.random(logits.shape) < 0.05] = value
        logits[:: max(1, nodes.size // 3)] = -np.inf
    return logits


@pytest.mark.long
@settings(deadline=None, max_examples=40)
@given(tables(), st.booleans())
def test_numpy_allows_exactly_what_the_set_allows(case, special):
    table, rows, eos = case
    for prefix in naive.prefixes(rows):
        state = numpy_ops.start(table, 1)
        for token in prefix:
            state = numpy_ops.advance(table, state, np.array([token]))
        allowed = sorted(naive.allowed_after(rows, prefix, eos))
        logits = logits_for(state.node, table.vocab_size, len(prefix), special)
        masked = numpy_ops.mask_logits(table, logits, state)
        kept = np.full_like(logits, -np.inf)
        kept[0, allowed] = logits[0, allowed]
        np.testing.assert_array_equal(masked, kept)
        assert numpy_ops.accepting(table, state).tolist() == [prefix in rows]
        for token in range(table.vocab_size):
            reached = numpy_ops.advance(table, state, np.array([token])).node[0]
            assert (reached == table.dead) == (token not in allowed)
        if not special and allowed:
            p = naive.log_softmax(logits[0])
            mass = numpy_ops.log_mass(table, logits, state)[0]
            np.testing.assert_allclose(mass, np.log(np.exp(p[allowed]).sum()), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", FAST)
@few
@given(case=tables(), special=st.booleans())
def test_masks_states_and_masses_agree_with_numpy(name, case, special):
    agree(name, case[0], special)


@pytest.mark.long
@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(
    ("rows", "vocab", "special"),
    [
        ([(0,)], 1, False),
        ([(0, 0, 0)], 1, True),
        ([(32, 5)], 33, False),
        ([(t, 64 - t) for t in range(65)], 65, True),
    ],
    ids=["one token", "the same token", "past a word", "past two words"],
)
def test_masks_states_and_masses_of_small_tables_agree_with_numpy(name, rows, vocab, special):
    agree(name, mw.compile_sids(np.array(rows), vocab), special)


def agree(name: str, table: mw.TransitionTable, special: bool) -> None:
    ops, into = backend(name)
    dev = ops.to_device(table)
    nodes = every_node(table)
    state, expected = State(into(nodes)), State(nodes)
    logits = logits_for(nodes, table.vocab_size, 1, special)
    masked, accepting, mass = compiled(
        name,
        lambda logits, state: (
            ops.mask_logits(dev, logits, state), ops.accepting(dev, state), ops.log_mass(dev, logits, state)
        ),
    )(into(logits), state)  # fmt: skip
    np.testing.assert_array_equal(out(masked), numpy_ops.mask_logits(table, logits, expected))
    np.testing.assert_array_equal(out(accepting), numpy_ops.accepting(table, expected))
    advance = compiled(name, lambda state, tokens: ops.advance(dev, state, tokens).node)
    for token in {
        0,
        1,
        table.vocab_size // 2,
        table.vocab_size - 1,
        table.vocab_size,
        -1,
        *range(min(8, table.vocab_size)),
    }:
        tokens = np.full(nodes.size, token)
        np.testing.assert_array_equal(
            out(advance(state, into(tokens))), numpy_ops.advance(table, expected, tokens).node
        )
    if not special:
        np.testing.assert_allclose(out(mass), numpy_ops.log_mass(table, logits, expected), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", FAST)
@few
@given(case=tables(), special=st.booleans(), width=st.integers(1, 9))
def test_candidates_agree_with_numpy(name, case, special, width):
    table, _, _ = case
    ops, into = backend(name)
    dev = ops.to_device(table)
    nodes = every_node(table)
    logits = logits_for(nodes, table.vocab_size, 2, special)
    candidates = compiled(name, lambda logits, state: ops.candidates(dev, logits, state, width))
    best = candidates(into(logits), State(into(nodes)))
    expected = numpy_ops.candidates(table, logits, State(nodes), width)
    np.testing.assert_allclose(out(best.scores), expected.scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(out(best.tokens), expected.tokens)
    np.testing.assert_array_equal(out(best.states.node), expected.states.node)


@pytest.mark.parametrize("name", marked(FAST, slow=["jax"]))
@few
@given(case=tables(), width=st.integers(1, 5), renormalize=st.booleans(), special=st.booleans())
def test_candidates_and_select_at_each_level_agree_with_numpy(name, case, width, renormalize, special):
    table, _, eos = case
    ops, into = backend(name)
    dev = ops.to_device(table)
    state, expected = ops.start(dev, 2), numpy_ops.start(table, 2)
    scores = np.zeros((2, 1), np.float32)
    for level in range(table.max_length + 1):
        logits = logits_for(expected.node, table.vocab_size, level, special)
        best = ops.candidates(dev, into(logits), state, width, level=level)
        wanted = numpy_ops.candidates(table, logits, expected, width)
        np.testing.assert_allclose(out(best.scores), wanted.scores, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(out(best.tokens), wanted.tokens)
        np.testing.assert_array_equal(out(best.states.node), wanted.states.node)
        if eos is not None:
            np.testing.assert_allclose(
                out(ops.end_scores(dev, into(logits), state, renormalize)),
                numpy_ops.end_scores(table, logits, expected, renormalize), rtol=1e-4, atol=1e-5,
            )  # fmt: skip
        picked = ops.select(dev, into(logits), state, into(scores), 3, level, renormalize)
        wanted = numpy_ops.select(table, logits, expected, scores, 3, level, renormalize)
        np.testing.assert_allclose(out(picked.scores), wanted.scores, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(out(picked.tokens), wanted.tokens)
        np.testing.assert_array_equal(out(picked.state.node), wanted.state.node)
        alive = wanted.scores > -np.inf
        assert (picked.parents is None) == (wanted.parents is None)
        if wanted.parents is not None:
            np.testing.assert_array_equal(out(picked.parents)[alive], wanted.parents[alive])
        state, expected = picked.state, wanted.state
        scores = wanted.scores.astype(np.float32)


@pytest.mark.parametrize("name", ALL)
def test_nothing_leaks_between_sequences(name):
    ops, into = backend(name)
    dev = ops.to_device(mw.compile_sids([[1, 2], [3, 4]], 6))
    advance = compiled(name, lambda state, tokens: ops.advance(dev, state, tokens))
    mask = compiled(name, lambda state: ops.mask_logits(dev, into(np.ones((2, 6), np.float32)), state))
    state = advance(ops.start(dev, 2), into(np.array([1, 3])))
    assert [np.flatnonzero(row > -np.inf).tolist() for row in out(mask(state))] == [[2], [4]]
    crossed = advance(state, into(np.array([4, 2])))
    assert out(ops.accepting(dev, crossed)).tolist() == [False, False]
    assert (out(mask(crossed)) == -np.inf).all()


@pytest.mark.parametrize("name", marked(FAST, slow=["jax"]))
def test_large_tables_with_masks_and_tails_agree_with_numpy(name):
    ops, into = backend(name)
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 300, (60_000, 4))
    rows[:30] = 299 - np.arange(30)[:, None]  # first tokens of their own, so that depth 1 has tails and masks
    rows = rows[(rows[:, 0] < 270) | (np.arange(len(rows)) < 30)]
    table = mw.compile_sids(rows, 300)
    assert table.levels[1].dense
    assert table.levels[1].tails
    dev = ops.to_device(table)
    nodes = np.unique(
        np.concatenate([rng.integers(0, table.num_states, 300), table.walk(rows[:30, :1]), [0, 1, table.dead]])
    )
    logits = logits_for(nodes, 300)
    masked = numpy_ops.mask_logits(table, logits, State(nodes))
    np.testing.assert_array_equal(out(ops.mask_logits(dev, into(logits), State(into(nodes)))), masked)
    for _ in range(20):
        tokens = np.where(rng.random(nodes.size) < 0.5, masked.argmax(axis=1), rng.integers(0, 300, nodes.size))
        np.testing.assert_array_equal(
            out(ops.advance(dev, State(into(nodes)), into(tokens)).node),
            numpy_ops.advance(table, State(nodes), tokens).node,
        )
    depth_one = table.walk(np.concatenate([rows[:30, :1], rows[100:130, :1]]))
    scores = rng.normal(size=(3, 20)).astype(np.float32)
    logits = logits_for(depth_one, 310, 9)
    logits[3] = np.nan
    logits[7, 305] = np.nan  # not allowed: it spoils the full softmax, but not that of the allowed tokens
    logits[40, 308] = np.inf
    logits[41, int(table.edges.token[table.rows.edge_start[depth_one[41]]])] = np.inf  # allowed
    for renormalize in (False, True):
        picked = ops.select(dev, into(logits), State(into(depth_one)), into(scores), 50, 1, renormalize)
        wanted = numpy_ops.select(table, logits, State(depth_one), scores, 50, 1, renormalize)
        np.testing.assert_allclose(out(picked.scores), wanted.scores, rtol=1e-5)
        np.testing.assert_array_equal(out(picked.tokens), wanted.tokens)
        np.testing.assert_array_equal(out(picked.parents), wanted.parents)
        np.testing.assert_array_equal(out(picked.state.node), wanted.state.node)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_contains_agrees_with_the_table(name):
    ops, into = backend(name)
    rng = np.random.default_rng(2)
    rows = rng.integers(0, 12, (300, 3))
    table = mw.compile_sids(rows, 12)
    asked = np.concatenate([rows[:50], rng.integers(0, 12, (300, 3))])
    dev = ops.to_device(table)
    assert (out(compiled(name, lambda rows: ops.contains(dev, rows))(into(asked))) == table.contains(asked)).all()
    assert table.contains(asked).tolist() == [tuple(a) in set(map(tuple, rows.tolist())) for a in asked.tolist()]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_tokens_of_any_integer_type_mean_the_same(name, dtype):
    """A narrow type must not wrap the vocabulary's size or EOS when it is compared with them."""
    ops, _ = backend(name)
    rows = [(7,), (7, 9), (100, 2), (120, 5)]
    table = mw.compile_sequences(rows, vocab_size=65_536, eos=256 * 255 + 5)
    asked = np.array([[7, 9], [7, 5], [100, 2], [120, 5], [5, 5]])
    if name == "torch":
        import torch

        if dtype in ("uint16", "uint32"):
            pytest.skip("torch has few operations on these")
        tokens = torch.tensor(asked).to(getattr(torch, dtype))
    elif name == "jax":
        import jax.numpy as jnp

        tokens = jnp.asarray(asked, "int32" if dtype == "int64" else dtype)
    else:
        tokens = asked.astype(dtype)
    assert out(ops.contains(ops.to_device(table), tokens)).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("name", ALL)
def test_inputs_of_the_wrong_kind_are_refused(name):
    ops, into = backend(name)
    dev = ops.to_device(mw.compile_sids([[0, 5]], 6))
    state = ops.start(dev, 2)
    with pytest.raises(TypeError, match=r"tokens must be integers, not .*float"):
        ops.advance(dev, state, into(np.array([1.7, 0.0], np.float32)))
    with pytest.raises(ValueError, match=r"tokens have shape \(2, 2\), there are 2 states"):
        ops.advance(dev, state, into(np.zeros((2, 2), np.int64)))
    with pytest.raises(TypeError, match=r"logits must be floating-point numbers of 16 bits or more, not .*int"):
        ops.mask_logits(dev, into(np.zeros((2, 6), np.int64)), state)
    with pytest.raises(ValueError, match=r"sids must have shape \(N, L\), not \(3,\)"):
        ops.contains(dev, into(np.zeros(3, np.int64)))
    if name != "numpy":
        with pytest.raises(TypeError, match="a constraint from to_device is needed, not a TransitionTable"):
            ops.start(mw.compile_sids([[0, 5]], 6), 2)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_padding_columns_of_the_logits_are_never_allowed(name):
    ops, into = backend(name)
    table = mw.compile_sids([[0, 1], [2, 0]], 3)
    dev = ops.to_device(table)
    masked = out(ops.mask_logits(dev, into(np.zeros((1, 8), np.float32)), ops.start(dev, 1)))
    assert np.flatnonzero(masked[0] > -np.inf).tolist() == [0, 2]
    picked = ops.select(
        dev, into(np.zeros((1, 8), np.float32)), ops.start(dev, 1), into(np.zeros((1, 1), np.float32)), 4, 0
    )
    assert (out(picked.scores) > -np.inf).sum() == 2
    np.testing.assert_allclose(out(picked.scores)[0, :2], np.log(1 / 8), rtol=1e-6)  # the full softmax has 8 columns


@pytest.mark.parametrize("name", ALL)
def test_logits_that_do_not_fit_are_refused(name):
    ops, into = backend(name)
    dev = ops.to_device(mw.compile_sids([[0, 5]], 6))
    with pytest.raises(mw.errors.VocabularyMismatchError, match="logits have 5 columns, the table's vocabulary has 6"):
        ops.mask_logits(dev, into(np.zeros((1, 5), np.float32)), ops.start(dev, 1))
    with pytest.raises(mw.errors.VocabularyMismatchError, match=r"logits must have shape \(B, V\)"):
        ops.mask_logits(dev, into(np.zeros(6, np.float32)), ops.start(dev, 1))
    with pytest.raises(ValueError, match="one state a row"):
        ops.mask_logits(dev, into(np.zeros((2, 6), np.float32)), ops.start(dev, 3))


@pytest.mark.long
@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_masks_keep_the_type_and_every_bit_of_what_is_allowed(name, dtype):
    ops, into = backend(name)
    table = mw.compile_sids(np.random.default_rng(0).integers(0, 70, (400, 2)), 70)
    nodes = every_node(table)
    logits = logits_for(nodes, 70, special=True)
    dev = ops.to_device(table)
    if name == "torch":
        import torch

        x = torch.tensor(logits).to(getattr(torch, dtype))
    else:
        import jax.numpy as jnp

        if dtype == "float64":
            pytest.skip("JAX has 64-bit floats only in its 64-bit mode")
        x = jnp.asarray(logits, dtype)
    masked = ops.mask_logits(dev, x, State(into(nodes)))
    assert masked.dtype == x.dtype
    allowed = numpy_ops.mask_logits(table, np.zeros_like(logits), State(nodes)) == 0
    np.testing.assert_array_equal(out(masked)[allowed], out(x)[allowed])
    assert (out(masked)[~allowed] == -np.inf).all()


def test_gradients_flow_through_what_is_allowed():
    torch = pytest.importorskip("torch")
    ops, _ = backend("torch")
    dev = ops.to_device(mw.compile_sids([[0, 1], [2, 0]], 3))
    logits = torch.zeros(1, 3, requires_grad=True)

    def total(logits):
        return torch.logsumexp(ops.mask_logits(dev, logits, ops.start(dev, 1)), -1).sum()

    total(logits).backward()
    assert logits.grad.tolist() == [[0.5, 0.0, 0.5]]
    _, forward = torch.func.jvp(total, (torch.zeros(1, 3),), (torch.tensor([[1.0, 10.0, 0.0]]),))
    assert forward.item() == 0.5


def walk_step(ops, dev):
    """One step that uses every operation: to be compiled, scanned and mapped."""

    def step(logits, state, tokens):
        best = ops.candidates(dev, logits, state, 3)
        return (
            ops.mask_logits(dev, logits, state),
            best,
            ops.log_mass(dev, logits, state),
            ops.advance(dev, state, tokens),
        )

    return step


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("eos", [None, 0])
def test_torch_compiles_whole_and_agrees(eos, compiler):
    torch = pytest.importorskip("torch")
    ops, _ = backend("torch")
    rows = np.random.default_rng(0).integers(1, 40, (800, 3))
    table = mw.compile_sids(rows, 40, eos=eos)
    dev = ops.to_device(table)
    step = walk_step(ops, dev)
    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=compiler)
    state = ops.start(dev, 4)
    for t in range(4):
        logits = torch.tensor(logits_for(np.arange(4), 40, t))
        tokens = torch.tensor(rows[:4, t] if t < 3 else [0] * 4)
        plain, quick = step(logits, state, tokens), compiled(logits, state, tokens)
        assert torch.equal(plain[0], quick[0])
        torch.testing.assert_close(plain[1].scores, quick[1].scores)
        assert torch.equal(plain[1].states.node, quick[1].states.node)
        torch.testing.assert_close(plain[2], quick[2])
        assert torch.equal(plain[3].node, quick[3].node)
        state = plain[3]


def test_no_torch_operation_needs_a_value_on_the_host():
    """Under fake tensors there are no values: whatever asks for one fails, as it would in a CUDA graph."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    ops, _ = backend("torch")
    dev = ops.to_device(mw.compile_sids(np.random.default_rng(0).integers(1, 40, (800, 3)), 40, eos=0))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        logits = mode.from_tensor(torch.zeros(6, 40))
        state = State(mode.from_tensor(torch.zeros(6, dtype=torch.int64)))
        walk_step(ops, dev)(logits, state, state.node)
        for level in range(4):
            ops.candidates(dev, logits, state, 3, level=level)
            for renormalize in (False, True):
                scores = mode.from_tensor(torch.zeros(2, 3))
                picked = ops.select(dev, logits, state, scores, 3, level, renormalize)
                assert picked.scores.shape == (2, 3)
                ops.end_scores(dev, logits, state, renormalize)


@pytest.mark.long
def test_jax_jits_scans_and_maps_and_agrees():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    ops, _ = backend("jax")
    rows = np.random.default_rng(0).integers(0, 40, (800, 3))
    table = mw.compile_sids(rows, 40)
    dev = ops.to_device(table)
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 40)), jnp.float32)
    tokens = jnp.asarray(rows[:4].T, jnp.int32)

    @jax.jit
    def scanned(dev, logits, tokens):
        def body(state, inputs):
            step_logits, step_tokens = inputs
            masked, best, mass, after = walk_step(ops, dev)(step_logits, state, step_tokens)
            return after, (masked, best.tokens, mass)

        return jax.lax.scan(body, ops.start(dev, 4), (logits, tokens))

    state, (masked, best, mass) = scanned(dev, logits, tokens)
    expected = numpy_ops.start(table, 4)
    for t in range(3):
        step = np.asarray(logits[t])
        np.testing.assert_array_equal(masked[t], numpy_ops.mask_logits(table, step, expected))
        np.testing.assert_array_equal(best[t], numpy_ops.candidates(table, step, expected, 3).tokens)
        np.testing.assert_allclose(mass[t], numpy_ops.log_mass(table, step, expected), rtol=1e-4, atol=1e-5)
        expected = numpy_ops.advance(table, expected, np.asarray(tokens[t]))
    np.testing.assert_array_equal(state.node, expected.node)

    mapped = jax.vmap(lambda x, node: ops.mask_logits(dev, x, State(node)))(
        logits, jnp.stack([ops.start(dev, 4).node] * 3)
    )
    np.testing.assert_array_equal(mapped[0], masked[0])


def test_jax_tables_of_another_size_but_the_same_shape_do_not_retrace():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    ops, _ = backend("jax")
    traces = []

    @jax.jit
    def mask(dev, logits, state):
        traces.append(1)
        return ops.mask_logits(dev, logits, state)

    for sids in ([[0, 1], [2, 0]], [[1, 0], [2, 2]]):
        dev = ops.to_device(mw.compile_sids(sids, 3))
        mask(dev, jnp.zeros((1, 3)), ops.start(dev, 1))
    assert len(traces) == 1


@pytest.mark.parametrize("name", marked(ALL, slow=["jax"]))
def test_tables_with_indices_of_64_bits_work(name, monkeypatch):
    for module in (sequence_sort, trie_module):
        monkeypatch.setattr(module, "WIDE", 0)
    rows = np.random.default_rng(3).integers(0, 9, (300, 4))
    table = mw.compile_sids(rows, 9)
    monkeypatch.undo()
    ops, into = backend(name)
    nodes = every_node(table)[:: 7 if name == "jax" else 1]
    logits = logits_for(nodes, 9)
    with contextlib.ExitStack() as stack:
        if name == "jax":
            import jax

            with pytest.raises(mw.errors.TableError, match="jax_enable_x64"):
                ops.to_device(table)
            stack.enter_context(jax.enable_x64(True))
        dev = ops.to_device(table)
        assert out(ops.contains(dev, into(rows[:20]))).all()
        state = State(into(nodes))
        masked = ops.mask_logits(dev, into(logits), state)
        np.testing.assert_array_equal(out(masked), numpy_ops.mask_logits(table, logits, State(nodes)))
        best = ops.candidates(dev, into(logits), state, 3)
        wanted = numpy_ops.candidates(table, logits, State(nodes), 3)
        np.testing.assert_array_equal(out(best.states.node), wanted.states.node)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("batch", "n", "k"), [(1, 1, 1), (2, 7, 7), (3, 1000, 5), (2, 5000, 9), (1, 20_001, 70)])
def test_top_k_is_exact(name, batch, n, k):
    ops, into = backend(name)
    rng = np.random.default_rng(n)
    scores = rng.normal(size=(batch, n)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.3] = -np.inf
    best, at = ops.arrays.top_k(into(scores), k)
    np.testing.assert_array_equal(out(best), -np.sort(-scores, axis=1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(scores, out(at), 1), out(best))


@pytest.mark.long
@pytest.mark.parametrize("name", FAST)
def test_wide_selection_without_a_constraint_agrees_with_numpy(name):
    """2 x 40 beams of 1,024 tokens take the blockwise way; a row of NaN must not crowd the others out."""
    ops, into = backend(name)
    logits = logits_for(np.arange(80), 1024, 4)
    logits[7] = np.nan
    scores = np.random.default_rng(0).normal(size=(2, 40)).astype(np.float32)
    picked = ops.select(None, into(logits), State(into(np.zeros(80, np.int64))), into(scores), 30, 0)
    wanted = numpy_ops.select(None, logits, State(np.zeros(80, np.int64)), scores, 30, 0)
    np.testing.assert_allclose(out(picked.scores), wanted.scores, rtol=1e-5)
    np.testing.assert_array_equal(out(picked.tokens), wanted.tokens)
    np.testing.assert_array_equal(out(picked.parents), wanted.parents)


def test_put_takes_tables_only():
    for name in FAST:
        with pytest.raises(
            TypeError,
            match=r"to_device takes a TransitionTable, a LazyTable, .*a Snapshot, a LiveFilter or an Arena, not list",
        ):
            backend(name).ops.to_device([[1, 2]])


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(case=tables(), special=st.booleans(), width=st.integers(1, 9))
def test_a_hundred_and_fifty_tables_agree_with_numpy(name, case, special, width):
    table, _, _ = case
    ops, into = backend(name)
    dev = ops.to_device(table)
    nodes = every_node(table)
    logits = logits_for(nodes, table.vocab_size, 3, special)
    np.testing.assert_array_equal(
        out(ops.mask_logits(dev, into(logits), State(into(nodes)))), numpy_ops.mask_logits(table, logits, State(nodes))
    )
    candidates = compiled(name, lambda logits, state: ops.candidates(dev, logits, state, width))
    best = candidates(into(logits), State(into(nodes)))
    expected = numpy_ops.candidates(table, logits, State(nodes), width)
    np.testing.assert_array_equal(out(best.tokens), expected.tokens)
    np.testing.assert_array_equal(out(best.states.node), expected.states.node)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_threads_of_torch_write_what_one_thread_would(kind, threads):
    torch = pytest.importorskip("torch")
    from maskwright.runtime.device.torch import memory
    from maskwright.runtime.host import logits as host_logits
    from maskwright.runtime.host import thread_pool as host_team

    team = memory.find_team()
    if sys.platform == "linux":
        assert team is not None, "torch's wheels for Linux have GNU's OpenMP"
    calls = []
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (23, 1000), np.uint32)
    words[rng.random(words.shape) < 0.4] = 0
    words[rng.random(words.shape) < 0.3] = 2**32 - 1
    buffer = torch.randn(23, 32_100).to(getattr(torch, kind))
    rows = buffer[:, 7:31_987]  # not at the beginning of anything, and with columns on both sides
    same, lowest = memory.SAME_SIZE[rows.dtype], memory.LOWEST[rows.dtype]
    allowed = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : rows.shape[1]]
    expected = buffer.clone()
    expected[:, 7:31_987].masked_fill_(torch.tensor(allowed == 0), -torch.inf)
    for _ in range(3):  # the same team again
        own = buffer.clone()
        bits = own[:, 7:31_987].view(same).numpy()
        host_logits.apply(words, bits, lowest, threads, lambda *given: calls.append(team(*given)))
        assert torch.equal(own.view(same), expected.view(same))
    assert len(calls) == (3 if threads > 1 else 0)
    assert rows.numel() > host_team.PARALLEL


def test_masks_of_two_threads_of_python_do_not_meet():
    torch = pytest.importorskip("torch")
    from concurrent.futures import ThreadPoolExecutor

    from maskwright.runtime import torch_ops

    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([i]) for i in range(97, 123)), *[b"zz"] * 65_000], eos=0)
    work = []
    for pattern in ("a+", "[a-y]+", "z*", "b|c", ".{3}", "(zz){2}x"):
        dev = torch_ops.to_device(mw.compile_regex(pattern, vocab))
        state = torch_ops.start(dev, 12)
        work.append((dev, state, torch_ops.mask_logits(dev, torch.zeros(12, vocab.size), state)))

    def masked(one: Any) -> bool:
        dev, state, expected = one
        return torch.equal(torch_ops.mask_logits_(dev, torch.zeros(12, vocab.size), state), expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(masked, work * 20))
    counts = [int((expected == 0).sum()) for _, _, expected in work]
    assert len(set(counts)) > 3


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_logits_are_masked_in_a_forked_process_too():
    pytest.importorskip("torch")
    code = """
import os, sys, warnings
import torch
import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.device.torch import memory
from tests.marks import marked
warnings.simplefilter("ignore")
torch.set_num_threads(2)
vocab = mw.Vocabulary.from_bytes([b"", b"a", *[b"b"] * 100_000], eos=0)
dev = torch_ops.to_device(mw.compile_regex("a", vocab))
state, logits = torch_ops.start(dev, 16), torch.zeros(16, vocab.size)
assert sys.platform != "linux" or memory.find_team() is not None
torch_ops.mask_logits_(dev, logits, state)
assert (logits == 0).sum() == 16
logits[:] = 0
pid = os.fork()
torch_ops.mask_logits_(dev, logits, state)
right = int((logits.numpy() == 0).sum()) == 16
if not pid:
    os._exit(7 if right else 8)
assert right and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("batch", ["x", 1.5, True, (2,), -1])
def test_a_batch_that_is_no_number_of_rows_is_refused(batch):
    torch_ops = pytest.importorskip("maskwright.runtime.torch_ops")
    jax_ops = pytest.importorskip("maskwright.runtime.jax_ops")
    table = mw.compile_sids([[1, 2]], 4)
    for ops in (numpy_ops, torch_ops, jax_ops):
        with pytest.raises((TypeError, ValueError), match="batch must be"):
            ops.start(ops.to_device(table), batch)


@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_none_has_masks_and_candidates_of_a_matrix(name):
    ops, into = backend(name)
    dev = ops.to_device(mw.sort_sids([[3, 1], [3, 0]], 4))
    state, logits = ops.start(dev, 0), into(np.zeros((0, 4), np.float32))
    assert ops.mask_logits(dev, logits, state).shape == (0, 4)
    assert ops.mask_logits(dev, logits, state, level=0).shape == (0, 4)
    assert ops.candidates(dev, logits, state, 3).scores.shape == (0, 3)


@pytest.mark.parametrize("name", ALL)
def test_what_has_no_end_or_was_not_put_is_refused_by_name(name):
    ops, into = backend(name)
    table = mw.compile_sids([[3, 1], [3, 0]], 4)
    dev, logits = ops.to_device(table), into(np.zeros((1, 4), np.float32))
    state = ops.start(dev, 1)
    with pytest.raises(ValueError, match="has no EOS"):
        ops.end_scores(dev, logits, state)
    with pytest.raises(TypeError, match="from to_device is needed, not a str"):
        ops.mask_logits("table", logits, state)
