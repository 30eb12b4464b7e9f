"""XGrammar's tokenizers, grammars and compilers: what they are given, and what is written of them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Literal

import pytest

pydantic = pytest.importorskip("pydantic")
torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from maskwright.engines import xgrammar as xgr  # noqa: E402
from maskwright.engines.xgrammar.strict_schemas import closed  # noqa: E402
from maskwright.engines.xgrammar.structural_tag import (  # noqa: E402
    FORMATS,
    AnyTextFormat,
    ConstStringFormat,
    DispatchFormat,
    JSONSchemaFormat,
    OrFormat,
    RegexFormat,
    RepeatFormat,
    SequenceFormat,
    TagFormat,
    TokenFormat,
    TriggeredTagsFormat,
)
from tests.strategies import tokenizer_zoo  # noqa: E402

BYTES = xgr.TokenizerInfo([])
ANY = xgr.GrammarCompiler(BYTES)


def accepts(compiled: xgr.CompiledGrammar | xgr.Grammar, *texts: str) -> list[bool]:
    """Return which texts are whole ones."""
    if isinstance(compiled, xgr.Grammar):
        compiled = ANY.compile_grammar(compiled)
    matchers = [xgr.GrammarMatcher(compiled, terminate_without_stop_token=True) for _ in texts]
    return [
        matcher.accept_string(text) and matcher.is_terminated() for matcher, text in zip(matchers, texts, strict=True)
    ]


# ------------------------------------------------------------------------------------------------------ tokenizers


def test_tokens_of_a_list_are_spelled_as_their_kind_is():
    for kind, given, spelled in (
        (xgr.VocabType.RAW, ["a", b"\xff", "é"], [b"a", b"\xff", "é".encode()]),
        (xgr.VocabType.BYTE_FALLBACK, ["<0xC3>", "▁a", "<0x0A>"], [b"\xc3", b" a", b"\n"]),
        (xgr.VocabType.BYTE_LEVEL, ["Ġa", "Ã", "字"], [b" a", b"\xc3", "字".encode()]),
    ):
        info = xgr.TokenizerInfo([*given, "", "</s>"], kind, vocab_size=6, add_prefix_space=True)
        assert info.decoded_vocab == [*spelled, b"", b"</s>", b""]
        assert (info.vocab_type, info.vocab_size, info.add_prefix_space) == (kind, 6, True)
        assert (info.stop_token_ids, info.special_token_ids) == ([4], [3, 5])
    assert xgr.TokenizerInfo(["a", "</s>"], stop_token_ids=0).stop_token_ids == [0]
    assert xgr.TokenizerInfo(["a", "b", "c"], vocab_size=2, stop_token_ids=[]).decoded_vocab == [b"a", b"b"]
    with pytest.raises(RuntimeError, match="eos must be token ids"):
        xgr.TokenizerInfo(["a"], stop_token_ids=[400])


def test_a_tokenizer_says_of_itself_how_its_list_is_read():
    for make, kind in (
        (tokenizer_zoo.byte_level_bpe, xgr.VocabType.BYTE_LEVEL),
        (tokenizer_zoo.byte_fallback_bpe, xgr.VocabType.BYTE_FALLBACK),
        (tokenizer_zoo.metaspace_unigram, xgr.VocabType.RAW),
    ):
        tok = make()[0]
        fast = pytest.importorskip("transformers").PreTrainedTokenizerFast(tokenizer_object=tok)
        read = xgr.TokenizerInfo.from_huggingface(fast, stop_token_ids=[0])
        found = xgr.TokenizerInfo._detect_metadata_from_hf(tok.to_str())
        assert found == {"vocab_type": kind, "add_prefix_space": read.add_prefix_space}
        assert read.vocab_type is kind
        if kind is not xgr.VocabType.RAW:
            names = [tok.id_to_token(i) for i in range(read.vocab_size)]
            listed = xgr.TokenizerInfo(names, kind, stop_token_ids=[0])
            plain = [i for i in range(read.vocab_size) if i not in {*read.vocabulary.special_ids.values()}]
            assert [i for i in plain if listed.decoded_vocab[i] != read.decoded_vocab[i]] == []
            assert len(plain) > 400
        narrow = xgr.TokenizerInfo.from_huggingface(fast, vocab_size=100, stop_token_ids=[0])
        assert narrow.decoded_vocab == read.decoded_vocab[:100]


def test_a_tokenizer_is_written_and_read():
    read = xgr.TokenizerInfo.from_huggingface(
        tokenizer_zoo.byte_level_bpe()[0], vocab_size=610, stop_token_ids=[608, 0]
    )
    listed = xgr.TokenizerInfo(["a", "b"], vocab_size=4, stop_token_ids=[1], add_prefix_space=True)
    for info in (read, listed):
        for again in (xgr.TokenizerInfo.deserialize_json(info.serialize_json()), pickle.loads(pickle.dumps(info))):
            assert again.vocabulary == info.vocabulary
            assert again.vocabulary.special_ids == info.vocabulary.special_ids
            assert again.metadata == info.metadata
            assert again.decoded_vocab == info.decoded_vocab
    again = xgr.TokenizerInfo.from_vocab_and_metadata(["a", "b"], listed.dump_metadata())
    assert (again.metadata, again.vocabulary) == (listed.metadata, listed.vocabulary)
    with pytest.raises(xgr.DeserializeFormatError, match="no metadata"):
        xgr.TokenizerInfo.from_vocab_and_metadata(["a"], "{}")
    for text, kind in (
        ("{", xgr.InvalidJSONError), ('{"__VERSION__": "v16"}', xgr.DeserializeVersionError),
        ("[]", xgr.DeserializeFormatError),
        (json.dumps({"__VERSION__": xgr.get_serialization_version()}), xgr.DeserializeFormatError),
    ):  # fmt: skip
        with pytest.raises(kind):
            xgr.TokenizerInfo.deserialize_json(text)


def test_a_list_without_some_bytes_is_read_as_text():
    """No token ends a list, and no matcher of a `Vocabulary` would begin one."""
    compiled = xgr.GrammarCompiler(xgr.TokenizerInfo(["[", "1", "</s>"])).compile_json_schema({"type": "array"})
    bitmask = xgr.allocate_token_bitmask(1, 3)
    matcher = xgr.GrammarMatcher(compiled)
    matcher.fill_next_token_bitmask(bitmask)
    assert bitmask.tolist() == [[1]]
    assert [matcher.accept_token(token) for token in (0, 1, 3, 40)] == [True, True, False, False]
    assert matcher.accept_string("]")
    matcher.fill_next_token_bitmask(bitmask)
    assert bitmask.tolist() == [[4]]


def test_only_bitmasks_need_torch():
    code = """
import sys, numpy as np
for name in ("torch", "transformers", "pydantic"):
    sys.modules[name] = None
from maskwright.engines import xgrammar as xgr
compiled = xgr.GrammarCompiler(xgr.TokenizerInfo(["</s>", "a"])).compile_regex("a")
bitmask = np.zeros(xgr.get_bitmask_shape(1, 2), np.int32)
assert xgr.GrammarMatcher(compiled).fill_next_token_bitmask(bitmask) and bitmask.tolist() == [[2]]
assert xgr.StructuralTag.from_json({"type": "structural_tag", "format": {"type": "any_text"}})
try:
    xgr.allocate_token_bitmask(1, 2)
except ImportError:
    print("done")
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "done\n"


# -------------------------------------------------------------------------------------------------------- grammars


class Person(pydantic.BaseModel):
    name: str
    kind: Literal["a", "b"] = "a"


def test_schemas_come_in_all_forms_and_layouts():
    forms = (Person, Person.model_json_schema(), json.dumps(Person.model_json_schema()))
    texts = (
        '{"name": "x"}',
        '{"name": "x", "kind": "b"}',
        '{"name":"x"}',
        '{"name": "x", "other": 1}',
        '{\n"name": "x"}',
    )
    for schema in forms:
        assert accepts(ANY.compile_json_schema(schema), *texts) == [True, True, True, False, True]
        assert accepts(xgr.Grammar.from_json_schema(schema), *texts) == [True, True, True, False, True]
        for options, which in (
            ({"any_whitespace": False}, [True, True, False, False, False]),
            ({"any_whitespace": False, "separators": (",", ":")}, [False, False, True, False, False]),
            ({"max_whitespace_cnt": 2}, [True, True, False, False, False]),
            ({"strict_mode": False}, [True, True, True, True, True]),
            ({"indent": 4}, [True, True, True, False, True]),
        ):
            assert accepts(ANY.compile_json_schema(schema, **options), *texts) == which
    two = {"properties": {"a": {}, "b": {}}, "required": ["a"]}
    assert accepts(ANY.compile_json_schema(two), '{"b": 1, "a": 1}') == [False]
    orders = '{"b": 1, "a": 1}', '{"b": 1}', '{"a": 1, "a": 1}'
    assert accepts(ANY.compile_json_schema(two, any_order=True), *orders) == [True, False, False]
    assert accepts(ANY.compile_builtin_json_grammar(), '{"a": [1]}', "[", "null") == [True, False, False]


def test_grammars_and_patterns():
    text = 'all ::= "x" root\nroot ::= "a" | "b"'
    assert accepts(ANY.compile_grammar(text), "a", "xa") == [True, False]
    assert accepts(ANY.compile_grammar(text, root_rule_name="all"), "a", "xa") == [False, True]
    assert accepts(xgr.Grammar.from_ebnf(text, root_rule_name="all"), "a", "xb") == [False, True]
    assert accepts(xgr.Grammar.from_lark('start: "a"+'), "aa", "b") == [True, False]
    assert accepts(ANY.compile_lark('start: "a"+'), "aa", "b") == [True, False]
    assert accepts(xgr.Grammar.from_regex("[ab]{2}"), "ab", "a") == [True, False]
    assert accepts(ANY.compile_regex("[ab]{2}"), "ab", "a") == [True, False]
    pair = xgr.Grammar.from_regex("a+"), xgr.Grammar.from_ebnf('root ::= "(" root ")" | "x"')
    assert accepts(xgr.Grammar.concat(*pair), "aa((x))", "aa", "x") == [True, False, False]
    assert accepts(xgr.Grammar.union(*pair), "aa((x))", "aa", "x") == [False, True, True]
    one_line = xgr.Grammar.from_json_schema({"const": [1, 2]}, any_whitespace=False, separators=(",", ":"))
    assert accepts(xgr.Grammar.concat(one_line, one_line), "[1,2][1,2]", "[1, 2][1, 2]") == [True, False]
    with pytest.raises(RuntimeError, match="white space in other places"):
        xgr.Grammar.concat(one_line, xgr.Grammar.builtin_json_grammar())
    with pytest.raises(RuntimeError, match="at least one grammar"):
        xgr.Grammar.union()


def test_grammars_are_written_and_read(capsys):
    shown = xgr.Grammar.from_regex("[ab]+", print_converted_ebnf=True)
    assert capsys.readouterr().out == f"{shown}\n"
    schema = json.loads('{"properties": {"a": {"multipleOf": 0.1}}}')
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "é"}}
    made = (
        (shown, "ab"), (xgr.Grammar.from_json_schema(json.dumps(schema)), '{"a": 0.3}'),
        (xgr.Grammar.from_ebnf('root ::= "a"'), "a"), (xgr.Grammar.from_ebnf('r ::= "a"', root_rule_name="r"), "a"),
        (xgr.Grammar.from_lark('start: "a"'), "a"), (xgr.Grammar.from_structural_tag(tag), "é"),
        (xgr.Grammar.union(shown, xgr.Grammar.builtin_json_grammar()), "b"), (xgr.Grammar.builtin_json_grammar(), "[]"),
    )  # fmt: skip
    for grammar, text in made:
        for again in (
            xgr.Grammar.deserialize_json(grammar.serialize_json()), xgr.Grammar.from_ebnf(str(grammar)),
            pickle.loads(pickle.dumps(grammar)),
        ):  # fmt: skip
            assert str(again) == str(grammar)
            assert accepts(again, text, text + "?") == [True, False]
        framed = {"type": "tag", "begin": "<", "content": {"type": "grammar", "grammar": str(grammar)}, "end": ">"}
        compiled = ANY.compile_structural_tag({"type": "structural_tag", "format": framed})
        assert accepts(compiled, f"<{text}>", text) == [True, False]
        again = xgr.CompiledGrammar.deserialize_json(compiled.serialize_json(), BYTES)
        assert again.serialize_json() == compiled.serialize_json()
        assert accepts(again, f"<{text}>", text) == [True, False]
    precise = xgr.Grammar.from_json_schema('{"const": 0.12345678901234567890123}')
    assert "0.12345678901234567890123" in precise.serialize_json()
    with pytest.raises(xgr.DeserializeFormatError, match="of another tokenizer"):
        xgr.CompiledGrammar.deserialize_json(compiled.serialize_json(), xgr.TokenizerInfo(["a"]))
    with pytest.raises(xgr.DeserializeFormatError, match="no grammar"):
        xgr.Grammar.deserialize_json(json.dumps({"__VERSION__": xgr.get_serialization_version()}))
    with pytest.raises(xgr.DeserializeVersionError, match="'v16'"):
        xgr.Grammar.deserialize_json('{"__VERSION__": "v16"}')


def test_errors_are_those_of_both_packages():
    for call, kind, other in (
        (lambda: ANY.compile_regex("(a"), mw.errors.RegexError, RuntimeError),
        (lambda: xgr.Grammar.from_regex("(a"), mw.errors.RegexError, RuntimeError),
        (lambda: ANY.compile_json_schema({"type": 3}), mw.errors.SchemaError, RuntimeError),
        (lambda: xgr.Grammar.from_json_schema("{"), mw.errors.SchemaError, RuntimeError),
        (lambda: xgr.Grammar.from_ebnf("root ::= ("), mw.errors.GrammarError, RuntimeError),
        (lambda: ANY.compile_grammar("root ::= ("), mw.errors.GrammarError, RuntimeError),
        (lambda: ANY.compile_structural_tag("{"), mw.errors.SchemaError, xgr.InvalidJSONError),
        (lambda: ANY.compile_structural_tag({}), mw.errors.ConstraintError, xgr.InvalidStructuralTagError),
        (lambda: xgr.Grammar.from_structural_tag({"type": "structural_tag", "format": {"type": "no"}}),
         mw.errors.ConstraintError, xgr.InvalidStructuralTagError),
    ):  # fmt: skip
        for _ in range(2):  # a cache keeps errors
            with pytest.raises(kind) as raised:
                call()
            assert isinstance(raised.value, other)
            again = pickle.loads(pickle.dumps(raised.value))
            assert (type(again), str(again)) == (type(raised.value), str(raised.value))
    with pytest.raises(xgr.InvalidStructuralTagError, match="is an object, not list"):
        ANY.compile_structural_tag([])


def test_a_cache_keeps_what_was_compiled():
    compiler = xgr.GrammarCompiler(BYTES, max_threads=2, cache_limit_bytes=1 << 20)
    assert compiler.compile_regex("a+").table is compiler.compile_grammar(xgr.Grammar.from_regex("a+")).table
    assert compiler.get_cache_size_bytes() > 0
    assert compiler.cache_limit_bytes == 1 << 20
    before = compiler.compile_regex("a+").table
    compiler.clear_cache()
    assert compiler.get_cache_size_bytes() == 0
    assert compiler.compile_regex("a+").table is not before
    none = xgr.GrammarCompiler(BYTES, cache_enabled=False)
    assert none.compile_regex("a+").table is not none.compile_regex("a+").table
    assert none.get_cache_size_bytes() == 0
    none.clear_cache()


def test_a_number_is_kept_as_the_depth_of_recursion():
    assert xgr.get_max_recursion_depth() == 10_000
    with xgr.max_recursion_depth(20):
        assert xgr.get_max_recursion_depth() == 20
    assert xgr.get_max_recursion_depth() == 10_000
    with pytest.raises(RuntimeError, match="must be from 1 to 1,000,000"):
        xgr.set_max_recursion_depth(0)


# ---------------------------------------------------------------------------------------------------- strict schemas

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
DEFS = {"$defs": {"p": OPEN, "q": {"properties": {"b": {"$ref": "#/$defs/q"}}}}}


@pytest.mark.parametrize(("schema", "allowed", "denied"), [
    (OPEN, ['{"a": 1}', "{}"], ['{"b": 1}']),
    ({"type": "object"}, ['{"b": 1}'], ["[]"]),
    ({"type": "object", "required": ["b"]}, ['{"b": 1}'], ["{}"]),
    ({**OPEN, "additionalProperties": {"type": "null"}}, ['{"b": null}'], ['{"b": 1}']),
    ({**OPEN, "unevaluatedProperties": True}, ['{"b": 1}'], ['{"a": "x"}']),
    ({"patternProperties": {"^a": True}}, ['{"ab": 1}', "3"], ['{"b": 1}']),
    ({"type": "array", "items": OPEN}, ['[{"a": 1}]', "[]"], ['[{"b": 1}]']),
    ({"type": "array", "prefixItems": [OPEN]}, ["[]", '[{"a": 1}]'], ['[{}, 1]', '[{"b": 1}]']),
    ({"type": "array", "prefixItems": [True], "items": OPEN}, ['[1, {"a": 1}]'], ['[1, {"b": 1}]']),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [OPEN]}, ["[{}]"], ["[{}, 1]"]),
    ({"anyOf": [OPEN, {"properties": {"b": {}}, "type": "object"}]}, ['{"a": 1}', '{"b": 1}'], ['{"a": 1, "b": 1}']),
    ({"oneOf": [{**OPEN, "required": ["a"]}, {"type": "null"}]}, ['{"a": 1}', "null"], ['{"a": 1, "b": 1}']),
    ({"allOf": [OPEN, {"properties": {"b": {}}}]}, ['{"a": 1, "b": 1}'], ['{"c": 1}']),
    ({"allOf": [{"prefixItems": [True], "type": "array"}]}, ["[1]"], ["[1, 2]"]),
    ({**DEFS, "$ref": "#/$defs/p"}, ['{"a": 1}'], ['{"b": 1}']),
    ({**DEFS, "$ref": "#/$defs/q", "title": "x"}, ['{"b": {"b": {}}}'], ['{"b": {"c": 1}}', '{"a": 1}']),
    ({**DEFS, "allOf": [{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/q"}]}, ['{"a": 1, "b": {}}'], ['{"c": 1}']),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}}, ['{"a": {"a": {}}}'], ['{"a": {"b": {}}}']),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a/b": OPEN}, "$ref": "#/definitions/a~1b"},
     ['{"a": 1}'], ['{"b": 1}']),
    ({"type": "object", "properties": {"a": {"not": OPEN}}}, ['{"a": 1}'], ['{"a": {"b": 1}}', '{"b": 1}']),
    ({"if": {"required": ["a"], "type": "object"}, "then": OPEN, "else": {"properties": {"b": {}}}},
     ['{"a": 1}', '{"b": 1}'], ['{"c": 1}']),
    (True, ['{"b": 1}'], []),
])  # fmt: skip
def test_a_strict_schema_allows_nothing_that_it_does_not_name(schema, allowed, denied):
    before = json.dumps(schema)
    strict, plain = ANY.compile_json_schema(schema), ANY.compile_json_schema(schema, strict_mode=False)
    assert accepts(strict, *allowed, *denied) == [True] * len(allowed) + [False] * len(denied)
    assert all(accepts(plain, *allowed))
    assert json.dumps(schema) == before


@pytest.mark.parametrize(("schema", "said"), [
    ({"$ref": "https://example.org/a"}, "which is no path within it"),
    ({"$ref": "#/nowhere"}, "refers to nothing"),
    ({"properties": {"a": {"$id": "https://example.org/b", "type": "object"}}}, 'a part with an "\\$id"'),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "allOf": [OPEN]}, "its draft does not have"),
])  # fmt: skip
def test_what_cannot_be_closed_is_refused(schema, said):
    with pytest.raises(RuntimeError, match=said):
        ANY.compile_json_schema(schema)
    with pytest.raises(mw.errors.ConstraintError, match=said):
        closed(schema)


# --------------------------------------------------------------------------------------------------- structural tags

CALL = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": OPEN}, "end": "</f>"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL]}


def test_structural_tags_come_in_all_forms():
    item = xgr.StructuralTagItem(begin="<f>", schema=OPEN, end="</f>")
    assert item.schema_ is OPEN
    objects = xgr.StructuralTag(
        format=TriggeredTagsFormat(
            triggers=["<f"], tags=[TagFormat(begin="<f>", content=JSONSchemaFormat(json_schema=OPEN), end="</f>")]
        )
    )
    older = {"structures": [{"begin": "<f>", "schema": OPEN, "end": "</f>"}], "triggers": ["<f"]}
    whole = {"type": "structural_tag", "format": TRIGGERED}
    forms = [
        (whole,), (json.dumps(whole),), (objects,), (older,), ({"type": "structural_tag", **older},),
        (json.dumps(older),), ([item], ["<f"]), (xgr.StructuralTag.from_json(whole),),
        (xgr.StructuralTag.from_json(objects.model_dump_json()),),
        ([xgr.StructuralTagItem(begin="<f>", schema=json.dumps(OPEN), end="</f>")], ["<f"]),
    ]  # fmt: skip
    texts = 'so <f>{"a": 1}</f>.', 'so <f>{"b": 1}</f>.', "so <f"
    for given in forms:
        assert accepts(ANY.compile_structural_tag(*given), *texts) == [True, False, False]
        assert accepts(xgr.Grammar.from_structural_tag(*given), *texts) == [True, False, False]
    assert accepts(ANY.compile_structural_tag(structural_tag=whole), *texts) == [True, False, False]
    assert accepts(ANY.compile_structural_tag(tags=[item], triggers=["<f"]), *texts) == [True, False, False]


def test_formats_are_objects_that_say_what_their_dicts_say():
    made = SequenceFormat(
        elements=[
            OrFormat(elements=[ConstStringFormat(value="a"), {"type": "regex", "pattern": "b+"}]),
            RepeatFormat(min=1, max=-1, content=AnyTextFormat(excludes=["x"])),
        ]
    )
    assert isinstance(made.elements[0].elements[1], RegexFormat)
    again = SequenceFormat.model_validate_json(made.model_dump_json(indent=1))
    assert again == made
    assert SequenceFormat.model_validate(made) is made
    assert "max_chars" not in made.model_dump(exclude_none=True)["elements"][1]["content"]
    assert set(FORMATS) > {"dispatch", "token_dispatch", "any_tokens", "qwen_xml_parameter"}
    assert "structural_tag" not in FORMATS
    for value, said in (
        ({"type": "regex"}, "needs 'pattern'"), ({"pattern": "a", "flag": 1}, "has no field 'flag'"),
        ({"type": "token", "pattern": "a"}, "is no 'token'"), (3, "is made of a dict, not of int"),
    ):  # fmt: skip
        with pytest.raises(xgr.InvalidStructuralTagError, match=said):
            RegexFormat.model_validate(value)


def test_what_a_rule_says_follows_its_text():
    rules = [("<f>", RegexFormat(pattern="[0-9]")), ("<g>", ConstStringFormat(value="x"))]
    texts = "a<f>1b<g>x", "a<f>1", "a<f>b", "no"
    again = xgr.StructuralTag(format=DispatchFormat(rules=rules))
    once = xgr.StructuralTag(format=DispatchFormat(rules=rules, loop=False, excludes=["no"]))
    assert accepts(ANY.compile_structural_tag(again), *texts) == [True, True, False, True]
    assert accepts(ANY.compile_structural_tag(once), *texts) == [False, True, False, False]
    info = xgr.TokenizerInfo([*map(chr, range(128)), "<f>", "</s>"])
    by_token = {"type": "token_dispatch", "rules": [[128, {"type": "regex", "pattern": "[0-9]"}]]}
    matcher = xgr.GrammarMatcher(
        xgr.GrammarCompiler(info).compile_structural_tag({"type": "structural_tag", "format": by_token})
    )
    assert [matcher.accept_token(token) for token in (97, 128, 97, 49, 129)] == [True, True, False, True, True]


def test_a_number_ends_before_letters_of_numbers():
    for kind, number in (("integer", "-12"), ("number", "1.5e3")):
        content = {"type": "json_schema", "json_schema": {"type": kind}}
        tag = {"type": "tag", "begin": "<", "content": content, "end": "END"}
        compiled = ANY.compile_structural_tag({"type": "structural_tag", "format": tag})
        assert accepts(compiled, f"<{number}END", "<END", "<01END") == [True, False, False]


def test_tokens_are_named_before_there_is_a_tokenizer():
    info = xgr.TokenizerInfo([*map(chr, range(128)), "<|a|>", "<|b|>", "</s>"])
    tag = TagFormat(begin=TokenFormat(token="<|a|>"), content=RegexFormat(pattern="x+"), end=TokenFormat(token=129))
    grammar = xgr.Grammar.from_structural_tag(xgr.StructuralTag(format=tag))
    matcher = xgr.GrammarMatcher(xgr.GrammarCompiler(info).compile_grammar(grammar))
    assert [matcher.accept_token(token) for token in (97, 128, 120, 129, 130)] == [False, True, True, True, True]
    with pytest.raises(xgr.InvalidStructuralTagError, match="knows no special token of the name"):
        ANY.compile_grammar(grammar)
    with pytest.raises(xgr.InvalidStructuralTagError, match="by its name or its id"):
        xgr.Grammar.from_structural_tag({"type": "structural_tag", "format": {"type": "token", "token": 1.5}})
