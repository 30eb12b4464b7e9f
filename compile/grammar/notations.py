"""The notations that a grammar may be written in, and the reader of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from .form import Grammar

Syntax = Literal["lark", "gbnf", "ebnf"]
STARTS: dict[str, str] = {"lark": "start", "gbnf": "root", "ebnf": "root"}


def reader_of(syntax: Syntax) -> Callable[..., Grammar]:
    """Return what reads a notation; lark is only imported for its own."""
    if syntax == "lark":
        from .lark import read_lark

        return read_lark
    from .ebnf import read_ebnf
    from .gbnf import read_gbnf

    return read_gbnf if syntax == "gbnf" else read_ebnf
