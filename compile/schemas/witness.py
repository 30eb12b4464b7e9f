"""Whether a frame can be completed: a search for one text that does, best first.

A search goes by whole keys and types and by classes of characters, and first where formulas seem nearest to an end. All
frames on the way that it finds can be completed; if it ends without one, none of those that it saw can. Four things
keep it short. A frame that falls apart is searched part by part. Some formulas plainly can be satisfied. And
after some steps, what no value satisfies is taken out of the formula, as an alternative that cannot be satisfied may
keep an endless search alive. The moves of a frame are made one by one: behind one that leads nearer to an end, the
others wait. So an object of a thousand keys is not tried with each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from ...automata.deadline import look
from ...automata.formulas import Atom, Formula, Inside, Kind, kept
from ..json_schema.algebra import ARRAY, FALSE, NULL, NUMBER, OBJECT, STRING, TRUE, Members, Names, Node
from .counted_members import Said
from .levels import Array, Frame, Frames, Key, Number, Object, OtherKey, Text, Value, Word
from .number_formulas import NUMBER_CHARACTERS
from .object_shape import ObjectShape
from .open_values import OpenValues
from .schema_formulas import VALUE
from .state_atoms import Contained, Has, ItemsAtLeast, MembersAtLeast

_SEARCHING = "searching for a text that fits"
_SHARPEN = 40  # frames after which what nothing satisfies is taken out
_KINDS = (STRING, NUMBER, OBJECT, ARRAY, NULL, TRUE, FALSE)
_Open = tuple[int, int, int, Frame, Frames, Frame | None, Iterator[Frame] | None]
"""Of a search: its cost, the latest first of equal ones, the steps to a frame, it, those inside, the one before it.

Last come the moves of a frame that was looked at and has some left, None of others.
"""
_Sharpened = dict[tuple[Formula, "_Around"], Formula]
_CHOICES = (Kind.ANY_OF, Kind.ONE_OF, Kind.NOT_ONE_OF)


class _Around(NamedTuple):
    """What holds where a part of a formula about an object stands.

    said: of members. wanted: the keys that must still come. least, most: how many members must and may, most -1 for any
    number. is_exact: whether the part is of a choice of exactly one. There, what is taken out must not depend on
    searches that have not ended: with less of a part, more may be left.
    """

    shape: ObjectShape
    keys: tuple[str, ...]  # declared ones that may still come
    said: Said = ()
    wanted: tuple[str, ...] = ()
    least: int = 0
    most: int = -1
    is_exact: bool = False


def _within(around: _Around, parts: Iterable[Formula]) -> _Around:
    """Return what holds within a conjunction of some parts; the same object if that is no more."""
    said, wanted, least, most = list(around.said), list(around.wanted), around.least, around.most
    for part in parts:
        atom = part.atom
        if part.kind is Kind.NOT:
            if type(atom) is MembersAtLeast:
                most = atom.args[0] - 1 if most < 0 else min(most, atom.args[0] - 1)
        elif isinstance(atom, Members) or type(atom) is Names:
            said.append(atom)
        elif type(atom) is Has:
            wanted.append(atom.key)
        elif type(atom) is MembersAtLeast:
            least = max(least, atom.args[0])
    found = around._replace(
        said=tuple(dict.fromkeys(said)), wanted=tuple(dict.fromkeys(wanted)), least=least, most=most
    )
    return around if found == around else found


class TakesLongError(Exception):
    """A search took longer than it may."""


class Witness:
    """Tells which frames can be completed, and remembers it.

    characters: one of each class that the formulas of a schema tell apart.
    """

    def __init__(self, values: OpenValues, characters: Sequence[str]) -> None:
        self._values, self._characters = values, characters
        values.can_end, values.sharpened = self.can_end, self.sharpened
        self._schema = values.schema
        self._known: dict[Frame, bool] = {}
        self._open: set[Frame] = set()  # frames of searches that have not ended
        self._met_open = False  # whether one of these was asked for since
        self.expanded = 0
        self.left_out = 0  # frames that were taken for such as cannot be completed, as a search took long
        self._stop: int | None = None  # where `expanded` ends a search

    def __len__(self) -> int:
        """Return of how many frames it is known whether they can be completed."""
        return len(self._known)

    def can_end(self, frame: Frame) -> bool:
        """Return whether some text completes a frame."""
        frames = self._values.settled(frame)
        return frames is not None and all(map(self._lives, frames))

    def frames(self, frame: Frame | None) -> Frames | None:
        """Return the frames into which one falls apart; None if it cannot be completed, as far as the limit shows."""
        if frame is None:
            return None
        frames = self._values.settled(frame)
        try:
            return frames if frames is not None and all(map(self._lives, frames)) else None
        except TakesLongError:
            self.left_out += 1
            self._met_open = False
            return None

    def note_live(self, frame: Frame) -> None:
        """Note that a text is known which completes a frame that does not fall apart."""
        self._known[frame] = True

    def may_live(self, frames: Frames, careful: bool) -> bool:
        """Return whether frames that do not fall apart can be completed: what is known of it, with care what is found.

        What a search within the limit does not find out is taken for True.
        """
        if not careful:
            return not any(self._known.get(frame) is False for frame in frames)
        try:
            return all(map(self._lives, frames))
        except TakesLongError:
            self._met_open = False
            return True

    def limit(self, most: int | None) -> None:
        """End searches from now on once they have looked at so many frames together; None for no limit."""
        self._stop = None if most is None else self.expanded + most

    def _lives(self, frame: Frame) -> bool:
        """Return whether some text completes a frame that does not fall apart."""
        if not frame.levels or frame.formula is self._schema.everything:
            return frame.formula is self._schema.everything
        found = self._known.get(frame)
        return self._search(frame) if found is None else found

    def _search(self, start: Frame) -> bool:
        if start in self._open:
            self._met_open = True
            return False
        before, self._met_open = self._met_open, False
        self._open.add(start)
        try:
            found, seen = self._walk(start)
        finally:
            self._open.discard(start)
        # what depends on a search that has not ended is not known not to be
        if not found and (not self._met_open or not self._open):
            self._known.update(dict.fromkeys(seen, False))
        self._met_open = before or (self._met_open and bool(self._open) and not found)
        return found

    def _walk(self, start: Frame) -> tuple[bool, dict[Frame, Frame | None]]:
        """Return whether a text completes a frame, and the frames that were seen, each with the one before it."""
        schema, known = self._schema, self._known
        parent: dict[Frame, Frame | None] = {}
        heap: list[_Open] = [(0, 0, 0, start, (), None, None)]
        count = tick = 0
        while heap:
            _, _, steps, frame, inside, before, moves = heappop(heap)
            if moves is None and (
                frame in parent or known.get(frame) is False or not all(map(self._lives, inside))
            ):  # fmt: skip
                continue
            parent.setdefault(frame, before)
            if not frame.levels or known.get(frame) or self._is_plain(frame):
                self._note(frame, parent)
                return True, parent
            count += 1
            self.expanded += 1
            if self._stop is not None and self.expanded > self._stop:
                raise TakesLongError
            look(_SEARCHING)
            if not count & 15:
                schema.meter.check(states=count, bytes=schema.nbytes, doing=_SEARCHING)
            if count == _SHARPEN and type(start.levels[0]) is Value and len(start.levels) == 1:
                heap, parent = [], {start: None}  # from each type on again
                for frame in self._sharpened_types(start):
                    tick += 1
                    heappush(heap, (2 * self._left((frame,)) + 1, -tick, 1, frame, (), start, None))
                continue
            if count == _SHARPEN:
                sharper = self._sharpened(start.formula, start, 0)
                if sharper is not start.formula:
                    found = self.can_end(Frame(sharper, start.levels))
                    if found:
                        known[start] = True
                    return found, {start: None}
            here = self._left((frame,))
            moves = self._moves(frame) if moves is None else moves
            for move in moves:
                frames = self._values.settled(move)
                if frames is None or frames[0] in parent:
                    continue
                if all(map(self._is_known, frames)):
                    self._note(frame, parent)
                    return True, parent
                tick += 1
                left = self._left(frames)
                heappush(heap, (2 * left + steps + 1, -tick, steps + 1, frames[0], frames[1:], frame, None))
                if left < here:  # the other moves wait until this one is of no use
                    heappush(heap, (2 * here + steps + 1, -tick, steps, frame, (), parent[frame], moves))
                    break
        return False, parent

    def _left(self, frames: Frames) -> int:
        """Return about how much must be written until frames have ended."""
        return sum([self._schema.estimate(each.formula) for each in frames]) + 2 * len(frames[0].levels)

    def _note(self, frame: Frame, parent: dict[Frame, Frame | None]) -> None:
        """Note that a frame, and those on the way to it, can be completed."""
        here: Frame | None = frame
        while here is not None:
            if here.levels:
                self._known[here] = True
            here = parent[here]

    def _is_known(self, frame: Frame) -> bool:
        """Return whether it is known that some text completes a frame that does not fall apart."""
        everything = self._schema.everything
        return (
            frame.formula is everything if not frame.levels else self._known.get(frame, False) or self._is_plain(frame)
        )

    # ------------------------------------------------------------------------------------------------ what is plain

    def _is_plain(self, frame: Frame) -> bool:
        """Return whether a frame can plainly be completed."""
        formula, levels = frame
        if formula is self._schema.everything:
            return True
        if len(levels) > 1:
            return False
        last = levels[0]
        if type(last) is Text or type(last) is Number:
            return _is_live(formula)
        if type(last) is Array and last.phase == "a":
            return self.items_to_end(frame) is not None
        return False

    def items_to_end(self, frame: Frame) -> list[tuple[Formula, tuple[Node, ...], int]] | None:
        """Return the items that end an array behind an item if nothing else is asked: what is asked of each, how often.

        None where more is asked, or there is no room for them all.
        """
        formula, levels = frame
        if len(levels) > 1:
            return None
        least, most, wanted = 0, -1, 0
        items: list[tuple[Formula, tuple[Node, ...], int]] = []
        for part in formula.parts if formula.kind is Kind.ALL_OF else (formula,):
            atom = part.atom
            if type(atom) is ItemsAtLeast:
                if part.kind is Kind.ATOM:
                    least = max(least, atom.args[0])
                else:
                    most = atom.args[0] - 1 if most < 0 else min(most, atom.args[0] - 1)
            elif type(atom) is Contained and part.kind is Kind.ATOM:
                node, number = atom.args
                if not self._has_value((node,)):
                    return None
                items.append((self._schema.of(node), (node,), number))
                wanted += number
            elif formula is not self._schema.everything:
                return None
        if 0 <= most < max(least, wanted):
            return None
        return [*items, (self._schema.everything, (), max(0, least - wanted))]

    def _sharpened_types(self, start: Frame) -> Iterator[Frame]:
        """Yield the frames of a value that has begun, by its type, with what nothing satisfies taken out."""
        for move in self._moves(start):
            for frame in self._values.settled(move) or ():  # one, or none
                formula = self._sharpened(frame.formula, frame, 0) if frame.levels else frame.formula
                if formula is not self._schema.nothing:
                    yield Frame(formula, frame.levels)

    def sharpened(self, frame: Frame) -> Formula:
        """Return the formula of a frame of one level, with what nothing satisfies taken out as far as is plain."""
        return self._sharpened(frame.formula, frame, 0)

    def _sharpened(self, formula: Formula, frame: Frame, depth: int) -> Formula:
        """Return a formula of which what nothing satisfies is taken out. depth: the level that it is about."""
        schema, levels = self._schema, frame.levels
        f = schema.formulas

        def of_literal(literal: Formula) -> Formula:
            atom: Atom = literal.atom
            if type(atom) is Inside and atom.place == VALUE and depth + 1 < len(levels):
                inner = self._sharpened(atom.formula, frame, depth + 1)
                if self.can_end(Frame(inner, levels[depth + 1 :])):
                    return f.inside(atom.place, inner)
                return schema.nothing
            if type(atom) is Contained and not self._has_value((atom.args[0],)):
                return schema.everything if literal.kind is Kind.NOT else schema.nothing
            return literal

        found = schema.formulas.mapped(formula, of_literal, {})
        last = levels[depth]
        if type(last) is Object or type(last) is Key:
            assert not isinstance(last.shape, tuple)
            return self._with_values(found, _Around(last.shape, self._values.keys_left(last)), {})
        return found

    def _with_values(self, formula: Formula, around: _Around, known: _Sharpened) -> Formula:
        """Return a formula about an object without alternatives that ask for members that cannot come.

        known: what was found for the same object.
        """
        found = known.get((formula, around))
        if found is None:
            look("looking for alternatives that no value fits")
            found = known[formula, around] = self._find_values(formula, around, known)
        return found

    def _find_values(self, formula: Formula, around: _Around, known: _Sharpened) -> Formula:
        f, kind, nothing = self._schema.formulas, formula.kind, self._schema.nothing
        if kind is Kind.ANY_OF:
            return f.any_of(*[self._with_values(part, around, known) for part in formula.parts])
        if kind is Kind.ONE_OF or kind is Kind.NOT_ONE_OF:
            around = around._replace(is_exact=True)
            found = f.one_of(*[self._with_values(part, around, known) for part in formula.parts])
            return found if kind is Kind.ONE_OF else f.negated(found)
        parts = formula.parts if kind is Kind.ALL_OF else (formula,)
        within = _within(around, parts)
        if within is not around and not self._has_members(within):
            return nothing
        if kind is Kind.ALL_OF:
            return f.all_of(*[self._with_values(p, within, known) if p.kind in _CHOICES else p for p in parts])
        return formula

    def _has_members(self, around: _Around) -> bool:
        """Return whether members may come as they must, as far as what is said of them plainly says."""
        if around.most >= 0 and max(around.least, len(around.wanted)) > around.most:
            return False
        return all(self._may_have(around, key) for key in around.wanted) and self._has_keys(around)

    def _may_have(self, around: _Around, key: str) -> bool:
        """Return whether a member of a key may come, and some value be its."""
        before, self._met_open = self._met_open, False
        found = self.may_have(around.said, key) or (around.is_exact and self._met_open)
        self._met_open = before or self._met_open
        return found

    def may_have_any(self, node: Node, formula: Formula) -> bool:
        """Return whether an object of a node may have members. formula: that of the object once it has begun."""
        frames = self._values.settled(Frame(formula, (Object((node,), 0, 0, "{"),)))
        if frames is None:
            return False
        (last,) = frames[-1].levels
        assert type(last) is Object
        return self.can_end(Frame(formula, (last._replace(phase="k"),)))

    def may_have(self, said: Said, key: str) -> bool:
        """Return whether a member of a key may come beside what is said of members, and some value be its."""
        asked = self._values.asked_by(said, key)
        return asked is not None and self._has_value(asked)

    def may_have_other(self, said: Said, members: Members, source: str | None) -> bool:
        """Return whether a key may come beside what is said that Members do not declare.

        It is one that a pattern of theirs matches, or, with None, one that none does.
        """
        return self.can_end(self._values.other_key(said, members, source))

    def _has_keys(self, around: _Around) -> bool:
        """Return whether as many members may come as must. Of undeclared ones there is no end, if there are any."""
        keys, least = around.keys, around.least
        if not least or self.can_end(self._values.undeclared(around.said, around.shape.keys)):
            return True
        return len(keys) >= least and sum([self._may_have(around, key) for key in keys]) >= least

    def _has_value(self, nodes: tuple[Node, ...]) -> bool:
        """Return whether some value is in all of some nodes."""
        of = self._schema.of
        formula = self._schema.formulas.all_of(*map(of, nodes)) if nodes else self._schema.everything
        return self.can_end(Frame(formula, (Value(b"", 0, nodes),)))

    # ------------------------------------------------------------------------------------------------------- moves

    def _moves(self, frame: Frame) -> Iterator[Frame]:
        """Yield the frames that a frame leads to, by as much of a text as is told apart."""
        values, levels = self._values, frame.levels
        last = levels[-1]
        if type(last) is Value:
            for kind in _KINDS:
                opened = values.opened(frame, kind)
                if opened is not None:
                    yield Frame(opened.formula, opened.levels[:-1]) if type(opened.levels[-1]) is Word else opened
        elif type(last) is Word:
            yield Frame(frame.formula, levels[:-1])
        elif type(last) is Text:
            yield values.ended(frame)
            for character in self._characters:
                yield values.read(frame, character)
        elif type(last) is Number:
            yield values.ended(frame)
            for character in NUMBER_CHARACTERS:
                yield values.read(frame, character)
        elif type(last) is Array:
            if last.phase in "[a]":
                yield values.ended(frame)
            if last.phase != "]":
                yield values.item(frame)
        elif type(last) is Object:
            yield from self._object_moves(frame, last)
        else:
            yield from self._key_moves(frame)

    def _object_moves(self, frame: Frame, last: Object) -> Iterator[Frame]:
        values = self._values
        if last.phase in ("{", "a", "}"):
            yield values.ended(frame)
        if last.phase == "}":
            return
        declared = values.choices(frame).declared
        required = [place for place in values.required(frame) if place in declared]
        for place in (*required, *[place for place in declared if place not in required]):
            found = values.with_key(frame, place)
            if found is not None:
                yield found
        found = values.key(frame)
        if found is not None:
            key = found.levels[-1]
            if type(key) is not Key or key.other is not self._schema.nothing:
                yield found

    def _key_moves(self, frame: Frame) -> Iterator[Frame]:
        values = self._values
        last = frame.levels[-1]
        ended = values.key_ended(frame)
        if ended is not None:
            yield ended
        if type(last) is OtherKey:
            for character in self._characters:
                yield values.read(frame, character)
            return
        assert type(last) is Key
        for place in last.branch.below:
            found = values.key_by_place(frame, place)
            if found is not None:
                yield found
        if last.other is not self._schema.nothing:
            for character in self._characters:
                found = values.key_read(frame, character)
                if found is not None:
                    yield found


@kept
def _is_live(formula: Formula) -> bool:
    """Return whether some content is plainly in a formula about the rest of one."""
    if formula.kind is Kind.ATOM:
        return type(formula.atom) is not Inside and bool(formula.atom.is_live)
    return formula.kind is Kind.ANY_OF and any(map(_is_live, formula.parts))
