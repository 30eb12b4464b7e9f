"""How a `Matcher` reads a constraint with several end tokens, whatever its kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .host_reader import HostReader, Place


class EndsReader(HostReader[Place]):
    """Reads a constraint through the reader for its one `eos`: other ends are taken as that, and masks copy its bit.

    Masks of places where nothing may end are those of the reader inside. Others are copies, made anew each time: the
    reader inside decides which masks to keep.
    """

    def __init__(self, inside: HostReader[Place], other_ends: tuple[int, ...]) -> None:
        assert inside.eos >= 0, "other ends are beside eos"
        self.inside = inside
        self.size, self.eos, self.words, self.most = inside.size, inside.eos, inside.words, inside.most
        self.composed, self.lock = inside.composed, inside.lock
        self.parts, self.nowhere, self.grows = inside.parts, inside.nowhere, inside.grows
        self.end_tokens = frozenset((inside.eos, *other_ends))
        self._word, self._bit = inside.eos >> 5, np.uint32(1 << (inside.eos & 31))
        self._added = np.zeros(self.words, np.uint32)
        for end in other_ends:
            self._added[end >> 5] |= np.uint32(1 << (end & 31))

    @property
    def nbytes(self) -> int:
        """Bytes of the masks made so far."""
        return self.inside.nbytes

    def _with_ends(self, mask: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return a mask that allows all ends if it allows `eos`, read-only."""
        if not mask[self._word] & self._bit:
            return mask
        both: NDArray[np.uint32] = mask | self._added
        both.flags.writeable = False
        return both

    def start(self) -> Place:
        """Return the place of a sequence with nothing written yet."""
        return self.inside.start()

    def budgets(self, constraint: Any) -> None:
        """Take over the distances of the constraint."""
        self.inside.budgets(constraint)

    def distance(self, place: Place) -> int:
        """Return the tokens in which a sequence can be complete from a place."""
        return self.inside.distance(place)

    def farthest(self, place: Place) -> int:
        """Return the largest distance that a token leads to, or more."""
        return self.inside.farthest(place)

    def text_to_end(self, place: Place) -> list[int] | None:
        """Return tokens that end a sequence, without an end token; None where none are known."""
        return self.inside.text_to_end(place)

    def mask(self, place: Place) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only."""
        return self._with_ends(self.inside.mask(place))

    def made(self, place: Place, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only; room: how many tokens may still be written, ends aside."""
        return self._with_ends(self.inside.made(place, room))

    def allowed(self, place: Place) -> NDArray[Any]:
        """Return the tokens that a place where no sequence may end allows."""
        return self.inside.allowed(place)

    def step(self, place: Place, token: int) -> Place | None:
        """Return the place that a token leads to; `nowhere` if it is not allowed."""
        return self.inside.step(place, self.eos if token in self.end_tokens else token)

    def ends(self, place: Place) -> bool:
        """Return whether a sequence may end at a place."""
        return self.inside.ends(place)

    def configuration(self, place: Place) -> tuple[int, tuple[int, ...]]:
        """Return the state of a place and the sites on its stack, the outermost first."""
        return self.inside.configuration(place)

    def identity(self, place: Place) -> tuple[Any, ...]:
        """Return what tells a place from all others."""
        return self.inside.identity(place)
