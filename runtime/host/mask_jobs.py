"""Orders that have a team compose the masks of a nested table, and do something with each while it is in cache.

After a model's pass little of what it takes to hand on arrays is in cache, so only addresses are handed on.
"""

from __future__ import annotations

from array import array
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...kernels.arrays import Int
from ...kernels.compiled import NativeLoop, kernel, native_loop
from ...kernels.limits import UNREACHABLE
from ...kernels.pointers import address_of, array_at
from ...table.walk import stray_row
from .budget import Budget, budget_of
from .logits import COUNT, END_OF_LOGITS, Logits, apply_to
from .nested_masks import mask_row
from .table_pointers import (
    ARRAY,
    ROWS,
    SLOTS,
    SYMBOLS,
    WORDS,
    HostTable,
    array_of,
    header_at,
    leaves_of,
    pointers_of,
)
from .thread_pool import Team, next_row

_NODE, _STACK, _HEIGHT, _ROOM, _HEADER, _STRAY, _BUDGET = range(END_OF_LOGITS, END_OF_LOGITS + 7)
LONGEST = _BUDGET + 10  # of an order; one without `room` ends before the budget

_Order = NDArray[np.int64]


def apply_nested(
    table: HostTable, state: tuple[int, int, int], room: int, logits: Logits, threads: int, team: Team
) -> int:
    """Mask logits by the configurations of their rows, in place: `compose_nested` and `apply` of a row at a time.

    The mask is then still in cache, and only addresses are handed on: after a model's pass little of what handing on
    arrays takes is. state: the addresses of node (n,) int64, stack (n, slots) int32 and height (n,) int32. room: that
    of the tokens that may still be written (n,) int64, or 0. Returns a row that stands nowhere in the table, where
    nothing is written, or -1.
    """
    order = order_of(table, state, room, logits)
    team(_part_of(table.arrays.edges.token.dtype).address, order.buffer_info()[0], threads)
    return order[_STRAY]


def order_of(table: HostTable, state: tuple[int, int, int], room: int, logits: Logits) -> array[int]:
    """Return what threads are told that compose masks; see `apply_nested`."""
    order = array("q", (0, *logits, *state, room, pointers_of(table).address, -1))
    if room:
        budget = budget_of(table)
        order.extend(number for each in budget for number in (address_of(each), len(each)))
        order.extend(budget[1].shape[1:])
    return order


@lru_cache(maxsize=3)
def _part_of(kind: object) -> NativeLoop:
    """Return the native function that a team's threads call: see `apply_nested`. kind: the type of tokens."""
    return native_loop(_compose_rows, kind)


@kernel
def _compose_rows(address: int, kind: type[np.generic]) -> None:
    """Take one row after the other that no other thread has taken, compose its mask and apply it."""
    order = array_at(address, LONGEST, np.int64)
    stray = stray_in(order)
    if stray >= 0:  # all threads look at all rows, so that none begins where one of them is none of the table's
        order[_STRAY] = stray
        return
    words, symbols = sizes(order)
    mask, alive = np.empty(words, np.uint32), np.zeros(symbols, np.uint8)
    while True:
        i = next_row(order.ctypes.data)
        if i >= order[COUNT]:
            return
        compose_row(order, kind, i, mask, alive)
        apply_to(mask, order, i)


@kernel
def sizes(order: _Order) -> tuple[int, int]:
    """Return how many words the masks of an order have, and how many symbols its table."""
    header = header_at(order[_HEADER])
    return header[WORDS], header[SYMBOLS]


@kernel
def stray_in(order: _Order) -> Int:
    """Return a row that stands nowhere in the table of an order of `apply_nested`, or -1."""
    rows, header = order[COUNT], header_at(order[_HEADER])
    node, height = array_at(order[_NODE], rows, np.int64), array_at(order[_HEIGHT], rows, np.int32)
    stack = array_at(order[_STACK], rows * header[SLOTS], np.int32).reshape((rows, header[SLOTS]))
    return stray_row(header[ROWS], leaves_of(header).size, node, stack, height)


@kernel
def compose_row(
    order: _Order, kind: type[np.generic], i: int, mask: NDArray[np.uint32], alive: NDArray[np.uint8]
) -> None:
    """Write the mask of row i of an order; alive: room for all symbols, cleared. kind: the type of tokens."""
    rows, header = order[COUNT], header_at(order[_HEADER])
    node, height = array_at(order[_NODE], rows, np.int64), array_at(order[_HEIGHT], rows, np.int32)
    stack = array_at(order[_STACK], rows * header[SLOTS], np.int32).reshape((rows, header[SLOTS]))
    room = array_at(order[_ROOM], rows if order[_ROOM] else 0, np.int64)
    mask_row(
        header, array_of(header, ARRAY.edges.token, kind), _budget_in(order), node[i], stack[i, : height[i]],
        room[i] if room.size else np.int64(UNREACHABLE), mask, alive,
    )  # fmt: skip


@kernel
def _budget_in(order: _Order) -> Budget:
    """Return the `Budget` of an order: addresses and lengths of the arrays, and how many ends; empty without."""
    if not order[_ROOM]:
        order = np.zeros(LONGEST, np.int64)
    at, ends, others = order[_BUDGET:], max(order[_BUDGET + 8], 1), max(order[_BUDGET + 9], 1)
    return Budget(
        array_at(at[0], at[1] * ends, np.int64).reshape((at[1], ends)),
        array_at(at[2], at[3] * ends * others, np.int64).reshape((at[3], ends, others)),
        array_at(at[4], at[5] * ends, np.int64).reshape((at[5], ends)),
        array_at(at[6], at[7] * ends * others, np.int64).reshape((at[7], ends, others)),
    )
