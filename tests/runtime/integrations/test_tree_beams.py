"""Beam search over one shared cache: it finds what transformers finds, and its cache is what a plain pass gives."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import textwrap
from functools import cache
from typing import Any

import pytest

import maskwright as mw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.generation import utils as generation  # noqa: E402

from maskwright.runtime.integrations import tree_beams  # noqa: E402
from maskwright.runtime.integrations.generate import constrained_generate  # noqa: E402
from maskwright.runtime.integrations.processor import ConstraintLogitsProcessor  # noqa: E402
from maskwright.runtime.integrations.tree_beams import tree_beam_search  # noqa: E402
from tests.support.tiny_models import EOS, KINDS, PATTERN, SHAPE, SIDS, SIZE, made, model, prompts, table, vocabulary  # noqa: E402

OPTIONS: list[dict[str, Any]] = [
    {},
    {"early_stopping": True, "length_penalty": 2.0, "num_return_sequences": 3},
    {"early_stopping": "never", "length_penalty": 0.0},
    {"early_stopping": "never", "length_penalty": 1.5, "eos_token_id": list(range(0, SIZE, 6))},
    {"early_stopping": True, "eos_token_id": list(range(0, SIZE, 6)), "num_return_sequences": 2},
    {"length_penalty": -1.0, "repetition_penalty": 1.3, "min_new_tokens": 3},
]


@cache
def in_doubles() -> Any:
    """Return transformers' own beam search with sums in float64, where it rounds to float32."""
    source = textwrap.dedent(inspect.getsource(generation.GenerationMixin._beam_search))
    assert source.count("torch.float32") == 1
    assert source.count("dtype=torch.float,") == 2
    names = dict(vars(generation))
    wide = source.replace("torch.float32", "torch.float64").replace("dtype=torch.float,", "dtype=torch.float64,")
    exec(wide, names)  # the source of an installed library
    return names["_beam_search"]


def generated(of: Any, inputs: dict[str, Any], beams: int, steps: int, **options: Any) -> Any:
    return of.generate(
        **inputs, num_beams=beams, max_new_tokens=steps, return_dict_in_generate=True, output_scores=True, **options
    )


def check(of: Any, inputs: dict[str, Any], beams: int, steps: int = 12, collect: int = 3, **options: Any) -> Any:
    """Search the tree, compare with `generate`, and return what was found."""
    found = tree_beam_search(of, **inputs, beams=beams, max_new_tokens=steps, collect=collect, **options)
    expected = generated(of, inputs, beams, steps, **options)
    assert torch.equal(found.sequences, expected.sequences)
    if beams > 1:
        # the softmax of "eager" attention is in float32 whatever the model is in
        within = {"rtol": 1e-6 if any(of is model("eager", seed) for seed in range(2)) else 0, "atol": 1e-9}
        torch.testing.assert_close(found.scores, expected.sequences_scores, **within)
    return found


# ----------------------------------------------------------------------------------------------- same as generate

SLOW = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 3, pytest.param(9, marks=SLOW), pytest.param(15, marks=SLOW)])
def test_sequences_and_scores_are_those_of_generate_with_prompts_of_different_lengths(kind, beams):
    """In float64 throughout, and as transformers has it, which rounds log-probabilities to float32."""
    ended = set()
    for seed, options in itertools.product(range(2), OPTIONS):
        if beams == 1:
            options = {k: v for k, v in options.items() if k not in ("early_stopping", "length_penalty")}
            options.pop("num_return_sequences", None)
        inputs = prompts(seed=seed)
        if kind == "eager":  # which rounds to float32: rows of padding are NaN there, in transformers too
            inputs["attention_mask"].fill_(1)
        for wide in ({}, {"custom_generate": in_doubles()}) if beams > 1 else ({},):
            found = check(model(kind, seed), inputs, beams, **options, **wide)
        ends = options.get("eos_token_id", [EOS])
        ended |= {next((i for i, x in enumerate(row) if x in ends), 12) for row in found.sequences[:, 7:].tolist()}
    assert min(ended) < 12
    assert max(ended) == 12


def written(sequences: Any, prompt: int, end: int = EOS) -> list[list[int]]:
    """Return what each row wrote before its first end."""
    rows = sequences[:, prompt:].tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


def test_one_input_and_a_prompt_of_one_token_and_a_single_step():
    for length, steps in itertools.product([1, 5], [1, 2, 9]):
        inputs = prompts(1, length)
        check(model(), inputs, 5, steps)
        alone = tree_beam_search(model(), inputs["input_ids"], beams=5, max_new_tokens=steps)
        assert torch.equal(alone.sequences, generated(model(), {"inputs": inputs["input_ids"]}, 5, steps).sequences)


def test_a_prompt_as_long_as_there_are_beams_and_one_read_in_chunks():
    check(model(), prompts(2, 5), 5)
    whole = tree_beam_search(model(), **prompts(3, 7), beams=5, max_new_tokens=6)
    pieces = tree_beam_search(model(), **prompts(3, 7), beams=5, max_new_tokens=6, prefill_chunk_size=3)
    assert torch.equal(whole.sequences, pieces.sequences)


def test_scores_are_the_log_probabilities_that_a_plain_pass_gives():
    inputs = prompts(2)
    found = tree_beam_search(
        model(), **inputs, beams=9, max_new_tokens=12, num_return_sequences=9, length_penalty=0.0, collect=2,
        custom_generate=in_doubles(),
    )  # fmt: skip
    for i, row in enumerate(found.sequences):
        prompt = inputs["input_ids"][i // 9][inputs["attention_mask"][i // 9] == 1]
        text = written(row[None], 7)[0]
        text = torch.tensor(text + [EOS] * (len(text) < 12))
        with torch.no_grad():
            logits = model()(torch.cat([prompt, text])[None]).logits[0, len(prompt) - 1 : -1]
        total = logits.log_softmax(-1).gather(1, text[:, None]).sum()
        torch.testing.assert_close(found.scores[i], total, rtol=0, atol=1e-9)


def test_what_a_mask_leaves_out_inside_a_prompt_stays_unseen():
    inputs = prompts()
    inputs["attention_mask"][0, 2:5] = 0
    check(model(), inputs, 5)


@pytest.mark.parametrize("beams", [1, 4])
def test_sampling_with_a_seed_gives_what_generate_gives(beams):
    options = {"do_sample": True, "num_return_sequences": 3, "top_k": 20}
    for seed in range(3):
        torch.manual_seed(seed)
        found = tree_beam_search(model(), **prompts(), beams=beams, max_new_tokens=9, **options)
        torch.manual_seed(seed)
        assert torch.equal(found.sequences, generated(model(), prompts(), beams, 9, **options).sequences)


def test_a_model_is_left_as_it_was_and_its_hooks_see_each_pass_once():
    of, passes = made(*KINDS["llama"]), []
    before = dict(vars(of))
    handle = of.register_forward_hook(lambda _, __, out: passes.append(tuple(out.logits.shape)))
    tree_beam_search(of, **prompts(), beams=5, max_new_tokens=6, eos_token_id=59, early_stopping="never")
    handle.remove()
    assert passes == [(3, 1, SIZE)] + [(3, 5, SIZE)] * (len(passes) - 1)
    assert len(passes) <= 6
    assert vars(of).keys() == before.keys()
    assert all(vars(of)[name] is before[name] for name in before)


# ----------------------------------------------------------------------------------------------------- the cache


def watch(monkeypatch: Any) -> list[Any]:
    """Return a list that receives each cache that is made."""
    made_caches: list[Any] = []

    class Watched(tree_beams.TreeCache):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.widths: list[tuple[int, int]] = []  # live columns before each step, all columns after it
            made_caches.append(self)

        def grow(self) -> Any:
            out = super().grow()
            each = len(out) // self.batch
            live = int((out.view(self.batch, each, -1)[:, :, :-each].any(1).sum(1)).max()) if self._steps > 1 else 0
            self.widths.append((live, out.shape[1]))
            return out

    monkeypatch.setattr(tree_beams, "TreeCache", Watched)
    return made_caches


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("collect", [1, 3, 1000])
def test_keys_and_values_of_each_beam_are_those_of_a_plain_pass_over_its_tokens(kind, collect, monkeypatch):
    caches, of, inputs, beams = watch(monkeypatch), model(kind), prompts(), 5
    compared = []

    def compare(ids: Any, scores: Any) -> Any:
        tree = caches[0]
        for row, tokens in enumerate(ids):
            mask = inputs["attention_mask"][row // beams]
            real = torch.cat([mask, mask.new_ones(len(tokens) - 7)]).bool()
            plain = transformers.DynamicCache(config=of.config)
            with torch.no_grad():
                logits = of(tokens[real][None], **{tree_beams.CACHE: plain}).logits[0, -1]
            torch.testing.assert_close(scores[row], logits.float().log_softmax(-1), rtol=0, atol=1e-5)
            seen = torch.cat([mask.bool(), tree.visible[row]])
            for layer, expected in zip(tree.layers, plain.layers, strict=True):
                for held, exact in ((layer.keys, expected.keys), (layer.values, expected.values)):
                    torch.testing.assert_close(held[row // beams][:, seen], exact[0], rtol=0, atol=1e-9)
            compared.append(len(tokens))
        return scores

    tree_beam_search(
        of, **inputs, beams=beams, max_new_tokens=10, collect=collect, logits_processor=[compare], eos_token_id=59
    )
    assert max(compared) == 16


@pytest.mark.parametrize("options", [{}, {"early_stopping": "never", "length_penalty": 0.0}])
def test_how_often_branches_are_collected_changes_nothing(options):
    found = [
        tree_beam_search(model("qwen"), **prompts(), beams=6, max_new_tokens=12, collect=collect, **options)
        for collect in (1, 3, 1000)
    ]
    for other in found[1:]:
        assert torch.equal(found[0].sequences, other.sequences)
        torch.testing.assert_close(found[0].scores, other.scores, rtol=0, atol=1e-9)
    assert found[0].entries.tree < found[1].entries.tree < found[2].entries.tree


@pytest.mark.parametrize("collect", [1, 2, 8, 1000])
@pytest.mark.parametrize("beams", [3, 9, 15])
def test_the_tree_never_holds_more_than_prompt_live_branches_and_a_column_a_step_for_each_beam(
    beams, collect, monkeypatch
):
    caches, batch, length, steps = watch(monkeypatch), 2, 32, 20
    out = tree_beam_search(
        model(), **prompts(batch, length, 6), beams=beams, max_new_tokens=steps, collect=collect, eos_token_id=59,
        early_stopping="never", length_penalty=0.0,
    )  # fmt: skip
    (tree,) = caches
    passes = len(tree.widths)
    assert out.entries.copies == batch * beams * (length + passes)
    assert out.entries.tree == batch * (length + max(width for _, width in tree.widths))
    collected, left = 0, []
    for step, (live, width) in enumerate(tree.widths):
        if step and step % collect == 0:
            collected = live
            left.append(live)
        assert width == collected + beams * (1 + step % collect)
    assert out.entries.live == max(left, default=0)
    assert all(layer.keys.shape[2] == layer.values.shape[2] == length + width for layer in tree.layers)
    if collect < 8:  # what is left are paths to few leaves that part late
        assert out.entries.tree < batch * (length + 0.7 * beams * passes)


def test_a_long_prompt_is_held_once():
    for beams in (3, 9, 15):
        out = tree_beam_search(model(), **prompts(1, 500), beams=beams, max_new_tokens=16, collect=4, eos_token_id=59)
        assert out.entries.copies > 0.75 * beams * out.entries.tree


# -------------------------------------------------------------------------------------------------------- tables


def is_member(kind: str, tokens: list[int]) -> bool:
    """Judge what was written without the table."""
    if kind == "sids":
        return tokens in SIDS.tolist()
    if kind == "sequences":
        return tokens in [row[: 1 + i % 4].tolist() for i, row in enumerate(SIDS)]
    text = vocabulary().decode(tokens).decode()
    if kind == "regex":
        return re.fullmatch(PATTERN, text) is not None

    def fits(value: Any) -> bool:
        known = isinstance(value, dict) and "a" in value and value.keys() <= {"a", "b"} and value["a"] in (1, 2, None)
        return known and isinstance(value.get("b", []), list) and all(map(fits, value.get("b", [])))

    return fits(json.loads(text))


@pytest.mark.parametrize("kind", ["sids", "sequences", "regex", "schema"])
@pytest.mark.parametrize("beams", [1, 3, 9])
def test_under_a_table_sequences_and_scores_are_those_of_generate_and_all_are_members(kind, beams):
    for seed, options in itertools.product(range(2), OPTIONS[:3] if beams > 1 else [{}]):
        constraint = ConstraintLogitsProcessor(table(kind), max_tokens=None if kind in ("sids", "sequences") else 14)
        found = check(model(seed=seed), prompts(seed=seed), beams, 15, logits_processor=[constraint], **options)
        for tokens in written(found.sequences, 7):
            assert is_member(kind, tokens), (tokens, vocabulary().decode(tokens))
            assert len(tokens) <= 14


@pytest.mark.parametrize("kind", ["sids", "sequences", "regex", "schema"])
def test_exact_beams_over_the_tree_are_exact_beams(kind):
    """`constrained_generate` keeps the best of all allowed continuations; here over one cache."""
    options = {"custom_generate": constrained_generate, "tables": table(kind), "num_return_sequences": 3}
    if kind in ("regex", "schema"):
        options["max_tokens"] = 14
    for collect in (1, 4):
        found = check(model(), prompts(), 7, 15, collect, length_penalty=0.5, **options)
    assert all(is_member(kind, tokens) for tokens in written(found.sequences, 7))


def test_sids_without_an_end_are_found_by_exact_beams_and_one_beam_of_them():
    plain = mw.compile_sids(SIDS, SIZE)
    for beams in (2, 9):
        options = {"custom_generate": constrained_generate, "tables": plain, "eos_token_id": None}
        found = check(model(), prompts(), beams, 4, 1, length_penalty=0.0, **options)
        assert all(row in SIDS.tolist() for row in found.sequences[:, 7:].tolist())


@pytest.mark.parametrize("beams", [1, 3, 9])
def test_under_a_sorted_matrix_all_is_as_under_the_table_of_the_same_set(beams):
    both = mw.compile_sids(SIDS, SIZE), mw.sort_sids(SIDS, SIZE)
    for seed, options in itertools.product(range(2), OPTIONS[:3] if beams > 1 else [{}]):
        found = [
            check(model(seed=seed), prompts(seed=seed), beams, 5, logits_processor=[processor], **options)
            for processor in (ConstraintLogitsProcessor(one, eos_token_ids=EOS) for one in both)
        ]
        assert torch.equal(found[0].sequences, found[1].sequences)
        assert found[0].entries == found[1].entries
        assert both[1].contains(written(found[1].sequences, 7)).all()
    if beams > 1:
        options = {"custom_generate": constrained_generate, "eos_token_id": None}
        found = [check(model(), prompts(), beams, 4, 1, length_penalty=0.0, tables=one, **options) for one in both]
        assert torch.equal(found[0].sequences, found[1].sequences)
        assert torch.equal(found[0].scores, found[1].scores)
        assert both[1].contains(found[1].sequences[:, 7:].numpy()).all()


def test_each_input_has_its_own_table():
    tables = [table("regex"), None, table("schema")]
    constraint = ConstraintLogitsProcessor(tables, max_tokens=[6, None, 14])
    found = check(model(), prompts(), 4, 15, logits_processor=[constraint], num_return_sequences=2)
    rows = written(found.sequences, 7)
    assert all(is_member("regex", row) and len(row) <= 6 for row in rows[:2])
    assert all(is_member("schema", row) for row in rows[4:])


@pytest.mark.parametrize("few", [[[5]], [[5, 6], [7]], [[5, 6], [5, 6, 8, 9], [7, 7, 7]]])
def test_where_a_table_has_fewer_sequences_than_beams_all_are_found(few):
    """What transformers fills up with is empty, or repeats one; exact beams fill up with nothing."""
    of_few = mw.compile_sequences(few, vocab_size=SIZE, eos=EOS)
    constraint = {"logits_processor": [ConstraintLogitsProcessor(of_few)]}
    for options in (constraint, {"custom_generate": constrained_generate, "tables": of_few}):
        found = check(model(), prompts(2), 6, 8, num_return_sequences=6, **options)
        rows = written(found.sequences, 7)
        for of_input in (rows[:6], rows[6:]):
            assert of_input[0] in few
            assert all(row in [*few, []] for row in of_input)
            assert all(row in of_input for row in few)


# ------------------------------------------------------------------------------------------------------ refusals


def test_models_that_cannot_be_told_what_a_token_sees_are_refused():
    tiny = {**SHAPE, "num_key_value_heads": 2}
    bart = transformers.BartConfig(
        vocab_size=SIZE, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
    )  # fmt: skip
    bloom = {"vocab_size": SIZE, "hidden_size": 32, "n_layer": 1, "n_head": 2, "attn_implementation": "eager"}
    mamba = {"vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 1, "attn_implementation": "eager"}
    flex = made("Llama", {**tiny, "attn_implementation": "flex_attention"})
    cases = [
        (transformers.BartForConditionalGeneration(bart), "encoder-decoder"),
        (made("Mistral", {**tiny, "sliding_window": 8}), "DynamicSlidingWindowLayer"),
        (made("Mamba", mamba), "a state of its own kind"),
        (made("Bloom", bloom), "ALiBi"),
        (made("Falcon", {**SHAPE, "alibi": True}), "ALiBi"),
        (flex, "flex_attention.*attn_implementation='sdpa'"),
    ]
    for of, why in cases:
        with pytest.raises(ValueError, match=f"(?s)cannot search over a shared cache: .*{why}"):
            tree_beam_search(of, **prompts(), beams=3, max_new_tokens=4)
    made_again = made("Mistral", {**tiny, "sliding_window": None})
    check(made_again, prompts(), 3, 5)
    with pytest.raises(TypeError, match="a causal language model of transformers is needed, not a Linear"):
        tree_beam_search(torch.nn.Linear(2, 2), **prompts(), beams=3, max_new_tokens=4)


def test_what_cannot_be_done_as_generate_does_it_is_refused():
    inputs = prompts()

    def refused(message: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=message):
            tree_beam_search(model(), **{**inputs, "beams": 3, "max_new_tokens": 4, **options})

    refused("beams must be positive, not 0", beams=0)
    refused("collect must be positive, not 0", collect=0)
    refused("max_new_tokens must be positive, not -1", max_new_tokens=-1)
    refused("padded on the left", attention_mask=inputs["attention_mask"].flip(1))
    refused("they must agree", attention_mask=inputs["attention_mask"][:2])
    refused("at least one token", input_ids=inputs["input_ids"][:, :0])
    refused("does without output_attentions, use_cache=False", output_attentions=True, use_cache=False)
    refused("does without prompt_lookup_num_tokens", prompt_lookup_num_tokens=3)
    refused("num_beams is called beams", num_beams=3)
