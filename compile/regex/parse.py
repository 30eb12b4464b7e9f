r"""Read a pattern, in Python's dialect or in that of ECMA 262, and return its tree.

Python's is what `re` takes in a str pattern; ECMA 262's is a pattern with the flag u, as JSON Schema wants it. Beyond
them, Python's dialect has \p{...} and lookbehind of any width. In ECMA's, as browsers do without the flag u, a lone
"]", "{" or "}" is itself, so is a sign after a backslash, and a class at the end of a range is no range ("[\w-.]").

The parser keeps a stack of open groups of its own, so deep nesting costs no call depth. Reading 40 characters takes
some 20 us.
"""

from __future__ import annotations

import re
from typing import Final, cast

from ...automata.utf8 import ANY, Ranges
from ...depth import LIMIT, MOST_GROUPS, MOST_LOOKS
from ...errors import ConstraintError
from .atomic import TooLargeError, atomic, has_assertions
from .characters import (
    ASCII,
    DOT_ALL,
    IGNORE_CASE,
    LAST_BACKSLASH,
    MULTILINE,
    NO_BACK_REFERENCES,
    UNICODE,
    VERBOSE,
    CharacterReader,
    Dialect,
)
from .conditionals import Captured, Conditional, UndecidedError, decided, without_numbers
from .tree import EMPTY, Assertion, Chars, Concat, Edge, Look, Node, Repeat, Text, Union
from .unicode import (
    ECMA_LINE_ENDS,
    NEWLINE,
    complement,
)

_MOST_REPEATS = 2**32 - 1  # as `re` has it

_FLAGS = {
    "python": {"i": IGNORE_CASE, "m": MULTILINE, "s": DOT_ALL, "x": VERBOSE, "a": ASCII, "u": UNICODE},
    "ecma": {"i": IGNORE_CASE, "m": MULTILINE, "s": DOT_ALL},
}

_ORDINARY = re.compile(r"[^\\.\[{()*+?^$|]+")
_ORDINARY_VERBOSE = re.compile(r"[^\\.\[{()*+?^$|\s#]+", re.ASCII)
_IGNORED_VERBOSE = re.compile(r"(?:[ \t\n\r\v\f]|#(?:\\.|[^\\\n])*(?:\n|\Z))+", re.DOTALL)
_COMMENT = re.compile(r"\(\?#(?:\\.|[^\\)])*\)", re.DOTALL)
_BRACES = re.compile(r"\{([0-9]*)(,([0-9]*))?\}")

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

    __slots__ = ("asked", "atomic", "branches", "flags", "items", "last", "look", "number", "start")

    def __init__(
        self, start: int, flags: int, look: tuple[bool, bool] | None, *, atomic: bool = False, number: int = 0,
        asked: int | str = 0,
    ) -> None:  # fmt: skip
        self.start = start
        self.atomic = atomic
        self.number = number  # of a group that others may ask for, from 1
        self.asked = asked  # for which group a conditional asks, by number or name
        self.flags = flags  # inside
        self.look = look  # (behind, negated) of a lookaround
        self.branches: list[Node] = []
        self.items: list[Node | str] = []  # of the branch at hand; a str is a run of plain characters
        self.last = _NOTHING


class _Parser(CharacterReader):
    """Reads the structure of a pattern: branches, groups and quantifiers."""

    def __init__(self, pattern: str, flags: str, dialect: Dialect) -> None:
        if not isinstance(pattern, str):
            raise ConstraintError(
                f"a pattern must be a str, not {type(pattern).__name__}: the language is that of texts, so decode it"
            )
        if dialect not in _FLAGS:
            raise ConstraintError(f'dialect must be "python" or "ecma", not {dialect!r}')
        super().__init__(pattern, dialect)
        self.known: Final = _FLAGS[dialect]
        self.looks = 0
        self.names: set[str] = set()
        self.numbers: dict[str, int] = {}  # of groups, by their names
        self.groups = 0
        self.conditional = "(?(" in pattern  # whether a group may ask for others
        self.asks: list[tuple[int, int]] = []  # for which group each conditional asks, and where it is
        self.flags = 0
        for letter in flags:
            if letter not in self.known and not (self.ecma and letter == "u"):
                said = f'must be letters out of "{self._letters()}", not {flags!r}'
                raise ConstraintError(said, argument="flags")
            self.flags |= self.known.get(letter, 0)
        if self.flags & ASCII and self.flags & UNICODE:
            raise ConstraintError('the flags "a" and "u" exclude each other: give one of them')

    def _letters(self) -> str:
        return "ims" if self.ecma else "aimsx"

    # ------------------------------------------------------------------------------------------------- structure

    def parse(self) -> Node:
        pattern, stack = self.pattern, [_Group(0, self.flags, None)]
        group = stack[0]
        while self.at < len(pattern):
            if group.flags & VERBOSE:
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
                self._add(group, self.escape(group.flags, inside=False))
            elif c == "[":
                group.items.append(self.character_set(group.flags))
                group.last = _ATOM
            elif c == "(":
                opened = self._open(group, first=len(stack) == 1 and not group.branches and group.last == _NOTHING)
                if opened:
                    if len(stack) > MOST_GROUPS:
                        said = f"groups are nested more than {MOST_GROUPS} deep: flatten them"
                        raise self.error(said, start).reaching(LIMIT, MOST_GROUPS)
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
                self._add(group, ANY if group.flags & DOT_ALL else complement(ends))
            elif c in "^$":
                self.at += 1
                self._add(group, self._anchor(c, group.flags))
            elif c in "*+?{":
                self._quantify(group)
            else:  # a comment, which goes on to the end
                raise self.error(LAST_BACKSLASH, len(pattern) - 1)
        if len(stack) > 1:
            raise self.error("this group is never closed: add )", group.start)
        node = self._close(group)
        for number, start in self.asks:
            if not 1 <= number <= self.groups:
                raise self.error(f"there is no group {number}: a conditional asks for one of {self.groups}", start)
            try:
                node = decided(node, number)
            except UndecidedError as error:
                raise self.error(f"a conditional {error}: write the two cases as branches", start) from None
        return without_numbers(node) if self.conditional else node

    def _ordinary(self, run: str, group: _Group) -> None:
        for i, c in enumerate(run):
            if "\ud800" <= c <= "\udfff":
                raise self._surrogate(self.at + i)
        self.at += len(run)
        if group.flags & IGNORE_CASE:
            for c in run:
                self._add(group, c)
        else:
            group.items.extend((run[:-1], run[-1]))  # a quantifier takes the last
            group.last = _ATOM

    def _add(self, group: _Group, atom: str | Ranges | Assertion) -> None:
        """Append one character, a set of characters, or an assertion."""
        if isinstance(atom, str):
            if group.flags & IGNORE_CASE:
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
        if group.asked:
            return self._either_case(group)
        node = group.branches[0] if len(group.branches) == 1 else Union(tuple(group.branches))
        if group.atomic:
            return self._atomic(node, group.start)
        if group.number and self.conditional:
            return cast("Node", Captured(group.number, node))
        if group.look is None:
            return node
        self.looks -= 1
        # equal assertions are one node: equal text under equal flags says the same
        key = (group.look, group.flags, self.pattern[group.start : self.at])
        behind, negated = group.look
        return self.assertions.setdefault(key, Look(node, behind, negated))

    def _anchor(self, c: str, flags: int) -> Assertion:
        if flags & MULTILINE:
            kind: Edge = "line start" if c == "^" else "line end"
            return self.assertion(kind, ECMA_LINE_ENDS if self.ecma else NEWLINE)
        if c == "^":
            return self.assertion("start")
        return self.assertion("end" if self.ecma else "last newline")

    # ---------------------------------------------------------------------------------------------------- groups

    def _open(self, group: _Group, first: bool) -> _Group | None:
        """Return the group that opens here, or None for what only looks like one: comments and flags."""
        pattern, start = self.pattern, self.at
        if not pattern.startswith("(?", start):
            self.at += 1
            return self._captured(group, start)
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
            return self._captured(group, start)
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
                return self._conditional(group, start)
            if c == ">":
                return _Group(start, group.flags, None, atomic=True)
        if c and (c in "-aiLmsux" if not self.ecma else c in "-ims"):
            return self._flag_group(group, start, first)
        if not c:
            raise self.error("the pattern ends inside (?: say which kind of group it is, and close it", start)
        hint = "name a group with (?P<name>...)" if c == "<" else r"write \( if a parenthesis is meant"
        raise self.error(f"there is no group that begins with (?{c}: {hint}", start)

    def _look(self, group: _Group, start: int, behind: bool) -> _Group:
        self.looks += 1
        if self.looks > MOST_LOOKS:
            said = f"lookarounds are nested more than {MOST_LOOKS} deep: flatten them"
            raise self.error(said, start).reaching(LIMIT, MOST_LOOKS)
        return _Group(start, group.flags, (behind, self.pattern[self.at - 1] == "!"))

    def _python_group(self, group: _Group, start: int) -> _Group:
        c = self.pattern[self.at : self.at + 1]
        self.at += 1
        if c == "=":
            raise self.error(f"a back-reference, (?P=...), {NO_BACK_REFERENCES}", start)
        if c != "<":
            raise self.error(f"there is no group that begins with (?P{c}: name a group with (?P<name>...)", start)
        name = self._name(self.at)
        captured = self._captured(group, start)
        self.numbers[name] = captured.number
        return captured

    def _captured(self, group: _Group, start: int) -> _Group:
        self.groups += 1
        return _Group(start, group.flags, None, number=self.groups)

    def _conditional(self, group: _Group, start: int) -> _Group:
        end = self.pattern.find(")", start)
        name = self.pattern[start + 3 : end] if end >= 0 else ""
        if not (name.isidentifier() or (name.isascii() and name.isdigit() and len(name) < 4)):
            raise self.error("a conditional begins with the number or the name of a group: (?(1)...|...)", start)
        self.at, self.conditional = end + 1, True
        return _Group(start, group.flags, None, asked=int(name) if name.isdigit() else name)

    def _either_case(self, group: _Group) -> Node:
        """Return the node of a conditional."""
        number = self.numbers.get(group.asked, 0) if isinstance(group.asked, str) else group.asked
        if len(group.branches) > 2:
            raise self.error("a conditional has two branches: put more of them into a group", group.start)
        if isinstance(group.asked, str) and not number:
            raise self.error(
                f"there is no group named {group.asked!r} before this: name one with (?P<name>...)", group.start
            )
        self.asks.append((number, group.start))
        yes, no = (*group.branches, EMPTY)[:2]
        return cast("Node", Conditional(number, yes, no))

    def _atomic(self, node: Node, start: int) -> Node:
        if has_assertions(node):
            raise self.error(
                "an atomic group or a possessive quantifier around a lookaround, a boundary, an anchor or another such "
                "group is not supported: write (?:...) if nothing else could match",
                start,
            )
        try:
            return atomic(node)
        except TooLargeError:
            raise self.error(
                "this atomic group or possessive quantifier is too large to be taken apart: write (?:...) if nothing "
                "else could match",
                start,
            ) from None

    def _name(self, start: int) -> str:
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
        return name

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
                if flag & (ASCII | UNICODE) and turned_off:
                    raise self.error(f'the flag "{c}" cannot be turned off: turn on the other of a and u', at)
                if flag & (ASCII | UNICODE) and on & (ASCII | UNICODE) & ~flag:
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
        flags = group.flags & ~(ASCII | UNICODE) if on & (ASCII | UNICODE) else group.flags
        return _Group(start, (flags | on) & ~off, None)

    def _with_flags(self, flags: int, on: int, start: int) -> int:
        if (flags | on) & ASCII and (flags | on) & UNICODE:
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
            if isinstance(item, Chars) or (isinstance(item, str) and len(item) == 1):
                group.items[-1] = self._possessive(Text(item) if isinstance(item, str) else item, low, high)
            else:
                repeat = group.items[-1]
                assert isinstance(repeat, Repeat)
                group.items[-1] = self._atomic(repeat, self.at)
            self.at += 1

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
