r"""Alphabets: classes of characters that some sets tell apart, and how bytes spell them.

A machine of characters needs one cell for each class, however many characters there are. That a character takes several
bytes costs it no states: those lie in the alphabet, and all states of a machine share them.

>>> alphabet = utf8_alphabet((((0x61, 0x7A),), ((0xE9, 0xE9),)))
>>> alphabet.classes, alphabet.class_of("b") == alphabet.class_of("z"), alphabet.class_of("A") == alphabet.class_of("1")
(3, True, True)
>>> inner = alphabet.root[0xC3]  # é is C3 A9
>>> int(~alphabet.inner[inner, 0xA9]) == alphabet.class_of("é")
True
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from .utf8 import LAST, Ranges

NOTHING = -(1 << 30)
"""In place of where a byte leads: nowhere."""
_ASCII = 0x80
_SURROGATES = 0xD800, 0xE000
_SHORT = {0x22: b'"', 0x5C: b"\\", 0x08: b"b", 0x0C: b"f", 0x0A: b"n", 0x0D: b"r", 0x09: b"t"}
_HEX = b"0123456789abcdef", b"0123456789ABCDEF"
_DIGITS = np.array([list(digits) for digits in _HEX])  # (2, 16)

_NO_ROW = np.full(256, NOTHING, np.int32)

Numbers = NDArray[np.int32]


class Spelling(IntEnum):
    """How characters of a string of JSON are written."""

    ANY = 1  # by any of their escapes, or as they are
    NEEDED = 2  # by an escape if they need one
    KEY = 3  # by any of their escapes, or as they are, but for printable ASCII
    ONE = 4  # in the one way of json.dumps


@dataclass(frozen=True, eq=False)
class Alphabet:
    """Classes 0 .. classes - 1 of characters, and the bytes that spell them.

    `root` (256,) says where a byte leads between characters, row n of `inner` (N, 256) where it leads at place n within
    a character: to a place n >= 0, to the end of a character of class c as ~c, or to `NOTHING`.
    """

    classes: int
    root: Numbers
    inner: Numbers
    starts: Numbers  # (R,) the first code point of each range of one class, ascending from 0
    class_of_range: Numbers  # (R,) -1 for surrogates
    end: int = -1  # the class of the quote that ends a string of JSON, -1 of other alphabets

    def class_of(self, character: str) -> int:
        """Return the class of a character."""
        if character < "\x80":
            return self._ascii[ord(character)]
        return int(self.class_of_range[np.searchsorted(self.starts, ord(character), "right") - 1])

    @cached_property
    def _ascii(self) -> list[int]:
        """The class of each character of ASCII (128,)."""
        out: list[int] = _spread(*_part(self.starts, self.class_of_range, 0, _ASCII), _ASCII).tolist()
        return out

    @cached_property
    def representatives(self) -> list[int]:
        """A code point of each class (classes,), one of printable ASCII where there is one; -1 for `end`."""
        out = [-1] * self.classes
        for first, c in zip(self.starts.tolist(), self.class_of_range.tolist(), strict=True):
            if c >= 0 and out[c] < 0:
                out[c] = first
        for point in range(0x20, 0x7F):
            c = self.class_of(chr(point))
            if not 0x20 <= out[c] < 0x7F:
                out[c] = point
        return out

    @cached_property
    def reach(self) -> NDArray[np.uint64]:
        """The classes in reach within a character (N, W), as bits."""
        count = len(self.inner)
        bits = np.zeros((count, 64 * -(-self.classes // 64)), np.bool_)
        rows, bytes_ = np.nonzero((self.inner < 0) & (self.inner != NOTHING))
        bits[rows, ~self.inner[rows, bytes_]] = True
        for n in np.flatnonzero((self.inner >= 0).any(axis=1)):  # a row leads to rows before it
            below = np.unique(self.inner[n])
            below = below[below >= 0]
            if below.size:
                bits[n] |= bits[below].any(axis=0)
        return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


class _Rows:
    """The rows of `inner` that are being made, equal ones once."""

    def __init__(self, made: Numbers) -> None:
        self._made = list(made)
        self._number = {row.tobytes(): n for n, row in enumerate(made)}
        self._number[_NO_ROW.tobytes()] = NOTHING

    def add(self, leads: Numbers, bytes_: NDArray[np.int64]) -> Numbers:
        """Return the row for each line of leads (n, k), of which column j says where the bytes bytes_[:, j] lead.

        A line that leads nowhere has no row: it is `NOTHING`.
        """
        unique, back = _unique(leads)
        rows = np.full((len(unique), 256), NOTHING, np.int32)
        rows[:, bytes_] = unique[:, None]
        return np.array([self._number_of(row) for row in rows], np.int32)[back]

    def _number_of(self, row: Numbers) -> int:
        key = row.tobytes()
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(self._made)
            self._made.append(row)
        return found

    def array(self) -> Numbers:
        return np.array(self._made, np.int32).reshape(-1, 256)


def _unique(lines: Numbers) -> tuple[Numbers, NDArray[np.int64]]:
    """Return the distinct lines (u, k), and for each line (n,) which it is. Most lines hold one number throughout."""
    lines = np.ascontiguousarray(lines, np.int32)
    count, width = lines.shape
    even = (lines == lines[:, :1]).all(axis=1)
    values, back_even = np.unique(lines[even, 0], return_inverse=True)
    mixed = lines[~even]
    _, first, back_mixed = np.unique(mixed.view(f"V{4 * width}").ravel(), return_index=True, return_inverse=True)
    back = np.empty(count, np.int64)
    back[even] = back_even
    back[~even] = back_mixed + len(values)
    return np.concatenate((np.repeat(values[:, None], width, axis=1), mixed[first])), back


@lru_cache(maxsize=256)
def utf8_alphabet(sets: tuple[Ranges, ...]) -> Alphabet:
    """Return the classes that some sets of characters tell apart, spelled by UTF-8 (RFC 3629)."""
    starts, number, classes = _partition(sets)
    beyond, inner = _beyond_ascii(*_part(starts, number, _ASCII, LAST + 1))
    root = np.full(256, NOTHING, np.int32)
    root[:_ASCII] = ~_spread(*_part(starts, number, 0, _ASCII), _ASCII)
    root[0xC2:] = beyond
    return Alphabet(classes, root, inner, starts, number)


@lru_cache(maxsize=64)
def string_alphabet(sets: tuple[Ranges, ...], spelling: Spelling, ascii: bool) -> Alphabet:
    """Return the classes that some sets tell apart, spelled as in a string of JSON; its closing quote is `end`.

    ascii: whether DEL and what is beyond ASCII are escapes alone, as json.dumps has it. Characters beyond the basic
    plane are two of them.
    """
    starts, number, classes = _partition(sets)
    plain = utf8_alphabet(sets)
    rows = _Rows(plain.inner[: 0 if ascii else None])
    root = plain.root.copy()
    root[0x7F if ascii else 256 :] = NOTHING
    root[[*range(0x20), 0x22, 0x5C]] = NOTHING
    digits = _DIGITS[: 1 if spelling is Spelling.ONE else 2]
    is_escaped = _by_four_digits(spelling, ascii)
    units = _leads(_spread(*_part(starts, number, 0, 1 << 16), 1 << 16))  # where an escape of four digits leads
    units[~is_escaped] = NOTHING
    if is_escaped[-1]:
        lines, line_of = _blocks(starts, number, np.arange(1 << 6, (LAST + 1) >> 10), 10)
        units[0xD800:0xDC00] = _low_surrogates(_leads(lines), rows, digits)[line_of]
    leads = units.reshape(-1, 16)
    for _ in range(3):
        leads = rows.add(leads, digits).reshape(-1, 16)
    escapes = np.full(256, NOTHING, np.int32)
    escapes[ord("u")] = rows.add(leads, digits)[0]
    for point, letter in _SHORT.items():
        escapes[letter[0]] = plain.root[point]
    if spelling is Spelling.ANY:
        escapes[0x2F] = plain.root[0x2F]
    root[0x5C] = rows.add(escapes[None], np.arange(256)[None])[0]
    root[0x22] = ~classes
    return Alphabet(classes + 1, root, rows.array(), starts, number, classes)


def _by_four_digits(spelling: Spelling, ascii: bool) -> NDArray[np.bool_]:
    """Return which characters of the basic plane (65536,) an escape of four digits may stand for."""
    points = np.arange(1 << 16)
    scalar = (points < _SURROGATES[0]) | (points >= _SURROGATES[1])
    if spelling is Spelling.ANY:
        return scalar
    must: NDArray[np.bool_] = (points < 0x20) | (points == 0x22) | (points == 0x5C)
    if spelling is Spelling.ONE:
        must &= ~np.isin(points, list(_SHORT))
    if ascii or spelling is Spelling.KEY:
        must |= (points >= 0x7F) & scalar
    return must


def _low_surrogates(leads: Numbers, rows: _Rows, digits: NDArray[np.int64]) -> Numbers:
    """Return where high surrogates lead (n,): to rows that read the escape of a low one. leads: of pairs (n, 1024)."""
    for _ in range(2):
        leads = rows.add(leads.reshape(-1, 16), digits)
    last = np.full((len(leads) // 4, 16), NOTHING, np.int32)  # DC00 .. DFFF
    last[:, 0xC:] = leads.reshape(-1, 4)
    found = rows.add(last, digits)
    for bytes_ in (digits[:, 0xD], b"u", b"\\"):
        found = rows.add(found[:, None], np.array([[each] for each in bytes_]))
    return found


def _partition(sets: tuple[Ranges, ...]) -> tuple[Numbers, Numbers, int]:
    """Return (starts, the class of each range, classes) of what sets tell apart: see `Alphabet`."""
    bounds = np.array([pair for ranges in sets for pair in ranges], np.int32).reshape(-1, 2)
    bounds[:, 1] += 1
    starts = np.unique(np.concatenate((np.array([0, *_SURROGATES], np.int32), bounds.ravel())))
    starts = starts[starts <= LAST]
    set_of = np.repeat(np.arange(len(sets)), [len(ranges) for ranges in sets])
    change = np.zeros((len(sets) + 1, len(starts) + 1), np.int16)
    np.add.at(change, (set_of, np.searchsorted(starts, bounds[:, 0])), 1)
    np.add.at(change, (set_of, np.searchsorted(starts, bounds[:, 1])), -1)
    member = np.cumsum(change[:, :-1], axis=1, dtype=np.int16) > 0
    surrogate = (starts >= _SURROGATES[0]) & (starts < _SURROGATES[1])
    packed = np.packbits(member[:, ~surrogate], axis=0).T
    _, first, back = np.unique(
        np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel(), return_index=True, return_inverse=True
    )
    order = np.empty(len(first), np.int32)
    order[np.argsort(first)] = np.arange(len(first))  # classes in the order in which they come
    number = np.full(len(starts), -1, np.int32)
    number[~surrogate] = order[back]
    return starts, number, len(first)


def _part(starts: Numbers, number: Numbers, low: int, high: int) -> tuple[Numbers, Numbers]:
    """Return the ranges of the code points low .. high - 1."""
    first, stop = int(np.searchsorted(starts, low, "right")) - 1, int(np.searchsorted(starts, high))
    part = starts[first:stop].copy()
    part[0] = low
    return part, number[first:stop]


def _spread(starts: Numbers, number: Numbers, stop: int) -> Numbers:
    """Return the class of each code point from the first start up to `stop`."""
    return np.repeat(number, np.diff(starts, append=stop))


def _blocks(
    starts: Numbers, number: Numbers, blocks: NDArray[np.int64], bits: int
) -> tuple[Numbers, NDArray[np.int64]]:
    """Return (lines (n, 1 << bits), the line of each block): the classes in some blocks of 1 << bits code points.

    Most blocks are of one class, and these share a line.
    """
    at = np.searchsorted(starts, blocks << bits, "right") - 1
    is_mixed = np.append(starts, LAST + 1)[at + 1] < (blocks + 1) << bits
    points = (blocks[is_mixed, None] << bits) + np.arange(1 << bits)
    mixed = number[np.searchsorted(starts, points, "right") - 1]
    classes, back = np.unique(number[at[~is_mixed]], return_inverse=True)
    line_of = np.empty(len(blocks), np.int64)
    line_of[~is_mixed] = back
    line_of[is_mixed] = len(classes) + np.arange(len(mixed))
    return np.concatenate((np.repeat(classes[:, None], 1 << bits, axis=1), mixed)), line_of


def _leads(classes: Numbers) -> Numbers:
    """Return where whole characters of some classes lead; -1, of surrogates, leads nowhere."""
    return np.where(classes >= 0, ~classes, np.int32(NOTHING))


def _beyond_ascii(starts: Numbers, number: Numbers) -> tuple[Numbers, Numbers]:
    """Return where the bytes C2 .. FF lead, and the rows behind them, for the ranges of code points beyond ASCII."""
    changes = np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1])))
    classes, local = np.unique(number[changes], return_inverse=True)
    beyond, inner = _rows_beyond(starts[changes].tobytes(), local.astype(np.int32).tobytes())
    # -1, of surrogates, comes first, so that class k there is classes[k + 1]
    named = np.append(~classes[1:], NOTHING).astype(np.int32)

    def renamed(leads: Numbers) -> Numbers:
        return np.where(leads >= 0, leads, named[np.clip(~leads, 0, len(named) - 1)])

    return renamed(beyond), renamed(inner)


@lru_cache(maxsize=256)
def _rows_beyond(starts_bytes: bytes, local_bytes: bytes) -> tuple[Numbers, Numbers]:
    """Return the same as `_beyond_ascii`, with classes counted from 1, and 0 for surrogates, less one."""
    starts, local = np.frombuffer(starts_bytes, np.int32), np.frombuffer(local_bytes, np.int32) - 1
    rows = _Rows(np.empty((0, 256), np.int32))
    last = np.arange(0x80, 0xC0)[None]
    blocks = np.arange(2, (LAST + 1) >> 6)
    lines, line_of = _blocks(starts, local, blocks, 6)  # the last byte of a character chooses from such a block
    of_block = np.full(5 << 12, NOTHING, np.int32)
    of_block[blocks] = rows.add(_leads(lines), last)[line_of]
    beyond = np.full(256 - 0xC2, NOTHING, np.int32)
    beyond[: 0xE0 - 0xC2] = of_block[2:32]
    of_block[:32] = NOTHING  # no character is longer than it need be
    of_group = rows.add(of_block.reshape(-1, 64), last)
    beyond[0xE0 - 0xC2 : 0xF0 - 0xC2] = of_group[:16]
    of_group[:16] = NOTHING
    beyond[0xF0 - 0xC2 : 0xF5 - 0xC2] = rows.add(of_group.reshape(-1, 64), last)
    return beyond, rows.array()


def shortest_spellings(alphabet: Alphabet) -> list[bytes]:
    """Return the shortest bytes of each class of characters; b"" where none spell it."""
    found = [b""] * alphabet.classes
    rows = [(alphabet.root, b"")]
    seen: set[int] = set()
    for row, before in rows:  # which grows, by length
        for byte in np.flatnonzero(row != NOTHING).tolist():
            to = int(row[byte])
            if to < 0:
                found[~to] = found[~to] or before + bytes([byte])
            elif to not in seen:
                seen.add(to)
                rows.append((alphabet.inner[to], before + bytes([byte])))
    return found
