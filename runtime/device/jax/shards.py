"""A sorted matrix in shards over the devices of a JAX mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike, NDArray

from ....table.sharded_files import ShardedFiles, ShardSummary, layout_of
from ....table.sharded_matrix import ShardedMatrix
from ....table.snapshot import Snapshot
from ..device_live_shards import DeviceLiveShards, place_live_shards, refreshed
from ..device_live_shards import with_filters as with_live_filters
from ..device_matrix import Origin
from ..device_shards import DeviceShards, FilesOrigin, Parts, place_head
from ..shard_filters import filtered as with_filters


@dataclass(frozen=True)
class MeshCollectives:
    """The devices along an axis of a mesh, under `shard_map`. See `Collectives`."""

    mesh: Mesh
    axis: str

    @property
    def size(self) -> int:
        return int(self.mesh.shape[self.axis])

    def run(
        self, function: Callable[..., Any], statics: tuple[Any, ...], shared: Any, own: Any, is_own: tuple[bool, ...]
    ) -> tuple[Any, ...]:
        found: tuple[Any, ...] = _run(self, function, statics, shared, own, is_own)
        return found

    def sum(self, x: Array) -> Array:
        total: Array = lax.psum(x, self.axis)  # type: ignore[no-untyped-call]
        return total

    def best(self, scores: Array, places: Array, k: int, most: int) -> tuple[Array, Array]:
        if most > np.iinfo(jnp.arange(0).dtype).max:
            raise ValueError(
                f"the beams of a batch element have {most:,} continuations, which JAX cannot count in its 32-bit mode: "
                "set jax_enable_x64, or search with fewer beams"
            )
        kind = jnp.int32 if most <= np.iinfo(np.int32).max and scores.dtype == jnp.float32 else jnp.int64
        if scores.dtype == jnp.float32 and kind == jnp.int64:
            scores = scores.astype(jnp.float64)
        both = jnp.stack([lax.bitcast_convert_type(scores, kind), places.astype(kind)], -1)
        both = lax.all_gather(both, self.axis, axis=1, tiled=True)  # one collective for both: (B, N m, 2)
        scores = lax.bitcast_convert_type(both[..., 0], scores.dtype)
        lowest, places = lax.sort((-scores, both[..., 1]), num_keys=2)
        return -lowest[:, :k], places[:, :k]


@partial(jax.jit, static_argnums=(0, 1, 2, 5))
def _run(
    collectives: MeshCollectives, function: Callable[..., Any], statics: tuple[Any, ...], shared: Any, own: Any,
    is_own: tuple[bool, ...],
) -> tuple[Any, ...]:  # fmt: skip
    """Return what `Collectives.run` says. What is of a device lies in arrays with the devices first."""
    each, alike = PartitionSpec(collectives.axis), PartitionSpec()  # type: ignore[no-untyped-call]

    def on_one(shared: Any, own: Any) -> tuple[Any, ...]:
        found = function(*statics, shared, jax.tree.map(lambda x: x[0], own))
        return tuple(jax.tree.map(lambda x: x[None], x) if mine else x for x, mine in zip(found, is_own, strict=True))

    out = tuple(each if mine else alike for mine in is_own)
    mapped = jax.shard_map(on_one, mesh=collectives.mesh, in_specs=(alike, each), out_specs=out, check_vma=False)
    found: tuple[Any, ...] = mapped(shared, own)
    return found


@dataclass(frozen=True)
class _Places:
    """Where arrays lie on a mesh: alike on all devices, or each its own, with the devices first."""

    collectives: MeshCollectives

    def _at(self, *axes: str) -> NamedSharding:
        return NamedSharding(self.collectives.mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]

    def alike(self, array: NDArray[Any]) -> Array:
        placed: Array = jax.device_put(array, self._at())
        return placed

    def on_each(self, array: Any) -> Array:
        """Put an array on each device, as its own."""
        count = self.collectives.size
        placed: Array = jax.device_put(np.broadcast_to(array, (count, *array.shape)), self._at(self.collectives.axis))
        return placed

    def each(self, make: Callable[[int], Any]) -> Any:
        """Put on each device the tree of arrays that is made of the number of its shard."""
        count, sharding = self.collectives.size, self._at(self.collectives.axis)
        made_of: list[list[Array]] = []
        structure: Any = None
        devices = sharding.addressable_devices_indices_map((count,))
        for number in range(count):
            here = [
                device for device, index in devices.items() if index is not None and number in range(count)[index[0]]
            ]
            if here:
                leaves, structure = jax.tree.flatten(make(number))
                made_of = made_of or [[] for _ in leaves]
                for leaf, placed in zip(leaves, made_of, strict=True):
                    placed.extend(jax.device_put(leaf[None], device) for device in here)
        arrays = [
            jax.make_array_from_single_device_arrays((count, *found[0].shape[1:]), sharding, found) for found in made_of
        ]
        return jax.tree.unflatten(structure, arrays)

    def joined(self, make: Callable[[int], NDArray[np.uint32]]) -> NDArray[np.uint32]:
        """Return the bits that are set in one of the arrays made of the numbers of all shards."""
        bits = make(0)
        for number in range(1, self.collectives.size):
            bits |= make(number)
        return bits


def put_shards(sharded: ShardedMatrix | ShardedFiles, mesh: Mesh, axis: str, wide: bool) -> DeviceShards:
    """Put each shard on one device along an axis of a mesh, and the head on all. Raises ValueError."""
    if axis not in mesh.shape or mesh.shape[axis] != sharded.shards:
        raise ValueError(f"axis={axis!r} must be an axis of {sharded.shards} devices, the mesh has {dict(mesh.shape)}")
    places = _Places(MeshCollectives(mesh, axis))
    if isinstance(sharded, ShardedFiles):  # read once for what all devices know, and once more for the rows of each
        summaries = [ShardSummary.of(sharded.columns(number)) for number in range(sharded.shards)]
        layout = layout_of(sharded.vocab_size, summaries)
        origin: Origin = FilesOrigin(sharded, layout)
    else:
        layout, origin = sharded.layout, Origin(sharded.matrix)
    head, pairs = place_head(layout, places.alike, wide)
    parts = Parts(layout, origin, wide)
    own = places.each(lambda number: parts.arrays(number, sharded.columns(number)))
    part = parts.placed(own, places.on_each)
    return DeviceShards(head, pairs, part, own["begin"], places.collectives, layout.count)


def put_live_shards(snapshot: Snapshot, mesh: Mesh, axis: str, wide: bool) -> DeviceLiveShards:
    """Put the rows of a snapshot on the devices along an axis of a mesh. Raises ValueError."""
    if axis not in mesh.shape:
        raise ValueError(f"axis={axis!r} must be an axis of the mesh, which has {dict(mesh.shape)}")
    places = _Places(MeshCollectives(mesh, axis))
    return place_live_shards(snapshot, places.collectives, places.alike, places.each, places.on_each, wide)


def refreshed_shards(dev: DeviceLiveShards, snapshot: Snapshot) -> Any:
    """Return another snapshot in shards in the place of one."""
    places = _places_of(dev)
    return refreshed(dev, snapshot, places.alike, places.each, places.on_each)


def filtered_shards(dev: Any, filters: Sequence[Any], of: ArrayLike | None) -> Any:
    """Return a `DeviceShards` or `DeviceLiveShards` with filters of it."""
    places = _places_of(dev)
    if isinstance(dev, DeviceLiveShards):
        return with_live_filters(dev, filters, of, places.alike, places.each, places.on_each)
    return with_filters(dev, filters, of, places.alike, places.each, places.joined)


def _places_of(dev: DeviceShards | DeviceLiveShards) -> _Places:
    return _Places(cast(MeshCollectives, dev.collectives))


jax.tree_util.register_dataclass(
    DeviceLiveShards, data_fields=["head", "part", "begins"], meta_fields=["collectives", "count"]
)
jax.tree_util.register_dataclass(
    DeviceShards, data_fields=["head", "pair_starts", "part", "begin"], meta_fields=["collectives", "count"]
)
