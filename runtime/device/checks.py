"""Checks of what operations on devices are given, the same in every library of arrays."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ...errors import VocabularyMismatchError
from ...table.states import NestedState
from .backend import Array, Placed
from .device_table import FilteredTableState


def check_remaining(rows: int, shape: tuple[int, ...], integers: bool, dtype: Any, distances: bool) -> None:
    """Raise unless there is a whole number of tokens for each of `rows` rows, and the table was put with distances.

    Raises ValueError, TypeError.
    """
    if not integers:
        raise TypeError(f"remaining must be integers, not {dtype}")
    if tuple(shape) != (rows,):
        raise ValueError(
            f"remaining has shape {tuple(shape)}, there are {rows} rows: one number of tokens a row is needed"
        )
    if not distances:
        raise ValueError("remaining needs the table's distances on the device: to_device(table, distances=True)")


def check_distances(dev: Placed) -> None:
    """Raise ValueError unless a table has distances on its device."""
    if not dev.distance.shape[0]:
        raise ValueError("this table has no distances on its device: put it there by to_device(table, distances=True)")


def check_level(level: object) -> None:
    """Raise ValueError unless this is a depth: a whole number, 0 or more."""
    if (type(level) is not int and (not isinstance(level, Integral) or isinstance(level, bool))) or level < 0:
        raise ValueError(f"level={level!r} must be a depth, 0 or more")


def check_scores(shape: tuple[int, ...], rows: int) -> None:
    """Raise ValueError unless there are scores (B, m) of as many beams as there are rows of logits."""
    if len(shape) != 2 or shape[0] * shape[1] != rows:
        raise ValueError(
            f"scores have shape {tuple(shape)}, the logits have {rows} rows: scores (B, m) and B * m rows are needed"
        )


def check_logits(vocab_size: int, shape: tuple[int, ...]) -> None:
    """Raise VocabularyMismatchError unless logits (B, V') cover the table's vocabulary; padding columns are fine."""
    if len(shape) != 2:
        raise VocabularyMismatchError(f"logits must have shape (B, V), not {tuple(shape)}")
    if shape[1] < vocab_size:
        raise VocabularyMismatchError(
            f"logits have {shape[1]} columns, the table's vocabulary has {vocab_size}: "
            "it was compiled for another model"
        )


def check_starts(starts: int, batch: int) -> None:
    """Raise unless it is known where `batch` sequences start, as many in each of `starts` states.

    Raises TypeError, ValueError.
    """
    if isinstance(batch, bool) or not isinstance(batch, Integral):
        raise TypeError(f"batch must be an integer, not {batch!r}")
    if batch < 0:
        raise ValueError(f"batch must be 0 or more, not {batch}")
    if starts == 0:
        raise ValueError(
            "the tables of an arena start in different states: pass with_start_states(dev, handles), one handle a row"
        )
    if batch % starts:
        raise ValueError(f"there are {starts} handles or filters for a batch of {batch}: each needs as many rows")


def check_rows(rows: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a state has one entry for each of `rows` rows of logits."""
    if tuple(shape) != (rows,):
        raise ValueError(f"the state has shape {tuple(shape)}, the logits have {rows} rows: one state a row is needed")


def check_unfiltered(state: Any) -> None:
    """Raise ValueError for a state under filters, where there are none."""
    if isinstance(state, FilteredTableState):
        raise ValueError(
            "the state is of the table with filters, and here are none: begin with start of what is decoded with"
        )


def check_state(slots: int, state: Any) -> None:
    """Raise unless a state has the stack that a table with so many slots needs: TypeError, ValueError."""
    if not isinstance(state, NestedState):
        raise TypeError(f"a nested table needs a NestedState, as start makes one, not a {type(state).__name__}")
    rows = tuple(state.node.shape)
    if tuple(state.stack.shape) != (*rows, slots) or tuple(state.height.shape) != rows:
        raise ValueError(
            f"a state of this table has node and height (B,) and stack (B, {slots}), "
            f"not {rows}, {tuple(state.height.shape)} and {tuple(state.stack.shape)}"
        )


def check_tokens(rows: int, shape: tuple[int, ...], integers: bool, dtype: Any) -> None:
    """Raise unless there is one integer token for each of `rows` states: ValueError, TypeError."""
    if not integers:
        raise TypeError(f"tokens must be integers, not {dtype}")
    if tuple(shape) != (rows,):
        raise ValueError(f"tokens have shape {tuple(shape)}, there are {rows} states: one token a state is needed")


def check_floating(floating: bool, dtype: Any) -> None:
    """Raise TypeError unless logits are floating-point numbers that have -inf."""
    if not floating:
        raise TypeError(f"logits must be floating-point numbers of 16 bits or more, not {dtype}: others have no -inf")


def check_sids(shape: tuple[int, ...]) -> None:
    """Raise ValueError unless sids have shape (N, L)."""
    if len(shape) != 2:
        raise ValueError(f"sids must have shape (N, L), not {tuple(shape)}")


def is_end(dev: Placed, tokens: Array) -> Array:
    """Return which tokens, of any shape, are ends of a table that has some."""
    found = tokens == dev.eos
    for end in dev.other_ends:
        found = found | (tokens == end)
    return found


def check_has_end(dev: Placed) -> None:
    """Raise ValueError unless sequences of a constraint end with a token."""
    if dev.eos is None:
        raise ValueError(
            "this constraint has no EOS, its sequences end by themselves: compile_sids(.., eos=) has one, and for "
            "texts a Vocabulary with eos"
        )


def not_put(found: object) -> TypeError:
    """Return the error for what has not been through `to_device`."""
    return TypeError(
        f"a constraint from to_device is needed, not a {type(found).__name__}: pass it through to_device once, first"
    )
