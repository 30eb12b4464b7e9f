"""How many frames of the stack it takes to end what a pushdown machine has begun."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from .codes import CALL, DEAD, KEEP, KEYS, RETURN, STRINGS, TEXTS
from .pushdown import PushdownMachine
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
    rows: Any, calls: Any, site_start: Any, site_states: Any, site_leaf: Any, uses: Any, site_of: Any, safely: bool,
    out: Any,
) -> None:  # fmt: skip
    """Lower out[s] to how many frames that are no leaves it takes at least to end the fragment of state s.

    site_of: (N,) the sites of states of fragments that were placed, -1 for others. out: (N,) 0 where nothing more has
    to be read, and a number above all others elsewhere. safely: count for whatever labels fragments end with, else for
    the best label. For words and texts by their content it is always the best, as one of them may be chosen.
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
                    required = out[code]
                elif code > CALL and code < 0:
                    required = np.int32(0)
                    if site_of[s] >= 0:
                        label = RETURN - code if code > KEEP else KEEP - code
                        after = site_states[site_start[site_of[s]] + label]
                        if after < 0:  # nothing goes on behind such an end
                            continue
                        required = out[after]
                elif code >= KEYS:  # words
                    required, worst = np.int32(0), False
                    site = uses[np.searchsorted(uses[:, USE_FIRST], code), USE_SITE]
                else:
                    site, inside = np.int64(calls[CALL - code, 0]), calls[CALL - code, 1]
                    required = np.int32(0) if site_leaf[site] else out[inside] + np.int32(1)
                    worst = safely and not KEYS <= inside < STRINGS and inside < TEXTS
                    if inside < KEYS and site_of[inside] >= 0:
                        site, required = np.int64(-1), out[inside]
                if site >= 0:
                    after = np.int32(-1)
                    for x in range(site_start[site], site_start[site + 1]):
                        if site_states[x] >= 0:
                            there = out[site_states[x]]
                            if after < 0 or (there > after if worst else there < after):
                                after = there
                    required = max(required, after)
                best = min(best, required)
            if best < out[s]:
                out[s] = best
                changed = True
