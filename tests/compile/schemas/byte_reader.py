"""A naive reader of a lazy machine's rules, byte by byte, with a stack."""

from __future__ import annotations

from maskwright.automata.alphabet import NOTHING
from maskwright.lazy.machine.rules import CALL, DEAD, KEEP, POP, Rules

Place = tuple[int, int, tuple[int, ...]]
"""A state, a place within a character (-1 for between characters), and the frames below, the outermost first."""


class ByteReader:
    """Reads texts as the rules of `lazy.machine.rules` say."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._rows: dict[int, list[int]] = {}
        self.start: Place = (0, -1, ())

    def row(self, state: int) -> list[int]:
        """Return the row of a state."""
        found = self._rows.get(state)
        if found is None:
            found = self._rows[state] = list(self._rules.row(state))
        return found

    def step(self, place: Place, byte: int) -> Place | None:
        """Return where a byte leads; None if it may not come."""
        state, inner, frames = place
        rules = self._rules
        while True:
            alphabet = rules.alphabets[rules.alphabet_of(state)]
            found = int(alphabet.root[byte] if inner < 0 else alphabet.inner[inner, byte])
            if found == NOTHING:
                return None
            row = self.row(state)
            if found >= 0:
                reach = alphabet.reach[found]
                live = any(code != DEAD and int(reach[c >> 6]) >> (c & 63) & 1 for c, code in enumerate(row))
                return (state, found, frames) if live else None
            code = row[~found]
            if code >= 0:
                return code, -1, frames
            if code == DEAD:
                return None
            if code <= CALL:
                to, behind = rules.calls[CALL - code]
                return to, -1, (*frames, *behind)
            if not frames:
                return (rules.end, -1, ()) if code == POP else None
            assert inner < 0 or code == POP
            state, frames = frames[-1], frames[:-1]
            if code == POP:
                return state, -1, frames
            assert code == KEEP

    def mask(self, place: Place) -> list[int]:
        """Return the bytes that may come next."""
        return [byte for byte in range(256) if self.step(place, byte) is not None]

    def accepts(self, place: Place) -> bool:
        """Return whether a text may end at a place."""
        state, inner, frames = place
        return inner < 0 and not frames and self._rules.accepts(state)

    def reads(self, text: str) -> bool:
        """Return whether a whole text is right."""
        place: Place | None = self.start
        for byte in text.encode():
            place = self.step(place, byte)
            if place is None:
                return False
        return self.accepts(place)
