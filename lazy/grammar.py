"""A grammar read as it is: what may come next after a text, for all derivations at once.

Where a text stands is a set of pairs of a position in the network and a *frame*: who waits for the rule that the
position is in. A frame is a set of pairs as well, of a node to go on from and the frame that this one is in. So all
stacks that may be open share what they have in common, as in generalised LR parsing, and a rule that begins with itself
waits for itself. A rule that ends where its caller ends needs no frame of its own; hence lists take the same few states
however long.

Such sets are *states*, made when a text first comes to them, and numbered; equal ones are one. A cell says which state
a class of symbols leads to. All is found by two kernels: one follows a cell, one walks the trie of tokens for a mask.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..automata.budget import Meter
from ..automata.network import Network
from ..automata.slots import slot_of
from ..errors import BudgetError, RaiseBudget
from ..kernels.compiled import kernel
from ..kernels.limits import MOST_DEPTH
from ..kernels.mask_buffers import MaskBuffers
from ..kernels.pointers import array_at, put
from ..vocabulary.characters import BEHIND, BYTE_GROUP, UNCLEAN
from ..vocabulary.vocabulary import Vocabulary

DEAD = -1
UNKNOWN = -2  # a cell that nobody has looked at
_FULL = -3  # no room: more is made, and the kernel called again
_ROOT = 0  # the frame of the whole
_LOCAL = 1 << 30  # from here on frames that are about to be made, by rule
_BIAS = 1 << 20  # rules, less than so many
_MANY = 64  # tokens below a node of the trie from which on it is worth knowing what a state reads again and again
_UNSEEN = np.uint64((1 << 64) - 1)  # in place of groups

# places in the header: of arrays, two each
(
    _CLASS_OF, _TRANSITION, _ENDS, _POSITION_STATE, _POSITION_NODE, _NODE_FINAL, _TERMINAL_START, _TERMINAL,
    _CALL_START, _CALL_RULE, _CALL_NODE, _RULE_NODE, _RULE_GROUP,
    _BYTE, _SKIP, _DEPTH, _CONTENT, _TOKEN_START, _TOKEN, _ROOT_START, _TEXT, _TEXT_START,
    _CELLS, _STATE_START, _ITEM_POSITION, _ITEM_FRAME, _ACCEPTS, _LOOPS,
    _FRAME_START, _EDGE_NODE, _EDGE_FRAME,
    _KERNEL_START, _KERNEL_DATA, _KERNEL_STATE, _KERNEL_SLOTS, _STATE_SLOTS,
    _GROUP_START, _GROUP_DATA, _GROUP_FRAME, _GROUP_SLOTS,
    _WORK, _KERNEL, _SCAN, _BUFFER, _ENTRY, _SEEN, _SEEN_STAMP, _ACTIVE, _RULES, _LOCAL_OF, _HEAD, _LINK, _VISITED,
    _PATH,
) = range(0, 108, 2)  # fmt: skip
# and numbers: how many there are of each
(
    _CLASSES, _LEVELS, _STATES, _ITEMS, _FRAMES, _EDGES, _KERNELS, _KERNEL_WORDS, _GROUPS, _GROUP_WORDS, _STAMP, _SPENT,
) = range(108, 120)  # fmt: skip
_SIZE = 120
_AT_ONCE = 1 << 20  # pairs looked at before somebody looks at the clock
_ALL = "finding all states of a grammar"
_PAUSE = 1  # in place of a place in the header


class LazyGrammar:
    """The states of a grammar that texts have come to; a lazy table's automaton, see `table.Automaton`.

    Its frames are in its states, so that the stack of a matcher stays empty. Of the budget, states and bytes are
    counted over all that there are, seconds while one token or one mask is worked out. Where the budget ends the text
    at hand does, too; the next that begins, begins with nothing, and what others stood in is forgotten by then.
    """

    depth = 0
    most_frames_required = -MOST_DEPTH
    strings = (1 << 31) - 1  # no state is within a string that is counted

    def __init__(self, network: Network, vocabulary: Vocabulary, meter: Meter) -> None:
        self.network, self.vocabulary = network, vocabulary
        self._seconds = meter.budget.seconds
        self.meter = replace(meter.budget, seconds=math.inf).begin()  # what is made counts, however late it is
        self._lock = threading.RLock()
        self._over: BudgetError | None = None
        self._before = 0  # states that there were before all was forgotten: others are numbered from here
        self._sheets = MaskBuffers(-(-vocabulary.size // 32))
        trie = vocabulary.trie
        self._header = np.zeros(_SIZE, np.int64)
        self._arrays: dict[int, NDArray[Any]] = {}
        for at, array in (
            (_CLASS_OF, network.class_of), (_TRANSITION, network.transition), (_ENDS, network.ends),
            (_POSITION_STATE, network.position_state), (_POSITION_NODE, network.position_node),
            (_NODE_FINAL, network.node_final), (_TERMINAL_START, network.terminal_start),
            (_TERMINAL, network.terminal), (_CALL_START, network.call_start), (_CALL_RULE, network.call_rule),
            (_CALL_NODE, network.call_node), (_RULE_NODE, network.rule_node), (_RULE_GROUP, network.rule_group),
            (_BYTE, trie.byte), (_SKIP, trie.skip), (_DEPTH, trie.depth), (_CONTENT, trie.content),
            (_TOKEN_START, trie.token_start), (_TOKEN, trie.token), (_ROOT_START, trie.root_start),
            (_TEXT, vocabulary.token_bytes), (_TEXT_START, vocabulary.token_offset),
        ):  # fmt: skip
            self._put(at, np.ascontiguousarray(array))
        self._empty()

    def _empty(self) -> None:
        """Begin with the start alone, which is state 0."""
        network, header = self.network, self._header
        classes, rules = network.classes, len(network.rules)
        header[_CLASSES:_SIZE] = 0
        header[_CLASSES], header[_LEVELS] = classes, self.vocabulary.trie.longest + 1
        header[_FRAMES] = 1
        for at, size in ((_ACTIVE, rules), (_RULES, rules), (_LOCAL_OF, rules), (_HEAD, rules), (_VISITED, rules)):
            self._put(at, np.zeros(max(size, 1), np.int64))
        self._put(_PATH, np.zeros(rules + 1, np.int64))
        for at, kind, size in _GROWING:
            self._put(at, np.zeros(size * classes if at == _CELLS else size, kind))
        self._arrays[_CELLS].fill(UNKNOWN)
        self._arrays[_LOOPS].fill(_UNSEEN)
        for at in (_KERNEL_SLOTS, _STATE_SLOTS, _GROUP_SLOTS):
            self._put(at, np.full(_SLOTS, -1, np.int32))
        self._put(_SEEN, np.zeros(_SLOTS, np.int64))
        self._put(_SEEN_STAMP, np.zeros(_SLOTS, np.int64))
        self.enter([(network.start, _ROOT)])  # state 0

    # -------------------------------------------------------------------------------------------------- room

    def _put(self, at: int, array: NDArray[Any]) -> None:
        self._arrays[at] = array
        put(self._header, at, array)

    def _do(self, work: Callable[[], Any], meter: Meter | None = None) -> Any:
        """Return what a kernel does, with as much room as it needs; meter: of who waits for more than this."""
        if self._over:
            raise copy.copy(self._over)
        began, self._header[_SPENT] = time.monotonic(), 0
        while True:
            found = work()
            if found > _FULL:
                return found
            if found == _FULL - _PAUSE:
                if meter is not None:
                    meter.check(states=self.num_states, bytes=self.nbytes, doing=_ALL)
                elif time.monotonic() - began > self._seconds:
                    raise BudgetError(
                        f"reading a grammar took more than {self._seconds:g} s for one token or mask, at "
                        f"{self.num_states:,} states",
                        limit="seconds",
                        allowed=self._seconds,
                        reached=time.monotonic() - began,
                        remedies=[RaiseBudget(("seconds",), "make the grammar less ambiguous")],
                    )
                self._header[_SPENT] = 0
                continue
            try:
                self._grow(_FULL - int(found))
            except BudgetError as error:
                self._over = copy.copy(error)
                raise

    def _grow(self, at: int) -> None:
        """Make room for twice as much of what a kernel ran out of."""
        header = self._header
        old = self._arrays[at]
        self.meter.check(states=2 * int(header[_STATES]), bytes=self.nbytes + old.nbytes, doing="reading a grammar")
        if at in (_KERNEL_SLOTS, _STATE_SLOTS, _GROUP_SLOTS):
            new = np.full(2 * old.size, -1, np.int32)
            self._put(at, new)
            _place(header, at)
            return
        if at == _SEEN:  # kept by stamps: what is in it is forgotten
            self._put(_SEEN, np.zeros(2 * old.size, np.int64))
            self._put(_SEEN_STAMP, np.zeros(2 * old.size, np.int64))
            return
        new = np.zeros(2 * old.size, old.dtype)
        new[: old.size] = old
        if at == _CELLS:
            new[old.size :] = UNKNOWN
        elif at == _LOOPS:
            new[old.size :] = _UNSEEN
        self._put(at, new)

    @property
    def nbytes(self) -> int:
        """Bytes of all states so far, and of the network."""
        return sum(array.nbytes for at, array in self._arrays.items() if not _BYTE <= at <= _TEXT_START)

    @property
    def num_states(self) -> int:
        """How many states there are so far."""
        return int(self._header[_STATES])

    # -------------------------------------------------------------------------------------------------- reading

    def is_leaf(self, site: int) -> bool:
        """There are no sites."""
        raise AssertionError("the stack of a grammar is in its states")

    def _here(self, node: int) -> int:
        """Return which of the states that there are now a matcher means."""
        if node == 0:
            if self._over:
                self._before += self.num_states
                self._over = None
                self._empty()
            return 0
        if node <= self._before:
            raise BudgetError(
                "this text stands where all was forgotten, as the grammar's budget had been reached",
                remedies=[RaiseBudget(("states", "bytes"), "begin the text again")],
            )
        return node - self._before

    def alike(self, node: int) -> int:
        """Return the state itself."""
        return node

    def fits(self, node: int, stack: Any) -> bool:
        """There is always room."""
        return True

    def accepts(self, node: int) -> bool:
        """Return whether a text may end in a state."""
        with self._lock:
            return bool(self._arrays[_ACCEPTS][self._here(node)])

    def advance(self, node: int, stack: Any, token: int, push: Callable[[Any, int], Any]) -> tuple[int, Any] | None:
        """Return the state that a token leads to, and the stack as it was; None if it is not allowed."""
        with self._lock:
            here = self._here(node)
            found = _follow(self._header, here, token)
            if found < DEAD:
                found = self._do(lambda: _follow(self._header, here, token))
            if found > 0:
                found += self._before
        return None if found == DEAD else (found, stack)

    def mask(self, node: int, sites: bytes, frames: int) -> tuple[NDArray[np.uint32], int, bool]:
        """Return the tokens that a state allows, EOS included; it depends on no site, and is worth keeping."""
        sheet = self._sheets.take()
        mask, out = sheet.shown, sheet.mask
        with self._lock:
            here = self._here(node)
            self._do(lambda: _mask(self._header, here, out))
        eos = self.vocabulary.eos
        if eos is not None and self.accepts(node):
            out[eos >> 5] |= np.uint32(1 << (eos & 31))
        self._sheets.give(sheet)
        return mask, 0, True

    def enter(self, pairs: list[tuple[int, int]]) -> int:
        """Return the state of some pairs of a node and a frame."""
        with self._lock:
            room = self._arrays[_WORK].size
            while room < len(pairs):
                room *= 2
                self._put(_WORK, np.zeros(room, np.int64))
            return int(self._do(lambda: self._enter(pairs)))

    def _enter(self, pairs: list[tuple[int, int]]) -> int:
        for at, (node, frame) in enumerate(pairs):  # anew each time: closing them uses the same room
            self._arrays[_WORK][at] = node << 32 | frame
        found: int = _next(self._header, -1, len(pairs))
        return found

    def items(self, state: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the positions and the frames of a state."""
        part = slice(*self._arrays[_STATE_START][state : state + 2].tolist())
        return self._arrays[_ITEM_POSITION][part], self._arrays[_ITEM_FRAME][part]

    def spread(self, done: int, meter: Meter) -> int:
        """Find where all classes lead from states behind the first `done`; return how many are done then."""
        with self._lock:
            meter.check(states=self.num_states, bytes=self.nbytes, doing=_ALL)
            return int(self._do(partial(_spread, self._header, done), meter))

    def all_states(self, meter: Meter) -> NDArray[np.int32]:
        """Return the cells of all states there are, (S, C), once all have been made. Raises BudgetError."""
        done = 0
        while done < self.num_states:
            done = self.spread(done, meter)
        return self.cells

    @property
    def cells(self) -> NDArray[np.int32]:
        """The state that each class leads to from each state, (S, C); `UNKNOWN` where nobody has looked."""
        return self._arrays[_CELLS][: self.num_states * self.network.classes].reshape(-1, self.network.classes)

    def accepting(self) -> NDArray[np.bool_]:
        """Return in which states a text may end, (S,)."""
        return self._arrays[_ACCEPTS][: self.num_states].astype(np.bool_)


NO_TOKENS = Vocabulary.from_bytes([b"\0"])
"""For readers of bytes alone."""

_SLOTS = 1 << 10
_GROWING: tuple[tuple[int, Any, int], ...] = (
    (_CELLS, np.int32, 64), (_STATE_START, np.int32, 65), (_ITEM_POSITION, np.int32, 1024),
    (_ITEM_FRAME, np.int32, 1024), (_ACCEPTS, np.uint8, 64), (_LOOPS, np.uint64, 64),
    (_FRAME_START, np.int32, 257), (_EDGE_NODE, np.int32, 512), (_EDGE_FRAME, np.int32, 512),
    (_KERNEL_START, np.int32, 129), (_KERNEL_DATA, np.int64, 512), (_KERNEL_STATE, np.int32, 128),
    (_GROUP_START, np.int32, 257), (_GROUP_DATA, np.int64, 512), (_GROUP_FRAME, np.int32, 256),
    (_WORK, np.int64, 256), (_KERNEL, np.int64, 256), (_SCAN, np.int64, 256), (_BUFFER, np.int64, 256),
    (_ENTRY, np.int64, 256), (_LINK, np.int64, 256),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------ kernels


@kernel
def _hash(data: Any, size: Any, seed: Any) -> Any:
    """Return a hash of the first numbers of an array."""
    key = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(size)
    for k in range(size):
        key = (key ^ np.uint64(data[k])) * np.uint64(0xBF58476D1CE4E5B9)
        key ^= key >> np.uint64(29)
    return np.int64(key & np.uint64(0x7FFFFFFFFFFFFFFF))


@kernel
def _place(header: Any, at: int) -> None:
    """Put all there is into a table of slots that has grown."""
    slots = array_at(header[at], header[at + 1], np.int32)
    if at == _STATE_SLOTS:
        starts = array_at(header[_STATE_START], header[_STATE_START + 1], np.int32)
        position = array_at(header[_ITEM_POSITION], header[_ITEM_POSITION + 1], np.int32)
        frame = array_at(header[_ITEM_FRAME], header[_ITEM_FRAME + 1], np.int32)
        accepts = array_at(header[_ACCEPTS], header[_ACCEPTS + 1], np.uint8)
        longest = np.int64(0)
        for n in range(header[_STATES]):
            longest = max(longest, np.int64(starts[n + 1] - starts[n]))
        data = np.empty(longest, np.int64)
        for n in range(header[_STATES]):
            size = np.int64(starts[n + 1] - starts[n])
            for k in range(size):
                data[k] = np.int64(position[starts[n] + k]) << 32 | np.int64(frame[starts[n] + k])
            slot = _hash(data, size, accepts[n]) & (slots.size - 1)
            while slots[slot] >= 0:
                slot = (slot + 1) & (slots.size - 1)
            slots[slot] = n
        return
    if at == _KERNEL_SLOTS:
        count, start, words = header[_KERNELS], _KERNEL_START, _KERNEL_DATA
    else:
        count, start, words = header[_GROUPS], _GROUP_START, _GROUP_DATA
    starts = array_at(header[start], header[start + 1], np.int32)
    data = array_at(header[words], header[words + 1], np.int64)
    for n in range(count):
        slot = _hash(data[starts[n] :], np.int64(starts[n + 1] - starts[n]), 0) & (slots.size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = n


@kernel
def _is_new(seen: Any, stamps: Any, stamp: Any, key: Any) -> Any:
    """Note a pair, and return whether it is new since the stamp was."""
    slot = slot_of(key, seen.size)
    while stamps[slot] == stamp:
        if seen[slot] == key:
            return False
        slot = (slot + 1) & (seen.size - 1)
    stamps[slot], seen[slot] = stamp, key
    return True


@kernel
def _sorted_unique(data: Any, first: Any, stop: Any) -> Any:
    """Sort a part of an array, and leave each number in it once; return where it ends then."""
    if stop - first > 32:
        data[first:stop].sort()
    else:
        for k in range(first + 1, stop):
            value, x = data[k], k - 1
            while x >= first and data[x] > value:
                data[x + 1] = data[x]
                x -= 1
            data[x + 1] = value
    out = first
    for k in range(first, stop):
        if k == first or data[k] != data[k - 1]:
            data[out] = data[k]
            out += 1
    return out


@kernel
def _next(header: Any, state: Any, symbol: Any) -> Any:
    """Return the state that a class of symbols leads to from a state, and write its cell.

    Where state is -1 that of so many pairs as `symbol` says, which lie in the working room.

    `DEAD` if it leads nowhere; _FULL minus the place in the header of what has no room.
    """
    classes = header[_CLASSES]
    cells = array_at(header[_CELLS], header[_CELLS + 1], np.int32)
    if state >= 0:
        known = cells[state * classes + symbol]
        if known != UNKNOWN:
            return np.int64(known)
    transition = array_at(header[_TRANSITION], header[_TRANSITION + 1], np.int32)
    ends = array_at(header[_ENDS], header[_ENDS + 1], np.uint8)
    position_state = array_at(header[_POSITION_STATE], header[_POSITION_STATE + 1], np.int32)
    position_node = array_at(header[_POSITION_NODE], header[_POSITION_NODE + 1], np.int32)
    node_final = array_at(header[_NODE_FINAL], header[_NODE_FINAL + 1], np.uint8)
    state_start = array_at(header[_STATE_START], header[_STATE_START + 1], np.int32)
    item_position = array_at(header[_ITEM_POSITION], header[_ITEM_POSITION + 1], np.int32)
    item_frame = array_at(header[_ITEM_FRAME], header[_ITEM_FRAME + 1], np.int32)
    frame_start = array_at(header[_FRAME_START], header[_FRAME_START + 1], np.int32)
    edge_node = array_at(header[_EDGE_NODE], header[_EDGE_NODE + 1], np.int32)
    edge_frame = array_at(header[_EDGE_FRAME], header[_EDGE_FRAME + 1], np.int32)
    work = array_at(header[_WORK], header[_WORK + 1], np.int64)
    kernel = array_at(header[_KERNEL], header[_KERNEL + 1], np.int64)
    seen = array_at(header[_SEEN], header[_SEEN + 1], np.int64)
    stamps = array_at(header[_SEEN_STAMP], header[_SEEN_STAMP + 1], np.int64)
    header[_STAMP] += 1
    stamp = header[_STAMP]
    if header[_SPENT] > _AT_ONCE:
        return np.int64(_FULL - _PAUSE)
    header[_SPENT] += 8 + (state_start[state + 1] - state_start[state] if state >= 0 else 0)

    # what is read: within terminals, and nodes behind terminals that may end
    todo, count = np.int64(0), np.int64(1)  # kernel[0] says whether a text may end
    if state < 0:
        todo = np.int64(symbol)
    else:
        for x in range(state_start[state], state_start[state + 1]):
            position, frame = np.int64(item_position[x]), np.int64(item_frame[x])
            here = np.int64(position_state[position])
            to = np.int64(transition[here * classes + symbol])
            if to < 0:
                continue
            if count == kernel.size:
                return np.int64(_FULL - _KERNEL)
            if todo == work.size:
                return np.int64(_FULL - _WORK)
            position += to - here
            if ends[to] & 2:
                kernel[count] = np.int64(1) << 62 | position << 32 | frame
                count += 1
            if ends[to] & 1:
                if 2 * todo >= seen.size:
                    return np.int64(_FULL - _SEEN)
                pair = np.int64(position_node[position]) << 32 | frame
                if _is_new(seen, stamps, stamp, pair):
                    work[todo] = pair
                    todo += 1

    # rules that may end here, and what goes on after them
    accepts = np.int64(0)
    done = np.int64(0)
    while done < todo:
        pair = work[done]
        done += 1
        node, frame = pair >> 32, pair & 0xFFFFFFFF
        if node_final[node]:
            header[_SPENT] += frame_start[frame + 1] - frame_start[frame]
            if frame == _ROOT:
                accepts = np.int64(1)
            for x in range(frame_start[frame], frame_start[frame + 1]):
                if 2 * todo >= seen.size:
                    return np.int64(_FULL - _SEEN)
                if todo == work.size:
                    return np.int64(_FULL - _WORK)
                pair = np.int64(edge_node[x]) << 32 | np.int64(edge_frame[x])
                if _is_new(seen, stamps, stamp, pair):
                    work[todo] = pair
                    todo += 1
    for x in range(todo):
        if node_final[work[x] >> 32] < 2:
            if count == kernel.size:
                return np.int64(_FULL - _KERNEL)
            kernel[count] = work[x]
            count += 1
    if count == 1 and not accepts:
        if state >= 0:
            cells[state * classes + symbol] = DEAD
        return np.int64(DEAD)
    kernel[0] = accepts
    count = _sorted_unique(kernel, np.int64(1), count)

    # the same has been met
    kernel_start = array_at(header[_KERNEL_START], header[_KERNEL_START + 1], np.int32)
    kernel_data = array_at(header[_KERNEL_DATA], header[_KERNEL_DATA + 1], np.int64)
    kernel_state = array_at(header[_KERNEL_STATE], header[_KERNEL_STATE + 1], np.int32)
    slots = array_at(header[_KERNEL_SLOTS], header[_KERNEL_SLOTS + 1], np.int32)
    slot = _hash(kernel, count, 0) & (slots.size - 1)
    while slots[slot] >= 0:
        n = slots[slot]
        begin = kernel_start[n]
        if kernel_start[n + 1] - begin == count:
            same = True
            for k in range(count):
                if kernel_data[begin + k] != kernel[k]:
                    same = False
                    break
            if same:
                if state >= 0:
                    cells[state * classes + symbol] = kernel_state[n]
                return np.int64(kernel_state[n])
        slot = (slot + 1) & (slots.size - 1)
    kernels, words = header[_KERNELS], header[_KERNEL_WORDS]
    if 2 * (kernels + 1) > slots.size:
        return np.int64(_FULL - _KERNEL_SLOTS)
    if kernels + 2 > kernel_start.size:
        return np.int64(_FULL - _KERNEL_START)
    if kernels + 1 > kernel_state.size:
        return np.int64(_FULL - _KERNEL_STATE)
    if words + count > kernel_data.size:
        return np.int64(_FULL - _KERNEL_DATA)
    found = _closed(header, count)
    if found < 0:
        return found
    for k in range(count):
        kernel_data[words + k] = kernel[k]
    kernel_start[kernels + 1], kernel_state[kernels] = words + count, found
    slots[slot] = kernels
    header[_KERNELS], header[_KERNEL_WORDS] = kernels + 1, words + count
    if state >= 0:
        cells[state * classes + symbol] = found
    return found


@kernel
def _closed(header: Any, count: Any) -> Any:
    """Return the state of what is in the kernel, with the rules that begin there; see `_next`."""
    node_final = array_at(header[_NODE_FINAL], header[_NODE_FINAL + 1], np.uint8)
    terminal_start = array_at(header[_TERMINAL_START], header[_TERMINAL_START + 1], np.int32)
    terminal = array_at(header[_TERMINAL], header[_TERMINAL + 1], np.int32)
    call_start = array_at(header[_CALL_START], header[_CALL_START + 1], np.int32)
    call_rule = array_at(header[_CALL_RULE], header[_CALL_RULE + 1], np.int32)
    call_node = array_at(header[_CALL_NODE], header[_CALL_NODE + 1], np.int32)
    rule_node = array_at(header[_RULE_NODE], header[_RULE_NODE + 1], np.int32)
    rule_group = array_at(header[_RULE_GROUP], header[_RULE_GROUP + 1], np.int32)
    frame_start = array_at(header[_FRAME_START], header[_FRAME_START + 1], np.int32)
    edge_node = array_at(header[_EDGE_NODE], header[_EDGE_NODE + 1], np.int32)
    edge_frame = array_at(header[_EDGE_FRAME], header[_EDGE_FRAME + 1], np.int32)
    kernel = array_at(header[_KERNEL], header[_KERNEL + 1], np.int64)
    work = array_at(header[_WORK], header[_WORK + 1], np.int64)
    scan = array_at(header[_SCAN], header[_SCAN + 1], np.int64)
    entry = array_at(header[_ENTRY], header[_ENTRY + 1], np.int64)  # who calls a rule, in lists by rule
    link = array_at(header[_LINK], header[_LINK + 1], np.int64)
    head = array_at(header[_HEAD], header[_HEAD + 1], np.int64)
    active = array_at(header[_ACTIVE], header[_ACTIVE + 1], np.int64)
    rules = array_at(header[_RULES], header[_RULES + 1], np.int64)
    local_of = array_at(header[_LOCAL_OF], header[_LOCAL_OF + 1], np.int64)
    visited = array_at(header[_VISITED], header[_VISITED + 1], np.int64)
    path = array_at(header[_PATH], header[_PATH + 1], np.int64)
    buffer = array_at(header[_BUFFER], header[_BUFFER + 1], np.int64)
    header[_STAMP] += 1
    stamp = header[_STAMP]

    # which rules begin, and who waits for them
    scans, todo, entries, begun = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if count + 1 > scan.size:
        return np.int64(_FULL - _SCAN)
    if count + rule_node.size > work.size:
        return np.int64(_FULL - _WORK)
    for k in range(1, count):
        if kernel[k] >> 62:
            scan[scans] = kernel[k] & ~(np.int64(1) << 62)
            scans += 1
        else:
            work[todo] = kernel[k]
            todo += 1
    done: Any = np.int64(0)
    while done < todo:
        node, frame = work[done] >> 32, work[done] & 0xFFFFFFFF
        done += 1
        if scans + terminal_start[node + 1] - terminal_start[node] > scan.size:
            return np.int64(_FULL - _SCAN)
        for x in range(terminal_start[node], terminal_start[node + 1]):
            scan[scans] = np.int64(terminal[x]) << 32 | frame
            scans += 1
        for x in range(call_start[node], call_start[node + 1]):
            rule = np.int64(call_rule[x])
            if entries == entry.size:
                return np.int64(_FULL - _ENTRY)
            if entries == link.size:
                return np.int64(_FULL - _LINK)
            if active[rule] != stamp:
                active[rule], head[rule] = stamp, -1
                rules[begun] = rule
                begun += 1
                work[todo] = np.int64(rule_node[rule]) << 32 | (_LOCAL + rule)  # there is room: once a rule
                todo += 1
            entry[entries], link[entries] = np.int64(call_node[x]) << 32 | frame, head[rule]
            head[rule] = entries
            entries += 1

    header[_SPENT] += scans + entries

    # their frames, callers first; those of rules that begin with each other together
    _sorted_unique(rules, np.int64(0), begun)
    group_start = array_at(header[_GROUP_START], header[_GROUP_START + 1], np.int32)
    group_data = array_at(header[_GROUP_DATA], header[_GROUP_DATA + 1], np.int64)
    group_frame = array_at(header[_GROUP_FRAME], header[_GROUP_FRAME + 1], np.int32)
    slots = array_at(header[_GROUP_SLOTS], header[_GROUP_SLOTS + 1], np.int32)
    low: Any = np.int64(0)
    while low < begun:
        group = rule_group[rules[low]]
        high = low + 1
        while high < begun and rule_group[rules[high]] == group:
            high += 1
        # each rule: its number, how many edges, and these; where none waits for another of them, each is a group alone
        used, loops = np.int64(0), False
        for member in range(low, high):
            rule = rules[member]
            begin = used + 2
            used = begin
            header[_STAMP] += 1
            mark = header[_STAMP]
            visited[rule] = mark
            path[0], paths = rule, np.int64(1)
            while paths:
                paths -= 1
                each = head[path[paths]]
                while each >= 0:
                    node, frame = entry[each] >> 32, entry[each] & 0xFFFFFFFF
                    each = link[each]
                    if used + 2 > buffer.size:
                        return np.int64(_FULL - _BUFFER)
                    if frame >= _LOCAL:
                        other = frame - _LOCAL
                        if rule_group[other] == group:
                            if node_final[node] == 3:
                                if visited[other] != mark:
                                    visited[other] = mark
                                    path[paths] = other
                                    paths += 1
                            else:
                                buffer[used] = node << 32 | (_BIAS - 1 - other)
                                used += 1
                                loops = True
                            continue
                        frame = local_of[other]
                    if node_final[node] == 3 and frame != _ROOT:
                        first, stop = frame_start[frame], frame_start[frame + 1]
                        if used + stop - first + 2 > buffer.size:
                            return np.int64(_FULL - _BUFFER)
                        for x in range(first, stop):
                            buffer[used] = np.int64(edge_node[x]) << 32 | (np.int64(edge_frame[x]) + _BIAS)
                            used += 1
                    else:
                        if node_final[node] == 3:
                            node = np.int64(0)
                        buffer[used] = node << 32 | (frame + _BIAS)
                        used += 1
            used = _sorted_unique(buffer, begin, used)
            buffer[begin - 2], buffer[begin - 1] = rule, used - begin
        at: Any = np.int64(0)
        m: Any = low
        while m < high:
            first, stop, members = at, used, high - m
            if not loops:
                stop, members = at + 2 + buffer[at + 1], np.int64(1)
                buffer[at] = -1
            size = stop - first
            slot = _hash(buffer[first:], size, 0) & (slots.size - 1)
            found = np.int64(-1)
            while slots[slot] >= 0:
                n = slots[slot]
                begin = group_start[n]
                if group_start[n + 1] - begin == size:
                    same = True
                    for k in range(size):
                        if group_data[begin + k] != buffer[first + k]:
                            same = False
                            break
                    if same:
                        found = np.int64(group_frame[n])
                        break
                slot = (slot + 1) & (slots.size - 1)
            if found < 0:
                groups, words = header[_GROUPS], header[_GROUP_WORDS]
                frames, edges = header[_FRAMES], header[_EDGES]
                if 2 * (groups + 1) > slots.size:
                    return np.int64(_FULL - _GROUP_SLOTS)
                if groups + 2 > group_start.size:
                    return np.int64(_FULL - _GROUP_START)
                if groups + 1 > group_frame.size:
                    return np.int64(_FULL - _GROUP_FRAME)
                if words + size > group_data.size:
                    return np.int64(_FULL - _GROUP_DATA)
                if frames + members + 1 > frame_start.size:
                    return np.int64(_FULL - _FRAME_START)
                if edges + size > edge_node.size:
                    return np.int64(_FULL - _EDGE_NODE)
                if edges + size > edge_frame.size:
                    return np.int64(_FULL - _EDGE_FRAME)
                found = frames
                for k in range(size):
                    group_data[words + k] = buffer[first + k]
                group_start[groups + 1], group_frame[groups] = words + size, frames
                slots[slot] = groups
                header[_GROUPS], header[_GROUP_WORDS] = groups + 1, words + size
                for k in range(members):
                    local_of[rules[m + k]] = frames + k
                x = first
                for k in range(members):
                    for y in range(x + 2, x + 2 + buffer[x + 1]):
                        node, frame = buffer[y] >> 32, (buffer[y] & 0xFFFFFFFF) - _BIAS
                        if frame < 0:
                            frame = local_of[-1 - frame]
                        edge_node[edges], edge_frame[edges] = node, frame
                        edges += 1
                    x += 2 + buffer[x + 1]
                    frame_start[frames + k + 1] = edges
                header[_FRAMES], header[_EDGES] = frames + members, edges
            for k in range(members):
                local_of[rules[m + k]] = found + k
            at, m = stop, m + members
        low = high

    # the state
    for k in range(scans):
        frame = scan[k] & 0xFFFFFFFF
        if frame >= _LOCAL:
            scan[k] = scan[k] >> 32 << 32 | local_of[frame - _LOCAL]
    scans = _sorted_unique(scan, np.int64(0), scans)
    state_start = array_at(header[_STATE_START], header[_STATE_START + 1], np.int32)
    item_position = array_at(header[_ITEM_POSITION], header[_ITEM_POSITION + 1], np.int32)
    item_frame = array_at(header[_ITEM_FRAME], header[_ITEM_FRAME + 1], np.int32)
    accepts = array_at(header[_ACCEPTS], header[_ACCEPTS + 1], np.uint8)
    slots = array_at(header[_STATE_SLOTS], header[_STATE_SLOTS + 1], np.int32)
    slot = _hash(scan, scans, kernel[0]) & (slots.size - 1)
    while slots[slot] >= 0:
        n = slots[slot]
        begin = state_start[n]
        if state_start[n + 1] - begin == scans and accepts[n] == kernel[0]:
            same = True
            for k in range(scans):
                if np.int64(item_position[begin + k]) << 32 | np.int64(item_frame[begin + k]) != scan[k]:
                    same = False
                    break
            if same:
                return np.int64(n)
        slot = (slot + 1) & (slots.size - 1)
    states, items = header[_STATES], header[_ITEMS]
    if 2 * (states + 1) > slots.size:
        return np.int64(_FULL - _STATE_SLOTS)
    if states + 2 > state_start.size:
        return np.int64(_FULL - _STATE_START)
    if (states + 1) * header[_CLASSES] > header[_CELLS + 1]:
        return np.int64(_FULL - _CELLS)
    if states + 1 > accepts.size:
        return np.int64(_FULL - _ACCEPTS)
    if states + 1 > header[_LOOPS + 1]:
        return np.int64(_FULL - _LOOPS)
    if items + scans > item_position.size:
        return np.int64(_FULL - _ITEM_POSITION)
    if items + scans > item_frame.size:
        return np.int64(_FULL - _ITEM_FRAME)
    for k in range(scans):
        item_position[items + k], item_frame[items + k] = scan[k] >> 32, scan[k] & 0xFFFFFFFF
    state_start[states + 1], accepts[states] = items + scans, kernel[0]
    slots[slot] = states
    header[_STATES], header[_ITEMS] = states + 1, items + scans
    return states


@kernel
def _follow(header: Any, state: Any, token: Any) -> Any:
    """Return the state that a token's bytes lead to, `DEAD` also where it has none; see `_next`."""
    start = array_at(header[_TEXT_START], header[_TEXT_START + 1], np.int64)
    text = array_at(header[_TEXT], header[_TEXT + 1], np.uint8)
    class_of = array_at(header[_CLASS_OF], header[_CLASS_OF + 1], np.int32)
    cells = array_at(header[_CELLS], header[_CELLS + 1], np.int32)
    classes = header[_CLASSES]
    here = np.int64(state)
    if start[token] == start[token + 1]:
        return np.int64(DEAD)
    for x in range(start[token], start[token + 1]):
        symbol = class_of[text[x]]
        to = np.int64(cells[here * classes + symbol])
        if to == UNKNOWN:
            to = _next(header, here, np.int64(symbol))
        if to < 0:
            return to
        here = to
    return here


@kernel
def _spread(header: Any, done: Any) -> Any:
    """Find where all classes lead from the states behind the first `done`; return how many are done then."""
    classes = header[_CLASSES]
    stop = min(header[_STATES], done + 256)
    for state in range(done, stop):
        for symbol in range(classes):
            found = _next(header, np.int64(state), np.int64(symbol))
            if found < DEAD:
                return found
    return np.int64(stop)


@kernel
def _loops_of(header: Any, state: Any) -> Any:
    """Return the groups of characters that lead from a state back to it; _FULL or less, as a number, in the second."""
    class_of = array_at(header[_CLASS_OF], header[_CLASS_OF + 1], np.int32)
    loops = array_at(header[_LOOPS], header[_LOOPS + 1], np.uint64)
    if loops[state] != _UNSEEN:
        return loops[state], np.int64(0)
    out = np.uint64(1) << np.uint64(UNCLEAN)  # groups that do not
    for b in range(0xF5):
        group = np.uint64(1) << np.uint64(BYTE_GROUP[b])
        if out & group:
            continue
        here = _next(header, np.int64(state), np.int64(class_of[b]))
        low, high = BEHIND[b, 0], BEHIND[b, 1]
        for _ in range(BEHIND[b, 2]):
            if here < 0:
                break
            after = _next(header, here, np.int64(class_of[low]))
            for c in range(low + 1, high + 1):
                if class_of[c] != class_of[c - 1]:
                    other = _next(header, here, np.int64(class_of[c]))
                    if other != after:
                        after = min(after, other, np.int64(DEAD))
                        break
            here = after
            low, high = 0x80, 0xBF
        if here < DEAD:
            return np.uint64(0), here
        if here != state:
            out |= group
    loops[state] = ~out
    return ~out, np.int64(0)


@kernel
def _mask(header: Any, start: Any, out: Any) -> Any:
    """Write the tokens that a state allows, EOS aside; see `_next`."""
    class_of = array_at(header[_CLASS_OF], header[_CLASS_OF + 1], np.int32)
    cells = array_at(header[_CELLS], header[_CELLS + 1], np.int32)
    byte = array_at(header[_BYTE], header[_BYTE + 1], np.uint8)
    skip = array_at(header[_SKIP], header[_SKIP + 1], np.int32)
    depth = array_at(header[_DEPTH], header[_DEPTH + 1], np.uint16)
    content = array_at(header[_CONTENT], header[_CONTENT + 1], np.uint64)
    token_start = array_at(header[_TOKEN_START], header[_TOKEN_START + 1], np.int32)
    token = array_at(header[_TOKEN], header[_TOKEN + 1], np.int32)
    root_start = array_at(header[_ROOT_START], header[_ROOT_START + 1], np.int32)
    loops = array_at(header[_LOOPS], header[_LOOPS + 1], np.uint64)
    classes = header[_CLASSES]
    states = np.empty(header[_LEVELS] + 1, np.int64)
    one = np.uint32(1)
    out[:] = np.uint32(0)
    states[0] = start
    for b in range(256):
        i, last = np.int64(root_start[b]), np.int64(root_start[b + 1])
        if i == last:
            continue
        to = np.int64(cells[states[0] * classes + class_of[b]])
        if to == UNKNOWN:
            to = _next(header, states[0], np.int64(class_of[b]))
        if to < DEAD:
            return to
        if to == DEAD:
            continue
        while i < last:
            d = np.int64(depth[i])
            before = states[d - 1]
            symbol = class_of[byte[i]]
            to = np.int64(cells[before * classes + symbol])
            if to < 0:
                if to == UNKNOWN:
                    to = _next(header, before, np.int64(symbol))
                if to < DEAD:
                    return to
                if to == DEAD:
                    i = np.int64(skip[i])
                    continue
            below = np.int64(skip[i])
            first, stop = token_start[i], token_start[i + 1]
            groups = loops[before]
            if groups == _UNSEEN:
                groups = np.uint64(0)
                if token_start[below] - first > _MANY:
                    groups, full = _loops_of(header, before)
                    if full < 0:
                        return full
            if content[i] & ~groups == 0:
                stop, i = token_start[below], below - 1
            for x in range(first, stop):
                out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
            states[d] = to
            i += 1
    return np.int64(0)
