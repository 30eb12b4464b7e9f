"""The skeleton of a schema: automata whose letters are members and items, deterministic down to each value.

A `Value` says which values may stand at a place. Several disjoint sets of them may lead on in different ways. These are
the *labels* 0 .. labels - 1 of the value: the end of a text tells the label of the value that it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, overload

from ...automata.budget import Meter
from ...automata.labelled import Labelled


@dataclass(eq=False, slots=True)
class Free:
    """Any string."""

    label: int


@dataclass(eq=False, slots=True)
class Bounded:
    """Any string of low .. high code points; high None for no bound."""

    label: int
    low: int
    high: int | None


@dataclass(eq=False, slots=True)
class Finite:
    """A few strings, each with its label."""

    words: Mapping[str, int]


@dataclass(eq=False, slots=True)
class Regular:
    """Strings by a labelled DFA over the UTF-8 bytes of their content, without quotes and escapes.

    most: the most code points that they have, None for no bound. If there is a bound, all words have one label.
    """

    content: Labelled
    most: int | None = None


StringSet = Free | Bounded | Finite | Regular
"""The strings that may stand at a value."""


@dataclass(eq=False, slots=True)
class Step:
    """A value, and the state that it leads to by its label: following[label], -1 where such a value may not stand."""

    value: Value
    following: tuple[int, ...]


@dataclass(eq=False, slots=True)
class ArrayState:
    """After some items: the label of an array that ends here, or -1; and the next item."""

    close: int
    item: Step | None


@dataclass(eq=False, slots=True)
class ArrayAutomaton:
    """Arrays; state 0 is the start. `free`: the label under which every array is allowed; then there are no states."""

    free: int = -1
    states: list[ArrayState] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class ObjectState:
    """After some members: the label of an object that ends here, or -1; the next member by key or class of keys.

    Declared key j, by place in ObjectAutomaton.keys, may come next where first <= j < last and steps[j] is not None:
    it is then that step. Usually all states of an object share one list `steps` (the same object, so a step is shared
    by all states that have its key in their range), and only their ranges differ: keys are written in order, so that
    `first` goes up, and `last` is behind the next required key. Entries outside the range mean nothing here.

    Once an alternative is out, keys that only it declares mean nothing any more. They are then read as undeclared keys
    are: without `language`, steps[j] is the same object as others[0] for such a key.
    """

    close: int
    first: int
    last: int
    steps: Sequence[Step | None]  # (len(keys),), shared
    others: Mapping[int, Step]  # by class of undeclared keys


@dataclass(eq=False, slots=True)
class ObjectAutomaton:
    """Objects; state 0 is the start. `free`: the label under which every object is allowed; then there are no states.

    keys: those the schema names, in the order in which they are written. Undeclared keys come anywhere between. Without
    `language` they are all of one class, 0. With it, its words are keys as UTF-8: label j < len(keys) is the key j, and
    label len(keys) + c is an undeclared key of class c.

    Where members may come in any order, `states` only say whether there is such an object, and with which labels.
    `AnyOrder` reads the members, by `required`, the places of the keys that the usual object must have, or `unordered`.
    """

    free: int = -1
    keys: tuple[str, ...] = ()
    language: Labelled | None = None
    states: list[ObjectState] = field(default_factory=list)
    required: int | None = None  # a bit each
    unordered: Unordered | None = None

    @property
    def any_order(self) -> bool:
        """Whether members may come in any order, undeclared keys between declared ones."""
        return self.required is not None or self.unordered is not None

    def reading(self) -> Sequence[ObjectState]:
        """Return the states by whose steps members are read, or by steps for the same keys."""
        return self.states if self.required is None else self.states[-1:]


class UnorderedStates(Protocol):
    """What is left of formulas about an object after some members, whatever their order, by states; 0 is the start."""

    def state(self, i: int, meter: Meter | None = None) -> ObjectState:
        """Return a state: its steps are for all keys, and `close` says nothing. meter: of what is made for it."""

    def ends(self, i: int) -> tuple[tuple[int, int], ...]:
        """Return the ways to end in a state: a label, and the places of keys that must have come, a bit each."""


class Unordered(Protocol):
    """The states of an object whose members come in any order, made when they are asked for.

    levels: how many objects and arrays may be open at once in the schema, None for any number.
    """

    @property
    def levels(self) -> int | None: ...
    def read(self, meter: Meter | None = None) -> UnorderedStates:
        """Return the states. meter: of what is made for them."""


class AnyOrder(Sequence[ObjectState]):
    """The states of an object whose members come in any order, made when they are asked for; 0 is the start.

    A state is what is left, with the set of declared keys that came. The length is the number of states that some step
    leads to so far.
    """

    def __init__(self, automaton: ObjectAutomaton, meter: Meter | None = None) -> None:
        self._usual: ObjectState | None = None
        if automaton.required is not None:
            self._usual = replace(automaton.states[-1], first=0, last=len(automaton.keys))
        self._ends = ((0, automaton.required or 0),)
        self._unordered = None if automaton.unordered is None else automaton.unordered.read(meter)
        self._made: list[ObjectState | None] = []
        self._places: list[tuple[int, int]] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._number(0, 0)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> ObjectState: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ObjectState]: ...
    def __getitem__(self, index: int | slice) -> ObjectState | Sequence[ObjectState]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        found = self._made[index]
        if found is None:
            here, came = self.left(index), self.came(index)
            steps = [
                None if step is None or came >> j & 1 else Step(step.value, self.following(step, came | 1 << j))
                for j, step in enumerate(here.steps)
            ]
            others = {c: Step(step.value, self.following(step, came)) for c, step in here.others.items()}
            found = self._made[index] = ObjectState(self.close(index), 0, len(steps), steps, others)
        return found

    def left(self, index: int, meter: Meter | None = None) -> ObjectState:
        """Return what is left in a state, whose steps are for all keys, also those that came."""
        return self._usual or self._states.state(self._places[index][0], meter)

    def came(self, index: int) -> int:
        """Return the places of the declared keys that came, a bit each."""
        return self._places[index][1]

    def close(self, index: int) -> int:
        """Return the label of an object that ends in a state, or -1."""
        i, came = self._places[index]
        ends = self._ends if self._usual is not None else self._states.ends(i)
        return next((label for label, keys in ends if not keys & ~came), -1)

    def following(self, step: Step, came: int) -> tuple[int, ...]:
        """Return the states that a step of `left` leads to. came: the keys that came then."""
        return tuple([self._number(to, came) if to >= 0 else -1 for to in step.following])

    def _number(self, i: int, came: int) -> int:
        place = (0 if self._usual is not None else i), came  # the usual object is always in its only state
        found = self._numbers.get(place)
        if found is None:
            found = self._numbers[place] = len(self._places)
            self._places.append(place)
            self._made.append(None)
        return found

    @property
    def _states(self) -> UnorderedStates:
        assert self._unordered is not None
        return self._unordered


@dataclass(eq=False, slots=True)
class Value:
    """The values that may stand at a place, by type; None, or a missing literal, where a type may not stand."""

    labels: int
    literals: dict[str, int] = field(default_factory=dict)  # "null", "true", "false" -> label
    number: Labelled | None = None  # over the number's text
    string: StringSet | None = None
    array: ArrayAutomaton | None = None
    object: ObjectAutomaton | None = None


ContainerAutomaton = ArrayAutomaton | ObjectAutomaton


def all_steps(automaton: ContainerAutomaton) -> Iterable[Step]:
    """Return the steps of an object or array, each once, also those that its states share but do not take."""
    if isinstance(automaton, ArrayAutomaton):
        return {state.item: None for state in automaton.states if state.item is not None}
    found: dict[Step | None, None] = {}
    seen: set[int] = set()  # identities of lists and mappings of steps, which states share
    for state in automaton.states:
        if id(state.steps) not in seen:
            seen.add(id(state.steps))
            found.update(dict.fromkeys(state.steps))
        if id(state.others) not in seen:
            seen.add(id(state.others))
            found.update(dict.fromkeys(state.others.values()))
    return [step for step in found if step is not None]
