"""What the kernels for TPUs share: what they are given, copies of rows, the softmax, and how they are called.

A TPU reads memory in rows of 128 words. Each table is a sequence of such rows in HBM, and a kernel copies the rows that
its beams need, one or two a beam; no table enters VMEM as a whole. A copy takes about a microsecond however small it
is, so a program starts the copies of all its beams before it waits for them, and sums the softmax meanwhile.

An address must be a scalar. What a later copy depends on goes to SMEM, what lanes compute with goes to VMEM.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..device_table import DeviceTable
from .tpu_layout import LANES

_SUBLANES = 16  # rows of a tile of 16-bit numbers; of 32 bits it has 8
MOST_ROWS = 128  # beams of a program
_LOGITS_BYTES = 2 << 20  # of a program's logits in VMEM, which holds two such blocks
AT_ONCE = 8  # beams that a loop over them is written out for
UNROLLED = 32  # blocks of 128 columns up to which a loop over them is written out

Scalar = Any  # an integer of the scalar core
Placed = Any  # an array, in a kernel the reference to it, or how Pallas places it
Ref = Any  # a reference to memory: Pallas has no type for it that says its shape


class Edges(NamedTuple):
    """What is static of the edges of a table, and how far its rows of 128 words go."""

    rows: int  # states with edges of their own, S
    edges: int  # edges of those, E
    states: int
    vocab_size: int


class Tables(NamedTuple):
    """The arrays of a table as rows of 128 words: int32 (n, 1, 128) each."""

    first: Array  # the first edge of each state with edges of its own
    token: Array  # of each edge
    target: Array  # of each edge before E
    base: Array  # of each state with a mask; the last base beyond
    masks: Array  # see `tpu_layout.mask_ranks`


class Rows(NamedTuple):
    """What there is of each beam."""

    logits: Placed  # (n, C) float32 or bfloat16, C a multiple of 128
    scores: Placed  # (n, 1) float32
    ends: Placed  # (n, 1) float32: the logit of EOS where it counts in the softmax, else -inf


def copies(table: Ref, row_of: Callable[[Scalar], Scalar], rows: int, into: Ref, semaphore: Ref) -> tuple[Any, Any]:
    """Return functions that start copies of `rows` rows of a table for every beam, and that wait for all of them.

    into: (beams, rows, 1, 128), in VMEM or SMEM. row_of: the first row that a beam needs.
    """
    last = table.shape[0] - rows

    def copy(beam: Scalar) -> None:
        row = jnp.clip(row_of(beam), 0, last)  # a state of another table must not stop the device
        pltpu.make_async_copy(table.at[pl.ds(row, rows)], into.at[beam], semaphore).start()

    def wait() -> None:
        whole: Any = pltpu.make_async_copy(into, into, semaphore)  # as many bytes as all copies have
        whole.wait()

    return functools.partial(each_beam, into.shape[0], copy), wait


def each_beam(beams: int, body: Callable[[Scalar], None]) -> None:
    """Run body(beam) for each beam, 8 at a time: written out they overlap, and take a third of the time."""
    at_once = AT_ONCE if beams % AT_ONCE == 0 else 1

    def some(group: Scalar, _: None) -> None:
        for beam in range(at_once):
            body(group * at_once + beam)

    lax.fori_loop(0, beams // at_once, some, None)


def each_block(blocks: int, body: Callable[[Scalar, Any], Any], carry: Any) -> Any:
    """Return what comes out after body(block, carry) for each block of 128 columns."""
    return lax.fori_loop(0, blocks, body, carry, unroll=blocks <= UNROLLED)


def block_of(ref: Ref, block: Scalar) -> Array:
    """Return 128 columns of a reference in float32."""
    columns: Array = ref[:, pl.ds(pl.multiple_of(block * LANES, LANES), LANES)].astype(jnp.float32)
    return columns


def log_sum(ref: Ref, ends: Ref) -> Array:
    """Return the logarithm of the sum of exponentials of each row of a reference, its end with it: (n, 1)."""
    shape, blocks = (ref.shape[0], LANES), ref.shape[1] // LANES
    lanes = each_block(
        blocks, lambda block, most: jnp.maximum(most, block_of(ref, block)), jnp.full(shape, -jnp.inf, jnp.float32)
    )
    most = jnp.maximum(lanes.max(axis=1, keepdims=True), ends[...])
    most = jnp.where(most == -jnp.inf, 0.0, most)  # a row of -inf alone: its sum is 0
    lanes = each_block(
        blocks, lambda block, total: total + jnp.exp(block_of(ref, block) - most), jnp.zeros(shape, jnp.float32)
    )
    return most + jnp.log(lanes.sum(axis=1, keepdims=True) + jnp.exp(ends[...] - most))


def totals_of(x: Array, log_z: Array, scores: Array, valid: Array) -> Array:
    """Return scores plus log-probabilities, -inf where not valid and in a row without a distribution."""
    total = scores + (x - log_z)
    return jnp.where(valid & (jnp.abs(log_z) < jnp.inf) & (total == total), total, -jnp.inf)


def lanes_of(beams: int) -> Array:
    """Return 0 .. 127 in each of so many rows."""
    return lax.broadcasted_iota(jnp.int32, (beams, LANES), 1)


def gather_rows(window: Ref, which: int, words: Ref) -> None:
    """Write one row of each beam's window (n, rows, 1, 128) to words (n, 128), where 8 rows share a register."""

    def place(beam: Scalar) -> None:
        words[pl.ds(beam, 1), :] = window[beam, which]

    each_beam(words.shape[0], place)


def first_edge(edges: Edges, node: Scalar, starts: Ref | None, beam: Scalar) -> tuple[Scalar, Scalar]:
    """Return the first edge of a state, and how many it has; starts: (beams, 2, 1, 128) from the state's row on."""
    tail = node + (edges.edges - edges.rows)  # which has one edge
    if starts is None:
        return tail, 1
    after = jnp.minimum(node, edges.rows - 1) + 1
    row = jnp.minimum(node, edges.rows - 1) >> 7
    low = starts[beam, 0, 0, jnp.minimum(node, edges.rows - 1) & (LANES - 1)]
    high = starts[beam, (after >> 7) - row, 0, after & (LANES - 1)]
    is_row = node < edges.rows
    return jnp.where(is_row, low, tail), jnp.where(is_row, high - low, 1)


def node_of_beam(edges: Edges, node: Ref, beams: int) -> Callable[[Scalar], Scalar]:
    """Return a function from a beam of this program to its state."""
    first = pl.program_id(0) * beams
    return lambda beam: jnp.clip(node[first + beam], 0, edges.states - 1)


def row_block(program: Scalar, *_: Any) -> tuple[Scalar, int]:
    """Return the block of rows that a program has."""
    return program, 0


def shape_of(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return that an array has this shape and type."""
    make: Any = jax.ShapeDtypeStruct  # which has no types
    return make(shape, dtype)


def held_in_hbm(tables: Tables | DeviceTable, *names: str) -> dict[str, Array]:
    """Return some of the tables, which XLA must leave in HBM: else it copies them into VMEM ahead, if it has time."""
    return {name: pltpu.with_memory_space_constraint(getattr(tables, name), pltpu.HBM) for name in names}


def stay(held: dict[str, Array]) -> dict[str, Any]:
    """Return that tables stay where they are."""
    return {name: pl.BlockSpec(memory_space=pltpu.HBM) for name in held}


def by_row(rows: Rows, beams: int) -> Rows:
    """Return that a program has so many rows; the last has fewer, and what it computes of others is not kept."""
    return Rows(*(pl.BlockSpec((beams, x.shape[1]), row_block) for x in rows))


def padded(x: Array, size: int) -> Array:
    """Return x (n,) with zeros up to a size."""
    return x if x.shape[0] == size else jnp.pad(x, (0, size - x.shape[0]))


def split(n: int, logits: Array) -> tuple[int, int]:
    """Return how many beams a program takes, and the number of programs."""
    most = max(_SUBLANES, min(MOST_ROWS, _LOGITS_BYTES // (4 * logits.shape[1]) // _SUBLANES * _SUBLANES))
    programs = -(-n // most)
    each = -(-n // programs)
    return -(-each // _SUBLANES) * _SUBLANES, programs
