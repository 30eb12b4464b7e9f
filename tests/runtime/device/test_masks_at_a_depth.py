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
