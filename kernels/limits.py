"""Numbers that every table and every backend agrees on.

Kernels take names from this file.
"""

MOST_TOKENS = 2**31 - 3
"""The largest vocabulary: tokens and two more numbers fit into 32 bits on every backend."""

UNREACHABLE = 2**31 - 1
"""The distance of a state from which no end can be reached."""

MOST_DEPTH = 2**16
"""The largest depth of a nested table, and the most frames that a state or a return site may require."""
