"""Filters of a matrix in shards: each device holds the bits of its rows, and all of them those of the head.

A pair of tokens is kept if a row that begins with it is. This is known on the host from the bits of all rows, so that
devices hand nothing to each other for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import Advice, ConstraintError
from ...table.filter_bits import Runs, Words, count_before
from ...table.kept import Kept
from ...table.sharded_matrix import ShardedMatrix, ShardLayout
from ...table.sid_filter import SidFilter
from ...table.sorted_matrix import SortedMatrix
from .device_filters import filtered as with_filters
from .device_live import Convert, DeviceLive
from .device_live_shards import DeviceLiveShards
from .device_matrix import DeviceFilters, DeviceMatrix, Origin
from .device_shards import DeviceShards, Each, FilesOrigin, cut_bits, places_of
from .live_filters import MOST_WORDS

InPlace = TypeVar("InPlace", DeviceMatrix, DeviceLive, DeviceShards, DeviceLiveShards)
"""What `filtered` of torch and JAX takes and returns."""

Live = TypeVar("Live", DeviceLive, DeviceLiveShards)
"""What `refreshed` of torch and JAX takes and returns."""


@dataclass(frozen=True, eq=False)
class _Layouts:
    """How a matrix is cut, by how many shards there are. It does not keep the matrix alive."""

    by_shards: dict[int, ShardLayout]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(
            layout.head.nbytes + layout.pair_starts.nbytes + layout.starts.nbytes for layout in self.by_shards.values()
        )

    def of(self, matrix: SortedMatrix, shards: int) -> ShardLayout:
        if shards not in self.by_shards:
            self.by_shards[shards] = ShardedMatrix(matrix, shards).layout
        return self.by_shards[shards]


_layouts: Kept[_Layouts] = Kept()


def filtered(
    dev: DeviceShards, filters: Sequence[SidFilter], of: ArrayLike | None, alike: Convert, each: Each
) -> DeviceShards:
    """Return a matrix in shards with filters of it: see `device_filters.filtered`.

    Arrays that all devices hold go through `alike`, those of one device through `each`.
    """
    filters = list(filters)
    if isinstance(dev.part.origin, FilesOrigin):
        raise ConstraintError(
            "filters are of a matrix in memory, and no device has all rows of a ShardedFiles",
            argument="filters",
            remedies=[Advice('Put a ShardedMatrix of merge_shards(folder, kind="matrix").table instead.')],
        )
    for each_filter in filters:
        if not isinstance(each_filter, SidFilter):
            raise TypeError(f"filters must be SidFilters, as filter_sids makes them, not {type(each_filter).__name__}")
        if not dev.part.origin.made(each_filter.table):
            raise ConstraintError(
                "a filter is of another matrix than the one on these devices",
                argument="filters",
                remedies=[Advice("Make it with filter_sids of the matrix that was put there.")],
            )
    if not filters:
        raise ValueError("filters is empty: without any, use the matrix as it is")
    matrix = filters[0].matrix
    layout = _layouts.made(matrix, lambda: _Layouts({})).of(matrix, dev.collectives.size)
    of_pairs = [SidFilter(layout.head, _of_pairs(one.rows, layout)) for one in filters]
    bare = replace(dev.head, origin=Origin(layout.head))
    head = cast(DeviceMatrix, with_filters(bare, of_pairs, of, alike))
    words, first_words = (
        dev.part.count // 32 + 1,
        max((span[1] for span in dev.part.firsts if span), default=0) // 32 + 1,
    )
    if len(filters) * max(words, first_words) > MOST_WORDS:
        raise ValueError(f"{len(filters)} filters of {dev.part.count:,} rows are more than can be addressed")

    def arrays(number: int) -> dict[str, Any]:
        low, high = layout.starts[number : number + 2].tolist()
        bits = np.zeros((len(filters), words), np.uint32)
        before = np.empty((len(filters), words), np.int32)
        firsts = np.zeros((len(filters), first_words), np.uint32)
        runs = _runs(layout, matrix.columns[:, low:high])
        for i, one in enumerate(filters):
            cut_bits(one.rows, low, high, bits[i])
            count_before(bits[i], before[i])
            for begin, rows_of in runs:
                rows_of.write_any(bits[i], firsts[i], begin)
        return {
            "rows": bits.reshape(-1).view(np.int32),
            "before": before.reshape(-1),
            "firsts": firsts.reshape(-1).view(np.int32),
            "masks": np.zeros((len(filters), 8 * (matrix.vocab_size // 64 + 1)), np.uint8),  # a part has no masks
            "of": np.zeros(1, np.int64 if dev.part.wide else np.int32),  # states begin in the head
        }

    kept = DeviceFilters(**each(arrays), words=words, first_words=first_words)
    return replace(dev, head=head, part=replace(dev.part, kept=kept))


def _of_pairs(rows: Words, layout: ShardLayout) -> Words:
    """Return which pairs begin a row that is kept: bits (P // 32 + 1,)."""
    pairs = np.zeros(layout.head.num_sequences // 32 + 1, np.uint32)
    layout.pairs.write_any(rows, pairs)
    return pairs


def _runs(layout: ShardLayout, columns: NDArray[Any]) -> list[tuple[int, Runs]]:
    """Return of each depth that keeps first rows of a shard where their bits begin, and the rows of each."""
    return [
        (span[0], Runs.of(np.append(rows, columns.shape[1])))
        for span, rows in zip(places_of(layout), layout.first_rows(columns), strict=True)
        if span is not None and rows is not None
    ]
