"""Tables of arrays by name, and tables with one thing changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

import maskwright as mw
from maskwright.table.groups import GROUPS, NO_ACTIONS, NO_SITES, NO_TRIE, TableArrays, no_exits


def table_of(arrays: dict[str, NDArray[Any]], **fields: Any) -> mw.TransitionTable:
    """Return the table of a graph of arrays, named as in `rows.edge_start`; what is not named is empty."""
    nothing = {
        "rows.frames_required": np.zeros(0, np.int32),
        **{f"trie.{name}": array for name, array in NO_TRIE._asdict().items()},
        **{f"actions.{name}": array for name, array in NO_ACTIONS._asdict().items()},
        **{f"exits.{name}": array for name, array in no_exits(arrays["edges.token"].dtype)._asdict().items()},
        **{f"sites.{name}": array for name, array in NO_SITES._asdict().items()},
    }
    named = nothing | {name: array for name, array in arrays.items() if name.split(".")[0] in GROUPS}
    others = {name: value for name, value in arrays.items() if name not in named}
    return mw.TransitionTable(TableArrays.from_names(named), **fields, **others)


def replaced(table: mw.TransitionTable, name: str, value: Any) -> mw.TransitionTable:
    """Return a table with another array, named as in `rows.edge_start`, or another field."""
    if "." in name:
        return dataclasses.replace(table, arrays=table.arrays.with_arrays(**{name.replace(".", "__"): value}))
    return dataclasses.replace(table, **{name: value})


def every_node(table: mw.TransitionTable) -> np.ndarray:
    """All states of a table, the dead one and that after EOS among them."""
    return np.arange(table.num_states)
