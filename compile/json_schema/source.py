"""A schema as a caller gives it: JSON text, a class, or a dict; and how messages name a part of it."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal, DecimalException
from typing import Any, TypeAlias

from ...depth import LIMIT, TooDeep, deep_text, deep_value
from ...errors import SchemaError

Json: TypeAlias = "dict[str, Json] | list[Json] | tuple[Json, ...] | str | int | float | Decimal | bool | None"
"""A JSON value. Fractions that are read from text are Decimal."""
Schema: TypeAlias = bool | dict[str, Json]
"""A schema that was read. The parts of it are only checked when they are compiled."""
SchemaSource: TypeAlias = bool | dict[str, Any] | str | bytes | bytearray | type[Any]
"""A schema as a caller gives it: a dict or a bool, JSON text, or a pydantic model class."""
Key: TypeAlias = str | int
"""A step of a JSON Pointer: the key of a member, or the place of an item."""
Path: TypeAlias = "str | tuple[Path, *tuple[Key, ...]]"
"""Where a subschema stands: (path of the schema around it, keys..), or the beginning of a pointer."""
KeywordPath: TypeAlias = tuple[Path, str]
"""Where a keyword stands: (path of its schema, keyword)."""


def pointer(path: Path) -> str:
    """Return a path as a JSON Pointer.

    >>> pointer((("", "properties", "a/b"), "minLength"))
    '/properties/a~1b/minLength'
    """
    keys: list[Key] = []
    while not isinstance(path, str):
        keys.extend(reversed(path[1:]))
        path = path[0]
    return path + "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in reversed(keys))


def placed(where: str, pointer: str) -> str:
    """Return where in a whole a pointer leads, whose schema stands at `where`; one into a document names it by URI."""
    return pointer if "#" in pointer else where + pointer


# -------------------------------------------------------------------------------------------------------- reading


def read(source: SchemaSource, path: Path = "") -> Schema:
    """Return the schema of a dict, a bool, JSON text or a pydantic model class.

    path: where the source stands, for messages. Raises SchemaError for malformed text and for a schema that is nested
    too deeply, TypeError for any other type.
    """
    if isinstance(source, bool):
        return source
    if isinstance(source, dict):
        check_depth(source, path)
        return source
    if isinstance(source, (str, bytes, bytearray)):
        schema = parsed(source, path)
        if isinstance(schema, (dict, bool)):
            return schema
        raise SchemaError(f"a schema is an object, true or false, not {shown(schema)}", pointer(path))
    make = getattr(source, "model_json_schema", None)
    if callable(make):
        made: Schema = make()
        check_depth(made, path)
        return made
    raise TypeError(
        f"a JSON Schema must be a dict, a bool, JSON text or a pydantic model class, not {type(source).__name__}"
    )


def check_depth(value: object, path: Path = "") -> None:
    """Raise SchemaError for a value that is nested too deeply; path: where it stands."""
    deep = deep_value(value)
    if deep is not None:
        raise _too_deep(deep, pointer((path, *deep.path)))


def check_text_depth(text: str, path: Path = "") -> None:
    """Raise SchemaError for JSON text that is nested too deeply; path: where it stands."""
    deep = deep_text(text)
    if deep is not None:
        raise _too_deep(deep, pointer(path), _excerpt(text, deep.position or 0))


def text_of(value: object) -> str:
    """Return a value as JSON text. Raises SchemaError if it is nested too deeply, TypeError if it is no JSON value."""
    check_depth(value)
    return json.dumps(value)


def _too_deep(deep: TooDeep, where: str, excerpt: str = "") -> SchemaError:
    error = SchemaError(deep.message, where, position=deep.position, excerpt=excerpt)
    return error.reaching(LIMIT, deep.allowed)


def shown(value: object) -> str:
    """Return a value in a few words, for messages."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = _text_of(value)
    if len(text) > 40:
        text = text[:37] + "..."
    for kind, name in ((str, "the string"), (dict, "the object"), ((list, tuple), "the array")):
        if isinstance(value, kind):
            return f"{name} {text}"
    if isinstance(value, (int, float, Decimal)):
        return text
    return f"a Python {type(value).__name__}"


def quoted(text: str) -> str:
    """Return a string in quotes, cut if it is long."""
    return json.dumps(text if len(text) <= 80 else text[:77] + "...", ensure_ascii=False)


def _text_of(value: object) -> str:
    if isinstance(value, (dict, list, tuple)) and len(value) > 20:
        return f"of {len(value):,} entries"
    try:
        return json.dumps(value, default=str, ensure_ascii=False) if not isinstance(value, Decimal) else str(value)
    except (TypeError, ValueError):
        return "..."


def parsed(source: str | bytes | bytearray, path: Path) -> Json:
    """Return the JSON value of a text. Raises SchemaError where it is malformed or nested too deeply."""

    def refuse(name: str) -> None:
        raise SchemaError(f"{name} is no JSON: write a number, or leave it out", pointer(path))

    def distinct(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        members = dict(pairs)
        if len(members) != len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise SchemaError(f"the key {quoted(twice)} occurs twice in one object: keep one", pointer(path))
        return members

    try:
        text = source if isinstance(source, str) else bytes(source).decode("utf-8-sig")
        check_text_depth(text, path)
        value: Json = json.loads(
            text, parse_float=Decimal, parse_int=_integer, parse_constant=refuse, object_pairs_hook=distinct
        )
        return value
    except UnicodeDecodeError as error:
        raise SchemaError(f"the text is not UTF-8: byte {error.start} is not", pointer(path)) from None
    except json.JSONDecodeError as error:
        raise SchemaError(
            f"malformed JSON in line {error.lineno}, column {error.colno}: {error.msg}",
            pointer(path),
            position=error.pos,
            excerpt=_excerpt(error.doc, error.pos),
        ) from None
    except DecimalException:
        raise SchemaError("a number's exponent is beyond any use: write a smaller one", pointer(path)) from None


def _excerpt(text: str, position: int) -> str:
    """Return the part of a text around a position, of its line, and a caret under it."""
    begin = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1
    low = max(begin, position - 40)
    line = "".join(text[low : position + 40].splitlines()[:1])
    return f"    {''.join(c if c.isprintable() else ' ' for c in line)}\n    {' ' * (position - low)}^"


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < 4000 else Decimal(digits)  # Python limits how many digits int() reads
