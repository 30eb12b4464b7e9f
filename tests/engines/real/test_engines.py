"""The real engines with a tiny model of random weights: `make test-engines`, in an environment that has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

HERE = Path(__file__).parent
ROWS = 64


def schemas() -> list[dict]:
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
    text = [path.read_text() for path in sorted((HERE.parents[2] / "automata").glob("*.py"))]
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


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_answer_ends_and_keeps_to_its_schema_and_faults_are_the_clients(engine, model, tmp_path):
    pytest.importorskip(engine)
    asked, out = tmp_path / "schemas.json", tmp_path / "out.json"
    asked.write_text(json.dumps(schemas()))
    environment = {
        **os.environ, "VLLM_PLUGINS": "maskwright", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONPATH": str(HERE.parent / "stand_ins"),
    }  # fmt: skip
    environment.pop("MASKWRIGHT_ENGINE_OPTIONS", None)
    program = [sys.executable, str(HERE / f"run_{engine}.py"), str(model), str(asked), str(out)]
    run = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-4000:]
    told = json.loads(out.read_text())
    assert len(told["answers"]) == 2 * ROWS
    for (text, reason), schema in zip(told["answers"], schemas() * 2, strict=True):
        assert reason == "stop"
        jsonschema.validate(json.loads(text), schema)
    assert {name: answer[1] for name, answer in told["others"].items()} == dict.fromkeys(told["others"], "stop")
    assert told["others"]["regex"][0][4] == "-"
    assert "/properties/a/type" in told["error"]
