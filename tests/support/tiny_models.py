"""Models of transformers of two layers, and constraints for their vocabulary."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import maskwright as mw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZE, EOS = 280, 0  # JSON needs a token for every byte
SPECIAL = {"vocab_size": SIZE, "eos_token_id": EOS, "pad_token_id": EOS, "bos_token_id": None, "initializer_range": 0.5}
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, **SPECIAL}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**SHAPE, "num_key_value_heads": 2}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, **SPECIAL}),
    "qwen": ("Qwen2", {**SHAPE, "num_key_value_heads": 2}),
    "eager": ("Llama", {**SHAPE, "num_key_value_heads": 4, "attn_implementation": "eager"}),
}


def made(name: str, options: dict[str, Any], seed: int = 0) -> Any:
    head = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    config = getattr(transformers, f"{name}Config")(**{"attn_implementation": "sdpa", **options})
    with torch.random.fork_rng():  # whoever asks first may have seeded the generator for something else
        torch.manual_seed(seed)
        return getattr(transformers, head)(config).eval().double()


@cache
def model(kind: str = "llama", seed: int = 0) -> Any:
    return made(*KINDS[kind], seed)


def prompts(rows: int = 3, length: int = 7, seed: int = 0) -> dict[str, Any]:
    """Inputs of which all but the first row are padded on the left."""
    ids = torch.randint(1, SIZE, (rows, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        ids[row, : 2 * row - 1] = EOS
        mask[row, : 2 * row - 1] = 0
    return {"input_ids": ids, "attention_mask": mask}


@cache
def vocabulary() -> mw.Vocabulary:
    texts = [b"", *(bytes([b]) for b in range(256)), b"ab", b"cd", b"12", b"2x", b'{"', b'":', b',"b', b"null", b"}]"]
    return mw.Vocabulary.from_bytes(texts, eos=EOS)


PATTERN = r"(ab|cd|\d{2,4}[xyz]){1,4}"
SCHEMA = {
    "$ref": "#/$defs/a",
    "$defs": {
        "a": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2, None]}, "b": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
            "required": ["a"],
            "additionalProperties": False,
        }
    },
}
SIDS = np.random.default_rng(0).integers(2, SIZE, (300, 4))


@cache
def table(kind: str) -> mw.TransitionTable:
    if kind == "sids":
        return mw.compile_sids(SIDS, SIZE, eos=EOS)
    if kind == "sequences":
        return mw.compile_sequences([row[: 1 + i % 4].tolist() for i, row in enumerate(SIDS)], vocab_size=SIZE, eos=EOS)
    if kind == "regex":
        return mw.compile_regex(PATTERN, vocabulary())
    return mw.compile_json_schema(SCHEMA, vocabulary(), whitespace=(",", ":"), depth=4)
