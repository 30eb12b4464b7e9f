"""The terminals of a grammar in Lark's notation: one pattern each, as lark puts it together, or a language.

A terminal with one of llguidance's operators, `&`, `~` and %regex, is a language, and so is each of which it consists.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from typing import Any, NoReturn, TypeVar

from lark import Token, Tree
from lark.exceptions import GrammarError as LarkError
from lark.lexer import Pattern, PatternRE, PatternStr
from lark.load_grammar import _literal_to_pattern, eval_escaping
from lark.utils import get_regexp_width

from ...automata import ops
from ...automata.budget import Meter
from ...automata.deadline import look
from ...automata.dfa import Dfa
from ...automata.utf8 import text
from ...depth import LIMIT, MOST_TERMINALS
from ...errors import GrammarError, RegexError
from . import form
from .analysis import READING
from .form import EMPTY, MOST_TIMES, Choice, Node, Repeat, Special, Terminal, Text, times
from .languages import all_but, substrings
from .lark_definitions import Definition, FaultError, Literals, Module
from .lark_objects import chunks_of
from .lark_parser import Parsed
from .regular import dfa_of
from .terminals import in_any_case, language, words, words_in_context

_T = TypeVar("_T")
_ANY_CASE = frozenset("i")
_COUNT = re.compile(r"[0-9]+|,")
_OPERATORS = frozenset(("both", "negation", "regex"))
_NO_PART = {
    "special": "a special token cannot be part of a terminal: make this a rule",
    "json": "JSON cannot be part of a terminal: make this a rule",
    "nested": "a grammar cannot be part of a terminal: make this a rule",
    "parametric": "a rule has no place in a terminal: make this a rule as well",
    "conditional": "a condition has no place in a terminal: make this a rule",
    "alias": "an alias has no place in a terminal: remove it",
}


class Terminals:
    """Reads the terminals of a grammar, each once."""

    def __init__(self, text: str, module: Module, objects: dict[int, str], meter: Meter) -> None:
        self.text, self.module, self.objects, self.meter = text, module, objects, meter
        self._known: dict[str, Node] = {}  # by name, and by what a literal says
        self._all_languages = bool(module.options)  # %llguidance says that the grammar is one of its own

    def fail(self, message: str, token: Token | int | None) -> NoReturn:
        position = token if isinstance(token, int) else token.start_pos if token is not None else 0
        raise GrammarError(message, self.text, min(position or 0, len(self.text))) from None

    def object_at(self, token: Token) -> tuple[int, str]:
        """Return where an object begins, and its text."""
        position = token.start_pos or 0
        if position not in self.objects:
            self.fail(f"{self.text[position : position + 1]!r} has no place here", position)
        return position, self.objects[position]

    def times(self, children: list[Any]) -> tuple[int, int | None]:
        """Return how often an expression stands, by what is behind it."""
        sign = str(children[1])
        high: int | None
        if sign[0] == "{":
            low, high = _counted(sign)
        elif sign != "~":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        else:
            low, *more = [times(str(child)) for child in children[2:]]
            high = more[0] if more else low
        if max(low, high or 0) > MOST_TIMES:
            self.fail(f"this repeats more often than {MOST_TIMES:,} times: lower the number", children[1])
        if low < 0 or (high is not None and high < low):
            self.fail(f"{low} to {high} times is never: exchange the numbers", children[1])
        return low, high

    def ignored(self) -> Dfa | None:
        """Return all that is ignored."""
        found: list[Dfa] = []
        for tree in self.module.ignored:
            token = next((t for t in tree.scan_values(lambda v: isinstance(v, Token))), None)
            if self._has_operators(tree, self.module.definitions, ()):
                found.append(self.language([(tree, self.module.definitions)]))
                continue
            pattern, _ = self._pattern(tree, self.module.definitions, ())
            found.append(self._words(words, pattern.to_regexp(), [(tree, self.module.definitions)], token))
        return ops.unions(found, self.meter) if found else None

    def named(self, name: str, d: Definition) -> Node:
        """Return a terminal by its name."""
        node = self._known.get(name)
        if node is None:
            if d.tree is None:
                node = Special(name)
            elif self._is_language(d, ()):
                node = Terminal(name, self._language_of(d, ()))
            else:
                pattern, literals = self._made(d, ())
                trees = [(d.tree, d.home), *d.more]
                node = self._of(name, pattern, literals, trees, self.module.imported.get(name, d.name))
            self._known[name] = node
        return node

    def literal(self, tree: Parsed) -> Node:
        """Return a terminal that stands in a rule as it is."""
        key = " .. ".join(map(str, tree.children))
        node = self._known.get(key)
        if node is None:
            pattern, literals = self._pattern(tree, {}, ())
            node = self._of(key, pattern, literals, [(tree, {})], tree.children[0])
            self._known[key] = node
        return node

    def _of(self, name: str, pattern: Pattern, literals: Literals, trees: list[Any], token: Token) -> Node:
        try:
            if literals and all(text for text, _ in literals):
                each = dict.fromkeys(literals)
                return choice(
                    [
                        Terminal(name, in_any_case(t), f"(?i:{re.escape(t)})") if any_case else Text(t.encode())
                        for t, any_case in each
                    ]
                )
        except UnicodeEncodeError:
            self.fail("half a surrogate pair is no character, and UTF-8 cannot hold it: write the character", token)
        source = pattern.to_regexp()
        if self._all_languages:
            return Terminal(name, self._words(language, source, trees, token), source)
        parts = self._words(_in_context, source, trees, token)
        if len(parts) == 1 and parts[0][1] is text():
            return Terminal(name, parts[0][0], source)
        return Terminal(name, ops.unions([own for own, _ in parts], self.meter), source, parts)

    def _words(
        self, read: Callable[[str, Meter], _T], pattern: str, trees: list[Any], token: Token | None
    ) -> _T:  # fmt: skip
        try:
            return read(pattern, self.meter)
        except RegexError as error:
            at = self._blamed(pattern, error.position, trees, token)
            position = at if isinstance(at, int) else 0 if at is None else at.start_pos or 0
            wrong = GrammarError(error.message, self.text, min(position, len(self.text)))
            raise (wrong if error.limit is None else wrong.reaching(error.limit, error.allowed)) from None

    def _blamed(self, pattern: str, position: int, trees: list[Any], token: Token | None) -> Token | int | None:
        """Return where in the text a place in a terminal's pattern comes from, or the terminal's name."""
        own = [tree for tree, home in trees if not home or home is self.module.definitions]  # no text of the library
        literals = [v for tree in own for v in tree.scan_values(lambda v: isinstance(v, Token) and v.type == "REGEXP")]
        for past in (0, 1):  # at its end only where none other begins there
            for literal in literals:
                value = _read(str(literal), literal.type).value
                begin = pattern.find(value)
                if 0 <= begin <= position < begin + len(value) + past:
                    same = literal[1 : 1 + position - begin] == value[: position - begin]
                    return (literal.start_pos or 0) + (1 + position - begin if same else 0)
        return token

    def _made(self, d: Definition, within: tuple[Definition, ...]) -> tuple[Pattern, Literals]:
        """Return the pattern of a terminal."""
        if d.made is None:
            self._check_within(d, within)
            within, alternatives = (*within, d), []
            for tree, home in [*d.more, *((child, d.home) for child in d.tree.children)]:
                alternatives.append(self._pattern(tree, home, within))
            d.made = _alternatives(alternatives)
            size = len(d.made[0].value)
            self.meter.check(states=size, bytes=64 * size, doing=f"putting the terminal {d.name} together")
        return d.made

    def _pattern(
        self, tree: Parsed, home: dict[str, Definition], within: tuple[Definition, ...]
    ) -> tuple[Pattern, Literals]:
        """Return a part of a terminal as lark writes it as a pattern, and as plain texts where it is that."""
        look(READING)
        kind, children = tree.data, tree.children
        if kind == "value":
            return self._pattern(children[0], home, within)
        if kind == "literal":
            pattern = _written(children[0])
            plain = isinstance(pattern, PatternStr) and _ANY_CASE.issuperset(pattern.flags)
            return pattern, ((pattern.value, bool(pattern.flags)),) if plain else None
        if kind == "range":
            return _range(children), None
        if kind == "terminal":
            name = children[0]
            d = home.get(str(name))
            if d is None or d.tree is None:
                raise FaultError(_no_terminal(name, d), name)
            return self._made(d, within)
        if kind == "expansion":
            parts = list(map(self._pattern, children, repeat(home), repeat(within)))
            if len(parts) == 1:
                return parts[0]
            return (PatternRE("".join([p.to_regexp() for p, _ in parts])) if parts else PatternStr("")), None
        if kind == "expansions":
            return _alternatives(list(map(self._pattern, children, repeat(home), repeat(within))))
        if kind == "maybe" or kind == "expr":
            pattern, _ = self._pattern(children[0], home, within)
            sign = "?" if kind == "maybe" else str(children[1])
            if sign[0] in "~{":
                low, high = self.times(children)
                sign = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
            return PatternRE(f"(?:{pattern.to_regexp()}){sign}", pattern.flags), None
        raise self._no_part(tree)

    # ------------------------------------------------------------------------------------------------ languages

    def language(self, trees: list[tuple[Parsed, dict[str, Definition]]]) -> Dfa:
        """Return the language of what some trees say, any one of them."""
        return dfa_of(Choice(tuple([self._regular(tree, home, ()) for tree, home in trees])), self.meter)

    def _is_language(self, d: Definition, within: tuple[Definition, ...]) -> bool:
        if d.is_language is None:
            if d in within or len(within) >= MOST_TERMINALS:
                return False  # an error wherever it is read
            parts = [*d.more, (d.tree, d.home)]
            d.is_language = any(self._has_operators(tree, home, (*within, d)) for tree, home in parts)
        return d.is_language

    def _has_operators(self, tree: Parsed, home: dict[str, Definition], within: tuple[Definition, ...]) -> bool:
        """Whether a part of a terminal, or of one of which it consists, has an operator that no pattern has."""
        for part in tree.iter_subtrees():
            if part.data in _OPERATORS:
                return True
            if part.data == "terminal":
                d = home.get(str(part.children[0]))
                if d is not None and d.tree is not None and self._is_language(d, within):
                    return True
        return False

    def _language_of(self, d: Definition, within: tuple[Definition, ...]) -> Dfa:
        """Return the language of a terminal."""
        if d.language is None:
            self._check_within(d, within)
            parts = [*d.more, (d.tree, d.home)]
            node = Choice(tuple([self._regular(tree, home, (*within, d)) for tree, home in parts]))
            d.language = dfa_of(node, self.meter)
        return d.language

    def _check_within(self, d: Definition, within: tuple[Definition, ...]) -> None:
        if d in within:
            raise FaultError(f"the terminal {d.name} is made of itself: only rules can be", d.name)
        if len(within) >= MOST_TERMINALS:
            said = f"terminals are made of others more than {MOST_TERMINALS} deep: make rules of some"
            raise GrammarError(said, self.text, d.name.start_pos or 0).reaching(LIMIT, MOST_TERMINALS)

    def _regular(self, tree: Parsed, home: dict[str, Definition], within: tuple[Definition, ...]) -> Node:
        """Return a part of a terminal, taken as a language, as a node that `dfa_of` reads."""
        look(READING)
        kind, children = tree.data, tree.children
        if kind == "value":
            return self._regular(children[0], home, within)
        if kind == "literal" or kind == "range":
            token = children[0]
            pattern = _written(token) if kind == "literal" else _range(children)
            source = pattern.to_regexp()
            return Terminal(str(token), self._words(language, source, [(tree, home)], token), source)
        if kind == "terminal":
            d = home.get(str(children[0]))
            if d is None or d.tree is None:
                raise FaultError(_no_terminal(children[0], d), children[0])
            return Terminal(str(children[0]), self._language_of(d, within))
        if kind == "regex":
            position, source = self.object_at(children[0])
            return Terminal("%regex", substrings(chunks_of(self.text, position, source), self.meter))
        parts = [self._regular(child, home, within) for child in children if isinstance(child, Tree)]
        if kind == "both":
            return Terminal("&", ops.intersections([dfa_of(part, self.meter) for part in parts], self.meter))
        if kind == "negation":
            return Terminal("~", all_but(dfa_of(parts[0], self.meter), self.meter))
        if kind == "expansion":
            return form.Sequence(tuple(parts))
        if kind == "expansions":
            return Choice(tuple(parts))
        if kind == "maybe":
            return Repeat(parts[0], 0, 1)
        if kind == "expr":
            low, high = self.times(children)
            return EMPTY if high == 0 else Repeat(parts[0], low, high)
        raise self._no_part(tree)

    def operators(self, tree: Parsed) -> Node:
        """Return the terminal of a part of a rule with an operator."""
        return Terminal(
            "".join(map(str, tree.scan_values(lambda v: isinstance(v, Token)))),
            self.language([(tree, self.module.definitions)]),
        )

    def _no_part(self, tree: Parsed) -> FaultError:
        token = next(tree.scan_values(lambda v: isinstance(v, Token)))
        return FaultError(_NO_PART.get(tree.data, _NO_PART["parametric"]), token)


def _in_context(pattern: str, meter: Meter) -> tuple[tuple[Dfa, Dfa], ...]:
    """Return the words of a pattern in parts, each with what may follow them."""
    try:
        return ((words(pattern, meter), text()),)
    except RegexError:  # mostly there is no lookahead, and words are known
        return words_in_context(pattern, meter)


def _no_terminal(name: Token, d: Definition | None) -> str:
    return f"there is no terminal {name}: define or import it" if d is None else _NO_PART["special"]


def _counted(count: str) -> tuple[int, int | None]:
    """Return the numbers of {2}, {2,}, {,5} or {2,5}.

    >>> _counted("{2}"), _counted("{2,}"), _counted("{,5}")
    ((2, 2), (2, None), (0, 5))
    """
    low, *more = "".join(_COUNT.findall(count)).split(",")
    first = times(low or "0")
    return first, first if not more else times(more[0]) if more[0] else None


def _written(token: Token) -> Pattern:
    """Return the pattern that a string or a regular expression in a grammar says; lark knows no text of nothing."""
    if token in ('""', '""i'):
        return PatternStr("")
    try:
        pattern = _read(str(token), token.type)
    except (LarkError, ValueError) as error:
        raise FaultError(f"{token} is no terminal: {error.args[0]}", token) from None
    if "l" in pattern.flags:
        raise FaultError("the flag l, for a locale's letters, is for patterns over bytes: leave it out", token)
    return pattern


def _range(ends: list[Token]) -> Pattern:
    low, high = ends
    if low[-1] != '"' or high[-1] != '"' or not _evaluated(low) == 1 == _evaluated(high):
        raise FaultError("a range needs one character at either end, without flags", low)
    return PatternRE(f"[{low[1:-1]}-{high[1:-1]}]")


def _evaluated(token: Token) -> int:
    """Return how many characters a string in a grammar has."""
    return len(eval_escaping(token[1:-1]))  # type: ignore[no-untyped-call]


def _alternatives(parts: list[tuple[Pattern, Literals]]) -> tuple[Pattern, Literals]:
    """Return one of several patterns, the longest first, as lark orders them."""
    if len(parts) == 1:
        return parts[0]
    for pattern, _ in parts:
        if isinstance(pattern, PatternRE) and pattern._width is None:
            pattern._width = _width(pattern.to_regexp())
    parts = sorted(parts, key=lambda part: (-part[0].max_width, -part[0].min_width, -len(part[0].value)))
    literals: Literals = None
    if all(part[1] is not None for part in parts):
        literals = tuple(text for _, texts in parts for text in texts or ())
    return PatternRE(f"(?:{'|'.join([p.to_regexp() for p, _ in parts])})"), literals


@lru_cache(maxsize=4096)
def _read(literal: str, kind: str) -> Pattern:
    """Return the pattern that a string or a regular expression in a grammar says."""
    return _literal_to_pattern(Token(kind, literal))  # type: ignore[no-any-return, no-untyped-call]


@lru_cache(maxsize=4096)
def _width(pattern: str) -> Any:
    """Return the (least, largest) number of characters that a pattern matches, as Python's `re` sees it.

    What `re` cannot read is of no known width; what is wrong with it is said where the pattern is compiled.
    """
    try:
        return get_regexp_width(pattern)
    except Exception:
        return (0, 1 << 32)


def choice(items: list[Node]) -> Node:
    """Return any one of some nodes."""
    return items[0] if len(items) == 1 else Choice(tuple(items))
