"""Where each return site leads by each symbol."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import CALL, DEAD, KEEP, RETURN
from ...kernels.arrays import Int
from ...kernels.compiled import kernel
from ...kernels.deadline import is_late
from .arrays import ACTIONS, REMAINDERS, SYMBOLS, MachineArrays, TokenText
from .link_pools import LinkPools, action_of, grown
from .pushdown_walk import BINDING, returned
from .symbols import LABEL, OFFSET, REMAINDER, TOKEN, Symbols, is_full, more_symbols, symbol_of

_NO_ROOM = -1  # in place of a number of triples


def resolve(
    machine: PushdownMachine, first_site: int, known: int, text: TokenText, longest: int, pools: LinkPools,
    symbols: Symbols, admit: int, meter: Meter,
) -> tuple[LinkPools, Symbols, NDArray[np.int32]]:  # fmt: skip
    """Return pools, symbols, and (site, symbol, target) triples (3, n), sorted by site, then symbol.

    A target is a state, the code of an action, or -1 - symbol: the symbol goes on to the next site. Pairs of a site
    below first_site and a symbol below known are left out. Raises BudgetError.
    """
    arrays = MachineArrays.of(machine)
    stack = np.zeros((1, longest + 2), np.int32)
    out = np.empty((3, 64 * len(arrays.site_start) + 4096), np.int32)
    progress = np.zeros(5, np.int64)
    while True:
        count = _resolve_sites(arrays, first_site, known, text, stack, admit, progress, pools, symbols, out)
        if count >= 0:
            triples = out[:, :count]
            order = np.lexsort((triples[1], triples[0]))
            return pools, symbols, triples[:, order]
        meter.check(bytes=5 * out.nbytes, doing=BINDING)
        longer = np.empty((3, 4 * out.shape[1]), np.int32)
        longer[:, : progress[4]] = out[:, : progress[4]]
        out = longer
        pools = grown(pools, 0)
        if 4 * int(max(pools.counters[SYMBOLS], pools.counters[REMAINDERS])) > symbols.slots.size:
            symbols = more_symbols(symbols, text, pools.counters)


@kernel
def _resolve_sites(
    machine: MachineArrays, first_site: int, known: int, text: TokenText, stack: NDArray[np.int32], admit: int,
    progress: NDArray[np.int64], pools: LinkPools, found: Symbols, out: NDArray[np.int32],
) -> int:  # fmt: skip
    """Follow each symbol from each site, those aside that are known: sites below first_site and symbols below known.

    Writes the triples of `resolve` that lead somewhere. Symbols that an end leaves behind are made, and followed too.
    Returns the number of triples, or _NO_ROOM, to be called again.

    progress: (5,) how far it came, zeros at first.
    """
    rows, calls, site_start, site_states = machine.rows, machine.calls, machine.site_start, machine.site_states
    data, start, counters, actions = text.data, text.start, pools.counters, pools.actions
    slots, remainders, symbol_slots, symbols = found
    action_slots, action_state, push_start, push = actions
    sites = site_start.size - 1
    before, first = progress[0], max(progress[1], np.int64(known))  # symbols all sites, and first ones, were asked for
    after, begin, count = progress[2], progress[3], progress[4]
    while True:
        if after == 0:
            after = counters[SYMBOLS]
        for k in range(begin, sites):
            progress[0], progress[1], progress[2], progress[3], progress[4] = before, first, after, k, count
            if is_late():
                return _NO_ROOM
            low = before
            if k < first_site:
                low = max(before, first)
            for y in range(low, after):
                label = symbols[y, LABEL]
                if site_start[k] + label >= site_start[k + 1] or site_states[site_start[k] + label] < 0:
                    continue
                v = remainders[symbols[y, REMAINDER], TOKEN]
                at, stop = start[v] + remainders[symbols[y, REMAINDER], OFFSET], start[v + 1]
                code = site_states[site_start[k] + label]
                h: Int = np.int64(0)
                while at < stop and code >= 0:
                    code = rows[code, data[at]]
                    if h > 0 and CALL < code < DEAD:
                        code, h = returned(code, data[at], stack, 0, h, rows, site_start, site_states)
                    if code <= CALL:
                        stack[0, h], code, h = calls[CALL - code, 0], calls[CALL - code, 1], h + 1
                    at += 1
                if code == DEAD:
                    continue
                target = np.int64(code)
                if code <= RETURN:
                    if is_full(counters, slots, symbol_slots):
                        return _NO_ROOM
                    end = RETURN - code
                    if code <= KEEP:  # it ended before the last byte
                        end = KEEP - code
                        at -= 1
                    further = symbol_of(
                        v, at - start[v], end, data, start, slots, remainders, symbol_slots, symbols, counters, admit
                    )
                    if further < 0:
                        continue
                    target = np.int64(-1 - further)
                elif h:
                    if (
                        2 * (counters[ACTIONS] + 64) > action_slots.size
                        or push_start[counters[ACTIONS]] + h > push.size
                    ):
                        return _NO_ROOM
                    target = np.int64(
                        action_of(stack[0], h, code, action_slots, action_state, push_start, push, counters)
                    )
                if count == out.shape[1]:
                    return _NO_ROOM
                out[0, count], out[1, count], out[2, count] = k, y, target
                count += 1
        if counters[SYMBOLS] == after:
            return int(count)
        before = after
        first = max(first, after)
        after = begin = np.int64(0)
