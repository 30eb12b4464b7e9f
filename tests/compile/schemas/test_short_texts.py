"""Texts that end what is open, and budgets of tokens that are kept by them, where states are derivatives."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.compile.json_schema.request import request
from maskwright.compile.schemas.schema_rules import schema_rules
from maskwright.errors import ConstraintError, NoTableError, SchemaError
from maskwright.lazy.lazy_table import LazyTable
from maskwright.lazy.machine.lazy_machine import ByteMachine
from maskwright.lazy.protocol import NO_BOUND
from maskwright.runtime.host.readers import reader_of
from tests.strategies import random_schemas
from tests.strategies.schema_shapes import kind_last, kinds_by_range, several_contains

WORDS = [b'{"', b'": ', b'",', b"}}", b'"a"', b"xyz", "日".encode(), "é".encode()[:1] + b"", b"17.", b"[1", b"]}"]
VOCABULARY = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256)), *WORDS], eos=0)
TREE = {"properties": {"v": {"enum": [1, 22]}, "c": {"items": {"$ref": "#"}, "maxItems": 2}}, "required": ["v"]}
SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": 5},
            "b": {"type": "array", "items": {"type": "integer", "minimum": 100}, "minItems": 3},
            'é"x': {"enum": ["x", 1, None]},
        },
        "required": ["a", 'é"x'],
    },
    {"type": "object", "additionalProperties": False, **TREE},
    {"type": "string", "pattern": "^(日本|é){3}$"},
    {"patternProperties": {"^[a-c]$": {"type": "integer"}}, "additionalProperties": False, "minProperties": 2},
    {"type": "array", "contains": {"const": "xyz"}, "minItems": 4},
    {"type": "object", "dependentRequired": {"a": ["b", "c"]}, "properties": {"b": False}},
    {"type": "number", "multipleOf": 0.25, "minimum": 17},
    kinds_by_range(6)[0],
    kind_last(5)[0],
    {},
]
OPTIONS: list[dict[str, Any]] = [{}, {"any_order": True}, {"whitespace": "spaced"}, {"ascii": True}]


def by_derivatives(schema: Any, **options: Any) -> LazyTable:
    """Return the lazy table of a schema whose states are derivatives, however small it is."""
    meter = Budget(seconds=60).begin()
    rules = schema_rules(request(schema, **options), VOCABULARY, meter)

    def make() -> mw.TransitionTable:
        raise NoTableError("nobody may ask for arrays here")

    return LazyTable(
        ByteMachine(rules, VOCABULARY, meter, frames=True), make, VOCABULARY, source="", depth=0, is_small=False,
    )  # fmt: skip


def allowed(matcher: mw.Matcher) -> list[int]:
    """Return the tokens that a matcher allows."""
    found: list[int] = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).tolist()
    return found


def check_ends(table: LazyTable, rng: random.Random, texts: int, steps: int = 40) -> int:
    """Check along random texts that what is said to end them does, in as many bytes; return how often."""
    machine: Any = table.machine
    reader, checked = reader_of(table, False), 0
    for _ in range(texts):
        matcher, place = mw.Matcher(table, VOCABULARY), reader.start()
        for _ in range(steps):
            nearest, ending = machine.nearest(*place), machine.text_to_end(*place)
            assert (nearest >= NO_BOUND) == (ending is None)
            if ending is not None:
                assert len(ending) <= nearest, "places within a character are as far as the worst of what they lead to"
                twin = matcher.copy()
                assert twin.accept_tokens(ending), VOCABULARY.decode([*matcher.tokens, *ending])
                assert twin.is_accepting
                checked += 1
            tokens = [token for token in allowed(matcher) if token]
            if not tokens:
                break
            token = rng.choice(tokens)
            matcher.advance(token)
            place = reader.step(place, token)
    return checked


def check_budget(schema: Any, table: LazyTable, rng: random.Random, texts: int) -> None:
    """Check that random texts within a tight budget of tokens are complete, fit, and never without a way on."""
    nearest = table.machine.nearest(*reader_of(table, False).start())  # type: ignore[union-attr]
    for _ in range(texts):
        room = nearest + rng.choice([0, 0, 1, 2, 5, 25])
        matcher = mw.Matcher(table, VOCABULARY, max_tokens=room)
        while not matcher.is_terminated:
            tokens = allowed(matcher)
            assert tokens, VOCABULARY.decode(matcher.tokens)
            if rng.random() < 0.1 and matcher.num_tokens:
                matcher.rollback(1)
                continue
            refused = [token for token in rng.sample(range(VOCABULARY.size), 5) if token not in tokens]
            assert not any(matcher.advance(token) for token in refused)
            assert matcher.advance(rng.choice(tokens))
        assert matcher.num_tokens - 1 <= room
        value = json.loads(VOCABULARY.decode([token for token in matcher.tokens if token]))
        jsonschema.Draft202012Validator(schema).validate(value)
    if nearest:
        with pytest.raises(ValueError, match=f"{nearest} tokens are known to be enough"):
            mw.Matcher(table, VOCABULARY, max_tokens=nearest - 1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_texts_end_as_is_said_and_within_a_budget(schema: Any, options: dict[str, Any]) -> None:
    rng = random.Random(0)
    table = by_derivatives(schema, **options)
    assert check_ends(table, rng, 6) > 6
    check_budget(schema, table, rng, 8)


@given(random_schemas.schemas(), st.sampled_from(OPTIONS), st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_random_schemas_are_written_within_a_budget(schema: Any, options: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    try:
        table = by_derivatives(schema, **options)
    except ConstraintError:
        return
    nearest = table.machine.nearest(*reader_of(table, False).start())  # type: ignore[union-attr]
    assert nearest < NO_BOUND, "an end is found of every schema as small as these"
    check_ends(table, rng, 2, 15)
    check_budget(schema, table, rng, 3)


def test_sixty_four_things_that_an_array_must_contain_are_counted() -> None:
    schema, right, _ = several_contains(64)
    table = by_derivatives(schema, whitespace="compact")
    machine: Any = table.machine
    assert machine.nearest(*reader_of(table, False).start()) <= len(json.dumps(right, separators=(",", ":")))
    assert check_ends(table, random.Random(1), 2)


def test_an_end_that_is_not_found_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskwright.compile.schemas.short_texts.MOST_FRAMES", 1)
    table = by_derivatives({"type": "object", "required": ["a"]})
    with pytest.raises(ConstraintError, match="leave max_tokens out"):
        mw.Matcher(table, VOCABULARY, max_tokens=100)


def test_a_table_is_completed_near_its_end_unless_it_may_not_be() -> None:
    table = mw.compile_json_schema({"type": "array", "items": {"enum": ["abc", "abcdef"]}, "minItems": 2}, VOCABULARY)
    assert isinstance(table, LazyTable)
    bounded = mw.Matcher(table, VOCABULARY, max_tokens=20, may_complete=False)
    while not bounded.is_terminated:
        assert bounded.advance(allowed(bounded)[-1])
    assert bounded.num_tokens <= 21
    assert not table.is_complete
    waiting = mw.Matcher(table, VOCABULARY, max_tokens=20)
    while not waiting.is_terminated:
        assert waiting.advance(allowed(waiting)[-1])
    assert table.is_complete


def test_a_schema_that_cannot_be_met_is_refused_as_before() -> None:
    with pytest.raises(SchemaError):
        by_derivatives({"type": "string", "minLength": 3, "maxLength": 2})
