"""Generation with Hugging Face transformers: a logits processor, and a decoding method that carries states itself.

Both keep the state of every row on the device and never wait for it, but where texts might hold a token that ends them.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ConstraintError, MissingDependencyError, VocabularyMismatchError
from ...table.sorted_matrix import Constraint, SortedMatrix
from ...table.transition_table import LazyTable
from .. import torch_ops
from ..decode.beam import beam_search
from ..device.device_table import Selection, State, check_floating
from ..device.matrix_ops import DeviceMatrix, MatrixState
from ..device.on_demand import OnDemandTable, has_lengths
from ..host.matcher import Matcher

try:
    from transformers.generation import logits_process, stopping_criteria
    from transformers.generation.utils import (
        ALL_CACHE_NAMES,
        GenerateBeamDecoderOnlyOutput,
        GenerateBeamEncoderDecoderOutput,
    )
except ImportError:
    raise MissingDependencyError(
        "this module needs transformers, 5 or later: pip install 'maskwright[transformers]'"
    ) from None

_NO_LIMIT = 1 << 40
_FLOOR = -1e6  # what an allowed score of -inf becomes: nothing beside others, but above transformers' -1e9 for no beam
_BLOCK = 1 << 24  # comparisons made at once
_AT_ONCE = 1 << 20  # tokens looked at
_LIST_CALL: CodeType = logits_process.LogitsProcessorList.__call__.__code__

# these choose among what is allowed, so they come after the constraint
_WARPERS = tuple(
    getattr(logits_process, name)
    for name in (
        "TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper",
        "TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper", "WatermarkLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor", "LogitNormalization",
    )
    if hasattr(logits_process, name)
)  # fmt: skip

Tables = Constraint | Sequence[Constraint | None]
"""One table or sorted matrix for all rows, or one for each element of a batch; None leaves one unconstrained."""


# ------------------------------------------------------------------------------------------ rows on a device


class _Constraint:
    """The tables and limits of the elements of a batch, checked, and put on devices as they are needed."""

    def __init__(
        self,
        tables: Tables,
        max_tokens: int | Sequence[int | None] | None,
        eos_token_ids: int | Sequence[int],
        needs_eos: bool = True,
    ) -> None:
        self.elements = _elements(tables)
        self.limits = _limits(max_tokens, len(self.elements))
        self.more_ends = _token_ids(eos_token_ids)
        for i, (table, limit) in enumerate(zip(self.elements, self.limits, strict=True)):
            if table is None:
                continue
            if limit is not None and not has_lengths(table):
                raise ConstraintError(
                    f"max_tokens={limit} cannot be kept: table {i} is of a grammar of which there is no table, or none "
                    "within its budget, so nobody knows how many tokens an end is away: leave max_tokens out, what is "
                    "too long is then cut off"
                )
            if limit is not None and limit < table.min_length:
                raise ValueError(
                    f"max_tokens={limit} is less than the shortest match of table {i}, {table.min_length} tokens: "
                    "nothing could be complete"
                )
            if needs_eos and not self.ends(table):
                raise ValueError(f"table {i} has no EOS, so generation could not end: {_GIVE_EOS}, or eos_token_ids=")
            inside = self.ends_inside(table) if _has_one_spelling(table) else []
            if inside:
                raise ConstraintError(
                    f"token {inside[0]} ends generation and stands in sequences of table {i}, which could not be "
                    f"written whole: {_OTHER_END}; or leave the table without EOS and use constrained_generate, which "
                    "needs no end where all sequences are as long"
                )
        self._put: dict[tuple[int, torch.device], Any] = {}
        self._rows: dict[tuple[int, torch.device], _Rows] = {}

    def ends(self, table: Constraint | None) -> list[int]:
        """Return the tokens that end a sequence of a table; of an unconstrained row, those of any table."""
        known = [t.eos for t in (self.elements if table is None else [table]) if t is not None and t.eos is not None]
        return sorted({*known, *self.more_ends})

    def ends_inside(self, table: Constraint) -> list[int]:
        """Return the tokens that end a sequence of a table, its own EOS aside, and that its matches may hold as well.

        Of a table that is read as texts come to its states nobody knows what they hold: all such ends.
        """
        ends = [end for end in self.ends(table) if end != table.eos]
        if not ends or (isinstance(table, LazyTable) and not table.is_complete):
            return ends
        if table not in _written:
            _written[table] = _tokens_of(table)
        held = _written[table]
        return [end for end in ends if end < held.size and held[end]]

    def put(self, table: Constraint, device: torch.device) -> Any:
        """Return a table on a device, copied there the first time; one that is read on demand begins anew each time."""
        key = (id(table), device)
        if key in self._put:
            return self._put[key]
        of_table = zip(self.elements, self.limits, strict=True)
        budgets = any(limit is not None for element, limit in of_table if element is table)
        dev = torch_ops.put(table, device, budgets=budgets)
        if not isinstance(dev, OnDemandTable):
            self._put[key] = dev
        return dev

    def rows(self, count: int, device: torch.device) -> _Rows:
        """Return the rows of a batch of `count`; those of one element follow each other.

        What is reached of tables that are read on demand goes with the rows, which are others each time where there
        are such tables: no run needs what another one came to, and none can forget what another one needs.
        """
        key = (count, device)
        if key in self._rows:
            return self._rows[key]
        rows = _Rows(self, count, device)
        if not rows.grow:
            self._rows[key] = rows
        return rows


_GIVE_EOS = "give it the model's, which is the eos of the Vocabulary it is compiled with, or eos= of compile_sids"
_OTHER_END = (
    "let another token end it, by eos_token_ids= here and by eos_token_id= of generate, where a model has its own"
)
_written: weakref.WeakKeyDictionary[Constraint, NDArray[np.bool_]] = weakref.WeakKeyDictionary()


def _has_one_spelling(table: Constraint) -> bool:
    """Return whether sequences are of tokens as they are, where those of text can be spelt in other ways."""
    return isinstance(table, SortedMatrix) or (not isinstance(table, LazyTable) and table.is_trie)


def _tokens_of(table: Constraint) -> NDArray[np.bool_]:
    """Return which tokens stand in the sequences of a constraint, EOS aside, or may: bool (V,)."""
    held = np.zeros(table.vocab_size + 2, np.bool_)  # two numbers more stand for ends in tries
    if isinstance(table, SortedMatrix):
        parts = list(table.columns)
    else:
        edges = table.num_edges
        parts = [table.edge_token[edges:], table.exit_token]
        if table.is_trie:
            parts.append(table.edge_token[:edges])
        else:
            masks = np.bitwise_or.reduce(table.masks, axis=0).astype("<u4")
            bits = np.unpackbits(masks.view(np.uint8), bitorder="little", count=table.vocab_size)
            parts += [np.flatnonzero(bits), table.edge_token[:edges][table.edge_target != table.dead]]
    for part in parts:
        for low in range(0, part.size, _AT_ONCE):
            held[part[low : low + _AT_ONCE]] = True
    return held[: table.vocab_size]


def _elements(tables: Tables) -> list[Constraint | None]:
    """Return the table of each element of a batch, or alone the one for all rows; raise TypeError for anything else."""
    if isinstance(tables, Constraint):
        return [tables]
    wanted = (
        "tables must be a TransitionTable, which compile_regex and the like return, a SortedMatrix, or a list of them"
    )
    if not isinstance(tables, Sequence) or isinstance(tables, str | bytes):
        raise TypeError(f"{wanted}, not {type(tables).__name__}")
    for i, table in enumerate(tables):
        if table is not None and not isinstance(table, Constraint):
            raise TypeError(f"{wanted} with None where there is no constraint: tables[{i}] is {type(table).__name__}")
    if not tables:
        raise ValueError("tables is empty: pass one table for all rows, or one for each element of the batch")
    return list(tables)


def _limits(max_tokens: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return max_tokens of each of `count` elements; raise TypeError for what is no whole number."""
    listed = isinstance(max_tokens, Sequence | np.ndarray) and not isinstance(max_tokens, str | bytes)
    limits = list(cast(Sequence[int | None], max_tokens)) if listed else [cast(int | None, max_tokens)] * count
    for limit in limits:
        if limit is not None and not _is_int(limit):
            raise TypeError(f"max_tokens must be a whole number of tokens, or a list of one for each table: {limit!r}")
    if len(limits) != count:
        raise ValueError(f"max_tokens has {len(limits)} entries, tables has {count}")
    return [None if limit is None else int(limit) for limit in limits]


def _token_ids(ids: int | Sequence[int]) -> list[int]:
    """Return token ids given as one or as several."""
    listed = isinstance(ids, Sequence | np.ndarray) and not isinstance(ids, str | bytes)
    tokens = list(cast(Sequence[int], ids)) if listed else [cast(int, ids)]
    if not all(map(_is_int, tokens)):
        raise TypeError(f"eos_token_ids must be a token id, or a list of them, not {ids!r}")
    if any(token < 0 for token in tokens):
        raise ValueError(f"eos_token_ids must not be negative: {ids!r}")
    return [int(token) for token in tokens]


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


class _State(NamedTuple):
    """Where the rows of a batch stand, under constraints of any kinds: the arrays of their states by name.

    None where no row has such a state; else 0 in rows that have none, and in slots beyond those of a row's table.
    """

    node: Tensor  # (n,)
    stack: Tensor | None = None  # (n, slots), of nested tables
    height: Tensor | None = None  # (n,)
    high: Tensor | None = None  # (n,), of sorted matrices
    depth: Tensor | None = None  # (n,)


@dataclass(frozen=True, eq=False)
class _Group:
    """The rows of a batch that share a table; states are those of `torch_ops`."""

    dev: Any  # from `torch_ops.put`; None: unconstrained, and node 0 until an end, then 1
    rows: Tensor | None  # (r,) which rows; None for all
    limit: Tensor | None  # (r,) max_tokens
    ends: Tensor  # (E,) tokens that mean EOS
    start: Any  # states (r,)
    lost: Any  # (r,) that nothing leads out of: after an end, and after what is not allowed
    inside: tuple[int, list[int]] | None = None  # which table it is and the ends that its texts could hold, if any

    def of(self, x: Tensor) -> Tensor:
        """Return this group's rows of x."""
        return x if self.rows is None else x.index_select(0, self.rows)

    def into(self, out: Tensor, part: Tensor) -> Tensor:
        """Return `out` with this group's rows written."""
        return part if self.rows is None else out.index_copy_(0, self.rows, part)

    def state(self, state: _State) -> Any:
        """Return the state of this group's rows as its table has it."""
        arrays = []
        for name, own in self.start._asdict().items():
            array = self.of(getattr(state, name))
            arrays.append(array if own.ndim == 1 else array[:, : own.shape[1]])
        return type(self.start)(*arrays)

    def state_into(self, out: _State, part: Any) -> _State:
        """Return the state `out` with that of this group's rows written."""
        arrays = {}
        for name, own in part._asdict().items():
            whole = getattr(out, name)
            if own.ndim > 1:
                own = torch.nn.functional.pad(own, (0, whole.shape[1] - own.shape[1]))
            arrays[name] = self.into(whole, own)
        return out._replace(**arrays)


def _group(
    dev: Any, rows: Tensor | None, limit: Tensor | None, ends: Tensor, count: int, device: torch.device
) -> _Group:
    """Return the group of `count` rows that share a table on a device."""
    start: Any = State(torch.zeros(count, dtype=torch.int64, device=device))
    lost: Any = start._replace(node=start.node + 1)
    if dev is not None:
        start = torch_ops.start(dev, count)
        lost = start._replace(node=torch.full_like(start.node, dev.dead))
    if isinstance(dev, DeviceMatrix):
        lost = MatrixState(lost.node, lost.node, torch.full_like(lost.node, dev.length))
    return _Group(dev, rows, limit, ends, start, lost)


def _each(function: Callable[..., Tensor], *states: Any) -> Any:
    """Return the state that a function makes of the arrays of states, one array after the other."""
    return type(states[0])(*(None if arrays[0] is None else function(*arrays) for arrays in zip(*states, strict=True)))


def _where(holds: Tensor, yes: Any, no: Any) -> Any:
    """Return a state (n,): that of `yes` where `holds` (n,) is so, of `no` elsewhere."""
    return _each(lambda a, b: torch.where(holds[:, None] if a.ndim > 1 else holds, a, b), yes, no)


class _Rows:
    """What a constraint does with states (n,) and scores (n, V) of the rows of a batch on one device."""

    def __init__(self, constraint: _Constraint, count: int, device: torch.device) -> None:
        elements = constraint.elements
        if count % len(elements):
            raise ValueError(
                f"there are {count} rows and {len(elements)} tables: pass one table for each element of the batch, "
                "or one table alone for all"
            )
        each = count // len(elements)
        self.count = count
        self.per_element = each  # rows among which beams are reordered
        self.most_end = max(constraint.ends(None), default=-1)
        self.order = torch.arange(count, device=device)
        self.device = device
        self._groups: list[_Group] = []
        for key in dict.fromkeys(id(table) for table in elements):
            members = [i for i, table in enumerate(elements) if id(table) == key]
            table = elements[members[0]]
            rows = [i * each + j for i in members for j in range(each)]
            limits = [constraint.limits[row // each] for row in rows]
            limited = table is not None and any(limit is not None for limit in limits)
            bounds = [_NO_LIMIT if limit is None else limit for limit in limits]
            group = _group(
                None if table is None else constraint.put(table, device),
                None if len(rows) == count else torch.tensor(rows, device=device),
                torch.tensor(bounds, device=device) if limited else None,
                torch.tensor(constraint.ends(table), dtype=torch.int64, device=device),
                len(rows),
                device,
            )
            # a text can be spelt without an end that stands in it, mostly: where not is seen when a row is there
            inside = [] if table is None else constraint.ends_inside(table)
            self._groups.append(replace(group, inside=(members[0], inside)) if inside else group)
        widest: dict[str, Tensor] = {}
        for group in self._groups:
            for name, own in group.start._asdict().items():
                if name not in widest or (own.ndim > 1 and own.shape[1] > widest[name].shape[1]):
                    widest[name] = own.new_zeros(count, *own.shape[1:])
        blank = _State(**widest)
        self._start, self.lost = _each(torch.clone, blank), blank  # the latter nothing leads out of
        for group in self._groups:
            self._start = group.state_into(self._start, group.start)
            self.lost = group.state_into(self.lost, group.lost)
        self._read = [group for group in self._groups if isinstance(group.dev, OnDemandTable)]

    @property
    def grow(self) -> bool:
        """Whether there are tables that are read on demand."""
        return bool(self._read)

    def keep(self, states: Callable[[], list[_State]]) -> None:
        """Forget all states but the start and these (n,), of tables read on demand that have little room left."""
        full = [group for group in self._read if group.dev.rows.is_full]
        if full:
            kept = states()
            for group in full:
                group.dev.keep(State(torch.cat([group.state(state).node for state in kept])))  # one read

    def start(self) -> _State:
        """Return the states of rows with nothing written yet."""
        started: _State = _each(torch.clone, self._start)
        return started

    def mask(self, scores: Tensor, state: _State, count: Tensor | int, floor: float | None = _FLOOR) -> Tensor:
        """Return scores with -inf at what is not allowed; in lost states the ends are, so that there is a softmax.

        count: tokens written so far. floor: what allowed scores are raised to; None to leave them as they are.
        """
        check_floating(scores.is_floating_point(), scores.dtype)
        if scores.shape[1] <= self.most_end:
            raise VocabularyMismatchError(
                f"scores have {scores.shape[1]} columns and EOS is token {self.most_end}: this is another model's"
            )
        out = scores if self._groups[0].rows is None else scores.clone()
        for group in self._groups:
            if group.dev is None:
                continue
            part = group.of(scores)
            # a score of -inf, from another processor, must not leave a row with nothing to choose from
            part = part.clone() if floor is None else part.clamp(min=max(floor, torch.finfo(part.dtype).min))
            at_end = part.index_select(1, group.ends)
            remaining = None if group.limit is None else (group.limit - count).clamp(min=0)
            own = group.state(state)
            part = torch_ops.mask_logits_(group.dev, part, own, remaining)
            may_end = torch_ops.accepting(group.dev, own) | (own.node == group.dev.dead)
            part.index_copy_(1, group.ends, torch.where(may_end[:, None], at_end, -torch.inf))
            if group.inside is not None and floor is not None and bool((part == -torch.inf).all(dim=1).any()):
                table, inside = group.inside
                raise ConstraintError(
                    f"a text of table {table} can only go on with token {inside[0] if len(inside) == 1 else inside}, "
                    f"which ends generation: {_OTHER_END}"
                )
            out = group.into(out, part)
        return out

    def accepting(self, state: _State) -> Tensor:
        """Return whether each row may end where it stands: bool (n,)."""
        out = torch.ones_like(state.node, dtype=torch.bool)
        for group in self._groups:
            if group.dev is not None:
                out = group.into(out, torch_ops.accepting(group.dev, group.state(state)))
        return out

    def advance(self, state: _State, tokens: Tensor, count: Tensor | int) -> _State:
        """Return the states after one more token (n,) each, `count` having been written before.

        A token that was not allowed, also where it left no time for an end, leads to the lost state.
        """
        out: _State = _each(torch.clone, state)
        for group in self._groups:
            part, token = group.state(state), group.of(tokens)
            is_end = (token[:, None] == group.ends).any(-1)
            if group.dev is None:
                following = part
            else:
                following = torch_ops.advance(group.dev, part, token)
                if group.limit is not None:
                    in_time = torch_ops.distance(group.dev, following) < group.limit - count
                    following = _where(in_time, following, group.lost)
            out = group.state_into(out, _where(is_end, group.lost, following))
        return out


# ------------------------------------------------------------------------------------------- the processor


class _Column(NamedTuple):
    """Where rows stood after one of their columns."""

    call: int  # at which it was written: rows are in the order of that call
    state: _State
    written: Tensor | int  # tokens


@dataclass(frozen=True, eq=False)
class _Report:
    """Which rows of a call continue no row of the call before: a copy on its way from the device to the host."""

    unknown: Tensor  # (n,) bool, on the host
    done: Callable[[], bool]  # whether the copy is there


@dataclass(frozen=True, eq=False)
class _Memory:
    """What a processor keeps from one call to the next.

    Beams are reordered at every call, so that what is kept of earlier columns is only put in order when rows go back.
    """

    rows: _Rows
    first: int  # columns of the prompt
    ids: Tensor  # (n, L) of the last call
    columns: list[_Column]  # (L - first + 1) after each column from `first` on
    parents: list[Tensor]  # of each call, (n,) the row of the call before that each row continues
    unread: list[_Report]  # of the last calls, as long as the device was not done with them


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
    of the row of the last call which it continues, prompt and all. Rows may change places, go back, and under one table
    for all rows also leave. A row that continues none of the last call is an error, never a new text: each run of
    `generate` starts anew, whatever its prompt; in a loop of your own, call `reset` before the first call of each batch
    of prompts. With one table for each element, rows stay with their element. After its end a row gets nothing but EOS;
    rows that are no match, with which transformers fills up its beams, may only end as well.

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
        self._constraint = _Constraint(tables, max_tokens, eos_token_ids)
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
        # every run of `generate` makes a list of processors of its own, which is who calls: it tells runs apart
        frame = _frame(sys._getframe(1), _LIST_CALL)
        if frame is None:
            rows = self._rows(self._alone, ids)
            memory = self._alone = _follow(self._alone, rows, ids)
        else:
            run = frame.f_locals["self"]
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
        rows.keep(partial(self._held, rows))
        return rows.mask(scores, memory.columns[-1].state, memory.columns[-1].written)

    def _rows(self, memory: _Memory | None, ids: Tensor) -> _Rows:
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

    def _held(self, rows: _Rows) -> list[_State]:
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
        outer: FrameType | None = frame
        while outer is not None:
            if outer.f_code.co_name == "_assisted_decoding":
                return self._of(outer.f_locals.get("logits_processor"))
            outer = outer.f_back
        return None


def _frame(frame: FrameType | None, code: CodeType) -> FrameType | None:
    """Return the first frame that runs this code, going outwards; a processor may be called through others."""
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def _forces_first(processors: Any, ids: Tensor) -> bool:
    """Return whether another processor, here or in an assistant's run, writes the token that comes now."""
    return ids.shape[1] == 1 and any(isinstance(p, logits_process.ForcedBOSTokenLogitsProcessor) for p in processors)


_RESET = "if this is the first call of other prompts, call reset() before it"


def _may_continue(memory: _Memory, ids: Tensor) -> bool:
    """Return whether rows (n, L) may continue those of the last call, as far as is known without their tokens."""
    rows = memory.rows
    return (rows.count, rows.device) == (ids.shape[0], ids.device) and ids.shape[1] >= memory.first


def _follow(memory: _Memory | None, rows: _Rows, ids: Tensor, may_start: bool = False) -> _Memory:
    """Return what is known of rows of tokens (n, L), given what was of the rows of the call before.

    Each row continues a row of that call, or goes back on it. Raises ValueError where one does not: at once if the rows
    are on the host, and else at a later call; until then the row is lost. may_start: such a row starts here instead.
    """
    length = ids.shape[1]
    if memory is None:
        return _Memory(rows, length, ids, [_Column(0, rows.start(), 0)], [rows.order], [])
    unread = _check_known(memory.unread)
    first = memory.first
    if length < first:
        raise ValueError(f"rows have {length} tokens, fewer than the prompts of this run, {first}: {_RESET}")
    known = min(max(first, length - 1), memory.ids.shape[1])
    parent, found = _parents(_signature(ids, first, known), _signature(memory.ids, first, known), rows.per_element)
    found &= (ids[:, :first] == memory.ids[:, :first].index_select(0, parent)).all(dim=1)
    parents = [*memory.parents, parent]
    columns = memory.columns[: known - first + 1]
    call, state, written = columns[-1]
    for earlier in range(len(memory.parents) - 1, call, -1):  # of rows that go back, and no others
        parent = memory.parents[earlier].index_select(0, parent)
    state = _where(found, _each(lambda x: x.index_select(0, parent), state), rows.lost)
    columns[-1] = _Column(len(parents) - 1, state, written)
    for column in range(known, length):
        state = rows.advance(state, ids[:, column], written)
        written = written + 1
        columns.append(_Column(len(parents) - 1, state, written))
    if may_start:
        columns[-1] = columns[-1]._replace(state=_where(found, state, rows.start()))
    elif torch_ops.known(found):  # else it has no values, as while a graph is captured
        unread += _check_known([_Report(~found, lambda: True)]) if _on_host(ids) else [_report(~found)]
    return _Memory(rows, first, ids, columns, parents, unread)


def _on_host(ids: Tensor) -> bool:
    return ids.device.type == "cpu"


def _report(unknown: Tensor) -> _Report:
    """Return a copy (n,) that is on its way to the host, without waiting for it."""
    copy = unknown.to("cpu", non_blocking=True)
    if not unknown.is_cuda:  # other devices have copied it by now
        return _Report(copy, lambda: True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no type for it
    event.record(torch.cuda.current_stream(unknown.device))
    return _Report(copy, event.query)


def _check_known(unread: list[_Report]) -> list[_Report]:
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


def _parents(now: Tensor, before: Tensor, together: int) -> tuple[Tensor, Tensor]:
    """Return a row of `before` (m, T) that is like each row of `now` (n, T), and whether there is one.

    Only the `together` rows of an element are compared with each other; of one element there may be other numbers of
    rows before and now.
    """
    count, length = now.shape
    groups = count // together
    others = before.shape[0] // groups
    left, right = now.reshape(groups, together, 1, length), before.reshape(groups, 1, others, length)
    same = torch.ones(groups, together, others, dtype=torch.bool, device=now.device)
    block = max(1, _BLOCK // (count * others))
    for low in range(0, length, block):
        same &= (left[..., low : low + block] == right[..., low : low + block]).all(dim=-1)
    offset = torch.arange(groups, device=now.device)[:, None] * others
    return (same.int().argmax(dim=-1) + offset).view(-1), same.any(dim=-1).view(-1)


# ------------------------------------------------------------------------------------- the decoding method


def constrained_generate(
    model: Any,
    input_ids: Tensor,
    *,
    tables: Tables,
    max_tokens: int | Sequence[int | None] | None = None,
    eos_token_ids: int | Sequence[int] = (),
    budgets: bool = True,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Return what `model.generate` returns; every sequence is a complete match within `max_new_tokens`.

    Called by transformers: `model.generate(**inputs, custom_generate=constrained_generate, tables=table,
    max_new_tokens=30)`, with any of `num_beams`, `do_sample`, `num_return_sequences`, `length_penalty` and so on.

    budgets: False to have what is too long cut off, as of grammars of which there is no table, or none within its
    budget, since nobody knows how far their ends are; beam search then returns what was complete in time. By any other
    table sequences are complete in time all the same.
    tables, max_tokens: as of `ConstraintLogitsProcessor`; the tables of one call have the same EOS, or none of them
    one. A match may have one token less than `max_new_tokens`, as EOS takes a place, and `forced_bos_token_id` of an
    encoder-decoder model another. eos_token_ids: tokens that mean EOS besides the table's and all of the generation
    config's; none of them stands inside a match: see `ConstraintLogitsProcessor`. Tables without EOS (semantic ids) and
    sorted matrices are complete without one, whatever the config ends with: all sequences then have the one length that
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
    budgets=False, and for an end that a table's sequences hold; ValueError where `max_new_tokens` is too few for a
    match, for tables whose ends differ, for eos_token_ids where no table has an EOS, and for what beam search does not
    do: sampling, stopping criteria, returning attentions, hidden states or the logits of steps.
    """
    most = generation_config.max_length - input_ids.shape[1]
    input_ids = _with_forced_token(input_ids, generation_config, model, model_kwargs)
    elements = _elements(tables)
    ends = generation_config._eos_token_tensor
    ends = [] if ends is None else [token for token in ends.tolist() if token >= 0]
    given_ends = _token_ids(eos_token_ids)
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
    if budgets and not all(finite):
        raise ConstraintError(
            f"table {finite.index(False)} is of a grammar of which there is no table, or none within its budget, so "
            "nobody knows how many tokens an end is away, and a match may not be complete within max_new_tokens: pass "
            "budgets=False to have it cut off then"
        )
    needed = max(1, *(_shortest(table) for table, known in zip(elements, finite, strict=True) if known), 0)
    if needed > room:
        raise ValueError(
            f"max_new_tokens={most} leaves room for {room} tokens of a match{'' if eos is None else ' besides EOS'}, "
            f"and the shortest needs {needed}: raise it to {most - room + needed}"
        )
    given = zip(_limits(max_tokens, len(elements)), finite, strict=True)
    limits = [limit if not known else room if limit is None else min(limit, room) for limit, known in given]
    constraint = _Constraint(elements, limits, ends, needs_eos=False)
    rows = constraint.rows(input_ids.shape[0], input_ids.device)
    if generation_config.num_beams > 1:
        _check_search(generation_config, stopping_criteria)
        search = _Beams(rows, elements, input_ids.shape[1], eos, constraint.ends(None))
        processors = _insert(logits_processor, search)
        return _search(model, input_ids, search, room, processors, generation_config, model_kwargs)
    if eos is not None and generation_config._pad_token_tensor is None:
        generation_config._pad_token_tensor = input_ids.new_tensor(eos)
    return type(model)._sample(
        model,
        input_ids,
        logits_processor=_insert(logits_processor, _ByRow(rows)),
        stopping_criteria=_stops(stopping_criteria, elements, input_ids, constraint.ends(None)),
        generation_config=generation_config,
        **model_kwargs,
    )


def _shortest(table: Constraint | None) -> int:
    """Return the tokens of a table's shortest match; of one without arrays at least so many."""
    if table is None or (not has_lengths(table) and Matcher(table).is_accepting):
        return 0
    return table.min_length if has_lengths(table) else 1


def _with_forced_token(input_ids: Tensor, config: Any, model: Any, model_kwargs: dict[str, Any]) -> Tensor:
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
    found = {table.eos for table in elements if table is not None}
    if len(found) > 1:
        raise ValueError(
            f"the tables of one call must have the same EOS, or none of them one, not {found}: {_GIVE_EOS}; "
            "a ConstraintLogitsProcessor takes tables whose EOS differ"
        )
    eos = found.pop() if found else next(iter(ends), None)
    if eos is None and None in elements:
        if not ends:
            raise ValueError(
                f"rows without a constraint end with EOS, and neither table nor model has one: {_GIVE_EOS}"
            )
        raise ValueError(
            f"rows without a constraint end with EOS, here token {ends[0]}, and the tables of this call have none, as "
            "a sorted matrix never has, so that ends differ: compile them with eos=, or use a "
            "ConstraintLogitsProcessor, which takes eos_token_ids for all"
        )
    return eos


def _stops(criteria: Any, elements: list[Constraint | None], input_ids: Tensor, ends: list[int]) -> Any:
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
                f"{_GIVE_EOS}; beam search (num_beams=2 or more) can do without"
            )
        own = stopping_criteria.MaxLengthCriteria(input_ids.shape[1] + length)
        replaced += (stopping_criteria.MaxLengthCriteria,)
    kept = [criterion for criterion in criteria or [] if not isinstance(criterion, replaced)]
    return stopping_criteria.StoppingCriteriaList([*kept, own])


def _insert(processors: Any, constraint: logits_process.LogitsProcessor) -> Any:
    """Return a list of processors with the constraint before those that choose among what is allowed."""
    out = logits_process.LogitsProcessorList(processors or [])
    at = next((i for i, processor in enumerate(out) if isinstance(processor, _WARPERS)), len(out))
    out.insert(at, constraint)
    return out


class _ByRow(logits_process.LogitsProcessor):
    """The constraint where each row continues the row it was."""

    def __init__(self, rows: _Rows) -> None:
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


class _Beams(logits_process.LogitsProcessor):
    """The constraint in beam search: a processor, and the operations that `beam_search` is written against.

    Scores have gone through the processors when they come to `select`, so that nothing is left to be masked there.
    """

    zeros, arange = staticmethod(torch_ops.zeros), staticmethod(torch_ops.arange)
    where, concatenate = staticmethod(torch_ops.where), staticmethod(torch_ops.concatenate)
    top_k, take = staticmethod(torch_ops.top_k), staticmethod(torch_ops.take)

    def __init__(
        self, rows: _Rows, elements: list[Constraint | None], first: int, eos: int | None, ends: list[int]
    ) -> None:
        self._rows = rows
        self._state = rows.start()
        self._first = first
        self._ends = torch.tensor(ends, dtype=torch.int64, device=rows.order.device)
        lengths = [None if t is None else t.max_length for t in elements]
        fixed = {None if t is None else t.fixed_length for t in elements}
        self.eos = eos
        self.min_length = min(_shortest(t) for t in elements)
        self.max_length = None if None in lengths else max(cast(list[int], lengths))
        self.fixed_length = fixed.pop() if len(fixed) == 1 else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self._rows.mask(scores, self._state, input_ids.shape[1] - self._first, floor=None)

    def start(self, dev: Any, batch: int) -> Any:
        return _each(lambda x: x[:: x.shape[0] // batch], self._state)  # the rows of an element follow each other

    def first_tokens(self, dev: Any, cache: Any, count: int, token: int) -> Tensor:
        return self._rows.order.new_full((count,), token)

    def accepting(self, dev: Any, state: _State) -> Tensor:
        return self._rows.accepting(state)

    def select(
        self, dev: Any, scores: Tensor, state: _State, totals: Tensor, beams: int, level: int, renormalise: bool
    ) -> Selection:
        batch, m = totals.shape
        scores = scores.index_fill(1, self._ends, -torch.inf)
        width = scores.shape[1]
        grown = (scores.view(batch, m, width) + totals[:, :, None]).view(batch, -1)
        best, at = torch_ops.top_k(torch.where(grown.isnan(), -torch.inf, grown), beams)
        alive = best > -torch.inf
        parents = at // width
        tokens = torch.where(alive, at - parents * width, 0)
        row = (parents + m * torch.arange(batch, device=parents.device)[:, None]).view(-1)
        state = self._rows.advance(torch_ops.gather(state, row), tokens.view(-1), level)
        self._state = _where(alive.view(-1), state, self._rows.lost)
        self._rows.keep(lambda: [self._state])
        return Selection(best, parents, tokens, cast(Any, self._state))

    def end_scores(self, dev: Any, scores: Tensor, state: _State, renormalise: bool) -> Tensor:
        return scores.index_select(1, self._ends).logsumexp(dim=1)


def _search(
    model: Any,
    input_ids: Tensor,
    search: _Beams,
    room: int,
    processors: Any,
    config: Any,
    model_kwargs: dict[str, Any],
) -> Any:
    """Return what beam search finds, as `generate` returns it."""
    has_eos = search.eos is not None
    beams, first = config.num_beams, input_ids.shape[1]
    batch = input_ids.shape[0] // beams

    def step(tokens: Tensor, ids: Tensor, t: int) -> tuple[Tensor, Tensor]:
        nonlocal model_kwargs
        if t == 0:
            outputs = model._prefill(input_ids, config, model_kwargs, is_first_iteration=True)
        else:
            ids = torch.cat([ids, tokens[:, None]], dim=1)
            new = 1 if model_kwargs["use_cache"] else None
            inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=new, **model_kwargs)
            outputs = model(**inputs, return_dict=True)
        model_kwargs = model._update_model_kwargs_for_generation(
            outputs, model_kwargs, is_encoder_decoder=model.config.is_encoder_decoder
        )
        return processors(ids, torch_ops.log_softmax(outputs.logits[:, -1].to(ids.device))), ids

    def gather(ids: Tensor, index: Tensor) -> Tensor:
        name = next((name for name in ALL_CACHE_NAMES if model_kwargs.get(name) is not None), None)
        if name is not None and hasattr(model, "_reorder_cache"):
            model_kwargs[name] = model._reorder_cache(model_kwargs[name], index)
        elif name is not None:
            model_kwargs[name].reorder_cache(index)
        return ids.index_select(0, index)

    found = beam_search(
        step,
        input_ids,
        search,
        ops=cast(ModuleType, search),
        batch=batch,
        beams=beams,
        max_length=room,
        length_penalty=config.length_penalty,
        count_eos=True,
        gather=gather,
    )
    if not bool(found.valid[:, 0].all()):
        raise ValueError(
            "the other logits processors, or scores that are not numbers, leave no match: "
            "see to min_new_tokens, bad_words_ids, eos_token_ids and the like; with budgets=False, to max_new_tokens"
        )
    keep = config.num_return_sequences
    tokens, lengths = found.tokens[:, :keep].flatten(0, 1), found.lengths[:, :keep].reshape(-1, 1)
    valid = found.valid[:, :keep].reshape(-1, 1)
    pad = config._pad_token_tensor
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
    kind: Any = GenerateBeamEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateBeamDecoderOnlyOutput
    return kind(sequences=sequences, sequences_scores=found.scores[:, :keep].reshape(-1))


def _check_search(config: Any, criteria: Any) -> None:
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
