"""Where open addressing looks for a key first."""

from __future__ import annotations

import numpy as np

from ..kernels.arrays import Int
from ..kernels.compiled import kernel


@kernel(inline="always")
def slot_of(key: Int, slots: int) -> Int:
    """Return the slot of a key of up to 64 bits, perhaps of several parts, in a table of `slots`, a power of two.

    All bits of the key count. A product's low half knows nothing of a key's high half, so both are folded.
    """
    mixed = np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(slots - 1))
