"""What all constraints have in common: tables, lazy tables and sorted matrices."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray


@runtime_checkable
class Constraint(Protocol):
    """A set of token sequences that a `Matcher`, a decoder or `put` takes.

    `TransitionTable` has arrays for any backend; `LazyTable` makes them in `to_table`; `SortedMatrix` is the
    set itself.
    """

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""

    @property
    def eos(self) -> int | None:
        """The token that ends a sequence, None where sequences end by themselves."""

    @property
    def vocabulary(self) -> str:
        """The fingerprint of the vocabulary."""

    @property
    def memory(self) -> int:
        """Bytes that the constraint takes in this process now."""

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of tokens (N, L) is in the set: bool (N,)."""

    def to_table(self) -> Any:
        """Return the constraint as it is put on a device: with its arrays, which a lazy one works out."""
