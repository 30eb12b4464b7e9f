"""Formulas that have at least the values of a schema, where no automaton can enforce one of its assertions."""

from __future__ import annotations

from functools import partial
from operator import is_

from .algebra import (
    ANY,
    EVERYTHING,
    AllOf,
    AnyOf,
    Contains,
    Items,
    Members,
    Names,
    Node,
    Not,
    Reference,
    Types,
    Unenforceable,
    all_of,
    any_of,
    contains_in,
    items_in,
    negate,
)


class Widened:
    """Formulas without `Unenforceable` atoms that have all values which the formulas with them have.

    A formula has an upper and a lower bound, whatever sets its unenforceable atoms are: lower <= formula <= upper.
    The upper bound of such an atom is every value, the lower bound every value of the types that it is not about.
    By induction the bounds hold for a whole formula: a conjunction, a union, `Items`, `Members` and `Names` grow with
    each of their parts, so that each part takes the same bound. A complement shrinks as its part grows, and so does
    `Contains` with a greatest count of items: these parts take the other bound.
    So the upper bound of a schema has every value that fits it, also where the atoms stand under `not`, `if` or
    `oneOf`. A formula without such atoms is both of its bounds.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Node, bool], Node] = {}

    def upper(self, node: Node) -> Node:
        """Return a formula without unenforceable atoms that has all values of a node."""
        return self._bound(node, True)

    def _bound(self, node: Node, upper: bool) -> Node:
        key = (node, upper)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._made(node, upper)
        return found

    def _made(self, node: Node, upper: bool) -> Node:
        shape = type(node)
        if shape is Unenforceable:
            return ANY if upper else Types(EVERYTHING & ~node.kind)
        if shape is AllOf or shape is AnyOf:
            parts = self._all(node.args, upper)
            if parts is node.args:
                return node
            return all_of(parts) if shape is AllOf else any_of(parts)
        if shape is Not:
            part = self._bound(node.args[0], not upper)
            return node if part is node.args[0] else negate(part)
        if isinstance(node, Reference):
            return Reference(partial(self._of_target, node, upper))
        if isinstance(node, Contains):
            return self._containing(node, upper)
        if isinstance(node, Items):
            prefix, rest = self._all(node.prefix, upper), self._bound(node.rest, upper)
            return node if prefix is node.prefix and rest is node.rest else items_in(prefix, rest)
        if isinstance(node, Members):
            properties, patterns = self._by_key(node.properties, upper), self._by_key(node.patterns, upper)
            rest = self._bound(node.rest, upper)
            if properties is node.properties and patterns is node.patterns and rest is node.rest:
                return node
            return Members(properties, patterns, rest)
        if isinstance(node, Names):
            part = self._bound(node.node, upper)
            return node if part is node.node else ANY if part is ANY else Names(part)
        return node

    def _of_target(self, reference: Reference, upper: bool) -> Node:
        """Return the bound of the schema that a reference leads to."""
        return self._bound(reference.node, upper)

    def _containing(self, node: Contains, upper: bool) -> Node:
        """Return the bound of a count of items: at least so many in one bound, at most so many in the other."""
        for_least, for_most = self._bound(node.node, upper), self._bound(node.node, not upper)
        if node.high is None or for_least is for_most:
            return node if for_least is node.node else contains_in(for_least, node.low, node.high)
        return all_of([contains_in(for_least, node.low, None), contains_in(for_most, 0, node.high)])

    def _all(self, nodes: tuple[Node, ...], upper: bool) -> tuple[Node, ...]:
        """Return the bounds of several nodes, the same object if all are as they were."""
        found = tuple([self._bound(node, upper) for node in nodes])
        return nodes if all(map(is_, found, nodes)) else found

    def _by_key(self, nodes: tuple[tuple[str, Node], ...], upper: bool) -> tuple[tuple[str, Node], ...]:
        """Return the bounds of nodes by key, the same object if all are as they were."""
        found = tuple([(key, self._bound(node, upper)) for key, node in nodes])
        return nodes if all(new is old for (_, new), (_, old) in zip(found, nodes, strict=True)) else found
