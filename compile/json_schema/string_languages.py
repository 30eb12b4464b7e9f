"""Formulas about strings as automata over the UTF-8 of their content, and whether a string is in a formula.

Some formats' languages are known only between two bounds (see `formats`). A string in the gap is in neither the formula
nor its negation: it is refused on either side, and nothing is accepted wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from ...automata import ops, utf8
from ...automata.budget import Budget, Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.labelled import spelled
from ...automata.minimize import canonical
from ...errors import SchemaError
from ..regex.lower import to_dfa
from . import formats
from .algebra import AllOf, AnyOf, Format, Length, Node, Not, Pattern, Types, Words, atoms, once_each
from .memo import remembered

_languages: dict[object, Dfa] = {}


def language(node: Node, meter: Meter) -> Dfa:
    """Return the strings that are surely in a formula, as UTF-8.

    The language of the negation has the strings that are surely not in it: all others, unless a format has a gap.
    """
    return remembered(_languages, node, lambda: _language(node, meter))


def _language(node: Node, meter: Meter) -> Dfa:
    made, most = uncut(node, meter)
    return made if most is None else ops.intersection(made, counted(0, most, meter), meter)


def uncut(node: Node, meter: Meter) -> tuple[Dfa, int | None]:
    """Return the same without an upper bound on characters, and that bound; None for no bound."""
    kind = type(node)
    if kind is AnyOf:
        return ops.unions([language(part, meter) for part in node.args], meter), None
    inner: list[Dfa] = []
    outer: list[Dfa] = []
    low, high = 0, None
    for part in node.args if kind is AllOf else (node,):
        shape = type(part)
        if shape is Length:
            low = max(low, part.args[0])
            if part.args[1] is not None:
                high = part.args[1] if high is None else min(high, part.args[1])
        elif shape is Pattern:
            inner.append(_pattern(part.args[0], meter))
        elif shape is Format:
            inner.append(formats.language(part.args[0], meter))
        elif shape is Words:
            inner.append(spelled_out(part.args[0], meter))
        elif shape is AnyOf:
            inner.append(language(part, meter))
        elif shape is Types:
            if not part.args[0]:
                return nothing(), None
        elif shape is Not:
            atom = part.args[0]
            if type(atom) is Pattern:
                outer.append(_pattern(atom.args[0], meter))
            elif type(atom) is Format:
                outer.append(formats.superset(atom.args[0], meter))
            elif type(atom) is Length:
                outer.append(counted(atom.args[0], atom.args[1], meter))
            elif type(atom) is Words:
                outer.append(spelled_out(atom.args[0], meter))
            else:
                raise TypeError(f"not about strings: {node!r}")
        else:
            raise TypeError(f"not about strings: {node!r}")
    inner = inner or [utf8.text()]  # `counted` needs valid UTF-8 beside it
    made = ops.intersections([*inner, counted(low, None, meter)] if low else inner, meter)
    for dfa in sorted(outer, key=lambda dfa: dfa.transition.size):
        made = ops.difference(made, dfa, meter)
    return made, high


def holds(node: Node, text: str, meter: Meter | None = None) -> bool:
    """Whether a string is in a formula as `algebra.restrict` makes it for STRING.

    Raises SchemaError if that cannot be told, as of a host name with an internationalised label.
    """
    told = truth_of(node, text, Budget().begin() if meter is None else meter)
    if told is None:
        name = next(atom.args[0] for atom in atoms(node) if type(atom) is Format)
        raise SchemaError(
            f"whether {text!r} is of the format {name!r} cannot be told exactly: {formats.INEXACT.get(name, '')}",
            "",
            "format",
        )
    return told


@once_each
def truth_of(node: Node, text: str, meter: Meter) -> bool | None:
    """Return whether a string is in a formula; None if it is in the gap of a format that decides."""
    kind = type(node)
    if kind is Types:
        return bool(node.args[0])
    if kind is Words:
        return text in node.args[0]
    if kind is Length:
        low, high = node.args
        return low <= len(text) and (high is None or len(text) <= high)
    if kind is Not:
        inner = truth_of(node.args[0], text, meter)
        return None if inner is None else not inner
    if kind is AllOf or kind is AnyOf:
        unless = kind is AnyOf  # one part of this truth settles it
        settled: bool | None = not unless
        for part in node.args:
            inner = truth_of(part, text, meter)
            if inner is unless:
                return unless
            if inner is None:
                settled = None
        return settled
    word = text.encode("utf-8", "surrogatepass")  # no language has a word with a surrogate
    if kind is Pattern:
        return _pattern(node.args[0], meter).accepts(word)
    if kind is Format:
        if formats.language(node.args[0], meter).accepts(word):
            return True
        return None if formats.superset(node.args[0], meter).accepts(word) else False
    raise TypeError(f"not about strings: {node!r}")


def _pattern(source: str, meter: Meter) -> Dfa:
    """Return the strings in which a pattern matches somewhere."""
    return remembered(_languages, source, lambda: to_dfa(source, dialect="ecma", search=True, meter=meter))


def spelled_out(words: Sequence[str], meter: Meter) -> Dfa:
    """Return the DFA of some words."""
    found = utf8_of(dict.fromkeys(words, 0))
    if not found:
        return nothing()
    made = spelled(found, meter)
    return Dfa(made.class_of, made.transition, made.label == 0)


def utf8_of(words: Mapping[str, int]) -> dict[bytes, int]:
    """Return the UTF-8 of words with their labels, without words that have a lone surrogate."""
    return {word.encode(): label for word, label in words.items() if is_text(word)}


def is_text(word: str) -> bool:
    """Return whether a word has UTF-8: one with a lone surrogate has none."""
    try:
        word.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def counted(low: int, high: int | None, meter: Meter) -> Dfa:
    """Return an automaton that among valid UTF-8 accepts the words of low .. high code points."""
    if high is not None and high < low:
        return nothing()
    longest = low if high is None else high
    meter.check(states=longest + 1, bytes=10 * (longest + 1), doing=f"counting to {longest:,} characters")
    class_of = np.zeros(BYTES, np.uint16)
    class_of[0x80:0xC0] = 1  # all but a character's first byte
    transition = np.empty((longest + 1, 2), np.int32)
    transition[:, 1] = np.arange(longest + 1)
    transition[:, 0] = np.arange(1, longest + 2)
    transition[longest, 0] = longest if high is None else -1
    return canonical(class_of, transition, np.arange(longest + 1) >= low, meter=meter)


@lru_cache(maxsize=1)
def nothing() -> Dfa:
    """Return the DFA of no word."""
    return canonical(np.zeros(BYTES, np.uint16), np.full((1, 1), -1, np.int32), np.zeros(1, np.bool_))
