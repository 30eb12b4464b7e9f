"""Kernels over the rows of a live set's delta, (D, L) in order and none of them twice."""

from __future__ import annotations

import numpy as np

from ..kernels.arrays import BoolArray, HostArray, Int, Int64Array, UintArray
from ..kernels.compiled import kernel


@kernel
def place_rows(rows: UintArray, asked: UintArray, at: Int64Array, there: BoolArray) -> None:
    """Write how many of the rows come before each asked row (N, L), and whether it is one of them."""
    length = rows.shape[1]
    for i in range(asked.shape[0]):
        low, high = 0, rows.shape[0]
        found = False
        while low < high:
            middle = (low + high) >> 1
            depth = 0
            while depth < length and rows[middle, depth] == asked[i, depth]:
                depth += 1
            if depth < length and rows[middle, depth] < asked[i, depth]:
                low = middle + 1
            else:
                found |= depth == length
                high = middle
        at[i], there[i] = low, found


@kernel
def splice(
    rows: UintArray, counts: Int64Array, at: Int64Array, new: UintArray, new_counts: Int64Array, out: UintArray,
    out_counts: Int64Array,
) -> None:  # fmt: skip
    """Write rows (D, L) with new ones (k, L) between them, each before row at[i], and their counts; at ascends."""
    taken, length = 0, rows.shape[1]
    for i in range(at.size + 1):
        stop = at[i] if i < at.size else rows.shape[0]
        for row in range(taken, stop):
            for depth in range(length):
                out[row + i, depth] = rows[row, depth]
            out_counts[row + i] = counts[row]
        taken = stop
        if i < at.size:
            for depth in range(length):
                out[taken + i, depth] = new[i, depth]
            out_counts[taken + i] = new_counts[i]


@kernel
def crowded(rows: UintArray, at: Int64Array, widths: Int64Array) -> Int:
    """Return the first depth at which a prefix of a row at[i] has more than widths (L,) rows, or -1."""
    count, length = rows.shape
    for i in range(at.size):
        low, high = 0, count  # of the rows that share a prefix
        for depth in range(length):
            if depth:
                token = rows[at[i], depth - 1]
                first, last = at[i], at[i] + 1
                step = 1
                while first > low and rows[max(first - step, low), depth - 1] == token:
                    first = max(first - step, low)
                    step += step
                while step:  # back over those that are known to be no further
                    if first - step >= low and rows[first - step, depth - 1] == token:
                        first -= step
                    step >>= 1
                step = 1
                while last < high and rows[min(last + step, high) - 1, depth - 1] == token:
                    last = min(last + step, high)
                    step += step
                while step:
                    if last + step <= high and rows[last + step - 1, depth - 1] == token:
                        last += step
                    step >>= 1
                low, high = first, last
            if high - low > widths[depth]:
                return depth
            if high - low == 1:
                break
    return -1


@kernel
def pack_rows(rows: UintArray, begin: Int, bits: Int, per_word: Int, out: HostArray) -> None:
    """Write a word of each row (D, L): tokens begin .. begin + per_word, `bits` each, 0 beyond the last."""
    count, stop = rows.shape[0], min(begin + per_word, rows.shape[1])
    for row in range(count):
        out[row] = 0
    for depth in range(begin, stop):  # column by column, which is vector code
        shift = bits * (begin + per_word - 1 - depth)
        for row in range(count):
            out[row] |= np.int64(rows[row, depth]) << shift
