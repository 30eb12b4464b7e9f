"""Sets of characters as automata over the bytes of their UTF-8 encoding (RFC 3629).

Surrogates D800 .. DFFF have no encoding and are left out of every set; overlong encodings are never accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from ..kernels.arrays import BoolArray, Int32Array, Int64Array, Uint16Array
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from .dfa import BYTES, Dfa
from .minimize import canonical

Ranges = tuple[tuple[int, int], ...]
"""Code point ranges, both ends included."""

LAST = 0x10FFFF
ANY: Ranges = ((0, 0xD7FF), (0xE000, LAST))  # all scalar values

_BLOCKS = (LAST + 1) >> 6  # of 64 code points: what the last byte of an encoding chooses from


def normalize_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the same scalar values as sorted ranges with gaps between them; ValueError outside 0 .. 10FFFF."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if not 0 <= low <= high <= LAST:
            raise ValueError(f"{low:#x} .. {high:#x} is no range of code points within 0 .. {LAST:#x}")
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    scalar = []
    for low, high in merged:
        for first, last in ANY:
            if max(low, first) <= min(high, last):
                scalar.append((max(low, first), min(high, last)))
    return tuple(scalar)


def complement_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return all scalar values that these ranges do not hold."""
    gaps, after = [], 0
    for low, high in normalize_ranges(ranges):
        if after < low:
            gaps.append((after, low - 1))
        after = high + 1
    if after <= LAST:
        gaps.append((after, LAST))
    return normalize_ranges(gaps)


@lru_cache(maxsize=4096)
def char_class(ranges: Ranges) -> Dfa:
    """Return the DFA of exactly one character out of these ranges."""
    scalar = np.array(normalize_ranges(ranges), np.int64).reshape(-1, 2)
    transition = _character(scalar, _BLOCKS)
    accepting = np.zeros(transition.shape[0], np.bool_)
    accepting[1] = True
    return canonical(np.arange(BYTES, dtype=np.uint16), transition, accepting)


@lru_cache(maxsize=1)
def text() -> Dfa:
    """Return the DFA of all valid UTF-8, the empty string included."""
    one = char_class(ANY)
    # back to the start instead of on to the one accepting state, which nothing leaves
    transition = np.where(one.accepting[one.transition] & (one.transition >= 0), 0, one.transition).astype(np.int32)
    accepting = np.arange(one.num_states) == 0
    return canonical(one.class_of, transition, accepting)


@kernel
def characters_left(class_of: Uint16Array, transition: Int32Array, accepting: BoolArray, longest: bool) -> Int32Array:
    """Return how many characters begin at least (N,), from each state on, until a word of a trimmed DFA may end.

    longest: the most characters until no word goes on, in place of that; of finite languages only. Words are UTF-8.
    """
    states, classes = transition.shape
    begins = np.zeros(classes, np.int32)
    for byte in range(256):
        if not 0x80 <= byte < 0xC0:  # no state reads both kinds of bytes
            begins[class_of[byte]] = 1
    out = np.full(states, -1, np.int32)
    changed = True
    while changed and not is_late():
        changed = False
        for s in range(states - 1, -1, -1):  # most lead to later ones
            best = np.int32(0) if accepting[s] else np.int32(-1)
            for c in range(classes):
                t = transition[s, c]
                if t >= 0 and out[t] >= 0:
                    characters = out[t] + begins[c]
                    if best < 0 or (characters > best if longest else characters < best):
                        best = characters
            if best != out[s]:
                out[s] = best
                changed = True
    return out


@kernel
def _character(ranges: Int64Array, blocks: int) -> Int32Array:
    """Return the transitions (N, 256) of one character in these ranges (R, 2); state 0 starts, state 1 accepts.

    Works on blocks of 64 code points, one bit each, so it takes as long for one range as for thousands, some 30 us:
    equal blocks share a state for the last byte, equal groups of 64 blocks a state for the last two.
    """
    full = ~np.uint64(0)
    bits = np.zeros(blocks, np.uint64)
    for r in range(ranges.shape[0]):
        low, high = ranges[r, 0], ranges[r, 1]
        for block in range(low >> 6, (high >> 6) + 1):
            mask = full
            if block == low >> 6:
                mask &= full << np.uint64(low & 63)
            if block == high >> 6:
                mask &= full >> np.uint64(63 - (high & 63))
            bits[block] |= mask

    # a state for each distinct block, by open addressing
    slots = 32768
    table = np.full(slots, -1, np.int32)
    state_of = np.full(blocks, -1, np.int32)  # of a block, -1 for an empty one
    block_of = np.empty(blocks, np.int32)  # one block for each such state
    count = 0
    for block in range(2, blocks):
        if bits[block] == 0:
            continue
        if bits[block] == bits[block - 1] and block > 2:
            state_of[block] = state_of[block - 1]
            continue
        slot = np.int64((bits[block] * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(49))
        while table[slot] >= 0 and bits[block_of[table[slot]]] != bits[block]:
            slot = (slot + 1) & (slots - 1)
        if table[slot] < 0:
            table[slot] = count
            block_of[count] = block
            count += 1
        state_of[block] = table[slot]

    # a state for each distinct group of 64 blocks; the 32 blocks of one and two byte encodings are in no group
    groups = blocks >> 6
    group_of = np.full(groups, -1, np.int32)
    first_of = np.empty(groups, np.int32)
    mids = 0
    for g in range(groups):
        begin = 32 if g == 0 else 0
        used = False
        for j in range(begin, 64):
            used = used or state_of[64 * g + j] >= 0
        if not used:
            continue
        m = 0
        while m < mids:
            h = first_of[m]
            j = 0
            while j < 64 and (state_of[64 * g + j] if j >= begin else -1) == (
                state_of[64 * h + j] if h > 0 or j >= 32 else -1
            ):
                j += 1
            if j == 64:
                break
            m += 1
        if m == mids:
            first_of[mids] = g
            mids += 1
        group_of[g] = m

    # states: start, end, the distinct blocks, the distinct groups, then the lead bytes F0 .. F4
    base = 2 + count
    transition = np.full((base + mids + 5, 256), -1, np.int32)
    for byte in range(128):
        if bits[byte >> 6] >> np.uint64(byte & 63) & np.uint64(1):
            transition[0, byte] = 1
    for i in range(count):
        for j in range(64):
            if bits[block_of[i]] >> np.uint64(j) & np.uint64(1):
                transition[2 + i, 0x80 + j] = 1
    for block in range(2, 32):
        if state_of[block] >= 0:
            transition[0, 0xC0 + block] = 2 + state_of[block]
    for m in range(mids):
        for j in range(32 if first_of[m] == 0 else 0, 64):
            if state_of[64 * first_of[m] + j] >= 0:
                transition[base + m, 0x80 + j] = 2 + state_of[64 * first_of[m] + j]
    for g in range(groups):
        if group_of[g] >= 0:
            if g < 16:
                transition[0, 0xE0 + g] = base + group_of[g]
            else:
                lead = g >> 6
                transition[0, 0xF0 + lead] = base + mids + lead
                transition[base + mids + lead, 0x80 + (g & 63)] = base + group_of[g]
    return transition
