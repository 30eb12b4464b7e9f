"""The operations on constraints in PyTorch: `Cursor` says what each does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..backend import Placed
from ..cursor import Cursor, Kinds
from ..device_live import DeviceLive
from ..device_live_shards import DeviceLiveShards
from ..device_matrix import DeviceMatrix
from ..device_shards import DeviceShards
from ..live_cursor import LiveCursor
from ..matrix_cursor import MatrixCursor
from ..on_demand import OnDemandTable
from ..on_demand_cursor import OnDemandCursor
from ..shard_cursor import LiveShardsCursor, ShardsCursor
from ..table_filter_cursor import FilteredTableCursor
from ..table_filters import DeviceFilteredTable
from . import arrays
from .table import TorchTable
from .table_cursor import NoConstraint, TableCursor


def _walk(step: Callable[..., Any], dev: Placed, state: Any, tokens: Tensor) -> tuple[Any, Tensor]:
    """Return states before all tokens (B * T,) and nodes after them (B, T), by `Cursor.step_or_stay`."""
    before, after = [], []
    for token in tokens.unbind(1):
        before.append(state)
        state = step(dev, state, token)
        after.append(state.node)
    stacked = (torch.stack(parts, 1).flatten(0, 1) for parts in zip(*before, strict=True))
    return type(state)(*stacked), torch.stack(after, 1)


KINDS = Kinds(
    arrays,
    {
        TorchTable: TableCursor,
        DeviceMatrix: MatrixCursor,
        DeviceLive: LiveCursor,
        DeviceFilteredTable: FilteredTableCursor,
        OnDemandTable: OnDemandCursor,
        DeviceShards: ShardsCursor,
        DeviceLiveShards: LiveShardsCursor,
        type(None): NoConstraint,
    },
    _walk,
)

start = KINDS.operation(Cursor.start)
first_tokens = KINDS.operation(Cursor.first_tokens)
accepting = KINDS.operation(Cursor.accepting)
advance = KINDS.operation(Cursor.advance)
distance = KINDS.operation(Cursor.distance)
bitmask = KINDS.operation(Cursor.bitmask)
mask_logits = KINDS.operation(Cursor.mask_logits)
mask_logits_ = KINDS.operation(Cursor.mask_logits_)
allowed_tokens = KINDS.operation(Cursor.allowed_tokens)
candidates = KINDS.operation(Cursor.candidates)
select = KINDS.operation(Cursor.select)
end_scores = KINDS.operation(Cursor.end_scores)
log_mass = KINDS.operation(Cursor.log_mass)
log_probs = KINDS.operation(Cursor.log_probs)
contains = KINDS.operation(Cursor.contains)
