"""Partition refinement: which states of a DFA no word tells apart.

`rounds` is after Moore and looks at every transition: each round tells states apart by one more symbol. For languages
such as numbers a few rounds are all. For languages such as long words, `refine` does the rest. It is after Hopcroft,
for partial transition functions as in Valmari and Lehtinen, "Efficient minimization of DFAs with partial transition
functions" (STACS 2008): it looks at transitions that exist, E of them, O(log N) times each. A block splits others by
all classes at once, a bit per class: most states of a UTF-8 automaton have dozens of classes that lead to one place,
and five runs of word characters in a row (1,550 states, 96 classes) take a fifth of the time that one class after
another takes.
"""

from __future__ import annotations

import numpy as np

from ..kernels.arrays import BoolArray, Int, Int32Array, Int64Array, IntegerArray, Uint64Array
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late

_SLOW = 2  # rounds that raise the number of blocks to less than 5/4, after which `refine` is worth more


@kernel
def rounds(to: Int32Array, label: Int32Array) -> tuple[Int32Array, Int, bool]:
    """Return a block (N,) for each state, the number of blocks, and whether no word tells states of one block apart.

    to: the state that each leads to by each class (N, K), -1 for none. label: the label that each accepts with (N,), -1
    for none. Some word tells apart any two states of different blocks. Ends early if words would have to be long.
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
    digest = np.empty(N, np.uint64)  # of the blocks that it leads to
    slow = 0
    while blocks < N and not is_late():
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
def refine(
    source: Int32Array, label: Int32Array, into: Int64Array, accepting: BoolArray, K: int, block: Int32Array,
    blocks: Int,
) -> tuple[Int32Array, Int32Array, Int]:  # fmt: skip
    """Return a block (N,) for each state, the same for two if no word tells them apart, a state of each, their number.

    State t is led to from source[j] by class label[j], below K, for j in into[t] .. into[t + 1]. block: (N,) numbers
    below `blocks`, different for states that are known to be told apart; zeros, and 1, where nothing is known. If every
    state lies on a way to an accepting one, the blocks that are returned are the fewest.
    """
    N = accepting.size
    block = block.copy()
    element, place, first, stop = _partitioned(block, blocks)
    marked = np.zeros(N, np.int32)  # how many of a block's states, moved to its front, lead to the splitter
    touched = np.arange(N).astype(np.int32)  # the states that lead to the splitter
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
    while not is_late():
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


@kernel
def _partitioned(block: Int32Array, blocks: Int) -> tuple[Int32Array, Int32Array, Int32Array, Int32Array]:
    """Return states by block: block b is element[first[b] : stop[b]], and state s stands at place[s].

    All four arrays have an entry for each state, of which there may be as many blocks.
    """
    N = block.size
    element = np.empty(N, np.int32)
    place = np.empty(N, np.int32)
    first = np.zeros(N, np.int32)
    stop = np.zeros(N, np.int32)
    for s in range(N):
        stop[block[s]] += 1
    for b in range(1, blocks):
        first[b] = stop[b - 1]
        stop[b] += stop[b - 1]
    placed = first.copy()
    for s in range(N):
        b = block[s]
        place[s] = placed[b]
        element[place[s]] = s
        placed[b] += 1
    return element, place, first, stop


@kernel(inline="always")
def _compare(by: IntegerArray, s: int, t: int) -> int:
    """Return -1, 0 or 1 as the rows of s and t stand in order."""
    for w in range(by.shape[1]):
        if by[s, w] != by[t, w]:
            return -1 if by[s, w] < by[t, w] else 1
    return 0


@kernel
def _run(element: Int32Array, begin: int, end: int, by: Uint64Array) -> int:
    """Return where the states from `begin` on cease to have equal rows."""
    j = begin + 1
    while j < end and _compare(by, element[begin], element[j]) == 0:
        j += 1
    return j


@kernel
def _sort(element: Int32Array, begin: int, end: int, by: Uint64Array, spare: Int32Array) -> None:
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
