"""Reading machines with calls byte by byte, which is what they mean: the oracle for tables that tokens are bound to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from maskwright.automata.budget import Budget
from maskwright.automata.state_ranges import CALL, DEAD, KEEP, RETURN
from maskwright.compile.bind.link import link
from maskwright.compile.json_schema.approximations import Approximations
from maskwright.compile.json_schema.build import build
from maskwright.compile.json_schema.emit import emit
from maskwright.compile.json_schema.keywords import formula
from maskwright.compile.json_schema.layout import Layout
from maskwright.compile.json_schema.library import Library
from maskwright.table.transition_table import TransitionTable
from maskwright.vocabulary.vocabulary import Vocabulary

Place = tuple[int, tuple[int, ...]]


class Bytes:
    """The machine of a schema, with its states numbered as in the table, and the table."""

    def __init__(self, schema: Any, vocabulary: Vocabulary, layout: Layout, allow: Sequence[str] = ()) -> None:
        meter = Budget(seconds=120).begin()
        library = Library.of(vocabulary, layout)
        node = formula(schema, approximations=Approximations(allow), meter=meter)
        machine = emit(build(node, meter), library, meter)
        self.table: TransitionTable = link(library, machine, "", 64, meter)
        first, count = library.places.string
        self._string = library.machine.rows[first : first + count]
        self._first = first
        self._sites = machine.sites
        self._number(machine)

    def _number(self, machine: Any) -> None:
        """Number states as in the table: strings that are counted, of which machines have the beginning, come last."""
        counted = machine.counted
        gone = {at + i for at, opening, _, _ in counted for i in range(opening)}
        kept = [s for s in range(machine.size) if s not in gone]
        number = {s: i for i, s in enumerate(kept)}
        total = len(kept)
        blocks = []
        for at, opening, low, high in counted:
            number |= {at + i: total + i for i in range(opening)}
            blocks.append(self._counted(low, high, total))
            total += len(blocks[-1])
        names = np.array([number[s] for s in range(machine.size)], np.int64)
        plain = machine.rows[kept].astype(np.int64)
        plain = np.where(plain >= 0, names[np.maximum(plain, 0)], plain)
        self.rows = np.concatenate([plain, *blocks]).tolist()
        self.calls = [(site, number[state]) for site, state in machine.calls.tolist()]
        self.accepting = {number[s] for s in machine.accepting}
        start, states, _ = self._sites
        self.sites = [
            [number.get(s, -1) for s in states[start[k] : start[k + 1]].tolist()] for k in range(len(start) - 1)
        ]

    def _counted(self, low: int, high: int | None, origin: int) -> Any:
        """Return the rows of strings of low .. high characters: state (k, q) has read k, and is in q of a string."""
        string, size = self._string, len(self._string)
        positions = low if high is None else high + 1
        rows = np.full((positions * size, 256), DEAD, np.int64)
        for k in range(positions):
            for q in range(size):
                for byte in range(256):
                    code = int(string[q, byte])
                    if code <= RETURN:
                        if k >= low:
                            rows[k * size + q, byte] = code
                    elif code >= 0:
                        state = code - self._first
                        done = k + (state == 0)  # back in the body: a character is complete
                        if high is None and done >= low:
                            rows[k * size + q, byte] = code
                        elif high is None or done + (state != 0) <= high:
                            rows[k * size + q, byte] = origin + done * size + state
        return rows if high is None else rows[: high * size + 1]

    def step(self, place: Place, byte: int) -> Place | None:
        """Return where a byte leads; None if it is not allowed."""
        state, stack = place
        while True:
            code = self.rows[state][byte]
            if code >= 0:
                return code, stack
            if code == DEAD:
                return None
            if code <= CALL:
                site, state = self.calls[CALL - code]
                return state, (*stack, site)
            label = KEEP - code if code <= KEEP else RETURN - code
            if not stack:
                return None
            targets = self.sites[stack[-1]]
            if label >= len(targets) or targets[label] < 0:
                return None
            state, stack = targets[label], stack[:-1]
            if code > KEEP:
                return state, stack

    def moves(self, place: Place, tokens: Sequence[bytes]) -> dict[int, Place]:
        """Return where each token leads that is allowed; tokens without bytes are not."""
        known: dict[bytes, Place | None] = {b"": place}
        found = {}
        for token, data in enumerate(tokens):
            at = self._after(data, known)
            if data and at is not None:
                found[token] = at
        return found

    def _after(self, data: bytes, known: dict[bytes, Place | None]) -> Place | None:
        n = len(data)
        while data[:n] not in known:
            n -= 1
        at = known[data[:n]]
        while n < len(data) and at is not None:
            at = self.step(at, data[n])
            n += 1
            known[data[:n]] = at
        return at
