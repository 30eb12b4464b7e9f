"""Run vLLM in this process: model, schemas and answers are files."""

import json
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

if __name__ == "__main__":
    model, schemas, out = sys.argv[1:]
    llm = LLM(
        model, enforce_eager=True, max_model_len=1024, max_num_seqs=64, dtype="float32",
        distributed_executor_backend="uni",
    )  # fmt: skip

    def write(seed, **asked):
        # a tag leaves text free: a bias ends it
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
        found = llm.generate([f"p{run} {i} " for i in range(len(params))], params, use_tqdm=False)
        answers += [(each.outputs[0].text, each.outputs[0].finish_reason) for each in found]
    others = {}
    for name, asked in OTHERS.items():
        (found,) = llm.generate(["x "], write(7, **asked), use_tqdm=False)
        others[name] = (found.outputs[0].text, found.outputs[0].finish_reason)
    try:
        llm.generate(["x "], write(1, json='{"properties": {"a": {"type": "strin"}}}'), use_tqdm=False)
        error = ""
    except VLLMValidationError as refused:
        error = str(refused)
    with open(out, "w") as file:
        json.dump({"answers": answers, "others": others, "error": error}, file)
