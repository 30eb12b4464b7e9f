"""Run in the environment of the engines: answers of a tiny model under schemas, through one engine and backend.

    python answers.py ENGINE BACKEND MODEL SCHEMAS OUT

Keeps what was written, and the processor seconds that the engine's processes took until it was ready.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_TOKENS = 400


def processor_seconds() -> float:
    """Return the processor seconds of this process and those that it started."""
    import psutil  # type: ignore[import-untyped]  # the programs here are run where the engines are

    me = psutil.Process()
    return float(sum(sum(each.cpu_times()[:2]) for each in (me, *me.children(recursive=True))))


def with_vllm(backend: str, model: str, schemas: list[str]) -> dict[str, Any]:
    """Return the answers of vLLM."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    config = {} if backend == "maskwright" else {"structured_outputs_config": {"backend": backend}}
    llm = LLM(
        model, enforce_eager=True, max_model_len=1024, max_num_seqs=64, dtype="float32",
        distributed_executor_backend="uni", **config,
    )  # fmt: skip
    ready = processor_seconds()
    params = [
        SamplingParams(
            max_tokens=_TOKENS, temperature=1.0, seed=i, structured_outputs=StructuredOutputsParams(json=schema)
        )
        for i, schema in enumerate(schemas)
    ]
    found = llm.generate([f"p{i} " for i in range(len(params))], params, use_tqdm=False)
    return {"ready": ready, "answers": [(each.outputs[0].text, each.outputs[0].finish_reason) for each in found]}


def with_sglang(backend: str, model: str, schemas: list[str]) -> dict[str, Any]:
    """Return the answers of SGLang."""
    import sglang

    engine = sglang.Engine(
        model_path=model, device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        grammar_backend=backend, mem_fraction_static=0.4, max_total_tokens=65536, max_running_requests=64,
        page_size=1, dtype="float32", skip_server_warmup=True, log_level="error",
    )  # fmt: skip
    ready = processor_seconds()
    params = [{"max_new_tokens": _TOKENS, "temperature": 1.0, "json_schema": schema} for schema in schemas]
    found = engine.generate([f"p{i} " for i in range(len(params))], params)
    engine.shutdown()
    return {
        "ready": ready, "answers": [(each["text"], each["meta_info"]["finish_reason"]["type"]) for each in found]
    }  # fmt: skip


if __name__ == "__main__":
    engine, backend, model, schemas, out = sys.argv[1:]
    os.environ["VLLM_PLUGINS"] = os.environ["SGLANG_PLUGINS"] = backend if backend == "maskwright" else "none"
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    run = with_vllm if engine == "vllm" else with_sglang
    Path(out).write_text(json.dumps(run(backend, model, json.loads(Path(schemas).read_text()) * 2)))
