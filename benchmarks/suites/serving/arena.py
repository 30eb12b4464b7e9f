"""An arena: the memory that many tables take of it, and how long adding one takes."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

from rich.progress import track

import maskwright as mw
from maskwright.runtime import torch_ops

from .times import Record, microseconds, percentiles


def arena(schemas: list[Any], vocab: mw.Vocabulary, kept: int) -> Record:
    """Return the memory of an arena that holds the `kept` smallest tables, and how long adding one takes."""
    tables = []
    for schema in track(schemas, "arena", transient=True):
        try:
            tables.append(mw.compile_json_schema(schema, vocab, lazy=False, budget=mw.Budget(seconds=2)).to_table())
        except mw.errors.ConstraintError:
            continue
    tables = sorted(tables, key=lambda table: table.num_edges + 4 * table.num_rows)[:kept]
    held = mw.Arena(vocab)
    dev = torch_ops.to_device(held)
    units, part_of = _units(vocab)
    before = held.stored.free
    adding, taken, parts = [], [], []
    first = mw.compile_json_schema(True, vocab, lazy=False).to_table()  # with which all comes that all share
    for table in [first, *tables]:
        adding.append(microseconds(partial(held.add, table)))
        now = held.stored.free
        parts.append({part: before[part] - now[part] for part in now})
        taken.append(sum(units[part_of.get(part, part)] * count for part, count in parts[-1].items()))
        before = now
    again = [microseconds(partial(held.add, table)) for table in tables]
    return {
        "tables": held.stored.tables, "arena_bytes": held.nbytes, "same_arrays": torch_ops.to_device(held) is dev,
        "tables_bytes": sum(table.nbytes for table in tables), "add_us": percentiles(adding[1:]),
        "add_again_us": percentiles(again), "free": held.stored.free,
        "default_bytes": {
            "without budgets": mw.Arena(vocab).nbytes, "with budgets": mw.Arena(vocab, distances=True).nbytes,
            "with budgets, ends=1": mw.Arena(vocab, mw.Capacity(ends=1), distances=True).nbytes,
        },
        "unit_bytes": units, "unit_bytes_with_budgets": _units(vocab, True)[0], "true_takes": taken[0],
        "true_takes_of": parts[0], "takes": percentiles(taken[1:]),
        "takes_of": {part: percentiles([each[part] for each in parts[1:]]) for part in now},
        "table_bytes": percentiles([table.nbytes for table in tables]),
        "vocabulary_bytes": sum(map(len, vocab.tokens)),
        "trie_bytes": sum(getattr(getattr(vocab.trie, each.name), "nbytes", 0) for each in fields(vocab.trie)),
    }  # fmt: skip


def _units(vocab: mw.Vocabulary, budgets: bool = False) -> tuple[dict[str, float], dict[str, str]]:
    """Return the bytes on a device of one more of each of an arena's capacities, and whose unit a part of it has."""
    least, more, default = mw.Arena(vocab, distances=budgets).nbytes, 1024, mw.Capacity()

    def unit(name: str) -> float:
        larger = replace(default, **{name: getattr(default, name) + more})
        return (mw.Arena(vocab, larger, distances=budgets).nbytes - least) / more

    units = {name: unit(name) for name in _SHARED}
    units["half a list"] = units["lists"] / 4  # which are of two kinds, each with a start and an end
    return units, {"class lists": "half a list", "exit lists": "half a list"}


_SHARED = (
    "states", "edges", "bases", "base_targets", "masks", "lists", "classes", "exits", "sites", "site_entries",
    "actions", "pushes",
)  # fmt: skip
