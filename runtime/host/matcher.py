"""`Matcher`: one sequence on the host, token by token."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import Advice, BudgetError, ConstraintError, VocabularyMismatchError
from ...kernels.limits import UNREACHABLE
from ...lazy.lazy_table import LazyTable
from ...table.constraint import Constraint
from ...table.sid_filter import SidFilter
from ...table.snapshot import LiveFilter, Snapshot
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from .bitmask_rows import words_of_rows, write_row
from .forced_text import forced_text, whole_characters
from .host_reader import HostReader
from .readers import reader_of, reader_within


class Spelling(Protocol):
    """What jumping forward needs to know of a vocabulary; `Vocabulary` has it."""

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of each token."""

    @property
    def fingerprint(self) -> str:
        """The name of the vocabulary."""

    def encode(self, text: bytes) -> list[int]:
        """Return tokens that spell a text exactly, segmented as the tokenizer does inside a longer text."""


class Matcher:
    """One sequence that is being written under a constraint, on the host.

    EOS stands for each end token of the table, see `Vocabulary.ends`: where the table allows one, it allows them all. A
    matcher is not to be shared between threads; its table is. Of a sorted matrix nothing is built.

    Args:
        table: A table, a lazy one, a sorted matrix, a snapshot, or a filter.
        vocabulary: The one the table was compiled for; only `forced_tokens` needs it.
        max_tokens: The most tokens of the sequence, EOS aside; masks then leave out what could not be complete within
            it, so that an end is always in reach.
        may_complete: Whether a `LazyTable` may be completed where its bounds do not say that an end is in reach, which
            takes as long as `to_table`. Otherwise only tokens are allowed there behind which an end is known to be in
            reach, and some of those that a table would allow are left out. A lazy table that is not small is never
            completed.

    Raises:
        VocabularyMismatchError: The table was compiled for another vocabulary.
        ValueError: Nothing is known to be as short as `max_tokens`.

    Examples:
        >>> from maskwright import Vocabulary, compile_regex
        >>> vocab = Vocabulary.from_bytes([b"", b"a", b"b", b"ab"], eos=0)
        >>> m = Matcher(compile_regex("(ab)+", vocab))
        >>> m.mask(), m.advance(3), m.is_accepting, m.advance(2), m.mask()
        (array([10], dtype=uint32), True, True, False, array([11], dtype=uint32))
    """

    __slots__ = (
        "_by_bounds", "_completes", "_endings", "_history", "_max_tokens", "_place", "_reader", "_table", "_tokens",
        "_vocabulary",
    )  # fmt: skip

    def __init__(
        self,
        table: Constraint,
        vocabulary: Spelling | None = None,
        *,
        max_tokens: int | None = None,
        may_complete: bool = True,
    ) -> None:
        reader_of(table, False)  # which refuses what is no constraint
        self._table = table
        if vocabulary is not None and not isinstance(getattr(vocabulary, "fingerprint", None), str):
            raise TypeError(
                f"a Matcher takes a Vocabulary, not {type(vocabulary).__name__}: make one with Vocabulary.from_bytes "
                "or another from_ method"
            )
        if vocabulary is not None and vocabulary.fingerprint != table.vocabulary:
            raise VocabularyMismatchError(
                f"the table was compiled for vocabulary {table.vocabulary}, not {vocabulary.fingerprint}: "
                "pass the vocabulary that it was compiled with"
            )
        self._vocabulary = vocabulary
        self._max_tokens = None if max_tokens is None else operator.index(max_tokens)
        self._completes = may_complete and not (isinstance(table, LazyTable) and not table.is_small)
        self._reader, self._by_bounds = self._begun()  # whether a budget is kept by bounds
        self._endings: list[tuple[int, list[int]]] = []  # how many tokens there were, and those that must follow
        self._place = self._reader.start()
        # the places before each token, part by part: tuples that are kept make the garbage collector come, and walk
        # all that the process has, while somebody waits for a token
        self._history: list[Any] = []
        self._tokens: list[int] = []

    def _begun(self) -> tuple[HostReader[Any], bool]:
        """Return the reader of a new sequence, and whether it keeps a budget by bounds alone."""
        table, most = self._table, self._max_tokens
        if most is None:
            return reader_of(table, False), False
        reader = reader_within(table, most)
        if reader is not None:
            return reader, False
        bounded = None if self._completes else _bounded(table, most)
        return (_counting(table, most), False) if bounded is None else (bounded, True)

    @property
    def table(self) -> Constraint:
        """The table, or the sorted matrix, that is matched."""
        return self._table

    @property
    def state(self) -> int:
        """The table's state after the tokens so far, of a sorted matrix the first row that begins with them.

        Completes a lazy table, which has no states before.
        """
        return self._configuration()[0]

    @property
    def stack(self) -> tuple[int, ...]:
        """The return sites of the frames that are open, the outermost first; () of what has no calls.

        Completes a lazy table, as `state` does.
        """
        return self._configuration()[1]

    def _configuration(self) -> tuple[int, tuple[int, ...]]:
        matcher = self
        if self._reader.grows and isinstance(self._table, LazyTable):  # with numbers of a machine
            matcher = Matcher(self._table.to_table())
            for token in self._tokens:
                matcher.advance(token)
        return matcher._reader.configuration(matcher._place)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that have been taken, EOS among them."""
        return tuple(self._tokens)

    @property
    def num_tokens(self) -> int:
        """How many tokens have been taken, EOS among them."""
        return len(self._tokens)

    @property
    def is_accepting(self) -> bool:
        """Whether the sequence is complete as it stands; it may be possible to go on."""
        return self._reader.ends(self._place)

    @property
    def is_finished(self) -> bool:
        """Whether the sequence is complete and nothing but EOS can follow."""
        if not self.is_accepting:
            return False
        reader, mask = self._reader, self.mask()
        at, eos = divmod(reader.eos, 32)
        ends = len(reader.end_tokens) if reader.eos >= 0 and int(mask[at]) >> eos & 1 else 0
        return int(np.bitwise_count(mask).sum()) == ends

    @property
    def is_terminated(self) -> bool:
        """Whether the sequence has ended: by an end token; without EOS, it is complete and nothing can follow."""
        if self._reader.end_tokens:
            return bool(self._tokens) and self._tokens[-1] in self._reader.end_tokens
        return self.is_accepting and not self.mask().any()

    @property
    def remaining(self) -> int | None:
        """How many more tokens may be written; None without `max_tokens`."""
        if self._max_tokens is None:
            return None
        return max(0, self._max_tokens - len(self._tokens))

    def mask(self) -> NDArray[np.uint32]:
        """Return the tokens allowed next, EOS included where accepting.

        Returns:
            uint32 (ceil(V / 32),): bit i of word w is token 32 * w + i. The array is read-only and may be shared.

        Raises:
            BudgetError: No text is known that ends within `max_tokens`, or a state exceeds the table's budget.
        """
        if self._max_tokens is None:
            return self._reader.mask(self._place)
        room = self._max_tokens - len(self._tokens)
        if self._is_far(room):
            return self._reader.mask(self._place)
        rest = self._rest()
        mask = self._reader.made(self._place, room) if rest is None else self._only(rest)
        if self._by_bounds and not mask.any():  # bounds know no end
            ending = self._reader.text_to_end(self._place)
            if ending is not None and len(ending) <= room and self._reads(ending):
                self._endings.append((len(self._tokens), ending))
                return self._only(ending)
            if not self._completes:
                raise BudgetError(
                    f"no text is known that ends within the {room} tokens left, and none was found in time",
                    remedies=[Advice("Allow more tokens, or make the constraint smaller")],
                )
            self._table.to_table()  # which raises BudgetError, or there is more time than before
            self._by_bounds = False
            self._complete()
            return self._reader.made(self._place, room)
        return mask

    def _rest(self) -> list[int] | None:
        """Return the tokens that must follow, as nothing else is known to end in time; None where there is a choice."""
        if not self._endings:
            return None
        began, ending = self._endings[-1]
        since = self._tokens[began:]
        return ending[len(since) :] if since == ending[: len(since)] else None

    def _reads(self, ending: list[int]) -> bool:
        """Return whether tokens are read one by one: a way on may be left out of a row that a search goes by."""
        place = self._place
        for token in ending:
            place = self._reader.step(place, token)
            if place == self._reader.nowhere:
                return False
        return self._reader.ends(place)

    def _only(self, rest: list[int]) -> NDArray[np.uint32]:
        """Return the mask of the first of some tokens, or of EOS where there is none, read-only."""
        mask = np.zeros(self._reader.words, np.uint32)
        for token in rest[:1] or self._reader.end_tokens:
            mask[token >> 5] |= np.uint32(1 << (token & 31))
        mask.flags.writeable = False
        return mask

    def _is_far(self, room: int) -> bool:
        """Return whether an end is in reach of so many tokens after any token that is allowed next.

        A lazy table is completed where its bounds do not suffice to know that.
        """
        if room > self._reader.farthest(self._place):
            return True
        if not self._reader.grows or self._by_bounds:
            return False
        self._complete()
        return room > self._reader.farthest(self._place)

    def _complete(self) -> None:
        """Go on in the whole table, with all places so far; or by bounds, if the table exceeds its budget."""
        assert isinstance(self._table, LazyTable), "other tables are complete"
        if not self._completes or not self._table.has_arrays():
            self._by_bounds = True
            return
        self._reader = _counting(self._table, self._max_tokens)
        self._follow(self._tokens)

    def _follow(self, tokens: list[int]) -> None:
        """Take tokens from the start that were taken before, by another reader of the same constraint."""
        reader = self._reader
        place, history = reader.start(), []
        for token in tokens:
            if reader.parts:
                history += place
            else:
                history.append(place)
            place = reader.step(place, token)
            assert place != reader.nowhere, "all readers of a constraint read the same"
        self._place, self._history, self._tokens = place, history, list(tokens)

    def fill_bitmask(self, bitmask: object, row: int = 0) -> None:
        """Write the tokens allowed next into a row of bitmasks that a batch shares, those of `mask`.

        Words beyond the vocabulary become 0. Nothing else is written. `fill_bitmasks` fills many rows.

        Args:
            bitmask: int32 or uint32 (rows, words), words at least ceil(V / 32); a numpy array, or a torch tensor in the
                host's memory.
            row: The row to write.

        Raises:
            TypeError: It is another array.
            IndexError: There is no such row.
            ValueError: Rows are too short.

        Examples:
            >>> from maskwright import Vocabulary, compile_regex
            >>> m = Matcher(compile_regex("(ab)+", Vocabulary.from_bytes([b"", b"a", b"b", b"ab"], eos=0)))
            >>> rows = np.full((2, 1), -1, np.int32)
            >>> m.fill_bitmask(rows, 1)
            >>> rows.tolist()
            [[-1], [10]]
        """
        write_row(words_of_rows(bitmask), row, self.mask())

    def advance(self, token: int) -> bool:
        """Take one more token, if it is allowed. After an end token only end tokens are.

        Args:
            token: Its id.

        Returns:
            Whether it is allowed; if not, nothing changed.

        Raises:
            TypeError: It is no integer.
            ValueError: It is outside 0 .. V - 1.
        """
        token = operator.index(token)
        is_far = self._max_tokens is None
        if self._max_tokens is not None and self._reader.grows:
            is_far = self._is_far(self._max_tokens - len(self._tokens))
        reader, place = self._reader, self._place
        if not 0 <= token < reader.size:
            raise ValueError(f"token {token} is outside the vocabulary, 0 .. {reader.size - 1}")
        following = reader.step(place, token)
        if following == reader.nowhere:
            return False
        if not is_far and not self._is_in_time(following, token):
            return False
        if reader.parts:
            self._history += place
        else:
            self._history.append(place)
        self._tokens.append(token)
        self._place = following
        return True

    def _is_in_time(self, following: object, token: int) -> bool:
        """Return whether a sequence that an end is not far from may go on with a token, at the place behind it."""
        rest, reader = self._rest(), self._reader
        if rest is not None:
            return token in (rest[:1] or reader.end_tokens)
        if self._max_tokens is None or token in reader.end_tokens or (reader.grows and not self._by_bounds):
            return True
        if reader.distance(following) < self._max_tokens - len(self._tokens):
            return True
        return self._by_bounds and bool(self.mask()[token >> 5] >> (token & 31) & 1)  # one that must follow

    def accept_tokens(self, tokens: Iterable[int]) -> bool:
        """Take tokens one after the other, if all are allowed.

        Args:
            tokens: Their ids.

        Returns:
            Whether they are; if not, nothing changed.

        Raises:
            ValueError: As in `advance`, with nothing changed.
        """
        before = len(self._tokens)
        taken = False
        try:
            taken = all(self.advance(token) for token in tokens)
        finally:
            if not taken:
                self.rollback(len(self._tokens) - before)
        return taken

    def validate_tokens(self, tokens: Iterable[int]) -> int:
        """Return how many of some tokens, such as a draft, may follow from the first on; the matcher stays as it is.

        Args:
            tokens: Their ids. Nothing follows an end: tokens after EOS do not count.

        Returns:
            How many.

        Raises:
            ValueError: As in `advance`, for a token that it comes to.
        """
        before = len(self._tokens)
        try:
            for token in tokens:
                if self.is_terminated or not self.advance(token):
                    break
            return len(self._tokens) - before
        finally:
            self.rollback(len(self._tokens) - before)

    def accepts(self, tokens: Iterable[int]) -> bool:
        """Return whether the sequence would be complete after some tokens; the matcher stays as it is.

        Args:
            tokens: Their ids.

        Returns:
            Whether it would be.
        """
        before = len(self._tokens)
        try:
            return all(self.advance(token) for token in tokens) and self.is_accepting
        finally:
            self.rollback(len(self._tokens) - before)

    def rollback(self, n: int) -> None:
        """Take back the last tokens, EOS among them.

        Args:
            n: How many.

        Raises:
            ValueError: There are not as many.
        """
        n = operator.index(n)
        if not 0 <= n <= len(self._tokens):
            raise ValueError(f"cannot take back {n} tokens: {len(self._tokens)} have been taken")
        if n:
            parts = self._reader.parts
            first = len(self._history) - n * max(parts, 1)
            self._place = tuple(self._history[first : first + parts]) if parts else self._history[first]
            del self._history[first:]
            del self._tokens[-n:]
            while self._endings and self._endings[-1][0] > len(self._tokens):
                self._endings.pop()

    def reset(self) -> None:
        """Go back to the start."""
        if self._reader.grows:
            self._reader, self._by_bounds = self._begun()
        self._place = self._reader.start()
        self._history.clear()
        self._tokens.clear()
        self._endings.clear()

    def copy(self) -> Matcher:
        """Return a matcher that stands where this one does and goes its own way from there."""
        twin = object.__new__(type(self))
        twin._reader, twin._table = self._reader, self._table
        twin._vocabulary, twin._max_tokens, twin._by_bounds = self._vocabulary, self._max_tokens, self._by_bounds
        twin._completes, twin._endings = self._completes, self._endings.copy()
        twin._place, twin._history, twin._tokens = self._place, self._history.copy(), self._tokens.copy()
        return twin

    def __copy__(self) -> Matcher:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Matcher:
        return self.copy()  # tables do not change

    def __reduce__(self) -> Any:
        given = self.table, self._vocabulary, self._max_tokens, self._completes
        return _restored, (*given, self._tokens, self._endings)

    def __repr__(self) -> str:
        limit = "" if self._max_tokens is None else f", max_tokens={self._max_tokens}"
        state = "" if self._reader.grows else f"state={self.state}, "
        return f"Matcher({state}num_tokens={self.num_tokens}{limit}, is_accepting={self.is_accepting})"

    # ------------------------------------------------------------------------------------------- jumping forward

    def forced_text(self) -> bytes:
        """Return the bytes that every match goes on with from here.

        Returns:
            The bytes, b"" if there is a choice, or an end is possible.

        Raises:
            ValueError: There is no vocabulary.
        """
        return forced_text(self._reader, self._place, self._spelling().tokens)

    def forced_tokens(self) -> list[int]:
        """Return the tokens by which the tokenizer writes what every match goes on with; they can be taken at once.

        The segmentation is the tokenizer's own, see `Vocabulary.encode`. Its last token is left out where the text
        after it is open: the tokenizer might have made one token of it and of what follows. The matcher does not move.

        Returns:
            Token ids, [] if there is a choice.

        Raises:
            ValueError: There is no vocabulary.

        Examples:
            >>> from maskwright import Vocabulary, compile_regex
            >>> vocab = Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"yes"], eos=0)
            >>> Matcher(compile_regex("yes, [ab]", vocab), vocab).forced_tokens()
            [257, 45]
        """
        text = whole_characters(self.forced_text())
        if not text:
            return []
        vocabulary = self._spelling()
        try:
            tokens = vocabulary.encode(text)
        except ValueError:  # this much of the text cannot be written on its own
            return []
        ahead = self.copy()
        taken: list[int] = []
        for token in tokens:
            if not ahead.advance(token):
                break
            taken.append(token)
        if taken and not ahead.is_finished:
            taken.pop()
        return taken

    def _spelling(self) -> Spelling:
        if self._vocabulary is None:
            raise ValueError("jumping forward needs to know how tokens are spelt: Matcher(table, vocabulary)")
        return self._vocabulary


def _restored(
    table: Constraint, vocabulary: Spelling | None, max_tokens: int | None, completes: bool, tokens: list[int],
    endings: list[tuple[int, list[int]]],
) -> Matcher:  # fmt: skip
    """Return a matcher that stands where one did when it was pickled."""
    matcher = Matcher(table, vocabulary, max_tokens=max_tokens, may_complete=completes)
    matcher._follow(tokens)
    matcher._endings = endings
    return matcher


def _bounded(table: Constraint, max_tokens: int) -> HostReader[Any] | None:
    """Return the reader of a lazy table that keeps a budget by bounds; None where there are none.

    Raises ValueError if they do not promise an end, ConstraintError if none was found of a table that is not small.
    """
    if not isinstance(table, LazyTable):
        return None
    reader = reader_of(table, False)
    if not reader.grows:  # it is complete
        return None
    if table.unique is not None:
        raise ConstraintError(
            "max_tokens cannot be kept where a matcher sees to uniqueItems: it is not known how many tokens a distinct "
            "item takes. Leave max_tokens out where a text may be cut"
        )
    nearest = reader.distance(reader.start())
    if nearest == UNREACHABLE and table.is_small:
        return None
    if nearest == UNREACHABLE:
        raise ConstraintError(
            "it was not found in time how many tokens an end of this constraint is away: make it smaller, or leave "
            "max_tokens out where a text may be cut"
        )
    if max_tokens < nearest:
        raise ValueError(_not_promised(max_tokens, nearest))
    return reader


def _not_promised(max_tokens: int, enough: int) -> str:
    return (
        f"max_tokens={max_tokens} cannot be promised: {enough} tokens are known to be enough for a complete match, "
        "fewer may not be"
    )


def _counting(table: Constraint, max_tokens: int | None) -> HostReader[Any]:
    """Return the reader of a table, with distances if there is a budget. Raises ValueError if it cannot be kept."""
    reader = reader_of(table, max_tokens is not None)
    if max_tokens is not None:
        whole = table.to_table()
        if whole.min_length == UNREACHABLE:
            raise ValueError(
                "max_tokens cannot be kept: this vocabulary has no tokens that close what is open and no more"
            )
        if max_tokens < whole.min_length:
            raise ValueError(_too_few(max_tokens, whole))
        reader.budgets(whole)
    return reader


def _too_few(max_tokens: int, table: TransitionTable | SortedMatrix | SidFilter | Snapshot | LiveFilter) -> str:
    """Return what is wrong with a number of tokens that no match is known to keep."""
    if isinstance(table, TransitionTable) and table.is_nested:  # whose distances are upper bounds
        return _not_promised(max_tokens, int(table.min_length))
    return (
        f"max_tokens={max_tokens} is less than the shortest match, {table.min_length} tokens: nothing could be complete"
    )
