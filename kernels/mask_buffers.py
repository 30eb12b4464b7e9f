"""Reusable buffers for masks: memory that was used a moment ago is written several times faster than new memory.

Kernels take names from this file.
"""

from __future__ import annotations

from collections import deque
from sys import getrefcount

import numpy as np

from .pointers import address_of

MOST_NOTED = 272  # words in which a mask may differ from another to be noted by them
ALL_WORDS = np.uint32(0xFFFFFFFF)  # in place of how many differ: all of them may
_MOST_SHEETS = 8  # kept for the next masks


class MaskBuffer:
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


_FREE = MaskBuffer(1).holders()  # by nobody else


class MaskBuffers:
    """Sheets that have been given out and let go, for masks that differ little from one another, or for any.

    Most masks are looked at once. 16 KB that were used a moment ago are written in 0.9 microseconds; in memory that the
    process has not had before it takes 7, most of them page faults. Where few words are new, nothing else is written.
    """

    __slots__ = ("_free", "_words", "give")

    def __init__(self, words: int) -> None:
        self._words = words
        self._free: deque[MaskBuffer] = deque()
        self.give = self._free.append  # a sheet back that was taken, before or after its mask is let go

    def take(self) -> MaskBuffer:
        """Return a sheet that nobody else will read, with what was written on it last."""
        try:
            sheet = self._free.popleft()  # and so no other thread has it
        except IndexError:
            return MaskBuffer(self._words)
        if sheet.holders() == _FREE:
            return sheet
        if len(self._free) < _MOST_SHEETS:
            self._free.append(sheet)
        return MaskBuffer(self._words)
