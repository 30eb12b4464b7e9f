"""Formulas over a few atoms: the one form into which every keyword is brought.

A `Node` is a set of JSON values. Nodes are immutable, and nodes of the same content are one object. `all_of`, `any_of`
and `negate` make them, and simplify. An atom about one type (`Length`, `Required`, ..) holds for values of all other
types, as its keyword does; `Types` alone says which types there are.

`restrict` is the formula that remains once a value's type is known. Atoms about members and items hold the nodes of
their values. A formula is finite although a recursive schema is not: `Reference` stands for a schema that is compiled
when it is first needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import wraps
from operator import is_
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack
from weakref import ref

NULL, FALSE, TRUE, NUMBER, STRING, ARRAY, OBJECT = (1 << k for k in range(7))
BOOLEAN = FALSE | TRUE
EVERYTHING = (1 << 7) - 1


class _Known(ref["Node"]):
    """A weak reference to a node, which is forgotten together with the node."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


def _forget(known: _Known) -> None:
    """Take a node out of `_nodes` when nothing refers to it."""
    if _nodes.get(known.key) is known:
        _nodes.pop(known.key, None)  # another thread may have been quicker


_nodes: dict[tuple[Any, ...], _Known] = {}  # by class and arguments


class Node:
    """A set of JSON values. Nodes of the same class and arguments are one object.

    So it takes no time to compare and hash them, however large they are. If threads that make and forget a node at once
    end up with two objects, only time is lost.
    """

    __slots__ = ("__weakref__", "args")
    kind = 0  # the type that an atom is about: it holds for values of all others
    args: tuple[Any, ...]

    def __new__(cls, *args: object) -> Self:
        key = (cls, *args)
        known = _nodes.get(key)
        node: Any = None if known is None else known()
        if node is None:
            made = _new(cls)
            made.args = args
            own = _Known(made, _forget)
            own.key = key
            node = _nodes.setdefault(key, own)()  # perhaps another thread's, which was quicker
            if node is None:  # one that is about to be forgotten
                _nodes[key] = own
                node = made
        return node  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.args))})"


_new = object.__new__


class AllOf(Node):
    """The values in all of `parts`, two or more, in the order of the schema, which has no meaning for the set."""

    __slots__ = ()
    parts: tuple[Node, ...] = property(lambda self: self.args)  # type: ignore[assignment]


class AnyOf(Node):
    """The values in at least one of `parts`, two or more."""

    __slots__ = ()
    parts: tuple[Node, ...] = property(lambda self: self.args)  # type: ignore[assignment]


class Not(Node):
    """The values that are not in `part`, an atom or a `Reference`."""

    __slots__ = ()
    part: Node = property(lambda self: self.args[0])  # type: ignore[assignment]


class Types(Node):
    """The values of some types; `mask` is a union of NULL, FALSE, TRUE, NUMBER, STRING, ARRAY, OBJECT."""

    __slots__ = ()
    mask: int = property(lambda self: self.args[0])  # type: ignore[assignment]


class Reference(Node):
    """A schema that is compiled when its `node` is first asked for. Equal only to itself."""

    __slots__ = ("_made", "_make")

    def __new__(cls, make: Callable[[], Node]) -> Self:
        """Return a node of its own."""
        node = _new(cls)
        node.args = ()
        node._make = make
        node._made = None
        return node

    _make: Callable[[], Node] | None
    _made: Node | None

    @property
    def is_made(self) -> bool:
        """Whether the node was asked for."""
        return self._made is not None

    @property
    def node(self) -> Node:
        """The node of the schema, which is not a Reference."""
        if self._made is None:
            make, self._make = self._make, None
            if make is None:
                raise RuntimeError("a schema asks for itself while it is compiled")
            try:
                self._made = force(make())
            except BaseException:
                self._make = make
                raise
        return self._made

    def __repr__(self) -> str:
        return "Reference(..)"


def force(node: Node) -> Node:
    """Return a node that is not a `Reference`."""
    return node.node if type(node) is Reference else node


# ------------------------------------------------------------------------------------------------------------ atoms


class Integer(Node):
    """Numbers without a fraction."""

    __slots__ = ()
    kind = NUMBER


class Range(Node):
    """Numbers between two bounds, None for none: Range(low, high, low_open, high_open)."""

    __slots__ = ()
    kind = NUMBER
    low: Decimal | None = property(lambda self: self.args[0])  # type: ignore[assignment]
    high: Decimal | None = property(lambda self: self.args[1])  # type: ignore[assignment]
    low_open: bool = property(lambda self: self.args[2])  # type: ignore[assignment]
    high_open: bool = property(lambda self: self.args[3])  # type: ignore[assignment]


class Multiple(Node):
    """Multiples of a positive Decimal."""

    __slots__ = ()
    kind = NUMBER
    of: Decimal = property(lambda self: self.args[0])  # type: ignore[assignment]


class OneOfValues(Node):
    """One of finitely many numbers: a frozenset of Decimal, equal by value."""

    __slots__ = ()
    kind = NUMBER
    values: frozenset[Decimal] = property(lambda self: self.args[0])  # type: ignore[assignment]


class Length(Node):
    """Strings of low .. high code points, high None for no bound."""

    __slots__ = ()
    kind = STRING
    low: int = property(lambda self: self.args[0])  # type: ignore[assignment]
    high: int | None = property(lambda self: self.args[1])  # type: ignore[assignment]


class Pattern(Node):
    """Strings in which an ECMA 262 pattern matches somewhere."""

    __slots__ = ()
    kind = STRING
    source: str = property(lambda self: self.args[0])  # type: ignore[assignment]


class Format(Node):
    """Strings of a format of `formats.py`, by its name."""

    __slots__ = ()
    kind = STRING
    name: str = property(lambda self: self.args[0])  # type: ignore[assignment]


class Words(Node):
    """One of finitely many strings: a tuple of str, in the order of the schema, without repetitions."""

    __slots__ = ()
    kind = STRING
    words: tuple[str, ...] = property(lambda self: self.args[0])  # type: ignore[assignment]


class Items(Node):
    """Arrays whose i-th item is in prefix[i], and all further ones in rest: Items(prefix, rest)."""

    __slots__ = ()
    kind = ARRAY
    prefix: tuple[Node, ...] = property(lambda self: self.args[0])  # type: ignore[assignment]
    rest: Node = property(lambda self: self.args[1])  # type: ignore[assignment]


class ItemCount(Node):
    """Arrays of low .. high items, high None for no bound."""

    __slots__ = ()
    kind = ARRAY
    low: int = property(lambda self: self.args[0])  # type: ignore[assignment]
    high: int | None = property(lambda self: self.args[1])  # type: ignore[assignment]


class Contains(Node):
    """Arrays with low .. high items in `node`, high None for no bound: Contains(node, low, high)."""

    __slots__ = ()
    kind = ARRAY
    node: Node = property(lambda self: self.args[0])  # type: ignore[assignment]
    low: int = property(lambda self: self.args[1])  # type: ignore[assignment]
    high: int | None = property(lambda self: self.args[2])  # type: ignore[assignment]


class Unique(Node):
    """Arrays of distinct items, each in one of finitely many pairwise disjoint nodes: Unique(nodes left)."""

    __slots__ = ()
    kind = ARRAY
    left: tuple[Node, ...] = property(lambda self: self.args[0])  # type: ignore[assignment]


class Members(Node):
    """Objects by their members: Members(properties, patterns, rest).

    A member's value is in the node of its key in `properties`, and in the nodes of all `patterns` that match its key;
    where there is neither, in `rest`.
    """

    __slots__ = ()
    kind = OBJECT
    properties: tuple[tuple[str, Node], ...] = property(lambda self: self.args[0])  # type: ignore[assignment]
    patterns: tuple[tuple[str, Node], ...] = property(lambda self: self.args[1])  # type: ignore[assignment]
    rest: Node = property(lambda self: self.args[2])  # type: ignore[assignment]


class Required(Node):
    """Objects that have all of some keys: a tuple of str, in the order of the schema."""

    __slots__ = ()
    kind = OBJECT
    keys: tuple[str, ...] = property(lambda self: self.args[0])  # type: ignore[assignment]


class MemberCount(Node):
    """Objects of low .. high members, high None for no bound: MemberCount(low, high, place).

    place: of the keyword that says so, which may have to be approximated; None where each count can be kept.
    """

    __slots__ = ()
    kind = OBJECT
    low: int = property(lambda self: self.args[0])  # type: ignore[assignment]
    high: int | None = property(lambda self: self.args[1])  # type: ignore[assignment]
    place: object | None = property(lambda self: self.args[2])


class Names(Node):
    """Objects whose keys, as strings, are all in a node."""

    __slots__ = ()
    kind = OBJECT
    node: Node = property(lambda self: self.args[0])  # type: ignore[assignment]


class Unenforceable(Node):
    """Values that fit an assertion about one type which no automaton can enforce: Unenforceable(kind, keyword, value).

    None is left in the formula of a whole schema: `widened.py` replaces each.
    """

    __slots__ = ()
    kind: int = property(lambda self: self.args[0])  # type: ignore[assignment]


ANY: Node = Types(EVERYTHING)
NEVER: Node = Types(0)


# -------------------------------------------------------------------------------------------------------- operations


def all_of(parts: Iterable[Node]) -> Node:
    """Return the intersection, simplified."""
    mask = EVERYTHING
    kept: dict[Node, None] = {}
    for part in parts:
        shape = type(part)
        if shape is Types:
            mask &= part.args[0]
        elif shape is AllOf:  # which has none of its own class inside
            for inner in part.args:
                if type(inner) is Types:
                    mask &= inner.args[0]
                else:
                    kept[inner] = None
        else:
            kept[part] = None
    if not mask:
        return NEVER
    for part in kept:
        if type(part) is Not and part.args[0] in kept:
            return NEVER
    if mask != EVERYTHING:
        # an atom about a type that is gone says nothing
        found = [part for part in kept if not part.kind or part.kind & mask]
        if not found:
            return Types(mask)
        return AllOf(Types(mask), *found)
    if not kept:
        return ANY
    if len(kept) == 1:
        return next(iter(kept))
    return AllOf(*kept)


def any_of(parts: Iterable[Node]) -> Node:
    """Return the union, simplified."""
    mask = 0
    kept: dict[Node, None] = {}
    for part in parts:
        shape = type(part)
        if shape is Types:
            mask |= part.args[0]
        elif shape is AnyOf:  # which has none of its own class inside
            for inner in part.args:
                if type(inner) is Types:
                    mask |= inner.args[0]
                else:
                    kept[inner] = None
        else:
            kept[part] = None
    if mask == EVERYTHING:
        return ANY
    for part in kept:
        if type(part) is Not and part.args[0] in kept:
            return ANY
    found = [*([Types(mask)] if mask else []), *kept]
    if not found:
        return NEVER
    return found[0] if len(found) == 1 else AnyOf(*found)


def items_in(prefix: tuple[Node, ...], rest: Node) -> Node:
    """Return the arrays whose first items are in the nodes of a prefix, and all further ones in `rest`, simplified."""
    size = len(prefix)
    if rest is ANY:
        while size and prefix[size - 1] is ANY:
            size -= 1
        if not size:
            return ANY
    return Items(prefix[:size], rest)


def contains_in(node: Node, low: int, high: int | None) -> Node:
    """Return the arrays with low .. high items in a node, simplified."""
    if (high is not None and low > high) or (low and node is NEVER):
        return Types(EVERYTHING & ~ARRAY)
    if not low and (high is None or node is NEVER):
        return ANY
    return ItemCount(low, high) if node is ANY else Contains(node, low, high)


def negate(node: Node, known: dict[Node, Node] | None = None) -> Node:
    """Return the complement; negations stand before atoms and `Reference` only.

    known: complements by node, so that a part that occurs several times is negated once.
    """
    kind = type(node)
    if kind is Types:
        return Types(EVERYTHING & ~node.args[0])
    if kind is Not:
        part: Node = node.args[0]
        return part
    if kind is not AllOf and kind is not AnyOf:
        return Not(node)
    known = {} if known is None else known
    found = known.get(node)
    if found is None:
        parts = [negate(part, known) for part in node.args]
        found = known[node] = any_of(parts) if kind is AllOf else all_of(parts)
    return found


def restrict(node: Node, kind: int, known: dict[Node, Node] | None = None) -> Node:
    """Return what a node says of values of one type: ANY, NEVER, or a formula of atoms about that type alone.

    known: the results for this type by node, so that a part that occurs several times is restricted once.
    """
    shape = type(node)
    if shape is Types:
        return ANY if node.args[0] & kind else NEVER
    if shape is AllOf or shape is AnyOf:
        known = {} if known is None else known
        found = known.get(node)
        if found is None:
            parts = [restrict(part, kind, known) for part in node.args]
            found = known[node] = all_of(parts) if shape is AllOf else any_of(parts)
        return found
    if shape is Not:
        return negate(restrict(node.args[0], kind, known))
    if shape is Reference:
        return restrict(force(node), kind, known)
    return node if node.kind == kind else ANY


def replaced(nodes: Iterable[Node], by: Mapping[Node, Node], known: dict[Node, Node] | None = None) -> tuple[Node, ...]:
    """Return formulas in which each atom becomes `by.get(atom)`, if that is not None.

    A negated atom becomes `by.get(Not(atom))` if that is not None, and else the negation of what the atom becomes.

    known: the results of the same replacement, by node, for parts that formulas have in common.
    """
    known = {} if known is None else known
    return tuple([_replaced(node, by, known) for node in nodes])


def _replaced(node: Node, by: Mapping[Node, Node], known: dict[Node, Node]) -> Node:
    shape = type(node)
    if shape is AllOf or shape is AnyOf:
        found = known.get(node)
        if found is None:
            found = node
            absorbing = NEVER if shape is AllOf else ANY
            parts = []
            for part in node.args:
                new = _replaced(part, by, known)
                if new is absorbing:
                    found = new
                    break
                if new is not part:
                    found = absorbing  # until all parts are known
                parts.append(new)
            else:
                if found is not node:
                    found = all_of(parts) if shape is AllOf else any_of(parts)
            known[node] = found
        return found
    if shape is Not:
        part = by.get(node)
        if part is not None:
            return part
        part = by.get(node.args[0])
        return node if part is None else negate(part)
    part = by.get(node)
    return node if part is None else part


def atoms(*nodes: Node) -> list[Node]:
    """Return the atoms of formulas, each once, from left to right, those of `Reference` parts too; `Types` is none."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()  # so that parts that alternatives have in common are visited once
    stack = list(nodes)
    stack.reverse()
    while stack:
        node = stack.pop()
        shape = type(node)
        if shape is AllOf or shape is AnyOf:
            if node not in seen:
                seen.add(node)
                stack.extend(reversed(node.args))
        elif shape is Not:
            stack.append(node.args[0])
        elif shape is Reference:
            stack.append(force(node))
        elif shape is not Types:
            found[node] = None
    return list(found)


Answer = TypeVar("Answer")
More = TypeVarTuple("More")


def once_each(function: Callable[[Node, Unpack[More]], Answer]) -> Callable[[Node, Unpack[More]], Answer]:
    """Let a function that asks itself about the parts of a formula ask about each part once, however many share it.

    Written out, a formula can be exponentially larger than it is. Answers hold for the very arguments that were passed
    on with a part, and must not be changed.
    """
    asked = threading.local()

    @wraps(function)
    def answer(node: Node, /, *args: *More) -> Answer:
        if type(node) is not AllOf and type(node) is not AnyOf:
            return function(node, *args)
        before: tuple[tuple[Any, ...], dict[Node, Answer]] | None = getattr(asked, "before", None)
        if before is None or not all(map(is_, before[0], args)):  # from elsewhere, or about something else
            asked.before = args, {}
            try:
                return function(node, *args)
            finally:
                asked.before = before
        known = before[1]
        if node not in known:
            known[node] = function(node, *args)
        return known[node]

    return answer


# ---------------------------------------------------------------------------------------------- what is left


def is_any(node: Node) -> bool:
    """Return whether a formula is ANY."""
    return type(node) is Types and node.args[0] == EVERYTHING


def is_never(node: Node) -> bool:
    """Return whether a formula is NEVER. Other formulas may be empty too."""
    return type(node) is Types and not node.args[0]


def counted(node: Node) -> Node:
    """Return what is left of an ItemCount or MemberCount after one more item or member."""
    low, high, *path = node.args
    low, high = max(low - 1, 0), None if high is None else high - 1
    if high is not None and high < low:
        return NEVER
    return type(node)(low, high, *path) if low or high is not None else ANY


def closes(node: Node, known: dict[Node, bool] | None = None) -> bool:
    """Return whether an array or object may end when this is left of its formula.

    known: the answers by node, for parts that formulas have in common.
    """
    shape = type(node)
    if shape is Types:
        return bool(node.args[0])
    if shape is AllOf or shape is AnyOf:
        known = {} if known is None else known
        found = known.get(node)
        if found is None:
            found = known[node] = (all if shape is AllOf else any)(closes(part, known) for part in node.args)
        return found
    if shape is Not:
        return not closes(node.args[0])
    if shape is ItemCount or shape is MemberCount:
        return bool(node.args[0] == 0)
    if shape is Contains:
        return bool(node.args[1] == 0)
    return shape is not Required
