"""Bitmasks of a batch as torch tensors: rows of int32 words, and logits masked by them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor


def allocate(rows: int, vocab_size: int) -> Tensor:
    """Return bitmasks in the host's memory in which everything is allowed: int32 (rows, ceil(V / 32))."""
    return torch.full((rows, -(-vocab_size // 32)), -1, dtype=torch.int32)


def set_tokens(row: Tensor, tokens: Iterable[int], allowed: bool) -> None:
    """Allow or deny tokens in the bitmask of one row (words,) in the host's memory, in place."""
    words = row.numpy().view(np.uint32)
    for token in tokens:
        bit = np.uint32(1 << token % 32)
        words[token // 32] = words[token // 32] | bit if allowed else words[token // 32] & ~bit


def apply(logits: Tensor, bitmask: Tensor) -> None:
    """Write -inf over each logit (n, V') whose bit in bitmask (n, words) is not set, in place, on any device.

    Columns beyond the words count as not set. Raises ValueError for another number of rows than logits have.
    """
    if logits.ndim != 2 or bitmask.ndim != 2 or len(logits) != len(bitmask):
        raise ValueError(
            f"logits {tuple(logits.shape)} and bitmask {tuple(bitmask.shape)} must have two axes and as many rows"
        )
    columns, bits = logits.shape[1], 32 * bitmask.shape[1]
    at = torch.arange(min(columns, bits), device=logits.device)
    words = bitmask.to(logits.device)
    allowed = words[:, at >> 5] >> (at & 31).to(torch.int32) & 1
    logits[:, : at.numel()].masked_fill_(allowed == 0, float("-inf"))
    logits[:, at.numel() :] = float("-inf")
