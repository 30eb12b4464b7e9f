"""Bind a byte automaton to a vocabulary: which tokens each state allows, and where they lead.

A state's row is found by walking the trie of all tokens along the automaton. Four things keep this short:

- **Rows are differences.** A state that agrees with a wide row already walked, its *base*, is walked side by side
  with it. Where both paths have come to the same state, all that follows is the same, so the walk turns back: what is
  left are the row's own edges.
- **States alike up to their number.** In `[a-z]{1,5000}` each state is its neighbour, one further. Transitions that
  many states share as a step of the same length are *relative*, and states whose futures agree, relative steps taken
  as such, share one row. `_name_states` finds them by partition refinement: names of round h tell apart what h bytes
  can tell apart, so a trie node with at most h bytes below it is not entered for states of the same name.
- **Characters that change nothing.** Where all that a part of the trie holds are characters that lead from a state back
  to it, all its tokens are taken at once.
- **Only reachable states** are walked, and a byte without a transition at the root costs nothing.

Where not all bytes are tokens, a state may be unable to finish by tokens though bytes could. Such states are found from
a first binding and left out of a second one: a finished table has no dead ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.dfa import Dfa
from ...errors import ConstraintError
from ...kernels.compiled import kernel
from ...kernels.limits import UNREACHABLE
from ...table.distances import graph_facts
from ...table.flat import grouped
from ...table.transition_table import TransitionTable
from ...vocabulary.vocabulary import BEHIND, BYTE_GROUP, UNCLEAN, TokenTrie, Vocabulary

_FEW_STATES = 32  # automata up to this size are bound without naming states: it would cost more than it saves
_MOST_ROUNDS = 512  # of comparing states: tokens of more bytes are rare, and followed byte by byte
_NARROW = 2048  # a walk of fewer trie nodes costs less than choosing a base for it
_CANDIDATES = 32  # of the last bases, how many are looked at for a state
_NEAR = 6  # the round whose names find a base alike
_SLICE = 20_000_000  # trie nodes visited between two looks at the meter: about 0.1 s
_KILL = -(2**31)  # code of an edge that takes a token of the base away

# places in the array of counters that a walk keeps between its slices
_HEAD, _TAIL, _OWN, _CODES, _BASES, _TABLE, _MASKS, _CLASSES, _CLASSED = range(9)


class _Rows(NamedTuple):
    """What a walk has found: a row for each state reached, in pools that grow."""

    counters: NDArray[np.int64]  # (9,) how much of each pool is used
    order: NDArray[np.int32]  # (N,) states in the order they were reached
    reached: NDArray[np.bool_]  # (N,)
    representative: NDArray[np.int32]  # (N,) the first state walked of each name
    row_base: NDArray[np.int32]  # (N,)
    row_own: NDArray[np.int64]  # (N, 2) first and number of its own edges; states that are alike have the same
    row_codes: NDArray[np.int64]  # (N, 2) first and number of the distinct codes of where it leads
    own_token: NDArray[np.int32]
    own_code: NDArray[np.int32]
    codes: NDArray[np.int32]
    base_state: NDArray[np.int32]
    base_mask: NDArray[np.int32]
    base_classes: NDArray[np.int32]
    base_first: NDArray[np.int32]  # in `table`
    table: NDArray[np.int32]  # code by class
    masks: NDArray[np.uint32]
    mask_hash: NDArray[np.uint64]
    class_first: NDArray[np.int32]  # in `class_token`
    class_count: NDArray[np.int32]
    class_token: NDArray[np.int32]
    class_id: NDArray[np.int32]


def bind(dfa: Dfa, vocabulary: Vocabulary, *, source: str, meter: Meter) -> TransitionTable:
    """Return the table of the token sequences whose bytes `dfa` accepts.

    source: hash of what was compiled. Raises ConstraintError if there is no such sequence, BudgetError.
    """
    if dfa.is_empty:
        raise ConstraintError("the constraint matches nothing: no text could be written")
    trie = vocabulary.trie
    transition = np.ascontiguousarray(dfa.transition, np.int32)
    class_of = np.ascontiguousarray(dfa.class_of[:256], np.int32)
    states = dfa.num_states
    accepting = dfa.accepting
    if states > _FEW_STATES:
        number = _number_along(class_of, transition, trie.root_start)
        transition, accepting = _renumbered(transition, accepting, number)
    live = np.ones(states, np.bool_)
    rows = _walk_all(class_of, transition, live, trie, vocabulary, meter)
    if not vocabulary.spells_all_bytes:
        everything = np.arange(states, dtype=np.int32)
        distance = graph_facts(grouped(_arrays(rows, accepting, everything, vocabulary.size))).distance[:-2]
        closed = distance != UNREACHABLE
        if not closed[0]:
            raise ConstraintError(
                "no text that fits the constraint can be written with this vocabulary: "
                "it lacks tokens for bytes that every such text needs"
                + ("; its words spell a space before them: begin the constraint with one" * vocabulary.leading_space)
            )
        if not closed[rows.reached].all():
            rows = _walk_all(class_of, transition, closed | ~rows.reached, trie, vocabulary, meter)
    return _assemble(rows, accepting, vocabulary, source)


def _walk_all(
    class_of: NDArray[np.int32],
    transition: NDArray[np.int32],
    live: NDArray[np.bool_],
    trie: TokenTrie,
    vocabulary: Vocabulary,
    meter: Meter,
) -> _Rows:
    """Walk every state that tokens reach from the start, ending tokens only in states that are `live`."""
    states = len(transition)
    size = vocabulary.size
    words = -(-size // 32)
    if states > _FEW_STATES:
        rounds = min(trie.longest, _MOST_ROUNDS)
        meter.check(bytes=4 * states * (rounds + 16), doing="comparing states")
        relative = _relative_steps(transition)
        names, members, final = _name_states(transition, relative, live, rounds)
        final = final or rounds == trie.longest
    else:
        relative, names = np.zeros((1, 1), np.bool_), np.zeros((0, states), np.int32)
        members, final = np.ones(states, np.int32), True
    own_limit = max(16, min(512, size // 256))

    rows = _Rows(
        counters=np.zeros(9, np.int64),
        order=np.zeros(states, np.int32),
        reached=np.zeros(states, np.bool_),
        representative=np.full(states, -1, np.int32),
        row_base=np.full(states, -1, np.int32),
        row_own=np.zeros((states, 2), np.int64),
        row_codes=np.zeros((states, 2), np.int64),
        own_token=np.empty(4096, np.int32),
        own_code=np.empty(4096, np.int32),
        codes=np.empty(2 * trie.token.size, np.int32),
        base_state=np.empty(8, np.int32),
        base_mask=np.empty(8, np.int32),
        base_classes=np.empty(8, np.int32),
        base_first=np.zeros(8, np.int32),
        table=np.empty(2 * trie.token.size, np.int32),
        masks=np.empty((8, words), np.uint32),
        mask_hash=np.empty(8, np.uint64),
        class_first=np.zeros(8, np.int32),
        class_count=np.empty(8, np.int32),
        class_token=np.empty(2 * trie.token.size, np.int32),
        class_id=np.empty(2 * trie.token.size, np.int32),
    )
    rows.reached[0], rows.counters[_TAIL] = True, 1
    scratch = np.full(size, _KILL, np.int32)
    while True:
        done = _walk_rows(
            class_of, transition, relative, names, members, bool(final), live, trie.byte, trie.skip, trie.depth,
            trie.height, trie.content, BYTE_GROUP, trie.token_start, trie.token, trie.root_start, size, own_limit,
            scratch, *rows,
        )  # fmt: skip
        spent = sum(array.nbytes for array in rows)
        meter.check(states=int(rows.counters[_TAIL]), bytes=spent, doing="binding to the vocabulary")
        if done:
            return rows
        rows = _with_room(rows, own_limit, trie.token.size)


def _with_room(rows: _Rows, own: int, extra: int) -> _Rows:
    """Return the rows in arrays that hold one more row of any kind."""
    used = dict(
        zip(("own", "codes", "base", "table", "mask", "class", "classed"), rows.counters[_OWN:].tolist(), strict=True)
    )
    more = {"own": own, "codes": extra, "base": 2, "table": extra, "mask": 1, "class": 2, "classed": extra}
    pools = {
        "own_token": "own", "own_code": "own", "codes": "codes", "base_state": "base", "base_mask": "base",
        "base_classes": "base", "base_first": "base", "table": "table", "masks": "mask", "mask_hash": "mask",
        "class_first": "class", "class_count": "class", "class_token": "classed", "class_id": "classed",
    }  # fmt: skip
    grown: dict[str, NDArray[Any]] = {}
    for name, pool in pools.items():
        array = getattr(rows, name)
        if used[pool] + more[pool] > len(array):
            grown[name] = np.empty((2 * len(array) + more[pool], *array.shape[1:]), array.dtype)
            grown[name][: len(array)] = array
    return rows._replace(**grown)


# ------------------------------------------------------------------------------------------- states that are alike


@kernel
def _number_along(class_of: Any, transition: Any, root_start: Any) -> Any:
    """Return new numbers of the states (N,), such that the steps of long repetitions all have the same length.

    A state's successors are numbered when it is visited, those inside a character with all that follow up to its end.
    The one that the fewest states lead to is visited next: the next place of what repeats, not the common place behind
    it. So what repeats, with what hangs on each of its places, gets numbers in a row.
    """
    states, classes = transition.shape
    weight = np.zeros(classes, np.int64)
    continues = np.ones(classes, np.bool_)  # classes of continuation bytes alone
    for b in range(256):
        weight[class_of[b]] += root_start[b + 1] - root_start[b]
        if not 0x80 <= b <= 0xBF:
            continues[class_of[b]] = False
    for c in range(classes):
        if continues[c]:
            weight[c] = -1
    by_weight = np.argsort(weight)
    inside = np.ones(states, np.bool_)  # of a character
    for s in range(states):
        for c in range(classes):
            if transition[s, c] >= 0 and not continues[c]:
                inside[s] = False
                break
        if transition[s].max() < 0:
            inside[s] = False
    ways = np.zeros(states, np.int32)  # how many states lead to each
    last = np.full(states, -1, np.int32)
    for s in range(states):
        for c in range(classes):
            t = transition[s, c]
            if t >= 0 and last[t] != s:
                last[t] = s
                ways[t] += 1
    number = np.full(states, -1, np.int32)
    stack = np.empty(states, np.int32)
    queue = np.empty(states, np.int32)
    number[0] = 0
    stack[0] = 0
    height, count = 1, 1
    while height:
        height -= 1
        queue[0] = stack[height]
        tail, bottom = 1, height
        for late in range(2):  # first what is inside characters, then what follows by whole ones
            head = 0
            while head < tail:
                s = queue[head]
                head += 1
                for k in range(classes):
                    t = transition[s, by_weight[k]]
                    if t < 0 or number[t] >= 0 or (not late and not inside[t]):
                        continue
                    number[t] = count
                    count += 1
                    if late:
                        stack[height] = t
                        height += 1
                    else:
                        queue[tail] = t
                        tail += 1
            if not late:  # the visited state itself comes last
                queue[0], queue[tail - 1] = queue[tail - 1], queue[0]
        for k in range(bottom, height - 1):
            if ways[stack[k]] < ways[stack[height - 1]]:
                stack[k], stack[height - 1] = stack[height - 1], stack[k]
    return number


def _renumbered(
    transition: NDArray[np.int32], accepting: NDArray[np.bool_], number: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return transitions and accepting states by their new numbers."""
    out = np.empty_like(transition)
    out[number] = np.where(transition >= 0, number[transition], -1)
    ends = np.empty_like(accepting)
    ends[number] = accepting
    return out, ends


@kernel
def _relative_steps(transition: Any) -> Any:
    """Return which transitions (N, C) as many states share as a step of the same length as share their target."""
    states, classes = transition.shape
    out = np.zeros((states, classes), np.bool_)
    steps = np.zeros(2 * states, np.int32)
    targets = np.zeros(states, np.int32)
    for c in range(classes):
        steps[:] = 0
        targets[:] = 0
        for s in range(states):
            t = transition[s, c]
            if t >= 0:
                steps[t - s + states] += 1
                targets[t] += 1
        for s in range(states):
            t = transition[s, c]
            if t >= 0:
                out[s, c] = steps[t - s + states] >= targets[t]
    return out


@kernel
def _name_states(transition: Any, relative: Any, live: Any, rounds: int) -> Any:
    """Return (names (R + 1, N), how many states have the last name of each (N,), whether it holds for any bytes).

    States have the same name of round h if no h bytes tell them apart: they lead to the same places, relative steps
    taken as steps, and to live ones alike. Stops where names no longer change, or all differ, so that the last round
    holds for any number of bytes, or after `rounds`. Names are compared in full, their hashes only find them.
    """
    states, classes = transition.shape
    out = np.empty((rounds + 1, states), np.int32)
    first = np.empty(states, np.int32)  # the first state of each name
    size = 1
    while size < 2 * states:
        size *= 2
    slots = np.empty(size, np.int32)
    count = 0
    known = -1
    final = False
    for h in range(rounds + 1):
        slots[:] = -1
        count = 0
        for s in range(states):
            if h == 0:
                key = np.uint64(live[s])
            else:
                key = np.uint64(out[h - 1, s])
                for c in range(classes):
                    t = transition[s, c]
                    if t >= 0:
                        where = (t - s) * 2 + 1 if relative[s, c] else t * 2
                        key = (key ^ np.uint64(where)) * np.uint64(0x9E3779B97F4A7C15)
                        key = (key ^ (key >> np.uint64(29)) ^ np.uint64(out[h - 1, t])) * np.uint64(0xBF58476D1CE4E5B9)
                        key ^= np.uint64(c) + (key >> np.uint64(32))
            slot = np.int64((key * np.uint64(0x94D049BB133111EB)) >> np.uint64(20)) & (size - 1)
            while True:
                if slots[slot] < 0:
                    slots[slot] = count
                    first[count] = s
                    out[h, s] = count
                    count += 1
                    break
                r = first[slots[slot]]
                if h == 0:
                    same = live[r] == live[s]
                else:
                    same = out[h - 1, r] == out[h - 1, s]
                    c = 0
                    while same and c < classes:
                        t, u = transition[s, c], transition[r, c]
                        if t < 0 or u < 0:
                            same = t == u
                        elif relative[s, c]:
                            same = relative[r, c] and t - s == u - r and out[h - 1, t] == out[h - 1, u]
                        else:
                            same = not relative[r, c] and t == u
                        c += 1
                if same:
                    out[h, s] = slots[slot]
                    break
                slot = (slot + 1) & (size - 1)
        if count in (known, states):
            rounds, final = h, True
            break
        known = count
    members = np.zeros(states, np.int32)
    for s in range(states):
        members[out[rounds, s]] += 1
    for s in range(states):
        first[s] = members[out[rounds, s]]
    return out[: rounds + 1], first, final


# ------------------------------------------------------------------------------------------------------- the walk


@kernel
def _walk_rows(
    class_of: Any,
    transition: Any,
    relative: Any,
    names: Any,
    members: Any,
    final: bool,
    live: Any,
    byte: Any,
    skip: Any,
    depth: Any,
    height: Any,
    content: Any,
    byte_group: Any,
    token_start: Any,
    token: Any,
    root_start: Any,
    vocab_size: int,
    own_limit: int,
    scratch: Any,
    counters: Any,
    order: Any,
    reached: Any,
    representative: Any,
    row_base: Any,
    row_own: Any,
    row_codes: Any,
    own_token: Any,
    own_code: Any,
    codes: Any,
    base_state: Any,
    base_mask: Any,
    base_classes: Any,
    base_first: Any,
    table: Any,
    masks: Any,
    mask_hash: Any,
    class_first: Any,
    class_count: Any,
    class_token: Any,
    class_id: Any,
) -> bool:
    """Walk states that have been reached and not walked yet; False if there may be more, or more room is needed."""
    states, classes = transition.shape
    named = names.shape[0] > 0
    last = names.shape[0] - 1
    depths: Any = 2
    for b in range(256):
        if root_start[b] < root_start[b + 1]:
            depths = max(depths, np.int64(height[root_start[b]]) + 2)
    path = np.empty(depths, np.int64)  # states on the way from the root to a node, -1 where there is none
    other = np.empty(depths, np.int64)  # the same of the base's state
    path_relative = np.zeros(depths, np.bool_)  # all steps so far are relative
    other_relative = np.zeros(depths, np.bool_)
    weight = np.zeros(classes, np.int64)  # trie nodes below the root by class
    for b in range(256):
        if root_start[b + 1] > root_start[b]:
            weight[class_of[b]] += root_start[b + 1] - root_start[b]
    emit_token = np.empty(token.size, np.int32)
    emit_code = np.empty(token.size, np.int32)
    votes = np.zeros(4 * states + 4, np.int32)  # tokens by code + 2 * states
    class_by_code = np.zeros(max(4 * states + 4, token.size + 1), np.int32)
    seen = np.full(4 * states + 4, -1, np.int32)  # by code + 2 * states: the last row that has it
    words = masks.shape[1]
    loops = np.zeros(
        (states, 2), np.uint64
    )  # groups of characters that lead from a state back to it: any way, relatively
    looked = np.zeros(states, np.bool_)
    # bases that rows can be compared with, the latest last, and the first of each name of a near round
    compared_bases = np.empty(states, np.int32)
    by_name = np.full(states, -1, np.int32)
    usable = 0
    for b in range(counters[_BASES]):
        if base_state[b] >= 0:
            compared_bases[usable] = b
            usable += 1
            if named and by_name[names[min(last, _NEAR), base_state[b]]] < 0:
                by_name[names[min(last, _NEAR), base_state[b]]] = b
    visited = 0
    while counters[_HEAD] < counters[_TAIL]:
        if (
            visited > _SLICE
            or counters[_OWN] + own_limit > own_token.size
            or counters[_CODES] + token.size > codes.size
            or counters[_BASES] + 2 > base_first.size
            or counters[_TABLE] + token.size > table.size
            or counters[_MASKS] + 1 > masks.shape[0]
            or counters[_CLASSES] + 2 > class_first.size
            or counters[_CLASSED] + token.size > class_token.size
        ):
            return False
        s = np.int64(order[counters[_HEAD]])
        counters[_HEAD] += 1

        # ---- a state like one walked before has its row, and leads where that one leads, relative steps as such
        alike = np.int64(representative[names[last, s]]) if named and final else np.int64(-1)
        if alike >= 0:
            row_base[s], row_own[s], row_codes[s] = row_base[alike], row_own[alike], row_codes[alike]
            for x in range(row_codes[s, 0], row_codes[s, 0] + row_codes[s, 1]):
                _reach((np.int64(codes[x]) >> 1) + (codes[x] & 1) * s, counters, order, reached)
            continue
        if named:
            representative[names[last, s]] = s

        # ---- the base that shares most of the trie with this state
        base, best = np.int64(-1), np.int64(0)
        for c in range(classes):
            if transition[s, c] >= 0:
                best += weight[c]
        narrow = best < _NARROW
        best //= 2
        if not narrow:
            h = min(last, _NEAR)
            like = np.int64(by_name[names[h, s]]) if named else np.int64(-1)
            for k in range(-1, min(_CANDIDATES, usable)):
                near = np.int64(compared_bases[usable - 1 - k]) if k >= 0 else like
                if near < 0:
                    continue
                r = np.int64(base_state[near])
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

        # ---- side by side with that base, turning back where both lead to the same
        count = 0
        if base >= 0:
            r = np.int64(base_state[base])
            path[0], other[0] = s, r
            path_relative[0] = other_relative[0] = named
            for first in range(256):
                if transition[s, class_of[first]] < 0 and transition[r, class_of[first]] < 0:
                    continue
                i, stop = np.int64(root_start[first]), np.int64(root_start[first + 1])
                while i < stop and count <= own_limit:
                    visited += 1
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
                                emit_token[count], emit_code[count] = token[k], code
                                count += 1
                        elif u >= 0 and live[u]:
                            for k in range(token_start[i], token_start[i + 1]):
                                emit_token[count], emit_code[count] = token[k], _KILL
                                count += 1
                    path[d], other[d] = t, u
                    i += 1
                if count > own_limit:
                    break
            if count > own_limit:
                base = np.int64(-1)

        # ---- or all by itself
        if base < 0:
            count = 0
            path[0] = s
            path_relative[0] = named
            for first in range(256):
                if transition[s, class_of[first]] < 0:
                    continue
                i, stop = np.int64(root_start[first]), np.int64(root_start[first + 1])
                while i < stop:
                    visited += 1
                    d = np.int64(depth[i])
                    p, c = path[d - 1], class_of[byte[i]]
                    if content[i] >> np.uint64(UNCLEAN) == 0:
                        if not looked[p]:
                            looked[p] = True
                            _find_loops(p, class_of, transition, relative, named, byte_group, loops)
                        stays = loops[p, 1] if path_relative[d - 1] else loops[p, 0]
                        if content[i] & ~stays == 0:  # all tokens from here on lead to where the walk stands
                            if live[p]:
                                code = 2 * (p - s) + 1 if path_relative[d - 1] else 2 * p
                                for k in range(token_start[i], token_start[skip[i]]):
                                    emit_token[count], emit_code[count] = token[k], code
                                    count += 1
                            i = np.int64(skip[i])
                            continue
                    t = np.int64(transition[p, c])
                    if t < 0:
                        i = np.int64(skip[i])
                        continue
                    path[d] = t
                    path_relative[d] = named and path_relative[d - 1] and relative[p, c]
                    if token_start[i] < token_start[i + 1] and live[t]:
                        code = 2 * (t - s) + 1 if path_relative[d] else 2 * t
                        for k in range(token_start[i], token_start[i + 1]):
                            emit_token[count], emit_code[count] = token[k], code
                            count += 1
                    i += 1

        # ---- its own edges, sorted by token
        row_codes[s, 0] = counters[_CODES]
        if base >= 0 or (count <= own_limit and (members[s] == 1 or members[s] * count <= words)):
            at = counters[_OWN]
            row_base[s], row_own[s, 0], row_own[s, 1] = base, at, count
            if count <= 32:
                for k in range(count):
                    token_k, code_k = emit_token[k], emit_code[k]
                    x = at + k
                    while x > at and own_token[x - 1] > token_k:
                        own_token[x], own_code[x] = own_token[x - 1], own_code[x - 1]
                        x -= 1
                    own_token[x], own_code[x] = token_k, code_k
            else:
                by_token = np.argsort(emit_token[:count])
                for k in range(count):
                    own_token[at + k] = emit_token[by_token[k]]
                    own_code[at + k] = emit_code[by_token[k]]
            counters[_OWN] += count
            for k in range(count):
                if emit_code[k] != _KILL:
                    _note(np.int64(emit_code[k]), s, states, seen, codes, counters, order, reached)
            if base >= 0:  # and what they leave of the base
                first, stop = base_first[base], base_first[base + 1]
                for k in range(first, stop):
                    class_by_code[k - first] = 0  # tokens left by class
                mask, group = base_mask[base], base_classes[base]
                for w in range(words):
                    class_by_code[0] += _bits(masks[mask, w])
                for x in range(class_first[group], class_first[group + 1]):
                    v = class_token[x]
                    if (masks[mask, v >> 5] >> np.uint32(v & 31)) & np.uint32(1):
                        class_by_code[0] -= 1
                        class_by_code[class_id[x]] += 1
                for x in range(at, at + count):
                    v = own_token[x]
                    if (masks[mask, v >> 5] >> np.uint32(v & 31)) & np.uint32(1):
                        class_by_code[
                            _class_of(v, class_first[group], class_first[group + 1], class_token, class_id)
                        ] -= 1
                for k in range(first, stop):
                    if class_by_code[k - first] > 0:
                        _note(np.int64(table[k]), s, states, seen, codes, counters, order, reached)
            row_codes[s, 1] = counters[_CODES] - row_codes[s, 0]
            continue

        # ---- or a new base: a mask, and where each class of tokens leads
        default, most = np.int64(emit_code[0]), 0
        for k in range(count):
            code = np.int64(emit_code[k])
            if votes[code + 2 * states] == 0:
                _note(code, s, states, seen, codes, counters, order, reached)
            votes[code + 2 * states] += 1
            if votes[code + 2 * states] > most:
                default, most = code, votes[code + 2 * states]
            scratch[emit_token[k]] = emit_code[k]
        for k in range(count):
            votes[emit_code[k] + 2 * states] = 0
        row_codes[s, 1] = counters[_CODES] - row_codes[s, 0]
        mask = np.int64(counters[_MASKS])
        key = np.uint64(14695981039346656037)
        for w in range(words):
            word = np.uint32(0)
            for v in range(32 * w, min(32 * w + 32, vocab_size)):
                if scratch[v] != _KILL:
                    word |= np.uint32(1) << np.uint32(v & 31)
            masks[mask, w] = word
            key = (key ^ np.uint64(word)) * np.uint64(1099511628211)
            key ^= key >> np.uint64(31)
        mask_hash[mask] = key
        for m in range(mask):
            if mask_hash[m] == key and (masks[m] == masks[mask]).all():
                mask = np.int64(m)
                break
        if mask == counters[_MASKS]:
            counters[_MASKS] += 1
        at = counters[_TABLE]
        group = counters[_CLASSES]
        compared = True
        for g in range(counters[_CLASSES] - 1, max(-1, counters[_CLASSES] - _CANDIDATES - 1), -1):
            table[at : at + class_count[g]] = _KILL
            x, stop = class_first[g], class_first[g + 1]
            fits, converted = True, False
            for v in range(vocab_size):
                name = 0
                if x < stop and class_token[x] == v:
                    name = class_id[x]
                    x += 1
                if scratch[v] != _KILL:
                    if table[at + name] == _KILL:
                        table[at + name] = scratch[v]
                    elif table[at + name] != scratch[v]:
                        known, code = np.int64(table[at + name]), np.int64(scratch[v])
                        if members[s] > 1 or (known >> 1) + (known & 1) * s != (code >> 1) + (code & 1) * s:
                            fits = False
                            break
                        converted = True  # the same state, reached by relative steps and by others
            if fits:
                group = g
                for k in range(at, at + class_count[g]):
                    if table[k] == _KILL:
                        table[k] = default  # no token of this base is in the class
                    if converted:
                        table[k] = 2 * ((np.int64(table[k]) >> 1) + (table[k] & 1) * s)
                compared = not converted  # a base must say which steps are relative to be compared with
                break
        if group == counters[_CLASSES]:
            count_classes: Any = 1
            table[at] = default
            votes[default + 2 * states] = 1  # marks codes that have a class
            class_by_code[default + 2 * states] = 0
            x = counters[_CLASSED]
            for v in range(vocab_size):
                code = np.int64(scratch[v])
                if code in (_KILL, default):
                    continue
                if votes[code + 2 * states] == 0:
                    votes[code + 2 * states] = 1
                    class_by_code[code + 2 * states] = count_classes
                    table[at + count_classes] = code
                    count_classes += 1
                class_token[x], class_id[x] = v, class_by_code[code + 2 * states]
                x += 1
            counters[_CLASSED] = x
            class_first[group + 1] = x
            class_count[group] = count_classes
            counters[_CLASSES] += 1
        for k in range(count):
            votes[emit_code[k] + 2 * states] = 0
            scratch[emit_token[k]] = _KILL
        b = counters[_BASES]
        base_state[b], base_mask[b], base_classes[b] = s if compared else -1, mask, group
        if compared:
            compared_bases[usable] = b
            usable += 1
            if named and by_name[names[min(last, _NEAR), s]] < 0:
                by_name[names[min(last, _NEAR), s]] = b
        counters[_TABLE] += class_count[group]
        base_first[b + 1] = counters[_TABLE]
        counters[_BASES] += 1
        row_base[s], row_own[s, 0], row_own[s, 1] = b, counters[_OWN], 0
    return True


@kernel
def _find_loops(p: Any, class_of: Any, transition: Any, relative: Any, named: Any, byte_group: Any, loops: Any) -> None:
    """Set loops[p]: the groups of characters that lead from state p back to it, and those that do by relative steps."""
    out = np.uint64(1) << np.uint64(UNCLEAN)  # groups that do not
    stepless = out  # or not by relative steps
    for b in range(0xF5):
        group = np.uint64(1) << np.uint64(byte_group[b])
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


@kernel(inline="always")
def _reach(t: Any, counters: Any, order: Any, reached: Any) -> None:
    """Note that tokens lead to state t."""
    if not reached[t]:
        reached[t] = True
        order[counters[_TAIL]] = t
        counters[_TAIL] += 1


@kernel
def _note(code: Any, s: Any, states: Any, seen: Any, codes: Any, counters: Any, order: Any, reached: Any) -> None:
    """Note that tokens of state s lead where a code says, once for each code."""
    if seen[code + 2 * states] != s:
        seen[code + 2 * states] = s
        codes[counters[_CODES]] = code
        counters[_CODES] += 1
        _reach((code >> 1) + (code & 1) * s, counters, order, reached)


@kernel
def _class_of(v: Any, low: Any, stop: Any, class_token: Any, class_id: Any) -> Any:
    """Return the class of token v: that of its entry, or 0."""
    high = stop
    while low < high:
        middle = (low + high) >> 1
        if class_token[middle] < v:
            low = middle + 1
        else:
            high = middle
    return class_id[low] if low < stop and class_token[low] == v else np.int32(0)


@kernel(inline="always")
def _bits(word: Any) -> Any:
    """Return how many bits of 32 are set."""
    x = np.int64(word)
    x -= (x >> 1) & 0x55555555
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) & 0xFFFFFFFF) >> 24


# ------------------------------------------------------------------------------------------------------- the table


def _arrays(rows: _Rows, accepting: NDArray[np.bool_], number: NDArray[np.int32], size: int) -> dict[str, Any]:
    """Return the arrays of a table of `size` tokens in which state s has number[s], those with number -1 left out."""
    kept = np.flatnonzero(number >= 0)
    bases, used, masks, groups, classed = rows.counters[_BASES:].tolist()
    row_base = np.where(rows.reached, rows.row_base, -1)[kept].astype(np.int32)
    counts = np.where(rows.reached, rows.row_own[:, 1], 0)[kept]
    row_start = np.zeros(kept.size + 1, np.int32)
    np.cumsum(counts, out=row_start[1:])
    kind = np.min_scalar_type(size + 1)
    edge_token = np.empty(int(row_start[-1]) + 2, kind)
    edge_token[-2:] = size, size + 1
    edge_target = np.empty(int(row_start[-1]), np.int32)
    _fill_rows(kept, rows.row_own, row_start, rows.own_token, rows.own_code, number, edge_token, edge_target)
    base_mask, base_classes, base_start = (
        rows.base_mask[:bases],
        rows.base_classes[:bases],
        rows.base_first[: bases + 1],
    )
    base_target = rows.table[:used]
    if kept.size < len(number):
        row_base, base_mask, base_classes, base_start, base_target = _renumber_bases(
            kept, number, row_base, base_mask, base_classes, base_start, base_target
        )
    arrays = {
        "row_start": row_start,
        "edge_token": edge_token,
        "edge_target": edge_target,
        "accepting": np.ascontiguousarray(accepting[kept]),
        "base_row": row_base,
        "masks": rows.masks[:masks].copy(),
        "base_mask": base_mask.copy(),
        "base_classes": base_classes.copy(),
        "base_start": base_start.copy(),
        "base_target": base_target.copy(),
        "class_start": rows.class_first[: groups + 1].copy(),
        "class_token": rows.class_token[:classed].astype(kind),
        "class_id": rows.class_id[:classed].copy(),
    }
    for array in arrays.values():
        array.flags.writeable = False  # given away: the table need not copy them
    return arrays


def _renumber_bases(
    kept: NDArray[np.int64],
    number: NDArray[np.int32],
    row_base: NDArray[np.int32],
    base_mask: NDArray[np.int32],
    base_classes: NDArray[np.int32],
    base_start: NDArray[np.int32],
    base_target: NDArray[np.int32],
) -> tuple[NDArray[np.int32], ...]:
    """Return (row_base, base_mask, base_classes, base_start, base_target) by the new numbers.

    Leaving states out can make steps of one length differ in length: rows then get a copy of their base for each way.
    """
    out_row = row_base.copy()
    of_base: list[int] = []
    targets: list[NDArray[Any]] = []
    for base in range(base_mask.size):  # few
        members = np.flatnonzero(row_base == base)
        if not members.size:
            continue
        codes = base_target[base_start[base] : base_start[base + 1]]
        old = (codes >> 1)[None, :] + (codes & 1)[None, :] * kept[members][:, None]
        inside = (old >= 0) & (old < number.size)  # a row that has no token of a class may have no state for it either
        new = np.where(inside, number[np.where(inside, old, 0)], -1)
        steps = np.where(codes & 1, 2 * (new - members[:, None]) + 1, 2 * new)
        ways, which = np.unique(np.where(new < 0, 0, steps), axis=0, return_inverse=True)
        out_row[members] = len(of_base) + which.reshape(-1)
        of_base += [base] * len(ways)
        targets += list(ways)
    lengths = [0, *(len(codes) for codes in targets)]
    copied = np.array(of_base, np.int64)
    return (
        out_row, base_mask[copied], base_classes[copied], np.cumsum(lengths).astype(np.int32),
        np.concatenate([base_target[:0], *targets]).astype(np.int32),
    )  # fmt: skip


@kernel
def _fill_rows(
    kept: Any,
    row_own: Any,
    row_start: Any,
    own_token: Any,
    own_code: Any,
    number: Any,
    edge_token: Any,
    edge_target: Any,
) -> None:
    """Write the own edges of the states that are kept, by their new numbers."""
    dead = kept.size + 1
    for i in range(kept.size):
        s = kept[i]
        at = row_own[s, 0]
        for e in range(row_start[i], row_start[i + 1]):
            code = np.int64(own_code[at])
            edge_token[e] = own_token[at]
            edge_target[e] = dead if code == _KILL else number[(code >> 1) + (code & 1) * s]
            at += 1


def _assemble(rows: _Rows, accepting: NDArray[np.bool_], vocabulary: Vocabulary, source: str) -> TransitionTable:
    number = np.where(rows.reached, np.cumsum(rows.reached) - 1, -1).astype(np.int32)
    arrays = _arrays(rows, accepting, number, vocabulary.size)
    return TransitionTable.flat(
        vocab_size=vocabulary.size, eos=vocabulary.eos, vocabulary=vocabulary.fingerprint, source=source, **arrays
    )
