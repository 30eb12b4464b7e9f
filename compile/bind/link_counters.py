"""Places in the array of counters that linking keeps.

Kernels take names from this file.
"""

EDGES, EXITS, ACTIONS, REMAINDERS, SYMBOLS = range(5)
