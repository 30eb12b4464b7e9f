"""Codes in the rows of a pushdown machine, and which numbers its states have.

A row has a code for each of the 256 bytes. A code of 0 or more is the state that the byte leads to. Codes below 0 are,
from the greatest down: no way on, returns by their labels, returns that keep the byte, and calls by their numbers.

Kernels take names from this file.
"""

from __future__ import annotations

DEAD = -1
"""No way on."""
RETURN = -2
"""Minus the label: the fragment ends with this byte."""
KEEP = -(1 << 20)
"""Minus the label: the fragment ended before this byte, which is read by the code behind the return."""
CALL = -(1 << 21)
"""Minus the number of the call, which pushes a site and enters a fragment."""

UNWRITTEN = 0
"""In rows that are left for later: nothing leads to state 0, the start of the whole."""
KEYS = 1 << 27
"""From here on states are those of tries of words, which have no rows: see `WordTries`."""
STRINGS = 1 << 28
"""From here on states are those of counted strings: see `PushdownMachine.string`."""
TEXTS = 3 << 28
"""From here on states are those of strings by their content: see `Content`."""
PHASES = 9
"""States of a text for each state of its content: see `Content`."""
