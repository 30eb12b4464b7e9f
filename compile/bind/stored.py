"""Groups of arrays by dotted names, as files keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from numpy.typing import NDArray

Group = TypeVar("Group", bound=tuple[Any, ...])


def by_name(group: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a named tuple of arrays and of such tuples, by names such as `bases.masks`."""
    out: dict[str, NDArray[Any]] = {}
    for name, part in group._asdict().items():
        if _is_group(type(part)):
            out |= {f"{name}.{key}": array for key, array in by_name(part).items()}
        else:
            out[name] = part
    return out


def from_names(kind: type[Group], arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> Group:
    """Return a group of the arrays that `by_name` names. Raises KeyError for a name that is missing."""
    return kind(*(
        from_names(hint, arrays, f"{prefix}{name}.") if _is_group(hint) else arrays[prefix + name]
        for name, hint in get_type_hints(kind).items()
    ))  # fmt: skip


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple)
