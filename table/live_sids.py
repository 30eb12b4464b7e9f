"""`LiveSids`: a set of semantic IDs that changes while it is decoded with, and `Snapshot`, what a search begins with.

The set is a sorted matrix, of which some rows are gone, and a *delta*: a few rows in order that the matrix lacks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Advice, ConstraintError
from .live_base import BaseShape, LiveBase
from .sorted_matrix import SortedMatrix, measure
from .transition_table import integer_vocabulary
from .update_log import DELETE, INSERT, UpdateLog

Rows = NDArray[np.unsignedinteger[Any]]

_DELTA_WIDTHS = (64, 16)  # most rows of a delta below a prefix, at the first depth without masks and at the others

_COMPACT = Advice("Call compact(), which joins base and delta.")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A live set as it was when it was published: a constraint, which never changes."""

    epoch: int  # how many were published before
    base: LiveBase
    bits: NDArray[np.uint32]  # which rows of the base are in the set
    masks: NDArray[np.uint8]  # which tokens come first, and which second after each first one, in base or delta
    firsts: NDArray[np.uint32]  # bits of the base's first rows
    delta: Rows  # (D, L) rows in order that the base does not have
    capacity: int  # the most rows of a delta
    delta_widths: tuple[int, ...]  # (L,) the most rows of a delta below a prefix, by depth

    eos = None
    fixed_length = min_length = max_length = property(lambda self: self.base.matrix.length)

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""
        return self.base.matrix.vocab_size

    @property
    def vocabulary(self) -> str:
        """The fingerprint of the vocabulary."""
        return integer_vocabulary(self.vocab_size)

    @property
    def num_sequences(self) -> int:
        """How many sequences are in the set."""
        return int(np.unpackbits(self.bits.view(np.uint8)).sum()) + len(self.delta)

    @property
    def memory(self) -> int:
        """Bytes of what changes, without the base."""
        return int(self.bits.nbytes + self.masks.nbytes + self.firsts.nbytes + self.delta.nbytes)

    nbytes = memory

    def to_table(self) -> Snapshot:
        """Return this snapshot: it is put on a device as it is."""
        return self

    def contains(self, sids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each row of sids (N, L) is in the set: bool (N,)."""
        at = self.base.matrix.find(sids)
        found: NDArray[np.bool_] = (self.bits[at >> 5] >> (at & 31).astype(np.uint32)) & 1 != 0
        rows = np.asarray(sids)
        if len(self.delta) and rows.ndim == 2 and rows.shape[1] == self.fixed_length:
            inside: NDArray[np.bool_] = np.all((rows >= 0) & (rows < self.vocab_size), axis=1)
            keys, asked = keys_of(self.delta), keys_of(np.where(inside[:, None], rows, 0).astype(self.delta.dtype))
            place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
            found |= inside & (keys[place] == asked)
        return found

    def sequences(self, states: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens (N, L) of the sequences that decoders ended with; -1 where a state is of none.

        states: the `node` of final states.
        """
        nodes = np.atleast_1d(np.asarray(states)).astype(np.int64)
        out = np.full((nodes.size, self.fixed_length), -1, np.int64)
        old, new = nodes < self.base.matrix.num_sequences, nodes > self.base.shape.count
        out[old] = self.base.matrix.columns[:, nodes[old]].T
        out[new] = self.delta[nodes[new] - self.base.shape.count - 1]
        return out


def keys_of(rows: Rows) -> NDArray[Any]:
    """Return a key for each row (N, L) of one type, in whose order rows are."""
    big = np.ascontiguousarray(rows, rows.dtype.newbyteorder(">"))
    return big.view(f"S{big.itemsize * big.shape[1]}")[:, 0]


@dataclass
class _Delta:
    """Rows in order that the base does not have, none of them twice; arrays are replaced, never written to."""

    rows: Rows  # (D, L)
    keys: NDArray[Any]  # (D,)
    counts: NDArray[np.int64]  # (D,) items of each

    def find(self, keys: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return where keys stand or would stand, and whether they are there."""
        at = np.searchsorted(self.keys, keys)
        there = np.zeros(len(keys), np.bool_)
        inside = at < len(self.keys)
        there[inside] = self.keys[at[inside]] == keys[inside]
        return at, there

    def has_prefix(self, prefix: Rows) -> bool:
        """Return whether a row begins with a prefix (d,)."""
        length, depth = self.rows.shape[1], len(prefix)
        bounds = np.zeros((2, length), self.rows.dtype)
        bounds[:, :depth] = prefix
        bounds[1, depth:] = np.iinfo(bounds.dtype).max
        low, high = keys_of(bounds)
        return bool(np.searchsorted(self.keys, low, "left") < np.searchsorted(self.keys, high, "right"))


class LiveSids:
    """A set of semantic IDs of one length that takes items in and lets them go, between the steps of running searches.

    base: the set it begins with; each of its input rows is an item. capacity: the most sequences that may be added
    before `compact` is needed. widths: (L,) the most of these below a prefix, by depth, which bounds the work of a
    step; deep prefixes have few. log: a file to which each update is written before the call returns; where it exists,
    its updates are made again first, up to the last that is whole.

    `publish` makes a `Snapshot`, which `ops.put` puts on a device, and `ops.refreshed` in the place of an earlier one;
    shapes stay as they are, so that nothing is compiled again. A search keeps the snapshot that it began with. All
    methods may be called from any thread.

    >>> from maskwright import sort_sids
    >>> live = LiveSids(sort_sids([[3, 1, 2], [0, 2, 2]], vocab_size=4))
    >>> live.insert([[1, 1, 1]])
    >>> live.delete([[0, 2, 2]])
    >>> live.publish().contains([[3, 1, 2], [0, 2, 2], [1, 1, 1]])
    array([ True, False,  True])
    """

    def __init__(
        self,
        base: SortedMatrix,
        capacity: int = 1 << 16,
        *,
        widths: tuple[int, ...] | None = None,
        log: str | Path | None = None,
    ) -> None:
        if not isinstance(base, SortedMatrix):
            raise TypeError(f"base must be a SortedMatrix, as sort_sids makes one, not a {type(base).__name__}")
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ValueError(f"capacity={capacity!r} must be a positive number of sequences")
        self.capacity = capacity
        self._lock = threading.RLock()
        self._compacting = threading.Lock()
        self._since: list[tuple[int, Rows]] | None = None  # updates while base and delta are being joined
        self._base = LiveBase.of(base, BaseShape.around(base, capacity))
        masked = self._base.shape.masked
        bounds = [capacity] * masked + [_DELTA_WIDTHS[depth > masked] for depth in range(masked, base.length)]
        self._widths = tuple(min(capacity, width) for width in (bounds if widths is None else widths))
        if len(self._widths) != base.length or min(self._widths) < 1:
            raise ValueError(f"widths must be {base.length} positive numbers, one for each depth, not {widths!r}")
        self._set_base(self._base, self._base.item_counts())
        self._delta = self._empty()
        self._epoch = 0
        self._log = None
        if log is not None:
            self._log = UpdateLog(Path(log), base)
            for kind, rows in self._log.recover():
                self._update(kind, rows.astype(base.columns.dtype))
        self._snapshot = self._made()

    def _empty(self) -> _Delta:
        rows = np.empty((0, self._base.matrix.length), self._base.matrix.columns.dtype)
        return _Delta(rows, keys_of(rows), np.empty(0, np.int64))

    def _set_base(self, base: LiveBase, counts: NDArray[np.int32]) -> None:
        self._base, self._counts = base, counts
        self._bits = base.bits_of(counts > 0)
        self._masks, self._firsts = base.masks_of(self._bits), base.firsts_of(self._bits)
        self._base_changed = True

    @property
    def base(self) -> SortedMatrix:
        """The sorted matrix of the last `compact`, or that it began with."""
        return self._base.matrix

    @property
    def num_delta(self) -> int:
        """How many sequences of the set the base does not have."""
        return len(self._delta.keys)

    def insert(self, sids: ArrayLike) -> None:
        """Add an item for each row of sids (N, L); several items may have one sequence.

        Raises ConstraintError, and adds none, for what are no rows of this set's tokens, and where the delta is full.
        """
        self._call(INSERT, sids)

    def delete(self, sids: ArrayLike) -> None:
        """Remove an item for each row of sids (N, L): a sequence stays as long as another item has it.

        Raises ConstraintError, and removes none, where there are not as many.
        """
        self._call(DELETE, sids)

    def _call(self, kind: int, sids: ArrayLike) -> None:
        rows = self._checked(sids)
        if not len(rows):
            return
        with self._lock:
            prepared = self._prepared(kind, rows)
            if self._log is not None:
                self._log.append(kind, rows)
            self._commit(kind, rows, *prepared)
            if self._since is not None:
                self._since.append((kind, rows))

    def _checked(self, sids: ArrayLike) -> Rows:
        """Return rows (N, L) of the type of the base; raise ConstraintError."""
        rows = np.asarray(sids)
        length, size = self._base.matrix.length, self._base.matrix.vocab_size
        if rows.size == 0:
            return np.empty((0, length), self._base.matrix.columns.dtype)
        if rows.ndim != 2 or rows.shape[1] != length or rows.dtype.kind not in "iu":
            raise ConstraintError(f"sids must be integers (N, {length}), not {rows.dtype} {rows.shape}")
        if int(rows.min()) < 0 or int(rows.max()) >= size:
            row = int(np.argmax(((rows < 0) | (rows >= size)).any(axis=1)))
            raise ConstraintError(f"row {row} has a token outside 0 .. {size - 1}: {rows[row].tolist()}")
        return rows.astype(self._base.matrix.columns.dtype)

    def _update(self, kind: int, rows: Rows) -> None:
        self._commit(kind, rows, *self._prepared(kind, rows))

    def _prepared(self, kind: int, rows: Rows) -> tuple[Any, ...]:
        """Return what an update is made of: places in the base and the delta. Raises ConstraintError."""
        at = self._base.matrix.find(rows)
        old = at < self._base.matrix.num_sequences
        places, changes = np.unique(at[old], return_counts=True)
        keys, first, counts = np.unique(keys_of(rows[~old]), return_index=True, return_counts=True)
        where, there = self._delta.find(keys)
        if kind == DELETE:
            if (self._counts[places] < changes).any():
                raise self._missing(self._base.matrix.columns[:, places[self._counts[places] < changes][0]])
            short = ~there
            short[there] = self._delta.counts[where[there]] < counts[there]
            if short.any():
                raise self._missing(rows[~old][first[short][0]])
            return places, changes, where, counts, self._delta
        added = ~there
        if len(self._delta.keys) + int(added.sum()) > self.capacity:
            raise ConstraintError(
                f"the delta is full: it has {len(self._delta.keys):,} of {self.capacity:,} sequences",
                remedies=[_COMPACT],
            )
        now = self._delta.counts.copy()
        now[where[there]] += counts[there]
        delta = _Delta(
            np.insert(self._delta.rows, where[added], rows[~old][first[added]], axis=0),
            np.insert(self._delta.keys, where[added], keys[added]),
            np.insert(now, where[added], counts[added]),
        )
        if added.any():
            self._check_widths(delta.rows)
        return places, changes, where, counts, delta

    def _check_widths(self, rows: Rows) -> None:
        """Raise ConstraintError if a prefix has more rows of a delta than a step looks at."""
        widths, branches = (np.ones(rows.shape[1], np.int64) for _ in range(2))
        measure(np.ascontiguousarray(rows.T), widths, branches)
        over = np.flatnonzero(widths > self._widths)
        if over.size:
            depth = int(over[0])
            raise ConstraintError(
                f"the delta is full at depth {depth}: a prefix has {widths[depth]:,} of its sequences, "
                f"{self._widths[depth]:,} fit",
                remedies=[_COMPACT, Advice("Or give more widths= for this depth.")],
            )

    def _missing(self, row: Any) -> ConstraintError:
        return ConstraintError(f"there are not as many items {np.asarray(row).tolist()} to delete: none was removed")

    def _commit(self, kind: int, rows: Rows, places: Any, changes: Any, where: Any, counts: Any, delta: _Delta) -> None:
        """Make an update that was prepared; it cannot fail."""
        was = self._counts[places] > 0
        self._counts[places] += changes if kind == INSERT else -changes
        turned = places[was != (self._counts[places] > 0)]
        if turned.size:
            np.bitwise_xor.at(self._bits, turned >> 5, np.uint32(1) << (turned & 31).astype(np.uint32))
            self._base_changed = True
        if kind == INSERT:
            self._delta = delta
            self._base.allow(rows, self._masks)
        else:
            left = delta.counts.copy()
            left[where] -= counts
            gone = where[left[where] == 0]
            lost = np.concatenate([delta.rows[gone], self._base.matrix.columns[:, turned].T])
            self._delta = _Delta(
                np.delete(delta.rows, gone, axis=0), np.delete(delta.keys, gone), np.delete(left, gone)
            )
            self._base.forbid(lost, self._bits, self._masks, self._delta.has_prefix)
        if turned.size:
            self._base.refresh_firsts(turned, self._bits, self._firsts)

    def publish(self) -> Snapshot:
        """Return the set as it is now, for searches that begin from now on."""
        with self._lock:
            self._epoch += 1
            self._snapshot = self._made()
            return self._snapshot

    def _made(self) -> Snapshot:
        before = None if self._base_changed else self._snapshot
        self._base_changed = False
        return Snapshot(
            self._epoch,
            self._base,
            self._bits.copy() if before is None else before.bits,
            self._masks.copy(),
            self._firsts.copy() if before is None else before.firsts,
            self._delta.rows,
            self.capacity,
            self._widths,
        )

    def compact(self) -> None:
        """Join base and delta, as one sorted matrix: in a thread of its own, while all else goes on.

        Shapes stay as they are as long as the new base has room in them, which is several times the capacity; else
        the next snapshot has others, for which JAX and torch compile once. A log goes on being one of the first base.
        """
        with self._compacting:
            with self._lock:
                base, counts, delta = self._base, self._counts.copy(), self._delta
                self._since = []
            try:
                matrix, joined = _joined(base.matrix, counts, delta)
                made = None if matrix is None else LiveBase.of(matrix, base.shape.holding(matrix, self.capacity))
            except BaseException:
                with self._lock:
                    self._since = None
                raise
            with self._lock:
                since, self._since = self._since or [], None
                if made is None:  # nothing is left: the base stays, with no row of it in the set
                    return
                self._set_base(made, joined)
                self._delta = self._empty()
                for kind, rows in since:
                    self._update(kind, rows)


def _joined(matrix: SortedMatrix, counts: NDArray[np.int32], delta: _Delta) -> tuple[Any, Any]:
    """Return a matrix of the rows that have items and those of a delta, and the items of each; None of no rows."""
    kept = np.flatnonzero(counts > 0)
    if not kept.size + len(delta.keys):
        return None, counts
    at = np.searchsorted(kept, matrix_places(matrix, delta.rows))
    columns = np.stack(
        [np.insert(column[kept], at, delta.rows[:, depth]) for depth, column in enumerate(matrix.columns)]
    )
    columns.flags.writeable = False
    return SortedMatrix(matrix.vocab_size, columns), np.insert(counts[kept], at, delta.counts)


def matrix_places(matrix: SortedMatrix, rows: Rows) -> NDArray[np.int64]:
    """Return how many rows of a matrix come before each of some others (N, L)."""
    low, high = np.zeros(len(rows), np.int64), np.full(len(rows), matrix.num_sequences, np.int64)
    for _ in range(int(matrix.num_sequences).bit_length()):
        middle = np.minimum((low + high) >> 1, matrix.num_sequences - 1)
        open_, before = low < high, np.zeros(len(rows), np.bool_)
        same = np.ones(len(rows), np.bool_)
        for depth, column in enumerate(matrix.columns):
            there = column[middle]
            before |= same & (there < rows[:, depth])
            same &= there == rows[:, depth]
        low, high = np.where(open_ & before, middle + 1, low), np.where(open_ & ~before, middle, high)
    return low
