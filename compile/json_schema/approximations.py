"""Which keywords a caller lets go unenforced, and where one was, because no automaton can enforce it exactly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import AllowKeyword, ConstraintError, Remedy, SchemaError, Unenforced
from .source import KeywordPath, placed, pointer, shown

ALLOWED = frozenset({"uniqueItems", "format", "minProperties", "maxProperties"})
"""Keywords that a caller may accept as approximations: where they are not exact, they are not enforced then."""
ALL = "all"
"""What callers give to accept the approximation of each of these."""


def allowed_keywords(allow: object) -> tuple[str, ...]:
    """Return the keywords that a caller lets go unenforced, each once, ascending.

    allow: a list or another iterable of words of `ALLOWED`; or "all", for each of them.

    Raises ConstraintError, of the argument `allow`, for anything else.

    >>> allowed_keywords(["uniqueItems", "format"])
    ('format', 'uniqueItems')
    """
    if allow == ALL:
        return tuple(sorted(ALLOWED))
    expected = f'must be "all" or a list of {", ".join(sorted(ALLOWED))}'
    if isinstance(allow, str) or not isinstance(allow, Iterable):
        raise ConstraintError(f"{expected}, not {shown(allow)}", argument="allow")
    words: dict[str, None] = {}
    for word in allow:
        if not isinstance(word, str) or word not in ALLOWED:
            raise ConstraintError(f"{expected}: {shown(word)} is none of these", argument="allow")
        words[word] = None
    return tuple(sorted(words))


class Approximations:
    """One compilation: the keywords that may stay unenforced, and those that did. Equal only to itself.

    within: the beginning of each pointer, for a schema that stands inside something else.
    """

    def __init__(self, allowed: Iterable[str] = (), within: str = "") -> None:
        self.allowed = frozenset(allowed_keywords(allowed))
        self.within = within
        self._found: dict[Unenforced, None] = {}

    @property
    def found(self) -> tuple[Unenforced, ...]:
        """What is not enforced, in the order in which it was found."""
        return tuple(self._found)


@dataclass(frozen=True)
class KeywordPlace:
    """A keyword where it stands, in one compilation."""

    path: KeywordPath
    approximations: Approximations

    def approximate(self, why: str, approximation: str, *remedies: Remedy) -> None:
        """Note that the keyword is not enforced. Raises SchemaError unless that is allowed.

        why: no automaton can do it. approximation: what is accepted instead. remedies: what would enforce it.
        """
        keyword, where = self.path[1], pointer(self.path)
        if keyword not in self.approximations.allowed:
            raise SchemaError(
                f'"{keyword}" cannot be enforced exactly here: {why}', where, keyword,
                remedies=[*remedies, AllowKeyword(keyword, approximation)],
            )  # fmt: skip
        self.approximations._found[Unenforced(placed(self.approximations.within, where), keyword, approximation)] = None
