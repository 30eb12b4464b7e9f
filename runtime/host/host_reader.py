"""`HostReader`: what a `Matcher` asks of a constraint, of whatever kind."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Place = TypeVar("Place")

ENTRY_BYTES = 100  # that a key and its place in a dictionary take
MASK_BYTES = 300  # that an array takes besides its words, where it is a view of another
_CACHE_BYTES = 32 << 20  # of composed masks kept for each constraint


def tokens_of(mask: NDArray[np.uint32]) -> NDArray[Any]:
    """Return the tokens whose bits are set, in order."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
    return np.flatnonzero(bits.view(np.bool_))  # an eighth of what it takes over numbers


class HostReader(ABC, Generic[Place]):
    """How matchers read one kind of constraint, and the masks that all matchers of one constraint share.

    A matcher stands at a *place*: a state of a table, a configuration of a nested one, an interval of a matrix. A
    reader holds the arrays of its constraint, never the constraint, whose lifetime it would prolong: see `Kept`.
    """

    nowhere: Place | None = None  # where a token leads that is not allowed
    parts = 0  # of a place that is a tuple
    grows = False  # whether states are numbered as sequences come to them, so that no table knows the numbers

    def __init__(self, vocab_size: int, eos: int | None) -> None:
        self.size, self.eos = vocab_size, -1 if eos is None else eos
        self.end_tokens = frozenset(() if eos is None else (eos,))
        self.words = -(-vocab_size // 32)
        self.composed: dict[Any, Any] = {}  # masks made so far
        self.lock = threading.Lock()
        self.most = max(16, _CACHE_BYTES // self.mask_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the masks made so far."""
        return self.mask_bytes * len(self.composed)

    @property
    def mask_bytes(self) -> int:
        """Bytes that one mask takes, with its entry among all."""
        return 4 * self.words + MASK_BYTES + ENTRY_BYTES

    @abstractmethod
    def start(self) -> Place:
        """Return the place of a sequence with nothing written yet."""

    @abstractmethod
    def budgets(self, constraint: Any) -> None:
        """Take over the distances of the constraint, before any place is made that needs them."""

    @abstractmethod
    def distance(self, place: Place) -> int:
        """Return the tokens in which a sequence can be complete from a place."""

    @abstractmethod
    def farthest(self, place: Place) -> int:
        """Return the largest distance that a token leads to, or more."""

    def text_to_end(self, place: Place) -> list[int] | None:
        """Return tokens that end a sequence, as many as `distance` says; None where none are known."""
        return None

    def mask(self, place: Place) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only and kept for the next time."""
        found: NDArray[np.uint32] | None = self.composed.get(place)
        if found is None:
            found = self.made(place)
            with self.lock:  # matchers of several threads may be making room at once
                for key in self.oldest():
                    del self.composed[key]
                self.composed[place] = found
        return found

    def oldest(self) -> list[Any]:
        """Return the keys that `composed` must drop to take one more, and some besides; [] where there is room.

        A dictionary passes over all entries deleted at its front to find the next key: to drop one at a time took as
        long as to make masks.
        """
        over = len(self.composed) + 1 - self.most
        return list(islice(self.composed, over + self.most // 16)) if over > 0 else []

    @abstractmethod
    def made(self, place: Place, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only; room: how many tokens may still be written, EOS aside."""

    @abstractmethod
    def allowed(self, place: Place) -> NDArray[Any]:
        """Return the tokens that a place where no sequence may end allows."""

    @abstractmethod
    def step(self, place: Place, token: int) -> Place | None:
        """Return the place that a token leads to; `nowhere` if it is not allowed."""

    @abstractmethod
    def ends(self, place: Place) -> bool:
        """Return whether a sequence may end at a place."""

    @abstractmethod
    def configuration(self, place: Place) -> tuple[int, tuple[int, ...]]:
        """Return the state of a place and the sites on its stack, the outermost first."""

    def identity(self, place: Place) -> tuple[Any, ...]:
        """Return what tells a place from all others of the constraint."""
        return self.configuration(place)
