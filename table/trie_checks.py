"""Checks of a trie's arrays: levels, edges one level down, tails that each belong to one edge, masks, and items."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import TableError
from ..kernels.arrays import Int, count_bits, has_bit
from ..kernels.compiled import kernel
from . import faults
from .groups import TableArrays


class Lengths(NamedTuple):
    """Fewest and most tokens of a sequence."""

    shortest: int
    longest: int


def check_trie(arrays: TableArrays, vocab_size: int, eos: int) -> Lengths:
    """Return the lengths of a trie's sequences. Raises TableError for arrays that contradict each other."""
    rows, bases, trie = arrays.rows, arrays.bases, arrays.trie
    consistent = (
        (not rows.accepting[0], "the start accepts the empty sequence, which no decoder could write"),
        (trie.level_start.size >= 2 and trie.level_start[0] == 0, "trie.level_start does not begin at 0"),
        (trie.level_start[-1] == rows.accepting.size, "trie.level_start does not end at the last row"),
        (bool((np.diff(trie.level_start) > 0).all()), "trie.level_start does not rise"),
        (
            bases.target.size == 0 and np.array_equal(bases.mask, np.arange(len(bases.masks))),
            "a trie has one base a mask, without targets",
        ),
    )
    for holds, message in consistent:
        if not holds:
            raise TableError(message)
    fault, where, finals, leaves, shortest, longest = _first_edge_fault(arrays, vocab_size, eos)
    faults.check(fault, where)
    faults.check(*_first_item_fault(arrays, finals + leaves))
    return Lengths(int(shortest), int(longest))


@kernel
def _first_edge_fault(arrays: TableArrays, vocab_size: int, eos: int) -> tuple[Int, Int, Int, Int, Int, Int]:
    """Return (fault, where, accepting rows, tails, shortest, longest sequence) of rows, edges, masks and tails."""
    edge_start, edge_token, edge_target = arrays.rows.edge_start, arrays.edges.token, arrays.edges.target
    row_base, masks, level_start = arrays.rows.base, arrays.bases.masks, arrays.trie.level_start
    rows, edges, end = edge_start.size - 1, edge_target.size, edge_token.size
    states = rows + end - edges
    if edge_start[0] != 0 or edge_start[rows] != edges:
        return faults.EDGE_STARTS, 0, 0, 0, 0, 0
    if edge_token[end - 2] != vocab_size or edge_token[end - 1] != vocab_size + 1:
        return faults.TAIL_END, end, 0, 0, 0, 0
    if end - 2 > edges and edge_token[end - 3] != vocab_size:
        return faults.TAIL_END, end, 0, 0, 0, 0
    shortest, longest = np.int64(1) << 62, np.int64(0)
    finals, leaves, walked, next_base = 0, 0, 0, 0
    for level in range(level_start.size - 1):
        last_level = level + 2 == level_start.size
        low = rows if last_level else level_start[level + 1]
        high = rows if last_level else level_start[level + 2]
        first_row, next_row, previous_tail = level_start[level], low, np.int64(-1)
        masked = first_row < row_base.size and row_base[first_row] >= 0
        for s in range(first_row, level_start[level + 1]):
            a, b = edge_start[s], edge_start[s + 1]
            if b < a or b > edges:
                return faults.EDGE_STARTS, s, 0, 0, 0, 0
            if arrays.rows.accepting[s]:
                finals += 1
                shortest, longest = min(shortest, np.int64(level)), max(longest, np.int64(level))
            elif a == b:
                return faults.DEAD_END_ROW, s, 0, 0, 0, 0
            base = row_base[s] if s < row_base.size else -1
            if base < -1 or base >= masks.shape[0]:
                return faults.STRAY_BASE, s, 0, 0, 0, 0
            if (base >= 0) != masked:
                return faults.SOME_MASKS, s, 0, 0, 0, 0
            if base >= 0:
                if base != next_base:
                    return faults.MASK_ORDER, s, 0, 0, 0, 0
                next_base += 1
            previous = -1
            for e in range(a, b):
                token = np.int64(edge_token[e])
                if token <= previous or token >= vocab_size:
                    return faults.UNSORTED_ROW, e, 0, 0, 0, 0
                if token == eos:
                    return faults.EOS_EDGE, e, 0, 0, 0, 0
                previous = int(token)
                target = edge_target[e]
                if base >= 0 and not has_bit(masks[base], token):
                    return faults.MASK_IS_NOT_EDGES, s, 0, 0, 0, 0
                if low <= target < high:
                    if target != next_row:
                        return faults.EDGE_ORDER, e, 0, 0, 0, 0
                    next_row += 1
                    continue
                if not rows <= target < states - 2:
                    return faults.STRAY_EDGE, e, 0, 0, 0, 0
                if target <= previous_tail:
                    return faults.EDGE_ORDER, e, 0, 0, 0, 0
                previous_tail = np.int64(target)
                entry = edges + target - rows
                while edge_token[entry] < vocab_size:
                    if edge_token[entry] == eos:
                        return faults.EOS_EDGE, entry, 0, 0, 0, 0
                    entry += 1
                if edge_token[entry] > vocab_size:
                    return faults.TAIL_TOKEN, entry, 0, 0, 0, 0
                length = level + 1 + entry - (edges + target - rows)
                shortest, longest = min(shortest, length), max(longest, length)
                leaves += 1
                walked += length - level
            if base >= 0 and count_bits(masks[base]) != b - a:
                return faults.MASK_IS_NOT_EDGES, s, 0, 0, 0, 0
        if next_row != high:
            return faults.EDGE_ORDER, low, 0, 0, 0, 0
    ends = 0
    for e in range(edges, end - 2):
        ends += edge_token[e] == vocab_size
    if ends != leaves or walked != end - 2 - edges:
        return faults.SHARED_TAIL, edges, 0, 0, 0, 0
    return faults.SOUND, 0, finals, leaves, shortest, longest


@kernel
def _first_item_fault(arrays: TableArrays, finals: Int) -> tuple[Int, Int]:
    """Return (fault, where) of the way back from `finals` final states to the input."""
    item_start, item_row = arrays.trie.item_start, arrays.trie.item_row
    if item_start.size == 0 or item_start[0] != 0 or item_start[item_start.size - 1] != item_row.size:
        return faults.ITEM_STARTS, 0
    for i in range(1, item_start.size):
        if item_start[i] <= item_start[i - 1]:
            return faults.ITEM_STARTS, i
    wrong = 0  # counted without a way out of the loop, so that this is vector code
    for i in range(item_row.size):
        wrong += (item_row[i] < 0) | (item_row[i] >= item_row.size)
    if wrong:
        return faults.STRAY_ITEM, 0
    if finals != item_start.size - 1:
        return faults.ITEM_COUNT, 0
    return faults.SOUND, 0
