"""Run vLLM in this process with catalogues: model, what to ask and answers are files."""

import json
import os
import random
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.scheduler import Scheduler

import maskwright as mw
from maskwright.engines.vllm.beam_search import beam_search
from maskwright.engines.vllm.requests import PROCESSOR
from maskwright.engines.vllm.scores import engine_scores
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search as exact

PROMPTS = [list(range(3, 40)), [300, 500, 700, 9]]


def params(kind, i, schemas):
    """Return what request i of a kind asks for."""
    given = {"max_tokens": 400, "temperature": 1.0, "seed": i}
    if kind == "json":
        return SamplingParams(**given, structured_outputs=StructuredOutputsParams(json=json.dumps(schemas[i])))
    if kind == "regex":
        return SamplingParams(**given, structured_outputs=StructuredOutputsParams(regex="[0-9]{4}-[0-9]{2}"))
    if kind == "free":
        return SamplingParams(**given | {"max_tokens": 30})
    fields = {
        "sid": {"maskwright_catalogue": "items"},
        "filter": {"maskwright_catalogue": "items", "maskwright_filter": "kept", "maskwright_deny": [0, 1, 2]},
        "table": {"maskwright_catalogue": "table"},
    }
    return SamplingParams(**given | {"max_tokens": 3 + i % 3}, extra_args=fields[kind])


def streamed(engine, requests, rng):
    """Return the answers of requests, some of which are cancelled on the way, and how many states are left."""
    answers, cancelled = {}, set()
    for name, (prompt, asked) in requests.items():
        engine.add_request(name, prompt, asked)
    while engine.has_unfinished_requests():
        for output in engine.step():
            one = output.outputs[0]
            answers[output.request_id] = (list(one.token_ids), one.finish_reason)
            if rng.random() < 0.01 and not output.finished:
                engine.abort_request([output.request_id])
                cancelled.add(output.request_id)
    return {name: answer for name, answer in answers.items() if name not in cancelled}, len(cancelled)


def by_itself(model, dev, prompt, beams):
    """Return our own search with the model in transformers."""

    def step(tokens, texts, t):
        texts = texts if t == 0 else torch.cat([texts, tokens[:, None]], dim=1)
        with torch.no_grad():
            return model(texts).logits[:, -1], texts

    return exact(step, torch.tensor([prompt] * beams), dev, ops=torch_ops, batch=1, beams=beams, max_tokens=3)


def scored(model, prompt, found):
    """Return the log-probabilities of sequences (n, L) after a prompt: (n,)."""
    texts = torch.cat([torch.tensor([prompt] * len(found)), found], dim=1)
    with torch.no_grad():
        log_probs = model(texts).logits[:, len(prompt) - 1 : -1].log_softmax(dim=-1)
    return log_probs.gather(2, found[:, :, None]).sum(dim=(1, 2))


if __name__ == "__main__":
    path, schemas, out = sys.argv[1:]
    preempted = []
    original = Scheduler._preempt_request
    Scheduler._preempt_request = lambda *given, **how: (preempted.append(given[1].request_id), original(*given, **how))[
        1
    ]
    llm = LLM(
        path, enforce_eager=True, max_model_len=1024, max_num_seqs=48, dtype="float32", num_gpu_blocks_override=14,
        distributed_executor_backend="uni", logits_processors=[PROCESSOR],
    )  # fmt: skip
    engine = llm.llm_engine
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    (processor,) = [each for each in runner.input_batch.logitsprocs.all if type(each).__name__ == "CatalogueProcessor"]
    kinds = ["sid", "regex", "json", "filter", "free", "table"] * 16
    rng = random.Random(0)
    # prompts that all but fill a block of the cache, of which there are few: what is written takes a second one
    requests = {
        f"{kind} {i}": (
            {"prompt_token_ids": [2 + (i * at) % 1000 for at in range(122 + i % 7)]},
            params(kind, i % 64, json.loads(Path(schemas).read_text())),
        )
        for i, kind in enumerate(kinds)
    }
    answers, cancelled = streamed(engine, requests, rng)
    llm.generate(["x"], SamplingParams(max_tokens=2), use_tqdm=False)  # vLLM tells of what has ended in its next step
    left = len(processor.rows.held)

    errors = {}
    for name, given in {
        "name": {"extra_args": {"maskwright_catalogue": "no"}},
        "length": {"extra_args": {"maskwright_catalogue": "items"}, "max_tokens": 2},
    }.items():
        try:
            llm.generate(["x "], SamplingParams(**given), use_tqdm=False)
        except VLLMValidationError as refused:
            errors[name] = str(refused)
    empty = llm.generate([{"prompt_token_ids": [5] * 1022}], params("sid", 1, []), use_tqdm=False)[0].outputs[0]

    catalogue = mw.Catalogue.load(json.loads(os.environ["MASKWRIGHT_ENGINE_OPTIONS"])["catalogues"]["items"])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    dev = torch_ops.to_device(catalogue.table)
    beams = {}
    for width in (64, 512):
        found = beam_search(engine_scores(llm), PROMPTS, dev, beams=width)
        for row, prompt in enumerate(PROMPTS):
            want = by_itself(model, dev, prompt, width)
            own = scored(model, prompt, found.tokens[row])
            beams[f"{width} {row}"] = (
                len(set(map(tuple, found.tokens[row].tolist()))),
                float((want.scores[0] - found.scores[row]).abs().max()),
                float((own - found.scores[row]).abs().max()),
            )
    tokenizer = llm.get_tokenizer()
    texts = {name: tokenizer.decode(tokens, skip_special_tokens=True) for name, (tokens, _) in answers.items()}
    with open(out, "w") as file:
        told = {"answers": answers, "texts": texts, "cancelled": cancelled, "left": left, "preempted": preempted}
        json.dump({**told, "errors": errors, "empty": list(empty.token_ids), "beams": beams}, file)
