"""Run vLLM in this process: model, schemas and answers are files. SPECULATIVE=1 drafts from the prompt."""

import json
import os
import sys
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

TAG = {"structures": [{"begin": "<f>", "schema": {"const": 1}, "end": "</f>"}], "triggers": ["<f>"]}
OTHERS = {
    "regex": {"regex": "[0-9]{4}-[0-9]{2}"},
    "choice": {"choice": ["red", "green"]},
    "ebnf": {"grammar": 'root ::= "a" root "b" | "c"'},
    "lark": {"grammar": 'start: "x" /[a-z]{2}/'},
    "tag": {"structural_tag": json.dumps(TAG)},
}

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def counted(drafts):
    """Note each draft that a grammar is asked to cut."""
    from maskwright.engines.vllm.backend import MaskwrightGrammar

    original = MaskwrightGrammar.validate_tokens

    def validate_tokens(grammar, tokens):
        kept = original(grammar, tokens)
        drafts.append((len(tokens), len(kept)))
        return kept

    MaskwrightGrammar.validate_tokens = validate_tokens


if __name__ == "__main__":
    drafts, speculative = [], os.environ.get("SPECULATIVE")
    counted(drafts)
    model, schemas, out = sys.argv[1:]
    llm = LLM(
        model, enforce_eager=True, max_model_len=1024, max_num_seqs=64, dtype="float32",
        distributed_executor_backend="uni", speculative_config=NGRAM if speculative else None,
    )  # fmt: skip

    def write(seed, **asked):
        # a tag leaves text free: a bias ends it, which vLLM does not take beside speculation
        bias = {1: 8.0} if "structural_tag" in asked else None
        return SamplingParams(
            max_tokens=400, temperature=1.0, seed=seed, logit_bias=bias,
            structured_outputs=StructuredOutputsParams(**asked),
        )  # fmt: skip

    answers = []
    for run in range(2):
        params = [
            write(1000 * run + i, json=json.dumps(each)) for i, each in enumerate(json.loads(Path(schemas).read_text()))
        ]
        # what a prompt has in common with its answer is drafted
        prompts = [
            f'p{run} {i} {{"name_{i}":"abc","founded":12,"kind":"town","tags":["a","b"]}} ' for i in range(len(params))
        ]
        found = llm.generate(prompts, params, use_tqdm=False)
        answers += [(each.outputs[0].text, each.outputs[0].finish_reason) for each in found]
    others = {}
    for name, asked in OTHERS.items():
        if name == "tag" and speculative:
            continue
        (found,) = llm.generate(["x "], write(7, **asked), use_tqdm=False)
        others[name] = (found.outputs[0].text, found.outputs[0].finish_reason)
    try:
        llm.generate(["x "], write(1, json='{"properties": {"a": {"type": "strin"}}}'), use_tqdm=False)
        error = ""
    except VLLMValidationError as refused:
        error = str(refused)
    with open(out, "w") as file:
        json.dump({"answers": answers, "others": others, "error": error, "drafts": drafts}, file)
