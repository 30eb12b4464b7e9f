"""States of counted strings: any characters, between a fewest and a most number of them.

State first + k * states + q of a counted string is state q of any string after k characters.
"""

from __future__ import annotations

import numpy as np

from ...automata.state_ranges import DEAD, RETURN
from ...kernels.arrays import Bool, Int, Int64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from .header import AT_ANY_STRING, AT_STRING_ROWS, AT_STRINGS


@kernel
def string_at(header: Int64Array, here: Int) -> tuple[Int, Int, Int, Int]:
    """Return a counted string's first state, its states for each count, and its bounds, the upper one -1 for none."""
    strings = array_at(header[AT_STRINGS], header[AT_STRINGS + 1], np.int64)  # (3, n)
    count = strings.size // 3
    at = count - 1
    while strings[at] > here:
        at -= 1
    return strings[at], header[AT_STRING_ROWS + 1] >> 8, strings[count + at], strings[2 * count + at]


@kernel
def counted_code(header: Int64Array, here: Int, byte: Int) -> Int:
    """Return the code of a state of a counted string and a byte."""
    rows = array_at(header[AT_STRING_ROWS], header[AT_STRING_ROWS + 1], np.int32)
    first, states, low, high = string_at(header, here)
    k = (here - first) // states
    code = np.int64(rows[(here - first - k * states) << 8 | byte])
    if code == DEAD:
        return code
    if code <= RETURN:
        return code if k >= low and (high < 0 or k <= high) else np.int64(DEAD)
    done = k + (code == 0)
    if high < 0 and done >= low:
        return np.int64(header[AT_ANY_STRING] + code)
    if high >= 0 and done + (code > 0) > high:
        return np.int64(DEAD)
    return np.int64(first + done * states + code)


@kernel
def equals_any_string(header: Int64Array, state: Int, like: Int, most: Int) -> Bool:
    """Return whether a state of a counted string reads `most` bytes exactly as the state `like` of any string does."""
    first, states, low, high = string_at(header, state)
    k = (state - first) // states
    unbound = k >= low and (high < 0 or high - k >= most)
    return unbound and like == header[AT_ANY_STRING] + state - first - k * states
