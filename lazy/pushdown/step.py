"""What a state of any kind does with one byte, and with a whole token.

A *code* is a state to go to, a call, a return with a label, or DEAD: see `automata.pushdown`. States below `KEYS` have
a row of codes. The codes of all others are worked out.
"""

from __future__ import annotations

import numpy as np

from ...automata.state_ranges import CALL, DEAD, KEEP, KEYS, RETURN, STRINGS, TEXTS, UNWRITTEN
from ...automata.word_tries import KEY_LIKE, OF_KEY, OF_USE
from ...kernels.arrays import Bool, Int, Int32Array, Int64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from .content_strings import content_at, content_code
from .counted_strings import counted_code, string_at
from .header import (
    AT_ANY_STRING,
    AT_CALLS,
    AT_KEYS,
    AT_LEVELS,
    AT_PUSHED,
    AT_ROWS,
    AT_SITE_START,
    AT_SITE_STATES,
    AT_TEMPLATES,
    HEADER,
    NEEDS_SITES,
    NEEDS_STATE,
)
from .word_tries import use_at, word_code


@kernel
def code_without_row(header: Int64Array, here: Int, byte: Int) -> Int:
    """Return the code of a state without a row and a byte."""
    if here < STRINGS:
        return word_code(header, use_at(header, here), here, byte)
    if here < TEXTS:
        return counted_code(header, here, byte)
    return content_code(header, content_at(header, here), here, byte)


@kernel
def code_of(header: Int64Array, rows: Int32Array, here: Int, byte: Int) -> Int:
    """Return the code of a state and a byte."""
    return np.int64(rows[here << 8 | byte]) if here < KEYS else code_without_row(header, here, byte)


@kernel
def is_state_or_dead(code: Int) -> Bool:
    """Return whether a code is a state or DEAD."""
    return code > 0 or code == DEAD


@kernel
def is_any_string(header: Int64Array, state: Int) -> Bool:
    """Return whether a state reads every token that lies within a string, as any string does.

    That holds in a counted string far from its bound, and towards a key where any other key may come.
    """
    if state < KEYS:
        if state == header[AT_ANY_STRING]:
            return True
        templates = array_at(header[AT_TEMPLATES], header[AT_TEMPLATES + 1], np.int32)  # (2, n)
        n = templates.size >> 1
        # a row of a trie of keys pushes a site with the string: the key may still become any other
        return state < n and templates[state] == header[AT_ANY_STRING] and templates[n + state] >= 0
    if state < STRINGS:
        keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
        first, _, trie, _ = array_at(use_at(header, state), OF_USE, np.int64)
        return bool(keys[OF_KEY * (state - first + trie) + KEY_LIKE] == header[AT_ANY_STRING])
    if state >= TEXTS:
        return False
    first, states, _, high = string_at(header, state)
    k = (state - first) // states
    return state == first + k * states and (high < 0 or high - k >= header[AT_LEVELS])


@kernel
def read_token(header_at: int, node: int, text: bytes, sites: bytes) -> tuple[Int, Int, Int]:
    """Read a token from a state.

    header_at: the address of the header. sites: the open return sites, or some on top, int32, as bytes.

    Returns (the state that the token leads to, how many of the sites it pops, how many it pushes). The pushed sites are
    at `AT_PUSHED`. In place of the state it returns DEAD if the token is not allowed; (NEEDS_STATE, state) if that
    state must be written first; NEEDS_SITES if the token pops more sites than were passed.
    """
    header = array_at(header_at, HEADER, np.int64)
    rows = array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)
    calls = array_at(header[AT_CALLS], header[AT_CALLS + 1], np.int32)
    site_start = array_at(header[AT_SITE_START], header[AT_SITE_START + 1], np.int32)
    site_states = array_at(header[AT_SITE_STATES], header[AT_SITE_STATES + 1], np.int32)
    pushed = array_at(header[AT_PUSHED], header[AT_PUSHED + 1], np.int32)
    open_sites = np.frombuffer(sites, np.int32)
    here: Int = node
    nothing = np.int64(0)
    at = popped = height = nothing
    while at < len(text):
        code = code_of(header, rows, here, np.int64(text[at]))
        if code > 0:
            here = code
            at += 1
        elif code == DEAD:
            return np.int64(DEAD), nothing, nothing
        elif code <= CALL:
            pushed[height], here = calls[2 * (CALL - code)], np.int64(calls[2 * (CALL - code) + 1])
            height += 1
            at += 1
        elif code == UNWRITTEN:
            return np.int64(NEEDS_STATE), here, nothing
        else:
            if height:
                height -= 1
                site = np.int64(pushed[height])
            elif popped < open_sites.size:
                popped += 1
                site = np.int64(open_sites[open_sites.size - popped])
            else:
                return np.int64(NEEDS_SITES), nothing, nothing
            to = site_start[site] + (RETURN - code if code > KEEP else KEEP - code)
            here = np.int64(site_states[to] if to < site_start[site + 1] else DEAD)
            if here < 0:
                return np.int64(DEAD), nothing, nothing
            at += code > KEEP
    return here, popped, height
