"""`UniqueItems`: that items and keys are distinct, which a matcher sees to beside the states of a lazy table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ...vocabulary.vocabulary import Vocabulary
from .memory import Memory

T = TypeVar("T")


class _Parts(dict[Any, Any]):
    """What readers keep with a vocabulary, by class."""


class UniqueItems:
    """Which arrays of a lazy table have distinct items, and which objects distinct keys.

    start: the memory before a text. vocabulary: that of the table. keywords: those that are enforced so.
    """

    def __init__(self, start: Memory, vocabulary: Vocabulary, keywords: frozenset[str]) -> None:
        self.start = start
        self.keywords = keywords
        self.tokens = vocabulary.tokens
        self._vocabulary = vocabulary

    def of_vocabulary(self, make: Callable[[Vocabulary], T]) -> T:
        """Return what a function makes of the vocabulary, made once for all tables of it."""
        kept = self._vocabulary.derived.of(_Parts)
        found = kept.get(make)
        if found is None:
            found = kept.setdefault(make, make(self._vocabulary))
        return found  # type: ignore[no-any-return]

    def accepts(self, tokens: Iterable[int]) -> bool:
        """Return whether a text that the machine accepts has distinct items and keys; end tokens have no bytes."""
        return self.start.read(b"".join([self.tokens[token] for token in tokens])) is not None
