"""UTF-8 in kernels: which bytes may come within a character, and sets of groups of characters.

A *phase* is 0 between characters, and otherwise says how many bytes of the character are left: 1 to 3, or 4 to 7 where
the next byte is bound more tightly (after E0, ED, F0, F4). For groups of characters see `vocabulary.BYTE_GROUP`.
"""

from __future__ import annotations

import numpy as np

from ...kernels.arrays import Bool, Int
from ...kernels.compiled import kernel
from ...vocabulary.characters import BYTE_GROUP, UNCLEAN


@kernel
def next_phase(byte: Int, phase: Int) -> Int:
    """Return the phase after one more byte."""
    if phase:
        return phase - 1 if phase < 4 else 1 if phase < 6 else 2
    if byte < 0x80:
        return 0
    if byte < 0xF0:
        return 1 if byte < 0xE0 else 4 if byte == 0xE0 else 5 if byte == 0xED else 2
    return 6 if byte == 0xF0 else 7 if byte == 0xF4 else 3


@kernel
def byte_range(phase: Int) -> tuple[Int, Int]:
    """Return the lowest and the highest byte that may come in a phase within a character."""
    low = 0xA0 if phase == 4 else 0x90 if phase == 6 else 0x80
    return low, 0x9F if phase == 5 else 0x8F if phase == 7 else 0xBF


@kernel
def num_groups(groups: np.uint64) -> Int:
    """Return how many groups are in a set."""
    size = 0
    while groups:
        groups &= groups - np.uint64(1)
        size += 1
    return size


@kernel
def continues(byte: Int, read: Int, groups: np.uint64) -> Bool:
    """Return whether a byte, after `read` others, begins a character of some groups or is within a character."""
    if BYTE_GROUP[byte] == UNCLEAN:
        return read > 0
    return bool((groups >> np.uint64(BYTE_GROUP[byte])) & np.uint64(1))
