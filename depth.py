"""How deep constraints may be nested: a limit for each kind, looked at before anything recurses into the constraint.

A reader counts levels as it goes, and refuses a constraint at the first level too many, with `limit`, `allowed` and the
place in its error. JSON is counted without recursion before Python's own reader and writer see it, as these recurse.
Within the limits, all that recurses takes at most some 600 of the 1,000 calls that Python allows inside one another.
Where a caller has used up more of these, `enough_stack` makes the front door's own error of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .errors import ConstraintError

MOST_LEVELS = 640  # of objects and arrays in JSON (a schema, a tag, a list of choices), of parentheses in EBNF and GBNF
MOST_PARTS = 200_000  # objects and arrays in one
MOST_IN_PLACE = 128  # subschemas that apply to the same value, through keywords such as anyOf, and through references
MOST_FORMATS = 64  # formats of structural tags in formats
MOST_GROUPS = 250  # groups of a pattern in groups
MOST_LOOKS = 40  # lookarounds of a pattern in lookarounds: each is an automaton inside another
MOST_PARENTHESES = 100  # parentheses and brackets of a grammar in others, which are read at once
MOST_TIMES_OVER = 8  # how often what a grammar repeats is repeated, as in "a"{2}{3}
MOST_LITERAL = 100_000  # characters of a text or a pattern in a grammar in Lark's notation with many brackets
MOST_TERMINALS = 64  # terminals of a grammar that consist of others
MOST_RULES = 6_000  # definitions in a grammar: a chain of so many compiles within a second

LIMIT = "depth"
"""What `limit` of an error says where a constraint is nested too deeply."""


class TooDeep(NamedTuple):
    """Where JSON goes beyond a limit."""

    message: str
    allowed: int
    position: int | None = None  # of the bracket in a text
    path: tuple[str | int, ...] = ()  # the first keys that lead there in a value


def too_many_levels(levels: int = MOST_LEVELS) -> str:
    return f"objects and arrays are nested more than {levels} deep: make it flatter, a schema by $defs and $ref"


_TOO_MANY_PARTS = f"it has more than {MOST_PARTS:,} objects and arrays: make it smaller"

# ------------------------------------------------------------------------------------------------------------ JSON

# up to a bracket or the end: a search that failed would look again from each character
_BRACKET = re.compile(r'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"?+[^"{}\[\]]*+)*+([{}\[\]]|\Z)', re.DOTALL)
_SHOWN = 8  # keys of a path: the whole of it is long


def deep_text(text: str, most: int = MOST_LEVELS) -> TooDeep | None:
    """Return where a JSON text is nested too deeply, None if it is not. What is malformed is not looked at."""
    if text.count("{") + text.count("[") <= min(most, MOST_PARTS):
        return None
    depth = parts = 0
    for found in _BRACKET.finditer(text):
        if found[1] in "}]":  # or "" at the end
            depth -= 1
            continue
        depth, parts = depth + 1, parts + 1
        if depth > most:
            return TooDeep(too_many_levels(most), most, found.end() - 1)
        if parts > MOST_PARTS:
            return TooDeep(_TOO_MANY_PARTS, MOST_PARTS, found.end() - 1)
    return None


def deep_value(value: object, most: int = MOST_LEVELS) -> TooDeep | None:
    """Return where a value is nested too deeply, None if it is not.

    What several parts share counts wherever it is. A part that contains itself is counted to where it begins again.
    """
    level, levels, parts = inside([[value]]), 0, 0
    while level:
        levels, parts = levels + 1, parts + len(level)
        if levels > most or parts > MOST_PARTS:
            return _exactly(value, most)
        level = inside(level)
    return None


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _is_whole(part: object) -> bool:
    return type(part) not in _SCALARS and isinstance(part, (dict, list, tuple))


def inside(wholes: Iterable[Any]) -> list[Any]:
    """Return the objects and arrays directly inside some others."""
    return [
        part
        for whole in wholes
        for part in (whole.values() if isinstance(whole, dict) else whole)
        if type(part) not in _SCALARS and isinstance(part, (dict, list, tuple))
    ]


def _exactly(value: object, most: int) -> TooDeep | None:
    """Return what `deep_value` does, by looking at each part once, however often it is used."""
    height: dict[int, int] = {}  # of each part that is done, 0 of one that is begun
    keys: list[str | int] = []
    open_parts: list[tuple[Any, Iterator[tuple[str | int, Any]]]] = []

    def begin(part: Any) -> None:
        height[id(part)] = 0
        open_parts.append((part, iter(part.items() if isinstance(part, dict) else enumerate(part))))

    begin(value)
    tallest = [1]  # of each open part, as far as it was looked at
    while open_parts:
        part, rest = open_parts[-1]
        for key, inner in rest:
            if not _is_whole(inner):
                continue
            known = height.get(id(inner))
            if len(open_parts) + (1 if known is None else known) > most:
                return TooDeep(too_many_levels(most), most, path=(*keys, key)[:_SHOWN])
            if known is None:
                if len(height) >= MOST_PARTS:
                    return TooDeep(_TOO_MANY_PARTS, MOST_PARTS, path=(*keys, key)[:_SHOWN])
                begin(inner)
                keys.append(key)
                tallest.append(1)
                break
            tallest[-1] = max(tallest[-1], 1 + known)
        else:
            open_parts.pop()
            height[id(part)] = tall = tallest.pop()
            if open_parts:
                keys.pop()
                tallest[-1] = max(tallest[-1], 1 + tall)
    return None


# --------------------------------------------------------------------------------------------------------- pickling


class _Part(NamedTuple):
    """What stands in place of a part: its place among all parts."""

    at: int


class Flat:
    """A JSON value whose pickle is a list of its parts, as pickle recurses twice a level; unpickled it is the value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        if type(self.value) not in (dict, list, tuple):
            return _same, (self.value,)
        wholes, places = [self.value], {id(self.value): _Part(0)}
        for whole in wholes:  # which grows
            for inner in whole.values() if type(whole) is dict else whole:
                if type(inner) in (dict, list, tuple) and id(inner) not in places:
                    places[id(inner)] = _Part(len(wholes))
                    wholes.append(inner)
        return _made_of, ([_shallow(whole, places) for whole in wholes],)


def _same(value: object) -> Any:
    return value


def _shallow(whole: Any, places: dict[int, _Part]) -> Any:
    if type(whole) is dict:
        return {key: places.get(id(inner), inner) for key, inner in whole.items()}
    return type(whole)(places.get(id(inner), inner) for inner in whole)


def _made_of(parts: list[Any]) -> Any:
    """Return the value of the parts that `Flat` lists; what is a tuple is made a list, which schemas tell as little."""
    wholes = [dict(part) if type(part) is dict else list(part) for part in parts]
    for whole in wholes:
        for key, inner in whole.items() if type(whole) is dict else enumerate(whole):
            if type(inner) is _Part:
                whole[key] = wholes[inner.at]
    return wholes[0]


# ------------------------------------------------------------------------------------------------------------- stack

_NO_STACK = (
    "the stack of calls is nearly full where this is compiled: compile it further up, or raise sys.setrecursionlimit"
)


@contextmanager
def enough_stack(error: Callable[[str], ConstraintError] = ConstraintError) -> Iterator[None]:
    """Raise a front door's own error, of a message, where Python's stack has no room for what a constraint needs."""
    try:
        yield
    except RecursionError:
        raise error(_NO_STACK).reaching(LIMIT) from None
