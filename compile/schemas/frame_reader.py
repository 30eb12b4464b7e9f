"""Frames moved by the characters of JSON text, punctuation and white space included."""

from __future__ import annotations

from ..json_schema.algebra import ARRAY, FALSE, NULL, NUMBER, OBJECT, STRING, TRUE
from ..json_schema.layout import MOST_SPACES, MOST_TABS, after_number
from .levels import Array, Frame, Frames, Indentation, Number, Object, Value, Word
from .number_formulas import NUMBER_CHARACTERS
from .open_values import OpenValues
from .witness import Witness

STRUCTURE = '{}[],:" \n\r\t' + NUMBER_CHARACTERS + "trufalsn"
"""The characters outside strings."""
_KIND_BY_FIRST = {'"': STRING, "{": OBJECT, "[": ARRAY, "n": NULL, "t": TRUE, "f": FALSE}
_KIND_BY_FIRST |= dict.fromkeys("-0123456789", NUMBER)
_MOST = {" ": MOST_SPACES, "\t": MOST_TABS}


class FrameReader:
    """Reads characters outside strings; what it returns can be completed."""

    def __init__(self, values: OpenValues, witness: Witness) -> None:
        self._values, self._witness = values, witness
        layout = values.layout
        self._flexible, self._comma = layout.flexible, layout.comma
        self._after_number = after_number(layout).decode()
        everything = values.schema.everything
        self._line = Frame(everything, (Indentation("", 0),))

    def read(self, frame: Frame, character: str) -> Frames | None:
        """Return the frames that a character outside a string leads to; None if it may not come."""
        last = frame.levels[-1]
        if type(last) is Value:
            return self._value(frame, last, character)
        if type(last) is Word:
            if character != last.rest[0]:
                return None
            levels = (Word(last.rest[1:]),) if len(last.rest) > 1 else ()
            return self.live(Frame(frame.formula, (*frame.levels[:-1], *levels)))
        if type(last) is Number:
            return self._number(frame, character)
        if type(last) is Object:
            return self._object(frame, last, character)
        if type(last) is Array:
            return self._array(frame, last, character)
        if type(last) is not Indentation or last.character not in ("", character):
            return None
        if last.width >= _MOST.get(character, 0):
            return None
        return (Frame(frame.formula, (Indentation(character, last.width + 1),)),)

    def ends_number(self, frame: Frame, character: str) -> bool:
        """Return whether a frame that is one number ends before a character."""
        return len(frame.levels) == 1 and character in self._after_number and self._values.ends(frame)

    def live(self, frame: Frame | None) -> Frames | None:
        """Return the frames into which a frame falls apart; None if one of them cannot be completed."""
        return self._witness.frames(frame)

    def _replaced(self, frame: Frame, *last: Object | Array | Value) -> Frames | None:
        return self.live(Frame(frame.formula, (*frame.levels[:-1], *last)))

    def _on_a_line(self, frames: Frames | None) -> Frames | None:
        """Return frames behind a line break, before its indentation."""
        return None if frames is None else (*frames, self._line)

    def _value(self, frame: Frame, value: Value, character: str) -> Frames | None:
        if value.before:
            if ord(character) != value.before[0]:
                return None
            return self._replaced(frame, value._replace(before=value.before[1:]))
        if character == " ":
            return self._replaced(frame, value._replace(space=0)) if value.space else None
        if character == "\n":
            return self._on_a_line(self._replaced(frame, value._replace(space=0))) if value.space == 2 else None
        kind = _KIND_BY_FIRST.get(character)
        opened = None if kind is None else self._values.opened(frame, kind)
        if opened is None:
            return None
        if kind != NUMBER and type(opened.levels[-1]) is not Word:
            return self.live(opened)
        frames = self._values.settled(opened)
        return None if frames is None else self._behind(frames, character)

    def _behind(self, frames: Frames, character: str) -> Frames | None:
        """Return the frames that a character leads to from the innermost of some."""
        for each in frames[:-1]:
            if self.live(each) is None:
                return None
        found = self.read(frames[-1], character)
        return None if found is None else (*frames[:-1], *found)

    def _number(self, frame: Frame, character: str) -> Frames | None:
        if character in NUMBER_CHARACTERS:
            return self.live(self._values.read(frame, character))
        if len(frame.levels) > 1 and character in self._after_number:
            frames = self._values.settled(self._values.ended(frame))
            return None if frames is None else self._behind(frames, character)
        return None

    def _object(self, frame: Frame, here: Object, character: str) -> Frames | None:
        phase = here.phase
        if isinstance(phase, bytes):
            if ord(character) != phase[0]:
                return None
            return self._replaced(frame, here._replace(phase=phase[1:] or "k"))
        if character == '"':
            return self.live(self._values.key(frame)) if phase in "{,k" else None
        if character == "}":
            return self.live(self._values.ended(frame)) if phase in "{a}" else None
        if character == "\n" and self._flexible and phase in "{,a":
            return self._on_a_line(self._replaced(frame, here._replace(phase="}" if phase == "a" else "k")))
        if character == " " and phase == ",":
            return self._replaced(frame, here._replace(phase="k"))
        if phase == "a" and ord(character) == self._comma[0]:
            after: str | bytes = "," if self._flexible else self._comma[1:] or "k"
            return self._replaced(frame, here._replace(phase=after))
        return None

    def _array(self, frame: Frame, here: Array, character: str) -> Frames | None:
        phase = here.phase
        if character == "]":
            return self.live(self._values.ended(frame))
        if phase == "]":
            return None
        if phase == "a":
            if ord(character) == self._comma[0]:
                before, space = (b"", 2) if self._flexible else (self._comma[1:], 0)
                return self.live(self._values.item(frame, before, space))
            if character == "\n" and self._flexible:
                return self._on_a_line(self._replaced(frame, here._replace(phase="]")))
            return None
        if character == "\n":
            return self._on_a_line(self.live(self._values.item(frame))) if self._flexible else None
        frames = self._values.settled(self._values.item(frame))
        return None if frames is None else self._behind(frames, character)
