"""`ItemStore`: the items of a catalogue that lives, which come and go while it is decoded with, and their log."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, ConstraintError, DeltaFullError, TableFileError
from ..table.item_ids import IdIndex, ItemIds
from ..table.item_updates import Put, bytes_of_delete, bytes_of_insert, delete_of_bytes, insert_of_bytes
from ..table.live_items import GrowingArray, ItemIndex, LiveItems
from ..table.live_sids import LiveSids
from ..table.snapshot import Snapshot
from ..table.sorted_matrix import SortedMatrix
from ..table.update_log import DELETE, INSERT, PUT, Covered, UpdateLog, check_apart
from .catalogue_file import CatalogueHeader, ItemRows, read_live, write_live
from .columns import Columns, GrowingColumns
from .sequences import rectangle, sort_sids


class Published(NamedTuple):
    """The items of a store as they were at one moment."""

    table: Snapshot
    ids: ItemIds  # of all rows that ever were
    columns: Columns
    epoch: int  # how many updates it had taken
    by_id: IdIndex  # which may have later rows too


class ItemStore:
    """Items that come and go between the steps of running searches, and an optional log of what came and went.

    Args:
        header: what the catalogue says beside its items.
        rows: the items that it begins with, of which `matrix` has those that are live.
        matrix: the sorted matrix of their tokens.
        capacity, widths: as of `LiveSids`.
        log: the file to which each update is written before the call returns. Updates in it are made again first.
        covered: how much of the log is in `rows` already.
        epoch: how many updates are in `rows`.

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
        epoch: int = 0,
    ) -> None:
        self.header = header
        self.epoch = epoch
        self._columns, self._by_id = GrowingColumns(rows.columns), IdIndex(rows.ids)
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
                self.epoch += 1
                if kind == INSERT:
                    read, ids = insert_of_bytes(update, matrix.length, self._ids.are_strings)
                    tokens = read.astype(matrix.columns.dtype)
                    self._sids.repeat([(kind, tokens)])
                    self._take(tokens, ids, {})
                elif kind == DELETE:
                    rows = delete_of_bytes(update)
                    self._sids.repeat([(kind, self._tokens.view()[rows])])
                    self._live.view()[rows] = False
                elif kind == PUT:
                    put = Put.of_bytes(update, matrix.length, self._ids.are_strings)
                    put = put._replace(tokens=put.tokens.astype(matrix.columns.dtype))
                    self._sids.repeat([(INSERT, put.tokens), (DELETE, self._tokens.view()[put.gone])])
                    self._make(put)
                else:
                    raise TableFileError(
                        f"the log has an update of kind {kind}, which this maskwright does not know",
                        remedies=[Advice("Read it with the maskwright that wrote it, or a later one.")],
                    )
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

    def _take(self, tokens: NDArray[Any], ids: ItemIds, values: Mapping[str, Sequence[Any]]) -> None:
        """Give the next rows to items."""
        first = len(self._tokens.view())
        self._columns.append(values, len(tokens))
        self._by_id.append(first, ids)
        self._tokens.append(tokens)
        self._live.append(np.ones(len(tokens), np.bool_))
        self._ids.append(ids)
        self._index.append(range(first, first + len(tokens)), tokens)

    def _make(self, put: Put) -> None:
        """Do what a put says with rows; sequences are done with."""
        self._columns.set(put.changed, put.changes)
        self._live.view()[put.gone] = False
        if len(put.tokens):
            self._take(put.tokens, put.ids, put.values)

    @property
    def num_delta(self) -> int:
        """How many sequences were inserted that the base does not have: `capacity` at most."""
        return self._sids.num_delta

    def insert(self, sids: Sized, items: Sized, columns: Mapping[str, Sequence[Any]]) -> int:
        """Add items: codes (N, L) as of the catalogue's semantic IDs, and ids (N,), each of which takes the next row.

        An id that is there already has one semantic ID more. columns: values (N,); of one that is not named they are
        missing. Returns the epoch that shows them. Raises ConstraintError, and adds none, for codes that have no token,
        for ids and values of another kind, and where the delta is full.
        """
        if not len(sids) and not len(items):
            return self.epoch
        tokens, ids = self._read(sids, items)
        values = self._columns.checked(columns, len(ids))
        with self._lock:
            self._check_open()
            if values:
                none = np.empty(0, np.int64)
                self._put(Put(tokens, ids, values, none, none, {}))
            else:
                self._sids.update(INSERT, tokens, lambda: self._record(INSERT, bytes_of_insert(tokens, ids)))
                self._take(tokens, ids, {})
                self.epoch += 1
            return self.epoch

    def _read(self, sids: Sized, items: Sized) -> tuple[NDArray[Any], ItemIds]:
        """Return the tokens (N, L) and the ids of items. Raises ConstraintError."""
        codes, ids = rectangle(sids), ItemIds.of(items)
        if len(ids) != len(codes):
            raise ConstraintError(
                f"there are {len(ids):,} item ids for {len(codes):,} semantic IDs: one each is needed"
            )
        self._ids.check(ids)
        matrix = self._sids.base
        tokens = np.empty(codes.shape, matrix.columns.dtype)
        self.header.code_tokens.tokens(codes, tokens, matrix.vocab_size)
        return tokens, ids

    def put(self, items: Sequence[Any], sids: Sized | None, columns: Mapping[str, Sequence[Any]]) -> int:
        """Replace or add items by their ids (N,), all at once, and return the epoch that shows them.

        sids: codes (N, L); None: each item is there and keeps its own. columns: values (N,); a column that is not named
        stays as it was for an item that is there, and is missing for another. Raises ConstraintError, and changes
        nothing, as `insert` does, for an id that comes twice, and without `sids` for one that there is not.
        Where the delta has no room, base and delta are joined.
        """
        if not len(items) and (sids is None or not len(sids)):
            return self.epoch
        tokens, ids = (None, ItemIds.of(items)) if sids is None else self._read(sids, items)
        self._ids.check(ids)
        named = list(ids)
        if len(set(named)) < len(named):
            twice = Counter(named).most_common(1)[0][0]
            raise ConstraintError(f"item {twice!r} comes twice: put it once")
        values = self._columns.checked(columns, len(named))
        with self._lock:
            self._check_open()
            with suppress(DeltaFullError):
                self._put(self._planned(named, ids, tokens, values))
                return self.epoch
        with suppress(DeltaFullError):  # what came meanwhile has no room either
            self.compact()
        with self._lock:
            self._check_open()
            self._put(self._planned(named, ids, tokens, values), join=True)
            return self.epoch

    def _planned(
        self, named: list[Any], ids: ItemIds, tokens: NDArray[Any] | None, columns: Mapping[str, Sequence[Any]]
    ) -> Put:
        """Return what a put does with rows: where an item keeps its only semantic ID, columns change in their place."""
        live, all_tokens = self._live.view(), self._tokens.view()
        there = [rows[live[rows]] for rows in self._by_id.rows(named, len(live))]
        if tokens is None and (gone := [each for each, rows in zip(named, there, strict=True) if not rows.size]):
            raise ConstraintError(f"there is no item {gone[0]!r}, so that it needs a semantic ID: nothing was put")
        stays = [
            tokens is None or (rows.size == 1 and bool((all_tokens[rows[0]] == tokens[at]).all()))
            for at, rows in enumerate(there)
        ]
        new = [at for at, each in enumerate(stays) if not each]
        old = [np.array([], np.int64), *(there[at] for at, each in enumerate(stays) if each)]
        values = {name: [each[at] for at in new] for name, each in columns.items()}
        before = [int(there[at][0]) if there[at].size else -1 for at in new]
        if any(row >= 0 for row in before):  # what is not named stays
            for name, each in self._columns.at(np.array([max(row, 0) for row in before], np.int64)).items():
                if name not in columns:
                    values[name] = [v if row >= 0 else None for v, row in zip(each, before, strict=True)]
        if tokens is None:  # all rows of an item change
            changes = {
                name: [v for v, rows in zip(each, there, strict=True) for _ in rows] for name, each in columns.items()
            }
        else:
            changes = {name: [each[at] for at, same in enumerate(stays) if same] for name, each in columns.items()}
        place = np.array(new, np.int64)
        rows = np.empty((0, all_tokens.shape[1]), all_tokens.dtype) if tokens is None else tokens[place]
        gone_rows = np.concatenate([np.array([], np.int64), *(there[at] for at in new)])
        return Put(rows, ids.take(place), values, gone_rows, np.concatenate(old), changes)

    def _put(self, put: Put, *, join: bool = False) -> None:
        """Write a put to the log and make it; the lock is held. Raises DeltaFullError, and changes nothing.

        join: whether base and delta are joined, while the lock is held, where the delta has no room.
        """

        def record() -> None:
            self._record(PUT, put.to_bytes())

        if len(put.tokens) and join:
            self._sids.make_room(INSERT, put.tokens, record, prepare=self._prepare)
        elif len(put.tokens):
            self._sids.update(INSERT, put.tokens, record)
        else:
            record()
        self._sids.update(DELETE, self._tokens.view()[put.gone])
        self._make(put)
        self.epoch += 1

    def delete(self, items: Sequence[Any]) -> int:
        """Remove all items with any of some ids (n,), and return the epoch that does not show them.

        Raises ConstraintError, and removes none, for an id that no item has.
        """
        named = list(ItemIds.of(items))
        if not named:
            return self.epoch
        with self._lock:
            self._check_open()
            live = self._live.view()
            there = [rows[live[rows]] for rows in self._by_id.rows(named, len(live))]
            for each, rows in zip(named, there, strict=True):
                if not rows.size:
                    raise ConstraintError(f"there is no item {each!r} to delete: none was removed", argument="items")
            gone = np.unique(np.concatenate(there))
            self._sids.update(DELETE, self._tokens.view()[gone], lambda: self._record(DELETE, bytes_of_delete(gone)))
            live[gone] = False
            self.epoch += 1
            return self.epoch

    def publish(self) -> Published:
        """Return the items as they are now."""
        with self._lock:
            snapshot = self._sids.publish()
            self._follow(snapshot.base.matrix)
            items = LiveItems(self._index, self._tokens.view(), self._live.view().copy(), self._owner)
            columns = self._columns.view()
            return Published(replace(snapshot, items=items), self._ids.view(), columns, self.epoch, self._by_id)

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
                tokens, ids, columns, epoch = self._tokens.view(), self._ids.view(), self._columns.view(), self.epoch
                covered = None if self._log is None else self._log.covered
            if save is None or live is None:
                return
            if not live.any():
                raise ConstraintError("there is no item left: nothing could be decoded")
            rows = ItemRows(tokens, live, ids, columns)
            size = self._sids.base.vocab_size
            header = rows.header(size)
            write_live(save, self.header, rows, size, covered, epoch)
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

    def live_rows(self) -> tuple[SortedMatrix, ItemIds, Columns]:
        """Return the live items alone, numbered anew. Raises ConstraintError if there is none."""
        with self._lock:
            live, tokens, ids = self._live.view().copy(), self._tokens.view(), self._ids.view()
            columns = self._columns.view()
        rows = np.flatnonzero(live)
        if not rows.size:
            raise ConstraintError("there is no item left: nothing could be decoded")
        kept = {name: column.take(rows) for name, column in columns.items()}
        return sort_sids(tokens[rows], self._sids.base.vocab_size), ids.take(rows), kept

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
        header, rows, matrix, covered, epoch = read_live(path, vocabulary)
        return cls(header, rows, matrix, capacity, widths=widths, log=log, covered=covered, epoch=epoch)


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
