"""Bitmasks that serving engines keep for a whole batch: rows of 32-bit words, one row a sequence."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .thread_pool import own_threads

_USUAL_THREADS = 8  # of the pool that calls share


class FillsRows(Protocol):
    """A sequence that writes its mask into a row; `Matcher` is one."""

    def fill_bitmask(self, bitmask: object, row: int = 0) -> None:
        """Write the tokens allowed next into a row of bitmasks."""


def words_of_rows(bitmask: Any) -> NDArray[np.uint32]:
    """Return the words of bitmasks (rows, words), which share memory with them.

    bitmask: int32 or uint32, a numpy array or a torch tensor in the host's memory. Raises TypeError for anything else,
    ValueError for another number of axes.
    """
    if not isinstance(bitmask, np.ndarray):
        device = getattr(bitmask, "device", None)
        if device is None or not hasattr(bitmask, "numpy"):
            raise TypeError(f"a bitmask is a numpy array or a torch tensor, not {type(bitmask).__name__}")
        if getattr(device, "type", None) != "cpu":
            raise TypeError(f"the bitmask is on {device}: fill one in the host's memory and copy it there")
        bitmask = bitmask.numpy()
    if bitmask.dtype != np.int32 and bitmask.dtype != np.uint32:
        raise TypeError(f"a bitmask has words of int32 or uint32, not {bitmask.dtype}")
    if bitmask.ndim != 2:
        raise ValueError(f"a bitmask has two axes, rows and words, not the shape {bitmask.shape}")
    words: NDArray[np.uint32] = bitmask.view(np.uint32)
    return words


def write_row(words: NDArray[np.uint32], row: int, mask: NDArray[np.uint32]) -> None:
    """Write a mask into a row of words (rows, words); what is beyond the mask becomes 0.

    Raises IndexError for a row that there is not, ValueError where rows are shorter than the mask.
    """
    row = operator.index(row)
    if not 0 <= row < len(words):
        raise IndexError(f"row {row} is outside the bitmask, 0 .. {len(words) - 1}")
    into, size = words[row], mask.size
    if into.size < size:
        raise ValueError(
            f"rows of the bitmask have {into.size} words, and the vocabulary takes {size}: make it with ceil(V / 32)"
        )
    into[:size] = mask
    if into.size > size:
        into[size:] = 0


def fill_bitmasks(
    matchers: Sequence[FillsRows], bitmask: object, rows: Iterable[int] | None = None, *, threads: int = 1
) -> None:
    """Write what each matcher allows next into its row of bitmasks, as `Matcher.fill_bitmask` does.

    matchers: different ones. rows: the row of each, 0, 1, .. if None. threads: how many share the work. Kernels of
    different tables run side by side, what Python does for a row does not: more than one thread pays where masks take
    long, and only costs where most take microseconds.

    Raises ValueError for other numbers of rows than matchers, a matcher that comes twice, or fewer threads than 1; and
    the errors of `fill_bitmask`.
    """
    places = list(range(len(matchers))) if rows is None else [operator.index(row) for row in rows]
    if len(places) != len(matchers):
        raise ValueError(f"there are {len(places)} rows and {len(matchers)} matchers: give each matcher its row")
    if len({id(matcher) for matcher in matchers}) != len(matchers):
        raise ValueError("a matcher comes twice: it is not to be shared between threads, take a copy")
    if operator.index(threads) < 1:
        raise ValueError(f"threads={threads} must be 1 or more")
    threads = max(1, min(threads, len(places)))

    def fill(first: int) -> None:
        for at in range(first, len(places), threads):
            matchers[at].fill_bitmask(bitmask, places[at])

    if threads == 1:
        fill(0)
        return
    pool = own_threads(max(threads - 1, _USUAL_THREADS))
    others = [pool.submit(fill, first) for first in range(1, threads)]
    try:
        fill(0)
    finally:
        for other in others:  # none may go on writing once this returns
            other.exception()
    for other in others:
        other.result()
