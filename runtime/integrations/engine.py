"""An `Engine`: sequences over one model of transformers that join and leave between steps, each by its own constraint.

All rows are read by one pass of the model a step. While it runs, the host finds the mask of each row, where its
`Matcher` stands, and sends them all to the device at once. It reads what was drawn, and nothing else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from ...errors import BudgetError, VocabularyMismatchError
from ...table.constraint import Constraint
from ...table.several_ends import one_or_all
from ...vocabulary.token_ids import EndTokens, checked_ends
from ...vocabulary.vocabulary import Vocabulary
from .. import torch_ops
from ..decode.jump import take_forced
from ..decode.reader import padded
from ..decode.sampling import CheckedFilters, _filters, _finite, choose
from ..device.backend import Cache
from ..device.checks import check_logits
from ..device.torch import drawing
from ..host.draw import Filters
from ..host.matcher import Matcher
from .reader import TransformersReader
from .texts import size_of

if TYPE_CHECKING:
    from transformers import (
        PreTrainedModel,
    )


Tops = list[tuple[int, float]]
"""The best tokens that a place allows, and their log-probabilities among all it allows, the best first."""

Finished = Literal["stop", "length", "cancelled", "no distribution", "budget"]


@dataclass(eq=False)
class Request:
    """One sequence, from `Engine.add` to its end."""

    prompt: list[int]
    matcher: Matcher | None  # where it stands, None without a constraint
    max_tokens: int
    filters: CheckedFilters
    random: np.random.Generator
    jump: bool
    best: int = 0  # how many tokens `tops` has
    tokens: list[int] = field(default_factory=list)  # written so far, EOS left out
    log_probs: list[float] = field(default_factory=list)  # of each token, under what it was drawn from; 0 if forced
    tops: list[Tops] = field(default_factory=list)  # beside each token, if `best` is not 0
    finished: Finished | None = None  # "length": max_tokens were written and the sequence did not end
    # "budget": reading its constraint reached the `Budget` that it was compiled with
    forced: int = 0  # tokens that were not drawn

    @property
    def table(self) -> Constraint | None:
        """What it is written by."""
        return None if self.matcher is None else self.matcher.table


class _Row:
    """A place in the batch, and the request that has it."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.pending: list[int] = []  # not read by the model yet
        self.length = 0  # read


Written = dict[int, tuple[Request, list[int]]]
"""What was written in a step, by row."""

Read = TypeVar("Read")


def _taken(matcher: Matcher, token: int, jump: bool) -> list[int]:
    """Take a token that was drawn, and return what is forced behind it, which is taken as well."""
    if not matcher.advance(token):
        raise AssertionError(f"token {token} was drawn, which its mask does not allow: a fault of ours")
    return take_forced(matcher) if jump else []


class Engine:
    """Sequences over one model, `rows` of them at once; others wait. Not to be shared between threads.

    model: of transformers, as `TransformersReader` takes it, with an output for each token of the vocabulary.
    vocabulary: of the constraints. With it, forced text is written without asking the model, in the tokenizer's own
    segmentation (`jump`); without it, single tokens that are all that is allowed. eos: what ends sequences without a
    constraint, a token or a list of them; the vocabulary's if there is one. chunk: most tokens of a prompt that are
    read in one step, so that long prompts do not hold up the other rows for long.

    Each request draws from its own random numbers, so that what it writes does not depend on others, rounding aside.

    >>> engine = Engine(model, vocab, rows=16)  # doctest: +SKIP
    >>> request = engine.add(prompt, table, max_tokens=200)  # doctest: +SKIP
    >>> engine.run()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocabulary: Vocabulary | None = None,
        *,
        rows: int = 8,
        eos: EndTokens | None = None,
        chunk: int = 512,
    ) -> None:
        for name, value in (("rows", rows), ("chunk", chunk)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
            if value < 1:
                raise ValueError(f"{name}={value} must be 1 or more")
        if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
            raise TypeError(f"an Engine takes a Vocabulary, not {type(vocabulary).__name__}")
        self.reader = TransformersReader(model)
        self.vocabulary, self.chunk = vocabulary, chunk
        self.device = model.device
        given = checked_ends(eos, size_of(model) if vocabulary is None else vocabulary.size)
        self.ends = given if vocabulary is None else vocabulary.ends
        if vocabulary is not None and given not in ((), self.ends):
            raise ValueError(f"eos={eos}, but the vocabulary's sequences end by {one_or_all(self.ends)}: leave it out")
        self.waiting: deque[Request] = deque()
        self.calls = 0  # passes of the model
        self._rows = [_Row() for _ in range(rows)]
        self._cache: Cache = None
        self._fingerprint = None if vocabulary is None else vocabulary.fingerprint

    # ---------------------------------------------------------------------------------------------- coming and going

    def add(
        self,
        prompt: Sequence[int],
        table: Constraint | None = None,
        *,
        max_tokens: int,
        complete: bool = True,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        jump: bool = True,
        best: int = 0,
    ) -> Request:
        """Take on a sequence, which begins as soon as a row is free.

        prompt: tokens, one at least. table: what may be written, a constraint of any kind. max_tokens: the most that is
        written, EOS not counted. complete: whether a sequence by a table is complete by then; otherwise it may be cut
        ("length"). A lazy table that has bounds is not worked out for that: near the end, tokens are left out behind
        which no end is known to be in reach. Filters and temperature: as of `sample`. seed: of its random numbers.
        jump: whether forced text is written without asking the model. best: how many tokens `Request.tops` has beside
        each. Then `log_probs` too are among all allowed tokens, without top_k, top_p and min_p, and with a temperature
        of 1 for 0.

        Raises TypeError, ValueError, VocabularyMismatchError; ConstraintError where it cannot be promised that the
        sequence is complete in time, as of a grammar without a finite table.
        """
        tokens = [int(token) for token in prompt]
        if not tokens:
            raise ValueError("the prompt is empty: give it the token that your model begins with")
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise ValueError(f"max_tokens={max_tokens!r} must be an integer, 1 or more")
        if self.reader.most is not None and len(tokens) + max_tokens > self.reader.most:
            raise ValueError(
                f"a prompt of {len(tokens)} tokens and max_tokens={max_tokens} are more than the {self.reader.most} "
                "that the model has positions for: shorten one of them"
            )
        filters = _filters(temperature, top_k, top_p, min_p)
        matcher = None if table is None else self._matcher(table, max_tokens if complete else None)
        request = Request(tokens, matcher, max_tokens, filters, np.random.default_rng(seed), jump, best)
        self.waiting.append(request)
        return request

    def _matcher(self, table: Constraint, max_tokens: int | None) -> Matcher:
        """Return a matcher for a sequence; the errors of `Matcher`, VocabularyMismatchError, ValueError."""
        matcher = Matcher(table, self.vocabulary, max_tokens=max_tokens, may_complete=False)
        if table.vocabulary != (self._fingerprint or table.vocabulary):
            raise VocabularyMismatchError(
                f"the table was compiled for vocabulary {table.vocabulary}, the engine is for {self._fingerprint}: "
                "compile it with the engine's"
            )
        if table.ends and table.ends != self.ends:
            own, here = one_or_all(table.ends), one_or_all(self.ends)
            raise ValueError(
                f"the table has eos {own}, by which its sequences end, and the engine {here}: make it with "
                f"Engine(model, eos={own})"
            )
        self._fingerprint = table.vocabulary or self._fingerprint
        return matcher

    def cancel(self, request: Request) -> None:
        """End a sequence where it is; nothing happens if it has ended."""
        if request.finished is not None:
            return
        if request in self.waiting:
            self.waiting.remove(request)
            request.finished = "cancelled"
            return
        for row in self._rows:
            if row.request is request:
                self._leave(row, "cancelled")
                return
        raise ValueError("the request is not one of this engine's")

    def _leave(self, row: _Row, why: Finished) -> None:
        assert row.request is not None, "only a row that is taken can be left"
        row.request.finished = why
        row.request = None
        row.pending, row.length = [], 0

    def _within_budget(self, row: _Row, work: Callable[[], Read], out: Written) -> Read | None:
        """Return what reading the table of a row gives; None, and its sequence has ended, where its budget ran out."""
        try:
            return work()
        except BudgetError:
            request = cast(Request, row.request)
            out.setdefault(self._rows.index(row), (request, []))
            self._leave(row, "budget")
            return None

    def _admit(self, out: Written) -> None:
        """Give free rows to requests that wait, and write what is forced at the beginning of each."""
        for at, row in enumerate(self._rows):
            if row.request is not None or not self.waiting:
                continue
            row.request = request = self.waiting.popleft()
            row.pending, row.length = list(request.prompt), 0
            if request.matcher is not None and request.jump:
                own = self._within_budget(row, partial(take_forced, request.matcher), out)
                if own is not None:
                    self._written(at, own, 0.0, [], out)

    # ------------------------------------------------------------------------------------------------------- steps

    @property
    def busy(self) -> bool:
        """Whether any sequence has yet to end."""
        return bool(self.waiting) or any(row.request is not None for row in self._rows)

    def run(self, seen: Callable[[Request, list[int]], None] | None = None) -> None:
        """Step until all sequences have ended; seen(request, new tokens) is called as they are written."""
        while self.busy:
            for request, tokens in self.step():
                if seen is not None:
                    seen(request, tokens)

    @torch.no_grad()
    def step(self) -> list[tuple[Request, list[int]]]:
        """Read what is pending, draw a token for each row that has been read, and return what was written by request.

        The last of a request's tokens come together with its `finished`.
        """
        out: Written = {}
        self._admit(out)
        feeding = [row.pending[: self.chunk] for row in self._rows]
        if not any(feeding):
            return list(out.values())
        counts = np.array([len(tokens) for tokens in feeding])
        lengths = np.array([row.length for row in self._rows])
        logits, self._cache = self.reader.extend(
            padded(feeding), self._cache, lengths, np.maximum(counts - 1, 0)[:, None]
        )
        self.calls += 1
        for row, count in zip(self._rows, counts, strict=True):
            row.length += int(count)
            row.pending = row.pending[count:]
        ready = [at for at, row in enumerate(self._rows) if row.request is not None and not row.pending]
        masks, ready = self._masks(ready, logits.shape[-1], out)
        if ready:
            tokens, log_probs = self._drawn(logits[:, 0], masks, ready)
            tops = self._tops(logits[:, 0], masks, ready, tokens, log_probs)
            for at, token, log_prob, top in zip(ready, tokens, log_probs, tops, strict=True):
                self._take(at, token, log_prob, top, out)
        return list(out.values())

    def _masks(self, ready: list[int], width: int, out: Written) -> tuple[Tensor | None, list[int]]:
        """Return the packed masks (n, ceil(V' / 32)) of rows that are ready, and these; None without constraints.

        width: V', of the logits. A row whose constraint reaches its budget has ended, and is no more among them.
        """
        matchers = [cast(Request, self._rows[at].request).matcher for at in ready]
        if all(matcher is None for matcher in matchers):
            return None, ready
        words = np.full((len(ready), -(-width // 32)), -1, np.int32)
        for k, matcher in enumerate(matchers):
            if matcher is not None:
                check_logits(matcher.table.vocab_size, (len(ready), width))
                self._within_budget(self._rows[ready[k]], partial(matcher.fill_bitmask, words, k), out)
        left = [k for k, at in enumerate(ready) if self._rows[at].request is not None]
        masks = torch.from_numpy(words if len(left) == len(ready) else words[left])
        if self.device.type == "cuda":
            masks = masks.pin_memory()  # so that the host goes on while they are copied
        return masks.to(self.device, non_blocking=True), [ready[k] for k in left]

    def _drawn(self, logits: Tensor, masks: Tensor | None, ready: list[int]) -> tuple[list[int], list[float]]:
        """Return a token for each row that is ready, -1 where there is no distribution, and its log-probability."""
        requests = [cast(Request, self._rows[at].request) for at in ready]
        x = logits if len(ready) == len(self._rows) else logits[torch.tensor(ready, device=self.device)]
        uniforms = torch.tensor(np.array([each.random.random(2) for each in requests]), device=self.device)
        asked = [each.filters for each in requests]
        if drawing.can_draw(x, *(() if masks is None else (masks,))):
            every = torch.full((len(x), -(-x.shape[1] // 32)), -1, dtype=torch.int32) if masks is None else masks
            drawn = drawing.draw_packed(every, x, uniforms, Filters.of(asked), mass=False)
            return drawn.tokens.tolist(), drawn.log_probs.tolist()
        x = x.float() if x.dtype != torch.float64 else x
        temperatures = torch.tensor([each.temperature or 1.0 for each in asked], device=self.device)
        x = x / temperatures.to(x.dtype)[:, None]
        sound = _finite(torch_ops.arrays.logsumexp(x))
        if masks is not None:
            x = torch_ops.arrays.keep_packed(x, masks, x.shape[1], in_place=True)
        found = torch.full((len(ready),), -1, device=self.device)
        log_probs = torch.zeros(len(ready), dtype=x.dtype, device=self.device)
        for filters in set(asked):  # few: most requests leave them alone
            rows = [i for i, each in enumerate(asked) if each == filters]
            part = torch.tensor(rows, device=self.device)
            at, own, _, valid = choose(torch_ops, x[part], uniforms[part].to(x.dtype), filters, sound[part])
            found[part] = torch.where(valid, at, -1)
            log_probs[part] = own
        both = torch.stack([found.to(torch.float64), log_probs.to(torch.float64)]).tolist()  # the one read
        return [int(token) for token in both[0]], both[1]

    def _tops(
        self, logits: Tensor, masks: Tensor | None, ready: list[int], tokens: list[int], log_probs: list[float]
    ) -> list[Tops]:
        """Return the best tokens of rows that ask for them; their log_probs become those among all allowed."""
        requests = [cast(Request, self._rows[at].request) for at in ready]
        tops: list[Tops] = [[] for _ in ready]
        asking = [i for i, each in enumerate(requests) if each.best and tokens[i] >= 0]
        if not asking:
            return tops
        x = logits[torch.tensor([ready[i] for i in asking], device=self.device)].double()
        temperatures = [[requests[i].filters.temperature or 1.0] for i in asking]
        x /= torch.tensor(temperatures, dtype=x.dtype, device=self.device)
        if masks is not None:
            x = torch_ops.arrays.keep_packed(
                x, masks[torch.tensor(asking, device=self.device)], x.shape[1], in_place=True
            )
        x = x.log_softmax(-1)
        own = x.gather(1, torch.tensor([[tokens[i]] for i in asking], device=self.device))[:, 0].tolist()
        best = x.topk(min(max(requests[i].best for i in asking), x.shape[1]))
        for i, log_prob, values, places in zip(asking, own, best.values.tolist(), best.indices.tolist(), strict=True):
            log_probs[i] = log_prob
            known = [(token, value) for token, value in zip(places, values, strict=True) if math.isfinite(value)]
            tops[i] = known[: requests[i].best]
        return tops

    def _take(self, at: int, token: int, log_prob: float, top: Tops, out: Written) -> None:
        """Write a drawn token of a row and what is forced behind it."""
        row = self._rows[at]
        request = cast(Request, row.request)
        if token < 0:
            out.setdefault(at, (request, []))
            self._leave(row, "no distribution")
            return
        if token in self.ends or len(request.tokens) == request.max_tokens:
            out.setdefault(at, (request, []))
            self._leave(row, "stop" if token in self.ends else "length")
            return
        behind: list[int] | None = []
        if request.matcher is not None:
            behind = self._within_budget(row, partial(_taken, request.matcher, token, request.jump), out)
        if behind is not None:
            self._written(at, [token, *behind], log_prob, top, out)

    def _written(self, at: int, own: list[int], log_prob: float, top: Tops, out: Written) -> None:
        """Note tokens of a row, of which the first was drawn if the row has begun."""
        row = self._rows[at]
        request = cast(Request, row.request)
        drawn = int(row.length > 0)
        room = request.max_tokens - len(request.tokens)
        cut = own[:room]
        request.tokens += cut
        request.forced += max(0, len(cut) - drawn)
        request.log_probs += ([log_prob] * drawn + [0.0] * len(own))[: len(cut)]
        if request.best:
            request.tops += [top if drawn and not i else [(token, 0.0)] for i, token in enumerate(cut)]
        row.pending += cut
        if cut:
            out.setdefault(at, (request, []))[1].extend(cut)
        ends: bool | None = False
        if request.matcher is not None and len(own) <= room:
            ends = self._within_budget(row, partial(getattr, request.matcher, "is_finished"), out)
        full = len(own) > room or (request.matcher is None and len(own) == room)  # a constraint may end there still
        if ends or (full and ends is not None):
            out.setdefault(at, (request, []))
            self._leave(row, "stop" if ends else "length")
