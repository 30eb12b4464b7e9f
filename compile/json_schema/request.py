"""Compile JSON Schemas."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from ...automata.budget import Budget, Meter
from ...automata.formulas import uncollected
from ...depth import Flat, enough_stack
from ...errors import BudgetError, KeepOrder, RegexError, SchemaError, UnenforcedWarning
from ...lazy.lazy_table import Compiled
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from ..arguments import begin_budget, check_vocabulary, checked_depth
from .approximations import ALL, Approximations, allowed_keywords
from .schema_hash import hash_of

if TYPE_CHECKING:
    from .layout import Layout, Whitespace
    from .source import Json, Path, Schema, SchemaSource


def compile_json_schema(
    schema: SchemaSource,
    vocabulary: Vocabulary,
    *,
    whitespace: Whitespace | tuple[str, str] = "flexible",
    ascii: bool = False,
    allow: Iterable[str] | Literal["all"] = (),
    documents: Mapping[str, SchemaSource] | None = None,
    any_order: bool = False,
    depth: int = 64,
    lazy: bool = True,
    budget: Budget | None = None,
) -> Compiled:
    """Compile a JSON Schema into a table that allows exactly the JSON texts, in one form, of the values that fit it.

    schema: a dict or bool, JSON text, or a pydantic model class; of any draft from 4 to 2020-12, by its "$schema",
    else 2020-12. Every assertion is enforced exactly or refused with its JSON Pointer; formats are assertions.
    Members are written in the order of the schema, each declared key at most once. Other keys come after them; such a
    key may come again, and its last value counts.
    any_order: members may come in any order instead; declared keys still come at most once, and required ones must.
    Which keys came is part of a state: a `LazyTable` has the states that texts reach, its arrays up to 2^n for n keys.

    whitespace: "flexible" for what json.dumps writes in any indentation, "spaced" for what it writes without one,
    "compact" for none, or the two separators that stand between items and after keys, such as (",", ": ").
    ascii: write characters outside ASCII as escapes, as json.dumps does unless told otherwise.
    allow: keywords that may stay unenforced where they cannot be exact, by name, such as "uniqueItems"; or "all", which
    warns of each that does. `unenforced` of the table lists them.
    documents: schemas by URI that "$ref" may name; nothing is ever fetched.
    depth: how many recursive schemas may be open inside one another.
    lazy: whether to return a `LazyTable`, whose arrays are only made if something asks for them. A `Matcher` does not:
    it finds the states that it needs as it goes.

    Raises SchemaError, which names the keyword by its JSON Pointer; BudgetError; ConstraintError if no text fits into
    `depth`, and for a wrong `allow`; TypeError and ValueError for other wrong arguments.

    >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'{"'], eos=0)
    >>> table = compile_json_schema({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, vocab)
    >>> table.accepts([257, *(1 + b for b in b'a": 1}'), 0])
    True
    """
    check_vocabulary(vocabulary)
    asked = request(
        schema, whitespace=whitespace, ascii=ascii, allow=allow, documents=documents, any_order=any_order, depth=depth
    )
    made = compile_request(asked, vocabulary, lazy=lazy, budget=budget)
    warn_of(allow, made)
    return made


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


def compile_request(
    asked: Request, vocabulary: Vocabulary, *, lazy: bool = True, budget: Budget | None = None
) -> Compiled:
    """Return the table of a request, as `compile_json_schema` does."""
    # imported here, as they take a third of the time of importing the package, which may have no schemas to compile
    from ..bind.link import link
    from .build import build
    from .emit import Emitter, emit
    from .keywords import formula
    from .lazily import lazily
    from .library import Library, frames

    contents, documents, layout, allowed, any_order, depth, source = asked
    if not isinstance(lazy, bool):
        raise TypeError(f"lazy must be True or False, not {lazy!r}")
    approximations = Approximations(allowed)
    too_deep = partial(SchemaError, pointer="")
    library = Library.of(vocabulary, layout)

    def whole(meter: Meter) -> TransitionTable:
        machine = emit(root, library, meter)
        return link(library, machine, source, frames(machine, depth), meter)

    def make() -> TransitionTable:
        with uncollected(), blaming_order(any_order), begin_budget(budget) as meter, enough_stack(too_deep):
            return whole(meter)

    try:
        with uncollected(), blaming_order(any_order), begin_budget(budget) as meter, enough_stack(too_deep):
            root = build(
                formula(contents, approximations=approximations, documents=documents, meter=meter), meter, any_order
            )
            if not lazy:
                return whole(meter).noting(approximations.found)
            made = lazily(
                library, lambda meter: Emitter((root,), library, meter, depth), make, vocabulary, source=source,
                depth=depth, renews=any_order, unenforced=lambda: approximations.found, meter=meter,
            )  # fmt: skip
            shallow = asked._replace(contents=True, documents=None)
            return made.made_by(_again, shallow, Flat(contents), Flat(documents), vocabulary, budget)
    except RegexError as error:
        raise wrong_pattern(error, contents) from error


def _again(
    asked: Request, contents: Schema, documents: Mapping[str, SchemaSource] | None, vocabulary: Vocabulary,
    budget: Budget | None,
) -> Compiled:  # fmt: skip
    """Return the table of a request that was sent in parts."""
    return compile_request(asked._replace(contents=contents, documents=documents), vocabulary, budget=budget)


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
