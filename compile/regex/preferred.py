"""The words of a pattern that are their own preferred match: what a backtracking matcher takes, as an automaton."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...automata.budget import Meter
from ...automata.dfa import BYTES, Dfa
from ...automata.nfa import Nfa
from ...automata.subsets import determinize
from ...automata.utf8 import Ranges, char_class, normalize_ranges
from .tree import (
    Anchor,
    Assertion,
    Boundary,
    Chars,
    Concat,
    Look,
    Node,
    Repeat,
    Text,
    Union,
)


def fewest(node: Node) -> int:
    """Return the least number of characters that a node reads."""
    if isinstance(node, Text):
        return len(node.text)
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Concat):
        return sum([fewest(item) for item in node.items])
    if isinstance(node, Union):
        return min([fewest(item) for item in node.items])
    return node.low * fewest(node.item) if isinstance(node, Repeat) else 0


_MATCH = 0  # the instruction that every program ends with


class PreferredWords:
    """A pattern as a program for threads in order of preference, and the subset construction over lists of them.

    Instruction i reads a character of set reads[i] where that is 0 or more, asks for assertion asks[i] where that is,
    and goes on at each of to[i], the preferred first.
    """

    def __init__(self, node: Node, assertions: list[Assertion], meter: Meter) -> None:
        self.meter = meter
        self.reads, self.asks = [-1], [-1]
        self.to: list[tuple[int, ...]] = [()]
        self.set_of: dict[Ranges, int] = {}
        self.assertion_of = {id(assertion): i for i, assertion in enumerate(assertions)}
        self.start = self._compile(node, _MATCH, _MATCH)
        self.classes = _classes(list(self.set_of))

    def _emit(self, reads: int, asks: int, to: tuple[int, ...]) -> int:
        self.reads.append(reads)
        self.asks.append(asks)
        self.to.append(to)
        count = len(self.to)
        if count & 1023 == 0:
            self.meter.check(states=count, bytes=200 * count, doing="writing a terminal's repeats out")
        return count - 1

    def _read(self, ranges: Ranges, following: int) -> int:
        return self._emit(self.set_of.setdefault(ranges, len(self.set_of)), -1, (following,))

    def _compile(self, node: Node, after: int, unread: int) -> int:
        """Return the instruction at which a node begins.

        after: what follows it. unread: what follows where nothing has been read; the same, if nobody asks.
        """
        if isinstance(node, Text):
            if node.text:
                unread = after
            for c in reversed(node.text):
                unread = self._read(((ord(c), ord(c)),), unread)
            return unread
        if isinstance(node, Chars):
            return self._read(node.ranges, after)
        if isinstance(node, Concat):
            for i in range(len(node.items) - 1, -1, -1):
                item = node.items[i]
                begin = self._compile(item, after, unread)
                if i:
                    after = begin if unread == after else self._compile(item, after, after)
                unread = begin
            return unread
        if isinstance(node, Union):
            return self._emit(-1, -1, tuple([self._compile(item, after, unread) for item in node.items]))
        if isinstance(node, Repeat):
            return self._repeat(node, after, unread)
        assert isinstance(node, (Look, Boundary, Anchor))
        return self._emit(-1, self.assertion_of[id(node)], (unread,))

    def _repeat(self, node: Repeat, after: int, unread: int) -> int:
        """Return the instruction at which a repeat begins.

        A backtracking matcher leaves a repeat after a round that read nothing, unless it was one of those that must be.
        """
        item, low, asked = node.item, node.low, unread != after
        never_empty = fewest(item) > 0

        def one(then: int, otherwise: int) -> int:
            return self._compile(item, then, then if never_empty else otherwise)

        def perhaps(begin: int, leave: int) -> tuple[int, ...]:
            return (leave, begin) if node.lazy else (begin, leave)

        if node.high == low:
            rest = fewer = after
        elif node.high is None:
            rest = fewer = self._emit(-1, -1, ())
            self.to[rest] = perhaps(one(rest, after), after)
        else:
            rest = fewer = after
            for _ in range(node.high - low):
                fewer, rest = rest, self._emit(-1, -1, perhaps(one(rest, after), after))
        if not asked:
            for _ in range(low):
                rest = self._compile(item, rest, rest)
            return rest
        if node.high != low:
            unread = self._emit(-1, -1, perhaps(one(fewer, unread), unread))
        for i in range(low, 0, -1):
            begin = one(rest, unread)
            rest = rest if i == 1 else begin if never_empty else self._compile(item, rest, rest)
            unread = begin
        return unread

    def _closed(self, threads: tuple[int, ...], truth: int) -> tuple[int, ...]:
        """Return the threads that read, in order, once each, up to the first that matches."""
        reads, asks, to = self.reads, self.asks, self.to
        out, seen, stack = [], set(), list(reversed(threads))
        while stack:
            i = stack.pop()
            if i in seen:
                continue
            seen.add(i)
            if i == _MATCH:
                out.append(i)
                break
            if reads[i] >= 0:
                out.append(i)
            elif asks[i] < 0 or truth >> asks[i] & 1:
                stack.extend(reversed(to[i]))
        return tuple(out)

    def threads(self) -> tuple[int, ...]:
        """Return the threads before any character, of a pattern without assertions."""
        return self._closed((self.start,), 0)

    def matches(self, threads: tuple[int, ...]) -> bool:
        """Whether the last of some threads matches."""
        return bool(threads) and threads[-1] == _MATCH

    def steps(self, threads: tuple[int, ...]) -> Iterator[tuple[Ranges, tuple[int, ...]]]:
        """Yield characters, and the threads behind each of them, of a pattern without assertions."""
        for held, ranges in self.classes:
            nexts = self._closed(tuple([self.to[i][0] for i in threads if i and held >> self.reads[i] & 1]), 0)
            if nexts:
                yield ranges, nexts

    def dfa(self) -> Dfa:
        """Return the DFA of the words that are their own preferred match, a symbol of truths before each character."""
        kinds = 1 << len(self.assertion_of)
        asking = kinds > 1
        alphabet = BYTES + kinds if asking else BYTES
        start = (self.start,) if asking else self._closed((self.start,), 0)
        number = {(asking, start): 0}
        todo = [(asking, start)]
        moves: dict[tuple[int, int], list[Ranges]] = {}  # by state and next state
        told: list[tuple[int, int, int, int]] = []
        size = 0

        def find(asks: bool, threads: tuple[int, ...]) -> int:
            nonlocal size
            state = number.setdefault((asks, threads), len(number))
            if state == len(todo):
                todo.append((asks, threads))
                size += len(threads)
                if state & 63 == 0:
                    self.meter.check(states=state, bytes=64 * state + 8 * size, doing="determinising a terminal")
            return state

        s = 0
        while s < len(todo):
            asks, threads = todo[s]
            if asks:
                for truth in range(kinds):
                    closed = self._closed(threads, truth)
                    if closed:
                        told.append((s, BYTES + truth, BYTES + truth, find(False, closed)))
            else:
                for held, ranges in self.classes:
                    nexts = tuple([self.to[i][0] for i in threads if i and held >> self.reads[i] & 1])
                    if not asking:
                        nexts = self._closed(nexts, 0)
                    if nexts:
                        moves.setdefault((s, find(asking, nexts)), []).append(ranges)
            s += 1
        ends = [s for s, (asks, threads) in enumerate(todo) if not asks and threads and threads[-1] == _MATCH]
        return self._spelt(moves, told, len(todo), ends, alphabet)

    def _spelt(
        self,
        moves: dict[tuple[int, int], list[Ranges]],
        told: list[tuple[int, int, int, int]],
        states: int,
        ends: list[int],
        alphabet: int,
    ) -> Dfa:
        """Return an automaton over sets of characters as a DFA over their bytes."""
        edges = told
        within: dict[tuple[int, Ranges], int] = {}  # the states inside a character, by where it leads
        wide = []
        for (s, t), parts in moves.items():
            ranges = parts[0] if len(parts) == 1 else normalize_ranges([pair for part in parts for pair in part])
            if ranges[-1][1] < 0x80:
                edges.extend([(s, low, high, t) for low, high in ranges])
                continue
            character = char_class(ranges)
            of = character.edges.copy()
            known = within.get((t, ranges))
            offset = states if known is None else known
            number = np.arange(character.num_states, dtype=np.int32) + np.int32(offset)
            number[character.accepting] = t
            number[0] = s
            if known is None:
                within[t, ranges] = offset
                states += character.num_states
            else:
                of = of[of[:, 0] == 0]
            of[:, 0], of[:, 3] = number[of[:, 0]], number[of[:, 3]]
            wide.append(of)
        nfa = Nfa(alphabet, self.meter)
        own = np.array(edges, np.int32).reshape(-1, 4)
        return determinize(nfa, nfa.embed_edges(np.concatenate((own, *wide)), states, [0], ends))


def _classes(sets: list[Ranges]) -> list[tuple[int, Ranges]]:
    """Return the characters by which of these sets hold them, as bits, without those in none."""
    turns: dict[int, int] = {}
    for i, ranges in enumerate(sets):
        for low, high in ranges:
            turns[low] = turns.get(low, 0) ^ 1 << i
            turns[high + 1] = turns.get(high + 1, 0) ^ 1 << i
    found: dict[int, list[tuple[int, int]]] = {}
    held, begin = 0, 0
    for point in sorted(turns):
        if held:
            found.setdefault(held, []).append((begin, point - 1))
        held ^= turns[point]
        begin = point
    return [(held, tuple(ranges)) for held, ranges in found.items()]
