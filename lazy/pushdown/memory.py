"""What kernels read of a machine: the header, the arrays behind it, and how both follow a machine that grows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.labelled import bytes_ahead, labels_ahead
from ...automata.pushdown import PushdownMachine
from ...automata.state_ranges import PHASES
from ...automata.string_content import Content, labels_in_escapes
from ...automata.word_tries import USE_FIRST
from ...errors import BudgetError, TableError
from ...kernels.pointers import address_of, put
from ...vocabulary.vocabulary import Vocabulary
from .bases import Base
from .free_rows import groups_read
from .header import (
    AT_ANY_STRING,
    AT_ANY_STRING_GROUPS,
    AT_BYTE,
    AT_CHARACTERS,
    AT_CONTENTS,
    AT_DEPTH,
    AT_EMPTY_REST,
    AT_EOS,
    AT_FREE_SETS,
    AT_IS_CERTAIN,
    AT_LABELS_AHEAD,
    AT_LEVELS,
    AT_NODE,
    AT_PREORDER_BYTE,
    AT_PREORDER_DEPTH,
    AT_PREORDER_GROUPS,
    AT_PREORDER_SKIP,
    AT_PREORDER_TOKEN,
    AT_PUSHED,
    AT_REST_BYTE,
    AT_REST_NODE,
    AT_REST_SYMBOL,
    AT_ROWS,
    AT_SHARES,
    AT_SITE_FRAMES,
    AT_SITE_LEAF,
    AT_STATE_FRAMES,
    AT_STRING_ROWS,
    AT_STRINGS,
    AT_SYMBOLS,
    AT_TOKEN,
    AT_USES,
    AT_WORDS,
    HEADER,
    MOST_FREE_SETS,
    OF_CONTENT,
    PLAIN,
)
from .string_mask_cache import Counted, StringMaskCache

T = TypeVar("T")

DOING = "reading a constraint as it is"
"""Named in errors of the budget."""

FramesRequired = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]
"""Frames that each state, and each return site, requires, 0 beyond; and which states can surely be left within them."""


class LibraryParts(NamedTuple):
    """What all lazy machines of one library share."""

    vocabulary: Vocabulary
    remainders: Vocabulary  # the rests of tokens that a fragment's end leaves, by symbol
    bases: dict[int, Base]  # of the library's wide states
    any_string: int  # the library's state of a string without conditions
    counted: Counted
    string_masks: StringMaskCache


class StringNumbers(NamedTuple):
    """How the states of a string by its content are numbered, and how far from its bound it allows the same."""

    first: int
    states: int  # of the content
    is_counted: bool
    slack: int  # characters after which all tokens are still within the bound, below 0 if some states are dead, too


class PushdownMemory:
    """The header, and the arrays whose addresses are in it; `take` brings it up to date with the machine."""

    def __init__(self, machine: PushdownMachine, parts: LibraryParts, depth: int, meter: Meter) -> None:
        self.machine, self.meter = machine, meter
        self._counted_rows = parts.counted.rows
        self.header = np.zeros(HEADER, np.int64)
        self._kept: list[NDArray[Any]] = []
        self._put_tries(parts.vocabulary, parts.remainders)
        self.header[AT_DEPTH], self.header[AT_ANY_STRING] = depth, parts.any_string
        self.longest = parts.vocabulary.trie.longest
        pushed = np.zeros(max(1, self.longest), np.int32)
        put(self.header, AT_PUSHED, pushed)
        self.pushed = pushed.data  # the sites that the last token pushed
        self._strings = np.zeros((3, 0), np.int64)
        self._arrays: tuple[NDArray[Any], ...] = (np.zeros(0, np.int32),) * 8
        self._contents = np.zeros(OF_CONTENT, np.int64)
        self.numbers: list[StringNumbers] = []  # of each content
        # the first states of contents, of counted strings, and of uses of word tries
        self.first_contents: list[int] = []
        self.first_strings: list[int] = []
        self.first_uses: list[int] = []
        self._free_set_of: dict[int, NDArray[np.int16]] = {}  # the free sets of the states of some contents
        self._free_sets = np.zeros(2 * MOST_FREE_SETS, np.int64)
        put(self.header, AT_FREE_SETS, self._free_sets)
        self.header[AT_FREE_SETS + 1] = 0
        self.own_bytes = 0  # of what only this machine has, beside the arrays of the machine
        self.take()
        groups = groups_read(self.header, self._arrays[0].reshape(-1), parts.any_string, PLAIN)
        self.header[AT_ANY_STRING_GROUPS] = np.uint64(groups).astype(np.int64)

    def _put_tries(self, vocabulary: Vocabulary, remainders: Vocabulary) -> None:
        """Write all that depends on the vocabulary alone."""
        header, trie, rests = self.header, vocabulary.trie, remainders.trie
        tokens, below = trie.branches, rests.branches
        for at, array in (
            (AT_BYTE, tokens.byte), (AT_CHARACTERS, tokens.characters), (AT_NODE, tokens.node), (AT_TOKEN, trie.token),
            (AT_REST_BYTE, below.byte), (AT_REST_NODE, below.node), (AT_REST_SYMBOL, rests.token),
            (AT_PREORDER_BYTE, trie.byte), (AT_PREORDER_DEPTH, trie.depth), (AT_PREORDER_SKIP, trie.skip),
            (AT_PREORDER_GROUPS, trie.content), (AT_PREORDER_TOKEN, trie.token_start), (AT_SHARES, vocabulary.shares),
        ):  # fmt: skip
            self._kept.append(array)
            put(header, at, array)
        header[AT_LEVELS] = max(trie.longest, rests.longest) + 2
        header[AT_SYMBOLS] = remainders.size
        header[AT_EMPTY_REST] = next((y for y, text in enumerate(remainders.tokens) if not text), -1)
        header[AT_WORDS] = -(-vocabulary.size // 32)
        header[AT_EOS] = -1 if vocabulary.eos is None else vocabulary.eos

    def take(self) -> None:
        """Write what the machine has now. Raises BudgetError."""
        machine, header = self.machine, self.header
        self.meter.check(states=machine.size, bytes=machine.nbytes, doing=DOING)
        machine.flush()
        arrays = machine.arrays()
        for at, array, before in zip(range(AT_ROWS, AT_USES + 2, 2), arrays, self._arrays, strict=True):
            if array is not before:
                put(header, at, array)
        self.templates, self.keys = arrays[5].data, arrays[6].data
        self._arrays = arrays
        header[AT_SITE_LEAF + 1], header[AT_USES + 1] = machine.num_sites, len(machine.uses)
        self.first_uses.extend(use[USE_FIRST] for use in machine.uses[len(self.first_uses) :])
        if len(machine.strings) > self._strings.shape[1]:
            self._take_strings()
        if len(machine.texts) > len(self.numbers):
            self._take_contents()

    def _take_strings(self) -> None:
        """Write all counted strings."""
        strings = self.machine.strings
        self.first_strings = [first for first, _, _ in strings]
        self._strings = np.array(
            [(first, low, -1 if high is None else high) for first, low, high in strings], np.int64
        ).T.copy()
        put(self.header, AT_STRING_ROWS, self._counted_rows)
        put(self.header, AT_STRINGS, self._strings)

    def _take_contents(self) -> None:
        """Write the contents that are new."""
        contents = self.machine.texts
        if OF_CONTENT * len(contents) > self._contents.size:
            room = np.zeros(2 * OF_CONTENT * len(contents), np.int64)
            room[: self._contents.size] = self._contents
            self._contents = room
        for n in range(len(self.numbers), len(contents)):
            content = contents[n]
            where = [address_of(each) for each in (content.class_of, content.transition, content.label)]
            needed, slack = 0, 0
            if content.needed.size:
                needed = address_of(content.needed)
                slack = content.most - self.longest - int(content.needed.max())
            self._contents[OF_CONTENT * n : OF_CONTENT * (n + 1)] = (
                content.first, *where, *content.transition.shape, content.free, content.most, needed,
                self._free_set_at(content),
            )  # fmt: skip
            self.first_contents.append(content.first)
            self.numbers.append(StringNumbers(content.first, len(content.label), content.most >= 0, slack))
        put(self.header, AT_CONTENTS, self._contents)
        self.header[AT_CONTENTS + 1] = len(contents)

    def _free_set_at(self, content: Content) -> int:
        """Return the address of the free sets of a content's states, 0 if none are kept, as characters are counted."""
        if content.most >= 0:
            return 0
        dead = content.needed.size and (content.needed < 0).any()
        key = address_of(content.needed if dead else content.transition)
        free_set = self._free_set_of.get(key)
        if free_set is None:
            free_set = self._free_set_of[key] = np.full(len(content.label), -1, np.int16)
        return address_of(free_set)

    def take_frames(self, required: FramesRequired) -> None:
        """Write how many frames states and sites require, and the labels that each string may still end with."""
        places = []
        for content in self.machine.texts if required[0].size else ():
            if content.label.max() == 0:  # one label: there is nothing to tell apart
                places.append((0, 0))
                continue
            self.meter.check(bytes=(1 + PHASES) * bytes_ahead(content.label), doing=DOING)
            ahead: NDArray[np.uint64] = labels_ahead(content.transition, content.label)
            ahead = labels_in_escapes(content.class_of, content.transition, ahead)
            self._kept.append(ahead)
            self.own_bytes += ahead.nbytes
            places.append((address_of(ahead), ahead.shape[2]))
        arrays: tuple[NDArray[Any], ...] = (*required, np.array(places, np.int64))
        self._kept.extend(arrays)
        for at, array in zip((AT_STATE_FRAMES, AT_SITE_FRAMES, AT_IS_CERTAIN, AT_LABELS_AHEAD), arrays, strict=True):
            put(self.header, at, array)

    def is_leaf(self, site: int) -> bool:
        """Return whether a site is pushed for a fragment that makes no calls."""
        return bool(self._arrays[4][site])

    @property
    def nbytes(self) -> int:
        """Bytes of what has been written so far, a library's rows among it.

        What a state is made from, formulas and steps, takes about as much as its row.
        """
        contents = (content.transition.nbytes + content.needed.nbytes for content in self.machine.texts)
        rows, *others, templates, keys, uses = self._arrays  # the room behind what is written takes no memory yet
        written = (2 * self.machine.size - self.machine.first) * (rows[0].nbytes + templates[:, 0].nbytes)
        others_bytes = sum(array.nbytes for array in others) + sum(contents) + self.own_bytes
        return int(written) + keys.nbytes + uses.nbytes + others_bytes


class Growth:
    """How a machine grows while it is read: all that writes more states goes through `grow`."""

    def __init__(self, memory: PushdownMemory) -> None:
        self._memory = memory
        self._begun = memory.machine.size
        self.over: BudgetError | None = None  # of the budget that was exceeded: nothing more is written then
        self.is_torn = False  # whether a write was interrupted, so that rows may be half there

    @property
    def is_large(self) -> bool:
        """Whether texts have spent an eighth of the states that the budget left them, or all of the budget."""
        machine, budget = self._memory.machine, self._memory.meter.budget
        return self.over is not None or 8 * (machine.size - self._begun) > budget.states - self._begun

    def grow(self, write: Callable[[], T]) -> T:
        """Return the result of `write`, which adds to the machine, and bring the memory up to date.

        Raises BudgetError if the budget is exceeded: what was there before stays as it was, and can be read.
        """
        if self.over is not None:
            raise copy.copy(self.over)
        self.is_torn = True
        try:
            found = write()
            self._memory.take()
        except BudgetError as error:
            self.over, self.is_torn = copy.copy(error), False
            raise
        self.is_torn = False
        return found

    def check(self) -> None:
        """Raise TableError if rows may be half written."""
        if self.is_torn:
            raise TableError(
                "this lazy table was interrupted while more of it was being written, and cannot be read any more: "
                "call its to_table() and make new matchers, or compile the schema again"
            )

    def reach(self, state: int, most: int) -> None:
        """Write the row of a state that was left for later, and of about `most` others that texts may come to."""
        machine = self._memory.machine
        affordable = max(0, self._memory.meter.budget.states - machine.size) // 8
        self.grow(lambda: machine.reach(state, min(affordable, most)))
