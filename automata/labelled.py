"""Deterministic automata whose words carry a label: which of several disjoint languages a word belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import BoolArray, ByteArray, Int, Int32Array, Int64Array, Uint16Array, Uint64Array
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from .budget import Meter
from .deadline import look
from .dfa import BYTES, Dfa
from .minimize import canonical_labels
from .nfa import Nfa
from .subsets import determinize

_SPELLING = "spelling words"


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

    def words(self, label: int, most: int, meter: Meter) -> list[bytes] | None:
        """Return all words with a label, the shortest first; None if they are more than `most`. Raises BudgetError."""
        live = leading_to(states_before(self.transition), self.label == label)
        room = meter.budget.bytes // _BYTES_PER_PREFIX
        count, data, stop = _spelt(self.class_of, self.transition, self.label, live, label, most, room)
        if count == _NO_ROOM:
            meter.check(bytes=_BYTES_PER_PREFIX * 2 * room, doing=_SPELLING)
        if count < 0:
            return None
        spelled = data.tobytes()
        return [spelled[begin:end] for begin, end in pairwise([0, *stop[:count].tolist()])]


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
    return _unmarked(determinize(nfa, nfa.union(parts), meter), meter)


def minimized(
    class_of: NDArray[np.uint16], transition: NDArray[np.int32], label: NDArray[np.int32], meter: Meter
) -> Labelled:
    """Return the smallest automaton with these words and labels, of which there must be one; state 0 is the start."""
    return Labelled(*canonical_labels(class_of, transition, label, meter=meter))


def spelled(words: Mapping[bytes, int], meter: Meter) -> Labelled:
    """Return exactly these words, one at least, with their labels."""
    return minimized(*overlaid(_NOTHING, words, meter), meter)


def overlaid(base: Labelled, words: Mapping[bytes, int], meter: Meter) -> Labelled:
    """Return the automaton with labels of their own, perhaps -1, for some words, one at least; states can be alike."""
    look(_SPELLING)
    data = np.frombuffer(b"".join(words), np.uint8)
    stop = np.cumsum([len(word) for word in words], dtype=np.int64)
    look(_SPELLING)
    parent, byte, last = _trie(data, stop)
    classes = base.transition.shape[1] + np.unique(data).size
    states = parent.size + base.num_states
    meter.check(states=states, bytes=8 * states * classes, doing=_SPELLING)
    label = np.array(list(words.values()), np.int32)
    return Labelled(*_overlaid(base.class_of, base.transition, base.label, parent, byte, last, label))


_NOTHING = Labelled(np.zeros(BYTES, np.uint16), np.empty((0, 1), np.int32), np.empty(0, np.int32))


_MORE, _NO_ROOM = -1, -2  # in place of a number of words
_BYTES_PER_PREFIX = 32  # parent, byte and state, while they move to larger arrays


@kernel
def _spelt(
    class_of: Uint16Array, transition: Int32Array, label: Int32Array, live: BoolArray, wanted: int, most: int, room: int
) -> tuple[Int, ByteArray, Int64Array]:
    """Return how many words have a label, `_MORE` if more than `most`; all their bytes; and where each stops in these.

    live: (N,) whether such a word goes on from a state. The shortest words come first. room: prefixes of words that
    there may be; `_NO_ROOM` if there are more.
    """
    parent, byte, state = np.full(64, -1, np.int64), np.zeros(64, np.uint8), np.zeros(64, np.int32)  # of prefixes
    ends, length = np.empty(most + 1, np.int64), np.empty(most + 1, np.int64)
    stop = np.zeros(most + 1, np.int64)
    first, nodes, found, depth = np.int64(0), np.int64(live[0]), 0, 0
    while first < nodes and not is_late():
        last = nodes  # prefixes of one length are first .. last
        for node in range(first, last):
            if label[state[node]] == wanted:
                if found == most:
                    return _MORE, byte[:0].copy(), stop
                ends[found], length[found] = node, depth
                found += 1
        for node in range(first, last):
            for b in range(class_of.size):
                t = transition[state[node], class_of[b]]
                if t < 0 or not live[t]:
                    continue
                if found + nodes - last >= most:  # each prefix begins a word at least
                    return _MORE, byte[:0].copy(), stop
                if nodes == parent.size:
                    size = 2 * nodes
                    if size > room:
                        return _NO_ROOM, byte[:0].copy(), stop
                    parents, bytes_read = np.empty(size, np.int64), np.empty(size, np.uint8)
                    states = np.empty(size, np.int32)
                    parents[:nodes], bytes_read[:nodes], states[:nodes] = parent, byte, state
                    parent, byte, state = parents, bytes_read, states
                parent[nodes], byte[nodes], state[nodes] = node, b, t
                nodes += 1
        first = last
        depth += 1
    total = 0
    for word in range(found):
        total += length[word]
        stop[word] = total
    data = np.empty(total, np.uint8)
    for word in range(found):
        prefix, at = ends[word], stop[word]
        for _ in range(length[word]):
            at -= 1
            data[at] = byte[prefix]
            prefix = parent[prefix]
    return found, data, stop


@kernel
def _trie(data: ByteArray, stop: Int64Array) -> tuple[Int32Array, ByteArray, Int32Array]:
    """Return the trie of words, which are data up to each stop: each node's parent and byte (N,), and each word's node.

    Nodes come after their parents; the root is 0.
    """
    parent = np.zeros(data.size + 1, np.int32)
    byte = np.zeros(data.size + 1, np.uint8)
    child = np.full(data.size + 1, -1, np.int32)  # the first of each node's
    beside = np.full(data.size + 1, -1, np.int32)  # the next with the same parent
    last = np.empty(stop.size, np.int32)
    nodes, i = 1, 0
    for word in range(stop.size):
        if is_late():
            break
        node = 0
        while i < stop[word]:
            found, before = child[node], -1
            while found >= 0 and byte[found] != data[i]:
                found, before = beside[found], found
            if found < 0:
                found = nodes
                nodes += 1
                parent[found], byte[found] = node, data[i]
                if before < 0:
                    child[node] = found
                else:
                    beside[before] = found
            node = found
            i += 1
        last[word] = node
    return parent[:nodes].copy(), byte[:nodes].copy(), last


@kernel
def _overlaid(
    class_of: Uint16Array, transition: Int32Array, label: Int32Array, parent: Int32Array, byte: ByteArray,
    last: Int32Array, labels: Int32Array,
) -> tuple[Uint16Array, Int32Array, Int32Array]:  # fmt: skip
    """Return class_of, transition and label of a trie, then what its nodes lead to of an automaton, as far as reached.

    Words end in the nodes `last`, with these labels; others, and what goes on from nodes in another way, are as before.
    """
    states, nodes = label.size, parent.size
    own = np.zeros(class_of.size, np.bool_)  # bytes of words are classes of their own, after those with others left
    for node in range(1, nodes):
        own[byte[node]] = True
    number = np.full(transition.shape[1], -1, np.int32)
    for a in range(class_of.size):
        if not own[a]:
            number[class_of[a]] = 0
    column = np.empty(transition.shape[1] + class_of.size, np.int32)
    classes = 0
    for c in range(number.size):
        if number[c] >= 0:
            number[c], column[classes] = classes, c
            classes += 1
    wide = np.empty(class_of.size, np.uint16)
    for a in range(class_of.size):
        wide[a] = classes if own[a] else number[class_of[a]]
        if own[a]:
            column[classes] = class_of[a]
            classes += 1
    reads = np.full(nodes, -1, np.int32)  # the state of each node in the automaton
    place = np.full(states, -1, np.int32)  # of each state that is reached, among these
    order = np.empty(states, np.int32)
    found = 0
    rows = np.full((nodes + states, classes), -1, np.int32)
    ends = np.full(nodes + states, -1, np.int32)
    if states:
        reads[0] = 0
    for node in range(1, nodes):
        rows[parent[node], wide[byte[node]]] = node
    i = 0
    while i < nodes + found and not is_late():
        if i and i < nodes and reads[parent[i]] >= 0:
            reads[i] = transition[reads[parent[i]], class_of[byte[i]]]
        state = reads[i] if i < nodes else order[i - nodes]
        if state >= 0:
            ends[i] = label[state]
            for k in range(classes):
                t = transition[state, column[k]]
                if t >= 0 and rows[i, k] < 0:
                    if place[t] < 0:
                        place[t], order[found] = found, t
                        found += 1
                    rows[i, k] = nodes + place[t]
        i += 1
    for word in range(last.size):
        ends[last[word]] = labels[word]
    return wide, rows[: nodes + found], ends[: nodes + found]


def _unmarked(dfa: Dfa, meter: Meter) -> tuple[NDArray[np.uint16], NDArray[np.int32], NDArray[np.bool_]]:
    """Return class_of and transition over bytes alone, and which markers, (N, markers), lead to the one end."""
    size = dfa.num_states * (dfa.alphabet - BYTES)
    meter.check(bytes=8 * dfa.transition.size + 3 * size, doing="telling languages apart")
    end = int(np.argmax(dfa.accepting))
    kept = np.arange(dfa.num_states) != end
    inside = dfa.transition[:, dfa.class_of[BYTES:]] == end
    class_of = dfa.class_of[:BYTES]
    number = np.append(np.cumsum(kept) - 1, -1).astype(np.int32)
    return class_of, number[dfa.transition[kept, : int(class_of.max()) + 1]], inside[kept]  # classes of bytes are first


@kernel
def states_before(transition: Int32Array) -> tuple[Int64Array, Int32Array]:
    """Return the states that lead to each state (N, C), each once: before[start[s] : start[s + 1]]."""
    states, classes = transition.shape
    last, start = np.full(states, -1, np.int32), np.zeros(states + 2, np.int64)
    before = np.empty(0, np.int32)
    for fill in range(2):
        for s in range(states):
            if is_late():
                break
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


@kernel
def leading_to(known: tuple[Int64Array, Int32Array], ends: BoolArray) -> BoolArray:
    """Return which states (N,) lead to one of those in `ends` (N,), or are one, by what `states_before` found."""
    (start, before), count = known, 0
    found, todo = ends.copy(), np.empty(ends.size, np.int64)
    for s in range(ends.size):
        if ends[s]:
            todo[count] = s
            count += 1
    while count and not is_late():
        count -= 1
        s = todo[count]
        for x in range(start[s], start[s + 1]):
            if not found[before[x]]:
                found[before[x]] = True
                todo[count] = before[x]
                count += 1
    return found


def bytes_ahead(label: NDArray[np.int32]) -> int:
    """Return the size of what `labels_ahead` returns."""
    return 8 * label.size * ((int(label.max()) >> 6) + 1)


@kernel
def labels_ahead(transition: Int32Array, label: Int32Array) -> Uint64Array:
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
    while count and not is_late():  # nothing is read of `before` if it is not all there
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
