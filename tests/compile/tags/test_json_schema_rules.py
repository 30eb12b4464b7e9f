"""Schemas as rules of a grammar: the same texts as their machines have."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.compile.grammar.build import compile_form
from maskwright.compile.grammar.form import Grammar
from maskwright.compile.json_schema.approximations import Approximations
from maskwright.compile.json_schema.request import request
from maskwright.compile.tags.build import compile_structural_tag
from maskwright.compile.tags.value_machine import Symbols
from maskwright.compile.tags.values import value_of, with_rules
from tests.strategies.odd_schemas import schemas as odd_schemas
from tests.strategies.random_schemas import schemas
from tests.strategies.tokenizer_zoo import tekken
from tests.support.json_texts import LAYOUTS, LONG, PIECES, RANDOM, TIMES, tokens_of, vocabulary

WHOLE = {"recursion", "nested arrays", "a choice by label", "labels of items", "keys by patterns", "at most"}
"""Pieces whose tables are looked at as well."""
assert set(PIECES) >= WHOLE


def as_rules(schema: Any, vocab: mw.Vocabulary, **options: Any) -> mw.TransitionTable:
    meter = Budget().begin()
    asked = request(schema, **options)
    symbols = Symbols()
    value = symbols.of(value_of(Approximations(), asked, meter), 0, "")
    form = with_rules(Grammar({"start": value}, "start"), symbols, asked, meter)
    return compile_form(form, vocab, source="rules", meter=meter)


def same_along_walks(one: mw.TransitionTable, other: mw.TransitionTable, vocab: mw.Vocabulary, seed: int) -> None:
    """Walk along a machine's table and a grammar's; of keys the latter may have fewer escapes, and nothing else."""
    rng = random.Random(seed)
    a, b = mw.Matcher(one), mw.Matcher(other)
    for _ in range(60):
        text = b"".join(vocab.tokens[token] for token in a.tokens)
        both = set(tokens_of(a.mask())), set(tokens_of(b.mask()))
        assert both[1] <= both[0], (text, [vocab.tokens[v] for v in both[1] - both[0]][:9])
        missing = [vocab.tokens[v] for v in both[0] - both[1]]
        assert all(b"\\" in token or b"\\" in text[-6:] for token in missing), (text, missing[:9])
        assert a.is_accepting == b.is_accepting, text
        ways = sorted(both[1] - {vocab.eos})
        if not ways or (a.is_accepting and rng.random() < 0.3):
            a.reset()
            b.reset()
            continue
        token = rng.choice(ways)
        if rng.random() < 0.6:  # brackets and quotes lead on
            some = rng.sample(ways, min(40, len(ways)))
            token = next((v for v in some if set(vocab.tokens[v]) & set(b'[{"}]')), token)
        assert a.advance(token)
        assert b.advance(token)


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", [*PIECES, "strings"])
def test_schemas_of_all_kinds_are_the_same_as_rules(name, options):
    vocab = vocabulary(1000)
    schema = LONG if name == "strings" else PIECES[name]
    if options.get("any_order") and name == "strings":  # rules of all sets of its keys would be too many
        schema = {"type": "array", "prefixItems": list(LONG["properties"].values())}
    one, other = mw.compile_json_schema(schema, vocab, **options), as_rules(schema, vocab, **options)
    same_along_walks(one, other, vocab, 1)
    if name in WHOLE:
        same_along_walks(one, other.to_table(), vocab, 2)


@settings(RANDOM, max_examples=40 * TIMES)
@given(st.one_of(schemas(), odd_schemas), st.integers(0, 2**32))
def test_random_schemas_are_the_same_as_rules(schema, seed):
    vocab = vocabulary(1000)
    options = {"any_order": bool(seed & 1)}
    try:
        one = mw.compile_json_schema(schema, vocab, budget=Budget(seconds=5), **options)
        other = as_rules(schema, vocab, **options)
    except (mw.errors.SchemaError, mw.errors.RegexError, mw.errors.BudgetError):
        return
    same_along_walks(one, other, vocab, seed)


@pytest.mark.parametrize(("pattern", "begun"), [("^ab", "ab"), ("^(é|ab).", "abc"), ("", "")])
def test_where_anything_may_follow_it_has_every_escape(pattern, begun):
    vocab = vocabulary(1000)
    schema = {"type": "string", "pattern": pattern}
    both = [mw.Matcher(table) for table in (mw.compile_json_schema(schema, vocab), as_rules(schema, vocab))]
    for text in (f'"{begun}', "\\", "u0", "06", "1", "\\ud83d"):
        for matcher in both:
            assert all(map(matcher.advance, [1 + byte for byte in text.encode()])), text
        assert (both[0].mask() == both[1].mask()).all(), text


def test_grammars_of_every_kind_stand_beside_schemas():
    """Regular ones, delimited ones, and one with an `e` that may belong to any `i`: only this has no table."""
    _, vocab = tekken()
    point = {"type": "object", "properties": {"at": {"type": "integer"}, "in": {"$ref": "#"}}, "required": ["at"]}
    contents: dict[str, dict[str, Any]] = {
        "point": {"type": "json_schema", "json_schema": point},
        "name": {"type": "grammar", "syntax": "lark", "grammar": 'start: "a" start | "b"'},
        "sum": {"type": "grammar", "syntax": "lark", "grammar": 'start: start "+" start | "(" start ")" | /[0-9]/'},
        "else": {"type": "grammar", "syntax": "lark", "grammar": 'start: "i" start ("e" start)? | "x"'},
    }
    tags = [{"begin": f"<{name}>", "content": each, "end": f"</{name}>"} for name, each in contents.items()]
    inside = [
        '<point>{"at": 1, "in": {"at": 22}}</point>',
        "<name>aab</name>",
        "<sum>(1+2)+(3)</sum>",
        "<else>iixex</else>",
    ]
    outside = [
        '<point>{"in": {"at": 22}}</point>',
        "<name>aa</name>",
        "<sum>(1+2</sum>",
        "<else>iexi</else>",
        "<sum>{}",
    ]
    for kinds in (3, 4):
        tag = {"type": "triggered_tags", "triggers": ["<"], "tags": tags[:kinds]}
        table = compile_structural_tag(tag, vocab)
        if kinds == 4:
            with pytest.raises(mw.errors.NoTableError, match="no finite table"):
                table.to_table()
        for each in (table, table.to_table()) if kinds == 3 else (table,):
            for i, text in enumerate(inside):
                assert each.accepts(vocab.encode(f"So: {text} or {inside[0]}.")) == (i < kinds), text
            assert not any(each.accepts(vocab.encode(text)) for text in outside)
