"""Bits of masks: bit i of word w stands for token 32 * w + i."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Int
from .compiled import kernel


@kernel(inline="always")
def has_bit(mask: NDArray[np.uint32], token: Int) -> Any:
    """Return whether a mask (W,) has a token's bit."""
    return (mask[token >> 5] >> np.uint32(token & 31)) & np.uint32(1) != 0


@kernel
def count_bits(mask: NDArray[np.uint32]) -> Int:
    """Return how many bits of a mask (W,) are set."""
    count = np.int64(0)
    for w in range(mask.size):
        word = mask[w]
        word -= (word >> np.uint32(1)) & np.uint32(0x55555555)
        word = (word & np.uint32(0x33333333)) + ((word >> np.uint32(2)) & np.uint32(0x33333333))
        word = (word + (word >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
        count += ((word * np.uint32(0x01010101)) & np.uint32(0xFFFFFFFF)) >> np.uint32(24)
    return count
