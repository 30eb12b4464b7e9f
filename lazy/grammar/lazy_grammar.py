"""`LazyGrammar`: a grammar that a matcher reads as it is, for all derivations at once.

Where a text stands is a set of pairs of a position in the network and a *frame*: who waits for the rule that the
position is in. A frame is a set of pairs as well, of a node to go on from and the frame that this one is in. So all
stacks that may be open share what they have in common, as in generalised LR parsing, and a rule that begins with itself
waits for itself. A rule that ends where its caller ends needs no frame of its own, so lists take the same few states
however long.

Such sets are *states*. They are made when a text first comes to them, and numbered; equal sets are one state. A *cell*
says which state a class of symbols leads to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.network import Network
from ...errors import BudgetError, RaiseBudget
from ...kernels.arrays import Int
from ...kernels.limits import MOST_DEPTH
from ...kernels.mask_buffers import MaskBuffers
from ...vocabulary.vocabulary import Vocabulary
from ..protocol import Open, Stack
from .header import AT_ACCEPTS, AT_CELLS, AT_ITEM_FRAME, AT_ITEM_POSITION, AT_STATE_START, DEAD, ROOT
from .masks import follow_token, spread, write_mask
from .memory import DOING_ALL, GrammarMemory
from .step import next_state

NO_TOKENS = Vocabulary.from_bytes([b"\0"])
"""For a grammar that is read by bytes alone."""


class LazyGrammar:
    """The states of a grammar that texts have come to: a `LazyMachine` whose stack is part of its states.

    The budget limits states and bytes of all that there are, and seconds for any one token or mask. Once it is exceeded
    the text at hand ends with an error. The next text begins with nothing, and by then other texts have lost their
    states.
    """

    depth = left_out = 0
    most_frames_required = -MOST_DEPTH
    strings = (1 << 31) - 1  # no state is within a string that is counted

    def __init__(self, network: Network, vocabulary: Vocabulary, meter: Meter) -> None:
        self.network, self.vocabulary = network, vocabulary
        self._lock = threading.RLock()
        self._memory = GrammarMemory(network, vocabulary, meter)
        self._header = self._memory.header
        self._before = 0  # states that were dropped: the others are numbered from here
        self._buffers = MaskBuffers(-(-vocabulary.size // 32))
        self.enter([(network.start, ROOT)])  # state 0

    @property
    def nbytes(self) -> int:
        """Bytes of all states so far, and of the network."""
        return self._memory.nbytes

    @property
    def num_states(self) -> int:
        """How many states there are so far."""
        return self._memory.num_states

    # ------------------------------------------------------------------------------------------- as a machine

    def is_leaf(self, site: int) -> bool:
        """Raise AssertionError: there are no return sites."""
        raise AssertionError("the stack of a grammar is in its states")

    def alike(self, node: int) -> int:
        """Return the state itself."""
        return node

    def fits(self, node: int, stack: Stack) -> bool:
        """Return True: frames never run out."""
        return True

    def accepts(self, node: int) -> bool:
        """Return whether a text may end in a state."""
        with self._lock:
            return bool(self._memory.arrays[AT_ACCEPTS][self._here(node)])

    def advance(self, node: int, stack: Open, token: int, push: Callable[[Open, int], Open]) -> tuple[int, Open] | None:
        """Return the state that a token leads to, and the stack as it was; None if it is not allowed."""
        with self._lock:
            here = self._here(node)
            found = follow_token(self._header, here, token)
            if found < DEAD:
                found = self._memory.run(lambda: follow_token(self._header, here, token))
            if found > 0:
                found += self._before
        return None if found == DEAD else (found, stack)

    def mask(self, node: int, sites: bytes, frames: int) -> tuple[NDArray[np.uint32], int, bool]:
        """Return the tokens that a state allows, EOS included; it depends on no site, and is worth keeping."""
        buffer = self._buffers.take()
        mask, out = buffer.shown, buffer.mask
        with self._lock:
            here = self._here(node)
            self._memory.run(lambda: write_mask(self._header, here, out))
        eos = self.vocabulary.eos
        if eos is not None and self.accepts(node):
            out[eos >> 5] |= np.uint32(1 << (eos & 31))
        self._buffers.give(buffer)
        return mask, 0, True

    def _here(self, node: int) -> int:
        """Return the state that a matcher means, by the numbers that states have now. Raises BudgetError."""
        if node == 0:
            if self._memory.over is not None:
                self._before += self.num_states
                self._memory.forget()
                self.enter([(self.network.start, ROOT)])
            return 0
        if node <= self._before:
            raise BudgetError(
                "this text stands where all was forgotten, as the grammar's budget had been reached",
                remedies=[RaiseBudget(("states", "bytes"), "begin the text again")],
            )
        return node - self._before

    # ----------------------------------------------------------------------------------------------- all states

    def enter(self, pairs: list[tuple[int, int]]) -> int:
        """Return the state of some pairs of a node and a frame."""
        with self._lock:
            self._memory.work_for(len(pairs))
            return int(self._memory.run(lambda: self._enter(pairs)))

    def _enter(self, pairs: list[tuple[int, int]]) -> Int:
        work = self._memory.work_for(len(pairs))
        for at, (node, frame) in enumerate(pairs):  # anew for each call: the kernel writes over them
            work[at] = node << 32 | frame
        return next_state(self._header, -1, len(pairs))

    def items(self, state: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the positions and the frames of a state."""
        arrays = self._memory.arrays
        part = slice(*arrays[AT_STATE_START][state : state + 2].tolist())
        return arrays[AT_ITEM_POSITION][part], arrays[AT_ITEM_FRAME][part]

    def spread(self, done: int, meter: Meter) -> int:
        """Work out all cells of states behind the first `done`; return how many are done then. Raises BudgetError."""
        with self._lock:
            meter.check(states=self.num_states, bytes=self.nbytes, doing=DOING_ALL)
            return int(self._memory.run(partial(spread, self._header, done), meter))

    def all_states(self, meter: Meter) -> NDArray[np.int32]:
        """Return the cells of all states, (S, C), once all have been made. Raises BudgetError."""
        done = 0
        while done < self.num_states:
            done = self.spread(done, meter)
        return self.cells

    @property
    def cells(self) -> NDArray[np.int32]:
        """The state that each class leads to from each state, (S, C); `UNKNOWN` where no kernel has looked."""
        classes = self.network.classes
        return self._memory.arrays[AT_CELLS][: self.num_states * classes].reshape(-1, classes)

    def accepting(self) -> NDArray[np.bool_]:
        """Return in which states a text may end, (S,)."""
        return self._memory.arrays[AT_ACCEPTS][: self.num_states].astype(np.bool_)
