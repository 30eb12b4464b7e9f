"""How a `Matcher` reads a table of sequences under a filter."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.limits import UNREACHABLE
from ...table.filter_bits import booleans_of
from ...table.kept_edges import kept_edges
from ...table.sid_filter import SidFilter
from ...table.transition_table import TransitionTable
from .host_reader import HostReader
from .matrix_reader import nothing_kept

_NO_DISTANCES = np.zeros(0, np.int32)


class FilteredReader(HostReader[int]):
    """Reads those sequences of a trie that a filter keeps: a place is a state of the trie.

    A tail has one sequence, which is kept where its state is reached. Raises ConstraintError for a filter that keeps
    nothing.
    """

    def __init__(self, table: TransitionTable, kept: SidFilter) -> None:
        super().__init__(table.vocab_size, table.eos)
        found = kept_edges(table, kept.rows)
        if not found.any:
            raise nothing_kept()
        self._kept = booleans_of(found.edges, table.num_edges)
        self._ends = booleans_of(found.ends, table.num_rows)
        self._distance = self._row_distance = _NO_DISTANCES
        self.nowhere = table.dead
        self.after_eos, self.dead = table.after_eos, table.dead
        self.rows, self.edges = table.num_rows, table.num_edges
        self._start, self._token, self._target = table.rows.edge_start, table.edges.token, table.edges.target
        self._tokens: memoryview[int] = table.edges.token.data

    def start(self) -> int:
        """Return the place of a sequence with nothing written yet."""
        return 0

    def budgets(self, constraint: SidFilter) -> None:
        """Take over the distances of the table, to the ends that the filter keeps."""
        table = constraint.table
        assert isinstance(table, TransitionTable)
        found = kept_edges(table, constraint.rows, distances=True).distance
        assert found is not None
        self._distance, self._row_distance = table.distance, found

    def distance(self, place: int) -> int:
        """Return the tokens in which a sequence can be complete from a place."""
        return int(self._row_distance[place] if place < self.rows else self._distance[place])

    def farthest(self, place: int) -> int:
        """Return the largest distance that a token leads to."""
        if place >= self.rows:
            return max(self.distance(place) - 1, -1)
        far = self._far(self._edges_of(place))
        return int(far.max(initial=-1))

    def _edges_of(self, row: int) -> NDArray[np.int64]:
        """Return the edges of a row that are kept."""
        low, high = int(self._start[row]), int(self._start[row + 1])
        return low + np.flatnonzero(self._kept[low:high])

    def _far(self, edges: NDArray[np.int64]) -> NDArray[Any]:
        """Return the distances that edges lead to."""
        target = self._target[edges]
        in_rows = np.minimum(target, self.rows - 1)
        return np.where(target < self.rows, self._row_distance[in_rows], self._distance[target])

    def made(self, place: int, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only; room: how many tokens may still be written, EOS aside."""
        tokens = self._allowed(place, room)
        mask = np.zeros(self.words, np.uint32)
        if self.eos >= 0 and self.ends(place):
            tokens = np.append(tokens, np.uint32(self.eos))
        np.bitwise_or.at(mask, tokens >> 5, np.uint32(1) << (tokens & 31))
        mask.flags.writeable = False
        return mask

    def allowed(self, place: int) -> NDArray[Any]:
        """Return the tokens that a place where no sequence may end allows."""
        return self._allowed(place, None)

    def _allowed(self, place: int, room: int | None) -> NDArray[np.uint32]:
        """Return the tokens that a place allows, EOS aside."""
        if place < self.rows:
            edges = self._edges_of(place)
            if room is not None:
                edges = edges[self._far(edges) < min(room, UNREACHABLE)]
            return self._token[edges].astype(np.uint32)
        token = self._tokens[self.edges + place - self.rows]
        if token >= self.size or (room is not None and self.distance(place) > room):
            return np.empty(0, np.uint32)
        return np.array([token], np.uint32)

    def step(self, place: int, token: int) -> int:
        """Return the place that a token leads to; `nowhere` if it is not allowed."""
        if token == self.eos and self.ends(place):
            return self.after_eos if place < self.rows else place
        if place >= self.rows:
            entry = self._tokens[self.edges + place - self.rows]
            return place + 1 if entry == token and token < self.size else self.dead
        high = int(self._start[place + 1])
        edge = bisect_left(self._tokens, token, int(self._start[place]), high)
        if edge < high and self._tokens[edge] == token and self._kept[edge]:
            return int(self._target[edge])
        return self.dead

    def ends(self, place: int) -> bool:
        """Return whether a sequence may end at a place."""
        if place < self.rows:
            return bool(self._ends[place])
        return bool(self._tokens[self.edges + place - self.rows] == self.size)

    def configuration(self, place: int) -> tuple[int, tuple[int, ...]]:
        """Return the state of a place and no sites."""
        return place, ()
