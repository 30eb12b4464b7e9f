"""Byte machines with calls and returns: visibly pushdown automata, deterministic by construction.

States are numbers, and each has a row of 256 codes. A code leads to a state, or pushes a return *site* and enters a
fragment (a call), or ends the fragment and pops the site (a return), which may keep the byte for what comes after. A
site says where to go on by the label with which its fragment ends.

A `Machine` is put together from a few kinds of pieces, noted in flat lists; `flush` writes them all in one kernel. The
states of a *library* machine come first, so that what is known of them holds in every machine built on it. A state may
be left for later: its row is written when somebody reaches it.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel

UNWRITTEN = 0  # in rows that are left for later: nothing leads to state 0, the start of the whole
KEYS = 1 << 27  # from here on states are those of tries of words, which have no rows: see `Machine.trie`
STRINGS = 1 << 28  # from here on those of counted strings: see `Machine.string`
TEXTS = 3 << 28  # and from here on those of strings by their content: see `Machine.text`
PHASES = 9  # states of a text for each of its content
DEAD = -1
RETURN = -2  # minus the label
KEEP = -(1 << 20)  # minus the label: the fragment ended before this byte
CALL = -(1 << 21)  # minus the call


class Content(NamedTuple):
    r"""A string by the DFA of its content, read as it is.

    State first + PHASES * (k * N + q) is state q of the content after k characters, which are counted only where there
    is a bound; those up to the next one are within an escape: behind \, \u, \u0, \u00, and \u00 with a further 0, 1,
    2, 5.
    """

    class_of: NDArray[np.uint16]  # (256,)
    transition: NDArray[np.int32]  # (N, C)
    label: NDArray[np.int32]  # (N,)
    free: int = -1  # the state after which anything may come: it is the library's string
    most: int = -1  # characters, -1 for any number
    needed: NDArray[np.int32] = np.zeros(0, np.int32)  # (N,) characters that must follow, -1 where no end does; or none
    first: int = TEXTS

    @property
    def positions(self) -> int:
        """Numbers of characters that are told apart."""
        return self.most + 1 if self.most >= 0 else 1


# of a state of a trie: the byte that leads to it; its first child; the next child of its parent, by rising bytes; the
# library's state that reads all other bytes, the label with which a string ends here, and where an escape leads, each
# DEAD where there is none; the first state from here on in which a word ends, and the state after those below
KEY_BYTE, KEY_CHILD, KEY_NEXT, KEY_LIKE, KEY_LABEL, KEY_ESCAPE, KEY_END, KEY_STOP = range(8)
OF_KEY = 8
# of a use of a trie: its first state, the state after its last; the first in the trie; the site that says where a word
# leads by its label, DEAD where one on the stack does
USE_FIRST, USE_STOP, USE_TRIE, USE_SITE = range(4)
OF_USE = 4


class PushdownMachine:
    """A machine in the making, on top of a library's, whose states, sites and calls keep their numbers.

    State 0 is the start of the whole; a library leaves it alone.
    """

    def __init__(self, library: PushdownMachine | None = None) -> None:
        self.bytes = bytearray()
        self._edges: list[int] = []  # state, lowest byte, highest byte, code
        self._late: list[int] = []  # the same, written last
        self._chains: list[int] = []  # state, first new state, code at the end, first byte, bytes
        self._enters: list[int] = []  # state, state entered, first call, first state of its fragment, site
        self._copies: list[int] = []  # state, state copied
        self._dfas: list[tuple[int, NDArray[Any] | None, NDArray[Any]]] = []
        self._blocks: list[int] = []  # first call, calls, site, first target
        self._site_states: list[int] = []
        self._site_start: list[int] = []
        self._site_leaf: list[bool] = []
        self._site_of: dict[tuple[Any, ...], int] = {}
        self._call_of: dict[tuple[int, int], int] = {}
        self._block_of: dict[tuple[int, int], int] = {}
        self.pending: dict[int, Callable[[], None]] = {}  # what writes the states that are left for later
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
        self.strings: list[tuple[int, int, int | None]] = []  # first state, fewest and most characters
        self._next_string, self._next_text = STRINGS, TEXTS
        self.texts: list[Content] = []
        self.num_keys = self._flushed_keys = 0  # states of tries
        self._tries: list[int] = []  # first state, words, string, escape
        self._letters = bytearray()  # of all words of these
        self._word_ends: list[int] = []
        self._word_labels: list[int] = []
        self.uses: list[tuple[int, int, int, int]] = []  # of tries, by rising first state; see USE_FIRST
        self._use_of: dict[tuple[int, int], int] = {}
        self._used_keys = KEYS
        self._uses = np.zeros((0, OF_USE), np.int64)
        self._flushed_uses = 0
        self._keys = np.zeros((0, OF_KEY), np.int32)
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

    def later(self, write: Callable[[], None], alone: bool = False) -> int:
        """Return a new state that is left for later: `write` adds its pieces. alone: it is much work."""
        state = self.state()
        self.pending[state] = write
        if alone:
            self._alone.add(state)
        return state

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
        self._blocks.extend((first, count, site, target))
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
        self._edges.extend((state, byte, byte, code))

    def edges(self, state: int, low: int, high: int, code: int) -> None:
        """Lead from a state by a range of bytes, both included."""
        self._edges.extend((state, low, high, code))

    def late(self, state: int, byte: int, code: int) -> None:
        """Lead from a state by one byte, written after copies."""
        self._late.extend((state, byte, byte, code))

    def chain(self, state: int, data: bytes, code: int) -> int:
        """Lead from a state by some bytes to a code; return the first of the len(data) - 1 states between."""
        first = self.size
        self.size += len(data) - 1
        self._chains.extend((state, first, code, len(self.bytes), len(data)))
        self.bytes += data
        return first

    def enter(self, state: int, target: int, fragment: tuple[int, int], site: int) -> None:
        """Read in a state what `target` reads, pushing a site; fragment: its first state, and how many it has."""
        key = (site, fragment[0])
        block = self._block_of.get(key)
        if block is None:
            block = self._block_of[key] = self._block(site, *fragment)
        self._enters.extend((state, target, block, fragment[0], site))

    def copy(self, state: int, source: int) -> None:
        """Read in a state what another reads, which is written by now, or together with it."""
        self._copies.extend((state, source))

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
        first = self.num_keys
        self._tries.extend((first, len(words), string, escape))
        for j in sorted(range(len(words)), key=words.__getitem__):
            self._letters += words[j]
            self._word_ends.append(len(self._letters))
            self._word_labels.append(labels[j])
        self.num_keys += sum(map(len, words)) + 1  # at most: beginnings are shared
        return first, self.num_keys

    def use(self, trie: tuple[int, int], states: tuple[int, ...] | None) -> int | None:
        """Return the first state of a trie whose words lead to states[label], -1 for one that may not come.

        None where states have run out. Only what is lazy reads it. Where other words may come too, it is called with a
        site on top, which says that, and `states` is None.
        """
        key = trie[0], DEAD if states is None else self.site(states, True)
        found = self._use_of.get(key)
        if found is None:
            first, stop = self._used_keys, self._used_keys + trie[1] - trie[0]
            if stop > STRINGS:
                return None
            self._used_keys = stop
            self.uses.append((first, stop, *key))
            found = self._use_of[key] = first
        return found

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
            write()
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
        return self.size + _TEXT * len(self.texts) + (len(self._site_states) + self.num_keys) // _OF_SITE

    # ---------------------------------------------------------------------------------------------- arrays

    def flush(self) -> None:
        """Write all pieces that were added into the arrays."""
        if not (
            self.size > self._flushed_states or self._blocks or self._site_start or self._enters or self._edges
            or self._chains or self._copies or self._late or self._reached or self._tries
            or len(self.uses) > self._flushed_uses
        ):  # fmt: skip
            return
        grows = bool(self.pending or self.parts)
        if self._tries:
            self._keys = _longer(self._keys, self._flushed_keys, self.num_keys, bool(self.pending))
            letters = np.frombuffer(bytes(self._letters), np.uint8)
            ends, labels = np.array(self._word_ends, np.int64), np.array(self._word_labels, np.int32)
            _fill_tries(self._keys, _table(self._tries, 4), letters, ends, labels, self._rows)
            self._tries, self._letters, self._word_ends, self._word_labels = [], bytearray(), [], []
            self._flushed_keys = self.num_keys
        if len(self.uses) > self._flushed_uses:
            self._uses = _longer(self._uses, self._flushed_uses, len(self.uses), bool(self.pending))
            self._uses[self._flushed_uses : len(self.uses)] = self.uses[self._flushed_uses :]
            self._flushed_uses = len(self.uses)
        if self.size > len(self._rows):
            rows = _growing_rows(2 * self.size) if grows else np.zeros((self.size, 256), np.int32)
            rows[: self._flushed_states] = self._rows[: self._flushed_states]
            self._rows = rows
        if self.size > self._twins.shape[1]:
            twins = np.full((2, 2 * self.size if grows else self.size), -1, np.int32)
            twins[:, : self._flushed_states] = self._twins[:, : self._flushed_states]
            self._twins = twins
        self._calls = _longer(self._calls, self._flushed_calls, self.num_calls, bool(self.pending))
        if self._site_start:
            start, states, leaf = self._sites
            used, new = self._used_site_states, len(self._site_states)
            start = _longer(start, self._flushed_sites + 1, self.num_sites + 1, bool(self.pending))
            states = _longer(states, used, used + new, bool(self.pending))
            leaf = _longer(leaf, self._flushed_sites, self.num_sites, bool(self.pending))
            start[self._flushed_sites + 1 : self.num_sites + 1] = self._site_start
            states[used : used + new] = self._site_states
            leaf[self._flushed_sites : self.num_sites] = self._site_leaf
            self._sites = start, states, leaf
            self._used_site_states += new
            self._site_start, self._site_states, self._site_leaf = [], [], []
        holes = self._holes
        if self.pending:
            flushed = self._flushed_states
            new_ones = []
            for state in reversed(self.pending):
                if state < flushed:
                    break
                new_ones.append((state, 1))
            holes = sorted(holes + new_ones)
        pieces = (
            _table(self._blocks, 4), _table(self._enters, 5), _table(self._edges, 4), _table(self._chains, 5),
            np.frombuffer(bytes(self.bytes), np.uint8), _table(self._copies, 2), _table(self._late, 4),
        )  # fmt: skip
        fresh = np.array(self._reached, np.int32)
        place = self._flushed_states, self.size, np.array(holes, np.int32).reshape(-1, 2), fresh
        arguments: tuple[Any, ...] = self._rows, self._calls, *self._sites[:2], *place, *pieces
        _fill_rows(*(*arguments, 0))
        if self._dfas:
            for first, class_of, codes in self._dfas:
                if class_of is None:
                    self._rows[first : first + len(codes)] = codes
                    continue
                shifted = np.where(codes >= 0, codes + first, codes).astype(np.int32)
                self._rows[first : first + len(codes)] = shifted[:, class_of]
            _fill_rows(*(*arguments, 1))
        twins = self._twins
        for state, twin in self.twins.items():
            twins[0, state], twins[1, state] = twin
        for state, source in zip(self._copies[::2], self._copies[1::2], strict=True):
            if twins[0, source] >= 0 and twins[0, state] < 0:
                twins[:, state] = twins[:, source]
        self._flushed_states, self._flushed_sites, self._flushed_calls = self.size, self.num_sites, self.num_calls
        self.twins, self._holes, self._reached, self._dfas = {}, [], [], []
        self._blocks, self._enters, self._edges, self._chains, self._copies, self._late = [], [], [], [], [], []
        self.bytes.clear()

    @property
    def nbytes(self) -> int:
        """Bytes that rows, tries and what sites lead to take, or will when they are flushed."""
        leads = self._used_site_states + len(self._site_states)
        return 1024 * self.size + 4 * (OF_KEY * self.num_keys + leads) + 8 * OF_USE * len(self.uses)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return rows, calls, the three of `sites`, `all_twins` in one, and those of tries and of their uses.

        With room behind what is flushed.
        """
        return self._rows, self._calls, *self._sites, self._twins, self._keys, self._uses

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
        return self._uses[: len(self.uses)]

    @property
    def all_twins(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(library state (N,), site (N,)) of all rows that differ little from the library's, -1 for the others."""
        self.flush()
        return self._twins[0, : self.size], self._twins[1, : self.size]


def needs(
    machine: PushdownMachine, most: int, *, hope: bool = True
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    """Return how many frames that are no leaves it takes to end the fragment of each state, (N,), and behind each site.

    most: in place of what has no end. Where labels lead into ever deeper calls, only the best of them is counted on;
    without hope, none. Returned too is for which states this was not so. Behind the site of a trie of words, or of a
    text by its content, it is what the other strings take; what the rest takes depends on what may still come. States
    of fragments that were placed count in what comes behind, for which their sites need nothing.
    """
    site_start, site_states, site_leaf = machine.sites
    calls = machine.calls
    to = calls[:, 1]
    told = np.setdiff1d(calls[((to >= KEYS) & (to < STRINGS)) | (to >= TEXTS), 0], calls[to < KEYS, 0])
    site_of = np.full(machine.size, -1, np.int32)
    for first, stop, site in machine.placed:
        site_of[first:stop] = site
    found = []
    for safely in (True, False):
        need = np.full(machine.size, most, np.int32)
        need[list(machine.accepting)] = 0
        # strings and numbers make no calls, and those that are counted are not all here
        for first, stop in chain(((p[0], p[1]) for p in machine.parts), ((c[0], c[0] + c[1]) for c in machine.counted)):
            need[first:stop] = 0
        need[site_of >= 0] = most
        frames_needed(machine.rows, calls, site_start, site_states, site_leaf, machine.all_uses, site_of, safely, need)
        inside = np.where(site_states < STRINGS, need[np.clip(site_states, 0, machine.size - 1)], 0)
        inside[site_states < 0] = 0 if safely else most
        reduce = np.maximum if safely else np.minimum
        behind = reduce.reduceat(inside, site_start[:-1])
        behind[told] = inside[site_start[told]]
        behind[[site for _, _, site in machine.placed]] = 0
        found.append((need, behind))
        if not hope:
            return *found[0], found[0][0] < most
    by_state, by_site = (np.where(sure < most, sure, hoped) for sure, hoped in zip(*found, strict=True))
    return by_state.astype(np.int32), by_site.astype(np.int32), found[0][0] < most


_NEARBY = 64  # of those left for later that are written when nothing else is left to write
_TEXT = 48  # states that a text is worth, as work
_OF_SITE = 16  # states of a site, or of a trie, that are worth one with a row
_PART = 64  # states of a DFA that are written at a time
_ROOM = 1 << 16  # rows of a machine that grows, where those that are not written take no memory


def _growing_rows(least: int) -> NDArray[np.int32]:
    """Return rows of UNWRITTEN, `least` or more, that take memory as they are written.

    numpy asks for pages of 2 MB where an array is large. The first row in each takes 5 ms then, to clear the page.
    """
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):  # not Linux
        return np.zeros((least, 256), np.int32)
    count = max(least, _ROOM)
    memory = mmap.mmap(-1, 1024 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int32).reshape(count, 256)


def _table(flat: Sequence[int], width: int) -> NDArray[np.int32]:
    return np.array(flat, np.int32).reshape(-1, width)


def _longer(array: NDArray[Any], used: int, size: int, grows: bool) -> NDArray[Any]:
    """Return an array with room for `size` entries, of which the first `used` are known."""
    if size <= len(array):
        return array
    out = np.empty((2 * size if grows else size, *array.shape[1:]), array.dtype)
    out[:used] = array[:used]
    return out


@kernel
def _fill_rows(
    rows: Any,
    calls: Any,
    site_start: Any,
    site_states: Any,
    first: int,
    stop: int,
    holes: Any,
    reached: Any,
    blocks: Any,
    enters: Any,
    edges: Any,
    chains: Any,
    data: Any,
    copies: Any,
    late: Any,
    again: int,
) -> None:
    """Write rows first .. stop, holes aside, and those reached, and calls; again: what lies in DFAs stays."""
    if not again:
        at = np.int64(first)
        for i in range(len(holes)):
            rows[at : holes[i, 0]] = DEAD
            at = np.int64(holes[i, 0] + holes[i, 1])
        rows[at:stop] = DEAD
        for i in range(reached.size):
            rows[reached[i]] = DEAD
        for i in range(len(blocks)):
            for k in range(blocks[i, 1]):
                calls[blocks[i, 0] + k, 0] = blocks[i, 2]
                calls[blocks[i, 0] + k, 1] = blocks[i, 3] + k
    for i in range(len(enters)):
        s, t, block, origin, site = enters[i, 0], enters[i, 1], enters[i, 2], enters[i, 3], enters[i, 4]
        for b in range(256):
            code = rows[t, b]
            if code > 0:
                rows[s, b] = CALL - (block + code - origin)
            elif code <= RETURN and code > KEEP:
                rows[s, b] = site_states[site_start[site] + RETURN - code]
    for i in range(len(edges)):
        for b in range(edges[i, 1], edges[i, 2] + 1):
            rows[edges[i, 0], b] = edges[i, 3]
    for i in range(len(chains)):
        s, fresh, at, n = chains[i, 0], chains[i, 1], chains[i, 3], chains[i, 4]
        for k in range(n):
            code = chains[i, 2] if k == n - 1 else fresh + k
            rows[s, data[at + k]] = code
            s = fresh + k
    for i in range(len(copies)):
        rows[copies[i, 0]] = rows[copies[i, 1]]
    for i in range(len(late)):
        for b in range(late[i, 1], late[i, 2] + 1):
            rows[late[i, 0], b] = late[i, 3]


@kernel
def _fill_tries(keys: Any, tries: Any, letters: Any, ends: Any, labels: Any, rows: Any) -> None:
    """Write the states of tries of sorted words, each trie's in the order of its words; see `Machine.trie`."""
    longest, at = np.int64(0), np.int64(0)
    for end in ends:
        longest, at = max(longest, end - at), end
    path = np.empty(longest + 1, np.int64)  # states of the word before, which lies at `before` and has `size` bytes
    j = at = np.int64(0)
    for t in range(len(tries)):
        first, stop, string, escape = np.int64(tries[t, 0]), j + tries[t, 1], tries[t, 2], tries[t, 3]
        _set_key(keys, first, 0, string, string, escape)
        path[0], used = first, first + 1
        before = size = np.int64(0)
        while j < stop:
            length, common = ends[j] - at, np.int64(0)
            while common < min(size, length) and letters[before + common] == letters[at + common]:
                common += 1
            for depth in range(common, length):
                here, byte = path[depth], letters[at + depth]
                if depth == common and common < size:
                    keys[path[depth + 1], KEY_NEXT] = used
                    for k in range(common + 1, size + 1):
                        keys[path[k], KEY_STOP] = used
                else:
                    keys[here, KEY_CHILD] = used
                like = keys[here, KEY_LIKE]
                _set_key(keys, used, byte, DEAD if like == DEAD else rows[like, byte], string, escape)
                path[depth + 1] = used
                used += 1
            keys[path[length], KEY_LABEL] = labels[j]
            keys[path[length], KEY_END] = path[length]
            before, size, at, j = at, length, ends[j], j + 1
        for k in range(size + 1):
            keys[path[k], KEY_STOP] = used
        for here in range(used - 1, first - 1, -1):
            if keys[here, KEY_END] < 0:
                keys[here, KEY_END] = keys[here + 1, KEY_END]


@kernel
def _set_key(keys: Any, here: Any, byte: Any, like: Any, string: Any, escape: Any) -> None:
    """Write a state of a trie in which no word ends and from which none goes on."""
    keys[here, KEY_BYTE], keys[here, KEY_CHILD], keys[here, KEY_NEXT], keys[here, KEY_LIKE] = byte, -1, -1, like
    within = like == string and like != DEAD  # a string, and no character of it
    keys[here, KEY_LABEL], keys[here, KEY_ESCAPE] = 0 if within else DEAD, escape if within else DEAD
    keys[here, KEY_END], keys[here, KEY_STOP] = -1, here + 1


@kernel
def labels_in_escapes(class_of: Any, transition: Any, ahead: Any) -> Any:
    """Return the labels ahead of the states of a content, and of the places in an escape behind each.

    ahead: those of the states, (N, W); (N, PHASES, W) is returned; see `Content`.
    """
    states = transition.shape[0]
    out = np.zeros((states, PHASES, ahead.shape[1]), np.uint64)
    out[:, 0] = ahead
    for phase, low, high in (
        (4, 0, 0x1F), (4, 0x22, 0x22), (4, 0x5C, 0x5C), (5, 0, 0x0F), (6, 0x10, 0x1F), (7, 0x22, 0x22), (8, 0x5C, 0x5C)
    ):  # fmt: skip
        for s in range(states):
            for byte in range(low, high + 1):
                target = transition[s, class_of[byte]]
                if target >= 0:
                    out[s, phase] |= ahead[target]
    for phase in range(1, 4):  # any of them may still come
        out[:, phase] = out[:, 4]
    return out


@kernel
def frames_needed(
    rows: Any, calls: Any, site_start: Any, site_states: Any, site_leaf: Any, uses: Any, site_of: Any, safely: bool,
    out: Any,
) -> None:  # fmt: skip
    """Lower out[s] to how many frames that are no leaves it takes at least to end the fragment of state s.

    site_of: (N,) the sites of states of fragments that were placed, -1 of others. out: (N,) 0 where nothing more has to
    be read, and a number above all others elsewhere. safely: whatever the labels with which fragments end; else with
    the best of them, as always of those of words and texts by their content, of which one may be chosen.
    """
    states = rows.shape[0]
    first = np.zeros(states + 1, np.int64)  # each row's distinct codes
    codes = np.empty(4 * states, np.int32)
    used = 0
    for s in range(states):
        if used + 256 > codes.size:
            grown = np.empty(2 * codes.size + 256, np.int32)
            grown[:used] = codes[:used]
            codes = grown
        last = np.int32(DEAD)
        for b in range(256):
            code = rows[s, b]
            if code != DEAD and code != last:
                codes[used] = last = code
                used += 1
        first[s + 1] = used
    changed = True
    while changed:
        changed = False
        for s in range(states - 1, -1, -1):
            best = out[s]
            for k in range(first[s], first[s + 1]):
                code = codes[k]
                site, worst = np.int64(-1), safely
                if 0 <= code < KEYS:
                    need = out[code]
                elif code > CALL and code < 0:
                    need = np.int32(0)
                    if site_of[s] >= 0:
                        label = RETURN - code if code > KEEP else KEEP - code
                        after = site_states[site_start[site_of[s]] + label]
                        if after < 0:  # nothing goes on behind such an end
                            continue
                        need = out[after]
                elif code >= KEYS:  # words
                    need, worst = np.int32(0), False
                    site = uses[np.searchsorted(uses[:, USE_FIRST], code), USE_SITE]
                else:
                    site, inside = np.int64(calls[CALL - code, 0]), calls[CALL - code, 1]
                    need = np.int32(0) if site_leaf[site] else out[inside] + np.int32(1)
                    worst = safely and not KEYS <= inside < STRINGS and inside < TEXTS
                    if inside < KEYS and site_of[inside] >= 0:
                        site, need = np.int64(-1), out[inside]
                if site >= 0:
                    after = np.int32(-1)
                    for x in range(site_start[site], site_start[site + 1]):
                        if site_states[x] >= 0:
                            there = out[site_states[x]]
                            if after < 0 or (there > after if worst else there < after):
                                after = there
                    need = max(need, after)
                best = min(best, need)
            if best < out[s]:
                out[s] = best
                changed = True
