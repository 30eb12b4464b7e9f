"""The classes of XGrammar's Python package, with maskwright underneath, for loops that are written for that package.

What XGrammar does otherwise is refused by name: schemas mean what they say (no "strict mode"), EOS ends a text.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..compile.json_schema.source import text_of
from ..errors import ConstraintError
from ..lazy.lazy_table import Compiled
from ..runtime.host.bitmask_rows import fill_bitmasks
from ..runtime.host.forced_text import whole_characters
from ..runtime.host.matcher import Matcher
from ..vocabulary.vocabulary import Vocabulary
from .bitmask import allocate, apply
from .constraints import EngineConstraints
from .options import EngineOptions

_TEXT = "encode the text, and take its tokens"
_NOT_OFFERED = {
    "accept_string": _TEXT,
    "batch_accept_string": _TEXT,
    "get_captures": "nothing is captured: read the text that was written",
    "temperature": "constraints set no temperature: leave it to the request",
    "batch_fill_temperature": "constraints set no temperature: leave it to the request",
    "traverse_draft_tree": "follow each branch with accept_token, and take it back with rollback",
    "max_rollback_tokens": "any number of tokens can be taken back: leave it out",
}


class _Refusing:
    """Says of members that XGrammar's class has and the class of its name here has not what to do instead."""

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        if name in _NOT_OFFERED:
            raise AttributeError(f"{kind}.{name} of XGrammar is not offered: {_NOT_OFFERED[name]}")
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")


class TokenizerInfo:
    """A tokenizer's vocabulary: `vocabulary` has the bytes of each token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @classmethod
    def from_huggingface(
        cls, tokenizer: object, *, vocab_size: int | None = None, stop_token_ids: int | Sequence[int] | None = None
    ) -> TokenizerInfo:
        """Return that of a transformers tokenizer.

        vocab_size: the width of logits. stop_token_ids: the tokens that end a text, in place of the tokenizer's own.

        Raises ConstraintError for a tokenizer whose tokens have no exact bytes, for ids that it does not have, and for
        no ids.
        """
        return cls(Vocabulary.from_transformers(tokenizer, size=vocab_size, eos=stop_token_ids))

    @property
    def vocab_size(self) -> int:
        """V: tokens are 0 .. V - 1."""
        return self.vocabulary.size

    @property
    def stop_token_ids(self) -> list[int]:
        """The tokens that end a text."""
        return list(self.vocabulary.ends)


class CompiledGrammar:
    """A compiled constraint, for any number of matchers."""

    def __init__(self, table: Compiled, tokenizer_info: TokenizerInfo) -> None:
        self.table, self.tokenizer_info = table, tokenizer_info

    @property
    def memory_size_bytes(self) -> int:
        """Bytes that the constraint takes now."""
        return self.table.memory


class GrammarCompiler:
    """Compiles constraints for one tokenizer, each once. Raises ConstraintError for what cannot be compiled.

    max_threads: taken, and not needed.
    """

    def __init__(self, tokenizer_info: TokenizerInfo, *, max_threads: int = 8) -> None:
        self.tokenizer_info = tokenizer_info
        self._flexible = EngineConstraints(tokenizer_info.vocabulary, EngineOptions(whitespace="flexible"))
        self._compact = EngineConstraints(tokenizer_info.vocabulary, EngineOptions().compact())

    def compile_json_schema(
        self, schema: str | dict[str, Any], *, any_whitespace: bool = True, strict_mode: bool = False
    ) -> CompiledGrammar:
        """Return the constraint of a JSON Schema. any_whitespace: False for JSON without spaces and line breaks."""
        if strict_mode:
            raise ConstraintError(
                'strict_mode is not supported: write "additionalProperties" and "unevaluatedItems" into the schema'
            )
        source = schema if isinstance(schema, str) else text_of(schema)
        chosen = self._flexible if any_whitespace else self._compact
        return CompiledGrammar(chosen.compile("json", source), self.tokenizer_info)

    def compile_builtin_json_grammar(self) -> CompiledGrammar:
        """Return the constraint of any JSON value."""
        return CompiledGrammar(self._flexible.compile("json", "true"), self.tokenizer_info)

    def compile_regex(self, regex: str) -> CompiledGrammar:
        r"""Return the constraint of a pattern, of the whole text, in the syntax of Python's `re`.

        `\d`, `\w` and `\s` are ASCII; a pattern that begins with (?u) asks for Unicode.
        """
        return CompiledGrammar(self._flexible.compile("regex", regex), self.tokenizer_info)

    def compile_grammar(self, grammar: str) -> CompiledGrammar:
        """Return the constraint of a grammar in EBNF, from `root`."""
        return CompiledGrammar(self._flexible.compile("ebnf", grammar), self.tokenizer_info)

    def compile_structural_tag(self, structural_tag: str | dict[str, Any]) -> CompiledGrammar:
        """Return the constraint of text with tags, in either form."""
        source = structural_tag if isinstance(structural_tag, str) else text_of(structural_tag)
        return CompiledGrammar(self._flexible.compile("structural_tag", source), self.tokenizer_info)


class GrammarMatcher(_Refusing):
    """One sequence that is being written. Any number of tokens can be taken back, whatever max_rollback_tokens says.

    Raises ConstraintError for other stop tokens than the tokenizer's.
    """

    def __init__(
        self,
        compiled_grammar: CompiledGrammar,
        *,
        override_stop_tokens: int | Sequence[int] | None = None,
        max_rollback_tokens: int = -1,
    ) -> None:
        own = compiled_grammar.tokenizer_info.stop_token_ids
        asked = own if override_stop_tokens is None else override_stop_tokens
        given = [asked] if isinstance(asked, int) else list(asked)
        if set(given) != set(own):
            raise ConstraintError(f"must be {own}, as of the tokenizer", argument="override_stop_tokens")
        self._matcher = Matcher(compiled_grammar.table, compiled_grammar.tokenizer_info.vocabulary)

    def accept_token(self, token_id: int) -> bool:
        """Take a token and return True; False, with nothing changed, where it is not allowed or the end was taken.

        An id that is none of the vocabulary's is not allowed.
        """
        known = 0 <= token_id < self._matcher.table.vocab_size
        return known and not self._matcher.is_terminated and self._matcher.advance(token_id)

    def fill_next_token_bitmask(self, bitmask: Tensor, index: int = 0) -> bool:
        """Write what is allowed next into a row of bitmasks; return True, that it must be applied."""
        self._matcher.fill_bitmask(bitmask, index)
        return True

    def find_jump_forward_string(self) -> str:
        """Return the text that must follow, in whole characters; "" if there is none."""
        return whole_characters(self._matcher.forced_text()).decode()

    def rollback(self, num_tokens: int = 1) -> None:
        """Take back the last tokens. Raises ValueError if there are not as many."""
        self._matcher.rollback(num_tokens)

    def is_terminated(self) -> bool:
        """Return whether the end was taken."""
        return self._matcher.is_terminated

    def is_completed(self) -> bool:
        """Return whether the text is complete as it stands."""
        return self._matcher.is_accepting

    def reset(self) -> None:
        """Go back to the start."""
        self._matcher.reset()

    def fork(self) -> GrammarMatcher:
        """Return a matcher that stands here and goes its own way."""
        twin = object.__new__(GrammarMatcher)
        twin._matcher = self._matcher.copy()
        return twin

    def fill_bitmask(self, bitmask: object, row: int = 0) -> None:
        """Write what is allowed next into a row of bitmasks, as `fill_bitmasks` asks for it."""
        self._matcher.fill_bitmask(bitmask, row)


class BatchGrammarMatcher(_Refusing):
    """Fills the rows of a batch. max_threads: threads that share them, see `fill_bitmasks`; "auto" is one."""

    def __init__(self, max_threads: int | str = "auto") -> None:
        self._threads = 1 if max_threads == "auto" else int(max_threads)

    def batch_fill_next_token_bitmask(
        self, matchers: Sequence[GrammarMatcher], bitmask: Tensor, indices: Sequence[int] | None = None
    ) -> None:
        """Write what each matcher allows next into its row: row i of matcher i, or that of `indices`."""
        fill_bitmasks(matchers, bitmask, indices, threads=self._threads)

    @staticmethod
    def batch_accept_token(matchers: Sequence[GrammarMatcher], tokens: Sequence[int]) -> list[bool]:
        """Have each matcher take its token; return what `accept_token` does.

        Raises ValueError, with nothing changed, unless there are as many tokens as matchers.
        """
        return [matcher.accept_token(token) for matcher, token in zip(matchers, _each(tokens, matchers), strict=True)]

    @staticmethod
    def batch_rollback(matchers: Sequence[GrammarMatcher], num_tokens: int | Sequence[int] = 1) -> None:
        """Take back the last tokens of each matcher: as many of all, or of each its number.

        Raises ValueError, with nothing changed, for a matcher that has not taken as many, and unless there are as many
        numbers as matchers.
        """
        counts = _each([num_tokens] * len(matchers) if isinstance(num_tokens, int) else num_tokens, matchers)
        left: dict[int, int] = {}
        for i, (matcher, count) in enumerate(zip(matchers, counts, strict=True)):
            has = left.get(id(matcher), matcher._matcher.num_tokens)
            if not 0 <= count <= has:
                raise ValueError(f"matcher {i} cannot take back {count} tokens: {has} have been taken")
            left[id(matcher)] = has - count
        for matcher, count in zip(matchers, counts, strict=True):
            matcher.rollback(count)


def _each(given: Sequence[int], matchers: Sequence[GrammarMatcher]) -> list[int]:
    """Return integers, one for each matcher. Raises ValueError for another number of them, TypeError for others."""
    found = [operator.index(each) for each in given]
    if len(found) != len(matchers):
        raise ValueError(f"there are {len(found)} numbers for {len(matchers)} matchers")
    return found


def allocate_token_bitmask(batch_size: int, vocab_size: int) -> Tensor:
    """Return bitmasks in which everything is allowed: int32 (batch_size, ceil(V / 32)), in the host's memory."""
    return allocate(batch_size, vocab_size)


def apply_token_bitmask_inplace(
    logits: Tensor, bitmask: Tensor, *, vocab_size: int | None = None, indices: Sequence[int] | None = None
) -> None:
    """Write -inf over each logit (n, V') that bitmask (n, words) does not allow.

    Columns beyond vocab_size, or beyond the bitmask, are not allowed either. indices: the rows to mask, of both; all if
    None, and then both have as many rows. Raises ValueError for other rows.
    """
    if logits.ndim == 1 and bitmask.ndim == 1:
        logits, bitmask = logits[None], bitmask[None]
    chosen = logits
    if indices is not None:
        at = torch.tensor(list(indices), dtype=torch.int64)
        chosen, bitmask = logits[at.to(logits.device)], bitmask[at.to(bitmask.device)]
    apply(chosen, bitmask)
    if vocab_size is not None:
        chosen[:, vocab_size:] = float("-inf")
    if indices is not None:
        logits[at.to(logits.device)] = chosen
