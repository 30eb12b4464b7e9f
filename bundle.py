"""Arrays handed to kernels by their addresses: a kernel takes longer to be handed an array than many a one to run.

A *header* is an int64 array that holds, among other numbers, the address and the size of each array, side by side.
Whoever keeps a header keeps its arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from numpy.typing import NDArray


@intrinsic
def _to_pointer(typing: Any, number: Any) -> Any:
    """Return a number as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


_pointer: Any = _to_pointer  # which kernels call without its first argument


@njit(cache=True, nogil=True)
def array_at(address: Any, size: Any, kind: Any) -> Any:
    """Return the array of `size` elements at an address."""
    return carray(_pointer(address), (size,), kind)


def address_of(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array."""
    found: int = array.__array_interface__["data"][0]
    return found


def put(header: NDArray[np.int64], at: int, array: NDArray[Any]) -> None:
    """Write the address and the number of elements of a contiguous array into a header."""
    header[at] = address_of(array)
    header[at + 1] = array.size
