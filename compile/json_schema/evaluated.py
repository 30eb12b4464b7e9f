"""The members and items of a value that subschemas evaluate, which the unevaluated keywords leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from .algebra import ANY, NEVER, Node, all_of, any_of
from .branches import Branches

DOING = "finding out what is left for unevaluatedProperties and unevaluatedItems"

T = TypeVar("T")


class Evaluated(NamedTuple):
    """The members and items that subschemas evaluate, each under a condition on the value."""

    keys: dict[str, Node]
    patterns: dict[str, Node]  # members whose key a pattern matches
    members: Node  # all members
    prefix: dict[int, Node]  # so many of the first items
    contained: dict[Node, Node]  # items in a node
    items: Node  # all items


EVALUATES_NOTHING = Evaluated({}, {}, NEVER, {}, {}, NEVER)
EVALUATES_ALL = Evaluated({}, {}, ANY, {}, {}, ANY)


def either_of(branches: Branches, parts: list[Evaluated]) -> Evaluated:
    """Return what one or another evaluates."""
    parts = [part for part in parts if part is not EVALUATES_NOTHING]
    if len(parts) < 2:
        return parts[0] if parts else EVALUATES_NOTHING
    branches.check(sum(branches.size(node) for part in parts for node in _conditions(part)), DOING)

    def merged(dicts: list[dict[T, Node]]) -> dict[T, Node]:
        found: dict[T, list[Node]] = {}
        for conditions in dicts:
            for key, node in conditions.items():
                found.setdefault(key, []).append(node)
        return {key: any_of(nodes) for key, nodes in found.items()}

    return Evaluated(
        merged([part.keys for part in parts]),
        merged([part.patterns for part in parts]),
        any_of([part.members for part in parts]),
        merged([part.prefix for part in parts]),
        merged([part.contained for part in parts]),
        any_of([part.items for part in parts]),
    )


def given(branches: Branches, node: Node, part: Evaluated) -> Evaluated:
    """Return what is evaluated if a value is in a node."""
    if node is ANY or part is EVALUATES_NOTHING:
        return part
    if node is NEVER:
        return EVALUATES_NOTHING
    branches.check(sum(branches.size(node) + branches.size(condition) for condition in _conditions(part)), DOING)

    def both(conditions: dict[T, Node]) -> dict[T, Node]:
        return {key: all_of([node, condition]) for key, condition in conditions.items()}

    return Evaluated(
        both(part.keys),
        both(part.patterns),
        all_of([node, part.members]),
        both(part.prefix),
        both(part.contained),
        all_of([node, part.items]),
    )


def _conditions(part: Evaluated) -> Iterator[Node]:
    """Yield all conditions."""
    for conditions in (part.keys, part.patterns, part.prefix, part.contained):
        yield from conditions.values()
    yield from (part.members, part.items)
