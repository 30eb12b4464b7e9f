"""States of strings by their content: strings that a DFA describes, such as those of a pattern or a format.

The DFA reads the characters that a string means. A state of the string also knows how far into an escape it is: see
`automata.pushdown.Content`. Strings may count their characters as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...automata.state_ranges import DEAD, PHASES, RETURN
from ...kernels.arrays import Bool, ByteArray, Int, Int16Array, Int32Array, Int64Array, Uint16Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from .header import AT_ANY_STRING, AT_CONTENTS, OF_CONTENT, UNBOUNDED, record_of


class ContentState(NamedTuple):
    """A state of a string by its content, with the arrays of the content."""

    first: Int  # the string's first state
    class_of: Uint16Array  # (256,)
    transition: Int32Array  # (states * classes,)
    label: Int32Array  # (states,)
    needed: Int32Array  # (states,) characters that must follow, or empty
    free: Int  # the state of the content after which anything may come, -1 if there is none
    state: Int  # of the content
    left: Int  # characters that may begin after one more
    most: Int  # characters, -1 for any number
    free_set: Int16Array  # (states,) which pair of `AT_FREE_SETS` each state reads, -1 for none, or empty


@kernel
def content_at(header: Int64Array, here: Int) -> Int:
    """Return the address of the record of the content that a state belongs to."""
    return record_of(header[AT_CONTENTS], header[AT_CONTENTS + 1], OF_CONTENT, here)


@kernel
def is_in_content(content: Int, here: Int) -> bool:
    """Return whether a state belongs to the content at an address."""
    first, _, _, _, states, _, _, most, _, _ = array_at(content, OF_CONTENT, np.int64)
    return bool(first <= here < first + PHASES * states * (most + 1 if most >= 0 else 1))


@kernel
def content_of(content: Int, here: Int) -> ContentState:
    """Return the `ContentState` of a state, from the content at an address."""
    first, classes_at, transitions_at, labels_at, states, classes, free, most, needed_at, free_set_at = array_at(
        content, OF_CONTENT, np.int64
    )
    q, left = (here - first) // PHASES, np.int64(UNBOUNDED)
    if most >= 0:
        done = q // states
        q -= done * states
        left = most - done - 1
    class_of, transition = array_at(classes_at, 256, np.uint16), array_at(transitions_at, states * classes, np.int32)
    label, needed = array_at(labels_at, states, np.int32), array_at(needed_at, states if needed_at else 0, np.int32)
    free_set = array_at(free_set_at, states if free_set_at else 0, np.int16)
    return ContentState(first, class_of, transition, label, needed, free, q, left, most, free_set)


@kernel
def row_at(content: Int, here: Int) -> Int:
    """Return the address of the transitions of a state, 0 if it is within an escape."""
    first, _, transitions_at, _, states, classes, _, _, _, _ = array_at(content, OF_CONTENT, np.int64)
    q = (here - first) // PHASES
    return transitions_at + 4 * (q % states) * classes if q * PHASES == here - first else np.int64(0)


@kernel
def leads_to_end(needed: Int32Array, left: Int, target: Int) -> Bool:
    """Return whether the content can still end after a state, if `left` more characters may begin."""
    return target >= 0 and (not needed.size or 0 <= needed[target] <= left)


@kernel
def _reads_some(row: Int32Array, class_of: Uint16Array, low: Int, high: Int, needed: Int32Array, left: Int) -> bool:
    """Return whether a row of a content reads one of the characters low .. high and can still end."""
    last = -1
    for c in range(low, high + 1):
        if class_of[c] != last:  # many in a row have the same class
            last = class_of[c]
            if leads_to_end(needed, left, row[last]):
                return True
    return False


@kernel
def plain_code(header: Int64Array, content: Int, row: Int, here: Int, byte: Int) -> Int:
    """Return the code of a state outside escapes and a byte; row: the address that `row_at` found."""
    first, classes_at, _, labels_at, states, _, free, most, needed_at, _ = array_at(content, OF_CONTENT, np.int64)
    if byte == 0x22:
        label = array_at(labels_at, states, np.int32)[(here - first) // PHASES % states]
        return np.int64(RETURN - label) if label >= 0 else np.int64(DEAD)
    if byte < 0x20:
        return np.int64(DEAD)
    if byte == 0x5C or (most >= 0 and byte >= 0x80):
        return content_code(header, content, here, byte)
    to = np.int64(array_at(row, 256, np.int32)[array_at(classes_at, 256, np.uint16)[byte]])
    if to < 0 or (needed_at != 0 and to != free and array_at(needed_at, to + 1, np.int32)[to] < 0):
        return np.int64(DEAD)
    if most >= 0:
        return content_code(header, content, here, byte)
    return np.int64(header[AT_ANY_STRING] if to == free else first + to * PHASES)


@kernel
def next_plain_child(content: Int, row: Int, here: Int, byte: ByteArray, i: Int, last: Int) -> Int:
    """Return the next node in i .. last whose byte a state outside escapes may read, or `last`."""
    first, classes_at, _, labels_at, states, _, _, _, _, _ = array_at(content, OF_CONTENT, np.int64)
    to, class_of = array_at(row, 256, np.int32), array_at(classes_at, 256, np.uint16)
    ends = array_at(labels_at, states, np.int32)[(here - first) // PHASES % states] >= 0
    while i < last:
        b = byte[i]
        if ends if b == 0x22 else b == 0x5C or (b >= 0x20 and to[class_of[b]] >= 0):
            break
        i += 1
    return i


@kernel
def content_code(header: Int64Array, content: Int, here: Int, byte: Int) -> Int:
    """Return the code of a state and a byte; content: its address."""
    first, class_of, transition, label, needed, free, q, left, most, _ = content_of(content, here)
    classes = transition.size // label.size
    row = transition[q * classes : (q + 1) * classes]
    phase = (here - first) % PHASES
    character = np.int64(-1)
    if phase == 0:
        if byte == 0x22:
            return np.int64(RETURN - label[q]) if label[q] >= 0 else np.int64(DEAD)
        if byte == 0x5C:
            return (
                here + 1
                if _reads_some(row, class_of, 0, 0x1F, needed, left)
                or _reads_some(row, class_of, 0x22, 0x22, needed, left)
                or _reads_some(row, class_of, 0x5C, 0x5C, needed, left)
                else np.int64(DEAD)
            )
        if byte >= 0x20:
            character = np.int64(byte)
    elif phase == 1:
        if byte == 0x75:
            return here + 1
        for letter, meant in ((0x62, 8), (0x66, 12), (0x6E, 10), (0x72, 13), (0x74, 9), (0x22, 0x22), (0x5C, 0x5C)):
            if byte == letter:
                character = np.int64(meant)
    elif phase < 4:
        return here + 1 if byte == 0x30 else np.int64(DEAD)
    elif phase == 4:
        for digit, low_one, high_one, ahead in (
            (0x30, 0, 0x0F, 1), (0x31, 0x10, 0x1F, 2), (0x32, 0x22, 0x22, 3), (0x35, 0x5C, 0x5C, 4)
        ):  # fmt: skip
            if byte == digit and _reads_some(row, class_of, low_one, high_one, needed, left):
                return here + ahead
    elif phase < 7:
        value = np.int64(byte) - 0x30 if byte <= 0x39 else (np.int64(byte) | 0x20) - 0x57
        if 0 <= value < 16 and (byte <= 0x39 or value >= 10):  # 0x60 lies between the letters
            character = (phase - 5) * 16 + value
    elif phase == 7:
        character = np.int64(0x22) if byte == 0x32 else np.int64(-1)
    elif byte | 0x20 == 0x63:
        character = np.int64(0x5C)
    if character < 0:
        return np.int64(DEAD)
    target = np.int64(row[class_of[character]])
    if target < 0:
        return np.int64(DEAD)
    if target == free:
        return np.int64(header[AT_ANY_STRING])
    if character & 0xC0 == 0x80:  # within a character, which was counted when it began
        left += 1
    if not leads_to_end(needed, left, target):
        return np.int64(DEAD)
    if most >= 0:
        target += (most - left) * len(label)
    return first + target * PHASES
