"""A machine with calls that is read as it is: tokens byte by byte, masks by walking the trie of all tokens.

What a table holds in rows, exits and return sites is found here where it is needed, for the stack at hand. Nothing is
found for states that no text comes to, and these need not even be written: see `Machine.later`. A mask costs more than
that of a table, some microseconds for most states, and some hundred where a text is hardly bound.
"""

from __future__ import annotations

import copy
import itertools
import re
import threading
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from sys import byteorder
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..automata.budget import Meter
from ..automata.codes import DEAD, KEYS, PHASES, STRINGS, TEXTS
from ..automata.labelled import labels_ahead
from ..automata.pushdown import PushdownMachine
from ..automata.string_content import Content, labels_in_escapes
from ..automata.word_tries import KEY_LIKE, USE_FIRST, USE_SITE
from ..errors import BudgetError, TableError
from ..kernels.limits import MOST_DEPTH
from ..kernels.mask_buffers import MOST_NOTED, MaskBuffers
from ..kernels.pointers import address_of, entry_of, put
from ..vocabulary.characters import BYTE_GROUP
from ..vocabulary.vocabulary import Vocabulary
from .kernels import (
    ALL_BYTES,
    ASKS,
    AT_AHEAD,
    AT_BODY,
    AT_BODY_GROUPS,
    AT_BYTE,
    AT_CHARACTERS,
    AT_CONTENT,
    AT_DEPTH,
    AT_DEPTHS,
    AT_END_BYTE,
    AT_END_NODE,
    AT_EOS,
    AT_FIRST_TOKEN,
    AT_GROUPS,
    AT_LEVELS,
    AT_NEED_SITE,
    AT_NEED_STATE,
    AT_NODE,
    AT_NOTHING,
    AT_ORDER,
    AT_PUSHED,
    AT_ROWS,
    AT_SCRATCH,
    AT_SETS,
    AT_SHARES,
    AT_SITE_LEAF,
    AT_SKIP,
    AT_STRING_ROWS,
    AT_STRINGS,
    AT_SURELY,
    AT_SYMBOL,
    AT_SYMBOLS,
    AT_TEXTS,
    AT_TOKEN,
    AT_USES,
    AT_WORDS,
    HEADER,
    LITTLE,
    MORE,
    MOST_PENDING,
    MOST_SETS,
    OF_BASE,
    OF_TEXT,
    PLAIN,
    UNKNOWN,
    WRITTEN,
    addresses,
    groups_read,
    needed_behind,
    read,
    reads_little,
    restore,
    room_of,
    write_free,
    write_mask,
    write_short,
    write_text,
)

T = TypeVar("T")

# strings, or what begins one, with no escapes but those that a character needs
_PLAINLY = re.compile(
    rb"""(?:[^\\]|\\(?:["\\bfnrt]|u00(?:[01][0-9a-fA-F]|22|5[cC])))*(?:\\(?:u(?:0(?:0[0125]?)?)?)?)?""", re.DOTALL
)

_STATES_AT_ONCE = 64  # written together with one that is reached: somebody waits for a mask
_FEW_AT_ONCE = 16  # with a further one of the same mask
_MOST_BASES = 1024  # of one table from which masks are noted: they stay with it, also once `Known` forgets them
_SITES_AT_ONCE = 4  # that a token is likely to leave
_ENOUGH = 512  # nodes of the trie from which on a mask is worth keeping
_MOST_MASKS = 256  # kept of what is read freely
_MOST_KEPT = 16 << 20  # bytes of what is known of contents
_LOOKED_AT = 512  # numbers of a content before all of them
_MOST_LEVELS = 512  # for which room is kept: 2 MB
_OF_SLAB = 1 << 14  # numbers


class Base(NamedTuple):
    """What a state allows that is, or nearly is, one of a library: its mask, and the exits beside.

    at: the address of OF_BASE numbers. The first four are the address of a mask and how many words it has, that of
    words that differ from it and how many numbers these are, a place and a word each; then come the addresses of the
    tokens of exits, their symbols, the characters that each reads before the end, and their labels, rising; how many
    exits there are; for how many the characters matter, all or none; and how many have labels, none if all are 0.
    sheets: that have the mask but for the words noted, None if there are none of its own. nbytes: what is its own.
    held: what is at these addresses.
    """

    at: int
    sheets: MaskBuffers | None
    nbytes: int
    held: tuple[Any, ...]

    @staticmethod
    def of(mask: NDArray[np.uint32], *exits: NDArray[np.int32], sheets: MaskBuffers | None = None) -> Base:
        """Return the base of contiguous arrays: a mask, and tokens, symbols and characters as far as there are any."""
        token, symbol, characters = exits + (_NONE,) * (3 - len(exits))
        numbers = np.empty(OF_BASE, np.int64)
        at = _loops().addresses(mask, token, symbol, characters, numbers)
        return Base(at, sheets, mask.nbytes, (mask, token, symbol, characters, numbers))


class _Total(NamedTuple):
    """What states allow that read any characters, and have only the escapes that one needs.

    text, start, token: the bytes of the tokens that end any string, or have other escapes; see `write_text`.
    """

    base: Base
    text: NDArray[np.uint8]
    start: NDArray[np.int32]
    token: NDArray[np.int32]

    @staticmethod
    def of(vocabulary: Vocabulary, string: NDArray[np.uint32], ending: NDArray[np.int32]) -> _Total:
        """Return this by what any string allows, and the tokens that end one.

        Where too many tokens have other escapes, there are no tokens: nobody reads all of them for a mask.
        """
        escaped = vocabulary.characters[0] >> np.uint64(BYTE_GROUP[0x5C]) & np.uint64(1) != 0
        within = np.unpackbits(string.view(np.uint8), count=vocabulary.size, bitorder="little") != 0
        other = [t for t in np.flatnonzero(escaped & within).tolist() if not _PLAINLY.fullmatch(vocabulary.tokens[t])]
        mask = string.copy()
        for t in other:
            mask[t >> 5] &= ~np.uint32(1 << (t & 31))
        token = np.array([*other, *ending.tolist()] if len(other) <= MOST_NOTED else [], np.int32)
        texts = [vocabulary.tokens[t] for t in token.tolist()]
        start = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        text = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
        base = Base.of(mask, sheets=MaskBuffers(mask.size))
        return _Total(base._replace(nbytes=0), text, start, token)  # all tables have it


class StringMaskCache:
    """What all tables of a library know of its vocabulary, and of what strings may have in them.

    string: the base of any string.
    """

    def __init__(self, vocabulary: Vocabulary, string: Base) -> None:
        _loops()
        self._characters = vocabulary.characters
        words = -(-vocabulary.size // 32)
        self.sheets = MaskBuffers(words)
        self.nothing = Base.of(np.empty(0, np.uint32), sheets=MaskBuffers(words))
        self._free: dict[tuple[int, int], Base] = {}
        self._by_length = vocabulary.by_length
        self._texts: dict[tuple[int, int], Base] = {}  # by the number of the content, and the state in it
        # the numbers of contents, by what is soon looked at
        self._contents: dict[tuple[Any, ...], list[tuple[Content, int]]] = {}
        self._bytes = 0
        self._next = itertools.count()
        mask, token, symbol, _, _ = string.held
        # what is left of each token behind the end of a string, where something reads that, else -1
        symbol_of = np.full(vocabulary.size, -1, np.int32)
        symbol_of[token] = symbol
        quoted = int(np.count_nonzero(self._characters[0] >> np.uint64(BYTE_GROUP[0x22]) & np.uint64(1)))
        # see `write_text`: room for a mask and for tokens that end a string; and numbers of what it writes, at most
        self.room = words + 2 * quoted + 2
        self.most = OF_BASE + (3 * token.size + 1) // 2 + max((words + 1) // 2, MOST_NOTED)
        total = _Total.of(vocabulary, mask, token)
        self.total = total.base
        places = [address_of(each) for each in (total.base.held[0], *total[1:])]
        numbers = np.array([address_of(symbol_of), symbol_of.size, quoted, *places, total.token.size], np.int64)
        self._held = symbol_of, total, numbers
        self.at = address_of(numbers)  # of OF_KNOWN numbers, for `write_text`

    def free(self, groups: int, most: int) -> Base:
        """Return the tokens of at most so many bytes, or -most characters, that are all of some groups."""
        found = self._free.get((groups, most))
        if found is None:
            if len(self._free) >= _MOST_MASKS:
                self._free.clear()
            token, up_to = self._by_length[most < 0]
            short = up_to[min(abs(most), len(up_to) - 1)]
            if short < token.size:
                every = self.free(groups, ALL_BYTES).held[0]
                mask = np.empty(every.size, np.uint32)
                _loops().write_short(every, token, short, mask)
                found = Base.of(mask, sheets=MaskBuffers(mask.size))
            elif most != ALL_BYTES:
                found = self.free(groups, ALL_BYTES)
            else:
                mask = np.empty(-(-token.size // 32), np.uint32)
                _loops().write_free(self._characters[0], groups, mask)
                found = Base.of(mask, sheets=MaskBuffers(mask.size))
            self._free[groups, most] = found
        return found

    def number(self, content: Content) -> int:
        """Return a number that is the same for contents that are, from whichever schema."""
        transition = content.transition.reshape(-1)
        some = transition[:: 1 + len(transition) // _LOOKED_AT].tobytes()
        same = content.transition.shape, content.free, content.most, content.class_of.tobytes(), some
        for other, number in self._contents.get(same, ()):
            both = [(getattr(content, name), getattr(other, name)) for name in ("transition", "label", "needed")]
            # often they are the same arrays; and bytes are compared sooner than numbers
            if all(a is b or (a.shape == b.shape and a.tobytes() == b.tobytes()) for a, b in both):
                return number
        number = next(self._next)
        self._count(transition.nbytes + content.label.nbytes + content.needed.nbytes)
        self._contents.setdefault(same, []).append((content, number))
        return number

    def text(self, content: int, state: int) -> Base | None:
        """Return what a state of a content allows, if that is known."""
        return self._texts.get((content, state))

    def keep(self, content: int, state: int, base: Base) -> None:
        """Keep what a state of a content allows."""
        self._count(base.nbytes)
        self._texts[content, state] = base

    def _count(self, more: int) -> None:
        """Count what is kept, and let all of it go where that is too much."""
        self._bytes += more
        if self._bytes > _MOST_KEPT:
            self._texts.clear()
            self._contents.clear()
            self._bytes = more


class Counted(NamedTuple):
    """Strings of so many characters: the rows of a string (Q, 256), counted from 0.

    base(q, left): what stays in the string from state q over at most `left` characters, None for any number, and what
    ends it.
    """

    rows: NDArray[np.int32]
    most: int  # characters that one token takes
    base: Callable[[int, int | None], Base]


_Limits = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]


class LazyPushdown:
    """What a lazy table is before it is worked out; `runtime.matcher` reads it.

    bases: what is known of a library's states, by state. remainders: what may be left of a token where a fragment ends
    in its middle, by symbol. body: the state of any string. counted: what strings of bounded length take. limits: finds
    how many frames each state and each site needs, 0 beyond, and which states surely. known: what all tables of the
    library know. bound: frames below the depth where that begins to matter, None where it never does.
    """

    def __init__(
        self,
        machine: PushdownMachine,
        vocabulary: Vocabulary,
        bases: dict[int, Base],
        remainders: Vocabulary,
        body: int,
        counted: Counted,
        limits: Callable[[], _Limits],
        known: StringMaskCache,
        depth: int,
        bound: int | None,
        meter: Meter,
        release: Callable[[], None],
    ) -> None:
        self._release, self._loops = release, _loops()
        self.machine, self.vocabulary, self.bases = machine, vocabulary, bases
        self.depth, self.meter = depth, meter
        self.strings = STRINGS
        self.most_frames_required = -MOST_DEPTH if bound is None else bound
        self.counted, self._find_limits = counted, limits
        self._lock = threading.RLock()
        self._needs: _Limits | None = None
        self._begun = machine.size
        self._over: BudgetError | None = None  # which limit of the budget was reached: nothing more is written then
        self._torn = False  # whether what was being written, or taken, is half there
        self._strings = np.zeros((3, 0), np.int64)
        self._arrays: tuple[NDArray[Any], ...] = (np.zeros(0),) * 8
        self._header = np.zeros(HEADER, np.int64)
        trie, ends = vocabulary.trie, remainders.trie
        below = ends.branches
        self._kept: list[NDArray[Any]] = [
            *trie.branches, trie.token, below.byte, below.node, ends.token, trie.byte, trie.depth, trie.skip,
            trie.content, trie.token_start,
        ]  # fmt: skip
        places = (
            AT_BYTE, AT_CHARACTERS, AT_NODE, AT_TOKEN, AT_END_BYTE, AT_END_NODE, AT_SYMBOL, AT_ORDER, AT_DEPTHS,
            AT_SKIP, AT_CONTENT, AT_FIRST_TOKEN,
        )  # fmt: skip
        for at, array in zip(places, self._kept, strict=True):
            put(self._header, at, array)
        self._levels = self._header[AT_LEVELS] = max(trie.longest, ends.longest) + 2
        self._header[AT_SYMBOLS] = remainders.size
        self._header[AT_NOTHING] = next((y for y, text in enumerate(remainders.tokens) if not text), -1)
        self._header[AT_DEPTH], self._header[AT_BODY] = depth, body
        self._header[AT_WORDS] = -(-vocabulary.size // 32)
        self._has_eos = vocabulary.eos is not None
        self._header[AT_EOS] = -1 if vocabulary.eos is None else vocabulary.eos
        self._scratch_at = 0
        pushed = np.zeros(max(1, trie.longest), np.int32)  # by one token
        put(self._header, AT_PUSHED, pushed)
        self._pushed = pushed.data
        self._texts = np.zeros(OF_TEXT, np.int64)
        self._num_texts = 0
        self._longest = trie.longest
        # of each text its first state, the states of its content, whether characters are counted, and after how many at
        # most all tokens are still within the bound: below 0 where some states are dead, too
        self._slack: list[tuple[int, int, bool, int]] = []
        self._first_texts: list[int] = []  # and the first states of texts, of counted strings, and of uses of tries
        self._first_strings: list[int] = []
        self._first_uses: list[int] = []
        self._known = known
        self._free_of: dict[int, NDArray[np.int16]] = {}  # which of `_free_sets` each state of some contents reads
        self._free_sets = np.zeros(2 * MOST_SETS, np.int64)  # groups of characters, and those wanted beside
        put(self._header, AT_SETS, self._free_sets)
        self._header[AT_SETS + 1] = 0
        put(self._header, AT_SHARES, vocabulary.shares)
        self._numbers: dict[int, int] = {}  # of texts, those by which their contents are known
        self._noted_bases: list[Base] = []  # from which masks differ in few words
        self._number_of_base: dict[int, int] = {}  # by its address: its place among these
        self._own_bytes = 0  # of those that only this table has
        self._body = body
        self._take()
        rows = self._arrays[0].reshape(-1)
        self._header[AT_BODY_GROUPS] = np.uint64(groups_read(self._header, rows, body, PLAIN)).astype(np.int64)

    def __del__(self) -> None:
        # thousands of objects, which would wait for the garbage collector, and make it walk all those of a process
        self._release()

    @property
    def is_large(self) -> bool:
        """Whether texts have spent an eighth of the states that the budget left them, or all that there is to spend."""
        left = self.meter.budget.states - self._begun
        return self._over is not None or 8 * (self.machine.size - self._begun) > left

    def _take(self) -> None:
        """Take what the machine has now."""
        m = self.machine
        self.meter.check(states=m.size, bytes=m.nbytes, doing="reading a constraint as it is")
        m.flush()
        arrays = m.arrays()
        for at, array, before in zip(range(AT_ROWS, AT_USES + 2, 2), arrays, self._arrays, strict=True):
            if array is not before:
                put(self._header, at, array)
        self._twins, self._keys = arrays[5].data, arrays[6].data
        self._arrays = arrays
        self._header[AT_SITE_LEAF + 1], self._header[AT_USES + 1] = m.num_sites, len(m.uses)
        self._first_uses.extend(use[USE_FIRST] for use in m.uses[len(self._first_uses) :])
        if len(m.strings) > self._strings.shape[1]:
            self._first_strings = [first for first, _, _ in m.strings]
            self._strings = np.array(
                [(first, low, -1 if high is None else high) for first, low, high in m.strings], np.int64
            ).T.copy()
            put(self._header, AT_STRING_ROWS, self.counted.rows)
            put(self._header, AT_STRINGS, self._strings)
        if len(m.texts) > self._num_texts:
            if OF_TEXT * len(m.texts) > self._texts.size:
                texts = np.zeros(2 * OF_TEXT * len(m.texts), np.int64)
                texts[: self._texts.size] = self._texts
                self._texts = texts
            for n in range(self._num_texts, len(m.texts)):
                text = m.texts[n]
                where = [address_of(each) for each in (text.class_of, text.transition, text.label)]
                needed, slack = 0, 0
                if text.needed.size:
                    needed = address_of(text.needed)
                    slack = text.most - self._longest - int(text.needed.max())
                said = text.first, *where, *text.transition.shape, text.free, text.most, needed, self._read_by(text)
                self._texts[OF_TEXT * n : OF_TEXT * (n + 1)] = said
                self._first_texts.append(text.first)
                self._slack.append((text.first, len(text.label), text.most >= 0, slack))
            self._num_texts = len(m.texts)
            put(self._header, AT_TEXTS, self._texts)
            self._header[AT_TEXTS + 1] = self._num_texts

    def _read_by(self, text: Content) -> int:
        """Return the address of what is known of what the states of a text read freely, 0 if it is not kept."""
        if text.most >= 0:
            return 0
        dead = text.needed.size and (text.needed < 0).any()
        key = address_of(text.needed if dead else text.transition)
        known = self._free_of.get(key)
        if known is None:
            known = self._free_of[key] = np.full(len(text.label), -1, np.int16)
        return address_of(known)

    def _grow(self, write: Callable[[], T]) -> T:
        """Return what `write` does, which adds to the machine, and take what the machine has then.

        Where the budget ends half-way, what had been written before stays as it was, and can be read.
        """
        if self._over:
            raise copy.copy(self._over)
        self._torn = True
        try:
            found = write()
            self._take()
        except BudgetError as error:
            self._over, self._torn = copy.copy(error), False
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

    def _reach(self, state: int, most: int = _STATES_AT_ONCE) -> None:
        """Write the row of a state that was left for later, and of others that texts may come to, about so many."""
        room = max(0, self.meter.budget.states - self.machine.size) // 8
        self._grow(lambda: self.machine.reach(state, min(room, most)))

    @property
    def num_states(self) -> int:
        """States that have been written so far, a library's among them."""
        return int(self.machine.size)

    @property
    def nbytes(self) -> int:
        """Bytes of what has been written so far, a library's rows among it.

        What a state of its own is made from, formulas and steps, takes about as much as its row.
        """
        contents = (text.transition.nbytes + text.needed.nbytes for text in self.machine.texts)
        rows, *others, twins, keys, uses = self._arrays  # whose room behind what is there takes no memory yet
        written = (2 * self.machine.size - self.machine.first) * (rows[0].nbytes + twins[:, 0].nbytes)
        others_bytes = sum(array.nbytes for array in others) + sum(contents) + self._own_bytes
        return int(written) + keys.nbytes + uses.nbytes + others_bytes

    def is_leaf(self, site: int) -> bool:
        """Return whether a site is pushed for a fragment that makes no calls."""
        return bool(self._arrays[4][site])

    def accepts(self, node: int) -> bool:
        """Return whether a text may end in a state if nothing is open."""
        return node in self.machine.accepting

    def _limits(self) -> _Limits:
        """Return how many frames each state and each site needs, once somebody is about to run out of them."""
        if self._needs is None:
            needs = self._grow(self._find_limits)  # which writes all that there is
            places = []
            for text in self.machine.texts if needs[0].size else ():
                if text.label.max() == 0:  # nothing to tell apart
                    places.append((0, 0))
                    continue
                ahead: NDArray[np.uint64] = labels_ahead(text.transition, text.label)
                self.meter.check(bytes=PHASES * ahead.nbytes, doing="reading a constraint as it is")
                ahead = labels_in_escapes(text.class_of, text.transition, ahead)
                self._kept.append(ahead)
                self._own_bytes += ahead.nbytes
                places.append((address_of(ahead), ahead.shape[2]))
            self._kept.append(np.array(places, np.int64))
            arrays = *needs, self._kept[-1]
            for at, array in zip((AT_NEED_STATE, AT_NEED_SITE, AT_SURELY, AT_AHEAD), arrays, strict=True):
                put(self._header, at, array)
            self._needs = needs
        return self._needs

    def need(self, node: int) -> int:
        """Return how many frames it takes at least to leave a state that has a row."""
        with self._lock:
            return _at(self._limits()[0], node)

    def mask(self, node: int, sites: bytes, frames: int) -> tuple[NDArray[np.uint32], int, bool | bytes]:
        """Return the tokens that a configuration allows, EOS included, (ceil(V / 32),) read-only.

        sites: of the frames that are open, int32, the outermost first. frames: how many of these are no leaves, where
        they may run out, else -1. Returns too how many sites the mask depends on from the top, one more if it depends
        on there being no more; and what `restored` makes the mask of again, the words in which it differs from a base,
        or if these are too many, whether it was much work. It is written anew once nobody holds it.
        """
        known = self._known
        with self._lock:
            if self._torn:
                self._check()
            if frames >= 0:
                self._limits()
            may_end, at_once = node in self.machine.accepting, _STATES_AT_ONCE
            ends = may_end and self._has_eos and not sites
            while True:
                site, twin, walk, least, room = -1, -1, False, 0, 0
                base = self.bases.get(node)
                if base is None:
                    if node >= TEXTS:  # where labels may need different numbers of frames, it is walked
                        base = None if frames >= 0 and self._forks(node) else self._text(node)
                    elif node >= STRINGS:
                        base, least, room = self._string(node)
                    elif node >= KEYS:
                        first, _, trie, words = self._use(node)
                        like = DEAD if words >= 0 else self._keys[node - first + trie, KEY_LIKE]
                        if like == self._body and (
                            frames < 0 or self._has_room(int.from_bytes(sites[-4:], byteorder), frames)
                        ):
                            twin = like
                    elif node >= self.machine.first:
                        twin, site = self._twins[0, node], self._twins[1, node]
                    if base is None:
                        walk, base = True, known.nothing
                        if twin >= 0 and not (site >= 0 and frames >= 0 and not self._has_room(site, frames)):
                            base = self.bases[twin]
                scratch = _scratch(self._levels)  # held for as long as its address is used
                if scratch[1] != self._scratch_at:
                    self._scratch_at = self._header[AT_SCRATCH] = scratch[1]
                wanted, freely = 0, UNKNOWN if walk and twin < 0 and frames < 0 and node < KEYS else 0
                while True:
                    sheets, whole = base.sheets, False
                    if sheets is None:
                        sheets, whole = known.sheets, True
                    sheet = sheets.take()
                    state, looked, work, differ = self._loops.write_mask(
                        self._header, node, walk, twin, site, base.at, least, room, frames, sites, sheet.at, whole,
                        ends, wanted, freely,
                    )  # fmt: skip
                    if state != ASKS:
                        break
                    sheets.give(sheet)
                    groups, wanted, freely = self._header[AT_GROUPS:].tolist()
                    base = known.free(groups, freely)  # held, as another table may make room meanwhile
                mask = sheet.shown  # held before anybody else may take the sheet
                sheets.give(sheet)
                if state == WRITTEN:
                    break
                del mask
                self._reach(state, at_once)
                at_once = _FEW_AT_ONCE  # who waits has waited for some already
            if may_end and not looked:
                looked = 1
            if differ >= 0:
                number = self._number_of_base.get(base.at)
                if number is None and len(self._noted_bases) < _MOST_BASES:
                    number = self._note(base, walk or node < TEXTS)
                if number is not None:
                    scratch[3][0] = number
                    return mask, looked, scratch[3][: 2 + 2 * differ].tobytes()
        return mask, looked, work > _ENOUGH

    def _note(self, base: Base, shared: bool) -> int:
        """Return the number of a base from which masks differ in few words. shared: whether others have it anyway."""
        self._noted_bases.append(base)
        if not shared:
            self._own_bytes += base.nbytes
        number = self._number_of_base[base.at] = len(self._noted_bases) - 1
        return number

    def restored(self, noted: bytes) -> NDArray[np.uint32]:
        """Return the mask of which this was noted, read-only; it is written anew once nobody holds it."""
        base = self._noted_bases[int.from_bytes(noted[:4], byteorder)]
        sheets = base.sheets
        if sheets is None:
            sheets = self._known.sheets
        sheet = sheets.take()
        self._loops.restore(base.at, sheet.mask.size, base.sheets is None, sheet.at, noted)
        mask = sheet.shown  # held before anybody else may take the sheet
        sheets.give(sheet)
        return mask

    def alike(self, node: int) -> int:
        """Return the state that stands for all that allow the same as a state within a string, whatever the stack.

        Where the characters that were read are counted, they matter only when a token may come to the bound.
        """
        if node < TEXTS:
            first, low, high = self.machine.strings[bisect_right(self._first_strings, node) - 1]
            k, q = divmod(node - first, len(self.counted.rows))
            if k < low or (high is not None and high - k < self._longest):
                return node
            return first + low * len(self.counted.rows) + q
        first, states, counts, slack = self._slack[bisect_right(self._first_texts, node) - 1]
        k, state = divmod(node - first, PHASES * states)
        return first + state if counts and k <= slack else node

    def _text(self, node: int) -> Base | None:
        """Return what a state of a text allows, None where that is soon walked: it reads little, or is in an escape."""
        n = bisect_right(self._first_texts, node) - 1
        known, first = self._known, self._slack[n][0]
        number = self._numbers.get(n)
        if number is None:
            if self._loops.reads_little(self._header, node):
                return None
            number = self._numbers[n] = known.number(self.machine.texts[n])
        base = known.text(number, node - first)
        if base is None:
            base = self._base(node)
            if base is not None:
                known.keep(number, node - first, base)
        return base

    def _base(self, node: int) -> Base | None:
        """Return what a state of a text allows, None where little of that is read freely."""
        known = self._known
        slab = _slab(known.most)
        scratch = _scratch(self._levels)  # held for as long as its address is used
        self._scratch_at = self._header[AT_SCRATCH] = scratch[1]
        free, at, room = known.total, 0, _room(known.room)
        while True:
            state, used, words = self._loops.write_text(self._header, node, at, known.at, room, slab.at)
            if state == WRITTEN:
                break
            if state == LITTLE:
                return None
            groups, _, freely = self._header[AT_GROUPS:].tolist()
            free = known.free(groups, freely)
            at = free.at
        if not used:
            return free
        return Base(slab.take(used), free.sheets if words >= 0 else None, 8 * used, (slab.numbers, free))

    def _forks(self, node: int) -> bool:
        """Return whether a text may end with several labels, by one of its states."""
        return bool(self.machine.texts[bisect_right(self._first_texts, node) - 1].label.max() > 0)

    def _use(self, node: int) -> tuple[int, int, int, int]:
        """Return of which use of which trie a state is."""
        return self.machine.uses[bisect_right(self._first_uses, node) - 1]

    def _has_room(self, site: int, frames: int) -> bool:
        """Return whether a site may be pushed."""
        return frames + max(int(not self.is_leaf(site)), _at(self._limits()[1], site)) <= self.depth

    def _string(self, node: int) -> tuple[Base, int, int]:
        """Return what a state of a counted string allows, and how many characters an exit must and may read."""
        first, low, high = self.machine.strings[bisect_right(self._first_strings, node) - 1]
        k, q = divmod(node - first, len(self.counted.rows))
        room = MOST_DEPTH if high is None else high - k
        return self.counted.base(q, room if room < self.counted.most else None), low - k, room

    def advance(self, node: int, stack: Any, token: int, push: Callable[[Any, int], Any]) -> tuple[int, Any] | None:
        """Return the state and stack that a token leads to, None if it is not allowed.

        stack: has `site` on top of the stack `below`, None at the bottom, `height` of them; all in `packed`, once
        `sites()` was asked for; and some in `top`. push(stack, site) returns it with one more.
        """
        text = self.vocabulary.tokens[token]
        if not text:
            return None
        sites = stack.packed
        if sites is None:
            sites = stack.top(_SITES_AT_ONCE)
        read_on = self._loops.read
        with self._lock:
            if self._torn:
                self._check()
            while True:
                state, popped, pushed = read_on(self._header, node, text, sites)
                if state >= 0:
                    break
                if state == ASKS:
                    self._reach(popped)
                elif state == MORE and len(sites) < 4 * stack.height:
                    sites = stack.top(len(sites))  # four times as many
                else:
                    return None
            while popped:
                stack = stack.below
                popped -= 1
            for k in range(pushed):
                stack = push(stack, self._pushed[k])
        return state, stack

    def fits(self, node: int, stack: Any) -> bool:
        """Return whether there is room to leave all that is open."""
        with self._lock:
            need_state, need_site, _ = self._limits()
            if KEYS <= node < STRINGS or node >= TEXTS:
                if stack.frames + self._loops.needed_behind(self._header, node, stack.site) > self.depth:
                    return False
                if node >= TEXTS or self._use(node)[USE_SITE] < 0:  # what may still come says what the site needs
                    stack = stack.below
            elif stack.frames + _at(need_state, node) > self.depth:
                return False
            while stack.below is not None:
                if stack.below.frames + _at(need_site, stack.site) > self.depth:
                    return False
                stack = stack.below
            return True


def _at(needed: NDArray[np.int32], which: int) -> int:
    return int(needed[which]) if which < needed.size else 0


_kept = threading.local()


_Scratch = tuple[int, int, NDArray[np.int64], memoryview]


def _scratch(levels: int) -> _Scratch:
    """Return for how many levels, the address of, and the room for a walk in this thread, kept unless it is large.

    Before that address is room for the words in which a mask differs from its base, and before these for a number of
    that: the last of what is returned.
    """
    found: _Scratch | None = getattr(_kept, "scratch", None)
    if found is None or found[0] < levels:
        before = 1 + MOST_NOTED
        room = np.empty(before + 2 * room_of(levels) + 3 * MOST_PENDING, np.int64)
        found = levels, address_of(room) + 8 * before, room, room[:before].view(np.uint32).data
        if levels <= _MOST_LEVELS:
            _kept.scratch = found
    return found


def _room(size: int) -> int:
    """Return the address of room for so many numbers of 32 bits, kept in this thread."""
    found: tuple[int, int, Any] | None = getattr(_kept, "room", None)
    if found is None or found[1] < size:
        array = np.empty(size, np.uint32)
        found = _kept.room = address_of(array), size, array
    return found[0]


class _Slab:
    """Room for numbers that are written one after another, and stay: so many are left, from `at` on."""

    __slots__ = ("at", "left", "numbers")

    def __init__(self, size: int) -> None:
        self.numbers = np.empty(size, np.int64)
        self.at, self.left = address_of(self.numbers), size

    def take(self, used: int) -> int:
        """Return the address of numbers that were written."""
        at = self.at
        self.at, self.left = at + 8 * used, self.left - used
        return at


def _slab(least: int) -> _Slab:
    """Return the slab of this thread, with room for so many numbers."""
    found: _Slab | None = getattr(_kept, "slab", None)
    if found is None or found.left < least:
        found = _kept.slab = _Slab(max(least, _OF_SLAB))
    return found


_NONE = np.empty(0, np.int32)


class _Loops(NamedTuple):
    """What is called for a token or for a mask, without the arguments being looked at: see `bundle.entry_of`."""

    write_mask: Any
    write_text: Any
    reads_little: Any
    restore: Any
    read: Any
    addresses: Any
    write_free: Any
    write_short: Any
    needed_behind: Any


@cache
def _loops() -> _Loops:
    """Load the loops, which takes 5 to 30 ms for each, before somebody waits for a mask."""
    header, words, numbers = (np.empty(0, kind) for kind in (np.int64, np.uint32, np.int32))
    groups = np.empty(0, np.uint64)
    groups.flags.writeable = False
    return _Loops(
        entry_of(write_mask, (header, 0, True, 0, 0, 0, 0, 0, 0, b"", 0, True, True, 0, 0)),
        entry_of(write_text, (header, 0, 0, 0, 0, 0)),
        entry_of(reads_little, (header, 0)),
        entry_of(restore, (0, 0, True, 0, b"")),
        entry_of(read, (header, 0, b"", b"")),
        entry_of(addresses, (words, numbers, numbers, numbers, header)),
        entry_of(write_free, (groups, np.uint64(0), words)),
        entry_of(write_short, (words, numbers, 0, words)),
        entry_of(needed_behind, (header, 0, 0)),
    )
