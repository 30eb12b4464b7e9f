"""Run SGLang's beam search with catalogues: model and answers are files, catalogues are named by the options."""

import asyncio
import json
import os
import sys
from pathlib import Path

import sglang
import torch
from transformers import AutoModelForCausalLM

import maskwright as mw
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search

WIDTHS = (8, 70)
PROMPTS = ([5, 6, 7], [2 + (3 * at) % 1000 for at in range(40)])
ASKED = {
    "items": {"maskwright_catalogue": "items"},
    "table": {"maskwright_catalogue": "table"},
    "kept": {"maskwright_catalogue": "items", "maskwright_filter": "kept", "maskwright_deny": [0, 1, 2]},
}
REFUSED = {
    "name": {"beam_width": 8, "custom_params": {"maskwright_catalogue": "no"}},
    "beams": {"custom_params": {"maskwright_catalogue": "items"}},
    "length": {"beam_width": 8, "max_new_tokens": 2, "custom_params": {"maskwright_catalogue": "items"}},
}


def asked(width, custom):
    return {"max_new_tokens": 16, "beam_width": width, "n": width, "custom_params": custom}


async def together(engine, requests):
    """Return the answers of requests that run at the same time."""
    made = [engine.async_generate(input_ids=prompt, sampling_params=params) for prompt, params in requests]
    return [each[0] if isinstance(each, list) else each for each in await asyncio.gather(*made)]


def by_itself(model, dev, prompt, width, length):
    """Return the search of the model itself after one prompt, and its tokens."""

    def step(tokens, texts, t):
        texts = texts if t == 0 else torch.cat([texts, tokens[:, None]], dim=1)
        with torch.no_grad():
            return model(texts).logits[:, -1], texts

    found = beam_search(
        step, torch.tensor([prompt] * width), dev, ops=torch_ops, batch=1, beams=width, max_tokens=length,
        length_penalty=1.0,
    )  # fmt: skip
    return found.tokens[0].tolist(), found.scores[0].tolist()


if __name__ == "__main__":
    path, out = sys.argv[1:]
    engine = sglang.Engine(
        model_path=path, device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        grammar_backend="maskwright", mem_fraction_static=0.4, max_total_tokens=65536, max_running_requests=256,
        page_size=1, dtype="float32", skip_server_warmup=True, log_level="warning",
    )  # fmt: skip
    searches = [(name, width, row) for name in ASKED for width in WIDTHS for row in range(len(PROMPTS))]
    # all at once, beside beams and texts that are asked for without a catalogue
    found = engine.loop.run_until_complete(
        together(
            engine,
            [
                *((PROMPTS[row], asked(width, ASKED[name])) for name, width, row in searches),
                (PROMPTS[0], {"beam_width": 4, "max_new_tokens": 6, "n": 4}),
                (PROMPTS[0], {"max_new_tokens": 20, "regex": "[0-9]{3}"}),
            ],
        )
    )
    errors = {}
    for name, given in REFUSED.items():
        try:
            engine.generate(input_ids=PROMPTS[0], sampling_params=given)
        except ValueError as refused:
            errors[name] = str(refused)
    engine.shutdown()

    catalogue = mw.Catalogue.load(json.loads(os.environ["MASKWRIGHT_ENGINE_OPTIONS"])["catalogues"]["items"])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    dev = torch_ops.to_device(catalogue.table)
    beams = {}
    for (name, width, row), each in zip(searches, found, strict=False):
        told = each["meta_info"]["beam_results"]
        tokens = [beam["output_ids"] for beam in told]
        scores = [beam["meta_info"]["sequence_score"] for beam in told]
        if name == "kept":
            beams[f"{name} {width} {row}"] = (tokens, None, None)
            continue
        want, exact = by_itself(model, dev, PROMPTS[row], width, catalogue.table.max_length)
        length = catalogue.table.max_length  # SGLang divides by it
        worst = max(abs(a - b) * length for a, b in zip(scores, exact, strict=True))
        beams[f"{name} {width} {row}"] = (tokens, want, worst)
    free, text = found[len(searches) :]
    Path(out).write_text(
        json.dumps({
            "beams": beams, "errors": errors, "free": len(free["meta_info"]["beam_results"]), "text": text["text"],
        })
    )  # fmt: skip
