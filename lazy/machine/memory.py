"""The arrays of a lazy machine, which grow as rows are made, and the header that kernels find them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ...automata.alphabet import NOTHING, Alphabet
from ...kernels.pointers import put
from ...vocabulary.characters import BEHIND, BYTE_GROUP, UNCLEAN
from ...vocabulary.vocabulary import Vocabulary
from .ends import EndLengths
from .header import (
    AT_ALPHABET,
    AT_BYTE,
    AT_CALL_START,
    AT_CALL_STATES,
    AT_CELLS,
    AT_ENDS,
    AT_FRAMES,
    AT_INNER,
    AT_LEVELS,
    AT_LIVE,
    AT_LOOPS,
    AT_NODE,
    AT_PUSHED,
    AT_REACH,
    AT_ROOT,
    AT_ROW,
    AT_TOKEN,
    END,
    HEADER,
    MASK_WORDS,
    NO_BOUND,
    NO_ROW,
    NUM_INNER,
    NUM_LEVELS,
    NUM_WORDS,
    OF_ENDS,
    OF_FRAME,
    OF_LEVEL,
    UNKNOWN,
)
from .rules import CALL, DEAD, KEEP, NO_LIMIT, POP, Rules

_STATES, _CELLS, _CALLS = 64, 1024, 64  # of which arrays have room at first
SOME_GROUPS, MANY_CLASSES = 8, 32  # of characters that lead to one state, from which on it is worth a look
LETTERS = sum({1 << int(BYTE_GROUP[byte]) for byte in b"az"})  # groups that many tokens have characters of
_MOST_TOKENS = 256  # masks that are kept of a vocabulary


class MachineMemory:
    """The header of a lazy machine and the arrays whose addresses are in it. `make` makes the row of a state."""

    def __init__(self, rules: Rules, vocabulary: Vocabulary) -> None:
        self._rules = rules
        self.header = np.zeros(HEADER, np.int64)
        self._arrays: dict[int, NDArray[Any]] = {}
        self.num_rows = self._num_cells = self._num_calls = self._num_call_states = 0
        self._most_frames = 1  # that a call opens
        self._named_by_calls = [0]  # states that the newest calls name
        self._num_bound = 0  # of the states that calls name, those of which the bytes to an end are known
        self._ends: EndLengths | None = None
        self._vocabulary = vocabulary
        root, inner, reach = _joined(tuple(rules.alphabets))
        self.words, self._groups = reach.shape[1], [groups_of(each, reach.shape[1]) for each in rules.alphabets]
        branches, levels = vocabulary.trie.branches, vocabulary.trie.longest
        header = self.header
        header[NUM_INNER], header[NUM_WORDS], header[NUM_LEVELS] = len(inner), self.words, levels
        header[END], header[MASK_WORDS] = rules.end, -(-vocabulary.size // 32)
        for at, array in (
            (AT_ROOT, root), (AT_INNER, inner), (AT_REACH, reach), (AT_BYTE, branches.byte),
            (AT_NODE, branches.node), (AT_TOKEN, vocabulary.trie.token), (AT_CELLS, np.zeros(_CELLS, np.int32)),
            (AT_CALL_START, np.zeros(_CALLS, np.int32)), (AT_CALL_STATES, np.zeros(_CALLS, np.int32)),
            (AT_LEVELS, np.zeros(OF_LEVEL * (levels + 2), np.int64)), (AT_ROW, np.full(_STATES, NO_ROW, np.int64)),
            (AT_ALPHABET, np.full(_STATES, -1, np.int32)), (AT_LOOPS, np.zeros(_STATES, np.uint64)),
            (AT_LIVE, np.zeros((_STATES, self.words), np.uint64)),
            (AT_ENDS, np.full((_STATES, OF_ENDS), NO_BOUND, np.int64)),
        ):  # fmt: skip
            self._put(at, array)
        self.room_for_frames(0)

    def _put(self, at: int, array: NDArray[Any]) -> None:
        array = np.ascontiguousarray(array)
        self._arrays[at] = array
        put(self.header, at, array)

    def _lengthen(self, at: int, size: int, fill: int = 0) -> NDArray[Any]:
        """Return the array at a place, with room for `size` rows."""
        array = self._arrays[at]
        if size > len(array):
            longer = np.full((max(size, 2 * len(array)), *array.shape[1:]), fill, array.dtype)
            longer[: len(array)] = array
            self._put(at, longer)
            return longer
        return array

    @property
    def pushed(self) -> NDArray[np.int32]:
        """The frames that the last token opened."""
        return self._arrays[AT_PUSHED]

    def room_for_frames(self, height: int) -> None:
        """Make room for a walk above so many open frames."""
        most = height + 2 + int(self.header[NUM_LEVELS] + 1) * self._most_frames
        if AT_FRAMES not in self._arrays or OF_FRAME * most > self._arrays[AT_FRAMES].size:
            self._put(AT_FRAMES, np.zeros(2 * OF_FRAME * most, np.int64))
            self._put(AT_PUSHED, np.zeros(2 * most, np.int32))

    def make(self, state: int) -> None:
        """Make the row of a state, if it has none, and of neighbours."""
        if self._lengthen(AT_ROW, state + 1, NO_ROW)[state] >= 0:
            return
        rules = self._rules
        states, codes = rules.rows(state)
        self._take_calls()
        targets = set(codes[codes >= 0].tolist())
        named = {*targets, *states, *self._named_by_calls}
        size = 1 + max(named)
        rows = self._lengthen(AT_ROW, size, NO_ROW)
        new = [k for k, each in enumerate(states) if rows[each] < 0]
        if len(new) < len(states):
            states, codes = [states[k] for k in new], codes[new]
        first, stop = self._num_cells, self._num_cells + codes.size
        self._lengthen(AT_CELLS, stop)[first:stop] = codes.ravel()
        self._num_cells = stop
        alphabet = self._lengthen(AT_ALPHABET, size, -1)
        alphabet[states] = rules.alphabet_of(state)
        for each in named:
            if alphabet[each] < 0:
                alphabet[each] = rules.alphabet_of(each)
        live, loops = self._lengthen(AT_LIVE, size), self._lengthen(AT_LOOPS, size)
        live[states] = _bits(codes != DEAD, self.words)
        itself = _leads_to_itself(rules, state, codes[states.index(state)])
        if itself.any():
            groups = self._groups[alphabet[state]]
            strange = (groups & ~_bits(itself, self.words)).any(axis=1)
            loops[state] = np.packbits(~strange, bitorder="little").view(np.uint64)[0]
        self._lengthen(AT_ENDS, size, NO_BOUND)
        rows[states] = first + codes.shape[1] * np.arange(len(states))  # last: from here on they are read
        self.num_rows += len(states)
        if self._ends is not None:
            self._bound_frames()

    def has_row(self, state: int) -> bool:
        """Return whether the row of a state has been made."""
        rows = self._arrays[AT_ROW]
        return state < len(rows) and rows[state] >= 0

    def _row(self, state: int) -> Sequence[int]:
        """Return the row of a state that has one."""
        codes: list[int] = self._codes(state).tolist()
        return codes

    def home_of(self, state: int, make: Callable[[int], None]) -> Home | None:
        """Return the home of walks that begin in a state, see `walk`; None without one.

        make: makes the row of a state.
        """
        make(state)
        groups, most = self._staying(state)
        if groups & LETTERS:
            return Home(state, groups, groups, _tokens_of(self._vocabulary, groups, most))
        home, first = self._main_target(state)
        if first.bit_count() < SOME_GROUPS:
            return None
        make(home)
        groups, most = self._staying(home)
        if not groups & LETTERS:
            return None
        return Home(home, first, groups, _tokens_of(self._vocabulary, groups, most + 1))

    def _staying(self, state: int) -> tuple[int, int]:
        """Return the groups of characters that lead a state to itself or its likes, and how many may follow at most."""
        loops = int(self._arrays[AT_LOOPS][state])
        if loops:
            return loops, NO_LIMIT
        counted = self._rules.counts(state)
        return (0, 0) if counted is None else (self._groups_to(state, counted[0]), counted[1])

    def _main_target(self, state: int) -> tuple[int, int]:
        """Return the state that most classes of characters lead to, and the groups of characters that lead there."""
        codes = self._codes(state)
        if np.count_nonzero(codes != DEAD) < min(MANY_CLASSES, codes.size // 2):
            return -1, 0  # as most states, in little time
        codes_, counts = np.unique(codes[(codes >= 0) | (codes <= CALL)], return_counts=True)
        if not codes_.size:
            return -1, 0
        main = int(codes_[counts.argmax()])
        return main if main >= 0 else self._rules.calls[CALL - main][0], self._groups_to(state, main)

    def _codes(self, state: int) -> NDArray[np.int32]:
        """Return the row of a state."""
        first = int(self._arrays[AT_ROW][state])
        count = self._rules.alphabets[self._arrays[AT_ALPHABET][state]].classes
        codes: NDArray[np.int32] = self._arrays[AT_CELLS][first : first + count]
        return codes

    def _groups_to(self, state: int, code: int) -> int:
        """Return the groups of characters of which all are read by a code in the row of a state."""
        groups = self._groups[self._arrays[AT_ALPHABET][state]]
        strange = (groups & ~_bits(self._codes(state) == code, self.words)).any(axis=1)
        return int(np.packbits(~strange, bitorder="little").view(np.uint64)[0])

    def bound(self, state: int) -> None:
        """Find in how many bytes the frame of a state can end whose row is made."""
        ends = self._bound_frames(state)
        if ends[state, 1] == NO_BOUND:
            ends[state, 1] = min(self._found_ends.within(state), UNKNOWN)
            ends[state, 2] = np.uint64(self._groups_to(state, state)).astype(np.int64)

    def bound_frames(self, states: Iterable[int]) -> None:
        """Find in how many bytes frames can end that are to go on in some states, and those that calls open."""
        self._bound_frames(*states)

    def _bound_frames(self, *states: int) -> NDArray[np.int64]:
        found = self._found_ends
        stop = self._num_call_states
        named = self._arrays[AT_CALL_STATES][self._num_bound : stop].tolist()
        size = 1 + max(states, default=0)
        wanted = {*named, *states}
        ends = self._lengthen(AT_ENDS, max(size, 1 + max(wanted, default=0)), NO_BOUND)
        missing = [state for state in wanted if ends[state, 0] == NO_BOUND]
        for state in missing:
            length = min(found.of(state), UNKNOWN)
            ends = self._arrays[AT_ENDS]  # another, if it grew meanwhile
            ends[state, 0], ends[state, 2] = length, 0
        self._num_bound = stop
        return ends

    @property
    def _found_ends(self) -> EndLengths:
        if self._ends is None:
            self._ends = EndLengths(self._rules, self._row)
        return self._ends

    def bytes_to_end(self, state: int, inner: int) -> int:
        """Return the bytes in which the frame of a place can end, UNKNOWN if that is not known."""
        ends = self._bound_frames(state)
        if not inner:
            return int(ends[state, 0])
        self.make(state)
        self.bound(state)
        return int(self._arrays[AT_ENDS][state, 1])

    def out_of_character(self, state: int, inner: int) -> tuple[bytes, tuple[int, ...]]:
        """Return bytes that complete the character at a place within one, and the states to end then, innermost first.

        Of all that may be read it is the one behind which a text ends soonest.
        """
        self.make(state)
        codes, inners = self._codes(state), self._arrays[AT_INNER]
        best: tuple[int, bytes, int] | None = None
        texts = [(inner, b"")]
        seen = {inner}
        for at, text in texts:  # which grows, by length
            for byte, to in enumerate(inners[at].tolist()):
                if to > 0 and to not in seen:
                    seen.add(to)
                    texts.append((to, text + bytes([byte])))
                code = int(codes[-1 - to]) if to < 0 else DEAD
                if code != DEAD and (best is None or code != best[2]):
                    length = len(text) + 1 + self._found_ends.behind(code)
                    if best is None or length < best[0]:
                        best = length, text + bytes([byte]), code
        assert best is not None, "a text that is within a character goes on"
        _, text, code = best
        if code in (POP, KEEP):
            return text, ()
        if code >= 0:
            return text, (code,)
        innermost, behind = self._rules.calls[CALL - code]
        return text, (innermost, *reversed(behind))

    def _take_calls(self) -> None:
        """Write the calls that the rules have made since."""
        calls, named = self._rules.calls, [0]
        for n in range(self._num_calls, len(calls)):
            inner, behind = calls[n]
            states = [inner, *behind]
            first, stop = self._num_call_states, self._num_call_states + len(states)
            self._lengthen(AT_CALL_STATES, stop)[first:stop] = states
            self._lengthen(AT_CALL_START, n + 2)[n + 1] = stop
            self._num_call_states, self._num_calls = stop, n + 1
            self._most_frames = max(self._most_frames, len(behind))
            named.extend(states)
        self._named_by_calls = named
        if len(named) > 1:
            self.room_for_frames(0)

    @property
    def nbytes(self) -> int:
        """Bytes of what has been made so far, and of the alphabets."""
        per_state = 8 + 8 + 4 + 8 * self.words
        shared = sum(self._arrays[at].nbytes for at in (AT_ROOT, AT_INNER, AT_REACH))
        return int(per_state * len(self._arrays[AT_ROW]) + 4 * self._num_cells + shared + self._rules.nbytes)


class Home(NamedTuple):
    """The home of a walk: a state, the groups of characters that lead there and that stay there, and their tokens."""

    state: int
    first: int
    groups: int
    tokens: NDArray[np.uint32]


_tokens: WeakKeyDictionary[Vocabulary, dict[tuple[int, int], NDArray[np.uint32]]] = WeakKeyDictionary()


def _tokens_of(vocabulary: Vocabulary, groups: int, most: int) -> NDArray[np.uint32]:
    """Return a mask of the tokens with characters of some groups alone, see `BYTE_GROUP`, that begin few of them."""
    known = _tokens.setdefault(vocabulary, {})
    found = known.get((groups, most))
    if found is None:
        bits = np.zeros(32 * -(-vocabulary.size // 32), np.bool_)
        characters = vocabulary.characters
        bits[: vocabulary.size] = characters.groups & ~np.uint64(groups) == 0
        if most < NO_LIMIT:
            bits[: vocabulary.size] &= characters.begun <= most
        found = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
        if len(known) >= _MOST_TOKENS:
            known.clear()
        known[groups, most] = found
    return found


def _leads_to_itself(rules: Rules, state: int, codes: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which cells of a row lead to its state, or to one that reads the same tokens."""
    mine = rules.alike(state)
    itself: NDArray[np.bool_] = codes == state
    for other in set(codes[codes >= 0].tolist()):
        if other != state and rules.alike(other) == mine:
            itself |= codes == other
    return itself


def _bits(which: NDArray[np.bool_], words: int) -> NDArray[np.uint64]:
    """Return classes (..., C) as bits (..., W)."""
    out = np.zeros((*which.shape[:-1], 64 * words), np.bool_)
    out[..., : which.shape[-1]] = which
    return np.packbits(out, axis=-1, bitorder="little").view(np.uint64)


@lru_cache(maxsize=16)
def _joined(alphabets: tuple[Alphabet, ...]) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64]]:
    """Return the arrays of all alphabets in one: see AT_ROOT.

    There a number above 0 is a row of `inner`, 0 is no way on, and -1 - c is a character of class c.
    """
    words = max(each.reach.shape[1] for each in alphabets)
    roots: list[NDArray[np.int32]] = []
    inners = [np.zeros((1, 256), np.int32)]
    reaches = [np.zeros((1, words), np.uint64)]
    before = 1
    for each in alphabets:
        for out, array in ((roots, each.root[None]), (inners, each.inner)):
            out.append(np.where(array >= 0, array + before, np.where(array == NOTHING, 0, array)).astype(np.int32))
        wide = np.zeros((len(each.inner), words), np.uint64)
        wide[:, : each.reach.shape[1]] = each.reach
        reaches.append(wide)
        before += len(each.inner)
    return np.concatenate(roots), np.concatenate(inners), np.concatenate(reaches)


_groups: WeakKeyDictionary[Alphabet, NDArray[np.uint64]] = WeakKeyDictionary()


def groups_of(alphabet: Alphabet, words: int) -> NDArray[np.uint64]:
    """Return the classes (64, W), as bits, of the characters in each group of `BYTE_GROUP`.

    All bits of a group are set where some character of it is not spelled by its own bytes, and for `UNCLEAN`.
    """
    found = _groups.get(alphabet)
    if found is None:
        found = _groups[alphabet] = _find_groups(alphabet, alphabet.reach.shape[1])
    if found.shape[1] == words:
        return found
    wide = np.zeros((64, words), np.uint64)
    wide[:, : found.shape[1]] = found
    wide[(found == ~np.uint64(0)).all(axis=1)] = ~np.uint64(0)
    return wide


def _find_groups(alphabet: Alphabet, words: int) -> NDArray[np.uint64]:
    first = BYTE_GROUP < UNCLEAN  # of bytes that begin a character
    found, beyond = alphabet.root.astype(np.int64), np.arange(256) >= 0x80
    one = ~beyond & (found < 0) & (found != NOTHING)
    whole = beyond & (found >= 0) & _reads_all(alphabet)
    reads = np.full((256, words), ~np.uint64(0))
    reads[one | whole] = 0
    reads[one, ~found[one] >> 6] = np.uint64(1) << (~found[one] & 63).astype(np.uint64)
    if whole.any():
        reads[whole] = alphabet.reach[found[whole]]
    out = np.zeros((64, words), np.uint64)
    np.bitwise_or.at(out, BYTE_GROUP[first].astype(np.intp), reads[first])
    out[UNCLEAN] = ~np.uint64(0)
    return out


def _reads_all(alphabet: Alphabet) -> NDArray[np.bool_]:
    """Return for each first byte (256,) whether all of UTF-8 that may follow it is read, and is whole behind it."""
    inner = alphabet.inner
    behind = np.append(inner[:, 0x80:0xC0], np.full((1, 64), NOTHING, np.int32), axis=0)  # the last is nothing
    left = ((behind < 0) & (behind != NOTHING)).all(axis=1).astype(np.int64)  # bytes to the end of all, 0 if it differs
    for k in (1, 2):
        left[((behind >= 0) & (left[behind.clip(-1)] == k)).all(axis=1)] = k + 1
    left[-1] = 0
    out = np.zeros(256, np.bool_)
    for byte in np.flatnonzero(alphabet.root >= 0).tolist():
        low, high, count = BEHIND[byte].tolist()
        second = inner[alphabet.root[byte], low : high + 1]
        if count == 1:
            out[byte] = left[alphabet.root[byte]] == 1
        elif count:
            out[byte] = bool((second >= 0).all()) and bool((left[second] == count - 1).all())
    return out
