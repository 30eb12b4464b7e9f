"""Beam search over a catalogue for many prompts at once, each with its own number of beams and its own filter.

The beams of a prompt share its keys and values, as in `tree_beams`, where a model can be told what a token sees.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...table.constraint import Constraint
from ...table.snapshot import LiveFilter, Snapshot
from .. import torch_ops
from ..decode.beam import beam_search
from ..device.backend import Placed
from ..device.device_table import Selection
from .beams import NoBeamError
from .generate import constrained_generate
from .placed import PlacedTable
from .tree_beams import CACHE, CacheEntries, TreeCache, check_model, seen_by_beams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NO_ENTRIES = CacheEntries(0, 0, 0)


class Query(NamedTuple):
    """One search of a batch."""

    prompt: Sequence[int]  # tokens, one at least; of an encoder-decoder what its encoder reads
    beams: int
    keep: Any = None  # a filter of the table that is searched; None: all of it


class Found(NamedTuple):
    """The sequences that one search found, best first; none if the model gave no numbers."""

    states: NDArray[np.int64]  # (m,) as `Beams.states`
    scores: NDArray[np.float32]  # (m,) sums of log-probabilities under the model's full softmax


class PlacedItems(NamedTuple):
    """A table of sequences, and what is on the model's device of it."""

    table: Any
    dev: Placed


class ItemSearch:
    """Searches a table of sequences, which may live, with a model of transformers.

    model: a decoder or an encoder-decoder. shares_prompts: whether the beams of a prompt share one cache; `why_not`
    says why not. One thread at a time may search.

    >>> search = ItemSearch(model)  # doctest: +SKIP
    >>> placed = search.place(catalogue.table)  # doctest: +SKIP
    >>> found = search.search(placed, [Query([5, 9, 2], beams=20), Query([7], beams=50, keep=cheap)])  # doctest: +SKIP
    >>> catalogue.items(found[0].states, limit=10)  # doctest: +SKIP
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model
        self.device: torch.device = model.device
        self.shares_prompts, self.why_not = True, ""
        self.entries = _NO_ENTRIES  # of the last search whose beams shared their prompts
        try:
            check_model(model, "let the beams of a prompt share one cache", "Each beam has its own")
        except ValueError as error:
            self.shares_prompts, self.why_not = False, str(error)
        takes = inspect.signature(model.forward).parameters
        self._last_alone = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def place(self, table: Constraint, before: PlacedItems | None = None) -> PlacedItems:
        """Return a table on the model's device.

        before: what an earlier snapshot of the same living set is there, of which only what has changed is copied.
        """
        if before is None or not isinstance(table, Snapshot):
            # `generate`, which searches where beams cannot share a cache, bounds the tokens by distances
            return PlacedItems(table, torch_ops.to_device(table, self.device, distances=not self.shares_prompts))
        return PlacedItems(table, torch_ops.with_snapshot(before.dev, table))

    @torch.inference_mode()
    def search(
        self, placed: PlacedItems, queries: Sequence[Query], *, given_up: Callable[[], Collection[int]] = tuple
    ) -> list[Found | None]:
        """Return what each query finds: what `beam_search` finds for it alone.

        given_up: says between two steps which of the queries nobody waits for any more. Once that are all, the search
        ends, and each of them has None.

        Raises ValueError for a query without tokens or without beams.
        """
        for at, query in enumerate(queries):
            if not len(query.prompt) or query.beams < 1:
                raise ValueError(f"queries[{at}] needs a token and a beam, not {len(query.prompt)} and {query.beams}")
        found: list[Found | None] = [None] * len(queries)
        for part in self._parts(queries):
            own = [queries[at] for at in part]
            if len(set(given_up()).intersection(part)) == len(part):
                continue
            try:
                made = (
                    self._by_tree(placed, own, part, given_up) if self.shares_prompts else self._by_copies(placed, own)
                )
            except _AllGivenUpError:
                continue
            for at, each in zip(part, made, strict=True):
                found[at] = each
        return found

    def _parts(self, queries: Sequence[Query]) -> list[list[int]]:
        """Return queries that are searched together: prompts about as long, with copies of a cache as many beams."""
        order = sorted(range(len(queries)), key=lambda at: len(queries[at].prompt))
        parts: list[list[int]] = []
        for at in order:
            first = queries[parts[-1][0]] if parts else None
            if first is not None and len(queries[at].prompt) <= max(64, 2 * len(first.prompt)):
                parts[-1].append(at)
            else:
                parts.append([at])
        if self.shares_prompts:
            return parts
        counts = [sorted({queries[at].beams for at in part}) for part in parts]
        return [
            [at for at in part if queries[at].beams == beams]
            for part, own in zip(parts, counts, strict=True) for beams in own
        ]  # fmt: skip

    # ------------------------------------------------------------------------------------------------ a shared cache

    def _by_tree(
        self, placed: PlacedItems, queries: Sequence[Query], at: Sequence[int], given_up: Callable[[], Collection[int]]
    ) -> list[Found]:
        model, batch, beams = self.model, len(queries), max(query.beams for query in queries)
        tokens, seen = _padded(queries, self.device)
        positions = (seen.cumsum(1) - 1).clamp_min(0)
        lengths = positions[:, -1:] + 1
        tree = TreeCache(model.config, batch, tokens.shape[1], collect=8)
        tree.plant(batch * beams, self.device)
        each = seen.repeat_interleave(beams, dim=0)

        def run(tokens: Tensor, seen: Tensor, positions: Tensor, **more: Any) -> Tensor:
            more[CACHE] = tree
            out = model(input_ids=tokens, attention_mask=seen, position_ids=positions, use_cache=True, **more)
            return cast(Tensor, out.logits)

        def step(chosen: Tensor, cache: TreeCache, t: int) -> tuple[Tensor, TreeCache]:
            if t == 0:
                logits = run(tokens, seen, positions, **self._last_alone)[:, -1:]
                return logits.expand(-1, beams, -1), cache  # all beams are one still
            if len(set(given_up()).intersection(at)) == len(at):
                raise _AllGivenUpError
            logits = run(
                chosen.view(batch, beams), seen_by_beams(tree, each, model.dtype), (lengths + (t - 1)).expand(-1, beams)
            )
            return logits.flatten(0, 1), cache

        def regather(cache: TreeCache, index: Tensor) -> TreeCache:
            cache.reorder_cache(index)
            return cache

        dev = _kept(placed, [query.keep for query in queries])
        own = torch.tensor([[query.beams] for query in queries], device=self.device)
        ops = torch_ops if int(own.min()) == beams else cast(Any, _OwnBeams(own))
        out = beam_search(
            step, tree, dev, ops=ops, batch=batch, beams=beams, max_tokens=placed.table.max_length, gather=regather
        )
        self.entries = tree.entries
        states, scores, valid = (each.cpu().numpy() for each in (out.states, out.scores, out.valid))
        return [Found(states[i][valid[i]], scores[i][valid[i]]) for i in range(batch)]

    # ------------------------------------------------------------------------------------------- a cache for each beam

    def _by_copies(self, placed: PlacedItems, queries: Sequence[Query]) -> list[Found]:
        """Search with `generate`, for models whose beams cannot share a cache."""
        tokens, seen = _padded(queries, self.device)
        beams, length = queries[0].beams, placed.table.max_length
        whole = PlacedTable(placed.table, placed.dev, self.device, True)
        tables: list[Any] = [
            whole if keep is None else PlacedTable(keep, _kept(placed, [keep]), self.device, True)
            for keep in (query.keep for query in queries)
        ]
        try:
            out = self.model.generate(
                tokens, attention_mask=seen, custom_generate=constrained_generate, tables=tables, num_beams=beams,
                num_return_sequences=beams, max_new_tokens=length + (placed.table.eos is not None),
                length_penalty=0.0, do_sample=False, return_dict_in_generate=True,
            )  # fmt: skip
        except NoBeamError:  # of one of them: the others must not go with it
            if len(queries) > 1:
                return [one for query in queries for one in self._by_copies(placed, [query])]
            return [Found(np.empty(0, np.int64), np.empty(0, np.float32))]
        begin = 1 if self.model.config.is_encoder_decoder else tokens.shape[1]
        written = out.sequences[:, begin : begin + length].cpu().numpy().astype(np.int64)
        scores = out.sequences_scores.float().cpu().numpy().reshape(len(queries), beams)
        table = placed.table
        states = (table.walk(written) if hasattr(table, "walk") else table.find(written)).reshape(scores.shape)
        return [Found(states[i][scores[i] > -np.inf], scores[i][scores[i] > -np.inf]) for i in range(len(queries))]


class _AllGivenUpError(Exception):
    """Nobody waits for any query of a batch."""


class _OwnBeams:
    """The operations of torch, with a number of beams for each row of a batch: the others are dead."""

    def __init__(self, own: Tensor) -> None:
        self._own = own  # (B, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch_ops, name)

    def select(self, *args: Any, **options: Any) -> Selection:
        """Return the best continuations, of which each row keeps as many as it has beams."""
        chosen = torch_ops.select(*args, **options)
        place = torch.arange(chosen.scores.shape[1], device=self._own.device)
        return chosen._replace(scores=torch.where(place < self._own, chosen.scores, -torch.inf))


def _kept(placed: PlacedItems, keeps: Sequence[Any]) -> Placed:
    """Return what is on the device with a filter for each row of a batch."""
    if all(keep is None for keep in keeps):
        return placed.dev
    table = placed.table
    if None in keeps:
        if isinstance(table, Snapshot):
            whole: Any = LiveFilter(table, table.bits, np.ones(len(table.delta), np.bool_))
        else:
            whole = table.filter(np.ones(table.num_items, np.bool_))
        keeps = [whole if keep is None else keep for keep in keeps]
    distinct = list({id(keep): keep for keep in keeps}.values())
    numbers = {id(keep): number for number, keep in enumerate(distinct)}
    return torch_ops.with_filters(placed.dev, distinct, [numbers[id(keep)] for keep in keeps])


def _padded(queries: Sequence[Query], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return prompts (B, P), padded on the left, and 1 where a token is."""
    longest = max(len(query.prompt) for query in queries)
    tokens, seen = np.zeros((len(queries), longest), np.int64), np.zeros((len(queries), longest), np.int64)
    for row, query in enumerate(queries):
        tokens[row, longest - len(query.prompt) :] = query.prompt
        seen[row, longest - len(query.prompt) :] = 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(seen).to(device)
