"""Read the characters of a pattern: escapes, and sets in brackets, in Python's dialect or ECMA 262's."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final, Literal

from ...automata.utf8 import Ranges
from ...errors import RegexError
from .tree import Anchor, Assertion, Boundary, Chars, Edge
from .unicode import (
    ASCII_DIGIT,
    ASCII_WORD,
    ECMA_SPACE,
    complement,
    ecma_ignoring_case,
    ignoring_case,
    property_of,
    shorthand,
    union,
)

Dialect = Literal["python", "ecma"]

IGNORE_CASE, MULTILINE, DOT_ALL, VERBOSE, ASCII, UNICODE = 1, 2, 4, 8, 16, 32

_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX = {"x": re.compile("[0-9a-fA-F]{2}"), "u": re.compile("[0-9a-fA-F]{4}"), "U": re.compile("[0-9a-fA-F]{8}")}
_OCTAL = re.compile("[0-7]{1,3}")
_LETTERS_AND_DIGITS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_NO_BOUNDARY_IN_EMPTY = re.fullmatch(r"\B", "") is not None  # `re` changed its mind in 3.14

NO_BACK_REFERENCES = "is not supported: to repeat what a group matched is not regular in general; write it out"

LAST_BACKSLASH = r"the pattern ends in a backslash: write \\ if one is meant"


class CharacterReader:
    """Reads escapes and sets in brackets at a position of a pattern.

    at: the position of the next character. assertions: the anchors and boundaries read so far, one object of each kind.
    """

    def __init__(self, pattern: str, dialect: Dialect) -> None:
        self.pattern: Final = pattern
        self.ecma: Final = dialect == "ecma"
        self.at = 0
        self.assertions: dict[Any, Assertion] = {}

    def error(self, message: str, position: int) -> RegexError:
        return RegexError(message, self.pattern, position)

    def assertion(self, kind: Edge, terminators: Ranges = ()) -> Assertion:
        return self.assertions.setdefault(kind, Anchor(kind, terminators))

    # ---------------------------------------------------------------------------------------------------- escapes

    def escape(self, flags: int, inside: bool) -> str | Ranges | Assertion:
        """Read what a backslash begins: a character, a set of characters, or, outside brackets, an assertion."""
        pattern, start = self.pattern, self.at
        c = pattern[start + 1 : start + 2]
        self.at += 2
        if not c:
            raise self.error(LAST_BACKSLASH, start)
        if c in "dDsSwW":
            return self._shorthand(c, flags)
        if c in "pP":
            return self._property(flags, start, c == "P")
        if c == "b" and inside:
            return "\b"
        if c in "bB" and not inside:
            word = self._shorthand("w", flags)
            return self.assertions.setdefault((c, word), Boundary(word, c == "B", self.ecma or _NO_BOUNDARY_IN_EMPTY))
        if c in _CONTROLS and not (self.ecma and c == "a"):
            return _CONTROLS[c]
        if c not in _LETTERS_AND_DIGITS:
            if not inside and "\ud800" <= c <= "\udfff":
                raise self._surrogate(start + 1)
            return c
        if c in "xu" or (c == "U" and not self.ecma):
            return self._hex(c, start, inside)
        if c.isdigit():
            return self._number(start, inside)
        if self.ecma:
            return self._ecma_escape(c, start)
        if c == "N":
            return self._named(start)
        if c in "AZ" and not inside:
            return self.assertion("start" if c == "A" else "end")
        raise self.error(
            f"there is no escape \\{c}{' inside brackets' if inside else ''}: write {c} if that is meant", start
        )

    def _shorthand(self, letter: str, flags: int) -> Ranges:
        if not self.ecma:
            return shorthand(letter, bool(flags & ASCII))
        ranges = {"d": ASCII_DIGIT, "s": ECMA_SPACE, "w": ASCII_WORD}[letter.lower()]
        if flags & IGNORE_CASE:
            ranges = ecma_ignoring_case(ranges)
        return complement(ranges) if letter.isupper() else ranges

    def _property(self, flags: int, start: int, negated: bool) -> Ranges:
        pattern = self.pattern
        if pattern[self.at : self.at + 1] == "{":
            end = pattern.find("}", self.at)
            if end < 0:
                raise self.error("this property is never closed: add }", start)
            name = pattern[self.at + 1 : end]
            self.at = end + 1
        else:
            name = pattern[self.at : self.at + 1]
            if self.ecma or not name.isalpha():
                raise self.error("a property needs braces: write it as \\p{L}", start)
            self.at += 1
        if name.startswith("^") and not self.ecma:
            name, negated = name[1:], not negated
        try:
            ranges = property_of(name, self.ecma)
        except LookupError as error:
            raise self.error(f"there is no property {name!r}: {error.args[0]}", start) from None
        if self.ecma:  # as ECMA 262 has it, case is ignored last, so that \P{Lu} ignoring case is everything
            ranges = complement(ranges) if negated else ranges
            return ecma_ignoring_case(ranges) if flags & IGNORE_CASE else ranges
        if flags & IGNORE_CASE:
            ranges = ignoring_case(ranges, bool(flags & ASCII))
        return complement(ranges) if negated else ranges

    def _character(self, point: int, start: int) -> str:
        if point > 0x10FFFF:
            raise self.error("there is no such character: Unicode ends at 10FFFF", start)
        return chr(point)

    def _surrogate(self, start: int) -> RegexError:
        how = r"write the pair as \u{...}" if self.ecma else r"write the character itself, or \U and eight digits"
        return self.error(f"half a surrogate pair is no character, and UTF-8 cannot hold it: {how}", start)

    def _hex(self, c: str, start: int, inside: bool) -> str:
        pattern = self.pattern
        if self.ecma and c == "u" and pattern[self.at : self.at + 1] == "{":
            end = pattern.find("}", self.at)
            digits = pattern[self.at + 1 : end] if end >= 0 else ""
            if not digits or not re.fullmatch("[0-9a-fA-F]+", digits):
                raise self.error(r"\u{ needs hexadecimal digits and } after it", start)
            self.at = end + 1
            point = int(digits, 16) if len(digits.lstrip("0")) <= 6 else 0x110000
        else:
            match = _HEX[c].match(pattern, self.at)
            if not match:
                raise self.error(f"\\{c} needs {_HEX[c].pattern[-2]} hexadecimal digits", start)
            self.at = match.end()
            point = int(match.group(), 16)
            if self.ecma and 0xD800 <= point < 0xDC00 and pattern.startswith("\\u", self.at):
                low = _HEX["u"].match(pattern, self.at + 2)
                if low and 0xDC00 <= int(low.group(), 16) < 0xE000:
                    self.at = low.end()
                    point = 0x10000 + ((point & 0x3FF) << 10) + (int(low.group(), 16) & 0x3FF)
        if not inside and 0xD800 <= point <= 0xDFFF:
            raise self._surrogate(start)
        return self._character(point, start)

    def _number(self, start: int, inside: bool) -> str:
        """Read a character given in octal; anything else with digits is a back-reference."""
        pattern = self.pattern
        octal = _OCTAL.match(pattern, start + 1)
        digits = octal.group() if octal else ""
        if self.ecma:
            if pattern[start + 1] == "0" and not pattern[start + 2 : start + 3].isdigit():
                return "\0"
            if inside or pattern[start + 1] == "0":
                raise self.error(
                    r"characters are not written in octal here: write \x and two hexadecimal digits", start
                )
        elif digits and (inside or digits[0] == "0" or len(digits) == 3):
            if int(digits, 8) > 0o377:
                raise self.error(
                    f"\\{digits} is more than \\377, the last character in octal: write \\u and four digits", start
                )
            self.at = start + 1 + len(digits)
            return chr(int(digits, 8))
        elif inside:
            raise self.error("a back-reference inside brackets means nothing: remove it", start)
        raise self.error(f"a back-reference, \\{pattern[start + 1]}, {NO_BACK_REFERENCES}", start)

    def _named(self, start: int) -> str:
        end = self.pattern.find("}", self.at)
        if self.pattern[self.at : self.at + 1] != "{" or end < 0:
            raise self.error(r"a character's name needs braces: write \N{...}", start)
        name = self.pattern[self.at + 1 : end]
        try:
            character = unicodedata.lookup(name)
        except KeyError:
            character = ""
        if len(character) != 1:
            raise self.error(f"there is no character named {name!r}: see the names in unicodedata", start)
        self.at = end + 1
        return character

    def _ecma_escape(self, c: str, start: int) -> str:
        letter = self.pattern[self.at : self.at + 1]
        if c == "c" and letter.isascii() and letter.isalpha():
            self.at += 1
            return chr(ord(letter) & 31)
        if c == "k":
            raise self.error(f"a back-reference, \\k, {NO_BACK_REFERENCES}", start)
        hint = {"A": "write ^", "Z": "write $", "z": "write $", "c": "a letter follows it"}.get(
            c, f"write {c} if that is meant"
        )
        raise self.error(f"there is no escape \\{c} in ECMA 262: {hint}", start)

    # --------------------------------------------------------------------------------------------------- brackets

    def character_set(self, flags: int) -> Chars:
        """Read a set in brackets."""
        pattern, start = self.pattern, self.at
        self.at += 1
        negated = pattern.startswith("^", self.at)
        self.at += negated
        first, singles, parts = self.at, [], []
        while True:
            here = self.at
            if pattern.startswith("]", here) and (here > first or self.ecma):
                self.at += 1
                break
            low = self._member(flags, start)
            if pattern.startswith("-", self.at) and not pattern.startswith("-]", self.at):
                dash = self.at
                self.at += 1
                high = self._member(flags, start)
                if isinstance(low, str) and isinstance(high, str):
                    if high < low:
                        raise self.error(
                            f"this range runs backwards, from {low!r} to {high!r}: exchange its ends", here
                        )
                    singles.append((ord(low), ord(high)))
                    continue
                if not self.ecma:
                    raise self.error(r"a range needs a character at either end: write \- if a hyphen is meant", dash)
                for member in (low, "-", high):
                    if isinstance(member, str):
                        singles.append((ord(member), ord(member)))
                    else:
                        parts.append(member)
            elif isinstance(low, str):
                singles.append((ord(low), ord(low)))
            else:
                parts.append(low)
        ranges = union(tuple(singles))
        if flags & IGNORE_CASE:
            ranges = self._ignoring_case(ranges, flags)
        if parts:
            ranges = union(ranges, *parts)
        return Chars(complement(ranges) if negated else ranges)

    def _member(self, flags: int, start: int) -> str | Ranges:
        c = self.pattern[self.at : self.at + 1]
        if not c:
            raise self.error("this set is never closed: add ]", start)
        if c != "\\":
            self.at += 1
            return c
        member = self.escape(flags, inside=True)
        assert isinstance(member, (str, tuple))  # no assertions inside brackets
        return member

    def _ignoring_case(self, ranges: Ranges, flags: int) -> Ranges:
        return ecma_ignoring_case(ranges) if self.ecma else ignoring_case(ranges, bool(flags & ASCII))
