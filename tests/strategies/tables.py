"""Tables with one thing changed, for tests of what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import maskwright as mw


def replaced(table: mw.TransitionTable, name: str, value: Any) -> mw.TransitionTable:
    """Return a table with another array, named as in `rows.edge_start`, or another field."""
    if "." in name:
        return dataclasses.replace(table, arrays=table.arrays.with_arrays(**{name.replace(".", "__"): value}))
    return dataclasses.replace(table, **{name: value})
