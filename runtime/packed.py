"""Packed token masks on the host: composed from a table, and applied to logits where they lie in memory.

Bit i of word w of a row stands for token 32 * w + i. Composing a row copies its base's mask and sets or clears a bit
for each of its own edges; applying one touches only the logits that it forbids, so a row that allows almost everything
costs almost nothing. Kernels are numba and release the GIL, so that rows are spread over threads.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..table import NEVER, TransitionTable, stray_state

_PARALLEL = 1 << 19  # logits from which on threads pay for being woken


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


def apply(masks: NDArray[np.uint32], logits: NDArray[Any], lowest: int, threads: int) -> None:
    """Write the bit pattern `lowest` over every logit (n, V') whose bit in masks (n, words) is not set, in place.

    logits: the logits' bits as integers. Columns beyond the masks' bits count as not set.
    """
    rows = len(logits)
    workers = min(threads, rows)
    if workers < 2 or logits.size < _PARALLEL:
        _apply(masks, logits, logits.dtype.type(lowest), 0, rows)
        return
    bounds = [rows * i // workers for i in range(workers + 1)]
    pool = _pool(workers - 1, os.getpid())
    tasks = [
        pool.submit(_apply, masks, logits, logits.dtype.type(lowest), bounds[i], bounds[i + 1])
        for i in range(1, workers)
    ]
    _apply(masks, logits, logits.dtype.type(lowest), bounds[0], bounds[1])
    for task in tasks:
        task.result()


@lru_cache(maxsize=4)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Return the threads of a process: one that was forked has none of its parent's."""
    return ThreadPoolExecutor(workers, thread_name_prefix="maskwright")


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True, inline="always")
def _inside(code: Any, s: Any, rows: Any) -> Any:
    """Return whether a code leads to a row; for classes of which a state has no token it may not."""
    t = (code >> 1) + (code & 1) * s
    return t >= 0 and t < rows


@njit(cache=True, nogil=True)
def _apply(masks: Any, logits: Any, lowest: Any, first: int, last: int) -> None:
    columns = logits.shape[1]
    words = min(masks.shape[1], columns >> 5)
    for i in range(first, last):
        row, mask = logits[i], masks[i]
        for w in range(words):
            word = mask[w]
            if word == np.uint32(0xFFFFFFFF):
                continue
            at = 32 * w
            # chosen, not skipped: this becomes vector code, 35 times as fast as branches; a way of their own for words
            # that allow nothing would only cost branches again
            for j in range(32):
                row[at + j] = row[at + j] if (word >> np.uint32(j)) & np.uint32(1) else lowest
        for j in range(32 * words, columns):
            if j >> 5 >= masks.shape[1] or not (mask[j >> 5] >> np.uint32(j & 31)) & np.uint32(1):
                row[j] = lowest
