"""Bitmasks of a batch as torch tensors, and logits masked by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ..bitmask import allocate, apply

bitmask_dtype = torch.int32
Backend = Literal["auto", "cpu", "cuda", "triton", "torch_compile", "torch_native"]


def allocate_token_bitmask(batch_size: int, vocab_size: int) -> Tensor:
    """Return bitmasks in which everything is allowed: int32 (batch_size, ceil(V / 32)), in the host's memory."""
    return allocate(batch_size, vocab_size)


def reset_token_bitmask(bitmask: Tensor) -> None:
    """Allow everything."""
    bitmask.fill_(-1)


def apply_token_bitmask_inplace(
    logits: Tensor,
    bitmask: Tensor,
    *,
    vocab_size: int | None = None,
    indices: Sequence[int] | Tensor | None = None,
    backend: Backend = "auto",
) -> None:
    """Write -inf over each logit (n, V') that bitmask (n, words) does not allow.

    Columns beyond vocab_size, or beyond the bitmask, are not allowed either. indices: the rows to mask, of both; all if
    None, and then both have as many rows. backend: taken, and not needed: the same operations run on all devices.
    Raises ValueError for other rows, and for a backend that XGrammar has not.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, not {backend!r}")
    logits, bitmask = (each[None] if each.ndim == 1 else each for each in (logits, bitmask))
    chosen = logits
    if indices is not None:
        at = torch.as_tensor(indices, dtype=torch.int64)
        chosen, bitmask = logits[at.to(logits.device)], bitmask[at.to(bitmask.device)]
    apply(chosen, bitmask)
    if vocab_size is not None:
        chosen[:, vocab_size:] = float("-inf")
    if indices is not None:
        logits[at.to(logits.device)] = chosen
