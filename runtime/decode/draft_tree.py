"""Drafts: models with what they have read, and where the nodes of a draft lie in their caches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..device.backend import Array, Cache
from .followers import Row
from .reader import Reader


class ReadingModel:
    """A reader with what it has read."""

    def __init__(self, reader: Reader, batch: int) -> None:
        self.reader = reader
        self.cache: Cache = None
        self.lengths = np.zeros(batch, np.int64)
        self.calls = 0

    def pending(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return what of each live row has not been read."""
        return [row.tokens[n:] if row.live else [] for row, n in zip(rows, self.lengths, strict=True)]

    def extend(
        self, tokens: Array, lengths: NDArray[np.int64], at: NDArray[np.int64], sees: NDArray[np.bool_] | None = None
    ) -> Any:
        logits, self.cache = self.reader.extend(tokens, self.cache, lengths, at, sees)
        self.calls += 1
        return logits


class DraftLayout:
    """Where the entries of a draft's nodes lie in a cache: an entry for each node, and for what is forced behind it."""

    def __init__(self, batch: int, branches: tuple[int, ...]) -> None:
        self.batch, self.branches = batch, branches
        self.widths = [1, *accumulate(branches, mul)]  # nodes of each depth, the root's first
        self.sizes: list[NDArray[np.int64]] = [np.zeros((batch, 1), np.int64)]  # entries of each node (B, w), by depth
        self.starts = self.sizes[:]  # where each begins, counted from the depth's first entry
        self.chain = self.widths[-1] == 1  # what lies in order without moving anything

    def add(self, spans: list[list[int]] | None) -> None:
        """Take on the nodes of the next depth."""
        width = self.widths[len(self.sizes)]
        sizes = np.ones(self.batch * width, np.int64) if spans is None else np.array([len(span) for span in spans])
        sizes = sizes.reshape(self.batch, width)
        self.sizes.append(sizes)
        self.starts.append(np.cumsum(sizes, 1) - sizes)

    def total(self, level: int) -> NDArray[np.int64]:
        """Return the entries of each row at a depth, (B,)."""
        total: NDArray[np.int64] = self.sizes[level].sum(1)
        return total

    def path(self, level: int, node: int) -> list[int]:
        """Return the nodes from depth 1 to one of a depth, itself included."""
        out = []
        for depth in range(level, 0, -1):
            out.append(node)
            node //= self.branches[depth - 1]
        return out[::-1]

    def entries(self, b: int, bases: Sequence[NDArray[np.int64]], path: Sequence[int]) -> list[int]:
        """Return the entries of a path in a row, where depth l begins at bases[l][b]."""
        out: list[int] = []
        for level, node in enumerate(path, 1):
            first = int(bases[level][b] + self.starts[level][b, node])
            out += range(first, first + int(self.sizes[level][b, node]))
        return out

    def sees(
        self, out: NDArray[np.bool_], bases: Sequence[NDArray[np.int64]], levels: Sequence[int], skip: int
    ) -> NDArray[np.bool_]:
        """Write which entries those of some depths see: out (B, n, e + n), whose first row is that of entry `skip`."""
        alike: dict[Any, int] = {}  # rows whose nodes lie in the same places
        for b in range(self.batch):
            key = tuple(int(base[b]) for base in bases), *(sizes[b].tobytes() for sizes in self.sizes)
            if alike.setdefault(key, b) < b:
                out[b] = out[alike[key]]
                continue
            for level in levels:
                for node in range(self.widths[level]):
                    entries = self.entries(b, bases, self.path(level, node))
                    for k in range(len(entries) - int(self.sizes[level][b, node]), len(entries)):
                        out[b, entries[k] - skip, entries[: k + 1]] = True
        return out


class Draft(NamedTuple):
    """A draft: by depth, from the root on, what its nodes' children were drawn from, and the nodes."""

    x: list[Any]  # (B, w, V) filtered logits
    tokens: list[Any]  # (B, w * c), -1 where there was nothing to draw
