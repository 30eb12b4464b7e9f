"""Automata that find where triggers, ends and excluded texts occur in free text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.deadline import look
from ...automata.dfa import BYTES, Dfa
from ...automata.minimize import canonical

_BYTES_PER_STATE = 1700  # a row, dicts and lists
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
        paths: list[list[int]] = []  # the states of the prefixes of each pattern
        for pattern in patterns:
            look(_LOOKING)
            at = 0
            path = [0]
            for byte in pattern:
                if byte not in children[at]:
                    children[at][byte] = len(children)
                    children.append({})
                    ends.append(None)
                at = children[at][byte]
                path.append(at)
            ends[at] = pattern
            paths.append(path)
        rows = np.zeros((len(children), BYTES), np.int32)
        back = [0] * len(children)  # the state of the longest proper suffix
        longer: dict[int, list[int]] = {}
        todo = [0]
        for node in todo:
            look(_LOOKING)
            if node:
                rows[node] = rows[back[node]]
                ends[node] = ends[node] or ends[back[node]]
                longer.setdefault(back[node], []).append(node)
            for byte, child in children[node].items():
                back[child] = int(rows[node, byte]) if node else 0
                rows[node, byte] = child
                todo.append(child)
        self.rows: NDArray[np.int32] = rows
        self.ends = ends
        self.ended: NDArray[np.bool_] = np.array([end is not None for end in ends])
        self._longer = longer  # the states whose longest proper suffix a state is
        self._paths = paths
        # the patterns of which a state is a proper suffix
        self._suffixes: dict[int, list[int]] = {}
        for number, path in enumerate(paths):
            look(_LOOKING)
            at = back[path[-1]]
            while at:
                self._suffixes.setdefault(at, []).append(number)
                at = back[at]

    def first(self, text: bytes) -> bytes:
        """Return the pattern that occurs first in a text: the one that ends first, of these the longest."""
        at = 0
        for byte in text:
            at = int(self.rows[at, byte])
            found = self.ends[at]
            if found is not None:
                return found
        raise ValueError(f"no pattern occurs in {text!r}")

    def prefix(self, text: bytes, which: Collection[bytes]) -> bytes | None:
        """Return the shortest pattern, one of some, with which a text begins; None if there is none."""
        at = 0
        for size, byte in enumerate(text, 1):
            at = int(self.rows[at, byte])
            found = self.ends[at]
            if found is not None and len(found) == size and found in which:
                return found
        return None

    def begun(self, text: bytes, which: Collection[bytes]) -> NDArray[np.bool_]:
        """Return of each state whether the first occurrence that a following pattern completes begins with it.

        text: the pattern. which: the patterns that may complete first. Others may complete earlier, or at the same byte
        and be longer: they begin before the text or within it.
        """
        first = self.first(text)
        return self._alone(text, len(first) if first in which and text.startswith(first) else 0)

    def closed(self, text: bytes) -> NDArray[np.bool_]:
        """Return of each state whether a following pattern completes no other, and itself only at its last byte."""
        return self._alone(text, len(text) if self.first(text) == text else 0)

    def _alone(self, text: bytes, size: int) -> NDArray[np.bool_]:
        """Return of each state whether no pattern that begins before a text ends within its first `size` bytes.

        size: 0 for no state. Such a pattern begins with a suffix of what stands before, and ends with a beginning of
        the text.
        """
        out = ~self.ended if size else np.zeros(len(self.rows), np.bool_)
        blocked: list[int] = []
        at = 0
        for length in range(1, size + 1):
            look(_LOOKING)
            at = int(self.rows[at, text[length - 1]])
            blocked += [self._paths[number][-1 - length] for number in self._suffixes.get(at, ())]
        while blocked:
            look(_LOOKING)
            at = blocked.pop()
            if out[at]:
                out[at] = False
                blocked += self._longer.get(at, ())
        return out

    def quiet(self, meter: Meter, accepting: NDArray[np.bool_] | None = None, start: int = 0) -> Dfa:
        """Return the texts in which no pattern occurs.

        accepting: the states that they may end in, all if None. start: the state of what stands before them.
        """
        meter.check(states=len(self.rows), bytes=2 * self.rows.nbytes, doing=_LOOKING)
        rows = np.where(self.ended[:, None] | self.ended[self.rows], np.int32(-1), self.rows)
        kept = ~self.ended if accepting is None else accepting & ~self.ended
        return canonical(np.arange(BYTES, dtype=np.uint16), rows, kept, start, meter)
