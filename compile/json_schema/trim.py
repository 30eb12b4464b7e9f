"""Trimming: which labels some text has, and nothing left in the skeleton that could not be ended.

That a label is inhabited is a least fixpoint over the values (a list whose items must be such lists has no finite
text). It is found by events, in time linear in the skeleton: a state is reached over a step when the step's value gets
the label that leads there. Mostly every value has all its labels, which a few states of each automaton show: then all
states are reached, as none is made but behind a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from typing import Any

from .skeleton import (
    ArrayState,
    Bounded,
    ContainerAutomaton,
    Finite,
    Free,
    ObjectAutomaton,
    Step,
    Unordered,
    Value,
    all_steps,
)


def trim(values: Iterable[Value], sound: Set[ContainerAutomaton]) -> dict[Value, int]:
    """Return the labels of every value that some text has, as a bit mask; take out what leads to no such text.

    values: all whose automata are to be trimmed, and all below them. sound: automata from each of whose states the end
    is reached if all steps can be taken. From the start of each automaton all its states are reached then.
    """
    alive, searches = _fixpoint(values)
    short = {value for value, labels in alive.items() if labels + 1 != 1 << value.labels}
    for automaton, search in searches.items():
        whole = not short or short.isdisjoint([step.value for step in all_steps(automaton)])
        if whole and automaton in sound:
            continue
        reached = range(len(automaton.states)) if whole else search.finished(alive)
        if not _clean(automaton, reached, alive, whole):
            for value in search.owners:
                if value.array is automaton:
                    value.array = None
                else:
                    value.object = None
    for automaton in searches:
        if isinstance(automaton, ObjectAutomaton) and automaton.unordered is not None:
            _clean_unordered(automaton.unordered, alive)
    return alive


def steps_below(root: Value) -> list[Step]:
    """Return all steps that a value leads to, each once."""
    found: list[Step] = []
    seen: set[Value | ContainerAutomaton] = {root}
    pending = [root]
    while pending:
        value = pending.pop()
        for automaton in (value.array, value.object):
            if automaton is None or automaton in seen:
                continue
            seen.add(automaton)
            for step in all_steps(automaton):
                found.append(step)
                if step.value not in seen:
                    seen.add(step.value)
                    pending.append(step.value)
    return found


class _Search:
    """The states of an automaton that are reached from its start, as far as it was gone through."""

    __slots__ = ("_covered", "_states", "_taken", "owners", "pending", "reached")

    def __init__(self, automaton: ContainerAutomaton) -> None:
        self._states: list[Any] = automaton.states
        self._taken: set[Step] = set()
        self._covered: dict[int, tuple[int, int]] = {}  # of shared lists of steps, by id: the range gone over
        self.owners: list[Value] = []  # the values that have the automaton
        self.reached = {0}
        self.pending = [0]  # states that are reached, and their steps not taken

    def reach(self, target: int) -> None:
        """Note that a state is reached."""
        if target not in self.reached:
            self.reached.add(target)
            self.pending.append(target)

    def take(self, alive: dict[Value, int]) -> tuple[int, list[tuple[Value, int, int]]]:
        """Take a pending state's steps; return its label, and those that wait for one: a value, a label, a target."""
        state = self._states[self.pending.pop()]
        waiting = []
        for step in self._new_steps(state):
            labels = alive[step.value]
            for label, target in enumerate(step.following):
                if target >= 0:
                    if labels >> label & 1:
                        self.reach(target)
                    else:
                        waiting.append((step.value, label, target))
        return state.close, waiting

    def finished(self, alive: dict[Value, int]) -> set[int]:
        """Return all states that are reached, once it is known which labels are alive."""
        while self.pending:
            self.take(alive)
        return self.reached

    def _new_steps(self, state: Any) -> list[Step]:
        """Return the steps of a state that were not yet gone over."""
        found: list[Step | None]
        if type(state) is ArrayState:
            found = [state.item]
        else:
            found = [*state.others.values()]
            first, last, steps = state.first, state.last, state.steps
            if first < last:
                # shared lists would else take quadratic time
                low, high = self._covered.get(id(steps), (first, first))
                if first > high or last < low:
                    found += steps[first:last]
                else:
                    found += steps[first : min(low, last)]
                    found += steps[max(high, first) : last]
                    self._covered[id(steps)] = min(first, low), max(last, high)
        taken = self._taken
        new = [step for step in found if step is not None and step not in taken]
        taken.update(new)
        return new


def _fixpoint(values: Iterable[Value]) -> tuple[dict[Value, int], dict[ContainerAutomaton, _Search]]:
    """Return the labels of values that some text has; and how far each automaton was gone through to find them."""
    alive: dict[Value, int] = {}
    searches: dict[ContainerAutomaton, _Search] = {}
    for value in values:
        alive[value] = _inhabited(value)
        for automaton in (value.array, value.object):
            if automaton is not None and automaton.states:
                search = searches.get(automaton)
                if search is None:
                    search = searches[automaton] = _Search(automaton)
                search.owners.append(value)
    waiting: dict[tuple[Value, int], list[tuple[_Search, int]]] = {}
    work = list(searches.values())
    while work:
        search = work.pop()
        owners = search.owners
        while search.pending and any(alive[value] + 1 != 1 << value.labels for value in owners):
            close, in_wait = search.take(alive)
            for value, label, target in in_wait:
                waiting.setdefault((value, label), []).append((search, target))
            if close < 0:
                continue
            for value in owners:
                if not alive[value] >> close & 1:
                    alive[value] |= 1 << close
                    for other, target in waiting.pop((value, close), ()):
                        other.reach(target)
                        work.append(other)
    return alive, searches


def _inhabited(value: Value) -> int:
    """Return the labels that some scalar or free array or object of a value has."""
    mask = 0
    for label in value.literals.values():
        mask |= 1 << label
    for part in (value.array, value.object):
        if part is not None and part.free >= 0:
            mask |= 1 << part.free
    if value.labels == 1 and (mask or value.number is not None or value.string is not None):
        return 1
    text = value.string
    found: Iterable[int] = ()
    if value.number is not None:
        found = value.number.label.tolist()
    if text is not None:
        if isinstance(text, (Free, Bounded)):
            mask |= 1 << text.label
        else:
            found = [*found, *(text.words.values() if isinstance(text, Finite) else text.content.label.tolist())]
    for label in set(found):
        if label >= 0:
            mask |= 1 << label
    return mask


def _clean(automaton: ContainerAutomaton, reached: Collection[int], alive: dict[Value, int], whole: bool) -> bool:
    """Take out of an automaton what leads nowhere; return whether anything is left.

    whole: every state is reached, and every step can be taken in all its ways.
    """
    states: list[Any] = automaton.states
    good: set[int] = set()

    def leads_on(step: Step) -> bool:
        mask = alive[step.value]
        return any(mask >> label & 1 and target in good for label, target in enumerate(step.following) if target >= 0)

    order = sorted(reached, reverse=True)  # targets are mostly later, so that one round is mostly enough
    grows = True
    while grows:
        grows = False
        for index in order:
            if index not in good and (states[index].close >= 0 or any(map(leads_on, _steps(states[index])))):
                good.add(index)
                grows = True
    if 0 not in good:
        return False
    if whole and len(good) == len(states):
        return True
    kept = sorted(good)
    number = {index: place for place, index in enumerate(kept)}
    done: dict[int, Step | None] = {}
    seen: dict[int, Any] = {}  # what became of shared lists and mappings of steps, by id; they stay shared

    def clean(step: Step | None) -> Step | None:
        if step is None:
            return None
        if id(step) not in done:
            mask = alive[step.value]
            step.following = tuple(
                [
                    number.get(target, -1) if target >= 0 and mask >> label & 1 else -1
                    for label, target in enumerate(step.following)
                ]
            )
            done[id(step)] = step if max(step.following) >= 0 else None
        return done[id(step)]

    for index in kept:
        state = states[index]
        if isinstance(state, ArrayState):
            state.item = clean(state.item)
        else:
            steps, others = state.steps, state.others
            if id(steps) not in seen:
                seen[id(steps)] = steps, [clean(step) for step in steps]
            if id(others) not in seen:
                seen[id(others)] = others, {c: step for c, old in others.items() if (step := clean(old)) is not None}
            state.steps, state.others = seen[id(steps)][1], seen[id(others)][1]
    automaton.states = [states[index] for index in kept]
    return True


def _clean_unordered(unordered: Unordered, alive: dict[Value, int]) -> None:
    """Take out the steps to what no object is left of."""
    good = [alive[value] > 0 for value in unordered.inhabited]

    def clean(step: Step | None) -> Step | None:
        if step is not None:
            mask = alive[step.value]
            step.following = tuple(
                [to if to >= 0 and mask >> label & 1 and good[to] else -1 for label, to in enumerate(step.following)]
            )
        return None if step is None or max(step.following) < 0 else step

    for state in unordered.states:
        state.steps = list(map(clean, state.steps))
        state.others = {c: step for c, old in state.others.items() if (step := clean(old)) is not None}


def _steps(state: Any) -> Iterator[Step]:
    if isinstance(state, ArrayState):
        if state.item is not None:
            yield state.item
        return
    for place in range(state.first, state.last):
        if state.steps[place] is not None:
            yield state.steps[place]
    yield from state.others.values()
