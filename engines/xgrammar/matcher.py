"""One sequence that is being written, and batches of them."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConstraintError
from ...runtime.host.bitmask_rows import fill_bitmasks, words_of_rows, write_row
from ...runtime.host.forced_text import whole_characters
from ...runtime.host.matcher import Matcher
from ...vocabulary.vocabulary import Vocabulary
from .compiler import CompiledGrammar
from .exception import UsageError

if TYPE_CHECKING:
    from torch import Tensor

_NOT_OFFERED = {
    "get_captures": "nothing is captured: read the text that was written",
}
_NO_TEMPERATURE = -1.0


def get_bitmask_shape(batch_size: int, vocab_size: int) -> tuple[int, int]:
    """Return the shape of bitmasks: (batch_size, ceil(V / 32))."""
    return batch_size, -(-vocab_size // 32)


class GrammarMatcher:
    """One sequence that is being written. Any number of steps can be taken back.

    Args:
        compiled_grammar: Its constraint.
        override_stop_tokens: The tokens that end a text, in place of the tokenizer's.
        terminate_without_stop_token: Whether it ends as soon as the text is complete; no stop token is allowed then.
        max_rollback_tokens: Taken, and not needed.
        default_temperature: What `temperature` says: constraints set none.

    Raises:
        UsageError: An argument cannot be.
    """

    def __init__(
        self,
        compiled_grammar: CompiledGrammar,
        *,
        override_stop_tokens: int | Sequence[int] | None = None,
        terminate_without_stop_token: bool = False,
        max_rollback_tokens: int = -1,
        default_temperature: float | None = None,
    ) -> None:
        if not isinstance(compiled_grammar, CompiledGrammar):
            raise UsageError(f"pass a CompiledGrammar, not {type(compiled_grammar).__name__}")
        info = compiled_grammar.tokenizer_info
        self._info, self.temperature = info, default_temperature
        given = [override_stop_tokens] if isinstance(override_stop_tokens, int) else override_stop_tokens
        table, vocabulary = compiled_grammar.ending_with(given)
        self._stops, self._ends_alone = vocabulary.ends, terminate_without_stop_token
        self._matcher = Matcher(table, vocabulary)
        self._steps: list[int] = []  # tokens of the matcher that each step took; a text is a step

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_OFFERED:
            raise AttributeError(f"GrammarMatcher.{name} of XGrammar is not offered: {_NOT_OFFERED[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def accept_token(self, token_id: int, *, debug_print: bool = False) -> bool:
        """Take a token and return True; False, with nothing changed, where it is not allowed or the end was taken.

        An id that is none of the vocabulary's is not allowed. debug_print: taken, and nothing is printed.
        """
        known = 0 <= token_id < self._info.vocab_size and not (self._ends_alone and token_id in self._stops)
        if not known or self._is_ended() or not self._matcher.advance(token_id):
            return False
        self._steps.append(1)
        return True

    def accept_string(self, input_str: str | bytes, *, debug_print: bool = False) -> bool:
        """Take a text as one step and return True; False, with nothing changed, where it is not allowed.

        Raises UsageError for a text that the tokenizer cannot write.
        """
        if self._is_ended():
            return False
        tokens = _tokens_of(self._info.vocabulary, input_str)
        if not self._matcher.accept_tokens(tokens):
            return False
        self._steps.append(len(tokens))
        return True

    def fill_next_token_bitmask(self, bitmask: Any, index: int = 0, *, debug_print: bool = False) -> bool:
        """Write what is allowed next into a row of bitmasks; return whether it must be applied: not all is allowed.

        Raises UsageError after the end, and for a bitmask that is too small or not in the host's memory.
        """
        if self._is_ended():
            raise UsageError("the end was taken: nothing follows it")
        mask = self._mask()
        _write(bitmask, index, mask)
        return _allows_less(mask, self._info.vocab_size)

    def find_jump_forward_string(self) -> str:
        """Return the text that must follow, in whole characters; "" if none must. Raises UsageError after the end."""
        if self._is_ended():
            raise UsageError("the end was taken: nothing follows it")
        try:
            return whole_characters(self._matcher.forced_text()).decode()
        except UnicodeDecodeError:  # a character has begun, and is no text before it ends
            return ""

    def rollback(self, num_tokens: int = 1) -> None:
        """Take back the last steps. Raises UsageError if there are not as many."""
        count = operator.index(num_tokens)
        if not 0 <= count <= len(self._steps):
            raise UsageError(f"cannot take back {count} tokens: {len(self._steps)} have been taken")
        if count:
            self._matcher.rollback(sum(self._steps[-count:]))
            del self._steps[-count:]

    def is_terminated(self) -> bool:
        """Return whether the end was taken, or nothing else is needed where no stop token ends a text."""
        return self._matcher.is_accepting if self._ends_alone else self._is_ended()

    def is_completed(self) -> bool:
        """Return whether the text is complete as it stands."""
        return self._matcher.is_accepting

    def reset(self) -> None:
        """Go back to the start."""
        self._matcher.reset()
        self._steps.clear()

    def fork(self) -> GrammarMatcher:
        """Return a matcher that stands here and goes its own way."""
        twin = object.__new__(type(self))
        twin._info, twin.temperature = self._info, self.temperature
        twin._stops, twin._ends_alone = self._stops, self._ends_alone
        twin._matcher, twin._steps = self._matcher.copy(), self._steps.copy()
        return twin

    @property
    def stop_token_ids(self) -> list[int]:
        """The tokens that end this text."""
        return list(self._stops)

    @property
    def max_rollback_tokens(self) -> int:
        """How many steps can be taken back: -1 for any number."""
        return -1

    @property
    def num_steps(self) -> int:
        """How many steps can be taken back now."""
        return len(self._steps)

    def traverse_draft_tree(
        self,
        retrieve_next_token: Tensor,
        retrieve_next_sibling: Tensor,
        draft_tokens: Tensor,
        token_bitmask: Tensor,
        time_threshold: float = -1.0,
        temperatures: Tensor | None = None,
    ) -> bool:
        """Write what may follow each node of a draft into its row; return whether time was enough for all.

        Args:
            retrieve_next_token: The first child of each node (n,), -1 for none; int64. Node 0 is where this stands.
            retrieve_next_sibling: The next child of the same parent (n,), likewise.
            draft_tokens: The token of each node (n,); that of node 0 is not read.
            token_bitmask: The rows (n, words). Those of nodes that are not allowed, or behind an end, become 0.
            time_threshold: The most seconds; 0 or less for any number.
            temperatures: float32 (n,), which gets `temperature` for each node that is allowed, else -1.

        Raises:
            UsageError: Shapes or types differ, or node 0 has a sibling.
        """
        tree = [_checked_nodes(each) for each in (retrieve_next_token, retrieve_next_sibling, draft_tokens)]
        nodes = len(tree[0])
        if any(len(each) != nodes for each in tree) or token_bitmask.ndim != 2 or len(token_bitmask) != nodes:
            raise UsageError(f"a draft of {nodes} nodes takes as many siblings, tokens and rows of bitmasks")
        if not nodes or tree[1][0] != -1:
            raise UsageError("node 0 is the whole draft: it must be there, and have no sibling")
        token_bitmask.zero_()
        if temperatures is not None:
            temperatures.fill_(_NO_TEMPERATURE)
        ends = time.monotonic() + time_threshold if time_threshold > 0 else None
        for node in self._allowed_nodes(*tree):
            if not self.is_terminated():
                self.fill_next_token_bitmask(token_bitmask, node)
            if temperatures is not None and self.temperature is not None:
                temperatures[node] = self.temperature
            if ends is not None and time.monotonic() > ends:
                return False
        return True

    def _allowed_nodes(self, child: list[int], sibling: list[int], token: list[int]) -> Iterator[int]:
        """Go through the nodes of a draft that are allowed, standing at each when it is yielded."""
        before = len(self._steps)
        try:
            yield 0
            todo = [(child[0], before)]  # a node, and how many steps there are before it
            while todo:
                node, depth = todo.pop()
                if node == -1:
                    continue
                if not 0 < node < len(token):
                    raise UsageError(f"there is no node {node} in a draft of {len(token)}")
                self.rollback(len(self._steps) - depth)
                todo.append((sibling[node], depth))
                if not self.is_terminated() and self.accept_token(token[node]):
                    yield node
                    todo.append((child[node], depth + 1))
        finally:
            self.rollback(len(self._steps) - before)

    def fill_bitmask(self, bitmask: object, row: int = 0) -> None:
        """Write what is allowed next into a row of bitmasks, as `fill_bitmasks` asks for it."""
        self.fill_next_token_bitmask(bitmask, row)

    def _is_ended(self) -> bool:
        return bool(self._stops) and not self._ends_alone and self._matcher.is_terminated

    def _mask(self) -> NDArray[np.uint32]:
        """Return the tokens of the tokenizer that are allowed, without those that stand for single bytes beside it."""
        mask, size = self._matcher.mask(), self._info.vocab_size
        if size < self._info.vocabulary.size or self._ends_alone:
            mask = mask[: -(-size // 32)].copy()
            if size % 32:
                mask[-1] &= np.uint32((1 << size % 32) - 1)
            for stop in self._stops if self._ends_alone else ():
                mask[stop >> 5] &= ~np.uint32(1 << (stop & 31))
        return mask


class BatchGrammarMatcher:
    """Fills the rows of a batch. max_threads: threads that share them, see `fill_bitmasks`; "auto" is one."""

    def __init__(self, max_threads: int | str = "auto") -> None:
        self._threads = 1 if max_threads == "auto" else int(max_threads)

    def batch_fill_next_token_bitmask(
        self, matchers: Sequence[GrammarMatcher], bitmask: Any, indices: Sequence[int] | None = None,
        debug_print: bool = False,
    ) -> None:  # fmt: skip
        """Write what each matcher allows next into its row: row i of matcher i, or that of `indices`.

        Raises UsageError for other numbers of rows, and as `fill_next_token_bitmask` does.
        """
        try:
            fill_bitmasks(matchers, bitmask, indices, threads=self._threads)
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(str(error)) from None

    @staticmethod
    def batch_fill_temperature(
        matchers: Sequence[GrammarMatcher], temperatures: Tensor, indices: Sequence[int] | None = None
    ) -> None:
        """Write the temperature of each matcher into float32 (n,): -1 where it has none."""
        places = _each(range(len(matchers)) if indices is None else indices, matchers)
        for matcher, place in zip(matchers, places, strict=True):
            temperatures[place] = _NO_TEMPERATURE if matcher.temperature is None else matcher.temperature

    @staticmethod
    def batch_accept_token(
        matchers: Sequence[GrammarMatcher], tokens: Sequence[int], debug_print: bool = False
    ) -> list[bool]:
        """Have each matcher take its token; return what `accept_token` does.

        Raises UsageError, with nothing changed, unless there are as many tokens as matchers.
        """
        return [matcher.accept_token(token) for matcher, token in zip(matchers, _each(tokens, matchers), strict=True)]

    @staticmethod
    def batch_accept_string(
        matchers: Sequence[GrammarMatcher], strings: Sequence[str | bytes], debug_print: bool = False
    ) -> list[bool]:
        """Have each matcher take its text; return what `accept_string` does.

        Raises UsageError, with nothing changed, unless there are as many texts as matchers.
        """
        if len(strings) != len(matchers):
            raise UsageError(f"there are {len(strings)} texts for {len(matchers)} matchers")
        return [matcher.accept_string(text) for matcher, text in zip(matchers, strings, strict=True)]

    @staticmethod
    def batch_rollback(matchers: Sequence[GrammarMatcher], num_tokens: int | Sequence[int] = 1) -> None:
        """Take back the last steps of each matcher: as many of all, or of each its number.

        Raises UsageError, with nothing changed, for a matcher that has not taken as many, and unless there are as many
        numbers as matchers.
        """
        counts = _each([num_tokens] * len(matchers) if isinstance(num_tokens, int) else num_tokens, matchers)
        left: dict[int, int] = {}
        for i, (matcher, count) in enumerate(zip(matchers, counts, strict=True)):
            has = left.get(id(matcher), matcher.num_steps)
            if not 0 <= count <= has:
                raise UsageError(f"matcher {i} cannot take back {count} tokens: {has} have been taken")
            left[id(matcher)] = has - count
        for matcher, count in zip(matchers, counts, strict=True):
            matcher.rollback(count)


def _each(given: Sequence[int], matchers: Sequence[GrammarMatcher]) -> list[int]:
    """Return integers, one for each matcher. Raises UsageError for another number of them, TypeError for others."""
    found = [operator.index(each) for each in given]
    if len(found) != len(matchers):
        raise UsageError(f"there are {len(found)} numbers for {len(matchers)} matchers")
    return found


def _checked_nodes(nodes: Tensor) -> list[int]:
    """Return the numbers of a draft. Raises UsageError for other tensors than int64 (n,) in the host's memory."""
    if nodes.ndim != 1 or str(nodes.dtype) != "torch.int64" or nodes.device.type != "cpu":
        raise UsageError(f"a draft is int64 (n,) in the host's memory, not {nodes.dtype} {tuple(nodes.shape)}")
    return list(map(int, nodes.tolist()))


def _write(bitmask: Any, index: int, mask: NDArray[np.uint32]) -> None:
    try:
        write_row(words_of_rows(bitmask if getattr(bitmask, "ndim", 2) == 2 else bitmask[None]), index, mask)
    except (TypeError, IndexError, ValueError) as error:
        raise UsageError(str(error)) from None


def _allows_less(mask: NDArray[np.uint32], size: int) -> bool:
    """Return whether a mask of V tokens leaves some out."""
    if size >= 32 and mask[0] != 0xFFFFFFFF:
        return True
    return int(np.bitwise_count(mask).sum()) < size


@lru_cache(8)
def _single_bytes(vocabulary: Vocabulary) -> dict[int, int] | None:
    """Return the token of each byte, None where one has none."""
    found = {token[0]: i for i, token in enumerate(vocabulary.tokens) if len(token) == 1}
    return found if len(found) == 256 else None


def _tokens_of(vocabulary: Vocabulary, text: str | bytes) -> list[int]:
    raw = text.encode() if isinstance(text, str) else text
    single = _single_bytes(vocabulary)
    if single is not None:
        return [single[byte] for byte in raw]
    try:
        return vocabulary.encode(raw)
    except ConstraintError as error:
        raise UsageError(f"the tokenizer cannot write the text: {error}") from None
