"""`Shop`: one catalogue that the server searches and changes, its named filters, and its files."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ...compile.catalogue import Catalogue
from ...compile.catalogue_file import is_fixed
from ...errors import ConstraintError, MaskwrightError
from ...table.snapshot import LiveFilter, Snapshot
from ..refusals import Refused
from ..settings import CatalogueSettings

_log = logging.getLogger("maskwright.serve")
_MOST_FILTERS = 64  # kept of the newest version
_LOG_BYTES = 64 << 20  # after which the file is saved anew, so that a start reads a short log
_SAVE_AGAIN = 60.0  # seconds after a file could not be saved


class Shop:
    """A catalogue by the name that clients have for it.

    filters: names of filters, and the expressions over columns that they stand for; those whose columns the catalogue
    lacks are of other catalogues. Updates run one after the other in a thread of their own. All methods may be called
    from any thread. Raises what opening the file raises.
    """

    def __init__(self, settings: CatalogueSettings, filters: Sequence[tuple[str, str]] = ()) -> None:
        self.name, self.settings = settings.name, settings
        self.follows, self.lives = settings.follow, settings.log is not None
        self._now = self._opened()
        self.ids_are_strings = self._now.ids.numbers is None
        self._lock = threading.Lock()
        self._changed = False
        self._kept: OrderedDict[tuple[str, ...], LiveFilter] = OrderedDict()  # of the newest version, by expressions
        self.updates = ThreadPoolExecutor(1, "maskwright-updates")
        self._saving: threading.Thread | None = None
        self._save_at = 0.0  # not before this time
        self.fault: str | None = None  # why the newest version may be an old one
        self.unusable: dict[str, ConstraintError] = {}  # filters, and why
        self.filters = dict(self._usable(filters))

    def _opened(self) -> Catalogue:
        own = self.settings
        if own.log is None:  # a store that nothing changes
            fixed = is_fixed(own.file)
            return Catalogue.load(own.file).live(capacity=1) if fixed else Catalogue.open(own.file, capacity=1)
        if not own.follow:
            own.log.parent.mkdir(parents=True, exist_ok=True)
        return Catalogue.open(own.file, log=own.log, capacity=own.capacity, follow=own.follow)

    def _usable(self, filters: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        found = []
        for name, expression in filters:
            if name in self._now.columns:
                raise ConstraintError(f"{name!r} is a column of the catalogue {self.name!r}: name the filter otherwise")
            try:
                self._now.check_expression(expression)
                found.append((name, expression))
            except ConstraintError as error:
                self.unusable[name] = error
        return found

    def close(self) -> None:
        """End updates and close the log, so that another process may write to it."""
        self.updates.shutdown()
        if self._saving is not None:
            self._saving.join()
        if self.lives and not self.follows:
            self._now.close()

    # ------------------------------------------------------------------------------------------------------- versions

    def newest(self) -> Catalogue:
        """Return the catalogue with all updates that were acknowledged before.

        Where a log that it follows cannot be read, `fault` says why, and what was read last is returned.
        """
        with self._lock:
            if self.follows or self._changed:
                self._changed = False
                try:
                    newest = self._now.publish()
                except (MaskwrightError, OSError) as error:
                    if self.fault != str(error):
                        _log.error("the catalogue %r stays as it was: %s", self.name, error)
                    self.fault = str(error)
                    return self._now
                self.fault = None
                if newest.table is not self._now.table or newest.epoch != self._now.epoch:
                    self._kept.clear()
                self._now = newest
            return self._now

    def expression(self, text: str) -> str:
        """Return the expression that a name stands for, or an expression itself."""
        return self.filters.get(text, text)

    def keep(self, version: Catalogue, filters: Sequence[str], deny: Sequence[Any]) -> LiveFilter | None:
        """Return the filter of what passes all expressions and is not denied; None where all items do.

        Raises ConstraintError for a wrong expression.
        """
        kept = self._passing(version, tuple(map(self.expression, filters)))
        rows = [rows for rows in version.rows_of(deny) if rows.size]
        if not rows:
            return kept
        return (snapshot_of(version) if kept is None else kept).without_rows(np.unique(np.concatenate(rows)))

    def _passing(self, version: Catalogue, expressions: tuple[str, ...]) -> LiveFilter | None:
        if not expressions:
            return None
        with self._lock:
            found = self._kept.get(expressions) if version is self._now else None
            if found is not None:
                self._kept.move_to_end(expressions)
                return found
        keep = version.keeps(expressions[0])
        for each in expressions[1:]:
            keep = keep & version.keeps(each)
        made = snapshot_of(version).filter(keep)
        with self._lock:
            if version is self._now:
                self._kept[expressions] = made
                if len(self._kept) > _MOST_FILTERS:
                    self._kept.popitem(last=False)
        return made

    def about(self) -> dict[str, Any]:
        """Return the state of the catalogue, as clients are told."""
        version = self.newest()
        items = snapshot_of(version).items
        assert items is not None, "a snapshot of a catalogue has items"
        return {
            "name": self.name, "epoch": version.epoch, "items": version.num_items,
            "levels": version.code_tokens.length,
            "first": version.ids[int(items.live.argmax())] if items.live.any() else None,
            "changes": "follows" if self.follows else "writes" if self.lives else "never",
            "added": version.num_added if self.lives else 0, "capacity": self.settings.capacity if self.lives else 0,
            "columns": {name: column.kind for name, column in version.columns.items()}, "filters": dict(self.filters),
            "ids": "strings" if self.ids_are_strings else "integers", "fault": self.fault,
        }  # fmt: skip

    # -------------------------------------------------------------------------------------------------------- updates

    def put(
        self, items: Sequence[Any], sids: Sequence[Sequence[int]] | None, columns: Mapping[str, Sequence[Any]]
    ) -> Future[int]:
        """Replace or add items: the result is the epoch that shows them, once they are in the log: `Catalogue.put`.

        Raises Refused if the items do not change here. The result raises ConstraintError, OSError.
        """
        return self._update(lambda now: now.put(items, sids, columns or None))

    def delete(self, items: Sequence[Any]) -> Future[int]:
        """Remove items: the result is the epoch that does not show them, once that is in the log. Raises as `put`."""
        return self._update(lambda now: now.delete(items))

    def _update(self, change: Callable[[Catalogue], int]) -> Future[int]:
        self.check_changes()
        return self.updates.submit(self._changed_by, change)

    def check_changes(self) -> None:
        """Raise Refused if the items do not change here."""
        if self.follows:
            raise Refused(
                f"this process follows the log of the catalogue {self.name!r}: send updates to the one that writes it",
                status=409, code="catalogue_follows",
            )  # fmt: skip
        if not self.lives:
            raise Refused(
                f"the catalogue {self.name!r} has no log, so its items stay as they are: the server's operator adds "
                "--log",
                status=409, code="catalogue_fixed",
            )  # fmt: skip

    def _changed_by(self, change: Callable[[Catalogue], int]) -> int:
        try:
            epoch = change(self._now)
        finally:
            self._changed = True
        if self._now.num_added * 2 > self.settings.capacity or self._log_bytes() > _LOG_BYTES:
            self._save_beside()
        return epoch

    def _log_bytes(self) -> float:
        assert self.settings.log is not None, "a catalogue without a log does not change"
        try:
            return self.settings.log.stat().st_size
        except FileNotFoundError:  # with the file, a log is made anew
            return math.inf

    def _save_beside(self) -> None:
        """Join what was added with the file, in a thread, if none does: the log then begins anew."""
        if time.monotonic() >= self._save_at and (self._saving is None or not self._saving.is_alive()):
            self._saving = threading.Thread(target=self._save, name="maskwright-save", daemon=True)
            self._saving.start()

    def _save(self) -> None:
        try:
            self._now.save(self.settings.file)
        except (MaskwrightError, OSError):
            _log.exception("the catalogue %r was not saved; its log goes on", self.name)
            self._save_at = time.monotonic() + _SAVE_AGAIN
        self._changed = True


def snapshot_of(version: Catalogue) -> Snapshot:
    """Return what a version of a shop's catalogue searches: it always lives."""
    assert isinstance(version.table, Snapshot)
    return version.table
