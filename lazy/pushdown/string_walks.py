"""Walks of one string: simpler and faster than the general walk in `token_walk`, which explains the walk of a trie.

Three kinds of strings have a walk of their own: word tries, counted strings, and strings by their content. Each walk
stays within the string. Where a token leaves the string, or goes on where any characters may come, the walk notes a
*pending* part of the trie: a state, and the nodes to read from it. The general walk reads these parts afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...automata.state_ranges import DEAD, KEYS, PHASES, STRINGS, TEXTS
from ...automata.word_tries import KEY_BYTE, KEY_CHILD, KEY_LABEL, KEY_NEXT, OF_KEY, OF_USE
from ...kernels.arrays import Bool, Int, Int64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from ...vocabulary.token_trie import NODE_CHILD, NODE_STOP, NODE_TOKENS, OF_NODE
from .content_strings import content_at, content_of, leads_to_end
from .counted_strings import counted_code
from .header import AT_ANY_STRING, AT_KEYS, AT_LEVELS, AT_SCRATCH, MOST_PENDING, OF_CONTENT, OF_LEVEL, token_trie
from .mask_words import MaskWords, set_token
from .step import is_any_string
from .word_tries import leads_somewhere, site_of_use, use_at


class StringLevels(NamedTuple):
    """What a walk of one string keeps for each level of the trie."""

    at: Int64Array  # the next node
    stop: Int64Array  # the node after the last
    state: Int64Array
    more: Int64Array  # the next child in a word trie, or how many characters may begin


@kernel
def scratch_size(levels: Int) -> Int:
    """Return how many numbers of 64 bits a walk keeps for so many levels of the trie."""
    return levels * OF_LEVEL + (levels * levels >> 1) + 1


@kernel
def pending_parts(header: Int64Array) -> Int64Array:
    """Return the memory for pending parts: a state, the first node, and the node after the last, for each part."""
    return array_at(header[AT_SCRATCH] + 16 * scratch_size(header[AT_LEVELS]), 3 * MOST_PENDING, np.int64)


@kernel
def has_own_walk(header: Int64Array, state: Int) -> Bool:
    """Return whether a state has a walk of its own."""
    if STRINGS <= state < TEXTS:
        return not is_any_string(header, state)
    if state >= TEXTS:
        first = array_at(content_at(header, state), OF_CONTENT, np.int64)[0]
        return bool((state - first) % PHASES == 0)
    return KEYS <= state < STRINGS and site_of_use(header, state) >= 0


@kernel
def walk_string(header: Int64Array, start: Int, low: Int, high: Int, words: MaskWords) -> tuple[Int, Int]:
    """Set the bits of the tokens that a state reads within its string, from nodes low .. high on.

    The state is one that `has_own_walk`. Returns how many parts are pending, -1 if these are too many, and how many
    nodes were read.
    """
    levels = header[AT_LEVELS]
    where = header[AT_SCRATCH] + 8 * scratch_size(levels)  # a walk of pending parts comes later and may use it, too
    level = StringLevels(
        array_at(where, levels, np.int64), array_at(where + 8 * levels, levels, np.int64),
        array_at(where + 16 * levels, levels, np.int64), array_at(where + 24 * levels, levels, np.int64),
    )  # fmt: skip
    level.at[0], level.stop[0] = low, high
    if STRINGS <= start < TEXTS:
        return _walk_counted(header, start, words, level, pending_parts(header))
    if start >= TEXTS:
        return _walk_content(header, start, words, level, pending_parts(header))
    return _walk_words(header, start, words, level, pending_parts(header))


@kernel
def _walk_words(
    header: Int64Array, start: Int, words: MaskWords, level: StringLevels, pending: Int64Array
) -> tuple[Int, Int]:
    """Walk as `walk_string` does, from a word state."""
    byte, node, _, token = token_trie(header)
    at, stop, state, next_one = level
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    first, _, trie, site = array_at(use_at(header, start), OF_USE, np.int64)
    d, left, work = np.int64(0), np.int64(0), np.int64(0)
    state[0] = start - first + trie
    next_one[0] = keys[OF_KEY * state[0] + KEY_CHILD]
    while d >= 0:
        i, last, here, child = at[d], stop[d], state[d], next_one[d]
        ends, found = keys[OF_KEY * here + KEY_LABEL] >= 0, False
        while i < last:
            b = byte[i]
            if b == 0x22 and ends:
                if left == MOST_PENDING:
                    return np.int64(-1), work
                pending[3 * left], pending[3 * left + 1], pending[3 * left + 2] = here - trie + first, i, i + 1
                left += 1
            while child >= 0 and keys[OF_KEY * child + KEY_BYTE] < b:
                child = np.int64(keys[OF_KEY * child + KEY_NEXT])
            if child < 0 and (not ends or b >= 0x22):
                break
            if child >= 0 and keys[OF_KEY * child + KEY_BYTE] == b:
                found = True
                break
            i += 1
        if not found:
            d -= 1
            continue
        at[d], next_one[d] = i + 1, child
        several = ends or keys[OF_KEY * np.int64(keys[OF_KEY * here + KEY_CHILD]) + KEY_NEXT] >= 0
        if several and not leads_somewhere(header, keys, child, site):
            continue
        work += 1
        n = OF_NODE * i
        for x in range(node[n + NODE_TOKENS], node[n + NODE_TOKENS + 1]):
            set_token(words, token[x], True)
        if node[n + NODE_CHILD] < node[n + NODE_STOP]:
            d += 1
            at[d], stop[d], state[d] = node[n + NODE_CHILD], node[n + NODE_STOP], child
            next_one[d] = keys[OF_KEY * child + KEY_CHILD]
    return left, work


@kernel
def _walk_counted(
    header: Int64Array, start: Int, words: MaskWords, level: StringLevels, pending: Int64Array
) -> tuple[Int, Int]:
    """Walk as `walk_string` does, from a state of a counted string."""
    byte, node, _, token = token_trie(header)
    at, stop, state, _ = level
    d, left, work = np.int64(0), np.int64(0), np.int64(0)
    state[0] = start
    while d >= 0:
        i = at[d]
        if i == stop[d]:
            d -= 1
            continue
        at[d] = i + 1
        code, n = counted_code(header, state[d], np.int64(byte[i])), OF_NODE * i
        if code == DEAD:
            continue
        work += 1
        under, end = np.int64(node[n + NODE_CHILD]), np.int64(node[n + NODE_STOP])
        if code < 0:
            under, end, code = i, i + 1, state[d]  # the end of the string
        else:
            for x in range(node[n + NODE_TOKENS], node[n + NODE_TOKENS + 1]):
                set_token(words, token[x], True)
            if under == end:
                continue
            if code >= STRINGS:
                d += 1
                at[d], stop[d], state[d] = under, end, code
                continue
        if left == MOST_PENDING:
            return np.int64(-1), work
        pending[3 * left], pending[3 * left + 1], pending[3 * left + 2] = code, under, end
        left += 1
    return left, work


@kernel
def _walk_content(
    header: Int64Array, start: Int, words: MaskWords, level: StringLevels, pending: Int64Array
) -> tuple[Int, Int]:
    """Walk as `walk_string` does, from a state of a string by its content, outside escapes."""
    byte, node, _, token = token_trie(header)
    at, stop, state, rest = level
    first, class_of, transition, label, needed, free, q, begin, most, _ = content_of(content_at(header, start), start)
    width, d, left, work = transition.size // label.size, np.int64(0), np.int64(0), np.int64(0)
    state[0], rest[0] = q, begin + 1
    while d >= 0:
        i, last, q, may = at[d], stop[d], state[d], rest[d]
        to = after = np.int64(-1)
        while i < last:
            b = np.int64(byte[i])
            if b == 0x5C or (b == 0x22 and label[q] >= 0):
                if left == MOST_PENDING:
                    return np.int64(-1), work
                pending[3 * left] = first + PHASES * (q + (most - may if most >= 0 else 0) * label.size)
                pending[3 * left + 1], pending[3 * left + 2] = i, i + 1
                left += 1
            elif b >= 0x20 and b != 0x22:
                to, after = np.int64(transition[q * width + class_of[b]]), may - (b & 0xC0 != 0x80)
                if to == free or leads_to_end(needed, after, to):
                    break
            i += 1
        if i == last:
            d -= 1
            continue
        at[d] = i + 1
        if to < 0:  # there is no free state
            continue
        work += 1
        n = OF_NODE * i
        for x in range(node[n + NODE_TOKENS], node[n + NODE_TOKENS + 1]):
            set_token(words, token[x], True)
        if node[n + NODE_CHILD] == node[n + NODE_STOP]:
            continue
        if to == free:
            if left == MOST_PENDING:
                return np.int64(-1), work
            pending[3 * left], pending[3 * left + 1] = header[AT_ANY_STRING], node[n + NODE_CHILD]
            pending[3 * left + 2] = node[n + NODE_STOP]
            left += 1
            continue
        d += 1
        at[d], stop[d] = node[n + NODE_CHILD], node[n + NODE_STOP]
        state[d], rest[d] = to, after
    return left, work
