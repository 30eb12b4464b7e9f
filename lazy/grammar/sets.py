"""Sets of numbers in kernels: sorting them, and finding equal ones by a hash.

A table of slots holds the numbers of the sets that there are, by open addressing. It is at most half full.
"""

from __future__ import annotations

import numpy as np

from ...kernels.arrays import Int, Int32Array, Int64Array, slot_of
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from .header import (
    AT_ACCEPTS,
    AT_CORE_DATA,
    AT_CORE_SLOTS,
    AT_CORE_START,
    AT_GROUP_DATA,
    AT_GROUP_START,
    AT_ITEM_FRAME,
    AT_ITEM_POSITION,
    AT_STATE_SLOTS,
    AT_STATE_START,
    NUM_CORES,
    NUM_GROUPS,
    NUM_STATES,
)


@kernel
def hash_of(data: Int64Array, size: Int, seed: Int) -> Int:
    """Return a hash of the first numbers of an array."""
    key = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(size)
    for k in range(size):
        key = (key ^ np.uint64(data[k])) * np.uint64(0xBF58476D1CE4E5B9)
        key ^= key >> np.uint64(29)
    return np.int64(key & np.uint64(0x7FFFFFFFFFFFFFFF))


@kernel
def fill_slots(header: Int64Array, at: int) -> None:
    """Put all sets into a table of slots that has grown; at: its place in the header."""
    slots = array_at(header[at], header[at + 1], np.int32)
    if at == AT_STATE_SLOTS:
        starts = array_at(header[AT_STATE_START], header[AT_STATE_START + 1], np.int32)
        position = array_at(header[AT_ITEM_POSITION], header[AT_ITEM_POSITION + 1], np.int32)
        frame = array_at(header[AT_ITEM_FRAME], header[AT_ITEM_FRAME + 1], np.int32)
        accepts = array_at(header[AT_ACCEPTS], header[AT_ACCEPTS + 1], np.uint8)
        longest = np.int64(0)
        for n in range(header[NUM_STATES]):
            longest = max(longest, np.int64(starts[n + 1] - starts[n]))
        data = np.empty(longest, np.int64)
        for n in range(header[NUM_STATES]):
            size = np.int64(starts[n + 1] - starts[n])
            for k in range(size):
                data[k] = np.int64(position[starts[n] + k]) << 32 | np.int64(frame[starts[n] + k])
            slot = hash_of(data, size, accepts[n]) & (slots.size - 1)
            while slots[slot] >= 0:
                slot = (slot + 1) & (slots.size - 1)
            slots[slot] = n
        return
    if at == AT_CORE_SLOTS:
        count, start, words = header[NUM_CORES], AT_CORE_START, AT_CORE_DATA
    else:
        count, start, words = header[NUM_GROUPS], AT_GROUP_START, AT_GROUP_DATA
    starts = array_at(header[start], header[start + 1], np.int32)
    data = array_at(header[words], header[words + 1], np.int64)
    for n in range(count):
        slot = hash_of(data[starts[n] :], np.int64(starts[n + 1] - starts[n]), 0) & (slots.size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = n


@kernel
def find_set(slots: Int32Array, starts: Int32Array, data: Int64Array, one: Int64Array, size: Int) -> tuple[Int, Int]:
    """Return which set equals the first `size` numbers of `one`, or -1, and its slot, or the slot of a new set."""
    slot = hash_of(one, size, 0) & (slots.size - 1)
    while slots[slot] >= 0:
        n = slots[slot]
        begin = starts[n]
        if starts[n + 1] - begin == size:
            same = True
            for k in range(size):
                if data[begin + k] != one[k]:
                    same = False
                    break
            if same:
                return np.int64(n), slot
        slot = (slot + 1) & (slots.size - 1)
    return np.int64(-1), slot


@kernel
def is_new(seen: Int64Array, stamps: Int64Array, stamp: Int, key: Int) -> bool:
    """Note a pair, and return whether it is new since the stamp was."""
    slot = slot_of(key, seen.size)
    while stamps[slot] == stamp:
        if seen[slot] == key:
            return False
        slot = (slot + 1) & (seen.size - 1)
    stamps[slot], seen[slot] = stamp, key
    return True


@kernel
def sort_unique(data: Int64Array, first: Int, stop: Int) -> Int:
    """Sort a part of an array, and leave each number in it once; return where it ends then."""
    if stop - first > 32:
        data[first:stop].sort()
    else:
        for k in range(first + 1, stop):
            value, x = data[k], k - 1
            while x >= first and data[x] > value:
                data[x + 1] = data[x]
                x -= 1
            data[x + 1] = value
    out = first
    for k in range(first, stop):
        if k == first or data[k] != data[k - 1]:
            data[out] = data[k]
            out += 1
    return out
