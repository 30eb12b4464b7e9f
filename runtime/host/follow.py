"""Tokens of a batch followed through a nested table, with addresses alone to hand on."""

from __future__ import annotations

from array import array
from functools import lru_cache

import numpy as np

from ...kernels.compiled import NativeLoop, kernel, native_loop
from ...kernels.pointers import array_at
from ...table.walk import Ends
from ...table.walk import follow as follow_rows
from .table_pointers import (
    CODE_NEED,
    DEPTH,
    EOS,
    SLOTS,
    VOCAB_SIZE,
    HostTable,
    array_of,
    arrays_of,
    header_at,
    pointers_of,
)
from .thread_pool import Team, next_row

FEW_ROWS = 16  # whose tokens one thread has followed before another is awake
_ROWS_AT_ONCE = 8  # whose tokens a thread follows before it looks for more
_LENGTH = 11  # of an order


def follow(
    table: HostTable,
    tokens: int,
    state: tuple[int, int, int],
    out: tuple[int, int, int],
    rows: int,
    threads: int,
    team: Team | None,
) -> int:
    """Write what `TransitionTable.follow` returns of one token a row, with addresses alone to hand on.

    tokens: (n,) int64. state, out: node (n,) int64, stack (n, slots) int32 and height (n,) int32, at addresses, which
    do not overlap. Returns a row that stands nowhere in the table, after which nothing in `out` means anything, or -1.
    """
    order = array("q", (0, rows, tokens, *state, *out, pointers_of(table).address, -1))
    part = _part_of(table.arrays.edges.token.dtype)
    if team is None or rows < FEW_ROWS:
        part(order.buffer_info()[0])
    else:
        team(part.address, order.buffer_info()[0], threads)
    return order[-1]


@lru_cache(maxsize=3)
def _part_of(kind: object) -> NativeLoop:
    """Return the native function that a team's threads call: see `follow`. kind: the type of tokens."""
    return native_loop(_follow_each, kind)


@kernel
def _follow_each(order_at: int, kind: type[np.generic]) -> None:
    """Take some rows after the others that no other thread has taken, and follow their tokens."""
    order = array_at(order_at, _LENGTH, np.int64)
    _, rows, tokens_at, node_at, stack_at, height_at, to_node, to_stack, to_height, address, _ = order
    header = header_at(address)
    arrays, slots = arrays_of(header, kind), header[SLOTS]
    ends = Ends(header[VOCAB_SIZE], header[EOS], header[DEPTH])
    while True:
        i = next_row(order.ctypes.data) * _ROWS_AT_ONCE
        if i >= rows:
            return
        n = min(_ROWS_AT_ONCE, rows - i)
        node, stack = array_at(to_node + 8 * i, n, np.int64), array_at(to_stack + 4 * slots * i, n * slots, np.int32)
        height = array_at(to_height + 4 * i, n, np.int32)
        node[:], height[:] = array_at(node_at + 8 * i, n, np.int64), array_at(height_at + 4 * i, n, np.int32)
        stack[:] = array_at(stack_at + 4 * slots * i, n * slots, np.int32)
        stray = follow_rows(
            arrays, ends, array_of(header, CODE_NEED, np.int32),
            array_at(tokens_at + 8 * i, n, np.int64).reshape((n, 1)), node, stack.reshape((n, slots)), height,
        )  # fmt: skip
        if stray >= 0:
            order[-1] = i + stray
