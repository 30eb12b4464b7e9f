"""The ends of fragments of a nested table: the ways in which a fragment may end that its callers tell apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Int, Int64Array
from ..kernels.compiled import kernel
from .groups import TableArrays
from .nested_targets import own_edge


class Ends(NamedTuple):
    """The ends of fragments."""

    of_symbol: Int64Array  # (Y,) the end that a symbol is, -1 for none
    of_row: Int64Array  # (S,) the end that an accepting row is
    named: Int  # ends that are symbols; those of rows follow
    total: Int
    outer: Int  # ends of fragments that make calls, which come first
    leads: NDArray[np.bool_]  # (total - named, Y) symbols that all rows of an end of rows have


class Ways(NamedTuple):
    """Where sites lead after each end: a code or -1 - end, and whether that takes a token."""

    start: Int64Array
    end: Int64Array
    to: Int64Array
    more: Int64Array


@kernel
def ends_of(arrays: TableArrays, of_row: NDArray[np.uint8], of_site: NDArray[np.uint8]) -> Ends:
    """Return the ends: symbols that leave nothing behind, then those of rows that end before the next token."""
    rows, exits, sites = arrays.rows, arrays.exits, arrays.sites
    of_symbol = np.full(exits.label.size, -1, np.int64)
    ends: Int = np.int64(0)
    outer: Int = np.int64(1)
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
                    if own_edge(arrays, s, np.int64(exits.token[x])) < 0:
                        symbol = exits.symbol[x]
                        if of_first[symbol] < 0:
                            of_first[symbol] = ends
                            ends += 1
                        end_of_row[s] = of_first[symbol]
                        break
    return Ends(of_symbol, end_of_row, named, ends, outer, _shared_symbols(arrays, end_of_row, named, ends))


@kernel
def _shared_symbols(arrays: TableArrays, end_of_row: Int64Array, named: Int, ends: Int) -> NDArray[np.bool_]:
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
            if last[symbol] != s and own_edge(arrays, s, np.int64(exits.token[x])) < 0:
                last[symbol] = s
                having[c, symbol] += 1
    for c in range(ends - named):
        for symbol in range(exits.label.size):
            leads[c, symbol] = having[c, symbol] == alike[c]
    return leads


@kernel
def site_ways(arrays: TableArrays, of_site: NDArray[np.uint8], ends: Ends) -> Ways:
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
    return Ways(start, end, to, more)
