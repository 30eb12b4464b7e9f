"""Filters of a live set as an accelerator holds them: bits of rows of base and delta, and masks of both together.

A token is allowed at a depth that has masks if one row that is live and kept lies below it. Shapes follow from those of
the live set and from how many filters there are, never from what they keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import Advice, ConstraintError
from ...table.filter_bits import count_before, words_of
from ...table.snapshot import LiveFilter, Snapshot
from .device_live import BaseOrigin, Convert, DeviceLive, place_live
from .device_matrix import DeviceFilters

MOST_WORDS = 2**31 - 1
"""The most words of all filters of a batch: positions have 32 bits where a device has no wider ones."""


def filter_numbers(of: ArrayLike | None, count: int) -> NDArray[Any]:
    """Return which of `count` filters each row of a batch begins with: (B,). Raises ValueError."""
    which = np.arange(count) if of is None else np.asarray(of)
    if which.ndim != 1 or not which.size or which.dtype.kind not in "iu":
        raise ValueError(f"of must be numbers of filters (B,), not {which.dtype} {which.shape}")
    if not 0 <= which.min() <= which.max() < count:
        raise ValueError(f"of must be numbers of the {count} filters, 0 .. {count - 1}")
    return which


def checked(filters: Sequence[Any], held: Snapshot | None, where: str) -> list[LiveFilter]:
    """Return filters of a live set that can be put where a snapshot is held; held: None if it is gone.

    where: "on this device" or the like. Raises TypeError; ValueError where there is no filter; ConstraintError for
    those of another snapshot.
    """
    found = list(filters)
    for each in found:
        if not isinstance(each, LiveFilter):
            raise TypeError(
                f"filters of a live set must be LiveFilters, as Snapshot.filter makes them, not {type(each).__name__}"
            )
        if held is not each.snapshot:
            here = "another" if held is None else held.epoch
            raise ConstraintError(
                f"a filter is of snapshot {each.snapshot.epoch}, and {where} is snapshot {here}, or one of another "
                "live set",
                argument="filters",
                remedies=[Advice("Take the filter over with its at(), or give its snapshot to with_snapshot().")],
            )
    if not found:
        raise ValueError("filters is empty: without any, use the live set as it is")
    return found


def with_live_filters(
    dev: DeviceLive, filters: Sequence[LiveFilter], of: ArrayLike | None, convert: Convert
) -> DeviceLive:
    """Return a live set on a device with filters of the snapshot that it is of; each array goes through `convert`.

    of: (B,) which filter each row of a batch begins with; None: filter i is that of the i-th share of a batch.
    Raises TypeError; ValueError where there is no filter or `of` names none; ConstraintError for those of another
    snapshot.
    """
    origin = dev.base.origin
    filters = checked(filters, origin.snapshot if isinstance(origin, BaseOrigin) else None, "on this device")
    snapshot = filters[0].snapshot
    which = filter_numbers(of, len(filters))
    base, words, first_words = snapshot.base, snapshot.bits.size, snapshot.firsts.size
    if len(filters) * max(words, snapshot.masks.size // 4, first_words) > MOST_WORDS:
        raise ValueError(f"{len(filters)} filters of {base.shape.count:,} rows are more than can be addressed")
    before = np.empty((len(filters), words), np.int32)
    masks = np.zeros((len(filters), *snapshot.masks.shape), np.uint8)
    firsts = np.empty((len(filters), first_words), np.uint32)
    added_words = snapshot.capacity // 32 + 1
    added = np.zeros((len(filters), added_words), np.uint32)
    added_before = np.empty((len(filters), added_words), np.int32)
    for i, each in enumerate(filters):
        count_before(each.bits, before[i])
        base.write_masks(each.bits, masks[i])
        base.allow(snapshot.delta[each.delta], masks[i])
        firsts[i] = base.firsts_of(each.bits)
        added[i] = words_of(each.delta, snapshot.capacity)
        count_before(added[i], added_before[i])
    number = convert(which.astype(np.int64 if dev.base.wide else np.int32))
    kept = DeviceFilters(
        rows=convert(np.concatenate([each.bits for each in filters]).view(np.int32)),
        before=convert(before.reshape(-1)),
        firsts=convert(firsts.reshape(-1).view(np.int32)),
        masks=convert(masks.reshape(-1, masks.shape[2])),
        of=number,
        words=words,
        first_words=first_words,
    )
    in_delta = DeviceFilters(  # which has no first rows, and no masks: those of the base are of both
        rows=convert(added.reshape(-1).view(np.int32)),
        before=convert(added_before.reshape(-1)),
        firsts=convert(np.zeros(1, np.int32)),
        masks=convert(np.zeros((1, 8), np.uint8)),
        of=number,
        words=added_words,
        first_words=1,
    )
    return replace(dev, base=replace(dev.base, kept=kept), delta=replace(dev.delta, kept=in_delta))


def place_live_set(table: Snapshot | LiveFilter, convert: Convert, wide: bool = True) -> DeviceLive:
    """Lay a snapshot out, or that of a filter under the filter: see `place_live`."""
    if isinstance(table, Snapshot):
        return place_live(table, convert, wide)
    return with_live_filters(place_live(table.snapshot, convert, wide), [table], None, convert)
