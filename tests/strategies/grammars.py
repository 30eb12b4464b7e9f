"""Random nodes of grammars over the letters a and b."""

from __future__ import annotations

import random
from functools import cache

from maskwright.compile.grammar.form import Choice, Node, Repeat, Rule, Sequence, Terminal, Text
from maskwright.compile.regex.lower import to_dfa

TERMINALS = ("a+", "[ab]*", "a*b", "[ab]", "(ab)?", "b|aa", "a{2}")


@cache
def terminal(pattern: str) -> Terminal:
    return Terminal("t", to_dfa(pattern))


def a_node(rng: random.Random, deep: int, names: list[str]) -> Node:
    kind = rng.random()
    if deep == 0 or kind < 0.3:
        leaves: list[Node] = [Text(b"a"), Text(b"b"), Text(b"ab"), Text(b""), terminal(rng.choice(TERMINALS))]
        return rng.choice([*leaves, Rule(rng.choice(names)), Rule(rng.choice(names))])
    if kind < 0.6:
        return Sequence(tuple(a_node(rng, deep - 1, names) for _ in range(rng.randint(0, 3))))
    if kind < 0.85:
        return Choice(tuple(a_node(rng, deep - 1, names) for _ in range(rng.randint(1, 3))))
    low = rng.randint(0, 2)
    return Repeat(a_node(rng, deep - 1, names), low, rng.choice([None, low, low + 1, low + 2]))
