"""A live set in shards as devices hold it: each its own rows of base and delta, and all of them the head.

The head is a live set too, of the pairs of tokens with which sequences begin. The delta is cut where the base is, so
that the rows of a pair are on one device. It has room for all of the delta on each: which rows come is not known, and a
delta is small. All else is as of `device_live`: what a snapshot changes keeps its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...table.delta_rows import pack_rows
from ...table.filter_bits import Runs, Words, count_before, words_of
from ...table.live_base import ROOM, BaseShape, LiveBase
from ...table.sharded_matrix import HEAD, ShardedMatrix, ShardLayout
from ...table.snapshot import LiveFilter, Snapshot
from .backend import Array
from .device_live import Convert, DeviceLive, check_snapshot, place_live
from .device_live import refreshed as refreshed_live
from .device_matrix import DeviceFilters, Origin
from .device_shards import Collectives, Each, Parts, ShardedRows, cut_bits, places_of
from .live_filters import MOST_WORDS, checked, with_live_filters

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LiveCut:
    """Where the base of a live set is cut, in shapes with room."""

    base: LiveBase
    layout: ShardLayout  # its widths, branches and first rows have room
    most: int  # rows of a shard, with room
    head: LiveBase  # the pairs of tokens with which rows begin

    @staticmethod
    def of(snapshot: Snapshot, shards: int, before: LiveCut | None = None) -> LiveCut:
        """Cut a snapshot's base. before: a cut whose shapes are taken as they are where they hold it."""
        base, room = snapshot.base, ROOM * snapshot.capacity
        cut = ShardedMatrix(base.matrix, shards)
        head = cut.head
        needed = tuple(
            None if rows is None or depth < HEAD else int(np.diff(np.searchsorted(rows, cut.starts)).max())
            for depth, rows in enumerate(base.first_rows)
        )
        most, firsts = max(1, *cut.sizes) + room, tuple(None if least is None else least + room for least in needed)
        head_shape = BaseShape.around(head, snapshot.capacity)
        if before is not None and before.base.shape == base.shape:
            held = before.layout.firsts
            if before.most >= max(cut.sizes) and all(a <= b for a, b in zip(needed, held, strict=True) if a and b):
                most, firsts = before.most, held
            head_shape = before.head.shape.holding(head, snapshot.capacity)
        layout = ShardLayout(head, cut.pair_starts, cut.starts, base.shape.widths, base.shape.branches, firsts)
        return LiveCut(base, layout, most, LiveBase.of(head, head_shape))

    def delta_starts(self, delta: NDArray[Any]) -> NDArray[np.int64]:
        """Return where the rows of a delta (D, L) begin that belong to each shard, and D: (N + 1,)."""
        matrix, size = self.base.matrix, self.base.matrix.vocab_size
        begins = self.layout.starts[1:-1]
        columns = matrix.columns[:HEAD, np.minimum(begins, matrix.num_sequences - 1)].astype(np.int64)
        first = np.where(begins < matrix.num_sequences, columns[0] * size + columns[1], np.iinfo(np.int64).max)
        pairs = delta[:, 0].astype(np.int64) * size + delta[:, 1]
        return np.concatenate([[0], np.searchsorted(pairs, first), [len(delta)]])

    def pairs_of(self, bits: Words, delta: NDArray[Any]) -> tuple[Words, NDArray[Any]]:
        """Return which pairs begin a row whose bit is set or a row of a delta (D, L), and the pairs of the delta alone.

        These (d, 2) are in order, each once.
        """
        pairs = np.zeros(self.head.shape.count // 32 + 1, np.uint32)
        self.layout.pairs.write_any(bits, pairs)
        added = delta[:, :HEAD]
        new = np.ones(len(added), np.bool_)
        new[1:] = (added[1:] != added[:-1]).any(axis=1)
        added = np.ascontiguousarray(added[new])
        at = self.head.matrix.find(added)
        old = at < self.head.matrix.num_sequences
        np.bitwise_or.at(pairs, at[old] >> 5, np.uint32(1) << (at[old] & 31).astype(np.uint32))
        return pairs, np.ascontiguousarray(added[~old])

    def head_of(self, snapshot: Snapshot) -> Snapshot:
        """Return the live set of pairs with which the sequences of a snapshot begin."""
        bits, delta = self.pairs_of(snapshot.bits, snapshot.delta)
        return replace(
            snapshot,
            base=self.head,
            bits=bits,
            firsts=self.head.firsts_of(bits),
            delta=delta,
            delta_widths=snapshot.delta_widths[:HEAD],
            items=None,
        )

    def runs(self, number: int) -> list[tuple[int, Runs]]:
        """Return of each depth that keeps first rows of a shard where their bits begin, and the rows of each."""
        low, high = self.layout.starts[number : number + 2].tolist()
        found = []
        for span, rows in zip(places_of(self.layout), self.base.first_rows, strict=True):
            if span is not None and rows is not None:
                own = rows[slice(*np.searchsorted(rows, (low, high)))]
                found.append((span[0], Runs.of(np.append(own - low, high - low))))
        return found


class CutOrigin(Origin):
    """The snapshot that arrays were made of, and its cut; all are equal, as `Origin`s are."""

    def __init__(self, snapshot: Snapshot | None, cut: LiveCut | None, head: Snapshot | None) -> None:
        super().__init__(None if snapshot is None else snapshot.base.matrix)
        self.snapshot, self.cut, self.head = snapshot, cut, head

    def __reduce__(self) -> Any:
        return CutOrigin, (None, None, None)


@dataclass(frozen=True, eq=False)
class DeviceLiveShards(ShardedRows):
    """A `Snapshot` on N devices: sequences of L tokens."""

    head: DeviceLive  # of the pairs of tokens with which sequences begin; on all devices
    part: DeviceLive  # a device's own rows of base and delta; no masks
    begins: Array  # (2,) the first of its own rows among all of the base, and among all of the delta
    collectives: Collectives
    count: int  # the node of the dead state: rows of the base, with room

    @property
    def steps(self) -> Array:
        """Positions 0 .. L - 1, which lie where the head does."""
        return self.head.steps

    @property
    def origin(self) -> CutOrigin:
        """What the arrays were made of."""
        assert isinstance(self.part.base.origin, CutOrigin)
        return self.part.base.origin


def place_live_shards(
    snapshot: Snapshot, collectives: Collectives, alike: Convert, each: Each, on_each: Convert, wide: bool,
    before: LiveCut | None = None,
) -> DeviceLiveShards:  # fmt: skip
    """Put a snapshot on devices. Arrays that all hold go through `alike`, those of one device through `each`.

    on_each: puts what each device has of its own and all have alike. before: see `LiveCut.of`.
    """
    cut = LiveCut.of(snapshot, collectives.size, before)
    layout, matrix = cut.layout, snapshot.base.matrix
    parts = Parts(layout, CutOrigin(None, None, None), wide, cut.most)
    own = each(lambda number: parts.arrays(number, matrix.columns[:, slice(*layout.starts[number : number + 2])]))
    base = parts.placed(own, on_each)
    delta = replace(
        base,
        count=snapshot.capacity,
        widths=snapshot.delta_widths,
        branches=(max(2, matrix.vocab_size),) * matrix.length,
        firsts=(None,) * matrix.length,
    )
    head_set = cut.head_of(snapshot)
    head = place_live(head_set, alike, wide)
    begun = own.pop("begin")
    dev = DeviceLiveShards(head, DeviceLive(base, delta, begun), begun, collectives, snapshot.base.shape.count)
    return _with(dev, CutOrigin(snapshot, cut, head_set), None, None, each, on_each)


def refreshed(
    dev: DeviceLiveShards, snapshot: Snapshot, alike: Convert, each: Each, on_each: Convert
) -> DeviceLiveShards:
    """Return another snapshot in the place of one; its base is put again where `compact` made another."""
    check_snapshot(dev, snapshot)
    cut = dev.origin.cut
    if cut is None or cut.base is not snapshot.base or dev.part.delta.count != snapshot.capacity:
        return place_live_shards(snapshot, dev.collectives, alike, each, on_each, dev.part.base.wide, cut)
    head_set = cut.head_of(snapshot)
    dev = replace(dev, head=refreshed_live(dev.head, head_set, alike))
    return _with(dev, CutOrigin(snapshot, cut, head_set), None, None, each, on_each)


def with_filters(
    dev: DeviceLiveShards, filters: Sequence[LiveFilter], of: ArrayLike | None, alike: Convert, each: Each,
    on_each: Convert,
) -> DeviceLiveShards:  # fmt: skip
    """Return a live set in shards with filters of its snapshot: see `live_filters.with_live_filters`."""
    origin = dev.origin
    filters = checked(filters, origin.snapshot, "on these devices")
    cut, head_set = origin.cut, origin.head
    assert cut is not None
    assert head_set is not None
    in_head = []
    for one in filters:
        bits, added = cut.pairs_of(one.bits, one.snapshot.delta[one.delta])
        kept = np.zeros(len(head_set.delta), np.bool_)
        kept[_rows_among(head_set.delta, added)] = True
        in_head.append(LiveFilter(head_set, bits, kept))
    dev = replace(dev, head=with_live_filters(dev.head, in_head, of, alike))
    return _with(dev, origin, [one.bits for one in filters], [one.delta for one in filters], each, on_each)


def _rows_among(rows: NDArray[Any], some: NDArray[Any]) -> NDArray[np.int64]:
    """Return where some rows (d, 2) stand among all (D, 2), in order, each once."""
    both = (pairs[:, 0].astype(np.int64) << 32 | pairs[:, 1] for pairs in (rows, some))
    found: NDArray[np.int64] = np.searchsorted(*both)
    return found


def _with(
    dev: DeviceLiveShards, origin: CutOrigin, bits: list[Words] | None, delta: list[Bools] | None, each: Each,
    on_each: Convert,
) -> DeviceLiveShards:  # fmt: skip
    """Return devices' bases with what a snapshot says of them, or filters of it: bits, and which rows of its delta."""
    snapshot, cut, base = origin.snapshot, origin.cut, dev.part.base
    assert snapshot is not None
    assert cut is not None
    matrix, shown = snapshot.base.matrix, [snapshot.bits] if bits is None else bits
    words, first_words = base.count // 32 + 1, max((span[1] for span in base.firsts if span), default=0) // 32 + 1
    added_words = snapshot.capacity // 32 + 1
    if len(shown) * max(words, first_words, added_words) > MOST_WORDS:
        raise ValueError(f"{len(shown)} filters of {base.count:,} rows are more than can be addressed")
    kind = np.int64 if base.wide else np.int32
    splits = cut.delta_starts(snapshot.delta)

    def arrays(number: int) -> dict[str, Any]:
        low, high = cut.layout.starts[number : number + 2].tolist()
        begin, end = splits[number : number + 2].tolist()
        runs = cut.runs(number)
        rows, firsts = np.zeros((len(shown), words), np.uint32), np.zeros((len(shown), first_words), np.uint32)
        for one, out, marks in zip(shown, rows, firsts, strict=True):
            cut_bits(one, low, high, out)
            for place, rows_of in runs:
                rows_of.write_any(out, marks, place)
        delta_words = [np.full(snapshot.capacity, 1 << (base.bits * base.per_word), kind) for _ in base.words]
        for at, word in enumerate(delta_words):
            pack_rows(snapshot.delta[begin:end], at * base.per_word, base.bits, base.per_word, word)
        made: dict[str, Any] = _bits_of("base", rows) | {
            "base_firsts": firsts.reshape(-1).view(np.int32),
            "delta_words": delta_words,
            "sizes": np.array([high - low, end - begin], kind),
            "begins": np.array([low, begin], kind),
        }
        if delta is not None:
            chosen = [words_of(each[begin:end], snapshot.capacity) for each in delta]
            made |= _bits_of("delta", np.stack(chosen))
        return made

    own = each(arrays)
    none = on_each(np.zeros(1, kind))  # states begin in the head

    def filters(name: str, size: int, firsts: Any, first_size: int) -> DeviceFilters:
        masks = on_each(np.zeros((len(shown), 8 * (matrix.vocab_size // 64 + 1)), np.uint8))  # a part has no masks
        rows, before = own[f"{name}_rows"], own[f"{name}_before"]
        return DeviceFilters(rows, before, firsts, masks, none, words=size, first_words=first_size)

    in_base = filters("base", words, own["base_firsts"], first_words)
    in_delta = None if delta is None else filters("delta", added_words, on_each(np.zeros(1, np.int32)), 1)
    part = DeviceLive(
        replace(base, kept=in_base, origin=origin),
        replace(dev.part.delta, words=tuple(own["delta_words"]), kept=in_delta),
        own["sizes"],
    )
    return replace(dev, part=part, begins=own["begins"])


def _bits_of(name: str, rows: Words) -> dict[str, NDArray[Any]]:
    """Return bits (F, W) and how many are set before each word, as `DeviceFilters` have them."""
    before = np.empty(rows.shape, np.int32)
    for one, out in zip(rows, before, strict=True):
        count_before(one, out)
    return {f"{name}_rows": rows.reshape(-1).view(np.int32), f"{name}_before": before.reshape(-1)}
