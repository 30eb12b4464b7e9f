"""Kernels for states with masks: the totals of all tokens, and where the best of them lead."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .tpu_layout import LANES, TOKENS_PER_ROW, WORDS_PER_ROW
from .tpu_parts import (
    MOST_ROWS,
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

_ROW_BITS = TOKENS_PER_ROW.bit_length() - 1


class Masked(NamedTuple):
    """The continuations of states with masks, and where their edges begin."""

    totals: Placed  # (n, C) float32 by token, -inf where it is not allowed
    low: Placed  # (n,) int32, the first edge
    base: Placed  # (n,) int32


def _masked_kernel(
    node: Ref,
    tables: dict[str, Ref],
    rows: Rows,
    masked: Masked,
    scratch: dict[str, Ref],
    *,
    edges: Edges,
    renormalize: bool,
) -> None:
    """Write the totals of all tokens that states with masks, and of a tail, allow."""
    beams = rows.logits.shape[0]
    node_of, begin = node_of_beam(edges, node, beams), pl.program_id(0) * beams
    none = tables["base"].shape[0] * LANES - 1  # behind the states with masks the last base stands
    bases, starts, own = scratch["bases"], scratch["starts"], scratch.get("own")
    parts = [
        copies(tables["base"], lambda beam: jnp.minimum(node_of(beam), none) >> 7, 1, bases, scratch["arrived"]),
        copies(
            tables["first"], lambda beam: jnp.minimum(node_of(beam), edges.rows - 1) >> 7, 2, starts, scratch["arrived"]
        ),
    ]
    for start, _ in parts:
        start()
    for _, wait in parts:
        wait()

    def note(beam: Scalar) -> None:
        masked.low[begin + beam] = first_edge(edges, node_of(beam), starts, beam)[0]
        masked.base[begin + beam] = bases[beam, 0, 0, jnp.minimum(node_of(beam), none) & (LANES - 1)]

    each_beam(beams, note)
    many = scratch["masks"].shape[1]
    start, wait = copies(
        tables["masks"], lambda beam: masked.base[begin + beam] * many, many, scratch["masks"], scratch["arrived"]
    )
    start()
    if own is not None:
        start_own, wait_own = copies(
            tables["token"], lambda beam: masked.low[begin + beam] >> 7, 1, own, scratch["own_arrived"]
        )
        start_own()
    log_z = None if renormalize else log_sum(rows.logits, rows.ends)
    wait()
    tail = None
    if own is not None:
        wait_own()

        def place(beam: Scalar) -> None:
            token = own[beam, 0, 0, masked.low[begin + beam] & (LANES - 1)]
            token = jnp.where((node_of(beam) < edges.rows) | (token >= edges.vocab_size), -1, token)
            scratch["tail"][pl.ds(beam, 1), :] = jnp.full((1, LANES), token, jnp.int32)

        each_beam(beams, place)
        tail = scratch["tail"][...]
    for part in range(many):
        _mask_part(rows.logits, masked.totals, scratch, part, tail)
    if log_z is None:
        log_z = log_sum(masked.totals, rows.ends)

    def finish(block: Scalar, _: None) -> None:
        columns = pl.ds(pl.multiple_of(block * LANES, LANES), LANES)
        x = masked.totals[:, columns]
        masked.totals[:, columns] = totals_of(x, log_z, rows.scores[...], x > -jnp.inf)

    each_block(masked.totals.shape[1] // LANES, finish, None)


def _mask_part(logits: Ref, out: Ref, scratch: dict[str, Ref], part: int, tail: Array | None) -> None:
    """Write the logits that one row of 64 words of each mask allows, -inf elsewhere; tail: a token (n, 128) besides."""
    words, window = scratch["words"], scratch["masks"]

    gather_rows(window, part, words)
    lane = lanes_of(words.shape[0])
    first = part * (TOKENS_PER_ROW // LANES)

    def mask(block: Scalar, _: None) -> None:
        word = jnp.take_along_axis(words[...], 4 * block + (lane >> 5), axis=1, mode="promise_in_bounds")
        allowed = ((word >> (lane & 31)) & 1) != 0
        if tail is not None:
            allowed |= tail == lane + (first + block) * LANES
        columns = pl.ds(pl.multiple_of((first + block) * LANES, LANES), LANES)
        out[:, columns] = jnp.where(allowed, block_of(logits, first + block), -jnp.inf)

    each_block(min(TOKENS_PER_ROW // LANES, out.shape[1] // LANES - first), mask, None)


@functools.partial(jax.jit, static_argnames=("edges", "tails", "renormalize"))
def masked_continuations(
    node: Array, tables: Tables, rows: Rows, edges: Edges, tails: bool, renormalize: bool
) -> Masked:
    """Return the continuations of n states with masks by token, and where their edges begin.

    node: int32 (n,). tails: some states stand in a tail instead. renormalize: as for `sparse_continuations`. C is the
    vocabulary's size, rounded up to 128.
    """
    n = node.shape[0]
    beams, programs = split(n, rows.logits)
    columns = -(-edges.vocab_size // LANES) * LANES
    many = -(-edges.vocab_size // TOKENS_PER_ROW)
    scratch: dict[str, Any] = {
        "bases": pltpu.SMEM((beams, 1, 1, LANES), jnp.int32),
        "starts": pltpu.SMEM((beams, 2, 1, LANES), jnp.int32),
        "masks": pltpu.VMEM((beams, many, 1, LANES), jnp.int32),
        "words": pltpu.VMEM((beams, LANES), jnp.int32),
        "arrived": pltpu.SemaphoreType.DMA,
    }
    if tails:
        scratch |= {
            "own": pltpu.SMEM((beams, 1, 1, LANES), jnp.int32),
            "tail": pltpu.VMEM((beams, LANES), jnp.int32),
            "own_arrived": pltpu.SemaphoreType.DMA,
        }
    held = held_in_hbm(tables, "first", "base", "masks", *(("token",) if tails else ()))
    scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
    per_beam = shape_of((beams * programs,), jnp.int32)
    (masked,) = pl.pallas_call(
        functools.partial(_masked_kernel, edges=edges, renormalize=renormalize),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(programs,),
            in_specs=[stay(held), by_row(rows, beams)],
            out_specs=[Masked(pl.BlockSpec((beams, columns), row_block), scalars, scalars)],
            scratch_shapes=[scratch],
        ),
        out_shape=[Masked(shape_of((n, columns), jnp.float32), per_beam, per_beam)],
        name="masked_continuations",
    )(padded(node, beams * programs), held, rows)
    return Masked(*masked)


def _ranked_kernel(
    winners: tuple[Ref, Ref],
    parents: tuple[Ref, Ref],
    tables: dict[str, Ref],
    out: Ref,
    scratch: dict[str, Ref],
    *,
    edges: Edges,
) -> None:
    """Write where tokens of states with masks lead: the rank of a token in its mask is that of its edge."""
    row, token = winners
    low, base = parents
    words, targets, edge = scratch["words"], scratch["targets"], scratch["edge"]
    begin, many = pl.program_id(0) * words.shape[0], -(-edges.vocab_size // TOKENS_PER_ROW)

    def mask_row(slot: Scalar) -> Scalar:
        return base[row[begin + slot]] * many + (token[begin + slot] >> _ROW_BITS)

    start, wait = copies(tables["masks"], mask_row, 1, words, scratch["arrived"])
    start()
    wait()

    def rank(slot: Scalar) -> None:
        at, bit = (token[begin + slot] & (TOKENS_PER_ROW - 1)) >> 5, token[begin + slot] & 31
        below = words[slot, 0, 0, at] & ((1 << bit) - 1)
        before = words[slot, 0, 0, at + WORDS_PER_ROW] + _bits(below)
        edge[0, slot] = low[row[begin + slot]] + before

    each_beam(words.shape[0], rank)
    start, wait = copies(tables["target"], lambda slot: edge[0, slot] >> 7, 1, targets, scratch["arrived"])
    start()
    wait()

    def follow(slot: Scalar) -> None:
        at = edge[0, slot]
        found = targets[slot, 0, 0, at & (LANES - 1)]
        out[begin + slot] = jnp.where(at < edges.edges, found, at + (edges.rows - edges.edges + 1))

    each_beam(words.shape[0], follow)


def _bits(word: Scalar) -> Scalar:
    """Return how many bits of a word are set, by adding halves: the scalar core cannot count them."""
    word = word - (lax.shift_right_logical(word, 1) & 0x55555555)
    word = (word & 0x33333333) + (lax.shift_right_logical(word, 2) & 0x33333333)
    word = (word + lax.shift_right_logical(word, 4)) & 0x0F0F0F0F
    return lax.shift_right_logical(word * 0x01010101, 24)


@functools.partial(jax.jit, static_argnames=("edges",))
def ranked_targets(winners: tuple[Array, Array], parents: Masked, tables: Tables, edges: Edges) -> Array:
    """Return the states (k,) that winners lead to: (row (k,) in `parents`, token (k,)), int32 both."""
    k = winners[0].shape[0]
    programs = -(-k // MOST_ROWS)
    slots = -(-k // (8 * programs)) * 8
    scratch = {
        "words": pltpu.SMEM((slots, 1, 1, LANES), jnp.int32),
        "targets": pltpu.SMEM((slots, 1, 1, LANES), jnp.int32),
        "edge": pltpu.SMEM((1, slots), jnp.int32),
        "arrived": pltpu.SemaphoreType.DMA,
    }

    held = held_in_hbm(tables, "masks", "target")

    def kernel(row: Ref, token: Ref, low: Ref, base: Ref, kept: dict[str, Ref], out: Ref, room: dict[str, Ref]) -> None:
        _ranked_kernel((row, token), (low, base), kept, out, room, edges=edges)

    reached: Array = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(programs,),
            in_specs=[stay(held)],
            out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
            scratch_shapes=[scratch],
        ),
        out_shape=shape_of((slots * programs,), jnp.int32),
        name="ranked_targets",
    )(*(padded(x, slots * programs) for x in winners), parents.low, parents.base, held)
    return reached[:k]
