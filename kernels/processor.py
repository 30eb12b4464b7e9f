"""What processors can do: the kinds that a library has code for, and what kernels ask of theirs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .compiled import intrinsic

if TYPE_CHECKING:
    from .compiled import Builder, Context, Intrinsic, Signature, TypingContext, Value


class Variant(NamedTuple):
    """One kind of processor."""

    name: str  # as `glue.c` knows it
    cpu: str  # as LLVM knows it
    needs: tuple[str, ...]  # features of the processor, as LLVM names them
    stores_by_masks: bool = False  # see the function of this name


_V4 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_OF = {
    "x86_64": (
        Variant("v3", "x86-64-v3", ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")),
        Variant("v4", "x86-64-v4", _V4, stores_by_masks=True),
    ),
    "aarch64": (Variant("base", "generic", ()),),
}

VARIANTS: tuple[Variant, ...] = _OF.get(platform.machine(), ())
"""Those of this machine's architecture, the plainest first; none if no library can be made for it."""


def fitting() -> tuple[Variant, ...]:
    """Return the best of them for this processor alone; none if it can run none of them."""
    from llvmlite.binding import get_host_cpu_features

    has = get_host_cpu_features()
    return tuple(each for each in VARIANTS if all(has.get(need, False) for need in each.needs))[-1:]


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
