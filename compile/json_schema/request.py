"""What is asked of a JSON Schema: its source and options, read and checked; and the errors that name them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from ...depth import enough_stack
from ...errors import BudgetError, KeepOrder, RegexError, SchemaError, UnenforcedWarning
from ...lazy.lazy_table import Compiled
from ..arguments import checked_depth
from .approximations import ALL, allowed_keywords
from .schema_hash import hash_of

if TYPE_CHECKING:
    from .layout import Layout, Whitespace
    from .source import Json, Path, Schema, SchemaSource


def warn_of(allow: object, made: Compiled) -> None:
    """Warn the caller's caller of what a table does not enforce, if everything was allowed and not by name."""
    if allow == ALL and made.unenforced:
        warnings.warn(UnenforcedWarning(made.unenforced), stacklevel=3)


class Request(NamedTuple):
    """A schema to be compiled, and how: read and checked.

    source: a hash of all that the table follows from.
    """

    contents: Schema
    documents: Mapping[str, SchemaSource] | None
    layout: Layout
    allowed: frozenset[str]
    any_order: bool
    depth: int
    source: str


@enough_stack(partial(SchemaError, pointer=""))
def request(
    schema: SchemaSource,
    *,
    whitespace: Whitespace | tuple[str, str] = "flexible",
    ascii: bool = False,
    allow: Iterable[str] | Literal["all"] = (),
    documents: Mapping[str, SchemaSource] | None = None,
    any_order: bool = False,
    depth: int = 64,
) -> Request:
    """Return the request that the arguments of `compile_json_schema` make. Raises the same errors for wrong ones."""
    from .source import read

    layout = _layout(whitespace, ascii)
    allowed = frozenset(allowed_keywords(allow))
    depth = checked_depth(depth)
    if not isinstance(any_order, bool):
        raise TypeError(f"any_order must be True or False, not {any_order!r}")
    if documents is not None and not (
        isinstance(documents, Mapping) and all(isinstance(uri, str) for uri in documents)
    ):
        raise TypeError('documents must be a dict of schemas by URI, such as {"https://example.org/a": {...}}')
    contents = read(schema)
    if documents is not None:  # the hash needs what a class describes, and goes into all parts
        documents = {
            uri: read(each, f"{uri}#") if isinstance(each, (type, dict)) else each for uri, each in documents.items()
        }
    source = hash_of(contents, documents, layout, sorted(allowed), any_order, depth)
    return Request(contents, documents, layout, allowed, any_order, depth, source)


@contextmanager
def blaming_order(any_order: bool) -> Iterator[None]:
    """Add to a BudgetError that members in any order may be the reason."""
    try:
        yield
    except BudgetError as error:
        if not any_order:
            raise
        raise error.also(KeepOrder()) from None


def _layout(whitespace: object, ascii: object) -> Layout:
    from .layout import SPACED, Layout

    if not isinstance(ascii, bool):
        raise TypeError(f"ascii must be True or False, not {ascii!r}")
    if whitespace == "flexible":
        return Layout(ascii=ascii)
    if whitespace == "spaced":
        return Layout(False, SPACED[0].encode(), SPACED[1].encode(), ascii)
    if whitespace == "compact":
        return Layout(flexible=False, ascii=ascii)
    if isinstance(whitespace, (tuple, list)) and len(whitespace) == 2 and all(isinstance(w, str) for w in whitespace):
        comma, colon = whitespace
        if comma.strip(" \t\n\r") == "," and colon.strip(" \t\n\r") == ":":
            return Layout(False, comma.encode(), colon.encode(), ascii)
    raise ValueError(
        f'whitespace must be "flexible", "spaced", "compact", or two separators such as (",", ": "), not {whitespace!r}'
    )


def wrong_pattern(error: RegexError, contents: Json) -> SchemaError:
    """Return the error for a wrong pattern of a schema, with the place where it stands."""
    where = _find_pattern(contents, error.pattern)
    message = f"the pattern cannot be compiled: {error.message}"
    wrong = SchemaError(message, where, "pattern", position=error.position, excerpt=error.excerpt)
    return wrong if error.limit is None else wrong.reaching(error.limit, error.allowed)


def _find_pattern(contents: Json, pattern: str) -> str:
    """Return the JSON Pointer of the first keyword that has a pattern; "" if it is in another document."""
    from .source import pointer

    todo: list[tuple[Json, Path]] = [(contents, "")]
    while todo:
        here, path = todo.pop()
        if isinstance(here, dict):
            if here.get("pattern") == pattern:
                return pointer((path, "pattern"))
            patterns = here.get("patternProperties")
            if isinstance(patterns, dict) and pattern in patterns:
                return pointer(((path, "patternProperties"), pattern))
            todo.extend((value, (path, key)) for key, value in reversed(here.items()))
        elif isinstance(here, list):
            todo.extend((value, (path, str(i))) for i, value in reversed(list(enumerate(here))))
    return ""
