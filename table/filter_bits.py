"""Bits of a filter, and what holds for runs of them: bit i of word w stands for row 32 * w + i."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, ConstraintError
from ..kernels.arrays import ByteArray, Int, Int32Array, Uint16Array, Uint32Array
from ..kernels.compiled import kernel

Words = NDArray[np.uint32]

MOST_ROWS = 2**31 - 1
"""The most rows of a matrix, and items of a filter: positions have 32 bits where a device has no wider ones."""


def words_of(bits: NDArray[np.bool_], count: int | None = None) -> Words:
    """Return booleans (n,) as bits: n // 32 + 1 words, or as many as `count` bits take."""
    words = np.zeros((bits.size if count is None else count) // 32 + 1, np.uint32)
    packed = np.packbits(bits, bitorder="little")
    words.view(np.uint8)[: packed.size] = packed
    return words


def booleans_of(words: Words, count: int) -> NDArray[np.bool_]:
    """Return the first bits as booleans: (count,)."""
    return np.unpackbits(words.view(np.uint8), bitorder="little", count=count).view(np.bool_)


def booleans(column: Any) -> NDArray[np.bool_]:
    """Return a column of booleans as an array; raise ConstraintError for other values and for null."""
    nulls = getattr(column, "null_count", 0)
    nulls = nulls() if callable(nulls) else nulls
    if isinstance(column, np.ma.MaskedArray):  # what DuckDB's fetchnumpy gives
        nulls, column = int(np.broadcast_to(column.mask, column.shape).sum()), column.data
    if nulls:
        raise ConstraintError(
            f"keep has {nulls:,} nulls, of which nothing says whether to keep them",
            argument="keep",
            remedies=[Advice("Fill them first, as with fill_null(False).")],
        )
    if hasattr(column, "to_numpy"):
        try:
            column = column.to_numpy(zero_copy_only=False)  # an Arrow array, whose booleans are bits
        except TypeError:
            column = column.to_numpy()
    array = np.asarray(column)
    if array.dtype != np.bool_:
        raise ConstraintError(
            f"keep must be booleans, not {array.dtype}",
            argument="keep",
            remedies=[Advice("Pass a comparison, as in stock > 0, not numbers or row numbers.")],
        )
    return array


def one_for_each(keep: Any, count: int, most: int = MOST_ROWS) -> NDArray[np.bool_]:
    """Return a column of one boolean for each of `count` input rows; raise ConstraintError for any other."""
    column = booleans(keep)
    if column.shape != (count,):
        raise ConstraintError(
            f"keep has shape {column.shape}, one boolean is needed for each of the {count:,} input rows",
            argument="keep",
        )
    if count > most:
        raise ConstraintError(f"{count:,} rows are more than a filter may have, {most:,}")
    return column


def place_bits(words: Words, begin: int, out: Words) -> None:
    """Set the bits of words in out, from bit `begin` on."""
    at, shift = begin >> 5, np.uint32(begin & 31)
    stop = min(at + words.size, out.size)
    out[at:stop] |= words[: stop - at] << shift
    if shift:
        stop = min(stop + 1, out.size)
        out[at + 1 : stop] |= words[: stop - at - 1] >> (np.uint32(32) - shift)


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of bits that follow each other, from bit 0 on: each has one bit at least."""

    ends: Words  # the last bit of each run is set
    count: int  # K

    @staticmethod
    def of(start: NDArray[Any]) -> Runs:
        """Return K runs, which begin at the first K of start (K + 1,); it rises."""
        ends = np.zeros(int(start[-1]), np.bool_)
        ends[start[1:] - 1] = True
        return Runs(words_of(ends), start.size - 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.ends.nbytes

    def write_any(self, words: Words, out: Words, begin: int = 0) -> None:
        """Set bit begin + k of out if words have a bit in run k; these bits are 0 before."""
        if self.count:
            _any_of_runs(words, self.ends, _packing(), begin, out)


def take_bits(words: Words, mask: Words, out: Words) -> None:
    """Write those bits of words whose bits in mask are set to out, one behind the other; out is 0 before."""
    _take(words, mask, _packing(), out)


def spread_bits(words: Words, begin: int, mask: Words, out: Words) -> None:
    """Set bits of out by those of words from `begin` on, one for each bit that is set in mask, at its place."""
    _spread(words, begin, mask, _spreading(), out)


@cache
def _packing() -> NDArray[np.uint16]:
    """Return by mask and byte (256 * 256,) the bits of the byte in the mask, close together; above, how many these are.

    The count stands above the lowest 8 bits.
    """
    mask, byte = np.arange(256)[:, None], np.arange(256)
    found, count = np.zeros((256, 256), np.int64), np.zeros((256, 1), np.int64)
    for bit in range(8):
        inside = (mask >> bit) & 1
        found |= ((byte >> bit) & inside) << count
        count += inside
    return (found | count << 8).astype(np.uint16).reshape(-1)


@cache
def _spreading() -> NDArray[np.uint8]:
    """Return by mask and byte (256 * 256,) the lowest bits of the byte, each at the place of a bit in the mask."""
    mask, byte = np.arange(256)[:, None], np.arange(256)
    found, count = np.zeros((256, 256), np.int64), np.zeros((256, 1), np.int64)
    for bit in range(8):
        inside = (mask >> bit) & 1
        found |= ((byte >> count) & inside) << bit
        count += inside
    return found.astype(np.uint8).reshape(-1)


@kernel
def put_in_order(words: Uint32Array, index: Uint32Array, out: Uint32Array) -> None:
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
def count_before(words: Uint32Array, before: Int32Array) -> None:
    """Write how many bits are set in all words before each one (W,)."""
    total = np.int32(0)
    for at in range(words.size):
        before[at] = total
        word = words[at]
        word -= (word >> np.uint32(1)) & np.uint32(0x55555555)
        word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
        word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
        total += np.int32(((word * np.uint32(0x01010101)) & np.uint32(0xFFFFFFFF)) >> np.uint32(24))


_LOW = np.uint64(0xFF)
_WORD = np.uint64(0xFFFFFFFF)


@kernel
def _any_of_runs(words: Uint32Array, ends: Uint32Array, packing: Uint16Array, begin: Int, out: Uint32Array) -> None:
    """See `Runs.write_any`.

    A run is a number whose highest bit is its last row's. What is added to the lower bits is all ones, so that they
    carry into the last one if one of them is set; what a run of this word hands to the next one leaves as a carry.
    """
    at, filled = begin >> 5, np.uint64(begin & 31)
    held, carry = np.uint64(out[at]), np.uint64(0)
    for w in range(ends.size):
        end, row = np.uint64(ends[w]), np.uint64(words[w]) | carry
        lower = end ^ _WORD
        total = (row & lower) + lower
        carry = total >> np.uint64(32)
        found = (total | row) & end
        if end == _WORD:
            held |= found << filled
            filled += np.uint64(32)
        else:
            for _ in range(4):
                packed = np.uint64(packing[((end & _LOW) << np.uint64(8)) | (found & _LOW)])
                held |= (packed & _LOW) << filled
                filled += packed >> np.uint64(8)
                end >>= np.uint64(8)
                found >>= np.uint64(8)
        if filled >= np.uint64(32):
            out[at] = np.uint32(held & _WORD)
            held >>= np.uint64(32)
            filled -= np.uint64(32)
            at += 1
    if filled > np.uint64(0):
        out[at] |= np.uint32(held)


@kernel
def _take(words: Uint32Array, mask: Uint32Array, packing: Uint16Array, out: Uint32Array) -> None:
    """See `take_bits`."""
    at, filled, held = 0, np.uint64(0), np.uint64(0)
    for w in range(mask.size):
        inside = np.uint64(mask[w])
        if inside == np.uint64(0):
            continue
        found = np.uint64(words[w])
        if inside == _WORD:
            held |= found << filled
            filled += np.uint64(32)
        else:
            for _ in range(4):
                packed = np.uint64(packing[((inside & _LOW) << np.uint64(8)) | (found & _LOW)])
                held |= (packed & _LOW) << filled
                filled += packed >> np.uint64(8)
                inside >>= np.uint64(8)
                found >>= np.uint64(8)
        if filled >= np.uint64(32):
            out[at] = np.uint32(held & _WORD)
            held >>= np.uint64(32)
            filled -= np.uint64(32)
            at += 1
    if filled > np.uint64(0):
        out[at] = np.uint32(held)


@kernel
def _spread(words: Uint32Array, begin: Int, mask: Uint32Array, spreading: ByteArray, out: Uint32Array) -> None:
    """See `spread_bits`. Where the bits of a byte begin follows from the mask alone, so that bytes need not wait."""
    place, last = np.int64(begin), np.int64(words.size - 1)
    high = np.uint64(0xFF00)
    for w in range(mask.size):
        inside = np.uint64(mask[w])
        if inside == np.uint64(0):
            continue
        first = place >> 5
        bits = (np.uint64(words[first]) | (np.uint64(words[min(first + 1, last)]) << np.uint64(32))) >> np.uint64(
            place & 31
        )
        if inside == _WORD:
            out[w] |= np.uint32(bits & _WORD)
            place += 32
            continue
        before = inside - ((inside >> np.uint64(1)) & np.uint64(0x55555555))  # set bits up to the end of each byte
        before = (before & np.uint64(0x33333333)) + ((before >> np.uint64(2)) & np.uint64(0x33333333))
        before = ((before + (before >> np.uint64(4))) & np.uint64(0x0F0F0F0F)) * np.uint64(0x01010101)
        found = np.uint64(spreading[((inside & _LOW) << np.uint64(8)) | (bits & _LOW)])
        bits_1, bits_2 = bits >> (before & _LOW), bits >> ((before >> np.uint64(8)) & _LOW)
        bits_3 = bits >> ((before >> np.uint64(16)) & _LOW)
        found |= np.uint64(spreading[(inside & high) | (bits_1 & _LOW)]) << np.uint64(8)
        found |= np.uint64(spreading[((inside >> np.uint64(8)) & high) | (bits_2 & _LOW)]) << np.uint64(16)
        found |= np.uint64(spreading[((inside >> np.uint64(16)) & high) | (bits_3 & _LOW)]) << np.uint64(24)
        out[w] |= np.uint32(found)
        place += np.int64((before >> np.uint64(24)) & _LOW)
