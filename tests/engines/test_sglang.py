"""SGLang's grammar backend, on small stand-ins for SGLang's classes. `make test-engines` runs it inside SGLang."""

from __future__ import annotations

import importlib

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
    for setting in ("reasoning_parser", "enable_strict_thinking", "constrained_json_whitespace_pattern"):
        fakes.sglang(monkeypatch, **{setting: "x"})
        with pytest.raises(mw.errors.ConstraintError, match="--" + setting.replace("_", "-")):
            make(None, None, vocab.size, None)
    fakes.sglang(monkeypatch, "0.5.24")
    with pytest.raises(mw.errors.MissingDependencyError, match=r"tested with SGLang 0\.5\.23, and this is 0\.5\.24"):
        make(None, None, vocab.size, None)


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
