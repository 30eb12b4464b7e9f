"""The subset construction: makes a nondeterministic automaton deterministic.

A state of the DFA is a set of NFA states. Only NFA states with edges count, and the end of the fragment, and of each
chain of states (`Nfa.chains`) only the first: it can do all that the others can.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Int, Int32Array, Int64Array, Uint16Array, Uint64Array, resized
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from .budget import Meter
from .dfa import Dfa
from .minimize import canonical
from .nfa import Fragment, Nfa

_DONE, _STATES, _POOL = range(3)  # why the kernel came back


class _ByState(NamedTuple):
    """An NFA of n states over classes of symbols, its edges and epsilons by state."""

    edges: Int32Array  # (E, 3) lowest class, highest class, next state
    edge_start: Int32Array  # (n + 1,) state s has the edges edge_start[s] .. edge_start[s + 1]
    epsilon_start: Int32Array  # (n + 1,)
    epsilon_to: Int32Array  # (P,) next states
    chain: Int32Array  # (n,) the chain of each state, -1 for none; (0,) if there are no chains
    place: Int32Array  # (n,) its place there
    start: int
    end: int


class _Sets(NamedTuple):
    """The DFA states that were found: state i is the NFA states pool[start[i] : start[i + 1]], in no order."""

    transition: Int32Array  # (capacity, C)
    accepting: NDArray[np.bool_]  # (capacity,)
    start: Int64Array  # (capacity + 1,)
    digest: NDArray[np.uint64]  # (capacity,)
    pool: Int32Array

    def with_states(self, capacity: int, count: int) -> _Sets:
        """Return these sets, `count` of them, with room for more."""
        transition, accepting, digest = (
            resized(array, capacity, count) for array in (self.transition, self.accepting, self.digest)
        )
        return _Sets(transition, accepting, resized(self.start, capacity + 1, count + 1), digest, self.pool)


class _Progress(NamedTuple):
    """What one call of the kernel leaves to the next."""

    counts: Int64Array  # DFA states done, DFA states found, pool entries used, the last stamp
    alone: Int32Array  # (n,) the DFA state of the closure of one NFA state, -1 while unknown, -2 for none
    stamp: Int64Array  # (n,) the last closure that each NFA state was in


def determinize(nfa: Nfa, fragment: Fragment, meter: Meter | None = None) -> Dfa:
    """Return the canonical DFA of a fragment's language. Raises BudgetError."""
    meter = nfa.meter if meter is None else meter
    n = nfa.num_states
    meter.check(bytes=3 * nfa.nbytes + 16 * n, doing="determinising")
    edges, epsilons = nfa.arrays()
    class_of, highest = _classes(edges, nfa.alphabet)
    C = int(class_of.max()) + 1
    rows, edge_start, epsilon_start, epsilon_to = _sorted(edges, epsilons, n, class_of, highest)
    by_state = _ByState(rows, edge_start, epsilon_start, epsilon_to, *nfa.chains(), fragment.start, fragment.end)
    capacity, room = 64, n + 256
    sets = _Sets(
        np.empty((capacity, C), np.int32), np.empty(capacity, np.bool_), np.empty(capacity + 1, np.int64),
        np.empty(capacity, np.uint64), np.empty(room, np.int32),
    )  # fmt: skip
    progress = _Progress(np.zeros(4, np.int64), np.full(n, -1, np.int32), np.zeros(n, np.int64))
    while True:
        why = _subsets(by_state, sets, progress)
        count = int(progress.counts[1])
        if why == _DONE:
            break
        if why == _STATES:
            meter.check(states=capacity + 1, doing="determinising")
            capacity = min(4 * capacity, max(meter.budget.states, capacity + 1))
        else:
            room = 2 * room + n
        meter.check(states=count, bytes=capacity * (4 * C + 25) + 4 * room, doing="determinising")
        if why == _STATES:
            sets = sets.with_states(capacity, count)
        else:
            sets = sets._replace(pool=resized(sets.pool, room, int(progress.counts[2])))
    return canonical(class_of, sets.transition[:count], sets.accepting[:count], meter=meter)


@kernel
def _classes(edges: Int32Array, alphabet: int) -> tuple[Uint16Array, Int32Array]:
    """Return the class of each symbol (A,), and the highest class among symbols 0 .. a for each a (A,).

    Two symbols are of one class if the same ranges hold them. Classes are numbered by their smallest symbols, so a
    range of symbols holds whole classes, and their numbers follow each other.
    """
    cls = np.zeros(alphabet, np.int64)
    size = np.zeros(alphabet + 1, np.int64)
    hits = np.zeros(alphabet + 1, np.int64)
    moved = np.zeros(alphabet + 1, np.int64)
    seen = np.zeros(alphabet * alphabet, np.bool_)
    size[0] = alphabet
    count = 1
    for e in range(edges.shape[0]):
        if is_late():
            break
        low, high = edges[e, 1], edges[e, 2]
        if seen[low * alphabet + high]:
            continue
        seen[low * alphabet + high] = True
        for a in range(low, high + 1):
            hits[cls[a]] += 1
        for a in range(low, high + 1):
            c = cls[a]
            if hits[c]:
                moved[c] = c
                if hits[c] < size[c]:  # the range cuts this class in two
                    moved[c] = count
                    size[count] = hits[c]
                    size[c] -= hits[c]
                    count += 1
                hits[c] = 0
            cls[a] = moved[c]
    class_of = np.empty(alphabet, np.uint16)
    highest = np.empty(alphabet, np.int32)
    number = np.full(alphabet + 1, -1, np.int64)
    found = 0
    for a in range(alphabet):
        if number[cls[a]] < 0:
            number[cls[a]] = found
            found += 1
        class_of[a] = number[cls[a]]
        highest[a] = found - 1
    return class_of, highest


@kernel
def _sorted(
    edges: Int32Array, epsilons: Int32Array, n: int, class_of: Uint16Array, highest: Int32Array
) -> tuple[Int32Array, Int32Array, Int32Array, Int32Array]:
    """Return the first four arrays of `_ByState`. class_of, highest: see `_classes`."""
    E = edges.shape[0]
    edge_start = np.zeros(n + 1, np.int32)
    for e in range(E):
        edge_start[edges[e, 0] + 1] += 1
    epsilon_start = np.zeros(n + 1, np.int32)
    for e in range(epsilons.shape[0]):
        epsilon_start[epsilons[e, 0] + 1] += 1
    for s in range(n):
        edge_start[s + 1] += edge_start[s]
        epsilon_start[s + 1] += epsilon_start[s]
    rows = np.empty((E, 3), np.int32)
    fill = edge_start[:n].copy()
    for e in range(E):
        at = fill[edges[e, 0]]
        fill[edges[e, 0]] += 1
        rows[at, 0] = class_of[edges[e, 1]]
        rows[at, 1] = highest[edges[e, 2]]
        rows[at, 2] = edges[e, 3]
    epsilon_to = np.empty(epsilons.shape[0], np.int32)
    fill = epsilon_start[:n].copy()
    for e in range(epsilons.shape[0]):
        epsilon_to[fill[epsilons[e, 0]]] = epsilons[e, 1]
        fill[epsilons[e, 0]] += 1
    return rows, edge_start, epsilon_start, epsilon_to


@kernel
def _subsets(nfa: _ByState, sets: _Sets, progress: _Progress) -> int:
    """Go on with the construction until it is done or short of room; return which.

    A call that stops early loses only the row at hand.
    """
    # one loop of over 100 lines: with kernels of their own for cutting classes, closing a set and finding it, it takes
    # twice the time, as numba counts references to each array that it hands on
    edges, edge_start, epsilon_start, epsilon_to, chain, place, start, end = nfa
    transition, accepting, set_start, digest, pool = sets
    counts, alone, stamp = progress
    n, C, capacity = stamp.size, transition.shape[1], accepting.size
    done, count, used, mark = counts[0], counts[1], counts[2], counts[3]
    slots = _slots_of(digest, count, capacity)
    stack = np.empty(n, np.int32)
    earliest = np.full(chain.max() + 1 if chain.size else 0, -1, np.int32)  # the first member of each chain
    # intervals of classes that the same edges hold: whether one begins at a class, the one of each class, where each
    # begins, and where its targets end
    cut, interval = np.zeros(C + 1, np.bool_), np.empty(C, np.int32)
    begins, stop = np.empty(C + 1, np.int32), np.empty(C + 1, np.int64)
    targets = np.empty(256, np.int32)
    why = _DONE
    if count == 0:
        set_start[0] = 0
        done = -1  # the row before the first: its only target is the start
    while done < count and not is_late():
        intervals = 1
        if done < 0:
            stop[0] = 1
            targets[0] = start
        else:
            lo, hi = set_start[done], set_start[done + 1]
            for i in range(lo, hi):
                for e in range(edge_start[pool[i]], edge_start[pool[i] + 1]):
                    cut[edges[e, 0]] = True
                    cut[edges[e, 1] + 1] = True
            intervals = 0
            for c in range(C):
                if cut[c]:
                    begins[intervals] = c
                    stop[intervals] = 0
                    intervals += 1
                    cut[c] = False
                interval[c] = intervals - 1
                transition[done, c] = -1
            cut[C] = False
            begins[intervals] = C
            for i in range(lo, hi):
                for e in range(edge_start[pool[i]], edge_start[pool[i] + 1]):
                    for k in range(interval[edges[e, 0]], interval[edges[e, 1]] + 1):
                        stop[k] += 1
            total = 0
            for k in range(intervals):
                total += stop[k]
                stop[k] = total - stop[k]
            if total > targets.size:
                targets = np.empty(2 * total, np.int32)
            for i in range(lo, hi):
                for e in range(edge_start[pool[i]], edge_start[pool[i] + 1]):
                    for k in range(interval[edges[e, 0]], interval[edges[e, 1]] + 1):
                        targets[stop[k]] = edges[e, 2]
                        stop[k] += 1
        lo = 0
        for k in range(intervals):
            hi = stop[k]
            if lo == hi:
                continue
            single = True
            for i in range(lo + 1, hi):
                single = single and targets[i] == targets[lo]
            state = alone[targets[lo]] if single else -1
            if state == -1:
                if used + n > pool.size:
                    why = _POOL
                    break
                # the closure goes to the pool's end, and stays there if it is new
                mark += 1
                height = 0
                for i in range(lo, hi):
                    if stamp[targets[i]] != mark:
                        stamp[targets[i]] = mark
                        stack[height] = targets[i]
                        height += 1
                size = 0
                code = np.uint64(0)
                final = False
                while height:
                    height -= 1
                    s = stack[height]
                    if s == end or edge_start[s] < edge_start[s + 1]:
                        pool[used + size] = s
                        size += 1
                        if chain.size and chain[s] >= 0:
                            first = earliest[chain[s]]
                            if first < 0 or place[s] < place[first]:
                                earliest[chain[s]] = s
                    for e in range(epsilon_start[s], epsilon_start[s + 1]):
                        t = epsilon_to[e]
                        if stamp[t] != mark:
                            stamp[t] = mark
                            stack[height] = t
                            height += 1
                found, size = size, 0
                for i in range(used, used + found):
                    s = pool[i]
                    if chain.size and chain[s] >= 0 and earliest[chain[s]] != s:
                        stamp[s] = 0  # no member of the set
                        continue
                    pool[used + size] = s
                    size += 1
                    final = final or s == end
                    code += _mixed(s)  # a sum does not care for order, so sets need not be sorted
                if chain.size:
                    for i in range(used, used + size):
                        if chain[pool[i]] >= 0:
                            earliest[chain[pool[i]]] = -1
                state = -2
                if size or done < 0:
                    slot = np.int64(code & np.uint64(slots.size - 1))
                    while slots[slot] >= 0:
                        i = slots[slot]
                        if digest[i] == code and set_start[i + 1] - set_start[i] == size:
                            j = set_start[i]
                            # all of that set are stamped as members of this one?
                            while j < set_start[i + 1] and stamp[pool[j]] == mark:
                                j += 1
                            if j == set_start[i + 1]:
                                break
                        slot = (slot + 1) & (slots.size - 1)
                    if slots[slot] < 0:
                        if count == capacity:
                            why = _STATES
                            break
                        slots[slot] = count
                        digest[count] = code
                        accepting[count] = final
                        used += size
                        set_start[count + 1] = used
                        count += 1
                    state = slots[slot]
                if single:
                    alone[targets[lo]] = state
            if done >= 0 and state >= 0:
                for c in range(begins[k], begins[k + 1]):
                    transition[done, c] = state
            lo = hi
        if why != _DONE:
            break
        done += 1
    counts[0], counts[1], counts[2], counts[3] = done, count, used, mark
    return why


@kernel
def _slots_of(digest: Uint64Array, count: int, capacity: int) -> Int32Array:
    """Return a table of open addressing with room for `capacity` digests, in which `count` have their places."""
    size = 4
    while size < 2 * capacity:
        size *= 2
    slots = np.full(size, -1, np.int32)
    for i in range(count):
        slot = np.int64(digest[i] & np.uint64(size - 1))
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot] = i
    return slots


@kernel(inline="always")
def _mixed(s: Int) -> np.uint64:
    """Return 64 bits that look random for each state."""
    mixed = (np.uint64(s) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(29))
