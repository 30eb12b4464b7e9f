"""For the time of a move: the arrays of a table by their earlier names."""

from __future__ import annotations

from typing import Any

import numpy as np

from .groups import GROUPS, NO_ACTIONS, NO_SITES, NO_TRIE, TableArrays, no_exits

FLAT = {
    "row_start": "rows.edge_start", "accepting": "rows.accepting", "base_row": "rows.base",
    "state_need": "rows.frames_required", "edge_token": "edges.token", "edge_target": "edges.target",
    "masks": "bases.masks", "base_mask": "bases.mask", "base_classes": "bases.class_list",
    "base_start": "bases.target_start", "base_target": "bases.target", "class_start": "classes.start",
    "class_token": "classes.token", "class_id": "classes.number", "level_start": "trie.level_start",
    "item_start": "trie.item_start", "item_row": "trie.item_row", "action_state": "actions.state",
    "action_start": "actions.push_start", "action_push": "actions.push", "row_exit": "exits.of_row",
    "base_exit": "exits.of_base", "exit_start": "exits.start", "exit_token": "exits.token",
    "exit_symbol": "exits.symbol", "symbol_label": "exits.label", "site_start": "sites.start",
    "site_symbol": "sites.symbol", "site_target": "sites.target", "site_leaf": "sites.is_leaf",
    "site_need": "sites.frames_required", "base_push": "sites.of_row",
}  # fmt: skip


def grouped(fields: dict[str, Any]) -> TableArrays:
    """Return the groups of arrays by earlier names; those that are missing are empty."""
    token = fields["edge_token"].dtype
    none: Any = None
    nothing = TableArrays(none, none, none, none, NO_TRIE, NO_ACTIONS, no_exits(token), NO_SITES)
    found = {}
    for old, new in FLAT.items():
        group, field = new.split(".")
        if old in fields:
            found[new] = fields[old]
        elif new == "rows.frames_required":
            found[new] = np.zeros(0, np.int32)
        else:
            found[new] = getattr(getattr(nothing, group), field)
    parts: dict[str, dict[str, Any]] = {}
    for name, array in found.items():
        group, field = name.split(".")
        parts.setdefault(group, {})[field] = array
    return TableArrays(**{name: GROUPS[name](**part) for name, part in parts.items()})
