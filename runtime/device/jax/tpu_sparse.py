"""A kernel for states without masks: a lane for each edge, the logits looked up by gathers within registers."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .tpu_layout import LANES
from .tpu_parts import (
    Edges,
    Placed,
    Ref,
    Rows,
    Scalar,
    Tables,
    block_of,
    by_row,
    copies,
    each_beam,
    each_block,
    first_edge,
    gather_rows,
    held_in_hbm,
    lanes_of,
    log_sum,
    node_of_beam,
    padded,
    row_block,
    shape_of,
    split,
    stay,
    totals_of,
)


class Found(NamedTuple):
    """The continuations of sparse states, a lane each."""

    totals: Placed  # (n, W) float32, -inf where a lane has none
    tokens: Placed  # (n, W) int32, 0 where a lane has none
    targets: Placed  # (n, W) int32, the state each leads to


def _sparse_kernel(
    node: Ref,
    tables: dict[str, Ref],
    rows: Rows,
    found: Found,
    scratch: dict[str, Ref],
    *,
    edges: Edges,
    renormalize: bool,
) -> None:
    """Write the continuations of states without masks: a lane for each edge."""
    beams = rows.logits.shape[0]
    node_of = node_of_beam(edges, node, beams)
    starts, low, words = scratch.get("starts"), scratch["low"], scratch["words"]
    if starts is not None:
        start, wait = copies(
            tables["first"], lambda beam: jnp.minimum(node_of(beam), edges.rows - 1) >> 7, 2, starts, scratch["arrived"]
        )
        start()
        wait()

    def note(beam: Scalar) -> None:
        first, count = first_edge(edges, node_of(beam), starts, beam)
        low[0, beam] = first
        scratch["edge"][0, pl.ds(beam, 1), :] = jnp.full((1, LANES), first, jnp.int32)
        scratch["edge"][1, pl.ds(beam, 1), :] = jnp.full((1, LANES), count, jnp.int32)

    each_beam(beams, note)
    window = scratch["tokens"].shape[1]
    start, wait = copies(tables["token"], lambda beam: low[0, beam] >> 7, window, scratch["tokens"], scratch["arrived"])
    start()
    if starts is not None:
        start_targets, wait_targets = copies(
            tables["target"], lambda beam: low[0, beam] >> 7, window, scratch["targets"], scratch["targets_arrived"]
        )
        start_targets()
    log_z = None if renormalize else log_sum(rows.logits, rows.ends)
    wait()
    if starts is not None:
        wait_targets()
    first, count, lane = scratch["edge"][0], scratch["edge"][1], lanes_of(beams)
    for part in range(found.totals.shape[1] // LANES):
        columns = slice(part * LANES, (part + 1) * LANES)
        at = lane + (first & (LANES - 1))
        edge = first + lane + part * LANES
        token = _turned(scratch["tokens"], at, words, part)
        valid = (lane + part * LANES < count) & (token >= 0) & (token < edges.vocab_size)
        token = jnp.where(valid, token, 0)
        target = edge + (edges.rows - edges.edges + 1)
        if starts is not None:
            target = jnp.where(edge < edges.edges, _turned(scratch["targets"], at, words, part), target)
        found.tokens[:, columns] = token
        found.targets[:, columns] = target
        found.totals[:, columns] = jnp.where(valid, _logits_at(rows.logits, token), -jnp.inf)
    if log_z is None:
        log_z = log_sum(found.totals, rows.ends)
    x = found.totals[...]
    found.totals[...] = totals_of(x, log_z, rows.scores[...], x > -jnp.inf)


def _turned(window: Ref, at: Array, words: Ref, first: int) -> Array:
    """Return window[beam, first + at // 128, at % 128], where at (n, 128) is below 256.

    words: (n, 128), through which the rows of a window come from memory laid out one by one.
    """

    def rows(which: int) -> Array:
        gather_rows(window, which, words)
        return jnp.take_along_axis(words[...], at & (LANES - 1), axis=1, mode="promise_in_bounds")

    near = rows(first)
    return near if window.shape[1] == 1 else jnp.where(at < LANES, near, rows(first + 1))


def _logits_at(logits: Ref, token: Array) -> Array:
    """Return each row's logits at tokens (n, 128), by gathers within registers."""

    def look(block: Scalar, found: Array) -> Array:
        here = jnp.take_along_axis(block_of(logits, block), token & (LANES - 1), axis=1, mode="promise_in_bounds")
        return jnp.where((token >> 7) == block, here, found)

    found: Array = each_block(logits.shape[1] // LANES, look, jnp.zeros(token.shape, jnp.float32))
    return found


@functools.partial(jax.jit, static_argnames=("edges", "width", "own_rows", "renormalize"))
def sparse_continuations(
    node: Array, tables: Tables, rows: Rows, edges: Edges, width: int, own_rows: bool, renormalize: bool
) -> Found:
    """Return the continuations of n states without masks, which have at most `width` edges.

    node: int32 (n,). own_rows: some states have edges of their own; else each has at most one, in a tail.
    renormalize: the softmax is that of the continuations and of `rows.ends`. W is `width`, rounded up to 128.
    """
    n = node.shape[0]
    beams, programs = split(n, rows.logits)
    parts, window = -(-width // LANES), (LANES - 2 + width) // LANES + 1
    scratch: dict[str, Any] = {
        "tokens": pltpu.VMEM((beams, window, 1, LANES), jnp.int32),
        "words": pltpu.VMEM((beams, LANES), jnp.int32),
        "edge": pltpu.VMEM((2, beams, LANES), jnp.int32),
        "low": pltpu.SMEM((1, beams), jnp.int32),
        "arrived": pltpu.SemaphoreType.DMA,
    }
    if own_rows:
        scratch |= {
            "starts": pltpu.SMEM((beams, 2, 1, LANES), jnp.int32),
            "targets": pltpu.VMEM((beams, window, 1, LANES), jnp.int32),
            "targets_arrived": pltpu.SemaphoreType.DMA,
        }
    held = held_in_hbm(tables, "token", *(("first", "target") if own_rows else ()))
    by_lane = pl.BlockSpec((beams, parts * LANES), row_block)
    lanes = functools.partial(shape_of, (n, parts * LANES))
    (found,) = pl.pallas_call(
        functools.partial(_sparse_kernel, edges=edges, renormalize=renormalize),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(programs,),
            in_specs=[stay(held), by_row(rows, beams)],
            out_specs=[Found(by_lane, by_lane, by_lane)],
            scratch_shapes=[scratch],
        ),
        out_shape=[Found(lanes(jnp.float32), lanes(jnp.int32), lanes(jnp.int32))],
        name="sparse_continuations",
    )(padded(node, beams * programs), held, rows)
    return Found(*found)
