"""Deterministic automata whose words carry a label: which of several disjoint languages a word belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .budget import Meter
from .dfa import BYTES, Dfa
from .minimize import canonical
from .nfa import Nfa, determinize


class Labelled(NamedTuple):
    """A DFA over bytes with N states, of which 0 is the start, and C classes of bytes.

    Trimmed: from every state some word with a label can be read; no two states are equivalent. Arrays are read-only.
    """

    class_of: NDArray[np.uint16]  # (256,)
    transition: NDArray[np.int32]  # (N, C), -1 where there is none
    label: NDArray[np.int32]  # (N,) of the word that ends here, -1 where none does

    @property
    def num_states(self) -> int:
        """The number of states."""
        return self.label.size

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return self.class_of.nbytes + self.transition.nbytes + self.label.nbytes

    def label_of(self, word: bytes) -> int:
        """Return the label of a word, -1 if it has none."""
        state = 0
        for byte in word:
            state = int(self.transition[state, self.class_of[byte]])
            if state < 0:
                return -1
        return int(self.label[state])

    def words(self, label: int, most: int) -> list[bytes] | None:
        """Return all words with a label, the shortest first; None if they are more than `most`."""
        live = self.label == label
        before = -1
        while before != (before := int(live.sum())):
            live |= ((self.transition >= 0) & live[self.transition]).any(axis=1)
        found: list[bytes] = []
        here = [(b"", 0)] if live[0] else []
        while here:
            found += [word for word, state in here if self.label[state] == label]
            following: list[tuple[bytes, int]] = []
            for word, state in here:
                targets = self.transition[state, self.class_of]
                ways = np.flatnonzero((targets >= 0) & live[targets]).tolist()
                following += [(word + bytes([byte]), int(targets[byte])) for byte in ways]
                if len(found) + len(following) > most:  # each begins a word at least
                    return None
            here = following
        return found


def relabelled(dfa: Dfa, label: int) -> Labelled:
    """Return the words of a language that has some, all with one label."""
    return Labelled(dfa.class_of, dfa.transition, np.where(dfa.accepting, np.int32(label), np.int32(-1)))


def labelled(dfas: Sequence[Dfa], meter: Meter) -> Labelled:
    """Return the words of pairwise disjoint languages over bytes, of which some word is in one: label i is dfas[i].

    Raises ValueError if two languages have a word in common or all are empty, BudgetError.
    """
    live = [i for i, dfa in enumerate(dfas) if not dfa.is_empty]
    if not live:
        raise ValueError("no language has a word: there is nothing to label")
    if len(live) == 1:
        return relabelled(dfas[live[0]], live[0])
    class_of, transition, inside = joint([dfas[i] for i in live], meter)
    count = inside.sum(axis=1)
    if count.max() > 1:
        both = np.flatnonzero(inside[int(np.argmax(count))])[:2].tolist()
        raise ValueError(f"languages {live[both[0]]} and {live[both[1]]} are not disjoint: some word is in both")
    label = np.where(count, np.array(live, np.int32)[np.argmax(inside, axis=1)], np.int32(-1))
    return Labelled(class_of, transition, label)


def joint(dfas: Sequence[Dfa], meter: Meter) -> tuple[NDArray[np.uint16], NDArray[np.int32], NDArray[np.bool_]]:
    """Return the smallest DFA that tells which of some languages over bytes a word is in.

    That is class_of (256,), transition (N, C) and inside (N, languages): whether the word that ends in a state is in a
    language. From every state a word in some language can be read; one of them must not be empty.
    """
    # a word is followed by the marker of each language that it is in, so minimising keeps these apart
    nfa = Nfa(BYTES + len(dfas), meter)
    parts = []
    for i, dfa in enumerate(dfas):
        ends = np.flatnonzero(dfa.accepting)
        marks = np.empty((ends.size, 4), np.int32)
        marks[:, 0] = ends
        marks[:, 1:3] = BYTES + i
        marks[:, 3] = dfa.num_states
        parts.append(nfa.embed_edges(np.concatenate((dfa.edges, marks)), dfa.num_states + 1, [0], [dfa.num_states]))
    return _unmarked(determinize(nfa, nfa.union(parts), meter))


def minimized(
    class_of: NDArray[np.uint16], transition: NDArray[np.int32], label: NDArray[np.int32], meter: Meter
) -> Labelled:
    """Return the smallest automaton with these words and labels, of which there must be one; state 0 is the start."""
    N, C = transition.shape
    labels = int(label.max()) + 1
    if labels == 1:
        return relabelled(canonical(class_of, transition, label >= 0, meter=meter), 0)
    # a word is followed by its label, spelled with a few markers
    places = 1
    while labels > _MARKERS**places:
        places += 1
    markers = min(labels, _MARKERS)
    spread = [-(-labels // markers ** (place + 1)) for place in range(places)]  # states after each marker
    M = N + sum(spread)
    meter.check(bytes=4 * M * (C + markers), doing="telling labels apart")
    marked = np.full((M, C + markers), -1, np.int32)
    marked[:N, :C] = transition
    ends = np.flatnonzero(label >= 0)
    source, left, first = ends, label[ends], N
    for count in spread:
        marked[source, C + left % markers] = first + left // markers
        source, left = first + np.arange(count), np.arange(count)
        first += count
    classes = np.concatenate((class_of, np.arange(C, C + markers, dtype=np.uint16)))
    dfa = canonical(classes, marked, np.arange(M) == M - 1, meter=meter)
    if places == 1:
        narrow, rows, inside = _unmarked(dfa)
        return Labelled(narrow, rows, np.where(inside.any(axis=1), np.argmax(inside, axis=1), -1).astype(np.int32))
    ahead = dfa.transition[:, dfa.class_of[BYTES:]]  # (states, markers)
    marker, following = np.argmax(ahead, axis=1), ahead.max(axis=1)  # a state with a label has one marker
    found = np.where(following >= 0, 0, -1)
    spelling = np.zeros(dfa.num_states, np.bool_)
    source = at = np.flatnonzero(following >= 0)
    for place in range(places):
        found[source] += marker[at] * markers**place
        at = following[at]
        spelling[at] = True
        source, at = source[following[at] >= 0], at[following[at] >= 0]  # those in a spelling end before
    return Labelled(*_without(dfa, spelling), found[~spelling].astype(np.int32))


_MARKERS = 16


def spelled(words: Mapping[bytes, int], meter: Meter) -> Labelled:
    """Return exactly these words, one at least, with their labels."""
    steps: list[dict[int, int]] = [{}]
    labels = [-1]
    source, symbol, target = [], [], []
    for word, label in words.items():
        state = 0
        for byte in word:
            following = steps[state].get(byte)
            if following is None:
                following = steps[state][byte] = len(steps)
                source.append(state)
                symbol.append(byte)
                target.append(following)
                steps.append({})
                labels.append(-1)
            state = following
        labels[state] = label
    used = sorted(set(symbol))
    class_of = np.full(BYTES, len(used), np.uint16)
    class_of[used] = np.arange(len(used))
    meter.check(states=len(steps), bytes=4 * len(steps) * (len(used) + 1), doing="spelling words")
    transition = np.full((len(steps), len(used) + 1), -1, np.int32)
    transition[source, class_of[symbol]] = target
    return minimized(class_of, transition, np.array(labels, np.int32), meter)


def _unmarked(dfa: Dfa) -> tuple[NDArray[np.uint16], NDArray[np.int32], NDArray[np.bool_]]:
    """Return class_of and transition over bytes alone, and which markers, (N, markers), lead to the one end."""
    end = int(np.argmax(dfa.accepting))
    gone = np.arange(dfa.num_states) == end
    inside = dfa.transition[:, dfa.class_of[BYTES:]] == end
    return *_without(dfa, gone), inside[~gone]


def _without(dfa: Dfa, gone: NDArray[np.bool_]) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Return class_of and transition over bytes alone, without the states that only markers lead to."""
    class_of = dfa.class_of[:BYTES]
    number = np.append(np.cumsum(~gone) - 1, -1).astype(np.int32)
    return class_of, number[dfa.transition[~gone, : int(class_of.max()) + 1]]  # the classes of bytes come first


@njit(cache=True, nogil=True)
def states_before(transition: Any) -> Any:
    """Return the states that lead to each state (N, C), each once: before[start[s] : start[s + 1]]."""
    states, classes = transition.shape
    last, start = np.full(states, -1, np.int32), np.zeros(states + 2, np.int64)
    before = np.empty(0, np.int32)
    for fill in range(2):
        for s in range(states):
            for c in range(classes):
                t = transition[s, c]
                if t >= 0 and last[t] != s:
                    last[t] = s
                    if fill:
                        before[start[t + 1]] = s
                    start[t + (1 if fill else 2)] += 1
        if not fill:
            for s in range(states):
                start[s + 2] += start[s + 1]
            before = np.empty(start[states + 1], np.int32)
            last[:] = -1
    return start[: states + 1], before


@njit(cache=True, nogil=True)
def leading_to(known: Any, ends: Any) -> Any:
    """Return which states (N,) lead to one of those in `ends` (N,), or are one, by what `states_before` found."""
    (start, before), count = known, 0
    found, todo = ends.copy(), np.empty(ends.size, np.int64)
    for s in range(ends.size):
        if ends[s]:
            todo[count] = s
            count += 1
    while count:
        count -= 1
        s = todo[count]
        for x in range(start[s], start[s + 1]):
            if not found[before[x]]:
                found[before[x]] = True
                todo[count] = before[x]
                count += 1
    return found


@njit(cache=True, nogil=True)
def labels_ahead(transition: Any, label: Any) -> Any:
    """Return the labels with which words may end that go on from each state of a DFA: (N, W), 64 in a number."""
    start, before = states_before(transition)
    states = label.size
    out = np.zeros((states, (label.max() >> 6) + 1), np.uint64)
    todo, waits, count = np.empty(states, np.int64), np.zeros(states, np.bool_), 0  # a ring, as each waits once
    for s in range(states - 1, -1, -1):  # most lead to later ones
        if label[s] >= 0:
            out[s, label[s] >> 6] = np.uint64(1) << np.uint64(label[s] & 63)
            todo[count], waits[s] = s, True
            count += 1
    first = 0
    while count:
        s = todo[first]
        first, count, waits[s] = (first + 1) % states, count - 1, False
        for x in range(start[s], start[s + 1]):
            p, more = before[x], False
            for w in range(out.shape[1]):
                if out[s, w] & ~out[p, w]:
                    out[p, w] |= out[s, w]
                    more = True
            if more and not waits[p]:
                todo[(first + count) % states], waits[p] = p, True
                count += 1
    return out
