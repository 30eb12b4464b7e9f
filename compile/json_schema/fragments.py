"""String fragments: a text automaton, bound to the vocabulary on its own, and used by call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.labelled import Labelled
from ...automata.nested import RETURN
from .. import bind
from ..link import Symbols, more_symbols, walk_exits
from ..vocabulary import Vocabulary


class Fragment(NamedTuple):
    """The rows of some states that follow one another, numbered from 0; a table puts them at their place."""

    row_count: NDArray[np.int32]  # (n,) own edges
    edge_token: NDArray[Any]
    edge_target: NDArray[np.int32]  # from 0; n for the dead state
    base_row: NDArray[np.int32]  # (n,)
    masks: NDArray[np.uint32]
    base_mask: NDArray[np.int32]
    base_classes: NDArray[np.int32]
    base_start: NDArray[np.int32]
    base_target: NDArray[np.int32]
    class_start: NDArray[np.int32]
    class_token: NDArray[Any]
    class_id: NDArray[np.int32]
    row_exit: NDArray[np.int32]  # (n,) list
    exit_start: NDArray[np.int32]
    exit_token: NDArray[np.int32]
    exit_symbol: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return sum(array.nbytes for array in self)


def numbered(class_of: NDArray[Any], codes: NDArray[Any], vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Return a text automaton's codes with its states numbered along what repeats, as binding wants them."""
    if len(codes) <= bind._FEW_STATES:
        return np.ascontiguousarray(codes, np.int32)
    transition = np.where(codes >= 0, codes, -1).astype(np.int32)
    number = bind._number_along(class_of.astype(np.int32), transition, vocabulary.trie.root_start)
    number = np.where(number < 0, 0, number)
    out = np.empty(codes.shape, np.int32)
    out[number] = np.where(codes >= 0, number[np.maximum(codes, 0)], codes)
    return out


def ending_freely(class_of: NDArray[Any], codes: NDArray[Any]) -> tuple[int, NDArray[np.bool_]] | None:
    """Return the state of a text automaton behind which any text may follow, and which states come before it.

    None if there is no such state, or if a loop comes before it: then rows before it differ from it in many tokens.
    """
    before = np.ones(len(codes), np.bool_)
    state = _free_state(class_of, np.ascontiguousarray(codes, np.int32), before)
    return None if state < 0 else (int(state), before)


_RANGES = (  # of characters beyond ASCII: each byte takes all values from that of the first to that of the last
    (b"\xc2\x80", b"\xdf\xbf"), (b"\xe0\xa0\x80", b"\xe0\xbf\xbf"), (b"\xe1\x80\x80", b"\xec\xbf\xbf"),
    (b"\xed\x80\x80", b"\xed\x9f\xbf"), (b"\xee\x80\x80", b"\xef\xbf\xbf"),
    (b"\xf0\x90\x80\x80", b"\xf0\xbf\xbf\xbf"), (b"\xf1\x80\x80\x80", b"\xf3\xbf\xbf\xbf"),
    (b"\xf4\x80\x80\x80", b"\xf4\x8f\xbf\xbf"),
)  # fmt: skip


def free_state(content: Labelled) -> int:
    """Return the state of a string's content behind which any text may follow, -1 where `ending_freely` has none.

    And where rows before it are neither narrow nor like those of any string: they are better shared.
    """
    class_of, transition, label = content
    own = np.arange(len(label))[:, None]
    loops = np.flatnonzero((label >= 0) & (transition[:, np.unique(class_of[:128])] == own).all(axis=1)).tolist()
    free = next((s for s in loops if all(_comes_back(content, s, low, high) for low, high in _RANGES)), -1)
    if free < 0:
        return -1
    before = np.ones(len(label), np.bool_)
    if not _ends_only_in(transition, free, before):
        return -1
    plain = transition[before][:, class_of[_PLAIN]]
    escapes = (transition[before][:, class_of[_ESCAPED]] >= 0).any(axis=1)
    many = (plain >= 0).sum(axis=1) + escapes - (plain == free).sum(axis=1) > 48
    return -1 if many.any() else free


_ESCAPED = np.array([*range(0x20), 0x22, 0x5C])  # characters that JSON writes as escapes
_PLAIN = np.array([c for c in range(0x20, 0x80) if c not in (0x22, 0x5C)])


@njit(cache=True, nogil=True)
def _ends_only_in(transition: Any, free: Any, before: Any) -> bool:
    """Return whether no loop comes before a state; clear `before` of it and of all states behind it."""
    states, classes = transition.shape
    queue = np.empty(states, np.int64)
    queue[0], count, at = free, 1, 0
    before[free] = False
    while at < count:
        for c in range(classes):
            t = transition[queue[at], c]
            if t >= 0 and before[t]:
                before[t] = False
                queue[count] = t
                count += 1
        at += 1
    left = np.zeros(states, np.int64)  # ways to each state from those before
    for s in range(states):
        for c in range(classes):
            t = transition[s, c]
            if before[s] and t >= 0 and before[t]:
                left[t] += 1
    count = at = 0
    total = 0
    for s in range(states):
        total += before[s]
        if before[s] and left[s] == 0:
            queue[count] = s
            count += 1
    while at < count:
        for c in range(classes):
            t = transition[queue[at], c]
            if t >= 0 and before[t]:
                left[t] -= 1
                if left[t] == 0:
                    queue[count] = t
                    count += 1
        at += 1
    return count == total


def _comes_back(content: Labelled, state: int, low: bytes, high: bytes) -> bool:
    """Return whether all characters from one to another, whose bytes take all values between, lead back to a state."""
    class_of, transition, _ = content
    here = {state}
    for first, last in zip(low, high, strict=True):
        classes = np.unique(class_of[first : last + 1])
        here = {int(transition[s, c]) for s in here for c in classes}
        if -1 in here:
            return False
    return here == {state}


@njit(cache=True, nogil=True)
def _free_state(class_of: Any, codes: Any, before: Any) -> int:
    """Return the state, or -1; clear `before` of it and of all states behind it."""
    states, classes = codes.shape
    found = -1
    for u in range(states):
        if codes[u, class_of[0x22]] > RETURN:
            continue
        fits = True
        for b in range(0x20, 0x80):
            if b != 0x22 and b != 0x5C and codes[u, class_of[b]] != u:
                fits = False
                break
        b = 0xC2
        while fits and b < 0xF5:  # every character beyond ASCII comes back
            low, high = 0x80, 0xBF
            if b == 0xE0:
                low = 0xA0
            elif b == 0xED:
                high = 0x9F
            elif b == 0xF0:
                low = 0x90
            elif b == 0xF4:
                high = 0x8F
            here = codes[u, class_of[b]]
            for _ in range(1 if b < 0xE0 else 2 if b < 0xF0 else 3):
                if here < 0:
                    break
                following = codes[here, class_of[low]]
                for c in range(low, high + 1):
                    if codes[here, class_of[c]] != following:
                        following = np.int32(-1)
                        break
                here = following
                low, high = 0x80, 0xBF
            fits = here == u
            b += 1
        escape = codes[u, class_of[0x5C]]
        if not fits or escape < 0:
            continue
        for b in (0x22, 0x5C, 0x62, 0x66, 0x6E, 0x72, 0x74):  # and so does every character that must be escaped
            if codes[escape, class_of[b]] != u:
                fits = False
        here = codes[escape, class_of[0x75]]
        for _ in range(2):
            here = codes[here, class_of[0x30]] if here >= 0 else np.int32(-1)
        if not fits or here < 0:
            continue
        for high in (0x30, 0x31):
            following = codes[here, class_of[high]]
            for b in range(0x30, 0x67):
                if following < 0 or ((b < 0x3A or b > 0x60) and codes[following, class_of[b]] != u):
                    fits = False
                    break
        if fits:
            found = u
            break
    if found < 0:
        return -1
    order = np.empty(states, np.int32)
    order[0], before[found] = found, False
    head, tail = 0, 1
    while head < tail:
        s = order[head]
        head += 1
        for c in range(classes):
            t = codes[s, c]
            if t >= 0 and before[t]:
                before[t] = False
                order[tail] = t
                tail += 1
    into = np.zeros(states, np.int32)
    left = 0
    for s in range(states):
        if before[s]:
            left += 1
            for c in range(classes):
                if codes[s, c] >= 0:
                    into[codes[s, c]] += 1
    tail = 0
    for s in range(states):
        if before[s] and into[s] == 0:
            order[tail] = s
            tail += 1
    head = 0
    while head < tail:
        s = order[head]
        head += 1
        for c in range(classes):
            t = codes[s, c]
            if t >= 0 and before[t]:
                into[t] -= 1
                if into[t] == 0:
                    order[tail] = t
                    tail += 1
    return found if tail == left else -1


def bound(
    class_of: NDArray[Any], codes: NDArray[np.int32], vocabulary: Vocabulary, closes: NDArray[np.bool_],
    text: NDArray[np.uint8], text_start: NDArray[np.int32], symbols: Symbols, counters: NDArray[np.int64],
    meter: Meter,
) -> tuple[Fragment, Symbols]:  # fmt: skip
    """Bind a text automaton; its exits are of `symbols`, which may grow."""
    trie = vocabulary.trie
    states = len(codes)
    classes = np.ascontiguousarray(class_of, np.int32)
    transition = np.where(codes >= 0, codes, -1).astype(np.int32)
    rows = bind._walk_all(classes, transition, np.ones(states, np.bool_), trie, vocabulary, meter)
    number = np.arange(states, dtype=np.int32)
    arrays = bind._arrays(rows, np.zeros(states, np.bool_), number, vocabulary.size)
    row_exit = np.empty(states, np.int32)
    room, most = trie.token.size + 65_536, 1024
    list_start, list_hash = np.zeros(most + 1, np.int32), np.empty(most, np.uint64)
    out_token, out_symbol = np.empty(room, np.int32), np.empty(room, np.int32)
    done, lists = 0, 0
    while done < states:
        done, lists = walk_exits(
            classes, codes, trie.byte, trie.skip, trie.depth, trie.token_start, trie.token, trie.root_start, closes,
            text, text_start, counters, *symbols, row_exit, list_start, list_hash, out_token, out_symbol, done, lists,
        )  # fmt: skip
        if done < 0:
            done, symbols = -1 - done, more_symbols(symbols, text, text_start, counters)
        elif done < states:
            meter.check(bytes=16 * out_token.size, doing="binding a string")
            out_token, out_symbol = _doubled(out_token), _doubled(out_symbol)
            list_start, list_hash = _doubled(list_start), _doubled(list_hash)
    used = int(list_start[lists])
    fragment = Fragment(
        row_count=np.diff(arrays["row_start"]).astype(np.int32),
        edge_token=arrays["edge_token"][:-2],
        edge_target=np.where(arrays["edge_target"] == states + 1, states, arrays["edge_target"]).astype(np.int32),
        row_exit=row_exit,
        exit_start=list_start[: lists + 1].copy(),
        exit_token=out_token[:used].copy(),
        exit_symbol=out_symbol[:used].copy(),
        **{name: arrays[name] for name in Fragment._fields if name in arrays and not name.startswith("edge_")},
    )
    return fragment, symbols


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    out = np.zeros(2 * len(array), array.dtype)
    out[: len(array)] = array
    return out
