"""Lazy tables: what is found state by state is what the whole table says."""

from __future__ import annotations

import copy
import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odd_schemas import schemas as odd_schemas
from random_schemas import schemas
from test_json_schema import PIECES, TIMES, TREE, vocabulary
from tokenizer_zoo import tekken

import maskwright as mw
from maskwright.errors import BudgetError, MaskwrightError, SchemaError

LAYOUTS = ({}, {"whitespace": "compact"}, {"whitespace": (", ", ": ")}, {"ascii": True})
RANDOM = settings(deadline=None, suppress_health_check=list(HealthCheck))
LONG = {
    "type": "object",
    "properties": {
        "any": {"type": "string", "maxLength": 90},
        "some": {"type": "string", "minLength": 3},
        "few": {"type": "string", "minLength": 2, "maxLength": 5},
        "word": {"type": "string", "pattern": "^[a-z]{1,40}$"},
        "unicode": {"type": "string", "pattern": r"^[^\s]+$"},
        "somewhere": {"type": "string", "pattern": "[0-9]{2}-x"},
        "beginning": {"type": "string", "pattern": "^ab"},
        "date": {"format": "date-time"},
        "mail": {"format": "email"},
        "many": {"enum": [f"value {i}" for i in range(300)]},
        "labels": {"anyOf": [{"items": {"pattern": "^[a-m]*$"}}, {"contains": {"pattern": "^[k-z]+$"}}]},
    },
}


def tables(schema, vocab, **options):
    """Return a schema's table, lazy and complete."""
    return (mw.compile_json_schema(schema, vocab, lazy=lazy, **options) for lazy in (True, False))


def tokens_of(mask):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def same_along_walks(lazy, complete, vocab, rng, steps, rare=0.5):
    """Walk along both tables side by side, from the start again at an end."""
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    for _ in range(steps):
        mask = a.mask()
        text = b"".join(vocab.tokens[token] for token in a._tokens)
        both = set(tokens_of(mask)), set(tokens_of(b.mask()))
        assert both[0] == both[1], (text, [vocab.tokens[v] for v in both[0] ^ both[1]][:9])
        assert a.is_accepting == b.is_accepting, text
        allowed = sorted(both[0] - {vocab.eos})
        if not allowed or (a.is_accepting and rng.random() < 0.2):
            assert a.advance(vocab.eos), text
            assert b.advance(vocab.eos), text
            assert (a.mask() == b.mask()).all()
            assert a.is_finished
            assert not a.advance(1)
            a.reset()
            b.reset()
            continue
        token = rng.choice(allowed)
        if rng.random() < rare:  # brackets and quotes lead on
            token = next(
                (v for v in rng.sample(allowed, min(40, len(allowed))) if set(vocab.tokens[v]) & set(b'[{"')), token
            )
        refused = rng.randrange(vocab.size)
        if refused not in both[0]:
            assert not a.advance(refused), (text, vocab.tokens[refused])
        assert a.advance(token), text
        assert b.advance(token), text


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", PIECES)
def test_a_lazy_table_allows_what_the_complete_one_does(name, options):
    vocab = vocabulary()
    lazy, complete = tables(PIECES[name], vocab, **options)
    same_along_walks(lazy, complete, vocab, random.Random(name), 120 * TIMES)
    assert not lazy.is_complete


@pytest.mark.parametrize("seed", range(3 * TIMES))
def test_strings_of_all_kinds_are_read_as_they_are_bound(seed):
    vocab = vocabulary()
    lazy, complete = tables(LONG, vocab)
    same_along_walks(lazy, complete, vocab, random.Random(seed), 400, rare=0.1)


@pytest.mark.parametrize("name", ["keys by patterns", "recursion", "strings"])
def test_a_real_vocabulary_is_read_lazily_too(name):
    _, vocab = tekken()
    lazy, complete = tables(LONG if name == "strings" else PIECES[name], vocab)
    same_along_walks(lazy, complete, vocab, random.Random(name), 150)


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 40])
def test_near_the_depth_the_same_is_refused(depth):
    vocab = vocabulary()
    lists = {
        "$ref": "#/$defs/l",
        "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}, "minItems": 1, "contains": {}}},
    }
    either = {
        "$ref": "#/$defs/e",
        "$defs": {"e": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/e"}}]}},
    }
    for schema in (TREE, either, True, {"items": {"items": True}}, lists):
        try:
            lazy, complete = tables(schema, vocab, depth=depth)
        except SchemaError:
            continue
        same_along_walks(lazy, complete, vocab, random.Random(depth), 150 * TIMES, rare=0.9)


@settings(RANDOM, max_examples=40 * TIMES)
@given(st.one_of(schemas(), odd_schemas), st.integers(0, 2**32))
def test_random_schemas_are_the_same_lazily(schema, seed):
    try:
        lazy, complete = tables(schema, vocabulary(1000), budget=mw.Budget(seconds=5))
    except MaskwrightError:
        return
    same_along_walks(lazy, complete, vocabulary(1000), random.Random(seed), 40)


MANY = {
    "type": "object",
    "properties": {
        f"key{i}": {"type": "object", "properties": {f"a{j}": {"minLength": j} for j in range(20)}} for i in range(120)
    },
}


def test_what_nobody_comes_to_is_not_written():
    vocab = vocabulary()
    lazy, complete = tables(MANY, vocab)
    matcher = mw.Matcher(lazy)
    assert matcher.accepts(list(b"".join(bytes([b + 1]) for b in b'{"key7":{"a3":1}}')))
    assert lazy.automaton.machine.size < complete.num_states / 3


def test_whatever_needs_arrays_completes_a_lazy_table(tmp_path):
    vocab = vocabulary(1000)
    schema = {"type": "array", "items": {"type": "integer"}}
    complete = mw.compile_json_schema(schema, vocab, lazy=False)
    assert not isinstance(complete, mw.LazyTable)
    for use in (
        lambda t: t.num_states,
        lambda t: t.edge_token,
        lambda t: t.min_length,
        lambda t: t.most_need,
        lambda t: t.save(tmp_path / "t.safetensors"),
        lambda t: t.accepts([1 + b for b in b"[1]"]),
        lambda t: mw.Matcher(t, max_tokens=9),
        lambda t: pickle.dumps(t),
        lambda t: t.complete(),
    ):
        table = mw.compile_json_schema(schema, vocab)
        assert isinstance(table, mw.LazyTable)
        assert not table.is_complete
        assert "not worked out" in repr(table)
        assert (table.vocab_size, table.eos, table.vocabulary, table.source) == (
            complete.vocab_size, complete.eos, complete.vocabulary, complete.source,
        )  # fmt: skip
        assert table.is_nested
        assert not table.is_complete
        use(table)
        assert table.is_complete
        assert "states" in repr(table)
        assert (table.edge_token == complete.edge_token).all()
        assert table.nbytes == complete.nbytes
    with pytest.raises(AttributeError, match="no attribute 'edges'"):
        _ = table.edges


def test_copies_and_pickles_of_a_lazy_table_are_the_table():
    vocab = vocabulary(1000)
    table = mw.compile_json_schema(TREE, vocab)
    assert copy.copy(table) is table
    assert copy.deepcopy(table) is table
    assert not table.is_complete
    loaded = pickle.loads(pickle.dumps(table))
    assert not isinstance(loaded, mw.LazyTable)
    assert (loaded.edge_target == table.edge_target).all()


def test_a_matcher_keeps_its_place_when_the_table_is_completed_or_pickled():
    vocab = vocabulary(1000)
    table = mw.compile_json_schema({"type": "array", "items": {"type": "string", "maxLength": 9}}, vocab)
    matcher = mw.Matcher(table)
    assert all(map(matcher.advance, (1 + b for b in b'["ab", "c')))
    before = matcher.mask().copy()
    loaded = pickle.loads(pickle.dumps(matcher))
    assert table.is_complete
    for one in (matcher, loaded, matcher.copy()):
        assert (one.mask() == before).all()
        assert one.num_tokens == 9
        assert all(map(one.advance, (1 + b for b in b'"]')))
        assert one.is_accepting
        one.rollback(11)
        assert one.num_tokens == 0
        assert not one.is_accepting


def test_threads_share_a_lazy_table():
    vocab = vocabulary()
    lazy, complete = tables(MANY, vocab)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: same_along_walks(lazy, complete, vocab, random.Random(seed), 60), range(12)))


def test_a_table_over_its_budget_says_so_when_it_is_completed_and_can_still_be_read():
    vocab = vocabulary(1000)
    schema = {"type": "object", "properties": {f"k{i}": {"pattern": f"^(ab|c){{1,{30 + i}}}$"} for i in range(40)}}
    table = mw.compile_json_schema(schema, vocab, budget=mw.Budget(states=2_000))
    assert mw.Matcher(table).accepts([1 + b for b in b'{"k3": "abcab"}'])
    with pytest.raises(BudgetError, match="states"):
        table.complete()
    assert not table.is_complete
    assert mw.Matcher(table).accepts([1 + b for b in b'{"k4": "c"}'])
    with pytest.raises(BudgetError, match="states"):
        mw.compile_json_schema(schema, vocab, lazy=False, budget=mw.Budget(states=2_000))
    matcher = mw.Matcher(table)
    with pytest.raises(BudgetError, match="2,000 states"):  # each key adds to what is written
        matcher.accepts([1 + b for b in json.dumps({f"k{i}": "ab" for i in range(40)}).encode()])
