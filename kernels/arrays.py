"""Arrays: their types by the names that annotations use, and what all kernels share.

That is growing arrays, binary search in a sorted part of one, bits of masks, lists by key, and slots of a hash table.
Bit i of word w of a mask stands for token 32 * w + i. Kernels take names from this file.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel

HostArray = NDArray[Any]
"""An array of numpy with elements of any type."""
BoolArray = NDArray[np.bool_]
ByteArray = NDArray[np.uint8]
Int16Array = NDArray[np.int16]
Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Uint16Array = NDArray[np.uint16]
Uint32Array = NDArray[np.uint32]
Uint64Array = NDArray[np.uint64]
IntArray = NDArray[np.signedinteger[Any]]
"""Signed integers of any width."""
UintArray = NDArray[np.unsignedinteger[Any]]
"""Unsigned integers of any width."""
IntegerArray = NDArray[np.integer[Any]]
"""Integers of any width, signed or not."""

Int: TypeAlias = int | np.int64
"""An integer of a kernel: numba makes 64 bits of Python's, and hands Python's back."""
Bool: TypeAlias = bool | np.bool_
"""A truth value of a kernel."""

Scalar = TypeVar("Scalar", bound=np.generic)
"""The type of an array's elements."""


def resized(values: HostArray, capacity: int, used: int) -> HostArray:
    """Return an array of `capacity` rows, of which the first `used` are those of `values`."""
    out = np.empty((capacity, *values.shape[1:]), values.dtype)
    out[:used] = values[:used]
    return out


def long_enough(values: HostArray, used: int, size: int, grows: bool) -> HostArray:
    """Return an array of at least `size` rows, of which the first `used` are those of `values`.

    That is `values` if it is as long, else one of `size` rows, or of twice as many if it goes on growing.
    """
    return values if size <= len(values) else resized(values, 2 * size if grows else size, used)


@kernel
def place_of(array: IntegerArray, first: int, stop: int, value: Int) -> Int:
    """Return where array[first:stop], which is sorted, holds a value, or -1."""
    lo, hi = np.int64(first), np.int64(stop)
    end = hi
    while lo < hi:
        mid = (lo + hi) >> 1
        if np.int64(array[mid]) < value:
            lo = mid + 1
        else:
            hi = mid
    return lo if lo < end and np.int64(array[lo]) == value else np.int64(-1)


@kernel(inline="always")
def has_bit(mask: NDArray[np.uint32], token: Int) -> Any:
    """Return whether a mask (W,) has a token's bit."""
    return (mask[token >> 5] >> np.uint32(token & 31)) & np.uint32(1) != 0


@kernel
def count_bits(mask: NDArray[np.uint32]) -> Int:
    """Return how many bits of a mask (W,) are set."""
    count = np.int64(0)
    for w in range(mask.size):
        word = mask[w]
        word -= (word >> np.uint32(1)) & np.uint32(0x55555555)
        word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
        word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
        count += ((word * np.uint32(0x01010101)) & np.uint32(0xFFFFFFFF)) >> np.uint32(24)
    return count


@kernel(inline="always")
def note(start: Int64Array, out: Int64Array, key: Int, each: int, filling: int) -> None:
    """Count one more in the list of a key, or put it there; see `begun`."""
    if filling:
        out[start[key]] = each
        start[key] += 1
    else:
        start[key + 1] += 1


@kernel
def begun(start: Int64Array, out: Int64Array, filled: int) -> Int64Array:
    """Return the array for all that a first pass has counted, or after the second the one that it filled.

    start: (K + 1,) zeros at first. Both times it then says where the list of each key begins, and the next one's.
    """
    if filled:  # each start stands where its list stops, which is where the next begins
        for key in range(start.size - 1, 0, -1):
            start[key] = start[key - 1]
        start[0] = 0
        return out
    for key in range(start.size - 1):
        start[key + 1] += start[key]
    return np.empty(start[-1], np.int64)


@kernel(inline="always")
def slot_of(key: Int, slots: int) -> Int:
    """Return the slot of a key of up to 64 bits, perhaps of several parts, in a table of `slots`, a power of two.

    All bits of the key count. A product's low half knows nothing of a key's high half, so both are folded.
    """
    mixed = np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(slots - 1))
