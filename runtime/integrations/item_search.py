"""Search for items with a model of transformers: many requests in one batch, each with its own beams and filter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ConstraintError, VocabularyMismatchError
from ...table.sid_filter import SidFilter
from ...table.snapshot import LiveFilter, Snapshot
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import TransitionTable
from .. import torch_ops
from ..decode.beam import beam_search
from ..device import backend
from ..device.backend import Operations
from ..device.device_table import Selection
from . import compat
from .compat import Model
from .generate import with_forced_token
from .tree_beams import CACHE, TreeCache, changing_rope, check_model, grown_mask, penalty

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Table = TransitionTable | SortedMatrix | Snapshot
AnyFilter = SidFilter | LiveFilter

_COLLECT = 8  # steps after which keys and values of beams that were given up are removed


class Most(NamedTuple):
    """What one pass over prompts and their beams holds at most; more go in several passes."""

    tokens: int  # of prompts and beams
    padding: int  # of these, what is computed only because others are longer or have more beams
    logits: int


# on two cores, 64 prompts of 512 tokens take a tenth less time in three passes than in one; and where logits do not go
# beyond 32 MB, to which glibc keeps memory from one step to the next, a quarter less with 33,000 tokens
_ON_CPU = Most(24_576, 1024, (32 << 20) // 4)
_ELSEWHERE = Most(1 << 17, 1 << 15, 1 << 28)


class Query(NamedTuple):
    """One request of a batch."""

    prompt: Sequence[int]  # tokens; of an encoder-decoder those that its encoder reads
    beams: int
    keep: AnyFilter | None = None  # of the version that is searched; None: all items


class Found(NamedTuple):
    """What a request found, best first; `Catalogue.items` and `ranked` take it."""

    states: NDArray[np.int64]  # (m,) final states, m at most the beams
    scores: NDArray[np.float64]  # (m,) sums of log-probabilities under the model's full softmax


@dataclass(frozen=True, eq=False)
class Placed:
    """The table of a catalogue, and what `to_device` or `with_snapshot` made of it; `ItemSearch.place` makes one."""

    table: Table
    dev: backend.Placed

    @classmethod
    def of(cls, table: Table, device: torch.device | str, before: Placed | None = None) -> Placed:
        """Return a table on a device. before: an earlier version of what lives, whose base is not copied again."""
        if before is not None and before.table is table:
            return before
        if before is not None and isinstance(table, Snapshot) and getattr(before.table, "base", None) is table.base:
            return cls(table, torch_ops.with_snapshot(before.dev, table))
        return cls(table, torch_ops.to_device(table, device))

    @property
    def steps(self) -> int:
        """How many tokens an item has, the end not counted."""
        return int(self.dev.max_length)

    def under(self, filters: Sequence[AnyFilter | None]) -> backend.Placed:
        """Return the table under a filter for each row of a batch; None keeps all."""
        if all(one is None for one in filters):
            return self.dev
        rows = [self._everything if one is None else one for one in filters]
        distinct = list({id(one): one for one in rows}.values())
        numbers = {id(one): number for number, one in enumerate(distinct)}
        return torch_ops.with_filters(self.dev, distinct, [numbers[id(one)] for one in rows])

    @cached_property
    def _everything(self) -> AnyFilter:
        table = self.table
        if isinstance(table, Snapshot) and table.items is not None:
            return table.without_rows(np.empty(0, np.int64))
        count = table.num_sequences if isinstance(table, Snapshot) else table.num_items
        return table.filter(np.ones(count, np.bool_))


class ItemSearch:
    """Beam search for items over a model of transformers, for batches of requests that share nothing but the model.

    Each request finds what `beam_search` finds for it alone. All methods may be called from any thread.

    Attributes:
        model: The model.
        shares_prompts: Whether the beams of a request share its prompt's keys and values, as in `tree_beam_search`.
            Else, as of encoder-decoders and sliding windows, each beam has a cache of its own.
        width: How many logits the model gives.
        most: What one pass holds at most. Less takes less memory.

    Examples:
        >>> search = ItemSearch(model)  # doctest: +SKIP
        >>> found = search.search(search.place(catalogue.table), [Query([5, 7], beams=50)])  # doctest: +SKIP
        >>> catalogue.ranked(found[0])  # doctest: +SKIP
        [("item-7", -3.1), ("item-2", -3.4)]
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Take a model that `generate` of transformers runs, in evaluation mode.

        Raises:
            TypeError: This is no model of transformers that writes tokens.
            ValueError: The model is in training mode.
        """
        self.model: Model = model
        try:
            check_model(model, "share prompts", "")
            self.shares_prompts = not compat.counts_places_from_padding(model)
        except ValueError:
            self.shares_prompts = False
        if model.training:
            raise ValueError("the model is in training mode, in which it drops out at random: call model.eval()")
        of = cast(Any, model)
        decoder = of.config.get_text_config(decoder=True)
        in_cache, stateful = compat.kinds_of_state(model), compat.keeps_state_apart(model)
        # a state elsewhere cannot follow beams: such a model reads all tokens anew at each step
        self._caches = (bool(in_cache) or not stateful) and not compat.keeps_state_in_modules(model)
        # "eager" attention takes the softmax in 32 bits, in which what hides padding of 64 bits is NaN
        rounds = model.dtype == torch.float64 and decoder._attn_implementation == "eager"
        self._pads = of.config.is_encoder_decoder or not (stateful or in_cache or rounds or changing_rope(decoder))
        self._room: int | None = getattr(decoder, "max_position_embeddings", None)
        self._read = of.get_input_embeddings().weight.shape[0]  # tokens that it knows, and that it writes
        head = of.get_output_embeddings()
        self.width = self._read if head is None else head.weight.shape[0]
        self.most = _ON_CPU if model.device.type == "cpu" else _ELSEWHERE
        takes = inspect.signature(model.forward).parameters
        self._selects = of.config.is_encoder_decoder or "logits_to_keep" in takes  # else it has those of whole prompts

    def place(self, table: Table, before: Placed | None = None) -> Placed:
        """Return a table on the model's device, for any number of searches.

        Args:
            table: That of a `Catalogue`.
            before: What this returned for an earlier version of a catalogue that lives: only changes are copied then.

        Returns:
            What `search` takes. Searches that run keep the version that they began with.

        Raises:
            TypeError: This is no table of a catalogue.
            VocabularyMismatchError: The catalogue has tokens that the model does not write.
        """
        if not isinstance(table, TransitionTable | SortedMatrix | Snapshot) or table.max_length is None:
            raise TypeError(f"table must be that of a Catalogue, not a {type(table).__name__}")
        if table.vocab_size > self.width:
            raise VocabularyMismatchError(
                f"the model has {self.width} tokens, the catalogue {table.vocab_size}: it was made for another model"
            )
        return Placed.of(table, self.model.device, before)

    def check(self, placed: Placed, query: Query) -> None:
        """Raise an error for a query that cannot be searched.

        Raises:
            ValueError: There are no beams, or the prompt is empty, too long, or has tokens that the model lacks.
            ConstraintError: The filter is of another catalogue or version.
        """
        if query.beams < 1:
            raise ValueError(f"beams must be positive, not {query.beams}")
        prompt = np.asarray(query.prompt)
        if prompt.ndim != 1 or not prompt.size or prompt.dtype.kind not in "iu":
            raise ValueError("the prompt must be one token or more, as integers")
        if not 0 <= prompt.min() <= prompt.max() < self._read:
            raise ValueError(f"the tokens of the prompt must be 0 .. {self._read - 1}, those of the model")
        fed = placed.steps - (placed.table.eos is None)  # the model does not read the last token
        after = 0 if self.model.config.is_encoder_decoder else fed
        if self._room is not None and prompt.size + after > self._room:
            raise ValueError(
                f"the prompt has {prompt.size} tokens, and the model has places for {self._room - after}: shorten it"
            )
        keep = query.keep
        if keep is not None and (keep.snapshot if isinstance(keep, LiveFilter) else keep.table) is not placed.table:
            raise ConstraintError("is of another catalogue or version than the one that is searched", argument="keep")

    def search(
        self, placed: Placed, queries: Sequence[Query], stop: Callable[[], Iterable[int]] | None = None
    ) -> list[Found | None]:
        """Return what each query finds, which may be nothing: its filter keeps nothing, or the model rules all out.

        Args:
            placed: From `place`.
            queries: The requests.
            stop: Called between steps. It returns the queries, by number, whose deadline has passed.

        Returns:
            What each query found, None where its deadline passed before.

        Raises:
            ValueError, ConstraintError: As of `check`, before the model runs.
        """
        for query in queries:
            self.check(placed, query)
        found: list[Found | None] = [None] * len(queries)
        late: set[int] = set()

        def all_late(rows: list[int]) -> bool:
            if stop is not None:
                late.update(stop())
            return late.issuperset(rows)

        with torch.inference_mode():
            for group in self.groups(placed, queries):
                if all_late(group):
                    continue
                rows = [row for row in group if row not in late]
                try:
                    each = self._search(placed, [queries[row] for row in rows], partial(all_late, rows))
                except _AllLateError:
                    continue
                for row, one in zip(rows, each, strict=True):
                    found[row] = None if row in late else one
        return found

    def groups(self, placed: Placed, queries: Sequence[Query]) -> Iterator[list[int]]:
        """Yield the queries of each pass, by number: those together that are alike in beams, then in length."""
        group: list[int] = []
        longest = widest = tokens = 0
        for row in sorted(range(len(queries)), key=lambda i: (queries[i].beams.bit_length(), len(queries[i].prompt))):
            length, beams = len(queries[row].prompt), queries[row].beams
            own = self._tokens(length, beams, placed)
            if group:
                most = max(longest, length), max(widest, beams)
                count = len(group) + 1
                padded = count * self._tokens(*most, placed)
                logits = count * (most[1] if self._selects else max(most)) * self.width
                differs = not self._pads and length != longest
                if differs or any(
                    x > y for x, y in zip((padded, padded - tokens - own, logits), self.most, strict=True)
                ):
                    yield group
                    group, longest, widest, tokens = [], 0, 0, 0
            group.append(row)
            longest, widest, tokens = max(longest, length), max(widest, beams), tokens + own
        if group:
            yield group

    def _tokens(self, length: int, beams: int, placed: Placed) -> int:
        """Return how many tokens go through the model, or are copied for the beams, of a prompt."""
        return length + placed.steps * beams if self.shares_prompts else (length + placed.steps) * beams

    def _search(self, placed: Placed, queries: list[Query], all_late: Callable[[], bool]) -> list[Found]:
        """Return what queries find that go through the model together."""
        counts = [query.beams for query in queries]
        prompts = [np.asarray(query.prompt, np.int64) for query in queries]
        read: _SharedPrompts | _OwnCaches
        if self.shares_prompts:
            read = _SharedPrompts(self.model, prompts, max(counts), self._selects)
        else:
            read = _OwnCaches(self.model, prompts, max(counts), placed.steps, self._caches)

        def step(tokens: Tensor, cache: object, t: int) -> tuple[Tensor, object]:
            if t and all_late():
                raise _AllLateError
            logits = read.next(tokens, t) if t else read.first()[:, None].expand(-1, max(counts), -1)
            return logits.to(tokens.device), cache

        def gather(cache: object, index: Tensor) -> object:
            read.gather(index)
            return cache

        beams = beam_search(
            step,
            read,
            placed.under([query.keep for query in queries]),
            ops=cast(Operations, _OwnBeams(counts, self.model.device)),
            batch=len(queries),
            beams=max(counts),
            max_tokens=placed.steps,
            gather=gather,
        )
        parts = (beams.states, beams.scores, beams.valid)
        states, scores, valid = (part.cpu().numpy() for part in parts)
        found = []
        for i, count in enumerate(counts):
            there = valid[i, :count]
            found.append(Found(states[i, :count][there].astype(np.int64), scores[i, :count][there].astype(np.float64)))
        return found


class _AllLateError(Exception):
    """The deadline of all queries has passed."""


class _OwnBeams:
    """`torch_ops`, but that each element of a batch has a number of beams of its own: those beyond end at once."""

    arrays = torch_ops.arrays
    start = staticmethod(torch_ops.start)
    first_tokens = staticmethod(torch_ops.first_tokens)
    accepting = staticmethod(torch_ops.accepting)
    end_scores = staticmethod(torch_ops.end_scores)

    def __init__(self, counts: list[int], device: torch.device) -> None:
        self._beyond = torch.as_tensor(np.arange(max(counts)) >= np.array(counts)[:, None], device=device)

    def select(
        self, dev: object, logits: Tensor, state: Any, scores: Tensor, beams: int, level: int, renormalize: bool
    ) -> Selection:
        found = torch_ops.select(dev, logits, state, scores, beams, level, renormalize)
        return found._replace(scores=found.scores.masked_fill(self._beyond, -torch.inf))


# --------------------------------------------------------------------------------------------------- the model


def _padded(prompts: list[NDArray[np.int64]], left: bool) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return prompts as rows of one array (B, P), padded with their last token, and where they stand in it."""
    lengths = np.array([len(prompt) for prompt in prompts])
    place, most = np.arange(lengths.max()), lengths.max()
    seen = place >= (most - lengths)[:, None] if left else place < lengths[:, None]
    ids = np.repeat([prompt[-1:] for prompt in prompts], most, axis=1)
    ids[seen] = np.concatenate(prompts)
    return ids, seen


class _SharedPrompts:
    """A causal model over a tree of tokens for each prompt, as `tree_beam_search` has it.

    Prompts are padded on the right, where no token of theirs sees the padding: they need no mask, and their positions
    are their places. Of prompts that differ in length the last tokens are read after all others, in a column of theirs,
    so that only logits behind them are computed. From there on a mask hides the padding.
    """

    def __init__(self, model: Model, prompts: list[NDArray[np.int64]], beams: int, selects: bool) -> None:
        self._model, self._beams, self._selects, device = model, beams, selects, model.device
        ids, seen = _padded(prompts, left=False)
        lengths = seen.sum(1)
        self._ids, self._lengths = (torch.as_tensor(array, device=device) for array in (ids, lengths[:, None]))
        self._seen: Tensor | None = None
        if not seen.all():
            last = np.arange(ids.shape[1]) == ids.shape[1] - 1
            self._seen = torch.as_tensor((np.arange(ids.shape[1]) < lengths[:, None] - 1) | last, device=device)
        self._tree = TreeCache(model.config, len(ids), ids.shape[1], _COLLECT)
        self._tree.plant(len(prompts) * beams, device)

    def first(self) -> Tensor:
        """Return the logits (B, V) after the prompts."""
        if self._seen is None:
            return self._run(self._ids, logits_to_keep=1)[:, -1]
        self._run(self._ids[:, :-1], logits_to_keep=1)
        mask = penalty(self._seen[:, None, None], self._model.dtype)
        return self._run(self._ids.gather(1, self._lengths - 1), attention_mask=mask, position_ids=self._lengths - 1)[
            :, -1
        ]

    def next(self, tokens: Tensor, t: int) -> Tensor:
        """Return the logits (B * M, V) after the tokens that beams chose at t - 1."""
        mask = grown_mask(self._tree, self._seen, self._model.dtype)
        positions = (self._lengths + (t - 1)).expand(-1, self._beams)
        return self._run(tokens.view(-1, self._beams), attention_mask=mask, position_ids=positions).flatten(0, 1)

    def _run(self, tokens: Tensor, **given: Any) -> Tensor:
        """Return the logits after tokens (B, n), whose keys and values go into the tree."""
        if "logits_to_keep" in given and not self._selects:
            del given["logits_to_keep"]
        logits: Tensor = self._model(input_ids=tokens, use_cache=True, **{CACHE: self._tree}, **given).logits
        return logits

    def gather(self, index: Tensor) -> None:
        """Let each beam go on from beam index (B * M,)."""
        self._tree.reorder_cache(index)


class _OwnCaches:
    """Any model that `generate` runs, with keys and values, or whatever it keeps, for each beam.

    Prompts are read once, and what was kept of them is repeated for the beams. Those of a causal model are padded on
    the left, those that an encoder reads on the right.
    """

    def __init__(self, model: Model, prompts: list[NDArray[np.int64]], beams: int, steps: int, caches: bool) -> None:
        self._model, self._beams, self._repeated = model, beams, beams == 1
        encoded = model.config.is_encoder_decoder
        ids, seen = (torch.as_tensor(array, device=model.device) for array in _padded(prompts, left=not encoded))
        self._ids, self._config, self._arguments = compat.prepared(
            model, ids, seen.long(), max_new_tokens=steps + 2, use_cache=caches
        )
        self._ids = with_forced_token(self._ids, self._config, model, self._arguments)

    def first(self) -> Tensor:
        """Return the logits (B, V) after the prompts."""
        outputs, self._arguments = compat.first_step(self._model, self._ids, self._config, self._arguments)
        return cast(Tensor, outputs.logits[:, -1])

    def next(self, tokens: Tensor, t: int) -> Tensor:
        """Return the logits (B * M, V) after the tokens that beams chose at t - 1."""
        self._ids = torch.cat([self._ids, tokens[:, None].to(self._ids.dtype)], dim=1)
        outputs, self._arguments = compat.next_step(self._model, self._ids, self._arguments)
        return cast(Tensor, outputs.logits[:, -1])

    def gather(self, index: Tensor) -> None:
        """Let each beam go on from beam index (B * M,)."""
        again = self._repeated
        if again:
            self._ids = self._ids.index_select(0, index)
        else:  # all beams of a prompt are one still
            self._repeated, index = True, index // self._beams
            self._ids, self._arguments = compat.repeat_inputs(self._model, self._ids, self._arguments, self._beams)
        compat.reorder_cache(self._model, self._arguments, index, same_inputs=again)
