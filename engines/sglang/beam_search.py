"""Semantic IDs under SGLang's own beam search: masked before its top-k, on the device, with a state for each beam.

SGLang takes the best continuations of each beam in one function and chooses among those of all beams in another. The
first one does not know the request, so it waits here until the second is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...compile.found_items import Table
from ...errors import ConstraintError
from ...runtime import torch_ops
from ...runtime.device.backend import Placed
from ...table.snapshot import Snapshot
from ..catalogues import CATALOGUE, Catalogues, SidConstraint, request_of, table_and_filter
from ..wording import said

if TYPE_CHECKING:
    from sglang.srt.beam_search.beam_group import BeamGroup
    from sglang.srt.beam_search.coordinator import BeamCoordinator
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.sampling.sampling_params import SamplingParams


_COORDINATOR = "sglang.srt.beam_search.coordinator"
_NONE_LEFT = "the model gives no item of the catalogue a probability"


class _Waiting(NamedTuple):
    """A call of SGLang's top-k that waits for the request."""

    best: Callable[[Sequence[Tensor], int], tuple[Tensor, Tensor]]
    logits: Sequence[Tensor]  # (n, V) each, of consecutive rows


class _Search:
    """The beams of one request: their constraint, their states, and how many tokens they have."""

    def __init__(self, dev: Placed, filler: int) -> None:
        self.dev, self.filler = dev, filler
        self.state, self.depth = torch_ops.start(dev, 1), 0

    def candidates(self, logits: Sequence[Tensor], width: int) -> tuple[Tensor, Tensor]:
        """Return the scores and tokens (n, width) of the best allowed continuations of rows of logits (n, V).

        What there is none of scores -inf, and its token ends no beam.
        """
        rows = torch.cat([part.float() for part in logits])
        found = torch_ops.candidates(self.dev, rows, self.state, width, self.depth)
        tokens = torch.where(found.scores > -torch.inf, found.tokens.long(), self.filler)
        return found.scores, tokens

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Go on with tokens (n,), each of the beam of its parent (n,)."""
        self.state = torch_ops.advance(self.dev, torch_ops.arrays.gather(self.state, parents), tokens)
        self.depth += 1


class CatalogueBeams:
    """What is put around SGLang's functions in one process. Catalogues are read once its scheduler is made."""

    def __init__(self, names: Sequence[str], read: Callable[[], Catalogues]) -> None:
        self._names, self._read = names, read
        self._catalogues: Catalogues | None = None
        self._placed: dict[str, tuple[Table, Placed]] = {}  # the newest version of each catalogue

    def hooks(self) -> Mapping[str, tuple[str, Callable[..., Any]]]:
        """Return how each function of SGLang is changed, by its path; only requests are checked without catalogues."""
        checked = {"sglang.srt.sampling.sampling_params.SamplingParams.verify": ("AFTER", self.check)}
        if not self._names:
            return checked
        return checked | {
            "sglang.srt.managers.scheduler.Scheduler.init_beam_coordinator": ("AFTER", self.place),
            f"{_COORDINATOR}.BeamCoordinator.validate_and_init": ("AROUND", self.begin),
            f"{_COORDINATOR}._rows_topk_logprobs": ("AROUND", self.wait),
            f"{_COORDINATOR}.BeamCoordinator._select_group": ("AROUND", self.select),
            f"{_COORDINATOR}.BeamCoordinator._finish_group": ("AROUND", self.finish),
        }

    # ------------------------------------------------------------------------------------- before a request runs

    def check(self, _: None, params: SamplingParams, vocab_size: int) -> None:
        """Raise ValueError for a request that names a catalogue without beams, or where there are none."""
        try:
            asked = request_of(params.custom_params)
        except ConstraintError as error:
            raise ValueError(said(error)) from error
        if asked is None:
            return
        if asked.catalogue not in self._names:
            there = ", ".join(map(repr, sorted(self._names))) or "none"
            raise ValueError(f"{CATALOGUE} names {asked.catalogue!r}, and there are {there}")
        if (params.beam_width or 1) < 2:
            raise ValueError(f"{CATALOGUE} is for beam search: add a beam_width of 2 or more")

    def place(self, _: None, scheduler: Scheduler) -> None:
        """Read the catalogues and put them where the logits are. Raises ConstraintError, which stops the server."""
        config = scheduler.model_config
        catalogues = self._read()
        ends = {}
        own = getattr(scheduler.tokenizer, "eos_token_id", None)
        if own is not None:
            ends[own] = "the tokenizer's eos_token"
        for token in sorted(config.hf_eos_token_id or ()):
            ends.setdefault(token, "in the model's eos_token_id")
        catalogues.check(config.vocab_size, ends)
        if scheduler.server_args.tp_size > 1:
            catalogues.keep_still("the processes of this engine would read it at different times")
        device = scheduler.req_to_token_pool.device
        for name, table in catalogues.tables().items():
            self._placed[name] = table, torch_ops.to_device(table, device, distances=False)
        self._catalogues = catalogues

    def begin(
        self,
        original: Callable[..., str | None],
        coordinator: BeamCoordinator,
        req: Req,
        recv_req: TokenizedGenerateReqInput,
    ) -> str | None:
        """Return SGLang's verdict on a request; to one that names a catalogue also what cannot be kept."""
        params = req.sampling_params
        asked = request_of(params.custom_params)
        if asked is None:
            return original(coordinator, req, recv_req)
        assert self._catalogues is not None
        try:
            constraint = self._catalogues.constraint(asked)
            stops = coordinator._collect_stop_token_ids(req, params)
            length = self._checked_length(asked.catalogue, constraint, stops, params.max_new_tokens)
        except ConstraintError as error:
            return said(error)
        params.max_new_tokens = length
        refused = original(coordinator, req, recv_req)
        if refused is not None:
            return refused
        if req.beam_group.max_new_tokens < length:
            coordinator.retire_group(req)
            return f"the context has room for {req.beam_group.max_new_tokens} more tokens, and an item takes {length}"
        filler = next(token for token in range(len(stops) + 1) if token not in stops)
        req.beam_group.of_maskwright = _Search(self._dev(asked.catalogue, constraint), filler)
        return None

    def _checked_length(self, name: str, constraint: SidConstraint, stops: Sequence[int], most: int | None) -> int:
        """Return how many tokens each item has. Raises ConstraintError where a request would cut items, or lose some.

        most: the tokens of a beam, as the request has it. SGLang takes an end only as long as fewer than W beams
        without one score better, so it would lose items that end by a token.
        """
        assert self._catalogues is not None
        length = constraint.fixed_length
        if length is None or constraint.eos is not None:
            raise ConstraintError(
                f"{name!r} has items that end by a token, or that begin with others, of which SGLang's beam search "
                "loses some: the server's operator makes it of semantic IDs of one length, without eos",
                argument=CATALOGUE,
            )
        inside = [token for token in stops if self._catalogues.uses(name, token)]
        if inside:
            raise ConstraintError(
                f"token {inside[0]} ends an answer and is in semantic IDs of {name!r}: take it out",
                argument="stop_token_ids",
            )
        if most is not None and most < length:
            raise ConstraintError(f"is {most}, and an item of {name!r} takes {length}", argument="max_new_tokens")
        return int(length)

    def _dev(self, name: str, constraint: SidConstraint) -> Placed:
        """Return a constraint on the device. A search keeps it, and with it the version that it began with."""
        table, kept = table_and_filter(constraint)
        held, dev = self._placed[name]
        if held is not table:
            assert isinstance(table, Snapshot)  # others have one version
            dev = torch_ops.with_snapshot(dev, table)
            self._placed[name] = table, dev
        return dev if kept is None else torch_ops.with_filters(dev, [kept])

    # --------------------------------------------------------------------------------------------- at every step

    def wait(
        self, original: Callable[..., tuple[Tensor, Tensor]], pieces: Sequence[Tensor], num_candidates: int
    ) -> tuple[_Waiting, int]:
        """Return, in the place of scores, what `select` makes them of; of tokens, how many a row."""
        return _Waiting(original, [part for part in pieces if len(part)]), num_candidates

    def select(
        self, original: Callable[..., tuple[Tensor, Tensor | None]], coordinator: BeamCoordinator, group: BeamGroup,
        waiting: _Waiting, width: int, tick: int,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Choose among the continuations of a request's beams; those of one with a catalogue stay inside it."""
        search = getattr(group, "of_maskwright", None)
        if search is None:
            return original(coordinator, group, *waiting.best(waiting.logits, width), tick)
        chosen, parents = original(coordinator, group, *search.candidates(waiting.logits, width), tick)
        if parents is not None:
            search.advance(parents, chosen)
        return chosen, parents

    def finish(self, original: Callable[..., None], coordinator: BeamCoordinator, group: BeamGroup) -> None:
        """End a request without the beams that found no item; with none left, by an error."""
        if hasattr(group, "of_maskwright"):
            group.completed = [beam for beam in group.completed if beam.cum_logprob > -float("inf")]
            if not group.completed:
                from sglang.srt.managers.schedule_batch import FINISH_ABORT

                group.leader.to_finish = FINISH_ABORT(_NONE_LEFT, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError")
                coordinator._abort_group(group)
                return
        original(coordinator, group)
