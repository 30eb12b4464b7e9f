"""Byte machines with calls and returns: visibly pushdown automata, deterministic by construction.

States are numbers, and each has a row of 256 codes. A code leads to a state, or pushes a return *site* and enters a
fragment (a call), or ends the fragment and pops the site (a return), which may keep the byte for what comes after. A
site says where to go on by the label with which its fragment ends.

A `PushdownMachine` is put together from a few kinds of pieces, kept in flat lists. `flush` writes them all in one
kernel. The states of a *library* machine come first, so that facts about them hold in every machine built on it. A
state may be left for later: its row is written when a text reaches it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import long_enough
from .pushdown_rows import NewRows, Pieces, fill_rows, growing_rows
from .state_ranges import CALL, DEAD, PHASES, STRINGS, TEXTS
from .string_content import Content
from .word_tries import WordTries

_NEARBY = 64  # of those left for later that are written when nothing else is left to write
_TEXT = 48  # states that a text is worth, as work
_OF_SITE = 16  # states of a site, or of a trie, that are worth one with a row
_PART = 64  # states of a DFA that are written at a time


class PushdownMachine:
    """A machine in the making, on top of a library's, whose states, sites and calls keep their numbers.

    State 0 is the start of the whole; a library leaves it alone.
    """

    def __init__(self, library: PushdownMachine | None = None) -> None:
        self._pieces = Pieces()
        self._words = WordTries()
        self._dfas: list[tuple[int, NDArray[Any] | None, NDArray[Any]]] = []
        self._site_states: list[int] = []
        self._site_start: list[int] = []
        self._site_leaf: list[bool] = []
        self._site_of: dict[tuple[Any, ...], int] = {}
        self._call_of: dict[tuple[int, int], int] = {}
        self._block_of: dict[tuple[int, int], int] = {}
        self.pending: dict[int, Callable[[int], None]] = {}  # what writes the states that are left for later
        self._alone: set[int] = set()  # of these, such as are much work
        self._reached: list[int] = []  # of these, after they were flushed as unwritten
        self.parts: list[tuple[int, int, NDArray[Any], NDArray[Any]]] = []  # DFAs written by and by
        self._part_start: list[int] = []
        self._holes: list[tuple[int, int]] = []  # of them not flushed yet
        self.twins: dict[int, tuple[int, int]] = {}  # library state and site, of rows nearly the library's
        self.height: int | None = 0  # most calls of its own open at once, leaves aside; None if they recur
        self.anything = True  # whether it calls the library's any object or any array
        # states whose rows are made on their own: of DFAs (first state, classes, codes, whether schemas share it), and
        # of strings that are counted (first state, how many of its states are here, fewest and most characters)
        self.apart: list[tuple[int, NDArray[Any], NDArray[Any], bool]] = []
        self.counted: list[tuple[int, int, int, int | None]] = []
        self.placed: list[tuple[int, int, int]] = []  # (first state, state after the last, site): see `place`
        self.closed: list[tuple[int, int, int]] = []  # DFAs: first state, state after the last, byte with which all end
        self.strings: list[tuple[int, int, int | None]] = []  # first state, fewest and most characters
        self._next_string, self._next_text = STRINGS, TEXTS
        self.texts: list[Content] = []
        self._flushed_sites = self._flushed_calls = 0
        self._flushed_states = 1
        self._rows = np.full((1, 256), DEAD, np.int32)
        self._calls = np.zeros((0, 2), np.int32)
        self._sites = np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.bool_)
        self._twins = np.full((2, 1), -1, np.int32)
        self._used_site_states = 0
        if library is None:
            self.first = self.size = 1
            self.num_sites = self.num_calls = 0
            self.accepting: set[int] = set()  # where nothing need follow
            return
        self.first = self.size = self._flushed_states = library.size
        self.num_sites = self._flushed_sites = library.num_sites
        self.num_calls = self._flushed_calls = library.num_calls
        self._rows, self._calls, self._sites = library.rows, library.calls, library.sites
        self._used_site_states = len(self._sites[1])
        self._twins = np.full((2, library.size), -1, np.int32)  # twins are of the states that come on top
        self.accepting = set(library.accepting)

    # ---------------------------------------------------------------------------------------------- pieces

    def state(self) -> int:
        """Return a new state."""
        self.size += 1
        return self.size - 1

    def later(self, write: Callable[[int], None], alone: bool = False, count: int = 1) -> int:
        """Return the first of `count` new states that are left for later: `write(state)` adds the pieces of each.

        alone: they are much work, or many of which texts come to few.
        """
        first = self.size
        self.size += count
        self.pending.update(dict.fromkeys(range(first, self.size), write))
        if alone:
            self._alone.update(range(first, self.size))
        return first

    def soon(self, state: int) -> None:
        """Say of a state left for later that texts come to it sooner than to others that were left alone with it."""
        self._alone.discard(state)

    def site(self, states: tuple[int, ...], leaf: bool) -> int:
        """Return the site that goes on in states[label], -1 for none; leaf: pushed for a fragment without calls."""
        key = (states, leaf)
        found = self._site_of.get(key)
        if found is None:
            found = self._site_of[key] = self._new_site(states, leaf)
        return found

    def _new_site(self, states: tuple[int, ...], leaf: bool) -> int:
        site = self.num_sites
        self.num_sites += 1
        self._site_states.extend(states)
        self._site_start.append(self._used_site_states + len(self._site_states))
        self._site_leaf.append(leaf)
        return site

    def place(self, first: int, count: int, states: tuple[int, ...]) -> int:
        """Return a site for a fragment without calls that is entered with no other, by its states; see `site`.

        How many frames each of these needs thus depends on itself alone.
        """
        site = self._new_site(states, True)
        self.placed.append((first, first + count, site))
        return site

    def call(self, site: int, target: int) -> int:
        """Return the code that pushes a site and goes to a state."""
        key = (site, target)
        found = self._call_of.get(key)
        if found is None:
            found = self._call_of[key] = self._block(site, target, 1)
        return CALL - found

    def _block(self, site: int, target: int, count: int) -> int:
        first = self.num_calls
        self._pieces.blocks.extend((first, count, site, target))
        self.num_calls += count
        return first

    def twin(self, state: int) -> tuple[int, int]:
        """Return the library's state that a state's row is nearly that of, and the site, -1 for none."""
        if state >= self._flushed_states or state in self.twins:
            return self.twins.get(state, (-1, -1))
        like, site = self._twins[:, state].tolist()
        return like, site

    def edge(self, state: int, byte: int, code: int) -> None:
        """Lead from a state by one byte."""
        self._pieces.edges.extend((state, byte, byte, code))

    def edges(self, state: int, low: int, high: int, code: int) -> None:
        """Lead from a state by a range of bytes, both included."""
        self._pieces.edges.extend((state, low, high, code))

    def late(self, state: int, byte: int, code: int) -> None:
        """Lead from a state by one byte, written after copies."""
        self._pieces.late.extend((state, byte, byte, code))

    def chain(self, state: int, data: bytes, code: int) -> int:
        """Lead from a state by some bytes to a code; return the first of the len(data) - 1 states between."""
        first = self.size
        self.size += len(data) - 1
        self._pieces.chains.extend((state, first, code, len(self._pieces.data), len(data)))
        self._pieces.data += data
        return first

    def enter(self, state: int, target: int, fragment: tuple[int, int], site: int) -> None:
        """Read in a state what `target` reads, pushing a site; fragment: its first state, and how many it has."""
        key = (site, fragment[0])
        block = self._block_of.get(key)
        if block is None:
            block = self._block_of[key] = self._block(site, *fragment)
        self._pieces.enters.extend((state, target, block, fragment[0], site))

    def copy(self, state: int, source: int) -> None:
        """Read in a state what another reads, which is written by now, or together with it."""
        self._pieces.copies.extend((state, source))

    def dfa(self, class_of: NDArray[Any], codes: NDArray[Any]) -> int:
        """Add the states of a DFA, with codes (N, C) that count states from 0; return the first."""
        first = self.size
        self.size += len(codes)
        self._dfas.append((first, class_of, codes))
        return first

    def dfa_later(self, class_of: NDArray[Any], codes: NDArray[Any]) -> int:
        """Add the states of a DFA as `dfa` does, some at a time as they are reached if they are many."""
        if len(codes) <= _PART:
            return self.dfa(class_of, codes)
        first = self.size
        self.size += len(codes)
        self._part_start.append(first)
        self.parts.append((first, self.size, class_of, codes))
        self._holes.append((first, len(codes)))
        self._dfas.append((first, class_of, codes[:1]))  # which others copy
        return first

    def block(self, rows: NDArray[np.int32]) -> int:
        """Add states by their rows (N, 256) of codes, and return the first; it is `size` before the call."""
        first = self.size
        self.size += len(rows)
        self._dfas.append((first, None, rows))
        return first

    def string(self, low: int, high: int | None, count: int) -> int:
        """Add a string of low .. high characters without rows, `count` states, and return the first.

        Only what is lazy reads it: state k * Q + q is state q of the library's string, which has Q, after k characters.
        """
        first = self._next_string
        self._next_string += count
        self.strings.append((first, low, high))
        return first

    def text(self, content: Content) -> int | None:
        """Add a string by the DFA of its content without rows, and return its first state, None if it has too many.

        Only what is lazy reads it. Its `first` is set here.
        """
        first = self._next_text
        stop = first + PHASES * content.positions * len(content.label)
        if stop >= 1 << 31:
            return None
        self._next_text = stop
        self.texts.append(content._replace(first=first))
        return first

    def trie(
        self, words: Sequence[bytes], labels: Sequence[int], string: int = DEAD, escape: int = DEAD
    ) -> tuple[int, int]:
        """Add a trie of words in strings, after the quote, without rows; return where it begins and ends, for `use`.

        words: one or more, distinct, as JSON writes them; word j ends by labels[j]. string: the library's state that
        reads all others, which end by label 0, if these may come; words have no escapes then. escape: its state after
        an escape that comes before such a one can be told from the words.
        """
        return self._words.add(words, labels, string, escape)

    def use(self, trie: tuple[int, int], states: tuple[int, ...] | None) -> int | None:
        """Return the first state of a trie whose words lead to states[label], -1 for one that may not come.

        None where states have run out. Only what is lazy reads it. Where other words may come too, it is called with a
        site on top, which says that, and `states` is None.
        """
        return self._words.use(trie, DEAD if states is None else self.site(states, True))

    @property
    def uses(self) -> list[tuple[int, int, int, int]]:
        """The uses of tries, by rising first state; see USE_FIRST."""
        return self._words.uses

    # ---------------------------------------------------------------------------------------------- later

    def reach(self, state: int, most: int) -> None:
        """Write the row of a state that was left for later, and about `most` more; `flush` comes after it."""
        if state not in self.pending:
            first, stop, class_of, codes = self.parts[bisect_right(self._part_start, state) - 1]
            low = state - (state - first) % _PART
            part = codes[low - first : min(low + _PART, stop) - first]
            self._rows[low : low + len(part)] = np.where(part >= 0, part + first, part)[:, class_of]
            return
        self._write([state], most)

    def spread(self, most: int, alone: bool = True) -> int:
        """Write about `most` states of those that were left for later, such as are reached soonest.

        alone: those that are much work too, once no others are left. Returns about how many, 0 if none were left.
        """
        todo = [state for state in self.pending if state not in self._alone] or (list(self.pending) if alone else [])
        return self._write(todo, most) if todo else 0

    def _write(self, todo: list[int], most: int) -> int:
        """Write some states and, up to about `most`, what they lead to; return how many these were, at least 1."""
        before = self._work()
        for each in todo:  # which grows meanwhile
            if self._work() - before > most:
                break
            write = self.pending.pop(each, None)
            if write is None:
                continue
            if each < self._flushed_states:
                self._reached.append(each)
            known = self.size
            write(each)
            if self.pending and self.size > known:
                new = []
                for other in reversed(self.pending):
                    if other < known:
                        break
                    if other not in self._alone:
                        new.append(other)
                todo.extend(reversed(new))
            if each == todo[-1]:  # a text seldom comes to one state alone of those that were left
                others = [other for other in islice(reversed(self.pending), _NEARBY) if other not in self._alone]
                todo.extend(others)
        return max(self._work() - before, 1)

    def _work(self) -> int:
        """Return how much work all that there is was, in states."""
        return self.size + _TEXT * len(self.texts) + (len(self._site_states) + self._words.size) // _OF_SITE

    # ---------------------------------------------------------------------------------------------- arrays

    def flush(self) -> None:
        """Write all pieces that were added into the arrays."""
        if not (
            self.size > self._flushed_states or self._pieces or self._site_start or self._reached
            or not self._words.is_flushed
        ):  # fmt: skip
            return
        grows = bool(self.pending)
        self._words.flush(self._rows, grows)
        self._lengthen()
        self._calls = long_enough(self._calls, self._flushed_calls, self.num_calls, grows)
        if self._site_start:
            self._flush_sites(grows)
        holes = self._holes
        if self.pending:
            first = self._flushed_states
            holes = sorted([*holes, *_runs(takewhile(first.__le__, reversed(self.pending)))])
        new = NewRows(
            self._flushed_states, self.size, np.array(holes, np.int32).reshape(-1, 2), np.array(self._reached, np.int32)
        )
        pieces = self._pieces.arrays()
        fill_rows(self._rows, self._calls, *self._sites[:2], new, pieces, 0)
        if self._dfas:
            for first, class_of, codes in self._dfas:
                if class_of is None:
                    self._rows[first : first + len(codes)] = codes
                    continue
                shifted = np.where(codes >= 0, codes + first, codes).astype(np.int32)
                self._rows[first : first + len(codes)] = shifted[:, class_of]
            fill_rows(self._rows, self._calls, *self._sites[:2], new, pieces, 1)
        twins = self._twins
        for state, twin in self.twins.items():
            twins[0, state], twins[1, state] = twin
        for state, source in pieces.copies.tolist():
            if twins[0, source] >= 0 and twins[0, state] < 0:
                twins[:, state] = twins[:, source]
        self._flushed_states, self._flushed_sites, self._flushed_calls = self.size, self.num_sites, self.num_calls
        self.twins, self._holes, self._reached, self._dfas, self._pieces = {}, [], [], [], Pieces()

    def _lengthen(self) -> None:
        """Make room for the rows of all states."""
        grows = bool(self.pending or self.parts)
        if self.size > len(self._rows):
            rows = growing_rows(2 * self.size) if grows else np.zeros((self.size, 256), np.int32)
            rows[: self._flushed_states] = self._rows[: self._flushed_states]
            self._rows = rows
        if self.size > self._twins.shape[1]:
            twins = np.full((2, 2 * self.size if grows else self.size), -1, np.int32)
            twins[:, : self._flushed_states] = self._twins[:, : self._flushed_states]
            self._twins = twins

    def _flush_sites(self, grows: bool) -> None:
        start, states, leaf = self._sites
        used, new = self._used_site_states, len(self._site_states)
        start = long_enough(start, self._flushed_sites + 1, self.num_sites + 1, grows)
        states = long_enough(states, used, used + new, grows)
        leaf = long_enough(leaf, self._flushed_sites, self.num_sites, grows)
        start[self._flushed_sites + 1 : self.num_sites + 1] = self._site_start
        states[used : used + new] = self._site_states
        leaf[self._flushed_sites : self.num_sites] = self._site_leaf
        self._sites = start, states, leaf
        self._used_site_states += new
        self._site_start, self._site_states, self._site_leaf = [], [], []

    @property
    def nbytes(self) -> int:
        """Bytes that rows, tries and what sites lead to take, or will when they are flushed."""
        leads = self._used_site_states + len(self._site_states)
        return 1024 * self.size + 4 * leads + self._words.nbytes

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return rows, calls, the three of `sites`, `all_twins` in one, and those of tries and of their uses.

        With room behind what is flushed.
        """
        return self._rows, self._calls, *self._sites, self._twins, self._words.keys, self._words.use_array

    @property
    def rows(self) -> NDArray[np.int32]:
        """All rows (N, 256) of codes."""
        self.flush()
        return self._rows[: self.size]

    @property
    def calls(self) -> NDArray[np.int32]:
        """The site pushed by each call and the state it goes to (calls, 2)."""
        self.flush()
        return self._calls[: self.num_calls]

    @property
    def sites(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        """(first state of each site (K + 1,), states by label, whether the site is pushed for a leaf (K,))."""
        self.flush()
        start, states, leaf = self._sites
        return start[: self.num_sites + 1], states[: self._used_site_states], leaf[: self.num_sites]

    @property
    def all_uses(self) -> NDArray[np.int64]:
        """The uses of tries (uses, OF_USE), by rising first state; see USE_FIRST."""
        self.flush()
        return self._words.use_array[: len(self.uses)]

    @property
    def all_twins(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(library state (N,), site (N,)) of all rows that differ little from the library's, -1 for the others."""
        self.flush()
        return self._twins[0, : self.size], self._twins[1, : self.size]


def _runs(states: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of some falling numbers: the first of each, and how many it has."""
    first = stop = -1
    for state in states:
        if state != first - 1:
            if stop >= 0:
                yield first, stop - first
            stop = state + 1
        first = state
    if stop >= 0:
        yield first, stop - first
