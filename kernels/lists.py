"""Lists by key, one behind the other in one array, filled in two passes: the first counts what the second puts in.

Kernels take names from this file.
"""

from __future__ import annotations

import numpy as np

from .arrays import Int, Int64Array
from .compiled import kernel


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
