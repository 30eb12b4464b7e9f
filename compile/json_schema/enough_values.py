"""Whether an array can have as many distinct items as it needs, and which values its first ones leave to later ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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
    force,
    restrict,
)
from .literals import values_of
from .string_languages import holds, language

_MOST_LISTED = 200  # values of an item that are told apart
_MOST_BRANCHES = 1000  # of one array, put together
_DEEPEST = 8  # members and items that are looked into for many values


class DependsError(Exception):
    """Whether items must be distinct depends on something else; the message says on what."""


def is_unique(node: Node) -> bool:
    """Return whether a node is the keyword `uniqueItems`."""
    return type(node) is Unenforceable and node.args[1] == "uniqueItems"


def member_of(members: Iterable[Members], key: str | None, matched: frozenset[str] = frozenset()) -> Node:
    """Return the node of a member by its key; None for a key that nothing names, which some patterns match."""
    found: list[Node] = []
    for each in members:
        own = [value for name, value in each.properties if name == key]
        own += [
            value for source, value in each.patterns
            if (source in matched if key is None else holds(Pattern(source), key))
        ]  # fmt: skip
        found += own or [each.rest]
    return all_of(found)


Listed = tuple[frozenset[Value] | None, ...]
_LITERALS: dict[Node, bool | None] = {Types(NULL): None, Types(FALSE): False, Types(TRUE): True}


class Demands(NamedTuple):
    """What an array needs."""

    low: int = 0  # items
    items: tuple[tuple[Node, ...], ...] = ((ANY,),)  # for each branch, those of the first ones and of all further ones
    contains: tuple[Contains, ...] = ()
    is_clear: bool = True  # whether nothing else is asked of items


def listed_items(node: Node) -> Listed:
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
            values = scalars_of(item) if demands.is_clear and len(demands.items) == 1 and not demands.contains else None
            if values is None:
                raise DependsError(f"its items may have fewer than {least} values")
            found.append(values)
            if least == demands.low and len(values) < least and i >= len(items) - 1:
                raise DependsError(f"its items have fewer than {least} values")
    if not any(found):
        return ()
    listed = tuple([scalars_of(items[min(i, len(items) - 1)]) for i in range(demands.low)])
    if not can_differ(listed, EMPTY):
        raise DependsError("its items have too few values to be distinct")
    return listed


def scalars_of(node: Node) -> frozenset[Value] | None:
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
            if len(branches) * len(part.items) > _MOST_BRANCHES:
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
        elif not is_unique(part):
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
