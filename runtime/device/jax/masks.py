"""Masks: which tokens a state allows, as bits and on logits."""

from __future__ import annotations

from typing import cast

import jax.numpy as jnp
from jax import Array

from ....kernels.limits import UNREACHABLE
from .. import stepping
from ..checks import check_remaining
from ..device_table import AnyState, DeviceCalls, DeviceTable
from . import stacks
from .arrays import gathered
from .edges import base_of, class_target, first_edges, in_mask, target_of
from .states import accepting


def unfold(dev: DeviceTable, state: AnyState, masked: bool, width: int, remaining: Array | None = None) -> Array:
    """Return bool (n, V) of the tokens allowed, EOS aside.

    masked: some of the states have masks. width: most own edges of a state that its mask does not say; 0 if all have
    masks.
    """
    node, calls = state.node, dev.calls
    rows = jnp.arange(node.shape[0])[:, None]
    last = None if remaining is None else (remaining - 1)[:, None]
    stack = None if calls is None else stacks.stacks_of(calls, state, last is not None)
    around = None if stack is None else stepping.around_of(stacks, stack, stack.height[:, None])
    base = base_of(dev, node)
    if masked:
        mask, base = _base_mask(dev, node, base, around, last)
    else:
        mask = jnp.zeros((node.shape[0], 8 * dev.masks.shape[1]), bool)
    if calls is not None and stack is not None and calls.exit_width:
        mask = _write_exits(dev, calls, stack, last, node, base, mask)
    if width:
        edge, token, inside = first_edges(dev, node, width)
        value: Array | bool = True
        if last is not None or not dev.is_trie:
            value = stepping.may_follow(stacks, dev, jnp.where(inside, target_of(dev, edge), dev.dead), around, last)
        mask = mask.at[rows, jnp.where(inside, token, mask.shape[1])].set(value, mode="drop")
    return mask[:, : dev.vocab_size]


def _unpacked(dev: DeviceTable, base: Array) -> Array:
    """Return the masks of bases (n,): bool (n, 8 K)."""
    bits = jnp.unpackbits(gathered(dev.masks, gathered(dev.base_mask, base)), axis=1, bitorder="little")
    return bits.astype(bool)


def _base_mask(
    dev: DeviceTable, node: Array, base: Array, around: stepping.Around | None, last: Array | None
) -> tuple[Array, Array]:
    """Return bool (n, 8 K) of what bases allow, and the bases (n,), the last where there is no room for one."""
    calls, none, shown = dev.calls, dev.base_mask.shape[0] - 1, base
    if calls is not None and around is not None:
        around, fits = stepping.with_site(stacks, calls, around, stepping.base_site(stacks, calls, node))
        base = jnp.where(fits[:, 0], base, none)
        shown = jnp.where(around.frames[:, 0] <= calls.depth, base, none)
    if dev.is_trie or (last is None and (calls is None or not calls.state_room.shape[0])):
        return jnp.unpackbits(gathered(dev.masks, gathered(dev.base_mask, shown)), axis=1, bitorder="little").astype(
            bool
        ), base
    # what classes lead to may be too far from an end, or need too much room
    zero = stepping.may_follow(stacks, dev, class_target(dev, node, base, jnp.zeros_like(base))[:, None], around, last)
    shown = jnp.where(zero[:, 0], shown, none)
    mask = _unpacked(dev, shown)
    classes = gathered(dev.base_classes, base)
    at = gathered(dev.class_start, classes)[:, None] + jnp.arange(dev.class_width, dtype=jnp.int32)
    own = at < gathered(dev.class_start, classes + 1)[:, None]
    token = jnp.where(own, gathered(dev.class_token, at).astype(jnp.int32), 0)
    target = class_target(dev, node[:, None], base[:, None], jnp.where(own, gathered(dev.class_id, at), 0))
    allowed = in_mask(dev, base, token) & stepping.may_follow(stacks, dev, target, around, last)
    rows = jnp.arange(node.shape[0])[:, None]
    return mask.at[rows, jnp.where(own, token, mask.shape[1])].set(allowed, mode="drop"), base


def allowed(dev: DeviceTable, state: AnyState, remaining: Array | None) -> Array:
    """Return bool (n, V) of the tokens allowed, EOS among them."""
    width = dev.sparse_width
    if remaining is not None:
        if remaining.dtype.itemsize < 4:
            remaining = remaining.astype(jnp.int32)
        remaining = jnp.clip(remaining, 0, UNREACHABLE).astype(jnp.int32)  # so that 1 less does not wrap in any type
        if dev.is_trie:  # whose masks do not say where their tokens lead
            width = max(width, *(level.width for level in dev.levels))
    mask = unfold(dev, state, dev.has_masks, width, remaining)
    if dev.eos is not None:
        mask = mask.at[:, dev.eos].set(mask[:, dev.eos] | accepting(dev, state))
    return mask


def _write_exits(
    dev: DeviceTable,
    calls: DeviceCalls,
    stack: stepping.Stacks,
    last: Array | None,
    node: Array,
    base: Array,
    mask: Array,
) -> Array:
    """Return mask (n, 8 K) with what exits say: those of bases, then those of rows; all are resolved at once."""
    n, rows = node.shape[0], jnp.arange(node.shape[0])[:, None]
    lists, push = [], []
    if calls.base_exit.shape[0]:
        lists.append(stepping.exit_list(stacks, calls, calls.base_exit, base))
        push.append(stepping.base_site(stacks, calls, node))
    if calls.row_exit.shape[0]:
        lists.append(stepping.exit_list(stacks, calls, calls.row_exit, node))
        push.append(jnp.full((n, 1), -1, jnp.int32))
    if not lists:
        return mask

    def for_each_list(x: Array) -> Array:
        return jnp.concatenate([x] * len(lists))

    which = jnp.concatenate(lists)
    at = gathered(calls.exit_start, which)[:, None] + jnp.arange(calls.exit_width, dtype=jnp.int32)
    inside = at < gathered(calls.exit_start, which + 1)[:, None]
    token = jnp.where(inside, gathered(calls.exit_token, at).astype(jnp.int32), mask.shape[1])
    listed = stepping.Stacks(*(cast(Array, None if x is None else for_each_list(x)) for x in stack))
    code, left = stepping.resolve(
        stacks, dev, calls, listed, jnp.concatenate(push), -1 - gathered(calls.exit_symbol, at)
    )
    fits = stepping.may_follow(
        stacks, dev, code, stepping.around_of(stacks, listed, left), None if last is None else for_each_list(last)
    )
    if calls.base_exit.shape[0]:  # what is in the base's mask is none of its exits
        masked = in_mask(dev, base, jnp.minimum(token[:n], dev.vocab_size - 1))
        mask = mask.at[rows, jnp.where(masked, mask.shape[1], token[:n])].set(fits[:n], mode="drop")
    if calls.row_exit.shape[0]:
        mask = mask.at[rows, token[-n:]].set(fits[-n:], mode="drop")
    return mask


def check_remaining_of(dev: DeviceTable, state: AnyState, remaining: Array | None) -> None:
    """Raise unless `remaining` is None, or there is a whole number for each state, and distances are known."""
    if remaining is not None:
        integers, distances = jnp.issubdtype(remaining.dtype, jnp.integer), dev.distance.shape[0] > 0
        check_remaining(state.node.shape[0], remaining.shape, integers, remaining.dtype, distances)
