"""The values of a skeleton, each made once: a value's formulas are taken apart by type, and each type is read.

Numbers and strings become automata at once. The functions that make the automata of arrays and objects are handed in:
they ask for further values.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ...automata.budget import Meter
from ...automata.labelled import Labelled
from ...errors import BudgetError, SchemaError, TableError
from . import numbers, strings
from .algebra import (
    ANY,
    ARRAY,
    EVERYTHING,
    FALSE,
    NEVER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    AllOf,
    AnyOf,
    Node,
    Not,
    Types,
    any_of,
    is_any,
    is_never,
    restrict,
)
from .cases import Cases
from .skeleton import ArrayAutomaton, ContainerAutomaton, ObjectAutomaton, Step, StringSet, Unordered, Value, all_steps
from .trim import trim
from .value_tests import Case

_FINDING = "finding the values of a schema"
_INTERRUPTED = "a schema was interrupted while more of its states were being found: compile it again"
_LITERALS = ((NULL, "null"), (FALSE, "false"), (TRUE, "true"))
_KINDS = (NULL, FALSE, TRUE, NUMBER, STRING, ARRAY, OBJECT)

Parts = tuple[Node, ...]
"""Pairwise disjoint formulas; label i says that a value is in parts[i]."""


class Containers(NamedTuple):
    """The functions that make the automata of arrays and objects, None where plainly no value is in any part."""

    arrays: Callable[[ValueBuilder, Parts], ArrayAutomaton | None]
    objects: Callable[[ValueBuilder, Parts, bool], ObjectAutomaton | None]  # the last: whether in any order


class ValueBuilder:
    """Makes values, each once: `value` says which, `complete` fills in all that were asked for."""

    def __init__(self, meter: Meter, containers: Containers, any_order: bool = False) -> None:
        self.meter, self._containers, self._any_order = meter, containers, any_order
        self.cases = Cases(meter)
        self.values: list[Value] = []
        self.sound: set[ContainerAutomaton] = set()  # every state reaches the end if every step can be taken
        self._single: dict[Node, Value] = {}
        self._several: dict[Parts, Value] = {}
        self._parts: dict[Value, Parts] = {}  # of values with several labels
        self._forks: list[Step] = []  # steps that lead to several states, since values were last trimmed
        self._wide: set[Step] = set()  # those whose value has a label that leads nowhere
        self._alive: dict[Value, int] = {}  # the labels of each value that some text has
        self._trimmed = 0  # values of which these are known
        self._cleaned: dict[ContainerAutomaton, bool] = {}  # whether any text is left, of what is trimmed
        self._narrow: set[ContainerAutomaton] = set()  # whose steps are narrow
        self.unordered: list[Unordered] = []  # those of objects in any order, but for the usual ones
        self.levels: int | None = None  # how many objects and arrays may be open at once; None for any number
        self._lock = threading.RLock()
        self._over: Exception | None = None
        self._grows = False
        self._work: list[tuple[Value, Parts]] = []
        self._numbers: dict[Parts, Labelled | None] = {}
        self._texts: dict[Parts, StringSet | None] = {}
        self._arrays: dict[Parts, ArrayAutomaton | None] = {}
        self._objects: dict[Parts, ObjectAutomaton | None] = {}
        self._restricted: dict[int, dict[Node, Node]] = {kind: {} for kind in _KINDS}
        self._by_kind: dict[Node, dict[int, Node]] = {}

    def value(self, parts: Parts) -> Value:
        """Return the value of pairwise disjoint formulas, label i for parts[i]; `complete` fills it."""
        if len(parts) == 1:
            return self.one(self.cases.flat(parts[0]))
        parts = tuple([self.cases.flat(part) for part in parts])
        found = self._several.get(parts)
        if found is None:
            found = self._several[parts] = self._shell(parts)
            self._parts[found] = parts
        return found

    def one(self, node: Node) -> Value:
        """Return the value of one formula without a `Reference` in place."""
        found = self._single.get(node)
        if found is None:
            found = self._single[node] = self._shell((node,))
        return found

    def step(self, cases: Sequence[Case], following: tuple[int, ...]) -> Step:
        """Return the step by a value whose cases lead to these states."""
        if len(cases) == 1:
            return Step(self.value((cases[0][0],)), following)
        step = Step(self.value(tuple([condition for condition, _ in cases])), following)
        self._forks.append(step)
        return step

    def complete(self) -> None:
        """Fill every value that was asked for, also those asked for on the way."""
        work = self._work
        while work:
            value, parts = work.pop()
            self._fill(value, parts)

    def trimmed(self) -> Mapping[Value, int]:
        """Fill and trim the values that were asked for; return the labels of each value that some text has."""
        while self._work:
            self.complete()
            new, self._trimmed = self.values[self._trimmed :], len(self.values)
            trim(new, self.sound, self._alive, self._cleaned)
            forks, self._forks = self._forks, []
            self._wide.update(filter(self._is_wide, forks))
        return self._alive

    def narrow(self, step: Step) -> None:
        """Take the labels that lead nowhere out of the values of a step, and of all steps below.

        A text whose label leads nowhere must not be begun.
        """
        pending = [step]
        self._leave_out(step)
        while pending and self._wide:
            value = pending.pop().value
            for automaton in (value.array, value.object):
                # in any order, steps are narrow when they are made
                if automaton is not None and automaton not in self._narrow:
                    self._narrow.add(automaton)
                    if isinstance(automaton, ArrayAutomaton) or automaton.unordered is None:
                        for below in all_steps(automaton):
                            self._leave_out(below)
                            pending.append(below)

    @contextmanager
    def growing(self, meter: Meter | None = None) -> Iterator[None]:
        """Within it values and states are made that a text comes to. Raises the error that ended this before.

        meter: of what is made from now on.
        """
        with self._lock:
            self.meter = self.cases.meter = meter or self.meter
            if self._grows:
                yield
                return
            if self._over is not None:
                raise copy.copy(self._over)
            self._grows, self._over = True, TableError(_INTERRUPTED)
            try:
                yield
            except (BudgetError, SchemaError) as error:
                self._over = copy.copy(error)
                raise
            finally:
                self._grows = False
            self._over = None

    def _is_wide(self, step: Step) -> bool:
        """Return whether a value of a step may have a label that leads nowhere."""
        labels = self._alive[step.value]
        return any(to < 0 and labels >> label & 1 for label, to in enumerate(step.following))

    def _leave_out(self, step: Step) -> None:
        """Take the labels that lead nowhere out of the value of a step."""
        if self._is_wide(step):
            parts, ways = self._parts[step.value], [(i, to) for i, to in enumerate(step.following) if to >= 0]
            self._wide.discard(step)
            step.value = self.value(tuple([parts[i] for i, _ in ways]))
            step.following = tuple([to for _, to in ways])
            self.trimmed()

    def _shell(self, parts: Parts) -> Value:
        value = Value(len(parts))
        self.values.append(value)
        self._work.append((value, parts))
        if not len(self.values) & 127:
            self.meter.check(states=len(self.values), doing=_FINDING)
        return value

    def _fill(self, value: Value, parts: Parts) -> None:
        maps = [self.by_kind(part) for part in parts]
        for label, kinds in enumerate(maps):
            for kind, name in _LITERALS:
                if kind in kinds:
                    value.literals[name] = label
        key = _at(maps, NUMBER)
        if key is not None:
            if key not in self._numbers:
                self._numbers[key] = numbers.numbers(key, self.meter)
            value.number = self._numbers[key]
        key = _at(maps, STRING)
        if key is not None:
            if key not in self._texts:
                self._texts[key] = strings.texts(key, self.meter)
            value.string = self._texts[key]
        key = _at(maps, ARRAY)
        if key is not None:
            if key not in self._arrays:
                label = _free(key)
                self._arrays[key] = ArrayAutomaton(free=label) if label >= 0 else self._containers.arrays(self, key)
            value.array = self._arrays[key]
        key = _at(maps, OBJECT)
        if key is not None:
            if key not in self._objects:
                label = _free(key)
                self._objects[key] = (
                    ObjectAutomaton(free=label) if label >= 0 else self._containers.objects(self, key, self._any_order)
                )
            value.object = self._objects[key]

    def by_kind(self, node: Node) -> dict[int, Node]:
        """Return what a formula says of each type, without the types of which it says NEVER."""
        found = self._by_kind.get(node)
        if found is None:
            found = self._by_kind[node] = self._take_apart(node)
        return found

    def _take_apart(self, node: Node) -> dict[int, Node]:
        shape = type(node)
        if shape is AnyOf:
            alternatives: dict[int, list[Node]] = {}
            for i, part in enumerate(node.args):
                if not i & 15:
                    self.meter.check(doing=_FINDING)
                for kind, formula in self.by_kind(part).items():
                    alternatives.setdefault(kind, []).append(formula)
            return {kind: any_of(found) if len(found) > 1 else found[0] for kind, found in alternatives.items()}
        mask = EVERYTHING
        groups: dict[int, list[Node]] = {}
        for part in node.args if shape is AllOf else (node,):
            kind = part.kind
            if not kind:
                if type(part) is Types:
                    mask &= part.args[0]
                    continue
                if type(part) is not Not or not part.args[0].kind:
                    return {
                        k: formula for k in _KINDS if not is_never(formula := restrict(node, k, self._restricted[k]))
                    }
                kind = part.args[0].kind
                mask &= kind
            groups.setdefault(kind, []).append(part)
        apart = {}
        for kind in _KINDS:
            if mask & kind:
                found = groups.get(kind)
                apart[kind] = ANY if found is None else found[0] if len(found) == 1 else AllOf(*found)
        return apart


def _at(maps: Sequence[Mapping[int, Node]], kind: int) -> Parts | None:
    """Return what each label's formula says of a type; None if all say NEVER."""
    if len(maps) == 1:
        found = maps[0].get(kind)
        return None if found is None else (found,)
    key = tuple([kinds.get(kind, NEVER) for kinds in maps])
    return None if all(map(is_never, key)) else key


def _free(parts: Parts) -> int:
    """Return the label under which everything is allowed; -1 if there is none."""
    free = -1
    for label, part in enumerate(parts):
        if is_any(part):
            free = label
        elif not is_never(part):
            return -1
    return free
