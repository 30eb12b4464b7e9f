"""Log-probabilities of whole sequences, with derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import likelihood
from ..backend import Placed
from ..device_table import AnyState
from . import arrays
from .masks import allowed_tokens, mask_logits
from .states import advance, start


def log_probs(
    dev: Placed,
    logits: Tensor,
    tokens: Tensor,
    state: AnyState | None = None,
    *,
    remaining: Tensor | None = None,
    renormalise: bool = True,
    by_position: bool = False,
) -> Tensor:
    """Return the log-probability of each sequence (B,), as `numpy_ops.log_probs` says; autograd derives it by logits.

    Beside the logits it takes one copy of them, or where a state allows at most a quarter of the vocabulary, and that
    is known before, one of these alone.
    """
    by_token: Tensor = likelihood.log_probs(arrays, _STEPS, dev, logits, tokens, state, remaining, renormalise)
    return by_token if by_position else by_token.sum(-1)


def _walk(dev: Placed, state: AnyState, tokens: Tensor) -> tuple[AnyState, Tensor]:
    """Return states before all tokens (B * T,) and nodes after them (B, T); a negative token leaves a state."""
    before, after = [], []
    for token in tokens.unbind(1):
        before.append(state)
        reached = advance(dev, state, token)
        stays = token < 0
        state = type(state)(
            *(
                torch.where(stays.view(-1, *(1 for _ in new.shape[1:])), old, new)
                for old, new in zip(state, reached, strict=True)
            )
        )
        after.append(state.node)
    stacked = (torch.stack(parts, 1).flatten(0, 1) for parts in zip(*before, strict=True))
    return type(state)(*stacked), torch.stack(after, 1)


_STEPS = likelihood.Steps(start, _walk, allowed_tokens, mask_logits)
