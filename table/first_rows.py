"""The first row of each token in each interval of a sorted matrix, at depths where all rows are more to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sorted_matrix import SortedMatrix

# first rows of a depth are kept where an interval has more than 256 rows and more than twice as many as any has
# different tokens, since they take memory for every prefix; and wherever one has more rows than there are tokens
_ALIKE, _LONG = 2, 256


def first_rows(matrix: SortedMatrix, masked: int, least: int = 2) -> list[NDArray[np.int32] | None]:
    """Return the first row (k,) of each prefix of one token more, for each depth that keeps them; None for others.

    A depth has at most Q of them. See `keeping_depths`.
    """
    return rows_of_prefixes(
        matrix.columns, keeping_depths(matrix.widths, matrix.branches, matrix.vocab_size, masked, least)
    )


def keeping_depths(
    widths: Sequence[int], branches: Sequence[int], vocab_size: int, masked: int, least: int = 2
) -> list[bool]:
    """Return which depths (L,) of a matrix keep first rows.

    masked: depths at which masks say what is allowed. least: the fewest different tokens of an interval for which they
    are worth it.
    """
    return [
        depth >= masked and most >= least and width > min(max(_ALIKE * most, _LONG), vocab_size)
        for depth, (width, most) in enumerate(zip(widths, branches, strict=True))
    ]


def rows_of_prefixes(columns: NDArray[Any], wanted: Sequence[bool]) -> list[NDArray[np.int32] | None]:
    """Return of sorted columns (L, n) the first row of each prefix of depth + 1 tokens, for each depth wanted."""
    out: list[NDArray[np.int32] | None] = [None] * len(wanted)
    new = np.zeros(columns.shape[1], np.bool_)
    new[:1] = True
    for depth, column in enumerate(columns):
        if not any(wanted[depth:]):
            break
        new[1:] |= column[1:] != column[:-1]
        if wanted[depth]:
            out[depth] = np.flatnonzero(new).astype(np.int32)
    return out
