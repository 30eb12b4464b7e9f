"""Where sequences stand in a table, and the errors for states that are not a table's."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

Array: TypeAlias = Any
"""An array of numpy, torch or JAX."""


class NestedState(NamedTuple):
    """Where sequences stand in a nested table: a state, and the return sites of the frames that are open."""

    node: Array  # (B,)
    stack: Array  # (B, slots) sites, the outermost first; 0 from `height` on
    height: Array  # (B,) open frames; 0 where the state is dead


class Sizes(Protocol):
    """What the errors say of a table."""

    @property
    def num_states(self) -> int: ...

    @property
    def num_sites(self) -> int: ...

    @property
    def slots(self) -> int: ...


def state_out_of_range(table: Sizes, state: int) -> ValueError:
    """Return the error for a state that is not a table's."""
    return ValueError(
        f"state {state} is outside this table, whose states are 0 .. {table.num_states - 1}: "
        "it comes from another table, or from an Arena, whose arena.input_rows(handles, states) takes its states"
    )


def configuration_out_of_range(table: Sizes, state: NestedState, row: int) -> ValueError:
    """Return the error for a row of a batch that is at no configuration of a nested table."""
    node, height = int(state.node[row]), int(state.height[row])
    if not 0 <= node < table.num_states:
        return state_out_of_range(table, node)
    return ValueError(
        f"row {row} has a stack of height {height} with sites {state.stack[row].tolist()}: this table's has at most "
        f"{table.slots} of sites 0 .. {table.num_sites - 1}, none of them after EOS; it comes from another table"
    )
