"""Send SGLang's engine constraints of any depth, and ask something ordinary after each: model and answers are files."""

import json
import sys
import time
from pathlib import Path

import sglang

sys.path.append(str(Path(__file__).parents[2] / "strategies"))
import deep_sources as deep

SENT = {
    "json_schema": ("properties", "items", "anyOf", "not", "$ref", "enum"),
    "regex": ("groups", "repeats", "lookaheads"),
    "ebnf": ("groups", "repeats", "rules"),
    "structural_tag": ("sequence", "tag", "schema"),
}
SOURCES = {
    "json_schema": deep.SCHEMAS, "regex": deep.PATTERNS, "ebnf": deep.GRAMMARS["ebnf"], "structural_tag": deep.TAGS,
}  # fmt: skip

if __name__ == "__main__":
    model, out = sys.argv[1:]
    engine = sglang.Engine(
        model_path=model, device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        grammar_backend="maskwright", mem_fraction_static=0.4, max_total_tokens=65536, max_running_requests=64,
        page_size=1, dtype="float32", skip_server_warmup=True, log_level="error",
    )  # fmt: skip
    engine.generate("x ", {"max_new_tokens": 8, "json_schema": "{}"})  # has kernels loaded
    told = {}
    for kind, names in SENT.items():
        for name in names:
            for levels in deep.LEVELS:
                source = SOURCES[kind][name](levels)
                began = time.perf_counter()
                try:
                    text = engine.generate("x ", {"max_new_tokens": 24, kind: source})["text"]
                    answer = [200, text]
                except ValueError as refused:
                    answer = [400, str(refused)]
                seconds = time.perf_counter() - began
                plain = engine.generate("x ", {"max_new_tokens": 8, "regex": "[0-9]{3}"})["text"]
                told[f"{kind} {name} {levels}"] = [*answer, seconds, plain]
    engine.shutdown()
    with open(out, "w") as file:
        json.dump(told, file)
