"""The texts of one parameter that stand bare between its marks: strings as they are, and JSON's other scalars.

A reader tells a string from the other types by its text, so a string is none of the texts that some reader takes for
another type that may stand there. The mark behind the text is part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...automata import ops, utf8
from ...automata.budget import Budget, Meter
from ...automata.dfa import Dfa
from ...automata.labelled import Labelled, labelled
from ...automata.minimize import canonical
from ..json_schema.memo import remembered
from ..json_schema.skeleton import Bounded, Finite, Free, Regular, StringSet
from ..json_schema.string_languages import counted, nothing
from ..json_schema.strings import cut
from ..regex.lower import to_dfa
from .styles import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING, Style

_NUMBERS = r"[+-]?[\d_.]+(?:[eE][+-]?[\d_]+)?|[+-]?(?i:inf|infinity|nan)"
_READ_AS = {
    NULL: r"\s*(?i:null|none|nil)\s*",
    NUMBER: rf"\s*(?:{_NUMBERS})\s*",
    BOOLEAN: r"\s*(?i:true|false|yes|no|on|off|1|0)\s*",
    OBJECT: rf"(?s:\s*[\[{{\"].*)|\s*(?:{_NUMBERS}|(?i:true|false|null))\s*",
}
"""Of each type, the texts of which some reader makes a value that is no string, or may."""
_READ_AS[ARRAY] = _READ_AS[OBJECT]
_INTEGER = r"-?\d+"
_PLAIN_NUMBER = r"[^eE]*(?:[eE][+-]?\d{1,2})?"  # others may be infinite where they are read


class Bare(NamedTuple):
    """Texts with the mark `close` behind them, each with the label of its value. No one of them begins another."""

    labels: int
    content: Labelled
    close: bytes

    def of(self, label: int, meter: Meter) -> Dfa:
        """Return the texts of a label."""
        return _of(self.content, label, meter)


class Scalars(NamedTuple):
    """What may stand bare: words of JSON by label, numbers, strings, and the types that a reader may see instead."""

    labels: int
    literals: tuple[tuple[str, int], ...]
    number: Labelled | None
    string: StringSet | None
    others: frozenset[str] = frozenset()
    integers: bool = False  # whether a number that is not written as one would be read as a string

    @property
    def key(self) -> tuple[Any, ...]:
        """What the texts of these scalars follow from."""
        string, number = self.string, self.number
        of_string: Any = (type(string), *(getattr(string, name, None) for name in ("label", "low", "high", "most")))
        if isinstance(string, Finite):
            of_string = tuple(string.words.items())
        elif isinstance(string, Regular):
            of_string = _key(string.content), string.most
        of_number = None if number is None else _key(number)
        return self.labels, self.literals, of_number, of_string, self.others, self.integers


def _key(words: Labelled) -> tuple[bytes, ...]:
    return words.class_of.tobytes(), words.transition.tobytes(), words.label.tobytes()


_made: dict[Any, Bare | None] = {}


def bare(scalars: Scalars, style: Style, close: bytes, held: str, lines: bool, meter: Meter) -> Bare | None:
    """Return the texts of scalars in a style, None if there are none.

    close: the mark behind them. held: a pattern of what none of them holds. lines: whether the model puts a value on a
    line of its own, so that what is cut off it may be there.
    """
    key = scalars.key, style.close, close, held, lines
    return remembered(_made, key, lambda: _bare(scalars, style, close, held, lines, meter))


def _bare(scalars: Scalars, style: Style, close: bytes, held: str, lines: bool, meter: Meter) -> Bare | None:
    scalars, most = _without_bound(scalars)
    parts: list[Dfa] = []
    for label in range(scalars.labels):
        some, bound = _texts(scalars, style, label, held, meter), most
        if most is not None and lines and not some.is_empty:  # on a line of its own, so that what is cut need not count
            edge = _pattern(style.cuts or "")
            some, bound = _row((edge, some, edge), meter), most + 2
        elif style.cuts is not None and not some.is_empty:
            some = _cut(some, style, lines, meter)
        parts.append(some if bound is None else ops.intersection(some, counted(0, bound, meter), meter))
    if all(part.is_empty for part in parts):
        return None
    end = _literal(close)
    whole = [part if part.is_empty else ops.concat(part, end, meter) for part in parts]
    return Bare(scalars.labels, labelled(whole, meter), close)


def _without_bound(scalars: Scalars) -> tuple[Scalars, int | None]:
    """Return scalars without an upper bound on the characters of strings, and that bound.

    It stays where other scalars stand beside the strings. A bound is counted once all else is known: it multiplies the
    states, and what a reader cuts off only makes a string shorter.
    """
    string = scalars.string
    if scalars.literals or scalars.number is not None:
        return scalars, None
    if isinstance(string, Bounded):
        return scalars._replace(string=Bounded(string.label, string.low, None)), string.high
    if isinstance(string, Regular) and string.most is not None:
        return scalars._replace(string=Regular(string.content)), string.most
    return scalars, None


def _texts(scalars: Scalars, style: Style, label: int, held: str, meter: Meter) -> Dfa:
    """Return the texts that a reader takes for a value of a label, after it cut them."""
    words = [word for word, at in scalars.literals if at == label]
    found = [_any_of(words)] if words else []
    number = scalars.number
    if number is not None and (number.label == label).any():
        found.append(
            ops.intersection(
                _of(number, label, meter), _pattern(_INTEGER if scalars.integers else _PLAIN_NUMBER), meter
            )
        )
    if scalars.string is not None:
        strings = ops.difference(_strings(scalars.string, label, meter), _pattern(f"(?s:.*(?:{held}).*)"), meter)
        taken = [_READ_AS[kind] for kind in sorted(scalars.others - {STRING})]
        taken += [style.nulls] if style.nulls is not None else []
        for pattern in taken:
            strings = ops.difference(strings, _pattern(pattern), meter)
        if style.is_named and NULL in scalars.others:
            strings = ops.difference(strings, _pattern(r"\s*"), meter)
        found.append(strings)
    return ops.unions(found, meter) if found else nothing()


def _strings(strings: StringSet, label: int, meter: Meter) -> Dfa:
    """Return the strings of a label, as UTF-8."""
    if isinstance(strings, Regular):
        return _of(cut(strings, meter), label, meter)
    if isinstance(strings, Finite):
        words = [word for word, at in strings.words.items() if at == label and _has_utf8(word)]
        return _any_of(words) if words else nothing()
    if strings.label != label:
        return nothing()
    if isinstance(strings, Free):
        return utf8.text()
    assert isinstance(strings, Bounded)
    high = "" if strings.high is None else str(strings.high)
    return to_dfa(f"(?s:.{{{strings.low},{high}}})", meter=meter)


def _has_utf8(word: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in word)


def _cut(read: Dfa, style: Style, lines: bool, meter: Meter) -> Dfa:
    """Return the texts that readers who cut them read as one of some, and, unless `lines`, those who do not as well."""
    cuts = style.cuts
    edge, trimmed = _pattern(f"(?:{cuts})*"), _pattern(f"(?s:(?!{cuts}).*(?<!{cuts}))")
    whole = _row((edge, ops.intersection(read, trimmed, meter), edge), meter)
    if style.cuts_one:
        edge, front, back = _pattern(f"{cuts}"), _pattern(f"(?s:(?!{cuts}).*)"), _pattern(f"(?s:.*(?<!{cuts}))")
        ways = [
            ops.intersection(read, trimmed, meter), _row((edge, read, edge), meter),
            _row((edge, ops.intersection(read, back, meter)), meter),
            _row((ops.intersection(read, front, meter), edge), meter),
        ]  # fmt: skip
        whole = ops.unions(ways, meter)
    return whole if lines else ops.intersection(whole, read, meter)


def _row(parts: Sequence[Dfa], meter: Meter) -> Dfa:
    made = parts[0]
    for part in parts[1:]:
        made = ops.concat(made, part, meter)
    return made


def _of(words: Labelled, label: int, meter: Meter) -> Dfa:
    """Return the words of a label."""
    return canonical(words.class_of, words.transition, words.label == label, meter=meter)


def _any_of(words: Iterable[str]) -> Dfa:
    return ops.unions([_literal(word.encode()) for word in words], Budget().begin())


@lru_cache(64)
def _literal(data: bytes) -> Dfa:
    rows = np.full((len(data) + 1, 256), -1, np.int32)
    for at, byte in enumerate(data):
        rows[at, byte] = at + 1
    ends = np.zeros(len(data) + 1, np.bool_)
    ends[-1] = True
    return canonical(np.arange(256, dtype=np.uint16), rows, ends, meter=Budget().begin())


@lru_cache(256)
def _pattern(pattern: str) -> Dfa:
    return to_dfa(pattern, meter=Budget().begin())
