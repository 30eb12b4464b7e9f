"""Run vLLM in this process while another one changes its catalogue: model, folder and answers are files."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from living import asked
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler

from maskwright.engines.vllm.requests import PROCESSOR

SECONDS, AT_ONCE = 20, 40

if __name__ == "__main__":
    path, folder, out = sys.argv[1:]
    preempted = []
    original = Scheduler._preempt_request
    Scheduler._preempt_request = lambda *given, **how: (preempted.append(given[1].request_id), original(*given, **how))[
        1
    ]
    llm = LLM(
        path, enforce_eager=True, max_model_len=1024, max_num_seqs=AT_ONCE, dtype="float32", num_gpu_blocks_override=14,
        distributed_executor_backend="uni", logits_processors=[PROCESSOR],
    )  # fmt: skip
    engine, rng = llm.llm_engine, np.random.default_rng(2)
    here = Path(__file__).with_name("living.py")
    writer = subprocess.Popen([sys.executable, str(here), folder, str(SECONDS)])
    running, told, count = {}, [], 0
    while writer.poll() is None or running:
        while writer.poll() is None and len(running) < AT_ONCE:
            fields, filtered, deny = asked(rng)
            # prompts that all but fill a block of the cache, of which there are few: an answer takes a second one
            prompt = {"prompt_token_ids": [2 + (count * at) % 1000 for at in range(122 + count % 7)]}
            params = SamplingParams(max_tokens=3 + count % 3, temperature=1.0, seed=count, extra_args=fields)
            running[str(count)] = (filtered, deny, time.monotonic())
            engine.add_request(str(count), prompt, params)
            count += 1
        for output in engine.step():
            if output.finished:
                filtered, deny, sent = running.pop(output.request_id)
                one = output.outputs[0]
                told.append((list(one.token_ids), one.finish_reason, sent, time.monotonic(), filtered, deny))
    Path(out).write_text(json.dumps({"answers": told, "preempted": len(set(preempted)), "writer": writer.returncode}))
