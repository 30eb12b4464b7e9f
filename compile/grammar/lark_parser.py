"""Parse a grammar in lark's notation, by the tables of lark's own parser."""

from __future__ import annotations

import re
from copy import copy
from functools import lru_cache, partial
from typing import Any, TypeAlias

from lark import Token
from lark.load_grammar import _get_parser
from lark.parsers.lalr_analysis import Shift

from ...automata.budget import Meter

Parsed: TypeAlias = Any
"""A token of a grammar, or a tree whose children are trees and tokens."""


_IN_ONE_WAY = {
    r"/(?!/)(\\/|\\\\|[^/])*?/": r"/(?!/)(?:[^/\\]++|\\[/\\]?)*+/",
    r'"(\\"|\\\\|[^"\n])*?"': r'"(?:[^"\\\n]++|\\["\\]?)*+"',
    r"(\r?\n)+\s*": r"\r?\n\s*+",
}
"""Parts of lark's pattern for a token that fail in exponential or quadratic time, and the same in linear time."""


@lru_cache(maxsize=1)
def lark_parser() -> Any:
    """Return lark's parser for its own notation, with a pattern for a token that reads each text in one way.

    With that of lark, 80 backslashes in a pattern without an end take years.
    """
    parser = copy(_get_parser())  # type: ignore[no-untyped-call]
    try:
        lexer = parser.lexer = copy(parser.lexer)
        scanner = lexer._scanner = copy(lexer.scanner)
        patterns = scanner._mres
        for slow, quick in _IN_ONE_WAY.items():
            patterns = [re.compile(each.pattern.replace(slow, quick), each.flags) for each in patterns]
        scanner._mres = patterns
    except AttributeError:
        return _get_parser()  # type: ignore[no-untyped-call]
    return parser


@lru_cache(maxsize=1)
def parser_tables() -> Any:
    """Return lark's lexer and LALR tables for its own notation, ready for `parsed`; None if they are not as expected.

    Its pattern for a token; the kinds left out; by state, what each symbol does: the next state, or what to reduce, as
    (number of symbols, name, callback); the first state and the last.
    """
    parser = lark_parser()
    try:
        lexer, inner = parser.lexer, parser.parser.parser
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
    return lark_parser().parse(text, "start")


def _reduce(move: Any, states: list[int], values: list[Any], rows: list[dict[str, Any]]) -> None:
    size, name, callback = move
    children: list[Any] = []
    if size:
        children = values[-size:]
        del states[-size:], values[-size:]
    values.append(callback(children))
    states.append(rows[states[-1]][name])
