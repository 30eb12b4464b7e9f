r"""Read a pattern, in Python's dialect or in that of ECMA 262, and return its tree.

Python's is what `re` takes in a str pattern; ECMA 262's is a pattern with the flag u, as JSON Schema wants it. Beyond
them, Python's dialect has \p{...} and lookbehind of any width. In ECMA's, as browsers do without the flag u, a lone
"]", "{" or "}" is itself, so is a sign after a backslash, and a class at the end of a range is no range ("[\w-.]").

The parser keeps a stack of open groups of its own, so deep nesting costs no call depth. Reading 40 characters takes
some 20 us.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final, Literal

from ...automata.utf8 import ANY, Ranges
from ...errors import ConstraintError, RegexError
from .tree import EMPTY, Anchor, Assertion, Boundary, Chars, Concat, Look, Node, Repeat, Text, Union
from .unicode import (
    ASCII_DIGIT,
    ASCII_WORD,
    ECMA_LINE_ENDS,
    ECMA_SPACE,
    NEWLINE,
    complement,
    ecma_ignoring_case,
    ignoring_case,
    property_of,
    shorthand,
    union,
)

Dialect = Literal["python", "ecma"]

MOST_NESTING = 250  # groups in groups
MOST_LOOKS = 40  # lookarounds in lookarounds: each is an automaton inside another
_MOST_REPEATS = 2**32 - 1  # as `re` has it

_I, _M, _S, _X, _A, _U = 1, 2, 4, 8, 16, 32
_FLAGS = {
    "python": {"i": _I, "m": _M, "s": _S, "x": _X, "a": _A, "u": _U},
    "ecma": {"i": _I, "m": _M, "s": _S},
}

_ORDINARY = re.compile(r"[^\\.\[{()*+?^$|]+")
_ORDINARY_VERBOSE = re.compile(r"[^\\.\[{()*+?^$|\s#]+", re.ASCII)
_IGNORED_VERBOSE = re.compile(r"(?:[ \t\n\r\v\f]|#(?:\\.|[^\\\n])*(?:\n|\Z))+", re.DOTALL)
_COMMENT = re.compile(r"\(\?#(?:\\.|[^\\)])*\)", re.DOTALL)
_BRACES = re.compile(r"\{([0-9]*)(,([0-9]*))?\}")
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX = {"x": re.compile("[0-9a-fA-F]{2}"), "u": re.compile("[0-9a-fA-F]{4}"), "U": re.compile("[0-9a-fA-F]{8}")}
_OCTAL = re.compile("[0-7]{1,3}")
_LETTERS_AND_DIGITS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")

_NO_BOUNDARY_IN_EMPTY = re.fullmatch(r"\B", "") is not None  # `re` changed its mind in 3.14

_NO_BACK_REFERENCES = "is not supported: to repeat what a group matched is not regular in general; write it out"

_LAST_BACKSLASH = r"the pattern ends in a backslash: write \\ if one is meant"

# what stands before a quantifier
_NOTHING, _ATOM, _ANCHOR, _REPEAT = range(4)


def parse(pattern: str, flags: str = "", dialect: Dialect = "python") -> Node:
    """Return the tree of a pattern.

    flags: letters out of "aimsx" for Python's dialect, out of "ims" for ECMA's; "u", which both have anyway, is taken
    too. Raises RegexError with the position for a pattern that is malformed or uses what is not supported,
    ConstraintError for arguments of another kind.
    """
    return _Parser(pattern, flags, dialect).parse()


class _Group:
    """An open group: where it began, the flags inside and outside it, and what has been read of it."""

    __slots__ = ("branches", "flags", "items", "last", "look", "start")

    def __init__(self, start: int, flags: int, look: tuple[bool, bool] | None) -> None:
        self.start = start
        self.flags = flags  # inside
        self.look = look  # (behind, negated) of a lookaround
        self.branches: list[Node] = []
        self.items: list[Node | str] = []  # of the branch at hand; a str is a run of plain characters
        self.last = _NOTHING


class _Parser:
    def __init__(self, pattern: str, flags: str, dialect: Dialect) -> None:
        if not isinstance(pattern, str):
            raise ConstraintError(
                f"a pattern must be a str, not {type(pattern).__name__}: the language is that of texts, so decode it"
            )
        if dialect not in _FLAGS:
            raise ConstraintError(f'dialect must be "python" or "ecma", not {dialect!r}')
        self.pattern: Final = pattern
        self.ecma: Final = dialect == "ecma"
        self.known: Final = _FLAGS[dialect]
        self.at = 0
        self.looks = 0
        self.names: set[str] = set()
        self.assertions: dict[Any, Assertion] = {}
        self.flags = 0
        for letter in flags:
            if letter not in self.known and not (self.ecma and letter == "u"):
                raise ConstraintError(f'flags must be letters out of "{self._letters()}", not {flags!r}')
            self.flags |= self.known.get(letter, 0)
        if self.flags & _A and self.flags & _U:
            raise ConstraintError('the flags "a" and "u" exclude each other: give one of them')

    def _letters(self) -> str:
        return "ims" if self.ecma else "aimsx"

    def error(self, message: str, position: int) -> RegexError:
        return RegexError(message, self.pattern, position)

    # ------------------------------------------------------------------------------------------------- structure

    def parse(self) -> Node:
        pattern, stack = self.pattern, [_Group(0, self.flags, None)]
        group = stack[0]
        while self.at < len(pattern):
            if group.flags & _X:
                ignored = _IGNORED_VERBOSE.match(pattern, self.at)
                if ignored:
                    self.at = ignored.end()
                    continue
                run = _ORDINARY_VERBOSE.match(pattern, self.at)
            else:
                run = _ORDINARY.match(pattern, self.at)
            if run:
                self._ordinary(run.group(), group)
                continue
            start, c = self.at, pattern[self.at]
            if c == "\\":
                self._add(group, self._escape(group.flags, inside=False))
            elif c == "[":
                group.items.append(self._set(group.flags))
                group.last = _ATOM
            elif c == "(":
                opened = self._open(group, first=len(stack) == 1 and not group.branches and group.last == _NOTHING)
                if opened:
                    if len(stack) > MOST_NESTING:
                        raise self.error(f"groups are nested more than {MOST_NESTING} deep: flatten them", start)
                    stack.append(opened)
                    group = opened
            elif c == ")":
                if len(stack) == 1:
                    raise self.error(r"this ) closes no group: remove it, or write \)", start)
                self.at += 1
                node = self._close(stack.pop())
                group = stack[-1]
                group.items.append(node)
                group.last = _ATOM
            elif c == "|":
                self.at += 1
                group.branches.append(_joined(group.items))
                group.items, group.last = [], _NOTHING
            elif c == ".":
                self.at += 1
                ends = ECMA_LINE_ENDS if self.ecma else NEWLINE
                self._add(group, ANY if group.flags & _S else complement(ends))
            elif c in "^$":
                self.at += 1
                self._add(group, self._anchor(c, group.flags))
            elif c in "*+?{":
                self._quantify(group)
            else:  # a comment, which goes on to the end
                raise self.error(_LAST_BACKSLASH, len(pattern) - 1)
        if len(stack) > 1:
            raise self.error("this group is never closed: add )", group.start)
        return self._close(group)

    def _ordinary(self, run: str, group: _Group) -> None:
        for i, c in enumerate(run):
            if "\ud800" <= c <= "\udfff":
                raise self._surrogate(self.at + i)
        self.at += len(run)
        if group.flags & _I:
            for c in run:
                self._add(group, c)
        else:
            group.items.extend((run[:-1], run[-1]))  # a quantifier takes the last
            group.last = _ATOM

    def _add(self, group: _Group, atom: str | Ranges | Assertion) -> None:
        """Append one character, a set of characters, or an assertion."""
        if isinstance(atom, str):
            if group.flags & _I:
                ranges = self._ignoring_case(((ord(atom), ord(atom)),), group.flags)
                group.items.append(atom if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else Chars(ranges))
            else:
                group.items.append(atom)
        elif isinstance(atom, tuple):
            group.items.append(Chars(atom))
        else:
            group.items.append(atom)
            group.last = _ANCHOR
            return
        group.last = _ATOM

    def _close(self, group: _Group) -> Node:
        """Return what a group at its end says."""
        group.branches.append(_joined(group.items))
        node = group.branches[0] if len(group.branches) == 1 else Union(tuple(group.branches))
        if group.look is None:
            return node
        self.looks -= 1
        # equal assertions are one node: equal text under equal flags says the same
        key = (group.look, group.flags, self.pattern[group.start : self.at])
        behind, negated = group.look
        return self.assertions.setdefault(key, Look(node, behind, negated))

    def _anchor(self, c: str, flags: int) -> Assertion:
        if flags & _M:
            kind: Any = "line start" if c == "^" else "line end"
            return self._assertion(kind, ECMA_LINE_ENDS if self.ecma else NEWLINE)
        if c == "^":
            return self._assertion("start")
        return self._assertion("end" if self.ecma else "last newline")

    def _assertion(self, kind: Any, terminators: Ranges = ()) -> Assertion:
        return self.assertions.setdefault(kind, Anchor(kind, terminators))

    # ---------------------------------------------------------------------------------------------------- groups

    def _open(self, group: _Group, first: bool) -> _Group | None:
        """Return the group that opens here, or None for what only looks like one: comments and flags."""
        pattern, start = self.pattern, self.at
        if not pattern.startswith("(?", start):
            self.at += 1
            return _Group(start, group.flags, None)
        c = pattern[start + 2 : start + 3]
        self.at += 3
        if c == ":":
            return _Group(start, group.flags, None)
        if c in ("=", "!"):
            return self._look(group, start, behind=False)
        if c == "<" and pattern[start + 3 : start + 4] in ("=", "!"):
            self.at += 1
            return self._look(group, start, behind=True)
        if c == "<" and self.ecma:
            self._name(self.at)
            return _Group(start, group.flags, None)
        if not self.ecma:
            if c == "P":
                return self._python_group(group, start)
            if c == "#":
                comment = _COMMENT.match(pattern, start)
                if not comment:
                    raise self.error("this comment is never closed: add )", start)
                self.at = comment.end()
                return None
            if c == "(":
                raise self.error(
                    "a group that depends on whether another matched, (?(...)...), is not supported: write the two "
                    "cases as branches, (?:...|...)",
                    start,
                )
            if c == ">":
                raise self.error(
                    "an atomic group, (?>...), is not supported: what it matches depends on the order in which a "
                    "backtracking matcher tries things; write (?:...) if that is what is meant",
                    start,
                )
        if c and (c in "-aiLmsux" if not self.ecma else c in "-ims"):
            return self._flag_group(group, start, first)
        if not c:
            raise self.error("the pattern ends inside (?: say which kind of group it is, and close it", start)
        hint = "name a group with (?P<name>...)" if c == "<" else r"write \( if a parenthesis is meant"
        raise self.error(f"there is no group that begins with (?{c}: {hint}", start)

    def _look(self, group: _Group, start: int, behind: bool) -> _Group:
        self.looks += 1
        if self.looks > MOST_LOOKS:
            raise self.error(f"lookarounds are nested more than {MOST_LOOKS} deep: flatten them", start)
        return _Group(start, group.flags, (behind, self.pattern[self.at - 1] == "!"))

    def _python_group(self, group: _Group, start: int) -> _Group:
        c = self.pattern[self.at : self.at + 1]
        self.at += 1
        if c == "=":
            raise self.error(f"a back-reference, (?P=...), {_NO_BACK_REFERENCES}", start)
        if c != "<":
            raise self.error(f"there is no group that begins with (?P{c}: name a group with (?P<name>...)", start)
        self._name(self.at)
        return _Group(start, group.flags, None)

    def _name(self, start: int) -> None:
        end = self.pattern.find(">", start)
        if end < 0:
            raise self.error("this group's name is never closed: add >", start)
        name = self.pattern[start:end]
        if not (name.replace("$", "_") if self.ecma else name).isidentifier():
            raise self.error(f"{name!r} is no name for a group: use letters, digits and _, a digit not first", start)
        if name in self.names and not self.ecma:  # ECMA 262 allows it in different branches
            raise self.error(f"there is a group named {name!r} already: rename one", start)
        self.names.add(name)
        self.at = end + 1

    def _flag_group(self, group: _Group, start: int, first: bool) -> _Group | None:
        """Read (?flags), which goes for the whole pattern, or (?flags-flags:, which opens a group."""
        pattern, at = self.pattern, start + 2
        on = off = 0
        turned_off = False
        while True:
            c = pattern[at : at + 1]
            if c == "-" and not turned_off:
                turned_off = True
            elif c in self.known and c:
                flag = self.known[c]
                if flag & (_A | _U) and turned_off:
                    raise self.error(f'the flag "{c}" cannot be turned off: turn on the other of a and u', at)
                if flag & (_A | _U) and on & (_A | _U) & ~flag:
                    raise self.error('the flags "a" and "u" exclude each other: give one of them', at)
                if turned_off:
                    off |= flag
                else:
                    on |= flag
            elif c == "L":
                raise self.error('the flag "L" is for bytes patterns and depends on the locale: remove it', at)
            elif c in (":", ")") and c:
                break
            else:
                shown = f"{c!r} is no flag" if c else "the pattern ends among flags"
                raise self.error(f'{shown}: write letters out of "{self._letters()}", then : or )', at)
            at += 1
        if turned_off and pattern[at - 1] == "-" and not (self.ecma and on):
            raise self.error("no flag follows the -: name the flags to turn off", at)
        self.at = at + 1
        if pattern[at] == ")":
            if turned_off or self.ecma:
                raise self.error("flags that change part of a pattern need a group: write (?flags:...)", at)
            if not first:
                raise self.error(
                    "flags for the whole pattern stand at its start: move them there, or write (?flags:...)", start
                )
            group.flags = self._with_flags(group.flags, on, start)
            return None
        if on & off:
            raise self.error("a flag is turned on and off at once: decide", at)
        flags = group.flags & ~(_A | _U) if on & (_A | _U) else group.flags
        return _Group(start, (flags | on) & ~off, None)

    def _with_flags(self, flags: int, on: int, start: int) -> int:
        if (flags | on) & _A and (flags | on) & _U:
            raise self.error('the flags "a" and "u" exclude each other: give one of them', start)
        return flags | on

    # ----------------------------------------------------------------------------------------------- quantifiers

    def _quantify(self, group: _Group) -> None:
        pattern, start = self.pattern, self.at
        c = pattern[start]
        low, high = 0, None
        if c == "{":
            braces = _BRACES.match(pattern, start)
            # "{}" and, for ECMA 262, "{,3}" count nothing
            if not braces or braces.group() == "{}" or (self.ecma and not braces[1]):
                self.at += 1
                self._add(group, "{")
                return
            self.at = braces.end()
            low = self._count(braces[1], start) or 0
            high = self._count(braces[3], start) if braces[2] else low
            if high is not None and high < low:
                raise self.error(f"at least {low} and at most {high} times is never: exchange the numbers", start)
        else:
            self.at += 1
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[c]
        if group.last == _NOTHING:
            raise self.error(f"there is nothing to repeat: put something before {c}, or write \\{c}", start)
        if group.last == _ANCHOR:
            raise self.error(f"a place in the text cannot be repeated: remove {c}", start)
        if group.last == _REPEAT:
            raise self.error(f"what is repeated is repeated already: write (?:...){c}, or \\{c}", start)
        item = group.items.pop()
        following = pattern[self.at : self.at + 1]
        lazy = following == "?"
        group.items.append(Repeat(Text(item) if isinstance(item, str) else item, low, high, lazy))
        group.last = _REPEAT
        if lazy:
            self.at += 1
        elif following == "+" and not self.ecma:
            if not isinstance(item, Chars) and not (isinstance(item, str) and len(item) == 1):
                raise self.error(
                    "a possessive quantifier is supported after one character or class only: what it matches otherwise "
                    "depends on the order in which a backtracking matcher tries things; remove the second +",
                    self.at,
                )
            self.at += 1
            group.items[-1] = self._possessive(Text(item) if isinstance(item, str) else item, low, high)

    def _possessive(self, item: Text | Chars, low: int, high: int | None) -> Node:
        """Return a repeat that takes as many as there are: either the last there may be, or no other follows."""
        if low == high:
            return Repeat(item, low, high)
        key = ("none follows", item.text if isinstance(item, Text) else item.ranges)
        none_follows = self.assertions.setdefault(key, Look(item, behind=False, negated=True))
        fewer = Concat((Repeat(item, low, None if high is None else high - 1), none_follows))
        return fewer if high is None else Union((fewer, Repeat(item, high, high)))

    def _count(self, digits: str | None, start: int) -> int | None:
        if not digits:
            return None
        if len(digits.lstrip("0")) > 10 or int(digits) >= _MOST_REPEATS:
            raise self.error(f"this repeats more often than {_MOST_REPEATS - 1:,} times: lower the number", start)
        return int(digits)

    # ---------------------------------------------------------------------------------------------------- escapes

    def _escape(self, flags: int, inside: bool) -> str | Ranges | Assertion:
        """Read what a backslash begins: a character, a set of characters, or, outside brackets, an assertion."""
        pattern, start = self.pattern, self.at
        c = pattern[start + 1 : start + 2]
        self.at += 2
        if not c:
            raise self.error(_LAST_BACKSLASH, start)
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
            return self._assertion("start" if c == "A" else "end")
        raise self.error(
            f"there is no escape \\{c}{' inside brackets' if inside else ''}: write {c} if that is meant", start
        )

    def _shorthand(self, letter: str, flags: int) -> Ranges:
        if not self.ecma:
            return shorthand(letter, bool(flags & _A))
        ranges = {"d": ASCII_DIGIT, "s": ECMA_SPACE, "w": ASCII_WORD}[letter.lower()]
        if flags & _I:
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
            return ecma_ignoring_case(ranges) if flags & _I else ranges
        if flags & _I:
            ranges = ignoring_case(ranges, bool(flags & _A))
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
        raise self.error(f"a back-reference, \\{pattern[start + 1]}, {_NO_BACK_REFERENCES}", start)

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
            raise self.error(f"a back-reference, \\k, {_NO_BACK_REFERENCES}", start)
        hint = {"A": "write ^", "Z": "write $", "z": "write $", "c": "a letter follows it"}.get(
            c, f"write {c} if that is meant"
        )
        raise self.error(f"there is no escape \\{c} in ECMA 262: {hint}", start)

    # --------------------------------------------------------------------------------------------------- brackets

    def _set(self, flags: int) -> Chars:
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
        if flags & _I:
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
        member = self._escape(flags, inside=True)
        assert isinstance(member, (str, tuple))  # no assertions inside brackets
        return member

    def _ignoring_case(self, ranges: Ranges, flags: int) -> Ranges:
        return ecma_ignoring_case(ranges) if self.ecma else ignoring_case(ranges, bool(flags & _A))


def _joined(items: list[Node | str]) -> Node:
    """Return one node for the items of a branch, runs of plain characters made one text."""
    nodes: list[Node] = []
    run: list[str] = []
    for item in items:
        if isinstance(item, str):
            run.append(item)
            continue
        if run:
            nodes.append(Text("".join(run)))
            run.clear()
        nodes.extend(item.items if isinstance(item, Concat) else (item,))
    if run:
        nodes.append(Text("".join(run)))
    if len(nodes) == 1:
        return nodes[0]
    return Concat(tuple(nodes)) if nodes else EMPTY
