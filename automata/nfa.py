"""Build nondeterministic automata from fragments, and make them deterministic.

A fragment is a piece of one Nfa with a start state that nothing leads back to and an end state that nothing leaves
(Thompson's construction). Edges are ranges of symbols in one flat list, so that repeating a fragment is copying a
slice of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from .budget import Budget, Meter
from .dfa import BYTES, Dfa
from .minimize import canonical

IntArray = NDArray[np.int32]


class Fragment(NamedTuple):
    """A piece of an Nfa: where it starts and ends, and the slices of states, edges and epsilons that are its own."""

    start: int
    end: int
    state_from: int
    state_to: int
    edge_from: int
    edge_to: int
    epsilon_from: int
    epsilon_to: int


class Nfa:
    """A nondeterministic automaton under construction: fragments, each to be used once, in the order they are made.

    Building a fragment's parts right before it keeps its slices its own, which `repeat` relies on and checks.
    """

    def __init__(self, alphabet: int = BYTES, meter: Meter | None = None) -> None:
        self.alphabet = alphabet
        self.meter = Budget().begin() if meter is None else meter
        self.num_states = 0
        self._edges = array("i")  # state, lowest symbol, highest symbol, next state
        self._epsilons = array("i")  # state, next state
        self._ordered = array(
            "i"
        )  # state, its chain, its place: later ones of a chain can do nothing earlier ones cannot
        self._chains = 0

    # ---------------------------------------------------------------------------------------------------- leaves

    def symbols(self, ranges: Iterable[tuple[int, int]]) -> Fragment:
        """Return a fragment for one symbol out of these ranges, both ends included."""
        start = self.num_states
        edge_from = len(self._edges)
        for low, high in ranges:
            if not 0 <= low <= high < self.alphabet:
                raise ValueError(f"symbols {low} .. {high} are no range within 0 .. {self.alphabet - 1}")
            self._edges.extend((start, low, high, start + 1))
        return self._leaf(2, edge_from)

    def literal(self, data: bytes | Sequence[int]) -> Fragment:
        """Return a fragment for exactly this word."""
        state, edge_from = self.num_states, len(self._edges)
        for symbol in data:
            self._edges.extend((state, symbol, symbol, state + 1))
            state += 1
        return self._leaf(len(data) + 1, edge_from)

    def empty(self) -> Fragment:
        """Return a fragment for the empty word."""
        return self._leaf(1, len(self._edges))

    def nothing(self) -> Fragment:
        """Return a fragment that accepts no word."""
        return self._leaf(2, len(self._edges))

    def embed(self, dfa: Dfa) -> Fragment:
        """Return a fragment for the language of a DFA over at most this alphabet."""
        if dfa.alphabet > self.alphabet:
            raise ValueError(f"a DFA over {dfa.alphabet} symbols does not fit an alphabet of {self.alphabet}")
        return self.embed_edges(dfa.edges, dfa.num_states, [0], np.flatnonzero(dfa.accepting).tolist())

    def embed_edges(self, edges: IntArray, num_states: int, starts: Sequence[int], ends: Sequence[int]) -> Fragment:
        """Return a fragment for an automaton: edges (E, 4) as (state, low, high, next state), its starts and ends."""
        start, edge_from, epsilon_from = self.num_states, len(self._edges), len(self._epsilons)
        self.meter.check(states=start + num_states + 2, bytes=self._bytes(edges.size), doing="building the NFA")
        shifted = edges.astype(np.int32)
        shifted[:, 0] += start + 1
        shifted[:, 3] += start + 1
        self._edges.frombytes(shifted.tobytes())
        end = start + num_states + 1
        for s in starts:
            self._epsilons.extend((start, start + 1 + s))
        for s in ends:
            self._epsilons.extend((start + 1 + s, end))
        self.num_states = end + 1
        return Fragment(start, end, start, end + 1, edge_from, len(self._edges), epsilon_from, len(self._epsilons))

    def skip(self, part: Fragment, pairs: IntArray) -> Fragment:
        """Return the part with ways that read nothing between its own states, given as (state, next state), (P, 2)."""
        self._epsilons.frombytes(np.ascontiguousarray(pairs, np.int32).tobytes())
        return self._around((part,), part.start, part.end)

    # -------------------------------------------------------------------------------------------------- compounds

    def concat(self, parts: Sequence[Fragment]) -> Fragment:
        """Return a fragment for one word of each part, in order."""
        if not parts:
            return self.empty()
        last = parts[0]
        for part in parts[1:]:
            self._epsilons.extend((last.end, part.start))
            last = part
        return self._around(parts, parts[0].start, last.end)

    def union(self, parts: Sequence[Fragment]) -> Fragment:
        """Return a fragment for a word of any one of the parts."""
        if not parts:
            return self.nothing()
        if len(parts) == 1:
            return parts[0]
        start = self.num_states
        self.num_states += 2
        for part in parts:
            self._epsilons.extend((start, part.start, part.end, start + 1))
        return self._around(parts, start, start + 1)

    def repeat(self, part: Fragment, low: int, high: int | None) -> Fragment:
        """Return a fragment for low to high words of the part, or for low and more where high is None.

        x{2,4} becomes x x (x (x)?)?, all leaving by one end: every state then has few epsilons, and determinising
        takes time linear in the bound.
        """
        if low < 0 or (high is not None and high < low):
            raise ValueError(f"a part cannot be repeated {low} to {high} times")
        if high == 0:
            return self.empty()
        copies = self._copies(part, max(low, 1) if high is None else high)
        for i in range(len(copies) - 1):
            self._epsilons.extend((copies[i][1], copies[i + 1][0]))
        start, end = copies[0][0], copies[-1][1]
        if high is not None:
            for i in range(low, high):
                self._epsilons.extend((copies[i][0], end))
            self._order(part, copies[low:])
            return self._around((part,), start, end)
        # the last copy loops: states of its own keep the loop away from what comes before and after
        outer = self.num_states
        self.num_states += 2
        self._epsilons.extend((outer, start, end, copies[-1][0], end, outer + 1))
        if low == 0:
            self._epsilons.extend((outer, outer + 1))
        return self._around((part,), outer, outer + 1)

    def _copies(self, part: Fragment, count: int) -> list[tuple[int, int]]:
        """Return (start, end) of the part and of count - 1 copies of it."""
        if count == 1:
            return [(part.start, part.end)]
        size, more = part.state_to - part.state_from, count - 1
        edges = part.edge_to - part.edge_from
        epsilons = part.epsilon_to - part.epsilon_from
        self.meter.check(
            bytes=self._bytes(more * (edges + epsilons + 2 * size)),  # with what determinising keeps of each state
            doing=f"repeating a part of {size:,} states {count:,} times",
        )
        shift = self.num_states - part.state_from, size, more
        for flat, begin, stop, width in (
            (self._edges, part.edge_from, part.edge_to, 4),
            (self._epsilons, part.epsilon_from, part.epsilon_to, 2),
        ):
            own = np.frombuffer(flat, np.int32)[begin:stop]
            inside, copied = _copied(own, width, part.state_from, part.state_to, *shift)
            if not inside:
                raise ValueError(
                    "a fragment to repeat has edges to others: build its parts right before it, each used once"
                )
            del own  # which keeps the list from growing
            flat.frombytes(copied.tobytes())
        copied, self._chains = _copied_chains(
            np.array(self._ordered, np.int32), part.state_from, part.state_to, *shift, self._chains
        )
        self._ordered.frombytes(copied.tobytes())
        first = self.num_states - part.state_from
        self.num_states += more * size
        places = range(first, first + more * size, size)
        return [(part.start, part.end), *((part.start + d, part.end + d) for d in places)]

    def _order(self, part: Fragment, copies: list[tuple[int, int]]) -> None:
        """Note that of copies of a part that are all optional, each can do what the same state of a later one can.

        In x{0,40} a state of the second copy leads to all that its like in the third does, and to one x more. So of a
        set of states only the first of each such chain counts, which keeps sets small: see `_subsets`.
        """
        if len(copies) < 2:
            return
        shift = np.array([start - part.start for start, _ in copies], np.int32)
        ordered = np.array(self._ordered, np.int32)  # a copy: an array with views into it cannot grow
        triples, self._chains = _in_chains(ordered, part.state_from, part.state_to, shift, self._chains)
        self._ordered.frombytes(triples.tobytes())

    # --------------------------------------------------------------------------------------------------- plumbing

    def _leaf(self, states: int, edge_from: int) -> Fragment:
        start, epsilons = self.num_states, len(self._epsilons)
        self.num_states = stop = start + states
        return Fragment(start, stop - 1, start, stop, edge_from, len(self._edges), epsilons, epsilons)

    def _around(self, parts: Sequence[Fragment], start: int, end: int) -> Fragment:
        """Return a fragment that owns the parts and all made since."""
        _, _, states, _, edges, _, epsilons, _ = parts[0]
        for part in parts:
            states = min(states, part.state_from)
            edges = min(edges, part.edge_from)
            epsilons = min(epsilons, part.epsilon_from)
        return Fragment(start, end, states, self.num_states, edges, len(self._edges), epsilons, len(self._epsilons))

    def _bytes(self, more: int) -> int:
        return 4 * (len(self._edges) + len(self._epsilons) + more)

    def arrays(self) -> tuple[IntArray, IntArray]:
        """Return edges (E, 4) as (state, low, high, next state) and epsilons (P, 2) as (state, next state)."""
        edges = np.array(self._edges, np.int32).reshape(-1, 4)
        return edges, np.array(self._epsilons, np.int32).reshape(-1, 2)

    def chains(self) -> tuple[IntArray, IntArray]:
        """Return each state's chain, -1 for none, and its place there: (n,) each; both empty if there are no chains."""
        size = self.num_states if self._ordered else 0
        chain, place = np.full(size, -1, np.int32), np.zeros(size, np.int32)
        ordered = np.array(self._ordered, np.int32).reshape(-1, 3)
        chain[ordered[:, 0]], place[ordered[:, 0]] = ordered[:, 1], ordered[:, 2]
        return chain, place


@kernel
def _copied(own: Any, width: int, low: int, high: int, shift: int, size: int, more: int) -> Any:
    """Return whether rows of states low .. high - 1, the first and last of each of so many numbers, are of these alone.

    Then more copies of them, the first shifted by `shift` and each by `size` more, else nothing.
    """
    copied = np.empty(more * own.size, np.int32)
    for i in range(own.size):
        is_state = i % width == 0 or i % width == width - 1
        if is_state and not low <= own[i] < high:
            return False, copied[:0]
        for m in range(more):
            copied[m * own.size + i] = own[i] + (shift + m * size if is_state else 0)
    return True, copied


@kernel
def _copied_chains(ordered: Any, low: int, high: int, shift: int, size: int, more: int, chains: int) -> Any:
    """Return the triples of copies, as in `_copied`, each of whose chains is a new one; and how many there are then."""
    own = np.empty(ordered.size, np.int32)
    count, first, last = 0, chains, -1
    for i in range(0, ordered.size, 3):
        if low <= ordered[i] < high:
            own[count : count + 3] = ordered[i : i + 3]
            first, last = min(first, ordered[i + 1]), max(last, ordered[i + 1])
            count += 3
    copied = np.empty(more * count, np.int32)
    if count:
        for m in range(more):
            for i in range(0, count, 3):
                copied[m * count + i] = own[i] + shift + m * size
                copied[m * count + i + 1] = own[i + 1] + chains - first
                copied[m * count + i + 2] = own[i + 2]
            chains += last + 1 - first
    return copied, chains


@kernel
def _in_chains(ordered: Any, low: int, high: int, shift: Any, chains: int) -> Any:
    """Return triples for copies of states low .. high - 1, of which those in no chain begin one, and chains then."""
    free = np.ones(high - low, np.bool_)  # those in a chain already stay there
    for i in range(0, ordered.size, 3):
        if low <= ordered[i] < high:
            free[ordered[i] - low] = False
    states = np.flatnonzero(free)
    triples = np.empty((shift.size, states.size, 3), np.int32)
    for m in range(shift.size):
        for i in range(states.size):
            triples[m, i] = low + states[i] + shift[m], chains + i, m
    return triples, chains + states.size


# ------------------------------------------------------------------------------------------------ determinising

_DONE, _PAUSE, _STATES, _POOL = range(4)  # why the kernel came back
_WORK = 5_000_000  # set members and transitions looked at between two looks at the clock, some 20 ms


def determinize(nfa: Nfa, fragment: Fragment, meter: Meter | None = None) -> Dfa:
    """Return the canonical DFA of a fragment's language, by the subset construction."""
    meter = nfa.meter if meter is None else meter
    edges, epsilons = nfa.arrays()
    n = nfa.num_states
    class_of, rows, epsilon_start, epsilon_to, edge_start = _compress(edges, epsilons, n, nfa.alphabet)
    C = int(class_of.max()) + 1

    capacity, room = 64, n + 256
    transition = np.empty((capacity, C), np.int32)
    set_start = np.empty(capacity + 1, np.int64)
    digest = np.empty(capacity, np.uint64)
    pool = np.empty(room, np.int32)
    accepting = np.empty(capacity, np.bool_)
    alone = np.full(n, -1, np.int32)
    stamp = np.zeros(n, np.int64)
    progress = np.zeros(4, np.int64)
    chain, place = nfa.chains()
    while True:
        why = _subsets(
            rows, edge_start, epsilon_start, epsilon_to, chain, place, fragment.start, fragment.end,
            transition, accepting, set_start, digest, pool, alone, stamp, progress, _WORK,
        )  # fmt: skip
        count = int(progress[1])
        if why == _DONE:
            break
        if why == _STATES:
            meter.check(states=capacity + 1, doing="determinising")
            capacity = min(4 * capacity, max(meter.budget.states, capacity + 1))
        elif why == _POOL:
            room = 2 * room + n
        meter.check(states=count, bytes=capacity * (4 * C + 25) + 4 * room, doing="determinising")
        if why == _STATES:
            transition = grown(transition, capacity, count)
            accepting = grown(accepting, capacity, count)
            set_start = grown(set_start, capacity + 1, count + 1)
            digest = grown(digest, capacity, count)
        elif why == _POOL:
            pool = grown(pool, room, int(progress[2]))
    return canonical(class_of, transition[:count], accepting[:count], meter=meter)


def grown(values: NDArray[Any], capacity: int, used: int) -> NDArray[Any]:
    """Return an array with room for more rows, its first `used` rows as before."""
    grown = np.empty((capacity, *values.shape[1:]), values.dtype)
    grown[:used] = values[:used]
    return grown


@kernel
def _compress(edges: Any, epsilons: Any, n: int, alphabet: int) -> Any:
    """Return the alphabet in classes, and edges and epsilons by state.

    class_of (A,), numbered by smallest symbol; rows (E, 3) of lowest class, highest class and next state, those of
    state s at edge_start[s] .. edge_start[s + 1]; epsilon_to (P,) likewise. Symbols are of one class when the same
    ranges hold them, so a range holds whole classes, and classes in a row.
    """
    E = edges.shape[0]
    cls = np.zeros(alphabet, np.int64)
    size = np.zeros(alphabet + 1, np.int64)
    hits = np.zeros(alphabet + 1, np.int64)
    moved = np.zeros(alphabet + 1, np.int64)
    seen = np.zeros(alphabet * alphabet, np.bool_)
    size[0] = alphabet
    count = 1
    for e in range(E):
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
    highest = np.empty(alphabet, np.int32)  # the highest class among symbols 0 .. a
    number = np.full(alphabet + 1, -1, np.int64)
    found = 0
    for a in range(alphabet):
        if number[cls[a]] < 0:
            number[cls[a]] = found
            found += 1
        class_of[a] = number[cls[a]]
        highest[a] = found - 1

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
    return class_of, rows, epsilon_start, epsilon_to, edge_start


@kernel
def _subsets(
    rows: Any,
    edge_start: Any,
    epsilon_start: Any,
    epsilon_to: Any,
    chain: Any,
    place: Any,
    start: int,
    end: int,
    transition: Any,
    accepting: Any,
    set_start: Any,
    digest: Any,
    pool: Any,
    alone: Any,
    stamp: Any,
    progress: Any,
    work: int,
) -> int:
    """Go on with the subset construction until it is done, short of room, or `work` is spent; say which.

    DFA state i is the NFA states pool[set_start[i] : set_start[i + 1]], in no order; only those with edges, and the
    end, and of each chain only the first: it can do what the others can. alone (n,) is the DFA state of the closure of
    one NFA state, -1 while unknown, -2 for none. progress holds DFA states done, found, pool entries used, and the last
    stamp. Stopping loses only the row at hand.
    """
    n, C = stamp.size, transition.shape[1]
    capacity = accepting.size
    done, count, used, mark = progress[0], progress[1], progress[2], progress[3]
    slots = 4
    while slots < 2 * capacity:
        slots *= 2
    table = np.full(slots, -1, np.int32)
    for i in range(count):
        slot = np.int64(digest[i] & np.uint64(slots - 1))
        while table[slot] >= 0:
            slot = (slot + 1) & (slots - 1)
        table[slot] = i
    stack = np.empty(n, np.int32)
    earliest = np.full(chain.max() + 1 if chain.size else 0, -1, np.int32)  # state of each chain
    cut = np.zeros(C + 1, np.bool_)
    interval = np.empty(C, np.int32)
    begins = np.empty(C + 1, np.int32)
    fill = np.empty(C + 1, np.int64)
    targets = np.empty(256, np.int32)
    why = _DONE

    if count == 0:
        set_start[0] = 0
        done = -1  # the row before the first: its only target is the start
    while done < count:
        if work <= 0:
            why = _PAUSE
            break
        # cut the classes into intervals that the same edges hold, and list each interval's targets
        intervals = 0
        if done < 0:
            intervals = 1
            fill[0] = 1
            targets[0] = start
        else:
            lo, hi = set_start[done], set_start[done + 1]
            for i in range(lo, hi):
                for e in range(edge_start[pool[i]], edge_start[pool[i] + 1]):
                    cut[rows[e, 0]] = True
                    cut[rows[e, 1] + 1] = True
            for c in range(C):
                if cut[c]:
                    begins[intervals] = c
                    fill[intervals] = 0
                    intervals += 1
                    cut[c] = False
                interval[c] = intervals - 1
                transition[done, c] = -1
            cut[C] = False
            begins[intervals] = C
            for i in range(lo, hi):
                for e in range(edge_start[pool[i]], edge_start[pool[i] + 1]):
                    for k in range(interval[rows[e, 0]], interval[rows[e, 1]] + 1):
                        fill[k] += 1
            total = 0
            for k in range(intervals):
                total += fill[k]
                fill[k] = total - fill[k]
            if total > targets.size:
                targets = np.empty(2 * total, np.int32)
            for i in range(lo, hi):
                for e in range(edge_start[pool[i]], edge_start[pool[i] + 1]):
                    for k in range(interval[rows[e, 0]], interval[rows[e, 1]] + 1):
                        targets[fill[k]] = rows[e, 2]
                        fill[k] += 1
            work -= C + total + hi - lo
        # fill[k] is now where interval k's targets end
        lo = 0
        for k in range(intervals):
            hi = fill[k]
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
                    work -= 1
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
                    # a sum does not care for order, so sets need not be sorted
                    mixed = (np.uint64(s) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
                    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
                    code += mixed ^ (mixed >> np.uint64(29))
                if chain.size:
                    for i in range(used, used + size):
                        if chain[pool[i]] >= 0:
                            earliest[chain[pool[i]]] = -1
                state = -2
                if size or done < 0:
                    slot = np.int64(code & np.uint64(slots - 1))
                    while table[slot] >= 0:
                        i = table[slot]
                        if digest[i] == code and set_start[i + 1] - set_start[i] == size:
                            j = set_start[i]
                            # all of that set are stamped as members of this one?
                            while j < set_start[i + 1] and stamp[pool[j]] == mark:
                                j += 1
                            if j == set_start[i + 1]:
                                break
                        slot = (slot + 1) & (slots - 1)
                    if table[slot] < 0:
                        if count == capacity:
                            why = _STATES
                            break
                        table[slot] = count
                        digest[count] = code
                        accepting[count] = final
                        used += size
                        set_start[count + 1] = used
                        count += 1
                    state = table[slot]
                if single:
                    alone[targets[lo]] = state
            if done >= 0 and state >= 0:
                for c in range(begins[k], begins[k + 1]):
                    transition[done, c] = state
            lo = hi
        if why != _DONE:
            break
        done += 1
    progress[0], progress[1], progress[2], progress[3] = done, count, used, mark
    return why
