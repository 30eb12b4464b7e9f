"""Objects whose members come in any order."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_not

from ...automata.deadline import look
from .algebra import (
    ANY,
    NEVER,
    AllOf,
    AnyOf,
    MemberCount,
    Members,
    Node,
    Not,
    Required,
    all_of,
    any_of,
    atoms,
    closes,
    is_any,
    is_never,
    negate,
)
from .key_sets import places_of
from .member_counts import asks_for_several
from .member_derivatives import Left, MemberDerivatives, Row, StepTable, Tests
from .member_letters import FINDING
from .negated_members import Beyond, Lacks, either_way
from .skeleton import ObjectState, Unordered
from .value_builder import ValueBuilder
from .value_tests import Case


def in_any_order(builder: ValueBuilder, parts: tuple[Node, ...]) -> Unordered:
    """Return what is left of formulas after members in any order, by states that know which keys passed."""
    return UnorderedDerivatives(builder, parts, exact=True).unordered


class UnsureError(Exception):
    """It matters which keys passed a test that some member has to fail."""


class UnorderedDerivatives(MemberDerivatives):
    """What is left of any formulas after members in any order.

    A state is what is left of each formula. It does not say which keys came: the reader sees to it that a key comes
    only once. Keys that came are not taken off the required ones either, as that would make a state for each set of
    keys. Instead an end says which keys must have come by then. Whether any object is left does not depend on the keys
    that came: a text without some of them is in what is left if the whole is, and so is a text that puts them first,
    as they were read.

    If some member has to fail a test, this holds only where the keys that came and passed are known (`Beyond`), which
    would make a state for each set of them. They need not be known if a value that passes leaves something as well, as
    in values told apart by a test. Then the part that must fail is put aside (`_without_negative`), and the rest shows
    that an object is left. If nothing else is left, or the rest turns out to be empty, `exact` states are made.

    Where members are counted, the keys that came are taken off the required ones. Where two or more are asked for, a
    state has the set of keys that came as well, in place of the foreign ones.
    """

    def __init__(self, builder: ValueBuilder, parts: Left, exact: bool = False) -> None:
        counts = [atom for atom in atoms(*parts) if type(atom) is MemberCount]
        self._exact = exact
        self._tracked = any(map(asks_for_several, parts))
        # a count of one member at least, or its negation, says nothing after one
        self._kept = not self._tracked and all(low <= 1 and high is None for low, high, _ in (c.args for c in counts))
        self._negative: dict[Node, bool] = {}
        self.unordered = Unordered(exact)
        super().__init__(builder, parts)
        self.unordered.states = self.automaton.states

    def _begin(self, parts: Left) -> None:
        self._number(0, parts, 0)

    def _number(self, place: int, left: Left, foreign: int) -> int:
        found = self._states.get((0, left, foreign))
        if found is None:
            found = self._states[0, left, foreign] = len(self._found)
            self._found.append((0, left, foreign))
            ways = {(label, keys) for label, node in enumerate(left) for keys in self._ways(node)}
            self.unordered.ends.append(tuple(sorted(ways)))
            gone = [Not(Required((self.automaton.keys[j],))) for j in places_of(foreign)]
            parts = left if self._exact else tuple(map(self._without_negative, left))
            if all(map(is_never, parts)) and not all(map(is_never, left)):
                raise UnsureError
            if gone:
                parts = tuple([all_of([node, *gone]) for node in parts])
            self.unordered.inhabited.append(self._builder.inhabited(parts))
        return found

    def _make(self, place: int, left: Left, foreign: int) -> ObjectState:
        table = self._table(left, foreign)
        self._fill(table, 0, self._end)
        return ObjectState(-1, 0, self._end, table.steps, self._others(table, 0))

    def _following(self, table: StepTable, letter: int, place: int, cases: Iterable[Case]) -> tuple[int, ...]:
        seen = table.foreign | 1 << letter if self._tracked and letter < self._end else table.foreign
        lefts = [left for _, left in cases]
        if self._exact:
            lefts = [tuple([self._forgotten(node, ()) for node in left]) for left in lefts]
        return tuple([self._number(0, left, seen) for left in lefts])

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
            passed = Beyond(members, keys | {self._letters.keys[letter]}) if self._exact else members
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

    def _without_negative(self, node: Node, known: dict[Node, Node] | None = None) -> Node:
        """Return a formula without the parts that ask that some member fail: part of the whole formula.

        known: the results by node, for parts that formulas have in common.
        """
        if not self._is_negative(node):
            return node
        if type(node) is not AllOf and type(node) is not AnyOf:
            return node if type(node) is Not and type(node.args[0]) is Required else NEVER
        known = {} if known is None else known
        found = known.get(node)
        if found is None:
            parts = [self._without_negative(part, known) for part in node.args]
            found = known[node] = all_of(parts) if type(node) is AllOf else any_of(parts)
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
