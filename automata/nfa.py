"""Nondeterministic automata, built from fragments.

A fragment is a piece of one Nfa with a start state that nothing leads back to and an end state that nothing leaves
(Thompson's construction). Edges are ranges of symbols in one flat list, so that repeating a fragment is copying a
slice of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Int, Int32Array
from ..kernels.compiled import kernel
from .budget import Budget, Meter
from .deadline import look
from .dfa import BYTES, Dfa

_BUILDING = "building the NFA"


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
        # state, its chain, its place there: no state of a chain can do more than those before it
        self._ordered = array("i")
        self._chains: Int = 0

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
        look(_BUILDING)
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

    def embed_edges(self, edges: Int32Array, num_states: int, starts: Sequence[int], ends: Sequence[int]) -> Fragment:
        """Return a fragment for an automaton: edges (E, 4) as (state, low, high, next state), its starts and ends."""
        start, edge_from, epsilon_from = self.num_states, len(self._edges), len(self._epsilons)
        self.meter.check(states=start + num_states + 2, bytes=self.nbytes + 4 * edges.size, doing=_BUILDING)
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

    def skip(self, part: Fragment, pairs: Int32Array) -> Fragment:
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
            look(_BUILDING)
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
            look(_BUILDING)
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
            bytes=self.nbytes + 4 * more * (edges + epsilons + 2 * size),  # with what determinising keeps of each state
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
        """Note that a state in one of several optional copies can do all that its likes in later copies can.

        In x{0,40} a state of the second copy leads to all that its like in the third does, and to one x more. So of a
        set of states only the first of each such chain counts, which keeps sets small: see `subsets`.
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
            look(_BUILDING)
            states = min(states, part.state_from)
            edges = min(edges, part.edge_from)
            epsilons = min(epsilons, part.epsilon_from)
        return Fragment(start, end, states, self.num_states, edges, len(self._edges), epsilons, len(self._epsilons))

    @property
    def nbytes(self) -> int:
        """Bytes of all edges and epsilons."""
        return 4 * (len(self._edges) + len(self._epsilons))

    def arrays(self) -> tuple[Int32Array, Int32Array]:
        """Return edges (E, 4) as (state, low, high, next state) and epsilons (P, 2) as (state, next state)."""
        edges = np.array(self._edges, np.int32).reshape(-1, 4)
        return edges, np.array(self._epsilons, np.int32).reshape(-1, 2)

    def chains(self) -> tuple[Int32Array, Int32Array]:
        """Return each state's chain, -1 for none, and its place there: (n,) each; both empty if there are no chains."""
        size = self.num_states if self._ordered else 0
        chain, place = np.full(size, -1, np.int32), np.zeros(size, np.int32)
        ordered = np.array(self._ordered, np.int32).reshape(-1, 3)
        chain[ordered[:, 0]], place[ordered[:, 0]] = ordered[:, 1], ordered[:, 2]
        return chain, place


@kernel
def _copied(
    own: Int32Array, width: int, low: int, high: int, shift: int, size: int, more: int
) -> tuple[bool, Int32Array]:
    """Return whether all rows lead from states low .. high - 1 to such states, and if so, `more` copies of the rows.

    A row has `width` numbers, the first and last of which are states. These are raised by `shift` in the first copy,
    and by `size` more in each further one.
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
def _copied_chains(
    ordered: Int32Array, low: int, high: int, shift: int, size: int, more: int, chains: Int
) -> tuple[Int32Array, Int]:
    """Return the triples of copies, as in `_copied`, with new chains for each copy, and the number of chains then."""
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
def _in_chains(ordered: Int32Array, low: int, high: int, shift: Int32Array, chains: Int) -> tuple[Int32Array, Int]:
    """Return triples for copies of states low .. high - 1, and the number of chains then.

    Each of these states that is in no chain begins one.
    """
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
