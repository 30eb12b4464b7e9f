"""How many bytes an end is away from where a text stands, and at most from where its next token leads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...automata.content_bytes import NO_WAY, bytes_of
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import KEYS, STRINGS, TEXTS
from ...automata.word_tries import USE_SITE
from ..protocol import Stack
from .shortest_ends import FRAME, AnchorOf, LibraryEnds, SearchError, ShortestEnds

_MOST_TOKENS = 8192  # that are followed one by one
_MOST_SEARCHED = 10_000  # states that one question looks at, which takes some tenths of a second

_TOO_FAR = (SearchError, RecursionError)  # the latter where parts are nested deeper than Python's stack

Far = list[int]
"""The bytes to the end of the text once what lies on top has ended: by `label + 1`, first for the text's own end."""
_AT_BOTTOM: Far = [0]
_Next = tuple[int, int, tuple[int, ...]]
"""Where a token leads: the state, how many open sites it pops, and those that it pushes."""


class LibraryBounds(Protocol):
    """What bounds need to know of a library."""

    @property
    def ends(self) -> LibraryEnds:
        """How few bytes it takes to end its fragments."""

    @property
    def quoted(self) -> NDArray[np.uint32]:
        """The tokens that have a quote, without which no string ends, as a mask."""


class EndRule(NamedTuple):
    """Where bounds come from: the library, and what gives `AnchorOf`, once a budget needs it."""

    library: LibraryBounds
    anchor_of: Callable[[], AnchorOf]


class EndBounds:
    """Bounds for a budget of tokens, of a machine that is read as it is.

    Every byte must be a token: then a text of n bytes can be written in n tokens. quoted: see `LibraryBounds`. follow:
    returns where a token leads, from a state, the token, and the open sites, int32, as bytes.
    """

    def __init__(
        self, machine: PushdownMachine, shortest: ShortestEnds, quoted: NDArray[np.uint32],
        follow: Callable[[int, int, bytes], _Next],
    ) -> None:  # fmt: skip
        self._machine, self._shortest, self._quoted, self._follow = machine, shortest, quoted, follow
        self._next: dict[tuple[int, int], list[_Next]] = {}  # by state and the site on top

    def nearest(self, node: int, stack: Stack) -> int:
        """Return in how many bytes a text can end; `NO_WAY` or more where that is not known."""
        self._shortest.left = _MOST_SEARCHED
        try:
            return self._nearest(node, self._far(stack))
        except _TOO_FAR:
            return NO_WAY

    def farthest(self, node: int, stack: Stack, mask: NDArray[np.uint32]) -> int:
        """Return the most that `nearest` is behind one of the tokens of a mask, those allowed next, or more.

        -1 where none is, `NO_WAY` or more where that is not known. An end token must not be among them.
        """
        self._shortest.left = _MOST_SEARCHED
        try:
            return self._farthest(node, stack, mask)
        except _TOO_FAR:
            return NO_WAY

    def _farthest(self, node: int, stack: Stack, mask: NDArray[np.uint32]) -> int:
        most = self._within(node, self._far(stack))
        places = self._next.get((node, stack.site))
        if places is None:
            places = self._followed(node, stack, mask & self._quoted if most >= 0 else mask)
            if places is None:
                return NO_WAY
            if all(popped < 2 for _, popped, _ in places):  # whatever lies further below
                self._next[node, stack.site] = places
        for place in places:
            most = max(most, self._nearest_behind(stack, place))
        return most

    def within(self, node: int, stack: Stack, mask: NDArray[np.uint32], room: int) -> NDArray[np.uint32]:
        """Return the tokens of a mask behind which `nearest` is below room."""
        sites: bytes = stack.sites()
        known: dict[_Next, bool] = {}
        found = np.zeros_like(mask)
        for token in _tokens_of(mask):
            place = self._follow(node, token, sites)
            near = known.get(place)
            if near is None:
                self._shortest.left = _MOST_SEARCHED
                try:
                    near = self._nearest_behind(stack, place) < room
                except _TOO_FAR:
                    near = False
                known[place] = near
            if near:
                found[token >> 5] |= np.uint32(1 << (token & 31))
        return found

    def _nearest_behind(self, stack: Stack, place: _Next) -> int:
        """Return `nearest` behind a token."""
        state, popped, pushed = place
        for _ in range(popped):
            stack = stack.below
        far = self._far(stack)
        for site in pushed:
            far = self._behind(site, far)
        return self._nearest(state, far)

    def _followed(self, node: int, stack: Stack, mask: NDArray[np.uint32]) -> list[_Next] | None:
        """Return where tokens lead, each place once; None if they are too many to follow."""
        tokens = _tokens_of(mask)
        if len(tokens) > _MOST_TOKENS:
            return None
        sites: bytes = stack.sites()
        return list({self._follow(node, token, sites) for token in tokens})

    def _nearest(self, state: int, far: Far) -> int:
        """Return the least bytes from a state, over the ways in which its fragment may end."""
        least = NO_WAY
        for label, cost in self._shortest.ends(state).items():
            if label + 1 < len(far):
                least = min(least, cost % FRAME + far[label + 1])
        return least

    def _behind(self, site: int, below: Far) -> Far:
        """Return the same for a stack with one more site on it."""
        return [NO_WAY, *(self._nearest(to, below) if to >= 0 else NO_WAY for to in self._shortest.leads(site))]

    def _far(self, stack: Stack) -> Far:
        waiting = []
        while stack.far is None and stack.below is not None:
            waiting.append(stack)
            stack = stack.below
        far: Far = _AT_BOTTOM if stack.far is None else stack.far
        for above in reversed(waiting):
            far = above.far = self._behind(above.site, far)
        return far

    def _within(self, node: int, far: Far) -> int:
        """Return the most bytes to an end from within the string that a state belongs to, -1 if it belongs to none."""
        shortest, other = self._shortest, far[1] if len(far) > 1 else NO_WAY
        if node in shortest.library.within_strings:
            return shortest.library.longest_string + other
        if node < KEYS:
            return -1
        if node >= TEXTS:
            content, found = shortest.content_of(node)
            sizes = bytes_of(found, content.most >= 0)
            labels = min(sizes.shape[1], len(far) - 1)
            if not labels:
                return NO_WAY
            least = (sizes[:, :labels] + np.array(far[1 : 1 + labels], np.int64)).min(axis=1)
            if content.needed.size:
                least = least[content.needed >= 0]
            return int(least.max()) + 1 + shortest.library.longest_string
        if node >= STRINGS:
            strings = self._machine.strings
            _, low, _ = strings[bisect_right(strings, node, key=lambda string: string[0]) - 1]
            return low + shortest.library.longest_string + other
        uses = self._machine.uses
        use = uses[bisect_right(uses, node, key=lambda use: use[0]) - 1]
        return shortest.library.longest_string + other if use[USE_SITE] < 0 else -1


def _tokens_of(mask: NDArray[np.uint32]) -> list[int]:
    """Return the tokens of a mask, most of whose words are 0."""
    words = np.flatnonzero(mask)
    at, bit = np.nonzero(mask[words, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1))
    found: list[int] = (32 * words[at] + bit).tolist()
    return found
