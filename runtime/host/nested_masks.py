"""Packed masks of tables with calls: what a configuration, a state with a stack of return sites, allows.

A mask starts as a copy of the base's. Exits add what the stack makes of their symbols, and the row's own edges have the
last word. Where the stack has room for whatever may be pushed, and there is no budget, no token is looked at twice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...kernels.arrays import Int, Int32Array, place_of
from ...kernels.compiled import kernel
from ...kernels.limits import UNREACHABLE
from ...kernels.pointers import borrowed
from ...table.groups import TokenArray
from ...table.states import NestedState, configuration_out_of_range
from ...table.walk import stray_row
from .budget import NO_BUDGET, Budget, borrowed_budget, budget_of, tokens_left
from .table_pointers import (
    ARRAY,
    CODE_NEED,
    DEPTH,
    EOS,
    MOST_NEED,
    MOST_PUSHES,
    ROWS,
    SLOTS,
    SYMBOLS,
    WORDS,
    HostTable,
    array_of,
    leaves_of,
    pointers_of,
)

_Header = NDArray[np.int64]
_Mask = NDArray[np.uint32]
_Flags = NDArray[np.uint8]


def compose_nested(table: HostTable, state: NestedState, remaining: NDArray[np.int64] | None = None) -> _Mask:
    """Return the masks (n, ceil(V / 32)) of configurations (n,) of a nested table, EOS included where accepting.

    remaining: (n,) tokens that may still be written, EOS aside; only tokens from whose target an end can be reached
    within the others are set.
    """
    out = np.empty((len(state.node), -(-table.vocab_size // 32)), np.uint32)
    compose_nested_into(table, state, out, remaining)
    return out


def compose_nested_into(
    table: HostTable, state: NestedState, out: _Mask, remaining: NDArray[np.int64] | None = None
) -> None:
    """Write the masks of configurations (n,) into out (n, ceil(V / 32)); see `compose_nested`.

    Raises ValueError for a configuration that the table does not have.
    """
    node = np.ascontiguousarray(state.node, np.int64)  # another type would compile the kernels once more
    stack = np.ascontiguousarray(state.stack, np.int32)
    height = np.ascontiguousarray(state.height, np.int32)
    if node.ndim != 1 or stack.shape != (node.size, table.slots) or height.shape != node.shape:
        raise ValueError(
            f"a state of this table has node and height (n,) and stack (n, {table.slots}), "
            f"not {node.shape}, {height.shape} and {stack.shape}"
        )
    if remaining is None:
        room, budget = np.full(node.size, UNREACHABLE, np.int64), NO_BUDGET
    else:
        room, budget = tokens_left(remaining), budget_of(table)
    stray = _compose_nested(pointers_of(table).header, table.arrays.edges.token, budget, node, stack, height, room, out)
    if stray >= 0:
        raise configuration_out_of_range(table, state, int(stray))


@kernel
def _compose_nested(
    header: _Header, edge_token: TokenArray, budget: Budget, node: NDArray[np.int64], stack: Int32Array,
    height: Int32Array, room: NDArray[np.int64], out: _Mask,
) -> Int:  # fmt: skip
    """Write masks; return the index of a configuration that the table does not have, or -1."""
    budget, edge_token = borrowed_budget(budget), borrowed(edge_token)  # rows hand them on: see `borrowed`
    alive = np.zeros(header[SYMBOLS], np.uint8)
    stray = stray_row(header[ROWS], leaves_of(header).size, node, stack, height)
    if stray >= 0:
        return stray
    for i in range(node.size):
        mask_row(header, edge_token, budget, node[i], stack[i, : height[i]], room[i], out[i], alive)
    return -1


@kernel
def mask_one(
    header: _Header, edge_token: TokenArray, code_distance: NDArray[np.int64], site_distance: NDArray[np.int64],
    code_room: NDArray[np.int64], site_room: NDArray[np.int64], node: int, stack: Int32Array, room: int, out: _Mask,
) -> int:  # fmt: skip
    """Write the mask of one configuration into out (ceil(V / 32),) and return how many sites it depends on.

    Those are sites from the top of the stack (h,) down, and one more if it depends on there being no more. header: of
    `TablePointers`. The four after edge_token are the fields of a `Budget`: in one argument they would take a
    microsecond more.
    """
    alive = np.zeros(header[SYMBOLS], np.uint8)
    budget = Budget(code_distance, site_distance, code_room, site_room)
    return int(mask_row(header, edge_token, budget, np.int64(node), stack, room, out, alive))


@kernel
def mask_row(
    header: _Header, edge_token: TokenArray, budget: Budget, s: Int, stack: Int32Array, room: Int, out: _Mask,
    alive: _Flags,
) -> Int:  # fmt: skip
    """Write the mask of one configuration and return how many sites it depends on; alive: (Y,) zeros, as afterwards."""
    rows, eos, depth = header[ROWS], header[EOS], header[DEPTH]
    if s >= rows:
        out[:] = np.uint32(0)
        if s < rows + 1 and eos >= 0:
            out[eos >> 5] |= np.uint32(1) << np.uint32(eos & 31)
        return np.int64(0)
    is_leaf = leaves_of(header)
    base_exit = array_of(header, ARRAY.exits.of_base, np.int32)
    row_exit, base_push = array_of(header, ARRAY.exits.of_row, np.int32), array_of(header, ARRAY.sites.of_row, np.int32)
    height = np.int64(stack.size)
    counted = budget.code_distance.size > 0
    limited = counted or height + header[MOST_NEED] > depth or height + header[MOST_PUSHES] > header[SLOTS]
    # below the distance of what cannot end; no less than 0 before 1 is taken from it, which the least number would wrap
    last = min(max(np.int64(room), np.int64(0)), np.int64(UNREACHABLE)) - 1
    frames = np.int64(0)
    far = np.empty((height + 2 if counted else 0, budget.code_distance.shape[1]), np.int64)
    if counted:
        far[0] = UNREACHABLE
        far[0, 0] = 0
    if limited:
        for x in range(height):
            if counted:
                _return_to(budget, stack[x], far, x, depth - frames)
            frames += not is_leaf[stack[x]]
    base = np.int64(array_of(header, ARRAY.rows.base, np.int32)[s])
    push = np.int64(base_push[s]) if base_push.size and base >= 0 else np.int64(-1)
    base_frames, base_height = frames, height
    if push >= 0:
        if limited:
            if not _may_push(header, push, frames, height):
                base = np.int64(-1)
            elif counted:
                _return_to(budget, push, far, height, depth - frames)
        base_frames += not is_leaf[push]
        base_height += 1
    _write_base(header, edge_token, budget, s, base, limited, base_frames, base_height, far, last, out)
    looked = np.int64(0)
    mask = header[WORDS] * array_of(header, ARRAY.bases.mask, np.int32)[base] if base >= 0 else np.int64(0)
    exits = np.int64(base_exit[base]) if base >= 0 and base_exit.size else np.int64(-1)
    if exits >= 0:
        looked = np.int64(_mark(header, budget, push, stack, limited, base_frames, far, last, alive))
        _write_exits(header, edge_token, exits, mask if limited else np.int64(-1), False, out, alive)
        _unmark(header, push, stack, alive)
    exits = np.int64(row_exit[s]) if row_exit.size else np.int64(-1)
    if exits >= 0:
        looked = max(looked, np.int64(_mark(header, budget, np.int64(-1), stack, limited, frames, far, last, alive)))
        _write_exits(header, edge_token, exits, np.int64(-1), True, out, alive)
        _unmark(header, np.int64(-1), stack, alive)
    _write_edges(header, edge_token, budget, s, limited, frames, height, far, last, out)
    if array_of(header, ARRAY.rows.accepting, np.uint8)[s]:
        looked = max(looked, np.int64(1))
        if height == 0 and eos >= 0:
            out[eos >> 5] |= np.uint32(1) << np.uint32(eos & 31)
    return looked


@kernel
def _write_base(
    header: _Header, edge_token: TokenArray, budget: Budget, s: Int, base: Int, limited: bool, frames: Int, height: Int,
    far: NDArray[np.int64], room: Int, out: _Mask,
) -> None:  # fmt: skip
    """Write what a base allows, nothing below 0; frames, height: of the stack with the site that its tokens push."""
    words, rows = header[WORDS], header[ROWS]
    if base < 0:
        out[:] = np.uint32(0)
        return
    masks = array_of(header, ARRAY.bases.masks, np.uint32)
    mask = words * array_of(header, ARRAY.bases.mask, np.int32)[base]
    if not limited:
        for w in range(words):
            out[w] = masks[mask + w]
        return
    base_target = array_of(header, ARRAY.bases.target, np.int32)
    class_start, class_id = (
        array_of(header, ARRAY.classes.start, np.int32), array_of(header, ARRAY.classes.number, np.int32),
    )  # fmt: skip
    class_token = array_of(header, ARRAY.classes.token, edge_token.dtype)
    base_start = array_of(header, ARRAY.bases.target_start, np.int32)
    first = np.int64(base_start[base])
    classes = array_of(header, ARRAY.bases.class_list, np.int32)[base]
    fits = np.zeros(base_start[base + 1] - first, np.uint8)
    for x in range(fits.size):
        code = np.int64(base_target[first + x])
        code = (code >> 1) + (code & 1) * s
        if 0 <= code < rows:  # otherwise the row's own edges and exits take all tokens that lead there
            fits[x] = _fits(header, budget, code, frames, height, far, room)
    for w in range(words):
        out[w] = masks[mask + w] if fits[0] else np.uint32(0)
    for x in range(class_start[classes], class_start[classes + 1]):
        token = np.int64(class_token[x])
        bit = masks[mask + (token >> 5)] & (np.uint32(1) << np.uint32(token & 31))
        out[token >> 5] = (out[token >> 5] | bit) if fits[class_id[x]] else (out[token >> 5] & ~bit)


@kernel
def _write_exits(
    header: _Header, edge_token: TokenArray, exits: Int, mask: Int, own: bool, out: _Mask, alive: _Flags
) -> None:
    """Write what an exit list allows. own: the row's list, which overrides its base.

    mask: where the base's mask begins if tokens of it are to stay as they are, otherwise -1.
    """
    exit_start, exit_symbol = (
        array_of(header, ARRAY.exits.start, np.int32), array_of(header, ARRAY.exits.symbol, np.int32),
    )  # fmt: skip
    exit_token = array_of(header, ARRAY.exits.token, edge_token.dtype)
    masks = array_of(header, ARRAY.bases.masks, np.uint32)
    for x in range(exit_start[exits], exit_start[exits + 1]):
        token = np.int64(exit_token[x])
        bit = np.uint32(token & 31)
        live = np.uint32(alive[exit_symbol[x]])
        if own:
            out[token >> 5] = (out[token >> 5] & ~(np.uint32(1) << bit)) | (live << bit)
        elif mask >= 0:  # a token of the base's mask is none of its exits
            out[token >> 5] |= (live << bit) & ~masks[mask + (token >> 5)]
        else:
            out[token >> 5] |= live << bit


@kernel
def _write_edges(
    header: _Header, edge_token: TokenArray, budget: Budget, s: Int, limited: bool, frames: Int, height: Int,
    far: NDArray[np.int64], room: Int, out: _Mask,
) -> None:  # fmt: skip
    """Write what the row's own edges say."""
    row_start = array_of(header, ARRAY.rows.edge_start, np.int32)
    edge_target = array_of(header, ARRAY.edges.target, np.int32)
    dead = header[ROWS] + 1
    for e in range(row_start[s], row_start[s + 1]):
        token = np.int64(edge_token[e])
        bit = np.uint32(1) << np.uint32(token & 31)
        code = np.int64(edge_target[e])
        if code == dead or (limited and not _fits(header, budget, code, frames, height, far, room)):
            out[token >> 5] &= ~bit
        else:
            out[token >> 5] |= bit


@kernel
def _may_push(header: _Header, site: Int, frames: Int, height: Int) -> bool:
    """Return whether a site fits onto a stack of so many frames that are no leaves."""
    site_need = array_of(header, ARRAY.sites.frames_required, np.int32)
    needed = np.int64(not leaves_of(header)[site])
    if site_need.size:
        needed = max(needed, np.int64(site_need[site]))
    return not (frames + needed > header[DEPTH] or height + 1 > header[SLOTS])


@kernel
def _fits(
    header: _Header, budget: Budget, code: Int, frames: Int, height: Int, far: NDArray[np.int64], room: Int
) -> bool:
    """Return whether a code may be followed from a stack of a height, with that many frames that are no leaves.

    far: (slots + 2, C) the distances of the stack by its height. room: the tokens that may be written from there on.
    """
    rows = header[ROWS]
    if code == rows + 1 or frames + array_of(header, CODE_NEED, np.int32)[code] > header[DEPTH]:
        return False
    if code > rows + 1:
        action_start = array_of(header, ARRAY.actions.push_start, np.int32)
        action = code - rows - 2
        if height + action_start[action + 1] - action_start[action] > header[SLOTS]:
            return False
    if budget.code_distance.size == 0:
        return True
    for end in range(budget.code_distance.shape[1]):
        if budget.code_distance[code, end] + far[height, end] <= room and (
            budget.code_frames.size == 0 or frames + budget.code_frames[code, end] <= header[DEPTH]
        ):
            return True
    return False


@kernel
def _return_to(budget: Budget, site: Int, far: NDArray[np.int64], height: Int, left: int) -> None:
    """Write the distances of a stack with one more site on it, behind those of as much as lies below it.

    left: how many more frames fit onto what lies below.
    """
    for end in range(budget.site_distance.shape[1]):
        least = np.int64(UNREACHABLE)
        for other in range(budget.site_distance.shape[2]):
            if budget.site_frames.size == 0 or budget.site_frames[site, end, other] <= left:
                least = min(least, budget.site_distance[site, end, other] + far[height, other])
        far[height + 1, end] = least


@kernel
def _mark(
    header: _Header, budget: Budget, push: Int, stack: Int32Array, limited: bool, frames: Int, far: NDArray[np.int64],
    room: Int, alive: _Flags,
) -> Int:  # fmt: skip
    """Set alive[y] to whether symbol y is allowed, for each symbol of the site on top; return the sites looked at.

    push: a site that lies on the stack in addition, or -1. frames: of the stack with it. far: as of `_fits`.
    """
    dead = header[ROWS] + 1
    site_start, site_symbol = (
        array_of(header, ARRAY.sites.start, np.int32), array_of(header, ARRAY.sites.symbol, np.int32),
    )  # fmt: skip
    site_target, is_leaf = array_of(header, ARRAY.sites.target, np.int32), leaves_of(header)
    bottom = np.int64(stack.size)
    top = np.int64(push)
    if push < 0:
        if bottom == 0:
            return np.int64(1)
        bottom -= 1
        top = np.int64(stack[bottom])
    looked = stack.size - bottom
    for x in range(site_start[top], site_start[top + 1]):
        code, height = np.int64(site_target[x]), bottom
        k = top
        left = frames - (not is_leaf[k])
        while code < 0:
            if height == 0:
                looked = np.int64(stack.size + 1)
                code = dead
                break
            height -= 1
            looked = max(looked, np.int64(stack.size - height))
            k = np.int64(stack[height])
            left -= not is_leaf[k]
            found = place_of(site_symbol, site_start[k], site_start[k + 1], -1 - code)
            code = np.int64(site_target[found]) if found >= 0 else dead
        if limited:
            alive[site_symbol[x]] = _fits(header, budget, code, left, height, far, room)
        else:
            alive[site_symbol[x]] = code != dead
    return looked


@kernel
def _unmark(header: _Header, push: Int, stack: Int32Array, alive: _Flags) -> None:
    """Set alive to 0 again for each symbol of the site on top: see `_mark`."""
    if push < 0 and stack.size == 0:
        return
    top = push if push >= 0 else np.int64(stack[stack.size - 1])
    site_start, site_symbol = (
        array_of(header, ARRAY.sites.start, np.int32), array_of(header, ARRAY.sites.symbol, np.int32),
    )  # fmt: skip
    for x in range(site_start[top], site_start[top + 1]):
        alive[site_symbol[x]] = 0
