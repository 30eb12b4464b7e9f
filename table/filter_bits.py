"""Kernels over the bits of a filter: bit i of word w stands for row 32 * w + i."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.compiled import kernel


@kernel
def put_in_order(words: Any, index: Any, out: Any) -> None:
    """Write bit index[i] of words to bit i of out, of which all bits are 0; index: (N,), unsigned."""
    whole = index.size >> 5
    for at in range(whole):
        word = np.uint32(0)
        begin = at << 5
        for i in range(32):  # so many at once overlap their cache misses
            row = np.uint64(index[begin + i])
            word |= ((words[row >> np.uint64(5)] >> np.uint32(row & np.uint64(31))) & np.uint32(1)) << np.uint32(i)
        out[at] = word
    for i in range(whole << 5, index.size):
        row = np.uint64(index[i])
        bit = (words[row >> np.uint64(5)] >> np.uint32(row & np.uint64(31))) & np.uint32(1)
        out[i >> 5] |= bit << np.uint32(i & 31)


@kernel
def or_by_group(words: Any, start: Any, out: Any) -> None:
    """Set bit g of out, all of them 0 before, where words have a bit in start[g] .. start[g + 1]; start: (G + 1,)."""
    for g in range(start.size - 1):
        found = np.uint32(0)
        for i in range(start[g], start[g + 1]):
            found |= (words[i >> 5] >> np.uint32(i & 31)) & np.uint32(1)
        out[g >> 5] |= found << np.uint32(g & 31)


@kernel
def count_before(words: Any, before: Any) -> None:
    """Write how many bits are set in all words before each one (W,)."""
    total = np.int32(0)
    for at in range(words.size):
        before[at] = total
        word = words[at]
        word -= (word >> np.uint32(1)) & np.uint32(0x55555555)
        word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
        word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
        total += np.int32(((word * np.uint32(0x01010101)) & np.uint32(0xFFFFFFFF)) >> np.uint32(24))


@kernel(inline="always")
def _window(words: Any, low: Any) -> Any:
    """Return the bits from place `low` on: 33 at least, where there are as many."""
    first = low >> 5
    both = np.uint64(words[first]) | (np.uint64(words[min(first + 1, words.size - 1)]) << np.uint64(32))
    return both >> np.uint64(low & 31)


@kernel(inline="always")
def _has_any(words: Any, low: Any, high: Any) -> Any:
    """Return whether words have a bit in low .. high."""
    found = _window(words, low)
    if high - low <= 32:  # mostly: then nothing here depends on the bits
        found &= (np.uint64(1) << np.uint64(high - low)) - np.uint64(1)
    else:
        found &= np.uint64(0xFFFFFFFF)
        last = high >> 5
        w = (low >> 5) + 1
        while found == 0 and w < last:
            found = np.uint64(words[w])
            w += 1
        if found == 0:
            found = np.uint64(words[last] & ((np.uint32(1) << np.uint32(high & 31)) - np.uint32(1)))
    return found != 0


@kernel
def mark(words: Any, start: Any, at: Any, out: Any) -> None:
    """Set bit at[k] of out where words have a bit in start[k] .. start[k + 1]; start: (K + 1,), at: (K,).

    Bits in one word of out follow each other mostly, and are put together before they are written.
    """
    held, bits = np.int64(0), np.uint32(0)
    for k in range(at.size):
        found = _has_any(words, np.int64(start[k]), np.int64(start[k + 1]))
        place = np.int64(at[k])
        if place >> 5 != held:
            out[held] |= bits
            held, bits = place >> 5, np.uint32(0)
        bits |= np.uint32(found) << np.uint32(place & 31)
    out[held] |= bits


@kernel
def mark_runs(words: Any, start: Any, begin: Any, out: Any) -> None:
    """Set bit begin + k of out where words have a bit in start[k] .. start[k + 1]; start: (K + 1,).

    Where 32 runs of one row each make up a word, their bits are copied at once: deep in a set most runs are of one row.
    """
    count = start.size - 1
    k = 0
    while k < count:
        low, place = np.int64(start[k]), begin + k
        if place & 31 == 0 and k + 32 <= count and start[k + 32] - start[k] == 32:
            out[place >> 5] = np.uint32(_window(words, low) & np.uint64(0xFFFFFFFF))
            k += 32
            continue
        found = _has_any(words, low, np.int64(start[k + 1]))
        out[place >> 5] |= np.uint32(found) << np.uint32(place & 31)
        k += 1
