"""How a `Matcher` reads a lazy table whose arrays have distinct items."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.limits import UNREACHABLE
from ...lazy.unique.memory import Memory
from ...lazy.unique.unique_items import UniqueItems
from .host_reader import HostReader, tokens_of
from .item_tokens import ItemTokens, TokenSet
from .lazy_reader import LazyReader
from .stack_reader import Stack
from .unique_ends import UniqueEnds
from .unique_walk import UniqueWalk

UniquePlace = tuple[int, Stack, Memory]


class UniqueReader(HostReader[UniquePlace]):
    """Reads a lazy table beside a memory of the items that were written.

    A mask is that of the machine, as long as no open item may equal an earlier one. Otherwise it lacks the tokens that
    `UniqueWalk` finds.
    """

    parts = 3
    grows = True

    def __init__(self, inside: LazyReader, unique: UniqueItems) -> None:
        super().__init__(inside.size, inside.eos if inside.eos >= 0 else None)
        self.inside = inside
        self.composed, self.lock = inside.composed, inside.lock
        self._tokens, self._start = unique.tokens, unique.start
        items = unique.of_vocabulary(ItemTokens)
        self.search = UniqueEnds(inside, items.byte_tokens)
        self._walk = UniqueWalk(self.search, items)

    @property
    def nbytes(self) -> int:
        """Bytes of the masks made so far."""
        return self.inside.nbytes

    def start(self) -> UniquePlace:
        """Return the place of a sequence with nothing written yet."""
        return (*self.inside.start(), self._start)

    def budgets(self, constraint: Any) -> None:
        """Raise AssertionError: only complete tables know distances."""
        raise AssertionError("only complete tables know distances")

    def distance(self, place: UniquePlace) -> int:
        """Return the tokens in which a sequence can be complete from a place; UNREACHABLE if not known."""
        return UNREACHABLE

    def farthest(self, place: UniquePlace) -> int:
        """Return the largest distance that a token leads to; UNREACHABLE if not known."""
        return UNREACHABLE

    def mask(self, place: UniquePlace) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only."""
        node, stack, memory = place
        inside = node, stack
        mask = self.inside.mask(inside)
        if memory.is_idle:
            return mask
        risky = self._walk.risky(inside, memory, mask)
        tried = risky.crossing
        barred: list[TokenSet] = []
        if memory.may_repeat:
            if risky.others is None:
                barred = self._walk.barred(inside, memory)
            else:
                tried = risky.others
        wrong = [token for token in tried if self.step(place, token) is None]
        if not barred and not wrong:
            return mask
        mask = mask.copy()
        for tokens in barred:
            tokens.take_out_of(mask)
        for token in wrong:
            mask[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
        mask.flags.writeable = False
        return mask

    def made(self, place: UniquePlace, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a place, read-only."""
        assert room is None, "there are no bounds"
        return self.mask(place)

    def allowed(self, place: UniquePlace) -> NDArray[Any]:
        """Return the tokens that a place where no sequence may end allows."""
        return tokens_of(self.mask(place))

    def step(self, place: UniquePlace, token: int) -> UniquePlace | None:
        """Return the place that a token leads to; None if it is not allowed."""
        node, stack, memory = place
        found = self.inside.step((node, stack), token)
        if found is None or token == self.eos:
            return None if found is None else (*found, memory)
        after = memory.read(self._tokens[token])
        if after is None or not self.search.can_end(found, after):
            return None
        return (*found, after)

    def ends(self, place: UniquePlace) -> bool:
        """Return whether a sequence may end at a place."""
        return self.inside.ends(place[:2])

    def configuration(self, place: UniquePlace) -> tuple[int, tuple[int, ...]]:
        """Return the state of a place and the sites on its stack, the outermost first."""
        return self.inside.configuration(place[:2])

    def identity(self, place: UniquePlace) -> tuple[Any, ...]:
        """Return what tells a place from all others: its memory too."""
        return (*self.configuration(place), place[2])
