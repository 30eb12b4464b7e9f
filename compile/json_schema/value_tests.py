"""Formulas of tests on the value at hand, and what is left of them after the outcomes of tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...automata.deadline import look
from .algebra import ANY, NEVER, AllOf, AnyOf, Node, Not, Types, all_of, any_of, is_never, negate, once_each

TELLING = "telling the cases of a value apart"
MANY = 4  # as many tests for listed values are told apart by their values, not one by one
Case = tuple[Node, tuple[Node, ...]]
"""A condition on the value, and what is left of each formula under it."""


class Test(Node):
    """The value of the member or item at hand is in a node, which has no `Reference` in place."""

    __slots__ = ()
    node: Node = property(lambda self: self.args[0])  # type: ignore[assignment]


class Formulas:
    """Formulas of tests, and what is left of them after the outcomes of tests.

    Tests are numbered in the order in which they are met, and a set of tests is the bits of an int. A result is kept by
    the outcomes of the formula's own tests, so that assignments that agree on these share the work.
    """

    def __init__(self) -> None:
        self._nodes: list[Node] = []  # by test
        self._bit: dict[Node, int] = {}  # of a test
        self._within: dict[Node, tuple[int, int, int]] = {}  # see `_tests`
        self._found: dict[tuple[Node, int, int], Node] = {}
        self._by_guard: dict[Node, tuple[int, dict[int, list[int]], list[int]]] = {}  # see `_alive`

    def node(self, bit: int) -> Node:
        """Return the node that a value is tested for."""
        return self._nodes[bit.bit_length() - 1]

    def tests(self, vector: Iterable[Node]) -> int:
        """Return the tests in some formulas."""
        found = 0
        for node in vector:
            found |= self._tests(node)[0]
        return found

    def under(self, vector: tuple[Node, ...], passed: int, failed: int) -> tuple[Node, ...]:
        """Return what is left of formulas after some tests are passed and some failed."""
        return tuple([self._under(node, passed, failed) for node in vector])

    def _tests(self, node: Node) -> tuple[int, int, int]:
        """Return the tests in a formula; those that are parts of it; and those whose negations are parts of it."""
        shape = type(node)
        if shape is AllOf or shape is AnyOf:
            found = self._within.get(node)
            if found is None:
                every = plain = negated = 0
                for part in node.args:
                    within, own, against = self._tests(part)
                    every |= within
                    if type(part) is Test or type(part) is Not:
                        plain |= own
                        negated |= against
                found = self._within[node] = every, plain, negated
            return found
        if shape is Not:
            bit = self._tests(node.args[0])[0]
            return bit, 0, bit
        if shape is not Test:
            return 0, 0, 0
        bit = self._bit.get(node, 0)
        if not bit:
            bit = self._bit[node] = 1 << len(self._nodes)
            self._nodes.append(node.args[0])
        return bit, bit, 0

    def _under(self, node: Node, passed: int, failed: int) -> Node:
        shape = type(node)
        if shape is Test:
            bit = self._bit[node]
            return ANY if passed & bit else NEVER if failed & bit else node
        if shape is Not:
            bit = self._bit.get(node.args[0], 0)
            return NEVER if passed & bit else ANY if failed & bit else node
        if shape is not AllOf and shape is not AnyOf:
            return node
        within, plain, negated = self._within.get(node) or self._tests(node)
        passed &= within
        failed &= within
        if not passed | failed:
            return node
        if shape is AllOf:
            if plain & failed or negated & passed:
                return NEVER
        elif plain & passed or negated & failed:
            return ANY
        key = (node, passed, failed)
        found = self._found.get(key)
        if found is None:
            look(TELLING)
            absorbing = NEVER if shape is AllOf else ANY
            parts = []
            for part in node.args if shape is AllOf else self._alive(node, failed):
                parts.append(self._under(part, passed, failed))
                if parts[-1] is absorbing:
                    found = absorbing
                    break
            else:
                found = all_of(parts) if shape is AllOf else any_of(parts)
            self._found[key] = found
        return found

    def _alive(self, node: Node, failed: int) -> list[Node]:
        """Return the alternatives of a formula, without those that plainly need one of the failed tests.

        Without this, many alternatives, such as a `oneOf` told apart by constants, take quadratic time.
        """
        parts: tuple[Node, ...] = node.args
        if len(parts) < MANY:
            return list(parts)
        guards = self._by_guard.get(node)
        if guards is None:
            every = 0
            guarded: dict[int, list[int]] = {}
            unguarded: list[int] = []
            for position, part in enumerate(parts):
                bit = self._tests(part)[1] if type(part) is AllOf or type(part) is Test else 0
                bit &= -bit
                every |= bit
                (guarded.setdefault(bit, []) if bit else unguarded).append(position)
            guards = self._by_guard[node] = every, guarded, unguarded
        every, guarded, unguarded = guards
        positions = [*unguarded, *(p for bit in bits_of(every & ~failed) for p in guarded[bit])]
        return [parts[position] for position in sorted(positions)]


def bits_of(tests: int) -> Iterator[int]:
    """Yield each test of a set, in the order of their numbers."""
    while tests:
        bit = tests & -tests
        yield bit
        tests ^= bit


def by_only_test(formulas: Formulas, vector: tuple[Node, ...], bit: int) -> list[Case]:
    """Return the cases of formulas that have one test between them."""
    passed, failed = formulas.under(vector, bit, 0), formulas.under(vector, 0, bit)
    if passed == failed:
        return [(ANY, passed)]
    cases = [(formulas.node(bit), passed), (negate(formulas.node(bit)), failed)]
    return [case for case in cases if not all(map(is_never, case[1]))]


def by_conjunction(node: Node) -> list[Case] | None:
    """Return the cases of a conjunction of tests and remainders; None for any other formula."""
    shape = type(node)
    if shape is Types:
        return [(ANY, (ANY,))] if node.args[0] else []
    if shape is Test:
        return [(node.args[0], (ANY,))]
    if shape is not AllOf:
        return None if shape in (AnyOf, Not) else [(ANY, (node,))]
    conditions, rest = [], []
    for part in node.args:
        if type(part) is Test:
            conditions.append(part.args[0])
        elif type(part) is Not and type(part.args[0]) is Test:
            conditions.append(negate(part.args[0].args[0]))
        elif type(part) is AnyOf and _has_test(part):
            return None
        else:
            rest.append(part)
    condition = conditions[0] if len(conditions) == 1 else all_of(conditions)
    if is_never(condition):
        return []
    return [(condition, (rest[0] if len(rest) == 1 else AllOf(*rest) if rest else ANY,))]


@once_each
def _has_test(node: Node) -> bool:
    """Return whether a formula has a test."""
    shape = type(node)
    return shape is Test or (shape in (AllOf, AnyOf, Not) and any(map(_has_test, node.args)))
