"""Lazy tables: what is found state by state is what the whole table says."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import json
import pickle
import random
import subprocess
import sys
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata import pushdown_rows
from maskwright.automata.pushdown import PushdownMachine
from maskwright.compile.json_schema import emit_keys
from maskwright.compile.json_schema.layout import Layout
from maskwright.compile.json_schema.library import Library
from maskwright.compile.json_schema.skeleton import ObjectState
from maskwright.errors import BudgetError, MaskwrightError, SchemaError, TableError
from maskwright.lazy.pushdown import lazy_pushdown, string_mask_cache
from maskwright.lazy.pushdown.header import ALL_BYTES
from maskwright.lazy.pushdown.string_mask_cache import StringMaskCache
from maskwright.runtime.host import stack_reader
from maskwright.runtime.host.readers import reader_of
from maskwright.vocabulary.characters import BYTE_GROUP
from tests.strategies.odd_schemas import schemas as odd_schemas
from tests.strategies.random_schemas import schemas
from tests.strategies.tokenizer_zoo import tekken
from tests.support.json_texts import LAYOUTS, LONG, PIECES, RANDOM, TIMES, TREE, tokens_of, vocabulary


def tables(schema, vocab, **options):
    """Return a schema's table, lazy and complete."""
    return (mw.compile_json_schema(schema, vocab, lazy=lazy, **options) for lazy in (True, False))


def same_along_walks(lazy, complete, vocab, rng, steps, rare=0.5):
    """Walk along both tables side by side, from the start again at an end."""
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    for _ in range(steps):
        mask = a.mask()
        text = b"".join(vocab.tokens[token] for token in a.tokens)
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


@pytest.mark.long
@pytest.mark.parametrize("name", ["keys by patterns", "recursion", "strings"])
def test_a_real_vocabulary_is_read_lazily_too(name):
    _, vocab = tekken()
    lazy, complete = tables(LONG if name == "strings" else PIECES[name], vocab)
    same_along_walks(lazy, complete, vocab, random.Random(name), 150)


CONTENTS = {  # and a text of each
    "pattern": ({"pattern": "^[a-p]{2,9}[0-9]?$"}, "middle7"),
    "uri": ({"format": "uri"}, "https://example.com/a?b#c"),
    "words": ({"pattern": r"^(?:\S+\s+){0,6}\S+$", "maxLength": 50}, "some words of many"),
    "hexadecimal": ({"pattern": "^[a-f0-9]{24}$"}, "0123456789abcdef01234567"),
    "free": ({"pattern": "[0-9]{2}-x"}, "abcd 12-x, and whatever else"),
}


@pytest.mark.long
@pytest.mark.parametrize("most", [string_mask_cache.MOST_KEPT, 1])
@pytest.mark.parametrize("name", CONTENTS)
def test_what_one_schema_finds_of_a_string_holds_in_another(name, most, monkeypatch):
    monkeypatch.setattr(string_mask_cache, "MOST_KEPT", most)
    _, vocab = tekken()
    content, text = CONTENTS[name]
    other = {"type": "string", "pattern": "^[A-Z]+[a-z]*$"}  # by which keys have several labels
    known = mw.compile_json_schema(True, vocab, lazy=True).machine.string_masks
    known.clear()
    found = []
    for schema, written in (
        ({"items": {"type": "string", **content}}, [text, text]),
        ({"properties": {"a": {"type": "string", **content}, "b": other}}, {"a": text, "b": "No"}),
        ({"patternProperties": {"^[A-Z]+[a-z]*$": {"type": "null"}}, "propertyNames": {"anyOf": [content, other]}},
         {text: 1, "No": None}),
        ({"items": {"type": "string", **content}, "minItems": 2}, [text, text]),
    ):  # fmt: skip
        lazy, complete = tables(schema, vocab)
        a, b = mw.Matcher(lazy), mw.Matcher(complete)
        for token in vocab.encode(json.dumps(written)):
            assert (a.mask() == b.mask()).all()
            assert a.advance(token)
            assert b.advance(token)
        assert a.is_accepting
        assert lazy.machine.string_masks is known
        found.append(known.nbytes)
    assert found[0]
    if most == 1:
        assert max(found) < 100_000
    else:
        assert found[3] == found[2]  # which finds nothing new


@pytest.mark.parametrize(
    ("string", "text"),
    [
        ({"pattern": "^[a-z]{0,40}(?:[A-Z][0-9]*)?$"}, "get"),  # getElement is a token
        ({"pattern": "^(?:[a-z ]|[A-Z][0-9])*$", "maxLength": 30}, "to the"),
        ({"pattern": "^[^A-Z]{3}.*[A-Z]$"}, "ab c"),
        ({"pattern": r"^(?:\n|[^\x00-\x1f]{1,9})*(?:é[^e]*)?$", "maxLength": 50}, "so é\n"),
    ],
)
def test_behind_what_is_not_read_freely_nothing_is(string, text):
    _, vocab = tekken()
    lazy, complete = (mw.Matcher(table) for table in tables({"type": "string", **string}, vocab))
    for token in vocab.encode(json.dumps(text, ensure_ascii=False)[:-1]):
        assert (lazy.mask() == complete.mask()).all()
        assert lazy.advance(token)
        assert complete.advance(token)
    assert (lazy.mask() == complete.mask()).all()


def asked_to_read_freely(monkeypatch):
    """Return a list that gets the groups of characters, and the bytes, of each mask of tokens that are read freely."""
    asked, free = [], StringMaskCache.free
    monkeypatch.setattr(StringMaskCache, "free", lambda self, *given: asked.append(given) or free(self, *given))
    return asked


@pytest.mark.parametrize(
    "string",
    [
        {"not": {"pattern": "set"}},
        {"not": {"pattern": "é.|[a-y]t|日本"}, "maxLength": 20},
        {"not": {"pattern": "x\\d"}, "pattern": "^.{2}(?:.*e)?$", "maxLength": 9},
        {"pattern": "^(?:[^s]|s[^e]|se[^t])*=.*$"},
    ],
)
def test_where_much_of_a_vocabulary_would_be_walked_all_tokens_are_read_in_their_order(string, monkeypatch):
    _, vocab = tekken()
    lazy, complete = tables({"type": "string", **string}, vocab)
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    asked = asked_to_read_freely(monkeypatch)
    for token in vocab.encode(json.dumps('so "é', ensure_ascii=False)[:-1]):
        assert (a.mask() == b.mask()).all()
        assert a.advance(token)
        assert b.advance(token)
    assert max(most for _, most in asked) > ALL_BYTES  # so it was for one of them
    same_along_walks(lazy, complete, vocab, random.Random(5), 60, rare=0.2)


def test_characters_are_left_out_that_few_tokens_have_behind_their_first(monkeypatch):
    _, vocab = tekken()
    lazy, complete = tables({"type": "string", "not": {"pattern": r"\spx\s|^px"}}, vocab)
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    asked = asked_to_read_freely(monkeypatch)
    for token in vocab.encode('"z'):
        assert (a.mask() == b.mask()).all()  # at first letters are left out, for the "x"
        assert a.advance(token)
        assert b.advance(token)
    assert (a.mask() == b.mask()).all()
    read = asked[-1][0] >> BYTE_GROUP.astype(object)
    assert [bool(read[byte] & 1) for byte in b"px "] == [True, True, False]  # spaces are first mostly, letters are not


def test_contents_are_the_same_only_if_they_say_the_same():
    content = mw.compile_json_schema({"format": "uri", "maxLength": 60}, vocabulary()).machine.machine.texts[0]
    _, vocab = tekken()
    known = mw.compile_json_schema({"format": "uri"}, vocab).machine.string_masks
    numbers = [known.number(content)]
    for name in ("class_of", "transition", "label", "needed"):
        array = getattr(content, name).copy()
        assert known.number(content._replace(**{name: array})) == numbers[0]
        array = array.copy()
        array.flat[-1] += 1
        numbers.append(known.number(content._replace(**{name: array})))
    numbers += [known.number(content._replace(free=2)), known.number(content._replace(most=61))]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("most", [1, 5, 6, 7, 8, 9, 30])
def test_a_token_that_begins_a_bounded_string_is_no_longer_than_it(most, ascii):
    words = [b'"' + text * n for text in (b"a", "é".encode(), b"\\n") for n in range(1, 9)]
    words += [b' "abc', b'["ab', b'"ab"', b'"ab",', b'"ab":', b'"\xc3', b'"a\xc3', b'"a\x7f']
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *words], eos=0)
    bounded = {"type": "string", "maxLength": most}
    for schema in (bounded, {"items": bounded}, {"properties": {"a": bounded, "aaa": {"const": "aa"}}}):
        lazy, complete = tables(schema, vocab, ascii=ascii)
        same_along_walks(lazy, complete, vocab, random.Random(most), 120, rare=0.8)


@pytest.mark.parametrize("others", [0, 1, 400])
def test_what_states_allow_that_read_any_characters_is_only_told_apart_by_labels_and_escapes(others, monkeypatch):
    """others: tokens with escapes that no character needs."""
    words = [r"\/", r"a\/b", r"x\/", r"b\/", r"\u0", r"\u00", r"\u000", r"\u001f", r"\u0022", r"\u005", r"\u005C"]
    words += [r"\"", r"\n", r"\\", r"a\\b", "ab", "\x7f", "\u00e9x", "\u4e2d"][: 8 if others == 0 else None]
    words += [r"\u004", r"\u00e9", r"a\u0041", r"\ud83d"] if others else []
    words += [f"{k:03}\\/" for k in range(others)] if others > 1 else []
    ends = [f'{word}"{end}' for word in ("", *words[:30]) for end in ("", ",", "}", ", ")]
    vocab = mw.Vocabulary.from_bytes(
        [b"", *(bytes([b]) for b in range(256)), *dict.fromkeys(word.encode() for word in words + ends)], eos=0
    )
    met, keep = [], StringMaskCache.keep
    monkeypatch.setattr(
        StringMaskCache, "keep", lambda known, *given: met.append((known, given[2])) or keep(known, *given)
    )
    rng = random.Random(others)
    narrow = ("^[^\\n]*$", '^[^"]*b$', "^[^\\x01]*$", "^([^\\n]|\\n[^a])*$", r"^[^\\]*x$")
    for pattern in (
        *narrow,
        "b$",
        "b",
        "ab|x$",
        "[^b]$",
        "^a?.*b$",
        "^[^x]*$",
        "\\\\$",
        '[\\x01"]$',
        "[\u00e9\u4e2d]$",
    ):
        text = {"type": "string", "pattern": pattern}
        decides = {"if": {"properties": {"a": text}}, "then": {"required": ["c"]}, "else": {"required": ["d"]}}
        for schema in (text, {"not": text, "type": "string"}, {"type": "object", "properties": {"a": {}}, **decides}):
            lazy, complete = tables(schema, vocab, whitespace="compact")
            same_along_walks(lazy, complete, vocab, rng, 150, rare=0.3)
    assert any(base is known.total or base.held[1] is known.total for known, base in met) == (others < 400)


def test_the_fewer_characters_are_left_the_shorter_are_the_tokens():
    """Of content that is as long everywhere, tokens of its characters that are short enough are found by length."""
    rng = random.Random(7)
    words = {"".join(rng.choices("ab01zy-é ", k=rng.randint(2, 11))).encode() for _ in range(1500)}
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *sorted(words)], eos=0)
    for pattern in ("^[0-9a-z]{12}$", "^[0-9a-zé]{9}-?[0-9a-z]{4}$", "^(?:[0-9a-y]{3} ){3}$"):
        lazy, complete = tables({"type": "string", "pattern": pattern}, vocab)
        same_along_walks(lazy, complete, vocab, rng, 200, rare=0)


LOADING = """
import json, sys
import maskwright as mw
from numba.core.dispatcher import Dispatcher

vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'":', b'", "', b"ab"], eos=0)
mw.Matcher(mw.compile_json_schema(True, vocab)).mask()
late = []
load = Dispatcher.compile


def noted(loop, signature):
    late.append(loop.py_func.__qualname__)
    return load(loop, signature)


for schema, options, value in json.load(sys.stdin):
    matcher = mw.Matcher(mw.compile_json_schema(schema, vocab, **options))
    matcher.mask()
    Dispatcher.compile = noted
    for byte in json.dumps(value, ensure_ascii=bool(options.get("ascii"))).encode():
        matcher.mask()
        assert matcher.advance(1 + byte), (value, byte)
    assert matcher.is_accepting
    Dispatcher.compile = load
print(json.dumps(late))
"""


@pytest.mark.long
def test_no_loop_is_loaded_while_somebody_waits_for_a_mask():
    """In a process that has compiled no more than a schema of anything: it reads what no text came to yet."""
    value = {
        "any": "é", "some": "abc", "few": "ab", "word": "word", "unicode": "é", "somewhere": "12-x", "beginning": "ab",
        "date": "2026-01-02T03:04:05Z", "words": "a bc", "counted": "abé.", "mail": "a@b.cd", "many": "value 12",
        "labels": ["a", "b"],
    }  # fmt: skip
    few = {f"key {i}": {"type": "integer"} for i in range(8)}  # of many objects, so that the last is left for later
    many = {f"object {i}": {"properties": few | {f"own {i}": {"type": "null"}}} for i in range(100)}
    within = {"properties": many | {"outer": {"properties": {"inner": LONG}}}}
    both = {"^x": {"pattern": "^b"}, "y$": {"minLength": 2, "maxLength": 5}}
    tree = {"value": 1, "kids": [{"value": 2, "kids": [{"value": 3}]}]}
    asked = [
        (within, {}, {"outer": {"inner": value}}),
        (within, {"ascii": True}, {"outer": {"inner": value}}),
        ({"properties": many | {"a": {"patternProperties": both}}}, {}, {"a": {"x": "bcd", "xy": "bcd", "zy": "abc"}}),
        (TREE, {"depth": 3}, tree),
    ]
    out = subprocess.run([sys.executable, "-c", LOADING], input=json.dumps(asked), capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout) == []


def test_what_is_left_of_tokens_is_read_as_itself():
    """Many remainders, and many tokens of two bytes, so that nodes of both tries have the same numbers."""
    keys = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    words = [chr(c).encode() for c in range(0x80, 0x600)] + [f'","{key}":"x","b":1'.encode() for key in keys]
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *words], eos=0)
    lazy, complete = tables({"additionalProperties": {"type": "string"}}, vocab, whitespace="compact")
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    for byte in b'{"a":"b':
        assert a.advance(1 + byte)
        assert b.advance(1 + byte)
        assert (a.mask() == b.mask()).all()
    assert not a.advance(vocab.size - 1)


def test_what_comes_behind_a_separator_is_told_from_what_the_library_reads_there():
    """A string, or a key where any other may come, after a space or none: only what differs is looked at."""
    words = (
        b' "',
        b' "a',
        b' "a":',
        b' "ab',
        b' "b"',
        b' "\\',
        b' ""',
        b' "":',
        b' "x", "a',
        b'": "',
        b'", "b',
        b'\n "',
    )
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *words], eos=0)
    schema = {"properties": {"a": {"type": "string"}, "ab": {"type": ["string", "null"]}, "b": {"const": 1}}}
    lazy, complete = tables(schema, vocab)
    same_along_walks(lazy, complete, vocab, random.Random(3), 600)
    places = Library.of(vocab, Layout()).places
    like, site = lazy.machine.machine.all_twins
    assert (like == places.spaced).sum() >= 4  # behind two keys, and two members at least
    assert (site[like == places.spaced] >= 0).all()


@pytest.mark.parametrize(("depth", "ends"), [(3, True), (64, True), (64, False)])
def test_bounded_strings_are_told_from_any_where_a_token_comes_to_a_bound(depth, ends):
    some = ["", "a", "ab", "abc", "abcdefgh", "\\n", "\\u00", "é", "漢字"]
    words = [f"{space}{opened}{text}" for space in ("", " ") for opened in ('"', '["') for text in some]
    ended = [f"{word}{end}" for word in words for end in ('"', '",', '", "', '"]', '": "abc", "')]
    if not ends:  # no token is longer than one that goes a character too far
        words, ended = ['"ab', '"abc'], []
    vocab = mw.Vocabulary.from_bytes(
        [
            b"",
            *(bytes([b]) for b in range(256)),
            "漢".encode()[:2],
            *(word.encode() for word in {*words, *ended} if len(word) > 1),
        ],
        eos=0,
    )
    bounds = [(low, high) for low in (0, 1, 2) for high in (1, 2, 3, 9, 400, None) if high is None or low <= high]
    texts = [
        {"type": "string", "minLength": low} | ({} if high is None else {"maxLength": high}) for low, high in bounds
    ]
    kinds = [*texts, *({**text, "type": ["string", "null", "integer"]} for text in texts[::3])]
    schema = {
        "properties": {f"k{i}": kind for i, kind in enumerate(kinds)},
        "additionalProperties": {
            "type": "array",
            "prefixItems": texts[::2],
            "items": {"anyOf": [texts[1], {"$ref": "#"}]},
        },
    }
    lazy, complete = tables(schema, vocab, depth=depth)
    for seed in range(4):
        same_along_walks(lazy, complete, vocab, random.Random(seed), 300)
    like, _ = lazy.machine.machine.all_twins
    places = Library.of(vocab, Layout()).places
    assert (like == places.spaced).sum() > 10
    for i, kind in enumerate(kinds):  # each at once, behind its key
        a, b = mw.Matcher(lazy), mw.Matcher(complete)
        for byte in f'{{"k{i}":'.encode():
            assert a.advance(1 + byte)
            assert b.advance(1 + byte)
        assert (a.mask() == b.mask()).all(), kind


def test_a_token_from_a_declared_key_into_its_string_is_told_from_one_behind_any_key():
    """What any key allows is in the mask already: what the string of this one does not read has to be taken out."""
    words = [f'{end}{space}"{text}{behind}' for end in ("", 'c"', 'bc"') for space in (":", ": ") for text in
             ("a", "ab", "abc", "abcd", "xy", "\\n", "é") for behind in ("", '"', '",', '", "')]  # fmt: skip
    words += [word[1:] if word[0] == ":" else word for word in words] + [f'"{word}' for word in words if word[0] == ":"]
    vocab = mw.Vocabulary.from_bytes(
        [b"", *(bytes([b]) for b in range(256)), *(word.encode() for word in dict.fromkeys(words) if len(word) > 1)],
        eos=0,
    )
    keys = "abc", "ac", "bc", "c"
    declared = [{"pattern": "^.{1,2}$", "maxLength": 4}, {"pattern": "^[ab]+$"}, {"pattern": "c$"}, {"format": "date"}]
    schema = {
        "properties": {key: {"type": "string", **kind} for key, kind in zip(keys, declared, strict=True)},
        "additionalProperties": {"type": ["string", "null"], "maxLength": 5},
    }
    for any_order in (False, True):
        lazy = mw.compile_json_schema(schema, vocab, any_order=any_order)
        complete = mw.compile_json_schema(schema, vocab, any_order=any_order, lazy=False)
        same_along_walks(lazy, complete, vocab, random.Random(5), 300)
        for key in keys:
            for text in (f'{{"{key}', f'{{"x": null, "{key}'):
                a, b = mw.Matcher(lazy), mw.Matcher(complete)
                for byte in text.encode():
                    assert a.advance(1 + byte) == b.advance(1 + byte)
                assert (a.mask() == b.mask()).all(), text


KEYS = ["a", "ab", "abc", "c", "é"]
TEXTS = [
    {},
    {"pattern": "^.{1,2}$", "maxLength": 4},
    {"pattern": "^[ab]+$"},
    {"pattern": "c$"},
    {"format": "date"},
    {"minLength": 1, "maxLength": 2},
    {"enum": ["a", "abc"]},
    {"not": {"enum": ["ab", "b"]}},
    {"type": ["string", "null", "integer"]},
    {"type": "array", "items": {"type": "string", "pattern": "b"}},
]


@cache
def joined() -> mw.Vocabulary:
    """Tokens that go through the end of a key or a string into what comes then, and further."""
    parts = ["a", "ab", "abc", "b", "é", "1", "null", "2024-", "\\u00e9"]
    ends = ['":"', '": "', '":["', '","', '", "', '"],"', '":', '", "a":"']
    words = [before + end + part for end in ends for before in ("", "a", "bc", '"ab') for part in parts]
    words += [word + end for word in words[::5] for end in ends[:6]]
    return mw.Vocabulary.from_bytes(
        [b"", *(bytes([b]) for b in range(256)), *(word.encode() for word in dict.fromkeys(words))], eos=0
    )


@pytest.mark.parametrize("seed", range(12 * TIMES))
def test_masks_say_of_every_token_whether_it_is_taken(seed):
    rng, vocab = random.Random(seed), joined()
    schema = {
        "properties": {key: {"type": "string", **rng.choice(TEXTS)} for key in rng.sample(KEYS, 3)},
        "patternProperties": {"^[a-c]+$": {"type": "string", **rng.choice(TEXTS)}} if seed % 3 == 0 else {},
        "additionalProperties": {"type": "string", **rng.choice(TEXTS[:6])},
    }
    matcher = mw.Matcher(mw.compile_json_schema(schema, vocab, any_order=seed % 4 == 1))
    for key in KEYS:
        matcher.reset()
        for byte in f'{{"{key}'.encode():
            matcher.advance(1 + byte)
        for _ in range(8):
            allowed = set(tokens_of(matcher.mask()))
            for token in range(1, vocab.size):
                taken = matcher.advance(token)
                if taken:
                    matcher.rollback(1)
                assert taken == (token in allowed), (matcher.tokens, vocab.tokens[token])
            long = [token for token in allowed if token > 256]
            if not allowed - {0}:
                break
            matcher.advance(rng.choice(long if long and rng.random() < 0.6 else sorted(allowed - {0})))


def test_keys_that_never_come_do_not_keep_the_others_apart():
    vocab, keys = vocabulary(), [f"K{i}" for i in range(40)]
    schema = {
        "properties": {key: {"type": "null"} for key in keys},
        "propertyNames": {"pattern": "^[A-Z][A-Z0-9]*$"},
        "additionalProperties": {"type": "null"},
    }
    lazy, complete = tables(schema, vocab)
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    for byte in json.dumps(dict.fromkeys([*keys[:20:3], *keys[20:], "KX", "Z"])).encode():
        token = vocab.tokens.index(bytes([byte]))
        assert (a.mask() == b.mask()).all()
        assert a.advance(token)
        assert b.advance(token)
    assert len(lazy.machine.machine.texts) == 1  # one automaton of keys for all places in the object


@pytest.mark.parametrize("depth", [1, 64])
def test_few_keys_of_many_come_where_a_schema_recurses(depth):
    """Those that do have numbers beyond the states of the automaton that is left of all keys."""
    schema = {
        "properties": {"x-": {"const": 1}, "x-a": {"type": "string"}},
        "patternProperties": {"^(a|x-).": {"$ref": "#"}, "^[a-c]{1,3}$": True},
        "propertyNames": {"enum": ["c", "ab", "t", "abc"]},
        "additionalProperties": False,
    }
    lazy, complete = tables(schema, vocabulary(), depth=depth)
    same_along_walks(lazy, complete, vocabulary(), random.Random(depth), 300)


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
    keys = {"additionalProperties": {"$ref": "#/$defs/k"}, "$defs": {"k": {"properties": {"a": {"$ref": "#/$defs/k"}}}}}
    keys["$defs"]["k"]["type"] = "object"
    for schema in (TREE, either, True, {"items": {"items": True}}, lists, keys):
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


@pytest.mark.parametrize(
    "keys", [{"pattern": "^(?!a)"}, {"pattern": "^(?!a)", "maxLength": 6}, {"maxLength": 6}, True], ids=str
)
@pytest.mark.parametrize("declared", [["é", "éa"], ["a", "ab", "abc", ""], ["😀", "é", "b"], []], ids=str)
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("most", [emit_keys.MOST_KEYS, 0])
def test_keys_are_spelt_alike_in_both(keys, declared, ascii, most, monkeypatch):
    monkeypatch.setattr(emit_keys, "MOST_KEYS", most)
    vocab = vocabulary(1000)
    schema = {"type": "object", "propertyNames": keys, "properties": {key: {"type": "null"} for key in declared}}
    lazy, complete = (mw.Matcher(table) for table in tables(schema, vocab, ascii=ascii))
    for key in (
        r"\u00e9",
        "é",
        r"b\u0031",
        r"\b\\\u0031",
        r"\u00e9a",
        r"\n\ud83d\ude00",
        "a",
        "éb",
        r"\u0061",
        "bcdefgh",
        r"\"\\\"",
        "",
        "ab",
        r"a\u0062",
        r"\ud83d\ude00",
        "😀😀",
        "abd",
    ):
        text = [1 + b for b in f'{{"{key}": null}}'.encode()]
        assert lazy.accepts(text) == complete.accepts(text), key
        lazy.reset()
        complete.reset()


COUNTED = [
    r"^(?:\S+\s+){0,4}\S+$", "^[a-zé]+$", "a", "^(ab|é)*$", r"\d{2}-?\d{0,4}", "[aA][12].*[zZ]", "^.{3,}$",
    r'^"*\\*\n?$',
    "^(a{3})*$", "^[^,]*(,[^,]*){2}$", r"^\d{4}-\d\d-[0-9T:.]*$", "^([^abc]|a)*b[^x]{2,5}$", r"[^\x20-\x7f]",
    r"^\S+ (\S+ )*$",
    "^[A-Za-z0-9]{15}$", "^[0-9a-z]{8}-[0-9a-z]{4}$", "^([a-z]{3}|[A-Z]{5})$", "^[a-zé]{4}$", "^[^,]{3}$",
    "^([a-z]{2}[0-9]){3}$", "^[a-z]{2,4}$", "^[ -~]{7}$", "^([a-z]{6})*$", "^[a-z]{5}[0-9]?é?$",
    "^([a-z]{4}|[a-y]{9})$", "^[a-z]{4}([0-9][a-z]{4})?$", "^(a[a-z]{3}|[b-z][a-z]{6})$",
    "^(a[a-z]{2}|[b-z][a-z]+)$", "^(a[a-z]{2}|[b-z][a-z]{5})$",
]  # fmt: skip
TOKENS = [
    b"", *(bytes([b]) for b in range(256)), b"ab", b"abc", b'"a', b'a"', b'", "', b"aab ab", b"\xc3\xa9\xc3", b"\\u00",
    b"\\n", b'\\"', b"  ", b"12-", b'{"', b'"}', b"a, b", b"zzzzzz", b'","', b"\xf0\x9f", b"\xc3\xa9" * 3, b"2024-01-",
    *(bytes(range(97, 97 + n)) for n in range(4, 18)), *(bytes(range(65, 65 + n)) for n in range(2, 8)),
    b"abcd-ef", b"ab1cd2", *(run * n for run in (b"a", b"z") for n in (31, 32, 33, 48, 70)), b"z" * 40 + b'",',
]  # fmt: skip


@pytest.mark.parametrize("seed", range(2 * TIMES))
def test_characters_that_are_counted_beside_a_pattern_bound_it_as_their_product_does(seed):
    vocab, rng = mw.Vocabulary.from_bytes(TOKENS, eos=0), random.Random(seed)
    for _ in range(40):
        pattern = rng.choice(COUNTED)
        schema = {"type": "string", "pattern": pattern}
        if rng.random() < 0.8:
            schema["maxLength"] = rng.choice([rng.randint(0, 14), rng.randint(20, 60)])
        if rng.random() < 0.4:
            schema["minLength"] = rng.randint(0, 6)
        if rng.random() < 0.3:
            schema = {"patternProperties": {pattern: {}}, "additionalProperties": False, "properties": {"ab": {}}}
        try:
            lazy, complete = tables(schema, vocab)
        except SchemaError:
            continue
        same_along_walks(lazy, complete, vocab, rng, 150)


MANY = {
    "type": "object",
    "properties": {
        f"key{i}": {"type": "object", "properties": {f"a{j}": {"minLength": j} for j in range(4 + i // 5)}}
        for i in range(200)
    },
}


@pytest.mark.parametrize("most", [emit_keys.MOST_KEYS, 0])
@pytest.mark.parametrize("token", [b'":1,""', b'":{},""', b'":1,"b"', b'":1,"a', b'":"","z":""', b'":1,"b":1'])
def test_a_token_may_lead_through_a_declared_member_into_one_that_is_not(token, most, monkeypatch):
    monkeypatch.setattr(emit_keys, "MOST_KEYS", most)
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), token], eos=0)
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}}
    for table in tables(schema, vocab):
        by_token, by_byte = (mw.Matcher(table) for _ in range(2))
        for byte in b'{"a':
            assert by_token.advance(byte + 1)
            assert by_byte.advance(byte + 1)
        allowed = all(by_byte.advance(byte + 1) for byte in token)
        assert (257 in tokens_of(by_token.mask())) == allowed == (token != b'":1,"b":1')
        assert by_token.advance(257) == allowed


@pytest.mark.parametrize("bases", [1, 1024])
def test_a_mask_is_the_same_on_every_visit_and_what_is_kept_of_it_is_counted(bases, monkeypatch):
    monkeypatch.setattr(lazy_pushdown, "MOST_BASES", bases)
    _, vocab = tekken()
    lazy, complete = tables(LONG, vocab)
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    host, held = reader_of(lazy, False), []
    for most, text in (
        (host.most, '{"any": "so, it", "some": "\u00e9 abc", "word": "abc", "mail": "a@b.c"}'),
        (10, '{"any": "of few", "few": "abc", "beginning": "abc", "many": "value 12"}'),
    ):
        host.most = most
        for _ in range(4):
            for token in vocab.encode(text):
                mask = a.mask()
                assert (mask == b.mask()).all()
                held.append((mask, mask.copy()))
                assert a.advance(token)
                assert b.advance(token)
            assert a.is_accepting
            a.reset()
            b.reset()
        if most > 10:
            kept = [each for each in host.composed.values() if isinstance(each, np.ndarray) and each.size]
            assert bool(kept) == (bases == 1)
    assert all((mask == copied).all() for mask, copied in held)
    known = [each for each in host.composed.values() if each is not stack_reader.DEEPER]
    whole = sum(isinstance(each, np.ndarray) for each in known)
    noted = [sys.getsizeof(each) for each in known if isinstance(each, bytes)]
    assert min(noted) < 100
    around = 100 * len(host.composed) + 300 * whole
    assert abs(host.nbytes - around - 4 * host.words * whole - sum(noted)) < 10 * len(noted)


@pytest.mark.long
def test_masks_stay_as_they_are_while_somebody_holds_them_and_are_written_over_then():
    """Tables of one library write their masks on the same sheets; some differ from the one before in few words."""
    _, vocab = tekken()
    words = [token.decode() for token in vocab.tokens[1000:30_000:7] if token.isalpha() and token.isascii()]
    schemas = LONG, {"enum": words}, {"items": {"enum": words[:40]}}, TREE
    walkers = [
        tuple(mw.Matcher(table) for table in tables(schema, vocab, whitespace=space))
        for schema, space in zip(schemas, ("flexible", "compact", "flexible", "flexible"), strict=True)
    ]
    rng, held, seen = random.Random(0), [], set()
    for step in range(600):
        lazy, complete = rng.choice(walkers)
        mask = lazy.mask()
        assert (mask == complete.mask()).all()
        seen.add(mask.ctypes.data)
        if rng.random() < 0.3:  # itself, or only something that looks at its memory
            held.append((mask if step % 2 else memoryview(mask[5:]), mask[0 if step % 2 else 5 :].copy()))
        assert all((np.asarray(one) == copied).all() for one, copied in held)
        del held[: rng.choice([0, 0, 0, 3])]
        allowed = tokens_of(mask)
        token = rng.choice(allowed) if allowed else None
        del mask
        if token is None or token == vocab.eos or lazy.num_tokens > 40:
            lazy.reset()
            complete.reset()
        else:
            assert lazy.advance(token)
            assert complete.advance(token)
    assert len(seen) < 150


MEMBERS = json.dumps({key: {"a3": "abc"} for key in MANY["properties"]}, separators=(",", ":")).encode()


def test_what_nobody_comes_to_is_not_written():
    vocab = vocabulary()
    lazy, complete = tables(MANY, vocab)
    matcher = mw.Matcher(lazy)
    assert matcher.accepts(list(b"".join(bytes([b + 1]) for b in b'{"key7":{"a3":1}}')))
    assert lazy.machine.machine.size < complete.num_states / 3


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize(
    ("schema", "text", "which"),
    [
        (MANY, MEMBERS, "keys"),
        ({**MANY, "additionalProperties": False}, MEMBERS, "rows"),
        ({"items": {"type": "integer", "multipleOf": 997}}, b"[997,1994]", None),
    ],
    ids=["members", "closed", "numbers"],
)
def test_rows_are_the_same_wherever_they_lie_and_however_often_they_move(schema, text, which, paged, monkeypatch):
    vocab = vocabulary()
    _, complete = tables(schema, vocab)
    monkeypatch.setattr(pushdown_rows, "ROOM", 1)
    if not paged:  # as on systems that know nothing of large pages
        monkeypatch.setattr(pushdown_rows, "mmap", object())
    lazy = mw.compile_json_schema(schema, vocab)
    machine = lazy.machine.machine
    assert machine.pending or machine.parts
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    moved = set()
    for byte in text:
        before = machine.arrays()
        assert (a.mask() == b.mask()).all()
        assert a.advance(byte + 1)
        assert b.advance(byte + 1)
        moved |= {k for k, array in enumerate(machine.arrays()) if array is not before[k]}
    assert a.is_accepting
    assert which is None or {"rows": 0, "keys": 6}[which] in moved


def test_whatever_needs_arrays_completes_a_lazy_table(tmp_path):
    vocab = vocabulary(1000)
    schema = {"type": "array", "items": {"type": "integer"}}
    complete = mw.compile_json_schema(schema, vocab, lazy=False)
    assert not isinstance(complete, mw.LazyTable)
    for use in (
        lambda t: t.save(tmp_path / "t.safetensors"),
        lambda t: mw.Matcher(t, max_tokens=2),
        lambda t: t.to_table(),
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
        assert (table.to_table().edges.token == complete.edges.token).all()
        assert table.to_table().nbytes == complete.nbytes


def test_whether_texts_are_in_a_set_needs_arrays_only_where_frames_may_run_out():
    vocab = vocabulary(1000)
    texts = ["[[1], []]", "[[1], [", "[1]", "[[]]", "[[1],[2,3]]", ""]
    rows = np.zeros((len(texts), 12), np.int64)  # which the end token closes
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = [1 + b for b in text.encode()]
    bounded = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}
    for schema, needs_arrays in ((bounded, False), (endless, True)):
        table = mw.compile_json_schema(schema, vocab)
        whole = mw.compile_json_schema(schema, vocab, lazy=False)
        assert np.array_equal(table.contains(rows), whole.contains(rows))
        assert whole.contains(rows).any()
        assert table.is_complete == needs_arrays


def test_reading_an_attribute_of_a_lazy_table_compiles_nothing():
    table = mw.compile_json_schema({"type": "array", "items": {"type": "integer"}}, vocabulary(1000))
    for name in ("edges", "num_states", "min_length", "nbytes"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(table, name)
    assert table.fixed_length is table.max_length is None
    assert table.memory > 0
    assert not table.is_complete


def test_a_copy_of_a_lazy_table_is_the_table():
    table = mw.compile_json_schema(TREE, vocabulary(1000))
    assert copy.copy(table) is table
    assert copy.deepcopy(table) is table
    assert not table.is_complete


def test_a_pickle_carries_what_was_compiled_and_no_table():
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0, encode=lambda text: [])
    structure = {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}
    tag = {"type": "structural_tag", "structures": [structure], "triggers": ["<f"]}
    deep = {"type": "null"}
    for _ in range(200):
        deep = {"items": deep}
    for table, right, wrong in (
        (mw.compile_json_schema({"type": "array", "items": {"type": "integer"}}, vocab), "[1]", "[a"),
        (mw.compile_json_schema(deep, vocab, documents={"http://a": {"type": "null"}}), "[]", "["),
        (mw.compile_grammar('start: "(" start ")" | "x"', vocab), "((x))", "((x)"),
        (mw.compile_structural_tag(tag, vocab), "a<f>1</f>", "<f>a"),
    ):  # fmt: skip
        assert not table.is_complete
        loaded = pickle.loads(pickle.dumps(table))
        assert isinstance(loaded, mw.LazyTable)
        assert not table.is_complete
        assert (loaded.vocabulary, loaded.source) == (table.vocabulary, table.source)
        for text, is_right in ((right, True), (wrong, False)):
            assert mw.Matcher(loaded).accepts([1 + b for b in text.encode()]) == is_right
        table.to_table()
        assert isinstance(pickle.loads(pickle.dumps(table)), mw.TransitionTable)


def test_a_matcher_keeps_its_place_when_the_table_is_completed_or_pickled():
    vocab = vocabulary(1000)
    table = mw.compile_json_schema({"type": "array", "items": {"type": "string", "maxLength": 9}}, vocab)
    matcher = mw.Matcher(table)
    assert all(map(matcher.advance, (1 + b for b in b'["ab", "c')))
    before = matcher.mask().copy()
    loaded = pickle.loads(pickle.dumps(matcher))
    table.to_table()
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
    numbers = [[10**50 + i + j for j in range(2 + i % 3)] for i in range(40)]
    schema = {"type": "object", "properties": {f"k{i}": {"enum": [f"{i}", *some]} for i, some in enumerate(numbers)}}
    table = mw.compile_json_schema(schema, vocab, budget=mw.Budget(states=2_000))
    assert mw.Matcher(table).accepts([1 + b for b in b'{"k3": "3"}'])
    with pytest.raises(BudgetError, match="states"):
        table.to_table()
    assert not table.is_complete
    assert mw.Matcher(table).accepts([1 + b for b in b'{"k4": "4"}'])
    with pytest.raises(BudgetError, match="states"):
        mw.compile_json_schema(schema, vocab, lazy=False, budget=mw.Budget(states=2_000))
    matcher = mw.Matcher(table)
    with pytest.raises(BudgetError, match="2,000 states"):  # each key adds to what is written
        matcher.accepts([1 + b for b in json.dumps({f"k{i}": some[0] for i, some in enumerate(numbers)}).encode()])


PATTERNS = {
    "type": "object",
    "properties": {
        f"key{i}": {
            "type": "object",
            "properties": {f"a{j}": {"pattern": f"^[a-c]{{{j},{j + i}}}$"} for j in range(10)},
            "additionalProperties": False,
        }
        for i in range(60)
    },
}


def said_of(table, text):
    """Return whether a new matcher accepts a text, or the error that it raises."""
    try:
        return mw.Matcher(table).accepts([1 + b for b in text.encode()])
    except MaskwrightError as error:
        return type(error)


@pytest.mark.long
@pytest.mark.parametrize("after", [1, 5, 20])
@pytest.mark.parametrize("kind", [BudgetError, KeyboardInterrupt, MemoryError])
def test_what_was_written_half_way_is_never_read(kind, after, monkeypatch):
    vocab = vocabulary(1000)
    table = mw.compile_json_schema(PATTERNS, vocab)
    texts = [
        json.dumps(value)
        for value in (
            {"key50": {"a3": "abca"}, "key55": {"a2": "abc"}}, {"key50": {"a3": "abca"}}, {"key40": {"a3": "abca"}},
            {"key50": {"a3": "ab"}}, {},
        )
    ]  # fmt: skip
    complete = mw.compile_json_schema(PATTERNS, vocab, lazy=False)
    right = [said_of(complete, text) for text in texts]
    assert right == [True, True, True, False, True]
    edge, left = PushdownMachine.edge, after

    def stops(self, *piece):
        nonlocal left
        left -= self is table.machine.machine
        if not left:
            raise kind("enough")
        edge(self, *piece)

    with monkeypatch.context() as patch:
        patch.setattr(PushdownMachine, "edge", stops)
        matcher = mw.Matcher(table)
        with pytest.raises(kind, match="enough"):
            matcher.accepts([1 + b for b in texts[0].encode()])
    assert matcher.num_tokens == 0
    found = [said_of(table, text) for text in texts * 2]
    if kind is BudgetError:  # what was there before can still be read
        assert found[4] is True
        assert all(said in (correct, BudgetError) for said, correct in zip(found, right * 2, strict=True))
        assert BudgetError in found
    else:
        assert set(found) == {TableError}
        with pytest.raises(TableError, match=r"call its to_table\(\)"):
            matcher.advance(1 + ord("{"))
    table.to_table()
    assert [said_of(table, text) for text in texts] == right


@pytest.mark.parametrize(
    "words",
    [
        [b"%03d" % i for i in range(1000)] + [b"[[", b'{"', b'":', b"],["],
        [b"[%03d" % i for i in range(1000)],
        [b"[" * i for i in range(2, 700)],
        [b'{"":' * i for i in range(1, 60)] + [b"[]" * 150, b"]" * 300, b'"],' * 90],
        [b'"' + b"a" * 4000, b"[" * 4000, b"9" * 4000],
    ],
    ids=["numbers of three digits", "and a bracket", "brackets", "keys", "long"],
)
def test_vocabularies_with_many_tokens_that_open_something(words):
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *words], eos=0)
    for schema in (True, TREE, {"type": "array", "items": {"type": ["number", "array"], "maximum": 300}}):
        for depth in (3, 1000):
            lazy, complete = tables(schema, vocab, depth=depth)
            same_along_walks(lazy, complete, vocab, random.Random(depth), 40)


def test_the_state_of_a_lazy_matcher_is_the_state_in_the_table():
    vocab = vocabulary(1000)
    lazy, complete = tables(TREE, vocab)
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    for byte in b'{"value": [1, {"a": "x':
        assert a.advance(1 + byte)
        assert b.advance(1 + byte)
    assert repr(a) == "Matcher(num_tokens=22, is_accepting=False)"
    assert not lazy.is_complete
    assert (a.state, a.stack) == (b.state, b.stack)
    assert lazy.is_complete
    assert (a.copy().state, a.is_accepting, a.num_tokens) == (b.state, False, 22)


class Marked(list):
    """What lives as long as the stack that has it."""


@pytest.mark.long
def test_sequences_share_their_stacks_until_these_are_too_many(monkeypatch):
    monkeypatch.setattr(stack_reader, "MOST_STACKS", 20)
    vocab = vocabulary(1000)
    for table in tables(True, vocab):
        matcher, reader = mw.Matcher(table), reader_of(table, False)
        assert all(matcher.advance(1 + b) for b in b'[[{"a": [')
        first, other = (
            functools.reduce(lambda place, b: reader.step(place, 1 + b), b'[[{"a": [', reader.start())[1]
            for _ in range(2)
        )
        assert other is first
        first.far = Marked()
        deep = weakref.ref(first.far)
        before = matcher.copy()
        for opened in itertools.product(b"[{", repeat=5):  # 62 stacks
            matcher.reset()
            assert (matcher.num_tokens, matcher.is_accepting) == (0, False)
            text = b"".join(b"[" if o == ord("[") else b'{"a": ' for o in opened)
            assert all(matcher.advance(1 + b) for b in text)
        assert reader.stacks < 30
        del first, other
        gc.collect()
        assert deep() is not None
        assert before.accepts([1 + b for b in b"1]}]]"])
        del before
        gc.collect()
        assert deep() is None
        matcher.reset()
        assert matcher.accepts([1 + b for b in b"[1]"])


def test_a_budget_counts_what_sequences_without_one_have_opened():
    vocab = vocabulary(1000)
    used, fresh = (mw.compile_json_schema(True, vocab, lazy=False) for _ in range(2))
    assert mw.Matcher(used).accepts([1 + b for b in b"[[[[]]]]"])
    a, b = (mw.Matcher(table, max_tokens=9) for table in (used, fresh))
    for byte in b"[[[[":
        assert np.array_equal(a.mask(), b.mask())
        assert a.advance(1 + byte)
        assert b.advance(1 + byte)
    assert np.array_equal(a.mask(), b.mask())
    assert not a.advance(1 + ord("["))
    assert not b.advance(1 + ord("["))


def test_garbage_is_still_collected_where_a_process_does_nothing_but_compile():
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    vocab, made = vocabulary(1000), weakref.WeakSet()
    of_tests = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # Python's own
    try:
        for i in range(500):
            made.add(Cycle())
            mw.compile_json_schema({"properties": {f"key {i}": {"type": "integer"}}}, vocab)
    finally:
        gc.set_threshold(*of_tests)
    assert len(made) < 300
    assert gc.isenabled()


@pytest.mark.long
@pytest.mark.parametrize(
    "inside", [{}, {"items": {"$ref": "#"}, "properties": MANY["properties"] | {"a": {"$ref": "#"}}}]
)
def test_a_lazy_table_that_nobody_holds_is_freed_at_once(inside):
    schema, vocab = MANY | inside, vocabulary(1000)
    assert mw.Matcher(mw.compile_json_schema(schema, vocab)).accepts([1 + b for b in b'{"key7": {"a3": 1}}'])
    gc.collect()
    gc.disable()  # what waits for it makes it go through all objects of a process
    try:
        before = sum(type(one) is ObjectState for one in gc.get_objects())
        table = mw.compile_json_schema(schema, vocab)
        matcher = mw.Matcher(table)
        assert matcher.accepts([1 + b for b in b'{"key7": {"a3": 1}}'])
        held = [weakref.ref(one) for one in (table, table.machine, table.machine.machine, reader_of(table, False))]
        del table
        assert matcher.mask().any()
        assert sum(type(one) is ObjectState for one in gc.get_objects()) > before
        left = matcher.table
        del matcher
        assert all(one() is not None for one in held)
        del left
        assert [one() for one in held] == [None] * 4
        assert sum(type(one) is ObjectState for one in gc.get_objects()) == before
    finally:
        gc.enable()


EXITING = """
import string  # a module that goes after those of maskwright, and holds a table until then
import sys
import maskwright as mw
from maskwright.compile.json_schema import emit
vocabulary = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
string.held = mw.compile_json_schema({"properties": {"a": {"$ref": "#"}}}, vocabulary)
sys.held = string, emit
"""


def test_a_lazy_table_that_lives_until_the_interpreter_exits_says_nothing():
    out = subprocess.run([sys.executable, "-c", EXITING], capture_output=True, text=True)
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


def test_a_machine_that_could_not_be_made_says_nothing_when_it_is_freed(monkeypatch):
    def fails():
        raise MemoryError

    monkeypatch.setattr(lazy_pushdown, "entry_points", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pytest makes a warning of what is raised while an object is freed
        with pytest.raises(MemoryError):
            mw.compile_json_schema({"properties": {"b": {"$ref": "#"}}}, vocabulary(1000))
        gc.collect()


def test_threads_compile_schemas_while_bound_strings_are_forgotten(monkeypatch):
    monkeypatch.setattr("maskwright.compile.json_schema.library.KEPT_BYTES", 1 << 16)
    vocab, formats = vocabulary(1000), ("date", "email", "uri", "uuid", "ipv4", "ipv6", "duration")

    def compiled(seed):
        rng = random.Random(seed)
        for _ in range(4):
            some = {f"p{i}": {"type": "string", "format": rng.choice(formats)} for i in range(3)}
            schema = {"properties": some, "required": list(some), "additionalProperties": False}
            table = mw.compile_json_schema(schema, vocab, lazy=rng.random() < 0.5)
            matcher = mw.Matcher(table)
            for byte in b'{"p0": "':
                assert matcher.advance(1 + byte)
                assert matcher.mask().any()

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(compiled, range(24)))
    finally:
        sys.setswitchinterval(switch)


def test_lazy_is_true_or_false():
    with pytest.raises(TypeError, match="lazy must be True or False, not 'no'"):
        mw.compile_json_schema(True, vocabulary(1000), lazy="no")


WORDS = ("", "a", "ab", "abc", "aa", "b", 'b"', "b\\", "a\n", "é", "éa", "è", "aé", "xyz", "xyw", "/a")


def wordy(rng, depth):
    """Return a random schema of an object whose keys and words begin alike, and which may hold itself."""
    keys = rng.sample(WORDS, rng.randint(1, 6))
    schema = {"type": "object", "properties": {key: worded(rng, depth) for key in keys}}
    if rng.random() < 0.5:
        schema["required"] = rng.sample(keys, rng.randint(1, len(keys)))
    schema |= rng.choice(
        [
            {"additionalProperties": False},
            {"additionalProperties": False},
            {"additionalProperties": {"type": "array", "items": worded(rng, 0)}},
            {"patternProperties": {rng.choice(["^a", "b$", "^x"]): worded(rng, 0)}, "additionalProperties": False},
            {},
        ]
    )
    if rng.random() < 0.3:
        key, words = rng.choice(keys), rng.sample(WORDS, 3)
        schema["oneOf"] = [
            {"properties": {key: {"enum": words[:2]}}, "required": [key]},
            {"properties": {key: {"const": words[2]}, rng.choice(WORDS): worded(rng, 0)}, "required": [key]},
        ]
    return schema


def worded(rng, depth):
    """Return a random schema of one of some words, or of what may hold more of them."""
    some = {"enum": [*rng.sample(WORDS, rng.randint(1, 6)), *rng.sample([1, None, 12], rng.randint(0, 1))]}
    return rng.choice(
        [some, some, {"$ref": "#"}, {"type": "array", "items": some}, wordy(rng, depth - 1) if depth else {}]
    )


def wordy_vocabulary(rng):
    """Return bytes, and tokens that lead through several words and brackets."""
    marks = ['"', '":', '", "', '"}', '{"', '[["', "\\", '\\"', ' "', '":{"', "}}"]
    words = [json.dumps(word, ensure_ascii=False)[1:-1] for word in WORDS if word]
    tokens = {bytes([b]) for b in range(256)}
    tokens |= {
        "".join(rng.choice(marks if rng.random() < 0.5 else words) for _ in range(rng.randint(2, 4))).encode()
        for _ in range(500)
    }
    return mw.Vocabulary.from_bytes([b"", *sorted(tokens)], eos=0)


@pytest.mark.parametrize("seed", range(8 * TIMES))
def test_words_that_begin_alike_are_told_apart_and_near_the_depth_only_those_come_that_fit(seed):
    rng = random.Random(seed)
    vocab, compared = wordy_vocabulary(rng), 0
    for _ in range(40):
        schema = wordy(rng, 2)
        options = {"depth": rng.choice([1, 2, 3, 64]), "any_order": rng.random() < 0.2, "ascii": rng.random() < 0.2}
        try:
            lazy, complete = tables(schema, vocab, **options)
        except MaskwrightError:
            continue  # nothing fits the schema, or within the depth
        same_until_it_ends(lazy, complete, vocab, rng)
        compared += 1
        if compared == 6:
            break
    assert compared == 6


def same_until_it_ends(lazy, complete, vocab, rng):
    """Walk along both tables, three times, and as far as only EOS may come."""
    for _ in range(3):
        a, b = mw.Matcher(lazy), mw.Matcher(complete)
        for _ in range(40):
            both = tokens_of(a.mask()), tokens_of(b.mask())
            assert both[0] == both[1], b"".join(vocab.tokens[token] for token in a.tokens)
            allowed = [token for token in both[0] if token != vocab.eos]
            if not allowed:
                assert a.is_accepting, b"".join(vocab.tokens[token] for token in a.tokens)
                break
            some = rng.sample(allowed, min(6, len(allowed)))
            token = max(some, key=lambda v: len(vocab.tokens[v])) if rng.random() < 0.5 else some[0]
            assert a.advance(token)
            assert b.advance(token)


@pytest.mark.long
@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("seed", range(4 * TIMES))
def test_a_depth_is_all_that_keeps_a_text_from_being_written(seed, lazy):
    """A table allows what one of more depth allows with as many frames open as it may have, and nothing else."""
    rng, compared = random.Random(seed), 0
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    for _ in range(60):
        schema = wordy(rng, 2)
        deeper = [key for key, value in schema["properties"].items() if "$ref" in str(value)]
        if deeper and rng.random() < 0.5:  # a number decides whether there has to be more
            schema["properties"] = {
                "n": {"type": rng.choice(["integer", ["number", "string"]])},
                **schema["properties"],
            }
            schema["if"] = {"properties": {"n": {"type": "number", "minimum": rng.choice([0, 5])}}, "required": ["n"]}
            schema["then"] = {"required": [rng.choice(deeper)]}
        options = {"any_order": rng.random() < 0.3, "ascii": rng.random() < 0.3, "whitespace": "compact", "lazy": lazy}
        try:
            deep = mw.compile_json_schema(schema, vocab, depth=20, **options)
        except MaskwrightError:
            continue
        shallow = {}
        for depth in (1, 2, 3):
            try:
                table = mw.compile_json_schema(schema, vocab, depth=depth, **options)
            except mw.errors.ConstraintError:  # no text fits
                shallow[depth] = None
            else:
                if table.depth == depth:  # else the schema does not recurse
                    shallow[depth] = mw.Matcher(table)
        for _ in range(8 if shallow else 0):
            text, frames = random_text(deep, rng)
            for depth, matcher in shallow.items() if text is not None else ():
                fits = matcher is not None
                if fits:
                    matcher.reset()
                    for byte in text:
                        allowed = tokens_of(matcher.mask())
                        assert allowed, (depth, text)
                        fits = matcher.advance(byte + 1)
                        assert fits == (byte + 1 in allowed), (depth, text)
                        if not fits:
                            break
                assert fits == (frames <= depth), (depth, frames, text, schema)
                compared += 1
    assert compared > 40


def random_text(table, rng):
    """Return a text that a table of single bytes accepts, None where it became long, and the most frames open."""
    matcher, reader = mw.Matcher(table), reader_of(table, False)
    text, frames, place = bytearray(), 0, reader.start()
    while not matcher.is_accepting:
        allowed = [token - 1 for token in tokens_of(matcher.mask())]
        ending = [byte for byte in allowed if byte in b'"]}']
        leading = [byte for byte in allowed if byte in b"\\{}[]:,abxyz12" or byte > 0x7F]
        byte = rng.choice(ending if ending and rng.random() < 0.5 else leading or allowed)
        assert matcher.advance(byte + 1)
        text.append(byte)
        place = reader.step(place, byte + 1)
        frames = max(frames, place[1].frames)
        if len(text) > 300:
            return None, frames
    return bytes(text), frames


@pytest.mark.parametrize("lazy", [True, False])
def test_near_the_depth_what_may_come_within_a_key_depends_on_the_keys_before_it(lazy):
    tokens = [b"", *(bytes([b]) for b in range(256)), b'{"x":']
    vocab = mw.Vocabulary.from_bytes(tokens, eos=0)
    one = {"const": 1}
    schema = {"type": "object", "properties": {"è": one, "é": one}, "additionalProperties": {"$ref": "#"}}
    matcher = mw.Matcher(mw.compile_json_schema(schema, vocab, lazy=lazy, depth=1, whitespace="compact"))
    for read, allowed in ((b'{"\xc3', b"\xa8\xa9"), (b'\xa8":1,"\xc3', b"\xa9")):
        assert all(matcher.advance(byte + 1) for byte in read)
        assert [vocab.tokens[token] for token in tokens_of(matcher.mask())] == [bytes([byte]) for byte in allowed]


@pytest.mark.parametrize("lazy", [True, False])
def test_a_token_that_opens_an_object_leaves_room_for_what_the_next_one_has_to_open(lazy):
    """What is called behind its key needs a frame for itself, and one for the object that it has to have."""
    tokens = [b"", *(bytes([b]) for b in range(256)), b'{"x":']
    vocab = mw.Vocabulary.from_bytes(tokens, eos=0)
    schema = {"properties": {"o": {"type": "object"}}, "required": ["o"], "additionalProperties": {"$ref": "#"}}
    schema["type"] = "object"
    options = {"lazy": lazy, "any_order": True, "whitespace": "compact"}
    for depth in (3, 4):
        matcher = mw.Matcher(mw.compile_json_schema(schema, vocab, depth=depth, **options))
        assert matcher.advance(257)
        assert (257 in tokens_of(matcher.mask())) == (depth == 4)
        assert matcher.advance(257) == (depth == 4)


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("value", [{"type": "null"}, {"$ref": "#"}, {}])
def test_no_key_is_begun_where_none_may_come(value, lazy):
    vocab = vocabulary()
    schema = {"type": "object", "patternProperties": {"b$": value}, "maxProperties": 1}
    matcher = mw.Matcher(mw.compile_json_schema(schema, vocab, lazy=lazy, whitespace="compact"))
    for byte in b'{"a":"x"':
        assert matcher.advance(vocab.tokens.index(bytes([byte])))
    assert [vocab.tokens[token] for token in tokens_of(matcher.mask())] == [b"}"]


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_number_that_decides_what_follows_is_written_where_there_is_room(depth, lazy):
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}, "n": {"type": "integer"}, "x": {"$ref": "#"}},
        "additionalProperties": False,
        "if": {"properties": {"n": {"minimum": 5}}, "required": ["n"]},
        "then": {"required": ["x"]},
        "allOf": [
            {
                "if": {"required": ["a", "n"]},
                "then": {"properties": {"n": {"maximum": 4}}, "required": ["x"]},
            }
        ],
    }
    table = mw.compile_json_schema(schema, vocab, depth=depth, lazy=lazy, whitespace="compact")
    above = b'{"n":7,"x":' * (depth - 1)

    def allowed(text):
        """Return the bytes that may come after a text on the last level."""
        matcher = mw.Matcher(table)
        assert all(matcher.advance(byte + 1) for byte in above + text), text
        return {token - 1 for token in tokens_of(matcher.mask())}

    assert allowed(b"{") == set(b'"}')
    assert allowed(b'{"') == set(b"an")
    assert allowed(b'{"n":') == set(b"-01234")  # five and more ask for "x"
    assert allowed(b'{"n":1') == set(b"}")
    assert allowed(b'{"n":-') >= set(b"123456789")
    assert allowed(b'{"a":1') == set(b".}")  # with "n" there has to be "x"


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_string_that_decides_what_follows_is_written_where_there_is_room(depth, ascii, lazy):
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    schema = {
        "type": "object",
        "properties": {"n": {"type": "string", "pattern": "^[a-d]{2}$"}, "x": {"$ref": "#"}},
        "additionalProperties": False,
        "if": {"properties": {"n": {"pattern": "^[cd]|d$"}}, "required": ["n"]},
        "then": {"required": ["x"]},
    }
    table = mw.compile_json_schema(schema, vocab, depth=depth, lazy=lazy, ascii=ascii, whitespace="compact")
    for level in range(1, depth + 1):
        for text in (b"", b"a", b"c"):
            matcher = mw.Matcher(table)
            read = [matcher.advance(byte + 1) for byte in b'{"n":"da","x":' * (level - 1) + b'{"n":"' + text]
            assert all(read[:-1])
            assert read[-1] == (level < depth or text != b"c")
            last = {b"": "ab", b"a": "abc", b"c": ""}[text]
            found = {token - 1 for token in tokens_of(matcher.mask())} - {ord("\\")}
            assert not read[-1] or found == set((last if level == depth else "abcd").encode())


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_near_the_depth_a_key_is_only_begun_if_there_is_room_behind_it(depth):
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'"a', b'{"a', b'"ab'], eos=0)
    inside = {"type": "array", "items": {"type": "array", "items": {"$ref": "#/$defs/d"}}}
    definitions = {
        "d": {"type": "object", "properties": {"abc": {"enum": ["aa", True]}}, "additionalProperties": inside},
        "closed": {
            "type": "object",
            "properties": {"abc": inside, "abd": {"const": "a"}, "b": {"$ref": "#/$defs/closed"}},
            "additionalProperties": False,
            "minProperties": 1,
        },
        "deep": {"type": "object", "properties": {"abc": inside}, "additionalProperties": {"const": "a"}},
    }
    for name in definitions:
        schema = {"type": "object", "properties": {"e": {"$ref": "#"}, "a": {"$ref": f"#/$defs/{name}"}}}
        lazy, complete = tables({**schema, "additionalProperties": False, "$defs": definitions}, vocab, depth=depth)
        for seed in range(6):
            same_until_it_ends(lazy, complete, vocab, random.Random(seed))


def test_where_ends_are_hoped_for_the_ways_that_surely_end_count_first():
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b'"a'], eos=0)
    some = {
        "type": "object",
        "properties": {"a\n": {"type": "object", "required": ['b"']}, "éa": {"type": "object"}, "ab": {"$ref": "#"}},
        "additionalProperties": False,
        "if": {},
        "then": {"required": ["éa"]},
    }
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d"}}, "required": ["a"], "$defs": {"d": some}}
    lazy, complete = tables(schema, vocab, depth=6, any_order=True)
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    for byte in b'{"a":{"ab":{"a":{':
        assert tokens_of(a.mask()) == tokens_of(b.mask())
        assert a.advance(byte + 1)
        assert b.advance(byte + 1)
    assert tokens_of(a.mask()) == tokens_of(b.mask())


def test_many_keys_in_any_order_have_no_more_states_at_first_than_in_order():
    keys = [f"k{i}" for i in range(200)]
    schema = {"type": "object", "properties": {key: {"type": "integer"} for key in keys}}
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    in_order, in_any = (mw.compile_json_schema(schema, vocab, any_order=each) for each in (False, True))
    mw.Matcher(in_order).mask()
    matcher = mw.Matcher(in_any)
    matcher.mask()
    reader = in_any.reading()
    assert reader.num_states <= in_order.reading().num_states
    for number in (20, 40):  # a member has a state for each key that may follow, and few more
        before = reader.num_states
        some = random.Random(number).sample(keys, number)
        matcher.reset()
        assert all(matcher.advance(byte + 1) for byte in json.dumps(dict.fromkeys(some, 1)).encode())
        assert matcher.is_accepting
        assert reader.num_states - before < 2.5 * number * len(keys)
    matcher.reset()
    assert not all(matcher.advance(byte + 1) for byte in b'{"k7": 1, "k150": 2, "k7": 3}')


def test_states_in_any_order_are_made_for_texts_after_the_seconds_of_the_budget():
    """Integers tell the branches apart, and what `o` may be follows from the branches that are left."""

    def branch(i):
        numbers = {f"k{j}": {"type": "integer", "minimum": i + j} for j in range(12)}
        inner = {"x": {"oneOf": [{"type": "string", "maxLength": i}, {"type": "integer", "minimum": i}]}}
        inside = {"type": "object", "properties": inner, "dependentRequired": {"y": ["x"]}}
        return {"properties": {"t": {"const": f"t{i}"}, **numbers, "o": inside}, "required": ["t"]}

    schema = {"type": "object", "oneOf": [branch(i) for i in range(4)]}
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    seconds = 2.0
    matcher = mw.Matcher(mw.compile_json_schema(schema, vocab, any_order=True, budget=mw.Budget(seconds=seconds)))
    over = time.thread_time() + seconds
    while time.thread_time() < over:
        pass
    for value, accepted in (
        ({"k3": 7, "k5": 9, "o": {"y": 5, "x": "a"}, "t": "t1", "k0": 3}, True),
        ({"k3": 7, "k5": 7, "o": {"y": 5, "x": "a"}, "t": "t3"}, False),
        ({"k3": 7, "o": {"x": "abc"}, "k5": 7, "t": "t2"}, False),
        ({"o": {"x": 3, "y": 4}, "k11": 14, "t": "t3"}, True),
    ):
        matcher.reset()
        read = all(matcher.advance(byte + 1) for byte in json.dumps(value).encode())
        assert (read and matcher.is_accepting) == accepted


LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAIRS = [x + y for x in LETTERS for y in LETTERS]


@pytest.mark.parametrize(
    "value",
    [
        {"enum": PAIRS},
        {"pattern": "^[a-z]{2}$"},
        {"type": "string", "minLength": 2, "maxLength": 3},
        {"type": "object", "properties": {key: {} for key in PAIRS}, "additionalProperties": False},
    ],
    ids=["words", "pattern", "length", "keys"],
)
@pytest.mark.parametrize("pairs", [PAIRS[::9], PAIRS], ids=len)  # which end in fewer places than are noted, and in more
def test_a_string_may_end_within_however_many_tokens(value, pairs):
    tokens = [b"", *(bytes([b]) for b in range(256)), *(f'{mark}{pair}"{end}' for pair in pairs for mark in ('"', "")
              for end in ("", ",", "}", ": 1"))]  # fmt: skip
    vocab = mw.Vocabulary.from_bytes([token if type(token) is bytes else token.encode() for token in tokens], eos=0)
    lazy, complete = tables({"type": "object", "properties": {"k": value, "l": value}, "required": ["k", "l"]}, vocab)
    for text in (
        '{"k":',
        '{"k": ',
        '{"k":"',
        '{"k":{',
        '{"k":{"',
        '{"k": {"ac": 1, "',
        '{"k":"zz", "l":',
        '{"k":"zz", "l":"',
    ):
        a, b = mw.Matcher(lazy), mw.Matcher(complete)
        if all(a.advance(byte + 1) for byte in text.encode()):
            assert all(b.advance(byte + 1) for byte in text.encode())
            assert tokens_of(a.mask()) == tokens_of(b.mask()), text


def test_a_token_may_open_what_it_is_in_and_go_on_behind_it():
    words = ["a", "b"]
    text = '{"k": {"a": [{"b": "a"}], "b": {"a": {"b": "a"}}}, "l": [{"b": "a"}, []]}'
    cuts = [(i, j) for i in range(len(text)) for j in range(i + 2, min(i + 14, len(text)) + 1)]
    tokens = sorted({text[i:j].encode() for i, j in cuts})
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *tokens], eos=0)
    inner = {
        "type": "object",
        "properties": {key: {"$ref": "#/$defs/v"} for key in words},
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {"k": inner, "l": {"$ref": "#/$defs/v"}},
        "additionalProperties": False,
        "$defs": {"v": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/v"}}, {"enum": words}, inner]}},
    }
    lazy, complete = tables(schema, vocab)
    a, b = mw.Matcher(lazy), mw.Matcher(complete)
    for byte in text.encode():  # sites that a token leaves lie on the stack, and tokens push more
        assert tokens_of(a.mask()) == tokens_of(b.mask()), a.tokens
        assert a.advance(byte + 1)
        assert b.advance(byte + 1)
    assert a.is_accepting


@pytest.mark.parametrize("name", ["keys", "recursion"])
def test_words_have_rows_where_the_numbers_of_states_have_run_out(name, monkeypatch):
    rng = random.Random(name)
    vocab = wordy_vocabulary(rng)
    schema = wordy(rng, 2) if name == "keys" else TREE
    with monkeypatch.context() as patched:
        patched.setattr(PushdownMachine, "use", lambda *_: None)
        lazy, complete = tables(schema, vocab, depth=4)
        same_along_walks(lazy, complete, vocab, rng, 150)


@pytest.mark.parametrize("asked", [False, True])
def test_a_token_that_leaves_many_frames_is_read_however_many_sites_are_at_hand(asked):
    """Without masks, tokens look at some sites on top at first, and at all of them where these are too few."""
    tokens = [b"", *(bytes([b]) for b in range(256)), *(b"]" * n for n in range(2, 9)), b"[" * 7, b"]]]]]],1,[[["]
    vocab = mw.Vocabulary.from_bytes(tokens, eos=0)
    token_of = {n: tokens.index(b"]" * n) for n in range(1, 9)}
    for table in tables({"$ref": "#/$defs/l", "$defs": {"l": {"items": {"$ref": "#/$defs/l"}}}}, vocab, depth=12):
        for closing in ([3, 5], [6, 2], [8, 1], [1, 8], [8, 3], [4, 4], [7, 2]):
            matcher = mw.Matcher(table)
            for token in (264, 1 + ord("[")):
                assert not asked or matcher.mask().any()
                assert matcher.advance(token)
            first, second = (token_of[n] for n in closing)
            assert matcher.advance(first)
            assert not asked or matcher.mask()[second // 32] >> second % 32 & 1 == (sum(closing) <= 8)
            assert matcher.advance(second) == (sum(closing) <= 8)
            assert matcher.is_accepting == (sum(closing) == 8 or closing[0] == 8)
        matcher = mw.Matcher(table)
        assert matcher.advance(264)
        assert matcher.advance(265)
        assert matcher.accepts([token_of[4]])
        assert not matcher.accepts([token_of[5]])
