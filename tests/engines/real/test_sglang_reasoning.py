"""SGLang's own backend for thoughts around maskwright's: its real classes, without an engine."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

base = pytest.importorskip("sglang.srt.constrained.base_grammar_backend")

import torch  # noqa: E402
from sglang.srt.parser.reasoning_parser import ReasoningParser  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from maskwright.engines.sglang import plugin  # noqa: E402

SETTINGS = {
    "constrained_json_whitespace_pattern": None, "constrained_json_max_whitespace_cnt": None,
    "constrained_json_disable_any_whitespace": False,
}  # fmt: skip
SCHEMA = {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
SOURCE = json.dumps({"type": "object", **SCHEMA})


def server(model, monkeypatch, parser: str, strict: bool):
    """Return the backend that SGLang makes of the name, and the tokenizer."""
    serving = SimpleNamespace(reasoning_parser=parser, enable_strict_thinking=strict, **SETTINGS)
    monkeypatch.setattr("sglang.srt.runtime_context.get_serving", lambda: serving)
    exec_of = SimpleNamespace(kernel=SimpleNamespace(grammar_backend="maskwright"))
    monkeypatch.setattr(base, "get_exec", lambda: exec_of)
    plugin.register()
    tokenizer = AutoTokenizer.from_pretrained(model)
    denied = ReasoningParser(model_type=parser, tokenizer=tokenizer).detector.think_excluded_tokens or []
    tokenizer.add_tokens(["<think>", "</think>", *denied], special_tokens=True)  # as models that think have them
    return base.create_grammar_backend(None, tokenizer, len(tokenizer), {1}, think_end_ids=[2]), tokenizer


@pytest.mark.parametrize(("parser", "strict"), [("qwen3", False), ("qwen3", True), ("deepseek-r1", False)])
def test_a_thought_is_free_and_what_follows_it_keeps_to_the_schema(model, monkeypatch, parser, strict):
    made, tokenizer = server(model, monkeypatch, parser, strict)
    future, hit = made.get_cached_or_future_value(("json", SOURCE), True)
    assert not hit
    first = future.result()
    made.set_cache(("json", SOURCE), first.copy())
    again, hit = made.get_cached_or_future_value(("json", SOURCE), True)
    assert hit
    thought = tokenizer.encode("so {what}", add_special_tokens=False)
    closed = tokenizer.encode("</think>", add_special_tokens=False)
    answer = [*tokenizer.encode('{"a": 12}', add_special_tokens=False), 1]
    for grammar in (first, again):
        mask = grammar.allocate_vocab_mask(len(tokenizer), 1, "cpu")

        def allowed(grammar=grammar, mask=mask):
            mask.fill_(-1)
            grammar.fill_vocab_mask(mask, 0)
            logits = torch.zeros(1, len(tokenizer))
            grammar.apply_vocab_mask(logits, grammar.move_vocab_mask(mask, "cpu"))
            return set(torch.isfinite(logits[0]).nonzero().flatten().tolist())

        for token in [*thought, *closed]:
            assert token in allowed()
            grammar.accept_token(token)
        for token in answer:
            assert token in allowed()
            assert len(allowed()) < len(tokenizer) // 2
            grammar.accept_token(token)
        assert grammar.is_terminated()
        grammar.rollback(len(answer) + 1)
        assert not grammar.is_terminated()
        grammar.accept_token(closed[-1])
        assert answer[0] in allowed()


def test_strict_thinking_denies_tokens_in_a_thought_and_closes_it_in_time(model, monkeypatch):
    made, tokenizer = server(model, monkeypatch, "qwen3", True)
    excluded = made.think_excluded_token_ids
    grammar = made.init_strict_reasoning_grammar(True)
    mask = grammar.allocate_vocab_mask(len(tokenizer), 1, "cpu")
    grammar.fill_vocab_mask(mask, 0)
    assert excluded
    for token in range(len(tokenizer)):
        assert (int(mask[0, token // 32]) >> (token % 32) & 1) == (token not in excluded)
    future, _ = made.get_cached_or_future_value(("regex", "[ab]+"), True)
    limited = future.result()
    limited.max_think_tokens, limited.enable_token_filter = 1, True
    limited.token_filter_fn = made.grammar_backend.set_token_filter
    limited.accept_token(tokenizer.encode("so", add_special_tokens=False)[0])
    for token in made.think_end_ids:
        limited.fill_vocab_mask(mask, 0)
        assert [t for t in range(len(tokenizer)) if int(mask[0, t // 32]) >> (t % 32) & 1] == [token]
        limited.accept_token(token)


def test_a_model_whose_messages_are_framed_writes_frames(model, monkeypatch):
    """Inkling's ids are beyond this tokenizer: ids that spell text stand in their place."""
    frames = pytest.importorskip("sglang.srt.parser.answer_frame")
    ids = {name: 900 + i for i, name in enumerate(sorted(frames.INKLING_SPECIAL_TOKEN_IDS))}
    monkeypatch.setattr(frames, "INKLING_SPECIAL_TOKEN_IDS", ids)
    monkeypatch.setattr("sglang.srt.parser.reasoning_parser.INKLING_SPECIAL_TOKEN_IDS", ids)
    made, tokenizer = server(model, monkeypatch, "inkling", False)
    grammar = made.get_cached_or_future_value(("json", SOURCE), True)[0].result()
    text = tokenizer.encode('{"a": 12}', add_special_tokens=False)
    message, thinking, shown, end = (
        ids[getattr(frames, name)] for name in ("MESSAGE_MODEL", "CONTENT_THINKING", "CONTENT_TEXT", "END_MESSAGE")
    )
    for thought in ([], [message, thinking, *tokenizer.encode("{", add_special_tokens=False), end]):
        tokens = [*thought, message, shown, *text, end, 1]
        assert grammar.matcher.validate_tokens(tokens) == len(tokens)
    assert grammar.matcher.validate_tokens(text) == 0
