"""Launching Triton kernels: the one place where they are handed to a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a Triton kernel on the device of its first argument that is a tensor, in that device's current stream.

    A kernel goes to the current device, not to that of its arguments. grid: how many programs along each axis.
    """
    tensor = next(x for x in arguments if isinstance(x, Tensor))
    with torch.cuda.device_of(tensor):  # type: ignore[no-untyped-call]
        kernel[grid](*arguments, **constants)
