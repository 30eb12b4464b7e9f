"""A live set as an accelerator holds it: a base in a shape with room, and a delta of fixed size.

Whatever a snapshot changes is an array of the same shape as before. The base is put once; `with_snapshot` gives it
another snapshot's bits, masks and delta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import Advice, ConstraintError
from ...table.delta_rows import pack_rows
from ...table.filter_bits import count_before
from ...table.live_base import mask_width
from ...table.snapshot import Snapshot
from ...table.transition_table import Level
from .backend import Array
from .device_matrix import BITS, DeviceFilters, DeviceMatrix, Origin, RowSet, packing, words_of

Convert = Callable[[NDArray[Any]], Any]


class BaseOrigin(Origin):
    """The snapshot that arrays were made of; all are equal, as `Origin`s are."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        super().__init__(None if snapshot is None else snapshot.base.matrix)
        self.snapshot = snapshot

    def __reduce__(self) -> Any:
        return BaseOrigin, (None,)


@dataclass(frozen=True, eq=False)
class DeviceLive(RowSet):
    """A `Snapshot` in device arrays."""

    base: DeviceMatrix  # under a filter of the rows that are live, or several; its masks are of base and delta
    delta: DeviceMatrix  # rows in order, and beyond them words above those of all rows; without filters, under none
    sizes: Array  # (2,) rows of base and delta

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.base.vocab_size

    @property
    def length(self) -> int:
        """L."""
        return self.base.length

    @property
    def steps(self) -> Array:
        """Positions 0 .. L - 1, which lie where the set does."""
        return self.base.steps

    @property
    def num_states(self) -> int:
        """One more than the largest node: beyond that of the dead state are the rows of the delta."""
        return self.base.count + 1 + self.delta.count

    @property
    def dead(self) -> int:
        """The node of the state that allows nothing."""
        return self.base.count

    @property
    def levels(self) -> tuple[Level, ...]:
        """What is static at each depth 0 .. L - 1."""
        masked = self.base.masked
        return tuple(
            Level(self.vocab_size if depth < masked else self.read(depth), depth < masked, True, False)
            for depth in range(self.fixed_length)
        )

    def read(self, depth: int) -> int:
        """Return how many rows of base and delta are read for what a state at a depth allows."""
        return self.base.read(depth) + self.delta.widths[depth]


def place_live(snapshot: Snapshot, convert: Convert, wide: bool = True) -> DeviceLive:
    """Lay a snapshot out; each array goes through `convert`. wide: there are integers of 64 bits.

    Raises TableError where a token needs more bits than there are, or there are more rows.
    """
    base, shape = snapshot.base, snapshot.base.shape
    matrix, length = base.matrix, base.matrix.length
    bits, per_word = packing(matrix.vocab_size, length, shape.count, wide)
    size, kind = matrix.vocab_size, np.int64 if wide else np.int32
    masks = np.zeros((size + 2 if shape.masked == 2 else 2, mask_width(size)), np.uint8)
    after = np.arange(1, size + 1) if shape.masked == 2 else np.ones(size)
    total = max((span[1] for span in shape.firsts if span), default=1)
    rows, tokens = np.full(total, shape.count, np.int32), np.zeros(total, np.int32)
    for depth, (span, found) in enumerate(zip(shape.firsts, base.first_rows, strict=True)):
        if span is not None and found is not None:
            rows[span[0] : span[0] + found.size] = found
            tokens[span[0] : span[0] + found.size] = matrix.columns[depth][found]
    made = DeviceMatrix(
        words=tuple(convert(word) for word in words_of(matrix.columns, bits, per_word, kind, shape.count)),
        masks=convert(masks),
        mask_after=convert(after.astype(np.int32)),
        first_rows=convert(rows),
        first_tokens=convert(tokens),
        byte_bits=convert(-BITS.astype(np.int32)),
        steps=convert(np.arange(length, dtype=kind)),
        vocab_size=size,
        length=length,
        count=shape.count,
        bits=bits,
        per_word=per_word,
        masked=shape.masked,
        widths=shape.widths,
        branches=shape.branches,
        firsts=shape.firsts,
        wide=wide,
        origin=BaseOrigin(None),
    )
    delta = replace(
        made,
        count=snapshot.capacity,
        widths=snapshot.delta_widths,
        branches=(max(2, size),) * length,
        firsts=(None,) * length,
        origin=BaseOrigin(None),
    )
    return _with(DeviceLive(made, delta, made.steps), snapshot, convert)


def check_snapshot(dev: Any, snapshot: Any) -> None:
    """Raise TypeError unless this is a snapshot, ConstraintError unless it has the vocabulary and length of `dev`."""
    if not isinstance(snapshot, Snapshot):
        raise TypeError(
            f"snapshot must be a Snapshot, as publish() returns one, not a {type(snapshot).__name__}; of a "
            "filter give its snapshot here and itself to with_filters(), of a Catalogue its table"
        )
    if (snapshot.vocab_size, snapshot.fixed_length) != (dev.vocab_size, dev.length):
        raise ConstraintError(
            f"the snapshot has {snapshot.vocab_size:,} tokens and length {snapshot.fixed_length}, and on the device "
            f"are {dev.vocab_size:,} and {dev.length}: it is of another live set",
            argument="snapshot", remedies=[Advice("Give it to to_device().")],
        )  # fmt: skip


def refreshed(dev: DeviceLive, snapshot: Snapshot, convert: Convert) -> DeviceLive:
    """Return another snapshot in the place of one; its base is put again where `compact` made another.

    Raises TypeError for what `to_device` of a snapshot did not return.
    """
    if not isinstance(dev, DeviceLive) or not isinstance(dev.base.origin, BaseOrigin):
        raise TypeError(f"dev must come from to_device of a Snapshot, not be a {type(dev).__name__}")
    check_snapshot(dev, snapshot)
    before = dev.base.origin.snapshot
    if before is None or before.base is not snapshot.base or dev.delta.count != snapshot.capacity:
        return place_live(snapshot, convert, dev.base.wide)
    return _with(dev, snapshot, convert)


def _with(dev: DeviceLive, snapshot: Snapshot, convert: Convert) -> DeviceLive:
    """Return a device's base with what a snapshot says of it."""
    base, origin = dev.base, dev.base.origin
    assert isinstance(origin, BaseOrigin)
    kept = base.kept if dev.delta.kept is None else None  # or it is of filters
    masks = convert(snapshot.masks)
    if kept is None or origin.snapshot is None or origin.snapshot.bits is not snapshot.bits:
        before = np.empty(snapshot.bits.size, np.int32)
        count_before(snapshot.bits, before)
        kept = DeviceFilters(
            rows=convert(snapshot.bits.view(np.int32)),
            before=convert(before),
            firsts=convert(snapshot.firsts.view(np.int32)),
            masks=masks,
            of=convert(np.zeros(1, np.int64 if base.wide else np.int32)),
            words=snapshot.bits.size,
            first_words=snapshot.firsts.size,
        )
    kind = np.int64 if base.wide else np.int32
    words = [np.full(snapshot.capacity, 1 << (base.bits * base.per_word), kind) for _ in base.words]
    for at, word in enumerate(words):
        pack_rows(snapshot.delta, at * base.per_word, base.bits, base.per_word, word)
    sizes = np.array([snapshot.base.matrix.num_sequences, len(snapshot.delta)], kind)
    return DeviceLive(
        replace(base, kept=replace(kept, masks=masks), origin=BaseOrigin(snapshot)),
        replace(dev.delta, words=tuple(convert(word) for word in words), kept=None),
        convert(sizes),
    )
