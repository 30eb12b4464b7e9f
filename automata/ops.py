"""The algebra of languages: every operation takes canonical DFAs and returns a canonical one.

The boolean operations are one product of two automata with different truth tables; the others put fragments
together in an Nfa and determinise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Int64Array, resized, slot_of
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from .budget import Budget, Meter
from .dfa import BYTES, Dfa
from .minimize import canonical
from .nfa import Nfa
from .subsets import determinize

# truth tables: bit 2 * a + b says whether a word is in, given whether it is in the first and in the second language
_AND, _MINUS, _XOR, _OR = 0b1000, 0b0100, 0b0110, 0b1110

_DONE, _STATES, _FOUND = range(3)  # why the kernel came back


# ------------------------------------------------------------------------------------------------------- boolean


def union(a: Dfa, b: Dfa, meter: Meter | None = None) -> Dfa:
    """Return the words of either language."""
    return _combine(a, b, _OR, meter, "taking a union")


def intersection(a: Dfa, b: Dfa, meter: Meter | None = None) -> Dfa:
    """Return the words of both languages."""
    return _combine(a, b, _AND, meter, "intersecting")


def unions(dfas: Sequence[Dfa], meter: Meter | None = None) -> Dfa:
    """Return the words of any of some languages, of which there is one at least."""
    return _folded(union, dfas, meter)


def intersections(dfas: Sequence[Dfa], meter: Meter | None = None) -> Dfa:
    """Return the words of all of some languages, of which there is one at least."""
    return _folded(intersection, dfas, meter)


def difference(a: Dfa, b: Dfa, meter: Meter | None = None) -> Dfa:
    """Return the words of the first language that are not in the second."""
    return _combine(a, b, _MINUS, meter, "subtracting")


def symmetric_difference(a: Dfa, b: Dfa, meter: Meter | None = None) -> Dfa:
    """Return the words of exactly one of the languages."""
    return _combine(a, b, _XOR, meter, "taking a symmetric difference")


def complement(dfa: Dfa, meter: Meter | None = None) -> Dfa:
    """Return all other words over the alphabet."""
    N, C = dfa.transition.shape
    transition = np.full((N + 1, C), N, np.int32)  # state N takes what had nowhere to go
    np.copyto(transition[:N], dfa.transition, where=dfa.transition >= 0)
    return canonical(dfa.class_of, transition, np.append(~dfa.accepting, True), meter=meter)


def equivalent(a: Dfa, b: Dfa) -> bool:
    """Whether the languages are equal."""
    _same_alphabet(a, b)
    return (
        np.array_equal(a.transition, b.transition)
        and np.array_equal(a.accepting, b.accepting)
        and np.array_equal(a.class_of, b.class_of)
    )


def is_subset(a: Dfa, b: Dfa, meter: Meter | None = None) -> bool:
    """Whether every word of the first language is in the second."""
    return _product(a, b, _MINUS, True, meter, "comparing languages") is None


# ------------------------------------------------------------------------------------------------------- regular


def concat(a: Dfa, b: Dfa, meter: Meter | None = None) -> Dfa:
    """Return every word of the first language followed by one of the second."""
    _same_alphabet(a, b)
    nfa = Nfa(a.alphabet, meter)
    return determinize(nfa, nfa.concat([nfa.embed(a), nfa.embed(b)]))


def star(a: Dfa, meter: Meter | None = None) -> Dfa:
    """Return every sequence of words of the language, the empty one included."""
    nfa = Nfa(a.alphabet, meter)
    return determinize(nfa, nfa.repeat(nfa.embed(a), 0, None))


def reverse(a: Dfa, meter: Meter | None = None) -> Dfa:
    """Return every word of the language read backwards."""
    nfa = Nfa(a.alphabet, meter)
    edges = np.ascontiguousarray(a.edges[:, [3, 1, 2, 0]])
    return determinize(nfa, nfa.embed_edges(edges, a.num_states, np.flatnonzero(a.accepting).tolist(), [0]))


# ------------------------------------------------------------------------------------------------------- markers


def erase(dfa: Dfa, markers: Iterable[int], meter: Meter | None = None) -> Dfa:
    """Return the words over bytes that are left when these markers are deleted from every word.

    ValueError if some word holds a marker that is not to be erased.
    """
    erased = set(markers)
    edges = dfa.edges
    for marker in range(BYTES, dfa.alphabet):
        if marker not in erased and (dfa.transition[:, dfa.class_of[marker]] >= 0).any():
            raise ValueError(f"marker {marker} is in use and not to be erased: only {sorted(erased)} are")
    nfa = Nfa(BYTES, meter)
    read = edges[edges[:, 1] < BYTES]  # a copy
    np.minimum(read[:, 2], BYTES - 1, out=read[:, 2])  # ranges may run on into the markers
    fragment = nfa.embed_edges(read, dfa.num_states, [0], np.flatnonzero(dfa.accepting).tolist())
    skipped = edges[edges[:, 2] >= BYTES][:, [0, 3]]
    fragment = nfa.skip(fragment, skipped + np.int32(fragment.start + 1))
    return determinize(nfa, fragment)


def widen(dfa: Dfa, alphabet: int, loops: Iterable[int] = (), meter: Meter | None = None) -> Dfa:
    """Return the language over more symbols: the markers in `loops` may stand anywhere, other new ones nowhere."""
    looping = sorted(set(loops))
    if alphabet < dfa.alphabet or not all(dfa.alphabet <= marker < alphabet for marker in looping):
        raise ValueError(
            f"an alphabet of {dfa.alphabet} symbols cannot become one of {alphabet} where {looping} loop: "
            "only new symbols can"
        )
    N, C = dfa.transition.shape
    transition = np.full((N, C + 2), -1, np.int32)
    transition[:, :C] = dfa.transition
    transition[:, C] = np.arange(N)
    class_of = np.full(alphabet, C + 1, np.uint16)
    class_of[: dfa.alphabet] = dfa.class_of
    class_of[looping] = C
    return canonical(class_of, transition, dfa.accepting, meter=meter)


# ------------------------------------------------------------------------------------------------------- product


def _folded(operation: Callable[[Dfa, Dfa, Meter | None], Dfa], dfas: Sequence[Dfa], meter: Meter | None) -> Dfa:
    """Combine DFAs, always the two smallest: what narrows much is often small, and no large one is walked often."""
    heap = [(dfa.transition.size, i, dfa) for i, dfa in enumerate(dfas)]
    heapify(heap)
    for i in range(len(dfas), 2 * len(dfas) - 1):
        _, _, a = heappop(heap)
        _, _, b = heap[0]
        made = operation(a, b, meter)
        heapreplace(heap, (made.transition.size, i, made))
    return heap[0][2]


def _same_alphabet(a: Dfa, b: Dfa) -> None:
    if a.alphabet != b.alphabet:
        raise ValueError(f"alphabets of {a.alphabet} and {b.alphabet} symbols do not mix: widen() the smaller")


def _combine(a: Dfa, b: Dfa, truth: int, meter: Meter | None, doing: str) -> Dfa:
    made = _product(a, b, truth, False, meter, doing)
    assert made is not None  # only a search for a first member stops early
    return canonical(*made, meter=meter)


def _product(
    a: Dfa, b: Dfa, truth: int, search: bool, meter: Meter | None, doing: str
) -> tuple[NDArray[np.uint16], NDArray[np.int32], NDArray[np.bool_]] | None:
    """Return class_of, transition and accepting of the product; for a search, None if the language is empty."""
    _same_alphabet(a, b)
    meter = Budget().begin() if meter is None else meter
    # symbols are told apart by the pair of their classes
    width = b.transition.shape[1]
    pairs_of, class_of = np.unique(a.class_of.astype(np.int32) * np.int32(width) + b.class_of, return_inverse=True)
    class_a, class_b = pairs_of // width, pairs_of % width
    C = pairs_of.size

    meter.check(doing=doing)
    capacity = 256
    operands = _Operand(a.transition, a.accepting, class_a), _Operand(b.transition, b.accepting, class_b)
    found = _Pairs(np.empty((capacity, C), np.int32), np.empty(capacity, np.bool_), np.empty((capacity, 2), np.int32))
    progress = np.zeros(2, np.int64)
    while True:
        why = _pairs(*operands, truth, search, found, progress)
        count = int(progress[1])
        if why in (_DONE, _FOUND):
            break
        meter.check(states=capacity + 1, doing=doing)
        capacity = min(4 * capacity, max(meter.budget.states, capacity + 1))
        meter.check(states=count, bytes=capacity * (4 * C + 25), doing=doing)
        found = _Pairs(*(resized(array, capacity, count) for array in found))
    if search and why == _DONE:
        return None
    return class_of.astype(np.uint16), found.transition[:count], found.accepting[:count]


class _Operand(NamedTuple):
    """An automaton of a product."""

    transition: NDArray[np.int32]  # by its own classes
    accepting: NDArray[np.bool_]
    class_of: NDArray[np.signedinteger[Any]]  # (C,) its class of each class of the product


class _Pairs(NamedTuple):
    """The states of a product of C classes that were found."""

    transition: NDArray[np.int32]  # (capacity, C)
    accepting: NDArray[np.bool_]  # (capacity,)
    pair: NDArray[np.int32]  # (capacity, 2) the states of the operands that each is


@kernel
def _pairs(a: _Operand, b: _Operand, truth: int, search: bool, found: _Pairs, progress: Int64Array) -> int:
    """Go on with the product until it is done or short of room; return which.

    A search stops at a first member. The state after an operand's last stands for being outside its language for good.
    Pairs that can lead to no member are left out. progress: states done, states found.
    """
    transition, accepting, pairs = found
    Na, Nb, C = a.accepting.size, b.accepting.size, a.class_of.size
    capacity = accepting.size
    done, count = progress[0], progress[1]
    need_a = truth & 0b0011 == 0  # no word outside the first language is in the result
    need_b = truth & 0b0101 == 0
    slots = 4
    while slots < 2 * capacity:
        slots *= 2
    table = np.full(slots, -1, np.int32)
    for i in range(count):
        slot = slot_of(np.int64(pairs[i, 0]) << 32 | np.int64(pairs[i, 1]), slots)
        while table[slot] >= 0:
            slot = (slot + 1) & (slots - 1)
        table[slot] = i
    why = _DONE
    if count == 0:
        done = -1  # the row before the first: its only target is the start
    while done < count and not is_late():
        for c in range(C if done >= 0 else 1):
            p, q = 0, 0
            if done >= 0:
                p, q = pairs[done, 0], pairs[done, 1]
                p = a.transition[p, a.class_of[c]] if p < Na else -1
                q = b.transition[q, b.class_of[c]] if q < Nb else -1
                if (p < 0 and (need_a or q < 0)) or (q < 0 and need_b):
                    transition[done, c] = -1
                    continue
                p = p if p >= 0 else Na
                q = q if q >= 0 else Nb
            slot = slot_of(np.int64(p) << 32 | np.int64(q), slots)
            while table[slot] >= 0 and (pairs[table[slot], 0] != p or pairs[table[slot], 1] != q):
                slot = (slot + 1) & (slots - 1)
            if table[slot] < 0:
                if count == capacity:
                    why = _STATES
                    break
                inside_a = p < Na and a.accepting[p]
                inside_b = q < Nb and b.accepting[q]
                inside = (truth >> ((2 if inside_a else 0) + (1 if inside_b else 0))) & 1 == 1
                table[slot] = count
                pairs[count, 0] = p
                pairs[count, 1] = q
                accepting[count] = inside
                count += 1
                if search and inside:
                    return _FOUND
            if done >= 0:
                transition[done, c] = table[slot]
        if why != _DONE:
            break
        done += 1
    progress[0], progress[1] = done, count
    return why
