"""How many bytes an end is away: searches over rows for the shortest text that ends the frame of a state.

Rules that find such texts themselves are asked instead.

Every byte is a token of its own, so a frame that can end within n bytes can end within n tokens. What a search finds is
the length of some text, and so never too low a bound; it is the least there is, unless a search gave up on the way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from ...automata.alphabet import NOTHING, Alphabet
from .header import UNKNOWN
from .rules import CALL, DEAD, KEEP, POP, FindsEnds, Rules

_MOST_STATES = 4096  # that one search looks at


class ShortestEnds:
    """The bytes in which frames can end, by state; found when they are asked for."""

    def __init__(self, rules: Rules, row: Callable[[int], Sequence[int]]) -> None:
        """row: returns the row of a state."""
        self._rules, self._make_row = rules, row
        self._finds = rules if isinstance(rules, FindsEnds) else None
        self._lengths = [_lengths(alphabet) for alphabet in rules.alphabets]
        self._most_left = [_most_left(alphabet) for alphabet in rules.alphabets]
        self._found: dict[int, int] = {}
        self._open: set[int] = set()  # states whose search waits for another
        self._rows: dict[int, Sequence[int]] = {}

    def of(self, state: int) -> int:
        """Return the bytes of the shortest text that ends the frame of a state, or of a longer one; UNKNOWN or more."""
        found = self._found.get(state)
        if found is None and self._finds is not None:
            length = self._finds.bytes_to_end(state)
            found = self._found[state] = UNKNOWN if length is None else length
        if found is None:
            if state in self._open:
                return UNKNOWN
            self._open.add(state)
            try:
                found = self._search(state)
            finally:
                self._open.discard(state)
            if found < UNKNOWN or not self._open:
                self._found[state] = found
        return found

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

    def _row(self, state: int) -> Sequence[int]:
        row = self._rows.get(state)
        if row is None:
            row = self._rows[state] = self._make_row(state)
        return row

    def _search(self, start: int) -> int:
        rules = self._rules
        best, before = {start: 0}, {start: start}
        heap = [(0, start)]
        found, last = UNKNOWN, start
        for _ in range(_MOST_STATES):
            if not heap:
                break
            bytes_read, state = heapq.heappop(heap)
            if bytes_read >= found:
                break
            if best[state] < bytes_read:
                continue
            if rules.accepts(state):
                found, last = bytes_read, state
                break
            known = self._found.get(state)
            if known is not None:  # the rest of the way has been found before
                if bytes_read + known < found:
                    found, last = bytes_read + known, state
                continue
            lengths = self._lengths[rules.alphabet_of(state)]
            cheapest: dict[int, int] = {}
            for code, length in zip(self._row(state), lengths.tolist(), strict=True):
                if code != DEAD and length < cheapest.get(code, UNKNOWN):
                    cheapest[code] = length
            for code, length in cheapest.items():
                cost = bytes_read + (length if code != KEEP else 0)
                if code in (POP, KEEP):
                    if cost < found:
                        found, last = cost, state
                    continue
                to = code
                if code <= CALL:
                    inner, behind = rules.calls[CALL - code]
                    to = behind[0]
                    cost += self.of(inner) + sum(map(self.of, behind[1:]))
                if cost < min(found, best.get(to, UNKNOWN)):
                    best[to], before[to] = cost, state
                    heapq.heappush(heap, (cost, to))
        while found < UNKNOWN and last != start:  # the rest of the way is the least from there, too
            self._found.setdefault(last, found - best[last])
            last = before[last]
        return found


def _lengths(alphabet: Alphabet) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the bytes of the shortest character of each class (C,); UNKNOWN where no bytes spell one."""
    out = np.full(alphabet.classes, UNKNOWN, np.int64)
    rows, length = alphabet.root[None], 1
    seen = np.zeros(len(alphabet.inner), np.bool_)
    while rows.size:
        leaves = ~rows[(rows < 0) & (rows != NOTHING)]
        out[leaves] = np.minimum(out[leaves], length)
        nodes = np.unique(rows[rows >= 0])
        nodes = nodes[~seen[nodes]]
        seen[nodes] = True
        rows, length = alphabet.inner[nodes], length + 1
    return out


def _most_left(alphabet: Alphabet) -> int:
    """Return the most bytes that may follow the first byte of a character."""
    left = np.zeros(len(alphabet.inner), np.int64)
    for n, row in enumerate(alphabet.inner):  # which leads to rows before it
        left[n] = 1 + left[row[row >= 0]].max(initial=0)
    return int(left.max(initial=0))
