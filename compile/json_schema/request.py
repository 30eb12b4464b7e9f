"""Compile JSON Schemas."""

from __future__ import annotations

import gc
import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ...automata.budget import Budget, Meter
from ...errors import BudgetError, RegexError, SchemaError
from ...lazy.lazy_table import Compiled
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import Vocabulary
from ..arguments import begin_budget, check_vocabulary, checked_depth

if TYPE_CHECKING:
    from .layout import Layout
    from .source import Path


def compile_json_schema(
    schema: Any,
    vocabulary: Vocabulary,
    *,
    whitespace: str | tuple[str, str] = "flexible",
    ascii: bool = False,
    allow: Iterable[str] = (),
    documents: Mapping[str, Any] | None = None,
    any_order: bool = False,
    depth: int = 64,
    lazy: bool = True,
    budget: Budget | None = None,
) -> Compiled:
    """Compile a JSON Schema into a table that allows exactly the JSON texts, in one form, of the values that fit it.

    schema: a dict or bool, JSON text, or a pydantic model class; of any draft from 4 to 2020-12, by its "$schema",
    else 2020-12. Every assertion is enforced exactly or refused with its JSON Pointer; formats are assertions.
    Members are written in the order of the schema, each declared key at most once, other keys after them; of these one
    may come again, and its last value counts.
    any_order: members may come in any order instead, declared keys still at most once and all that are required. Which
    keys there were is part of a state, so that a `LazyTable` has what texts reach, and its arrays up to 2^n for n keys.

    whitespace: "flexible" for what json.dumps writes in any indentation, "compact" for none, or the two separators
    that stand between items and after keys, such as (", ", ": ").
    ascii: write characters outside ASCII as escapes, as json.dumps does unless told otherwise.
    allow: keywords that may be approximated, by name, such as "uniqueItems".
    documents: schemas by URI that "$ref" may name; nothing is ever fetched.
    depth: how many recursive schemas may be open inside one another.
    lazy: whether to return a `LazyTable`, whose arrays are worked out when something asks for them. A `Matcher` does
    not: it finds what it needs as it goes. None for schemas whose table takes long, more than some ten milliseconds.

    Raises SchemaError, which names the keyword by its JSON Pointer; BudgetError; ConstraintError where `depth` is
    enough for no text; TypeError and ValueError for arguments of another kind.

    >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'{"'], eos=0)
    >>> table = compile_json_schema({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, vocab)
    >>> table.accepts([257, *(1 + b for b in b'a": 1}'), 0])
    True
    """
    check_vocabulary(vocabulary)
    asked = request(
        schema, whitespace=whitespace, ascii=ascii, allow=allow, documents=documents, any_order=any_order, depth=depth
    )
    return compile_request(asked, vocabulary, lazy=lazy, budget=budget)


class Request(NamedTuple):
    """A schema to be compiled, and how: read and checked, with a hash of all that its table follows from."""

    contents: Any
    documents: Mapping[str, Any] | None
    layout: Layout
    allowed: frozenset[str]
    any_order: bool
    depth: int
    source: str


def request(
    schema: Any,
    *,
    whitespace: str | tuple[str, str] = "flexible",
    ascii: bool = False,
    allow: Iterable[str] = (),
    documents: Mapping[str, Any] | None = None,
    any_order: bool = False,
    depth: int = 64,
) -> Request:
    """Return what `compile_json_schema` is asked for; the same errors for arguments that are none."""
    from .source import read

    layout = _layout(whitespace, ascii)
    allowed = _allowed(allow)
    depth = checked_depth(depth)
    if not isinstance(any_order, bool):
        raise TypeError(f"any_order must be True or False, not {any_order!r}")
    if documents is not None and not (
        isinstance(documents, Mapping) and all(isinstance(uri, str) for uri in documents)
    ):
        raise TypeError('documents must be a dict of schemas by URI, such as {"https://example.org/a": {...}}')
    contents = read(schema)
    if documents is not None:  # a class says nothing by itself
        documents = {uri: read(each) if isinstance(each, type) else each for uri, each in documents.items()}
    source = hash_of(contents, documents, layout, sorted(allowed), any_order, depth)
    return Request(contents, documents, layout, allowed, any_order, depth, source)


def compile_request(
    asked: Request, vocabulary: Vocabulary, *, lazy: bool = True, budget: Budget | None = None
) -> Compiled:
    """Return the table of a request, as `compile_json_schema` does."""
    # a third of what importing the package takes, for those who have no schemas
    from ..bind.link import link
    from .build import build
    from .emit import Emitter, emit
    from .keywords import formula
    from .library import Library, frames, lazily

    contents, documents, layout, allowed, any_order, depth, source = asked
    if not isinstance(lazy, bool):
        raise TypeError(f"lazy must be True or False, not {lazy!r}")
    meter = begin_budget(budget)
    library = Library.of(vocabulary, layout)

    def whole(meter: Meter) -> TransitionTable:
        machine = emit(root, library, meter)
        return link(library, machine, source, frames(machine, depth), meter)

    def make() -> TransitionTable:
        with uncollected(), blaming_order(any_order):
            return whole(begin_budget(budget))

    try:
        with uncollected(), blaming_order(any_order):
            root = build(formula(contents, allow=allowed, documents=documents, meter=meter), meter, any_order)
            if not lazy:
                return whole(meter)
            return lazily(
                library, lambda meter: Emitter((root,), library, meter, depth), make, vocabulary, source=source,
                depth=depth, renews=any_order, meter=meter,
            )  # fmt: skip
    except RegexError as error:
        raise wrong_pattern(error, contents) from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Put off garbage collection: what compiling makes is kept, and to walk all objects of a process takes longer."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def blaming_order(any_order: bool) -> Iterator[None]:
    """Say of a budget that ended that members in any order may be why."""
    try:
        yield
    except BudgetError as error:
        if not any_order:
            raise
        raise BudgetError(
            f"{error}; any_order=True takes far more than any_order=False, where members come in the schema's order"
        ) from None


def _layout(whitespace: Any, ascii: Any) -> Layout:
    from .layout import Layout

    if not isinstance(ascii, bool):
        raise TypeError(f"ascii must be True or False, not {ascii!r}")
    if whitespace == "flexible":
        return Layout(ascii=ascii)
    if whitespace == "compact":
        return Layout(flexible=False, ascii=ascii)
    if isinstance(whitespace, (tuple, list)) and len(whitespace) == 2 and all(isinstance(w, str) for w in whitespace):
        comma, colon = whitespace
        if comma.strip(" \t\n\r") == "," and colon.strip(" \t\n\r") == ":":
            return Layout(False, comma.encode(), colon.encode(), ascii)
    raise ValueError(
        f'whitespace must be "flexible", "compact", or two separators such as (", ", ": "), not {whitespace!r}'
    )


def _allowed(allow: Iterable[str]) -> frozenset[str]:
    if isinstance(allow, str):
        raise TypeError(f'allow must be a list of keywords, such as ["{allow}"], not one text')
    words = list(allow) if isinstance(allow, Iterable) else [None]
    if not all(isinstance(word, str) for word in words):
        raise TypeError(f'allow must be a list of keywords, such as ["uniqueItems"], not {allow!r}')
    return frozenset(words)


def wrong_pattern(error: RegexError, contents: Any) -> SchemaError:
    """Return what is wrong with a pattern of a schema, with where it stands."""
    where = _find_pattern(contents, error.pattern)
    return SchemaError(f"the pattern cannot be compiled: {error}", where, "pattern")


def _find_pattern(contents: Any, pattern: str) -> str:
    """Return the JSON Pointer of the first keyword that has a pattern, "" if it is in another document."""
    from .source import pointer

    todo: list[tuple[Any, Path]] = [(contents, "")]
    while todo:
        here, path = todo.pop()
        if isinstance(here, dict):
            if here.get("pattern") == pattern:
                return pointer((path, "pattern"))
            if isinstance(here.get("patternProperties"), dict) and pattern in here["patternProperties"]:
                return pointer(((path, "patternProperties"), pattern))
            todo.extend((value, (path, key)) for key, value in reversed(here.items()))
        elif isinstance(here, list):
            todo.extend((value, (path, str(i))) for i, value in reversed(list(enumerate(here))))
    return ""


def hash_of(contents: Any, documents: Mapping[str, Any] | None, *options: object) -> str:
    """Return the SHA-256 of what is compiled: a schema's order has a meaning, its spacing has none."""
    others = "" if documents is None else _text(dict(documents))
    return hashlib.sha256(f"json schema\0{options!r}\0{others}\0{_text(contents)}".encode()).hexdigest()


_MOST_LEVELS, _MOST_PARTS = 200, 1_000_000
_BEGUN = "begun"


def _text(contents: Any) -> str:
    """Return the JSON text of a schema; a hash where it is too deep, too large written out, or has more than JSON."""
    level, levels, parts = _inside([[contents]]), 0, 0
    while level:
        levels, parts = levels + 1, parts + len(level)
        if levels > _MOST_LEVELS or parts > _MOST_PARTS:
            return _digest(contents)
        if not all(_has_names(whole) for whole in level if isinstance(whole, dict)):
            return _digest(contents)  # JSON would write 1 as "1"
        level = _inside(level)
    try:
        return json.dumps(contents)
    except TypeError:  # a Decimal of a text, which no string must be taken for
        return _digest(contents)


def _has_names(whole: Mapping[Any, Any]) -> bool:
    """Return whether all keys are strings."""
    return {str}.issuperset(map(type, whole)) or all(isinstance(key, str) for key in whole)


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _inside(wholes: Iterable[Any]) -> list[Any]:
    """Return the objects and arrays in some others."""
    return [
        part
        for whole in wholes
        for part in (whole.values() if isinstance(whole, dict) else whole)
        if type(part) not in _SCALARS and isinstance(part, (dict, list, tuple))
    ]


def _digest(contents: Any) -> str:
    """Return a hash made from the inside out, that of each part, however often it is used, once.

    What contains itself is equal to nothing else.
    """
    known: dict[int, str] = {}
    todo = [contents]
    while todo:
        whole = todo[-1]
        if id(whole) not in known:
            known[id(whole)] = _BEGUN
            todo.extend(part for part in _inside([whole]) if id(part) not in known)
            continue
        todo.pop()
        if known[id(whole)] == _BEGUN:
            parts = list(whole.items() if isinstance(whole, dict) else enumerate(whole))
            if any(known.get(id(part)) == _BEGUN for _, part in parts):
                return uuid.uuid4().hex
            said = [f"{key!r}:{known.get(id(part)) or type(part).__name__ + repr(part)}" for key, part in parts]
            known[id(whole)] = hashlib.sha256("\0".join((type(whole).__name__, *said)).encode()).hexdigest()
    return known[id(contents)]
