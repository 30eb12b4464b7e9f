"""XGrammar itself beside our classes of its names: along random texts they allow the same, where it is exact."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
real = pytest.importorskip("xgrammar")

from maskwright.engines import xgrammar as ours  # noqa: E402
from tests.strategies import tokenizer_zoo  # noqa: E402

OBJECT = {"type": "object", "properties": {"a": {"enum": [True, "é"]}, "b": {"type": "boolean"}}, "required": ["a"]}
TAG = {"type": "tag", "begin": "<f>", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": "</f>"}
FORMATS = [
    {"type": "const_string", "value": "abé"},
    {"type": "sequence", "elements": [TAG, {"type": "optional", "content": TAG}]},
    {"type": "or", "elements": [TAG, {"type": "const_string", "value": "<g>"}]},
    {"type": "repeat", "min": 1, "max": 2, "content": TAG},
    {"type": "tags_with_separator", "tags": [TAG], "separator": ",", "at_least_one": True},
    {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG], "at_least_one": True, "stop_after_first": True},
]
ONE_LINE = {"any_whitespace": False}
MAKE: dict[str, Callable[[Any, Any], Any]] = {
    "ebnf": lambda xgr, c: c.compile_grammar('root ::= "(" root ")" | [a-cé]{1,3}'),
    "root": lambda xgr, c: c.compile_grammar('root ::= "a"\nother ::= root "b"+', root_rule_name="other"),
    "grammar": lambda xgr, c: c.compile_grammar(xgr.Grammar.from_regex("(ab|ba)+c")),
    "regex": lambda xgr, c: c.compile_regex(r"[0-9]{4}-(0[1-9]|1[0-2])"),
    "object": lambda xgr, c: c.compile_json_schema(json.dumps(OBJECT), **ONE_LINE),
    "open": lambda xgr, c: c.compile_json_schema({"type": "array", "items": {"type": "null"}}, **ONE_LINE),
    "compact": lambda xgr, c: c.compile_json_schema(OBJECT, any_whitespace=False, separators=(",", ":")),
    "concat": lambda xgr, c: c.compile_grammar(
        xgr.Grammar.concat(xgr.Grammar.from_regex("a+"), xgr.Grammar.from_ebnf('root ::= "(" root ")" | "x"'))
    ),
    "union": lambda xgr, c: c.compile_grammar(xgr.Grammar.union(*map(xgr.Grammar.from_regex, ("a+b", "[ac]{2}")))),
    **{
        f"tag {each['type']}": lambda xgr, c, each=each: c.compile_structural_tag(
            {"type": "structural_tag", "format": each}
        )
        for each in FORMATS
    },
}  # fmt: skip


def _tokens() -> list[bytes]:
    return [token or b"" for token in tokenizer_zoo.byte_level_bpe()[1].tokens]


def _bits(bitmask: Any, size: int) -> list[int]:
    row = bitmask[0].tolist()
    return [i for i in range(size) if row[i // 32] >> (i % 32) & 1]


def _jump(matcher: Any) -> str:
    try:
        return str(matcher.find_jump_forward_string())
    except UnicodeDecodeError:  # within a character XGrammar fails
        return ""


@pytest.mark.parametrize("name", MAKE)
def test_both_allow_the_same(name):
    tokens, rng = _tokens(), random.Random(name)
    size = len(tokens) + 30
    compiled = []
    for xgr in (real, ours):
        info = xgr.TokenizerInfo(tokens, xgr.VocabType.RAW, vocab_size=size, stop_token_ids=[0])
        compiled.append(MAKE[name](xgr, xgr.GrammarCompiler(info)))
    bitmasks = [xgr.allocate_token_bitmask(1, size) for xgr in (real, ours)]
    ended = 0
    for _ in range(12):
        theirs, own = (xgr.GrammarMatcher(each) for xgr, each in zip((real, ours), compiled, strict=True))
        written: list[int] = []
        for step in range(30):
            assert theirs.is_terminated() is own.is_terminated()
            assert theirs.is_completed() is own.is_completed()
            if own.is_terminated():
                ended += 1
                break
            applies = [m.fill_next_token_bitmask(b) for m, b in zip((theirs, own), bitmasks, strict=True)]
            allowed = [_bits(bitmask, size) for bitmask in bitmasks]
            assert allowed[0] == allowed[1], written
            assert applies == [True, True]
            assert _jump(theirs) == own.find_jump_forward_string()
            token, other = rng.choice(allowed[0]), rng.randrange(size)
            assert theirs.fork().accept_token(other) is own.fork().accept_token(other)
            assert theirs.accept_token(token) is own.accept_token(token) is True
            written.append(token)
            if step % 5 == 3:
                theirs.rollback(2)
                own.rollback(2)
                del written[-2:]
    assert ended > 2


def test_names_and_bytes_of_lists_are_the_same():
    for kind in ("RAW", "BYTE_FALLBACK", "BYTE_LEVEL"):
        infos = [
            xgr.TokenizerInfo(["a", "", "▁b", "<0x0A>", "Ġc", "Ã", "</s>", "字"], xgr.VocabType[kind], vocab_size=9)
            for xgr in (real, ours)
        ]
        theirs, own = infos
        assert theirs.decoded_vocab == own.decoded_vocab[:8]
        assert (theirs.vocab_size, theirs.stop_token_ids) == (own.vocab_size, own.stop_token_ids) == (9, [6])
        assert infos[0].special_token_ids == infos[1].special_token_ids
        assert json.loads(infos[0].dump_metadata()) == json.loads(infos[1].dump_metadata())
    for make in (tokenizer_zoo.byte_level_bpe, tokenizer_zoo.byte_fallback_bpe, tokenizer_zoo.metaspace_unigram):
        text = make()[0].to_str()
        theirs, own = (xgr.TokenizerInfo._detect_metadata_from_hf(text) for xgr in (real, ours))
        assert theirs["vocab_type"].name == own["vocab_type"].name
        assert theirs["add_prefix_space"] == own["add_prefix_space"]


def test_formats_say_the_same():
    for each in FORMATS:
        theirs = real.StructuralTag.model_validate({"type": "structural_tag", "format": each})
        own = ours.StructuralTag.model_validate({"type": "structural_tag", "format": each})
        assert theirs.model_dump() == own.model_dump()
        assert ours.StructuralTag.from_json(theirs.model_dump_json()).model_dump() == theirs.model_dump()
