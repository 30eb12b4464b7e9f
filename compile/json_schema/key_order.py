"""The order in which the keys of an object are written."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise

from .algebra import AllOf, AnyOf, Members, Names, Node, Not, Required, atoms
from .negated_members import Beyond, Lacks
from .value_builder import Parts


def mentioned(parts: Parts) -> tuple[tuple[str, ...], list[Members], list[Node]]:
    """Return the declared keys of formulas in the order of writing, their Members, and the nodes of their Names."""
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
    seen: set[Node] = set()
    for part in parts:
        _orders(part, declared, orders, seen)
    return in_order([order for each in orders.values() for order in each]), list(members), list(names)


def _orders(node: Node, declared: frozenset[str], orders: dict[Node, list[list[str]]], seen: set[Node]) -> None:
    """Note the keys of each Members of a formula. Keys that are only required come last in their conjunction.

    seen: conjunctions and alternatives that are noted: formulas share parts, and one noted twice would add nothing.
    """
    shape = type(node)
    if shape is Members:
        if node not in orders:
            orders[node] = [[key for key, _ in node.args[0]]]
    elif shape is Required:
        if node not in orders:
            orders[node] = [[key] for key in node.args[0] if key not in declared]
    elif shape is Not or shape is Lacks or shape is Beyond:
        _orders(node.args[0], declared, orders, seen)
    elif (shape is AllOf or shape is AnyOf) and node not in seen:
        seen.add(node)
        late = []
        for part in node.args:
            if type(part) is Required:
                late.append(part)
            else:
                _orders(part, declared, orders, seen)
        for part in late:
            _orders(part, declared, orders, seen)


def in_order(orders: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return all keys in one order that agrees with each of some orders, as far as these agree with each other.

    Of the keys that may come next, the one that is mentioned first does.

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
    stuck = 0  # the first key that still waits for others; if orders contradict each other, it goes next
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
