"""A grammar as its front end leaves it: rules over terminals, whatever notation it was written in.

A terminal is a set of byte strings. Between terminals, before the first and after the last, stands whatever the grammar
ignores; within one nothing does. A text is in the language if some derivation of the start rule spells it: there is no
lexer, and no choice of one derivation over another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...automata.dfa import Dfa
from ...errors import GrammarError


@dataclass(frozen=True, eq=False, slots=True)
class Text:
    """These bytes, which are a terminal."""

    data: bytes


@dataclass(frozen=True, eq=False, slots=True)
class Terminal:
    """Any one of a regular set of byte strings."""

    name: str  # for messages
    dfa: Dfa
    pattern: str | None = None  # in Python's syntax, if it was given by one
    contexts: tuple[tuple[Dfa, Dfa], ...] = ()  # its words in parts, each with what may follow, if it asks: `contexts`
    lazy: Dfa | None = None  # where one of these words was read, nothing that began with it goes on: `lazy_terminals`


@dataclass(frozen=True, eq=False, slots=True)
class Special:
    """A token that has no bytes, by its name in the tokenizer, such as `<|tool|>`."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Rule:
    """What a rule derives."""

    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Sequence:
    """All items, one after the other; none of them is the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """Any one of the items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Repeat:
    """An item, low to high times in a row; without end where high is None."""

    item: Node
    low: int
    high: int | None


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """Two terminals and what stands between them, which is read with a stack of its own: see `regions`."""

    opener: Text | Terminal
    body: Node
    closer: Text | Terminal


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """The ways from a state to another: edges (state, what is read, next state); a text may be empty."""

    states: int
    edges: tuple[tuple[int, Text | Terminal | Special, int], ...]
    start: int
    end: int


Node = Text | Terminal | Special | Rule | Sequence | Choice | Repeat | Region | Graph

EMPTY = Sequence(())
NEVER = Choice(())
"""What derives no text at all."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """Rules by name, and where the language begins.

    ignored: what may stand between terminals, any number of times in a row. source: the text that it was read from, and
    where: at which character of it each rule begins; both are for messages. schemas: JSON texts, and where each begins,
    of the values that stand in rules as special tokens.
    """

    rules: Mapping[str, Node]
    start: str
    ignored: Dfa | None = None
    source: str = ""
    where: Mapping[str, int] | None = None
    schemas: tuple[tuple[str, int], ...] = ()

    def error(self, message: str, rule: str) -> GrammarError:
        """Return an error about a rule."""
        return GrammarError(message, self.source, (self.where or {}).get(rule, 0))


MOST_TIMES = 2**31 - 1
"""The most often that a grammar may repeat something."""


def times(digits: str) -> int:
    """Return the number that decimal digits write, or one more than `MOST_TIMES` if it is larger.

    Python reads no more than some thousands of digits.
    """
    return min(int(digits.lstrip("0") or 0), MOST_TIMES + 1) if len(digits.lstrip("0")) <= 10 else MOST_TIMES + 1
