"""Objects: automata whose letters are members, by declared key in their order, then by class of undeclared keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from operator import is_not
from typing import TYPE_CHECKING, Any, NamedTuple

from ...automata.labelled import Labelled
from . import strings
from .algebra import (
    ANY,
    NEVER,
    OBJECT,
    STRING,
    AllOf,
    AnyOf,
    MemberCount,
    Members,
    Names,
    Node,
    Not,
    Pattern,
    Required,
    Types,
    Words,
    all_of,
    any_of,
    atoms,
    negate,
    replaced,
    restrict,
)
from .cases import Case, Formulas, Test, closes, counted, is_any, is_never
from .skeleton import ObjectAutomaton, ObjectState, Step, Unordered
from .source import inexact

if TYPE_CHECKING:
    from .build import Builder

_FINDING = "finding the states of an object"
_OF_STATE, _OF_STEP = 1000, 50  # bytes that a state, and each of its steps, was seen to take
_NO_STEPS: Mapping[int, Step] = {}
_FEW = 64  # undeclared keys of a class that are declared where members are counted
_TWICE = 'keys that "properties" does not declare are not remembered, and the same one twice would count as two'
_Left = tuple[Node, ...]  # what is left of each formula
_Row = list[tuple[Node, Node] | None]  # by letter, what an atom asks of a member's value, and what is left of it then
_EITHER, _PASSED, _FAILED = range(3)  # how a value leads to a case by the only test


def objects(builder: Builder, parts: tuple[Node, ...], any_order: bool = False) -> ObjectAutomaton | None:
    """Return the automaton of formulas about objects; None where it is plain that no object is in any."""
    if len(parts) == 1:
        record = record_of(parts[0])
        if record is not None:
            return _record(builder, record, any_order)
    automaton = _Derivatives(builder, parts).automaton
    if any_order:
        try:
            automaton.unordered = _AnyOrder(builder, parts).unordered
        except _UnsureError:
            automaton.unordered = in_any_order(builder, parts)
    return automaton


def in_any_order(builder: Builder, parts: tuple[Node, ...]) -> Unordered:
    """Return what is left of formulas after members in any order, where it matters which keys passed a negated test."""
    return _AnyOrder(builder, parts, exact=True).unordered


class _Lacks(Node):
    """What is left of Not(members) after an undeclared member that failed: _Lacks(members).

    The key may come again, with a value that passes, and a reader has only that. So after any undeclared member that is
    asked something and passes it is Not(members) again.
    """

    __slots__ = ()
    kind = OBJECT


class _Beyond(Node):
    """What is left of Members, where it stands negated, after some of its keys in any order: _Beyond(members, keys).

    Those came with values that pass, and come no more: what they are asked does not matter.
    """

    __slots__ = ()
    kind = OBJECT


class _Letters:
    """What may be a key: the declared ones are letters 0 .. len(keys) - 1, then come classes of all others."""

    def __init__(
        self, builder: Builder, keys: tuple[str, ...], members: Sequence[Members], names: Iterable[Node]
    ) -> None:
        flat = builder.cases.flat
        languages: dict[Node, int] = {}
        self.keys = keys
        self.place = {key: place for place, key in enumerate(keys)}
        self._flat = flat
        self._names: dict[Node, int] = {}
        self._members: dict[Members, tuple[dict[str, Node], list[tuple[int, Node]], Node]] = {}
        for one in members:
            rest = flat(one.rest)
            patterns = []
            for source, node in one.patterns:
                node = flat(node)
                if not (is_any(rest) and is_any(node)):  # else it says nothing
                    patterns.append((languages.setdefault(Pattern(source), len(languages)), node))
            self._members[one] = (dict(one.properties), patterns, rest)
        for name in names:
            self._names[name] = languages.setdefault(restrict(flat(name), STRING), len(languages))
        self._languages = list(languages)
        self.language: Labelled | None = None
        self._classes: Sequence[tuple[bool, ...]] = [()]
        if languages:
            self.language, self._classes = strings.partition(keys, self._languages, builder.meter)
        self.num = len(keys) + len(self._classes)

    def few(self) -> list[str]:
        """Return undeclared keys of classes that have few, those that the schema lists in its order."""
        words: set[str] = set()
        for letter in range(len(self.keys), self.num if self.language is not None else 0):
            assert self.language is not None
            words.update(word.decode() for word in self.language.words(letter, _FEW) or ())
        listed = [word for atom in atoms(*self._names) if type(atom) is Words for word in atom.args[0] if word in words]
        return [*dict.fromkeys(listed + sorted(words))]

    def _holds(self, language: int, letter: int) -> bool:
        if letter < len(self.keys):
            return strings.holds(self._languages[language], self.keys[letter])
        return self._classes[letter - len(self.keys)][language]

    def named(self, name: Node, letter: int) -> bool:
        """Return whether the keys of a letter are in the node of a Names."""
        return self._holds(self._names[name], letter)

    def node(self, members: Members, letter: int) -> Node:
        """Return what the value of a member is in."""
        properties, patterns, rest = self._members[members]
        found = properties.get(self.keys[letter]) if letter < len(self.keys) else None
        nodes = [] if found is None else [self._flat(found)]
        for language, node in patterns:
            if self._holds(language, letter):
                nodes.append(node)
        if not nodes:
            return rest
        return nodes[0] if len(nodes) == 1 else all_of(nodes)

    def reach(self, members: Members) -> tuple[int, Node]:
        """Return the place behind the last key that it declares, and what it says from there on."""
        properties, patterns, rest = self._members[members]
        place = max([self.place[key] + 1 for key in properties], default=0)
        if not patterns and is_any(rest):
            return place, ANY
        bare = Members((), members.patterns if patterns else (), rest)
        self._members[bare] = ({}, patterns, rest)
        return place, bare

    def declared(self, members: Members) -> int:
        """Return the keys that it may have, a bit each by place; -1 for any."""
        properties, patterns, rest = self._members[members]
        if patterns or not is_never(rest):
            return -1
        return sum([1 << self.place[key] for key in properties])


# ------------------------------------------------------------------------------------------------ the usual object


class Record(NamedTuple):
    """A conjunction in which nothing depends on the members before, but for which keys are still required."""

    members: list[Members]
    required: dict[str, None]
    forbidden: dict[str, None]
    names: list[Node]


def record_of(node: Node) -> Record | None:
    """Return the record that a formula about objects is; None where it is none."""
    record = Record([], {}, {}, [])
    low, high, most = 0, None, None
    for part in node.args if type(node) is AllOf else (node,):
        shape = type(part)
        if shape is Members:
            record.members.append(part)
            if not part.args[1] and is_never(part.args[2]):
                most = len(part.args[0]) if most is None else min(most, len(part.args[0]))
        elif shape is Required:
            record.required.update(dict.fromkeys(part.args[0]))
        elif shape is Names:
            record.names.append(part.args[0])
        elif shape is MemberCount:
            low = max(low, part.args[0])
            if part.args[1] is not None:
                high = part.args[1] if high is None else min(high, part.args[1])
        elif shape is Not and type(part.args[0]) is Required and len(part.args[0].args[0]) == 1:
            record.forbidden[part.args[0].args[0][0]] = None
        else:
            return None
    if low > len(record.required) or (high is not None and (most is None or high < most)):
        return None  # the count must be kept
    return record


def _record(builder: Builder, record: Record, any_order: bool) -> ObjectAutomaton | None:
    """Return the automaton of a record: its states are places, and share one list of steps."""
    members, required = record.members, record.required
    automaton = ObjectAutomaton()
    classes: list[Node]
    if len(members) == 1 and not (members[0].args[1] or record.forbidden or record.names):
        rest = builder.cases.flat(members[0].args[2])
        declared = dict(members[0].args[0])
        for key in required:
            if key not in declared:
                declared[key] = rest
        automaton.keys = tuple(declared)
        nodes = [builder.cases.flat(node) for node in declared.values()]
        classes = [rest]
    else:
        keys = dict.fromkeys(in_order([[key for key, _ in one.args[0]] for one in members]))
        automaton.keys = (*(keys | required | record.forbidden),)
        letters = _Letters(builder, automaton.keys, members, record.names)
        automaton.language = letters.language
        nodes = []
        for letter in range(letters.num):
            forbidden = letter < len(automaton.keys) and automaton.keys[letter] in record.forbidden
            if forbidden or not all(letters.named(name, letter) for name in record.names):
                nodes.append(NEVER)
            else:
                nodes.append(all_of([letters.node(one, letter) for one in members]))
        classes = nodes[len(automaton.keys) :]
        del nodes[len(automaton.keys) :]
    end = len(nodes)
    builder.meter.check(states=end + 1, doing=_FINDING)
    steps: list[Step | None] = []
    one = builder.one
    behind = 0  # the state behind the keys so far: there is one behind each key that may be
    for node in nodes:
        if is_never(node):
            steps.append(None)
        else:
            behind += 1
            steps.append(Step(one(node), (behind,)))
    others: Mapping[int, Step] = {c: Step(one(node), (behind,)) for c, node in enumerate(classes) if not is_never(node)}
    close, last = 0, end
    states = []
    for place in range(end, -1, -1):
        if place < end and automaton.keys[place] in required:
            if steps[place] is None:
                return None
            close, last, others = -1, place + 1, _NO_STEPS
        if not place or steps[place - 1] is not None:
            states.append(ObjectState(close, place, last, steps, others))
    states.reverse()
    automaton.states = states
    if any_order:
        automaton.required = sum([1 << place for place, key in enumerate(automaton.keys) if key in required])
    builder.sound.add(automaton)
    return automaton


# ------------------------------------------------------------------------------------------------------- any formulas


class _Tests:
    """What formulas ask of the value of the next member, and what is left of them then, found as it is asked for."""

    __slots__ = ("alike", "atoms", "cases", "left")

    def __init__(self, left: _Left, atoms: list[tuple[Node, _Row]]) -> None:
        self.left = left
        self.atoms = atoms
        self.cases: dict[int, list[Case]] = {}  # by letter
        self.alike: dict[tuple[Any, ...], list[tuple[int, _Left]]] = {}  # cases, by what becomes of the atoms


class _Table:
    """The steps from what is left of the formulas, made as they are asked for."""

    __slots__ = (
        "allowed", "close", "counted", "counts", "foreign", "left", "made", "others", "required", "steps", "tests",
        "whole",
    )  # fmt: skip

    def __init__(self, left: _Left, foreign: int, num_keys: int) -> None:
        self.left = left
        self.foreign = foreign
        self.steps: list[Step | None] = [None] * num_keys
        self.made = foreign  # keys whose steps need not be made any more
        self.whole = num_keys + 1  # the place from which on these are the steps of a state, and all are made
        self.others: dict[int, Step] | None = None
        self.close = next((label for label, node in enumerate(left) if closes(node)), -1)
        self.required = 0  # keys whose absence changes what is left
        self.allowed = -1  # keys that there may be
        self.tests: _Tests  # of all but `counts`, which a single conjunction has beside
        self.counts: list[Node] = []
        # these after one more member, and by what else is left all that is
        self.counted: tuple[list[Node], dict[Node, Node]] | None = None


class _Derivatives:
    """The automaton of any formulas.

    A state is a place (how many declared keys are behind), what is left of each formula, and which keys are *foreign*:
    declared only by alternatives that were out before the key's place. Nothing that is left depends on them, so they
    are read as undeclared keys are, and an object of one alternative has the states that it has on its own.

    Sets of declared keys are bits of an int, by place.
    """

    def __init__(self, builder: Builder, parts: _Left) -> None:
        self._builder = builder
        keys, members, names = _mentioned(parts)
        self._letters = _Letters(builder, keys, members, names)
        self._counts = any(type(atom) is MemberCount and atom.args[2] is not None for atom in atoms(*parts))
        few = self._letters.few() if self._counts else []
        if few:  # declared, they are counted
            keys = (*keys, *few)
            self._letters = _Letters(builder, keys, members, names)
        self._end = len(keys)
        self._place = self._letters.place
        self._reach = {one: self._letters.reach(one) for one in members}
        self._rows: dict[Node, _Row] = {}
        # by letter, those of atoms, and those of formulas
        self._derivatives: list[tuple[dict[Node, Node], dict[Node, Node]]] = [
            ({}, {}) for _ in range(self._letters.num)
        ]
        self._formulas: dict[int, Formulas] = {}
        self._required: dict[Node, int] = {}
        self._said: dict[Node, int] = {}
        self._unsaid: dict[_Left, int] = {}
        self._allowed: dict[Node, int] = {}
        self._absent: list[dict[Node, Node]] = [{} for _ in keys]
        self._tables: dict[tuple[_Left, int], _Table] = {}
        self._tests: dict[_Left, _Tests] = {}
        self._states: dict[tuple[int, _Left, int], int] = {}
        self._found: list[tuple[int, _Left, int]] = []
        self._num_steps = 0
        self.automaton = ObjectAutomaton(keys=keys, language=self._letters.language)
        self._begin(parts)
        for i, (place, left, foreign) in enumerate(self._found):  # which grows meanwhile
            if not i & 7:
                states = len(self._found)
                size = _OF_STATE * states + _OF_STEP * self._num_steps
                builder.meter.check(states=states, bytes=size, doing=_FINDING)
            self.automaton.states.append(self._make(place, left, foreign))

    def _begin(self, parts: _Left) -> None:
        self._number(0, parts, self._foreign(0, parts, 0))

    def _number(self, place: int, left: _Left, foreign: int) -> int:
        """Return the state at a place; keys that are foreign there are passed over."""
        while foreign >> place & 1:
            place += 1
        key = (place, left, foreign)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = len(self._found)
            self._found.append(key)
        return found

    def _table(self, left: _Left, foreign: int) -> _Table:
        table = self._tables.get((left, foreign))
        if table is None:
            table = self._tables[left, foreign] = _Table(left, foreign, self._end)
            table.required = self._required_by(left)
            table.allowed = self._allowed_in(left)
            parts = () if len(left) != 1 else left[0].args if type(left[0]) is AllOf else left
            table.counts = [part for part in parts if type(part) is MemberCount]
            if table.counts:
                left = (all_of([part for part in parts if type(part) is not MemberCount]),)
            tests = self._tests.get(left)
            if tests is None:
                tests = self._tests[left] = _Tests(left, [(atom, self._row(atom)) for atom in atoms(*left)])
            table.tests = tests
        return table

    def _foreign(self, place: int, left: _Left, foreign: int) -> int:
        """Return the foreign keys, with those from a place on that nothing left says anything about."""
        if place >= self._end or self._letters.language is not None:
            return foreign
        unsaid = self._unsaid.get(left)
        if unsaid is None:
            unsaid = 0
            # where nothing at all is left to say, the states of all places have the same steps: let them be
            if not all(type(node) is Types for node in left):
                for node in left:
                    unsaid |= self._said_by(node)
                unsaid = ~unsaid & ((1 << self._end) - 1)
            self._unsaid[left] = unsaid
        return foreign | unsaid >> place << place

    def _make(self, place: int, left: _Left, foreign: int) -> ObjectState:
        """Return the state at a place: its ranges of keys, each up to one whose absence changes what is left."""
        table = self._table(left, foreign)
        close = table.close
        if place >= table.whole:
            return ObjectState(close, place, self._end, table.steps, self._others(table))
        pieces: list[tuple[int, int, _Table]] = []
        others: Mapping[int, Step] = _NO_STEPS
        start = place
        while True:
            ahead = table.required >> start
            stop = start + (ahead & -ahead).bit_length() if ahead else self._end
            if stop > start:
                self._fill(table, start, stop)
                pieces.append((start, stop, table))
            if not ahead:
                others = self._others(table)
                break
            left = tuple([self._without(node, stop - 1) for node in left])
            if all(map(is_never, left)):
                break
            start = stop
            foreign = self._foreign(start, left, foreign)
            table = self._table(left, foreign)
        read_alike = others.get(0) if foreign else None
        if read_alike is None and not pieces:
            return ObjectState(close, self._end, self._end, table.steps, others)
        if read_alike is None and len(pieces) == 1:
            start, stop, table = pieces[0]
            if start == place and not table.required >> place:
                table.whole = place
            return ObjectState(close, start, stop, table.steps, others)
        steps: list[Step | None] = [None] * self._end
        for start, stop, table in pieces:
            steps[start:stop] = table.steps[start:stop]
        if read_alike is not None:
            for key in _places(foreign):
                steps[key] = read_alike
        self._num_steps += self._end
        return ObjectState(close, 0, self._end, steps, others)

    def _fill(self, table: _Table, start: int, stop: int) -> None:
        """Make a table's steps by the keys of a range."""
        for letter in _places((table.allowed & ~table.made & (1 << stop) - 1) >> start << start):
            table.steps[letter] = self._step(table, letter)
        table.made |= (1 << stop) - (1 << start)

    def _others(self, table: _Table) -> Mapping[int, Step]:
        if table.others is None:
            table.others = {}
            for letter in range(self._end, self._letters.num):
                step = self._step(table, letter)
                if step is not None:
                    table.others[letter - self._end] = step
            if self._counts and table.others:
                for node in table.left:
                    _check_counts(node)
        return table.others

    def _step(self, table: _Table, letter: int) -> Step | None:
        self._num_steps += 1
        tests = table.tests
        cases = tests.cases.get(letter)
        if cases is None:
            cases = tests.cases[letter] = self._told_apart(tests, letter)
        if table.counts:
            cases = self._counted(table, cases)
        if not cases:
            return None
        return self._builder.step(cases, self._following(table, letter, [rest for _, rest in cases]))

    def _following(self, table: _Table, letter: int, lefts: Iterable[_Left]) -> tuple[int, ...]:
        """Return the states behind a member, by what it leaves."""
        place = min(letter + 1, self._end)
        left, foreign = table.left, table.foreign
        return tuple(
            [
                self._number(place, rest, foreign if rest is left else self._foreign(place, rest, foreign))
                for rest in lefts
            ]
        )

    def _counted(self, table: _Table, cases: list[Case]) -> list[Case]:
        """Return cases of the value of the next member in which the members are counted."""
        left = table.counted  # what is asked of a value does not depend on how many there were
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

    def _told_apart(self, tests: _Tests, letter: int) -> list[Case]:
        """Return the cases of the value of the next member under some formulas.

        Where it has to pass one test at most, what is left follows from which atoms have the test and what becomes of
        them, which is the same for most keys.
        """
        test: Node = ANY
        pattern: list[Any] = []
        for atom, row in tests.atoms:
            inside, rest = row[letter] or self._after(atom, letter, row)
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
            alike = tests.alike[key] = _alike(tests, *key)
        return [
            (ANY if outcome == _EITHER else test if outcome == _PASSED else negate(test), left)
            for outcome, left in alike
        ]

    def _by_several_tests(self, tests: _Tests, letter: int) -> list[Case]:
        cases = self._builder.cases
        by, known = self._derivatives[letter]
        for atom, row in tests.atoms:
            if atom not in by:
                inside, rest = row[letter] or self._after(atom, letter, row)
                test = ANY if inside is ANY else cases.test(inside)
                self._becomes(by, atom, letter, test, rest)
        formulas = self._formulas.get(letter)
        if formulas is None:
            formulas = self._formulas[letter] = Formulas()
        return cases.expand(replaced(tests.left, by, known), formulas)

    def _becomes(self, by: dict[Node, Node], atom: Any, letter: int, test: Node, rest: Node) -> None:
        """Note what becomes of an atom, and of its negation if that is not the negation of it."""
        if type(atom) is _Lacks:
            rest = NEVER if is_never(test) else rest
            by[atom] = _either(test, _lacking(rest, type(test) is Test), _lacking(rest, False))
        else:
            by[atom] = all_of([test, rest])
            if letter >= self._end and type(test) is not Types:
                by[Not(atom)] = _either(test, negate(rest), _Lacks(rest))

    def _after(self, atom: Any, letter: int, row: _Row) -> tuple[Node, Node]:
        """Return what an atom asks of the value of a member of some key, and what is left of the atom then."""
        shape = type(atom)
        found: tuple[Node, Node]
        if shape is Members:
            place, bare = self._reach_of(atom)
            found = self._letters.node(atom, letter), bare if letter + 1 >= place else atom
        elif shape is Required:
            keys = tuple([key for key in atom.args[0] if self._place[key] != letter])
            found = ANY, Required(keys) if keys else ANY
        elif shape is MemberCount:
            found = ANY, counted(atom)
        elif shape is Names:
            found = ANY if self._letters.named(atom.args[0], letter) else NEVER, atom
        elif shape is _Lacks:
            found = self._after(atom.args[0], letter, self._row(atom.args[0]))
        elif shape is _Beyond:
            members, passed = atom.args
            is_behind = letter < self._end and self._letters.keys[letter] in passed
            found = ANY if is_behind else self._letters.node(members, letter), atom
        else:
            raise TypeError(f"not a formula about objects: {atom!r}")
        row[letter] = found
        return found

    def _row(self, atom: Any) -> _Row:
        """Return what `_after` says of an atom by letter, as far as that is the same for most keys; None for others."""
        row = self._rows.get(atom)
        if row is None:
            usual: tuple[Node, Node] | None = None
            others = 0
            if type(atom) is Required:
                usual, others = (ANY, atom), self._required_in(atom)
            elif type(atom) is Members and self._letters.declared(atom) >= 0:
                usual, others = (NEVER, NEVER), self._letters.declared(atom)
            row = self._rows[atom] = [usual] * self._letters.num
            for place in _places(others):
                row[place] = None
        return row

    def _reach_of(self, members: Members) -> tuple[int, Node]:
        found = self._reach.get(members)
        if found is None:
            found = self._reach[members] = self._letters.reach(members)
        return found

    def _without(self, node: Any, place: int) -> Node:
        """Return what is left of a formula when an object has not the declared key at a place."""
        if not self._required_in(node) >> place & 1:
            return node  # type: ignore[no-any-return]
        shape = type(node)
        if shape is Required:
            return NEVER
        memo = self._absent[place]
        found = memo.get(node)
        if found is None:
            if shape is Not:
                found = negate(self._without(node.args[0], place))
            else:
                parts = [self._without(part, place) for part in node.args]
                found = all_of(parts) if shape is AllOf else any_of(parts)
            memo[node] = found
        return found

    def _required_by(self, left: _Left) -> int:
        found = 0
        for node in left:
            found |= self._required_in(node)
        return found

    def _required_in(self, node: Any) -> int:
        """Return the keys that a formula's Required atoms name."""
        shape = type(node)
        if shape is not AllOf and shape is not AnyOf and shape is not Not and shape is not Required:
            return 0
        found = self._required.get(node)
        if found is None:
            found = 0
            if shape is Required:
                for key in node.args[0]:
                    found |= 1 << self._place[key]
            else:
                for part in node.args:
                    found |= self._required_in(part)
            self._required[node] = found
        return found

    def _said_by(self, node: Any) -> int:
        """Return the keys that a formula names."""
        shape = type(node)
        if shape is Required:
            return self._required_in(node)
        if shape is _Lacks or shape is _Beyond:
            return self._said_by(node.args[0])
        if shape is not AllOf and shape is not AnyOf and shape is not Not and shape is not Members:
            return 0
        found = self._said.get(node)
        if found is None:
            found = 0
            if shape is Members:
                for key, _ in node.args[0]:
                    found |= 1 << self._place[key]
            else:
                for part in node.args:
                    found |= self._said_by(part)
            self._said[node] = found
        return found

    def _allowed_in(self, left: _Left) -> int:
        """Return the keys that what is left may have; -1 for any."""
        found = 0
        for node in left:
            found |= self._allowed_by(node)
        return found

    def _allowed_by(self, node: Any) -> int:
        found = self._allowed.get(node)
        if found is None:
            shape = type(node)
            found = -1
            if shape is Members:
                found = self._letters.declared(node)
            elif shape is Types:
                found = -1 if node.args[0] else 0
            elif shape is AllOf:
                for part in node.args:
                    found &= self._allowed_by(part)
            elif shape is AnyOf:
                found = 0
                for part in node.args:
                    found |= self._allowed_by(part)
                    if found < 0:
                        break
            self._allowed[node] = found
        return found


class _UnsureError(Exception):
    """It matters which keys passed a test that some member has to fail."""


class _AnyOrder(_Derivatives):
    """What is left of any formulas after members in any order.

    A state is what is left of each formula. It does not say which keys there were: that a key comes but once is for the
    reader to see to. Nor is anything taken off the required keys, which would make a state for each set of them: what
    ends is a formula that would without some of its Required, where these hold by then. Whether an object is left is
    the same for all sets of keys that there were: a text without some of these is in what is left if the whole is, and
    so is one with them, as they were read, put before it.

    Where some member has to fail a test, that is so only if the keys that came and passed are known (`_Beyond`), which
    would make a state for each set of them. They need not be where what passes is left as well, as in values told apart
    by a test: it is enough if that is possible, and what fails is put aside. If nothing else is left, or it turns out
    to be impossible, `exact` states are made.

    This is not so where members are counted. There the keys that came are taken off the required ones; and where two or
    more are asked for, a state is a set of keys as well, in place of the foreign ones.
    """

    def __init__(self, builder: Builder, parts: _Left, exact: bool = False) -> None:
        counts = [atom for atom in atoms(*parts) if type(atom) is MemberCount]
        self._exact = exact
        self._tracked = any(map(_asks_for_several, parts))
        # a count of one member at least, or its negation, says nothing after one
        self._kept = not self._tracked and all(low <= 1 and high is None for low, high, _ in (c.args for c in counts))
        self._negative: dict[Node, bool] = {}
        self.unordered = Unordered(exact)
        super().__init__(builder, parts)
        self.unordered.states = self.automaton.states

    def _begin(self, parts: _Left) -> None:
        self._number(0, parts, 0)

    def _number(self, place: int, left: _Left, foreign: int) -> int:
        found = self._states.get((0, left, foreign))
        if found is None:
            found = self._states[0, left, foreign] = len(self._found)
            self._found.append((0, left, foreign))
            ways = {(label, keys) for label, node in enumerate(left) for keys in self._ways(node)}
            self.unordered.ends.append(tuple(sorted(ways)))
            gone = [Not(Required((self.automaton.keys[j],))) for j in _places(foreign)]
            parts = left if self._exact else tuple(map(self._surely, left))
            if all(map(is_never, parts)) and not all(map(is_never, left)):
                raise _UnsureError
            if gone:
                parts = tuple([all_of([node, *gone]) for node in parts])
            self.unordered.inhabited.append(self._builder.inhabited(parts))
        return found

    def _make(self, place: int, left: _Left, foreign: int) -> ObjectState:
        table = self._table(left, foreign)
        self._fill(table, 0, self._end)
        return ObjectState(-1, 0, self._end, table.steps, self._others(table))

    def _following(self, table: _Table, letter: int, lefts: Iterable[_Left]) -> tuple[int, ...]:
        seen = table.foreign | 1 << letter if self._tracked and letter < self._end else table.foreign
        if self._exact:
            lefts = [tuple([self._forgotten(node, ()) for node in left]) for left in lefts]
        return tuple([self._number(0, left, seen) for left in lefts])

    def _told_apart(self, tests: _Tests, letter: int) -> list[Case]:
        if any(map(self._is_negative, tests.left)):
            return self._by_several_tests(tests, letter)
        return super()._told_apart(tests, letter)

    def _becomes(self, by: dict[Node, Node], atom: Any, letter: int, test: Node, rest: Node) -> None:
        """Note the same. A member of a declared key does not come again, so that where one fails it stays so."""
        shape = type(atom)
        if shape is Required and self._kept and letter < self._end:
            by[atom] = atom
            less = super()._after(atom, letter, [None] * self._letters.num)[1]
            by[Not(atom)] = negate(less)
        elif letter >= self._end or shape not in (Members, _Beyond, _Lacks):
            super()._becomes(by, atom, letter, test, rest)
        else:
            inside = atom.args[0] if shape is _Lacks else atom
            members, keys = (inside, frozenset()) if type(inside) is Members else inside.args
            passed = _Beyond(members, keys | {self._letters.keys[letter]}) if self._exact else members
            if shape is _Lacks:
                by[atom] = _either(test, _Lacks(passed), ANY)
            else:
                by[atom] = all_of([test, atom])
                by[Not(atom)] = _either(test, Not(passed), ANY)

    def _is_negative(self, node: Any) -> bool:
        """Return whether a formula asks that some member not be as Members say, or not be there."""
        shape = type(node)
        if shape is Not:
            inside = type(node.args[0])
            return inside is Members or inside is _Beyond or (inside is Required and self._kept)
        if shape is not AllOf and shape is not AnyOf:
            return shape is _Lacks
        found = self._negative.get(node)
        if found is None:
            found = self._negative[node] = any(map(self._is_negative, node.args))
        return found

    def _after(self, atom: Any, letter: int, row: _Row) -> tuple[Node, Node]:
        shape = type(atom)
        found: tuple[Node, Node]
        if shape is Members:
            found = self._letters.node(atom, letter), atom
        elif shape is Required and self._kept:
            found = ANY, atom
        else:
            return super()._after(atom, letter, row)
        row[letter] = found
        return found

    def _surely(self, node: Any) -> Node:
        """Return a formula without what asks that some member fail: what is in it is in the whole."""
        if not self._is_negative(node):
            return node  # type: ignore[no-any-return]
        if type(node) is not AllOf and type(node) is not AnyOf:
            return node if type(node) is Not and type(node.args[0]) is Required else NEVER
        parts = map(self._surely, node.args)
        return all_of(parts) if type(node) is AllOf else any_of(parts)

    def _forgotten(self, node: Any, beside: tuple[Members, ...]) -> Node:
        """Return a formula in which _Beyond names no key that could not have failed; beside: Members that must hold."""
        shape = type(node)
        if shape is Not and type(node.args[0]) is _Beyond:
            members, keys = node.args[0].args
            told = [key for key in keys if not self._is_held(members, self._place[key], beside)]
            if len(told) < len(keys):
                return Not(_Beyond(members, frozenset(told)) if told else members)
        elif (shape is AllOf or shape is AnyOf) and self._is_negative(node):
            if shape is AllOf:
                beside = (*beside, *[part for part in node.args if type(part) is Members])
            parts = [self._forgotten(part, beside) for part in node.args]
            if any(map(is_not, parts, node.args)):
                return all_of(parts) if shape is AllOf else any_of(parts)
        return node  # type: ignore[no-any-return]

    def _is_held(self, members: Members, letter: int, beside: tuple[Members, ...]) -> bool:
        """Return whether a declared key passes one of Members if it passes some others."""
        node = self._letters.node(members, letter)
        return is_any(node) or any(self._letters.node(other, letter) is node for other in beside)

    def _ways(self, node: Any) -> list[int]:
        """Return the least sets of keys with which an object may end with this left of its formula."""
        shape = type(node)
        if shape is Required:
            return [self._required_in(node)]
        if shape is AnyOf:
            return _least([keys for part in node.args for keys in self._ways(part)])
        if shape is not AllOf:
            return [0] if closes(node) else []
        found = [0]
        for part in node.args:
            ways = self._ways(part)
            found = _least([one | other for one in found for other in ways])
            self._builder.meter.check(states=len(found), doing=_FINDING)
        return found


def _least(sets: Iterable[int]) -> list[int]:
    """Return those of some sets that have no other within them, each once."""
    found: list[int] = []
    for one in sorted(set(sets), key=int.bit_count):
        if not any(other & ~one == 0 for other in found):
            found.append(one)
    return found


def _alike(tests: _Tests, is_undeclared: bool, *becomes: Any) -> list[tuple[int, _Left]]:
    """Return what is left where a value passes the only test, and where it fails it.

    is_undeclared: whether the key is. becomes: what is left of each atom, in a tuple if that is under the test.
    """
    passing: dict[Node, Node] = {}
    failing: dict[Node, Node] = {}
    for (atom, _), rest in zip(tests.atoms, becomes, strict=True):
        if type(atom) is _Lacks:
            tested, inside = (True, rest[0]) if type(rest) is tuple else (False, rest)
            passing[atom], failing[atom] = _lacking(inside, tested), _lacking(inside, False)
        elif type(rest) is tuple:
            passing[atom], failing[atom] = rest[0], NEVER
            if is_undeclared:
                failing[Not(atom)] = _Lacks(rest[0])
        elif rest is not atom:
            passing[atom] = failing[atom] = rest
    passed = replaced(tests.left, passing)
    failed = passed if passing == failing else replaced(tests.left, failing)
    found = [(_EITHER, passed)] if passed == failed else [(_PASSED, passed), (_FAILED, failed)]
    return [case for case in found if not all(map(is_never, case[1]))]


def _either(test: Node, passed: Node, failed: Node) -> Node:
    return any_of([all_of([test, passed]), all_of([negate(test), failed])])


def _lacking(rest: Node, passed: bool) -> Node:
    """Return what is left of a `_Lacks` after a member that passed its test, or after one that failed or has none.

    rest: what is left of its Members; NEVER if any value fails, as the key alone does then.
    """
    if is_never(rest):
        return ANY
    return negate(rest) if passed else _Lacks(rest)


def _asked(node: Any) -> int:
    """Return how many members a count or its negation asks for at least; 0 for other formulas."""
    if type(node) is MemberCount:
        return int(node.args[0])
    if type(node) is Not and type(node.args[0]) is MemberCount and node.args[0].args[1] is not None:
        return int(node.args[0].args[1]) + 1
    return 0


def _asks_for_several(node: Any) -> bool:
    """Return whether a formula asks for two members or more, so that it matters which keys are left."""
    shape = type(node)
    return _asked(node) > 1 or ((shape is AllOf or shape is AnyOf) and any(map(_asks_for_several, node.args)))


def _check_counts(node: Any, required: int = 0) -> None:
    """Raise SchemaError where a formula asks for more members than an automaton can tell apart.

    That is for two or more, besides those that are required anyway.
    """
    shape = type(node)
    if _asked(node) - required > 1:
        path = (node.args[0] if shape is Not else node).args[2]
        if path is not None:
            raise inexact(path, _TWICE, "that")
    elif shape is AllOf or shape is AnyOf:
        if shape is AllOf:
            required += len({key for part in node.args if type(part) is Required for key in part.args[0]})
        for part in node.args:
            _check_counts(part, required)


def _places(keys: int) -> Iterator[int]:
    """Yield the places in a set of keys, from first to last."""
    while keys:
        last = keys & -keys
        yield last.bit_length() - 1
        keys ^= last


def _mentioned(parts: _Left) -> tuple[tuple[str, ...], list[Members], list[Node]]:
    """Return the declared keys in the order in which they are written, the Members and the nodes of the Names."""
    members: dict[Members, None] = {}
    names: dict[Node, None] = {}
    for atom in atoms(*parts):
        inside: Any = atom
        while type(inside) is _Lacks or type(inside) is _Beyond:
            inside = inside.args[0]
        if type(inside) is Members:
            members[inside] = None
        elif type(atom) is Names:
            names[atom.node] = None
    declared = frozenset([key for one in members for key, _ in one.args[0]])
    orders: dict[Node, list[list[str]]] = {}
    for part in parts:
        _orders(part, declared, orders)
    return in_order([order for each in orders.values() for order in each]), list(members), list(names)


def _orders(node: Any, declared: frozenset[str], orders: dict[Node, list[list[str]]]) -> None:
    """Add the keys of each Members, and after those of its conjunction the keys that are only required; each once."""
    shape = type(node)
    if shape is Members:
        if node not in orders:
            orders[node] = [[key for key, _ in node.args[0]]]
    elif shape is Required:
        if node not in orders:
            orders[node] = [[key] for key in node.args[0] if key not in declared]
    elif shape is Not or shape is _Lacks or shape is _Beyond:
        _orders(node.args[0], declared, orders)
    elif shape is AllOf or shape is AnyOf:
        late = []
        for part in node.args:
            if type(part) is Required:
                late.append(part)
            else:
                _orders(part, declared, orders)
        for part in late:
            _orders(part, declared, orders)


def in_order(orders: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return all keys in an order that agrees with each of some, as far as they agree with each other.

    Of the keys that may come next, it is always the one mentioned first.

    >>> in_order([["id", "text", "type"], ["id", "data", "type"]])
    ('id', 'text', 'data', 'type')
    """
    number: dict[str, int] = {}  # by first mention
    for order in orders:
        for key in order:
            number.setdefault(key, len(number))
    if len(orders) < 2:
        return tuple(number)
    keys = list(number)
    after: list[set[int]] = [set() for _ in keys]
    waits = [0] * len(keys)
    for order in orders:
        for one, other in pairwise(order):
            if number[other] not in after[number[one]]:
                after[number[one]].add(number[other])
                waits[number[other]] += 1
    free = [k for k, count in enumerate(waits) if not count]
    found: dict[int, None] = {}
    stuck = 0  # the first key that may not be written yet; where orders contradict each other it goes first
    while len(found) < len(keys):
        if free:
            here = heappop(free)
        else:
            while stuck in found:
                stuck += 1
            here = stuck
        if here in found:
            continue
        found[here] = None
        for later in after[here]:
            waits[later] -= 1
            if not waits[later]:
                heappush(free, later)
    return tuple([keys[here] for here in found])
