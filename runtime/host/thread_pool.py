"""Threads that share the rows of a batch.

Kernels take names from this file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING

from ...kernels.compiled import intrinsic

if TYPE_CHECKING:
    from ...kernels.compiled import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value

Team = Callable[[int, int, int], None]
"""team(function, argument, threads): call the native function at an address with an argument in so many threads."""

PARALLEL = 1 << 19  # logits from which on threads pay for being woken


def pays(rows: int, columns: int, threads: int) -> bool:
    """Return whether several threads mask logits (rows, columns) sooner than one."""
    return min(threads, rows) > 1 and rows * columns >= PARALLEL


def own_threads(workers: int) -> ThreadPoolExecutor:
    """Return threads of this process, which are kept."""
    return _pool(workers, os.getpid())


@lru_cache(maxsize=4)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Return the threads of a process: one that was forked has none of its parent's."""
    return ThreadPoolExecutor(workers, thread_name_prefix="maskwright")


@intrinsic
def next_row(typing: TypingContext, address: NumbaType) -> Intrinsic:
    """Return the number at an address and add one to it, whatever other threads do."""
    from numba import types

    def generate(context: Context, builder: Builder, signature: Signature, arguments: Sequence[Value]) -> Value:
        number = arguments[0].type
        at = builder.inttoptr(arguments[0], number.as_pointer())
        return builder.atomic_rmw("add", at, number(1), "monotonic")

    return types.int64(types.int64), generate
