"""The rows of a batch under the tables of its elements: masks and states on one device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ConstraintError, VocabularyMismatchError
from ...lazy.lazy_table import LazyTable
from ...table.constraint import Constraint
from ...table.sid_filter import SidFilter
from ...table.snapshot import LiveFilter, Snapshot
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from .. import torch_ops
from ..device.backend import Placed
from ..device.checks import check_floating
from ..device.device_live import DeviceLive
from ..device.device_matrix import DeviceMatrix
from ..device.device_table import State
from ..device.on_demand import OnDemandTable, has_lengths
from ..host.matrix_reader import nothing_kept
from .arguments import GIVE_EOS, OTHER_END, Tables, elements_of, limits_of, token_ids
from .placed import placed

_NO_LIMIT = 1 << 40

_FLOOR = -1e6  # what an allowed score of -inf becomes: nothing beside others, but above transformers' -1e9 for no beam

_AT_ONCE = 1 << 20  # tokens looked at


class BatchConstraint:
    """The tables and limits of the elements of a batch, checked, and put on devices as they are needed."""

    def __init__(
        self,
        tables: Tables,
        max_tokens: int | Sequence[int | None] | None,
        eos_token_ids: int | Sequence[int],
        needs_eos: bool = True,
    ) -> None:
        self.elements = elements_of(tables)
        self.limits = limits_of(max_tokens, len(self.elements))
        self.more_ends = token_ids(eos_token_ids)
        for i, (table, limit) in enumerate(zip(self.elements, self.limits, strict=True)):
            if table is None:
                continue
            if isinstance(table, SidFilter) and not table.num_items:
                raise nothing_kept()
            if isinstance(table, LiveFilter) and not table.num_sequences:
                raise nothing_kept()
            if isinstance(table, Snapshot) and not table.num_sequences:
                raise ConstraintError(f"the live set of table {i} is empty: nothing could be written")
            if limit is not None and not has_lengths(table):
                raise ConstraintError(
                    f"max_tokens={limit} cannot be kept: table {i} is of a grammar of which there is no table, or none "
                    "within its budget, so nobody knows how many tokens an end is away: leave max_tokens out, what is "
                    "too long is then cut off"
                )
            if limit is not None and limit < table.to_table().min_length:
                raise ValueError(
                    f"max_tokens={limit} is less than the shortest match of table {i}, "
                    f"{table.to_table().min_length} tokens: nothing could be complete"
                )
            if needs_eos and not self.ends(table) and table.fixed_length is None:
                raise ValueError(
                    f"table {i} has no EOS and its sequences differ in length, so generation could not end: "
                    f"{GIVE_EOS}, or eos_token_ids="
                )
            inside = self.ends_inside(table) if _has_one_spelling(table) else []
            if inside:
                raise ConstraintError(
                    f"token {inside[0]} ends generation and stands in sequences of table {i}, which could not be "
                    f"written whole: {OTHER_END}; or leave the table without EOS and use constrained_generate, which "
                    "needs no end where all sequences are as long"
                )
        self.length = self._length_without_end() if needs_eos else None
        self._placed = placed(tables)
        self._put: dict[tuple[int, torch.device], Any] = {}
        self._rows: dict[tuple[int, torch.device], BatchRows] = {}

    def _length_without_end(self) -> int | None:
        """Return the one length of all sequences where no table has an end, None where all have one.

        Raises ValueError where lengths differ, or only some have an end: rows would be complete at different times.
        """
        endless = [i for i, table in enumerate(self.elements) if table is not None and not self.ends(table)]
        if not endless:
            return None
        lengths = {None if table is None or self.ends(table) else table.fixed_length for table in self.elements}
        if len(lengths) > 1:
            raise ValueError(
                f"table {endless[0]} has no EOS, which it can do without where all rows have as many tokens, and "
                f"others here have other lengths or an end: {GIVE_EOS}, or eos_token_ids="
            )
        return lengths.pop()

    def check_incomplete(self, written: int) -> None:
        """Raise ValueError if rows of this many tokens are complete, and nothing says so to `generate`."""
        if self.length is not None and written >= self.length:
            raise ValueError(
                f"all rows are complete after {self.length} tokens, and tables without EOS allow none after them: pass "
                f"max_new_tokens={self.length} to generate, or eos_token_ids= here"
            )

    def ends(self, table: Constraint | None) -> list[int]:
        """Return the tokens that end a sequence of a table; of an unconstrained row, those of any table."""
        known = [end for each in (self.elements if table is None else [table]) if each is not None for end in each.ends]
        return sorted({*known, *self.more_ends})

    def ends_inside(self, table: Constraint) -> list[int]:
        """Return the tokens that end a sequence of a table, its own ends aside, and that its matches may hold as well.

        The matches of an on-demand table are unknown: all such ends are returned.
        """
        ends = [end for end in self.ends(table) if end not in table.ends]
        if not ends or (isinstance(table, LazyTable) and not table.is_complete):
            return ends
        if table not in _written:
            _written[table] = tokens_of(table)
        held = _written[table]
        return [end for end in ends if end < held.size and held[end]]

    def put(self, table: Constraint, device: torch.device) -> Any:
        """Return a table on a device, copied there the first time; one that is read on demand begins anew each time.

        Filters of one matrix, snapshot or table share it.
        """
        key = (id(table), device)
        if key in self._put:
            return self._put[key]
        limits = zip(self.elements, self.limits, strict=True)
        distances = any(limit is not None for element, limit in limits if element is table or _of(element) is table)
        if id(table) in self._placed:
            return self._placed[id(table)].checked(device, distances)
        if isinstance(table, SidFilter):
            dev: Placed = torch_ops.with_filters(self.put(table.table, device), [table])
        elif isinstance(table, LiveFilter):
            dev = torch_ops.with_filters(self.put(table.snapshot, device), [table])
        else:
            dev = torch_ops.to_device(table, device, distances=distances)
        if not isinstance(dev, OnDemandTable):
            self._put[key] = dev
        return dev

    def rows(self, count: int, device: torch.device) -> BatchRows:
        """Return the rows of a batch of `count`; those of one element follow each other.

        What is reached of tables that are read on demand goes with the rows, which are others each time where there
        are such tables: no run needs what another one came to, and none can forget what another one needs.
        """
        key = (count, device)
        if key in self._rows:
            return self._rows[key]
        rows = BatchRows(self, count, device)
        if not rows.grow:
            self._rows[key] = rows
        return rows


_written: weakref.WeakKeyDictionary[Constraint, NDArray[np.bool_]] = weakref.WeakKeyDictionary()


def _of(constraint: Constraint | None) -> Constraint | None:
    """Return what a filter is of; None for anything else."""
    if isinstance(constraint, LiveFilter):
        return constraint.snapshot
    return constraint.table if isinstance(constraint, SidFilter) else None


def _has_one_spelling(table: Constraint) -> bool:
    """Return whether sequences are of tokens as they are, where those of text can be spelt in other ways."""
    return isinstance(table, SortedMatrix | SidFilter | Snapshot | LiveFilter) or (
        isinstance(table, TransitionTable) and table.is_trie
    )


def _parts(table: TransitionTable) -> list[NDArray[Any]]:
    """Return arrays of tokens, in which each token of a table's sequences stands."""
    token, edges = table.edges.token, table.num_edges
    if table.is_trie:
        return [token]
    masks = np.bitwise_or.reduce(table.bases.masks, axis=0).astype("<u4")
    bits = np.unpackbits(masks.view(np.uint8), bitorder="little", count=table.vocab_size)
    led = token[:edges][table.edges.target != table.dead]
    return [token[edges:], table.exits.token, np.flatnonzero(bits), led]


def tokens_of(table: Constraint) -> NDArray[np.bool_]:
    """Return which tokens stand in the sequences of a constraint, EOS aside, or may: bool (V,)."""
    table = _of(table) or table  # whose other rows a filter may leave out
    held = np.zeros(table.vocab_size + 2, np.bool_)  # two numbers more stand for ends in tries
    if isinstance(table, SortedMatrix):
        parts = list(table.columns)
    elif isinstance(table, Snapshot):
        parts = [*table.base.matrix.columns, *table.delta.T]
    else:
        parts = _parts(cast(TransitionTable, table.to_table()))
    for part in parts:
        for low in range(0, part.size, _AT_ONCE):
            held[part[low : low + _AT_ONCE]] = True
    return held[: table.vocab_size]


class RowStates(NamedTuple):
    """Where the rows of a batch stand, under constraints of any kinds: the arrays of their states by name.

    None where no row has such a state; else 0 in rows that have none, and in slots beyond those of a row's table.
    """

    node: Tensor  # (n,)
    stack: Tensor | None = None  # (n, slots), of nested tables
    height: Tensor | None = None  # (n,)
    high: Tensor | None = None  # (n,), of sorted matrices
    depth: Tensor | None = None  # (n,)
    filter: Tensor | None = None  # (n,), of filters of sorted matrices and tables
    delta: Tensor | None = None  # (n,), of live sets
    delta_high: Tensor | None = None  # (n,)


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a batch that share a table; states are those of `torch_ops`."""

    dev: Placed  # from `torch_ops.to_device`; None: unconstrained, and node 0 until an end, then 1
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

    def state(self, state: RowStates) -> Any:
        """Return the state of this group's rows as its table has it."""
        arrays = []
        for name, own in self.start._asdict().items():
            array = self.of(getattr(state, name))
            arrays.append(array if own.ndim == 1 else array[:, : own.shape[1]])
        return type(self.start)(*arrays)

    def state_into(self, out: RowStates, part: Any) -> RowStates:
        """Return the state `out` with that of this group's rows written."""
        arrays = {}
        for name, own in part._asdict().items():
            whole = getattr(out, name)
            if own.ndim > 1:
                own = torch.nn.functional.pad(own, (0, whole.shape[1] - own.shape[1]))
            arrays[name] = self.into(whole, own)
        return out._replace(**arrays)


def _group(
    dev: Placed, rows: Tensor | None, limit: Tensor | None, ends: Tensor, count: int, device: torch.device
) -> TableRows:
    """Return the group of `count` rows that share a table on a device."""
    start: Any = State(torch.zeros(count, dtype=torch.int64, device=device))
    lost: Any = start._replace(node=start.node + 1)
    if dev is not None:
        start = torch_ops.start(dev, count)
        lost = start._replace(node=torch.full_like(start.node, dev.dead))
    if isinstance(dev, DeviceLive):
        nowhere = torch.full_like(lost.node, dev.delta.count)
        lost = lost._replace(delta=nowhere, delta_high=nowhere)
    if isinstance(dev, DeviceMatrix | DeviceLive):
        lost = lost._replace(high=lost.node, depth=torch.full_like(lost.node, dev.length))
    return TableRows(dev, rows, limit, ends, start, lost)


def each_array(function: Callable[..., Tensor], *states: object) -> Any:
    """Return the state that a function makes of the arrays of states, one array after the other."""
    return type(states[0])(*(None if arrays[0] is None else function(*arrays) for arrays in zip(*states, strict=True)))


def choose(holds: Tensor, yes: object, no: object) -> Any:
    """Return a state (n,): that of `yes` where `holds` (n,) is so, of `no` elsewhere."""
    return each_array(lambda a, b: torch.where(holds[:, None] if a.ndim > 1 else holds, a, b), yes, no)


class BatchRows:
    """What a constraint does with states (n,) and scores (n, V) of the rows of a batch on one device."""

    def __init__(self, constraint: BatchConstraint, count: int, device: torch.device) -> None:
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
        self._groups: list[TableRows] = []
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
        blank = RowStates(**widest)
        self._start, self.lost = each_array(torch.clone, blank), blank  # the latter nothing leads out of
        for group in self._groups:
            self._start = group.state_into(self._start, group.start)
            self.lost = group.state_into(self.lost, group.lost)
        self._read = [group for group in self._groups if isinstance(group.dev, OnDemandTable)]

    @property
    def grow(self) -> bool:
        """Whether there are tables that are read on demand."""
        return bool(self._read)

    def keep(self, states: Callable[[], list[RowStates]]) -> None:
        """Forget all states but the start and these (n,), of tables read on demand that have little room left."""
        full = [group for group in self._read if group.dev.rows.is_full]
        if full:
            kept = states()
            for group in full:
                group.dev.keep(State(torch.cat([group.state(state).node for state in kept])))  # one read

    def start(self) -> RowStates:
        """Return the states of rows with nothing written yet."""
        started: RowStates = each_array(torch.clone, self._start)
        return started

    def mask(self, scores: Tensor, state: RowStates, count: Tensor | int, floor: float | None = _FLOOR) -> Tensor:
        """Return scores with -inf at what is not allowed; in lost states the ends are, so that there is a softmax.

        count: tokens written so far. floor: what allowed scores are raised to; None to leave them as they are.
        """
        check_floating(scores.is_floating_point(), scores.dtype)
        if scores.shape[1] <= self.most_end:
            raise VocabularyMismatchError(
                f"scores have {scores.shape[1]} columns and EOS is token {self.most_end}: this is another model's"
            )
        out = scores if self._groups[0].rows is None else scores.clone()
        stuck: list[tuple[tuple[int, list[int]], Tensor]] = []
        for group in self._groups:
            if group.dev is None:
                continue
            part = group.of(scores)
            # a score of -inf, from another processor, must not leave a row with nothing to choose from
            part = part.clone() if floor is None else part.clamp(min=max(floor, torch.finfo(part.dtype).min))
            at_end = part.index_select(1, group.ends)
            remaining = None if group.limit is None else (group.limit - count).clamp(min=0)
            own = group.state(state)
            depth = count if isinstance(count, int) else None
            part = torch_ops.mask_logits_(group.dev, part, own, remaining, depth)
            may_end = torch_ops.accepting(group.dev, own) | (own.node == group.dev.dead)
            part.index_copy_(1, group.ends, torch.where(may_end[:, None], at_end, -torch.inf))
            if (
                not group.ends.shape[0] and floor is not None
            ):  # where nothing follows there is a softmax too, of a token
                part[:, 0] = torch.where(may_end, floor, part[:, 0])
            if group.inside is not None and floor is not None:
                stuck.append((group.inside, (part == -torch.inf).all(dim=1).any()))
            out = group.into(out, part)
        if stuck:
            found = torch.stack([flag for _, flag in stuck]).tolist()  # the one read
            for ((table, inside), _), here in zip(stuck, found, strict=True):
                if here:
                    raise ConstraintError(
                        f"a text of table {table} can only go on with token "
                        f"{inside[0] if len(inside) == 1 else inside}, which ends generation: {OTHER_END}"
                    )
        return out

    def accepting(self, state: RowStates) -> Tensor:
        """Return whether each row may end where it stands: bool (n,)."""
        out = torch.ones_like(state.node, dtype=torch.bool)
        for group in self._groups:
            if group.dev is not None:
                out = group.into(out, torch_ops.accepting(group.dev, group.state(state)))
        return out

    def advance(self, state: RowStates, tokens: Tensor, count: Tensor | int) -> RowStates:
        """Return the states after one more token (n,) each, `count` having been written before.

        A token that was not allowed, also where it left no time for an end, leads to the lost state.
        """
        out: RowStates = each_array(torch.clone, state)
        for group in self._groups:
            part, token = group.state(state), group.of(tokens)
            is_end = (token[:, None] == group.ends).any(-1)
            if group.dev is None:
                following = part
            else:
                following = torch_ops.advance(group.dev, part, token)
                if group.limit is not None:
                    in_time = torch_ops.distance(group.dev, following) < group.limit - count
                    following = choose(in_time, following, group.lost)
            out = group.state_into(out, choose(is_end, group.lost, following))
        return out
