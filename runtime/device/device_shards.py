"""A sorted matrix in shards as devices hold it: each its own rows, and all of them the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...table.sharded_files import ShardedFiles
from ...table.sharded_matrix import ShardedMatrix, ShardLayout
from ...table.snapshot import Snapshot
from ...table.transition_table import Level
from .backend import Array
from .device_matrix import BITS, DeviceMatrix, Origin, RowSet, packing, place, words_of

Each = Callable[[Callable[[int], dict[str, Any]]], dict[str, Any]]
"""Puts on each device the arrays that a function makes of the number of its shard."""


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


class ShardedRows(RowSet):
    """What decoders ask of a table, answered for rows of which each device has some: those of its `part`."""

    part: Any
    count: int

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.part.vocab_size)

    @property
    def length(self) -> int:
        """L."""
        return int(self.part.length)

    @property
    def dead(self) -> int:
        """The node of the state that allows nothing."""
        return self.count

    @property
    def levels(self) -> tuple[Level, ...]:
        """What is static at each depth 0 .. L - 1."""
        return tuple(self.part.levels)


@dataclass(frozen=True, eq=False)
class DeviceShards(ShardedRows):
    """A `ShardedMatrix` on N devices: Q rows of L tokens."""

    head: DeviceMatrix  # of the P pairs of tokens with which sequences begin; on all devices
    pair_starts: Array  # (P + 1,) the row at which each of them begins, and Q; on all devices
    part: DeviceMatrix  # a device's own rows, and others behind them up to the most that any has; no masks
    begin: Array  # (1,) the first of its own rows among all
    collectives: Collectives
    count: int  # Q


def place_head(layout: ShardLayout, convert: Callable[[NDArray[Any]], Any], wide: bool) -> tuple[DeviceMatrix, Array]:
    """Return `head` and `pair_starts`, each array through `convert`."""
    kind = np.int64 if wide else np.int32
    return place(layout.head, convert, wide), convert(layout.pair_starts.astype(kind))


def check_mesh(table: object, mesh: object, axis: object, **others: object) -> bool:
    """Return whether a constraint is put on the devices of a mesh.

    others: arguments of `to_device` for one device. Raises TypeError for what is in shards without a mesh, for a mesh
    and what has no shards, and for a mesh and other arguments.
    """
    if isinstance(table, (ShardedMatrix, ShardedFiles)) and (mesh is None or axis is None):
        raise TypeError(f"a {type(table).__name__} is put on the devices of a mesh: pass mesh= and axis=")
    if mesh is None and axis is None:
        return False
    if not isinstance(table, (ShardedMatrix, ShardedFiles, Snapshot)):
        raise TypeError(
            f"mesh and axis are for a ShardedMatrix, ShardedFiles or a Snapshot, not for a {type(table).__name__}"
        )
    if mesh is None or axis is None:
        raise TypeError("a Snapshot is put on the devices of a mesh with both mesh= and axis=")
    given = [f"{name}=" for name, value in others.items() if value is not None and value is not False]
    if given:
        raise TypeError(f"a {type(table).__name__} on a mesh takes mesh= and axis= alone, not {', '.join(given)}")
    return True


class FilesOrigin(Origin):
    """Files, from which each device has its rows: there is no matrix of all of them.

    layout: what `to_device` learnt of the rows. All are equal, as `Origin`s are.
    """

    def __init__(self, files: ShardedFiles | None, layout: ShardLayout | None) -> None:
        super().__init__(files)
        self.layout = layout

    def __reduce__(self) -> Any:
        return FilesOrigin, (None, None)


class Parts:
    """The rows of each shard, laid out alike for all.

    origin: what the rows were made of. most: the rows that a shard has room for; None: those of the largest.
    """

    def __init__(self, layout: ShardLayout, origin: Origin, wide: bool, most: int | None = None) -> None:
        self._layout, self._origin, self._wide = layout, origin, wide
        self.count = layout.most if most is None else most
        self._packing = packing(layout.vocab_size, layout.length, self.count, wide)
        self._places = places_of(layout)

    def arrays(self, number: int, columns: NDArray[Any]) -> dict[str, Any]:
        """Return the arrays of one shard, whose tokens are columns (L, n).

        They are `words`, a list, `first_rows`, `first_tokens` and `begin`.
        """
        kind = np.int64 if self._wide else np.int32
        size = max(1, max((span[1] for span in self._places if span), default=0))
        rows = np.full(size, self.count, np.int32)  # behind those of the shard: after all of its rows
        tokens = np.zeros(size, np.int32)
        for column, own, span in zip(columns, self._layout.first_rows(columns), self._places, strict=True):
            if own is not None and span is not None:
                rows[span[0] : span[0] + own.size] = own
                tokens[span[0] : span[0] + own.size] = column[own]
        words = words_of(columns, *self._packing, kind, self.count)
        begin = np.array([self._layout.starts[number]], kind)
        return {"words": words, "first_rows": rows, "first_tokens": tokens, "begin": begin}

    def placed(self, arrays: dict[str, Any], convert: Callable[[NDArray[Any]], Any]) -> DeviceMatrix:
        """Return the rows of a device; arrays: its own, which are placed. Others go through `convert`."""
        layout = self._layout
        return DeviceMatrix(
            words=tuple(arrays["words"]),
            masks=convert(np.zeros((1, 8 * (layout.vocab_size // 64 + 1)), np.uint8)),
            mask_after=convert(np.zeros(1, np.int32)),
            first_rows=arrays["first_rows"],
            first_tokens=arrays["first_tokens"],
            byte_bits=convert(-BITS.astype(np.int32)),
            steps=convert(np.arange(layout.length, dtype=np.int64 if self._wide else np.int32)),
            vocab_size=layout.vocab_size,
            length=layout.length,
            count=self.count,
            bits=self._packing[0],
            per_word=self._packing[1],
            masked=0,
            widths=layout.widths,
            branches=layout.branches,
            firsts=self._places,
            wide=self._wide,
            origin=self._origin,
        )


def places_of(layout: ShardLayout) -> tuple[tuple[int, int] | None, ...]:
    """Return where the first rows of each depth begin and end in each shard; None where a depth keeps none."""
    ends = np.cumsum([most or 0 for most in layout.firsts]).tolist()
    return tuple(None if most is None else (end - most, end) for most, end in zip(layout.firsts, ends, strict=True))


def cut_bits(rows: NDArray[np.uint32], low: int, high: int, out: NDArray[np.uint32]) -> None:
    """Write the bits of rows low .. high to out, whose words are 0."""
    begin = low >> 5
    bits = np.unpackbits(rows[begin : (high >> 5) + 1].view(np.uint8), bitorder="little")
    packed = np.packbits(bits[low - 32 * begin : high - 32 * begin], bitorder="little")
    out.view(np.uint8)[: packed.size] = packed
