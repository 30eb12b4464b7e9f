"""Read a grammar in lark's notation.

lark's own parser reads the text, its library is where imports come from, and its rules say how the parts of a terminal
become one pattern. What a terminal takes is what lark's Earley parser takes with lexer="dynamic_complete": see
`terminals`. Aliases, the prefixes `?`, `_` and `!`, and priorities choose among derivations and names of trees, and do
not change which texts parse. Ten lines with imports take some 0.3 ms, and 0.6 ms more where all terminals are new; 54
lines of SQL take 2.5 and 5 ms.

Two things differ. What is ignored may end anywhere, where lark takes the longest match: after `"a"`, ignoring `/ +/`,
it finds no `" b"` in "a  b". And a terminal may be empty, which lark refuses. Beyond lark, `<|name|>` in a rule is the
special token of that name, and a declared terminal is the one of its own. Relative imports are refused, since a text
lies in no folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import count, groupby, islice, repeat
from typing import Any, NoReturn, cast

from lark import Token
from lark.exceptions import GrammarError as LarkError
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.lexer import Pattern, PatternRE, PatternStr
from lark.load_grammar import GRAMMAR_ERRORS, _literal_to_pattern, eval_escaping
from lark.utils import get_regexp_width

from ...automata import ops
from ...automata.budget import Budget, Meter
from ...automata.deadline import look
from ...automata.dfa import Dfa
from ...depth import LIMIT, MOST_LITERAL, MOST_PARENTHESES, MOST_RULES, MOST_TERMINALS
from ...errors import ConstraintError, GrammarError, RegexError
from .analysis import READING
from .form import EMPTY, MOST_TIMES, Choice, Grammar, Node, Repeat, Rule, Sequence, Special, Terminal, Text, times
from .lark_definitions import Definition, FaultError, Literals, Module
from .lark_parser import Parsed, lark_parser, parsed
from .terminals import in_any_case, words

_ANY_CASE = frozenset("i")
_MOST_TEMPLATES = 10_000  # uses of templates with different arguments
_LONGEST_TEMPLATE = 2_000  # characters in the name of one

# texts, comments and patterns. One without an end goes as far as it can, or a search would begin again in its middle
_QUOTED = r'"(?:\\.|[^"\\\n])*+"?|//[^\n]*|#[^\n]*|/(?!/)(?:[^/\\]++|\\[/\\]?)*+/?'
_OUTSIDE = re.compile(_QUOTED + r'|(<[^<>\s"]+>)')
_BRACKETS = re.compile(_QUOTED + r"|([][(){}])")
_DEFINITION = re.compile(r"^[ \t]*[?!]*[A-Za-z_]\w*(?:\{[^}\n]*\})?(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_RULE_SAYS = r"\[\s*(?:capture|lazy|max_tokens|stop|stop_capture|suffix|temperature)\s*"
_ADDITIONS = (  # of llguidance's to the notation: what stands before, and from where nothing is known, and what to do
    (r"", r"%json\b", "%json", "put the schema beside the grammar with compile_structural_tag"),
    (r"", r"%regex\b", "%regex", "write a pattern between slashes"),
    (r"", r"%lark\b|@[\w-]", "another grammar within one", "write its rules into this one"),
    (r"", r"%llguidance\b", "%llguidance", "leave the line out"),
    (r"", r"&", "&, what two patterns share,", "write one pattern of just that"),
    (r"", r"~", "~, all that a pattern leaves,", r"write a pattern of just that, as /(?!if\b)[a-z]+/"),
    (_RULE_SAYS, r"=", "an attribute of a rule", "say with rules and patterns what it is for"),
    (r"", rf"{_RULE_SAYS}[]=,]", "an attribute of a rule", "say with rules and patterns what it is for"),
    (r"", r"::", "a rule with parameters", "write a template, rule{parameter}"),
)
_JOINS = re.compile(r"[A-Za-z0-9_]")


def read_lark(text: str, start: str = "start", meter: Meter | None = None) -> Grammar:
    """Return the grammar that a text in lark's notation says.

    Raises GrammarError with line, column and caret for what is malformed, not defined or not supported; BudgetError
    where a terminal grows beyond the meter's budget.
    """
    if not isinstance(text, str):
        raise ConstraintError(f"a grammar must be a str, not {type(text).__name__}: decode it")
    _check_depth(text)
    return _Reader(text, Budget().begin() if meter is None else meter).grammar(start)


def _check_depth(text: str) -> None:
    """Raise GrammarError if brackets are nested too deeply, or there are too many definitions."""
    if sum(map(text.count, "([{")) > MOST_PARENTHESES:
        depth = 0
        for found in _BRACKETS.finditer(text):
            if found.end() - found.start() > MOST_LITERAL:
                said = f"this text or pattern has more than {MOST_LITERAL:,} characters: make several of it"
                raise GrammarError(said, text, found.start()).reaching(LIMIT, MOST_LITERAL)
            if found[1]:
                depth = max(depth + (1 if found[1] in "([{" else -1), 0)
            if depth > MOST_PARENTHESES:
                said = f"brackets are nested more than {MOST_PARENTHESES} deep: flatten them, or make them rules"
                raise GrammarError(said, text, found.start()).reaching(LIMIT, MOST_PARENTHESES)
    if text.count(":") > MOST_RULES:
        one_more = next(islice(_DEFINITION.finditer(text), MOST_RULES, None), None)
        if one_more is not None:
            said = f"there are more than {MOST_RULES:,} rules and terminals: leave some out"
            raise GrammarError(said, text, one_more.start()).reaching(LIMIT, MOST_RULES)


class _Reader:
    def __init__(self, text: str, meter: Meter) -> None:
        self.text, self.meter = text, meter
        self.specials: dict[str, Special] = {}
        self.terminals: dict[str, Node] = {}  # by name, and by what a literal says
        self.rules: dict[str, Node] = {}
        self.where: dict[str, int] = {}
        self.templates: list[tuple[str, Definition, dict[str, Any]]] = []  # uses to be written out
        self.ignoring = False

    def fail(self, message: str, token: Token | int | None) -> NoReturn:
        position = token if isinstance(token, int) else token.start_pos if token is not None else 0
        raise GrammarError(message, self.text, min(position or 0, len(self.text))) from None

    def grammar(self, start: str) -> Grammar:
        try:
            self.module = Module(self._tree())
            ignored = self._ignored()
            for name, d in self.module.definitions.items():
                if not d.is_terminal:
                    token = self.module.imported.get(name, d.name)
                    self.where[name] = token.start_pos or 0
                    if not d.params:
                        self.rules[name] = self._rule(d, {})
            while self.templates:
                name, d, given = self.templates.pop()
                self.rules[name] = self._rule(d, given)
        except FaultError as fault:
            self.fail(fault.message, fault.token)
        if start not in self.rules:
            hint = f"there is {', '.join(list(self.rules)[:5])}" if self.rules else "it has no rules"
            self.fail(f"there is no rule {start!r} to start with: {hint}", 0)
        return Grammar(self.rules, start, ignored, self.text, self.where)

    def _tree(self) -> Any:
        """Return lark's tree of the text, special tokens in the place of terminals."""
        text = self._without_specials() if "<" in self.text else self.text
        try:
            return parsed(text + "\n", self.meter)
        except UnexpectedCharacters as error:
            position = error.pos_in_stream or 0
            self._refuse_addition(position)
            shown = self.text[position : position + 1]
            self.fail(f"{shown!r} has no place here", position)
        except UnexpectedToken as error:
            found = error.match_examples(lark_parser().parse, GRAMMAR_ERRORS, use_accepts=True)
            shown = repr(str(error.token)) if error.token.type != "$END" else "the end"
            label = f" ({found[0].lower()}{found[1:]})" if found else ""
            position = len(self.text) if error.token.type == "$END" else error.token.start_pos
            self._refuse_addition(position)
            self.fail(f"{shown} has no place here{label}", position)
        except UnexpectedInput as error:
            self.fail(str(error).split("\n")[0], error.pos_in_stream or 0)

    def _refuse_addition(self, position: int) -> None:
        """Raise GrammarError if what stands at a place is an addition of llguidance's to Lark's notation."""
        for before, here, name, instead in _ADDITIONS:
            if re.search(f"{before}$", self.text[:position]) and re.match(here, self.text[position:]):
                self.fail(f"{name} is llguidance's addition to Lark's notation and not supported: {instead}", position)

    def _without_specials(self) -> str:
        """Return the text with a terminal of the same length in place of each <special token>."""
        names: dict[str, str] = {}

        def replaced(match: re.Match[str]) -> str:
            token = match[1]
            if token is None:
                return match[0]
            if token.startswith("<["):
                self.fail("tokens by their numbers are not supported: write the token's name", match.start())
            around = self.text[max(0, match.start() - 1) : match.start()] + self.text[match.end() : match.end() + 1]
            if _JOINS.search(around):
                self.fail(f"put spaces around {token}", match.start())
            if token not in names:
                for i in count():
                    digits = str(i)
                    name = f"Z{digits:_>{len(token) - 1}}"
                    if len(name) > len(token):
                        self.fail(f"there are too many tokens with names as short as {token}", match.start())
                    if name not in self.text and name not in self.specials:
                        break
                names[token] = name
                self.specials[name] = Special(token)
            return names[token]

        return _OUTSIDE.sub(replaced, self.text)

    def _ignored(self) -> Dfa | None:
        found: list[Dfa] = []
        for tree in self.module.ignored:
            self.ignoring = True
            token = next((t for t in tree.scan_values(lambda v: isinstance(v, Token))), None)
            pattern, _ = self._pattern(tree, self.module.definitions, ())
            found.append(self._words(pattern.to_regexp(), [(tree, self.module.definitions)], token))
        return ops.unions(found, self.meter) if found else None

    # ------------------------------------------------------------------------------------------------------ rules

    def _rule(self, d: Definition, given: dict[str, Any]) -> Node:
        own: list[Node] = [self._node(tree, given, str) for tree, _ in d.more]
        return _choice([*own, self._node(d.tree, given, d.renamed)])

    def _node(self, tree: Parsed, given: dict[str, Any], renamed: Callable[[str], str]) -> Node:
        """Return what a part of a rule derives. given: nodes, or names of templates, by the template's parameters."""
        look(READING)
        kind, children = tree.data, tree.children
        if kind == "value" or kind == "alias":
            return self._node(children[0], given, renamed)
        if kind == "nonterminal" or kind == "terminal":
            return self._symbol(children[0], given, renamed)
        if kind == "literal" or kind == "range":
            return self._literal(tree)
        if kind == "expansion":
            return self._sequence(list(map(self._node, children, repeat(given), repeat(renamed))))
        if kind == "expansions":
            return _choice(list(map(self._node, children, repeat(given), repeat(renamed))))
        if kind == "maybe":
            return Repeat(self._node(children[0], given, renamed), 0, 1)
        if kind == "template_usage":
            return self._template(tree, given, renamed)
        assert kind == "expr"
        low, high = self._times(children)
        item = self._node(children[0], given, renamed)
        return EMPTY if high == 0 else item if low == high == 1 else Repeat(item, low, high)

    def _times(self, children: list[Any]) -> tuple[int, int | None]:
        sign = str(children[1])
        if sign != "~":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        low, *more = [times(str(child)) for child in children[2:]]
        high = more[0] if more else low
        if max(low, high) > MOST_TIMES:
            self.fail(f"this repeats more often than {MOST_TIMES:,} times: lower the number", children[1])
        if not 0 <= low <= high:
            self.fail(f"{low} to {high} times is never: exchange the numbers", children[1])
        return low, high

    def _sequence(self, items: list[Node]) -> Node:
        """Return items in a row, texts joined where nothing can be ignored between them."""
        parts: list[Node] = []
        for item in items:
            parts += item.items if isinstance(item, Sequence) else (item,)
        out: list[Node] = []
        for are_texts, group in groupby(parts, lambda part: not self.ignoring and isinstance(part, Text)):
            out += [Text(b"".join([part.data for part in cast("Iterable[Text]", group)]))] if are_texts else group
        return out[0] if len(out) == 1 else Sequence(tuple(out))

    def _symbol(self, token: Token, given: dict[str, Any], renamed: Callable[[str], str]) -> Node:
        name = str(token)
        if name in given:
            node = given[name]
            if isinstance(node, str):
                self.fail(f"the template {node} needs arguments: write {node}{{...}}", token)
            return node  # type: ignore[no-any-return]
        if name in self.specials:
            return self.specials[name]
        name = renamed(name)
        d = self.module.definitions.get(name)
        if d is None:
            self.fail(f"there is no {'terminal' if name.isupper() else 'rule'} {name}: define or import it", token)
        if d.is_terminal:
            return self._terminal(name, d)
        if d.params:
            self.fail(f"the template {name} needs arguments: write {name}{{...}}", token)
        return Rule(name)

    def _template(self, tree: Parsed, given: dict[str, Any], renamed: Callable[[str], str]) -> Node:
        symbol, *arguments = tree.children
        token = symbol.children[0]
        name = str(token)
        name = given[name] if isinstance(given.get(name), str) else renamed(name)
        d = self.module.definitions.get(name)
        if d is None or not d.params:
            self.fail(f"there is no template {name}: define it with parameters", token)
        if len(arguments) != len(d.params):
            self.fail(f"the template {name} takes {len(d.params)} arguments, not {len(arguments)}", token)
        nodes = [self._argument(argument, given, renamed) for argument in arguments]
        use = f"{name}{{{','.join([_spelt(node) for node in nodes])}}}"
        if use not in self.rules:
            if len(use) > _LONGEST_TEMPLATE or len(self.rules) > _MOST_TEMPLATES:
                self.fail(f"the template {name} is used within itself with ever larger arguments: bound them", token)
            self.rules[use] = EMPTY  # until its turn comes
            self.where[use] = self.where.get(name, 0)
            self.templates.append((use, d, dict(zip(d.params, nodes, strict=True))))
        return Rule(use)

    def _argument(self, tree: Parsed, given: dict[str, Any], renamed: Callable[[str], str]) -> Any:
        """Return an argument of a template: a node, or the name of a template."""
        inner = tree.children[0]
        if inner.data == "nonterminal":
            name = str(inner.children[0])
            if name in given:
                return given[name]
            d = self.module.definitions.get(renamed(name))
            if d is not None and d.params:
                return renamed(name)
        return self._node(tree, given, renamed)

    # -------------------------------------------------------------------------------------------------- terminals

    def _terminal(self, name: str, d: Definition) -> Node:
        node = self.terminals.get(name)
        if node is None:
            if d.tree is None:
                node = Special(name)
            else:
                pattern, literals = self._made(d, ())
                trees = [(d.tree, d.home), *d.more]
                node = self._of(name, pattern, literals, trees, self.module.imported.get(name, d.name))
            self.terminals[name] = node
        return node

    def _literal(self, tree: Parsed) -> Node:
        key = " .. ".join(map(str, tree.children))
        node = self.terminals.get(key)
        if node is None:
            pattern, literals = self._pattern(tree, {}, ())
            node = self._of(key, pattern, literals, [(tree, {})], tree.children[0])
            self.terminals[key] = node
        return node

    def _of(self, name: str, pattern: Pattern, literals: Literals, trees: list[Any], token: Token) -> Node:
        try:
            if literals and all(text for text, _ in literals):
                each = dict.fromkeys(literals)
                return _choice(
                    [
                        Terminal(name, in_any_case(t), f"(?i:{re.escape(t)})") if any_case else Text(t.encode())
                        for t, any_case in each
                    ]
                )
        except UnicodeEncodeError:
            self.fail("half a surrogate pair is no character, and UTF-8 cannot hold it: write the character", token)
        source = pattern.to_regexp()
        return Terminal(name, self._words(source, trees, token), source)

    def _words(self, pattern: str, trees: list[Any], token: Token | None) -> Dfa:
        try:
            return words(pattern, self.meter)
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
            if d in within:
                raise FaultError(f"the terminal {d.name} is made of itself: only rules can be", d.name)
            if len(within) >= MOST_TERMINALS:
                said = f"terminals are made of others more than {MOST_TERMINALS} deep: make rules of some"
                raise GrammarError(said, self.text, d.name.start_pos or 0).reaching(LIMIT, MOST_TERMINALS)
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
            token = children[0]
            try:
                pattern = _read(str(token), token.type)
            except (LarkError, ValueError) as error:
                raise FaultError(f"{token} is no terminal: {error.args[0]}", token) from None
            if "l" in pattern.flags:
                raise FaultError("the flag l, for a locale's letters, is for patterns over bytes: leave it out", token)
            plain = isinstance(pattern, PatternStr) and _ANY_CASE.issuperset(pattern.flags)
            return pattern, ((pattern.value, bool(pattern.flags)),) if plain else None
        if kind == "range":
            low, high = children
            if low[-1] != '"' or high[-1] != '"' or not _evaluated(low) == 1 == _evaluated(high):
                raise FaultError("a range needs one character at either end, without flags", low)
            return PatternRE(f"[{low[1:-1]}-{high[1:-1]}]"), None
        if kind == "terminal":
            name = children[0]
            d = home.get(str(name))
            if d is None or d.tree is None:
                special = str(name) in self.specials or d is not None
                raise FaultError(
                    "a special token cannot be part of a terminal: make this a rule"
                    if special
                    else f"there is no terminal {name}: define or import it",
                    name,
                )
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
            if kind == "maybe":
                sign = "?"
            elif len(children) == 2:
                sign = str(children[1])
            else:
                low, high = self._times(children)
                sign = f"{{{low}}}" if low == high else f"{{{low},{high}}}"
            return PatternRE(f"(?:{pattern.to_regexp()}){sign}", pattern.flags), None
        token = next(tree.scan_values(lambda v: isinstance(v, Token)))
        if kind == "alias":
            raise FaultError("an alias has no place in a terminal: remove it", token)
        raise FaultError("a rule has no place in a terminal: make this a rule as well", token)


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


def _choice(items: list[Node]) -> Node:
    return items[0] if len(items) == 1 else Choice(tuple(items))


def _spelt(node: Parsed) -> str:
    """Return a name for an argument of a template."""
    if isinstance(node, str):
        return node
    if isinstance(node, (Rule, Terminal, Special)):
        return node.name
    if isinstance(node, Text):
        return repr(node.data)
    return "|".join([_spelt(item) for item in node.items])
