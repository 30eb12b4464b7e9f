"""`Snapshot`: a live set as it was published, with which searches begin; and `LiveFilter`, the part of it to return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Advice, ConstraintError, TableError
from .filter_bits import booleans
from .live_base import LiveBase
from .live_items import LiveItems
from .transition_table import integer_vocabulary

Rows = NDArray[np.unsignedinteger[Any]]
Bools = NDArray[np.bool_]
Words = NDArray[np.uint32]

_FEW_ROWS = 512  # of items that are left out one by one: 1 us each, where all of 10^6 take 10 ms


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A live set as it was when it was published: a constraint, which never changes."""

    epoch: int  # how many were published before
    base: LiveBase
    bits: Words  # which rows of the base are in the set
    masks: NDArray[np.uint8]  # which tokens come first, and which second after each first one, in base or delta
    firsts: Words  # bits of the base's first rows
    delta: Rows  # (D, L) rows in order that the base does not have
    capacity: int  # the most rows of a delta
    delta_widths: tuple[int, ...]  # (L,) the most rows of a delta below a prefix, by depth
    items: LiveItems | None = None  # of a catalogue, whose items have rows of their own

    eos = None
    ends = other_ends = ()
    fixed_length = min_length = max_length = property(lambda self: self.base.matrix.length)

    def __repr__(self) -> str:
        """Say how large it is."""
        return f"Snapshot({self.epoch}, {self.num_sequences:,} sequences, {len(self.delta):,} of them of the delta)"

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
        return _count(self.bits) + len(self.delta)

    @property
    def num_items(self) -> int:
        """N: the rows of items of a catalogue, deleted ones among them. Raises TableError for one that knows none."""
        if self.items is None:
            raise TableError("a snapshot of LiveSids knows no items: use that of a catalogue")
        return int(self.items.live.size)

    @property
    def memory(self) -> int:
        """Bytes of what changes, without the base."""
        return int(self.bits.nbytes + self.masks.nbytes + self.firsts.nbytes + self.delta.nbytes)

    nbytes = memory

    def to_table(self) -> Snapshot:
        """Return this snapshot: it is put on a device as it is."""
        return self

    @property
    def sids(self) -> Rows:
        """The sequences of the set (Q, L), each once: in order those of the base, then in order those of the delta."""
        columns, live = self.base.matrix.columns, self.base.live_rows(self.bits)
        return np.concatenate([np.stack([column[live] for column in columns], axis=1), self.delta])

    def filter(self, keep: object) -> LiveFilter:
        """Return a filter that keeps some of the sequences, or of the items of a catalogue.

        keep: (Q,) booleans, one for each row of `sids`, in that order: an array, or a column of Arrow, Polars,
        pandas or DuckDB. Of a catalogue: (N,) booleans, one for each row of items, where those of deleted items say
        nothing.
        `LiveFilter.at` takes the filter over to a later snapshot.

        Raises ConstraintError for anything but booleans, for null, and where there are not as many.

        >>> from maskwright import sort_sids
        >>> from maskwright.table.live_sids import LiveSids
        >>> snapshot = LiveSids(sort_sids([[3, 1], [0, 2]], vocab_size=4)).publish()
        >>> snapshot.filter(snapshot.sids[:, 0] == 3).contains([[3, 1], [0, 2]])
        array([ True, False])
        """
        column = booleans(keep)
        if self.items is not None:
            if column.shape != self.items.live.shape:
                raise ConstraintError(
                    f"keep has shape {column.shape}, one boolean is needed for each of the {self.items.live.size:,} "
                    "rows of items: those that it began with, and all that were inserted, in this order",
                    argument="keep",
                )
            return self.of_items(column & self.items.live)
        if column.shape != (self.num_sequences,):
            raise ConstraintError(
                f"keep has shape {column.shape}, one boolean is needed for each of the {self.num_sequences:,} "
                "sequences of the snapshot, in the order of its sids",
                argument="keep",
            )
        base = self.base.live_rows(self.bits).copy()
        old = column.size - len(self.delta)
        base[base] = column[:old]
        return LiveFilter(self, self.base.bits_of(base), column[old:].copy())

    def without_rows(self, rows: NDArray[np.int64]) -> LiveFilter:
        """Return the filter, of a catalogue, that leaves out rows of items (n,) and keeps all others."""
        assert self.items is not None
        return LiveFilter(self, self.bits, np.ones(len(self.delta), np.bool_), self.items.live).without_rows(rows)

    def of_items(self, kept: Bools) -> LiveFilter:
        """Return the filter of the sequences that have an item that is kept: (N,), of a catalogue, live rows alone."""
        assert self.items is not None
        base, tokens = self.items.sequences_of(kept)
        delta = np.zeros(len(self.delta), np.bool_)
        if len(tokens):
            delta[np.searchsorted(keys_of(self.delta), keys_of(tokens))] = True
        return LiveFilter(self, self.base.bits_of(base), delta, kept)

    def input_rows(self, states: ArrayLike) -> list[NDArray[np.int64]]:
        """Return the rows of items of each sequence (N,) that a decoder ended with; () where it is of none.

        Of a snapshot of a catalogue. Raises TypeError for another, which knows its sequences alone.
        """
        return self.rows_of(states, None)

    def rows_of(self, states: ArrayLike, kept: Bools | None) -> list[NDArray[np.int64]]:
        """Return the rows of items of each sequence (N,), of those that are kept (N,); None: of the live ones."""
        if self.items is None:
            raise TypeError("this live set knows sequences, not items: a Catalogue knows both")
        nodes = np.atleast_1d(np.asarray(states)).astype(np.int64)
        rows, count = self.sequences(nodes), self.base.matrix.num_sequences
        none = np.empty(0, np.int64)
        kept = self.items.live if kept is None else kept
        return [
            self.items.rows_of(min(node, count), tokens.astype(self.delta.dtype), kept) if tokens[0] >= 0 else none
            for node, tokens in zip(nodes.tolist(), rows, strict=True)
        ]

    def find(self, sids: ArrayLike) -> NDArray[np.int64]:
        """Return the state that each row of sids (N, L) ends in: the `node` of decoders; the dead one if it is none."""
        count, matrix = self.base.shape.count, self.base.matrix
        out = np.where(self.contains(sids), matrix.find(sids), count)
        if len(self.delta):
            rows = np.flatnonzero(out == matrix.num_sequences)  # in the set, and not in the base
            keys = keys_of(np.asarray(sids)[rows].astype(self.delta.dtype))
            out[rows] = count + 1 + np.searchsorted(keys_of(self.delta), keys)
        return out

    def contains(self, sids: ArrayLike) -> Bools:
        """Return whether each row of sids (N, L) is in the set: bool (N,)."""
        return self.holds(sids, self.bits, np.ones(len(self.delta), np.bool_))

    def holds(self, sids: ArrayLike, bits: Words, delta: Bools) -> Bools:
        """Return whether rows (N, L) are among rows of the base whose bits are set, or rows (D,) of the delta."""
        at = self.base.matrix.find(sids)
        found: Bools = (bits[at >> 5] >> (at & 31).astype(np.uint32)) & 1 != 0
        rows = np.asarray(sids)
        if len(self.delta) and rows.ndim == 2 and rows.shape[1] == self.fixed_length:
            inside: Bools = np.all((rows >= 0) & (rows < self.vocab_size), axis=1)
            keys, asked = keys_of(self.delta), keys_of(np.where(inside[:, None], rows, 0).astype(self.delta.dtype))
            place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
            found |= inside & (keys[place] == asked) & delta[place]
        return found

    def sequences(self, states: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens (N, L) of the sequences that decoders ended with; -1 where a state is of none.

        states: the `node` of final states.
        """
        nodes = np.atleast_1d(np.asarray(states)).astype(np.int64)
        out = np.full((nodes.size, self.fixed_length), -1, np.int64)
        count = self.base.shape.count
        old = (nodes >= 0) & (nodes < self.base.matrix.num_sequences)
        new = (nodes > count) & (nodes <= count + len(self.delta))
        out[old] = self.base.matrix.columns[:, nodes[old]].T
        out[new] = self.delta[nodes[new] - count - 1]
        return out


@dataclass(frozen=True, eq=False)
class LiveFilter:
    """A choice among the sequences of a snapshot, and as a constraint these sequences. `Snapshot.filter` makes one.

    It belongs to its snapshot: filters of one snapshot are joined by `&`, `|` and `~`, and `at` takes one over to
    another snapshot. Decoders, a `Matcher` and `to_device` take it in place of the snapshot; `ops.with_filters` gives
    each row of a batch its own. Whatever is allowed leads to a sequence that the filter keeps.
    """

    snapshot: Snapshot
    bits: Words  # which rows of the base are in the set and kept
    delta: Bools  # (D,) which rows of the delta are kept
    items: Bools | None = None  # (N,) of a catalogue: which rows of items are live and kept

    eos = None
    ends = other_ends = ()
    fixed_length = min_length = max_length = property(lambda self: self.snapshot.fixed_length)

    def __post_init__(self) -> None:
        """Keep callers from relying on the arrays: they are read-only."""
        for array in (self.bits, self.delta, self.items):
            if array is not None:
                array.flags.writeable = False

    def __repr__(self) -> str:
        """Say how much it keeps."""
        return f"LiveFilter({self.num_sequences:,} of {self.snapshot.num_sequences:,} sequences)"

    def __and__(self, other: LiveFilter) -> LiveFilter:
        """Return the filter that keeps what both keep."""
        other = self._same(other)
        if self.items is not None and other.items is not None:
            return self.snapshot.of_items(self.items & other.items)
        return LiveFilter(self.snapshot, self.bits & other.bits, self.delta & other.delta)

    def __or__(self, other: LiveFilter) -> LiveFilter:
        """Return the filter that keeps what either keeps."""
        other = self._same(other)
        if self.items is not None and other.items is not None:
            return self.snapshot.of_items(self.items | other.items)
        return LiveFilter(self.snapshot, self.bits | other.bits, self.delta | other.delta)

    def __invert__(self) -> LiveFilter:
        """Return the filter that keeps what this one does not."""
        if self.items is not None and self.snapshot.items is not None:
            return self.snapshot.of_items(self.snapshot.items.live & ~self.items)
        return LiveFilter(self.snapshot, self.snapshot.bits & ~self.bits, ~self.delta)

    def without_rows(self, rows: NDArray[np.int64]) -> LiveFilter:
        """Return the filter, of a catalogue, that keeps what this one does but for rows of items (n,)."""
        assert self.items is not None
        assert self.snapshot.items is not None
        kept = self.items.copy()
        kept[rows] = False
        if len(rows) > _FEW_ROWS:
            return self.snapshot.of_items(kept)
        nodes = np.unique(self.snapshot.find(self.snapshot.items.tokens[rows[self.items[rows]]]))
        lost = nodes[[not left.size for left in self.snapshot.rows_of(nodes, kept)]] if nodes.size else nodes
        bits, delta, count = self.bits.copy(), self.delta.copy(), self.snapshot.base.shape.count
        old = lost[lost < count]
        np.bitwise_and.at(bits, old >> 5, ~(np.uint32(1) << (old & 31).astype(np.uint32)))
        delta[lost[lost > count] - count - 1] = False
        return LiveFilter(self.snapshot, bits, delta, kept)

    def _same(self, other: LiveFilter) -> LiveFilter:
        """Return another filter; raise ConstraintError if it is of another snapshot."""
        if not isinstance(other, LiveFilter):
            raise TypeError(
                f"a filter is joined with a filter, as Snapshot.filter makes one, not {type(other).__name__}"
            )
        if other.snapshot is not self.snapshot:
            raise ConstraintError(
                f"a filter of snapshot {self.snapshot.epoch} cannot be joined with one of snapshot "
                f"{other.snapshot.epoch} or of another live set",
                remedies=[Advice("Take one over to the snapshot of the other with at().")],
            )
        return other

    def at(self, snapshot: Snapshot, new: bool | Callable[[NDArray[Any]], Any]) -> LiveFilter:
        """Return this filter of another snapshot of the same live set: a sequence is kept there if it is kept here.

        new: whether to keep the sequences that this filter's snapshot does not have; or a function that is given them,
        (n, L), and returns booleans (n,). Of a catalogue it is given the rows (n,) of the items that came. While
        the base is the same, the work is that of copying its bits.

        Raises ConstraintError for another vocabulary, length or live catalogue, and for what the function returns if it
        is no (n,) booleans.
        """
        if (snapshot.vocab_size, snapshot.fixed_length) != (self.vocab_size, self.fixed_length):
            raise ConstraintError("the snapshot is of another live set, with other tokens", argument="snapshot")
        if self.items is not None and snapshot.items is not None:
            if self.snapshot.items is None or snapshot.items.owner is not self.snapshot.items.owner:
                raise ConstraintError("the snapshot is of another live catalogue", argument="snapshot")
            live = snapshot.items.live
            kept = np.zeros(live.size, np.bool_)
            before = min(live.size, self.items.size)
            kept[:before] = self.items[:before] & live[:before]
            added = before + np.flatnonzero(live[before:])
            kept[added] = _answer(new, added)
            return snapshot.of_items(kept)
        matrix, live = snapshot.base.matrix, snapshot.base.live_rows(snapshot.bits)
        if snapshot.base is self.snapshot.base:
            known, kept = live & snapshot.base.live_rows(self.snapshot.bits), live & snapshot.base.live_rows(self.bits)
        else:
            known, kept = np.zeros_like(live), np.zeros_like(live)
            rows = np.stack([column[live] for column in matrix.columns], axis=1)
            known[live], kept[live] = self.snapshot.contains(rows), self.contains(rows)
        was, delta = self.snapshot.contains(snapshot.delta), self.contains(snapshot.delta)
        came = live & ~known
        rows = np.concatenate([matrix.columns[:, came].T, snapshot.delta[~was]])
        answer = _answer(new, rows)
        old = len(rows) - int((~was).sum())
        kept[came], delta[~was] = answer[:old], answer[old:]
        return LiveFilter(snapshot, snapshot.base.bits_of(kept), delta)

    @property
    def num_sequences(self) -> int:
        """How many sequences are kept."""
        return _count(self.bits) + int(self.delta.sum())

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""
        return self.snapshot.vocab_size

    @property
    def vocabulary(self) -> str:
        """The fingerprint of the vocabulary."""
        return self.snapshot.vocabulary

    @property
    def memory(self) -> int:
        """Bytes of the filter, without its snapshot."""
        return int(self.bits.nbytes + self.delta.nbytes)

    nbytes = memory

    def to_table(self) -> LiveFilter:
        """Return this filter: it is put on a device as it is, with its snapshot."""
        return self

    def contains(self, sids: ArrayLike) -> Bools:
        """Return whether each row of sids (N, L) is in the set and kept: bool (N,)."""
        return self.snapshot.holds(sids, self.bits, self.delta)

    def input_rows(self, states: ArrayLike) -> list[NDArray[np.int64]]:
        """Return the rows of items that are kept of each sequence (N,) that a decoder ended with."""
        return self.snapshot.rows_of(states, self.items)

    def sequences(self, states: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens (N, L) of the sequences that decoders ended with, as of the snapshot."""
        return self.snapshot.sequences(states)


def _answer(new: bool | Callable[[NDArray[Any]], Any], rows: NDArray[Any]) -> Bools:
    """Return whether to keep each of the rows that came (n, ..): (n,). Raises ConstraintError."""
    if not isinstance(new, bool | np.bool_) and not callable(new):
        raise TypeError(f"new must be True, False or a function of the rows that came, not a {type(new).__name__}")
    answer = np.full(len(rows), bool(new)) if isinstance(new, bool | np.bool_) else booleans(new(rows))
    if answer.shape != (len(rows),):
        raise ConstraintError(f"has shape {answer.shape}, ({len(rows)},) is needed", argument="new")
    return answer


def keys_of(rows: Rows) -> NDArray[Any]:
    """Return a key for each row (N, L) of one type, in whose order rows are."""
    big = np.ascontiguousarray(rows, rows.dtype.newbyteorder(">"))
    return big.view(f"S{big.itemsize * big.shape[1]}")[:, 0]


def _count(bits: Words) -> int:
    """Return how many bits are set."""
    return int(np.bitwise_count(bits).sum())
