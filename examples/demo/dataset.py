"""What the demo trains on: a catalogue of items with semantic IDs, and users' histories."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Catalogue:
    """Items 0 .. n-1, their semantic IDs and their order of appearance.

    sids   (n, L)  codes from 0 at every level; two items may share an ID
    codes          number of codes at every level
    age    (n,)    position in the order of appearance, 0 for the oldest item
    titles (n,)    what a person reads
    """

    sids: Ints
    codes: int
    age: Ints
    titles: tuple[str, ...]

    @property
    def length(self) -> int:
        """Number of levels L."""
        return int(self.sids.shape[1])

    def newest(self, share: float) -> Ints:
        """Return the newest `share` of the items (at least one), as item numbers: (k,)."""
        count = max(1, math.floor(share * len(self.age)))
        return np.sort(np.argsort(self.age, kind="stable")[-count:])


@dataclass(frozen=True)
class TestRows:
    """Histories and the item that came next: R ragged arrays of items, oldest first, and (R,) items."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    histories: tuple[Ints, ...]
    targets: Ints

    def __len__(self) -> int:
        return len(self.histories)

    def take(self, rows: NDArray[np.bool_] | Ints) -> TestRows:
        """Return the rows that a mask (R,) or indices (k,) select, in that order."""
        chosen = np.arange(len(self))[rows]
        return TestRows(tuple(self.histories[row] for row in chosen), self.targets[chosen])


@dataclass(frozen=True)
class Dataset:
    """A catalogue, training sequences (ragged arrays of items, oldest first) and test rows."""

    name: str
    catalogue: Catalogue
    train: tuple[Ints, ...]
    test: TestRows

    def without(self, items: Ints) -> tuple[Ints, ...]:
        """Return the training sequences in which none of `items` occurs."""
        held_out = np.zeros(len(self.catalogue.sids), dtype=bool)
        held_out[items] = True
        return tuple(sequence for sequence in self.train if not held_out[sequence].any())

    def rows_with_target(self, items: Ints) -> TestRows:
        """Return the test rows whose next item is one of `items`."""
        return self.test.take(np.isin(self.test.targets, items))
