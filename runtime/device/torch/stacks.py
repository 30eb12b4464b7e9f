"""Stepping of nested tables: frames of return sites, the symbols that leave them, and the room for more."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ....table.transition_table import NEVER, NestedState
from ..device_table import AnyState, DeviceCalls
from .edges import base_of, find_token, first_edge, in_mask, target_in_base
from .table import TorchTable


class Stacks(NamedTuple):
    """The stacks of a batch."""

    sites: Tensor  # (n, slots)
    height: Tensor  # (n,) open frames
    frames: Tensor  # (n, slots + 1) how many of the lowest 0, 1, .. frames are no leaves
    far: Tensor | None  # (n, slots + 1) tokens in which those are left, where there is a budget; (.., C) by ends


class Around(NamedTuple):
    """What is on the stacks that codes (n, k) are followed from, of a shape that broadcasts with theirs."""

    height: Tensor
    frames: Tensor
    far: Tensor | None  # with one more axis, of C, where ends are told apart


def stacks_of(calls: DeviceCalls, state: AnyState, budget: bool) -> Stacks:
    """Return the stacks of a state (n,)."""
    assert isinstance(state, NestedState)
    sites, height = state.stack.long(), state.height.long()
    inside = torch.arange(calls.slots, device=sites.device) < height[:, None]
    open_sites = torch.where(inside, sites, calls.site_frames.shape[0] - 1)  # of no frame: the site that is none

    def lowest(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values.take(open_sites).long().cumsum(dim=1), (1, 0))

    frames, far = lowest(calls.site_frames), None
    if budget and not calls.end_distance.shape[0]:
        far = lowest(calls.site_distance)
    elif budget:
        by_height = [torch.full((len(sites), len(calls.end_distance)), NEVER, device=sites.device)]
        by_height[0][:, 0] = 0
        for slot in range(calls.slots):
            by_height.append(_returned(calls, by_height[-1], frames[:, slot], open_sites[:, slot]))
        far = torch.stack(by_height, dim=1)
    return Stacks(sites, height, frames, far)


def _returned(calls: DeviceCalls, far: Tensor, frames: Tensor, site: Tensor) -> Tensor:
    """Return distances of stacks (.., C) of so many frames (..,) with one more site (..,) on them, by ends."""
    shape = (*calls.end_distance.shape[:2], *site.shape)
    steps = calls.end_distance.index_select(2, site.reshape(-1)).view(shape)
    if calls.site_distance_room.shape[0]:
        room = calls.site_distance_room.index_select(2, site.reshape(-1)).view(shape)
        steps = torch.where(frames + room <= calls.depth, steps, NEVER)
    least: Tensor = (steps.movedim((0, 1), (-2, -1)) + far[..., None, : shape[1]]).amin(dim=-1)
    return least


def around_of(stack: Stacks, height: Tensor) -> Around:
    """Return what is on stacks of which the lowest frames (n, k) are left."""
    far = stack.far
    if far is not None:
        at = height if far.ndim == 2 else height[:, :, None].expand(-1, -1, far.shape[2])
        far = far.gather(1, at)
    return Around(height, stack.frames.gather(1, height), far)


def may_follow(dev: TorchTable, code: Tensor, around: Around | None, last: Tensor | None) -> Tensor:
    """Return whether codes (n, k) may be followed from stacks, with `last` tokens (n, 1) left where they lead to."""
    fits = code != dev.dead
    far = None if last is None or dev.distance.ndim > 1 else dev.distance.take(code)
    if dev.calls is not None and around is not None:
        calls = dev.calls
        action = (code - dev.dead).clamp(min=0)
        room = calls.action_room.take(action)
        if calls.state_room.shape[0]:
            room = torch.maximum(room, calls.state_room.take(code.clamp(max=dev.dead)))
        pushed = calls.action_start.take(action + 1) - calls.action_start.take(action)
        fits = fits & (around.frames + room <= calls.depth) & (around.height + pushed <= calls.slots)
        if far is not None and around.far is not None:
            far = far + around.far
        elif last is not None and around.far is not None:  # one end after the other: many are rare, and codes are many
            for end, distance in enumerate(dev.distance):
                by_end = distance.take(code) + around.far[..., end]
                if calls.distance_room.shape[0]:
                    possible = around.frames + calls.distance_room[end].take(code) <= calls.depth
                    by_end = torch.where(possible, by_end, NEVER)
                far = by_end if far is None else torch.minimum(far, by_end)
    return fits if far is None or last is None else fits & (far <= last)


def base_site(calls: DeviceCalls, node: Tensor) -> Tensor:
    """Return the site (n, 1) that each row's base lies on, or -1."""
    if not calls.base_push.shape[0]:
        return torch.full_like(node, -1)[:, None]
    push: Tensor = calls.base_push.take(node.clamp(max=calls.base_push.shape[0] - 1))
    return push.long()[:, None]


def with_site(calls: DeviceCalls, around: Around, push: Tensor) -> tuple[Around, Tensor]:
    """Return what is on stacks with a site (n, 1) in addition, where that is not -1, and whether there is room."""
    site = push % calls.site_frames.shape[0]  # -1: the last, which is none
    height = around.height + (push >= 0)
    fits = (push < 0) | (around.frames + calls.site_room.take(site) <= calls.depth) & (height <= calls.slots)
    far = around.far
    if far is not None:
        one = not calls.end_distance.shape[0]
        far = (
            far + calls.site_distance.take(site)
            if one
            else torch.where(push[..., None] < 0, far, _returned(calls, far, around.frames, site))
        )
    return Around(height, around.frames + calls.site_frames.take(site), far), fits


def resolve(dev: TorchTable, calls: DeviceCalls, stack: Stacks, push: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the code that each target (n, k) comes to and how many frames are left below it: (n, k) each.

    A target is a code, or -1 - y: symbol y leaves the frame on top. push: a site (n, 1) that lies there besides, or
    -1. A token leaves few frames, `pops` at most, and all of one row leave the same ones.
    """
    top = stack.height[:, None] + (push >= 0)
    at = top - 1 - torch.arange(calls.pops, device=push.device)
    sites = stack.sites.gather(1, at.clamp(0, calls.slots - 1))
    sites = torch.where(at < stack.height[:, None], sites, push)
    sites = torch.where(at < 0, calls.site_frames.shape[0] - 1, sites)
    left = top.expand_as(target)
    for pop in range(calls.pops):
        leaves = target < 0
        left = torch.where(leaves, at[:, pop : pop + 1], left)
        found = _site_target(calls, sites[:, pop : pop + 1], (-1 - target).clamp(min=0), dev.dead)
        target = torch.where(leaves, found, target)
    return torch.where(target < 0, dev.dead, target), left.clamp(min=0)


def _site_target(calls: DeviceCalls, site: Tensor, symbol: Tensor, dead: int) -> Tensor:
    """Return what symbols (n, k) come to at sites (n, 1): a code, the dead state where a site has none, or -1 - y."""
    if not calls.site_width:
        dense: Tensor = calls.site_target.take(site * calls.symbols + symbol)
        return dense.long()
    low, last = calls.site_start.take(site).long(), calls.site_start.take(site + 1).long()
    low, last = low.expand_as(symbol), last.expand_as(symbol)
    at, found = find_token(calls.site_symbol, calls.symbols, low, last, symbol, calls.site_width)
    return torch.where(found, calls.site_target.take(at).long(), dead)


def exit_list(lists: Tensor, at: Tensor, calls: DeviceCalls) -> Tensor:
    """Return the exit list of each row or base (n,), the empty one where it has none."""
    if not lists.shape[0]:
        return torch.full_like(at, calls.exit_start.shape[0] - 2)
    found: Tensor = lists.take(at.clamp(max=lists.shape[0] - 1))
    return found.long()


def step_nested(dev: TorchTable, calls: DeviceCalls, state: AnyState, token: Tensor) -> NestedState:
    """Return where a token (n,) leads from each state (n,) of a nested table; the dead state if nowhere, and by EOS."""
    node, stack = state.node, stacks_of(calls, state, False)
    around = around_of(stack, stack.height[:, None])
    inside = (token >= 0) & (token < dev.vocab_size)
    token = token.clamp(0, dev.vocab_size - 1)
    edge, own = find_token(
        dev.edge_token, dev.vocab_size + 1, first_edge(dev, node), first_edge(dev, node + 1), token, dev.sparse_width
    )

    base = base_of(dev, node)
    lists = torch.cat([exit_list(calls.row_exit, node, calls), exit_list(calls.base_exit, base, calls)])
    low, stop = calls.exit_start.take(lists).long(), calls.exit_start.take(lists + 1).long()
    at, leaves = find_token(calls.exit_token, dev.vocab_size, low, stop, token.repeat(2), calls.exit_width)
    leaving = torch.where(leaves, -1 - calls.exit_symbol.take(at).long(), dev.dead).view(2, -1)
    target = torch.where(own, dev.edge_target.take(edge.clamp(max=dev.edge_target.shape[0] - 1)).long(), leaving[0])
    push = torch.full_like(node, -1)[:, None]
    if dev.has_masks:
        taken = own | leaves.view(2, -1)[0]
        masked = in_mask(dev, base, token[:, None]).view(-1)
        inner = torch.where(masked, target_in_base(dev, node, base, token), leaving[1])
        push = torch.where(taken[:, None], -1, base_site(calls, node))
        fits = with_site(calls, around, push)[1].view(-1)
        target = torch.where(taken, target, torch.where(fits, inner, dev.dead))

    code, left = resolve(dev, calls, stack, push, target[:, None])
    kept = torch.where(target[:, None] >= 0, push, -1)  # an exit of the base has left the site again
    left = torch.where(kept >= 0, stack.height[:, None], left)
    around, _ = with_site(calls, around_of(stack, left), kept)
    code = torch.where(inside[:, None] & may_follow(dev, code, around, None), code, dev.dead)
    return _entered(dev, calls, state, code, left, kept)


def _entered(
    dev: TorchTable, calls: DeviceCalls, state: AnyState, code: Tensor, left: Tensor, push: Tensor
) -> NestedState:
    """Return the state after codes (n, 1) from the `left` (n, 1) lowest frames of a stack, and a site or -1 on them."""
    action = (code - dev.dead).clamp(min=0)
    first = calls.action_start.take(action)
    pushed = calls.action_start.take(action + 1) - first
    assert isinstance(state, NestedState)
    node = torch.where(action > 0, calls.action_state.take(action), code).view(-1)
    over = (torch.arange(calls.slots, device=code.device) - left).clamp(min=-1)  # frames above those that are left
    opened = calls.action_push.take((first + over).clamp(0, calls.action_push.shape[0] - 1))
    stack = torch.where(over < 0, state.stack, torch.where(over < pushed, opened, 0))
    stack = torch.where((over == 0) & (push >= 0), push.int(), stack)
    height = torch.where(code < dev.num_rows, left + (push >= 0), torch.where(action > 0, left + pushed, 0))
    stack = torch.where(torch.arange(calls.slots, device=code.device) < height, stack, 0)
    return NestedState(node, stack, height.view(-1).int())
