"""Models of transformers read several tokens at once, forget some, and compute what a plain pass over the text does."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import maskwright as mw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from maskwright.runtime import torch_ops  # noqa: E402
from maskwright.runtime.decode import sample_jumping, speculative_sample  # noqa: E402
from maskwright.runtime.integrations import reader  # noqa: E402
from maskwright.runtime.integrations.reader import TransformersReader  # noqa: E402
from tests.support.draws import rows_of  # noqa: E402
from tests.support.tiny_models import EOS, KINDS, SHAPE, SIZE, made, model, prompts, table, vocabulary  # noqa: E402

CLOSE = {"rtol": 0, "atol": 1e-10}
ROUNDED = {"rtol": 1e-5, "atol": 1e-5}  # the softmax of "eager" attention is in float32 whatever the model is in


@functools.cache
def logits_after(kind: str, text: tuple[int, ...], seed: int = 0) -> Any:
    """Return the logits (V,) that follow a text, computed from scratch."""
    with torch.no_grad():
        return model(kind, seed)(torch.tensor([text])).logits[0, -1]


def close(kind: str, found: Any, text: Any, seed: int = 0) -> None:
    wanted = logits_after(kind, tuple(int(t) for t in text), seed)
    torch.testing.assert_close(found, wanted, **(ROUNDED if kind == "eager" else CLOSE))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_go_on_and_back_by_different_amounts_and_every_logit_is_that_of_a_plain_pass(kind):
    rng = np.random.default_rng(1)
    read = TransformersReader(model(kind))
    texts: list[list[int]] = [[], [], []]
    cache: Any = None
    for _ in range(8):
        lengths = np.array([len(text) for text in texts])
        new = [rng.integers(1, SIZE, k).tolist() for k in rng.integers(1, 6, 3)]
        n = max(map(len, new))
        tokens = np.array([own + [0] * (n - len(own)) for own in new])
        at = np.array([[0, len(own) - 1] for own in new])
        logits, cache = read.extend(tokens, cache, lengths, at)
        for b in range(3):
            for i in range(2):
                close(kind, logits[b, i], texts[b] + new[b][: at[b, i] + 1])
        texts = [(text + own)[: max(1, len(text) + len(own) - back)] for text, own, back in
                 zip(texts, new, rng.integers(0, 4, 3), strict=True)]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_node_of_a_tree_sees_its_own_branch_and_a_kept_branch_is_as_if_it_had_been_alone(kind):
    """Two depths read one after the other, of prompts of different lengths, then one branch kept and gone on with."""
    read = TransformersReader(model(kind))
    texts = [[5, 9, 13], [7], [30, 31, 32, 33, 34]]
    lengths = np.array([len(text) for text in texts])
    tokens = np.array([text + [0] * (5 - len(text)) for text in texts])
    _, cache = read.extend(tokens, None, np.zeros(3, np.int64), lengths[:, None] - 1)
    rng = np.random.default_rng(0)
    first, second = rng.integers(1, SIZE, (3, 2)), rng.integers(1, SIZE, (3, 3))
    parents = [1, 0, 1]
    own = np.broadcast_to(np.eye(2, dtype=bool), (3, 2, 2))
    logits, cache = read.extend(first, cache, lengths, np.broadcast_to(np.arange(2), (3, 2)), own)
    sees = np.broadcast_to(np.concatenate([np.eye(2, dtype=bool)[parents], np.eye(3, dtype=bool)], 1), (3, 3, 5))
    below, cache = read.extend(second, cache, lengths, np.broadcast_to(np.arange(3), (3, 3)), sees)
    for b, text in enumerate(texts):
        for i in range(2):
            close(kind, logits[b, i], [*text, first[b, i]])
        for j, parent in enumerate(parents):
            close(kind, below[b, j], [*text, first[b, parent], second[b, j]])
    kept = np.array([[1, 4], [0, 3], [1, 2]])  # entries of the branches that go on
    cache = read.keep(cache, lengths, kept)
    branches = [[*text, first[b, kept[b, 0]], second[b, kept[b, 1] - 2]] for b, text in enumerate(texts)]
    after, cache = read.extend(np.full((3, 1), 50), cache, lengths + 2, np.zeros((3, 1), np.int64))
    for b in range(3):
        close(kind, after[b, 0], [*branches[b], 50])


def test_a_long_text_is_read_in_pieces_with_the_same_outcome(monkeypatch):
    rng = np.random.default_rng(4)
    tokens, lengths, at = rng.integers(1, SIZE, (2, 11)), np.array([0, 0]), np.array([[0, 9], [5, 10]])
    sees = np.broadcast_to(np.tri(11, dtype=bool), (2, 11, 11)).copy()
    sees[:, 8:, 7:8] = False  # a branch
    for named in (None, sees):
        whole, cache = TransformersReader(model("llama")).extend(tokens, None, lengths, at, named)
        with monkeypatch.context() as patch:
            patch.setattr(reader, "MOST_AT_ONCE", 3)
            pieces, other = TransformersReader(model("llama")).extend(tokens, None, lengths, at, named)
        torch.testing.assert_close(pieces, whole, **CLOSE)
        for ours, theirs in zip(other.layers, cache.layers, strict=True):
            torch.testing.assert_close(ours.keys[:, :, :11], theirs.keys[:, :, :11], **CLOSE)


def test_keys_and_values_lie_in_each_rows_own_columns():
    read = TransformersReader(model("llama"))
    inputs = prompts()
    texts = read.prompts(**inputs)
    assert [len(text) for text in texts] == [7, 6, 4]
    n = max(map(len, texts))
    lengths = np.array([len(text) for text in texts])
    tokens = np.array([text + [0] * (n - len(text)) for text in texts])
    _, cache = read.extend(tokens, None, np.zeros(3, np.int64), lengths[:, None] - 1)
    for b, text in enumerate(texts):
        plain = model("llama")(torch.tensor([text]), use_cache=True)[reader.CACHE]
        for ours, theirs in zip(cache.layers, plain.layers, strict=True):
            torch.testing.assert_close(ours.keys[b, :, : len(text)], theirs.keys[0], **CLOSE)
            torch.testing.assert_close(ours.values[b, :, : len(text)], theirs.values[0], **CLOSE)


def greedy(kind: str, of: mw.TransitionTable, prompt: list[int], most: int) -> list[int]:
    """Return the constrained greedy text, each token from a plain pass over all before it."""
    matcher, text = mw.Matcher(of, max_tokens=most), list(prompt)
    while True:
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[:SIZE].astype(bool)
        if not bits.any():
            return text[len(prompt) :]
        logits = logits_after(kind, tuple(text)).masked_fill(~torch.tensor(bits), -torch.inf)
        token = int(logits.argmax())
        if token == of.eos:
            return text[len(prompt) :]
        assert matcher.advance(token)
        text.append(token)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("branches", [(1, 1, 1), (3, 2, 1)])
@pytest.mark.parametrize("of", ["regex", "schema"])
def test_speculation_writes_the_greedy_text_of_a_model_of_transformers(kind, branches, of):
    target, draft = TransformersReader(model(kind)), TransformersReader(model("llama", 1))
    texts = target.prompts(**prompts())
    dev = torch_ops.to_device(table(of), distances=True)
    found = speculative_sample(
        target, draft, dev, None, ops=torch_ops, prompts=texts, max_tokens=16, branches=branches, temperature=0
    )
    assert rows_of(found) == [tuple(greedy(kind, table(of), text, 16)) for text in texts]
    itself = speculative_sample(
        target, target, dev, None, ops=torch_ops, prompts=texts, max_tokens=16, branches=branches, temperature=0
    )
    assert rows_of(itself) == rows_of(found)
    assert itself.accepted.tolist() == itself.tried.tolist()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen"])
@pytest.mark.parametrize("branches", [None, (1, 1), (2, 2)])
def test_log_probabilities_are_those_of_plain_passes_over_what_was_written(kind, branches):
    """Of texts with forced spans, read together with what comes next; None: without a draft model."""
    read = TransformersReader(model(kind))
    texts = read.prompts(**prompts())
    random = torch.Generator().manual_seed(0)
    options = {"ops": torch_ops, "prompts": texts, "max_tokens": 24, "vocabulary": vocabulary()}
    if branches is None:
        found = sample_jumping(read, table("schema"), random, **options)
    else:
        draft = TransformersReader(model("llama", 1))
        found = speculative_sample(read, draft, None, random, table=table("schema"), branches=branches, **options)
    assert found.forced.sum() > 0
    from tests.oracles import readers

    for text, row, log_prob in zip(texts, rows_of(found), found.log_probs.tolist(), strict=True):
        assert row is not None
        matcher, total, at = mw.Matcher(table("schema"), vocabulary(), max_tokens=24), 0.0, 0
        while True:
            at += len(readers.forced(matcher, vocabulary()))
            allowed = readers.allowed(matcher)
            if not allowed or allowed == [EOS]:
                break
            token = row[at] if at < len(row) else EOS
            logits = logits_after(kind, (*text, *row[:at]))[allowed]
            total += float(logits.log_softmax(-1)[allowed.index(token)])
            if token == EOS:
                break
            assert matcher.advance(token)
            at += 1
        assert log_prob == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("branches", [(2, 2, 1), (1, 1, 1, 1, 1)])
def test_drafts_beyond_the_last_position_do_no_harm_and_texts_beyond_it_are_refused(kind, branches):
    name, options = KINDS[kind]
    at_most = {"n_positions": 12} if kind == "gpt2" else {"max_position_embeddings": 12}
    small = TransformersReader(made(name, {**options, **at_most}))
    of = mw.compile_regex("[a-f]{1,40}", vocabulary())
    dev = torch_ops.to_device(of, distances=True)
    options = {"ops": torch_ops, "prompts": [[1, 2, 3, 4]] * 6, "branches": branches}
    for seed in range(3):
        draft = TransformersReader(made(name, {**KINDS[kind][1], **at_most}, seed + 1))
        found = speculative_sample(small, draft, dev, torch.Generator().manual_seed(seed), max_tokens=8, **options)
        assert found.valid.all()
    with pytest.raises(ValueError, match="positions for: shorten"):
        speculative_sample(small, small, dev, torch.Generator().manual_seed(0), max_tokens=9, **options)
    with pytest.raises(ValueError, match="positions for: shorten"):
        sample_jumping(small, of, None, ops=torch_ops, prompts=[[1] * 12], max_tokens=1, temperature=0)


@pytest.mark.long
def test_models_that_cannot_be_told_what_a_token_sees_are_refused():
    for name, options, message in (
        ("Mistral", {**SHAPE, "num_key_value_heads": 2, "sliding_window": 8}, "sliding"),
        (
            "Bloom",
            {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": SIZE, "attn_implementation": "eager"},
            "ALiBi",
        ),
    ):
        with pytest.raises(ValueError, match=f"cannot read several tokens.*{message}"):
            TransformersReader(made(name, options))
    narrow = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": SIZE,
        "window_size": 4,
        "attn_implementation": "eager",
    }
    stretched = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    for name, options, message in (
        (
            "GPTNeo",
            {**narrow, "window_size": 4, "attention_types": [[["global", "local"], 1]]},
            "window that goes by place",
        ),
        ("Llama", {**SHAPE, "num_key_value_heads": 2, "rope_parameters": stretched}, "dynamic.* longest text"),
        ("Roberta", {**SHAPE, "is_decoder": True}, "counts positions from its padding"),
    ):
        with pytest.raises(ValueError, match=message):
            TransformersReader(made(name, options))
    with pytest.raises(TypeError, match="causal language model"):
        TransformersReader(torch.nn.Linear(2, 2))
