"""`compile_json_schema` of schemas that cannot be settled ahead, as users call it."""

from __future__ import annotations

import json
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.compile.schemas import schema_rules
from maskwright.lazy.machine.lazy_machine import ByteMachine
from maskwright.lazy.pushdown.lazy_pushdown import LazyPushdown
from tests.strategies.schema_shapes import (
    Shape,
    arrays_by_item,
    dependent_required,
    if_by_field,
    if_by_pattern,
    kind_last,
    kinds_by_length,
    kinds_by_pattern,
    kinds_by_range,
    patterns_of_keys,
    several_contains,
)

WORDS = [b'{"', b'": ', b'", "', b'"}', b"true", b"  ", b"kind", b'"k', b"]}", b"[{", b'e": "', b"\xc3\xa9", b"12"]
VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *WORDS], eos=0)
SHAPES = [
    kinds_by_pattern, kinds_by_range, kinds_by_length, kind_last, if_by_pattern, if_by_field, dependent_required,
    arrays_by_item, several_contains, patterns_of_keys,
]  # fmt: skip


def written(text: str, rng: random.Random) -> list[int]:
    """Return tokens that spell a text, longer ones or single bytes."""
    data, out = text.encode(), []
    while data:
        longer = [257 + i for i, word in enumerate(WORDS) if data.startswith(word)]
        token = rng.choice(longer) if longer and rng.random() < 0.7 else 1 + data[0]
        out.append(token)
        data = data[len(VOCAB.tokens[token]) :]
    return out


def allowed(matcher: mw.Matcher) -> list[int]:
    return np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_sixteen_parts_compile_and_are_read_soon(shape: Shape) -> None:
    schema, right, wrong = shape(16)
    mw.compile_json_schema({}, VOCAB)
    began = time.thread_time()
    table = mw.compile_json_schema(schema, VOCAB)
    mw.Matcher(table).mask()
    assert time.thread_time() - began < 3
    rng = random.Random(16)
    for _ in range(3):
        assert table.accepts(written(json.dumps(right), rng))
        assert not table.accepts(written(json.dumps(wrong), rng))
    assert isinstance(table, mw.LazyTable)
    assert not table.is_complete
    assert table.left_out == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_what_masks_allow_can_be_completed_and_fits(shape: Shape) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    schema, right, _ = shape(16)
    table = mw.compile_json_schema(schema, VOCAB, whitespace="compact")
    rng = random.Random(7)
    start = written(json.dumps(right, separators=(",", ":")), rng)
    for _ in range(2):
        matcher, tokens = mw.Matcher(table), []
        for token in start[: rng.randrange(len(start))]:
            assert matcher.advance(token)
            tokens.append(token)
        for _ in range(300):
            found = allowed(matcher)
            ends = [
                token for token in found if VOCAB.tokens[token] in (b"", b'"', b"}", b"]", b'"}', b"]}", b":", b",")
            ]
            token = rng.choice(ends) if ends and rng.random() < 0.9 else rng.choice(found)
            assert matcher.advance(token)
            if matcher.is_terminated:
                break
            tokens.append(token)
        else:
            continue
        text = b"".join(VOCAB.tokens[token] for token in tokens).decode()
        assert validator(schema).is_valid(json.loads(text)), text
    assert not table.is_complete


def test_how_a_schema_is_read_goes_by_its_states_for_its_size() -> None:
    one = {"type": "object", "properties": {"kind": {"const": "k"}, "v": {"type": "integer"}}, "required": ["kind"]}
    many = {"oneOf": [{**one, "properties": {"kind": {"const": f"k{i}"}, "v": {"minimum": i}}} for i in range(300)]}
    wide = {
        "properties": {f"k{i}": {"type": "integer"} for i in range(1500)},
        "patternProperties": {"^k": {"minimum": 1}},
    }
    for schema, settles in ((many, True), (wide, True), (if_by_field(16)[0], False), (kinds_by_pattern(16)[0], False)):
        table = mw.compile_json_schema(schema, VOCAB)
        assert isinstance(table, mw.LazyTable)
        assert isinstance(table.machine, LazyPushdown if settles else ByteMachine)


def test_a_pickle_a_cache_and_threads_read_the_same() -> None:
    schema, right, wrong = kinds_by_pattern(16)
    cache = mw.Cache(VOCAB)
    table = cache.compile_json_schema(schema)
    assert cache.compile_json_schema(schema) is table
    other = pickle.loads(pickle.dumps(table))
    assert isinstance(other, mw.LazyTable)

    def read(seed: int) -> tuple[list[bool], list[list[int]]]:
        rng = random.Random(seed)
        masks = []
        matcher = mw.Matcher(other if seed % 2 else table)
        for token in written(json.dumps(right), random.Random(0)):
            masks.append(allowed(matcher))
            assert matcher.advance(token)
        both = [mw.Matcher(table).accepts(written(json.dumps(each), rng)) for each in (right, wrong)]
        return both, masks

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read, range(8)))
    assert all(each == found[0] for each in found)
    assert found[0][0] == [True, False]


def test_a_machine_that_grew_large_is_renewed_and_running_matchers_go_on() -> None:
    schema, right, _ = kinds_by_pattern(16)
    table = mw.compile_json_schema(schema, VOCAB, budget=mw.Budget(states=20_000))
    assert isinstance(table, mw.LazyTable)
    tokens = written(json.dumps(right), random.Random(3))
    running = mw.Matcher(table)
    assert all(map(running.advance, tokens[:9]))
    before, first = running.mask().copy(), table.machine
    assert first is not None
    first.meter = mw.Budget(states=8).begin()  # type: ignore[attr-defined]
    assert mw.Matcher(table).accepts(tokens)
    assert table.machine is not first
    assert np.array_equal(running.mask(), before)
    running.rollback(9)
    assert np.array_equal(running.mask(), mw.Matcher(table).mask())


@pytest.mark.parametrize("most", [0, 1, 5])
def test_what_takes_long_to_prove_is_left_out_of_masks_and_counted(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask is never empty for that: rows of which nothing would be left are made without the limit."""
    schema, right, _ = several_contains(16)
    tokens = written(json.dumps(right), random.Random(1))
    exact = mw.compile_json_schema(schema, VOCAB)
    whole, every = mw.Matcher(exact), []
    for token in tokens:
        every.append(set(allowed(whole)))
        assert whole.advance(token)
    assert isinstance(exact, mw.LazyTable)
    assert exact.left_out == 0
    monkeypatch.setattr(schema_rules, "MOST_READING", most)
    table = mw.compile_json_schema(schema, VOCAB)
    assert isinstance(table, mw.LazyTable)
    matcher = mw.Matcher(table)
    for token, wanted in zip(tokens, every, strict=True):
        some = set(allowed(matcher))
        assert some
        assert some <= wanted
        if not matcher.advance(token):
            break
    assert table.left_out > 0


@pytest.mark.parametrize("seconds", [0.001, 0.3])
def test_a_budget_of_seconds_ends_a_schema_that_no_way_reads(seconds: float) -> None:
    pigeons: dict[str, Any] = {
        "type": "array",
        "maxItems": 13,
        "allOf": [{"contains": {"const": i}} for i in range(14)],
    }
    pigeons["allOf"] += [{"contains": {"type": "integer", "multipleOf": 2**k}} for k in range(3)]
    began = time.thread_time()
    with pytest.raises((mw.errors.BudgetError, mw.errors.SchemaError)) as raised:
        mw.compile_json_schema(pigeons, VOCAB, budget=mw.Budget(seconds=seconds))
    assert isinstance(raised.value, mw.errors.BudgetError)
    assert raised.value.limit == "seconds"
    assert time.thread_time() - began < seconds + 1


def test_what_is_not_enforced_is_said_of_schemas_read_by_derivatives() -> None:
    schema, right, _ = kinds_by_pattern(16)
    schema["oneOf"][2]["properties"]["value"]["properties"]["f2"] = {"type": ["array", "string"], "uniqueItems": True}
    with pytest.raises(mw.errors.SchemaError, match="uniqueItems"):
        mw.compile_json_schema(schema, VOCAB)
    table = mw.compile_json_schema(schema, VOCAB, allow=["uniqueItems"])
    assert [each.keyword for each in table.unenforced] == ["uniqueItems"]
    assert table.accepts(written(json.dumps(right), random.Random(0)))
