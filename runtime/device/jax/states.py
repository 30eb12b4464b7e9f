"""States of a batch: where sequences start, where a token leads, and where they may end."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from ....kernels.limits import UNREACHABLE
from ....table.states import NestedState
from .. import stepping
from ..device_table import (
    AnyState,
    DeviceTable,
    State,
    check_put,
    check_sids,
    check_starts,
    check_state,
    check_tokens,
    check_unfiltered,
)
from ..dispatch import by_kind
from . import arrays, stacks
from .arrays import gathered, repeated_rows, take
from .edges import find_edge, step, target_of, token_of


@by_kind(arrays)
def start(dev: DeviceTable, batch: int) -> AnyState:
    """Return the state of `batch` sequences with nothing written yet."""
    check_put(dev)
    check_starts(dev.starts.shape[0], batch)
    node = repeated_rows(dev.starts.astype(dev.row_start.dtype), batch // dev.starts.shape[0])
    if dev.calls is None:
        return State(node)
    return stacks.nested_state(node, jnp.zeros((batch, dev.calls.slots)), jnp.zeros(batch))


def follow_token(dev: DeviceTable, state: AnyState, token: Array) -> AnyState:
    """Return where a token (n,) leads from each state (n,) of a graph; the dead state if nowhere, and by EOS."""
    if dev.calls is None:
        return State(step(dev, jnp.asarray(state.node), token))
    assert isinstance(state, NestedState)
    return stepping.step_nested(stacks, dev, dev.calls, state, token)


def only_where(dev: DeviceTable, holds: Array, state: AnyState) -> AnyState:
    """Return a state (n,) with the dead state where `holds` (n,) is not so."""
    node = jnp.where(holds, state.node, dev.dead)
    if not isinstance(state, NestedState):
        return State(node)
    return stacks.nested_state(node, jnp.where(holds[:, None], state.stack, 0), jnp.where(holds, state.height, 0))


def map_state(function: Any, state: AnyState) -> Any:
    """Return a state whose arrays have gone through a function."""
    return type(state)(*(function(array) for array in state))


def check_state_of(dev: DeviceTable, state: AnyState) -> None:
    check_unfiltered(state)
    if dev.calls is not None:
        check_state(dev.calls.slots, state)


@by_kind(arrays)
def accepting(dev: DeviceTable, state: AnyState) -> Array:
    """Return whether each sequence may end where it stands: bool (B,)."""
    check_state_of(dev, state)
    node = state.node
    rows = gathered(dev.accepting, jnp.minimum(node, dev.num_rows - 1))
    entry = token_of(dev, jnp.maximum(node - dev.num_rows, 0) + dev.num_edges)
    ends = jnp.where(node < dev.num_rows, rows, entry == dev.vocab_size)
    return ends & (state.height == 0) if isinstance(state, NestedState) else ends


@by_kind(arrays)
def distance(dev: DeviceTable, state: AnyState) -> Array:
    """Return the tokens (B,) in which each sequence can be complete, at most UNREACHABLE; one of them is allowed.

    The table must have been put with budgets.
    """
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


@by_kind(arrays)
def advance(dev: DeviceTable, state: AnyState, tokens: Array) -> AnyState:
    """Return the state after one more token (B,) each; the dead state where it was not allowed."""
    check_tokens(state.node.shape[0], tokens.shape, jnp.issubdtype(tokens.dtype, jnp.integer), tokens.dtype)
    check_state_of(dev, state)
    if tokens.dtype.itemsize < 4:  # before any comparison: a narrow type would wrap what it is compared with
        tokens = tokens.astype(jnp.int32)
    if dev.is_trie:
        edge, found = find_edge(dev, jnp.asarray(state.node), tokens)
        reached: AnyState = State(jnp.where(found, target_of(dev, edge), dev.dead))
    else:
        reached = follow_token(dev, state, tokens)
    node = reached.node
    if dev.eos is not None:  # which leads to the dead state so far, with nothing on its stack
        ended = jnp.where(state.node < dev.num_rows, dev.after_eos, state.node)
        node = jnp.where((tokens == dev.eos) & accepting(dev, state), ended, node)
    return reached._replace(node=node.astype(state.node.dtype))


@by_kind(arrays)
def contains(dev: DeviceTable, sids: Array) -> Array:
    """Return whether each row of sids (N, L) is in the set: bool (N,)."""
    check_sids(sids.shape)
    state = start(dev, sids.shape[0])
    for t in range(sids.shape[1]):
        state = advance(dev, state, sids[:, t])
    return accepting(dev, state)
