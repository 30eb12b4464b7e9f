"""Byte machines with calls and returns: visibly pushdown automata, deterministic by construction.

States are numbers, and each has a row of 256 codes. A code leads to a state, or pushes a return *site* and enters a
fragment (a call), or ends the fragment and pops the site (a return), which may keep the byte for what comes after. A
site says where to go on by the label with which its fragment ends.

A `Machine` is put together from a few kinds of pieces, noted in flat lists; `rows` writes them all in one kernel. The
states of a *library* machine come first, so that what is known of them holds in every machine built on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

DEAD = -1
RETURN = -2  # minus the label
KEEP = -(1 << 20)  # minus the label: the fragment ended before this byte
CALL = -(1 << 21)  # minus the call


class Machine:
    """A machine in the making, on top of a library's, whose states, sites and calls keep their numbers.

    State 0 is the start of the whole; a library leaves it alone.
    """

    def __init__(self, library: Machine | None = None) -> None:
        if library is None:
            self.first = 1
            self.size = 1
            self.num_sites = self.num_calls = 0
            self.base_rows = np.full((1, 256), DEAD, np.int32)
            self.library_sites = (np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.bool_))
            self.library_calls = np.zeros((0, 2), np.int32)
        else:
            self.first = self.size = library.size
            self.num_sites, self.num_calls = library.num_sites, library.num_calls
            self.base_rows = library.rows
            self.library_sites = library.sites
            self.library_calls = library.calls
        self._frozen: tuple[Any, ...] | None = None
        self._edges: list[int] = []  # state, lowest byte, highest byte, code
        self._late: list[int] = []  # the same, written last
        self._chains: list[int] = []  # state, first new state, code at the end, first byte, bytes
        self._enters: list[int] = []  # state, state entered, first call, first state of its fragment, site
        self._copies: list[int] = []  # state, state copied
        self._dfas: list[tuple[int, NDArray[Any] | None, NDArray[Any]]] = []
        self._blocks: list[int] = []  # first call, calls, site, first target
        self._site_states: list[int] = []
        self._site_start: list[int] = [0]
        self._site_leaf: list[bool] = []
        self._site_of: dict[tuple[Any, ...], int] = {}
        self._call_of: dict[tuple[int, int], int] = {}
        self._block_of: dict[tuple[int, int], int] = {}
        self.bytes = bytearray()
        self.twins: dict[int, tuple[int, int]] = {}  # library state and site, of rows nearly the library's
        self.accepting: list[int] = [] if library is None else list(library.accepting)  # where nothing need follow
        self.height: int | None = 0  # most calls of its own open at once, leaves aside; None if they recur
        self.anything = True  # whether it calls the library's any object or any array
        # states whose rows are made on their own: of DFAs (first state, classes, codes, whether schemas share it), and
        # of strings that are counted (first state, how many of its states are here, fewest and most characters)
        self.apart: list[tuple[int, NDArray[Any], NDArray[Any], bool]] = []
        self.counted: list[tuple[int, int, int, int | None]] = []

    # ---------------------------------------------------------------------------------------------- pieces

    def state(self) -> int:
        """Return a new state."""
        self.size += 1
        return self.size - 1

    def site(self, states: tuple[int, ...], leaf: bool) -> int:
        """Return the site that goes on in states[label], -1 for none; leaf: pushed for a fragment without calls."""
        key = (states, leaf)
        found = self._site_of.get(key)
        if found is None:
            found = self._site_of[key] = self.num_sites
            self.num_sites += 1
            self._site_states.extend(states)
            self._site_start.append(len(self._site_states))
            self._site_leaf.append(leaf)
        return found

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
        """Read in a state what another reads."""
        self._copies.extend((state, source))

    def dfa(self, class_of: NDArray[Any], codes: NDArray[Any]) -> int:
        """Add the states of a DFA, with codes (N, C) that count states from 0; return the first."""
        first = self.size
        self.size += len(codes)
        self._dfas.append((first, class_of, codes))
        return first

    def block(self, rows: NDArray[np.int32]) -> int:
        """Add states by their rows (N, 256) of codes, and return the first; it is `size` before the call."""
        first = self.size
        self.size += len(rows)
        self._dfas.append((first, None, rows))
        return first

    def all_twins(self) -> NDArray[np.int32]:
        """Return (state, library state, site) of all rows that differ little from the library's, copies among them."""
        for state, source in zip(self._copies[::2], self._copies[1::2], strict=True):
            if source in self.twins and state not in self.twins:
                self.twins[state] = self.twins[source]
        return np.array([(state, *twin) for state, twin in self.twins.items()], np.int32).reshape(-1, 3)

    # ---------------------------------------------------------------------------------------------- arrays

    def _finish(self) -> tuple[Any, ...]:
        if self._frozen is None:
            sites = (
                np.concatenate(
                    (self.library_sites[0], np.array(self._site_start[1:], np.int32) + self.library_sites[0][-1])
                ),
                np.concatenate((self.library_sites[1], np.array(self._site_states, np.int32))),
                np.concatenate((self.library_sites[2], np.array(self._site_leaf, np.bool_))),
            )  # fmt: skip
            calls = np.empty((self.num_calls, 2), np.int32)
            calls[: len(self.library_calls)] = self.library_calls
            rows = np.empty((self.size, 256), np.int32)
            _fill_rows(
                self.base_rows, rows, calls, len(self.base_rows), sites[0], sites[1], _table(self._blocks, 4),
                _table(self._enters, 5), _table(self._edges, 4), _table(self._chains, 5),
                np.frombuffer(bytes(self.bytes), np.uint8), _table(self._copies, 2), _table(self._late, 4), 0,
            )  # fmt: skip
            if self._dfas:
                for first, class_of, codes in self._dfas:
                    if class_of is None:
                        rows[first : first + len(codes)] = codes
                        continue
                    shifted = np.where(codes >= 0, codes + first, codes).astype(np.int32)
                    rows[first : first + len(codes)] = shifted[:, class_of]
                _fill_rows(
                    self.base_rows, rows, calls, len(self.base_rows), sites[0], sites[1], _table(self._blocks, 4),
                    _table(self._enters, 5), _table(self._edges, 4), _table(self._chains, 5),
                    np.frombuffer(bytes(self.bytes), np.uint8), _table(self._copies, 2), _table(self._late, 4), 1,
                )  # fmt: skip
            self._frozen = rows, calls, sites
        return self._frozen

    @property
    def rows(self) -> NDArray[np.int32]:
        """All rows (N, 256) of codes; no more pieces may be added."""
        rows: NDArray[np.int32] = self._finish()[0]
        return rows

    @property
    def calls(self) -> NDArray[np.int32]:
        """The site pushed by each call and the state it goes to (calls, 2)."""
        calls: NDArray[np.int32] = self._finish()[1]
        return calls

    @property
    def sites(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        """(first state of each site (K + 1,), states by label, whether the site is pushed for a leaf (K,))."""
        sites: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]] = self._finish()[2]
        return sites


def _table(flat: Sequence[int], width: int) -> NDArray[np.int32]:
    return np.array(flat, np.int32).reshape(-1, width)


@njit(cache=True, nogil=True)
def _fill_rows(
    library: Any,
    rows: Any,
    calls: Any,
    first: int,
    site_start: Any,
    site_states: Any,
    blocks: Any,
    enters: Any,
    edges: Any,
    chains: Any,
    data: Any,
    copies: Any,
    late: Any,
    again: int,
) -> None:
    """Write rows and calls; again: what lies in DFAs is there now, and must stay."""
    if not again:
        rows[:first] = library
        rows[0] = DEAD
        rows[first:] = DEAD
        for i in range(len(blocks)):
            for k in range(blocks[i, 1]):
                calls[blocks[i, 0] + k, 0] = blocks[i, 2]
                calls[blocks[i, 0] + k, 1] = blocks[i, 3] + k
    for i in range(len(enters)):
        s, t, block, origin, site = enters[i, 0], enters[i, 1], enters[i, 2], enters[i, 3], enters[i, 4]
        for b in range(256):
            code = rows[t, b]
            if code >= 0:
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


@njit(cache=True, nogil=True)
def frames_needed(
    rows: Any, calls: Any, site_start: Any, site_states: Any, site_leaf: Any, safely: bool, out: Any
) -> None:  # fmt: skip
    """Lower out[s] to how many frames that are no leaves it takes at least to end the fragment of state s.

    out: (N,) 0 where nothing more has to be read, and a number above all others elsewhere. safely: whatever the labels
    with which fragments end; else with the best of them.
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
                if code >= 0:
                    need = out[code]
                elif code > CALL:
                    need = np.int32(0)
                else:
                    site = calls[CALL - code, 0]
                    need = np.int32(0) if site_leaf[site] else out[calls[CALL - code, 1]] + np.int32(1)
                    after = np.int32(-1)
                    for x in range(site_start[site], site_start[site + 1]):
                        if site_states[x] >= 0:
                            there = out[site_states[x]]
                            if after < 0 or (there > after if safely else there < after):
                                after = there
                    need = max(need, after)
                best = min(best, need)
            if best < out[s]:
                out[s] = best
                changed = True
