"""`FilesFilter`: which items of a build in shards may come back, served from its files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConstraintError
from .filter_bits import Words
from .sharded_files import ShardedFiles

MOST_ITEMS = 2**32
"""Items whose numbers an `ItemOrder` can hold."""


@dataclass(frozen=True, eq=False)
class FilesFilter:
    """A choice among the items of a build in shards, as `filter_sids` makes it of `ShardedFiles`.

    Filters of one `ShardedFiles` are joined by `&`, `|` and `~`, item by item. `ops.filtered` takes them for what was
    put on devices from these files.
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
