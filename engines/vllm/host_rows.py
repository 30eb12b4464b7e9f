"""Rows of vLLM's first model runner: a matcher for each request, on the host, moved on by the tokens it has written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import process_dict_updates

from ...runtime.host.matcher import Matcher
from ..bitmask import apply
from ..catalogues import Catalogues, SidConstraint, request_of
from .requests import items_of

if TYPE_CHECKING:
    from vllm.v1.sample.logits_processor import BatchUpdate


_log = logging.getLogger(__name__)


class HostRows:
    """The requests of a batch that name a catalogue, by their rows."""

    def __init__(self, catalogues: Catalogues, max_model_len: int) -> None:
        self._catalogues, self._longest = catalogues, max_model_len
        self.held: dict[int, ItemRow] = {}

    def update(self, batch_update: BatchUpdate | None) -> None:
        """Take in which requests have come, gone and moved; None: nothing has changed.

        A request that comes back after it was preempted brings the tokens that it had written, of the items that it
        began with.
        """
        process_dict_updates(self.held, batch_update, self._row)

    def _row(self, params: SamplingParams, prompt: list[int] | None, written: list[int]) -> ItemRow | None:
        asked = request_of(params.extra_args)
        if asked is None:
            return None
        room = params.max_tokens if prompt is None else min(params.max_tokens, self._longest - len(prompt))
        return ItemRow(items_of(params, asked, self._catalogues).constraint, room, params.eos_token_id, written)

    def apply(self, logits: Tensor) -> Tensor:
        """Write -inf over logits (n, V) that are not allowed, in place, and return them."""
        if not self.held:
            return logits
        words = np.zeros((len(self.held), -(-logits.shape[1] // 32)), np.uint32)
        for at, row in enumerate(self.held.values()):
            row.fill(words, at)
        rows = torch.tensor(list(self.held), device=logits.device)
        masked = logits.index_select(0, rows)
        apply(masked, torch.from_numpy(words.view(np.int32)))
        return logits.index_copy_(0, rows, masked)


class ItemRow:
    """One request: what it has written of an item, and what may come next.

    written: vLLM's own list, to which it appends. room: how many tokens may be written. Where no item has as few,
    nothing is written: such a request is refused at admission, unless its prompt alone leaves so few. Nothing is
    written either where no item was left (None) when the request began.
    """

    def __init__(self, table: SidConstraint | None, room: int, end: int, written: list[int]) -> None:
        self._written, self._end, self._ends = written, end, 0
        self._own_end = table is not None and table.eos is not None
        self._matcher: Matcher | None = None
        if table is None:
            return
        if room >= table.min_length:
            self._matcher = Matcher(
                table, max_tokens=room if table.max_length is None or table.max_length > room else None
            )
        else:
            _log.warning(
                "an answer is empty: its prompt leaves %d tokens, and an item takes %d", room, table.min_length
            )

    def fill(self, words: NDArray[np.uint32], at: int) -> None:
        """Write what may come next into a row of words (rows, ceil(V / 32)) of zeros.

        Raises RuntimeError for a token that was written without being allowed.
        """
        ends = True
        if self._matcher is not None:
            self._follow(self._matcher)
            if not self._ends:
                self._matcher.fill_bitmask(words, at)
            ends = not self._own_end and (self._ends > 0 or self._matcher.is_accepting)
        if ends:
            words[at, self._end >> 5] |= np.uint32(1 << (self._end & 31))

    def _follow(self, matcher: Matcher) -> None:
        """Stand where the text stands: its last tokens may be new, or have been taken back."""
        back = matcher.num_tokens + self._ends - len(self._written)
        if back > 0:
            of_ends = min(back, self._ends)
            self._ends -= of_ends
            matcher.rollback(back - of_ends)
        for token in self._written[matcher.num_tokens + self._ends :]:
            if token == self._end and not self._own_end and matcher.is_accepting:
                self._ends += 1
            elif self._ends or token < 0 or not matcher.advance(token):
                raise RuntimeError(
                    f"vLLM wrote token {token} where the catalogue does not allow it, after {matcher.num_tokens} tokens"
                )
