"""How a `Matcher` reads what has a stack: stacks that sequences share, and masks that depend on part of a stack."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .host_reader import ENTRY_BYTES, MASK_BYTES, HostReader, tokens_of

_NOTED_BYTES = 40  # that bytes take besides their own number
MOST_STACKS = 2048  # of one constraint, that are kept for sequences to come
DEEPER = np.empty(0, np.uint32)  # in place of a mask that depends on the next site as well


class Leaves(Protocol):
    """Which return sites are pushed for fragments that make no calls."""

    def __getitem__(self, site: int, /) -> bool: ...


@dataclass
class Limits:
    """How many frames stacks may have, and what is known of return sites."""

    states: int
    depth: int  # open frames that are no leaves
    slots: int  # open frames
    most_frames_required: int  # with so many frames left nothing is refused for want of them
    most_pushes: int  # frames that a token opens
    is_leaf: Leaves
    site_distance: Sequence[int] = ()  # by return site, once there are budgets, if fragments have one end


class Stack:
    """The open frames of a sequence: a return site on top of another stack, one object for each stack above a root."""

    __slots__ = ("above", "below", "distance", "far", "frames", "height", "packed", "site", "variant")

    def __init__(self, limits: Limits, site: int, below: Stack | None) -> None:
        self.site, self.below = site, below
        self.above: dict[int, Stack] = {}  # the stacks that pushes onto this one have made
        self.packed: bytes | None = None  # its sites, int32, the outermost first, after `sites` was called
        self.far: list[int] | None = None  # its distances by ends, after `nearest` needed them
        if below is None:
            self.height = self.frames = self.distance = 0
            self.packed = b""
        else:
            self.height = below.height + 1
            self.frames = below.frames + (not limits.is_leaf[site])
            self.distance = below.distance + limits.site_distance[site] if limits.site_distance else 0
        full = (
            self.frames + limits.most_frames_required > limits.depth or self.height + limits.most_pushes > limits.slots
        )
        # 0, or with little room left a number that tells apart what fits: masks then depend on it
        self.variant = (1 + self.frames * (limits.slots + 1) + self.height) * limits.states if full else 0

    def sites(self) -> bytes:
        """Return the sites, int32, the outermost first."""
        packed = self.packed
        if packed is None:
            packed = self.packed = self.top(self.height)
        return packed

    def as_array(self) -> NDArray[np.int32]:
        """Return the sites as an array, read-only."""
        return np.frombuffer(self.sites(), np.int32)

    def top(self, most: int) -> bytes:
        """Return at most so many sites from the top, the outermost first: all of all stacks are too many to keep."""
        above: list[int] = []
        at: Stack = self
        while len(above) < most and at.packed is None:
            above.append(at.site)
            assert at.below is not None, "all is known of an empty stack"
            at = at.below
        known = at.packed[-4 * (most - len(above)) :] if at.packed is not None and len(above) < most else b""
        return known + array("i", reversed(above)).tobytes()

    def __reduce__(self) -> Any:
        raise TypeError("a stack belongs to its matcher")


Configuration = tuple[int, Stack]


def _below(key: int, site: int) -> int:
    """Return the key of what depends on one more site: keys without any are below 0.

    A number, as the garbage collector counts tuples. Its digits of 32 bits are sites, the last ones first and none of
    them 0, then a 0, then the key without sites: no two are the same.
    """
    return (key << 32 if key > 0 else -key << 64) | site + 1


def _whole(mask: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return a copy of a mask that is read-only, before anybody else has it."""
    kept = mask.copy()
    kept.flags.writeable = False
    return kept


class StackReader(HostReader[Configuration]):
    """Reads a constraint with calls: a place is a state and a stack.

    A mask that matchers come back to often is kept, by the state and as many sites, from the top down, as it
    depends on. Until then the number of visits is kept in its place.
    """

    parts = 2
    often = 6  # visits from which on the mask of a configuration is kept
    strings = 1 << 62  # the first state that may allow the same as another, by its number
    restored: Callable[[bytes], NDArray[np.uint32]] | None = None  # writes a mask from a note of it; see `NotesMasks`

    def __init__(self, vocab_size: int, eos: int | None, limits: Limits) -> None:
        super().__init__(vocab_size, eos)
        self.limits = limits
        self.stacks = 0  # above the root, about
        self._root: Stack | None = None  # which sequences share, so that one finds the stacks that another has made

    @property
    def nbytes(self) -> int:
        """Bytes of the masks made so far, and of the notes of others."""
        kept = list(self.composed.values())
        whole = sum(one is not DEEPER and one.__class__ is np.ndarray for one in kept)
        noted = sum(len(one) + _NOTED_BYTES for one in kept if one.__class__ is bytes)
        return (4 * self.words + MASK_BYTES) * whole + noted + ENTRY_BYTES * len(kept)

    def start(self) -> Configuration:
        """Return the place of a sequence with nothing written yet."""
        with self.lock:
            if self._root is None or self.stacks > MOST_STACKS:
                self._root, self.stacks = Stack(self.limits, -1, None), 0
            return 0, self._root

    def mask(self, place: Configuration) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only, and kept by all that it depends on for the next time."""
        node, stack = place
        if node >= self.strings:
            node = self.alike(node)
        key = ~(node + stack.variant)
        keyed = self.composed
        found: Any = keyed.get(key)
        at: Stack | None = stack
        while found is DEEPER:
            assert at is not None, "the mask of an empty stack depends on nothing else"
            key = _below(key, at.site)
            at = at.below
            found = keyed.get(key)
        shape = found.__class__
        mask: NDArray[np.uint32]
        if shape is bytes:
            assert self.restored is not None, "only a machine that can read notes makes some"
            mask = self.restored(found)
            return mask
        if shape is np.ndarray:
            mask = found
            return mask
        visits = 1 if found is None else found + 1
        known: Any
        shown, looked, known = self.write(node, stack)
        if known is True or (known is False and visits >= self.often):
            known = _whole(shown)
        elif known is False:
            if visits > 1:
                keyed[key] = visits
                return shown
            known = visits
        if looked or len(keyed) >= self.most:
            self.keep(~(node + stack.variant), stack, looked, known)
        else:
            keyed[~(node + stack.variant)] = known
        return shown

    def alike(self, node: int) -> int:
        """Return the state that stands for all that allow the same, whatever the stack."""
        return node

    @abstractmethod
    def write(self, node: int, stack: Stack) -> tuple[NDArray[np.uint32], int, bool | bytes]:
        """Return the mask of a place, how many sites it depends on, and a note of it or whether it was much work."""

    def keep(self, key: int, stack: Stack, looked: int, known: object) -> None:
        """Keep a mask, what is noted of it or its visits by as many sites as it depends on; the bottom is one."""
        with self.lock:  # matchers of several threads may be making room at once
            composed = self.composed
            for old in self.oldest():
                composed.pop(old, None)
            at: Stack | None = stack
            for _ in range(looked):
                assert at is not None, "there is nothing below the bottom of a stack"
                composed[key] = DEEPER
                key = _below(key, at.site)
                at = at.below
            composed[key] = known

    def pushed(self, stack: Stack, site: int) -> Stack:
        """Return a stack with one more site on it."""
        found = stack.above.get(site)
        if found is None:
            found = stack.above.setdefault(
                site, Stack(self.limits, site, stack)
            )  # another thread may have been quicker
            self.stacks += 1
        return found

    def allowed(self, place: Configuration) -> NDArray[Any]:
        """Return the tokens that a place where no sequence may end allows."""
        return tokens_of(self.mask(place))

    def configuration(self, place: Configuration) -> tuple[int, tuple[int, ...]]:
        """Return the state of a place and the sites on its stack, the outermost first."""
        return place[0], tuple(place[1].as_array().tolist())
