"""What others work out of a constraint and keep as long as it lives, such as the masks that matchers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary


class Sized(Protocol):
    """Something whose memory is known."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes now."""


class HasMemory(Protocol):
    """A constraint that knows the memory of its own."""

    @property
    def memory(self) -> int:
        """Bytes that it takes now."""

    def to_table(self) -> Any:
        """Return it with its arrays."""


Value = TypeVar("Value", bound=Sized)


class Kept(Generic[Value]):
    """One value for each constraint that is alive.

    A value must not refer to its constraint, or neither would ever be freed. Two threads that miss the same value may
    both make it; later calls return the one that was stored last.
    """

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[Any, Value] = WeakKeyDictionary()
        _all.append(self)

    def get(self, constraint: object) -> Value | None:
        """Return the value of a constraint, None if there is none."""
        return self._values.get(constraint)

    def made(self, constraint: object, make: Callable[[], Value]) -> Value:
        """Return the value of a constraint, which `make` makes the first time."""
        found = self._values.get(constraint)
        if found is None:
            found = self._values[constraint] = make()
        return found

    def put(self, constraint: object, value: Value) -> None:
        """Keep a value in place of the one that a constraint has."""
        self._values[constraint] = value

    def drop(self, constraint: object) -> None:
        """Forget the value of a constraint, if there is one."""
        self._values.pop(constraint, None)


_all: list[Kept[Any]] = []


def memory_of(constraint: HasMemory) -> int:
    """Return the bytes that a constraint takes in this process now: its own, and those of all that is kept for it."""
    parts = [constraint, constraint.to_table()] if getattr(constraint, "is_complete", False) else [constraint]
    kept = [each.get(part) for each in _all for part in parts]
    return constraint.memory + sum(int(value.nbytes) for value in kept if value is not None)


def forget(constraint: object) -> None:
    """Drop all that is kept for a constraint, which has changed; whoever uses it keeps what they hold."""
    for each in _all:
        each.drop(constraint)
