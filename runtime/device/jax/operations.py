"""The operations on constraints in JAX: `Cursor` says what each does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..backend import Placed
from ..cursor import Cursor, Kinds
from ..device_live import DeviceLive
from ..device_live_shards import DeviceLiveShards
from ..device_matrix import DeviceMatrix
from ..device_shards import DeviceShards
from ..device_table import DeviceTable
from ..live_cursor import LiveCursor
from ..matrix_cursor import MatrixCursor
from ..on_demand import OnDemandTable
from ..on_demand_cursor import OnDemandCursor
from ..shard_cursor import LiveShardsCursor, ShardsCursor
from ..table_filter_cursor import FilteredTableCursor
from ..table_filters import DeviceFilteredTable
from . import arrays
from .table_cursor import NoConstraint, TableCursor, TpuTableCursor, TpuTextTableCursor
from .tpu_layout import TpuTable
from .tpu_text_layout import TpuTextTable


def _walk(step: Callable[..., Any], dev: Placed, state: Any, tokens: Array) -> tuple[Any, Array]:
    """Return states before all tokens (B * T,) and nodes after them (B, T), by `Cursor.step_or_stay`."""
    if isinstance(dev, OnDemandTable):  # followed on the host
        before, after = [], []
        for token in tokens.T:
            before.append(state)
            state = step(dev, state, token)
            after.append(state.node)
        stacked, nodes = jax.tree.map(lambda *parts: jnp.stack(parts), *before), jnp.stack(after)
    else:
        stacked, nodes = _scan(step, dev, state, tokens)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:]), stacked), nodes.T


@partial(jax.jit, static_argnums=0)  # for calls outside of a compiled function, which would compile a loop each time
def _scan(step: Callable[..., Any], dev: Placed, state: Any, tokens: Array) -> tuple[Any, Array]:
    """Return states before tokens, (T, B, ..), and nodes after them (T, B)."""

    def one(state: Any, token: Array) -> tuple[Any, tuple[Any, Array]]:
        following = step(dev, state, token)
        return following, (state, following.node)

    found: tuple[Any, Array] = lax.scan(one, state, tokens.T)[1]
    return found


KINDS = Kinds(
    arrays,
    {
        DeviceTable: TableCursor,
        TpuTable: TpuTableCursor,
        TpuTextTable: TpuTextTableCursor,
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
allowed_tokens = KINDS.operation(Cursor.allowed_tokens)
candidates = KINDS.operation(Cursor.candidates)
select = KINDS.operation(Cursor.select)
end_scores = KINDS.operation(Cursor.end_scores)
log_mass = KINDS.operation(Cursor.log_mass)
log_probs = KINDS.operation(Cursor.log_probs)
contains = KINDS.operation(Cursor.contains)


def draw(*_: Any) -> None:
    """Return None: drawing takes array operations, which XLA fuses."""


def mask_logits_(
    dev: Placed, logits: Array, state: Any, remaining: Array | None = None, level: int | None = None
) -> Array:
    """Mask logits (B, V) as `mask_logits` does, in their memory: the array given is donated, use what comes back."""
    masked: Array = _mask_donated(dev, logits, state, remaining, level)
    return masked


_mask_donated = jax.jit(mask_logits, donate_argnums=1, static_argnums=4)
