"""What a pattern says, as a tree: characters, sequences, choices, repeats, and assertions that hold between characters.

Flags, groups, case and the two dialects are gone: the parser has worked them into the nodes. Nodes are compared by
identity; the parser makes one node for equal assertions, so identity is what tells them apart. The order of branches
and whether a repeat is lazy say nothing about which texts match as a whole; a grammar's terminals ask for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...automata.utf8 import Ranges


@dataclass(frozen=True, eq=False, slots=True)
class Text:
    """These characters, one after the other; none at all for the empty text."""

    text: str


@dataclass(frozen=True, eq=False, slots=True)
class Chars:
    """Any one character of a set; none matches where the set is empty."""

    ranges: Ranges


@dataclass(frozen=True, eq=False, slots=True)
class Concat:
    """All items, one after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Union:
    """Any one of the items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Repeat:
    """An item, low to high times in a row; without end where high is None."""

    item: Node
    low: int
    high: int | None
    lazy: bool = False  # whether a backtracking matcher tries few before many


@dataclass(frozen=True, eq=False, slots=True)
class Look:
    """Here the text goes on with the item (or, behind, has just ended with it), or, negated, does not."""

    item: Node
    behind: bool
    negated: bool


@dataclass(frozen=True, eq=False, slots=True)
class Boundary:
    """Here a character of `word` meets one that is not or an end of the text; negated, anywhere else."""

    word: Ranges
    negated: bool
    in_empty: bool  # whether the negated one holds in the empty text


Edge: TypeAlias = Literal["start", "end", "last newline", "line start", "line end"]


@dataclass(frozen=True, eq=False, slots=True)
class Anchor:
    """A place in the text: its start, its end, its end but for one last newline, or either end of a line."""

    kind: Edge
    terminators: Ranges = ()  # the characters that end a line, for the two kinds that ask


@dataclass(frozen=True, eq=False, slots=True)
class Anything:
    """Any bytes at all; stands only beside an assertion, where other nodes see to it that the text is UTF-8."""


@dataclass(frozen=True, eq=False, slots=True)
class Marker:
    """One symbol beyond the bytes, which stands for a place in the text."""

    symbol: int


Node = Text | Chars | Concat | Union | Repeat | Look | Boundary | Anchor | Anything | Marker
Assertion = Look | Boundary | Anchor

EMPTY = Text("")
