"""Objects by any formulas: automata whose letters are members, by declared key in their order, then by class of key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...automata.deadline import look
from .algebra import (
    ANY,
    NEVER,
    AllOf,
    AnyOf,
    MemberCount,
    Members,
    Names,
    Node,
    Not,
    Required,
    Types,
    all_of,
    atoms,
    closes,
    counted,
    is_never,
    negate,
    once_each,
    replaced,
)
from .key_order import mentioned
from .key_sets import KeptBytes, KeySets, places_of
from .member_counts import check_counts
from .member_letters import FINDING, Letters
from .negated_members import Beyond, Lacks, either_way, lacking
from .skeleton import ObjectAutomaton, ObjectState, Step
from .value_builder import ValueBuilder
from .value_tests import Case, Formulas, Test

# bytes that a state, a step, and an entry of a row were seen to take; and a place in a list or tuple
_OF_STATE, _OF_STEP, _OF_ENTRY, _OF_PLACE = 1000, 50, 200, 8
_EITHER, _PASSED, _FAILED = range(3)  # how a value leads to a case by the only test
Left = tuple[Node, ...]  # what is left of each formula
Asked = tuple[Node, Node]  # what an atom asks of a member's value, and what is left of the atom then
Row = dict[int, Asked | None]  # the same by letter; None where it is not found yet


class AtomRow(NamedTuple):
    """An atom, what it asks by letter, and what it asks at the letters that its row lacks: None if that differs."""

    atom: Node
    row: Row
    usual: Asked | None


class Tests:
    """What formulas ask of the value of the next member, and what is left of them then; found when it is asked for."""

    __slots__ = ("alike", "atoms", "cases", "left")

    def __init__(self, left: Left, atoms: list[AtomRow]) -> None:
        self.left = left
        self.atoms = atoms
        self.cases: dict[int, list[Case]] = {}  # by letter
        self.alike: dict[tuple[object, ...], list[tuple[int, Left]]] = {}  # cases, by what becomes of the atoms


class StepTable:
    """The steps from what is left of the formulas, made when they are asked for."""

    __slots__ = (
        "allowed", "close", "counted", "counts", "foreign", "left", "made", "required", "steps", "tests", "undeclared",
        "whole",
    )  # fmt: skip

    def __init__(self, left: Left, foreign: int, num_keys: int) -> None:
        self.left = left
        self.foreign = foreign
        self.steps: list[Step | None] = [None] * num_keys
        self.made = foreign  # keys whose steps are made, or need not be
        self.whole = num_keys + 1  # from this place on, these are the steps of a state, and all are made
        self.undeclared: dict[tuple[int, int], Step | None] = {}  # by letter, and the place that they lead back to
        self.close = next((label for label, node in enumerate(left) if closes(node)), -1)
        self.required = 0  # keys whose absence changes what is left
        self.allowed = -1  # keys that may come
        self.tests: Tests  # of all formulas but `counts`
        self.counts: list[Node] = []  # the counts of members in a single conjunction
        # the counts after one more member; and what is left with them, by what else is left
        self.counted: tuple[list[Node], dict[Node, Node]] | None = None


class MemberDerivatives:
    """The states of any formulas, and the automaton of them.

    A state is a place (how many declared keys are behind), what is left of each formula, and which keys are *foreign*:
    keys that only alternatives declare which are out. Nothing that is left depends on foreign keys, so they are read as
    undeclared keys are: anywhere between declared ones, as often as they come. An object of one alternative then has
    the states that it would have on its own.

    A key whose place is behind is foreign only if it does not matter whether it came. So none is that formulas may ask
    not to come, or that is only required, and none at all where some member may have to fail, or members are counted.

    Sets of declared keys are bits of an int, by place.
    """

    def __init__(self, builder: ValueBuilder, parts: Left) -> None:
        self._builder = builder
        keys, members, names = mentioned(parts)
        self._bytes = KeptBytes(builder)
        self._letters = Letters(builder, keys, members, names)
        said = atoms(*parts)
        self._counts = any(type(atom) is MemberCount and atom.args[2] is not None for atom in said)
        self._is_strict = (
            len(parts) > 1 or any(type(atom) is MemberCount for atom in said) or any(map(_is_negative, parts))
        )
        few = self._letters.few() if self._counts else []
        if few:  # as declared keys they are counted
            keys = (*keys, *few)
            self._letters = Letters(builder, keys, members, names)
        self._end = len(keys)
        self._place = self._letters.place
        self._never_foreign = sum([1 << self._place[key] for key in few])
        absent = frozenset().union(*[_absent(part, len(parts) > 1) for part in parts])
        declared = {key for one in members for key, _ in one.properties} - absent
        self._declared = 0 if self._is_strict else sum([1 << self._place[key] for key in declared])
        self._absent = sum([1 << self._place[key] for key in absent])
        self._reach = {one: self._letters.reach(one) for one in members}
        self._rows: dict[Node, AtomRow] = {}
        # by letter: the derivatives of atoms, and those of formulas
        self._derivatives: list[tuple[dict[Node, Node], dict[Node, Node]]] = [
            ({}, {}) for _ in range(self._letters.num + self._end)
        ]
        self._formulas: dict[int, Formulas] = {}
        self._key_sets = KeySets(self._letters, self._bytes)
        self._unsaid: dict[Left, int] = {}
        self._tables: dict[tuple[Left, int], StepTable] = {}
        self._tests: dict[Left, Tests] = {}
        self._states: dict[tuple[int, Left, int], int] = {}
        self._found: list[tuple[int, Left, int]] = []
        self._parts = parts

    def automaton(self) -> ObjectAutomaton:
        """Return the automaton of all states."""
        found = ObjectAutomaton(keys=self._letters.keys, language=self._letters.language)
        self._number(0, self._parts, self._foreign(0, self._parts, 0))
        for i, (place, left, foreign) in enumerate(self._found):  # which grows meanwhile
            self._check(i)
            found.states.append(self._make(place, left, foreign))
        return found

    def _check(self, made: int) -> None:
        """Ask the meter once in a while. made: states that are made."""
        if not made & 7:
            self._builder.meter.check(states=len(self._found), bytes=self._bytes.size, doing=FINDING)
        self._bytes.add(_OF_STATE)

    def _number(self, place: int, left: Left, foreign: int) -> int:
        """Return the state at a place, or at the next one if the key there is foreign."""
        while foreign >> place & 1:
            place += 1
        key = (place, left, foreign)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = len(self._found)
            self._found.append(key)
        return found

    def _table(self, left: Left, foreign: int) -> StepTable:
        table = self._tables.get((left, foreign))
        if table is None:
            look(FINDING)
            self._bytes.add(_OF_PLACE * self._end)
            table = self._tables[left, foreign] = StepTable(left, foreign, self._end)
            table.required = self._key_sets.required_by(left)
            table.allowed = self._key_sets.allowed_in(left)
            parts = () if len(left) != 1 else left[0].args if type(left[0]) is AllOf else left
            table.counts = [part for part in parts if type(part) is MemberCount]
            if table.counts:
                left = (all_of([part for part in parts if type(part) is not MemberCount]),)
            tests = self._tests.get(left)
            if tests is None:
                found = atoms(*left)
                self._bytes.add(_OF_PLACE * 2 * len(found))  # what is left has them too
                tests = self._tests[left] = Tests(left, [self._row(atom) for atom in found])
            table.tests = tests
        return table

    def _foreign(self, place: int, left: Left, foreign: int) -> int:
        """Return the foreign keys, and those about which nothing that is left says anything."""
        return foreign | self._unsaid_by(left) & (self._declared | -1 << place)

    def _unsaid_by(self, left: Left) -> int:
        """Return the keys about which nothing that is left says anything."""
        found = self._unsaid.get(left)
        if found is None:
            said = 0
            for node in left:
                said |= self._key_sets.said_by(node)
            found = self._unsaid[left] = ~said & ~self._never_foreign & ((1 << self._end) - 1)
        return found

    def _make(self, place: int, left: Left, foreign: int) -> ObjectState:
        """Return the state at a place.

        Its keys are cut into ranges, each up to a key whose absence changes what is left.
        """
        table = self._table(left, foreign)
        close, others = table.close, self._others(table, place)
        if place >= table.whole:
            return ObjectState(close, place, self._end, table.steps, others)
        pieces: list[tuple[int, int, StepTable]] = []
        alone = self._alone(table, place, foreign)
        start = back = place
        while True:
            ahead = table.required >> start
            stop = start + (ahead & -ahead).bit_length() if ahead else self._end
            if stop > start:
                self._fill(table, start, stop)
                pieces.append((start, stop, table))
            if not ahead:
                break
            left = tuple([self._key_sets.without(node, stop - 1) for node in left])
            if all(map(is_never, left)):
                break
            start = stop
            back = start if self._absent >> start - 1 & 1 else back
            more = self._foreign(start, left, foreign)
            table = self._table(left, more)
            alone += self._alone(table, back, more & ~foreign & ~((1 << start) - (1 << place)))
            foreign = more
        if not alone and not pieces:
            return ObjectState(close, self._end, self._end, table.steps, others)
        if not alone and len(pieces) == 1:
            start, stop, table = pieces[0]
            if start == place and not table.required >> place:
                table.whole = place
            return ObjectState(close, start, stop, table.steps, others)
        steps: list[Step | None] = [None] * self._end
        for start, stop, table in pieces:
            steps[start:stop] = table.steps[start:stop]
        for key, step in alone:
            steps[key] = step
        self._bytes.add(_OF_PLACE * self._end)
        return ObjectState(close, 0, self._end, steps, others)

    def _alone(self, table: StepTable, place: int, keys: int) -> list[tuple[int, Step]]:
        """Return the steps of foreign keys, which lead back to a place."""
        if self._letters.language is None:
            step = self._undeclared(table, self._end, place) if keys else None
            return [] if step is None else [(key, step) for key in places_of(keys)]
        steps = [(key, self._undeclared(table, self._letters.num + key, place)) for key in places_of(keys)]
        return [(key, step) for key, step in steps if step is not None]

    def _fill(self, table: StepTable, start: int, stop: int) -> None:
        """Make the steps of a table for a range of keys."""
        for letter in places_of((table.allowed & ~table.made & (1 << stop) - 1) >> start << start):
            look(FINDING)
            cases = self._cases(table, letter)
            if cases:
                table.steps[letter] = self._builder.step(cases, self._following(table, letter, letter + 1, cases))
        table.made |= (1 << stop) - (1 << start)

    def _others(self, table: StepTable, place: int) -> Mapping[int, Step]:
        """Return the steps of undeclared keys by class, which lead back to a place."""
        others = {}
        is_new = not table.undeclared
        for letter in range(self._end, self._letters.num):
            look(FINDING)
            step = self._undeclared(table, letter, place)
            if step is not None:
                others[letter - self._end] = step
        if self._counts and others and is_new:
            for node in table.left:
                check_counts(node)
        return others

    def _undeclared(self, table: StepTable, letter: int, place: int) -> Step | None:
        """Return the step of undeclared keys, which leads back to a place."""
        key = letter, place
        if key not in table.undeclared:
            cases = self._cases(table, letter)
            table.undeclared[key] = (
                self._builder.step(cases, self._following(table, letter, place, cases)) if cases else None
            )
        return table.undeclared[key]

    def _cases(self, table: StepTable, letter: int) -> list[Case]:
        """Return the cases of the value of the next member."""
        self._bytes.add(_OF_STEP)
        tests = table.tests
        cases = tests.cases.get(letter)
        if cases is None:
            cases = tests.cases[letter] = self._told_apart(tests, letter)
        return self._counted(table, cases) if table.counts else cases

    def _following(self, table: StepTable, letter: int, place: int, cases: Iterable[Case]) -> tuple[int, ...]:
        """Return the states behind a member, by what is left then.

        An undeclared key leads back to the place at which it came, a declared one behind its own.
        """
        before = table.foreign
        return tuple([self._number(place, rest, self._foreign(place, rest, before)) for _, rest in cases])

    def _counted(self, table: StepTable, cases: list[Case]) -> list[Case]:
        """Return cases of the value of the next member, in which that member is counted."""
        left = table.counted  # what is asked of a value does not depend on how many members there were
        if left is None:
            left = table.counted = list(map(counted, table.counts)), {}
        counts, known = left
        if NEVER in counts:
            return []
        found: list[Case] = []
        for condition, (rest,) in cases:
            both = known.get(rest)
            if both is None:
                both = known[rest] = all_of([rest, *counts])
            if not is_never(both):
                found.append((condition, (both,)))
        return found

    def _told_apart(self, tests: Tests, letter: int) -> list[Case]:
        """Return the cases of the value of the next member under some formulas.

        If there is at most one test, what is left follows from which atoms have the test and what becomes of them.
        That is the same for most keys.
        """
        test: Node = ANY
        pattern: list[Node | tuple[Node]] = []
        for atom, row, usual in tests.atoms:
            inside, rest = row.get(letter, usual) or self._after(atom, letter, row)
            if inside is ANY:
                pattern.append(rest)
            elif inside is NEVER:
                pattern.append(NEVER)
            elif test is ANY or test is inside:
                test = inside
                pattern.append((rest,))
            else:
                return self._by_several_tests(tests, letter)
        key = (letter >= self._end, *pattern)
        alike = tests.alike.get(key)
        if alike is None:
            look(FINDING)  # what is left may be as long as the schema
            self._bytes.add(_OF_PLACE * 2 * len(pattern))
            alike = tests.alike[key] = _left_by_test(tests, letter >= self._end, pattern)
        return [
            (ANY if outcome == _EITHER else test if outcome == _PASSED else negate(test), left)
            for outcome, left in alike
        ]

    def _by_several_tests(self, tests: Tests, letter: int) -> list[Case]:
        look(FINDING)
        cases = self._builder.cases
        by, known = self._derivatives[letter]
        for atom, row, usual in tests.atoms:
            if atom not in by:
                inside, rest = row.get(letter, usual) or self._after(atom, letter, row)
                test = ANY if inside is ANY else cases.test(inside)
                self._becomes(by, atom, letter, test, rest)
        formulas = self._formulas.get(letter)
        if formulas is None:
            formulas = self._formulas[letter] = Formulas()
        return cases.expand(replaced(tests.left, by, known), formulas)

    def _becomes(self, by: dict[Node, Node], atom: Node, letter: int, test: Node, rest: Node) -> None:
        """Note what becomes of an atom; and of its negation, if that is not the negation of the former."""
        if type(atom) is Lacks:
            rest = NEVER if is_never(test) else rest
            if letter < self._end:  # its key does not come again, so that a member that fails decides
                by[atom] = either_way(test, Lacks(rest), ANY)
            else:
                by[atom] = either_way(test, lacking(rest, type(test) is Test), lacking(rest, False))
        else:
            by[atom] = all_of([test, rest])
            if letter >= self._end and type(test) is not Types:
                by[Not(atom)] = either_way(test, negate(rest), Lacks(rest))

    def _after(self, atom: Node, letter: int, row: Row) -> tuple[Node, Node]:
        """Return what an atom asks of the value of a member with a key, and what is left of the atom then."""
        shape = type(atom)
        found: tuple[Node, Node]
        if isinstance(atom, Members):
            place, bare = self._reach_of(atom)
            is_last = self._is_strict and place <= letter + 1 <= self._end  # else it says which keys are foreign
            found = self._letters.node(atom, letter), bare if is_last else atom
        elif shape is Required:
            keys = tuple([key for key in atom.args[0] if self._place[key] != letter])
            found = ANY, Required(keys) if keys else ANY
        elif shape is MemberCount:
            found = ANY, counted(atom)
        elif shape is Names:
            found = ANY if self._letters.named(atom.args[0], letter) else NEVER, atom
        elif shape is Lacks:
            found = self._after(atom.args[0], letter, self._row(atom.args[0]).row)
        elif shape is Beyond:
            members, passed = atom.args
            is_behind = letter < self._end and self._letters.keys[letter] in passed
            found = ANY if is_behind else self._letters.node(members, letter), atom
        else:
            raise TypeError(f"not a formula about objects: {atom!r}")
        row[letter] = found
        self._bytes.add(_OF_ENTRY)
        return found

    def _row(self, atom: Node) -> AtomRow:
        """Return what `_after` says of an atom by letter. The row lacks the letters where that is the usual."""
        found = self._rows.get(atom)
        if found is None:
            usual: Asked | None = None
            others = 0
            if type(atom) is Required:
                usual, others = (ANY, atom), self._key_sets.required_in(atom)
            elif type(atom) is Members and self._letters.declared(atom) >= 0:
                usual, others = (NEVER, NEVER), self._letters.declared(atom)
            found = self._rows[atom] = AtomRow(atom, dict.fromkeys(places_of(others)), usual)
            self._bytes.add(_OF_ENTRY * (1 + len(found.row)))
        return found

    def _reach_of(self, members: Members) -> tuple[int, Node]:
        found = self._reach.get(members)
        if found is None:
            found = self._reach[members] = self._letters.reach(members)
        return found


def _left_by_test(tests: Tests, is_undeclared: bool, becomes: Sequence[Node | tuple[Node]]) -> list[tuple[int, Left]]:
    """Return what is left of formulas if a value passes the only test, and if it fails.

    is_undeclared: whether the key is. becomes: what is left of each atom; in a tuple if the atom has the test.
    """
    passing: dict[Node, Node] = {}
    failing: dict[Node, Node] = {}
    for (atom, _, _), rest in zip(tests.atoms, becomes, strict=True):
        if type(atom) is Lacks:
            tested, inside = (True, rest[0]) if isinstance(rest, tuple) else (False, rest)
            if is_undeclared or is_never(inside):
                passing[atom], failing[atom] = lacking(inside, tested), lacking(inside, False)
            else:
                passing[atom], failing[atom] = Lacks(inside), ANY if tested else Lacks(inside)
        elif isinstance(rest, tuple):
            passing[atom], failing[atom] = rest[0], NEVER
            if is_undeclared:
                failing[Not(atom)] = Lacks(rest[0])
        elif rest is not atom:
            passing[atom] = failing[atom] = rest
    passed = replaced(tests.left, passing)
    failed = passed if passing == failing else replaced(tests.left, failing)
    found = [(_EITHER, passed)] if passed == failed else [(_PASSED, passed), (_FAILED, failed)]
    return [case for case in found if not all(map(is_never, case[1]))]


@once_each
def _is_negative(node: Node) -> bool:
    """Return whether a formula asks that some member fail what Members say."""
    if type(node) is Not:
        return type(node.args[0]) is Members
    return type(node) in (AllOf, AnyOf) and any(map(_is_negative, node.args))


@once_each
def _absent(node: Node, is_negated: bool) -> frozenset[str]:
    """Return the keys that a formula may ask not to come. is_negated: it may be asked not to hold."""
    if type(node) is Not:
        return _absent(node.args[0], True)
    if type(node) in (AllOf, AnyOf):
        return frozenset().union(*[_absent(part, is_negated) for part in node.args])
    return frozenset(node.args[0] if is_negated and type(node) is Required else ())
