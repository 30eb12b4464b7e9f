"""How few bytes of JSON the rest of a string takes, by the DFA of its content."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .string_content import Content

NO_WAY = 1 << 30
"""In place of a number of bytes, where no text ends."""
_CHARACTER = 1 << 31  # a character, where fewer characters matter before fewer bytes
_MOST_AT_ONCE = 1 << 20  # numbers that are added in one go
_LETTERS = (0x08, 0x09, 0x0A, 0x0C, 0x0D, 0x22, 0x5C)  # with escapes of one letter
_SPELT = (*range(0x20), 0x22, 0x5C)  # with escapes by number


def _weights(ascii: bool) -> NDArray[np.int64]:
    """Return how many bytes JSON takes for each byte of a content (256,)."""
    found = np.ones(256, np.int64)
    found[:0x20] = 6
    found[list(_LETTERS)] = 2
    if ascii:
        found[0x80:] = 6
    return found


_RAW, _ESCAPED = _weights(False), _weights(True)


def content_bytes(
    class_of: NDArray[Any], transition: NDArray[Any], label: NDArray[Any], *, counted: bool, ascii: bool = False
) -> NDArray[np.int64]:
    """Return the fewest bytes from each of N states to an end by each label (N, labels), without the quote.

    counted: the string has a bound on its characters; then a way with the fewest characters is meant, and the number is
    `_CHARACTER` for each of these, plus bytes. ascii: all other characters are escaped. From `NO_WAY` on there is none.
    """
    cost = (_ESCAPED if ascii else _RAW).copy()
    if counted:
        begins = np.ones(256, np.bool_)
        begins[0x80:0xC0] = False
        cost[begins] += _CHARACTER
    none = NO_WAY * _CHARACTER if counted else NO_WAY
    classes = transition.shape[1]
    least = np.full(classes, none, np.int64)
    np.minimum.at(least, class_of[:256].astype(np.int64), cost)
    states, labels = label.size, int(label.max(initial=0)) + 1
    found = np.full((states + 1, labels), none, np.int64)  # the last row is for no state
    ends = np.flatnonzero(label >= 0)
    found[ends, label[ends]] = 0
    ways = np.flatnonzero(least < none)
    to, more = transition[:, ways], least[ways, None]
    if to.size * labels > _MOST_AT_ONCE:
        to, more = to.T[:, :, None], more[:, None]  # class by class
    while True:
        before = found.copy()
        for targets, cost in zip(to, more, strict=True) if to.ndim == 3 else ((to, more),):
            np.minimum(found[:-1], (found[targets] + cost).min(axis=1), out=found[:-1])
        if (found == before).all():
            return np.minimum(found[:-1], none)


def bytes_of(found: NDArray[np.int64], counted: bool) -> NDArray[np.int64]:
    """Return the bytes of what `content_bytes` returned, `NO_WAY` where there is none."""
    if not counted:
        return np.minimum(found, NO_WAY)
    return np.where(found >= NO_WAY * _CHARACTER, NO_WAY, found % _CHARACTER)


def escape_bytes(content: Content, found: NDArray[np.int64], state: int, phase: int) -> NDArray[np.int64]:
    """Return the same by label (labels,) for a place within an escape behind a state; found: of `content_bytes`."""
    ways: list[tuple[int, int]]
    if phase == 1:
        ways = [(1, c) for c in _LETTERS] + [(5, c) for c in _SPELT]
    elif phase <= 4:
        ways = [(6 - phase, c) for c in _SPELT]
    else:
        low, high = ((0, 0x0F), (0x10, 0x1F), (0x22, 0x22), (0x5C, 0x5C))[phase - 5]
        ways = [(1, c) for c in range(low, high + 1)]
    counted = content.most >= 0
    best = np.full(found.shape[1], NO_WAY * _CHARACTER if counted else NO_WAY, np.int64)
    for size, character in ways:
        target = content.transition[state, content.class_of[character]]
        if target >= 0:
            np.minimum(best, found[target] + size + (_CHARACTER if counted else 0), out=best)
    return best
