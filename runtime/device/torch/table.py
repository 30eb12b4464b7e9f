"""A table in tensors: `to_device` copies one to a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

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
from ..device_matrix import DeviceMatrix
from ..device_shards import DeviceShards, check_mesh
from ..device_table import DeviceTable, device_table
from ..placing import place
from ..shard_filters import Live
from ..table_filters import DeviceFilteredTable
from . import arrays
from .arrays import signed
from .ordering import Staging, StreamOrder

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # (256, 8)


@dataclass(frozen=True, eq=False)
class TorchTable(DeviceTable):
    """A `DeviceTable` with what each byte of a mask unfolds to: on a CPU look-ups take half the time of shifts."""

    byte_mask: Tensor  # (256, 8) int32: -1 where the bit is set, else 0
    byte_penalty: Tensor  # (256, 8) float32: 0 where the bit is set, else -inf
    byte_rank: Tensor  # (256, 8) int32: bits set below each bit


def to_device(
    constraint: Constraint | Arena | ShardedMatrix | ShardedFiles,
    device: torch.device | str | None = None,
    *,
    distances: bool = False,
    on_demand: bool | None = None,
    mesh: DeviceMesh | None = None,
    axis: str | None = None,
) -> Placed:
    """Copy a table or a sorted matrix to a device, once; every other function takes what this returns.

    distances: also copy the distances that `remaining` needs; a matrix needs none.
    on_demand: read a table on the host between steps, as texts reach its states, instead of copying it. By default this
    holds for tables without a finite form, such as grammars whose nesting the text does not delimit: see
    `on_demand.OnDemandTable`.

    mesh, axis: of a `ShardedMatrix` or `ShardedFiles`, the device mesh and its axis with as many processes as there are
    shards; of a `Snapshot`, a mesh and its axis with the processes that it is cut for. Each of them holds one shard on
    its device. `select` is for logits that all of them have, and all call it together.

    Of an arena it returns the same each time: its arrays are written to where they are as tables come and go. On CUDA
    such writes are in order with what the streams do that called this, `with_start_states` or `Arena.add`: call one of
    them in each stream that reads the arena, as those are that replay CUDA graphs.
    """
    if not check_mesh(constraint, mesh, axis, device=device, distances=distances, on_demand=on_demand):
        library = _Library(device)
        if isinstance(constraint, Arena) and not on_demand:
            return library.arena(constraint, distances)
        return place(library, cast(Constraint, constraint), distances, on_demand)
    from .shards import put_live_shards, put_shards  # which need torch.distributed: some builds of torch lack it

    processes, along = cast("DeviceMesh", mesh), cast(str, axis)
    if isinstance(constraint, Snapshot):
        return put_live_shards(constraint, processes, along)
    return put_shards(cast(ShardedMatrix | ShardedFiles, constraint), processes, along)


@dataclass(frozen=True)
class _Library:
    """Tensors on a device. See `placing.Library`."""

    device: torch.device | str | None
    arrays = arrays
    wide = True

    @staticmethod
    def near(dev: Placed) -> _Library:
        """Return the library that puts tensors where those of a constraint are."""
        bare = dev.table if isinstance(dev, DeviceFilteredTable) else dev
        where = bare.steps if isinstance(bare, DeviceMatrix | DeviceLive) else bare.row_start
        return _Library(where.device)

    def convert(self, array: NDArray[Any]) -> Tensor:
        return torch.tensor(signed(array), device=self.device)

    def table(self, table: TransitionTable, distances: bool) -> TorchTable:
        host = table if self._where.type == "cpu" else None
        return device_table(table, self.convert, TorchTable, distances, host=host, **_of_bytes())

    def arena(self, arena: Arena, distances: bool) -> Placed:
        """Return an arena's arrays on the device, which are written to as tables come and go."""
        arena.check_budgets(distances)
        where = self._where
        kind = CudaMirror if where.type == "cuda" else TensorMirror
        with self.lasting():  # tables come later, from whatever thread adds them
            return arena.mirror(("torch", where), lambda: kind(arena, self.convert, where, _of_bytes()))

    def with_filters(self, dev: Placed, filters: Sequence[SidFilter]) -> Placed:
        return place_filters(dev, filters, None, self.convert)

    def lasting(self) -> AbstractContextManager[object]:
        return torch.inference_mode(False)  # what is made inside that mode cannot be written to outside

    @property
    def _where(self) -> torch.device:
        return torch.empty(0, device=self.device).device


def _of_bytes() -> dict[str, NDArray[Any]]:
    """Return the arrays that a `TorchTable` has beside those of a `DeviceTable`."""
    return {
        "byte_mask": -_BYTES.astype(np.int32),
        "byte_penalty": np.where(_BYTES, np.float32(0), np.float32(-np.inf)),
        "byte_rank": (np.cumsum(_BYTES, axis=1) - _BYTES).astype(np.int32),
    }


def with_snapshot(dev: Live, snapshot: Snapshot) -> Live:
    """Return another snapshot of a live set, as `numpy_ops.with_snapshot` says; shards take one too."""
    if isinstance(dev, DeviceLiveShards):
        from .shards import refreshed_shards

        return cast(Live, refreshed_shards(dev, snapshot))

    return refreshed_live(dev, snapshot, _Library(dev.sizes.device).convert)


def with_filters(
    dev: Placed, filters: Sequence[SidFilter | LiveFilter | FilesFilter], of: ArrayLike | None = None
) -> Placed:
    """Return a matrix, live set or table with filters of it, as `numpy_ops.with_filters` says; shards take them too.

    Raises TypeError, ValueError; ConstraintError for a filter of another matrix, snapshot, table or folder of shards;
    TableFileError for a shard that cannot be read.
    """
    if isinstance(dev, (DeviceShards, DeviceLiveShards)):
        from .shards import filtered_shards

        return filtered_shards(dev, filters, of)

    return place_filters(dev, filters, of, _Library.near(dev).convert)


class TensorMirror:
    """An arena's arrays on a device, written to in place."""

    def __init__(
        self,
        arena: Arena,
        convert: Callable[[NDArray[Any]], Tensor],
        where: torch.device,
        more: dict[str, NDArray[Any]],
    ) -> None:
        self.tensors: dict[str, Tensor] = {}

        def keep(name: str, array: NDArray[Any]) -> Tensor:
            placed = self.tensors[name] = convert(array)
            return placed.movedim(0, -1) if name in by_ends(arena.held) else placed

        self.dev = device_table_of(arena.held, keep, TorchTable, where.type == "cpu", **more)

    def read(self) -> TorchTable:
        return self.dev

    def write(self, changes: list[tuple[str, int, NDArray[Any]]]) -> None:
        for name, start, values in changes:
            self.tensors[name][start : start + len(values)] = torch.from_numpy(np.ascontiguousarray(signed(values)))


class CudaMirror(TensorMirror):
    """One on a CUDA device: written from pinned memory, in order with what its streams read."""

    def __init__(
        self,
        arena: Arena,
        convert: Callable[[NDArray[Any]], Tensor],
        where: torch.device,
        more: dict[str, NDArray[Any]],
    ) -> None:
        self._order, self._staging = StreamOrder(where), Staging()
        super().__init__(arena, convert, where, more)
        self._order.begin()
        self._order.end()  # other streams wait for the arrays as they are first

    def read(self) -> TorchTable:
        if self._order.join():
            for array in self.tensors.values():  # whose memory is not another's before this stream has read it
                array.record_stream(torch.cuda.current_stream(array.device))
        return self.dev

    def write(self, changes: list[tuple[str, int, NDArray[Any]]]) -> None:
        if not changes:
            return
        self._order.begin()
        buffer, parts = self._staging.pack([values for _, _, values in changes])
        try:
            for (name, start, _), part in zip(changes, parts, strict=True):
                self.tensors[name][start : start + len(part)].copy_(part, non_blocking=True)
        finally:
            self._staging.done(buffer, self._order.end())


def with_start_states(dev: TorchTable, handles: Sequence[Handle]) -> TorchTable:
    """Return an arena in which the rows of a batch start in the tables of handles (B,): as many rows in each."""
    starts = torch.from_numpy(starts_of(handles, dev.arena)).to(dev.starts.device)
    if starts.is_cuda:
        handles[0].arena.follow()
    return replace(dev, starts=starts)
