"""Read a grammar in GBNF, the notation of llama.cpp: see `ebnf`, which reads both."""

from __future__ import annotations

from ...automata.budget import Meter
from .ebnf import Reader
from .form import Grammar


def read_gbnf(text: str, start: str = "root", meter: Meter | None = None) -> Grammar:
    """Return the grammar that a text in GBNF says; `<name>` is the special token that is spelt like that.

    Raises GrammarError with line, column and caret for what is malformed, not defined or not supported: tokens by their
    numbers, `<[1000]>`, and any token but one, `!<name>`, among it.

    >>> sorted(read_gbnf('root ::= "(" root ")" | [a-z]+').rules)
    ['root']
    """
    return Reader(text, False, meter).grammar(start)
