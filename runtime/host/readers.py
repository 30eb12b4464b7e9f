"""The reader that all matchers of one constraint share, by the kind of constraint."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from ...lazy.lazy_table import LazyTable
from ...lazy.protocol import LazyMachine
from ...table.sid_filter import SidFilter
from ...table.snapshot import LiveFilter, Snapshot
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from ...table.weak_cache import Kept
from .ends_reader import EndsReader
from .filtered_reader import FilteredReader
from .host_reader import HostReader
from .lazy_reader import LazyReader
from .live_reader import LiveReader
from .matrix_reader import MatrixReader
from .nested_reader import NestedReader
from .table_reader import TableReader
from .unique_reader import UniqueReader

_complete: Kept[HostReader[Any]] = Kept()
_lazy: Kept[HostReader[Any]] = Kept()


@singledispatch
def reader_of(constraint: object, budgets: bool) -> HostReader[Any]:
    """Return the reader of a constraint, made once and kept as long as the constraint lives.

    budgets: whether distances are needed, for which a lazy table is completed. Raises TypeError for anything else.
    """
    raise TypeError(
        "a Matcher takes a TransitionTable, a SortedMatrix, a SidFilter, a Snapshot or a LiveFilter, not "
        f"{type(constraint).__name__}"
    )


def reader_within(constraint: object, max_tokens: int) -> HostReader[Any] | None:
    """Return the reader of a lazy table that is not complete, where its bounds promise an end within max_tokens.

    None where they do not, even after the first token, and for what has distances.
    """
    if not isinstance(constraint, LazyTable) or constraint.is_complete:
        return None
    reader = reader_of(constraint, False)
    if not reader.grows or max_tokens < reader.distance(reader.start()):
        return None
    return reader if max_tokens > reader.farthest(reader.start()) else None


@reader_of.register
def _of_matrix(constraint: SortedMatrix, budgets: bool) -> HostReader[Any]:
    return _complete.made(constraint, lambda: MatrixReader(constraint.columns, constraint.vocab_size))


@reader_of.register
def _of_filter(constraint: SidFilter, budgets: bool) -> HostReader[Any]:
    def made() -> HostReader[Any]:
        table = constraint.table
        if isinstance(table, SortedMatrix):
            return MatrixReader.of_filter(table.columns, table.vocab_size, constraint.rows)
        assert isinstance(table, TransitionTable)
        return _of_ends(FilteredReader(table, constraint), table)

    return _complete.made(constraint, made)


@reader_of.register(Snapshot)
@reader_of.register(LiveFilter)
def _of_live_set(constraint: Snapshot | LiveFilter, budgets: bool) -> HostReader[Any]:
    return _complete.made(constraint, lambda: LiveReader(constraint))


@reader_of.register
def _of_table(constraint: TransitionTable, budgets: bool) -> HostReader[Any]:
    def made() -> HostReader[Any]:
        reader: HostReader[Any] = (NestedReader if constraint.is_nested else TableReader)(constraint)
        return _of_ends(reader, constraint)

    return _complete.made(constraint, made)


@reader_of.register
def _of_lazy_table(constraint: LazyTable, budgets: bool) -> HostReader[Any]:
    machine = None if budgets else constraint.reading()  # another thread may complete the table meanwhile
    if machine is None:
        return _of_table(constraint.to_table(), budgets)
    found = _lazy.get(constraint)
    if found is None or _machine_of(found) is not machine:
        inside = LazyReader(constraint.vocab_size, constraint.eos, machine)
        found = _of_ends(inside if constraint.unique is None else UniqueReader(inside, constraint.unique), constraint)
        _lazy.put(constraint, found)
    return found


def _machine_of(reader: HostReader[Any]) -> LazyMachine | None:
    inside = reader.inside if isinstance(reader, EndsReader) else reader
    if isinstance(inside, UniqueReader):
        return inside.inside.machine
    return inside.machine if isinstance(inside, LazyReader) else None


def _of_ends(reader: HostReader[Any], constraint: TransitionTable | LazyTable) -> HostReader[Any]:
    """Return a reader that knows all end tokens of a constraint."""
    return EndsReader(reader, constraint.other_ends) if constraint.other_ends else reader
