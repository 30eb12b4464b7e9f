"""A table in JAX arrays: `to_device` copies one to a device; it is a pytree."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from ....table.constraint import Constraint
from ....table.sharded_files import FilesFilter, ShardedFiles
from ....table.sharded_matrix import ShardedMatrix
from ....table.sid_filter import SidFilter
from ....table.snapshot import LiveFilter, Snapshot
from ....table.transition_table import TransitionTable
from ...arena.arena import Arena, Handle, starts_of
from ...arena.device_arrays import by_ends, device_table_of
from ..backend import Placed
from ..device_filters import filtered as place_filters
from ..device_live import DeviceLive
from ..device_live import refreshed as refreshed_live
from ..device_live_shards import DeviceLiveShards
from ..device_matrix import DeviceFilters, DeviceMatrix
from ..device_shards import DeviceShards, check_mesh
from ..device_table import (
    CALL_ARRAYS,
    DeviceCalls,
    DeviceTable,
    arrays_of,
    device_table,
    refuse_wide,
    statics_of,
)
from ..on_demand import OnDemandTable, ReachedArrays
from ..placing import place
from ..shard_filters import Live
from ..table_filters import DeviceFilteredTable, DeviceTableFilters
from . import arrays
from .shards import filtered_shards, put_live_shards, put_shards, refreshed_shards
from .tpu_layout import TpuTable, fits, tpu_table
from .tpu_text_layout import TpuTextTable, text_table

_PLATFORMS = ("cpu", "gpu", "cuda", "rocm", "tpu")

_LEAST = 64  # entries of an arena's arrays that are written at once

jax.tree_util.register_dataclass(
    DeviceCalls, data_fields=list(arrays_of(DeviceCalls)), meta_fields=list(statics_of(DeviceCalls))
)

jax.tree_util.register_dataclass(
    DeviceTable, data_fields=[*arrays_of(DeviceTable), "calls"], meta_fields=list(statics_of(DeviceTable))
)

jax.tree_util.register_dataclass(
    TpuTable, data_fields=[*arrays_of(TpuTable), "calls"], meta_fields=list(statics_of(TpuTable))
)

jax.tree_util.register_dataclass(
    TpuTextTable, data_fields=[*arrays_of(TpuTextTable), "calls"], meta_fields=list(statics_of(TpuTextTable))
)

jax.tree_util.register_dataclass(
    DeviceFilters, data_fields=list(arrays_of(DeviceFilters)), meta_fields=list(statics_of(DeviceFilters))
)

jax.tree_util.register_dataclass(
    DeviceMatrix, data_fields=[*arrays_of(DeviceMatrix), "kept"], meta_fields=list(statics_of(DeviceMatrix))
)

jax.tree_util.register_dataclass(
    DeviceTableFilters,
    data_fields=list(arrays_of(DeviceTableFilters)),
    meta_fields=list(statics_of(DeviceTableFilters)),
)

jax.tree_util.register_dataclass(DeviceFilteredTable, data_fields=["table", "kept"], meta_fields=[])

jax.tree_util.register_dataclass(DeviceLive, data_fields=["base", "delta", "sizes"], meta_fields=[])


def _given(kind: Any, arrays: Any) -> OnDemandTable:
    """Rebuild an on-demand table from a pytree: traced arrays take the place of its own."""
    kept, start_row = kind
    rows = kept()
    if rows is None:
        raise ReferenceError("the table that these arrays are of is gone: keep what to_device() returned")
    traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
    return OnDemandTable(rows, start_row, ReachedArrays(*arrays) if traced else None)


def _taken(dev: OnDemandTable) -> tuple[Any, Any]:
    """Return an on-demand table's arrays and a weak reference to its rows: a compiled function keeps no table alive."""
    return tuple(dev.arrays), (weakref.ref(dev.rows), dev.start_row)


jax.tree_util.register_pytree_node(OnDemandTable, _taken, _given)


def to_device(
    constraint: Constraint | Arena | ShardedMatrix | ShardedFiles,
    device: jax.Device | None = None,
    *,
    distances: bool = False,
    on_demand: bool | None = None,
    platform: str | None = None,
    mesh: jax.sharding.Mesh | None = None,
    axis: str | None = None,
) -> Placed:
    """Copy a table or a sorted matrix to a device, once; every other function takes what this returns.

    distances: also copy the distances that `remaining` needs; a matrix needs none.
    on_demand: read a table on the host between steps, as texts reach its states, instead of copying it. By default this
    holds for tables without a finite form, such as grammars whose nesting the text does not delimit: see
    `on_demand.OnDemandTable`.

    platform: the platform that a table is laid out for, by default that of the one device it is put on. "tpu" gives a
    trie as a `TpuTable`, whose `select` runs kernels, and a graph or a nested table as a `TpuTextTable`, of which
    `bitmask` and `mask_logits` do. Kernels compile for TPUs alone, on one device, in JAX's 32-bit mode, and those of
    `select` have no derivative. Name "tpu" to compile for one where there is none. Any other gives the layout for all
    devices, which matrices, arenas, and tables beyond the limits of `tpu_text_layout` have everywhere.

    mesh, axis: of a `ShardedMatrix` or `ShardedFiles`, the mesh and its axis with as many devices as there are shards;
    of a `Snapshot`, a mesh and its axis with the devices that it is cut for. Each of them holds one shard. `select` is
    for logits that all of them have.

    Of an arena, call it again once tables were added: its arrays take the place of those that were returned before,
    which are used up. Writing them compiles once for each array and size, some tenths of a second in the first adds.

    Raises ValueError for a platform that JAX does not have, and for "tpu" in JAX's 64-bit mode.
    """
    wide = bool(jnp.arange(0).dtype == jnp.int64)  # else JAX is in its 32-bit mode
    _check_platform(platform, wide)
    given = {"device": device, "distances": distances, "on_demand": on_demand, "platform": platform}
    if not check_mesh(constraint, mesh, axis, **given):
        library = _Library(device, platform, wide)
        if isinstance(constraint, Arena) and not on_demand:
            return library.arena(constraint, distances)
        return place(library, cast(Constraint, constraint), distances, on_demand)
    devices, along = cast(jax.sharding.Mesh, mesh), cast(str, axis)
    if isinstance(constraint, Snapshot):
        return put_live_shards(constraint, devices, along, wide)
    return put_shards(cast(ShardedMatrix | ShardedFiles, constraint), devices, along, wide)


@dataclass(frozen=True)
class _Library:
    """JAX arrays on a device. See `placing.Library`."""

    device: jax.Device | jax.sharding.Sharding | None
    platform: str | None
    wide: bool
    arrays = arrays

    def convert(self, array: NDArray[Any]) -> Array:
        placed: Array = jax.device_put(array, self.device)
        return placed

    def table(self, table: TransitionTable, distances: bool) -> DeviceTable:
        if not self.wide:
            refuse_wide(table)
            if (self.platform or _platform_of(self.device)) == "tpu":
                return (tpu_table if fits(table) else text_table)(table, self.convert, distances)
        return device_table(table, self.convert, DeviceTable, distances)

    def arena(self, arena: Arena, distances: bool) -> Placed:
        """Return an arena's arrays on the device, which take the place of those returned before."""
        arena.check_budgets(distances)
        return arena.mirror(("jax", self.device), lambda: _Mirror(arena, self.convert))

    def with_filters(self, dev: Placed, filters: Sequence[SidFilter]) -> Placed:
        return with_filters(dev, filters)

    def lasting(self) -> AbstractContextManager[object]:
        return nullcontext()


def _check_platform(platform: str | None, wide: bool) -> None:
    """Raise ValueError unless tables can be laid out for a platform."""
    if platform not in (None, *_PLATFORMS):
        raise ValueError(f"platform must be one of {', '.join(_PLATFORMS)}, not {platform!r}")
    if platform == "tpu" and wide:
        raise ValueError("kernels for a TPU need JAX's 32-bit mode: jax.config.update('jax_enable_x64', False)")


def _platform_of(device: jax.Device | jax.sharding.Sharding | None) -> str | None:
    """Return the platform of the device that arrays are put on; None if they are put on several."""
    devices = jax.device_put(np.zeros(0, np.int32), device).devices()
    return next(iter(devices)).platform if len(devices) == 1 else None


def with_snapshot(dev: Live, snapshot: Snapshot) -> Live:
    """Return another snapshot of a live set, as `numpy_ops.with_snapshot` says; shards take one too."""
    if isinstance(dev, DeviceLiveShards):
        return cast(Live, refreshed_shards(dev, snapshot))

    return refreshed_live(dev, snapshot, _near(dev.sizes))


def with_filters(
    dev: Placed, filters: Sequence[SidFilter | LiveFilter | FilesFilter], of: ArrayLike | None = None
) -> Placed:
    """Return a matrix, live set or table with filters of it, as `numpy_ops.with_filters` says; shards take them too.

    Raises TypeError, ValueError; ConstraintError for a filter of another matrix, snapshot, table or folder of shards;
    TableFileError for a shard that cannot be read.
    """
    if isinstance(dev, (DeviceShards, DeviceLiveShards)):
        return filtered_shards(dev, filters, of)

    bare = dev.table if isinstance(dev, DeviceFilteredTable) else dev
    where = bare.steps if isinstance(bare, DeviceMatrix | DeviceLive) else bare.row_start
    return place_filters(dev, filters, of, _near(where))


def _near(like: Array) -> Callable[[NDArray[Any]], Array]:
    """Return what copies arrays to where an array is."""
    return lambda array: cast(Array, jax.device_put(array, like.sharding))


class _Mirror:
    """An arena's arrays on a device; each write donates the old arrays to the new ones."""

    def __init__(self, arena: Arena, convert: Callable[[NDArray[Any]], Array]) -> None:
        self._arrays: dict[str, Array] = {}
        self._by_ends = by_ends(arena.held)

        def keep(name: str, array: NDArray[Any]) -> Array:
            self._arrays[name] = convert(array)
            return self._shown(name)

        self.dev = device_table_of(arena.held, keep, DeviceTable, False)

    def _shown(self, name: str) -> Array:
        array = self._arrays[name]
        return jnp.moveaxis(array, 0, -1) if name in self._by_ends else array

    def read(self) -> DeviceTable:
        return self.dev

    def write(self, changes: list[tuple[str, int, NDArray[Any]]]) -> None:
        for name, start, values in changes:
            size = max(_LEAST, 1 << (len(values) - 1).bit_length())  # few sizes, each of which is compiled for once
            padded = np.zeros((size, *values.shape[1:]), values.dtype)
            padded[: len(values)] = values
            self._arrays[name] = _overwritten(self._arrays[name], padded, start, len(values))
        shown: dict[str, Any] = {name: self._shown(name) for name in {name for name, _, _ in changes}}
        assert self.dev.calls is not None, "an arena's tables may be nested"
        calls = replace(self.dev.calls, **{name: shown.pop(name) for name in CALL_ARRAYS if name in shown})
        self.dev = replace(self.dev, calls=calls, **shown)


@partial(jax.jit, donate_argnums=0)
def _overwritten(array: Array, values: Array, start: Array, count: Array) -> Array:
    """Return an array with the first `count` of some values from `start` on."""
    rows = jnp.arange(values.shape[0])
    to = jnp.where(rows < count, start + rows, array.shape[0])
    return array.at[to].set(values.astype(array.dtype), mode="drop")


def with_start_states(dev: DeviceTable, handles: Sequence[Handle]) -> DeviceTable:
    """Return an arena in which the rows of a batch start in the tables of handles (B,): as many rows in each."""
    return replace(dev, starts=jnp.asarray(starts_of(handles, dev.arena)))
