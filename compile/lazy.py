"""A machine with calls that is read as it is: tokens byte by byte, masks by walking the trie of all tokens.

What a table holds in rows, exits and return sites is found here where it is needed, for the stack at hand. Nothing is
found for states that no text comes to, and these need not even be written: see `Machine.later`. A mask costs more than
that of a table, some microseconds for most states, and some hundred where a text is hardly bound.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..automata.budget import Meter
from ..automata.nested import CALL, DEAD, KEEP, PHASES, RETURN, STRINGS, TEXTS, UNWRITTEN, Machine
from ..bundle import address_of, array_at, put
from ..errors import BudgetError, TableError
from ..table import MOST_DEPTH
from .vocabulary import BYTE_GROUP, UNCLEAN, Vocabulary

T = TypeVar("T")

_WRITTEN = -1  # in place of a state that has yet to be written
_ENOUGH = 512  # nodes of the trie from which on a mask is worth keeping
_MOST_AHEAD = 256  # states looked at to see what is read freely
_MOST_BASES = 512  # kept
_MOST_SURELY = 64  # kept of what texts surely read
_MOST_BYTES = 32  # of those that they do
_LARGE = 512  # states of a text from which on that is worked out for all of them
_MANY = 24  # bytes that a state reads from which on that is worth it
_LEFT = -2  # the base has ended: what is below are its exits

# places in the header: of arrays, two each, and of numbers
(
    _ROWS, _CALLS, _SITE_START, _SITE_STATES, _SITE_LEAF, _TWINS, _STRING_ROWS, _STRINGS, _NEED_STATE, _NEED_SITE,
    _BYTE, _CHILD, _TOKENS, _TOKEN, _CHARACTERS, _REACH, _END_BYTE, _END_CHILD, _END_TOKENS, _SYMBOL,
    _TEXTS,
) = range(0, 42, 2)  # fmt: skip
_LEVELS, _SYMBOLS, _NOTHING, _BODY, _DEPTH = range(42, 47)
_OF_TEXT = (
    7  # numbers that say what a text is: its first state; of classes, transitions and labels the address, and sizes
)


class Base(NamedTuple):
    """What a state allows that is, or nearly is, one of a library: its mask, and the exits beside."""

    mask: NDArray[np.uint32]
    exit_token: NDArray[np.int32]
    exit_symbol: NDArray[np.int32]
    exit_characters: NDArray[np.int32]  # read before the end; empty where their number is no matter
    addresses: tuple[int, ...]  # of the four, that of the mask with its size, and the sizes of the second and the last

    @staticmethod
    def of(
        mask: NDArray[np.uint32],
        exit_token: NDArray[np.int32],
        exit_symbol: NDArray[np.int32],
        exit_characters: NDArray[np.int32],
    ) -> Base:
        """Return the base of contiguous arrays."""
        arrays = mask, exit_token, exit_symbol, exit_characters
        where = [address_of(array) for array in arrays]
        return Base(*arrays, (where[0], mask.size, *where[1:], exit_token.size, exit_characters.size))


class Counted(NamedTuple):
    """Strings of so many characters: the rows of a string (Q, 256), counted from 0.

    base(q, left): what stays in the string from state q over at most `left` characters, None for any number, and what
    ends it.
    """

    rows: NDArray[np.int32]
    most: int  # characters that one token takes
    base: Callable[[int, int | None], Base]


class Lazy:
    """What a lazy table is before it is worked out; `runtime.matcher` reads it.

    bases: what is known of a library's states, by state. remainders: what may be left of a token where a fragment ends
    in its middle, by symbol. bind: makes what says the base of each state of a string that is bound apart. body: the
    state of any string. counted: makes what strings of bounded length take, once one is met. limits: finds how many
    frames each state and each site needs, 0 beyond. bound: frames below the depth where that begins to matter, None
    where it never does.
    """

    def __init__(
        self,
        machine: Machine,
        vocabulary: Vocabulary,
        bases: dict[int, Base],
        remainders: Vocabulary,
        bind: Callable[[NDArray[Any], NDArray[np.int32]], Callable[[int], Base]],
        body: int,
        counted: Callable[[], Counted],
        limits: Callable[[], tuple[NDArray[np.int32], NDArray[np.int32]]],
        depth: int,
        bound: int | None,
        meter: Meter,
    ) -> None:
        self.machine, self.vocabulary, self.bases = machine, vocabulary, bases.copy()
        self.depth, self.meter = depth, meter
        self.most_need = -MOST_DEPTH if bound is None else bound
        self._bind, self._counted, self._find_limits = bind, counted, limits
        self._apart: list[tuple[int, int, Callable[[int], Base]]] = []  # first and last state, what says their bases
        self._lock = threading.RLock()
        self._needs: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
        self._over = ""  # which limit of the budget was reached: nothing more is written then
        self._torn = False  # whether what was being written, or taken, is half there
        self._strings = np.zeros((3, 0), np.int64)
        self._arrays: tuple[NDArray[Any], ...] = (np.zeros(0),) * 6
        self._header = np.zeros(47, np.int64)
        trie, ends = vocabulary.trie, remainders.trie
        self._kept: list[NDArray[Any]] = [*trie.branches, trie.token, *ends.branches, ends.token]
        for at, array in zip(
            (_BYTE, _CHILD, _TOKENS, _CHARACTERS, _REACH, _TOKEN, _END_BYTE, _END_CHILD, _END_TOKENS, -1, -1, _SYMBOL),
            self._kept,
            strict=True,
        ):
            if at >= 0:
                put(self._header, at, array)
        self._header[_LEVELS] = max(trie.longest, ends.longest) + 2
        self._header[_SYMBOLS] = remainders.size
        self._header[_NOTHING] = next((y for y, text in enumerate(remainders.tokens) if not text), -1)
        self._header[_DEPTH], self._header[_BODY] = depth, body
        self._texts = np.zeros(_OF_TEXT, np.int64)
        self._num_texts = 0
        self._surely: dict[tuple[int, int], NDArray[np.int64]] = {}  # by text and groups
        self._take()

    def _take(self) -> None:
        """Take what the machine has now."""
        m = self.machine
        self.meter.check(states=m.size, bytes=1024 * m.size, doing="reading a constraint as it is")
        m.flush()
        arrays = m.arrays()
        for at, array, before in zip(range(_ROWS, _TWINS + 2, 2), arrays, self._arrays, strict=True):
            if array is not before:
                put(self._header, at, array)
        if arrays[0] is not self._arrays[0]:
            flat, twins = arrays[0].reshape(-1), arrays[5]
            self.rows, self._twins = flat.data, twins.data
        self._arrays = arrays
        self._header[_SITE_LEAF + 1] = m.num_sites
        for first, class_of, codes, _ in m.apart[len(self._apart) :]:
            self._apart.append((first, first + len(codes), self._bind(class_of, codes)))
        if len(m.strings) > self._strings.shape[1]:
            self._strings = np.array(
                [(first, low, -1 if high is None else high) for first, low, high in m.strings], np.int64
            ).T.copy()
            self.counted = self._counted()
            put(self._header, _STRING_ROWS, self.counted.rows)
            put(self._header, _STRINGS, self._strings)
        if len(m.texts) > self._num_texts:
            if _OF_TEXT * len(m.texts) > self._texts.size:
                texts = np.zeros(2 * _OF_TEXT * len(m.texts), np.int64)
                texts[: self._texts.size] = self._texts
                self._texts = texts
            for n in range(self._num_texts, len(m.texts)):
                first, class_of, transition, label, free = m.texts[n]
                addresses = (address_of(array) for array in (class_of, transition, label))
                self._texts[_OF_TEXT * n : _OF_TEXT * (n + 1)] = first, *addresses, *transition.shape, free
            self._num_texts = len(m.texts)
            put(self._header, _TEXTS, self._texts)
            self._header[_TEXTS + 1] = self._num_texts

    def _grow(self, write: Callable[[], T]) -> T:
        """Return what `write` does, which adds to the machine, and take what the machine has then.

        Where the budget ends half-way, what had been written before stays as it was, and can be read.
        """
        if self._over:
            raise BudgetError(self._over)
        self._torn = True
        try:
            found = write()
            self._take()
        except BudgetError as error:
            self._over, self._torn = str(error), False
            raise
        self._torn = False
        return found

    def _check(self) -> None:
        """Raise TableError if rows may be wrong."""
        if self._torn:
            raise TableError(
                "this lazy table was interrupted while more of it was being written, and cannot be read any more: "
                "call its complete() and make new matchers, or compile the schema again"
            )

    def _reach(self, state: int) -> None:
        """Write the row of a state that was left for later, and of those like it."""
        self._grow(lambda: self.machine.reach(state))

    def is_leaf(self, site: int) -> bool:
        """Return whether a site is pushed for a fragment that makes no calls."""
        return bool(self._arrays[4][site])

    def accepts(self, node: int) -> bool:
        """Return whether a text may end in a state if nothing is open."""
        return node in self.machine.accepting

    def _limits(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return how many frames each state and each site needs, once somebody is about to run out of them."""
        if self._needs is None:
            needs = self._grow(self._find_limits)
            for at, array in zip((_NEED_STATE, _NEED_SITE), needs, strict=True):
                put(self._header, at, array)
            self._needs = needs
        return self._needs

    def mask(self, node: int, sites: NDArray[np.int32], frames: int, out: NDArray[np.uint32]) -> tuple[int, bool]:
        """Write the tokens that a configuration allows, EOS included, into out (ceil(V / 32),).

        sites: of the frames that are open, the outermost first. frames: how many of these are no leaves, where they
        may run out, else -1. Returns how many sites the mask depends on from the top, one more if it depends on there
        being no more, and whether it was much work.
        """
        with self._lock:
            self._check()
            if frames >= 0:
                self._limits()
            while True:
                site, twin, walk, least, room = -1, -1, False, 0, 0
                base = self.bases.get(node) or (self._base_apart(node) if self._apart else None)
                if base is None:
                    if STRINGS <= node < TEXTS:
                        base, least, room = self._string(node)
                    else:
                        walk = True
                        base = _EMPTY
                        if self.machine.first <= node < STRINGS and (twin := self._twins[0, node]) >= 0:
                            base, site = self.bases[twin], self._twins[1, node]
                            if site >= 0 and frames >= 0 and not self._has_room(site, frames):
                                base = _EMPTY
                freely = self._freely(node) if node >= TEXTS and frames < 0 else (0, 0)
                state, looked, work = _mask(
                    self._header, node, walk, twin, site, base.addresses, least, room, frames, sites, out, *freely
                )
                if state == _WRITTEN:
                    break
                self._reach(state)
            if node in self.machine.accepting:
                looked = max(looked, 1)
                eos = self.vocabulary.eos
                if eos is not None and not sites.size:
                    out[eos >> 5] |= np.uint32(1 << (eos & 31))
        return looked, work > _ENOUGH

    def _freely(self, node: int) -> tuple[int, int]:
        """Return of what groups of characters, as bits, a state of a text surely reads how many bytes."""
        texts = self.machine.texts
        n = bisect_right(texts, node, key=itemgetter(0)) - 1
        first, class_of, transition, _, _ = texts[n]
        q, phase = divmod(node - first, PHASES)
        if len(transition) < _LARGE or phase or not _reads_many(class_of, transition, q):
            return 0, 0  # small ones are looked at in the walk
        groups = int(_usual_groups(self._header, self._arrays[0].reshape(-1), node))
        found = self._surely.get((n, groups))
        if found is None:
            if len(self._surely) >= _MOST_SURELY:
                self._surely.clear()
            found = self._surely[n, groups] = _surely_read(class_of, transition, np.uint64(groups), _MOST_BYTES)
        return groups, int(found[q])

    def _base_apart(self, node: int) -> Base | None:
        """Return the base of a state of a string that is bound apart, None for any other."""
        for first, stop, base_of in self._apart:
            if first <= node < stop:
                found = base_of(node - first)
                if len(self.bases) < _MOST_BASES:
                    self.bases[node] = found
                return found
        return None

    def _has_room(self, site: int, frames: int) -> bool:
        """Return whether a site may be pushed."""
        return frames + max(int(not self.is_leaf(site)), _at(self._limits()[1], site)) <= self.depth

    def _string(self, node: int) -> tuple[Base, int, int]:
        """Return what a state of a counted string allows, and how many characters an exit must and may read."""
        first, low, high = self._strings[:, np.searchsorted(self._strings[0], node, "right") - 1].tolist()
        k, q = divmod(node - first, len(self.counted.rows))
        left = None if high < 0 or high - k >= self.counted.most else high - k
        return self.counted.base(q, left), low - k, MOST_DEPTH if high < 0 else high - k

    def advance(self, node: int, stack: Any, token: int, push: Callable[[Any, int], Any]) -> tuple[int, Any] | None:
        """Return the state and stack that a token leads to, None if it is not allowed.

        stack: has `site` on top of the stack `below`, None at the bottom. push(stack, site) returns it with one more.
        """
        text = self.vocabulary.tokens[token]
        if not text:
            return None
        with self._lock:
            self._check()
            rows = self.rows
            for byte in text:
                while True:
                    code = rows[node << 8 | byte] if node < STRINGS else int(_code(self._header, node, byte))
                    if code > 0:
                        node = code
                        break
                    if code == DEAD:
                        return None
                    if code <= CALL:
                        site, node = self._arrays[1][CALL - code].tolist()
                        stack = push(stack, site)
                        break
                    if code == UNWRITTEN:
                        self._reach(node)
                        rows = self.rows
                        continue
                    if stack.below is None:
                        return None
                    label = RETURN - code if code > KEEP else KEEP - code
                    start, states = self._arrays[2:4]
                    at = int(start[stack.site]) + label
                    if at >= start[stack.site + 1]:
                        return None
                    node = int(states[at])
                    stack = stack.below
                    if node < 0:
                        return None
                    if code > KEEP:
                        break
        return node, stack

    def fits(self, node: int, stack: Any) -> bool:
        """Return whether there is room to leave all that is open."""
        with self._lock:
            need_state, need_site = self._limits()
            if stack.frames + _at(need_state, node) > self.depth:
                return False
            while stack.below is not None:
                if stack.below.frames + _at(need_site, stack.site) > self.depth:
                    return False
                stack = stack.below
            return True


def _at(needed: NDArray[np.int32], which: int) -> int:
    return int(needed[which]) if which < needed.size else 0


_EMPTY = Base.of(np.empty(0, np.uint32), *(np.empty(0, np.int32),) * 3)


@njit(cache=True, nogil=True)
def _code(header: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state that has no row, and a byte."""
    return _string_code(header, here, byte) if here < TEXTS else _text_code(header, here, byte)


@njit(cache=True, nogil=True)
def _text_code(header: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state of a string by its content, and a byte."""
    texts = array_at(header[_TEXTS], _OF_TEXT * header[_TEXTS + 1], np.int64)
    low, high = np.int64(0), header[_TEXTS + 1]
    while high - low > 1:
        middle = (low + high) >> 1
        if texts[_OF_TEXT * middle] <= here:
            low = middle
        else:
            high = middle
    first, classes_at, transitions_at, labels_at, states, classes, free = texts[_OF_TEXT * low : _OF_TEXT * (low + 1)]
    q = (here - first) // PHASES
    phase = here - first - q * PHASES
    class_of = array_at(classes_at, 256, np.uint16)
    row = array_at(transitions_at + 4 * q * classes, classes, np.int32)
    character = np.int64(-1)
    if phase == 0:
        if byte == 0x22:
            label = array_at(labels_at, states, np.int32)[q]
            return np.int64(RETURN - label) if label >= 0 else np.int64(DEAD)
        if byte == 0x5C:
            return (
                here + 1
                if _reads_some(row, class_of, 0, 0x1F)
                or _reads_some(row, class_of, 0x22, 0x22)
                or (_reads_some(row, class_of, 0x5C, 0x5C))
                else np.int64(DEAD)
            )
        if byte >= 0x20:
            character = np.int64(byte)
    elif phase == 1:
        if byte == 0x75:
            return here + 1
        for letter, meant in ((0x62, 8), (0x66, 12), (0x6E, 10), (0x72, 13), (0x74, 9), (0x22, 0x22), (0x5C, 0x5C)):
            if byte == letter:
                character = np.int64(meant)
    elif phase < 4:
        return here + 1 if byte == 0x30 else np.int64(DEAD)
    elif phase == 4:
        for digit, low_one, high_one, ahead in (
            (0x30, 0, 0x0F, 1), (0x31, 0x10, 0x1F, 2), (0x32, 0x22, 0x22, 3), (0x35, 0x5C, 0x5C, 4)
        ):  # fmt: skip
            if byte == digit and _reads_some(row, class_of, low_one, high_one):
                return here + ahead
    elif phase < 7:
        value = np.int64(byte) - 0x30 if byte <= 0x39 else (np.int64(byte) | 0x20) - 0x57
        if 0 <= value < 16 and (byte <= 0x39 or value >= 10):  # 0x60 lies between the letters
            character = (phase - 5) * 16 + value
    elif phase == 7:
        character = np.int64(0x22) if byte == 0x32 else np.int64(-1)
    elif byte | 0x20 == 0x63:
        character = np.int64(0x5C)
    if character < 0:
        return np.int64(DEAD)
    target = np.int64(row[class_of[character]])
    if target < 0:
        return np.int64(DEAD)
    return header[_BODY] if target == free else first + target * PHASES


@njit(cache=True, nogil=True)
def _reads_some(row: Any, class_of: Any, low: Any, high: Any) -> Any:
    """Return whether a row of a content reads one of some characters."""
    some = False
    for c in range(low, high + 1):
        some |= row[class_of[c]] >= 0
    return some


@njit(cache=True, nogil=True)
def _string_code(header: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state of a counted string and a byte."""
    rows = array_at(header[_STRING_ROWS], header[_STRING_ROWS + 1], np.int32)
    strings = array_at(header[_STRINGS], header[_STRINGS + 1], np.int64)  # (3, n)
    count, states = strings.size // 3, rows.size >> 8
    at = count - 1
    while strings[at] > here:
        at -= 1
    first, low, high = strings[at], strings[count + at], strings[2 * count + at]
    k = (here - first) // states
    code = np.int64(rows[(here - first - k * states) << 8 | byte])
    if code == DEAD:
        return code
    if code <= RETURN:
        return code if k >= low and (high < 0 or k <= high) else np.int64(DEAD)
    done = k + (code == 0)
    if high < 0 and done >= low:
        return header[_BODY] + code
    if high >= 0 and done + (code > 0) > high:
        return np.int64(DEAD)
    return first + done * states + code


@njit(cache=True, nogil=True)
def _any_code(header: Any, rows: Any, here: Any, byte: Any) -> Any:
    """Return the code of a state and a byte."""
    return np.int64(rows[here << 8 | byte]) if here < STRINGS else _code(header, here, byte)


@njit(cache=True, nogil=True)
def _follow(byte: Any, phase: Any) -> Any:
    """Return the bytes of a character that are to come after one more: phases 4 to 7 are those of its second byte."""
    if phase:
        return phase - 1 if phase < 4 else 1 if phase < 6 else 2
    if byte < 0x80:
        return 0
    if byte < 0xF0:
        return 1 if byte < 0xE0 else 4 if byte == 0xE0 else 5 if byte == 0xED else 2
    return 6 if byte == 0xF0 else 7 if byte == 0xF4 else 3


@njit(cache=True, nogil=True)
def _bytes_of(phase: Any) -> Any:
    """Return the lowest and the highest byte that may come in a phase within a character."""
    low = 0xA0 if phase == 4 else 0x90 if phase == 6 else 0x80
    return low, 0x9F if phase == 5 else 0x8F if phase == 7 else 0xBF


@njit(cache=True, nogil=True)
def _reads(header: Any, rows: Any, state: Any, phase: Any) -> Any:
    """Return whether a state within a character reads all that may be left of it."""
    low, high = _bytes_of(phase)
    after = _follow(low, phase)
    last = np.int64(-1)
    for c in range(low, high + 1):
        to = _any_code(header, rows, state, c)
        if to == last:
            continue
        if to <= 0 or (after and not _reads(header, rows, to, after)):
            return False
        last = to
    return True


@njit(cache=True, nogil=True)
def _groups_read(header: Any, rows: Any, state: Any, groups: Any) -> Any:
    """Return which of some groups of characters a state reads all, within its frame."""
    for b in range(256):
        group = BYTE_GROUP[b]
        bit = np.uint64(1) << np.uint64(group)
        if group == UNCLEAN or not groups & bit:
            continue
        to = _any_code(header, rows, state, b)
        if to <= 0 or (b >= 0x80 and not _reads(header, rows, to, _follow(b, 0))):
            groups &= ~bit
    return groups


@njit(cache=True, nogil=True)
def _usual_groups(header: Any, rows: Any, start: Any) -> Any:
    """Return the groups of characters that a state reads, but for those after which little of the rest is read."""
    one = np.uint64(1)
    groups = _groups_read(header, rows, start, ~(one << np.uint64(UNCLEAN)))
    rest, total = groups, 0
    while rest:
        rest &= rest - one
        total += 1
    last, dropped = np.int64(-1), np.uint64(0)
    for b in range(128):
        bit = one << np.uint64(BYTE_GROUP[b])
        to = _any_code(header, rows, start, b)
        if not groups & bit or to == last:
            continue
        last = to
        rest, lacking = groups & ~_groups_read(header, rows, to, groups), 0
        while rest:
            rest &= rest - one
            lacking += 1
        if 2 * lacking > total:
            dropped |= bit
            last = np.int64(-1)
    return groups & ~dropped


@njit(cache=True, nogil=True)
def _reads_many(class_of: Any, transition: Any, q: int) -> bool:
    """Return whether a state of a content reads many bytes."""
    read = 0
    for b in range(0x20, 0x7F):
        read += transition[q, class_of[b]] >= 0
    return read >= _MANY


@njit(cache=True, nogil=True)
def _surely_read(class_of: Any, transition: Any, groups: Any, most: int) -> Any:
    """Return how many bytes, `most` at most, each state (N,) of a content reads of any characters of some groups."""
    states = len(transition)
    # in each phase, within a character or before one, what its bytes lead to: classes and phases, each pair once
    classes, after, count = np.empty((8, 256), np.int64), np.empty((8, 256), np.int64), np.zeros(8, np.int64)
    for phase in range(8):
        low, high = (0, 0xF4) if phase == 0 else _bytes_of(phase)
        for b in range(low, high + 1):
            if phase == 0 and (BYTE_GROUP[b] == UNCLEAN or not (groups >> np.uint64(BYTE_GROUP[b])) & np.uint64(1)):
                continue
            name, follows = np.int64(class_of[b]), np.int64(_follow(b, phase))
            new = True
            for k in range(count[phase]):
                new = new and not (classes[phase, k] == name and after[phase, k] == follows)
            if new:
                classes[phase, count[phase]], after[phase, count[phase]] = name, follows
                count[phase] += 1
    out = np.full((states, 8), most, np.int64)
    changed = True
    while changed:
        changed = False
        for q in range(states - 1, -1, -1):  # most lead to later ones
            for phase in range(8):
                least = out[q, phase]
                for k in range(count[phase]):
                    to = transition[q, classes[phase, k]]
                    least = min(least, 0 if to < 0 else out[to, after[phase, k]] + 1)
                    if not least:
                        break
                if least < out[q, phase]:
                    out[q, phase] = least
                    changed = True
    return out[:, 0].copy()


@njit(cache=True, nogil=True)
def _freely(header: Any, rows: Any, start: Any, levels: Any) -> Any:
    """Return groups of characters, as bits, and how many of their bytes a state surely reads, whatever they are.

    And a state that must be written first to say so, or -1.
    """
    one = np.uint64(1)
    groups = _usual_groups(header, rows, start)
    queue, phases, level = (
        np.empty(_MOST_AHEAD, np.int64), np.empty(_MOST_AHEAD, np.int64), np.empty(_MOST_AHEAD, np.int64)
    )  # fmt: skip
    queue[0], phases[0], level[0] = start, 0, 0
    count, at = 1, 0
    while at < count:
        here, phase, depth = queue[at], phases[at], level[at]
        at += 1
        low, high = (0, 0xF4) if phase == 0 else _bytes_of(phase)
        last, last_phase = np.int64(-1), np.int64(-1)
        for b in range(low, high + 1):
            if phase == 0 and (BYTE_GROUP[b] == UNCLEAN or not (groups >> np.uint64(BYTE_GROUP[b])) & one):
                continue
            to, after = _any_code(header, rows, here, b), np.int64(_follow(b, phase))
            if to <= 0:
                return groups, depth, here if to == UNWRITTEN else np.int64(_WRITTEN)
            if to == last and after == last_phase:
                continue
            last, last_phase = to, after
            new = True
            for k in range(count):
                if queue[k] == to and phases[k] == after:
                    new = False
                    break
            if new and depth + 1 < levels:
                if count == _MOST_AHEAD:
                    return groups, depth + 1, np.int64(_WRITTEN)
                queue[count], phases[count], level[count] = to, after, depth + 1
                count += 1
    return groups, np.int64(levels), np.int64(_WRITTEN)


@njit(cache=True, nogil=True)
def _fits(header: Any, pushed: Any, popped: Any, state: Any, real: Any, frames: Any) -> Any:
    """Return whether what is open after a token can be left again."""
    site_leaf = array_at(header[_SITE_LEAF], header[_SITE_LEAF + 1], np.uint8)
    need_state = array_at(header[_NEED_STATE], header[_NEED_STATE + 1], np.int32)
    need_site = array_at(header[_NEED_SITE], header[_NEED_SITE + 1], np.int32)
    left = np.int64(frames)
    for k in range(popped):
        left -= not site_leaf[real[real.size - 1 - k]]
    most = left
    for k in range(pushed.size):
        if pushed[k] < need_site.size:
            most = max(most, left + need_site[pushed[k]])
        left += not site_leaf[pushed[k]]
    if state < need_state.size:
        left += need_state[state]
    return max(most, left) <= header[_DEPTH]


@njit(cache=True, nogil=True)
def _walk(
    header: Any, ends: bool, start: Any, popped: Any, base: Any, base_site: Any, frames: Any, real: Any, out: Any,
    known_groups: Any, known_bytes: Any,
) -> Any:  # fmt: skip
    """Set and clear the bits of the tokens of a trie in `out`, as they are read from a state.

    ends: walk what may be left of tokens, not the tokens. popped: sites of `real` that are gone already. base: the
    state whose tokens are in `out`, -1 for none: what reads like it stays as it is. known_groups, known_bytes: of what
    groups of characters the state surely reads how many bytes, as far as somebody has worked it out. Returns (a state
    that must be written first, or -1; sites looked at; nodes).
    """
    rows = array_at(header[_ROWS], header[_ROWS + 1], np.int32)
    calls = array_at(header[_CALLS], header[_CALLS + 1], np.int32)
    site_start = array_at(header[_SITE_START], header[_SITE_START + 1], np.int32)
    site_states = array_at(header[_SITE_STATES], header[_SITE_STATES + 1], np.int32)
    shift = _END_BYTE - _BYTE if ends else 0
    byte = array_at(header[_BYTE + shift], header[_BYTE + shift + 1], np.uint8)
    child = array_at(header[_CHILD + shift], header[_CHILD + shift + 1], np.int32)
    tokens = array_at(header[_TOKENS + shift], header[_TOKENS + shift + 1], np.int32)
    token = array_at(header[_TOKEN + shift], header[_TOKEN + shift + 1], np.int32)
    characters = array_at(header[_CHARACTERS], header[_CHARACTERS + 1], np.uint64)
    reach = array_at(header[_REACH], header[_REACH + 1], np.int32)
    levels = header[_LEVELS]
    at, stop = np.empty(levels, np.int64), np.empty(levels, np.int64)
    state, height, pops = np.empty(levels, np.int64), np.empty(levels, np.int64), np.empty(levels, np.int64)
    twin, stack = np.empty(levels, np.int64), np.empty((levels, levels), np.int32)
    after_base = np.int64(site_states[site_start[base_site]]) if base_site >= 0 else np.int64(-1)
    one = np.uint32(1)
    looked, work = np.int64(popped), np.int64(0)
    pure = np.empty(levels, np.bool_)
    groups, freely = np.uint64(known_groups), np.int64(known_bytes)
    if not ends and base < 0 and frames < 0 and not freely:
        read = 0
        if start < STRINGS:
            for b in range(256):
                read += rows[start << 8 | b] > 0
        elif start >= TEXTS:
            for b in range(0x20, 0x7F):
                read += _text_code(header, start, b) > 0
        if read >= _MANY:
            groups, freely, unwritten = _freely(header, rows, np.int64(start), levels)
            if unwritten != _WRITTEN:
                return unwritten, looked, work
    d = np.int64(0)
    at[0], stop[0] = 0, child[0]
    state[0], height[0], pops[0], twin[0], pure[0] = start, 0, popped, base, True
    while True:
        i = at[d]
        if i == stop[d]:
            if d == 0:
                break
            d -= 1
            continue
        at[d] = i + 1
        c = np.int64(byte[i])
        here, other = state[d], twin[d]
        if other >= 0:
            other = np.int64(rows[other << 8 | c])
            if other <= RETURN:
                other = np.int64(_LEFT)
        code = np.int64(rows[here << 8 | c]) if here < STRINGS else _code(header, here, c)
        if code == DEAD and other == DEAD:
            continue
        work += 1
        if freely and pure[d]:
            if reach[i] <= freely and characters[i] & ~groups == 0:  # UNCLEAN is no group that is read
                for x in range(tokens[3 * i], tokens[3 * i + 2]):
                    out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
                continue
            if BYTE_GROUP[c] != UNCLEAN:  # a character begins, else it goes on
                pure[d + 1] = (groups >> np.uint64(BYTE_GROUP[c])) & np.uint64(1) != 0
            else:
                pure[d + 1] = d > 0
        else:
            pure[d + 1] = False
        h, p = height[d], pops[d]
        if code == RETURN and h == 0 and p == popped and base_site < 0 and other == _LEFT and base >= 0:
            continue  # both end here, in one frame: an exit of the base
        copied = False
        while code <= UNWRITTEN and code > CALL and code != DEAD:
            if code == UNWRITTEN:
                return here, looked, work
            if h:
                if not copied:
                    for k in range(h):
                        stack[d + 1, k] = stack[d, k]
                    copied = True
                h -= 1
                site = np.int64(stack[d + 1, h])
            elif p < real.size:
                p += 1
                site = np.int64(real[real.size - p])
                looked = max(looked, p)
            else:
                looked = np.int64(real.size + 1)
                code = np.int64(DEAD)
                break
            label = RETURN - code if code > KEEP else KEEP - code
            here = np.int64(-1)
            if site_start[site] + label < site_start[site + 1]:
                here = np.int64(site_states[site_start[site] + label])
            if here < 0:
                code = np.int64(DEAD)
            elif code > KEEP:
                code = here
            else:
                code = np.int64(rows[here << 8 | c]) if here < STRINGS else _code(header, here, c)
        if code == DEAD:
            if other != DEAD:  # the base might allow what is below, by a token or by an exit
                for x in range(tokens[3 * i], tokens[3 * i + 2]):
                    out[token[x] >> 5] &= ~(one << np.uint32(token[x] & 31))
            continue
        if not copied:
            for k in range(h):
                stack[d + 1, k] = stack[d, k]
        if code <= CALL:
            stack[d + 1, h] = calls[2 * (CALL - code)]
            h += 1
            code = np.int64(calls[2 * (CALL - code) + 1])
        if p == popped and base >= 0 and other != DEAD:
            if other == _LEFT:
                same = h == 0 and code == after_base
            else:
                same = other == code and ((h == 1 and stack[d + 1, 0] == base_site) or (h == 0 and base_site < 0))
            if same:
                continue  # from here on exactly what the base, or its exits, say
        x, behind = tokens[3 * i], tokens[3 * i + 1]
        if x < behind:
            allowed = frames < 0 or _fits(header, stack[d + 1, :h], p, code, real, frames)
            while x < behind:
                bit = one << np.uint32(token[x] & 31)
                if allowed:
                    out[token[x] >> 5] |= bit
                else:
                    out[token[x] >> 5] &= ~bit
                x += 1
        if child[i] < child[i + 1]:
            d += 1
            at[d], stop[d] = child[i], child[i + 1]
            state[d], height[d], pops[d], twin[d] = code, h, p, other
    return np.int64(_WRITTEN), looked, work


@njit(cache=True, nogil=True)
def _mask(
    header: Any, node: int, walk: bool, twin: int, site: int, base: Any, least: int, room: int, frames: int, real: Any,
    out: Any, groups: int, freely: int,
) -> Any:  # fmt: skip
    """Write a mask; see `Lazy.mask`. Returns (a state that must be written first, or -1; sites looked at; work)."""
    mask_at, words, token_at, symbol_at, characters_at, exits, counted = base
    if words:
        out[:] = array_at(mask_at, words, np.uint32)
    else:
        out[:] = np.uint32(0)
    one = np.uint32(1)
    looked = work = np.int64(0)
    if exits:
        looked = np.int64(site < 0)
    if exits and (site >= 0 or real.size):
        site_start = array_at(header[_SITE_START], header[_SITE_START + 1], np.int32)
        site_states = array_at(header[_SITE_STATES], header[_SITE_STATES + 1], np.int32)
        popped = looked
        start = np.int64(site_states[site_start[site if site >= 0 else np.int64(real[real.size - 1])]])
        if start >= 0:
            alive = np.zeros((header[_SYMBOLS] + 31) >> 5, np.uint32)
            state, looked, work = _walk(
                header, True, start, popped, np.int64(-1), np.int64(-1), np.int64(frames), real, alive,
                np.int64(0), np.int64(0),
            )  # fmt: skip
            if state != _WRITTEN:
                return state, looked, work
            nothing = header[_NOTHING]
            if nothing >= 0 and (frames < 0 or _fits(header, real[:0], popped, start, real, frames)):
                alive[nothing >> 5] |= one << np.uint32(nothing & 31)
            token, symbol = array_at(token_at, exits, np.int32), array_at(symbol_at, exits, np.int32)
            characters = array_at(characters_at, counted, np.int32)
            for x in range(exits):
                y = symbol[x]
                if (not counted or least <= characters[x] <= room) and (alive[y >> 5] >> np.uint32(y & 31)) & one:
                    out[token[x] >> 5] |= one << np.uint32(token[x] & 31)
    if walk:
        state, seen, nodes = _walk(
            header, False, np.int64(node), np.int64(0), np.int64(twin), np.int64(site), np.int64(frames), real, out,
            np.int64(groups), np.int64(freely),
        )  # fmt: skip
        return state, max(looked, seen), work + nodes
    return np.int64(_WRITTEN), looked, work
