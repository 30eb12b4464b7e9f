"""States of a batch: where sequences start, where a token leads, and where they may end."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ....kernels.limits import UNREACHABLE
from ....table.states import NestedState, configuration_out_of_range
from ....table.transition_table import TransitionTable
from ...host import follow as host_follow
from ...host.table_pointers import HostTable
from .. import stepping
from ..device_table import (
    AnyState,
    State,
    check_put,
    check_sids,
    check_starts,
    check_state,
    check_tokens,
    check_unfiltered,
)
from ..dispatch import by_kind
from . import arrays, compat, stacks
from .arrays import is_integral
from .edges import find_edge, is_narrow, step, target_of, token_of
from .memory import addresses, in_memory, takes_triton, torch_team
from .table import TorchTable


@by_kind(arrays)
def start(dev: TorchTable, batch: int) -> AnyState:
    """Return the state of `batch` sequences with nothing written yet."""
    check_put(dev)
    check_starts(dev.starts.shape[0], batch)
    if dev.arena:
        node = dev.starts.long()[:, None].expand(-1, batch // dev.starts.shape[0]).reshape(-1)
    else:  # of their own: compiled by inductor, two runs over one graph shared what `starts` gives, and wrote to it
        node = torch.zeros(batch, dtype=torch.int64, device=dev.starts.device)
    if dev.calls is None:
        return State(node)
    stack = torch.zeros(batch, dev.calls.slots, dtype=torch.int32, device=node.device)
    return NestedState(node, stack, torch.zeros_like(node, dtype=torch.int32))


def _eos_allowed(dev: TorchTable, node: Tensor) -> Tensor:
    rows = dev.accepting[node.clamp(max=dev.num_rows - 1)]
    entry = token_of(dev, (node - dev.num_rows).clamp(min=0) + dev.num_edges)
    return torch.where(node < dev.num_rows, rows, entry == dev.vocab_size)


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


@by_kind(arrays)
def accepting(dev: TorchTable, state: AnyState) -> Tensor:
    """Return whether each sequence may end where it stands: bool (B,)."""
    if dev.calls is None:
        return _eos_allowed(dev, state.node)
    check_state(dev.calls.slots, state)
    at_bottom: Tensor = cast(NestedState, state).height == 0
    return _eos_allowed(dev, state.node) & at_bottom


@by_kind(arrays)
def distance(dev: TorchTable, state: AnyState) -> Tensor:
    """Return the tokens (B,) in which each sequence can be complete, at least one of which is always allowed.

    The table must have been put with budgets.
    """
    near: Tensor = dev.distance.take(state.node).long() if dev.distance.ndim == 1 else dev.distance[:, state.node].T
    if dev.calls is None:
        return near
    check_state(dev.calls.slots, state)
    stack = stacks.stacks_of(dev.calls, state, True)
    far = stepping.around_of(stacks, stack, stack.height[:, None]).far
    assert far is not None
    by_end: Tensor = near + far[:, 0]
    if near.ndim == 1:
        return by_end
    if dev.calls.distance_room.shape[0]:
        frames = stack.frames.gather(1, stack.height[:, None])
        room = dev.calls.distance_room.index_select(1, state.node).T
        by_end = torch.where(frames + room <= dev.calls.depth, by_end, UNREACHABLE)
    return by_end.amin(dim=1)


def check_state_of(dev: TorchTable, state: AnyState) -> None:
    check_unfiltered(state)
    if dev.calls is not None:
        check_state(dev.calls.slots, state)


def _follow_on_host(table: HostTable, state: NestedState, tokens: Tensor) -> NestedState:
    """Follow one token of each row (n,) int64."""
    given, tokens = in_memory(state), tokens.contiguous()
    out = NestedState(*map(torch.empty_like, given))
    team = torch_team()
    stray = host_follow.follow(
        table, tokens.data_ptr(), addresses(given), addresses(out), tokens.shape[0], torch.get_num_threads(), team
    )
    if stray >= 0:
        raise configuration_out_of_range(table, map_state(Tensor.numpy, state), stray)
    return out


@by_kind(arrays)
def advance(dev: TorchTable, state: AnyState, tokens: Tensor) -> AnyState:
    """Return the state after one more token (B,) each; the dead state where it was not allowed."""
    check_tokens(state.node.shape[0], tokens.shape, is_integral(tokens), tokens.dtype)
    check_state_of(dev, state)
    if dev.host is None and is_narrow(dev) and takes_triton(dev.row_start, tokens, *state):
        from .gpu import text_step  # Triton is slow to import

        return text_step.advance(dev, state, tokens)
    tokens = tokens.long()  # before any comparison: a narrow type would wrap what it is compared with
    if dev.host is not None and compat.is_plain(tokens, *state):
        if not isinstance(state, NestedState):
            table = cast(TransitionTable, dev.host)  # an arena is nested
            return State(torch.from_numpy(table.walk(tokens.numpy()[:, None], state.node.numpy())))
        return _follow_on_host(dev.host, state, tokens)
    if dev.is_trie:
        edge, found = find_edge(dev, state.node, tokens)
        reached: AnyState = State(torch.where(found, target_of(dev, edge), dev.dead))
    else:
        reached = follow_token(dev, state, tokens)
    if dev.eos is None:
        return reached
    ended = torch.where(state.node < dev.num_rows, dev.after_eos, state.node)
    node = torch.where((tokens == dev.eos) & accepting(dev, state), ended, reached.node)
    return reached._replace(node=node)  # EOS leads to the dead state so far, with nothing on its stack


@by_kind(arrays)
def contains(dev: TorchTable, sids: Tensor) -> Tensor:
    """Return whether each row of sids (N, L) is in the set: bool (N,)."""
    check_sids(sids.shape)
    state = start(dev, sids.shape[0])
    for t in range(sids.shape[1]):
        state = advance(dev, state, sids[:, t])
    return accepting(dev, state)
