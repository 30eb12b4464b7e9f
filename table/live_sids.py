"""`LiveSids`: a set of semantic IDs that changes while it is decoded with; a search begins with a `Snapshot` of it.

The set is a sorted matrix, of which some rows are gone, and a *delta*: a few rows in order that the matrix lacks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Advice, ConstraintError, DeltaFullError
from ..kernels.arrays import Int64Array
from .base_file import read_base, write_base
from .delta_rows import crowded, place_rows, splice
from .live_base import BaseShape, LiveBase
from .snapshot import Rows, Snapshot, keys_of
from .sorted_matrix import SortedMatrix
from .update_log import DELETE, INSERT, SIDS, UpdateLog, check_apart, header_of

_DELTA_WIDTHS = (64, 16)  # most rows of a delta below a prefix, at the first depth without masks and at the others

_COMPACT = Advice("Call compact(), which joins base and delta.")


@dataclass
class _Delta:
    """Rows in order that the base does not have, none of them twice; arrays are replaced, never written to."""

    rows: Rows  # (D, L)
    counts: NDArray[np.int64]  # (D,) items of each

    def find(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return where rows (N, L) stand or would stand, and whether they are there."""
        at, there = np.empty(len(rows), np.int64), np.empty(len(rows), np.bool_)
        place_rows(self.rows, np.ascontiguousarray(rows), at, there)
        return at, there

    def has_prefix(self, prefix: Rows) -> bool:
        """Return whether a row begins with a prefix (d,)."""
        bounds = np.zeros((2, self.rows.shape[1]), self.rows.dtype)
        bounds[:, : len(prefix)] = prefix
        bounds[1, len(prefix) :] = np.iinfo(bounds.dtype).max
        at, there = self.find(bounds)
        return bool(at[0] < at[1] or there[1])

    def with_rows(self, at: NDArray[np.int64], rows: Rows, counts: NDArray[np.int64]) -> _Delta:
        """Return a delta with rows (k, L) and how many items each has, which stand before its rows at (k,)."""
        if not len(rows):
            return self
        out = np.empty((len(self.rows) + len(rows), rows.shape[1]), rows.dtype)
        made = np.empty(len(out), np.int64)
        splice(self.rows, self.counts, at, np.ascontiguousarray(rows), counts, out, made)
        return _Delta(out, made)

    def without(self, at: NDArray[np.int64]) -> _Delta:
        """Return a delta without the rows at (k,)."""
        return _Delta(np.delete(self.rows, at, axis=0), np.delete(self.counts, at)) if at.size else self


def _distinct(rows: Rows) -> tuple[Rows, NDArray[np.int64]]:
    """Return rows (N, L) in order and each once, and how many of each there are."""
    if not len(rows):
        return rows, np.zeros(0, np.int64)
    _, first, counts = np.unique(keys_of(rows), return_index=True, return_counts=True)
    return rows[first], counts


class LiveSids:
    """A set of semantic IDs of one length that takes items in and lets them go, between the steps of running searches.

    base: the set it begins with; each of its input rows is an item. capacity: the most sequences that may be added
    before `compact` is needed. widths: (L,) the most of these below a prefix, by depth, which bounds the work of a
    step; deep prefixes have few. log: a file to which each update is written before the call returns; where it exists,
    its updates are made again first, up to the last that is whole. One live set at a time writes to a log, until
    `close`.

    `publish` makes a `Snapshot`, which `ops.to_device` puts on a device, and `ops.with_snapshot` in the place of an
    earlier one; shapes stay as they are, so that nothing is compiled again. A search keeps the snapshot that it began
    with. All methods may be called from any thread.

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
        counts = self._base.item_counts()
        self._set_base(self._base, counts, _parts(self._base, counts))
        self._delta = self._empty()
        self._epoch = 0
        self._log: UpdateLog | None = None
        self._closed = False
        if log is not None:
            self._recover(UpdateLog(Path(log), _header(base, counts)))
        self._snapshot = self._made()

    @classmethod
    def load(
        cls,
        path: str | Path,
        capacity: int = 1 << 16,
        *,
        widths: tuple[int, ...] | None = None,
        log: str | Path | None = None,
    ) -> LiveSids:
        """Return a live set that begins with the base that `compact(save=path)` wrote, and makes the log's updates.

        log: the one that was written to when the base was saved, or another. Raises FileNotFoundError; TableFileError
        for a file that is no such base or was damaged, and as `LiveSids` does for the log.
        """
        if log is not None:
            check_apart(path, Path(log))
        matrix, covered = read_base(path)
        made = cls(matrix, capacity, widths=widths)
        if log is not None:
            made._recover(UpdateLog(Path(log), _header(matrix, made._counts), covered))
            made._snapshot = made._made()
        return made

    def _recover(self, log: UpdateLog) -> None:
        """Make the updates of a log again, and write to it from now on."""
        matrix = self._base.matrix
        self.repeat(
            (kind, np.frombuffer(update, "<u4").astype(matrix.columns.dtype).reshape(-1, matrix.length))
            for kind, update in log.recover()
        )
        self._log = log

    def repeat(self, updates: Iterable[tuple[int, Rows]]) -> None:
        """Make updates again, which are as of `update`, and were made before: of a set that had room for them."""
        for kind, rows in updates:  # a compaction had made room before, or the other set had more
            self.make_room(kind, rows)

    def make_room(
        self,
        kind: int,
        sids: ArrayLike,
        record: Callable[[], None] | None = None,
        *,
        prepare: Callable[[SortedMatrix], None] | None = None,
    ) -> None:
        """Make an update as `update` does; where there is no room for it, base and delta are joined behind it.

        The caller lets nothing call `publish` meanwhile. prepare: as of `compact`.
        """
        try:
            self.update(kind, sids, record)
        except DeltaFullError:
            self._apply(kind, self._checked(sids), record, bounded=False)
            self.compact(prepare=prepare)

    def close(self) -> None:
        """Close the log, so that another live set may write to it. Updates of this one then raise ValueError."""
        with self._compacting, self._lock:
            self._closed = True
            if self._log is not None:
                self._log.close()

    def _empty(self) -> _Delta:
        rows = np.empty((0, self._base.matrix.length), self._base.matrix.columns.dtype)
        return _Delta(rows, np.empty(0, np.int64))

    def _set_base(self, base: LiveBase, counts: NDArray[np.int32], parts: tuple[Any, Any, Any]) -> None:
        """Begin with a base, the items of each of its sequences, and `_parts` of both."""
        self._base, self._counts = base, counts
        self._bits, self._masks, self._firsts = parts
        self._base_changed = True

    @property
    def base(self) -> SortedMatrix:
        """The sorted matrix of the last `compact`, or that it began with."""
        return self._base.matrix

    @property
    def num_delta(self) -> int:
        """How many sequences of the set the base does not have."""
        return len(self._delta.rows)

    def insert(self, sids: ArrayLike) -> None:
        """Add an item for each row of sids (N, L); several items may have one sequence.

        Raises ConstraintError, and adds none, for what are no rows of this set's tokens, and where the delta is full.
        """
        self.update(INSERT, sids)

    def delete(self, sids: ArrayLike) -> None:
        """Remove an item for each row of sids (N, L): a sequence stays as long as another item has it.

        Raises ConstraintError, and removes none, where there are not as many.
        """
        self.update(DELETE, sids)

    def update(self, kind: int, sids: ArrayLike, record: Callable[[], None] | None = None) -> None:
        """Insert or delete sids (N, L), as the kind of a record in a log says.

        record: called when it is sure that the update can be made, and before it is; if it raises, nothing changes.
        """
        rows = self._checked(sids)
        if len(rows):
            self._apply(kind, rows, record)

    def _apply(self, kind: int, rows: Rows, record: Callable[[], None] | None, *, bounded: bool = True) -> None:
        """Make an update of rows that were checked, and write it to the log first; arguments as of `_prepared`."""
        with self._lock:
            if self._closed:
                raise ValueError("this live set was closed: its updates would be in no log")
            prepared = self._prepared(kind, rows, bounded=bounded)
            if self._log is not None:
                self._log.append(kind, np.ascontiguousarray(rows, "<u4").tobytes())
            if record is not None:
                record()
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

    def _prepared(self, kind: int, rows: Rows, *, bounded: bool = True) -> tuple[Any, ...]:
        """Return what an update is made of: places in the base and the delta. Raises ConstraintError.

        bounded: whether the delta is kept to its room; if not, it must be compacted before anything is published.
        """
        at = self._base.matrix.find(rows)
        old = at < self._base.matrix.num_sequences
        places, changes = np.unique(at[old], return_counts=True)
        new, counts = _distinct(rows[~old])
        where, there = self._delta.find(new)
        if kind == DELETE:
            if (self._counts[places] < changes).any():
                raise self._missing(self._base.matrix.columns[:, places[self._counts[places] < changes][0]])
            short = ~there
            short[there] = self._delta.counts[where[there]] < counts[there]
            if short.any():
                raise self._missing(new[short][0])
            return places, changes, where, counts, self._delta
        added = ~there
        if bounded and int(added.sum()) > self.capacity:
            raise DeltaFullError(
                f"one update has {int(added.sum()):,} new sequences, and the delta has room for {self.capacity:,}",
                remedies=[Advice("Give a larger {}, or insert fewer items at once.", ("capacity",))],
            )
        if bounded and self.num_delta + int(added.sum()) > self.capacity:
            raise DeltaFullError(
                f"the delta is full: it has {self.num_delta:,} of {self.capacity:,} sequences", remedies=[_COMPACT]
            )
        delta = self._delta
        if there.any():
            delta = _Delta(delta.rows, delta.counts.copy())
            delta.counts[where[there]] += counts[there]
        at = where[added]
        delta = delta.with_rows(at, new[added], counts[added])
        depth = crowded(delta.rows, at + np.arange(at.size), np.array(self._widths, np.int64)) if bounded else -1
        if depth >= 0:
            raise DeltaFullError(
                f"the delta is full at depth {depth}: a prefix would have more than {self._widths[depth]:,} of its "
                "sequences",
                remedies=[*[_COMPACT] * bool(self.num_delta), Advice("Give larger {} for this depth.", ("widths",))],
            )
        return places, changes, where, counts, delta

    def _missing(self, row: object) -> ConstraintError:
        return ConstraintError(f"there are not as many items {np.asarray(row).tolist()} to delete: none was removed")

    def _commit(
        self,
        kind: int,
        rows: Rows,
        places: Int64Array,
        changes: Int64Array,
        where: Int64Array,
        counts: Int64Array,
        delta: _Delta,
    ) -> None:
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
            gone = where[delta.counts[where] == counts]
            lost = np.concatenate([delta.rows[gone], self._base.matrix.columns[:, turned].T])
            if where.size:
                delta = _Delta(delta.rows, delta.counts.copy())
                delta.counts[where] -= counts
            self._delta = delta.without(gone)
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

    def items(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sequences (n, L) in lexicographic order, each once, and how many items each has (n,)."""
        with self._lock:
            base, counts, delta = self._base, self._counts.copy(), self._delta
        matrix, joined = join(base.matrix, counts, delta)
        if matrix is None:
            return np.zeros((0, base.matrix.length), np.int64), np.zeros(0, np.int64)
        return matrix.columns.T.astype(np.int64), joined.astype(np.int64)

    def compact(self, save: str | Path | None = None, *, prepare: Callable[[SortedMatrix], None] | None = None) -> None:
        """Join base and delta, as one sorted matrix: in a thread of its own, while all else goes on.

        Shapes stay as they are as long as the new base has room in them, which is several times the capacity; else
        the next snapshot has others, for which JAX and torch compile once.

        save: where to write the new base, for `load`. Once it is on the disk, a log begins anew, with nothing but what
        came meanwhile. A crash at any time loses no update: keep the two files together. Without it a log goes on being
        one of the base that it began with. prepare: called with the new base before it takes the place of the old one.

        Raises ConstraintError if the new delta has no room for what came meanwhile, and if nothing is left to save:
        then base and delta are as before. Raises OSError if the file cannot be written: the log then goes on as it was.
        """
        with self._compacting:
            with self._lock:
                if self._closed and save is not None:
                    raise ValueError("this live set was closed: its log may be that of another one")
                if save is not None and self._log is not None:
                    check_apart(save, self._log.path)
                base, counts, delta = self._base, self._counts.copy(), self._delta
                covered = None if self._log is None else self._log.covered
                self._since = []
            try:
                matrix, joined = join(base.matrix, counts, delta)
                made = None if matrix is None else LiveBase.of(matrix, base.shape.holding(matrix, self.capacity))
                parts = None if made is None else _parts(made, joined)
                if prepare is not None and made is not None:
                    prepare(made.matrix)
            except BaseException:
                with self._lock:
                    self._since = None
                raise
            with self._lock:
                since, self._since = self._since or [], None
                if made is None or parts is None:  # nothing is left: the base stays, with no row of it in the set
                    if save is not None:
                        raise ConstraintError("the set is empty: a base has one sequence at least", argument="save")
                    return
                saved = joined.copy()
                before = self._base, self._counts, (self._bits, self._masks, self._firsts)
                delta = self._delta
                self._set_base(made, joined, parts)
                self._delta = self._empty()
                try:
                    for kind, rows in since:
                        self._update(kind, rows)
                except ConstraintError:  # what was before holds all updates, and no update of the new base changed it
                    self._set_base(*before)
                    self._delta = delta
                    raise
            if save is not None:
                write_base(save, made.matrix, saved, covered)
                if self._log is not None and covered is not None:
                    with self._lock:
                        self._log.restart(_header(made.matrix, saved), covered)


def _header(base: SortedMatrix, counts: NDArray[Any]) -> bytes:
    """Return how a log of a base begins, whose sequences have so many items."""
    arrays = [counts.astype(np.int64), *base.columns]
    return header_of(SIDS, base.vocab_size, base.length, base.num_sequences, arrays)


def _parts(base: LiveBase, counts: NDArray[np.int32]) -> tuple[Any, Any, Any]:
    """Return the bits, masks and bits of first rows of a base whose sequences have so many items."""
    bits = base.bits_of(counts > 0)
    return bits, base.masks_of(bits), base.firsts_of(bits)


def join(matrix: SortedMatrix, counts: NDArray[np.int32], delta: _Delta) -> tuple[Any, Any]:
    """Return a matrix of the rows that have items and those of a delta, and the items of each; None of no rows."""
    live = counts > 0
    kept = counts[live]
    total = kept.size + len(delta.rows)
    if not total:
        return None, counts
    before = np.append(0, np.cumsum(live))[_places(matrix, delta.rows)]
    new = np.zeros(total, np.bool_)
    new[before + np.arange(len(delta.rows))] = True
    columns = np.empty((matrix.length, total), matrix.columns.dtype)
    for column, out, added in zip(matrix.columns, columns, delta.rows.T, strict=True):
        out[~new] = column[live]
        out[new] = added
    columns.flags.writeable = False
    joined = np.empty(total, np.int32)
    joined[~new], joined[new] = kept, delta.counts
    return SortedMatrix(matrix.vocab_size, columns), joined


def _places(matrix: SortedMatrix, rows: Rows) -> NDArray[np.int64]:
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
