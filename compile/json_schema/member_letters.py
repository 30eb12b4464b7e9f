"""The keys of an object as letters: the declared ones in the order in which they are written, and classes of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from ...automata.labelled import Labelled
from . import strings
from .algebra import (
    ANY,
    STRING,
    AllOf,
    AnyOf,
    Members,
    Names,
    Node,
    Not,
    Pattern,
    Required,
    Words,
    all_of,
    atoms,
    is_any,
    is_never,
    restrict,
)
from .negated_members import Beyond, Lacks
from .value_builder import Parts, ValueBuilder

FINDING = "finding the states of an object"
_FEW = 64  # undeclared keys of a class that are declared where members are counted


class Letters:
    """What may be a key: the declared ones are letters 0 .. len(keys) - 1, then come classes of all others."""

    def __init__(
        self, builder: ValueBuilder, keys: tuple[str, ...], members: Sequence[Members], names: Iterable[Node]
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


def mentioned(parts: Parts) -> tuple[tuple[str, ...], list[Members], list[Node]]:
    """Return the declared keys in the order in which they are written, the Members and the nodes of the Names."""
    members: dict[Members, None] = {}
    names: dict[Node, None] = {}
    for atom in atoms(*parts):
        inside: Node = atom
        while type(inside) is Lacks or type(inside) is Beyond:
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


def _orders(node: Node, declared: frozenset[str], orders: dict[Node, list[list[str]]]) -> None:
    """Add the keys of each Members, and after those of its conjunction the keys that are only required; each once."""
    shape = type(node)
    if shape is Members:
        if node not in orders:
            orders[node] = [[key for key, _ in node.args[0]]]
    elif shape is Required:
        if node not in orders:
            orders[node] = [[key] for key in node.args[0] if key not in declared]
    elif shape is Not or shape is Lacks or shape is Beyond:
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
