"""Tokens and masks of a lazy grammar: kernels that follow many cells, and work out those that nobody has looked at."""

from __future__ import annotations

import numpy as np

from ...kernels.arrays import Int, Int64Array, Uint32Array
from ...kernels.compiled import kernel
from ...kernels.deadline import is_late
from ...kernels.pointers import array_at
from ...vocabulary.characters import BEHIND, BYTE_GROUP, UNCLEAN
from .header import (
    AT_BYTE,
    AT_CELLS,
    AT_CLASS_OF,
    AT_CONTENT,
    AT_DEPTH,
    AT_LOOPS,
    AT_ROOT_START,
    AT_SKIP,
    AT_TEXT,
    AT_TEXT_START,
    AT_TOKEN,
    AT_TOKEN_START,
    DEAD,
    MANY_TOKENS,
    NUM_CLASSES,
    NUM_LEVELS,
    NUM_STATES,
    UNKNOWN,
    UNSEEN,
)
from .step import next_state


@kernel
def follow_token(header: Int64Array, state: Int, token: Int) -> int:
    """Return the state that a token's bytes lead to, DEAD also if it has none, or FULL minus a place."""
    start = array_at(header[AT_TEXT_START], header[AT_TEXT_START + 1], np.int64)
    text = array_at(header[AT_TEXT], header[AT_TEXT + 1], np.uint8)
    class_of = array_at(header[AT_CLASS_OF], header[AT_CLASS_OF + 1], np.int32)
    cells = array_at(header[AT_CELLS], header[AT_CELLS + 1], np.int32)
    classes = header[NUM_CLASSES]
    here = np.int64(state)
    if start[token] == start[token + 1]:
        return DEAD
    for x in range(start[token], start[token + 1]):
        symbol = class_of[text[x]]
        to = np.int64(cells[here * classes + symbol])
        if to == UNKNOWN:
            to = np.int64(next_state(header, here, np.int64(symbol)))
        if to < 0:
            return int(to)
        here = to
    return int(here)


@kernel
def spread(header: Int64Array, done: Int) -> Int:
    """Work out all cells of some states behind the first `done`; return how many are done, or FULL minus a place."""
    classes = header[NUM_CLASSES]
    stop = min(header[NUM_STATES], done + 256)
    for state in range(done, stop):
        if is_late():
            return np.int64(state)
        for symbol in range(classes):
            found = next_state(header, np.int64(state), np.int64(symbol))
            if found < DEAD:
                return found
    return np.int64(stop)


@kernel
def _loops_of(header: Int64Array, state: Int) -> tuple[np.uint64, Int]:
    """Return the groups of characters that lead from a state back to it, and 0, or FULL minus a place."""
    class_of = array_at(header[AT_CLASS_OF], header[AT_CLASS_OF + 1], np.int32)
    loops = array_at(header[AT_LOOPS], header[AT_LOOPS + 1], np.uint64)
    if loops[state] != UNSEEN:
        return loops[state], np.int64(0)
    out = np.uint64(1) << np.uint64(UNCLEAN)  # the groups that do not
    for b in range(0xF5):
        group = np.uint64(1) << np.uint64(BYTE_GROUP[b])
        if out & group:
            continue
        here = next_state(header, np.int64(state), np.int64(class_of[b]))
        low, high = BEHIND[b, 0], BEHIND[b, 1]
        for _ in range(BEHIND[b, 2]):
            if here < 0:
                break
            after = next_state(header, here, np.int64(class_of[low]))
            for c in range(low + 1, high + 1):
                if class_of[c] != class_of[c - 1]:
                    other = next_state(header, here, np.int64(class_of[c]))
                    if other != after:
                        after = min(after, other, np.int64(DEAD))
                        break
            here = after
            low, high = 0x80, 0xBF
        if here < DEAD:
            return np.uint64(0), here
        if here != state:
            out |= group
    loops[state] = ~out
    return ~out, np.int64(0)


@kernel
def write_mask(header: Int64Array, start: Int, out: Uint32Array) -> Int:
    """Write the mask of a state, without EOS; return 0, or FULL minus a place.

    The walk of the trie, in depth-first order, goes as `lazy.pushdown.token_walk` says.
    """
    class_of = array_at(header[AT_CLASS_OF], header[AT_CLASS_OF + 1], np.int32)
    cells = array_at(header[AT_CELLS], header[AT_CELLS + 1], np.int32)
    byte = array_at(header[AT_BYTE], header[AT_BYTE + 1], np.uint8)
    skip = array_at(header[AT_SKIP], header[AT_SKIP + 1], np.int32)
    depth = array_at(header[AT_DEPTH], header[AT_DEPTH + 1], np.uint16)
    content = array_at(header[AT_CONTENT], header[AT_CONTENT + 1], np.uint64)
    token_start = array_at(header[AT_TOKEN_START], header[AT_TOKEN_START + 1], np.int32)
    token = array_at(header[AT_TOKEN], header[AT_TOKEN + 1], np.int32)
    root_start = array_at(header[AT_ROOT_START], header[AT_ROOT_START + 1], np.int32)
    loops = array_at(header[AT_LOOPS], header[AT_LOOPS + 1], np.uint64)
    classes = header[NUM_CLASSES]
    states = np.empty(header[NUM_LEVELS] + 1, np.int64)
    one = np.uint32(1)
    out[:] = np.uint32(0)
    states[0] = start
    for b in range(256):
        i, last = np.int64(root_start[b]), np.int64(root_start[b + 1])
        if i == last:
            continue
        to = np.int64(cells[states[0] * classes + class_of[b]])
        if to == UNKNOWN:
            to = np.int64(next_state(header, states[0], np.int64(class_of[b])))
        if to < DEAD:
            return to
        if to == DEAD:
            continue
        while i < last:
            d = np.int64(depth[i])
            before = states[d - 1]
            symbol = class_of[byte[i]]
            to = np.int64(cells[before * classes + symbol])
            if to < 0:
                if to == UNKNOWN:
                    to = np.int64(next_state(header, before, np.int64(symbol)))
                if to < DEAD:
                    return to
                if to == DEAD:
                    i = np.int64(skip[i])
                    continue
            below = np.int64(skip[i])
            first, stop = token_start[i], token_start[i + 1]
            groups = loops[before]
            if groups == UNSEEN:
                groups = np.uint64(0)
                if token_start[below] - first > MANY_TOKENS:
                    groups, full = _loops_of(header, before)
                    if full < 0:
                        return full
            if content[i] & ~groups == 0:
                stop, i = token_start[below], below - 1
            for x in range(first, stop):
                out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
            states[d] = to
            i += 1
    return np.int64(0)
