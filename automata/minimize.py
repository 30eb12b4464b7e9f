"""Bring a DFA into canonical form: trimmed, minimal, numbered breadth first, symbol classes merged.

Minimising is partition refinement after Hopcroft, for partial transition functions as in Valmari and Lehtinen,
"Efficient minimization of DFAs with partial transition functions" (STACS 2008): it looks at transitions that exist, E
of them, O(log N) times each. A block splits others by all classes at once, a bit per class: most states of a UTF-8
automaton have dozens of classes that lead to one place, and five runs of word characters in a row (1,550 states, 96
classes) take a fifth of the time that one class after another takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .budget import Meter
from .dfa import Accepting, ClassOf, Dfa, Transition

_BYTES_PER_TRANSITION = 16  # what the kernel holds for each: source and label, twice the source while trimming


def canonical(
    class_of: ClassOf, transition: Transition, accepting: Accepting, start: int = 0, meter: Meter | None = None
) -> Dfa:
    """Return the canonical DFA of the language that these arrays accept from `start`.

    Takes class_of (A,) uint16, transition (N, C) int32 with -1 for none, accepting (N,) bool. Two canonical DFAs
    over one alphabet accept the same language if and only if their arrays are equal.
    """
    if meter is not None:
        meter.check(bytes=transition.size * _BYTES_PER_TRANSITION, doing="minimising")
    good, classes, rows, ends = _canonical(class_of, transition, accepting, start)
    if not good:
        raise ValueError(
            f"these arrays are no DFA: class_of {class_of.shape} must lie below {transition.shape[1]}, transition "
            f"{transition.shape} and start {start} below {transition.shape[0]}, and accepting must be one per state"
        )
    return Dfa(classes, rows, ends)


@njit(cache=True, nogil=True)
def _canonical(class_of: Any, transition: Any, accepting: Any, start: int) -> Any:
    """Return (whether the arrays are a DFA, class_of, transition, accepting) in canonical form."""
    N, C = transition.shape
    no_language = np.zeros(class_of.size, np.uint16), np.full((1, 1), -1, np.int32), np.zeros(1, np.bool_)
    good = 0 <= start < N and accepting.size == N and class_of.size > 0
    for c in class_of:
        good = good and c < C
    if good:
        for s in range(N):
            for c in range(C):
                good = good and -1 <= transition[s, c] < N
    if not good:
        return False, no_language[0], no_language[1], no_language[2]

    # equal columns are merged first: that is what makes the rest cheap where classes came as single symbols
    merged, columns = _merge_columns(class_of, transition)
    K = columns.size
    kept, number = _trim(transition, columns, accepting, start)
    count = kept.size
    if count == 0:
        return True, no_language[0], no_language[1], no_language[2]

    # the transitions that are left, by the state they lead to
    into = np.zeros(count + 1, np.int64)
    ends = np.empty(count, np.bool_)
    for i in range(count):
        ends[i] = accepting[kept[i]]
        for k in range(K):
            t = transition[kept[i], columns[k]]
            if t >= 0 and number[t] >= 0:
                into[number[t] + 1] += 1
    for i in range(count):
        into[i + 1] += into[i]
    source = np.empty(into[count], np.int32)
    label = np.empty(into[count], np.int32)
    fill = into[:count].copy()
    for i in range(count):
        for k in range(K):
            t = transition[kept[i], columns[k]]
            if t >= 0 and number[t] >= 0:
                source[fill[number[t]]] = i
                label[fill[number[t]]] = k
                fill[number[t]] += 1
    block, member, blocks = refine(source, label, into, ends, K)

    # one row per block, numbered breadth first
    rows = np.full((blocks, K), -1, np.int32)
    order = np.empty(blocks, np.int32)
    place = np.full(blocks, -1, np.int32)
    order[0] = block[number[start]]
    place[order[0]] = 0
    found = 1
    for i in range(blocks):
        for k in range(K):
            t = transition[kept[member[order[i]]], columns[k]]
            if t >= 0 and number[t] >= 0:
                b = block[number[t]]
                if place[b] < 0:
                    place[b] = found
                    order[found] = b
                    found += 1
                rows[i, k] = place[b]

    # merging states can have made more columns equal
    merged, columns = _merge_columns(merged, rows)
    out = np.empty((blocks, columns.size), np.int32)
    out_ends = np.empty(blocks, np.bool_)
    for i in range(blocks):
        out_ends[i] = ends[member[order[i]]]
        for k in range(columns.size):
            out[i, k] = rows[i, columns[k]]
    return True, merged, out, out_ends


@njit(cache=True, nogil=True)
def _merge_columns(class_of: Any, transition: Any) -> Any:
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


@njit(cache=True, nogil=True)
def _trim(transition: Any, columns: Any, accepting: Any, start: int) -> Any:
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
        if accepting[reached[i]]:
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


# ------------------------------------------------------------------------------------------------- refinement


@njit(cache=True, nogil=True)
def refine(source: Any, label: Any, into: Any, accepting: Any, K: int) -> Any:
    """Return a block (N,) for each state, the same for two if no word tells them apart, a state of each, their number.

    State t is led to from source[j] by class label[j], below K, for j in into[t] .. into[t + 1]. If every state lies on
    a way to an accepting one, these are the fewest blocks.
    """
    N = accepting.size
    # block b is element[first[b] : stop[b]], state s stands at place[s]
    element = np.arange(N).astype(np.int32)
    place = np.arange(N).astype(np.int32)
    block = np.zeros(N, np.int32)
    first = np.zeros(N, np.int32)
    stop = np.zeros(N, np.int32)
    marked = np.zeros(N, np.int32)  # how many of a block's states, moved to its front, reach the splitter
    stop[0] = N
    blocks = 1
    touched = np.arange(N).astype(np.int32)  # the states that reach the splitter
    in_touched = np.full(N, -1, np.int32)  # the splitter for which a state was last touched
    touched_blocks = np.empty(N, np.int32)
    spare = np.empty(N, np.int32)
    # by which classes: one bit each; for the first split by which classes anything is reached, and acceptance
    by = np.zeros((N, K // 64 + 1), np.uint64)
    for j in range(source.size):
        by[source[j], label[j] >> 6] |= np.uint64(1) << np.uint64(label[j] & 63)
    for s in range(N):
        if accepting[s]:
            by[s, K >> 6] |= np.uint64(1) << np.uint64(K & 63)

    count = N
    splitter = 0
    while True:
        num_touched = 0
        for i in range(count):
            s = touched[i]
            b = block[s]
            here, there = place[s], first[b] + marked[b]
            other = element[there]
            element[here] = other
            place[other] = here
            element[there] = s
            place[s] = there
            if marked[b] == 0:
                touched_blocks[num_touched] = b
                num_touched += 1
            marked[b] += 1
        for i in range(num_touched):
            b = touched_blocks[i]
            begin, middle, end = first[b], first[b] + marked[b], stop[b]
            marked[b] = 0
            _sort(element, begin, middle, by, spare)
            # the largest part keeps the number, so that a state's block halves each time it splits others
            largest, keeps = end - middle, middle
            j = begin
            while j < middle:
                after = _run(element, j, middle, by)
                if after - j > largest:
                    largest, keeps = after - j, j
                j = after
            j = begin
            while j < end:
                after = _run(element, j, middle, by) if j < middle else end
                if j == keeps:
                    first[b] = j
                    stop[b] = after
                else:
                    first[blocks] = j
                    stop[blocks] = after
                    for m in range(j, after):
                        block[element[m]] = blocks
                    blocks += 1
                for m in range(j, after if j < middle else j):
                    place[element[m]] = m
                j = after
        for i in range(count):
            by[touched[i]] = 0
        splitter += 1
        if splitter >= blocks:
            break
        count = 0
        for i in range(first[splitter], stop[splitter]):
            for j in range(into[element[i]], into[element[i] + 1]):
                s = source[j]
                by[s, label[j] >> 6] |= np.uint64(1) << np.uint64(label[j] & 63)
                if in_touched[s] != splitter:
                    in_touched[s] = splitter
                    touched[count] = s
                    count += 1
    member = np.empty(blocks, np.int32)
    for b in range(blocks):
        member[b] = element[first[b]]
    return block, member, blocks


@njit(cache=True, nogil=True, inline="always")
def _compare(by: Any, s: int, t: int) -> int:
    """Return -1, 0 or 1 as the rows of s and t stand in order."""
    for w in range(by.shape[1]):
        if by[s, w] != by[t, w]:
            return -1 if by[s, w] < by[t, w] else 1
    return 0


@njit(cache=True, nogil=True)
def _run(element: Any, begin: int, end: int, by: Any) -> int:
    """Return where the states from `begin` on cease to have equal rows."""
    j = begin + 1
    while j < end and _compare(by, element[begin], element[j]) == 0:
        j += 1
    return j


@njit(cache=True, nogil=True)
def _sort(element: Any, begin: int, end: int, by: Any, spare: Any) -> None:
    """Sort states begin .. end by their rows, by merging; equal ones, most often all, cost one pass."""
    if _run(element, begin, end, by) >= end:
        return
    width = 1
    while width < end - begin:
        for low in range(begin, end, 2 * width):
            middle, high = min(low + width, end), min(low + 2 * width, end)
            i, j = low, middle
            for k in range(low, high):
                if j >= high or (i < middle and _compare(by, element[i], element[j]) <= 0):
                    spare[k] = element[i]
                    i += 1
                else:
                    spare[k] = element[j]
                    j += 1
        element[begin:end] = spare[begin:end]
        width *= 2
