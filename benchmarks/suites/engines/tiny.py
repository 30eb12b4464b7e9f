"""A tiny Llama of random weights with a tokenizer trained on the spot, and schemas whose instances are short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ROWS = 64


def schemas() -> list[dict[str, Any]]:
    """Return schemas whose instances are short, each another one."""
    out = []
    for i in range(ROWS):
        properties = {
            f"name_{i}": {"type": "string", "maxLength": 8 + i % 5},
            "founded": {"type": "integer", "minimum": -5000, "maximum": 2100 + i},
            "kind": {"enum": ["city", "town", f"village{i}"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
        }
        required = {"required": list(properties), "additionalProperties": False}
        out.append({"type": "object", "properties": properties, **required})
    return out


def texts() -> list[str]:
    """Return an instance of each schema."""
    return [
        json.dumps({f"name_{i}": "Ulm am R", "founded": 1000 + i, "kind": "town", "tags": ["alt", "neu"]})
        for i in range(ROWS)
    ]


def write_model(folder: Path) -> None:
    """Write the model and its tokenizer, 1,024 tokens, into a folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    text = [path.read_text() for path in sorted((ROOT / "automata").glob("*.py"))]
    tok.train_from_iterator([*text, *map(json.dumps, schemas() * 20)], trainer)
    make: Any = PreTrainedTokenizerFast
    fast = make(tokenizer_object=tok, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1,
        tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
