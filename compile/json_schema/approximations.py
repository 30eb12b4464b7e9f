"""Which keywords a caller lets go unenforced, and where one was, because no automaton can enforce it exactly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import AllowKeyword, SchemaError, Unenforced
from .source import KeywordPath, placed, pointer

ALLOWED = frozenset({"uniqueItems", "format", "minProperties", "maxProperties"})
"""Keywords that a caller may accept as approximations: where they are not exact, they are not enforced then."""
ALL = "all"
"""What callers give to accept the approximation of each of these."""


class Approximations:
    """One compilation: the keywords that may stay unenforced, and those that did. Equal only to itself.

    within: the beginning of each pointer, for a schema that stands inside something else.
    """

    def __init__(self, allowed: Iterable[str] = (), within: str = "") -> None:
        self.allowed = frozenset(allowed)
        self.within = within
        self._found: dict[Unenforced, None] = {}
        unknown = sorted(self.allowed - ALLOWED)
        if unknown:
            raise ValueError(f"allow={unknown!r}: what can be accepted by name is {', '.join(sorted(ALLOWED))}")

    @property
    def found(self) -> tuple[Unenforced, ...]:
        """What is not enforced, in the order in which it was found."""
        return tuple(self._found)


@dataclass(frozen=True)
class KeywordPlace:
    """A keyword where it stands, in one compilation."""

    path: KeywordPath
    approximations: Approximations

    def approximate(self, why: str, approximation: str) -> None:
        """Note that the keyword is not enforced. Raises SchemaError unless that is allowed.

        why: no automaton can do it. approximation: what is accepted instead.
        """
        keyword, where = self.path[1], pointer(self.path)
        if keyword not in self.approximations.allowed:
            raise SchemaError(
                f'"{keyword}" cannot be enforced exactly here: {why}', where, keyword,
                remedies=[AllowKeyword(keyword, approximation)],
            )  # fmt: skip
        self.approximations._found[Unenforced(placed(self.approximations.within, where), keyword, approximation)] = None
