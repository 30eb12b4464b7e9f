"""Places in the text around JSON values, for a memory that stands beside a lazy machine: which value comes where.

A place is a state of the automaton over bytes and values, or one within a number or a bare text. Numbers are read here,
since what follows says where they end. Behind a value that decides what may follow, a place is several of these, until
the text tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.dfa import BYTES, Dfa
from ...automata.labelled import Labelled
from ...lazy.unique.memory import Rule
from ..json_schema.enough_values import DependsError
from ..json_schema.skeleton import Value
from .bare_texts import Bare
from .value_machine import Symbols, ValuePlace, bytes_to_ends, values_at

_NUMBER = frozenset(b"-0123456789")
_MOST_TRIED = 1000  # places of several states that are looked through


class Point(NamedTuple):
    """A state of the automaton, or one within a number or a bare text that stands there."""

    state: int
    value: ValuePlace | None = None
    inside: int = 0


class TextPlaces:
    """The places of a text, each made when a text comes to it.

    Raises DependsError if values do not tell what must be remembered of the values behind them.
    """

    def __init__(self, dfa: Dfa, symbols: Symbols) -> None:
        self.dfa, self.values, self.rules = dfa, symbols.values, symbols.rules
        self.at: dict[int, list[ValuePlace]] = {}
        for place in values_at(dfa, symbols):
            self.at.setdefault(place.before, []).append(place)
        self._distances = self._find_distances()
        self._known: dict[frozenset[Point], TextPlace] = {}
        self._ends: dict[int, list[list[int]]] = {}
        self._check()

    def place(self, points: Iterable[Point]) -> TextPlace:
        """Return the place that is one of some points."""
        key = frozenset(points)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = TextPlace(self, key)
        return found

    def start(self) -> TextPlace:
        """Return the place before a text."""
        return self.place([Point(0)])

    def step(self, point: Point, byte: int) -> tuple[list[Point], list[ValuePlace]]:
        """Return where a byte leads from a point, and the JSON values that begin with it."""
        state, value, inside = point
        if value is not None:
            return self._step_within(value, inside, byte)
        to = int(self.dfa.transition[state, self.dfa.class_of[byte]])
        points, values = [Point(to)] if to >= 0 else [], []
        for each in self.at.get(state, ()):
            content = self.values[each.value]
            if isinstance(content, Bare) or (byte in _NUMBER and content.number is not None):
                more, _ = self._step_within(each, 0, byte)
                points += more
            elif isinstance(content, Value) and _begins(content, byte):
                values.append(each)
        return points, values

    def _step_within(self, value: ValuePlace, inside: int, byte: int) -> tuple[list[Point], list[ValuePlace]]:
        """Return where a byte leads from a state within a number or a bare text."""
        content = self.values[value.value]
        if isinstance(content, Bare):
            to = _step(content.content, inside, byte)
            label = int(content.content.label[to]) if to >= 0 else -1
            after = Point(value.before, value, to) if label < 0 else Point(value.after[label])
            return [after] if to >= 0 and after.state >= 0 else [], []
        assert content.number is not None
        to = _step(content.number, inside, byte)
        if to >= 0:
            return [Point(value.before, value, to)], []
        if content.number.label[inside] < 0:
            return [], []
        return self.step(Point(value.after[int(content.number.label[inside])]), byte)

    def distance(self, point: Point) -> int | None:
        """Return the fewest bytes from a point to a value that has a rule; None if no more comes."""
        state, value, inside = point
        after = (state,) if value is None else value.after
        is_bare = value is not None and isinstance(self.values[value.value], Bare)
        sizes = self._bytes_to_ends(value.value)[inside] if value is not None and is_bare else [0] * len(after)
        ways = [(size, int(self._distances[to])) for size, to in zip(sizes, after, strict=True) if to >= 0]
        return min([size + more for size, more in ways if more >= 0], default=None)

    def _bytes_to_ends(self, value: int) -> list[list[int]]:
        """Return the fewest bytes from each state of a bare text to an end of each label."""
        if value not in self._ends:
            content = self.values[value]
            assert isinstance(content, Bare)
            self._ends[value] = bytes_to_ends(content.content)
        return self._ends[value]

    def _find_distances(self) -> NDArray[np.int64]:
        """Return the fewest bytes from each state to a value that has a rule, -1 where none comes."""
        before: dict[int, set[int]] = {}
        for state, low, _, to in self.dfa.edges.tolist():
            if low < BYTES:
                before.setdefault(to, set()).add(state)
        for state, places in self.at.items():
            for place in places:
                for to in place.after:
                    before.setdefault(to, set()).add(state)  # a value has a byte at least
        found = np.full(self.dfa.num_states, -1, np.int64)
        todo = {state for state, places in self.at.items() if any(self.rules[each.value] for each in places)}
        distance = 0
        while todo:
            found[list(todo)] = distance
            distance += 1
            todo = {state for to in todo for state in before.get(to, ()) if found[state] < 0}
        return found

    def _check(self) -> None:
        """Raise DependsError unless the rule of each value follows from the text before it."""
        todo = [
            place for places in self.at.values() for each in places
            if isinstance(self.values[each.value], Value) and len((place := self.behind([each])).points) > 1
        ]  # fmt: skip
        seen = set(todo)
        while todo:
            place = todo.pop()
            for byte in range(256) if place.distance is not None else ():
                following = place.way(byte)
                if following is not None and len(following[0].points) > 1 and following[0] not in seen:
                    seen.add(following[0])
                    todo.append(following[0])
            if len(seen) > _MOST_TRIED:
                raise DependsError("what may follow depends on too many values")

    def behind(self, values: Iterable[ValuePlace]) -> TextPlace:
        """Return the place behind one of some values."""
        return self.place([Point(to) for each in values for to in each.after if to >= 0])


class TextPlace:
    """A place: see `lazy.unique.memory.Around`."""

    __slots__ = ("_places", "_ways", "distance", "points")

    def __init__(self, places: TextPlaces, points: frozenset[Point]) -> None:
        self._places, self.points = places, points
        self._ways: dict[int, tuple[TextPlace, bool, Rule | None] | None] = {}
        distances = [found for point in points if (found := places.distance(point)) is not None]
        self.distance = min(distances, default=None)

    def read(self, text: bytes, at: int) -> tuple[TextPlace, int, Rule | None]:
        """Return the place behind more bytes, the end of the text, and None.

        If a value begins within it: the place behind that value, where it begins, and its rule. A place behind which no
        more rules come stays as it is.
        """
        here, size = self, len(text)
        while at < size and here.distance is not None:
            way = here.way(text[at])
            assert way is not None, "the machine reads no such text"
            here, is_value, rule = way
            if is_value:
                return here, at, rule
            at += 1
        return here, size, None

    def way(self, byte: int) -> tuple[TextPlace, bool, Rule | None] | None:
        """Return the place that a byte leads to, or that behind the value that begins with it, and whether it does.

        Raises DependsError if that is not known, but for no place that `TextPlaces` has looked through.
        """
        if byte not in self._ways:
            self._ways[byte] = self._find_way(byte)
        return self._ways[byte]

    def _find_way(self, byte: int) -> tuple[TextPlace, bool, Rule | None] | None:
        places = self._places
        found = [places.step(point, byte) for point in self.points]
        points = [point for some, _ in found for point in some]
        values = [value for _, some in found for value in some]
        if not values:
            return (places.place(points), False, None) if points else None
        rules = {places.rules[each.value] for each in values}
        if points or len(rules) > 1:
            raise DependsError("what is remembered of the values behind it depends on that value")
        return places.behind(values), True, rules.pop()


def _step(content: Labelled, state: int, byte: int) -> int:
    return int(content.transition[state, content.class_of[byte]])


def _begins(value: Value, byte: int) -> bool:
    """Return whether a value, other than a number, may begin with a byte."""
    if byte == 34:
        return value.string is not None
    if byte in b"[{":
        return (value.array if byte == 91 else value.object) is not None
    return any(ord(word[0]) == byte for word in value.literals)
