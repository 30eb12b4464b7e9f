"""Rows of vLLM's second model runner: states on the device, moved on by the tokens that the model is fed.

Under speculative decoding a request has a row for each draft, and which drafts were accepted only the device knows. So
each request keeps the states of all rows of its last step. Where the next step begins says which of them its text has
come to: no token and no count is read by the host.

Of a catalogue that changes, each version that a request began with is on the device as long as the request lives: a
step runs once for each version that it has rows of.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from vllm.sampling_params import SamplingParams

from ...compile.found_items import AnyFilter, Table
from ...errors import ConstraintError
from ...runtime import torch_ops
from ...runtime.device.backend import Placed
from ...table.snapshot import Snapshot
from ...table.transition_table import TransitionTable
from ..catalogues import Catalogues, request_of, table_and_filter
from ..options import VARIABLE
from .filter_slots import FilterSlots
from .requests import Items, items_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcContext, LogitsProcRequestState


_log = logging.getLogger(__name__)


class _Added(NamedTuple):
    """A request that the device does not know yet."""

    slot: int
    version: int  # the number of its catalogue's version, -1 for none
    kept: AnyFilter | None
    base: int  # position of the last token that it brings along
    written: int  # how many of its tokens are its own already, as after it was preempted
    limit: int  # position before which it must be complete
    fits: bool  # whether there is an item that has as few tokens as are left


class _Placed:
    """A version of a catalogue on the device, and where requests stand in it: for each slot, states of its last rows.

    before: another version of the same catalogue.
    """

    def __init__(
        self, table: Table, device: torch.device, slots: int, width: int, before: _Placed | None = None
    ) -> None:
        self.table = table
        self.counts = table.min_length != table.max_length  # tokens, so that an end stays in reach
        self.filters: FilterSlots | None = None  # until a request has one: kernels read a table without filters
        self._dev: Placed
        if before is not None:
            assert isinstance(table, Snapshot)  # others have one version
            self._dev = torch_ops.with_snapshot(before._dev, table)
        else:
            counted = self.counts and isinstance(table, TransitionTable)
            self._dev = torch_ops.to_device(table, device, distances=counted)
        self.start, self.dead = self._start_and_dead()
        self.states = tuple(part.new_zeros(slots, width) for part in self.start)

    def _start_and_dead(self) -> tuple[Any, Any]:
        start = torch_ops.start(self.dev, 1)
        return start, torch_ops.advance(self.dev, start, torch.full((1,), -1, device=start.node.device))

    @property
    def dev(self) -> Placed:
        """The table or matrix as it is now: filters come and go."""
        return self._dev if self.filters is None else self.filters.dev

    def filter(self, slot: int, kept: AnyFilter | None) -> None:
        """Give a slot a filter, or none."""
        if self.filters is None:
            if kept is None:
                return
            self.filters = FilterSlots(self._dev, self.table)
            self.start, self.dead = self._start_and_dead()
            if len(self.states) < len(self.start):  # of filter 0, which keeps everything
                self.states = (*self.states, torch.zeros_like(self.states[0]))
        self.filters.put(slot, kept)

    def put(self, slot: int, state: tuple[Tensor, ...]) -> None:
        """Let a slot stand in a state (1,)."""
        for held, part in zip(self.states, state, strict=True):
            held[slot, 0] = part[0]


class DeviceRows:
    """The requests of an engine that name a catalogue, by their slots.

    Raises ConstraintError for ways of speculative decoding under which a row that is not allowed might be accepted.
    """

    def __init__(
        self, catalogues: Catalogues, vllm_config: VllmConfig, requests: LogitsProcRequestState, end: int
    ) -> None:
        speculative = vllm_config.speculative_config
        if speculative is not None and (
            speculative.enable_adaptive_verification or speculative.rejection_sample_method == "synthetic"
        ):
            raise ConstraintError(
                "adaptive verification and synthetic acceptance do not keep to a catalogue: leave them out of the "
                "speculative config, or leave out the logits processor"
            )
        parallel = vllm_config.parallel_config
        if catalogues.living and parallel.distributed_executor_backend != "uni":
            raise ConstraintError(
                f"catalogues: {catalogues.living[0]!r} has a log: the second model runner needs it in the process of "
                "the scheduler, by --distributed-executor-backend uni; or leave the log out",
                argument=VARIABLE,
            )
        self._catalogues, self._requests, self._end = catalogues, requests, end
        self._longest, self.width = vllm_config.model_config.max_model_len, 1 + vllm_config.num_speculative_tokens
        self.placed: dict[int, _Placed] = {}  # by the number of a version
        self._newest: dict[str, int] = {}
        self._made = 0
        for name, table in catalogues.tables().items():
            self._number(name, table)
        self._staged: dict[int, _Added] = {}
        slots = requests.max_num_reqs
        self._of_slot = [-1] * slots  # the same as `_of`, on the host
        self._items: list[weakref.ref[Items] | None] = [None] * slots  # which the parameters of a request hold
        self._of = torch.full((slots,), -1, dtype=torch.int64, device=requests.device)
        # position of the token behind which the first of a slot's states stands, and `_Added.limit`
        self._base, self._limit = self._of.clone(), self._of.clone()

    def add(self, slot: int, params: SamplingParams) -> bool:
        """Take in a request, in a slot that another may have had; return whether it names a catalogue."""
        asked = request_of(params.extra_args)
        if asked is None:
            self._stage(_Added(slot, -1, None, -1, 0, -1, True), None)
            return False
        prompt, fed = int(self._requests.prompt_len.np[slot]), int(self._requests.prefill_len.np[slot])
        limit = min(prompt + params.max_tokens, self._longest)
        items = items_of(params, asked, self._catalogues)
        kept: AnyFilter | None = None
        version, fits = self._newest[asked.catalogue], False
        if items.constraint is not None:
            table, kept = table_and_filter(items.constraint)
            version = self._number(asked.catalogue, table)
            shortest = items.constraint.min_length
            fits = limit - prompt >= shortest
            if not fits:
                _log.warning(
                    "an answer is empty: its prompt leaves %d tokens, and an item takes %d", limit - prompt, shortest
                )
        self._stage(_Added(slot, version, kept, fed - 1, fed - prompt, limit, fits), items)
        return True

    def _number(self, name: str, table: Table) -> int:
        """Return the number of a version, which is put on the device if it is not there."""
        for number, placed in self.placed.items():
            if placed.table is table:
                return number
        before = self.placed[self._newest[name]] if name in self._newest else None
        device, slots = self._requests.device, self._requests.max_num_reqs
        self._made += 1
        self.placed[self._made] = _Placed(table, device, slots, self.width, before)
        if table is self._catalogues.tables()[name]:
            self._newest[name] = self._made
        return self._made

    def _stage(self, added: _Added, items: Items | None) -> None:
        self._staged[added.slot], self._of_slot[added.slot] = added, added.version
        self._items[added.slot] = None if items is None else weakref.ref(items)

    def write(self) -> None:
        """Write to the device what `add` took in."""
        if not self._staged:
            return
        added, self._staged = list(self._staged.values()), {}
        device = self._of.device
        slots, numbers, base, limit = (
            torch.tensor(column, dtype=torch.int64).to(device, non_blocking=True)
            for column in zip(*((each.slot, each.version, each.base, each.limit) for each in added), strict=True)
        )
        self._of[slots], self._base[slots], self._limit[slots] = numbers, base, limit
        self._drop()
        for each in added:
            for number, placed in self.placed.items():
                placed.filter(each.slot, each.kept if number == each.version else None)
            if each.version >= 0:
                self._begin(each)

    def _drop(self) -> None:
        """Drop versions that are not the newest, and that no request has."""
        if len(self.placed) > len(self._newest):
            pairs = zip(self._of_slot, self._items, strict=True)
            used = {version for version, items in pairs if items is not None and items() is not None}
            used |= set(self._newest.values())
            self.placed = {number: placed for number, placed in self.placed.items() if number in used}

    def _begin(self, added: _Added) -> None:
        """Let a request stand behind what it has written already."""
        placed = self.placed[added.version]
        if not added.fits:
            placed.put(added.slot, placed.dead)
            return
        state: Any = placed.start
        if placed.filters is not None:
            state = state._replace(filter=torch.full_like(state.filter, placed.filters.number(added.slot)))
        tokens = self._requests.all_token_ids.gpu[added.slot]
        for at in range(added.base + 1 - added.written, added.base + 1):
            state = torch_ops.advance(placed.dev, state, tokens[at : at + 1].long())
        placed.put(added.slot, state)

    def apply(self, logits: Tensor, context: LogitsProcContext) -> Tensor:
        """Return logits (n, V) with -inf at each token that is not allowed."""
        present = sorted({self._of_slot[slot] for slot in context.idx_mapping_np.tolist()} - {-1})
        if not present:
            return logits
        slot, local = context.expanded_idx_mapping.long(), context.expanded_local_pos.long()
        first = context.pos.long() - local  # position of each request's first row
        ahead = first - self._base[slot]  # its tokens since the states that are kept: below 0 while a prompt is fed
        width = 1 if len(logits) == len(context.idx_mapping_np) else self.width  # else some request has drafts
        for number in present:
            held = self._of[slot] == number
            state = self._moved(self.placed[number], slot, local, ahead, held, context.input_ids.long(), width)
            logits = torch.where(held[:, None], self._masked(self.placed[number], logits, state, slot, context), logits)
        self._base[slot] = torch.where(ahead >= 0, first, self._base[slot])
        return logits

    def _moved(
        self, placed: _Placed, slot: Tensor, local: Tensor, ahead: Tensor, held: Tensor, fed: Tensor, width: int
    ) -> Any:
        """Return where the text of each row (n,) stands, and keep it.

        A request's first row stands where its text stood behind the last draft that was accepted, and one token
        further; each row behind it, a token further than the one before.
        """
        kept = (ahead - 1).clamp(0, self.width - 1)
        state = type(placed.start)(*(part[slot, kept] for part in placed.states))
        rows = torch.arange(len(slot), device=slot.device) - local
        for step in range(width):
            goes = held & (local >= step) & ((ahead > 0) | (step > 0))
            token = fed[(rows + step).clamp(0, len(slot) - 1)]
            moved = torch_ops.advance(placed.dev, state, torch.where(goes, token, -1))
            state = type(state)(*(torch.where(goes, new, old) for new, old in zip(moved, state, strict=True)))
        keeps = held & (ahead >= 0)
        for part, new in zip(placed.states, state, strict=True):
            part[slot, local] = torch.where(keeps, new, part[slot, local])
        return state

    def _masked(self, placed: _Placed, logits: Tensor, state: Any, slot: Tensor, context: LogitsProcContext) -> Tensor:
        """Return logits under the states of rows, with the end where a text may end, or where it is lost.

        Lost are rows behind a draft that is not allowed: they are thrown away with it.
        """
        remaining = None
        ends = torch_ops.accepting(placed.dev, state) | (state.node == placed.dead.node)
        if placed.counts:
            remaining = (self._limit[slot] - context.pos.long() - 1).clamp(min=0)
            ends |= torch_ops.distance(placed.dev, state) > remaining
        masked: Tensor = torch_ops.mask_logits(placed.dev, logits, state, remaining)
        masked[:, self._end] = torch.where(ends, logits[:, self._end], -torch.inf)
        return masked
