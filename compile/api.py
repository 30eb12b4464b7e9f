"""The functions that compile a constraint, each from one kind of source: the table of contents of this folder."""

from __future__ import annotations

from .grammar.build import compile_grammar
from .schemas.compile_schema import compile_json_schema
from .sequences import compile_sequences, compile_sids, sort_sids
from .tags.build import compile_structural_tag
from .text import compile_choices, compile_regex

__all__ = [
    "compile_choices",
    "compile_grammar",
    "compile_json_schema",
    "compile_regex",
    "compile_sequences",
    "compile_sids",
    "compile_structural_tag",
    "sort_sids",
]
