"""States of a DFA that are alike up to their number, found by partition refinement.

In `[a-z]{1,5000}` each state is its neighbour, one further. A transition is *relative* if many states share it as a
step of the same length. Two states have the same *name* of round h if no h bytes tell them apart, relative steps taken
as steps. A walk of two such states need not enter a trie node with at most h bytes below it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...kernels.compiled import kernel
from ...kernels.deadline import is_late

FEW_STATES = 32
"""Automata up to this size are bound without naming states: it would cost more than it saves."""

_MOST_ROUNDS = 512  # of comparing states: tokens of more bytes are rare, and followed byte by byte


class DfaStates(NamedTuple):
    """The states of a DFA and what tells them apart: N states, C classes of bytes, R rounds."""

    class_of: NDArray[np.int32]  # (256,)
    transition: NDArray[np.int32]  # (N, C)
    live: NDArray[np.bool_]  # (N,) tokens may end in these states
    relative: NDArray[np.bool_]  # (N, C) transitions that count as steps
    names: NDArray[np.int32]  # (R + 1, N); (0, N) if states have no names
    members: NDArray[np.int32]  # (N,) number of states with the last name of each
    final: bool  # the last names hold for any number of bytes


def compared(
    class_of: NDArray[np.int32], transition: NDArray[np.int32], live: NDArray[np.bool_], longest: int, meter: Meter
) -> DfaStates:
    """Return the states with their names. longest: bytes of the longest token. Raises BudgetError."""
    states = len(transition)
    if states <= FEW_STATES:
        none = np.zeros((1, 1), np.bool_), np.zeros((0, states), np.int32), np.ones(states, np.int32)
        return DfaStates(class_of, transition, live, *none, True)
    rounds = min(longest, _MOST_ROUNDS)
    meter.check(bytes=4 * states * (rounds + 16), doing="comparing states")
    relative = _relative_steps(transition)
    names, members, final = _name_states(transition, relative, live, rounds)
    return DfaStates(class_of, transition, live, relative, names, members, bool(final or rounds == longest))


def renumbered(
    transition: NDArray[np.int32], accepting: NDArray[np.bool_], number: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return transitions and accepting states by new numbers."""
    out = np.empty_like(transition)
    out[number] = np.where(transition >= 0, number[transition], -1)
    ends = np.empty_like(accepting)
    ends[number] = accepting
    return out, ends


@kernel
def number_along(
    class_of: NDArray[np.int32], transition: NDArray[np.int32], root_start: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return new numbers of the states (N,), such that the steps of long repetitions all have the same length.

    The kernel numbers the successors of a state when it visits the state. Successors inside a character get their
    numbers together with everything up to the character's end. Next it visits the successor that the fewest states
    lead to: this is the next place of the repetition, not the common place behind it. So the places of a repetition,
    each with the states around it, get numbers in a row.
    """
    states, classes = transition.shape
    weight = np.zeros(classes, np.int64)
    continues = np.ones(classes, np.bool_)  # classes of continuation bytes alone
    for b in range(256):
        weight[class_of[b]] += root_start[b + 1] - root_start[b]
        if not 0x80 <= b <= 0xBF:
            continues[class_of[b]] = False
    for c in range(classes):
        if continues[c]:
            weight[c] = -1
    # numba names the parts of an `argsort` of integers as those of a `sort`, at times with the same number. Kernels
    # that two processes cached may then call each other's parts, and crash. Parts for floats have other names
    by_weight = np.argsort(weight.astype(np.float64))
    inside = np.ones(states, np.bool_)  # of a character
    for s in range(states):
        for c in range(classes):
            if transition[s, c] >= 0 and not continues[c]:
                inside[s] = False
                break
        if transition[s].max() < 0:
            inside[s] = False
    ways = np.zeros(states, np.int32)  # how many states lead to each
    last = np.full(states, -1, np.int32)
    for s in range(states):
        for c in range(classes):
            t = transition[s, c]
            if t >= 0 and last[t] != s:
                last[t] = s
                ways[t] += 1
    number = np.full(states, -1, np.int32)
    stack = np.empty(states, np.int32)
    queue = np.empty(states, np.int32)
    number[0] = 0
    stack[0] = 0
    height, count = 1, 1
    while height and not is_late():
        height -= 1
        queue[0] = stack[height]
        tail, bottom = 1, height
        for late in range(2):  # first what is inside characters, then what follows by whole ones
            head = 0
            while head < tail:
                s = queue[head]
                head += 1
                for k in range(classes):
                    t = transition[s, by_weight[k]]
                    if t < 0 or number[t] >= 0 or (not late and not inside[t]):
                        continue
                    number[t] = count
                    count += 1
                    if late:
                        stack[height] = t
                        height += 1
                    else:
                        queue[tail] = t
                        tail += 1
            if not late:  # the visited state itself comes last
                queue[0], queue[tail - 1] = queue[tail - 1], queue[0]
        for k in range(bottom, height - 1):
            if ways[stack[k]] < ways[stack[height - 1]]:
                stack[k], stack[height - 1] = stack[height - 1], stack[k]
    return number


@kernel
def _relative_steps(transition: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return the transitions (N, C) whose step at least as many states share as share their target."""
    states, classes = transition.shape
    out = np.zeros((states, classes), np.bool_)
    steps = np.zeros(2 * states, np.int32)
    targets = np.zeros(states, np.int32)
    for c in range(classes):
        steps[:] = 0
        targets[:] = 0
        for s in range(states):
            t = transition[s, c]
            if t >= 0:
                steps[t - s + states] += 1
                targets[t] += 1
        for s in range(states):
            t = transition[s, c]
            if t >= 0:
                out[s, c] = steps[t - s + states] >= targets[t]
    return out


@kernel
def _name_states(
    transition: NDArray[np.int32], relative: NDArray[np.bool_], live: NDArray[np.bool_], rounds: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], bool]:
    """Return `names`, `members` and `final` as `DfaStates` has them.

    Two states have the same name of round h if no h bytes tell them apart: these lead to the same places, relative
    steps taken as steps, and to live states alike. The kernel stops after `rounds`, or where names no longer change or
    all differ: then the last round holds for any number of bytes. It compares names in full; hashes only find them.
    """
    states, classes = transition.shape
    out = np.empty((rounds + 1, states), np.int32)
    first = np.empty(states, np.int32)  # the first state of each name
    size = 1
    while size < 2 * states:
        size *= 2
    slots = np.empty(size, np.int32)
    count = 0
    known = -1
    final = False
    for h in range(rounds + 1):
        slots[:] = -1
        count = 0
        for s in range(states):
            if is_late():
                return out[:1], first, False
            if h == 0:
                key = np.uint64(live[s])
            else:
                key = np.uint64(out[h - 1, s])
                for c in range(classes):
                    t = transition[s, c]
                    if t >= 0:
                        where = (t - s) * 2 + 1 if relative[s, c] else t * 2
                        key = (key ^ np.uint64(where)) * np.uint64(0x9E3779B97F4A7C15)
                        key = (key ^ (key >> np.uint64(29)) ^ np.uint64(out[h - 1, t])) * np.uint64(0xBF58476D1CE4E5B9)
                        key ^= np.uint64(c) + (key >> np.uint64(32))
            slot = np.int64((key * np.uint64(0x94D049BB133111EB)) >> np.uint64(20)) & (size - 1)
            while True:
                if slots[slot] < 0:
                    slots[slot] = count
                    first[count] = s
                    out[h, s] = count
                    count += 1
                    break
                r = first[slots[slot]]
                if h == 0:
                    same = live[r] == live[s]
                else:
                    same = out[h - 1, r] == out[h - 1, s]
                    c = 0
                    while same and c < classes:
                        t, u = transition[s, c], transition[r, c]
                        if t < 0 or u < 0:
                            same = t == u
                        elif relative[s, c]:
                            same = relative[r, c] and t - s == u - r and out[h - 1, t] == out[h - 1, u]
                        else:
                            same = not relative[r, c] and t == u
                        c += 1
                if same:
                    out[h, s] = slots[slot]
                    break
                slot = (slot + 1) & (size - 1)
        if count in (known, states):
            rounds, final = h, True
            break
        known = count
    members = np.zeros(states, np.int32)
    for s in range(states):
        members[out[rounds, s]] += 1
    for s in range(states):
        first[s] = members[out[rounds, s]]
    return out[: rounds + 1], first, final
