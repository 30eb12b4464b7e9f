"""Applying packed masks to logits in one Triton launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import launch

COLUMNS_AT_ONCE = 4096  # logits per program: 128 words of a mask


def apply(masks: Tensor, logits: Tensor, out: Tensor) -> Tensor:
    """Write logits (B, V') to out (B, V'), which may be the same, with -inf where masks (B, words) has no bit set."""
    (batch, columns), masks = logits.shape, masks.contiguous()
    if batch and columns:
        grid = (batch, -(-columns // COLUMNS_AT_ONCE))
        launch(
            apply_masks, grid, masks, logits, out, columns, masks.shape[1], masks.stride(0), logits.stride(0),
            out.stride(0), COLUMNS=COLUMNS_AT_ONCE, SAME=out.data_ptr() == logits.data_ptr(),
        )  # fmt: skip
    return out


# Triton evaluates annotations inside its kernels and refuses names such as Any: only constants carry one.
@triton.jit  # type: ignore[untyped-decorator]
def apply_masks(  # type: ignore[no-untyped-def]
    masks,
    logits,
    out,
    columns,
    words,
    mask_stride,
    logit_stride,
    out_stride,
    COLUMNS: tl.constexpr,
    SAME: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    word = column // 32
    bits = tl.load(masks + row * mask_stride + word, mask=word < words, other=0)
    allowed = ((bits >> (column % 32)) & 1) != 0
    inside = column < columns
    if SAME:  # what is allowed need not even be read
        lowest = tl.full([COLUMNS], float("-inf"), out.dtype.element_ty)
        tl.store(out + row * out_stride + column, lowest, mask=inside & ~allowed)
    else:
        x = tl.load(logits + row * logit_stride + column, mask=inside & allowed, other=float("-inf"))
        tl.store(out + row * out_stride + column, x, mask=inside)
