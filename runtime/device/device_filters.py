"""Filters on a device. Of a sorted matrix they are bits of rows, and of all that the matrix keeps of its rows.

Shapes follow from the matrix and from how many filters there are, never from what they keep, so that nothing is
compiled again for another filter. `table_filters` has those of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import Advice, ConstraintError
from ...table.filter_bits import count_before, mark, mark_runs
from ...table.kept import Kept
from ...table.sid_filter import SidFilter
from ...table.snapshot import LiveFilter
from ...table.sorted_matrix import SortedMatrix
from .device_live import DeviceLive
from .device_matrix import DeviceFilters, DeviceMatrix, masks_of
from .device_table import DeviceTable
from .live_filters import MOST_WORDS, filter_numbers, with_live_filters
from .table_filters import DeviceFilteredTable, with_filters


@dataclass(frozen=True, eq=False)
class FilterLayout:
    """Where the bits of a filter stand that say what lies below the tokens a matrix keeps: of masks, of first rows."""

    mask_start: tuple[NDArray[np.int32], ...]  # (k + 1,) by depth that has masks: the first row of each prefix
    mask_at: tuple[NDArray[np.int32], ...]  # (k,) the bit of its last token in the masks
    first_start: tuple[NDArray[np.int32], ...]  # (k + 1,) by depth that keeps first rows: these, and Q
    mask_words: int
    first_words: int

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for group in (self.mask_start, self.mask_at, self.first_start) for array in group)


_layouts: Kept[FilterLayout] = Kept()


def _layout(matrix: SortedMatrix) -> FilterLayout:
    """Return where the bits of a matrix's filters stand: one pass over its first columns."""
    masks, number, firsts = masks_of(matrix)
    width, count = 8 * masks.shape[1], matrix.num_sequences
    starts, places = [], []
    new = np.zeros(count, np.bool_)
    new[0] = True
    for depth in range(min(len(masks) - 1, 2)):
        column = matrix.columns[depth]
        new[1:] |= column[1:] != column[:-1]
        at = np.flatnonzero(new)
        row = np.zeros(at.size, np.int64) if depth == 0 else number[matrix.columns[0, at]].astype(np.int64)
        starts.append(np.append(at, count).astype(np.int32))
        places.append((row * width + column[at]).astype(np.int32))
    rows, _, spans = firsts
    kept = tuple(
        np.append(rows[begin:stop], count).astype(np.int32) for span in spans if span for begin, stop in [span]
    )
    return FilterLayout(tuple(starts), tuple(places), kept, masks.size // 4, rows.size // 32 + 1)


def filtered(
    dev: DeviceMatrix | DeviceLive | DeviceTable | DeviceFilteredTable,
    filters: Sequence[SidFilter | LiveFilter],
    of: ArrayLike | None,
    convert: Callable[[NDArray[Any]], Any],
) -> DeviceMatrix | DeviceLive | DeviceFilteredTable:
    """Return a matrix, a live set or a table on a device with filters of it; each array goes through `convert`.

    of: (B,) which filter each row of a batch begins with; None: filter i is that of the i-th share of a batch.
    Raises TypeError; ValueError where there is no filter or `of` names none; ConstraintError for those of another
    matrix, snapshot or table.
    """
    if isinstance(dev, DeviceLive):
        return with_live_filters(dev, cast(Sequence[LiveFilter], filters), of, convert)
    return _of_matrix_or_table(dev, cast(Sequence[SidFilter], filters), of, convert)


def _of_matrix_or_table(
    dev: DeviceMatrix | DeviceTable | DeviceFilteredTable,
    filters: Sequence[SidFilter],
    of: ArrayLike | None,
    convert: Callable[[NDArray[Any]], Any],
) -> DeviceMatrix | DeviceFilteredTable:
    filters = list(filters)
    for each in filters:
        if not isinstance(each, SidFilter):
            raise TypeError(f"filters must be SidFilters, as filter_sids makes them, not {type(each).__name__}")
    bare = dev.table if isinstance(dev, DeviceFilteredTable) else dev
    if not isinstance(bare, DeviceMatrix) and not (isinstance(bare, DeviceTable) and bare.is_trie):
        of_text = ", the table of a text," if isinstance(bare, DeviceTable) else ""
        raise TypeError(
            "filters are of a sorted matrix, or of a table of sequences, that was put on a device, "
            f"not of a {type(dev).__name__}{of_text}"
        )
    if not filters:
        raise ValueError("filters is empty: without any, use what they would be of as it is")
    if not all(bare.origin.made(each.table) for each in filters):
        kind = "matrix" if isinstance(bare, DeviceMatrix) else "table"
        raise ConstraintError(
            f"a filter is of another {kind} than the one on this device",
            argument="filters",
            remedies=[Advice(f"Make it with filter_sids of the {kind} that was put there.")],
        )
    which = filter_numbers(of, len(filters))
    if not isinstance(dev, DeviceMatrix):
        return with_filters(dev, filters, which, convert)
    matrix = filters[0].matrix
    layout = _layouts.made(matrix, lambda: _layout(matrix))
    words = filters[0].rows.size
    if len(filters) * max(words, layout.mask_words, layout.first_words) > MOST_WORDS:
        raise ValueError(f"{len(filters)} filters of {matrix.num_sequences:,} rows are more than can be addressed")
    rows = np.concatenate([each.rows for each in filters])
    before = np.empty((len(filters), words), np.int32)
    masks = np.zeros((len(filters), layout.mask_words), np.uint32)
    firsts = np.zeros((len(filters), layout.first_words), np.uint32)
    for i, each in enumerate(filters):
        count_before(each.rows, before[i])
        for start, at in zip(layout.mask_start, layout.mask_at, strict=True):
            mark(each.rows, start, at, masks[i])
        begin = 0
        for start in layout.first_start:
            mark_runs(each.rows, start, begin, firsts[i])
            begin += start.size - 1
    kept = DeviceFilters(
        rows=convert(rows.view(np.int32)),
        before=convert(before.reshape(-1)),
        firsts=convert(firsts.reshape(-1).view(np.int32)),
        masks=convert(masks.view(np.uint8).reshape(-1, dev.masks.shape[1])),
        of=convert(which.astype(np.int64 if dev.wide else np.int32)),
        words=words,
        first_words=layout.first_words,
    )
    return replace(dev, kept=kept)
