"""Operations on a table in PyTorch: eager, under `torch.compile`, and inside CUDA graphs.

No function synchronises with the host or has a shape that depends on data. Names and meaning are those of
`numpy_ops`, the specification.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ..table.sorted_matrix import SortedMatrix
from ..table.transition_table import NEVER, NestedState, TransitionTable, stray_configuration
from .arena.arena import Arena, Handle, starts_of
from .device.device_table import (
    AnyState,
    Candidates,
    DeviceCalls,
    DeviceTable,
    Selection,
    State,
    check_floating,
    check_logits,
    check_put,
    check_remaining,
    check_rows,
    check_sids,
    check_starts,
    check_state,
    check_tokens,
    check_top,
    device_table,
    map_tree,
)
from .device.dispatch import by_kind
from .device.matrix_ops import DeviceMatrix, place
from .device.on_demand import OnDemandTable, is_read, read
from .host import draw as packed_draw
from .host import follow as host_follow
from .host import logits as host_logits
from .host import masks as host_masks
from .host import nested_masks
from .host import orders as host_orders
from .host import team as host_team

_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # (256, 8)
_BLOCK = 64  # scores per block maximum in `top_k`; 32 and 128 measured slower
_SAME_SIZE = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_LOWEST = {kind: int(torch.full((), -torch.inf, dtype=kind).view(same)) for kind, same in _SAME_SIZE.items()}
_PROCESS = os.getpid()  # a forked one has none of torch's threads


class _Kernels(Protocol):
    """What `triton_ops` has."""

    def apply(self, masks: Tensor, logits: Tensor, out: Tensor) -> Tensor:
        """Write logits to out with -inf where masks has no bit set."""


@dataclass(frozen=True, eq=False)
class TorchTable(DeviceTable):
    """A `DeviceTable` with what each byte of a mask unfolds to: on a CPU look-ups take half the time of shifts."""

    byte_mask: Tensor  # (256, 8) int32: -1 where the bit is set, else 0
    byte_penalty: Tensor  # (256, 8) float32: 0 where the bit is set, else -inf
    byte_rank: Tensor  # (256, 8) int32: bits set below each bit


@overload
def put(
    table: TransitionTable,
    device: torch.device | str | None = None,
    *,
    budgets: bool = False,
    top: None = None,
    on_demand: Literal[False] | None = None,
) -> TorchTable: ...
@overload
def put(
    table: TransitionTable,
    device: torch.device | str | None = None,
    *,
    budgets: bool = False,
    top: None = None,
    on_demand: Literal[True],
) -> OnDemandTable: ...
@overload
def put(
    table: SortedMatrix, device: torch.device | str | None = None, *, budgets: bool = False, top: int | None = None
) -> DeviceMatrix: ...
@overload
def put(
    table: Arena, device: torch.device | str | None = None, *, budgets: bool = False, top: None = None
) -> TorchTable: ...
def put(
    table: TransitionTable | SortedMatrix | Arena,
    device: torch.device | str | None = None,
    *,
    budgets: bool = False,
    top: int | None = None,
    on_demand: bool | None = None,
) -> TorchTable | DeviceMatrix | OnDemandTable:
    """Copy a table or a sorted matrix to a device, once; every other function takes what this returns.

    budgets: also copy the distances that `remaining` needs; a matrix needs none. top: of a matrix, only the `top` best
    logits of each row are verified; others count as not allowed, so that a row may lose continuations, or all.
    on_demand: of a table, whether to read it as texts come to its states, on the host between steps, instead of copying
    it. Left out, this is done where there is no finite one, as of grammars whose nesting a text does not delimit: see
    `on_demand.OnDemandTable`.

    Of an arena it returns the same each time: its arrays are written to where they are as tables come and go.
    """

    def convert(array: NDArray[Any]) -> Tensor:
        return torch.tensor(_signed(array), device=device)

    if is_read(table, on_demand):
        with torch.inference_mode(False):  # what is made inside that mode cannot be written to outside
            return read(sys.modules[__name__], convert, cast(Any, table), budgets, top)
    if isinstance(table, SortedMatrix):
        return place(table, convert, top)
    check_top(top)
    where = torch.empty(0, device=device).device
    more = {
        "byte_mask": -_BYTES.astype(np.int32),
        "byte_penalty": np.where(_BYTES, np.float32(0), np.float32(-np.inf)),
        "byte_rank": (np.cumsum(_BYTES, axis=1) - _BYTES).astype(np.int32),
    }
    if isinstance(table, Arena):
        arena = table
        arena.check_budgets(budgets)
        return cast(TorchTable, arena.mirror(("torch", where), lambda: _Mirror(arena, convert, where, more)))
    host = table if where.type == "cpu" else None
    return device_table(table, convert, TorchTable, budgets, host=host, **more)


class _Mirror:
    """An arena's arrays on a device, written to in place."""

    def __init__(
        self,
        arena: Arena,
        convert: Callable[[NDArray[Any]], Tensor],
        where: torch.device,
        more: dict[str, NDArray[Any]],
    ) -> None:
        self._arrays: dict[str, Tensor] = {}

        def keep(name: str, array: NDArray[Any]) -> Tensor:
            placed = self._arrays[name] = convert(array)
            return placed.movedim(0, -1) if name in arena.by_ends else placed

        self.dev = arena.on_device(keep, TorchTable, where.type == "cpu", **more)

    def write(self, changes: list[tuple[str, int, NDArray[Any]]]) -> None:
        for name, start, values in changes:
            self._arrays[name][start : start + len(values)] = torch.from_numpy(np.ascontiguousarray(_signed(values)))


def at(dev: TorchTable, handles: Sequence[Handle]) -> TorchTable:
    """Return an arena in which the rows of a batch start in the tables of handles (B,): as many rows in each."""
    return replace(dev, starts=torch.from_numpy(starts_of(handles, dev.arena)).to(dev.starts.device))


def _signed(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in a signed type, as unsigned ones lack kernels; `_unsigned` undoes it."""
    wide = array.dtype.kind == "u" and array.dtype.itemsize > 1
    return array.view(f"i{array.dtype.itemsize}") if wide else array


@by_kind
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


# ---------------------------------------------------------------------------------------------- gathers


def _unsigned(array: Tensor, largest: int) -> Tensor:
    """Return int64 values of an array that holds unsigned numbers up to `largest` in a signed type."""
    out = array.long()
    bits = 8 * array.element_size()
    return out & ((1 << bits) - 1) if array.dtype != torch.uint8 and largest >> (bits - 1) else out


def _first(dev: TorchTable, node: Tensor) -> Tensor:
    """Return the first edge of each state; a state ends where the next one starts."""
    row: Tensor = dev.row_start.take(node.clamp(max=dev.num_rows))
    return row + (node - dev.num_rows).clamp(min=0)


def _token(dev: TorchTable, edge: Tensor) -> Tensor:
    """Return the token of each edge."""
    return _unsigned(dev.edge_token.take(edge), dev.vocab_size + 1)


def _expand(dev: TorchTable, node: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first `width` edges of each state, their tokens, and which of them are allowed: (n, width)."""
    bounds = _first(dev, torch.cat([node, node + 1])).view(2, -1, 1)
    edge = bounds[0] + torch.arange(width, device=node.device)
    token = _token(dev, edge)
    return edge, token, (edge < bounds[1]) & (token < dev.vocab_size)


def _follow(dev: TorchTable, edge: Tensor) -> Tensor:
    """Return the state each edge leads to."""
    target = dev.edge_target.take(edge.clamp(max=max(dev.num_edges - 1, 0))).long()
    return torch.where(edge < dev.num_edges, target, edge + (dev.num_rows - dev.num_edges + 1))


def _base(dev: TorchTable, node: Tensor) -> Tensor:
    """Return the base of each state; the last, which allows nothing, where it has none."""
    base: Tensor = dev.base_row.take(node.clamp(max=dev.base_row.shape[0] - 1))
    return base.long()


def _edge_of(dev: TorchTable, node: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edge of each state (n,) of a trie that carries a token (n,), and whether there is one."""
    inside = (token >= 0) & (token < dev.vocab_size)
    token = token.clamp(0, dev.vocab_size - 1)
    low, last = _first(dev, node), _first(dev, node + 1)
    low, found = _search(dev.edge_token, dev.vocab_size + 1, low, last, token, dev.sparse_width)
    if dev.has_masks:
        base = _base(dev, node)
        masked = base < dev.masks.shape[0] - 1
        byte = dev.masks.take(base * dev.masks.shape[1] + (token >> 3))
        low = torch.where(masked, _first(dev, node) + _rank(dev, node, token), low)
        found = torch.where(masked, ((byte >> (token & 7)) & 1).bool(), found)
    return low, found & inside


def _rank(dev: TorchTable, node: Tensor, token: Tensor) -> Tensor:
    """Return how many bits of each state's mask (n,) are set before a token's (n,): its edges before that one.

    A state without a mask gets 0, the rank of its only edge where this is asked.
    """
    at = _base(dev, node) * dev.masks.shape[1] + (token >> 3)
    inside = dev.byte_rank.take((dev.masks.take(at).long() << 3) + (token & 7))
    return inside + _unsigned(dev.rank.take(at), dev.vocab_size)


def _search(
    tokens: Tensor, largest: int, low: Tensor, last: Tensor, token: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Return where a token (n,) stands among the sorted tokens[low:last] of at most `width`, and whether it does."""
    high = last
    for _ in range(width.bit_length()):
        middle = (low + high) >> 1
        below = _unsigned(tokens.take(middle), largest) < token
        searching = low < high
        low = torch.where(searching & below, middle + 1, low)
        high = torch.where(searching & ~below, middle, high)
    return low, (low < last) & (_unsigned(tokens.take(low), largest) == token)


def _class_target(dev: TorchTable, node: Tensor, base: Tensor, name: Tensor) -> Tensor:
    """Return where each state leads by a token of its base that has this class."""
    code = dev.base_target.take(dev.base_start.take(base).long() + name).long()
    target: Tensor = (code >> 1) + (code & 1) * node
    return target.clamp(0, dev.dead)


def _of_base(dev: TorchTable, node: Tensor, base: Tensor, token: Tensor) -> Tensor:
    """Return where a token (n,) of its base's mask leads from each state (n,)."""
    classes = dev.base_classes.take(base).long()
    low, last = dev.class_start.take(classes).long(), dev.class_start.take(classes + 1).long()
    at, found = _search(dev.class_token, dev.vocab_size, low, last, token, dev.class_width)
    return _class_target(dev, node, base, torch.where(found, dev.class_id.take(at), 0))


def _step(dev: TorchTable, node: Tensor, token: Tensor) -> Tensor:
    """Return where a token (n,) leads from each state (n,) of a graph; the dead state if nowhere, and by EOS."""
    inside = (token >= 0) & (token < dev.vocab_size)
    token = token.clamp(0, dev.vocab_size - 1)
    edge, own = _search(
        dev.edge_token, dev.vocab_size + 1, _first(dev, node), _first(dev, node + 1), token, dev.sparse_width
    )
    following = torch.where(own, dev.edge_target.take(edge.clamp(max=dev.edge_target.shape[0] - 1)).long(), dev.dead)
    if dev.has_masks:
        base = _base(dev, node)
        byte = dev.masks.take(dev.base_mask.take(base).long() * dev.masks.shape[1] + (token >> 3))
        target = _of_base(dev, node, base, token)
        following = torch.where(((byte >> (token & 7)) & 1).bool() & ~own, target, following)
    return torch.where(inside, following, dev.dead)


def _unfold(dev: TorchTable, state: AnyState, table: Tensor, width: int, remaining: Tensor | None = None) -> Tensor:
    """Return (n, 8 K) in which column v says whether a state allows token v, as `table` (256, 8) says it of bytes.

    width: most own edges of a state that its mask does not say, which are written one by one; 0 if all have masks.
    Columns from V on are never allowed. EOS is left out.
    """
    node, size, calls = state.node, dev.masks.shape[1], dev.calls
    yes, no = table[255, 0], table[0, 0]
    last = None if remaining is None else (remaining.clamp(max=NEVER) - 1)[:, None]  # below what cannot end
    stack = None if calls is None else _stack(calls, state, last is not None)
    around = None if stack is None else _above(stack, stack.height[:, None])
    base = _base(dev, node)
    if dev.has_masks:
        out, base = _unfold_base(dev, node, base, around, last, table)
    else:
        out = table[0].repeat(node.shape[0], size)
    if calls is not None and stack is not None and calls.exit_width:
        _write_exits(dev, calls, stack, last, node, base, out, yes, no)
    if width:
        bounds = _first(dev, torch.cat([node, node + 1])).view(2, -1)
        edge, inside = _entries(bounds[0], bounds[1], width)
        token = _token(dev, edge)
        allowed = inside & (token < dev.vocab_size)
        if last is not None or not dev.is_trie:
            allowed = allowed & _fits(dev, torch.where(allowed, _follow(dev, edge), dev.dead), around, last)
        value = torch.where(allowed, yes, no)
        token = token.clamp(max=dev.vocab_size - 1)
        if dev.is_trie:
            out.scatter_(1, token, value)
        else:
            _write(out, token, inside, value)
    return out


def _unfold_base(
    dev: TorchTable, node: Tensor, base: Tensor, around: _Around | None, last: Tensor | None, table: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what bases allow, as `_unfold` does, and the bases (n,), the last where there is no room for one."""
    size, calls, none, shown = dev.masks.shape[1], dev.calls, dev.base_mask.shape[0] - 1, base
    if calls is not None and around is not None:
        around, fits = _pushed(calls, around, _base_push(calls, node))
        base = torch.where(fits.view(-1), base, none)
        shown = torch.where(around.frames.view(-1) <= calls.depth, base, none)
    if dev.is_trie or (last is None and (calls is None or not calls.state_room.shape[0])):
        masks = dev.masks.index_select(0, dev.base_mask.take(shown)).view(-1).int()
        return table.index_select(0, masks).view(-1, 8 * size), base
    # what classes lead to may be too far from an end, or need too much room
    zero = _fits(dev, _class_target(dev, node, base, torch.zeros_like(node))[:, None], around, last)
    few = dev.class_width <= dev.vocab_size // 4  # then written one by one; with more, whole rows are faster
    shown = torch.where(zero.view(-1), shown, none) if few else shown
    masks = dev.masks.index_select(0, dev.base_mask.take(shown)).view(-1).int()
    out = table.index_select(0, masks).view(-1, 8 * size)
    classes = dev.base_classes.take(base).long()
    first, stop = dev.class_start.take(classes).long(), dev.class_start.take(classes + 1).long()
    at, inside = _entries(first, stop, dev.class_width)
    token = _unsigned(dev.class_token.take(at), dev.vocab_size).clamp(max=dev.vocab_size - 1)
    target = _class_target(dev, node[:, None], base[:, None], torch.where(inside, dev.class_id.take(at), 0))
    fits = _fits(dev, target, around, last)
    if few:
        _write(out, token, inside, torch.where(_in_mask(dev, base, token) & fits, table[255, 0], table[0, 0]))
        return out, base
    allowed = zero.repeat(1, 8 * size)
    _write(allowed, token, inside, fits)
    return torch.where(allowed, out, table[0, 0]), base


def _in_mask(dev: TorchTable, base: Tensor, token: Tensor) -> Tensor:
    """Return whether tokens (n, k) are in the masks of bases (n,)."""
    row = dev.base_mask.take(base).long()[:, None] * dev.masks.shape[1]
    byte: Tensor = dev.masks.take(row + (token >> 3))
    return ((byte >> (token & 7)) & 1).bool()


def _entries(first: Tensor, last: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return places (n, width) of lists first .. last (n,), and whether they are any: short lists repeat their last."""
    at = torch.minimum(first[:, None] + torch.arange(width, device=first.device), last[:, None] - 1)
    return at.clamp(min=0), at >= first[:, None]


def _write(out: Tensor, token: Tensor, inside: Tensor, value: Tensor) -> None:
    """Write value (n, w) at token (n, w) of out (n, 8 K); in rows where nothing is `inside`, what is there already."""
    token = torch.where(inside, token, 0)
    out.scatter_(1, token, torch.where(inside, value, out[:, :1]))


def _keep(x: Tensor, mask: Tensor) -> Tensor:
    """Return x (n, V) with -inf where mask (n, V) is 0.

    On CPU this works on bits: `torch.where` mispredicts a branch per element there and takes 0.9 ms for 140 x 2048
    where this takes 0.08. It passes no derivative on, so `where` stays for tensors that want one.
    """
    backward = x.requires_grad and torch.is_grad_enabled()
    forward = torch.autograd.forward_ad._current_level >= 0
    if x.device.type != "cpu" or backward or forward or x.dtype not in _SAME_SIZE:
        return torch.where(mask.bool(), x, -torch.inf)
    kind = _SAME_SIZE[x.dtype]
    lowest = torch.full((), -torch.inf, dtype=x.dtype).view(kind)
    return (x.resolve_neg().view(kind) ^ lowest).bitwise_and_(mask).bitwise_xor_(lowest).view(x.dtype)


def _eos_allowed(dev: TorchTable, node: Tensor) -> Tensor:
    rows = dev.accepting[node.clamp(max=dev.num_rows - 1)]
    entry = _token(dev, (node - dev.num_rows).clamp(min=0) + dev.num_edges)
    return torch.where(node < dev.num_rows, rows, entry == dev.vocab_size)


# ------------------------------------------------------------------------------------------------- calls


class _Stack(NamedTuple):
    """The stacks of a batch."""

    sites: Tensor  # (n, slots)
    height: Tensor  # (n,) open frames
    frames: Tensor  # (n, slots + 1) how many of the lowest 0, 1, .. frames are no leaves
    far: Tensor | None  # (n, slots + 1) tokens in which those are left, where there is a budget; (.., C) by ends


class _Around(NamedTuple):
    """What is on the stacks that codes (n, k) are followed from, of a shape that broadcasts with theirs."""

    height: Tensor
    frames: Tensor
    far: Tensor | None  # with one more axis, of C, where ends are told apart


def _stack(calls: DeviceCalls, state: AnyState, budget: bool) -> _Stack:
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
    return _Stack(sites, height, frames, far)


def _returned(calls: DeviceCalls, far: Tensor, frames: Tensor, site: Tensor) -> Tensor:
    """Return distances of stacks (.., C) of so many frames (..,) with one more site (..,) on them, by ends."""
    shape = (*calls.end_distance.shape[:2], *site.shape)
    steps = calls.end_distance.index_select(2, site.reshape(-1)).view(shape)
    if calls.site_distance_room.shape[0]:
        room = calls.site_distance_room.index_select(2, site.reshape(-1)).view(shape)
        steps = torch.where(frames + room <= calls.depth, steps, NEVER)
    least: Tensor = (steps.movedim((0, 1), (-2, -1)) + far[..., None, : shape[1]]).amin(dim=-1)
    return least


def _above(stack: _Stack, height: Tensor) -> _Around:
    """Return what is on stacks of which the lowest frames (n, k) are left."""
    far = stack.far
    if far is not None:
        at = height if far.ndim == 2 else height[:, :, None].expand(-1, -1, far.shape[2])
        far = far.gather(1, at)
    return _Around(height, stack.frames.gather(1, height), far)


def _fits(dev: TorchTable, code: Tensor, around: _Around | None, last: Tensor | None) -> Tensor:
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


def _base_push(calls: DeviceCalls, node: Tensor) -> Tensor:
    """Return the site (n, 1) that each row's base lies on, or -1."""
    if not calls.base_push.shape[0]:
        return torch.full_like(node, -1)[:, None]
    push: Tensor = calls.base_push.take(node.clamp(max=calls.base_push.shape[0] - 1))
    return push.long()[:, None]


def _pushed(calls: DeviceCalls, around: _Around, push: Tensor) -> tuple[_Around, Tensor]:
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
    return _Around(height, around.frames + calls.site_frames.take(site), far), fits


def _resolve(dev: TorchTable, calls: DeviceCalls, stack: _Stack, push: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
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
    at, found = _search(calls.site_symbol, calls.symbols, low, last, symbol, calls.site_width)
    return torch.where(found, calls.site_target.take(at).long(), dead)


def _exit_list(lists: Tensor, at: Tensor, calls: DeviceCalls) -> Tensor:
    """Return the exit list of each row or base (n,), the empty one where it has none."""
    if not lists.shape[0]:
        return torch.full_like(at, calls.exit_start.shape[0] - 2)
    found: Tensor = lists.take(at.clamp(max=lists.shape[0] - 1))
    return found.long()


def _write_exits(
    dev: TorchTable,
    calls: DeviceCalls,
    stack: _Stack,
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
        lists.append(_exit_list(calls.base_exit, base, calls))
        push.append(_base_push(calls, node))
    if calls.row_exit.shape[0]:
        lists.append(_exit_list(calls.row_exit, node, calls))
        push.append(torch.full_like(node, -1)[:, None])
    if not lists:
        return

    def for_each_list(x: Tensor) -> Tensor:
        return torch.cat([x] * len(lists))

    which = torch.cat(lists)
    first, stop = calls.exit_start.take(which).long(), calls.exit_start.take(which + 1).long()
    at, inside = _entries(first, stop, calls.exit_width)
    token = torch.where(inside, _unsigned(calls.exit_token.take(at), dev.vocab_size), 0)
    stacks = _Stack(*(cast(Tensor, None if x is None else for_each_list(x)) for x in stack))
    code, left = _resolve(dev, calls, stacks, torch.cat(push), -1 - calls.exit_symbol.take(at).long())
    fits = _fits(dev, code, _above(stacks, left), None if last is None else for_each_list(last))
    value = torch.where(fits, yes, no)
    if calls.base_exit.shape[0]:  # what is in the base's mask is none of its exits
        of_base = torch.where(_in_mask(dev, base, token[:n]), out.gather(1, token[:n]), value[:n])
        _write(out, token[:n], inside[:n], of_base)
    if calls.row_exit.shape[0]:
        _write(out, token[-n:], inside[-n:], value[-n:])


def _step_nested(dev: TorchTable, calls: DeviceCalls, state: AnyState, token: Tensor) -> NestedState:
    """Return where a token (n,) leads from each state (n,) of a nested table; the dead state if nowhere, and by EOS."""
    node, stack = state.node, _stack(calls, state, False)
    around = _above(stack, stack.height[:, None])
    inside = (token >= 0) & (token < dev.vocab_size)
    token = token.clamp(0, dev.vocab_size - 1)
    edge, own = _search(
        dev.edge_token, dev.vocab_size + 1, _first(dev, node), _first(dev, node + 1), token, dev.sparse_width
    )

    base = _base(dev, node)
    lists = torch.cat([_exit_list(calls.row_exit, node, calls), _exit_list(calls.base_exit, base, calls)])
    low, stop = calls.exit_start.take(lists).long(), calls.exit_start.take(lists + 1).long()
    at, leaves = _search(calls.exit_token, dev.vocab_size, low, stop, token.repeat(2), calls.exit_width)
    leaving = torch.where(leaves, -1 - calls.exit_symbol.take(at).long(), dev.dead).view(2, -1)
    target = torch.where(own, dev.edge_target.take(edge.clamp(max=dev.edge_target.shape[0] - 1)).long(), leaving[0])
    push = torch.full_like(node, -1)[:, None]
    if dev.has_masks:
        taken = own | leaves.view(2, -1)[0]
        masked = _in_mask(dev, base, token[:, None]).view(-1)
        inner = torch.where(masked, _of_base(dev, node, base, token), leaving[1])
        push = torch.where(taken[:, None], -1, _base_push(calls, node))
        fits = _pushed(calls, around, push)[1].view(-1)
        target = torch.where(taken, target, torch.where(fits, inner, dev.dead))

    code, left = _resolve(dev, calls, stack, push, target[:, None])
    kept = torch.where(target[:, None] >= 0, push, -1)  # an exit of the base has left the site again
    left = torch.where(kept >= 0, stack.height[:, None], left)
    around, _ = _pushed(calls, _above(stack, left), kept)
    code = torch.where(inside[:, None] & _fits(dev, code, around, None), code, dev.dead)
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


def _reached(dev: TorchTable, state: AnyState, token: Tensor) -> AnyState:
    """Return where a token (n,) leads from each state (n,) of a graph; the dead state if nowhere, and by EOS."""
    if dev.calls is None:
        return State(_step(dev, state.node, token))
    return _step_nested(dev, dev.calls, state, token)


def _only(dev: TorchTable, holds: Tensor, state: AnyState) -> AnyState:
    """Return a state (n,) with the dead state where `holds` (n,) is not so."""
    node = torch.where(holds, state.node, dev.dead)
    if not isinstance(state, NestedState):
        return State(node)
    return NestedState(node, torch.where(holds[:, None], state.stack, 0), torch.where(holds, state.height, 0))


def _map(function: Any, state: AnyState) -> Any:
    """Return a state whose arrays have gone through a function."""
    return type(state)(*(function(array) for array in state))


# ---------------------------------------------------------------------------------------------- operations


@by_kind
def accepting(dev: TorchTable, state: AnyState) -> Tensor:
    """Return whether each sequence may end where it stands: bool (B,)."""
    if dev.calls is None:
        return _eos_allowed(dev, state.node)
    check_state(dev.calls.slots, state)
    at_bottom: Tensor = cast(NestedState, state).height == 0
    return _eos_allowed(dev, state.node) & at_bottom


@by_kind
def distance(dev: TorchTable, state: AnyState) -> Tensor:
    """Return the tokens (B,) in which each sequence can be complete, at least one of which is always allowed.

    The table must have been put with budgets.
    """
    near: Tensor = dev.distance.take(state.node).long() if dev.distance.ndim == 1 else dev.distance[:, state.node].T
    if dev.calls is None:
        return near
    check_state(dev.calls.slots, state)
    stack = _stack(dev.calls, state, True)
    far = _above(stack, stack.height[:, None]).far
    assert far is not None
    by_end = near + far[:, 0]
    if near.ndim == 1:
        return by_end
    if dev.calls.distance_room.shape[0]:
        frames = stack.frames.gather(1, stack.height[:, None])
        room = dev.calls.distance_room.index_select(1, state.node).T
        by_end = torch.where(frames + room <= dev.calls.depth, by_end, NEVER)
    return by_end.amin(dim=1)


def log_softmax(logits: Tensor) -> Tensor:
    """Return log-probabilities (B, V) over all columns; NaN throughout a row that has no distribution."""
    return torch.log_softmax(_wide(logits), dim=-1)


def _wide(logits: Tensor) -> Tensor:
    """Return logits in at least 32 bits."""
    return logits if logits.dtype == torch.float64 else logits.float()


@by_kind
def bitmask(dev: TorchTable, state: AnyState, remaining: Tensor | None = None) -> Tensor:
    """Return the tokens allowed in each state, packed: int32 (B, ceil(V / 32)), token 32 * w + i is bit i of word w.

    remaining: (B,) how many tokens may still be written, EOS aside. Then only tokens are allowed from whose target an
    end can be reached within the others, so that there is always one in reach.
    """
    _check_state(dev, state)
    if remaining is not None:
        _check_remaining(dev, state.node.shape[0], remaining)
    if _on_host(dev, state, remaining):
        masks = np.empty((state.node.shape[0], -(-dev.vocab_size // 32)), np.uint32)
        _packed(dev, state, remaining, masks)
        return torch.from_numpy(masks.view(np.int32))
    return pack(_allowed(dev, state, remaining)[:, : dev.vocab_size])


@by_kind
def mask_logits(dev: TorchTable, logits: Tensor, state: AnyState, remaining: Tensor | None = None) -> Tensor:
    """Return logits (B, V) with -inf at every token that is not allowed; what is allowed is left untouched.

    remaining: as for `bitmask`.
    """
    _check_masking(dev, logits, state, remaining)
    if _on_host(dev, state, remaining) and _writable(logits):
        return _mask_on_host(dev, logits.clone(memory_format=torch.contiguous_format), state, remaining)
    if (kernels := _triton_for(logits)) is not None:
        out = torch.empty_like(logits, memory_format=torch.contiguous_format)
        return kernels.apply(bitmask(dev, state, remaining), logits, out)
    return keep(logits, _allowed(dev, state, remaining), dev.vocab_size)


@by_kind
def mask_logits_(dev: TorchTable, logits: Tensor, state: AnyState, remaining: Tensor | None = None) -> Tensor:
    """Mask logits (B, V) as `mask_logits` does, in place, and return them.

    On a CPU only what is not allowed is written: rows that allow almost everything cost almost nothing.
    """
    _check_masking(dev, logits, state, remaining)
    if _on_host(dev, state, remaining) and _writable(logits):
        return _noted(_mask_on_host(dev, logits, state, remaining))
    if (kernels := _triton_for(logits)) is not None:
        return _noted(kernels.apply(bitmask(dev, state, remaining), logits, logits))
    allowed = _allowed(dev, state, remaining)[:, : dev.vocab_size].bool()
    forbidden = torch.nn.functional.pad(~allowed, (0, logits.shape[1] - dev.vocab_size), value=True)
    return logits.masked_fill_(forbidden, -torch.inf)


def _check_masking(dev: TorchTable, logits: Tensor, state: AnyState, remaining: Tensor | None) -> None:
    check_floating(logits.is_floating_point() and logits.element_size() > 1, logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    _check_state(dev, state)
    if remaining is not None:
        _check_remaining(dev, logits.shape[0], remaining)


def _check_state(dev: TorchTable, state: AnyState) -> None:
    if dev.calls is not None:
        check_state(dev.calls.slots, state)


def _check_remaining(dev: TorchTable, rows: int, remaining: Tensor) -> None:
    check_remaining(rows, remaining.shape, _integers(remaining), remaining.dtype, dev.distance.shape[0] > 0)


def _integers(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _allowed(dev: TorchTable, state: AnyState, remaining: Tensor | None) -> Tensor:
    """Return int32 (n, 8 K): -1 for tokens that are allowed, EOS among them, else 0."""
    width = dev.sparse_width
    if remaining is not None:
        remaining = remaining.long()  # before 1 is taken from it, which a narrow type would wrap
        if dev.is_trie:  # whose masks do not say where their tokens lead
            width = max(width, *(level.width for level in dev.levels))
    mask = _unfold(dev, state, dev.byte_mask, width, remaining)
    if dev.eos is not None:
        mask[:, dev.eos] |= -accepting(dev, state).int()
    return mask


def _plain(*arrays: Tensor) -> bool:
    """Return whether all are ordinary memory that kernels may read: nothing is traced, fake or wrapped."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
        and all(type(x) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(x) for x in arrays)
    )


def _on_host(dev: TorchTable, state: AnyState, remaining: Tensor | None) -> bool:
    """Return whether the masks of these states can be composed on the host without waiting for a device."""
    if dev.host is None:
        return False
    given = state if remaining is None else (*state, remaining)
    return _plain(*given) and all(x.is_cpu for x in given)


def _writable(logits: Tensor) -> bool:
    """Return whether a kernel may write to logits (B, V') on the host, or to a copy of them."""
    return _plain(logits) and logits.is_cpu and logits.dtype in _SAME_SIZE and _in_rows(logits)


def _in_rows(logits: Tensor) -> bool:
    """Return whether rows (B, V') lie apart, each in one piece, and no derivative is asked for."""
    backward = logits.requires_grad and torch.is_grad_enabled()
    forward = torch.autograd.forward_ad._current_level >= 0
    apart = logits.shape[0] < 2 or logits.stride(0) >= logits.shape[1]
    as_is = not (logits.is_neg() or logits._is_zerotensor())  # what lies in memory is what they are
    return as_is and not (backward or forward) and apart and (logits.stride(1) == 1 or logits.shape[1] < 2)


def _packed(dev: TorchTable, state: AnyState, remaining: Tensor | None, out: NDArray[np.uint32]) -> None:
    """Write the masks of states (n,) into out (n, ceil(V / 32))."""
    assert dev.host is not None
    room = None if remaining is None else remaining.long().numpy()
    if isinstance(state, NestedState):
        nested_masks.compose_nested_into(dev.host, _map(Tensor.numpy, state), out, room)
    else:
        host_masks.compose_into(dev.host, state.node.numpy(), out, room)


def _mask_on_host(dev: TorchTable, logits: Tensor, state: AnyState, remaining: Tensor | None) -> Tensor:
    """Mask logits in place by packed masks, writing only what is not allowed."""
    assert dev.host is not None
    rows, columns = logits.shape
    threads = torch.get_num_threads()
    team = _team() if os.getpid() == _PROCESS else None
    if team is not None and isinstance(state, NestedState) and host_team.pays(rows, columns, threads):
        given = _in_memory(state)  # names keep what is converted: kernels are handed addresses
        room = None if remaining is None else remaining.long().contiguous()
        stray = host_orders.apply_nested(
            dev.host, _addresses(given), 0 if room is None else room.data_ptr(), _where(logits), threads, team
        )
        if stray >= 0:
            raise stray_configuration(dev.host, _map(Tensor.numpy, state), stray)
        return logits
    masks = host_masks.scratch(rows, -(-dev.vocab_size // 32))
    _packed(dev, state, remaining, masks)
    return _write_lowest(masks, logits)


def _where(logits: Tensor) -> host_logits.Logits:
    """Return where logits (n, V') lie."""
    (rows, columns), size = logits.shape, logits.element_size()
    return host_logits.Logits(logits.data_ptr(), rows, columns, size * logits.stride(0), size, _LOWEST[logits.dtype])


def _follow_on_host(table: TransitionTable, state: NestedState, tokens: Tensor) -> NestedState:
    """Follow one token of each row (n,) int64."""
    given, tokens = _in_memory(state), tokens.contiguous()
    out = NestedState(*map(torch.empty_like, given))
    team = _team() if os.getpid() == _PROCESS else None
    stray = host_follow.follow(
        table, tokens.data_ptr(), _addresses(given), _addresses(out), tokens.shape[0], torch.get_num_threads(), team
    )
    if stray >= 0:
        raise stray_configuration(table, _map(Tensor.numpy, state), stray)
    return out


def _in_memory(state: NestedState) -> NestedState:
    """Return a state as kernels read it: node int64, the others int32, each in one piece."""
    return NestedState(state.node.long().contiguous(), state.stack.int().contiguous(), state.height.int().contiguous())


def _addresses(state: NestedState) -> tuple[int, int, int]:
    return state.node.data_ptr(), state.stack.data_ptr(), state.height.data_ptr()


def _write_lowest(masks: NDArray[np.uint32], logits: Tensor) -> Tensor:
    """Write -inf to logits in place where masks (n, ceil(V / 32)) have no bit set."""
    bits = logits.detach().view(_SAME_SIZE[logits.dtype]).numpy()
    team = _team() if os.getpid() == _PROCESS else None
    host_logits.apply(masks, bits, _LOWEST[logits.dtype], torch.get_num_threads(), team)
    return logits


@lru_cache(maxsize=1)
def _team() -> host_team.Team | None:
    """Return what runs a function in torch's own threads, None where they are not those of GNU's OpenMP.

    What has just been computed by torch has left them spinning, on all processors there are: threads beside them wait
    for one. Measured for 64 x 131,072 logits on two processors: 0.85 ms in place of 1.35.
    """
    if sys.platform != "linux" or not torch._C.has_openmp:
        return None
    names = ["libgomp.so.1", *map(str, (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))]
    for name in names:
        try:
            run = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
        except (OSError, AttributeError):  # it is not there, or nobody has loaded it
            continue
        run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
        return lambda function, argument, threads: run(function, argument, threads, 0)
    return None


def _triton_for(logits: Tensor) -> _Kernels | None:
    """Return the Triton kernels if they take these logits: on CUDA, of a float type they know; else None."""
    usable = (
        _plain(logits)
        and (logits.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")  # the interpreter takes tensors of the host
        and logits.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and _in_rows(logits)
    )
    return _triton() if usable else None


@lru_cache(maxsize=1)
def _triton() -> _Kernels | None:
    """Return the module of Triton kernels, None where Triton is not installed; it is slow to import."""
    if importlib.util.find_spec("triton") is None:
        return None
    from .device.torch import triton_ops

    return triton_ops


def _noted(logits: Tensor) -> Tensor:
    """Return logits that were written to behind autograd's back, and tell it."""
    if not logits.is_inference():
        torch.autograd.graph.increment_version(logits)
    return logits


def draw(
    dev: TorchTable | OnDemandTable | DeviceMatrix,
    logits: Tensor,
    state: AnyState,
    uniforms: Callable[[], Tensor],
    filters: tuple[float, int | None, float | None, float | None],
    remaining: Tensor | None,
    mass: bool,
) -> tuple[Tensor | None, ...] | None:
    """Return tokens, log-probabilities, log-mass and which are valid, as `decode.sample` does, in one pass of a kernel.

    Logits on the host alone are drawn from in this way, and none is written; elsewhere, while tracing, of other types
    and for a matrix None is returned: then it takes array operations. uniforms() returns (n, 2).
    """
    if isinstance(dev, DeviceMatrix) or not _can_draw(logits, *state, *(() if remaining is None else (remaining,))):
        return None
    numbers = None if filters[0] == 0 else uniforms()
    if numbers is not None and not (_plain(numbers) and numbers.is_cpu):
        return None
    asked = packed_draw.Filters.of([filters])
    if isinstance(dev, TorchTable) and isinstance(state, NestedState) and _on_host(dev, state, remaining):
        drawn = _draw_nested(dev, logits, state, numbers, asked, remaining, mass)
    else:
        drawn = _draw_packed(bitmask(cast(TorchTable, dev), state, remaining), logits, numbers, asked, mass)
    tokens, log_probs, log_mass, valid = map(torch.from_numpy, drawn)
    return tokens, log_probs, log_mass if mass else None, valid


def _draw_nested(
    dev: TorchTable,
    logits: Tensor,
    state: NestedState,
    uniforms: Tensor | None,
    filters: packed_draw.Filters,
    remaining: Tensor | None,
    mass: bool,
) -> packed_draw.Drawn:
    """Draw from what configurations of a nested table allow, each of whose masks is composed when it is needed."""
    assert dev.host is not None
    _check_masking(dev, logits, state, remaining)
    given = _in_memory(state)  # names keep what is converted: kernels are handed addresses
    room = None if remaining is None else remaining.long().contiguous()
    where = _where(logits)
    order = host_orders.order_of(dev.host, _addresses(given), 0 if room is None else room.data_ptr(), where)
    drawn = _drawn(order, logits, uniforms, filters, mass, dev.host.edge_token.dtype)
    if isinstance(drawn, int):
        raise stray_configuration(dev.host, _map(Tensor.numpy, state), drawn)
    return drawn


def _can_draw(logits: Tensor, *others: Tensor) -> bool:
    """Return whether a kernel may draw from logits (n, V') where they are, given others."""
    return (
        _plain(logits, *others)
        and str(logits.dtype).removeprefix("torch.") in packed_draw.FLOATS
        and all(x.is_cpu for x in (logits, *others))
        and _in_rows(logits)
    )


def _draw_packed(
    masks: Tensor, logits: Tensor, uniforms: Tensor | None, filters: packed_draw.Filters, mass: bool = True
) -> packed_draw.Drawn:
    """Return a token for each row of logits (n, V'), of which `_can_draw` holds, among what masks (n, words) allow.

    uniforms: (n, 2) in [0, 1), None where the best is taken of all. mass: whether log P(allowed) is wanted.
    """
    drawn = _drawn(masks.contiguous().numpy().view(np.uint32), logits, uniforms, filters, mass)
    assert not isinstance(drawn, int), "there is no table to stray from"
    return drawn


def _drawn(masks: Any, logits: Tensor, uniforms: Tensor | None, *options: Any) -> packed_draw.Drawn | int:
    numbers = np.zeros((logits.shape[0], 2)) if uniforms is None else uniforms.detach().double().contiguous().numpy()
    kind, where = str(logits.dtype).removeprefix("torch."), _where(logits)
    filters, mass, *tokens = options
    team = _team() if os.getpid() == _PROCESS else None
    return packed_draw.draw(masks, where, kind, filters, numbers, mass, torch.get_num_threads(), team, *tokens)


@by_kind
def candidates(dev: TorchTable, logits: Tensor, state: AnyState, width: int, level: int | None = None) -> Candidates:
    """Return the `width` best allowed continuations of each row, EOS among them, best first.

    Scores are log-probabilities under the full softmax. Unused slots score -inf and lead to the dead state. `level`
    is a depth at which all the states must be: only as many edges as a state there can have are read, and where a
    state is of another depth some of its tokens are left out.
    """
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    log_probs = log_softmax(logits)
    shape = None if level is None else dev.level(level)
    if shape is None or shape.dense:
        scores = mask_logits(dev, log_probs, state)
        token = None
    else:
        _, token, allowed = _expand(dev, state.node, shape.width)
        scores = torch.where(allowed, log_probs.gather(1, token.clamp(max=dev.vocab_size - 1)), -torch.inf)
        if dev.eos is not None:
            last = torch.where(accepting(dev, state), log_probs[:, dev.eos], -torch.inf)
            scores = torch.cat([scores, last[:, None]], dim=1)
            token = torch.cat([token, torch.full_like(token[:, :1], dev.eos)], dim=1)
    best, at = top_k(torch.where(scores.isnan(), -torch.inf, scores), width)
    tokens = at if token is None else token.gather(1, at)
    alive = best > -torch.inf
    tokens = torch.where(alive, tokens, 0)
    rows = _map(lambda x: x.repeat_interleave(width, dim=0, output_size=tokens.numel()), state)
    reached = _only(dev, alive.view(-1), advance(dev, rows, tokens.reshape(-1)))
    return Candidates(best, tokens, _map(lambda x: x.view(*tokens.shape, *x.shape[1:]), reached))


@by_kind
def select(
    dev: TorchTable | None,
    logits: Tensor,
    state: AnyState,
    scores: Tensor,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, EOS aside.

    logits: (B * m, V). state: (B * m,), all at depth `level`. scores: (B, m) totals so far, to which log-probabilities
    under the full softmax are added; renormalise: under that of the allowed tokens alone. A row of logits that has
    no distribution (NaN, +inf, all -inf) has no continuations. dev None: no constraint.
    """
    batch, m = scores.shape
    # without a constraint all tokens are allowed, and both softmaxes are one
    log_probs = _wide(logits) if renormalise and dev is not None else log_softmax(logits)
    if dev is None:
        width = logits.shape[1]
        best, at = top_of_beams(log_probs.view(batch, m, width), scores, beams)
        alive = best > -torch.inf
        unused = state.node.new_zeros(batch * beams)
        return Selection(best, at // width, torch.where(alive, at % width, 0), State(unused))
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    _check_state(dev, state)
    shape = dev.level(level)
    # all states of level 0 are the root, whose edges need no look-up and no ranking in its mask
    dense = shape.dense and (level > 0 or not dev.is_trie)
    if dense:
        tails = dev.sparse_width if not dev.is_trie else 1 if shape.tails else 0
        if renormalise:  # of logits that are not normalised, some that are not allowed may be NaN or inf: no sums
            mask = _unfold(dev, state, dev.byte_mask, tails)
            x = log_probs.new_full(mask.shape, -torch.inf)
            x[:, : dev.vocab_size] = _keep(log_probs[:, : dev.vocab_size], mask[:, : dev.vocab_size])
        else:
            x = _unfold(dev, state, dev.byte_penalty, tails).to(log_probs.dtype)
            x[:, : dev.vocab_size] += log_probs[:, : dev.vocab_size]  # in place: fresh pages cost more than the sum
    else:
        if level == 0:
            edge = torch.arange(shape.width, device=log_probs.device)
            token = _token(dev, edge)
            edge, token = edge.expand(batch * m, -1), token.expand(batch * m, -1)
            x = log_probs.gather(1, token)
            scores = torch.where(state.node.view(batch, m) == 0, scores, -torch.inf)
        else:
            if shape.rows:
                edge, token, allowed = _expand(dev, state.node, shape.width)
            else:
                edge = (state.node + (dev.num_edges - dev.num_rows))[:, None]
                token = _token(dev, edge)
                allowed = token < dev.vocab_size
            x = log_probs.gather(1, token.clamp(max=dev.vocab_size - 1))
            x = torch.where(allowed, x, -torch.inf)
    width = x.shape[1]
    if renormalise:
        mass = torch.logsumexp(x, dim=-1)
        if dev.eos is not None:
            last = torch.where(accepting(dev, state), log_probs[:, dev.eos], -torch.inf)
            mass = torch.logaddexp(mass, last)
        x = x - mass[:, None]
    parents = None
    if m == beams and shape.width == 1 and not dense:  # nothing branches: each beam goes on in its place
        best = (scores + x.view(batch, m)).nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        tokens, edges = token.reshape(batch, m), edge.reshape(-1)
    else:
        best, at = top_of_beams(x.view(batch, m, width), scores, beams)
        parents = at // width
        if dense:
            tokens = (at - parents * width).clamp(max=dev.vocab_size - 1)
            state = gather(state, (parents + m * torch.arange(batch, device=parents.device)[:, None]).view(-1))
            if dev.is_trie:
                edges = _first(dev, state.node) + _rank(dev, state.node, tokens.view(-1))
        else:
            tokens = token.reshape(batch, -1).gather(1, at)
            edges = edge.reshape(batch, -1).gather(1, at).view(-1)
    alive = best > -torch.inf
    reached = State(_follow(dev, edges)) if dev.is_trie else _reached(dev, state, tokens.view(-1))
    return Selection(best, parents, torch.where(alive, tokens, 0), _only(dev, alive.view(-1), reached))


@by_kind
def end_scores(dev: TorchTable, logits: Tensor, state: AnyState, renormalise: bool = False) -> Tensor:
    """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere; `renormalise` as in `select`."""
    check_rows(logits.shape[0], state.node.shape)
    last = log_softmax(mask_logits(dev, logits, state) if renormalise else logits)[:, dev.eos]
    return torch.where(accepting(dev, state) & (last <= torch.inf), last, -torch.inf)


@by_kind
def advance(dev: TorchTable, state: AnyState, tokens: Tensor) -> AnyState:
    """Return the state after one more token (B,) each; the dead state where it was not allowed."""
    check_tokens(state.node.shape[0], tokens.shape, _integers(tokens), tokens.dtype)
    _check_state(dev, state)
    tokens = tokens.long()  # before any comparison: a narrow type would wrap what it is compared with
    if dev.host is not None and _plain(tokens, *state):
        if not isinstance(state, NestedState):
            return State(torch.from_numpy(dev.host.walk(tokens.numpy()[:, None], state.node.numpy())))
        return _follow_on_host(dev.host, state, tokens)
    if dev.is_trie:
        edge, found = _edge_of(dev, state.node, tokens)
        reached: AnyState = State(torch.where(found, _follow(dev, edge), dev.dead))
    else:
        reached = _reached(dev, state, tokens)
    if dev.eos is None:
        return reached
    ended = torch.where(state.node < dev.num_rows, dev.after_eos, state.node)
    node = torch.where((tokens == dev.eos) & accepting(dev, state), ended, reached.node)
    return reached._replace(node=node)  # EOS leads to the dead state so far, with nothing on its stack


@by_kind
def log_mass(dev: TorchTable, logits: Tensor, state: AnyState) -> Tensor:
    """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold."""
    return torch.logsumexp(mask_logits(dev, log_softmax(logits), state), dim=-1)


@by_kind
def contains(dev: TorchTable, sids: Tensor) -> Tensor:
    """Return whether each row of sids (N, L) is in the set: bool (N,)."""
    check_sids(sids.shape)
    state = start(dev, sids.shape[0])
    for t in range(sids.shape[1]):
        state = advance(dev, state, sids[:, t])
    return accepting(dev, state)


@by_kind
def allowed_tokens(
    dev: TorchTable, state: AnyState, width: int, remaining: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the first `width` tokens that each state allows, and EOS: tokens (B, W), and which of them there are.

    W is `width`, and one more of a table with EOS, which has the last column. Tokens ascend; 0 where there are fewer.
    remaining: as for `bitmask`. width: at most what any state has, known of tries and of graphs without masks or calls.
    """
    edge, token, allowed = _expand(dev, state.node, width)
    if remaining is not None:
        _check_remaining(dev, state.node.shape[0], remaining)
    if remaining is not None or not dev.is_trie:
        last = None if remaining is None else (remaining.long().clamp(max=NEVER) - 1)[:, None]
        allowed = allowed & _fits(dev, torch.where(allowed, _follow(dev, edge), dev.dead), None, last)
    if dev.eos is not None:
        token = torch.cat([token, torch.full_like(token[:, :1], dev.eos)], dim=1)
        allowed = torch.cat([allowed, accepting(dev, state)[:, None]], dim=1)
    return torch.where(allowed, token, 0), allowed


# ------------------------------------------------------------------------- array functions for decoders


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row (B, n) and where they stand, largest first; -inf fills up where k > n.

    Exact, in two passes for wide rows: the k blocks with the largest maxima hold k of the largest scores, so only
    those are looked into. Measured 0.07 ms against 0.25 ms of `torch.topk` for k = 70 of 2 x 143,360 on a CPU.
    """
    batch, n = scores.shape
    if k > n:
        scores = torch.nn.functional.pad(scores, (0, k - n), value=-torch.inf)
    elif n >= 4 * k * _BLOCK:
        if n % _BLOCK:
            scores = torch.nn.functional.pad(scores, (0, _BLOCK - n % _BLOCK), value=-torch.inf)
        blocks = scores.view(batch, -1, _BLOCK)
        _, block = blocks.amax(dim=-1).topk(k)
        inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK)).view(batch, -1)
        best, at = inside.topk(k)
        return best, block.gather(1, at // _BLOCK) * _BLOCK + at % _BLOCK
    best, at = scores.topk(k)
    return best, at if k <= n else at.clamp(max=n - 1)


def top_of_beams(x: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of x (B, m, w) + scores (B, m) and where they stand in (B, m * w); NaN counts as -inf.

    As `top_k` does, but a beam's score is added to its blocks' maxima and to the blocks looked into, not to all of x:
    rounding keeps the order, so the result is the same. NaN fills whole rows of x.
    """
    batch, m, width = x.shape
    low = -torch.inf
    if width % _BLOCK or m * width < 4 * k * _BLOCK:
        totals = (x + scores[:, :, None]).nan_to_num_(nan=low, posinf=torch.inf, neginf=low)
        return top_k(totals.view(batch, -1), k)
    blocks = x.view(batch, -1, _BLOCK)
    highest = (blocks.amax(dim=-1).view(batch, m, -1) + scores[:, :, None]).view(batch, -1)
    _, block = highest.nan_to_num_(nan=low, posinf=torch.inf, neginf=low).topk(k)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))
    inside = inside + scores.gather(1, block // (width // _BLOCK))[:, :, None]
    best, at = inside.nan_to_num_(nan=low, posinf=torch.inf, neginf=low).view(batch, -1).topk(k)
    return best, block.gather(1, at // _BLOCK) * _BLOCK + at % _BLOCK


def take(array: Tensor, index: Tensor) -> Tensor:
    """Return array (B, n) gathered at index (B, k) along the second axis."""
    return array.gather(1, index)


def gather(cache: Any, index: Tensor) -> Any:
    """Return a tree of tensors gathered at index (n,) along each tensor's first axis."""

    def regather(leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"the cache holds a {type(leaf).__name__}: it must be a tree of tensors with the beams first, "
                "or pass gather= to regather it yourself"
            )
        return leaf.index_select(0, index)

    return map_tree(regather, cache)


@by_kind
def first_tokens(dev: TorchTable | None, cache: Any, count: int, token: int) -> Tensor:
    """Return `count` copies of the token a model is first fed with, where the table or else the cache is."""
    device = _device(cache) if dev is None else dev.row_start.device
    return torch.full((count,), token, dtype=torch.int64, device=device)


def _device(cache: Any) -> torch.device | None:
    """Return the device of the first tensor in a tree."""
    if isinstance(cache, Tensor):
        return cache.device
    leaves = cache.values() if isinstance(cache, dict) else cache if isinstance(cache, (list, tuple)) else ()
    return next((found for leaf in leaves if (found := _device(leaf)) is not None), None)


def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros on the device and of the type of `like`, in at least 32 bits."""
    return like.new_zeros(
        shape, dtype=torch.promote_types(like.dtype, torch.float32) if like.is_floating_point() else None
    )


def arange(n: int, like: Tensor) -> Tensor:
    """Return 0 .. n - 1, of the type and on the device of `like`."""
    return torch.arange(n, dtype=like.dtype, device=like.device)


def uniform(random: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return random numbers in [0, 1) of the type of `like`, from a torch.Generator on its device.

    random None: from torch's default generator, the only one that `torch.compile` takes.
    """
    if random is not None and not isinstance(random, torch.Generator):
        raise TypeError(
            "random must be a torch.Generator, as torch.Generator(device).manual_seed(seed) is one, or None for "
            f"torch's default one, not a {type(random).__name__}"
        )
    return torch.rand(shape, generator=random, dtype=like.dtype, device=like.device)


def split(random: Any) -> tuple[Any, Any]:
    """Return what to draw from now and what to draw from later: of torch one generator, which goes on."""
    return random, random


def logsumexp(x: Tensor) -> Tensor:
    """Return the logarithm of each row's sum of exponentials (B,); not finite for a row without a distribution."""
    return torch.logsumexp(x, dim=-1)


def lookup(array: Tensor, index: Tensor) -> Tensor:
    """Return array (n,) at indices of any shape."""
    return array.take(index)


def integers(x: Tensor, like: Tensor) -> Tensor:
    """Return whole numbers in the type of `like`."""
    return x.to(like.dtype)


def search(ascending: Tensor, query: Tensor) -> Tensor:
    """Return how many of ascending numbers (n,) are below each of query."""
    return torch.searchsorted(ascending, query)


def scatter(array: Tensor, index: Tensor, value: int) -> Tensor:
    """Return array (B, n) with a value at index (B, k)."""
    return array.scatter(1, index, value)


def keep(x: Tensor, mask: Tensor, size: int) -> Tensor:
    """Return x (B, n) with -inf where mask (B, >= size) is 0, and from column `size` on; a mask is 0 or -1."""
    mask = mask[:, :size]
    if x.dtype in (torch.float16, torch.bfloat16):
        mask = mask.to(torch.int16)
    if x.shape[1] == size:
        return _keep(x, mask)
    padding = x.new_full((x.shape[0], x.shape[1] - size), -torch.inf)
    return torch.cat([_keep(x[:, :size], mask), padding], dim=1)


def pack(mask: Tensor) -> Tensor:
    """Return a mask (B, n) of 0 and -1 as bits: int32 (B, ceil(n / 32))."""
    words = -(-mask.shape[1] // 32)
    bits = torch.nn.functional.pad(mask, (0, -mask.shape[1] % 32)).view(mask.shape[0], words, 32) & 1
    shifts = torch.arange(32, dtype=torch.int32, device=mask.device)
    return (bits << shifts).sum(dim=-1, dtype=torch.int32)


def unpack(words: Tensor, size: int) -> Tensor:
    """Return which of `size` bits are set in words (B, ceil(size / 32)): bool (B, size)."""
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> shifts) & 1).view(words.shape[0], -1)[:, :size].bool()


def keep_packed(x: Tensor, words: Tensor, size: int, in_place: bool = False) -> Tensor:
    """Return x (B, n) with -inf where no bit is set in words (B, ceil(size / 32)), and from column `size` on.

    in_place: write to x itself.
    """
    if _plain(words) and words.device.type == "cpu" and _writable(x):
        masks = np.ascontiguousarray(words.numpy()).view(np.uint32)
        if in_place:
            return _noted(_write_lowest(masks, x))
        return _write_lowest(masks, x.clone(memory_format=torch.contiguous_format))
    if (kernels := _triton_for(x)) is not None:
        if in_place:
            return _noted(kernels.apply(words, x, x))
        return kernels.apply(words, x, torch.empty_like(x, memory_format=torch.contiguous_format))
    if not in_place:
        return keep(x, -unpack(words, size).int(), size)
    forbidden = torch.nn.functional.pad(~unpack(words, size), (0, x.shape[1] - size), value=True)
    return x.masked_fill_(forbidden, -torch.inf)


def grown(array: Tensor) -> Tensor:
    """Return a tensor with as many rows again behind its own, which are 0."""
    with torch.inference_mode(False):
        return torch.cat([array, torch.zeros_like(array)])


def put_rows(array: Tensor, index: NDArray[Any], values: NDArray[Any]) -> Tensor:
    """Return a tensor with values (n, ..) of the host in rows index (n,); it is written to where it is."""
    with torch.inference_mode(False):
        at = torch.from_numpy(index).to(array.device)
        return array.index_copy_(0, at, torch.from_numpy(_signed(values)).to(array.device))


def known(*arrays: Tensor) -> bool:
    """Return whether the values of tensors can be read now, instead of being traced."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or any(
            x.is_meta or isinstance(x, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(x) for x in arrays
        )
        or (any(x.is_cuda for x in arrays) and torch.cuda.is_current_stream_capturing())
    )


def baked(*arrays: Tensor) -> bool:
    """Return whether what is computed from tensors is recorded, with all else where it is now."""
    if torch.compiler.is_compiling():  # which asks each time where tensors are
        return False
    capturing = any(x.is_cuda for x in arrays) and torch.cuda.is_current_stream_capturing()
    return capturing or torch._C._get_tracing_state() is not None


def sort(x: Tensor) -> Tensor:
    """Return each row (B, n) with the largest first."""
    return x.sort(dim=-1, descending=True).values


def surely(holds: Tensor) -> bool:
    """Return whether `holds` is so throughout and that can be known now: False where values are only traced."""
    recording = holds.is_cuda and torch.cuda.is_current_stream_capturing()
    return _plain(holds) and not recording and bool(holds.all())


def to_device(array: NDArray[Any], like: Tensor) -> Tensor:
    """Return an array of the host where `like` is."""
    return torch.as_tensor(array).to(like.device, non_blocking=True)


def to_host(array: Tensor) -> NDArray[Any]:
    """Return an array on the host, once it is there."""
    found: NDArray[Any] = array.detach().cpu().numpy()
    return found


where = torch.where
concatenate = torch.cat
exp = torch.exp
