"""vLLM's own server with catalogues: `make test-engines`."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import maskwright as mw

SIDS = np.random.default_rng(0).integers(0, 200, (5000, 3)) + np.array([300, 500, 700])


@pytest.fixture(scope="module")
def server(model: Path, vllm_server, tmp_path_factory) -> Iterator[str]:
    """Run the server with a catalogue; return where it is."""
    items = tmp_path_factory.mktemp("catalogue") / "items"
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    mw.Catalogue.of(SIDS, np.arange(5000), vocab_size=size, kind="matrix").save(items)
    processor = "maskwright.engines.vllm.logits_processor:CatalogueProcessor"
    options = {"MASKWRIGHT_ENGINE_OPTIONS": json.dumps({"catalogues": {"items": str(items)}})}
    with vllm_server("--max-logprobs", "128", "--logits-processors", processor, variables=options) as url:
        yield url


def post(url: str, **body) -> dict:
    """Return the answer to a completion, or the error in it."""
    given = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 8, **body}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", given, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return {"code": error.code, **json.load(error)["error"]}


def test_answers_are_items_and_what_cannot_be_kept_is_the_clients_error(server):
    answer = post(server, return_token_ids=True, vllm_xargs={"maskwright_catalogue": "items"})
    tokens = answer["choices"][0]["token_ids"]
    assert tuple(tokens[:3]) in set(map(tuple, SIDS.tolist()))
    assert tokens[3:] == [1]
    for given, field in (
        ({"vllm_xargs": {"maskwright_catalogue": "no"}}, "maskwright_catalogue"),
        ({"vllm_xargs": {"maskwright_catalogue": "items"}, "n": 4, "use_beam_search": True}, "use_beam_search"),
        ({"structured_outputs": {"regex": "a+"}, "n": 4, "use_beam_search": True}, "use_beam_search"),
    ):
        refused = post(server, **given)
        assert (refused["code"], refused["param"]) == (400, field)


def test_a_constraint_that_takes_long_does_not_hold_up_the_loop(server):
    """A bomb that its budget ends after seconds, while others are answered."""
    assert "choices" in post(server, structured_outputs={"regex": "[ab]{3}"})  # by processes that have started
    found = []
    bomb = r"(?:\d*[a-zé]?(?=.{3,40}x)){8}[a-w]*"
    threads = [
        threading.Thread(target=lambda n=n: found.append(post(server, structured_outputs={"regex": f"{bomb}{n}"})))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    slowest = 0.0
    for number in range(20):
        began = time.monotonic()
        urllib.request.urlopen(f"{server}/health").close()
        slowest = max(slowest, time.monotonic() - began)
        assert "choices" in post(server, structured_outputs={"regex": f"[ab]{{3}}{number}"})
    assert len(found) < 3, "the bombs were over before others were answered"
    assert slowest < 1
    for thread in threads:
        thread.join()
    assert [(refused["code"], refused["param"]) for refused in found] == [(400, "structured_outputs.regex")] * 3


def test_beams_over_http_are_those_of_the_model(server, model):
    import torch
    from transformers import AutoModelForCausalLM

    from maskwright.engines.vllm.beam_search import beam_search
    from maskwright.engines.vllm.scores import server_scores
    from maskwright.runtime import torch_ops
    from maskwright.runtime.decode import beam_search as exact

    size = json.loads((model / "config.json").read_text())["vocab_size"]
    dev, prompt = torch_ops.to_device(mw.compile_sids(SIDS, vocab_size=size)), [300, 500, 700, 9]
    known = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def step(tokens, texts, t):
        texts = texts if t == 0 else torch.cat([texts, tokens[:, None]], dim=1)
        with torch.no_grad():
            return known(texts).logits[:, -1], texts

    want = exact(step, torch.tensor([prompt] * 16), dev, ops=torch_ops, batch=1, beams=16, max_tokens=3)
    found = beam_search(server_scores(server, "tiny"), [prompt], dev, beams=16)
    assert found.valid.all()
    assert float((found.scores - want.scores).abs().max()) < 1e-5
