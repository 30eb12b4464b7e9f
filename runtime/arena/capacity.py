"""How much an arena holds, and how much of it is taken."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class VocabularyLike(Protocol):
    """What an arena needs to know of the vocabulary that all its tables are for: a `Vocabulary` has it."""

    @property
    def size(self) -> int:
        """The number of tokens."""

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""

    @property
    def fingerprint(self) -> str:
        """The name of the vocabulary."""


@dataclass(frozen=True)
class Capacity:
    """How much an arena holds. What limits a device's memory: `Arena.nbytes` says what it comes to.

    The first group is shared by all tables; the defaults hold a thousand JSON schemas of everyday size. The second is
    the most that one state or one token of any table may have: gathers are as wide as these say.
    """

    states: int = 1 << 19
    edges: int = 3 << 21
    bases: int = 1 << 14
    base_targets: int = 1 << 18
    masks: int = 1024  # V bits each
    lists: int = 1 << 13  # of classes, and as many of exits
    classes: int = 3 << 20  # entries of the former
    exits: int = 1 << 16  # entries of the latter
    sites: int = 1 << 16
    site_entries: int = 1 << 20
    actions: int = 1 << 17
    pushes: int = 1 << 18
    row_width: int = 2048  # edges of a state
    class_width: int = 1 << 17  # entries of a class list
    exit_width: int = 512
    site_width: int = 512
    symbols: int = 1 << 13
    pops: int = 8  # frames that one token leaves
    depth: int = 64
    ends: int = 9  # ways to end that budgets tell apart

    def __post_init__(self) -> None:
        for limit in dataclasses.fields(self):
            value: Any = getattr(self, limit.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Capacity({limit.name}=...) must be an integer, not {type(value).__name__}")
            if not 1 <= value < 2**30:
                raise ValueError(f"Capacity({limit.name}={value}) must be from 1 to {2**30 - 1:,}")


class Stored(NamedTuple):
    """What an arena holds and has held."""

    tables: int
    held: int  # of these, such as somebody has a handle of
    evictions: int
    free: dict[str, int]  # of each shared capacity, how much is left
