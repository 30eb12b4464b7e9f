"""The formulas of branches: complements, sizes, and the values that are in exactly one of several."""

from __future__ import annotations

from ...automata.budget import Meter
from .algebra import ANY, EVERYTHING, NEVER, AllOf, AnyOf, Node, Not, Types, all_of, negate
from .disjoint import Disjoint


class Branches:
    """Operations on the formulas of branches, which keep their results for one compilation."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.disjoint = Disjoint()
        self._negated: dict[Node, Node] = {}
        self._exactly_one: dict[tuple[Node, ...], list[Node]] = {}
        self._size: dict[Node, int] = {}

    def negate(self, node: Node) -> Node:
        """Return the complement of a node, each part of it made once."""
        if type(node) is Types:
            return ANY if not node.mask else NEVER if node.mask == EVERYTHING else negate(node)
        return negate(node, self._negated)

    def size(self, node: Node) -> int:
        """Return the number of atoms that a formula has when written out."""
        if type(node) is not AllOf and type(node) is not AnyOf:
            return 1
        found = self._size.get(node)
        if found is None:
            found = self._size[node] = sum(map(self.size, node.args))
        return found

    def check(self, atoms: int, doing: str) -> None:
        """Raise BudgetError if a formula of this many atoms is over budget; ask before making it."""
        self.meter.check(states=atoms, doing=doing)

    def exactly_one(self, nodes: list[Node]) -> list[Node]:
        """Return for each of several nodes its values that are in no other."""
        if len(nodes) == 1:
            return nodes
        key = tuple(nodes)
        found = self._exactly_one.get(key)
        if found is None:
            found = self._exactly_one[key] = self._told_apart(nodes)
        return found

    def _told_apart(self, nodes: list[Node]) -> list[Node]:
        """Return the same, not yet known."""
        kind = _only_about(nodes)
        if kind:  # values of other types are in none of them, or in several
            nodes = [all_of([Types(kind), node]) for node in nodes]
        if self.disjoint.all(nodes):
            return nodes
        sizes = [self.size(node) for node in nodes]
        rivals: list[list[Node]] = [[] for _ in nodes]
        total = 0
        for i, earlier in self.disjoint.overlapping(nodes):
            for j in earlier:
                rivals[i].append(nodes[j])
                rivals[j].append(nodes[i])
                total += sizes[i] + sizes[j]
            self.check(total, "telling the branches of oneOf apart")
        return [
            (NEVER if node in others else all_of([node, *map(self.negate, others)])) if others else node
            for node, others in zip(nodes, rivals, strict=True)
        ]


def _only_about(nodes: list[Node]) -> int:
    """Return the one type that all atoms of some conjunctions are about; 0 if there is none.

    Also 0 if values of other types are in exactly one conjunction: they are in every atom, and in no atom's complement.
    """
    kinds: set[int] = set()
    others = 0
    for node in nodes:
        parts = node.args if type(node) is AllOf else (node,)
        for part in parts:
            kinds.add(part.args[0].kind if type(part) is Not else part.kind)
            if len(kinds) > 1:
                return 0
        others += all(type(part) is not Not for part in parts)
    return 0 if others == 1 else int(kinds.pop())
