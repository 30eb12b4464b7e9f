"""The objects in a grammar in Lark's notation: the JSON behind %json, %regex and %llguidance, the rules behind %lark.

They are cut out before the text is parsed, since no table of tokens says where one ends.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from ...depth import LIMIT, MOST_LEVELS, deep_text
from ...errors import GrammarError
from .lark_parser import CUT, QUOTED

_KEYWORD = re.compile(rf"{QUOTED}|%(json|regex|lark|llguidance)\b(\s*)(\{{)?")
_IN_RULES = re.compile(rf"{QUOTED}|([{{}}])")
_IN_JSON = re.compile(r'"(?:\\.|[^"\\])*+"|([{}])', re.DOTALL)
_OPTIONS = ("no_forcing", "allow_invalid_utf8", "allow_initial_skip", "ignore_once")
_SUBSTRINGS = ("substring_chunks", "substring_words", "substring_chars")


def cut(text: str) -> tuple[str, dict[int, str]]:
    """Return a text with `CUT` in place of its objects, and these, with their braces, by where they begin.

    Raises GrammarError for an object that is missing or never closed.
    """
    if "%" not in text:
        return text, {}
    parts: list[str] = []
    found: dict[int, str] = {}
    at = end = 0
    while keyword := _KEYWORD.search(text, end):
        end = keyword.end()
        if keyword[1] is None:
            continue
        begin = end - 1
        if keyword[3] is None:
            _fail(text, keyword.end(), f"an object in braces must follow %{keyword[1]}")
        depth = 0
        for bracket in (_IN_RULES if keyword[1] == "lark" else _IN_JSON).finditer(text, begin):
            depth += {"{": 1, "}": -1, None: 0}[bracket[1]]
            if not depth and bracket[1]:
                break
        else:
            _fail(text, begin, "this { is never closed: add }")
        end = bracket.end()
        found[begin] = text[begin:end]
        parts += text[at:begin], CUT * (end - begin)
        at = end
    return "".join((*parts, text[at:])), found


def _fail(text: str, position: int, message: str) -> NoReturn:
    raise GrammarError(message, text, min(position, len(text)))


def options_of(text: str, position: int, source: str) -> dict[str, bool]:
    """Return what %llguidance says. Raises GrammarError for an option that is not known or not supported."""
    found = _object(text, position, source)
    for name, value in found.items():
        if name not in _OPTIONS:
            _fail(text, position, f"there is no option {name!r}: it is one of {', '.join(_OPTIONS)}")
        if not isinstance(value, bool):
            _fail(text, position, f"the option {name} is true or false")
    if found.get("allow_invalid_utf8"):
        _fail(text, position, "allow_invalid_utf8 is not supported, because texts are UTF-8: leave it out")
    return found


def chunks_of(text: str, position: int, source: str) -> list[str]:
    """Return the pieces of which %regex takes some in a row. Raises GrammarError."""
    found = _object(text, position, source)
    known = ", ".join(_SUBSTRINGS)
    for name in found:
        if name not in _SUBSTRINGS:
            _fail(text, position, f"%regex has no {name!r}: it is one of {known}")
    if len(found) != 1:
        _fail(text, position, f"%regex takes one of {known}, and this has {len(found)} of them")
    ((name, value),) = found.items()
    if name == "substring_chunks":
        if not isinstance(value, list) or not all(isinstance(chunk, str) for chunk in value):
            _fail(text, position, "substring_chunks takes a list of texts")
        return value
    if not isinstance(value, str):
        _fail(text, position, f"{name} takes a text")
    return list(value) if name == "substring_chars" else words_of(value)


def words_of(text: str) -> list[str]:
    """Return the runs of white space, of letters, digits and underscores, and of other characters in a text.

    >>> words_of("foo bar. baz_1")
    ['foo', ' ', 'bar', '.', ' ', 'baz_1']
    """
    return re.findall(r"\s+|\w+|[^\s\w]+", text)


def _object(text: str, position: int, source: str) -> dict[str, Any]:
    deep = deep_text(source)
    if deep is not None:
        raise GrammarError(deep.message, text, position + (deep.position or 0)).reaching(LIMIT, MOST_LEVELS)
    try:
        found = json.loads(source, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        _fail(text, position + error.pos, f"this is no JSON: {error.msg}")
    except ValueError as error:
        _fail(text, position, f"this is no JSON: {error}")
    assert isinstance(found, dict), "it begins with a brace"
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
