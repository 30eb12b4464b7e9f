"""Beam search over a catalogue with a model that vLLM serves: the exact one of `runtime.decode`.

vLLM's own beam search takes the best 2 W tokens of each beam before any constraint is looked at. Here vLLM is asked for
the log-probabilities of the very tokens that each beam may go on with, by its field `logprob_token_ids`, and the best W
of all are chosen from those. What is before the cut is the full softmax of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...runtime import torch_ops
from ...runtime.decode import Beams
from ...runtime.decode import beam_search as search
from ...runtime.decode.continuation import start_of, table_of
from ...runtime.device.backend import Placed
from .scores import MOST_TOKENS, Scores


def beam_search(
    scores: Scores,
    prompts: Sequence[Sequence[int]],
    dev: Placed,
    *,
    beams: int,
    max_tokens: int | None = None,
    length_penalty: float = 0.0,
    renormalize: bool = False,
    count_eos: bool = False,
) -> Beams:
    """Return the `beams` best sequences of a table after each prompt, as `runtime.decode.beam_search` does.

    scores: `engine_scores(llm)` or `server_scores(url, model)`. prompts: token ids of B texts. dev: from
    `torch_ops.to_device(table)` in the host's memory, with filters or not. max_tokens: the most tokens of a result, EOS
    not counted; None for the table's longest. Other arguments as there.

    A step is one request a beam, or one for every 128 tokens that the beam may go on with. Raises ValueError if nothing
    is complete within max_tokens, or no length is known.
    """
    prompts = [list(prompt) for prompt in prompts]
    table, depth = table_of(dev)
    if max_tokens is None:
        if table.max_length is None:
            raise ValueError("max_tokens must be given: sequences of this table may be of any length")
        max_tokens = table.max_length - depth
    owners = [prompt for prompt in prompts for _ in range(beams)]
    start = start_of(torch_ops, dev, len(prompts)).state
    rows = torch.arange(len(owners)) // beams

    def step(tokens: Tensor, cache: dict[str, Any], t: int) -> tuple[Tensor, dict[str, Any]]:
        state, text = type(start)(*cache["state"]), cache["text"]
        if t:
            state = torch_ops.advance(table, state, tokens)
            text = torch.cat([text, tokens[:, None]], dim=1)
        allowed = _allowed(table, state)
        if t == 0:  # all beams of a prompt are one still, and the search reads the first of them
            allowed[np.arange(len(owners)) % beams != 0] = False
        written = [prompt + own for prompt, own in zip(owners, text.tolist(), strict=True)]
        logits = _log_probs(scores, written, allowed)
        return torch.from_numpy(logits), {"state": list(state), "text": text}

    cache = {
        "state": [part.index_select(0, rows) for part in start],
        "text": torch.zeros(len(owners), 0, dtype=torch.int64),
    }
    return search(
        step, cache, dev, ops=torch_ops, batch=len(prompts), beams=beams, max_tokens=max_tokens,
        length_penalty=length_penalty, renormalize=renormalize, count_eos=count_eos,
    )  # fmt: skip


def _allowed(table: Placed, state: Any) -> NDArray[np.bool_]:
    """Return which tokens states (n,) allow, EOS among them: (n, V)."""
    words = torch_ops.bitmask(table, state).numpy()
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=table.vocab_size).astype(np.bool_)


def _log_probs(scores: Scores, texts: list[list[int]], allowed: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return log-probabilities (n, V) of texts: those of allowed tokens, and in one other column all that is left.

    A softmax over a row is then that of the whole vocabulary.
    """
    asked, parts = [], []
    for row, tokens in enumerate(map(np.flatnonzero, allowed)):
        for first in range(0, tokens.size, MOST_TOKENS):
            asked.append(row)
            parts.append(tokens[first : first + MOST_TOKENS])
    out = np.full(allowed.shape, -np.inf, np.float32)
    found = scores([texts[row] for row in asked], [part.tolist() for part in parts])
    for row, part, values in zip(asked, parts, found, strict=True):
        out[row, part] = values
    left = 1 - np.exp(out.astype(np.float64)).sum(axis=1)
    other = allowed.argmin(axis=1)  # the first column that is not allowed, if any is
    has_rest = ~allowed.all(axis=1) & (left > 0)
    out[has_rest, other[has_rest]] = np.log(left[has_rest])
    return out
