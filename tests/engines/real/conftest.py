"""The model that real engines serve in tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.real.schemas import schemas


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Write a Llama of random weights with a tokenizer trained on the spot."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    text = [path.read_text() for path in sorted((Path(__file__).parents[3] / "automata").glob("*.py"))]
    tok.train_from_iterator([*text, *map(json.dumps, schemas() * 20)], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1,
        tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
