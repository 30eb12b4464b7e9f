"""Following one token from each state in one Triton launch: a program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .....table.states import NestedState
from ...device_table import AnyState, State
from ..table import TorchTable
from .launch import launch
from .layout import (
    ACTION_PUSH,
    ACTION_START,
    ACTION_STATE,
    BASE_EXIT,
    BASE_EXITS,
    BASE_PUSH,
    BASE_PUSHES,
    DEPTH,
    EDGE_TARGET,
    EDGE_TOKEN,
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
    POPS,
    RANK,
    ROW_EXIT,
    ROW_EXITS,
    SITE_FRAMES,
    SITE_ROOM,
    SLOTS,
    VOCAB_SIZE,
    header_of,
)
from .reading import (
    array,
    base_of,
    find_token,
    first_edge,
    frames_of,
    has_room,
    height_at,
    in_mask,
    may_end,
    node_at,
    number,
    site_target,
    target_in_base,
)

OPTIONS = {"num_warps": 1}


def advance(dev: TorchTable, state: AnyState, tokens: Tensor) -> AnyState:
    """Return the states after one more token (n,) each, as `states.advance` does, of a table that `edges.is_narrow`.

    One launch. tokens: any integers.
    """
    node, calls = state.node.contiguous(), dev.calls
    width = 0 if calls is None else triton.next_power_of_2(calls.slots)
    rows, out = node.shape[0], torch.empty_like(node)
    stack = height = node
    reached_stack = reached_height = out
    if isinstance(state, NestedState):
        stack, height = state.stack.int().contiguous(), state.height.int().contiguous()
        reached_stack, reached_height = torch.empty_like(stack), torch.empty_like(height)
    if rows:
        launch(
            _follow, (rows,), header_of(dev), node, stack, height, tokens.contiguous(), out, reached_stack,
            reached_height, KIND=0 if dev.is_trie else 1 if calls is None else 2, TOKEN=dev.edge_token.element_size(),
            RANKS=dev.rank.element_size(), WIDTH=width, **OPTIONS,
        )  # fmt: skip
    return State(out) if calls is None else NestedState(out, reached_stack, reached_height)


# Triton evaluates annotations inside its kernels and refuses names such as Any: only constants carry one.
@triton.jit  # type: ignore[untyped-decorator]
def _follow(  # type: ignore[no-untyped-def]
    header,
    nodes,
    stacks,
    heights,
    tokens,
    out,
    out_stacks,
    out_heights,
    KIND: tl.constexpr,
    TOKEN: tl.constexpr,
    RANKS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Follow the token of one row. KIND: 0 of a trie, 1 of a graph, 2 of a nested table. RANKS: bytes of a rank.

    WIDTH: at least as many as a stack has slots, a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    node = node_at(header, nodes, row)
    given = tl.load(tokens + row).to(tl.int64)
    known = (given >= 0) & (given < number(header, VOCAB_SIZE))
    token = tl.where(known, given, 0).to(tl.int32)
    dead, rows = number(header, NUM_STATES) - 1, number(header, NUM_ROWS)
    eos = number(header, EOS)
    ends = (eos >= 0) & (given == eos)
    height = 0
    if KIND == 2:
        height = height_at(header, heights, row)
    ends = ends & (height == 0) & may_end(header, node, TOKEN)
    ended = tl.where(node < rows, dead - 1, node)
    if KIND == 2:
        slots = number(header, SLOTS)
        stack, out_stack = stacks + row * slots, out_stacks + row * slots
        code, left, pushed = _resolve(header, node, stack, height, token, TOKEN)
        _enter(header, tl.where(known, code, dead), left, pushed, ends, ended, stack, out + row, out_stack,
               out_heights + row, WIDTH)  # fmt: skip
    else:
        if KIND == 0:
            reached = _along_trie(header, node, token, TOKEN, RANKS)
        else:
            reached = _along_graph(header, node, token, TOKEN)
        reached = tl.where(known, reached, dead)
        tl.store(out + row, tl.where(ends, ended, reached).to(tl.int64))


@triton.jit  # type: ignore[untyped-decorator]
def _along_trie(header, node, token, TOKEN: tl.constexpr, RANKS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return where a token leads from a state of a trie: the dead state if nowhere."""
    low = first_edge(header, node)
    base = base_of(header, node)
    if base == number(header, NO_BASE):
        edge, found = find_token(header, EDGE_TOKEN, low, first_edge(header, node + 1), token, TOKEN)
    else:  # as many edges come before the token's as bits before its own in the mask
        at = base.to(tl.int64) * (4 * number(header, MASK_WORDS)) + (token >> 3)
        byte = tl.load(tl.load(header + MASKS).to(tl.pointer_type(tl.int8)) + at).to(tl.int32) & 0xFF
        if RANKS == 2:
            rank = tl.load(tl.load(header + RANK).to(tl.pointer_type(tl.int16)) + at).to(tl.int32) & 0xFFFF
        else:
            rank = tl.load(array(header, RANK) + at)
        before = byte & ((tl.full([], 1, tl.int32) << (token & 7)) - 1)
        for bit in range(7):
            rank += (before >> bit) & 1
        edge = low + rank
        found = ((byte >> (token & 7)) & 1) != 0
    edges = tl.load(header + NUM_EDGES).to(tl.int32)
    target = tl.load(array(header, EDGE_TARGET) + edge, mask=found & (edge < edges), other=0)
    target = tl.where(edge < edges, target, edge + (number(header, NUM_ROWS) - edges + 1))
    return tl.where(found, target, number(header, NUM_STATES) - 1)


@triton.jit  # type: ignore[untyped-decorator]
def _along_graph(header, node, token, TOKEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return where a token leads from a state of a graph: the dead state if nowhere."""
    edge, own = find_token(header, EDGE_TOKEN, first_edge(header, node), first_edge(header, node + 1), token, TOKEN)
    target = tl.load(array(header, EDGE_TARGET) + edge, mask=own, other=0)
    if ~own:
        target = number(header, NUM_STATES) - 1
        base = base_of(header, node)
        if in_mask(header, base, token, True):
            target = target_in_base(header, node, base, token, TOKEN)
    return target


@triton.jit  # type: ignore[untyped-decorator]
def _resolve(header, node, stack, height, token, TOKEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the code that a token of a nested table comes to, the frames left below it, and a site on them or -1.

    Own edges come first, then exits of the row, then the base's mask, then exits of the base. The code is the dead
    state where the token is not allowed.
    """
    dead = number(header, NUM_STATES) - 1
    target, pushed = dead, -1
    edge, own = find_token(header, EDGE_TOKEN, first_edge(header, node), first_edge(header, node + 1), token, TOKEN)
    if own:
        target = tl.load(array(header, EDGE_TARGET) + edge)
    else:
        if number(header, ROW_EXITS) > 0:
            exits = tl.load(array(header, ROW_EXIT) + tl.minimum(node, number(header, ROW_EXITS) - 1))
            target, own = _exit_of(header, exits, token, dead, TOKEN)
    frames = frames_of(header, stack, height)
    if ~own:
        base = base_of(header, node)
        if number(header, BASE_PUSHES) > 0:
            pushed = tl.load(array(header, BASE_PUSH) + tl.minimum(node, number(header, BASE_PUSHES) - 1))
        fits = True
        if pushed >= 0:
            needed = frames + tl.load(array(header, SITE_ROOM) + pushed)
            fits = (needed <= number(header, DEPTH)) & (height + 1 <= number(header, SLOTS))
        if fits:
            if in_mask(header, base, token, True):
                target = target_in_base(header, node, base, token, TOKEN)
            elif number(header, BASE_EXITS) > 0:
                exits = tl.load(array(header, BASE_EXIT) + base)
                target, _ = _exit_of(header, exits, token, dead, TOKEN)
    # a symbol leaves the frame on top for a code, or for a symbol that leaves the next
    left, popped, site = height, 0, -1
    if target < 0:
        site = pushed  # which it leaves first
        pushed = -1
    while (target < 0) & (popped < number(header, POPS)) & ((left > 0) | (site >= 0)):
        if site < 0:
            left -= 1
            site = tl.load(stack + left)
            frames -= tl.load(array(header, SITE_FRAMES) + site)
        target = site_target(header, site, -1 - target, True)
        popped += 1
        site = -1
    top = left
    if pushed >= 0:
        frames += tl.load(array(header, SITE_FRAMES) + pushed)
        top = left + 1
    room = has_room(header, target, target >= 0, frames, top)
    return tl.where(room, target, dead), left, pushed


@triton.jit  # type: ignore[untyped-decorator]
def _exit_of(header, exits, token, none, TOKEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return -1 - y, where y is the symbol of a token in an exit list, or `none` and False if it is not in the list."""
    starts = array(header, EXIT_START) + exits
    at, found = find_token(header, EXIT_TOKEN, tl.load(starts), tl.load(starts + 1), token, TOKEN)
    symbol = tl.load(array(header, EXIT_SYMBOL) + at, mask=found, other=0)
    return tl.where(found, -1 - symbol, none), found


@triton.jit  # type: ignore[untyped-decorator]
def _enter(  # type: ignore[no-untyped-def]
    header,
    code,
    left,
    pushed,
    ends,
    ended,
    stack,
    out,
    out_stack,
    out_height,
    WIDTH: tl.constexpr,
):
    """Write the state after a code from the `left` lowest frames of a stack, with a site or -1 on them."""
    dead, rows = number(header, NUM_STATES) - 1, number(header, NUM_ROWS)
    action = tl.maximum(code - dead, 0)
    starts = array(header, ACTION_START) + action
    first = tl.load(starts)
    opened = tl.load(starts + 1) - first
    node = code
    height = 0
    if action > 0:
        node = tl.load(array(header, ACTION_STATE) + action)
        height = left + opened
    elif code < rows:
        height = left
        if pushed >= 0:
            height = left + 1
    if ends:
        node = ended
        height = 0
    tl.store(out, node.to(tl.int64))
    tl.store(out_height, height)
    slot = tl.arange(0, WIDTH)
    over = slot - left
    kept = tl.load(stack + slot, mask=(slot < height) & (over < 0), other=0)
    new = tl.load(
        array(header, ACTION_PUSH) + first + over, mask=(slot < height) & (over >= 0) & (over < opened), other=0
    )
    site = tl.where(over < 0, kept, new)
    site = tl.where((over == 0) & (pushed >= 0), pushed, site)
    tl.store(out_stack + slot, tl.where(slot < height, site, 0), mask=slot < number(header, SLOTS))
