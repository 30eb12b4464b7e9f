"""A sorted matrix in shards over the devices of a JAX mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ....table.sharded_matrix import ShardedMatrix
from ..device_shards import DeviceShards, Parts, place_head


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


def put_shards(sharded: ShardedMatrix, mesh: Mesh, axis: str, wide: bool) -> DeviceShards:
    """Put each shard on one device along an axis of a mesh, and the head on all. Raises ValueError."""
    if axis not in mesh.shape or mesh.shape[axis] != sharded.shards:
        raise ValueError(f"axis={axis!r} must be an axis of {sharded.shards} devices, the mesh has {dict(mesh.shape)}")
    alike, each = (NamedSharding(mesh, PartitionSpec(*at)) for at in ((), (axis,)))  # type: ignore[no-untyped-call]
    head, pairs = place_head(sharded, lambda array: jax.device_put(array, alike), wide)
    parts = Parts(sharded, wide)

    made_of: dict[str, list[Array]] = {}
    devices = each.addressable_devices_indices_map((sharded.shards,))
    for number in range(sharded.shards):
        here = [
            device
            for device, index in devices.items()
            if index is not None and number in range(sharded.shards)[index[0]]
        ]
        if here:
            made = parts.arrays(number)
            for at, word in enumerate(made.pop("words")):
                made[f"word {at}"] = word
            for name, array in made.items():
                made_of.setdefault(name, []).extend(jax.device_put(array[None], device) for device in here)
    own: dict[str, Any] = {
        name: jax.make_array_from_single_device_arrays((sharded.shards, *found[0].shape[1:]), each, found)
        for name, found in made_of.items()
    }
    own["words"] = [own.pop(name) for name in list(own) if name.startswith("word ")]

    def on_each(array: Any) -> Array:
        placed: Array = jax.device_put(np.broadcast_to(array, (sharded.shards, *array.shape)), each)
        return placed

    return DeviceShards(
        head, pairs, parts.placed(own, on_each), own["begin"], MeshCollectives(mesh, axis),
        sharded.matrix.num_sequences,
    )  # fmt: skip


jax.tree_util.register_dataclass(
    DeviceShards, data_fields=["head", "pair_starts", "part", "begin"], meta_fields=["collectives", "count"]
)
