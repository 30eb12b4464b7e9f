"""States of word tries: strings, such as keys, that must spell one of some words.

A word trie has no rows. Its states, from `KEYS` on, are nodes of a trie of words (`AT_KEYS`), once for each *use* of
the trie in a schema (`AT_USES`). A use names the return site that says where each word leads, or leaves that to the
site on top of the stack.
"""

from __future__ import annotations

import numpy as np

from ...automata.state_ranges import DEAD, RETURN
from ...automata.word_tries import (
    KEY_BYTE,
    KEY_CHILD,
    KEY_END,
    KEY_ESCAPE,
    KEY_LABEL,
    KEY_LIKE,
    KEY_NEXT,
    KEY_STOP,
    OF_KEY,
    OF_USE,
    USE_SITE,
)
from ...kernels.arrays import ByteArray, Int, Int32Array, Int64Array, Uint64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from ...vocabulary.token_trie import NODE_CHARACTERS
from .header import (
    AT_ANY_STRING,
    AT_ANY_STRING_GROUPS,
    AT_KEYS,
    AT_ROWS,
    AT_SITE_START,
    AT_SITE_STATES,
    AT_USES,
    SETS_OF_NODE,
    record_of,
)


@kernel
def use_at(header: Int64Array, here: Int) -> Int:
    """Return the address of the record of the use that a state belongs to."""
    return record_of(header[AT_USES], header[AT_USES + 1], OF_USE, here)


@kernel
def is_in_use(use: Int, here: Int) -> bool:
    """Return whether a state belongs to the use at an address."""
    first, stop, _, _ = array_at(use, OF_USE, np.int64)
    return bool(first <= here < stop)


@kernel
def site_of_use(header: Int64Array, here: Int) -> Int:
    """Return the site that says where the words of a state lead, DEAD if the site on the stack says it."""
    return np.int64(array_at(use_at(header, here), OF_USE, np.int64)[USE_SITE])


@kernel
def state_behind(header: Int64Array, site: Int, label: Int) -> Int:
    """Return the state to which a site leads by a label, DEAD if there is none."""
    start = array_at(header[AT_SITE_START], header[AT_SITE_START + 1], np.int32)[site]
    return np.int64(array_at(header[AT_SITE_STATES], header[AT_SITE_STATES + 1], np.int32)[start + label])


@kernel
def leads_somewhere(header: Int64Array, keys: Int32Array, child: Int, site: Int) -> bool:
    """Return whether a site leads somewhere by one of the words at or below a trie state."""
    here, stop = child, np.int64(keys[OF_KEY * child + KEY_STOP])
    while here < stop:
        here = np.int64(keys[OF_KEY * here + KEY_END])
        if state_behind(header, site, keys[OF_KEY * here + KEY_LABEL]) >= 0:
            return True
        here += 1
    return False


@kernel
def word_code(header: Int64Array, use: Int, here: Int, byte: Int) -> Int:
    """Return the code of a word state and a byte; use: the address of its use."""
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    first, _, trie, site = array_at(use, OF_USE, np.int64)
    at = OF_KEY * (here - first + trie)
    like, label = np.int64(keys[at + KEY_LIKE]), np.int64(keys[at + KEY_LABEL])
    if byte == 0x22 and label >= 0:
        return np.int64(RETURN - label) if site < 0 else state_behind(header, site, label)
    if byte == 0x5C and keys[at + KEY_ESCAPE] >= 0:
        return np.int64(keys[at + KEY_ESCAPE])
    child = np.int64(keys[at + KEY_CHILD])
    several = label >= 0 or (child >= 0 and keys[OF_KEY * child + KEY_NEXT] >= 0)
    while child >= 0 and keys[OF_KEY * child + KEY_BYTE] < byte:
        child = np.int64(keys[OF_KEY * child + KEY_NEXT])
    if child >= 0 and keys[OF_KEY * child + KEY_BYTE] == byte:
        # a text comes only to states that lead somewhere, so the only way on from there does, too
        if site < 0 or not several or leads_somewhere(header, keys, child, site):
            return np.int64(child - trie + first)
        return np.int64(DEAD)
    return np.int64(DEAD if like < 0 else array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)[like << 8 | byte])


@kernel
def next_word_child(header: Int64Array, use: Int, here: Int, byte: ByteArray, i: Int, last: Int) -> Int:
    """Return the next node in i .. last whose byte a word state may read, or `last`."""
    first, _, trie, site = array_at(use, OF_USE, np.int64)
    if site < 0:
        return i
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    at = OF_KEY * (here - first + trie)
    child, ends = np.int64(keys[at + KEY_CHILD]), keys[at + KEY_LABEL] >= 0
    while i < last:
        b = byte[i]
        while child >= 0 and keys[OF_KEY * child + KEY_BYTE] < b:
            child = np.int64(keys[OF_KEY * child + KEY_NEXT])
        if child < 0 and (not ends or b > 0x22):
            return last
        if (child >= 0 and keys[OF_KEY * child + KEY_BYTE] == b) or (ends and b == 0x22):
            break
        i += 1
    return i


@kernel
def next_differing_child(
    header: Int64Array, use: Int, here: Int, template: Int, byte: ByteArray, sets: Uint64Array, i: Int, last: Int
) -> Int:
    """Return the next node in i .. last below which a word state reads other tokens than its template, or `last`.

    template: the library state that reads all other words.
    """
    keys = array_at(header[AT_KEYS], header[AT_KEYS + 1], np.int32)
    first, _, trie, _ = array_at(use, OF_USE, np.int64)
    at = OF_KEY * (here - first + trie)
    if keys[at + KEY_LIKE] != template:
        return i
    child = np.int64(keys[at + KEY_CHILD])
    ends = keys[at + KEY_LIKE] == header[AT_ANY_STRING]
    groups = np.uint64(header[AT_ANY_STRING_GROUPS]) if ends else np.uint64(0)  # any characters of these are read
    while i < last:
        b = byte[i]
        while child >= 0 and keys[OF_KEY * child + KEY_BYTE] < b:
            child = np.int64(keys[OF_KEY * child + KEY_NEXT])
        if ((child >= 0 and keys[OF_KEY * child + KEY_BYTE] == b) or (ends and (b == 0x22 or b == 0x5C))) and (
            sets[SETS_OF_NODE * i + NODE_CHARACTERS] & ~groups
        ):
            break
        i += 1
    return i
