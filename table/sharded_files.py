"""`ShardedFiles`: the shards of a build, to be put on devices without a merge."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Advice, ConstraintError, TableFileError
from .filter_bits import Runs, Words, one_for_each, put_in_order, words_of
from .first_rows import keeping_depths
from .sharded_matrix import HEAD, Columns, ShardLayout
from .shards import AGAIN, Manifest, Shard
from .sorted_matrix import SortedMatrix, measure

MOST_ITEMS = 2**32
"""Items whose numbers an `ItemOrder` can hold."""


@dataclass(frozen=True, eq=False)
class ShardSummary:
    """What other devices need to know of the rows of one."""

    pairs: Columns  # (2, p) the pairs of tokens with which they begin
    counts: NDArray[np.int64]  # (p,) rows of each
    widths: NDArray[np.int64]  # (L,) the longest interval by depth
    branches: NDArray[np.int64]  # (L,) most tokens by depth
    prefixes: tuple[int, ...]  # (L,) different prefixes of one token more, by depth

    @staticmethod
    def of(columns: Columns) -> ShardSummary:
        """Summarise rows, whose tokens are columns (L, n). Raises TableFileError if they are in no order."""
        length, count = columns.shape
        widths, branches = np.ones(length, np.int64), np.ones(length, np.int64)
        if measure(columns, widths, branches) >= 0:
            raise TableFileError(f"the rows of a shard do not come after those of the one before: {AGAIN}")
        new, prefixes = np.zeros(count, np.bool_), []
        new[:1] = True
        first = np.empty(0, np.int64)
        for depth, column in enumerate(columns):
            new[1:] |= column[1:] != column[:-1]
            prefixes.append(int(np.count_nonzero(new)))
            if depth == HEAD - 1:
                first = np.flatnonzero(new)
        counts = np.diff(np.append(first, count))
        return ShardSummary(np.ascontiguousarray(columns[:HEAD, first]), counts, widths, branches, tuple(prefixes))


def layout_of(vocab_size: int, summaries: Sequence[ShardSummary]) -> ShardLayout:
    """Return what every device knows of shards, of which these are summaries (N,), in order."""
    pairs = np.ascontiguousarray(np.concatenate([one.pairs for one in summaries], axis=1))
    pairs.flags.writeable = False
    head = SortedMatrix(vocab_size, pairs)
    counts = np.concatenate([one.counts for one in summaries])
    pair_starts = np.append(0, np.cumsum(counts))
    starts = np.append(0, np.cumsum([one.counts.sum() for one in summaries]))
    most = np.max([one.widths for one in summaries], axis=0)
    branches = np.max([one.branches for one in summaries], axis=0)
    of_first = np.flatnonzero(np.append(True, pairs[0, 1:] != pairs[0, :-1]))
    most[0], most[1] = starts[-1], np.diff(np.append(pair_starts[of_first], starts[-1])).max()  # which shards may cut
    branches[:HEAD] = head.branches
    widths, branched = tuple(most.tolist()), tuple(branches.tolist())
    kept = keeping_depths(widths, branched, vocab_size, HEAD)
    prefixes = np.max([one.prefixes for one in summaries], axis=0).tolist()
    firsts = tuple(count if wanted else None for count, wanted in zip(prefixes, kept, strict=True))
    return ShardLayout(head, pair_starts, starts, widths, branched, firsts)


@dataclass(frozen=True, eq=False)
class ItemOrder:
    """Which input row each item of one device is: n items, in the order of their sequences."""

    rows: NDArray[np.uint32]  # (n,)
    sequences: Runs | None  # the items of each sequence; None: each has one

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.rows.nbytes + (0 if self.sequences is None else self.sequences.nbytes)

    def write_kept(self, items: Words, out: Words) -> None:
        """Set the bits of sequences that have an item which is kept. items: bits of input rows; out is 0 before."""
        if self.sequences is None:
            put_in_order(items, self.rows, out)
            return
        own = np.zeros(self.rows.size // 32 + 1, np.uint32)
        put_in_order(items, self.rows, own)
        self.sequences.write_any(own, out)


class ShardedFiles:
    """The shards of a build, to be put on N devices: each process reads the rows of its own devices.

    folder: that of `build_shards`. A device takes the files of an interval. A file may begin within the rows of a pair
    of tokens. These go to the device that has the first of them, which reads the next file as well.

    Raises FileNotFoundError if there is no manifest; TableFileError if it is damaged; ConstraintError for more devices
    than there are files, and for sequences of fewer than three tokens.
    """

    def __init__(self, folder: str | os.PathLike[str], shards: int) -> None:
        self.manifest, self.shards = Manifest.load(folder), shards
        if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
            raise ConstraintError(f"must be an integer, 1 or more, not {shards!r}", argument="shards")
        records = self.manifest.shards
        if shards > len(records):
            raise ConstraintError(
                f"must be at most {len(records)}, as many as the build has, not {shards}",
                argument="shards",
                remedies=[Advice("Build with more --shards, in a new folder.")],
            )
        if self.manifest.length <= HEAD:
            raise ConstraintError(f"sequences of {self.manifest.length} tokens have no shards: merge them")
        ends = np.cumsum([record.sequences for record in records])
        cuts = [0]
        for number in range(1, shards):
            at = int(np.abs(ends - ends[-1] * number / shards).argmin()) + 1
            cuts.append(min(max(at, cuts[-1] + 1), len(records) - (shards - number)))
        self._files = [*cuts, len(records)]  # where those of each device begin
        self._rows = np.append(0, ends)  # the first row of each file among all

    def __repr__(self) -> str:
        """Say how much there is."""
        records = len(self.manifest.shards)
        return f"ShardedFiles({self.manifest.num_sequences:,} sequences in {records} files, {self.shards} shards)"

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""
        return self.manifest.vocab_size

    def filter(self, keep: Any) -> FilesFilter:
        """Return a filter that keeps some of the items.

        keep: (N,) booleans, one for each row of the dataset of the build, whose files are in the order of
        `manifest.dataset["files"]`: an array, or a column of Arrow, Polars, pandas or DuckDB.

        Raises ConstraintError for anything but booleans, for null, and where there are not as many as rows.
        """
        return FilesFilter(self, words_of(one_for_each(keep, self.manifest.num_items, MOST_ITEMS)))

    def columns(self, number: int) -> Columns:
        """Read the tokens of one device's rows (L, n). Raises TableFileError naming a file that is not sound."""
        parts = [np.empty((self.manifest.length, 0), np.min_scalar_type(self.vocab_size - 1))]
        parts += [shard.matrix.columns[:, low:high] for shard, low, high in self._pieces(number)]
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    def item_order(self, number: int) -> ItemOrder:
        """Read which items one device's rows stand for, as filters ask. Raises TableFileError as `columns` does."""
        rows, starts, count = [np.empty(0, np.uint32)], [np.zeros(1, np.int64)], 0
        for shard, low, high in self._pieces(number):
            matrix = shard.matrix
            start = matrix.item_start[low : high + 1] if matrix.item_start.size else np.arange(low, high + 1)
            items = slice(int(start[0]), int(start[-1]))
            rows.append(shard.rows[matrix.item_row[items] if matrix.item_row.size else items].astype(np.uint32))
            starts.append(start[1:].astype(np.int64) - items.start + count)
            count += rows[-1].size
        start = np.concatenate(starts)
        return ItemOrder(np.concatenate(rows), None if start.size - 1 == count else Runs.of(start))

    def _pieces(self, number: int) -> Iterator[tuple[Shard, int, int]]:
        """Read the files with one device's rows: each, and where those of the device begin and end in it."""
        records = self.manifest.shards
        begin, end = self._files[number : number + 2]
        pair = records[end - 1].last[:HEAD]
        before = records[begin - 1].last[:HEAD] if begin else None
        if before == pair:  # all of the rows are of another device
            return
        for file in range(begin, end):
            shard = self._read(file)
            yield shard, 0 if before is None else _leading(shard.matrix.columns, before), shard.matrix.num_sequences
        for file in range(end, len(records)):
            if records[file].first[:HEAD] != pair:
                break
            shard = self._read(file)
            yield shard, 0, _leading(shard.matrix.columns, pair)

    def _read(self, file: int) -> Shard:
        record, shard = self.manifest.shards[file], self.manifest.shard(file)
        found, rows = (shard.matrix.num_items, shard.matrix.num_sequences), shard.rows
        if found != (record.rows, record.sequences) or (rows.size and rows[-1] >= self.manifest.num_items):
            raise TableFileError(f"{record.file} has other rows than the manifest says: {AGAIN}")
        return shard

    def locate(self, states: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return in which file, and which sequence of its matrix, each of some states (N,) is that decoders ended with.

        Both are -1 where a state is of no sequence. `manifest.shard(file)` has the matrix and the ids of its items.
        """
        rows = np.asarray(states).astype(np.int64)
        there = (rows >= 0) & (rows < self._rows[-1])
        file = np.searchsorted(self._rows, rows, "right") - 1
        place = rows - self._rows[np.where(there, file, 0)]
        return np.where(there, file, -1), np.where(there, place, -1)


@dataclass(frozen=True, eq=False)
class FilesFilter:
    """A choice among the items of a build in shards, as `ShardedFiles.filter` makes it.

    Filters of one `ShardedFiles` are joined by `&`, `|` and `~`, item by item. `ops.with_filters` takes them for what
    was put on devices from these files.
    """

    files: ShardedFiles
    items: Words  # (N // 32 + 1,) bit i of word w: input row 32 w + i of the build is kept; 0 beyond N

    def __post_init__(self) -> None:
        """Keep nobody from relying on the bits: they are read-only."""
        self.items.flags.writeable = False

    def __repr__(self) -> str:
        """Say how much it keeps."""
        return f"FilesFilter({self.num_items:,} of {self.files.manifest.num_items:,} items)"

    def __and__(self, other: FilesFilter) -> FilesFilter:
        """Return the filter that keeps what both keep."""
        return FilesFilter(self.files, self.items & self._same(other))

    def __or__(self, other: FilesFilter) -> FilesFilter:
        """Return the filter that keeps what either keeps."""
        return FilesFilter(self.files, self.items | self._same(other))

    def __invert__(self) -> FilesFilter:
        """Return the filter that keeps what this one does not."""
        words = ~self.items
        words[-1] &= np.uint32((1 << (self.files.manifest.num_items & 31)) - 1)
        return FilesFilter(self.files, words)

    def _same(self, other: FilesFilter) -> Words:
        """Return the items of another filter; raise ConstraintError if it is of other files."""
        if not isinstance(other, FilesFilter):
            raise TypeError(f"a filter of files is joined with another one, not with a {type(other).__name__}")
        if other.files is not self.files:
            raise ConstraintError("filters of different ShardedFiles cannot be joined: make both of one")
        return other.items

    @property
    def num_items(self) -> int:
        """How many items are kept."""
        return int(np.bitwise_count(self.items).sum(dtype=np.int64))

    @property
    def memory(self) -> int:
        """Bytes of the filter, without the files."""
        return int(self.items.nbytes)

    nbytes = memory

    def keeps(self, rows: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each of some input rows of the build is kept, such as `shard.rows[...]`: bool of their shape.

        Raises ConstraintError for a row that the build does not have.
        """
        at, count = np.asarray(rows).astype(np.int64), self.files.manifest.num_items
        if at.size and (at.min() < 0 or at.max() >= count):
            raise ConstraintError(f"must be input rows of the build, 0 .. {count - 1:,}", argument="rows")
        found: NDArray[np.bool_] = (self.items[at >> 5] >> (at & 31).astype(np.uint32)) & 1 != 0
        return found


def _leading(columns: Columns, pair: tuple[int, ...]) -> int:
    """Return how many of the first rows begin with a pair."""
    same = (columns[0] == pair[0]) & (columns[1] == pair[1])
    return same.size if same.all() else int(same.argmin())
