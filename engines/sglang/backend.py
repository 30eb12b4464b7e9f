"""The two classes by which SGLang asks a grammar backend: one a server, one a request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarStats,
    InvalidGrammarObject,
    register_vocab_mask_buffer,
)
from torch import Tensor

from ...errors import MaskwrightError
from ...runtime.host.matcher import Matcher
from ..bitmask import allocate, apply, set_tokens
from ..constraints import EngineConstraints, Kind, format_of, tell_unenforced
from ..wording import said

if TYPE_CHECKING:
    import torch


_WAITING = 256  # threads, each of which waits for a process that compiles
_ANY = "$$ANY$$"  # what SGLang sends for any JSON object
_log = logging.getLogger(__name__)


class MaskwrightGrammar(BaseGrammarObject):  # type: ignore[misc]  # SGLang is no dependency of the checks
    """One request: a matcher and what SGLang expects of tokens after an end."""

    def __init__(self, matcher: Matcher, kind: Kind, source: str, stats: GrammarStats) -> None:
        super().__init__()
        self.matcher, self.kind, self.source, self.grammar_stats = matcher, kind, source, stats

    def accept_token(self, token: int) -> None:
        """Take a token; what follows an end is ignored. Raises ValueError for one that is not allowed."""
        self.current_token = token
        if not self.matcher.is_terminated and not self.matcher.advance(token):
            raise ValueError(f"token {token} is not allowed after {self.matcher.num_tokens} tokens")

    def rollback(self, k: int) -> None:
        """Take back the last tokens."""
        self.matcher.rollback(k)

    def is_terminated(self) -> bool:
        """Return whether the end was taken."""
        return self.matcher.is_terminated

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: torch.device) -> Tensor:
        """Return bitmasks in which everything is allowed: int32 (batch_size, ceil(V / 32)), in the host's memory."""
        return allocate(batch_size, vocab_size)

    def fill_vocab_mask(self, vocab_mask: Tensor, idx: int) -> None:
        """Write what is allowed next into a row."""
        self.matcher.fill_bitmask(vocab_mask, idx)

    @staticmethod
    def reset_vocab_mask(vocab_mask: Tensor) -> None:
        """Allow everything in all rows."""
        vocab_mask.fill_(-1)

    @staticmethod
    def move_vocab_mask(vocab_mask: Tensor, device: torch.device) -> Tensor:
        """Return bitmasks on the device of the logits."""
        return vocab_mask.to(device, non_blocking=True)

    @staticmethod
    def apply_vocab_mask(logits: Tensor, vocab_mask: Tensor) -> None:
        """Write -inf over logits that are not allowed, in place."""
        if logits.is_cuda:
            from sglang.kernels.ops.grammar.bitmask_ops import apply_token_bitmask_inplace_triton

            apply_token_bitmask_inplace_triton(logits, vocab_mask)
        else:
            apply(logits, vocab_mask)

    def copy(self) -> MaskwrightGrammar:
        """Return the same constraint at its start."""
        matcher = self.matcher.copy()
        matcher.reset()
        stats = replace(self.grammar_stats, is_cache_hit=True, tree_traversal_time=[])
        return MaskwrightGrammar(matcher, self.kind, self.source, stats)

    def try_jump_forward(self, tokenizer: object) -> tuple[list[int], str] | None:
        """Return the tokens by which the tokenizer writes what must follow, and no text; None where there are none."""
        tokens = self.matcher.forced_tokens()
        return (tokens, "") if tokens else None

    def jump_forward_str_state(self, helper: tuple[list[int], str]) -> tuple[str, int]:
        """Return the text of a jump, which has tokens instead, and no state: a matcher has its own."""
        return helper[1], -1

    def jump_and_retokenize(self, old_output_ids: list[int], new_output_ids: list[int], next_state: int) -> None:
        """Stand after other tokens than the last ones taken. Raises ValueError if these are not allowed."""
        same = 0
        for old, new in zip(old_output_ids, new_output_ids, strict=False):
            if old != new:
                break
            same += 1
        self.matcher.rollback(len(old_output_ids) - same)
        if not self.matcher.accept_tokens(new_output_ids[same:]):
            raise ValueError(f"tokens {new_output_ids[same:]} are not allowed after {self.matcher.num_tokens} tokens")


class MaskwrightBackend(BaseGrammarBackend):  # type: ignore[misc]  # SGLang is no dependency of the checks
    """One server: the constraints of its tokenizer.

    SGLang's `ReasonerGrammarBackend` around it asks for masks of a thought, which has no grammar.
    """

    is_support_token_filter = True
    move_vocab_mask = staticmethod(MaskwrightGrammar.move_vocab_mask)
    apply_vocab_mask = staticmethod(MaskwrightGrammar.apply_vocab_mask)

    def __init__(self, constraints: EngineConstraints) -> None:
        super().__init__()
        self.executor = ThreadPoolExecutor(_WAITING)
        self.constraints = self._framing = constraints

    @staticmethod
    def allocate_vocab_mask(vocab_size: int, batch_size: int, device: torch.device) -> Tensor:
        """Return bitmasks in which everything is allowed: int32 (batch_size, ceil(V / 32)), in the host's memory."""
        return allocate(batch_size, vocab_size)

    @staticmethod
    def set_token_filter(
        vocab_mask: Tensor, token_ids: list[int], batch_idx: int, is_allowed: bool = True, reset_vocab_mask: bool = True
    ) -> None:
        """Allow or deny tokens in a row of bitmasks. With a reset the other tokens are denied or allowed."""
        if reset_vocab_mask:
            vocab_mask[batch_idx].fill_(0 if is_allowed else -1)
        set_tokens(vocab_mask[batch_idx], token_ids, is_allowed)

    def reserve_framing_tokens(self, token_ids: Sequence[int]) -> None:
        """Have these tokens spell no text within the frames of `compile_framed_grammar`."""
        self._framing = self.constraints.without_text(token_ids)

    def compile_framed_grammar(
        self, grammar: MaskwrightGrammar, frame: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> BaseGrammarObject:
        """Return the grammar of a frame around what another grammar allows.

        frame: makes a structural tag of the format that it contains. Thoughts in it are text without control tokens.
        """
        tag = _as_text(frame(format_of(grammar.kind, grammar.source)))
        return self._made("structural_tag", json.dumps(tag), self._framing)

    def initialize_vocab_mask_buffer(self, name: str, vocab_size: int, max_rows: int, device: torch.device) -> Tensor:
        """Return bitmasks that SGLang uses again and again."""
        found: Tensor = register_vocab_mask_buffer(name, allocate(max_rows, vocab_size), max_rows)
        return found

    def dispatch_json(self, key_string: str) -> BaseGrammarObject:
        """Return the grammar of a JSON Schema."""
        return self._made("json_object" if key_string == _ANY else "json", key_string)

    def dispatch_regex(self, key_string: str) -> BaseGrammarObject:
        """Return the grammar of a pattern."""
        return self._made("regex", key_string)

    def dispatch_ebnf(self, key_string: str) -> BaseGrammarObject:
        """Return the grammar of a text in EBNF."""
        return self._made("ebnf", key_string)

    def dispatch_structural_tag(self, key_string: str) -> BaseGrammarObject:
        """Return the grammar of text with tags."""
        return self._made("structural_tag", key_string)

    def _made(self, kind: Kind, source: str, constraints: EngineConstraints | None = None) -> BaseGrammarObject:
        """Return a request's grammar, or what SGLang answers with an error that says why there is none."""
        try:
            matcher = (constraints or self.constraints).matcher(kind, source)
            return MaskwrightGrammar(matcher, kind, source, GrammarStats(dispatch_type=kind))
        except MaskwrightError as error:
            why = said(error)
        _log.warning("a constraint (%s) cannot be compiled: %s", kind, why)
        return InvalidGrammarObject(why)


def tell_of_request(request: str, grammar: object) -> None:
    """Log what of a request is not enforced, once its grammar is compiled.

    grammar: of the request, also in SGLang's own for thoughts, or the future of one.
    """
    if isinstance(grammar, Future):
        grammar.add_done_callback(
            lambda made: None if made.cancelled() or made.exception() else tell_of_request(request, made.result())
        )
        return
    inner = getattr(grammar, "grammar", grammar)
    if isinstance(inner, MaskwrightGrammar):
        tell_unenforced(request, inner.matcher)


def _as_text(value: Any) -> Any:
    """Return a part of a structural tag with any text in place of any tokens, of which it excludes control tokens."""
    if isinstance(value, list):
        return [_as_text(each) for each in value]
    if not isinstance(value, dict) or value.get("type") in ("json_schema", "regex", "grammar"):
        return value
    if value.get("type") == "any_tokens":
        return {"type": "any_text"} | {name: value[name] for name in ("max_tokens",) if name in value}
    return {name: _as_text(each) for name, each in value.items()}
