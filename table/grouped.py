"""What the arrays of a table say by themselves: the groups by name, and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..kernels.arrays import Int32Array
from .groups import Actions, Bases, Edges, Exits, Rows, Sites, TableArrays, TokenClasses, TrieLevels
from .several_ends import all_ends, as_eos
from .states import NestedState, configuration_out_of_range, state_out_of_range
from .walk import NO_EOS, Ends, follow


class GroupedArrays:
    """The read interface that a `TransitionTable` and the view of an `Arena` share. Both hold arrays in groups."""

    arrays: TableArrays
    vocab_size: int
    eos: int | None
    other_ends: tuple[int, ...]
    depth: int

    @property
    def owner(self) -> object:
        """What stands for the arrays where something is kept for them: views of the same arrays have the same owner."""
        return self

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence, `eos` first; () where sequences end by themselves."""
        return all_ends(self.eos, self.other_ends)

    @property
    def rows(self) -> Rows:
        """States that have edges of their own."""
        return self.arrays.rows

    @property
    def edges(self) -> Edges:
        """Tokens that lead on from rows, then the entries of tails."""
        return self.arrays.edges

    @property
    def bases(self) -> Bases:
        """Sets of tokens that many rows share."""
        return self.arrays.bases

    @property
    def classes(self) -> TokenClasses:
        """Lists of tokens that lead elsewhere than most tokens of a base."""
        return self.arrays.classes

    @property
    def trie(self) -> TrieLevels:
        """What only a trie has: rows by depth, and the way back to the input."""
        return self.arrays.trie

    @property
    def actions(self) -> Actions:
        """Targets that push return sites."""
        return self.arrays.actions

    @property
    def exits(self) -> Exits:
        """Tokens in which a fragment ends."""
        return self.arrays.exits

    @property
    def sites(self) -> Sites:
        """Return sites."""
        return self.arrays.sites

    @property
    def is_trie(self) -> bool:
        """Whether this is a set of sequences, with levels and input rows."""
        return bool(self.trie.level_start.size)

    @property
    def is_nested(self) -> bool:
        """Whether this table has calls, so that a stack belongs to its states."""
        return self.num_sites > 0

    @property
    def num_sequences(self) -> int:
        """Q: distinct sequences; 0 of a graph, which does not count them."""
        return int(self.trie.item_start.size) - 1

    @property
    def distance(self) -> Int32Array:
        """Fewest tokens from each state to an accepting end: (num_states,)."""
        raise NotImplementedError

    @property
    def has_calls(self) -> bool:
        """Whether any array has what belongs to calls, as only a nested table may."""
        actions, exits, sites = self.actions, self.exits, self.sites
        parts = (actions.state, actions.push, exits.of_row, exits.of_base, exits.token, exits.label, sites.symbol)
        frames = (sites.of_row, sites.frames_required, self.rows.frames_required)
        return exits.start.size > 1 or any(array.size for array in (*parts, *frames))

    @property
    def num_rows(self) -> int:
        """S: states with a row of edges."""
        return int(self.rows.edge_start.size) - 1

    @property
    def num_edges(self) -> int:
        """E: edges of rows."""
        return int(self.edges.target.size)

    @property
    def num_states(self) -> int:
        """All states: rows, tail entries, the state after EOS and the dead state."""
        return self.num_rows + int(self.edges.token.size) - self.num_edges

    @property
    def after_eos(self) -> int:
        """The final state that EOS leads to from an accepting row."""
        return self.num_states - 2

    @property
    def dead(self) -> int:
        """The state that a token that is not allowed leads to; it allows nothing."""
        return self.num_states - 1

    @property
    def num_sites(self) -> int:
        """K: return sites."""
        return int(self.sites.start.size) - 1

    @property
    def num_symbols(self) -> int:
        """Y: symbols that fragments are left with."""
        return int(self.exits.label.size)

    @property
    def num_actions(self) -> int:
        """A: targets that push."""
        return int(self.actions.state.size)

    @property
    def slots(self) -> int:
        """The places of a stack: one more than `depth`, for the leaf on top; 0 of a table without calls."""
        return self.depth + 1 if self.is_nested else 0

    def is_accepting(self, states: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each state (N,) ends a sequence, of a nested table with an empty stack: bool (N,)."""
        array = np.asarray(states)
        if array.size and not 0 <= array.min() <= array.max() < self.num_states:
            raise state_out_of_range(self, int(array.min() if array.min() < 0 else array.max()))
        rows = self.rows.accepting[np.minimum(array, self.num_rows - 1)]
        tails = self.edges.token[self.num_edges + np.maximum(array - self.num_rows, 0)] == self.vocab_size
        return np.asarray(np.where(array < self.num_rows, rows, tails))

    @property
    def _ends(self) -> Ends:
        return Ends(self.vocab_size, NO_EOS if self.eos is None else self.eos, self.depth)

    def _followed(self, frames: Int32Array, tokens: ArrayLike, state: NestedState | None) -> NestedState:
        """Return where each row of tokens (N, L) leads; frames: how many more must fit for each code to be followed."""
        array = as_eos(token_rows(tokens), self.eos, self.other_ends)
        count = len(array)
        if state is None:
            state = NestedState(
                np.zeros(count, np.int64), np.zeros((count, self.slots), np.int32), np.zeros(count, np.int32)
            )
        out = NestedState(
            np.array(state.node, np.int64, order="C"),
            np.array(state.stack, np.int32, order="C"),
            np.array(state.height, np.int32, order="C"),
        )
        if (out.node.shape, out.stack.shape, out.height.shape) != ((count,), (count, self.slots), (count,)):
            raise ValueError(
                f"a state for {count} rows of this table has node and height ({count},) and stack ({count}, "
                f"{self.slots}), not {out.node.shape}, {out.height.shape} and {out.stack.shape}"
            )
        array = array if array.size else np.zeros((count, 0), np.int64)
        outside = follow(self.arrays, self._ends, frames, array, *out)
        if outside >= 0:
            raise configuration_out_of_range(self, out, int(outside))
        return out


def token_rows(tokens: ArrayLike) -> NDArray[Any]:
    """Return tokens (N, L) as an aligned array of int64, as kernels take it. Raises ValueError for what is none."""
    array = np.asarray(tokens)
    if array.size == 0:
        return array
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"tokens must be integers of shape (N, L), not {array.dtype} of shape {array.shape}")
    return np.require(array, np.int64, "A")
