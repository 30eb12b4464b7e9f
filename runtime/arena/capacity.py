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

    The first group, to `pushes`, is shared by all tables; the defaults hold a thousand JSON schemas of everyday size.
    The second is the most that one state or one token of any table may have: gathers are as wide as these say.

    Args:
        states: Rows, and entries of tails.
        edges: Edges of rows.
        bases: Sets of tokens that rows share.
        base_targets: Where classes of tokens of bases lead.
        masks: Masks of bases, V bits each.
        lists: Lists of token classes, and as many of exits.
        classes: Entries of the lists of classes.
        exits: Entries of the lists of exits.
        sites: Return sites.
        site_entries: What symbols lead to at return sites.
        actions: Targets that push.
        pushes: What these push.
        row_width: Edges of a state.
        class_width: Entries of a class list.
        exit_width: Entries of an exit list.
        site_width: Entries of a return site.
        symbols: Symbols that fragments are left with.
        pops: Frames that one token leaves.
        depth: Frames that are open at once.
        ends: Ways to end that budgets tell apart.

    Raises:
        TypeError: A field is no integer.
        ValueError: A field is less than 1, or 2^30 or more.

    Examples:
        >>> Capacity(states=1 << 20).states
        1048576
    """

    states: int = 1 << 19
    edges: int = 3 << 21
    bases: int = 1 << 14
    base_targets: int = 1 << 18
    masks: int = 1024
    lists: int = 1 << 13
    classes: int = 3 << 20
    exits: int = 1 << 16
    sites: int = 1 << 16
    site_entries: int = 1 << 20
    actions: int = 1 << 17
    pushes: int = 1 << 18
    row_width: int = 2048
    class_width: int = 1 << 17
    exit_width: int = 512
    site_width: int = 512
    symbols: int = 1 << 13
    pops: int = 8
    depth: int = 64
    ends: int = 9

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
