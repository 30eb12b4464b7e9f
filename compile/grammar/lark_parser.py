"""Parse a grammar in lark's notation and llguidance's additions to it, by tables that lark makes of both.

lark's own terminals and rules for its notation are the start. The additions change the meaning of no grammar that lark
reads: each begins with a sign that lark has no use for there.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Any, TypeAlias

from lark import Token
from lark.common import LexerConf, ParserConf
from lark.grammar import NonTerminal, Rule, RuleOptions
from lark.lexer import PatternRE, TerminalDef
from lark.load_grammar import RULES, TERMINALS, symbol_from_strcase
from lark.parse_tree_builder import ParseTreeBuilder
from lark.parser_frontends import ParsingFrontend
from lark.parsers.lalr_analysis import Shift
from lark.tree import SlottedTree

from ...automata.budget import Meter

Parsed: TypeAlias = Any
"""A token of a grammar, or a tree whose children are trees and tokens."""


# texts, comments and patterns. One without an end goes as far as it can, or a search would begin again in its middle
QUOTED = r'"(?:\\.|[^"\\\n])*+"?|//[^\n]*|#[^\n]*|/(?!/)(?:[^/\\]++|\\[/\\]?)*+/?'
CUT = "\0"
"""Stands in a text for each character of an object, of JSON or of rules, behind %json and the like."""


def _nested(depth: int) -> str:
    """Return a pattern of what stands in parentheses, with so many more in it."""
    return r"\([^()\n|]*\)" if not depth else rf"\((?:[^()\n|]|{_nested(depth - 1)})*\)"


_TERMINALS = {
    "RULE": r"_?[a-z][_a-z0-9]*(?:-[_a-z0-9]+)*",
    "TERMINAL": r"_?[A-Z][_A-Z0-9]*(?:-[_A-Z0-9]+)*",
    "TILDE": r"~(?=[ \t]*[+-]?\d)",
    "_NOT": r"~(?![ \t]*[+-]?\d)",
    "_AND": "&",
    "_EQUAL": "=",
    "COUNT": r"\{[ \t]*(?:\d+[ \t]*(?:,[ \t]*\d*[ \t]*)?|,[ \t]*\d+[ \t]*)\}",
    "DECIMAL": r"[+-]?\d+\.\d+(?:[eE][+-]?\d+)?",
    "SPECIAL": r"<[^<>\s]+>",
    "PARAMETER": rf"::[ \t]*(?:_(?![a-z0-9])|0[xX][0-9a-fA-F]+|\d+|[a-z_]+[ \t]*{_nested(0)})",
    "CONDITION": rf"%if[ \t]+[a-z_]+(?:[ \t]*{_nested(8)})?",
    "_JSON": "%json",
    "_REGEX": "%regex",
    "_LARK": "%lark",
    "_LLGUIDANCE": "%llguidance",
    "OBJECT": f"{CUT}+",
}
_IN_ONE_WAY = {
    r"/(?!/)(\\/|\\\\|[^/])*?/": r"/(?!/)(?:[^/\\]++|\\[/\\]?)*+/",
    r'"(\\"|\\\\|[^"\n])*?"': r'"(?:[^"\\\n]++|\\["\\]?)*+"',
    r"(\r?\n)+\s*": r"\r?\n\s*+",
}
"""Parts of lark's patterns of terminals that fail in exponential or quadratic time, and the same in linear time.

With those of lark, 80 backslashes in a pattern without an end take years.
"""
_RULES = {
    "_item": [*RULES["_item"], "options"],
    "options": ["_LLGUIDANCE OBJECT _NL"],
    "rule": ["rule_modifiers RULE parameter template_params priority attributes _COLON expansions _NL"],
    "parameter": ["PARAMETER", ""],
    "attributes": ["_LBRA _attributes _RBRA", ""],
    "_attributes": ["attribute", "_attributes _COMMA attribute"],
    "attribute": ["RULE", "RULE _EQUAL value", "RULE _EQUAL NUMBER", "RULE _EQUAL DECIMAL"],
    "_expansions": ["option", "_expansions _OR option", "_expansions _NL_OR option"],
    "?option": ["alias", "conditional"],
    "conditional": ["alias CONDITION"],
    "?alias": ["both _TO nonterminal", "both"],
    "?both": ["expansion", "_both _AND expansion"],
    "_both": ["expansion", "_both _AND expansion"],
    "?expr": [*RULES["?expr"], "atom COUNT"],
    "?atom": [*RULES["?atom"], "negation"],
    "negation": ["_NOT atom"],
    "value": [*RULES["value"], "special", "json", "regex", "nested", "parametric"],
    "special": ["SPECIAL"],
    "json": ["_JSON OBJECT"],
    "regex": ["_REGEX OBJECT"],
    "nested": ["_LARK OBJECT"],
    "parametric": ["RULE PARAMETER"],
}


@lru_cache(maxsize=1)
def parser() -> Any:
    """Return lark's parser for the notation, made as lark makes the one for its own."""
    values = {**TERMINALS, **_TERMINALS}
    for slow, quick in _IN_ONE_WAY.items():
        values = {name: value.replace(slow, quick) for name, value in values.items()}
    terminals = [TerminalDef(name, PatternRE(value)) for name, value in values.items()]
    rules = [
        Rule(
            NonTerminal(name.lstrip("?")),
            [symbol_from_strcase(symbol) for symbol in expansion.split()],  # type: ignore[no-untyped-call]
            i,
            None,
            RuleOptions(expand1=name.startswith("?")),
        )
        for name, expansions in {**RULES, **_RULES}.items()
        for i, expansion in enumerate(expansions)
    ]
    callbacks = ParseTreeBuilder(rules, SlottedTree).create_callback()  # type: ignore[no-untyped-call]
    lexer = LexerConf(terminals, re, ["WS", "COMMENT", "BACKSLASH"])
    lexer.lexer_type = "basic"
    options = ParserConf(rules, callbacks, ["start"])
    options.parser_type = "lalr"
    return ParsingFrontend(lexer, options, None)


@lru_cache(maxsize=1)
def parser_tables() -> Any:
    """Return lark's lexer and LALR tables for the notation, ready for `parsed`; None if they are not as expected.

    Its pattern for a token; the kinds left out; by state, what each symbol does: the next state, or what to reduce, as
    (number of symbols, name, callback); the first state and the last.
    """
    try:
        lexer, inner = parser().lexer, parser().parser.parser
        patterns, table = lexer.scanner._mres, inner.parse_table
        if len(patterns) != 1 or lexer.callback or lexer.user_callbacks:
            return None
        number = {state: i for i, state in enumerate(table.states)}
        rows = []
        for moves in table.states.values():
            row: dict[str, Any] = {}
            for symbol, (action, then) in moves.items():
                if action is Shift:
                    row[symbol] = number[then]
                else:
                    size, name, callback = len(then.expansion), then.origin.name, inner.callbacks[then]
                    if not size and name[0] != "_":  # lark fills those with _ when it puts them into others
                        callback = partial(_as_ever, callback([]))
                    row[symbol] = (size, name, callback)
            rows.append(row)
        ends = number[table.start_states["start"]], number[table.end_states["start"]]
        return patterns[0], frozenset(lexer.ignore_types), rows, ends
    except (AttributeError, KeyError, TypeError):
        return None


def _as_ever(tree: Parsed, children: list[Any]) -> Any:
    """Return the one tree of nothing, so that three in each rule take no time of the garbage collector."""
    return tree


_PARSING = "parsing a grammar"
_ASKED = 1 << 16  # characters after which the meter is asked again


def parsed(text: str, meter: Meter) -> Any:
    """Return what lark's parser returns for a grammar, in two thirds of the time, by the same tables.

    It is lark that says what is wrong where something is. Raises BudgetError.
    """
    tables, began, asked = parser_tables(), meter.seconds, 0
    if tables is not None:
        pattern, left_out, rows, (first, last) = tables
        states, row, end = [first], rows[first], 0
        values: list[Any] = []
        for match in iter(pattern.scanner(text).match, None):
            kind, begin = match.lastgroup, end
            end = match.end()
            if end >= asked:
                meter.check(doing=_PARSING)
                asked = end + _ASKED
            if kind in left_out:
                continue
            while type(move := row.get(kind)) is tuple:
                _reduce(move, states, values, rows)
                row = rows[states[-1]]
            if move is None:
                break
            states.append(move)
            values.append(None if kind[0] == "_" else Token(kind, match.group(), begin))  # punctuation is dropped
            row = rows[move]
        else:
            while end == len(text) and type(move := row.get("$END")) is tuple:
                _reduce(move, states, values, rows)
                row = rows[states[-1]]
                if states[-1] == last:
                    return values[-1]
    meter.check(ahead=4 * (meter.seconds - began), doing=_PARSING)  # lark goes as far again, without a meter
    return parser().parse(text, "start")


def _reduce(move: Any, states: list[int], values: list[Any], rows: list[dict[str, Any]]) -> None:
    size, name, callback = move
    children: list[Any] = []
    if size:
        children = values[-size:]
        del states[-size:], values[-size:]
    values.append(callback(children))
    states.append(rows[states[-1]][name])
