"""The trie of a set of token sequences as flat arrays.

Once the sequences are sorted, `count_nodes` and `fill_nodes` read how many tokens neighbours share, each in time linear
in the input. Every prefix that two sequences share becomes a row of edges, numbered breadth first. The tokens behind a
sequence's last shared prefix are a *tail*, a run of tokens that needs no row.

Building the trie of 10 M x 8 tokens takes 0.6 s on one thread, sorting included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Int, Int32Array, Int64Array, IntArray, Uint32Array, UintArray
from ..kernels.compiled import kernel
from .sequence_sort import CHUNK, WIDE, Progress, Sequences, begin_of, sort

_FETCH = 1024  # sequences touched ahead while the trie is written


@dataclass(frozen=True)
class Trie:
    """A trie in breadth-first order: rows of edges for shared prefixes, runs of tokens for what follows them.

    S rows, E edges, T tail entries, Q distinct sequences, N input sequences. Edge e of a row leads to row
    `edge_target[e]` if that is below S, else to tail entry `edge_target[e] - S`. A tail runs on to the next
    entry until one holds V, the vocabulary's size.
    """

    row_start: IntArray  # (S + 1,)
    edge_token: NDArray[Any]  # (E + T + 2,) edges, tails, then V and V + 1
    edge_target: IntArray  # (E,)
    accepting: NDArray[np.bool_]  # (S,) rows where a sequence ends
    level_start: IntArray  # (D + 1,) rows of depth d are level_start[d] .. level_start[d + 1]
    item_start: IntArray  # (Q + 1,) groups of equal sequences, in order of the state they end in
    item_row: IntArray  # (N,) input row numbers, group by group
    min_length: int
    max_length: int


class _Nodes(NamedTuple):
    """The arrays of a trie as they are written: see `Trie`."""

    row_start: IntArray
    edge_token: UintArray
    edge_target: IntArray
    accepting: NDArray[np.bool_]
    item_start: IntArray
    item_state: IntArray  # (Q,) the state that each group ends in


class _Levels(NamedTuple):
    """What is next at each depth."""

    next_row: NDArray[np.int64]
    next_edge: NDArray[np.int64]
    row_of: NDArray[np.int64]  # the open row


def build_trie(
    values: NDArray[Any],
    offsets: IntArray,
    length: int,
    count: int,
    vocab_size: int,
    *,
    progress: Progress | None = None,
) -> Trie:
    """Return the trie of `count` sequences. values, offsets, length: see `Sequences`.

    Raises IndexError with the flat index of the first token outside 0 .. vocab_size - 1.
    """
    report = progress or (lambda stage, done, total: None)
    index, shared = sort(values, offsets, length, count, vocab_size, progress)
    most = length if not offsets.size else int(np.diff(offsets).max())
    rows = np.zeros(most + 2, np.int64)
    edges = np.zeros(most + 2, np.int64)
    tails, distinct, shortest, longest = count_nodes(offsets, length, index, shared, rows, edges)
    num_rows, num_edges = int(rows.sum()), int(edges.sum())
    num_states = num_rows + tails + 2
    target_type: type[np.signedinteger[Any]] = np.int64 if num_edges + num_states >= WIDE else np.int32
    index = index.astype(np.promote_types(target_type, index.dtype), copy=False)  # kernels take all wide or none

    nodes = _Nodes(
        np.empty(num_rows + 1, target_type), np.empty(num_edges + tails + 2, np.min_scalar_type(vocab_size + 1)),
        np.empty(num_edges, target_type), np.zeros(num_rows, np.bool_), np.empty(distinct + 1, index.dtype),
        np.empty(distinct, target_type),
    )  # fmt: skip
    nodes.row_start[num_rows] = num_edges
    nodes.edge_token[-2:] = vocab_size, vocab_size + 1
    nodes.item_start[distinct] = count
    levels = _Levels(
        np.concatenate([[0], np.cumsum(rows)[:-1]]), np.concatenate([[0], np.cumsum(edges)[:-1]]),
        np.zeros(rows.size, np.int64),
    )  # fmt: skip
    at = np.array([0, -1, 0, 0, 0])
    for lo in range(0, count, CHUNK):
        hi = min(lo + CHUNK, count)
        fill_nodes(Sequences(values, offsets, length), index, shared, at, hi, levels, nodes, vocab_size)
        report("building", hi, count)
    item_start, index = _by_state(nodes.item_start, index, nodes.item_state, nodes.accepting)
    depth = int(np.count_nonzero(rows))  # row counts are positive down to the deepest row
    return Trie(
        row_start=nodes.row_start,
        edge_token=nodes.edge_token,
        edge_target=nodes.edge_target,
        accepting=nodes.accepting,
        level_start=np.concatenate([[0], np.cumsum(rows[:depth])]),
        item_start=item_start,
        item_row=index,
        min_length=int(shortest),
        max_length=int(longest),
    )


def _by_state(
    item_start: IntArray, item_row: IntArray, item_state: IntArray, accepting: NDArray[np.bool_]
) -> tuple[IntArray, IntArray]:
    """Reorder groups of equal sequences by the state they end in, so that accepting states and groups match up."""
    if not accepting.any():  # all end in tails, and tails were written in order
        return item_start, item_row
    order = np.argsort(item_state, kind="stable")
    sizes = np.diff(item_start)[order]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(item_start.dtype)
    source = np.repeat(item_start[:-1][order] - first[:-1], sizes) + np.arange(item_row.size)
    return first, item_row[source]


@kernel
def count_nodes(
    offsets: Int64Array, length: int, index: IntArray, shared: Int32Array, rows: Int64Array, edges: Int64Array
) -> tuple[Int, Int, Int, Int]:
    """Add rows and edges by depth to `rows` and `edges`; return (tail entries, distinct, shortest, longest).

    The latter are numbers of distinct sequences, and of tokens of the shortest and the longest.
    """
    n = index.size
    tails: Int = 0
    distinct = 0
    shortest: Int = np.int64(1) << 62
    longest: Int = 0
    i = 0
    before = -1  # tokens shared with the sequence before
    while i < n:
        j = i + 1
        while j < n and shared[j] < 0:
            j += 1
        after = shared[j] if j < n else 0  # the root is always a row
        size = begin_of(offsets, length, index[i] + 1) - begin_of(offsets, length, index[i])
        shortest = min(shortest, size)
        longest = max(longest, size)
        for depth in range(before + 1, after + 1):
            rows[depth] += 1
        branch = max(before, after)
        for depth in range(max(before, 0), min(branch + 1, size)):
            edges[depth] += 1
        if branch < size:
            tails += size - branch  # its tokens after the last edge, and `end`
        distinct += 1
        before = after
        i = j
    return tails, distinct, shortest, longest


@kernel
def fill_nodes(
    sequences: Sequences, index: IntArray, shared: Int32Array, at: Int64Array, stop: int, levels: _Levels,
    nodes: _Nodes, end: int,
) -> None:  # fmt: skip
    """Write the nodes of sorted sequences up to number `stop`; `at` and `levels` say where the last call ended.

    at: next sequence, tokens that it shares with the one before, next tail entry, next group, unused. end: the entry at
    which a tail ends.
    """
    values, offsets, length = sequences
    next_row, next_edge, row_of = levels
    row_start, edge_token, edge_target, accepting, item_start, item_state = nodes
    num_rows, num_edges = accepting.size, edge_target.size
    n = index.size
    i, before, tail, group = at[0], at[1], at[2], at[3]
    fetched = i
    while i < stop:
        if i >= fetched:
            # sequences lie in no order: touch a block of them first, so that their cache misses overlap
            near = min(fetched + _FETCH, n)
            touched = np.int64(0)
            for k in range(fetched, near):
                touched += np.int64(values[begin_of(offsets, length, index[k])])
            at[4] = touched
            fetched = near
        j = i + 1
        while j < n and shared[j] < 0:
            j += 1
        after = shared[j] if j < n else np.int64(0)
        begin = begin_of(offsets, length, index[i])
        size = begin_of(offsets, length, index[i] + 1) - begin
        branch = max(before, after)
        for depth in range(before + 1, after + 1):
            row_of[depth] = next_row[depth]
            row_start[next_row[depth]] = next_edge[depth]
            next_row[depth] += 1
        for depth in range(max(before, 0), min(branch + 1, size)):
            edge = next_edge[depth]
            next_edge[depth] = edge + 1
            edge_token[edge] = values[begin + depth]
            edge_target[edge] = row_of[depth + 1] if depth < branch else num_rows + tail
        item_start[group] = i
        if branch < size:
            for depth in range(branch + 1, size):
                edge_token[num_edges + tail] = values[begin + depth]
                tail += 1
            edge_token[num_edges + tail] = end
            item_state[group] = num_rows + tail
            tail += 1
        else:  # a prefix of the next sequence
            accepting[row_of[size]] = True
            item_state[group] = row_of[size]
        group += 1
        before = after
        i = j
    at[0], at[1], at[2], at[3] = i, before, tail, group


@kernel
def fill_masks(row_start: IntArray, edge_token: UintArray, base_row: Int32Array, masks: Uint32Array) -> None:
    """Set the bit of each edge's token in the mask (U, words) of each row that has one."""
    for row in range(base_row.size):
        if base_row[row] >= 0:
            for e in range(row_start[row], row_start[row + 1]):
                token = np.int64(edge_token[e])
                masks[base_row[row], token >> 5] |= np.uint32(1) << np.uint32(token & 31)
