"""Masks of text by the kernels for TPUs: Pallas's interpreters on a CPU against numpy, and export for a TPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.device.device_table import DeviceTable, State, arrays_of, device_table, statics_of
from tests.marks import marked
from tests.oracles.nested_model import random_model, some_places, state_of

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.experimental.pallas import tpu as pltpu  # noqa: E402  # which only JAX has

from maskwright.runtime import jax_ops  # noqa: E402
from maskwright.runtime.device.jax import tpu_apply, tpu_parts, tpu_text_layout  # noqa: E402
from maskwright.runtime.device.jax.tpu_apply import keep_words  # noqa: E402
from maskwright.runtime.device.jax.tpu_layout import LANES  # noqa: E402
from maskwright.runtime.device.jax.tpu_text_layout import (  # noqa: E402
    FEWEST_BLOCKS,
    OWN_COUNT,
    RECORD,
    TpuTextTable,
    has_distances,
)

UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options of XLA: what is interpreted is compiled once and runs a few times."""

NAMES = [f"{number:03d}" for number in range(0, 1000, 2)]
TREE = {
    "type": "object",
    "properties": {
        "a": {"$ref": "#"},
        "b": {"type": "array", "items": {"$ref": "#"}},
        "s": {"type": "string", "maxLength": 3},
        "n": {"enum": NAMES},
    },
    "additionalProperties": False,
}
ENDS = ["".join(each) for count in (1, 2, 3) for each in itertools.product("}],", repeat=count)]
WORDS = ['{"a":', '{"b":[{', '"n":"', '"s":"', *NAMES, *ENDS, *('"' + end for end in ENDS)]


@pytest.fixture
def interpreted(monkeypatch) -> Iterator[None]:
    """Kernels as one program of XLA, in which each copy is done where it begins: some milliseconds a call."""
    monkeypatch.setattr(pltpu, "with_memory_space_constraint", lambda array, _: array)
    for module in (tpu_parts, tpu_apply):
        monkeypatch.setattr(module, "AT_ONCE", 1)  # loops that are written out take long to compile
    with pltpu.force_tpu_interpret_mode(True):
        yield


def unoptimised(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(function, compiler_options=UNOPTIMISED)


def vocabulary(more: list[str]) -> mw.Vocabulary:
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *(word.encode() for word in more)], eos=0)


def into(state: Any) -> Any:
    return type(state)(*(jnp.asarray(part, jnp.int32) for part in state))


def to_device(table: mw.TransitionTable, distances: bool = False) -> TpuTextTable:
    dev = jax_ops.to_device(table, distances=distances, on_demand=False, platform="tpu")
    assert isinstance(dev, TpuTextTable)
    return dev


def wandering(table: mw.TransitionTable, rows: int, steps: int, seed: int) -> Any:
    """States that texts lead to, rows of them after each step, and the dead state."""
    rng = np.random.default_rng(seed)
    state, found = numpy_ops.start(table, rows), []
    for _ in range(steps):
        found.append(state)
        masks = np.unpackbits(numpy_ops.bitmask(table, state).view(np.uint8), axis=1, bitorder="little")
        tokens = [rng.choice(np.flatnonzero(mask)) if mask.any() else 0 for mask in masks]
        state = numpy_ops.advance(table, state, np.array(tokens))
    every = type(state)(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    every.node[-1] = table.dead
    return every


def same_masks(table: mw.TransitionTable, dev: TpuTextTable, state: Any, budgets: list[Any]) -> None:
    masks = unoptimised(jax_ops.bitmask)
    for remaining in budgets:
        left = () if remaining is None else (jnp.asarray(remaining, jnp.int32),)
        got = masks(dev, into(state), *left)
        assert got.dtype == jnp.uint32
        np.testing.assert_array_equal(np.asarray(got), numpy_ops.bitmask(table, state, remaining))


def test_masks_of_json_agree_with_numpy(interpreted):
    """Sites of 248 symbols, tokens that leave several frames, little room, and classes that do not fit into it."""
    table = mw.compile_json_schema(TREE, vocabulary(WORDS), depth=3).to_table()
    dev = to_device(table)
    assert dev.calls is not None
    assert dev.calls.symbols > LANES
    assert dev.calls.pops > 2
    assert dev.calls.state_room.shape[0]
    assert np.asarray(dev.states).reshape(-1, RECORD)[:, OWN_COUNT].max() > FEWEST_BLOCKS * LANES
    state = wandering(table, 8, 20, 0)
    assert state.height.max() >= 3
    same_masks(table, dev, state, [None])


def agree_everywhere(seed: int, unlimited: bool) -> None:
    """Compare masks of a random table with budgets, and without."""
    model = random_model(seed)
    table = model.table()
    state = state_of(table, some_places(model, seed))
    rng = np.random.default_rng(seed)
    budgets = [rng.integers(-1, most, len(state.node)) for most in (3, 9, 2**31 - 1)]
    same_masks(table, to_device(table, distances=True), state, [*([None] if unlimited else []), *budgets])


def test_masks_of_a_table_with_all_that_tables_can_have_agree_with_numpy(interpreted):
    """Leaves, needs, sites below bases, exits of rows and of bases that leave several frames, classes, and budgets."""
    dev = to_device(random_model(71).table(), distances=True)
    assert dev.calls is not None
    assert has_distances(dev)
    assert dev.calls.pops > 3
    assert all(x.shape[0] for x in (dev.calls.base_push, dev.calls.base_exit, dev.calls.row_exit, dev.calls.state_room))
    agree_everywhere(71, unlimited=False)


@pytest.mark.slow
@settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_masks_of_any_nested_table_agree_with_numpy(interpreted, seed):
    agree_everywhere(seed, unlimited=True)


@pytest.mark.slow
def test_copies_are_waited_for_before_they_are_read():
    """Pallas's interpreter of TPUs does a copy only when it is waited for."""
    model = random_model(176)
    table = model.table()
    places = some_places(model, 176)[:8]
    state = state_of(table, places)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(dma_execution_mode="on_wait")):
        same_masks(table, to_device(table, distances=True), state, [None, np.arange(len(places))])


def test_logits_masked_by_a_graph_agree_with_numpy(interpreted):
    table = mw.compile_regex("[a-z]{1,4}(,[a-z]{1,3}){0,2}", vocabulary(["abc", "a,", ",b", "xyz", "zz"]), lazy=False)
    state = wandering(table, 8, 6, 0)
    assert isinstance(state, State)
    left = np.arange(len(state.node)) % 7 - 1
    logits = np.random.default_rng(0).normal(size=(len(state.node), table.vocab_size + 3)).astype(np.float32)
    logits[0], logits[1, ::2], logits[2, ::3] = np.nan, np.inf, -np.inf
    masked = unoptimised(jax_ops.mask_logits)
    got = masked(to_device(table, distances=True), jnp.asarray(logits), into(state), jnp.asarray(left, jnp.int32))
    np.testing.assert_array_equal(got, numpy_ops.mask_logits(table, logits, state, left))


@pytest.mark.parametrize("kind", marked(["float32", "bfloat16", "float16"], slow=["float32"]))
def test_logits_are_kept_as_they_are_where_a_bit_is_set(interpreted, kind):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(17, 9000)).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf, 0.0):
        logits[rng.random(logits.shape) < 0.1] = value
    words = rng.integers(0, 2**32, (17, 260), dtype=np.uint32)  # 8,320 tokens: of columns behind them none is kept
    given = jnp.asarray(logits, kind)
    got = unoptimised(keep_words)(given, jnp.asarray(words))
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)
    wanted = np.where(np.pad(bits, ((0, 0), (0, 9000 - bits.shape[1]))), np.asarray(given, np.float32), -np.inf)
    assert got.dtype == given.dtype
    np.testing.assert_array_equal(np.asarray(got, np.float32), wanted)


def test_what_is_kept_has_a_derivative(interpreted):
    words = jnp.asarray([[0b0110], [0]], jnp.uint32)
    scale = jnp.arange(8.0).reshape(2, 4)

    def mass(x: Any) -> Any:
        kept = keep_words(x, words)
        return jnp.where(jnp.isfinite(kept), kept * scale, 0).sum()

    gradient = unoptimised(jax.grad(mass))
    np.testing.assert_array_equal(gradient(jnp.ones((2, 4))), [[0, 1, 2, 0], [0, 0, 0, 0]])


def test_masks_are_exported_for_a_tpu():
    table = mw.compile_json_schema(TREE, vocabulary(WORDS), depth=3).to_table()
    dev = to_device(table, distances=True)
    state = into(numpy_ops.start(table, 5))
    logits = jnp.zeros((5, table.vocab_size), jnp.bfloat16)
    masked = jax.jit(lambda dev, logits, state, left: jax_ops.mask_logits(dev, logits, state, left))
    text = jax.export.export(masked, platforms=["tpu"])(dev, logits, state, jnp.zeros(5, jnp.int32)).mlir_module()
    assert text.count("stablehlo.custom_call @tpu_custom_call") == 2
    assert not any(f"stablehlo.{name}" in text for name in ("gather", "scatter", "sort", "while"))


def test_every_other_operation_reads_the_same_arrays():
    table = random_model(71).table()
    dev, plain = to_device(table, distances=True), jax_ops.to_device(table, distances=True, platform="cpu")
    assert type(plain) is DeviceTable
    for mine, theirs in ((dev, plain), (dev.calls, plain.calls)):
        for name in arrays_of(type(theirs)):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        for name in statics_of(type(theirs)):
            assert getattr(mine, name) == getattr(theirs, name)


LIMITS = {
    "MOST_TOKENS": 299, "MOST_SYMBOLS": 1, "MOST_POPS": 1, "MOST_SITES": 2, "MOST_SLOTS": 1, "MOST_ROOM": 2,
    "MOST_BYTES": 4096,
}  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS)
def test_tables_beyond_a_limit_take_the_operations_of_every_device(limit, monkeypatch):
    table = random_model(71).table()
    monkeypatch.setattr(tpu_text_layout, limit, LIMITS[limit])
    assert type(jax_ops.to_device(table, distances=True, platform="tpu")) is DeviceTable


ENDS_APART = 1  # a model in which how soon a text can end depends on what is in it


def test_budgets_with_ends_told_apart_take_the_operations_of_every_device():
    model = random_model(ENDS_APART)
    table = model.table()
    dev, state = to_device(table, distances=True), into(state_of(table, some_places(model, ENDS_APART)))
    assert not has_distances(dev)
    assert "text_masks" in str(jax.make_jaxpr(jax_ops.bitmask)(dev, state))
    assert "text_masks" not in str(jax.make_jaxpr(jax_ops.bitmask)(dev, state, state.node))


def test_a_list_lies_in_no_more_blocks_than_it_must():
    counts = np.array([100, 40, 0, 128, 300, 1, 126, 2])
    lists = tpu_text_layout.packed(counts)
    for first, count in zip(lists.first.tolist(), counts.tolist(), strict=True):
        assert count == 0 or (first + count - 1) // LANES - first // LANES == -(-count // LANES) - 1
    np.testing.assert_array_equal(lists.at, np.concatenate(list(map(np.arange, lists.first, lists.first + counts))))
    assert len(set(lists.at.tolist())) == counts.sum()
    assert lists.blocks * LANES >= lists.at.max() + FEWEST_BLOCKS * LANES


def test_what_a_code_needs_says_whether_it_fits():
    table = random_model(71).table()
    dev = device_table(table, lambda array: array, DeviceTable, False)
    assert dev.calls is not None
    codes = np.arange(table.num_states + len(table.actions.state))
    needs = tpu_text_layout.needs_of(dev, codes)
    for code, need in zip(codes.tolist(), needs.tolist(), strict=True):
        action = code - table.num_states
        pushed = table.actions.push_start[action + 1] - table.actions.push_start[action] if action >= 0 else 0
        room = tpu_text_layout.MOST_ROOM if code == table.dead else int(table.code_frames_required[code])
        assert (need >> 16, need & 0xFFFF) == (room, pushed)
