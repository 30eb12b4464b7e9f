"""How few bytes it takes to end the objects, arrays and values of a skeleton, before a state is written for them.

Each number is that of a real text, so it bounds from above how far an end is. Where frames may run out, only texts
that open as few frames as possible count, as they do in the distances of a table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

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
    Step,
    StringSet,
    Value,
    all_steps,
)

Least = dict[int, int]
"""A least number by label; a label that no text has is missing."""


class Anchor(NamedTuple):
    """Where in an object or array a state of the machine stands.

    at: behind a member or item, the number of the automaton's state; -1 behind the opening bracket; behind a key, the
    step that the key takes. ends: the codes to which the object or array leads by its label.
    """

    automaton: ContainerAutomaton
    at: int | Step
    ends: tuple[int, ...]


class _Text(NamedTuple):
    """The shortest text of one type and label that may stand at a value."""

    label: int
    bytes: int
    frames: int


class ShortestTexts:
    """The fewest bytes from each place in the objects and arrays below some values. limited: frames may run out."""

    def __init__(self, nesting: Nesting, layout: Layout, limited: bool) -> None:
        self._containers, self._is_called = nesting.containers, nesting.is_called
        self._ascii, self._limited = layout.ascii, limited
        self._comma, self._colon = (1, 1) if layout.flexible else (len(layout.comma), len(layout.colon))
        self._scalars: dict[int, list[_Text]] = {}  # of values, without objects and arrays
        self._language: dict[int, Least] = {}  # of keys read by an automaton, by object
        # by container: behind each state, and last of all behind the opening bracket
        self._frames: dict[int, list[Least]] = {}
        self._bytes: dict[int, list[Least]] = {}
        if limited:
            self._settle(self._frames, self._lower_frames)
        self._settle(self._bytes, self._lower_bytes)

    def after(self, anchor: Anchor) -> tuple[Least, Least]:
        """Return the fewest bytes from an anchor to the end of its object or array, by label, and the frames opened."""
        name, at = id(anchor.automaton), anchor.at
        if isinstance(at, Step):
            frames = self._step_frames(name, at)
            return {label: self._colon + n for label, n in self._step_bytes(name, at, frames).items()}, frames
        return self._bytes[name][at], self._frames[name][at] if self._limited else {}

    # ------------------------------------------------------------------------------------------------- the two passes

    def _settle(self, found: dict[int, list[Least]], lower: Callable[[ContainerAutomaton], None]) -> None:
        """Find the least numbers of all containers: those of one again whenever one within it was lowered."""
        containers = self._containers
        users: defaultdict[int, dict[int, None]] = defaultdict(dict)  # by container within
        for n, each in enumerate(containers):
            found[id(each)] = [{} for _ in range(len(each.states) + 1)]
            for step in all_steps(each):
                for inside in (step.value.array, step.value.object):
                    if inside is not None:
                        users[id(inside)][n] = None
        waiting = dict.fromkeys(range(len(containers)))  # those found last are mostly within others
        while waiting:
            n, _ = waiting.popitem()
            start = found[id(containers[n])][-1]
            before = start.copy()
            lower(containers[n])
            if start != before:
                waiting.update(users[id(containers[n])])

    def _lower_frames(self, automaton: ContainerAutomaton) -> None:
        """Lower the frames behind the states of a container, as far as those of others allow."""
        name = id(automaton)
        here, changed = self._frames[name], True
        while changed:
            changed = False
            steps: dict[int, Least] = {}
            for i in range(len(automaton.states) - 1, -2, -1):
                state, least = automaton.states[max(i, 0)], here[i]
                ways = {state.close: 0} if state.close >= 0 else {}
                for _, step in _next(state):
                    if id(step) not in steps:
                        steps[id(step)] = self._step_frames(name, step)
                    for label, number in steps[id(step)].items():
                        ways[label] = min(ways.get(label, NO_WAY), number)
                changed |= ways != least
                least.update(ways)

    def _lower_bytes(self, automaton: ContainerAutomaton) -> None:
        """Lower the bytes behind the states of a container, as far as those of others allow."""
        name, length = id(automaton), self._key_length(automaton)
        here, changed = self._bytes[name], True
        frames_here = self._frames.get(name)
        while changed:
            changed = False
            steps: dict[int, tuple[Least, Least]] = {}
            lengths: dict[int, int] = {}
            for i in range(len(automaton.states) - 1, -2, -1):
                state, least = automaton.states[max(i, 0)], here[i]
                ways = {state.close: 1} if state.close >= 0 else {}
                comma = 0 if i < 0 else self._comma
                for key, step in _next(state):
                    if id(step) not in steps:
                        frames = self._step_frames(name, step)
                        steps[id(step)] = self._step_bytes(name, step, frames), frames
                    if key not in lengths:
                        lengths[key] = length(key)
                    least_bytes, frames = steps[id(step)]
                    for label, number in least_bytes.items():
                        if frames_here is None or frames[label] <= frames_here[i][label]:
                            number += comma + lengths[key]
                            if number < ways.get(label, NO_WAY):
                                ways[label] = number
                changed |= ways != least
                least.update(ways)

    def _step_frames(self, name: int, step: Step) -> Least:
        """Return the frames opened from the value of a step on to the end of its container, by label."""
        found: Least = {}
        if not self._limited:
            return found
        behind = self._frames[name]
        for label, _, frames in self._texts(step.value):
            to = step.following[label]
            for end, number in behind[to].items() if to >= 0 else ():
                found[end] = min(found.get(end, NO_WAY), max(frames, number))
        return found

    def _step_bytes(self, name: int, step: Step, allowed: Least) -> Least:
        """Return the bytes from the value of a step on, by label. allowed: the frames that may be opened."""
        found: Least = {}
        behind, behind_frames = self._bytes[name], self._frames.get(name)
        for label, size, frames in self._texts(step.value):
            to = step.following[label]
            if to < 0:
                continue
            for end, number in behind[to].items():
                if behind_frames is None or max(frames, behind_frames[to][end]) <= allowed[end]:
                    found[end] = min(found.get(end, NO_WAY), size + number)
        return found

    # ------------------------------------------------------------------------------------------- values and their keys

    def _texts(self, value: Value) -> list[_Text]:
        """Return the shortest texts of a value by type and label, as far as they are known."""
        found = self._scalars.get(id(value))
        if found is None:
            found = self._scalars[id(value)] = self._scalar_texts(value)
        if value.array is None and value.object is None:
            return found
        found = found.copy()
        for inside in (value.array, value.object):
            if inside is None:
                continue
            if inside.free >= 0:
                found.append(_Text(inside.free, 2, 1))
                continue
            opened = int(self._is_called(inside))
            frames = self._frames[id(inside)][-1] if self._limited else None
            inner = self._bytes[id(inside)][-1] if self._bytes else frames
            for label, number in (inner or {}).items():
                found.append(_Text(label, 1 + number, opened + frames[label] if frames is not None else 0))
        return found

    def _scalar_texts(self, value: Value) -> list[_Text]:
        found = [_Text(label, len(word), 0) for word, label in value.literals.items()]
        if value.number is not None:
            found += [_Text(label, size, 0) for label, size in _of_content(value.number, False, False).items()]
        if value.string is not None:
            found += [_Text(label, size, 0) for label, size in self._string(value.string).items()]
        return found

    def _string(self, text: StringSet) -> Least:
        if isinstance(text, Free):
            return {text.label: 2}
        if isinstance(text, Bounded):
            return {text.label: 2 + text.low}
        if isinstance(text, Finite):
            found: Least = {}
            for word, label in text.words.items():
                found[label] = min(found.get(label, NO_WAY), len(quoted(word, self._ascii)))
            return found
        sizes = _of_content(text.content, text.most is not None, self._ascii)
        return {label: 2 + size for label, size in sizes.items()}

    def _key_length(self, automaton: ContainerAutomaton) -> Callable[[int], int]:
        """Return the function that gives the bytes of a key with its colon, by place or class: see `_next`."""
        if isinstance(automaton, ArrayAutomaton):
            return lambda key: 0
        keys = automaton.keys

        def length(key: int) -> int:
            if key >= 0:
                return len(quoted(keys[key], self._ascii)) + self._colon
            if automaton.language is None:  # any other key
                return 2 + self._colon + next(n for n in count() if not n or _another(keys, n))
            sizes = self._language.get(id(automaton))
            if sizes is None:
                sizes = self._language[id(automaton)] = _of_content(automaton.language, False, self._ascii)
            return 2 + self._colon + sizes.get(len(keys) - 1 - key, NO_WAY)

        return length


def _another(keys: tuple[str, ...], size: int) -> bool:
    """Return whether some word of so many letters is none of the keys."""
    return sum(len(key) == size for key in keys) < 26**size


def _next(state: ArrayState | ObjectState) -> Iterable[tuple[int, Step]]:
    """Return the steps of a state with their keys: the place of a declared one, or -1 - the class of others."""
    if isinstance(state, ArrayState):
        return () if state.item is None else ((0, state.item),)
    found = [(j, step) for j in range(state.first, state.last) if (step := state.steps[j]) is not None]
    return [*found, *((-1 - c, step) for c, step in state.others.items())]


def _of_content(content: Labelled, counted: bool, ascii: bool) -> Least:
    """Return the fewest bytes of the words of an automaton by label, as JSON writes them."""
    sizes = content_bytes(content.class_of, content.transition, content.label, counted=counted, ascii=ascii)
    return {label: size for label, size in enumerate(bytes_of(sizes[0], counted).tolist()) if size < NO_WAY}
