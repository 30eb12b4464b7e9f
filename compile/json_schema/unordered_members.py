"""Objects whose members come in any order."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_not

from ...automata.budget import Meter
from ...automata.deadline import look
from .algebra import (
    ANY,
    OBJECT,
    AllOf,
    AnyOf,
    MemberCount,
    Members,
    Node,
    Not,
    Required,
    Types,
    all_of,
    any_of,
    atoms,
    closes,
    is_any,
    negate,
)
from .key_sets import places_of
from .member_counts import asks_for_several
from .member_derivatives import Left, MemberDerivatives, Row, StepTable, Tests
from .member_letters import FINDING
from .negated_members import Beyond, Lacks, either_way
from .skeleton import ObjectState, Step
from .value_builder import ValueBuilder
from .value_tests import Case

_SOON = 256  # states in which a first object is looked for


class UnorderedMembers:
    """What is left of formulas after members in any order, by states that are made when they are asked for."""

    def __init__(self, builder: ValueBuilder, parts: Left) -> None:
        self._builder, self._parts = builder, parts
        self._read: UnorderedDerivatives | None = None

    @property
    def levels(self) -> int | None:
        """How many objects and arrays may be open at once in the schema, None for any number."""
        return self._builder.levels

    def read(self, meter: Meter | None = None) -> UnorderedDerivatives:
        """Return the states: new ones once those that texts came to take up much of the budget. meter: of new ones."""
        with self._builder.growing(meter):
            if self._read is None or self._read.is_large:
                self._read = UnorderedDerivatives(self._builder, self._parts)
            return self._read


class UnorderedDerivatives(MemberDerivatives):
    """What is left of any formulas after members in any order.

    A state is what is left of each formula. It does not say which keys came: the reader sees to it that a key comes
    only once. Keys that came are not taken off the required ones either, as that would make a state for each set of
    keys. Instead an end says which keys must have come by then. Whether any object is left does not depend on the keys
    that came: a text without some of them is in what is left if the whole is, and so is a text that puts them first,
    as they were read. If some member has to fail a test, this holds only where the keys that came and passed are known
    (`Beyond`).

    Where members are counted, the keys that came are taken off the required ones. Where two or more are asked for, a
    state has the set of keys that came as well, in place of the foreign ones.
    """

    def __init__(self, builder: ValueBuilder, parts: Left) -> None:
        counts = [atom for atom in atoms(*parts) if type(atom) is MemberCount]
        self._tracked = any(map(asks_for_several, parts))
        # a count of one member at least, or its negation, says nothing after one
        self._kept = not self._tracked and all(low <= 1 and high is None for low, high, _ in (c.args for c in counts))
        self._negative: dict[Node, bool] = {}
        super().__init__(builder, parts)
        self.states: list[ObjectState | None] = []
        self._ends: list[tuple[tuple[int, int], ...] | None] = []
        self._left: dict[int, bool] = {}  # whether an object is left, by state
        self._number(0, parts, 0)

    @property
    def is_large(self) -> bool:
        """Whether the states take up an eighth of what the budget has."""
        return 8 * self._bytes.size > self._builder.meter.budget.bytes

    def state(self, i: int, meter: Meter | None = None) -> ObjectState:
        """Return a state: its steps are for all keys, and `close` says nothing. meter: of what is made for it."""
        found = self.states[i]
        if found is None:
            with self._builder.growing(meter):
                self._check(i)
                found = self.states[i] = self._make(*self._found[i])
        return found

    def ends(self, i: int) -> tuple[tuple[int, int], ...]:
        """Return the ways to end in a state: a label, and the keys that must have come."""
        found = self._ends[i]
        if found is None:
            ways = {(label, keys) for label, node in enumerate(self._found[i][1]) for keys in self._ways(node)}
            found = self._ends[i] = tuple(sorted(ways))
        return found

    def _number(self, place: int, left: Left, foreign: int) -> int:
        found = self._states.get((0, left, foreign))
        if found is None:
            found = self._states[0, left, foreign] = len(self._found)
            self._found.append((0, left, foreign))
            self.states.append(None)
            self._ends.append(None)
        return found

    def _make(self, place: int, left: Left, foreign: int) -> ObjectState:
        table = self._table(left, foreign)
        self._fill(table, 0, self._end)
        others = self._others(table)
        self._builder.trimmed()
        steps = [step and self._leading_on(step) for step in table.steps]
        left_over = {c: step for c, old in others.items() if (step := self._leading_on(old)) is not None}
        return ObjectState(-1, 0, self._end, steps, left_over)

    def _leading_on(self, step: Step) -> Step | None:
        """Return a step without the ways to states of which no object is left; None if that is all of them."""
        labels = self._builder.trimmed()[step.value]
        step.following = tuple(
            [to if to >= 0 and labels >> i & 1 and self._is_left(to) else -1 for i, to in enumerate(step.following)]
        )
        if max(step.following) < 0:
            return None
        self._builder.narrow(step)
        return step

    def _is_left(self, i: int) -> bool:
        """Return whether an object is left in a state: usually the keys that it must still have are one."""
        found = self._left.get(i)
        if found is None:
            found = self._left[i] = self._ends_soon(i) or self._ends_behind_one(i) or self._has_object(i)
        return found

    def _ends_soon(self, i: int) -> bool:
        """Return whether an object that has just the keys with which a state may end is found soon."""
        return any(self._ends_by(i, keys) for _, keys in self.ends(i))

    def _ends_behind_one(self, i: int) -> bool:
        """Return the same of the states behind some member, where none may end before: where one has to fail a test."""
        if self.ends(i):
            return False
        table = self._table(*self._found[i][1:])
        for letter in range(self._letters.num):
            if letter < self._end:
                self._fill(table, letter, letter + 1)
            step = table.steps[letter] if letter < self._end else self._others(table).get(letter - self._end)
            if step is not None:
                labels = self._builder.trimmed()[step.value]
                for label, to in enumerate(step.following):
                    if to >= 0 and labels >> label & 1 and (self._left.get(to) or self._ends_soon(to)):
                        return True
        return False

    def _ends_by(self, i: int, keys: int) -> bool:
        """Return whether an object that has just some keys, in their order, is found soon; note what it comes by."""
        pending: list[tuple[int, int, tuple[int, ...]]] = [(i, keys, ())]
        for _ in range(_SOON):
            if not pending:
                return False
            at, rest, before = pending.pop()
            if self._left.get(at) or (not rest and any(not needed & ~keys for _, needed in self.ends(at))):
                self._left.update(dict.fromkeys((*before, at), True))
                return True
            if not rest or self._left.get(at) is False:
                continue
            letter = next(places_of(rest))
            table = self._table(*self._found[at][1:])
            self._fill(table, letter, letter + 1)
            step = table.steps[letter]
            if step is not None:
                labels = self._builder.trimmed()[step.value]
                ways = [to for label, to in enumerate(step.following) if to >= 0 and labels >> label & 1]
                pending += [(to, rest & rest - 1, (*before, at)) for to in reversed(ways)]
        return False

    def _has_object(self, i: int) -> bool:
        """Return whether an object is left in a state, by the members in order."""
        _, left, came = self._found[i]
        gone = [Not(Required((self._letters.keys[j],))) for j in places_of(came)]
        value = self._builder.value(tuple([all_of([Types(OBJECT), node, *gone]) for node in left]))
        return self._builder.trimmed()[value] > 0

    def _following(self, table: StepTable, letter: int, lefts: Iterable[Left]) -> tuple[int, ...]:
        came = table.foreign | 1 << letter if self._tracked and letter < self._end else table.foreign
        lefts = [tuple([self._forgotten(node, ()) for node in left]) for left in lefts]
        return tuple([self._number(0, left, came) for left in lefts])

    def _told_apart(self, tests: Tests, letter: int) -> list[Case]:
        if any(map(self._is_negative, tests.left)):
            return self._by_several_tests(tests, letter)
        return super()._told_apart(tests, letter)

    def _becomes(self, by: dict[Node, Node], atom: Node, letter: int, test: Node, rest: Node) -> None:
        """Note the same. A declared key does not come again, so that a member that fails decides for good."""
        shape = type(atom)
        if shape is Required and self._kept and letter < self._end:
            by[atom] = atom
            less = super()._after(atom, letter, {})[1]
            by[Not(atom)] = negate(less)
        elif letter >= self._end or shape not in (Members, Beyond, Lacks):
            super()._becomes(by, atom, letter, test, rest)
        else:
            inside = atom.args[0] if shape is Lacks else atom
            members, keys = (inside, frozenset()) if type(inside) is Members else inside.args
            passed = Beyond(members, keys | {self._letters.keys[letter]})
            if shape is Lacks:
                by[atom] = either_way(test, Lacks(passed), ANY)
            else:
                by[atom] = all_of([test, atom])
                by[Not(atom)] = either_way(test, Not(passed), ANY)

    def _is_negative(self, node: Node) -> bool:
        """Return whether a formula asks that some member fail what Members say, or be absent."""
        shape = type(node)
        if shape is Not:
            inside = type(node.args[0])
            return inside is Members or inside is Beyond or (inside is Required and self._kept)
        if shape is not AllOf and shape is not AnyOf:
            return shape is Lacks
        found = self._negative.get(node)
        if found is None:
            found = self._negative[node] = any(map(self._is_negative, node.args))
        return found

    def _after(self, atom: Node, letter: int, row: Row) -> tuple[Node, Node]:
        shape = type(atom)
        found: tuple[Node, Node]
        if isinstance(atom, Members):
            found = self._letters.node(atom, letter), atom
        elif shape is Required and self._kept:
            found = ANY, atom
        else:
            return super()._after(atom, letter, row)
        row[letter] = found
        return found

    def _forgotten(
        self, node: Node, beside: tuple[Members, ...], known: dict[tuple[Node, tuple[Members, ...]], Node] | None = None
    ) -> Node:
        """Return a formula in which no `Beyond` names a key that cannot fail; beside: Members that must hold.

        known: the results by node and `beside`, for parts that formulas have in common.
        """
        shape = type(node)
        if shape is Not and type(node.args[0]) is Beyond:
            members, keys = node.args[0].args
            told = [key for key in keys if not self._is_held(members, self._place[key], beside)]
            if len(told) < len(keys):
                return Not(Beyond(members, frozenset(told)) if told else members)
        elif (shape is AllOf or shape is AnyOf) and self._is_negative(node):
            known = {} if known is None else known
            found = known.get((node, beside))
            if found is None:
                held = (*beside, *[part for part in node.args if type(part) is Members]) if shape is AllOf else beside
                parts = [self._forgotten(part, held, known) for part in node.args]
                found = node
                if any(map(is_not, parts, node.args)):
                    found = all_of(parts) if shape is AllOf else any_of(parts)
                known[node, beside] = found
            return found
        return node

    def _is_held(self, members: Members, letter: int, beside: tuple[Members, ...]) -> bool:
        """Return whether a declared key passes one of Members if it passes some others."""
        node = self._letters.node(members, letter)
        return is_any(node) or any(self._letters.node(other, letter) is node for other in beside)

    def _ways(self, node: Node) -> list[int]:
        """Return the least sets of keys with which an object may end when this is left of its formula."""
        shape = type(node)
        if shape is Required:
            return [self._key_sets.required_in(node)]
        if shape is AnyOf:
            return _least([keys for part in node.args for keys in self._ways(part)])
        if shape is not AllOf:
            return [0] if closes(node) else []
        found = [0]
        for part in node.args:
            ways = self._ways(part)
            found = _least([one | other for one in found for other in ways])
            self._builder.meter.check(states=len(found), doing=FINDING)
        return found


def _least(sets: Iterable[int]) -> list[int]:
    """Return those of some sets that contain no other of them, each once."""
    found: list[int] = []
    for one in sorted(set(sets), key=int.bit_count):
        look(FINDING)
        if not any(other & ~one == 0 for other in found):
            found.append(one)
    return found
