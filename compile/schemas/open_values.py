"""Values that are being written: how frames fall apart, and how they are moved.

A *frame* is a formula with its levels, the values that were begun and have not ended. The formula speaks of the
outermost level, and by `Inside(VALUE, ..)` of the others. Where what is asked of an inner value and what is left of its
surroundings do not depend on each other, they are two frames, and the inner one is read on its own:
`OpenValues.settled` splits frames as far as that goes. So the alternatives of a union fall apart as soon as it is known
which of them a text is in, and equal values have equal frames, wherever they stand.

No frame depends on another: a text can be completed if each of its frames can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...automata.alphabet import Spelling
from ...automata.formulas import Formula, Inside, Kind
from ...errors import SchemaError
from ...vocabulary.vocabulary import Vocabulary
from ..json_schema.algebra import (
    ARRAY,
    FALSE,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    Contains,
    Items,
    Members,
    Node,
    Unique,
)
from ..json_schema.key_sets import places_of
from ..json_schema.layout import Layout
from .counted_members import Said, check_counts, without_counts
from .item_steps import asked_of_item, by_item
from .levels import Array, Frame, Frames, Key, Level, Levels, Number, Object, OtherKey, Text, Value, Word, path_of
from .member_steps import MemberSteps
from .number_formulas import NumberFormulas
from .object_shape import ObjectShape, ObjectShapes, array_atoms, object_atoms
from .schema_formulas import KEY, VALUE, Path, SchemaFormulas, insides
from .state_atoms import Has
from .string_formulas import StringFormulas

WORDS = {NULL: "null", FALSE: "false", TRUE: "true"}


class Choices(NamedTuple):
    """The keys that may come next in an object, before it is known whether anything is left then.

    declared: by place, what is asked of the object if the keys before it do not come, and the foreign keys then; and
    the place that a foreign key leads back to.
    """

    declared: dict[int, tuple[Formula, int, int]]
    others: Formula  # what is left of the frame when the member of an undeclared key begins


class OpenValues:
    """Moves frames. What leads nowhere may still be moved: `Witness` tells.

    can_end: whether some text completes a frame. sharpened: the formula of a frame of one level without what nothing
    satisfies. The `Witness` that searches these values sets both.
    """

    can_end: Callable[[Frame], bool]
    sharpened: Callable[[Frame], Formula]

    def __init__(self, schema: SchemaFormulas, layout: Layout, vocabulary: Vocabulary, any_order: bool = False) -> None:
        self.schema, self.layout, self._any_order = schema, layout, any_order
        self._is_reading, self._left_out = False, 0
        self._numbers, self._strings = NumberFormulas(schema), StringFormulas(schema, vocabulary)
        self._shapes = ObjectShapes(schema, layout.ascii)
        self._members = MemberSteps(schema, self._strings, any_order)
        self._settled: dict[Frame, Frames | None] = {}
        self._choices: dict[Frame, Choices] = {}
        self._has_others: dict[tuple[Formula, Path, ObjectShape], bool] = {}
        self._item_asked: dict[tuple[tuple[Node, ...], int], tuple[Node, ...]] = {}

    def begin_reading(self) -> None:
        """Leave out from now on what cannot be counted, or soon be shown to end: a text gets no error in its middle."""
        self._is_reading = True
        self._strings.begin_reading()

    @property
    def left_out(self) -> int:
        """How many ways on were left out."""
        return self._left_out + self._strings.left_out

    def start(self, node: Node) -> Frame:
        """Return the frame of a value that has not begun."""
        return Frame(self.schema.of(node), (Value(b"", 0, (node,)),))

    # -------------------------------------------------------------------------------------------------- settling

    def settled(self, frame: Frame) -> Frames | None:
        """Return the frames into which a frame falls apart; None where it is plainly empty."""
        found = self._settled.get(frame, ())
        if found == ():
            found = self._settled[frame] = self._settle(frame)
        return found

    def _settle(self, frame: Frame) -> Frames | None:
        schema = self.schema
        outer: list[Frame] = []
        while True:
            formula, levels = frame
            if formula is schema.nothing or (not levels and formula is not schema.everything):
                return None
            parts = self._split(formula, levels)
            if parts is not None:
                below = self.settled(parts[0])
                if below is None:
                    return None
                outer.extend(below)
                frame = parts[1]
                continue
            begun = self._begun(formula, levels)
            if begun is None:
                return (*outer, frame)
            frame = begun

    def _split(self, formula: Formula, levels: Levels) -> tuple[Frame, Frame] | None:
        """Return a frame and one inside it that do not depend on each other, if the levels are such."""
        if not levels or type(levels[-1]) is Key:
            return None
        schema = self.schema
        if len(levels) > 1:
            depth = self._tested(formula, len(levels) - 1)
            if depth < len(levels) - 1:
                outer, inner = levels[: depth + 1], levels[depth + 1 :]
                return Frame(formula, outer), Frame(schema.everything, self._named(schema.everything, inner))
            found = self._apart(formula, VALUE)
            if found is not None:
                inside, rest = found
                return Frame(rest, levels[:1]), Frame(inside, self._named(inside, levels[1:]))
        elif type(levels[0]) is OtherKey:
            behind = self._behind_key(levels, levels[0])
            if not any(atom.place == KEY for atom in insides(formula)):
                return Frame(formula, behind), Frame(schema.everything, (Text(self._free_spelling(levels[0].shape)),))
            found = self._apart(formula, KEY)
            if found is not None:
                inside, rest = found
                return Frame(rest, behind), Frame(inside, (Text(Spelling.NEEDED),))
        return None

    def _free_spelling(self, shape: ObjectShape) -> Spelling:
        """Return how a key is spelled of which nothing more is asked."""
        is_told = shape.is_told or shape.has_spellings
        return Spelling.NEEDED if self.layout.ascii and is_told else Spelling.ANY

    def _tested(self, formula: Formula, most: int) -> int:
        """Return the deepest level, up to `most`, of which a formula asks something."""
        here: tuple[Formula, ...] = (formula,)
        for depth in range(most):
            here = tuple({atom.formula: None for part in here for atom in insides(part) if atom.place == VALUE})
            if not here:
                return depth
        return most

    def _apart(self, formula: Formula, place: str) -> tuple[Formula, Formula] | None:
        """Return what a formula asks of a place, and the rest, if it is a conjunction of the two."""
        if formula.kind is Kind.ATOM and type(formula.atom) is Inside and formula.atom.place == place:
            return formula.atom.formula, self.schema.everything
        if formula.kind is Kind.ALL_OF:
            mine, rest = None, []
            for part in formula.parts:
                if not any(atom.place == place for atom in insides(part)):
                    rest.append(part)
                elif mine is None and type(part.atom) is Inside:
                    mine = part.atom.formula
                else:
                    return None
            if mine is not None:
                return mine, self.schema.formulas.all_of(*rest) if rest else self.schema.everything
        return None

    def _named(self, formula: Formula, levels: Levels) -> Levels:
        """Return the levels of an inner frame: a value that has not begun is known by its own node."""
        first = levels[0]
        if type(first) is Value:
            node = self.schema.origin.get(formula)
            if formula is self.schema.everything:
                return (first._replace(asked=()), *levels[1:])
            if node is not None:
                return (first._replace(asked=(node,)), *levels[1:])
        return levels

    def _begun(self, formula: Formula, levels: Levels) -> Frame | None:
        """Return a frame whose innermost level is ready to be read; None where it is."""
        if not levels:
            return None
        last, path = levels[-1], path_of(levels)
        if type(last) is Text:
            if last.spelling is None:
                begun, spelling = self._strings.begun(formula, path)
                return Frame(begun, (*levels[:-1], Text(spelling)))
            if formula is self.schema.everything and not self.layout.ascii and last.spelling is not Spelling.ANY:
                return Frame(formula, (Text(Spelling.ANY),))
        elif type(last) is Number and not last.has_begun:
            return Frame(self._numbers.begun(formula, path), (*levels[:-1], Number(True)))
        elif type(last) is Object and type(last.shape) is tuple:
            shape = self._shapes.shape(formula, path, last.shape)
            return Frame(formula, (*levels[:-1], Object(shape, 0, 0, "{")))
        return None

    # ---------------------------------------------------------------------------------------------------- values

    def opened(self, frame: Frame, kind: int) -> Frame | None:
        """Return the frame behind the first character of a value of a type; of a number or a word, before it."""
        formula, levels = frame
        value = levels[-1]
        assert type(value) is Value
        opened = self.schema.opened(formula, path_of(levels), kind)
        if opened is self.schema.nothing:
            return None
        last: Level
        if kind == STRING:
            last = Text(None)
        elif kind == NUMBER:
            last = Number(False)
        elif kind == OBJECT:
            last = Object(value.asked, 0, 0, "{")
        elif kind == ARRAY:
            last = Array(self._array_atoms(value.asked), 0, "[")
        else:
            last = Word(WORDS[kind])
        return Frame(opened, (*levels[:-1], last))

    def read(self, frame: Frame, character: str) -> Frame:
        """Return the frame behind a character of a string, number or undeclared key."""
        return Frame(self.schema.read(frame.formula, path_of(frame.levels), character), frame.levels)

    def ended(self, frame: Frame) -> Frame:
        """Return the frame behind the end of its innermost value."""
        return Frame(self.schema.ended(frame.formula, path_of(frame.levels)), frame.levels[:-1])

    def ends(self, frame: Frame) -> bool:
        """Return whether the innermost value may end here, as far as it alone is asked."""
        return any(self.schema.ends(part) for part in self.schema.innermost(frame.formula, path_of(frame.levels)))

    # ----------------------------------------------------------------------------------------------------- items

    def item(self, frame: Frame, before: bytes = b"", space: int = 0) -> Frame:
        """Return the frame before one more item of an array."""
        formula, levels = frame
        array = levels[-1]
        assert type(array) is Array
        left = by_item(self.schema, formula, path_of(levels))
        atoms = array.atoms
        asked = self._asked(atoms, array.place)
        longest = max([len(atom.args[0]) for atom in atoms if type(atom) is Items], default=0)
        place = min(array.place + 1, longest)
        return Frame(left, (*levels[:-1], Array(array.atoms, place, "a"), Value(before, space, asked)))

    def _asked(self, atoms: tuple[Node, ...], place: int) -> tuple[Node, ...]:
        found = self._item_asked.get((atoms, place))
        if found is None:
            asked = dict.fromkeys([node for atom in atoms for node in asked_of_item(atom, place)])
            found = self._item_asked[atoms, place] = tuple(asked)
        return found

    def _array_atoms(self, asked: tuple[Node, ...]) -> tuple[Node, ...]:
        atoms = array_atoms(self.schema, asked, set())
        return tuple([atom for atom in atoms if type(atom) in (Items, Contains, Unique)])

    # --------------------------------------------------------------------------------------------------- members

    def choices(self, frame: Frame) -> Choices:
        """Return the keys that may come next in the object that is a frame's innermost level."""
        found = self._choices.get(frame)
        if found is None:
            found = self._choices[frame] = self._find_choices(frame)
        return found

    def _find_choices(self, frame: Frame) -> Choices:
        left, levels = frame
        last, path = levels[-1], path_of(levels)
        assert type(last) is Object or type(last) is Key
        shape, start, foreign = last.shape, last.place, last.foreign
        assert not isinstance(shape, tuple)
        declared: dict[int, tuple[Formula, int, int]] = {}
        nothing = self.schema.nothing
        if self._any_order:  # `place` has the keys that came
            declared = {place: (left, 0, 0) for place in range(shape.end) if not start >> place & 1}
            return Choices(declared, self._others(left, levels))
        foreign = self._foreign(shape, start, left, path, foreign)
        others = self._others(left, levels)
        declared = dict.fromkeys(places_of(foreign), (left, foreign, start))
        back = start
        while True:
            required = self._required(left, path, shape, start)
            stop = shape.end if required < 0 else required + 1
            for place in range(start, stop):
                declared.setdefault(place, (left, foreign, back))
            if required < 0:
                return Choices(declared, others)
            left = self._members.without(left, path, shape, required)
            if left is nothing:
                return Choices(declared, others)
            start = stop
            back = start if shape.absent >> required & 1 else back
            foreign = self._foreign(shape, start, left, path, foreign)
            for place in places_of(foreign):
                declared.setdefault(place, (left, foreign, back))

    def _others(self, left: Formula, levels: Levels) -> Formula:
        """Return what is left when the member of an undeclared key begins."""
        path = path_of(levels)
        others = self._members.by_other(left, path)
        if others is not self.schema.nothing:
            try:
                last = levels[-1]
                assert type(last) is Object or type(last) is Key
                for part in self.schema.innermost(left, path):
                    self.check_counts(0, Frame(part, (Object(last.shape, last.place, last.foreign, "k"),)))
            except SchemaError:
                any_others = self._without_has(without_counts(self.schema, left, path), path)
                if self.can_end(Frame(any_others, self._before_others(levels))):
                    if not self._is_reading:
                        raise
                    self._left_out += 1  # a text gets no error in its middle: such a key does not come
                return self.schema.nothing
        return others

    def check_counts(self, required: int, frame: Frame) -> None:
        """Raise SchemaError if an object before an undeclared key asks for more members than can be told apart.

        required: how many other members it has.
        """
        try:
            check_counts(required, frozenset(), frame.formula)
        except SchemaError:  # as far as that is not of an alternative that is out
            check_counts(required, frozenset(), self.sharpened(frame))

    def _before_others(self, levels: Levels) -> Levels:
        """Return the levels of an object in which none but undeclared keys may come, and one must."""
        last = levels[-1]
        assert type(last) is Object or type(last) is Key
        shape = last.shape
        assert not isinstance(shape, tuple)
        return (*levels[:-1], Object(shape, shape.all_keys if self._any_order else shape.end, 0, "k"))

    def _without_has(self, formula: Formula, path: Path) -> Formula:
        """Return a formula without the keys that it asks for."""

        def of_literal(literal: Formula) -> Formula:
            return self.schema.everything if type(literal.atom) is Has else literal

        return self.schema.step(formula, path, "without all", of_literal)

    def _required(self, formula: Formula, path: Path, shape: ObjectShape, start: int) -> int:
        """Return the first place from `start` on whose key a formula asks for, -1 for none."""
        atoms = object_atoms(self.schema, formula, path)
        places = [shape.place[atom.key] for atom in atoms if type(atom) is Has]
        return min([place for place in places if place >= start], default=-1)

    def required(self, frame: Frame) -> list[int]:
        """Return the places of the keys that must come in the object that is a frame's innermost level."""
        formula, levels = frame
        last = levels[-1]
        assert type(last) is Object
        assert not isinstance(last.shape, tuple)
        conditions = self.schema.innermost(formula, path_of(levels))
        if len(conditions) != 1:
            return []
        whole = conditions[0]
        parts = whole.parts if whole.kind is Kind.ALL_OF else (whole,)
        return [last.shape.place[p.atom.key] for p in parts if p.kind is Kind.ATOM and type(p.atom) is Has]

    def _foreign(self, shape: ObjectShape, place: int, formula: Formula, path: Path, foreign: int) -> int:
        """Return the foreign keys, and those of which nothing that is left says anything.

        See `json_schema.member_derivatives` for those whose place is behind.
        """
        unsaid = shape.all_keys & ~shape.said_by(object_atoms(self.schema, formula, path)) & ~shape.unsaid
        return foreign | unsaid & (shape.declared | -1 << place)

    def with_key(self, frame: Frame, place: int) -> Frame | None:
        """Return the frame behind a declared key; None where it may not come."""
        choice = self.choices(frame).declared.get(place)
        if choice is None:
            return None
        levels = frame.levels
        last, path = levels[-1], path_of(levels)
        assert type(last) is Object or type(last) is Key
        shape = last.shape
        assert not isinstance(shape, tuple)
        left, foreign, back = choice
        if foreign >> place & 1:
            other = Frame(self._members.by_other(left, path), (*levels[:-1], OtherKey(shape, back, foreign)))
            for character in shape.keys[place]:
                if other.formula.is_open:
                    other = self.read(other, character)
            return self.key_ended(other)
        left = self._members.by_key(left, path, shape, place)
        if left is self.schema.nothing:
            return None
        asked = self._members.asked_of(shape, shape.keys[place])
        here = Object(shape, last.place | 1 << place if self._any_order else place + 1, foreign, "a")
        return Frame(left, (*levels[:-1], here, self._colon(asked)))

    def asked_by(self, said: Said, key: str) -> tuple[Node, ...] | None:
        """Return the nodes that Members ask the value of a key to be in; None where Names do not allow the key."""
        asked: dict[Node, None] = {}
        for atom in said:
            if isinstance(atom, Members):
                asked.update(dict.fromkeys(self._members.nodes(atom, key)))
            elif not self._members.names(atom, key):
                return None
        return tuple(asked)

    def keys_left(self, level: Object | Key) -> tuple[str, ...]:
        """Return the declared keys that may still come in an object, as far as the order of keys goes."""
        shape = level.shape
        assert not isinstance(shape, tuple)
        if not self._any_order:
            return shape.keys[level.place :]
        return tuple([key for place, key in enumerate(shape.keys) if not level.place >> place & 1])

    def undeclared(self, said: Said, keys: Sequence[str]) -> Frame:
        """Return the frame of the content of a key that is none of some keys, and that may come."""
        return Frame(self._members.undeclared(said, keys), (Text(Spelling.NEEDED),))

    def other_key(self, said: Said, members: Members, source: str | None) -> Frame:
        """Return the frame of the content of a key that Members do not declare, and that may come.

        It is one that a pattern of the Members matches, or, with None, one that none does.
        """
        sources = [each for each, _ in members.patterns] if source is None else [source]
        keys = [key for key, _ in members.properties] if source is None else ()
        matched = [self._members.matched(each, source is not None) for each in sources]
        content = self.schema.formulas.all_of(self._members.undeclared(said, keys), *matched)
        return Frame(content, (Text(Spelling.NEEDED),))

    def _colon(self, asked: tuple[Node, ...]) -> Value:
        flexible = self.layout.flexible
        return Value(b":" if flexible else self.layout.colon, int(flexible), asked)

    def key(self, frame: Frame) -> Frame | None:
        """Return the frame behind the opening quote of a key; None where there is plainly none."""
        formula, levels = frame
        choices, last = self.choices(frame), levels[-1]
        assert type(last) is Object
        shape = last.shape
        assert not isinstance(shape, tuple)
        others = choices.others
        if not shape.keys:
            return (
                None if others is self.schema.nothing else Frame(others, (*levels[:-1], OtherKey(shape, last.place, 0)))
            )
        if not choices.declared and others is self.schema.nothing:
            return None
        return Frame(formula, (*levels[:-1], Key(shape, last.place, last.foreign, shape.trie, others)))

    def key_read(self, frame: Frame, character: str) -> Frame | None:
        """Return the frame behind a character of a key that may become a declared one."""
        formula, levels = frame
        last = levels[-1]
        assert type(last) is Key
        other = self.other_read(frame, character)
        branch = last.branch.branches.get(character)
        if branch is not None:
            return Frame(formula, (*levels[:-1], last._replace(branch=branch, other=other)))
        if other is self.schema.nothing:
            return None
        return Frame(other, (*levels[:-1], OtherKey(last.shape, last.place, last.foreign)))

    def other_read(self, frame: Frame, character: str) -> Formula:
        """Return the formula for an undeclared key behind a character of a key that may become a declared one."""
        last = frame.levels[-1]
        assert type(last) is Key
        other = last.other
        return self.schema.read(other, (*path_of(frame.levels), KEY), character) if other.is_open else other

    def key_ended(self, frame: Frame) -> Frame | None:
        """Return the frame behind the closing quote of a key."""
        last = frame.levels[-1]
        if type(last) is Key:
            place = last.branch.key
            if place >= 0:
                return self.with_key(frame_before(frame), place)
            frame = self.other_begun(frame)
        schema = self.schema
        left = schema.ended(frame.formula, path_of(frame.levels))
        key = frame.levels[-1]
        assert type(key) is OtherKey
        return None if left is schema.nothing else Frame(left, self._behind_key(frame.levels, key))

    def other_begun(self, frame: Frame) -> Frame:
        """Return the frame in which a key that may become a declared one is read as an undeclared one."""
        last = frame.levels[-1]
        assert type(last) is Key
        return Frame(last.other, (*frame.levels[:-1], OtherKey(last.shape, last.place, last.foreign)))

    def key_by_place(self, frame: Frame, place: int) -> Frame | None:
        """Return the frame behind a key of the object's shape that was begun; None where it may not come."""
        return self.with_key(frame_before(frame), place)

    def _behind_key(self, levels: Levels, key: OtherKey) -> Levels:
        shape = key.shape
        asked = self._members.asked_of(shape, None)
        return (*levels[:-1], Object(shape, key.place, key.foreign, "a"), self._colon(asked))

    def key_spelling(self, frame: Frame) -> Spelling:
        """Return how a key is spelled that may become a declared one."""
        last = frame.levels[-1]
        assert type(last) is Key
        shape = last.shape
        if shape.is_told:
            return Spelling.NEEDED
        if not self._may_have_others(frame):
            return Spelling.ONE
        if shape.has_spellings or (not shape.is_ascii and not self.layout.ascii):
            return Spelling.NEEDED
        return Spelling.NEEDED if self.layout.ascii else Spelling.KEY

    def _may_have_others(self, frame: Frame) -> bool:
        """Return whether an undeclared key may come now or later in the object that is the innermost level."""
        last, path = frame.levels[-1], path_of(frame.levels)
        assert type(last) is Key
        if last.other is not self.schema.nothing:
            return True
        key = frame.formula, path, last.shape
        found = self._has_others.get(key)
        if found is None:
            left = self._without_has(frame.formula, path)
            found = self._has_others[key] = self._members.by_other(left, path) is not self.schema.nothing
        return found


def frame_before(frame: Frame) -> Frame:
    """Return the frame before the key that is its innermost level."""
    last = frame.levels[-1]
    assert type(last) is Key
    return Frame(frame.formula, (*frame.levels[:-1], Object(last.shape, last.place, last.foreign, "k")))
