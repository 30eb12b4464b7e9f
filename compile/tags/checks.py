"""Read the fields of a structural tag, or refuse them with the JSON Pointer of the fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ...errors import ConstraintError
from ..json_schema.source import shown


def refuse(where: str, message: str) -> NoReturn:
    raise ConstraintError(message, pointer=where)


def fields_of(value: object, where: str, required: set[str], optional: Iterable[str] = ()) -> Mapping[str, Any]:
    """Return an object that has all keys that it must have, and no unknown ones."""
    if not isinstance(value, Mapping):
        refuse(where, f"an object is needed, not {shown(value)}")
    missing = sorted(required - set(value))
    if missing:
        refuse(where, f"{missing[0]!r} is missing")
    unknown = sorted(str(key) for key in set(value) - required - set(optional))
    if unknown:
        refuse(where, f"{unknown[0]!r} is not known here: it may have {', '.join(sorted({*required, *optional}))}")
    return value


def text_at(value: object, where: str, empty: bool = True) -> str:
    if not isinstance(value, str):
        refuse(where, f"a text is needed, not {shown(value)}")
    if not value and not empty:
        refuse(where, "the text is empty: it would begin or end everywhere")
    return value


def list_at(value: object, where: str, empty: bool = True) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        refuse(where, f"a list is needed, not {shown(value)}")
    if not value and not empty:
        refuse(where, "the list is empty")
    return value


def texts_at(value: object, where: str) -> list[str]:
    return [text_at(each, f"{where}/{i}", empty=False) for i, each in enumerate(list_at(value, where))]


def flag_at(value: Mapping[str, Any], key: str, where: str) -> bool:
    found = value.get(key, False)
    if not isinstance(found, bool):
        refuse(f"{where}/{key}", f"true or false is needed, not {shown(found)}")
    return found


def count_at(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        refuse(where, f"a count, 0 or more, is needed, not {shown(value)}")
    return value
