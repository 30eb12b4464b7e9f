"""Masks of strings that all lazy machines of one library share."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.string_content import Content
from ...kernels.mask_buffers import MOST_NOTED, MaskBuffers
from ...kernels.pointers import address_of
from ...vocabulary.characters import BYTE_GROUP
from ...vocabulary.vocabulary import Vocabulary
from .bases import Base
from .entry_points import entry_points
from .header import ALL_BYTES, OF_BASE

# strings, or beginnings of strings, whose only escapes are those that a character needs
_NEEDED_ESCAPES = re.compile(
    rb"""(?:[^\\]|\\(?:["\\bfnrt]|u00(?:[01][0-9a-fA-F]|22|5[cC])))*(?:\\(?:u(?:0(?:0[0125]?)?)?)?)?""", re.DOTALL
)

_MOST_FREE_MASKS = 256
MOST_KEPT = 16 << 20  # bytes of what is kept of contents
_LOOKED_AT = 512  # transitions of a content that are compared before all of them


class _AnyCharacters(NamedTuple):
    """What states allow that read any characters: the base without the tokens below, and these tokens.

    text, start, token: the tokens that end any string, or have escapes that no character needs, and their bytes. A
    kernel reads each of them; see `write_content`.
    """

    base: Base
    text: NDArray[np.uint8]
    start: NDArray[np.int32]
    token: NDArray[np.int32]

    @staticmethod
    def of(vocabulary: Vocabulary, string: NDArray[np.uint32], ending: NDArray[np.int32]) -> _AnyCharacters:
        """Return this from the mask of any string and the tokens that end one.

        There are no tokens if too many have other escapes: a kernel would take long to read all of them for a mask.
        """
        escaped = vocabulary.characters[0] >> np.uint64(BYTE_GROUP[0x5C]) & np.uint64(1) != 0
        within = np.unpackbits(string.view(np.uint8), count=vocabulary.size, bitorder="little") != 0
        other = [
            t for t in np.flatnonzero(escaped & within).tolist() if not _NEEDED_ESCAPES.fullmatch(vocabulary.tokens[t])
        ]
        mask = string.copy()
        for t in other:
            mask[t >> 5] &= ~np.uint32(1 << (t & 31))
        token = np.array([*other, *ending.tolist()] if len(other) <= MOST_NOTED else [], np.int32)
        texts = [vocabulary.tokens[t] for t in token.tolist()]
        start = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        text = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
        base = Base.of(mask, buffers=MaskBuffers(mask.size))
        return _AnyCharacters(base._replace(nbytes=0), text, start, token)  # all tables share it


class StringMaskCache:
    """Masks of what states read freely, and bases of strings by their content, kept for all schemas of a library.

    string: the base of any string.
    """

    def __init__(self, vocabulary: Vocabulary, string: Base) -> None:
        entry_points()
        self._characters = vocabulary.characters
        words = -(-vocabulary.size // 32)
        self.buffers = MaskBuffers(words)
        self.nothing = Base.of(np.empty(0, np.uint32), buffers=MaskBuffers(words))
        self._free: dict[tuple[int, int], Base] = {}
        self._by_length = vocabulary.by_length
        self._content_bases: dict[tuple[int, int], Base] = {}  # by the number of the content, and the state in it
        # the numbers of contents, by a part of them that is quick to compare
        self._contents: dict[tuple[Any, ...], list[tuple[Content, int]]] = {}
        self._bytes = 0
        self._next = itertools.count()
        mask, token, symbol, _, _ = string.held
        # the symbol of what each token has left behind the end of a string, -1 if nothing reads that
        symbol_of = np.full(vocabulary.size, -1, np.int32)
        symbol_of[token] = symbol
        quoted = int(np.count_nonzero(self._characters[0] >> np.uint64(BYTE_GROUP[0x22]) & np.uint64(1)))
        # for `write_content`: numbers of 32 bits for a mask and the tokens that end a string; most numbers of a base
        self.buffer_size = words + 2 * quoted + 2
        self.most_numbers = OF_BASE + (3 * token.size + 1) // 2 + max((words + 1) // 2, MOST_NOTED)
        total = _AnyCharacters.of(vocabulary, mask, token)
        self.total = total.base
        places = [address_of(each) for each in (total.base.held[0], *total[1:])]
        numbers = np.array([address_of(symbol_of), symbol_of.size, quoted, *places, total.token.size], np.int64)
        self._held = symbol_of, total, numbers
        self.at = address_of(numbers)  # of OF_CACHE numbers, for `write_content`

    def free(self, groups: int, most: int) -> Base:
        """Return the base of tokens whose characters are all of some groups; most: bytes, or minus the characters."""
        found = self._free.get((groups, most))
        if found is None:
            if len(self._free) >= _MOST_FREE_MASKS:
                self._free.clear()
            token, up_to = self._by_length[most < 0]
            short = up_to[min(abs(most), len(up_to) - 1)]
            if short < token.size:
                every = self.free(groups, ALL_BYTES).held[0]
                mask = np.empty(every.size, np.uint32)
                entry_points().write_short(every, token, short, mask)
                found = Base.of(mask, buffers=MaskBuffers(mask.size))
            elif most != ALL_BYTES:
                found = self.free(groups, ALL_BYTES)
            else:
                mask = np.empty(-(-token.size // 32), np.uint32)
                entry_points().write_free(self._characters[0], groups, mask)
                found = Base.of(mask, buffers=MaskBuffers(mask.size))
            self._free[groups, most] = found
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept of contents."""
        return self._bytes

    def number(self, content: Content) -> int:
        """Return a number that equal contents share, whichever schemas they are from."""
        transition = content.transition.reshape(-1)
        some = transition[:: 1 + len(transition) // _LOOKED_AT].tobytes()
        key = content.transition.shape, content.free, content.most, content.class_of.tobytes(), some
        for other, number in self._contents.get(key, ()):
            both = [(getattr(content, name), getattr(other, name)) for name in ("transition", "label", "needed")]
            # often they are the same arrays; and bytes are faster to compare than numbers
            if all(a is b or (a.shape == b.shape and a.tobytes() == b.tobytes()) for a, b in both):
                return number
        number = next(self._next)
        self._count(transition.nbytes + content.label.nbytes + content.needed.nbytes)
        self._contents.setdefault(key, []).append((content, number))
        return number

    def content_base(self, content: int, state: int) -> Base | None:
        """Return the base of a state of a content, None if it is not kept."""
        return self._content_bases.get((content, state))

    def keep(self, content: int, state: int, base: Base) -> None:
        """Keep the base of a state of a content."""
        self._count(base.nbytes)
        self._content_bases[content, state] = base

    def _count(self, more: int) -> None:
        """Count bytes that are kept, and drop everything when they are too many."""
        self._bytes += more
        if self._bytes > MOST_KEPT:
            self.clear()
            self._bytes = more

    def clear(self) -> None:
        """Drop what is kept of contents."""
        self._content_bases.clear()
        self._contents.clear()
        self._bytes = 0


class Counted(NamedTuple):
    """What counted strings of a library are read with.

    base(q, left) returns the base of state q of any string: the tokens that stay in the string over at most `left`
    characters, None for any number, and those that end it.
    """

    rows: NDArray[np.int32]  # (Q, 256) of any string, its states counted from 0
    most: int  # characters that one token takes
    base: Callable[[int, int | None], Base]
