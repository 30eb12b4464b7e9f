"""`ByteMachine`: a machine of bytes that a matcher reads as it is, whose states are made when a text reaches them.

A mask or a token asks for the rows of a few states, and the kernels of `walk` stop at each that has none. `Rules` make
it, and the walk goes on. So the time to the first mask depends on what the first mask needs, however many states there
are.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.formulas import uncollected
from ...errors import BudgetError
from ...kernels.limits import MOST_DEPTH
from ...kernels.mask_buffers import MaskBuffers
from ...kernels.pointers import address_of
from ...vocabulary.vocabulary import Vocabulary
from ..protocol import Frames, Open, Stack
from .header import DONE, FARTHEST, HOME, IN_HOME, LOOKED, NEEDS_SITES, NO_BOUND, NUM_INNER, TO_HOME, WORK
from .memory import Home, MachineMemory
from .rules import Rules
from .walk import entry_points

_SITES_AT_ONCE = 4  # that a token is likely to pop
_MANY_NODES = 512  # of the trie, from which on a mask is worth keeping
_DOING = "reading a text"


class ByteMachine:
    """A `LazyMachine` that rules describe.

    The meter's budget limits states and bytes of all that there are. Exceeding it raises BudgetError, and what was made
    before can still be read. frames: whether texts open frames. seconds: for the rows that one token or mask needs, and
    for the searches for ends, each; beyond that it is a BudgetError as well, and the next call has as long again.
    """

    most_frames_required = -MOST_DEPTH
    strings = 0  # any state may have others that allow the same
    ends_alike = False

    def __init__(
        self, rules: Rules, vocabulary: Vocabulary, meter: Meter, frames: bool = False, seconds: float = math.inf
    ) -> None:
        self.rules, self.meter = rules, meter
        self._guard = replace(meter.budget, seconds=seconds)
        self.depth = MOST_DEPTH if frames else 0
        self._kernels = entry_points()
        self._lock = threading.RLock()
        self._memory = memory = MachineMemory(rules, vocabulary)
        self._header, self._header_at = memory.header, address_of(memory.header)
        self.num_inner = int(memory.header[NUM_INNER])  # places within a character, by which a node counts states
        self._tokens, self._eos = vocabulary.tokens, vocabulary.eos
        self._byte_tokens = {text[0]: token for token, text in enumerate(vocabulary.tokens) if len(text) == 1}
        self._buffers = MaskBuffers(-(-vocabulary.size // 32))
        self._over: BudgetError | None = None
        self._homes: dict[int, Home | None] = {}  # by the state that a walk begins in
        with meter:
            memory.make(0)

    @property
    def is_large(self) -> bool:
        """Whether texts have spent an eighth of the budget: the next text had better begin with a new machine."""
        budget, memory = self.meter.budget, self._memory
        large = 8 * memory.num_rows > budget.states or 8 * self.nbytes > budget.bytes
        return self._over is not None or large or self.num_inner * (memory.num_rows + 1) > 1 << 27

    @property
    def num_states(self) -> int:
        """States whose rows have been made so far."""
        return self._memory.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of what has been made so far."""
        return self._memory.nbytes

    @property
    def left_out(self) -> int:
        """How often a way on was left out, as the search for a text that completes it took long."""
        return self.rules.left_out

    def is_leaf(self, site: int) -> bool:
        """Return True: frames are not limited."""
        return True

    def fits(self, node: int, stack: Stack) -> bool:
        """Return True: frames are not limited."""
        return True

    def accepts(self, node: int) -> bool:
        """Return whether a text may end at a place if nothing is open."""
        if node % self.num_inner:
            return False
        with self._lock:
            return self.rules.accepts(node // self.num_inner)

    def alike(self, node: int) -> int:
        """Return the place that stands for all that allow the same tokens."""
        state, inner = divmod(node, self.num_inner)
        with self._lock:
            return self.rules.alike(state) * self.num_inner + inner

    def _make(self, state: int) -> None:
        """Make the row of a state, if it has none. Raises BudgetError."""
        if self._memory.has_row(state):
            return
        if self._over is not None:
            raise copy.copy(self._over)
        memory = self._memory
        try:
            self.meter.check(states=memory.num_rows + 1, bytes=memory.nbytes, doing=_DOING)
            memory.make(state)
        except BudgetError as error:
            if error.limit != "seconds":
                self._over = copy.copy(error)
            raise

    def mask(self, node: int, sites: bytes, frames: int) -> tuple[NDArray[np.uint32], int, bool]:
        """Return the tokens that a place allows, the end token included: see `LazyMachine`."""
        buffer = self._buffers.take()
        mask = buffer.shown
        with self._lock:
            self._memory.room_for_frames(len(sites) // 4)
            self._walk(node, sites, buffer.at, NO_BOUND)
            looked, work = int(self._header[LOOKED]), int(self._header[WORK])
            if self._end(node, sites, buffer.mask) and self.depth:
                looked = max(looked, 1)
        self._buffers.give(buffer)
        return mask, looked, work > _MANY_NODES

    def _walk(self, node: int, sites: bytes, mask_at: int, room: int) -> None:
        """Write a mask, without the end token: see `write_mask`. Raises BudgetError."""
        before = self._find_home(node) if room == NO_BOUND else 0
        state = self._kernels.write_mask(self._header_at, node, sites, mask_at, False, room, before)
        if state == DONE:
            return
        with uncollected(), self._guard.begin():
            while state != DONE:
                self._make(state)
                if room != NO_BOUND:
                    self._memory.bound(state)
                state = self._kernels.write_mask(self._header_at, node, sites, mask_at, True, room, before)

    def _find_home(self, node: int) -> int:
        """Set the home of a walk from a place; return the address of the mask before it, 0 without a home."""
        state, inner = divmod(node, self.num_inner)
        if inner:
            return 0
        if state not in self._homes:
            with uncollected(), self._guard.begin():
                self._homes[state] = self._memory.home_of(state, self._make)
        home = self._homes[state]
        if home is None:
            return 0
        self._header[HOME], self._header[TO_HOME], self._header[IN_HOME] = home.state, home.first, home.groups
        return address_of(home.tokens)

    # ------------------------------------------------------------------------------------------------------ ends

    @property
    def has_bounds(self) -> bool:
        """Return True: rules find ends."""
        return True

    def nearest(self, node: int, stack: Stack) -> int:
        """Return the bytes of a text that ends all that is open, which are as many tokens; 2**30 or more if unknown."""
        state, inner = divmod(node, self.num_inner)
        with self._lock, self._guard.begin():
            found = self._memory.bytes_to_end(state, inner)
            return found + sum(self._memory.bytes_to_end(site, 0) for site in stack.as_array().tolist())

    def farthest(self, node: int, stack: Stack) -> int:
        """Return the most that `nearest` is behind a token that is allowed next, -1 where none is."""
        self.within(node, stack, -1, 0)
        return int(self._header[FARTHEST])

    def text_to_end(self, node: int, stack: Stack) -> list[int] | None:
        """Return tokens of one byte each, as many as `nearest` says, that end all that is open; None if not known."""
        state, inner = divmod(node, self.num_inner)
        with self._lock, self._guard.begin():
            first, inside = self._memory.out_of_character(state, inner) if inner else (b"", (state,))
            text = bytearray(first)
            for each in (*inside, *reversed(stack.as_array().tolist())):
                own = self.rules.text_to_end(each)
                if own is None:
                    return None
                text += own
        return [self._byte_tokens[byte] for byte in text]

    def within(self, node: int, stack: Stack, frames: int, room: int) -> NDArray[np.uint32]:
        """Return the tokens behind which `nearest` is below room, and the end token, read-only."""
        buffer = self._buffers.take()
        mask = buffer.shown
        sites = stack.sites()
        with self._lock, self._guard.begin():
            self._memory.room_for_frames(len(sites) // 4)
            self._memory.bound_frames(stack.as_array().tolist())
            self._walk(node, sites, buffer.at, room)
            self._end(node, sites, buffer.mask)
        self._buffers.give(buffer)
        return mask

    def _end(self, node: int, sites: bytes, mask: NDArray[np.uint32]) -> bool:
        """Add the end token if a text may end at a place; return whether it may if nothing is open."""
        accepts = self.accepts(node)
        if accepts and self._eos is not None and not sites:
            mask[self._eos >> 5] |= np.uint32(1 << (self._eos & 31))
        return accepts

    # ---------------------------------------------------------------------------------------------------- tokens

    def advance(self, node: int, stack: Open, token: int, push: Callable[[Open, int], Open]) -> tuple[int, Open] | None:
        """Return the place and the stack that a token leads to, None if it is not allowed: see `LazyMachine`."""
        text = self._tokens[token]
        if not text:
            return None
        sites = stack.top(_SITES_AT_ONCE) if self.depth else b""
        with self._lock:
            place, popped, pushed = self._read(node, stack, text, sites)
            if place == DONE:
                with self._guard.begin():
                    while place == DONE:
                        self._make(popped)
                        place, popped, pushed = self._read(node, stack, text, sites)
            if place < 0:
                return None
            for _ in range(popped):
                stack = stack.below
            for site in self._memory.pushed[:pushed].tolist():
                stack = push(stack, site)
        return place, stack

    def _read(self, node: int, stack: Frames, text: bytes, sites: bytes) -> tuple[int, int, int]:
        """Return what `read_token` does, with as many sites of the stack as it needs; REFUSED, or DONE for a row."""
        while True:
            is_all = not self.depth or len(sites) >= 4 * stack.height
            self._memory.room_for_frames(len(sites) // 4)
            found: tuple[int, int, int] = self._kernels.read_token(self._header_at, node, text, sites, is_all)
            if found[0] != NEEDS_SITES:
                return found
            sites = stack.top(len(sites))  # four times as many
