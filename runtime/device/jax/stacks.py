"""What `stepping` asks of JAX, and the stacks of states with the distances of their frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from ....kernels.limits import UNREACHABLE
from ....table.states import NestedState
from ..device_table import AnyState, DeviceCalls
from ..stepping import Carry, Stacks
from . import edges
from .arrays import arange, concatenate, gathered, integers, lookup, take, where
from .edges import base_of, first_edge, in_mask, target_in_base

__all__ = [
    "arange", "as_sites", "at_least", "at_most", "base_of", "between", "column", "concatenate", "ends", "expand",
    "far_with", "filled", "find_token", "first_edge", "in_mask", "index", "inside", "integers", "larger", "lookup",
    "nested_state", "pick", "plus", "repeated", "smaller", "stacks_of", "take", "take_far", "target_in_base", "times",
    "where", "wrapped",
]  # fmt: skip

UNROLLED = 8  # frames that a token leaves without a loop, which XLA cannot fuse


def stacks_of(calls: DeviceCalls, state: AnyState, budget: bool) -> Stacks:
    """Return the stacks of a state (n,)."""
    assert isinstance(state, NestedState)
    sites, height = jnp.asarray(state.stack), jnp.asarray(state.height)
    inside = jnp.arange(calls.slots, dtype=height.dtype) < height[:, None]
    open_sites = jnp.where(inside, sites, calls.site_frames.shape[0] - 1)  # of no frame: the site that is none
    none = ((0, 0), (1, 0))
    frames = jnp.pad(jnp.cumsum(gathered(calls.site_frames, open_sites), axis=1, dtype=jnp.int32), none)
    far = None
    if budget and not calls.end_distance.shape[0]:
        far = lax.associative_scan(_sum, gathered(calls.site_distance, open_sites).astype(jnp.uint32), axis=1)
        far = jnp.pad(far, none)
    elif budget:
        start = jnp.full((sites.shape[0], calls.end_distance.shape[0]), UNREACHABLE, jnp.uint32).at[:, 0].set(0)

        def returned(far: Array, below: tuple[Array, Array]) -> tuple[Array, Array]:
            further = far_with(calls, far, *below)
            return further, further

        _, above = lax.scan(returned, start, (frames[:, :-1].T, open_sites.T))
        far = jnp.moveaxis(jnp.concatenate([start[None], above]), 0, 1)
    return Stacks(sites, height, frames, far)


def far_with(calls: DeviceCalls, far: Array, frames: Array, site: Array) -> Array:
    """Return distances of stacks (.., C) of so many frames (..,) with one more site (..,) on them, by ends."""

    def of_sites(values: Array) -> Array:
        return values.at[:, :, site].get(mode="promise_in_bounds")

    steps = of_sites(calls.end_distance)
    if calls.site_distance_room.shape[0]:
        steps = jnp.where(frames + of_sites(calls.site_distance_room) <= calls.depth, steps, UNREACHABLE)
    steps = jnp.moveaxis(steps, (0, 1), (-2, -1))
    return _sum(steps, far[..., None, : steps.shape[-1]]).min(axis=-1)


def _sum(a: Array, b: Array) -> Array:
    """Return the sum of distances, UNREACHABLE at most: two of them fit into 32 bits without a sign."""
    return jnp.minimum(a.astype(jnp.uint32) + b.astype(jnp.uint32), jnp.uint32(UNREACHABLE))


def plus(a: Array, b: Array) -> Array:
    """Return the sum of distances, UNREACHABLE at most, with a sign."""
    return _sum(a, b).astype(jnp.int32)


def take_far(far: Array, height: Array) -> Array:
    """Return distances of stacks (n, slots + 1), or (.., C) by ends, at heights (n, k)."""
    return take(far, height) if far.ndim == 2 else jnp.take_along_axis(far, height[:, :, None], axis=1)


def pick(array: Array, row: Array, column: Array) -> Array:
    """Return array (n, k) at rows and columns."""
    return gathered(array, row, column)


def filled(like: Array, value: int) -> Array:
    """Return an array of the shape of `like` with one value."""
    return jnp.full(like.shape, value, jnp.int32)


def expand(x: Array, like: Array) -> Array:
    """Return x broadcast to the shape of `like`."""
    return jnp.broadcast_to(x, like.shape)


def repeated(x: Array) -> Array:
    """Return x (n,) twice, one behind the other."""
    return jnp.tile(x, 2)


def index(x: Array) -> Array:
    """Return whole numbers as they are: any type indexes."""
    return x


def as_sites(x: Array) -> Array:
    """Return whole numbers as they are: `nested_state` converts stacks."""
    return x


def at_least(x: Array, low: int) -> Array:
    """Return the larger of x and a number."""
    return jnp.maximum(x, low)


def at_most(x: Array, high: int) -> Array:
    """Return the smaller of x and a number."""
    return jnp.minimum(x, high)


def between(x: Array, low: int, high: int) -> Array:
    """Return x, or the nearest of two bounds."""
    return jnp.clip(x, low, high)


def wrapped(x: Array, n: int) -> Array:
    """Return x, but n - 1 for -1."""
    return jnp.where(x < 0, n - 1, x)


def ends(distance: Array) -> list[Array]:
    """Return distances by end (C, n), one end after the other."""
    return [distance[end] for end in range(distance.shape[0])]


def column(x: Array, at: Array | int) -> Array:
    """Return one column of x (n, k): (n, 1)."""
    return lax.dynamic_slice_in_dim(x, at, 1, axis=1)


def times(count: int, body: Callable[[Any, Carry], Carry], carry: Carry) -> Carry:
    """Return what comes out after `count` rounds of body(round, carry): of few without a loop."""
    if count > UNROLLED:
        looped: Carry = lax.fori_loop(0, count, body, carry)
        return looped
    for each in range(count):
        carry = body(each, carry)
    return carry


def inside(token: Array, size: int) -> Array:
    """Return tokens moved into 0 .. size - 1, in 32 bits."""
    return jnp.clip(token, 0, size - 1).astype(jnp.int32)


def find_token(tokens: Array, largest: int, low: Array, last: Array, token: Array, width: int) -> tuple[Array, Array]:
    """Return where a token stands among the sorted tokens[low:last]; unsigned types need no `largest`."""
    return edges.find_token(tokens, low, last, token, width)


def nested_state(node: Any, stack: Any, height: Any) -> NestedState:
    """Return a state of arrays that are none of numpy."""
    return NestedState(node, stack.astype(jnp.int32), height.astype(jnp.int32))


larger = jnp.maximum
smaller = jnp.minimum
