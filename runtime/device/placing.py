"""Where constraints are put on devices: one door for all libraries of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from numpy.typing import NDArray

from ...table.constraint import Constraint
from ...table.sid_filter import SidFilter
from ...table.snapshot import LiveFilter, Snapshot
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from . import device_matrix
from .backend import Array, Backend, Placed
from .device_table import whole
from .live_filters import place_live_set
from .on_demand import is_read, read


class Library(Protocol):
    """A library of arrays, and the device that arrays go to."""

    @property
    def arrays(self) -> Backend:
        """The functions of arrays."""

    @property
    def wide(self) -> bool:
        """Whether there are integers of 64 bits."""

    def convert(self, array: NDArray[Any]) -> Array:
        """Copy an array to the device."""

    def table(self, table: TransitionTable, distances: bool) -> Placed:
        """Copy a table to the device, with the distances that `remaining` needs or without."""

    def with_filters(self, dev: Placed, filters: Sequence[SidFilter]) -> Placed:
        """Return what is on the device with filters of it."""

    def lasting(self) -> AbstractContextManager[object]:
        """Return a context in which arrays are made that are written to later."""


def place(library: Library, constraint: Constraint, distances: bool, on_demand: bool | None) -> Placed:
    """Return a constraint on a device, as `to_device` does. Raises TypeError, and what `to_device` says."""
    if is_read(constraint, on_demand):
        with library.lasting():
            return read(library.arrays, library.convert, cast(TransitionTable, constraint), distances)
    constraint = whole(constraint)
    if isinstance(constraint, SortedMatrix):
        return device_matrix.place(constraint, library.convert, library.wide)
    if isinstance(constraint, SidFilter):
        bare = place(library, cast(Constraint, constraint.table), distances, None)
        return library.with_filters(bare, [constraint])
    if isinstance(constraint, Snapshot | LiveFilter):
        return place_live_set(constraint, library.convert, library.wide)
    return library.table(constraint, distances)
