"""What all constraints have in common: tables, lazy tables and sorted matrices."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .sid_filter import SidFilter
from .snapshot import LiveFilter, Snapshot
from .sorted_matrix import SortedMatrix
from .transition_table import TransitionTable


@runtime_checkable
class Constraint(Protocol):
    """A set of token sequences that a `Matcher`, a decoder or `to_device` takes.

    `TransitionTable` has arrays for any backend; `LazyTable` makes them in `to_table`; `SortedMatrix` is the
    set itself, `SidFilter` a part of one; `Snapshot` is a live set, `LiveFilter` a part of one.
    """

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""

    @property
    def eos(self) -> int | None:
        """The token that ends a sequence, the first of `ends`; None where sequences end by themselves."""

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end a sequence; () where sequences end by themselves."""

    @property
    def vocabulary(self) -> str:
        """The fingerprint of the vocabulary."""

    @property
    def fixed_length(self) -> int | None:
        """The length of every sequence, None where lengths differ or are not known."""

    @property
    def max_length(self) -> int | None:
        """Most tokens in a sequence, None where there is no most or it is not known."""

    @property
    def memory(self) -> int:
        """Bytes that the constraint takes in this process now."""

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of tokens (N, L) is in the set: bool (N,)."""

    def to_table(self) -> TransitionTable | SortedMatrix | SidFilter | Snapshot | LiveFilter:
        """Return the constraint as it is put on a device: with its arrays, which a lazy one works out."""
