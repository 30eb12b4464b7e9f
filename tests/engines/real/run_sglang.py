"""Run SGLang's engine: model, schemas and answers are files. THINKS: each answer follows a thought."""

import json
import os
import sys
from pathlib import Path

import sglang

OTHERS = {"regex": {"regex": "[0-9]{4}-[0-9]{2}"}, "ebnf": {"ebnf": 'root ::= "a" root "b" | "c"'}}

if __name__ == "__main__":
    model, schemas, out = sys.argv[1:]
    thinks = bool(os.environ.get("THINKS"))
    engine = sglang.Engine(
        model_path=model, device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        grammar_backend="maskwright", mem_fraction_static=0.4, max_total_tokens=65536, max_running_requests=64,
        page_size=1, dtype="float32", skip_server_warmup=True, log_level="warning",
        **({"reasoning_parser": "qwen3", "enable_strict_thinking": True} if thinks else {}),
    )  # fmt: skip

    def told(found):
        return found["text"], found["meta_info"]["finish_reason"]["type"]

    def asked(prompt, params):
        return engine.generate(prompt, params, require_reasoning=thinks)

    answers = []
    for run in range(2):
        params = [
            {"max_new_tokens": 400, "temperature": 1.0, "json_schema": json.dumps(each)}
            for each in json.loads(Path(schemas).read_text())
        ]
        answers += map(told, asked([f"p{run} {i} " for i in range(len(params))], params))
    limits = {"max_new_tokens": 400, "temperature": 1.0}
    others = {name: told(asked("x ", {**limits, **each})) for name, each in OTHERS.items()}
    try:
        engine.generate("x ", {"json_schema": '{"properties": {"a": {"type": "strin"}}}'})
        error = ""
    except ValueError as refused:
        error = str(refused)
    engine.shutdown()
    with open(out, "w") as file:
        json.dump({"answers": answers, "others": others, "error": error}, file)
