"""Bases: masks that states share, from which the mask of a state differs in few words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.mask_buffers import MaskBuffers
from ...kernels.pointers import address_of

_NO_EXITS = np.empty(0, np.int32)


class Base(NamedTuple):
    """What one or more states allow: a mask, and the exits beside it, which depend on the stack.

    An exit is a token that ends the string or the fragment of the state, and goes on behind it. What it has left there
    is its *rest*, and the number of the rest its *symbol*.

    Kernels read a base as `OF_BASE` numbers of 64 bits:

    | number | meaning |
    | --- | --- |
    | 0, 1 | the address of a mask, and its words |
    | 2, 3 | the address of words that differ from it, a place and a word each, and how many numbers these are |
    | 4, 5, 6, 7 | the addresses of exits: tokens, symbols, characters that each reads before the end, labels, rising |
    | 8 | how many exits there are |
    | 9, 10 | for how many the characters, and the labels, matter: all or none |
    | 11 | 1 if the base has no buffers of its own |
    """

    at: int  # the address of the numbers
    buffers: MaskBuffers | None  # which hold the mask of the base, except for the words that each notes
    nbytes: int  # of memory that no other base has
    held: tuple[Any, ...]  # whatever lies at the addresses

    @staticmethod
    def of(mask: NDArray[np.uint32], *exits: NDArray[np.int32], buffers: MaskBuffers | None = None) -> Base:
        """Return the base of contiguous arrays: a mask, and exits, if any: tokens, symbols and characters."""
        token, symbol, characters = exits + (_NO_EXITS,) * (3 - len(exits))
        mask_at, token_at = address_of(mask), address_of(token)
        numbers = np.array(
            [
                mask_at, mask.size, mask_at, 0, token_at, address_of(symbol), address_of(characters), token_at,
                token.size, characters.size, 0, buffers is None,
            ],
            np.int64,
        )  # fmt: skip
        return Base(address_of(numbers), buffers, mask.nbytes, (mask, token, symbol, characters, numbers))
