"""States of a batch: where sequences start, where a token leads, and where they may end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....table.states import NestedState, configuration_out_of_range
from ...host import follow as host_follow
from ...host.table_pointers import HostTable
from .. import stepping
from ..checks import check_state, check_unfiltered
from ..device_table import AnyState, State
from . import stacks
from .edges import step, token_of
from .memory import addresses, in_memory, torch_team
from .table import TorchTable


def accepting(dev: TorchTable, state: AnyState) -> Tensor:
    """Return whether sequences (n,) may end where they stand."""
    node = state.node
    rows = dev.accepting[node.clamp(max=dev.num_rows - 1)]
    entry = token_of(dev, (node - dev.num_rows).clamp(min=0) + dev.num_edges)
    ends = torch.where(node < dev.num_rows, rows, entry == dev.vocab_size)
    return ends & (state.height == 0) if isinstance(state, NestedState) else ends


def follow_token(dev: TorchTable, state: AnyState, token: Tensor) -> AnyState:
    """Return where a token (n,) leads from each state (n,) of a graph; the dead state if nowhere, and by EOS."""
    if dev.calls is None:
        return State(step(dev, state.node, token))
    assert isinstance(state, NestedState)
    return stepping.step_nested(stacks, dev, dev.calls, state, token)


def only_where(dev: TorchTable, holds: Tensor, state: AnyState) -> AnyState:
    """Return a state (n,) with the dead state where `holds` (n,) is not so."""
    node = torch.where(holds, state.node, dev.dead)
    if not isinstance(state, NestedState):
        return State(node)
    return NestedState(node, torch.where(holds[:, None], state.stack, 0), torch.where(holds, state.height, 0))


def map_state(function: Any, state: AnyState) -> Any:
    """Return a state whose arrays have gone through a function."""
    return type(state)(*(function(array) for array in state))


def check_state_of(dev: TorchTable, state: AnyState) -> None:
    check_unfiltered(state)
    if dev.calls is not None:
        check_state(dev.calls.slots, state)


def follow_on_host(table: HostTable, state: NestedState, tokens: Tensor) -> NestedState:
    """Follow one token of each row (n,) int64."""
    given, tokens = in_memory(state), tokens.long().contiguous()
    out = NestedState(*map(torch.empty_like, given))
    team = torch_team()
    stray = host_follow.follow(
        table, tokens.data_ptr(), addresses(given), addresses(out), tokens.shape[0], torch.get_num_threads(), team
    )
    if stray >= 0:
        raise configuration_out_of_range(table, map_state(Tensor.numpy, state), stray)
    return out
