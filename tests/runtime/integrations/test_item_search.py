"""Search in batches: each request finds what beam search finds for it alone, and what `generate` finds."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.errors import ConstraintError, VocabularyMismatchError
from maskwright.runtime.decode import beam_search

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from maskwright.runtime import torch_ops  # noqa: E402
from maskwright.runtime.integrations import item_search  # noqa: E402
from maskwright.runtime.integrations.generate import constrained_generate  # noqa: E402
from maskwright.runtime.integrations.item_search import Found, ItemSearch, Query  # noqa: E402
from maskwright.runtime.integrations.tree_beams import TreeCache  # noqa: E402
from tests.support.tiny_models import SHAPE, SPECIAL, made  # noqa: E402

SIZE, PLACES, LENGTH = SHAPE["vocab_size"] - 3, 256, 3  # the model has tokens that the catalogue does not know
GROUPED = {**SHAPE, "num_key_value_heads": 2}
EAGER = {**SPECIAL, "attn_implementation": "eager"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**GROUPED, "max_position_embeddings": PLACES}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": PLACES, **SPECIAL}),
    "qwen3": ("Qwen3", {**GROUPED, "head_dim": 8}),
    "sliding": (
        "Qwen3",
        {**GROUPED, "head_dim": 8, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "offset": (  # whose places begin behind its padding's, unless `generate` gives them
        "Roberta",
        {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "is_decoder": True, **SPECIAL,
        },
    ),
    "alibi": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, **EAGER}),
    "mamba": ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **EAGER}),
    "recurrent": (
        "RecurrentGemma",
        {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8,
            "lru_width": 32, "attention_window_size": 16, **EAGER,
        },
    ),
}  # fmt: skip
SHARING = ("llama", "gpt2", "qwen3")
OTHERS = ("sliding", "t5", *(pytest.param(name, marks=pytest.mark.long) for name in ("alibi", "mamba", "recurrent")))
KINDS = ("table", "matrix", "live", "eos")


@cache
def model(name: str) -> Any:
    if name != "t5":
        return made(*MODELS[name])
    config = transformers.T5Config(
        vocab_size=SHAPE["vocab_size"], d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0, initializer_factor=3.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(config).eval().double()


@cache
def catalogue(kind: str) -> mw.Catalogue:
    rng = np.random.default_rng(0)
    codes = rng.integers(1, SIZE, (3000, LENGTH)) % [40, 60, SIZE - 1] + 1
    items = np.arange(len(codes))
    if kind in ("table", "eos"):
        return mw.Catalogue.of(codes, items, SIZE, eos=0 if kind == "eos" else None)
    now = mw.Catalogue.of(codes, items, SIZE, kind="matrix")
    if kind == "matrix":
        return now
    now = now.live(capacity=100)
    now.insert([[3, 3, 3], [100, 3, 3]], [5000, 5001])
    now.delete([7, 8, 9])
    return now.publish()


def alone(of: Any, table: Any, query: Query) -> Found:
    """Return what beam search finds for one query, over a model that reads all tokens anew at each step."""
    dev = torch_ops.to_device(table)
    if query.keep is not None:
        dev = torch_ops.with_filters(dev, [query.keep])
    prompt = torch.as_tensor(np.asarray(query.prompt))[None]
    encodes = of.config.is_encoder_decoder

    def step(tokens: Any, ids: Any, t: int) -> tuple[Any, Any]:
        if t == 0:
            ids = (torch.tensor([[of.config.decoder_start_token_id]]) if encodes else prompt).expand(len(tokens), -1)
        else:
            ids = torch.cat([ids, tokens[:, None]], dim=1)
        given = {"input_ids": prompt.expand(len(ids), -1), "decoder_input_ids": ids} if encodes else {"input_ids": ids}
        return of(**given, use_cache=False).logits[:, -1], ids

    with torch.inference_mode():
        beams = beam_search(
            step, torch.zeros(0), dev, ops=torch_ops, batch=1, beams=query.beams, max_tokens=LENGTH,
            gather=lambda ids, index: ids.index_select(0, index),
        )  # fmt: skip
    there = beams.valid[0]
    return Found(beams.states[0][there].numpy(), beams.scores[0][there].numpy())


def requests(of: mw.Catalogue, count: int, most: int = 60, longest: int = 200, seed: int = 0) -> list[Query]:
    """Return queries with any beams and lengths, a third of them without a filter, a third with a narrow one."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        keep = None if i % 3 == 0 else of.filter(rng.random(of.table.num_items) < (0.3 if i % 3 == 1 else 0.004))
        beams, length = (1, 1) if i == 0 else rng.integers(1, [most + 1, longest + 1])
        found.append(Query(rng.integers(1, SIZE, length).tolist(), int(beams), keep))
    return found


def same(found: Any, expected: Found) -> None:
    np.testing.assert_array_equal(found.states, expected.states)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*SHARING, *OTHERS])
def test_each_request_of_a_batch_finds_what_beam_search_finds_for_it_alone(name, kind):
    of, table = catalogue(kind), catalogue(kind).table
    search = ItemSearch(model(name))
    queries = requests(of, 9, longest=200 if name in (*SHARING, "sliding", "t5") else 30)
    found = search.search(search.place(table), queries)
    for query, each in zip(queries, found, strict=True):
        same(each, alone(search.model, table, query))
        assert len(each.states) <= query.beams
    assert search.shares_prompts == (name in SHARING)
    assert min(len(each.states) for each in found) < min(query.beams for query in queries[1:])  # a narrow filter


@pytest.mark.parametrize("name", ["llama", "sliding", "offset", "t5"])
def test_results_are_those_of_generate(name):
    of = catalogue("table")
    search = ItemSearch(model(name))
    queries = [query._replace(keep=None) for query in requests(of, 5, seed=1)]
    queries[0] = queries[0]._replace(beams=2)
    for query, found in zip(queries, search.search(search.place(of.table), queries), strict=True):
        out = search.model.generate(
            torch.tensor([query.prompt]), attention_mask=torch.ones(1, len(query.prompt), dtype=int),
            custom_generate=constrained_generate, tables=of.table, num_beams=query.beams,
            num_return_sequences=query.beams, max_new_tokens=LENGTH, length_penalty=0.0, return_dict_in_generate=True,
        )  # fmt: skip
        same(found, Found(of.states(out.sequences[:, -LENGTH:]), out.sequences_scores.numpy()))
        assert of.items(found) == of.items(of.states(out.sequences[:, -LENGTH:]))


@pytest.mark.parametrize("name", ["llama", "sliding"])
def test_a_batch_that_goes_through_in_parts_finds_the_same(name, monkeypatch):
    of = catalogue("matrix")
    search = ItemSearch(model(name))
    queries = requests(of, 12, most=20, longest=40, seed=2)
    whole = search.search(search.place(of.table), queries)
    for limits in ((1, 0, 1 << 30), (1 << 30, 1 << 30, 1 << 30), (500, 1 << 30, 1 << 30), (1 << 30, 1 << 30, 20_000)):
        search.most = item_search.Most(*limits)
        groups = list(search.groups(search.place(of.table), queries))
        assert sorted(row for group in groups for row in group) == list(range(12))
        assert len(groups) == 12 if limits[0] == 1 else len(groups) < 12
        for one, other in zip(search.search(search.place(of.table), queries), whole, strict=True):
            same(one, other)


def test_requests_that_are_alike_go_together():
    """Few beams do not wait for many, nor short prompts for long ones."""
    search = ItemSearch(model("llama"))
    placed = search.place(catalogue("table").table)
    queries = [Query([1] * length, beams) for length in (200, 3) for beams in (1, 60) for _ in range(8)]
    groups = list(search.groups(placed, queries))
    assert sorted(map(sorted, groups)) == [list(range(i, i + 8)) for i in (0, 8, 16, 24)]
    recurrent = ItemSearch(model("mamba"))
    lengths = [[len(queries[row].prompt) for row in group] for group in recurrent.groups(placed, queries)]
    assert all(len(set(group)) == 1 for group in lengths)


def test_a_later_version_of_a_living_catalogue_is_placed_without_its_base():
    codes = np.random.default_rng(1).integers(1, SIZE, (500, LENGTH))
    now = mw.Catalogue.of(codes, np.arange(500), SIZE, kind="matrix").live()
    search = ItemSearch(model("llama"))
    before = search.place(now.table)
    assert search.place(now.table, before) is before
    query = Query([5, 6, 7], 20)
    best = now.items(search.search(before, [query])[0])
    now.delete(best[:5])
    now.insert(now.table.sids[:1][:, ::-1] % (SIZE - 1) + 1, [900])
    then = now.publish()
    after = search.place(then.table, before)
    assert after.dev.base.words[0] is before.dev.base.words[0]
    queries = [*requests(then, 6, longest=20, seed=3), query]
    for one, found in zip(queries, search.search(after, queries), strict=True):
        same(found, alone(search.model, then.table, one))
    assert not {*best[:5]} & {*then.items(search.search(after, [query])[0])}
    assert now.items(search.search(before, [query])[0]) == best  # a search goes on with the version that it began with
    with pytest.raises(ConstraintError, match="of another catalogue or version"):
        search.search(after, [query._replace(keep=now.filter(np.ones(500, bool)))])
    then.compact()
    compacted = then.publish()
    same(search.search(search.place(compacted.table, after), [query])[0], alone(search.model, compacted.table, query))


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_that_keeps_nothing_finds_nothing_and_leaves_the_others_alone(kind):
    of = catalogue(kind)
    search = ItemSearch(model("llama"))
    nothing = of.filter(np.zeros(of.table.num_items, bool))
    queries = [Query([4, 5], 7), Query([6, 7, 8], 50, nothing), Query([9], 3, of.without([1]))]
    found = search.search(search.place(of.table), queries)
    assert found[1].states.shape == found[1].scores.shape == (0,)
    for i in (0, 2):
        same(found[i], alone(search.model, of.table, queries[i]))


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_model_that_rules_all_out_finds_nothing(name, value):
    search = ItemSearch(model(name))
    handle = search.model.get_output_embeddings().register_forward_hook(lambda *given: given[-1].fill_(value))
    try:
        found = search.search(search.place(catalogue("matrix").table), [Query([1, 2], 4), Query([3], 1)])
    finally:
        handle.remove()
    assert [len(each.states) for each in found] == [0, 0]


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_what_is_late_finds_none_and_a_search_ends_when_all_are(name):
    of = catalogue("matrix")
    search = ItemSearch(model(name))
    placed = search.place(of.table)
    queries = requests(of, 4, most=8, longest=9, seed=4)
    whole = search.search(placed, queries)
    asked = []
    runs = []
    handle = search.model.get_output_embeddings().register_forward_hook(lambda *given: runs.append(1))
    try:
        found = search.search(placed, queries, lambda: asked.append(1) or [1, 3])
        assert [one is None for one in found] == [False, True, False, True]
        same(found[0], whole[0])
        same(found[2], whole[2])
        assert asked
        runs.clear()
        assert search.search(placed, queries, lambda: range(4)) == [None] * 4
        assert not runs
        steps = iter([[], [0, 1], [0, 1, 2, 3]])
        search.most = item_search.Most(1 << 30, 1 << 30, 1 << 30)
        assert search.search(placed, queries, lambda: next(steps)) == [None] * 4
        assert next(steps, None) is None  # it was asked before the first step, the second, the third, and then ended
    finally:
        handle.remove()


def test_keys_and_values_of_a_prompt_are_held_once(monkeypatch):
    """64 requests of 50 beams with histories of 512 tokens: a tenth of a copy for each beam at most."""
    of = catalogue("matrix")
    search = ItemSearch(made("Llama", {**GROUPED, "max_position_embeddings": 600}).float())
    trees: list[TreeCache] = []
    monkeypatch.setattr(item_search, "TreeCache", lambda *given: trees.append(TreeCache(*given)) or trees[-1])
    rng = np.random.default_rng(0)
    queries = [Query(rng.integers(1, SIZE, 512), 50) for _ in range(64)]
    found = search.search(search.place(of.table), queries)
    assert all(len(each.states) == 50 for each in found)
    held = sum(tree.layers[0].keys.shape[0] * tree.layers[0].keys.shape[2] for tree in trees)
    assert held == sum(tree.entries.tree for tree in trees)
    assert 10 * held <= 64 * 50 * 512
    assert sum(tree.entries.copies for tree in trees) == 64 * 50 * (512 + LENGTH - 1)


def test_what_cannot_be_searched_is_an_error_before_the_model_runs():
    of = catalogue("table")
    search = ItemSearch(model("gpt2"))
    placed = search.place(of.table)
    for query, message in (
        (Query([1], 0), "beams must be positive, not 0"),
        (Query([], 1), "one token or more"),
        (Query([0.5], 1), "as integers"),
        (Query([[1]], 1), "one token or more"),
        (Query([-1], 1), "must be 0 .. 279"),
        (Query([280], 1), "must be 0 .. 279"),
        (Query([1] * (PLACES - 1), 1), f"{PLACES - 1} tokens, and the model has places for {PLACES - 2}: shorten it"),
    ):
        with pytest.raises(ValueError, match=message):
            search.search(placed, [Query([1], 1), query])
    longest = Query([1] * (PLACES - 2), 3)
    same(search.search(placed, [longest])[0], alone(search.model, of.table, longest))
    with pytest.raises(ConstraintError, match="of another catalogue or version"):
        search.search(placed, [Query([1], 1, catalogue("matrix").without([1]))])
    with pytest.raises(VocabularyMismatchError, match="made for another model"):
        search.place(mw.Catalogue.of([[1]], [1], 281).table)
    with pytest.raises(TypeError, match="must be that of a Catalogue"):
        search.place(of)
    with pytest.raises(ValueError, match="training mode"):
        ItemSearch(made(*MODELS["llama"]).train())
    with pytest.raises(TypeError, match="model of transformers"):
        ItemSearch(torch.nn.Linear(1, 1))
    assert search.search(placed, []) == []
