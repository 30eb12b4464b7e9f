"""Packed token masks of tables without calls.

Bit i of word w of a row stands for token 32 * w + i. A mask starts as a copy of its base's; then each of the row's
own edges sets or clears a bit. `nested_masks` composes those of tables with calls. Kernels release the GIL.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from ...kernels.arrays import Bool, BoolArray, Int, Int32Array, IntArray
from ...kernels.compiled import kernel
from ...table.groups import Bases, Edges, Rows, TableArrays, TokenArray, TokenClasses
from ...table.states import state_out_of_range
from .budget import tokens_left
from .table_pointers import HostTable

NO_DISTANCES = np.empty(0, np.int32)


def compose(
    table: HostTable, nodes: NDArray[np.int64], remaining: NDArray[np.int64] | None = None
) -> NDArray[np.uint32]:
    """Return the masks (n, ceil(V / 32)) of states (n,), EOS included where accepting.

    remaining: (n,) tokens that may still be written, EOS aside; only tokens from whose target an end can be reached
    within the others are set.
    """
    out = np.empty((nodes.size, -(-table.vocab_size // 32)), np.uint32)
    compose_into(table, nodes, out, remaining)
    return out


def compose_into(
    table: HostTable,
    nodes: NDArray[np.int64],
    out: NDArray[np.uint32],
    remaining: NDArray[np.int64] | None = None,
) -> None:
    """Write the masks of states (n,) into out (n, ceil(V / 32)); see `compose`.

    Raises ValueError for a state that the table does not have.
    """
    if table.is_nested:
        raise TypeError("what a state of a nested table allows depends on its stack: use compose_nested")
    nodes = np.ascontiguousarray(nodes, np.int64)  # another type would compile the kernels once more
    stray = compose_rows(
        table.arrays, table.is_trie, table.vocab_size, -1 if table.eos is None else table.eos, nodes, out, remaining,
        NO_DISTANCES if remaining is None else table.distance,
    )  # fmt: skip
    if stray >= 0:
        raise state_out_of_range(table, int(nodes[stray]))


def compose_rows(
    arrays: TableArrays, is_trie: bool, vocab_size: int, eos: int, nodes: NDArray[np.int64], out: NDArray[np.uint32],
    remaining: NDArray[np.int64] | None, distance: Int32Array,
) -> int:  # fmt: skip
    """Write the masks of states into out, as `compose_into` does; return the index of a state outside the table, or -1.

    distance: of the table's states, for `remaining`.
    """
    rows, edges, bases = arrays.rows, arrays.edges, arrays.bases
    stray: int = _compose(
        rows.edge_start, rows.accepting, rows.base, edges.token, edges.target, bases.mask, bases.masks, is_trie,
        vocab_size, eos, nodes, out,
    )  # fmt: skip
    if stray < 0 and remaining is not None:
        left = tokens_left(remaining)
        _shorten(rows, edges, bases, arrays.classes, is_trie, distance, vocab_size, eos, nodes, left, out)
    return stray


def scratch(rows: int, words: int) -> NDArray[np.uint32]:
    """Return an array (rows, words) for masks that are not kept, the same memory on each call by a thread.

    To get fresh memory takes as long as to compose the masks.
    """
    found: NDArray[np.uint32] | None = getattr(_kept, "masks", None)
    if found is None or found.size < rows * words:
        found = _kept.masks = np.empty(rows * words, np.uint32)
    return found[: rows * words].reshape(rows, words)


_kept = threading.local()


@kernel
def _compose(
    row_start: IntArray, accepting: BoolArray, base_row: Int32Array, edge_token: TokenArray, edge_target: IntArray,
    base_mask: Int32Array, masks: NDArray[np.uint32], is_trie: bool, vocab_size: int, eos: int,
    nodes: NDArray[np.int64], out: NDArray[np.uint32],
) -> int:  # fmt: skip
    """Write masks; return the index of a state that is outside the table, where it stops, or -1.

    Arrays come one by one: numba takes a third longer to unpack them from groups.
    """
    num_rows, num_edges = row_start.size - 1, edge_target.size
    dead = num_rows + edge_token.size - num_edges - 1
    for i in range(nodes.size):
        s = nodes[i]
        if s < 0 or s > dead:
            return i
        base = base_row[s] if s < base_row.size else -1
        if base >= 0:
            out[i] = masks[base_mask[base]]
        else:
            out[i] = np.uint32(0)
        if s < num_rows:
            first, stop = np.int64(row_start[s]), np.int64(row_start[s + 1])
            if is_trie and base >= 0:  # its mask says all that its edges say
                stop = first
            ends = accepting[s]
        else:
            first = num_edges + s - num_rows
            stop = first + 1 if edge_token[first] < vocab_size else first
            ends = edge_token[first] == vocab_size
        for e in range(first, stop):
            v = np.int64(edge_token[e])
            bit = np.uint32(1) << np.uint32(v & 31)
            if e < num_edges and edge_target[e] == dead:
                out[i, v >> 5] &= ~bit
            else:
                out[i, v >> 5] |= bit
        if ends and eos >= 0:
            out[i, eos >> 5] |= np.uint32(1) << np.uint32(eos & 31)
    return -1


@kernel
def _shorten(
    rows: Rows, edges: Edges, bases: Bases, token_classes: TokenClasses, is_trie: bool, distance: Int32Array,
    vocab_size: int, eos: int, nodes: NDArray[np.int64], remaining: NDArray[np.int64], out: NDArray[np.uint32],
) -> None:  # fmt: skip
    """Clear bits of tokens, EOS aside, from whose target no end is within `remaining` - 1 more (see `tokens_left`)."""
    row_start, edge_token, edge_target, base_row = rows.edge_start, edges.token, edges.target, rows.base
    base_start, base_target = bases.target_start, bases.target
    class_start, class_token, class_id = token_classes.start, token_classes.token, token_classes.number
    num_rows, num_edges = row_start.size - 1, edge_target.size
    for i in range(nodes.size):
        s = nodes[i]
        room = np.int64(remaining[i] - 1)  # below the distance of the dead state
        if s >= num_rows:
            v = np.int64(edge_token[num_edges + s - num_rows])
            if v < vocab_size and distance[s + 1] > room:
                out[i, v >> 5] &= ~(np.uint32(1) << np.uint32(v & 31))
            continue
        base = base_row[s] if s < base_row.size and not is_trie else -1
        if base >= 0:
            ends = eos >= 0 and (out[i, eos >> 5] >> np.uint32(eos & 31)) & np.uint32(1) != 0
            first, classes = base_start[base], bases.class_list[base]
            own, own_stop = row_start[s], row_start[s + 1]
            default = np.int64(base_target[first])
            far = distance[(default >> 1) + (default & 1) * s] > room if _inside(default, s, num_rows) else True
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
                if not _inside(code, s, num_rows) or distance[(code >> 1) + (code & 1) * s] > room:
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
def _inside(code: Int, s: int, rows: int) -> Bool:
    """Return whether a code leads to a row; for classes of which a state has no token it may not."""
    t = (code >> 1) + (code & 1) * s
    return t >= 0 and t < rows
