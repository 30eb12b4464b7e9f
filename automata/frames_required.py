"""How many frames of the stack it takes to end what a pushdown machine has begun."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import BoolArray, Int, Int32Array, Int64Array, begun, note
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from ..kernels.queue import lower, queue_of, take
from .pushdown import PushdownMachine
from .state_ranges import CALL, DEAD, KEEP, KEYS, RETURN, STRINGS, TEXTS
from .word_tries import USE_FIRST, USE_SITE


def frames_required(
    machine: PushdownMachine, most: int, *, hope: bool = True
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    """Return how many frames it takes to end the fragment of each state (N,), and how many behind each site (K,).

    Frames of leaves do not count. most: the number for states without an end. The numbers hold for all labels with
    which fragments may end, except where some labels lead into ever deeper calls: there they hold for the best one, or
    are `most` if not `hope`. Returns a third array (N,) that is False for such states. Behind the site of a trie of
    words, or of a text by its content, the number is what the other strings take, as the rest depends on what may still
    come. States of fragments that were placed count what comes behind them, and their sites require nothing.
    """
    site_start, site_states, site_leaf = machine.sites
    calls = machine.calls
    to = calls[:, 1]
    # sites that are pushed only for words, and for texts by their content
    told = np.setdiff1d(calls[((to >= KEYS) & (to < STRINGS)) | (to >= TEXTS), 0], calls[to < KEYS, 0])
    site_of = np.full(machine.size, -1, np.int32)
    for first, stop, site in machine.placed:
        site_of[first:stop] = site
    found = []
    for safely in (True, False):
        required = np.full(machine.size, most, np.int32)
        required[list(machine.accepting)] = 0
        # strings and numbers make no calls, and those that are counted are not all here
        for first, stop in chain(((p[0], p[1]) for p in machine.parts), ((c[0], c[0] + c[1]) for c in machine.counted)):
            required[first:stop] = 0
        required[site_of >= 0] = most
        arrays = machine.rows, calls, site_start, site_states, site_leaf, machine.all_uses, site_of
        _lower_frames(*arrays, safely, required)
        inside = np.where(site_states < STRINGS, required[np.clip(site_states, 0, machine.size - 1)], 0)
        inside[site_states < 0] = 0 if safely else most
        reduce = np.maximum if safely else np.minimum
        behind = reduce.reduceat(inside, site_start[:-1])
        behind[told] = inside[site_start[told]]
        behind[[site for _, _, site in machine.placed]] = 0
        found.append((required, behind))
        if not hope:
            return *found[0], found[0][0] < most
    by_state, by_site = (np.where(sure < most, sure, hoped) for sure, hoped in zip(*found, strict=True))
    return by_state.astype(np.int32), by_site.astype(np.int32), found[0][0] < most


@kernel
def _lower_frames(
    rows: Int32Array, calls: Int32Array, site_start: Int32Array, site_states: Int32Array, site_leaf: BoolArray,
    uses: Int64Array, site_of: Int32Array, safely: bool, out: Int32Array,
) -> None:  # fmt: skip
    """Lower out[s] to how many frames that are no leaves it takes at least to end the fragment of state s.

    site_of: (N,) the sites of states of fragments that were placed, -1 for others. out: (N,) 0 where nothing more has
    to be read, and a number above all others elsewhere. safely: count for whatever labels fragments end with, else for
    the best label. For words and texts by their content it is always the best, as one of them may be chosen.

    A queue settles states, sites by their best and by their worst label, and calls, the least first, as none takes less
    than anything that it reads (Knuth, Information Processing Letters 6(1), 1977). With E distinct codes of all rows
    and targets of all sites that is time in O(E log E).
    """
    states, sites = rows.shape[0], site_leaf.size
    leads = np.zeros(sites, np.bool_)
    for k in range(sites):
        for x in range(site_start[k], site_start[k + 1]):
            leads[k] |= site_states[x] >= 0
    worst, call = states + sites, states + 2 * sites
    rules = _Rules(calls, site_start, site_states, site_leaf, leads, uses, site_of, safely, states, worst, call)
    queue = queue_of(call + calls.shape[0], out.max())
    for s in range(states):
        lower(queue, s, out[s])
    start, readers = np.zeros(queue.value.size + 1, np.int64), np.empty(0, np.int64)
    waits = np.zeros(sites, np.int64)  # for so many of what a site leads to its worst label waits
    for filling in range(2):
        for s in range(states):
            if is_late():
                return
            last = np.int32(DEAD)
            for b in range(256 if out[s] else 0):
                code = rows[s, b]
                if code == last:
                    continue
                last = code
                read = _read_by(rules, s, np.int64(code))
                if read == _NOTHING:
                    lower(queue, s, 0)
                elif read >= 0:
                    note(start, readers, read, s, filling)
        for k in range(sites):
            for x in range(site_start[k], site_start[k + 1]):
                if site_states[x] >= states:  # strings and texts make no calls
                    lower(queue, states + k, 0)
                elif site_states[x] >= 0:
                    note(start, readers, np.int64(site_states[x]), states + k, filling)
                    note(start, readers, np.int64(site_states[x]), worst + k, filling)
                    waits[k] += filling
            if filling and not waits[k]:
                lower(queue, worst + k, 0)
        for c in range(calls.shape[0]):
            inside, after = _parts_of(rules, c)
            if inside >= 0:
                note(start, readers, inside, call + c, filling)
            if after >= 0:
                note(start, readers, after, call + c, filling)
            if inside < 0 and after < 0:
                lower(queue, call + c, 0)
        readers = begun(start, readers, filling)
    while True:
        entry = take(queue)
        if entry < 0 or is_late():
            break
        for x in range(start[entry], start[entry + 1]):
            reader, required = readers[x], np.int64(queue.value[entry])
            if reader >= call:
                inside, after = _parts_of(rules, reader - call)
                if inside >= 0:
                    required = queue.value[inside] + (site_of[inside] < 0)
                if after >= 0:
                    required = max(required, queue.value[after])
            elif reader >= worst:
                waits[reader - worst] -= 1
                if waits[reader - worst]:  # the last is the greatest
                    continue
            lower(queue, reader, required)
    for s in range(states):
        out[s] = queue.value[s]


class _Rules(NamedTuple):
    """What says which entries an entry reads: states come first, then the three below, and next calls."""

    calls: Int32Array
    site_start: Int32Array
    site_states: Int32Array
    site_leaf: BoolArray
    leads: BoolArray  # (K,) whether a site leads anywhere
    uses: Int64Array
    site_of: Int32Array
    safely: bool
    best: int  # where entries of sites by their best label begin
    worst: int  # and by their worst
    call: int


_DEAD_END, _NOTHING = -1, -2  # in place of an entry: there is no way on; nothing more is required


@kernel
def _read_by(rules: _Rules, state: int, code: Int) -> Int:
    """Return the entry that a code in the row of a state reads, or `_DEAD_END` or `_NOTHING`."""
    placed = rules.site_of[state]
    if 0 <= code < KEYS:
        return np.int64(code)
    if code == DEAD:
        return np.int64(_DEAD_END)
    if code <= CALL:
        return np.int64(rules.call + CALL - code)
    if code < 0:  # it returns
        if placed < 0:
            return np.int64(_NOTHING)
        label = RETURN - code if code > KEEP else KEEP - code
        after = np.int64(rules.site_states[rules.site_start[placed] + label])
        if after < 0:  # nothing goes on behind such an end
            return np.int64(_DEAD_END)
        return after if after < rules.best else np.int64(_NOTHING)
    use = np.searchsorted(rules.uses[:, USE_FIRST], code)
    site = np.int64(rules.uses[use, USE_SITE]) if use < rules.uses.shape[0] else np.int64(-1)
    return np.int64(rules.best + site) if site >= 0 and rules.leads[site] else np.int64(_NOTHING)


@kernel
def _parts_of(rules: _Rules, call: int) -> tuple[Int, Int]:
    """Return the entries that a call reads, below 0 for none: of what it enters, and of what comes behind."""
    site, inside = np.int64(rules.calls[call, 0]), np.int64(rules.calls[call, 1])
    if inside < KEYS and rules.site_of[inside] >= 0:
        return inside, np.int64(_NOTHING)
    after = np.int64(_NOTHING)
    if rules.leads[site]:
        worst = rules.safely and not KEYS <= inside < STRINGS and inside < TEXTS
        after = np.int64((rules.worst if worst else rules.best) + site)
    return np.int64(_NOTHING) if rules.site_leaf[site] else inside, after
