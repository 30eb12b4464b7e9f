"""Bind a machine with calls to a vocabulary: rows of tokens, exits, and where return sites lead.

A row is found by walking the trie of all tokens along the machine, as `bind` does, with a stack of the sites that a
token pushes on its way. A state that is nearly a library state entered with a push, its *twin*, is walked side by side
with it, and turns back where both agree: what is left are its own edges.

A token that ends the fragment in its middle is an *exit*: what remains of it, a *remainder*, is read on at whatever
site is on the stack. A remainder and the label of the end make an exit *symbol*. Sites say where symbols lead; most
lead nowhere, and remainders that no text can go on with are dropped once, with the library.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.codes import CALL, DEAD, KEEP, RETURN
from ...kernels.compiled import kernel
from ...vocabulary.characters import BEHIND

_KILL = -(2**31)
ACTION = 1 << 30  # own code of an action, until the number of states is known
_AT_ONCE = 1 << 24  # pairs of a site and a symbol, before somebody looks at the clock
_MANY = 2048  # entries of a row from which on it takes less to look at all tokens in order than to sort them
_LEFT = -2  # the twin has ended: what is below are its exits

# which remainders that have not been seen before may be gone on with: none, any, those that JSON may go on with
ADMIT_NONE, ADMIT_ANY, ADMIT_JSON = range(3)
# places in the counters
EDGES, EXITS, ACTIONS, REMAINDERS, SYMBOLS = range(5)


class Symbols(NamedTuple):
    """Remainders and exit symbols, found by hash; they grow, so each compilation has a copy."""

    slots: NDArray[np.int32]  # remainder by hash of its bytes, -1 empty
    token: NDArray[np.int32]  # (R,) a token that ends with the remainder
    offset: NDArray[np.int32]  # (R,) where it begins in it
    alive: NDArray[np.bool_]  # (R,) whether a text may go on with it
    symbol_slots: NDArray[np.int32]  # symbol by hash of (label, remainder)
    remainder: NDArray[np.int32]  # (Y,)
    label: NDArray[np.int32]  # (Y,)


def empty_symbols(size: int) -> Symbols:
    """Return symbols with that many slots, a power of two."""
    return Symbols(
        slots=np.full(size, -1, np.int32),
        token=np.empty(size, np.int32),
        offset=np.empty(size, np.int32),
        alive=np.zeros(size, np.bool_),
        symbol_slots=np.full(size, -1, np.int32),
        remainder=np.empty(size, np.int32),
        label=np.empty(size, np.int32),
    )


def more_symbols(
    symbols: Symbols, text: NDArray[np.uint8], text_start: NDArray[np.int32], counters: NDArray[np.int64]
) -> Symbols:
    """Return the symbols in four times the room."""
    remainders, used = int(counters[REMAINDERS]), int(counters[SYMBOLS])
    out = empty_symbols(4 * symbols.slots.size)
    for array, known, count in zip(out, symbols, (0, remainders, remainders, remainders, 0, used, used), strict=True):
        array[:count] = known[:count]
    place(out, text, text_start, remainders, used)
    return out


def place(symbols: Symbols, text: NDArray[np.uint8], text_start: NDArray[np.int32], remainders: int, used: int) -> None:
    """Put remainders and symbols into slots that are empty."""
    place_symbols(
        remainders, used, text, text_start, symbols.slots, symbols.token, symbols.offset, symbols.symbol_slots,
        symbols.remainder, symbols.label,
    )  # fmt: skip


class Pools(NamedTuple):
    """What walking writes; arrays are longer than what is used, which the counters say."""

    counters: NDArray[np.int64]
    edge_start: NDArray[np.int64]  # by state
    edge_token: NDArray[np.int32]
    edge_code: NDArray[np.int32]
    exit_start: NDArray[np.int64]  # by state
    exit_token: NDArray[np.int32]
    exit_symbol: NDArray[np.int32]
    action_slots: NDArray[np.int32]
    action_state: NDArray[np.int32]
    action_start: NDArray[np.int32]
    action_push: NDArray[np.int32]


@kernel
def _symbol(
    v: Any, offset: Any, label: Any, text: Any, text_start: Any, counters: Any, slots: Any, rem_token: Any,
    rem_offset: Any, alive: Any, symbol_slots: Any, symbol_rem: Any, symbol_label: Any, admit: Any,
) -> Any:  # fmt: skip
    """Return the symbol of a label and what remains of token v from `offset` on; -1 if nothing goes on with it."""
    lo, hi = text_start[v] + offset, text_start[v + 1]
    if (
        admit == ADMIT_JSON and hi - lo > 1 and text[lo] >= 0x61
    ):  # a word that is none of null, true, false: half the vocabulary
        a, b = text[lo], text[lo + 1]
        if (a == 0x74 and b != 0x72) or (a == 0x66 and b != 0x61) or (a == 0x6E and b != 0x75):
            return np.int32(-1)
    key = np.uint64(14695981039346656037)
    for k in range(lo, hi):
        key = (key ^ np.uint64(text[k])) * np.uint64(1099511628211)
    at = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(slots.size - 1))
    while True:
        r = slots[at]
        if r < 0:
            break
        first = text_start[rem_token[r]] + rem_offset[r]
        if text_start[rem_token[r] + 1] - first == hi - lo:
            same = True
            for k in range(hi - lo):
                if text[first + k] != text[lo + k]:
                    same = False
                    break
            if same:
                break
        at = (at + 1) & (slots.size - 1)
    if r < 0:
        r = np.int32(counters[REMAINDERS])
        counters[REMAINDERS] += 1
        slots[at] = r
        rem_token[r], rem_offset[r], alive[r] = v, offset, admit != ADMIT_NONE
    if not alive[r]:
        return np.int32(-1)
    at = (np.int64(r) * 31 + np.int64(label) * 7919) & (symbol_slots.size - 1)
    while True:
        y = symbol_slots[at]
        if y < 0:
            break
        if symbol_rem[y] == r and symbol_label[y] == label:
            return y
        at = (at + 1) & (symbol_slots.size - 1)
    y = np.int32(counters[SYMBOLS])
    counters[SYMBOLS] += 1
    symbol_slots[at] = y
    symbol_rem[y], symbol_label[y] = r, label
    return y


@kernel(inline="always")
def _is_full(counters: Any, slots: Any, symbol_slots: Any) -> Any:
    """Whether another remainder or symbol would make looking for one slow."""
    return 2 * counters[REMAINDERS] + 8 > slots.size or 2 * counters[SYMBOLS] + 8 > symbol_slots.size


@kernel
def _action(
    stack: Any, h: Any, state: Any, counters: Any, slots: Any, action_state: Any, action_start: Any, action_push: Any
) -> Any:
    """Return the code of an action."""
    key = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15)
    for k in range(h):
        key = (key ^ np.uint64(stack[k])) * np.uint64(0xBF58476D1CE4E5B9)
        key ^= key >> np.uint64(31)
    at = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(slots.size - 1))
    while True:
        a = slots[at]
        if a < 0:
            break
        if action_state[a] == state and action_start[a + 1] - action_start[a] == h:
            same = True
            for k in range(h):
                if action_push[action_start[a] + k] != stack[k]:
                    same = False
                    break
            if same:
                return np.int32(ACTION + a)
        at = (at + 1) & (slots.size - 1)
    a = np.int32(counters[ACTIONS])
    counters[ACTIONS] += 1
    slots[at] = a
    action_state[a] = state
    for k in range(h):
        action_push[action_start[a] + k] = stack[k]
    action_start[a + 1] = action_start[a] + h
    return np.int32(ACTION + a)


@kernel
def loops_of(rows: Any, byte_group: Any, unclean: int) -> Any:
    """Return the groups of characters that lead from each state back to it (N,), as bits; see `BYTE_GROUP`."""
    out = np.zeros(rows.shape[0], np.uint64)
    one = np.uint64(1)
    for s in range(rows.shape[0]):
        others = one << np.uint64(unclean)
        for b in range(0xF5):
            group = one << np.uint64(byte_group[b])
            if others & group:
                continue
            here = rows[s, b]
            low, high = BEHIND[b, 0], BEHIND[b, 1]
            for _ in range(BEHIND[b, 2]):
                if here < 0:
                    break
                after = rows[here, low]
                for c in range(low + 1, high + 1):
                    if rows[here, c] != after:
                        after = np.int32(DEAD)
                        break
                here = after
                low, high = 0x80, 0xBF
            if here != s:
                others |= group
        out[s] = ~others
    return out


@kernel
def tokens_of(
    byte: Any, content: Any, skip: Any, token_start: Any, token: Any, byte_group: Any, groups: Any
) -> Any:  # fmt: skip
    """Return the tokens in parts of a trie where all characters are of some groups, behind none that are not."""
    out = np.empty(token.size, np.int32)
    count, i = 0, np.int64(0)
    while i < skip.size:
        if content[i] & ~groups == 0:  # with all that is below
            for x in range(token_start[i], token_start[skip[i]]):
                out[count] = token[x]
                count += 1
            i = np.int64(skip[i])
        elif _is_of(byte[i], byte_group, groups):
            i += 1
        else:
            i = np.int64(skip[i])
    return out[:count]


@kernel
def mark_tokens(token: Any, code: Any, words: Any, codes: int) -> Any:
    """Set the bits of tokens (n,) in words, and return how many have each code, (codes,)."""
    count = np.zeros(codes, np.int64)
    for k in range(token.size):
        words[token[k] >> 5] |= np.uint32(1) << np.uint32(token[k] & 31)
        count[code[k]] += 1
    return count


@kernel
def ranked(token: Any, code: Any, targets: Any, codes: int) -> Any:
    """Return the tokens whose code is not the first of some targets, and the place of their codes among these."""
    rank_of = np.empty(codes, np.int32)
    for rank in range(targets.size):
        rank_of[targets[rank]] = rank
    out, rank_out = np.empty(token.size, token.dtype), np.empty(token.size, np.int32)
    n = 0
    for k in range(token.size):
        out[n], rank_out[n] = token[k], rank_of[code[k]]
        n += rank_of[code[k]] > 0
    return out[:n].copy(), rank_out[:n].copy()


@kernel(inline="always")
def _is_of(byte: Any, byte_group: Any, groups: Any) -> Any:
    """Whether a byte is of a character of some groups, as far as it says: bytes behind the first say nothing."""
    return (0x80 <= byte < 0xC0) or groups >> np.uint64(byte_group[byte]) & np.uint64(1) != 0


@kernel
def walk_rows(
    rows: Any, calls: Any, site_start: Any, site_states: Any, twin_state: Any, twin_site: Any, order: Any, first: int,
    byte: Any, skip: Any, depth: Any, token_start: Any, token: Any, root_start: Any, text: Any, text_start: Any,
    stack: Any, admit: int, content: Any, byte_group: Any, loops: Any,
    counters: Any, edge_start: Any, edge_token: Any, edge_code: Any, exit_start: Any, exit_token: Any,
    exit_symbol: Any, action_slots: Any, action_state: Any, action_start: Any, action_push: Any,
    slots: Any, rem_token: Any, rem_offset: Any, alive: Any, symbol_slots: Any, symbol_rem: Any, symbol_label: Any,
) -> int:  # fmt: skip
    """Walk the states order[first:], appending a row for each.

    Returns how many are done when a pool may overflow, or minus one less when there is no room for more symbols.

    twin_state, twin_site: (N,) of each state, -1 for none; without a site the twin is in the same frame. content: of
    the trie. loops: (N,) groups of characters that lead back to each state: tokens of these alone are left out.
    stack: (longest + 2, longest + 2) scratch.
    """
    most = token.size  # entries that one row can have
    levels = stack.shape[0]
    state = np.empty(levels, np.int32)
    height = np.zeros(levels, np.int32)
    twin = np.full(levels, -1, np.int32)
    keys = np.empty(64, np.int64)
    marked, value_of = np.empty(0, np.uint8), np.empty(0, np.int32)  # by token
    free = np.zeros(levels, np.bool_)
    for number in range(first, order.size):
        s = order[number]
        if (
            counters[EDGES] + most > edge_token.size
            or counters[EXITS] + most > exit_token.size
            or 2 * (counters[ACTIONS] + 64) > action_slots.size
            or action_start[counters[ACTIONS]] + levels > action_push.size
        ):
            return number
        edge_start[number], exit_start[number] = counters[EDGES], counters[EXITS]
        edges, exits = counters[EDGES], counters[EXITS]
        base, base_site = twin_state[s], twin_site[s]
        after_base = site_states[site_start[base_site]] if base_site >= 0 else -1
        state[0], height[0], twin[0] = s, 0, base
        others = ~loops[s]
        free[0] = loops[s] != 0  # by depth: whether all characters so far lead back
        for b in range(256):
            i, last = root_start[b], root_start[b + 1]
            if i == last or (rows[s, b] == DEAD and (base < 0 or rows[base, b] == DEAD)):
                continue
            while i < last:
                d = depth[i] - 1
                c = byte[i]
                other = twin[d]
                if other >= 0:
                    other = rows[other, c]
                    if other <= RETURN:
                        other = _LEFT
                here, h = state[d], height[d]
                if free[d]:
                    if content[i] & others == 0:
                        i = skip[i]
                        continue
                    free[d + 1] = _is_of(c, byte_group, loops[s])
                else:
                    free[d + 1] = False
                code = rows[here, c]
                copied = False
                left = False
                while code <= KEEP and code > CALL:  # the fragment ended before this byte
                    if h == 0:
                        left = True
                        break
                    if not copied:
                        for k in range(h):
                            stack[d + 1, k] = stack[d, k]
                        copied = True
                    h -= 1
                    site = stack[d + 1, h]
                    label = KEEP - code
                    here = np.int32(-1)
                    if site_start[site] + label < site_start[site + 1]:
                        here = site_states[site_start[site] + label]
                    code = rows[here, c] if here >= 0 else np.int32(DEAD)
                if not left and code <= RETURN and code > KEEP and h == 0:
                    left = True
                if left and code == RETURN and base_site < 0 and twin[d] >= 0 and other == _LEFT:
                    i = skip[i]  # both end here, in one frame: these are the twin's exits
                    continue
                if left:
                    if code > KEEP:
                        label, offset = RETURN - code, d + 1
                    else:
                        label, offset = KEEP - code, d
                    for x in range(token_start[i], token_start[skip[i]]):
                        v = token[x]
                        if _is_full(counters, slots, symbol_slots):
                            return -1 - number
                        y = _symbol(
                            v, offset, label, text, text_start, counters, slots, rem_token, rem_offset, alive,
                            symbol_slots, symbol_rem, symbol_label, admit,
                        )  # fmt: skip
                        if y >= 0:
                            exit_token[exits], exit_symbol[exits] = v, y
                            exits += 1
                        elif other != DEAD:
                            edge_token[edges], edge_code[edges] = v, _KILL
                            edges += 1
                    i = skip[i]
                    continue
                if code == DEAD:
                    if other != DEAD:  # the twin might allow what is below, by an edge or by an exit
                        for x in range(token_start[i], token_start[skip[i]]):
                            edge_token[edges], edge_code[edges] = token[x], _KILL
                            edges += 1
                    i = skip[i]
                    continue
                if not copied:
                    for k in range(h):
                        stack[d + 1, k] = stack[d, k]
                if code <= CALL:
                    call = CALL - code
                    stack[d + 1, h] = calls[call, 0]
                    h += 1
                    code = calls[call, 1]
                elif code <= RETURN:
                    h -= 1
                    site = stack[d + 1, h]
                    label = RETURN - code
                    code = np.int32(-1)
                    if site_start[site] + label < site_start[site + 1]:
                        code = site_states[site_start[site] + label]
                    if code < 0:
                        if other != DEAD:
                            for x in range(token_start[i], token_start[skip[i]]):
                                edge_token[edges], edge_code[edges] = token[x], _KILL
                                edges += 1
                        i = skip[i]
                        continue
                if other != DEAD and (
                    (other == code and h == 1 and stack[d + 1, 0] == base_site)
                    or (other == code and h == 0 and base_site < 0)
                    or (other == _LEFT and twin[d] >= 0 and h == 0 and code == after_base)  # by this very byte
                ):
                    i = skip[i]  # from here on exactly what the twin's row, or its exits to this site, say
                    continue
                state[d + 1], height[d + 1], twin[d + 1] = code, h, other
                below = np.int64(i + 1)
                if other == DEAD and content[i] & ~loops[code] == 0:  # all that is below leads back here
                    below = np.int64(skip[i])
                x, stop = token_start[i], token_start[below]
                if x < stop:
                    target = code
                    if h:
                        if (
                            2 * (counters[ACTIONS] + 64) > action_slots.size
                            or action_start[counters[ACTIONS]] + levels > action_push.size
                        ):
                            return number  # what is known of this row is found again
                        target = _action(
                            stack[d + 1], h, code, counters, action_slots, action_state, action_start, action_push
                        )
                    while x < stop:
                        edge_token[edges], edge_code[edges] = token[x], target
                        edges += 1
                        x += 1
                i = below
        for pool in range(2):  # by token
            if pool == 0:
                lo, hi, tokens, values = counters[EDGES], edges, edge_token, edge_code
            else:
                lo, hi, tokens, values = counters[EXITS], exits, exit_token, exit_symbol
            n = hi - lo
            if n > _MANY:
                if not marked.size:
                    marked, value_of = np.zeros(text_start.size, np.uint8), np.empty(text_start.size, np.int32)
                for k in range(lo, hi):
                    marked[tokens[k]], value_of[tokens[k]] = 1, values[k]
                k, v = lo, 0
                while k < hi:  # each token once, with nothing to guess
                    tokens[k], values[k] = v, value_of[v]
                    k += marked[v]
                    v += 1
                marked[:v] = 0
            elif n > 48:
                if n > keys.size:
                    keys = np.empty(2 * n, np.int64)
                for k in range(n):
                    keys[k] = (np.int64(tokens[lo + k]) << 32) | (np.int64(values[lo + k]) & 0xFFFFFFFF)
                part = keys[:n]
                part.sort()
                for k in range(n):
                    tokens[lo + k] = part[k] >> 32
                    values[lo + k] = np.int32(part[k] & 0xFFFFFFFF)
            else:
                for k in range(lo + 1, hi):
                    v, value = tokens[k], values[k]
                    x = k - 1
                    while x >= lo and tokens[x] > v:
                        tokens[x + 1], values[x + 1] = tokens[x], values[x]
                        x -= 1
                    tokens[x + 1], values[x + 1] = v, value
        counters[EDGES], counters[EXITS] = edges, exits
        edge_start[number + 1], exit_start[number + 1] = edges, exits
    return int(order.size)


@kernel
def resolve_sites(
    rows: Any, calls: Any, site_start: Any, site_states: Any, first_site: int, known: int, text: Any, text_start: Any,
    stack: Any, admit: int, progress: Any,
    counters: Any, action_slots: Any, action_state: Any, action_start: Any, action_push: Any,
    slots: Any, rem_token: Any, rem_offset: Any, alive: Any, symbol_slots: Any, symbol_rem: Any, symbol_label: Any,
    out_site: Any, out_symbol: Any, out_target: Any,
) -> int:  # fmt: skip
    """Follow each symbol from each site, those aside that are known: sites below first_site and symbols below known.

    Writes (site, symbol, target) triples, by site, then symbol, of those that lead somewhere; a target is a state, an
    action, or -1 - symbol. Symbols that an end leaves behind are made, and followed too. Returns the number of
    triples, -1 if there is no room for them, -2 after much work, to be called again.

    progress: (5,) how far it came, zeros at first.
    """
    sites = site_start.size - 1
    before, first = progress[0], max(progress[1], np.int64(known))  # symbols all sites, and first ones, were asked for
    after, begin, count = progress[2], progress[3], progress[4]
    local = stack[0]
    work = np.int64(0)
    while True:
        if after == 0:
            after = counters[SYMBOLS]
        for k in range(begin, sites):
            progress[0], progress[1], progress[2], progress[3], progress[4] = before, first, after, k, count
            if work > _AT_ONCE:
                return -2
            low = before
            if k < first_site:
                low = max(before, first)
            work += max(after - low, 0) + 1
            for y in range(low, after):
                label = symbol_label[y]
                if site_start[k] + label >= site_start[k + 1]:
                    continue
                here = site_states[site_start[k] + label]
                if here < 0:
                    continue
                v, h = rem_token[symbol_rem[y]], 0
                at, stop = text_start[v] + rem_offset[symbol_rem[y]], text_start[v + 1]
                target = np.int64(0)
                ended = False
                while at < stop:
                    code = rows[here, text[at]]
                    if code >= 0:
                        here = code
                        at += 1
                        continue
                    if code == DEAD:
                        ended, target = True, np.int64(DEAD)
                        break
                    if code <= CALL:
                        local[h] = calls[CALL - code, 0]
                        h += 1
                        here = calls[CALL - code, 1]
                        at += 1
                        continue
                    if code > KEEP:
                        end = RETURN - code
                        at += 1
                    else:
                        end = KEEP - code
                    if h:
                        h -= 1
                        site = local[h]
                        here = np.int32(-1)
                        if site_start[site] + end < site_start[site + 1]:
                            here = site_states[site_start[site] + end]
                        if here < 0:
                            ended, target = True, np.int64(DEAD)
                            break
                        continue
                    if _is_full(counters, slots, symbol_slots):
                        return -1
                    further = _symbol(
                        v, at - text_start[v], end, text, text_start, counters, slots, rem_token, rem_offset, alive,
                        symbol_slots, symbol_rem, symbol_label, admit,
                    )  # fmt: skip
                    ended = True
                    target = np.int64(DEAD) if further < 0 else np.int64(-2 - further)  # one less: -1 is dead here
                    break
                if not ended:
                    target = np.int64(here)
                    if h:
                        if (
                            2 * (counters[ACTIONS] + 64) > action_slots.size
                            or action_start[counters[ACTIONS]] + h > action_push.size
                        ):
                            return -1
                        target = np.int64(
                            _action(local, h, here, counters, action_slots, action_state, action_start, action_push)
                        )
                if target != DEAD:
                    if count == out_site.size:
                        return -1
                    out_site[count], out_symbol[count] = k, y
                    out_target[count] = target + 1 if target < 0 else target
                    count += 1
        if counters[SYMBOLS] == after:
            return int(count)
        before = after
        first = max(first, after)
        after = begin = np.int64(0)


@kernel
def walk_exits(
    class_of: Any, codes: Any, byte: Any, skip: Any, depth: Any, token_start: Any, token: Any, root_start: Any,
    closes: Any, text: Any, text_start: Any, counters: Any, slots: Any, rem_token: Any, rem_offset: Any, alive: Any,
    symbol_slots: Any, symbol_rem: Any, symbol_label: Any, row_exit: Any, list_start: Any, list_hash: Any,
    out_token: Any, out_symbol: Any, first: int, lists: int,
) -> Any:  # fmt: skip
    """Find the exits of a string fragment's states from `first` on, in lists that equal states share.

    closes: (M,) whether a closing quote lies at or below each trie node. Returns (states done, lists); states done as
    minus one less when there is no room for more symbols.
    """
    levels = 2
    for i in range(depth.size):
        if depth[i] + 2 > levels:
            levels = depth[i] + 2
    state = np.empty(levels, np.int32)
    keys = np.empty(64, np.int64)
    for s in range(first, len(codes)):
        begin = list_start[lists]
        if begin + token.size > out_token.size or lists + 2 > list_start.size:
            return s, lists
        count = begin
        state[0] = s
        for b in range(256):
            i, last = root_start[b], root_start[b + 1]
            if i == last or codes[s, class_of[b]] == DEAD:
                continue
            while i < last:
                if not closes[i]:
                    i = skip[i]
                    continue
                d = depth[i] - 1
                code = codes[state[d], class_of[byte[i]]]
                if code >= 0:
                    state[d + 1] = code
                    i += 1
                    continue
                if code <= RETURN:
                    for x in range(token_start[i], token_start[skip[i]]):
                        if _is_full(counters, slots, symbol_slots):
                            return -1 - s, lists
                        y = _symbol(
                            token[x], d + 1, RETURN - code, text, text_start, counters, slots, rem_token, rem_offset,
                            alive, symbol_slots, symbol_rem, symbol_label, ADMIT_NONE,
                        )  # fmt: skip
                        if y >= 0:
                            out_token[count], out_symbol[count] = token[x], y
                            count += 1
                i = skip[i]
        n = count - begin
        row_exit[s] = -1
        if n == 0:
            continue
        if n > keys.size:
            keys = np.empty(2 * n, np.int64)
        for k in range(n):
            keys[k] = (np.int64(out_token[begin + k]) << 32) | np.int64(out_symbol[begin + k])
        part = keys[:n]
        part.sort()
        key = np.uint64(n)
        for k in range(n):
            out_token[begin + k] = part[k] >> 32
            out_symbol[begin + k] = np.int32(part[k] & 0xFFFFFFFF)
            key = (key ^ np.uint64(part[k])) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
        for known in range(lists):
            if list_hash[known] == key and list_start[known + 1] - list_start[known] == n:
                same = True
                for k in range(n):
                    at = list_start[known] + k
                    if out_token[at] != out_token[begin + k] or out_symbol[at] != out_symbol[begin + k]:
                        same = False
                        break
                if same:
                    row_exit[s] = known
                    break
        if row_exit[s] < 0:
            row_exit[s], list_hash[lists] = lists, key
            lists += 1
            list_start[lists] = count
    return len(codes), lists


@kernel
def place_symbols(
    remainders: int, used: int, text: Any, text_start: Any, slots: Any, rem_token: Any, rem_offset: Any,
    symbol_slots: Any, symbol_rem: Any, symbol_label: Any,
) -> None:  # fmt: skip
    """Put remainders and symbols into empty slots, as `_symbol` looks for them."""
    for r in range(remainders):
        key = np.uint64(14695981039346656037)
        for k in range(text_start[rem_token[r]] + rem_offset[r], text_start[rem_token[r] + 1]):
            key = (key ^ np.uint64(text[k])) * np.uint64(1099511628211)
        at = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(slots.size - 1))
        while slots[at] >= 0:
            at = (at + 1) & (slots.size - 1)
        slots[at] = r
    for y in range(used):
        at = (np.int64(symbol_rem[y]) * 31 + np.int64(symbol_label[y]) * 7919) & (symbol_slots.size - 1)
        while symbol_slots[at] >= 0:
            at = (at + 1) & (symbol_slots.size - 1)
        symbol_slots[at] = y


@kernel
def place_actions(actions: int, slots: Any, action_state: Any, action_start: Any, action_push: Any) -> None:
    """Put actions into empty slots, as `_action` looks for them."""
    for a in range(actions):
        key = np.uint64(action_state[a]) * np.uint64(0x9E3779B97F4A7C15)
        for k in range(action_start[a], action_start[a + 1]):
            key = (key ^ np.uint64(action_push[k])) * np.uint64(0xBF58476D1CE4E5B9)
            key ^= key >> np.uint64(31)
        at = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(slots.size - 1))
        while slots[at] >= 0:
            at = (at + 1) & (slots.size - 1)
        slots[at] = a
