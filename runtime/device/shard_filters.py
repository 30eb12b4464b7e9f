"""Filters of a matrix in shards: each device holds the bits of its rows, and all of them those of the head.

A pair of tokens is kept if a row that begins with it is. Of a matrix in memory this is known on the host from the bits
of all rows, so that devices hand nothing to each other for it. Of files each process knows it of its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import Advice, ConstraintError
from ...table.filter_bits import Runs, Words, count_before
from ...table.sharded_files import FilesFilter, ItemOrder
from ...table.sharded_matrix import ShardedMatrix, ShardLayout
from ...table.sid_filter import SidFilter
from ...table.sorted_matrix import SortedMatrix
from ...table.weak_cache import Kept
from .device_filters import filtered as with_filters
from .device_live import Convert, DeviceLive
from .device_live_shards import DeviceLiveShards
from .device_matrix import DeviceFilters, DeviceMatrix, Origin
from .device_shards import DeviceShards, Each, FilesOrigin, cut_bits, places_of
from .live_filters import MOST_WORDS

InPlace = TypeVar("InPlace", DeviceMatrix, DeviceLive, DeviceShards, DeviceLiveShards)
"""What `with_filters` of torch and JAX takes and returns."""

Live = TypeVar("Live", DeviceLive, DeviceLiveShards)
"""What `with_snapshot` of torch and JAX takes and returns."""


@dataclass(frozen=True, eq=False)
class _Layouts:
    """How a matrix is cut, by how many shards there are. It does not keep the matrix alive."""

    by_shards: dict[int, ShardLayout]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(layout.nbytes for layout in self.by_shards.values())

    def of(self, matrix: SortedMatrix, shards: int) -> ShardLayout:
        if shards not in self.by_shards:
            self.by_shards[shards] = ShardedMatrix(matrix, shards).layout
        return self.by_shards[shards]


_layouts: Kept[_Layouts] = Kept()

Join = Callable[[Callable[[int], Words]], Words]
"""Returns the bits that are set in one of the arrays made of the numbers of all shards, where no two have the same."""


class _Source(Protocol):
    """What says which rows filters keep."""

    layout: ShardLayout

    def pairs(self) -> list[Words]:
        """Return of each filter which pairs begin a row that it keeps: bits (P // 32 + 1,)."""

    def runs(self, number: int) -> list[tuple[int, Runs]]:
        """Return of each depth that keeps first rows of a shard where their bits begin, and the rows of each."""

    def write_rows(self, number: int, which: int, out: Words) -> None:
        """Write which rows of a shard a filter keeps to out, whose words are 0."""


class _OfMatrix:
    """Filters of a matrix in memory."""

    def __init__(self, filters: Sequence[SidFilter], shards: int) -> None:
        self._filters, self._matrix = filters, filters[0].matrix
        self.layout = _layouts.made(self._matrix, lambda: _Layouts({})).of(self._matrix, shards)

    def pairs(self) -> list[Words]:
        found = []
        for one in self._filters:
            found.append(np.zeros(self.layout.head.num_sequences // 32 + 1, np.uint32))
            self.layout.pairs.write_any(one.rows, found[-1])
        return found

    def runs(self, number: int) -> list[tuple[int, Runs]]:
        low, high = self.layout.starts[number : number + 2].tolist()
        return _runs(self.layout, self._matrix.columns[:, low:high])

    def write_rows(self, number: int, which: int, out: Words) -> None:
        low, high = self.layout.starts[number : number + 2].tolist()
        cut_bits(self._filters[which].rows, low, high, out)


@dataclass(frozen=True, eq=False)
class _FileRows:
    """What filters need to know of the rows of one shard in files."""

    order: ItemOrder
    pairs: Runs  # the rows of each pair of tokens
    runs: list[tuple[int, Runs]]  # by depth that keeps first rows: where their bits begin, and the rows of each


@dataclass(frozen=True, eq=False)
class _Items:
    """The rows of the shards that this process was asked for, by number. It does not keep the files alive."""

    by_number: dict[int, _FileRows]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(
            rows.order.nbytes + rows.pairs.nbytes + sum(runs.nbytes for _, runs in rows.runs)
            for rows in self.by_number.values()
        )


_items: Kept[_Items] = Kept()


class _OfFiles:
    """Filters of files. What they need to know of rows is read once, and kept as long as the files are."""

    def __init__(self, filters: Sequence[FilesFilter], layout: ShardLayout, join: Join) -> None:
        self._filters, self._files, self.layout, self._join = filters, filters[0].files, layout, join
        self._items = _items.made(self._files, lambda: _Items({}))
        self._bits: dict[int, Words] = {}

    def pairs(self) -> list[Words]:
        return list(self._join(self._own_pairs).reshape(len(self._filters), -1))

    def _own_pairs(self, number: int) -> Words:
        """Return the bits (F (P // 32 + 1),) of pairs of one shard."""
        rows, layout = self._rows(number), self.layout
        begin = int(np.searchsorted(layout.pair_starts, layout.starts[number]))
        found = np.zeros((len(self._filters), layout.head.num_sequences // 32 + 1), np.uint32)
        for one, out in zip(self._kept(number), found, strict=True):
            rows.pairs.write_any(one, out, begin)
        return found.reshape(-1)

    def runs(self, number: int) -> list[tuple[int, Runs]]:
        return self._rows(number).runs

    def write_rows(self, number: int, which: int, out: Words) -> None:
        bits = self._kept(number)[which]
        out[: bits.size] = bits

    def _kept(self, number: int) -> Words:
        """Return which rows of a shard each filter keeps: bits (F, n // 32 + 1)."""
        if number not in self._bits:
            low, high = self.layout.starts[number : number + 2].tolist()
            self._bits[number] = np.zeros((len(self._filters), (high - low) // 32 + 1), np.uint32)
            for one, out in zip(self._filters, self._bits[number], strict=True):
                self._rows(number).order.write_kept(one.items, out)
        return self._bits[number]

    def _rows(self, number: int) -> _FileRows:
        found = self._items.by_number.get(number)
        if found is None:
            found = self._items.by_number[number] = self._read(number)
        return found

    def _read(self, number: int) -> _FileRows:
        layout, runs = self.layout, []
        low, high = layout.starts[number : number + 2].tolist()
        first, last = np.searchsorted(layout.pair_starts, (low, high))
        if any(most is not None for most in layout.firsts):
            runs = _runs(layout, self._files.columns(number))
        pairs = Runs.of(layout.pair_starts[first : last + 1] - low)
        return _FileRows(self._files.item_order(number), pairs, runs)


def filtered(
    dev: DeviceShards, filters: Sequence[SidFilter | FilesFilter], of: ArrayLike | None, alike: Convert, each: Each,
    join: Join,
) -> DeviceShards:  # fmt: skip
    """Return a matrix in shards with filters of it: see `device_filters.filtered`.

    Arrays that all devices hold go through `alike`, those of one device through `each`. join: for filters of files.
    """
    filters = list(filters)
    source = _source(dev, filters, join)
    layout = source.layout
    words, first_words = (
        dev.part.count // 32 + 1,
        max((span[1] for span in dev.part.firsts if span), default=0) // 32 + 1,
    )
    if len(filters) * max(words, first_words) > MOST_WORDS:
        raise ValueError(f"{len(filters)} filters of {dev.part.count:,} rows are more than can be addressed")
    of_pairs = [SidFilter(layout.head, pairs) for pairs in source.pairs()]
    bare = replace(dev.head, origin=Origin(layout.head))
    head = cast(DeviceMatrix, with_filters(bare, of_pairs, of, alike))

    def arrays(number: int) -> dict[str, Any]:
        bits = np.zeros((len(filters), words), np.uint32)
        before = np.empty((len(filters), words), np.int32)
        firsts = np.zeros((len(filters), first_words), np.uint32)
        runs = source.runs(number)
        for i in range(len(filters)):
            source.write_rows(number, i, bits[i])
            count_before(bits[i], before[i])
            for begin, rows_of in runs:
                rows_of.write_any(bits[i], firsts[i], begin)
        return {
            "rows": bits.reshape(-1).view(np.int32),
            "before": before.reshape(-1),
            "firsts": firsts.reshape(-1).view(np.int32),
            "masks": np.zeros((len(filters), 8 * (dev.vocab_size // 64 + 1)), np.uint8),  # a part has no masks
            "of": np.zeros(1, np.int64 if dev.part.wide else np.int32),  # states begin in the head
        }

    kept = DeviceFilters(**each(arrays), words=words, first_words=first_words)
    return replace(dev, head=head, part=replace(dev.part, kept=kept))


def _source(dev: DeviceShards, filters: Sequence[Any], join: Join) -> _Source:
    """Return what says which rows filters keep. Raises TypeError, ValueError, ConstraintError."""
    origin = dev.part.origin
    in_files = isinstance(origin, FilesOrigin)
    kind, of_what = (FilesFilter, " of ShardedFiles") if in_files else (SidFilter, "")
    for one in filters:
        if not isinstance(one, kind):
            raise TypeError(
                f"filters must be {kind.__name__}s, as filter() makes them{of_what}, not {type(one).__name__}"
            )
        if not origin.made(one.files if isinstance(one, FilesFilter) else one.table):
            raise ConstraintError(
                f"a filter is of {'other files than those' if in_files else 'another matrix than the one'} "
                "on these devices",
                argument="filters",
                remedies=[Advice(f"Make it with filter() of the {'files' if in_files else 'matrix'} put there.")],
            )
    if not filters:
        raise ValueError("filters is empty: without any, use the matrix as it is")
    if isinstance(origin, FilesOrigin):
        assert origin.layout is not None
        return _OfFiles(filters, origin.layout, join)
    return _OfMatrix(filters, dev.collectives.size)


def _runs(layout: ShardLayout, columns: NDArray[Any]) -> list[tuple[int, Runs]]:
    """Return of each depth that keeps first rows of a shard where their bits begin, and the rows of each."""
    return [
        (span[0], Runs.of(np.append(rows, columns.shape[1])))
        for span, rows in zip(places_of(layout), layout.first_rows(columns), strict=True)
        if span is not None and rows is not None
    ]
