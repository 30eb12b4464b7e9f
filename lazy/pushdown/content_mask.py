"""The base of a state of a string by its content: which tokens the string allows from there, and which end it.

The base holds for every schema with the same content, as it says nothing about what follows the string. `write_content`
finds it in one of three ways. A state that reads any characters, as do all states after it, differs from others only in
a few tokens, which `_read_each` reads. Otherwise it starts from the mask of what the state reads freely, and
`_walk_within` walks the trie for the rest. Where that is long, `_clear_in_order` first reads all tokens in one sweep.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...automata.state_ranges import DEAD, PHASES, RETURN
from ...kernels.arrays import BoolArray, ByteArray, Int, Int32Array, Int64Array, Uint32Array, Uint64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from ...vocabulary.characters import BYTE_GROUP, UNCLEAN
from ...vocabulary.token_trie import NODE_CHILD, NODE_REACH, NODE_STOP, NODE_TOKENS, OF_NODE
from .content_strings import content_at, content_code, content_of, leads_to_end
from .free_contents import free_of_content
from .header import (
    ALL_BYTES,
    AT_ANY_STRING,
    AT_CHARACTERS,
    AT_FREE_BYTES,
    AT_FREE_GROUPS,
    AT_FREE_SETS,
    AT_LEVELS,
    AT_OTHER_GROUPS,
    AT_PREORDER_BYTE,
    AT_PREORDER_DEPTH,
    AT_PREORDER_GROUPS,
    AT_PREORDER_SKIP,
    AT_PREORDER_TOKEN,
    AT_ROWS,
    AT_TOKEN,
    AT_WORDS,
    DONE,
    ESCAPED,
    FOUND_HERE,
    HEADER,
    IN_ORDER,
    MOST_FREE_SETS,
    NEEDS_BASE,
    OF_BASE,
    OF_CACHE,
    PLAIN,
    READS_LITTLE,
    token_trie,
)
from .mask_words import MaskWords, copy_words, difference, differing_words, list_exits
from .step import code_of
from .token_walk import FreeTokens, OpenStack, Template, walk_tokens
from .utf8 import continues

_LARGE_SUBTREE = 4096
"""Tokens below a node from which on the walk looks anew for what the state there reads freely."""
_SUBTREE = 256
"""The same, where what another state reads freely is known."""
_MOST_LOOKS = 16
"""Looks of one walk."""
_MOST_NODES = 3 << 14
"""Nodes after which `_walk_within` gives up, and all tokens are read in order."""
_MOST_TRANSITIONS = 1 << 14
"""Transitions of a content up to which it does so: reading in order copies them."""


class _Path(NamedTuple):
    """What `_walk_within` keeps for each level of the trie."""

    at: Int64Array  # the next node
    stop: Int64Array  # the node after the last
    state: Int64Array  # of the content
    rest: Int64Array  # characters that may still begin
    phase: Int64Array  # 0, or how far within an escape
    is_free: BoolArray  # whether all so far was read freely
    groups: Uint64Array  # what is read freely from here on, as far as it is known
    reach: Int64Array  # and down to which level


@kernel
def _walk_within(header: Int64Array, start: Int, out: Uint32Array, free_tokens: FreeTokens, exits: Int32Array) -> bool:
    """Set the bits of the tokens that a state reads within its string, and list those that end it.

    The state is outside escapes. The walk goes as `token_walk` says, and `walk_tokens` goes on where any characters may
    come. free_tokens: see `token_walk.FreeTokens`. Returns False, with no exits listed, if the walk would be long and
    `_clear_in_order` can do it.
    """
    byte, node, _, token = token_trie(header)
    others, length = free_tokens
    characters = array_at(header[AT_CHARACTERS], header[AT_CHARACTERS + 1], np.uint64)
    sets = array_at(header[AT_FREE_SETS], 2 * MOST_FREE_SETS, np.int64)
    record = content_at(header, start)
    first, class_of, transition, label, needed, free, q, left, most, free_set = content_of(record, start)
    width, levels, one = transition.size // label.size, header[AT_LEVELS], np.uint32(1)
    any_length = length < 0 or length >= ALL_BYTES
    words, none = MaskWords(out, out[:0], out[:0]), Template(np.int64(-1), np.int64(-1))
    stack = OpenStack(np.empty(0, np.int32), np.int64(0), np.int64(-1))
    at, stop, state, rest, phase, is_free, groups, reach = _Path(
        np.empty(levels, np.int64), np.empty(levels, np.int64), np.empty(levels, np.int64), np.empty(levels, np.int64),
        np.empty(levels, np.int64), np.empty(levels, np.bool_), np.empty(levels, np.uint64), np.empty(levels, np.int64),
    )  # fmt: skip
    d = np.int64(0)
    at[0], stop[0], state[0], phase[0] = 0, node[NODE_CHILD], q, 0
    rest[0] = left + 1
    is_free[0], groups[0], reach[0] = True, np.uint64(0), 0
    looks = work = np.int64(0)
    most_work = _MOST_NODES if length != IN_ORDER and transition.size <= _MOST_TRANSITIONS else 1 << 62
    while d >= 0:
        i, last = at[d], stop[d]
        while i < last:
            n, have = OF_NODE * i, characters[np.uint64(i)]
            if not (is_free[d] and have & others == 0 and (any_length or node[n + NODE_REACH] <= length)):
                if have & ~groups[d] or node[n + NODE_REACH] > reach[d]:
                    break
                for x in range(node[n + NODE_TOKENS], node[n + NODE_TOKENS + 2]):
                    out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
            i += 1
        if i == last:
            d -= 1
            continue
        work += 1
        if work > most_work:
            exits[0] = 0
            return False
        at[d] = i + 1
        b, n, q = np.int64(byte[i]), OF_NODE * i, state[d]
        begun, behind = node[n + NODE_TOKENS], node[n + NODE_TOKENS + 2]  # the tokens at and below the node
        step: Int = np.int64(0)
        if phase[d] or b == 0x5C:
            here = first + PHASES * (q + (most - rest[d] if most >= 0 else 0) * label.size) + phase[d]
            code = content_code(header, record, here, b)
            if code == DEAD:
                continue
            to, after = free, rest[d]
            if code != header[AT_ANY_STRING]:
                to, step = (code - first) // PHASES, (code - first) % PHASES
                if most >= 0:
                    after = most - to // label.size
                    to %= label.size
        else:
            if b < 0x20:
                continue
            if b == 0x22:
                if label[q] >= 0:
                    list_exits(exits, token, begun, behind, label[q])
                continue
            to, after = np.int64(transition[q * width + class_of[b]]), rest[d] - (b & 0xC0 != 0x80)
            if to < 0 or (to != free and not leads_to_end(needed, after, to)):
                continue
        for x in range(begun, node[n + NODE_TOKENS + 1]):
            out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
        low, high = np.int64(node[n + NODE_CHILD]), np.int64(node[n + NODE_STOP])
        if low == high:
            continue
        is_free[d + 1] = is_free[d] and continues(b, d, ~others)
        if to == free:
            free_below = FreeTokens(others, np.int64(length if is_free[d + 1] else 0))
            walk_tokens(header, np.int64(0), header[AT_ANY_STRING], stack, none, free_below, words, exits, low, high)
            continue
        groups[d + 1], reach[d + 1] = np.uint64(0), 0
        if step:  # within an escape
            reach[d + 1] = 0
        elif behind - begun >= _LARGE_SUBTREE or (
            behind - begun >= _SUBTREE and looks < _MOST_LOOKS
            and free_set.size and free_set[to] >= 0 and not free_set[to] & FOUND_HERE
        ):  # fmt: skip
            looks += 1
            more = (most - after) * label.size if most >= 0 else 0
            some, ahead, _, _ = free_of_content(header, first + PHASES * (to + more))
            groups[d + 1], reach[d + 1] = some, d + 1 + abs(np.int64(ahead))  # a character has at least one byte
        elif free_set.size and free_set[to] >= 0:
            groups[d + 1], reach[d + 1] = np.uint64(sets[2 * (free_set[to] & MOST_FREE_SETS - 1)]), ALL_BYTES
        elif reach[d] < ALL_BYTES and continues(b, 1, groups[d]):  # within a character
            groups[d + 1], reach[d + 1] = groups[d], reach[d]
        d += 1
        at[d], stop[d], state[d], rest[d], phase[d] = low, high, to, after, step
    return True


@kernel
def _clear_in_order(header: Int64Array, start: Int, out: Uint32Array) -> None:
    """Clear the bits of the tokens of plain characters that a state does not read; all of these are set.

    The state is outside escapes. One sweep over the trie in depth-first order takes a fifth of the time for each node
    that `_walk_within` takes.
    """
    # unsigned, as numba checks signed indices for negative ones
    one, nodes = np.uint64(1), np.uint64(header[AT_PREORDER_BYTE + 1])
    byte = array_at(header[AT_PREORDER_BYTE], nodes, np.uint8)
    depth = array_at(header[AT_PREORDER_DEPTH], nodes, np.uint16)
    skip = array_at(header[AT_PREORDER_SKIP], nodes, np.uint32)
    groups = array_at(header[AT_PREORDER_GROUPS], nodes, np.uint64)
    begun = array_at(header[AT_PREORDER_TOKEN], nodes + one, np.uint32)
    token = array_at(header[AT_TOKEN], header[AT_TOKEN + 1], np.uint32)
    sets = array_at(header[AT_FREE_SETS], 2 * MOST_FREE_SETS, np.int64)
    _, class_of, transition, label, needed, free, q, left, _, free_set = content_of(content_at(header, start), start)
    states, classes = label.size, transition.size // label.size
    width, over, dead = np.uint64(classes + 3), np.uint64(1 << 62), np.uint64(1 << 63)
    # For each state: where each class leads, as a place in this array, `over` or `dead`; the same for a byte that is
    # not plain; the groups that the state does not read freely; the characters that must follow
    step = np.empty(np.uint64(states) * width, np.uint64)
    whole, at_other, at_keep, at_needed = PLAIN | one << np.uint64(UNCLEAN), classes, classes + 1, classes + 2
    for x in range(states):
        row = step[np.uint64(x) * width : np.uint64(x + 1) * width]
        for c in range(classes):
            target = np.int64(transition[x * classes + c])
            if target < 0 or (target != free and needed.size and needed[target] < 0):
                row[c] = dead
            else:
                row[c] = over if target == free else np.uint64(target) * width
        row[at_other], row[at_keep], row[at_needed] = over, whole, 0
        if free_set.size and free_set[x] >= 0:
            row[at_keep] = whole & ~np.uint64(sets[2 * (free_set[x] & MOST_FREE_SETS - 1)])
        if needed.size and needed[x] >= 0:
            row[at_needed] = needed[x]
    kind = np.empty(256, np.uint64)  # the class of each byte that is plain or within a character
    for b in range(256):
        name = np.uint64(BYTE_GROUP[b])
        inside = 0x80 <= b < 0xC0
        kind[b] = class_of[b] if inside or (name != UNCLEAN and (PLAIN >> name) & one) else at_other
    state, rest = np.empty(header[AT_LEVELS] + 1, np.uint64), np.empty(header[AT_LEVELS] + 1, np.int64)
    state[0], rest[0] = np.uint64(q) * width, left + 1
    counts, i = needed.size > 0, np.uint64(0)
    while i < nodes:
        d, b = np.uint64(depth[i]), byte[i]
        to = step[state[d - one] + kind[b]]
        if to < over and counts:
            rest[d] = rest[d - one] - (b & 0xC0 != 0x80)
            if np.int64(step[to + np.uint64(at_needed)]) > rest[d]:
                to = dead
        if to < over:
            state[d] = to
            i = np.uint64(i + one if groups[i] & step[to + np.uint64(at_keep)] else skip[i])
            continue
        if to == dead:
            for x in range(np.uint64(begun[i]), np.uint64(begun[skip[i]])):
                out[np.uint64(token[x] >> 5)] &= ~np.uint32(one << np.uint64(token[x] & 31))
        i = np.uint64(skip[i])


@kernel
def write_content(header_at: int, node: int, base: int, cache: int, buffer: int, slab: int) -> tuple[Int, Int, Int]:
    """Write the base of a state of a string by its content, as `bases.Base` has it.

    header_at: the address of the header. base: the address of a base of what the state reads freely, with the rest in
    the header; 0 before a kernel looked. cache: the address of `StringMaskCache.at`. buffer: the address of memory for
    a mask, and for tokens that end a string. slab: where to write.

    Returns (DONE, how many numbers it wrote, in how many words the mask differs from that of the base or -1 if it is
    written whole), with 0 numbers for the base of states that read any characters; (NEEDS_BASE, 0, 0); or
    (READS_LITTLE, 0, 0).
    """
    header = array_at(header_at, HEADER, np.int64)
    symbol_at, symbols, ending, total_at, text_at, start_at, token_at, tokens = array_at(cache, OF_CACHE, np.int64)
    symbol_of = array_at(symbol_at, symbols, np.int32)
    out, nothing = array_at(buffer, header[AT_WORDS], np.uint32), np.int64(0)
    exits = array_at(buffer + 4 * header[AT_WORDS], 2 * ending + 2, np.int32)
    exits[0] = 0
    if base == 0:
        groups, length, others, total = free_of_content(header, np.int64(node))
        if not length:
            return np.int64(READS_LITTLE), nothing, nothing
        if not (total and tokens):
            header[AT_FREE_GROUPS], header[AT_OTHER_GROUPS] = np.int64(groups), np.int64(others)
            header[AT_FREE_BYTES] = length
            return np.int64(NEEDS_BASE), nothing, nothing
        mask_at, out = total_at, array_at(total_at, header[AT_WORDS], np.uint32)
        token, start = array_at(token_at, tokens, np.int32), array_at(start_at, tokens + 1, np.int32)
        text = array_at(text_at, start[tokens], np.uint8)
        words = _read_each(header, np.int64(node), out, text, start, token, exits)
    else:
        mask_at = array_at(base, OF_BASE, np.int64)[0]
        free = array_at(mask_at, header[AT_WORDS], np.uint32)
        copy_words(free, out)
        free_tokens = FreeTokens(np.uint64(header[AT_OTHER_GROUPS]), header[AT_FREE_BYTES])
        if free_tokens.length == IN_ORDER:
            _clear_in_order(header, np.int64(node), out)
        if not _walk_within(header, np.int64(node), out, free_tokens, exits):
            header[AT_FREE_GROUPS], header[AT_OTHER_GROUPS] = np.int64(PLAIN), np.int64(ESCAPED)
            header[AT_FREE_BYTES] = IN_ORDER
            return np.int64(NEEDS_BASE), nothing, nothing
        words = difference(header, free, out)
    count, last = nothing, nothing  # exits whose rest may be read, and the last label
    for k in range(1, exits[0] + 1):
        count += symbol_of[exits[2 * k - 1]] >= 0
        last = max(last, np.int64(exits[2 * k]))
    if not base and not count and not words:
        return np.int64(DONE), nothing, nothing
    return np.int64(DONE), _write_base(header, slab, mask_at, out, words, exits, symbol_of, count, last), words


@kernel
def _write_base(
    header: Int64Array, slab: Int, mask_at: Int, out: Uint32Array, words: Int, exits: Int32Array,
    symbol_of: Int32Array, count: Int, last: Int,
) -> Int:  # fmt: skip
    """Write the numbers of a base, its exits, and its words into a slab; return how many numbers of 64 bits.

    mask_at: the address of the mask from which `out` differs in `words` words; where words is -1, `out` is written
    whole. exits: as `list_exits` has them, of which `count` have a symbol, and `last` is the last label.
    """
    size, own = OF_BASE + (3 * count + 1) // 2, words if words >= 0 else (out.size + 1) // 2
    exits_at, at = slab + 8 * OF_BASE, slab + 8 * size
    _by_label(exits, symbol_of, last, count, array_at(exits_at, 3 * count, np.int32))
    if words < 0:
        copy_words(out, array_at(at, header[AT_WORDS], np.uint32))
        mask_at = at
    else:
        copy_words(differing_words(header)[: 2 * words], array_at(at, 2 * words, np.uint32))
    numbers = array_at(slab, OF_BASE, np.int64)
    numbers[0], numbers[1], numbers[2], numbers[3] = mask_at, header[AT_WORDS], at, 2 * words if words > 0 else 0
    numbers[4], numbers[5], numbers[6] = exits_at, exits_at + 4 * count, exits_at
    numbers[7], numbers[8], numbers[9], numbers[10] = exits_at + 8 * count, count, 0, count if last else 0
    numbers[11] = words < 0
    return size + own


@kernel
def _read_each(
    header: Int64Array, node: Int, mask: Uint32Array, text: ByteArray, start: Int32Array, token: Int32Array,
    exits: Int32Array,
) -> Int:  # fmt: skip
    """Read tokens one by one from a state that reads any characters: those that end it or have other escapes.

    mask: of such states, with only the escapes that a character needs. text, start, token: the tokens and their bytes.
    Lists tokens that end the string, and writes words in which the mask differs into `differing_words`; returns how
    many.
    """
    rows = array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)
    differ = differing_words(header)
    first, class_of, transition, label, _, free, origin, _, _, _ = content_of(content_at(header, node), node)
    width, words, one = transition.size // label.size, np.int64(0), np.uint32(1)
    for k in range(token.size):
        q, x, stop = origin, np.int64(start[k]), np.int64(start[k + 1])
        while x < stop and text[x] != 0x22 and text[x] != 0x5C:
            q = np.int64(transition[q * width + class_of[text[x]]])
            x += 1
        if x < stop and text[x] == 0x22 and q != free:
            if label[q] >= 0:
                list_exits(exits, token, k, k + 1, label[q])
            continue
        here = first + PHASES * q if q != free else header[AT_ANY_STRING]
        while x < stop and here > 0:  # within escapes, and in any string
            here = code_of(header, rows, here, np.int64(text[x]))
            x += 1
        if here > 0:
            w, at = np.uint32(token[k] >> 5), np.int64(0)
            while at < words and differ[2 * at] != w:
                at += 1
            if at == words:
                differ[2 * at], differ[2 * at + 1] = w, mask[w]
                words += 1
            differ[2 * at + 1] |= one << np.uint32(token[k] & 31)
        elif here != DEAD:
            list_exits(exits, token, k, k + 1, RETURN - here)
    return words


@kernel
def _by_label(exits: Int32Array, symbol_of: Int32Array, last: Int, count: Int, out: Int32Array) -> None:
    """Write listed tokens that have a symbol into `out`, sorted by label: all tokens, then symbols, then labels.

    last: the last label. count: how many tokens these are.
    """
    place = np.zeros(last + 2, np.int64)  # where the tokens of each label begin
    for k in range(1, exits[0] + 1):
        place[exits[2 * k] + 1] += symbol_of[exits[2 * k - 1]] >= 0
    for y in range(last + 1):
        place[y + 1] += place[y]
    for k in range(1, exits[0] + 1):
        token, label = exits[2 * k - 1], exits[2 * k]
        if symbol_of[token] >= 0:
            at = place[label]
            out[at], out[count + at], out[2 * count + at] = token, symbol_of[token], label
            place[label] += 1
