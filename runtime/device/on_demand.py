"""Tables that are read as texts come to their states, on a device.

A grammar whose nesting the text does not delimit has no finite table, and others have none within their budget. A
`Matcher` reads them without one. This module numbers the places that matchers reach. The device holds each distinct
mask once, and for each number which mask it has. `on_demand_cursor` reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import Advice, BudgetError, ConstraintError
from ...lazy.lazy_table import LazyTable
from ...table.transition_table import TransitionTable
from ..host.host_reader import HostReader
from ..host.matcher import Matcher
from .backend import Array, Backend, Placed
from .device_table import DeviceTable, State

DEAD_ROW = 0  # allows nothing
MOST_BYTES = 1 << 30  # of masks on a device, and of rows
ROW_BYTES = 512  # that a row may take, nearly all of it on the host: 200 are measured, and 8 for each open call
FIRST_ROWS = 1024  # that there is room for at first
_MASKS_BYTES = 1 << 24  # of masks that there is room for at first, if these are at least
LEAST_MASKS, MOST_MASKS = 64, 1024


class ReachedArrays(NamedTuple):
    """What is on a device of R rows and U masks, of which the first are in use."""

    masks: Array  # (U, ceil(V / 32)) in the type of a `bitmask`; the first is of nothing
    mask_of: Array  # (R,) which mask each row has
    may_end: Array  # bool (R,) whether a sequence may end there
    but_eos: Array  # (1, ceil(V / 32)) a mask of all tokens but the ends


class Stored(NamedTuple):
    """What has been reached, and what it takes."""

    rows: int
    masks: int  # that differ
    nbytes: int  # on the device, with room for more
    taken: int  # bytes of rows and masks, of which there may be `most_bytes`


class ReachedRows:
    """Places that sequences have come to, by number, and their masks on a device.

    Threads may share one, except in JAX, where what is written takes the place of what another thread may be reading.

    A place is one of a matcher: what stands here is what tells it which tokens are allowed and where they lead. Several
    tables of one vocabulary may have their places among the same rows.
    """

    def __init__(
        self, ops: Backend, convert: Callable[[NDArray[Any]], Array], size: int, ends: tuple[int, ...], most: int
    ) -> None:
        self.ops, self.vocab_size, self.ends, self.most_bytes = ops, size, ends, most
        self.words = -(-size // 32)
        self._lock = threading.RLock()
        self._places: list[tuple[HostReader[Any], Any] | None] = [None]  # by row; None where there is none
        self.keys: list[Any] = [None]
        self._rows: dict[Any, int] = {}  # the row of each place, by what tells it from others
        self._masks: list[bytes | None] = [bytes(4 * self.words)]  # None where there is none
        self._numbers = {self._masks[0]: 0}  # of each mask
        self._uses = [1]  # rows that have each mask
        self._mask_of = [0]
        self._free_rows: list[int] = []
        self._free_masks: list[int] = []
        self._new_rows: list[int] = []  # not on the device yet
        self._new_masks: list[int] = []
        but_eos = np.full((1, self.words), 0xFFFFFFFF, np.uint32)
        for end in ends:
            but_eos[0, end >> 5] ^= np.uint32(1 << (end & 31))
        masks = max(LEAST_MASKS, min(MOST_MASKS, _MASKS_BYTES // (4 * self.words)))
        self.arrays = ReachedArrays(
            convert(np.zeros((masks, self.words), np.uint32)),
            convert(np.zeros(FIRST_ROWS, np.int64)),
            convert(np.zeros(FIRST_ROWS, np.bool_)),
            convert(but_eos),
        )
        self._kept = Stored(0, 0, 0, 0)  # what was left by the last `keep`

    @property
    def stored(self) -> Stored:
        """What has been reached, and what it takes."""
        with self._lock:
            rows, masks = len(self._places) - len(self._free_rows), len(self._uses) - len(self._free_masks)
            return Stored(rows, masks, sum(int(array.nbytes) for array in self.arrays), self.bytes_for(rows, masks))

    def bytes_for(self, rows: int, masks: int) -> int:
        return ROW_BYTES * rows + 4 * self.words * masks

    @property
    def is_full(self) -> bool:
        """Whether to call `keep`: more than half of the room on the device, or of `most_bytes`, is taken.

        Rows that the last `keep` left in place do not count; otherwise this would hold at every step.
        """
        stored, kept, (masks, mask_of, _, _) = self.stored, self._kept, self.arrays
        return bool(
            stored.masks > max(masks.shape[0] // 2, 2 * kept.masks)
            or stored.rows > max(mask_of.shape[0] // 2, 2 * kept.rows)
            or 2 * stored.taken > self.most_bytes + kept.taken
        )

    def of(self, matcher: Matcher) -> int:
        """Return the row of where a matcher stands; inside of `adding`. Raises BudgetError."""
        return self._row(matcher._reader, matcher._place)

    def place(self, row: int) -> tuple[HostReader[Any], Any] | None:
        """Return what a row stands for; None for `DEAD_ROW`. Raises ValueError for a row that is none."""
        found = self._places[row] if 0 <= row < len(self._places) else None
        if found is None and row != DEAD_ROW:
            raise ValueError(
                f"state {row} is none of this table's, which has {len(self._places) - len(self._free_rows)} so far: it "
                "comes from another one, or was not kept"
            )
        return found

    def follow(self, nodes: NDArray[Any], tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Return the rows (n,) that tokens (n,) lead to, written to the device. Raises ValueError, BudgetError."""
        wanted = (tokens >= 0) & (tokens < self.vocab_size) & (nodes != DEAD_ROW)
        keys, back = np.unique(nodes[wanted].astype(np.int64) * self.vocab_size + tokens[wanted], return_inverse=True)
        found = np.full(len(keys), DEAD_ROW, np.int64)
        with self.adding():
            for i, key in enumerate(keys.tolist()):
                place = self.place(key // self.vocab_size)
                assert place is not None, "the dead state is left out above"
                host, here = place
                following = host.step(here, key % self.vocab_size)
                if following != host.nowhere:
                    found[i] = self._row(host, following)
        out = np.full(len(nodes), DEAD_ROW, np.int64)
        out[wanted] = found[back]
        return out

    def keep(self, nodes: NDArray[Any]) -> None:
        """Forget all rows but these, which keep their numbers; a freed number allows nothing until a new row has it."""
        kept = {DEAD_ROW, *nodes.reshape(-1).tolist()}
        with self._lock:
            left = [row for row, place in enumerate(self._places) if place is not None and row not in kept]
            for row in left:
                self._forget(row)
            self._kept = self.stored
            if left:
                masks, mask_of, may_end, but_eos = self.arrays
                rows, nothing = np.array(left, np.int64), np.zeros(len(left), np.int64)
                mask_of = self.ops.put_rows(mask_of, rows, nothing)
                self.arrays = ReachedArrays(masks, mask_of, self.ops.put_rows(may_end, rows, nothing != 0), but_eos)

    # ------------------------------------------------------------------------------------------------ adding

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Write the rows added inside to the device on leaving, even after an error; forget them all if that fails."""
        with self._lock:
            try:
                yield
            finally:
                try:
                    self._write()
                except BaseException:
                    for row in self._new_rows:
                        self._forget(row)
                    raise
                finally:
                    self._new_rows, self._new_masks = [], []

    def _row(self, host: HostReader[Any], place: Any) -> int:
        """Return the row of a place, which is added if it has none."""
        key = (host, *host.identity(place))
        row = self._rows.get(key)
        if row is not None:
            return row
        mask = host.mask(place).tobytes()
        number = self._numbers.get(mask, -1)
        rows, masks = len(self._places) - len(self._free_rows), len(self._uses) - len(self._free_masks)
        if self.bytes_for(rows + 1, masks + (number < 0)) > self.most_bytes:
            raise BudgetError(
                f"the states that were reached and their masks, {rows:,} and {masks:,}, would take more than "
                f"{self.most_bytes:,} bytes",
                limit="bytes",
                allowed=self.most_bytes,
                reached=self.bytes_for(rows + 1, masks + (number < 0)),
                remedies=[
                    Advice(
                        "Forget those that are not needed any more, in a loop of your own with dev.keep(state) between "
                        "steps, otherwise with dev.keep() between calls, as a decoder keeps all that it comes to; "
                        "where one call is too much, give it fewer sequences or a smaller max_tokens"
                    )
                ],
            )
        if number < 0:
            if self._free_masks:
                number = self._free_masks.pop()
            else:
                number = len(self._masks)
                self._masks.append(None)
                self._uses.append(0)
            self._masks[number], self._numbers[mask] = mask, number
            self._new_masks.append(number)
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self._places)
            self._places.append(None)
            self.keys.append(None)
            self._mask_of.append(0)
        self._places[row], self.keys[row], self._mask_of[row] = (host, place), key, number
        self._uses[number] += 1
        self._rows[key] = row
        self._new_rows.append(row)
        return row

    def _forget(self, row: int) -> None:
        number = self._mask_of[row]
        del self._rows[self.keys[row]]
        self._places[row] = self.keys[row] = None
        self._free_rows.append(row)
        self._uses[number] -= 1
        if not self._uses[number]:
            mask, self._masks[number] = self._masks[number], None
            if mask is not None:
                del self._numbers[mask]
            self._free_masks.append(number)

    def _write(self) -> None:
        """Write what is new to the device."""
        if not self._new_rows:
            return
        ops = self.ops
        masks, mask_of, may_end, but_eos = self.arrays
        while masks.shape[0] < len(self._uses):
            masks = ops.doubled(masks)
        while mask_of.shape[0] < len(self._places):
            mask_of, may_end = ops.doubled(mask_of), ops.doubled(may_end)
        if self._new_masks:
            added = bytearray().join(self._masks[number] or b"" for number in self._new_masks)
            values = np.frombuffer(added, np.uint32).reshape(-1, self.words)
            masks = ops.put_rows(masks, np.array(self._new_masks, np.int64), values)
        rows = np.array(self._new_rows, np.int64)
        mask_of = ops.put_rows(mask_of, rows, np.array([self._mask_of[row] for row in self._new_rows], np.int64))
        ends = []
        for row in self._new_rows:
            host, place = self._places[row] or (None, None)
            ends.append(host is not None and host.ends(place))
        self.arrays = ReachedArrays(masks, mask_of, ops.put_rows(may_end, rows, np.array(ends, np.bool_)), but_eos)


@dataclass(frozen=True, eq=False)
class OnDemandTable:
    """A table that is read as texts come to its states. A state is a row's number, which means the same from then on.

    What has been reached stays, until `keep` says what is still needed: 16 KB on the device for each mask that differs
    over 131,072 tokens, and for each row 9 bytes there and up to 0.5 KB on the host; beyond 1 GB it is a BudgetError.
    Decoders keep all that they come to: `keep` is for their caller, between calls. All is read by the table's own
    reader, within the `Budget` that it was compiled with.

    given: its arrays where they are traced, inside a compiled function that the table is an argument of.
    """

    rows: ReachedRows
    start_row: int
    given: ReachedArrays | None = None

    # what decoders ask of a table
    fixed_length = None
    max_length = None
    is_trie = False
    is_nested = True
    dead = DEAD_ROW

    @property
    def arrays(self) -> ReachedArrays:
        """What is on the device now."""
        return self.rows.arrays if self.given is None else self.given

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return self.rows.vocab_size

    @property
    def eos(self) -> int | None:
        """The token that ends a sequence, the first of `ends`."""
        return next(iter(self.rows.ends), None)

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""
        return self.rows.ends

    @property
    def other_ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence, beside eos."""
        return self.rows.ends[1:]

    @property
    def start_accepting(self) -> bool:
        """Whether the empty sequence is complete."""
        place = self.rows.place(self.start_row)
        return place is not None and place[0].ends(place[1])

    @property
    def min_length(self) -> int:
        """No sequence has fewer tokens; how many the shortest has is not known."""
        return 0 if self.start_accepting else 1

    @property
    def stored(self) -> Stored:
        """What has been reached, and what it takes."""
        return self.rows.stored

    def keep(self, *states: State) -> None:
        """Forget all states but the start and these, whose numbers stay.

        Others mean nothing any more: nothing is allowed there, until their numbers are those of new states.
        """
        nodes = [np.array([self.start_row]), *(self.rows.ops.to_host(state.node).reshape(-1) for state in states)]
        self.rows.keep(np.concatenate(nodes))

    def __repr__(self) -> str:
        stored = self.stored
        return f"OnDemandTable({stored.rows:,} states so far, {stored.masks:,} masks, vocab_size={self.vocab_size})"

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDemandTable:
        return self  # rows do not change what they mean


def counts_tokens(dev: Placed) -> bool:
    """Return whether it is known of a table on a device how far its states are from an end, for `remaining`."""
    if isinstance(dev, OnDemandTable):
        return False
    return not isinstance(dev, DeviceTable) or dev.distance.shape[0] > 0  # of others it is at hand


def is_read(table: Any, on_demand: bool | None) -> bool:
    """Return whether a table is read on demand: as is said, or else where it has no arrays, or none within its budget.

    Raises TypeError.
    """
    if on_demand is not None and not isinstance(on_demand, bool):
        raise TypeError(f"on_demand must be True, False or None, not {on_demand!r}")
    if on_demand and not isinstance(table, TransitionTable | LazyTable):
        raise TypeError(f"on_demand=True is for tables, not for a {type(table).__name__}")
    return bool(on_demand) or (on_demand is None and not has_lengths(table))


def has_lengths(table: Any) -> bool:
    """Return whether a constraint has arrays within its budget, so that it is known how far its states are from an end.

    Works out a lazy table.
    """
    return not isinstance(table, LazyTable) or table.has_arrays()


def check_budgets(table: TransitionTable, distances: bool) -> None:
    """Raise ConstraintError if distances are asked for: an on-demand table does not know its distances to an end."""
    if distances:
        raise ConstraintError(
            "how many tokens an end is away is not known of a table that is read on demand: do without distances, "
            "let max_tokens be generous, and look at `valid`"
        )


def read(
    ops: Backend, convert: Callable[[NDArray[Any]], Array], table: TransitionTable, distances: bool = False
) -> OnDemandTable:
    """Return a table that is read on demand, with its start on the device; each array goes through `convert`."""
    check_budgets(table, distances)
    rows = ReachedRows(ops, convert, table.vocab_size, table.ends, MOST_BYTES)
    with rows.adding():
        return OnDemandTable(rows, rows.of(Matcher(table)))
