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
from ...table.filter_bits import Runs, Words, count_before, spread_bits
from ...table.sharded_files import FilesFilter
from ...table.sid_filter import SidFilter
from ...table.snapshot import LiveFilter
from ...table.sorted_matrix import SortedMatrix
from ...table.weak_cache import Kept
from .device_live import DeviceLive
from .device_matrix import DeviceFilters, DeviceMatrix, masks_of
from .device_table import DeviceTable
from .live_filters import MOST_WORDS, filter_numbers, with_live_filters
from .table_filters import DeviceFilteredTable, with_filters


@dataclass(frozen=True, eq=False)
class FilterLayout:
    """Where the bits of a filter stand that say what lies below the tokens a matrix keeps: of masks, of first rows."""

    of_masks: tuple[tuple[Runs, Words, slice], ...]  # by depth that has masks: rows by prefix; last tokens; these words
    of_firsts: tuple[Runs, ...]  # by depth that keeps first rows: rows by prefix
    mask_words: int
    first_words: int

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(runs.nbytes + last.nbytes for runs, last, _ in self.of_masks) + sum(
            runs.nbytes for runs in self.of_firsts
        )


_layouts: Kept[FilterLayout] = Kept()


def _layout(matrix: SortedMatrix) -> FilterLayout:
    """Return where the bits of a matrix's filters stand: one pass over its first columns."""
    masks, _, firsts = masks_of(matrix)
    words, count = masks.view(np.uint32), matrix.num_sequences
    of_masks = []
    new = np.zeros(count, np.bool_)
    new[0] = True
    for depth in range(min(len(masks) - 1, 2)):
        new[1:] |= matrix.columns[depth, 1:] != matrix.columns[depth, :-1]
        of = slice(0, 1) if depth == 0 else slice(1, len(masks) - 1)  # masks after each first token, in order
        runs = Runs.of(np.append(np.flatnonzero(new), count))
        of_masks.append((runs, words[of].reshape(-1), slice(of.start * words.shape[1], of.stop * words.shape[1])))
    rows, _, spans = firsts
    of_firsts = tuple(Runs.of(np.append(rows[begin:stop], count)) for span in spans if span for begin, stop in [span])
    return FilterLayout(tuple(of_masks), of_firsts, masks.size // 4, rows.size // 32 + 1)


def filtered(
    dev: DeviceMatrix | DeviceLive | DeviceTable | DeviceFilteredTable,
    filters: Sequence[SidFilter | LiveFilter | FilesFilter],
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
            raise TypeError(f"filters must be SidFilters, as filter() makes them, not {type(each).__name__}")
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
            remedies=[Advice(f"Make it with filter() of the {kind} that was put there.")],
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
        for runs, last, span in layout.of_masks:
            found = np.zeros(runs.count // 32 + 1, np.uint32)
            runs.write_any(each.rows, found)
            spread_bits(found, 0, last, masks[i, span])
        begin = 0
        for runs in layout.of_firsts:
            runs.write_any(each.rows, firsts[i], begin)
            begin += runs.count
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
