"""Beam search that asks a server for log-probabilities: equal to the search that has the model itself."""

from __future__ import annotations

import http.server
import json
import threading
import time
import types
from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from maskwright.engines.vllm.beam_search import beam_search  # noqa: E402
from maskwright.engines.vllm.scores import engine_scores, server_scores  # noqa: E402
from maskwright.runtime import torch_ops  # noqa: E402
from maskwright.runtime.decode import beam_search as exact  # noqa: E402
from maskwright.runtime.decode import continue_from  # noqa: E402
from tests.engines import fakes  # noqa: E402

V = 300
PROMPTS = [[5, 6, 7], [9]]


def model(texts: torch.Tensor) -> torch.Tensor:
    """Return logits (n, V) after texts (n, L): any function of all their tokens."""
    seeds = (texts * torch.arange(1, texts.shape[1] + 1)).sum(dim=1, keepdim=True) + 1
    return 3 * torch.sin(seeds * torch.arange(1, V + 1) * 0.37)


def scores(texts: list[list[int]], tokens: list[list[int]]) -> list[list[float]]:
    """Answer as vLLM does, which takes no more than 128 tokens a request."""
    assert all(0 < len(asked) <= 128 for asked in tokens)
    return [
        torch.log_softmax(model(torch.tensor([text]))[0], dim=0)[asked].tolist()
        for text, asked in zip(texts, tokens, strict=True)
    ]


def by_itself(dev, prompt: list[int], beams: int, **how):
    """Return the search of the model itself after one prompt."""

    def step(tokens, texts, t):
        texts = texts if t == 0 else torch.cat([texts, tokens[:, None]], dim=1)
        return model(texts), texts

    return exact(step, torch.tensor([prompt] * beams), dev, ops=torch_ops, batch=1, beams=beams, **how)


rng = np.random.default_rng(0)
SIDS = np.unique(rng.integers(0, [290, 40, 40], (4000, 3)), axis=0)
TABLES = {
    "table": mw.compile_sids(SIDS, vocab_size=V),
    "matrix": mw.sort_sids(SIDS, vocab_size=V),
    "filter": mw.sort_sids(SIDS, vocab_size=V).filter(np.arange(len(SIDS)) % 3 == 0),
    "ended": mw.compile_sequences([*SIDS[:500].tolist(), *SIDS[:90, :2].tolist()], vocab_size=V, eos=299),
    "loose": mw.compile_sequences([*SIDS[:500].tolist(), *SIDS[:90, :2].tolist()], vocab_size=V),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("renormalize", [False, True])
def test_beams_are_those_of_the_search_that_has_the_model(name, renormalize):
    dev = torch_ops.to_device(TABLES[name])
    how = {"renormalize": renormalize, "length_penalty": 0.7, "count_eos": True}
    found = beam_search(scores, PROMPTS, dev, beams=20, **how)
    for row, prompt in enumerate(PROMPTS):
        want = by_itself(dev, prompt, 20, max_tokens=3, **how)
        assert torch.equal(found.tokens[row], want.tokens[0])
        assert torch.equal(found.valid[row], want.valid[0])
        assert torch.allclose(found.scores[row], want.scores[0], atol=1e-5, rtol=0)
        assert torch.equal(found.states[row], want.states[0])


def test_a_search_begins_behind_codes_that_are_chosen_and_has_a_filter_for_each_prompt():
    matrix = TABLES["matrix"]
    dev = torch_ops.to_device(matrix)
    first = torch.tensor([[SIDS[7, 0]], [SIDS[900, 0]]])
    found = beam_search(scores, PROMPTS, continue_from(dev, first, ops=torch_ops), beams=4)
    for row, prompt in enumerate(PROMPTS):
        want = by_itself(continue_from(dev, first[row : row + 1], ops=torch_ops), prompt, 4, max_tokens=2)
        assert torch.equal(found.tokens[row], want.tokens[0])
    filters = [matrix.filter(np.arange(len(SIDS)) % 5 == row) for row in range(2)]
    found = beam_search(scores, PROMPTS, torch_ops.with_filters(dev, filters), beams=4)
    assert all(filters[row].contains(found.tokens[row]).all() for row in range(2))


def test_fewer_sequences_than_beams_and_a_table_without_a_longest():
    few = torch_ops.to_device(mw.compile_sids(SIDS[:3], vocab_size=V))
    assert beam_search(scores, PROMPTS, few, beams=8).valid.sum(dim=1).tolist() == [3, 3]
    one = torch_ops.to_device(mw.compile_sequences([[7]], vocab_size=8))
    found = beam_search(lambda texts, tokens: [[0.0] for _ in tokens], PROMPTS, one, beams=1)
    assert found.scores.tolist() == [[0.0], [0.0]]  # all of the softmax is allowed
    vocab = mw.Vocabulary.from_bytes([b"", b"a"], eos=0)
    with pytest.raises(ValueError, match="max_tokens must be given"):
        beam_search(scores, PROMPTS, torch_ops.to_device(mw.compile_regex("a+", vocab)), beams=1)


# ------------------------------------------------------------------------------------------------------ in-process


class Engine:
    """vLLM's `LLM`, in which the token that is drawn comes first, and rows are filled up."""

    def __init__(self, mode: str = "raw_logprobs") -> None:
        config = types.SimpleNamespace(logprobs_mode=mode)
        self.llm_engine = types.SimpleNamespace(vllm_config=types.SimpleNamespace(model_config=config))

    def generate(self, prompts, params, use_tqdm):
        out = []
        for prompt, asked in zip(prompts, params, strict=True):
            assert (asked.max_tokens, asked.temperature, asked.detokenize, use_tqdm) == (1, 0.0, False, False)
            (found,) = scores([prompt["prompt_token_ids"]], [asked.logprob_token_ids])
            given = types.SimpleNamespace(
                token_ids=[3, *asked.logprob_token_ids, 0, 0], logprobs=[-0.5, *found, -np.inf, -np.inf]
            )
            out.append(types.SimpleNamespace(outputs=[types.SimpleNamespace(logprobs=given)]))
        return out


def test_an_engine_in_this_process_is_asked_for_the_tokens_of_each_beam(monkeypatch):
    fakes.put(monkeypatch, "vllm", SamplingParams=types.SimpleNamespace)
    dev = torch_ops.to_device(TABLES["matrix"])
    found = beam_search(engine_scores(Engine()), PROMPTS, dev, beams=6)
    assert torch.equal(found.tokens[0], by_itself(dev, PROMPTS[0], 6, max_tokens=3).tokens[0])
    with pytest.raises(mw.errors.ConstraintError, match="logprobs_mode must be raw_logprobs"):
        engine_scores(Engine("processed_logits"))
    swapped = types.SimpleNamespace(token_ids=[3, 5, 4], logprobs=[-1.0, -2.0, -3.0])
    output = types.SimpleNamespace(outputs=[types.SimpleNamespace(logprobs=swapped)])
    monkeypatch.setattr(Engine, "generate", lambda *given, **how: [output])
    with pytest.raises(RuntimeError, match="was asked for"):
        engine_scores(Engine())([[1]], [[4, 5]])


# ------------------------------------------------------------------------------------------------------- over HTTP


class Completions(http.server.BaseHTTPRequestHandler):
    """vLLM's completions, for one prompt of tokens."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] != "tiny" or self.path != "/v1/completions" or self.headers.get("X-Key") != "k":
            self.answer(404, {"error": "no such model"})
            return
        assert (body["max_tokens"], body["logprobs"]) == (1, len(body["logprob_token_ids"]))
        (found,) = scores([body["prompt"]], [body["logprob_token_ids"]])
        named = {f"token_id:{token}": value for token, value in zip(body["logprob_token_ids"], found, strict=True)}
        asked_for = body["prompt"][0]
        if asked_for == 13:
            named["token_id:0"] = -9999.0
        elif asked_for == 14:
            del named["token_id:0"]
        elif asked_for == 19:  # another protocol's answer
            self.wfile.write(b"220 ready\r\n\r\n")
            return
        elif asked_for == 20:
            time.sleep(0.6)
        odd = {
            15: {"choices": [{"logprobs": None}]}, 16: {"choices": [{"logprobs": {"top_logprobs": [None]}}]},
            17: {"choices": []}, 18: {"choices": [{"logprobs": {"top_logprobs": [dict.fromkeys(named)]}}]},
        }  # fmt: skip
        self.answer(200, odd.get(asked_for, {"choices": [{"logprobs": {"top_logprobs": [named]}}]}))

    def answer(self, code: int, body: dict) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Completions) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()
        thread.join()


def test_a_server_is_asked_over_http_and_its_failures_are_told(server):
    dev = torch_ops.to_device(TABLES["matrix"])
    asked = server_scores(server, "tiny", headers={"X-Key": "k"}, connections=4)
    found = beam_search(asked, PROMPTS, dev, beams=6)
    assert torch.equal(found.tokens[1], by_itself(dev, PROMPTS[1], 6, max_tokens=3).tokens[0])
    with pytest.raises(ConnectionError, match="answered 404"):
        server_scores(server, "other")([[1]], [[2]])
    (values,) = asked([[13]], [[0, 2]])
    assert values == [-np.inf, scores([[13]], [[2]])[0][0]]
    with pytest.raises(ConnectionError, match="no log-probability of token 0"):
        asked([[14]], [[0, 2]])
    for wrong in (15, 16, 17, 18, 19):
        with pytest.raises(ConnectionError, match="gave no log-probabilities"):
            asked([[wrong]], [[2]])
    with pytest.raises(ConnectionError, match="timed out"):
        server_scores(server, "tiny", headers={"X-Key": "k"}, timeout=0.1)([[20]], [[2]])
    with pytest.raises(ConnectionError, match="gave no log-probabilities"):
        server_scores("http://127.0.0.1:9", "tiny")([[1]], [[2]])
