"""The reader that all matchers of one constraint share, by the kind of constraint."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from ...lazy.lazy_table import LazyTable
from ...lazy.protocol import LazyMachine
from ...table.kept import Kept
from ...table.sid_filter import SidFilter
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from .ends_reader import EndsReader
from .filtered_reader import FilteredReader
from .host_reader import HostReader
from .lazy_reader import LazyReader
from .matrix_reader import MatrixReader
from .nested_reader import NestedReader
from .table_reader import TableReader

_complete: Kept[HostReader[Any]] = Kept()
_lazy: Kept[HostReader[Any]] = Kept()


@singledispatch
def reader_of(constraint: Any, budgets: bool) -> HostReader[Any]:
    """Return the reader of a constraint, made once and kept as long as the constraint lives.

    budgets: whether tokens are counted, for which a lazy table is completed. Raises TypeError for anything else.
    """
    raise TypeError(
        f"a Matcher takes a TransitionTable, a SortedMatrix or a SidFilter, not {type(constraint).__name__}"
    )


@reader_of.register
def _of_matrix(constraint: SortedMatrix, budgets: bool) -> HostReader[Any]:
    return _complete.made(constraint, lambda: MatrixReader(constraint))


@reader_of.register
def _of_filter(constraint: SidFilter, budgets: bool) -> HostReader[Any]:
    def made() -> HostReader[Any]:
        table = constraint.table
        if isinstance(table, SortedMatrix):
            return MatrixReader(table, constraint.rows)
        return _of_ends(FilteredReader(table, constraint), table)

    return _complete.made(constraint, made)


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
        found = _of_ends(LazyReader(constraint.vocab_size, constraint.eos, machine), constraint)
        _lazy.put(constraint, found)
    return found


def _machine_of(reader: HostReader[Any]) -> LazyMachine | None:
    inside = reader.inside if isinstance(reader, EndsReader) else reader
    return inside.machine if isinstance(inside, LazyReader) else None


def _of_ends(reader: HostReader[Any], constraint: TransitionTable | LazyTable) -> HostReader[Any]:
    """Return a reader that knows all end tokens of a constraint."""
    return EndsReader(reader, constraint.other_ends) if constraint.other_ends else reader
