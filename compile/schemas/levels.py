"""The levels of a frame: how far the values that were begun inside one another have come."""

from __future__ import annotations

from typing import NamedTuple

from ...automata.alphabet import Spelling
from ...automata.formulas import Formula
from ..json_schema.algebra import Node
from .key_trie import KeyBranch
from .object_shape import ObjectShape
from .schema_formulas import KEY, VALUE, Path

# As tuples these are never equal to each other: they differ in length, or in the type of a field.


class Value(NamedTuple):
    """A value that has not begun.

    before: bytes that are still to be read before it. space: what may stand before it then: 1 for a space, 2 for a
    space or a line break. asked: the nodes that it is asked to be in, in the order of the schema.
    """

    before: bytes
    space: int
    asked: tuple[Node, ...]


class Word(NamedTuple):
    """What is left of null, true or false."""

    rest: str


class Text(NamedTuple):
    """A string behind its opening quote; spelling: None where its formula is not yet about its content."""

    spelling: Spelling | None


class Number(NamedTuple):
    """A number; has_begun: whether its formula is about its text."""

    has_begun: bool
    of: None = None


class Object(NamedTuple):
    """An object between members.

    shape: the nodes that its value is asked to be in, where it has not been found out. place: the first declared key
    that may still come; where keys come in any order, those that came, a bit each. foreign: declared keys that were
    read as undeclared ones are before the last member, a bit each. phase: "{" at the beginning, "a" behind a member,
    "k" before a key, "," before a key behind a comma, "}" before the closing brace, or bytes that stand before a key.
    """

    shape: ObjectShape | tuple[Node, ...]
    place: int
    foreign: int
    phase: str | bytes


class Key(NamedTuple):
    """A key behind its opening quote that may become a declared one. The formula is that before the member.

    other: the formula of the frame for an undeclared key.
    """

    shape: ObjectShape
    place: int
    foreign: int
    branch: KeyBranch
    other: Formula


class OtherKey(NamedTuple):
    """An undeclared key that can no longer become a declared one, of which formulas ask something."""

    shape: ObjectShape
    place: int
    foreign: int


class Array(NamedTuple):
    """An array between items.

    atoms: those about it in the order of the schema. place: how many items there were, as far as it matters. phase: "["
    at the beginning, "a" behind an item, "]" before the closing bracket.
    """

    atoms: tuple[Node, ...]
    place: int
    phase: str


class Indentation(NamedTuple):
    """White space behind a line break: so many characters of a kind."""

    character: str
    width: int
    is_white: None = None
    is_line: None = None


Level = Value | Word | Text | Number | Object | Key | OtherKey | Array | Indentation
Levels = tuple[Level, ...]


class Frame(NamedTuple):
    """A formula and the levels that it speaks of. Without levels a value is complete, and the formula constant."""

    formula: Formula
    levels: Levels


Frames = tuple[Frame, ...]
"""Frames inside one another, the outermost first. A text goes on in one once those inside it have ended."""


def path_of(levels: Levels) -> Path:
    """Return the path of the innermost level."""
    path = (VALUE,) * (len(levels) - 1)
    return (*path, KEY) if type(levels[-1]) is OtherKey else path
