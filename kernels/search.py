"""Binary search in a sorted part of an array."""

from __future__ import annotations

import numpy as np

from .arrays import Int, IntegerArray
from .compiled import kernel


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
