"""How few bytes of JSON the rest of a string takes, by the DFA of its content."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .string_content import Content

NO_WAY = 1 << 30
"""In place of a number of bytes, where no text ends."""
_CHARACTER = 1 << 31  # a character, where fewer characters matter before fewer bytes
_MOST_TRANSITIONS = 1 << 23  # of an automaton that is searched
MOST_WORK = 1 << 24  # edges, by label, that a search may look at, which takes about a second
_ROUND = 1 << 10  # edges that take as long as to begin with a round
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
    `_CHARACTER` for each of these, plus bytes. ascii: all other characters are escaped. From `NO_WAY` on there is none,
    or none is known, as the automaton is too large: a search takes about a second at most.
    """
    cost = (_ESCAPED if ascii else _RAW).copy()
    if counted:
        begins = np.ones(256, np.bool_)
        begins[0x80:0xC0] = False
        cost[begins] += _CHARACTER
    none = NO_WAY * _CHARACTER if counted else NO_WAY
    states, labels = label.size, int(label.max(initial=0)) + 1
    found = np.full((states, labels), none, np.int64)
    if transition.size > _MOST_TRANSITIONS:
        return found
    ends = np.flatnonzero(label >= 0)
    found[ends, label[ends]] = 0
    least = np.full(transition.shape[1], none, np.int64)
    np.minimum.at(least, class_of[:256].astype(np.int64), cost)
    source, start, price = _edges_to(transition, least, none)
    changed, work = ends, 0
    while changed.size:  # each round looks only at the edges to states whose number has fallen
        count = start[changed + 1] - start[changed]
        work += _ROUND + int(count.sum()) * labels
        if work > MOST_WORK:
            return np.full_like(found, none)
        edge = np.repeat(start[changed] - (np.cumsum(count) - count), count) + np.arange(count.sum())
        nearer = found[np.repeat(changed, count)] + price[edge][:, None]
        reached = np.unique(source[edge])
        before = found[reached]
        np.minimum.at(found, source[edge], nearer)
        changed = reached[(found[reached] < before).any(axis=1)]
    return np.minimum(found, none)


def _edges_to(transition: NDArray[Any], least: NDArray[np.int64], none: int) -> tuple[NDArray[np.int64], ...]:
    """Return the edges by where they lead: their sources (E,), the first to each state (N + 1,), their costs (E,)."""
    states = transition.shape[0]
    keys, costs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for cost in np.unique(least[least < none]).tolist():
        to = transition[:, least == cost].astype(np.int64)
        source, at = np.nonzero(to >= 0)
        keys.append(np.unique(to[source, at] * states + source))
        costs.append(np.full(keys[-1].size, cost))
    key, first = np.unique(np.concatenate(keys), return_index=True)  # the first is the least cost
    start = np.searchsorted(key, np.arange(states + 1, dtype=np.int64) * states)
    return key % max(states, 1), start, np.concatenate(costs)[first]


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
