"""The settings of XGrammar that hold for a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .exception import UsageError

VERSION = "maskwright 1"
"""Of what `serialize_json` writes."""
_MOST = 1_000_000
_depth = [10_000]


def get_serialization_version() -> str:
    """Return the version of what `serialize_json` writes, which XGrammar cannot read, nor this what XGrammar writes."""
    return VERSION


def get_max_recursion_depth() -> int:
    """Return what was set. Nothing is limited by it: no constraint makes maskwright run out of stack."""
    return _depth[0]


def set_max_recursion_depth(max_recursion_depth: int) -> None:
    """Keep a number. Raises UsageError for one that XGrammar would not take."""
    if not 0 < max_recursion_depth <= _MOST:
        raise UsageError(f"max_recursion_depth must be from 1 to {_MOST:,}, not {max_recursion_depth}")
    _depth[0] = max_recursion_depth


@contextmanager
def max_recursion_depth(temp_depth: int) -> Iterator[None]:
    """Keep a number for a while."""
    before = get_max_recursion_depth()
    set_max_recursion_depth(temp_depth)
    try:
        yield
    finally:
        set_max_recursion_depth(before)
