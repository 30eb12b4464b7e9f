"""Walks of a text through a table, token by token: the tokens allowed at each place, and the byte that is refused.

The verdict is about the text, not about its split into tokens. A walk takes the tokenizer's own tokens as long as the
table allows them. If the table refuses one, the walk tries other tokens, and returns to the tokenizer's as soon as both
splits meet. If no split leads on, the text is wrong at the furthest byte that any of them reaches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..lazy.lazy_table import Compiled
from ..runtime.host.matcher import Matcher
from ..vocabulary.vocabulary import Vocabulary
from .refusals import Refused

FORCED, MAY_END, RESPLIT = 1, 2, 4
"""Marks of a token: no other text could follow; the text could end before it; the tokenizer splits otherwise."""

SECONDS = 5.0  # of processor time for one walk
AT_ONCE, _REST = 0.001, 0.004  # seconds of work, and of rest after it while other threads are busy
_FORCED_BYTES = 80  # most forced bytes to show


class Pace:
    """The time that a walk may take, and how long it works without a rest while other threads are busy.

    The engine's thread releases the interpreter many times a step, and then waits up to 5 ms for a busy thread to give
    it back. Two walks without rests made answers 45 times slower.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy, self._began, self._resumed = busy, time.thread_time(), time.perf_counter()

    def check(self) -> None:
        """Rest if it is time to. Raises Refused once all of the time is used."""
        if time.thread_time() - self._began > SECONDS:
            raise Refused(
                f"the walk of this text took more than {SECONDS:g} s: take a shorter text", param="text",
                code="text_too_expensive",
            )  # fmt: skip
        if time.perf_counter() - self._resumed > AT_ONCE:
            if self._busy():
                time.sleep(_REST)
            self._resumed = time.perf_counter()


class Step(NamedTuple):
    """An allowed token, and the place before it."""

    token: int
    end: int  # byte of the text at which it ends
    allowed: int  # number of tokens allowed at the place, without EOS
    marks: int  # of FORCED, MAY_END and RESPLIT


@dataclass
class Walk:
    """The walk of a text up to its end or to the refused byte."""

    steps: list[Step]
    matcher: Matcher  # after the steps
    wrong: int | None  # the refused byte
    token: int | None  # index of the tokenizer's token with that byte
    rest: list[tuple[int, int]] = field(default_factory=list)  # (token, end) from the refusal on; -1: part of a token


class Place(NamedTuple):
    """The tokens that may follow at a place."""

    total: int  # number of allowed tokens, without EOS
    ends: bool  # whether the text may end here
    forced: bytes  # every continuation begins with these
    first: list[tuple[int, int]]  # ranges of the first bytes of allowed tokens
    matching: int  # number of allowed tokens that pass the filter
    tokens: list[int]  # some of these


class Walker:
    """Walks of one vocabulary. Any thread may call any method with matchers of its own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._ids = {token: i for i, token in reversed(list(enumerate(vocabulary.tokens))) if token}
        self._byte_tokens = [self._ids.get(bytes([byte]), -1) for byte in range(256)]
        self._longest = max(map(len, self._ids))
        first = np.full(vocabulary.size, -1, np.int16)
        some = np.diff(vocabulary.token_offset) > 0
        first[some] = vocabulary.token_bytes[vocabulary.token_offset[:-1][some]]
        self._first = first

    @cached_property
    def _beginning(self) -> NDArray[np.uint32]:
        """Masks of the tokens that begin with each byte: (256, words)."""
        words = -(-self.vocabulary.size // 32)
        out = np.zeros((256, words), np.uint32)
        for byte in range(256):
            out[byte] = _packed(self._first == byte, words)
        return out

    @cached_property
    def _texts(self) -> NDArray[np.bool_]:
        """Which tokens are printable text."""
        return np.fromiter(map(_is_text, self.vocabulary.tokens), np.bool_, self.vocabulary.size)

    # --------------------------------------------------------------------------------------------------- walking

    def walk(self, table: Compiled, raw: bytes, tokens: list[int], busy: Callable[[], bool] = lambda: False) -> Walk:
        """Return the walk of a text, which `tokens` spell. Raises Refused if it takes too long.

        busy: whether other threads want the interpreter; they then get most of the time.
        """
        pace = Pace(busy)
        matcher = Matcher(table, self.vocabulary)
        path, wrong = self._path(matcher, raw, tokens, pace)
        matcher.reset()
        steps, at = [], 0
        for token, resplit in path:
            pace.check()
            at += len(self.vocabulary.tokens[token])
            mask, ends = matcher.mask(), matcher.is_accepting
            marks = MAY_END * ends | RESPLIT * resplit
            if not ends and self._is_forced(matcher, mask, token):
                marks |= FORCED
            steps.append(Step(token, at, self._count(mask), marks))
            if not matcher.advance(token):  # `_path` has advanced by the same token
                raise AssertionError("a table has changed")
        if wrong is None:
            return Walk(steps, matcher, None, None)
        spans = _spans(self.vocabulary, tokens)
        which = next(n for n, (_, end) in enumerate(spans) if end > wrong)
        begins = spans[which - 1][1] if which else 0
        whole = tokens[which] if begins == at else -1
        return Walk(steps, matcher, wrong, which, [(whole, spans[which][1]), *spans[which + 1 :]])

    def place(
        self, table: Compiled, raw: bytes, tokens: list[int], step: int, busy: Callable[[], bool] = lambda: False
    ) -> Matcher:
        """Return a matcher after the first steps of a walk. Raises Refused if the walk has fewer steps."""
        pace = Pace(busy)
        matcher = Matcher(table, self.vocabulary)
        path, _ = self._path(matcher, raw, tokens, pace, step)
        if len(path) < step:
            raise Refused(f"the text takes {len(path)} steps until it ends or is refused, not {step}", param="step")
        matcher.rollback(len(path) - step)
        return matcher

    def _path(
        self, matcher: Matcher, raw: bytes, tokens: list[int], pace: Pace, most: int | None = None
    ) -> tuple[list[tuple[int, bool]], int | None]:
        """Advance a matcher through a text. Returns (token, whether it is of another split) and the wrong byte.

        most: number of steps to take, None for all.
        """
        path: list[tuple[int, bool]] = []
        spans = _spans(self.vocabulary, tokens)
        at = n = 0
        while n < len(spans) and (most is None or len(path) < most):
            pace.check()
            token, end = spans[n]
            if matcher.advance(token):
                path.append((token, False))
                at, n = end, n + 1
                continue
            meets = {end: n for n, (_, end) in enumerate(spans[n:], n + 1)}
            others, at, wrong = self._otherwise(matcher, raw, at, meets, pace)
            path += [(other, True) for other in others]
            if wrong is not None:
                return path, wrong
            n = meets[at]
        return path, None

    def _otherwise(
        self, matcher: Matcher, raw: bytes, at: int, meets: Iterable[int], pace: Pace
    ) -> tuple[list[int], int, int | None]:
        """Advance a matcher by other tokens than the tokenizer's, from a byte to the first one in `meets`.

        Returns the tokens, the byte at which they end, and None; or, if no tokens lead there, the tokens that come
        furthest, their end, and the wrong byte. The bytes before a place alone decide what may follow, so the search
        tries no place twice.
        """
        path: list[int] = []
        seen = {at}
        best, best_end, furthest = list(path), at, self._reach(matcher, raw, at)
        todo = [self._choices(raw, at)]
        while todo:
            for end, token in todo[-1]:
                pace.check()
                if end in seen or not matcher.advance(token):
                    continue
                seen.add(end)
                path.append(token)
                if end in meets:
                    return path, end, None
                reach = self._reach(matcher, raw, end)
                if (reach, end) > (furthest, best_end):
                    best, best_end, furthest = list(path), end, reach
                todo.append(self._choices(raw, end))
                break
            else:
                todo.pop()
                if path:
                    path.pop()
                    matcher.rollback(1)
        for token in best:
            matcher.advance(token)
        return best, best_end, min(furthest, len(raw) - 1)

    def _choices(self, raw: bytes, at: int) -> Iterator[tuple[int, int]]:
        """Yield (end, token) of the tokens that spell the text's next bytes, the longest first."""
        for end in range(min(len(raw), at + self._longest), at, -1):
            token = self._ids.get(raw[at:end])
            if token is not None:
                yield end, token

    def _reach(self, matcher: Matcher, raw: bytes, at: int) -> int:
        """Return the byte up to which some allowed token spells the text; `at` if every single byte is a token."""
        if self.vocabulary.spells_all_bytes or at >= len(raw):
            return at
        rest = raw[at : at + self._longest]
        most = 0
        for token in _members(matcher.mask() & self._beginning[rest[0]]).tolist():
            spelt = self.vocabulary.tokens[token]
            while len(spelt) > most and rest.startswith(spelt[: most + 1]):
                most += 1
        return at + most

    # ---------------------------------------------------------------------------------------------------- places

    def look(self, matcher: Matcher, wanted: bytes = b"", offset: int = 0, limit: int = 100) -> Place:
        """Return the tokens that may follow at a matcher's place; `tokens` has those with `wanted`, text first."""
        ids, ends = self._allowed(matcher), matcher.is_accepting
        first = np.unique(self._first[ids])
        shown = ids
        if wanted:
            tokens = self.vocabulary.tokens
            shown = np.array([i for i in ids.tolist() if wanted in tokens[i]], np.int64)
        readable = self._texts[shown]
        ordered = np.concatenate((shown[readable], shown[~readable]))
        forced = b"" if ends else self._forced(matcher)
        return Place(
            len(ids), ends, forced, _ranges(first.tolist()), len(shown), ordered[offset : offset + limit].tolist()
        )

    def _allowed(self, matcher: Matcher) -> NDArray[np.int64]:
        """Return the allowed tokens without ends."""
        ids = _members(matcher.mask())
        others: NDArray[np.int64] = ids[~np.isin(ids, self.vocabulary.ends)]
        return others

    def _count(self, mask: NDArray[np.uint32]) -> int:
        eos = self.vocabulary.eos
        may_end = eos is not None and int(mask[eos >> 5]) >> (eos & 31) & 1
        return int(np.bitwise_count(mask).sum()) - (len(self.vocabulary.ends) if may_end else 0)

    def _forced(self, matcher: Matcher) -> bytes:
        """Return the bytes that every continuation begins with, up to a limit. The matcher returns to its place."""
        out, taken = b"", 0
        while len(out) < _FORCED_BYTES and not matcher.is_accepting:
            first = np.unique(self._first[self._allowed(matcher)])
            if first.size != 1:
                break
            out += bytes([int(first[0])])
            token = self._byte_tokens[int(first[0])]
            if token < 0 or not matcher.advance(token):
                break
            taken += 1
        matcher.rollback(taken)
        return out

    def _is_forced(self, matcher: Matcher, mask: NDArray[np.uint32], token: int) -> bool:
        """Return whether every continuation begins with a token's bytes, at a place where no text may end."""
        if self._count(mask) == 1:
            return True
        taken, forced = 0, True
        for byte in self.vocabulary.tokens[token]:
            if matcher.is_accepting or (mask & ~self._beginning[byte]).any():
                forced = False
                break
            own = self._byte_tokens[byte]
            if own < 0 or not matcher.advance(own):
                forced = len(self.vocabulary.tokens[token]) == 1
                break
            taken += 1
            mask = matcher.mask()
        matcher.rollback(taken)
        return forced


def _spans(vocabulary: Vocabulary, tokens: list[int]) -> list[tuple[int, int]]:
    """Return (token, end in bytes) of each token."""
    return list(zip(tokens, accumulate(len(vocabulary.tokens[token]) for token in tokens), strict=True))


def _packed(flags: NDArray[np.bool_], words: int) -> NDArray[np.uint32]:
    """Return a mask of flags: bit i of word w is flag 32 * w + i."""
    whole = np.zeros(32 * words, np.bool_)
    whole[: len(flags)] = flags
    return np.packbits(whole, bitorder="little").view("<u4").astype(np.uint32)


def _members(mask: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the tokens of a mask, in order."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
    tokens: NDArray[np.int64] = np.flatnonzero(bits.view(np.bool_))
    return tokens


def _is_text(token: bytes) -> bool:
    try:
        return token.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _ranges(numbers: list[Any]) -> list[tuple[int, int]]:
    """Return sorted numbers as ranges, both ends included.

    >>> _ranges([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    out: list[tuple[int, int]] = []
    for number in numbers:
        if out and out[-1][1] == number - 1:
            out[-1] = out[-1][0], number
        else:
            out.append((number, number))
    return out
