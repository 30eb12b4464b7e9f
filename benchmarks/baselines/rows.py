"""Sorted, distinct rows of semantic IDs and the trie nodes in them."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def check(sids: Any, vocab_size: int) -> Array:
    """Return `sids` as an (N, L) integer array; ValueError where it is not one or leaves [0, V)."""
    rows = np.asarray(sids)
    if rows.ndim != 2 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"sids must be a non-empty (N, L) integer array, not {rows.dtype} {rows.shape}")
    if rows.min() < 0 or rows.max() >= vocab_size:
        raise ValueError(f"sids must lie in [0, {vocab_size}); found {rows.min()} to {rows.max()}")
    return rows


def sorted_columns(rows: Array, vocab_size: int) -> Array:
    """Return the distinct rows in lexicographic order, one column after the other: (N, L) -> (L, N').

    Tokens are narrowed first: `np.lexsort` sorts 16-bit keys by radix, and all that moves is smaller.
    """
    columns = np.ascontiguousarray(rows.T, dtype=np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    columns = columns[:, np.lexsort(columns[::-1])]
    keep = np.ones(columns.shape[1], bool)
    keep[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
    return columns if keep.all() else np.ascontiguousarray(columns[:, keep])


def node_starts(columns: Array) -> Array:
    """Return where rows begin new trie nodes, (L, N) bool: at [l, i] row i's first l + 1 tokens are new."""
    starts = np.ones(columns.shape, bool)
    for level, column in enumerate(columns):
        np.not_equal(column[1:], column[:-1], out=starts[level, 1:])
        if level:
            starts[level, 1:] |= starts[level - 1, 1:]
    return starts
