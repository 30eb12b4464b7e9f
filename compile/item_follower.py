"""`ItemFollower`: the items of a catalogue that another process changes, by its file and the log that it writes."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import ConstraintError, MaskwrightError
from ..table.item_ids import ItemIds
from ..table.sorted_matrix import SortedMatrix
from ..table.update_log import LogReader
from .catalogue_file import CatalogueHeader, ItemRows, covered_now, is_fixed, matrix_of, read_fixed, read_live
from .columns import Columns
from .item_store import ItemStore, Published

_TRIES = 5  # a writer may save between the file is read and the log: then both are read again


class ItemFollower:
    """A store of the items of another one, of which it makes each update again that is whole in the log.

    Many processes may follow one log. Where the writer saves its file and begins the log anew, reading goes on there.
    All methods may be called from any thread.

    Raises as `ItemStore.opened` does, FileNotFoundError for a log that is not there, and ConstraintError for a fixed
    catalogue that is not of kind "matrix".
    """

    def __init__(
        self, path: str | os.PathLike[str], log: str | os.PathLike[str] | None, vocabulary: str | None, capacity: int,
        *, widths: tuple[int, ...] | None,
    ) -> None:  # fmt: skip
        if log is None:
            raise ConstraintError("is needed to follow what another process writes to it", argument="log")
        self._path, self._log, self._vocabulary = Path(path), Path(log), vocabulary
        self._capacity, self._widths = capacity, widths
        self._lock = threading.Lock()
        self._compacting: threading.Thread | None = None
        self._fault: tuple[Any, Exception] | None = None  # what kept a catalogue from being read, and of which files
        self._store, self._reader = self._read()
        self._published = self._store.publish()

    def _read(self) -> tuple[ItemStore, LogReader]:
        """Return the store of the file and what reads the log behind it."""
        for left in reversed(range(_TRIES)):
            before = _stamp(self._path)
            if is_fixed(self._path):
                header, table, ids, columns = read_fixed(self._path, self._vocabulary)
                matrix = matrix_of(table, "live catalogues")
                rows, covered, epoch = ItemRows.of(matrix, ids, columns), None, 0
            else:
                header, rows, matrix, covered, epoch = read_live(self._path, self._vocabulary)
            try:
                reader = LogReader(self._log, rows.header(matrix.vocab_size), covered, lambda: covered_now(self._path))
            except MaskwrightError:
                if left and _stamp(self._path) != before:
                    continue
                raise
            store = ItemStore(header, rows, matrix, self._capacity, widths=self._widths, log=None, epoch=epoch)
            store.repeat(reader.new())
            return store, reader
        raise AssertionError("the last try returns or raises")

    @property
    def header(self) -> CatalogueHeader:
        """What the catalogue says beside its items."""
        return self._store.header

    @property
    def num_delta(self) -> int:
        """How many sequences are beside those of the last compaction."""
        return self._store.num_delta

    def live_rows(self) -> tuple[SortedMatrix, ItemIds, Columns]:
        """Return the live items alone, numbered anew. Raises ConstraintError if there is none."""
        return self._store.live_rows()

    def publish(self) -> Published:
        """Return the items as of the last whole update in the log.

        The snapshot is the same one as long as nothing came. Where reading cannot go on, file and log are read anew.
        Raises FileNotFoundError and TableFileError where that fails too; later calls try again once a file has changed.
        """
        with self._lock:
            try:
                updates = self._reader.new() if self._fault is None else None
                if updates:
                    self._store.repeat(updates)
                    self._published = self._store.publish()
            except (MaskwrightError, OSError):
                updates = None
            if updates is None:
                self._read_anew()
            if self._store.num_delta * 2 > self._capacity:
                self._compact_beside()
            return self._published

    def _read_anew(self) -> None:
        stamps = _stamp(self._path), _stamp(self._log)
        if self._fault is not None and self._fault[0] == stamps:
            raise self._fault[1].with_traceback(None)
        try:
            store, reader = self._read()
        except (MaskwrightError, OSError) as error:
            self._fault = stamps, error
            raise
        self._fault = None
        self._reader.close()
        self._store, self._reader = store, reader
        self._published = store.publish()

    def _compact_beside(self) -> None:
        """Join base and delta in a thread, if none does: the next update is of the new base."""
        if self._compacting is None or not self._compacting.is_alive():
            self._compacting = threading.Thread(target=_compact, args=(self._store,), daemon=True)
            self._compacting.start()


def _compact(store: ItemStore) -> None:
    with suppress(ConstraintError):  # what came meanwhile has no room: all is as before, and the next one joins it too
        store.compact()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what tells a file from one that took its place or was written to; None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
