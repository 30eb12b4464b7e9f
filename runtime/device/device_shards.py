"""A sorted matrix in shards as devices hold it: each its own rows, and all of them the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...table.first_rows import first_rows
from ...table.sharded_matrix import HEAD, ShardedMatrix
from ...table.transition_table import Level
from .backend import Array
from .device_matrix import BITS, DeviceMatrix, Origin, packing, place, words_of


class Collectives(Protocol):
    """What devices that hold shards ask of each other. It is hashable; each library has its own."""

    @property
    def size(self) -> int:
        """N: the devices."""

    def run(
        self, function: Callable[..., Any], statics: tuple[Any, ...], shared: Any, own: Any, is_own: tuple[bool, ...]
    ) -> tuple[Any, ...]:
        """Return function(*statics, shared, own) on every device.

        shared: a tree of arrays that are alike on all; own: one of those of which each device has its own. is_own: the
        same of what comes back.
        """

    def sum(self, x: Array) -> Array:
        """Return the sum of an array over all devices."""

    def best(self, scores: Array, places: Array, k: int, most: int) -> tuple[Array, Array]:
        """Return the k largest of scores (B, m) of all devices, and their places, which are below `most`.

        Of equal ones those come first whose places are smaller.
        """


@dataclass(frozen=True, eq=False)
class DeviceShards:
    """A `ShardedMatrix` on N devices: Q rows of L tokens."""

    head: DeviceMatrix  # of the P pairs of tokens with which sequences begin; on all devices
    pair_starts: Array  # (P + 1,) the row at which each of them begins, and Q; on all devices
    part: DeviceMatrix  # a device's own rows, and others behind them up to the most that any has; no masks
    begin: Array  # (1,) the first of its own rows among all
    collectives: Collectives
    count: int  # Q

    # what decoders ask of a table
    eos = None
    ends = other_ends = ()
    calls = None
    is_trie = True
    has_masks = False

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.part.vocab_size

    @property
    def length(self) -> int:
        """L."""
        return self.part.length

    @property
    def fixed_length(self) -> int:
        """The length of every sequence, L."""
        return self.part.length

    min_length = max_length = fixed_length

    @property
    def dead(self) -> int:
        """The node of the state that allows nothing."""
        return self.count

    @property
    def levels(self) -> tuple[Level, ...]:
        """What is static at each depth 0 .. L - 1."""
        return self.part.levels


def place_head(
    sharded: ShardedMatrix, convert: Callable[[NDArray[Any]], Any], wide: bool
) -> tuple[DeviceMatrix, Array]:
    """Return `head` and `pair_starts`, each array through `convert`."""
    kind = np.int64 if wide else np.int32
    return place(sharded.head, convert, None, wide), convert(sharded.pair_starts.astype(kind))


def check_mesh(table: object, mesh: object, axis: object, **others: object) -> bool:
    """Return whether a constraint is in shards.

    others: arguments of `put` for what is not. Raises TypeError if it is in shards, and there is no mesh or there are
    others, and if it is not and there is a mesh.
    """
    if isinstance(table, ShardedMatrix) and (mesh is None or axis is None):
        raise TypeError("a ShardedMatrix is put on the devices of a mesh: pass mesh= and axis=")
    if not isinstance(table, ShardedMatrix) and (mesh is not None or axis is not None):
        raise TypeError(f"mesh and axis are for a ShardedMatrix, not for a {type(table).__name__}")
    given = [f"{name}=" for name, value in others.items() if value is not None and value is not False]
    if isinstance(table, ShardedMatrix) and given:
        raise TypeError(f"a ShardedMatrix takes mesh= and axis= alone, not {', '.join(given)}")
    return isinstance(table, ShardedMatrix)


class Parts:
    """The rows of each shard, laid out alike for all."""

    def __init__(self, sharded: ShardedMatrix, wide: bool) -> None:
        self._sharded, self._wide = sharded, wide
        matrix = sharded.matrix
        self.count = max(1, *sharded.sizes)
        self._packing = packing(matrix.vocab_size, matrix.length, self.count, wide)
        self._firsts = first_rows(matrix, HEAD)
        sizes = [0 if rows is None else max(np.diff(np.searchsorted(rows, sharded.starts))) for rows in self._firsts]
        ends = np.cumsum(sizes)
        self._places = tuple(
            None if rows is None else (int(end - size), int(end))
            for rows, size, end in zip(self._firsts, sizes, ends, strict=True)
        )
        self._first_count = max(1, int(ends[-1]))

    def arrays(self, number: int) -> dict[str, Any]:
        """Return the arrays of one shard: `words`, a list, `first_rows`, `first_tokens` and `begin`."""
        kind = np.int64 if self._wide else np.int32
        low, high = self._sharded.starts[number : number + 2].tolist()
        columns = self._sharded.matrix.columns[:, low:high]
        rows = np.full(self._first_count, self.count, np.int32)  # behind those of the shard: after all of its rows
        tokens = np.zeros(self._first_count, np.int32)
        for column, found, span in zip(columns, self._firsts, self._places, strict=True):
            if found is not None and span is not None:
                own = found[slice(*np.searchsorted(found, (low, high)))] - low
                rows[span[0] : span[0] + own.size] = own
                tokens[span[0] : span[0] + own.size] = column[own]
        words = words_of(columns, *self._packing, kind, self.count)
        return {"words": words, "first_rows": rows, "first_tokens": tokens, "begin": np.array([low], kind)}

    def placed(self, arrays: dict[str, Any], convert: Callable[[NDArray[Any]], Any]) -> DeviceMatrix:
        """Return the rows of a device; arrays: its own, which are placed. Others go through `convert`."""
        matrix = self._sharded.matrix
        return DeviceMatrix(
            words=tuple(arrays["words"]),
            masks=convert(np.zeros((1, 8 * (matrix.vocab_size // 64 + 1)), np.uint8)),
            mask_after=convert(np.zeros(1, np.int32)),
            first_rows=arrays["first_rows"],
            first_tokens=arrays["first_tokens"],
            byte_bits=convert(-BITS.astype(np.int32)),
            steps=convert(np.arange(matrix.length, dtype=np.int64 if self._wide else np.int32)),
            vocab_size=matrix.vocab_size,
            length=matrix.length,
            count=self.count,
            bits=self._packing[0],
            per_word=self._packing[1],
            masked=0,
            widths=matrix.widths,
            branches=matrix.branches,
            firsts=self._places,
            top=None,
            wide=self._wide,
            origin=Origin(matrix),
        )
