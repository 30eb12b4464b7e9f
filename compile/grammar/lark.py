"""Read a grammar in lark's notation.

lark's own tables read the text, its library is where imports come from, and its rules say how the parts of a terminal
become one pattern. What a terminal takes is what lark's Earley parser takes with lexer="dynamic_complete": see
`terminals`. Aliases, the prefixes `?`, `_` and `!`, and priorities choose among derivations and names of trees, and do
not change which texts parse. Ten lines with imports take some 0.3 ms, and 0.6 ms more where all terminals are new; 54
lines of SQL take 2.5 and 5 ms.

Two things differ. What is ignored may end anywhere, where lark takes the longest match: after `"a"`, ignoring `/ +/`,
it finds no `" b"` in "a  b". And a terminal may be empty, which lark refuses. Relative imports are refused, since a
text lies in no folder. Beyond lark, a declared terminal is the special token of its own name.

llguidance's additions are read as its documents say. Where the ignored text of parts differs, or JSON holds none, what
may stand behind a terminal is written into the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby, islice, repeat
from typing import Any, NoReturn, cast

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.load_grammar import GRAMMAR_ERRORS

from ...automata import ops
from ...automata.budget import Budget, Meter
from ...automata.deadline import look
from ...automata.dfa import Dfa
from ...depth import LIMIT, MOST_LITERAL, MOST_PARENTHESES, MOST_RULES
from ...errors import ConstraintError, GrammarError
from .analysis import READING, items, without_dead_ends
from .contexts import asks_for_contexts, without_contexts
from .form import EMPTY, NEVER, Choice, Grammar, Node, Repeat, Rule, Sequence, Special, Terminal, Text
from .languages import before, shortest_of
from .lark_attributes import attributes_of, is_empty_text
from .lark_definitions import Definition, FaultError, Module
from .lark_objects import cut, options_of
from .lark_parser import QUOTED, Parsed, parsed, parser
from .lark_terminals import Terminals, choice
from .lazy_terminals import settled
from .rule_parameters import ParameterError, holds, value_of
from .special_tokens import TOKEN, TOKENS, VALUE

_MOST_TEMPLATES = 10_000  # uses of templates with different arguments, and of rules with different parameters
_LONGEST_TEMPLATE = 2_000  # characters in the name of one
_MOST_NESTED = 8  # grammars within one another
_PARAMETER = "::"  # the name of a rule's parameter among what is given to it

_BRACKETS = re.compile(QUOTED + r"|([][(){}])")
_DEFINITION = re.compile(r"^[ \t]*[?!]*[A-Za-z_]\w*(?:\{[^}\n]*\})?(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_TOKENS = re.compile(r"<\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]>")


def read_lark(text: str, start: str = "start", meter: Meter | None = None) -> Grammar:
    """Return the grammar that a text in lark's notation says.

    Raises GrammarError with line, column and caret for what is malformed, not defined or not supported; BudgetError
    where a terminal grows beyond the meter's budget.
    """
    if not isinstance(text, str):
        raise ConstraintError(f"a grammar must be a str, not {type(text).__name__}: decode it")
    meter = Budget().begin() if meter is None else meter
    reader = _Reader(text, meter, [], 0)
    grammar = reader.grammar(start)
    if reader.has_lazy:
        grammar = settled(grammar, meter)
    return without_contexts(grammar, meter) if asks_for_contexts(grammar.rules) else grammar


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
    """One reading of a text. schemas: those of all JSON values so far. depth: of grammars around this one."""

    def __init__(self, text: str, meter: Meter, schemas: list[tuple[str, int]], depth: int) -> None:
        self.text, self.meter, self.schemas, self.depth = text, meter, schemas, depth
        self.rules: dict[str, Node] = {}
        self.where: dict[str, int] = {}
        self.inner: dict[str, Node] = {}  # rules of grammars in this one, and where they stand
        self.inner_where: dict[str, int] = {}
        self.templates: list[tuple[str, Definition, dict[str, Any]]] = []  # uses to be written out
        self.ignoring = self.has_lazy = False

    def fail(self, message: str, token: Token | int | None) -> NoReturn:
        position = token if isinstance(token, int) else token.start_pos if token is not None else 0
        raise GrammarError(message, self.text, min(position or 0, len(self.text))) from None

    def grammar(self, start: str) -> Grammar:
        tree, objects = self._tree()
        options: dict[str, bool] = {}
        try:
            self.module = Module(tree)
            self.terminals = Terminals(self.text, self.module, objects, self.meter)
            for token in self.module.options:
                options |= options_of(self.text, *self.terminals.object_at(token))
            ignored = self.terminals.ignored()
            self.ignoring = ignored is not None
            for name, d in self.module.definitions.items():
                if not d.is_terminal:
                    token = self.module.imported.get(name, d.name)
                    self.where[name] = token.start_pos or 0
                    if not d.params and d.parameter is None:
                        self.rules[name] = self._rule(d, {})
            while self.templates:
                name, d, given = self.templates.pop()
                self.rules[name] = self._rule(d, given)
        except FaultError as fault:
            self.fail(fault.message, fault.token)
        if start not in self.rules:
            hint = f"there is {', '.join(list(self.rules)[:5])}" if self.rules else "it has no rules"
            self.fail(f"there is no rule {start!r} to start with: {hint}", 0)
        made = [name for name in self.rules if _PARAMETER in name]
        if made or _has_dead_ends(self.rules.values()):
            kept = without_dead_ends(self.rules | self.inner, made)
            self.rules = {name: body for name, body in kept.items() if name not in self.inner}
            self.inner = {name: kept[name] for name in self.inner}
        return self._put_together(start, ignored, options.get("ignore_once", False))

    def _put_together(self, start: str, ignored: Dfa | None, once: bool) -> Grammar:
        """Return the whole, with grammars in it. JSON and these hold no text that only this one ignores."""
        rules = self.rules
        if ignored is not None and (
            once or self.inner or asks_for_contexts(rules) or (self.schemas and _has_values(rules.values()))
        ):
            spaces = Repeat(Terminal("what is ignored", ignored), 0, 1 if once else None)
            rules = {name: spaced(body, spaces) for name, body in rules.items()}
            rules[f"{start}\0"] = Sequence((spaces, Rule(start)))
            start, ignored = f"{start}\0", None
            self.where[start] = 0
        where = self.inner_where | self.where
        return Grammar({**rules, **self.inner}, start, ignored, self.text, where, tuple(self.schemas))

    def _tree(self) -> tuple[Any, dict[int, str]]:
        """Return lark's tree of the text, and its objects."""
        text, objects = cut(self.text)
        _check_depth(text)
        try:
            return parsed(text + "\n", self.meter), objects
        except UnexpectedCharacters as error:
            position = error.pos_in_stream or 0
            self._refuse_reference(position)
            self.fail(f"{self.text[position : position + 1]!r} has no place here", position)
        except UnexpectedToken as error:
            found = error.match_examples(parser().parse, GRAMMAR_ERRORS, use_accepts=True)
            shown = repr(str(error.token)) if error.token.type != "$END" else "the end"
            label = f" ({found[0].lower()}{found[1:]})" if found else ""
            self.fail(
                f"{shown} has no place here{label}",
                len(self.text) if error.token.type == "$END" else error.token.start_pos,
            )
        except UnexpectedInput as error:
            self.fail(str(error).split("\n")[0], error.pos_in_stream or 0)

    def _refuse_reference(self, position: int) -> None:
        if re.match(r"@[\w-]", self.text[position:]):
            self.fail("another grammar, by its name, is not supported: write its rules as %lark { ... }", position)

    # ------------------------------------------------------------------------------------------------------ rules

    def _rule(self, d: Definition, given: dict[str, Any]) -> Node:
        said = attributes_of(d.attributes)
        if said.nothing:
            return EMPTY
        if said.ends:
            return self._lazy(d, said.stop, said.suffix)
        own: list[Node] = [self._node(tree, given, str) for tree, _ in d.more]
        return choice([*own, self._node(d.tree, given, d.renamed)])

    def _lazy(self, d: Definition, stop: Any, suffix: Any) -> Node:
        """Return the terminal of a rule with attributes: as short as may be, with its suffix or before its stop."""
        home, meter = self.module.definitions, self.meter
        words = self.terminals.language([*((tree, home) for tree, _ in d.more), (d.tree, home)])
        if is_empty_text(stop):
            return Terminal(str(d.name), words)
        self.has_lazy = True
        if stop is None and suffix is None:
            words = shortest_of(words, meter)
            return Terminal(str(d.name), words, lazy=words)
        end = self.terminals.language([(suffix if stop is None else stop, home)])
        whole = shortest_of(ops.concat(words, end, meter), meter)
        return Terminal(str(d.name), whole if stop is None else before(whole, end, meter), lazy=whole)

    def _node(self, tree: Parsed, given: dict[str, Any], renamed: Callable[[str], str]) -> Node:
        """Return what a part of a rule derives. given: nodes, or names of templates, by the template's parameters."""
        look(READING)
        kind, children = tree.data, tree.children
        if kind == "value" or kind == "alias":
            return self._node(children[0], given, renamed)
        if kind == "nonterminal" or kind == "terminal":
            return self._symbol(children[0], given, renamed)
        if kind == "literal" or kind == "range":
            return EMPTY if children[0] in ('""', '""i') else self.terminals.literal(tree)
        if kind == "expansion":
            return self._sequence(list(map(self._node, children, repeat(given), repeat(renamed))))
        if kind == "expansions":
            return choice(list(map(self._node, children, repeat(given), repeat(renamed))))
        if kind == "maybe":
            return Repeat(self._node(children[0], given, renamed), 0, 1)
        if kind == "template_usage":
            return self._template(tree, given, renamed)
        if kind != "expr":
            return self._addition(tree, given, renamed)
        low, high = self.terminals.times(children)
        item = self._node(children[0], given, renamed)
        return EMPTY if high == 0 else item if low == high == 1 else Repeat(item, low, high)

    def _addition(self, tree: Parsed, given: dict[str, Any], renamed: Callable[[str], str]) -> Node:
        """Return what one of llguidance's additions in a rule derives."""
        kind, token = tree.data, tree.children[0]
        if kind == "special":
            return self._special(token)
        if kind == "json":
            position, source = self.terminals.object_at(token)
            self.schemas.append((source, position))
            return Special(f"{VALUE}{len(self.schemas) - 1}")
        if kind == "nested":
            return self._nested(token)
        if kind == "regex" or kind == "negation":
            return self.terminals.operators(tree)
        if kind == "parametric":
            return self._parametric(token, tree.children[1], given, renamed)
        if kind == "conditional":
            condition = tree.children[1]
            try:
                if not holds(condition[3:], given.get(_PARAMETER)):
                    return NEVER
            except ParameterError as error:
                self.fail(f"this is no condition: {error}", condition)
            return self._node(token, given, renamed)
        assert kind == "both"
        token = next(tree.scan_values(lambda v: isinstance(v, Token)))
        raise FaultError("& stands between terminals only: give what is around it a name in capital letters", token)

    def _special(self, token: Token) -> Node:
        if not token.startswith("<["):
            return Special(str(token))
        found = _TOKENS.fullmatch(token)
        if not found:
            if "*" in token or "^" in token:
                self.fail(
                    "all tokens, <[*]>, and all but some, <[^...]>, are not supported: say which may stand", token
                )
            self.fail("tokens by their numbers are written <[1]>, <[1-5]> or <[1,3-5]>", token)
        for part in found[1].split(","):
            low, _, high = part.partition("-")
            if high and int(high) < int(low):
                self.fail(f"there is no token from {low} to {high}: exchange the numbers", token)
        return Special((TOKEN if found[1].isdecimal() else TOKENS) + found[1])

    def _nested(self, token: Token) -> Node:
        """Return the start of a grammar within this one, which ignores what it says itself."""
        position, source = self.terminals.object_at(token)
        if self.depth >= _MOST_NESTED:
            said = f"grammars are nested more than {_MOST_NESTED} deep: write the rules into one"
            raise GrammarError(said, self.text, position).reaching(LIMIT, _MOST_NESTED)
        blank = "".join("\n" if c == "\n" else " " for c in self.text[: position + 1])
        reader = _Reader(blank + source[1:-1], self.meter, self.schemas, self.depth + 1)
        try:
            made = reader.grammar("start")
        except GrammarError as error:
            wrong = GrammarError(error.message, self.text, error.position)
            raise (wrong if error.limit is None else wrong.reaching(error.limit, error.allowed)) from None
        self.has_lazy |= reader.has_lazy
        prefix = f"{position}\0"
        spaces = None if made.ignored is None else Repeat(Terminal("what is ignored", made.ignored), 0, None)
        for name, body in made.rules.items():
            self.inner[prefix + name] = spaced(body, spaces, prefix)
            self.inner_where[prefix + name] = (made.where or {}).get(name, position)
        self.inner[prefix] = (
            Rule(prefix + made.start) if spaces is None else Sequence((spaces, Rule(prefix + made.start)))
        )
        self.inner_where[prefix] = position
        return Rule(prefix)

    def _parametric(
        self, token: Token, parameter: Token, given: dict[str, Any], renamed: Callable[[str], str]
    ) -> Node:  # fmt: skip
        """Return the rule of a name with what its parameter is here."""
        name = renamed(str(token))
        d = self.module.definitions.get(name)
        if d is None or d.parameter is None:
            self.fail(f"there is no rule {name} with a parameter: define {name}::_", token)
        try:
            value = value_of(parameter[2:], given.get(_PARAMETER))
        except ParameterError as error:
            self.fail(f"this is no parameter: {error}", parameter)
        use = f"{name}{_PARAMETER}{value}"
        if use not in self.rules:
            if len(self.rules) > _MOST_TEMPLATES:
                self.fail(f"there are more than {_MOST_TEMPLATES:,} rules with different parameters", token)
            self.rules[use] = EMPTY  # until its turn comes
            self.where[use] = self.where.get(name, 0)
            self.templates.append((use, d, {_PARAMETER: value}))
        return Rule(use)

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
        name = renamed(name)
        d = self.module.definitions.get(name)
        if d is None:
            self.fail(f"there is no {'terminal' if name.isupper() else 'rule'} {name}: define or import it", token)
        if d.is_terminal:
            return self.terminals.named(name, d)
        if d.parameter is not None:
            self.fail(f"the rule {name} needs a parameter: write {name}::0", token)
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


def _spelt(node: Parsed) -> str:
    """Return a name for an argument of a template."""
    if isinstance(node, str):
        return node
    if isinstance(node, (Rule, Terminal, Special)):
        return node.name
    if isinstance(node, Text):
        return repr(node.data)
    return "|".join([_spelt(item) for item in node.items])


def spaced(node: Node, spaces: Node | None, prefix: str = "") -> Node:
    """Return a node with what may stand behind each terminal, and with other names of rules.

    A rule of a grammar within is one terminal to the grammar around it.
    """
    if isinstance(node, (Sequence, Choice)):
        return type(node)(tuple([spaced(item, spaces, prefix) for item in node.items]))
    if isinstance(node, Repeat):
        return Repeat(spaced(node.item, spaces, prefix), node.low, node.high)
    if isinstance(node, Rule):
        within = "\0" in node.name
        node = Rule(prefix + node.name)
        return node if not within or spaces is None else Sequence((node, spaces))
    return node if spaces is None else Sequence((node, spaces))


def _has_values(nodes: Iterable[Node]) -> bool:
    """Whether a JSON value stands somewhere."""
    return any(isinstance(each, Special) and each.name.startswith(VALUE) for each in _parts(nodes))


def _has_dead_ends(nodes: Iterable[Node]) -> bool:
    """Whether a part that derives nothing stands somewhere."""
    return any(each is NEVER or (isinstance(each, Terminal) and each.dfa.is_empty) for each in _parts(nodes))


def _parts(nodes: Iterable[Node]) -> Iterable[Node]:
    todo = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        todo.extend(items(node))
