"""Sketches: sets of values that are easily computed with, and that hold all values of a formula."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import NamedTuple

from .algebra import ARRAY, EVERYTHING, NUMBER, OBJECT, STRING, Node, OneOfValues, Types, Words, all_of, any_of

Listed = str | Decimal | tuple[int]
"""A value that a sketch lists: a string, a number, or the bit of a type that has one value."""


class Sketch(NamedTuple):
    """A set of values that is easily computed with: some types, and of strings and numbers perhaps only some."""

    mask: int
    words: frozenset[str] | None  # None for all; only meaningful, and then not empty, where mask has STRING
    numbers: frozenset[Decimal] | None
    exact: bool  # the node sketched is this set, not just part of it

    @staticmethod
    def of(mask: int, words: frozenset[str] | None, numbers: frozenset[Decimal] | None, exact: bool) -> Sketch:
        """Return a sketch without the words and numbers of types that are not in the mask."""
        return Sketch(mask, words if mask & STRING else None, numbers if mask & NUMBER else None, exact)

    def meet(self, other: Sketch) -> Sketch:
        """Return the intersection."""
        mask = self.mask & other.mask
        words = other.words
        if self.words is not None:
            words = self.words if words is None else self.words & words
        numbers = other.numbers
        if self.numbers is not None:
            numbers = self.numbers if numbers is None else self.numbers & numbers
        if words is not None and not words:
            mask &= ~STRING
        if numbers is not None and not numbers:
            mask &= ~NUMBER
        return Sketch.of(mask, words, numbers, self.exact and other.exact)

    def join(self, other: Sketch) -> Sketch:
        """Return the union."""
        words: frozenset[str] | None = frozenset()
        numbers: frozenset[Decimal] | None = frozenset()
        for part in (self, other):
            if part.mask & STRING:
                words = None if words is None or part.words is None else words | part.words
            if part.mask & NUMBER:
                numbers = None if numbers is None or part.numbers is None else numbers | part.numbers
        mask = self.mask | other.mask
        return Sketch.of(mask, words, numbers, self.exact and other.exact)

    def minus(self, other: Sketch) -> Sketch:
        """Return a set that has all of `self` but what is in `other`; `self` itself where nothing is plainly gone."""
        if not other.exact:
            return self
        gone = other.mask
        words, numbers = self.words, self.numbers
        if gone & STRING and other.words is not None:
            words = None if words is None else words - other.words
            gone = gone & ~STRING if words is None or words else gone
        if gone & NUMBER and other.numbers is not None:
            numbers = None if numbers is None else numbers - other.numbers
            gone = gone & ~NUMBER if numbers is None or numbers else gone
        mask = self.mask & ~gone
        if mask == self.mask and words == self.words and numbers == self.numbers:
            return self
        return Sketch.of(mask, words, numbers, False)

    def is_finite(self) -> bool:
        """Return whether all values are listed."""
        return not (
            self.mask & (ARRAY | OBJECT)
            or (self.mask & STRING and self.words is None)
            or (self.mask & NUMBER and self.numbers is None)
        )

    def values(self) -> Iterable[Listed]:
        """Yield the values of a finite sketch in a fixed order."""
        for k in range(7):
            kind = 1 << k
            if not self.mask & kind:
                continue
            if kind == STRING:
                yield from sorted(self.words or ())
            elif kind == NUMBER:
                yield from sorted(self.numbers or ())
            else:
                yield (kind,)


ALL = Sketch(EVERYTHING, None, None, True)
"""All values."""

_PLAIN = re.compile(r"\^(?:([\w -]+)|\((?:\?:)?([\w -]+(?:\|[\w -]+)*)\))\$", re.ASCII)


def spelled(pattern: str) -> frozenset[str] | None:
    """Return the strings that a pattern spells out, None where it is not just that.

    >>> sorted(spelled("^(a|bc)$")), spelled("^a|b$"), spelled("^a+$")
    (['a', 'bc'], None, None)
    """
    found = _PLAIN.fullmatch(pattern)
    return None if found is None else frozenset((found[1] or found[2]).split("|"))


def node_of(values: Iterable[Listed]) -> Node:
    """Return the node of some values of finite sketches."""
    words, numbers, mask = [], [], 0
    for value in values:
        if isinstance(value, str):
            words.append(value)
        elif isinstance(value, Decimal):
            numbers.append(value)
        else:
            mask |= value[0]
    parts: list[Node] = [Types(mask)] if mask else []
    if words:
        parts.append(all_of([Types(STRING), Words(tuple(words))]))
    if numbers:
        parts.append(all_of([Types(NUMBER), OneOfValues(frozenset(numbers))]))
    return any_of(parts)
