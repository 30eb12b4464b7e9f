"""Schemas with instances that are known to be valid or not: a few of its own, or those of a file."""

from __future__ import annotations

import collections
import gzip
import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def case_of(group: str, name: str, schema: Any, valid: list[Any], invalid: list[Any]) -> Record:
    tests = [{"valid": True, "data": data} for data in valid] + [{"valid": False, "data": data} for data in invalid]
    return {"id": name, "group": group, "schema": schema, "tests": tests}


_STRING, _INTEGER, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_SKU = {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"}


def _object(properties: Any, required: list[str], closed: bool = False) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {**schema, "additionalProperties": False} if closed else schema


CASES = [
    case_of(
        "records", "order",
        {
            "$defs": {
                "customer": _object(
                    {"name": {"type": "string", "minLength": 1}, "email": {"type": "string", "format": "email"}},
                    ["name"],
                ),
                "line": _object({"sku": _SKU, "count": _INTEGER}, ["sku", "count"], True),
            },
            **_object(
                {
                    "id": {"type": "integer", "minimum": 1},
                    "customer": {"$ref": "#/$defs/customer"},
                    "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1},
                },
                ["id", "lines"],
                True,
            ),
        },
        [
            {"id": 7, "customer": {"name": "Ada", "email": "ada@example.com"}, "lines": [{"sku": "ABC-1", "count": 2}]},
            {"id": 8, "lines": [{"sku": "XYZ-42", "count": 1}, {"sku": "ABC-7", "count": 30}]},
        ],
        [
            {"id": 0, "lines": [{"sku": "ABC-1", "count": 2}]},
            {"id": 7, "lines": []},
            {"id": 7, "lines": [{"sku": "abc", "count": 2}]},
            {"id": 7, "customer": {"name": ""}, "lines": [{"sku": "ABC-1", "count": 2}]},
            {"id": 7, "lines": [{"sku": "ABC-1", "count": 2}], "note": "x"},
        ],
    ),
    case_of(
        "records", "settings",
        {
            "type": "object",
            "properties": {"level": {"enum": ["debug", "info", "error"]}, "port": {"type": "integer", "maximum": 9999}},
            "patternProperties": {"^x-": _STRING},
            "additionalProperties": {"type": "boolean"},
        },
        [{"level": "info", "port": 8080, "x-a": "1", "verbose": True}, {}],
        [{"level": "warn"}, {"port": 10000}, {"x-a": 1}, {"verbose": "yes"}, []],
    ),
    case_of(
        "recursion", "tree",
        _object({"value": _NUMBER, "children": {"type": "array", "items": {"$ref": "#"}}}, ["value"], True),
        [{"value": 1, "children": [{"value": 2.5, "children": []}, {"value": -300.0}]}],
        [{"value": 1, "children": [{"children": []}]}, {"value": 1, "children": {}}, {"children": []}],
    ),
    case_of("recursion", "any JSON", True, [[{"a": [None, True, "x", {"b": [[]]}]}], "\u03c0\n", -0.25], []),
    case_of(
        "logic", "shape",
        {
            "type": "object",
            "oneOf": [
                {"properties": {"kind": {"const": "circle"}, "radius": _NUMBER}, "required": ["kind", "radius"]},
                {"properties": {"kind": {"const": "square"}, "side": _NUMBER}, "required": ["kind", "side"]},
            ],
        },
        [{"kind": "circle", "radius": 2}, {"kind": "square", "side": 1.5}],
        [{"kind": "circle", "side": 2}, {"kind": "oval", "radius": 1}],
    ),
    case_of(
        "logic", "card or cash",
        {
            **_object({"method": {"enum": ["card", "cash"]}, "number": _STRING}, ["method"]),
            "if": {"properties": {"method": {"const": "card"}}},
            "then": {"required": ["number"]},
            "else": {"not": {"required": ["number"]}},
        },
        [{"method": "card", "number": "4111"}, {"method": "cash"}],
        [{"method": "card"}, {"method": "cash", "number": "4111"}],
    ),
    case_of(
        "logic", "one or two sevens",
        {"type": "array", "items": _INTEGER, "contains": {"multipleOf": 7}, "maxContains": 2},
        [[1, 7, 14], [21]],
        [[], [1, 2], [7, 7, 7]],
    ),
    case_of(
        "scalars", "temperature",
        {"type": "number", "exclusiveMinimum": -273.25, "multipleOf": 0.25},
        [21.5, 0, -273],
        [-273.25, -274, 0.1, "21.5"],
    ),
    case_of(
        "scalars", "when",
        {"type": "string", "format": "date"},
        ["2024-02-29", "1999-12-31"],
        ["2023-02-29", "2024-04-31", "2024-1-1", ""],
    ),
    case_of(
        "scalars", "short text",
        {"type": "string", "minLength": 2, "maxLength": 12},
        ["gr\u00f6\u00dfe", "\u65e5\u672c\u8a9e", 'a "b"'],
        ["a", "a little too long"],
    ),
]  # fmt: skip


def read(path: Path) -> Iterator[Record]:
    """Yield the cases of a file of JSON lines, perhaps compressed."""
    opened: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def limited(cases: Iterable[Record], most: int | None) -> list[Record]:
    """Return the first cases of each group."""
    seen: collections.Counter[str] = collections.Counter()
    out = []
    for case in cases:
        seen[case["group"]] += 1
        if most is None or seen[case["group"]] <= most:
            out.append(case)
    return out
