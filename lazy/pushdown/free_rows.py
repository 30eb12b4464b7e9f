"""Which characters a state with a row reads freely.

A state reads a set of groups *freely* over n bytes if it allows every token of at most n bytes whose characters are all
of these groups. Such tokens need no walk: their mask depends on the vocabulary alone, is kept by `StringMaskCache`, and
the walk of the trie skips them.
"""

from __future__ import annotations

import numpy as np

from ...automata.state_ranges import DEAD, UNWRITTEN
from ...kernels.arrays import Int, Int32Array, Int64Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from ...vocabulary.characters import BYTE_GROUP, IS_SIGN, UNCLEAN
from .header import AT_ROWS, DONE
from .step import code_of
from .utf8 import byte_range, next_phase, num_groups

MANY_BYTES = 16
"""A state that reads fewer different bytes is quick to walk."""
MOST_STATES_AHEAD = 1024
"""States that the search looks at."""
MOST_BYTES_AHEAD = 32
"""Bytes up to which the search looks."""
MOST_TRIES = 8
"""Sets of groups that the search tries: it leaves out characters after which the state reads less."""


@kernel
def _reads_rest(header: Int64Array, rows: Int32Array, state: Int, phase: Int) -> bool:
    """Return whether a state within a character reads every rest of the character that is UTF-8."""
    low, high = byte_range(phase)
    after = next_phase(low, phase)
    last: Int = np.int64(0)
    for c in range(low, high + 1):
        to = code_of(header, rows, state, c)
        if to <= 0 or (to != last and after and not _reads_rest(header, rows, to, after)):
            return False
        last = to
    return True


@kernel
def groups_read(header: Int64Array, rows: Int32Array, state: Int, groups: np.uint64) -> np.uint64:
    """Return which of some groups a state reads whole, without leaving its frame."""
    last, last_phase, reads = np.int64(-1), np.int64(-1), True
    for b in range(256):
        group = BYTE_GROUP[b]
        bit = np.uint64(1) << np.uint64(group)
        if group == UNCLEAN or not groups & bit:
            continue
        to, phase = np.int64(code_of(header, rows, state, b)), np.int64(next_phase(b, 0))
        if to != last or phase != last_phase:
            reads = bool(to > 0 and (not phase or _reads_rest(header, rows, to, phase)))
            last, last_phase = to, phase
        if not reads:
            groups &= ~bit
    return groups


@kernel
def _usual_groups(header: Int64Array, rows: Int32Array, start: Int) -> np.uint64:
    """Return the groups that a state reads, except characters after which it reads less than half of these."""
    one = np.uint64(1)
    groups = groups_read(header, rows, start, ~(one << np.uint64(UNCLEAN)))
    last, dropped = np.int64(-1), np.uint64(0)
    for b in range(128):
        bit = one << np.uint64(BYTE_GROUP[b])
        to = np.int64(code_of(header, rows, start, b))
        if not groups & bit or to == last:
            continue
        last = to
        lacking = groups & ~groups_read(header, rows, to, groups)
        if 2 * num_groups(lacking) > num_groups(groups):
            dropped |= bit
            last = np.int64(-1)
    return groups & ~dropped


@kernel
def free_of_row(header: Int64Array, start: Int) -> tuple[np.uint64, Int, np.uint64, Int]:
    """Return what a state reads freely: groups, and over how many bytes, at most `MOST_BYTES_AHEAD`.

    Also returns the groups of all other characters that it reads up to there, and a state that must be written before
    this can be answered, or DONE.
    """
    rows = array_at(header[AT_ROWS], header[AT_ROWS + 1], np.int32)
    read = 0
    for b in range(256):
        read += rows[start << 8 | b] > 0
    if read < MANY_BYTES:
        return np.uint64(0), np.int64(0), np.uint64(0), np.int64(DONE)
    groups = _usual_groups(header, rows, start)
    length, others, unwritten, sign = _row_ahead(header, rows, start, groups)
    fewer, tries = groups, 1
    while sign >= 0 and tries < MOST_TRIES:
        fewer &= ~(np.uint64(1) << np.uint64(sign))
        longer, more_others, unwritten, sign = _row_ahead(header, rows, start, fewer)
        if longer > length:
            groups, length, others = fewer, longer, more_others
        tries += 1
    return groups, length, others, unwritten


@kernel
def _row_ahead(header: Int64Array, rows: Int32Array, start: Int, groups: np.uint64) -> tuple[Int, np.uint64, Int, Int]:
    """Return over how many bytes a state reads all characters of some groups, and which other groups it reads.

    Also returns a state that must be written first, or DONE; and the group of a sign after which the state reads less,
    as at the end of a trigger in free text, or -1.
    """
    one, others = np.uint64(1), np.uint64(0)
    queue, phases = np.empty(MOST_STATES_AHEAD, np.int64), np.empty(MOST_STATES_AHEAD, np.int64)
    level, signs = np.empty(MOST_STATES_AHEAD, np.int64), np.empty(MOST_STATES_AHEAD, np.int64)
    queue[0], phases[0], level[0], signs[0] = start, 0, 0, -1
    count, at = 1, 0
    while at < count:
        here, phase, depth = queue[at], phases[at], level[at]
        at += 1
        low, high = (0, 0xFF) if phase == 0 else byte_range(phase)
        last, last_phase = np.int64(-1), np.int64(-1)
        for b in range(low, high + 1):
            to, after = np.int64(code_of(header, rows, here, b)), np.int64(next_phase(b, phase))
            if phase == 0 and not (groups >> np.uint64(BYTE_GROUP[b])) & one:
                if to != DEAD:
                    others |= one << np.uint64(BYTE_GROUP[b])
                continue
            if to <= 0:
                if to == UNWRITTEN:
                    return depth, others, here, np.int64(-1)
                return depth, others, np.int64(DONE), signs[at - 1]
            if to == last and after == last_phase:
                continue
            last, last_phase = to, after
            is_new = True
            for k in range(count):
                if queue[k] == to and phases[k] == after:
                    is_new = False
                    break
            if is_new and depth + 1 < MOST_BYTES_AHEAD:
                if count == MOST_STATES_AHEAD:  # some states after so many bytes do not fit
                    return depth, others, np.int64(DONE), np.int64(-1)
                queue[count], phases[count], level[count] = to, after, depth + 1
                signs[count] = BYTE_GROUP[b] if IS_SIGN[b] else signs[at - 1]
                count += 1
    return np.int64(MOST_BYTES_AHEAD), others, np.int64(DONE), np.int64(-1)
