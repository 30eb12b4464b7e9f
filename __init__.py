"""Constrained decoding: compile what a model may write into one flat table, apply it to logits."""

from __future__ import annotations

from .compile.sequences import compile_sequences, compile_sids
from .errors import (
    ConstraintError,
    DataError,
    MaskwrightError,
    MissingDependencyError,
    TableError,
    TableFileError,
    VocabularyMismatchError,
)
from .table import TransitionTable

__version__ = "0.1.0"

__all__ = [
    "ConstraintError",
    "DataError",
    "MaskwrightError",
    "MissingDependencyError",
    "TableError",
    "TableFileError",
    "TransitionTable",
    "VocabularyMismatchError",
    "compile_sequences",
    "compile_sids",
]
