"""Operations on tables that take whatever else `put` returns: one module for each kind, with the same names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from . import live_ops, live_shard_ops, matrix_ops, on_demand_ops, several_ends, shard_ops, table_filter_ops
from .backend import Backend, Placed
from .device_live import DeviceLive
from .device_live_shards import DeviceLiveShards
from .device_matrix import DeviceMatrix
from .device_shards import DeviceShards
from .on_demand import OnDemandTable
from .table_filters import DeviceFilteredTable

Others: TypeAlias = DeviceMatrix | DeviceLive | DeviceFilteredTable | DeviceShards | DeviceLiveShards | OnDemandTable
"""What else `put` returns."""

Own = TypeVar("Own")  # a table as one library holds it
Result = TypeVar("Result")
P = ParamSpec("P")

_accepting: dict[Backend, Callable[..., Any]] = {}  # the operation `accepting` of each library


def by_kind(
    ops: Backend,
) -> Callable[
    [Callable[Concatenate[Own, P], Result]],
    Callable[Concatenate[Own | Others, P], Result],
]:
    """Return a decorator of operations on tables, after which they take matrices and tables read on demand as well.

    For those the operation of the same name in `matrix_ops` or `on_demand_ops` runs, on the arrays of `ops`. Around an
    operation on what has several end tokens goes the one of its name in `several_ends`, if there is one.
    """

    def decorate(
        operation: Callable[Concatenate[Own, P], Result],
    ) -> Callable[Concatenate[Own | Others, P], Result]:
        name = operation.__name__
        others: dict[type, Callable[..., Result]] = {
            DeviceMatrix: getattr(matrix_ops, name),
            DeviceLive: getattr(live_ops, name),
            DeviceFilteredTable: getattr(table_filter_ops, name),
            OnDemandTable: getattr(on_demand_ops, name),
            DeviceShards: getattr(shard_ops, name, shard_ops.refused(name)),
            DeviceLiveShards: getattr(live_shard_ops, name, shard_ops.refused(name)),
        }

        around: Callable[..., Result] | None = several_ends.OPERATIONS.get(name)

        @functools.wraps(operation)
        def either(dev: Placed, *args: P.args, **options: P.kwargs) -> Result:
            other = others.get(type(dev))
            if around is not None and getattr(dev, "other_ends", None):  # dev may be what is no table
                own = operation if other is None else functools.partial(other, ops)
                return around(ops, _accepting[ops], own, dev, *args, **options)
            if other is not None:
                return other(ops, dev, *args, **options)
            return operation(dev, *args, **options)

        if name == "accepting":
            _accepting[ops] = either
        return cast(Callable[..., Result], either)

    return decorate
