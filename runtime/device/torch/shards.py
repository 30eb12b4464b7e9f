"""A sorted matrix in shards over the processes of a device mesh of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ....errors import MaskwrightError, TableFileError
from ....table.sharded_files import ShardedFiles, ShardSummary, layout_of
from ....table.sharded_matrix import Columns, ShardedMatrix, ShardLayout
from ....table.snapshot import Snapshot
from ..device_live_shards import DeviceLiveShards, place_live_shards, refreshed
from ..device_live_shards import with_filters as with_live_filters
from ..device_matrix import Origin
from ..device_shards import DeviceShards, FilesOrigin, Parts, place_head
from ..shard_filters import filtered as with_filters
from .arrays import signed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Made = TypeVar("Made")


@dataclass(frozen=True)
class GroupCollectives:
    """The processes of a group. See `Collectives`."""

    group: dist.ProcessGroup

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    def run(
        self, function: Callable[..., Any], statics: tuple[Any, ...], shared: Any, own: Any, is_own: tuple[bool, ...]
    ) -> tuple[Any, ...]:
        found: tuple[Any, ...] = function(*statics, shared, own)
        return found

    def sum(self, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def best(self, scores: Tensor, places: Tensor, k: int, most: int) -> tuple[Tensor, Tensor]:
        narrow = most <= torch.iinfo(torch.int32).max and scores.dtype == torch.float32
        kind = torch.int32 if narrow else torch.int64
        scores = scores if narrow else scores.double()
        both = torch.stack([scores.contiguous().view(kind), places.to(kind)], -1)  # (B, m, 2)
        gathered = both.new_empty((self.size * len(both), *both.shape[1:]))
        dist.all_gather_into_tensor(gathered, both, group=self.group)  # one collective for both
        every = gathered.view(self.size, *both.shape).movedim(0, 1).reshape(len(both), -1, 2)
        places = every[..., 1].contiguous()
        order = places.argsort(dim=1, stable=True)  # so that of equal scores the first place comes first
        scores = every[..., 0].contiguous().view(scores.dtype).gather(1, order)
        best, at = scores.sort(dim=1, descending=True, stable=True)
        return best[:, :k], places.gather(1, order).gather(1, at)[:, :k]


@dataclass(frozen=True)
class _Places:
    """Where the arrays of a process lie."""

    collectives: GroupCollectives
    device: torch.device

    @staticmethod
    def of(mesh: DeviceMesh, axis: str) -> _Places:
        """Return where this process has its arrays along an axis of a mesh."""
        kind = mesh.device_type
        device = torch.device(kind) if kind == "cpu" else torch.device(kind, torch.cuda.current_device())
        return _Places(GroupCollectives(mesh.get_group(axis)), device)

    def alike(self, array: NDArray[Any]) -> Tensor:
        return torch.tensor(signed(array), device=self.device)

    def each(self, make: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        """Put here the arrays that are made of the number of the shard of this process."""
        made = make(dist.get_rank(self.collectives.group))
        return {
            name: [self.alike(one) for one in found] if isinstance(found, list) else self.alike(found)
            for name, found in made.items()
        }

    def joined(self, make: Callable[[int], NDArray[np.uint32]]) -> NDArray[np.uint32]:
        """Return the bits that are set in one of the arrays made of the numbers of all shards, where no two have one.

        Raises TableFileError in every process if one of them cannot make its own.
        """
        made = _made_in_all(self.collectives, lambda: make(dist.get_rank(self.collectives.group)))
        total = self.collectives.sum(torch.tensor(made.view(np.int32), device=self.device))
        return total.cpu().numpy().view(np.uint32)


def put_shards(sharded: ShardedMatrix | ShardedFiles, mesh: DeviceMesh, axis: str) -> DeviceShards:
    """Put the shard of this process on its device, and the head. Raises ValueError."""
    names = mesh.mesh_dim_names or ()
    size = mesh.size(names.index(axis)) if axis in names else 0
    if size != sharded.shards:
        raise ValueError(
            f"axis={axis!r} must be an axis of {sharded.shards} processes, the mesh has "
            f"{dict(zip(names, mesh.mesh.shape, strict=False))}"
        )
    places = _Places.of(mesh, axis)
    read = sharded.columns
    if isinstance(sharded, ShardedFiles):
        columns, layout = _read(sharded, places.collectives)
        origin: Origin = FilesOrigin(sharded, layout)
        read = lambda number: columns  # noqa: E731 - those of this process
    else:
        layout, origin = sharded.layout, Origin(sharded.matrix)
    head, pairs = place_head(layout, places.alike, True)
    parts = Parts(layout, origin, True)
    own = places.each(lambda number: parts.arrays(number, read(number)))
    part = parts.placed(own, places.alike)
    return DeviceShards(head, pairs, part, own["begin"], places.collectives, layout.count)


def _read(files: ShardedFiles, collectives: GroupCollectives) -> tuple[Columns, ShardLayout]:
    """Read the rows of this process (L, n), and learn of those of the others what all know.

    Raises TableFileError in every process if one of them cannot read its files, or has those of another build.
    """

    def read() -> tuple[Columns, ShardSummary]:
        columns = files.columns(dist.get_rank(collectives.group))
        return columns, ShardSummary.of(columns)

    columns, summary = _made_in_all(collectives, read)
    told = [(files.manifest.build, summary)] * collectives.size
    dist.all_gather_object(told, (files.manifest.build, summary), group=collectives.group)
    for number, (build, _) in enumerate(told):
        if build != files.manifest.build:
            raise TableFileError(f"process {number} of the mesh has shards of another build than this one")
    return columns, layout_of(files.vocab_size, [one for _, one in told])


def _made_in_all(collectives: GroupCollectives, make: Callable[[], Made]) -> Made:
    """Return what a function makes of files in this process.

    Raises TableFileError in every process if it fails in one of them, or the others would wait for that one.
    """
    made, failed = None, None
    try:
        made = make()
    except (MaskwrightError, OSError) as error:
        failed = error
    told: list[str | None] = [None] * collectives.size
    dist.all_gather_object(told, None if failed is None else str(failed), group=collectives.group)
    if failed is not None:
        raise failed
    for number, error_text in enumerate(told):
        if error_text is not None:
            raise TableFileError(f"process {number} of the mesh could not read its shards: {error_text}")
    return cast(Made, made)


def put_live_shards(snapshot: Snapshot, mesh: DeviceMesh, axis: str) -> DeviceLiveShards:
    """Put the rows of a snapshot that are of this process on its device, and the head. Raises ValueError."""
    names = mesh.mesh_dim_names or ()
    if axis not in names:
        raise ValueError(
            f"axis={axis!r} must be an axis of the mesh, which has {dict(zip(names, mesh.mesh.shape, strict=False))}"
        )
    places = _Places.of(mesh, axis)
    return place_live_shards(snapshot, places.collectives, places.alike, places.each, places.alike, True)


def refreshed_shards(dev: DeviceLiveShards, snapshot: Snapshot) -> Any:
    """Return another snapshot in shards in the place of one."""
    places = _places_of(dev)
    return refreshed(dev, snapshot, places.alike, places.each, places.alike)


def filtered_shards(dev: Any, filters: Sequence[Any], of: ArrayLike | None) -> Any:
    """Return a `DeviceShards` or `DeviceLiveShards` with filters of it."""
    places = _places_of(dev)
    if isinstance(dev, DeviceLiveShards):
        return with_live_filters(dev, filters, of, places.alike, places.each, places.alike)
    return with_filters(dev, filters, of, places.alike, places.each, places.joined)


def _places_of(dev: DeviceShards | DeviceLiveShards) -> _Places:
    return _Places(cast(GroupCollectives, dev.collectives), cast(Tensor, dev.head.steps).device)
