"""What a cache counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class CacheStats(NamedTuple):
    """What a cache holds, and what it was asked for since it was made."""

    entries: int  # tables and errors
    bytes: int
    hits: int  # answered from memory
    waits: int  # answered by a compilation that another thread had begun
    disk_hits: int  # answered from the folder
    compilations: int  # of which those with errors are
    failures: int
    evictions: int


@dataclass
class Counts:
    """The counts of one cache, kept under its lock."""

    hits: int = 0
    waits: int = 0
    disk_hits: int = 0
    compilations: int = 0
    failures: int = 0
    evictions: int = 0
    bytes: int = 0  # of all entries

    def stats(self, entries: int) -> CacheStats:
        """Return the counts so far, with how many entries there are."""
        return CacheStats(
            entries, self.bytes, self.hits, self.waits, self.disk_hits, self.compilations, self.failures, self.evictions
        )
