"""The states of JSON text that reads strings with all their escapes, made from the states of the strings' content.

A state of the text is a code: what has been read of an escape (a kind), a state of the content before the escape, and
bits of the character that are known by now.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...automata.dfa import BYTES
from ...automata.minimize import merge_columns
from ...kernels.arrays import slot_of
from ...kernels.compiled import kernel
from ...kernels.deadline import is_late

_QUOTE, _BACKSLASH, _CONTROL, _BEYOND = 27, 28, 29, 30  # sorts of bytes: see `_sorts_of_bytes`


def _sorts_of_bytes(ascii: bool) -> NDArray[np.int32]:
    """Return the sort of each byte: 0 for nothing special, a number of its own for each that escapes are made of."""
    sort = np.zeros(BYTES, np.int32)
    for i, byte in enumerate(b"0123456789abcdefABCDEFnrtu"):
        sort[byte] = i + 1
    sort[0x22], sort[0x5C], sort[:0x20] = _QUOTE, _BACKSLASH, _CONTROL
    if ascii:
        sort[0x7F:] = _BEYOND  # DEL too, as json.dumps has it
    return sort


SORTS, SORTS_ASCII = _sorts_of_bytes(False), _sorts_of_bytes(True)

# Kinds of states. _U00X is behind \u00 and a digit, for example. Behind more digits, UTF-8 bytes are to come: two;
# two, and the four highest bits of the first are known; one, and two bits of it are known.
_CONTENT, _ESCAPE, _U, _U0, _U0X, _U00X = 0, 1, 2, 3, 4, 5
_TWO, _TWO_HIGH, _ONE = 6, 7, 8
_UD, _HIGH, _HIGHER, _PAIR, _PAIR_ESCAPE, _PAIR_U, _PAIR_UD, _LOW = 9, 10, 11, 12, 13, 14, 15, 16  # surrogate pairs


@kernel
def texts_of(
    class_of: NDArray[np.uint16], transition: NDArray[np.int32], label: NDArray[np.int32], sorts: NDArray[np.int32],
    ascii: bool,
) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:  # fmt: skip
    """Return class_of (256,) and transition (N, C) of the texts of a content automaton; -2 - label for an end.

    sorts: (256,) of bytes. Unless ascii, every state leads to an end, and states within an escape are shared by all
    that go on alike.
    """
    N, C = transition.shape
    wide, byte_of = _byte_classes(class_of, sorts, C)
    K = byte_of.size
    first = _alike_in_escapes(class_of, transition, sorts)
    short = np.full(256, -1, np.int32)  # the characters of short escapes
    short[98], short[102], short[110], short[114], short[116], short[34], short[92] = 8, 12, 10, 13, 9, 34, 92

    capacity = N + 1024
    slots = 1024
    while slots < 2 * capacity:
        slots *= 2
    codes = np.zeros(capacity, np.int64)
    rows = np.full((capacity, K), -1, np.int32)
    count = 1  # codes[0] is the content's start: no kind, state or bits
    table = _table_of(codes, count, slots)
    i = 0
    while i < count and not is_late():
        if count + 300 > capacity:  # a row has at most 256 new targets
            more = 2 * capacity + 300
            grown_codes, grown_rows = np.zeros(more, np.int64), np.full((more, K), -1, np.int32)
            grown_codes[:capacity] = codes
            grown_rows[:capacity] = rows
            codes, rows, capacity = grown_codes, grown_rows, more
            while slots < 2 * capacity:
                slots *= 2
            table = _table_of(codes, count, slots)
        kind, s, x = codes[i] >> 48, (codes[i] >> 8) & 0xFFFFFFFF, codes[i] & 0xFF
        for k in range(K):
            byte = byte_of[k]
            sort = sorts[byte]
            to, t, known = _CONTENT, -1, 0
            if kind == _CONTENT:
                if sort == _QUOTE:
                    if label[s] >= 0:
                        rows[i, k] = -2 - label[s]
                elif sort == _BACKSLASH:
                    to, t = _ESCAPE, first[s]
                elif sort < _CONTROL:
                    t = transition[s, class_of[byte]]
            elif kind == _ESCAPE:
                if byte == 117:
                    to, t = _U, s
                elif short[byte] >= 0:
                    t = transition[s, class_of[short[byte]]]
            elif kind == _PAIR:
                if byte == 92:
                    to, t, known = _PAIR_ESCAPE, s, x
            elif kind == _PAIR_ESCAPE:
                if byte == 117:
                    to, t, known = _PAIR_U, s, x
            else:
                digit = sort - 1 if sort < 17 else sort - 7
                if 0 <= digit < 16:
                    if kind <= _U00X:
                        to, t, known = _behind_first_digits(kind, s, x, digit, class_of, transition, ascii)
                    else:
                        to, t, known = _behind_digits(kind, s, x, digit, class_of, transition)
            if t < 0:
                continue
            code = (np.int64(to) << 48) | (np.int64(t) << 8) | np.int64(known)
            slot = slot_of(code, slots)
            while table[slot] >= 0 and codes[table[slot]] != code:
                slot = (slot + 1) & (slots - 1)
            if table[slot] < 0:
                table[slot] = count
                codes[count] = code
                count += 1
            rows[i, k] = table[slot]
        i += 1
    # most digits and letters do nothing that others do not
    narrow, columns = merge_columns(wide, rows[:count])
    small = np.empty((count, columns.size), np.int32)
    for j in range(count):
        for k in range(columns.size):
            small[j, k] = rows[j, columns[k]]
    return narrow, small


@kernel
def _byte_classes(
    class_of: NDArray[np.uint16], sorts: NDArray[np.int32], classes: int
) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Return the classes of bytes by their class in the content and their sort (256,), and a byte of each (K,)."""
    number = np.full(32 * classes, -1, np.int32)
    wide = np.empty(256, np.uint16)
    byte_of = np.empty(256, np.int32)
    count = 0
    for byte in range(256):
        key = 32 * class_of[byte] + sorts[byte]
        if number[key] < 0:
            number[key] = count
            byte_of[count] = byte
            count += 1
        wide[byte] = number[key]
    return wide, byte_of[:count]


@kernel
def _alike_in_escapes(
    class_of: NDArray[np.uint16], transition: NDArray[np.int32], sorts: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return for each state (N,) the first from which escapes go on alike; -1 where there is no escape."""
    N, C = transition.shape
    escaping = np.zeros(C, np.bool_)  # classes of bytes that escapes stand for
    for byte in range(256):
        if sorts[byte] >= _QUOTE:
            escaping[class_of[byte]] = True
    slots = 16
    while slots < 2 * N:
        slots *= 2
    table = np.full(slots, -1, np.int32)
    first = np.full(N, -1, np.int32)
    for s in range(N):
        digest = np.uint64(0)
        some = False
        for c in range(C):
            if escaping[c]:
                some = some or transition[s, c] >= 0
                digest = (digest ^ np.uint64(transition[s, c] + 1)) * np.uint64(0x9E3779B97F4A7C15)
                digest ^= digest >> np.uint64(29)
        if not some:
            continue
        slot = np.int64(digest & np.uint64(slots - 1))
        while table[slot] >= 0:
            c = 0
            while c < C and (not escaping[c] or transition[table[slot], c] == transition[s, c]):
                c += 1
            if c == C:
                break
            slot = (slot + 1) & (slots - 1)
        if table[slot] < 0:
            table[slot] = s
        first[s] = table[slot]
    return first


@kernel
def _table_of(codes: NDArray[np.int64], count: int, slots: int) -> NDArray[np.int32]:
    """Return a hash table (slots,) of the places of the first codes, which are distinct."""
    table = np.full(slots, -1, np.int32)
    for j in range(count):
        slot = slot_of(codes[j], slots)
        while table[slot] >= 0:
            slot = (slot + 1) & (slots - 1)
        table[slot] = j
    return table


@kernel
def _behind_first_digits(
    kind: int, s: int, x: int, digit: int, class_of: NDArray[np.uint16], transition: NDArray[np.int32], ascii: bool
) -> tuple[int, int, int]:
    r"""Return where a digit leads behind \u, \u0, \u0X and \u00X: a kind, a state of the content, known bits."""
    to, t, known = _CONTENT, -1, 0
    if kind == _U:
        if digit == 0:
            to, t = _U0, s
        elif ascii and digit == 13:
            to, t = _UD, s
        elif ascii:
            to, t = _TWO, transition[s, class_of[0xE0 | digit]]
    elif kind == _U0:
        if digit == 0 or (ascii and digit < 8):
            to, t, known = _U0X, s, digit
        elif ascii:
            to, t, known = _TWO_HIGH, transition[s, class_of[0xE0]], digit
    elif kind == _U0X:
        if x > 0 or digit >= 8:
            if ascii:
                to, t, known = _ONE, transition[s, class_of[0xC0 | x << 2 | digit >> 2]], digit & 3
        elif digit < 3 or digit == 5 or (ascii and digit == 7):
            some, same = False, digit == 1  # as after another zero
            for low in range(16):
                char = digit << 4 | low
                if digit < 2 or char == 0x22 or char == 0x5C or char == 0x7F:
                    some = some or transition[s, class_of[char]] >= 0
                same = same and transition[s, class_of[char]] == transition[s, class_of[low]]
            if some:
                to, t, known = _U00X, s, 0 if same else digit
    elif x < 2 or (x == 2 and digit == 2) or (x == 5 and digit == 12) or (x == 7 and digit == 15):
        t = transition[s, class_of[x << 4 | digit]]
    return to, t, known


@kernel
def _behind_digits(
    kind: int, s: int, x: int, digit: int, class_of: NDArray[np.uint16], transition: NDArray[np.int32]
) -> tuple[int, int, int]:
    """Return where a digit leads behind further digits of an escape: a kind, a state of the content, known bits."""
    to, t, known = _CONTENT, -1, 0
    if kind == _TWO:
        to, t, known = _TWO_HIGH, s, digit
    elif kind == _TWO_HIGH:
        to, t, known = _ONE, transition[s, class_of[0x80 | x << 2 | digit >> 2]], digit & 3
    elif kind == _ONE:
        t = transition[s, class_of[0x80 | x << 4 | digit]]
    elif kind == _UD:
        if digit < 8:
            to, t, known = _TWO_HIGH, transition[s, class_of[0xED]], digit
        elif digit < 12:
            to, t, known = _HIGH, s, digit & 3
    elif kind == _HIGH:  # bits 19 .. 14 of what the pair stands for, which is the character less 10000
        plane = (x << 2 | digit >> 2) + 1
        to, t = _HIGHER, transition[s, class_of[0xF0 | plane >> 2]]
        known = (plane & 3) << 2 | (digit & 3)
    elif kind == _HIGHER:  # bits 17 .. 10 of the character are known: a byte, and two bits of the next one
        to, t, known = _PAIR, transition[s, class_of[0x80 | x << 2 | digit >> 2]], digit & 3
    elif kind == _PAIR_U:
        if digit == 13:
            to, t, known = _PAIR_UD, s, x
    elif kind == _PAIR_UD:
        if digit >= 12:
            to, t, known = _LOW, s, x << 2 | (digit & 3)
    elif kind == _LOW:
        to, t, known = _ONE, transition[s, class_of[0x80 | x << 2 | digit >> 2]], digit & 3
    return to, t, known
