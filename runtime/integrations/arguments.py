"""Tables, limits and ends as callers of the integrations give them, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from ...table.constraint import Constraint
from ..device.on_demand import has_lengths
from ..host.matcher import Matcher
from .placed import PlacedTable, unplaced

Tables = Constraint | PlacedTable | Sequence[Constraint | PlacedTable | None]

GIVE_EOS = "give it the model's, which is the eos of the Vocabulary it is compiled with, or eos= of compile_sids"

OTHER_END = (
    "let another token end it, by eos_token_ids= here and by eos_token_id= of generate, where a model has its own"
)


def elements_of(tables: Tables) -> list[Constraint | None]:
    """Return the table of each element of a batch, or alone the one for all rows; raise TypeError for anything else."""
    given: Constraint | Sequence[Constraint | None] = unplaced(tables)
    if isinstance(given, Constraint):
        return [given]
    wanted = (
        "tables must be a TransitionTable, which compile_regex and the like return, a SortedMatrix, a SidFilter, or a "
        "list of them"
    )
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise TypeError(f"{wanted}, not {type(given).__name__}")
    for i, table in enumerate(given):
        if table is not None and not isinstance(table, Constraint):
            raise TypeError(f"{wanted} with None where there is no constraint: tables[{i}] is {type(table).__name__}")
    if not given:
        raise ValueError("tables is empty: pass one table for all rows, or one for each element of the batch")
    return list(given)


def limits_of(max_tokens: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return max_tokens of each of `count` elements; raise TypeError for what is no whole number."""
    listed = isinstance(max_tokens, Sequence | np.ndarray) and not isinstance(max_tokens, str | bytes)
    limits = list(cast(Sequence[int | None], max_tokens)) if listed else [cast(int | None, max_tokens)] * count
    for limit in limits:
        if limit is not None and not _is_int(limit):
            raise TypeError(f"max_tokens must be a whole number of tokens, or a list of one for each table: {limit!r}")
    if len(limits) != count:
        raise ValueError(f"max_tokens has {len(limits)} entries, tables has {count}")
    return [None if limit is None else int(limit) for limit in limits]


def token_ids(ids: int | Sequence[int]) -> list[int]:
    """Return token ids given as one or as several."""
    listed = isinstance(ids, Sequence | np.ndarray) and not isinstance(ids, str | bytes)
    tokens = list(cast(Sequence[int], ids)) if listed else [cast(int, ids)]
    if not all(map(_is_int, tokens)):
        raise TypeError(f"eos_token_ids must be a token id, or a list of them, not {ids!r}")
    if any(token < 0 for token in tokens):
        raise ValueError(f"eos_token_ids must not be negative: {ids!r}")
    return [int(token) for token in tokens]


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def shortest_match(table: Constraint | None) -> int:
    """Return the tokens of a table's shortest match; of one without arrays at least so many."""
    if table is None or (not has_lengths(table) and Matcher(table).is_accepting):
        return 0
    return int(table.to_table().min_length) if has_lengths(table) else 1
