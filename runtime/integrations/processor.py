"""A logits processor for `generate` of transformers.

It keeps the state of every row on the device and never waits for it, but where texts might hold a token that ends them.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import compat
from .arguments import Tables
from .batch import BatchConstraint, BatchRows, RowStates, choose, each_array
from .compat import logits_process

_BLOCK = 1 << 24  # comparisons made at once


class _Column(NamedTuple):
    """Where rows stood after one of their columns."""

    call: int  # at which it was written: rows are in the order of that call
    state: RowStates
    written: Tensor | int  # tokens


@dataclass(frozen=True, eq=False)
class _Memory:
    """What a processor keeps from one call to the next.

    Beams are reordered at every call, so that what is kept of earlier columns is only put in order when rows go back.
    """

    rows: BatchRows
    first: int  # columns of the prompt, or fewer: a later start is found on the device
    start: Tensor | int  # columns of the prompt
    ids: Tensor  # (n, L) of the last call
    columns: list[_Column]  # (L - first + 1) after each column from `first` on
    parents: list[Tensor]  # of each call, (n,) the row of the call before that each row continues


class ConstraintLogitsProcessor(logits_process.LogitsProcessor):
    """Keeps what `model.generate` writes inside one table or sorted matrix, or one for each element of the batch.

    For greedy decoding, sampling, beam search, assisted decoding; decoder-only and encoder-decoder models. Pass it as
    `logits_processor=[...]`. It may be used for any number of calls.

    tables: one table for all rows, or a list with one for each element of the batch, None for no constraint; with
    `num_beams` or `num_return_sequences` an element has several rows. max_tokens: so many tokens, EOS aside, are
    enough for a complete match, always; one number, or one for each table. Let `max_new_tokens` be one more, so that
    EOS has its place. eos_token_ids: tokens that mean EOS besides the table's own; pass all those that generation ends
    with (`model.generation_config.eos_token_id`), as one that stands inside a match would cut it short. A text is then
    written without them, spelt another way; sequences of tokens that hold one are refused, and where a text has come to
    nothing else, that is an error. Sorted matrices and tables without EOS need one here.

    What is written begins after the prompt: with encoder-decoder models, after `decoder_input_ids`, which may hold the
    code of a language. A token that transformers forces to come first (`forced_bos_token_id` of BART and mBART) is let
    pass, as no part of a match; it takes one more of `max_new_tokens`.

    transformers reorders beams without telling, so rows are recognised by what they hold: the state of a row is that
    of the row of the last call which it continues. Each run of `generate` starts anew, whatever its prompt. In a loop
    of your own `reset` says where a text starts; without it, rows that are those of the last call and one token more
    go on, as do rows that went back, and all others start anew. After its end a row gets nothing but EOS; rows that
    are no match, with which transformers fills up its beams, may only end as well.

    Scores that other processors set to -inf can still be chosen where the constraint leaves nothing else.

    Raises TypeError for what are no tables or numbers, ValueError for limits below a table's shortest match, for a
    table that could not end, and for rows that cannot be shared out evenly; ConstraintError for an end that a table's
    sequences hold; VocabularyMismatchError if the model's scores are narrower than a table's vocabulary.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        max_tokens: int | Sequence[int | None] | None = None,
        eos_token_ids: int | Sequence[int] = (),
    ) -> None:
        self._constraint = BatchConstraint(tables, max_tokens, eos_token_ids)
        self._runs: dict[int, tuple[weakref.ref[Any], _Memory]] = {}  # of `generate`, by the id of its processors' list
        self._alone: _Memory | None = None  # of calls from elsewhere

    def __repr__(self) -> str:
        return f"ConstraintLogitsProcessor({self._constraint.elements})"

    def reset(self) -> None:
        """Forget all rows: the next call is the first of a prompt."""
        self._runs.clear()
        self._alone = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores (n, V) with -inf at every token that may not follow input_ids (n, L)."""
        ids = input_ids.to(scores.device, copy=True)
        frame = compat.frame_of_list(sys._getframe(1))
        if frame is None:
            rows = self._rows(self._alone, ids)
            memory = self._alone = _follow(self._alone, rows, ids, most=1)
        else:
            run = compat.list_in(frame)
            if _forces_first(run, ids):
                return scores
            before = self._of(run) or self._around(frame)
            rows = self._rows(before, ids)
            memory = _follow(before, rows, ids, most=None)
            for key, (known, _) in list(self._runs.items()):
                if known() is None:
                    self._runs.pop(key, None)
            self._runs[id(run)] = weakref.ref(run), memory
        rows.keep(partial(self._held, rows))
        return rows.mask(scores, memory.columns[-1].state, memory.columns[-1].written)

    def _rows(self, memory: _Memory | None, ids: Tensor) -> BatchRows:
        """Return the rows that are known, or those of a batch (n, L) of which nothing is."""
        if memory is not None and (memory.rows.count, memory.rows.device) == (ids.shape[0], ids.device):
            return memory.rows
        return self._constraint.rows(ids.shape[0], ids.device)

    def _held(self, rows: BatchRows) -> list[RowStates]:
        """Return all states of rows that a run may come back to; an assistant's run shares those of its own."""
        known = [memory for run, memory in list(self._runs.values()) if run() is not None]
        memories = [memory for memory in [*known, self._alone] if memory is not None and memory.rows is rows]
        return [column.state for memory in memories for column in memory.columns]

    def _of(self, run: Any) -> _Memory | None:
        """Return what is known of a run."""
        known, memory = self._runs.get(id(run), (None, None))
        return memory if known is not None and known() is run else None

    def _around(self, frame: FrameType) -> _Memory | None:
        """Return what is known of the run that decodes with an assistant's, whose own texts start where it stands."""
        return self._of(compat.list_of_assisted_run(frame))


def _forces_first(processors: Any, ids: Tensor) -> bool:
    """Return whether another processor, here or in an assistant's run, writes the token that comes now."""
    return ids.shape[1] == 1 and any(isinstance(p, logits_process.ForcedBOSTokenLogitsProcessor) for p in processors)


def _follow(memory: _Memory | None, rows: BatchRows, ids: Tensor, most: int | None) -> _Memory:
    """Return what is known of rows of tokens (n, L), given what was of the rows of the call before.

    They go on where each is like a row of that call with at most `most` tokens more, or with fewer; else they start.
    """
    length = ids.shape[1]
    if (
        memory is None
        or memory.rows is not rows
        or length <= memory.first
        or (most is not None and length > memory.ids.shape[1] + most)
    ):
        return _Memory(rows, length, length, ids, [_Column(0, rows.start(), 0)], [rows.order])
    first = memory.first
    known = min(length - 1, memory.ids.shape[1])
    parent, found = _parents(ids[:, first:known], memory.ids[:, first:known], rows.per_element)
    same = found.all() & (ids[:, :first] == memory.ids[:, :first]).all()
    parents = [*memory.parents, parent]
    columns = memory.columns[: known - first + 1]
    call, state, written = columns[-1]
    for earlier in range(len(memory.parents) - 1, call, -1):  # of rows that go back, and no others
        parent = memory.parents[earlier].index_select(0, parent)
    state = each_array(lambda x: x.index_select(0, parent), state)
    for column in range(known, length):
        state = rows.advance(state, ids[:, column], written)
        written = written + 1
        columns.append(_Column(len(parents) - 1, state, written))
    fresh = ~same | (memory.start >= length)
    state = choose(fresh.expand(rows.count), rows.start(), state)
    columns[-1] = _Column(len(parents) - 1, state, torch.where(fresh, 0, written))
    return _Memory(rows, first, torch.where(fresh, length, memory.start), ids, columns, parents)


def _parents(now: Tensor, before: Tensor, together: int) -> tuple[Tensor, Tensor]:
    """Return a row of `before` (n, T) that is like each row of `now` (n, T), and whether there is one.

    Only the `together` rows of an element are compared with each other.
    """
    count, length = now.shape
    groups = count // together
    left, right = now.reshape(groups, together, 1, length), before.reshape(groups, 1, together, length)
    same = torch.ones(groups, together, together, dtype=torch.bool, device=now.device)
    block = max(1, _BLOCK // (count * together))
    for low in range(0, length, block):
        same &= (left[..., low : low + block] == right[..., low : low + block]).all(dim=-1)
    offset = torch.arange(groups, device=now.device)[:, None] * together
    return (same.int().argmax(dim=-1) + offset).view(-1), same.any(dim=-1).view(-1)
