"""A logits processor for `generate` of transformers."""

from __future__ import annotations

from torch import Tensor

from ..bitmasks import allocate_token_bitmask, apply_token_bitmask_inplace
from ..compiler import CompiledGrammar
from ..exception import UsageError
from ..matcher import GrammarMatcher


class LogitsProcessor:
    """Masks the logits of one call of `generate`; the next call needs another one.

    compiled_grammar: one for all rows, or one for each. Raises UsageError, when it is called, for another number of
    rows, and for a token that is not allowed.
    """

    def __init__(self, compiled_grammar: CompiledGrammar | list[CompiledGrammar]) -> None:
        self.compiled_grammars = compiled_grammar if isinstance(compiled_grammar, list) else [compiled_grammar]
        self.full_vocab_size = self.compiled_grammars[0].tokenizer_info.vocab_size
        self.matchers: list[GrammarMatcher] = []
        self.token_bitmask: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores with -inf at what may not follow; a row that has ended keeps the mask of its last token."""
        rows, begun = len(input_ids), bool(self.matchers)
        if not begun:
            given = self.compiled_grammars
            self.compiled_grammars = given * rows if len(given) == 1 else given
            self.matchers = [GrammarMatcher(each) for each in self.compiled_grammars]
            self.token_bitmask = allocate_token_bitmask(rows, self.full_vocab_size)
        if len(self.matchers) != rows or self.token_bitmask is None:
            raise UsageError(f"there are {rows} rows of tokens and {len(self.matchers)} grammars: make one for each")
        for row, matcher in enumerate(self.matchers):
            if matcher.is_terminated():
                continue
            if begun and not matcher.accept_token(token := int(input_ids[row, -1])):
                raise UsageError(f"token {token} of row {row} is not allowed: take the logits that this returns")
            if not matcher.is_terminated():
                matcher.fill_next_token_bitmask(self.token_bitmask, row)
        apply_token_bitmask_inplace(scores, self.token_bitmask)
        return scores
