"""How few bytes it takes to end the objects, arrays and values of a skeleton, before a state is written for them.

Each number is that of a real text, so it bounds from above how far an end is. Where frames may run out, only texts
that open as few frames as possible count, as they do in the distances of a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from ...automata.content_bytes import NO_WAY, bytes_of, content_bytes
from ...automata.labelled import Labelled
from .escapes import quoted
from .layout import Layout
from .nesting import Nesting
from .skeleton import (
    ArrayAutomaton,
    ArrayState,
    Bounded,
    ContainerAutomaton,
    Finite,
    Free,
    ObjectAutomaton,
    ObjectState,
    Regular,
    Step,
    Value,
)

Least = dict[int, int]
"""A least number by label; a label that no text has, or that is not known yet, is missing."""
_NEVER = 1 << 40
_MOST_READ = 300_000  # places that are read for one schema, which takes about half a second


class Anchor(NamedTuple):
    """Where in an object or array a state of the machine stands.

    at: behind a member or item, the number of the automaton's state; -1 behind the opening bracket; behind a key, the
    step that the key takes. ends: the codes to which the object or array leads by its label.
    """

    automaton: ContainerAutomaton
    at: int | Step
    ends: tuple[int, ...]


_Place = tuple[ContainerAutomaton, "int | Step"]


class _UnknownError(Exception):
    """A place waits for another one."""


class _WorkError(Exception):
    """More places were read than may be."""


class ShortestTexts:
    """Few bytes from places in objects and arrays, each found on demand. limited: frames may run out.

    After `_MOST_READ` places were read for a schema, no more are found, and none is known from then on.
    """

    def __init__(self, nesting: Nesting, layout: Layout, limited: bool) -> None:
        sizes = _Sizes(layout)
        self._colon = sizes.colon
        self._frames = _Frames(sizes, nesting) if limited else None
        self._bytes = _Bytes(sizes, nesting, self._frames)
        self._gave_up = False

    def scalars(self, value: Value) -> Least:
        """Return the bytes of a value's shortest texts that are no objects and no arrays, by label."""
        return self._bytes.sizes.scalars(value)

    def after(self, anchor: Anchor) -> tuple[Least, Least]:
        """Return the bytes of a text from an anchor to the end of its object or array, by label, and its frames.

        A label is missing where no such text is known.
        """
        if self._gave_up:
            return {}, {}
        automaton, at, _ = anchor
        frames: Least = {}
        try:
            least = self._bytes.settled(automaton, at)
            if self._frames is not None:
                frames = self._frames.settled(automaton, at)
        except _WorkError:  # in the middle of a search, whose numbers are not final
            self._gave_up = True
            return {}, {}
        if isinstance(at, Step):
            least = {label: self._colon + size for label, size in least.items()}
        return least, frames


class _Search(ABC):
    """Least numbers of places by label, from a worklist: a place is looked at again when one that it reads was lowered.

    A place is (container, number of a state behind a member or item), (container, -1) behind the opening bracket, or
    (container, step) before the value of the step. It waits for the first place that it reads and that is not known,
    before it asks for others, most of which are too far to matter. Where all that is left waits, as only endless texts
    lead on from some place, nothing waits any more.
    """

    close: int  # what it takes to close an object or array
    least: int  # what a value takes at least

    def __init__(self, sizes: _Sizes, nesting: Nesting) -> None:
        self.sizes, self._nesting = sizes, nesting
        self._found: dict[_Place, Least] = {}
        self._readers: defaultdict[_Place, dict[_Place, None]] = defaultdict(dict)
        self._todo: dict[_Place, None] = {}
        self._stuck: dict[_Place, None] = {}
        self._waits = True
        self._here: _Place | None = None  # which is looked at
        self._left = _MOST_READ

    def settled(self, automaton: ContainerAutomaton, at: int | Step) -> Least:
        """Return the least numbers of a place, which are final."""
        found = self._read(automaton, at)
        while self._todo or self._stuck:
            if not self._todo:
                self._waits, self._todo, self._stuck = False, self._stuck, {}
            here, _ = self._todo.popitem()
            self._stuck.pop(here, None)
            self._here, known = here, self._found[here]
            ways: Least = {}
            try:
                container, place = here
                if isinstance(place, Step):
                    self._look_at_step(container, place, ways)
                else:
                    self._look_at_state(container, place, ways)
            except _UnknownError:
                self._stuck[here] = None
            lower = {label: number for label, number in ways.items() if number < known.get(label, _NEVER)}
            if lower:  # numbers only fall, so that this ends
                known.update(lower)
                self._todo.update(self._readers[here])
        self._waits, self._here = True, None
        return found

    def _read(self, automaton: ContainerAutomaton, at: int | Step) -> Least:
        """Return what is known of a place, and note who reads it; _UnknownError if the reader has to wait for it."""
        self._left -= 1
        if self._left < 0:
            raise _WorkError
        place = automaton, at
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = {}
            self._todo[place] = None
        if self._here is not None:
            self._readers[place][self._here] = None
            if not found and self._waits:
                raise _UnknownError
        return found

    def _look_at_state(self, automaton: ContainerAutomaton, at: int, ways: Least) -> None:
        """Find the least numbers behind a member, an item or a bracket, as far as those of others are known."""
        state = automaton.states[max(at, 0)]
        if state.close >= 0:
            ways[state.close] = self.close
            if self.sizes.has_one_label(automaton):
                return
        for key, step in _next(state):
            before = self.before(automaton, at, key)
            if ways and self.is_enough(ways) and self.sizes.has_one_label(automaton):
                return
            if self._is_near(automaton, step, before, self.least, ways):
                for end, more in self._read(automaton, step).items():
                    number = self.joined(before, more)
                    if number < ways.get(end, _NEVER) and self.fits(automaton, at, end, step):
                        ways[end] = number

    def _look_at_step(self, automaton: ContainerAutomaton, step: Step, ways: Least) -> None:
        """Find the least numbers before the value of a step, as far as those of others are known."""
        value = step.value
        for label, size in self.scalars(value).items():
            self._take(automaton, step, label, size, None, ways)
        for inside in (value.array, value.object):
            if inside is None:
                continue
            if inside.free >= 0:
                self._take(automaton, step, inside.free, self.opened(inside, self.close), inside, ways)
            elif self._is_near(automaton, step, 0, self.opened(inside, self.close), ways):
                for label, inner in self._read(inside, -1).items():
                    self._take(automaton, step, label, self.opened(inside, inner), inside, ways)

    def _is_near(self, automaton: ContainerAutomaton, step: Step, before: int, least: int, ways: Least) -> bool:
        """Return whether a step may lower the numbers found so far, if its value takes as little as possible."""
        for to in step.following:
            for end, more in self._read(automaton, to).items() if to >= 0 else ():
                if self.joined(before, self.joined(least, more)) < ways.get(end, _NEVER):
                    return True
        return False

    def _take(
        self, automaton: ContainerAutomaton, step: Step, label: int, size: int, inside: ContainerAutomaton | None,
        ways: Least,
    ) -> None:  # fmt: skip
        """Lower the numbers before a step by a text of its value, which is in a container if `inside`."""
        to = step.following[label]
        for end, more in self._read(automaton, to).items() if to >= 0 else ():
            number = self.joined(size, more)
            if number < ways.get(end, _NEVER) and self.fits_step(automaton, step, end, to, label, inside):
                ways[end] = number

    def is_called(self, inside: ContainerAutomaton) -> bool:
        """Return whether a container takes a frame."""
        return inside.free >= 0 or self._nesting.is_called(inside)

    @abstractmethod
    def before(self, automaton: ContainerAutomaton, at: int, key: int) -> int:
        """Return what comes before a value behind a place: see `_next` for the key."""

    @abstractmethod
    def joined(self, first: int, second: int) -> int:
        """Return what two texts take, one behind the other."""

    @abstractmethod
    def opened(self, inside: ContainerAutomaton, inner: int) -> int:
        """Return what a container takes, from what it takes behind its bracket."""

    @abstractmethod
    def is_enough(self, ways: Least) -> bool:
        """Return whether what was found behind some step will do."""

    @abstractmethod
    def scalars(self, value: Value) -> Least:
        """Return what a value takes that is no object and no array, by label."""

    @abstractmethod
    def fits(self, automaton: ContainerAutomaton, at: int, end: int, step: Step) -> bool:
        """Return whether a step behind a place counts, if the container ends with a label."""

    @abstractmethod
    def fits_step(
        self, automaton: ContainerAutomaton, step: Step, end: int, to: int, label: int,
        inside: ContainerAutomaton | None,
    ) -> bool:  # fmt: skip
        """Return whether a text of the value of a step counts, in a container if `inside`."""


class _Frames(_Search):
    """The fewest frames that are open at once."""

    close = least = 0

    def before(self, automaton: ContainerAutomaton, at: int, key: int) -> int:
        return 0

    def joined(self, first: int, second: int) -> int:
        return max(first, second)

    def opened(self, inside: ContainerAutomaton, inner: int) -> int:
        return inner + self.is_called(inside)

    def is_enough(self, ways: Least) -> bool:
        return not any(ways.values())

    def scalars(self, value: Value) -> Least:
        return dict.fromkeys(self.sizes.labels(value), 0)

    def fits(self, automaton: ContainerAutomaton, at: int, end: int, step: Step) -> bool:
        return True

    def fits_step(
        self, automaton: ContainerAutomaton, step: Step, end: int, to: int, label: int,
        inside: ContainerAutomaton | None,
    ) -> bool:  # fmt: skip
        return True


class _Bytes(_Search):
    """The fewest bytes, with as few frames as possible."""

    close = least = 1

    def __init__(self, sizes: _Sizes, nesting: Nesting, frames: _Frames | None) -> None:
        super().__init__(sizes, nesting)
        self._frames = frames

    def before(self, automaton: ContainerAutomaton, at: int, key: int) -> int:
        return (self.sizes.comma if at >= 0 else 0) + self.sizes.key(automaton, key)

    def joined(self, first: int, second: int) -> int:
        return first + second

    def opened(self, inside: ContainerAutomaton, inner: int) -> int:
        return inner + 1

    def is_enough(self, ways: Least) -> bool:
        return True  # a bound, and mostly the least: the first step is by the last declared key, often a required one

    def scalars(self, value: Value) -> Least:
        return self.sizes.scalars(value)

    def fits(self, automaton: ContainerAutomaton, at: int, end: int, step: Step) -> bool:
        if self._frames is None:
            return True
        return self._frames.settled(automaton, step)[end] <= self._frames.settled(automaton, at)[end]

    def fits_step(
        self, automaton: ContainerAutomaton, step: Step, end: int, to: int, label: int,
        inside: ContainerAutomaton | None,
    ) -> bool:  # fmt: skip
        if self._frames is None:
            return True
        taken = self._frames.settled(automaton, to)[end]
        if inside is not None:
            inner = 0 if inside.free >= 0 else self._frames.settled(inside, -1)[label]
            taken = max(taken, self._frames.opened(inside, inner))
        return taken <= self._frames.settled(automaton, step)[end]


class _Sizes:
    """The bytes of keys, separators and values that are no objects and no arrays."""

    def __init__(self, layout: Layout) -> None:
        self._ascii = layout.ascii
        self.comma, self.colon = (1, 1) if layout.flexible else (len(layout.comma), len(layout.colon))
        self._scalars: dict[Value, Least] = {}
        self._contents: dict[tuple[int, bool], Least] = {}
        self._keys: dict[tuple[ContainerAutomaton, int], int] = {}
        self._labels: dict[ContainerAutomaton, bool] = {}

    def has_one_label(self, automaton: ContainerAutomaton) -> bool:
        """Return whether all texts of a container have one label."""
        found = self._labels.get(automaton)
        if found is None:
            closes = {state.close for state in automaton.states}
            found = self._labels[automaton] = len(closes - {-1}) == 1
        return found

    def labels(self, value: Value) -> set[int]:
        """Return the labels of a value's texts that are no objects and no arrays."""
        found = set(value.literals.values())
        for content in (value.number, value.string.content if isinstance(value.string, Regular) else None):
            if content is not None:
                found.update(np.unique(content.label[content.label >= 0]).tolist())
        if isinstance(value.string, Finite):
            found.update(value.string.words.values())
        elif isinstance(value.string, Free | Bounded):
            found.add(value.string.label)
        return found

    def scalars(self, value: Value) -> Least:
        """Return the bytes of a value's shortest texts that are no objects and no arrays, by label."""
        found = self._scalars.get(value)
        if found is None:
            found = self._scalars[value] = {}
            for word, label in value.literals.items():
                _lower(found, label, len(word))
            for label, size in self._content(value.number, False).items() if value.number is not None else ():
                _lower(found, label, size)
            text = value.string
            if isinstance(text, Free | Bounded):
                _lower(found, text.label, 2 + (text.low if isinstance(text, Bounded) else 0))
            elif isinstance(text, Finite):
                for word, label in text.words.items():
                    _lower(found, label, len(quoted(word, self._ascii)))
            elif text is not None:
                for label, size in self._content(text.content, text.most is not None).items():
                    _lower(found, label, 2 + size)
        return found

    def key(self, automaton: ContainerAutomaton, key: int) -> int:
        """Return the bytes of a key with its colon, 0 for an item: see `_next`."""
        if isinstance(automaton, ArrayAutomaton):
            return 0
        found = self._keys.get((automaton, key))
        if found is None:
            found = self._keys[automaton, key] = self._key(automaton, key)
        return found

    def _key(self, automaton: ObjectAutomaton, key: int) -> int:
        keys = automaton.keys
        if key >= 0:
            return len(quoted(keys[key], self._ascii)) + self.colon
        if automaton.language is not None:
            return 2 + self.colon + self._content(automaton.language, False).get(len(keys) - 1 - key, _NEVER)
        letters = next(n for n in count() if sum(len(key) == n for key in keys) < 26**n)  # which no key spells
        return 2 + self.colon + letters

    def _content(self, content: Labelled, counted: bool) -> Least:
        """Return the fewest bytes of the words of an automaton by label, as JSON writes them."""
        key = id(content), counted
        found = self._contents.get(key)
        if found is None:
            arrays = content.class_of, content.transition, content.label
            sizes = bytes_of(content_bytes(*arrays, counted=counted, ascii=self._ascii)[0], counted).tolist()
            found = self._contents[key] = {label: size for label, size in enumerate(sizes) if size < NO_WAY}
        return found


def _lower(found: Least, label: int, size: int) -> None:
    found[label] = min(found.get(label, _NEVER), size)


def _next(state: ArrayState | ObjectState) -> Iterator[tuple[int, Step]]:
    """Yield the steps of a state with their keys: the place of a declared one, or -1 - the class of others.

    The last declared one is often required, and so leads to the end.
    """
    if isinstance(state, ArrayState):
        if state.item is not None:
            yield 0, state.item
        return
    for j in range(state.last - 1, state.first - 1, -1):
        step = state.steps[j]
        if step is not None:
            yield j, step
    for c, step in state.others.items():
        yield -1 - c, step
