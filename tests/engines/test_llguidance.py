"""llguidance's classes: what they return is what a `Matcher` says, and what llguidance itself returns where it is."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import maskwright as mw
from maskwright.engines import llguidance as ours
from tests.strategies import tokenizer_zoo

PATTERNS = [
    ("[ab]{2,3}", b"abb"), ("(red|green)+", b"redgreen"), ("[0-9]{4}-[0-9]{2}", b"2026-11"), ("x?", b""),
    ('"[^"]*"', b'"a b"'), ("a/b|a\\.b", b"a/b"),
]  # fmt: skip
SCHEMAS = [  # without numbers, which maskwright lets be written in all ways, such as 12.0 for 12
    ({"enum": ["y", "x", None]}, b'"x"'),
    ({"const": {"name": "foo"}}, b'{"name":"foo"}'),
    ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, b"[true,false]"),
    (
        {"type": "object", "properties": {"a": {"enum": ["17", "2"]}}, "required": ["a"],
         "additionalProperties": False},
        b'{"a":"17"}',
    ),
]  # fmt: skip


class ByteLevel:
    """A tokenizer as `TokenizerWrapper` asks for one; its end is its only control token."""

    def __init__(self) -> None:
        self.vocabulary = tokenizer_zoo.byte_level_bpe()[1]
        self.eos_token_id, self.bos_token_id = self.vocabulary.eos, None
        self.tokens = [token or b"\xff<|end|>" for token in self.vocabulary.tokens]
        self.special_token_ids = [self.vocabulary.eos]

    def __call__(self, text: bytes) -> list[int]:
        return self.vocabulary.encode(text)


@pytest.fixture(scope="module")
def tokenizer() -> ours.LLTokenizer:
    return ours.LLTokenizer(ours.TokenizerWrapper(ByteLevel()))


def grammars(module) -> list[tuple[str, bytes]]:
    """Return grammars as a module writes them, and a text of each."""
    compact = {"whitespace_flexible": False}
    made = [(module.LLMatcher.grammar_from_regex(pattern), text) for pattern, text in PATTERNS]
    made += [(module.LLMatcher.grammar_from_json_schema(schema, overrides=compact), text) for schema, text in SCHEMAS]
    made += [(module.grammar_from("json", json.dumps(schema)), text) for schema, text in SCHEMAS]
    return [*made, (module.grammar_from("lark", 'start: "(" start ")" | "x"'), b"((x))")]


def bits(matcher) -> list[int]:
    found = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return np.flatnonzero(np.unpackbits(found, bitorder="little")).tolist()


def told(matcher) -> tuple:
    return matcher.is_accepting(), matcher.is_stopped(), matcher.stop_reason(), matcher.is_error()


def test_random_calls_return_what_llguidance_returns(tokenizer):
    """Tokens that are allowed, and some that are not, rollbacks, copies and resets: both packages in step."""
    theirs = pytest.importorskip("llguidance")
    other = theirs.LLTokenizer(theirs.TokenizerWrapper(ByteLevel()))
    eos, rng = tokenizer.eos_token, random.Random(0)
    seen = set()
    for (mine, text), (its, _) in zip(grammars(ours), grammars(theirs), strict=True):
        for _ in range(0 if '"x-guidance": {}' in mine else 12):  # whose whitespace differs
            a, b = ours.LLMatcher(tokenizer, mine), theirs.LLMatcher(other, its, log_level=0)
            assert not a.is_error(), a.get_error()
            way = [*tokenizer.tokenize_bytes(text), eos] if rng.random() < 0.5 else []
            for step in range(12):
                assert told(a) == told(b), (mine, step)
                forced = b.compute_ff_tokens()  # of texts that must follow llguidance allows one spelling alone
                assert set(bits(b)) < set(bits(a)) if forced and bits(a) != bits(b) else bits(a) == bits(b)
                assert b.compute_ff_bytes().startswith(a.compute_ff_bytes()) or a.is_error()
                seen.add(a.stop_reason())
                draft = [rng.choice(bits(b)), rng.choice([eos, rng.randrange(1, tokenizer.vocab_size)]), eos]
                if a.is_error():  # in which llguidance lets ends pass
                    break
                assert a.validate_tokens(draft) == b.validate_tokens(draft)
                what = rng.choice(["token"] * 6 + ["wrong", "rollback", "copy", "reset", "try"])
                if what == "token":
                    token = way.pop(0) if way else rng.choice(bits(b))
                    assert a.consume_token(token) == b.consume_token(token)
                elif what == "wrong" and step > 8:
                    token = rng.randrange(tokenizer.vocab_size)
                    assert a.consume_token(token) == b.consume_token(token)
                elif what == "rollback":
                    count = rng.randrange(3 if step > 8 else 2) if step else 0
                    assert a.rollback(count) == b.rollback(count)
                    way = []
                elif what == "copy":
                    a, b = a.deep_copy(), b.deep_copy()
                elif what == "reset":
                    assert a.reset() == b.reset()
                    way = []
                elif what == "try":
                    assert a.try_consume_tokens(draft) == b.try_consume_tokens(draft)
                    way = []
    assert seen == {"NotStopped", "NoExtension", "EndOfSentence", "InternalError"}


def test_a_loop_written_for_llguidance_writes_what_a_matcher_allows(tokenizer):
    vocab, eos = tokenizer.vocabulary, tokenizer.eos_token
    rows = ours.allocate_token_bitmask(3, tokenizer.vocab_size)
    tables = [
        *(mw.compile_regex(pattern, vocab) for pattern, _ in PATTERNS),
        *(mw.compile_json_schema(schema, vocab, whitespace="compact") for schema, _ in SCHEMAS),
        *(mw.compile_json_schema(schema, vocab) for schema, _ in SCHEMAS),
        mw.compile_grammar('start: "(" start ")" | "x"', vocab),
    ]
    for (grammar, text), table in zip(grammars(ours), tables, strict=True):
        matcher, plain = ours.LLMatcher(tokenizer, grammar), mw.Matcher(table)
        for token in [*tokenizer.tokenize_bytes(text), eos]:
            ours.fill_next_token_bitmask(matcher, rows, 1)
            assert rows[1].view(np.uint32).tolist() == plain.mask().tolist()
            logits = np.zeros((3, tokenizer.vocab_size + 5), np.float32)
            ours.apply_token_bitmask_inplace(logits, rows)
            assert np.flatnonzero(logits[1] == 0).tolist() == bits(matcher)
            assert np.flatnonzero(np.frombuffer(matcher.compute_logit_bias(), np.uint8)).tolist() == bits(matcher)
            assert (logits[[0, 2], : tokenizer.vocab_size] == 0).all()
            assert matcher.consume_token(token)
            assert plain.advance(token)
        assert matcher.is_stopped()
        assert matcher.is_accepting()
        assert (rows[[0, 2]] == -1).all()


def test_rows_of_a_batch_are_filled_over_threads_and_in_torch(tokenizer):
    torch = pytest.importorskip("torch")
    matchers = [ours.LLMatcher(tokenizer, grammar) for grammar, _ in grammars(ours)]
    rows = torch.full(ours.get_bitmask_shape(len(matchers) + 1, tokenizer.vocab_size), -1, dtype=torch.int32)
    executor = ours.LLExecutor(2)
    ours.fill_next_token_bitmask_par(executor, [(each, i + 1) for i, each in enumerate(matchers)], rows)
    assert (rows[0] == -1).all()
    for row, matcher in zip(rows[1:], matchers, strict=True):
        assert row.numpy().tobytes() == matcher.compute_bitmask()
    logits = torch.zeros(tokenizer.vocab_size)
    ours.apply_token_bitmask_inplace(logits, rows[1])
    assert torch.isfinite(logits).nonzero().flatten().tolist() == bits(matchers[0])
    first = tokenizer.tokenize_bytes(b"a")[0]
    pairs = [(matchers[0], first), (matchers[1], first)]
    assert ours.consume_token_par(executor, pairs) == [True, False]
    assert matchers[1].is_error()


def test_what_must_follow_is_found(tokenizer):
    matcher = ours.LLMatcher(tokenizer, ours.LLMatcher.grammar_from_regex('"name": [ab]'))
    assert matcher.compute_ff_bytes() == b'"name": '
    tokens = matcher.compute_ff_tokens()
    assert tokens
    assert b'"name": '.startswith(tokenizer.decode_bytes(tokens))
    assert matcher.consume_tokens(tokens)
    assert ours.LLMatcher(tokenizer, "start: x").compute_ff_tokens() == []


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ("start: x", "line 1, column 8"),
        ('start: "a"[max_tokens=3]', "llguidance's addition"),
        ("{", "is none"),
        ('{"grammars": []}', "one grammar"),
        ('{"grammars": [{"lark_grammar": "start: \\"a\\""}, {"regex": "a"}]}', "one grammar"),
        ('{"grammars": [{"regex": "a"}], "max_tokens": 3}', "max_tokens"),
        ('{"grammars": [{"nodes": []}]}', "json_schema, lark_grammar"),
        ('{"grammars": [{"regex": 3}]}', "is a text, not 3"),
        ('{"grammars": [{"json_schema": {"multipleOf": 0.10000000000000000001}}]}', "not exact as a float"),
        ('{"grammars": [{"json_schema": {"x-guidance": {"lenient": true}}}]}', '"lenient": true is not supported'),
        ('{"grammars": [{"json_schema": {"x-guidance": [1]}}]}', "x-guidance must be an object of options, not [1]"),
        ('{"grammars": [{"json_schema": "{}", "x-guidance": 0}]}', "x-guidance must be an object of options, not 0"),
        ('{"grammars": [{"json_schema": "{\\"x-guidance\\": {\\"lenient\\": true}}"}]}', '"lenient": true is not'),
        ('{"grammars": [{"regex": "a", "x-guidance": {}}]}', "for json_schema, and this grammar has regex"),
        (ours.LLMatcher.grammar_from_json_schema("{}", {"whitespace_flexible": 0}), "must be true or false, not 0"),
        (ours.LLMatcher.grammar_from_json_schema({"type": "strin"}), "/type: "),
        (ours.LLMatcher.grammar_from_json_schema("{}", {"item_separator": ", "}), '"item_separator": ", "'),
        (ours.LLMatcher.grammar_from_json_schema("{}", {"spaces": 1}), "has no option 'spaces'"),
        (ours.LLMatcher.grammar_from_regex("(a"), "never closed"),
        (ours.LLMatcher.grammar_from_regex("[[:alpha:]]"), "position 1: '[:' in a set"),
        (ours.LLMatcher.grammar_from_regex("x[a-z&&[^b]]"), "position 5: '&&'"),
        (ours.grammar_from("choice", "{}"), "list of texts"),
        ('{"grammars": ' + "[" * 100_000, "nested more than"),
    ],
)  # fmt: skip
def test_a_grammar_that_cannot_be_kept_is_an_error_of_the_matcher(tokenizer, grammar, said):
    matcher = ours.LLMatcher(tokenizer, grammar)
    assert said in matcher.get_error()
    assert (matcher.is_stopped(), matcher.stop_reason(), bits(matcher)) == (True, "InternalError", [0])
    assert not (matcher.consume_token(5))
    assert not (matcher.rollback(0))
    assert not (matcher.reset())
    assert not (matcher.validate_tokens([5]))
    assert ours.LLMatcher.validate_grammar(grammar) != ""
    assert ours.LLMatcher.validate_grammar_with_warnings(grammar)[0] is True


def test_options_of_json_are_read_in_schemas_and_in_texts_of_them(tokenizer):
    compact, loose = ({"x-guidance": {"whitespace_flexible": flexible}} for flexible in (False, True))
    schema = {"const": [1, 2]} | compact
    for given in (schema, json.dumps(schema)):
        for beside, spaced in (({}, False), ({"x-guidance": {}}, False), (compact, False), (loose, True)):
            text = json.dumps({"grammars": [{"json_schema": given} | beside]})
            matcher = ours.LLMatcher(tokenizer, text)
            assert not matcher.is_error()
            tokens = tokenizer.tokenize_bytes(b"[1, 2]")
            assert (matcher.validate_tokens(tokens) == len(tokens)) is spaced
    for given in (schema, json.dumps(schema)):
        for overrides, spaced in ((None, False), (loose["x-guidance"], True)):
            made = ours.LLMatcher.grammar_from_json_schema(given, loose["x-guidance"], overrides)
            assert (ours.LLMatcher(tokenizer, made).validate_tokens(tokens) == len(tokens)) is spaced


def test_grammars_of_every_format_are_taken(tokenizer):
    for format_, source, text in (
        ("regex", "[^]b][]a\\[]&&", b"a]&&"),
        ("choice", '["red", "a"]', b"a"),
        ("gbnf", 'root ::= "a" root? "b"', b"ab"),
        ("ebnf", 'root ::= "a" | "b"', b"b"),
        ("cfg", 'start: "a" | "b"', b"b"),
        ("llguidance", '{"grammars": [{"name": "x", "json_schema": {"const": 1}, "lark_grammar": null}]}', b"1"),
        ("lark", "start: /[ab]/", b"b"),
    ):
        matcher = ours.LLMatcher(tokenizer, ours.grammar_from(format_, source))
        assert matcher.get_error() == ""
        assert matcher.consume_tokens(tokenizer.tokenize_bytes(text)), format_
        assert matcher.is_accepting()
    with pytest.raises(ValueError, match="Unknown grammar type: yacc"):
        ours.grammar_from("yacc", "")
    with pytest.raises(ValueError, match="Expecting value"):
        ours.LLMatcher.grammar_from_json_schema("[")
    with pytest.raises(ValueError, match="nested more than"):
        ours.grammar_from("json", "[" * 100_000)
    with pytest.raises(ValueError, match="x-guidance must be an object"):
        ours.LLMatcher.grammar_from_json_schema('{"x-guidance": [1]}')
    for name in ("defaults", "overrides"):
        with pytest.raises(ValueError, match=f"{name} must be an object"):
            ours.LLMatcher.grammar_from_json_schema("{}", **{name: [1]})
    assert ours.LLMatcher.validate_grammar_with_warnings("start: /a/") == (False, [])


def test_tokenizers_are_taken_in_every_form_and_what_is_not_offered_is_refused(tokenizer, tmp_path):
    tok, vocab = tokenizer_zoo.byte_level_bpe()
    assert (tokenizer.vocab_size, tokenizer.eos_tokens, tokenizer.is_canonical) == (vocab.size, [vocab.eos], True)
    assert tokenizer.is_special_token(vocab.eos)
    assert tokenizer.decode_str(tokenizer.tokenize_str("café")) == "café"
    text = tok.to_str()
    (tmp_path / "tokenizer.json").write_text(text)
    for made in (
        ours.LLTokenizer(text, 600, [0]),
        ours.LLTokenizer(str(tmp_path / "tokenizer.json"), 600, 0, slices=[]),
        ours.from_tokenizer(tok, 600, 0),
    ):
        assert (made.vocab_size, made.eos_token) == (600, 0)
        assert made.vocabulary.tokens[:50] == vocab.tokens[:50]
    several = ours.LLTokenizer(text, 610, [0, 608])
    assert several.eos_tokens == [0, 608]
    for end in several.eos_tokens:
        matcher = ours.LLMatcher(several, ours.grammar_from("regex", "ab"))
        assert matcher.consume_tokens(several.tokenize_str("ab"))
        assert bits(matcher) == [0, 608]
        assert matcher.consume_token(end)
        assert matcher.is_stopped()
        assert matcher.consume_token(608 - end)
    with pytest.raises(mw.ConstraintError, match="no file 'org/model'"):
        ours.LLTokenizer("org/model")
    with pytest.raises(mw.ConstraintError, match="no token that ends a text"):
        ours.LLTokenizer(text)
    with pytest.raises(mw.ConstraintError, match="limits are llguidance's own"):
        ours.LLMatcher(tokenizer, "start: /a/", limits=object())
    matcher = ours.LLMatcher(tokenizer, "start: /a/")
    with pytest.raises(AttributeError, match="get_captures of llguidance is not offered: nothing is captured"):
        matcher.get_captures()
    with pytest.raises(AttributeError, match="no attribute 'spelt_wrong'"):
        matcher.spelt_wrong()
    assert matcher.validate_tokens([vocab.size]) == 0
    assert "outside the vocabulary" in matcher.get_error()
