"""Keywords that are left out only ever let more values in, wherever they stand; the jsonschema package is the judge."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.compile.json_schema.approximations import ALLOWED, Approximations
from maskwright.compile.json_schema.keywords import formula

VOCABULARY = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
FORMATS = jsonschema.FormatChecker(formats=())


@FORMATS.checks("idn-hostname")
def _is_host(value: object) -> bool:
    """The set of strings of the format, which may be any here, as the table knows nothing of it."""
    return value not in ("b", "")


@pytest.fixture(autouse=True, scope="module")
def _without_idna() -> Iterator[None]:
    """Without the library, the format is not enforced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "idna", None)
        yield


def compiled(schema: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mw.errors.UnenforcedWarning)
        return mw.compile_json_schema(schema, VOCABULARY, allow="all")


def fits(schema: Any, value: Any) -> bool:
    return jsonschema.Draft202012Validator(schema, format_checker=FORMATS).is_valid(value)  # type: ignore[no-any-return]


def orders(value: Any) -> Iterator[Any]:
    """Yield a value with its members in each order, as schemas have one for them."""
    if isinstance(value, list):
        yield from map(list, itertools.product(*map(list, map(orders, value))))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for members in itertools.product(*(list(orders(value[key])) for key in keys)):
                yield dict(zip(keys, members, strict=True))
    else:
        yield value


def takes(table: Any, value: Any) -> bool:
    return any(table.accepts(VOCABULARY.encode(json.dumps(each))) for each in orders(value))


LOOSE: list[Any] = [
    {"uniqueItems": True},
    {"type": "array", "uniqueItems": True, "maxItems": 2},
    {"format": "idn-hostname"},
    {"minProperties": 2},
    {"maxProperties": 1},
    {"type": "object", "minProperties": 2, "required": ["a"]},
]
TIGHT: list[Any] = [
    {"type": ["array", "string"]}, {"minItems": 2}, {"maxItems": 1}, {"const": [1, 1]}, {"enum": ["b", [1], 1]},
    {"type": "object"}, {"required": ["a"]}, {"items": {"type": "integer"}},
    {"additionalProperties": {"type": "integer"}}, True, False,
]  # fmt: skip


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(lambda part: {"not": part}, inner),
        st.builds(lambda parts: {"oneOf": parts}, some),
        st.builds(lambda parts: {"anyOf": parts}, some),
        st.builds(lambda parts: {"allOf": parts}, some),
        st.builds(lambda a, b, c: {"if": a, "then": b, "else": c}, inner, inner, inner),
        st.builds(lambda part: {"dependentSchemas": {"a": part}}, inner),
        st.builds(lambda part: {"items": part}, inner),
        st.builds(lambda part, tail: {"prefixItems": [part], "items": tail}, inner, inner),
        st.builds(lambda part: {"properties": {"a": part}}, inner),
        st.builds(lambda part: {"propertyNames": part}, inner),
        st.builds(lambda part, low, high: {"contains": part, "minContains": low, "maxContains": low + high},
                  inner, st.integers(0, 1), st.integers(0, 1)),
    )  # fmt: skip


def beside(schemas: list[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(st.sampled_from(schemas), around, max_leaves=4)


VALUES: list[Any] = [
    1, None, "a", "b", "", [], [1], [1, 1], [1, 2], ["b"], ["a", "b"], [[1, 1]], [[1], [1, 1]], [[1, 1], [2, 2]],
    [{"a": 1, "b": 2}], {}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"b": "a", "c": 1}, {"a": [1, 1]}, {"a": "b"},
    {"a": [1, 2], "b": [1, 1]}, {"a": {"b": 1, "c": 2}}, {"a": {"b": 1}},
]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(beside(LOOSE + TIGHT))
def test_each_value_that_fits_can_be_written_wherever_keywords_are_left_out(schema: Any) -> None:
    fitting = [value for value in VALUES if fits(schema, value)]
    if not fitting:
        schema = {"anyOf": [schema, {"const": 0}]}  # no table is made of a schema that plainly no value fits
    table = compiled(schema)
    assert [value for value in fitting if not takes(table, value)] == []


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(beside(TIGHT))
def test_a_schema_of_which_all_is_enforced_has_the_same_formula_whatever_is_allowed(schema: Any) -> None:
    allowing = Approximations(ALLOWED)
    assert formula(schema, approximations=allowing) is formula(schema)
    assert allowing.found == ()


ITEM = {"$defs": {"set": {"uniqueItems": True}}}
ROWS: list[tuple[Any, list[Any], list[Any]]] = [
    ({"not": {"uniqueItems": True}}, [[1, 1], [1, 2]], [1, "a", {}]),
    ({"not": {"uniqueItems": True, "minItems": 2}}, [[1], [1, 1], [1, 2]], [1]),
    ({"not": {"not": {"type": "array", "uniqueItems": True}}}, [[1, 1], [1]], [1]),
    ({"type": "array", "not": {"type": "array", "uniqueItems": True, "maxItems": 1}}, [[1, 1]], [1]),
    ({"not": {"items": {"uniqueItems": True}}}, [[[1], [1, 1]], [[1, 2]]], [[1], [], 1]),
    ({"not": {"items": {"$ref": "#/$defs/set"}}, **ITEM}, [[[1], [1, 1]], [[1, 2]]], [[1], [], 1]),
    ({"not": {"properties": {"a": {"format": "idn-hostname"}}}}, [{"a": "b"}, {"a": "a"}], [{"a": 1}, {}]),
    ({"not": {"propertyNames": {"format": "idn-hostname"}}}, [{"b": 1}, {"a": 1}], [{}, 1]),
    ({"oneOf": [{"type": "array", "uniqueItems": True}, {"type": "array"}]}, [[1, 1], [1, 2]], [1]),
    ({"oneOf": [{"uniqueItems": True}, {"uniqueItems": True}, {"type": "array", "minItems": 3}]},
     [[1, 1, 1], [1, 2, 3]], [[1, 2], [1, 1], 1]),
    ({"if": {"uniqueItems": True}, "then": {"maxItems": 2}, "else": {"minItems": 3}},
     [[1, 2], [1, 1], [1, 1, 1], [1, 2, 3], 1], []),
    ({"type": "array", "if": {"uniqueItems": True}, "then": False}, [[1, 1], [1]], [1]),
    ({"type": "array", "contains": {"type": "array", "uniqueItems": True}, "maxContains": 1},
     [[[1]], [[1, 1], [1]], [[1], [2]]], [[1], []]),
    ({"type": "array", "contains": {"$ref": "#/$defs/set"}, "maxContains": 1, **ITEM},
     [[1], [1, [1, 1]], [[1], [2]]], [[], [1, 2]]),
    ({"type": "array", "not": {"contains": {"uniqueItems": True}}}, [[], [[1, 1]], [[1]]], [[1], ["a", [1]]]),
    ({"unevaluatedItems": False, "anyOf": [{"prefixItems": [True], "uniqueItems": True},
                                            {"prefixItems": [True, True]}]},
     [[1], [1, 1]], [[1, 2, 3]]),
    ({"not": {"type": "object", "minProperties": 2}}, [{}, {"a": 1}, 1], [{"a": 1, "b": 2}]),
    ({"not": {"maxProperties": 1}}, [{"a": 1, "b": 2}], [{"a": 1}, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "accepted", "rejected"), ROWS)
def test_rows(schema: Any, accepted: list[Any], rejected: list[Any]) -> None:
    table = compiled(schema)
    assert [value for value in accepted if not takes(table, value)] == []
    assert [value for value in rejected if takes(table, value)] == []


def test_recursion_under_a_negation_ends() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"not": {"items": {"$ref": "#/$defs/a"}, "uniqueItems": True}}}}
    table = compiled(schema)
    assert takes(table, [1, 1])
    assert takes(table, [[1, 1], [2]])
    assert not takes(table, 1)
    assert [each.pointer for each in table.unenforced] == ["/$defs/a/not/uniqueItems"]
