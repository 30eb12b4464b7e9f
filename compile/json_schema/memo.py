"""Results kept for the next schema that asks for the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

_MOST = 1024  # results in each memo
_LARGEST = 1 << 20  # bytes of one
_MISSING: Any = object()


def remembered(memo: dict[Any, T], key: Hashable, make: Callable[[], T]) -> T:
    """Return the result for a key, or make it now. The memo forgets the oldest of many, and keeps no large ones."""
    found: T = memo.get(key, _MISSING)
    if found is _MISSING:
        found = make()
        # a result is an automaton, has one as its content, or is a tuple that begins with one
        automaton: object = (
            found[0] if isinstance(found, tuple) and type(found) is tuple else getattr(found, "content", found)
        )
        if getattr(automaton, "nbytes", 0) <= _LARGEST:
            if len(memo) >= _MOST:
                memo.pop(next(iter(memo)), None)
            memo[key] = found
    return found
