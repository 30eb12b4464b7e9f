"""XGrammar's classes: what they return is what a `Matcher` says."""

from __future__ import annotations

import numpy as np
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
            assert matcher.fill_next_token_bitmask(bitmask, 2, debug_print=False) is True
            logits = torch.zeros(6, 610)
            xgr.apply_token_bitmask_inplace(logits, bitmask)
            allowed = [token for token in range(610) if matcher.fork().accept_token(token)]
            assert torch.isfinite(logits[2]).nonzero().flatten().tolist() == allowed
            assert torch.isfinite(logits[3]).all()
            assert not matcher.is_terminated()
            assert matcher.accept_token(token, debug_print=False)
        assert matcher.is_terminated()
        assert not matcher.accept_token(0)
        with pytest.raises(RuntimeError, match="the end was taken"):
            matcher.fill_next_token_bitmask(bitmask)
        with pytest.raises(RuntimeError, match="the end was taken"):
            matcher.find_jump_forward_string()
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


def test_masks_are_those_of_a_matcher_of_maskwright(compiler):
    vocabulary, rows = compiler.tokenizer_info.vocabulary, np.zeros((2, 20), np.uint32)
    rng = np.random.default_rng(1)
    made = (
        (compiler.compile_json_schema({"properties": {"a": {"enum": [1, "é"]}}}, strict_mode=False),
         mw.compile_json_schema({"properties": {"a": {"enum": [1, "é"]}}}, vocabulary)),
        (compiler.compile_regex("(ab|ba)*c"), mw.compile_regex("(ab|ba)*c", vocabulary)),
        (compiler.compile_grammar('root ::= "a" root "b" | "c"'),
         mw.compile_grammar('root ::= "a" root "b" | "c"', vocabulary, syntax="ebnf")),
    )  # fmt: skip
    for compiled, table in made:
        for _ in range(20):
            ours, own = xgr.GrammarMatcher(compiled), mw.Matcher(table)
            while not own.is_terminated and own.num_tokens < 40:
                ours.fill_next_token_bitmask(rows, 1)
                assert rows[1].tolist() == own.mask().tolist()
                allowed = np.flatnonzero(np.unpackbits(own.mask().view(np.uint8), bitorder="little"))
                token = int(rng.choice(allowed))
                assert ours.accept_token(token)
                assert own.advance(token)
            assert ours.is_terminated() is own.is_terminated


def test_what_is_not_offered_is_refused_by_name(compiler):
    matcher = xgr.GrammarMatcher(compiler.compile_json_schema({"const": {"a": "é"}}, any_whitespace=False))
    assert matcher.find_jump_forward_string().startswith('{"a": "')
    with pytest.raises(mw.errors.ConstraintError, match="eos must be token ids from 0 to 609, not 700"):
        xgr.TokenizerInfo.from_huggingface(tokenizer_zoo.byte_level_bpe()[0], vocab_size=610, stop_token_ids=[0, 700])
    with pytest.raises(mw.errors.ConstraintError, match="eos is an empty list"):
        xgr.TokenizerInfo.from_huggingface(tokenizer_zoo.byte_level_bpe()[0], vocab_size=610, stop_token_ids=[])
    with pytest.raises(AttributeError, match=r"GrammarMatcher\.get_captures of XGrammar is not offered: nothing is"):
        matcher.get_captures()
    with pytest.raises(AttributeError, match="no attribute 'spelt_wrong'"):
        matcher.spelt_wrong()
    with pytest.raises(AttributeError, match="get_model_structural_tag of XGrammar is not offered"):
        _ = xgr.get_model_structural_tag
    with pytest.raises(AttributeError, match="no attribute 'spelt_wrong'"):
        _ = xgr.spelt_wrong
    for call, said in (
        (lambda: compiler.compile_json_schema({}, any_whitespace=False, indent=2), "indent is not supported"),
        (lambda: compiler.compile_json_schema({}, max_whitespace_cnt=0), "max_whitespace_cnt must be 1 or more"),
        (lambda: compiler.compile_lark("start: @a", named_grammars={"a": "b"}), "named_grammars are not supported"),
        (lambda: xgr.GrammarCompiler(compiler.tokenizer_info, cache_limit_bytes=-2), "cache_limit_bytes=-2"),
        (lambda: xgr.GrammarCompiler("tokenizer"), "pass a TokenizerInfo, not str"),
        (lambda: xgr.GrammarMatcher("grammar"), "pass a CompiledGrammar, not str"),
        (lambda: compiler.compile_structural_tag([], [], []), "pass a structural tag, or tags and triggers"),
        (lambda: matcher.fill_next_token_bitmask(torch.zeros(1, 2, dtype=torch.int32)), "rows of the bitmask have 2"),
        (lambda: matcher.fill_next_token_bitmask(torch.zeros(1, 20)), "words of int32"),
        (lambda: matcher.fill_next_token_bitmask(torch.zeros(1, 20, dtype=torch.int32), 1), "row 1 is outside"),
    ):
        with pytest.raises(RuntimeError, match=said) as raised:
            call()
        assert isinstance(raised.value, ValueError)


def test_a_text_is_one_step(compiler):
    matcher = xgr.GrammarMatcher(compiler.compile_regex("(é|b)+!"))
    (b,) = compiler.tokenizer_info.vocabulary.encode(b"b")
    assert [matcher.accept_string(text) for text in ("éb", b"\xc3", "b", b"\xa9b")] == [True, True, False, True]
    assert matcher.accept_token(b)
    assert matcher.num_steps == 4
    (half,) = compiler.tokenizer_info.vocabulary.encode(b"\xc3")
    begun = xgr.GrammarMatcher(compiler.compile_regex("é"))
    assert [begun.find_jump_forward_string(), begun.accept_token(half), begun.find_jump_forward_string()] == [
        "é", True, "",
    ]  # fmt: skip
    matcher.rollback(2)
    assert [matcher.accept_token(b), matcher.accept_string(b"\xa9!"), matcher.is_completed()] == [False, True, True]
    assert not matcher.is_terminated()
    assert matcher.accept_token(0)
    assert not matcher.accept_string("")
    matcher.reset()
    assert xgr.BatchGrammarMatcher.batch_accept_string([matcher, matcher.fork()], ["b", "a"]) == [True, False]
    with pytest.raises(RuntimeError, match="1 texts for 2 matchers"):
        xgr.BatchGrammarMatcher.batch_accept_string([matcher, matcher], ["b"])


def test_texts_of_a_tokenizer_without_some_bytes_are_spelled_by_its_tokens():
    info = xgr.TokenizerInfo(mw.Vocabulary.from_bytes([b"", b"a", b"b", b"ab"], eos=0))
    matcher = xgr.GrammarMatcher(xgr.GrammarCompiler(info).compile_regex("(ab)+"))
    assert matcher.accept_string("abab")
    with pytest.raises(RuntimeError, match="the tokenizer cannot write the text"):
        matcher.accept_string("c")


def test_other_tokens_end_a_text_or_none(compiler):
    compiled = compiler.compile_regex("ab*")
    vocabulary, bitmask = compiler.tokenizer_info.vocabulary, xgr.allocate_token_bitmask(1, 610)
    (a,), (b,) = (vocabulary.encode(letter) for letter in (b"a", b"b"))
    other = xgr.GrammarMatcher(compiled, override_stop_tokens=[605, b], max_rollback_tokens=3)
    assert other.stop_token_ids == [605, b]
    assert other.accept_token(a)
    for matcher in (other, other.fork()):
        matcher.fill_next_token_bitmask(bitmask)
        allowed = [token for token in range(610) if bitmask[0][token // 32] >> (token % 32) & 1]
        assert allowed == [b, 605]
    assert other.accept_token(b)
    assert other.is_terminated()
    for wrong in ([], [610], -1):
        with pytest.raises(RuntimeError, match="override_stop_tokens must be ids from 0 to 609"):
            xgr.GrammarMatcher(compiled, override_stop_tokens=wrong)
    alone = xgr.GrammarMatcher(compiled, terminate_without_stop_token=True)
    assert [alone.is_terminated(), alone.accept_token(a), alone.is_terminated()] == [False, True, True]
    alone.fill_next_token_bitmask(bitmask)
    assert not bitmask[0][0] & 1
    assert [alone.accept_token(0), alone.accept_token(b), alone.is_terminated()] == [False, True, True]


def test_a_draft_is_walked_in_place(compiler):
    """Node 0 stands before it, 1 and 3 follow, 2 follows 1; 4 follows 3, which is not allowed."""
    matcher = xgr.GrammarMatcher(compiler.compile_regex("a(b|c)*"), default_temperature=0.5)
    a, b = (compiler.tokenizer_info.vocabulary.encode(letter)[0] for letter in (b"a", b"b"))
    assert matcher.accept_token(a)
    child, sibling = torch.tensor([1, 2, -1, 4, -1]), torch.tensor([-1, 3, -1, -1, -1])
    tokens, bitmask = torch.tensor([a, b, 0, a, b]), xgr.allocate_token_bitmask(5, 610)
    temperatures = torch.zeros(5)
    assert matcher.traverse_draft_tree(child, sibling, tokens, bitmask, temperatures=temperatures)
    assert temperatures.tolist() == [0.5, 0.5, 0.5, -1, -1]
    expected = xgr.allocate_token_bitmask(1, 610)
    matcher.fill_next_token_bitmask(expected)
    assert [row.tolist() for row in bitmask[:2]] == [expected[0].tolist()] * 2
    assert (bitmask[2:] == 0).all()  # behind the end, and not allowed
    assert matcher.num_steps == 1
    assert not matcher.traverse_draft_tree(child, sibling, tokens, bitmask, time_threshold=1e-9)
    assert bitmask[0].tolist() == expected[0].tolist()
    matchers = [matcher, xgr.GrammarMatcher(compiler.compile_regex("a"))]
    xgr.BatchGrammarMatcher.batch_fill_temperature(matchers, temperatures, [3, 0])
    assert temperatures.tolist() == [-1, 0.5, 0.5, 0.5, -1]
    for wrong, said in (
        ((child[:4], sibling, tokens, bitmask), "takes as many siblings"),
        ((child.int(), sibling, tokens, bitmask), "a draft is int64"),
        ((child, child, tokens, bitmask), "node 0 is the whole draft"),
        ((torch.tensor([9, 2, -1, 4, -1]), sibling, tokens, bitmask), "there is no node 9"),
    ):
        with pytest.raises(RuntimeError, match=said):
            matcher.traverse_draft_tree(*wrong)
    assert matcher.num_steps == 1


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
    with pytest.raises(ValueError, match="backend must be one of auto, cpu"):
        xgr.apply_token_bitmask_inplace(plain, bitmask, backend="opencl")
    numbered, one = torch.zeros(3, 620), torch.zeros(620)
    xgr.apply_token_bitmask_inplace(numbered, bitmask, indices=torch.tensor([0, 2]), backend="torch_native")
    assert torch.equal(numbered[[0, 2]], plain[[0, 2]])
    xgr.apply_token_bitmask_inplace(one, bitmask[1:2])
    assert torch.equal(one, plain[1])
    assert (xgr.get_bitmask_shape(3, 610), xgr.bitmask_dtype) == (tuple(bitmask.shape), bitmask.dtype)
    xgr.reset_token_bitmask(bitmask)
    assert (bitmask == -1).all()


def test_all_may_be_allowed():
    """Of 40 tokens, all text: whether a mask must be applied at all."""
    info = xgr.TokenizerInfo([chr(0x41 + i) for i in range(40)])
    matcher = xgr.GrammarMatcher(xgr.GrammarCompiler(info).compile_regex(r"[\x00-\x7f]*"))
    bitmask = torch.zeros(1, 2, dtype=torch.int32)
    assert not matcher.fill_next_token_bitmask(bitmask)
    assert bitmask.tolist() == [[-1, 255]]


def test_transformers_writes_what_is_allowed(compiler):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=610, n_embd=8, n_layer=1, n_head=1, n_positions=64, eos_token_id=0, bos_token_id=0, pad_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    vocabulary = compiler.tokenizer_info.vocabulary
    given = [compiler.compile_regex("[ab]{3}"), compiler.compile_json_schema({"enum": ["x", "yz"]})]
    prompt = torch.tensor([[5, 6], [7, 8]])
    written = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=True, max_new_tokens=20,
        logits_processor=[xgr.contrib.hf.LogitsProcessor(given)],
    )  # fmt: skip
    first, second = (vocabulary.decode(row[2:].tolist()) for row in written)
    assert len(first) == 3
    assert set(first) <= set(b"ab")
    assert second in (b'"x"', b'"yz"')
    with pytest.raises(RuntimeError, match="2 rows of tokens and 3 grammars"):
        xgr.hf.LogitsProcessor(given + given[:1])(prompt, torch.zeros(2, 610))
    alone = xgr.hf.LogitsProcessor(given[0])
    alone(prompt, torch.zeros(2, 610))
    with pytest.raises(RuntimeError, match="token 0 of row 0 is not allowed"):
        alone(torch.tensor([[5, 6, 0], [7, 8, 0]]), torch.zeros(2, 610))


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
