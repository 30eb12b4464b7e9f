"""What the subschemas of a schema evaluate of a value: the members and items that `unevaluated..` leaves alone."""

from __future__ import annotations

from typing import NamedTuple

from .algebra import ANY, NEVER, Node


class Evaluated(NamedTuple):
    """What subschemas look at, each under a condition."""

    keys: dict[str, Node]
    patterns: dict[str, Node]  # members whose key a pattern matches
    members: Node  # all members
    prefix: dict[int, Node]  # so many of the first items
    contained: dict[Node, Node]  # items in a node
    items: Node  # all items


EVALUATES_NOTHING = Evaluated({}, {}, NEVER, {}, {}, NEVER)
EVALUATES_ALL = Evaluated({}, {}, ANY, {}, {}, ANY)
