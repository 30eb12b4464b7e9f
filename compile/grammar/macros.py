"""The macros of XGrammar's EBNF: free text in which tags begin rules, patterns, and tokens by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...automata import ops
from ...automata.budget import Meter
from ...automata.utf8 import text
from ..regex.lower import engine_flags, to_dfa
from .form import Choice, Node, Repeat, Rule, Special, Terminal, Text
from .form import Sequence as Row
from .languages import before, shortest_of
from .regular import dfa_of
from .special_tokens import TOKENS

Value = str | int | bool | Rule | tuple["Value", ...]

REFUSED = {
    "AnyTokens": "say which texts may stand here",
    "ExcludeToken": "say which texts may stand here",
    "TokenSet": "write Token(1, 2)",
    "TokenTagDispatch": "write TagDispatch with the texts of the tags, or compile a structural tag with tokens",
}
NAMES = frozenset(("Regex", "TagDispatch", "Token", *REFUSED))


class Call(NamedTuple):
    """A macro with its arguments."""

    name: str
    given: Sequence[Value]
    options: Mapping[str, Value]


class MacroError(ValueError):
    """What is wrong with the arguments of a macro."""


def expanded(call: Call, meter: Meter) -> Node:
    """Return what a macro derives. Raises MacroError, and RegexError for a pattern."""
    if call.name in REFUSED:
        raise MacroError(f"the macro {call.name} is not supported: {REFUSED[call.name]}")
    if call.name == "Regex":
        return _pattern(call, meter)
    return _tokens(call) if call.name == "Token" else _dispatch(call, meter)


def _pattern(call: Call, meter: Meter) -> Node:
    _check_options(call, {"json_string": bool})
    if len(call.given) != 1 or not isinstance(call.given[0], str):
        raise MacroError('Regex takes one pattern in quotes, as Regex("[a-z]+")')
    if call.options.get("json_string"):
        raise MacroError("json_string=true is not supported: write a pattern of characters that need no escape")
    pattern = call.given[0]
    return Terminal(pattern, to_dfa(pattern, flags=engine_flags(pattern), meter=meter), pattern)


def _tokens(call: Call) -> Node:
    _check_options(call, {})
    if not call.given or not all(isinstance(token, int) and not isinstance(token, bool) for token in call.given):
        raise MacroError("Token takes the numbers of tokens, as Token(1, 2)")
    return Special(TOKENS + ",".join(map(str, call.given)))


def _dispatch(call: Call, meter: Meter) -> Node:
    _check_options(call, {"loop_after_dispatch": bool, "excludes": tuple})
    tags: dict[str, Rule] = {}
    for pair in call.given:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise MacroError('TagDispatch takes pairs of a tag and a rule, as ("<a>", rule)')
        tag, rule = pair
        if not isinstance(tag, str) or not tag or not isinstance(rule, Rule):
            raise MacroError('TagDispatch takes pairs of a tag and a rule, as ("<a>", rule)')
        if tag in tags:
            raise MacroError(f"the tag {tag!r} is given twice: join its rules with |")
        tags[tag] = rule
    excludes = call.options.get("excludes", ())
    assert isinstance(excludes, tuple)
    for excluded in excludes:
        if not isinstance(excluded, str) or not excluded:
            raise MacroError('excludes takes texts, as excludes=("<a>",)')
        if any(tag.startswith(excluded) for tag in tags):
            raise MacroError(f"the excluded text {excluded!r} begins a tag, which could never come")
    texts = [*tags, *(str(each) for each in excludes)]
    free, ways = text(), []
    if texts:
        ending = {each: ops.concat(text(), dfa_of(Text(each.encode()), meter), meter) for each in texts}
        first = shortest_of(ops.unions(list(ending.values()), meter), meter)
        free = ops.difference(free, ops.concat(first, text(), meter), meter)
        for tag, rule in tags.items():
            own = ops.intersection(first, ending[tag], meter)
            for other in texts:  # of two that are complete at once the longer counts, and what is excluded anyway
                if other not in tags or len(other) > len(tag):
                    own = ops.difference(own, ending[other], meter)
            if not own.is_empty:
                opener = Text(tag.encode())
                ways.append(Row((Terminal("free text", before(own, dfa_of(opener, meter), meter)), opener, rule)))
    rest = Terminal("free text", free)
    if not ways:
        return rest
    if call.options.get("loop_after_dispatch", True):
        return Row((Repeat(Choice(tuple(ways)), 0, None), rest))
    return Choice((*ways, rest))


def _check_options(call: Call, kinds: Mapping[str, type]) -> None:
    for name, value in call.options.items():
        if name not in kinds:
            known = f"it is one of {', '.join(kinds)}" if kinds else "leave it out"
            raise MacroError(f"{call.name} has no option {name}: {known}")
        if not isinstance(value, kinds[name]):
            shown = "true or false" if kinds[name] is bool else "a tuple, as (1, 2)"
            raise MacroError(f"the option {name} is {shown}")
