"""An `Arena`: many tables in arrays of fixed size, so that one call serves a batch in which every row has its own.

Rows, sites and whatever else has a number are numbered anew on the way in. Masks, class lists and exit lists say
nothing about states, and what a table says is `common` leads only to itself: equal ones are there once, however many
tables have them. Adding and dropping change what arrays hold, never their shapes, so nothing that was compiled or
recorded for an arena has to be again.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ArenaError, NoTableError, RaiseCapacity, VocabularyMismatchError
from ...lazy.lazy_table import Compiled, LazyTable
from ...table.grouped import GroupedArrays
from ...table.groups import IntArray
from ...table.several_ends import one_or_all
from ...table.sid_filter import SidFilter
from ...table.snapshot import LiveFilter, Snapshot
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from ..device.device_table import AnyState, DeviceTable, most_pops, not_a_table
from ..host.table_pointers import pointers_of
from .arrays import ArenaArrays
from .capacity import Capacity, Stored, VocabularyLike
from .device_arrays import Mirror, device_arrays, on_device
from .parts import (
    ARRAYS_OF,
    ListPart,
    Needs,
    Places,
    Renumbered,
    Shared,
    Taken,
    as_graph,
    first_place,
    lists_needed,
    lists_of,
    more_frames,
    needs_of,
)
from .space import Space
from .view import ArenaView


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
        raise TypeError(
            "the tables of handles are in an arena: pass what to_device(arena) returns, not a table of its own"
        )
    for handle in handles:
        if not isinstance(handle, Handle):
            raise TypeError(f"a Handle is needed, as Arena.add returns one, not a {type(handle).__name__}")
        handle.arena.check(handle)
        if handle.arena.number != number:
            raise ValueError("the handle is one of another arena")
    if not handles:
        raise ValueError("there are no handles: one for each row of a batch is needed")
    return np.array([handle.start for handle in handles], np.int32)


@dataclass(eq=False)
class Resident:
    """A table that is in the arena."""

    start: int
    parts: list[Taken]
    shared: list[Shared]
    table: TransitionTable
    most_frames_required: int
    most_pushes: int
    handles: int = 0


_numbers = itertools.count(1)


def starts_in(table: GroupedArrays) -> NDArray[np.int32]:
    """Return the states in which sequences start: (1,), or (B,) of an arena after `with_start_states`, else (0,)."""
    return table.starts if isinstance(table, ArenaView) else np.zeros(1, np.int32)


class Arena:
    """Fixed arrays that any number of tables of one vocabulary share, as far as they fit.

    `torch_ops.to_device` and `jax_ops.to_device` make the arena's arrays on a device, which stay the same while tables
    come and go, and every operation takes what they return as it takes one table. `with_start_states(handles)` says
    where the rows of a batch start. A table that nobody holds a handle of stays until its room is needed, the one used
    least recently first. Tries are taken as graphs, without their compact tails, at about 9 bytes a state. A trie lies
    above as many states as it has, so that none of its states here is also one of its own: `capacity.states` must be
    twice those of the largest trie. States belong to the arena, and `input_rows` says which items they stand for. Any
    thread may add and drop.

    Args:
        vocabulary: A `Vocabulary`, or whatever has its size, eos, fingerprint and `other_ends`. Sequences end by EOS
            here, so tables must have been compiled with its ends.
        capacity: What fits.
        distances: Whether there are the distances that `remaining` needs.

    Raises:
        TypeError: An argument is of another type.
        ValueError: The vocabulary has no eos.

    Examples:
        >>> from maskwright import Arena, Capacity, Vocabulary, compile_regex
        >>> vocab = Vocabulary.from_bytes([b"", b"a", b"b"], eos=0)
        >>> arena = Arena(vocab, Capacity(states=100, edges=100))
        >>> handle = arena.add(compile_regex("[ab]+", vocab))
        >>> arena.stored.tables
        1
    """

    def __init__(self, vocabulary: VocabularyLike, capacity: Capacity | None = None, *, distances: bool = False):
        for name in ("size", "eos", "fingerprint"):
            if not hasattr(vocabulary, name):
                raise TypeError(f"an arena is made for a Vocabulary, not a {type(vocabulary).__name__}")
        if vocabulary.eos is None:
            raise ValueError("an arena needs a vocabulary with eos: nothing else ends sequences of different tables")
        if capacity is not None and not isinstance(capacity, Capacity):
            raise TypeError(f"capacity must be a Capacity, not {type(capacity).__name__}")
        self.capacity = cap = Capacity() if capacity is None else capacity
        self.budgets = distances
        self.number = next(_numbers)  # unlike that of any other arena of this process
        self._spaces = {
            name: Space(size)
            for name, size in (
                ("states", cap.states), ("edges", cap.edges), ("bases", cap.bases), ("base_targets", cap.base_targets),
                ("masks", cap.masks), ("class lists", 2 * cap.lists), ("exit lists", 2 * cap.lists),
                ("classes", cap.classes), ("exits", cap.exits), ("sites", cap.sites),
                ("site_entries", cap.site_entries),
                ("actions", cap.actions), ("pushes", cap.pushes),
            )
        }  # fmt: skip
        self._tables: OrderedDict[Any, Resident] = OrderedDict()  # the one used least recently first
        self._lists: dict[Any, Shared] = {}
        self._mirrors: dict[Any, Mirror] = {}
        self._lock = threading.RLock()
        self._evictions = 0
        self.releases = 0  # handles dropped so far: whoever waits for room need not ask again before there is another
        self.held = ArenaArrays(vocabulary, cap, self.number, budgets=distances)
        self.table = self.held.view

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
        return sum(array.nbytes for array in device_arrays(self.held).values())

    def add(self, table: Compiled) -> Handle:
        """Give a table a place, or find the one it has; the table stays until it is dropped. A lazy one is worked out.

        Args:
            table: A table of the arena's vocabulary.

        Returns:
            A handle, which `with_start_states` and `drop` take.

        Raises:
            ArenaError: There is no room, or never would be, or a grammar has no finite table.
            VocabularyMismatchError: The table is of another vocabulary.
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
            self.follow()
            return Handle(self, resident.start, resident.table)

    def fits(self, table: Compiled) -> None:
        """Raise unless there would be room for a table if nothing else were there. A lazy one is worked out.

        Args:
            table: The table; errors are those of `add`.
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
        if table.ends != host.ends:
            own, wanted = (one_or_all(ends) for ends in (table.ends, host.ends))
            raise ArenaError(
                f"the table has eos {own}, the arena {wanted}, by which all its sequences end: compile it with "
                f"eos={wanted}"
            )

    def drop(self, handle: Handle) -> None:
        """Let go of a handle: once for each `add`. States of its sequences mean nothing any more from then on.

        Args:
            handle: It.

        Raises:
            ValueError: It is of another arena, or was dropped before.
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
        """Return the input rows that final states of the arena stand for, as `TransitionTable.input_rows` does.

        Args:
            handles: One for all states, or H of them, as `with_start_states` takes them: one for N / H states in a row.
            states: (N,) that a decoder returns, before EOS, or a state of the operations.

        Returns:
            An array of rows for each state, empty for any other state and for a table that is no trie.

        Raises:
            ValueError: A state is not one of its handle's table, a handle was dropped, or numbers do not match.
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
            return [table.trie.item_row[:0]] * states.size
        return table.input_rows(np.where(known, states - size + table.after_eos, own))

    # ---------------------------------------------------------------------------------------------- coming in

    def _place(self, key: Any, table: TransitionTable) -> Resident:
        """Copy a table into the arena, making room for it."""
        graph, needs = self._checked(table)
        may_fit = False
        while True:
            taken: list[Taken] = []
            shared: list[Shared] = []
            written = len(self.held.changes)
            try:
                own = {name: self._take(name, count, taken, first_place(table, name)) for name, count in needs.items()}
                lists = self._share_lists(graph, shared)
                at = Places(self._share_common(graph, lists, shared), own)
                self._write(graph, at, lists, own=True)
                self._publish()
                break
            except BaseException as error:
                self._release(taken, shared)
                del self.held.changes[written:]  # where there is nothing any more
                if not isinstance(error, ArenaError):
                    raise
                if not may_fit:  # once: what nobody holds goes in vain where what is held lies in between
                    may_fit = self._may_fit(graph, needs, first_place(table, "states"))
                if not may_fit or not self._evict():
                    raise
        most_frames_required = most_pushes = 0
        if graph.is_nested:
            most_frames_required = graph.most_frames_required + (
                more_frames(graph, self.capacity) if graph.most_frames_required else 0
            )
            most_pushes = graph.most_pushes
        resident = Resident(own["states"], taken, shared, table, most_frames_required, max(1, most_pushes))
        self._tables[key] = resident
        self._bound()
        return resident

    def _checked(self, table: TransitionTable) -> tuple[TransitionTable, Needs]:
        """Return a table as a graph, and how much of each space is its own; ArenaError if it can never have that."""
        graph = as_graph(table)
        self._check_widths(graph)
        own = needs_of(graph, own=True)
        common = needs_of(graph, own=False) if graph.common.rows else {}
        parts = [own, common, *(spaces for spaces in lists_needed(graph).values())]
        for name, space in self._spaces.items():
            count, above = sum(part.get(name, 0) for part in parts), first_place(table, name)
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
        allowed = getattr(self.capacity, option)
        needed = -(-(count + above) * allowed // space.size)  # a space of lists has two places for each
        where = f" behind the first {above:,}, the numbers of the table's own states" if above else ""
        return ArenaError(
            f"the arena has no room for {count:,} {name} in a row{where}: {why}",
            limit=option,
            allowed=allowed,
            reached=needed,
            remedies=[RaiseCapacity(option, least=needed if needed > allowed else None)],
        )

    def _check_widths(self, table: TransitionTable) -> None:
        """Raise ArenaError where something of a table is wider than the arena's arrays are read."""
        cap = self.capacity

        def most(starts: NDArray[Any]) -> int:
            return int(np.diff(starts).max(initial=0))

        ends = table.distances.code.shape[1] if self.budgets and table.is_nested else 1
        widths = {
            "row_width": (most(table.rows.edge_start), "edges in one state"),
            "class_width": (most(table.classes.start), "entries in one class list"),
            "exit_width": (most(table.exits.start), "exits in one list"),
            "site_width": (most(table.sites.start), "entries at one site"),
            "symbols": (table.num_symbols, "symbols"),
            "pops": (most_pops(table) if table.is_nested else 0, "frames that one token leaves"),
            "depth": (table.depth, "frames of depth"),
            "ends": (ends, "ways to end that a budget has to tell apart"),
        }
        for name, (count, what) in widths.items():
            if count > getattr(cap, name):
                raise ArenaError(
                    f"the table has {count:,} {what}, the arena was made for {getattr(cap, name):,}",
                    limit=name,
                    allowed=getattr(cap, name),
                    reached=count,
                    remedies=[RaiseCapacity(name, count)],
                )

    def _take(self, name: str, count: int, taken: list[Taken], above: int = 0) -> int:
        space = self._spaces[name]
        start = space.take(count, above)
        if start < 0:
            raise self._no_room(name, count, above)
        taken.append((name, start, count))
        return start

    def _release(self, taken: list[Taken], shared: list[Shared]) -> None:
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

    def _may_fit(self, table: TransitionTable, needs: Needs, above: int) -> bool:
        """Return whether there would be room for a table if all went that nobody holds; above: as of its states."""
        spaces = {name: space.copy() for name, space in self._spaces.items()}
        uses = {key: shared.uses for key, shared in self._lists.items()}

        def give(parts: list[Taken]) -> None:
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
        wanted: dict[Any, Needs] = {"own": needs}
        wanted |= {key: need for key, need in lists_needed(table).items() if key not in left}
        if table.common.rows:
            lists = {  # nothing that is there has one at -2
                kind: np.array([left[one.key].place if one.key in left else -2 for one in every], np.int32)
                for kind, every in lists_of(table).items()
            }
            common = self._common_key(table, lists)
            if common not in left:
                wanted[common] = needs_of(table, own=False)
        return all(
            spaces[name].take(count, above if key == "own" and name == "states" else 0) >= 0
            for key, each in wanted.items()
            for name, count in each.items()
        )

    def _share(self, key: Any, spaces: Needs, write: Callable[[Needs], Any], shared: list[Shared]) -> Any:
        """Return the place of what several tables have, where `write` writes it if it is not there."""
        found = self._lists.get(key)
        if found is None:
            taken: list[Taken] = []
            try:
                place = write({name: self._take(name, count, taken) for name, count in spaces.items()})
            except BaseException:
                self._release(taken, [])
                raise
            found = self._lists[key] = Shared(key, place, taken)
        found.uses += 1
        shared.append(found)
        return found.place

    def _share_lists(self, table: TransitionTable, shared: list[Shared]) -> dict[str, NDArray[np.int32]]:
        """Return where a table's masks and lists are, once they are there."""
        return {
            kind: np.array(
                [self._share(one.key, one.spaces, partial(self._write_list, one), shared) for one in lists], np.int32
            )
            for kind, lists in lists_of(table).items()
        }

    def _share_common(self, table: TransitionTable, lists: dict[str, NDArray[np.int32]], shared: list[Shared]) -> Needs:
        """Return where what a table has in common with others is, once it is there."""

        def write(at: Needs) -> Needs:
            self._write(table, Places(at, at), lists, own=False)
            return at

        if not table.common.rows:
            return dict.fromkeys(self._spaces, 0)
        found: Needs = self._share(self._common_key(table, lists), needs_of(table, own=False), write, shared)
        return found

    def _common_key(self, table: TransitionTable, lists: dict[str, NDArray[np.int32]]) -> Any:
        """Return what equal common parts have as key, whose masks and lists are the same ones."""
        nowhere = dict.fromkeys(self._spaces, 0)
        digest = hashlib.blake2b()
        for name, start, values in Renumbered(table, self.capacity, Places(nowhere, nowhere), lists, own=False).written(
            budgets=self.budgets
        ):
            digest.update(f"{name} {start} {values.dtype.str} {values.shape};".encode())
            digest.update(np.ascontiguousarray(values).view(np.uint8).data if values.size else b"")
        return "common", digest.digest()

    def _write_list(self, one: ListPart, at: Needs) -> int:
        """Write a mask or a list where there is room for it, and return its number."""
        if one.kind == "masks":
            self.held.set("bases.masks", at["masks"], one.arrays[0][None])
            return at["masks"]
        (lists, entries), (start, *arrays) = one.spaces, ARRAYS_OF[one.kind]
        first = at[entries]
        for name, values in zip(arrays, one.arrays, strict=True):
            self.held.set(name, first, values.astype(self.held.by_name[name].dtype))
        self.held.set(start, at[lists], np.array([first, first + one.arrays[0].size], np.int32))
        return at[lists]

    def _write(self, table: TransitionTable, at: Places, lists: dict[str, NDArray[np.int32]], *, own: bool) -> None:
        """Write what is a table's own, or what it has in common with others, numbered anew."""
        renumbered = Renumbered(table, self.capacity, at, lists, own=own)
        for name, start, values in renumbered.written(budgets=self.budgets):
            self.held.set(name, start, values)

    def _bound(self) -> None:
        """Note how much room the tables that are there may need."""
        tables, limits = self._tables.values(), self.table.limits
        limits.most_required = max((each.most_frames_required for each in tables), default=0)
        limits.most_pushes = max((each.most_pushes for each in tables), default=1)
        pointers_of(self.table).set_most(limits.most_required, limits.most_pushes)

    # ---------------------------------------------------------------------------------------------- on a device

    def check_budgets(self, budgets: bool) -> None:
        """Raise ValueError where distances are asked for that an arena has not."""
        if budgets and not self.budgets:
            raise ValueError("this arena has no distances: make it with Arena(..., distances=True)")

    def mirror(self, where: Any, make: Callable[[], Mirror]) -> DeviceTable:
        """Return the arena's arrays on a device as they are now, a copy that `make` makes the first time."""
        with self._lock:
            if where not in self._mirrors:
                self._mirrors[where] = make()
            return self._mirrors[where].read()

    def follow(self) -> None:
        """Put what the calling thread gives devices from here on in order with writes to the arena's arrays there.

        `add` and `with_start_states` do so; each thread or stream needs it once.
        """
        with self._lock:
            for mirror in self._mirrors.values():
                mirror.read()

    def _publish(self) -> None:
        """Tell all copies on devices what has changed."""
        changes = [part for change in self.held.changes for part in on_device(self.held, change)]
        self.held.changes.clear()
        for mirror in self._mirrors.values():
            mirror.write(changes)


def check_held(table: Any) -> None:
    """Raise TypeError unless this is a table, as all in an arena are."""
    if isinstance(table, SortedMatrix):
        raise TypeError(
            "an Arena holds tables, not a SortedMatrix: compile the rows with compile_sids, or put the matrix by "
            "itself, ops.to_device(matrix)"
        )
    if isinstance(table, SidFilter | Snapshot | LiveFilter):
        raise TypeError(f"an Arena holds tables, not a {type(table).__name__}: put it by itself, with ops.to_device")
    if not isinstance(table, TransitionTable | LazyTable):
        raise not_a_table(table)


def _check_finite(table: Compiled) -> None:
    """Work out a lazy table; ArenaError where there is none."""
    if isinstance(table, LazyTable):
        try:
            table.to_table()
        except NoTableError as error:
            raise ArenaError(
                "an arena holds arrays, and this grammar has no finite table: put it by itself, ops.to_device(table), "
                "or give it to an Engine, which does not put it into its arena"
            ) from error


def _key_of(table: Compiled) -> Any:
    """Return what tables that allow the same are known by, whether or not they were lazy; a lazy one is worked out."""
    whole = table.to_table()
    return (whole.source, whole.depth) if whole.source else id(whole)
