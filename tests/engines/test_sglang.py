"""SGLang's grammar backend, on small stand-ins for SGLang's classes. `make test-engines` runs it inside SGLang."""

from __future__ import annotations

import importlib
import json
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from maskwright.engines import bitmask as bitmasks  # noqa: E402
from maskwright.engines.constraints import EngineConstraints  # noqa: E402
from maskwright.engines.options import EngineOptions  # noqa: E402
from maskwright.engines.sglang import plugin  # noqa: E402
from tests.engines import fakes  # noqa: E402
from tests.strategies import tokenizer_zoo  # noqa: E402


@pytest.fixture
def backend(monkeypatch):
    """Return the backend of a server, and the vocabulary of its tokenizer."""
    fakes.sglang(monkeypatch)
    made = importlib.import_module("maskwright.engines.sglang.backend")
    vocab = tokenizer_zoo.byte_level_bpe()[1]
    return made.MaskwrightBackend(EngineConstraints(vocab, EngineOptions())), vocab


@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        ("json", '{"enum": [12, "x"]}', b'"x"'),
        ("json", "$$ANY$$", b'{"a": 1}'),
        ("regex", "[ab]{2}", b"ab"),
        ("ebnf", 'root ::= "(" root ")" | "x"', b"((x))"),
        ("structural_tag", fakes.TAG, b"<f>1</f>"),
    ],
)  # fmt: skip
def test_every_kind_of_constraint_is_written_as_its_matcher_says(backend, kind, source, text):
    server, vocab = backend
    first = getattr(server, f"dispatch_{kind}")(source)
    grammar = first.copy()
    mask = grammar.allocate_vocab_mask(vocab.size, 2, "cpu")
    tokens = [*vocab.encode(text), vocab.eos]
    for token in tokens:
        assert not grammar.is_terminated()
        grammar.reset_vocab_mask(mask)
        grammar.fill_vocab_mask(mask, 1)
        allowed = np.unpackbits(grammar.matcher.mask().view(np.uint8), bitorder="little")[: vocab.size]
        logits = torch.zeros(2, vocab.size + 40)
        grammar.apply_vocab_mask(logits, grammar.move_vocab_mask(mask, "cpu"))
        assert (logits[1, : vocab.size] == 0).int().tolist() == allowed.tolist()
        assert (logits[0, : vocab.size] == 0).all()
        grammar.accept_token(token)
    assert grammar.is_terminated()
    assert grammar.current_token == vocab.eos
    grammar.accept_token(tokens[0])  # ignored, as by SGLang's own
    grammar.rollback(len(tokens))
    assert grammar.matcher.num_tokens == first.matcher.num_tokens == 0
    assert grammar.grammar_stats.is_cache_hit
    assert not first.grammar_stats.is_cache_hit


def test_a_token_that_is_not_allowed_is_an_error_and_jumps_go_where_others_lead(backend):
    server, vocab = backend
    grammar = server.dispatch_regex('"name": [ab]+')
    with pytest.raises(ValueError, match="is not allowed after 0 tokens"):
        grammar.accept_token(vocab.eos)
    tokens, text = grammar.try_jump_forward(None)
    assert tokens == grammar.matcher.forced_tokens() != []
    assert grammar.jump_forward_str_state((tokens, text)) == ("", -1)
    letters = [vocab.encode(bytes([byte]))[0] for byte in b'"name": ']
    for token in letters[:3]:
        grammar.accept_token(token)
    grammar.jump_and_retokenize(letters[:3], [*letters, *vocab.encode(b"a")], -1)
    assert grammar.matcher.is_accepting
    assert grammar.try_jump_forward(None) is None
    with pytest.raises(ValueError, match="are not allowed"):
        grammar.jump_and_retokenize([], [letters[0]], -1)


def test_constraints_that_cannot_be_compiled_come_with_their_reason(backend):
    server, _ = backend
    for kind, source, said in (
        ("json", '{"properties": {"a": {"type": "strin"}}}', "/properties/a/type: "),
        ("regex", "(a", "never closed"),
        ("ebnf", "root ::= x", "line 1, column 10"),
        ("structural_tag", "{}", "/: "),
        ("json", "[" * 100_000, ""),
    ):
        assert said in getattr(server, f"dispatch_{kind}")(source).error_message


def test_the_name_is_known_at_once_and_the_backend_is_made_only_where_it_was_tested(monkeypatch):
    made = fakes.sglang(monkeypatch)
    plugin.register()
    plugin.register()
    assert made.choices == ["xgrammar", "maskwright"]
    vocab = tokenizer_zoo.byte_level_bpe()[1]
    monkeypatch.setattr(mw.Vocabulary, "from_transformers", lambda tok, size: vocab)
    make = made.registry["maskwright"]
    assert make(None, None, vocab.size, {vocab.eos}).constraints.options.whitespace == "spaced"
    with pytest.raises(
        mw.errors.ConstraintError, match=r"token 50, .*take it out of eos_token_id of the model's generation config"
    ):
        make(None, None, vocab.size, {50})
    fakes.sglang(monkeypatch, constrained_json_disable_any_whitespace=True)
    assert make(None, None, vocab.size, None).constraints.options.whitespace == "compact"
    fakes.sglang(monkeypatch, "0.5.24")
    with pytest.raises(mw.errors.MissingDependencyError, match=r"to 0\.5\.23, and this is 0\.5\.24, whose code"):
        make(None, None, vocab.size, None)


@pytest.mark.parametrize(
    ("settings", "wanted", "written"),
    [
        ({"constrained_json_whitespace_pattern": r"[\n\t ]*"}, "spaced", "spaced"),
        ({"constrained_json_whitespace_pattern": r"[\n\t ]*"}, "flexible", "spaced"),
        ({"constrained_json_whitespace_pattern": r" ?"}, "compact", "compact"),
        ({"constrained_json_whitespace_pattern": ""}, "spaced", "compact"),
        ({"constrained_json_max_whitespace_cnt": 1}, "flexible", "spaced"),
        ({"constrained_json_max_whitespace_cnt": 0}, "flexible", "compact"),
        ({"constrained_json_max_whitespace_cnt": 0, "constrained_json_whitespace_pattern": " ?"}, "spaced", "compact"),
        ({"constrained_json_whitespace_pattern": " +"}, "spaced", "asks for some"),
        ({"constrained_json_whitespace_pattern": "("}, "spaced", "is no pattern"),
    ],
)
def test_white_space_keeps_to_the_settings_of_the_server(monkeypatch, settings, wanted, written):
    made = fakes.sglang(monkeypatch, **settings)
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", json.dumps({"whitespace": wanted}))
    plugin.register()
    make, tokenizer = made.registry["maskwright"], tokenizer_zoo.byte_level_bpe()[0]
    if written not in ("spaced", "compact"):
        with pytest.raises(mw.errors.ConstraintError, match=written):
            make(None, tokenizer, 610, {608})
        return
    grammar = make(None, tokenizer, 610, {608}).dispatch_json('{"const": [1, 2]}')
    text = b"[1, 2]" if written == "spaced" else b"[1,2]"
    assert grammar.matcher.accept_tokens(tokenizer_zoo.byte_level_bpe()[1].encode(text))
    assert grammar.matcher.is_accepting


@pytest.mark.parametrize("strict", [False, True])
def test_a_server_of_a_reasoning_model_has_the_backend_inside_the_one_of_sglang(monkeypatch, strict):
    made = fakes.sglang(monkeypatch, reasoning_parser="qwen3", enable_strict_thinking=strict)
    plugin.register()
    tokenizer = tokenizer_zoo.byte_level_bpe()[0]
    server = made.registry["maskwright"](None, tokenizer, 610, {608})
    assert type(server) is fakes.Reasoner
    assert server.enable_strict_thinking is strict
    assert vars(server.reasoning_parser) == {"model_type": "qwen3", "stream_reasoning": False, "tokenizer": tokenizer}
    assert server.grammar_backend.dispatch_regex("ab").matcher.num_tokens == 0


def test_what_is_not_enforced_is_logged_with_the_id_of_each_request(monkeypatch, caplog):
    made = fakes.sglang(monkeypatch)
    plugin.register()
    assert not [path for path in made.hooks if path.endswith("process_req_with_grammar")]
    monkeypatch.setenv("MASKWRIGHT_ENGINE_OPTIONS", '{"allow": ["uniqueItems"]}')
    plugin.register()
    kind, tell = made.hooks["sglang.srt.constrained.grammar_manager.GrammarManager.process_req_with_grammar"]
    assert kind == "AFTER"
    server = made.registry["maskwright"](None, tokenizer_zoo.byte_level_bpe()[0], 610, {608})
    told = server.dispatch_json('{"type": "array", "uniqueItems": true}')
    later, failed, dropped = Future(), Future(), Future()
    for rid, grammar in (
        ("r-1", later), ("r-2", told.copy()), ("r-3", fakes.Reasoned(told.copy())), ("r-4", failed), ("r-5", dropped),
        ("r-6", server.dispatch_json('{"type": "array"}')), ("r-7", server.dispatch_json("{")), ("r-8", None),
    ):  # fmt: skip
        tell(True, None, SimpleNamespace(rid=rid, grammar=grammar))
    later.set_result(told)
    failed.set_exception(ValueError())
    dropped.cancel()
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request")]
    assert [each.partition(" is not")[0] for each in said] == ["request r-2", "request r-3", "request r-1"]
    assert all("/uniqueItems" in each for each in said)


def test_masks_of_thoughts_allow_or_deny_tokens(backend):
    server, vocab = backend
    mask = server.allocate_vocab_mask(vocab.size, 2, "cpu")
    assert server.is_support_token_filter
    for allowed, reset, there in (
        (False, True, set(range(vocab.size)) - {0, 31, 32, 559}),
        (True, True, {0, 31, 32, 559}),
        (True, False, {0, 3, 31, 32, 63, 559}),
        (False, False, {3, 63}),
    ):
        tokens = [0, 31, 32, 559] if reset or not allowed else [3, 63]
        server.set_token_filter(mask, tokens, 1, is_allowed=allowed, reset_vocab_mask=reset)
        logits = torch.zeros(2, vocab.size)
        server.apply_vocab_mask(logits, server.move_vocab_mask(mask, "cpu"))
        assert set(torch.isfinite(logits[1]).nonzero().flatten().tolist()) == there
        assert torch.isfinite(logits[0]).all()


@pytest.mark.parametrize(
    ("kind", "source", "text", "wrong"),
    [
        ("json", '{"const": {"a": 1}}', b'{"a": 1}', b"{}"),
        ("json", "$$ANY$$", b"{}", b"[]"),
        ("regex", "[ab]{2}", b"ab", b"abc"),
        ("ebnf", 'root ::= "(" root ")" | "x"', b"((x))", b"(x"),
    ],
)
def test_a_frame_stands_around_what_a_grammar_allows(backend, kind, source, text, wrong):
    server, vocab = backend
    used = {each for part in (text, wrong, b'why? {"a') for each in vocab.encode(part)}
    start, end = [each for each, spelt in enumerate(vocab.tokens) if len(spelt) > 2 and each not in used][:2]
    server.reserve_framing_tokens([start, end])

    def frame(content):
        thought = {"type": "any_tokens", "exclude_tokens": [end]}
        tokens = [{"type": "token", "token": each} for each in (start, end)]
        opened = {"type": "optional", "content": {"type": "sequence", "elements": [tokens[0], thought, tokens[1]]}}
        return {"type": "structural_tag", "format": {"type": "sequence", "elements": [opened, content, tokens[1]]}}

    framed = server.compile_framed_grammar(getattr(server, f"dispatch_{kind}")(source), frame)
    for thought in ([], [start, *vocab.encode(b"why? {"), end]):
        tokens = [*thought, *vocab.encode(text), end, vocab.eos]
        assert framed.copy().matcher.validate_tokens(tokens) == len(tokens)
        bad = [*thought, *vocab.encode(wrong), end, vocab.eos]
        assert framed.copy().matcher.validate_tokens(bad) < len(bad)
    assert framed.copy().matcher.validate_tokens([start, start]) == 1
    texts = server.dispatch_json('{"type": "string"}')
    free, opened = server.compile_framed_grammar(texts, frame).copy().matcher, vocab.encode(b'"a')
    assert texts.matcher.validate_tokens([*opened, end]) == len(opened) + 1  # text, but for frames
    assert free.validate_tokens([*opened, end]) == len(opened)

    def budget(content):
        return {"type": "sequence", "elements": [content, {"type": "any_tokens", "max_tokens": 3}]}

    assert "max_tokens" in server.compile_framed_grammar(server.dispatch_regex("a"), budget).error_message


def test_logits_beyond_the_bitmask_are_not_allowed_and_other_rows_are_refused():
    logits, mask = torch.zeros(1, 70), torch.tensor([[-1, 1 << 31]]).to(torch.int32)
    bitmasks.apply(logits, mask)
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [*range(32), 63]
    with pytest.raises(ValueError, match="as many rows"):
        bitmasks.apply(torch.zeros(2, 64), mask)


def test_all_ends_that_the_server_knows_end_an_answer(monkeypatch):
    made = fakes.sglang(monkeypatch)
    plugin.register()
    server = made.registry["maskwright"](None, tokenizer_zoo.byte_level_bpe()[0], 610, {608, 0})
    assert server.constraints.vocabulary.ends == (0, 608)
    for end in (0, 608):
        grammar = server.dispatch_regex("ab")
        for token in [*server.constraints.vocabulary.encode("ab"), end]:
            grammar.accept_token(token)
        assert grammar.is_terminated()
