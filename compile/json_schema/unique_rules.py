"""Which arrays of a value must have distinct items: read off a schema's formula, for a memory beside a lazy machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple, TypeVar

from ...lazy.unique.values import Value
from ...lazy.unique.written import Written
from .algebra import (
    ANY,
    ARRAY,
    OBJECT,
    AllOf,
    AnyOf,
    Contains,
    Items,
    Members,
    Names,
    Node,
    Not,
    Reference,
    Required,
    all_of,
    any_of,
    force,
    is_never,
    restrict,
)
from .enough_values import DependsError, Listed, is_unique, listed_items, listed_later, member_of, scalars_of

_MOST_KEPT = 1000  # rules of items and members of one value


class UniqueRules:
    """The rules of the values of a schema, each made when a text comes to it: see `lazy.unique.memory.Rule`.

    A schema is read so if one thing decides which arrays have distinct items: where they stand. An array in a branch of
    `anyOf` does only if all branches that allow an array there ask for the same, or if a member tells the branches
    apart, such as `"kind": {"const": "a"}`. Until that member comes, items are distinct if any branch asks for it.
    """

    def __init__(self, root: Node) -> None:
        self._bears = bearing(root, is_unique)
        self._rules: dict[tuple[Node, Node | None], ValueRule] = {}
        self._arrays: dict[Node, ArrayParts] = {}
        self._listed: dict[Node, Listed] = {}
        self._objects: dict[Node, tuple[Members, ...]] = {}
        self._choices: dict[Node, Choice | None] = {}
        self.root = root

    def rule(self, node: Node, whole: Node | None = None) -> ValueRule | None:
        """Return the rule of a node's values. whole: their node, if they are part of an item that is to be distinct."""
        if whole is None and not self.bears(node):
            return None
        found = self._rules.get((node, whole))
        if found is None:
            found = self._rules[node, whole] = ValueRule(self, node, whole)
        return found

    # ------------------------------------------------------------------------------------- where there is something

    def bears(self, node: Node) -> bool:
        """Return whether some array in the values of a node has distinct items."""
        found = self._bears.get(node)
        if found is None:  # put together of parts that are known
            found = self._bears[node] = is_unique(node) or any(map(self.bears, parts_of(node)))
        return found

    def _bearing(self, node: Node) -> Node:
        return node if self.bears(node) else ANY

    # ------------------------------------------------------------------------------------------------------- parts

    def array(self, node: Node) -> ArrayParts:
        """Return what a node says of the items of an array. Raises DependsError."""
        found = self._arrays.get(node)
        if found is None:
            found = self._arrays[node] = self._array(restrict(node, ARRAY))
        return found

    def _array(self, node: Node) -> ArrayParts:
        shape = type(node)
        if shape is Reference:
            return self._array(restrict(force(node), ARRAY))
        if not self.bears(node):
            return ArrayParts(False, (), ANY)
        if is_unique(node):
            return ArrayParts(True, (), ANY)
        if isinstance(node, Items):
            return ArrayParts(False, tuple(map(self._bearing, node.prefix)), self._bearing(node.rest))
        if shape is AllOf:
            parts = [self._array(part) for part in node.args]
            size = max(len(part.prefix) for part in parts)
            prefix = tuple([all_of([part.item(i) for part in parts]) for i in range(size)])
            return ArrayParts(any(part.is_unique for part in parts), prefix, all_of([part.rest for part in parts]))
        if shape is AnyOf:
            first, *others = [self._array(part) for part in node.args if not is_never(part)]
            for other in others:
                self._check_same_array(first, other, set())
            return first
        raise DependsError("it stands under not, contains or if, or in a branch of oneOf that is told apart by it")

    def listed(self, node: Node) -> Listed:
        """Return the values of each item that an array of distinct items needs, where they are few."""
        found = self._listed.get(node)
        if found is None:
            found = self._listed[node] = listed_items(restrict(node, ARRAY))
        return found

    def members(self, node: Node) -> tuple[Members, ...]:
        """Return what a node says of the members of an object. Raises DependsError."""
        found = self._objects.get(node)
        if found is None:
            found = self._objects[node] = self._members(restrict(node, OBJECT))
        return found

    def _members(self, node: Node) -> tuple[Members, ...]:
        shape = type(node)
        if shape is Reference:
            return self._members(restrict(force(node), OBJECT))
        if not self.bears(node):
            return ()
        if isinstance(node, Members):
            named = [tuple([(key, self._bearing(value)) for key, value in each]) for each in node.args[:2]]
            return (Members(*named, self._bearing(node.rest)),)
        if shape is AllOf:
            return tuple([each for part in node.args for each in self._members(part)])
        if shape is AnyOf:
            found = [self._members(part) for part in node.args if not is_never(part)]
            return found[0] if self._choice(node) is None else tuple([each for members in found for each in members])
        raise DependsError("it stands under not or if, or in a branch of oneOf that is told apart by it")

    # ------------------------------------------------------------------------------------- members that tell branches

    def choices(self, node: Node) -> dict[str, list[tuple[Choice, Node]]]:
        """Return the choices that a node of objects has, with the formula of each, by the key that tells."""
        node = restrict(force(node), OBJECT)
        found: dict[str, list[tuple[Choice, Node]]] = {}
        for part in node.args if type(node) is AllOf else (node,):
            choice = self._choice(part) if type(part) is AnyOf else None
            if choice is not None:
                found.setdefault(choice.key, []).append((choice, part))
        return found

    def narrowed(self, node: Node, key: str, value: Value) -> Node:
        """Return what a node says of objects in which the member of a key has a value."""
        node = restrict(force(node), OBJECT)
        by = {part: choice.branch(value) for choice, part in self.choices(node).get(key, ())}
        return all_of([by.get(part, part) for part in node.args]) if type(node) is AllOf else by.get(node, node)

    def _choice(self, node: Node) -> Choice | None:
        """Return how the branches of a union are told apart if they differ. Raises DependsError if they are not."""
        if node not in self._choices:
            parts = [part for part in node.args if not is_never(part)]
            self._choices[node] = None
            try:
                for part in parts:
                    self._check_same(parts[0], part, set())
            except DependsError:
                choice = _choice_of(parts)
                if choice is None:
                    del self._choices[node]
                    raise
                self._choices[node] = choice
        return self._choices[node]

    # -------------------------------------------------------------------------------------------------------- same

    def _check_same(self, one: Node, other: Node, seen: set[tuple[Node, Node]]) -> None:
        """Raise DependsError unless two nodes ask for distinct items in the same places."""
        if one is other or (one, other) in seen or not (self.bears(one) or self.bears(other)):
            return
        seen.add((one, other))
        if self.choices(one) or self.choices(other):
            raise DependsError("branches in which a member tells whether it holds differ further")
        self._check_same_array(self.array(one), self.array(other), seen)
        self._check_same_object(self.members(one), self.members(other), seen)

    def _check_same_array(self, one: ArrayParts, other: ArrayParts, seen: set[tuple[Node, Node]]) -> None:
        if one.is_unique != other.is_unique:
            raise DependsError("it stands in some branches that allow an array there, not in all")
        for i in range(max(len(one.prefix), len(other.prefix))):
            self._check_same(one.item(i), other.item(i), seen)
        self._check_same(one.rest, other.rest, seen)

    def _check_same_object(
        self, one: tuple[Members, ...], other: tuple[Members, ...], seen: set[tuple[Node, Node]]
    ) -> None:
        if one == other:
            return
        patterns = [sorted(source for each in members for source, _ in each.patterns) for members in (one, other)]
        if patterns[0] != patterns[1] or (patterns[0] and len(one) + len(other) > 2):
            raise DependsError("it stands in some branches that allow the member, not in all")
        for i in range(len(patterns[0])):
            self._check_same(one[0].patterns[i][1], other[0].patterns[i][1], seen)
        for key in {key: None for members in (one, other) for each in members for key, _ in each.properties}:
            self._check_same(member_of(one, key), member_of(other, key), seen)
        self._check_same(member_of(one, None), member_of(other, None), seen)

    # ------------------------------------------------------------------------------------------------------- check

    def check(self) -> None:
        """Raise DependsError unless each array is told to have distinct items, or not, by where it stands."""
        todo, seen = [self.root], {self.root}
        while todo:
            node = todo.pop()
            array = self.array(node)
            found = [*array.prefix, array.rest]
            if array.is_unique:
                self.listed(node)
            members = self.members(node)
            keys = {key: None for each in members for key, _ in each.properties}
            found += [member_of(members, key) for key in (*keys, None)]
            found += [value for each in members for _, value in each.patterns]
            for key, choices in self.choices(node).items():
                found += [self.narrowed(node, key, value) for choice, _ in choices for value in choice.values]
            for part in found:
                if part not in seen and self.bears(part):
                    seen.add(part)
                    todo.append(part)


class Choice(NamedTuple):
    """Branches of a union, with the values by which the member of a key tells them apart."""

    key: str
    branches: tuple[tuple[frozenset[Value], Node], ...]

    @property
    def values(self) -> frozenset[Value]:
        """The values of that member."""
        return frozenset().union(*[values for values, _ in self.branches])

    def branch(self, value: Value) -> Node:
        """Return the branches that a value leaves."""
        return any_of([node for values, node in self.branches if value in values])


def _choice_of(parts: list[Node]) -> Choice | None:
    """Return how a member that all branches require tells them apart, None if none does."""
    first, *others = [_declared(part) & _required(part) for part in parts]
    for key in sorted(first.intersection(*others)):
        found: list[tuple[frozenset[Value], Node]] = []
        for part in parts:
            values = scalars_of(_inside(part, Members, lambda one, key=key: member_of((one,), key)))  # type: ignore[misc]
            if values is None:
                break
            found.append((values, part))
        else:
            choice = Choice(key, tuple(found))
            if all(sum(value in values for values, _ in found) < len(found) for value in choice.values):
                return choice
    return None


class ArrayParts:
    """What of an array's items matters: whether they are to be distinct, and the nodes of items that bear such."""

    __slots__ = ("is_unique", "prefix", "rest")

    def __init__(self, is_unique: bool, prefix: tuple[Node, ...], rest: Node) -> None:
        self.is_unique, self.prefix, self.rest = is_unique, prefix, rest

    def item(self, index: int) -> Node:
        """Return the node of an item."""
        return self.prefix[index] if index < len(self.prefix) else self.rest


class ValueRule:
    """The rule of one node's values: see `lazy.unique.memory.Rule`."""

    def __init__(self, rules: UniqueRules, node: Node, whole: Node | None) -> None:
        self._rules, self._node, self._whole = rules, node, whole
        self._declared: frozenset[str] | None = None
        self._items: dict[int, ValueRule | None] = {}
        self._members: dict[str, ValueRule | None] = {}
        self._narrowed: dict[tuple[str, Value], tuple[ValueRule | None]] = {}

    has_distinct_keys = False

    @property
    def is_unique(self) -> bool:
        """Whether the items must be distinct if the value is an array."""
        return self._rules.array(self._node).is_unique

    def among(self, written: Written) -> Written:
        """Return the values that the next item of an array must not have: what is written, and what must come later."""
        listed = self._rules.listed(self._node)
        return written if written.size >= len(listed) else listed_later(listed, written)

    def item(self, index: int) -> ValueRule | None:
        """Return the rule of an item; None if nothing in it has to be remembered."""
        array = self._rules.array(self._node)
        whole = self._node if array.is_unique and self._whole is None else self._whole
        if whole is None:
            index = min(index, len(array.prefix))
        if index not in self._items:
            if len(self._items) > _MOST_KEPT:
                self._items.clear()
            items = None if whole is None else _inside(restrict(whole, ARRAY), Items, lambda one: _item(one, index))
            self._items[index] = self._rules.rule(array.item(index), items)
        return self._items[index]

    def member(self, key: str) -> ValueRule | None:
        """Return the rule of a member; None if nothing in it has to be remembered."""
        if key not in self._members:
            if len(self._members) > _MOST_KEPT:
                self._members.clear()
            whole = self._whole
            if whole is not None:
                whole = _inside(restrict(whole, OBJECT), Members, lambda one: member_of((one,), key))
            self._members[key] = self._rules.rule(member_of(self._rules.members(self._node), key), whole)
        return self._members[key]

    def tells(self, key: str) -> bool:
        """Return whether the value of a member tells which branches hold."""
        return key in self._telling

    @cached_property
    def _telling(self) -> frozenset[str]:
        return frozenset(self._rules.choices(self._node)) if self._rules.bears(self._node) else ANY_KEY

    def narrowed(self, key: str, value: Value) -> ValueRule | None:
        """Return the rule of objects in which a member that tells has a value."""
        known = self._narrowed.get((key, value))
        if known is None:
            known = self._narrowed[key, value] = (
                self._rules.rule(self._rules.narrowed(self._node, key, value), self._whole),
            )
        return known[0]

    def is_declared(self, key: str) -> bool:
        """Return whether a key certainly comes at most once: all branches declare it."""
        if self._declared is None:
            self._declared = ANY_KEY if self._whole is None else _declared(restrict(self._whole, OBJECT))
        return key in self._declared


ANY_KEY: frozenset[str] = frozenset()
Part = TypeVar("Part", bound=Node)


def _item(node: Items, index: int) -> Node:
    return node.prefix[index] if index < len(node.prefix) else node.rest


def _inside(node: Node, kind: type[Part], of: Callable[[Part], Node]) -> Node:
    """Return a node that has the values of an item or a member, given that of an atom."""
    if isinstance(node, kind):
        return of(node)
    if type(node) is Reference:
        return _inside(force(node), kind, of)
    if type(node) is AllOf:
        return all_of([_inside(part, kind, of) for part in node.args])
    if type(node) is AnyOf:
        return any_of([_inside(part, kind, of) for part in node.args if not is_never(part)])
    return ANY


def _declared(node: Node) -> frozenset[str]:
    """Return the keys that all branches of a formula declare."""
    if isinstance(node, Members):
        return frozenset([key for key, _ in node.properties])
    if type(node) is AllOf:
        return frozenset().union(*map(_declared, node.args))
    if type(node) is AnyOf:
        first, *others = [_declared(part) for part in node.args if not is_never(part)]
        return first.intersection(*others)
    return ANY_KEY


def _required(node: Node) -> frozenset[str]:
    """Return the keys that a formula of objects plainly requires."""
    if isinstance(node, Required):
        return frozenset(node.keys)
    if type(node) is AllOf:
        return frozenset().union(*map(_required, node.args))
    if type(node) is AnyOf:
        first, *others = [_required(part) for part in node.args if not is_never(part)]
        return first.intersection(*others)
    return ANY_KEY


def bearing(root: Node, is_meant: Callable[[Node], bool]) -> dict[Node, bool]:
    """Return for each part of a formula, those of members and items too, whether a node that is meant is in it."""
    above: dict[Node, list[Node]] = {}
    todo, seen, begins = [root], {root}, []
    while todo:
        node = todo.pop()
        if is_meant(node):
            begins.append(node)
        for part in parts_of(node):
            above.setdefault(part, []).append(node)
            if part not in seen:
                seen.add(part)
                todo.append(part)
    found = dict.fromkeys(seen, False)
    while begins:
        node = begins.pop()
        if not found[node]:
            found[node] = True
            begins += above.get(node, ())
    return found


def parts_of(node: Node) -> Iterator[Node]:
    """Yield the nodes that a node is made of, those of members and items too."""
    if type(node) is Reference:
        yield force(node)
    elif type(node) in (AllOf, AnyOf, Not):
        yield from node.args
    elif isinstance(node, Items):
        yield from node.prefix
        yield node.rest
    elif isinstance(node, Members):
        for each in node.args[:2]:
            for _, value in each:
                yield value
        yield node.rest
    elif isinstance(node, (Contains, Names)):
        yield node.args[0]
