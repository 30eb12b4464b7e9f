"""Arrays handed to kernels by their addresses: numba takes longer to unpack an array argument than many kernels run.

A *header* is an int64 array that holds, among other numbers, the address and the size of each array, side by side.
The owner of a header must keep its arrays alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compiled import LIBRARY, intrinsic, kernel

if LIBRARY is None:
    from numba.np.numpy_support import carray


@intrinsic
def _to_pointer(typing: Any, number: Any) -> Any:
    """Return a number as a pointer."""
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


_pointer: Any = _to_pointer  # which kernels call without its first argument


@kernel
def array_at(address: Any, size: Any, kind: Any) -> Any:
    """Return the array of `size` elements at an address."""
    return carray(_pointer(address), (size,), kind)


@kernel
def borrowed(array: NDArray[Any]) -> Any:
    """Return an array (n,) that shows another, which the caller keeps alive.

    Numba counts references to an array that came from Python wherever a kernel hands it on; to this one it counts none.
    """
    return array_at(array.ctypes.data, array.size, array.dtype)


def address_of(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array."""
    found: int = array.__array_interface__["data"][0]
    return found


def put(header: NDArray[np.int64], at: int, array: NDArray[Any]) -> None:
    """Write the address and the number of elements of a contiguous array into a header."""
    header[at] = address_of(array)
    header[at + 1] = array.size
