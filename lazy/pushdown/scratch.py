"""Memory that kernels work in: each thread keeps some, so that a mask allocates nothing.

The *scratch* of a walk holds the levels of the general walk, the levels of a walk inside it, and the pending parts. Its
address is in the header. Before that address lie the words in which a mask differs from its base, and before those a
number of the base.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.mask_buffers import MOST_NOTED
from ...kernels.pointers import address_of
from .header import MOST_PENDING
from .string_walks import scratch_size

_MOST_LEVELS = 512  # of a scratch that is kept: 2 MB
_SLAB_NUMBERS = 1 << 14

_kept = threading.local()


class Scratch(NamedTuple):
    """The scratch of a thread, for a number of levels of the trie."""

    levels: int
    at: int  # its address
    numbers: NDArray[np.int64]  # all of the memory
    differing: memoryview  # before the address: a number, then places and words, uint32


def scratch_of(levels: int) -> Scratch:
    """Return the scratch of this thread for at least so many levels; the thread keeps it unless it is large."""
    found: Scratch | None = getattr(_kept, "scratch", None)
    if found is None or found.levels < levels:
        before = 1 + MOST_NOTED
        numbers = np.empty(before + 2 * scratch_size(levels) + 3 * MOST_PENDING, np.int64)
        found = Scratch(levels, address_of(numbers) + 8 * before, numbers, numbers[:before].view(np.uint32).data)
        if levels <= _MOST_LEVELS:
            _kept.scratch = found
    return found


def content_buffer(size: int) -> int:
    """Return the address of memory for so many numbers of 32 bits, which this thread keeps; see `write_content`."""
    found: NDArray[np.uint32] | None = getattr(_kept, "content_buffer", None)
    if found is None or found.size < size:
        found = _kept.content_buffer = np.empty(size, np.uint32)
    return address_of(found)


class Slab:
    """Memory for numbers that are written one after another, and stay: `left` numbers from the address `at` on."""

    __slots__ = ("at", "left", "numbers")

    def __init__(self, size: int) -> None:
        self.numbers = np.empty(size, np.int64)
        self.at, self.left = address_of(self.numbers), size

    def take(self, used: int) -> int:
        """Return the address of numbers that were written, and go on behind them."""
        at = self.at
        self.at, self.left = at + 8 * used, self.left - used
        return at


def slab_with(least: int) -> Slab:
    """Return a slab of this thread that has so many numbers left."""
    found: Slab | None = getattr(_kept, "slab", None)
    if found is None or found.left < least:
        found = _kept.slab = Slab(max(least, _SLAB_NUMBERS))
    return found
