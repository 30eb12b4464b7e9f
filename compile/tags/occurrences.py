"""Automata that find where triggers, ends and excluded texts occur in free text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical

_BYTES_PER_STATE = 1500  # a row, and a dict while it is made
_LOOKING = "making what looks for triggers and ends"
Ends = tuple[bytes, ...]
"""The texts of which one ends a tag."""


class Occurrences:
    """The states of texts by what they end with, of some patterns: the automaton of Aho and Corasick (1975)."""

    def __init__(self, patterns: Sequence[bytes], meter: Meter) -> None:
        most = 1 + sum(map(len, patterns))
        meter.check(states=most, bytes=_BYTES_PER_STATE * most, doing=_LOOKING)
        children: list[dict[int, int]] = [{}]
        ends: list[bytes | None] = [None]  # the longest pattern that a text ends with
        for pattern in patterns:
            at = 0
            for byte in pattern:
                if byte not in children[at]:
                    children[at][byte] = len(children)
                    children.append({})
                    ends.append(None)
                at = children[at][byte]
            ends[at] = pattern
        rows = np.zeros((len(children), BYTES), np.int32)
        back = [0] * len(children)
        todo = [0]
        for node in todo:
            if node:
                rows[node] = rows[back[node]]
                ends[node] = ends[node] or ends[back[node]]
            for byte, child in children[node].items():
                back[child] = int(rows[node, byte]) if node else 0
                rows[node, byte] = child
                todo.append(child)
        self.rows: NDArray[np.int32] = rows
        self.ends = ends
        self.ended: NDArray[np.bool_] = np.array([end is not None for end in ends])
        self._length: NDArray[np.int64] = np.array([len(end or b"") for end in ends])

    def first(self, text: bytes) -> bytes:
        """Return the pattern that occurs first in a text: the one that ends first, of these the longest."""
        at = 0
        for byte in text:
            at = int(self.rows[at, byte])
            found = self.ends[at]
            if found is not None:
                return found
        raise ValueError(f"no pattern occurs in {text!r}")

    def begun(self, text: bytes, which: Collection[bytes]) -> NDArray[np.bool_]:
        """Return of each state whether the first pattern that a following text completes begins with it, one of some.

        Other patterns may complete first, or at the same byte and be longer: they begin before the text or within it.
        """
        chosen = np.array([end is not None and end in which for end in self.ends])
        return self._complete(text, lambda at, size: chosen[at] & (self._length[at] == size))

    def closed(self, text: bytes) -> NDArray[np.bool_]:
        """Return of each state whether a following text completes one pattern, itself, and only at its last byte."""
        return self._complete(text, lambda at, size: (self._length[at] == size) & np.bool_(size == len(text)))

    def _complete(self, text: bytes, fits: Callable[[NDArray[Any], int], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        at = np.arange(len(self.rows))
        open_, out = ~self.ended, np.zeros(len(self.rows), np.bool_)
        for size, byte in enumerate(text, 1):
            at = self.rows[at, byte]
            now = open_ & self.ended[at]
            out |= now & fits(at, size)
            open_ &= ~now
        return out

    def quiet(self, meter: Meter, accepting: NDArray[np.bool_] | None = None, start: int = 0) -> Dfa:
        """Return the texts in which no pattern occurs.

        accepting: the states that they may end in, all if None. start: the state of what stands before them.
        """
        meter.check(states=len(self.rows), bytes=2 * self.rows.nbytes, doing=_LOOKING)
        rows = np.where(self.ended[:, None] | self.ended[self.rows], np.int32(-1), self.rows)
        kept = ~self.ended if accepting is None else accepting & ~self.ended
        return canonical(np.arange(BYTES, dtype=np.uint16), rows, kept, start, meter)
