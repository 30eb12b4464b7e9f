"""Disjoint cases: which of several tests a member's or an item's value passes, and what remains to be met in each.

The derivative of a formula by a member or an item is a formula of *tests*, each of which says that the value is in some
node, and of what remains. `Cases.expand` splits one or several such formulas by their tests (Shannon's expansion) until
only remainders are left. Splits that are plainly empty are not made: where the types, the words and numbers listed, or
the constant members of objects exclude each other. What is empty but not plainly so is found later, by trimming.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from operator import is_not
from typing import Any, NamedTuple

from ...automata.budget import Meter
from .algebra import (
    ANY,
    ARRAY,
    EVERYTHING,
    NEVER,
    NUMBER,
    OBJECT,
    STRING,
    AllOf,
    AnyOf,
    Contains,
    ItemCount,
    MemberCount,
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
    negate,
    restrict,
)

_MANY = 4  # as many tests for listed values are told apart by their values, not one by one


def is_any(node: Node) -> bool:
    """Return whether a formula is ANY."""
    return type(node) is Types and node.args[0] == EVERYTHING


def is_never(node: Node) -> bool:
    """Return whether a formula is NEVER; others may be empty too."""
    return type(node) is Types and not node.args[0]


def counted(node: Node) -> Node:
    """Return what is left of an ItemCount or MemberCount after one more."""
    low, high, *path = node.args
    low, high = max(low - 1, 0), None if high is None else high - 1
    if high is not None and high < low:
        return NEVER
    return type(node)(low, high, *path) if low or high is not None else ANY


def closes(node: Node) -> bool:
    """Return whether an array or object may end with this left of its formula."""
    shape = type(node)
    if shape is Types:
        return bool(node.args[0])
    if shape is AllOf:
        return all(map(closes, node.args))
    if shape is AnyOf:
        return any(map(closes, node.args))
    if shape is Not:
        return not closes(node.args[0])
    if shape is ItemCount or shape is MemberCount:
        return bool(node.args[0] == 0)
    if shape is Contains:
        return bool(node.args[1] == 0)
    return shape is not Required


class Test(Node):
    """The value of the member or item at hand is in a node, which has no `Reference` in place."""

    __slots__ = ()
    node: Node = property(lambda self: self.args[0])  # type: ignore[assignment]


class Sketch(NamedTuple):
    """A set of values that is easily computed with: some types, and of strings and numbers perhaps only some."""

    mask: int
    words: frozenset[str] | None  # None for all; only meaningful, and then not empty, where mask has STRING
    numbers: frozenset[Decimal] | None
    exact: bool  # the node sketched is this set, not just part of it


class _Facts(NamedTuple):
    """What is plain about the objects of a node."""

    constant: dict[str, frozenset[str]]  # required members whose values are strings out of a list
    required: frozenset[str]
    allowed: frozenset[str] | None  # the only keys there may be; None for no bound


class _Branch(NamedTuple):
    """Formulas under some tests passed and some failed, and the values that can still be."""

    vector: tuple[Node, ...]
    values: Sketch
    passed: tuple[Node, ...]
    failed: tuple[Node, ...]


Case = tuple[Node, tuple[Node, ...]]  # a condition on the value, and what remains of each formula under it

_ALL = Sketch(EVERYTHING, None, None, True)
_NO_FACTS = _Facts({}, frozenset(), None)


class Cases:
    """Expands derivatives; remembers what it found out about nodes."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._flat: dict[Node, Node] = {}
        self._sketches: dict[Node, Sketch] = {}
        self._listed: dict[Node, tuple[Any, ...] | None] = {}
        self._facts: dict[Node, _Facts] = {}
        self._apart: dict[Node, dict[Node, bool]] = {}
        self._groups: dict[Node, set[int]] = {}
        self._num_groups = 0

    def flat(self, node: Node) -> Node:
        """Return the formula with every `Reference` in place (not inside members and items) replaced by what it is."""
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
        """Return pairwise disjoint cases with distinct remainders; values in none of them leave NEVER everywhere.

        formulas: where this is found of several vectors that have much in common.
        """
        if len(vector) == 1:
            quick = _only(vector[0])
            if quick is not None:
                return quick
        formulas = formulas or Formulas()
        found = formulas.tests(vector)
        if found and found & (found - 1) == 0:
            return _by_only_test(formulas, vector, found)
        leaves: dict[tuple[Node, ...], list[_Branch]] = {}
        pending = [_Branch(vector, _ALL, (), ())]
        rounds = 0
        while pending:
            branch = pending.pop()
            rounds += 1
            if not rounds & 15:
                self._meter.check(states=max(len(leaves), len(pending)), doing="telling the cases of a value apart")
            if all(map(is_never, branch.vector)):
                continue
            tests = formulas.tests(branch.vector)
            if not tests:
                leaves.setdefault(branch.vector, []).append(branch)
                continue
            branches = self._by_listed_values(branch, formulas, tests) if tests.bit_count() >= _MANY else None
            pending.extend(reversed(self._by_first_test(branch, formulas, tests) if branches is None else branches))
        return [(_either(branches), rest) for rest, branches in leaves.items()]

    def _by_first_test(self, branch: _Branch, formulas: Formulas, tests: int) -> list[_Branch]:
        """Return the branches in which the first test is passed and failed, those that are not plainly empty."""
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

    def _by_listed_values(self, branch: _Branch, formulas: Formulas, tests: int) -> list[_Branch] | None:
        """Return a branch per set of tests that listed values pass, and one for all other values.

        None where there are not enough tests that list the strings and numbers they allow.
        """
        listed: dict[int, tuple[Any, ...]] = {}
        for bit in _bits(tests):
            values = self._listed_by(formulas.node(bit))
            if values is not None:
                listed[bit] = values
        if len(listed) < _MANY:
            return None
        every = sum(listed)
        passing: dict[Any, int] = {}
        for bit, values in listed.items():
            if branch.values is not _ALL:
                values = tuple(_values(_meet(branch.values, self.sketch(formulas.node(bit)))))
            for value in values:
                passing[value] = passing.get(value, 0) | bit
        together: dict[int, list[Any]] = {}
        for value, inside in passing.items():
            together.setdefault(inside, []).append(value)
        found = []
        for inside, group in sorted(together.items(), key=lambda item: list(_bits(item[0]))):
            # one as the schema has it, so that it is seen to be the same elsewhere
            literal = formulas.node(inside) if len(group) == len(listed.get(inside, ())) else _node(group)
            passed = self._pass(branch, literal)
            if passed is not None:
                sure, out = self._decided(formulas, tests & ~every, passed)
                found.append(
                    passed._replace(vector=formulas.under(passed.vector, sure | inside, out | every & ~inside))
                )
        failed = self._fail(branch, _node(passing))
        if failed is not None:
            sure, out = self._decided(formulas, tests & ~every, failed)
            found.append(failed._replace(vector=formulas.under(failed.vector, sure, out | every)))
        return found

    def _listed_by(self, node: Node) -> tuple[Any, ...] | None:
        """Return the strings, numbers and other values that a node lists; None where it does not, or says more."""
        if node not in self._listed:
            sketch = self.sketch(node)
            self._listed[node] = tuple(_values(sketch)) if sketch.exact and _is_finite(sketch) else None
        return self._listed[node]

    def _pass(self, branch: _Branch, node: Node) -> _Branch | None:
        """Return the branch where the value is in a node too; None where that is plainly impossible."""
        values = _meet(branch.values, self.sketch(node))
        if not values.mask:
            return None
        failed = tuple([other for other in branch.failed if not self.apart(node, other)])
        return _Branch(branch.vector, values, (*branch.passed, node), failed)

    def _fail(self, branch: _Branch, node: Node) -> _Branch | None:
        """Return the branch where the value is not in a node; None where that is plainly impossible."""
        values = _less(branch.values, self.sketch(node))
        return _Branch(branch.vector, values, branch.passed, (*branch.failed, node)) if values.mask else None

    def _decided(self, formulas: Formulas, tests: int, branch: _Branch) -> tuple[int, int]:
        """Return the tests whose outcome is plain for the values of a branch: those passed, and those failed."""
        passed = failed = 0
        for bit in _bits(tests):
            node = formulas.node(bit)
            sketch = self.sketch(node)
            if not _meet(branch.values, sketch).mask:
                failed |= bit
            elif sketch.exact and not _less(branch.values, sketch).mask:
                passed |= bit
            elif branch.passed and any(self.apart(node, other) for other in branch.passed):
                failed |= bit
        return passed, failed

    def within(self, one: Node, other: Node) -> bool:
        """Return whether a node is plainly part of another."""
        sketch = self.sketch(other)
        return sketch.exact and not _less(self.sketch(one), sketch).mask

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
        mask = _meet(self.sketch(one), self.sketch(other)).mask
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
            words = _spelled(node.args[0])
            return Sketch(EVERYTHING, words, None, words is not None)
        if shape is AllOf:
            found = _ALL
            for part in node.args:
                found = _meet(found, self.sketch(part))
            return found
        if shape is AnyOf:
            found = Sketch(0, None, None, True)
            for part in node.args:
                found = _join(found, self.sketch(part))
            return found
        if shape is Not:
            return Sketch(node.args[0].kind or EVERYTHING, None, None, False)
        return Sketch(EVERYTHING, None, None, False)

    def _facts_of(self, node: Node) -> _Facts:
        found = self._facts.get(node)
        if found is None:
            found = self._facts[node] = self._find_facts(restrict(node, OBJECT))
        return found

    def _find_facts(self, node: Node) -> _Facts:
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
        return _Facts(constant, required, allowed)


# ---------------------------------------------------------------------------------------------------------- formulas


def _either(branches: list[_Branch]) -> Node:
    """Return the condition that a value is in one of some branches.

    One branch fails the tests that another passes. Where both are meant that need not be said: "a, or b and not a" is
    "a or b".
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


class Formulas:
    """Formulas of tests, which are numbered as they are met, and what becomes of formulas by the outcomes of tests.

    A set of tests is the bits of an int. What is found of a formula is kept by the outcomes of its own tests, so that
    what many assignments have in common is gone through once.
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
        """Return formulas in which some tests are passed, and some failed."""
        return tuple([self._under(node, passed, failed) for node in vector])

    def _tests(self, node: Any) -> tuple[int, int, int]:
        """Return the tests in a formula; and those that are themselves one of its parts, or the negation of one is."""
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

    def _under(self, node: Any, passed: int, failed: int) -> Node:
        shape = type(node)
        if shape is Test:
            bit = self._bit[node]
            return ANY if passed & bit else NEVER if failed & bit else node
        if shape is Not:
            bit = self._bit.get(node.args[0], 0)
            return NEVER if passed & bit else ANY if failed & bit else node
        if shape is not AllOf and shape is not AnyOf:
            return node  # type: ignore[no-any-return]
        within, plain, negated = self._within.get(node) or self._tests(node)
        passed &= within
        failed &= within
        if not passed | failed:
            return node  # type: ignore[no-any-return]
        if shape is AllOf:
            if plain & failed or negated & passed:
                return NEVER
        elif plain & passed or negated & failed:
            return ANY
        key = (node, passed, failed)
        found = self._found.get(key)
        if found is None:
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
        """Return the alternatives of a formula that do not plainly need one of the tests that are failed.

        So many alternatives, a `oneOf` told apart by constants, say, take time proportional to their number.
        """
        parts: tuple[Node, ...] = node.args
        if len(parts) < _MANY:
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
        positions = [*unguarded, *(p for bit in _bits(every & ~failed) for p in guarded[bit])]
        return [parts[position] for position in sorted(positions)]


def _bits(tests: int) -> Iterator[int]:
    """Yield each test of a set, in the order of their numbers."""
    while tests:
        bit = tests & -tests
        yield bit
        tests ^= bit


def _by_only_test(formulas: Formulas, vector: tuple[Node, ...], bit: int) -> list[Case]:
    """Return the cases of formulas of one test."""
    passed, failed = formulas.under(vector, bit, 0), formulas.under(vector, 0, bit)
    if passed == failed:
        return [(ANY, passed)]
    cases = [(formulas.node(bit), passed), (negate(formulas.node(bit)), failed)]
    return [case for case in cases if not all(map(is_never, case[1]))]


def _only(node: Node) -> list[Case] | None:
    """Return the cases of a formula that is a conjunction of tests and remainders; None for any other."""
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


def _has_test(node: Node) -> bool:
    shape = type(node)
    return shape is Test or (shape in (AllOf, AnyOf, Not) and any(map(_has_test, node.args)))


# ---------------------------------------------------------------------------------------------------------- sketches


def _meet(one: Sketch, other: Sketch) -> Sketch:
    """Return the intersection."""
    mask = one.mask & other.mask
    words = one.words if other.words is None else other.words if one.words is None else one.words & other.words
    numbers = (
        one.numbers if other.numbers is None else other.numbers if one.numbers is None else one.numbers & other.numbers
    )
    if words is not None and not words:
        mask &= ~STRING
    if numbers is not None and not numbers:
        mask &= ~NUMBER
    return Sketch(mask, words if mask & STRING else None, numbers if mask & NUMBER else None, one.exact and other.exact)


def _join(one: Sketch, other: Sketch) -> Sketch:
    """Return the union."""
    words: frozenset[str] | None = frozenset()
    numbers: frozenset[Decimal] | None = frozenset()
    for part in (one, other):
        if part.mask & STRING:
            words = None if words is None or part.words is None else words | part.words
        if part.mask & NUMBER:
            numbers = None if numbers is None or part.numbers is None else numbers | part.numbers
    mask = one.mask | other.mask
    return Sketch(mask, words if mask & STRING else None, numbers if mask & NUMBER else None, one.exact and other.exact)


def _less(one: Sketch, other: Sketch) -> Sketch:
    """Return a set that has all of `one` but what is in `other`; `one` itself where nothing is plainly gone."""
    if not other.exact:
        return one
    gone = other.mask
    words, numbers = one.words, one.numbers
    if gone & STRING and other.words is not None:
        words = None if words is None else words - other.words
        gone = gone & ~STRING if words is None or words else gone
    if gone & NUMBER and other.numbers is not None:
        numbers = None if numbers is None else numbers - other.numbers
        gone = gone & ~NUMBER if numbers is None or numbers else gone
    mask = one.mask & ~gone
    if mask == one.mask and words == one.words and numbers == one.numbers:
        return one
    return Sketch(mask, words if mask & STRING else None, numbers if mask & NUMBER else None, False)


_PLAIN = re.compile(r"\^(?:([\w -]+)|\((?:\?:)?([\w -]+(?:\|[\w -]+)*)\))\$", re.ASCII)


def _spelled(pattern: str) -> frozenset[str] | None:
    """Return the strings that a pattern spells out, None where it is not just that.

    >>> sorted(_spelled("^(a|bc)$")), _spelled("^a|b$"), _spelled("^a+$")
    (['a', 'bc'], None, None)
    """
    found = _PLAIN.fullmatch(pattern)
    return None if found is None else frozenset((found[1] or found[2]).split("|"))


def _is_finite(sketch: Sketch) -> bool:
    return not (
        sketch.mask & (ARRAY | OBJECT)
        or (sketch.mask & STRING and sketch.words is None)
        or (sketch.mask & NUMBER and sketch.numbers is None)
    )


def _values(sketch: Sketch) -> Iterable[Any]:
    """Yield the values of a finite sketch in a fixed order: str, Decimal, a 1-tuple of a type's bit for literals."""
    for k in range(7):
        kind = 1 << k
        if not sketch.mask & kind:
            continue
        if kind == STRING:
            yield from sorted(sketch.words or ())
        elif kind == NUMBER:
            yield from sorted(sketch.numbers or ())
        else:
            yield (kind,)


def _node(values: Iterable[Any]) -> Node:
    """Return the node of some values of finite sketches."""
    words, numbers, mask = [], [], 0
    for value in values:
        if isinstance(value, str):
            words.append(value)
        elif isinstance(value, Decimal):
            numbers.append(value)
        else:
            mask |= value[0]
    parts: list[Node] = [Types(mask)] if mask else []
    if words:
        parts.append(all_of([Types(STRING), Words(tuple(words))]))
    if numbers:
        parts.append(all_of([Types(NUMBER), OneOfValues(frozenset(numbers))]))
    return any_of(parts)
