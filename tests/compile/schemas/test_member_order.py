"""The order of members: declared keys come in the schema's order, all others anywhere between them."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import jsonschema
import pytest

import maskwright as mw
from tests.compile.schemas.both_readers import VOCABULARY, Outcome

INT, OPEN = {"type": "integer"}, {"type": "object"}
ONE = {"properties": {"t": {"const": "a"}, "x": INT, "y": INT}, "required": ["t"]}
TWO = {"properties": {"t": {"const": "b"}, "z": INT, "w": INT}, "required": ["t"]}
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {**OPEN, "properties": {"a": INT, "b": INT}, "required": ["b"]},
        ['{"x": 1, "a": 1, "y": 2, "b": 3, "z": 1}', '{"x": 1, "x": "s", "b": 1}', '{"b": 1, "": 1}'],
        ['{"b": 1, "a": 1}', '{"a": 1, "x": 1}', '{"a": 1, "x": 1, "a": 2, "b": 1}', '{"x": 1, "a": "s", "b": 1}'],
    ),
    (
        {
            "properties": {"a": INT, "x1": {"maximum": 5}}, "patternProperties": {"^x": INT},
            "additionalProperties": False,
        },
        ['{"x3": 1, "a": 1, "x2": 2, "x1": 3, "x0": 3}', '{"x0": 7}'],
        ['{"x1": 1, "a": 1}', '{"x3": "s", "a": 1}', '{"a": 1, "z": 1}', '{"x2": 1, "a": 1, "x1": 6}'],
    ),
    (
        {
            **OPEN, "$defs": {"b": {"properties": {"b": INT}}},
            "allOf": [{"properties": {"a": INT}}, {"$ref": "#/$defs/b"}],
        },
        ['{"x": 1, "a": 1, "y": 1, "b": 1, "z": 1}'],
        ['{"b": 1, "x": 1, "a": 1}'],
    ),
    (
        {**OPEN, "anyOf": [ONE, TWO]},
        [
            '{"u": 1, "t": "b", "x": "s", "z": 1, "y": "t", "w": 1}', '{"t": "b", "z": 1, "w": 2, "y": 1, "x": 1}',
            '{"t": "a", "w": 1, "x": 1, "z": "s", "y": 1}',
        ],
        ['{"t": "b", "w": 1, "z": 1}', '{"t": "a", "y": 1, "x": 1}', '{"t": "b", "z": "s"}'],
    ),
    (
        {**OPEN, "anyOf": [{"properties": {"a": INT, "b": INT}, "required": ["b"]}, {"properties": {"c": INT}}]},
        ['{"a": "s", "c": 1, "b": 3, "a": 1}', '{"c": 1, "b": 2, "a": "s"}', '{"x": 1, "a": 1, "b": 1, "c": "s"}'],
        ['{"a": "s", "c": "s"}'],
    ),
    (  # that `x` does not come is taken for granted once its place is behind
        {**OPEN, "anyOf": [{"dependentRequired": {"x": ["a"]}}, {"required": ["c", "d"], "properties": {"x": INT}}]},
        ['{"x": 1, "a": 1}', '{"c": 1, "e": 1}', '{"x": 1, "c": 1, "d": 1}'],
        ['{"c": 1, "x": 1}', '{"e": 1, "x": 1}', '{"c": 1, "x": "s", "d": 1}'],
    ),
    (
        {**OPEN, "properties": {"k": True}, "if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": ONE},
        ['{"u": 1, "k": 1, "v": 1, "t": "a", "w": 1, "x": 1}', '{"k": 2, "u": 1}'],
        ['{"k": 1, "u": 1, "x": 1}', '{"k": 1, "x": 1, "t": "a"}'],
    ),
    (
        {**OPEN, "properties": {"a": INT}, "minProperties": 2, "required": ["a"]},
        ['{"x": 1, "a": 1}', '{"x": 1, "x": 2, "a": 1}', '{"a": 1, "x": 1}'],
        ['{"a": 1}', '{"x": 1, "x": 1}'],
    ),
    (
        {"not": {"properties": {"a": INT}, "additionalProperties": {"type": "string"}}},
        ['{"x": 1}', '{"x": "s", "a": "t"}', '{"x": "s", "y": 1, "a": 1}', '{"a": "s", "x": "t"}'],
        ['{"x": 1, "x": "s"}', '{"x": "s", "a": 1}', '{"a": 1, "x": "s"}', '{"x": 1, "a": 1, "x": "s"}'],
    ),
]  # fmt: skip


def reads(table: mw.LazyTable, text: str) -> bool:
    matcher = mw.Matcher(table)
    return all(matcher.advance(1 + byte) for byte in text.encode()) and matcher.is_accepting


@pytest.mark.parametrize(("schema", "accepted", "rejected"), CASES)
def test_keys_that_the_schema_does_not_order_come_anywhere(
    schema: Any, accepted: list[str], rejected: list[str]
) -> None:
    outcome = Outcome(schema)
    whole = mw.compile_json_schema(schema, VOCABULARY, lazy=False)
    assert outcome.reader is not None
    for text in accepted + rejected:
        expected = text in accepted
        assert reads(outcome.table, text) == reads(whole, text) == outcome.reader.reads(text) == expected, text
        assert not expected or jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text
    found = outcome.difference_on(accepted + rejected, walks=5)
    assert found is None, found


KEYS = ["a", "b", "c", "x1", "x2", "d"]


def some_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return a random schema of objects, most of which are open."""

    def value() -> Any:
        scalars: list[Any] = [INT, {"type": "string"}, {"const": 1}, {"const": "s"}, {"enum": [1, "s", 2]}, True, False]
        return some_schema(rng, depth + 1) if depth < 2 and rng.random() < 0.15 else rng.choice(scalars)

    def inner() -> dict[str, Any]:
        return some_schema(rng, depth + 1)

    options: list[tuple[float, str, Any]] = [
        (0.8, "properties", lambda: {key: value() for key in rng.sample(KEYS, rng.randint(1, 3))}),
        (0.25, "required", lambda: rng.sample(KEYS, rng.randint(1, 2))),
        (0.25, "additionalProperties", value),
        (0.2, "patternProperties", lambda: {rng.choice(["^x", "2$"]): value()}),
        (0.05, "maxProperties", lambda: rng.randint(1, 3)),
        (0.05, "minProperties", lambda: rng.randint(1, 2)),
        (0.1, "propertyNames", lambda: {"pattern": rng.choice(["^x|^[ab]$", "^.$"])}),
        (0.1, "dependentRequired", lambda: {rng.choice(KEYS): [rng.choice(KEYS)]}),
        (0.1, "unevaluatedProperties", value),
        (0.3 * (depth < 2), "anyOf", lambda: [inner() for _ in range(rng.randint(2, 3))]),
        (0.1 * (depth < 2), "oneOf", lambda: [inner(), inner()]),
        (0.1 * (depth < 2), "allOf", lambda: [inner(), inner()]),
        (0.07 * (depth < 2), "not", inner),
        (0.08 * (depth < 2), "if", inner),
    ]
    found = {keyword: make() for chance, keyword, make in options if rng.random() < chance}
    return found | ({"then": inner(), "else": inner()} if "if" in found else {})


def some_members(rng: random.Random, depth: int = 0) -> list[tuple[str, str]]:
    """Return keys, some of them twice, with the texts of values."""
    found = []
    for _ in range(rng.randint(0, 5)):
        value = json.dumps(rng.choice([1, 2, 7, "s", "t"]))
        if depth < 2 and rng.random() < 0.15:
            value = written(some_members(rng, depth + 1))
        found.append((rng.choice([*KEYS, "z"]), value))
    return found


def written(members: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in members) + "}"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_order_and_what_is_repeated_no_text_is_read_that_does_not_fit(seed: int) -> None:
    """And each flat object that fits is read in some order."""
    rng = random.Random(seed)
    read = 0
    for _ in range(30):
        schema = {"type": "object", **some_schema(rng)}
        outcome = Outcome(schema)
        if not outcome.is_comparable:
            continue
        assert outcome.reader is not None
        validator = jsonschema.Draft202012Validator(schema)
        for _ in range(20):
            members = some_members(rng)
            text = written(members)
            fits = validator.is_valid(json.loads(text))
            for reader in (lambda text, table=outcome.table: reads(table, text), outcome.reader.reads):
                is_read = reader(text)
                assert fits or not is_read, (schema, text)
                read += is_read
                is_flat = not any(value.startswith("{") for _, value in members)
                if fits and not is_read and is_flat and len(dict(members)) == len(members) < 5:
                    texts = [written(list(some)) for some in itertools.permutations(members)]
                    assert any(map(reader, texts)), (schema, text)
    assert read > 100
