"""What is left of a token when a fragment ends in its middle.

A token that ends a fragment is an *exit*. The bytes behind the end are a *remainder*, which the site on top of the
stack reads on. A remainder and the label of the end make a *symbol*. Sites say where symbols lead; most lead nowhere.

Kernels take names from this file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.compiled import kernel
from .arrays import REMAINDERS, SYMBOLS, TokenText

ADMIT_NONE, ADMIT_ANY, ADMIT_JSON = range(3)
"""Which new remainders a text may go on with: none, any, those that JSON may go on with."""


# columns of remainders: a token that ends with the remainder, where it begins in it, whether a text may go on with it
TOKEN, OFFSET, ALIVE = range(3)
# columns of symbols
REMAINDER, LABEL = range(2)


class Symbols(NamedTuple):
    """Remainders and symbols, found by hash; they grow, so each compilation has a copy.

    Columns lie in one array, as a kernel that is called for each exit takes few arrays.
    """

    slots: NDArray[np.int32]  # remainder by hash of its bytes, -1 empty
    remainders: NDArray[np.int32]  # (R, 3) see TOKEN
    symbol_slots: NDArray[np.int32]  # symbol by hash of (label, remainder)
    symbols: NDArray[np.int32]  # (Y, 2) see REMAINDER

    @property
    def token(self) -> NDArray[np.int32]:
        """(R,) a token that ends with each remainder."""
        return self.remainders[:, TOKEN]

    @property
    def offset(self) -> NDArray[np.int32]:
        """(R,) where each remainder begins in this token."""
        return self.remainders[:, OFFSET]

    @property
    def remainder(self) -> NDArray[np.int32]:
        """(Y,) of each symbol."""
        return self.symbols[:, REMAINDER]

    @property
    def label(self) -> NDArray[np.int32]:
        """(Y,) of each symbol."""
        return self.symbols[:, LABEL]

    def copied(self, remainders: int, used: int) -> Symbols:
        """Return the first remainders and symbols in arrays of their own, with the same room."""
        out = Symbols(
            self.slots.copy(), np.empty_like(self.remainders), self.symbol_slots.copy(), np.empty_like(self.symbols)
        )
        out.remainders[:remainders], out.symbols[:used] = self.remainders[:remainders], self.symbols[:used]
        return out


def empty_symbols(size: int) -> Symbols:
    """Return symbols with that many slots, a power of two."""
    return Symbols(
        slots=np.full(size, -1, np.int32),
        remainders=np.empty((size, 3), np.int32),
        symbol_slots=np.full(size, -1, np.int32),
        symbols=np.empty((size, 2), np.int32),
    )


def more_symbols(symbols: Symbols, text: TokenText, counters: NDArray[np.int64]) -> Symbols:
    """Return the symbols in four times the room."""
    remainders, used = int(counters[REMAINDERS]), int(counters[SYMBOLS])
    out = empty_symbols(4 * symbols.slots.size)
    out.remainders[:remainders], out.symbols[:used] = symbols.remainders[:remainders], symbols.symbols[:used]
    place_symbols(out, text, remainders, used)
    return out


def bare_remainder(symbols: Symbols, text: TokenText, count: int) -> int:
    """Return the remainder without bytes among the first ones, -1 if no token ends where a fragment does."""
    token = symbols.token[:count]
    found = np.flatnonzero(text.start[token] + symbols.offset[:count] == text.start[token + 1])
    return int(found[0]) if found.size else -1


def name_ends(symbols: Symbols, labels: int, nothing: int, text: TokenText, counters: NDArray[np.int64]) -> Symbols:
    """Make a symbol for the bare end of every label from 1 to labels - 1; the symbols may grow.

    A table knows by these how far it is from a site to the end. nothing: the remainder without bytes.
    """
    while 2 * (int(counters[SYMBOLS]) + labels) > symbols.symbol_slots.size:
        symbols = more_symbols(symbols, text, counters)
    used = int(counters[SYMBOLS])
    known = set(symbols.label[:used][symbols.remainder[:used] == nothing].tolist())
    for label in set(range(1, labels)) - known:
        y = int(counters[SYMBOLS])
        symbols.symbols[y] = nothing, label
        size = symbols.symbol_slots.size
        at = (nothing * 31 + label * 7919) & (size - 1)
        while symbols.symbol_slots[at] >= 0:
            at = (at + 1) & (size - 1)
        symbols.symbol_slots[at] = y
        counters[SYMBOLS] += 1
    return symbols


@kernel(inline="always")
def is_full(counters: NDArray[np.int64], slots: NDArray[np.int32], symbol_slots: NDArray[np.int32]) -> bool:
    """Return whether another remainder or symbol would make looking for one slow."""
    return bool(2 * counters[REMAINDERS] + 8 > slots.size or 2 * counters[SYMBOLS] + 8 > symbol_slots.size)


@kernel
def symbol_of(
    v: int, offset: int, label: int, data: NDArray[np.uint8], start: NDArray[np.int32], slots: NDArray[np.int32],
    remainders: NDArray[np.int32], symbol_slots: NDArray[np.int32], symbols: NDArray[np.int32],
    counters: NDArray[np.int64], admit: int,
) -> np.int32:  # fmt: skip
    """Return the symbol of a label and the bytes of token v from `offset` on; -1 if no text goes on with these.

    data, start: see `TokenText`; slots .. symbols: see `Symbols`, whose arrays are passed one by one as this takes a
    third of the time. admit: see `ADMIT_NONE`. The symbol is made if it is new: `is_full` says whether there is room.
    """
    lo, hi = start[v] + offset, start[v + 1]
    if admit == ADMIT_JSON and hi - lo > 1 and data[lo] >= 0x61:
        a, b = data[lo], data[lo + 1]  # a word that is none of null, true, false: half the vocabulary
        if (a == 0x74 and b != 0x72) or (a == 0x66 and b != 0x61) or (a == 0x6E and b != 0x75):
            return np.int32(-1)
    key = np.uint64(14695981039346656037)
    for k in range(lo, hi):
        key = (key ^ np.uint64(data[k])) * np.uint64(1099511628211)
    at = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(slots.size - 1))
    while True:
        r = slots[at]
        if r < 0:
            break
        first = start[remainders[r, TOKEN]] + remainders[r, OFFSET]
        if start[remainders[r, TOKEN] + 1] - first == hi - lo:
            same = True
            for k in range(hi - lo):
                if data[first + k] != data[lo + k]:
                    same = False
                    break
            if same:
                break
        at = (at + 1) & (slots.size - 1)
    if r < 0:
        r = np.int32(counters[REMAINDERS])
        counters[REMAINDERS] += 1
        slots[at] = r
        remainders[r, TOKEN], remainders[r, OFFSET], remainders[r, ALIVE] = v, offset, admit != ADMIT_NONE
    if not remainders[r, ALIVE]:
        return np.int32(-1)
    at = (np.int64(r) * 31 + np.int64(label) * 7919) & (symbol_slots.size - 1)
    while True:
        y = symbol_slots[at]
        if y < 0:
            break
        if symbols[y, REMAINDER] == r and symbols[y, LABEL] == label:
            return np.int32(y)
        at = (at + 1) & (symbol_slots.size - 1)
    y = np.int32(counters[SYMBOLS])
    counters[SYMBOLS] += 1
    symbol_slots[at] = y
    symbols[y, REMAINDER], symbols[y, LABEL] = r, label
    return y


@kernel
def place_symbols(found: Symbols, text: TokenText, count: int, used: int) -> None:
    """Put the first remainders and symbols into empty slots, where `symbol_of` looks for them."""
    data, start, slots, symbol_slots = text.data, text.start, found.slots, found.symbol_slots
    remainders, symbols = found.remainders, found.symbols
    for r in range(count):
        key = np.uint64(14695981039346656037)
        v = remainders[r, TOKEN]
        for k in range(start[v] + remainders[r, OFFSET], start[v + 1]):
            key = (key ^ np.uint64(data[k])) * np.uint64(1099511628211)
        at = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(slots.size - 1))
        while slots[at] >= 0:
            at = (at + 1) & (slots.size - 1)
        slots[at] = r
    for y in range(used):
        at = (np.int64(symbols[y, REMAINDER]) * 31 + np.int64(symbols[y, LABEL]) * 7919) & (symbol_slots.size - 1)
        while symbol_slots[at] >= 0:
            at = (at + 1) & (symbol_slots.size - 1)
        symbol_slots[at] = y
