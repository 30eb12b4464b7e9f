"""Walks on the host: where tokens lead, many rows at a time. Kernels only; `TransitionTable` checks their arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.bits import has_bit
from ..kernels.compiled import kernel
from ..kernels.search import place_of
from .groups import Int32Array, TableArrays

_ROWS_TOGETHER = 256  # one step of many rows at a time: their cache misses overlap
NO_EOS = -1


class Ends(NamedTuple):
    """What kernels need to know of a table besides its arrays."""

    vocab_size: int
    eos: int  # NO_EOS if there is none
    depth: int
    is_trie: bool


@kernel
def base_target(arrays: TableArrays, state: int, base: int, token: int) -> Any:
    """Return the state that a token of a base's mask leads to from a state."""
    bases, classes = arrays.bases, arrays.classes
    listed = bases.class_list[base]
    entry = place_of(classes.token, classes.start[listed], classes.start[listed + 1], token)
    number = classes.number[entry] if entry >= 0 else 0
    code = np.int64(bases.target[bases.target_start[base] + number])
    return (code >> 1) + (code & 1) * state


@kernel
def walk(arrays: TableArrays, ends: Ends, tokens: NDArray[Any], out: NDArray[np.int64]) -> int:
    """Follow each row of tokens (N, L) from its state in out (N,), which gets the state that is reached.

    Return the index of a state that is outside the table, with nothing done, or -1.
    """
    edge_start, edge_token, edge_target = arrays.rows.edge_start, arrays.edges.token, arrays.edges.target
    rows, edges = edge_start.size - 1, edge_target.size
    dead = rows + edge_token.size - edges - 1
    for i in range(out.size):
        if out[i] < 0 or out[i] > dead:
            return i
    for block in range(0, tokens.shape[0], _ROWS_TOGETHER):
        last = min(block + _ROWS_TOGETHER, tokens.shape[0])
        for j in range(tokens.shape[1]):
            for i in range(block, last):
                state = out[i]
                token = np.int64(tokens[i, j])
                if state >= rows:
                    entry = np.int64(edge_token[edges + state - rows])
                    if entry == token and token < ends.vocab_size:
                        out[i] = state + 1
                    elif not (entry == ends.vocab_size and token == ends.eos and ends.eos >= 0):
                        out[i] = dead
                    continue
                found = place_of(edge_token, edge_start[state], edge_start[state + 1], token)
                if found >= 0:
                    out[i] = edge_target[found]
                elif arrays.rows.accepting[state] and token == ends.eos and ends.eos >= 0:
                    out[i] = dead - 1
                else:
                    out[i] = dead
                    if ends.is_trie or arrays.rows.base[state] < 0 or token < 0 or token >= ends.vocab_size:
                        continue
                    base = arrays.rows.base[state]
                    if has_bit(arrays.bases.masks[arrays.bases.mask[base]], token):
                        out[i] = base_target(arrays, state, base, token)
    return -1


@kernel
def stray_row(
    rows: int, sites: int, node: NDArray[np.int64], stack: NDArray[np.int32], height: NDArray[np.int32]
) -> int:
    """Return the first configuration (n,) that a nested table of so many rows and sites does not have, or -1."""
    for i in range(node.size):
        if not (0 <= node[i] <= rows + 1 and 0 <= height[i] <= (stack.shape[1] if node[i] < rows else 0)):
            return i
        for j in range(height[i]):
            if not 0 <= stack[i, j] < sites:
                return i
    return -1


@kernel
def follow(
    arrays: TableArrays, ends: Ends, code_frames_required: Int32Array, tokens: NDArray[Any], node: NDArray[np.int64],
    stack: NDArray[np.int32], height: NDArray[np.int32],
) -> Any:  # fmt: skip
    """Follow each row of tokens (N, L) of a nested table, in place.

    Return the index of a row that is at no configuration of the table, with nothing done, or -1.
    """
    rows = arrays.rows.edge_start.size - 1
    stray = stray_row(rows, arrays.sites.is_leaf.size, node, stack, height)
    if stray >= 0:
        return stray
    for i in range(node.size):
        state, frames = node[i], np.int64(height[i])
        stack[i, frames:] = 0
        for j in range(tokens.shape[1]):
            token = np.int64(tokens[i, j])
            if state >= rows:
                if not (state < rows + 1 and token == ends.eos and ends.eos >= 0):
                    state = rows + 1
                continue
            code, frames = _code_of(arrays, ends, token, state, stack[i], frames)
            state, frames = _enter(arrays, ends, code_frames_required, code, stack[i], frames)
        node[i], height[i] = state, frames
    return -1


@kernel
def counted_frames(is_leaf: NDArray[np.bool_], stack: NDArray[np.int32], height: int) -> Any:
    """Return how many of the lowest frames of a stack count towards the depth: those that are no leaves."""
    count = np.int64(0)
    for x in range(height):
        count += not is_leaf[stack[x]]
    return count


@kernel
def _code_of(arrays: TableArrays, ends: Ends, token: int, state: int, stack: Any, height: int) -> Any:
    """Return the code that a token leads to from a row, and the height of the stack, which is popped and pushed to."""
    rows, edges, exits, sites = arrays.rows, arrays.edges, arrays.exits, arrays.sites
    dead = np.int64(rows.edge_start.size)
    found = place_of(edges.token, rows.edge_start[state], rows.edge_start[state + 1], token)
    if found >= 0:
        return np.int64(edges.target[found]), height
    own = exits.of_row[state] if exits.of_row.size else -1
    if own >= 0:
        found = place_of(exits.token, exits.start[own], exits.start[own + 1], token)
        if found >= 0:
            return _resolve(arrays, dead, exits.symbol[found], stack, height)
    if token == ends.eos and ends.eos >= 0:
        return (dead - 1 if rows.accepting[state] and height == 0 else dead), height
    base = rows.base[state]
    if base < 0 or token < 0 or token >= ends.vocab_size:
        return dead, height
    site = sites.of_row[state] if sites.of_row.size else -1
    if site >= 0:
        required = np.int64(not sites.is_leaf[site])
        if sites.frames_required.size:
            required = max(required, np.int64(sites.frames_required[site]))
        if counted_frames(sites.is_leaf, stack, height) + required > ends.depth or height >= stack.size:
            return dead, height
        stack[height] = site
        height += 1
    if has_bit(arrays.bases.masks[arrays.bases.mask[base]], token):
        return np.int64(base_target(arrays, state, base, token)), height
    if exits.of_base.size and exits.of_base[base] >= 0:
        listed = exits.of_base[base]
        found = place_of(exits.token, exits.start[listed], exits.start[listed + 1], token)
        if found >= 0:
            return _resolve(arrays, dead, exits.symbol[found], stack, height)
    return dead, height


@kernel
def _resolve(arrays: TableArrays, dead: int, symbol: Any, stack: Any, height: int) -> Any:
    """Leave frames with a symbol until a return site says where to go on; return its code and the height."""
    sites = arrays.sites
    while height > 0:
        height -= 1
        site = stack[height]
        stack[height] = 0
        found = place_of(sites.symbol, sites.start[site], sites.start[site + 1], symbol)
        if found < 0:
            break
        code = np.int64(sites.target[found])
        if code >= 0:
            return code, height
        symbol = -1 - code
    return dead, height


@kernel
def _enter(
    arrays: TableArrays, ends: Ends, code_frames_required: Int32Array, code: int, stack: Any, height: Any
) -> Any:
    """Return the state and the height that a code leads to: its sites are pushed if there is room for its frames."""
    actions = arrays.actions
    rows = arrays.rows.edge_start.size - 1
    dead = np.int64(rows + 1)
    state = np.int64(code)
    if state < rows or state > dead:
        if counted_frames(arrays.sites.is_leaf, stack, height) + code_frames_required[state] > ends.depth:
            state = dead
        elif state > dead:
            action = state - dead - 1
            first, stop = np.int64(actions.push_start[action]), np.int64(actions.push_start[action + 1])
            if height + stop - first > stack.size:
                state = dead
            else:
                for p in range(first, stop):
                    stack[height] = actions.push[p]
                    height += 1
                state = np.int64(actions.state[action])
    if state >= rows:
        stack[:] = 0
        height = np.int64(0)
    return state, height
