"""The deterministic automaton: symbols in classes, one dense row of transitions per state.

An alphabet is the 256 bytes, and where a compiler needs them a few *marker* symbols 256, 257, .. after them. They
stand for assertions inside a pattern and are erased before anything else sees the automaton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError
from ..kernels.arrays import Int32Array
from ..kernels.compiled import kernel
from .budget import Meter

_COUNTED = 1024  # states after which a meter is asked again
_INTEGER = 36  # bytes of a small integer of Python, and of the place that refers to it

ClassOf = NDArray[np.uint16]
Transition = NDArray[np.int32]
Accepting = NDArray[np.bool_]

BYTES = 256


@dataclass(frozen=True, eq=False)
class Dfa:
    """A DFA in canonical form; A symbols, C classes, N states, of which state 0 is the start.

    Canonical (`minimize.canonical` makes it so): every state lies on a way from the start to an accepting state, no
    two states are equivalent, states are numbered breadth first with classes in order of their smallest symbol, and
    no two classes have equal columns. The empty language is one state that does not accept. So two DFAs over one
    alphabet accept the same language if and only if their arrays are equal, and nothing may write to the arrays.
    """

    class_of: ClassOf  # (A,)
    transition: Transition  # (N, C), -1 where there is none
    accepting: Accepting  # (N,)

    @property
    def alphabet(self) -> int:
        """The number of symbols."""
        return self.class_of.size

    @property
    def num_states(self) -> int:
        """The number of states."""
        return self.accepting.size

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return self.class_of.nbytes + self.transition.nbytes + self.accepting.nbytes

    def step(self, state: int, symbol: int) -> int:
        """Return the state that `symbol` leads to, or -1."""
        return int(self.transition[state, self.class_of[symbol]])

    def accepts(self, word: bytes | Sequence[int]) -> bool:
        """Whether the word, given as bytes or as symbols, is in the language."""
        state = 0
        for symbol in word:
            state = self.step(state, symbol)
            if state < 0:
                return False
        return bool(self.accepting[state])

    # ------------------------------------------------------------------------------------ the language as a set

    @property
    def is_empty(self) -> bool:
        """Whether no word is accepted."""
        return not self.accepting.any()

    @property
    def is_finite(self) -> bool:
        """Whether finitely many words are accepted."""
        return bool(self._finite_order.size)

    def shortest(self) -> bytes | None:
        """Return the first member in shortlex order, or None if there is none."""
        self._need_bytes()
        if self.is_empty:
            return None
        # breadth first numbering: the first accepting state is reached first, and each state first from its parent
        flat = self.transition.ravel()[::-1]
        found = np.zeros(self.num_states + 1, np.int64)  # the last entry takes what leads nowhere
        found[flat] = np.arange(
            flat.size - 1, -1, -1
        )  # the last to be assigned is the first transition that leads there
        state, word = int(np.argmax(self.accepting)), bytearray()
        while state:
            parent, c = divmod(int(found[state]), self.transition.shape[1])
            word.append(int(np.argmax(self.class_of == c)))
            state = parent
        return bytes(reversed(word))

    def cardinality(self) -> int | None:
        """Return the exact number of words, or None if there are infinitely many."""
        if not self.is_finite:
            return None
        ways = [int(a) for a in self.accepting]
        steps = self._steps
        for s in reversed(self._finite_order.tolist()):
            ways[s] += sum(width * ways[t] for t, width in steps[s])
        return ways[0]

    def count(self, length: int) -> list[int]:
        """Return the exact number of words of each length 0 .. length."""
        steps, ends = self._steps, np.flatnonzero(self.accepting).tolist()
        ways, counts = {0: 1}, []
        for _ in range(length + 1):
            counts.append(sum(ways.get(s, 0) for s in ends))
            following: dict[int, int] = {}
            for s, number in ways.items():
                for t, width in steps[s]:
                    following[t] = following.get(t, 0) + number * width
            ways = following
        return counts

    def members(self, limit: int | None = None) -> Iterator[bytes]:
        """Yield members in shortlex order: all of them, or the first `limit`."""
        self._need_bytes()
        left = -1 if limit is None else limit
        # ends_in[k]: the states from which some word of exactly k bytes is accepted
        ends_in: list[NDArray[Any]] = [self.accepting]
        longest = self.num_states - 1 if self.is_finite else None
        while left and not self.is_empty and (longest is None or len(ends_in) - 1 <= longest):
            for word in self._members_of_length(ends_in):
                yield word
                left -= 1
                if not left:
                    return
            before: NDArray[np.bool_] = np.append(ends_in[-1], False)  # where -1 points
            ends_in.append(np.any(before[self.transition], axis=1))

    def _members_of_length(self, ends_in: list[NDArray[Any]]) -> Iterator[bytes]:
        """Yield the members of length len(ends_in) - 1 in order."""
        length = len(ends_in) - 1
        word = bytearray(length)
        todo = [(0, -1, 0)] if ends_in[length][0] else []  # (depth, the byte that led here, state)
        while todo:
            depth, byte, state = todo.pop()
            if depth:
                word[depth - 1] = byte
            if depth == length:
                yield bytes(word)
                continue
            useful = ends_in[length - depth - 1]
            for b in range(BYTES - 1, -1, -1):
                t = self.step(state, b)
                if t >= 0 and useful[t]:
                    todo.append((depth + 1, b, t))

    def sample(self, rng: np.random.Generator, max_length: int, *, meter: Meter | None = None) -> bytes:
        """Return a member drawn uniformly among those of at most `max_length` bytes; ConstraintError if there are none.

        Counts are exact integers, so the draw is uniform however many members there are. The first draw of a length
        counts the words of each length from each state, and later draws read them. meter: of that counting, None for no
        limits. Raises BudgetError.
        """
        self._need_bytes()
        ways = self._ways.up_to(max_length, meter)
        if not ways[max_length][0]:
            shortest = self.shortest()
            raise ConstraintError(
                "there is nothing to sample: no word is accepted"
                if shortest is None
                else f"no member has at most {max_length} bytes: the shortest has {len(shortest)}, so raise max_length"
            )
        state, word = 0, bytearray()
        for left in range(max_length, -1, -1):
            draw = _below(rng, ways[left][state])
            if draw < ways[0][state]:
                break
            draw -= ways[0][state]
            for c, t in enumerate(self.transition[state].tolist()):
                if t >= 0:
                    share = ways[left - 1][t]
                    symbols = self._symbols[c]
                    if draw < share * len(symbols):
                        word.append(symbols[draw // share])
                        state = t
                        break
                    draw -= share * len(symbols)
        return bytes(word)

    # ------------------------------------------------------------------------------------------- derived arrays

    @cached_property
    def edges(self) -> NDArray[np.int32]:
        """The transitions as (state, lowest symbol, highest symbol, next state), (E, 4), longest ranges, in order."""
        cut = np.flatnonzero(self.class_of[1:] != self.class_of[:-1]) + 1
        low = np.concatenate((np.zeros(1, np.int64), cut))
        high = np.append(cut, self.alphabet) - 1
        rows = self.transition[:, self.class_of[low]]  # (N, runs of symbols of one class)
        fresh = np.ones(rows.shape, np.bool_)
        np.not_equal(rows[:, 1:], rows[:, :-1], out=fresh[:, 1:])
        begin = np.flatnonzero(fresh)
        end = np.append(begin[1:], rows.size) - 1  # a row's first run is always fresh, so none crosses rows
        target = rows.ravel()[begin]
        there = target >= 0
        begin, end = begin[there], end[there]
        edges = np.empty((begin.size, 4), np.int32)
        edges[:, 0] = begin // low.size
        edges[:, 1] = low[begin % low.size]
        edges[:, 2] = high[end % low.size]
        edges[:, 3] = target[there]
        return edges

    @cached_property
    def _symbols(self) -> list[list[int]]:
        """The symbols of each class."""
        return [np.flatnonzero(self.class_of == c).tolist() for c in range(self.transition.shape[1])]

    @cached_property
    def _steps(self) -> list[list[tuple[int, int]]]:
        """For each state its (next state, number of symbols that lead there)."""
        widths = np.bincount(self.class_of, minlength=self.transition.shape[1]).tolist()
        steps = []
        for row in self.transition.tolist():
            total: dict[int, int] = {}
            for t, width in zip(row, widths, strict=True):
                if t >= 0:
                    total[t] = total.get(t, 0) + width
            steps.append(list(total.items()))
        return steps

    @cached_property
    def _finite_order(self) -> NDArray[np.int32]:
        """The states (N,) with every transition leading forward, or nothing if there is a cycle."""
        order: NDArray[np.int32] = _topological(self.transition)
        return order

    @cached_property
    def _ways(self) -> Ways:
        """How many words lead from each state to an end. Grows as it is asked."""
        return Ways(self.accepting.tolist(), self._steps)

    def _need_bytes(self) -> None:
        if self.alphabet != BYTES:
            raise ValueError(f"members are bytes, and this alphabet has {self.alphabet - BYTES} markers: erase them")


def _below(rng: np.random.Generator, limit: int) -> int:
    """Return a uniform integer in 0 .. limit - 1, of any size."""
    bits = (limit - 1).bit_length()
    while True:
        draw = int.from_bytes(rng.bytes((bits + 7) // 8), "little") >> (-bits % 8)
        if draw < limit:
            return draw


@kernel
def _topological(transition: Int32Array) -> Int32Array:
    """Return the states (N,) with every transition leading forward, or none of them if there is a cycle."""
    N, C = transition.shape
    into = np.zeros(N, np.int64)
    for s in range(N):
        for c in range(C):
            if transition[s, c] >= 0:
                into[transition[s, c]] += 1
    order = np.empty(N, np.int32)
    count = 0
    for s in range(N):
        if into[s] == 0:
            order[count] = s
            count += 1
    i = 0
    while i < count:
        for c in range(C):
            t = transition[order[i], c]
            if t >= 0:
                into[t] -= 1
                if into[t] == 0:
                    order[count] = t
                    count += 1
        i += 1
    return order if count == N else order[:0]


class Ways:
    """How many words lead from states to an end: for each k, how many of at most k symbols, in a list over states."""

    def __init__(self, accepting: Sequence[bool], steps: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Begin with words of no symbols. steps: of each state (next state, number of symbols that lead there)."""
        self._counts = [[int(end) for end in accepting]]
        self._steps = steps
        self._nbytes = 0

    def up_to(self, length: int, meter: Meter | None = None) -> list[list[int]]:
        """Return the lists for 0 to `length` or more. Raises BudgetError if counting takes more than there is."""
        ends = self._counts[0]
        while len(self._counts) <= length:
            last, longer, nbytes = self._counts[-1], list[int](), 0
            for first in range(0, len(ends), _COUNTED):
                if meter is not None:
                    meter.check(bytes=self._nbytes + nbytes, doing="counting members")
                there = slice(first, first + _COUNTED)
                counted = [
                    end + sum(w * last[t] for t, w in row)
                    for end, row in zip(ends[there], self._steps[there], strict=True)
                ]
                longer += counted
                nbytes += sum(_INTEGER + (count.bit_length() >> 3) for count in counted)
            self._counts.append(longer)
            self._nbytes += nbytes
        return self._counts
