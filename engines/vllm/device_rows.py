"""Rows of vLLM's second model runner: states on the device, moved on by the tokens that the model is fed.

Under speculative decoding a request has a row for each draft, and which drafts were accepted only the device knows. So
each request keeps the states of all rows of its last step. Where the next step begins says which of them its text has
come to: no token and no count is read by the host.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from vllm.sampling_params import SamplingParams

from ...errors import ConstraintError
from ...runtime import torch_ops
from ...runtime.device.backend import Placed
from ...table.sid_filter import SidFilter
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from ..catalogues import CatalogueRequest, Catalogues, request_of
from .filter_slots import FilterSlots

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcContext, LogitsProcRequestState


_log = logging.getLogger(__name__)


class _Added(NamedTuple):
    """A request that the device does not know yet."""

    slot: int
    catalogue: int  # its number, -1 for none
    kept: SidFilter | None
    base: int  # position of the last token that it brings along
    written: int  # how many of its tokens are its own already, as after it was preempted
    limit: int  # position before which it must be complete
    fits: bool  # whether an item has as few tokens as are left


class _Placed:
    """A catalogue on the device, and where requests stand in it: for each slot, the states of its last rows."""

    def __init__(self, table: TransitionTable | SortedMatrix, device: torch.device, slots: int, width: int) -> None:
        self.table = table
        self.counts = table.min_length != table.max_length  # tokens, so that an end stays in reach
        placed = torch_ops.to_device(table, device, distances=self.counts and not isinstance(table, SortedMatrix))
        self.filters: FilterSlots | None = None  # until a request has one: kernels read a table without filters
        self._dev = placed
        self.start, self.dead = self._start_and_dead()
        self.states = tuple(part.new_zeros(slots, width) for part in self.start)

    def _start_and_dead(self) -> tuple[Any, Any]:
        start = torch_ops.start(self.dev, 1)
        return start, torch_ops.advance(self.dev, start, torch.full((1,), -1, device=start.node.device))

    @property
    def dev(self) -> Placed:
        """The table or matrix as it is now: filters come and go."""
        return self._dev if self.filters is None else self.filters.dev

    def filter(self, slot: int, kept: SidFilter | None) -> None:
        """Give a slot a filter, or none."""
        if self.filters is None:
            if kept is None:
                return
            self.filters = FilterSlots(self._dev, self.table)
            self.start, self.dead = self._start_and_dead()
            self.states = (*self.states, torch.zeros_like(self.states[0]))  # of filter 0, which keeps everything
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
        self._catalogues, self._requests, self._end = catalogues, requests, end
        self._longest, self.width = vllm_config.model_config.max_model_len, 1 + vllm_config.num_speculative_tokens
        device, slots = requests.device, requests.max_num_reqs
        self.placed = [_Placed(table, device, slots, self.width) for table in catalogues.tables().values()]
        self._numbers = {name: number for number, name in enumerate(catalogues.tables())}
        self._staged: dict[int, _Added] = {}
        self._of_slot = [-1] * slots  # the same as `_of`, on the host
        self._of = torch.full((slots,), -1, dtype=torch.int64, device=device)
        # position of the token behind which the first of a slot's states stands, and `_Added.limit`
        self._base, self._limit = self._of.clone(), self._of.clone()

    def add(self, slot: int, params: SamplingParams) -> bool:
        """Take in a request, in a slot that another may have had; return whether it names a catalogue."""
        asked = request_of(params.extra_args)
        if asked is None:
            self._stage(_Added(slot, -1, None, -1, 0, -1, True))
            return False
        prompt, fed = int(self._requests.prompt_len.np[slot]), int(self._requests.prefill_len.np[slot])
        limit = min(prompt + params.max_tokens, self._longest)
        number, kept = self._numbers[asked.catalogue], self._kept(asked)
        shortest = (kept or self.placed[number].table).min_length
        if limit - prompt < shortest:
            _log.warning(
                "an answer is empty: its prompt leaves %d tokens, and an item takes %d", limit - prompt, shortest
            )
        self._stage(_Added(slot, number, kept, fed - 1, fed - prompt, limit, limit - prompt >= shortest))
        return True

    def _kept(self, asked: CatalogueRequest) -> SidFilter | None:
        found = self._catalogues.constraint(asked)
        return found if isinstance(found, SidFilter) else None

    def _stage(self, added: _Added) -> None:
        self._staged[added.slot], self._of_slot[added.slot] = added, added.catalogue

    def write(self) -> None:
        """Write to the device what `add` took in."""
        if not self._staged:
            return
        added, self._staged = list(self._staged.values()), {}
        device = self._of.device
        slots, numbers, base, limit = (
            torch.tensor(column, dtype=torch.int64).to(device, non_blocking=True)
            for column in zip(*((each.slot, each.catalogue, each.base, each.limit) for each in added), strict=True)
        )
        self._of[slots], self._base[slots], self._limit[slots] = numbers, base, limit
        for each in added:
            for number, placed in enumerate(self.placed):
                placed.filter(each.slot, each.kept if number == each.catalogue else None)
            if each.catalogue >= 0:
                self._begin(each)

    def _begin(self, added: _Added) -> None:
        """Let a request stand behind what it has written already."""
        placed = self.placed[added.catalogue]
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
