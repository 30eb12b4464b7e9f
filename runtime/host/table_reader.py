"""How a `Matcher` reads a table without calls."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...table.groups import TableArrays
from ...table.transition_table import TransitionTable
from .host_reader import HostReader, tokens_of
from .masks import NO_DISTANCES, compose_rows


class TableViews:
    """Memory views of a table's arrays: to index one takes a quarter of what it takes to index an array."""

    __slots__ = (
        "accepting", "action_push", "action_start", "action_state", "base_classes", "base_exit", "base_mask",
        "base_push", "base_row", "base_start", "base_target", "class_id", "class_start", "class_token", "edge_target",
        "edge_token", "exit_start", "exit_symbol", "exit_token", "masks", "row_exit", "row_start", "site_leaf",
        "site_need", "site_start", "site_symbol", "site_target",
    )  # fmt: skip

    def __init__(self, arrays: TableArrays, is_trie: bool) -> None:
        rows, edges, bases, classes = arrays.rows, arrays.edges, arrays.bases, arrays.classes
        self.row_start, self.accepting = rows.edge_start.data, rows.accepting.view(np.uint8).data
        self.edge_token, self.edge_target = edges.token.data, edges.target.data
        # in a trie, a base only repeats the edges of its row
        self.base_row = (rows.base[:0] if is_trie else rows.base).data
        self.masks = [] if is_trie else [mask.data for mask in bases.masks]
        self.base_mask, self.base_classes = bases.mask.data, bases.class_list.data
        self.base_start, self.base_target = bases.target_start.data, bases.target.data
        self.class_start = classes.start.data
        self.class_token, self.class_id = classes.token.data, classes.number.data
        exits, sites, actions = arrays.exits, arrays.sites, arrays.actions
        self.row_exit, self.base_exit = exits.of_row.data, exits.of_base.data
        self.exit_start, self.exit_token = exits.start.data, exits.token.data
        self.exit_symbol = exits.symbol.data
        self.site_start, self.site_symbol = sites.start.data, sites.symbol.data
        self.site_target, self.site_leaf = sites.target.data, sites.is_leaf.data
        self.base_push, self.site_need = sites.of_row.data, sites.frames_required.data
        self.action_state, self.action_start = actions.state.data, actions.push_start.data
        self.action_push = actions.push.data


class TableReader(HostReader[int]):
    """Reads a table without calls: a place is a state."""

    def __init__(self, table: TransitionTable) -> None:
        super().__init__(table.vocab_size, table.eos)
        self.nowhere = table.dead
        self._arrays, self._is_trie, self._distance = table.arrays, table.is_trie, NO_DISTANCES
        self.rows, self.edges = table.num_rows, table.num_edges
        self.after_eos, self.dead = table.after_eos, table.dead
        self._views = TableViews(table.arrays, table.is_trie)

    def start(self) -> int:
        """Return the place of a sequence with nothing written yet."""
        return 0

    def budgets(self, constraint: TransitionTable) -> None:
        """Take over the distances of the table."""
        self._distance = constraint.distance
        self.distances, self.farthests = constraint.distance.data, constraint.farthest.data

    def distance(self, place: int) -> int:
        """Return the tokens in which a sequence can be complete from a place."""
        found: int = self.distances[place]
        return found

    def farthest(self, place: int) -> int:
        """Return the largest distance that a token leads to."""
        found: int = self.farthests[place]
        return found

    def made(self, place: int, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only; room: how many tokens may still be written, EOS aside."""
        out = np.empty((1, self.words), np.uint32)
        compose_rows(
            self._arrays, self._is_trie, self.size, self.eos, np.array([place], np.int64), out,
            None if room is None else np.array([room], np.int64), self._distance,
        )  # fmt: skip
        out.flags.writeable = False
        mask: NDArray[np.uint32] = out[0]
        return mask

    def allowed(self, place: int) -> NDArray[Any]:
        """Return the tokens that a place where no sequence may end allows."""
        views = self._views
        if place >= len(views.base_row) or views.base_row[place] < 0:
            return self._arrays.edges.token[views.row_start[place] : views.row_start[place + 1]]
        return tokens_of(self.mask(place))

    def step(self, place: int, token: int) -> int:
        """Return the place that a token leads to; `nowhere` if it is not allowed."""
        views, rows, node = self._views, self.rows, place
        edge_token: memoryview[int] = views.edge_token
        if node >= rows:
            entry = edge_token[self.edges + node - rows]
            if entry == token:
                return node + 1
            return node if entry == self.size and token == self.eos else self.dead
        stop = views.row_start[node + 1]
        edge = bisect_left(edge_token, token, views.row_start[node], stop)
        if edge < stop and edge_token[edge] == token:
            return views.edge_target[edge]
        if token == self.eos:
            return self.after_eos if views.accepting[node] else self.dead
        base = views.base_row[node] if node < len(views.base_row) else -1
        if base < 0 or not views.masks[views.base_mask[base]][token >> 5] >> (token & 31) & 1:
            return self.dead
        classes = views.base_classes[base]
        stop = views.class_start[classes + 1]
        at = bisect_left(views.class_token, token, views.class_start[classes], stop)
        name = views.class_id[at] if at < stop and views.class_token[at] == token else 0
        code = views.base_target[views.base_start[base] + name]
        return (code >> 1) + (code & 1) * node

    def ends(self, place: int) -> bool:
        """Return whether a sequence may end at a place."""
        if place < self.rows:
            return bool(self._views.accepting[place])
        return bool(self._views.edge_token[self.edges + place - self.rows] == self.size)

    def configuration(self, place: int) -> tuple[int, tuple[int, ...]]:
        """Return the state of a place and the sites on its stack, the outermost first."""
        return place, ()
