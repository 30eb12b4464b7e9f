"""The machines that a lazy table reads until its arrays are worked out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

NO_BOUND = 2**30
"""From this number of tokens on it is not known how many an end is away."""


class LazyMachine(Protocol):
    """A machine that a matcher reads as it is, from state 0, and that makes its states on the way."""

    depth: int  # most open frames that are no leaves
    most_frames_required: int  # with so many frames left, nothing is refused for want of them
    strings: int  # the first state within a string

    @property
    def num_states(self) -> int:
        """States that have been written so far."""

    @property
    def nbytes(self) -> int:
        """Bytes of what has been written so far."""

    @property
    def left_out(self) -> int:
        """How often a way on was left out of masks, as the search for a text that completes it took long."""

    def is_leaf(self, site: int) -> bool:
        """Return whether a site is pushed for a fragment that makes no calls."""

    def accepts(self, node: int) -> bool:
        """Return whether a text may end in a state if nothing is open."""

    def alike(self, node: int) -> int:
        """Return the state that stands for all that allow the same as a state within a string, whatever the stack."""

    def mask(self, node: int, sites: bytes, frames: int) -> tuple[NDArray[np.uint32], int, bool | bytes]:
        """Return the tokens that a configuration allows, read-only, and on how many sites from the top they depend.

        sites: the open return sites, int32, the outermost first. frames: how many of them are no leaves where frames
        may run out, else -1. The third result is a note of the mask, by machines that are `NotesMasks`, or whether the
        mask is worth keeping as it is. The array is written anew once nothing holds it.
        """

    def advance(self, node: int, stack: Open, token: int, push: Callable[[Open, int], Open]) -> tuple[int, Open] | None:
        """Return the state and stack that a token leads to, None if it is not allowed."""

    def fits(self, node: int, stack: Stack) -> bool:
        """Return whether the frames left are enough to leave all that is open."""


class Frames(Protocol):
    """The open return sites of a text, as far as following a token needs them."""

    site: int  # on top, -1 where nothing is open
    below: Any  # the frames below it, None where nothing is open
    height: int
    packed: bytes | None  # all sites, int32, the outermost first, where they are known

    def top(self, most: int) -> bytes:
        """Return at most so many sites from the top, int32, the outermost first."""


class Stack(Frames, Protocol):
    """The open return sites of a text, as `runtime.host.stack_reader.Stack` keeps them."""

    frames: int  # sites that are no leaves
    far: list[int] | None  # distances by ends, once they are known

    def sites(self) -> bytes:
        """Return all sites, int32, the outermost first."""

    def as_array(self) -> NDArray[np.int32]:
        """Return the same as an array, read-only."""


Open = TypeVar("Open", bound=Frames)


@runtime_checkable
class NotesMasks(Protocol):
    """A lazy machine that can keep a mask as a short note: how it differs from another mask."""

    def restored(self, noted: bytes) -> NDArray[np.uint32]:
        """Return a mask again that was found before, read-only."""


@runtime_checkable
class BoundsEnds(Protocol):
    """A lazy machine that may know how many tokens an end is away at most.

    ends_alike: whether that is one number for all places that `LazyMachine.alike` takes for one.
    """

    ends_alike: bool

    @property
    def has_bounds(self) -> bool:
        """Whether it does."""

    def nearest(self, node: int, stack: Stack) -> int:
        """Return a number of tokens in which a text can end; `NO_BOUND` or more where that is not known."""

    def text_to_end(self, node: int, stack: Stack) -> list[int] | None:
        """Return tokens that end a text, as many as `nearest` says; None where the machine finds bounds alone."""

    def farthest(self, node: int, stack: Stack) -> int:
        """Return the most that `nearest` is behind a token that is allowed next, or more; -1 where none is.

        Frames must not be about to run out.
        """

    def within(self, node: int, stack: Stack, frames: int, room: int) -> NDArray[np.uint32]:
        """Return the mask of EOS, and of the tokens behind which `nearest` is below room, read-only.

        frames: as of `mask`.
        """
