"""EBNF with the language of a grammar in Lark's notation."""

from __future__ import annotations

import collections
import itertools
import re
from typing import Any

from maskwright.automata import ops
from maskwright.automata.dfa import Dfa
from maskwright.compile.grammar import form
from maskwright.compile.grammar.lark import read_lark


def to_ebnf(lark: str) -> str:
    """Return a grammar in Lark's notation as EBNF with the same language; terminals become expressions over classes."""
    grammar = read_lark(lark)
    names = {rule: f"r{i}_{re.sub('[^A-Za-z0-9_]', '_', rule)}" for i, rule in enumerate(grammar.rules)}
    written: dict[bytes, list[str]] = {}

    def terminal(dfa: Dfa) -> str:
        key = dfa.class_of.tobytes() + dfa.transition.tobytes() + dfa.accepting.tobytes()
        if key not in written:
            written[key] = automaton_rules(f"t{len(written)}", dfa)
        return written[key][0].split(" ", 1)[0]

    # any number of ignored words as one expression without a choice of how to cut them
    between = "" if grammar.ignored is None else f" {terminal(ops.star(grammar.ignored))}"

    def write(node: form.Node) -> str:
        if isinstance(node, form.Text):
            return f'"{_quoted(node.data.decode())}"{between}' if node.data else '""'
        if isinstance(node, form.Terminal):
            return terminal(node.dfa) + between
        if isinstance(node, form.Rule):
            return names[node.name]
        if isinstance(node, form.Sequence):
            return " ".join(map(write, node.items)) or '""'
        if isinstance(node, form.Choice):
            return f"({' | '.join(map(write, node.items))})"
        if isinstance(node, form.Repeat):
            times = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
            high = "" if node.high is None else node.high
            return f"({write(node.item)}){times or f'{{{node.low},{high}}}'}"
        raise TypeError(f"a {type(node).__name__} cannot be written as EBNF")

    rules = [f"{names[rule]} ::= {write(node)}" for rule, node in grammar.rules.items()]
    return "\n".join([f"root ::={between} {names[grammar.start]}", *rules, *itertools.chain(*written.values())]) + "\n"


def automaton_rules(name: str, dfa: Dfa) -> list[str]:
    """Return EBNF rules for the words of a DFA, the first of them called `name`.

    One rule for each state that several lead to, a loop in it as a repeated class: the form that xgrammar is best at.
    Masks inside a string of JSON take it 13 microseconds so, and 76,000 where the string is one repeated group.
    """
    ways = [_characters(dfa, state) for state in range(dfa.num_states)]
    into = collections.Counter(target for state, row in enumerate(ways) for target in row if target != state)
    named = {0: name} | {state: f"{name}_{state}" for state in range(1, dfa.num_states) if into[state] > 1}

    def write(state: int) -> str:
        loop = f"{_class(ways[state][state], True)}*" if state in ways[state] else ""
        others = [f"{_class(points)} {reach(t)}".rstrip() for t, points in sorted(ways[state].items()) if t != state]
        if dfa.accepting[state]:
            others.append('""')
        rest = others[0] if len(others) == 1 else f"({' | '.join(others)})"
        return f"{loop} {rest if rest != empty else ''}".strip() or empty

    def reach(state: int) -> str:
        text = named[state] if state in named else write(state)
        return "" if text == empty else text

    empty = '""'
    return [f"{named[state]} ::= {write(state)}" for state in named]


def _characters(dfa: Dfa, state: int) -> dict[int, list[tuple[int, int]]]:
    """Return for each state that one character leads to from a state the ranges of these characters."""
    rows: Any = dfa.transition[:, dfa.class_of].tolist()
    memo: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def behind(at: int, more: int) -> list[tuple[int, int, int]]:
        """Return what so many more bytes of a character lead to: (first, last, state), characters from 0."""
        if (at, more) not in memo:
            found = [(0, 0, at)] if not more else []
            for byte in range(64) if more else ():
                if (target := rows[at][0x80 + byte]) >= 0:
                    low = byte << 6 * (more - 1)
                    found += [(low + a, low + b, end) for a, b, end in behind(target, more - 1)]
            memo[at, more] = _joined(found)
        return memo[at, more]

    found = [(byte, byte, target) for byte in range(0x80) if (target := rows[state][byte]) >= 0]
    for first, last, bits, more in ((0xC2, 0xDF, 0x1F, 1), (0xE0, 0xEF, 0x0F, 2), (0xF0, 0xF4, 0x07, 3)):
        for byte in range(first, last + 1):
            if (target := rows[state][byte]) >= 0:
                low = (byte & bits) << 6 * more
                found += [(low + a, low + b, end) for a, b, end in behind(target, more)]
    out: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
    for a, b, end in _joined(found):
        out[end].append((a, b))
    return out


def _joined(found: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return ranges in order with neighbours that lead to one state as one; no text has what UTF-8 leaves out."""
    out: list[tuple[int, int, int]] = []
    for a, b, end in found:
        if out and out[-1][2] == end and (out[-1][1] + 1 == a or (out[-1][1], a) == (0xD7FF, 0xE000)):
            out[-1] = out[-1][0], b, end
        else:
            out.append((a, b, end))
    return out


def _class(ranges: list[tuple[int, int]], repeated: bool = False) -> str:
    if not repeated and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f'"{_point(ranges[0][0])}"'
    return "[" + "".join(_point(a) if a == b else f"{_point(a)}-{_point(b)}" for a, b in ranges) + "]"


def _point(point: int) -> str:
    if point < 0x10000:
        return chr(point) if chr(point).isascii() and chr(point).isalnum() else f"\\u{point:04x}"
    return f"\\U{point:08x}"


def _quoted(text: str) -> str:
    return "".join(c if " " <= c <= "~" and c not in '"\\' else _point(ord(c)) for c in text)
