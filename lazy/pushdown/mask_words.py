"""Words of masks: how a kernel writes a mask as few changes to another mask.

A `MaskBuffer` holds a mask, and behind it the places of the words in which the mask differs from the mask of a base.
The next mask of the same base then rewrites only these words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...kernels.arrays import Bool, Int, Int32Array, Int64Array, Uint32Array, Uint64Array
from ...kernels.compiled import kernel
from ...kernels.mask_buffers import ALL_WORDS, MOST_NOTED
from ...kernels.pointers import array_at
from .header import AT_SCRATCH, OF_BASE

WORDS_AT_ONCE = 8
"""Words that `difference` compares together."""


class MaskWords(NamedTuple):
    """A mask that a kernel writes."""

    out: Uint32Array  # (words,) uint32
    base: Uint32Array  # (words,) the mask that `out` began as, empty where that is 0
    noted: Uint32Array  # how many words differ from the base, and which; empty if nobody asks


@kernel
def words_of(buffer: Int, words: Int, base: Uint32Array) -> MaskWords:
    """Return the mask of a `MaskBuffer` at an address; base: the mask that it is written from."""
    noted = array_at(buffer + 4 * words, 1 + MOST_NOTED, np.uint32)
    return MaskWords(array_at(buffer, words, np.uint32), base, noted)


@kernel(inline="always")
def by_address(words: MaskWords) -> MaskWords:
    """Return the same words as arrays without reference counts."""
    return MaskWords(
        array_at(words.out.ctypes.data, words.out.size, np.uint32),
        array_at(words.base.ctypes.data, words.base.size, np.uint32),
        array_at(words.noted.ctypes.data, words.noted.size, np.uint32),
    )


@kernel
def set_token(words: MaskWords, token: Int, allowed: Bool) -> None:
    """Set or clear the bit of a token, and note its word if it differs from the base from now on."""
    out, mask, noted = words
    w, bit = np.uint64(token) >> np.uint64(5), np.uint32(1) << np.uint32(token & 31)
    before = out[w]
    after = before | bit if allowed else before & ~bit
    if after != before:
        out[w] = after
        if noted[0] != ALL_WORDS and before == (mask[w] if mask.size else np.uint32(0)):
            if noted[0] < MOST_NOTED:
                noted[0] += np.uint32(1)
                noted[np.uint64(noted[0])] = np.uint32(w)
            else:
                noted[0] = ALL_WORDS


@kernel(inline="always")
def set_tokens(words: MaskWords, token: Int32Array, first: Int, stop: Int, allowed: Bool) -> None:
    """Set or clear the bits of token[first:stop], and note their words where words are noted."""
    if words.noted.size > 0:
        for x in range(first, stop):
            set_token(words, token[x], allowed)
    elif allowed:
        for x in range(first, stop):
            words.out[token[x] >> 5] |= np.uint32(1) << np.uint32(token[x] & 31)
    else:
        for x in range(first, stop):
            words.out[token[x] >> 5] &= ~(np.uint32(1) << np.uint32(token[x] & 31))


@kernel
def copy_words(mask: Uint32Array, out: Uint32Array) -> None:
    """Write a mask into out, or 0 if the mask is empty."""
    if mask.size:
        for w in range(np.uint64(mask.size)):  # ten times as fast as a slice, which might overlap
            out[w] = mask[w]
    else:
        for w in range(np.uint64(out.size)):
            out[w] = np.uint32(0)


@kernel
def renew(words: MaskWords, whole: bool, differ: Uint32Array) -> None:
    """Write the base of a mask into it, then the words at the places in `differ`, and note these places.

    whole: the buffer does not hold the base yet. Otherwise only the words noted in it are written.
    """
    out, mask, noted = words
    if whole or noted[0] == ALL_WORDS:
        copy_words(mask, out)
    else:
        for k in range(np.uint64(1), np.uint64(noted[0]) + np.uint64(1)):
            w = np.uint64(noted[k])
            out[w] = mask[w] if mask.size else np.uint32(0)
    for k in range(np.uint64(differ.size >> 1)):
        w = np.uint64(differ[k + k])
        out[w], noted[k + np.uint64(1)] = differ[k + k + np.uint64(1)], differ[k + k]
    noted[0] = differ.size >> 1


@kernel
def restore(base: int, words: int, buffer: int, differ: bytes) -> None:
    """Write a mask into a buffer from a note: the words in which it differs from a base.

    base, buffer: addresses. words: of a mask. differ: bytes of uint32, two numbers of the owner, then places and words.
    """
    mask_at, size, _, _, _, _, _, _, _, _, _, whole = array_at(base, OF_BASE, np.int64)
    mask = array_at(mask_at, size, np.uint32)
    renew(words_of(buffer, words, mask), whole != 0, np.frombuffer(differ, np.uint32)[2:])


@kernel
def differing_words(header: Int64Array) -> Uint32Array:
    """Return the memory before the scratch, which takes the words in which a mask differs: place and word in turn."""
    return array_at(header[AT_SCRATCH] - 8 * MOST_NOTED, 2 * MOST_NOTED, np.uint32)


@kernel
def difference(header: Int64Array, base: Uint32Array, out: Uint32Array) -> Int:
    """Write the words in which a mask differs from a base into `differing_words`; return how many, -1 if too many."""
    differ = differing_words(header)
    # with signed indices numba checks for negative ones, and makes no vector code
    one, count, most = np.uint64(1), np.uint64(0), np.uint64(MOST_NOTED)
    row, words = np.uint64(WORDS_AT_ONCE), np.uint64(out.size)
    for first in range(np.uint64(0), words, row):
        stop = min(first + row, words)
        other = np.uint32(0)
        if stop - first == row:
            for k in range(row):
                other |= out[first + k] ^ base[first + k]
            if not other:
                continue
        for w in range(first, stop):
            if out[w] != base[w]:
                if count == most:
                    return np.int64(-1)
                differ[count + count], differ[count + count + one] = np.uint32(w), out[w]
                count += one
    return np.int64(count)


@kernel
def write_free(characters: Uint64Array, groups: np.uint64, out: Uint32Array) -> None:
    """Set the bits of the tokens whose characters are all of some groups; characters: the groups of each token (V,)."""
    read = np.empty(32 * out.size, np.uint8)
    read[characters.size :] = 0
    others = ~groups
    for t in range(characters.size):  # no branches: this becomes vector code
        read[t] = characters[t] & others == 0
    for w in range(out.size):
        word = np.uint32(0)
        for t in range(32):
            word |= np.uint32(read[32 * w + t]) << np.uint32(t)
        out[w] = word


@kernel
def write_short(mask: Uint32Array, token: Int32Array, short: int, out: Uint32Array) -> None:
    """Write the part of a mask that is of token[:short]; token: all tokens."""
    one = np.uint32(1)
    if short + short > token.size:
        copy_words(mask, out)
        for t in token[short:]:
            out[t >> 5] &= ~(one << np.uint32(t & 31))
    else:
        copy_words(mask[:0], out)
        for t in token[:short]:
            out[t >> 5] |= mask[t >> 5] & one << np.uint32(t & 31)


@kernel
def list_exits(exits: Int32Array, token: Int32Array, first: Int, stop: Int, label: Int) -> None:
    """Append token[first:stop] to a list of tokens that end a string with a label: exits[0] is how many there are."""
    count = np.int64(exits[0])
    for x in range(first, stop):
        count += 1
        exits[2 * count - 1], exits[2 * count] = token[x], label
    exits[0] = count
