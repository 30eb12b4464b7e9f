"""The notations that a grammar may be written in, and the reader of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from .form import Grammar

Syntax = Literal["lark", "gbnf", "ebnf"]
STARTS: dict[str, str] = {"lark": "start", "gbnf": "root", "ebnf": "root"}

_EBNF_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_.-]+[ \t]*::=", re.MULTILINE)


def syntax_of(grammar: str) -> Syntax:
    """Return the notation of a grammar: EBNF if one of its lines begins with a name and "::=", else Lark's.

    >>> syntax_of("root ::= [a-z]+"), syntax_of('start: NAME "::=" NAME')
    ('ebnf', 'lark')
    """
    return "ebnf" if _EBNF_RULE.search(grammar) else "lark"


def reader_of(syntax: Syntax) -> Callable[..., Grammar]:
    """Return what reads a notation; lark is only imported for its own."""
    if syntax == "lark":
        from .lark import read_lark

        return read_lark
    from .ebnf import read_ebnf, read_gbnf

    return read_gbnf if syntax == "gbnf" else read_ebnf
