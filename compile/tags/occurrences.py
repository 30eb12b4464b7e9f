"""Automata that find where triggers, ends and excluded texts occur in free text."""

from __future__ import annotations

from collections.abc import Sequence

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
        self.patterns = patterns
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

    def first(self, text: bytes) -> bytes:
        """Return the pattern that occurs first in a text: the one that ends first, of these the longest."""
        at = 0
        for byte in text:
            at = int(self.rows[at, byte])
            found = self.ends[at]
            if found is not None:
                return found
        raise ValueError(f"no pattern occurs in {text!r}")

    def dfa(self, which: Ends | None, meter: Meter) -> Dfa:
        """Return the texts in which one of some patterns occurs, and only at the end; None: in which none does."""
        ended = np.array([end is not None for end in self.ends], np.bool_)
        meter.check(states=len(self.rows), bytes=2 * self.rows.nbytes, doing=_LOOKING)
        rows = np.where(ended[:, None], np.int32(-1), self.rows)
        accepting = ~ended if which is None else np.array([end is not None and end in which for end in self.ends])
        return canonical(np.arange(BYTES, dtype=np.uint16), rows, accepting, meter=meter)
