"""`Matcher`: one sequence on the host, token by token."""

from __future__ import annotations

import operator
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import VocabularyMismatchError
from ..table import TransitionTable
from . import packed

_CACHE_BYTES = 32 << 20  # of composed masks kept for each table


class Spelling(Protocol):
    """What jumping forward needs to know of a vocabulary; `Vocabulary` has it."""

    tokens: Sequence[bytes]

    @property
    def fingerprint(self) -> str:
        """The name of the vocabulary."""

    def encode(self, text: bytes) -> list[int]:
        """Return tokens that spell a text exactly, segmented as the tokenizer does inside a longer text."""


def _view(array: Any) -> memoryview:
    """Return an array as Python reads it fastest, element by element."""
    return memoryview(array)


class _Host:
    """What all matchers of one table share: views of its arrays, and masks made so far."""

    def __init__(self, table: TransitionTable) -> None:
        self.table = table
        self.rows, self.edges = table.num_rows, table.num_edges
        self.after_eos, self.dead = table.after_eos, table.dead
        self.size = table.vocab_size
        self.eos = -1 if table.eos is None else table.eos
        self.row_start = _view(table.row_start)
        self.edge_token = _view(table.edge_token)
        self.edge_target = _view(table.edge_target)
        self.accepting = _view(table.accepting.view(np.uint8))
        self.base_row = _view(table.base_row if not table.is_trie else table.base_row[:0])
        self.base_mask = _view(table.base_mask)
        self.base_classes = _view(table.base_classes)
        self.base_start = _view(table.base_start)
        self.base_target = _view(table.base_target)
        self.class_start = _view(table.class_start)
        self.class_token = _view(table.class_token)
        self.class_id = _view(table.class_id)
        self.masks = [_view(row) for row in table.masks] if not table.is_trie else []
        self.words = -(-table.vocab_size // 32)
        self.composed: dict[int, NDArray[np.uint32]] = {}
        self.lock = threading.Lock()
        self.most = max(16, _CACHE_BYTES // (4 * self.words))

    def mask(self, node: int) -> NDArray[np.uint32]:
        """Return the mask of a state, read-only and kept for the next time."""
        found = self.composed.get(node)
        if found is None:
            found = self.made(node)
            with self.lock:  # matchers of several threads may be making room at once
                while len(self.composed) >= self.most:
                    del self.composed[next(iter(self.composed))]
                self.composed[node] = found
        return found

    def made(self, node: int, room: int | None = None) -> NDArray[np.uint32]:
        """Return the mask of a state, read-only; room: how many tokens may still be written, EOS aside."""
        remaining = None if room is None else np.array([room], np.int64)
        out = packed.compose(self.table, np.array([node], np.int64), remaining)
        out.flags.writeable = False
        mask: NDArray[np.uint32] = out[0]
        return mask

    def allowed(self, node: int) -> NDArray[Any]:
        """Return the tokens that a row which does not accept allows."""
        if node >= len(self.base_row) or self.base_row[node] < 0:
            return self.table.edge_token[self.row_start[node] : self.row_start[node + 1]]
        return np.flatnonzero(np.unpackbits(self.mask(node).astype("<u4").view(np.uint8), bitorder="little"))

    def step(self, node: int, token: int) -> int:
        """Return the state that a token leads to; the dead state if it is not allowed."""
        rows = self.rows
        if node >= rows:
            entry = self.edge_token[self.edges + node - rows]
            if entry == token:
                return node + 1
            return node if entry == self.size and token == self.eos else self.dead
        stop = self.row_start[node + 1]
        edge = bisect_left(self.edge_token, token, self.row_start[node], stop)
        if edge < stop and self.edge_token[edge] == token:
            return self.edge_target[edge]
        if token == self.eos:
            return self.after_eos if self.accepting[node] else self.dead
        base = self.base_row[node] if node < len(self.base_row) else -1
        if base < 0 or not self.masks[self.base_mask[base]][token >> 5] >> (token & 31) & 1:
            return self.dead
        classes = self.base_classes[base]
        stop = self.class_start[classes + 1]
        at = bisect_left(self.class_token, token, self.class_start[classes], stop)
        name = self.class_id[at] if at < stop and self.class_token[at] == token else 0
        code = self.base_target[self.base_start[base] + name]
        return (code >> 1) + (code & 1) * node

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the table, in another process perhaps, makes its own


def _host(table: TransitionTable) -> _Host:
    """Return what matchers of a table share, made once and kept with the table."""
    if not isinstance(table, TransitionTable):
        raise TypeError(f"a Matcher takes a TransitionTable, not {type(table).__name__}")
    host: _Host | None = table.__dict__.get("_host")
    if host is None:
        host = table.__dict__["_host"] = _Host(table)
    return host


class Matcher:
    """One sequence that is being written under a table, on the host.

    vocabulary: the one the table was compiled for; only `forced_tokens` needs it. max_tokens: the most tokens of the
    sequence, EOS aside; masks then leave out what could not be complete within it, so that an end is always in
    reach. Raises VocabularyMismatchError for another vocabulary, ValueError if nothing is as short as max_tokens.

    A matcher is not to be shared between threads; its table is.

    >>> from maskwright import Vocabulary, compile_regex
    >>> vocab = Vocabulary.from_bytes([b"", b"a", b"b", b"ab"], eos=0)
    >>> m = Matcher(compile_regex("(ab)+", vocab))
    >>> m.mask(), m.advance(3), m.is_accepting, m.advance(2), m.mask()
    (array([10], dtype=uint32), True, True, False, array([11], dtype=uint32))
    """

    __slots__ = ("_history", "_host", "_max_tokens", "_node", "_vocabulary")

    def __init__(
        self, table: TransitionTable, vocabulary: Spelling | None = None, *, max_tokens: int | None = None
    ) -> None:
        self._host = _host(table)
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
        if max_tokens is not None:
            max_tokens = operator.index(max_tokens)
            if max_tokens < table.min_length:
                raise ValueError(
                    f"max_tokens={max_tokens} is less than the shortest match, {table.min_length} tokens: "
                    "nothing could be complete"
                )
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._node = 0
        self._history: list[int] = []  # the state before each token

    @property
    def table(self) -> TransitionTable:
        """The table that is matched."""
        return self._host.table

    @property
    def state(self) -> int:
        """The table's state after the tokens so far."""
        return self._node

    @property
    def num_tokens(self) -> int:
        """How many tokens have been taken, EOS among them."""
        return len(self._history)

    @property
    def is_accepting(self) -> bool:
        """Whether the sequence is complete as it stands; it may be possible to go on."""
        host, node = self._host, self._node
        if node < host.rows:
            return bool(host.accepting[node])
        return bool(host.edge_token[host.edges + node - host.rows] == host.size)

    @property
    def is_finished(self) -> bool:
        """Whether the sequence is complete and nothing but EOS can follow."""
        host, node = self._host, self._node
        if not self.is_accepting or node >= host.rows:
            return self.is_accepting
        mask = self.mask()
        at, eos = divmod(host.eos, 32)
        return int(np.bitwise_count(mask).sum()) == (host.eos >= 0 and int(mask[at]) >> eos & 1)

    @property
    def remaining(self) -> int | None:
        """How many more tokens may be written; None without `max_tokens`."""
        if self._max_tokens is None:
            return None
        return max(0, self._max_tokens - len(self._history))

    def mask(self) -> NDArray[np.uint32]:
        """Return the tokens allowed next, EOS included where accepting: uint32 (ceil(V / 32),).

        Bit i of word w is token 32 * w + i. The array is read-only and may be shared: copy it to change it.
        """
        if self._max_tokens is None:
            return self._host.mask(self._node)
        room = self._max_tokens - len(self._history)
        if room > self._host.table.farthest[self._node]:
            return self._host.mask(self._node)
        return self._host.made(self._node, room)

    def advance(self, token: int) -> bool:
        """Take one more token and return True; False, with nothing changed, where it is not allowed.

        After EOS only EOS is allowed, again and again, as in a batch whose other rows go on.
        Raises TypeError unless token is an integer, ValueError unless it is in 0 .. V - 1.
        """
        host, node = self._host, self._node
        token = operator.index(token)
        if not 0 <= token < host.size:
            raise ValueError(f"token {token} is outside the vocabulary, 0 .. {host.size - 1}")
        following = host.step(node, token)
        if following == host.dead:
            return False
        if self._max_tokens is not None and token != host.eos:
            room = self._max_tokens - len(self._history) - 1
            if host.table.distance[following] > room:
                return False
        self._history.append(node)
        self._node = following
        return True

    def accepts(self, tokens: Iterable[int]) -> bool:
        """Return whether the sequence would be complete after these tokens; the matcher stays as it is."""
        before = len(self._history)
        try:
            return all(self.advance(token) for token in tokens) and self.is_accepting
        finally:
            self.rollback(len(self._history) - before)

    def rollback(self, n: int) -> None:
        """Take back the last n tokens, EOS among them. Raises ValueError if there are not as many."""
        n = operator.index(n)
        if not 0 <= n <= len(self._history):
            raise ValueError(f"cannot take back {n} tokens: {len(self._history)} have been taken")
        if n:
            self._node = self._history[-n]
            del self._history[-n:]

    def reset(self) -> None:
        """Go back to the start."""
        self._node = 0
        self._history.clear()

    def copy(self) -> Matcher:
        """Return a matcher that stands where this one does and goes its own way from there."""
        twin = object.__new__(Matcher)
        twin._host, twin._vocabulary, twin._max_tokens = self._host, self._vocabulary, self._max_tokens
        twin._node, twin._history = self._node, self._history.copy()
        return twin

    def __copy__(self) -> Matcher:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Matcher:
        return self.copy()  # tables do not change

    def __reduce__(self) -> Any:
        return _restored, (self.table, self._vocabulary, self._max_tokens, self._node, self._history)

    def __repr__(self) -> str:
        limit = "" if self._max_tokens is None else f", max_tokens={self._max_tokens}"
        return f"Matcher(state={self.state}, num_tokens={self.num_tokens}{limit}, is_accepting={self.is_accepting})"

    # ------------------------------------------------------------------------------------------- jumping forward

    def forced_text(self) -> bytes:
        """Return the bytes that every match goes on with from here: b"" if there is a choice, or an end is possible.

        Raises ValueError without a vocabulary.
        """
        tokens = self._spelling().tokens
        host = self._host
        text = b""
        ahead = {(b"", self._node)}  # after `text`: the rest of a token that has begun in it, and where that leads
        while True:
            nodes = [node for rest, node in ahead if not rest]
            if any(node >= host.rows or host.accepting[node] for node in nodes):
                return text
            begun = [(rest, node) for rest, node in ahead if rest]
            following = [(node, host.allowed(node)) for node in nodes]
            common = _shared_beginning(
                chain((rest for rest, _ in begun), (tokens[t] for _, allowed in following for t in allowed))
            )
            if not common:
                return text
            text += common
            n = len(common)
            ahead = {(rest[n:], node) for rest, node in begun}
            ahead |= {(tokens[t][n:], host.step(node, t)) for node, allowed in following for t in allowed.tolist()}

    def forced_tokens(self) -> list[int]:
        """Return the tokens by which the tokenizer writes what every match goes on with; they can be taken at once.

        The segmentation is the tokenizer's own, see `Vocabulary.encode`. Its last token is left out where the text
        after it is open: the tokenizer might have made one token of it and of what follows. The matcher does not move.
        Raises ValueError without a vocabulary.
        """
        text = _whole_characters(self.forced_text())
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

    def _spelling(self) -> Any:
        if self._vocabulary is None:
            raise ValueError("jumping forward needs to know how tokens are spelt: Matcher(table, vocabulary)")
        return self._vocabulary


def _restored(
    table: TransitionTable, vocabulary: Spelling | None, max_tokens: int | None, node: int, history: list[int]
) -> Matcher:
    """Return a matcher that stands where one did when it was pickled."""
    matcher = Matcher(table, vocabulary, max_tokens=max_tokens)
    matcher._node, matcher._history = node, history
    return matcher


def _shared_beginning(texts: Iterator[bytes]) -> bytes:
    """Return the longest text that all begin with; of many that differ at once only the first few are looked at."""
    shared = next(texts)
    for text in texts:
        while not text.startswith(shared):
            shared = shared[:-1]
        if not shared:
            break
    return shared


def _whole_characters(text: bytes) -> bytes:
    """Return a text without the bytes at its end that only begin a UTF-8 character: no tokenizer splits such a text."""
    for cut in range(min(4, len(text))):
        try:
            text[: len(text) - cut].decode()
        except UnicodeDecodeError:
            continue
        return text[: len(text) - cut]
    return text
