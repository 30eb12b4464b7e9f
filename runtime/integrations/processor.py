"""A logits processor for `generate` of transformers.

It keeps the state of every row on the device and never waits for it, but where texts might hold a token that ends them.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .. import torch_ops
from . import compat
from .arguments import Tables
from .batch import BatchConstraint, BatchRows, RowStates, choose, each_array
from .compat import logits_process

if TYPE_CHECKING:
    from transformers import (
        LogitsProcessorList,
    )


BLOCK = 1 << 24  # comparisons made at once


class _Column(NamedTuple):
    """Where rows stood after one of their columns."""

    call: int  # at which it was written: rows are in the order of that call
    state: RowStates
    written: Tensor | int  # tokens


@dataclass(frozen=True, eq=False)
class Report:
    """Which rows of a call continue no row of the call before: a copy on its way from the device to the host."""

    unknown: Tensor  # (n,) bool, on the host
    done: Callable[[], bool]  # whether the copy is there


@dataclass(frozen=True, eq=False)
class _Memory:
    """What a processor keeps from one call to the next.

    Beams are reordered at every call, so that what is kept of earlier columns is only put in order when rows go back.
    """

    rows: BatchRows
    first: int  # columns of the prompt
    ids: Tensor  # (n, L) of the last call
    columns: list[_Column]  # (L - first + 1) after each column from `first` on
    parents: list[Tensor]  # of each call, (n,) the row of the call before that each row continues
    unread: list[Report]  # of the last calls, as long as the device was not done with them


class ConstraintLogitsProcessor(logits_process.LogitsProcessor):
    """Keeps what `model.generate` writes inside one table or sorted matrix, or one for each element of the batch.

    For greedy decoding, sampling, beam search, assisted decoding; decoder-only and encoder-decoder models. Pass it as
    `logits_processor=[...]`. It may be used for any number of calls.

    tables: one table for all rows, or a list with one for each element of the batch, None for no constraint; also what
    `place` has put on a device, so that several processors share it. With `num_beams` or `num_return_sequences` an
    element has several rows. max_tokens: so many tokens, EOS aside, are enough for a complete match, always; one
    number, or one for each table. Let `max_new_tokens` be one more, so that
    EOS has its place. A table whose vocabulary was made with all tokens that generation ends with,
    `eos=model.generation_config.eos_token_id`, needs no more. eos_token_ids: tokens that mean EOS besides the table's
    own; pass all those that generation ends with and the table does not have, as one that stands inside a match would
    cut it short. A text is then written without them, spelt another way; sequences of tokens that hold one are refused,
    and where a text has come to nothing else, that is an error.

    Sorted matrices and tables without EOS need no end where all sequences are as long: pass their length to `generate`
    as `max_new_tokens`, and `eos_token_id=None` if a token of theirs is the model's EOS. Scores are then those of the
    sequences alone, while an end counts with its log-probability, which changes the ranking. One step more is an error.

    What is written begins after the prompt: with encoder-decoder models, after `decoder_input_ids`, which may hold the
    code of a language. A token that transformers forces to come first (`forced_bos_token_id` of BART and mBART) is let
    pass, as no part of a match; it takes one more of `max_new_tokens`.

    transformers reorders beams without telling, so rows are recognised by what they hold: the state of a row is that
    of the row of the last call which it continues, prompt and all. Rows may change places, go back, and under one table
    for all rows also leave. A row that continues none of the last call is an error, never a new text: each run of
    `generate` starts anew, whatever its prompt; in a loop of your own, call `reset` before the first call of each batch
    of prompts. With one table for each element, rows stay with their element. After its end a row gets nothing but EOS;
    rows that are no match, with which transformers fills up its beams, may only end as well, and without an end get
    token 0 with a score of -1e6.

    On an accelerator the error comes at a later call, mostly the next one, as nothing waits for the device; until then
    such a row may only end. An assistant's run starts anew where it does not continue the run that it assists.

    Scores that other processors set to -inf can still be chosen where the constraint leaves nothing else.

    Raises TypeError for what are no tables or numbers, ValueError for limits below a table's shortest match, for a
    table that could not end, for rows that cannot be shared out evenly, and for rows that continue none of the last
    call; ConstraintError for an end that a table's sequences hold; VocabularyMismatchError if the model's scores are
    narrower than a table's vocabulary.
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
            memory = self._alone = _follow(self._alone, rows, ids)
        else:
            run = compat.list_in(frame)
            if _forces_first(run, ids):
                return scores
            before = self._of(run)
            assisted = None if before is not None else self._around(frame)
            if assisted is not None and not _may_continue(assisted, ids):
                assisted = None
            rows = self._rows(before or assisted, ids)
            memory = _follow(before or assisted, rows, ids, may_start=assisted is not None)
            for key, (known, _) in list(self._runs.items()):
                if known() is None:
                    self._runs.pop(key, None)
            self._runs[id(run)] = weakref.ref(run), memory
        if compat.list_of_assisted_run(frame) is None:  # which looks one token further than it writes
            self._constraint.check_incomplete(ids.shape[1] - memory.first)
        rows.keep(partial(self._held, rows))
        return rows.mask(scores, memory.columns[-1].state, memory.columns[-1].written)

    def _rows(self, memory: _Memory | None, ids: Tensor) -> BatchRows:
        """Return the rows that are known, or those of a batch (n, L) of which nothing is. Raises ValueError."""
        if memory is None:
            return self._constraint.rows(ids.shape[0], ids.device)
        known = memory.rows
        if (known.count, known.device) == (ids.shape[0], ids.device):
            return known
        if known.device != ids.device:
            raise ValueError(f"the rows of the last call are on {known.device}, these on {ids.device}: {_RESET}")
        if len(self._constraint.elements) > 1 or known.grow:
            why = "each element has its own table" if len(self._constraint.elements) > 1 else "it is read on demand"
            raise ValueError(
                f"there are {ids.shape[0]} rows, and there were {known.count} in the last call: where {why}, rows "
                f"cannot leave or join a running batch. Use one processor for each row, or, {_RESET}"
            )
        return self._constraint.rows(ids.shape[0], ids.device)

    def _held(self, rows: BatchRows) -> list[RowStates]:
        """Return all states of rows that a run may come back to; an assistant's run shares those of its own."""
        known = [memory for run, memory in list(self._runs.values()) if run() is not None]
        memories = [memory for memory in [*known, self._alone] if memory is not None and memory.rows is rows]
        return [column.state for memory in memories for column in memory.columns]

    def _of(self, run: object) -> _Memory | None:
        """Return what is known of a run."""
        known, memory = self._runs.get(id(run), (None, None))
        return memory if known is not None and known() is run else None

    def _around(self, frame: FrameType) -> _Memory | None:
        """Return what is known of the run that decodes with an assistant's, whose own texts start where it stands."""
        return self._of(compat.list_of_assisted_run(frame))


def _forces_first(processors: LogitsProcessorList, ids: Tensor) -> bool:
    """Return whether another processor, here or in an assistant's run, writes the token that comes now."""
    return ids.shape[1] == 1 and any(isinstance(p, logits_process.ForcedBOSTokenLogitsProcessor) for p in processors)


_RESET = "if this is the first call of other prompts, call reset() before it"


def _may_continue(memory: _Memory, ids: Tensor) -> bool:
    """Return whether rows (n, L) may continue those of the last call, as far as is known without their tokens."""
    rows = memory.rows
    return (rows.count, rows.device) == (ids.shape[0], ids.device) and ids.shape[1] >= memory.first


def _follow(memory: _Memory | None, rows: BatchRows, ids: Tensor, may_start: bool = False) -> _Memory:
    """Return what is known of rows of tokens (n, L), given what was of the rows of the call before.

    Each row continues a row of that call, or goes back on it. Raises ValueError where one does not: at once if the rows
    are on the host, and else at a later call; until then the row is lost. may_start: such a row starts here instead.
    """
    length = ids.shape[1]
    if memory is None:
        return _Memory(rows, length, ids, [_Column(0, rows.start(), 0)], [rows.order], [])
    unread = check_known(memory.unread)
    first = memory.first
    if length < first:
        raise ValueError(f"rows have {length} tokens, fewer than the prompts of this run, {first}: {_RESET}")
    known = min(max(first, length - 1), memory.ids.shape[1])
    parent, found = find_parents(_signature(ids, first, known), _signature(memory.ids, first, known), rows.per_element)
    found &= (ids[:, :first] == memory.ids[:, :first].index_select(0, parent)).all(dim=1)
    parents = [*memory.parents, parent]
    columns = memory.columns[: known - first + 1]
    call, state, written = columns[-1]
    for earlier in range(len(memory.parents) - 1, call, -1):  # of rows that go back, and no others
        parent = memory.parents[earlier].index_select(0, parent)
    state = choose(found, each_array(lambda x: x.index_select(0, parent), state), rows.lost)
    columns[-1] = _Column(len(parents) - 1, state, written)
    for column in range(known, length):
        state = rows.advance(state, ids[:, column], written)
        written = written + 1
        columns.append(_Column(len(parents) - 1, state, written))
    if may_start:
        columns[-1] = columns[-1]._replace(state=choose(found, state, rows.start()))
    elif torch_ops.arrays.is_concrete(found):  # else it has no values, as while a graph is captured
        unread += check_known([Report(~found, lambda: True)]) if is_on_host(ids) else [report_of(~found)]
    return _Memory(rows, first, ids, columns, parents, unread)


def is_on_host(ids: Tensor) -> bool:
    return ids.device.type == "cpu"


def report_of(unknown: Tensor) -> Report:
    """Return a copy (n,) that is on its way to the host, without waiting for it."""
    copy = unknown.to("cpu", non_blocking=True)
    if not unknown.is_cuda:  # other devices have copied it by now
        return Report(copy, lambda: True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no type for it
    event.record(torch.cuda.current_stream(unknown.device))
    return Report(copy, event.query)


def check_known(unread: list[Report]) -> list[Report]:
    """Return the reports that are still on their way; raise ValueError if others tell of rows that continue none."""
    waiting = [report for report in unread if not report.done()]
    for report in unread:
        if report not in waiting and bool(report.unknown.any()):
            rows = report.unknown.nonzero().view(-1).tolist()
            raise ValueError(
                f"rows {rows} continue no row of the call before, so it is not known where they stand: pass rows with "
                f"all their tokens, padded as they were; {_RESET}"
            )
    return waiting


def _signature(ids: Tensor, first: int, known: int) -> Tensor:
    """Return what tells rows (n, L) apart: one number for the first columns, those of the prompt, then the others."""
    weights = torch.arange(1, first + 1, device=ids.device, dtype=torch.int64) * 0x9E3779B1 + 1
    key = (ids[:, :first].to(torch.int64) * weights).sum(dim=1, keepdim=True)  # overflows as it may
    return torch.cat([key, ids[:, first:known].to(torch.int64)], dim=1)


def find_parents(now: Tensor, before: Tensor, together: int) -> tuple[Tensor, Tensor]:
    """Return a row of `before` (m, T) that is like each row of `now` (n, T), and whether there is one.

    Only the `together` rows of an element are compared with each other; of one element there may be other numbers of
    rows before and now.
    """
    count, length = now.shape
    groups = count // together
    others = before.shape[0] // groups
    left, right = now.reshape(groups, together, 1, length), before.reshape(groups, 1, others, length)
    same = torch.ones(groups, together, others, dtype=torch.bool, device=now.device)
    block = max(1, BLOCK // (count * others))
    for low in range(0, length, block):
        same &= (left[..., low : low + block] == right[..., low : low + block]).all(dim=-1)
    offset = torch.arange(groups, device=now.device)[:, None] * others
    return (same.int().argmax(dim=-1) + offset).view(-1), same.any(dim=-1).view(-1)
