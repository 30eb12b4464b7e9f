"""The canonical form of a DFA: trimmed, minimal, numbered breadth first, symbol classes merged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Int32Array, Int64Array, Uint16Array
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from .budget import Meter
from .dfa import Accepting, ClassOf, Dfa, Transition
from .refinement import refine, rounds

_BYTES_PER_TRANSITION = 20  # what the kernel holds for each: target, source and label, twice the source while trimming


def canonical(
    class_of: ClassOf, transition: Transition, accepting: Accepting, start: int = 0, meter: Meter | None = None
) -> Dfa:
    """Return the canonical DFA of the language that these arrays accept from `start`.

    Takes class_of (A,) uint16, transition (N, C) int32 with -1 for none, accepting (N,) bool. Two canonical DFAs
    over one alphabet accept the same language if and only if their arrays are equal.
    """
    label = accepting.astype(np.int32)
    label -= 1
    classes, rows, label = canonical_labels(class_of, transition, label, start, meter)
    return Dfa(classes, rows, label >= 0)


def canonical_labels(
    class_of: ClassOf, transition: Transition, label: NDArray[np.int32], start: int = 0, meter: Meter | None = None
) -> tuple[ClassOf, Transition, NDArray[np.int32]]:
    """Return class_of, transition and label in canonical form, where states that accept do so with a label.

    Takes what `canonical` does, and for accepting label (N,) int32, -1 for states that do not accept.
    """
    if meter is not None:
        meter.check(bytes=transition.size * _BYTES_PER_TRANSITION, doing="minimising")
    good, classes, rows, labels = _canonical(class_of, transition, label, start)
    if not good:
        raise ValueError(
            f"these arrays are no DFA: class_of {class_of.shape} must lie below {transition.shape[1]}, transition "
            f"{transition.shape} and start {start} below {transition.shape[0]}, and accepting must be one per state"
        )
    return classes, rows, labels


@kernel
def _canonical(
    class_of: Uint16Array, transition: Int32Array, label: Int32Array, start: int
) -> tuple[bool, Uint16Array, Int32Array, Int32Array]:
    """Return (whether the arrays are a DFA, class_of, transition, label) in canonical form."""
    N, C = transition.shape
    no_language = np.zeros(class_of.size, np.uint16), np.full((1, 1), -1, np.int32), np.full(1, -1, np.int32)
    good = 0 <= start < N and label.size == N and class_of.size > 0
    for c in class_of:
        good = good and c < C
    if good:
        for s in range(N):
            for c in range(C):
                good = good and -1 <= transition[s, c] < N
    if not good:
        return False, no_language[0], no_language[1], no_language[2]

    # equal columns are merged first: that is what makes the rest cheap where classes came as single symbols
    merged, columns = merge_columns(class_of, transition)
    K = columns.size
    kept, number = _trim(transition, columns, label, start)
    count = kept.size
    if count == 0:
        return True, no_language[0], no_language[1], no_language[2]

    # the transitions that are left
    to = np.empty((count, K), np.int32)
    ends = label[kept]
    for i in range(count):
        for k in range(K):
            t = transition[kept[i], columns[k]]
            to[i, k] = number[t] if t >= 0 else -1
    block, blocks, done = rounds(to, ends)
    if done:
        member = np.empty(blocks, np.int32)
        for i in range(count - 1, -1, -1):
            member[block[i]] = i
    else:
        source, by, into = _incoming(to)
        block, member, blocks = refine(source, by, into, ends >= 0, K, block, blocks)
    if is_late():  # blocks may not be right yet, so that not all are found below
        return True, no_language[0], no_language[1], no_language[2]

    # one row per block, numbered breadth first
    rows = np.full((blocks, K), -1, np.int32)
    order = np.empty(blocks, np.int32)
    place = np.full(blocks, -1, np.int32)
    order[0] = block[number[start]]
    place[order[0]] = 0
    found = 1
    for i in range(blocks):
        for k in range(K):
            t = to[member[order[i]], k]
            if t >= 0:
                b = block[t]
                if place[b] < 0:
                    place[b] = found
                    order[found] = b
                    found += 1
                rows[i, k] = place[b]

    # merging states can have made more columns equal
    merged, columns = merge_columns(merged, rows)
    out = np.empty((blocks, columns.size), np.int32)
    out_ends = np.empty(blocks, np.int32)
    for i in range(blocks):
        out_ends[i] = ends[member[order[i]]]
        for k in range(columns.size):
            out[i, k] = rows[i, columns[k]]
    return True, merged, out, out_ends


@kernel
def _incoming(to: Int32Array) -> tuple[Int32Array, Int32Array, Int64Array]:
    """Return transitions to (N, K) by the state that they lead to: its sources, their classes, where each begins."""
    count, K = to.shape
    into = np.zeros(count + 1, np.int64)
    for i in range(count):
        for k in range(K):
            if to[i, k] >= 0:
                into[to[i, k] + 1] += 1
    for i in range(count):
        into[i + 1] += into[i]
    source = np.empty(into[count], np.int32)
    by = np.empty(into[count], np.int32)
    fill = into[:count].copy()
    for i in range(count):
        for k in range(K):
            t = to[i, k]
            if t >= 0:
                source[fill[t]] = i
                by[fill[t]] = k
                fill[t] += 1
    return source, by, into


@kernel
def merge_columns(class_of: Uint16Array, transition: Int32Array) -> tuple[Uint16Array, Int32Array]:
    """Return class_of (A,) with classes in order of their smallest symbol, and the column (K,) of each class."""
    N, C = transition.shape
    digest = np.zeros(C, np.uint64)
    for s in range(N):
        for c in range(C):
            digest[c] = (digest[c] ^ np.uint64(transition[s, c])) * np.uint64(0x9E3779B97F4A7C15)
            digest[c] ^= digest[c] >> np.uint64(29)
    merged = np.empty(class_of.size, np.uint16)
    columns = np.empty(C, np.int32)
    found = np.full(C, -1, np.int32)  # the new class of each old one
    K = 0
    for a in range(class_of.size):
        c = class_of[a]
        if found[c] < 0:
            k = 0
            while k < K:
                if digest[columns[k]] == digest[c]:
                    s = 0
                    while s < N and transition[s, columns[k]] == transition[s, c]:
                        s += 1
                    if s == N:
                        break
                k += 1
            if k == K:
                columns[K] = c
                K += 1
            found[c] = k
        merged[a] = found[c]
    return merged, columns[:K].copy()


@kernel
def _trim(transition: Int32Array, columns: Int32Array, label: Int32Array, start: int) -> tuple[Int32Array, Int32Array]:
    """Return the states on ways from start to an end, and the place (N,) of each state among them, -1 for others."""
    N = transition.shape[0]
    number = np.full(N, -1, np.int32)
    reached = np.empty(N, np.int32)
    reached[0] = start
    number[start] = 0
    count = 1
    into = np.zeros(N + 1, np.int64)
    i = 0
    while i < count:
        for c in columns:
            t = transition[reached[i], c]
            if t >= 0:
                into[t + 1] += 1
                if number[t] < 0:
                    number[t] = count
                    reached[count] = t
                    count += 1
        i += 1
    for s in range(N):
        into[s + 1] += into[s]
    source = np.empty(into[N], np.int32)
    for i in range(count):
        for c in columns:
            t = transition[reached[i], c]
            if t >= 0:
                source[into[t]] = reached[i]
                into[t] += 1
    # into[t] is now where t's sources end, and into[t - 1] where they begin
    useful = np.zeros(N, np.bool_)
    stack = np.empty(N, np.int32)
    height = 0
    for i in range(count):
        if label[reached[i]] >= 0:
            useful[reached[i]] = True
            stack[height] = reached[i]
            height += 1
    while height:
        height -= 1
        t = stack[height]
        for j in range(into[t - 1] if t else 0, into[t]):
            s = source[j]
            if not useful[s]:
                useful[s] = True
                stack[height] = s
                height += 1
    kept = 0
    for i in range(count):
        s = reached[i]
        if useful[s]:
            number[s] = kept
            reached[kept] = s
            kept += 1
        else:
            number[s] = -1
    return reached[:kept].copy(), number
