"""Filters of a catalogue on a device, one for each request that has one, in arrays that grow as they are needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...runtime import torch_ops
from ...runtime.device.backend import Placed
from ...runtime.device.device_table import arrays_of
from ...table.sid_filter import SidFilter
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable


class FilterSlots:
    """A matrix or table on a device, with a filter for each slot: number 0 keeps everything, and stands for none.

    dev: from `torch_ops.to_device`. A slot's filter goes when the slot gets another, or none.
    """

    def __init__(self, dev: Placed, table: TransitionTable | SortedMatrix) -> None:
        self._bare = dev
        self.dev: Placed = torch_ops.with_filters(dev, [table.filter(np.ones(table.num_items, np.bool_))])
        # those of all filters stand one behind the other; `of` is no filter's
        self._arrays = [name for name in arrays_of(type(self.dev.kept)) if name != "of"]
        self._count = 1
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
        one = torch_ops.with_filters(self._bare, [kept]).kept
        for name in self._arrays:
            part: Tensor = getattr(one, name)
            getattr(self.dev.kept, name)[number * len(part) : (number + 1) * len(part)] = part

    def _grow(self) -> None:
        """Make room for as many filters again."""
        kept, count = self.dev.kept, self._count
        arrays = {name: torch.cat([getattr(kept, name)] * 2) for name in self._arrays}
        self.dev = replace(self.dev, kept=replace(kept, **arrays))
        self._count = 2 * count
        self._free += range(2 * count - 1, count - 1, -1)
