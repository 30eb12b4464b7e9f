"""Packed token masks on the host: composed from a table, and applied to logits where they lie in memory.

Bit i of word w of a row stands for token 32 * w + i. Composing a row copies its base's mask and sets or clears a bit
for each of its own edges, and for each exit by what the stack makes of it; applying one touches only the logits that it
forbids, so a row that allows almost everything costs almost nothing. Kernels are numba and release the GIL, so that
rows are spread over threads.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from ...kernels.compiled import callback, kernel
from ...kernels.pointers import address_of, array_at
from ...table.transition_table import (
    NEVER,
    NestedState,
    TransitionTable,
    follow_rows,
    stray_configuration,
    stray_row,
    stray_state,
)

Budget = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
Team = Callable[[int, int, int], None]
"""team(function, argument, threads): call the native function at an address with an argument in so many threads."""

_PARALLEL = 1 << 19  # logits from which on threads pay for being woken
_FEW_ROWS = 16  # whose tokens one thread has followed before another is awake
_ROWS_AT_ONCE = 8  # whose tokens a thread follows before it looks for more
_BLOCK = 16  # words of a mask that are looked at together
_LINE = 64  # bytes of a cache line


def compose(
    table: TransitionTable, nodes: NDArray[np.int64], remaining: NDArray[np.int64] | None = None
) -> NDArray[np.uint32]:
    """Return the masks (n, ceil(V / 32)) of states (n,), EOS included where accepting.

    remaining: (n,) tokens that may still be written, EOS aside; only tokens from whose target an end can be reached
    within the others are set.
    """
    out = np.empty((nodes.size, -(-table.vocab_size // 32)), np.uint32)
    compose_into(table, nodes, out, remaining)
    return out


def compose_into(
    table: TransitionTable,
    nodes: NDArray[np.int64],
    out: NDArray[np.uint32],
    remaining: NDArray[np.int64] | None = None,
) -> None:
    """Write the masks of states (n,) into out (n, ceil(V / 32)); see `compose`.

    Raises ValueError for a state that is none of this table's.
    """
    if table.is_nested:
        raise TypeError("what a state of a nested table allows depends on its stack: use compose_nested")
    nodes = np.ascontiguousarray(nodes, np.int64)  # of any other kind the kernels would be compiled once more
    stray = _compose(
        table.row_start, table.edge_token, table.edge_target, table.accepting, table.base_row, table.masks,
        table.base_mask, table.is_trie, table.vocab_size, -1 if table.eos is None else table.eos, nodes, out,
    )  # fmt: skip
    if stray >= 0:
        raise stray_state(table, int(nodes[stray]))
    if remaining is not None:
        _shorten(
            table.row_start, table.edge_token, table.edge_target, table.base_row, table.base_classes,
            table.base_start, table.base_target, table.class_start, table.class_token, table.class_id, table.is_trie,
            table.distance, table.vocab_size, -1 if table.eos is None else table.eos, nodes,
            np.ascontiguousarray(remaining, np.int64), out,
        )  # fmt: skip


def compose_nested(
    table: TransitionTable, state: NestedState, remaining: NDArray[np.int64] | None = None
) -> NDArray[np.uint32]:
    """Return the masks (n, ceil(V / 32)) of configurations (n,) of a nested table, as `compose` does."""
    out = np.empty((len(state.node), -(-table.vocab_size // 32)), np.uint32)
    compose_nested_into(table, state, out, remaining)
    return out


def compose_nested_into(
    table: TransitionTable,
    state: NestedState,
    out: NDArray[np.uint32],
    remaining: NDArray[np.int64] | None = None,
) -> None:
    """Write the masks of configurations (n,) into out (n, ceil(V / 32)); see `compose_nested`.

    Raises ValueError for a configuration that is none of this table's.
    """
    node = np.ascontiguousarray(state.node, np.int64)  # of any other kind the kernels would be compiled once more
    stack = np.ascontiguousarray(state.stack, np.int32)
    height = np.ascontiguousarray(state.height, np.int32)
    if node.ndim != 1 or stack.shape != (node.size, table.slots) or height.shape != node.shape:
        raise ValueError(
            f"a state of this table has node and height (n,) and stack (n, {table.slots}), "
            f"not {node.shape}, {height.shape} and {stack.shape}"
        )
    if remaining is None:
        room, budget = np.full(node.size, NEVER, np.int64), NO_BUDGET
    else:
        room = np.ascontiguousarray(remaining, np.int64)
        budget = budget_of(table)
    stray = _compose_nested(Bundle.of(table).header, table.edge_token, *budget, node, stack, height, room, out)
    if stray >= 0:
        raise stray_configuration(table, state, int(stray))


def follow(
    table: TransitionTable,
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
    order = array("q", (0, rows, tokens, *state, *out, Bundle.of(table).address, -1))
    part = _follow_part_of(table.edge_token.dtype)
    if team is None or rows < _FEW_ROWS:
        part.ctypes(order.buffer_info()[0])
    else:
        team(part.address, order.buffer_info()[0], threads)
    return order[-1]


def budget_of(table: TransitionTable) -> Budget:
    """Return what kernels need to know of a nested table to keep a budget: distances, and the room they need."""
    found = table.distances
    return found.code, found.site, found.code_room, found.site_room


class Bundle:
    """The arrays of a nested table in one array of numbers, so that a kernel is not handed one after the other.

    Handing a kernel an array takes 0.08 microseconds, and the mask of one configuration needs 20. `header` is scalars,
    then the address and the size of each array. They stay where they are for as long as the table is alive, which
    whoever keeps a bundle also keeps; they are read-only.
    """

    __slots__ = ("address", "arrays", "header")

    def __init__(self, table: TransitionTable) -> None:
        eos = -1 if table.eos is None else table.eos
        words = table.masks.shape[1]
        self.arrays = [getattr(table, name) for name in _BUNDLED]
        numbers = [table.num_rows, eos, table.vocab_size, table.num_symbols, words, table.depth, table.slots]
        numbers += [table.most_need, table.most_pushes]
        self.header = np.array(numbers + [0] * 2 * len(self.arrays), np.int64)
        self.address = address_of(self.header)
        _write_addresses(self.header, *self.arrays)

    def set_most(self, most_need: int, most_pushes: int) -> None:
        """Note how many frames may be needed, and pushed at once, of a table whose arrays change."""
        self.header[_MOST_NEED], self.header[_MOST_PUSHES] = most_need, most_pushes

    @staticmethod
    def of(table: TransitionTable) -> Bundle:
        """Return the bundle of a table, made once and kept with it."""
        found: Bundle | None = table.__dict__.get("_bundle")
        if found is None:
            found = table.__dict__["_bundle"] = Bundle(table)
        return found

    def __reduce__(self) -> Any:
        return type(None), ()  # addresses mean nothing elsewhere


def scratch(rows: int, words: int) -> NDArray[np.uint32]:
    """Return this thread's array (rows, words) for masks that nobody keeps: fresh memory takes as long as composing."""
    found: NDArray[np.uint32] | None = getattr(_kept, "masks", None)
    if found is None or found.size < rows * words:
        found = _kept.masks = np.empty(rows * words, np.uint32)
    return found[: rows * words].reshape(rows, words)


_kept = threading.local()


class Logits(NamedTuple):
    """Where logits (n, V') lie, and what is written over those that are not allowed."""

    address: int
    rows: int
    columns: int
    ahead: int  # bytes from one row to the next
    size: int  # bytes of one
    lowest: int  # the bits to write


def pays(rows: int, columns: int, threads: int) -> bool:
    """Return whether so many logits are masked by several threads."""
    return min(threads, rows) > 1 and rows * columns >= _PARALLEL


def apply_nested(
    table: TransitionTable, state: tuple[int, int, int], room: int, logits: Logits, threads: int, team: Team
) -> int:
    """Mask logits by the configurations of their rows, in place: `compose_nested` and `apply` of a row at a time.

    The mask is then still in cache, and only addresses are handed on: after a model's pass little of what handing on
    arrays takes is. state: the addresses of node (n,) int64, stack (n, slots) int32 and height (n,) int32. room: that
    of the tokens that may still be written (n,) int64, or 0. Returns a row that stands nowhere in the table, where
    nothing is written, or -1.
    """
    order = order_of(table, state, room, logits)
    team(_nested_part_of(table.edge_token.dtype).address, order.buffer_info()[0], threads)
    return order[_STRAY]


def order_of(table: TransitionTable, state: tuple[int, int, int], room: int, logits: Logits) -> array[int]:
    """Return what threads are told that compose masks; see `apply_nested`."""
    order = array("q", (0, *logits, *state, room, Bundle.of(table).address, -1))
    if room:
        budget = budget_of(table)
        order.extend(number for each in budget for number in (address_of(each), len(each)))
        order.extend(budget[1].shape[1:])
    return order


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
    pool = _pool(workers - 1, os.getpid())
    parts = [(masks, logits, logits.dtype.type(lowest), bounds[i], bounds[i + 1]) for i in range(workers)]
    tasks = [pool.submit(_apply, *part) for part in parts[1:]]
    _apply(*parts[0])
    for task, part in zip(tasks, parts[1:], strict=True):
        if task.cancel():  # its thread has not been given a processor yet
            _apply(*part)
        else:
            task.result()


@lru_cache(maxsize=4)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Return the threads of a process: one that was forked has none of its parent's."""
    return ThreadPoolExecutor(workers, thread_name_prefix="maskwright")


@kernel
def _compose(
    row_start: Any,
    edge_token: Any,
    edge_target: Any,
    accepting: Any,
    base_row: Any,
    masks: Any,
    base_mask: Any,
    is_trie: bool,
    vocab_size: int,
    eos: int,
    nodes: Any,
    out: Any,
) -> int:
    """Write masks; return the place of a state that is outside the table, where it stops, or -1."""
    rows, edges = row_start.size - 1, edge_target.size
    dead = rows + edge_token.size - edges - 1
    for i in range(nodes.size):
        s = nodes[i]
        if s < 0 or s > dead:
            return i
        base = base_row[s] if s < base_row.size else -1
        if base >= 0:
            out[i] = masks[base_mask[base]]
        else:
            out[i] = np.uint32(0)
        if s < rows:
            first, stop = np.int64(row_start[s]), np.int64(row_start[s + 1])
            if is_trie and base >= 0:  # its mask says all that its edges say
                stop = first
            ends = accepting[s]
        else:
            first = edges + s - rows
            stop = first + 1 if edge_token[first] < vocab_size else first
            ends = edge_token[first] == vocab_size
        for e in range(first, stop):
            v = np.int64(edge_token[e])
            bit = np.uint32(1) << np.uint32(v & 31)
            if e < edges and edge_target[e] == dead:
                out[i, v >> 5] &= ~bit
            else:
                out[i, v >> 5] |= bit
        if ends and eos >= 0:
            out[i, eos >> 5] |= np.uint32(1) << np.uint32(eos & 31)
    return -1


@kernel
def _shorten(
    row_start: Any,
    edge_token: Any,
    edge_target: Any,
    base_row: Any,
    base_classes: Any,
    base_start: Any,
    base_target: Any,
    class_start: Any,
    class_token: Any,
    class_id: Any,
    is_trie: bool,
    distance: Any,
    vocab_size: int,
    eos: int,
    nodes: Any,
    remaining: Any,
    out: Any,
) -> None:
    """Clear the bits of tokens, EOS aside, from whose target no end is within `remaining` - 1 more."""
    rows, edges = row_start.size - 1, edge_target.size
    for i in range(nodes.size):
        s = nodes[i]
        room = np.int64(min(remaining[i], NEVER) - 1)  # below the distance of the dead state
        if s >= rows:
            v = np.int64(edge_token[edges + s - rows])
            if v < vocab_size and distance[s + 1] > room:
                out[i, v >> 5] &= ~(np.uint32(1) << np.uint32(v & 31))
            continue
        base = base_row[s] if s < base_row.size and not is_trie else -1
        if base >= 0:
            ends = eos >= 0 and (out[i, eos >> 5] >> np.uint32(eos & 31)) & np.uint32(1) != 0
            first, classes = base_start[base], base_classes[base]
            own, own_stop = row_start[s], row_start[s + 1]
            default = np.int64(base_target[first])
            far = distance[(default >> 1) + (default & 1) * s] > room if _inside(default, s, rows) else True
            x, stop = class_start[classes], class_start[classes + 1]
            if far:  # all of class 0 go: keep what other classes have
                for w in range(out.shape[1]):
                    word = out[i, w]
                    if word == 0:
                        continue
                    for token in range(32 * w, min(32 * w + 32, vocab_size)):
                        while x < stop and class_token[x] < token:
                            x += 1
                        if not (x < stop and class_token[x] == token):
                            word &= ~(np.uint32(1) << np.uint32(token & 31))
                    out[i, w] = word
            for x in range(class_start[classes], stop):
                code = np.int64(base_target[first + class_id[x]])
                if not _inside(code, s, rows) or distance[(code >> 1) + (code & 1) * s] > room:
                    v = np.int64(class_token[x])
                    out[i, v >> 5] &= ~(np.uint32(1) << np.uint32(v & 31))
            for e in range(own, own_stop):  # which may have been cleared as tokens of the base
                v = np.int64(edge_token[e])
                bit = np.uint32(1) << np.uint32(v & 31)
                if distance[edge_target[e]] <= room:
                    out[i, v >> 5] |= bit
                else:
                    out[i, v >> 5] &= ~bit
            if ends:
                out[i, eos >> 5] |= np.uint32(1) << np.uint32(eos & 31)
        else:
            for e in range(row_start[s], row_start[s + 1]):
                if distance[edge_target[e]] > room:
                    v = np.int64(edge_token[e])
                    out[i, v >> 5] &= ~(np.uint32(1) << np.uint32(v & 31))


@kernel(inline="always")
def _inside(code: Any, s: Any, rows: Any) -> Any:
    """Return whether a code leads to a row; for classes of which a state has no token it may not."""
    t = (code >> 1) + (code & 1) * s
    return t >= 0 and t < rows


@kernel
def _apply(masks: Any, logits: Any, lowest: Any, first: int, last: int) -> None:
    for i in range(first, last):
        _apply_row(masks[i], logits[i], lowest)


@kernel
def _apply_row(mask: Any, row: Any, lowest: Any) -> None:
    done = _apply_words(mask, row, lowest)
    for j in range(32 * done, row.size):
        if j >> 5 >= mask.size or not (mask[j >> 5] >> np.uint32(j & 31)) & np.uint32(1):
            row[j] = lowest


@kernel
def _apply_blocks(mask: Any, row: Any, lowest: Any) -> Any:
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
def _apply_parts(mask: Any, row: Any, lowest: Any) -> Any:
    """Do what `_apply_blocks` does, for all whole words, where the processor stores by masks."""
    words, at, ahead = min(mask.size, row.size >> 5), row.ctypes.data, 32 * row.itemsize
    for w in range(words):
        word = np.uint32(~mask[w])
        if word:
            _write(at + ahead * w, word, lowest)
    return words


@intrinsic
def _write_where(typing: Any, address: Any, word: Any, value: Any) -> Any:
    """Write a value over the i-th of 32 elements at an address for each bit i of a word that is set.

    Nothing is read, and cache lines in which there is no such bit are not fetched.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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
        return context.get_dummy_value()

    return types.void(types.int64, types.uint32, value), generate


_write: Any = _write_where  # which kernels call without its first argument
_apply_words: Any = _apply_parts if get_host_cpu_features().get("avx512bw") else _apply_blocks


# What a team is told is one array of numbers: how many rows are taken, then `Logits`, then masks or states and a table.
_AT, _COUNT, _COLUMNS, _AHEAD, _ITEM, _LOWEST, _MASKS_AT, _MASK_WORDS = range(1, 9)
_NODE, _STACK, _HEIGHT, _ROOM, _HEADER, _STRAY, _BUDGET = range(7, 14)
LONGEST = _BUDGET + 10  # of an order; one without `room` ends before the budget


@kernel
def _apply_to(mask: Any, order: Any, i: Any) -> None:
    """Apply the mask of row i to logits that are where an order says."""
    at, columns, lowest = order[_AT] + order[_AHEAD] * i, order[_COLUMNS], order[_LOWEST]
    if order[_ITEM] == 2:
        _apply_row(mask, array_at(at, columns, np.int16), np.int16(lowest))
    elif order[_ITEM] == 4:
        _apply_row(mask, array_at(at, columns, np.int32), np.int32(lowest))
    else:
        _apply_row(mask, array_at(at, columns, np.int64), np.int64(lowest))


@lru_cache(maxsize=1)
def _part_of() -> Any:
    """Return the native function that a team's threads call: see `apply`."""
    return callback(types.void(types.voidptr))(_take_rows)


def _take_rows(argument: Any) -> None:
    """Take one row after the other that no other thread has taken, and mask it."""
    order = carray(argument, (_MASK_WORDS + 1,), np.int64)
    words = order[_MASK_WORDS]
    while True:
        i = next_row(order.ctypes.data)
        if i >= order[_COUNT]:
            return
        _apply_to(array_at(order[_MASKS_AT] + 4 * words * i, words, np.uint32), order, i)


@lru_cache(maxsize=3)
def _nested_part_of(kind: Any) -> Any:
    """Return the native function that a team's threads call: see `apply_nested`. kind: the type of tokens."""

    def take(argument: Any) -> None:
        _compose_rows(carray(argument, (LONGEST,), np.int64), kind)

    return callback(types.void(types.voidptr))(take)


@lru_cache(maxsize=3)
def _follow_part_of(kind: Any) -> Any:
    """Return the native function that a team's threads call: see `follow`. kind: the type of tokens."""

    def take(argument: Any) -> None:
        _follow_each(carray(argument, (11,), np.int64), kind)

    return callback(types.void(types.voidptr))(take)


@intrinsic
def _count(typing: Any, address: Any) -> Any:
    """Return the number at an address and add one to it, whatever other threads do."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = arguments[0].type
        at = builder.inttoptr(arguments[0], number.as_pointer())
        return builder.atomic_rmw("add", at, number(1), "monotonic")

    return types.int64(types.int64), generate


next_row: Any = _count  # which kernels call without its first argument


# ---------------------------------------------------------------------------------------------- tables with calls

_ROWS, _EOS, _SIZE, _SYMBOLS, _WORDS, _DEPTH, _SLOTS, _MOST_NEED, _MOST_PUSHES, _ARRAYS = range(10)
_BUNDLED = (
    "row_start", "edge_target", "accepting", "base_row", "masks", "base_mask", "base_classes", "base_start",
    "base_target", "class_start", "class_token", "class_id", "action_start", "row_exit", "base_exit", "exit_start",
    "exit_token", "exit_symbol", "site_start", "site_symbol", "site_target", "base_push", "site_leaf", "site_need",
    "code_need", "action_state", "action_push", "edge_token",
)  # fmt: skip
NO_BUDGET: Budget = (np.empty((0, 1), np.int64), np.empty((0, 1, 1), np.int64)) * 2
"""In place of what `budget_of` returns where there is none."""
for _empty in NO_BUDGET:
    _empty.flags.writeable = False
(
    _ROW_START, _EDGE_TARGET, _ACCEPTING, _BASE_ROW, _MASKS, _BASE_MASK, _BASE_CLASSES, _BASE_START, _BASE_TARGET,
    _CLASS_START, _CLASS_TOKEN, _CLASS_ID, _ACTION_START, _ROW_EXIT, _BASE_EXIT, _EXIT_START, _EXIT_TOKEN,
    _EXIT_SYMBOL, _SITE_START, _SITE_SYMBOL, _SITE_TARGET, _BASE_PUSH, _SITE_LEAF, _SITE_NEED, _CODE_NEED,
    _ACTION_STATE, _ACTION_PUSH, _EDGE_TOKEN,
) = range(28)  # fmt: skip


@kernel
def _array(header: Any, which: Any, kind: Any) -> Any:
    """Return an array of a bundle."""
    at = _ARRAYS + 2 * which
    return array_at(header[at], header[at + 1], kind)


@kernel
def _write_addresses(
    header: Any,
    row_start: Any,
    edge_target: Any,
    accepting: Any,
    base_row: Any,
    masks: Any,
    base_mask: Any,
    base_classes: Any,
    base_start: Any,
    base_target: Any,
    class_start: Any,
    class_token: Any,
    class_id: Any,
    action_start: Any,
    row_exit: Any,
    base_exit: Any,
    exit_start: Any,
    exit_token: Any,
    exit_symbol: Any,
    site_start: Any,
    site_symbol: Any,
    site_target: Any,
    base_push: Any,
    site_leaf: Any,
    site_need: Any,
    code_need: Any,
    action_state: Any,
    action_push: Any,
    edge_token: Any,
) -> None:
    """Write the address and the size of each array into a header."""
    at = _ARRAYS
    for address, size in (
        (row_start.ctypes.data, row_start.size),
        (edge_target.ctypes.data, edge_target.size),
        (accepting.ctypes.data, accepting.size),
        (base_row.ctypes.data, base_row.size),
        (masks.ctypes.data, masks.size),
        (base_mask.ctypes.data, base_mask.size),
        (base_classes.ctypes.data, base_classes.size),
        (base_start.ctypes.data, base_start.size),
        (base_target.ctypes.data, base_target.size),
        (class_start.ctypes.data, class_start.size),
        (class_token.ctypes.data, class_token.size),
        (class_id.ctypes.data, class_id.size),
        (action_start.ctypes.data, action_start.size),
        (row_exit.ctypes.data, row_exit.size),
        (base_exit.ctypes.data, base_exit.size),
        (exit_start.ctypes.data, exit_start.size),
        (exit_token.ctypes.data, exit_token.size),
        (exit_symbol.ctypes.data, exit_symbol.size),
        (site_start.ctypes.data, site_start.size),
        (site_symbol.ctypes.data, site_symbol.size),
        (site_target.ctypes.data, site_target.size),
        (base_push.ctypes.data, base_push.size),
        (site_leaf.ctypes.data, site_leaf.size),
        (site_need.ctypes.data, site_need.size),
        (code_need.ctypes.data, code_need.size),
        (action_state.ctypes.data, action_state.size),
        (action_push.ctypes.data, action_push.size),
        (edge_token.ctypes.data, edge_token.size),
    ):
        header[at], header[at + 1] = address, size
        at += 2


@kernel
def _budget_in(order: Any) -> Any:
    """Return the `Budget` of an order: addresses and lengths of the arrays, and how many ends; empty without."""
    if not order[_ROOM]:
        order = np.zeros(LONGEST, np.int64)
    at, ends, others = order[_BUDGET:], max(order[_BUDGET + 8], 1), max(order[_BUDGET + 9], 1)
    return (
        array_at(at[0], at[1] * ends, np.int64).reshape((at[1], ends)),
        array_at(at[2], at[3] * ends * others, np.int64).reshape((at[3], ends, others)),
        array_at(at[4], at[5] * ends, np.int64).reshape((at[5], ends)),
        array_at(at[6], at[7] * ends * others, np.int64).reshape((at[7], ends, others)),
    )


@kernel
def stray_in(order: Any) -> Any:
    """Return a row that stands nowhere in the table of an order of `apply_nested`, or -1."""
    rows, header = order[_COUNT], array_at(order[_HEADER], _ARRAYS + 2 * len(_BUNDLED), np.int64)
    node, height = array_at(order[_NODE], rows, np.int64), array_at(order[_HEIGHT], rows, np.int32)
    stack = array_at(order[_STACK], rows * header[_SLOTS], np.int32).reshape((rows, header[_SLOTS]))
    return stray_row(header[_ROWS], _array(header, _SITE_LEAF, np.uint8).size, node, stack, height)


@kernel
def compose_row(order: Any, kind: Any, i: Any, mask: Any, alive: Any) -> None:
    """Write the mask of row i of an order; alive: room for all symbols, cleared. kind: the type of tokens."""
    rows, header = order[_COUNT], array_at(order[_HEADER], _ARRAYS + 2 * len(_BUNDLED), np.int64)
    node, height = array_at(order[_NODE], rows, np.int64), array_at(order[_HEIGHT], rows, np.int32)
    stack = array_at(order[_STACK], rows * header[_SLOTS], np.int32).reshape((rows, header[_SLOTS]))
    room = array_at(order[_ROOM], rows if order[_ROOM] else 0, np.int64)
    code_distance, site_distance, code_room, site_room = _budget_in(order)
    _mask_row(
        header, _array(header, _EDGE_TOKEN, kind), code_distance, site_distance, code_room, site_room, node[i],
        stack[i, : height[i]], room[i] if room.size else np.int64(NEVER), mask, alive,
    )  # fmt: skip


@kernel
def sizes(order: Any) -> Any:
    """Return how many words the masks of an order have, and how many symbols its table."""
    header = array_at(order[_HEADER], _ARRAYS, np.int64)
    return header[_WORDS], header[_SYMBOLS]


@kernel
def _compose_rows(order: Any, kind: Any) -> None:
    """Take one row after the other that no other thread has taken, compose its mask and apply it."""
    stray = stray_in(order)
    if stray >= 0:  # all threads look at all rows, so that none begins where one of them is none of the table's
        order[_STRAY] = stray
        return
    words, symbols = sizes(order)
    mask, alive = np.empty(words, np.uint32), np.zeros(symbols, np.uint8)
    while True:
        i = next_row(order.ctypes.data)
        if i >= order[_COUNT]:
            return
        compose_row(order, kind, i, mask, alive)
        _apply_to(mask, order, i)


@kernel
def _find(array: Any, first: Any, stop: Any, value: Any) -> Any:
    """Return where a sorted part of an array holds a value, or -1."""
    lo, hi = np.int64(first), np.int64(stop)
    end = hi
    while lo < hi:
        mid = (lo + hi) >> 1
        if np.int64(array[mid]) < value:
            lo = mid + 1
        else:
            hi = mid
    return lo if lo < end and np.int64(array[lo]) == value else np.int64(-1)


@kernel
def _fits(
    header: Any, code_distance: Any, code_room: Any, code: Any, frames: Any, height: Any, far: Any, room: Any
) -> Any:
    """Return whether a code may be followed from a stack: of that height, with that many frames that are no leaves.

    far: (slots + 2, C) the distances of the stack by its height. room: the tokens that may be written from there on.
    """
    rows = header[_ROWS]
    if code == rows + 1 or frames + _array(header, _CODE_NEED, np.int32)[code] > header[_DEPTH]:
        return False
    if code > rows + 1:
        action_start = _array(header, _ACTION_START, np.int32)
        action = code - rows - 2
        if height + action_start[action + 1] - action_start[action] > header[_SLOTS]:
            return False
    if code_distance.size == 0:
        return True
    for end in range(code_distance.shape[1]):
        if code_distance[code, end] + far[height, end] <= room and (
            code_room.size == 0 or frames + code_room[code, end] <= header[_DEPTH]
        ):
            return True
    return False


@kernel
def _return_to(site_distance: Any, site_room: Any, site: Any, far: Any, height: Any, left: Any) -> None:
    """Write the distances of a stack with one more site on it, behind those of as much as lies below it.

    left: how many more frames fit onto what lies below.
    """
    for end in range(site_distance.shape[1]):
        least = np.int64(NEVER)
        for other in range(site_distance.shape[2]):
            if site_room.size == 0 or site_room[site, end, other] <= left:
                least = min(least, site_distance[site, end, other] + far[height, other])
        far[height + 1, end] = least


@kernel
def _mark(
    header: Any,
    code_distance: Any,
    code_room: Any,
    push: Any,
    stack: Any,
    limited: Any,
    frames: Any,
    far: Any,
    room: Any,
    alive: Any,
) -> Any:
    """Set alive[y] to whether symbol y is allowed, for each symbol of the site on top; return the sites looked at.

    push: a site that lies on the stack in addition, or -1. frames: of the stack with it. far: as of `_fits`.
    """
    dead = header[_ROWS] + 1
    site_start, site_symbol = _array(header, _SITE_START, np.int32), _array(header, _SITE_SYMBOL, np.int32)
    site_target, site_leaf = _array(header, _SITE_TARGET, np.int32), _array(header, _SITE_LEAF, np.uint8)
    bottom = np.int64(stack.size)
    top = np.int64(push)
    if push < 0:
        if bottom == 0:
            return np.int64(1)
        bottom -= 1
        top = np.int64(stack[bottom])
    looked = stack.size - bottom
    for x in range(site_start[top], site_start[top + 1]):
        code, height = np.int64(site_target[x]), bottom
        k = top
        left = frames - (not site_leaf[k])
        while code < 0:
            if height == 0:
                looked = np.int64(stack.size + 1)
                code = dead
                break
            height -= 1
            looked = max(looked, np.int64(stack.size - height))
            k = np.int64(stack[height])
            left -= not site_leaf[k]
            found = _find(site_symbol, site_start[k], site_start[k + 1], -1 - code)
            code = np.int64(site_target[found]) if found >= 0 else dead
        if limited:
            alive[site_symbol[x]] = _fits(header, code_distance, code_room, code, left, height, far, room)
        else:
            alive[site_symbol[x]] = code != dead
    return looked


@kernel
def _mask_row(
    header: Any,
    edge_token: Any,
    code_distance: Any,
    site_distance: Any,
    code_room: Any,
    site_room: Any,
    s: Any,
    stack: Any,
    room: Any,
    out: Any,
    alive: Any,
) -> Any:
    """Write the mask of one configuration and return how many sites it depends on.

    Where the stack has room for whatever may be pushed, and there is no budget, no token is looked at twice.
    """
    rows, eos, words, depth = header[_ROWS], header[_EOS], header[_WORDS], header[_DEPTH]
    dead = rows + 1
    if s >= rows:
        out[:] = np.uint32(0)
        if s < dead and eos >= 0:
            out[eos >> 5] |= np.uint32(1) << np.uint32(eos & 31)
        return np.int64(0)
    row_start, edge_target = _array(header, _ROW_START, np.int32), _array(header, _EDGE_TARGET, np.int32)
    masks, site_leaf = _array(header, _MASKS, np.uint32), _array(header, _SITE_LEAF, np.uint8)
    row_exit, base_exit = _array(header, _ROW_EXIT, np.int32), _array(header, _BASE_EXIT, np.int32)
    exit_start, exit_symbol = _array(header, _EXIT_START, np.int32), _array(header, _EXIT_SYMBOL, np.int32)
    exit_token = _array(header, _EXIT_TOKEN, edge_token.dtype)
    base_push = _array(header, _BASE_PUSH, np.int32)
    height = np.int64(stack.size)
    budget = code_distance.size > 0
    limited = budget or height + header[_MOST_NEED] > depth or height + header[_MOST_PUSHES] > header[_SLOTS]
    last = np.int64(min(room, NEVER) - 1)  # below the distance of what cannot end
    frames = np.int64(0)
    far = np.empty((height + 2 if budget else 0, code_distance.shape[1]), np.int64)
    if budget:
        far[0] = NEVER
        far[0, 0] = 0
    if limited:
        for x in range(height):
            if budget:
                _return_to(site_distance, site_room, stack[x], far, x, depth - frames)
            frames += not site_leaf[stack[x]]
    base = np.int64(_array(header, _BASE_ROW, np.int32)[s])
    push = np.int64(base_push[s]) if base_push.size and base >= 0 else np.int64(-1)
    base_frames, base_height = frames, height
    if push >= 0:
        if limited:
            site_need = _array(header, _SITE_NEED, np.int32)
            needed = np.int64(not site_leaf[push])
            if site_need.size:
                needed = max(needed, np.int64(site_need[push]))
            if frames + needed > depth or height + 1 > header[_SLOTS]:
                base = np.int64(-1)
            elif budget:
                _return_to(site_distance, site_room, push, far, height, depth - frames)
        base_frames += not site_leaf[push]
        base_height += 1
    mask = np.int64(0)  # where the base's begins
    if base < 0:
        out[:] = np.uint32(0)
    else:
        mask = words * _array(header, _BASE_MASK, np.int32)[base]
        if not limited:
            for w in range(words):
                out[w] = masks[mask + w]
        else:
            base_target, class_id = _array(header, _BASE_TARGET, np.int32), _array(header, _CLASS_ID, np.int32)
            class_start = _array(header, _CLASS_START, np.int32)
            class_token = _array(header, _CLASS_TOKEN, edge_token.dtype)
            first = np.int64(_array(header, _BASE_START, np.int32)[base])
            classes = _array(header, _BASE_CLASSES, np.int32)[base]
            fits = np.zeros(_array(header, _BASE_START, np.int32)[base + 1] - first, np.uint8)
            for x in range(fits.size):
                code = np.int64(base_target[first + x])
                code = (code >> 1) + (code & 1) * s
                if 0 <= code < rows:  # otherwise the row's own edges and exits take all that lead there
                    fits[x] = _fits(header, code_distance, code_room, code, base_frames, base_height, far, last)
            for w in range(words):
                out[w] = masks[mask + w] if fits[0] else np.uint32(0)
            for x in range(class_start[classes], class_start[classes + 1]):
                token = np.int64(class_token[x])
                bit = masks[mask + (token >> 5)] & (np.uint32(1) << np.uint32(token & 31))
                out[token >> 5] = (out[token >> 5] | bit) if fits[class_id[x]] else (out[token >> 5] & ~bit)
    looked = np.int64(0)
    for own in range(2):
        if own:
            exits = np.int64(row_exit[s]) if row_exit.size else np.int64(-1)
            push, base_frames = np.int64(-1), frames
        else:
            exits = np.int64(base_exit[base]) if base >= 0 and base_exit.size else np.int64(-1)
        if exits < 0:
            continue
        seen = _mark(header, code_distance, code_room, push, stack, limited, base_frames, far, last, alive)
        looked = max(looked, seen)
        for x in range(exit_start[exits], exit_start[exits + 1]):
            token = np.int64(exit_token[x])
            bit = np.uint32(token & 31)
            live = np.uint32(alive[exit_symbol[x]])
            if own:
                out[token >> 5] = (out[token >> 5] & ~(np.uint32(1) << bit)) | (live << bit)
            elif limited:  # a token of the base's mask is none of its exits
                out[token >> 5] |= (live << bit) & ~masks[mask + (token >> 5)]
            else:
                out[token >> 5] |= live << bit
        if push >= 0 or height > 0:
            top = push if push >= 0 else np.int64(stack[height - 1])
            site_start, site_symbol = _array(header, _SITE_START, np.int32), _array(header, _SITE_SYMBOL, np.int32)
            for x in range(site_start[top], site_start[top + 1]):
                alive[site_symbol[x]] = 0
    for e in range(row_start[s], row_start[s + 1]):
        token = np.int64(edge_token[e])
        bit = np.uint32(1) << np.uint32(token & 31)
        code = np.int64(edge_target[e])
        if code == dead or (limited and not _fits(header, code_distance, code_room, code, frames, height, far, last)):
            out[token >> 5] &= ~bit
        else:
            out[token >> 5] |= bit
    if _array(header, _ACCEPTING, np.uint8)[s]:
        looked = max(looked, np.int64(1))
        if height == 0 and eos >= 0:
            out[eos >> 5] |= np.uint32(1) << np.uint32(eos & 31)
    return looked


@kernel
def mask_one(
    header: Any,
    edge_token: Any,
    code_distance: Any,
    site_distance: Any,
    code_room: Any,
    site_room: Any,
    node: int,
    stack: Any,
    room: int,
    out: Any,
) -> Any:
    """Write the mask of one configuration into out (ceil(V / 32),) and return how many sites it depends on.

    Those are sites from the top of the stack (h,) down, and one more if it depends on there being no more. header: the
    table's `Bundle`. The four after edge_token are `budget_of` it where only `room` tokens may still be written,
    otherwise empty.
    """
    alive = np.zeros(header[_SYMBOLS], np.uint8)
    return _mask_row(
        header, edge_token, code_distance, site_distance, code_room, site_room, np.int64(node), stack, room, out, alive
    )


@kernel
def _compose_nested(
    header: Any,
    edge_token: Any,
    code_distance: Any,
    site_distance: Any,
    code_room: Any,
    site_room: Any,
    node: Any,
    stack: Any,
    height: Any,
    room: Any,
    out: Any,
) -> Any:
    """Write masks; return the place of a configuration that is none of the table's, or -1."""
    alive = np.zeros(header[_SYMBOLS], np.uint8)
    stray = stray_row(header[_ROWS], _array(header, _SITE_LEAF, np.uint8).size, node, stack, height)
    if stray >= 0:
        return stray
    for i in range(node.size):
        _mask_row(
            header, edge_token, code_distance, site_distance, code_room, site_room, node[i], stack[i, : height[i]],
            room[i], out[i], alive,
        )  # fmt: skip
    return -1


@kernel
def _follow_each(order: Any, kind: Any) -> None:
    """Take some rows after the others that no other thread has taken, and follow their tokens."""
    _, rows, tokens_at, node_at, stack_at, height_at, to_node, to_stack, to_height, header_at, _ = order
    header = array_at(header_at, _ARRAYS + 2 * len(_BUNDLED), np.int64)
    masks, words, slots = _array(header, _MASKS, np.uint32), header[_WORDS], header[_SLOTS]
    masks = masks.reshape((masks.size // words, words))
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
            _array(header, _ROW_START, np.int32), _array(header, _EDGE_TOKEN, kind),
            _array(header, _EDGE_TARGET, np.int32), _array(header, _ACCEPTING, np.uint8),
            _array(header, _BASE_ROW, np.int32), masks, _array(header, _BASE_MASK, np.int32),
            _array(header, _BASE_CLASSES, np.int32), _array(header, _BASE_START, np.int32),
            _array(header, _BASE_TARGET, np.int32), _array(header, _CLASS_START, np.int32),
            _array(header, _CLASS_TOKEN, kind), _array(header, _CLASS_ID, np.int32),
            _array(header, _ACTION_STATE, np.int32), _array(header, _ACTION_START, np.int32),
            _array(header, _ACTION_PUSH, np.int32), _array(header, _ROW_EXIT, np.int32),
            _array(header, _BASE_EXIT, np.int32), _array(header, _EXIT_START, np.int32),
            _array(header, _EXIT_TOKEN, kind), _array(header, _EXIT_SYMBOL, np.int32),
            _array(header, _SITE_START, np.int32), _array(header, _SITE_SYMBOL, np.int32),
            _array(header, _SITE_TARGET, np.int32), _array(header, _BASE_PUSH, np.int32),
            _array(header, _SITE_LEAF, np.uint8), _array(header, _SITE_NEED, np.int32),
            _array(header, _CODE_NEED, np.int32), header[_DEPTH], header[_SIZE], header[_EOS],
            array_at(tokens_at + 8 * i, n, np.int64).reshape((n, 1)), node, stack.reshape((n, slots)), height,
        )  # fmt: skip
        if stray >= 0:
            order[-1] = i + stray
