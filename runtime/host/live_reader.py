"""How a `Matcher` reads a snapshot of a live set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import Advice, ConstraintError
from ...table.snapshot import LiveFilter, Snapshot
from .host_reader import HostReader
from .matrix_reader import Interval, MatrixReader

Place = tuple[int, int, int, int, int]
"""The rows of the base and of the delta that begin with the tokens so far, and how many tokens these are."""


class LiveReader(HostReader[Place]):
    """Reads a snapshot, or what a filter keeps of it: the rows of the base and those of the delta, each as a matrix.

    A place is the rows of both that begin with the tokens so far: (low, high, delta low, delta high, depth).
    """

    parts = 5

    def __init__(self, table: Snapshot | LiveFilter) -> None:
        super().__init__(table.vocab_size, table.eos)
        snapshot = table.snapshot if isinstance(table, LiveFilter) else table
        matrix = snapshot.base.matrix
        kept = np.ones(len(snapshot.delta), np.bool_) if isinstance(table, Snapshot) else table.delta
        self._base = MatrixReader(matrix.columns, matrix.vocab_size, table.bits)
        self._delta = MatrixReader(np.ascontiguousarray(snapshot.delta[kept].T), matrix.vocab_size)
        self._nodes = snapshot.base.shape.count + 1 + np.flatnonzero(kept)
        self.length = matrix.length
        if not table.num_sequences:
            raise ConstraintError(
                "the live set is empty, or the filter keeps nothing of it: nothing could be written",
                remedies=[Advice("Ask its num_sequences before, and answer such a request without the model.")],
            )

    def start(self) -> Place:
        """Return the place of a sequence with nothing written yet."""
        return 0, self._base.count, 0, self._delta.count, 0

    def budgets(self, constraint: object) -> None:
        """Do nothing: how far the end is, is known at every depth."""

    def distance(self, place: Place) -> int:
        """Return the tokens that a sequence lacks at a place."""
        return self.length - place[4]

    def farthest(self, place: Place) -> int:
        """Return the distance that every token leads to."""
        return self.length - place[4] - 1

    def made(self, place: Place, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only. room leaves nothing out, as all sequences are as long."""
        old, new = _parts(place)
        mask = self._base.made(old) | self._delta.made(new)
        mask.flags.writeable = False
        return mask

    def allowed(self, place: Place) -> NDArray[Any]:
        """Return the tokens that a place allows."""
        old, new = _parts(place)
        return np.union1d(self._base.allowed(old), self._delta.allowed(new))

    def step(self, place: Place, token: int) -> Place | None:
        """Return the place that a token leads to; None if it is not allowed."""
        old, new = _parts(place)
        a, b = self._base.step(old, token), self._delta.step(new, token)
        if a is None and b is None:
            return None
        low, high, _ = a if a is not None else (0, 0, 0)
        delta, delta_high, _ = b if b is not None else (0, 0, 0)
        return low, high, delta, delta_high, place[4] + 1

    def ends(self, place: Place) -> bool:
        """Return whether a sequence is complete at a place."""
        return place[4] == self.length

    def configuration(self, place: Place) -> tuple[int, tuple[int, ...]]:
        """Return the node of a place as of a device: of base rows the first, of a whole row of the delta its own."""
        low, high, delta, _, depth = place
        return (int(self._nodes[delta]) if depth == self.length and low == high else low), ()


def _parts(place: Place) -> tuple[Interval, Interval]:
    """Return the rows of the base and those of the delta."""
    low, high, delta, delta_high, depth = place
    return (low, high, depth), (delta, delta_high, depth)
