"""Which arrays of a value must have distinct items: read off a schema's formula, for a memory beside a lazy machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple, TypeVar

from ...automata.budget import Budget
from ...lazy.unique.values import Value, number_value
from ...lazy.unique.written import EMPTY, Written
from .algebra import (
    ANY,
    ARRAY,
    EVERYTHING,
    FALSE,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    AllOf,
    AnyOf,
    Contains,
    Integer,
    ItemCount,
    Items,
    Length,
    Members,
    Names,
    Node,
    Not,
    OneOfValues,
    Pattern,
    Range,
    Reference,
    Required,
    Types,
    Unenforceable,
    Words,
    all_of,
    any_of,
    force,
    is_never,
    restrict,
)
from .literals import values_of
from .string_languages import holds, language

_MOST_LISTED = 200  # values of an item that are told apart
_MOST_KEPT = 1000  # rules of items and members of one value
_DEEPEST = 8  # members and items that are looked into for many values


class DependsError(Exception):
    """Whether items must be distinct depends on something else; the message says on what."""


class UniqueRules:
    """The rules of the values of a schema, each made when a text comes to it: see `lazy.unique.memory.Rule`.

    A schema is read so if one thing decides which arrays have distinct items: where they stand. An array in a branch of
    `anyOf` does only if all branches that allow an array there ask for the same, or if a member tells the branches
    apart, such as `"kind": {"const": "a"}`. Until that member comes, items are distinct if any branch asks for it.
    """

    def __init__(self, root: Node) -> None:
        self._bears = bearing(root, _is_unique)
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
            found = self._bears[node] = _is_unique(node) or any(map(self.bears, parts_of(node)))
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
        if _is_unique(node):
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
            found = self._listed[node] = _listed(restrict(node, ARRAY))
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
            values = _values(_inside(part, Members, lambda one, key=key: member_of((one,), key)))  # type: ignore[misc]
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


def member_of(members: Iterable[Members], key: str | None) -> Node:
    """Return the node of a member by its key; None for a key that nothing names or matches."""
    found: list[Node] = []
    for each in members:
        own = [value for name, value in each.properties if name == key]
        if key is not None:
            own += [value for source, value in each.patterns if holds(Pattern(source), key)]
        found += own or [each.rest]
    return all_of(found)


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


def _is_unique(node: Node) -> bool:
    return type(node) is Unenforceable and node.args[1] == "uniqueItems"


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


# ------------------------------------------------------------------------------------------------------ enough values


Listed = tuple[frozenset[Value] | None, ...]
_LITERALS: dict[Node, bool | None] = {Types(NULL): None, Types(FALSE): False, Types(TRUE): True}


class Demands(NamedTuple):
    """What an array needs."""

    low: int = 0  # items
    items: tuple[tuple[Node, ...], ...] = ((ANY,),)  # for each branch, those of the first ones and of all further ones
    contains: tuple[Contains, ...] = ()
    is_clear: bool = True  # whether nothing else is asked of items


def _listed(node: Node) -> Listed:
    """Return the values of each item that an array needs, None for many; () if none is told to have few.

    An array can always go on to as many distinct items as it needs if each has more values than there are items
    before. An item that must be there as `contains` asks for it is not there yet. Raises DependsError where this is
    not known.
    """
    demands = _demands(node)
    if any(each.high is not None for each in demands.contains):
        raise DependsError("contains counts its items")
    for each in demands.contains:
        if each.low > 1:
            items = demands.items[0]
            if len(demands.items) > 1 or len(items) > 1 or not _has_values(all_of([each.node, *items]), each.low, 0):
                raise DependsError(f"contains asks for {each.low} items that may have fewer values")
    found: list[frozenset[Value] | None] = []
    for items in demands.items:
        for i in range(demands.low):
            item = items[min(i, len(items) - 1)]
            least = demands.low if i >= len(items) - 1 else i + 1
            if least == 1 or (demands.is_clear and _has_values(item, least, 0)):
                found.append(None)
                continue
            values = _values(item) if demands.is_clear and len(demands.items) == 1 and not demands.contains else None
            if values is None:
                raise DependsError(f"its items may have fewer than {least} values")
            found.append(values)
            if least == demands.low and len(values) < least and i >= len(items) - 1:
                raise DependsError(f"its items have fewer than {least} values")
    if not any(found):
        return ()
    listed = tuple([_values(items[min(i, len(items) - 1)]) for i in range(demands.low)])
    if not can_differ(listed, EMPTY):
        raise DependsError("its items have too few values to be distinct")
    return listed


def _values(node: Node) -> frozenset[Value] | None:
    """Return the values of a node that plainly lists scalars, else None."""
    node = force(node)
    if not _lists_exactly(node):
        return None
    found: set[Value] = set()
    for one in values_of(node, _MOST_LISTED) or (ANY,):
        atoms = [part for part in (one.args if type(one) is AllOf else (one,)) if type(part) is not Types]
        if not atoms and one in _LITERALS:
            found.add(_LITERALS[one])
        elif len(atoms) == 1 and isinstance(atoms[0], Words):
            found.update(word.encode() for word in atoms[0].words)
        elif len(atoms) == 1 and isinstance(atoms[0], OneOfValues):
            found.update(number_value(str(value).encode()) for value in atoms[0].values)
        else:
            return None
    return frozenset(found)


def _lists_exactly(node: Node) -> bool:
    """Return whether `values_of` has no values that are not in a node."""
    if type(node) is AnyOf:
        return all(map(_lists_exactly, node.args))
    atoms = [part for part in (node.args if type(node) is AllOf else (node,)) if type(part) is not Types]
    words = [atom for atom in atoms if atom.kind == STRING]
    numbers = [atom for atom in atoms if atom.kind == NUMBER]
    if len(words) + len(numbers) < len(atoms) or not all(isinstance(atom, Words) for atom in words) or len(words) > 1:
        return False
    if any(isinstance(atom, OneOfValues) for atom in numbers):
        return len(numbers) == 1
    return all(
        isinstance(atom, Integer) or (isinstance(atom, Range) and not atom.low_open and not atom.high_open)
        for atom in numbers
    )


def can_differ(listed: Listed, written: Written) -> bool:
    """Return whether the items that are still needed can be distinct, each one of its listed values: a matching."""
    at: dict[Value, int] = {}  # the item that has a value

    def given(item: int, seen: set[Value]) -> bool:
        for value in listed[item] or ():
            if value not in seen and value not in written:
                seen.add(value)
                if value not in at or given(at[value], seen):
                    at[value] = item
                    return True
        return False

    return all(listed[item] is None or given(item, set()) for item in range(written.size, len(listed)))


def listed_later(listed: Listed, written: Written) -> Written:
    """Return what is written, and the values without which the items after the next one cannot be distinct."""
    values = {value: None for each in listed[written.size + 1 :] for value in sorted(each or (), key=repr)}
    found = written
    for value in values:
        if value not in written and not can_differ(listed, written.plus(value)):
            found = found.plus(value)
    return found


def _demands(node: Node) -> Demands:
    if isinstance(node, ItemCount):
        return Demands(node.low)
    if isinstance(node, Items):
        return Demands(items=((*node.prefix, node.rest),))
    if isinstance(node, Contains):
        return Demands(contains=(node,))
    if type(node) is Reference:
        return _demands(restrict(force(node), ARRAY))
    if isinstance(node, Not):
        high = node.part.args[1] if type(node.part) is ItemCount else None
        return Demands(0 if high is None else high + 1, is_clear=type(node.part) is ItemCount)
    if type(node) not in (AllOf, AnyOf):
        return Demands(is_clear=type(node) in (Types, Unenforceable))
    parts = [_demands(part) for part in node.args]
    branches = tuple([items for part in parts for items in part.items])
    if type(node) is AllOf:
        branches = ((ANY,),)
        for part in parts:
            if len(branches) * len(part.items) > _MOST_KEPT:
                return Demands(max(part.low for part in parts), is_clear=False)
            branches = tuple([_both(one, other) for one in branches for other in part.items])
    low = max(part.low for part in parts)
    contained = tuple([each for part in parts for each in part.contains])
    return Demands(low, branches, contained, all(part.is_clear for part in parts))


def _both(one: tuple[Node, ...], other: tuple[Node, ...]) -> tuple[Node, ...]:
    longest = max(len(one), len(other))
    pairs = [(one[min(i, len(one) - 1)], other[min(i, len(other) - 1)]) for i in range(longest)]
    return tuple([all_of(pair) for pair in pairs])


def _has_values(node: Node, least: int, depth: int) -> bool:
    """Return whether a node plainly has so many values."""
    if type(node) is Reference:
        return depth < _DEEPEST and _has_values(force(node), least, depth + 1)
    if type(node) is AnyOf:
        return any(_has_values(part, least, depth) for part in node.args)
    kinds = EVERYTHING
    atoms: list[Node] = []
    for part in node.args if type(node) is AllOf else (node,):
        if type(part) is Types:
            kinds &= part.mask
        elif not _is_unique(part):
            atoms.append(part)
    about = [[atom for atom in atoms if not atom.kind or atom.kind == kind] for kind in (STRING, NUMBER, ARRAY, OBJECT)]
    strings, numbers, arrays, objects = about
    if kinds & STRING and all(type(atom) in (Length, Words, Pattern) for atom in strings):
        found = language(all_of(strings), Budget().begin()) if strings else None
        if found is None or not found.is_finite or (found.cardinality() or 0) >= least:
            return True
    if kinds & NUMBER and _has_numbers(numbers, least):
        return True
    if kinds & ARRAY and not arrays:
        return True
    if kinds & OBJECT and all(type(atom) in (Members, Required) for atom in objects):
        members = [atom for atom in objects if isinstance(atom, Members)]
        keys = [*{key: None for each in members for key, _ in each.properties}, None]
        return not members or (
            depth < _DEEPEST and any(_has_values(member_of(members, key), least, depth + 1) for key in keys)
        )
    return False


def _has_numbers(atoms: list[Node], least: int) -> bool:
    """Return whether atoms plainly leave so many numbers."""
    if all(type(atom) is Integer for atom in atoms):
        return True
    ranges = [atom for atom in atoms if isinstance(atom, Range)]
    if len(atoms) != len(ranges) + sum(type(atom) is Integer for atom in atoms):
        values = [atom.values for atom in atoms if isinstance(atom, OneOfValues)]
        return len(atoms) == 1 and len(values) == 1 and len(values[0]) >= least
    low, high = [each.low for each in ranges if each.low is not None], [e.high for e in ranges if e.high is not None]
    return not low or not high or min(high) - max(low) > least
