"""An `Arena`: many tables in arrays of fixed size, so that one call serves a batch in which every row has its own.

Rows, sites and whatever else has a number are numbered anew on the way in. Masks, class lists and exit lists say
nothing about states, and what a table says is `common` leads only to itself: equal ones are there once, however many
tables have them. Adding and dropping change what arrays hold, never their shapes, so nothing that was compiled or
recorded for an arena has to be again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ArenaError, NoTableError, VocabularyMismatchError
from ...kernels.limits import UNREACHABLE as NEVER
from ...lazy.lazy_table import Compiled, LazyTable
from ...table.flat import grouped
from ...table.grouped import GroupedArrays
from ...table.groups import IntArray
from ...table.nested_distances import Distances
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from ..device.device_table import (
    CALL_ARRAYS,
    MOST_FRAMES,
    AnyState,
    DeviceCalls,
    DeviceTable,
    Made,
    check_table,
    most_pops,
)
from ..host.table_pointers import pointers_of
from .view import ArenaView, FrameLimits


@dataclass(frozen=True)
class Capacity:
    """How much an arena holds. What limits a device's memory: `Arena.nbytes` says what it comes to.

    The first group is shared by all tables; the defaults hold a thousand JSON schemas of everyday size. The second is
    the most that one state or one token of any table may have: gathers are as wide as these say.
    """

    states: int = 1 << 19
    edges: int = 3 << 21
    bases: int = 1 << 14
    base_targets: int = 1 << 18
    masks: int = 1024  # V bits each
    lists: int = 1 << 13  # of classes, and as many of exits
    classes: int = 3 << 20  # entries of the former
    exits: int = 1 << 16  # entries of the latter
    sites: int = 1 << 16
    site_entries: int = 1 << 20
    actions: int = 1 << 17
    pushes: int = 1 << 18
    row_width: int = 2048  # edges of a state
    class_width: int = 1 << 17  # entries of a class list
    exit_width: int = 512
    site_width: int = 512
    symbols: int = 1 << 13
    pops: int = 8  # frames that one token leaves
    depth: int = 64
    ends: int = 9  # ways to end that budgets tell apart

    def __post_init__(self) -> None:
        for limit in dataclasses.fields(self):
            value: Any = getattr(self, limit.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Capacity({limit.name}=...) must be an integer, not {type(value).__name__}")
            if not 1 <= value < 2**30:
                raise ValueError(f"Capacity({limit.name}={value}) must be from 1 to {2**30 - 1:,}")


class Stored(NamedTuple):
    """What an arena holds and has held."""

    tables: int
    held: int  # of these, such as somebody has a handle of
    evictions: int
    free: dict[str, int]  # of each shared capacity, how much is left


@dataclass(eq=False)
class Handle:
    """A table's place in an arena, until it is dropped."""

    arena: Arena
    start: int  # the state in which its sequences start
    table: TransitionTable
    dropped: bool = False


def starts_of(handles: Sequence[Handle], number: int) -> NDArray[np.int32]:
    """Return the states (B,) in which the sequences of handles start, of the arena of a number.

    Raises TypeError, ValueError.
    """
    if not number:
        raise TypeError("the tables of handles are in an arena: pass what put(arena) returns, not a table of its own")
    for handle in handles:
        if not isinstance(handle, Handle):
            raise TypeError(f"a Handle is needed, as Arena.add returns one, not a {type(handle).__name__}")
        handle.arena.check(handle)
        if handle.arena.number != number:
            raise ValueError("the handle is one of another arena")
    if not handles:
        raise ValueError("there are no handles: one for each row of a batch is needed")
    return np.array([handle.start for handle in handles], np.int32)


class VocabularyLike(Protocol):
    """What an arena needs to know of the vocabulary that all its tables are for: a `Vocabulary` has it."""

    @property
    def size(self) -> int:
        """The number of tokens."""

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""

    @property
    def fingerprint(self) -> str:
        """The name of the vocabulary."""


class Mirror(Protocol):
    """A copy of an arena's arrays on a device."""

    @property
    def dev(self) -> DeviceTable:
        """What operations take, as it is now."""

    def write(self, changes: list[tuple[str, int, NDArray[Any]]]) -> None:
        """Write values over part of each array: its name, where the part begins, what to write."""


class _Space:
    """Which parts of an array are free."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._starts, self._stops = [0], {0: size}  # of what is free, in order

    def take(self, count: int, above: int = 0) -> int:
        """Return where so many entries that were free begin, or -1: the first place where they fit.

        above: if positive, the last place instead, with no entry before this one.
        """
        if count == 0:
            return 0
        if above:
            return self._take_last(count, above)
        for at, start in enumerate(self._starts):
            stop = self._stops[start]
            if stop - start >= count:
                del self._stops[start]
                if stop - start == count:
                    del self._starts[at]
                else:
                    self._starts[at] = start + count
                    self._stops[start + count] = stop
                self.free -= count
                return start
        return -1

    def _take_last(self, count: int, above: int) -> int:
        for at in range(len(self._starts) - 1, -1, -1):
            start = self._starts[at]
            stop = self._stops[start]
            place = stop - count
            if place < above:  # all other places lie before this one
                return -1
            if place < start:
                continue
            if place == start:
                del self._starts[at], self._stops[start]
            else:
                self._stops[start] = place
            self.free -= count
            return place
        return -1

    def copy(self) -> _Space:
        """Return another one with the same free."""
        other = _Space(self.size)
        other.free, other._starts, other._stops = self.free, list(self._starts), dict(self._stops)
        return other

    def give(self, start: int, count: int) -> None:
        """Take entries back, and join them with what is free around them."""
        if count == 0:
            return
        self.free += count
        stop = start + count
        if stop in self._stops:
            after = self._stops.pop(stop)
            del self._starts[bisect_left(self._starts, stop)]
            stop = after
        at = bisect_left(self._starts, start)
        if at and self._stops[self._starts[at - 1]] == start:
            self._stops[self._starts[at - 1]] = stop
            return
        insort(self._starts, start)
        self._stops[start] = stop


@dataclass(eq=False)
class _Shared:
    """Something that several tables have: where it lies, and how many of them have it."""

    key: Any
    place: int
    parts: list[tuple[str, int, int]]  # spaces, and what is taken of them
    uses: int = 0


class _Places(NamedTuple):
    """Where a table lies: what it has in common with others, and what is its own, of each space."""

    common: dict[str, int]
    own: dict[str, int]


class _List(NamedTuple):
    """A mask, a class list or an exit list of a table: equal ones have equal keys."""

    key: Any
    kind: str
    spaces: dict[str, int]  # how much of each it needs
    arrays: tuple[NDArray[Any], ...]


@dataclass(eq=False)
class _Resident:
    """A table that is in the arena."""

    start: int
    parts: list[tuple[str, int, int]]
    shared: list[_Shared]
    table: TransitionTable
    most_frames_required: int
    most_pushes: int
    handles: int = 0


_numbers = itertools.count(1)


def starts_in(table: GroupedArrays) -> NDArray[np.int32]:
    """Return the states in which sequences start: (1,), or (B,) of an arena as `at` said, (0,) before it did."""
    return table.starts if isinstance(table, ArenaView) else np.zeros(1, np.int32)


class Arena:
    """Fixed arrays that any number of tables of one vocabulary share, as far as they fit: see `Capacity`.

    `add` gives a table a place and returns a `Handle`; `torch_ops.put` and `jax_ops.put` make the arena's arrays on a
    device, which stay the same while tables come and go, and every operation takes what they return as it takes one
    table. `at(handles)` says where the rows of a batch start. A table that is there already is not copied again; one
    that nobody holds a handle of stays until its room is needed, the one used least recently first.

    budgets: with the distances that `remaining` needs. vocabulary: a `Vocabulary`, or whatever has its size, eos and
    fingerprint. Sequences end by EOS here, so tables must have been compiled with the vocabulary's. Tries are taken as
    graphs, without their compact tails, at about 9 bytes a state. A trie lies above as many states as it has, so that
    none of its states here is also one of its own: `capacity.states` must be twice those of the largest trie.

    States belong to the arena, not to a table: `arena.input_rows(handles, states)` says which items they stand for, and
    `table.input_rows` refuses them.

    Any thread may add and drop. Raises ArenaError, TypeError, ValueError, VocabularyMismatchError.
    """

    def __init__(self, vocabulary: VocabularyLike, capacity: Capacity | None = None, *, budgets: bool = False) -> None:
        for name in ("size", "eos", "fingerprint"):
            if not hasattr(vocabulary, name):
                raise TypeError(f"an arena is made for a Vocabulary, not a {type(vocabulary).__name__}")
        if vocabulary.eos is None:
            raise ValueError("an arena needs a vocabulary with eos: nothing else ends sequences of different tables")
        self.capacity = cap = Capacity() if capacity is None else capacity
        self.budgets = budgets
        self.number = next(_numbers)  # unlike that of any other arena of this process
        self._spaces = {
            name: _Space(size)
            for name, size in (
                ("states", cap.states), ("edges", cap.edges), ("bases", cap.bases), ("base_targets", cap.base_targets),
                ("masks", cap.masks), ("class lists", 2 * cap.lists), ("exit lists", 2 * cap.lists),
                ("classes", cap.classes), ("exits", cap.exits), ("sites", cap.sites),
                ("site_entries", cap.site_entries),
                ("actions", cap.actions), ("pushes", cap.pushes),
            )
        }  # fmt: skip
        self._tables: OrderedDict[Any, _Resident] = OrderedDict()  # the one used least recently first
        self._lists: dict[Any, _Shared] = {}
        self._mirrors: dict[Any, Mirror] = {}
        self._changes: list[tuple[str, int, int]] = []  # of the table's arrays: name, first, one past the last
        self._lock = threading.RLock()
        self._evictions = 0
        self.releases = 0  # handles dropped so far: whoever waits for room need not ask again before there is another
        self.table = self._empty(vocabulary)

    def _empty(self, vocabulary: VocabularyLike) -> ArenaView:
        """Return arrays in which there is nothing yet."""
        cap, size = self.capacity, vocabulary.size
        kind = np.min_scalar_type(size + 1)

        def none(count: int) -> NDArray[np.int32]:
            return np.full(count, -1, np.int32)

        def zeros(count: int) -> NDArray[np.int32]:
            return np.zeros(count, np.int32)

        tokens = np.full(cap.edges + 2, size, kind)
        tokens[-1] = size + 1
        fields: dict[str, NDArray[Any]] = {
            "row_start": np.full(cap.states + 1, cap.edges, np.int32), "edge_token": tokens,
            "edge_target": np.full(cap.edges, cap.states + 1, np.int32),
            "accepting": np.zeros(cap.states, np.bool_), "base_row": none(cap.states),
            "masks": np.zeros((cap.masks, -(-size // 32)), np.uint32), "base_mask": zeros(cap.bases),
            "base_classes": zeros(cap.bases), "base_start": zeros(cap.bases + 1),
            "base_target": zeros(cap.base_targets),
            "class_start": zeros(2 * cap.lists + 1), "class_token": np.zeros(cap.classes, kind),
            "class_id": zeros(cap.classes), "level_start": np.empty(0, np.int64), "item_start": zeros(1),
            "item_row": zeros(0), "action_state": zeros(cap.actions), "action_start": zeros(cap.actions + 1),
            "action_push": zeros(cap.pushes), "row_exit": none(cap.states), "base_exit": none(cap.bases),
            "exit_start": zeros(2 * cap.lists + 1), "exit_token": np.zeros(cap.exits, kind),
            "exit_symbol": zeros(cap.exits), "site_start": zeros(cap.sites + 1), "site_symbol": zeros(cap.site_entries),
            "site_target": zeros(cap.site_entries), "base_push": none(cap.states), "symbol_label": zeros(cap.symbols),
            "site_leaf": np.zeros(cap.sites, np.bool_), "site_need": zeros(cap.sites), "state_need": zeros(0),
            "_code_need": zeros(cap.states + 2 + cap.actions),
        }  # fmt: skip
        codes, ends = cap.states + 2 + cap.actions, cap.ends
        with_budgets = {
            "code": np.full((codes, ends), NEVER, np.int64), "site": np.full((cap.sites, ends, ends), NEVER, np.int64),
            "farthest": np.full((0, ends), NEVER, np.int64),
            "code_room": np.zeros((codes if ends > 1 else 0, ends), np.int64),
            "site_room": np.zeros((cap.sites if ends > 1 else 0, ends, ends), np.int64),
        }  # fmt: skip
        self._arrays = fields | {name: with_budgets[at] for name, at in _BY_DISTANCE.items()}
        by_end = None
        if self.budgets:
            with_budgets["code"][cap.states] = 0  # after EOS nothing need follow
            by_end = Distances(**{name: _shown(array) for name, array in with_budgets.items()})
        # kernels are compiled for arrays that nobody writes to; numpy asks for the needs of states alone
        shown = {name: _shown(array) for name, array in self._arrays.items() if name in fields}
        shown["state_need"] = _shown(self._arrays["_code_need"][: cap.states])
        return ArenaView(
            grouped(shown), size, cast(int, vocabulary.eos), vocabulary.fingerprint, cap.depth, self.number,
            shown["_code_need"], FrameLimits(), by_end,
        )  # fmt: skip

    # -------------------------------------------------------------------------------------------- what is there

    @property
    def stored(self) -> Stored:
        """What is there, and how much room is left."""
        with self._lock:
            held = sum(1 for resident in self._tables.values() if resident.handles)
            free = {name: space.free for name, space in self._spaces.items()}
            return Stored(len(self._tables), held, self._evictions, free)

    @property
    def nbytes(self) -> int:
        """Bytes of the arena's arrays on a device."""
        return sum(array.nbytes for array in self.device_arrays().values())

    def add(self, table: Compiled) -> Handle:
        """Give a table a place, or find the one it has, and return a handle; the table stays until it is dropped.

        A lazy table is worked out first. Raises ArenaError where there is no room, or never would be, with what to do,
        and for a grammar that has no finite table; VocabularyMismatchError for a table of another vocabulary;
        BudgetError; TypeError.
        """
        self._check_vocabulary(table)
        _check_finite(table)
        key = _key_of(table)
        with self._lock:
            resident = self._tables.get(key)
            if resident is None:
                resident = self._place(key, table.to_table())
            self._tables.move_to_end(key)
            resident.handles += 1
            return Handle(self, resident.start, resident.table)

    def fits(self, table: Compiled) -> None:
        """Raise unless there would be room for a table if nothing else were there: the errors of `add`.

        A lazy table is worked out first.
        """
        self._check_vocabulary(table)
        _check_finite(table)
        with self._lock:
            if _key_of(table) not in self._tables:
                self._checked(table.to_table())

    def _check_vocabulary(self, table: Compiled) -> None:
        check_held(table)
        host = self.table
        if (table.vocabulary, table.vocab_size) != (host.vocabulary, host.vocab_size):
            raise VocabularyMismatchError(
                f"the table was compiled for vocabulary {table.vocabulary} of {table.vocab_size:,} tokens, the arena "
                f"is for {host.vocabulary} of {host.vocab_size:,}: compile it with the arena's"
            )
        if table.eos != host.eos:
            raise ArenaError(
                f"the table has eos {table.eos}, the arena {host.eos}, by which all its sequences end: compile it with "
                f"eos={host.eos}"
            )

    def drop(self, handle: Handle) -> None:
        """Let go of a handle: once for each `add`. States of its sequences mean nothing any more from then on.

        Raises ValueError for a handle of another arena, or one that was dropped before.
        """
        with self._lock:
            self.check(handle)
            handle.dropped = True
            self.releases += 1
            self._tables[_key_of(handle.table)].handles -= 1

    def check(self, handle: Handle) -> None:
        """Raise unless a handle is one of this arena's, and not dropped: TypeError, ValueError."""
        if not isinstance(handle, Handle):
            raise TypeError(f"a Handle is needed, as add returns one, not a {type(handle).__name__}")
        if handle.arena is not self:
            raise ValueError("the handle is one of another arena")
        if handle.dropped:
            raise ValueError("the handle was dropped before: add the table again for another one")

    def input_rows(self, handles: Handle | Sequence[Handle], states: ArrayLike | AnyState) -> list[IntArray]:
        """Return the input rows that each final state (N,) of the arena stands for; an empty array for any other state.

        handles: one for all states, or H of them, as `at` takes them: N / H states in a row belong to each.
        states: those that a decoder returns, or a state of the operations. As with `TransitionTable.input_rows`, ask
        for the state before EOS. A table that is no trie has no input rows.

        Raises ValueError for a state that is not one of its handle's table, for a dropped handle and for numbers that
        do not match; TypeError.
        """
        listed = [handles] if isinstance(handles, Handle) else list(handles)
        array = np.asarray(getattr(states, "node", states))
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(
                f"states must be integers (N,), not {array.dtype} {array.shape}: of a batch of beams, pass those of "
                "one element at a time, or all of them with reshape(-1)"
            )
        if not listed or array.size % len(listed):
            raise ValueError(
                f"there are {len(listed)} handles for {array.size} states: one for all is needed, or as many states "
                "for each of them"
            )
        each = array.size // len(listed)
        out: list[IntArray] = []
        with self._lock:
            for at, handle in enumerate(listed):
                self.check(handle)
                out += self._input_rows(handle, array[at * each : (at + 1) * each].astype(np.int64), at * each)
        return out

    def _input_rows(self, handle: Handle, states: NDArray[np.int64], first: int) -> list[IntArray]:
        """Return the input rows of states of a handle's table; `first`: which of the batch's states comes first."""
        resident, table, size = self._tables[_key_of(handle.table)], handle.table, self.capacity.states
        own, known = states - resident.start, (states == size) | (states == size + 1)
        places = [(start, count) for name, start, count in resident.parts if name == "states"]
        places += [part[1:] for one in resident.shared for part in one.parts if part[0] == "states"]
        stray = ~known
        for start, count in places:
            stray &= (states < start) | (states >= start + count - 1)  # one more marks where the last state's edges end
        if stray.any():
            at = int(stray.argmax())
            raise ValueError(
                f"states[{at + first}] is {states[at]}, which is not a state of its handle's table: its "
                "sequence belongs to another handle, or the state comes from a table put by itself, whose own "
                "input_rows takes it"
            )
        if not table.is_trie:
            return [table.item_row[:0]] * states.size
        return table.input_rows(np.where(known, states - size + table.after_eos, own))

    # ---------------------------------------------------------------------------------------------- coming in

    def _place(self, key: Any, table: TransitionTable) -> _Resident:
        """Copy a table into the arena, making room for it."""
        graph, needs = self._checked(table)
        may_fit = False
        while True:
            taken: list[tuple[str, int, int]] = []
            shared: list[_Shared] = []
            written = len(self._changes)
            try:
                own = {name: self._take(name, count, taken, _above(table, name)) for name, count in needs.items()}
                lists = self._share_lists(graph, shared)
                at = _Places(self._share_common(graph, lists, shared), own)
                self._write(graph, at, lists, own=True)
                self._publish()
                break
            except BaseException as error:
                self._release(taken, shared)
                del self._changes[written:]  # where there is nothing any more
                if not isinstance(error, ArenaError):
                    raise
                if not may_fit:  # once: what nobody holds goes in vain where what is held lies in between
                    may_fit = self._may_fit(graph, needs, _above(table, "states"))
                if not may_fit or not self._evict():
                    raise
        most_frames_required = most_pushes = 0
        if graph.is_nested:
            most_frames_required = graph.most_frames_required + (
                self._more_room(graph) if graph.most_frames_required else 0
            )
            most_pushes = graph.most_pushes
        resident = _Resident(own["states"], taken, shared, table, most_frames_required, max(1, most_pushes))
        self._tables[key] = resident
        self._bound()
        return resident

    def _checked(self, table: TransitionTable) -> tuple[TransitionTable, dict[str, int]]:
        """Return a table as a graph, and how much of each space is its own; ArenaError if it can never have that."""
        graph = _as_graph(table)
        self._check_widths(graph)
        own = _needs(graph, own=True)
        common = _needs(graph, own=False) if graph.common.rows else {}
        parts = [own, common, *(spaces for spaces in _wanted(graph).values())]
        for name, space in self._spaces.items():
            count, above = sum(part.get(name, 0) for part in parts), _above(table, name)
            if count + above > space.size:
                raise self._no_room(name, count, above)
        return graph, own

    def _no_room(self, name: str, count: int, above: int = 0) -> ArenaError:
        """Return the error for so many of something that are not there, behind the first `above`."""
        space, held = self._spaces[name], sum(1 for resident in self._tables.values() if resident.handles)
        option = {"class lists": "lists", "exit lists": "lists"}.get(name, name)
        why = (
            f"it has {space.size:,} in all" if count + above > space.size
            else f"{space.free:,} of {space.size:,} are free, {held} tables are held"
        )  # fmt: skip
        where = f" behind the first {above:,}, the numbers of the table's own states" if above else ""
        return ArenaError(
            f"the arena has no room for {count:,} {name} in a row{where}: {why}. Drop handles, or make it with a "
            f"larger Capacity({option}=...)"
        )

    def _check_widths(self, table: TransitionTable) -> None:
        """Raise ArenaError where something of a table is wider than the arena's arrays are read."""
        cap = self.capacity

        def most(starts: NDArray[Any]) -> int:
            return int(np.diff(starts).max(initial=0))

        ends = table.distances.code.shape[1] if self.budgets and table.is_nested else 1
        widths = {
            "row_width": (most(table.row_start), "edges in one state"),
            "class_width": (most(table.class_start), "entries in one class list"),
            "exit_width": (most(table.exit_start), "exits in one list"),
            "site_width": (most(table.site_start), "entries at one site"),
            "symbols": (table.num_symbols, "symbols"),
            "pops": (most_pops(table) if table.is_nested else 0, "frames that one token leaves"),
            "depth": (table.depth, "frames of depth"),
            "ends": (ends, "ways to end that a budget has to tell apart"),
        }
        for name, (count, what) in widths.items():
            if count > getattr(cap, name):
                raise ArenaError(
                    f"the table has {count:,} {what}, the arena was made for {getattr(cap, name):,}: make it with "
                    f"Capacity({name}={count})"
                )

    def _take(self, name: str, count: int, taken: list[tuple[str, int, int]], above: int = 0) -> int:
        space = self._spaces[name]
        start = space.take(count, above)
        if start < 0:
            raise self._no_room(name, count, above)
        taken.append((name, start, count))
        return start

    def _release(self, taken: list[tuple[str, int, int]], shared: list[_Shared]) -> None:
        for name, start, count in taken:
            self._spaces[name].give(start, count)
        for one in shared:
            one.uses -= 1
            if not one.uses:
                del self._lists[one.key]
                for name, start, count in one.parts:
                    self._spaces[name].give(start, count)

    def _evict(self) -> bool:
        """Take out the table used least recently that nobody holds; False if there is none."""
        for key, resident in self._tables.items():
            if not resident.handles:
                del self._tables[key]
                self._release(resident.parts, resident.shared)
                self._evictions += 1
                return True
        return False

    def _may_fit(self, table: TransitionTable, needs: dict[str, int], above: int) -> bool:
        """Return whether there would be room for a table if all went that nobody holds; above: as of its states."""
        spaces = {name: space.copy() for name, space in self._spaces.items()}
        uses = {key: shared.uses for key, shared in self._lists.items()}

        def give(parts: list[tuple[str, int, int]]) -> None:
            for name, start, count in parts:
                spaces[name].give(start, count)

        for resident in self._tables.values():
            if not resident.handles:
                give(resident.parts)
                for shared in resident.shared:
                    uses[shared.key] -= 1
                    if not uses[shared.key]:
                        give(shared.parts)
        left = {key: shared for key, shared in self._lists.items() if uses[key]}
        # in the order of `_place`, on which it depends what finds room
        wanted: dict[Any, dict[str, int]] = {"own": needs}
        wanted |= {key: need for key, need in _wanted(table).items() if key not in left}
        if table.common.rows:
            lists = {  # nothing that is there has one at -2
                kind: np.array([left[one.key].place if one.key in left else -2 for one in every], np.int32)
                for kind, every in _listed(table).items()
            }
            common = self._common_key(table, lists)
            if common not in left:
                wanted[common] = _needs(table, own=False)
        return all(
            spaces[name].take(count, above if key == "own" and name == "states" else 0) >= 0
            for key, each in wanted.items()
            for name, count in each.items()
        )

    def _share(
        self, key: Any, spaces: dict[str, int], write: Callable[[dict[str, int]], Any], shared: list[_Shared]
    ) -> Any:
        """Return the place of what several tables have, where `write` writes it if it is not there."""
        found = self._lists.get(key)
        if found is None:
            taken: list[tuple[str, int, int]] = []
            try:
                place = write({name: self._take(name, count, taken) for name, count in spaces.items()})
            except BaseException:
                self._release(taken, [])
                raise
            found = self._lists[key] = _Shared(key, place, taken)
        found.uses += 1
        shared.append(found)
        return found.place

    def _share_lists(self, table: TransitionTable, shared: list[_Shared]) -> dict[str, NDArray[np.int32]]:
        """Return where a table's masks and lists are, once they are there."""
        return {
            kind: np.array(
                [self._share(one.key, one.spaces, partial(self._write_list, one), shared) for one in lists], np.int32
            )
            for kind, lists in _listed(table).items()
        }

    def _share_common(
        self, table: TransitionTable, lists: dict[str, NDArray[np.int32]], shared: list[_Shared]
    ) -> dict[str, int]:
        """Return where what a table has in common with others is, once it is there."""

        def write(at: dict[str, int]) -> dict[str, int]:
            self._write(table, _Places(at, at), lists, own=False)
            return at

        if not table.common.rows:
            return dict.fromkeys(self._spaces, 0)
        found: dict[str, int] = self._share(self._common_key(table, lists), _needs(table, own=False), write, shared)
        return found

    def _common_key(self, table: TransitionTable, lists: dict[str, NDArray[np.int32]]) -> Any:
        """Return what equal common parts have as key, whose masks and lists are the same ones."""
        nowhere = dict.fromkeys(self._spaces, 0)
        digest = hashlib.blake2b()
        for name, start, values in self._numbered(table, _Places(nowhere, nowhere), lists, own=False):
            digest.update(f"{name} {start} {values.dtype.str} {values.shape};".encode())
            digest.update(np.ascontiguousarray(values).view(np.uint8).data if values.size else b"")
        return "common", digest.digest()

    def _write_list(self, one: _List, at: dict[str, int]) -> int:
        """Write a mask or a list where there is room for it, and return its number."""
        if one.kind == "masks":
            self._set("masks", at["masks"], one.arrays[0][None])
            return at["masks"]
        (lists, entries), (start, *arrays) = one.spaces, _ARRAYS_OF[one.kind]
        first = at[entries]
        for name, values in zip(arrays, one.arrays, strict=True):
            self._set(name, first, values.astype(self._arrays[name].dtype))
        self._set(start, at[lists], np.array([first, first + one.arrays[0].size], np.int32))
        return at[lists]

    def _write(self, table: TransitionTable, at: _Places, lists: dict[str, NDArray[np.int32]], *, own: bool) -> None:
        """Write what is a table's own, or what it has in common with others, numbered anew."""
        for name, start, values in self._numbered(table, at, lists, own=own):
            self._set(name, start, values)

    def _more_room(self, table: TransitionTable) -> int:
        """Return how much more room than it says all of a table needs that needs any.

        That is where it can run out, and less depth was meant for it than the arena has.
        """
        return self.capacity.depth - table.depth if table.state_need.size or table.site_need.size else 0

    def _numbered(
        self, table: TransitionTable, at: _Places, lists: dict[str, NDArray[np.int32]], *, own: bool
    ) -> Iterator[tuple[str, int, NDArray[Any]]]:
        """Yield what to write where: the array's name, where it begins, and values numbered by places."""
        t, cap, common = table, self.capacity, table.common
        here = at.own if own else at.common
        rows, over = t.num_rows, self._more_room(t)

        def part(values: NDArray[Any], first: int, stop: int) -> NDArray[Any]:
            """Return what is common of values, first .. stop, or all but that."""
            return np.concatenate((values[:first], values[stop:])) if own else values[first:stop]

        def starts(start: NDArray[Any], first: int, stop: int, space: str) -> NDArray[np.int64]:
            return here[space] + np.cumsum(np.concatenate(([0], part(np.diff(start), first, stop))))

        def moved(ids: NDArray[Any], space: str, count: int) -> NDArray[np.int64]:
            """Return where something is of which the first are common; below 0 is none."""
            return np.where(ids < 0, -1, ids + np.where(ids < count, at.common[space], at.own[space] - count))

        # where each code leads: states, the start before the others of the table's own, the two behind them, actions
        states = np.arange(at.own["states"] - common.rows, at.own["states"] - common.rows + rows)
        states[0], states[1 : common.rows + 1] = at.own["states"], at.common["states"] + np.arange(common.rows)
        actions = cap.states + 2 + moved(np.arange(t.num_actions), "actions", common.actions)
        place = np.concatenate((states, [cap.states, cap.states + 1], actions)).astype(np.int32)

        def coded(codes: NDArray[Any]) -> NDArray[np.int32]:
            """Return codes that are states, the two behind them, or actions; below 0 are symbols, which stay."""
            return np.where(codes < 0, codes, place[np.maximum(codes, 0)])

        def listed(ids: NDArray[np.int32], kind: str, count: int) -> NDArray[np.int32]:
            if not ids.size:
                return np.full(count, -1, np.int32)
            places = lists[kind]
            return np.where(ids < 0, -1, places[np.maximum(ids, 0)] if places.size else -1).astype(np.int32)

        by_row = 1, common.rows + 1
        by_edge = int(t.row_start[by_row[0]]), int(t.row_start[by_row[1]])
        first, edges, bases, site, action = (here[n] for n in ("states", "edges", "bases", "sites", "actions"))
        yield "row_start", first, starts(t.row_start, *by_row, "edges")
        yield "edge_token", edges, part(t.edge_token[: t.num_edges], *by_edge)
        yield "edge_target", edges, place[part(t.edge_target, *by_edge)]
        yield "accepting", first, part(t.accepting, *by_row)
        yield "base_row", first, moved(part(t.base_row, *by_row), "bases", common.bases)
        yield "row_exit", first, part(listed(t.row_exit, "exits", rows), *by_row)
        pushed = t.base_push if t.base_push.size else np.full(rows, -1, np.int32)
        yield "base_push", first, moved(part(pushed, *by_row), "sites", common.sites)
        by_base, by_target = (0, common.bases), (0, int(t.base_start[common.bases]))
        yield "base_start", bases, starts(t.base_start, *by_base, "base_targets")
        if t.base_mask.size:
            yield "base_mask", bases, lists["masks"][part(t.base_mask, *by_base)]
            yield "base_classes", bases, lists["classes"][part(t.base_classes, *by_base)]
            yield "base_exit", bases, part(listed(t.base_exit, "exits", t.base_mask.size), *by_base)
            code = part(t.base_target, *by_target).astype(np.int64)
            to = code >> 1
            known = np.where((to >= 0) & (to < rows), states[to.clip(0, rows - 1)], cap.states + 1)
            yield "base_target", here["base_targets"], np.where(code & 1, code, known << 1).astype(np.int32)
        code_frames_required = t.code_frames_required if t.is_nested else np.zeros(rows + 2, np.int32)
        code_frames_required = np.where(code_frames_required > 0, code_frames_required + over, 0).astype(np.int32)
        yield "_code_need", first, part(code_frames_required[:rows], *by_row)
        by_site, by_action = (0, common.sites), (0, common.actions)
        if t.is_nested:
            by_entry, by_push = (0, int(t.site_start[common.sites])), (0, int(t.action_start[common.actions]))
            need = np.maximum(~t.site_leaf, t.site_need if t.site_need.size else 0)
            yield "_code_need", cap.states + 2 + action, part(code_frames_required[rows + 2 :], *by_action)
            yield "site_start", site, starts(t.site_start, *by_site, "site_entries")
            yield "site_symbol", here["site_entries"], part(t.site_symbol, *by_entry)
            yield "site_target", here["site_entries"], coded(part(t.site_target, *by_entry))
            yield "site_leaf", site, part(t.site_leaf, *by_site)
            yield "site_need", site, part(np.where(need > 0, need + over, 0).astype(np.int32), *by_site)
            yield "action_state", action, states[part(t.action_state, *by_action)]
            yield "action_start", action, starts(t.action_start, *by_action, "pushes")
            yield "action_push", here["pushes"], moved(part(t.action_push, *by_push), "sites", common.sites)
        if self.budgets:
            for name, values in self._distances(t, over).items():
                if name.startswith("site"):
                    yield name, site, part(values, *by_site)
                else:  # of rows, the two behind them, and actions
                    yield name, first, part(values[:rows], *by_row)
                    yield name, cap.states + 2 + action, part(values[rows + 2 :], *by_action)

    def _distances(self, table: TransitionTable, over: int) -> dict[str, NDArray[np.int64]]:
        """Return a table's distances for as many ends as the arena tells apart; over: as much more room they need."""
        cap = self.capacity
        if table.is_nested:
            found = table.distances
            code, at_site, code_room, site_room = found.code, found.site, found.code_room, found.site_room
        else:
            code = table.distance.astype(np.int64)[:, None]
            at_site, site_room = np.zeros((0, 1, 1), np.int64), np.zeros((0, 1, 1), np.int64)
            code_room = np.zeros((0, 1), np.int64)

        def wide(values: NDArray[np.int64], fill: int) -> NDArray[np.int64]:
            shape = (len(values), *(cap.ends for _ in values.shape[1:]))
            out = np.full(shape, fill, np.int64)
            out[tuple(slice(size) for size in values.shape)] = values
            return out

        out = {"code_distance": wide(code, NEVER), "site_distance": wide(at_site, NEVER)}
        if cap.ends > 1:  # what has no room to say needs none
            code_room, site_room = (np.where((r > 0) & (r < NEVER), r + over, r) for r in (code_room, site_room))
            out["code_room"] = wide(code_room if code_room.size else np.zeros_like(code), 0)
            out["site_room"] = wide(site_room if site_room.size else np.zeros_like(at_site), 0)
        return out

    def _set(self, name: str, start: int, values: NDArray[Any]) -> None:
        """Write values over part of one of the arena's own arrays."""
        if not len(values):
            return
        self._arrays[name][start : start + len(values)] = values
        self._changes.append((name, start, start + len(values)))

    def _bound(self) -> None:
        """Note how much room the tables that are there may need."""
        tables, limits = self._tables.values(), self.table.limits
        limits.most_required = max((each.most_frames_required for each in tables), default=0)
        limits.most_pushes = max((each.most_pushes for each in tables), default=1)
        pointers_of(self.table).set_most(limits.most_required, limits.most_pushes)

    # ---------------------------------------------------------------------------------------------- on a device

    @property
    def by_ends(self) -> frozenset[str]:
        """Arrays on a device whose axis along which tables come in is to be the last: see `device_arrays`."""
        return frozenset(_BY_ENDS.values()) if self.budgets and self.capacity.ends > 1 else frozenset()

    def check_budgets(self, budgets: bool) -> None:
        """Raise ValueError where distances are asked for that an arena has not."""
        if budgets and not self.budgets:
            raise ValueError("this arena has no distances: make it with Arena(..., budgets=True)")

    def mirror(self, where: Any, make: Callable[[], Mirror]) -> DeviceTable:
        """Return the arena's arrays on a device as they are now, a copy that `make` makes the first time."""
        with self._lock:
            if where not in self._mirrors:
                self._mirrors[where] = make()
            return self._mirrors[where].dev

    def _publish(self) -> None:
        """Tell all copies on devices what has changed."""
        changes = [part for name, start, stop in self._changes for part in self._on_device(name, start, stop)]
        self._changes.clear()
        for mirror in self._mirrors.values():
            mirror.write(changes)

    def _on_device(self, name: str, start: int, stop: int) -> Iterator[tuple[str, int, NDArray[Any]]]:
        """Yield what part of one of the arena's own arrays is on a device: (array, where it begins, values)."""
        cap = self.capacity
        part = self._arrays[name][start:stop]
        if name == "masks":
            size = 8 * -(-self.table.vocab_size // 64)
            out = np.zeros((stop - start, size), np.uint8)
            words = np.ascontiguousarray(part, "<u4").view(np.uint8)
            out[:, : words.shape[1]] = words[:, :size]
            yield name, start, out
        elif name in ("row_exit", "base_exit"):
            yield name, start, np.where(part < 0, 2 * cap.lists, part)
        elif name == "base_row":
            yield name, start, np.where(part < 0, cap.bases, part)
        elif name == "site_leaf":
            yield "site_frames", start, (~part).astype(np.int32)
        elif name == "site_need":
            yield "site_room", start, part
        elif name in ("action_state", "action_start"):
            if name == "action_start" and start == 0:  # what is no action is read as one before them, without pushes
                yield name, 0, part[:1]
            yield name, start + 1, part
        elif name == "_code_need":
            before = max(0, cap.states + 2 - start)  # states, then actions
            if before:
                yield "state_room", start, part[:before]
            if len(part) > before:
                yield "action_room", start + before - cap.states - 1, part[before:]
        elif name in _BY_DISTANCE:
            last = part.astype(np.int32) if not name.endswith("room") else part.clip(max=MOST_FRAMES).astype(np.int32)
            if cap.ends == 1:
                yield {"code_distance": "distance"}.get(name, name), start, last.reshape(len(last))
            else:
                yield _BY_ENDS[name], start, last
        else:
            yield name, start, part

    def device_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays as they are on a device now, of shapes that never change.

        Where ends are told apart, the axis along which tables come in is the first, as `Mirror.write` has it.
        """
        cap, table = self.capacity, self.table
        size, kind = table.vocab_size, table.edge_token.dtype

        def room(count: int) -> NDArray[np.int32]:
            return np.zeros(count, np.int32)

        out: dict[str, NDArray[Any]] = {
            "row_start": room(cap.states + 1), "edge_token": np.full(cap.edges + 2 + cap.row_width, size, kind),
            "edge_target": room(cap.edges), "accepting": np.zeros(cap.states, np.bool_),
            "base_row": np.full(cap.states + 1, cap.bases, np.int32),
            "masks": np.zeros((cap.masks + 1, 8 * -(-size // 64)), np.uint8), "rank": np.zeros((1, 1), np.int32),
            "base_mask": np.full(cap.bases + 1, cap.masks, np.int32),
            "base_classes": np.full(cap.bases + 1, 2 * cap.lists, np.int32), "base_start": room(cap.bases + 1),
            "base_target": room(cap.base_targets + 1), "class_start": room(2 * cap.lists + 2),
            "class_token": np.full(cap.classes + cap.class_width + 1, size, kind),
            "class_id": room(cap.classes + cap.class_width + 1), "distance": room(0), "starts": room(0),
            "row_exit": np.full(cap.states + 1, 2 * cap.lists, np.int32),
            "base_exit": np.full(cap.bases + 1, 2 * cap.lists, np.int32), "exit_start": room(2 * cap.lists + 2),
            "exit_token": np.zeros(cap.exits + cap.exit_width + 1, kind),
            "exit_symbol": room(cap.exits + cap.exit_width + 1), "base_push": np.full(cap.states + 1, -1, np.int32),
            "site_start": room(cap.sites + 2), "site_symbol": room(cap.site_entries + 1),
            "site_target": np.full(cap.site_entries + 1, table.dead, np.int32), "site_frames": room(cap.sites + 1),
            "site_room": room(cap.sites + 1), "site_distance": room(0), "end_distance": room(0),
            "distance_room": room(0), "site_distance_room": room(0), "action_state": room(cap.actions + 1),
            "action_start": room(cap.actions + 2), "action_push": room(cap.pushes),
            "action_room": room(cap.actions + 1), "state_room": room(cap.states + 2),
        }  # fmt: skip
        if self.budgets:
            codes, ends = cap.states + 2 + cap.actions, cap.ends
            if ends == 1:
                out |= {"distance": room(codes), "site_distance": room(cap.sites + 1)}
            else:
                out |= {
                    "distance": np.zeros((codes, ends), np.int32),
                    "end_distance": np.zeros((cap.sites + 1, ends, ends), np.int32),
                    "distance_room": np.zeros((codes, ends), np.int32),
                    "site_distance_room": np.zeros((cap.sites + 1, ends, ends), np.int32),
                }
        distances = (*_BY_DISTANCE,)[: 4 if cap.ends > 1 else 2] if self.budgets else ()
        for name in _OWN + distances:
            for device, start, values in self._on_device(name, 0, len(self._arrays[name])):
                out[device][start : start + len(values)] = values
        return out

    def on_device(
        self, convert: Callable[[str, NDArray[Any]], Any], kind: type[Made], host: bool, **more: NDArray[Any]
    ) -> Made:
        """Return the arena as a `kind` of device table; each array goes through convert(name, array).

        host: operations may run on the host.
        """
        cap, table = self.capacity, self.table
        arrays = {name: convert(name, array) for name, array in {**self.device_arrays(), **more}.items()}
        calls = DeviceCalls(
            **{name: arrays.pop(name) for name in CALL_ARRAYS}, depth=cap.depth, slots=cap.depth + 1,
            symbols=cap.symbols, exit_width=cap.exit_width, site_width=cap.site_width, pops=cap.pops,
        )  # fmt: skip
        return kind(
            **arrays, calls=calls, vocab_size=table.vocab_size, num_rows=cap.states, num_edges=cap.edges,
            num_states=cap.states + 2, eos=table.eos, fixed_length=None, min_length=0, max_length=None, levels=(),
            sparse_width=cap.row_width, class_width=cap.class_width, has_masks=True, is_trie=False,
            start_accepting=True, host=table if host else None, arena=self.number,
        )  # fmt: skip


_OWN = (
    "row_start", "edge_token", "edge_target", "accepting", "base_row", "masks", "base_mask", "base_classes",
    "base_start", "base_target", "class_start", "class_token", "class_id", "row_exit", "base_exit", "exit_start",
    "exit_token", "exit_symbol", "base_push", "site_start", "site_symbol", "site_target", "site_leaf", "site_need",
    "action_state", "action_start", "action_push", "_code_need",
)  # fmt: skip
_BY_DISTANCE = {"code_distance": "code", "site_distance": "site", "code_room": "code_room", "site_room": "site_room"}
_BY_ENDS = {
    "code_distance": "distance", "site_distance": "end_distance", "code_room": "distance_room",
    "site_room": "site_distance_room",
}  # fmt: skip


_ARRAYS_OF = {
    "classes": ("class_start", "class_token", "class_id"), "exits": ("exit_start", "exit_token", "exit_symbol"),
}  # fmt: skip


def _listed(table: TransitionTable) -> dict[str, list[_List]]:
    """Return a graph's masks, class lists and exit lists."""

    def lists(kind: str, space: str, start: NDArray[Any], tokens: NDArray[Any], names: NDArray[Any]) -> list[_List]:
        parts = [(tokens[first:stop], names[first:stop]) for first, stop in itertools.pairwise(start.tolist())]
        return [
            _List((kind, own.astype(np.int64).tobytes(), name.tobytes()), kind, {space: 2, kind: own.size}, (own, name))
            for own, name in parts
        ]

    t = table
    masks = [] if t.is_trie else [_List(("mask", row.tobytes()), "masks", {"masks": 1}, (row,)) for row in t.masks]
    return {
        "masks": masks, "classes": lists("classes", "class lists", t.class_start, t.class_token, t.class_id),
        "exits": lists("exits", "exit lists", t.exit_start, t.exit_token, t.exit_symbol),
    }  # fmt: skip


def _needs(table: TransitionTable, *, own: bool) -> dict[str, int]:
    """Return how much of each space a graph's own part needs, or what it has in common with others."""
    t, common = table, table.common
    shared = {
        "states": common.rows, "edges": int(t.row_start[common.rows + 1] - t.row_start[1]), "bases": common.bases,
        "base_targets": int(t.base_start[common.bases]), "sites": common.sites,
        "site_entries": int(t.site_start[common.sites]), "actions": common.actions,
        "pushes": int(t.action_start[common.actions]),
    }  # fmt: skip
    whole = {
        "states": t.num_rows, "edges": t.num_edges, "bases": t.base_mask.size, "base_targets": t.base_target.size,
        "sites": t.num_sites, "site_entries": t.site_symbol.size, "actions": t.num_actions,
        "pushes": t.action_push.size,
    }  # fmt: skip
    needed = {name: whole[name] - shared[name] for name in whole} if own else shared
    # what has a start for each of its own has one more behind them
    return {name: count + (name in ("states", "bases", "sites", "actions")) for name, count in needed.items()}


def _wanted(table: TransitionTable) -> dict[Any, dict[str, int]]:
    """Return how much of each space a graph's masks and lists need, by their keys: equal ones are one."""
    return {one.key: one.spaces for every in _listed(table).values() for one in every}


def check_held(table: Any) -> None:
    """Raise TypeError unless this is a table, as all in an arena are."""
    if isinstance(table, SortedMatrix):
        raise TypeError(
            "an Arena holds tables, not a SortedMatrix: compile the rows with compile_sids, or put the matrix by "
            "itself, ops.put(matrix)"
        )
    check_table(table)


def _check_finite(table: Compiled) -> None:
    """Work out a lazy table; ArenaError where there is none."""
    if isinstance(table, LazyTable):
        try:
            table.to_table()
        except NoTableError as error:
            raise ArenaError(
                "an arena holds arrays, and this grammar has no finite table: put it by itself, ops.put(table), or "
                "give it to an Engine, which does not put it into its arena"
            ) from error


def _key_of(table: Compiled) -> Any:
    """Return what tables that allow the same are known by."""
    return (table.source, table.depth) if table.source else id(table)


def _shown(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that shows another and cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def _above(table: TransitionTable, space: str) -> int:
    """Return behind how many entries of a space a table must lie: behind its own states' numbers, if it has input rows.

    So a state of the arena is never a state of the table too, and `table.input_rows` cannot mistake one for the other.
    """
    return table.num_states if space == "states" and table.is_trie else 0


def _as_graph(table: TransitionTable) -> TransitionTable:
    """Return a table whose states are all rows: of a trie, one in which tail entries have become such."""
    if not table.is_trie:
        return table
    rows, edges = table.num_rows, table.num_edges
    tails = table.edge_token[edges:-2]
    goes_on = tails < table.vocab_size
    following = rows + 1 + np.flatnonzero(goes_on)
    fields: dict[str, Any] = {
        "vocab_size": table.vocab_size, "eos": table.eos, "vocabulary": table.vocabulary, "source": table.source,
        "row_start": np.concatenate(
            [table.row_start[:-1].astype(np.int64), edges + np.cumsum([0, *goes_on])]
        ).astype(np.int32),
        "edge_token": np.concatenate([table.edge_token[:edges], tails[goes_on], table.edge_token[-2:]]),
        "edge_target": np.concatenate([table.edge_target, following]).astype(np.int32),
        "accepting": np.concatenate([table.accepting, ~goes_on]),
        "base_row": np.full(rows + tails.size, -1, np.int32), "masks": table.masks[:0],
        "base_mask": table.base_mask[:0], "base_classes": table.base_classes[:0],
        "base_start": np.zeros(1, np.int32), "base_target": table.base_target[:0], "class_start": np.zeros(1, np.int32),
        "class_token": table.class_token[:0], "class_id": table.class_id[:0],
    }  # fmt: skip
    return TransitionTable.flat(**fields)
