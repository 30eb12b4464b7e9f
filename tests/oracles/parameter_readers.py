"""What readers of serving engines make of the text of one call, by its family: written anew from what they do."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import jsonschema

from tests.strategies.styled_calls import DSML, FAMILIES, M3

_PARAMETER = {
    "qwen_xml": r"<\s*parameter\s*=\s*([^>]*)>(.*?)(?:<\s*/\s*parameter\s*>|(?=<\s*parameter\s*=))",
    "minimax_xml": r'<parameter\s+name\s*=\s*"([^"]*)"\s*>(.*?)(?:<\s*/\s*parameter\s*>|(?=<\s*parameter\s+name\s*=))',
    "glm_xml": r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>",
}
_PARAMETER["mimo"] = _PARAMETER["qwen_xml"]
_TYPED = {
    "deepseek_xml": rf'<{DSML}parameter\s+name="([^"]+)"\s+string="([^"]*)"\s*>(.*?)</{DSML}parameter>',
    "deepseek_v4_1_xml": rf'<{DSML} parameter\s+name="([^"]+)"\s+string="([^"]*)"\s*>(.*?)</{DSML} parameter>',
    "kimi_k3_xml": r'<\|open\|>argument key="([^"]*)" type="([^"]*)"<\|sep\|>(.*?)<\|close\|>argument<\|sep\|>',
}


def fits(schema: Any, arguments: Any) -> bool:
    """Return whether arguments fit the schema of the parameters, infinite numbers aside, which JSON may write."""
    return bool(jsonschema.Draft202012Validator(schema).is_valid(arguments))


def read(family: str, schema: dict[str, Any], text: str) -> Any:
    """Return the arguments of the first call in a text, None if there is none that can be read."""
    try:
        return _read(family, schema, text)
    except ValueError:
        return None


def _read(family: str, schema: dict[str, Any], text: str) -> Any:
    style, _, begin, end, _ = FAMILIES[family]
    begin = begin.replace("NAME", "f")
    at = text.find(begin)
    stop = text.find(end.strip(), at)
    if at < 0 or stop < 0:
        return None
    inside = text[at + len(begin) : stop]
    properties = schema.get("properties", {})
    if style == "minimax_m3_xml":
        return _object(_children(inside)[0], properties)
    if style == "cohere_xml":
        return dict(_values(inside, 0)[0])
    if style in _TYPED:
        found = re.findall(_TYPED[style], inside, re.DOTALL)
        return {
            name: coerced(raw if kind in ("true", "string") else _loaded(raw), properties.get(name), style)
            for name, kind, raw in found
        }
    cut = style == "qwen_xml"
    return {
        name: by_types(_trimmed(raw) if cut else raw, properties.get(name))
        for name, raw in re.findall(_PARAMETER[style], inside, re.DOTALL)
    }


def _trimmed(raw: str) -> str:
    raw = raw.removeprefix("\n")
    return raw.removesuffix("\n")


def _loaded(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def types_of(schema: Any) -> set[str]:
    """Return the types that a reader finds in a schema."""
    if not isinstance(schema, dict):
        return {"string"}
    given = schema.get("type", [])
    found = {given} if isinstance(given, str) else set(given)
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    found |= {names.get(type(each), "null") for each in schema.get("enum", [])}
    for word in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(word, []):
            found |= types_of(each)
    return found or {"string"}


def by_types(raw: str, schema: Any) -> Any:
    """Return the value of a text, by the types of its schema, the narrowest first."""
    types = types_of(schema)
    if "null" in types and raw.lower() == "null":
        return None
    for kind, make in (("integer", int), ("number", float)):
        if kind in types:
            try:
                value = make(raw)
            except ValueError:
                continue
            if math.isfinite(value):
                return int(value) if value == int(value) else value
    if "boolean" in types and (word := raw.lower().strip()) in ("true", "1", "false", "0"):
        return word in ("true", "1")
    if types & {"object", "array"}:
        value = _loaded(raw)
        if value is not raw:
            return value
    return raw if "string" in types else _loaded(raw)


def coerced(value: Any, schema: Any, style: str) -> Any:
    """Return a value of a typed text as a reader has it that looks at the schema as well."""
    if style == "kimi_k3_xml" or isinstance(value, (dict, list)):
        return value
    return by_types(value if isinstance(value, str) else json.dumps(value), schema)


def _children(text: str, at: int = 0) -> tuple[list[tuple[str, Any]], int, str]:
    """Return the elements from a place on, where they end, and the text between them."""
    found, between = [], ""
    while True:
        mark = text.find(M3, at)
        if mark < 0 or text.startswith(f"{M3}</", mark):
            return found, mark, between + (text[at:mark] if mark >= 0 else text[at:])
        between += text[at:mark]
        stop = text.index(">", mark + len(M3))
        name = text[mark + len(M3) + 1 : stop]
        inner, end, raw = _children(text, stop + 1)
        found.append((name, inner or raw))
        close = f"{M3}</{name}>"
        if not text.startswith(close, end):
            raise ValueError(f"{close} is missing")
        at = end + len(close)


def _object(elements: list[tuple[str, Any]], properties: dict[str, Any]) -> dict[str, Any]:
    return {name: _element(value, properties.get(name)) for name, value in elements}


def _element(value: Any, schema: Any) -> Any:
    types = types_of(schema)
    if isinstance(value, str):
        if types & {"array", "object"} and "string" not in types and not value.strip():
            return [] if "array" in types else {}
        return by_types(value, schema)
    if "array" in types:
        return [_element(child, schema.get("items")) for _, child in value]
    return _object(value, schema.get("properties", {}) if isinstance(schema, dict) else {})


def _values(text: str, at: int) -> tuple[list[tuple[str, Any]], int]:
    """Return the values of Cohere's style from a place on, with their names, and where they end."""
    found: list[tuple[str, Any]] = []
    while match := re.compile(r'\s*<cofl:value(?: name="([^"]*)")? type="(raw|json|dict|list)">').match(text, at):
        name, kind = match.group(1) or "", match.group(2)
        if kind in ("dict", "list"):
            inner, at = _values(text, match.end())
            at += len(text[at:]) - len(text[at:].lstrip())
            value: Any = dict(inner) if kind == "dict" else [each for _, each in inner]
        else:
            at = text.index("</cofl:value>", match.end())
            raw = text[match.end() : at]
            value = raw if kind == "raw" else json.loads(raw)
        found.append((name, value))
        if not text.startswith("</cofl:value>", at):
            raise ValueError("an end is missing")
        at += len("</cofl:value>")
    return found, at
