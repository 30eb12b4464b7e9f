"""Tables and arenas as a kind of constraint in JAX."""

from __future__ import annotations

from typing import cast

import jax.numpy as jnp
from jax import Array

from ....kernels.limits import UNREACHABLE
from .. import stepping
from ..backend import Cache, Offer
from ..checks import check_distances, check_starts
from ..cursor import Chosen, Cursor, Unconstrained
from ..device_table import AnyState, DeviceTable, Selection, State
from . import stacks
from .arrays import gathered, pack, repeated_rows, take, take_inside
from .edges import find_edge, first_edges, ranked_edge, target_of, token_of
from .masks import allowed, check_remaining_of, unfold
from .states import accepting, check_state_of, follow_token, only_where
from .tpu_layout import TpuTable
from .tpu_text_layout import TpuTextTable


class TableCursor(Cursor):
    """A table, or the tables of an arena."""

    def first_tokens(self, dev: DeviceTable, cache: Cache, count: int, token: int) -> Array:
        return jnp.full(count, token, jnp.int32)

    def check_state(self, dev: DeviceTable, state: AnyState) -> None:
        check_state_of(dev, state)

    def start(self, dev: DeviceTable, batch: int) -> AnyState:
        check_starts(dev.starts.shape[0], batch)
        node = repeated_rows(dev.starts.astype(dev.row_start.dtype), batch // dev.starts.shape[0])
        if dev.calls is None:
            return State(node)
        return stacks.nested_state(node, jnp.zeros((batch, dev.calls.slots)), jnp.zeros(batch))

    def accepting(self, dev: DeviceTable, state: AnyState) -> Array:
        check_state_of(dev, state)
        return accepting(dev, state)

    def distance(self, dev: DeviceTable, state: AnyState) -> Array:
        check_distances(dev)
        near = gathered(dev.distance, state.node) if dev.distance.ndim == 1 else gathered(dev.distance.T, state.node)
        if dev.calls is None:
            return near
        check_state_of(dev, state)
        stack = stacks.stacks_of(dev.calls, state, True)
        far = stepping.around_of(stacks, stack, stack.height[:, None]).far
        assert far is not None
        by_end = stacks.plus(near, far[:, 0])
        if near.ndim == 1:
            return by_end
        if dev.calls.distance_room.shape[0]:
            frames = take(stack.frames, stack.height[:, None])
            room = gathered(dev.calls.distance_room.T, state.node)
            by_end = jnp.where(frames + room <= dev.calls.depth, by_end, UNREACHABLE)
        return by_end.min(axis=1)

    # ----------------------------------------------------------------------------------------------------- masks

    def mask_words(self, dev: DeviceTable, state: AnyState, remaining: Array | None) -> Array:
        return pack(self.allowed(dev, state, remaining))

    def allowed(self, dev: DeviceTable, state: AnyState, remaining: Array | None) -> Array:
        check_remaining_of(dev, state, remaining)
        return allowed(dev, state, remaining)

    # ----------------------------------------------------------------------------------------------------- beams

    def offers(self, dev: DeviceTable, x: Array, state: AnyState, level: int, normalized: bool) -> Offer:
        node, size, shape = state.node, dev.vocab_size, dev.level(level)
        # all states of level 0 are the root of a trie, whose edges need no look-up and no ranking in its mask
        if shape.dense and (level > 0 or not dev.is_trie):
            width = dev.sparse_width if not dev.is_trie else 1 if shape.tails else 0
            return Offer(jnp.where(unfold(dev, state, dev.has_masks, width), x[:, :size], -jnp.inf), None)
        if level == 0:
            edge = jnp.broadcast_to(jnp.arange(shape.width, dtype=node.dtype), (x.shape[0], shape.width))
            token, kept = token_of(dev, edge), (node == 0)[:, None]
        elif shape.rows:
            edge, token, kept = first_edges(dev, node, shape.width)
        else:
            edge = (node + (dev.num_edges - dev.num_rows))[:, None]
            token = token_of(dev, edge)
            kept = (token < size) & (edge >= dev.num_edges)  # not of a state that is not that deep
        return Offer(jnp.where(kept, take_inside(x, jnp.minimum(token, size - 1)), -jnp.inf), token, edge)

    def reached(self, dev: DeviceTable, chosen: Chosen) -> AnyState:
        if not dev.is_trie:
            state = chosen.states()
            found = follow_token(dev, state, chosen.tokens)
            return only_where(dev, chosen.alive, found._replace(node=found.node.astype(state.node.dtype)))
        edges = chosen.edges() if chosen.edges else ranked_edge(dev, chosen.states().node, chosen.tokens)[0]
        return State(jnp.where(chosen.alive, target_of(dev, edges), dev.dead).astype(dev.row_start.dtype))

    # ---------------------------------------------------------------------------------------------------- tokens

    def follow(
        self, dev: DeviceTable, state: AnyState, tokens: Array, level: int | None, alive: Array | None
    ) -> AnyState:
        width = tokens.shape[1]
        if width > 1:
            state = type(state)(*(repeated_rows(x, width) for x in state))
        found = self.after(dev, state, tokens.reshape(-1))
        if alive is not None:
            found = only_where(dev, alive.reshape(-1), found)
        return type(found)(*(x.reshape(*tokens.shape, *x.shape[1:]) for x in found))

    def after(self, dev: DeviceTable, state: AnyState, tokens: Array) -> AnyState:
        if dev.is_trie:
            edge, found = find_edge(dev, jnp.asarray(state.node), tokens)
            reached: AnyState = State(jnp.where(found, target_of(dev, edge), dev.dead))
        else:
            reached = follow_token(dev, state, tokens)
        node = reached.node
        if dev.eos is not None:  # which leads to the dead state so far, with nothing on its stack
            ended = jnp.where(state.node < dev.num_rows, dev.after_eos, state.node)
            node = jnp.where((tokens == dev.eos) & self.accepting(dev, state), ended, node)
        return reached._replace(node=node.astype(state.node.dtype))

    def first_offers(
        self, dev: DeviceTable, state: AnyState, width: int, remaining: Array | None
    ) -> tuple[Array, Array]:
        check_remaining_of(dev, state, remaining)
        edge, token, kept = first_edges(dev, jnp.asarray(state.node), width)
        if remaining is not None or not dev.is_trie:
            last = None
            if remaining is not None:
                remaining = remaining.astype(jnp.int32) if remaining.dtype.itemsize < 4 else remaining
                last = (jnp.clip(remaining, 0, UNREACHABLE).astype(jnp.int32) - 1)[:, None]
            target = jnp.where(kept, target_of(dev, edge), dev.dead)
            kept &= stepping.may_follow(stacks, dev, target, None, last)
        return token, kept


class TpuTableCursor(TableCursor):
    """A trie laid out for TPUs, whose `select` runs Pallas kernels."""

    def select_at_once(
        self, dev: TpuTable, logits: Array, state: AnyState, scores: Array, beams: int, level: int, renormalize: bool
    ) -> Selection | None:
        from . import tpu_selection  # which imports Pallas: others need not wait for that

        if not tpu_selection.takes(dev, logits, level):
            return None
        return tpu_selection.select(dev, logits, state, scores, beams, level, renormalize)


class TpuTextTableCursor(TableCursor):
    """A graph or a nested table laid out for TPUs, whose masks Pallas kernels compose."""

    def mask_words(self, dev: DeviceTable, state: AnyState, remaining: Array | None) -> Array:
        from . import tpu_text_masks  # which imports Pallas: others need not wait for that

        check_remaining_of(dev, state, remaining)
        assert isinstance(dev, TpuTextTable)
        if not tpu_text_masks.takes(dev, state, remaining):
            return super().mask_words(dev, state, remaining)
        return tpu_text_masks.bitmask(dev, state, remaining)[:, : -(-dev.vocab_size // 32)]

    def masked(self, dev: DeviceTable, x: Array, state: AnyState, remaining: Array | None = None) -> Array:
        from . import tpu_apply, tpu_text_masks

        check_remaining_of(dev, state, remaining)
        assert isinstance(dev, TpuTextTable)
        if not (tpu_text_masks.takes(dev, state, remaining) and tpu_apply.takes(x)):
            return cast(Array, super().masked(dev, x, state, remaining))
        return tpu_apply.keep_words(x, tpu_text_masks.bitmask(dev, state, remaining))


class NoConstraint(Unconstrained):
    """No constraint."""

    def first_tokens(self, dev: None, cache: Cache, count: int, token: int) -> Array:
        return jnp.full(count, token, jnp.int32)
