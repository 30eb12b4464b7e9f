"""What `stepping` asks of PyTorch, and the stacks of states with the distances of their frames."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ....kernels.limits import UNREACHABLE
from ....table.states import NestedState
from ..device_table import AnyState, DeviceCalls
from ..stepping import Carry, Stacks
from .arrays import arange, concatenate, integers, lookup, take, where
from .edges import base_of, find_token, first_edge, in_mask, target_in_base

__all__ = [
    "arange", "as_sites", "at_least", "at_most", "base_of", "between", "column", "concatenate", "ends", "expand",
    "far_with", "filled", "find_token", "first_edge", "in_mask", "index", "inside", "integers", "larger", "lookup",
    "nested_state", "pick", "plus", "repeated", "smaller", "stacks_of", "take", "take_far", "target_in_base", "times",
    "where", "wrapped",
]  # fmt: skip


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
        by_height = [torch.full((len(sites), len(calls.end_distance)), UNREACHABLE, device=sites.device)]
        by_height[0][:, 0] = 0
        for slot in range(calls.slots):
            by_height.append(far_with(calls, by_height[-1], frames[:, slot], open_sites[:, slot]))
        far = torch.stack(by_height, dim=1)
    return Stacks(sites, height, frames, far)


def far_with(calls: DeviceCalls, far: Tensor, frames: Tensor, site: Tensor) -> Tensor:
    """Return distances of stacks (.., C) of so many frames (..,) with one more site (..,) on them, by ends."""
    shape = (*calls.end_distance.shape[:2], *site.shape)
    steps = calls.end_distance.index_select(2, site.reshape(-1)).view(shape)
    if calls.site_distance_room.shape[0]:
        room = calls.site_distance_room.index_select(2, site.reshape(-1)).view(shape)
        steps = torch.where(frames + room <= calls.depth, steps, UNREACHABLE)
    least: Tensor = (steps.movedim((0, 1), (-2, -1)) + far[..., None, : shape[1]]).amin(dim=-1)
    return least


def take_far(far: Tensor, height: Tensor) -> Tensor:
    """Return distances of stacks (n, slots + 1), or (.., C) by ends, at heights (n, k)."""
    return far.gather(1, height if far.ndim == 2 else height[:, :, None].expand(-1, -1, far.shape[2]))


def pick(array: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return array (n, k) at rows and columns."""
    return array.take(row * array.shape[1] + column)


def filled(like: Tensor, value: int) -> Tensor:
    """Return a tensor of the shape of `like` with one value."""
    return torch.full_like(like, value)


def expand(x: Tensor, like: Tensor) -> Tensor:
    """Return x broadcast to the shape of `like`."""
    return x.expand_as(like)


def repeated(x: Tensor) -> Tensor:
    """Return x (n,) twice, one behind the other."""
    return x.repeat(2)


def index(x: Tensor) -> Tensor:
    """Return whole numbers in 64 bits, the only type that indexes."""
    return x.long()


def as_sites(x: Tensor) -> Tensor:
    """Return whole numbers in 32 bits, as stacks have them."""
    return x.int()


def at_least(x: Tensor, low: int) -> Tensor:
    """Return the larger of x and a number."""
    return x.clamp(min=low)


def at_most(x: Tensor, high: int) -> Tensor:
    """Return the smaller of x and a number."""
    return x.clamp(max=high)


def between(x: Tensor, low: int, high: int) -> Tensor:
    """Return x, or the nearest of two bounds."""
    return x.clamp(low, high)


def plus(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of distances; 64 bits hold any."""
    return a + b


def wrapped(x: Tensor, n: int) -> Tensor:
    """Return x, but n - 1 for -1."""
    return x % n


def ends(distance: Tensor) -> tuple[Tensor, ...]:
    """Return distances by end (C, n), one end after the other."""
    return distance.unbind()


def column(x: Tensor, at: int) -> Tensor:
    """Return one column of x (n, k): (n, 1)."""
    return x[:, at : at + 1]


def times(count: int, body: Callable[[int, Carry], Carry], carry: Carry) -> Carry:
    """Return what comes out after `count` rounds of body(round, carry)."""
    for each in range(count):
        carry = body(each, carry)
    return carry


def inside(token: Tensor, size: int) -> Tensor:
    """Return tokens moved into 0 .. size - 1."""
    return token.clamp(0, size - 1)


def nested_state(node: Tensor, stack: Tensor, height: Tensor) -> NestedState:
    """Return a state in the types of states."""
    return NestedState(node, stack, height.int())


larger = torch.maximum
smaller = torch.minimum
