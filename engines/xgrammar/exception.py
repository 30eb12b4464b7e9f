"""The errors of XGrammar: what maskwright refuses is also a RuntimeError, as callers of that package catch it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ... import errors
from ...compile.json_schema import source


class DeserializeFormatError(RuntimeError):
    """A text that `serialize_json` did not write, or that is of another tokenizer."""


class DeserializeVersionError(RuntimeError):
    """A text that another version wrote."""


class InvalidStructuralTagError(RuntimeError):
    """A structural tag that is at fault."""


class InvalidJSONError(RuntimeError):
    """A text that is no JSON."""


class UsageError(ValueError, RuntimeError):
    """A call that cannot be done as it is given."""


_BEGINS: dict[type[RuntimeError], str] = {
    RuntimeError: "",
    InvalidStructuralTagError: "InvalidStructuralTag",
    InvalidJSONError: "InvalidJSON",
}
_BOTH: dict[tuple[type, type], Any] = {}
_KINDS = (
    errors.ConstraintError, errors.RegexError, errors.SchemaError, errors.GrammarError, errors.NoTableError,
    errors.BudgetError,
)  # fmt: skip
for _kind in _KINDS:
    for _other, _begin in _BEGINS.items():
        _name = _begin + _kind.__name__
        # of this file, where pickles find it by its name
        _BOTH[_kind, _other] = globals()[_name] = type(
            _name, (_kind, _other), {"__module__": __name__, "__doc__": f"{_kind.__doc__} A {_other.__name__} too."}
        )


@contextmanager
def raising(other: type[RuntimeError] = RuntimeError) -> Iterator[None]:
    """Let errors of constraints be errors of XGrammar as well, with all their fields."""
    try:
        yield
    except errors.ConstraintError as error:
        if isinstance(error, other):
            raise
        both = next(_BOTH[kind, other] for kind in type(error).__mro__ if (kind, other) in _BOTH)
        raise errors.made_again(both, error.args, error.__dict__) from error.__cause__


def parsed(text: str | bytes) -> Any:
    """Return what a JSON text says, with fractions as Decimal. Raises InvalidJSONError."""
    with raising(InvalidJSONError):
        return source.parsed(text, "")
