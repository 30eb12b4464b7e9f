"""Beam search under a constraint, over a model of transformers and its logits processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ...table.constraint import Constraint
from .. import torch_ops
from ..decode.beam import beam_search
from ..device.backend import Operations
from ..device.device_table import Selection
from . import compat
from .arguments import shortest_match
from .batch import BatchRows, RowStates, choose, each_array
from .compat import Model, logits_process

if TYPE_CHECKING:
    from transformers import GenerationConfig


class NoBeamError(ValueError):
    """Nothing that is allowed has a score."""


class Beams(logits_process.LogitsProcessor):
    """The constraint in beam search: a processor, and the operations that `beam_search` is written against.

    Scores have gone through the processors when they come to `select`, so that nothing is left to be masked there.
    """

    arrays = torch_ops.arrays

    def __init__(
        self, rows: BatchRows, elements: list[Constraint | None], first: int, eos: int | None, ends: list[int]
    ) -> None:
        self._rows = rows
        self._state = rows.start()
        self._first = first
        self._ends = torch.tensor(ends, dtype=torch.int64, device=rows.order.device)
        lengths = [None if t is None else t.max_length for t in elements]
        fixed = {None if t is None else t.fixed_length for t in elements}
        self.eos = eos
        self.min_length = min(shortest_match(t) for t in elements)
        self.max_length = None if None in lengths else max(cast(list[int], lengths))
        self.fixed_length = fixed.pop() if len(fixed) == 1 else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._rows.mask(scores, self._state, input_ids.shape[1] - self._first, floor=None)

    def start(self, dev: object, batch: int) -> Any:
        return each_array(lambda x: x[:: x.shape[0] // batch], self._state)  # the rows of an element follow each other

    def first_tokens(self, dev: object, cache: object, count: int, token: int) -> Tensor:
        return self._rows.order.new_full((count,), token)

    def accepting(self, dev: object, state: RowStates) -> Tensor:
        return self._rows.accepting(state)

    def select(
        self, dev: object, scores: Tensor, state: RowStates, totals: Tensor, beams: int, level: int, renormalize: bool
    ) -> Selection:
        batch, m = totals.shape
        scores = scores.index_fill(1, self._ends, -torch.inf)
        width = scores.shape[1]
        grown = (scores.view(batch, m, width) + totals[:, :, None]).view(batch, -1)
        best, at = torch_ops.arrays.top_k(torch.where(grown.isnan(), -torch.inf, grown), beams)
        alive = best > -torch.inf
        parents = at // width
        tokens = torch.where(alive, at - parents * width, 0)
        row = (parents + m * torch.arange(batch, device=parents.device)[:, None]).view(-1)
        state = self._rows.advance(torch_ops.arrays.gather(state, row), tokens.view(-1), level)
        self._state = choose(alive.view(-1), state, self._rows.lost)
        self._rows.keep(lambda: [self._state])
        return Selection(best, parents, tokens, cast(Any, self._state))

    def end_scores(self, dev: object, scores: Tensor, state: RowStates, renormalize: bool) -> Tensor:
        return scores.index_select(1, self._ends).logsumexp(dim=1)


def search_beams(
    model: Model,
    input_ids: Tensor,
    search: Beams,
    room: int,
    processors: Any,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
) -> Any:
    """Return what beam search finds, as `generate` returns it."""
    has_eos = search.eos is not None
    beams, first = config.num_beams, input_ids.shape[1]
    batch = input_ids.shape[0] // beams

    def step(tokens: Tensor, ids: Tensor, t: int) -> tuple[Tensor, Tensor]:
        nonlocal model_kwargs
        if t == 0:
            outputs, model_kwargs = compat.first_step(model, input_ids, config, model_kwargs)
        else:
            ids = torch.cat([ids, tokens[:, None]], dim=1)
            outputs, model_kwargs = compat.next_step(model, ids, model_kwargs)
        return processors(ids, torch_ops.arrays.log_softmax(outputs.logits[:, -1].to(ids.device))), ids

    def gather(ids: Tensor, index: Tensor) -> Tensor:
        compat.reorder_cache(model, model_kwargs, index, same_inputs=True)
        return ids.index_select(0, index)

    found = beam_search(
        step,
        input_ids,
        search,
        ops=cast(Operations, search),
        batch=batch,
        beams=beams,
        max_tokens=room,
        length_penalty=config.length_penalty,
        count_eos=True,
        gather=gather,
    )
    if not bool(found.valid[:, 0].all()):
        raise NoBeamError(
            "the other logits processors, or scores that are not numbers, leave no match: "
            "see to min_new_tokens, bad_words_ids, eos_token_ids and the like; with distances=False, to max_new_tokens"
        )
    keep = config.num_return_sequences
    tokens, lengths = found.tokens[:, :keep].flatten(0, 1), found.lengths[:, :keep].reshape(-1, 1)
    valid = found.valid[:, :keep].reshape(-1, 1)
    pad = compat.pad_token(config)
    if pad is None:
        pad = input_ids.new_tensor(0 if search.eos is None else search.eos)
    column = torch.arange(tokens.shape[1] + has_eos, device=tokens.device)
    tokens = torch.nn.functional.pad(tokens, (0, int(has_eos)))
    written = torch.where(column < lengths, tokens, pad.to(tokens.device))
    if search.eos is not None:
        written = torch.where(valid & (column == lengths), search.eos, written)
    longest = int(torch.where(valid, lengths, 0).max()) + has_eos
    prompt = input_ids.view(batch, beams, first)[:, :keep].flatten(0, 1)
    sequences = torch.cat([prompt, written[:, :longest]], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    return compat.beam_output(model, sequences, found.scores[:, :keep].reshape(-1))
