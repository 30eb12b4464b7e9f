"""What beam search asks a model that vLLM serves: how likely tokens are to come next, in-process or over HTTP."""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ...errors import ConstraintError

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.logprobs import FlatLogprobs


MOST_TOKENS = 128
"""The most tokens that one request of vLLM may ask log-probabilities of; a beam that has more takes several."""

Scores = Callable[[list[list[int]], list[list[int]]], list[Sequence[float]]]
"""scores(texts, tokens) -> for each text, the log-probability of each of its tokens to come next."""

_LEAST = -9999.0  # how vLLM writes -inf in JSON


class ServerError(ConnectionError):
    """A server's answer is an error; `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def engine_scores(llm: LLM) -> Scores:
    """Return what asks a `vllm.LLM` in this process.

    Raises ConstraintError if it was told to return logits in place of log-probabilities.
    """
    from vllm import SamplingParams

    mode = llm.llm_engine.vllm_config.model_config.logprobs_mode
    if not mode.endswith("_logprobs"):
        raise ConstraintError(
            f"must be raw_logprobs or processed_logprobs for beam search, not {mode}", argument="logprobs_mode"
        )

    def scores(texts: list[list[int]], tokens: list[list[int]]) -> list[Sequence[float]]:
        params = [
            SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=asked, flat_logprobs=True, detokenize=False)
            for asked in tokens
        ]
        found = llm.generate([{"prompt_token_ids": text} for text in texts], params, use_tqdm=False)
        return [_asked_for(each.outputs[0].logprobs, asked) for each, asked in zip(found, tokens, strict=True)]

    return scores


def _asked_for(given: FlatLogprobs, asked: list[int]) -> Sequence[float]:
    """Return the log-probabilities that were asked for: vLLM puts the drawn token's first, and fills rows up behind."""
    if list(given.token_ids[1 : 1 + len(asked)]) != asked:
        raise RuntimeError(
            f"vLLM returned log-probabilities of {given.token_ids[:9]}.., and was asked for {asked[:8]}.."
        )
    values: Sequence[float] = given.logprobs[1 : 1 + len(asked)]
    return values


def server_scores(
    url: str, model: str, *, headers: Mapping[str, str] | None = None, connections: int = 64, timeout: float = 600.0
) -> Scores:
    """Return what asks a vLLM server by its completions, one HTTP request a text.

    url: where the server is, as "http://localhost:8000". model: the name that it serves. headers: of each request,
    such as one with a key. connections: how many requests run at once. timeout: seconds for which a server may
    be silent.

    Calls raise ConnectionError where there is no answer, or one without what was asked for; ServerError for an error.
    """
    address = url.rstrip("/") + "/v1/completions"
    known = {"Content-Type": "application/json", **(headers or {})}

    def ask(text: list[int], tokens: list[int]) -> Sequence[float]:
        body = {
            "model": model, "prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": len(tokens),
            "logprob_token_ids": tokens, "return_tokens_as_token_ids": True,
        }  # fmt: skip
        request = urllib.request.Request(address, json.dumps(body).encode(), known)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                (given,) = json.load(answer)["choices"][0]["logprobs"]["top_logprobs"]
            found = {name: float(value) for name, value in given.items()}
        except urllib.error.HTTPError as error:
            raise ServerError(f"{address} answered {error.code}: {_text_of(error)}", error.code) from None
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConnectionError(f"{address} gave no log-probabilities: {error!r}") from error
        values = []
        for token in tokens:
            value = found.get(f"token_id:{token}")
            if value is None:
                raise ConnectionError(f"{address} gave no log-probability of token {token}, which it was asked for")
            values.append(value if value > _LEAST else -math.inf)
        return values

    def scores(texts: list[list[int]], tokens: list[list[int]]) -> list[Sequence[float]]:
        with ThreadPoolExecutor(min(connections, max(1, len(texts)))) as pool:
            return list(pool.map(ask, texts, tokens))

    return scores


def _text_of(error: urllib.error.HTTPError) -> str:
    """Return how the body of an answer begins, as far as it can be read."""
    try:
        return error.read(400).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return "its body cannot be read"
