"""Parameters in a style, read back into arguments: the inverse of what `parameters.py` allows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .parameters import container_of, types_seen
from .styles import ARRAY, BOOLEAN, NULL, OBJECT, STRING, STYLES, RawSchema, Style

_INTEGER = re.compile(r"-?\d+")


def read_parameters(style: str, text: str, schema: RawSchema, lines: bool) -> dict[str, Any]:
    """Return the arguments that a text has, which the parameters' schema allows in a style.

    lines: whether the tag of the call begins with a line of its own, so that a value may stand on one as well.

    Raises ValueError for a text that is not written so.
    """
    reader = _Reader(STYLES[style], lines)
    found, at = reader.members(text, 0, schema)
    if text[at:].strip():
        raise ValueError(f"this is no parameter in the style {style!r}: {text[at : at + 40]!r}")
    return found


class _Reader:
    def __init__(self, style: Style, lines: bool) -> None:
        self.style, self._lines = style, lines and style.cuts_one
        kinds = {text: kind for kind, text in reversed(list(style.kinds.items()))}
        self._kinds = kinds if style.is_typed else {}
        choice = "|".join(re.escape(text) for text in sorted(kinds, key=len, reverse=True))
        name = r"([^<>\"'&]+?)"
        gap = f"(?:{re.escape(style.gap)})?" if style.gap else ""
        behind = f"{re.escape(style.behind)}{gap}({choice})"
        self._member = re.compile(rf"\n?{re.escape(style.before)}(?!/){name}{behind}")
        self._item = re.compile(rf"\n?{re.escape(style.item)}({choice})") if style.item is not None else None

    def members(self, text: str, at: int, schema: RawSchema) -> tuple[dict[str, Any], int]:
        """Return the parameters that stand from a place on, and where they end."""
        found: dict[str, Any] = {}
        while match := self._member.match(text, at):
            name, kind = match[1], self._kinds.get(match[2])
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            sub = properties.get(name) if isinstance(properties, Mapping) else None
            close = f"{self.style.close}{name}>" if self.style.is_named else self.style.close
            found[name], at = self.value(text, match.end(), close, kind, sub)
        return found, at

    def value(self, text: str, at: int, close: str, kind: str | None, schema: RawSchema) -> tuple[Any, int]:
        """Return the value that begins at a place, and where its end ends."""
        if self._item is not None:
            inner = self._container(text, at, kind, schema)
            if inner is not None and text.startswith(close, _behind_line(text, inner[1])):
                return inner[0], _behind_line(text, inner[1]) + len(close)
        stop = text.find(close, at)
        if stop < 0:
            raise ValueError(f"{close!r} is missing")
        return self._scalar(text[at:stop], kind, schema), stop + len(close)

    def _container(self, text: str, at: int, kind: str | None, schema: RawSchema) -> tuple[Any, int] | None:
        """Return an object or array that is written in the style, and where it ends, None if there is none here."""
        assert self._item is not None
        seen = types_seen(schema)
        arrays, objects = container_of(schema, ARRAY), container_of(schema, OBJECT)
        if kind == ARRAY or (kind is None and ARRAY in seen and STRING not in seen and self._item.match(text, at)):
            items: list[Any] = []
            sub = arrays.get("items") if isinstance(arrays, Mapping) else None
            while match := self._item.match(text, at):
                close = self.style.item_close
                one, at = self.value(text, match.end(), close, self._kinds.get(match[1]), sub)
                items.append(one)
            return items, at
        if kind == OBJECT or (kind is None and OBJECT in seen and STRING not in seen and self._member.match(text, at)):
            return self.members(text, at, objects)
        return None

    def _scalar(self, raw: str, kind: str | None, schema: RawSchema) -> Any:
        seen = types_seen(schema)
        if kind is not None and not self.style.by_schema:
            return raw if kind == STRING else json.loads(raw)
        if kind == STRING and seen <= {STRING}:
            return raw
        if self._lines:
            raw = raw.removeprefix("\n").removesuffix("\n")
        word = raw.strip()
        if NULL in seen and word.lower() == "null":
            return None
        if (seen & {"integer", "number"} and _INTEGER.fullmatch(word)) or (
            "number" in seen and _is_number(word)
        ) or (BOOLEAN in seen and word in ("true", "false")):  # fmt: skip
            return json.loads(word)
        if (kind not in (None, STRING) or seen & {OBJECT, ARRAY}) and (value := _loaded(word)) is not None:
            return value[0]
        if self.style.is_named and STRING not in seen and not word:
            return [] if ARRAY in seen else {}
        return raw


def _behind_line(text: str, at: int) -> int:
    return at + text.startswith("\n", at)


def _is_number(word: str) -> bool:
    found = _loaded(word)
    return found is not None and isinstance(found[0], (int, float)) and not isinstance(found[0], bool)


def _loaded(word: str) -> tuple[Any] | None:
    """Return the value of JSON text in a tuple, None if it is none."""
    try:
        return (json.loads(word),)
    except ValueError:
        return None
