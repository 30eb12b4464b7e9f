"""Walks on the host: where tokens lead, many rows at a time. Kernels only; `TransitionTable` checks their arguments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Bool, BoolArray, Int, Int32Array, IntArray, IntegerArray, place_of
from ..kernels.compiled import kernel
from .groups import Bases, Edges, Rows, TableArrays, TokenArray, TokenClasses

_ROWS_TOGETHER = 256  # one step of many rows at a time: their cache misses overlap
NO_EOS = -1


class Ends(NamedTuple):
    """What kernels need to know of a table besides its arrays."""

    vocab_size: int
    eos: int  # NO_EOS if there is none
    depth: int


@kernel
def walk_trie(
    edge_start: IntArray, edge_token: TokenArray, edge_target: IntArray, accepting: BoolArray, vocab_size: int,
    eos: int, tokens: IntegerArray, out: NDArray[np.int64],
) -> int:  # fmt: skip
    """Follow each row of tokens (N, L) of a trie from its state in out (N,), which gets the state that is reached.

    Return the index of a state that is outside the table, with nothing done, or -1. The search is written out, and
    arrays come one by one: a call for each token and groups of arrays made a step of 70 rows twice as long.
    """
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
                    if entry == token and token < vocab_size:
                        out[i] = state + 1
                    elif not (entry == vocab_size and token == eos and eos >= 0):
                        out[i] = dead
                    continue
                lo, hi = np.int64(edge_start[state]), np.int64(edge_start[state + 1])
                stop = hi
                while lo < hi:
                    mid = (lo + hi) >> 1
                    if np.int64(edge_token[mid]) < token:
                        lo = mid + 1
                    else:
                        hi = mid
                if lo < stop and np.int64(edge_token[lo]) == token:
                    out[i] = edge_target[lo]
                    continue
                if accepting[state] and token == eos and eos >= 0:
                    out[i] = dead - 1
                    continue
                out[i] = dead
    return -1


@kernel
def walk_graph(
    rows: Rows, edges: Edges, bases: Bases, classes: TokenClasses, ends: Ends, tokens: IntArray,
    out: NDArray[np.int64],
) -> int:  # fmt: skip
    """Do the same for a graph without calls."""
    edge_start, accepting, row_base, _ = rows
    edge_token, edge_target = edges
    masks, base_mask, class_list, target_start, base_target = bases
    class_start, class_token, class_number = classes
    vocab_size, eos, count = ends.vocab_size, ends.eos, edge_start.size - 1
    dead = count + 1
    for i in range(out.size):
        if out[i] < 0 or out[i] > dead:
            return i
    for block in range(0, tokens.shape[0], _ROWS_TOGETHER):
        last = min(block + _ROWS_TOGETHER, tokens.shape[0])
        for j in range(tokens.shape[1]):
            for i in range(block, last):
                state = out[i]
                token = np.int64(tokens[i, j])
                if state >= count:
                    out[i] = state if state < dead and token == eos and eos >= 0 else dead
                    continue
                found = place_of(edge_token, edge_start[state], edge_start[state + 1], token)
                if found >= 0:
                    out[i] = edge_target[found]
                    continue
                base = np.int64(row_base[state])
                if accepting[state] and token == eos and eos >= 0:
                    out[i] = dead - 1
                elif base < 0 or token < 0 or token >= vocab_size:
                    out[i] = dead
                elif (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                    listed = class_list[base]
                    found = place_of(class_token, class_start[listed], class_start[listed + 1], token)
                    code = np.int64(base_target[target_start[base] + (class_number[found] if found >= 0 else 0)])
                    out[i] = (code >> 1) + (code & 1) * state
                else:
                    out[i] = dead
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
    arrays: TableArrays, ends: Ends, code_frames_required: Int32Array, tokens: IntArray, node: NDArray[np.int64],
    stack: NDArray[np.int32], height: NDArray[np.int32],
) -> Int:  # fmt: skip
    """Follow each row of tokens (N, L) of a nested table, in place.

    Return the index of a row that is at no configuration of the table, with nothing done, or -1. It is one loop, and
    takes the arrays out of their groups before: handing groups on for each token took five times as long.
    """
    edge_start, accepting, row_base, _ = arrays.rows
    edge_token, edge_target = arrays.edges
    masks, base_mask, class_list, target_start, base_target = arrays.bases
    class_start, class_token, class_number = arrays.classes
    row_exit, base_exit, exit_start, exit_token, exit_symbol, _ = arrays.exits
    site_start, site_symbol, site_target, is_leaf, site_frames, row_site = arrays.sites
    action_state, push_start, push = arrays.actions
    vocab_size, eos, depth = ends.vocab_size, ends.eos, ends.depth
    rows = edge_start.size - 1
    dead = np.int64(rows + 1)
    stray = stray_row(rows, is_leaf.size, node, stack, height)
    if stray >= 0:
        return stray
    for i in range(node.size):
        state, frames, own = node[i], np.int64(height[i]), stack[i]
        own[frames:] = 0
        for j in range(tokens.shape[1]):
            token = np.int64(tokens[i, j])
            if state >= rows:
                if not (state < dead and token == eos and eos >= 0):
                    state = dead
                continue
            code, symbol = dead, np.int64(-1)
            found = place_of(edge_token, edge_start[state], edge_start[state + 1], token)
            listed = np.int64(row_exit[state]) if row_exit.size else np.int64(-1)
            left = np.int64(-1)  # the entry of an exit list
            if found < 0 and listed >= 0:
                left = np.int64(place_of(exit_token, exit_start[listed], exit_start[listed + 1], token))
            base = np.int64(row_base[state])
            if found >= 0:
                code = np.int64(edge_target[found])
            elif left >= 0:
                symbol = np.int64(exit_symbol[left])
            elif token == eos and eos >= 0:
                code = dead - 1 if accepting[state] and frames == 0 else dead
            elif base >= 0 and 0 <= token < vocab_size:
                site = np.int64(row_site[state]) if row_site.size else np.int64(-1)
                fits: Bool = True
                if site >= 0:
                    required = np.int64(not is_leaf[site])
                    if site_frames.size:
                        required = max(required, np.int64(site_frames[site]))
                    fits = counted_frames(is_leaf, own, frames) + required <= depth and frames < own.size
                    if fits:
                        own[frames] = site
                        frames += 1
                if fits and (masks[base_mask[base], token >> 5] >> np.uint32(token & 31)) & np.uint32(1):
                    classes = class_list[base]
                    found = place_of(class_token, class_start[classes], class_start[classes + 1], token)
                    code = np.int64(base_target[target_start[base] + (class_number[found] if found >= 0 else 0)])
                    code = (code >> 1) + (code & 1) * state
                elif fits and base_exit.size and base_exit[base] >= 0:
                    listed = np.int64(base_exit[base])
                    left = np.int64(place_of(exit_token, exit_start[listed], exit_start[listed + 1], token))
                    symbol = np.int64(exit_symbol[left]) if left >= 0 else np.int64(-1)
            while symbol >= 0 and frames > 0:  # leave frames until a return site says where to go on
                frames -= 1
                site = np.int64(own[frames])
                own[frames] = 0
                found = place_of(site_symbol, site_start[site], site_start[site + 1], symbol)
                code = np.int64(site_target[found]) if found >= 0 else dead
                symbol = np.int64(-1) if code >= 0 else -1 - code
            if symbol >= 0:
                code = dead
            if code < rows or code > dead:
                if counted_frames(is_leaf, own, frames) + code_frames_required[code] > depth:
                    code = dead
                elif code > dead:
                    first, stop = np.int64(push_start[code - dead - 1]), np.int64(push_start[code - dead])
                    if frames + stop - first > own.size:
                        code = dead
                    else:
                        for p in range(first, stop):
                            own[frames] = push[p]
                            frames += 1
                        code = np.int64(action_state[code - dead - 1])
            state = code
            if state >= rows:
                own[:] = 0
                frames = np.int64(0)
        node[i], height[i] = state, frames
    return -1


@kernel
def counted_frames(is_leaf: NDArray[np.bool_], stack: NDArray[np.int32], height: Int) -> Int:
    """Return how many of the lowest frames of a stack count towards the depth: those that are no leaves."""
    count = np.int64(0)
    for x in range(height):
        count += not is_leaf[stack[x]]
    return count
