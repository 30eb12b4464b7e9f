"""Where the rows of a nested table lead, each target once, and which of them are inside of fragments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Bool, ByteArray, Int, Int64Array, has_bit, place_of
from ..kernels.compiled import kernel
from ..kernels.deadline import is_late
from .distances import base_class_counts, class_of
from .groups import TableArrays


class Targets(NamedTuple):
    """Where each row leads, each target once: codes, and -1 - symbol for exits that leave no bytes behind."""

    start: Int64Array  # of its base
    to: Int64Array
    own_start: Int64Array  # of its own edges
    own_to: Int64Array


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
            if has_bit(mask, token) and own_edge(arrays, row, token) < 0:
                left[bases.target_start[base] + class_of(arrays, base, token)] += sign


@kernel
def own_edge(arrays: TableArrays, row: int, token: Int) -> Int:
    """Return the row's own edge by a token, or -1."""
    return place_of(arrays.edges.token, arrays.rows.edge_start[row], arrays.rows.edge_start[row + 1], token)


@kernel
def _is_exit(arrays: TableArrays, exit_list: Int, token: Int) -> Bool:
    """Return whether an exit list, -1 for none, has a token."""
    exits = arrays.exits
    return exit_list >= 0 and place_of(exits.token, exits.start[exit_list], exits.start[exit_list + 1], token) >= 0


@kernel
def base_targets(arrays: TableArrays) -> tuple[Int64Array, Int64Array]:
    """Return what remains of each row's base beside its own edges and exits: `Targets.start` and `.to`."""
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
        if is_late():
            break
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
                    and own_edge(arrays, s, token) < 0
                    and not _is_exit(arrays, own, token)
                    and not has_bit(bases.masks[bases.mask[base]], token)
                ):
                    last_symbol[symbol] = s
                    to[at] = -1 - np.int64(symbol)
                    at += 1
        start[s + 1] = at
    return start, to


@kernel
def own_targets(arrays: TableArrays) -> tuple[Int64Array, Int64Array]:
    """Return where each row's own edges lead, each code once: `Targets.own_start` and `.own_to`."""
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


class _Places(NamedTuple):
    """Where rows and frames below sites can be, and those of which more has become known since they were followed."""

    of_row: NDArray[np.uint8]  # (S,)
    of_site: NDArray[np.uint8]  # (K,)
    waiting: Int64Array  # rows, and S + k for site k: each waits at most twice, as there are two places
    waits: Int64Array  # (1,) how many wait


@kernel
def _put(places: _Places, of: NDArray[np.uint8], at: Int, entry: Int, where: np.uint8) -> None:
    """Note that a row or a frame below a site can be there, and that it is to be followed if that is new."""
    if of[at] | where != of[at]:
        of[at] |= where
        places.waiting[places.waits[0]] = entry
        places.waits[0] += 1


@kernel
def _follow(arrays: TableArrays, places: _Places, code: Int, where: np.uint8) -> None:
    """Note that a code is followed in a fragment (2) or outside of all (1)."""
    actions = arrays.actions
    rows = arrays.rows.base.size
    if code >= rows + 2:
        action = code - rows - 2
        for p in range(actions.push_start[action], actions.push_start[action + 1]):
            site = np.int64(actions.push[p])
            _put(places, places.of_site, site, rows + site, where)
            where = np.uint8(2)
        code = np.int64(actions.state[action])
    if code < rows:
        _put(places, places.of_row, code, code, where)


@kernel
def belonging(arrays: TableArrays, targets: Targets) -> tuple[ByteArray, ByteArray]:
    """Return where rows (S,) and frames below sites (K,) can be: 1 outside of all fragments, 2 in one, 3 both, or 0.

    Each row and site is followed at most twice: time is linear in targets, and in pushes of the actions among them.
    """
    sites = arrays.sites
    rows, count = arrays.rows.base.size, sites.is_leaf.size
    places = _Places(
        np.zeros(rows, np.uint8), np.zeros(count, np.uint8), np.empty(2 * (rows + count), np.int64),
        np.zeros(1, np.int64),
    )  # fmt: skip
    _put(places, places.of_row, 0, 0, np.uint8(1))
    while places.waits[0]:
        places.waits[0] -= 1
        entry = places.waiting[places.waits[0]]
        if entry >= rows:
            site = entry - rows
            for x in range(sites.start[site], sites.start[site + 1]):
                if sites.target[x] >= 0:
                    _follow(arrays, places, np.int64(sites.target[x]), places.of_site[site])
            continue
        where = places.of_row[entry]
        for e in range(targets.own_start[entry], targets.own_start[entry + 1]):
            _follow(arrays, places, targets.own_to[e], where)
        if arrays.rows.base[entry] >= 0 and sites.of_row.size and sites.of_row[entry] >= 0:
            pushed = np.int64(sites.of_row[entry])
            _put(places, places.of_site, pushed, rows + pushed, where)
            where = np.uint8(2)
        for x in range(targets.start[entry], targets.start[entry + 1]):
            if targets.to[x] >= 0:
                _follow(arrays, places, targets.to[x], where)
    return places.of_row, places.of_site
