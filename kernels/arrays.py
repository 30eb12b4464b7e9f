"""Arrays by their element types, as annotations name them, and arrays that grow as a construction goes on."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

HostArray = NDArray[Any]
"""An array of numpy with elements of any type."""
BoolArray = NDArray[np.bool_]
ByteArray = NDArray[np.uint8]
FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
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
