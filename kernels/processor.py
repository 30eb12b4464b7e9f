"""What the processor can do, as kernels ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .compiled import intrinsic

if TYPE_CHECKING:
    from .compiled import Builder, Context, Intrinsic, Signature, TypingContext, Value

FEATURE = "maskwright_stores_by_masks"
"""Name of a number in a library: 1 in code for processors that store by masks, which others do without."""


@intrinsic
def stores_by_masks(typing: TypingContext) -> Intrinsic:
    """Return whether the processor stores vectors of 8 and 16 bits by masks: it has AVX-512 BW."""
    from llvmlite import binding, ir
    from numba import types

    from . import jit

    def generate(context: Context, builder: Builder, signature: Signature, arguments: Sequence[Value]) -> Value:
        number = ir.IntType(1)
        if not jit.ahead:
            return number(int(binding.get_host_cpu_features().get("avx512bw", False)))
        known = builder.module.globals.get(FEATURE)
        return builder.load(known or ir.GlobalVariable(builder.module, number, FEATURE))

    return types.boolean(), generate
