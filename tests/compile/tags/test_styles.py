"""Parameters in the styles of models: texts of right calls are allowed, and no others."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

import maskwright as mw
from tests.engines.write_family_tags import NOTHING, PATH, WEATHER
from tests.oracles.parameter_readers import fits, read
from tests.strategies.styled_calls import (
    FAMILIES,
    LIKE_ENDS,
    NASTY,
    SPACED,
    call_of,
    random_arguments,
    random_parameters,
    tag_of,
    walked,
)


@pytest.fixture(scope="module")
def vocab() -> mw.Vocabulary:
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"</", b">\n", b"parameter"], eos=0)


def takes(table: Any, vocab: mw.Vocabulary, text: str) -> bool:
    return bool(table.accepts(vocab.encode(text)))


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_as_models_write_them_are_allowed_and_read_back(family, vocab):
    for seed in range(12):
        rng = random.Random(seed)
        schema = random_parameters(rng)
        table = mw.compile_structural_tag(tag_of(family, schema), vocab, **SPACED)
        for _ in range(4):
            arguments = random_arguments(rng, schema)
            text = call_of(family, arguments)
            assert takes(table, vocab, text), (seed, text)
            assert read(family, schema, text) == arguments, (seed, text)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_masks_allow_is_read_into_arguments_that_fit(family, vocab):
    whole = 0
    for seed in range(12):
        rng = random.Random(seed)
        schema = random_parameters(rng)
        table = mw.compile_structural_tag(tag_of(family, schema), vocab, **SPACED)
        for most in (600, None):
            text = walked(rng, mw.Matcher(table, max_tokens=most), vocab)
            if text is not None:
                whole += 1
                assert fits(schema, read(family, schema, text)), (seed, text)
            else:
                assert most is None
    assert whole > 12


@pytest.mark.parametrize("family", FAMILIES)
def test_a_changed_call_is_refused_or_read_into_arguments_that_fit(family, vocab):
    rng, taken, letters = random.Random(5), 0, '<>/"a1{}[] \n-.e0'
    for _ in range(6):
        schema = random_parameters(rng)
        table = mw.compile_structural_tag(tag_of(family, schema), vocab, **SPACED)
        for _ in range(60):
            text = list(call_of(family, random_arguments(rng, schema)))
            place = rng.randrange(len(text))
            text[place : place + rng.randrange(2)] = rng.choice(["", rng.choice(letters)])
            changed = "".join(text)
            if takes(table, vocab, changed):
                taken += 1
                assert fits(schema, read(family, schema, changed)), changed
    assert taken > 50


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_calls_are_refused(family, vocab):
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string"}, "count": {"type": "integer", "minimum": 0},
            "unit": {"type": "string", "enum": ["C", "F"]}, "list": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["text", "count"],
        "additionalProperties": False,
    }  # fmt: skip
    table = mw.compile_structural_tag(tag_of(family, schema), vocab, **SPACED)
    right = {"text": "a", "count": 1, "unit": "C", "list": ["b"]}
    assert takes(table, vocab, call_of(family, right))
    for wrong in (
        {"text": "a"}, {"count": 1}, {}, {**right, "count": -1}, {**right, "count": "a"}, {**right, "count": 1.5},
        {**right, "unit": "K"}, {**right, "more": 1}, {"count": 1, "text": "a"}, {**right, "list": [1.5, None]},
        {**right, "list": {"a": 1}}, {**right, "count": True}, {**right, "count": None},
    ):  # fmt: skip
        text = call_of(family, wrong)
        assert not takes(table, vocab, text) or fits(schema, read(family, schema, text)), text
        if wrong != {**right, "list": [1.5, None]}:
            assert not takes(table, vocab, text), text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("inside", [*LIKE_ENDS, *NASTY])
def test_text_that_looks_like_an_end_is_allowed_only_where_it_is_read_back(family, inside, vocab):
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}},
        "additionalProperties": False,
    }
    table = mw.compile_structural_tag(tag_of(family, schema), vocab, **SPACED)
    for arguments in ({"text": inside}, {"text": f"a{inside}b"}, {"list": [inside]}, {"list": ["a", f"{inside}b"]}):
        text = call_of(family, arguments)
        back = read(family, schema, text)
        taken = takes(table, vocab, text)
        assert taken or inside not in NASTY, text
        assert back == arguments or not taken, text


@pytest.mark.parametrize("family", ["qwen_3_coder", "glm_4_7", "minimax", "deepseek_v3_2"])
@pytest.mark.parametrize("text", ["5", " 5 ", "5_0", "+5", "five", "null", "NULL", "[1", "{", "true", "٥", "1e5", ".5"])
def test_of_several_types_a_text_has_the_one_that_a_reader_sees(family, text, vocab):
    kinds: list[dict[str, Any]] = [
        {"type": "integer", "maximum": 4}, {"type": "null"}, {"type": "string"}, {"type": "array", "maxItems": 0},
        {"type": "boolean"}, {"enum": ["five", 6]},
    ]  # fmt: skip
    for left in kinds:
        for right in kinds:
            schema = {"type": "object", "properties": {"a": {"anyOf": [left, right]}}, "required": ["a"]}
            table = mw.compile_structural_tag(tag_of(family, schema), vocab, **SPACED)
            for value in (text, 5):
                call = call_of(family, {"a": value})
                if takes(table, vocab, call):
                    assert fits(schema, read(family, schema, call)), (schema, call)


@pytest.mark.parametrize(
    ("schema", "style", "message"),
    [
        ({"$ref": "#/$defs/D"}, "qwen_xml", r"/properties/a: the style 'qwen_xml' says no types, .* read string, and "),
        ({"$ref": "#/$defs/D"}, "glm_xml", r"json_schema/properties/a: the style 'glm_xml' says no types"),
        ({"const": 5}, "minimax_xml", r"/properties/a: .* keywords type, enum, anyOf, oneOf and allOf"),
        ({"enum": ["null"]}, "qwen_xml", r"/properties/a: the style 'qwen_xml' cannot write any value"),
        ({"type": "string", "pattern": "^</parameter>$"}, "qwen_xml", r"/properties/a: .* cannot write any value"),
        (False, "qwen_xml", None),
    ],
)
def test_what_a_reader_could_not_tell_is_refused_by_name(schema, style, message, vocab):
    whole = {
        "type": "object", "properties": {"a": schema, "b": {"type": "string"}},
        "$defs": {"D": {"type": "object", "properties": {}}},
    }  # fmt: skip
    tag = {
        "type": "tag",
        "begin": "<f>",
        "content": {"type": "json_schema", "json_schema": whole, "style": style},
        "end": "</f>",
    }
    if message is None:
        mw.compile_structural_tag(tag, vocab)
        return
    with pytest.raises(mw.errors.ConstraintError, match=message):
        mw.compile_structural_tag(tag, vocab)


@pytest.mark.parametrize("family", FAMILIES)
def test_references_are_followed_where_the_style_or_the_type_says_what_is_read(family, vocab):
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/D"}},
            "b": {"type": "object", "allOf": [{"$ref": "#/$defs/D"}]},
        },
        "required": ["a"],
        "$defs": {"D": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"],
                        "additionalProperties": False}},
        "additionalProperties": False,
    }  # fmt: skip
    if family == "minimax_m3":
        return  # its readers look for what is in an array in the schema at hand
    table = mw.compile_structural_tag(tag_of(family, schema), vocab, **SPACED)
    assert takes(table, vocab, call_of(family, {"a": [{"x": "é"}]}))
    assert not takes(table, vocab, call_of(family, {"a": [{"y": "é"}]}))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_table_and_a_grammar_have_the_same_texts(family):
    small = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 3}, "n": {"type": "integer"},
            "l": {"type": "array", "items": {"type": "string"}, "maxItems": 1},
        },
        "required": ["a"], "additionalProperties": False,
    }  # fmt: skip
    tag = tag_of(family, schema)
    lazy = mw.compile_structural_tag(tag, small, **SPACED)
    whole = mw.compile_structural_tag(tag, small, **SPACED).to_table()
    nested = {"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}
    form = {"type": "structural_tag", "format": {"type": "sequence", "elements": [tag["format"], nested]}}
    rules = mw.compile_structural_tag(form, small, **SPACED)
    for arguments in (
        {"a": "é"},
        {"a": "abcd"},
        {"a": "", "n": 5},
        {"n": 5},
        {"a": "x", "l": ["b"]},
        {"a": "x", "l": ["b", "c"]},
    ):
        text = call_of(family, arguments)
        found = takes(lazy, small, text)
        assert found == takes(whole, small, text) == takes(rules, small, f"{text}((x))"), text
        assert found == (arguments.get("a", "abcd") != "abcd" and len(arguments.get("l", [])) < 2)


def filled(form: Any) -> Any:
    """Return a structural tag with the schemas that its file names."""
    if isinstance(form, list):
        return [filled(each) for each in form]
    if not isinstance(form, dict):
        return form
    schemas = {"weather": WEATHER, "now": NOTHING}
    named = isinstance(form.get("json_schema"), str)
    return {key: schemas[each] if key == "json_schema" and named else filled(each) for key, each in form.items()}


TAGS = json.loads(PATH.read_text())
MARKED = sorted(set(re.findall(r"<[|｜][^<>]*[|｜]>", PATH.read_text())))


@pytest.mark.parametrize("controlled", [False, True])
def test_the_tags_that_xgrammar_makes_for_all_families_compile(controlled):
    tokens = [b"", *(bytes([b]) for b in range(256)), *(b"" for _ in MARKED)]
    named = {name: 257 + i for i, name in enumerate(MARKED)} if controlled else None
    vocab = (
        mw.Vocabulary.from_bytes(tokens, eos=0, special=named)
        if controlled
        else mw.Vocabulary.from_bytes(tokens[:257], eos=0)
    )
    families = set()
    for name, tag in TAGS.items():
        table = mw.compile_structural_tag(filled(tag), vocab)
        families.add(name.split()[0])
        matcher = mw.Matcher(table)
        assert matcher.mask().any(), name
    assert len(families) == 18


def test_control_tokens_among_marks_are_those_tokens():
    names = {"<|open|>": 257, "<|close|>": 258, "<|sep|>": 259}
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"", b"", b""], eos=0, special=names)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    table = mw.compile_structural_tag(tag_of("kimi_k3", schema), vocab)
    text = call_of("kimi_k3", {"a": "call argument"})
    parts = re.split(r"(<\|[a-z]+\|>)", text)
    tokens = [token for part in parts for token in ([names[part]] if part in names else vocab.encode(part))]
    assert table.accepts(tokens)
    assert not table.accepts(vocab.encode(text))


def test_undeclared_parameters_are_named_by_words_if_the_schema_has_no_others(vocab):
    for style, begin, end in (
        ("qwen_xml", "<parameter=", "</parameter>"),
        ("minimax_xml", '<parameter name="', "</parameter>"),
    ):
        tag = {
            "type": "tag",
            "begin": "<f>",
            "content": {"type": "json_schema", "json_schema": True, "style": style},
            "end": "</f>",
        }
        table = mw.compile_structural_tag(tag, vocab)
        quote = '"' if "name" in begin else ""
        assert takes(table, vocab, f"<f>{begin}any_1{quote}>text{end}</f>")
        assert not takes(table, vocab, f"<f>{begin}no word{quote}>text{end}</f>")


@pytest.mark.parametrize("family", FAMILIES)
def test_characters_of_bare_text_are_counted_as_a_reader_has_them(family, vocab):
    schema = {
        "type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 200}}, "required": ["a"],
        "additionalProperties": False,
    }  # fmt: skip
    table = mw.compile_structural_tag(tag_of(family, schema), vocab, **SPACED)
    for size in (1, 2, 199, 200, 201):
        for letter in ("a", "日", "<"):
            text = call_of(family, {"a": letter * size})
            assert takes(table, vocab, text) == (2 <= size <= 200), (size, letter)
