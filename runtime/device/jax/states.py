"""States of a batch: where sequences start, where a token leads, and where they may end."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from ....table.states import NestedState
from .. import stepping
from ..checks import check_state, check_unfiltered
from ..device_table import AnyState, DeviceTable, State
from . import stacks
from .arrays import gathered
from .edges import step, token_of


def accepting(dev: DeviceTable, state: AnyState) -> Array:
    """Return whether sequences (n,) may end where they stand."""
    node = state.node
    rows = gathered(dev.accepting, jnp.minimum(node, dev.num_rows - 1))
    entry = token_of(dev, jnp.maximum(node - dev.num_rows, 0) + dev.num_edges)
    ends = jnp.where(node < dev.num_rows, rows, entry == dev.vocab_size)
    return ends & (state.height == 0) if isinstance(state, NestedState) else ends


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
