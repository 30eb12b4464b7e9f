"""How many words of each length lead from the states of a DFA to an end, as exact integers."""

from __future__ import annotations

from collections.abc import Sequence

from .budget import Meter

_COUNTED = 1024  # states after which a meter is asked again
_INTEGER = 36  # bytes of a small integer of Python, and of the place that refers to it


class Ways:
    """For each k a list over states: how many words of at most k symbols lead from there to an end."""

    def __init__(self, accepting: Sequence[bool], steps: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Begin with words of no symbols. steps: of each state (next state, number of symbols that lead there)."""
        self._counts = [[int(end) for end in accepting]]
        self._steps = steps
        self._nbytes = 0

    def up_to(self, length: int, meter: Meter | None = None) -> list[list[int]]:
        """Return the lists for 0 to `length` or more. Raises BudgetError if counting takes more than there is."""
        ends = self._counts[0]
        while len(self._counts) <= length:
            last, longer, nbytes = self._counts[-1], list[int](), 0
            for first in range(0, len(ends), _COUNTED):
                if meter is not None:
                    meter.check(bytes=self._nbytes + nbytes, doing="counting members")
                there = slice(first, first + _COUNTED)
                counted = [
                    end + sum(w * last[t] for t, w in row)
                    for end, row in zip(ends[there], self._steps[there], strict=True)
                ]
                longer += counted
                nbytes += sum(_INTEGER + (count.bit_length() >> 3) for count in counted)
            self._counts.append(longer)
            self._nbytes += nbytes
        return self._counts
