"""Constrained decoding: compile what a model may write into one flat table, apply it to logits."""

from __future__ import annotations

from .automata.budget import Budget
from .compile.cache import Cache
from .compile.schema import compile_json_schema
from .compile.sequences import compile_sequences, compile_sids
from .compile.text import compile_choices, compile_regex
from .compile.vocabulary import Vocabulary
from .errors import (
    BudgetError,
    ConstraintError,
    DataError,
    MaskwrightError,
    MissingDependencyError,
    RegexError,
    SchemaError,
    TableError,
    TableFileError,
    VocabularyMismatchError,
)
from .runtime.matcher import Matcher
from .table import LazyTable, TransitionTable

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetError",
    "Cache",
    "ConstraintError",
    "DataError",
    "LazyTable",
    "MaskwrightError",
    "Matcher",
    "MissingDependencyError",
    "RegexError",
    "SchemaError",
    "TableError",
    "TableFileError",
    "TransitionTable",
    "Vocabulary",
    "VocabularyMismatchError",
    "compile_choices",
    "compile_json_schema",
    "compile_regex",
    "compile_sequences",
    "compile_sids",
]
