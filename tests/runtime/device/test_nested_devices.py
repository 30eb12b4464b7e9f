"""Tables with calls on devices: torch and JAX against numpy, stacks included, and what is built on the operations."""

from __future__ import annotations

import functools
import itertools
import json
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.kernels.limits import UNREACHABLE
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode.beam import beam_search
from maskwright.runtime.device import device_table
from maskwright.runtime.device.device_table import State
from maskwright.runtime.host import follow as host_follow
from maskwright.runtime.host import logits as host_logits
from maskwright.runtime.host import mask_jobs
from maskwright.runtime.host import thread_pool as host_team
from maskwright.runtime.numpy_moves import configurations_of
from maskwright.table.states import NestedState
from tests.marks import marked
from tests.oracles import naive
from tests.oracles.nested_model import ROOMY, bound, random_model, sets_of, some_places, state_of
from tests.support.backends import out
from tests.support.nested_schemas import EOS, GOOD, LISTS, TREE, compiled, vocabulary

some = settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 2**32 - 1)


def read(tokens: Any) -> Any:
    return json.loads(vocabulary().decode([int(t) for t in tokens]))


def nesting(text: bytes) -> int:
    """How many lists and objects of a text without brackets in strings are open at most."""
    return max(itertools.accumulate((b in b"[{") - (b in b"]}") for b in text))


def same(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(out(got), wanted)


def same_state(got: Any, wanted: Any) -> None:
    """Equal in every slot, of numpy's types or, in JAX without 64 bits, of 32 bits."""
    assert isinstance(got, NestedState)
    assert isinstance(wanted, NestedState)
    for mine, theirs in zip(got, wanted, strict=True):
        mine = out(mine)
        assert mine.dtype in (theirs.dtype, np.int32)
        same(mine, theirs)


def close(got: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(out(got), wanted, rtol=1e-4, atol=1e-4)


def words_of(mask: Any) -> np.ndarray:
    return out(mask).view(np.uint32)


WAYS = ["kernels", "threads", "gathers", "gathers and searches"]


@pytest.fixture(params=WAYS)
def torch_way(request, monkeypatch) -> SimpleNamespace:
    """torch_ops by its kernels on the host, by gathers alone as on any device, and with targets of sites searched."""
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops
    from maskwright.runtime.device.torch import compat

    if request.param == "threads":
        monkeypatch.setattr(host_team, "PARALLEL", 0)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    elif request.param != "kernels":
        monkeypatch.setattr(compat, "is_plain", lambda *x: False)
    if request.param == "gathers and searches":
        monkeypatch.setattr(device_table, "DENSE_SITES", 0)
        monkeypatch.setattr(device_table, "SPARSE_SITES", 0)

    def into(x: Any) -> Any:
        return type(x)(*map(into, x)) if isinstance(x, tuple) else torch.tensor(x)

    return SimpleNamespace(ops=torch_ops, torch=torch, into=into, name=request.param)


def with_rooms(test: Any) -> Any:
    for seed in ROOMY[:3]:
        test = example(seed=seed)(test)
    return test


def some_tokens(rng: np.random.Generator, table: mw.TransitionTable, state: Any) -> np.ndarray:
    """Tokens that are mostly allowed."""
    tokens = rng.integers(-1, table.vocab_size + 1, len(state.node))
    for i, legal in enumerate(sets_of(numpy_ops.bitmask(table, state), table.vocab_size)):
        if legal and rng.random() < 0.9:
            tokens[i] = rng.choice(sorted(legal))
    return tokens


# ------------------------------------------------------------------------------------------------ torch


@pytest.mark.long
@pytest.mark.parametrize("torch_way", marked(WAYS, slow=["kernels"]), indirect=True)
@some
@with_rooms
@given(seed=seeds)
def test_torch_agrees_with_numpy_on_masks_steps_and_stacks(torch_way, seed):
    ops, into = torch_way.ops, torch_way.into
    model = random_model(seed)
    table = model.table()
    dev = ops.to_device(table, distances=True)
    rng = np.random.default_rng(seed)
    expected = state_of(table, some_places(model, seed))
    state = into(expected)
    logits = rng.normal(size=(len(expected.node), table.vocab_size + int(rng.choice([0, 3])))).astype(np.float32)
    for step in range(4):
        if step:
            tokens = some_tokens(rng, table, expected)
            state, expected = ops.advance(dev, state, into(tokens)), numpy_ops.advance(table, expected, tokens)
            same_state(state, expected)
        for most in (None, 3, 9, 2**40):
            room = None if most is None else rng.integers(-1, most, len(expected.node))
            left = None if room is None else into(room)
            same(words_of(ops.bitmask(dev, state, left)), numpy_ops.bitmask(table, expected, room))
            wanted = numpy_ops.mask_logits(table, logits, expected, room)
            same(ops.mask_logits(dev, into(logits), state, left), wanted)
            same(ops.mask_logits_(dev, into(logits), state, left), wanted)
        same(ops.accepting(dev, state), numpy_ops.accepting(table, expected))
        far = [numpy_ops.fewest_tokens(table, place) for place in configurations_of(table, expected)]
        same(ops.distance(dev, state).clamp(max=UNREACHABLE), np.minimum(far, UNREACHABLE))
    found, wanted = ops.candidates(dev, into(logits), state, 5), numpy_ops.candidates(table, logits, expected, 5)
    close(found.scores, wanted.scores)
    same(found.tokens, wanted.tokens)
    same_state(found.states, wanted.states)
    close(ops.log_mass(dev, into(logits), state), numpy_ops.log_mass(table, logits, expected))
    tokens = rng.integers(-1, table.vocab_size + 1, (20, 4))
    same(ops.contains(dev, into(tokens)), table.contains(tokens))


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("many", [False, True])
def test_threads_mask_rows_wherever_they_lie(kind, many, monkeypatch):
    """Composed and applied by torch's threads: logits between others, states of other types, budgets, stray states."""
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops as ops

    if not many:
        monkeypatch.setattr(host_team, "PARALLEL", 0)
    table = compiled("tree")
    dev = ops.to_device(table, distances=True)
    rng = np.random.default_rng(1)
    rows = 9 if not many else 1 + host_team.PARALLEL // table.vocab_size
    expected = numpy_ops.start(table, rows)
    for _ in range(5):
        expected = numpy_ops.advance(table, expected, some_tokens(rng, table, expected))
    assert expected.height.any()
    state = NestedState(*(torch.tensor(part) for part in expected))
    others = NestedState(state.node.int(), state.stack.long(), state.height.long().repeat_interleave(2)[::2])
    taken = []
    given_ = mask_jobs.apply_nested
    monkeypatch.setattr(mask_jobs, "apply_nested", lambda *each: taken.append(1) or given_(*each))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for places in (state, others):
        for left in (None, torch.arange(rows) % 9):
            buffer = torch.randn(rows, table.vocab_size + 40).to(getattr(torch, kind))
            wanted = buffer.clone()
            legal = sets_of(numpy_ops.bitmask(table, expected, None if left is None else out(left)), table.vocab_size)
            for i, tokens in enumerate(legal):
                kept = wanted[i, [3 + token for token in sorted(tokens)]].clone()
                wanted[i, 3:-5] = -torch.inf
                wanted[i, [3 + token for token in sorted(tokens)]] = kept
            logits = buffer[:, 3:-5]
            assert ops.mask_logits_(dev, logits, places, left) is logits
            assert torch.equal(buffer, wanted)
    before = buffer.clone()
    stray = state._replace(node=torch.where(torch.arange(rows) == rows - 1, table.num_states + 9, state.node))
    with pytest.raises(ValueError, match="state"):
        ops.mask_logits_(dev, buffer[:, 3:-5], stray)
    assert torch.equal(buffer, before)
    assert len(taken) == 5


@pytest.mark.parametrize("rows", [1, 15, 16, 203])
def test_threads_follow_tokens_of_rows_wherever_they_lie(rows, monkeypatch):
    """By one thread or by torch's: states of other types, tokens apart, stray states, none of which is changed."""
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops as ops
    from maskwright.runtime.device.torch import memory

    table = compiled("tree")
    dev = ops.to_device(table)
    rng = np.random.default_rng(rows)
    teams = []
    team = memory.find_team()
    if team is not None:
        monkeypatch.setattr(memory, "find_team", lambda: lambda *each: teams.append(1) or team(*each))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    expected = numpy_ops.start(table, rows)
    state = NestedState(*(torch.tensor(part) for part in expected))
    for step in range(40):
        tokens = some_tokens(rng, table, expected)
        given_ = state
        if step % 2:
            given_ = NestedState(state.node.int(), state.stack.long(), state.height.long().repeat_interleave(2)[::2])
        before = [part.clone() for part in given_]
        expected = numpy_ops.advance(table, expected, tokens)
        state = ops.advance(dev, given_, torch.tensor(tokens).repeat_interleave(2)[::2])
        assert all(torch.equal(*pair) for pair in zip(before, given_, strict=True))
        for part, wanted in zip(state, expected, strict=True):
            assert np.array_equal(out(part), wanted)
        if step % 5 == 4:
            expected = numpy_ops.start(table, rows)
            state = NestedState(*(torch.tensor(part) for part in expected))
    assert len(teams) == (40 if team is not None and rows >= host_follow.FEW_ROWS else 0)
    stray = state._replace(node=torch.where(torch.arange(rows) == rows - 1, table.num_states + 9, state.node))
    with pytest.raises(ValueError, match="state"):
        ops.advance(dev, stray, torch.ones(rows, dtype=torch.long))


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.int64])
def test_processors_with_and_without_stores_by_masks_write_the_same(kind):
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (40, 70), np.uint32)
    words[rng.random(words.shape) < 0.6] = 0
    words[rng.random(words.shape) < 0.3] = 2**32 - 1
    words[:4, :32], words[4:8, :32] = 0, 2**32 - 1  # whole blocks too
    allowed = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)
    for apply in (host_logits.apply_blocks, host_logits.apply_parts):
        rows = rng.integers(0, 9, (40, 2303)).astype(kind)[:, 3:2243]
        wanted = np.where(allowed, rows, kind(-7))
        for mask, row, expected in zip(words, rows, wanted, strict=True):
            done = 32 * apply(mask, row, kind(-7))
            assert done >= 32 * 64
            assert (row[:done] == expected[:done]).all()


def test_numbers_that_lie_in_memory_otherwise_are_masked_as_they_are():
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops as ops

    table = compiled("tree")
    dev = ops.to_device(table)
    logits = torch._neg_view(torch.randn(4, table.vocab_size))  # as parts of complex numbers are
    assert logits.is_neg()
    wanted = numpy_ops.mask_logits(table, logits.resolve_neg().numpy().copy(), numpy_ops.start(table, 4))
    same(ops.mask_logits(dev, logits, ops.start(dev, 4)).resolve_neg(), wanted)
    same(ops.mask_logits_(dev, logits, ops.start(dev, 4)).resolve_neg(), wanted)
    nothing = torch._efficientzerotensor((4, table.vocab_size))
    same(ops.mask_logits(dev, nothing, ops.start(dev, 4)), np.where(np.isinf(wanted), wanted, 0))


@some
@given(seed=seeds, renormalize=st.booleans())
def test_torch_selects_as_numpy_does_and_beams_carry_their_stacks(torch_way, seed, renormalize):
    ops, into = torch_way.ops, torch_way.into
    model = random_model(seed)
    table = model.table()
    dev = ops.to_device(table)
    rng = np.random.default_rng(seed)
    places = some_places(model, seed)
    batch, m = 2, int(rng.integers(1, 5))
    state = state_of(table, [places[i] for i in rng.integers(len(places), size=batch * m)])
    scores = rng.normal(size=(batch, m)).astype(np.float32)
    mine, here = into(state), into(scores)
    for level in range(3):
        beams = int(rng.integers(1, 7))
        logits = rng.normal(size=(len(state.node), table.vocab_size)).astype(np.float32)
        picked = ops.select(dev, into(logits), mine, here, beams, level, renormalize)
        wanted = numpy_ops.select(table, logits, state, scores, beams, level, renormalize)
        close(picked.scores, wanted.scores)
        same(picked.tokens, wanted.tokens)
        same_state(picked.state, wanted.state)
        if table.eos is not None:
            close(
                ops.end_scores(dev, into(logits), mine, renormalize),
                numpy_ops.end_scores(table, logits, state, renormalize),
            )
        state, scores, mine, here = wanted.state, wanted.scores, picked.state, picked.scores
    index = rng.integers(0, len(state.node), 9)
    gathered = numpy_ops.arrays.gather(state, index)
    same_state(ops.arrays.gather(mine, into(index)), gathered)
    tokens = some_tokens(rng, table, gathered)
    same_state(
        ops.advance(dev, ops.arrays.gather(mine, into(index)), into(tokens)), numpy_ops.advance(table, gathered, tokens)
    )


@pytest.mark.parametrize(("name", "depth"), [("tree", 1), ("tree", 4), ("lists", 2), ("good", 4)])
def test_torch_writes_what_a_schema_allows_and_no_deeper_than_the_limit(torch_way, name, depth):
    ops, into, torch = torch_way.ops, torch_way.into, torch_way.torch
    table = compiled(name, depth)
    dev = ops.to_device(table, distances=True)
    rng = np.random.default_rng(depth)
    rows, steps = 24, 30
    room = np.maximum(table.min_length, np.arange(rows) + 4)
    assert (name == "good") is (table.distances.code_frames.size > 0)
    state, expected = ops.start(dev, rows), numpy_ops.start(table, rows)
    matchers = [mw.Matcher(table, max_tokens=int(most)) for most in room]
    texts: list[list[int]] = [[] for _ in range(rows)]
    ended, highest = np.zeros(rows, bool), 0
    for step in range(steps + 1):
        left = room - step
        mask = words_of(ops.bitmask(dev, state, into(left)))
        same(mask, numpy_ops.bitmask(table, expected, left))
        tokens = np.full(rows, EOS)
        for i, legal in enumerate(sets_of(mask, table.vocab_size)):
            if ended[i]:
                continue
            assert legal == sets_of(matchers[i].mask(), table.vocab_size)[0]
            opening = [
                t for t in legal if vocabulary().tokens[t][-1:] in (b"[", b"{") or b'"' in vocabulary().tokens[t]
            ]
            tokens[i] = rng.choice(sorted(opening if opening and rng.random() < 0.7 else legal))
            if tokens[i] == EOS:
                ended[i] = True
                continue
            assert matchers[i].advance(int(tokens[i]))
            texts[i].append(int(tokens[i]))
        state, expected = ops.advance(dev, state, into(tokens)), numpy_ops.advance(table, expected, tokens)
        same_state(state, expected)
        highest = max(highest, int(expected.height.max()))
    assert ended.all()
    assert highest >= depth, "the walk came to the limit"
    schema = {"tree": TREE, "lists": LISTS, "good": GOOD}[name]
    for i, text in enumerate(texts):
        assert len(text) <= room[i]
        jsonschema.validate(read(text), schema)
    if name == "good":  # whose outermost lists are written out, and open no frames
        return
    deepest = (b"[" if name == "lists" else b'{"a":') * (depth + 2)
    ids = [1 + b for b in deepest]
    taken = table.vocab_size
    state = ops.start(dev, 1)
    for i, token in enumerate(ids):
        state = ops.advance(dev, state, torch.tensor([token]))
        if int(state.node[0]) == table.dead:
            taken = i
            break
    assert nesting(deepest[:taken]) in (depth, depth + 1)


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_step_compiles_whole_in_torch(compiler):
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops as ops

    table = compiled("tree")
    dev = ops.to_device(table, distances=True)

    def step(logits, state, room):
        masked = ops.mask_logits(dev, logits, state, room)
        return masked, ops.advance(dev, state, masked.argmax(-1)), ops.accepting(dev, state)

    compiled_step = torch.compile(step, fullgraph=True, dynamic=False, backend=compiler)
    state, room = ops.start(dev, 5), torch.tensor([3, 5, 9, 15, 25])
    torch.manual_seed(0)
    for _ in range(12):
        logits = torch.randn(5, table.vocab_size)
        plain, quick = step(logits.clone(), state, room), compiled_step(logits.clone(), state, room)
        for mine, theirs in zip((plain[0], *plain[1], plain[2]), (quick[0], *quick[1], quick[2]), strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)
        state, room = plain[1], (room - 1).clamp(min=0)


def test_no_torch_operation_on_a_nested_table_needs_a_value_on_the_host():
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    from maskwright.runtime import torch_ops as ops

    for table in (compiled("tree"), random_model(5).table(), random_model(72).table()):
        dev = ops.to_device(table, distances=True)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            logits = mode.from_tensor(torch.zeros(6, table.vocab_size))
            state = NestedState(*map(mode.from_tensor, ops.start(dev, 6)))
            room = mode.from_tensor(torch.ones(6, dtype=torch.int64))
            assert ops.bitmask(dev, state, room).shape == (6, -(-table.vocab_size // 32))
            assert ops.mask_logits(dev, logits, state, room).shape == logits.shape
            assert ops.mask_logits_(dev, logits, state, room) is logits
            found = ops.candidates(dev, logits, state, 3)
            assert found.states.stack.shape == (6, 3, table.slots)
            following = ops.advance(dev, state, room)
            assert following.stack.shape == (6, table.slots)
            ops.accepting(dev, following)
            for renormalize in (False, True):
                scores = mode.from_tensor(torch.zeros(2, 3))
                assert ops.select(dev, logits, state, scores, 3, 1, renormalize).state.height.shape == (6,)


def test_torch_takes_batches_of_nothing_and_of_one(torch_way):
    ops, torch = torch_way.ops, torch_way.torch
    for table in (compiled("tree"), random_model(5).table()):
        dev = ops.to_device(table, distances=True)
        for batch in (0, 1):
            state = ops.start(dev, batch)
            room = torch.full((batch,), 9)
            masked = ops.mask_logits(dev, torch.zeros(batch, table.vocab_size), state, room)
            assert masked.shape == (batch, table.vocab_size)
            same(words_of(ops.bitmask(dev, state)), numpy_ops.bitmask(table, numpy_ops.start(table, batch)))
            following = ops.advance(dev, state, torch.zeros(batch, dtype=torch.int64))
            assert following.stack.shape == (batch, table.slots)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_states_without_the_stack_of_the_table_are_refused(name):
    if name == "torch":
        make = pytest.importorskip("torch").zeros
        from maskwright.runtime import torch_ops as ops
    else:
        pytest.importorskip("jax")
        from jax.numpy import zeros as make

        from maskwright.runtime import jax_ops as ops
    table = compiled("tree")
    dev = ops.to_device(table)
    good = ops.start(dev, 2)
    logits = make((2, table.vocab_size))
    for call in (
        lambda state: ops.bitmask(dev, state),
        lambda state: ops.mask_logits(dev, logits, state),
        lambda state: ops.mask_logits_(dev, logits, state),
        lambda state: ops.accepting(dev, state),
        lambda state: ops.advance(dev, state, good.node),
        lambda state: ops.candidates(dev, logits, state, 3),
        lambda state: ops.select(dev, logits, state, make((1, 2)), 2, 0),
        lambda state: ops.end_scores(dev, logits, state),
    ):
        with pytest.raises(TypeError, match="a nested table needs a NestedState, as start makes one, not a State"):
            call(State(good.node))
        with pytest.raises(ValueError, match=r"stack \(B, 4\), not \(2,\), \(2,\) and \(2, 3\)"):
            call(NestedState(good.node, good.stack[:, :3], good.height))


def test_tables_without_calls_have_nothing_of_them_on_a_device():
    pytest.importorskip("torch")
    from maskwright.runtime import torch_ops as ops

    for table in (mw.compile_regex("(?:ab)*", vocabulary(), lazy=False), mw.compile_sids([[1, 2]], 4)):
        dev = ops.to_device(table)
        assert dev.calls is None
        assert isinstance(ops.start(dev, 2), State)
    dev = ops.to_device(compiled("tree"))
    assert dev.calls.site_distance.numel() == 0
    assert dev.distance.numel() == 0


def test_a_token_leaves_no_more_frames_than_are_worked_out():
    """Of the random tables: 1 where no symbol leaves with another, all slots where one comes back to itself."""
    found = {}
    for seed in range(60):
        model = random_model(seed)
        table = model.table()
        to = [(y, target) for site in model.sites for y, target in site.targets.items()]
        leaves = {(y, target[1]) for y, target in to if isinstance(target, tuple) and target[0] == "leave"}
        chains = [(y,) for y in range(table.num_symbols)]
        for _ in range(table.slots - 1):
            chains += [
                (*chain, z) for chain in chains for y, z in leaves if chain[-1] == y and len(chain) < table.slots
            ]
            chains = list({(chain[0], chain[-1], len(chain)): chain for chain in chains}.values())
        longest = max(map(len, chains))
        assert device_table.most_pops(table) == min(longest, table.slots)
        found[longest] = found.get(longest, 0) + 1
    assert len(found) > 3


# ------------------------------------------------------------------------------------------------ JAX


QUICK = {"xla_backend_optimization_level": 0}  # compiling takes longer than anything else here


def jitted(function: Any) -> Any:
    return pytest.importorskip("jax").jit(function, compiler_options=QUICK)


@functools.cache
def jax_steps() -> Any:
    from maskwright.runtime import jax_ops as ops

    return jitted(
        lambda dev, state, room, tokens: (
            ops.bitmask(dev, state), ops.bitmask(dev, state, room), ops.accepting(dev, state),
            ops.distance(dev, state), ops.advance(dev, state, tokens),
        )
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("which", ["tree", "good", 3, "searched and looped"])
def test_jax_agrees_with_numpy(which, monkeypatch):
    pytest.importorskip("jax")
    import jax.numpy as jnp

    from maskwright.runtime import jax_ops as ops
    from maskwright.runtime.device.jax import stacks

    seed = 72 if which == "searched and looped" else which
    if seed == 72:
        monkeypatch.setattr(device_table, "DENSE_SITES", 0)
        monkeypatch.setattr(device_table, "SPARSE_SITES", 0)
        monkeypatch.setattr(stacks, "UNROLLED", 0)
    if which in ("tree", "good"):
        table = compiled(which, 2 if which == "tree" else 5)
        places = [(0, ())] * 12
    else:
        model = random_model(seed)
        table = model.table()
        places = some_places(model, seed, 8)
    dev = ops.to_device(table, distances=True)
    assert (dev.calls.site_width > 0) is (seed == 72)
    rng = np.random.default_rng(0)
    expected = state_of(table, places)
    state = NestedState(*(jnp.asarray(array, jnp.int32) for array in expected))
    for step in range(12):
        room = rng.integers(-1, (3, 9, 2**31)[step % 3], len(places))
        tokens = some_tokens(rng, table, expected)
        words, words_in_time, ends, far, reached = jax_steps()(
            dev, state, jnp.asarray(room, jnp.int32), jnp.asarray(tokens, jnp.int32)
        )
        same(words, numpy_ops.bitmask(table, expected))
        same(words_in_time, numpy_ops.bitmask(table, expected, room))
        same(ends, numpy_ops.accepting(table, expected))
        all_far = [numpy_ops.fewest_tokens(table, place) for place in configurations_of(table, expected)]
        same(far, np.minimum(all_far, UNREACHABLE))
        expected = numpy_ops.advance(table, expected, tokens)
        same_state(reached, expected)
        state = reached


def test_jax_chooses_as_numpy_does_and_beams_carry_their_stacks():
    pytest.importorskip("jax")
    import jax.numpy as jnp

    from maskwright.runtime import jax_ops as ops

    table = compiled("tree", 2)
    dev = ops.to_device(table)
    rng = np.random.default_rng(0)
    expected, scores = numpy_ops.start(table, 6), np.zeros((1, 6), np.float32)
    for _ in range(4):
        expected = numpy_ops.advance(table, expected, some_tokens(rng, table, expected))
    state = NestedState(*(jnp.asarray(array, jnp.int32) for array in expected))

    @jitted
    def choose(dev, logits, state, scores):
        best = ops.candidates(dev, logits, state, 4)
        return best, ops.select(dev, logits, state, scores, 6, 1, True), ops.log_mass(dev, logits, state)

    for _ in range(4):
        logits = rng.normal(size=(6, table.vocab_size + 3)).astype(np.float32)
        best, picked, mass = choose(dev, jnp.asarray(logits), state, jnp.asarray(scores))
        wanted = numpy_ops.candidates(table, logits, expected, 4)
        close(best.scores, wanted.scores)
        same(best.tokens, wanted.tokens)
        same_state(best.states, wanted.states)
        close(mass, numpy_ops.log_mass(table, logits, expected))
        kept = numpy_ops.select(table, logits, expected, scores, 6, 1, True)
        close(picked.scores, kept.scores)
        same(picked.tokens, kept.tokens)
        same_state(picked.state, kept.state)
        state, expected, scores = picked.state, kept.state, kept.scores


@pytest.mark.long
def test_jax_scans_complete_texts_and_maps_over_states():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    from maskwright.runtime import jax_ops as ops

    table = compiled("tree", 2)
    dev = ops.to_device(table, distances=True)
    room = jnp.array([1, 4, 9, 14, 20], jnp.int32)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(21, 5, table.vocab_size)), jnp.float32)

    @jitted
    def decode(dev, logits):
        def body(carry, step):
            state, room = carry
            token = ops.mask_logits(dev, step, state, room).argmax(-1)
            return (ops.advance(dev, state, token), room - 1), token

        (state, _), tokens = jax.lax.scan(body, (ops.start(dev, 5), room), logits)
        return state, tokens.T

    state, tokens = decode(dev, logits)
    same(state.node, np.full(5, table.after_eos))
    same(state.stack, np.zeros((5, table.slots), np.int32))
    for most, row in zip(room.tolist(), np.asarray(tokens), strict=True):
        text = row[row != EOS]
        assert len(text) <= most
        assert table.accepts(row)
        jsonschema.validate(read(text), TREE)

    halfway = table.follow(np.asarray(tokens)[:, :2])
    halves = NestedState(*(jnp.asarray(np.stack([array, array[::-1]]), jnp.int32) for array in halfway))
    mapped = jitted(jax.vmap(lambda state: ops.bitmask(dev, state)))(halves)
    wanted = numpy_ops.bitmask(table, halfway)
    same(mapped, np.stack([wanted, wanted[::-1]]))
    own = jnp.zeros((5, table.vocab_size))
    wanted = numpy_ops.mask_logits(table, np.zeros(own.shape, np.float32), numpy_ops.start(table, 5))
    same(ops.mask_logits_(dev, own, ops.start(dev, 5)), wanted)
    assert own.is_deleted()


@pytest.mark.long
def test_jax_adds_up_distances_that_do_not_fit_into_32_bits():
    pytest.importorskip("jax")
    import jax.numpy as jnp

    from maskwright.runtime import jax_ops as ops
    from maskwright.runtime.device.jax import stacks

    found = 0
    for seed in range(40):
        model = random_model(seed)
        table = model.table()
        by_site = table.distances.site
        if by_site.shape[1] > 1:
            continue
        places = [p for p in some_places(model, seed) if sum(int(by_site[k, 0, 0]) for k in p[1]) > 2 * UNREACHABLE]
        if not places:
            continue
        found += 1
        state = state_of(table, places)
        stack = stacks.stacks_of(
            ops.to_device(table, distances=True).calls, NestedState(*map(jnp.asarray, state)), True
        )
        for row, (_, sites) in zip(np.asarray(stack.far).tolist(), places, strict=True):
            sums = list(itertools.accumulate((int(by_site[k, 0, 0]) for k in sites), initial=0))
            assert row[: len(sums)] == [min(total, UNREACHABLE) for total in sums]
        if found == 2:
            return
    raise AssertionError("no table has distances like that")


# ------------------------------------------------------------------------------------------------ beam search


def members(table: mw.TransitionTable, longest: int) -> set[naive.Tokens]:
    """Every sequence of at most `longest` tokens."""
    found: dict[naive.Tokens, Any] = {(): (0, ())}
    ends = set()
    for _ in range(longest + 1):
        ends |= {path for path, (node, stack) in found.items() if not stack and table.is_accepting(node)}
        found = {
            (*path, token): following
            for path, place in found.items()
            for token, following in numpy_ops.moves(table, place).items()
            if token != table.eos and len(path) < longest
        }
    return ends


@pytest.mark.parametrize("name", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_beam_search_over_a_recursive_schema_finds_the_best_sequences(name):
    table, longest = compiled("lists", 2), 5
    sequences = members(table, longest)
    assert len(sequences) > 20
    assert {nesting(vocabulary().decode(list(s))) for s in sequences} == {1, 2, 3}
    size = table.vocab_size
    logits = np.random.default_rng(3).normal(size=(longest + 1, size, size)).astype(np.float32)
    model: Any = logits
    if name == "torch":
        model = pytest.importorskip("torch").tensor(logits)
        from maskwright.runtime import torch_ops as ops
    elif name == "jax":
        pytest.importorskip("jax")
        import jax.numpy as jnp

        from maskwright.runtime import jax_ops as ops

        model = jnp.asarray(logits)
    else:
        ops = numpy_ops
    for renormalize in (False, True) if name == "torch" else (False,):
        found = beam_search(
            lambda tokens, cache, t: (model[t][tokens], cache), None, ops.to_device(table),
            ops=ops, batch=1, beams=120, max_tokens=longest, renormalize=renormalize,
        )  # fmt: skip
        wanted = naive.ranking(sequences, logits, EOS)
        assert int(out(found.valid).sum()) == len(wanted)
        if not renormalize:
            close(out(found.scores)[0, : len(wanted)], np.array([score for score, _ in wanted]))
        got = [tuple(row[row >= 0].tolist()) for row in out(found.tokens)[0, : len(wanted)]]
        assert set(got) == sequences
        if not renormalize:
            assert got == [sequence for _, sequence in wanted]


# ------------------------------------------------------------------------------------------------ transformers


SCHEMAS: dict[str, Any] = {
    "tree": TREE,
    "lists": LISTS,
    "person": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["name", "age"],
    },
    "anything": True,
    "any order": {
        "required": ["a"],
        "properties": {"a": {"$ref": "#"}, "b": {"type": "null"}},
        "type": ["object", "null"],
    },
}
ROOM = 24


@functools.cache
def of_schema(name: str) -> mw.TransitionTable:
    return mw.compile_json_schema(SCHEMAS[name], vocabulary(), any_order=name == "any order", depth=4).to_table()


@functools.cache
def llama() -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=vocabulary().size, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, eos_token_id=EOS, pad_token_id=EOS, bos_token_id=None,
        initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng():  # whoever asks first may have seeded the generator for something else
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval()


def prompt(rows: int = 2) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    ids = torch.arange(10, 10 + 3 * rows).view(rows, 3)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["processor", "custom generate"])
def test_generation_writes_complete_valid_json_within_max_new_tokens(way, mode):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.generate import constrained_generate
    from maskwright.runtime.integrations.processor import ConstraintLogitsProcessor

    for name, schema in SCHEMAS.items():
        table = of_schema(name)
        options: dict[str, Any] = {"max_new_tokens": ROOM + 1, **MODES[mode]}
        if way == "processor":
            options["logits_processor"] = [ConstraintLogitsProcessor(table, max_tokens=ROOM)]
        else:
            options |= {"custom_generate": constrained_generate, "tables": table}
        torch.manual_seed(1)
        for row in llama().generate(**prompt(), **options)[:, 3:].tolist():
            text = row[: row.index(EOS)]
            assert len(text) <= ROOM
            assert table.accepts(text)
            jsonschema.validate(read(text), schema)


@pytest.mark.parametrize("mode", ["sampling", "beams"])
@pytest.mark.parametrize("way", ["processor", "custom generate"])
def test_elements_may_have_nested_and_flat_tables_and_none(way, mode):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.generate import constrained_generate
    from maskwright.runtime.integrations.processor import ConstraintLogitsProcessor

    flat = mw.compile_regex("[ab]{2,5}", vocabulary(), lazy=False)
    assert not flat.is_nested
    tables = [of_schema("tree"), flat, None, compiled("lists", 2), of_schema("tree")]
    assert len({table.slots for table in tables if table is not None}) == 3
    limits = [12, None, None, 9, 18]
    options: dict[str, Any] = {"max_new_tokens": ROOM + 1, **MODES[mode]}
    if way == "processor":
        options["logits_processor"] = [ConstraintLogitsProcessor(tables, max_tokens=limits)]
    else:
        options |= {"custom_generate": constrained_generate, "tables": tables, "max_tokens": limits}
    torch.manual_seed(0)
    rows = llama().generate(**prompt(5), **options)[:, 3:].tolist()
    for i, row in enumerate(rows):
        table, limit = tables[i // 3], limits[i // 3]
        if table is not None:
            text = row[: row.index(EOS)]
            assert table.accepts(text)
            assert limit is None or len(text) <= limit


def test_a_processor_finds_the_stacks_of_rows_that_change_places_and_go_back():
    """In a loop of its own: rows continue any row of their element, or are cut back, or are new; against matchers."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.processor import ConstraintLogitsProcessor

    table, rng = compiled("tree", 3), np.random.default_rng(0)
    each, elements = 3, 2
    processor = ConstraintLogitsProcessor([table, table], max_tokens=[40, None])
    opened = [t for t, text in enumerate(vocabulary().tokens) if text[-1:] in (b"{", b"[") or text.endswith(b'":')]
    rows: list[list[int]] = [[5, 6]] * (each * elements)
    went_back = highest = 0
    for _ in range(60):
        scores = torch.zeros(len(rows), table.vocab_size)
        masked = processor(torch.tensor(rows), scores)
        for i, row in enumerate(rows):
            matcher = mw.Matcher(table, max_tokens=(40, None)[i // each])
            legal = {EOS}
            if all(matcher.advance(token) for token in row[2:]):
                legal = sets_of(matcher.mask(), table.vocab_size)[0]
                highest = max(highest, len(matcher.stack))
            assert set(torch.isfinite(masked[i]).nonzero().view(-1).tolist()) == legal
        length = len(rows[0])
        if length > 8 and rng.random() < 0.25:
            back = int(rng.integers(1, 6))
            went_back += 1
            rows = [row[:-back] for row in rows]
            continue
        following = []
        for i in range(len(rows)):
            parent = i // each * each + int(rng.integers(each))
            legal_there = torch.isfinite(masked[parent]).nonzero().view(-1).tolist()
            deeper = [t for t in legal_there if t in opened]
            following.append([*rows[parent], int(rng.choice(deeper if deeper and rng.random() < 0.6 else legal_there))])
        rows = following
        if length > 25:
            processor.reset()
            rows = [[5, 6]] * (each * elements)
    assert went_back > 5
    assert highest > 2


def test_tokens_that_leave_no_time_to_close_what_is_open_are_lost():
    """Prefixes that no processor would have let through, as an assistant may propose them."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.processor import ConstraintLogitsProcessor

    table = compiled("lists", 3)
    single = [1 + b for b in b"[[[]]]"]
    for most in range(table.min_length, 9):
        processor = ConstraintLogitsProcessor(table, max_tokens=most)
        place: Any = (0, ())
        lost = False
        for n in range(len(single) + 1):
            masked = processor(torch.tensor([[5, *single[:n]]]), torch.zeros(1, table.vocab_size))
            legal = {t for t, reached in numpy_ops.moves(table, place).items()
                     if t == EOS or numpy_ops.fewest_tokens(table, reached) < most - n}  # fmt: skip
            assert set(torch.isfinite(masked[0]).nonzero().view(-1).tolist()) == ({EOS} if lost else legal)
            if n < len(single):
                place = numpy_ops.moves(table, place)[single[n]]
                lost = lost or single[n] not in legal


def test_forced_text_of_a_schema_is_written_token_by_token():
    table = of_schema("person")
    matcher = mw.Matcher(table, vocabulary())
    forced = matcher.forced_text()
    assert b'{"name":'.startswith(forced) or forced == b"{"
    bytes_of = bytearray()
    for token in matcher.forced_tokens():
        assert matcher.advance(token)
        bytes_of += vocabulary().tokens[token]
    assert bytes(bytes_of) == forced[: len(bytes_of)]


def test_a_bound_machine_is_followed_alike_by_all(torch_way):
    """Labels, leaves, needs and tokens that leave several frames at once, near the limit."""
    ops, into = torch_way.ops, torch_way.into
    table = bound(2)[0].table()
    dev = ops.to_device(table)
    rng = np.random.default_rng(0)
    state, expected = ops.start(dev, 40), numpy_ops.start(table, 40)
    most = 0
    for _ in range(14):
        step = some_tokens(rng, table, expected)
        before = expected.height
        state, expected = ops.advance(dev, state, into(step)), numpy_ops.advance(table, expected, step)
        same_state(state, expected)
        same(words_of(ops.bitmask(dev, state)), numpy_ops.bitmask(table, expected))
        most = max(most, int((before - expected.height)[expected.node < table.num_rows].max(initial=0)))
    assert most > 1
