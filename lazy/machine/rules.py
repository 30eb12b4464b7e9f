"""What a lazy machine asks of the language that it reads: one row for each state that a text comes to.

Kernels take names from this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...automata.alphabet import Alphabet

DEAD = -1
"""In a row: no text goes on so."""
POP = -2
"""The innermost open frame ends with this character. The text goes on in the state that the frame was opened before."""
KEEP = -3
"""The frame ended before this character, which that state reads."""
NO_LIMIT = 1 << 20
"""More characters than any token begins."""
CALL = -16
"""Minus the number of a call, see `Rules.calls`: the character opens frames."""


class Rules(Protocol):
    """States are numbers from 0, the start; rules make a state when they name it in a row.

    A row never leads to a state from which no text can be completed. Where the last frame ends, the text is complete:
    a `POP` with nothing open leads to `end`. `KEEP` stands for characters of one byte alone.
    """

    end: int
    """The state of a text that is complete: it reads nothing. Of rules without frames, any state."""

    alphabets: Sequence[Alphabet]
    """How bytes spell classes of characters; they do not change."""
    calls: list[tuple[int, tuple[int, ...]]]
    """What a call does: the state that it leads to, and the states to go on in behind the frames that it opens, the
    outermost first. Rules append to it."""

    def alphabet_of(self, state: int) -> int:
        """Return the place of a state's alphabet in `alphabets`."""

    def row(self, state: int) -> Sequence[int]:
        """Return where each class of its alphabet leads from a state: a state, `DEAD`, `POP`, `KEEP` or a call."""

    def rows(self, state: int) -> tuple[list[int], NDArray[np.int32]]:
        """Return states of one alphabet, of which one has been asked for, and their rows (N, C).

        The others are neighbours that are made with it in less time. No row of theirs leads to its own state.
        """

    def accepts(self, state: int) -> bool:
        """Return whether a text may end in a state if nothing is open."""

    def alike(self, state: int) -> int:
        """Return a state that reads the same texts of up to the longest token's length, which may be itself.

        Reading a text means here that what it leads to can be completed.
        """

    def counts(self, state: int) -> tuple[int, int] | None:
        """Return the state that some characters lead to, and how many of them may follow; None where that is not known.

        The state does nothing but count them: just those that lead there lead on from there, and so on, until there are
        so many. `NO_LIMIT` stands for any number.
        """

    def bytes_to_end(self, state: int) -> int | None:
        """Return the bytes of `text_to_end`; None where there is none."""

    def text_to_end(self, state: int) -> bytes | None:
        """Return a short text that ends the frame of a state; None where a search found none soon."""

    @property
    def left_out(self) -> int:
        """Return how often a way on was left out of a row, as the search for a text that completes it took long."""

    @property
    def nbytes(self) -> int:
        """Return about how many bytes all that was made takes."""
