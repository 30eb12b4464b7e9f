"""String fragments: text automata that are bound to the vocabulary on their own, and used by call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.deadline import look
from ...automata.labelled import Labelled
from ...kernels.arrays import BoolArray, Int, Int32Array, Int64Array, Uint16Array
from ...kernels.compiled import kernel
from ...kernels.deadline import is_late
from ...vocabulary.vocabulary import Vocabulary
from ..bind.similar_states import FEW_STATES, number_along
from .escapes import quoted


def numbered(class_of: NDArray[Any], codes: NDArray[Any], vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Return a text automaton's codes with its states numbered along what repeats, as binding wants them."""
    if len(codes) <= FEW_STATES:
        return np.ascontiguousarray(codes, np.int32)
    transition = np.where(codes >= 0, codes, -1).astype(np.int32)
    number = number_along(class_of.astype(np.int32), transition, vocabulary.trie.root_start)
    number = np.where(number < 0, 0, number)
    out = np.empty(codes.shape, np.int32)
    out[number] = np.where(codes >= 0, number[np.maximum(codes, 0)], codes)
    return out


# characters: each byte takes all values from that of the first to that of the last
_RANGES = np.array(
    [
        [*low.ljust(4, b"\0"), *high.ljust(4, b"\0")]
        for low, high in (
            (b"\x00", b"\x7f"), (b"\xc2\x80", b"\xdf\xbf"), (b"\xe0\xa0\x80", b"\xe0\xbf\xbf"),
            (b"\xe1\x80\x80", b"\xec\xbf\xbf"), (b"\xed\x80\x80", b"\xed\x9f\xbf"),
            (b"\xee\x80\x80", b"\xef\xbf\xbf"), (b"\xf0\x90\x80\x80", b"\xf0\xbf\xbf\xbf"),
            (b"\xf1\x80\x80\x80", b"\xf3\xbf\xbf\xbf"), (b"\xf4\x80\x80\x80", b"\xf4\x8f\xbf\xbf"),
        )
    ],
    np.int64,
).reshape(-1, 2, 4)  # fmt: skip
_ESCAPED = np.array([*range(0x20), 0x22, 0x5C])  # characters that JSON writes as escapes
_PLAIN = np.array([c for c in range(0x20, 0x80) if c not in (0x22, 0x5C)])


def free_state(content: Labelled) -> int:
    """Return the state of a string's content behind which any text may follow, -1 if `free_states` has none."""
    return next((s for s in free_states(content.class_of, content.transition) if content.label[s] >= 0), -1)


def free_states(class_of: NDArray[Any], transition: NDArray[Any]) -> list[int]:
    """Return the states of a string's content that read any text and lead back to themselves.

    Without those where a loop comes before it, as rows before it differ from it in many tokens then; and where rows
    before it are neither narrow nor like those of any string: they are better shared.
    """
    every = np.ones(len(transition), np.bool_)
    total = total_states(class_of, transition).tolist()
    found = []
    for state in total:
        look("reading strings freely")
        if come_narrowly(class_of, transition, state, every):
            found.append(state)
    return found


@kernel
def total_states(class_of: Uint16Array, transition: Int32Array) -> Int64Array:
    """Return the states of a string's content from which all characters lead back to them."""
    states = transition.shape[0]
    found, count = np.empty(states, np.int64), 0
    for state in range(states):
        if is_late():
            break
        if transition[state, class_of[0]] == state and _reads_any_text(class_of, transition, state):  # few do the first
            found[count] = state
            count += 1
    return found[:count]


@kernel
def _reads_any_text(class_of: Uint16Array, transition: Int32Array, state: Int) -> bool:
    """Return whether all characters lead from a state back to it."""
    states = transition.shape[0]
    here, after, seen = np.empty(states, np.int64), np.empty(states, np.int64), np.zeros(states, np.bool_)
    for r in range(_RANGES.shape[0]):
        here[0], count = state, 1
        for k in range(4):
            first, last = _RANGES[r, 0, k], _RANGES[r, 1, k]
            if last == 0:  # shorter characters have no more bytes
                break
            reached = 0
            for x in range(count):
                for byte in range(first, last + 1):
                    t = np.int64(transition[here[x], class_of[byte]])
                    if t < 0:
                        return False
                    if not seen[t]:
                        seen[t] = True
                        after[reached] = t
                        reached += 1
            here, after, count = after, here, reached
            for x in range(count):
                seen[here[x]] = False
        if count != 1 or here[0] != state:
            return False
    return True


@kernel
def come_narrowly(class_of: Uint16Array, transition: Int32Array, free: Int, live: BoolArray) -> bool:
    """Return whether no loop comes before a state, and rows before it are narrow, or differ little from it.

    live: the states that there are (N,).
    """
    before = live.copy()
    if not _ends_only_in(transition, free, before):
        return False
    for s in range(before.size):
        if before[s]:
            differs = 0
            for byte in _PLAIN:
                t = transition[s, class_of[byte]]
                differs += t >= 0 and t != free and live[t]
            for byte in _ESCAPED:
                t = transition[s, class_of[byte]]
                if t >= 0 and live[t]:
                    differs += 1
                    break
            if differs > 48:
                return False
    return True


def ending_freely(
    content: Labelled, class_of: NDArray[Any], codes: NDArray[np.int32]
) -> tuple[int, NDArray[np.bool_]] | None:
    """Return `free_state` among the states of the content's JSON text, and which of these come before it, if any does.

    class_of, codes: the text, not in ASCII alone.
    """
    here = free_state(content)
    if here < 0:
        return None
    state = in_text(content, class_of, codes, here)
    written = np.ones(len(codes), np.bool_)
    _ends_only_in(codes, state, written)
    return state, written


def in_text(content: Labelled, class_of: NDArray[Any], codes: NDArray[np.int32], here: int) -> int:
    """Return which of the states of the content's JSON text stands for one of the content, between characters."""
    state = 0
    for byte in quoted(_word_to(content, here).decode(), False)[1:-1]:
        state = int(codes[state, class_of[byte]])
    return state


def _word_to(content: Labelled, state: int) -> bytes:
    """Return one of the shortest words that lead to a state."""
    before = np.zeros(len(content.label), np.int64)
    by = np.full(len(content.label), -1)
    new: NDArray[Any] = np.zeros(1, np.int64)
    by[0] = 0
    while by[state] < 0:
        targets = content.transition[new]
        row, symbol = np.nonzero((targets >= 0) & (by[targets] < 0))
        found, first = np.unique(targets[row, symbol], return_index=True)
        before[found], by[found] = new[row[first]], symbol[first]
        new = found
    word = bytearray()
    while state:
        word.append(int(np.argmax(content.class_of == by[state])))
        state = int(before[state])
    return bytes(word[::-1])


@kernel
def _ends_only_in(transition: Int32Array, free: Int, before: BoolArray) -> bool:
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
