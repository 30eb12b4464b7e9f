"""Compile context-free grammars: Lark's notation with llguidance's additions, GBNF and EBNF."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from ..automata.budget import Budget, Meter
from ..depth import enough_stack
from ..errors import ConstraintError, GrammarError, SchemaError
from ..lazy.lazy_table import Compiled, LazyTable
from ..vocabulary.vocabulary import Vocabulary
from .arguments import begin_budget, check_vocabulary, checked_depth, source_of
from .grammar.build import compile_form
from .grammar.form import Grammar, Rule
from .grammar.notations import STARTS, Syntax, reader_of
from .grammar.special_tokens import spelt
from .tags.control_tokens import control_names
from .tags.spelled_names import spelled_name

if TYPE_CHECKING:
    from .json_schema.layout import Whitespace


def compile_grammar(
    grammar: str,
    vocabulary: Vocabulary,
    *,
    start: str | None = None,
    syntax: Syntax = "lark",
    depth: int = 64,
    budget: Budget | None = None,
) -> Compiled:
    """Compile a context-free grammar into a table of exactly the texts that it derives.

    There is no lexer: a text is allowed if any derivation spells it, with whatever `%ignore` names between terminals.
    These are the texts that Lark's Earley parser takes with `lexer="dynamic_complete"`.

    Args:
        grammar: In Lark's notation with llguidance's additions, GBNF (llama.cpp), or EBNF (W3C, as XGrammar writes it).
        vocabulary: The tokens that texts are written with.
        start: The rule to begin with; None for "start" in Lark's notation, "root" in the others.
        syntax: The notation: "lark", "gbnf" or "ebnf".
        depth: How many brackets may be open at once where the table is in arrays; no text is begun that cannot be ended
            within it.
        budget: Limits of this compilation and of what is read later: all states that are ever made, and seconds for any
            one token or mask.

    Returns:
        A `LazyTable`: a `Matcher` reads the grammar as it is, to any depth. Arrays are made on request: of a regular
        grammar an automaton; of one where brackets, or words around it, say where a rule within itself begins and ends,
        a table with calls. Of others there is no finite table, and `to_table` raises NoTableError.

    Raises:
        GrammarError: The grammar is malformed, has a rule that derives no text, or uses what cannot be exact.
        SchemaError: A schema in it is at fault.
        ConstraintError: The vocabulary lacks bytes that the grammar needs.
        BudgetError: A limit was reached.
        TypeError: An argument is of another type.
        ValueError: An argument has a value that it cannot have.

    Examples:
        >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"(("], eos=0)
        >>> table = compile_grammar('start: "(" start ")" | /[0-9]+/', vocab)
        >>> table.accepts([257, *(1 + b for b in b"42))"), 0])
        True
    """
    check_vocabulary(vocabulary)
    if not isinstance(grammar, str):
        raise TypeError(f"grammar must be a str, not {type(grammar).__name__}")
    if syntax not in get_args(Syntax):
        raise ValueError(f"syntax must be one of {', '.join(map(repr, get_args(Syntax)))}, not {syntax!r}")
    if start is not None and not isinstance(start, str):
        raise TypeError(f"start must be the name of a rule, not {type(start).__name__}")
    depth = checked_depth(depth)
    with begin_budget(budget) as meter, enough_stack(partial(GrammarError, grammar=grammar, position=0)):
        start, source = request(grammar, vocabulary, start=start, syntax=syntax, depth=depth)
        form = reader_of(syntax)(grammar, start=start, meter=meter)
        _check_names(form, vocabulary)
        make = _with_values if form.schemas else compile_form
        made = make(form, vocabulary, source=source, depth=depth, meter=meter)
    return (
        made.made_by(_again, grammar, vocabulary, start, syntax, depth, budget) if isinstance(made, LazyTable) else made
    )


def _again(
    grammar: str, vocabulary: Vocabulary, start: str, syntax: Syntax, depth: int, budget: Budget | None
) -> Compiled:
    return compile_grammar(grammar, vocabulary, start=start, syntax=syntax, depth=depth, budget=budget)


def request(grammar: str, vocabulary: Vocabulary, *, start: str | None, syntax: Syntax, depth: int) -> tuple[str, str]:
    """Return the rule that a grammar begins with, and a hash of all that its table follows from."""
    start = STARTS[syntax] if start is None else start
    return start, source_of("grammar", syntax, start, str(depth), vocabulary.names, grammar)


def _check_names(form: Grammar, vocabulary: Vocabulary) -> None:
    """Raise GrammarError for a rule that spells the name of a control token, which a model writes as that token."""
    names = control_names(vocabulary)
    for rule, body in form.rules.items() if names else ():
        name = spelled_name(body, names)
        if name is not None:
            bare = f"write {name} without quotes if the token is meant, and " if _BARE.fullmatch(name) else "write "
            raise form.error(
                f"quotes and patterns mean characters, and {name!r} is the name of a control token: {bare}one of its "
                "characters as a class, such as /[<]/, if these are",
                rule,
            )


_BARE = re.compile(r"<[^<>\s]+>")


def _with_values(form: Grammar, vocabulary: Vocabulary, *, source: str, depth: int, meter: Meter) -> Compiled:
    """Return the table of a grammar with JSON values in it."""
    from .json_schema.request import request as json_request  # as for schemas: not for grammars without any
    from .json_schema.source import read
    from .tags.values import compile_values

    schemas, layouts = [], set()
    for text, position in form.schemas:
        where = f"%json of line {form.source.count(chr(10), 0, position) + 1}"
        contents = read(text, where)
        schemas.append((contents, where, False, None))
        layouts.add(_whitespace(contents, where))
    if len(layouts) > 1:
        raise SchemaError("white space is said for all JSON of a grammar: give each %json the same", where)
    asked = json_request(True, whitespace=layouts.pop(), depth=depth)._replace(source=source)
    form, marked = spelt(form, vocabulary)
    try:
        return compile_values(form, schemas, marked, asked, meter)
    except ConstraintError as error:
        if type(error) is not ConstraintError:
            raise
    # two values begin alike, as they may in rules: a machine of values has them in its first rule alone
    start = f"{form.start}\0"
    form = replace(form, rules={**form.rules, start: Rule(form.start)}, start=start)
    return compile_values(form, schemas, marked, asked, meter)


def _whitespace(contents: Any, where: str) -> Whitespace | tuple[str, str]:
    """Return the white space that "x-guidance" of a schema asks for. Raises SchemaError for what it cannot have."""
    guidance = contents.get("x-guidance", {}) if isinstance(contents, dict) else {}
    where = f"{where}/x-guidance"
    if not isinstance(guidance, dict):
        raise SchemaError("the options of %json are an object", where)
    for name in guidance:
        if name not in _OPTIONS:
            raise SchemaError(f"{name!r} is not supported: leave it out, or give strings a pattern", where)
    if guidance.get("whitespace_flexible", True):
        return "flexible"
    separators = guidance.get("item_separator", ","), guidance.get("key_separator", ":")
    if not all(isinstance(each, str) for each in separators) or [each.strip() for each in separators] != [",", ":"]:
        raise SchemaError("a separator is a comma or a colon with white space around", where)
    return separators


_OPTIONS = frozenset((  # "lenient" and "coerce_one_of" allow what is not enforced, and all is; every escape is allowed
    "coerce_one_of", "item_separator", "json_allow_general_unicode_escapes", "key_separator", "lenient",
    "whitespace_flexible",
))  # fmt: skip
