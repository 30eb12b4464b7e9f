"""Whether two formulas plainly have no value in common, so that a `oneOf` is an `anyOf`.

The test is sound, not complete: True is a proof. It goes by types, by finite sets of values and ranges, and for
objects by a key that one of them requires and whose values differ. It compiles nothing: a `Reference` may be anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from .algebra import (
    ARRAY,
    EVERYTHING,
    FALSE,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    AllOf,
    AnyOf,
    ItemCount,
    Length,
    MemberCount,
    Members,
    Node,
    Not,
    OneOfValues,
    Range,
    Reference,
    Required,
    Types,
    Words,
    once_each,
)
from .sketches import Listed

_DEEPEST = 4  # levels of members looked into
_MOST = 64  # alternatives of a union looked at
_MANY = 8  # nodes from which it pays to sort them by constants


class Facts:
    """What a conjunction plainly says."""

    __slots__ = ("mask", "members", "negated", "node", "numbers", "parts", "ranges", "required", "sizes", "words")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.mask = EVERYTHING
        self.parts = node.args if type(node) is AllOf else (node,)
        self.negated: tuple[Node, ...] = ()
        self.words: tuple[frozenset[str], ...] = ()
        self.numbers: tuple[frozenset[Decimal], ...] = ()
        self.ranges: tuple[Range, ...] = ()
        self.sizes: tuple[Node, ...] = ()
        self.required: tuple[str, ...] = ()
        self.members: tuple[tuple[dict[str, Node], bool, Node], ...] = ()  # by key, whether patterns apply, the rest
        for atom in self.parts:
            kind = type(atom)
            if kind is Types or kind is AnyOf:
                self.mask &= kinds(atom)
            elif kind is Not:
                self.negated += (atom.args[0],)
                self.mask &= kinds(atom)
            elif isinstance(atom, Members):
                self.members += ((dict(atom.properties), bool(atom.patterns), atom.rest),)
            elif isinstance(atom, Required):
                self.required += atom.keys
            elif isinstance(atom, Words):
                self.words += (frozenset(atom.words),)
            elif isinstance(atom, OneOfValues):
                self.numbers += (atom.values,)
            elif isinstance(atom, Range):
                self.ranges += (atom,)
            elif isinstance(atom, (Length, ItemCount, MemberCount)):
                self.sizes += (atom,)

    def scalars(self) -> frozenset[Listed] | None:
        """Return all values, or more, if they are scalars and listed."""
        mask = self.mask
        if mask & (ARRAY | OBJECT) or (mask & STRING and not self.words) or (mask & NUMBER and not self.numbers):
            return None
        found: frozenset[Listed] = frozenset(self.words[0]) if mask & STRING else frozenset()
        if mask & NUMBER:
            found |= self.numbers[0]
        literals = [(bit,) for bit in (NULL, FALSE, TRUE) if mask & bit]
        return found.union(literals) if literals else found

    def values(self, key: str) -> list[Node]:
        """Return nodes that the value of a member is in."""
        found = []
        for properties, patterns, rest in self.members:
            node = properties.get(key)
            if node is not None:
                found.append(node)
            elif not patterns:
                found.append(rest)
        return found


@once_each
def kinds(node: Node) -> int:
    """Return the types that a node's values may have, or more."""
    kind = type(node)
    if kind is Types:
        return int(node.args[0])
    if kind is AllOf:
        mask = EVERYTHING
        for part in node.args:
            mask &= kinds(part)
        return mask
    if kind is AnyOf:
        mask = 0
        for part in node.args:
            mask |= kinds(part)
        return mask
    if kind is Not and type(node.args[0]) is not Reference:
        return int(node.args[0].kind)
    return EVERYTHING


class Disjoint:
    """The test whether nodes are disjoint, which keeps what it found out about formulas."""

    def __init__(self) -> None:
        self._facts: dict[int, Facts] = {}  # by id

    def facts(self, node: Node) -> Facts:
        """Return the facts of a node."""
        found = self._facts.get(id(node))
        if found is None:
            found = self._facts[id(node)] = Facts(node)
        return found

    def __call__(self, first: Node, second: Node, depth: int = _DEEPEST) -> bool:
        """Whether two nodes plainly share no value."""
        if type(first) is AnyOf:
            return len(first.args) <= _MOST and all(self(part, second, depth) for part in first.args)
        if type(second) is AnyOf:
            return len(second.args) <= _MOST and all(self(first, part, depth) for part in second.args)
        a, b = self.facts(first), self.facts(second)
        common = a.mask & b.mask
        if not common:
            return True
        if _contradicts(a, b) or _contradicts(b, a):
            return True
        if common & (NULL | FALSE | TRUE):
            return False
        if common & NUMBER and not _numbers_differ(a, b):
            return False
        if common & STRING and not _words_differ(a, b) and not _sizes_differ(a, b, STRING):
            return False
        if common & ARRAY and not _sizes_differ(a, b, ARRAY):
            return False
        return not common & OBJECT or _sizes_differ(a, b, OBJECT) or self._members_differ(a, b, depth)

    def _members_differ(self, a: Facts, b: Facts, depth: int) -> bool:
        """Whether one requires a key that the other excludes, or whose values have nothing in common in both."""
        if depth == 0:
            return False
        if any(
            type(atom) is Required and all(key in have.required for key in atom.keys)
            for have, other in ((a, b), (b, a))
            for atom in other.negated
        ):
            return True
        return any(
            self(mine, yours, depth - 1)
            for key in dict.fromkeys(a.required + b.required)
            for mine in a.values(key)
            for yours in b.values(key)
        )

    def all(self, nodes: Sequence[Node]) -> bool:
        """Whether nodes are pairwise disjoint, where that can be seen without comparing all pairs."""
        scalars: list[frozenset[Listed]] = []
        objects: list[Facts] = []
        for node in nodes:
            facts = self.facts(node)
            values = facts.scalars()
            if values is not None:
                scalars.append(values)
            elif facts.mask == OBJECT:
                objects.append(facts)
            else:
                return False
        return _apart(scalars) and (len(objects) < 2 or self._told_apart(objects))

    def _told_apart(self, objects: Sequence[Facts]) -> bool:
        """Whether all require a key whose values are listed, and differ from one to the other."""
        for key in objects[0].required:
            found: list[frozenset[Listed]] = []
            for facts in objects:
                values = self._constants(facts, key)
                if values is None:
                    break
                found.append(values)
            if len(found) == len(objects) and _apart(found):
                return True
        return False

    def _constants(self, facts: Facts, key: str) -> frozenset[Listed] | None:
        """Return the values of a required member, if they are scalars and listed."""
        sets = (self.facts(value).scalars() for value in facts.values(key)) if key in facts.required else ()
        return next((values for values in sets if values is not None), None)

    def overlapping(self, nodes: Sequence[Node]) -> Iterator[tuple[int, list[int]]]:
        """Yield for each node but the first the earlier ones from which it is not plainly disjoint."""
        constants = self._telling(nodes) if len(nodes) >= _MANY else None
        together: dict[Listed, list[int]] = {}
        unknown: list[int] = []
        for i, node in enumerate(nodes):
            earlier: Iterable[int] = range(i)
            if constants is not None:  # find those of the same constants without comparing all pairs
                values = constants[i]
                if values is not None:
                    earlier = sorted({*unknown, *(j for value in values for j in together.get(value, ()))})
                    for value in values:
                        together.setdefault(value, []).append(i)
                else:
                    unknown.append(i)
            if i:
                yield i, [j for j in earlier if not self(node, nodes[j])]

    def _telling(self, nodes: Sequence[Node]) -> list[frozenset[Listed] | None] | None:
        """Return the listed values of a key that most nodes require, None for those that have none."""
        objects = [self.facts(node) for node in nodes]
        if any(facts.mask != OBJECT for facts in objects):
            return None
        for key in dict.fromkeys(key for facts in objects[:2] for key in facts.required):
            found = [self._constants(facts, key) for facts in objects]
            if 2 * found.count(None) < len(nodes):
                return found
        return None


def _apart(sets: Sequence[frozenset[Listed]]) -> bool:
    """Whether sets are pairwise disjoint."""
    return len(frozenset().union(*sets)) == sum(map(len, sets))


def _contradicts(a: Facts, b: Facts) -> bool:
    """Whether `b` excludes an atom of `a`."""
    return bool(b.negated) and any(atom in a.parts for atom in b.negated)


def _words_differ(a: Facts, b: Facts) -> bool:
    """Whether listed words exclude each other."""
    return any(not mine & yours for mine in a.words for yours in b.words) or any(
        type(atom) is Words and mine <= set(atom.words)
        for have, other in ((a, b), (b, a))
        for mine in have.words
        for atom in other.negated
    )


def _numbers_differ(a: Facts, b: Facts) -> bool:
    """Whether listed numbers and ranges exclude each other."""
    if any(not mine & yours for mine in a.numbers for yours in b.numbers):
        return True
    if any(_before(x, y) or _before(y, x) for x in a.ranges for y in b.ranges):
        return True
    return any(
        not any(_within(value, bound) for value in values)
        for have, other in ((a, b), (b, a))
        for values in have.numbers
        for bound in other.ranges
    )


def _before(a: Range, b: Range) -> bool:
    """Whether all of one range lies below another."""
    if a.high is None or b.low is None:
        return False
    return a.high < b.low or (a.high == b.low and (a.high_open or b.low_open))


def _within(value: Decimal, bound: Range) -> bool:
    """Whether a number is in a range."""
    low, high, low_open, high_open = bound.args
    if low is not None and (value < low or (low_open and value == low)):
        return False
    return high is None or not (value > high or (high_open and value == high))


def _sizes_differ(a: Facts, b: Facts, kind: int) -> bool:
    """Whether counts of characters, items or members have no number in common."""
    return any(
        (x.args[1] is not None and x.args[1] < y.args[0]) or (y.args[1] is not None and y.args[1] < x.args[0])
        for x in a.sizes
        if x.kind == kind
        for y in b.sizes
        if y.kind == kind
    )
