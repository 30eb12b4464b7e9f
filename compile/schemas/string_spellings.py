r"""The alphabets of a schema's rules: characters outside strings, and those inside by how they may be spelled."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...automata.alphabet import NOTHING, Alphabet, string_alphabet, utf8_alphabet
from ...automata.utf8 import LAST, Ranges
from .string_formulas import Spelling

_SHORT = {0x22: b'"', 0x5C: b"\\", 0x08: b"b", 0x0C: b"f", 0x0A: b"n", 0x0D: b"r", 0x09: b"t"}
_LOWER, _UPPER = b"0123456789abcdef", b"0123456789ABCDEF"

Numbers = NDArray[np.int32]


def structure_alphabet(characters: str) -> Alphabet:
    """Return the alphabet that tells some characters of ASCII apart from each other and all others."""
    return utf8_alphabet(tuple([((ord(c), ord(c)),) for c in dict.fromkeys(characters)]))


@lru_cache(maxsize=64)
def spelled_alphabet(sets: tuple[Ranges, ...], spelling: Spelling, ascii: bool) -> Alphabet:
    """Return the classes that some sets of characters tell apart, as they are spelled in strings of JSON.

    The class of the closing quote is `end`.
    """
    if spelling is Spelling.NEEDED or (spelling is Spelling.KEY and ascii):
        return string_alphabet(sets, ascii)
    plain = utf8_alphabet(sets)
    class_of = np.repeat(plain.class_of_range, np.diff(plain.starts, append=LAST + 1))
    raw, short, units = _ways(spelling, ascii)
    rows = _Rows(list(plain.inner))
    root = np.full(256, NOTHING, np.int32)
    root[raw] = plain.root[raw]
    if not ascii:
        root[0x80:] = plain.root[0x80:]
    digits = _LOWER if spelling is Spelling.ONE else _LOWER + _UPPER[10:]
    leads = np.full(1 << 16, NOTHING, np.int32)
    leads[units] = ~class_of[units]
    if units[-1] == 0xFFFF:
        pairs, back = _lines(~class_of[1 << 16 :], 1024)
        behind = np.array([_low_surrogate(line, rows, digits) for line in pairs], np.int32)
        leads[0xD800:0xDC00] = behind[back]
    escape = np.full(256, NOTHING, np.int32)
    escape[ord("u")] = _hexadecimal(leads, rows, digits)
    for point, letter in short.items():
        escape[letter[0]] = ~class_of[point]
    root[0x5C] = rows.add(escape)
    root[0x22] = ~plain.classes
    return Alphabet(
        plain.classes + 1, root, np.array(rows.made, np.int32).reshape(-1, 256), plain.starts, plain.class_of_range,
        plain.classes,
    )  # fmt: skip


def _ways(spelling: Spelling, ascii: bool) -> tuple[list[int], dict[int, bytes], NDArray[np.int64]]:
    """Return the characters of ASCII that are written as they are, short escapes, and what four digits stand for."""
    raw = [point for point in range(0x20, 0x7F if ascii else 0x80) if point not in (0x22, 0x5C)]
    every = np.arange(1 << 16)
    scalar = (every < 0xD800) | (every > 0xDFFF)
    if spelling is Spelling.ANY:
        return raw, _SHORT | {0x2F: b"/"}, every[scalar]
    beyond = (every >= 0x7F) & scalar
    if spelling is Spelling.KEY:
        return raw, _SHORT, every[(every < 0x20) | (every == 0x22) | (every == 0x5C) | beyond]
    needed = (every < 0x20) & ~np.isin(every, list(_SHORT))
    return raw, _SHORT, every[needed | beyond] if ascii else every[needed]


class _Rows:
    """The rows of an alphabet, equal ones once."""

    def __init__(self, made: list[Numbers]) -> None:
        self.made = made
        self._number = {row.tobytes(): n for n, row in enumerate(made)}

    def add(self, row: Numbers) -> int:
        """Return the number of a row; NOTHING where it leads nowhere."""
        if (row == NOTHING).all():
            return NOTHING
        key = row.tobytes()
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(self.made)
            self.made.append(row)
        return found


def _lines(leads: Numbers, width: int) -> tuple[Numbers, NDArray[np.int64]]:
    """Return the distinct lines (u, width) of an array cut into lines, and for each line which it is."""
    lines = np.ascontiguousarray(leads.reshape(-1, width), np.int32)
    even = (lines == lines[:, :1]).all(axis=1)  # most are, and cheap to tell apart
    number: dict[bytes, int] = {}
    back = np.empty(len(lines), np.int64)
    values, of_value = np.unique(lines[even, 0], return_inverse=True)
    back[even] = of_value
    unique = [np.full(width, value, np.int32) for value in values.tolist()]
    for n in np.flatnonzero(~even).tolist():
        key = lines[n].tobytes()
        if key not in number:
            number[key] = len(unique)
            unique.append(lines[n])
        back[n] = number[key]
    return np.array(unique, np.int32), back


def _hexadecimal(leads: Numbers, rows: _Rows, digits: bytes) -> int:
    """Return the row that reads as many digits as tell so many codes apart, a power of 16."""
    while leads.size > 1:
        unique, back = _lines(leads, 16)
        numbers = []
        for line in unique:
            row = np.full(256, NOTHING, np.int32)
            for digit in digits:
                row[digit] = line[int(chr(digit), 16)]
            numbers.append(rows.add(row))
        leads = np.array(numbers, np.int32)[back]
    return int(leads[0])


def _low_surrogate(line: Numbers, rows: _Rows, digits: bytes) -> int:
    """Return the row that reads the escape of a low surrogate. line: where each leads (1024,)."""
    leads = np.full(1 << 16, NOTHING, np.int32)
    leads[0xDC00:0xE000] = line
    found = _hexadecimal(leads, rows, digits)
    for byte in b"u\\":
        row = np.full(256, NOTHING, np.int32)
        row[byte] = found
        found = rows.add(row)
    return found
