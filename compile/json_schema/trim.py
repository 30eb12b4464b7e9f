"""Trimming: find which labels have a text, and take out of the skeleton every step that leads to no end.

Which labels have a text is a least fixpoint over the values: a list whose items must be such lists has no finite text.
The search takes time linear in the skeleton. It goes by events: a step reaches a state once the step's value has the
label that leads there. In most skeletons every value has all its labels, and a few states of each automaton show it.
All states are reached then, as no state is made but behind a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

from .skeleton import (
    ArrayAutomaton,
    ArrayState,
    Bounded,
    ContainerAutomaton,
    Finite,
    Free,
    ObjectState,
    Step,
    Value,
    all_steps,
)


def trim(
    values: Iterable[Value], sound: Set[ContainerAutomaton], alive: dict[Value, int],
    trimmed: dict[ContainerAutomaton, bool],
) -> None:  # fmt: skip
    """Find the labels of values that some text has, as bit masks; take out the steps that lead to no text.

    values: all that are not in `alive` yet, where their labels are added; all below them are in either. sound: automata
    in which every state reaches the end if all steps can be taken. The start of such an automaton reaches all its
    states then. trimmed: whether a text is left, of the automata that were trimmed before; the others are added.
    """
    searches = _fixpoint(values, alive)
    for automaton, search in searches.items():
        left = trimmed.get(automaton)
        if left is None:
            whole = all(alive[step.value] + 1 == 1 << step.value.labels for step in all_steps(automaton))
            if whole and automaton in sound:
                left = True
            else:
                reached = range(len(automaton.states)) if whole else search.finished(alive)
                left = _clean(automaton, reached, alive, whole)
            trimmed[automaton] = left
        if not left:
            for value in search.owners:
                if value.array is automaton:
                    value.array = None
                else:
                    value.object = None


class _Search:
    """The states of an automaton that its start is known to reach so far."""

    __slots__ = ("_covered", "_states", "_taken", "owners", "pending", "reached")

    def __init__(self, automaton: ContainerAutomaton) -> None:
        self._states: Sequence[ArrayState | ObjectState] = automaton.states
        self._taken: set[Step] = set()
        self._covered: dict[int, tuple[int, int]] = {}  # the range of each shared list of steps that was taken, by id
        self.owners: list[Value] = []  # the values that have the automaton
        self.reached = {0}
        self.pending = [0]  # states that are reached, and whose steps were not taken yet

    def reach(self, target: int) -> None:
        """Note that a state is reached."""
        if target not in self.reached:
            self.reached.add(target)
            self.pending.append(target)

    def take(self, alive: dict[Value, int]) -> tuple[int, list[tuple[Value, int, int]]]:
        """Take a pending state's steps; return its label, and the steps that wait: a value, its label, and a target."""
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
        """Return all states that the start reaches, once it is known which labels are alive."""
        while self.pending:
            self.take(alive)
        return self.reached

    def _new_steps(self, state: ArrayState | ObjectState) -> list[Step]:
        """Return the steps of a state that were not taken yet."""
        found: list[Step | None]
        if isinstance(state, ArrayState):
            found = [state.item]
        else:
            found = [*state.others.values()]
            first, last, steps = state.first, state.last, state.steps
            if first < last:
                # without this, shared lists would take quadratic time
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


def _fixpoint(values: Iterable[Value], alive: dict[Value, int]) -> dict[ContainerAutomaton, _Search]:
    """Add the labels of each value that some text has; return the searches of automata that found them."""
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
    return searches


def _inhabited(value: Value) -> int:
    """Return the labels that a scalar, or a free array or object, of a value has."""
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
    """Take the steps out of an automaton that lead nowhere; return whether any state is left.

    whole: every state is reached, and every step can be taken in all its ways.
    """
    states: Sequence[ArrayState | ObjectState] = automaton.states
    good: set[int] = set()

    def leads_on(step: Step) -> bool:
        mask = alive[step.value]
        return any(mask >> label & 1 and target in good for label, target in enumerate(step.following) if target >= 0)

    order = sorted(reached, reverse=True)  # most targets are later states, so that one round is usually enough
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
    # what became of lists and mappings of steps, by id, with the old one, which keeps the id its own; they stay shared
    lists: dict[int, tuple[Sequence[Step | None], list[Step | None]]] = {}
    mappings: dict[int, tuple[Mapping[int, Step], dict[int, Step]]] = {}

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
            if id(steps) not in lists:
                lists[id(steps)] = steps, [clean(step) for step in steps]
            if id(others) not in mappings:
                left = {c: step for c, old in others.items() if (step := clean(old)) is not None}
                mappings[id(others)] = others, left
            state.steps, state.others = lists[id(steps)][1], mappings[id(others)][1]
    if isinstance(automaton, ArrayAutomaton):
        automaton.states = [automaton.states[index] for index in kept]
    else:
        automaton.states = [automaton.states[index] for index in kept]
    return True


def _steps(state: ArrayState | ObjectState) -> Iterator[Step]:
    """Yield the steps that may be taken in a state."""
    if isinstance(state, ArrayState):
        if state.item is not None:
            yield state.item
        return
    for place in range(state.first, state.last):
        step = state.steps[place]
        if step is not None:
            yield step
    yield from state.others.values()
