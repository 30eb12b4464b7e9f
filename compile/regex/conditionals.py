"""Conditionals, `(?(1)yes|no)`: what follows a group that may have matched or not, as two cases.

The part of a row in which the group stands has ways with it and ways without; behind the former a conditional is its
first branch, behind the latter its second. That is all where nothing around the row is repeated: a group stays matched
from one round to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ...automata.deadline import look
from .tree import EMPTY, Chars, Concat, Look, Node, Repeat, Union


class UndecidedError(Exception):
    """Why the cases of a conditional cannot be told apart."""


@dataclass(frozen=True, eq=False, slots=True)
class Captured:
    """A group that a conditional may ask for."""

    number: int
    item: Node


@dataclass(frozen=True, eq=False, slots=True)
class Conditional:
    """One of two items, by whether a group has matched."""

    number: int
    yes: Node
    no: Node


_NEVER = Chars(())
_MOST_NODES = 3_000


def decided(node: Node, number: int) -> Node:
    """Return a tree in which no conditional asks for this group. Raises UndecidedError."""
    if len(_all(node)) > _MOST_NODES:
        raise UndecidedError("makes too many cases")
    return _decided(node, number)


def _decided(node: Node, number: int) -> Node:
    look("taking a conditional of a pattern apart")
    if not _asks(node, number):
        return node
    if not _holds(node, number):
        return _answered(node, number, False)  # the group has not matched before
    if isinstance(node, Union):
        return Union(tuple(_decided(item, number) for item in node.items))
    if isinstance(node, Repeat):
        if node.high != 1:
            raise UndecidedError("and its group are repeated together")
        return Repeat(_decided(node.item, number), node.low, node.high, node.lazy)
    if isinstance(node, Captured):
        if node.number == number:
            raise UndecidedError("stands within the group that it asks for")
        return _captured(node.number, _decided(node.item, number))
    if not isinstance(node, Concat):
        raise UndecidedError("and its group stand within a lookaround or another conditional")
    at = next(i for i, item in enumerate(node.items) if _holds(item, number))
    before = tuple(_answered(item, number, False) for item in node.items[:at])
    own, behind = node.items[at], node.items[at + 1 :]
    if _asks(own, number):
        own = _decided(own, number)
        if not any(_asks(item, number) for item in behind):
            return Concat((*before, own, *behind))
    with_it, without = _ways(own, number)
    cases = [
        Concat((*before, own, *(_answered(item, number, matched) for item in behind)))
        for own, matched in ((with_it, True), (without, False))
        if own is not _NEVER
    ]
    return cases[0] if len(cases) == 1 else Union(tuple(cases))


def _ways(node: Node, number: int) -> tuple[Node, Node]:
    """Return a node where the group matches in it, and where it does not."""
    if not _holds(node, number):
        return _NEVER, node
    if isinstance(node, Captured):
        if node.number == number:
            return node, _NEVER
        with_it, without = _ways(node.item, number)
        return _wrapped(node.number, with_it), _wrapped(node.number, without)
    if isinstance(node, Union):
        pairs = [_ways(item, number) for item in node.items]
        return _union([one for one, _ in pairs]), _union([two for _, two in pairs])
    if isinstance(node, Concat):
        at = next(i for i, item in enumerate(node.items) if _holds(item, number))
        with_it, without = _ways(node.items[at], number)
        rows = [
            _NEVER if each is _NEVER else Concat((*node.items[:at], each, *node.items[at + 1 :]))
            for each in (with_it, without)
        ]
        return rows[0], rows[1]
    if isinstance(node, Repeat):
        with_it, without = _ways(node.item, number)
        if without is _NEVER and node.low:
            return node, _NEVER
        if without is _NEVER:
            return Repeat(node.item, 1, node.high, node.lazy), EMPTY
        if node.high == 1:
            return with_it, without if node.low else Union((without, EMPTY))
        raise UndecidedError("asks for a group that only some rounds of a repeat match")
    raise UndecidedError("asks for a group within a lookaround or another conditional")


def _answered(node: Node, number: int, matched: bool) -> Node:
    """Return a node whose conditionals for a group are the branch for whether it has matched."""
    if not _asks(node, number):
        return node
    if isinstance(node, Conditional):
        if node.number == number:
            return _answered(node.yes if matched else node.no, number, matched)
        two = [_answered(item, number, matched) for item in (node.yes, node.no)]
        return cast("Node", Conditional(node.number, *two))
    if isinstance(node, Captured):
        return _captured(node.number, _answered(node.item, number, matched))
    if isinstance(node, (Concat, Union)):
        return type(node)(tuple(_answered(item, number, matched) for item in node.items))
    if isinstance(node, Repeat):
        return Repeat(_answered(node.item, number, matched), node.low, node.high, node.lazy)
    assert isinstance(node, Look)
    return Look(_answered(node.item, number, matched), node.behind, node.negated)


def without_numbers(node: Node) -> Node:
    """Return a tree without the numbers of its groups; a Look that has none stays the same object."""
    if isinstance(node, Captured):
        return without_numbers(node.item)
    if isinstance(node, Concat):
        parts = [without_numbers(item) for item in node.items]
        return Concat(tuple(each for part in parts for each in (part.items if isinstance(part, Concat) else (part,))))
    if isinstance(node, Union):
        return Union(tuple(map(without_numbers, node.items)))
    if isinstance(node, Repeat):
        return Repeat(without_numbers(node.item), node.low, node.high, node.lazy)
    if isinstance(node, Look) and any(isinstance(each, Captured) for each in _all(node.item)):
        return Look(without_numbers(node.item), node.behind, node.negated)
    return node


def _captured(number: int, item: Node) -> Node:
    return cast("Node", Captured(number, item))


def _wrapped(number: int, item: Node) -> Node:
    return item if item is _NEVER else _captured(number, item)


def _union(nodes: list[Node]) -> Node:
    left = [node for node in nodes if node is not _NEVER]
    return _NEVER if not left else left[0] if len(left) == 1 else Union(tuple(left))


def _holds(node: Node, number: int) -> bool:
    return any(isinstance(each, Captured) and each.number == number for each in _all(node))


def _asks(node: Node, number: int) -> bool:
    return any(isinstance(each, Conditional) and each.number == number for each in _all(node))


def _all(root: Node) -> list[Node]:
    found: list[Node] = []
    todo = [root]
    while todo and len(found) <= _MOST_NODES:
        node = todo.pop()
        found.append(node)
        if isinstance(node, (Concat, Union)):
            todo.extend(node.items)
        elif isinstance(node, (Repeat, Look, Captured)):
            todo.append(node.item)
        elif isinstance(node, Conditional):
            todo.extend((node.yes, node.no))
    return found
