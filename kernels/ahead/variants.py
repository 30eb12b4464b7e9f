"""The kinds of processors that a library has code for."""

from __future__ import annotations

import platform
from typing import NamedTuple


class Variant(NamedTuple):
    """One kind of processor."""

    name: str  # as `glue.c` knows it
    cpu: str  # as LLVM knows it
    needs: tuple[str, ...]  # features of the processor, as LLVM names them
    stores_by_masks: bool = False  # see `kernels/processor.py`


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
