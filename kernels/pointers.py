"""Arrays handed to kernels by their addresses: numba takes longer to unpack an array argument than many kernels run.

A *header* is an int64 array that holds, among other numbers, the address and the size of each array, side by side.
The owner of a header must keep its arrays alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Int, Scalar
from .compiled import LIBRARY, intrinsic, kernel

if TYPE_CHECKING:
    from .compiled import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value

if LIBRARY is None:
    from numba.np.numpy_support import carray


@intrinsic
def _pointer(typing: TypingContext, number: NumbaType) -> Intrinsic:
    """Return a number as a pointer."""
    from numba import types
    from numba.core import cgutils

    def generate(context: Context, builder: Builder, signature: Signature, arguments: Sequence[Value]) -> Value:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@kernel
def array_at(address: Int, size: Int | np.uint64, kind: type[Scalar] | np.dtype[Scalar]) -> NDArray[Scalar]:
    """Return the array of `size` elements at an address."""
    array: NDArray[Scalar] = carray(_pointer(address), (size,), kind)
    return array


@kernel
def borrowed(array: NDArray[Scalar]) -> NDArray[Scalar]:
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
