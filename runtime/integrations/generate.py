"""A decoding method for `generate` of transformers that carries the states of rows itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import ConstraintError
from ...table.constraint import Constraint
from ...table.several_ends import one_or_all
from ..device.on_demand import has_lengths
from . import compat
from .arguments import GIVE_EOS, Tables, elements_of, limits_of, shortest_match, token_ids
from .batch import BatchConstraint, BatchRows
from .beams import Beams, search_beams
from .compat import Model, logits_process, stopping_criteria

if TYPE_CHECKING:
    from transformers import (
        GenerationConfig,
        LogitsProcessorList,
    )


def constrained_generate(
    model: Model,
    input_ids: Tensor,
    *,
    tables: Tables,
    max_tokens: int | Sequence[int | None] | None = None,
    eos_token_ids: int | Sequence[int] = (),
    distances: bool = True,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Return what `model.generate` returns; every sequence is a complete match within `max_new_tokens`.

    Called by transformers: `model.generate(**inputs, custom_generate=constrained_generate, tables=table,
    max_new_tokens=30)`, with any of `num_beams`, `do_sample`, `num_return_sequences`, `length_penalty` and so on.

    distances: False to have what is too long cut off, as of grammars of which there is no table, or none within its
    budget, since nobody knows how far their ends are; beam search then returns what was complete in time. By any other
    table sequences are complete in time all the same.
    tables, max_tokens: as of `ConstraintLogitsProcessor`; `place(table, device)` keeps each call from copying a table
    to the device. The tables of one call have the same EOS, or none of them one. A match may have one token less than
    `max_new_tokens`, as EOS takes a place, and `forced_bos_token_id` of an encoder-decoder model another.
    eos_token_ids: tokens that mean EOS besides the table's ends and all of the generation config's; none of them stands
    inside a match: see `ConstraintLogitsProcessor`. Tables without EOS (semantic ids) and sorted matrices are complete
    without one, whatever the config ends with: all sequences then have the one length that
    all matches must have; in beam search they may have several.

    `min_new_tokens` holds where a match can be so long; in beam search it rules out all shorter ones.

    States are carried from step to step: by row, and in beam search by the beam that a beam continues. Beam search is
    `maskwright.runtime.decode.beam_search`: the best of all allowed continuations go on, ended sequences take no
    beam's place, and it goes on to the last step, whatever `early_stopping` says. Its scores are sums of the
    log-probabilities that logits processors return, divided by (tokens, EOS among them) ** length_penalty; of several
    tokens that mean EOS the probabilities are added, and the table's own is written. Where there
    are fewer sequences than are asked for, rows of padding are returned, with a score of -inf. With
    `return_dict_in_generate` they come with `sequences_scores`. A streamer is given the prompt alone: transformers
    does not pass it on.

    Raises TypeError for what are no tables or numbers; ConstraintError for a grammar without arrays unless
    distances=False, and for an end that a table's sequences hold; ValueError where `max_new_tokens` is too few for a
    match, for tables whose ends differ, for eos_token_ids where no table has an EOS, and for what beam search does not
    do: sampling, stopping criteria, returning attentions, hidden states or the logits of steps.
    """
    most = generation_config.max_length - input_ids.shape[1]
    input_ids = with_forced_token(input_ids, generation_config, model, model_kwargs)
    elements = elements_of(tables)
    ends = compat.end_tokens(generation_config)
    given_ends = token_ids(eos_token_ids)
    ends = list(dict.fromkeys(ends + given_ends))
    eos = _eos_of(elements, ends)
    if eos is None and given_ends:
        raise ValueError(
            f"eos_token_ids={eos_token_ids} would not be written: no table here has an EOS, so sequences are complete "
            "without one. Leave it out, or compile with eos="
        )
    ends = [] if eos is None else ends
    room = generation_config.max_length - input_ids.shape[1] - (eos is not None)
    finite = [table is None or has_lengths(table) for table in elements]
    if distances and not all(finite):
        raise ConstraintError(
            f"table {finite.index(False)} is of a grammar of which there is no table, or none within its budget, so "
            "nobody knows how many tokens an end is away, and a match may not be complete within max_new_tokens: pass "
            "distances=False to have it cut off then"
        )
    needed = max(1, *(shortest_match(table) for table, known in zip(elements, finite, strict=True) if known), 0)
    if needed > room:
        raise ValueError(
            f"max_new_tokens={most} leaves room for {room} tokens of a match{'' if eos is None else ' besides EOS'}, "
            f"and the shortest needs {needed}: raise it to {most - room + needed}"
        )
    given = zip(limits_of(max_tokens, len(elements)), finite, strict=True)
    limits = [limit if not known else room if limit is None else min(limit, room) for limit, known in given]
    constraint = BatchConstraint(tables, limits, ends, needs_eos=False)
    rows = constraint.rows(input_ids.shape[0], input_ids.device)
    if generation_config.num_beams > 1:
        _check_search(generation_config, stopping_criteria)
        search = Beams(rows, elements, input_ids.shape[1], eos, constraint.ends(None))
        processors = _insert(logits_processor, search)
        return search_beams(model, input_ids, search, room, processors, generation_config, model_kwargs)
    if eos is not None and compat.pad_token(generation_config) is None:
        compat.set_pad_token(generation_config, input_ids.new_tensor(eos))
    return compat.sample(
        model,
        input_ids,
        logits_processor=_insert(logits_processor, _ByRow(rows)),
        stopping_criteria=_stops(stopping_criteria, elements, input_ids, constraint.ends(None)),
        generation_config=generation_config,
        **model_kwargs,
    )


def with_forced_token(
    input_ids: Tensor, config: GenerationConfig, model: Model, model_kwargs: dict[str, Any]
) -> Tensor:
    """Return input_ids with the token that transformers forces to come next, if it does: it is no part of a match."""
    if config.forced_bos_token_id is None or input_ids.shape[1] != 1:
        return input_ids
    if not model.config.is_encoder_decoder:
        raise ValueError(
            f"forced_bos_token_id={config.forced_bos_token_id} is for encoder-decoder models: write the token at the "
            "end of the prompt"
        )
    mask = model_kwargs.get("decoder_attention_mask")
    if mask is not None:
        model_kwargs["decoder_attention_mask"] = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    return torch.cat([input_ids, torch.full_like(input_ids, config.forced_bos_token_id)], dim=1)


def _eos_of(elements: list[Constraint | None], ends: list[int]) -> int | None:
    """Return the EOS of all tables, or None where none has one; ends: further tokens that mean EOS."""
    found = {table.ends for table in elements if table is not None}
    if len(found) > 1:
        each = sorted(str(one_or_all(own)) for own in found)
        raise ValueError(
            f"the tables of one call must have the same EOS, or none of them one, not {', '.join(each)}: {GIVE_EOS}; "
            "a ConstraintLogitsProcessor takes tables whose EOS differ"
        )
    eos = next(iter(found.pop()), None) if found else next(iter(ends), None)
    if eos is None and None in elements:
        if not ends:
            raise ValueError(f"rows without a constraint end with EOS, and neither table nor model has one: {GIVE_EOS}")
        raise ValueError(
            f"rows without a constraint end with EOS, here token {ends[0]}, and the tables of this call have none, as "
            "a sorted matrix never has, so that ends differ: compile them with eos=, or use a "
            "ConstraintLogitsProcessor, which takes eos_token_ids for all"
        )
    return eos


def _stops(criteria: list[Any], elements: list[Constraint | None], input_ids: Tensor, ends: list[int]) -> Any:
    """Return the stopping criteria, with ends in the place of the generation config's; without any, matches' length."""
    replaced: tuple[type, ...] = (stopping_criteria.EosTokenCriteria,)
    if ends:
        own: Any = stopping_criteria.EosTokenCriteria(input_ids.new_tensor(ends))
    else:
        lengths = {None if table is None else table.fixed_length for table in elements}
        length = lengths.pop() if len(lengths) == 1 else None
        if not length:
            raise ValueError(
                "tables have no EOS and matches differ in length, so there would be no telling where one ends: "
                f"{GIVE_EOS}; beam search (num_beams=2 or more) can do without"
            )
        own = stopping_criteria.MaxLengthCriteria(input_ids.shape[1] + length)
        replaced += (stopping_criteria.MaxLengthCriteria,)
    kept = [criterion for criterion in criteria or [] if not isinstance(criterion, replaced)]
    return stopping_criteria.StoppingCriteriaList([*kept, own])


def _insert(processors: LogitsProcessorList, constraint: logits_process.LogitsProcessor) -> Any:
    """Return a list of processors with the constraint before those that choose among what is allowed."""
    out = logits_process.LogitsProcessorList(processors or [])
    at = next((i for i, processor in enumerate(out) if isinstance(processor, compat.WARPERS)), len(out))
    out.insert(at, constraint)
    return out


class _ByRow(logits_process.LogitsProcessor):
    """The constraint where each row continues the row it was."""

    def __init__(self, rows: BatchRows) -> None:
        self._rows = rows
        self._state = rows.start()
        self._first: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._first is None:
            self._first = input_ids.shape[1]
        else:
            self._state = self._rows.advance(self._state, input_ids[:, -1], input_ids.shape[1] - self._first - 1)
            self._rows.keep(lambda: [self._state])
        return self._rows.mask(scores, self._state, input_ids.shape[1] - self._first)


def _check_search(config: GenerationConfig, criteria: list[Any]) -> None:
    """Raise ValueError for what was asked of beam search and is not done."""
    asked = [
        name
        for name in ("do_sample", "low_memory", "output_attentions", "output_hidden_states", "output_logits")
        if getattr(config, name, None)
    ]
    known = (stopping_criteria.MaxLengthCriteria, stopping_criteria.EosTokenCriteria)
    asked += [type(criterion).__name__ for criterion in criteria or [] if not isinstance(criterion, known)]
    if asked:
        raise ValueError(
            f"beam search in constrained_generate does without {', '.join(asked)}: leave it out, "
            "or use transformers' own with a ConstraintLogitsProcessor"
        )
