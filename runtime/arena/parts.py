"""What of a table is placed where in an arena, and the table's arrays numbered anew for its places."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.limits import UNREACHABLE
from ...table.groups import NO_ACTIONS, NO_SITES, Bases, Edges, IntArray, Rows, TokenClasses, no_exits
from ...table.transition_table import TransitionTable
from .arrays import CODE_FRAMES
from .capacity import Capacity

Written = Iterator[tuple[str, int, NDArray[Any]]]
"""The name of an array, where a part of it begins, and what to write there."""

Taken = tuple[str, int, int]
"""The name of a space, and what is taken of it: the first entry and how many."""

Needs = dict[str, int]
"""How many entries of each space."""

ARRAYS_OF = {
    "classes": ("classes.start", "classes.token", "classes.number"),
    "exits": ("exits.start", "exits.token", "exits.symbol"),
}
"""The arrays of a kind of list: where each list begins, and those of its entries."""


@dataclass(eq=False)
class Shared:
    """Something that several tables have: where it lies, and how many of them have it."""

    key: Any
    place: Any
    parts: list[Taken]
    uses: int = 0


class Places(NamedTuple):
    """Where a table lies: what it has in common with others, and what is its own, of each space."""

    common: Needs
    own: Needs


class ListPart(NamedTuple):
    """A mask, a class list or an exit list of a table: equal ones have equal keys."""

    key: Any
    kind: str
    spaces: Needs
    arrays: tuple[NDArray[Any], ...]


def lists_of(table: TransitionTable) -> dict[str, list[ListPart]]:
    """Return a graph's masks, class lists and exit lists."""

    def lists(kind: str, space: str, start: NDArray[Any], tokens: NDArray[Any], names: NDArray[Any]) -> list[ListPart]:
        parts = [(tokens[first:stop], names[first:stop]) for first, stop in itertools.pairwise(start.tolist())]
        return [
            ListPart(
                (kind, own.astype(np.int64).tobytes(), name.tobytes()), kind, {space: 2, kind: own.size}, (own, name)
            )
            for own, name in parts
        ]

    classes, exits = table.classes, table.exits
    masks = [ListPart(("mask", row.tobytes()), "masks", {"masks": 1}, (row,)) for row in table.bases.masks]
    return {
        "masks": [] if table.is_trie else masks,
        "classes": lists("classes", "class lists", classes.start, classes.token, classes.number),
        "exits": lists("exits", "exit lists", exits.start, exits.token, exits.symbol),
    }


def needs_of(table: TransitionTable, *, own: bool) -> Needs:
    """Return how much of each space a graph's own part needs, or what it has in common with others."""
    common, rows, bases, sites, actions = table.common, table.rows, table.bases, table.sites, table.actions
    shared = {
        "states": common.rows, "edges": int(rows.edge_start[common.rows + 1] - rows.edge_start[1]),
        "bases": common.bases, "base_targets": int(bases.target_start[common.bases]), "sites": common.sites,
        "site_entries": int(sites.start[common.sites]), "actions": common.actions,
        "pushes": int(actions.push_start[common.actions]),
    }  # fmt: skip
    whole = {
        "states": table.num_rows, "edges": table.num_edges, "bases": bases.mask.size,
        "base_targets": bases.target.size, "sites": table.num_sites, "site_entries": sites.symbol.size,
        "actions": table.num_actions, "pushes": actions.push.size,
    }  # fmt: skip
    needed = {name: whole[name] - shared[name] for name in whole} if own else shared
    # what has a start for each of its own has one more behind them
    return {name: count + (name in ("states", "bases", "sites", "actions")) for name, count in needed.items()}


def lists_needed(table: TransitionTable) -> dict[Any, Needs]:
    """Return how much of each space a graph's masks and lists need, by their keys: equal ones are one."""
    return {one.key: one.spaces for every in lists_of(table).values() for one in every}


def first_place(table: TransitionTable, space: str) -> int:
    """Return behind how many entries of a space a table must lie: behind its own states' numbers, if it has input rows.

    So a state of the arena is never a state of the table too, and `table.input_rows` cannot mistake one for the other.
    """
    return table.num_states if space == "states" and table.is_trie else 0


def as_graph(table: TransitionTable) -> TransitionTable:
    """Return a table whose states are all rows: of a trie, one in which tail entries have become such."""
    if not table.is_trie:
        return table
    rows, edges, bases, classes = table.rows, table.edges, table.bases, table.classes
    count = table.num_edges
    tails = edges.token[count:-2]
    goes_on = tails < table.vocab_size
    following = table.num_rows + 1 + np.flatnonzero(goes_on)
    ends = [rows.edge_start[:-1].astype(np.int64), count + np.cumsum([0, *goes_on])]
    return TransitionTable.graph(
        rows=Rows(
            edge_start=np.concatenate(ends).astype(np.int32),
            accepting=np.concatenate([rows.accepting, ~goes_on]),
            base=np.full(table.num_rows + tails.size, -1, np.int32),
            frames_required=np.zeros(0, np.int32),
        ),
        edges=Edges(
            token=np.concatenate([edges.token[:count], tails[goes_on], edges.token[-2:]]),
            target=np.concatenate([edges.target, following]).astype(np.int32),
        ),
        bases=Bases(
            bases.masks[:0], bases.mask[:0], bases.class_list[:0], np.zeros(1, np.int32), bases.target[:0]
        ),
        classes=TokenClasses(np.zeros(1, np.int32), classes.token[:0], classes.number[:0]),
        actions=NO_ACTIONS, exits=no_exits(edges.token.dtype), sites=NO_SITES,
        vocab_size=table.vocab_size, eos=table.eos, vocabulary=table.vocabulary, source=table.source,
        other_ends=table.other_ends,
    )  # fmt: skip


def more_frames(table: TransitionTable, capacity: Capacity) -> int:
    """Return how many more frames than it says all of a table requires that requires any.

    That is where frames can run out, and less depth was meant for the table than the arena has.
    """
    asks = table.rows.frames_required.size or table.sites.frames_required.size
    return capacity.depth - table.depth if asks else 0


class Renumbered:
    """The arrays of a graph, numbered by the places of its parts: of its own ones, or of those that others have too.

    lists: the places of its masks, class lists and exit lists.
    """

    def __init__(
        self, table: TransitionTable, capacity: Capacity, at: Places, lists: dict[str, NDArray[np.int32]], *, own: bool
    ) -> None:
        self._table, self._cap, self._at, self._lists, self._own = table, capacity, at, lists, own
        self._here = at.own if own else at.common
        self._over = more_frames(table, capacity)
        common, rows = table.common, table.num_rows
        self._by_row = 1, common.rows + 1
        self._by_site, self._by_action = (0, common.sites), (0, common.actions)
        # where each code leads: states, the start before the others of the table's own, the two behind them, actions
        states = np.arange(at.own["states"] - common.rows, at.own["states"] - common.rows + rows)
        states[0], states[1 : common.rows + 1] = at.own["states"], at.common["states"] + np.arange(common.rows)
        actions = capacity.states + 2 + self._moved(np.arange(table.num_actions), "actions", common.actions)
        self._states = states
        self._code = np.concatenate((states, [capacity.states, capacity.states + 1], actions)).astype(np.int32)

    def written(self, *, budgets: bool) -> Written:
        """Yield what to write where; budgets: distances too."""
        required = self._table.code_frames_required if self._table.is_nested else np.zeros(
            self._table.num_rows + 2, np.int32
        )  # fmt: skip
        required = np.where(required > 0, required + self._over, 0).astype(np.int32)
        yield from self._rows(required)
        yield from self._bases()
        if self._table.is_nested:
            yield from self._calls(required)
        if budgets:
            yield from self._distances()

    def _part(self, values: NDArray[Any], first: int, stop: int) -> NDArray[Any]:
        """Return what is common of values, first .. stop, or all but that."""
        return np.concatenate((values[:first], values[stop:])) if self._own else values[first:stop]

    def _starts(self, start: NDArray[Any], first: int, stop: int, space: str) -> NDArray[np.int64]:
        """Return where each entry's own entries of a space begin."""
        return self._here[space] + np.cumsum(np.concatenate(([0], self._part(np.diff(start), first, stop))))

    def _moved(self, ids: IntArray, space: str, count: int) -> NDArray[np.int64]:
        """Return the places of things, the first `count` of which are common; below 0 is none."""
        places = np.where(ids < count, self._at.common[space], self._at.own[space] - count)
        return np.where(ids < 0, -1, ids + places)

    def _listed(self, ids: NDArray[np.int32], kind: str, count: int) -> NDArray[np.int32]:
        """Return the places of lists, -1 for none."""
        if not ids.size:
            return np.full(count, -1, np.int32)
        places = self._lists[kind]
        return np.where(ids < 0, -1, places[np.maximum(ids, 0)] if places.size else -1).astype(np.int32)

    def _rows(self, required: NDArray[np.int32]) -> Written:
        t, common, by_row = self._table, self._table.common, self._by_row
        first, edges, rows = self._here["states"], self._here["edges"], t.num_rows
        by_edge = int(t.rows.edge_start[by_row[0]]), int(t.rows.edge_start[by_row[1]])
        yield "rows.edge_start", first, self._starts(t.rows.edge_start, *by_row, "edges")
        yield "edges.token", edges, self._part(t.edges.token[: t.num_edges], *by_edge)
        yield "edges.target", edges, self._code[self._part(t.edges.target, *by_edge)]
        yield "rows.accepting", first, self._part(t.rows.accepting, *by_row)
        yield "rows.base", first, self._moved(self._part(t.rows.base, *by_row), "bases", common.bases)
        yield "exits.of_row", first, self._part(self._listed(t.exits.of_row, "exits", rows), *by_row)
        pushed = t.sites.of_row if t.sites.of_row.size else np.full(rows, -1, np.int32)
        yield "sites.of_row", first, self._moved(self._part(pushed, *by_row), "sites", common.sites)
        yield CODE_FRAMES, first, self._part(required[:rows], *by_row)

    def _bases(self) -> Written:
        t, common, bases = self._table, self._table.common, self._table.bases
        first, rows = self._here["bases"], t.num_rows
        by_base, by_target = (0, common.bases), (0, int(bases.target_start[common.bases]))
        yield "bases.target_start", first, self._starts(bases.target_start, *by_base, "base_targets")
        if bases.mask.size:
            yield "bases.mask", first, self._lists["masks"][self._part(bases.mask, *by_base)]
            yield "bases.class_list", first, self._lists["classes"][self._part(bases.class_list, *by_base)]
            exits = self._listed(t.exits.of_base, "exits", bases.mask.size)
            yield "exits.of_base", first, self._part(exits, *by_base)
            code = self._part(bases.target, *by_target).astype(np.int64)
            to = code >> 1
            known = np.where((to >= 0) & (to < rows), self._states[to.clip(0, rows - 1)], self._cap.states + 1)
            targets = np.where(code & 1, code, known << 1).astype(np.int32)
            yield "bases.target", self._here["base_targets"], targets

    def _calls(self, required: NDArray[np.int32]) -> Written:
        t, cap, common, here = self._table, self._cap, self._table.common, self._here
        by_site, by_action, sites, actions = self._by_site, self._by_action, t.sites, t.actions
        by_entry, by_push = (0, int(sites.start[common.sites])), (0, int(actions.push_start[common.actions]))
        site, action = here["sites"], here["actions"]
        yield CODE_FRAMES, cap.states + 2 + action, self._part(required[t.num_rows + 2 :], *by_action)
        yield "sites.start", site, self._starts(sites.start, *by_site, "site_entries")
        yield "sites.symbol", here["site_entries"], self._part(sites.symbol, *by_entry)
        codes = self._part(sites.target, *by_entry)  # below 0 are symbols, which stay
        codes = np.where(codes < 0, codes, self._code[np.maximum(codes, 0)])
        yield "sites.target", here["site_entries"], codes
        yield "sites.is_leaf", site, self._part(sites.is_leaf, *by_site)
        frames = np.maximum(~sites.is_leaf, sites.frames_required if sites.frames_required.size else 0)
        frames = np.where(frames > 0, frames + self._over, 0).astype(np.int32)
        yield "sites.frames_required", site, self._part(frames, *by_site)
        yield "actions.state", action, self._states[self._part(actions.state, *by_action)]
        yield "actions.push_start", action, self._starts(actions.push_start, *by_action, "pushes")
        pushes = self._moved(self._part(actions.push, *by_push), "sites", common.sites)
        yield "actions.push", here["pushes"], pushes

    def _distances(self) -> Written:
        rows = self._table.num_rows
        for name, values in distances_of(self._table, self._cap, self._over).items():
            if name.startswith("site"):
                yield name, self._here["sites"], self._part(values, *self._by_site)
            else:  # of rows, the two behind them, and actions
                yield name, self._here["states"], self._part(values[:rows], *self._by_row)
                at = self._cap.states + 2 + self._here["actions"]
                yield name, at, self._part(values[rows + 2 :], *self._by_action)


def distances_of(table: TransitionTable, capacity: Capacity, over: int) -> dict[str, NDArray[np.int64]]:
    """Return a table's distances for as many ends as an arena tells apart; over: how many more frames they require."""
    if table.is_nested:
        found = table.distances
        code, site, code_room, site_room = found.code, found.site, found.code_frames, found.site_frames
    else:
        code = table.distance.astype(np.int64)[:, None]
        site, site_room = np.zeros((0, 1, 1), np.int64), np.zeros((0, 1, 1), np.int64)
        code_room = np.zeros((0, 1), np.int64)

    def wide(values: NDArray[np.int64], fill: int) -> NDArray[np.int64]:
        shape = (len(values), *(capacity.ends for _ in values.shape[1:]))
        out = np.full(shape, fill, np.int64)
        out[tuple(slice(size) for size in values.shape)] = values
        return out

    out = {"code_distance": wide(code, UNREACHABLE), "site_distance": wide(site, UNREACHABLE)}
    if capacity.ends > 1:  # what says of no frames that they must fit needs none
        code_room, site_room = (np.where((r > 0) & (r < UNREACHABLE), r + over, r) for r in (code_room, site_room))
        out["code_room"] = wide(code_room if code_room.size else np.zeros_like(code), 0)
        out["site_room"] = wide(site_room if site_room.size else np.zeros_like(site), 0)
    return out
