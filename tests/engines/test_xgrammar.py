"""XGrammar's classes: what they return is what a `Matcher` says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from maskwright.engines import xgrammar as xgr  # noqa: E402
from tests.engines import fakes  # noqa: E402
from tests.strategies import tokenizer_zoo  # noqa: E402


@pytest.fixture(scope="module")
def compiler() -> xgr.GrammarCompiler:
    tok = tokenizer_zoo.byte_level_bpe()[0]
    return xgr.GrammarCompiler(xgr.TokenizerInfo.from_huggingface(tok, vocab_size=610, stop_token_ids=[0]))


def test_a_loop_written_for_xgrammar_writes_what_is_allowed(compiler):
    info = compiler.tokenizer_info
    texts = {
        compiler.compile_json_schema({"enum": [12, "x"]}): b'"x"',
        compiler.compile_builtin_json_grammar(): b"[1]",
        compiler.compile_regex("[ab]{2}"): b"ab",
        compiler.compile_grammar('root ::= "(" root ")" | "x"'): b"((x))",
        compiler.compile_structural_tag(fakes.TAG): b"a<f>1</f>",
    }
    assert (info.vocab_size, info.stop_token_ids) == (610, [0])
    bitmask = xgr.allocate_token_bitmask(6, info.vocab_size)
    for compiled, text in texts.items():
        matcher = xgr.GrammarMatcher(compiled)
        for token in [*info.vocabulary.encode(text), 0]:
            assert matcher.fill_next_token_bitmask(bitmask, 2) is True
            logits = torch.zeros(6, 610)
            xgr.apply_token_bitmask_inplace(logits, bitmask)
            allowed = [token for token in range(610) if matcher.fork().accept_token(token)]
            assert torch.isfinite(logits[2]).nonzero().flatten().tolist() == allowed
            assert torch.isfinite(logits[3]).all()
            assert not matcher.is_terminated()
            assert matcher.accept_token(token)
        assert matcher.is_terminated()
        assert not matcher.accept_token(0)
        matcher.rollback()
        assert not matcher.is_terminated()
        assert compiled.memory_size_bytes > 0
    rows = xgr.allocate_token_bitmask(6, info.vocab_size)
    matchers = [xgr.GrammarMatcher(compiled) for compiled in texts]
    xgr.BatchGrammarMatcher(2).batch_fill_next_token_bitmask(matchers, rows, [5, 4, 3, 2, 1])
    for matcher, row in zip(matchers, (5, 4, 3, 2, 1), strict=True):
        matcher.fill_next_token_bitmask(bitmask, 0)
        assert rows[row].tolist() == bitmask[0].tolist()
    assert (rows[0] == -1).all()


def test_text_that_must_follow_is_found_and_what_is_not_supported_is_refused(compiler):
    matcher = xgr.GrammarMatcher(compiler.compile_json_schema({"const": {"a": "é"}}, any_whitespace=False))
    assert matcher.find_jump_forward_string().startswith('{"a":"')
    with pytest.raises(mw.ConstraintError, match="strict_mode is not supported"):
        compiler.compile_json_schema("{}", strict_mode=True)
    with pytest.raises(mw.ConstraintError, match="eos must be token ids from 0 to 609, not 700"):
        xgr.TokenizerInfo.from_huggingface(tokenizer_zoo.byte_level_bpe()[0], vocab_size=610, stop_token_ids=[0, 700])
    with pytest.raises(mw.RegexError):
        compiler.compile_regex("(a")


def test_each_of_several_stop_tokens_ends_a_text():
    tok = tokenizer_zoo.byte_level_bpe()[0]
    info = xgr.TokenizerInfo.from_huggingface(tok, vocab_size=610, stop_token_ids=[608, 0])
    assert info.stop_token_ids == [608, 0]
    matcher = xgr.GrammarMatcher(xgr.GrammarCompiler(info).compile_regex("ab"))
    bitmask = xgr.allocate_token_bitmask(1, info.vocab_size)
    assert all(map(matcher.accept_token, info.vocabulary.encode("ab")))
    matcher.fill_next_token_bitmask(bitmask)
    logits = torch.zeros(1, 610)
    xgr.apply_token_bitmask_inplace(logits, bitmask)
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [0, 608]
    for stop in info.stop_token_ids:
        assert matcher.accept_token(stop)
        assert matcher.is_terminated()
        matcher.rollback()
