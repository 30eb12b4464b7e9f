"""`ShardedMatrix`: a sorted matrix cut into intervals of rows, one for each device."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError
from .filter_bits import Runs
from .first_rows import keeping_depths, rows_of_prefixes
from .sorted_matrix import SortedMatrix

Columns = NDArray[np.unsignedinteger[Any]]

HEAD = 2
"""Tokens that every device knows of all sequences. A shard begins where these change."""


@dataclass(frozen=True, eq=False)
class ShardLayout:
    """What every device knows of Q rows of L tokens in N shards, and what all shards have alike."""

    head: SortedMatrix  # the P pairs of tokens with which rows begin
    pair_starts: NDArray[np.int64]  # (P + 1,) the row at which each pair begins, and Q
    starts: NDArray[np.int64]  # (N + 1,) the row at which each shard begins, and Q
    widths: tuple[int, ...]  # (L,) the longest interval by depth
    branches: tuple[int, ...]  # (L,) most tokens by depth
    firsts: tuple[int | None, ...]  # (L,) the most first rows of a shard, at depths that keep them

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.head.vocab_size

    @property
    def length(self) -> int:
        """L."""
        return len(self.widths)

    @property
    def count(self) -> int:
        """Q."""
        return int(self.starts[-1])

    @property
    def most(self) -> int:
        """The rows of the largest shard, 1 at least."""
        return max(1, int(np.diff(self.starts).max()))

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.head.nbytes + self.pair_starts.nbytes + self.starts.nbytes

    @cached_property
    def pairs(self) -> Runs:
        """The rows of each pair."""
        return Runs.of(self.pair_starts)

    def first_rows(self, columns: NDArray[Any]) -> list[NDArray[np.int32] | None]:
        """Return the first rows of a shard, whose tokens are columns (L, n), at depths that keep them."""
        return rows_of_prefixes(columns, [most is not None for most in self.firsts])


@dataclass(frozen=True, eq=False)
class ShardedMatrix:
    """A sorted matrix of Q sequences of L tokens in N shards, to be put on N devices.

    A shard begins where the first two tokens change, so that from the third token on all that a sequence can go on with
    is in one shard. Shards have about as many rows each, as far as no pair of tokens begins more than a shard's share.

    Raises ConstraintError for less than one shard, and for sequences of fewer than three tokens.

    >>> from maskwright import sort_sids
    >>> sharded = ShardedMatrix(sort_sids([[0, 0, 1], [0, 0, 2], [0, 1, 0], [2, 0, 0]], 3), 2)
    >>> sharded.starts.tolist()
    [0, 2, 4]
    """

    matrix: SortedMatrix
    shards: int  # N
    starts: NDArray[np.int64] = field(init=False)  # (N + 1,) the row at which each shard begins, and Q
    pair_starts: NDArray[np.int64] = field(init=False)  # (P + 1,) the row at which each pair begins, and Q

    def __post_init__(self) -> None:
        if not isinstance(self.matrix, SortedMatrix):
            raise TypeError(f"shards are of a SortedMatrix, not of a {type(self.matrix).__name__}")
        if isinstance(self.shards, bool) or not isinstance(self.shards, int) or self.shards < 1:
            raise ConstraintError(f"must be an integer, 1 or more, not {self.shards!r}", argument="shards")
        if self.matrix.length <= HEAD:
            raise ConstraintError(
                f"sequences of {self.matrix.length} tokens have no shards: each device would hold all of them. "
                "Put the matrix itself on each"
            )
        count, (first, second) = self.matrix.num_sequences, self.matrix.columns[:HEAD]
        new = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        pairs = np.concatenate([[0], np.flatnonzero(new) + 1, [count]])
        wanted = count * np.arange(self.shards + 1) // self.shards
        after = np.searchsorted(pairs, wanted)
        before = np.maximum(after - 1, 0)
        nearest = np.where(wanted - pairs[before] < pairs[after] - wanted, before, after)
        for name, rows in (("starts", pairs[nearest]), ("pair_starts", pairs)):
            rows.flags.writeable = False
            object.__setattr__(self, name, rows)

    @cached_property
    def layout(self) -> ShardLayout:
        """What every device knows of the shards."""
        matrix = self.matrix
        columns = matrix.columns[:HEAD, self.pair_starts[:-1]]
        columns.flags.writeable = False
        head = SortedMatrix(matrix.vocab_size, columns)
        kept = keeping_depths(matrix.widths, matrix.branches, matrix.vocab_size, HEAD)
        firsts = tuple(
            None if rows is None else int(np.diff(np.searchsorted(rows, self.starts)).max())
            for rows in rows_of_prefixes(matrix.columns, kept)
        )
        return ShardLayout(head, self.pair_starts, self.starts, matrix.widths, matrix.branches, firsts)

    @property
    def head(self) -> SortedMatrix:
        """The pairs of tokens with which sequences begin, which all devices hold."""
        return self.layout.head

    def columns(self, number: int) -> Columns:
        """Return the tokens of one shard (L, n)."""
        return self.matrix.columns[:, slice(*self.starts[number : number + 2])]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rows of each shard (N,)."""
        return tuple(np.diff(self.starts).tolist())

    def __repr__(self) -> str:
        return (
            f"ShardedMatrix({self.matrix!r}, {self.shards} shards of {min(self.sizes):,} to {max(self.sizes):,} rows)"
        )
