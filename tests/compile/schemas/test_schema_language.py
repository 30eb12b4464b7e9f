"""The language of a schema's rules is that of the table of `compile_json_schema`, byte by byte."""

from __future__ import annotations

import json
from itertools import islice, permutations
from typing import Any

import jsonschema
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.compile.schemas.both_readers import Outcome
from tests.strategies import odd_schemas, random_schemas

GENERATE = (Phase.explicit, Phase.generate)  # to make an example smaller compiles thousands of tables
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"ascii": True},
    {"whitespace": "compact"},
    {"whitespace": "spaced"},
    {"whitespace": (" , ", ":\n")},
    {"any_order": True},
]


def texts_of(value: Any, options: dict[str, Any]) -> list[str]:
    """Return a value in the form of a layout, with its members in some orders."""
    whitespace = options.get("whitespace", "flexible")
    comma, colon = {"flexible": (", ", ": "), "spaced": (", ", ": "), "compact": (",", ":")}.get(whitespace, whitespace)
    orders = list(islice(odd_schemas.orders(value), 4))
    ascii = options.get("ascii", False)
    texts = [odd_schemas.dumps(each, ascii, comma, colon) for each in orders]
    if whitespace == "flexible":
        texts += [odd_schemas.dumps(orders[0], ascii, ",", ":"), odd_schemas.dumps(orders[0], ascii, "", ": ", "  ")]
    return texts


def compare(schema: Any, values: list[Any], options: dict[str, Any]) -> None:
    """Assert that both readers agree on a schema, on values, and on texts drawn by chance."""
    outcome = Outcome(schema, **options)
    assert outcome.agrees_on_refusal, (schema, options, outcome.refusals)
    if outcome.is_comparable:
        texts = [text for value in values for text in texts_of(value, options)]
        found = outcome.difference_on(texts, walks=3)
        assert found is None, found


@settings(max_examples=120, phases=GENERATE)
@given(st.data())
def test_random_schemas_of_all_keywords(data: st.DataObject) -> None:
    draft = data.draw(st.sampled_from(sorted(random_schemas.DRAFTS)))
    schema = data.draw(random_schemas.schemas(draft))
    values = data.draw(st.lists(random_schemas.values, min_size=2, max_size=4))
    compare(schema, values, data.draw(st.sampled_from(LAYOUTS)))


@settings(max_examples=120, phases=GENERATE)
@given(odd_schemas.schemas, st.lists(odd_schemas.values, min_size=2, max_size=4), st.sampled_from(LAYOUTS))
def test_random_schemas_with_odd_keys_and_texts(schema: Any, values: list[Any], options: dict[str, Any]) -> None:
    compare(schema, values, options)


@pytest.mark.parametrize("draft", [2020])
@settings(max_examples=60, phases=GENERATE)
@given(st.data())
def test_texts_are_right_as_jsonschema_has_it(draft: int, data: st.DataObject) -> None:
    schema = data.draw(random_schemas.schemas(draft, only=frozenset({
        "type", "enum", "const", "minimum", "maximum", "multipleOf", "minLength", "pattern", "properties", "required",
        "items", "prefixItems", "minItems", "maxItems", "contains", "anyOf", "oneOf", "allOf", "not", "if", "then",
        "else", "$ref", "additionalProperties", "dependentRequired", "unevaluatedProperties", "unevaluatedItems",
    })))  # fmt: skip
    outcome = Outcome(schema)
    validator = jsonschema.Draft202012Validator(schema)
    if outcome.reader is None:
        return
    for value in data.draw(st.lists(random_schemas.values, min_size=3, max_size=6)):
        texts = [json.dumps(each) for each in islice(odd_schemas.orders(value), 50)]
        valid = validator.is_valid(value)
        assert any(map(outcome.reader.reads, texts)) == valid, (schema, value)


@pytest.mark.parametrize("options", [{}, {"any_order": True}])
@pytest.mark.parametrize("schema", [
    {"patternProperties": {"^[ab]$": {"type": "integer"}}, "additionalProperties": False, "minProperties": 2},
    {"propertyNames": {"pattern": "^[ab]c?$"}, "minProperties": 3},
    {"propertyNames": {"pattern": "^[ab]c?$"}, "maxProperties": 1, "properties": {"c": {"const": 1}}},
    {"propertyNames": {"pattern": "^[^\\W\\d_]$", "maxLength": 1}, "minProperties": 3, "maxProperties": 3},
    {"properties": {"a": True}, "patternProperties": {"^b[ac]$": {"minimum": 1}}, "additionalProperties": False,
     "not": {"maxProperties": 2}},
])  # fmt: skip
def test_keys_of_a_few_that_patterns_allow_are_counted(schema: Any, options: dict[str, Any]) -> None:
    keys = ["a", "b", "ac", "ba", "bc", "c"]
    values = [dict.fromkeys(some, 1) for n in range(4) for some in permutations(keys, n)]
    outcome = Outcome({"type": "object", **schema}, **options)
    assert outcome.is_comparable
    found = outcome.difference_on([json.dumps(value) for value in values], walks=20)
    assert found is None, found


@pytest.mark.parametrize("options", [{}, {"any_order": True}])
@pytest.mark.parametrize(
    "counts", [{"minProperties": 1, "maxProperties": 3}, {"minProperties": 1}, {"maxProperties": 1}]
)
def test_keys_of_a_pattern_that_asks_nothing_are_undeclared(counts: Any, options: dict[str, Any]) -> None:
    patterns = {"^$": True, "^b$": {}, "^a": {"type": "null"}}
    outcome = Outcome({"type": "object", "patternProperties": patterns, **counts}, **options)
    assert outcome.is_comparable
    texts = [
        '{"x":1,"":2}',
        '{"":2,"":1}',
        '{"b":1,"x":2,"":3}',
        '{"b":1,"b":2}',
        '{"a":null,"":1}',
        '{"x":1,"a":null}',
    ]
    found = outcome.difference_on(texts, walks=20)
    assert found is None, found


COUNTED = {"type": "object", "minProperties": 2}
NO_NAMES = {"propertyNames": {"pattern": "^$"}}


@pytest.mark.parametrize("options", [{}, {"any_order": True}])
@pytest.mark.parametrize("schema", [
    {"properties": {"a": COUNTED}, **NO_NAMES},
    {"patternProperties": {"^a": COUNTED}, **NO_NAMES},
    {"properties": {"": True}, "additionalProperties": COUNTED, **NO_NAMES},
    {"patternProperties": {"^$": True}, "additionalProperties": COUNTED, **NO_NAMES},
    {"anyOf": [{"properties": {"a": COUNTED}, **NO_NAMES}, {"required": ["c"], "properties": {"a": False}}]},
    {"oneOf": [{"properties": {"a": COUNTED}, **NO_NAMES}, {"required": ["c"], "properties": {"a": False}}]},
    {"allOf": [{"properties": {"a": COUNTED}}, {"properties": {"a": {"type": "string"}}}]},
    {"allOf": [{"properties": {"a": COUNTED}}, {"properties": {"b": True}, "additionalProperties": False}]},
    {"properties": {"a": {"type": "array", "items": COUNTED}}, **NO_NAMES},
    {"if": {"properties": {"k": {"const": 1}}}, "then": {"properties": {"a": COUNTED}},
     "propertyNames": {"enum": ["k", "b"]}},
    {"additionalProperties": False, "allOf": [{"patternProperties": {"^a": COUNTED}, "additionalProperties": COUNTED}]},
    {"patternProperties": {"^a": False}, "allOf": [{"patternProperties": {"^ab": COUNTED}}]},
    {"properties": {"a": COUNTED}, "maxProperties": 0},
    {"required": [""], "maxProperties": 1, "if": {"maxProperties": 3}, "else": {"minProperties": 2}},
])  # fmt: skip
def test_values_of_members_that_cannot_come_are_not_counted(schema: Any, options: dict[str, Any]) -> None:
    outcome = Outcome({"type": "object", **schema}, **options)
    assert outcome.is_comparable, outcome.refusals
    found = outcome.difference_on(['{"": 1, "a": {}}', '{"c": 1, "": 2}', '{"k": 1, "b": {"x": 1}}'], walks=10)
    assert found is None, found


@pytest.mark.parametrize("schema", [
    {"properties": {"a": COUNTED}}, {"patternProperties": {"^a": COUNTED}}, {"additionalProperties": COUNTED},
    {"patternProperties": {"^a": COUNTED}, "propertyNames": {"enum": ["b", "ab"]}},
    {"properties": {"b": COUNTED}, "patternProperties": {"^a": True}, "additionalProperties": False},
    {"not": {"properties": {"a": {"type": "object", "maxProperties": 1}}}},
    {"anyOf": [{"properties": {"a": COUNTED}}, NO_NAMES]},
])  # fmt: skip
def test_values_of_members_that_may_come_are_counted(schema: Any) -> None:
    outcome = Outcome({"type": "object", **schema})
    assert outcome.table.unique is not None  # a matcher remembers the keys
    assert getattr(outcome.refusals[1], "keyword", "") in ("minProperties", "maxProperties")


@pytest.mark.parametrize("schema", [
    {"anyOf": [{"type": "object", "required": ["b"]}, {"type": "object", "properties": {"a": True}}]},
    {"oneOf": [{"type": "object", "required": ["b"]}, {"properties": {"a": {"type": "null"}}}]},
    {"type": "object", "anyOf": [{"anyOf": [{"type": "null"}, {"type": "object", "required": ["b", "c"]}]},
                                 {"properties": {"a": True, "c": True}}]},
])  # fmt: skip
def test_keys_come_in_the_same_order(schema: Any) -> None:
    outcome = Outcome(schema)
    assert outcome.is_comparable
    found = outcome.difference_on(['{"a":1,"b":1,"c":1}', '{"b":1,"a":1}', '{"a":1,"c":1,"b":1}'], walks=20)
    assert found is None, found
