"""Texts that end frames: short ones, from which it is known within how many bytes a text can end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from ...automata.deadline import look
from ...errors import BudgetError
from ..json_schema.algebra import ARRAY, FALSE, NULL, NUMBER, OBJECT, STRING, TRUE
from .levels import Array, Frame, Frames, Indentation, Key, Number, Object, OtherKey, Text, Value, Word
from .number_formulas import NUMBER_CHARACTERS
from .open_values import OpenValues
from .witness import Witness

_FIRST = {NUMBER: b"", STRING: b'"', NULL: b"", TRUE: b"", FALSE: b"", ARRAY: b"[", OBJECT: b"{"}
MOST_FRAMES = 500  # that one search looks at
_CAREFUL = 40  # frames after which those that cannot be completed are left out
_Way = tuple[Frame | None, bytes, Frames]
"""How a search came to a frame: from which one, by which bytes, and the frames that these opened inside."""
_Move = tuple[bytes, Frame]
_Place = tuple[int, int, int, Frame, _Way, Iterator[_Move] | None]
"""Of a search: its cost, the latest first of equal ones, the steps to a frame, it, its way, its other moves."""


class ShortTexts:
    """Finds a text that ends a frame, and remembers those of all frames on the way.

    A search goes first where formulas seem nearest to an end, as that of `Witness` does. So a text is short, and not
    always the shortest.

    characters: one of each class that the formulas of a schema tell apart.
    """

    def __init__(self, values: OpenValues, witness: Witness, characters: Sequence[str]) -> None:
        self._values, self._witness = values, witness
        self._characters = [(self._spelt(each), each) for each in characters]
        self._ways: dict[Frame, tuple[bytes, Frames]] = {}  # what a text goes on with, and the frames to end then
        self._lengths: dict[Frame, int] = {}
        self._open: set[Frame] = set()  # frames of searches that have not ended
        self._failed: set[Frame] = set()

    def length(self, frame: Frame) -> int | None:
        """Return the bytes of a text that ends a frame which does not fall apart; None if none was found soon."""
        if not frame.levels:
            return 0
        found = self._lengths.get(frame)
        if found is not None or frame in self._failed or frame in self._open:
            return found
        self._open.add(frame)
        try:
            is_found = self._search(frame)
        except RecursionError:
            is_found = False
        except BudgetError:  # the next one who asks does not wait for as long again
            self._failed.add(frame)
            raise
        finally:
            self._open.discard(frame)
        if not is_found and not self._open:  # otherwise one may be found that the searches before are not part of
            self._failed.add(frame)
        return self._lengths.get(frame)

    def text(self, frame: Frame) -> bytes | None:
        """Return that text."""
        if self.length(frame) is None:
            return None
        text, left = bytearray(), [frame]
        while left:
            here = left.pop()
            if here.levels:
                own, frames = self._ways[here]
                text += own
                left += frames  # the innermost last, which is written first
        return bytes(text)

    def _ends_by_items(self, frame: Frame) -> bool:
        """Note the text that ends an array of which nothing but some items is asked; return whether it is one."""
        last = frame.levels[-1]
        items = self._witness.items_to_end(frame) if type(last) is Array and last.phase == "a" else None
        if items is None:
            return False
        text, comma = bytearray(), self._comma("a")
        for formula, nodes, number in items:
            frames = self._values.settled(Frame(formula, (Value(b"", 0, nodes),)))
            own = [self.text(each) for each in reversed(frames or ())]
            if not own or None in own:
                return False
            text += (comma + b"".join(each or b"" for each in own)) * number
        self._ways[frame], self._lengths[frame] = (bytes(text) + b"]", ()), len(text) + 1
        return True

    def _search(self, start: Frame) -> bool:
        """Find a text that ends a frame; return whether there is one."""
        values, lengths = self._values, self._lengths
        came: dict[Frame, _Way] = {}
        heap: list[_Place] = [(0, 0, 0, start, (None, b"", ()), None)]
        count = tick = 0
        while heap and count < MOST_FRAMES:
            _, _, steps, frame, way, moves = heappop(heap)
            if moves is None:
                if frame in came or any(self.length(each) is None for each in way[2]):
                    continue
                came[frame] = way
                if not frame.levels or frame in lengths or self._ends_by_items(frame):
                    self._note(frame, came)
                    return True
            count += 1
            look("looking for a short text")
            here = self._left((frame,))
            moves = self._moves(frame) if moves is None else moves
            for text, move in moves:
                frames = values.settled(move)
                if frames is None or frames[0] in came or not self._witness.may_live(frames, count > _CAREFUL):
                    continue
                if all(not each.levels or each in lengths for each in frames):
                    self._keep(frame, text, frames)
                    self._note(frame, came)
                    return True
                tick += 1
                left = self._left(frames)
                way = frame, text, frames[1:]
                heappush(heap, (2 * left + steps + 1, -tick, steps + 1, frames[0], way, None))
                if left < here:  # the other moves wait until this one is of no use
                    heappush(heap, (2 * here + steps + 1, -tick, steps, frame, came[frame], moves))
                    break
        return False

    def _left(self, frames: Frames) -> int:
        """Return about how much must be written until frames have ended."""
        return sum([self._values.schema.estimate(each.formula) for each in frames]) + 2 * len(frames[0].levels)

    def _keep(self, frame: Frame, text: bytes, frames: Frames) -> None:
        """Note the bytes that end a frame: some, and those of the frames that they lead to."""
        self._witness.note_live(frame)
        self._ways[frame] = text, frames
        self._lengths[frame] = len(text) + sum([self._lengths.get(each, 0) for each in frames])

    def _note(self, frame: Frame, came: dict[Frame, _Way]) -> None:
        """Note what ends the frames on the way to one of which it is known."""
        here = frame
        while True:
            before, text, inside = came[here]
            if before is None:
                return
            self._keep(before, text, (here, *inside))
            here = before

    # ------------------------------------------------------------------------------------------------------- moves

    def _spelt(self, text: str) -> bytes:
        """Return how characters are written within a string."""
        escaped = self._values.layout.ascii or any("\ud800" <= each <= "\udfff" for each in text)
        return json.dumps(text, ensure_ascii=escaped)[1:-1].encode()

    def _moves(self, frame: Frame) -> Iterator[_Move]:
        """Yield the frames that a frame leads to, each with the bytes that lead there."""
        values, levels = self._values, frame.levels
        last = levels[-1]
        if type(last) is Value:
            for kind, first in _FIRST.items():
                opened = values.opened(frame, kind)
                if opened is not None:
                    yield last.before + first, opened
        elif type(last) is Word:
            yield last.rest.encode(), Frame(frame.formula, levels[:-1])
        elif type(last) is Text:
            yield b'"', values.ended(frame)
            yield from self._read(frame)
        elif type(last) is Number:
            yield b"", values.ended(frame)
            for character in NUMBER_CHARACTERS:
                yield character.encode(), values.read(frame, character)
        elif type(last) is Array:
            if last.phase in "[a]":
                yield b"]", values.ended(frame)
            if last.phase != "]":
                yield self._comma(last.phase), values.item(frame)
        elif type(last) is Object:
            yield from self._object_moves(frame, last)
        elif type(last) is Indentation:
            yield b"", Frame(frame.formula, levels[:-1])
        else:
            yield from self._key_moves(frame)

    def _read(self, frame: Frame) -> Iterator[_Move]:
        for text, character in self._characters:
            yield text, self._values.read(frame, character)

    def _comma(self, phase: str | bytes) -> bytes:
        """Return the bytes that stand before an item or a key."""
        if isinstance(phase, bytes):
            return phase
        layout = self._values.layout
        return b"" if phase != "a" else b"," if layout.flexible else layout.comma

    def _object_moves(self, frame: Frame, last: Object) -> Iterator[_Move]:
        values, shape = self._values, last.shape
        if last.phase in ("{", "a", "}"):
            yield b"}", values.ended(frame)
        if last.phase == "}":
            return
        assert not isinstance(shape, tuple)
        before = self._comma(last.phase) + b'"'
        declared = values.choices(frame).declared
        required = [place for place in values.required(frame) if place in declared]
        for place in (*required, *[place for place in declared if place not in required]):
            found = values.with_key(frame, place)
            if found is not None:
                yield before + self._spelt(shape.keys[place]) + b'"', found
        found = values.key(frame)
        if found is not None:
            yield before, found

    def _key_moves(self, frame: Frame) -> Iterator[_Move]:
        values, last = self._values, frame.levels[-1]
        ended = values.key_ended(frame)
        if ended is not None:
            yield b'"', ended
        if type(last) is OtherKey:
            yield from self._read(frame)
            return
        assert type(last) is Key
        for place in last.branch.below:
            found = values.key_by_place(frame, place)
            if found is not None:
                yield self._spelt(last.shape.keys[place][last.branch.depth :]) + b'"', found
        if last.other is not values.schema.nothing:
            for text, character in self._characters:
                found = values.key_read(frame, character)
                if found is not None:
                    yield text, found
