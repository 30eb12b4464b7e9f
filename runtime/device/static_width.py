"""How many tokens the states of a table can allow, known before any of them is reached."""

from __future__ import annotations

from numbers import Integral

import numpy as np

from .backend import Placed
from .device_table import DeviceTable

NARROW = 4
"""A row's allowed tokens are gathered, in place of masking all logits, where they are at most one in so many."""


def static_width(dev: Placed, level: int | None = None) -> int | None:
    """Return the most tokens that states at a depth allow, ends among them; None if that is not less than all.

    level None: any state. Known of tries, and of graphs in which no row has a mask and nothing is called.
    """
    if level is not None and (not isinstance(level, Integral) or isinstance(level, bool) or level < 0):
        raise ValueError(f"level={level!r} must be a depth, 0 or more, or None for states of any depth")
    on_device = isinstance(dev, DeviceTable)
    if dev.is_trie:
        levels = dev.levels if level is None else dev.levels[int(level) : int(level) + 1]
        width = max([1, *(one.width for one in levels)])  # beyond the longest all are final
    elif dev.calls is not None or dev.has_masks if on_device else dev.is_nested or dev.bases.masks.shape[0]:
        return None
    else:
        width = dev.sparse_width if on_device else max(1, int(np.diff(dev.rows.edge_start).max()))
    width += len(dev.ends)
    return width if width < dev.vocab_size else None


def edges_of(dev: Placed, width: int) -> int:
    """Return how many of a static width are no ends."""
    return width - len(dev.ends)
