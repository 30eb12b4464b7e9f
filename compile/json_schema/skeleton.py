"""The skeleton of a schema: automata whose letters are members and items, deterministic down to each value.

At every place where a value stands, a `Value` says what may stand there. Several disjoint sets of values may lead on in
different ways: they are *labels* 0 .. labels - 1, and the end of the value's text tells which it was in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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

    most: the code points that they have at most, None for no bound; where it is not, all words have one label.
    """

    content: Labelled
    most: int | None = None


Text = Free | Bounded | Finite | Regular


@dataclass(eq=False, slots=True)
class Step:
    """A value, then on: in state following[label], which is -1 where a value of that label may not stand here."""

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

    Where an alternative is out, keys that only it declares mean nothing any more. They are then read as undeclared keys
    are, after all others: for such a key steps[j] is others[0], that very step, in all states that have others[0].
    """

    close: int
    first: int
    last: int
    steps: Sequence[Step | None]  # (len(keys),), shared
    others: Mapping[int, Step]  # by class of undeclared keys, shared too; empty where none may come yet or at all


@dataclass(eq=False, slots=True)
class ObjectAutomaton:
    """Objects; state 0 is the start. `free`: the label under which every object is allowed; then there are no states.

    keys: those the schema names, in the order in which they are written. Undeclared keys come after them. Without
    `language` they are all of one class, 0. With it, its words are keys as UTF-8: label j < len(keys) is the key j, and
    label len(keys) + c is an undeclared key of class c.
    """

    free: int = -1
    keys: tuple[str, ...] = ()
    language: Labelled | None = None
    states: list[ObjectState] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Value:
    """What may stand at a place, by type; None and missing literals where a type may not stand."""

    labels: int
    literals: dict[str, int] = field(default_factory=dict)  # "null", "true", "false" -> label
    number: Labelled | None = None  # over the number's text
    string: Text | None = None
    array: ArrayAutomaton | None = None
    object: ObjectAutomaton | None = None
