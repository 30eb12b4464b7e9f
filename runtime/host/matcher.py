"""`Matcher`: one sequence on the host, token by token."""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import VocabularyMismatchError
from ...kernels.mask_buffers import MaskBuffers
from ...table.sorted_matrix import Constraint, SortedMatrix
from ...table.transition_table import NEVER, LazyMachine, LazyTable, Noting, TransitionTable
from . import masks as packed

_CACHE_BYTES = 32 << 20  # of composed masks kept for each constraint
_ENTRY_BYTES = 100  # that a key and its place in a dictionary take
_MASK_BYTES = 300  # that an array takes besides its words, where it is a view of another
_NOTED_BYTES = 40  # that bytes take besides their own number
_MOST_STACKS = 2048  # of one constraint that are known to sequences which begin
_LEAP = 64  # rows for each token of the vocabulary from which on it is quicker to search for each than to read all rows
_NO_END = 1 << 62  # a distance greater than any budget


class Spelling(Protocol):
    """What jumping forward needs to know of a vocabulary; `Vocabulary` has it."""

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of each token."""

    @property
    def fingerprint(self) -> str:
        """The name of the vocabulary."""

    def encode(self, text: bytes) -> list[int]:
        """Return tokens that spell a text exactly, segmented as the tokenizer does inside a longer text."""


def _view(array: Any) -> memoryview:
    """Return an array as Python reads it fastest, element by element."""
    return memoryview(array)


class _Stack:
    """The open frames of a sequence: a site on top of another stack, one object for each stack above one root."""

    __slots__ = ("above", "below", "distance", "far", "frames", "height", "packed", "site", "variant")

    def __init__(self, host: _NestedHost, site: int, below: _Stack | None) -> None:
        self.site, self.below = site, below
        self.above: dict[int, _Stack] = {}  # pushed onto this one so far
        self.packed: bytes | None = None  # its sites, int32, the outermost first, once they have been asked for
        self.far: list[int] | None = None  # its distances by ends, the same
        if below is None:
            self.height = self.frames = self.distance = 0
            self.packed = b""
        else:
            self.height = below.height + 1
            self.frames = below.frames + (not host.site_leaf[site])
            self.distance = below.distance + host.site_distance[site] if host.site_distance else 0
        full = self.frames + host.most_need > host.depth or self.height + host.most_pushes > host.slots
        # 0, or with little room left a number that tells apart what fits: masks then depend on it
        self.variant = (1 + self.frames * (host.slots + 1) + self.height) * host.states if full else 0

    def sites(self) -> bytes:
        """Return the sites, int32, the outermost first."""
        packed = self.packed
        if packed is None:
            packed = self.packed = self.top(self.height)
        return packed

    def as_array(self) -> NDArray[np.int32]:
        """Return the sites as an array, read-only."""
        return np.frombuffer(self.sites(), np.int32)

    def top(self, most: int) -> bytes:
        """Return as many of the sites, those on top, the outermost first: not kept, as all of all stacks are many."""
        above: list[int] = []
        at: _Stack = self
        while len(above) < most and at.packed is None:
            above.append(at.site)
            assert at.below is not None, "all is known of an empty stack"
            at = at.below
        known = at.packed[-4 * (most - len(above)) :] if at.packed is not None and len(above) < most else b""
        return known + array("i", reversed(above)).tobytes()

    def __reduce__(self) -> Any:
        raise TypeError("a stack belongs to its matcher")


_Place = tuple[int, _Stack]  # a configuration
_DEEPER = np.empty(0, np.uint32)  # in place of a mask: it depends on the next site as well


def _below(key: int, site: int) -> int:
    """Return the key of what depends on one more site: keys without any are below 0.

    A number, as the garbage collector counts tuples. Its digits of 32 bits are sites, the last ones first and none of
    them 0, then a 0, then the key without sites: no two are the same.
    """
    return (key << 32 if key > 0 else -key << 64) | site + 1


def _tokens_of(mask: NDArray[np.uint32]) -> NDArray[Any]:
    """Return the tokens whose bits are set, in order."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
    return np.flatnonzero(bits.view(np.bool_))  # an eighth of what it takes over numbers


_sheets: dict[int, MaskBuffers] = {}  # by their number of words


def _whole(mask: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return a copy of a mask that is read-only, before anybody else has it."""
    kept = mask.copy()
    kept.flags.writeable = False
    return kept


class _Host(ABC):
    """What all matchers of one constraint share, and all that they ask of it; it is kept with the constraint.

    A matcher stands at a *place*: a state of a table, a configuration of a nested one, an interval of a matrix.
    """

    nowhere: Any = None  # where a token leads that is not allowed
    parts = 0  # of a place that is a tuple

    def __init__(self, table: Constraint) -> None:
        self.table: Any = table
        self.size = table.vocab_size
        self.eos = -1 if table.eos is None else table.eos
        self.words = -(-table.vocab_size // 32)
        self.composed: dict[Any, Any] = {}  # masks made so far
        self.lock = threading.Lock()
        self.most = max(16, _CACHE_BYTES // (4 * self.words + _MASK_BYTES + _ENTRY_BYTES))

    @property
    def nbytes(self) -> int:
        """Bytes of the masks made so far."""
        return (4 * self.words + _MASK_BYTES + _ENTRY_BYTES) * len(self.composed)

    @abstractmethod
    def start(self) -> Any:
        """Return the place of a sequence with nothing written yet."""

    @abstractmethod
    def budgets(self) -> None:
        """Work out distances, before any place is made that needs them."""

    @abstractmethod
    def distance(self, place: Any) -> int:
        """Return the tokens in which a sequence can be complete from a place."""

    @abstractmethod
    def farthest(self, place: Any) -> int:
        """Return the largest distance that a token leads to, or more."""

    def mask(self, place: Any) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only and kept for the next time."""
        found: NDArray[np.uint32] | None = self.composed.get(place)
        if found is None:
            found = self.made(place)
            with self.lock:  # matchers of several threads may be making room at once
                for key in self.oldest():
                    del self.composed[key]
                self.composed[place] = found
        return found

    def oldest(self) -> list[Any]:
        """Return the keys of what has to go from `composed` for one more, and some besides; [] where there is room.

        A dictionary passes over all that has gone from its front to find the next key: one by one, that took as long as
        making masks.
        """
        over = len(self.composed) + 1 - self.most
        return list(islice(self.composed, over + self.most // 16)) if over > 0 else []

    @abstractmethod
    def made(self, place: Any, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only; room: how many tokens may still be written, EOS aside."""

    @abstractmethod
    def allowed(self, place: Any) -> NDArray[Any]:
        """Return the tokens that a place where no sequence may end allows."""

    @abstractmethod
    def step(self, place: Any, token: int) -> Any:
        """Return the place that a token leads to; `nowhere` if it is not allowed."""

    @abstractmethod
    def ends(self, place: Any) -> bool:
        """Return whether a sequence may end at a place."""

    @abstractmethod
    def configuration(self, place: Any) -> tuple[int, tuple[int, ...]]:
        """Return the state of a place and the sites on its stack, the outermost first."""

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the constraint, in another process perhaps, makes its own


class _TableHost(_Host):
    """What all matchers of one table share: views of its arrays."""

    table: TransitionTable

    def __init__(self, table: TransitionTable) -> None:
        super().__init__(table)
        self.nowhere = table.dead
        self.rows, self.edges = table.num_rows, table.num_edges
        self.after_eos, self.dead = table.after_eos, table.dead
        self.row_start = _view(table.row_start)
        self.edge_token = _view(table.edge_token)
        self.edge_target = _view(table.edge_target)
        self.accepting = _view(table.accepting.view(np.uint8))
        self.base_row = _view(table.base_row if not table.is_trie else table.base_row[:0])
        self.base_mask = _view(table.base_mask)
        self.base_classes = _view(table.base_classes)
        self.base_start = _view(table.base_start)
        self.base_target = _view(table.base_target)
        self.class_start = _view(table.class_start)
        self.class_token = _view(table.class_token)
        self.class_id = _view(table.class_id)
        self.masks = [_view(row) for row in table.masks] if not table.is_trie else []

    def start(self) -> Any:
        """Return the place of a sequence with nothing written yet."""
        return 0

    def budgets(self) -> None:
        """Work out distances, before any place is made that needs them."""
        self.distances, self.farthests = _view(self.table.distance), _view(self.table.farthest)

    def distance(self, place: Any) -> int:
        """Return the tokens in which a sequence can be complete from a place."""
        found: int = self.distances[place]
        return found

    def farthest(self, place: Any) -> int:
        """Return the largest distance that a token leads to."""
        found: int = self.farthests[place]
        return found

    def made(self, place: Any, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only; room: how many tokens may still be written, EOS aside."""
        remaining = None if room is None else np.array([room], np.int64)
        out = packed.compose(self.table, np.array([place], np.int64), remaining)
        out.flags.writeable = False
        mask: NDArray[np.uint32] = out[0]
        return mask

    def allowed(self, place: Any) -> NDArray[Any]:
        """Return the tokens that a place where no sequence may end allows."""
        if place >= len(self.base_row) or self.base_row[place] < 0:
            return self.table.edge_token[self.row_start[place] : self.row_start[place + 1]]
        return _tokens_of(self.mask(place))

    def step(self, place: Any, token: int) -> Any:
        """Return the place that a token leads to; `nowhere` if it is not allowed."""
        rows, node = self.rows, place
        if node >= rows:
            entry = self.edge_token[self.edges + node - rows]
            if entry == token:
                return node + 1
            return node if entry == self.size and token == self.eos else self.dead
        stop = self.row_start[node + 1]
        edge = bisect_left(self.edge_token, token, self.row_start[node], stop)
        if edge < stop and self.edge_token[edge] == token:
            return self.edge_target[edge]
        if token == self.eos:
            return self.after_eos if self.accepting[node] else self.dead
        base = self.base_row[node] if node < len(self.base_row) else -1
        if base < 0 or not self.masks[self.base_mask[base]][token >> 5] >> (token & 31) & 1:
            return self.dead
        classes = self.base_classes[base]
        stop = self.class_start[classes + 1]
        at = bisect_left(self.class_token, token, self.class_start[classes], stop)
        name = self.class_id[at] if at < stop and self.class_token[at] == token else 0
        code = self.base_target[self.base_start[base] + name]
        return (code >> 1) + (code & 1) * node

    def ends(self, place: Any) -> bool:
        """Return whether a sequence may end at a place."""
        if place < self.rows:
            return bool(self.accepting[place])
        return bool(self.edge_token[self.edges + place - self.rows] == self.size)

    def configuration(self, place: Any) -> tuple[int, tuple[int, ...]]:
        """Return the state of a place and the sites on its stack, the outermost first."""
        return place, ()


class _NestedHost(_TableHost):
    """What all matchers of one nested table share.

    Masks that are visited often are kept: by the state and as many sites, from the top down, as they depend on. Until
    then the number of their visits is.
    """

    parts = 2
    often = 6  # visits from which on the mask of a configuration is kept
    strings = 1 << 62  # the first state that may allow the same as another, by its number
    root: _Stack | None = None  # which sequences share, so that what one has pushed is there for the next
    stacks = 0  # above it, about
    counts = False  # whether distances are known
    restored: Any = None  # makes a mask of what was noted of it, where anything is; see `Noting`

    def __init__(self, table: TransitionTable) -> None:
        super().__init__(table)
        self.nowhere = None
        self.states = table.num_states
        self.row_exit, self.base_exit = _view(table.row_exit), _view(table.base_exit)
        self.exit_start, self.exit_token = _view(table.exit_start), _view(table.exit_token)
        self.exit_symbol = _view(table.exit_symbol)
        self.site_start, self.site_symbol = _view(table.site_start), _view(table.site_symbol)
        self.site_target = _view(table.site_target)
        self.site_leaf: Any = _view(table.site_leaf)
        self.base_push, self.site_need = _view(table.base_push), _view(table.site_need)
        self.action_state, self.action_start = _view(table.action_state), _view(table.action_start)
        self.action_push, self.code_need = _view(table.action_push), _view(table.code_need)
        self.site_distance: list[int] = []  # once there are budgets, where all ends are alike
        self.by_ends: list[Any] = []  # and where they are told apart
        self.header, self.tokens_of_edges = packed.Bundle.of(table).header, table.edge_token
        self.sheets = _sheets.setdefault(self.words, MaskBuffers(self.words))
        self.depth, self.slots = table.depth, table.slots
        self.most_need, self.most_pushes = table.most_need, table.most_pushes

    @property
    def nbytes(self) -> int:
        """Bytes of the masks made so far."""
        kept = list(self.composed.values())
        whole = sum(one is not _DEEPER and one.__class__ is np.ndarray for one in kept)
        noted = sum(len(one) + _NOTED_BYTES for one in kept if one.__class__ is bytes)
        return (4 * self.words + _MASK_BYTES) * whole + noted + _ENTRY_BYTES * len(kept)

    def start(self) -> _Place:
        """Return the place of a sequence with nothing written yet."""
        with self.lock:
            if self.root is None or self.stacks > _MOST_STACKS:
                self.root, self.stacks = _Stack(self, -1, None), 0
            return 0, self.root

    def budgets(self) -> None:
        """Work out distances, before any place is made that needs them."""
        with self.lock:
            if self.counts:
                return
            code, site, farthest, code_room, site_room = self.table.distances
            if code.shape[1] > 1:
                self.by_ends, self.code_room, self.site_room = site.tolist(), code_room.tolist(), site_room.tolist()
                rooms = np.concatenate((code_room.reshape(-1), site_room.reshape(-1), [0]))
                self.most_room = 1 + int(rooms[rooms < NEVER].max())  # with which no way is left out
            else:
                code, farthest = code.reshape(-1), farthest.reshape(-1)
                self.site_distance = site.reshape(-1).tolist()
            self.distances, self.farthests = _view(code), _view(farthest)
            self.root, self.counts = None, True  # the stacks above it know no distances

    def distance(self, place: _Place) -> int:
        """Return the tokens in which a sequence can be complete from a place."""
        by_ends = self.by_ends
        found: int = self.nearest(self.distances, place) if by_ends else self.distances[place[0]] + place[1].distance
        return found if found < NEVER else _NO_END

    def farthest(self, place: _Place) -> int:
        """Return the largest distance that a token leads to, or more."""
        if self.by_ends:
            full = bool(self.code_room) and place[1].frames + self.most_room > self.table.depth
            found = NEVER if full else self.nearest(self.farthests, place)
        else:
            found = self.farthests[place[0]] + place[1].distance
        return found if found < NEVER else _NO_END

    def nearest(self, by_end: memoryview, place: _Place) -> int:
        """Return the least sum of what is known of a state, by how its fragment ends, and of the stack's distance."""
        node, stack = place
        waiting = []
        at: _Stack | None = stack
        while at is not None and at.far is None:
            waiting.append(at)
            at = at.below
        for above in reversed(waiting):
            below = above.below
            if below is None:
                above.far = [0] + [NEVER] * (len(self.by_ends[0]) - 1)
                continue
            assert below.far is not None, "stacks are worked out from the bottom"
            steps, left = self.by_ends[above.site], self.table.depth - below.frames
            if self.site_room:
                rooms = self.site_room[above.site]
                steps = [
                    [step if room <= left else NEVER for step, room in zip(*pair, strict=True)]
                    for pair in zip(steps, rooms, strict=True)
                ]
            above.far = [min(map(operator.add, row, below.far)) for row in steps]
        assert stack.far is not None, "and this one the last"
        own = [int(by_end[node, end]) for end in range(len(stack.far))]
        if self.code_room and node < len(self.code_room):
            left = self.table.depth - stack.frames
            own = [one if room <= left else NEVER for one, room in zip(own, self.code_room[node], strict=True)]
        nearest: int = min(map(operator.add, own, stack.far))
        return nearest

    def mask(self, place: _Place) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only, and kept by all that it depends on for the next time."""
        node, stack = place
        if node >= self.strings:
            node = self.alike(node)
        key = ~(node + stack.variant)
        keyed = self.composed
        found: Any = keyed.get(key)
        at: _Stack | None = stack
        while found is _DEEPER:
            assert at is not None, "the mask of an empty stack depends on nothing else"
            key = _below(key, at.site)
            at = at.below
            found = keyed.get(key)
        shape = found.__class__
        mask: NDArray[np.uint32]
        if shape is bytes:
            mask = self.restored(found)
            return mask
        if shape is np.ndarray:
            mask = found
            return mask
        visits = 1 if found is None else found + 1
        known: Any
        shown, looked, known = self.write(node, stack)
        if known is True or (known is False and visits >= self.often):
            known = _whole(shown)
        elif known is False:
            if visits > 1:
                keyed[key] = visits
                return shown
            known = visits
        if looked or len(keyed) >= self.most:
            self.keep(~(node + stack.variant), stack, looked, known)
        else:
            keyed[~(node + stack.variant)] = known
        return shown

    def alike(self, node: int) -> int:
        """Return the state that stands for all that allow the same, whatever the stack."""
        return node

    def write(self, node: int, stack: _Stack) -> tuple[NDArray[np.uint32], int, bool | bytes]:
        """Return the mask of a place, how many sites it depends on, and whether it was much work."""
        sheet = self.sheets.take()
        mask = sheet.shown  # held before anybody else may take the sheet
        looked = packed.mask_one(
            self.header, self.tokens_of_edges, *packed.NO_BUDGET, node, stack.as_array(), NEVER, sheet.mask
        )  # fmt: skip
        self.sheets.give(sheet)
        return mask, looked, False

    def keep(self, key: int, stack: _Stack, looked: int, known: Any) -> None:
        """Keep a mask, what is noted of it or its visits by as many sites as it depends on; the bottom is one."""
        with self.lock:  # matchers of several threads may be making room at once
            composed = self.composed
            for old in self.oldest():
                composed.pop(old, None)
            at: _Stack | None = stack
            for _ in range(looked):
                assert at is not None, "there is nothing below the bottom of a stack"
                composed[key] = _DEEPER
                key = _below(key, at.site)
                at = at.below
            composed[key] = known

    def made(self, place: _Place, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only; room: how many tokens may still be written, EOS aside."""
        node, stack = place
        budget = packed.NO_BUDGET if room is None else packed.budget_of(self.table)
        sheet = self.sheets.take()
        last = NEVER if room is None else min(room, NEVER)
        mask = sheet.shown
        packed.mask_one(self.header, self.tokens_of_edges, *budget, node, stack.as_array(), last, sheet.mask)
        self.sheets.give(sheet)
        return mask

    def pushed(self, stack: _Stack, site: int) -> _Stack:
        """Return a stack with one more site on it."""
        found = stack.above.get(site)
        if found is None:
            found = stack.above.setdefault(site, _Stack(self, site, stack))  # another thread may have been quicker
            self.stacks += 1
        return found

    def step(self, place: _Place, token: int) -> _Place | None:
        """Return the place that a token leads to; None if it is not allowed."""
        node, stack = place
        if node >= self.rows:
            return (node, stack) if node == self.after_eos and token == self.eos else None
        stop = self.row_start[node + 1]
        edge = bisect_left(self.edge_token, token, self.row_start[node], stop)
        if edge < stop and self.edge_token[edge] == token:
            code = self.edge_target[edge]
            if code < self.rows and not stack.variant:
                return code, stack
            return self.followed(code, stack)
        if self.row_exit and (exits := self.row_exit[node]) >= 0:
            stop = self.exit_start[exits + 1]
            at = bisect_left(self.exit_token, token, self.exit_start[exits], stop)
            if at < stop and self.exit_token[at] == token:
                return self.left(stack, self.exit_symbol[at])
        if token == self.eos:
            return (self.after_eos, stack) if self.accepting[node] and stack.below is None else None
        base = self.base_row[node]
        if base < 0:
            return None
        if self.base_push and (site := self.base_push[node]) >= 0:
            if stack.variant:
                needed = max(not self.site_leaf[site], self.site_need[site] if self.site_need else 0)
                if stack.frames + needed > self.table.depth or stack.height >= self.table.slots:
                    return None
            stack = self.pushed(stack, site)
        if self.masks[self.base_mask[base]][token >> 5] >> (token & 31) & 1:
            classes = self.base_classes[base]
            stop = self.class_start[classes + 1]
            at = bisect_left(self.class_token, token, self.class_start[classes], stop)
            name = self.class_id[at] if at < stop and self.class_token[at] == token else 0
            code = self.base_target[self.base_start[base] + name]
            code = (code >> 1) + (code & 1) * node
            return self.followed(code, stack) if stack.variant else (code, stack)
        if self.base_exit and (exits := self.base_exit[base]) >= 0:
            stop = self.exit_start[exits + 1]
            at = bisect_left(self.exit_token, token, self.exit_start[exits], stop)
            if at < stop and self.exit_token[at] == token:
                return self.left(stack, self.exit_symbol[at])
        return None

    def allowed(self, place: _Place) -> NDArray[Any]:
        """Return the tokens that a place where no sequence may end allows."""
        return _tokens_of(self.mask(place))

    def ends(self, place: _Place) -> bool:
        """Return whether a sequence may end at a place."""
        node, stack = place
        return bool(node >= self.rows or (self.accepting[node] and stack.below is None))

    def configuration(self, place: _Place) -> tuple[int, tuple[int, ...]]:
        """Return the state of a place and the sites on its stack, the outermost first."""
        return place[0], tuple(place[1].as_array().tolist())

    def left(self, stack: _Stack, symbol: int) -> _Place | None:
        """Return where leaving the fragment on top with a symbol leads."""
        while stack.below is not None:
            site, stack = stack.site, stack.below
            stop = self.site_start[site + 1]
            at = bisect_left(self.site_symbol, symbol, self.site_start[site], stop)
            if at >= stop or self.site_symbol[at] != symbol:
                return None
            code = self.site_target[at]
            if code >= 0:
                return self.followed(code, stack)
            symbol = -1 - code
        return None

    def followed(self, code: int, stack: _Stack) -> _Place | None:
        """Return where a code leads from a stack."""
        if stack.variant and code != self.dead and stack.frames + self.code_need[code] > self.table.depth:
            return None
        if code < self.rows:
            return code, stack
        if code == self.dead:
            return None
        action = code - self.states
        first, stop = self.action_start[action], self.action_start[action + 1]
        if stack.variant and stack.height + stop - first > self.table.slots:
            return None
        for site in self.action_push[first:stop]:
            stack = stack.above.get(site) or self.pushed(stack, site)
        return self.action_state[action], stack


class _LazyHost(_NestedHost):
    """What all matchers of a lazy table share that has not been worked out: states are those of its machine.

    Finding a mask costs more here, so it is noted in few words where the machine says them, and written from these in
    about a microsecond. Else it is kept in whole on the second visit: many have none, and 16 KB of new memory take
    about as long as finding a mask. It does not hold the table, which holds it: a matcher does.
    """

    often = 2

    def __init__(self, table: LazyTable, machine: LazyMachine) -> None:  # none of the arrays of other hosts is there
        self.machine, self.restored = machine, machine.restored if isinstance(machine, Noting) else None
        self.nowhere = None
        self.size, self.eos = table.vocab_size, -1 if table.eos is None else table.eos
        self.words = -(-table.vocab_size // 32)
        self.after_eos, self.states = _AFTER_EOS, _AFTER_EOS + 1
        self.depth = self.slots = self.machine.depth
        self.most_need, self.most_pushes, self.strings = self.machine.most_need, 0, self.machine.strings
        self.site_leaf, self.site_distance = _Leaves(self.machine), []
        self.composed = {}
        self.lock = threading.Lock()
        self.most = max(16, _CACHE_BYTES // (4 * self.words + _MASK_BYTES + _ENTRY_BYTES))

    def alike(self, node: int) -> int:
        """Return the state that stands for all of a string that allow the same."""
        return node if node == _AFTER_EOS else self.machine.alike(node)

    def write(self, node: int, stack: _Stack) -> tuple[NDArray[np.uint32], int, bool | bytes]:
        """Return the mask of a place, how many sites it depends on, and it in few words or whether to keep it."""
        if node == _AFTER_EOS:
            mask = np.zeros(self.words, np.uint32)
            mask[self.eos >> 5] = 1 << (self.eos & 31)
            mask.flags.writeable = False
            return mask, 0, False
        sites = stack.packed
        if sites is None:
            sites = stack.sites()
        return self.machine.mask(node, sites, stack.frames if stack.variant else -1)

    def made(self, place: _Place, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only."""
        assert room is None, "budgets need a table that is worked out"
        return self.mask(place)

    def step(self, place: _Place, token: int) -> _Place | None:
        """Return the place that a token leads to; None if it is not allowed."""
        node, stack = place
        if node == _AFTER_EOS:
            return place if token == self.eos else None
        if token == self.eos:
            return (_AFTER_EOS, stack) if self.ends(place) else None
        found: _Place | None = self.machine.advance(node, stack, token, self.pushed)
        if found is None or (found[1].variant and not self.machine.fits(*found)):
            return None
        return found

    def ends(self, place: _Place) -> bool:
        """Return whether a sequence may end at a place."""
        node, stack = place
        return node == _AFTER_EOS or (stack.below is None and self.machine.accepts(node))


_AFTER_EOS = 2**31 - 1  # no state of a machine has this number


class _Leaves:
    """Which sites are leaves, of a machine that grows."""

    def __init__(self, machine: LazyMachine) -> None:
        self.machine = machine

    def __getitem__(self, site: int) -> bool:
        return self.machine.is_leaf(site)


class _MatrixHost(_Host):
    """What all matchers of one sorted matrix share: views of its columns.

    A place is the rows that begin with the tokens so far, and how many tokens these are: (low, high, depth).
    """

    parts = 3

    def __init__(self, matrix: SortedMatrix) -> None:
        super().__init__(matrix)
        self.columns = [_view(column) for column in matrix.columns]
        self.length, self.count = matrix.length, matrix.num_sequences

    def start(self) -> tuple[int, int, int]:
        """Return the place of a sequence with nothing written yet."""
        return 0, self.count, 0

    def budgets(self) -> None:
        """Do nothing: how far the end is, is known at every depth."""

    def distance(self, place: tuple[int, int, int]) -> int:
        """Return the tokens that a sequence lacks at a place."""
        return self.length - place[2]

    def farthest(self, place: tuple[int, int, int]) -> int:
        """Return the distance that every token leads to."""
        return self.length - place[2] - 1

    def made(self, place: tuple[int, int, int], room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only. room leaves nothing out: budgets hold all of a sequence, or are none.

        For all sequences are as long.
        """
        tokens = self.allowed(place).astype(np.uint32)
        mask = np.zeros(self.words, np.uint32)
        np.bitwise_or.at(mask, tokens >> 5, np.uint32(1) << (tokens & 31))
        mask.flags.writeable = False
        return mask

    def allowed(self, place: tuple[int, int, int]) -> NDArray[Any]:
        """Return the tokens that a place allows."""
        low, high, depth = place
        if depth == self.length:
            return np.empty(0, np.uint32)
        run = self.table.columns[depth, low:high]
        if high - low > _LEAP * self.size:
            begins = np.searchsorted(run, np.arange(self.size, dtype=run.dtype))
            return np.flatnonzero(np.diff(begins, append=run.size))
        first = np.ones(run.size, np.bool_)
        np.not_equal(run[1:], run[:-1], out=first[1:])
        found: NDArray[Any] = run[first]
        return found

    def step(self, place: tuple[int, int, int], token: int) -> tuple[int, int, int] | None:
        """Return the place that a token leads to; None if it is not allowed."""
        low, high, depth = place
        if depth == self.length:
            return None
        column = self.columns[depth]
        low = bisect_left(column, token, low, high)
        if low == high or column[low] != token:
            return None
        return low, bisect_right(column, token, low, high), depth + 1

    def ends(self, place: tuple[int, int, int]) -> bool:
        """Return whether a sequence is complete at a place."""
        return place[2] == self.length

    def configuration(self, place: tuple[int, int, int]) -> tuple[int, tuple[int, ...]]:
        """Return the first row of a place, which is its `node` on a device, and no sites."""
        return place[0], ()


def _host(table: Constraint, budgets: bool) -> _Host:
    """Return what matchers of a constraint share, made once and kept with it. budgets: whether tokens are counted."""
    if not isinstance(table, Constraint):
        raise TypeError(f"a Matcher takes a TransitionTable or a SortedMatrix, not {type(table).__name__}")
    # another thread may complete the table meanwhile
    machine = table.reading() if isinstance(table, LazyTable) and not budgets else None
    name = "_host" if machine is None else "_lazy_host"
    host: _Host | None = table.__dict__.get(name)
    if host is None or (isinstance(host, _LazyHost) and host.machine is not machine):
        if machine is not None and isinstance(table, LazyTable):
            host = _LazyHost(table, machine)
        elif isinstance(table, SortedMatrix):
            host = _MatrixHost(table)
        else:
            host = (_NestedHost if table.is_nested else _TableHost)(table)
        table.__dict__[name] = host
    return host


class Matcher:
    """One sequence that is being written under a table or a sorted matrix, on the host.

    vocabulary: the one the table was compiled for; only `forced_tokens` needs it. max_tokens: the most tokens of the
    sequence, EOS aside; masks then leave out what could not be complete within it, so that an end is always in
    reach. Raises VocabularyMismatchError for another vocabulary, ValueError if nothing is as short as max_tokens.

    A matcher is not to be shared between threads; its table is. Of a sorted matrix nothing is built.

    >>> from maskwright import Vocabulary, compile_regex
    >>> vocab = Vocabulary.from_bytes([b"", b"a", b"b", b"ab"], eos=0)
    >>> m = Matcher(compile_regex("(ab)+", vocab))
    >>> m.mask(), m.advance(3), m.is_accepting, m.advance(2), m.mask()
    (array([10], dtype=uint32), True, True, False, array([11], dtype=uint32))
    """

    __slots__ = ("_history", "_host", "_max_tokens", "_place", "_table", "_tokens", "_vocabulary")

    def __init__(self, table: Constraint, vocabulary: Spelling | None = None, *, max_tokens: int | None = None) -> None:
        self._host = _host(table, max_tokens is not None)
        self._table = table
        if vocabulary is not None and not isinstance(getattr(vocabulary, "fingerprint", None), str):
            raise TypeError(
                f"a Matcher takes a Vocabulary, not {type(vocabulary).__name__}: make one with Vocabulary.from_bytes "
                "or another from_ method"
            )
        if vocabulary is not None and vocabulary.fingerprint != table.vocabulary:
            raise VocabularyMismatchError(
                f"the table was compiled for vocabulary {table.vocabulary}, not {vocabulary.fingerprint}: "
                "pass the vocabulary that it was compiled with"
            )
        if max_tokens is not None:
            max_tokens = operator.index(max_tokens)
            if table.min_length == NEVER:
                raise ValueError(
                    "max_tokens cannot be kept: this vocabulary has no tokens that close what is open and no more"
                )
            if max_tokens < table.min_length:
                raise ValueError(_too_few(max_tokens, table))
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        if max_tokens is not None:
            self._host.budgets()
        self._place = self._host.start()
        # the places before each token, part by part: tuples that are kept make the garbage collector come, and walk
        # all that the process has, while somebody waits for a token
        self._history: list[Any] = []
        self._tokens: list[int] = []

    @property
    def table(self) -> Constraint:
        """The table, or the sorted matrix, that is matched."""
        return self._table

    @property
    def state(self) -> int:
        """The table's state after the tokens so far, of a sorted matrix the first row that begins with them.

        Completes a lazy table, which has no states before.
        """
        return self._configuration()[0]

    @property
    def stack(self) -> tuple[int, ...]:
        """The return sites of the frames that are open, the outermost first; () of what has no calls.

        Completes a lazy table, as `state` does.
        """
        return self._configuration()[1]

    def _configuration(self) -> tuple[int, tuple[int, ...]]:
        matcher = self
        if isinstance(self._host, _LazyHost) and isinstance(self._table, LazyTable):  # with numbers of a machine
            matcher = Matcher(self._table.complete())
            for token in self._tokens:
                matcher.advance(token)
        return matcher._host.configuration(matcher._place)

    @property
    def num_tokens(self) -> int:
        """How many tokens have been taken, EOS among them."""
        return len(self._tokens)

    @property
    def is_accepting(self) -> bool:
        """Whether the sequence is complete as it stands; it may be possible to go on."""
        return self._host.ends(self._place)

    @property
    def is_finished(self) -> bool:
        """Whether the sequence is complete and nothing but EOS can follow."""
        if not self.is_accepting:
            return False
        host, mask = self._host, self.mask()
        at, eos = divmod(host.eos, 32)
        return int(np.bitwise_count(mask).sum()) == (host.eos >= 0 and int(mask[at]) >> eos & 1)

    @property
    def remaining(self) -> int | None:
        """How many more tokens may be written; None without `max_tokens`."""
        if self._max_tokens is None:
            return None
        return max(0, self._max_tokens - len(self._tokens))

    def mask(self) -> NDArray[np.uint32]:
        """Return the tokens allowed next, EOS included where accepting: uint32 (ceil(V / 32),).

        Bit i of word w is token 32 * w + i. The array is read-only and may be shared: copy it to change it.
        """
        if self._max_tokens is None:
            return self._host.mask(self._place)
        room = self._max_tokens - len(self._tokens)
        if room > self._host.farthest(self._place):
            return self._host.mask(self._place)
        return self._host.made(self._place, room)

    def advance(self, token: int) -> bool:
        """Take one more token and return True; False, with nothing changed, where it is not allowed.

        After EOS only EOS is allowed, again and again, as in a batch whose other rows go on.
        Raises TypeError unless token is an integer, ValueError unless it is in 0 .. V - 1.
        """
        host, place = self._host, self._place
        token = operator.index(token)
        if not 0 <= token < host.size:
            raise ValueError(f"token {token} is outside the vocabulary, 0 .. {host.size - 1}")
        following = host.step(place, token)
        if following == host.nowhere:
            return False
        if self._max_tokens is not None and token != host.eos:
            room = self._max_tokens - len(self._tokens) - 1
            if host.distance(following) > room:
                return False
        if host.parts:
            self._history += place
        else:
            self._history.append(place)
        self._tokens.append(token)
        self._place = following
        return True

    def accepts(self, tokens: Iterable[int]) -> bool:
        """Return whether the sequence would be complete after these tokens; the matcher stays as it is."""
        before = len(self._tokens)
        try:
            return all(self.advance(token) for token in tokens) and self.is_accepting
        finally:
            self.rollback(len(self._tokens) - before)

    def rollback(self, n: int) -> None:
        """Take back the last n tokens, EOS among them. Raises ValueError if there are not as many."""
        n = operator.index(n)
        if not 0 <= n <= len(self._tokens):
            raise ValueError(f"cannot take back {n} tokens: {len(self._tokens)} have been taken")
        if n:
            parts = self._host.parts
            first = len(self._history) - n * max(parts, 1)
            self._place = tuple(self._history[first : first + parts]) if parts else self._history[first]
            del self._history[first:]
            del self._tokens[-n:]

    def reset(self) -> None:
        """Go back to the start."""
        if isinstance(self._host, _LazyHost):
            self._host = _host(self._table, False)
        self._place = self._host.start()
        self._history.clear()
        self._tokens.clear()

    def copy(self) -> Matcher:
        """Return a matcher that stands where this one does and goes its own way from there."""
        twin = object.__new__(Matcher)
        twin._host, twin._table = self._host, self._table
        twin._vocabulary, twin._max_tokens = self._vocabulary, self._max_tokens
        twin._place, twin._history, twin._tokens = self._place, self._history.copy(), self._tokens.copy()
        return twin

    def __copy__(self) -> Matcher:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Matcher:
        return self.copy()  # tables do not change

    def __reduce__(self) -> Any:
        return _restored, (self.table, self._vocabulary, self._max_tokens, self._tokens)

    def __repr__(self) -> str:
        limit = "" if self._max_tokens is None else f", max_tokens={self._max_tokens}"
        state = "" if isinstance(self._host, _LazyHost) else f"state={self.state}, "
        return f"Matcher({state}num_tokens={self.num_tokens}{limit}, is_accepting={self.is_accepting})"

    # ------------------------------------------------------------------------------------------- jumping forward

    def forced_text(self) -> bytes:
        """Return the bytes that every match goes on with from here: b"" if there is a choice, or an end is possible.

        Raises ValueError without a vocabulary.
        """
        tokens = self._spelling().tokens
        host = self._host
        text = b""
        ahead = {(b"", self._place)}  # after `text`: the rest of a token that has begun in it, and where that leads
        while True:
            places = [place for rest, place in ahead if not rest]
            if any(host.ends(place) for place in places):
                return text
            begun = [(rest, place) for rest, place in ahead if rest]
            following = [(place, host.allowed(place)) for place in places]
            common = _shared_beginning(
                chain((rest for rest, _ in begun), (tokens[t] for _, allowed in following for t in allowed))
            )
            if not common:
                return text
            text += common
            n = len(common)
            ahead = {(rest[n:], place) for rest, place in begun}
            ahead |= {(tokens[t][n:], host.step(place, t)) for place, allowed in following for t in allowed.tolist()}

    def forced_tokens(self) -> list[int]:
        """Return the tokens by which the tokenizer writes what every match goes on with; they can be taken at once.

        The segmentation is the tokenizer's own, see `Vocabulary.encode`. Its last token is left out where the text
        after it is open: the tokenizer might have made one token of it and of what follows. The matcher does not move.
        Raises ValueError without a vocabulary.
        """
        text = _whole_characters(self.forced_text())
        if not text:
            return []
        vocabulary = self._spelling()
        try:
            tokens = vocabulary.encode(text)
        except ValueError:  # this much of the text cannot be written on its own
            return []
        ahead = self.copy()
        taken: list[int] = []
        for token in tokens:
            if not ahead.advance(token):
                break
            taken.append(token)
        if taken and not ahead.is_finished:
            taken.pop()
        return taken

    def _spelling(self) -> Any:
        if self._vocabulary is None:
            raise ValueError("jumping forward needs to know how tokens are spelt: Matcher(table, vocabulary)")
        return self._vocabulary


def _restored(table: Constraint, vocabulary: Spelling | None, max_tokens: int | None, tokens: list[int]) -> Matcher:
    """Return a matcher that stands where one did when it was pickled."""
    matcher = Matcher(table, vocabulary, max_tokens=max_tokens)
    for token in tokens:
        matcher.advance(token)
    return matcher


def _too_few(max_tokens: int, table: Constraint) -> str:
    """Return what is wrong with a number of tokens that no match is known to keep."""
    if not isinstance(table, SortedMatrix) and table.is_nested:  # whose distances are upper bounds
        return (
            f"max_tokens={max_tokens} cannot be promised: {table.min_length} tokens are known to be enough for a "
            "complete match, fewer may not be"
        )
    return (
        f"max_tokens={max_tokens} is less than the shortest match, {table.min_length} tokens: nothing could be complete"
    )


def _shared_beginning(texts: Iterator[bytes]) -> bytes:
    """Return the longest text that all begin with; of many that differ at once only the first few are looked at."""
    shared = next(texts)
    for text in texts:
        while not text.startswith(shared):
            shared = shared[:-1]
        if not shared:
            break
    return shared


def _whole_characters(text: bytes) -> bytes:
    """Return a text without the bytes at its end that only begin a UTF-8 character: no tokenizer splits such a text."""
    for cut in range(min(4, len(text))):
        try:
            text[: len(text) - cut].decode()
        except UnicodeDecodeError:
            continue
        return text[: len(text) - cut]
    return text
