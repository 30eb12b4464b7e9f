"""Arrays handed to kernels by their addresses: a kernel takes longer to be handed an array than many a one to run.

A *header* is an int64 array that holds, among other numbers, the address and the size of each array, side by side.
Whoever keeps a header keeps its arrays. A *sheet* is an array that masks are written on, one after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np
from numba import typeof, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from .kernels.compiled import kernel


@intrinsic
def _to_pointer(typing: Any, number: Any) -> Any:
    """Return a number as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


_pointer: Any = _to_pointer  # which kernels call without its first argument


@kernel
def array_at(address: Any, size: Any, kind: Any) -> Any:
    """Return the array of `size` elements at an address."""
    return carray(_pointer(address), (size,), kind)


def address_of(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array."""
    found: int = array.__array_interface__["data"][0]
    return found


def entry_of(loop: Any, arguments: Sequence[Any]) -> Any:
    """Return a compiled loop as it is called where the types of its arguments are those of `arguments`.

    Numba looks at all arguments of each call for what was compiled for their types, which takes longer than many a loop
    runs. Here nobody looks: integers must be integers, and arrays such as these.
    """
    signature = tuple(map(typeof, arguments))
    loop.compile(signature)
    return loop.overloads[signature].entry_point


def put(header: NDArray[np.int64], at: int, array: NDArray[Any]) -> None:
    """Write the address and the number of elements of a contiguous array into a header."""
    header[at] = address_of(array)
    header[at + 1] = array.size


MOST_NOTED = 272  # words in which a mask may differ from another to be noted by them
ALL_WORDS = np.uint32(0xFFFFFFFF)  # in place of how many differ: all of them may
_MOST_SHEETS = 8  # kept for the next masks


class Sheet:
    """An array for a mask, with room behind it to note which of its words are not those of another mask.

    mask: (words,), behind which there are, at the same address, how many differ and which. shown: the read-only view
    that is given out.
    """

    __slots__ = ("_array", "at", "mask", "shown")

    def __init__(self, words: int) -> None:
        array = np.empty(words + 1 + MOST_NOTED, np.uint32)
        array[words] = ALL_WORDS
        self._array, self.at = array, address_of(array)
        self.mask, self.shown = array[:words], array[:words]
        self.shown.flags.writeable = False

    def holders(self) -> int:
        """Return how many hold the array or what is given out, and a number that is always the same."""
        return getrefcount(self._array) + getrefcount(self.shown)


_FREE = Sheet(1).holders()  # by nobody else


class Sheets:
    """Sheets that have been given out and let go, for masks that differ little from one another, or for any.

    Most masks are looked at once. 16 KB that were used a moment ago are written in 0.9 microseconds; in memory that the
    process has not had before it takes 7, most of them page faults. Where few words are new, nothing else is written.
    """

    __slots__ = ("_free", "_words", "give")

    def __init__(self, words: int) -> None:
        self._words = words
        self._free: deque[Sheet] = deque()
        self.give = self._free.append  # a sheet back that was taken, before or after its mask is let go

    def take(self) -> Sheet:
        """Return a sheet that nobody else will read, with what was written on it last."""
        try:
            sheet = self._free.popleft()  # and so no other thread has it
        except IndexError:
            return Sheet(self._words)
        if sheet.holders() == _FREE:
            return sheet
        if len(self._free) < _MOST_SHEETS:
            self._free.append(sheet)
        return Sheet(self._words)
