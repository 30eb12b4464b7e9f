"""Several end tokens: tables and their kernels know one, `eos`, which stands for all of them.

Any token of `other_ends` is read as `eos`, and a mask that allows `eos` allows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError
from .groups import TableArrays


def all_ends(eos: int | None, other_ends: tuple[int, ...]) -> tuple[int, ...]:
    """Return all end tokens, `eos` first; () where sequences end by themselves."""
    return () if eos is None else (eos, *other_ends)


def one_or_all(ends: tuple[int, ...]) -> int | list[int] | None:
    """Return end tokens as `eos=` of the compilers takes them: one alone, a list of several, or None."""
    return list(ends) if len(ends) > 1 else next(iter(ends), None)


def checked_other_ends(other_ends: object, eos: int | None, vocab_size: int) -> tuple[int, ...]:
    """Return the end tokens beside `eos`, as a file may have them. Raises TableError for what no table has."""
    if not isinstance(other_ends, list | tuple):
        raise TableError(f"other_ends must be a list of tokens, not {other_ends!r}")
    found = tuple(other_ends)
    if found and eos is None:
        raise TableError("other_ends are beside eos, and there is none")
    if any(type(end) is not int or not 0 <= end < vocab_size for end in found) or len({eos, *found}) <= len(found):
        raise TableError(f"other_ends must be different integers from 0 to {vocab_size - 1}, without eos: {found!r}")
    return found


def check_unused(arrays: TableArrays, other_ends: Sequence[int]) -> None:
    """Raise TableError if an end token beside `eos` is an edge's, an exit's or in a mask: nothing would follow it."""
    for end in other_ends:
        masked = (arrays.bases.masks[:, end >> 5] >> np.uint32(end & 31)) & np.uint32(1)
        if masked.any() or (arrays.edges.token == end).any() or (arrays.exits.token == end).any():
            raise TableError(f"a mask, an edge or an exit has token {end}, which is one of the ends")


def as_eos(tokens: NDArray[Any], eos: int | None, other_ends: Sequence[int]) -> NDArray[Any]:
    """Return tokens with `eos` in place of other ends; the array itself where there are none."""
    if eos is None or not other_ends:
        return tokens
    return np.where(np.isin(tokens, other_ends), eos, tokens)
