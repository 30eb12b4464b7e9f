"""Which items the states or sequences of a decoder mean, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError
from ..table.item_ids import ItemId, ItemIds
from ..table.sid_filter import SidFilter
from ..table.snapshot import LiveFilter, Snapshot
from ..table.sorted_matrix import SortedMatrix
from ..table.transition_table import TransitionTable

AnyFilter = SidFilter | LiveFilter
Table = TransitionTable | SortedMatrix | Snapshot


def ranked_items(
    table: Table, ids: ItemIds, found: Any, limit: int | None, filters: AnyFilter | Sequence[AnyFilter] | None
) -> tuple[list[dict[ItemId, float]], bool]:
    """Return the items and scores of each row of what was found, best first; and whether these are rows of a batch.

    Arguments as of `Catalogue.items`. Raises ConstraintError, ValueError.
    """
    given = _Found.of(found)
    tables: list[Table | AnyFilter] = [table]
    if filters is not None:
        tables = [filters] if isinstance(filters, SidFilter | LiveFilter) else list(filters)
    if any(table_of(one) is not table for one in tables):
        raise ConstraintError("is of another catalogue: a filter is made by `filter` of this one", argument="filters")
    batch = len(given.states)
    if not tables or batch % len(tables):
        raise ValueError(f"there are {len(tables)} filters for {batch} rows: as many rows for each are needed")
    each = batch // len(tables)
    rows = zip(given.states, given.scores, given.valid, strict=True)
    best = [best_items(tables[i // each], ids, *row, limit) for i, row in enumerate(rows)]
    return [{item: score for item, (_, score) in found.items()} for found in best], given.is_batch


def best_items(
    table: Table | AnyFilter, ids: ItemIds, states: NDArray[Any], scores: NDArray[Any], valid: NDArray[Any],
    limit: int | None,
) -> dict[ItemId, tuple[int, float]]:  # fmt: skip
    """Return the items of states (M,), the best first, each once, with its row and its score.

    table: the filter under which the search ran, or what it searched. ids: of all rows. limit: the most items.
    """
    order = np.argsort(-scores, kind="stable")  # NaN, the last, all keep their order
    order = order[valid[order]]
    rows = table.input_rows(states[order])
    behind = np.repeat(np.arange(len(rows)), [len(group) for group in rows])  # which of the states each row is of
    found = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64)
    found = found[np.lexsort((found, behind))]  # items that share an ID in the order of the input
    out: dict[ItemId, tuple[int, float]] = {}
    for item, row, score in zip(ids.at(found), found.tolist(), scores[order][behind].tolist(), strict=True):
        if len(out) == limit:
            break
        out.setdefault(item, (row, score))
    return out


def table_of(table: Any) -> Any:
    """Return the table that a filter is of, or the table itself."""
    if isinstance(table, SidFilter):
        return table.table
    return table.snapshot if isinstance(table, LiveFilter) else table


def on_host(array: Any) -> NDArray[Any]:
    """Return an array of any library in numpy."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    return np.asarray(array)


class _Found(NamedTuple):
    """Final states of sequences, by what they are ranked, and which of them are valid: (B, M) each."""

    states: NDArray[Any]
    scores: NDArray[Any]  # NaN where only states are known
    valid: NDArray[Any]
    is_batch: bool  # False of states (M,), which have B = 1 here

    @classmethod
    def of(cls, found: Any) -> _Found:
        """Return what a decoder returned, or states themselves, on the host. Raises ValueError."""
        states = on_host(getattr(found, "states", found))
        ranks = getattr(found, "scores", getattr(found, "log_probs", None))
        scores = np.full(states.shape, np.nan) if ranks is None else on_host(ranks)
        valid = on_host(found.valid) if hasattr(found, "valid") else np.ones(states.shape, bool)
        if states.ndim not in (1, 2) or states.dtype.kind not in "iu":
            raise ValueError(f"states must be integers (M,) or (B, M), not {states.dtype} {states.shape}")
        return cls(np.atleast_2d(states), np.atleast_2d(scores), np.atleast_2d(valid), states.ndim == 2)
