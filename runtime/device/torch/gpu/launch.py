"""Launching Triton kernels: the one place where they are handed to a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Tensor | int, **constants: Any) -> None:
    """Run a kernel on the device of its first argument, a tensor; grid: its programs, at most three numbers.

    constants: the kernel's compile-time arguments, and Triton's own such as `num_warps`.
    """
    # kernels go to the current device, not to that of their arguments
    with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
        kernel[grid](*arguments, **constants)
