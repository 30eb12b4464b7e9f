"""Filters of a sorted matrix on a device, one for each request that has one, in arrays that grow as they are needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...runtime import torch_ops
from ...table.sid_filter import SidFilter, filter_sids
from ...table.sorted_matrix import SortedMatrix

_ARRAYS = ("rows", "before", "firsts", "masks")  # of `DeviceFilters`: those of all filters, one behind the other


class FilterSlots:
    """A matrix on a device, with a filter for each slot: number 0 keeps everything, and stands for none.

    dev: from `torch_ops.put` of the matrix. A slot's filter goes when the slot gets another, or none.
    """

    def __init__(self, dev: Any, matrix: SortedMatrix) -> None:
        self._bare = dev
        self.dev: Any = torch_ops.filtered(dev, [filter_sids(matrix, np.ones(matrix.num_items, np.bool_))])
        self._free: list[int] = []
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, slot: int) -> int:
        """Return the number of a slot's filter: that of its states."""
        return self._numbers.get(slot, 0)

    def put(self, slot: int, kept: SidFilter | None) -> None:
        """Give a slot another filter, or none."""
        old = self._numbers.pop(slot, None)
        if old is not None:
            self._free.append(old)
        if kept is None:
            return
        if not self._free:
            self._grow()
        number = self._numbers[slot] = self._free.pop()
        one = torch_ops.filtered(self._bare, [kept]).kept
        for name in _ARRAYS:
            part: Tensor = getattr(one, name)
            getattr(self.dev.kept, name)[number * len(part) : (number + 1) * len(part)] = part

    def _grow(self) -> None:
        """Make room for as many filters again."""
        kept: Any = self.dev.kept
        count = kept.rows.shape[0] // kept.words
        arrays = {name: torch.cat([getattr(kept, name)] * 2) for name in _ARRAYS}
        self.dev = replace(self.dev, kept=replace(kept, **arrays))
        self._free += range(2 * count - 1, count - 1, -1)
