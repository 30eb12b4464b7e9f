"""Tables that lie on a device already, for calls that would copy them there each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import ConstraintError
from ...table.constraint import Constraint
from .. import torch_ops
from ..device.backend import Placed
from ..device.on_demand import has_lengths


@dataclass(frozen=True, eq=False)
class PlacedTable:
    """A table, and what `torch_ops.to_device` made of it; `place` makes one."""

    table: Constraint
    dev: Placed
    device: torch.device
    distances: bool  # whether it was put with distances, which max_tokens needs

    def checked(self, device: torch.device, distances: bool) -> Placed:
        """Return what lies on a device. Raises ValueError where it is on another one, or has no distances."""
        if device != self.device:
            raise ValueError(f"the table is on {self.device}, the model's scores are on {device}: place it there")
        if distances and not self.distances:
            raise ValueError("the number of tokens is limited, which needs distances: place(table, distances=True)")
        return self.dev


def place(table: Constraint, device: torch.device | str | None = None, *, distances: bool = True) -> PlacedTable:
    """Return a table put on a device once: `constrained_generate` and `ConstraintLogitsProcessor` take it as a table.

    Each call of `constrained_generate` copies a table that is not placed to the device of the model: 0.3 GB of 20
    million semantic IDs. distances: with distances, which `max_tokens` and `constrained_generate` need; False leaves
    them out. A sorted matrix needs none.

    Raises ConstraintError for what is read on demand, and so grows as texts come to its states.
    """
    if not has_lengths(table):
        raise ConstraintError("a grammar without a finite table is read on demand, anew in each call: pass it as it is")
    dev = torch_ops.to_device(table, device, distances=distances)
    return PlacedTable(table, dev, torch.empty(0, device=device).device, distances)


def unplaced(tables: object) -> Any:
    """Return tables as callers give them, with the table itself in place of each that is placed."""
    if isinstance(tables, PlacedTable):
        return tables.table
    if isinstance(tables, Sequence) and not isinstance(tables, str | bytes):
        return [table.table if isinstance(table, PlacedTable) else table for table in tables]
    return tables


def placed(tables: object) -> dict[int, PlacedTable]:
    """Return those of tables that are placed, by the id of the table."""
    given = tables if isinstance(tables, Sequence) else [tables]
    return {id(table.table): table for table in given if isinstance(table, PlacedTable)}
