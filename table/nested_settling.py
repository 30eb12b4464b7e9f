"""Distances of a nested table, settled one after the other: the least first, each once.

An *entry* is one number that is looked for: of a code and an end, of a site and two ends, or of an action after some of
its pushes and an end. A rule makes an entry of one or two others, and never less than either. So the least entry that
waits is final, and each rule is followed once for each entry that it reads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Int, Int32Array, Int64Array, begun, note, place_of
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from ..kernels.limits import MOST_DEPTH, UNREACHABLE
from ..kernels.queue import Queue, lower, queue_of, take
from .groups import TableArrays
from .nested_ends import Ends, Ways
from .nested_targets import Targets, own_edge

_OWN, _BASE, _PUSHED = 0, 1, 2  # how a row leads to a code: by an edge of its own, by its base, by one that pushes


class Problem(NamedTuple):
    """What the rules read."""

    arrays: TableArrays
    required: Int32Array  # (S + 2 + A,) frames, by code
    targets: Targets
    of_row: NDArray[np.uint8]
    ends: Ends
    ways: Ways
    limited: bool  # frames are limited; otherwise the limit is out of reach
    several: bool  # frames are limited and there are several ends


class Readers(NamedTuple):
    """Which rules read an entry: of each code or site, from where on they begin in the array that follows, and they."""

    row_start: Int64Array  # by code
    row: Int64Array  # 3 * row + _OWN, _BASE or _PUSHED
    way_start: Int64Array  # by code
    way: Int64Array  # places in `Ways`
    way_site: Int64Array  # the site of each way
    action_start: Int64Array  # by state
    action: Int64Array
    pushing_start: Int64Array  # by site
    pushing: Int64Array  # rows whose base pushes it
    push_start: Int64Array  # by site
    push: Int64Array  # places in `actions.push`
    push_action: Int64Array  # (P,) the action of each push
    push_frames: Int64Array  # (P,) frames that pushes of the action before it open
    slot: Int64Array  # (S,) a number for each row whose base pushes, -1 for others


class Entries(NamedTuple):
    """The numbers that are looked for: frames first, then tokens, each in a queue of its own."""

    queue: Queue
    sites: Int  # where entries of sites begin: codes come first
    pushes: Int  # and those of pushes
    groups: Int  # ends for which there are as many frames
    pushed: NDArray[np.int64]  # (rows that push, groups, C) least after the push


@kernel
def readers_of(problem: Problem) -> Readers:
    """Return which rules read each entry."""
    arrays, targets, ways = problem.arrays, problem.targets, problem.ways
    sites, actions = arrays.sites, arrays.actions
    rows, codes = arrays.rows.base.size, arrays.rows.base.size + 2 + actions.state.size
    count = sites.is_leaf.size
    row_start, row = np.zeros(codes + 1, np.int64), np.empty(0, np.int64)
    slot, slots = np.full(rows, -1, np.int64), 0
    for filling in range(2):
        for s in range(rows):
            for e in range(targets.own_start[s], targets.own_start[s + 1]):
                note(row_start, row, np.int64(targets.own_to[e]), 3 * s + _OWN, filling)
            site = np.int64(sites.of_row[s]) if sites.of_row.size else np.int64(-1)
            for x in range(targets.start[s], targets.start[s + 1]):
                target, how = targets.to[x], _BASE if site < 0 else _PUSHED
                if target < 0 and site >= 0:  # it leaves the frame that it opens
                    at = place_of(sites.symbol, sites.start[site], sites.start[site + 1], -1 - target)
                    target, how = np.int64(sites.target[at]) if at >= 0 else np.int64(-1), _BASE
                if target >= 0:
                    note(row_start, row, np.int64(target), 3 * s + how, filling)
            if site >= 0 and not filling:
                slot[s] = slots
                slots += 1
        row = begun(row_start, row, filling)
    way_start, way = np.zeros(codes + 1, np.int64), np.empty(0, np.int64)
    way_site = np.empty(ways.end.size, np.int64)
    for filling in range(2):
        for k in range(count):
            for x in range(ways.start[k], ways.start[k + 1]):
                if filling:
                    way_site[x] = k
                if ways.to[x] >= 0:
                    note(way_start, way, np.int64(ways.to[x]), x, filling)
        way = begun(way_start, way, filling)
    action_start, action = np.zeros(rows + 3, np.int64), np.empty(0, np.int64)
    push_start, push = np.zeros(count + 1, np.int64), np.empty(0, np.int64)
    push_action, push_frames = np.empty(actions.push.size, np.int64), np.empty(actions.push.size, np.int64)
    for filling in range(2):
        for a in range(actions.state.size):
            note(action_start, action, np.int64(actions.state[a]), a, filling)
            frames = np.int64(0)
            for p in range(actions.push_start[a], actions.push_start[a + 1]):
                push_action[p], push_frames[p] = a, frames
                frames += not sites.is_leaf[actions.push[p]]
                note(push_start, push, np.int64(actions.push[p]), p, filling)
        action, push = begun(action_start, action, filling), begun(push_start, push, filling)
    pushing_start, pushing = np.zeros(count + 1, np.int64), np.empty(0, np.int64)
    for filling in range(2):
        for s in range(sites.of_row.size):
            if sites.of_row[s] >= 0:
                note(pushing_start, pushing, np.int64(sites.of_row[s]), s, filling)
        pushing = begun(pushing_start, pushing, filling)
    return Readers(
        row_start, row, way_start, way, way_site, action_start, action, pushing_start, pushing, push_start, push,
        push_action, push_frames, slot,
    )  # fmt: skip


@kernel
def settled(problem: Problem, readers: Readers, frames: Int64Array, counting: int) -> tuple[Int64Array, Int]:
    """Return the least entries: of codes (S + 2 + A, C), then sites (K, C, F), in one array, and where sites begin.

    counting: 0 for frames, 1 for tokens. frames: what this returned for frames, where they are counted by ends.

    Let T be the distinct targets of all rows, W the ways of all sites and P the pushes of all actions. Time is in
    O((S C + (T + W + P) C F G) log N), memory in O(N + T), where N = (S + A) C + K C F + P C G entries are looked for
    and G is F where frames are counted by ends, else 1: `take` gives out each entry once, since no rule makes less
    than it reads, and each rule is followed once for each entry and group.
    """
    arrays, ends, outer = problem.arrays, problem.ends.total, problem.ends.outer
    codes, count = problem.required.size, arrays.sites.is_leaf.size
    groups = outer if problem.several and counting else 1
    slots = np.int64(0)
    for s in range(readers.slot.size):
        slots = max(slots, readers.slot[s] + 1)
    sites = codes * ends
    pushes = sites + count * ends * outer
    entries = Entries(
        queue_of(pushes + arrays.actions.push.size * groups * ends, UNREACHABLE), sites, pushes, groups,
        np.full((slots, groups, ends), UNREACHABLE, np.int64),
    )  # fmt: skip
    _constants(problem, entries, frames, counting)
    while True:
        entry = take(entries.queue)
        if entry < 0 or is_late():
            break
        value = entries.queue.value[entry]
        if entry < sites:
            code, c = entry // ends, entry % ends
            _after_code(problem, readers, entries, frames, counting, code, c, value)
            if code < readers.action_start.size - 1:  # actions go on from states
                _after_state(problem, readers, entries, frames, counting, code, c, value)
        elif entry < pushes:
            at = entry - sites
            k, c, d = at // (ends * outer), at // outer % ends, at % outer
            _after_site(problem, readers, entries, frames, counting, k, c, d, value)
        else:
            at = entry - pushes
            p, group, c = at // (groups * ends), at // ends % groups, at % ends
            _return_from(problem, readers, entries, frames, counting, readers.push_action[p], p, group, c, value)
    return entries.queue.value[:pushes].copy(), sites


@kernel
def _most(problem: Problem, frames: Int64Array, counting: int, code: int, end: Int) -> Int:
    """Return how many frames may be open on the way from a code to an end."""
    if problem.several:
        return frames[code * problem.ends.total + end] if counting else np.int64(MOST_DEPTH + 1)
    if problem.limited and code < problem.arrays.rows.base.size:
        return np.int64(problem.required[code])
    return np.int64(MOST_DEPTH + 1)


@kernel
def _site_fits(
    problem: Problem, entries: Entries, frames: Int64Array, counting: int, k: Int, c: Int, d: Int, below: int, most: Int
) -> bool:
    """Return whether as few frames as are counted let a site be returned to, with so many below it."""
    if not problem.several or not counting:
        return True
    ends, outer = problem.ends.total, problem.ends.outer
    return bool(below + frames[entries.sites + (k * ends + c) * outer + d] <= most)


@kernel
def _push_of(problem: Problem, row: int) -> tuple[Int, Int, Int]:
    """Return (the site that a row's base pushes or -1, frames that it opens, frames that must fit for it)."""
    sites = problem.arrays.sites
    push = np.int64(sites.of_row[row]) if sites.of_row.size else np.int64(-1)
    if push < 0:
        return push, np.int64(0), np.int64(0)
    frames = np.int64(not sites.is_leaf[push])
    return push, frames, max(frames, np.int64(sites.frames_required[push]) if sites.frames_required.size else 0)


@kernel
def _constants(problem: Problem, entries: Entries, frames: Int64Array, counting: int) -> None:
    """Lower what takes no further row: the end of a text, accepting rows, exits, and sites that are left at once."""
    arrays, ends, queue = problem.arrays, problem.ends, entries.queue
    exits, sites, targets = arrays.exits, arrays.sites, problem.targets
    rows, total = arrays.rows.base.size, ends.total
    lower(queue, rows * total, 0)
    for s in range(rows):
        if arrays.rows.accepting[s] and ends.of_row[s] >= 0:
            lower(queue, s * total + ends.of_row[s], 0)
        if problem.of_row[s] & 1:
            continue
        if exits.of_row.size and exits.of_row[s] >= 0:
            missing = ends.named
            for x in range(exits.start[exits.of_row[s]], exits.start[exits.of_row[s] + 1]):
                c = ends.of_symbol[exits.symbol[x]]
                if c < 0 or queue.value[s * total + c] <= counting:
                    continue
                if own_edge(arrays, s, np.int64(exits.token[x])) < 0:
                    lower(queue, s * total + c, counting)
                    missing -= 1
                    if missing == 0:
                        break
        push, _, required = _push_of(problem, s)
        for x in range(targets.start[s], targets.start[s + 1]):
            target = targets.to[x]
            if target >= 0:
                continue
            if push >= 0:
                at = place_of(sites.symbol, sites.start[push], sites.start[push + 1], -1 - target)
                target = np.int64(sites.target[at]) if at >= 0 else np.int64(0)
            c = ends.of_symbol[-1 - target] if target < 0 else np.int64(-1)
            if c >= 0 and required <= _most(problem, frames, counting, s, c):
                lower(queue, s * total + c, 1 if counting else required)
    for k in range(sites.is_leaf.size):
        for x in range(problem.ways.start[k], problem.ways.start[k + 1]):
            if problem.ways.to[x] < 0:
                d = -1 - problem.ways.to[x]
                entry = entries.sites + (k * total + problem.ways.end[x]) * ends.outer + d
                lower(queue, entry, counting * problem.ways.more[x])


@kernel
def _after_code(
    problem: Problem, readers: Readers, entries: Entries, frames: Int64Array, counting: int, code: Int, c: Int,
    value: int,
) -> None:  # fmt: skip
    """Follow the rules of rows and sites that read the entry of a code and an end."""
    sites, ends, outer, queue = problem.arrays.sites, problem.ends.total, problem.ends.outer, entries.queue
    here = max(np.int64(problem.required[code]), frames[code * ends + c] if problem.several and counting else 0)
    if not counting:
        here = max(here, np.int64(value))
    for x in range(readers.row_start[code], readers.row_start[code + 1]):
        s, how = readers.row[x] // 3, readers.row[x] % 3
        push: Int = np.int64(-1)
        opened: Int = np.int64(0)
        required: Int = np.int64(0)
        if how != _OWN:
            push, opened, required = _push_of(problem, s)
        if how != _PUSHED:
            need = max(required, here)
            if not counting:
                lower(queue, s * ends + c, need)
            elif need <= _most(problem, frames, counting, s, c):
                lower(queue, s * ends + c, value + 1)
            continue
        slot = readers.slot[s]
        for group in range(entries.groups):
            most = _most(problem, frames, counting, s, group)
            if required > most or (counting and opened + here > most):
                continue
            least = value + 1 if counting else opened + here
            if least >= entries.pushed[slot, group, c]:
                continue
            entries.pushed[slot, group, c] = least
            for d in range(group, group + 1 if entries.groups > 1 else outer):
                if _site_fits(problem, entries, frames, counting, push, c, d, 0, most):
                    returned = queue.value[entries.sites + (push * ends + c) * outer + d]
                    lower(queue, s * ends + d, least + returned if counting else max(required, max(least, returned)))
    for x in range(readers.way_start[code], readers.way_start[code + 1] if c < outer else readers.way_start[code]):
        way = readers.way[x]
        k = readers.way_site[way]
        at = (k * ends + problem.ways.end[way]) * outer + c
        if not counting:
            lower(queue, entries.sites + at, here)
            continue
        most = np.int64(MOST_DEPTH + 1)
        if problem.several:
            most = frames[entries.sites + at]
        elif problem.limited:
            most = np.int64(sites.frames_required[k]) if sites.frames_required.size else np.int64(0)
        if here <= most:
            lower(queue, entries.sites + at, value + problem.ways.more[way])


@kernel
def _after_state(
    problem: Problem, readers: Readers, entries: Entries, frames: Int64Array, counting: int, state: Int, c: Int,
    value: int,
) -> None:  # fmt: skip
    """Follow the rules of actions that go on from a state."""
    for x in range(readers.action_start[state], readers.action_start[state + 1]):
        for group in range(entries.groups):
            a = readers.action[x]
            stop = problem.arrays.actions.push_start[a + 1]
            before = _unpushed(problem, readers, frames, counting, a, group, state, c, value)
            if before < UNREACHABLE:
                _return_from(problem, readers, entries, frames, counting, a, stop, group, c, before)


@kernel
def _unpushed(
    problem: Problem, readers: Readers, frames: Int64Array, counting: int, a: int, group: int, state: Int, c: Int,
    value: int,
) -> Int:  # fmt: skip
    """Return what it takes from the state of an action to an end, above all frames that it pushes; UNREACHABLE if none.

    group: the end for which there are as many frames.
    """
    actions, rows = problem.arrays.actions, problem.arrays.rows.base.size
    opened = np.int64(0)
    if actions.push_start[a] < actions.push_start[a + 1]:
        last = actions.push_start[a + 1] - 1
        opened = readers.push_frames[last] + (not problem.arrays.sites.is_leaf[actions.push[last]])
    if not counting:
        return value + opened if value < UNREACHABLE else value
    if problem.several:
        most = _most(problem, frames, counting, rows + 2 + a, group)
        if opened + frames[state * problem.ends.total + c] > most:
            return np.int64(UNREACHABLE)
    return np.int64(value)


@kernel
def _return_from(
    problem: Problem, readers: Readers, entries: Entries, frames: Int64Array, counting: int, a: int, p: Int, group: Int,
    c: Int, before: Int,
) -> None:  # fmt: skip
    """Lower what is left of an action once the frames from its push p on have ended with c, which takes `before`."""
    actions, ends, outer, queue = problem.arrays.actions, problem.ends.total, problem.ends.outer, entries.queue
    rows = problem.arrays.rows.base.size
    if p == actions.push_start[a]:  # none is left
        if c < outer and (entries.groups == 1 or c == group):
            least = before if counting else max(before, np.int64(problem.required[rows + 2 + a]))
            lower(queue, (rows + 2 + a) * ends + c, least)
        return
    most = _most(problem, frames, counting, rows + 2 + a, group)
    p -= 1
    k, below = np.int64(actions.push[p]), readers.push_frames[p]
    for d in range(outer):
        if _site_fits(problem, entries, frames, counting, k, c, d, below, most):
            returned = queue.value[entries.sites + (k * ends + c) * outer + d]
            if returned < UNREACHABLE:
                least = before + returned if counting else max(before, below + returned)
                lower(queue, entries.pushes + (p * entries.groups + group) * ends + d, least)


@kernel
def _after_site(
    problem: Problem, readers: Readers, entries: Entries, frames: Int64Array, counting: int, k: Int, c: Int, d: Int,
    value: int,
) -> None:  # fmt: skip
    """Follow the rules of rows and actions that push a site."""
    ends, queue, actions = problem.ends.total, entries.queue, problem.arrays.actions
    rows = problem.arrays.rows.base.size
    for x in range(readers.pushing_start[k], readers.pushing_start[k + 1]):
        s = readers.pushing[x]
        group = d if entries.groups > 1 else 0
        most, (_, _, required) = _most(problem, frames, counting, s, group), _push_of(problem, s)
        above = entries.pushed[readers.slot[s], group, c]
        if (
            above < UNREACHABLE
            and required <= most
            and _site_fits(problem, entries, frames, counting, k, c, d, 0, most)
        ):
            lower(queue, s * ends + d, above + value if counting else max(required, max(above, value)))
    for x in range(readers.push_start[k], readers.push_start[k + 1]):
        p = readers.push[x]
        a, below = readers.push_action[p], readers.push_frames[p]
        last = p + 1 == actions.push_start[a + 1]
        for group in range(entries.groups if last or c < problem.ends.outer else 0):
            most = _most(problem, frames, counting, rows + 2 + a, group)
            if not _site_fits(problem, entries, frames, counting, k, c, d, below, most):
                continue
            if last:
                state = np.int64(actions.state[a])
                of_state = queue.value[state * ends + c]
                before = _unpushed(problem, readers, frames, counting, a, group, state, c, of_state)
            else:
                before = queue.value[entries.pushes + ((p + 1) * entries.groups + group) * ends + c]
            if before < UNREACHABLE:
                least = before + value if counting else max(before, below + value)
                lower(queue, entries.pushes + (p * entries.groups + group) * ends + d, least)
