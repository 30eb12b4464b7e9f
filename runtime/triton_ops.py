"""Applying packed masks to logits on a CUDA device in one Triton kernel, where Triton is installed."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

_COLUMNS = 4096  # logits per program: 128 words of a mask


def usable(logits: Tensor) -> bool:
    """Return whether `apply` can take these logits: on CUDA with Triton there, contiguous rows, of a float type it knows."""
    return (
        (logits.is_cuda or _interpreted())
        and type(logits) is Tensor
        and logits.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and logits.dim() == 2
        and logits.stride(1) == 1
        and not torch.compiler.is_compiling()
        and importlib.util.find_spec("triton") is not None
    )


def apply(masks: Tensor, logits: Tensor, out: Tensor) -> Tensor:
    """Write logits (B, V') to out (B, V'), which may be the same, with -inf where masks (B, words) has no bit set."""
    batch, columns = logits.shape
    if batch and columns:
        grid = (batch, -(-columns // _COLUMNS))
        _kernel()[grid](
            masks, logits, out, columns, masks.shape[1], masks.stride(0), logits.stride(0), out.stride(0),
            COLUMNS=_COLUMNS, SAME=out.data_ptr() == logits.data_ptr(),
        )  # fmt: skip
    return out


def _interpreted() -> bool:
    """Return whether Triton runs in its interpreter, which takes tensors of the host."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _kernel() -> Any:
    """Return the kernel; made when first asked for, as Triton is imported only then."""
    global _made
    if _made is None:
        import triton
        import triton.language as tl

        @triton.jit  # type: ignore[untyped-decorator]
        def apply_masks(
            masks, logits, out, columns, words, mask_stride, logit_stride, out_stride,
            COLUMNS: tl.constexpr, SAME: tl.constexpr,
        ):  # fmt: skip
            row = tl.program_id(0).to(tl.int64)
            column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
            word = column // 32
            bits = tl.load(masks + row * mask_stride + word, mask=word < words, other=0)
            allowed = ((bits >> (column % 32)) & 1) != 0
            inside = column < columns
            lowest = tl.full([COLUMNS], float("-inf"), out.dtype.element_ty)
            if SAME:
                tl.store(out + row * out_stride + column, lowest, mask=inside & ~allowed)
            else:
                x = tl.load(logits + row * logit_stride + column, mask=inside & allowed, other=float("-inf"))
                tl.store(out + row * out_stride + column, x, mask=inside)

        _made = apply_masks
    return _made


_made: Any = None
