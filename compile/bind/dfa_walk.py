"""The rows of a DFA's states, found by walking the trie of all tokens along the DFA.

`bind` says why this takes little. A row is a base and edges of its own. Targets are coded: code c leads from state s to
state (c >> 1) + (c & 1) * s, so that states that are alike up to their number have the same codes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.arrays import Int, count_bits, has_bit, place_of
from ...kernels.compiled import kernel
from ...kernels.deadline import is_late
from ...vocabulary.characters import BEHIND, BYTE_GROUP, UNCLEAN
from .arrays import KILL, TrieArrays
from .row_pools import (
    BASES,
    CLASS_ENTRIES,
    CLASS_LISTS,
    CODES,
    MASKS,
    OWN_EDGES,
    QUEUE_HEAD,
    QUEUE_TAIL,
    TARGETS,
    RowPools,
)
from .similar_states import DfaStates

_NARROW = 2048  # a walk of fewer trie nodes costs less than choosing a base for it
_CANDIDATES = 32  # of the last bases, how many are looked at for a state
_NEAR = 6  # the round whose names find a base alike


class _Scratch(NamedTuple):
    """Memory that one slice of a walk works in; N states, K tokens in the trie, D depths of it."""

    path: NDArray[np.int64]  # (D,) states on the way from the root to a node, -1 where there is none
    path_relative: NDArray[np.bool_]  # (D,) all steps so far are relative
    base_path: NDArray[np.int64]  # (D,) the same of the base's state
    base_relative: NDArray[np.bool_]  # (D,)
    weight: NDArray[np.int64]  # (C,) trie nodes below the root by class
    token: NDArray[np.int32]  # (K,) what the walk of a state has found, in the order of the trie
    code: NDArray[np.int32]  # (K,)
    code_of: NDArray[np.int32]  # (V,) the same by token, KILL where there is none
    votes: NDArray[np.int32]  # tokens by code + 2 * N
    class_of_code: NDArray[np.int32]  # by code + 2 * N, or tokens by class
    seen: NDArray[np.int32]  # by code + 2 * N: the last row that has it
    loops: NDArray[np.uint64]  # (N, 2) groups of characters that lead from a state back to it: any way, relatively
    looked: NDArray[np.bool_]  # (N,) whether `loops` is known
    compared: NDArray[np.int32]  # bases that rows can be compared with, the latest last
    by_name: NDArray[np.int32]  # (N,) the first of these by name of a near round


@kernel
def walk_states(states: DfaStates, trie: TrieArrays, rows: RowPools, vocab_size: int, own_limit: int) -> bool:
    """Walk states that tokens reach, until all are walked; return False if a pool is nearly full.

    own_limit: the most edges of its own that a row may have beside a base.
    """
    # most states are narrow, and take about 1 us. So one loop has all that these need, out of arrays unpacked here: to
    # pass groups of arrays to another kernel takes 0.3 us, as each array is counted in and out
    class_of, transition, live, relative = states.class_of, states.transition, states.live, states.relative
    names, members, named, last = states.names, states.members, states.names.shape[0] > 0, states.names.shape[0] - 1
    byte, skip, depth, content, token_start = trie.byte, trie.skip, trie.depth, trie.content, trie.token_start
    root_start, trie_token, words = trie.root_start, trie.token, rows.bases.words.shape[1]
    counters, own_token, own_code, codes = rows.counters, rows.own_token, rows.own_code, rows.codes
    queue, reached, representative = rows.states.queue, rows.states.reached, rows.states.representative
    base_of, own_of, codes_of = rows.states.base, rows.states.own, rows.states.codes
    scratch = _scratch(states, trie, vocab_size)
    path, path_relative, token, code_out = scratch.path, scratch.path_relative, scratch.token, scratch.code
    loops, looked, seen, weight = scratch.loops, scratch.looked, scratch.seen, scratch.weight
    most = _most(rows, trie_token.size, own_limit)
    usable = _comparable(states, rows, scratch)
    while counters[QUEUE_HEAD] < counters[QUEUE_TAIL]:
        if is_late() or _exceeds(counters, most):
            return False
        s = np.int64(queue[counters[QUEUE_HEAD]])
        counters[QUEUE_HEAD] += 1

        # ---- a state like one walked before has its row, and leads where that one leads, relative steps as such
        alike = np.int64(representative[names[last, s]]) if named and states.final else np.int64(-1)
        if alike >= 0:
            base_of[s], own_of[s], codes_of[s] = base_of[alike], own_of[alike], codes_of[alike]
            for x in range(codes_of[s, 0], codes_of[s, 0] + codes_of[s, 1]):
                _reach((np.int64(codes[x]) >> 1) + (codes[x] & 1) * s, counters, queue, reached)
            continue
        if named:
            representative[names[last, s]] = s

        # ---- side by side with the base that shares most of the trie with it
        base, count = np.int64(-1), np.int64(0)
        nodes = _nodes_below(s, transition, weight)
        if nodes >= _NARROW:
            base = _nearest_base(s, nodes // 2, usable, states, rows, scratch)
            if base >= 0:
                count = _walk_beside(s, np.int64(rows.bases.state[base]), own_limit, states, trie, scratch)
                if count > own_limit:
                    base, count = np.int64(-1), np.int64(0)

        # ---- or all by itself
        for first in range(256 if base < 0 else 0):
            if transition[s, class_of[first]] < 0:
                continue
            path[0], path_relative[0] = s, named
            i, stop = np.int64(root_start[first]), np.int64(root_start[first + 1])
            while i < stop:
                d = np.int64(depth[i])
                p, c = path[d - 1], class_of[byte[i]]
                t, after = np.int64(-1), np.int64(i + 1)
                if content[i] >> np.uint64(UNCLEAN) == 0:
                    if not looked[p]:
                        looked[p] = True
                        _find_loops(p, states, loops)
                    stays = loops[p, 1] if path_relative[d - 1] else loops[p, 0]
                    if content[i] & ~stays == 0:  # all tokens from here on lead to where the walk stands
                        t, after = p, np.int64(skip[i])
                        path_relative[d] = path_relative[d - 1]
                if t < 0:
                    t = np.int64(transition[p, c])
                    if t < 0:
                        i = np.int64(skip[i])
                        continue
                    path_relative[d] = named and path_relative[d - 1] and relative[p, c]
                path[d] = t
                if live[t]:
                    code = 2 * (t - s) + 1 if path_relative[d] else 2 * t
                    for k in range(token_start[i], token_start[after]):
                        token[count], code_out[count] = trie_token[k], code
                        count += 1
                i = after

        # ---- its own edges, or a base of its own
        codes_of[s, 0] = counters[CODES]
        if base < 0 and (count > own_limit or (members[s] > 1 and members[s] * count > words)):
            usable = _add_base(s, count, usable, states, rows, scratch)
            continue
        base_of[s], own_of[s, 0], own_of[s, 1] = base, counters[OWN_EDGES], count
        _sort_into(own_token, own_code, counters[OWN_EDGES], token, code_out, count)
        counters[OWN_EDGES] += count
        for k in range(count):
            if code_out[k] != KILL:
                _note(np.int64(code_out[k]), s, seen, codes, counters, queue, reached)
        if base >= 0:
            _note_rest(s, base, rows, scratch)
        codes_of[s, 1] = counters[CODES] - codes_of[s, 0]
    return True


@kernel
def _scratch(states: DfaStates, trie: TrieArrays, vocab_size: int) -> _Scratch:
    count, classes = states.transition.shape
    depths: Int = 2
    weight = np.zeros(classes, np.int64)
    for b in range(256):
        first, stop = trie.root_start[b], trie.root_start[b + 1]
        if first < stop:
            depths = max(depths, np.int64(trie.height[first]) + 2)
            weight[states.class_of[b]] += stop - first
    tokens = trie.token.size
    return _Scratch(
        np.empty(depths, np.int64),
        np.zeros(depths, np.bool_),
        np.empty(depths, np.int64),
        np.zeros(depths, np.bool_),
        weight,
        np.empty(tokens, np.int32),
        np.empty(tokens, np.int32),
        np.full(vocab_size, KILL, np.int32),
        np.zeros(4 * count + 4, np.int32),
        np.zeros(max(4 * count + 4, tokens + 1), np.int32),
        np.full(4 * count + 4, -1, np.int32),
        np.zeros((count, 2), np.uint64),
        np.zeros(count, np.bool_),
        np.empty(count, np.int32),
        np.full(count, -1, np.int32),
    )


@kernel
def _comparable(states: DfaStates, rows: RowPools, scratch: _Scratch) -> int:
    """Note which bases rows can be compared with, and return their number."""
    usable = 0
    for b in range(rows.counters[BASES]):
        if rows.bases.state[b] >= 0:
            usable = _compare_with(b, usable, states, rows, scratch)
    return usable


@kernel
def _compare_with(b: int, usable: int, states: DfaStates, rows: RowPools, scratch: _Scratch) -> int:
    """Note that rows can be compared with base b, and return the number of such bases."""
    scratch.compared[usable] = b
    if states.names.shape[0] > 0:
        name = states.names[min(states.names.shape[0] - 1, _NEAR), rows.bases.state[b]]
        if scratch.by_name[name] < 0:
            scratch.by_name[name] = b
    return usable + 1


@kernel
def _most(rows: RowPools, tokens: int, own_limit: int) -> NDArray[np.int64]:
    """Return the counters (9,) up to which one more row of any kind fits into the pools."""
    most = np.zeros(9, np.int64)
    most[QUEUE_HEAD] = most[QUEUE_TAIL] = rows.states.queue.size
    most[OWN_EDGES] = rows.own_token.size - own_limit
    most[CODES] = rows.codes.size - tokens
    most[BASES] = rows.bases.first.size - 2
    most[TARGETS] = rows.bases.target.size - tokens
    most[MASKS] = rows.bases.words.shape[0] - 1
    most[CLASS_LISTS] = rows.class_lists.first.size - 2
    most[CLASS_ENTRIES] = rows.class_lists.token.size - tokens
    return most


@kernel(inline="always")
def _exceeds(counters: NDArray[np.int64], most: NDArray[np.int64]) -> bool:
    found = False
    for k in range(counters.size):
        found |= counters[k] > most[k]
    return found


@kernel(inline="always")
def _nodes_below(s: Int, transition: NDArray[np.int32], weight: NDArray[np.int64]) -> np.int64:
    """Return how many trie nodes lie below the first bytes that state s reads."""
    nodes = np.int64(0)
    for c in range(transition.shape[1]):
        if transition[s, c] >= 0:
            nodes += weight[c]
    return nodes


@kernel
def _nearest_base(s: Int, least: Int, usable: int, states: DfaStates, rows: RowPools, scratch: _Scratch) -> np.int64:
    """Return the base that shares most of the trie with state s, -1 if none shares more than `least` nodes of it."""
    transition, relative, names, weight = states.transition, states.relative, states.names, scratch.weight
    named, classes = names.shape[0] > 0, transition.shape[1]
    base, best = np.int64(-1), np.int64(least)
    h = min(names.shape[0] - 1, _NEAR)
    like = np.int64(scratch.by_name[names[h, s]]) if named else np.int64(-1)
    for k in range(-1, min(_CANDIDATES, usable)):
        near = np.int64(scratch.compared[usable - 1 - k]) if k >= 0 else like
        if near < 0:
            continue
        r = np.int64(rows.bases.state[near])
        score = 0
        for c in range(classes):
            t, u = np.int64(transition[s, c]), np.int64(transition[r, c])
            if u < 0:
                continue
            if t < 0:
                score -= weight[c]
            elif named and relative[r, c]:
                if relative[s, c] and t == u + s - r and names[h, t] == names[h, u]:
                    score += weight[c]
            elif t == u and not (named and relative[s, c]):
                score += weight[c]
        if score > best:
            base, best = near, np.int64(score)
    return base


# ---------------------------------------------------------------------------------------------------- the trie


@kernel
def _walk_beside(s: Int, r: Int, own_limit: int, states: DfaStates, trie: TrieArrays, scratch: _Scratch) -> np.int64:
    """Walk state s side by side with state r of a base, turning back where both lead to the same.

    Returns how many edges state s has that the base lacks. Stops after own_limit.
    """
    class_of, transition, live, relative = states.class_of, states.transition, states.live, states.relative
    names, final, named, last = states.names, states.final, states.names.shape[0] > 0, states.names.shape[0] - 1
    byte, skip, depth, height, token_start = trie.byte, trie.skip, trie.depth, trie.height, trie.token_start
    path, other, token, code_out = scratch.path, scratch.base_path, scratch.token, scratch.code
    root_start, trie_token = trie.root_start, trie.token
    path_relative, other_relative = scratch.path_relative, scratch.base_relative
    count = np.int64(0)
    path[0], other[0] = s, r
    path_relative[0] = other_relative[0] = named
    for first in range(256):
        if transition[s, class_of[first]] < 0 and transition[r, class_of[first]] < 0:
            continue
        i, stop = np.int64(root_start[first]), np.int64(root_start[first + 1])
        while i < stop and count <= own_limit:
            d = np.int64(depth[i])
            c = class_of[byte[i]]
            t, u = np.int64(-1), np.int64(-1)
            if path[d - 1] >= 0:
                t = np.int64(transition[path[d - 1], c])
                path_relative[d] = named and t >= 0 and path_relative[d - 1] and relative[path[d - 1], c]
            if other[d - 1] >= 0:
                u = np.int64(transition[other[d - 1], c])
                other_relative[d] = named and u >= 0 and other_relative[d - 1] and relative[other[d - 1], c]
            if t < 0 and u < 0:
                i = np.int64(skip[i])
                continue
            same = False  # what ends here leads to the same
            if t >= 0 and u >= 0 and path_relative[d] == other_relative[d]:
                same = t == (u + s - r if path_relative[d] else u) and live[t] == live[u]
                h = min(last, np.int64(height[i]))
                below = not path_relative[d] or ((final or h == height[i]) and names[h, t] == names[h, u])
                if same and below:
                    i = np.int64(skip[i])
                    continue
            if not same and token_start[i] < token_start[i + 1]:
                if t >= 0 and live[t]:
                    code = 2 * (t - s) + 1 if path_relative[d] else 2 * t
                    for k in range(token_start[i], token_start[i + 1]):
                        token[count], code_out[count] = trie_token[k], code
                        count += 1
                elif u >= 0 and live[u]:
                    for k in range(token_start[i], token_start[i + 1]):
                        token[count], code_out[count] = trie_token[k], KILL
                        count += 1
            path[d], other[d] = t, u
            i += 1
        if count > own_limit:
            break
    return count


@kernel
def _find_loops(p: int, states: DfaStates, loops: NDArray[np.uint64]) -> None:
    """Set loops[p]: the groups of characters that lead from state p back to it, and those that do by relative steps."""
    class_of, transition, relative = states.class_of, states.transition, states.relative
    named = states.names.shape[0] > 0
    out = np.uint64(1) << np.uint64(UNCLEAN)  # groups that do not
    stepless = out  # or not by relative steps
    for b in range(0xF5):
        group = np.uint64(1) << np.uint64(BYTE_GROUP[b])
        if out & group:
            continue
        here = np.int64(transition[p, class_of[b]])
        steps = named and relative[p, class_of[b]]
        low, high = BEHIND[b, 0], BEHIND[b, 1]
        # continuation bytes must lead to one state each time; nothing is said of characters that part and meet again
        for _ in range(BEHIND[b, 2]):
            if here < 0:
                break
            following = np.int64(transition[here, class_of[low]])
            for c in range(low, high + 1):
                if transition[here, class_of[c]] != following:
                    following = np.int64(-1)
                    break
                if named:
                    steps &= relative[here, class_of[c]]
            here = following
            low, high = 0x80, 0xBF
        if here != p:
            out |= group
        elif not steps:
            stepless |= group
    loops[p, 0] = ~out
    loops[p, 1] = ~(out | stepless)


# ---------------------------------------------------------------------------------------------------- one row


@kernel(inline="always")
def _sort_into(
    own_token: NDArray[np.int32], own_code: NDArray[np.int32], at: int, token: NDArray[np.int32],
    code: NDArray[np.int32], count: Int,
) -> None:  # fmt: skip
    """Write edges from place `at` on, by token."""
    if count <= 32:
        for k in range(count):
            token_k, code_k = token[k], code[k]
            x = at + k
            while x > at and own_token[x - 1] > token_k:
                own_token[x], own_code[x] = own_token[x - 1], own_code[x - 1]
                x -= 1
            own_token[x], own_code[x] = token_k, code_k
    else:
        keys = np.empty(count, np.int64)  # no `argsort`: see `number_along`
        for k in range(count):
            keys[k] = (np.int64(token[k]) << 32) | k
        keys.sort()
        for k in range(count):
            own_token[at + k] = keys[k] >> 32
            own_code[at + k] = code[keys[k] & 0xFFFFFFFF]


@kernel
def _note_rest(s: Int, base: Int, rows: RowPools, scratch: _Scratch) -> None:
    """Note where state s leads by the tokens of its base that its own edges, the last that were added, leave."""
    bases, classes, left = rows.bases, rows.class_lists, scratch.class_of_code
    queue, reached, own_token, codes = rows.states.queue, rows.states.reached, rows.own_token, rows.codes
    class_token, class_number, target, counters = classes.token, classes.number, bases.target, rows.counters
    seen = scratch.seen
    first, stop = bases.first[base], bases.first[base + 1]
    for k in range(first, stop):
        left[k - first] = 0  # tokens by class
    mask, group = bases.words[bases.mask[base]], bases.class_list[base]
    lo, hi = classes.first[group], classes.first[group + 1]
    left[0] += count_bits(mask)
    for x in range(lo, hi):
        if has_bit(mask, class_token[x]):
            left[0] -= 1
            left[class_number[x]] += 1
    for x in range(rows.states.own[s, 0], rows.states.own[s, 0] + rows.states.own[s, 1]):
        v = own_token[x]
        if has_bit(mask, v):
            place = place_of(class_token, lo, hi, v)
            left[class_number[place] if place >= 0 else 0] -= 1
    for k in range(first, stop):
        if left[k - first] > 0:
            _note(np.int64(target[k]), s, seen, codes, counters, queue, reached)


@kernel
def _add_base(s: Int, count: Int, usable: int, states: DfaStates, rows: RowPools, scratch: _Scratch) -> int:
    """Add the row of state s as a new base: a mask, and where each class of tokens leads.

    Returns the number of bases that rows can be compared with.
    """
    counters, bases, votes, code_of = rows.counters, rows.bases, scratch.votes, scratch.code_of
    queue, reached, codes, seen = rows.states.queue, rows.states.reached, rows.codes, scratch.seen
    token, code = scratch.token, scratch.code
    offset = 2 * states.transition.shape[0]
    default, most = np.int64(code[0]), 0
    for k in range(count):
        code_k = np.int64(code[k])
        if votes[code_k + offset] == 0:
            _note(code_k, s, seen, codes, counters, queue, reached)
        votes[code_k + offset] += 1
        if votes[code_k + offset] > most:
            default, most = code_k, votes[code_k + offset]
        code_of[token[k]] = code[k]
    for k in range(count):
        votes[code[k] + offset] = 0
    rows.states.codes[s, 1] = counters[CODES] - rows.states.codes[s, 0]
    mask = _mask_of(rows, code_of)
    group, compared = _fitting_classes(s, default, states.members[s] > 1, rows, code_of)
    if group == counters[CLASS_LISTS]:
        _add_classes(default, offset, rows, scratch)
    for k in range(count):
        votes[code[k] + offset] = 0
        code_of[token[k]] = KILL
    b = counters[BASES]
    bases.state[b], bases.mask[b], bases.class_list[b] = s if compared else -1, mask, group
    if compared:
        usable = _compare_with(b, usable, states, rows, scratch)
    counters[TARGETS] += rows.class_lists.sizes[group]
    bases.first[b + 1] = counters[TARGETS]
    counters[BASES] += 1
    rows.states.base[s], rows.states.own[s, 0], rows.states.own[s, 1] = b, counters[OWN_EDGES], 0
    return usable


@kernel
def _mask_of(rows: RowPools, code_of: NDArray[np.int32]) -> np.int64:
    """Return the mask of the tokens that have a code; each mask is kept once."""
    masks, hashes = rows.bases.words, rows.bases.word_hash
    mask = np.int64(rows.counters[MASKS])
    key = np.uint64(14695981039346656037)
    for w in range(masks.shape[1]):
        word = np.uint32(0)
        for v in range(32 * w, min(32 * w + 32, code_of.size)):
            if code_of[v] != KILL:
                word |= np.uint32(1) << np.uint32(v & 31)
        masks[mask, w] = word
        key = (key ^ np.uint64(word)) * np.uint64(1099511628211)
        key ^= key >> np.uint64(31)
    hashes[mask] = key
    for m in range(mask):
        if hashes[m] == key and (masks[m] == masks[mask]).all():
            return np.int64(m)
    rows.counters[MASKS] += 1
    return mask


@kernel
def _fitting_classes(
    s: Int, default: Int, shared: bool, rows: RowPools, code_of: NDArray[np.int32]
) -> tuple[np.int64, bool]:
    """Write the targets of a new base for one of the last class lists that its codes fit.

    shared: whether other states have the row. Returns the list, or the number of lists if none fits; and whether rows
    can be compared with the base.
    """
    counters, classes, table = rows.counters, rows.class_lists, rows.bases.target
    class_token, class_number = classes.token, classes.number
    at = counters[TARGETS]
    for g in range(counters[CLASS_LISTS] - 1, max(-1, counters[CLASS_LISTS] - _CANDIDATES - 1), -1):
        table[at : at + classes.sizes[g]] = KILL
        x, stop = classes.first[g], classes.first[g + 1]
        fits, converted = True, False
        for v in range(code_of.size):
            name = 0
            if x < stop and class_token[x] == v:
                name = class_number[x]
                x += 1
            if code_of[v] != KILL:
                if table[at + name] == KILL:
                    table[at + name] = code_of[v]
                elif table[at + name] != code_of[v]:
                    known, code = np.int64(table[at + name]), np.int64(code_of[v])
                    if shared or (known >> 1) + (known & 1) * s != (code >> 1) + (code & 1) * s:
                        fits = False
                        break
                    converted = True  # the same state, reached by relative steps and by others
        if fits:
            for k in range(at, at + classes.sizes[g]):
                if table[k] == KILL:
                    table[k] = default  # no token of this base is in the class
                if converted:
                    table[k] = 2 * ((np.int64(table[k]) >> 1) + (table[k] & 1) * s)
            return np.int64(g), not converted  # a base must say which steps are relative to be compared with
    return np.int64(counters[CLASS_LISTS]), True


@kernel
def _add_classes(default: Int, offset: int, rows: RowPools, scratch: _Scratch) -> None:
    """Add a class list for the codes of a new base, and write the base's targets. offset: of codes in `votes`."""
    counters, classes, table = rows.counters, rows.class_lists, rows.bases.target
    votes, class_of_code, code_of = scratch.votes, scratch.class_of_code, scratch.code_of
    class_token, class_number = classes.token, classes.number
    at, group, x = counters[TARGETS], counters[CLASS_LISTS], counters[CLASS_ENTRIES]
    count: Int = 1
    table[at] = default
    votes[default + offset] = 1  # marks codes that have a class
    class_of_code[default + offset] = 0
    for v in range(code_of.size):
        code = np.int64(code_of[v])
        if code in (KILL, default):
            continue
        if votes[code + offset] == 0:
            votes[code + offset] = 1
            class_of_code[code + offset] = count
            table[at + count] = code
            count += 1
        class_token[x], class_number[x] = v, class_of_code[code + offset]
        x += 1
    counters[CLASS_ENTRIES] = x
    classes.first[group + 1] = x
    classes.sizes[group] = count
    counters[CLASS_LISTS] += 1


@kernel(inline="always")
def _reach(t: Int, counters: NDArray[np.int64], queue: NDArray[np.int32], reached: NDArray[np.bool_]) -> None:
    """Note that tokens lead to state t."""
    if not reached[t]:
        reached[t] = True
        queue[counters[QUEUE_TAIL]] = t
        counters[QUEUE_TAIL] += 1


@kernel
def _note(
    code: Int, s: Int, seen: NDArray[np.int32], codes: NDArray[np.int32], counters: NDArray[np.int64],
    queue: NDArray[np.int32], reached: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Note that tokens of state s lead where a code says, once for each code.

    It is called for each edge, and so takes the few arrays that it needs, not their groups.
    """
    at = code + 2 * queue.size
    if seen[at] != s:
        seen[at] = s
        codes[counters[CODES]] = code
        counters[CODES] += 1
        _reach((code >> 1) + (code & 1) * s, counters, queue, reached)
