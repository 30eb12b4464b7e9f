"""Trimming: which labels some text has, and nothing left in the skeleton that could not be ended.

That a label is inhabited is a least fixpoint over the values (a list whose items must be such lists has no finite
text). It is found by events, in time linear in the skeleton: a state is reached over a step when the step's value gets
the label that leads there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from typing import Any

from .skeleton import ArrayAutomaton, ArrayState, Bounded, Finite, Free, ObjectAutomaton, ObjectState, Step, Value

Automaton = ArrayAutomaton | ObjectAutomaton


def trim(values: Iterable[Value], sound: Set[Automaton]) -> dict[Value, int]:
    """Return the labels of every value that some text has, as a bit mask; take out what leads to no such text.

    sound: automata from each of whose states the end is reached if all steps can be taken.
    """
    fixpoint = _Fixpoint(values)
    for automaton, reached in fixpoint.reached.items():
        whole = automaton not in fixpoint.short and len(reached) == len(automaton.states)
        if whole and automaton in sound:
            continue
        if not _clean(automaton, reached, fixpoint.alive, whole):
            for value in fixpoint.owners[automaton]:
                if value.array is automaton:
                    value.array = None
                else:
                    value.object = None
    return fixpoint.alive


def steps_below(root: Value) -> list[Step]:
    """Return all steps that a value leads to, each once."""
    found: list[Step] = []
    seen: set[int] = set()  # ids of values, automata, lists of steps and steps, all of which last

    def new(thing: Any) -> bool:
        fresh = thing is not None and id(thing) not in seen
        seen.add(id(thing))
        return fresh

    pending = [root]
    while pending:
        value = pending.pop()
        steps: list[Step | None] = []
        if value.array is not None and new(value.array):
            steps.extend([state.item for state in value.array.states])
        if value.object is not None and new(value.object):
            for state in value.object.states:
                if new(state.steps):
                    steps.extend(state.steps)
                if new(state.others):
                    steps.extend(state.others.values())
        for step in steps:
            if step is not None and new(step):
                found.append(step)
                if new(step.value):
                    pending.append(step.value)
    return found


class _Fixpoint:
    """The least fixpoint: `alive` labels of values, `reached` states of automata; `short` ones lack some label."""

    def __init__(self, values: Iterable[Value]) -> None:
        self.alive: dict[Value, int] = {}
        self.owners: dict[Automaton, list[Value]] = {}
        self.reached: dict[Automaton, set[int]] = {}
        self._waiting: dict[tuple[Value, int], list[tuple[Automaton, int]]] = {}
        self._taken: set[Step] = set()
        self._covered: dict[int, tuple[int, int]] = {}  # of shared lists of steps, by id: the range gone over
        self._pending: list[tuple[Automaton, int]] = []
        for value in values:
            self.alive[value] = _inhabited(value)
            for automaton in (value.array, value.object):
                if automaton is not None and automaton.states:
                    if automaton not in self.owners:
                        self.owners[automaton] = []
                        self.reached[automaton] = {0}
                        self._pending.append((automaton, 0))
                    self.owners[automaton].append(value)
        while self._pending:
            automaton, index = self._pending.pop()
            state: Any = automaton.states[index]
            if state.close >= 0:
                for value in self.owners[automaton]:
                    self._live(value, state.close)
            if type(state) is not ArrayState:
                self._take(automaton, self._new_steps(state))
            elif state.item is not None and state.item not in self._taken:
                self._take(automaton, (state.item,))
        self.short = {automaton for waiting in self._waiting.values() for automaton, _ in waiting}

    def _new_steps(self, state: ObjectState) -> set[Step]:
        """Return the steps that were not yet gone over."""
        first, last, steps = state.first, state.last, state.steps
        found: set[Any] = set(state.others.values())
        if first < last:
            # shared lists would else take quadratic time
            low, high = self._covered.get(id(steps), (first, first))
            if first > high or last < low:
                found.update(steps[first:last])
            else:
                found.update(steps[first : min(low, last)])
                found.update(steps[max(high, first) : last])
                self._covered[id(steps)] = min(first, low), max(last, high)
            found.discard(None)
        found -= self._taken
        return found

    def _take(self, automaton: Automaton, steps: Collection[Step]) -> None:
        """Follow steps that were not yet gone over."""
        self._taken.update(steps)
        reached = self.reached[automaton]
        for step in steps:
            alive = self.alive[step.value]
            for label, target in enumerate(step.following):
                if target < 0:
                    continue
                if not alive >> label & 1:
                    self._waiting.setdefault((step.value, label), []).append((automaton, target))
                elif target not in reached:
                    reached.add(target)
                    self._pending.append((automaton, target))

    def _reach(self, automaton: Automaton, target: int) -> None:
        reached = self.reached[automaton]
        if target not in reached:
            reached.add(target)
            self._pending.append((automaton, target))

    def _live(self, value: Value, label: int) -> None:
        if not self.alive[value] >> label & 1:
            self.alive[value] |= 1 << label
            for automaton, target in self._waiting.pop((value, label), ()):
                self._reach(automaton, target)


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


def _clean(automaton: Automaton, reached: set[int], alive: dict[Value, int], whole: bool) -> bool:
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


def _steps(state: Any) -> Iterator[Step]:
    if isinstance(state, ArrayState):
        if state.item is not None:
            yield state.item
        return
    for place in range(state.first, state.last):
        if state.steps[place] is not None:
            yield state.steps[place]
    yield from state.others.values()
