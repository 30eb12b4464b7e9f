"""One step of beam search on a TPU: kernels find all continuations, and XLA the best of them."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from ..device_table import AnyState, Selection, State
from .arrays import take_inside
from .states import accepting
from .tpu_layout import LANES, WIDEST, TpuTable
from .tpu_masked import masked_continuations, ranked_targets
from .tpu_parts import Edges, Rows, Tables
from .tpu_sparse import sparse_continuations

_MOST_COLUMNS = 1 << 17  # of logits, that fit in VMEM for 16 beams, twice


def takes(dev: TpuTable, logits: Array, level: int) -> bool:
    """Return whether the kernels do the step at a level: other steps take the operations that every device has.

    They take logits of float32 and bfloat16 and up to 131,072 columns, and states of at most 512 edges or with masks.
    A TPU has no registers of float16.
    """
    shape = dev.level(level)
    narrow = logits.dtype in (jnp.float32, jnp.bfloat16) and logits.shape[1] <= _MOST_COLUMNS
    return logits.shape[0] > 0 and narrow and (shape.dense or shape.width <= WIDEST)


def select(
    dev: TpuTable, logits: Array, state: AnyState, scores: Array, beams: int, level: int, renormalize: bool
) -> Selection:
    """Return the `beams` best continuations; arguments and result as in `selection.select`.

    A search that must be differentiated takes a table put with `platform="cpu"`: kernels have no derivative.
    """
    shape = dev.level(level)
    batch, m = scores.shape
    node = state.node.astype(jnp.int32)
    edges = Edges(dev.num_rows, dev.num_edges, dev.num_states, dev.vocab_size)
    tables = Tables(
        first=dev.row_start.reshape(-1, 1, LANES),
        token=dev.edge_token.reshape(-1, 1, LANES),
        target=dev.edge_target.reshape(-1, 1, LANES),
        base=dev.base_row.reshape(-1, 1, LANES),
        masks=dev.mask_ranks,
    )
    rows = _rows(dev, logits, state, scores, renormalize)
    if shape.dense:
        masked = masked_continuations(node, tables, rows, edges, shape.tails, renormalize)
        best, at = lax.top_k(_filled(masked.totals.reshape(batch, -1), beams), beams)
        at = jnp.minimum(at, m * masked.totals.shape[1] - 1)
        parents, tokens = at // masked.totals.shape[1], at % masked.totals.shape[1]
        row = parents + m * jnp.arange(batch, dtype=at.dtype)[:, None]
        reached = ranked_targets((row.reshape(-1), tokens.reshape(-1)), masked, tables, edges)
        return _selection(dev, state, best, parents, tokens, reached.reshape(batch, beams))
    found = sparse_continuations(node, tables, rows, edges, shape.width, shape.rows, renormalize)
    totals, tokens, targets = (x[:, : shape.width].reshape(batch, m * shape.width) for x in found)
    if m == beams and shape.width == 1:  # nothing branches: each beam goes on in its place
        return _selection(dev, state, totals, None, tokens, targets)
    best, at = lax.top_k(_filled(totals, beams), beams)
    at = jnp.minimum(at, m * shape.width - 1)
    return _selection(dev, state, best, at // shape.width, take_inside(tokens, at), take_inside(targets, at))


def _rows(dev: TpuTable, logits: Array, state: AnyState, scores: Array, renormalize: bool) -> Rows:
    """Return what the kernels read of each beam."""
    n, columns = logits.shape
    if columns % LANES:
        logits = jnp.pad(logits, ((0, 0), (0, -columns % LANES)), constant_values=-jnp.inf)
    ends = jnp.full((n, 1), -jnp.inf, jnp.float32)
    if renormalize and dev.eos is not None:
        last = logits[:, dev.eos : dev.eos + 1].astype(jnp.float32)
        ends = jnp.where(accepting(dev, state)[:, None], last, ends)
    return Rows(logits, scores.reshape(n, 1).astype(jnp.float32), ends)


def _filled(totals: Array, beams: int) -> Array:
    """Return totals (B, n) with -inf up to as many as there are beams."""
    missing = beams - totals.shape[1]
    return jnp.pad(totals, ((0, 0), (0, missing)), constant_values=-jnp.inf) if missing > 0 else totals


def _selection(
    dev: TpuTable, state: AnyState, best: Array, parents: Array | None, tokens: Array, targets: Array
) -> Selection:
    """Return beams (B, M); those that no continuation is left for are in the dead state."""
    alive = best > -jnp.inf
    reached = jnp.where(alive, targets, dev.dead).reshape(-1).astype(state.node.dtype)
    return Selection(best, parents, jnp.where(alive, tokens, 0), State(reached))
