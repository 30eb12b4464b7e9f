"""How a `Matcher` reads a lazy table that is not complete."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...kernels.limits import UNREACHABLE
from ...lazy.protocol import NO_BOUND, BoundsEnds, LazyMachine, NotesMasks
from .stack_reader import Configuration, Limits, Stack, StackReader

AFTER_EOS = 2**31 - 1  # no state of a machine has this number
_MOST_BOUNDS = 4096  # of places, that are kept


class LazyReader(StackReader):
    """Reads a lazy table that is not complete: states are those of its machine, which grows meanwhile.

    To find a mask costs more here than to compose one. It is kept as a note where the machine makes one, from which it
    is written again in about a microsecond. Otherwise it is kept in full on the second visit: most are visited once,
    and 16 KB of new memory take about as long as finding a mask. The reader holds the machine, not the table.

    Distances are bounds here, of machines that have them: `Matcher` completes the table where they say too little.
    """

    often = 2
    grows = True

    def __init__(self, vocab_size: int, eos: int | None, machine: LazyMachine) -> None:
        depth = machine.depth
        super().__init__(
            vocab_size,
            eos,
            Limits(AFTER_EOS + 1, depth, depth, machine.most_frames_required, 0, _GrowingLeaves(machine)),
        )
        self.machine, self.strings = machine, machine.strings
        self.bounds = machine if isinstance(machine, BoundsEnds) and machine.has_bounds else None
        self._farthest: dict[Configuration, int] = {}
        self.restored = machine.restored if isinstance(machine, NotesMasks) else None

    def budgets(self, constraint: object) -> None:
        """Raise AssertionError: only complete tables know distances."""
        raise AssertionError("only complete tables know distances")

    def distance(self, place: Configuration) -> int:
        """Return a number of tokens in which a sequence can be complete from a place, UNREACHABLE if none is known."""
        node, stack = place
        if node == AFTER_EOS:
            return 0
        if self.bounds is None:
            return UNREACHABLE
        nearest = self.bounds.nearest(node, stack)
        return UNREACHABLE if nearest >= NO_BOUND else nearest

    def farthest(self, place: Configuration) -> int:
        """Return the largest distance that a token leads to, or more; UNREACHABLE if none is known."""
        node, stack = place
        if self.bounds is None or stack.variant:
            return UNREACHABLE
        if node == AFTER_EOS:
            return 0
        if node >= self.strings and self.bounds.ends_alike:
            node = self.alike(node)
        found = self._farthest.get((node, stack))
        if found is None:
            found = self.bounds.farthest(node, stack)
            if len(self._farthest) >= _MOST_BOUNDS:
                self._farthest.clear()
            self._farthest[node, stack] = found
        return min(found, UNREACHABLE)

    def text_to_end(self, place: Configuration) -> list[int] | None:
        """Return tokens that end a sequence, as many as `distance` says; None where the machine knows none."""
        node, stack = place
        return None if node == AFTER_EOS or self.bounds is None else self.bounds.text_to_end(node, stack)

    def alike(self, node: int) -> int:
        """Return the state that stands for all of a string that allow the same."""
        return node if node == AFTER_EOS else self.machine.alike(node)

    def write(self, node: int, stack: Stack) -> tuple[NDArray[np.uint32], int, bool | bytes]:
        """Return the mask of a place, how many sites it depends on, and a note of it or whether to keep it."""
        if node == AFTER_EOS:
            mask = np.zeros(self.words, np.uint32)
            mask[self.eos >> 5] = 1 << (self.eos & 31)
            mask.flags.writeable = False
            return mask, 0, False
        sites = stack.packed
        if sites is None:
            sites = stack.sites()
        return self.machine.mask(node, sites, stack.frames if stack.variant else -1)

    def made(self, place: Configuration, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only; room: how many tokens may still be written, EOS aside, by bounds."""
        node, stack = place
        if room is None or node == AFTER_EOS:
            return self.mask(place)
        assert self.bounds is not None, "without bounds a budget has a whole table"
        return self.bounds.within(node, stack, stack.frames if stack.variant else -1, room)

    def step(self, place: Configuration, token: int) -> Configuration | None:
        """Return the place that a token leads to; None if it is not allowed."""
        node, stack = place
        if node == AFTER_EOS:
            return place if token == self.eos else None
        if token == self.eos:
            return (AFTER_EOS, stack) if self.ends(place) else None
        found: Configuration | None = self.machine.advance(node, stack, token, self.pushed)
        if found is None or (found[1].variant and not self.machine.fits(*found)):
            return None
        return found

    def ends(self, place: Configuration) -> bool:
        """Return whether a sequence may end at a place."""
        node, stack = place
        return node == AFTER_EOS or (stack.below is None and self.machine.accepts(node))


class _GrowingLeaves:
    """Which sites are leaves, of a machine that grows."""

    def __init__(self, machine: LazyMachine) -> None:
        self.machine = machine

    def __getitem__(self, site: int) -> bool:
        return self.machine.is_leaf(site)
