"""What kernels need to know of a nested table to keep a budget of tokens.

Kernels take names from this file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .table_pointers import HostTable


class Budget(NamedTuple):
    """Distances by C ends of fragments, F of which are ends of fragments that make calls: see `Distances`."""

    code_distance: NDArray[np.int64]  # (S + 2 + A, C) from codes
    site_distance: NDArray[np.int64]  # (K, C, F) from returns
    code_frames: NDArray[np.int64]  # (S + 2 + A, C) frames that the former take, or (0, C)
    site_frames: NDArray[np.int64]  # (K, C, F) frames that the latter take, or (0, C, F)


NO_BUDGET = Budget(*(np.empty(shape, np.int64) for shape in ((0, 1), (0, 1, 1)) * 2))
"""Stands for any number of tokens."""
for _empty in NO_BUDGET:
    _empty.flags.writeable = False


def budget_of(table: HostTable) -> Budget:
    """Return the budget of a table, whose distances are worked out the first time."""
    found = table.distances
    return Budget(found.code, found.site, found.code_frames, found.site_frames)
