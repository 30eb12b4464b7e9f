"""How a `Matcher` reads a table with calls."""

from __future__ import annotations

import operator
from bisect import bisect_left
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.limits import UNREACHABLE
from ...kernels.mask_buffers import MaskBuffers
from ...table.transition_table import TransitionTable
from .budget import NO_BUDGET, budget_of
from .nested_masks import mask_one
from .stack_reader import Configuration, Limits, Stack, StackReader
from .table_pointers import pointers_of
from .table_reader import TableViews

_NO_END = 1 << 62  # a distance greater than any budget
_buffers: dict[int, MaskBuffers] = {}  # by their number of words


class NestedReader(StackReader):
    """Reads a table with calls."""

    def __init__(self, table: TransitionTable) -> None:
        is_leaf: Any = table.sites.is_leaf.data
        limits = Limits(
            table.num_states,
            table.depth,
            table.slots,
            table.most_frames_required,
            table.most_pushes,
            is_leaf,
        )
        super().__init__(table.vocab_size, table.eos, limits)
        self.rows, self.after_eos, self.dead = table.num_rows, table.after_eos, table.dead
        self._views, self._code_frames_required = TableViews(table.arrays, False), table.code_frames_required.data
        self._pointers, self._tokens = pointers_of(table), table.edges.token
        self._header = self._pointers.header
        self._buffers = _buffers.setdefault(self.words, MaskBuffers(self.words))
        self._counts, self._budget = False, NO_BUDGET  # whether distances are known, and these
        self._by_ends: list[list[list[int]]] = []  # of return sites, where distances differ by ends

    def budgets(self, constraint: TransitionTable) -> None:
        """Take over the distances of the table, before any place is made that needs them."""
        with self.lock:
            if self._counts:
                return
            code, site, farthest, code_room, site_room = constraint.distances
            self._budget = budget_of(constraint)
            if code.shape[1] > 1:
                self._by_ends, self._code_room, self._site_room = site.tolist(), code_room.tolist(), site_room.tolist()
                rooms = np.concatenate((code_room.reshape(-1), site_room.reshape(-1), [0]))
                self._most_room = 1 + int(rooms[rooms < UNREACHABLE].max())  # with which no way is left out
            else:
                code, farthest = code.reshape(-1), farthest.reshape(-1)
                self.limits = replace(self.limits, site_distance=site.reshape(-1).tolist())
            self._distances, self._farthests = code.data, farthest.data
            self._root, self._counts = None, True  # the stacks above the old root know no distances

    def distance(self, place: Configuration) -> int:
        """Return the tokens in which a sequence can be complete from a place."""
        by_ends = self._by_ends
        found: int = self._nearest(self._distances, place) if by_ends else self._distances[place[0]] + place[1].distance
        return found if found < UNREACHABLE else _NO_END

    def farthest(self, place: Configuration) -> int:
        """Return the largest distance that a token leads to, or more."""
        if self._by_ends:
            full = bool(self._code_room) and place[1].frames + self._most_room > self.limits.depth
            found = UNREACHABLE if full else self._nearest(self._farthests, place)
        else:
            found = self._farthests[place[0]] + place[1].distance
        return found if found < UNREACHABLE else _NO_END

    def _nearest(self, by_end: memoryview, place: Configuration) -> int:
        """Return the least sum of what is known of a state, by how its fragment ends, and of the stack's distance."""
        node, stack = place
        waiting = []
        at: Stack | None = stack
        while at is not None and at.far is None:
            waiting.append(at)
            at = at.below
        for above in reversed(waiting):
            below = above.below
            if below is None:
                above.far = [0] + [UNREACHABLE] * (len(self._by_ends[0]) - 1)
                continue
            assert below.far is not None, "stacks are worked out from the bottom"
            steps, left = self._by_ends[above.site], self.limits.depth - below.frames
            if self._site_room:
                rooms = self._site_room[above.site]
                steps = [
                    [step if room <= left else UNREACHABLE for step, room in zip(*pair, strict=True)]
                    for pair in zip(steps, rooms, strict=True)
                ]
            above.far = [min(map(operator.add, row, below.far)) for row in steps]
        assert stack.far is not None, "and this one the last"
        own = [int(by_end[node, end]) for end in range(len(stack.far))]
        if self._code_room and node < len(self._code_room):
            left = self.limits.depth - stack.frames
            own = [one if room <= left else UNREACHABLE for one, room in zip(own, self._code_room[node], strict=True)]
        nearest: int = min(map(operator.add, own, stack.far))
        return nearest

    def write(self, node: int, stack: Stack) -> tuple[NDArray[np.uint32], int, bool | bytes]:
        """Return the mask of a place, how many sites it depends on, and whether it was much work."""
        buffer = self._buffers.take()
        mask = buffer.shown  # held before another thread may take the buffer
        looked = mask_one(self._header, self._tokens, *NO_BUDGET, node, stack.as_array(), UNREACHABLE, buffer.mask)
        self._buffers.give(buffer)
        return mask, looked, False

    def made(self, place: Configuration, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only; room: how many tokens may still be written, EOS aside."""
        node, stack = place
        budget, last = (NO_BUDGET, UNREACHABLE) if room is None else (self._budget, min(room, UNREACHABLE))
        buffer = self._buffers.take()
        mask = buffer.shown
        mask_one(self._header, self._tokens, *budget, node, stack.as_array(), last, buffer.mask)
        self._buffers.give(buffer)
        return mask

    def step(self, place: Configuration, token: int) -> Configuration | None:
        """Return the place that a token leads to; None if it is not allowed."""
        views = self._views
        node, stack = place
        if node >= self.rows:
            return (node, stack) if node == self.after_eos and token == self.eos else None
        stop = views.row_start[node + 1]
        edge = bisect_left(views.edge_token, token, views.row_start[node], stop)
        if edge < stop and views.edge_token[edge] == token:
            code = views.edge_target[edge]
            if code < self.rows and not stack.variant:
                return code, stack
            return self._followed(code, stack)
        if views.row_exit and (exits := views.row_exit[node]) >= 0:
            stop = views.exit_start[exits + 1]
            at = bisect_left(views.exit_token, token, views.exit_start[exits], stop)
            if at < stop and views.exit_token[at] == token:
                return self._left(stack, views.exit_symbol[at])
        if token == self.eos:
            return (self.after_eos, stack) if views.accepting[node] and stack.below is None else None
        base = views.base_row[node]
        if base < 0:
            return None
        if views.base_push and (site := views.base_push[node]) >= 0:
            if stack.variant:
                needed = max(not views.site_leaf[site], views.site_need[site] if views.site_need else 0)
                if stack.frames + needed > self.limits.depth or stack.height >= self.limits.slots:
                    return None
            stack = self.pushed(stack, site)
        if views.masks[views.base_mask[base]][token >> 5] >> (token & 31) & 1:
            classes = views.base_classes[base]
            stop = views.class_start[classes + 1]
            at = bisect_left(views.class_token, token, views.class_start[classes], stop)
            name = views.class_id[at] if at < stop and views.class_token[at] == token else 0
            code = views.base_target[views.base_start[base] + name]
            code = (code >> 1) + (code & 1) * node
            return self._followed(code, stack) if stack.variant else (code, stack)
        if views.base_exit and (exits := views.base_exit[base]) >= 0:
            stop = views.exit_start[exits + 1]
            at = bisect_left(views.exit_token, token, views.exit_start[exits], stop)
            if at < stop and views.exit_token[at] == token:
                return self._left(stack, views.exit_symbol[at])
        return None

    def ends(self, place: Configuration) -> bool:
        """Return whether a sequence may end at a place."""
        node, stack = place
        return bool(node >= self.rows or (self._views.accepting[node] and stack.below is None))

    def _left(self, stack: Stack, symbol: int) -> Configuration | None:
        """Return where leaving the fragment on top with a symbol leads."""
        views = self._views
        while stack.below is not None:
            site, stack = stack.site, stack.below
            stop = views.site_start[site + 1]
            at = bisect_left(views.site_symbol, symbol, views.site_start[site], stop)
            if at >= stop or views.site_symbol[at] != symbol:
                return None
            code = views.site_target[at]
            if code >= 0:
                return self._followed(code, stack)
            symbol = -1 - code
        return None

    def _followed(self, code: int, stack: Stack) -> Configuration | None:
        """Return where a code leads from a stack."""
        views = self._views
        if stack.variant and code != self.dead and stack.frames + self._code_frames_required[code] > self.limits.depth:
            return None
        if code < self.rows:
            return code, stack
        if code == self.dead:
            return None
        action = code - self.limits.states
        first, stop = views.action_start[action], views.action_start[action + 1]
        if stack.variant and stack.height + stop - first > self.limits.slots:
            return None
        for site in views.action_push[first:stop]:
            stack = stack.above.get(site) or self.pushed(stack, site)
        return views.action_state[action], stack
