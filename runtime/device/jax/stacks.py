"""Stepping of nested tables: frames of return sites, the symbols that leave them, and the room for more."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ....table.transition_table import NEVER, NestedState
from ..device_table import AnyState, DeviceCalls, DeviceTable
from .arrays import gathered, take
from .edges import base_of, find_token, first_edge, in_mask, target_in_base

_UNROLLED = 8  # frames that a token leaves without a loop, which XLA cannot fuse


class Stacks(NamedTuple):
    """The stacks of a batch."""

    sites: Array  # (n, slots)
    height: Array  # (n,) open frames
    frames: Array  # (n, slots + 1) how many of the lowest 0, 1, .. frames are no leaves
    far: Array | None  # (n, slots + 1) uint32 tokens in which those are left, where there is a budget; (.., C) by ends


class Around(NamedTuple):
    """What is on the stacks that codes (n, k) are followed from, of a shape that broadcasts with theirs."""

    height: Array
    frames: Array
    far: Array | None  # with one more axis, of C, where ends are told apart


def plus(a: Array, b: Array) -> Array:
    """Return the sum of distances, NEVER at most: two of them fit into 32 bits without a sign."""
    return jnp.minimum(a.astype(jnp.uint32) + b.astype(jnp.uint32), jnp.uint32(NEVER))


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
        far = lax.associative_scan(plus, gathered(calls.site_distance, open_sites).astype(jnp.uint32), axis=1)
        far = jnp.pad(far, none)
    elif budget:
        start = jnp.full((sites.shape[0], calls.end_distance.shape[0]), NEVER, jnp.uint32).at[:, 0].set(0)

        def returned(far: Array, below: tuple[Array, Array]) -> tuple[Array, Array]:
            further = _returned(calls, far, *below)
            return further, further

        _, above = lax.scan(returned, start, (frames[:, :-1].T, open_sites.T))
        far = jnp.moveaxis(jnp.concatenate([start[None], above]), 0, 1)
    return Stacks(sites, height, frames, far)


def _returned(calls: DeviceCalls, far: Array, frames: Array, site: Array) -> Array:
    """Return distances of stacks (.., C) of so many frames (..,) with one more site (..,) on them, by ends."""

    def of_sites(values: Array) -> Array:
        return values.at[:, :, site].get(mode="promise_in_bounds")

    steps = of_sites(calls.end_distance)
    if calls.site_distance_room.shape[0]:
        steps = jnp.where(frames + of_sites(calls.site_distance_room) <= calls.depth, steps, NEVER)
    steps = jnp.moveaxis(steps, (0, 1), (-2, -1))
    return plus(steps, far[..., None, : steps.shape[-1]]).min(axis=-1)


def around_of(stack: Stacks, height: Array) -> Around:
    """Return what is on stacks of which the lowest frames (n, k) are left."""
    far = stack.far
    if far is not None:
        far = take(far, height) if far.ndim == 2 else jnp.take_along_axis(far, height[:, :, None], axis=1)
    return Around(height, take(stack.frames, height), far)


def may_follow(dev: DeviceTable, code: Array, around: Around | None, last: Array | None) -> Array:
    """Return whether codes (n, k) may be followed from stacks, with `last` tokens (n, 1) left where they lead to."""
    fits = code != dev.dead
    far = None if last is None or dev.distance.ndim > 1 else gathered(dev.distance, code)
    if dev.calls is not None and around is not None:
        calls = dev.calls
        action = jnp.maximum(code - dev.dead, 0)
        room = gathered(calls.action_room, action)
        if calls.state_room.shape[0]:
            room = jnp.maximum(room, gathered(calls.state_room, jnp.minimum(code, dev.dead)))
        pushed = gathered(calls.action_start, action + 1) - gathered(calls.action_start, action)
        fits &= (around.frames + room <= calls.depth) & (around.height + pushed <= calls.slots)
        if far is not None and around.far is not None:
            far = plus(far, around.far).astype(jnp.int32)
        elif last is not None and around.far is not None:  # one end after the other: many are rare, and codes are many
            for end in range(dev.distance.shape[0]):
                by_end = plus(gathered(dev.distance[end], code), around.far[..., end]).astype(jnp.int32)
                if calls.distance_room.shape[0]:
                    possible = around.frames + gathered(calls.distance_room[end], code) <= calls.depth
                    by_end = jnp.where(possible, by_end, NEVER)
                far = by_end if far is None else jnp.minimum(far, by_end)
    return fits if far is None or last is None else fits & (far <= last)


def base_site(calls: DeviceCalls, node: Array) -> Array:
    """Return the site (n, 1) that each row's base lies on, or -1."""
    if not calls.base_push.shape[0]:
        return jnp.full((node.shape[0], 1), -1, jnp.int32)
    return gathered(calls.base_push, jnp.minimum(node, calls.base_push.shape[0] - 1))[:, None]


def with_site(calls: DeviceCalls, around: Around, push: Array) -> tuple[Around, Array]:
    """Return what is on stacks with a site (n, 1) in addition, where that is not -1, and whether there is room."""
    site = jnp.where(push < 0, calls.site_frames.shape[0] - 1, push)
    height = around.height + (push >= 0)
    fits = (push < 0) | (around.frames + gathered(calls.site_room, site) <= calls.depth) & (height <= calls.slots)
    far = around.far
    if far is not None:
        one = not calls.end_distance.shape[0]
        far = (
            plus(far, gathered(calls.site_distance, site))
            if one
            else jnp.where(push[..., None] < 0, far, _returned(calls, far, around.frames, site))
        )
    return Around(height, around.frames + gathered(calls.site_frames, site), far), fits


def resolve(dev: DeviceTable, calls: DeviceCalls, stack: Stacks, push: Array, target: Array) -> tuple[Array, Array]:
    """Return the code that each target (n, k) comes to and how many frames are left below it: (n, k) each.

    A target is a code, or -1 - y: symbol y leaves the frame on top. push: a site (n, 1) that lies there besides, or
    -1. A token leaves few frames, `pops` at most, and all of one row leave the same ones.
    """
    top = stack.height[:, None] + (push >= 0)
    at = top - 1 - jnp.arange(calls.pops, dtype=top.dtype)
    sites = jnp.where(at < stack.height[:, None], take(stack.sites, jnp.clip(at, 0, calls.slots - 1)), push)
    sites = jnp.where(at < 0, calls.site_frames.shape[0] - 1, sites)

    def leave(pop: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        target, left = carry
        leaves = target < 0
        site, below = (lax.dynamic_slice_in_dim(x, pop, 1, axis=1) for x in (sites, at))
        found = _site_target(calls, site, jnp.maximum(-1 - target, 0), dev.dead).astype(target.dtype)
        return jnp.where(leaves, found, target), jnp.where(leaves, below, left)

    carry = target, jnp.broadcast_to(top, target.shape)
    if calls.pops <= _UNROLLED:
        for pop in range(calls.pops):
            carry = leave(pop, carry)
    else:
        carry = lax.fori_loop(0, calls.pops, leave, carry)
    target, left = carry
    return jnp.where(target < 0, dev.dead, target), jnp.maximum(left, 0)


def _site_target(calls: DeviceCalls, site: Array, symbol: Array, dead: int) -> Array:
    """Return what symbols (n, k) come to at sites (n, 1): a code, the dead state where a site has none, or -1 - y."""
    if not calls.site_width:
        return gathered(calls.site_target, site, symbol)
    low, last = gathered(calls.site_start, site), gathered(calls.site_start, site + 1)
    low, last = jnp.broadcast_to(low, symbol.shape), jnp.broadcast_to(last, symbol.shape)
    at, found = find_token(calls.site_symbol, low, last, symbol, calls.site_width)
    return jnp.where(found, gathered(calls.site_target, at), dead)


def exit_list(calls: DeviceCalls, lists: Array, at: Array) -> Array:
    """Return the exit list of each row or base (n,), the empty one where it has none."""
    if not lists.shape[0]:
        return jnp.full(at.shape, calls.exit_start.shape[0] - 2, jnp.int32)
    return gathered(lists, jnp.minimum(at, lists.shape[0] - 1))


def step_nested(dev: DeviceTable, calls: DeviceCalls, state: AnyState, token: Array) -> NestedState:
    """Return where a token (n,) leads from each state (n,) of a nested table; the dead state if nowhere, and by EOS."""
    node, stack = state.node, stacks_of(calls, state, False)
    around = around_of(stack, stack.height[:, None])
    inside = (token >= 0) & (token < dev.vocab_size)
    token = jnp.clip(token, 0, dev.vocab_size - 1).astype(jnp.int32)
    edge, own = find_token(dev.edge_token, first_edge(dev, node), first_edge(dev, node + 1), token, dev.sparse_width)

    base = base_of(dev, node)
    lists = jnp.concatenate([exit_list(calls, calls.row_exit, node), exit_list(calls, calls.base_exit, base)])
    low, stop = gathered(calls.exit_start, lists), gathered(calls.exit_start, lists + 1)
    at, leaves = find_token(calls.exit_token, low, stop, jnp.tile(token, 2), calls.exit_width)
    leaving = jnp.where(leaves, -1 - gathered(calls.exit_symbol, at), dev.dead).reshape(2, -1)
    target = gathered(dev.edge_target, jnp.minimum(edge, dev.edge_target.shape[0] - 1))
    target = jnp.where(own, target, leaving[0])
    push = jnp.full((node.shape[0], 1), -1, jnp.int32)
    if dev.has_masks:
        taken = own | leaves.reshape(2, -1)[0]
        masked = in_mask(dev, base, token[:, None])[:, 0]
        inner = jnp.where(masked, target_in_base(dev, node, base, token), leaving[1])
        push = jnp.where(taken[:, None], -1, base_site(calls, node))
        _, fits = with_site(calls, around, push)
        target = jnp.where(taken, target, jnp.where(fits[:, 0], inner, dev.dead))

    code, left = resolve(dev, calls, stack, push, target[:, None])
    kept = jnp.where(target[:, None] >= 0, push, -1)  # an exit of the base has left the site again
    left = jnp.where(kept >= 0, stack.height[:, None], left)
    around, _ = with_site(calls, around_of(stack, left), kept)
    code = jnp.where(inside[:, None] & may_follow(dev, code, around, None), code, dev.dead)
    return _entered(dev, calls, stack, code, left, kept)


def _entered(dev: DeviceTable, calls: DeviceCalls, stack: Stacks, code: Array, left: Array, push: Array) -> NestedState:
    """Return the state after codes (n, 1) from the `left` (n, 1) lowest frames of a stack, and a site or -1 on them."""
    action = jnp.maximum(code - dev.dead, 0)
    first = gathered(calls.action_start, action)
    pushed = gathered(calls.action_start, action + 1) - first
    node = jnp.where(action > 0, gathered(calls.action_state, action), code)[:, 0]
    slot = jnp.arange(calls.slots, dtype=left.dtype)
    over = jnp.maximum(slot - left, -1)  # frames above those that are left
    opened = gathered(calls.action_push, jnp.clip(first + over, 0, calls.action_push.shape[0] - 1))
    sites = jnp.where(over < 0, stack.sites, jnp.where(over < pushed, opened, 0))
    sites = jnp.where((over == 0) & (push >= 0), push, sites)
    height = jnp.where(code < dev.num_rows, left + (push >= 0), jnp.where(action > 0, left + pushed, 0))
    sites = jnp.where(slot < height, sites, 0)
    return nested_state(node, sites, height[:, 0])


def nested_state(node: Any, stack: Any, height: Any) -> NestedState:
    """Return a state of arrays that are none of numpy."""
    return NestedState(node, stack.astype(jnp.int32), height.astype(jnp.int32))
