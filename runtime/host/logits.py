"""Masks applied to logits where they lie in memory.

Only the logits that a mask forbids are touched, so that a row which allows almost everything costs almost nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.arrays import Int64Array, IntArray
from ...kernels.compiled import NativeLoop, intrinsic, kernel, native_loop
from ...kernels.pointers import address_of, array_at
from ...kernels.processor import stores_by_masks
from .thread_pool import Team, next_row, own_threads, pays

if TYPE_CHECKING:
    from ...kernels.compiled import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value

_BLOCK = 16  # words of a mask that are looked at together
_LINE = 64  # bytes of a cache line


class Logits(NamedTuple):
    """Where logits (n, V') lie, and what is written over those that are not allowed."""

    address: int
    rows: int
    columns: int
    ahead: int  # bytes from one row to the next
    size: int  # bytes of one
    lowest: int  # the bits to write


# An order tells the threads of a team what to do, in one array of numbers: how many rows are taken, then `Logits`, then
# what depends on the order: here the address of masks and the number of their words.
AT, COUNT, COLUMNS, AHEAD, _ITEM, _LOWEST, END_OF_LOGITS = range(1, 8)
_MASKS_AT, _MASK_WORDS = END_OF_LOGITS, END_OF_LOGITS + 1


def apply(masks: NDArray[np.uint32], logits: NDArray[Any], lowest: int, threads: int, team: Team | None = None) -> None:
    """Write the bit pattern `lowest` over every logit (n, V') whose bit in masks (n, words) is not set, in place.

    logits: the logits' bits as integers. Columns beyond the masks' bits count as not set. team: threads of somebody
    else that are used in place of own ones: those that have just written the logits are still awake.
    """
    rows = len(logits)
    if not pays(rows, logits.shape[1], threads):
        _apply(masks, logits, logits.dtype.type(lowest), 0, rows)
        return
    if team is not None:
        at = logits.__array_interface__["data"][0]
        where = Logits(at, rows, logits.shape[1], logits.strides[0], logits.itemsize, lowest)
        order = array("q", (0, *where, address_of(masks), masks.shape[1]))
        team(_part_of().address, order.buffer_info()[0], threads)  # all of them: it would end those left out
        return
    workers = min(threads, rows)
    bounds = [rows * i // workers for i in range(workers + 1)]
    pool = own_threads(workers - 1)
    parts: list[tuple[Any, ...]]
    parts = [(masks, logits, logits.dtype.type(lowest), bounds[i], bounds[i + 1]) for i in range(workers)]
    tasks = [pool.submit(_apply, *part) for part in parts[1:]]
    _apply(*parts[0])
    for task, part in zip(tasks, parts[1:], strict=True):
        if task.cancel():  # its thread has not been given a processor yet
            _apply(*part)
        else:
            task.result()


@lru_cache(maxsize=1)
def _part_of() -> NativeLoop:
    """Return the native function that a team's threads call: see `apply`."""
    return native_loop(_take_rows)


@kernel
def _take_rows(address: int) -> None:
    """Take one row after the other that no other thread has taken, and mask it."""
    order = array_at(address, _MASK_WORDS + 1, np.int64)
    words = order[_MASK_WORDS]
    while True:
        i = next_row(order.ctypes.data)
        if i >= order[COUNT]:
            return
        apply_to(array_at(order[_MASKS_AT] + 4 * words * i, words, np.uint32), order, i)


@kernel
def apply_to(mask: NDArray[np.uint32], order: Int64Array, i: int) -> None:
    """Apply the mask of row i to logits that are where an order says."""
    at, columns, lowest = order[AT] + order[AHEAD] * i, order[COLUMNS], order[_LOWEST]
    if order[_ITEM] == 2:
        _apply_row(mask, array_at(at, columns, np.int16), np.int16(lowest))
    elif order[_ITEM] == 4:
        _apply_row(mask, array_at(at, columns, np.int32), np.int32(lowest))
    else:
        _apply_row(mask, array_at(at, columns, np.int64), np.int64(lowest))


@kernel
def _apply(masks: NDArray[np.uint32], logits: IntArray, lowest: np.integer[Any], first: int, last: int) -> None:
    """Apply the masks of rows first .. last."""
    for i in range(first, last):
        _apply_row(masks[i], logits[i], lowest)


@kernel
def _apply_row(mask: NDArray[np.uint32], row: IntArray, lowest: np.integer[Any]) -> None:
    """Write `lowest` over each logit of a row that its mask forbids."""
    done = apply_parts(mask, row, lowest) if stores_by_masks() else apply_blocks(mask, row, lowest)
    for j in range(32 * done, row.size):
        if j >> 5 >= mask.size or not (mask[j >> 5] >> np.uint32(j & 31)) & np.uint32(1):
            row[j] = lowest


@kernel
def apply_blocks(mask: NDArray[np.uint32], row: IntArray, lowest: np.integer[Any]) -> int:
    """Apply as many words as there are whole blocks of, and return how many these are."""
    # all is counted from 0 by constants: where an index might be negative none of this becomes vector code
    blocks = min(mask.size, row.size >> 5) // _BLOCK
    for b in range(blocks):
        some, every = np.uint32(0), np.uint32(0xFFFFFFFF)
        for w in range(_BLOCK):
            some |= mask[_BLOCK * b + w]
            every &= mask[_BLOCK * b + w]
        if some == 0:  # most of a row that allows little: nothing has to be read
            for j in range(32 * _BLOCK):
                row[32 * _BLOCK * b + j] = lowest
            continue
        if every == np.uint32(0xFFFFFFFF):
            continue
        for w in range(_BLOCK):  # those that allow all of their tokens too: a processor guesses badly which they are
            word = mask[_BLOCK * b + w]
            at = 32 * (_BLOCK * b + w)
            # chosen, not skipped: this becomes vector code, 35 times as fast as branches
            for j in range(32):
                row[at + j] = row[at + j] if (word >> np.uint32(j)) & np.uint32(1) else lowest
    return _BLOCK * blocks


@kernel
def apply_parts(mask: NDArray[np.uint32], row: IntArray, lowest: np.integer[Any]) -> int:
    """Do what `apply_blocks` does, for all whole words, where the processor stores by masks."""
    words, at, ahead = min(mask.size, row.size >> 5), row.ctypes.data, 32 * row.itemsize
    for w in range(words):
        word = np.uint32(~mask[w])
        if word:
            _write(at + ahead * w, word, lowest)
    return words


@intrinsic
def _write(typing: TypingContext, address: NumbaType, word: NumbaType, value: NumbaType) -> Intrinsic:
    """Write a value over the i-th of 32 elements at an address for each bit i of a word that is set.

    Nothing is read, and cache lines in which there is no such bit are not fetched.
    """
    from llvmlite import ir
    from numba import types

    def generate(context: Context, builder: Builder, signature: Signature, arguments: Sequence[Value]) -> Value:
        value, number = arguments[2], ir.IntType(32)
        size = value.type.width // 8
        count = _LINE // size
        many, truth = ir.VectorType(value.type, count), ir.VectorType(ir.IntType(1), count)
        kind = ir.FunctionType(ir.VoidType(), (many, many.as_pointer(), number, truth))
        name = f"llvm.masked.store.v{count}i{8 * size}.p0v{count}i{8 * size}"  # newer releases of LLVM shorten it
        store = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        values = builder.insert_element(ir.Constant(many, ir.Undefined), value, number(0))
        values = builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(number, count), [0] * count))
        for first in range(0, 32, count):
            part = builder.lshr(arguments[1], number(first))
            part = builder.trunc(part, ir.IntType(count)) if count < 32 else part
            with builder.if_then(builder.icmp_unsigned("!=", part, part.type(0))):
                at = builder.inttoptr(builder.add(arguments[0], arguments[0].type(first * size)), many.as_pointer())
                builder.call(store, (values, at, number(size), builder.bitcast(part, truth)))
        return context.get_dummy_value()  # type: ignore[no-untyped-call]

    return types.void(types.int64, types.uint32, value), generate
