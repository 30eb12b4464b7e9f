"""An `Engine`: sequences over one model of transformers that join and leave between steps, each by its own constraint.

All rows are read by one pass a step, and masked by one call on the device, where their states stay. The host reads what
was drawn, as it must to know which sequences have ended, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from ...errors import ArenaError, BudgetError, ConstraintError, VocabularyMismatchError
from ...lazy.lazy_table import Compiled
from ...table.several_ends import one_or_all
from ...table.states import NestedState
from ...vocabulary.end_tokens import EndTokens, checked_ends
from .. import torch_ops
from ..arena.arena import Arena, Handle, check_held
from ..decode.jump import take_forced
from ..decode.reader import padded
from ..decode.sampling import _choose, _Filters, _filters, _finite
from ..device.device_table import State, check_logits
from ..device.on_demand import DEAD_ROW, OnDemandTable, has_lengths
from ..device.torch import drawing
from ..host.draw import Filters
from ..host.matcher import Matcher, Spelling
from .reader import TransformersReader
from .texts import size_of

Finished = Literal["stop", "length", "cancelled", "no distribution", "budget"]


@dataclass(eq=False)
class Request:
    """One sequence, from `Engine.add` to its end."""

    prompt: list[int]
    table: Compiled | None
    max_tokens: int
    filters: _Filters
    random: np.random.Generator
    jump: bool
    tokens: list[int] = field(default_factory=list)  # written so far, EOS left out
    log_probs: list[float] = field(default_factory=list)  # of each token, under what it was drawn from; 0 if forced
    finished: Finished | None = None  # "length": max_tokens were written and the sequence did not end
    # "budget": reading its grammar, of which there are no arrays, reached the `Budget` that it was compiled with
    forced: int = 0  # tokens that were not drawn


class _Row:
    """A place in the batch, and the request that has it."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.handle: Handle | None = None
        self.matcher: Matcher | None = None
        self.node = DEAD_ROW  # of a grammar without a table: where it stands, in the step at hand
        self.pending: list[int] = []  # not read by the model yet
        self.length = 0  # read


Written = dict[int, tuple[Request, list[int]]]
"""What was written in a step, by row."""

Read = TypeVar("Read")


def _taken(matcher: Matcher, token: int, jump: bool) -> list[int]:
    """Take a token that was drawn, and return what is forced behind it, which is taken as well."""
    if not matcher.advance(token):
        raise AssertionError(f"the device drew token {token}, which the host does not allow: a fault of ours")
    return take_forced(matcher) if jump else []


class Engine:
    """Sequences over one model, `rows` of them at once; others wait. Not to be shared between threads.

    model: of transformers, as `TransformersReader` takes it, with an output for each token of the arena's vocabulary.
    arena: where tables are put while requests need them; None for requests without any. A row without a table is only
    sampled, and so is one by a grammar of which there is no table, or none within its budget, but for the masks of
    where it stands, which the host has worked out: it needs no arena. vocabulary: with it, forced text is written
    without asking the model, in the tokenizer's own segmentation (`jump`); without it, single tokens that are all that
    is allowed. eos: what ends sequences without a table, a token or a list of them; the arena's if there is one.
    chunk: most tokens of a prompt that are read in one step, so that long prompts do not hold up the other rows for
    long.

    Each request draws from its own random numbers, so that what it writes does not depend on others, rounding aside.

    >>> engine = Engine(model, Arena(vocab), rows=16, vocabulary=vocab)  # doctest: +SKIP
    >>> request = engine.add(prompt, table, max_tokens=200)  # doctest: +SKIP
    >>> engine.run()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        arena: Arena | None = None,
        *,
        rows: int = 8,
        vocabulary: Spelling | None = None,
        eos: EndTokens | None = None,
        chunk: int = 512,
    ) -> None:
        for name, value in (("rows", rows), ("chunk", chunk)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
            if value < 1:
                raise ValueError(f"{name}={value} must be 1 or more")
        self.reader = TransformersReader(model)
        self.arena, self.vocabulary, self.chunk = arena, vocabulary, chunk
        self.device = model.device
        given = checked_ends(eos, size_of(model) if arena is None else arena.table.vocab_size)
        self.ends = given if arena is None else arena.table.ends
        if arena is not None and given not in ((), self.ends):
            raise ValueError(f"eos={eos}, but sequences in this arena end by {one_or_all(self.ends)}: leave it out")
        if arena is not None and vocabulary is not None and vocabulary.fingerprint != arena.table.vocabulary:
            raise VocabularyMismatchError(
                f"the arena is for vocabulary {arena.table.vocabulary}, not {vocabulary.fingerprint}: pass the "
                "vocabulary that its tables are compiled with"
            )
        self.waiting: deque[Request] = deque()
        self._refused: tuple[Request, int] | None = None  # who waits for room in the arena, and since which release
        self.calls = 0  # passes of the model
        self._rows = [_Row() for _ in range(rows)]
        self._cache: Any = None
        self._reached: OnDemandTable | None = None  # by the texts of all grammars without arrays
        self._fingerprint = None if vocabulary is None else vocabulary.fingerprint
        if arena is not None:
            self._fingerprint = arena.table.vocabulary
        self._dev = None if arena is None else torch_ops.put(arena, self.device, budgets=arena.budgets)
        self._state = None if self._dev is None else self._nowhere(rows)

    def _nowhere(self, rows: int) -> NestedState:
        """Return states of rows that have no constraint."""
        assert self.arena is not None, "states are those of an arena"
        slots = self.arena.capacity.depth + 1
        return NestedState(
            torch.full((rows,), self.arena.table.dead, device=self.device),
            torch.zeros(rows, slots, dtype=torch.int32, device=self.device),
            torch.zeros(rows, dtype=torch.int32, device=self.device),
        )

    # ---------------------------------------------------------------------------------------------- coming and going

    def add(
        self,
        prompt: Sequence[int],
        table: Compiled | None = None,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        jump: bool = True,
    ) -> Request:
        """Take on a sequence: begun as soon as there is room for it, in the batch and in the arena.

        prompt: tokens, one at least. table: what may be written; any while the engine has an arena. max_tokens: the
        most that is written, EOS not counted. If the arena has budgets, a sequence by a table is complete by then, and
        a grammar of which there is no table, or none within its budget, is refused; otherwise it may be cut ("length").
        Filters and temperature: as of `sample`. seed: of its random numbers. jump: whether forced text is written
        without asking the model.

        Raises TypeError, ValueError, VocabularyMismatchError; ArenaError for a table that the arena can never hold;
        ConstraintError for a grammar that it could not have complete in time.
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
        if table is not None:
            check_held(table)
            if not has_lengths(table):
                self._read_on_demand(table)
            elif self.arena is None:
                raise ValueError("this engine has no arena to put tables in: make it with Engine(model, Arena(vocab))")
            else:
                self.arena.fits(table)
            if self.arena is not None and self.arena.budgets and table.to_table().min_length > max_tokens:
                raise ValueError(
                    f"max_tokens={max_tokens} is less than the shortest sequence, "
                    f"{table.to_table().min_length} tokens: nothing could be complete"
                )
        filters = _filters(temperature, top_k, top_p, min_p)
        request = Request(tokens, table, max_tokens, filters, np.random.default_rng(seed), jump)
        self.waiting.append(request)
        return request

    def _read_on_demand(self, table: Compiled) -> None:
        """Make room for the masks of a table without arrays; ConstraintError, ValueError, VocabularyMismatchError."""
        if self.arena is not None and self.arena.budgets:
            raise ConstraintError(
                "of this grammar there is no table, or none within its budget, so nobody knows how many tokens an end "
                "is away, and its texts could not be complete within max_tokens as this engine's arena promises: use "
                "one without budgets"
            )
        if not self.ends or table.ends != self.ends:
            own, here = one_or_all(table.ends), one_or_all(self.ends)
            raise ValueError(
                f"the table has eos {own}, by which its sequences end, and the engine {here}: make it with "
                f"Engine(model, eos={own})"
            )
        if table.vocabulary != (self._fingerprint or table.vocabulary):
            raise VocabularyMismatchError(
                f"the table was compiled for vocabulary {table.vocabulary}, the engine is for {self._fingerprint}: "
                "compile it with the engine's"
            )
        if self._reached is None:
            self._reached = torch_ops.put(table, self.device, on_demand=True)
            self._fingerprint = table.vocabulary

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
        if row.handle is not None and self.arena is not None:
            self.arena.drop(row.handle)
        row.request = row.handle = row.matcher = None
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

    def _admit(self, out: Written) -> list[tuple[int, list[int]]]:
        """Give free rows to requests that wait; return what is forced at the beginning of each, by row."""
        forced: list[tuple[int, list[int]]] = []
        for at, row in enumerate(self._rows):
            if row.request is not None or not self.waiting:
                continue
            request = self.waiting[0]
            if request.table is not None:
                budget = None
                if has_lengths(request.table):
                    assert self.arena is not None, "add() has seen to it"
                    asked = request, self.arena.releases
                    if asked == self._refused:
                        return forced  # until another leaves
                    try:
                        row.handle = self.arena.add(request.table)
                    except ArenaError:
                        if not any(other.request is not None for other in self._rows):
                            raise
                        if any(other.handle is not None for other in self._rows):
                            self._refused = asked
                        return forced
                    budget = request.max_tokens if self.arena.budgets else None
                row.matcher = Matcher(request.table, self.vocabulary, max_tokens=budget)
            self.waiting.popleft()
            row.request, row.pending, row.length = request, list(request.prompt), 0
            own: list[int] | None = []
            if row.matcher is not None and request.jump:
                own = self._within_budget(row, partial(take_forced, row.matcher), out)
            if own is not None:
                forced.append((at, own))
        return forced

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
        following: dict[int, list[int]] = {}
        begun = self._admit(out)
        if begun:
            self._begin([at for at, _ in begun])
        for at, own in begun:
            following[at] = self._written(at, own, 0.0, out)
        self._follow(following)
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
        ready = self._masked(ready, out)
        if ready:
            following = {}
            for at, token, log_prob in zip(ready, *self._drawn(logits[:, 0], ready), strict=True):
                following[at] = self._take(at, token, log_prob, out)
            self._follow(following)
        return list(out.values())

    def _begin(self, rows: list[int]) -> None:
        """Put rows on the device to where their tables start."""
        if self._state is None or self.arena is None:
            return
        handles = [self._rows[at].handle for at in rows]
        nodes = [self.arena.table.dead if handle is None else handle.start for handle in handles]
        index = torch.tensor(rows, device=self.device)
        self._state.node[index] = torch.tensor(nodes, device=self.device)
        self._state.stack[index] = 0
        self._state.height[index] = 0

    def _masked(self, ready: list[int], out: Written) -> list[int]:
        """Have the masks of rows by grammars without a table on the device; return those that still go on."""
        reading = [at for at in ready if self._rows[at].matcher is not None and self._rows[at].handle is None]
        if not reading:
            return ready
        assert self._reached is not None, "add() has seen to it"
        reached = self._reached.rows
        if reached.is_full:  # nobody holds a number from step to step
            reached.keep(np.empty(0, np.int64))
        with reached.adding():
            for at in reading:
                row = self._rows[at]
                node = self._within_budget(row, partial(reached.of, cast(Matcher, row.matcher)), out)
                row.node = DEAD_ROW if node is None else node
        return [at for at in ready if self._rows[at].request is not None]

    def _drawn(self, logits: Tensor, ready: list[int]) -> tuple[list[int], list[float]]:
        """Return a token for each row that is ready, -1 where there is no distribution, and its log-probability."""
        requests = [cast(Request, self._rows[at].request) for at in ready]
        x = logits if len(ready) == len(self._rows) else logits[torch.tensor(ready, device=self.device)]
        uniforms = torch.tensor(np.array([each.random.random(2) for each in requests]), device=self.device)
        asked = [each.filters for each in requests]
        in_arena = [i for i, at in enumerate(ready) if self._rows[at].handle is not None]
        if len(in_arena) == len(ready) and drawing.can_draw(x):
            dev, state, remaining = self._states(requests, ready, in_arena)
            if dev.host is not None and not dev.other_ends:  # each mask is composed when its row is drawn from
                drawn = drawing.draw_nested(dev, x, state, uniforms, Filters.of(asked), remaining, False)
                return drawn.tokens.tolist(), drawn.log_probs.tolist()
        masks = self._masks(requests, ready, in_arena, x)
        if drawing.can_draw(x, *(() if masks is None else (masks,))):
            every = torch.full((len(x), -(-x.shape[1] // 32)), -1, dtype=torch.int32) if masks is None else masks
            drawn = drawing.draw_packed(every, x, uniforms, Filters.of(asked), mass=False)
            return drawn.tokens.tolist(), drawn.log_probs.tolist()
        x = x.float() if x.dtype != torch.float64 else x
        temperatures = torch.tensor([each.temperature or 1.0 for each in asked], device=self.device)
        x = x / temperatures.to(x.dtype)[:, None]
        sound = _finite(torch_ops.logsumexp(x))
        if masks is not None:
            x = torch_ops.keep_packed(x, masks, x.shape[1], in_place=True)
        found = torch.full((len(ready),), -1, device=self.device)
        log_probs = torch.zeros(len(ready), dtype=x.dtype, device=self.device)
        for filters in set(asked):  # few: most requests leave them alone
            rows = [i for i, each in enumerate(asked) if each == filters]
            part = torch.tensor(rows, device=self.device)
            at, own, _, valid = _choose(torch_ops, x[part], uniforms[part].to(x.dtype), filters, sound[part])
            found[part] = torch.where(valid, at, -1)
            log_probs[part] = own
        both = torch.stack([found.to(torch.float64), log_probs.to(torch.float64)]).tolist()  # the one read
        return [int(token) for token in both[0]], both[1]

    def _states(
        self, requests: list[Request], ready: list[int], in_arena: list[int]
    ) -> tuple[torch_ops.TorchTable, NestedState, Tensor | None]:
        """Return the arena's arrays, and for rows with a table in it their states and how much they may still write."""
        assert self._dev is not None and self._state is not None, "add() has seen to it"  # noqa: PT018
        index = torch.tensor([ready[i] for i in in_arena], device=self.device)
        remaining = None
        if self.arena is not None and self.arena.budgets:
            left = [requests[i].max_tokens - len(requests[i].tokens) for i in in_arena]
            remaining = torch.tensor(left, device=self.device)
        return self._dev, NestedState(*(array[index] for array in self._state)), remaining

    def _masks(self, requests: list[Request], ready: list[int], in_arena: list[int], logits: Tensor) -> Tensor | None:
        """Return the packed masks (n, ceil(V' / 32)) of rows of logits (n, V'), None where all have no constraint."""
        read = [i for i, at in enumerate(ready) if requests[i].table is not None and self._rows[at].handle is None]
        parts = []
        if read:
            assert self._reached is not None, "add() has seen to it"
            check_logits(self._reached.vocab_size, logits.shape)
            nodes = torch.tensor([self._rows[ready[i]].node for i in read], device=self.device)
            parts.append((read, torch_ops.bitmask(cast(Any, self._reached), State(nodes))))
        if in_arena:
            dev, state, remaining = self._states(requests, ready, in_arena)
            check_logits(dev.vocab_size, logits.shape)
            parts.append((in_arena, torch_ops.bitmask(dev, state, remaining)))
        if not parts:
            return None
        words = -(-logits.shape[1] // 32)
        rows, masks = parts[0]
        if len(rows) == len(ready) and masks.shape[1] == words:
            return masks
        out = torch.full((len(ready), words), -1, dtype=torch.int32, device=self.device)
        for rows, masks in parts:  # what no token stands for is not allowed
            out[torch.tensor(rows, device=self.device)] = torch.nn.functional.pad(masks, (0, words - masks.shape[1]))
        return out

    def _take(self, at: int, token: int, log_prob: float, out: Written) -> list[int]:
        """Write a drawn token of a row and what is forced behind it; return what its state has to follow."""
        row = self._rows[at]
        request = cast(Request, row.request)
        if token < 0:
            out.setdefault(at, (request, []))
            self._leave(row, "no distribution")
            return []
        if token in self.ends or len(request.tokens) == request.max_tokens:
            out.setdefault(at, (request, []))
            self._leave(row, "stop" if token in self.ends else "length")
            return []
        own = [token]
        if row.matcher is not None:
            behind = self._within_budget(row, partial(_taken, row.matcher, token, request.jump), out)
            if behind is None:
                return []
            own += behind
        return self._written(at, own, log_prob, out)

    def _written(self, at: int, own: list[int], log_prob: float, out: Written) -> list[int]:
        """Note tokens of a row, of which the first was drawn if the row has begun; return what is to be followed."""
        row = self._rows[at]
        request = cast(Request, row.request)
        drawn = int(row.length > 0)
        room = request.max_tokens - len(request.tokens)
        cut = own[:room]
        request.tokens += cut
        request.forced += max(0, len(cut) - drawn)
        request.log_probs += ([log_prob] * drawn + [0.0] * len(own))[: len(cut)]
        row.pending += cut
        if cut:
            out.setdefault(at, (request, []))[1].extend(cut)
        ends: bool | None = False
        if row.matcher is not None and len(own) <= room:
            ends = self._within_budget(row, partial(getattr, row.matcher, "is_finished"), out)
            if ends is None:
                return []
        full = len(own) > room or (row.matcher is None and len(own) == room)  # a constraint may end there still
        if ends or full:
            out.setdefault(at, (request, []))
            self._leave(row, "stop" if ends else "length")
            return []
        return own if row.handle is not None else []

    def _follow(self, following: dict[int, list[int]]) -> None:
        """Move the states of rows on by the tokens they were given."""
        longest = max(map(len, following.values()), default=0)
        if not longest or self._state is None or self._dev is None:
            return
        host = self._dev.host
        if host is not None:  # on a CPU a run of tokens is one call; on a device each is one, whatever its length
            for length in sorted({len(tokens) for tokens in following.values()} - {0}):
                rows = [at for at, tokens in following.items() if len(tokens) == length]
                index = torch.tensor(rows)
                before = NestedState(*(array[index].numpy() for array in self._state))
                after = host.follow(np.array([following[at] for at in rows]), before)
                for array, moved in zip(self._state, after, strict=True):
                    array[index] = torch.from_numpy(moved)
            return
        self._follow_on_device(self._dev, self._state, following, longest)

    def _follow_on_device(
        self, dev: torch_ops.TorchTable, states: NestedState, following: dict[int, list[int]], longest: int
    ) -> None:
        """Move the states of rows on by the tokens they were given, one call for each place."""
        rows = [at for at, tokens in following.items() if tokens]
        table = np.full((longest, len(rows)), -1)
        for column, at in enumerate(rows):
            table[: len(following[at]), column] = following[at]
        tokens, index = torch.tensor(table, device=self.device), torch.tensor(rows, device=self.device)
        state = NestedState(*(array[index] for array in states))
        for own in tokens:
            after = torch_ops.advance(dev, state, own)
            goes = own >= 0
            state = NestedState(
                torch.where(goes, after.node, state.node),
                torch.where(goes[:, None], cast(NestedState, after).stack, state.stack),
                torch.where(goes, cast(NestedState, after).height, state.height),
            )
        for array, moved in zip(states, state, strict=True):
            array[index] = moved
