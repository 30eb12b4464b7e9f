"""Rows of tokens that a walk of a DFA finds, in pools that grow.

Kernels take names from this file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# places in the array of counters
QUEUE_HEAD, QUEUE_TAIL, OWN_EDGES, CODES, BASES, TARGETS, MASKS, CLASS_LISTS, CLASS_ENTRIES = range(9)


class StateRows(NamedTuple):
    """Where the row of each state is; N states."""

    queue: NDArray[np.int32]  # (N,) states in the order in which tokens reach them
    reached: NDArray[np.bool_]  # (N,)
    representative: NDArray[np.int32]  # (N,) the first state walked of each name
    base: NDArray[np.int32]  # (N,)
    own: NDArray[np.int64]  # (N, 2) first and number of its own edges; states that are alike have the same
    codes: NDArray[np.int64]  # (N, 2) first and number of the distinct codes of its targets


class BasePool(NamedTuple):
    """Bases, and the masks that they share."""

    state: NDArray[np.int32]  # the state that each base was made for, -1 if others cannot be compared with it
    mask: NDArray[np.int32]
    class_list: NDArray[np.int32]
    first: NDArray[np.int32]  # in `target`
    target: NDArray[np.int32]  # code by class
    words: NDArray[np.uint32]  # of masks
    word_hash: NDArray[np.uint64]  # of each mask


class ClassPool(NamedTuple):
    """Lists of the tokens that are not of class 0."""

    first: NDArray[np.int32]  # in `token`
    sizes: NDArray[np.int32]  # classes of each list
    token: NDArray[np.int32]
    number: NDArray[np.int32]


class RowPools(NamedTuple):
    """What a walk has found so far. Pools are longer than what is used; the counters say how much is."""

    counters: NDArray[np.int64]  # (9,)
    states: StateRows
    own_token: NDArray[np.int32]
    own_code: NDArray[np.int32]
    codes: NDArray[np.int32]
    bases: BasePool
    class_lists: ClassPool

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        parts: tuple[Any, ...] = self
        return sum(
            sum(array.nbytes for array in part) if isinstance(part, tuple) else int(part.nbytes) for part in parts
        )


def empty_pools(states: int, tokens: int, words: int) -> RowPools:
    """Return pools in which the start has been reached. tokens: of the trie. words: of a mask."""
    pools = RowPools(
        counters=np.zeros(9, np.int64),
        states=StateRows(
            queue=np.zeros(states, np.int32),
            reached=np.zeros(states, np.bool_),
            representative=np.full(states, -1, np.int32),
            base=np.full(states, -1, np.int32),
            own=np.zeros((states, 2), np.int64),
            codes=np.zeros((states, 2), np.int64),
        ),
        own_token=np.empty(4096, np.int32),
        own_code=np.empty(4096, np.int32),
        codes=np.empty(2 * tokens, np.int32),
        bases=BasePool(
            state=np.empty(8, np.int32),
            mask=np.empty(8, np.int32),
            class_list=np.empty(8, np.int32),
            first=np.zeros(8, np.int32),
            target=np.empty(2 * tokens, np.int32),
            words=np.empty((8, words), np.uint32),
            word_hash=np.empty(8, np.uint64),
        ),
        class_lists=ClassPool(
            first=np.zeros(8, np.int32),
            sizes=np.empty(8, np.int32),
            token=np.empty(2 * tokens, np.int32),
            number=np.empty(2 * tokens, np.int32),
        ),
    )
    pools.states.reached[0], pools.counters[QUEUE_TAIL] = True, 1
    return pools


def with_room(pools: RowPools, own: int, tokens: int) -> RowPools:
    """Return pools with room for one more row of any kind. own: the most edges of its own that a row may have."""
    used = pools.counters.tolist()

    def longer(array: NDArray[Any], counter: int, more: int) -> NDArray[Any]:
        if used[counter] + more <= len(array):
            return array
        out = np.empty((2 * len(array) + more, *array.shape[1:]), array.dtype)
        out[: len(array)] = array
        return out

    bases, classes = pools.bases, pools.class_lists
    return pools._replace(
        own_token=longer(pools.own_token, OWN_EDGES, own),
        own_code=longer(pools.own_code, OWN_EDGES, own),
        codes=longer(pools.codes, CODES, tokens),
        bases=BasePool(
            state=longer(bases.state, BASES, 2),
            mask=longer(bases.mask, BASES, 2),
            class_list=longer(bases.class_list, BASES, 2),
            first=longer(bases.first, BASES, 2),
            target=longer(bases.target, TARGETS, tokens),
            words=longer(bases.words, MASKS, 1),
            word_hash=longer(bases.word_hash, MASKS, 1),
        ),
        class_lists=ClassPool(
            first=longer(classes.first, CLASS_LISTS, 2),
            sizes=longer(classes.sizes, CLASS_LISTS, 2),
            token=longer(classes.token, CLASS_ENTRIES, tokens),
            number=longer(classes.number, CLASS_ENTRIES, tokens),
        ),
    )
