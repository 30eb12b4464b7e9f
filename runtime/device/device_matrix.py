"""A sorted matrix as an accelerator holds it: words of rows, masks, and the first rows of tokens.

Each row lies there as a few words, of as many tokens as fit, so that one binary search of the first word follows a
token from any state that is not deeper. At depths where intervals are much longer than they have different tokens, the
first row of each token is kept with it, and only those are read: work follows the most branches, not the longest
interval. A bit mask says what is allowed after no token, where that is much of the vocabulary, and then after one token
too where that costs little.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import TableError
from ...table.first_rows import first_rows
from ...table.sharded_files import ShardedFiles
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import Level, TransitionTable
from .backend import Array

_MASK_SHARE = 8  # masks after one token are made where they take at most 1/8 of the matrix
_FIRST_SHARE = 8  # no mask is made where at most 1/8 of the vocabulary may come first: IDs beside the tokens of text
_MOST_NARROW = 1 << 30  # rows where positions have 32 bits: a search looks at most twice as far
_CHUNK = 1 << 15  # rows packed at once, which then stay in cache
BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # (256, 8)


@dataclass(frozen=True, eq=False)
class DeviceFilters:
    """Which rows of a matrix F filters keep, and below which of what the matrix keeps of them a kept row lies.

    Bits are in words of 32, the lowest first; the arrays of all filters stand one behind the other.
    """

    rows: Array  # (F W,) int32: bits of rows
    before: Array  # (F W,) int32: kept rows before each word
    firsts: Array  # (F U,) int32: bits of the entries of `first_rows`
    masks: Array  # (F R, K) uint8: the matrix's masks, with what is kept alone
    of: Array  # (B,) which filter each row of a batch begins with
    words: int  # W: Q // 32 + 1
    first_words: int  # U


class Origin:
    """The matrix, table or files that stand on a device; all are equal, so that JAX compiles for none of them anew.

    It does not keep that alive, as filters of it do, and is of none once it was pickled.
    """

    def __init__(self, table: SortedMatrix | TransitionTable | ShardedFiles | None) -> None:
        self._table = None if table is None else weakref.ref(table)

    def made(self, table: object) -> bool:
        """Return whether a matrix, a table or files are these."""
        return self._table is not None and self._table() is table

    def __reduce__(self) -> tuple[type[Origin], tuple[None]]:
        return Origin, (None,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        return hash(Origin)


class RowSet:
    """What decoders ask of a table, answered for rows of tokens that all have the same length and no end token."""

    eos = None
    ends = other_ends = ()
    calls = None
    is_trie = True
    has_masks = False

    @property
    def fixed_length(self) -> int:
        """The length of every sequence, L."""
        return self.length  # type: ignore[attr-defined, no-any-return]

    min_length = max_length = fixed_length


@dataclass(frozen=True, eq=False)
class DeviceMatrix(RowSet):
    """A `SortedMatrix` in device arrays: Q rows of L tokens, `bits` bits a token, `per_word` tokens a word.

    A word holds tokens most significant first, so that words sort as the tokens do; the last one ends with zeros.
    """

    words: tuple[Array, ...]  # of (Q,)
    masks: Array  # (R, K) uint8: the first of what may come first, the last of nothing, else of what may come second
    mask_after: Array  # (V,) int32 the mask after a first token, where `masked` is 2
    first_rows: Array  # (F,) int32, by depth: the first row of each token in each interval, of depths that keep them
    first_tokens: Array  # (F,) int32, these tokens
    byte_bits: Array  # (256, 8) int32: -1 where the bit of a byte is set
    steps: Array  # (L,) 0 .. L - 1, of the type of positions
    vocab_size: int
    length: int
    count: int  # Q
    bits: int
    per_word: int
    masked: int  # depths that have masks: 0, 1 or 2
    widths: tuple[int, ...]  # (L,) longest interval by depth
    branches: tuple[int, ...]  # (L,) most tokens allowed by depth
    firsts: tuple[tuple[int, int] | None, ...]  # (L,) where `first_rows` of a depth begin and end; None: not kept
    wide: bool  # whether positions have 64 bits
    origin: Origin
    kept: DeviceFilters | None = None  # of `with_filters`; None: all rows are kept

    @property
    def num_states(self) -> int:
        """One more than the node of the dead state."""
        return self.count + 1

    @property
    def dead(self) -> int:
        """The node of the state that allows nothing."""
        return self.count

    @property
    def levels(self) -> tuple[Level, ...]:
        """What is static at each depth 0 .. L - 1; the width counts the rows that are read."""
        return tuple(Level(self.read(depth), depth < self.masked, True, False) for depth in range(self.length))

    def read(self, depth: int) -> int:
        """Return how many rows of an interval at a depth are read for what it allows: V at most."""
        known = self.branches[depth] == 1 or self.firsts[depth] is not None
        return self.branches[depth] if known else min(self.widths[depth], self.vocab_size)


def place(matrix: SortedMatrix, convert: Callable[[NDArray[Any]], Any], wide: bool = True) -> DeviceMatrix:
    """Lay a matrix out for searches; each array goes through `convert`. wide: there are integers of 64 bits.

    Raises TableError where a token needs more bits than there are, or there are more rows.
    """
    length, count = matrix.columns.shape
    bits, per_word = packing(matrix.vocab_size, length, count, wide)
    kind = np.int64 if wide else np.int32
    words = words_of(matrix.columns, bits, per_word, kind, count)
    masks, after, (rows, tokens, firsts) = masks_of(matrix)
    return DeviceMatrix(
        words=tuple(convert(word) for word in words),
        masks=convert(masks),
        mask_after=convert(after),
        first_rows=convert(rows),
        first_tokens=convert(tokens),
        byte_bits=convert(-BITS.astype(np.int32)),
        steps=convert(np.arange(length, dtype=kind)),
        vocab_size=matrix.vocab_size,
        length=length,
        count=count,
        bits=bits,
        per_word=per_word,
        masked=min(len(masks) - 1, 2),
        widths=matrix.widths,
        branches=matrix.branches,
        firsts=firsts,
        wide=wide,
        origin=Origin(matrix),
    )


def packing(vocab_size: int, length: int, count: int, wide: bool) -> tuple[int, int]:
    """Return the bits of a token, and how many tokens are in a word; TableError where they or the rows do not fit."""
    room = 62 if wide else 30  # one more and a search for what follows the last would overflow
    bits = max(1, (vocab_size - 1).bit_length())
    if bits > room:
        raise TableError(
            f"tokens below {vocab_size:,} need {bits} bits, in JAX's 32-bit mode a word has {room}: "
            "set jax.config.update('jax_enable_x64', True)"
        )
    if not wide and count >= _MOST_NARROW:
        raise TableError(
            f"{count:,} rows are more than JAX's 32-bit mode can search, {_MOST_NARROW:,}: "
            "set jax.config.update('jax_enable_x64', True)"
        )
    return bits, min(length, room // bits)


def words_of(columns: NDArray[Any], bits: int, per_word: int, kind: Any, size: int) -> list[NDArray[Any]]:
    """Return the words (size,) of rows, whose tokens are columns (L, n); beyond the n rows, words above all of rows."""
    length, count = columns.shape
    words = [np.full(size, 1 << (bits * per_word), kind) for _ in range(-(-length // per_word))]
    for lo in range(0, count, _CHUNK):
        for at, word in enumerate(words):
            part = word[lo : min(lo + _CHUNK, count)]
            part[:] = 0
            for depth in range(at * per_word, (at + 1) * per_word):
                part <<= bits
                if depth < length:
                    part |= columns[depth, lo : lo + _CHUNK]
    return words


FirstRows = tuple[NDArray[np.int32], NDArray[np.int32], tuple[tuple[int, int] | None, ...]]


def masks_of(matrix: SortedMatrix) -> tuple[NDArray[np.uint8], NDArray[np.int32], FirstRows]:
    """Return `masks`, `mask_after`, and `first_rows`, `first_tokens`, `firsts` of a `DeviceMatrix`."""
    masks, after = _masks(matrix)
    return masks, after, _first_rows(matrix, min(len(masks) - 1, 2))


def _masks(matrix: SortedMatrix) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return masks (R, K), and which of them (V,) is that after a first token.

    The first mask is of first tokens, the last of none; between them those of second tokens, where they are worth it.
    Where few tokens can come first there is the mask of none alone.
    8 K is a multiple of 64 and more than V: there is always a column to write to what is not allowed.
    """
    size, columns = matrix.vocab_size, matrix.columns
    width = 64 * (size // 64 + 1)
    first = np.unique(columns[0])
    if first.size * _FIRST_SHARE <= size:
        return np.zeros((1, width // 8), np.uint8), np.zeros(size, np.int32)
    second = (
        matrix.length > 1 and matrix.widths[1] > size // 8 and first.size * width * _MASK_SHARE <= 64 * columns.nbytes
    )
    bits = np.zeros((2 + first.size * second, width), np.bool_)
    bits[0, first] = True
    number = np.full(size, len(bits) - 1, np.int32)
    if second:
        number[first] = np.arange(1, 1 + first.size)
        new = np.append(True, (columns[0, 1:] != columns[0, :-1]) | (columns[1, 1:] != columns[1, :-1]))
        at = np.flatnonzero(new)
        bits[number[columns[0, at]], columns[1, at]] = True
    return np.packbits(bits, axis=1, bitorder="little"), number


def _first_rows(matrix: SortedMatrix, masked: int) -> FirstRows:
    """Return `first_rows`, `first_tokens` and `firsts` of a `DeviceMatrix`.

    masked: depths at which masks say what is allowed. A depth has as many first rows as there are prefixes of one token
    more: at most Q.
    """
    rows: list[NDArray[np.int32]] = []
    tokens: list[NDArray[np.int32]] = []
    firsts: list[tuple[int, int] | None] = []
    begin = 0
    for column, found in zip(matrix.columns, first_rows(matrix, masked), strict=True):
        if found is None:
            firsts.append(None)
            continue
        rows.append(found)
        tokens.append(column[found].astype(np.int32))
        firsts.append((begin, begin + found.size))
        begin += found.size
    if not rows:
        return np.zeros(1, np.int32), np.zeros(1, np.int32), tuple(firsts)
    return np.concatenate(rows), np.concatenate(tokens), tuple(firsts)
