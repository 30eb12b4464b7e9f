"""How many bytes an end is away from where a text stands, and at most from where its next token leads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...automata.content_bytes import NO_WAY, bytes_of
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import DEAD, KEEP, KEYS, RETURN, STRINGS, TEXTS
from ...automata.word_tries import USE_SITE
from ..protocol import Stack
from .shortest_ends import FRAME, AnchorOf, LibraryEnds, SearchError, ShortestEnds

_MOST_TOKENS = 8192  # that are followed one by one
_FEW_TOKENS = 64  # that are followed so where the others could be followed together
_MOST_STATES = 64  # from which it is kept where all tokens lead
_DIES, _LEAVES = -1, -2  # in place of the state that a token leads to within rows
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

    Every byte must be a token: then a text of n bytes can be written in n tokens. quoted: see `LibraryBounds`. texts:
    the bytes of all tokens, and where each token's begin. follow: returns where a token leads, from a state, the token,
    and the open sites, int32, as bytes.
    """

    def __init__(
        self, machine: PushdownMachine, shortest: ShortestEnds, quoted: NDArray[np.uint32],
        texts: tuple[NDArray[np.uint8], NDArray[np.int64]], follow: Callable[[int, int, bytes], _Next],
    ) -> None:  # fmt: skip
        self._machine, self._shortest, self._quoted, self._follow = machine, shortest, quoted, follow
        self._bytes, self._start = texts
        self._lead: dict[int, NDArray[np.int32]] = {}  # by state, where each token leads
        self._leaving: dict[int, NDArray[np.int64]] = {}  # by state of a closed DFA, the tokens that leave it
        self._having: dict[int, NDArray[np.int64]] = {}  # by byte, the tokens that have it
        self._sizes: dict[int, NDArray[np.int64]] = {}  # by first state of a closed DFA: `_sizes_of`
        self._next: dict[tuple[int, int], list[_Next]] = {}  # by state and the site on top

    def nearest(self, node: int, stack: Stack) -> int:
        """Return in how many bytes a text can end; `NO_WAY` or more where that is not known."""
        self._shortest.left = _MOST_SEARCHED
        try:
            return self._nearest(node, self._far(stack))
        except _TOO_FAR:
            return NO_WAY

    def farthest(self, node: int, stack: Stack, mask: Callable[[], NDArray[np.uint32]]) -> int:
        """Return the most that `nearest` is behind one of the tokens of a mask, those allowed next, or more.

        -1 where none is, `NO_WAY` or more where that is not known. mask: makes it, without tokens that end a text.
        """
        self._shortest.left = _MOST_SEARCHED
        try:
            return self._farthest(node, stack, mask)
        except _TOO_FAR:
            return NO_WAY

    def _farthest(self, node: int, stack: Stack, mask: Callable[[], NDArray[np.uint32]]) -> int:
        closed = self._closed(node)
        most = self._within(node, self._far(stack)) if closed is None else self._inside(closed, self._far(stack))
        places = self._next.get((node, stack.site))
        if places is None:
            if closed is not None:
                tokens = self._leave(node, closed[2])
            else:
                tokens = _tokens_of(mask() & self._quoted if most >= 0 else mask())
            places = self._followed(node, stack, tokens)
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

        def is_near(place: _Next) -> bool:
            near = known.get(place)
            if near is None:
                self._shortest.left = _MOST_SEARCHED
                try:
                    near = self._nearest_behind(stack, place) < room
                except _TOO_FAR:
                    near = False
                known[place] = near
            return near

        tokens = _tokens_of(mask)
        found: list[int] = []
        if node < KEYS and tokens.size > _FEW_TOKENS:
            ends = self._leads(node)[tokens]
            states = [state for state in np.unique(ends[ends >= 0]).tolist() if is_near((state, 0, ()))]
            found, tokens = tokens[np.isin(ends, states)].tolist(), tokens[ends == _LEAVES]
        found += [token for token in tokens.tolist() if is_near(self._follow(node, token, sites))]
        return _mask_of(found, mask)

    def _nearest_behind(self, stack: Stack, place: _Next) -> int:
        """Return `nearest` behind a token."""
        state, popped, pushed = place
        for _ in range(popped):
            stack = stack.below
        far = self._far(stack)
        for site in pushed:
            far = self._behind(site, far)
        return self._nearest(state, far)

    def _followed(self, node: int, stack: Stack, tokens: NDArray[np.int64]) -> list[_Next] | None:
        """Return where tokens lead that are read, each place once; None if they are too many to follow."""
        found = set[_Next]()
        if node < KEYS and tokens.size > _MOST_TOKENS:
            ends = self._leads(node)[tokens]
            found = {(state, 0, ()) for state in np.unique(ends[ends >= 0]).tolist()}
            tokens = tokens[ends == _LEAVES]
        if node < KEYS and tokens.size > _FEW_TOKENS:
            leads = [] if stack.below is None else self._shortest.leads(stack.site)
            ends, popped = self._followed_in_rows(node, tokens, leads)
            both = np.unique(2 * ends[ends >= 0].astype(np.int64) + popped[ends >= 0])
            found |= {(end >> 1, end & 1, ()) for end in both.tolist()}
            tokens = tokens[ends == _LEAVES]
        if tokens.size > _MOST_TOKENS:
            return None
        sites: bytes = stack.sites()
        found |= {self._follow(node, token, sites) for token in tokens.tolist()}
        return [place for place in found if place[0] >= 0]

    def _leads(self, node: int) -> NDArray[np.int32]:
        """Return where each token leads from a state, (V,): see `_followed_in_rows`."""
        found = self._lead.get(node)
        if found is None:
            if len(self._lead) >= _MOST_STATES:
                self._lead.clear()
            found = self._lead[node] = self._followed_in_rows(node, np.arange(self._start.size - 1))[0]
        return found

    def _followed_in_rows(
        self, node: int, tokens: NDArray[np.int64], leads: Sequence[int] = ()
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the state that each token leads to from one, and whether it pops a site: all at once, byte by byte.

        leads: where the site on top leads by label; () if none is to be popped. The state is `_DIES` for a token that
        is not read, and `_LEAVES` where it opens a fragment, pops more, or comes to a state without a row.
        """
        rows = self._machine.arrays()[0]
        behind = np.array([*(state if state >= 0 else _LEAVES for state in leads), _LEAVES], np.int32)
        start, length = self._start[tokens], self._start[tokens + 1] - self._start[tokens]
        found, popped = np.where(length > 0, np.int32(node), np.int32(_DIES)), np.zeros(tokens.size, np.bool_)
        live, k = np.flatnonzero(length > 0), 0
        while live.size:
            codes = rows[found[live], self._bytes[start[live] + k]]
            to = np.where(codes > 0, codes, np.where(codes == DEAD, _DIES, _LEAVES))
            ends = (codes <= RETURN) & (codes > KEEP) & ~popped[live]
            if ends.any():
                to[ends] = behind[np.minimum(RETURN - codes[ends], behind.size - 1)]
                popped[live[ends]] = True
            k += 1
            on = length[live] > k
            to[on & (to >= KEYS)] = _LEAVES
            found[live] = to
            live = live[on & (to >= 0)]
        return found, popped

    # ---------------------------------------------------------------------------------------------- closed DFAs

    def _closed(self, node: int) -> tuple[int, int, int] | None:
        """Return the closed DFA that a state belongs to: see `PushdownMachine.closed`."""
        closed = self._machine.closed
        at = bisect_right(closed, node, key=lambda each: each[0]) - 1
        return closed[at] if at >= 0 and node < closed[at][1] else None

    def _inside(self, closed: tuple[int, int, int], far: Far) -> int:
        """Return the most bytes to an end from within a closed DFA."""
        first, stop, _ = closed
        sizes = self._sizes.get(first)
        if sizes is None:
            ends = [self._shortest.ends(state) for state in range(first, stop)]
            labels = 1 + max((label for each in ends for label in each), default=0)
            sizes = np.array([[each.get(label, NO_WAY) % FRAME for label in range(labels)] for each in ends], np.int64)
            self._sizes[first] = sizes
        labels = min(sizes.shape[1], len(far) - 1)
        return (
            int((sizes[:, :labels] + np.array(far[1 : 1 + labels], np.int64)).min(axis=1).max()) if labels else NO_WAY
        )

    def _leave(self, node: int, byte: int) -> NDArray[np.int64]:
        """Return the tokens that may leave a closed DFA from a state. byte: with which all its texts end."""
        found = self._leaving.get(node)
        if found is None:
            having = self._having.get(byte)
            if having is None:
                at = np.flatnonzero(self._bytes == byte)
                having = self._having[byte] = np.unique(np.searchsorted(self._start, at, "right") - 1)
            found = self._leaving[node] = having[self._followed_in_rows(node, having)[0] == _LEAVES]
        return found

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


def _tokens_of(mask: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the tokens of a mask."""
    words = np.flatnonzero(mask)
    at, bit = np.nonzero(mask[words, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1))
    found: NDArray[np.int64] = 32 * words[at] + bit
    return found


def _mask_of(tokens: Sequence[int] | NDArray[np.int64], like: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the mask of some tokens, as large as another."""
    found, each = np.zeros_like(like), np.array(tokens, np.int64)
    np.bitwise_or.at(found, each >> 5, np.uint32(1) << (each & 31).astype(np.uint32))
    return found
