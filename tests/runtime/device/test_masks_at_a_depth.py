"""`mask_logits` where the depth of all states is known, against the same where it is not."""

from __future__ import annotations

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.table.live_sids import LiveSids
from tests.support.backends import ALL, backend, out

SHAPES = {"wide and dense": (64, 64, 64), "short, and one that does not branch": (5, 3, 1, 4), "sparse": (900, 2, 3)}


def constraints(kind: str, rows: np.ndarray, size: int) -> object:
    """Return what `to_device` takes of rows of tokens."""
    rng = np.random.default_rng(1)
    if kind == "table":
        return mw.compile_sids(rows, size)
    if kind == "table with ends":
        return mw.compile_sids(rows, size, eos=[size - 1, size - 2])
    if kind == "live":
        live = LiveSids(mw.sort_sids(rows, size), capacity=64)
        live.insert(rows[::7] + np.array([1] + [0] * (rows.shape[1] - 1)))
        live.delete(rows[:5])
        return live.publish()
    whole = mw.compile_sids(rows, size) if kind == "filtered table" else mw.sort_sids(rows, size)
    return whole if kind == "matrix" else whole.filter(rng.random(len(rows)) < 0.3)


@pytest.mark.parametrize("kind", ["matrix", "filtered matrix", "live", "table", "table with ends", "filtered table"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ALL)
def test_a_known_depth_changes_no_mask(name, shape, kind):
    ops, into = backend(name)
    rng = np.random.default_rng(0)
    widths = SHAPES[shape]
    rows = np.unique(np.stack([rng.integers(0, width, 400) for width in widths], 1), axis=0)
    size = max(widths) + 5
    dev = ops.to_device(constraints(kind, rows, size))
    state = ops.start(dev, 12)
    for level in range(len(widths) + 1):
        logits = rng.standard_normal((12, size + level % 2)).astype(np.float32)
        logits[0], logits[1, 3], logits[2, 1] = np.nan, np.inf, -np.inf
        wanted = out(ops.mask_logits(dev, into(logits), state))
        np.testing.assert_array_equal(out(ops.mask_logits(dev, into(logits), state, None, level)), wanted)
        np.testing.assert_array_equal(out(ops.mask_logits_(dev, into(logits), state, None, level)), wanted)
        bits = numpy_ops.arrays.unpack(out(ops.bitmask(dev, state)).view(np.uint32), size)
        allowed = [np.flatnonzero(row) for row in bits]
        tokens = [rng.choice(each) if len(each) and at % 5 else size - 3 for at, each in enumerate(allowed)]
        state = ops.advance(dev, state, into(np.array(tokens)))


@pytest.mark.parametrize("kind", ["matrix", "filtered matrix", "live", "table", "table with ends", "filtered table"])
@pytest.mark.parametrize("name", ALL)
def test_a_state_of_another_depth_gets_nothing_that_is_not_allowed(name, kind):
    ops, into = backend(name)
    rng = np.random.default_rng(2)
    rows = np.unique(rng.integers(0, 40, (300, 3)), axis=0)
    dev = ops.to_device(constraints(kind, rows, 45))
    logits = into(np.zeros((6, 45), np.float32))
    state = ops.start(dev, 6)
    for _ in range(3):
        allowed = np.isfinite(out(ops.mask_logits(dev, logits, state)))
        for level in range(6):
            found = np.isfinite(out(ops.mask_logits(dev, logits, state, None, level)))
            assert not (found & ~allowed).any()
            best = ops.candidates(dev, logits, state, 45, level)
            for row, (tokens, scores) in enumerate(zip(out(best.tokens), out(best.scores), strict=True)):
                assert allowed[row, tokens[scores > -np.inf]].all()
        tokens = [int(rng.choice(np.flatnonzero(row))) if row.any() else 0 for row in allowed]
        state = ops.advance(dev, state, into(np.array(tokens)))


@pytest.mark.parametrize("level", [-1, 1.5, True, "1"])
def test_what_is_no_depth_is_refused_by_name(level):
    ops, into = backend("torch")
    dev = ops.to_device(mw.compile_sids([[1, 2]], 4))
    logits, state = into(np.zeros((1, 4), np.float32)), ops.start(dev, 1)
    for call in (
        lambda: ops.mask_logits(dev, logits, state, None, level),
        lambda: ops.candidates(dev, logits, state, 2, level),
        lambda: ops.select(dev, logits, state, into(np.zeros((1, 1), np.float32)), 2, level),
    ):
        with pytest.raises(ValueError, match="must be a depth, 0 or more"):
            call()


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_scores_of_other_rows_and_distances_that_are_not_there_are_refused_by_name(name):
    ops, into = backend(name)
    dev = ops.to_device(mw.compile_sids([[1, 2]], 4))
    logits, state = into(np.zeros((2, 4), np.float32)), ops.start(dev, 2)
    for shape in ((2, 2), (3, 1), (2,)):
        with pytest.raises(ValueError, match=r"scores have shape .*, the logits have 2 rows"):
            ops.select(dev, logits, state, into(np.zeros(shape, np.float32)), 2, 0)
    with pytest.raises(ValueError, match="has no distances on its device"):
        ops.distance(dev, state)


@pytest.mark.parametrize("name", ALL)
def test_tokens_do_not_wrap_in_narrow_states(name):
    ops, into = backend(name)
    rows = np.array([[1, 2], [3, 4]])
    for kind in ("matrix", "filtered matrix", "live", "table", "filtered table"):
        dev = ops.to_device(mw.sort_sids(rows, 9) if kind == "matrix" else constraints(kind, np.repeat(rows, 8, 0), 9))
        state = ops.start(dev, 4)
        narrow = state
        if name != "torch" or kind == "table":  # whose look-ups take wide numbers elsewhere
            narrow = type(state)(*(into(out(array).astype(np.int32)) for array in state))
        tokens = np.array([1 + 2**32, 1 - 2**32, 1 - 256, 1 + 2**40], np.int64)
        if name == "jax":  # in its 32-bit mode wide numbers do not reach it
            tokens = tokens.clip(-(2**31), 2**31 - 1).astype(np.int32)
        assert (out(ops.advance(dev, narrow, into(tokens)).node) == dev.dead).all(), kind
