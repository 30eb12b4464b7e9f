"""Bring a DFA into canonical form: trimmed, minimal, numbered breadth first, symbol classes merged.

Minimising is partition refinement. It begins with rounds after Moore, which look at every transition: each tells apart
states by one more symbol of what follows. Where that is little, as in numbers, a few rounds are all. Where it is much,
as in long words, the rest is after Hopcroft, for partial transition functions as in Valmari and Lehtinen, "Efficient
minimization of DFAs with partial transition functions" (STACS 2008): it looks at transitions that exist, E of them,
O(log N) times each. A block splits others by all classes at once, a bit per class: most states of a UTF-8 automaton
have dozens of classes that lead to one place, and five runs of word characters in a row (1,550 states, 96 classes)
take a fifth of the time that one class after another takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from .budget import Meter
from .dfa import Accepting, ClassOf, Dfa, Transition

_BYTES_PER_TRANSITION = 20  # what the kernel holds for each: target, source and label, twice the source while trimming
_SLOW = 2  # rounds that leave the blocks fewer than 5/4 of what they were, after which others are worth more


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
def _canonical(class_of: Any, transition: Any, label: Any, start: int) -> Any:
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
    merged, columns = _merge_columns(class_of, transition)
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
    block, blocks, done = _rounds(to, ends)
    if done:
        member = np.empty(blocks, np.int32)
        for i in range(count - 1, -1, -1):
            member[block[i]] = i
    else:  # by the state they lead to
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
        block, member, blocks = refine(source, by, into, ends >= 0, K, block, blocks)

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
    merged, columns = _merge_columns(merged, rows)
    out = np.empty((blocks, columns.size), np.int32)
    out_ends = np.empty(blocks, np.int32)
    for i in range(blocks):
        out_ends[i] = ends[member[order[i]]]
        for k in range(columns.size):
            out[i, k] = rows[i, columns[k]]
    return True, merged, out, out_ends


@kernel
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


@kernel
def _trim(transition: Any, columns: Any, label: Any, start: int) -> Any:
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


# ------------------------------------------------------------------------------------------------- refinement


@kernel
def _rounds(to: Any, label: Any) -> Any:
    """Return a block (N,) for each state, their number, and whether no word tells the states of one apart.

    to: the state that each leads to by each class (N, K), -1 for none; label: that it accepts with (N,), -1 for none.
    States of different blocks are told apart by some word. It ends early where words would have to be long.
    """
    N, K = to.shape
    block = np.empty(N, np.int32)
    blocks = 0
    seen = np.full(label.max() + 2, -1, np.int32)
    for s in range(N):
        a = label[s] + 1
        if seen[a] < 0:
            seen[a] = blocks
            blocks += 1
        block[s] = seen[a]
    factor = np.empty(K + 1, np.uint64)  # as random as splitmix64 makes them, so that sums of products are as hashes
    for k in range(K + 1):
        mixed = np.uint64(k + 1) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        factor[k] = mixed | np.uint64(1)
    bits = 1
    while 1 << bits < 2 * N:
        bits += 1
    size, shift = 1 << bits, np.uint64(64 - bits)
    slots = np.empty(size, np.int32)
    after = np.empty(N, np.int32)
    member = np.empty(N, np.int32)  # a state of each new block
    digest = np.empty(N, np.uint64)  # of what that leads to
    slow = 0
    while blocks < N:
        slots[:] = -1
        found = 0
        for s in range(N):
            own = np.uint64(block[s]) * factor[K]
            for k in range(K):
                t = to[s, k]
                own += np.uint64(block[t] + 1 if t >= 0 else 0) * factor[k]
            own *= factor[0]
            at = np.int64(own >> shift)
            while slots[at] >= 0:
                b = slots[at]
                r = member[b]
                if digest[b] == own and block[r] == block[s]:
                    k = 0
                    while k < K:
                        t, u = to[s, k], to[r, k]
                        if t != u and (t < 0 or u < 0 or block[t] != block[u]):
                            break
                        k += 1
                    if k == K:
                        break
                at = (at + 1) & (size - 1)
            if slots[at] < 0:
                slots[at] = found
                member[found], digest[found] = s, own
                found += 1
            after[s] = slots[at]
        if found == blocks:
            return block, blocks, True
        slow += 4 * found < 5 * blocks
        block, after, blocks = after, block, found
        if slow == _SLOW and blocks < N:
            return block, blocks, False
    return block, blocks, True


@kernel
def refine(source: Any, label: Any, into: Any, accepting: Any, K: int, block: Any, blocks: int) -> Any:
    """Return a block (N,) for each state, the same for two if no word tells them apart, a state of each, their number.

    State t is led to from source[j] by class label[j], below K, for j in into[t] .. into[t + 1]. block: of states known
    to be told apart, (N,) below `blocks`; zeros, and 1, where nothing is known. If every state lies on a way to an
    accepting one, what is returned are the fewest blocks.
    """
    N = accepting.size
    # block b is element[first[b] : stop[b]], state s stands at place[s]
    element = np.empty(N, np.int32)
    place = np.empty(N, np.int32)
    block = block.copy()
    first = np.zeros(N, np.int32)
    stop = np.zeros(N, np.int32)
    marked = np.zeros(N, np.int32)  # how many of a block's states, moved to its front, reach the splitter
    for s in range(N):
        stop[block[s]] += 1
    for b in range(1, blocks):
        first[b] = stop[b - 1]
        stop[b] += stop[b - 1]
    for s in range(N):
        b = block[s]
        place[s] = first[b] + marked[b]
        element[place[s]] = s
        marked[b] += 1
    marked[:] = 0
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
    splitter = 0 if blocks == 1 else -1  # what all states lead to was looked at, so one block need not be
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


@kernel(inline="always")
def _compare(by: Any, s: int, t: int) -> int:
    """Return -1, 0 or 1 as the rows of s and t stand in order."""
    for w in range(by.shape[1]):
        if by[s, w] != by[t, w]:
            return -1 if by[s, w] < by[t, w] else 1
    return 0


@kernel
def _run(element: Any, begin: int, end: int, by: Any) -> int:
    """Return where the states from `begin` on cease to have equal rows."""
    j = begin + 1
    while j < end and _compare(by, element[begin], element[j]) == 0:
        j += 1
    return j


@kernel
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
