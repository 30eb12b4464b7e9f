"""What the rules of a schema promise beside their language: alphabets, ends, refusals, and the official suite."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata.alphabet import Spelling, string_alphabet
from maskwright.automata.budget import Budget
from maskwright.automata.utf8 import LAST
from maskwright.compile.json_schema.escapes import quoted
from maskwright.compile.json_schema.request import request
from maskwright.compile.schemas.schema_rules import schema_rules
from maskwright.errors import ConstraintError, SchemaError
from maskwright.lazy.lazy_table import LazyTable
from maskwright.lazy.machine.lazy_machine import ByteMachine
from maskwright.lazy.machine.rules import DEAD
from tests.compile.schemas.both_readers import REMEMBERED, VOCABULARY, rules_of
from tests.compile.schemas.byte_reader import ByteReader
from tests.strategies import odd_schemas, random_schemas

SUITE = Path(
    os.environ.get("JSON_SCHEMA_TEST_SUITE", Path(mw.__file__).parent.parent / "shared/json-schema-test-suite")
)
CHARACTERS = 'aA~"\\/\b\t\n\x00\x1f\x7f\x80é߿ࠀ日\ud7ff\ue000\uffff𐀀😀\U0010ffff'


class _OneString:
    """The rules of one string: one state inside it, that each class of an alphabet leads to a state of its own."""

    def __init__(self, spelling: Spelling, ascii: bool) -> None:
        sets = tuple([((ord(c), ord(c)),) for c in CHARACTERS])
        self.alphabet = string_alphabet(sets, spelling, ascii)

    def class_of(self, text: bytes) -> int | None:
        """Return the class that bytes spell; None if they spell no one character."""
        at = -1
        for k, byte in enumerate(text):
            found = int(self.alphabet.root[byte] if at < 0 else self.alphabet.inner[at, byte])
            if found < 0:
                return ~found if k == len(text) - 1 and ~found < self.alphabet.classes else None
            at = found
        return None


def _spellings(character: str, spelling: Spelling, ascii: bool) -> tuple[set[bytes], set[bytes]]:
    """Return ways in which a character may be spelled, and ways in which it may not."""
    point = ord(character)
    short = {character: "\\" + letter for character, letter in zip('"\\/\b\t\n\f\r', '"\\/btnfr', strict=True)}
    units = [point] if point < 0x10000 else [0xD800 + (point - 0x10000 >> 10), 0xDC00 + (point & 0x3FF)]
    lower = "".join(f"\\u{unit:04x}" for unit in units)
    upper = "".join(f"\\u{unit:04X}" for unit in units)
    must = character in '"\\' or point < 0x20 or (ascii and point >= 0x7F)
    raw = set() if must else {character.encode()}
    every = {lower.encode(), upper.encode(), character.encode()} | {short.get(character, lower).encode()}
    if spelling is Spelling.ANY:
        allowed = {lower.encode(), upper.encode(), short.get(character, lower).encode()} | raw
    elif spelling is Spelling.ONE:
        allowed = {quoted(character, ascii)[1:-1]}
    else:
        allowed = raw
        if must or (spelling is Spelling.KEY and point >= 0x7F):
            allowed = allowed | {lower.encode(), upper.encode()}
            if character != "/":
                allowed.add(short.get(character, lower).encode())
    return allowed, every - allowed


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("spelling", list(Spelling))
def test_an_alphabet_has_each_spelling_of_a_character(spelling: Spelling, ascii: bool) -> None:
    rules = _OneString(spelling, ascii)
    for character in CHARACTERS:
        allowed, others = _spellings(character, spelling, ascii)
        others.discard(b'"')  # which ends the string
        for text in allowed:
            assert rules.class_of(text) == rules.alphabet.class_of(character), (character, text)
        for text in others:
            assert rules.class_of(text) is None, (character, text)
    assert rules.class_of(b'"') == rules.alphabet.end
    assert rules.alphabet.class_of(chr(LAST)) >= 0


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/a"}}}},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"oneOf": [{"type": "integer"}, {"multipleOf": 1, "type": "integer"}]},
        {"allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}], "type": "array", "maxItems": 1},
    ],
)
def test_a_schema_without_values_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError, match="matches no value"):
        rules_of(schema)


def test_a_wrong_pattern_is_refused_with_its_place() -> None:
    with pytest.raises(SchemaError) as caught:
        rules_of({"properties": {"a": {"pattern": "("}}})
    assert caught.value.pointer == "/properties/a/pattern"


MANY = {f"k{n}": {"type": "integer"} for n in range(40)}
WITHOUT_MEMBERS: list[dict[str, Any]] = [
    {"required": ["zz"], "propertyNames": {"pattern": "^k"}},
    {"properties": {**MANY, "zz": False}, "required": ["zz"]},
    {"patternProperties": {"^z": {"type": "string"}, "z$": {"type": "null"}}, "required": ["zz"]},
    {"oneOf": [{"required": ["zz"]}, {"required": ["yy"]}], "propertyNames": {"pattern": "^k"}},
    {"required": ["zz"], "oneOf": [{"properties": {"zz": False}}, {"propertyNames": {"pattern": "^k"}}]},
    {"required": ["zz"], "not": {"minProperties": 1}},
    {"required": list(MANY)[:20], "maxProperties": 19},
    {"additionalProperties": False, "minProperties": 41},
    {"propertyNames": {"enum": list(MANY)}, "minProperties": 41},
]


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("keywords", WITHOUT_MEMBERS)
def test_that_members_cannot_come_is_seen_soon(keywords: dict[str, Any], any_order: bool) -> None:
    schema = {"type": "object", "properties": MANY, **keywords}
    with pytest.raises(SchemaError, match="matches no value"):
        rules_of(schema, seconds=5, any_order=any_order)
    rules = rules_of({"anyOf": [schema, {"required": ["w"]}]}, seconds=5, any_order=any_order)
    before = '"k1": 1, "k3": 1, ' if any_order else ""
    assert ByteReader(rules).reads(f'{{{before}"w": null}}')
    assert not ByteReader(rules).reads('{"k1": 1, "k3": 1}')


def test_a_search_ends_with_its_budget() -> None:
    """Pigeonholes: twelve items of different kinds in eleven places."""
    kinds = [{"contains": {"type": "string", "pattern": f"^{chr(97 + i)}"}} for i in range(14)]
    with pytest.raises(mw.errors.BudgetError):
        rules_of({"type": "array", "allOf": kinds, "maxItems": 13, "minItems": 1}, seconds=0.3)


@settings(max_examples=60)
@given(st.data())
def test_each_byte_leads_to_an_end(data: st.DataObject) -> None:
    schema = data.draw(random_schemas.schemas(2020) | odd_schemas.schemas)
    try:
        rules = rules_of(schema)
    except ConstraintError:
        return
    reader, rng = ByteReader(rules), random.Random(0)
    for _ in range(4):
        place: Any = reader.start
        for step in range(2000):
            bytes_ = reader.mask(place)
            assert bytes_ or reader.accepts(place)
            closing = [byte for byte in bytes_ if byte in b'"]}']
            if reader.accepts(place) and (step > 40 or not bytes_):
                break
            if step > 40 and closing:
                byte = rng.choice(closing)
            else:
                byte = rng.choice([b for b in bytes_ if 0x20 < b < 0x7F] or bytes_)
            place = reader.step(place, byte)
            assert place is not None


def test_states_of_long_strings_stand_for_each_other() -> None:
    rules = rules_of({"type": "string", "minLength": 40, "maxLength": 5000})
    reader = ByteReader(rules)
    place: Any = reader.start
    alike = set()
    for byte in b'"' + b"x" * 3000:
        place = reader.step(place, byte)
        alike.add(rules.alike(place[0]))
    assert len(alike) < 10
    assert all(code != DEAD for code in reader.row(place[0]))


@pytest.mark.skipif(not SUITE.exists(), reason="the official suite is not beside this checkout")
def test_the_official_suite_is_decided_as_by_tables() -> None:
    documents: dict[str, Any] = {
        f"http://localhost:1234/{path.relative_to(SUITE / 'remotes')}": path.read_text()
        for path in (SUITE / "remotes").rglob("*.json")
    }
    folder = (SUITE / "tests" if (SUITE / "tests").exists() else SUITE) / "draft2020-12"
    different, cases = [], 0
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text()):
            table = reader = None
            refused: list[str | None] = [None, None]
            try:
                table = mw.compile_json_schema(group["schema"], VOCABULARY, documents=documents)
            except ConstraintError as error:
                refused[0] = str(error)
            try:
                asked = request(group["schema"], documents=documents)
                reader = ByteReader(schema_rules(asked, VOCABULARY, Budget().begin()))
            except ConstraintError as error:
                refused[1] = str(error)
            if refused[0] is None and any(word in (refused[1] or "") for word in REMEMBERED):
                continue  # a matcher sees to distinct items and keys beside either
            if (refused[0] is None) != (refused[1] is None):
                different.append((path.stem, group["description"], refused))
                continue
            if table is None or reader is None:
                continue
            for case in group["tests"]:
                cases += 1
                orders = itertools.islice(odd_schemas.orders(case["data"]), 60)
                texts = [odd_schemas.dumps(value, False, ", ", ": ") for value in orders]
                theirs = any(mw.Matcher(table).accepts([1 + byte for byte in text.encode()]) for text in texts)
                if any(map(reader.reads, texts)) != theirs:
                    different.append((path.stem, group["description"], case["description"]))
    assert cases > 1000
    assert not different, different


WORDS = [
    *('{"', '":', '": "', '", "', '"}', '"]', "hello", "aa", "aaa", "a" * 9, " a", "ab", "ba", "name", "na", "me"),
    *("é", "aé", "éé", "éaé", "中文", "12", "1.5", "true", '"name"', '"na', 'me": ', "x" * 30, "[", ', "'),
    *('a"', 'ab"', 'abab"', 'é"'),
]  # fmt: skip
OF_WORDS = mw.Vocabulary.from_bytes(
    [b"", *(bytes([b]) for b in range(256)), *(word.encode()[:n] for word in WORDS for n in (-1, None))], eos=0
)


@pytest.mark.parametrize("schema", [
    {"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2, "maxLength": 12}, {"type": "string"},
    {"type": "string", "pattern": "^-?[a-z]*$"}, {"type": "string", "pattern": "^[a-zé]{1,5}$"},
    {"type": "string", "pattern": "^[a-z]{3}$"}, {"type": "string", "pattern": "^(ab){2}$"},
    {"type": "string", "pattern": "^x?[a-z]{3,}$"}, {"type": "string", "pattern": "^\\w{2,4}$"},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]{3}$"}},
    {"type": "string", "pattern": "^[^b]{2,5}b$"}, {"enum": ["name", "na", "nam", "éa", ""]},
    {"type": "object", "additionalProperties": {"type": "string"}},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"type": "object", "properties": {"name": True, "na": {"maxLength": 2}, "éa": {"type": "integer"}}},
    {"type": "object", "properties": {"name": True, "na": {"type": "string"}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"pattern": "^#?[a-z]*$"}},
    {"type": "object", "properties": {f"{'a' * n}b": {"type": "integer"} for n in range(40)}, "required": ["aab"]},
    {"type": "array", "items": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "number"}]}},
])  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"any_order": True}, {"whitespace": "compact"}])
def test_masks_over_words_are_those_of_settled_states(schema: Any, options: dict[str, Any]) -> None:
    meter = Budget(seconds=60).begin()
    rules = schema_rules(request(schema, **options), OF_WORDS, meter)
    machine = ByteMachine(rules, OF_WORDS, meter, frames=True)
    mine = LazyTable(machine, lambda: None, OF_WORDS, source="", depth=0)  # type: ignore[arg-type,return-value]
    settled = mw.compile_json_schema(schema, OF_WORDS, **options)
    plain = np.array([b"\\" not in token for token in OF_WORDS.tokens])  # escapes may differ, see both_readers.py
    for seed in range(8):
        rng, text = random.Random(seed), b""
        matchers = [mw.Matcher(table) for table in (mine, settled)]
        for _ in range(14):
            masks = [np.unpackbits(m.mask().view(np.uint8), bitorder="little")[: OF_WORDS.size] for m in matchers]
            different = np.flatnonzero((masks[0] != masks[1]) & plain)
            assert not different.size, (schema, text, [OF_WORDS.tokens[token] for token in different[:9]])
            tokens = np.flatnonzero(masks[0][1:] & plain[1:])
            if not tokens.size:
                break
            token = 1 + int(rng.choice(tokens[tokens > 255] if rng.random() < 0.6 and (tokens > 255).any() else tokens))
            text += OF_WORDS.tokens[token]
            assert all(m.advance(token) for m in matchers)


@pytest.mark.parametrize("schema", [
    {"properties": {"a": True, "ab": {"type": "null"}, "abc": True, 'q"': True, "\u00e9": True, "": True}},
    {"properties": {f"k{n}": True for n in range(30)}, "additionalProperties": False, "required": ["k3"]},
    {"properties": {"a": True, "ab": True}, "patternProperties": {"^a": {"type": "null"}}},
    {"oneOf": [{"properties": {"a": {"const": n}}, "required": ["a", f"b{n}"]} for n in range(4)]},
])  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"any_order": True}, {"ascii": True}])
def test_rows_that_are_made_together_are_those_made_one_by_one(schema: Any, options: dict[str, Any]) -> None:
    rules = rules_of({"type": "object", **schema}, **options)
    todo, made, together = [0], set[int](), 0
    while todo and len(made) < 400:
        states, rows = rules.rows(todo.pop())
        together += len(states) > 1
        for state, row in zip(states, rows.tolist(), strict=True):
            assert row == list(rules.row(state))
            if state not in made:
                made.add(state)
                named = {code for code in row if code >= 0}
                named.update([to for inner, behind in rules.calls for to in (inner, *behind)])
                todo.extend(sorted(named - made))
    assert together or "patternProperties" in schema
