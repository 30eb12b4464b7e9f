"""How many tokens may still be written, as kernels take it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.limits import UNREACHABLE


def tokens_left(remaining: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many tokens may still be written (n,) as int64 from 0 to `UNREACHABLE`, of any type of integers.

    Below 0 no more is allowed than at 0, and no end is as far as UNREACHABLE: masks are the same. Kernels take 1 from
    the number, which would make the greatest number of the least.

    >>> tokens_left(np.array([-(2**63), 7, 2**63 - 1])).tolist()
    [0, 7, 2147483647]
    >>> tokens_left(np.array([2**64 - 1], np.uint64)).tolist()
    [2147483647]
    """
    if remaining.dtype == np.uint64:  # of which int64 holds only the lesser half
        remaining = np.minimum(remaining, np.uint64(UNREACHABLE))
    return np.clip(remaining.astype(np.int64), 0, UNREACHABLE)
