"""Every error maskwright raises on purpose.

    MaskwrightError
    ├── ConstraintError(ValueError)       a constraint that cannot be compiled as given
    ├── TableError(ValueError)            arrays that do not form a transition table
    │   └── TableFileError                a file that is truncated, foreign, tampered with or of another version
    ├── VocabularyMismatchError(ValueError)   a table and a vocabulary, or logits, that do not belong together
    ├── DataError(ValueError)             a file of data that is missing or malformed
    └── MissingDependencyError(ImportError)   an optional package that is not installed

Each message says what was wrong, where, and what to do about it.
"""

from __future__ import annotations


class MaskwrightError(Exception):
    """Base of all errors that maskwright raises on purpose."""


class ConstraintError(MaskwrightError, ValueError):
    """A constraint that cannot be compiled as given; the message names the row or position."""


class TableError(MaskwrightError, ValueError):
    """Arrays that do not form a transition table."""


class TableFileError(TableError):
    """A file that is truncated, foreign, tampered with, or of another format version."""


class VocabularyMismatchError(MaskwrightError, ValueError):
    """A table used with a vocabulary, or with logits, that it was not compiled for."""


class DataError(MaskwrightError, ValueError):
    """A file of data that is missing or malformed; the message names the file, the line and what to do."""


class MissingDependencyError(MaskwrightError, ImportError):
    """An optional package that a function needs is not installed; the message gives the install command."""
