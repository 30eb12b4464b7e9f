"""Budgets of tokens on lazy tables: the masks are those of whole tables, which are not made far from the end."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata import content_bytes
from maskwright.automata.string_content import Content
from maskwright.compile.regex.lower import to_dfa
from maskwright.errors import BudgetError, MaskwrightError
from maskwright.kernels.limits import UNREACHABLE
from maskwright.runtime.host.readers import reader_of
from tests.strategies.odd_schemas import schemas as odd_schemas
from tests.strategies.random_schemas import schemas
from tests.support.json_texts import LONG, PIECES, TIMES, TREE, tokens_of, vocabulary

RANDOM = settings(deadline=None, suppress_health_check=list(HealthCheck))
RECURRING = {
    "nested": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {
                "type": "object",
                "properties": {"key": {"type": "string", "minLength": 4}, "next": {"$ref": "#/$defs/a"}},
                "required": ["key"],
                "additionalProperties": False,
            }
        },
    },
    # fewer frames take more bytes
    "either": {"items": {"anyOf": [{"const": "a long constant"}, {"$ref": "#"}]}, "type": "array", "minItems": 1},
    "several ends": {
        "type": "array",
        "contains": {"type": "null"},
        "items": {"anyOf": [{"$ref": "#"}, {"type": ["null", "integer"]}, {"type": "array", "maxItems": 1}]},
    },
    "labels": {
        "type": "object",
        "properties": {"a": {"$ref": "#"}, "b": {"type": "boolean"}},
        "if": {"properties": {"a": {"required": ["b"]}}, "required": ["a"]},
        "then": {"required": ["b"]},
        "additionalProperties": False,
    },
    "tree": TREE,
}


def components(count: int) -> dict:
    """Return a schema of objects that refer to one another, as those of an interface do."""
    rng = random.Random(count)
    kinds = (
        {"type": "string"},
        {"type": "integer"},
        {"type": "boolean"},
        {"format": "date-time"},
        {"enum": ["on", "off"]},
    )
    parts = {}
    for i in range(count):
        members: dict = {f"field_{j}": rng.choice(kinds) for j in range(rng.randint(3, 8))}
        members["one"] = {"$ref": f"#/$defs/part_{rng.randrange(count)}"}
        members["many"] = {"type": "array", "items": {"$ref": f"#/$defs/part_{rng.randrange(count)}"}}
        parts[f"part_{i}"] = {
            "type": "object", "properties": members, "required": ["field_0", "field_2"], "additionalProperties": False,
        }  # fmt: skip
    return {"$ref": "#/$defs/part_0", "$defs": parts}


def bounds_hold(schema, vocab, rng, steps, **options):
    """Walk along lazy tables with and without a budget beside the whole table."""
    lazy = mw.compile_json_schema(schema, vocab, **options)
    whole = mw.compile_json_schema(schema, vocab, lazy=False, **options)
    reader = reader_of(lazy, False)
    place = reader.start()
    start = reader.distance(place)
    if start >= 1 << 30:
        return 0
    assert whole.min_length <= start
    budget = start + rng.choice((0, 1, 5, 20, 80))
    a, b = mw.Matcher(lazy, max_tokens=budget), mw.Matcher(whole, max_tokens=budget)
    counting, read_lazily = reader_of(whole, True), 0
    there = counting.start()
    for _ in range(steps):
        text = b"".join(vocab.tokens[token] for token in b.tokens)
        read_lazily += not lazy.is_complete
        mask = b.mask()
        assert (a.mask() == mask).all(), text
        assert counting.distance(there) <= reader.distance(place), text
        farthest = reader.farthest(place)
        for token in tokens_of(reader.mask(place)):
            if token != vocab.eos and farthest < 1 << 30:
                assert counting.distance(counting.step(there, token)) <= farthest, (text, vocab.tokens[token])
        allowed = [token for token in tokens_of(mask) if token != vocab.eos]
        if not allowed or (b.is_accepting and rng.random() < 0.1):
            break
        token = rng.choice(allowed)
        if rng.random() < 0.5:  # brackets and quotes lead on
            token = next((v for v in rng.sample(allowed, len(allowed)) if set(vocab.tokens[v]) & set(b'[{"')), token)
        other = rng.randrange(vocab.size)
        taken = b.advance(other)
        assert a.advance(other) == taken, (text, vocab.tokens[other])
        a.rollback(int(taken))
        b.rollback(int(taken))
        assert a.advance(token), text
        assert b.advance(token), text
        place, there = reader.step(place, token), counting.step(there, token)
    return read_lazily


@pytest.mark.parametrize("name", [*PIECES, *RECURRING])
def test_masks_within_a_budget_are_those_of_the_whole_table(name):
    rng = random.Random(name)
    for _ in range(2 * TIMES):
        bounds_hold({**PIECES, **RECURRING}[name], vocabulary(600), rng, 60)


@pytest.mark.parametrize(
    "options", [{"whitespace": "compact"}, {"depth": 2}, {"depth": 4}, {"any_order": True}], ids=str
)
@pytest.mark.parametrize("name", RECURRING)
def test_masks_are_the_same_in_every_layout_and_near_the_depth(name, options):
    try:
        bounds_hold(RECURRING[name], vocabulary(600), random.Random(name), 60, **options)
    except MaskwrightError:
        assert options.get("depth") == 2


@settings(RANDOM, max_examples=40 * TIMES)
@given(st.one_of(schemas(), odd_schemas), st.integers(0, 2**32))
def test_random_schemas_are_the_same_within_a_budget(schema, seed):
    try:
        bounds_hold(schema, vocabulary(600), random.Random(seed), 30, budget=mw.Budget(seconds=5))
    except MaskwrightError:
        return


def test_strings_of_all_kinds_keep_a_budget():
    rng = random.Random(1)
    assert sum(bounds_hold(LONG, vocabulary(600), rng, 60) for _ in range(3)) > 5


def test_far_from_the_end_nothing_is_made_for_a_budget():
    """A first mask with a budget writes no state more than one without, of a schema of 150 components."""
    schema, vocab = components(150), vocabulary(600)
    lazy, other = (mw.compile_json_schema(schema, vocab) for _ in range(2))
    free, bound = mw.Matcher(lazy), mw.Matcher(other, max_tokens=300)
    for token in vocab.encode('{"field_0": '):
        assert (free.mask() == bound.mask()).all()
        assert lazy.machine.num_states == other.machine.num_states < 4000
        assert free.advance(token)
        assert bound.advance(token)
    assert not other.is_complete
    assert other.to_table().num_rows > 10_000


def test_near_the_end_the_whole_table_counts():
    vocab = vocabulary(600)
    lazy = mw.compile_json_schema(RECURRING["nested"], vocab)
    matcher = mw.Matcher(lazy, vocab, max_tokens=40)
    text = vocab.encode('{"key": "abcdefgh')
    assert matcher.accept_tokens(text)
    assert not lazy.is_complete
    twin = matcher.copy()
    letter = vocab.encode("x")[0]
    while matcher.advance(letter):
        pass
    assert lazy.is_complete
    assert matcher.num_tokens > 30
    assert not twin.advance(vocab.eos)
    matcher.rollback(matcher.num_tokens - len(text))
    assert (matcher.mask() == twin.mask()).all()
    assert matcher.accepts([*vocab.encode('x"}'), vocab.eos])


def test_a_budget_that_no_bound_promises_is_judged_before_the_first_token():
    vocab = vocabulary(600)
    schema = {"properties": {"a long name": {"const": True}}, "required": ["a long name"], "type": "object"}
    shortest = mw.compile_json_schema(schema, vocab, lazy=False).min_length
    lazy = mw.compile_json_schema(schema, vocab)
    with pytest.raises(ValueError, match=f"max_tokens={shortest - 1} cannot be promised"):
        mw.Matcher(lazy, max_tokens=shortest - 1)
    assert lazy.is_complete
    assert mw.Matcher(mw.compile_json_schema(schema, vocab), max_tokens=shortest).mask().any()
    small = mw.compile_json_schema(components(40), vocab, budget=mw.Budget(states=3500))
    with pytest.raises(BudgetError):
        mw.Matcher(small, max_tokens=20)


@pytest.mark.parametrize("seed", range(3 * TIMES))
def test_where_no_table_can_be_had_texts_are_complete_in_time_by_bounds(seed):
    """The whole table exceeds its budget when a text comes near its end: bounds still promise an end."""
    vocab, rng = vocabulary(600), random.Random(seed)
    lazy = mw.compile_json_schema(components(40), vocab, budget=mw.Budget(states=3500))
    matcher = mw.Matcher(lazy, max_tokens=150)
    whole = mw.Matcher(mw.compile_json_schema(components(40), vocab, lazy=False), max_tokens=150)
    while matcher.remaining and not matcher.is_terminated:
        allowed = tokens_of(matcher.mask())
        assert set(allowed) <= set(tokens_of(whole.mask()))
        open_ones = [token for token in allowed if token != vocab.eos and not set(vocab.tokens[token]) & set(b"]}")]
        token = rng.choice(open_ones or allowed)
        refused = rng.randrange(vocab.size)
        assert matcher.accepts([refused]) in (False, refused in allowed)
        assert matcher.advance(token)
        assert whole.advance(token)
    assert matcher.is_accepting or matcher.is_terminated
    assert matcher.num_tokens > 100
    assert not lazy.is_complete


@pytest.mark.parametrize("pattern", ["(a|\n)*b", '["\\\\]x{2}', "(é|ab|\x01\x02)", "x*(y|z\t)", ""])
@pytest.mark.parametrize("counted", [False, True])
def test_the_bytes_of_a_content_are_those_of_its_shortest_text(pattern, counted):
    dfa = to_dfa(pattern)
    label = np.where(dfa.accepting, 0, -1).astype(np.int32)
    content = Content(dfa.class_of, dfa.transition, label, most=9 if counted else -1)
    found = content_bytes.content_bytes(content.class_of, content.transition, label, counted=counted)
    sizes = content_bytes.bytes_of(found, counted)
    weight = [2 if b in b'"\\\b\f\n\r\t' else 6 if b < 0x20 else 1 for b in range(256)]
    best: dict = {0: (0, 0)}  # by state: characters where they count, and bytes
    for _ in range(12):
        for state, (characters, size) in list(best.items()):
            for byte in range(256):
                to = int(dfa.transition[state, dfa.class_of[byte]])
                cost = characters + (counted and not 0x80 <= byte < 0xC0), size + weight[byte]
                if to >= 0 and cost < best.get(to, (99, 0)):
                    best[to] = cost
    assert sizes[0, 0] == min(best[state] for state in best if dfa.accepting[state])[1]
    assert (found[0] < UNREACHABLE * 64).all()


def test_the_bytes_of_a_long_content_take_work_by_its_size():
    """A chain of 12,000 states by 256 classes; a search that looks at all of it in each round takes minutes."""
    count = 12_000
    transition = np.repeat(np.arange(1, count + 1, dtype=np.int32)[:, None], 256, axis=1)
    transition[-1] = -1
    label = np.full(count, -1, np.int32)
    label[-1] = 0
    begin = time.thread_time()
    found = content_bytes.content_bytes(np.arange(256), transition, label, counted=False)
    assert time.thread_time() - begin < 30
    assert (found[:, 0] == np.arange(count)[::-1]).all()


def test_a_content_too_large_to_search_completes_the_table(monkeypatch):
    """What is not known is no promise: the masks are then those of the whole table."""
    vocab = vocabulary(600)
    schema = {"propertyNames": {"pattern": "^[a-c]{40}$"}, "minProperties": 1, "type": "object"}
    monkeypatch.setattr(content_bytes, "MOST_WORK", 1 << 12)
    lazy = mw.compile_json_schema(schema, vocab)
    whole = mw.compile_json_schema(schema, vocab, lazy=False)
    a, b = (mw.Matcher(table, max_tokens=60) for table in (lazy, whole))
    for token in vocab.encode('{"abc'):
        assert (a.mask() == b.mask()).all()
        assert a.advance(token)
        assert b.advance(token)
    assert lazy.is_complete
