"""What the processor can do, as kernels ask for it."""

from __future__ import annotations

from typing import Any

from .compiled import intrinsic

FEATURE = "maskwright_stores_by_masks"
"""Name of a number in a library: 1 in code for processors that store by masks, which others do without."""


@intrinsic
def _stores_by_masks(typing: Any) -> Any:
    """Return whether the processor stores vectors of 8 and 16 bits by masks: it has AVX-512 BW."""
    from llvmlite import binding, ir
    from numba import types

    from . import jit

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(1)
        if not jit.ahead:
            return number(int(binding.get_host_cpu_features().get("avx512bw", False)))
        known = builder.module.globals.get(FEATURE)
        return builder.load(known or ir.GlobalVariable(builder.module, number, FEATURE))

    return types.boolean(), generate


stores_by_masks: Any = _stores_by_masks  # which kernels call without its first argument
