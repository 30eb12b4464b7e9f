"""What an engine's operator sets for maskwright: a JSON object in an environment variable, as all processes have it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, get_args

from ..automata.budget import Budget
from ..compile.json_schema.approximations import allowed_keywords
from ..compile.json_schema.layout import Whitespace
from ..errors import ConstraintError

VARIABLE = "MASKWRIGHT_ENGINE_OPTIONS"
_LIMITS = ("states", "seconds", "bytes")


class CatalogueFile(NamedTuple):
    """Where a catalogue is: its file, and the log of the process that changes its items; None if none does."""

    file: str
    log: str | None = None


class FilterFile(NamedTuple):
    """Where a filter is: a file of booleans, one for each item of a catalogue in the order of its input."""

    catalogue: str  # by name
    keep: str  # path of a .npy file


_File = TypeVar("_File", CatalogueFile, FilterFile)


@dataclass(frozen=True)
class EngineOptions:
    """How constraints of all requests are compiled, and which catalogues there are.

    whitespace: of all JSON, as for `compile_json_schema`. allow: keywords of schemas that need not be enforced, "all"
    for each that may be named. budget: limits of one compilation. cache_directory: where tables are kept on disk too,
    None for nowhere. catalogues: files of semantic IDs, and filters: those of their items, by the names that requests
    use. untested: whether maskwright serves releases of an engine that `releases.json` does not have.
    """

    whitespace: str = "spaced"
    allow: tuple[str, ...] = ()
    budget: Budget = field(default_factory=Budget)
    cache_directory: str | None = None
    catalogues: Mapping[str, CatalogueFile] = field(default_factory=dict)
    filters: Mapping[str, FilterFile] = field(default_factory=dict)
    untested: bool = False

    def compact(self) -> EngineOptions:
        """Return these options with no whitespace in JSON."""
        return replace(self, whitespace="compact")


def options_of(environment: Mapping[str, str] | None = None) -> EngineOptions:
    """Return the options of an environment, this process's if None.

    Raises ConstraintError, by name, for an option that there is not or a value that it cannot have.

    >>> options_of({"MASKWRIGHT_ENGINE_OPTIONS": '{"whitespace": "compact"}'}).whitespace
    'compact'
    """
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    if not text.strip():
        return EngineOptions()
    try:
        given = json.loads(text)
    except ValueError as error:
        raise _wrong(f"is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise _wrong(f"must be an object, not {text[:40]}")
    known: dict[str, Callable[[Any], Any]] = {
        "whitespace": _whitespace, "allow": _allow, "budget": _budget, "cache_directory": _directory,
        "catalogues": _catalogues, "filters": _filters, "untested": _untested,
    }  # fmt: skip
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise _wrong(f"has no option {unknown[0]!r}: there are {', '.join(known)}")
    return EngineOptions(**{name: known[name](value) for name, value in given.items()})


def _whitespace(value: object) -> str:
    if value not in get_args(Whitespace):
        raise _wrong(f"whitespace must be one of {', '.join(get_args(Whitespace))}, not {value!r}")
    return str(value)


def _allow(value: object) -> tuple[str, ...]:
    try:
        return allowed_keywords(value)
    except ConstraintError as error:
        raise _wrong(str(error)) from None


def _budget(value: object) -> Budget:
    if not isinstance(value, dict) or not set(value) <= set(_LIMITS):
        raise _wrong(f"budget must be an object of {', '.join(_LIMITS)}, not {value!r}")
    try:
        return Budget(**value)
    except (TypeError, ValueError) as error:
        raise _wrong(f"budget: {error}") from None


def _directory(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(f"cache_directory must be a path, not {value!r}")
    return value


def _catalogues(value: object) -> dict[str, CatalogueFile]:
    if isinstance(value, dict):
        value = {name: {"file": each} if isinstance(each, str) else each for name, each in value.items()}
    return _files(value, CatalogueFile, 'catalogues must be an object of paths, or of {"file": path, "log": path},')


def _filters(value: object) -> dict[str, FilterFile]:
    return _files(value, FilterFile, 'filters must be an object of {"catalogue": name, "keep": path}')


def _files(value: object, kind: type[_File], what: str) -> dict[str, _File]:
    """Return objects of texts by name as tuples of a kind; what: how an error says what they must be."""
    known = set(kind._fields)
    if not isinstance(value, dict) or not all(
        isinstance(each, dict)
        and known - set(kind._field_defaults) <= set(each) <= known
        and all(isinstance(part, str) and part for part in each.values())
        for each in value.values()
    ):
        raise _wrong(f"{what} by name, not {value!r}")
    return {name: kind(**each) for name, each in value.items()}


def _untested(value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(f"untested must be true or false, not {value!r}")
    return value


def _wrong(message: str) -> ConstraintError:
    return ConstraintError(message, argument=VARIABLE)
