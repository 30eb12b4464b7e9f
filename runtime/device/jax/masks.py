"""Masks: which tokens a state allows, as bits and on logits."""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp
from jax import Array

from ....kernels.limits import UNREACHABLE
from .. import stepping
from ..device_table import AnyState, DeviceCalls, DeviceTable, check_floating, check_logits, check_remaining, check_rows
from ..dispatch import by_kind
from . import arrays, stacks
from .arrays import gathered, keep, log_softmax, pack
from .edges import base_of, class_target, first_edges, in_mask, target_of
from .states import accepting, check_state_of
from .tpu_text_layout import TpuTextTable


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


def _allowed(dev: DeviceTable, state: AnyState, remaining: Array | None) -> Array:
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


@by_kind(arrays)
def bitmask(dev: DeviceTable, state: AnyState, remaining: Array | None = None) -> Array:
    """Return the tokens allowed in each state, packed: uint32 (B, ceil(V / 32)), token 32 * w + i is bit i of word w.

    remaining: (B,) how many tokens may still be written, EOS aside. Then only tokens are allowed from whose target an
    end can be reached within the others, so that there is always one in reach.
    """
    check_state_of(dev, state)
    if remaining is not None:
        check_remaining_of(dev, state.node.shape[0], remaining)
    if isinstance(dev, TpuTextTable):
        from . import tpu_text_masks  # which imports Pallas: others need not wait for that

        if tpu_text_masks.takes(dev, state, remaining):
            return tpu_text_masks.bitmask(dev, state, remaining)[:, : -(-dev.vocab_size // 32)]
    return pack(_allowed(dev, state, remaining))


@by_kind(arrays)
def mask_logits(dev: DeviceTable, logits: Array, state: AnyState, remaining: Array | None = None) -> Array:
    """Return logits (B, V) with -inf at every token that is not allowed; what is allowed is left untouched.

    remaining: as for `bitmask`.
    """
    check_floating(jnp.issubdtype(logits.dtype, jnp.floating), logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    check_state_of(dev, state)
    if remaining is not None:
        check_remaining_of(dev, logits.shape[0], remaining)
    if isinstance(dev, TpuTextTable):
        from . import tpu_apply, tpu_text_masks

        if tpu_text_masks.takes(dev, state, remaining) and tpu_apply.takes(logits):
            return tpu_apply.keep_words(logits, tpu_text_masks.bitmask(dev, state, remaining))
    return keep(logits, _allowed(dev, state, remaining), dev.vocab_size)


def check_remaining_of(dev: DeviceTable, rows: int, remaining: Array) -> None:
    integers = jnp.issubdtype(remaining.dtype, jnp.integer)
    check_remaining(rows, remaining.shape, integers, remaining.dtype, dev.distance.shape[0] > 0)


def mask_logits_(dev: DeviceTable, logits: Array, state: AnyState, remaining: Array | None = None) -> Array:
    """Mask logits (B, V) as `mask_logits` does, in their memory: the array given is donated, use what comes back."""
    masked: Array = _mask_donated(dev, logits, state, remaining)
    return masked


_mask_donated = jax.jit(mask_logits, donate_argnums=1)


@by_kind(arrays)
def log_mass(dev: DeviceTable, logits: Array, state: AnyState) -> Array:
    """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold."""
    return jax.nn.logsumexp(mask_logits(dev, log_softmax(logits), state), axis=-1)


@by_kind(arrays)
def allowed_tokens(
    dev: DeviceTable, state: AnyState, width: int, remaining: Array | None = None
) -> tuple[Array, Array]:
    """Return the first `width` tokens that each state allows, and ends: tokens (B, W), and which of them there are.

    W is `width`, and one more for each end token; these have the last columns. Tokens ascend; 0 where there are fewer.
    remaining: as for `bitmask`. width: at most what any state has, known of tries and of graphs without masks or calls.
    """
    edge, token, allowed = first_edges(dev, jnp.asarray(state.node), width)
    if remaining is not None:
        check_remaining_of(dev, state.node.shape[0], remaining)
    if remaining is not None or not dev.is_trie:
        last = None
        if remaining is not None:
            remaining = remaining.astype(jnp.int32) if remaining.dtype.itemsize < 4 else remaining
            last = (jnp.clip(remaining, 0, UNREACHABLE).astype(jnp.int32) - 1)[:, None]
        allowed &= stepping.may_follow(stacks, dev, jnp.where(allowed, target_of(dev, edge), dev.dead), None, last)
    if dev.eos is not None:
        token = jnp.pad(token, ((0, 0), (0, 1)), constant_values=dev.eos)
        allowed = jnp.concatenate([allowed, accepting(dev, state)[:, None]], axis=1)
    return jnp.where(allowed, token, 0), allowed
