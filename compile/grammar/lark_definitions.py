"""The rules and terminals that a grammar in lark's notation defines or imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from lark import Token, Tree
from lark.lexer import Pattern
from lark.load_grammar import stdlib_loader

from ...automata.budget import Budget
from ...automata.dfa import Dfa
from .lark_parser import Parsed, parsed

Literals = tuple[tuple[str, bool], ...] | None
"""The texts that a terminal is one of, and whether in any case, where it is made of strings only."""


class FaultError(Exception):
    """What is wrong, and the token where it is."""

    def __init__(self, message: str, token: Token | None) -> None:
        super().__init__(message)
        self.message = message
        self.token = token


class Definition:
    """A rule or a terminal: its tree, None if it is only declared, what extends it, and where its names are found.

    home: the definitions that the names in a terminal's tree refer to. renamed: what the names in an imported rule's
    tree are called in the grammar that imports it.
    """

    __slots__ = (
        "attributes", "home", "is_language", "is_terminal", "language", "made", "more", "name", "parameter", "params",
        "renamed", "tree",
    )  # fmt: skip

    def __init__(
        self,
        name: Token,
        is_terminal: bool,
        tree: Parsed,
        home: dict[str, Definition],
        params: tuple[str, ...] = (),
        renamed: Callable[[str], str] = str,
    ) -> None:
        self.name, self.is_terminal, self.tree, self.params = name, is_terminal, tree, params
        self.home, self.renamed = home, renamed
        self.more: tuple[tuple[Any, dict[str, Definition]], ...] = ()
        self.made: tuple[Pattern, Literals] | None = None  # a terminal's pattern, once it is known
        self.is_language: bool | None = None  # whether a terminal has operators that no pattern has, once it is known
        self.language: Dfa | None = None  # what it derives then, or where a rule's attributes ask for it
        self.attributes: tuple[Parsed, ...] = ()  # of a rule
        self.parameter: Token | None = None  # where a rule says that it has one

    def again(self, home: dict[str, Definition], renamed: Callable[[str], str] | None = None) -> Definition:
        """Return a copy that can be changed."""
        copied = Definition(self.name, self.is_terminal, self.tree, home, self.params, renamed or self.renamed)
        copied.more = self.more
        copied.attributes, copied.parameter = self.attributes, self.parameter
        return copied


class Module:
    """The definitions of one text, what it imports among them."""

    def __init__(self, tree: Parsed) -> None:
        self.definitions: dict[str, Definition] = {}
        self.ignored: list[Any] = []
        self.options: list[Token] = []  # the objects behind %llguidance
        self.imported: dict[str, Token] = {}  # where each imported name was asked for
        imports: dict[tuple[str, ...], tuple[Token, dict[str, str]]] = {}
        for statement in tree.children:
            if statement.data == "import":
                path, names, first = imported_names(statement)
                imports.setdefault(path, (first, {}))[1].update(names)
        for path, (first, names) in imports.items():
            self._take(path, names, first)
        for statement in tree.children:
            kind = statement.data
            if kind == "ignore":
                self.ignored.append(statement.children[0])
            elif kind == "options":
                self.options.append(statement.children[0])
            elif kind == "declare":
                for symbol in statement.children:
                    if symbol.data != "terminal":
                        raise FaultError(
                            "a rule cannot be declared without saying what it is: define it", symbol.children[0]
                        )
                    self._define(Definition(symbol.children[0], True, None, self.definitions))
            elif kind in ("rule", "term"):
                self._define(self._definition(statement))
            elif kind == "override":
                made = self._definition(statement.children[0])
                if made.name not in self.definitions:
                    raise FaultError(f"there is no {made.name} to override: define it without %override", made.name)
                self.definitions[str(made.name)] = made
            elif kind == "extend":
                self._extend(self._definition(statement.children[0]))

    def _definition(self, statement: Parsed) -> Definition:
        parts = statement.children
        if statement.data == "term":
            return Definition(parts[0], True, parts[-1], self.definitions)
        _, name, parameter, params, _, attributes, tree = parts
        listed = tuple(str(p) for p in params.children) if params is not None else ()
        if len(set(listed)) < len(listed):
            raise FaultError(f"the template {name} has two parameters of one name: rename one", name)
        made = Definition(name, False, tree, self.definitions, listed)
        made.attributes = tuple(attributes.children)
        if parameter.children:
            made.parameter = parameter.children[0]
            if made.parameter[2:].strip() != "_":
                raise FaultError(f"the parameter of a rule has no name: write {name}::_", made.parameter)
            if listed or made.attributes:
                what = "a template" if listed else "attributes"
                raise FaultError(f"a rule with a parameter cannot have {what} too: write a rule around it", name)
        return made

    def _define(self, made: Definition) -> None:
        if made.name in self.definitions:
            raise FaultError(
                f"{made.name} is defined more than once: rename one, or write %override or %extend", made.name
            )
        self.definitions[str(made.name)] = made

    def _extend(self, made: Definition) -> None:
        name = str(made.name)
        old = self.definitions.get(name)
        if old is None or old.is_terminal != made.is_terminal or old.tree is None:
            raise FaultError(f"there is no {name} to extend: define it without %extend", made.name)
        if old.params != made.params:
            raise FaultError(f"{name} is extended with other parameters than it has: give it {old.params}", made.name)
        if old.is_terminal and old.home is not self.definitions:
            # terminals of the library are shared, and those made of this one are extended with it
            theirs: dict[str, Definition] = {}
            theirs.update({key: d.again(theirs) for key, d in old.home.items()})
            for key, d in self.definitions.items():
                if d.home is old.home and d.is_terminal:
                    self.definitions[key] = theirs[str(d.name)]
            old = self.definitions[name]
        old.more = ((made.tree, self.definitions), *old.more)

    def _take(self, path: tuple[str, ...], names: dict[str, str], first: Token) -> None:
        """Import names, and the rules that they need, under the names that lark gives them."""
        theirs = _library(path)
        if theirs is None:
            raise FaultError(
                f"there is no grammar {'.'.join(path)} in lark's library: copy what it defines into this one", first
            )
        prefix = "__".join(path)

        def renamed(name: str) -> str:
            if name in names:
                return names[name]
            return f"_{prefix}__{name[1:]}" if name.startswith("_") else f"{prefix}__{name}"

        todo = list(names)
        taken = set()
        while todo:
            name = todo.pop()
            if name in taken:
                continue
            taken.add(name)
            d = theirs.get(name)
            if d is None:
                raise FaultError(f"{'.'.join(path)} has no {name}", first)
            if renamed(name) in self.definitions:
                raise FaultError(f"{renamed(name)} is imported more than once: rename one with ->", first)
            self.definitions[renamed(name)] = d if d.is_terminal else d.again(self.definitions, renamed)
            self.imported[renamed(name)] = first
            if not d.is_terminal:
                todo += [str(s.children[0]) for s in symbols_of(d.tree) if s.children[0] not in d.params]


def imported_names(statement: Parsed) -> tuple[tuple[str, ...], dict[str, str], Token]:
    """Return (path, new name by name, first token) of an import."""
    where, *more = statement.children
    parts = where.children
    if where.data == "import_rel":
        raise FaultError(
            "an import relative to this grammar's file is not supported, because a grammar given as text is in no "
            "file: copy what it defines into this one",
            parts[0],
        )
    if more and isinstance(more[0], Tree):
        return tuple(map(str, parts)), {str(name): str(name) for name in more[0].children}, parts[0]
    if len(parts) < 2:
        raise FaultError(f"nothing is imported from {parts[0]}: write {parts[0]}.NAME", parts[0])
    return tuple(map(str, parts[:-1])), {str(parts[-1]): str(more[0] if more else parts[-1])}, parts[0]


def symbols_of(tree: Parsed) -> Iterator[Parsed]:
    """Yield the symbols of a definition; what an alias calls a part of it is none."""
    todo = [tree]
    while todo:
        each = todo.pop()
        if isinstance(each, Tree):
            if each.data in ("terminal", "nonterminal"):
                yield each
            todo += each.children[:1] if each.data == "alias" else each.children


@lru_cache(maxsize=64)
def _library(path: tuple[str, ...]) -> dict[str, Definition] | None:
    """Return the definitions of a grammar in lark's library, or None if there is none of that name."""
    try:
        _, text = stdlib_loader(None, "/".join(path) + ".lark")
    except OSError:
        return None
    return Module(parsed(text + "\n", Budget().begin())).definitions
