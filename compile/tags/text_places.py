"""Places in the text around JSON values, for a memory that stands beside a lazy machine: which value comes where.

A place is a state of the automaton over bytes and values, or one within a number or a bare text. Numbers are read here,
since what follows says where they end.
"""

from __future__ import annotations

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


class TextPlaces:
    """The places of a text, each made when a text comes to it. Raises DependsError if values do not tell them apart."""

    def __init__(self, dfa: Dfa, symbols: Symbols) -> None:
        self.dfa, self.values, self.rules = dfa, symbols.values, symbols.rules
        self.at: dict[int, list[ValuePlace]] = {}
        for place in values_at(dfa, symbols):
            if isinstance(self.values[place.value], Value) and len({to for to in place.after if to >= 0}) > 1:
                raise DependsError("what may follow its value depends on that value")
            self.at.setdefault(place.before, []).append(place)
        self.distances = self._distances()
        self._known: dict[tuple[int, ValuePlace | None, int], TextPlace] = {}
        self._ends: dict[int, list[list[int]]] = {}

    def place(self, state: int, value: ValuePlace | None = None, inside: int = 0) -> TextPlace:
        """Return the place of a state of the automaton, or of a state within a value that comes there."""
        key = state, value, inside
        if key not in self._known:
            self._known[key] = TextPlace(self, *key)
        return self._known[key]

    def ends(self, value: int) -> list[list[int]]:
        """Return the fewest bytes from each state of a bare text to an end of each label."""
        if value not in self._ends:
            content = self.values[value]
            assert isinstance(content, Bare)
            self._ends[value] = bytes_to_ends(content.content)
        return self._ends[value]

    def _distances(self) -> NDArray[np.int64]:
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


class TextPlace:
    """A place: see `lazy.unique.memory.Around`."""

    __slots__ = ("_inside", "_places", "_state", "_value", "_ways", "distance")

    def __init__(self, places: TextPlaces, state: int, value: ValuePlace | None, inside: int) -> None:
        self._places, self._state, self._value, self._inside = places, state, value, inside
        self._ways: dict[int, tuple[TextPlace, bool, Rule | None]] = {}
        self.distance = self._distance()

    def _distance(self) -> int | None:
        """Return the fewest bytes before a value that has a rule; None if no more comes."""
        places, value = self._places, self._value
        after = (self._state,) if value is None else value.after
        is_bare = value is not None and isinstance(places.values[value.value], Bare)
        sizes = places.ends(value.value)[self._inside] if value is not None and is_bare else [0] * len(after)
        ways = [(size, int(places.distances[to])) for size, to in zip(sizes, after, strict=True) if to >= 0]
        return min([size + more for size, more in ways if more >= 0], default=None)

    def read(self, text: bytes, at: int) -> tuple[TextPlace, int, Rule | None]:
        """Return the place behind more bytes, the end of the text, and None.

        If a value begins within it: the place behind that value, where it begins, and its rule.
        """
        here, size = self, len(text)
        while at < size:
            byte = text[at]
            way = here._ways.get(byte)
            if way is None:
                way = here._ways[byte] = here._way(byte)
            here, is_value, rule = way
            if is_value:
                return here, at, rule
            at += 1
        return here, size, None

    def _way(self, byte: int) -> tuple[TextPlace, bool, Rule | None]:
        """Return the place that a byte leads to, or that behind the value that begins with it, and whether it does."""
        places, state, value = self._places, self._state, self._value
        if value is not None:
            return self._way_within(value, byte)
        dfa = places.dfa
        to = int(dfa.transition[state, dfa.class_of[byte]])
        if to >= 0:
            return places.place(to), False, None
        for each in places.at.get(state, ()):
            content = places.values[each.value]
            if isinstance(content, Bare):
                if _step(content.content, 0, byte) >= 0:
                    return places.place(state, each)._way_within(each, byte)
            elif byte in _NUMBER:
                if content.number is not None and _step(content.number, 0, byte) >= 0:
                    return places.place(state, each)._way_within(each, byte)
            elif _begins(content, byte):
                return places.place(max(each.after)), True, places.rules[each.value]
        raise AssertionError("the machine reads no such text")

    def _way_within(self, value: ValuePlace, byte: int) -> tuple[TextPlace, bool, Rule | None]:
        """Return the way from a place within a number or a bare text."""
        places, content = self._places, self._places.values[value.value]
        if isinstance(content, Bare):
            to = _step(content.content, self._inside, byte)
            label = int(content.content.label[to])
            return places.place(self._state, value, to) if label < 0 else places.place(value.after[label]), False, None
        assert content.number is not None
        to = _step(content.number, self._inside, byte)
        if to >= 0:
            return places.place(self._state, value, to), False, None
        return places.place(max(value.after))._way(byte)


def _step(content: Labelled, state: int, byte: int) -> int:
    return int(content.transition[state, content.class_of[byte]])


def _begins(value: Value, byte: int) -> bool:
    """Return whether a value, other than a number, may begin with a byte."""
    if byte == 34:
        return value.string is not None
    if byte in b"[{":
        return (value.array if byte == 91 else value.object) is not None
    return any(ord(word[0]) == byte for word in value.literals)
