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
    with pytest.raises(mw.errors.ConstraintError, match="strict_mode is not supported"):
        compiler.compile_json_schema("{}", strict_mode=True)
    with pytest.raises(mw.errors.ConstraintError, match="eos must be token ids from 0 to 609, not 700"):
        xgr.TokenizerInfo.from_huggingface(tokenizer_zoo.byte_level_bpe()[0], vocab_size=610, stop_token_ids=[0, 700])
    with pytest.raises(mw.errors.ConstraintError, match="eos is an empty list"):
        xgr.TokenizerInfo.from_huggingface(tokenizer_zoo.byte_level_bpe()[0], vocab_size=610, stop_token_ids=[])
    with pytest.raises(mw.errors.RegexError):
        compiler.compile_regex("(a")
    with pytest.raises(AttributeError, match=r"GrammarMatcher\.accept_string of XGrammar is not offered: encode the"):
        matcher.accept_string("{")
    with pytest.raises(AttributeError, match=r"BatchGrammarMatcher\.batch_accept_string of XGrammar"):
        xgr.BatchGrammarMatcher().batch_accept_string([matcher], ["{"])
    with pytest.raises(AttributeError, match="no attribute 'spelt_wrong'"):
        matcher.spelt_wrong()


def test_a_batch_that_is_refused_has_moved_no_matcher(compiler):
    (a,) = compiler.tokenizer_info.vocabulary.encode(b"a")
    matchers = [xgr.GrammarMatcher(compiler.compile_regex("a{9}")) for _ in range(2)]

    def taken():  # each accepts nine
        return [9 - sum(fork.accept_token(a) for _ in range(9)) for fork in (each.fork() for each in matchers)]

    assert xgr.BatchGrammarMatcher.batch_accept_token(matchers, [a, a]) == [True, True]
    for tokens in ([a], [a, a, a]):
        with pytest.raises(ValueError, match=f"{len(tokens)} numbers for 2 matchers"):
            xgr.BatchGrammarMatcher.batch_accept_token(matchers, tokens)
    with pytest.raises(TypeError):
        xgr.BatchGrammarMatcher.batch_accept_token(matchers, [a, "a"])
    assert [matchers[0].accept_token(token) for token in (-1, 610)] == [False, False]
    assert taken() == [1, 1]
    for counts, said in (
        ([1], "1 numbers for 2"), ([1, 2], "matcher 1 cannot take back 2 tokens: 1 have"), ([1, -1], "take back -1"),
        (2, "matcher 0 cannot take back 2"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            xgr.BatchGrammarMatcher.batch_rollback(matchers, counts)
    with pytest.raises(ValueError, match="matcher 1 cannot take back 1 tokens: 0 have"):
        xgr.BatchGrammarMatcher.batch_rollback(matchers[:1] * 2, [1, 1])
    assert taken() == [1, 1]
    xgr.BatchGrammarMatcher.batch_rollback(matchers)
    assert taken() == [0, 0]
    xgr.BatchGrammarMatcher().batch_accept_token(matchers, [a, a])
    xgr.BatchGrammarMatcher().batch_rollback(matchers, [0, 1])
    assert taken() == [1, 0]


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


def test_rows_of_a_batch_are_taken_back_and_masked_by_their_numbers(compiler):
    compiled = compiler.compile_regex("[ab]{2}")
    (first,), (second,) = (compiler.tokenizer_info.vocabulary.encode(letter) for letter in (b"a", b"b"))
    matchers = [xgr.GrammarMatcher(compiled, max_rollback_tokens=2, override_stop_tokens=[0]) for _ in range(3)]
    together = xgr.BatchGrammarMatcher()
    assert together.batch_accept_token(matchers, [first, 0, second]) == [True, False, True]
    assert together.batch_accept_token(matchers[::2], [first, first]) == [True, True]
    assert [matcher.is_completed() for matcher in matchers] == [True, False, True]
    together.batch_rollback(matchers, [1, 0, 2])
    bitmask = xgr.allocate_token_bitmask(3, 610)
    together.batch_fill_next_token_bitmask(matchers, bitmask)
    plain, some = torch.zeros(3, 620), torch.zeros(3, 620)
    xgr.apply_token_bitmask_inplace(plain, bitmask)
    xgr.apply_token_bitmask_inplace(some, bitmask, vocab_size=608, indices=[2, 0])
    assert torch.equal(some[[0, 2], :608], plain[[0, 2], :608])
    assert torch.isneginf(some[[0, 2], 608:]).all()
    assert (some[1] == 0).all()
    alone = torch.zeros(620)
    xgr.apply_token_bitmask_inplace(alone, bitmask[1])
    assert torch.equal(alone, plain[1])
    with pytest.raises(ValueError, match="as many rows"):
        xgr.apply_token_bitmask_inplace(plain, bitmask[:2])
    with pytest.raises(mw.errors.ConstraintError, match=r"override_stop_tokens must be \[0\]"):
        xgr.GrammarMatcher(compiled, override_stop_tokens=5)
    with pytest.raises(mw.errors.ConstraintError, match=r"override_stop_tokens must be \[0\]"):
        xgr.GrammarMatcher(compiled, override_stop_tokens=[])


def test_names_of_control_tokens_in_tags_are_these_tokens(compiler):
    """<|end|> ends texts here, <tool> is a token with the text of its name."""
    vocabulary = compiler.tokenizer_info.vocabulary
    content = {"type": "json_schema", "json_schema": {"const": 1}}
    tag = {"type": "tag", "begin": "<tool>", "content": content, "end": "<|end|>"}
    matcher = xgr.GrammarMatcher(compiler.compile_structural_tag({"type": "structural_tag", "format": tag}))
    for token in vocabulary.encode("<tool>1"):
        assert matcher.accept_token(token)
    assert not any(map(matcher.fork().accept_token, vocabulary.encode("<|end|>")))
    assert matcher.accept_token(vocabulary.special_ids["<|end|>"])
    assert matcher.is_terminated()
