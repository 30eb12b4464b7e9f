"""What kernels need to know of a nested table to keep a budget of tokens.

Kernels take names from this file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.compiled import kernel
from ...kernels.limits import UNREACHABLE
from ...kernels.pointers import borrowed
from .table_pointers import HostTable


class Budget(NamedTuple):
    """Distances by C ends of fragments, F of which are ends of fragments that make calls: see `Distances`."""

    code_distance: NDArray[np.int64]  # (S + 2 + A, C) from codes
    site_distance: NDArray[np.int64]  # (K, C, F) from returns
    code_frames: NDArray[np.int64]  # (S + 2 + A, C) frames that the former take, or (0, C)
    site_frames: NDArray[np.int64]  # (K, C, F) frames that the latter take, or (0, C, F)


@kernel
def borrowed_budget(budget: Budget) -> Budget:
    """Return a budget of arrays that show others: see `borrowed`."""
    code, site = budget.code_distance, budget.site_distance
    code_frames, site_frames = budget.code_frames, budget.site_frames
    return Budget(
        borrowed(code.reshape(code.size)).reshape(code.shape), borrowed(site.reshape(site.size)).reshape(site.shape),
        borrowed(code_frames.reshape(code_frames.size)).reshape(code_frames.shape),
        borrowed(site_frames.reshape(site_frames.size)).reshape(site_frames.shape),
    )  # fmt: skip


NO_BUDGET = Budget(*(np.empty(shape, np.int64) for shape in ((0, 1), (0, 1, 1)) * 2))
"""Stands for any number of tokens."""
for _empty in NO_BUDGET:
    _empty.flags.writeable = False


def budget_of(table: HostTable) -> Budget:
    """Return the budget of a table, whose distances are worked out the first time."""
    found = table.distances
    return Budget(found.code, found.site, found.code_frames, found.site_frames)


def tokens_left(remaining: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many tokens may still be written (n,) as int64 from 0 to `UNREACHABLE`, of any type of integers.

    Numbers below 0 become 0, and numbers above UNREACHABLE become UNREACHABLE: masks stay the same. Kernels subtract 1,
    which would wrap around at the least integer.

    >>> tokens_left(np.array([-(2**63), 7, 2**63 - 1])).tolist()
    [0, 7, 2147483647]
    >>> tokens_left(np.array([2**64 - 1], np.uint64)).tolist()
    [2147483647]
    """
    if remaining.dtype == np.uint64:  # of which int64 holds only the lesser half
        remaining = np.minimum(remaining, np.uint64(UNREACHABLE))
    return np.clip(remaining.astype(np.int64), 0, UNREACHABLE)
