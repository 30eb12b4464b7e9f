r"""Read grammars in the two notations with `::=`: W3C's EBNF as XGrammar writes it, and llama.cpp's GBNF.

They differ in little. In GBNF a rule ends with its line, outside parentheses and but for a line that begins with `|`;
in EBNF it ends where a name and `::=` follow. EBNF also has texts in single quotes, comments between /* and */,
differences of classes, `[a-z] - [aeiou]`, and characters as #x20, also in classes of nothing else. In both, `.` is any
character.

Nothing is ignored between characters, and a class of characters is a terminal of its own, the same object wherever it
stands, and so is a text. A grammar of 60 lines takes some 0.5 ms.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NoReturn

from ...automata.budget import Budget, Meter
from ...automata.utf8 import ANY, Ranges, char_class, complement_ranges, normalize_ranges
from ...depth import LIMIT, MOST_LEVELS, MOST_PARENTHESES, MOST_RULES, MOST_TIMES_OVER
from ...errors import ConstraintError, GrammarError, RegexError
from .form import EMPTY, MOST_TIMES, Choice, Grammar, Node, Repeat, Rule, Sequence, Special, Terminal, Text, times
from .macros import NAMES as MACROS
from .macros import Call, MacroError, Value, expanded

_NAME = {True: re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*"), False: re.compile(r"[A-Za-z0-9_-]+")}  # by whether EBNF
_HEAD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:\[[^\]\n]*\][ \t]*(?=::=)|\s*(?=::=))")
_SKIPPED = frozenset(" \t\r\n#/")  # what a space or a comment begins with
_SPACE = re.compile(r"[ \t]+")
_SPACES = re.compile(r"[ \t\r\n]+")
_LINE_COMMENT = re.compile(r"#[^\r\n]*")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_POINT = re.compile(r"#x([0-9A-Fa-f]+)(?![0-9A-Za-z_])")
_POINTS = re.compile(r"\[\^?(?:#x[0-9A-Fa-f]+(?:-#x[0-9A-Fa-f]+)?)+\]")
_TIMES = re.compile(r"\{\s*([0-9]+)\s*(,\s*([0-9]*)\s*)?\}")
_SEVERAL = re.compile(r"[*+?]+")
_PLAIN = re.compile(r'[^"\\\r\n]+')
_OPENS = re.compile(r"\s*\(")
_OPTION = re.compile(r"([a-z_]+)\s*=(?!=)")
_NUMBER = re.compile(r"[0-9]{1,9}(?![0-9A-Za-z_.])")
_TOKEN = re.compile(r"<[^<>\s]+>")
_PIECE_OF_GBNF = re.compile(
    r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|<[^<>\s]+>|#[^\r\n]*|[()]|[^()\"\'\[<#/]+|.', re.DOTALL
)
_PIECE = re.compile(rf"'(?:[^'\\]|\\.)*'|/\*.*?\*/|{_POINT.pattern}|{_PIECE_OF_GBNF.pattern}", re.DOTALL)
"""What stands in a grammar, so that parentheses in texts, sets and comments can be told from others."""
_HEX = {letter: re.compile(f"[0-9A-Fa-f]{{{digits}}}") for letter, digits in (("x", 2), ("u", 4), ("U", 8))}
_HEX_ANY = re.compile("[0-9A-Fa-f]+")  # after \\x in EBNF
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
_ALL_CONTROLS = {**_CONTROLS, "a": "\a", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "e": "\x1b"}
_SIGNS = frozenset("\\\"[]'/?-")  # what stands for itself after a backslash
_SIGNS_IN_CLASS = frozenset("^$.*+(){}|") | _SIGNS


def read_ebnf(text: str, start: str = "root", meter: Meter | None = None) -> Grammar:
    """Return the grammar that a text in W3C's EBNF, as XGrammar writes it, says.

    Raises GrammarError with line, column and caret for what is malformed, not defined or not supported: lookahead
    assertions, some macros and attributes of rules among it.

    >>> sorted(read_ebnf('root ::= "(" root ")" | [a-z]+').rules)
    ['root']
    """
    return Reader(text, True, meter).grammar(start)


class Reader:
    """One reading of a text in either notation."""

    def __init__(self, text: str, ebnf: bool, meter: Meter | None = None) -> None:
        if not isinstance(text, str):
            raise ConstraintError(f"a grammar must be a str, not {type(text).__name__}: decode it")
        self.text, self.ebnf = text, ebnf
        self.meter = Budget().begin() if meter is None else meter
        self.at = 0
        self.name = _NAME[ebnf]
        self.rules: dict[str, Node] = {}
        self.where: dict[str, int] = {}
        self.used: dict[str, int] = {}  # where each rule is first used
        self.texts: dict[bytes, Text] = {}
        self.classes: dict[Ranges, Node] = {}
        self.ranges: dict[int, Ranges] = {}  # of the nodes that are one character out of a set
        self.left = 0  # groups that were left for later, each of which is a rule
        self.around = 0  # parentheses around what is being read, which has others of its own
        self.deep: deque[tuple[str, int, int]] = deque()  # groups to read later: the rule's name, place and depth

    def fail(self, message: str, position: int) -> NoReturn:
        raise GrammarError(message, self.text, min(position, len(self.text)))

    def refuse(self, message: str, position: int, most: int) -> NoReturn:
        """Raise the error for what is beyond a limit of depth."""
        raise GrammarError(message, self.text, position).reaching(LIMIT, most)

    def grammar(self, start: str) -> Grammar:
        """Return the grammar with this rule to start with."""
        if self.text.count("::=") > MOST_RULES:
            at = next(islice(re.finditer("::=", self.text), MOST_RULES, None)).start()
            self.refuse(f"there are more than {MOST_RULES:,} rules: leave some out", at, MOST_RULES)
        self._skip(True)
        while self.at < len(self.text):
            self._rule_and_groups()
            self._skip(True)
        for name, position in self.used.items():
            if name not in self.rules:
                self.fail(f"there is no rule {name}: define it", position)
        if start not in self.rules:
            hint = f"there is {', '.join(list(self.rules)[:5])}" if self.rules else "it has no rules"
            self.fail(f"there is no rule {start!r} to start with: {hint}", 0)
        return Grammar(self.rules, start, None, self.text, self.where)

    # -------------------------------------------------------------------------------------------------- structure

    def _skip(self, lines: bool) -> None:
        """Go on to what is no space and no comment, and on this line unless `lines`."""
        text, space = self.text, _SPACES if lines else _SPACE
        while True:
            c = text[self.at : self.at + 1]
            if c not in _SKIPPED:
                return
            if c in " \t\r\n":
                found = space.match(text, self.at)
                if not found:
                    return
            elif c == "#":
                if self.ebnf and _POINT.match(text, self.at):
                    return
                found = _LINE_COMMENT.match(text, self.at)
            elif c == "/" and self.ebnf and text.startswith("/*", self.at):
                found = _COMMENT.match(text, self.at)
                if not found:
                    self.fail("this comment is never closed: add */", self.at)
            else:
                return
            assert found
            self.at = found.end()

    def _rule_and_groups(self) -> None:
        """Read a rule, and then the groups in it that were left for later."""
        read: Callable[[], None] = self._rule
        wrong, behind = None, -1
        while True:
            try:
                read()
            except GrammarError as error:  # a fault within a group that was left is what this one comes from
                if error.limit is not None:
                    raise
                wrong = error
            behind = self.at if behind < 0 else behind
            if not self.deep:
                break
            read = partial(self._read_group, *self.deep.popleft())
        if wrong is not None:
            raise wrong
        self.at, self.around = behind, 0

    def _rule(self) -> None:
        begin = self.at
        found = self.name.match(self.text, begin)
        if not found:
            self.fail("a rule begins here, and this is no name: write name ::= ...", begin)
        name = found.group()
        self.at = found.end()
        self._skip(False)
        if self.text.startswith("[", self.at) and _HEAD.match(self.text, begin):
            self.fail("attributes of rules are not supported: remove what is in brackets", self.at)
        if not self.text.startswith("::=", self.at):
            self.fail(f"::= is missing after the name {name}", self.at)
        if name in self.rules:
            self.fail(f"there is a rule {name} already: rename one, or join them with |", begin)
        self.at += 3
        self._skip(True)
        self.rules[name] = EMPTY  # in place, so that rules stand in order
        self.where[name] = begin
        self.rules[name] = self._choice(0)
        if self.text.startswith(")", self.at):
            self.fail('this ) closes no group: remove it, or write ")"', self.at)

    def _choice(self, depth: int) -> Node:
        items = [self._sequence(depth)]
        while self.text.startswith("|", self.at):
            self.at += 1
            self._skip(True)
            items.append(self._sequence(depth))
        return items[0] if len(items) == 1 else Choice(tuple(items))

    def _sequence(self, depth: int) -> Node:
        """Read up to the next |, the group's end or the rule's."""
        text, begin = self.text, self.at
        out: list[Node] = []
        while not self._ended(depth):
            node = self._difference(depth) if self.ebnf else self._item(depth)
            for part in node.items if isinstance(node, Sequence) else (node,):
                if isinstance(part, Text) and out and isinstance(out[-1], Text):
                    out[-1] = Text(out[-1].data + part.data)
                else:
                    out.append(part)
        if self.ebnf and self.at == begin:
            self.fail('nothing stands here: write "" for the empty text', begin)
        if self.at == begin and text.startswith(("*", "+", "?", "{"), begin):
            self.fail("there is nothing to repeat", begin)
        return out[0] if len(out) == 1 else Sequence(tuple(out))

    def _ended(self, depth: int) -> bool:
        text = self.text
        if self.ebnf or depth:
            self._skip(True)
        else:
            self._skip(False)
            if text[self.at : self.at + 1] in ("\r", "\n"):
                end = self.at
                self._skip(True)
                if not text.startswith("|", self.at):
                    self.at = end
                return True
        if self.at == len(text) or text[self.at] in "|)":
            return True
        return self.ebnf and not depth and _HEAD.match(text, self.at) is not None

    def _difference(self, depth: int) -> Node:
        node = self._item(depth)
        while True:
            begin = self.at
            self._skip(True)
            if not self.text.startswith("-", self.at):
                self.at = begin
                return node
            sign = self.at
            self.at += 1
            self._skip(True)
            if self.at == len(self.text):
                self.fail("a set of characters is missing behind this sign", sign)
            other = self._item(depth)
            one, two = self._set(node), self._set(other)
            if one is None or two is None:
                self.fail("a difference is supported only between two sets of single characters", sign)
            node = self._chars(normalize_ranges(_without(one, two)), sign)

    def _set(self, node: Node) -> Ranges | None:
        if isinstance(node, Choice):
            parts = [self._set(item) for item in node.items]
            known = [part for part in parts if part is not None]
            return normalize_ranges([pair for part in known for pair in part]) if len(known) == len(parts) else None
        if isinstance(node, Text):
            character = node.data.decode()
            return ((ord(character), ord(character)),) if len(character) == 1 else None
        return self.ranges.get(id(node))

    def _item(self, depth: int) -> Node:
        """Read one item and what says how often it stands."""
        node, often, over = self._one(depth), False, 0
        while True:
            begin = self.at
            self._skip(bool(self.ebnf or depth))
            c = self.text[self.at : self.at + 1]
            if not c or c not in "*+?{":
                self.at = begin
                return node
            if often and self.ebnf:
                self.fail("what is repeated is repeated already: put it in parentheses", self.at)
            often = True
            low, high = self._times(c)
            if isinstance(node, Repeat) and _is_plain(node) and _is_plain(Repeat(EMPTY, low, high)):
                low, high = min(node.low, low), 1 if node.high == high == 1 else None  # as ("a"?)* is "a"*
                node = node.item
            elif isinstance(node, Repeat) and over == MOST_TIMES_OVER:
                said = f"this is repeated more than {MOST_TIMES_OVER} times over: multiply the numbers"
                self.refuse(said, begin, MOST_TIMES_OVER)
            else:
                over += 1
            node = EMPTY if high == 0 else node if low == high == 1 else Repeat(node, low, high)

    def _times(self, c: str) -> tuple[int, int | None]:
        begin = self.at
        if c != "{":
            several = None if self.ebnf else _SEVERAL.match(self.text, begin)  # ?* and the like say what * does
            self.at = begin + 1 if several is None else several.end()
            signs = {c} if several is None else set(several[0])
            return int(signs == {"+"}), 1 if signs == {"?"} else None
        found = _TIMES.match(self.text, begin)
        if not found:
            self.fail("a number of times is written {2}, {2,} or {2,5}", begin)
        self.at = found.end()
        low = times(found[1])
        high = low if found[2] is None else times(found[3]) if found[3] else None
        if max(low, high or 0) > MOST_TIMES:
            self.fail(f"this repeats more often than {MOST_TIMES:,} times: lower the number", begin)
        if high is not None and high < low:
            self.fail(f"at least {low} and at most {high} times is never: exchange the numbers", begin)
        return low, high

    def _one(self, depth: int) -> Node:
        text, begin = self.text, self.at
        c = text[begin]
        if c == '"' or (c == "'" and self.ebnf):
            return self._string(c)
        if c == "[":
            return self._class()
        if c == "(":
            if self.ebnf and text.startswith("(=", begin):
                self.fail(
                    "a lookahead assertion, (= ...), is not supported: leave it out if it says what follows anyway",
                    begin,
                )
            return self._group(depth) if depth < MOST_PARENTHESES else self._deep_group(depth)
        if c == ".":
            self.at += 1
            return self._chars(ANY, begin)
        if c == "<":
            found = _TOKEN.match(text, begin)
            if text.startswith("<[", begin):
                self.fail("tokens by their numbers are not supported: write the token's name", begin)
            if not found:
                self.fail("this token is never closed: add >", begin)
            self.at = found.end()
            return Special(found.group())
        if c == "!" and text.startswith("!<", begin):
            self.fail("any token but one, !<...>, is not supported: say which texts may stand here", begin)
        if c == "#":
            point = _POINT.match(text, begin)
            assert point
            self.at = point.end()
            value = self._point(point[1], begin)
            return Text(value.encode())
        found = self.name.match(text, begin)
        if not found:
            self.fail(f"{c!r} has no place here", begin)
        name = found.group()
        self.at = found.end()
        if self.ebnf and name in MACROS and _OPENS.match(text, self.at):
            return self._macro(name, begin)
        self.used.setdefault(name, begin)
        return Rule(name)

    def _group(self, depth: int) -> Node:
        begin = self.at
        self.at += 1
        self._skip(True)
        node = self._choice(depth + 1)
        if not self.text.startswith(")", self.at):
            self.fail("this group is never closed: add )", begin)
        self.at += 1
        return node

    def _deep_group(self, depth: int) -> Node:
        """Return a rule in place of a group, and go on behind it: it is read later, as reading it now takes calls."""
        name, begin, opened, within = f"\0group {self.at}", self.at, 0, self.around + depth
        self.left += 1
        if self.left > MOST_RULES:
            said = (
                f"more than {MOST_RULES:,} groups stand {MOST_PARENTHESES} deep in others: make rules of those around"
            )
            self.refuse(said, begin, MOST_RULES)
        self.deep.append((name, begin, within))
        end = -1
        for found in (_PIECE if self.ebnf else _PIECE_OF_GBNF).finditer(self.text, begin):
            opened += {"(": 1, ")": -1}.get(found.group(), 0)
            if within + opened > MOST_LEVELS:
                said = f"parentheses are nested more than {MOST_LEVELS} deep: flatten them"
                self.refuse(said, found.start(), MOST_LEVELS)
            if not opened:
                end = found.end()
                break
        if end < 0:
            self.fail("this group is never closed: add )", begin)
        self.at = end
        return Rule(name)

    def _read_group(self, name: str, begin: int, around: int) -> None:
        """Read a group as a rule of its own."""
        self.rules[name] = EMPTY
        self.where[name] = self.at = begin
        self.around = around
        self.rules[name] = self._group(0)

    # ----------------------------------------------------------------------------------------------------- macros

    def _macro(self, name: str, begin: int) -> Node:
        """Read the arguments of a macro, and return what it derives."""
        self._skip(True)
        given, options = self._arguments(0, named=True)
        try:
            return expanded(Call(name, given, options), self.meter)
        except MacroError as error:
            self.fail(str(error), begin)
        except RegexError as error:
            self.fail(f"the pattern cannot be compiled: {error.message}", begin)

    def _arguments(self, depth: int, *, named: bool) -> tuple[list[Value], dict[str, Value]]:
        """Read values between parentheses, with commas between them, at most one level of them in others."""
        given: list[Value] = []
        options: dict[str, Value] = {}
        opened = self.at
        self.at += 1
        self._skip(True)
        while not self.text.startswith(")", self.at):
            here = self.at
            option = _OPTION.match(self.text, here) if named else None
            if option:
                if option[1] in options:
                    self.fail(f"the option {option[1]} is given twice: remove one", here)
                self.at = option.end()
                self._skip(True)
                options[option[1]] = self._value(depth)
            elif options:
                self.fail("this stands behind an option: put it before those", here)
            else:
                given.append(self._value(depth))
            self._skip(True)
            if self.text.startswith(",", self.at):
                self.at += 1
                self._skip(True)
            elif not self.text.startswith(")", self.at):
                self.fail("a comma or ) is missing here" if self.at < len(self.text) else "add )", min(self.at, opened))
        self.at += 1
        return given, options

    def _value(self, depth: int) -> Value:
        text, begin = self.text, self.at
        c = text[begin : begin + 1]
        if c == '"':
            node = self._string(c)
            return node.data.decode() if isinstance(node, Text) else ""
        if c == "(" and not depth:
            return tuple(self._arguments(1, named=False)[0])
        number = _NUMBER.match(text, begin)
        if number:
            self.at = number.end()
            return int(number.group())
        found = self.name.match(text, begin)
        if not found:
            self.fail("a text in quotes, a number, true, false, a rule or a tuple of these is needed", begin)
        self.at = found.end()
        if found.group() in ("true", "false"):
            return found.group() == "true"
        self.used.setdefault(found.group(), begin)
        return Rule(found.group())

    # ------------------------------------------------------------------------------------------------- characters

    def _string(self, quote: str) -> Node:
        text, begin, out = self.text, self.at, []
        self.at += 1
        while not text.startswith(quote, self.at):
            plain = _PLAIN.match(text, self.at) if quote == '"' else None
            if plain:
                out.append(plain.group())
                self.at = plain.end()
                continue
            if self.at == len(text) or (self.ebnf and text[self.at] in "\r\n"):
                self.fail(f"this text is never closed: add {quote}", begin)
            out.append(self._character(False))
        self.at += 1
        if not out:
            return EMPTY
        try:
            data = "".join(out).encode()
        except UnicodeEncodeError:
            self.fail(
                "half a surrogate pair is no character, and UTF-8 cannot hold it: write \\U and eight digits", begin
            )
        return self.texts.setdefault(data, Text(data))

    def _class(self) -> Node:
        text, begin = self.text, self.at
        if self.ebnf and (points := _POINTS.match(text, begin)):
            self.at = points.end()
            negated = text[begin + 1] == "^"
            pairs = []
            for part in re.findall(r"#x([0-9A-Fa-f]+)(?:-#x([0-9A-Fa-f]+))?", points.group()):
                low = ord(self._point(part[0], begin))
                pairs.append((low, ord(self._point(part[1], begin)) if part[1] else low))
                self._upright(*pairs[-1], begin)
            return self._chars(_spelt(pairs, negated), begin)
        self.at += 1
        negated = text.startswith("^", self.at)
        self.at += negated
        pairs = []
        while not text.startswith("]", self.at):
            here = self.at
            if here == len(text) or (self.ebnf and text[here] in "\r\n"):
                self.fail("this class is never closed: add ]", begin)
            low = ord(self._character(True))
            high = low
            if text.startswith("-", self.at) and not text.startswith("-]", self.at) and self.at + 1 < len(text):
                self.at += 1
                high = ord(self._character(True))
                self._upright(low, high, here)
            pairs.append((low, high))
        self.at += 1
        if not pairs and not (negated and self.ebnf):
            self.fail("this class holds no character: say which", begin)
        return self._chars(_spelt(pairs, negated), begin)

    def _upright(self, low: int, high: int, position: int) -> None:
        if high < low:
            self.fail(f"this range runs backwards, from {chr(low)!r} to {chr(high)!r}: exchange its ends", position)

    def _chars(self, ranges: Ranges, position: int) -> Node:
        """Return one character of a set, one object for equal sets."""
        node = self.classes.get(ranges)
        if node is None:
            if not ranges:
                self.fail("no character is left here: say which may stand here", position)
            begin, end = ranges[0][0], ranges[-1][1]
            if begin == end:
                node = Text(chr(begin).encode())
            else:
                node = Terminal(self.text[position : self.at], char_class(ranges))
            self.classes[ranges] = node
            self.ranges[id(node)] = ranges
        return node

    def _character(self, inside: bool) -> str:
        """Read one character of a text or, inside, of a class."""
        text, begin = self.text, self.at
        c = text[begin]
        self.at += 1
        if c != "\\":
            return c
        c = text[self.at : self.at + 1]
        self.at += 1
        named = _ALL_CONTROLS if self.ebnf else _CONTROLS
        if c in named:
            return named[c]
        if c and c in (_SIGNS_IN_CLASS if inside else _SIGNS):
            return c
        if c not in _HEX:
            if not c:
                self.fail("the grammar ends in a backslash", begin)
            if inside and c in "dDsSwW":
                self.fail(f"\\{c} is not supported: write the characters out, such as [0-9]", begin)
            self.fail(f"there is no escape \\{c}: write {c} if that is meant", begin)
        digits = (_HEX_ANY if self.ebnf and c == "x" else _HEX[c]).match(text, self.at)
        if not digits:
            self.fail(f"\\{c} needs {_HEX[c].pattern[-2]} hexadecimal digits", begin)
        self.at = digits.end()
        return self._point(digits.group(), begin)

    def _point(self, digits: str, position: int) -> str:
        value = int(digits, 16) if len(digits.lstrip("0")) <= 6 else 0x110000
        if value > 0x10FFFF:
            self.fail("there is no such character: Unicode ends at 10FFFF", position)
        if 0xD800 <= value <= 0xDFFF:
            self.fail(
                "half a surrogate pair is no character, and UTF-8 cannot hold it: write \\U and eight digits", position
            )
        return chr(value)


def _is_plain(node: Repeat) -> bool:
    """Return whether a repeat is one that *, + or ? writes."""
    return node.low <= 1 and node.high in (1, None) and (node.low, node.high) != (1, 1)


def _spelt(pairs: list[tuple[int, int]], negated: bool) -> Ranges:
    return complement_ranges(pairs) if negated else normalize_ranges(pairs)


def _without(one: Ranges, two: Ranges) -> list[tuple[int, int]]:
    """Return the characters of one set that are not in another."""
    return [
        (max(low, first), min(high, last))
        for low, high in one
        for first, last in complement_ranges(two)
        if max(low, first) <= min(high, last)
    ]


def read_gbnf(text: str, start: str = "root", meter: Meter | None = None) -> Grammar:
    """Return the grammar that a text in GBNF says; `<name>` is the special token that is spelt like that.

    Raises GrammarError with line, column and caret for what is malformed, not defined or not supported: tokens by their
    numbers, `<[1000]>`, and any token but one, `!<name>`, among it.

    >>> sorted(read_gbnf('root ::= "(" root ")" | [a-z]+').rules)
    ['root']
    """
    return Reader(text, False, meter).grammar(start)
