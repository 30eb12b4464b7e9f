"""Which arrays of a value must have distinct items: read off a schema's formula, for a memory beside a lazy machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

from ...automata.budget import Meter
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
    Pattern,
    Reference,
    Required,
    all_of,
    any_of,
    force,
    is_never,
    restrict,
)
from .enough_values import DependsError, Listed, is_unique, listed_items, listed_later, member_of, scalars_of
from .key_classes import partition

_MOST_KEPT = 1000  # rules of items and members of one value
_MOST_NARROWED = 500  # formulas in which members have told some branches


class UniqueRules:
    """The rules of the values of a schema, each made when a text comes to it: see `lazy.unique.memory.Rule`.

    A schema is read so if one thing decides which arrays have distinct items: where they stand. An array in a branch of
    `anyOf` does only if all branches that allow an array there ask for the same, or if a member that comes earlier
    tells the branches apart, such as `"kind": {"const": "a"}`.

    any_order: whether members may come in any order, so that none comes earlier for certain.
    """

    def __init__(self, root: Node, any_order: bool = False) -> None:
        self._bears = bearing(root, is_unique)
        self._any_order = any_order
        self._rules: dict[tuple[Node, Node, bool], ValueRule] = {}
        self._arrays: dict[Node, ArrayParts] = {}
        self._listed: dict[Node, Listed] = {}
        self._objects: dict[Node, tuple[Members, ...]] = {}
        self._choices: dict[Node, Choice | None] = {}
        self._all_choices: dict[Node, list[tuple[Choice, Node]]] = {}
        self._told: set[Node] = set()  # formulas in which members have told some branches
        self._open: dict[Node, bool] = {}  # unions that are being decided, and whether they have branches that differ
        self.root = root

    def rule(self, node: Node, whole: Node, recorded: bool = False) -> ValueRule | None:
        """Return the rule of a node's values.

        whole: all that is said of these values, of which the node is the part that tells where items are distinct.
        recorded: whether they are part of an item that is to be distinct.
        """
        if not recorded and not self.bears(node):
            return None
        key = node, whole, recorded
        found = self._rules.get(key)
        if found is None:
            found = self._rules[key] = ValueRule(self, *key)
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
            self._choice(node)  # otherwise branches say the same of a key, but for those that come behind what tells
            return self._members(next(part for part in node.args if not is_never(part)))
        raise DependsError("it stands under not or if, or in a branch of oneOf that is told apart by it")

    # ------------------------------------------------------------------------------------- members that tell branches

    def choices(self, node: Node) -> list[tuple[Choice, Node]]:
        """Return the choices that a node of objects has, with the formula of each. Raises DependsError."""
        if node not in self._all_choices:
            self._all_choices[node] = self._find_choices(restrict(force(node), OBJECT))
        return self._all_choices[node]

    def _find_choices(self, node: Node) -> list[tuple[Choice, Node]]:
        parts: tuple[Node, ...] = node.args if type(node) is AllOf else (node,)
        found: list[tuple[Choice, Node]] = []
        for part in parts:
            choice = self._choice(part) if type(part) is AnyOf else None
            if choice is not None:
                found.append((choice, part))
        for choice, own in found:
            for part in parts:
                if part is not own:
                    choice.check_order(part)
        return found

    def _replaced(self, node: Node, by: Callable[[Choice], Node]) -> Node:
        """Return a node of objects with others in place of its choices."""
        node = restrict(force(node), OBJECT)
        found = {part: by(choice) for choice, part in self.choices(node)}
        return all_of([found.get(part, part) for part in node.args]) if type(node) is AllOf else found.get(node, node)

    def narrowed(self, node: Node, key: str, value: Value) -> Node:
        """Return what a node says of objects in which the member of a key has a value."""
        return self._replaced(node, lambda choice: choice.branch(value) if choice.key == key else choice.node)

    def without(self, node: Node, key: str) -> Node:
        """Return what a node says of objects in which a key comes before the members that tell."""
        return self._replaced(node, lambda choice: choice.without(key) if key in choice.later else choice.node)

    def _choice(self, node: Node) -> Choice | None:
        """Return how the branches of a union are told apart if they differ. Raises DependsError if they are not.

        Within itself a union is taken to have no such branches. If it has, what holds it differs.
        """
        if node in self._open:
            if self._open[node]:
                raise DependsError("it stands in a union that leads back to itself")
            return None
        if node in self._choices:
            return self._choices[node]
        parts = [part for part in node.args if not is_never(part)]
        caches: tuple[dict[Node, Any], ...] = (self._choices, self._all_choices, self._arrays, self._objects)
        sizes = [len(cache) for cache in caches]
        self._open[node] = False
        try:
            for part in parts:
                self._check_same(parts[0], part, set())
            choice = None
        except DependsError:
            for cache, size in zip(caches, sizes, strict=True):  # what followed from the union having none
                while len(cache) > size:
                    cache.popitem()
            self._open[node] = True
            choice = None if self._any_order else self._choice_of(node, parts)
            if choice is None:
                raise
        finally:
            del self._open[node]
        self._choices[node] = choice
        return choice

    def _choice_of(self, node: Node, parts: list[Node]) -> Choice | None:
        """Return how a member that all branches require, and that comes first, tells them apart; None if none does."""
        members = [self._members(part) for part in parts]
        later = dict.fromkeys([choice.key for part in parts for choice, _ in self.choices(part)])
        keys = {key: None for part in parts for each in _atoms(part) for key, _ in each.properties}
        for some in members:
            self._check_same_patterns(members[0], some, set())
            for key in keys:
                try:
                    self._check_same(member_of(members[0], key), member_of(some, key), set())
                except DependsError:
                    later[key] = None
        first, *others = [_declared(part) & _required(part) for part in parts]
        for key in sorted(first.intersection(*others) - later.keys()):
            values = [scalars_of(_inside(part, Members, partial(_member, key=key))) for part in parts]
            branches = tuple([(some, part) for some, part in zip(values, parts, strict=True) if some is not None])
            choice = Choice(node, key, branches, frozenset(later))
            tells = all(sum(value in some for some, _ in branches) < len(parts) for value in choice.values)
            if len(branches) == len(parts) and tells and all(map(choice.has_order, parts)):
                return choice
        return None

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
        self._check_same_patterns(one, other, seen)
        for key in {key: None for members in (one, other) for each in members for key, _ in each.properties}:
            self._check_same(member_of(one, key), member_of(other, key), seen)

    def _check_same_patterns(
        self, one: tuple[Members, ...], other: tuple[Members, ...], seen: set[tuple[Node, Node]]
    ) -> None:
        """Raise DependsError unless two nodes ask for distinct items in the same members that they do not declare."""
        patterns = [sorted(source for each in members for source, _ in each.patterns) for members in (one, other)]
        if patterns[0] != patterns[1] or (patterns[0] and len(one) + len(other) > 2):
            raise DependsError("it stands in some branches that allow the member, not in all")
        for i in range(len(patterns[0])):
            self._check_same(one[0].patterns[i][1], other[0].patterns[i][1], seen)
        self._check_same(member_of(one, None), member_of(other, None), seen)

    # ------------------------------------------------------------------------------------------------------- check

    def check(self, meter: Meter) -> None:
        """Raise DependsError unless each array is told to have distinct items, or not, by where it stands."""
        todo = [(self.root, self.root)]
        seen = set(todo)
        while todo:
            node, whole = todo.pop()
            meter.check(doing="telling which items are distinct")
            for pair in self._checked(node, whole, meter):
                if pair not in seen and self.bears(pair[0]):
                    seen.add(pair)
                    todo.append(pair)

    def _checked(self, node: Node, whole: Node, meter: Meter) -> list[tuple[Node, Node]]:
        """Return what a node says of items and members, in which there may be more to check. Raises DependsError."""
        array, members = self.array(node), self.members(node)
        if array.is_unique:
            self.listed(whole)
        found = [(array.item(i), item_of(whole, i)) for i in range(max(len(array.prefix), longest(whole)) + 1)]
        choices = self.choices(node)
        later = frozenset().union(*[choice.later for choice, _ in choices])
        for choice, _ in choices:
            narrowed = [self.narrowed(node, choice.key, value) for value in choice.values]
            narrowed += [self.without(node, key) for key in choice.later]
            found += [(each, whole) for each in narrowed]
            self._told.update(narrowed)
        if len(self._told) > _MOST_NARROWED:
            raise DependsError("members tell too many branches apart")
        atoms = _atoms(restrict(force(whole), OBJECT))
        keys = tuple({key: None for each in (*members, *atoms) for key, _ in each.properties})
        found += [(member_of(members, key), value_of(whole, key)) for key in keys if key not in later]
        if not members:
            return found
        sources = tuple({source: None for each in (*members, *atoms) for source, _ in each.patterns})
        classes = partition(keys, [Pattern(source) for source in sources], meter)[1] if sources else [()]
        for inside in classes:
            matched = frozenset([source for source, there in zip(sources, inside, strict=True) if there])
            found.append((member_of(members, None, matched), value_of(whole, None, matched)))
        return found


class Choice(NamedTuple):
    """A union of objects whose branches are told apart by the values of a member.

    later: keys of members that come behind it, since what is said of them depends on the branch.
    """

    node: Node
    key: str
    branches: tuple[tuple[frozenset[Value], Node], ...]
    later: frozenset[str]

    @property
    def values(self) -> frozenset[Value]:
        """The values of that member."""
        return frozenset().union(*[values for values, _ in self.branches])

    def branch(self, value: Value) -> Node:
        """Return the branches that a value leaves."""
        return any_of([node for values, node in self.branches if value in values])

    def without(self, key: str) -> Node:
        """Return the branches that do not declare a key: where others hold, it comes behind what tells."""
        return any_of([node for _, node in self.branches if all(key not in names(each) for each in _atoms(node))])

    def has_order(self, node: Node) -> bool:
        """Return whether the member that tells comes first wherever a formula declares one of those that come later."""
        return all(
            self.key in keys[: keys.index(key)] for each in _atoms(node) for keys in (names(each),)
            for key in self.later if key in keys
        )  # fmt: skip

    def check_order(self, node: Node) -> None:
        """Raise DependsError unless it has this order."""
        if not self.has_order(node):
            raise DependsError(f"the member {self.key!r} tells whether it holds, and may come later")


def names(node: Members) -> list[str]:
    """Return the keys that are declared, in order."""
    return [key for key, _ in node.properties]


def _atoms(node: Node) -> list[Members]:
    """Return what a formula of objects says of members, in all its branches."""
    if isinstance(node, Members):
        return [node]
    if type(node) is Reference:
        return _atoms(restrict(force(node), OBJECT))
    return [each for part in node.args for each in _atoms(part)] if type(node) in (AllOf, AnyOf) else []


def item_of(node: Node, index: int) -> Node:
    """Return all that a node says of an item."""
    return _inside(restrict(force(node), ARRAY), Items, lambda one: _item(one, index))


def value_of(node: Node, key: str | None, matched: frozenset[str] = frozenset()) -> Node:
    """Return all that a node says of a member; see `member_of`."""
    return _inside(restrict(force(node), OBJECT), Members, partial(_member, key=key, matched=matched))


def _member(one: Members, key: str | None, matched: frozenset[str] = frozenset()) -> Node:
    return member_of((one,), key, matched)


def longest(node: Node) -> int:
    """Return after how many items a node says the same of all further ones."""
    node = restrict(force(node), ARRAY)
    if isinstance(node, Items):
        return len(node.prefix)
    return max(map(longest, node.args), default=0) if type(node) in (AllOf, AnyOf) else 0


class ArrayParts:
    """What of an array's items matters: whether they are to be distinct, and the nodes of items that bear such."""

    __slots__ = ("is_unique", "prefix", "rest")

    def __init__(self, is_unique: bool, prefix: tuple[Node, ...], rest: Node) -> None:
        self.is_unique, self.prefix, self.rest = is_unique, prefix, rest

    def item(self, index: int) -> Node:
        """Return the node of an item."""
        return self.prefix[index] if index < len(self.prefix) else self.rest


class ValueRule:
    """The rule of one node's values: see `lazy.unique.memory.Rule`, and `UniqueRules.rule`."""

    has_distinct_keys = False

    def __init__(self, rules: UniqueRules, node: Node, whole: Node, recorded: bool) -> None:
        self._rules, self._node, self._whole, self._recorded = rules, node, whole, recorded
        self._items: dict[int, ValueRule | None] = {}
        self._members: dict[str, ValueRule | None] = {}
        self._narrowed: dict[tuple[str, Value], ValueRule | None] = {}
        self._without: dict[str, ValueRule | None] = {}

    @property
    def is_unique(self) -> bool:
        """Whether the items must be distinct if the value is an array."""
        return self._rules.array(self._node).is_unique

    def among(self, written: Written) -> Written:
        """Return the values that the next item of an array must not have: what is written, and what must come later."""
        listed = self._rules.listed(self._whole)
        return written if written.size >= len(listed) else listed_later(listed, written)

    def item(self, index: int) -> ValueRule | None:
        """Return the rule of an item; None if nothing in it has to be remembered."""
        array = self._rules.array(self._node)
        index = min(index, max(len(array.prefix), self._longest))
        if index not in self._items:
            if len(self._items) > _MOST_KEPT:
                self._items.clear()
            recorded = self._recorded or array.is_unique
            self._items[index] = self._rules.rule(array.item(index), item_of(self._whole, index), recorded)
        return self._items[index]

    @cached_property
    def _longest(self) -> int:
        return longest(self._whole)

    def member(self, key: str) -> ValueRule | None:
        """Return the rule of a member; None if nothing in it has to be remembered."""
        if key not in self._members:
            if len(self._members) > _MOST_KEPT:
                self._members.clear()
            node = member_of(self._rules.members(self._node), key)
            self._members[key] = self._rules.rule(node, value_of(self._whole, key), self._recorded)
        return self._members[key]

    def tells(self, key: str) -> bool:
        """Return whether the value of a member tells which branches hold."""
        return any(choice.key == key for choice in self._choices)

    @cached_property
    def _choices(self) -> list[Choice]:
        found = self._rules.choices(self._node) if self._rules.bears(self._node) else []
        return [choice for choice, _ in found]

    def narrowed(self, key: str, value: Value) -> ValueRule | None:
        """Return the rule of objects in which a member that tells has a value."""
        if (key, value) not in self._narrowed:
            node = self._rules.narrowed(self._node, key, value)
            self._narrowed[key, value] = self._rules.rule(node, self._whole, self._recorded)
        return self._narrowed[key, value]

    def at_key(self, key: str) -> ValueRule | None:
        """Return the rule of objects in which a key comes before members that would tell what is said of it."""
        if not any(key in choice.later for choice in self._choices):
            return self
        if key not in self._without:
            node = self._rules.without(self._node, key)
            self._without[key] = self._rules.rule(node, self._whole, self._recorded)
        return self._without[key]

    def is_declared(self, key: str) -> bool:
        """Return whether a key certainly comes at most once: all branches declare it."""
        return key in self._declared

    @cached_property
    def _declared(self) -> frozenset[str]:
        return _declared(restrict(self._whole, OBJECT)) if self._recorded else ANY_KEY


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
