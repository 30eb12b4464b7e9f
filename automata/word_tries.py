"""Tries of words in strings, such as keys of objects, which a pushdown machine reads without rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import ByteArray, Int, Int32Array, Int64Array, long_enough
from ..kernels.compiled import kernel
from .state_ranges import DEAD, KEYS, STRINGS

KEY_BYTE, KEY_CHILD, KEY_NEXT, KEY_LIKE, KEY_LABEL, KEY_ESCAPE, KEY_END, KEY_STOP = range(8)
"""Columns of a state of a trie: the byte that leads to it; its first child; the next child of its parent, by rising
bytes; the library's state that reads all other bytes, the label with which a string ends here, and where an escape
leads, each DEAD where there is none; the first state from here on in which a word ends; the state after those below."""
OF_KEY = 8

USE_FIRST, USE_STOP, USE_TRIE, USE_SITE = range(4)
"""Columns of a use of a trie: its first state; the state after its last; the first in the trie; the site that says
where a word leads by its label, DEAD where a site on the stack does."""
OF_USE = 4


class WordTries:
    """The tries of a machine's words, and their uses: a trie that is used twice has states of its own for each use."""

    def __init__(self) -> None:
        self.size = 0  # states of tries
        self.uses: list[tuple[int, int, int, int]] = []  # by rising first state; see USE_FIRST
        self.keys = np.zeros((0, OF_KEY), np.int32)  # with room behind what is flushed
        self.use_array = np.zeros((0, OF_USE), np.int64)
        self._tries: list[int] = []  # first state, words, string, escape
        self._letters = bytearray()  # of all words of these
        self._word_ends: list[int] = []
        self._word_labels: list[int] = []
        self._use_of: dict[tuple[int, int], int] = {}
        self._next_state = KEYS
        self._flushed_keys = self._flushed_uses = 0

    def add(self, words: Sequence[bytes], labels: Sequence[int], string: int, escape: int) -> tuple[int, int]:
        """Add a trie, and return where it begins and ends; see `PushdownMachine.trie`."""
        first = self.size
        self._tries.extend((first, len(words), string, escape))
        for j in sorted(range(len(words)), key=words.__getitem__):
            self._letters += words[j]
            self._word_ends.append(len(self._letters))
            self._word_labels.append(labels[j])
        self.size += sum(map(len, words)) + 1  # at most: beginnings are shared
        return first, self.size

    def use(self, trie: tuple[int, int], site: int) -> int | None:
        """Return the first state of a use of a trie, None if no numbers of states are left; see USE_SITE."""
        key = trie[0], site
        found = self._use_of.get(key)
        if found is None:
            first, stop = self._next_state, self._next_state + trie[1] - trie[0]
            if stop > STRINGS:
                return None
            self._next_state = stop
            self.uses.append((first, stop, *key))
            found = self._use_of[key] = first
        return found

    @property
    def is_flushed(self) -> bool:
        """Whether the arrays have all tries and uses."""
        return not self._tries and len(self.uses) == self._flushed_uses

    @property
    def nbytes(self) -> int:
        """Bytes that tries and uses take, or will when they are flushed."""
        return 4 * OF_KEY * self.size + 8 * OF_USE * len(self.uses)

    def flush(self, rows: NDArray[np.int32], grows: bool) -> None:
        """Write what was added to the arrays. rows: the machine's. grows: leave room for more."""
        if self._tries:
            self.keys = long_enough(self.keys, self._flushed_keys, self.size, grows)
            letters = np.frombuffer(bytes(self._letters), np.uint8)
            ends, labels = np.array(self._word_ends, np.int64), np.array(self._word_labels, np.int32)
            _fill_tries(self.keys, np.array(self._tries, np.int32).reshape(-1, 4), letters, ends, labels, rows)
            self._tries, self._letters, self._word_ends, self._word_labels = [], bytearray(), [], []
            self._flushed_keys = self.size
        if len(self.uses) > self._flushed_uses:
            self.use_array = long_enough(self.use_array, self._flushed_uses, len(self.uses), grows)
            self.use_array[self._flushed_uses : len(self.uses)] = self.uses[self._flushed_uses :]
            self._flushed_uses = len(self.uses)


@kernel
def _fill_tries(
    keys: Int32Array, tries: Int32Array, letters: ByteArray, ends: Int64Array, labels: Int32Array, rows: Int32Array
) -> None:
    """Write the states of tries of sorted words, each trie's in the order of its words; see `WordTries.add`."""
    longest, at = np.int64(0), np.int64(0)
    for end in ends:
        longest, at = max(longest, end - at), end
    path = np.empty(longest + 1, np.int64)  # states of the word before, which lies at `before` and has `size` bytes
    j = at = np.int64(0)
    for t in range(len(tries)):
        first, stop, string, escape = np.int64(tries[t, 0]), j + tries[t, 1], tries[t, 2], tries[t, 3]
        _set_key(keys, first, 0, string, string, escape)
        path[0], used = first, first + 1
        before = size = np.int64(0)
        while j < stop:
            length, common = ends[j] - at, np.int64(0)
            while common < min(size, length) and letters[before + common] == letters[at + common]:
                common += 1
            for depth in range(common, length):
                here, byte = path[depth], letters[at + depth]
                if depth == common and common < size:
                    keys[path[depth + 1], KEY_NEXT] = used
                    for k in range(common + 1, size + 1):
                        keys[path[k], KEY_STOP] = used
                else:
                    keys[here, KEY_CHILD] = used
                like = keys[here, KEY_LIKE]
                _set_key(keys, used, byte, DEAD if like == DEAD else rows[like, byte], string, escape)
                path[depth + 1] = used
                used += 1
            keys[path[length], KEY_LABEL] = labels[j]
            keys[path[length], KEY_END] = path[length]
            before, size, at, j = at, length, ends[j], j + 1
        for k in range(size + 1):
            keys[path[k], KEY_STOP] = used
        for here in range(used - 1, first - 1, -1):
            if keys[here, KEY_END] < 0:
                keys[here, KEY_END] = keys[here + 1, KEY_END]


@kernel
def _set_key(keys: Int32Array, here: Int, byte: Int, like: Int, string: Int, escape: Int) -> None:
    """Write a state of a trie in which no word ends and from which none goes on."""
    keys[here, KEY_BYTE], keys[here, KEY_CHILD], keys[here, KEY_NEXT], keys[here, KEY_LIKE] = byte, -1, -1, like
    within = like == string and like != DEAD  # a string, and no character of it
    keys[here, KEY_LABEL], keys[here, KEY_ESCAPE] = 0 if within else DEAD, escape if within else DEAD
    keys[here, KEY_END], keys[here, KEY_STOP] = -1, here + 1
