"""The hash of a schema: the same for every spelling of its JSON text, another for any other order of its keys."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ...depth import inside

if TYPE_CHECKING:
    from .source import Json, SchemaSource

Whole: TypeAlias = "dict[Any, Any] | list[Any] | tuple[Any, ...]"
"""An object or an array; what stands in it may be anything, as a schema is hashed before it is checked."""


def hash_of(contents: Json, documents: Mapping[str, SchemaSource] | None, *options: object) -> str:
    """Return the SHA-256 of all that is compiled. The order of a schema's keys has a meaning, its spacing has none."""
    others = "" if documents is None else _text(dict(documents))
    return hashlib.sha256(f"json schema\0{options!r}\0{others}\0{_text(contents)}".encode()).hexdigest()


_MOST_PARTS = 1_000_000  # of a schema that is hashed by its JSON text
_BEGUN = "begun"  # in place of the hash of a part that is not done


def _text(contents: Any) -> str:
    """Return the JSON text of a schema; a hash if it is too large written out, or has more than JSON."""
    level, parts = inside([[contents]]), 0
    while level:
        parts += len(level)
        if parts > _MOST_PARTS:
            return _digest(contents)
        if not all(_has_names(whole) for whole in level if isinstance(whole, dict)):
            return _digest(contents)  # JSON would write 1 as "1"
        level = inside(level)
    try:
        return json.dumps(contents)
    except (
        TypeError,
        ValueError,
    ):  # a Decimal, which must not look like a string; a number too long for Python to write
        return _digest(contents)


def _has_names(whole: Mapping[object, object]) -> bool:
    """Return whether all keys are strings."""
    return {str}.issuperset(map(type, whole)) or all(isinstance(key, str) for key in whole)


def _digest(contents: Whole) -> str:
    """Return a hash made from the inside out: the hash of each part is made once, however often the part is used.

    A value that contains itself is equal to no other.
    """
    known: dict[int, str] = {}
    todo = [contents]
    while todo:
        whole = todo[-1]
        if id(whole) not in known:
            known[id(whole)] = _BEGUN
            todo.extend(part for part in inside([whole]) if id(part) not in known)
            continue
        todo.pop()
        if known[id(whole)] == _BEGUN:
            parts = list(whole.items() if isinstance(whole, dict) else enumerate(whole))
            if any(known.get(id(part)) == _BEGUN for _, part in parts):
                return uuid.uuid4().hex
            said = [f"{key!r}:{known.get(id(part)) or type(part).__name__ + _said(part)}" for key, part in parts]
            known[id(whole)] = hashlib.sha256("\0".join((type(whole).__name__, *said)).encode()).hexdigest()
    return known[id(contents)]


def _said(part: object) -> str:
    """Return what tells a part without an inside from others. Python limits how many decimal digits it writes."""
    return hex(part) if type(part) is int else repr(part)
