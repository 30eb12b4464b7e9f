"""`generate` and `logits_processor`: complete texts by a tokenizer and a source, and what is kept between calls."""

from __future__ import annotations

import gc
import json
import re
import weakref
from typing import Any

import pytest

import maskwright as mw
from maskwright import texts
from tests.strategies import tokenizer_zoo

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    raw = tokenizer_zoo.byte_level_bpe()[0]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=raw.id_to_token(0), chat_template=(
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer) + 7, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, eos_token_id=[tokenizer.eos_token_id, len(tokenizer) + 3], pad_token_id=None,
        bos_token_id=None, initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval()


def test_every_text_is_complete_for_each_kind_of_source(model, tokenizer):
    torch.manual_seed(0)
    prompts = ["A city: ", "x", "Another one, with a longer prompt: "]
    options = {"do_sample": True, "max_new_tokens": 60}
    for text in mw.generate(model, tokenizer, prompts, schema=CITY, **options):
        city = json.loads(text)
        assert list(city) == ["name", "size"]
        assert len(city["name"]) <= 8
        assert 0 <= city["size"] <= 99
    for text in mw.generate(model, tokenizer, prompts, regex="[a-f]{3,9}!", **options):
        assert re.fullmatch("[a-f]{3,9}!", text)
    for text in mw.generate(model, tokenizer, prompts, choices=["yes", "no", "naïve"], **options):
        assert text in {"yes", "no", "naïve"}
    for text in mw.generate(model, tokenizer, prompts, grammar='start: "(" start ")" | "x"', **options):
        assert re.fullmatch(r"\(*x\)*", text)
        assert text.count("(") == text.count(")")


def test_what_comes_back_has_the_form_of_the_prompts(model, tokenizer):
    messages = [{"role": "user", "content": "Yes or no?"}]
    ask = {"choices": ["yes", "no"], "do_sample": False}
    one = mw.generate(model, tokenizer, "Yes or no? ", **ask)
    assert isinstance(one, str)
    assert mw.generate(model, tokenizer, ["Yes or no? "], **ask) == [one]
    talk = mw.generate(model, tokenizer, messages, **ask)
    template = "user: Yes or no?\nassistant: "
    assert talk == mw.generate(model, tokenizer, template, **ask)
    assert mw.generate(model, tokenizer, [messages, template], **ask) == [talk, talk]
    assert mw.generate(model, tokenizer, [], **ask) == []
    several = mw.generate(model, tokenizer, ["a", "b"], choices=["yes", "no"], do_sample=True, num_return_sequences=3)
    assert [len(each) for each in several] == [3, 3]
    # there are two texts with one spelling or more each, and beams beyond all spellings are left out
    beams = mw.generate(model, tokenizer, "a", choices=["!"], num_beams=4, num_return_sequences=4)
    assert beams == ["!"]


def test_padding_changes_nothing(model, tokenizer):
    prompts = ["x", "A much longer prompt than the others have: "]
    ask = {"regex": "[a-z ]{4,12}", "do_sample": False, "max_new_tokens": 14}
    together = mw.generate(model, tokenizer, prompts, **ask)
    assert together == [mw.generate(model, tokenizer, prompt, **ask) for prompt in prompts]


def test_an_encoder_decoder_model_writes_texts_too(tokenizer):
    config = transformers.BartConfig(
        vocab_size=len(tokenizer), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.5,
        bos_token_id=1, eos_token_id=0, pad_token_id=3, decoder_start_token_id=5, forced_eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bart = transformers.BartForConditionalGeneration(config).eval()
    for forced in (None, tokenizer("x")["input_ids"][0]):  # as the code of a language is
        bart.generation_config.forced_bos_token_id = forced
        for beams in (1, 3):
            prompts = ["a", "some longer text"]
            found = mw.generate(bart, tokenizer, prompts, regex="[a-f]{3,9}!", max_new_tokens=30, num_beams=beams)
            assert all(re.fullmatch("[a-f]{3,9}!", text) for text in found)
            assert len(found) == 2


def test_what_a_model_is_configured_with_decides_where_texts_begin_and_end(model, tokenizer, monkeypatch):
    mark = tokenizer("!")["input_ids"][0]
    monkeypatch.setattr(model.generation_config, "return_dict_in_generate", True)
    monkeypatch.setattr(model.generation_config, "eos_token_id", [tokenizer.eos_token_id, mark])
    torch.manual_seed(0)
    for text in mw.generate(model, tokenizer, ["a", "b"] * 3, regex="[a-f]{3,9}", do_sample=True):
        assert re.fullmatch("[a-f]{3,9}", text)
    monkeypatch.setattr(model.generation_config, "max_time", 0.0)
    with pytest.raises(mw.errors.ConstraintError, match="ended before a text was complete"):
        mw.generate(model, tokenizer, "a", regex="[a-c]{50}")


def test_each_option_that_is_taken_keeps_texts_complete(model, tokenizer):
    sampled = {
        "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9, "epsilon_cutoff": 1e-4,
        "eta_cutoff": 1e-4,
    }  # fmt: skip
    beams = {"length_penalty": 0.5, "early_stopping": True}
    free = {
        "repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "bad_words_ids": [[5]], "min_new_tokens": 2,
        "logits_processor": [], "use_cache": False, "cache_implementation": "dynamic", "distances": False,
    }  # fmt: skip
    own = {"do_sample": True, "num_beams": 2, "num_return_sequences": 1}
    assert {*sampled, *beams, *free, *own} == texts.OPTIONS
    cases = [{"do_sample": True, name: value} for name, value in sampled.items()]
    cases += [{"num_beams": 2, name: value} for name, value in beams.items()]
    cases += [{name: value} for name, value in free.items()]
    for options in cases:
        torch.manual_seed(0)
        assert re.fullmatch("[a-f]{3,5}!", mw.generate(model, tokenizer, "a", regex="[a-f]{3,5}!", **options)), options


def test_beams_beyond_all_texts_are_left_out(model, tokenizer):
    assert sorted(mw.generate(model, tokenizer, "a", regex="!?", num_beams=4, num_return_sequences=4)) == ["", "!"]
    pad = tokenizer("a")["input_ids"][0]
    config = model.generation_config
    before, config.pad_token_id = config.pad_token_id, pad
    try:
        assert mw.generate(model, tokenizer, "x", choices=["!"], num_beams=4, num_return_sequences=4) == ["!"]
    finally:
        config.pad_token_id = before


def test_a_processor_of_a_source_keeps_generate_inside_it(model, tokenizer):
    processor = mw.logits_processor(tokenizer, model, regex="[a-f]{3,9}!", max_tokens=20)
    prompt = tokenizer("A word: ", return_tensors="pt")
    torch.manual_seed(1)
    out = model.generate(
        input_ids=prompt["input_ids"], attention_mask=prompt["attention_mask"], logits_processor=[processor],
        max_new_tokens=21, do_sample=True, pad_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    text = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert re.fullmatch("[a-f]{3,9}!", text)


def test_a_vocabulary_is_made_once_for_a_tokenizer_and_few_are_kept(tokenizer):
    cache = texts.cache_of(tokenizer, size=2000, ends=[0])
    mw.logits_processor(tokenizer, regex="ab", budget=None)
    assert texts.cache_of(tokenizer, size=2000, ends=[0]) is cache
    assert texts.cache_of(tokenizer, size=2001, ends=[0]) is not cache
    assert texts.cache_of(tokenizer, size=2000, ends=[7]).vocabulary.eos == 7
    assert texts.cache_of(tokenizer, size=2000, ends=[7, 0]).vocabulary == cache.vocabulary  # 7 is text
    seen = [weakref.ref(texts.cache_of(tokenizer, size=size)) for size in range(3000, 3006)]
    gc.collect()
    assert [one() is not None for one in seen] == [False] * 2 + [True] * 4


def test_what_cannot_be_done_is_refused_by_name(model, tokenizer):
    with pytest.raises(TypeError, match="exactly one of schema=, regex=, choices=, grammar="):
        mw.generate(model, tokenizer, "a")
    with pytest.raises(TypeError, match="schema, regex given"):
        mw.generate(model, tokenizer, "a", schema=CITY, regex="a")
    with pytest.raises(mw.errors.SchemaError) as refused:
        mw.generate(model, tokenizer, "a", schema={"properties": {"id": {"type": "string", "pattern": r"^(\w)\1$"}}})
    assert refused.value.pointer == "/properties/id/pattern"
    with pytest.raises(ValueError, match="max_new_tokens=3 leaves room"):
        mw.generate(model, tokenizer, "a", regex="[0-9a-f]{40}", max_new_tokens=3)
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        mw.generate(model, tokenizer, ["a", ""], regex="a")
    for option in ("return_dict_in_generate", "eos_token_id", "generation_config", "max_time", "decoder_input_ids"):
        with pytest.raises(TypeError, match=f"does not take {option}: call model.generate"):
            mw.generate(model, tokenizer, "a", regex="a", **{option: 1})
    for prompts in ({"role": "user", "content": "a"}, [["a"]], [1]):
        with pytest.raises(TypeError, match="prompts must be texts"):
            mw.generate(model, tokenizer, prompts, regex="a")
    with pytest.raises(mw.errors.ConstraintError):
        mw.generate(model, tokenizer, "a", regex="(a|b)*c{2000}", budget=mw.Budget(states=10))


def test_all_ends_of_the_model_end_a_text(model, tokenizer):
    own, other = model.generation_config.eos_token_id
    cache = texts.cache_of(tokenizer, size=len(tokenizer) + 7, ends=[other, own, 50])
    assert cache.vocabulary.ends == (own, other)  # token 50 is text
    assert cache.vocabulary.tokens[50]
    assert texts.cache_of(tokenizer, size=len(tokenizer) + 7, ends=[own]).vocabulary.ends == (own,)
