"""Schemas of n parts in shapes that schemas in use have, with a text that they accept and one that they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Shape = Callable[[int], tuple[Any, Any, Any]]
"""A schema of n parts, a value that fits it, and one that does not."""


def _object(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def _strings(names: list[str]) -> dict[str, Any]:
    return {name: {"type": "string"} for name in names}


def kinds_by_pattern(n: int) -> tuple[Any, Any, Any]:
    kinds = [
        _object(
            required=["type", "value"],
            additionalProperties=False,
            properties={
                "type": {"type": "string", "pattern": f"^kind{i}:(x:)?$"},
                "value": _object(required=[f"f{i}"], properties=_strings([f"f{i}"])),
            },
        )
        for i in range(n)
    ]
    return {"oneOf": kinds}, {"type": "kind2:", "value": {"f2": "x"}}, {"type": "kind2:", "value": {"f3": "x"}}


def kinds_by_range(n: int) -> tuple[Any, Any, Any]:
    kinds = [
        _object(
            properties={
                "k": {"type": "integer", "minimum": 10 * i, "maximum": 10 * i + 9},
                "v": {"type": "string", "maxLength": i + 1},
            },
            required=["k", "v"],
        )
        for i in range(n)
    ]
    return {"oneOf": kinds}, {"k": 25, "v": "abc"}, {"k": 25, "v": "abcd"}


def kinds_by_length(n: int) -> tuple[Any, Any, Any]:
    kinds = [
        _object(
            properties={"k": {"type": "string", "minLength": i, "maxLength": i + 5}, "v": {"const": i}},
            required=["k", "v"],
        )
        for i in range(n)
    ]
    return {"anyOf": kinds}, {"k": "xxx", "v": 1}, {"k": "", "v": 1}


def kind_last(n: int) -> tuple[Any, Any, Any]:
    kinds = [
        _object(
            properties={
                "a": {"type": "integer", "maximum": 10 * i + 9},
                "b": {"type": "string", "maxLength": i + 2},
                "kind": {"const": f"k{i}"},
            },
            required=["kind"],
        )
        for i in range(n)
    ]
    return {"oneOf": kinds}, {"a": 5, "b": "xx", "kind": "k3"}, {"a": 50, "b": "xx", "kind": "k3"}


def if_by_pattern(n: int) -> tuple[Any, Any, Any]:
    rules = [{"if": {"properties": {"k": {"pattern": f"^k{i}"}}}, "then": {"required": [f"p{i}"]}} for i in range(n)]
    properties = {"k": {"type": "string"}, **_strings([f"p{i}" for i in range(n)])}
    schema = _object(properties=properties, required=["k"], allOf=rules)
    return schema, {"k": "k3", "p1": "x", "p3": "y"}, {"k": "k3", "p1": "x"}


def if_by_field(n: int) -> tuple[Any, Any, Any]:
    rules = [
        {"if": {"properties": {f"f{i}": {"const": True}}, "required": [f"f{i}"]}, "then": {"required": [f"p{i}"]}}
        for i in range(n)
    ]
    properties = {**{f"f{i}": {"type": "boolean"} for i in range(n)}, **_strings([f"p{i}" for i in range(n)])}
    schema = _object(properties=properties, allOf=rules)
    return schema, {"f1": True, "f3": False, "p1": "x"}, {"f1": True, "p2": "x"}


def dependent_required(n: int) -> tuple[Any, Any, Any]:
    properties = _strings([f"a{i}" for i in range(n)] + [f"b{i}" for i in range(n)])
    schema = _object(properties=properties, dependentRequired={f"a{i}": [f"b{i}"] for i in range(n)})
    return schema, {"a1": "x", "a3": "y", "b1": "x", "b3": "z"}, {"a1": "x", "b2": "y"}


def arrays_by_item(n: int) -> tuple[Any, Any, Any]:
    kinds = [
        {"type": "array", "items": {"type": "string", "pattern": f"^a{i}(?:x|$)"}, "minItems": 1} for i in range(n)
    ]
    return {"oneOf": kinds}, ["a2", "a2x"], ["a2", "a1"]


def several_contains(n: int) -> tuple[Any, Any, Any]:
    schema = {"type": "array", "allOf": [{"contains": {"const": i}} for i in range(n)]}
    return schema, list(range(n)), list(range(n - 1))


def patterns_of_keys(n: int) -> tuple[Any, Any, Any]:
    patterns = {f"x{i}_": {"type": "string", "maxLength": i + 1} for i in range(n)}
    schema = _object(patternProperties=patterns, additionalProperties=False)
    return schema, {"x2_a": "abc"}, {"x2_a": "abcd"}


def overlapping_ranges(n: int) -> tuple[Any, Any, Any]:
    value = {"oneOf": [{"type": "integer", "minimum": 7 * i, "maximum": 7 * i + 20} for i in range(n)]}
    return _object(properties={"v": value}), {"v": 3}, {"v": 14}
