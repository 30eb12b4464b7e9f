"""Masks: which tokens a state allows, as bits and on logits."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....kernels.limits import UNREACHABLE
from ....table.states import NestedState, configuration_out_of_range
from ...host import mask_jobs, nested_masks
from ...host import masks as host_masks
from ...host import thread_pool as host_team
from .. import stepping
from ..checks import check_remaining
from ..device_table import AnyState, DeviceCalls
from . import compat, stacks
from .arrays import is_integral
from .edges import base_of, class_target, first_edge, in_mask, is_narrow, target_of, token_of, unsigned
from .memory import (
    addresses,
    in_memory,
    logits_at,
    takes_triton,
    torch_team,
    write_lowest,
)
from .states import accepting, map_state
from .table import TorchTable


def unfold(dev: TorchTable, state: AnyState, table: Tensor, width: int, remaining: Tensor | None = None) -> Tensor:
    """Return (n, 8 K) in which column v says whether a state allows token v, as `table` (256, 8) says it of bytes.

    width: most own edges of a state that its mask does not say, which are written one by one; 0 if all have masks.
    Columns from V on are never allowed. EOS is left out.
    """
    node, size, calls = state.node, dev.masks.shape[1], dev.calls
    yes, no = table[255, 0], table[0, 0]
    last = None if remaining is None else (remaining.clamp(0, UNREACHABLE) - 1)[:, None]  # below what cannot end
    stack = None if calls is None else stacks.stacks_of(calls, state, last is not None)
    around = None if stack is None else stepping.around_of(stacks, stack, stack.height[:, None])
    base = base_of(dev, node)
    if dev.has_masks:
        out, base = _unfold_base(dev, node, base, around, last, table)
    else:
        out = table[0].repeat(node.shape[0], size)
    if calls is not None and stack is not None and calls.exit_width:
        _write_exits(dev, calls, stack, last, node, base, out, yes, no)
    if width:
        bounds = first_edge(dev, torch.cat([node, node + 1])).view(2, -1)
        edge, inside = _entries(bounds[0], bounds[1], width)
        token = token_of(dev, edge)
        allowed = inside & (token < dev.vocab_size)
        if last is not None or not dev.is_trie:
            allowed = allowed & stepping.may_follow(
                stacks, dev, torch.where(allowed, target_of(dev, edge), dev.dead), around, last
            )
        value = torch.where(allowed, yes, no)
        token = token.clamp(max=dev.vocab_size - 1)
        if dev.is_trie:
            out.scatter_(1, token, value)
        else:
            _write(out, token, inside, value)
    return out


def _unfold_base(
    dev: TorchTable, node: Tensor, base: Tensor, around: stepping.Around | None, last: Tensor | None, table: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what bases allow, as `unfold` does, and the bases (n,), the last where there is no room for one."""
    size, calls, none, shown = dev.masks.shape[1], dev.calls, dev.base_mask.shape[0] - 1, base
    if calls is not None and around is not None:
        around, fits = stepping.with_site(stacks, calls, around, stepping.base_site(stacks, calls, node))
        base = torch.where(fits.view(-1), base, none)
        shown = torch.where(around.frames.view(-1) <= calls.depth, base, none)
    if dev.is_trie or (last is None and (calls is None or not calls.state_room.shape[0])):
        masks = dev.masks.index_select(0, dev.base_mask.take(shown)).view(-1).int()
        return table.index_select(0, masks).view(-1, 8 * size), base
    # what classes lead to may be too far from an end, or need too much room
    zero = stepping.may_follow(
        stacks, dev, class_target(dev, node, base, torch.zeros_like(node))[:, None], around, last
    )
    few = dev.class_width <= dev.vocab_size // 4  # then written one by one; with more, whole rows are faster
    shown = torch.where(zero.view(-1), shown, none) if few else shown
    masks = dev.masks.index_select(0, dev.base_mask.take(shown)).view(-1).int()
    out = table.index_select(0, masks).view(-1, 8 * size)
    classes = dev.base_classes.take(base).long()
    first, stop = dev.class_start.take(classes).long(), dev.class_start.take(classes + 1).long()
    at, inside = _entries(first, stop, dev.class_width)
    token = unsigned(dev.class_token.take(at), dev.vocab_size).clamp(max=dev.vocab_size - 1)
    target = class_target(dev, node[:, None], base[:, None], torch.where(inside, dev.class_id.take(at), 0))
    fits = stepping.may_follow(stacks, dev, target, around, last)
    if few:
        _write(out, token, inside, torch.where(in_mask(dev, base, token) & fits, table[255, 0], table[0, 0]))
        return out, base
    allowed = zero.repeat(1, 8 * size)
    _write(allowed, token, inside, fits)
    return torch.where(allowed, out, table[0, 0]), base


def _entries(first: Tensor, last: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return places (n, width) of lists first .. last (n,), and whether they are any: short lists repeat their last."""
    at = torch.minimum(first[:, None] + torch.arange(width, device=first.device), last[:, None] - 1)
    return at.clamp(min=0), at >= first[:, None]


def _write(out: Tensor, token: Tensor, inside: Tensor, value: Tensor) -> None:
    """Write value (n, w) at token (n, w) of out (n, 8 K); in rows where nothing is `inside`, what is there already."""
    token = torch.where(inside, token, 0)
    out.scatter_(1, token, torch.where(inside, value, out[:, :1]))


def _write_exits(
    dev: TorchTable,
    calls: DeviceCalls,
    stack: stepping.Stacks,
    last: Tensor | None,
    node: Tensor,
    base: Tensor,
    out: Tensor,
    yes: Tensor,
    no: Tensor,
) -> None:
    """Write to out (n, 8 K) whether exits are allowed: those of bases, then those of rows; all are resolved at once."""
    n = node.shape[0]
    lists, push = [], []
    if calls.base_exit.shape[0]:
        lists.append(stepping.exit_list(stacks, calls, calls.base_exit, base))
        push.append(stepping.base_site(stacks, calls, node))
    if calls.row_exit.shape[0]:
        lists.append(stepping.exit_list(stacks, calls, calls.row_exit, node))
        push.append(torch.full_like(node, -1)[:, None])
    if not lists:
        return

    def for_each_list(x: Tensor) -> Tensor:
        return torch.cat([x] * len(lists))

    which = torch.cat(lists)
    first, stop = calls.exit_start.take(which).long(), calls.exit_start.take(which + 1).long()
    at, inside = _entries(first, stop, calls.exit_width)
    token = torch.where(inside, unsigned(calls.exit_token.take(at), dev.vocab_size), 0)
    listed = stepping.Stacks(*(cast(Tensor, None if x is None else for_each_list(x)) for x in stack))
    code, left = stepping.resolve(stacks, dev, calls, listed, torch.cat(push), -1 - calls.exit_symbol.take(at).long())
    fits = stepping.may_follow(
        stacks, dev, code, stepping.around_of(stacks, listed, left), None if last is None else for_each_list(last)
    )
    value = torch.where(fits, yes, no)
    if calls.base_exit.shape[0]:  # what is in the base's mask is none of its exits
        of_base = torch.where(in_mask(dev, base, token[:n]), out.gather(1, token[:n]), value[:n])
        _write(out, token[:n], inside[:n], of_base)
    if calls.row_exit.shape[0]:
        _write(out, token[-n:], inside[-n:], value[-n:])


def check_remaining_of(dev: TorchTable, state: AnyState, remaining: Tensor | None) -> None:
    """Raise unless `remaining` is None, or there is a whole number for each state, and distances are known."""
    if remaining is not None:
        distances = dev.distance.shape[0] > 0
        check_remaining(state.node.shape[0], remaining.shape, is_integral(remaining), remaining.dtype, distances)


def allowed(dev: TorchTable, state: AnyState, remaining: Tensor | None) -> Tensor:
    """Return int32 (n, 8 K): -1 for tokens that are allowed, EOS among them, else 0."""
    width = dev.sparse_width
    if remaining is not None:
        remaining = remaining.long()  # before 1 is taken from it, which a narrow type would wrap
        if dev.is_trie:  # whose masks do not say where their tokens lead
            width = max(width, *(level.width for level in dev.levels))
    mask = unfold(dev, state, dev.byte_mask, width, remaining)
    if dev.eos is not None:
        mask[:, dev.eos] |= -accepting(dev, state).int()
    return mask


def on_host(dev: TorchTable, state: AnyState, remaining: Tensor | None) -> bool:
    """Return whether the masks of these states can be composed on the host without waiting for a device."""
    if dev.host is None:
        return False
    given = state if remaining is None else (*state, remaining)
    return compat.is_plain(*given) and all(x.is_cpu for x in given)


def run_in_kernels(dev: TorchTable, state: AnyState, remaining: Tensor | None) -> bool:
    """Return whether Triton kernels compose the masks of these states."""
    return is_narrow(dev) and takes_triton(dev.row_start, *state, *(() if remaining is None else (remaining,)))


def packed(dev: TorchTable, state: AnyState, remaining: Tensor | None, out: NDArray[np.uint32]) -> None:
    """Write the masks of states (n,) into out (n, ceil(V / 32))."""
    assert dev.host is not None
    room = None if remaining is None else remaining.long().clamp(min=0).numpy()
    if isinstance(state, NestedState):
        nested_masks.compose_nested_into(dev.host, map_state(Tensor.numpy, state), out, room)
    else:
        host_masks.compose_into(dev.host, state.node.numpy(), out, room)


def mask_on_host(dev: TorchTable, logits: Tensor, state: AnyState, remaining: Tensor | None) -> Tensor:
    """Mask logits in place by packed masks, writing only what is not allowed."""
    assert dev.host is not None
    rows, columns = logits.shape
    threads = torch.get_num_threads()
    team = torch_team()
    if team is not None and isinstance(state, NestedState) and host_team.pays(rows, columns, threads):
        given = in_memory(state)  # names keep what is converted: kernels are handed addresses
        room = None if remaining is None else remaining.long().clamp(min=0).contiguous()
        stray = mask_jobs.apply_nested(
            dev.host, addresses(given), 0 if room is None else room.data_ptr(), logits_at(logits), threads, team
        )
        if stray >= 0:
            raise configuration_out_of_range(dev.host, map_state(Tensor.numpy, state), stray)
        return logits
    masks = host_masks.scratch(rows, -(-dev.vocab_size // 32))
    packed(dev, state, remaining, masks)
    return write_lowest(masks, logits)
