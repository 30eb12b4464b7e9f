"""Operations on tables that are graphs, budgets, and kernels on the host: torch and JAX against numpy."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode.beam import beam_search
from maskwright.runtime.device.device_table import State
from maskwright.runtime.host import logits as host_logits
from maskwright.runtime.host import masks as host_masks
from maskwright.runtime.host import thread_pool as host_team
from tests.oracles import naive
from tests.runtime.device.interpreted import run_interpreted
from tests.strategies.random_graphs import (
    bound_pattern,
    random_graph,
    random_table,
    random_trie,
    seeds,
    some,
    some_nodes,
)
from tests.support.backends import bits_of, out


def logits_like(rows: int, columns: int, seed: int, special: bool = True) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, columns)).astype(np.float32)
    if special:
        for value in (-np.inf, np.nan, np.inf):
            logits[rng.random(logits.shape) < 0.03] = value
    return logits


def same(got: Any, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(out(got), wanted)


def close(got: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(out(got), wanted, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def bound() -> mw.TransitionTable:
    return bound_pattern()


@pytest.fixture(params=["kernels", "gathers"])
def torch_way(request, monkeypatch) -> SimpleNamespace:
    """torch_ops by its kernels on the host, and by gathers alone as on any device."""
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops
    from maskwright.runtime.device.torch import compat

    if request.param == "gathers":
        monkeypatch.setattr(compat, "is_plain", lambda *x: False)
    return SimpleNamespace(ops=torch_ops, torch=torch, kernels=request.param == "kernels")


# ------------------------------------------------------------------------------------------------ numpy


def test_the_random_graphs_of_these_tests_have_what_graphs_can_have():
    tables = [random_graph(seed) for seed in range(60)]
    assert sum((t.edges.target == t.dead).any() for t in tables) > 10
    assert sum((t.bases.target & 1).any() for t in tables) > 20
    assert sum(np.bincount(t.rows.base[t.rows.base >= 0], minlength=1).max() > 1 for t in tables) > 10
    assert sum((t.bases.target >> 1 >= t.num_rows - 1).any() for t in tables) > 10
    assert sum(t.num_rows == 1 for t in tables) > 3
    assert sum(bool(t.rows.accepting[0]) for t in tables) > 10
    assert sum(t.eos is None for t in tables) > 10
    assert sum(t.distance[:-1].max() > 1 for t in tables) > 10


@pytest.mark.long
@some
@given(seeds)
def test_numpy_agrees_with_the_walk_of_a_table(seed):
    table = random_table(seed)
    rng = np.random.default_rng(seed)
    tokens = rng.integers(-1, table.vocab_size + 1, (60, 5))
    state = numpy_ops.start(table, 60)
    for t in range(5):
        masked = bits_of(numpy_ops.bitmask(table, state), table.vocab_size)
        for row in np.flatnonzero(rng.random(60) < 0.8):  # mostly tokens that are allowed
            if masked[row].any():
                tokens[row, t] = rng.choice(np.flatnonzero(masked[row]))
        state = numpy_ops.advance(table, state, tokens[:, t])
        same(state.node, table.walk(tokens[:, : t + 1]))
    same(numpy_ops.contains(table, tokens), table.contains(tokens))


@some
@given(seeds)
def test_masks_packed_on_the_host_are_the_specification(seed):
    table = random_table(seed)
    nodes = some_nodes(table, 40, seed)
    same(host_masks.compose(table, nodes), numpy_ops.bitmask(table, State(nodes)))
    rng = np.random.default_rng(seed)
    for high in (3, 9, 2**40):
        room = rng.integers(-1, high, nodes.size)
        same(host_masks.compose(table, nodes, room), numpy_ops.bitmask(table, State(nodes), room))
    room = np.full(nodes.size, 2**31)  # more than the distance by which the dead state is marked
    same(host_masks.compose(table, nodes, room), numpy_ops.bitmask(table, State(nodes)))


# ------------------------------------------------------------------------------------------------ torch


@pytest.mark.long
@some
@given(seed=seeds)
def test_torch_agrees_with_numpy(torch_way, seed):
    ops, into = torch_way.ops, torch_way.torch.tensor
    rng = np.random.default_rng(seed)
    table = random_table(seed)
    dev = ops.to_device(table, distances=True)
    nodes = some_nodes(table, int(rng.integers(0, 30)), seed)
    state, expected = State(into(nodes)), State(nodes)
    room = rng.integers(-1, 8, nodes.size)
    size = table.vocab_size
    logits = logits_like(nodes.size, size + int(rng.choice([0, 0, 5, 70])), seed)
    for given_room in (None, room):
        left = None if given_room is None else into(given_room)
        words = ops.bitmask(dev, state, left)
        assert words.dtype == torch_way.torch.int32
        same(words.numpy().view(np.uint32), numpy_ops.bitmask(table, expected, given_room))
        wanted = numpy_ops.mask_logits(table, logits, expected, given_room)
        same(ops.mask_logits(dev, into(logits), state, left), wanted)
        own = into(logits)
        assert ops.mask_logits_(dev, own, state, left) is own
        same(own, wanted)
    same(ops.accepting(dev, state), numpy_ops.accepting(table, expected))
    for token in {-1, 0, size - 1, size, size + 1, *rng.integers(0, size, 12).tolist()}:
        tokens = np.full(nodes.size, token)
        same(ops.advance(dev, state, into(tokens)).node, numpy_ops.advance(table, expected, tokens).node)
    tokens = rng.integers(-1, size + 1, (30, 4))
    same(ops.contains(dev, into(tokens)), table.contains(tokens))

    width = int(rng.integers(1, 12))
    best, wanted = ops.candidates(dev, into(logits), state, width), None
    wanted = numpy_ops.candidates(table, logits, expected, width)
    close(best.scores, wanted.scores)
    same(best.tokens, wanted.tokens)
    same(best.states.node, wanted.states.node)
    sound = logits_like(nodes.size, logits.shape[1], seed, special=False)
    close(ops.log_mass(dev, into(sound), state), numpy_ops.log_mass(table, sound, expected))


@some
@given(seed=seeds, renormalize=st.booleans())
def test_torch_selects_as_numpy_does(torch_way, seed, renormalize):
    ops, into = torch_way.ops, torch_way.torch.tensor
    rng = np.random.default_rng(seed)
    table = random_graph(seed)
    dev = ops.to_device(table)
    batch, m = 2, int(rng.integers(1, 5))
    nodes = rng.integers(0, table.num_states, batch * m)
    logits = logits_like(nodes.size, table.vocab_size + int(rng.choice([0, 3])), seed)
    scores = rng.normal(size=(batch, m)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.2] = -np.inf
    beams = int(rng.integers(1, 9))
    picked = ops.select(dev, into(logits), State(into(nodes)), into(scores), beams, 0, renormalize)
    wanted = numpy_ops.select(table, logits, State(nodes), scores, beams, 0, renormalize)
    close(picked.scores, wanted.scores)
    same(picked.tokens, wanted.tokens)
    same(picked.state.node, wanted.state.node)
    alive = wanted.scores > -np.inf
    same(out(picked.parents)[alive], wanted.parents[alive])
    if table.eos is not None:
        close(
            ops.end_scores(dev, into(logits), State(into(nodes)), renormalize),
            numpy_ops.end_scores(table, logits, State(nodes), renormalize),
        )


@pytest.mark.long
def test_torch_agrees_with_numpy_where_rows_share_bases(torch_way, bound):
    ops, into = torch_way.ops, torch_way.torch.tensor
    dev = ops.to_device(bound, distances=True)
    nodes = some_nodes(bound, 30)
    rng = np.random.default_rng(0)
    room = np.maximum(0, bound.distance[nodes].astype(np.int64).clip(max=99) + rng.integers(-1, 6, nodes.size))
    state, expected = State(into(nodes)), State(nodes)
    logits = logits_like(nodes.size, bound.vocab_size, 0)
    masked = numpy_ops.mask_logits(bound, logits, expected)
    same(ops.mask_logits(dev, into(logits), state), masked)
    in_time = numpy_ops.bitmask(bound, expected, room)
    assert (in_time != numpy_ops.bitmask(bound, expected)).any()
    same(ops.bitmask(dev, state, into(room)).numpy().view(np.uint32), in_time)
    for _ in range(15):
        tokens = np.where(rng.random(nodes.size) < 0.6, masked.argmax(1), rng.integers(0, bound.vocab_size, nodes.size))
        same(ops.advance(dev, state, into(tokens)).node, numpy_ops.advance(bound, expected, tokens).node)
    for kind in (np.uint8, np.int8, np.int32):
        same(ops.bitmask(dev, state, into(room.astype(kind))).numpy().view(np.uint32), in_time)


@functools.cache
def large() -> tuple[mw.TransitionTable, mw.Vocabulary]:
    """A table for a vocabulary as large as any in use."""
    words = [bytes(w) for n in range(1, 9) for w in itertools.product(b"abcd", repeat=n)]
    single = [bytes([b]) for b in range(256) if b not in b"abcd0123456789"]
    numbers = [str(n).encode() for n in range(262_144 - 1 - len(words) - len(single))]
    vocab = mw.Vocabulary.from_bytes([*words, *single, *numbers, b""], eos=262_143)
    return mw.compile_regex("x[a-d]{3,30}(?:[0-9]{1,9})?", vocab, lazy=False), vocab


@pytest.mark.slow
def test_a_vocabulary_of_262_144_tokens(torch_way):
    ops, torch = torch_way.ops, torch_way.torch
    table, vocab = large()
    assert table.vocab_size == 262_144
    dev = ops.to_device(table, distances=True)
    text = [b"x", b"abcd", b"1234"]
    state, expected = ops.start(dev, 2), numpy_ops.start(table, 2)
    logits = np.zeros((2, 262_144), np.float32)
    for token in [vocab.tokens.index(t) for t in text] + [vocab.eos]:
        room = np.array([3, 1])
        same(ops.mask_logits(dev, torch.tensor(logits), state), numpy_ops.mask_logits(table, logits, expected))
        words_in_time = ops.bitmask(dev, state, torch.tensor(room)).numpy().view(np.uint32)
        same(words_in_time, numpy_ops.bitmask(table, expected, room))
        tokens = np.full(2, token)
        state = ops.advance(dev, state, torch.tensor(tokens))
        expected = numpy_ops.advance(table, expected, tokens)
        same(state.node, expected.node)
    assert expected.node.tolist() == [table.after_eos] * 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_torch_keeps_the_type_and_every_bit_of_what_is_allowed(torch_way, dtype):
    ops, torch = torch_way.ops, torch_way.torch
    table = random_graph(7)
    nodes = some_nodes(table, 30)
    dev = ops.to_device(table)
    x = torch.tensor(logits_like(nodes.size, table.vocab_size + 9, 3)).to(getattr(torch, dtype))
    allowed = np.pad(bits_of(numpy_ops.bitmask(table, State(nodes)), table.vocab_size), ((0, 0), (0, 9)))
    for masked in (
        ops.mask_logits(dev, x, State(torch.tensor(nodes))),
        ops.mask_logits_(dev, x.clone(), State(torch.tensor(nodes))),
    ):
        assert masked.dtype == x.dtype
        same(out(masked)[allowed], out(x)[allowed])
        assert (out(masked)[~allowed] == -np.inf).all()


def test_torch_masks_rows_of_a_larger_buffer_in_place(torch_way):
    ops, torch = torch_way.ops, torch_way.torch
    table = random_graph(5)
    size = table.vocab_size
    nodes = np.array([0, 0, table.dead])
    logits = logits_like(3, size, 1)
    wanted = numpy_ops.mask_logits(table, logits, State(nodes))
    dev, state = ops.to_device(table), State(torch.tensor(nodes))
    buffer = torch.full((3, 4, size + 7), 2.5)
    for view in (buffer[:, -1, :size], buffer[:, 0, 3 : size + 3], buffer[0, 1:, :size], torch.zeros(size, 3).T):
        before = buffer.clone()
        view.copy_(torch.tensor(logits))
        assert ops.mask_logits_(dev, view, state) is view
        same(view, wanted)
        view.fill_(2.5)
        same(buffer, before.numpy())
    with pytest.raises((RuntimeError, UserWarning), match=r"expand|single memory location"):
        ops.mask_logits_(dev, torch.zeros(1, size).expand(3, size), state)


def test_torch_states_and_budgets_of_any_layout_are_read(torch_way):
    ops, torch = torch_way.ops, torch_way.torch
    table = random_graph(5)
    nodes = some_nodes(table, 6)
    pairs = torch.tensor(np.stack([nodes, nodes + 1], 1))
    dev = ops.to_device(table, distances=True)
    room = torch.arange(2 * nodes.size)[::2]
    words = ops.bitmask(dev, State(pairs[:, 0]), room).numpy().view(np.uint32)
    same(words, numpy_ops.bitmask(table, State(nodes), room.numpy()))


def test_torch_takes_batches_of_nothing_and_of_one(torch_way):
    ops, torch = torch_way.ops, torch_way.torch
    for table in (random_graph(5), random_graph(6), random_trie(4)):
        dev = ops.to_device(table, distances=True)
        for batch in (0, 1):
            state = ops.start(dev, batch)
            room = torch.full((batch,), 9)
            logits = torch.zeros(batch, table.vocab_size)
            same(
                ops.bitmask(dev, state, room).numpy().view(np.uint32),
                numpy_ops.bitmask(table, numpy_ops.start(table, batch), room.numpy()),
            )
            for masked in (ops.mask_logits(dev, logits, state, room), ops.mask_logits_(dev, logits, state)):
                assert masked.shape == logits.shape
            assert ops.advance(dev, state, torch.zeros(batch, dtype=torch.int64)).node.shape == (batch,)
            assert ops.accepting(dev, state).shape == (batch,)


def test_gradients_pass_through_what_a_graph_allows(torch_way):
    ops, torch = torch_way.ops, torch_way.torch
    table = mw.compile_regex("[ab]", mw.Vocabulary.from_bytes([b"", b"a", b"b", b"c"], eos=0), lazy=False)
    dev = ops.to_device(table)
    for mask in (ops.mask_logits, lambda dev, x, state: ops.mask_logits_(dev, x * 1, state)):
        logits = torch.zeros(1, 4, requires_grad=True)
        torch.logsumexp(mask(dev, logits, ops.start(dev, 1)), -1).sum().backward()
        assert logits.grad.tolist() == [[0, 0.5, 0.5, 0]]
    with pytest.raises(RuntimeError, match="leaf Variable"):
        ops.mask_logits_(dev, torch.zeros(1, 4, requires_grad=True), ops.start(dev, 1))
    with torch.no_grad():
        leaf = torch.zeros(1, 4, requires_grad=True)
        assert ops.mask_logits_(dev, leaf, ops.start(dev, 1)) is leaf
    assert leaf.tolist() == [[-np.inf, 0, 0, -np.inf]]


def test_autograd_notices_logits_masked_in_place_that_it_still_needs(torch_way):
    ops, torch = torch_way.ops, torch_way.torch
    dev = ops.to_device(random_graph(5))
    logits, weight = torch.ones(1, dev.vocab_size), torch.ones(1, dev.vocab_size, requires_grad=True)
    loss = (logits * weight).sum()
    ops.mask_logits_(dev, logits, ops.start(dev, 1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        logits = torch.zeros(1, dev.vocab_size)
        ops.mask_logits_(dev, logits, ops.start(dev, 1))
    same(logits, numpy_ops.mask_logits(random_graph(5), np.zeros_like(logits), numpy_ops.start(random_graph(5), 1)))


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_step_compiles_whole_in_torch(compiler):
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops as ops

    table = random_graph(5)
    assert table.bases.mask.size
    dev = ops.to_device(table, distances=True)

    def step(logits, state, room):
        masked = ops.mask_logits_(dev, logits, state, room)
        return masked, ops.advance(dev, state, masked.argmax(-1))

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=compiler)
    nodes = some_nodes(table, 9)
    for _ in range(3):
        logits = torch.tensor(logits_like(nodes.size, table.vocab_size, 1, special=False))
        room = torch.tensor(table.distance[nodes].astype(np.int64).clip(max=99))
        plain = step(logits.clone(), State(torch.tensor(nodes)), room)
        quick = compiled(logits.clone(), State(torch.tensor(nodes)), room)
        assert torch.equal(plain[0], quick[0])
        assert torch.equal(plain[1].node, quick[1].node)
        nodes = plain[1].node.numpy()


def test_no_torch_operation_on_a_graph_needs_a_value_on_the_host(bound):
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    from maskwright.runtime import torch_ops as ops

    for table in (bound, random_trie(1), random_graph(5)):
        dev = ops.to_device(table, distances=True)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            logits = mode.from_tensor(torch.zeros(6, table.vocab_size))
            state = State(mode.from_tensor(torch.zeros(6, dtype=torch.int64)))
            room = mode.from_tensor(torch.ones(6, dtype=torch.int64))
            assert ops.bitmask(dev, state, room).shape == (6, -(-table.vocab_size // 32))
            assert ops.mask_logits(dev, logits, state, room).shape == logits.shape
            assert ops.mask_logits_(dev, logits, state, room) is logits
            ops.candidates(dev, logits, state, 3)
            ops.advance(dev, state, state.node)
            for renormalize in (False, True):
                ops.select(dev, logits, state, mode.from_tensor(torch.zeros(2, 3)), 3, 1, renormalize)


def test_a_traced_step_holds_the_operations_and_not_their_results():
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    from maskwright.runtime import torch_ops as ops

    table = mw.compile_regex("ab", mw.Vocabulary.from_bytes([b"", b"a", b"b"], eos=0), lazy=False)
    dev = ops.to_device(table)
    traced = make_fx(lambda logits, node: ops.mask_logits_(dev, logits, State(node)))(
        torch.zeros(1, 3), torch.tensor([0])
    )
    after_a = ops.advance(dev, ops.start(dev, 1), torch.tensor([1])).node
    assert traced(torch.zeros(1, 3), after_a).tolist() == [[-np.inf, -np.inf, 0]]


# ------------------------------------------------------------------------------------ kernels on the host


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("threads", [1, 3, 100])
def test_threads_write_what_one_would(dtype, threads):
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (37, 1000), np.uint32)
    words[rng.random(words.shape) < 0.3] = 0
    words[rng.random(words.shape) < 0.3] = 2**32 - 1
    logits = rng.integers(1, 100, (37, 31_980)).astype(dtype)
    assert logits.size > host_team.PARALLEL
    wanted = np.where(bits_of(words, 31_980), logits, -5)
    host_logits.apply(words, logits, -5, threads)
    same(logits, wanted)


def test_masks_are_made_right_by_many_threads_at_once():
    table = random_graph(5)
    nodes = some_nodes(table, 9)
    wanted = numpy_ops.bitmask(table, State(nodes))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: host_masks.compose(table, nodes), range(40)):
            same(found, wanted)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_work_in_a_forked_process():
    code = """
import os, warnings
import numpy as np
from maskwright.runtime.host import masks as host_masks
from maskwright.runtime.host import thread_pool as host_team
from maskwright.runtime.host import logits as host_logits
warnings.simplefilter("ignore")
logits = np.ones((8, 1 << 17), np.int32)
host_logits.apply(np.zeros((8, 1), np.uint32), logits, -5, 4)
pid = os.fork()
logits[:] = 1
host_logits.apply(np.zeros((8, 1), np.uint32), logits, -5, 4)
assert (logits == -5).all()
if not pid:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.long
def test_the_triton_kernel_writes_what_numpy_says():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    run_interpreted("tests.runtime.device.test_graph_operations", "check_triton")


def check_triton() -> None:
    """Run the Triton kernel in its interpreter: a process of its own, as that is decided when Triton is imported."""
    import torch

    from maskwright.runtime import torch_ops
    from maskwright.runtime.device.torch.gpu import apply as of_gpu

    calls = []
    apply = of_gpu.apply
    of_gpu.apply = lambda *args: calls.append(1) or apply(*args)
    kinds = [torch.float32, torch.float16, torch.bfloat16]
    for i, (seed, extra) in enumerate([(7, 0), (5, 3), (6, 0), (9, 5000), (4, 1)]):
        table, dtype = random_table(seed), kinds[i % 3]
        dev = dataclasses.replace(torch_ops.to_device(table, distances=True), host=None)
        nodes = some_nodes(table, 5)
        state = State(torch.tensor(nodes))
        x = torch.tensor(logits_like(nodes.size, table.vocab_size + extra, 3)).to(dtype)
        room = np.arange(nodes.size)
        for left in (None, room):
            allowed = bits_of(numpy_ops.bitmask(table, State(nodes), left), table.vocab_size)
            allowed = np.pad(allowed, ((0, 0), (0, extra)))
            room_there = None if left is None else torch.tensor(left)
            buffer = torch.full((nodes.size, x.shape[1] + 5), 2.5, dtype=dtype)
            rows = buffer[:, 2 : 2 + x.shape[1]]
            rows.copy_(x)
            before = rows._version
            for masked in (
                torch_ops.mask_logits(dev, x, state, room_there),
                torch_ops.mask_logits(dev, rows, state, room_there),
                torch_ops.mask_logits_(dev, x.clone(), state, room_there),
                torch_ops.mask_logits_(dev, rows, state, room_there),
            ):
                assert masked.dtype == dtype
                same(out(masked)[allowed], out(x)[allowed])
                assert (out(masked)[~allowed] == -np.inf).all()
            assert rows._version > before
            assert (buffer[:, :2] == 2.5).all()
            assert (buffer[:, -3:] == 2.5).all()
    assert len(calls) == 5 * 2 * 4
    empty = torch.zeros(0, 70)
    assert of_gpu.apply(torch.zeros(0, 3, dtype=torch.int32), empty, empty) is empty


# ------------------------------------------------------------------------------------------------ JAX


@pytest.mark.long
@pytest.mark.parametrize("seed", [5, 4, None])
def test_jax_agrees_with_numpy(seed, bound):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    from maskwright.runtime import jax_ops as ops

    table = bound if seed is None else random_table(seed)
    dev = ops.to_device(table, distances=True)
    nodes = some_nodes(table, 12, 1)
    rng = np.random.default_rng(1)
    distance = table.distance[nodes].astype(np.int64).clip(max=99)
    room = distance + rng.integers(-1, 4, nodes.size)
    extra = 0 if seed == 5 else 3
    logits = logits_like(nodes.size, table.vocab_size + extra, 1)
    scores = rng.normal(size=(1, nodes.size)).astype(np.float32)

    @jax.jit
    def everything(dev, logits, node, room, tokens, scores):
        state = State(node)
        best = ops.candidates(dev, logits, state, 5)
        picked = None if dev.is_trie else ops.select(dev, logits, state, scores, 6, 1, True)
        return (
            ops.bitmask(dev, state), ops.bitmask(dev, state, room), ops.mask_logits(dev, logits, state, room),
            ops.accepting(dev, state), ops.advance(dev, state, tokens).node, best, picked,
            ops.log_mass(dev, jnp.nan_to_num(logits), state),
        )  # fmt: skip

    masked = numpy_ops.mask_logits(table, logits, State(nodes))
    for step in range(3):
        tokens = rng.integers(-1, table.vocab_size + 1, nodes.size)
        if step % 2:
            tokens = np.where(masked.max(1) > -np.inf, np.nan_to_num(masked, nan=-np.inf).argmax(1), tokens)
        words, words_in_time, in_time, ends, reached, best, picked, mass = everything(
            dev, jnp.asarray(logits), jnp.asarray(nodes, jnp.int32), jnp.asarray(room, jnp.int32),
            jnp.asarray(tokens, jnp.int32), jnp.asarray(scores),
        )  # fmt: skip
        expected = State(nodes)
        same(words, numpy_ops.bitmask(table, expected))
        same(words_in_time, numpy_ops.bitmask(table, expected, room))
        same(in_time, numpy_ops.mask_logits(table, logits, expected, room))
        same(ends, numpy_ops.accepting(table, expected))
        same(reached, numpy_ops.advance(table, expected, tokens).node)
        wanted = numpy_ops.candidates(table, logits, expected, 5)
        close(best.scores, wanted.scores)
        same(best.tokens, wanted.tokens)
        same(best.states.node, wanted.states.node)
        close(mass, numpy_ops.log_mass(table, np.nan_to_num(logits), expected))
        if picked is not None:
            wanted = numpy_ops.select(table, logits, expected, scores, 6, 1, True)
            close(picked.scores, wanted.scores)
            same(picked.tokens, wanted.tokens)
            same(picked.state.node, wanted.state.node)
        nodes = numpy_ops.advance(table, expected, tokens).node
        masked = numpy_ops.mask_logits(table, logits, State(nodes))


def test_jax_scans_maps_and_masks_graphs_in_place():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    from maskwright.runtime import jax_ops as ops

    vocab = mw.Vocabulary.from_bytes([b"", b"a", b"b", b"ab", b"ba"], eos=0)
    table = mw.compile_regex("(?:ab){1,5}", vocab, lazy=False)
    dev = ops.to_device(table, distances=True)
    logits = jnp.asarray(logits_like(3, 5, 0, special=False))

    @jax.jit
    def decode(dev, logits):
        def body(carry, _):
            state, room = carry
            token = ops.mask_logits(dev, logits, state, room).argmax(-1)
            return (ops.advance(dev, state, token), room - 1), token

        room = jnp.array([1, 3, 7], jnp.int32)
        (state, _), tokens = jax.lax.scan(body, (ops.start(dev, 3), room), None, length=8)
        return state, tokens.T

    state, tokens = decode(dev, logits)
    same(state.node, np.full(3, table.after_eos))
    assert table.contains(np.asarray(tokens)).all()
    assert ((np.asarray(tokens) != 0).sum(1) <= [1, 3, 7]).all()

    nodes = jnp.asarray([[0, 1], [2, table.dead]], jnp.int32)
    mapped = jax.jit(jax.vmap(lambda node: ops.bitmask(dev, State(node))))(nodes)
    same(mapped.reshape(4, -1), numpy_ops.bitmask(table, State(np.array(nodes).reshape(-1))))

    own = jnp.zeros((3, 5))
    wanted = numpy_ops.mask_logits(table, np.zeros((3, 5), np.float32), numpy_ops.start(table, 3))
    same(ops.mask_logits_(dev, own, ops.start(dev, 3)), wanted)
    assert own.is_deleted(), "its memory has gone to the result"
    same(jax.jit(ops.bitmask)(dev, ops.start(dev, 0)), np.zeros((0, 1), np.uint32))


@pytest.mark.parametrize("kind", ["uint8", "int32", "uint32", "int64"])
def test_jax_budgets_of_any_integer_type_mean_the_same(kind):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    from maskwright.runtime import jax_ops as ops

    table = mw.compile_regex("a{2,4}", mw.Vocabulary.from_bytes([b"", b"a", b"aa", b"aaa"], eos=0), lazy=False)
    nodes = np.tile(np.arange(table.num_states), 4)
    room = np.repeat([np.iinfo(kind).min if kind == "int32" else 0, 1, 2, 200], table.num_states)
    with jax.enable_x64(kind == "int64"):
        dev = ops.to_device(table, distances=True)
        found = jax.jit(ops.bitmask)(dev, State(jnp.asarray(nodes, jnp.int32)), jnp.asarray(room, kind))
        assert found.dtype == jnp.uint32
        same(found, numpy_ops.bitmask(table, State(nodes), room))
        after = jax.jit(ops.advance)(dev, State(jnp.asarray(nodes, jnp.int32)), jnp.asarray(np.ones(nodes.size), kind))
        assert after.node.dtype == jnp.int32
        same(after.node, numpy_ops.advance(table, State(nodes), np.ones(nodes.size, np.int64)).node)


# ------------------------------------------------------------------------------------------------ budgets


@some
@given(seed=seeds)
def test_writing_within_a_budget_always_ends_complete(torch_way, seed):
    ops, torch = torch_way.ops, torch_way.torch
    table = random_table(seed)
    dev = ops.to_device(table, distances=True)
    rng = np.random.default_rng(seed)
    room = table.min_length + rng.integers(0, 8, 20)
    state = ops.start(dev, 20)
    left = torch.tensor(room)
    length = np.zeros(20, int)
    going = np.ones(20, bool)
    for _ in range(int(room.max()) + 1):
        masked = ops.mask_logits(dev, torch.tensor(rng.normal(size=(20, table.vocab_size))), state, left)
        complete = out(ops.accepting(dev, state))
        can_go_on = out(masked.max(1).values) > -np.inf
        assert (complete | can_go_on)[going].all(), "neither complete nor a token to write"
        going &= can_go_on & (out(masked.argmax(1)) != (-1 if table.eos is None else table.eos))
        tokens = masked.argmax(1)
        state = State(torch.where(torch.tensor(going), ops.advance(dev, state, tokens).node, state.node))
        length += going
        left = left - torch.tensor(going).long()
    assert not going.any()
    assert (length <= room).all()
    assert out(ops.accepting(dev, state)).all()


@pytest.mark.long
@some
@given(seed=seeds)
def test_a_budget_allows_what_can_still_be_finished_within_it(seed):
    """Against the definition: a token is allowed if from its target some end is at most that many tokens away."""
    table = random_table(seed)
    following = [set(numpy_ops.edges(table, s).values()) for s in range(table.num_states)]
    nodes = np.arange(table.num_states)
    for room in range(5):
        within = {s for s in nodes.tolist() if table.is_accepting(s)}
        for _ in range(room - 1):
            within |= {s for s in nodes.tolist() if following[s] & within}
        found = bits_of(numpy_ops.bitmask(table, State(nodes), np.full(nodes.size, room)), table.vocab_size)
        for s in nodes.tolist():
            wanted = {
                t for t, target in numpy_ops.edges(table, s).items() if t == table.eos or (room and target in within)
            }
            assert set(np.flatnonzero(found[s]).tolist()) == wanted


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_budgets_need_distances_on_the_device(name):
    if name == "torch":
        make = pytest.importorskip("torch").tensor
        from maskwright.runtime import torch_ops as ops
    else:
        pytest.importorskip("jax")
        import jax.numpy as jnp

        from maskwright.runtime import jax_ops as ops

        make = jnp.asarray
    for table in (random_graph(5), mw.compile_sids([[0, 1]], 2)):
        dev = ops.to_device(table)
        logits = make(np.zeros((1, table.vocab_size), np.float32))
        for call in (
            lambda dev, room: ops.bitmask(dev, ops.start(dev, 1), room),
            lambda dev, room, logits=logits: ops.mask_logits(dev, logits, ops.start(dev, 1), room),
            lambda dev, room, logits=logits: ops.mask_logits_(dev, logits, ops.start(dev, 1), room),
        ):
            with pytest.raises(
                ValueError, match=r"remaining needs the table's distances .*to_device\(table, distances=True\)"
            ):
                call(dev, make(np.array([3])))
            with pytest.raises(ValueError, match=r"remaining has shape \(2,\), there are 1 rows"):
                call(ops.to_device(table, distances=True), make(np.array([3, 3])))
            with pytest.raises(TypeError, match=r"remaining must be integers, not .*float32"):
                call(ops.to_device(table, distances=True), make(np.array([3.0], np.float32)))


# ------------------------------------------------------------------------------------------------ beam search


def paths(table: mw.TransitionTable, longest: int) -> dict[naive.Tokens, int]:
    """Every sequence of at most `longest` tokens and the state it leads to."""
    found, ends = {(): 0}, {}
    for _ in range(longest + 1):
        ends |= {path: node for path, node in found.items() if table.is_accepting(node)}
        found = {
            (*path, token): target
            for path, node in found.items()
            for token, target in numpy_ops.edges(table, node).items()
            if token != table.eos
        }
    return ends


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_beam_search_over_graphs_finds_the_best_sequences(name):
    vocab = mw.Vocabulary.from_bytes([b"a", b"b", b"ab", b"", b"bb", b"c"], eos=3)
    for pattern, longest in (("(?:ab|b){1,6}c?", 3), ("[abc]{2,3}", 3), ("(?:a|bb)*", 3)):
        table = mw.compile_regex(pattern, vocab, lazy=False)
        members = paths(table, longest)
        logits = np.random.default_rng(3).normal(size=(longest + 1, 6, 6)).astype(np.float32)
        if name == "torch":
            torch = pytest.importorskip("torch")
            from maskwright.runtime import torch_ops as ops

            model: Any = torch.tensor(logits)
        else:
            ops, model = numpy_ops, logits
        beams = 150  # more than there are sequences that have begun, so that none is lost on the way
        found = beam_search(
            lambda tokens, cache, t, model=model: (model[t][tokens], cache), None, ops.to_device(table),
            ops=ops, batch=1, beams=beams, max_tokens=longest,
        )  # fmt: skip
        wanted = naive.ranking(set(members), logits, 3)
        assert int(out(found.valid).sum()) == len(wanted)
        close(out(found.scores)[0, : len(wanted)], np.array([score for score, _ in wanted]))
        got = [tuple(row[row >= 0].tolist()) for row in out(found.tokens)[0, : len(wanted)]]
        assert got == [sequence for _, sequence in wanted]
