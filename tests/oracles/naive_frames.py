"""Frames that the states of a pushdown machine require, by passes over all of them until nothing changes."""

from __future__ import annotations

from typing import Any

from maskwright.automata.pushdown import PushdownMachine
from maskwright.automata.state_ranges import CALL, DEAD, KEEP, KEYS, RETURN, STRINGS, TEXTS
from maskwright.automata.word_tries import USE_FIRST, USE_SITE


def frames_of_states(machine: PushdownMachine, most: int, safely: bool) -> list[int]:
    """Return how many frames it takes to end the fragment of each state; see `frames_required`."""
    start, targets, is_leaf = (array.tolist() for array in machine.sites)
    calls, uses = machine.calls.tolist(), {use[USE_FIRST]: use[USE_SITE] for use in machine.all_uses.tolist()}
    out = [most] * machine.size
    for state in machine.accepting:
        out[state] = 0
    for first, stop in [part[:2] for part in machine.parts] + [(c[0], c[0] + c[1]) for c in machine.counted]:
        out[first:stop] = [0] * (stop - first)
    placed = {state: site for first, stop, site in machine.placed for state in range(first, stop)}
    for state in placed:
        out[state] = most

    def of(state: int) -> int:
        return out[state] if state < KEYS else 0

    def behind(site: int, choose: Any) -> int:
        return choose([of(t) for t in targets[start[site] : start[site + 1]] if t >= 0], default=0)

    def required(state: int, code: int) -> int:
        if 0 <= code < KEYS:
            return of(code)
        if code >= KEYS:
            return 0 if uses[code] < 0 else behind(uses[code], min)
        if code > CALL:
            if state not in placed:
                return 0
            after = targets[start[placed[state]] + (RETURN - code if code > KEEP else KEEP - code)]
            return most if after < 0 else of(after)
        site, inside = calls[CALL - code]
        if inside in placed:
            return of(inside)
        chosen = KEYS <= inside < STRINGS or inside >= TEXTS or not safely
        return max(0 if is_leaf[site] else of(inside) + 1, behind(site, min if chosen else max))

    rows = [sorted(set(row) - {DEAD}) for row in machine.rows.tolist()]
    before: list[int] = []
    while before != out:
        before = out.copy()
        for state in reversed(range(len(rows))):
            out[state] = min([out[state], *(required(state, code) for code in rows[state])])
    return out
