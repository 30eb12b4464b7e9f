"""Every error maskwright raises on purpose.

    MaskwrightError
    ├── ConstraintError(ValueError)       a constraint that cannot be compiled as given
    │   ├── RegexError                    a pattern that is malformed or not supported, with a caret
    │   ├── SchemaError                   a JSON Schema that is malformed, matches nothing or is not supported
    │   ├── GrammarError                  a grammar that is malformed, derives nothing or is not supported, with a caret
    │   ├── NoTableError                  a grammar of which there is no finite table, when something needs arrays
    │   └── BudgetError                   a compilation that reached a limit of states, seconds or bytes
    ├── TableError(ValueError)            arrays that do not form a transition table
    │   └── TableFileError                a file that is truncated, foreign, tampered with or of another version
    ├── ArenaError(ValueError)            a table for which an arena has no room, or was not made
    ├── VocabularyMismatchError(ValueError)   a table and a vocabulary, or logits, that do not belong together
    ├── DataError(ValueError)             a file of data that is missing or malformed
    └── MissingDependencyError(ImportError)   an optional package that is not installed

Each message says what was wrong, where, and what to do about it.
"""

from __future__ import annotations

from typing import Any


class MaskwrightError(Exception):
    """Base of all errors that maskwright raises on purpose; any can be copied and pickled."""

    def __reduce__(self) -> Any:
        return made_again, (type(self), self.args, self.__dict__)


def made_again(kind: type[MaskwrightError], args: tuple[Any, ...], more: dict[str, Any]) -> MaskwrightError:
    """Return an error of a kind with its message as it was, which its own constructor would put together anew."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(more)
    return error


class ConstraintError(MaskwrightError, ValueError):
    """A constraint that cannot be compiled as given; the message names the row or position."""


class TableError(MaskwrightError, ValueError):
    """Arrays that do not form a transition table."""


class TableFileError(TableError):
    """A file that is truncated, foreign, tampered with, or of another format version."""


class VocabularyMismatchError(MaskwrightError, ValueError):
    """A table used with a vocabulary, or with logits, that it was not compiled for."""


class ArenaError(MaskwrightError, ValueError):
    """A table for which an arena has no room, or whose parts are wider than it was made for; the message says which."""


class DataError(MaskwrightError, ValueError):
    """A file of data that is missing or malformed; the message names the file, the line and what to do."""


class MissingDependencyError(MaskwrightError, ImportError):
    """An optional package that a function needs is not installed; the message gives the install command."""


class NoTableError(ConstraintError):
    """A grammar of which there is no finite table, where arrays were asked for; it can be read as it is."""


class BudgetError(ConstraintError):
    """A compilation that reached a limit of its `Budget`; the message names the limit and how to raise it."""


class RegexError(ConstraintError):
    """A regular expression that cannot be compiled; the message shows the pattern with a caret under the position."""

    def __init__(self, message: str, pattern: str, position: int) -> None:
        super().__init__(f"{message}\n{_caret(pattern, position)}")
        self.pattern = pattern
        self.position = position  # index into pattern, 0 to len(pattern)


class SchemaError(ConstraintError):
    """A JSON Schema that cannot be compiled exactly; the message begins with the JSON Pointer of what is at fault."""

    def __init__(self, message: str, pointer: str, keyword: str | None = None) -> None:
        super().__init__(f"{pointer or '/'}: {message}")
        self.pointer = pointer  # where in the schema, as a URI fragment without '#': "" is the whole schema
        self.keyword = keyword  # the keyword that `allow` could name, if there is one


class GrammarError(ConstraintError):
    """A grammar that cannot be compiled; the message has line and column, and shows the line with a caret under it."""

    def __init__(self, message: str, grammar: str, position: int) -> None:
        self.grammar = grammar
        self.position = position  # index into grammar, 0 to len(grammar)
        begin = grammar.rfind("\n", 0, position) + 1
        self.line, self.column = grammar.count("\n", 0, position) + 1, position - begin + 1  # from 1
        line = grammar[begin:].split("\n", 1)[0]
        super().__init__(f"line {self.line}, column {self.column}: {message}\n{_caret(line, position - begin)}")


_EXCERPT = 40  # characters of a pattern shown on either side of a fault


def _caret(pattern: str, position: int) -> str:
    """Return the part of a pattern around a position on one line and a caret under it on the next."""
    low, high = max(0, position - _EXCERPT), position + _EXCERPT

    def shown(text: str) -> str:  # one printable line, however the text is broken up
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)

    before = ("..." if low else "") + shown(pattern[low:position])
    after = shown(pattern[position:high]) + ("..." if high < len(pattern) else "")
    return f"    {before}{after}\n    {' ' * len(before)}^"
