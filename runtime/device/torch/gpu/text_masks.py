"""Packed masks of states in one Triton launch: a program a row, with loops as long as that row's own lists.

As on the host (`host/nested_masks.py`), a mask starts as a copy of the base's. The classes of the base that may not be
followed are taken out, exits add what the stack makes of their symbols, and the row's own edges have the last word.
Tokens of one list differ, so its bits are set and cleared in any order; a barrier stands between two lists.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .....table.states import NestedState
from ...device_table import AnyState
from ..table import TorchTable
from .launch import launch
from .layout import (
    BASE_CLASSES,
    BASE_EXIT,
    BASE_EXITS,
    BASE_MASK,
    BASE_PUSH,
    BASE_PUSHES,
    CLASS_ID,
    CLASS_START,
    CLASS_TOKEN,
    DEPTH,
    EDGE_TARGET,
    EDGE_TOKEN,
    END_DISTANCE,
    EOS,
    EXIT_START,
    EXIT_SYMBOL,
    EXIT_TOKEN,
    MASK_WORDS,
    MASKS,
    NO_BASE,
    NUM_EDGES,
    NUM_ROWS,
    NUM_STATES,
    OTHERS,
    POPS,
    ROW_EXIT,
    ROW_EXITS,
    SITE_DISTANCE,
    SITE_DISTANCE_ROOM,
    SITE_END_STEP,
    SITE_FRAMES,
    SITE_OTHER_STEP,
    SITE_ROOM,
    SITE_ROOM_END_STEP,
    SITE_ROOM_OTHER_STEP,
    SITE_ROOM_STEP,
    SITE_STEP,
    SLOTS,
    STATE_ROOMS,
    VOCAB_SIZE,
    header_of,
)
from .reading import (
    array,
    base_of,
    class_target,
    first_edge,
    frames_of,
    has_room,
    height_at,
    in_mask,
    is_near,
    may_end,
    node_at,
    number,
    site_target,
    tokens_at,
)

_BLOCK = tl.constexpr(256)  # entries of a list, and words of a mask, that a program takes at once
_MANY_ENDS = 9  # from more of them on a program needs more registers


def launch_options(ends: int) -> dict[str, int]:
    """Return how the kernel is compiled. Left to choose, the assembler takes 40 registers and spills one."""
    return {"num_warps": 4, "maxnreg": 96 if ends <= _MANY_ENDS else 255}


def bitmask(dev: TorchTable, state: AnyState, remaining: Tensor | None) -> Tensor:
    """Return packed masks as `masks.bitmask` does, of a table that `edges.is_narrow`; one launch."""
    node = state.node.contiguous()
    rows, calls = node.shape[0], dev.calls
    out = torch.empty(rows, -(-dev.vocab_size // 32), dtype=torch.int32, device=node.device)
    if not rows:
        return out
    ends = 0 if remaining is None else 1 if dev.distance.ndim == 1 else dev.distance.shape[0]
    stack = height = node
    heights = 1
    if calls is not None:
        assert isinstance(state, NestedState)
        stack, height, heights = state.stack.int().contiguous(), state.height.contiguous(), calls.slots + 2
    far = torch.empty(rows, heights * max(ends, 1), dtype=torch.int64, device=node.device) if ends else node
    launch(
        _write_masks, (rows,), header_of(dev), node, stack, height,
        node if remaining is None else remaining.contiguous(), far, out,
        KIND=0 if dev.is_trie else 1 if calls is None else 2, TOKEN=dev.edge_token.element_size(),
        ENDS=ends, **launch_options(ends),
    )  # fmt: skip
    return out


# Triton evaluates annotations inside its kernels and refuses names such as Any: only constants carry one.
@triton.jit  # type: ignore[untyped-decorator]
def _write_masks(  # type: ignore[no-untyped-def]
    header,
    nodes,
    stacks,
    heights,
    remaining,
    far,
    out,
    KIND: tl.constexpr,
    TOKEN: tl.constexpr,
    ENDS: tl.constexpr,
):
    """Write the mask of one row. KIND: 0 of a trie, 1 of a graph, 2 of a nested table."""
    row = tl.program_id(0).to(tl.int64)
    node = node_at(header, nodes, row)
    out += row * ((number(header, VOCAB_SIZE) + 31) // 32)
    base = base_of(header, node)
    height, frames, pushed, base_height, base_frames = 0, 0, -1, 0, 0
    slots = number(header, SLOTS)
    stack = stacks + row * slots
    last = tl.full([], 0, tl.int64)
    if ENDS > 0:
        far += row * (slots + (2 if KIND == 2 else 1)) * ENDS
        last = tl.minimum(tl.maximum(tl.load(remaining + row).to(tl.int64), 0), 2147483647) - 1
    if KIND == 2:
        height = height_at(header, heights, row)
        frames = frames_of(header, stack, height)
        if number(header, BASE_PUSHES) > 0:
            pushed = tl.load(array(header, BASE_PUSH) + tl.minimum(node, number(header, BASE_PUSHES) - 1))
        base_height, base_frames = height, frames
        if pushed >= 0:
            base_height = height + 1
            needed = frames + tl.load(array(header, SITE_ROOM) + pushed)
            base_frames = frames + tl.load(array(header, SITE_FRAMES) + pushed)
            if (needed > number(header, DEPTH)) | (base_height > slots):
                base = number(header, NO_BASE)
    if ENDS > 0:
        _write_far(header, stack, height, base_height, pushed, far, KIND, ENDS)
        tl.debug_barrier()
    _write_base(header, node, base, base_frames, base_height, far, last, out, KIND, TOKEN, ENDS)
    if KIND == 2:
        if number(header, BASE_EXITS) > 0:
            exits = tl.load(array(header, BASE_EXIT) + base)
            _write_exits(header, exits, base, pushed, stack, height, frames, far, last, out, TOKEN, ENDS)
            tl.debug_barrier()
        if number(header, ROW_EXITS) > 0:
            exits = tl.load(array(header, ROW_EXIT) + tl.minimum(node, number(header, ROW_EXITS) - 1))
            none = number(header, NO_BASE)
            _write_exits(header, exits, none, -1, stack, height, frames, far, last, out, TOKEN, ENDS)
            tl.debug_barrier()
    if (KIND > 0) | (ENDS > 0) | (base == number(header, NO_BASE)):  # the mask of a trie's row says all of its edges
        _write_edges(header, node, frames, height, far, last, out, KIND, TOKEN, ENDS)
        tl.debug_barrier()
    eos = number(header, EOS)
    if (eos >= 0) & (height == 0) & may_end(header, node, TOKEN):
        tl.atomic_or(out + (eos >> 5), tl.full([], 1, tl.int32) << (eos & 31), sem="relaxed", scope="cta")


@triton.jit  # type: ignore[untyped-decorator]
def _write_far(header, stack, height, top, pushed, far, KIND: tl.constexpr, ENDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the tokens in which 0, 1, .. `top` of the lowest frames are left, by ends: far (top + 1, ENDS) int64.

    pushed: the site above `height` frames, where `top` is one more.
    """
    if ENDS == 1:
        so_far = tl.full([], 0, tl.int64)
        tl.store(far, so_far)
        if KIND == 2:
            for at in range(top):
                site = pushed
                if at < height:
                    site = tl.load(stack + at)
                so_far += tl.load(array(header, SITE_DISTANCE) + site)
                tl.store(far + at + 1, so_far)
    else:
        WIDTH: tl.constexpr = triton.next_power_of_2(ENDS)
        end = tl.arange(0, WIDTH)
        so_far = tl.where(end == 0, 0, 2147483647).to(tl.int64)
        tl.store(far + end, so_far, mask=end < ENDS)
        inside = (end < ENDS)[:, None] & (end < number(header, OTHERS))[None, :]
        places = end[:, None] * tl.load(header + SITE_END_STEP) + end[None, :] * tl.load(header + SITE_OTHER_STEP)
        rooms = end[:, None] * tl.load(header + SITE_ROOM_END_STEP)
        rooms += end[None, :] * tl.load(header + SITE_ROOM_OTHER_STEP)
        limited = tl.load(header + SITE_ROOM_STEP) > 0
        frames = 0
        for at in range(top):
            site = pushed
            if at < height:
                site = tl.load(stack + at)
            steps = tl.load(
                array(header, END_DISTANCE) + places + site * tl.load(header + SITE_STEP), mask=inside, other=2147483647
            )
            if limited:
                room = array(header, SITE_DISTANCE_ROOM) + rooms + site * tl.load(header + SITE_ROOM_STEP)
                fits = frames + tl.load(room, mask=inside, other=0) <= number(header, DEPTH)
                steps = tl.where(fits, steps, 2147483647)
            so_far = tl.min(steps.to(tl.int64) + so_far[None, :], axis=1)
            frames += tl.load(array(header, SITE_FRAMES) + site)
            tl.store(far + (at + 1) * ENDS + end, so_far, mask=end < ENDS)


@triton.jit  # type: ignore[untyped-decorator]
def _fits(  # type: ignore[no-untyped-def]
    header,
    code,
    inside,
    frames,
    height,
    far,
    last,
    KIND: tl.constexpr,
    ENDS: tl.constexpr,
):
    """Return whether codes may be followed from a stack of a height, `frames` of which are no leaves."""
    if KIND == 2:
        fits = has_room(header, code, inside, frames, height)
    else:
        fits = inside & (code != number(header, NUM_STATES) - 1)
    if ENDS > 0:
        fits = is_near(header, code, fits, frames, far + height * ENDS, last, ENDS)
    return fits


@triton.jit
def _write(out, token, inside, value):  # type: ignore[no-untyped-def]
    """Set or clear the bits of tokens that are inside."""
    bit = tl.full(token.shape, 1, tl.int32) << (token & 31)
    tl.atomic_or(out + (token >> 5), bit, mask=inside & value, sem="relaxed", scope="cta")
    tl.atomic_and(out + (token >> 5), ~bit, mask=inside & ~value, sem="relaxed", scope="cta")


@triton.jit  # type: ignore[untyped-decorator]
def _write_base(  # type: ignore[no-untyped-def]
    header,
    node,
    base,
    frames,
    height,
    far,
    last,
    out,
    KIND: tl.constexpr,
    TOKEN: tl.constexpr,
    ENDS: tl.constexpr,
):
    """Write what a base allows; frames, height: of the stack with the site that its tokens push."""
    lane = tl.arange(0, _BLOCK)
    limited = (KIND > 0) & ((ENDS > 0) | (number(header, STATE_ROOMS) > 0))
    shown = base
    if (KIND == 2) & (frames > number(header, DEPTH)):  # a state that no text leads to
        shown = number(header, NO_BASE)
    if limited:  # what classes lead to may be too far from an end, or need too much room
        zero = class_target(header, node, base, 0, True)
        if ~_fits(header, zero, True, frames, height, far, last, KIND, ENDS):
            shown = number(header, NO_BASE)
    words = (number(header, VOCAB_SIZE) + 31) // 32
    mask = tl.load(array(header, BASE_MASK) + shown).to(tl.int64) * number(header, MASK_WORDS)
    source = array(header, MASKS) + mask
    for first in range(0, words, _BLOCK):
        at = first + lane
        tl.store(out + at, tl.load(source + at, mask=at < words, other=0), mask=at < words)
    tl.debug_barrier()
    if limited:
        starts = array(header, CLASS_START) + tl.load(array(header, BASE_CLASSES) + base)
        stop = tl.load(starts + 1)
        for first in range(tl.load(starts), stop, _BLOCK):
            at = first + lane
            inside = at < stop
            token = tokens_at(header, CLASS_TOKEN, at, inside, TOKEN)
            name = tl.load(array(header, CLASS_ID) + at, mask=inside, other=0)
            target = class_target(header, node, base, name, inside)
            fits = _fits(header, target, inside, frames, height, far, last, KIND, ENDS)
            _write(out, token, inside, fits & in_mask(header, base, token, inside))
        tl.debug_barrier()


@triton.jit  # type: ignore[untyped-decorator]
def _write_exits(  # type: ignore[no-untyped-def]
    header,
    exits,
    base,
    pushed,
    stack,
    height,
    frames,
    far,
    last,
    out,
    TOKEN: tl.constexpr,
    ENDS: tl.constexpr,
):
    """Write what an exit list allows, but for tokens of the mask of a base. pushed: a site on the stack besides, or -1.

    A symbol leaves the frame on top for a code, or for a symbol that leaves the next.
    """
    lane = tl.arange(0, _BLOCK)
    starts = array(header, EXIT_START) + exits
    stop = tl.load(starts + 1)
    pops = number(header, POPS)
    for first in range(tl.load(starts), stop, _BLOCK):
        at = first + lane
        inside = at < stop
        token = tokens_at(header, EXIT_TOKEN, at, inside, TOKEN)
        inside = inside & ~in_mask(header, base, token, inside)
        symbol = tl.load(array(header, EXIT_SYMBOL) + at, mask=inside, other=0)
        leaving, allowed = inside, inside & False
        below, left, popped = height, frames, 0
        site = pushed
        while (popped < pops) & (tl.max(leaving.to(tl.int32), axis=0) > 0) & ((below > 0) | (site >= 0)):
            if site < 0:
                below -= 1
                site = tl.load(stack + below)
                left -= tl.load(array(header, SITE_FRAMES) + site)
            target = site_target(header, site, symbol, leaving)
            arrived = leaving & (target >= 0)
            allowed = allowed | _fits(header, target, arrived, left, below, far, last, 2, ENDS)
            leaving = leaving & (target < 0)
            symbol = tl.where(leaving, -1 - target, 0)
            popped += 1
            site = -1
        _write(out, token, inside, allowed)


@triton.jit  # type: ignore[untyped-decorator]
def _write_edges(  # type: ignore[no-untyped-def]
    header,
    node,
    frames,
    height,
    far,
    last,
    out,
    KIND: tl.constexpr,
    TOKEN: tl.constexpr,
    ENDS: tl.constexpr,
):
    """Write what a row's own edges say."""
    lane = tl.arange(0, _BLOCK)
    stop = first_edge(header, node + 1)
    edges, rows = tl.load(header + NUM_EDGES).to(tl.int32), number(header, NUM_ROWS)
    for first in range(first_edge(header, node), stop, _BLOCK):
        at = first + lane
        token = tokens_at(header, EDGE_TOKEN, at, at < stop, TOKEN)
        inside = (at < stop) & (token < number(header, VOCAB_SIZE))
        here = inside & (at < edges)
        target = tl.load(array(header, EDGE_TARGET) + at, mask=here, other=0)
        target = tl.where(at < edges, target, at + (rows - edges + 1))
        _write(out, token, inside, _fits(header, target, inside, frames, height, far, last, KIND, ENDS))
