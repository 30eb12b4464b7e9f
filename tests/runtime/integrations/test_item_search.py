"""Searches of many prompts in one batch: each finds what beam search finds for it alone."""

from __future__ import annotations

import numpy as np
import pytest

import maskwright as mw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from maskwright.runtime import torch_ops  # noqa: E402
from maskwright.runtime.decode import beam_search  # noqa: E402
from maskwright.runtime.integrations.item_search import ItemSearch, Query  # noqa: E402

V, LENGTH, OFFSET = 70, 3, 30
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.5}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=V, **SIZES))


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=V, n_embd=32, n_layer=2, n_head=4, initializer_range=0.5, bos_token_id=None, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def wider():
    """A model with more logits than the catalogue has tokens."""
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(vocab_size=V + 9, num_key_value_heads=2, head_dim=8, **SIZES)
    )


def windows():
    """A model with sliding windows, whose beams cannot share a cache."""
    config = transformers.MistralConfig(vocab_size=V, num_key_value_heads=2, sliding_window=5, **SIZES)
    return transformers.MistralForCausalLM(config)


def t5():
    config = transformers.T5Config(
        vocab_size=V, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0,
        initializer_factor=1.0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


MODELS = {"llama": llama, "gpt2": gpt2, "wider": wider, "windows": windows, "t5": t5}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    torch.manual_seed(0)
    made = MODELS[request.param]().eval()
    made.named = request.param
    return made


@pytest.fixture(scope="module", params=["matrix", "live", "table"])
def catalogue(request):
    sids = np.random.default_rng(0).integers(0, 12, (300, LENGTH))
    kind = "table" if request.param == "table" else "matrix"
    made = mw.Catalogue.of(sids, np.arange(300), V, offsets=OFFSET, kind=kind)
    if request.param != "live":
        return made
    living = made.live(capacity=100)
    living.delete(list(range(20)))
    living.insert(np.random.default_rng(1).integers(0, 12, (30, LENGTH)), np.arange(1000, 1030))
    return living.publish()


def alone(model, catalogue, query):
    """Beam search for one query, which reads all tokens anew at each step."""
    dev = torch_ops.to_device(catalogue.table)
    if query.keep is not None:
        dev = torch_ops.with_filters(dev, [query.keep])
    prompt = torch.tensor(query.prompt)

    def step(tokens, cache, t):
        if model.config.is_encoder_decoder:
            started = torch.zeros(query.beams, 1, dtype=torch.int64)
            written = torch.cat([started, *([cache] if t else []), *([tokens[:, None]] if t else [])], dim=1)
            out = model(input_ids=prompt.expand(query.beams, -1), decoder_input_ids=written).logits[:, -1]
            return out, written[:, 1:]
        written = torch.cat([cache, tokens[:, None]], dim=1) if t else cache
        return model(input_ids=written).logits[:, -1], written

    begun = torch.zeros(query.beams, 0, dtype=torch.int64)
    cache = begun if model.config.is_encoder_decoder else prompt.expand(query.beams, -1)
    with torch.inference_mode():
        found = beam_search(
            step, cache, dev, ops=torch_ops, batch=1, beams=query.beams, max_tokens=LENGTH, renormalize=False
        )
    valid = found.valid[0]
    return found.states[0][valid].numpy(), found.scores[0][valid].numpy()


def some_queries(catalogue, count, seed):
    random = np.random.default_rng(seed)
    filters = [None, *(catalogue.filter(random.random(len(catalogue)) < share) for share in (0.5, 0.02))]
    return [
        Query(
            random.integers(2, OFFSET, random.integers(1, 60)).tolist(), int(random.integers(1, 30)),
            filters[random.integers(len(filters))],
        )
        for _ in range(count)
    ]  # fmt: skip


def test_a_batch_finds_what_each_search_finds_alone(model, catalogue):
    search = ItemSearch(model)
    assert search.shares_prompts == (model.named not in ("windows", "t5"))
    queries = some_queries(catalogue, 9, 3)
    found = search.search(search.place(catalogue.table), queries)
    some = 0
    for query, each in zip(queries, found, strict=True):
        states, scores = alone(model, catalogue, query)
        assert each.states.tolist() == states.tolist()
        np.testing.assert_allclose(each.scores, scores, atol=2e-5, rtol=1e-5)
        kept = catalogue.table if query.keep is None else query.keep
        assert all(len(rows) for rows in kept.input_rows(each.states))
        some += len(states)
    assert some > 30


def test_the_beams_of_a_prompt_share_its_cache():
    torch.manual_seed(0)
    search = ItemSearch(llama().eval())
    sids = np.random.default_rng(0).integers(0, 12, (500, LENGTH))
    catalogue = mw.Catalogue.of(sids, np.arange(500), V, offsets=OFFSET, kind="matrix")
    random = np.random.default_rng(1)
    queries = [Query(random.integers(2, OFFSET, 512).tolist(), 50) for _ in range(4)]
    search.search(search.place(catalogue.table), queries)
    assert search.entries.tree * 10 <= search.entries.copies


def test_a_later_snapshot_takes_the_place_of_an_earlier_one():
    torch.manual_seed(0)
    search = ItemSearch(llama().eval())
    sids = np.random.default_rng(0).integers(0, 12, (300, LENGTH))
    now = mw.Catalogue.of(sids, np.arange(300), V, offsets=OFFSET, kind="matrix").live(capacity=50)
    placed = search.place(now.table)
    query = Query([3, 4], 20)
    (first,) = search.search(placed, [query])
    best = now.items(first.states)[0]
    now.delete([best])
    now = now.publish()
    placed = search.place(now.table, placed)
    (second,) = search.search(placed, [query])
    assert best not in now.items(second.states)
    assert alone(search.model, now, query)[0].tolist() == second.states.tolist()
    found = now.items(second.states)
    now.compact()
    now = now.publish()
    (third,) = search.search(search.place(now.table, placed), [query])
    assert now.items(third.states) == found


def test_a_model_that_gives_no_numbers_finds_nothing():
    torch.manual_seed(0)
    model = llama().eval()
    catalogue = mw.Catalogue.of([[1, 2, 3]], [7], V, offsets=OFFSET, kind="matrix")
    with torch.no_grad():
        model.model.embed_tokens.weight[5] = torch.nan
    search = ItemSearch(model)
    found = search.search(search.place(catalogue.table), [Query([5, 6], 4), Query([6, 7], 4)])
    assert len(found[0].states) == 0
    assert catalogue.items(found[1].states) == [7]


def test_a_search_ends_once_nobody_waits(catalogue):
    torch.manual_seed(0)
    search = ItemSearch(llama().eval())
    queries = some_queries(catalogue, 4, 5)
    placed, steps = search.place(catalogue.table), []

    def given_up():
        steps.append(0)
        return range(4) if len(steps) > 1 else [2]

    assert search.search(placed, queries, given_up=given_up) == [None] * 4
    assert len(steps) < LENGTH + 2
    found = search.search(placed, queries, given_up=lambda: [2])
    assert all(found[at] is not None for at in (0, 1, 3))


@pytest.mark.parametrize("query", [Query([], 3), Query([1], 0)])
def test_a_query_has_a_token_and_a_beam(query):
    search = ItemSearch(llama().eval())
    catalogue = mw.Catalogue.of([[1, 2, 3]], [7], V, offsets=OFFSET, kind="matrix")
    with pytest.raises(ValueError, match=r"queries\[1\]"):
        search.search(search.place(catalogue.table), [Query([1], 1), query])
