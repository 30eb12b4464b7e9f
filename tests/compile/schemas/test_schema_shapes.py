"""Schemas whose states explode when all are made ahead: right, and soon, when they are made as texts reach them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from maskwright.automata.formulas import uncollected
from tests.compile.schemas.both_readers import Outcome, rules_of
from tests.compile.schemas.byte_reader import ByteReader

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


SHAPES: list[Shape] = [
    kinds_by_pattern,
    kinds_by_range,
    kinds_by_length,
    kind_last,
    if_by_pattern,
    if_by_field,
    dependent_required,
    arrays_by_item,
    several_contains,
    patterns_of_keys,
    overlapping_ranges,
]


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_four_parts_are_read_as_a_table_reads_them(shape: Shape, any_order: bool) -> None:
    schema, right, wrong = shape(4)
    outcome = Outcome(schema, any_order=any_order)
    assert outcome.agrees_on_refusal, outcome.refusals
    if outcome.is_comparable:
        found = outcome.difference_on([json.dumps(right), json.dumps(wrong)], walks=6)
        assert found is None, found


@pytest.mark.parametrize("shape", SHAPES)
def test_many_parts_are_read_soon(shape: Shape) -> None:
    """Processor seconds in plain Python: the first mask within 0.25, and two whole texts, a mask a byte, within one."""
    schema, right, wrong = shape(64)
    rules_of(shape(3)[0])  # what all schemas share
    with uncollected():  # as when schemas are compiled: other tests may have filled the process
        first, whole = seconds_of(schema, right, wrong)
    assert first < 2 * 0.25  # the machine may be busy
    assert whole < 2 * 1.0


def seconds_of(schema: Any, right: Any, wrong: Any) -> tuple[float, float]:
    """Return the processor seconds of the first mask, and of two texts with a mask a byte."""
    began = time.process_time()
    reader = ByteReader(rules_of(schema))
    assert reader.mask(reader.start)
    first = time.process_time() - began
    began = time.process_time()
    for value, fits in ((right, True), (wrong, False)):
        place: Any = reader.start
        for byte in json.dumps(value).encode():
            if byte not in reader.mask(place):
                place = None
                break
            place = reader.step(place, byte)
        assert (place is not None and reader.accepts(place)) == fits
    return first, time.process_time() - began
