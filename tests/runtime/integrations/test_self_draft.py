"""The self-drafting head: what it drafts is what its formula says, and one pass of the model is all it takes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import maskwright as mw

torch = pytest.importorskip("torch")

from maskwright.runtime import torch_ops  # noqa: E402
from maskwright.runtime.decode import beam_search  # noqa: E402
from maskwright.runtime.integrations.self_draft import DraftHead, draft_loss, prefill_of, self_draft_search  # noqa: E402

HIDDEN = 8
VARIANTS: list[dict[str, Any]] = [
    {},
    {"transition": "add"},
    {"transition": "none"},
    {"placeholders": False},
    {"transition": "add", "placeholders": False},
]
few = settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])


def head_of(vocab: int, levels: int, seed: int = 0, **options: Any) -> DraftHead:
    torch.manual_seed(seed)
    return DraftHead(HIDDEN, vocab, levels, **options).double()


def prefill_for(head: DraftHead, batch: int, seed: int = 0) -> Any:
    """A model whose hidden states are random numbers, and the placeholders themselves are added to theirs."""
    torch.manual_seed(seed + 1000)
    states = torch.randn(batch, 1 + len(head.placeholders), HIDDEN, dtype=torch.float64)
    return lambda placeholders: states + torch.nn.functional.pad(placeholders, (0, 0, 1, 0))


def naive_log_probs(head: DraftHead, hidden: Any, prefix: tuple[int, ...]) -> np.ndarray:
    """The paper's equations 1 to 3 for one input (1 + P, H), one level at a time: log-probabilities after a prefix."""
    weights = {name: value.detach().numpy() for name, value in head.named_parameters()}
    hidden = hidden.detach().numpy()
    states = hidden[0]
    for level, token in enumerate(prefix):
        embedded = weights["embedding"][level, token]
        if head.transition == "add":
            states = states + embedded
        elif head.transition == "gru":
            gates_in = weights[f"cells.{level}.weight_ih"] @ embedded + weights[f"cells.{level}.bias_ih"]
            gates_state = weights[f"cells.{level}.weight_hh"] @ states + weights[f"cells.{level}.bias_hh"]
            (r, z, n), (sr, sz, sn) = np.split(gates_in, 3), np.split(gates_state, 3)
            reset, update = 1 / (1 + np.exp(-r - sr)), 1 / (1 + np.exp(-z - sz))
            states = (1 - update) * np.tanh(n + reset * sn) + update * states
    level = len(prefix)
    x, inner = np.zeros(HIDDEN), np.zeros(2 * HIDDEN)
    if len(hidden) > 1:
        x = x + hidden[1 + level]
        inner = inner + weights[f"from_hidden.{level}.weight"] @ hidden[1 + level]
        inner = inner + weights[f"from_hidden.{level}.bias"]
    if head.transition != "none":
        x = x + states
        inner = inner + weights[f"from_state.{level}.weight"] @ states + weights[f"from_state.{level}.bias"]
    inner = torch.nn.functional.gelu(torch.from_numpy(inner)).numpy()
    x = x + weights[f"merge.{level}.weight"] @ inner + weights[f"merge.{level}.bias"]
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * weights[f"norm.{level}.weight"] + weights[f"norm.{level}.bias"]
    logits = weights["embedding"][level] @ x / np.sqrt(HIDDEN)
    return logits - np.logaddexp.reduce(logits)


def score(head: DraftHead, hidden: Any, sequence: tuple[int, ...]) -> float:
    return sum(naive_log_probs(head, hidden, sequence[:t])[token] for t, token in enumerate(sequence))


def some_sids(vocab: int, levels: int, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, (count, levels))


# ------------------------------------------------------------------------------------------------ the head


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_step_and_teacher_forcing_give_what_the_equations_give_in_a_plain_loop(options):
    vocab, levels, batch, beams = 6, 4, 2, 3
    head = head_of(vocab, levels, **options)
    # biases are 0 and norms 1 at first: an error there would not show
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    hidden = prefill_for(head, batch)(head.placeholders)
    drafted = torch.from_numpy(some_sids(vocab, levels, batch * beams))
    forced = head(hidden.repeat_interleave(beams, dim=0), drafted).log_softmax(-1)
    step, cache = head.decoder(hidden, beams)
    tokens = torch.zeros(batch * beams, dtype=torch.int64)
    for t in range(levels):
        logits, cache = step(tokens, cache, t)
        assert logits.shape == (batch * beams, vocab)
        assert cache.shape == (batch * beams, HIDDEN)
        for row in range(batch * beams):
            prefix = tuple(drafted[row, :t].tolist())
            expected = naive_log_probs(head, hidden[row // beams], prefix)
            np.testing.assert_allclose(logits[row].log_softmax(-1).detach(), expected, atol=1e-9)
            np.testing.assert_allclose(forced[row, t].detach(), expected, atol=1e-9)
        tokens = drafted[:, t]
        if t == 1:  # as after a step of beam search: the cache follows its beam
            parent = torch.tensor([2, 0, 0, 3, 5, 4])
            cache, drafted, forced = cache[parent], drafted[parent], forced[parent]
            tokens = drafted[:, t]
    with pytest.raises(ValueError, match="drafts 4 tokens"):
        step(tokens, cache, levels)


def test_a_state_dict_brings_back_the_same_head_and_another_shape_is_refused():
    one, other = head_of(5, 3, seed=0), head_of(5, 3, seed=1)
    prefill, dev = prefill_for(one, 2), torch_ops.to_device(mw.compile_sids(some_sids(5, 3, 30), 5))
    first = self_draft_search(one, prefill, dev, beams=4)
    assert not torch.equal(self_draft_search(other, prefill, dev, beams=4).scores, first.scores)
    other.load_state_dict(one.state_dict())
    again = self_draft_search(other, prefill, dev, beams=4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    with pytest.raises(RuntimeError, match="size mismatch"):
        head_of(6, 3).load_state_dict(one.state_dict())


# ------------------------------------------------------------------------------------------------ searching


@few
@given(
    seed=st.integers(0, 99), vocab=st.integers(2, 5), levels=st.integers(1, 4), count=st.integers(1, 30),
    options=st.sampled_from(VARIANTS),
)  # fmt: skip
def test_with_enough_beams_both_verifications_rank_all_members_as_exhaustive_search_does(
    seed, vocab, levels, count, options
):
    sids = some_sids(vocab, levels, count, seed)
    head = head_of(vocab, levels, seed, **options)
    prefill = prefill_for(head, 2, seed)
    hidden = prefill(head.placeholders)
    dev = torch_ops.to_device(mw.compile_sids(sids, vocab))
    members = sorted(set(map(tuple, sids.tolist())))
    at_step = self_draft_search(head, prefill, dev, beams=count)
    at_end = self_draft_search(head, prefill, dev, beams=count, verify="end", drafts=max(count, vocab**levels))
    for found, row in itertools.product((at_step, at_end), range(2)):
        ranked = sorted((-score(head, hidden[row], member), member) for member in members)
        assert found.valid[row].tolist() == [True] * len(members) + [False] * (count - len(members))
        assert [tuple(x) for x in found.tokens[row, : len(members)].tolist()] == [member for _, member in ranked]
        np.testing.assert_allclose(found.scores[row, : len(members)], [-cost for cost, _ in ranked], atol=1e-9)
        assert (found.tokens[row, len(members) :] == -1).all()
        assert (found.scores[row, len(members) :] == -torch.inf).all()
        assert found.lengths[row].tolist() == [levels] * len(members) + [0] * (count - len(members))


def test_verified_at_the_end_the_free_drafts_that_are_members_stay_and_keep_their_order():
    vocab, levels, beams = 6, 3, 12
    sids = some_sids(vocab, levels, 60)
    members = set(map(tuple, sids.tolist()))
    head = head_of(vocab, levels)
    prefill, dev = prefill_for(head, 4), torch_ops.to_device(mw.compile_sids(sids, vocab))
    free = self_draft_search(head, prefill, None, beams=beams, verify="none")
    assert free.valid.all()
    found = self_draft_search(head, prefill, dev, beams=beams, verify="end")
    more = self_draft_search(head, prefill, dev, beams=beams, verify="end", drafts=4 * beams)
    for row in range(4):
        drafts = [tuple(x) for x in free.tokens[row].tolist()]
        kept = [draft for draft in drafts if draft in members]
        assert 0 < len(kept) < beams
        assert [tuple(x) for x in found.tokens[row][found.valid[row]].tolist()] == kept
        scores = [free.scores[row, drafts.index(draft)].item() for draft in kept]
        assert found.scores[row][found.valid[row]].tolist() == scores
    assert (found.states == -1).all()
    assert more.tokens.shape == found.tokens.shape
    assert more.valid.sum() > found.valid.sum()
    assert (more.scores[:, 0] >= found.scores[:, 0]).all()


@pytest.mark.parametrize("verify", ["step", "end"])
def test_a_sorted_matrix_verifies_as_a_table_does(verify):
    sids = some_sids(6, 3, 60)
    head = head_of(6, 3)
    devs = [torch_ops.to_device(valid) for valid in (mw.compile_sids(sids, 6), mw.sort_sids(sids, 6))]
    by_table, by_matrix = (self_draft_search(head, prefill_for(head, 4), dev, beams=12, verify=verify) for dev in devs)
    assert by_table.valid.any()
    for name in ("tokens", "lengths", "scores", "valid"):
        assert torch.equal(getattr(by_table, name), getattr(by_matrix, name))


@pytest.mark.parametrize("verify", ["step", "end", "none"])
def test_max_tokens_means_the_same_however_drafts_are_verified(verify):
    """No sequence has more tokens; drafts that nothing verifies all have as many."""
    head, dev = head_of(6, 3), torch_ops.to_device(mw.compile_sids(some_sids(6, 2, 20), 6))
    prefill = prefill_for(head, 2)

    def search(**options: Any) -> Any:
        return self_draft_search(head, prefill, dev, beams=6, verify=verify, **options)

    for most in (2, 3):
        found = search(max_tokens=most)
        assert found.valid.any()
        assert set(found.lengths[found.valid].tolist()) == {most if verify == "none" else 2}
        if verify == "none":
            with torch.no_grad():
                step, cache = head.decoder(prefill(head.placeholders), 6)
                free = beam_search(step, cache, None, ops=torch_ops, batch=2, beams=6, max_tokens=most)
            assert torch.equal(found.tokens, free.tokens)
        elif most == 2:
            assert all(torch.equal(a, b) for a, b in zip(found, search(), strict=True))
    with pytest.raises(ValueError, match="max_tokens=0" if verify == "end" else "must be positive"):
        search(max_tokens=0)
    if verify == "none":
        with pytest.raises(ValueError, match="the head drafts 3 tokens"):
            search(max_tokens=4)
    else:
        with pytest.raises(ValueError, match=r"max_tokens=1 is less than .*, 2 tokens: nothing could be"):
            search(max_tokens=1)


@few
@given(seed=st.integers(0, 99), with_eos=st.booleans())
def test_ragged_sets_are_drafted_exactly_when_verified_at_every_step_and_refused_at_the_end(seed, with_eos):
    """An EOS is a token that the head drafts, so it has one level more than the longest sequence has tokens."""
    random = np.random.default_rng(seed)
    eos = 0 if with_eos else None
    rows = {tuple(random.integers(1, 5, random.integers(1, 4)).tolist()) for _ in range(12)} | {(1,), (1, 2), (3, 3, 3)}
    table = mw.compile_sequences(sorted(rows), vocab_size=5, eos=eos)
    head = head_of(5, 3 + with_eos, seed)
    prefill, dev = prefill_for(head, 2, seed), torch_ops.to_device(table)
    found = self_draft_search(head, prefill, dev, beams=len(rows) + 2)
    hidden = prefill(head.placeholders)
    for row in range(2):
        end = (0,) if with_eos else ()
        ranked = sorted((-score(head, hidden[row], member + end), member) for member in rows)
        kept = [tuple(x[:n]) for x, n in zip(found.tokens[row].tolist(), found.lengths[row].tolist(), strict=True)]
        assert found.valid[row].tolist() == [True] * len(rows) + [False] * 2
        np.testing.assert_allclose(found.scores[row, :-2], [-cost for cost, _ in ranked], atol=1e-9)
        assert set(kept[:-2]) == rows
        assert all(table.accepts(x) for x in kept[:-2])
    with pytest.raises(ValueError, match="one length and no EOS"):
        self_draft_search(head, prefill, dev, beams=3, verify="end")


def test_sequences_that_are_too_long_for_the_head_with_their_eos_are_left_out():
    table = mw.compile_sequences([(1,), (2, 3), (2, 3, 1), (4, 1, 2, 3)], vocab_size=5, eos=0)
    head = head_of(5, 3)
    found = self_draft_search(head, prefill_for(head, 1), torch_ops.to_device(table), beams=4)
    assert sorted(map(tuple, found.tokens[0][found.valid[0]].tolist())) == [(1, -1), (2, 3)]


def test_a_search_asks_for_one_prefill_and_hands_over_the_placeholders():
    head = head_of(5, 3)
    dev = torch_ops.to_device(mw.compile_sids(some_sids(5, 3, 30), 5))
    inner, calls = prefill_for(head, 2), []

    def prefill(placeholders: Any) -> Any:
        calls.append(placeholders)
        assert not torch.is_grad_enabled()
        return inner(placeholders)

    for verify in ("step", "end", "none"):
        calls.clear()
        self_draft_search(head, prefill, dev, beams=4, verify=verify)
        assert len(calls) == 1
        assert calls[0] is head.placeholders


# ------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_the_gradient_of_the_loss_reaches_every_part_and_the_model_behind_the_prefill(options):
    head = head_of(6, 3, **options)
    body = torch.nn.Linear(HIDDEN, HIDDEN).double()
    inner = prefill_for(head, 5)
    loss = draft_loss(head, body(inner(head.placeholders)), torch.from_numpy(some_sids(6, 3, 5)))
    loss.backward()
    named = {**dict(head.named_parameters()), **{f"body.{name}": p for name, p in body.named_parameters()}}
    without = [name for name, p in named.items() if p.numel() and (p.grad is None or not p.grad.abs().max() > 0)]
    assert without == []
    assert len(head.placeholders) == (0 if options.get("placeholders") is False else 3)
    assert len(head.cells) == (2 if "transition" not in options else 0)


def test_a_head_may_share_the_last_levels_of_a_model_s_embedding_and_a_smaller_one_is_refused():
    own = head_of(5, 3)
    shared = torch.nn.Parameter(torch.cat([torch.randn(2, 5, HIDDEN, dtype=torch.float64), own.embedding.detach()]))
    head = head_of(5, 3, embedding=shared)
    assert head.embedding is shared
    head.load_state_dict({**own.state_dict(), "embedding": shared.detach()})
    prefill, dev = prefill_for(own, 2), torch_ops.to_device(mw.compile_sids(some_sids(5, 3, 30), 5))
    found = [self_draft_search(one, prefill, dev, beams=4) for one in (own, head)]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    draft_loss(head, prefill(head.placeholders), torch.from_numpy(some_sids(5, 3, 2))).backward()
    assert shared.grad is not None
    assert (shared.grad.abs().amax(dim=(1, 2)) > 0).tolist() == [False, False, True, True, True]
    with pytest.raises(ValueError, match=r"embedding must be \(3, 5, 8\)"):
        head_of(5, 3, embedding=torch.nn.Parameter(torch.randn(2, 5, HIDDEN)))


def test_the_gradient_stops_at_a_model_whose_hidden_states_are_detached():
    head = head_of(6, 3)
    body = torch.nn.Linear(HIDDEN, HIDDEN).double()
    draft_loss(head, body(prefill_for(head, 5)(head.placeholders)).detach(), torch.zeros(5, 3).long()).backward()
    assert all(p.grad is None for p in body.parameters())
    assert head.placeholders.grad is None
    assert head.embedding.grad is not None


def test_the_loss_is_the_mean_over_all_tokens_but_those_after_an_end():
    head = head_of(4, 3)
    hidden = prefill_for(head, 2)(head.placeholders)
    targets = torch.tensor([[1, 2, 3], [3, 0, -1]])
    counted = score(head, hidden[0], (1, 2, 3)) + score(head, hidden[1], (3, 0))
    assert draft_loss(head, hidden, targets).item() == pytest.approx(-counted / 5)


def learnt(transition: str, data: dict[int, dict[tuple[int, int], int]]) -> Any:
    """Return head and prefill after training on each context's sequences, as often as each one occurs."""
    torch.manual_seed(0)
    head = DraftHead(HIDDEN, 2, 2, transition=transition)
    context = torch.nn.Embedding(len(data), HIDDEN)

    def prefill(rows: Any) -> Any:
        return lambda placeholders: context(rows)[:, None] + torch.nn.functional.pad(placeholders, (0, 0, 1, 0))

    pairs = [(c, sid) for c, counts in data.items() for sid, n in counts.items() for _ in range(n)]
    rows, targets = torch.tensor([c for c, _ in pairs]), torch.tensor([sid for _, sid in pairs])
    optimizer = torch.optim.Adam([*head.parameters(), *context.parameters()], lr=0.02)
    for _ in range(200):
        loss = draft_loss(head, prefill(rows)(head.placeholders), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head, prefill(torch.arange(len(data)))


def test_a_small_problem_is_learnt_to_its_exact_distribution_and_not_without_the_transition():
    """The most probable pair is not the pair of most probable tokens, and levels that are independent miss it."""
    data = {0: {(1, 0): 4, (0, 0): 3, (0, 1): 3}, 1: {(0, 1): 4, (1, 1): 3, (1, 0): 3}}
    dev = torch_ops.to_device(mw.compile_sids(list(itertools.product(range(2), repeat=2)), 2))
    head, prefill = learnt("gru", data)
    found = self_draft_search(head, prefill, dev, beams=3)
    for c, counts in data.items():
        assert tuple(found.tokens[c, 0].tolist()) == max(counts, key=lambda sid: counts[sid])
        for sid, log_prob in zip(found.tokens[c].tolist(), found.scores[c].tolist(), strict=True):
            assert np.exp(log_prob) == pytest.approx(counts[tuple(sid)] / 10, abs=0.02)
    head, prefill = learnt("none", data)
    found = self_draft_search(head, prefill, dev, beams=1)
    assert [tuple(x) for x in found.tokens[:, 0].tolist()] == [(0, 0), (1, 1)]


# ------------------------------------------------------------------------------------------------ transformers

SHAPE = {
    "vocab_size": 40, "hidden_size": HIDDEN, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "initializer_range": 0.5,
}  # fmt: skip


def causal(kind: str) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        size = {"vocab_size": 40, "n_embd": HIDDEN, "n_layer": 2, "n_head": 2, "n_positions": 32}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(initializer_range=0.5, **size)).eval().double()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).eval().double()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_prompts_padded_on_either_side_draft_as_each_prompt_alone(kind):
    model, head = causal(kind), head_of(5, 3)
    prompts = [torch.randint(1, 40, (n,)) for n in (6, 2, 4)]
    alone = torch.cat([prefill_of(model, prompt[None])(head.placeholders) for prompt in prompts])
    left, right = torch.full((3, 6), 7), torch.full((3, 6), 7)
    for row, prompt in enumerate(prompts):
        left[row, 6 - len(prompt) :] = prompt
        right[row, : len(prompt)] = prompt
    lengths = torch.tensor([[6], [2], [4]])
    for ids, mask in ((left, torch.arange(6) >= 6 - lengths), (right, (torch.arange(6) < lengths).long())):
        torch.testing.assert_close(prefill_of(model, ids, mask)(head.placeholders), alone)
    assert not torch.allclose(prefill_of(model, left)(head.placeholders), alone)


def test_the_hidden_states_are_those_of_a_plain_pass_over_prompt_and_placeholders():
    model, head = causal("llama"), head_of(5, 3)
    ids = torch.randint(1, 40, (2, 5))
    plain = model(ids, output_hidden_states=True).hidden_states[-1]
    hidden = prefill_of(model, ids)(head.placeholders)
    torch.testing.assert_close(hidden[:, 0], plain[:, -1])
    with torch.no_grad():  # as tokens of the model, placeholders give the same
        model.get_input_embeddings().weight[:3] = head.placeholders
    longer = torch.cat([ids.clamp(min=3), torch.arange(3).expand(2, -1)], dim=1)
    expected = model(longer, output_hidden_states=True).hidden_states[-1][:, -4:]
    torch.testing.assert_close(prefill_of(model, ids.clamp(min=3))(head.placeholders), expected)


def test_a_model_of_transformers_is_called_once_and_trains_with_the_head():
    model, head = causal("llama"), head_of(5, 3)
    calls: list[Any] = []
    model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))
    sids = some_sids(5, 3, 40)
    ids = torch.randint(1, 40, (2, 5))
    found = self_draft_search(head, prefill_of(model, ids), torch_ops.to_device(mw.compile_sids(sids, 5)), beams=6)
    assert len(calls) == 1
    assert found.valid.all()
    assert set(map(tuple, found.tokens.flatten(0, 1).tolist())) <= set(map(tuple, sids.tolist()))
    draft_loss(head, prefill_of(model, ids)(head.placeholders), torch.from_numpy(sids[:2])).backward()
    used = [name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert set(used) == {name for name, _ in model.named_parameters() if name != "lm_head.weight"}
    assert head.placeholders.grad.abs().max() > 0


def test_a_head_in_another_type_than_the_model_takes_its_states():
    head = head_of(5, 3).float()
    found = self_draft_search(
        head,
        prefill_of(causal("llama"), torch.ones(2, 3).long()),
        torch_ops.to_device(mw.compile_sids([[1, 2, 3]], 5)),
        beams=1,
    )
    assert found.tokens.tolist() == [[[1, 2, 3]]] * 2
    assert found.scores.dtype == torch.float32


# ------------------------------------------------------------------------------------------------ the demo's model


def demo() -> Any:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    from examples.demo import model, training

    return model, training


@pytest.mark.parametrize("extra", [3, 0])
def test_the_demo_reads_all_prefixes_at_once_as_it_reads_each_alone(extra):
    model, _ = demo()
    random = np.random.default_rng(0)
    sids = random.integers(0, 16, size=(40, 3))
    histories = [random.integers(0, 40, size=n) for n in (5, 2, 3)]
    network = model.Transformer(model.ModelConfig(width=16, layers=2, heads=2, history=5), levels=3, codes=16).eval()
    placeholders = torch.randn(extra, 16)
    blocks, _ = model.blocks_of(histories, sids, 5)
    with torch.no_grad():
        together = network.read_prefixes(blocks, placeholders)
        for row, history in enumerate(histories):
            for n in range(len(history)):
                alone = network.prefill(*model.blocks_of([history[:n]], sids, 5))(placeholders)
                torch.testing.assert_close(together[row, n], alone[0], atol=1e-5, rtol=1e-4)
        batch = network.prefill(*model.blocks_of(histories, sids, 5))(placeholders)
        for row, history in enumerate(histories):
            alone = network.prefill(*model.blocks_of([history], sids, 5))(placeholders)
            torch.testing.assert_close(batch[row], alone[0], atol=1e-5, rtol=1e-4)


def test_the_demo_s_first_hidden_state_is_the_one_that_its_own_step_starts_from():
    model, _ = demo()
    sids = np.random.default_rng(0).integers(0, 16, size=(40, 3))
    network = model.Transformer(model.ModelConfig(width=16, layers=2, heads=2, history=5), levels=3, codes=16).eval()
    blocks, counts = model.blocks_of([np.array([1, 2]), np.array([3])], sids, 5)
    step, cache = network.decoder(blocks, counts, 1)
    logits, _ = step(torch.zeros(2, dtype=torch.int64), cache, 0)
    with torch.no_grad():
        hidden = network.prefill(blocks, counts)(torch.zeros(0, 16))
    torch.testing.assert_close(hidden[:, 0] @ network.embedding[1].T / 4, logits, atol=1e-5, rtol=1e-4)


@pytest.mark.long
def test_training_a_head_learns_a_rule_by_seed_and_leaves_the_global_random_state_alone():
    """Every item is followed by the next one, as in the demo's own test."""
    model, training = demo()
    from examples.demo.dataset import Catalogue

    catalogue = Catalogue(np.stack(np.divmod(np.arange(12), 4), axis=1), 4, np.arange(12), ("",) * 12)
    sequences = [np.arange(begin, begin + 6) % 12 for begin in range(12)]
    small = model.ModelConfig(width=32, layers=1, heads=2, history=5, dropout=0.0)

    def trained(seed: int, steps: int) -> Any:
        plan = training.TrainingConfig(steps=steps, batch=12, rate=1e-2)
        return training.train_drafting(catalogue, sequences, small, plan, seed)

    state = torch.random.get_rng_state()
    network, head = trained(0, 150)
    assert torch.equal(state, torch.random.get_rng_state())
    blocks, counts = model.blocks_of([np.array([3, 4]), np.array([9]), np.array([0, 1, 2])], catalogue.sids, 5)
    dev = torch_ops.to_device(mw.compile_sids(model.tokens_of(catalogue.sids), network.vocab_size))
    for verify in ("step", "end", "none"):
        found = self_draft_search(head, network.prefill(blocks, counts), dev, beams=3, verify=verify)
        assert found.tokens[:, 0].tolist() == model.tokens_of(catalogue.sids[[5, 10, 3]]).tolist()
    parameters = [torch.cat([p.flatten() for p in (*n.parameters(), *h.parameters())])
                  for n, h in (trained(0, 5), trained(0, 5), trained(1, 5))]  # fmt: skip
    assert torch.equal(parameters[0], parameters[1])
    assert not torch.equal(parameters[0], parameters[2])
    later = dict(trained(0, 6)[1].named_parameters())
    assert all(not torch.equal(p, later[name]) for name, p in trained(0, 5)[1].named_parameters())


def test_all_items_of_a_history_but_its_first_are_predicted():
    _, training = demo()
    shown = training.predicted_columns(torch.zeros(2, 4, 3), torch.tensor([4, 2]))
    assert shown.tolist() == [[False, True, True, True], [False, True, False, False]]


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verify": "later"}, "verify is 'later': choose one of step, end, none"),
        ({"drafts": 8}, "drafts=8 is for verify="),
        ({"drafts": 3, "verify": "end"}, "drafts=3 must be at least beams=4"),
        ({"dev": None}, "pass verify='none' to draft freely"),
        ({"prefill": lambda placeholders: torch.zeros(2, 3, HIDDEN)}, r"must be \(B, 4, 8\).*not \(2, 3, 8\)"),
    ],
)
def test_what_cannot_be_searched_is_refused_and_said_why(options, message):
    head = head_of(5, 3)
    given = {"prefill": prefill_for(head, 2), "dev": torch_ops.to_device(mw.compile_sids([[1, 2, 3]], 5)), **options}
    with pytest.raises(ValueError, match=message):
        self_draft_search(head, given.pop("prefill"), given.pop("dev"), beams=4, **given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transition": "lstm"}, "transition is 'lstm': choose one of gru, add, none"),
        ({"transition": "none", "placeholders": False}, "drafted from nothing"),
        ({"levels": 0}, "must be positive, not 8, 5, 0"),
    ],
)
def test_a_head_that_could_not_draft_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DraftHead(HIDDEN, 5, **{"levels": 3, **options})


def test_targets_and_prompts_of_another_shape_are_refused():
    head = head_of(5, 3)
    hidden = prefill_for(head, 2)(head.placeholders)
    with pytest.raises(ValueError, match=r"targets must be \(2, 3\), not \(2, 2\)"):
        draft_loss(head, hidden, torch.zeros(2, 2).long())
    model = causal("llama")
    with pytest.raises(ValueError, match=r"must both be \(B, T\)"):
        prefill_of(model, torch.ones(2, 3).long(), torch.ones(2, 2))
    with pytest.raises(ValueError, match="every prompt needs a token"):
        prefill_of(model, torch.ones(2, 3).long(), torch.tensor([[1, 1, 1], [0, 0, 0]]))
    model.config.is_encoder_decoder = True
    with pytest.raises(ValueError, match="is an encoder-decoder"):
        prefill_of(model, torch.ones(2, 3).long())


def test_the_head_is_driven_by_the_ordinary_beam_search():
    head = head_of(5, 3)
    prefill, dev = prefill_for(head, 2), torch_ops.to_device(mw.compile_sids(some_sids(5, 3, 30), 5))
    with torch.no_grad():
        step, cache = head.decoder(prefill(head.placeholders), 4)
        expected = beam_search(step, cache, dev, ops=torch_ops, batch=2, beams=4, max_tokens=3)
    found = self_draft_search(head, prefill, dev, beams=4)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_drafts_that_do_not_exist_are_no_members_even_where_the_first_token_of_all_levels_is_one():
    torch.manual_seed(0)
    head = DraftHead(8, 3, 2)
    hidden = torch.randn(2, 3, 8)
    dev = torch_ops.to_device(mw.compile_sids([[0, 0], [1, 2]], 3))
    found = self_draft_search(head, lambda placeholders: hidden, dev, beams=20, verify="end")
    assert found.valid.sum(1).tolist() == [2, 2]  # of the nine there are; eleven of the drafts are none
    assert (found.tokens[~found.valid] == -1).all()
    broken = self_draft_search(head, lambda placeholders: hidden * torch.nan, dev, beams=4, verify="end")
    assert not broken.valid.any()


def test_a_set_of_another_vocabulary_and_one_that_was_not_put_are_refused():
    head, hidden = DraftHead(8, 3, 2), torch.randn(1, 3, 8)
    for verify in ("step", "end"):
        with pytest.raises(mw.errors.VocabularyMismatchError):
            self_draft_search(
                head,
                lambda placeholders: hidden,
                torch_ops.to_device(mw.compile_sids([[0, 9]], 10)),
                beams=2,
                verify=verify,
            )
        with pytest.raises(TypeError, match="to_device"):
            self_draft_search(head, lambda placeholders: hidden, mw.sort_sids([[0, 1]], 3), beams=2, verify=verify)
