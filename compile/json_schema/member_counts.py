"""Counts of members: which of them an automaton can keep, as it does not remember undeclared keys."""

from __future__ import annotations

from .algebra import AllOf, AnyOf, MemberCount, Node, Not, Required, once_each

Seen = set[tuple[Node, frozenset[str]]]

_TWICE = 'keys that "properties" does not declare are not remembered, and the same one twice would count as two'


def least_count(node: Node) -> int:
    """Return how many members a count or its negation asks for at least; 0 for other formulas."""
    if type(node) is MemberCount:
        return int(node.args[0])
    if type(node) is Not and type(node.args[0]) is MemberCount and node.args[0].args[1] is not None:
        return int(node.args[0].args[1]) + 1
    return 0


@once_each
def asks_for_several(node: Node) -> bool:
    """Return whether a formula asks for two members or more, so that it matters which keys are left."""
    shape = type(node)
    return least_count(node) > 1 or ((shape is AllOf or shape is AnyOf) and any(map(asks_for_several, node.args)))


def check_counts(node: Node, known: frozenset[str] = frozenset(), more: int = 0, seen: Seen | None = None) -> None:
    """Raise SchemaError if a formula asks for more members than an automaton can tell apart.

    That is for two or more besides those that are required anyway. It then raises none for what is left of the formula
    after members, in whatever order they come: a member that came is asked for, and required, once less at most.

    known: keys that are required. more: how many others are. seen: parts that are checked, with what is known.
    """
    shape = type(node)
    if least_count(node) - len(known) - more > 1:
        place = (node.args[0] if shape is Not else node).args[2]
        if place is not None:
            place.approximate(_TWICE, "the same key twice as two")
    elif shape is AllOf or shape is AnyOf:
        seen = set() if seen is None else seen
        if (node, known) in seen:
            return
        seen.add((node, known))
        if shape is AllOf:
            known |= _required_in(node)
            more = max([_least_required(part, known) for part in node.args])
        for part in node.args:
            check_counts(part, known, 0 if type(part) is AnyOf else more, seen)


def _required_in(node: Node) -> frozenset[str]:
    """Return the keys that a conjunction itself requires."""
    return frozenset([key for part in node.args if type(part) is Required for key in part.args[0]])


def _least_required(node: Node, known: frozenset[str]) -> int:
    """Return how many keys besides known ones all alternatives require."""
    if type(node) is AnyOf:
        return min([_least_required(part, known) for part in node.args])
    if type(node) is AllOf:
        return len(_required_in(node) - known)
    return len(set(node.args[0]) - known) if type(node) is Required else 0
