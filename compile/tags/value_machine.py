"""The machine of text with values in it: an automaton over bytes and values, on top of the library of JSON.

A JSON value is written as in a schema's machine. Bare text is a fragment of its own, with the mark behind it, that all
places call where the same may stand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.labelled import Labelled
from ...automata.state_ranges import DEAD, KEEP, RETURN
from ...errors import Advice, ConstraintError
from ...lazy.pushdown.shortest_ends import Anchored
from ...lazy.unique.memory import Rule
from ..grammar.form import Special
from ..grammar.special_tokens import VALUE
from ..json_schema.emit import Emitter
from ..json_schema.layout import OPEN_ARRAY, OPEN_OBJECT, QUOTE
from ..json_schema.library import Library
from ..json_schema.remembered import Remembered
from ..json_schema.shortest import Anchor, ShortestTexts
from ..json_schema.skeleton import Value
from .bare_texts import Bare


class Symbols:
    """The values in a text, JSON or bare, and the names of the special tokens that stand for them by label."""

    def __init__(self) -> None:
        self.values: list[Value | Bare] = []
        self.where: list[str] = []
        self.names: dict[str, tuple[int, int]] = {}  # the value and the label of each name
        self.rules: list[Rule | None] = []  # of the values
        self.remembered: Remembered | None = None  # of all schemas: the rule of one of them, and all keywords
        self._known: dict[tuple[int, Rule | None, int], Special] = {}

    def remember(self, remembered: Remembered | None) -> Rule | None:
        """Note what is remembered of a schema's values; return their rule."""
        if remembered is None:
            return None
        before = self.remembered or remembered
        self.remembered = before._replace(keywords=before.keywords | remembered.keywords)
        return remembered.rule

    def of(self, value: Value | Bare, label: int, where: str, rule: Rule | None = None) -> Special:
        """Return the special token of a value that ends with a label. rule: what is remembered of it."""
        key = id(value), rule, label
        found = self._known.get(key)
        if found is None:
            index = self._known.get((id(value), rule, -1))
            if index is None:
                index = self._known[id(value), rule, -1] = Special(str(len(self.values)))
                self.values.append(value)  # and so it keeps its identity
                self.where.append(where)
                self.rules.append(rule)
            found = self._known[key] = Special(f"{VALUE}{index.name} {label}")
            self.names[found.name] = int(index.name), label
        return found


_OWN_TAG = Advice(
    "Put it into a tag that begins with a text of its own: free text ends where a tag must follow, and "
    '"excludes" keeps the begin of one that may follow out of it'
)


class ValuePlace(NamedTuple):
    """A value in a text: from one state of its automaton to others, by its label; -1 where it may not end with it."""

    before: int
    value: int
    after: tuple[int, ...]


def values_at(dfa: Dfa, symbols: Symbols) -> list[ValuePlace]:
    """Return where values stand in a text, by the automaton over bytes and values that reads it."""
    found: dict[tuple[int, int], list[int]] = {}
    for n, (index, label) in enumerate(symbols.names.values()):
        to = dfa.transition[:, dfa.class_of[BYTES + n]]
        for state in np.flatnonzero(to >= 0).tolist():
            after = found.setdefault((state, index), [-1] * symbols.values[index].labels)
            after[label] = int(to[state])
    return [ValuePlace(state, index, tuple(after)) for (state, index), after in found.items()]


class TextEmitter(Emitter):
    """Writes the machine of text with values in it, whose automaton is over bytes and values."""

    def __init__(self, dfa: Dfa, symbols: Symbols, library: Library, meter: Meter, depth: int | None = None) -> None:
        self.dfa, self.values, self.where = dfa, symbols.values, symbols.where
        self.places = values_at(dfa, symbols)
        self._texts: dict[int, int] = {}  # the first state of each bare text
        roots = [value for place in self.places if isinstance(value := self.values[place.value], Value)]
        super().__init__(roots, library, meter, depth)

    @property
    def has_shortest_texts(self) -> bool:
        """Return False where text around values has bytes that no token is."""
        used = (self.dfa.transition[:, self.dfa.class_of[:BYTES]] >= 0).any(axis=0)
        vocabulary = self.context.library.vocabulary
        alone = {token[0] for token in vocabulary.tokens if len(token) == 1}
        return super().has_shortest_texts and all(byte in alone for byte in np.flatnonzero(used).tolist())

    def anchor_of(self) -> Callable[[int], Anchored | None]:
        """Return the function that says how far an end is, of the states of text too."""
        inner = super().anchor_of()
        far, end = self._far(), (self._end,)
        texts: list[tuple[int, list[list[int]], tuple[int, ...]]] = []
        for index, first in sorted(self._texts.items(), key=lambda each: each[1]):
            value = self.values[index]
            assert isinstance(value, Bare)
            ends = tuple([RETURN - label for label in range(value.labels)])
            texts.append((first, bytes_to_ends(value.content), ends))
        begins = [first for first, _, _ in texts]

        def anchored(state: int) -> Anchored | None:
            if self._first <= state < self._first + len(far):
                frames, size = far[state - self._first]
                return None if size == _NEVER else Anchored({0: size}, {0: frames}, end)
            at = bisect_right(begins, state) - 1
            if at >= 0 and state < begins[at] + len(texts[at][1]):
                sizes = texts[at][1][state - begins[at]]
                return Anchored({label: size for label, size in enumerate(sizes) if size < _NEVER}, {}, texts[at][2])
            return inner(state)

        return anchored

    def _far(self) -> list[tuple[int, int]]:
        """Return of each state of the automaton the frames and bytes of a short text from there to an end."""
        before: dict[int, list[tuple[int, int, int]]] = {}  # by state: states before it, frames and bytes
        for state, low, _, to in self.dfa.edges.tolist():
            if low < BYTES:
                before.setdefault(to, []).append((state, 0, 1))
        shortest = ShortestTexts(self._nesting, self.context.library.layout, limited=not self._fits)
        for place in self.places:
            for label, (frames, size) in self._least(self.values[place.value], shortest).items():
                if place.after[label] >= 0:
                    before.setdefault(place.after[label], []).append((place.before, frames, size))
        far = [(_NEVER, _NEVER)] * self.dfa.num_states
        queue = [(0, 0, state) for state in np.flatnonzero(self.dfa.accepting).tolist()]
        while queue:
            frames, size, state = heappop(queue)
            if (frames, size) >= far[state]:
                continue
            far[state] = frames, size
            for other, more, longer in before.get(state, ()):
                heappush(queue, (max(frames, more), size + longer, other))
        return far

    def _least(self, value: Value | Bare, shortest: ShortestTexts) -> dict[int, tuple[int, int]]:
        """Return the frames and bytes of a short text of a value, by its label."""
        if isinstance(value, Bare):
            return {label: (0, size) for label, size in enumerate(bytes_to_ends(value.content)[0]) if size < _NEVER}
        found = {label: (0, size) for label, size in shortest.scalars(value).items()}
        for automaton in (value.array, value.object):
            if automaton is not None:
                called = int(automaton.free >= 0 or self._nesting.is_called(automaton))
                sizes, frames = (
                    shortest.after(Anchor(automaton, -1, ())) if automaton.free < 0 else ({automaton.free: 1}, {})
                )
                for label, size in sizes.items():
                    cost = frames.get(label, 0) + called, size + 1
                    found[label] = min(cost, found.get(label, cost))
        return found

    def _whole(self) -> None:
        m, dfa = self.machine, self.dfa
        class_of = dfa.class_of[:BYTES]
        rows = dfa.transition[:, class_of]
        self._check(rows)
        codes, first = dfa.transition.copy(), m.size + self._write_texts()
        moved = self._called(rows, first)
        for state, code in moved.items():
            codes[dfa.transition == state] = code
        self._first = m.dfa(class_of, codes)
        assert self._first == first
        self._end = m.state()  # to which bounds lead: an end without more
        m.accepting.add(self._end)
        m.accepting.update((np.flatnonzero(dfa.accepting) + first).tolist())
        m.copy(0, first)  # nothing leads back to the start itself
        if dfa.accepting[0]:
            m.accepting.add(0)
        for place in self.places:
            value, follow = self.values[place.value], tuple([to + first if to >= 0 else -1 for to in place.after])
            if isinstance(value, Bare):
                if place.before not in moved:
                    self._enter(first + place.before, value, m.site(follow, True), self._texts[place.value], follow)
                continue
            if value.number is not None:
                assert len(follow) == 1, "numbers among parameters are bare"
                after = rows[place.after[0]]
                leads = np.where(after >= 0, after + first, DEAD)
                self._number_here(first + place.before, value.number, leads, bool(dfa.accepting[place.after[0]]))
            self.value(first + place.before, value, follow, number=False)

    def _write_texts(self) -> int:
        """Write the bare texts, each once, as fragments that places call; return how many states these have."""
        m, before = self.machine, self.machine.size
        for index, value in enumerate(self.values):
            if isinstance(value, Bare):
                class_of, transition, label = value.content
                ends = (transition >= 0) & (label[transition] >= 0)
                add = m.dfa_later if self.context.lazy else m.dfa  # one whose characters are counted is large
                first = self._texts[index] = add(class_of, np.where(ends, RETURN - label[transition], transition))
                m.closed.append((first, m.size, value.close[-1]))
        return m.size - before

    def _called(self, rows: NDArray[np.int32], first: int) -> dict[int, int]:
        """Return the calls that stand for states of the automaton at which one bare text begins, and nothing else.

        A state behind such a call is that of the text itself, so that all places share it.
        """
        here: dict[int, list[ValuePlace]] = {}
        for place in self.places:
            here.setdefault(place.before, []).append(place)
        found = {}
        for state, places in here.items():
            if state and len(places) == 1 and places[0].value in self._texts and not (rows[state] >= 0).any():
                follow = tuple([to + first if to >= 0 else -1 for to in places[0].after])
                found[state] = self.machine.call(self.machine.site(follow, True), self._texts[places[0].value])
        return found

    def _enter(self, state: int, value: Bare, site: int, start: int, follow: tuple[int, ...]) -> None:
        """Read in a state what a bare text begins with."""
        m, content = self.machine, value.content
        row = content.transition[0, content.class_of]
        for byte in np.flatnonzero(row >= 0).tolist():
            label = int(content.label[row[byte]])
            m.edge(state, byte, follow[label] if label >= 0 else m.call(site, start + int(row[byte])))

    def _number_here(self, state: int, number: Labelled, after: NDArray[Any], ends: bool) -> None:
        """Read a number, which ends where a byte comes that it does not go on with; after: codes of what may follow."""
        m = self.machine
        rows = self.scalars.number_rows(number)
        rows[rows <= KEEP] = DEAD
        first = m.dfa(_BYTES, rows)
        for end in np.flatnonzero(number.label >= 0).tolist():
            for low, high, code in _runs(after):
                m.edges(first + end, low, high, code)
            if ends:
                m.accepting.add(first + end)
        for byte in np.flatnonzero(rows[0] >= 0).tolist():
            m.edge(state, byte, first + int(rows[0, byte]))

    def _check(self, rows: NDArray[np.int32]) -> None:
        """Raise ConstraintError where one byte could go on in two ways."""
        begins: dict[int, dict[int, int]] = {}  # of each state, the bytes with which its values begin
        for place in self.places:
            where, value = self.where[place.value], self.values[place.value]
            known = begins.setdefault(place.before, {})
            for byte in self._first_bytes(value):
                if rows[place.before, byte] >= 0:
                    raise ConstraintError(
                        f"where this JSON value begins, other text may go on with {chr(byte)!r} as well, so that a "
                        "text would have two readings",
                        pointer=where, remedies=[_OWN_TAG],
                    )  # fmt: skip
                if known.setdefault(byte, place.value) != place.value:
                    raise ConstraintError(
                        f"this JSON value and that of {self.where[known[byte]]} may begin in one place with "
                        f"{chr(byte)!r}, so that a text would have two readings",
                        pointer=where, remedies=[Advice("Join the schemas by anyOf, or give their tags other begins")],
                    )  # fmt: skip
        for place in self.places:
            value = self.values[place.value]
            if isinstance(value, Bare) or value.number is None:
                continue
            [after] = place.after
            number = self.scalars.number_rows(value.number)
            ends = value.number.label >= 0
            both = (number[ends] >= 0) & (rows[after] >= 0)
            beside = begins.get(after)
            if both.any() or beside:
                byte = int(np.flatnonzero(both.any(axis=0))[0]) if both.any() else min(beside or ())
                raise ConstraintError(
                    f"the schema allows a number, and nothing says where it ends if {chr(byte)!r} may follow it",
                    pointer=self.where[place.value],
                    remedies=[Advice("Let the tag end with a text, or the schema exclude numbers")],
                )

    def _first_bytes(self, value: Value | Bare) -> set[int]:
        """Return the bytes with which a value begins."""
        if isinstance(value, Bare):
            return set(np.flatnonzero(value.content.transition[0, value.content.class_of] >= 0).tolist())
        found = {ord(word[0]) for word in value.literals}
        if value.string is not None:
            found.add(QUOTE)
        if value.array is not None:
            found.add(OPEN_ARRAY)
        if value.object is not None:
            found.add(OPEN_OBJECT)
        if value.number is not None:
            found.update(np.flatnonzero(self.scalars.number_rows(value.number)[0] >= 0).tolist())
        return found


def bytes_to_ends(content: Labelled) -> list[list[int]]:
    """Return the fewest bytes from each state to an end of each label; `_NEVER` where there is none."""
    labels = int(content.label.max()) + 1
    found = np.full((content.num_states, labels), _NEVER, np.int64)
    for label in range(labels):
        there, size = content.label == label, 0
        while there.any():
            found[there, label], size = size, size + 1
            leads = (there[content.transition] & (content.transition >= 0)).any(axis=1)
            there = leads & (found[:, label] == _NEVER)
    rows: list[list[int]] = found.tolist()
    return rows


def _runs(codes: NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of bytes of the same code, but of `DEAD`: the lowest, the highest, and the code."""
    cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    for low, stop in pairwise(cuts):
        if codes[low] != DEAD:
            yield low, stop - 1, int(codes[low])


_NEVER = 1 << 40
_BYTES = np.arange(BYTES, dtype=np.uint16)
