"""Objects that later layers work out of a vocabulary, which the vocabulary owns."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

T = TypeVar("T")


class Derived:
    """One object of each class that a later layer keeps with a vocabulary, for as long as the vocabulary lives.

    A layer below knows no classes of layers above, so it holds them by their class. Threads may share one.

    >>> class Counts(dict): ...
    >>> derived = Derived()
    >>> derived.of(Counts)["a"] = 1
    >>> derived.of(Counts)
    {'a': 1}
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[type[Any], Any] = {}

    def of(self, kind: type[T]) -> T:
        """Return the object of a class, made by calling the class without arguments when first asked for."""
        with self._lock:
            found = self._objects.get(kind)
            if found is None:
                found = self._objects[kind] = kind()
        assert isinstance(found, kind), "kind() is a kind"
        return found
