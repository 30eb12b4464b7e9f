"""Disjoint cases: which of several tests the value of a member or item passes, and what is left of formulas in each.

The derivative of a formula by a member or an item is a formula of *tests*, each of which says that the value is in some
node, and of remainders. `Cases.expand` splits one or several such formulas by their tests (Shannon's expansion) until
only remainders are left. It makes no case that is plainly empty: where types, listed words and numbers, or constant
members of objects exclude each other. Trimming finds the other empty cases later.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_not
from typing import NamedTuple

from ...automata.budget import Meter
from ...automata.deadline import look
from .algebra import (
    EVERYTHING,
    NUMBER,
    OBJECT,
    STRING,
    AllOf,
    AnyOf,
    Members,
    Node,
    Not,
    OneOfValues,
    Pattern,
    Reference,
    Required,
    Types,
    Words,
    all_of,
    any_of,
    is_any,
    is_never,
    negate,
    restrict,
)
from .sketches import ALL, Listed, Sketch, node_of, spelled
from .value_tests import MANY, TELLING, Case, Formulas, Test, bits_of, by_conjunction, by_only_test


class _ObjectFacts(NamedTuple):
    """What a node plainly says about objects."""

    constant: dict[str, frozenset[str]]  # required members whose values are strings out of a list
    required: frozenset[str]
    allowed: frozenset[str] | None  # the only keys there may be; None for no bound


class Branch(NamedTuple):
    """Formulas after some tests are passed and some failed, and the values that are still possible."""

    vector: tuple[Node, ...]
    values: Sketch
    passed: tuple[Node, ...]
    failed: tuple[Node, ...]


_NO_FACTS = _ObjectFacts({}, frozenset(), None)


class Cases:
    """Expands derivatives; remembers what it found out about nodes."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._flat: dict[Node, Node] = {}
        self._sketches: dict[Node, Sketch] = {}
        self._listed: dict[Node, tuple[Listed, ...] | None] = {}
        self._facts: dict[Node, _ObjectFacts] = {}
        self._apart: dict[Node, dict[Node, bool]] = {}
        self._groups: dict[Node, set[int]] = {}
        self._num_groups = 0

    def flat(self, node: Node) -> Node:
        """Return the formula with each `Reference` in place, not inside members and items, replaced by its node."""
        shape = type(node)
        if shape is Reference or shape is AllOf or shape is AnyOf:
            found = self._flat.get(node)
            if found is None:
                found = node
                if shape is Reference:
                    found = self.flat(node.node)  # type: ignore[attr-defined]
                else:
                    parts = [self.flat(part) if not part.kind else part for part in node.args]
                    if any(map(is_not, parts, node.args)):
                        found = all_of(parts) if shape is AllOf else any_of(parts)
                self._flat[node] = found
            return found
        if shape is Not and type(node.args[0]) is Reference:
            return negate(self.flat(node.args[0]))
        return node

    def test(self, node: Node) -> Node:
        """Return ANY, NEVER or the `Test` that a value is in a node."""
        node = self.flat(node)
        return node if is_any(node) or is_never(node) else Test(node)

    def exclude(self, nodes: Iterable[Node]) -> None:
        """Note that these nodes are pairwise disjoint, which is not plain to see."""
        group, self._num_groups = self._num_groups, self._num_groups + 1
        for node in nodes:
            self._groups.setdefault(self.flat(node), set()).add(group)
        self._apart.clear()

    def expand(self, vector: tuple[Node, ...], formulas: Formulas | None = None) -> list[Case]:
        """Return pairwise disjoint cases with distinct remainders; a value in no case leaves NEVER of every formula.

        formulas: shared by several vectors that have much in common.
        """
        if len(vector) == 1:
            quick = by_conjunction(vector[0])
            if quick is not None:
                return quick
        formulas = formulas or Formulas()
        found = formulas.tests(vector)
        if found and found & (found - 1) == 0:
            return by_only_test(formulas, vector, found)
        leaves: dict[tuple[Node, ...], list[Branch]] = {}
        pending = [Branch(vector, ALL, (), ())]
        rounds = 0
        while pending:
            branch = pending.pop()
            rounds += 1
            look(TELLING)
            if not rounds & 15:
                self.meter.check(states=max(len(leaves), len(pending)), doing=TELLING)
            if all(map(is_never, branch.vector)):
                continue
            tests = formulas.tests(branch.vector)
            if not tests:
                leaves.setdefault(branch.vector, []).append(branch)
                continue
            branches = self._by_listed_values(branch, formulas, tests) if tests.bit_count() >= MANY else None
            pending.extend(reversed(self._by_first_test(branch, formulas, tests) if branches is None else branches))
        return [(either(branches), rest) for rest, branches in leaves.items()]

    def _by_first_test(self, branch: Branch, formulas: Formulas, tests: int) -> list[Branch]:
        """Return the branches that pass and fail the first test, without those that are plainly empty."""
        bit = tests & -tests
        others, node = tests ^ bit, formulas.node(bit)
        found = []
        passed = self._pass(branch, node)
        if passed is not None:
            sure, out = self._decided(formulas, others, passed)
            found.append(passed._replace(vector=formulas.under(passed.vector, sure | bit, out)))
        failed = self._fail(branch, node)
        if failed is not None:
            sure, out = self._decided(formulas, others, failed) if failed.values is not branch.values else (0, 0)
            found.append(failed._replace(vector=formulas.under(failed.vector, sure, out | bit)))
        if len(found) == 2 and found[0].vector == found[1].vector:  # the test does not matter
            return [branch._replace(vector=found[0].vector)]
        if len(found) == 1:  # nor where one way is impossible
            return [found[0]._replace(passed=branch.passed, failed=branch.failed)]
        return found

    def _by_listed_values(self, branch: Branch, formulas: Formulas, tests: int) -> list[Branch] | None:
        """Return a branch for each set of tests that some listed value passes, and one for all other values.

        None if too few tests list the strings and numbers that they allow.
        """
        listed: dict[int, tuple[Listed, ...]] = {}
        for bit in bits_of(tests):
            look(TELLING)
            values = self._listed_by(formulas.node(bit))
            if values is not None:
                listed[bit] = values
        if len(listed) < MANY:
            return None
        every = sum(listed)
        passing: dict[Listed, int] = {}
        for bit, values in listed.items():
            if branch.values is not ALL:
                values = tuple(branch.values.meet(self.sketch(formulas.node(bit))).values())
            for value in values:
                passing[value] = passing.get(value, 0) | bit
        together: dict[int, list[Listed]] = {}
        for value, inside in passing.items():
            together.setdefault(inside, []).append(value)
        found = []
        look(TELLING)
        for inside, group in sorted(together.items(), key=lambda item: list(bits_of(item[0]))):
            look(TELLING)
            # the schema's own node if there is one, so that it is seen to be the same elsewhere
            literal = formulas.node(inside) if len(group) == len(listed.get(inside, ())) else node_of(group)
            passed = self._pass(branch, literal)
            if passed is not None:
                sure, out = self._decided(formulas, tests & ~every, passed)
                found.append(
                    passed._replace(vector=formulas.under(passed.vector, sure | inside, out | every & ~inside))
                )
        failed = self._fail(branch, node_of(passing))
        if failed is not None:
            sure, out = self._decided(formulas, tests & ~every, failed)
            found.append(failed._replace(vector=formulas.under(failed.vector, sure, out | every)))
        return found

    def _listed_by(self, node: Node) -> tuple[Listed, ...] | None:
        """Return the strings, numbers and other values that a node lists; None where it does not, or says more."""
        if node not in self._listed:
            sketch = self.sketch(node)
            self._listed[node] = tuple(sketch.values()) if sketch.exact and sketch.is_finite() else None
        return self._listed[node]

    def _pass(self, branch: Branch, node: Node) -> Branch | None:
        """Return the branch in which the value is in a node too; None if that is plainly impossible."""
        values = branch.values.meet(self.sketch(node))
        if not values.mask:
            return None
        failed = tuple([other for other in branch.failed if not self.apart(node, other)])
        return Branch(branch.vector, values, (*branch.passed, node), failed)

    def _fail(self, branch: Branch, node: Node) -> Branch | None:
        """Return the branch in which the value is not in a node; None if that is plainly impossible."""
        values = branch.values.minus(self.sketch(node))
        return Branch(branch.vector, values, branch.passed, (*branch.failed, node)) if values.mask else None

    def _decided(self, formulas: Formulas, tests: int, branch: Branch) -> tuple[int, int]:
        """Return the tests that all values of a branch plainly pass, and those that they plainly fail."""
        passed = failed = 0
        for bit in bits_of(tests):
            node = formulas.node(bit)
            sketch = self.sketch(node)
            if not branch.values.meet(sketch).mask:
                failed |= bit
            elif sketch.exact and not branch.values.minus(sketch).mask:
                passed |= bit
            elif branch.passed and any(self.apart(node, other) for other in branch.passed):
                failed |= bit
        return passed, failed

    def within(self, one: Node, other: Node) -> bool:
        """Return whether a node is plainly part of another."""
        sketch = self.sketch(other)
        return sketch.exact and not self.sketch(one).minus(sketch).mask

    def apart(self, one: Node, other: Node) -> bool:
        """Return whether two nodes are plainly disjoint."""
        known = self._apart.get(one)
        if known is None:
            known = self._apart[one] = {}
        found = known.get(other)
        if found is None:
            found = known[other] = self._are_apart(one, other)
        return found

    def _are_apart(self, one: Node, other: Node) -> bool:
        mask = self.sketch(one).meet(self.sketch(other)).mask
        if not mask:
            return True
        if self._groups and one != other:
            groups = self._groups.get(one)
            if groups and not groups.isdisjoint(self._groups.get(other, ())):
                return True
        if mask != OBJECT:
            return False
        a, b = self._facts_of(one), self._facts_of(other)
        for key in a.constant.keys() & b.constant.keys():
            if a.constant[key].isdisjoint(b.constant[key]):
                return True
        return (b.allowed is not None and not a.required <= b.allowed) or (
            a.allowed is not None and not b.required <= a.allowed
        )

    def sketch(self, node: Node) -> Sketch:
        """Return a set that a node is part of."""
        found = self._sketches.get(node)
        if found is None:
            found = self._sketches[node] = self._sketch(node)
        return found

    def _sketch(self, node: Node) -> Sketch:
        shape = type(node)
        if shape is Types:
            return Sketch(node.args[0], None, None, True)
        if shape is Words:
            words: frozenset[str] | None = frozenset(node.args[0])
            return Sketch(EVERYTHING if words else EVERYTHING & ~STRING, words or None, None, True)
        if shape is OneOfValues:
            numbers = node.args[0]
            return (
                Sketch(EVERYTHING, None, numbers, True) if numbers else Sketch(EVERYTHING & ~NUMBER, None, None, True)
            )
        if shape is Pattern:
            words = spelled(node.args[0])
            return Sketch(EVERYTHING, words, None, words is not None)
        if shape is AllOf:
            found = ALL
            for part in node.args:
                found = found.meet(self.sketch(part))
            return found
        if shape is AnyOf:
            found = Sketch(0, None, None, True)
            for part in node.args:
                found = found.join(self.sketch(part))
            return found
        if shape is Not:
            return Sketch(node.args[0].kind or EVERYTHING, None, None, False)
        return Sketch(EVERYTHING, None, None, False)

    def _facts_of(self, node: Node) -> _ObjectFacts:
        found = self._facts.get(node)
        if found is None:
            found = self._facts[node] = self._find_facts(restrict(node, OBJECT))
        return found

    def _find_facts(self, node: Node) -> _ObjectFacts:
        parts = node.args if type(node) is AllOf else (node,)
        required = frozenset(key for part in parts if type(part) is Required for key in part.keys)
        constant: dict[str, frozenset[str]] = {}
        allowed: frozenset[str] | None = None
        for part in parts:
            if type(part) is not Members:
                continue
            for key, value in part.properties:
                if key in required:
                    sketch = self.sketch(self.flat(value))
                    if sketch.mask == STRING and sketch.words is not None:
                        constant[key] = constant.get(key, sketch.words) & sketch.words
            if not part.patterns and is_never(self.flat(part.rest)):
                keys = frozenset(key for key, _ in part.properties)
                allowed = keys if allowed is None else allowed & keys
        if not required and allowed is None:
            return _NO_FACTS
        return _ObjectFacts(constant, required, allowed)


def either(branches: list[Branch]) -> Node:
    """Return the condition that a value is in one of some branches.

    A branch fails tests that another passes. If both branches are meant, the failure need not be said: "a, or b and
    not a" is "a or b".
    """
    if len(branches) == 1:
        return all_of([*branches[0].passed, *map(negate, branches[0].failed)])
    place: dict[Node, int] = {}
    for branch in branches:
        for node in (*branch.passed, *branch.failed):
            place.setdefault(node, len(place))
    passed = [sum({1 << place[node] for node in branch.passed}) for branch in branches]
    failed = [sum({1 << place[node] for node in branch.failed}) for branch in branches]
    by_passed: dict[int, list[int]] = {}
    for i, nodes in enumerate(passed):
        by_passed.setdefault(nodes, []).append(i)

    def includes(wanted: tuple[int, ...], fails: int) -> bool:
        """Whether a branch that passes no more than is wanted fails no more than these."""
        return any(not failed[j] & ~fails for nodes in wanted for j in by_passed.get(nodes, ()))

    conditions = []
    for i, branch in enumerate(branches):
        for node in branch.failed:
            test = 1 << place[node]
            if includes((test, passed[i] | test), failed[i] & ~test):
                failed[i] &= ~test
        conditions.append(
            all_of([*branch.passed, *[negate(node) for node in branch.failed if failed[i] >> place[node] & 1]])
        )
    return any_of(conditions)
