"""Rows of a pushdown machine as a walk finds them, and the actions that its tokens take, in pools that grow.

Kernels take names from this file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.arrays import Int
from ...kernels.compiled import kernel
from ...table.groups import Actions
from .arrays import ACTIONS, EDGES, EXITS

ACTION = 1 << 30
"""The code of action 0: targets below are states, until the number of states is known."""


class EntryPool(NamedTuple):
    """Tokens of rows, one row after the other: where edges lead, or which symbols exits leave."""

    start: NDArray[np.int64]  # by row
    token: NDArray[np.int32]
    value: NDArray[np.int32]


class ActionPool(NamedTuple):
    """Actions, found by hash."""

    slots: NDArray[np.int32]  # action by hash, -1 empty
    state: NDArray[np.int32]
    push_start: NDArray[np.int32]
    push: NDArray[np.int32]

    def used(self, count: int) -> Actions:
        """Return copies of the first actions."""
        return Actions(
            self.state[:count].copy(), self.push_start[: count + 1].copy(), self.push[: self.push_start[count]].copy()
        )


class LinkPools(NamedTuple):
    """What a walk writes. Pools are longer than what is used; the counters say how much is."""

    counters: NDArray[np.int64]  # (5,) see `link_counters`
    edges: EntryPool
    exits: EntryPool
    actions: ActionPool

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return self.counters.nbytes + sum(array.nbytes for part in self[1:] for array in part)


def empty_link_pools(states: int, tokens: int, actions: ActionPool | None = None) -> LinkPools:
    """Return pools for rows of some states. tokens: of the trie. actions: room for these; a first few by default."""
    return LinkPools(
        counters=np.zeros(5, np.int64),
        edges=EntryPool(
            np.zeros(states + 1, np.int64),
            np.empty(2 * tokens + 65_536, np.int32),
            np.empty(2 * tokens + 65_536, np.int32),
        ),
        exits=EntryPool(
            np.zeros(states + 1, np.int64),
            np.empty(2 * tokens + 16_384, np.int32),
            np.empty(2 * tokens + 16_384, np.int32),
        ),
        actions=empty_actions(1 << 14) if actions is None else actions,
    )


def empty_actions(slots: int, pushes: int = 0) -> ActionPool:
    """Return room for half as many actions as slots, which push more than twice that number of sites."""
    return ActionPool(
        slots=np.full(slots, -1, np.int32),
        state=np.empty(slots // 2, np.int32),
        push_start=np.zeros(slots // 2 + 1, np.int32),
        push=np.empty(4 * slots + 2 * pushes, np.int32),
    )


def with_actions(actions: Actions) -> ActionPool:
    """Return a pool of these actions, with room for more."""
    count = actions.state.size
    pool = empty_actions(max(1 << 14, 1 << (4 * count).bit_length()), actions.push.size)
    for array, known in zip(pool[1:], actions, strict=True):
        array[: known.size] = known
    _place_actions(count, pool)
    return pool


def copied_actions(pool: ActionPool, count: int) -> ActionPool:
    """Return the first actions of a pool in arrays of their own, with room for more."""
    used = pool.used(count)
    out = empty_actions(pool.slots.size, used.push.size)
    for array, known in zip(out, (pool.slots, *used), strict=True):
        array[: known.size] = known
    return out


def grown(pools: LinkPools, tokens: int) -> LinkPools:
    """Return pools with room for at least one more row. tokens: the most entries of one."""

    def longer(array: NDArray[Any], size: int) -> NDArray[Any]:
        out = np.empty(max(size, len(array)), array.dtype)
        out[: len(array)] = array
        return out

    def more(pool: EntryPool, used: int) -> EntryPool:
        size = 2 * used + 2 * tokens
        return EntryPool(pool.start, longer(pool.token, size), longer(pool.value, size))

    count = int(pools.counters[ACTIONS])
    actions = pools.actions
    pushes = int(actions.push_start[count])
    if 2 * (count + 64) > actions.slots.size:
        size = 4 * actions.slots.size
        actions = ActionPool(
            np.full(size, -1, np.int32), longer(actions.state, size // 2), longer(actions.push_start, size // 2 + 1),
            actions.push,
        )  # fmt: skip
        _place_actions(count, actions)
    return LinkPools(
        pools.counters,
        more(pools.edges, int(pools.counters[EDGES])),
        more(pools.exits, int(pools.counters[EXITS])),
        actions._replace(push=longer(actions.push, 2 * pushes + 200_000)),
    )


@kernel
def action_of(
    stack: NDArray[np.int32], h: Int, state: int, slots: NDArray[np.int32], action_state: NDArray[np.int32],
    push_start: NDArray[np.int32], push: NDArray[np.int32], counters: NDArray[np.int64],
) -> np.int32:  # fmt: skip
    """Return the code of the action that pushes the first h sites of a stack and goes on in a state.

    slots .. push: see `ActionPool`.
    """
    key = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15)
    for k in range(h):
        key = (key ^ np.uint64(stack[k])) * np.uint64(0xBF58476D1CE4E5B9)
        key ^= key >> np.uint64(31)
    at = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(slots.size - 1))
    while True:
        a = slots[at]
        if a < 0:
            break
        if action_state[a] == state and push_start[a + 1] - push_start[a] == h:
            same = True
            for k in range(h):
                if push[push_start[a] + k] != stack[k]:
                    same = False
                    break
            if same:
                return np.int32(ACTION + a)
        at = (at + 1) & (slots.size - 1)
    a = np.int32(counters[ACTIONS])
    counters[ACTIONS] += 1
    slots[at] = a
    action_state[a] = state
    for k in range(h):
        push[push_start[a] + k] = stack[k]
    push_start[a + 1] = push_start[a] + h
    return np.int32(ACTION + a)


@kernel
def _place_actions(count: int, actions: ActionPool) -> None:
    """Put actions into empty slots, where `action_of` looks for them."""
    slots, action_state, push_start, push = actions.slots, actions.state, actions.push_start, actions.push
    for a in range(count):
        key = np.uint64(action_state[a]) * np.uint64(0x9E3779B97F4A7C15)
        for k in range(push_start[a], push_start[a + 1]):
            key = (key ^ np.uint64(push[k])) * np.uint64(0xBF58476D1CE4E5B9)
            key ^= key >> np.uint64(31)
        at = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(slots.size - 1))
        while slots[at] >= 0:
            at = (at + 1) & (slots.size - 1)
        slots[at] = a
