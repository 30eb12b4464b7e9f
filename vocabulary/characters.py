"""Characters in tokens: in which groups they are, and which of them tokens begin, end and have.

Constraints on text allow or forbid many characters alike, such as all letters. `BYTE_GROUP` puts characters into 63
groups by their first bytes, so that one number of 64 bits says which groups a set of characters has. A compiler that
compares such numbers takes all tokens below a node of the token trie at once.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import ByteArray, Int, Int32Array, Uint16Array, Uint64Array
from ..kernels.compiled import kernel

UNCLEAN = 63
"""The group of bytes that are no whole characters."""


def _byte_groups() -> NDArray[np.uint8]:
    """Return the group of each byte (256,) that can begin a character, `UNCLEAN` for bytes that cannot.

    Each sign of ASCII has a group of its own. Letters share a few groups, and digits share one. Beyond ASCII, first
    bytes of scripts that constraints treat alike share one.
    """
    together = [b"0123456789", b"abcdef", b"ghijklmnopqrstuvwxyz", b"ABCDEF", b"GHIJKLMNOPQRSTUVWXYZ"]
    controls = bytes(b for b in range(32) if b not in b"\t\n\r") + b"\x7f"
    alone = [bytes([b]) for b in range(128) if b not in b"".join(together) + controls]
    starts = (
        0xC2, 0xC3, 0xC4, 0xCA, 0xCE, 0xD0, 0xD4, 0xD8, 0xDC, 0xE0, 0xE1, 0xE2, 0xE3, 0xE4, 0xE5, 0xEA, 0xED, 0xEE, 0xF0
    )  # fmt: skip
    leads = [bytes(range(low, high)) for low, high in pairwise([*starts, 0xF5])]
    out = np.full(256, UNCLEAN, np.uint8)
    for group, members in enumerate([*together, controls, *alone, *leads]):
        out[list(members)] = group
    return out


BYTE_GROUP = _byte_groups()
"""The group of each byte (256,): see `_byte_groups`."""
IS_SIGN = np.isin(np.arange(256), list(string.punctuation.encode()))
"""Whether each byte (256,) is a visible sign of ASCII, which has a group of its own."""


def _behind() -> NDArray[np.int64]:
    """Return `BEHIND`."""
    out = np.zeros((256, 3), np.int64)
    out[:, 0], out[:, 1] = 0x80, 0xBF
    for first, column, limit in ((0xE0, 0, 0xA0), (0xED, 1, 0x9F), (0xF0, 0, 0x90), (0xF4, 1, 0x8F)):
        out[first, column] = limit
    for first, count in ((0xC2, 1), (0xE0, 2), (0xF0, 3)):
        out[first:0xF5, 2] = count
    return out


BEHIND = _behind()
"""For each byte that begins a character (256, 3): the least and the greatest second byte, and how many bytes follow."""


class TokenCharacters(NamedTuple):
    """Characters of each token, (V,) each."""

    groups: NDArray[np.uint64]  # of the characters that it begins, as bits; all bits for a token without bytes
    length: NDArray[np.uint16]  # its bytes
    begun: NDArray[np.uint16]  # how many characters it begins


def shares_without(tokens: Sequence[bytes]) -> NDArray[np.float64]:
    """Return the share of tokens that have no character of each group behind their first byte, (64,)."""
    behind = [token[1:] for token in tokens if len(token) > 1]
    starts = np.cumsum([0, *map(len, behind)])[:-1]
    bits = np.uint64(1) << BYTE_GROUP[np.frombuffer(b"".join(behind), np.uint8)].astype(np.uint64)
    within = np.unpackbits(np.bitwise_or.reduceat(bits, starts).view(np.uint8), bitorder="little").reshape(-1, 64)
    shares: NDArray[np.float64] = 1 - within.sum(axis=0) / len(tokens)
    return shares


@kernel
def _phases(byte: ByteArray, depth: Uint16Array) -> ByteArray:
    """Return where each node of a trie (M,) stands in a character of UTF-8.

    0: a character ends here. 1 to 3: so many continuation bytes must follow. 4 to 7: continuation bytes must follow,
    the next of them in a smaller range. 8: the bytes so far are not UTF-8.
    """
    nodes = byte.size
    deepest: Int = 0
    for i in range(nodes):
        deepest = max(deepest, np.int64(depth[i]))
    phase = np.zeros(nodes, np.uint8)
    path = np.zeros(deepest + 1, np.uint8)
    for i in range(nodes):
        b, before = byte[i], path[depth[i] - 1]
        after = 8
        if before == 0:
            if b < 0x80:
                after = 0
            elif 0xC2 <= b <= 0xDF:
                after = 1
            elif b == 0xE0:
                after = 4
            elif b == 0xED:
                after = 5
            elif 0xE1 <= b <= 0xEF:
                after = 2
            elif b == 0xF0:
                after = 6
            elif 0xF1 <= b <= 0xF3:
                after = 3
            elif b == 0xF4:
                after = 7
        elif before <= 3:
            if 0x80 <= b <= 0xBF:
                after = before - 1
        elif before == 4:
            if 0xA0 <= b <= 0xBF:
                after = 1
        elif before == 5:
            if 0x80 <= b <= 0x9F:
                after = 1
        elif before == 6:
            if 0x90 <= b <= 0xBF:
                after = 2
        elif before == 7 and 0x80 <= b <= 0x8F:
            after = 2
        path[depth[i]] = after
        phase[i] = after
    return phase


@kernel
def begun_characters(byte: ByteArray, depth: Uint16Array, byte_group: ByteArray) -> tuple[Uint64Array, Uint16Array]:
    """Return the groups of all characters that begin on the way to each node (M,), as bits, and how many begin there.

    The bit of `UNCLEAN` is set if the bytes on the way are not UTF-8.
    """
    phase, out, number = _phases(byte, depth), np.empty(byte.size, np.uint64), np.empty(byte.size, np.uint16)
    levels = np.int64(depth.max()) + 1 if depth.size else 1
    path, count = np.zeros(levels, np.uint64), np.zeros(levels, np.uint16)
    for i in range(byte.size):
        own = np.uint64(0)
        if phase[i] == 8:
            own = np.uint64(1) << np.uint64(UNCLEAN)
        elif byte[i] < 0x80 or byte[i] >= 0xC2:
            own = np.uint64(1) << np.uint64(byte_group[byte[i]])
        out[i] = path[depth[i]] = path[depth[i] - 1] | own
        number[i] = count[depth[i]] = count[depth[i] - 1] + (own != 0)
    return out, number


@kernel
def groups_below(
    byte: ByteArray, depth: Uint16Array, token_start: Int32Array, byte_group: ByteArray, whole: bool
) -> Uint64Array:
    """Return the groups of all characters that tokens have at and below each node of a trie (M,), as bits.

    A node above a token that is not UTF-8 has the bit of `UNCLEAN` as well. whole: so has a node above a token that
    ends inside a character, and a node inside a character has no other bit.
    """
    phase = _phases(byte, depth)
    nodes, deepest = byte.size, np.int64(depth.max()) if depth.size else np.int64(0)
    path = np.zeros(deepest + 1, np.uint8)
    out = np.empty(nodes, np.uint64)
    below = np.zeros(deepest + 2, np.uint64)  # by depth: what the nodes seen last have in common with their parent
    unclean = np.uint64(1) << np.uint64(UNCLEAN)
    for i in range(nodes - 1, -1, -1):
        d = np.int64(depth[i])
        own = np.uint64(0)
        if phase[i] == 8 or (whole and phase[i] > 0 and token_start[i + 1] > token_start[i]):
            own = unclean
        elif byte[i] < 0x80 or byte[i] >= 0xC2:
            own = np.uint64(1) << np.uint64(byte_group[byte[i]])
        out[i] = own | below[d + 1]
        below[d + 1] = np.uint64(0)
        below[d] |= out[i]
    for i in range(nodes):
        path[depth[i]] = phase[i]
        inside = depth[i] > 1 and path[depth[i] - 1] > 0
        if (whole and inside) or (depth[i] == 1 and 0x80 <= byte[i] < 0xC2):
            out[i] = unclean
    return out
