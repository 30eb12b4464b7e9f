"""The sets of characters that a schema tells apart inside strings and keys, and the alphabets for them.

An alphabet takes milliseconds to make. So each ASCII character is a class of its own in those of all schemas, and most
schemas share theirs. A schema groups the classes by what it tells apart.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.alphabet import Alphabet, Spelling, string_alphabet, utf8_alphabet
from ...automata.budget import Budget, Meter
from ...automata.deadline import look
from ...automata.dfa import Dfa
from ...automata.utf8 import LAST, Ranges
from ..json_schema import formats
from ..json_schema.algebra import (
    AllOf,
    AnyOf,
    Contains,
    Format,
    Items,
    Members,
    Names,
    Node,
    Not,
    Pattern,
    Reference,
    Required,
    Unique,
    Words,
)
from ..regex.lower import settled
from ..regex.parse import parse
from ..regex.tree_reader import sets_of
from .counted_members import MOST_COUNTED, is_counted
from .gated_nodes import SchemaNode

_DOING = "telling characters apart"
_ASCII: tuple[Ranges, ...] = tuple([((point, point),) for point in range(0x80)])


class Groups(NamedTuple):
    """The classes of an alphabet that a schema does not tell apart, together.

    points: a code point of each group, -1 for the end of a string. of_class: the group of each class. of_character: the
    group of each such code point. end: the group of the end.
    """

    points: list[int]
    of_class: NDArray[np.intp]
    of_character: dict[str, int]
    end: int

    def spread(self, of_group: list[int]) -> list[int]:
        """Return what is known of each group, for each class."""
        of_class: list[int] = np.array(of_group)[self.of_class].tolist()
        return of_class


def content_alphabets(sets: tuple[Ranges, ...], ascii: bool) -> list[tuple[Alphabet, Groups]]:
    """Return an alphabet for each `Spelling`, and its groups by what sets tell apart. ascii: see `string_alphabet`."""
    beyond = {tuple([(max(low, 0x80), high) for low, high in ranges if high >= 0x80]) for ranges in sets}
    shared = (*_ASCII, *sorted(beyond - {(), ((0x80, LAST),)}))
    out = [string_alphabet((), Spelling.ANY, ascii)]
    out += [string_alphabet(shared, each, ascii) for each in Spelling if each is not Spelling.ANY]
    none, groups = _grouped(out[0], ()), _grouped(out[1], sets)  # all but the first have the same classes
    return [(alphabet, groups if k else none) for k, alphabet in enumerate(out)]


def _grouped(alphabet: Alphabet, sets: tuple[Ranges, ...]) -> Groups:
    points = alphabet.representatives
    order = sorted(range(len(points)), key=points.__getitem__)
    ascending = [points[c] for c in order]
    inside = [0] * len(points)  # of each class, in which sets it is, as bits
    inside[alphabet.end] = -1
    for k, ranges in enumerate(sets):
        for low, high in ranges:
            for c in order[bisect_left(ascending, low) : bisect_right(ascending, high)]:
                inside[c] |= 1 << k
    number: dict[int, int] = {}
    of_class = [number.setdefault(which, len(number)) for which in inside]
    out = [-1] * len(number)
    for c in reversed(order):
        group = of_class[c]
        if not 0x20 <= out[group] < 0x7F or 0x20 <= points[c] < 0x7F:
            out[group] = points[c]
    of_character = {chr(point): group for group, point in enumerate(out) if point >= 0}
    return Groups(out, np.array(of_class, np.intp), of_character, out.index(-1))


def content_sets(schema: SchemaNode, meter: Meter) -> tuple[Ranges, ...]:
    """Return the sets of characters that atoms about strings tell apart, and each character of words and keys alone."""
    characters: dict[str, None] = {}
    found: dict[Ranges, None] = {}
    counts = False
    for node in nodes_in(schema):
        shape = type(node)
        counts = counts or is_counted(node)
        if shape is Words or shape is Required:
            for word in node.args[0]:
                characters.update(dict.fromkeys(word))
        elif isinstance(node, Members):
            for key, _ in node.properties:
                characters.update(dict.fromkeys(key))
            for source, _ in node.patterns:
                found.update(dict.fromkeys(_of_pattern(source)))
        elif shape is Pattern:
            found.update(dict.fromkeys(_of_pattern(node.args[0])))
        elif shape is Format:
            name = node.args[0]
            found.update(dict.fromkeys(_of_format(name)))
    if counts:  # the keys of a class that are counted have no characters that more others could stand for
        characters.update(dict.fromkeys(_of_few(tuple(found))))
    found.update(dict.fromkeys([((ord(c), ord(c)),) for c in characters]))
    return tuple(found)


def _of_few(sets: tuple[Ranges, ...]) -> str:
    """Return the characters that sets tell apart from all but a few."""
    alphabet = utf8_alphabet(sets)
    starts, number = alphabet.starts.tolist(), alphabet.class_of_range.tolist()
    ranges = list(zip(starts, [*starts[1:], LAST + 1], number, strict=True))
    size = [0] * alphabet.classes
    for first, stop, c in ranges:
        if c >= 0:
            size[c] += stop - first
    few = [range(first, stop) for first, stop, c in ranges if c >= 0 and size[c] <= MOST_COUNTED]
    return "".join([chr(point) for points in few for point in points])


def nodes_in(schema: SchemaNode) -> Iterator[Node]:
    """Yield every node of a schema once, also those of members, items, and what references lead to.

    So the errors of all parts are raised, also of those that no value comes to.
    """
    todo, seen = [schema.node], {schema.node}
    while todo:
        node = todo.pop()
        look(_DOING)
        yield node
        for below in _below(node, schema):
            if below not in seen:
                seen.add(below)
                todo.append(below)


def _below(node: Node, schema: SchemaNode) -> Iterable[Node]:
    shape = type(node)
    if shape is AllOf or shape is AnyOf or shape is Not:
        return node.args
    if isinstance(node, Reference):
        branches = schema.gates.get(node)
        return (node.node,) if branches is None else branches
    if isinstance(node, Members):
        nodes = [each for _, each in (*node.properties, *node.patterns)]
        return [*nodes, node.rest]
    if isinstance(node, Items):
        return [*node.prefix, node.rest]
    if shape is Contains or shape is Names:
        return (node.args[0],)
    return node.args[0] if shape is Unique else ()


@lru_cache(maxsize=64)
def _of_format(name: str) -> tuple[Ranges, ...]:
    meter = Budget(seconds=math.inf).begin()
    return (*sets_of_dfa(formats.language(name, meter)), *sets_of_dfa(formats.superset(name, meter)))


def _of_pattern(source: str) -> tuple[Ranges, ...]:
    return sets_of(settled(parse(source, "", "ecma")))


def sets_of_dfa(dfa: Dfa) -> tuple[Ranges, ...]:
    """Return sets of characters such that those in the same sets lead from each state of a DFA to the same one."""
    dead = len(dfa.transition)
    columns = np.append(dfa.transition, np.full((1, dfa.transition.shape[1]), -1, np.int32), axis=0)
    columns = np.where(columns < 0, dead, columns).T.copy()  # (C, N + 1)
    maps = [np.arange(dead + 1, dtype=np.int32), np.full(dead + 1, dead, np.int32)]  # what bytes do to states
    number = {maps[0].tobytes(): 0, maps[1].tobytes(): 1}

    def behind(state_map: int, byte: int) -> int:
        to = columns[dfa.class_of[byte]][maps[state_map]]
        key = to.tobytes()
        found = number.get(key)
        if found is None:
            found = number[key] = len(maps)
            maps.append(to)
        return found

    known: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def runs(state_map: int, left: int) -> list[tuple[int, int, int]]:
        """Return (first, stop, what a character does) for runs of characters, counted from the first of a block."""
        size = 1 << 6 * left
        if state_map == 1 or not left:
            return [(0, size, state_map)]
        found = known.get((state_map, left))
        if found is None:
            found = known[state_map, left] = []
            step = size >> 6
            for k in range(64):
                _append(found, runs(behind(state_map, 0x80 + k), left - 1), k * step)
        return found

    every: list[tuple[int, int, int]] = []
    for byte in range(0x80):
        _append(every, [(0, 1, behind(0, byte))], byte)
    for lead in range(0xC2, 0xF5):
        left = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        first = (lead & (0x1F, 0x0F, 0x07)[left - 1]) << 6 * left
        part = runs(behind(0, lead), left)
        low = (0x80, 0x800, 0x10000)[left - 1]
        part = [(max(a, low - first), min(b, 0x110000 - first), m) for a, b, m in part if b > low - first]
        _append(every, [run for run in part if run[0] < run[1]], first)
    by_map: dict[int, list[tuple[int, int]]] = {}
    for first, stop, state_map in every:
        by_map.setdefault(state_map, []).append((first, stop - 1))
    by_map.pop(1, None)
    return tuple([tuple(ranges) for ranges in by_map.values()])


def _append(runs: list[tuple[int, int, int]], more: Iterable[tuple[int, int, int]], at: int) -> None:
    """Append runs that begin at a place, joined to the last one where that is of the same kind."""
    for first, stop, kind in more:
        if runs and runs[-1][2] == kind and runs[-1][1] == at + first:
            runs[-1] = runs[-1][0], at + stop, kind
        else:
            runs.append((at + first, at + stop, kind))
