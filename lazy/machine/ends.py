"""How many bytes an end is away from the states of a machine, as its rules find it.

Every byte is a token of its own, so a frame that can end within n bytes can end within n tokens. Rules find the length
of some text, which is never too low a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...automata.alphabet import Alphabet
from .header import UNKNOWN
from .rules import CALL, DEAD, KEEP, POP, Rules


class EndLengths:
    """The bytes in which frames can end, by state; found when they are asked for."""

    def __init__(self, rules: Rules, row: Callable[[int], Sequence[int]]) -> None:
        """row: returns the row of a state."""
        self._rules, self._row = rules, row
        self._most_left = [_most_left(alphabet) for alphabet in rules.alphabets]

    def of(self, state: int) -> int:
        """Return the bytes of a text that ends the frame of a state; UNKNOWN where none was found soon."""
        length = self._rules.bytes_to_end(state)
        return UNKNOWN if length is None else length

    def within(self, state: int) -> int:
        """Return the bytes to an end from within any character that a state reads; UNKNOWN or more."""
        most_left = self._most_left[self._rules.alphabet_of(state)]
        if not most_left:
            return 0
        costs = [self.behind(code) for code in set(self._row(state)) if code != DEAD]
        return most_left + max(costs, default=0)

    def behind(self, code: int) -> int:
        """Return the bytes to an end of the frame behind a character that is read by a code."""
        if code >= 0:
            return self.of(code)
        if code in (POP, KEEP):
            return 0
        inner, behind = self._rules.calls[CALL - code]
        return self.of(inner) + sum(map(self.of, behind))


def _most_left(alphabet: Alphabet) -> int:
    """Return the most bytes that may follow the first byte of a character."""
    left = np.zeros(len(alphabet.inner), np.int64)
    for n, row in enumerate(alphabet.inner):  # which leads to rows before it
        left[n] = 1 + left[row[row >= 0]].max(initial=0)
    return int(left.max(initial=0))
