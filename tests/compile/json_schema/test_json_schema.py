"""JSON Schemas end to end: tables do what their bytes say, write only what fits, and take all that does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema._keywords
import jsonschema._utils
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.compile.json_schema.keywords import NARROWER
from maskwright.compile.json_schema.layout import Layout
from maskwright.errors import BudgetError, ConstraintError, SchemaError
from tests.oracles.naive_machine import Bytes
from tests.strategies.odd_schemas import (
    EcmaRe,
    TwiceError,
    Writer,
    allowed_by,
    dumps,
    is_plain,
    orders,
    parsed,
)
from tests.strategies.odd_schemas import schemas as odd_schemas
from tests.strategies.odd_schemas import values as odd_values
from tests.strategies.random_schemas import schemas, values
from tests.strategies.tokenizer_zoo import tekken
from tests.support.json_texts import PIECES, TIMES, TREE, vocabulary

RANDOM = settings(deadline=None, suppress_health_check=list(HealthCheck))
# a checkout of the official test suite, or the part of it that may be beside this one
SUITE = Path(
    os.environ.get("JSON_SCHEMA_TEST_SUITE", Path(mw.__file__).parent.parent / "shared/json-schema-test-suite")
)
VALIDATORS = {
    4: jsonschema.Draft4Validator,
    6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}
BYTES = [b"", *(bytes([b]) for b in range(256))]


def writer(seed: int = 0, count: int = 3000) -> Writer:
    return Writer(vocabulary(count).tokens, seed)


def takes(table: mw.TransitionTable, text: str | bytes, write: Writer | None = None) -> bool:
    """Whether a table accepts a text, by bytes and however it is cut into tokens."""
    data = text.encode() if isinstance(text, str) else text
    found = mw.Matcher(table).accepts([1 + b for b in data])
    if write is not None and isinstance(text, str):
        for _ in range(3):
            assert mw.Matcher(table).accepts(write.spelled(text)) == found, text
    return found


# ------------------------------------------------------------------------------------------- tokens and their bytes

LAYOUTS = (
    Layout(),
    Layout(flexible=False),
    Layout(False, b", ", b": "),
    Layout(ascii=True),
    Layout(False, b" ,\n", b"\t: ", True),
)


def compare(schema, vocab, layout, rng, steps):
    """Walk along a table and its bytes side by side, from the start again at an end; prefer what leads elsewhere."""
    machine = Bytes(schema, vocab, layout)
    matcher, place, text = mw.Matcher(machine.table), (0, ()), b""
    for _ in range(steps):
        moves = machine.moves(place, vocab.tokens)
        ends = place[0] in machine.accepting and not place[1]
        assert matcher.is_accepting == ends, text
        allowed = set(allowed_by(matcher)) - {0}
        assert allowed == set(moves), (text, [vocab.tokens[v] for v in allowed ^ set(moves)][:9])
        for token, reached in moves.items():
            ahead = matcher.copy()
            assert ahead.advance(token)
            assert (ahead.state, ahead.stack) == reached, (text, vocab.tokens[token])
        if not moves:
            assert ends, f"nothing may follow {text!r}"
            matcher, place, text = mw.Matcher(machine.table), (0, ()), b""
            continue
        ways: dict[object, list[int]] = {}
        for token, reached in moves.items():
            ways.setdefault(reached, []).append(token)
        if len(ways) > 1 and rng.random() < 0.7:
            ways.pop(place, None)
        token = rng.choice(rng.choice(list(ways.values())))
        if not text:  # into what has parts
            token = next((v for v in rng.sample(list(moves), len(moves)) if vocab.tokens[v][:1] in b'{["'), token)
        assert matcher.advance(token)
        place, text = moves[token], text + vocab.tokens[token]


@pytest.mark.long
@pytest.mark.parametrize("name", PIECES)
def test_every_token_does_what_its_bytes_do(name):
    rng = random.Random(name)
    for layout in LAYOUTS:
        for _ in range(TIMES):
            compare(PIECES[name], vocabulary(), layout, rng, 20)


@pytest.mark.parametrize("name", PIECES)
def test_vocabularies_of_little_more_than_bytes_do_too(name):
    few = mw.Vocabulary.from_bytes([*BYTES, b'","', b'{"', b'"a', b"]]", b"\\u00"], eos=0)
    rng = random.Random(name)
    for layout in LAYOUTS:
        for _ in range(TIMES):
            compare(PIECES[name], few, layout, rng, 30)


@pytest.mark.long
@pytest.mark.parametrize("name", ["other keys", "a choice by label", "from to"])
def test_every_token_of_a_real_vocabulary_does_what_its_bytes_do(name):
    _, vocab = tekken()
    machine = Bytes(PIECES[name], vocab, Layout())
    write = random.Random(name)
    for _ in range(2 * TIMES):
        matcher, place = mw.Matcher(machine.table), (0, ())
        for _ in range(3):
            moves = machine.moves(place, vocab.tokens)
            assert set(allowed_by(matcher)) - {vocab.eos} == set(moves)
            for token in write.sample(list(moves), min(2000, len(moves))):
                ahead = matcher.copy()
                assert ahead.advance(token)
                assert (ahead.state, ahead.stack) == moves[token], vocab.tokens[token]
            if not moves:
                break
            likely = [v for v in moves if vocab.tokens[v][:1] in b'{["'] or list(moves)
            token = write.choice(likely)
            assert matcher.advance(token)
            place = moves[token]


# ------------------------------------------------------------------------------------------------- random schemas

SPACING = {
    "flexible": (", ", ": "),
    "compact": (",", ":"),
    (", ", ": "): (", ", ": "),
    (" ,\n", "\t:"): (" ,\n", "\t:"),
}
INDENTS = (None, None, "", "  ", "    ", "\t")


def judge(schema, candidates, seed, validator):
    """Assert that what a schema's tables write is valid, and that all that is valid can be written."""
    write = writer(seed)
    spacing, (comma, colon) = write.rng.choice(list(SPACING.items()))
    ascii = write.rng.random() < 0.4
    options = {"any_order": write.rng.random() < 0.4, "budget": mw.Budget(seconds=20)}
    try:
        table = mw.compile_json_schema(schema, vocabulary(), whitespace=spacing, ascii=ascii, **options)
        other = mw.compile_json_schema(schema, vocabulary(), ascii=not ascii, **options)
    except SchemaError as error:
        reason = str(error)
        if "matches no value" in reason:
            assert not any(map(validator.is_valid, candidates)), "called empty"
        else:
            assert re.search('"uniqueItems"|"minProperties"|"maxProperties"|reference loop', reason)
        return
    for _ in range(4):
        text = write.written(table)
        if text is None:
            continue
        assert not ascii or text.isascii()
        value = json.loads(text)  # of a key that comes twice the last value counts
        if not is_plain(value):
            continue
        assert validator.is_valid(value), ("written, and not valid", text)
        try:
            parsed(text)
        except TwiceError:
            continue
        for again, not_ascii, separators in ((table, not ascii, (comma, colon)), (other, ascii, (", ", ": "))):
            indent = write.rng.choice(INDENTS) if again is other or spacing == "flexible" else None
            plain = dumps(value, not not_ascii, *separators, indent)
            if " " * 65 in plain or "\t" * 17 in plain:
                continue
            assert mw.Matcher(again).accepts(write.spelled(plain)), ("the same, refused", text, plain)
    for value in candidates:
        valid = validator.is_valid(value)
        indent = write.rng.choice(INDENTS) if spacing == "flexible" else None
        written = [dumps(ordered, ascii, comma, colon, indent) for ordered in itertools.islice(orders(value), 200)]
        found = [text for text in written if mw.Matcher(table).accepts(write.spelled(text))]
        assert bool(found) == valid, (value, found)
        if options["any_order"]:
            assert len(found) in (0, len(written)), (value, found)


@pytest.mark.long
@pytest.mark.parametrize("draft", VALIDATORS)
def test_schemas_of_all_keywords_allow_what_fits_and_nothing_else(draft):
    @settings(RANDOM, max_examples=60 * TIMES)
    @given(schemas(draft), st.lists(values, min_size=6, max_size=6), st.integers(0, 2**32))
    def judged(schema, candidates, seed):
        if draft == 2019:  # there jsonschema 4.26 takes the keywords of "additionalProperties" for keys it evaluates
            assume(not {"additionalProperties", "unevaluatedProperties"} <= set(re.findall(r"\w+", str(schema))))
        judge(schema, candidates, seed, VALIDATORS[draft](schema))

    judged()


@pytest.fixture
def ecma(monkeypatch):
    monkeypatch.setattr(jsonschema._keywords, "re", EcmaRe())
    monkeypatch.setattr(jsonschema._utils, "re", EcmaRe())


@pytest.mark.long
@settings(RANDOM, max_examples=300 * TIMES)
@given(schema=odd_schemas, candidates=st.lists(odd_values, min_size=4, max_size=4), seed=st.integers(0, 2**32))
def test_schemas_of_odd_keys_and_texts_allow_what_fits_and_nothing_else(ecma, schema, candidates, seed):
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    with contextlib.suppress(RecursionError):  # of jsonschema, on {"not": {"$ref": "#"}} and its like
        judge(schema, candidates, seed, validator)


# --------------------------------------------------------------------------------------------------- texts by hand

ASCII, COMPACT = {"ascii": True}, {"whitespace": "compact"}
OPEN = {"properties": {"a": {"type": "null"}, "ab": {"type": "null"}}}
ODD = {
    "properties": {"a\nb": {"type": "null"}, "é": {"type": "null"}, 'q"': {"type": "null"}, "\x7f": {"type": "null"}}
}
TEXTS = [
    # a key that is not declared may begin with the bytes of one that is, inside a character too
    (
        {"properties": {"日": {"type": "null"}, "né": {"type": "null"}, "😀a": {"type": "null"}}},
        {},
        ['{"日": null}', '{"旦": 1}', '{"日本": 1}', '{"né": null, "n": 1, "nè": 1}', '{"😁": 1, "😀": 1, "😀b": 1}'],
        [
            '{"日": 1}',
            '{"né": 1}',
            '{"😀a": 1}',
            '{"\\u65e5": 1}',
            b'{"\xe6": 1}',
            b'{"\xe6A": 1}',
            b'{"\xe6\x97": 1}',
            b'{"\xe6\x97A": 1}',
            b'{"n\xc3": 1}',
            b'{"n\xc3\\u00e9": 1}',
            b'{"\xf0\x9f\x98a": 1}',
        ],
    ),
    # a key that is not declared may come twice: what is to fail fails at last, and nothing counts such keys
    (
        {"type": "object", "not": {"additionalProperties": {"type": "string"}}},
        {},
        ['{"a": 1}', '{"a": "", "b": 1}', '{"a": "", "a": 1}', '{"b": 1, "a": 2}'],
        ["{}", '{"a": ""}', '{"a": 1, "a": ""}', '{"a": 1, "b": ""}'],
    ),
    (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "string"}},
            "not": {"patternProperties": {"^a": {"maxLength": 1}, "^b": {"type": "null"}}},
        },
        {},
        ['{"a": "xy"}', '{"a": "", "a": "xy"}', '{"a": "xy", "c": 1}', '{"a": "", "b": 1}', '{"b": null, "a": "xy"}'],
        ["{}", '{"a": ""}', '{"a": "xy", "a": ""}', '{"b": 1, "b": null}', '{"b": null, "c": 1}', '{"b": 1, "a": ""}'],
    ),
    (
        {"type": "object", "propertyNames": {"enum": ["b", "a", "é"]}, "minProperties": 2, "maxProperties": 2},
        {},
        ['{"b": 1, "a": 2}', '{"b": 1, "é": 2}', '{"a": 1, "é": 2}'],
        ['{"b": 1}', '{"a": 1, "a": 2}', '{"b": 1, "a": 2, "é": 3}', '{"b": 1, "c": 2}', '{"é": 1, "\\u00e9": 2}'],
    ),
    (
        {"patternProperties": {"^[a-f]$": {"type": "null"}}, "additionalProperties": False, "minProperties": 3},
        {},
        ['{"a": null, "c": null, "f": null}'],
        ['{"a": null, "c": null}', '{"a": null, "a": null, "c": null}', '{"a": null, "c": null, "g": null}'],
    ),
    (  # others may come as no more than one is lacking besides those that are required
        {
            "type": "object",
            "properties": {"a": {}, "b": {}, "z": {}},
            "required": ["z"],
            "minProperties": 3,
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        {},
        ['{"a": 1, "b": 1, "z": 1}', '{"b": 1, "z": 1, "q": 1}', '{"q": 1, "a": 1, "q": 2, "z": 1}'],
        [
            '{"a": 1, "z": 1}',
            '{"q": 1, "q": 1, "z": 1}',
            '{"z": 1, "q": 1, "r": 1}',
            '{"a": 1, "b": 1, "q": 1}',
            '{"a": 1, "b": 1}',
        ],
    ),
    (  # behind which anything may come, that is any character that begins with the same byte too
        {"type": "string", "pattern": "^[À-ÿ]"},
        {},
        ['"é"', '"éa"', '"Àé"', '"ÿ\\n"', '"é\\u00e9"'],
        ['""', '"a"', '"aé"', '"あ"', b'"\xc3"', b'"\xc3\xa9\xc3"'],
    ),
    # keys come in the order of the schema, others anywhere, and none that is declared comes twice in any spelling
    (
        OPEN,
        {},
        [
            '{"a": null, "ab": null, "b": 1}',
            '{"b": 1, "a": null, "c": 1, "ab": null}',
            '{"ab": null}',
            "{}",
            '{"x": 1, "x": 2}',
            '{"": 1}',
            '{"abc": 1}',
        ],
        [
            '{"a": 1}',
            '{"ab": null, "a": null}',
            '{"a": null, "b": 1, "a": null}',
            '{"a": null, "a": null}',
            '{"\\u0061": 1}',
            '{"a\\u0062": 1}',
        ],
    ),
    (
        OPEN,
        {},
        ['{"\\n": 1}', '{"a\\"": 1}', '{"a\\u0000": 1}', '{"a\\u00e9": 1}', '{"é": 1}', '{"\\ud83d\\ude00": 1}'],
        [
            '{"\\q": 1}',
            '{"\\ud83d": 1}',
            '{"a\\ude00": 1}',
            b'{"a\xc3": 1}',
            b'{"\xff": 1}',
            '{"\n": 1}',
        ],
    ),
    (
        OPEN,
        ASCII,
        ['{"a\\u00e9": 1}', '{"\\ud83d\\ude00": 1}', '{"\\u007f": 1}', '{"\\u0022": 1, "\\u005c": 1}'],
        [
            '{"é": 1}',
            '{"\x7f": 1}',
            '{"\\u0061": 1}',
            '{"a": 1}',
        ],
    ),
    # declared keys that JSON escapes, or UTF-8 spells with several bytes, are told from others wherever they part
    (
        ODD,
        {},
        ['{"a\\nb": null, "é": null}', '{"a\\u000ab": null}', '{"a\\rb": 1, "è": 1}', '{"q\\\\": 1}', '{"\x7f": null}'],
        [
            '{"a\\nb": 1}',
            '{"a\\u000ab": 1}',
            '{"a\\u000Ab": 1}',
            '{"a\\qb": 1}',
            b'{"\xc3b": 1}',
            '{"é": 1}',
            '{"q\\u0022": 1}',
            '{"\x7f": 1}',
        ],
    ),
    (
        ODD,
        ASCII,
        ['{"\\u00e9": null}', '{"\\u00E9": null}', '{"\\u00e8": 1}', '{"\\u007f": null}', '{"x\\u0080": 1}'],
        [
            '{"\\u00e9": 1}',
            '{"\\u00E9": 1}',
            '{"é": null}',
            '{"\\u007F": 1}',
            '{"\x7f": 1}',
        ],
    ),
    (
        {"properties": {"k" * n: {"const": n} for n in range(4)}, "additionalProperties": False},
        {},
        [
            '{"": 0, "k": 1, "kk": 2, "kkk": 3}',
            '{"kk": 2}',
        ],
        ['{"kkkk": 4}', '{"": 1}', '{"kk": 2, "k": 1}'],
    ),
    (
        {"required": ["b", "a"]},
        {},
        ['{"b": 1, "a": 2, "c": 3}', '{"c": 3, "b": 1, "d": 3, "a": 2}'],
        ['{"a": 2, "b": 1}', '{"c": 3, "a": 2, "b": 1}', '{"b": 1}'],
    ),
    # strings that exclude what must be escaped
    ({"pattern": '^[^"]*$'}, {}, ['"a\\\\\\n"'], ['"\\""', '"\\u0022"']),
    ({"type": "string", "pattern": r"^[^\n]*$"}, {}, ['"a\\"\\r"', '"\\u000d"'], ['"\\n"', '"\\u000A"']),
    ({"type": "string", "pattern": r"^[^\x00-\x1f]*$"}, {}, ['"\\\\é"'], ['"\\t"', '"\\u001F"', '"\\b"']),
    # digits of an escape, and the bytes beside them
    (
        {"type": "string", "pattern": r"^[\x00-\x1f]*$"},
        {},
        ['"\\u000a\\u001F\\u0019\\u0000"'],
        ['"\\u000`"', '"\\u001@"', '"\\u000g"', '"\\u000G"', '"\\u001:"', '"\\u001/"', '"\\u000"', '"\\u0020"'],
    ),
    (
        {"type": "string", "not": {"enum": ["abc"]}},
        {},
        ['"ab"', '"é"', '"\\n"', '"abcd"'],
        ['"abc"', '"a\\u0062c"', "1"],
    ),
    ({"type": "string", "not": {"enum": ["abc"]}}, ASCII, ['"ab\\u00e9"', '"\\ud83d\\ude00"'], ['"abc"', '"é"']),
    ({"enum": ["é\x7f\n"]}, ASCII, ['"\\u00e9\\u007f\\n"'], ['"é\x7f\\n"']),
    ({"type": "string", "pattern": "^[\x7fa]$"}, ASCII, ['"\\u007f"', '"\\u007F"', '"a"'], ['"\x7f"', '"\\u007e"']),
    ({"type": "string", "pattern": "^[\x7fa]$"}, {}, ['"\x7f"', '"a"'], ['"~"']),
    # space
    (
        [1, {"a": []}],
        {},
        ['[1, {"a": []}]', '[1,{"a":[]}]', '[\n  1,\n  {\n    "a": []\n  }\n]', '[\n\t1,\n\t{\n\t\t"a": []\n\t}\n]'],
        [
            '[ 1, {"a": []}]',
            '[1 , {"a": []}]',
            '[1,  {"a": []}]',
            '[1, {"a" : []}]',
            '[1, {"a": [ ]}]',
            ' [1, {"a": []}]',
            '[1, {"a": []}] ',
            '[1, {"a": []}]\n',
        ],
    ),
    ([1, {"a": []}], COMPACT, ['[1,{"a":[]}]'], ['[1, {"a":[]}]', '[1,{"a": []}]', '[\n1,{"a":[]}]']),
    ([1, {"a": []}], {"whitespace": (" ,", "\t:\n")}, ['[1 ,{"a"\t:\n[]}]'], ['[1,{"a":[]}]', '[1, {"a": []}]']),
    # numbers
    (
        {"type": "number"},
        {},
        ["1e5", "-0.5E+7", "0", "-0", "10"],
        ["01", "+1", ".5", "1.", "NaN", "Infinity", "0x1", ""],
    ),
    ({"type": "integer"}, {}, ["12", "-0"], ["1.0", "1e2", "012", "-"]),
    ({"const": 1}, {}, ["1", "1.0"], ["1.00", "1e0", "01", "true"]),
    ({"type": "integer", "const": 1.0}, {}, ["1"], ["1.0"]),
    ('{"const": 100000000000000000000000000000000000001}', {}, ["1" + "0" * 37 + "1"], ["1" + "0" * 37 + "2", "1e38"]),
    ({"minimum": 1, "exclusiveMaximum": 1.5, "type": "number"}, {}, ["1", "1.25", "1.49999"], ["1.5", "0.9", "1.50"]),
    # counted strings
    (
        {"type": "string", "minLength": 1, "maxLength": 2},
        {},
        ['"é😀"', '"\\n\\u00e9"', '"\\ud83d\\ude00a"'],
        ['""', '"abc"', '"\\n'],
    ),
    ({"type": "string", "maxLength": 0}, {}, ['""'], ['"a"', '"\\', '"\\u0000"']),
    # members in any order
    (
        {"properties": {"a": {"type": "null"}, "b": {"$ref": "#"}, "é": {"type": "null"}}, "required": ["a", "é"]},
        {"any_order": True},
        [
            '{"é": null, "a": null}',
            '{"x": 1, "é": null, "x": 2, "a": null, "b": 3, "y": {}}',
            '{"b": {"é": null, "b": [], "a": null}, "a": null, "é": null}',
        ],
        ['{"é": null}', '{"é": null, "a": null, "é": null}', '{"\\u00e9": null, "a": null, "é": null}',
         '{"é": 1, "a": null}', '{"b": {"b": 1, "a": null}, "a": null, "é": null}'],
    ),
    (
        {
            "oneOf": [
                {"properties": {"t": {"const": 1}, "x": {"type": "string"}}, "required": ["t", "x"]},
                {"properties": {"t": {"const": 2}, "y": {}}, "required": ["y"], "additionalProperties": False},
            ]
        },
        {"any_order": True},
        ['{"x": "", "t": 1}', '{"y": 1, "x": "", "t": 1}', '{"t": 1, "y": 1, "x": ""}', '{"y": 1, "t": 2}', '{"y": 1}'],
        ['{"x": "", "t": 2}', '{"y": 1, "t": 1}', '{"x": 1, "t": 1}', '{"y": 1, "t": 2, "y": 1}', '{"t": 2}'],
    ),
    (
        {"properties": {"a": {}, "b": {}}, "patternProperties": {"^b": {"type": "null"}, "c$": {}}, "minProperties": 1,
         "dependentRequired": {"bc": ["a"]}, "additionalProperties": False},
        {"any_order": True},
        ['{"bc": null, "b": null, "a": 1}', '{"a": 1, "bc": null}', '{"c": 1, "b": null}', '{"cc": 1}'],
        ["{}", '{"bc": null}', '{"bc": null, "c": 1}', '{"bc": 1, "a": 1}', '{"b": null, "c": 1, "b": null}', '{"d'],
    ),
    # where a declared member fails it stays so, as it does not come again
    (
        {"type": "object", "not": {"properties": {"k": {"type": "string"}},
                                   "additionalProperties": {"type": "string"}}},
        {"any_order": True},
        ['{"x": 1, "k": 1, "y": ""}', '{"k": 1, "x": ""}', '{"x": "", "k": "", "y": 1}'],
        ['{"x": 1, "k": "", "y": ""}', '{"x": "", "k": ""}'],
    ),
    (
        {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"], "minProperties": 2, "maxProperties": 2},
        {"any_order": True},
        ['{"c": 1, "b": 2}', '{"x": 1, "b": 2}', '{"b": 1, "x": 2}'],
        ['{"b": 1}', '{"c": 1, "a"', '{"c": 1, "x"', '{"c": 1, "b": 1, "a"'],
    ),
    # keys that are required twice come once: that too few are told apart shows before the first of them
    (
        {
            "type": "object",
            "properties": {"c": {}},
            "required": ["b", "c"],
            "oneOf": [
                {"properties": {"b": {}}, "required": ["c", "b"], "additionalProperties": False},
                {"maxProperties": 4},
            ],
        },
        {"any_order": True},
        ['{"b": 2, "c": 1}', '{"b": 2, "x": 1, "c": 1}', '{"y": 2, "c": 1, "x": 2, "b": 1}'],
        ['{"b": 2, "x": 1}', '{"b": 2, "x": 1, "c": 1, "x"', '{"v": 2, "w": 2, "x": 1, "y": 1, "z"'],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "options", "accepted", "rejected"), TEXTS, ids=lambda x: str(x)[:40])
def test_exactly_the_texts_in_the_schemas_form_are_allowed(schema, options, accepted, rejected):
    if isinstance(schema, list):
        schema = {"const": schema}
    table = mw.compile_json_schema(schema, vocabulary(), **options)
    for text in accepted:
        assert takes(table, text, writer()), text
    for text in rejected:
        assert not takes(table, text, writer()), text


@pytest.mark.parametrize(
    ("schema", "accepted", "begun"),
    [
        ({"enum": [[0, None], [None]], "maxItems": 1}, "[null]", "[0"),
        ({"enum": [[1, None], [1.5]], "maxItems": 1}, "[1.5]", "[1.0"),
        ({"enum": [["ab", 1], ["abc"]], "maxItems": 1}, '["abc"]', '["ab"'),
        ({"enum": [[{"a": 1}, 1], [{"a": 2}]], "maxItems": 1}, '[{"a": 2}]', '[{"a": 1'),
        ({"enum": [[[[1]], 1], [[[2]]]], "maxItems": 1}, "[[[2]]]", "[[[1"),
        ({"enum": [{"a": "é", "b": 1}, {"a": "è"}], "maxProperties": 1}, '{"a": "è"}', '{"a": "é'),
        (
            {"properties": {"a": {}, "b": {}}, "minProperties": 2, "additionalProperties": False,
             "anyOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": False}}]},
            '{"a": 1, "b": 0}', '{"a": 2',
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("any_order", [False, True])
def test_what_cannot_be_finished_is_not_begun(schema, accepted, begun, any_order):
    table = mw.compile_json_schema(schema, vocabulary(), any_order=any_order)
    assert takes(table, accepted, writer())
    matcher = mw.Matcher(table)
    assert all(matcher.advance(1 + b) for b in begun.encode()[:-1])
    assert not matcher.advance(1 + begun.encode()[-1])


@pytest.mark.long
def test_a_lazy_table_has_only_the_sets_of_keys_that_texts_reach():
    """Forty members in forty orders, of 2^40 sets."""
    keys = [f"k{i}" for i in range(40)]
    schema = {"properties": {key: {"type": "integer"} for key in keys}, "required": keys, "additionalProperties": False}
    table = mw.compile_json_schema(schema, vocabulary(), any_order=True, whitespace="compact")
    rng = random.Random(0)
    for _ in range(40):
        rng.shuffle(keys)
        text = json.dumps({key: i for i, key in enumerate(keys)}, separators=(",", ":"))
        assert takes(table, text, writer())
        assert not takes(table, text.replace(f'"{keys[0]}"', f'"{keys[1]}"'), writer())


@pytest.mark.long
def test_a_lazy_table_lasts_however_many_sets_of_keys_texts_reach():
    """Of each of its machines an eighth of the budget is used, but by a matcher that goes on."""
    keys = [f"k{i}" for i in range(30)]
    schema = {"properties": {key: {"type": "integer"} for key in keys}, "additionalProperties": False}
    options = {"any_order": True, "whitespace": "compact"}
    table = mw.compile_json_schema(schema, vocabulary(), budget=mw.Budget(states=60_000), **options)
    rng, machines, again = random.Random(0), set(), mw.Matcher(table)
    for _ in range(60):
        text = json.dumps(dict.fromkeys(rng.sample(keys, 20), 1), separators=(",", ":"))
        again.reset()
        assert takes(table, text, writer())
        assert all(again.advance(1 + byte) for byte in text.encode())
        assert again.is_accepting
        machines.add(id(table.machine))
    assert len(machines) > 1
    small = {"properties": {key: {"type": "integer"} for key in "abc"}, "additionalProperties": False}
    tight = mw.compile_json_schema(small, vocabulary(), budget=mw.Budget(states=4_000), **options)
    machine = tight.machine  # of which much was written before a text came
    assert takes(tight, '{"b":1,"a":2}', writer())
    assert tight.reading() is machine
    assert mw.compile_json_schema(small, vocabulary(), **options).to_table().accepts(writer().spelled('{"b":1,"a":2}'))


@pytest.mark.parametrize("lazy", [True, False])
def test_what_does_not_recurse_is_as_deep_as_it_is(lazy):
    schema, value = {"type": "integer"}, 1
    for _ in range(70):
        schema = {"properties": {"k": schema}, "required": ["k"], "type": "object", "additionalProperties": False}
        value = {"k": value}
    for any_order in (False, True):
        table = mw.compile_json_schema(schema, vocabulary(1000), any_order=any_order, lazy=lazy)
        assert takes(table, json.dumps(value), writer(0, 1000))
    table = mw.compile_json_schema({"enum": [{"x": {"ax": {}}}]}, vocabulary(1000), any_order=True, lazy=lazy, depth=1)
    assert takes(table, '{"x": {"ax": {}}}', writer(0, 1000))


def test_schemas_as_text_or_with_options_written_otherwise_are_the_same():
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tables = [
        mw.compile_json_schema(source, vocabulary(), whitespace=(",", ":"), allow=[], documents={})
        for source in (schema, json.dumps(schema), json.dumps(schema, indent=1).encode())
    ]
    assert len({table.source for table in tables}) == 1
    assert tables[0].source != mw.compile_json_schema(schema, vocabulary()).source
    assert all(takes(table, '{"a":5}') for table in tables)


@pytest.mark.parametrize("depth", [1, 2, 7, 64])
def test_recursion_is_exact_to_the_depth_asked_for(depth):
    array = {"type": "array", "items": {"$ref": "#"}}
    for schema in (array, True, {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [array, {"type": "null"}]}}}):
        table = mw.compile_json_schema(schema, vocabulary(), depth=depth)
        texts = {n: "[" * n + "]" * n for n in range(1, 80)}
        assert [n for n in texts if takes(table, texts[n])] == list(range(1, depth + 1))
        # a token that opens and closes again counts for what it leaves open
        assert all(takes(table, texts[n], writer()) for n in range(1, depth + 1))


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_an_integer_is_written_without_a_fraction_in_each_draft(draft):
    """In draft 4 the number 1.0 is no integer; in later ones it is, and is written 1."""
    for schema in (
        {"type": "integer"},
        {"type": ["integer", "null"], "minimum": 0},
        {"type": "integer", "enum": [1.0]},
    ):
        table = mw.compile_json_schema({"$schema": draft, **schema}, vocabulary())
        assert takes(table, "1")
        assert not any(takes(table, text) for text in ("1.0", "1.00", "1e0", "10e-1", "1.5"))
    table = mw.compile_json_schema({"$schema": draft, "type": "number", "not": {"type": "integer"}}, vocabulary())
    assert [text for text in ("1", "1.0", "1.5") if takes(table, text)] == ["1.5"]


def rings(length):
    """Return a schema of which every text holds `length` recursive schemas inside one another."""
    parts = {}
    for n in range(length):
        refs = {"x": {"$ref": f"#/$defs/{(n + 1) % length}"}, "y": {"$ref": f"#/$defs/{n}"}}
        required = ["x"] if n < length - 1 else []
        parts[str(n)] = {"type": "object", "properties": refs, "required": required, "additionalProperties": False}
    return {"$ref": "#/$defs/0", "$defs": parts}


@pytest.mark.parametrize("length", [2, 3, 5])
@pytest.mark.parametrize("lazy", [True, False])
def test_a_depth_that_is_enough_for_no_text_is_refused_with_what_is(lazy, length):
    schema, text = rings(length), '{"x": ' * (length - 1) + "{}" + "}" * (length - 1)
    for depth in range(1, length):
        with pytest.raises(ConstraintError, match=f"depth {depth} is enough for no text: raise it to {length}"):
            mw.compile_json_schema(schema, vocabulary(), lazy=lazy, depth=depth)
    table = mw.compile_json_schema(schema, vocabulary(), lazy=lazy, depth=length)
    assert mw.Matcher(table).accepts([1 + b for b in text.encode()])
    assert takes(table, text)


@pytest.mark.parametrize("lazy", [True, False])
def test_a_depth_is_enough_where_a_token_holds_a_text_that_fits(lazy):
    """Where keys are told apart, they need as much as the deepest of them until one has been read."""
    lists, inside = {"type": "array", "items": {"const": 1}, "minItems": 1}, {"$ref": "#/$defs/d"}
    keys = {"patternProperties": {"b$": lists, "^a": inside}, "additionalProperties": False, "minProperties": 1}
    schema = {"$ref": "#/$defs/d", "$defs": {"d": {"type": "object", **keys}}}
    for tokens, fits in (([], False), ([b'{"b":[1]}'], True)):
        vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *tokens], eos=0)
        if fits:
            table = mw.compile_json_schema(schema, vocab, lazy=lazy, depth=1, whitespace="compact")
            assert mw.Matcher(table).accepts([257])
            continue
        with pytest.raises(ConstraintError, match="depth 1 is enough for no text: raise it to 2"):
            mw.compile_json_schema(schema, vocab, lazy=lazy, depth=1, whitespace="compact")


def test_within_max_tokens_whatever_is_written_is_complete_near_the_depth_too():
    table = mw.compile_json_schema(TREE, vocabulary(), depth=3)
    write = writer(1)
    for _ in range(50):
        value = json.loads(write.written(table))
        assert jsonschema.Draft202012Validator(TREE).is_valid(value)


# --------------------------------------------------------------------------------------------------- official suite

RIGHT, RIGHT_OF_ALL = 1279, 2133  # of 1,299 tests, and of 2,225 with the optional ones; they may only rise


@pytest.mark.skipif(not SUITE.exists(), reason="the official suite is not beside this checkout")
def test_the_official_suite_is_decided_rightly_and_nothing_is_accepted_wrongly():
    documents = {
        f"http://localhost:1234/{path.relative_to(SUITE / 'remotes')}": path.read_text()
        for path in (SUITE / "remotes").rglob("*.json")
    }
    write = writer()
    right, wrong, refused = 0, [], []
    folder = (SUITE / "tests" if (SUITE / "tests").exists() else SUITE) / "draft2020-12"
    optional = (folder / "optional").exists()
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text()):
            table, reason = None, ""
            try:
                table = mw.compile_json_schema(group["schema"], vocabulary(), documents=documents)
            except ConstraintError as error:
                reason = str(error)
            for case in group["tests"]:
                where = path.stem, group["description"], case["description"]
                if table is None and "matches no value" not in reason:
                    refused.append((where, reason))
                    continue
                texts = (
                    dumps(value, False, ", ", ": ") for value in itertools.islice(orders(case["data"]), 60)
                )  # which keys are declared, and so their order, is not always plain
                found = table is not None and any(mw.Matcher(table).accepts(write.spelled(text)) for text in texts)
                right += found == case["valid"]
                if found != case["valid"]:
                    wrong.append((where, found))
    assert [where for where, found in wrong if found] == [], "accepted wrongly"
    assert right >= (RIGHT_OF_ALL if optional else RIGHT)
    # formats are assertions here, and annotations there; three are known between bounds only
    between = {"hostname", "idn-hostname", "ecmascript-regex"} if optional else set()
    assert {where[0] for where, _ in wrong} == {"format"} | between
    assert {where[0] for where, _ in refused} <= {
        "uniqueItems",
        "dependentSchemas",
        "dependencies-compatibility",
        "defs",
        "ref",
        "format",
        "multipleOf",
    }


# --------------------------------------------------------------------------------------------------- hostile schemas


def within(times, wrap, inside=True):
    for _ in range(times):
        inside = wrap(inside)
    return inside


def in_member(schema):
    return {"properties": {"a": schema}}


def named(count):
    return [f"k{i:05d}" for i in range(count)]


def chain(count, link, last):
    return {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{i}": link(f"#/$defs/d{i + 1}", i) for i in range(count)} | {f"d{count}": last},
    }


def itself():
    schema = {"properties": {}}
    schema["properties"]["a"] = schema
    return schema


def member(i: int) -> dict[str, Any]:
    return {"properties": {f"k{i}": {"const": i}}, "required": [f"k{i}"]}


LINKS: dict[str, Callable[[int, Any], Any]] = {  # what names the next twice: written out, it is 2^n times as long
    "if, then, else not": lambda i, to: {"if": member(i), "then": to, "else": {"not": to}},
    "a condition": lambda i, to: {"if": to, "then": member(i), "else": {"required": [f"q{i}"]}},
    "one of": lambda i, to: {"oneOf": [{"allOf": [to, member(i)]}, {"allOf": [to, {"required": [f"q{i}"]}]}]},
    "any of": lambda i, to: {"anyOf": [{"allOf": [to, member(i)]}, {"not": to, "required": [f"q{i}"]}]},
    "items": lambda i, to: {"anyOf": [{"items": to}, {"items": {"not": to}}]},
    "patterns": lambda i, to: {"if": {"pattern": f"a{i}"}, "then": to, "else": {"not": to}},
    "multiples": lambda i, to: {"if": {"multipleOf": i + 2}, "then": to, "else": {"not": to}},
    "bounds": lambda i, to: {"if": {"minimum": i}, "then": to, "else": {"not": to}},
    "counts": lambda i, to: {"if": {"minProperties": i + 1}, "then": to, "else": {"not": to}},
}


def chained(link: str, levels: int) -> dict[str, Any]:
    """A chain of definitions, each of which names the next twice."""
    defs: dict[str, Any] = {f"d{i}": LINKS[link](i, {"$ref": f"#/$defs/d{i + 1}"}) for i in range(levels)}
    defs[f"d{levels}"] = {"type": ["object", "array", "string", "number"]}
    return {"$defs": defs, "$ref": "#/$defs/d0"}


def doubled(levels: int) -> dict[str, Any]:
    """An object that holds another twice, and so on: written out, it is 2^n times as long."""
    value: dict[str, Any] = {"a": 1}
    for _ in range(levels):
        value = {"a": value, "b": value}
    return value


ANY_END = (None, SchemaError, BudgetError)
INTEGER = {"type": "integer"}
HOSTILE = {
    "300 levels of members": (None, lambda: within(300, in_member, INTEGER)),
    "600 levels of items": (None, lambda: within(600, lambda s: {"type": "array", "items": s})),
    "100,000 levels of members": (SchemaError, lambda: within(100_000, in_member, INTEGER)),
    "100,000 levels of items": (SchemaError, lambda: within(100_000, lambda s: {"items": s})),
    "100,000 levels of text": (SchemaError, lambda: '{"properties":{"a":' * 100_000 + "true" + "}}" * 100_000),
    "1,000 levels of allOf": (SchemaError, lambda: within(1_000, lambda s: {"allOf": [s]}, INTEGER)),
    "100,000 levels of not": (SchemaError, lambda: within(100_000, lambda s: {"not": s}, INTEGER)),
    "1,000 levels of not in members": (ANY_END, lambda: within(1_000, lambda s: {"not": in_member(s)}, INTEGER)),
    "a dict in itself": (None, itself),
    "dicts that are used twice at 30 levels": (
        None,
        lambda: within(30, lambda s: {"oneOf": [in_member(s), {"properties": {"b": s}}]}, INTEGER),
    ),
    "1,000 optional members, others free": (None, lambda: {"properties": dict.fromkeys(named(1_000), INTEGER)}),
    "10,000 optional members, others free": (ANY_END, lambda: {"properties": dict.fromkeys(named(10_000), INTEGER)}),
    "10,000 required members": (
        ANY_END,
        lambda: {
            "properties": dict.fromkeys(named(10_000), INTEGER),
            "required": named(10_000),
            "additionalProperties": False,
        },
    ),
    "10,000 members and a pattern": (
        BudgetError,
        lambda: {"properties": dict.fromkeys(named(10_000), INTEGER), "patternProperties": {"^k.*1": {"minimum": 3}}},
    ),
    "500 members at least of 1,000": (
        BudgetError,
        lambda: {
            "properties": dict.fromkeys(named(1_000), INTEGER),
            "additionalProperties": False,
            "minProperties": 500,
        },
    ),
    "10,000 strings": (None, lambda: {"enum": named(10_000)}),
    "10,000 integers": (None, lambda: {"enum": list(range(10_000))}),
    "10,000 fractions": (None, lambda: {"enum": [i / 7 for i in range(10_000)]}),
    "10,000 objects": (ANY_END, lambda: {"enum": [{"id": i, "n": k} for i, k in enumerate(named(10_000))]}),
    "300 objects": (None, lambda: {"enum": [{"id": i, "n": k} for i, k in enumerate(named(300))]}),
    "10,000 arrays": (ANY_END, lambda: {"enum": [[i, i] for i in range(10_000)]}),
    "all but 10,000 strings": (None, lambda: {"type": "string", "not": {"enum": named(10_000)}}),
    "all but 10,000 integers": (None, lambda: {"type": "integer", "not": {"enum": list(range(10_000))}}),
    "10,000 constants": (None, lambda: {"anyOf": [{"const": k} for k in named(10_000)]}),
    "one of 14 that overlap": (None, lambda: {"oneOf": [{"required": [k]} for k in named(14)]}),
    "one of 200 that overlap": (
        ANY_END,
        lambda: {"oneOf": [{"properties": {k: INTEGER}, "required": [k]} for k in named(200)]},
    ),
    "one of 300 by a constant": (
        None,
        lambda: {"oneOf": [{"properties": {"t": {"const": k}, "v": INTEGER}, "required": ["t"]} for k in named(300)]},
    ),
    "2 to the 40 of members": (
        BudgetError,
        lambda: {
            "allOf": [
                {"anyOf": [{"properties": {k: INTEGER}}, {"properties": {f"{k}x": {"type": "null"}}}]}
                for k in named(40)
            ]
        },
    ),
    "40 that exclude each other": (
        None,
        lambda: {"allOf": [{"oneOf": [{"required": [k]}, {"required": [f"{k}x"]}]} for k in named(40)]},
    ),
    "30 patterns at once": (BudgetError, lambda: {"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(30)]}),
    "30 patterns of keys": (
        BudgetError,
        lambda: {"patternProperties": {f"a.{{{i}}}b": {"minimum": i} for i in range(30)}},
    ),
    "60 dependencies": (BudgetError, lambda: {"dependentRequired": {k: [f"{k}x", f"{k}y"] for k in named(60)}}),
    "50 things to contain": (BudgetError, lambda: {"allOf": [{"contains": {"const": i}} for i in range(50)]}),
    "20 branches not evaluated": (
        BudgetError,
        lambda: {
            "allOf": [{"anyOf": [{"properties": {k: True}}, {"required": [f"{k}z"]}]} for k in named(20)],
            "unevaluatedProperties": False,
        },
    ),
    "a reference to itself": (SchemaError, lambda: {"$ref": "#"}),
    "a loop of references": (
        SchemaError,
        lambda: {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
            "properties": {"x": {"$ref": "#/$defs/a"}},
        },
    ),
    "2,000 references in a row": (SchemaError, lambda: chain(2_000, lambda ref, i: {"$ref": ref}, INTEGER)),
    "2 to the 60 references": (None, lambda: chain(60, lambda ref, i: {"allOf": [{"$ref": ref}] * 2}, INTEGER)),
    "an endless object": (
        SchemaError,
        lambda: {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
    ),
    "an endless array": (SchemaError, lambda: {"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    **{
        f"{keyword}: {count:,}": (BudgetError if count > 10**6 else ANY_END, lambda k=keyword, n=count: {k: n})
        for keyword in ("minItems", "maxItems", "minLength", "maxLength", "maxProperties")
        for count in (100_000, 10**9)
    },
    "a billion members": (SchemaError, lambda: {"minProperties": 10**9}),
    "a billion members of few": (ANY_END, lambda: {"minProperties": 10**9, "propertyNames": {"enum": ["a", "b"]}}),
    "a billion things to contain": (BudgetError, lambda: {"contains": {"const": 1}, "minContains": 10**9}),
    "a billion letters": (BudgetError, lambda: {"type": "string", "maxLength": 10**9, "pattern": "^[a-z]*$"}),
    "a minimum of 5,000 digits": (ANY_END, lambda: {"type": "integer", "minimum": 10**5000}),
    "a length of 5,000 digits": (SchemaError, lambda: {"type": "string", "minLength": 10**5000}),
    "a constant of 5,000 digits": (None, lambda: {"const": 10**5000}),
    "a constant of shared parts": (ANY_END, lambda: {"const": doubled(40)}),
    "a minimum of 1e400": (None, lambda: '{"type": "number", "minimum": 1e400}'),
    "a minimum of 1e99999": (ANY_END, lambda: '{"type": "integer", "minimum": 1e99999}'),
    "a minimum of 1e999999999": (BudgetError, lambda: '{"type": "integer", "minimum": 1e999999999}'),
    "a maximum of -1e-400": (None, lambda: '{"type": "number", "exclusiveMaximum": -1e-400}'),
    "multiples of 1e-300": (None, lambda: {"type": "number", "multipleOf": 1e-300}),
    "multiples of 1e300": (None, lambda: {"type": "integer", "multipleOf": 1e300}),
    "multiples of a large prime": (BudgetError, lambda: {"type": "integer", "multipleOf": 122949823}),
    "a constant of 100,000 digits": (ANY_END, lambda: '{"const":' + "1" * 100_000 + "}"),
    "a key of 100,000 characters": (ANY_END, lambda: {"properties": {"k" * 100_000: INTEGER}}),
    "a required key of as many of two bytes": (ANY_END, lambda: {"required": ["é" * 100_000]}),
    "a constant of a million characters": (BudgetError, lambda: {"const": "x" * 1_000_000}),
    "1,000 keys, each the beginning of the next": (
        ANY_END,
        lambda: {"properties": {"k" * n: {"const": n} for n in range(1_000)}},
    ),
    "a key that is no text": (SchemaError, lambda: {"properties": {"\ud800": True}}),
    "a pattern of nothing": (None, lambda: {"pattern": r"[^\s\S]"}),
    "a pattern of nothing, and nothing else": (SchemaError, lambda: {"type": "string", "pattern": "a^"}),
    "keys by patterns of nothing and everything": (
        None,
        lambda: {"patternProperties": {"a^": {"type": "null"}, r"[\s\S]*": {"minimum": 1}, "": {"maximum": 2}}},
    ),
    "a pattern that remembers": (BudgetError, lambda: {"pattern": "(a|b)*a(a|b){20}"}),
    "5,000 groups": (SchemaError, lambda: {"pattern": "(" * 5_000 + "a" + ")" * 5_000}),
    "a pattern of 100,000 characters": (ANY_END, lambda: {"pattern": "a" * 100_000}),
    "10,000 items of their own": (ANY_END, lambda: {"prefixItems": [{"const": i} for i in range(10_000)]}),
    **{f"a chain by {link}": (ANY_END, lambda k=link: chained(k, 30)) for link in LINKS},
    "100,000 definitions": (None, lambda: {"$defs": dict.fromkeys(named(100_000), INTEGER), "type": "null"}),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "lazy", [pytest.param(False, marks=pytest.mark.slow, id="complete"), pytest.param(True, id="lazy")]
)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_end_in_an_answer_or_an_error_within_the_budget(name, lazy):
    mw.compile_json_schema({"maxLength": 3, "pattern": "^a", "contains": {"minimum": 3}}, vocabulary(1000))
    expected, make = HOSTILE[name]
    schema, seconds = make(), 20 if expected is None else 0.4  # on a slow machine too
    begin = time.process_time()  # other processes may take the machine meanwhile
    found, message = None, ""
    try:
        table = mw.compile_json_schema(schema, vocabulary(1000), lazy=lazy, budget=mw.Budget(seconds=seconds))
        assert mw.Matcher(table).mask().any()
    except mw.errors.MaskwrightError as error:
        found, message = type(error), str(error)
    assert len(message) < 3_000
    assert time.process_time() - begin < 1.2 * seconds + 6
    endings = expected if isinstance(expected, tuple) else (expected,)
    assert found in endings or (lazy and found is None and BudgetError in endings)


@pytest.mark.parametrize("link", sorted(LINKS.keys() - {"counts"}))  # which is refused by name
def test_parts_that_formulas_share_mean_what_they_mean_alone(link):
    schema = chained(link, 3)
    table = mw.compile_json_schema(schema, vocabulary(256), any_order=True)
    validator = jsonschema.Draft202012Validator(schema)
    rng, seen = random.Random(link), set()
    for _ in range(150):
        keys = [key for i in range(3) for key in (f"k{i}", f"q{i}")]
        value: Any = {key: rng.choice([int(key[1]), 7]) for key in keys if rng.random() < 0.5}
        if "k" not in json.dumps(LINKS[link](0, True)):
            value = rng.choice([rng.randrange(0, 70), f"a{rng.randrange(5)}a{rng.randrange(5)}", [value, 3], value])
        inside = validator.is_valid(value)
        assert not takes(table, json.dumps(value)) or inside
        seen.add(inside and takes(table, json.dumps(value)))
    assert True in seen


@pytest.mark.long
def test_objects_of_many_states_are_bounded_by_what_they_take():
    rng = random.Random(16)
    keys = [[f"k{j}" for j in range(32) if rng.random() < 0.2] for _ in range(16)]
    schema = {"anyOf": [{"properties": {key: {"const": 1} for key in each}} for each in keys]}
    table = mw.compile_json_schema(schema, vocabulary(256))  # the states have more than a million steps
    validator = jsonschema.Draft202012Validator(schema)
    for each in keys:
        assert takes(table, json.dumps(dict.fromkeys(each, 1)))
    plain = [1 + b for b in b'{}": ,k0123456789']
    for _ in range(100):
        matcher, text = mw.Matcher(table), b""
        while not matcher.is_accepting:
            token = rng.choice([t for t in allowed_by(matcher) if t in plain])
            assert matcher.advance(token)
            text += bytes([token - 1])
        assert validator.is_valid(json.loads(text)), text
    with pytest.raises(BudgetError, match="needs 20 MB, reached while finding the states of an object"):
        mw.compile_json_schema(schema, vocabulary(256), lazy=False, budget=mw.Budget(bytes=20_000_000))


@pytest.mark.parametrize(
    "limits", [{"states": 1}, {"states": 300}, {"bytes": 1}, {"bytes": 100_000}, {"seconds": 0}], ids=str
)
def test_small_budgets_end_in_a_budget_error_or_an_answer(limits):
    for schema in PIECES.values():
        with contextlib.suppress(BudgetError):
            mw.compile_json_schema(schema, vocabulary(1000), budget=mw.Budget(**limits))
    with pytest.raises(BudgetError, match="budget=Budget"):
        mw.compile_json_schema(
            {"properties": dict.fromkeys(named(500), INTEGER)}, vocabulary(1000), budget=mw.Budget(**limits)
        )


# ------------------------------------------------------------------------------------------- what is not enforced

LOOSE = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "few": {"items": {"enum": ["a", "b"]}, "uniqueItems": True},
        "host": {"type": "string", "format": "idn-hostname"},
        "more": {"type": "object", "minProperties": 2},
    },
}
NOT_ENFORCED = [
    ("/properties/tags/uniqueItems", "uniqueItems", "equal items"),
    ("/properties/host/format", "format", "any string"),
    ("/properties/more/minProperties", "minProperties", "the same key twice as two"),
]


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("lazy", [True, False])
def test_all_that_cannot_be_enforced_may_be_allowed_and_is_listed(lazy, any_order, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "idna", None)  # without which the format is not enforced
    options = {"lazy": lazy, "any_order": any_order}
    with pytest.warns(
        mw.errors.UnenforcedWarning, match="/properties/tags/uniqueItems is not enforced: equal items"
    ) as told:
        table = mw.compile_json_schema(LOOSE, vocabulary(), allow="all", **options)
    assert told[0].filename == __file__
    again = pickle.loads(pickle.dumps(told[0].message))
    assert (again.unenforced, str(again)) == (told[0].message.unenforced, str(told[0].message))
    assert sorted(table.unenforced) == sorted(told[0].message.unenforced) == sorted(NOT_ENFORCED)
    assert takes(table, '{"tags": ["x", "x"], "few": ["a", "b"], "more": {"k": 1, "l": 2}}')
    assert not takes(table, '{"few": ["a", "a"]}')
    assert not takes(table, '{"more": {"k": 1}}')
    named = mw.compile_json_schema(LOOSE, vocabulary(), allow=["minProperties", "uniqueItems", "format"], **options)
    assert named.unenforced == table.unenforced  # and nothing is said, as each was named
    whole = table.to_table()
    whole.save(tmp_path / "t")
    assert mw.TransitionTable.load(tmp_path / "t").unenforced == table.unenforced == whole.unenforced
    assert pickle.loads(pickle.dumps(table)).unenforced == whole.unenforced


def test_nothing_is_listed_where_all_is_enforced():
    table = mw.compile_json_schema({"items": {"enum": [1, 2]}, "uniqueItems": True}, vocabulary(), allow="all")
    assert table.unenforced == table.to_table().unenforced == ()
    assert not takes(table, "[1, 1]")
    assert takes(table, "[2, 1]")


# ----------------------------------------------------------------------------------------------------------- messages

SPACES = 'whitespace must be "flexible", "spaced", "compact", or two separators such as (",", ": "), not '
KEYWORDS = 'allow must be "all" or a list of format, maxProperties, minProperties, uniqueItems'
NO_SCHEMA = "a JSON Schema must be a dict, a bool, JSON text or a pydantic model class, not "
BAD = [
    ({}, {"whitespace": "none"}, ValueError, SPACES + "'none'"),
    ({}, {"whitespace": None}, ValueError, SPACES + "None"),
    ({}, {"whitespace": (", ",)}, ValueError, SPACES),
    ({}, {"whitespace": (";", ":")}, ValueError, SPACES),
    ({}, {"whitespace": ("\xa0,", ":")}, ValueError, SPACES),
    ({}, {"ascii": 1}, TypeError, "ascii must be True or False, not 1"),
    ({}, {"allow": "format"}, mw.errors.ConstraintError, KEYWORDS + ', not the string "format"'),
    ({}, {"allow": 5}, mw.errors.ConstraintError, KEYWORDS + ", not 5"),
    ({}, {"allow": None}, mw.errors.ConstraintError, KEYWORDS + ", not null"),
    ({}, {"allow": [["format"]]}, mw.errors.ConstraintError, KEYWORDS + ': the array ["format"] is none of these'),
    (
        {},
        {"allow": ["format", "unique"]},
        mw.errors.ConstraintError,
        KEYWORDS + ': the string "unique" is none of these',
    ),
    ({}, {"any_order": 1}, TypeError, "any_order must be True or False, not 1"),
    (
        {"properties": {f"{key}": {} for key in range(30)}},
        {"any_order": True, "lazy": False, "budget": mw.Budget(states=9999)},
        BudgetError,
        "any_order=True takes far more than any_order=False",
    ),
    ({}, {"depth": 0}, ValueError, "depth must be from 1 to 65,536, not 0"),
    ({}, {"depth": 10**9}, ValueError, "depth must be from 1 to 65,536, not 1000000000"),
    ({}, {"depth": "3"}, TypeError, "integer"),
    ({}, {"documents": [{}]}, TypeError, "documents must be a dict of schemas by URI"),
    ({}, {"documents": {1: {}}}, TypeError, "documents must be a dict of schemas by URI"),
    ({"$ref": "http://x/a"}, {"documents": {"http://x/a": "{"}}, SchemaError, "http://x/a#: malformed JSON in line 1"),
    ({"$ref": "http://x/a"}, {"documents": {"http://x/b": {}}}, SchemaError, "which is not known and is not fetched"),
    ({}, {"budget": 5}, TypeError, "budget must be a Budget, not int"),
    (None, {}, TypeError, NO_SCHEMA + "NoneType"),
    (5, {}, TypeError, NO_SCHEMA + "int"),
    ([], {}, TypeError, NO_SCHEMA + "list"),
    ("", {}, SchemaError, "/: malformed JSON in line 1, column 1"),
    ("5", {}, SchemaError, "/: a schema is an object, true or false, not 5"),
    ('{"type": "null"', {}, SchemaError, "malformed JSON"),
    (False, {}, SchemaError, "/: the schema matches no value: "),
    ({"enum": []}, {}, SchemaError, "/: the schema matches no value: "),
    ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, {}, SchemaError, "no number fits all that is said of it"),
    (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {},
        SchemaError,
        "the member 'a' is required, and no value fits it",
    ),
    (
        {"pattern": "("},
        {},
        SchemaError,
        "/pattern: the pattern cannot be compiled: this group is never closed: add )\n",
    ),
    (
        {"properties": {"a": {"patternProperties": {"x[": {"type": "null"}}}}},
        {},
        SchemaError,
        "/properties/a/patternProperties/x[: the pattern cannot be compiled",
    ),
    ({"pattern": r"(a)\1"}, {}, SchemaError, "back-reference"),
    ({"not": {"uniqueItems": True}}, {}, SchemaError, '/not/uniqueItems: "uniqueItems" cannot be enforced exactly'),
    ({"minProperties": 2}, {"lazy": False}, SchemaError, '/minProperties: "minProperties" cannot be enforced exactly'),
    ({"not": {"maxProperties": 5000}}, {}, SchemaError, '"maxProperties" cannot be enforced exactly: a matcher counts'),
    (
        {"items": {"minProperties": 2, "propertyNames": {"pattern": "^.$"}}},
        {"lazy": False},
        SchemaError,
        '/items/minProperties: "minProperties" cannot be enforced exactly here: keys that "properties" does not ',
    ),
]


@pytest.mark.parametrize(("schema", "options", "error", "message"), BAD, ids=lambda x: str(x)[:40])
def test_bad_schemas_and_options_say_what_is_wrong(schema, options, error, message):
    with pytest.raises(error) as caught:
        mw.compile_json_schema(schema, vocabulary(1000), **options)
    assert message in str(caught.value)


def test_vocabularies_must_have_every_byte_that_utf_8_uses():
    without = mw.Vocabulary.from_bytes([token for token in BYTES if token not in (b"{", b"\xf0")], eos=0)
    with pytest.raises(ConstraintError, match=r"no token for the single byte b'\{' and 1 others: JSON Schema needs"):
        mw.compile_json_schema({}, without)
    mw.compile_json_schema({}, mw.Vocabulary.from_bytes([token for token in BYTES if token != b"\xff"], eos=0))
    with pytest.raises(TypeError, match="a Vocabulary is needed, not a list"):
        mw.compile_json_schema({}, [b"a"])


@pytest.mark.parametrize("any_order", [False, True])
def test_an_undeclared_member_that_has_to_fail_comes_last_and_the_limit_has_a_name(any_order):
    """A later member might repeat its key, and a reader keeps the last value: nothing invalid is accepted."""
    schema = {"not": {"additionalProperties": {"type": "string"}}}
    table = mw.compile_json_schema(schema, vocabulary(), any_order=any_order)
    assert takes(table, '{"b": "x", "a": 1}')
    assert takes(table, '{"a": 1, "b": 2}')
    assert not takes(table, '{"a": 1, "a": "x"}')  # a reader has {"a": "x"}
    assert not takes(table, '{"a": 1, "b": "x"}')  # the limit: a valid text is refused
    declared = {**schema, "not": {**schema["not"], "properties": {"a": {"type": "string"}}}}
    assert takes(mw.compile_json_schema(declared, vocabulary(), any_order=any_order), '{"a": 1, "b": "x"}')
    assert "comes after it" in NARROWER["not"]
    page = (Path(mw.__file__).parent / "docs/reference/json_schema.md").read_text()
    assert '{"not": {"additionalProperties": {"type": "string"}}}' in page
