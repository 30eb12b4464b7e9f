"""How many tokens it takes to end in a nested table, where the stack decides: distances by the *ends* of fragments.

A fragment may end in several ways, and what its caller needs afterwards depends on which it was. An end is such a way.
The kernels below find, for each code and each end, how few tokens lead there (and, where frames are limited, how few
frames that takes), by passes over all rows until nothing changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.bits import has_bit
from ..kernels.compiled import kernel
from ..kernels.limits import MOST_DEPTH, UNREACHABLE
from ..kernels.search import place_of
from .distances import base_class_counts, class_of
from .groups import Int32Array, TableArrays

Int64Array = NDArray[np.int64]


class Distances(NamedTuple):
    """What budgets need to know of a nested table: distances by C *ends*, which tell apart how a fragment may end.

    Of the stack's lowest j frames, far[j, c] is the distance if the topmost of them ends with c: far[0] is 0 for end 0,
    how a text ends, and UNREACHABLE for all others; far[j + 1, c] is the least of site[k, c, d] + far[j, d] over the
    first F ends d, those of fragments that make calls; k is site j. A configuration's distance is the least of
    code[s, c] + far[h, c]. With one end these are sums. Ways for which there are too few frames are left out.
    """

    code: Int64Array  # (S + 2 + A, C) fewest tokens to this end of the fragment; for actions, with their pushes
    site: Int64Array  # (K, C, F) fewest tokens from the return after an end to one of the fragment below
    farthest: Int64Array  # (S + 2, C) no token leads farther than the least of this + far[h], with enough frames
    code_room: Int64Array  # (S + 2 + A, C) how many more frames must fit for that; (0, C) where all fit
    site_room: Int64Array  # (K, C, F) the same, above those below the site; (0, C, F)


def nested_distances(arrays: TableArrays, code_frames: Int32Array) -> Distances:
    """Return the distances of a nested table; code_frames (S + 2 + A,): how many more frames each code requires.

    Distances are over tokens that leave no bytes behind where a fragment ends, and over pushes that open as few frames
    as that end needs; UNREACHABLE where there is no such way. The ends are the symbols that leave nothing behind, those
    of fragments that make calls first. An accepting row in a fragment ends it before the next token: with several
    symbols, rows whose first exits have one symbol have an end of their own, which leads where their exits do.
    """
    found = _distances(arrays, code_frames)
    for array in found:
        array.flags.writeable = False
    return Distances(*found)


class _Targets(NamedTuple):
    """Where each row leads, each target once: codes, and -1 - symbol for exits that leave no bytes behind."""

    start: Int64Array  # of its base
    to: Int64Array
    own_start: Int64Array  # of its own edges
    own_to: Int64Array


class _Ends(NamedTuple):
    """The ends of fragments."""

    of_symbol: Int64Array  # (Y,) the end that a symbol is, -1 for none
    of_row: Int64Array  # (S,) the end that an accepting row is
    named: int  # ends that are symbols; those of rows follow
    total: int
    outer: int  # ends of fragments that make calls, which come first
    leads: NDArray[np.bool_]  # (total - named, Y) symbols that all rows of an end of rows have


class _Ways(NamedTuple):
    """Where sites lead after each end: a code or -1 - end, and whether that takes a token."""

    start: Int64Array
    end: Int64Array
    to: Int64Array
    more: Int64Array


class _Problem(NamedTuple):
    """What the passes read."""

    arrays: TableArrays
    code_frames: Int32Array
    targets: _Targets
    of_row: NDArray[np.uint8]
    ends: _Ends
    ways: _Ways
    limited: bool  # frames are limited; otherwise the limit is out of reach
    several: bool  # frames are limited and there are several ends


class _Found(NamedTuple):
    """What the passes write: frames first, then tokens."""

    room_code: Int64Array
    room_site: Int64Array
    far_code: Int64Array
    far_site: Int64Array
    best: Int64Array  # scratch, by end
    inner: Int64Array


@kernel
def _distances(arrays: TableArrays, code_frames: Int32Array) -> Any:
    rows, sites, actions = arrays.rows.base.size, arrays.sites.is_leaf.size, arrays.actions.state.size
    start, to = _base_targets(arrays)
    own_start, own_to = _own_targets(arrays)
    targets = _Targets(start, to, own_start, own_to)
    of_row, of_site = _belonging(arrays, targets)
    ends = _ends_of(arrays, of_row, of_site)
    limited = arrays.rows.frames_required.size > 0
    several = limited and ends.total > 1
    problem = _Problem(arrays, code_frames, targets, of_row, ends, _site_ways(arrays, of_site, ends), limited, several)
    codes, count, outer = rows + 2 + actions, ends.total, ends.outer
    found = _Found(
        np.full((codes if several else 0, count), UNREACHABLE, np.int64),
        np.full((sites if several else 0, count, outer), UNREACHABLE, np.int64),
        np.full((codes, count), UNREACHABLE, np.int64), np.full((sites, count, outer), UNREACHABLE, np.int64),
        np.empty(count, np.int64), np.empty(count, np.int64),
    )  # fmt: skip
    # how many frames each end takes at least, then how few tokens with as many; with one end, frames_required says that
    for counting in range(0 if several else 1, 2):
        _begin(problem, found, counting)
        changed = True
        while changed:
            changed = _lower_sites(problem, found, counting)
            changed |= _lower_actions(problem, found, counting)
            changed |= _lower_rows(problem, found, counting)
    far = _farthest(problem, found, _excess(problem, found, of_site))
    return found.far_code, found.far_site, far, found.room_code, found.room_site


@kernel
def _count_own(arrays: TableArrays, row: int, left: Int64Array, sign: int) -> None:
    """Add `sign` to the class of each token of a row's base that the row's own edges or exits take."""
    rows, edges, bases, exits = arrays.rows, arrays.edges, arrays.bases, arrays.exits
    base = rows.base[row]
    mask = bases.masks[bases.mask[base]]
    for e in range(rows.edge_start[row], rows.edge_start[row + 1]):
        token = np.int64(edges.token[e])
        if has_bit(mask, token):
            left[bases.target_start[base] + class_of(arrays, base, token)] += sign
    own = exits.of_row[row] if exits.of_row.size else -1
    if own >= 0:
        for x in range(exits.start[own], exits.start[own + 1]):
            token = np.int64(exits.token[x])
            if has_bit(mask, token) and _edge(arrays, row, token) < 0:
                left[bases.target_start[base] + class_of(arrays, base, token)] += sign


@kernel
def _edge(arrays: TableArrays, row: int, token: int) -> Any:
    """Return the row's own edge by a token, or -1."""
    return place_of(arrays.edges.token, arrays.rows.edge_start[row], arrays.rows.edge_start[row + 1], token)


@kernel
def _is_exit(arrays: TableArrays, exit_list: int, token: int) -> bool:
    """Return whether an exit list, -1 for none, has a token."""
    exits = arrays.exits
    return exit_list >= 0 and place_of(exits.token, exits.start[exit_list], exits.start[exit_list + 1], token) >= 0


@kernel
def _base_targets(arrays: TableArrays) -> Any:
    """Return what remains of each row's base beside its own edges and exits: `_Targets.start` and `.to`."""
    rows, bases, exits = arrays.rows, arrays.bases, arrays.exits
    count = rows.base.size
    left = np.zeros(bases.target.size, np.int64)  # tokens of each class of each base
    for b in range(bases.mask.size):
        base_class_counts(arrays, b, left[bases.target_start[b] : bases.target_start[b + 1]])
    start = np.zeros(count + 1, np.int64)
    to = np.empty(arrays.edges.target.size + 64, np.int64)
    last_code = np.full(count + 2 + arrays.actions.state.size, -1, np.int64)
    last_symbol = np.full(exits.label.size, -1, np.int64)
    at = 0
    for s in range(count):
        base = rows.base[s]
        start[s + 1] = at
        if base < 0:
            continue
        listed = np.int64(exits.of_base[base]) if exits.of_base.size else np.int64(-1)
        most = np.int64(bases.target_start[base + 1] - bases.target_start[base])
        if listed >= 0:
            most += exits.start[listed + 1] - exits.start[listed]
        if at + most > to.size:
            larger = np.empty(2 * to.size + most, np.int64)
            larger[:at] = to[:at]
            to = larger
        _count_own(arrays, s, left, -1)
        for x in range(bases.target_start[base], bases.target_start[base + 1]):
            code = np.int64(bases.target[x])
            code = (code >> 1) + (code & 1) * s
            if left[x] > 0 and last_code[code] != s:
                last_code[code] = s
                to[at] = code
                at += 1
        _count_own(arrays, s, left, 1)
        own = np.int64(exits.of_row[s]) if exits.of_row.size else np.int64(-1)
        if listed >= 0:
            for x in range(exits.start[listed], exits.start[listed + 1]):
                token, symbol = np.int64(exits.token[x]), exits.symbol[x]
                if (
                    exits.label[symbol] >= 0
                    and last_symbol[symbol] != s
                    and _edge(arrays, s, token) < 0
                    and not _is_exit(arrays, own, token)
                    and not has_bit(bases.masks[bases.mask[base]], token)
                ):
                    last_symbol[symbol] = s
                    to[at] = -1 - np.int64(symbol)
                    at += 1
        start[s + 1] = at
    return start, to


@kernel
def _own_targets(arrays: TableArrays) -> Any:
    """Return where each row's own edges lead, each code once: `_Targets.own_start` and `.own_to`."""
    count = arrays.rows.base.size
    start, to = np.zeros(count + 1, np.int64), np.empty(arrays.edges.target.size, np.int64)
    last = np.full(count + 2 + arrays.actions.state.size, -1, np.int64)
    at = 0
    for s in range(count):
        for e in range(arrays.rows.edge_start[s], arrays.rows.edge_start[s + 1]):
            code = np.int64(arrays.edges.target[e])
            if code != count + 1 and last[code] != s:
                last[code] = s
                to[at] = code
                at += 1
        start[s + 1] = at
    return start, to


@kernel
def _follow(arrays: TableArrays, code: Any, where: Any, of_row: Any, of_site: Any, done: Any) -> bool:
    """Note that a code is followed in a fragment (2) or outside of all (1); return whether that is new."""
    actions = arrays.actions
    rows = arrays.rows.base.size
    new = False
    if code >= rows + 2:
        action = code - rows - 2
        for p in range(actions.push_start[action], actions.push_start[action + 1]):
            site = actions.push[p]
            new |= of_site[site] | where != of_site[site]
            of_site[site] |= where
            where = np.uint8(2)
        code = np.int64(actions.state[action])
    if code < rows and of_row[code] | where != of_row[code]:
        of_row[code] |= where
        done[code] = False
        new = True
    return new


@kernel
def _belonging(arrays: TableArrays, targets: _Targets) -> Any:
    """Return where rows (S,) and frames below sites (K,) can be: 1 outside of all fragments, 2 in one, 3 both, or 0."""
    sites = arrays.sites
    rows, count = arrays.rows.base.size, sites.is_leaf.size
    of_row, of_site = np.zeros(rows, np.uint8), np.zeros(count, np.uint8)
    done, returned = np.ones(rows, np.bool_), np.zeros(count, np.uint8)
    of_row[0] = 1
    done[0] = False
    new = True
    while new:
        new = False
        for s in range(rows):
            if done[s]:
                continue
            done[s] = True
            for e in range(targets.own_start[s], targets.own_start[s + 1]):
                new |= _follow(arrays, targets.own_to[e], of_row[s], of_row, of_site, done)
            where = of_row[s]
            if arrays.rows.base[s] >= 0 and sites.of_row.size and sites.of_row[s] >= 0:
                site = sites.of_row[s]
                new |= of_site[site] | where != of_site[site]
                of_site[site] |= where
                where = np.uint8(2)
            for x in range(targets.start[s], targets.start[s + 1]):
                if targets.to[x] >= 0:
                    new |= _follow(arrays, targets.to[x], where, of_row, of_site, done)
        for k in range(count):
            if of_site[k] == returned[k]:
                continue
            returned[k] = of_site[k]
            for x in range(sites.start[k], sites.start[k + 1]):
                if sites.target[x] >= 0:
                    new |= _follow(arrays, np.int64(sites.target[x]), of_site[k], of_row, of_site, done)
    return of_row, of_site


@kernel
def _ends_of(arrays: TableArrays, of_row: NDArray[np.uint8], of_site: NDArray[np.uint8]) -> _Ends:
    """Return the ends: symbols that leave nothing behind, then those of rows that end before the next token."""
    rows, exits, sites = arrays.rows, arrays.exits, arrays.sites
    of_symbol = np.full(exits.label.size, -1, np.int64)
    ends: Any = np.int64(0)
    outer: Any = np.int64(1)
    for leaf in (False, True):
        for k in range(sites.is_leaf.size):
            if of_site[k] == 0 or sites.is_leaf[k] != leaf:
                continue
            for x in range(sites.start[k], sites.start[k + 1]):
                symbol = sites.symbol[x]
                if exits.label[symbol] >= 0 and of_symbol[symbol] < 0:
                    of_symbol[symbol] = ends
                    ends += 1
        if not leaf:
            outer = max(outer, ends)
    ends = max(ends, np.int64(1))
    named = ends
    end_of_row = np.zeros(rows.base.size, np.int64)  # of accepting rows
    if ends > 1:
        of_first = np.full(exits.label.size, -1, np.int64)
        for s in range(rows.base.size):
            if not rows.accepting[s] or not of_row[s] & 2:
                continue
            end_of_row[s] = -1
            if exits.of_row.size and exits.of_row[s] >= 0:
                for x in range(exits.start[exits.of_row[s]], exits.start[exits.of_row[s] + 1]):
                    if _edge(arrays, s, np.int64(exits.token[x])) < 0:
                        symbol = exits.symbol[x]
                        if of_first[symbol] < 0:
                            of_first[symbol] = ends
                            ends += 1
                        end_of_row[s] = of_first[symbol]
                        break
    return _Ends(of_symbol, end_of_row, named, ends, outer, _shared_symbols(arrays, end_of_row, named, ends))


@kernel
def _shared_symbols(arrays: TableArrays, end_of_row: Int64Array, named: int, ends: int) -> NDArray[np.bool_]:
    """Return the symbols that all rows of each end of rows have, (ends - named, Y)."""
    exits = arrays.exits
    leads = np.zeros((ends - named, exits.label.size), np.bool_)
    if ends == named:
        return leads
    having, last = np.zeros(leads.shape, np.int64), np.full(exits.label.size, -1, np.int64)
    alike = np.zeros(ends - named, np.int64)
    for s in range(end_of_row.size):
        c = end_of_row[s] - named
        if not arrays.rows.accepting[s] or c < 0:
            continue
        alike[c] += 1
        for x in range(exits.start[exits.of_row[s]], exits.start[exits.of_row[s] + 1]):
            symbol = exits.symbol[x]
            if last[symbol] != s and _edge(arrays, s, np.int64(exits.token[x])) < 0:
                last[symbol] = s
                having[c, symbol] += 1
    for c in range(ends - named):
        for symbol in range(exits.label.size):
            leads[c, symbol] = having[c, symbol] == alike[c]
    return leads


@kernel
def _site_ways(arrays: TableArrays, of_site: NDArray[np.uint8], ends: _Ends) -> _Ways:
    """Return where sites lead after each end."""
    sites = arrays.sites
    count = sites.is_leaf.size
    start, size = np.zeros(count + 1, np.int64), np.int64(64)
    end, to, more = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    at = 0
    for k in range(count):
        for x in range(sites.start[k], sites.start[k + 1] if of_site[k] else sites.start[k]):
            symbol, code = sites.symbol[x], np.int64(sites.target[x])
            if code < 0:  # with nothing below it is not allowed
                code = np.int64(-1) - ends.of_symbol[-1 - code]
                if of_site[k] & 1 or code == 0 or code < -ends.outer:
                    continue
            if at + ends.total > size:
                size *= 2
                larger = np.empty((3, size), np.int64)
                larger[0, :at], larger[1, :at], larger[2, :at] = end[:at], to[:at], more[:at]
                end, to, more = larger[0], larger[1], larger[2]
            if ends.of_symbol[symbol] >= 0:
                end[at], to[at], more[at] = ends.of_symbol[symbol], code, 0
                at += 1
            for c in range(ends.total - ends.named):
                if ends.leads[c, symbol]:
                    end[at], to[at], more[at] = ends.named + c, code, 1
                    at += 1
        start[k + 1] = at
    return _Ways(start, end, to, more)


@kernel
def _begin(problem: _Problem, found: _Found, counting: int) -> None:
    """Set what takes no further row: the end of a text, accepting rows, and exits of rows."""
    exits, ends = problem.arrays.exits, problem.ends
    rows = problem.arrays.rows.base.size
    code_is = found.far_code if counting else found.room_code
    code_is[rows, 0] = 0
    for s in range(rows):
        if problem.arrays.rows.accepting[s] and ends.of_row[s] >= 0:
            code_is[s, ends.of_row[s]] = 0
        if exits.of_row.size and exits.of_row[s] >= 0 and not problem.of_row[s] & 1:
            missing = ends.named
            for x in range(exits.start[exits.of_row[s]], exits.start[exits.of_row[s] + 1]):
                c = ends.of_symbol[exits.symbol[x]]
                if c < 0 or code_is[s, c] <= counting:
                    continue
                if _edge(problem.arrays, s, np.int64(exits.token[x])) < 0:
                    code_is[s, c] = counting
                    missing -= 1
                    if missing == 0:
                        break


@kernel
def _lower_sites(problem: _Problem, found: _Found, counting: int) -> bool:
    """Lower the best of each site by what its ways lead to; return whether anything changed."""
    sites, ways = problem.arrays.sites, problem.ways
    site_is = found.far_site if counting else found.room_site
    changed = False
    for k in range(sites.is_leaf.size):
        for x in range(ways.start[k], ways.start[k + 1]):
            c, code, more = ways.end[x], ways.to[x], ways.more[x]
            for d in range(problem.ends.outer):
                best = np.int64(UNREACHABLE)
                if code < 0:
                    best = counting * more if -1 - code == d else best
                else:
                    required, most = np.int64(problem.code_frames[code]), np.int64(MOST_DEPTH + 1)
                    if problem.several:
                        required, most = max(required, found.room_code[code, d]), found.room_site[k, c, d]
                    elif problem.limited:
                        most = np.int64(sites.frames_required[k]) if sites.frames_required.size else np.int64(0)
                    if not counting:
                        best = required
                    elif required <= most:
                        best = found.far_code[code, d] + more
                if best < site_is[k, c, d]:
                    site_is[k, c, d] = best
                    changed = True
    return changed


@kernel
def _lower_actions(problem: _Problem, found: _Found, counting: int) -> bool:
    """Lower the best of each action by its row and the sites that it pushes; return whether anything changed."""
    actions, is_leaf, several = problem.arrays.actions, problem.arrays.sites.is_leaf, problem.several
    rows, ends, outer = problem.arrays.rows.base.size, problem.ends.total, problem.ends.outer
    code_is = found.far_code if counting else found.room_code
    groups = outer if several and counting else 1  # ends for which there are as many frames
    best, inner = found.best, found.inner
    changed = False
    for a in range(actions.state.size):
        all_frames = np.int64(0)
        for p in range(actions.push_start[a], actions.push_start[a + 1]):
            all_frames += not is_leaf[actions.push[p]]
        state, stop = actions.state[a], actions.push_start[a + 1]
        for group in range(groups):
            most = found.room_code[rows + 2 + a, group] if several else np.int64(MOST_DEPTH + 1)
            frames = all_frames
            for c in range(ends):
                best[c] = code_is[state, c]
                if not counting:
                    best[c] += frames
                elif several and frames + found.room_code[state, c] > most:
                    best[c] = UNREACHABLE
            for p in range(stop - 1, actions.push_start[a] - 1, -1):
                k = np.int64(actions.push[p])
                frames -= not is_leaf[k]
                inner[:] = best
                best[:] = UNREACHABLE
                for c in range(ends if p == stop - 1 else outer):
                    for d in range(outer):
                        if not counting:
                            best[d] = min(best[d], max(inner[c], frames + found.room_site[k, c, d]))
                        elif not several or frames + found.room_site[k, c, d] <= most:
                            best[d] = min(best[d], inner[c] + found.far_site[k, c, d])
            for d in range(group, group + 1 if groups > 1 else outer):
                if not counting:
                    best[d] = max(best[d], np.int64(problem.code_frames[rows + 2 + a]))
                if best[d] < code_is[rows + 2 + a, d]:
                    code_is[rows + 2 + a, d] = best[d]
                    changed = True
    return changed


@kernel
def _lower_row(problem: _Problem, found: _Found, counting: int, row: int, code: int, required: int, most: int) -> None:
    """Lower the best of each end of a row by a token that leads to a code and requires frames besides."""
    best = found.best
    for c in range(best.size):
        room: Any = max(required, np.int64(problem.code_frames[code]))
        if problem.several:
            room = max(room, found.room_code[code, c])
        if not counting:
            best[c] = min(best[c], room)
        elif room <= (found.room_code[row, c] if problem.several else most):
            best[c] = min(best[c], found.far_code[code, c] + 1)


@kernel
def _lower_rows(problem: _Problem, found: _Found, counting: int) -> bool:
    """Lower the best of each row by its own edges and its base, last rows first; return whether anything changed."""
    sites, targets, several = problem.arrays.sites, problem.targets, problem.several
    code_is = found.far_code if counting else found.room_code
    best = found.best
    changed = False
    for s in range(problem.arrays.rows.base.size - 1, -1, -1):
        if problem.ends.total == 1 and found.far_code[s, 0] <= 1:
            continue
        best[:] = code_is[s]
        most = np.int64(problem.code_frames[s]) if problem.limited and not several else np.int64(MOST_DEPTH + 1)
        for e in range(targets.own_start[s], targets.own_start[s + 1]):
            _lower_row(problem, found, counting, s, targets.own_to[e], np.int64(0), most)
        push = np.int64(sites.of_row[s]) if sites.of_row.size else np.int64(-1)
        frames = required = np.int64(0)
        if push >= 0:
            frames = np.int64(not sites.is_leaf[push])
            required = max(frames, np.int64(sites.frames_required[push]) if sites.frames_required.size else np.int64(0))
        if required <= most:
            _lower_by_base(problem, found, counting, s, push, required, most)
            if push >= 0:
                _lower_by_push(problem, found, counting, s, push, frames, required, most)
        for c in range(problem.ends.total):
            if best[c] < code_is[s, c]:
                code_is[s, c] = best[c]
                changed = True
    return changed


@kernel
def _lower_by_base(
    problem: _Problem, found: _Found, counting: int, row: int, push: int, required: int, most: int
) -> None:
    """Lower the best of a row by the tokens of its base; of a base that pushes, by its exits alone."""
    sites, ends, targets = problem.arrays.sites, problem.ends, problem.targets
    for x in range(targets.start[row], targets.start[row + 1]):
        target = targets.to[x]
        if target >= 0:
            if push < 0:
                _lower_row(problem, found, counting, row, target, required, most)
            continue
        if push >= 0:
            at = place_of(sites.symbol, sites.start[push], sites.start[push + 1], -1 - target)
            if at < 0:
                continue
            target = np.int64(sites.target[at])
        if target >= 0:
            _lower_row(problem, found, counting, row, target, required, most)
        elif ends.of_symbol[-1 - target] >= 0 and not problem.of_row[row] & 1:
            c = ends.of_symbol[-1 - target]
            if not counting:
                found.best[c] = min(found.best[c], required)
            elif not problem.several or required <= found.room_code[row, c]:
                found.best[c] = min(found.best[c], np.int64(1))


@kernel
def _lower_by_push(
    problem: _Problem, found: _Found, counting: int, row: int, push: int, frames: int, required: int, most: int
) -> None:
    """Lower the best of a row whose base pushes a site: by the base's tokens, then by the return to the site."""
    targets, several, ends, outer = problem.targets, problem.several, problem.ends.total, problem.ends.outer
    groups = outer if several and counting else 1
    best, inner = found.best, found.inner
    for group in range(groups):
        if several and counting:
            most = found.room_code[row, group]
            if required > most:
                continue
        inner[:] = UNREACHABLE
        for x in range(targets.start[row], targets.start[row + 1]):
            for c in range(ends if targets.to[x] >= 0 else 0):
                room = frames + problem.code_frames[targets.to[x]]
                if several:
                    room = max(room, frames + found.room_code[targets.to[x], c])
                if not counting:
                    inner[c] = min(inner[c], room)
                elif room <= most:
                    inner[c] = min(inner[c], found.far_code[targets.to[x], c] + 1)
        for c in range(ends):
            for d in range(group, group + 1 if groups > 1 else outer):
                if not counting:
                    best[d] = min(best[d], max(required, max(inner[c], found.room_site[push, c, d])))
                elif not several or found.room_site[push, c, d] <= most:
                    best[d] = min(best[d], inner[c] + found.far_site[push, c, d])


@kernel
def _excess(problem: _Problem, found: _Found, of_site: NDArray[np.uint8]) -> Int64Array:
    """Return by how much the distance rises at most when a fragment is left, above what each of its ends would take."""
    sites, ends, outer = problem.arrays.sites, problem.ends.total, problem.ends.outer
    far_site, inner = found.far_site, found.inner
    excess = np.zeros(ends, np.int64)
    for k in range(sites.is_leaf.size):
        inner[:] = -1
        for x in range(sites.start[k], sites.start[k + 1] if of_site[k] else sites.start[k]):
            if sites.target[x] >= 0:
                for d in range(outer):
                    inner[d] = max(inner[d], found.far_code[sites.target[x], d])
        for c in range(ends):
            for d in range(outer):
                if far_site[k, c, d] < UNREACHABLE:
                    rise = inner[d] - far_site[k, c, d] if inner[d] < UNREACHABLE else np.int64(UNREACHABLE)
                    excess[c] = max(excess[c], rise)
    changed = bool(ends > 1)
    while changed:  # and so that the next one is left too
        changed = False
        for k in range(sites.is_leaf.size):
            leaves = 0
            for x in range(sites.start[k], sites.start[k + 1] if of_site[k] else sites.start[k]):
                leaves += sites.target[x] < 0
            for c in range(ends if leaves else 0):
                for d in range(outer):
                    if far_site[k, c, d] < UNREACHABLE:
                        rise = excess[d] - far_site[k, c, d] if excess[d] < UNREACHABLE else np.int64(UNREACHABLE)
                        changed |= rise > excess[c]
                        excess[c] = max(excess[c], rise)
    return excess


@kernel
def _farthest(problem: _Problem, found: _Found, excess: Int64Array) -> Int64Array:
    """Return `Distances.farthest`."""
    arrays, targets, ends, outer = problem.arrays, problem.targets, problem.ends.total, problem.ends.outer
    exits, sites = arrays.exits, arrays.sites
    rows = arrays.rows.base.size
    best, inner = found.best, found.inner
    out = np.full((rows + 2, ends), -1, np.int64)
    for s in range(rows):
        best[:] = -1
        for e in range(targets.own_start[s], targets.own_start[s + 1]):
            for c in range(ends):
                best[c] = max(best[c], found.far_code[targets.own_to[e], c])
        push = np.int64(sites.of_row[s]) if sites.of_row.size else np.int64(-1)
        inner[:] = -1
        for x in range(targets.start[s], targets.start[s + 1]):
            if targets.to[x] >= 0:
                for c in range(ends):
                    inner[c] = max(inner[c], found.far_code[targets.to[x], c])
        if arrays.rows.base[s] >= 0 and exits.of_base.size and exits.of_base[arrays.rows.base[s]] >= 0:
            for c in range(ends):
                inner[c] = max(inner[c], excess[c])
        if push >= 0 and inner.max() >= 0:
            for d in range(outer):
                least = np.int64(UNREACHABLE)
                for c in range(ends):
                    least = min(least, inner[c] + found.far_site[push, c, d])
                best[d] = max(best[d], least)
            best[outer:] = UNREACHABLE
        else:
            for c in range(ends):
                best[c] = max(best[c], inner[c])
        if exits.of_row.size and exits.of_row[s] >= 0:
            for c in range(ends):
                best[c] = max(best[c], excess[c])
        for c in range(ends):
            out[s, c] = min(best[c], UNREACHABLE)
    return out
