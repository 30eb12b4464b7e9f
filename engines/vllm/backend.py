"""The two classes by which vLLM asks a backend of structured outputs: one an engine, one a request."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from torch import Tensor
from vllm.v1.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)

from ...runtime.host.matcher import Matcher
from ..bitmask import allocate
from ..constraints import EngineConstraints, Kind, tell_unenforced

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.tokenizers import TokenizerLike


KINDS: dict[str, Kind] = {
    "JSON": "json",
    "JSON_OBJECT": "json_object",
    "REGEX": "regex",
    "CHOICE": "choice",
    "GRAMMAR": "grammar",
    "STRUCTURAL_TAG": "structural_tag",
}
"""By vLLM's name of what a request asks for."""


class MaskwrightGrammar(StructuredOutputGrammar):  # type: ignore[misc]  # vLLM is no dependency of the checks
    """One request: a matcher and what vLLM expects of tokens after an end."""

    def __init__(self, matcher: Matcher, is_told: bool = False) -> None:
        self.matcher, self._is_told = matcher, is_told

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Take tokens and return True; False where one is not allowed. What follows an end is ignored, as by vLLM's.

        The first call also logs what of the request is not enforced: no earlier one has the id.
        """
        if not self._is_told:
            self._is_told = True
            tell_unenforced(request_id, self.matcher)
        for token in tokens:
            if self.matcher.is_terminated:
                break
            if not self.matcher.advance(token):
                return False
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the tokens of a draft that may follow, from the first on; -1 stands for none, and ends it."""
        size = self.matcher.table.vocab_size
        return tokens[: self.matcher.validate_tokens(takewhile(lambda token: 0 <= token < size, tokens))]

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        self.matcher.rollback(num_tokens)

    def fill_bitmask(self, bitmask: Tensor, batch_index: int) -> None:
        """Write what is allowed next into a row of the engine's bitmask."""
        self.matcher.fill_bitmask(bitmask, batch_index)

    def is_terminated(self) -> bool:
        """Return whether the end was taken."""
        return self.matcher.is_terminated

    def reset(self) -> None:
        """Go back to the start."""
        self.matcher.reset()


class MaskwrightBackend(StructuredOutputBackend):  # type: ignore[misc]  # vLLM is no dependency of the checks
    """One engine: the constraints of its tokenizer."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        tokenizer: TokenizerLike,
        vocab_size: int,
        constraints: EngineConstraints,
        tells: bool = True,
    ) -> None:
        """Use the constraints of a tokenizer; tells: whether grammars log what of a request is not enforced."""
        super().__init__(vllm_config, tokenizer, vocab_size)
        self.constraints, self._tells = constraints, tells

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> MaskwrightGrammar:
        """Return a request's grammar. Raises ConstraintError of any kind."""
        self.constraints.check_stops(sorted(stop_token_ids or ()))
        return MaskwrightGrammar(self.constraints.matcher(KINDS[request_type.name], grammar_spec), not self._tells)

    def allocate_token_bitmask(self, max_num_seqs: int) -> Tensor:
        """Return bitmasks in which everything is allowed: int32 (max_num_seqs, ceil(V / 32))."""
        return allocate(max_num_seqs, self.vocab_size)

    def destroy(self) -> None:
        """Do nothing: tables go with the process."""
