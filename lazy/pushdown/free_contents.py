"""Which characters a string reads freely by its content: see `free_rows`.

The answer holds for all states of the content that the search comes to, so that most states find it in `AT_FREE_SETS`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...automata.state_ranges import PHASES
from ...kernels.arrays import Int, Int64Array, Uint16Array
from ...kernels.compiled import kernel
from ...kernels.pointers import array_at
from ...vocabulary.characters import BYTE_GROUP
from .content_strings import ContentState, content_at, content_of, leads_to_end
from .free_rows import MANY_BYTES, MOST_BYTES_AHEAD, MOST_STATES_AHEAD, MOST_TRIES
from .header import ALL_BYTES, AT_FREE_SETS, AT_SHARES, ESCAPED, FOUND_HERE, IS_TOTAL, MOST_FREE_SETS, PLAIN, UNBOUNDED
from .utf8 import byte_range, next_phase, num_groups


class ByteClasses(NamedTuple):
    """The classes of bytes that may come in each phase, each class once for each phase and group that follow.

    Row 8 holds the characters that JSON escapes, and DEL.
    """

    of: Int64Array  # (9, 256) classes, of which the first `counts` are used
    phase: Int64Array  # (9, 256) the phase that follows
    group: Int64Array  # (9, 256) the group of the character that begins, in rows 0 and 8
    counts: Int64Array  # (9,)


@kernel
def _classes_of(class_of: Uint16Array) -> ByteClasses:
    """Return the `ByteClasses` of a content's classes (256,)."""
    of, phases, group = np.empty((9, 256), np.int64), np.empty((9, 256), np.int64), np.empty((9, 256), np.int64)
    count = np.empty(9, np.int64)
    for phase in range(9):
        low, high = (0, 0xF4) if phase in (0, 8) else byte_range(phase)
        n = 0
        for b in range(low, high + 1):
            after, name = np.int64(0), np.int64(0)
            if phase == 8:
                if b >= 0x20 and b != 0x22 and b != 0x5C and b != 0x7F:
                    continue
                name = np.int64(BYTE_GROUP[0x7F if b == 0x7F else 0x5C])
            else:
                after = np.int64(next_phase(b, phase))
                if phase == 0:
                    name = np.int64(BYTE_GROUP[b])
                    if not (PLAIN >> np.uint64(name)) & np.uint64(1):
                        continue
            is_next = n > 0 and of[phase, n - 1] == class_of[b]
            if not (is_next and phases[phase, n - 1] == after and group[phase, n - 1] == name):
                of[phase, n], phases[phase, n], group[phase, n] = class_of[b], after, name
                n += 1
        count[phase] = n
    return ByteClasses(of, phases, group, count)


@kernel
def _content_ahead(
    content: ContentState, byte_classes: ByteClasses, groups: np.uint64, queue: Int64Array
) -> tuple[Int, np.uint64, np.uint64, Int]:
    """Return how far a state of a content reads all characters of some groups.

    queue: room for the states that the search comes to, 8 * state + phase each.

    Returns (bytes, others, dropped, size). bytes: at most `MOST_BYTES_AHEAD`, or ALL_BYTES; if negative, the state
    reads up to -bytes characters of these groups and no more, as they are counted or the content is as long everywhere.
    others: the groups of all other characters that it reads up to there. dropped: groups to leave out to read further.
    size: how many states are in the queue if these are all that follow and the answer holds for each of them, else 0.
    """
    transition, label, needed = content.transition, content.label, content.needed
    left, free = content.left, content.free
    classes, after, group, count = byte_classes
    one, width = np.uint64(1), transition.size // label.size
    # for each state in the queue: the bytes read before it; the group of the last character, or of the one begun
    level, last = np.empty(MOST_STATES_AHEAD, np.int64), np.empty(MOST_STATES_AHEAD, np.int64)
    slots = np.full(2 * MOST_STATES_AHEAD, -1, np.int64)
    queue[0], level[0], last[0] = content.state << 3, 0, -1
    size, at, most, reached = 1, 0, np.int64(MOST_BYTES_AHEAD), np.int64(MOST_BYTES_AHEAD)
    others, dropped, asked = np.uint64(0), np.uint64(0), num_groups(groups)
    # the bytes after which no state reads more, if all states before read all, and each byte is a character
    ends, even = np.int64(0), True
    # after a character that is dropped, what the state lacks says nothing about which others to drop
    while at < size and level[at] < most and level[at] <= reached:
        q, phase, read, begun = queue[at] >> 3, queue[at] & 7, level[at], last[at]
        at += 1
        lacking, reads = np.uint64(0), False
        if phase == 0:
            if label[q] >= 0:
                others |= one << np.uint64(BYTE_GROUP[0x22])
            for k in range(count[8]):
                if leads_to_end(needed, left, transition[q * width + classes[8, k]]):
                    others |= one << np.uint64(group[8, k])
        for k in range(count[phase]):
            to, name = np.int64(transition[q * width + classes[phase, k]]), begun if phase else group[phase, k]
            bit = one << np.uint64(name)
            if not groups & bit:
                if leads_to_end(needed, left, to):
                    others |= bit
                continue
            if not leads_to_end(needed, left, to):
                lacking |= bit
                continue
            reads = True
            if to == free:  # it reads all
                others |= (PLAIN & ~groups) | ESCAPED
                even = False
                continue
            if needed.size:  # at worst each byte begins a character
                most = min(most, left - needed[to] + 1)
            state = to << 3 | after[phase, k]
            even = even and after[phase, k] == 0
            slot = (state * 0x9E3779B1) & (slots.size - 1)
            while slots[slot] >= 0 and queue[slots[slot]] != state:
                slot = (slot + 1) & (slots.size - 1)
            if slots[slot] >= 0:
                even = even and level[slots[slot]] == read + 1
                continue
            slots[slot] = size
            if size == MOST_STATES_AHEAD:
                most, even = min(most, read), False  # the search ends here
                break
            queue[size], level[size], last[size] = state, read + 1, name
            size += 1
        if reads:
            even = even and not lacking
        else:
            even, ends = even and (not ends or ends == read), read
        if lacking:
            if begun < 0:  # the first state does not read them
                return np.int64(0), others, lacking, 0
            reached = min(reached, read)
            dropped |= one << np.uint64(begun) if 2 * num_groups(lacking) > asked else lacking
    if at == size and even and ends:
        return -ends, others, np.uint64(0), 0
    if at == size and needed.size and most == left + 1 and reached == MOST_BYTES_AHEAD:
        return -most, others, dropped, 0
    if at == size and left == UNBOUNDED and min(most, reached) == MOST_BYTES_AHEAD:
        return np.int64(ALL_BYTES), others, dropped, size
    return min(most, reached), others, dropped, 0


@kernel
def _reads_little(here: Int, content: ContentState) -> bool:
    """Return whether a state reads few characters, or is within an escape."""
    width, read = content.transition.size // content.label.size, 0
    for b in range(0x20, 0x7F):
        to = content.transition[content.state * width + content.class_of[b]]
        read += bool(leads_to_end(content.needed, content.left, to))
    return read < MANY_BYTES or (here - content.first) % PHASES != 0


@kernel
def reads_little(header: Int64Array, here: int) -> bool:
    """Return whether a state reads few characters, or is within an escape: a walk finds its mask quickly."""
    return bool(_reads_little(np.int64(here), content_of(content_at(header, here), np.int64(here))))


@kernel
def free_of_content(header: Int64Array, here: Int) -> tuple[np.uint64, Int, np.uint64, bool]:
    """Return what a state reads freely: groups, bytes and other groups as `_content_ahead` has them.

    Also returns whether the state reads any characters, as do all states that follow.
    """
    content = content_of(content_at(header, here), here)
    nothing = np.uint64(0), np.int64(0), np.uint64(0), False
    if (here - content.first) % PHASES:
        return nothing
    sets = array_at(header[AT_FREE_SETS], 2 * MOST_FREE_SETS, np.int64)
    before = np.int64(content.free_set[content.state]) if content.free_set.size else np.int64(-1)
    if before >= 0:
        at = 2 * (before & MOST_FREE_SETS - 1)
        noted = np.uint64(sets[at]), np.int64(ALL_BYTES), np.uint64(sets[at + 1]), before & IS_TOTAL != 0
        # the pair holds for all states after another one, and this state may read many more characters
        if before & FOUND_HERE or _num_others(content, noted[0]) < MANY_BYTES:
            return noted
    elif _reads_little(here, content):
        return nothing
    byte_classes, queue = _classes_of(content.class_of), np.empty(MOST_STATES_AHEAD, np.int64)
    groups, length, others, size, tokens = _most_tokens(header, content, byte_classes, queue)
    total = False
    if size and content.free_set.size:  # the same holds for all states in the queue, and for other ends as well
        others |= ESCAPED
        total = _note(header, content, byte_classes, queue[:size], groups, others, tokens)
    if before >= 0 and tokens <= _tokens_of(header, noted[0], ALL_BYTES):
        content.free_set[content.state] = before | FOUND_HERE
        return noted
    return groups, length, others, total


@kernel
def _num_others(content: ContentState, groups: np.uint64) -> Int:
    """Return how many ASCII characters outside some groups a state reads."""
    width, read = content.transition.size // content.label.size, 0
    for b in range(0x20, 0x7F):
        other = not groups & (np.uint64(1) << np.uint64(BYTE_GROUP[b]))
        to = content.transition[content.state * width + content.class_of[b]]
        read += bool(other and leads_to_end(content.needed, content.left, to))
    return read


@kernel
def _most_tokens(
    header: Int64Array, content: ContentState, byte_classes: ByteClasses, queue: Int64Array
) -> tuple[np.uint64, Int, np.uint64, Int, float]:
    """Return groups, bytes, others and size, as `_content_ahead` has them, that cover most tokens; and how many."""
    groups = PLAIN
    best: tuple[np.uint64, Int, np.uint64, Int] = (groups, np.int64(0), np.uint64(0), np.int64(0))
    most = -1.0
    for _ in range(MOST_TRIES):
        length, others, dropped, size = _content_ahead(content, byte_classes, groups, queue)
        tokens = _tokens_of(header, groups, length)
        if tokens > most:
            best, most = (groups, length, others, size), tokens
        if not dropped:
            break
        groups &= ~dropped
    groups, length, others, size = best
    return groups, length, others, size, most


@kernel
def _note(
    header: Int64Array, content: ContentState, byte_classes: ByteClasses, queue: Int64Array, groups: np.uint64,
    others: np.uint64, tokens: float,
) -> bool:  # fmt: skip
    """Note a pair of sets for all states in the queue; return whether these read any characters.

    A state keeps another pair by which more than `tokens` tokens are read freely. Nothing is noted if `AT_FREE_SETS`
    is full.
    """
    sets, free_set = array_at(header[AT_FREE_SETS], 2 * MOST_FREE_SETS, np.int64), content.free_set
    at = np.int64(0)
    while at < header[AT_FREE_SETS + 1] and (
        np.uint64(sets[2 * at]) != groups or np.uint64(sets[2 * at + 1]) != others
    ):
        at += 1
    if at >= MOST_FREE_SETS:
        return False
    sets[2 * at], sets[2 * at + 1] = np.int64(groups), np.int64(others)
    header[AT_FREE_SETS + 1] = max(header[AT_FREE_SETS + 1], at + 1)
    total = groups == PLAIN and _stays(content, byte_classes.of[8, : byte_classes.counts[8]], queue)
    last, is_less = np.int64(-1), False  # the pair that was looked at last, and whether it covers fewer tokens
    for x in range(queue.size):
        to = queue[x] >> 3
        if queue[x] & 7 == 0 and free_set[to] >= 0 and free_set[to] & MOST_FREE_SETS - 1 != last:
            last = np.int64(free_set[to] & MOST_FREE_SETS - 1)
            is_less = _tokens_of(header, np.uint64(sets[2 * last]), ALL_BYTES) < tokens
        if queue[x] & 7 == 0 and (free_set[to] < 0 or is_less):
            free_set[to] = at | (FOUND_HERE if to == content.state else 0) | (IS_TOTAL if total else 0)
    return total


@kernel
def _tokens_of(header: Int64Array, groups: np.uint64, found: Int) -> float:
    """Return about how many tokens a state reads freely, by its groups and bytes or negative characters.

    The estimate takes groups to be independent. It leaves the first character of tokens out of account: behind a first
    character of another group the walk comes to a state that is often known already.
    """
    share = array_at(header[AT_SHARES], header[AT_SHARES + 1], np.float64)
    tokens = np.float64(share[64 + min(abs(np.int64(found)), np.int64(share.size - 65))]) if found else 0.0
    others = PLAIN & ~groups
    for g in range(64):
        if (others >> np.uint64(g)) & np.uint64(1):
            tokens *= share[g]
    return tokens


@kernel
def _stays(content: ContentState, classes: Int64Array, queue: Int64Array) -> bool:
    """Return whether all states in the queue that are between characters read all of some classes.

    They must lead to one another or to the free state.
    """
    transition, states = content.transition, content.label.size
    width, among = transition.size // states, np.zeros(states, np.bool_)
    for x in queue:
        if x & 7 == 0:
            among[x >> 3] = True
    for q in np.flatnonzero(among):
        for c in classes:
            to = transition[q * width + c]
            if to < 0 or not (to == content.free or among[to]):
                return False
    return True
