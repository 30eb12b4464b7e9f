"""The first row of each token in each interval of a sorted matrix, at depths where all rows are more to read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .sorted_matrix import SortedMatrix

# first rows of a depth are kept where an interval has more than 256 rows and more than twice as many as any has
# different tokens, since they take memory for every prefix; and wherever one has more rows than there are tokens
_ALIKE, _LONG = 2, 256


def first_rows(matrix: SortedMatrix, masked: int, least: int = 2) -> list[NDArray[np.int32] | None]:
    """Return the first row (k,) of each prefix of one token more, for each depth that keeps them; None for others.

    masked: depths at which masks say what is allowed. least: the fewest different tokens of an interval for which they
    are worth it. A depth has at most Q of them.
    """
    wanted = [
        depth >= masked and branches >= least and width > min(max(_ALIKE * branches, _LONG), matrix.vocab_size)
        for depth, (width, branches) in enumerate(zip(matrix.widths, matrix.branches, strict=True))
    ]
    out: list[NDArray[np.int32] | None] = [None] * matrix.length
    new = np.zeros(matrix.num_sequences, np.bool_)
    new[0] = True
    for depth, column in enumerate(matrix.columns):
        if not any(wanted[depth:]):
            break
        new[1:] |= column[1:] != column[:-1]
        if wanted[depth]:
            out[depth] = np.flatnonzero(new).astype(np.int32)
    return out
