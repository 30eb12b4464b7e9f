"""What is left of negated `Members` after some members: two atoms that no schema says itself."""

from __future__ import annotations

from .algebra import ANY, OBJECT, Node, all_of, any_of, is_never, negate


class Lacks(Node):
    """What is left of Not(members) after an undeclared member that failed: Lacks(members).

    The key may come again with a value that passes, and a reader of the text keeps the last value. So any undeclared
    member that is asked something and passes leads back to Not(members).
    """

    __slots__ = ()
    kind = OBJECT


class Beyond(Node):
    """What is left of negated Members after some of its keys, where members come in any order: Beyond(members, keys).

    Those keys came with values that pass, and come no more, so that it does not matter what they are asked.
    """

    __slots__ = ()
    kind = OBJECT


def either_way(test: Node, passed: Node, failed: Node) -> Node:
    """Return the values that pass a test and are in one node, and those that fail it and are in another."""
    return any_of([all_of([test, passed]), all_of([negate(test), failed])])


def lacking(rest: Node, passed: bool) -> Node:
    """Return what is left of a `Lacks` after one more member.

    rest: what is left of its Members; NEVER if every value fails, as the key alone does then. passed: whether the
    member had a test and passed it.
    """
    if is_never(rest):
        return ANY
    return negate(rest) if passed else Lacks(rest)
