"""How many tokens it takes to end in a nested table, where the stack decides: distances by the *ends* of fragments.

A fragment may end in several ways, and what its caller requires afterwards depends on the way. An end is such a way.
The kernels below find, for each code and each end, how few tokens lead there (and, where frames are limited, how few
frames that takes), by passes over all rows until nothing changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from ..kernels.limits import MOST_DEPTH, UNREACHABLE
from ..kernels.search import place_of
from .groups import Int32Array, TableArrays
from .nested_ends import Ends, Ways, ends_of, site_ways
from .nested_targets import Int64Array, Targets, base_targets, belonging, own_edge, own_targets


class Distances(NamedTuple):
    """Distances in a nested table, by the C *ends* of fragments.

    Let far[j, c] be the distance once the fragment above the stack's lowest j frames has ended with c. far[0] is 0 for
    end 0, the end of a text, and UNREACHABLE for all others. far[j + 1, c] is the least of site[k, c, d] + far[j, d]
    over the first F ends d, those of fragments that make calls, where k is site j. The distance of a configuration with
    state s and h frames is the least of code[s, c] + far[h, c]. With one end these are sums. Ways for which there are
    too few frames are left out.
    """

    code: Int64Array  # (S + 2 + A, C) fewest tokens to this end of the fragment; for actions, with their pushes
    site: Int64Array  # (K, C, F) fewest tokens from the return after an end to one of the fragment below
    farthest: Int64Array  # (S + 2, C) with enough frames, no token leads farther than the least of this + far[h]
    code_frames: Int64Array  # (S + 2 + A, C) how many more frames must fit for `code`; (0, C) where all fit
    site_frames: Int64Array  # (K, C, F) how many must fit above those below the site, for `site`; (0, C, F)


def nested_distances(arrays: TableArrays, required: Int32Array) -> Distances:
    """Return the distances of a nested table. required: (S + 2 + A,) how many more frames each code requires.

    Distances count tokens that leave no bytes behind where a fragment ends, and pushes that open as few frames as that
    end requires. UNREACHABLE stands for no way. The ends are the symbols that leave nothing behind, those of fragments
    that make calls first. An accepting row in a fragment ends it before the next token. If there are several symbols,
    rows whose first exits have the same symbol have an end of their own, which leads where their exits do.
    """
    found = _distances(arrays, required)
    for array in found:
        array.flags.writeable = False
    return Distances(*found)


class _Problem(NamedTuple):
    """What the passes read."""

    arrays: TableArrays
    required: Int32Array  # (S + 2 + A,) frames, by code
    targets: Targets
    of_row: NDArray[np.uint8]
    ends: Ends
    ways: Ways
    limited: bool  # frames are limited; otherwise the limit is out of reach
    several: bool  # frames are limited and there are several ends


class _Found(NamedTuple):
    """What the passes write: frames first, then tokens."""

    code_frames: Int64Array
    site_frames: Int64Array
    code_tokens: Int64Array
    site_tokens: Int64Array
    best: Int64Array  # scratch, by end
    inner: Int64Array


@kernel
def _distances(arrays: TableArrays, required: Int32Array) -> Any:
    rows, sites, actions = arrays.rows.base.size, arrays.sites.is_leaf.size, arrays.actions.state.size
    start, to = base_targets(arrays)
    own_start, own_to = own_targets(arrays)
    targets = Targets(start, to, own_start, own_to)
    of_row, of_site = belonging(arrays, targets)
    ends = ends_of(arrays, of_row, of_site)
    limited = arrays.rows.frames_required.size > 0
    several = limited and ends.total > 1
    problem = _Problem(arrays, required, targets, of_row, ends, site_ways(arrays, of_site, ends), limited, several)
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
    return found.code_tokens, found.site_tokens, far, found.code_frames, found.site_frames


@kernel
def _begin(problem: _Problem, found: _Found, counting: int) -> None:
    """Set what takes no further row: the end of a text, accepting rows, and exits of rows."""
    exits, ends = problem.arrays.exits, problem.ends
    rows = problem.arrays.rows.base.size
    code_is = found.code_tokens if counting else found.code_frames
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
                if own_edge(problem.arrays, s, np.int64(exits.token[x])) < 0:
                    code_is[s, c] = counting
                    missing -= 1
                    if missing == 0:
                        break


@kernel
def _lower_sites(problem: _Problem, found: _Found, counting: int) -> bool:
    """Lower the best of each site by what its ways lead to; return whether anything changed."""
    sites, ways = problem.arrays.sites, problem.ways
    site_is = found.site_tokens if counting else found.site_frames
    changed = False
    for k in range(sites.is_leaf.size):
        for x in range(ways.start[k], ways.start[k + 1]):
            c, code, more = ways.end[x], ways.to[x], ways.more[x]
            for d in range(problem.ends.outer):
                best = np.int64(UNREACHABLE)
                if code < 0:
                    best = counting * more if -1 - code == d else best
                else:
                    required, most = np.int64(problem.required[code]), np.int64(MOST_DEPTH + 1)
                    if problem.several:
                        required, most = max(required, found.code_frames[code, d]), found.site_frames[k, c, d]
                    elif problem.limited:
                        most = np.int64(sites.frames_required[k]) if sites.frames_required.size else np.int64(0)
                    if not counting:
                        best = required
                    elif required <= most:
                        best = found.code_tokens[code, d] + more
                if best < site_is[k, c, d]:
                    site_is[k, c, d] = best
                    changed = True
    return changed


@kernel
def _lower_actions(problem: _Problem, found: _Found, counting: int) -> bool:
    """Lower the best of each action by its row and the sites that it pushes; return whether anything changed."""
    actions, is_leaf, several = problem.arrays.actions, problem.arrays.sites.is_leaf, problem.several
    rows, ends, outer = problem.arrays.rows.base.size, problem.ends.total, problem.ends.outer
    code_is = found.code_tokens if counting else found.code_frames
    groups = outer if several and counting else 1  # ends for which there are as many frames
    best, inner = found.best, found.inner
    changed = False
    for a in range(actions.state.size):
        all_frames = np.int64(0)
        for p in range(actions.push_start[a], actions.push_start[a + 1]):
            all_frames += not is_leaf[actions.push[p]]
        state, stop = actions.state[a], actions.push_start[a + 1]
        for group in range(groups):
            most = found.code_frames[rows + 2 + a, group] if several else np.int64(MOST_DEPTH + 1)
            frames = all_frames
            for c in range(ends):
                best[c] = code_is[state, c]
                if not counting:
                    best[c] += frames
                elif several and frames + found.code_frames[state, c] > most:
                    best[c] = UNREACHABLE
            for p in range(stop - 1, actions.push_start[a] - 1, -1):
                k = np.int64(actions.push[p])
                frames -= not is_leaf[k]
                inner[:] = best
                best[:] = UNREACHABLE
                for c in range(ends if p == stop - 1 else outer):
                    for d in range(outer):
                        if not counting:
                            best[d] = min(best[d], max(inner[c], frames + found.site_frames[k, c, d]))
                        elif not several or frames + found.site_frames[k, c, d] <= most:
                            best[d] = min(best[d], inner[c] + found.site_tokens[k, c, d])
            for d in range(group, group + 1 if groups > 1 else outer):
                if not counting:
                    best[d] = max(best[d], np.int64(problem.required[rows + 2 + a]))
                if best[d] < code_is[rows + 2 + a, d]:
                    code_is[rows + 2 + a, d] = best[d]
                    changed = True
    return changed


@kernel
def _lower_row(problem: _Problem, found: _Found, counting: int, row: int, code: int, required: int, most: int) -> None:
    """Lower the best of each end of a row by a token that leads to a code and requires frames besides."""
    best = found.best
    for c in range(best.size):
        frames: Any = max(required, np.int64(problem.required[code]))
        if problem.several:
            frames = max(frames, found.code_frames[code, c])
        if not counting:
            best[c] = min(best[c], frames)
        elif frames <= (found.code_frames[row, c] if problem.several else most):
            best[c] = min(best[c], found.code_tokens[code, c] + 1)


@kernel
def _lower_rows(problem: _Problem, found: _Found, counting: int) -> bool:
    """Lower the best of each row by its own edges and its base, last rows first; return whether anything changed."""
    sites, targets, several = problem.arrays.sites, problem.targets, problem.several
    code_is = found.code_tokens if counting else found.code_frames
    best = found.best
    changed = False
    for s in range(problem.arrays.rows.base.size - 1, -1, -1):
        if problem.ends.total == 1 and found.code_tokens[s, 0] <= 1:
            continue
        best[:] = code_is[s]
        most = np.int64(problem.required[s]) if problem.limited and not several else np.int64(MOST_DEPTH + 1)
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
            elif not problem.several or required <= found.code_frames[row, c]:
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
            most = found.code_frames[row, group]
            if required > most:
                continue
        inner[:] = UNREACHABLE
        for x in range(targets.start[row], targets.start[row + 1]):
            for c in range(ends if targets.to[x] >= 0 else 0):
                total = frames + problem.required[targets.to[x]]
                if several:
                    total = max(total, frames + found.code_frames[targets.to[x], c])
                if not counting:
                    inner[c] = min(inner[c], total)
                elif total <= most:
                    inner[c] = min(inner[c], found.code_tokens[targets.to[x], c] + 1)
        for c in range(ends):
            for d in range(group, group + 1 if groups > 1 else outer):
                if not counting:
                    best[d] = min(best[d], max(required, max(inner[c], found.site_frames[push, c, d])))
                elif not several or found.site_frames[push, c, d] <= most:
                    best[d] = min(best[d], inner[c] + found.site_tokens[push, c, d])


@kernel
def _excess(problem: _Problem, found: _Found, of_site: NDArray[np.uint8]) -> Int64Array:
    """Return by how much the distance rises at most when a fragment is left, above what each of its ends would take."""
    sites, ends, outer = problem.arrays.sites, problem.ends.total, problem.ends.outer
    site_tokens, inner = found.site_tokens, found.inner
    excess = np.zeros(ends, np.int64)
    for k in range(sites.is_leaf.size):
        inner[:] = -1
        for x in range(sites.start[k], sites.start[k + 1] if of_site[k] else sites.start[k]):
            if sites.target[x] >= 0:
                for d in range(outer):
                    inner[d] = max(inner[d], found.code_tokens[sites.target[x], d])
        for c in range(ends):
            for d in range(outer):
                if site_tokens[k, c, d] < UNREACHABLE:
                    rise = inner[d] - site_tokens[k, c, d] if inner[d] < UNREACHABLE else np.int64(UNREACHABLE)
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
                    if site_tokens[k, c, d] < UNREACHABLE:
                        rise = excess[d] - site_tokens[k, c, d] if excess[d] < UNREACHABLE else np.int64(UNREACHABLE)
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
                best[c] = max(best[c], found.code_tokens[targets.own_to[e], c])
        push = np.int64(sites.of_row[s]) if sites.of_row.size else np.int64(-1)
        inner[:] = -1
        for x in range(targets.start[s], targets.start[s + 1]):
            if targets.to[x] >= 0:
                for c in range(ends):
                    inner[c] = max(inner[c], found.code_tokens[targets.to[x], c])
        if arrays.rows.base[s] >= 0 and exits.of_base.size and exits.of_base[arrays.rows.base[s]] >= 0:
            for c in range(ends):
                inner[c] = max(inner[c], excess[c])
        if push >= 0 and inner.max() >= 0:
            for d in range(outer):
                least = np.int64(UNREACHABLE)
                for c in range(ends):
                    least = min(least, inner[c] + found.site_tokens[push, c, d])
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
