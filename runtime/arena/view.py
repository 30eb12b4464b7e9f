"""What operations on the host read of an arena: all its tables in one set of arrays, which change."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...table.grouped import GroupedArrays
from ...table.groups import Int32Array, IntArray, TableArrays
from ...table.nested_distances import Distances
from ...table.states import NestedState
from ...table.transition_table import TransitionTable
from ..device.device_table import AnyState


@dataclass(eq=False)
class FrameLimits:
    """How many frames the tables that are there may need: it changes as tables come and go."""

    most_required: int = 0
    most_pushes: int = 1


@dataclass(frozen=True, eq=False)
class ArenaView(GroupedArrays):
    """An arena's arrays as one nested table. Operations in numpy and kernels on the host read it as they read a table.

    starts: the states in which the rows of a batch start, (B,); (0,) before `starting` says.
    """

    arrays: TableArrays
    vocab_size: int
    eos: int
    vocabulary: str
    depth: int
    number: int  # of the arena
    code_frames_required: Int32Array
    limits: FrameLimits
    by_end: Distances | None
    starts: Int32Array = field(default_factory=lambda: np.zeros(0, np.int32))
    other_ends: tuple[int, ...] = ()  # tokens that end a sequence, beside eos

    @property
    def owner(self) -> object:
        """What all views of the arena share."""
        return self.limits

    @property
    def most_frames_required(self) -> int:
        """How many more frames must fit for nothing to be refused for want of frames."""
        return self.limits.most_required

    @property
    def most_pushes(self) -> int:
        """The most frames that one token opens."""
        return self.limits.most_pushes

    @property
    def min_length(self) -> int:
        """Fewest tokens in a sequence: tables differ."""
        return 0

    @property
    def max_length(self) -> None:
        """Most tokens in a sequence: there is no most."""
        return

    @property
    def fixed_length(self) -> None:
        """The length of every sequence: they differ."""
        return

    @property
    def distances(self) -> Distances:
        """Distances by ends. Raises ValueError of an arena without distances."""
        if self.by_end is None:
            raise ValueError("the arena was made without distances: make it with Arena(..., distances=True)")
        return self.by_end

    @property
    def distance(self) -> Int32Array:
        """Fewest tokens from each state to an end of its fragment: (num_states,). Raises as `distances` does."""
        return np.asarray(self.distances.code[: self.num_states].min(axis=1), np.int32)

    def follow(self, tokens: ArrayLike, state: NestedState) -> NestedState:
        """Return where each row of tokens (N, L) leads from a state (N,); the dead state if it is not allowed."""
        return self._followed(self.code_frames_required, tokens, state)

    @property
    def memory(self) -> int:
        """Bytes of the arrays."""
        return self.arrays.nbytes

    def input_rows(self, states: ArrayLike | AnyState) -> list[IntArray]:
        """Raise TypeError: the arena needs to know which of its tables each state is of."""
        raise TypeError(
            "an arena has many tables: call arena.input_rows(handles, states), with the handle of each state"
        )

    def starting(self, starts: NDArray[np.int32]) -> ArenaView:
        """Return the view in which the rows of a batch start in the states (B,)."""
        return dataclasses.replace(self, starts=starts)


HostTable: TypeAlias = TransitionTable | ArenaView
"""What operations in numpy take as a table."""
