"""What kernels read and write of a lazy grammar: the header, the arrays behind it, and the room that these have."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.network import Network
from ...errors import BudgetError, RaiseBudget
from ...kernels.pointers import put
from ...vocabulary.vocabulary import Vocabulary
from .header import (
    AT_ACCEPTS,
    AT_ACTIVE,
    AT_BUFFER,
    AT_BYTE,
    AT_CALL_NODE,
    AT_CALL_RULE,
    AT_CALL_START,
    AT_CELLS,
    AT_CLASS_OF,
    AT_CONTENT,
    AT_CORE,
    AT_CORE_DATA,
    AT_CORE_SLOTS,
    AT_CORE_START,
    AT_CORE_STATE,
    AT_DEPTH,
    AT_EDGE_FRAME,
    AT_EDGE_NODE,
    AT_ENDS,
    AT_ENTRY,
    AT_FRAME_START,
    AT_GROUP_DATA,
    AT_GROUP_FRAME,
    AT_GROUP_SLOTS,
    AT_GROUP_START,
    AT_HEAD,
    AT_ITEM_FRAME,
    AT_ITEM_POSITION,
    AT_LINK,
    AT_LOCAL_OF,
    AT_LOOPS,
    AT_NODE_FINAL,
    AT_PATH,
    AT_POSITION_NODE,
    AT_POSITION_STATE,
    AT_ROOT_START,
    AT_RULE_GROUP,
    AT_RULE_NODE,
    AT_RULES,
    AT_SCAN,
    AT_SEEN,
    AT_SEEN_STAMP,
    AT_SKIP,
    AT_STATE_SLOTS,
    AT_STATE_START,
    AT_TERMINAL,
    AT_TERMINAL_START,
    AT_TEXT,
    AT_TEXT_START,
    AT_TOKEN,
    AT_TOKEN_START,
    AT_TRANSITION,
    AT_VISITED,
    AT_WORK,
    FULL,
    GUARDED,
    HEADER,
    NEEDED,
    NUM_CLASSES,
    NUM_FRAMES,
    NUM_LEVELS,
    NUM_STATES,
    PAUSE,
    SPENT,
    UNKNOWN,
    UNSEEN,
)
from .sets import fill_slots

DOING_ALL = "finding all states of a grammar"
"""Named in errors of the budget."""
_SLOTS = 1 << 10
_SLOT_ARRAYS = (AT_CORE_SLOTS, AT_STATE_SLOTS, AT_GROUP_SLOTS)
_GROWING: tuple[tuple[int, Any, int], ...] = (
    (AT_CELLS, np.int32, 64), (AT_STATE_START, np.int32, 65), (AT_ITEM_POSITION, np.int32, 1024),
    (AT_ITEM_FRAME, np.int32, 1024), (AT_ACCEPTS, np.uint8, 64), (AT_LOOPS, np.uint64, 64),
    (AT_FRAME_START, np.int32, 257), (AT_EDGE_NODE, np.int32, 512), (AT_EDGE_FRAME, np.int32, 512),
    (AT_CORE_START, np.int32, 129), (AT_CORE_DATA, np.int64, 512), (AT_CORE_STATE, np.int32, 128),
    (AT_GROUP_START, np.int32, 257), (AT_GROUP_DATA, np.int64, 512), (AT_GROUP_FRAME, np.int32, 256),
    (AT_WORK, np.int64, 256), (AT_CORE, np.int64, 256), (AT_SCAN, np.int64, 256), (AT_BUFFER, np.int64, 256),
    (AT_ENTRY, np.int64, 256), (AT_LINK, np.int64, 256),
)  # fmt: skip
"""Arrays that grow, their dtypes and first sizes, the cells' for each class."""


class GrammarMemory:
    """The header of a lazy grammar, and the arrays whose addresses are in it."""

    def __init__(self, network: Network, vocabulary: Vocabulary, meter: Meter) -> None:
        self._network, self._longest = network, vocabulary.trie.longest
        self._seconds = meter.budget.seconds
        self._meter = replace(meter.budget, seconds=math.inf).begin()  # what is made counts, however late it is
        self.over: BudgetError | None = None  # of the budget that was exceeded
        self.header = np.zeros(HEADER, np.int64)
        self.arrays: dict[int, NDArray[Any]] = {}
        trie = vocabulary.trie
        for at, array in (
            (AT_CLASS_OF, network.class_of), (AT_TRANSITION, network.transition), (AT_ENDS, network.ends),
            (AT_POSITION_STATE, network.position_state), (AT_POSITION_NODE, network.position_node),
            (AT_NODE_FINAL, network.node_final), (AT_TERMINAL_START, network.terminal_start),
            (AT_TERMINAL, network.terminal), (AT_CALL_START, network.call_start), (AT_CALL_RULE, network.call_rule),
            (AT_CALL_NODE, network.call_node), (AT_RULE_NODE, network.rule_node), (AT_RULE_GROUP, network.rule_group),
            (AT_BYTE, trie.byte), (AT_SKIP, trie.skip), (AT_DEPTH, trie.depth), (AT_CONTENT, trie.content),
            (AT_TOKEN_START, trie.token_start), (AT_TOKEN, trie.token), (AT_ROOT_START, trie.root_start),
            (AT_TEXT, vocabulary.token_bytes), (AT_TEXT_START, vocabulary.token_offset),
        ):  # fmt: skip
            self._put(at, np.ascontiguousarray(array))
        self.forget()

    def forget(self) -> None:
        """Drop all states."""
        network, header = self._network, self.header
        classes, rules = network.classes, len(network.rules)
        header[NUM_CLASSES:HEADER] = 0
        header[NUM_CLASSES], header[NUM_LEVELS], header[NUM_FRAMES] = classes, self._longest + 1, 1
        self.over = None
        for at in (AT_ACTIVE, AT_RULES, AT_LOCAL_OF, AT_HEAD, AT_VISITED):
            self._put(at, np.zeros(max(rules, 1), np.int64))
        self._put(AT_PATH, np.zeros(rules + 1, np.int64))
        for at, kind, size in _GROWING:
            self._put(at, np.zeros(size * classes if at == AT_CELLS else size, kind))
        self.arrays[AT_CELLS].fill(UNKNOWN)
        self.arrays[AT_LOOPS].fill(UNSEEN)
        for at in _SLOT_ARRAYS:
            self._put(at, np.full(_SLOTS, -1, np.int32))
        self._put(AT_SEEN, np.zeros(_SLOTS, np.int64))
        self._put(AT_SEEN_STAMP, np.zeros(_SLOTS, np.int64))

    def _put(self, at: int, array: NDArray[Any]) -> None:
        """Place an array in the header, and keep it alive."""
        self.arrays[at] = array
        put(self.header, at, array)

    def work_for(self, pairs: int) -> NDArray[np.int64]:
        """Return the memory for pairs to look at, with room for so many."""
        size = self.arrays[AT_WORK].size
        while size < pairs:
            size *= 2
            self._put(AT_WORK, np.zeros(size, np.int64))
        return self.arrays[AT_WORK]

    def run(self, kernel: Callable[[], Any], meter: Meter | None = None) -> Any:
        """Return the result of a kernel, called again with more room as long as it needs some.

        meter: of a caller that waits for more than one token or mask. Raises BudgetError.
        """
        if self.over is not None:
            raise copy.copy(self.over)
        began = time.thread_time()
        self.header[SPENT], self.header[GUARDED] = 0, meter is not None
        found = kernel()
        if found > FULL:
            return found
        if meter is not None:
            return self._run_on(kernel, found, began, meter)
        guard = replace(self._meter.budget, seconds=self._seconds).begin()
        guard.check(doing="reading one token or mask of a grammar")
        with guard:
            self.header[GUARDED] = 1
            return self._run_on(kernel, found, began, None)

    def _run_on(self, kernel: Callable[[], Any], found: Any, began: float, meter: Meter | None) -> Any:
        """Return the result of a kernel that came back before it was done. began: the thread's time when it began."""
        while found <= FULL:
            if found != FULL - PAUSE:
                try:
                    self._grow(FULL - int(found))
                except BudgetError as error:
                    self.over = copy.copy(error)
                    raise
            elif meter is None:
                self._check_clock(began)
                self.header[SPENT] = 0
            else:
                meter.check(states=self.num_states, bytes=self.nbytes, doing=DOING_ALL)
                self.header[SPENT] = 0
            found = kernel()
        return found

    def _check_clock(self, began: float) -> None:
        """Raise BudgetError if one token or mask has taken too long."""
        seconds = time.thread_time() - began
        if seconds > self._seconds:
            raise BudgetError(
                f"reading a grammar took more than {self._seconds:g} s for one token or mask, at "
                f"{self.num_states:,} states",
                limit="seconds",
                allowed=self._seconds,
                reached=seconds,
                remedies=[RaiseBudget(("seconds",), "make the grammar less ambiguous")],
            )

    def _grow(self, at: int) -> None:
        """Double the array at a place, as often as it needs. Raises BudgetError."""
        header = self.header
        old = self.arrays[at]
        size = 2 * old.size
        while size < header[NEEDED]:
            size *= 2
        header[NEEDED] = 0
        more = (size - old.size) * old.itemsize
        self._meter.check(states=2 * int(header[NUM_STATES]), bytes=self.nbytes + more, doing="reading a grammar")
        if at in _SLOT_ARRAYS:
            self._put(at, np.full(2 * old.size, -1, np.int32))
            fill_slots(header, at)
            return
        if at == AT_SEEN:  # its stamps say what is in it: it may be forgotten
            self._put(AT_SEEN, np.zeros(2 * old.size, np.int64))
            self._put(AT_SEEN_STAMP, np.zeros(2 * old.size, np.int64))
            return
        new = np.zeros(size, old.dtype)
        new[: old.size] = old
        if at == AT_CELLS:
            new[old.size :] = UNKNOWN
        elif at == AT_LOOPS:
            new[old.size :] = UNSEEN
        self._put(at, new)

    @property
    def nbytes(self) -> int:
        """Bytes of all states so far, and of the network."""
        return sum(array.nbytes for at, array in self.arrays.items() if not AT_BYTE <= at <= AT_TEXT_START)

    @property
    def num_states(self) -> int:
        """How many states there are so far."""
        return int(self.header[NUM_STATES])
