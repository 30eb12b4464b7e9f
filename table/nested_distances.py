"""How many tokens it takes to end in a nested table, where the stack decides: distances by the *ends* of fragments.

A fragment may end in several ways, and what its caller requires afterwards depends on the way. An end is such a way.
The kernels below find, for each code and each end, how few tokens lead there (and, where frames are limited, how few
frames that takes). The least that is known is settled first, as in Dijkstra's algorithm and Knuth's generalization of
it (Information Processing Letters 6(1), 1977): nothing costs less than any part of it, so no later one can lower it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Int, Int32Array, Int64Array
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from ..kernels.limits import UNREACHABLE
from .groups import TableArrays
from .nested_ends import ends_of, site_ways
from .nested_settling import Problem, readers_of, settled
from .nested_targets import Targets, base_targets, belonging, own_targets


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
    found = _distances(_with_wide_tokens(arrays), required)
    for array in found:
        array.flags.writeable = False
    return Distances(*found)


def _with_wide_tokens(arrays: TableArrays) -> TableArrays:
    """Return arrays with tokens as uint32, so that the kernels below are compiled for one type, not for three."""
    edges, classes, exits = arrays.edges, arrays.classes, arrays.exits
    return arrays._replace(
        edges=edges._replace(token=edges.token.astype(np.uint32)),
        classes=classes._replace(token=classes.token.astype(np.uint32)),
        exits=exits._replace(token=exits.token.astype(np.uint32)),
    )


class _Found(NamedTuple):
    """What was found: frames first, then tokens."""

    code_frames: Int64Array
    site_frames: Int64Array
    code_tokens: Int64Array
    site_tokens: Int64Array
    best: Int64Array  # scratch, by end
    inner: Int64Array


@kernel
def _distances(
    arrays: TableArrays, required: Int32Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]:
    sites, codes = arrays.sites.is_leaf.size, required.size
    start, to = base_targets(arrays)
    own_start, own_to = own_targets(arrays)
    targets = Targets(start, to, own_start, own_to)
    of_row, of_site = belonging(arrays, targets)
    ends = ends_of(arrays, of_row, of_site)
    limited = arrays.rows.frames_required.size > 0
    several = bool(limited and ends.total > 1)
    problem = Problem(arrays, required, targets, of_row, ends, site_ways(arrays, of_site, ends), limited, several)
    readers = readers_of(problem)
    count, outer = ends.total, ends.outer
    frames = np.empty(0, np.int64)
    at: Int = np.int64(0)
    if several:  # how many frames each end takes at least, then how few tokens with as many
        frames, at = settled(problem, readers, frames, 0)
    code_frames = frames[:at].reshape(codes if several else 0, count)
    site_frames = frames[at:].reshape(sites if several else 0, count, outer)
    tokens, at = settled(problem, readers, frames, 1)
    code_tokens, site_tokens = tokens[:at].reshape(codes, count), tokens[at:].reshape(sites, count, outer)
    scratch = np.empty((2, count), np.int64)
    found = _Found(code_frames, site_frames, code_tokens, site_tokens, scratch[0], scratch[1])
    far = _farthest(problem, found, _excess(problem, found, of_site))
    return code_tokens, site_tokens, far, code_frames, site_frames


@kernel
def _excess(problem: Problem, found: _Found, of_site: NDArray[np.uint8]) -> Int64Array:
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
    while changed and not is_late():  # and so that the next one is left too
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
def _farthest(problem: Problem, found: _Found, excess: Int64Array) -> Int64Array:
    """Return `Distances.farthest`."""
    arrays, targets, ends, outer = problem.arrays, problem.targets, problem.ends.total, problem.ends.outer
    exits, sites = arrays.exits, arrays.sites
    rows = arrays.rows.base.size
    best, inner = found.best, found.inner
    out = np.full((rows + 2, ends), -1, np.int64)
    for s in range(rows):
        if is_late():
            break
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
