"""Operations on tables that take whatever else `put` returns: one module for each kind, with the same names."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from . import matrix_ops, on_demand

Operation = TypeVar("Operation", bound=Callable[..., Any])


def by_kind(operation: Operation) -> Operation:
    """Return an operation on tables that takes a constraint of another kind as well, and then is that of its module."""
    ops, name = sys.modules[operation.__module__], operation.__name__
    others: dict[type, Callable[..., Any]] = {
        matrix_ops.DeviceMatrix: getattr(matrix_ops, name),
        on_demand.OnDemandTable: getattr(on_demand, name),
    }

    @functools.wraps(operation)
    def either(dev: Any, *args: Any, **options: Any) -> Any:
        other = others.get(type(dev))
        if other is not None:
            return other(ops, dev, *args, **options)
        return operation(dev, *args, **options)

    return cast(Operation, either)
