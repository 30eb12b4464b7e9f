"""`LiveCatalogue`: a catalogue whose items come and go while it is decoded with."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Advice, ConstraintError
from ..table.item_ids import ItemIds
from ..table.live_items import GrowingArray, ItemIndex, LiveItems
from ..table.live_sids import LiveSids
from ..table.sorted_matrix import SortedMatrix
from .catalogue import Catalogue
from .sequences import rectangle, sort_sids


class LiveCatalogue:
    """A catalogue that takes items in and lets them go, between the steps of running searches.

    catalogue: of kind "matrix", the items that it begins with. capacity, widths: as of `LiveSids`.

    `publish` returns a `Catalogue` of what is in it: its `table`, a `Snapshot`, goes on a device, `filter` and
    `without` make filters of it, and `items` returns ids of what was found. Items are rows: those that it began with in
    their order, then each inserted one, in the order of the calls. A row is never used again, so columns over the items
    only grow. All methods may be called from any thread.

    Raises ConstraintError for a catalogue that is not of kind "matrix".

    >>> live = LiveCatalogue(Catalogue.of([[3, 1], [3, 0]], ["shoe", "hat"], 12, offsets=[0, 4], kind="matrix"))
    >>> live.insert([[2, 2]], ["sock"])
    >>> live.delete(["hat"])
    >>> now = live.publish()
    >>> now.items(now.states([[3, 5], [3, 4], [2, 6]]))
    ['shoe', 'sock']
    """

    def __init__(self, catalogue: Catalogue, capacity: int = 1 << 16, *, widths: tuple[int, ...] | None = None) -> None:
        if not isinstance(catalogue, Catalogue):
            raise TypeError(f"catalogue must be a Catalogue, not a {type(catalogue).__name__}")
        matrix = catalogue.table
        if not isinstance(matrix, SortedMatrix):
            raise ConstraintError(
                "live catalogues are of sorted matrices, and this catalogue has another table",
                remedies=[Advice('Make it with {}="matrix"', ("kind",))],
            )
        self._first = catalogue
        self._sids = LiveSids(matrix, capacity, widths=widths)
        self._lock = threading.Lock()
        self._owner = object()
        tokens = np.empty((matrix.num_items, matrix.length), matrix.columns.dtype)
        order = matrix.item_row if matrix.item_row.size else slice(None)
        counts = np.diff(matrix.item_start) if matrix.item_start.size else 1
        for level, column in enumerate(matrix.columns):
            tokens[order, level] = np.repeat(column, counts)
        self._tokens = GrowingArray(tokens)
        self._live = GrowingArray(np.ones(len(tokens), np.bool_))
        self._ids = _GrowingIds(catalogue.ids)
        self._index = ItemIndex(matrix, tokens, np.ones(len(tokens), np.bool_))

    @property
    def num_items(self) -> int:
        """How many items are in it."""
        with self._lock:
            return int(self._live.view().sum())

    @property
    def num_delta(self) -> int:
        """How many sequences were inserted that the base does not have: `capacity` at most."""
        return self._sids.num_delta

    def insert(self, sids: Any, items: Any) -> None:
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
        self._first.code_tokens.tokens(codes, tokens, matrix.vocab_size)
        with self._lock:
            self._sids.insert(tokens)
            first = len(self._tokens.view())
            self._tokens.append(tokens)
            self._live.append(np.ones(len(tokens), np.bool_))
            self._ids.append(ids)
            self._index.append(range(first, first + len(tokens)), tokens)

    def delete(self, items: Any) -> None:
        """Remove all items with any of some ids (n,). A call looks through all ids: give many at once.

        Raises ConstraintError, and removes none, for an id that no item has.
        """
        wanted = ItemIds.of(items)
        with self._lock:
            ids, live = self._ids.view(), self._live.view()
            rows = ids.rows(items)
            rows = rows[live[rows]]
            found = set(ids.at(rows))
            for each in wanted.at(np.arange(len(wanted))):
                if each not in found:
                    raise ConstraintError(f"there is no item {each!r} to delete: none was removed", argument="items")
            self._sids.delete(self._tokens.view()[rows])
            live[rows] = False

    def publish(self) -> Catalogue:
        """Return the catalogue as it is now, for searches that begin from now on.

        Its rows of items are all that ever were, see the class; those of deleted items are never found.
        """
        with self._lock:
            snapshot = self._sids.publish()
            self._follow(snapshot.base.matrix)
            items = LiveItems(self._index, self._tokens.view(), self._live.view().copy(), self._owner)
            return replace(self._first, table=replace(snapshot, items=items), ids=self._ids.view())

    def compact(self) -> None:
        """Join base and delta, as `LiveSids.compact` does: in a thread of its own, while all else goes on."""
        self._sids.compact()
        with self._lock:
            self._follow(self._sids.base)
            index = self._index
        index.build()

    def _follow(self, base: SortedMatrix) -> None:
        """Begin another index if the base is another one; the lock is held."""
        if self._index.base is not base:
            self._index = ItemIndex(base, self._tokens.view(), self._live.view().copy())

    def catalogue(self) -> Catalogue:
        """Return what is in it as a catalogue by itself, such as to save it: its rows are the live ones, in order.

        Raises ConstraintError if there is no item.
        """
        with self._lock:
            live, tokens, ids = self._live.view().copy(), self._tokens.view(), self._ids.view()
        rows = np.flatnonzero(live)
        if not rows.size:
            raise ConstraintError("there is no item left: nothing could be decoded")
        return replace(self._first, table=sort_sids(tokens[rows], self._sids.base.vocab_size), ids=ids.take(rows))

    def __repr__(self) -> str:
        return f"LiveCatalogue({self.num_items:,} items, {self._sids.base!r}, {self.num_delta:,} sequences besides)"


class _GrowingIds:
    """Ids that are appended to."""

    def __init__(self, ids: ItemIds) -> None:
        self._numbers = None if ids.numbers is None else GrowingArray(ids.numbers)
        self._text = None if ids.text is None else GrowingArray(ids.text)
        self._starts = None if ids.starts is None else GrowingArray(ids.starts)

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
