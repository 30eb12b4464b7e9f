"""What is left of negated `Members` after some members."""

from __future__ import annotations

from .algebra import ANY, OBJECT, Node, all_of, any_of, is_never, negate


class Lacks(Node):
    """What is left of Not(members) after an undeclared member that failed: Lacks(members).

    The key may come again, with a value that passes, and a reader has only that. So after any undeclared member that is
    asked something and passes it is Not(members) again.
    """

    __slots__ = ()
    kind = OBJECT


class Beyond(Node):
    """What is left of Members, where it stands negated, after some of its keys in any order: Beyond(members, keys).

    Those came with values that pass, and come no more: what they are asked does not matter.
    """

    __slots__ = ()
    kind = OBJECT


def either_way(test: Node, passed: Node, failed: Node) -> Node:
    return any_of([all_of([test, passed]), all_of([negate(test), failed])])


def lacking(rest: Node, passed: bool) -> Node:
    """Return what is left of a `Lacks` after a member that passed its test, or after one that failed or has none.

    rest: what is left of its Members; NEVER if any value fails, as the key alone does then.
    """
    if is_never(rest):
        return ANY
    return negate(rest) if passed else Lacks(rest)
