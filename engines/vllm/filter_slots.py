"""Filters of a catalogue on a device, one for each request that has one, in arrays that grow as they are needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...compile.found_items import AnyFilter, Table
from ...runtime import torch_ops
from ...runtime.device.backend import Placed
from ...runtime.device.device_live import DeviceLive
from ...runtime.device.device_table import arrays_of


class FilterSlots:
    """A matrix, table or snapshot on a device, with a filter for each slot: number 0 keeps all, and stands for none.

    dev: from `torch_ops.to_device`. A slot's filter goes when the slot gets another, or none.
    """

    def __init__(self, dev: Placed, table: Table) -> None:
        self._bare = dev
        self.dev: Placed = torch_ops.with_filters(dev, [table.filter(np.ones(table.num_items, np.bool_))])
        self._count = 1
        self._free: list[int] = []
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, slot: int) -> int:
        """Return the number of a slot's filter: that of its states."""
        return self._numbers.get(slot, 0)

    def put(self, slot: int, kept: AnyFilter | None) -> None:
        """Give a slot another filter, or none."""
        old = self._numbers.pop(slot, None)
        if old is not None:
            self._free.append(old)
        if kept is None:
            return
        if not self._free:
            self._grow()
        number = self._numbers[slot] = self._free.pop()
        one = torch_ops.with_filters(self._bare, [kept])
        for all_kept, own in zip(_parts(self.dev), _parts(one), strict=True):
            for name in _arrays(own):
                part: Tensor = getattr(own, name)
                getattr(all_kept, name)[number * len(part) : (number + 1) * len(part)] = part

    def _grow(self) -> None:
        """Make room for as many filters again."""
        doubled = [
            replace(kept, **{name: torch.cat([getattr(kept, name)] * 2) for name in _arrays(kept)})
            for kept in _parts(self.dev)
        ]
        if isinstance(self.dev, DeviceLive):
            base, delta = (
                replace(part, kept=kept) for part, kept in zip((self.dev.base, self.dev.delta), doubled, strict=True)
            )
            self.dev = replace(self.dev, base=base, delta=delta)
        else:
            self.dev = replace(self.dev, kept=doubled[0])
        self._free += range(2 * self._count - 1, self._count - 1, -1)
        self._count *= 2


def _parts(dev: Placed) -> list[Any]:
    """Return the filters of each matrix or table that something on a device has."""
    return [dev.base.kept, dev.delta.kept] if isinstance(dev, DeviceLive) else [dev.kept]


def _arrays(kept: Any) -> list[str]:
    """Return the names of arrays in which those of all filters stand one behind the other; `of` is no filter's."""
    return [name for name in arrays_of(type(kept)) if name != "of"]
