"""`ItemStore`: the items of a catalogue that lives, which come and go while it is decoded with, and their log."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConstraintError
from ..table.item_ids import ItemIds
from ..table.item_updates import bytes_of_delete, bytes_of_insert, delete_of_bytes, insert_of_bytes
from ..table.live_items import GrowingArray, ItemIndex, LiveItems
from ..table.live_sids import LiveSids
from ..table.snapshot import Snapshot
from ..table.sorted_matrix import SortedMatrix
from ..table.update_log import DELETE, INSERT, Covered, UpdateLog, check_apart
from .catalogue_file import CatalogueHeader, ItemRows, read_live, write_live
from .sequences import rectangle, sort_sids


class ItemStore:
    """Items that come and go between the steps of running searches, and an optional log of what came and went.

    Args:
        header: what the catalogue says beside its items.
        rows: the items that it begins with, of which `matrix` has those that are live.
        matrix: the sorted matrix of their tokens.
        capacity, widths: as of `LiveSids`.
        log: the file to which each update is written before the call returns. Updates in it are made again first.
        covered: how much of the log is in `rows` already.

    Items are rows: those that it began with in their order, then each inserted one, in the order of the calls. A row is
    never used again, so columns over the items only grow. All methods may be called from any thread.

    Raises:
        TableFileError: for a file that is no log, one of another catalogue, one that is damaged before its end, and one
            that another store writes to.
    """

    def __init__(
        self,
        header: CatalogueHeader,
        rows: ItemRows,
        matrix: SortedMatrix,
        capacity: int,
        *,
        widths: tuple[int, ...] | None,
        log: str | os.PathLike[str] | None,
        covered: Covered | None = None,
    ) -> None:
        self.header = header
        self._sids = LiveSids(matrix, capacity, widths=widths)
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._owner = object()
        self._log: UpdateLog | None = None
        self._closed = False
        self._tokens, self._live, self._ids = GrowingArray(rows.tokens), GrowingArray(rows.live), _GrowingIds(rows.ids)
        self._index = ItemIndex(matrix, rows.tokens, rows.live.copy())
        self._prepared: ItemIndex | None = None
        if log is not None:
            self._recover(UpdateLog(Path(log), rows.header(matrix.vocab_size), covered))

    def _recover(self, log: UpdateLog) -> None:
        """Make the updates of a log again, and write to it from now on."""
        self.repeat(log.recover())
        self._log = log

    def repeat(self, updates: Iterable[tuple[int, bytes]]) -> None:
        """Make updates again, as logs have them. Where there is no room, the store is compacted first."""
        matrix = self._sids.base
        with self._lock:
            for kind, update in updates:
                if kind == INSERT:
                    read, ids = insert_of_bytes(update, matrix.length, self._ids.are_strings)
                    tokens = read.astype(matrix.columns.dtype)
                    self._sids.repeat([(kind, tokens)])
                    self._take(tokens, ids)
                else:
                    rows = delete_of_bytes(update)
                    self._sids.repeat([(kind, self._tokens.view()[rows])])
                    self._live.view()[rows] = False
            self._follow(self._sids.base)

    def close(self) -> None:
        """Close the log, so that another store may write to it. Updates of this one then raise ValueError."""
        with self._saving, self._lock:
            self._closed = True
            if self._log is not None:
                self._log.close()

    def _record(self, kind: int, update: bytes) -> None:
        """Write an update to the log, if there is one."""
        if self._log is not None:
            self._log.append(kind, update)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this live catalogue was closed: its updates would be in no log")

    def _take(self, tokens: NDArray[Any], ids: ItemIds) -> None:
        """Give the next rows to items."""
        first = len(self._tokens.view())
        self._tokens.append(tokens)
        self._live.append(np.ones(len(tokens), np.bool_))
        self._ids.append(ids)
        self._index.append(range(first, first + len(tokens)), tokens)

    @property
    def num_delta(self) -> int:
        """How many sequences were inserted that the base does not have: `capacity` at most."""
        return self._sids.num_delta

    def insert(self, sids: Sized, items: Sized) -> None:
        """Add items: codes (N, L) as of the catalogue's semantic IDs, and ids (N,), each of which takes the next row.

        An id that is there already has one semantic ID more. Raises ConstraintError, and adds none, for codes that have
        no token, for ids of another kind, and where the delta is full.
        """
        if not len(sids) and not len(items):
            return
        codes, ids = rectangle(sids), ItemIds.of(items)
        if len(ids) != len(codes):
            raise ConstraintError(
                f"there are {len(ids):,} item ids for {len(codes):,} semantic IDs: one each is needed"
            )
        self._ids.check(ids)
        matrix = self._sids.base
        tokens = np.empty(codes.shape, matrix.columns.dtype)
        self.header.code_tokens.tokens(codes, tokens, matrix.vocab_size)
        with self._lock:
            self._check_open()
            self._sids.update(INSERT, tokens, lambda: self._record(INSERT, bytes_of_insert(tokens, ids)))
            self._take(tokens, ids)

    def delete(self, items: object) -> None:
        """Remove all items with any of some ids (n,). A call looks through all ids: give many at once.

        Raises ConstraintError, and removes none, for an id that no item has.
        """
        wanted = ItemIds.of(items)
        with self._lock:
            self._check_open()
            ids, live = self._ids.view(), self._live.view()
            rows = ids.rows(items)
            rows = rows[live[rows]]
            found = set(ids.at(rows))
            for each in wanted.at(np.arange(len(wanted))):
                if each not in found:
                    raise ConstraintError(f"there is no item {each!r} to delete: none was removed", argument="items")
            self._sids.update(DELETE, self._tokens.view()[rows], lambda: self._record(DELETE, bytes_of_delete(rows)))
            live[rows] = False

    def publish(self) -> tuple[Snapshot, ItemIds]:
        """Return the items as they are now, with the ids of all rows that ever were."""
        with self._lock:
            snapshot = self._sids.publish()
            self._follow(snapshot.base.matrix)
            items = LiveItems(self._index, self._tokens.view(), self._live.view().copy(), self._owner)
            return replace(snapshot, items=items), self._ids.view()

    def compact(self, save: str | os.PathLike[str] | None = None) -> None:
        """Join base and delta, as `LiveSids.compact` does: in a thread of its own, while all else goes on.

        save: where to write all rows of items, for `opened`. Once they are on the disk, a log begins anew, with nothing
        but what came meanwhile. A crash at any time loses no update. Raises ConstraintError if no item is left to save,
        and OSError if the file cannot be written: the log then goes on as it was.
        """
        with self._saving:
            if save is not None:
                self._check_open()
                if self._log is not None:
                    check_apart(save, self._log.path)
            self._sids.compact(prepare=self._prepare)
            with self._lock:
                self._follow(self._sids.base)
                live = None if save is None else self._live.view().copy()
                tokens, ids = self._tokens.view(), self._ids.view()
                covered = None if self._log is None else self._log.covered
            if save is None or live is None:
                return
            if not live.any():
                raise ConstraintError("there is no item left: nothing could be decoded")
            rows = ItemRows(tokens, live, ids)
            size = self._sids.base.vocab_size
            header = rows.header(size)
            write_live(save, self.header, rows, size, covered)
            if self._log is not None and covered is not None:
                with self._lock:
                    self._log.restart(header, covered)

    def _prepare(self, base: SortedMatrix) -> None:
        """Build the index of a base that is to come, so that no search waits for it.

        It holds no lock, as what holds it may wait for the compaction: rows that come meanwhile are appended later.
        """
        alive = self._live.view().copy()  # which grows after the tokens
        index = ItemIndex(base, self._tokens.view()[: len(alive)], alive)
        index.build()
        self._prepared = index

    def _follow(self, base: SortedMatrix) -> None:
        """Begin another index if the base is another one; the lock is held."""
        if self._index.base is base:
            return
        index, self._prepared, tokens = self._prepared, None, self._tokens.view()
        if index is None or index.base is not base:
            index = ItemIndex(base, tokens, self._live.view().copy())
        index.append(range(index.count, len(tokens)), tokens[index.count :])
        self._index = index

    def live_rows(self) -> tuple[SortedMatrix, ItemIds]:
        """Return the live items alone, numbered anew. Raises ConstraintError if there is none."""
        with self._lock:
            live, tokens, ids = self._live.view().copy(), self._tokens.view(), self._ids.view()
        rows = np.flatnonzero(live)
        if not rows.size:
            raise ConstraintError("there is no item left: nothing could be decoded")
        return sort_sids(tokens[rows], self._sids.base.vocab_size), ids.take(rows)

    @classmethod
    def opened(
        cls,
        path: str | os.PathLike[str],
        vocabulary: str | None,
        capacity: int,
        *,
        widths: tuple[int, ...] | None,
        log: str | os.PathLike[str] | None,
    ) -> ItemStore:
        """Return the store that `compact(save=path)` wrote, with the updates of a log.

        Raises FileNotFoundError; TableFileError for a file that is no live catalogue or was damaged, and as the class
        does for the log; VocabularyMismatchError for another vocabulary's.
        """
        header, rows, matrix, covered = read_live(path, vocabulary)
        return cls(header, rows, matrix, capacity, widths=widths, log=log, covered=covered)


class _GrowingIds:
    """Ids that are appended to."""

    def __init__(self, ids: ItemIds) -> None:
        self._numbers = None if ids.numbers is None else GrowingArray(ids.numbers)
        self._text = None if ids.text is None else GrowingArray(ids.text)
        self._starts = None if ids.starts is None else GrowingArray(ids.starts)

    @property
    def are_strings(self) -> bool:
        """Whether ids are strings, not integers."""
        return self._numbers is None

    def check(self, ids: ItemIds) -> None:
        """Raise ConstraintError for ids of the other kind."""
        if len(ids) and (ids.numbers is None) != (self._numbers is None):
            kind = "strings" if self._numbers is None else "integers"
            raise ConstraintError(f"item ids must be {kind}, as those of the catalogue are", argument="items")

    def append(self, ids: ItemIds) -> None:
        """Append ids of the same kind."""
        if self._numbers is not None and ids.numbers is not None:
            self._numbers.append(ids.numbers)
        elif self._text is not None and self._starts is not None and ids.text is not None and ids.starts is not None:
            self._starts.append(ids.starts[1:] + self._starts.view()[-1])
            self._text.append(ids.text)

    def view(self) -> ItemIds:
        """Return all ids up to now."""
        arrays: list[NDArray[Any] | None] = [
            None if each is None else each.view() for each in (self._numbers, self._text, self._starts)
        ]
        return ItemIds(*arrays)
