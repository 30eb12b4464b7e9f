"""A step of beam search by the kernels for TPUs: Pallas's interpreter on a CPU against numpy, and export for a TPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.device.device_table import State, statics_of

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.experimental.pallas import tpu as pltpu  # noqa: E402  # which only JAX has

from maskwright.runtime import jax_ops  # noqa: E402
from maskwright.runtime.device.jax.tpu_layout import LANES, TOKENS_PER_ROW, TpuTable, mask_ranks  # noqa: E402
from maskwright.runtime.device.jax.tpu_selection import takes  # noqa: E402

BATCH, BEAMS = 2, 7
step = jax.jit(jax_ops.select, static_argnums=(4, 5, 6))


def branching() -> mw.TransitionTable:
    """A dense root, sparse depths of more and of fewer than 128 edges, tails, and a last depth without branches."""
    rng = np.random.default_rng(0)
    sids = rng.integers(0, 200, (600, 5))
    sids[:300, :2] = sids[0, :2]
    sids[300:500, 0] = sids[0, 0]
    return mw.compile_sids(sids.astype(np.uint16), 200)


def crowded() -> mw.TransitionTable:
    """Masks at the second depth, where some states stand in a tail."""
    rng = np.random.default_rng(1)
    full = [(1 + a, 1 + b, 1 + c) for a in range(20) for b in range(30) for c in rng.integers(0, 30, 2).tolist()]
    alone = [(a, int(rng.integers(1, 31)), 5) for a in range(21, 31)]
    return mw.compile_sids(np.array(full + alone), 32, eos=0)


def states_at(table: mw.TransitionTable, level: int, count: int, seed: int) -> np.ndarray:
    """Return states at a depth, drawn at random; the dead state among them below the root."""
    rng = np.random.default_rng(seed)
    nodes = np.zeros(512, np.int64)
    for _ in range(level):
        chosen = [rng.choice([t for t in numpy_ops.edges(table, int(node)) if t != table.eos]) for node in nodes]
        nodes = numpy_ops.advance(table, State(nodes), np.array(chosen)).node
    found = rng.choice(np.unique(nodes), count)
    if level:
        found[-1] = table.dead
    return found


def inputs(table: mw.TransitionTable, level: int, beams: int, special: bool = False) -> tuple[np.ndarray, ...]:
    """Return states, logits with padding columns, and scores."""
    rng = np.random.default_rng(level)
    nodes = states_at(table, level, BATCH * beams, level)
    logits = rng.normal(size=(BATCH * beams, table.vocab_size + 3)).astype(np.float32)
    if special:
        logits[rng.random(logits.shape) < 0.2] = -np.inf
        logits[0], logits[1], logits[2, 5] = np.nan, -np.inf, np.inf
        logits[3, table.vocab_size - 1] = np.nan
    return nodes, logits, -rng.random((BATCH, beams)).astype(np.float32)


def agree(
    table: mw.TransitionTable, level: int, beams: int = BEAMS, special: bool = False, renormalize: bool = False
) -> None:
    """Compare a step of the kernels with numpy's."""
    nodes, logits, scores = inputs(table, level, beams, special)
    want = numpy_ops.select(table, logits, State(nodes), scores, BEAMS, level, renormalize)
    dev = jax_ops.to_device(table, platform="tpu")
    assert isinstance(dev, TpuTable)
    assert takes(dev, logits, level)
    with pltpu.force_tpu_interpret_mode():
        state = State(jnp.asarray(nodes, jnp.int32))
        got = step(dev, jnp.asarray(logits), state, jnp.asarray(scores), BEAMS, level, renormalize)
    same(got, want)


def same(got: Any, want: Any) -> None:
    """Compare two selections, of which numpy's has all that is live."""
    live = want.scores > -np.inf
    np.testing.assert_array_equal(np.asarray(got.scores) > -np.inf, live)
    np.testing.assert_allclose(np.asarray(got.scores)[live], want.scores[live], rtol=1e-5, atol=1e-5)
    assert (got.parents is None) == (want.parents is None)
    if want.parents is not None:
        np.testing.assert_array_equal(np.asarray(got.parents)[live], want.parents[live])
    np.testing.assert_array_equal(np.asarray(got.tokens), want.tokens)
    np.testing.assert_array_equal(np.asarray(got.state.node), want.state.node)


@pytest.mark.parametrize(
    ("level", "beams", "special"),
    [
        pytest.param(0, 1, False, id="a dense root"),
        pytest.param(1, 7, True, id="more than 128 edges, rows without a distribution"),
        pytest.param(2, 7, False, id="more edges than one copy of two rows brings", marks=pytest.mark.slow),
        pytest.param(3, 7, True, id="few edges and tails"),
        pytest.param(4, 7, True, id="each beam in its place", marks=pytest.mark.slow),
    ],
)
def test_steps_through_a_trie_agree_with_numpy(level, beams, special):
    agree(branching(), level, beams, special)


def test_masks_and_tails_at_one_depth_agree_with_numpy():
    table = crowded()
    assert table.levels[1].dense
    assert table.levels[1].tails
    agree(table, 1, special=True)


@pytest.mark.parametrize("level", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_softmax_of_allowed_tokens_agrees_with_numpy(level):
    agree(crowded(), level, special=True, renormalize=True)


@pytest.mark.slow
def test_masks_of_several_rows_agree_with_numpy():
    rng = np.random.default_rng(2)
    table = mw.compile_sids(np.unique(rng.integers(0, 4500, 4000))[:, None], 4500)
    assert table.levels[0].dense
    agree(table, 0, beams=1)


@pytest.mark.slow
def test_a_root_with_one_edge_agrees_with_numpy():
    table = mw.compile_sids(np.array([[3, 1, 4], [3, 2, 5]]), 8)
    assert not table.levels[0].dense
    agree(table, 0, beams=1)


def test_logits_of_16_bits_continue_each_beam_in_its_place():
    table = branching()
    nodes, logits, scores = inputs(table, 4, BEAMS, special=True)
    short = jnp.asarray(logits, jnp.bfloat16)
    want = numpy_ops.select(table, np.asarray(short.astype(jnp.float32)), State(nodes), scores, BEAMS, 4)
    with pltpu.force_tpu_interpret_mode():
        dev, state = jax_ops.to_device(table, platform="tpu"), State(jnp.asarray(nodes, jnp.int32))
        same(step(dev, short, state, jnp.asarray(scores), BEAMS, 4, False), want)


def test_a_step_is_exported_for_a_tpu():
    table = branching()
    dev = jax_ops.to_device(table, platform="tpu")
    for level, shape in enumerate(table.levels):
        n = BATCH if level == 0 else BATCH * BEAMS
        args = (
            jax.ShapeDtypeStruct((n, 200), jnp.float32),
            State(jax.ShapeDtypeStruct((n,), jnp.int32)),
            jax.ShapeDtypeStruct((BATCH, n // BATCH), jnp.float32),
        )
        exported = jax.export.export(
            jax.jit(lambda dev, logits, state, scores, level=level: step(dev, logits, state, scores, BEAMS, level)),
            platforms=["tpu"],
        )(dev, *args)
        text = exported.mlir_module()
        assert text.count("tpu_custom_call") >= (2 if shape.dense else 1)
        assert "stablehlo.scatter" not in text


def test_every_other_operation_reads_the_layout_for_tpus_too():
    table = crowded()
    dev, plain = jax_ops.to_device(table, platform="tpu"), jax_ops.to_device(table)
    assert not isinstance(plain, TpuTable)
    nodes = np.arange(table.num_states)
    state = State(jnp.asarray(nodes, jnp.int32))
    np.testing.assert_array_equal(jax.jit(jax_ops.bitmask)(dev, state), numpy_ops.bitmask(table, State(nodes)))
    tokens = np.random.default_rng(3).integers(0, 32, table.num_states)
    reached = jax.jit(jax_ops.advance)(dev, state, jnp.asarray(tokens))
    np.testing.assert_array_equal(reached.node, numpy_ops.advance(table, State(nodes), tokens).node)
    assert {name: getattr(dev, name) for name in statics_of(TpuTable)} == {
        name: getattr(plain, name) for name in statics_of(type(plain))
    }


def test_states_of_too_many_edges_take_the_operations_of_every_device():
    table = mw.compile_sids(np.stack([np.arange(600), np.arange(600)], axis=1), 20_000)
    assert not table.levels[0].dense
    dev = jax_ops.to_device(table, platform="tpu")
    logits = np.random.default_rng(4).normal(size=(1, 20_000)).astype(np.float32)
    assert not takes(dev, logits, 0)
    want = numpy_ops.select(table, logits, State(np.zeros(1, np.int64)), np.zeros((1, 1), np.float32), 5, 0)
    state = State(jnp.zeros(1, jnp.int32))
    same(step(dev, jnp.asarray(logits), state, jnp.zeros((1, 1)), 5, 0, False), want)


def test_a_kernel_is_not_replaced_where_there_is_no_tpu():
    dev = jax_ops.to_device(branching(), platform="tpu")
    with pytest.raises(ValueError, match="interpret"):
        step(dev, jnp.zeros((BATCH, 200)), State(jnp.zeros(BATCH, jnp.int32)), jnp.zeros((BATCH, 1)), BEAMS, 0, False)


def test_a_platform_that_jax_does_not_have_is_refused():
    with pytest.raises(ValueError, match="platform must be one of"):
        jax_ops.to_device(branching(), platform="abacus")


def test_a_row_of_a_mask_counts_the_bits_before_each_word():
    masks = np.random.default_rng(5).integers(0, 2**32, (3, 100), dtype=np.uint32)
    rows = mask_ranks(masks, 3200)
    assert rows.shape == (4 * 2, 1, LANES)
    for mask in range(3):
        for word in range(100):
            row, at = rows[2 * mask + (32 * word) // TOKENS_PER_ROW, 0], word % (LANES // 2)
            assert row[at] == masks[mask, word].view(np.int32)
            assert row[at + LANES // 2] == np.bitwise_count(masks[mask, :word]).sum()
    assert not rows[6, 0, : LANES // 2].any()
