"""The rows of a pushdown machine, found by walking the trie of all tokens along it, with a stack of return sites.

A state may have a *template*: a library state whose row is nearly the same, entered with a push or in the same frame.
The walk goes side by side with the template and turns back where both agree. What is left are the state's own edges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import CALL, DEAD, KEEP, RETURN
from ...kernels.arrays import Int
from ...kernels.compiled import kernel
from ...kernels.deadline import is_late
from ...vocabulary.vocabulary import Vocabulary
from .arrays import ACTIONS, EDGES, EXITS, KILL, MachineArrays, TokenText, TrieArrays
from .link_pools import EntryPool, LinkPools, action_of, grown
from .symbols import Symbols, is_full, more_symbols, symbol_of
from .wide_rows import is_of

BINDING = "binding a constraint to the vocabulary"
_MANY = 2048  # entries of a row from which on it takes less to look at all tokens in order than to sort them
_FEW = 48  # entries up to which insertion sorts fastest
_ENDED = -2  # in place of a template's state: it has ended, and the tokens below are its exits


class StatesToWalk(NamedTuple):
    """The states to be walked, and what is known of all states of their machine, N."""

    order: NDArray[np.int32]
    template: NDArray[np.int32]  # (N,) a library state, -1 for none
    template_site: NDArray[np.int32]  # (N,) the site that it is entered with, -1 if it is in the same frame
    loops: NDArray[np.uint64]  # (N,) groups of characters that lead back: tokens of these alone are left out


def walk(
    machine: PushdownMachine, states: StatesToWalk, vocabulary: Vocabulary, text: TokenText, pools: LinkPools,
    symbols: Symbols, admit: int, meter: Meter,
) -> tuple[LinkPools, Symbols]:  # fmt: skip
    """Return pools and symbols with the rows of some states; both may have grown. Raises BudgetError."""
    trie, arrays, nodes = vocabulary.trie, MachineArrays.of(machine), TrieArrays.of(vocabulary.trie)
    stack = np.zeros((trie.longest + 2, trie.longest + 2), np.int32)
    count, done = states.order.size, 0
    while done < count:
        found = _walk_rows(arrays, states, done, nodes, text, stack, admit, pools, symbols)
        if found < 0:
            done, symbols = -1 - found, more_symbols(symbols, text, pools.counters)
        else:
            done = found
            if done < count:
                pools = grown(pools, trie.token.size)
        meter.check(bytes=pools.nbytes, doing=BINDING)
    return pools, symbols


@kernel
def _walk_rows(
    machine: MachineArrays, states: StatesToWalk, first: int, trie: TrieArrays, text: TokenText,
    stack: NDArray[np.int32], admit: int, pools: LinkPools, found: Symbols,
) -> int:  # fmt: skip
    """Walk states from states.order[first] on, appending a row for each.

    Returns how many are done if a pool may overflow, or minus one less if there is no room for more symbols.

    stack: (longest + 2, longest + 2) scratch.
    """
    done = _walk_unsorted(machine, states, first, trie, text, stack, admit, pools, found)
    stop = done if done >= 0 else -1 - done
    _sort_rows(pools.edges, first, stop, text.start.size)
    _sort_rows(pools.exits, first, stop, text.start.size)
    return int(done)


@kernel
def _walk_unsorted(
    machine: MachineArrays, states: StatesToWalk, first: int, trie: TrieArrays, text: TokenText,
    stack: NDArray[np.int32], admit: int, pools: LinkPools, found: Symbols,
) -> int:  # fmt: skip
    """Do what `_walk_rows` does, with the entries of each row in the order of the trie."""
    # one loop over states and nodes, out of arrays unpacked here: numba counts each array that it passes on in and out,
    # which takes as long as a node, even where it inlines the kernel. So calls are made here, and returns, which are
    # rare, elsewhere
    rows, calls, site_start, site_states = machine
    order, template, template_site, loops = states
    byte, skip, depth, content, token_start = trie.byte, trie.skip, trie.depth, trie.content, trie.token_start
    token, root_start, counters, (data, start) = trie.token, trie.root_start, pools.counters, text
    (edge_start, edge_token, edge_code), (exit_start, exit_token, exit_symbol) = pools.edges, pools.exits
    slots, remainders, symbol_slots, known = found
    action_slots, action_state, push_start, push = pools.actions
    most, levels = token.size, stack.shape[0]  # most: entries that one row can have
    state, height = np.empty(levels, np.int32), np.zeros(levels, np.int32)  # by depth
    beside, free = np.full(levels, -1, np.int32), np.zeros(levels, np.bool_)
    for number in range(first, order.size):
        s = order[number]
        full = is_late() or counters[EDGES] + most > edge_token.size or counters[EXITS] + most > exit_token.size
        if full or _may_overflow(counters, action_slots, push_start, push, levels):
            return number
        edges, exits = counters[EDGES], counters[EXITS]
        edge_start[number], exit_start[number] = edges, exits
        base, base_site = template[s], template_site[s]
        after_base = site_states[site_start[base_site]] if base_site >= 0 else -1
        state[0], height[0], beside[0] = s, 0, base
        others = ~loops[s]
        free[0] = loops[s] != 0  # by depth: whether all characters so far lead back
        for b in range(256):
            i, last = root_start[b], root_start[b + 1]
            if i == last or (rows[s, b] == DEAD and (base < 0 or rows[base, b] == DEAD)):
                continue
            while i < last:
                d = depth[i] - 1
                c = byte[i]
                other = beside[d]
                if other >= 0:
                    other = rows[other, c]
                    if other <= RETURN:
                        other = _ENDED
                if free[d] and content[i] & others == 0:
                    i = skip[i]
                    continue
                free[d + 1] = free[d] and is_of(c, loops[s])
                code, h = rows[state[d], c], height[d]
                if code != DEAD:
                    for k in range(h):
                        stack[d + 1, k] = stack[d, k]
                    if code < 0:
                        if h > 0 and code > CALL:
                            code, h = returned(code, c, stack, d + 1, h, rows, site_start, site_states)
                        if code <= CALL:
                            stack[d + 1, h], code, h = calls[CALL - code, 0], calls[CALL - code, 1], h + 1
                below = np.int64(skip[i])
                stop, target = token_start[i], np.int32(KILL)  # edges of tokens up to `stop`
                if code <= RETURN:
                    # the fragment ends: if the template does too, in the same frame, these are the template's exits
                    if code != RETURN or base_site >= 0 or beside[d] < 0 or other != _ENDED:
                        label, offset = (RETURN - code, d + 1) if code > KEEP else (KEEP - code, d)
                        for x in range(token_start[i], token_start[below]):
                            v = token[x]
                            if is_full(counters, slots, symbol_slots):
                                return -1 - number
                            y = symbol_of(
                                v, offset, label, data, start, slots, remainders, symbol_slots, known, counters, admit
                            )
                            if y >= 0:
                                exit_token[exits], exit_symbol[exits] = v, y
                                exits += 1
                            elif other != DEAD:
                                edge_token[edges], edge_code[edges] = v, KILL
                                edges += 1
                elif code == DEAD:
                    if other != DEAD:  # the template might allow what is below, by an edge or by an exit
                        stop = token_start[below]
                elif other == DEAD or not (
                    (other == code and h == 1 and stack[d + 1, 0] == base_site)
                    or (other == code and h == 0 and base_site < 0)
                    or (other == _ENDED and beside[d] >= 0 and h == 0 and code == after_base)  # by this very byte
                ):  # otherwise the template's row, or its exits to this site, say exactly what is below
                    state[d + 1], height[d + 1], beside[d + 1] = code, h, other
                    if other != DEAD or content[i] & ~loops[code] != 0:  # not all that is below leads back here
                        below = np.int64(i + 1)
                    stop, target = token_start[below], code
                    if h and token_start[i] < stop:
                        if _may_overflow(counters, action_slots, push_start, push, levels):
                            return number  # what is known of this row is found again
                        target = action_of(
                            stack[d + 1], h, code, action_slots, action_state, push_start, push, counters
                        )
                for x in range(token_start[i], stop):
                    edge_token[edges], edge_code[edges] = token[x], target
                    edges += 1
                i = below
        counters[EDGES], counters[EXITS] = edges, exits
        edge_start[number + 1], exit_start[number + 1] = edges, exits
    return int(order.size)


@kernel(inline="always")
def _may_overflow(
    counters: NDArray[np.int64], slots: NDArray[np.int32], push_start: NDArray[np.int32], push: NDArray[np.int32],
    pushes: int,
) -> bool:  # fmt: skip
    """Return whether another action of so many pushes might not fit."""
    return bool(2 * (counters[ACTIONS] + 64) > slots.size or push_start[counters[ACTIONS]] + pushes > push.size)


@kernel(inline="always")
def returned(
    code: Int | np.int32, byte: int, stack: NDArray[np.int32], d: int, h: Int, rows: NDArray[np.int32],
    site_start: NDArray[np.int32], site_states: NDArray[np.int32],
) -> tuple[Int | np.int32, Int]:  # fmt: skip
    """Return (code, frames) of a byte that ends a fragment, with a site on the stack.

    code: of the byte. stack[d]: the sites, h of them, at least one. Returns a state, a call, DEAD, or how the outermost
    fragment ends, where the stack is empty.
    """
    while CALL < code <= KEEP and h > 0:  # the fragment ended before this byte
        h -= 1
        at = site_start[stack[d, h]] + (KEEP - code)
        code = np.int32(DEAD)
        if at < site_start[stack[d, h] + 1] and site_states[at] >= 0:
            code = rows[site_states[at], byte]
    if KEEP < code <= RETURN and h > 0:
        h -= 1
        at = site_start[stack[d, h]] + (RETURN - code)
        code = np.int32(DEAD)
        if at < site_start[stack[d, h] + 1] and site_states[at] >= 0:
            code = site_states[at]
    return code, h


@kernel
def _sort_rows(entries: EntryPool, first: int, stop: int, tokens: int) -> None:
    """Sort the entries of some rows by token. tokens: more than any token."""
    start, token, value = entries
    keys = np.empty(_MANY, np.int64)
    marked, value_of = np.empty(0, np.uint8), np.empty(0, np.int32)  # by token
    for row in range(first, stop):
        lo, hi = start[row], start[row + 1]
        n = hi - lo
        if n > _MANY:
            if not marked.size:
                marked, value_of = np.zeros(tokens, np.uint8), np.empty(tokens, np.int32)
            for k in range(lo, hi):
                marked[token[k]], value_of[token[k]] = 1, value[k]
            k, v = lo, 0
            while k < hi:  # each token once, with nothing to guess
                token[k], value[k] = v, value_of[v]
                k += marked[v]
                v += 1
            marked[:v] = 0
        elif n > _FEW:
            for k in range(n):
                keys[k] = (np.int64(token[lo + k]) << 32) | (np.int64(value[lo + k]) & 0xFFFFFFFF)
            part = keys[:n]
            part.sort()
            for k in range(n):
                token[lo + k] = part[k] >> 32
                value[lo + k] = np.int32(part[k] & 0xFFFFFFFF)
        else:
            for k in range(lo + 1, hi):
                token_k, value_k = token[k], value[k]
                x = k - 1
                while x >= lo and token[x] > token_k:
                    token[x + 1], value[x + 1] = token[x], value[x]
                    x -= 1
                token[x + 1], value[x + 1] = token_k, value_k
