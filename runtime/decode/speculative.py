"""Speculative decoding under a table: a small model drafts, a large one reads the whole draft in one pass.

What comes out has exactly the large model's masked distribution. A draft is a chain or a tree. A node's children are
drawn without replacement, and tried one after the other by recursive rejection sampling (arXiv 2305.09781, 2402.12374):
child j, drawn from q_j, is taken with probability min(1, p_j(x) / q_j(x)); if it is not, p_{j+1} is max(p_j - q_j, 0),
normalised, and q_{j+1} is q_j without x, normalised. With p_1 = p, what is taken, or is drawn from what is left of p
after the last child, is distributed as p: each trial alone keeps p_j, whatever came before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from numbers import Integral
from operator import mul
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...table.sorted_matrix import Constraint
from ..device.device_table import check_logits
from ..device.on_demand import counts_tokens
from ..host.matcher import Matcher, Spelling
from .jump import allowed, row_matchers, sequences, take_forced
from .reader import Reader, check_prompts, padded
from .sampling import _check_run, _draw, _Filters, _filters, _finite, _floor, _split, _uniform
from .unbiased import _where

Array = NDArray[np.int64]


class Speculated(NamedTuple):
    """Sequences sampled by speculation; rows that are not `valid` hold nothing."""

    tokens: Any  # (B, L), -1 past a sequence's end and where not valid
    lengths: Any  # (B,), EOS not counted
    log_probs: Any  # (B,) under the target's masked distribution, EOS included; -inf where not valid
    valid: Any  # bool (B,)
    tried: Array  # (B,) depths of drafts at which a drafted token was looked for, up to the first without
    accepted: Array  # (B,) of these, with a token that was taken; forced ones behind it aside
    forced: Array  # (B,) tokens that were taken without either model
    calls: int  # of the target
    draft_calls: int


def speculative_sample(
    target: Reader,
    draft: Reader,
    dev: Any,
    random: Any,
    *,
    ops: ModuleType,
    prompts: Sequence[Sequence[int]],
    max_length: int,
    branches: Sequence[int] = (1, 1, 1, 1),
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    table: Constraint | Sequence[Constraint] | None = None,
    vocabulary: Spelling | None = None,
    budgets: bool = True,
) -> Speculated:
    """Return a sequence of the table for each prompt, distributed as the target's own masked sampling has it.

    target, draft: see `Reader`; `keep` is called only where drafts branch. Both have the vocabulary of the table.
    dev: from `ops.put`; with budgets, nothing is drawn that could not be complete within max_length, else such rows are
    flagged. prompts, max_length, filters: as for `sample_jumping`; temperature 0 gives the target's greedy sequence.
    The distributions of both models are masked, then filtered. branches: children of each drafted token, by depth:
    (1, 1, 1, 1) is a chain of four, (3, 2, 1) a tree of 15 tokens. A round calls the draft once for each depth, and the
    target once.

    table: with dev None, the table on the host, or one for each row, lazy ones and sorted matrices too; `budgets` as
    for `sample_jumping`. Then forced spans are taken by jumping, and the distribution is that of `sample_jumping`: what
    is forced behind a drafted token is part of the draft, and costs no call of either model. vocabulary: to do so in
    text.

    random: a generator or a key, as in `sample`; not needed at temperature 0. One read on the host for each round: what
    was taken; with `table` one more for each depth, as what is forced depends on what was drafted. The states of all
    drafted tokens are kept until the target has spoken, so that nothing is followed twice on the device.

    Raises TypeError, ValueError, VocabularyMismatchError.
    """
    filters = _filters(temperature, top_k, top_p, min_p)
    written = check_prompts(prompts, max_length, target, draft)
    batch = len(written)
    if not isinstance(branches, Sequence) or not all(
        isinstance(one, Integral) and not isinstance(one, bool) and one > 0 for one in branches
    ):
        raise ValueError(f"branches={branches!r} must be positive numbers of children, one for each depth")
    branches = tuple(int(one) for one in branches)
    if (dev is None) == (table is None):
        raise ValueError("pass dev, from ops.put, or dev=None and the table itself, to jump forward as well")
    if table is None and (vocabulary is not None or not budgets):
        raise ValueError("vocabulary= and budgets= go with table=: dev has budgets if it was put with them")
    follower: _OnDevice | _OnHost
    if table is None:
        _check_run(dev, batch, 1, max_length)
        follower = _OnDevice(ops, dev, batch, max_length)
    else:
        follower = _OnHost(ops, row_matchers(table, vocabulary, batch, max_length if budgets else None))
    rows = [_Row(tokens, max_length) for tokens in written]
    run = _Run(ops, follower, filters, [random])
    models = _Model(target, batch), _Model(draft, batch)
    log_probs = None
    for b, row in enumerate(rows):
        follower.begin(b, row)
    while any(row.live for row in rows):
        deepest = max(row.room for row in rows if row.live)
        found = _round(run, models, rows, tuple(branches[:deepest]))
        log_probs = found if log_probs is None else log_probs + found
    if log_probs is None:
        log_probs = ops.first_tokens(dev, None, batch, 0) / 1
    done = np.array([row.done for row in rows])
    tokens, lengths = sequences([row.tokens[row.start :] for row in rows], done, max_length)
    valid = ops.to_device(done, log_probs)
    return Speculated(
        ops.to_device(tokens, log_probs),
        ops.to_device(lengths, log_probs),
        ops.where(valid, log_probs, -float("inf")),
        valid,
        np.array([row.tried for row in rows]),
        np.array([row.accepted for row in rows]),
        np.array([row.forced for row in rows]),
        models[0].calls,
        models[1].calls,
    )


class _Row:
    """One sequence on the host."""

    def __init__(self, prompt: list[int], max_length: int) -> None:
        self.tokens = prompt
        self.start, self.most = len(prompt), max_length
        self.live, self.done = True, False
        self.tried = self.accepted = self.forced = 0

    @property
    def room(self) -> int:
        """How many more tokens may be written."""
        return self.start + self.most - len(self.tokens)

    def end(self, done: bool) -> None:
        """Write no more; done: the sequence is complete."""
        self.live, self.done = False, done


class _Model:
    """A reader with what it has read."""

    def __init__(self, reader: Reader, batch: int) -> None:
        self.reader = reader
        self.cache: Any = None
        self.lengths = np.zeros(batch, np.int64)
        self.calls = 0

    def pending(self, rows: Sequence[_Row]) -> list[list[int]]:
        """Return what of each live row has not been read."""
        return [row.tokens[n:] if row.live else [] for row, n in zip(rows, self.lengths, strict=True)]

    def extend(self, tokens: Any, lengths: Array, at: Array, sees: NDArray[np.bool_] | None = None) -> Any:
        logits, self.cache = self.reader.extend(tokens, self.cache, lengths, at, sees)
        self.calls += 1
        return logits


class _Run(NamedTuple):
    """What a round needs of a run."""

    ops: Any
    follower: _OnDevice | _OnHost
    filters: _Filters
    random: list[Any]  # what is left to draw from


# ------------------------------------------------------------------------------------------- following the table


class _OnDevice:
    """States of a round's draft, depth by depth, on the device."""

    def __init__(self, ops: Any, dev: Any, batch: int, max_length: int) -> None:
        self.ops, self.dev, self.batch = ops, dev, batch
        self.size, self.eos, self.length = dev.vocab_size, dev.eos, dev.fixed_length
        shortened = dev.max_length is None or max_length < dev.max_length
        self.budgets = shortened and counts_tokens(dev)
        self.root = ops.start(dev, batch)
        self.levels: list[Any] = []
        self.room: Any = None

    def begin(self, b: int, row: _Row) -> None:
        """Begin a row."""

    def open(self, rows: Sequence[_Row]) -> None:
        """Begin a draft where the rows are."""
        self.levels = [self.root]
        if self.budgets:
            self.room = self.ops.to_device(np.array([row.room for row in rows]), self.root.node)

    def grow(self, tokens: Any, children: int) -> None:
        """Follow drafted tokens (B, w * children)."""
        parents = self.ops.arange(tokens.shape[0] * tokens.shape[1], like=self.root.node) // children
        state = self.ops.gather(self.levels[-1], parents)
        self.levels.append(self.ops.advance(self.dev, state, tokens.reshape(-1)))

    def place(self, level: int, at: Any) -> Any:
        """Return where node `at` (B,) of a depth stands."""
        state = self.levels[level]
        width = state.node.shape[0] // self.batch
        return self.ops.gather(state, self.ops.arange(self.batch, like=at) * width + at)

    def mask(self, x: Any, level: int, place: Any = None) -> Any:
        """Return x (B * w, V) masked for all nodes of a depth, or (B, V) for one place of each row."""
        state = self.levels[level] if place is None else place
        remaining = None
        if self.budgets:
            each = state.node.shape[0] // self.batch
            rows = self.ops.arange(state.node.shape[0], like=self.root.node) // each
            left = self.room - level
            remaining = self.ops.where(left > 0, left, 0)[rows]
        return self.ops.mask_logits(self.dev, x, state, remaining)

    def choose(self, condition: Any, a: Any, b: Any) -> Any:
        """Return place a where a condition (B,) holds, else b."""
        return type(a)(*(_where(self.ops, condition, x, y) for x, y in zip(a, b, strict=True)))

    def close(self, place: Any, token: Any) -> None:
        """Go on from a place by one more token (B,)."""
        self.root = self.ops.advance(self.dev, place, token)

    def take(self, b: int, row: _Row, token: int) -> None:
        """Write a token of a row, which may end it."""
        if token < 0 or (token != self.eos and row.room == 0):
            row.end(False)
        elif token == self.eos:
            row.end(True)
        else:
            row.tokens.append(token)
            if self.eos is None and len(row.tokens) - row.start == self.length:
                row.end(True)

    def forced(self, level: int) -> list[list[int]] | None:
        """Return what is forced behind each node of a depth, its token in front; None: nothing is looked for."""
        return None

    def is_open(self, level: int) -> bool:
        """Return whether a node of a depth may go on, as far as is known on the host."""
        return True


class _OnHost:
    """Matchers of a round's draft, depth by depth, with jumps: what is forced behind a token belongs to it."""

    def __init__(self, ops: Any, matchers: list[Matcher]) -> None:
        self.ops, self.matchers, self.batch = ops, matchers, len(matchers)
        self.size = max(matcher.table.vocab_size for matcher in matchers)
        self.levels: list[list[Matcher | None]] = []
        self.spans: list[list[list[int]]] = []
        self.masks: list[Any] = []

    def begin(self, b: int, row: _Row) -> None:
        """Write what is forced at the beginning."""
        self._write(row, [], take_forced(self.matchers[b]), self.matchers[b])

    def open(self, rows: Sequence[_Row]) -> None:
        """Begin a draft where the rows are."""
        self.levels = [[matcher if row.live else None for matcher, row in zip(self.matchers, rows, strict=True)]]
        self.spans, self.masks = [[[] for _ in rows]], []

    def grow(self, tokens: Any, children: int) -> None:
        """Follow drafted tokens (B, w * children), and what is forced behind each."""
        following: list[Matcher | None] = []
        spans = []
        for node, token in enumerate(self.ops.to_host(tokens).reshape(-1).tolist()):
            parent = self.levels[-1][node // children]
            matcher = None if parent is None or token < 0 else parent.copy()
            if matcher is not None and not matcher.advance(token):
                matcher = None
            spans.append([max(token, 0)] + ([] if matcher is None else take_forced(matcher)))
            following.append(matcher)
        self.levels.append(following)
        self.spans.append(spans)

    def place(self, level: int, at: Any) -> Any:
        """Return what node `at` (B,) of a depth allows."""
        masks = self._masks(level, at)
        width = masks.shape[0] // self.batch
        return masks[self.ops.arange(self.batch, like=at) * width + at]

    def mask(self, x: Any, level: int, place: Any = None) -> Any:
        """Return x (B * w, V) masked for all nodes of a depth, or (B, V) for one place of each row."""
        return self.ops.where(self._masks(level, x) if place is None else place, x, -float("inf"))

    def _masks(self, level: int, like: Any) -> Any:
        if level == len(self.masks):
            matchers = self.levels[level]
            self.masks.append(self.ops.to_device(allowed(matchers, [True] * len(matchers), self.size), like))
        return self.masks[level]

    def choose(self, condition: Any, a: Any, b: Any) -> Any:
        """Return place a where a condition (B,) holds, else b."""
        return _where(self.ops, condition, a, b)

    def close(self, place: Any, token: Any) -> None:
        """Go on from a place by one more token (B,): known once it is written."""

    def take(self, b: int, row: _Row, token: int) -> None:
        """Write a token of a row and what is forced behind it, which may end it."""
        matcher = self.matchers[b]
        if token < 0 or (token != matcher.table.eos and row.room == 0) or not matcher.advance(token):
            row.end(False)
        elif token == matcher.table.eos:
            row.end(True)
        else:
            self._write(row, [token], take_forced(matcher), matcher)

    def _write(self, row: _Row, drawn: list[int], forced: list[int], matcher: Matcher) -> None:
        row.tokens += drawn + forced
        row.forced += len(forced)
        if row.room < 0 or matcher.is_finished:
            row.end(row.room >= 0)

    def forced(self, level: int) -> list[list[int]] | None:
        """Return what is forced behind each node of a depth, its token in front."""
        return self.spans[level]

    def is_open(self, level: int) -> bool:
        """Return whether a node of a depth may go on."""
        return any(matcher is not None and not matcher.is_finished for matcher in self.levels[level])


# ------------------------------------------------------------------------------------------------ where nodes lie


class _Layout:
    """Where the entries of a draft's nodes lie in a cache: an entry for each node, and for what is forced behind it."""

    def __init__(self, batch: int, branches: tuple[int, ...]) -> None:
        self.batch, self.branches = batch, branches
        self.widths = [1, *accumulate(branches, mul)]  # nodes of each depth, the root's first
        self.sizes: list[Array] = [np.zeros((batch, 1), np.int64)]  # entries of each node (B, w), by depth
        self.starts = self.sizes[:]  # where each begins, counted from the depth's first entry
        self.chain = self.widths[-1] == 1  # what lies in order without moving anything

    def add(self, spans: list[list[int]] | None) -> None:
        """Take on the nodes of the next depth."""
        width = self.widths[len(self.sizes)]
        sizes = np.ones(self.batch * width, np.int64) if spans is None else np.array([len(span) for span in spans])
        sizes = sizes.reshape(self.batch, width)
        self.sizes.append(sizes)
        self.starts.append(np.cumsum(sizes, 1) - sizes)

    def total(self, level: int) -> Array:
        """Return the entries of each row at a depth, (B,)."""
        total: Array = self.sizes[level].sum(1)
        return total

    def path(self, level: int, node: int) -> list[int]:
        """Return the nodes from depth 1 to one of a depth, itself included."""
        out = []
        for depth in range(level, 0, -1):
            out.append(node)
            node //= self.branches[depth - 1]
        return out[::-1]

    def entries(self, b: int, bases: Sequence[Array], path: Sequence[int]) -> list[int]:
        """Return the entries of a path in a row, where depth l begins at bases[l][b]."""
        out: list[int] = []
        for level, node in enumerate(path, 1):
            first = int(bases[level][b] + self.starts[level][b, node])
            out += range(first, first + int(self.sizes[level][b, node]))
        return out

    def sees(
        self, out: NDArray[np.bool_], bases: Sequence[Array], levels: Sequence[int], skip: int
    ) -> NDArray[np.bool_]:
        """Write which entries those of some depths see: out (B, n, e + n), whose first row is that of entry `skip`."""
        alike: dict[Any, int] = {}  # rows whose nodes lie in the same places
        for b in range(self.batch):
            key = tuple(int(base[b]) for base in bases), *(sizes[b].tobytes() for sizes in self.sizes)
            if alike.setdefault(key, b) < b:
                out[b] = out[alike[key]]
                continue
            for level in levels:
                for node in range(self.widths[level]):
                    entries = self.entries(b, bases, self.path(level, node))
                    for k in range(len(entries) - int(self.sizes[level][b, node]), len(entries)):
                        out[b, entries[k] - skip, entries[: k + 1]] = True
        return out


# ----------------------------------------------------------------------------------------------------- one round


class _Drafted(NamedTuple):
    """A draft: by depth, from the root on, what its nodes' children were drawn from, and the nodes."""

    x: list[Any]  # (B, w, V) filtered logits
    tokens: list[Any]  # (B, w * c), -1 where there was nothing to draw


def _round(run: _Run, models: tuple[_Model, _Model], rows: Sequence[_Row], branches: tuple[int, ...]) -> Any:
    """Draft, verify and write; return the log-probabilities of what was written, (B,)."""
    follower = run.follower
    target, draft = models
    batch = len(rows)
    layout = _Layout(batch, branches)
    follower.open(rows)
    drafted = _Drafted([], [])
    fed = _draft(run, draft, rows, layout, drafted) if branches else None
    branches = layout.branches

    pending = target.pending(rows)
    counts = np.array([len(tokens) for tokens in pending])
    bases = [counts]  # where each depth begins, after what is pending
    for level in range(1, len(branches) + 1):
        bases.append(bases[-1] + (layout.total(level - 1) if level > 1 else 0))
    tokens, at = _verifying(run, layout, drafted, pending, bases)
    sees = None
    if not layout.chain:
        n = tokens.shape[1]
        sees = np.broadcast_to(np.eye(n, dtype=bool), (batch, n, n)).copy()
        for b, count in enumerate(counts):
            sees[b, :count, :count] = np.tri(count, dtype=bool)
            sees[b, count:, :count] = True
        layout.sees(sees, bases, range(1, len(branches) + 1), 0)
    logits = target.extend(tokens, target.lengths, at, sees)
    taken, log_probs = _verify(run, layout, drafted, logits)

    kept: list[list[int]] = []
    for b, row in enumerate(rows):
        nodes: list[int] = []
        chosen, path = taken[b, : len(branches)], taken[b, len(branches) : -1]
        if row.live:
            for child, token in zip(chosen.tolist(), path.tolist(), strict=True):
                if not row.live:
                    break
                row.tried += 1
                if child < 0:
                    break
                nodes.append((nodes[-1] if nodes else 0) * branches[len(nodes)] + child)
                row.accepted += 1
                follower.take(b, row, token)
            if row.live:
                follower.take(b, row, int(taken[b, -1]))
        kept.append(nodes)
    _settle(target, layout, kept, counts, bases)
    if fed is not None:
        _settle(draft, layout, [nodes[: len(branches) - 1] for nodes in kept], *fed)
    return log_probs


def _draft(
    run: _Run, model: _Model, rows: Sequence[_Row], layout: _Layout, drafted: _Drafted
) -> tuple[Array, list[Array]]:
    """Draft a tree; return how much of each row was pending, and where each depth lies behind `lengths`."""
    ops, follower, branches = run.ops, run.follower, layout.branches
    pending = model.pending(rows)
    counts = np.array([len(tokens) for tokens in pending])
    trunk = model.lengths + counts
    bases = [counts, counts]
    logits = model.extend(padded(pending), model.lengths, np.maximum(counts - 1, 0)[:, None])
    for level, children in enumerate(branches, 1):
        width = layout.widths[level - 1]
        x = _filtered(run, logits.reshape(layout.batch * width, -1), level - 1)
        drafted.x.append(x.reshape(layout.batch, width, -1))
        columns = []
        for _ in range(children):
            token = _drawn(run, _probabilities(ops, x, run.filters))
            columns.append(token[:, None])
            x = _without(ops, x, token)
        tokens = ops.concatenate(columns, 1).reshape(layout.batch, -1)
        drafted.tokens.append(tokens)
        follower.grow(tokens, children)
        spans = follower.forced(level)
        layout.add(spans)
        if level == len(branches) or not follower.is_open(level):
            layout.branches = branches[:level]
            break
        most = int(layout.total(level).max())
        if spans is None:
            tokens = ops.where(tokens < 0, 0, tokens)
        else:
            width = layout.widths[level]
            tokens = padded([[*chain(*spans[b * width : (b + 1) * width])] for b in range(layout.batch)])
        at = layout.starts[level] + layout.sizes[level] - 1
        before = bases[level] - counts
        if layout.chain:
            logits = model.extend(tokens, trunk + before, at)
            bases.append(bases[level] + layout.total(level))
        else:
            e = int(before[0])  # the same for all rows: depths are as wide as their widest
            sees = np.zeros((layout.batch, most, e + most), bool)
            sees[:, np.arange(most), e + np.arange(most)] = True
            layout.sees(sees, [base - counts for base in bases], [level], e)
            logits = model.extend(tokens, trunk, at, sees)
            bases.append(bases[level] + most)
    return counts, bases


def _verifying(
    run: _Run, layout: _Layout, drafted: _Drafted, pending: list[list[int]], bases: list[Array]
) -> tuple[Any, Array]:
    """Return what the target reads, (B, n), and the columns after which its logits are wanted: root and all nodes."""
    ops, batch = run.ops, layout.batch
    levels = range(1, len(layout.branches) + 1)
    at = [np.maximum(bases[0] - 1, 0)[:, None]]
    at += [bases[level][:, None] + layout.starts[level] + layout.sizes[level] - 1 for level in levels]
    columns = np.concatenate(at, 1)
    spans = [run.follower.forced(level) for level in levels]
    if not levels:
        return padded(pending), columns
    if spans[0] is not None:
        lists = []
        for b, tokens in enumerate(pending):
            own = list(tokens)
            for level, of_level in zip(levels, spans, strict=True):
                width = layout.widths[level]
                own += chain(*(of_level or [])[b * width : (b + 1) * width])
            lists.append(own)
        return padded(lists), columns
    known = padded(pending)
    drawn = ops.concatenate(drafted.tokens, 1)
    both = ops.concatenate([ops.to_device(known, drawn), ops.where(drawn < 0, 0, drawn)], 1)
    nodes = drawn.shape[1]
    n = int(bases[0].max()) + nodes
    index = np.zeros((batch, n), np.int64)
    for b, count in enumerate(bases[0]):
        index[b, :count] = np.arange(count)
        index[b, count : count + nodes] = known.shape[1] + np.arange(nodes)
    return ops.take(both, ops.to_device(index, drawn)), columns


def _verify(run: _Run, layout: _Layout, drafted: _Drafted, logits: Any) -> tuple[Array, Any]:
    """Walk down the draft as far as it is accepted, and draw the token after that.

    Return, on the host, (B, 2 D + 1): which child was taken at each depth and its token, -1 from where none was, and
    the token drawn, -1 where there was no distribution; and the log-probabilities of all these, (B,).
    """
    ops, follower, batch = run.ops, run.follower, layout.batch
    rows = ops.arange(batch, like=logits[:, 0].argmax(-1))
    node = ops.zeros((batch,), like=rows)
    place = follower.place(0, node)
    x = _filtered(run, logits[:, 0], 0, place)
    p = left = _probabilities(ops, x, run.filters)
    going = rows >= 0
    log_probs = ops.zeros((batch,), like=x)
    offset = 1
    chosen, path = [], []
    for level, children in enumerate(layout.branches, 1):
        guess = drafted.x[level - 1][rows, node]
        trying, taken, token = going, ops.zeros((batch,), like=rows) - 1, ops.zeros((batch,), like=rows) - 1
        for child in range(children):
            tried = drafted.tokens[level - 1][rows, node * children + child]
            q = _probabilities(ops, guess, run.filters)
            at = ops.where(tried < 0, 0, tried)[:, None]
            uniform = _random(run, (batch,), p)
            accepted = trying & (tried >= 0) & _accepts(ops, uniform, ops.take(left, at), ops.take(q, at))
            taken, token = ops.where(accepted, child, taken), ops.where(accepted, tried, token)
            trying = trying & ~accepted
            left = ops.where(trying[:, None], _rest(ops, left, q), left)
            guess = _without(ops, guess, tried)
        going = taken >= 0
        log_probs = log_probs + _log_probs(ops, x, token, run.filters)
        node = ops.where(going, node * children + taken, 0)
        there = follower.place(level, node)
        place = follower.choose(going, there, place)
        below = _filtered(run, logits[rows, offset + node], level, there)
        x = ops.where(going[:, None], below, x)
        p = _probabilities(ops, below, run.filters)
        left = ops.where(going[:, None], p, left)
        offset += layout.widths[level]
        chosen.append(taken[:, None])
        path.append(token[:, None])
    last = _drawn(run, left)
    follower.close(place, last)
    log_probs = log_probs + _log_probs(ops, x, last, run.filters)
    return ops.to_host(ops.concatenate([*chosen, *path, last[:, None]], 1)), log_probs


def _settle(model: _Model, layout: _Layout, kept: list[list[int]], counts: Array, bases: list[Array]) -> None:
    """Let a model's cache go on behind what was pending and the nodes that were kept of each row."""
    behind = [base - counts for base in bases]
    trunk = model.lengths + counts
    paths = [layout.entries(b, behind, nodes) for b, nodes in enumerate(kept)]
    if not layout.chain and any(path != list(range(len(path))) for path in paths):
        entries = np.broadcast_to(np.arange(max(map(len, paths))), (layout.batch, max(map(len, paths)))).copy()
        for row, path in zip(entries, paths, strict=True):
            row[: len(path)] = path
        model.cache = model.reader.keep(model.cache, trunk, entries)
    model.lengths = trunk + np.array([len(path) for path in paths])


# ------------------------------------------------------------------------------------------------ distributions


def _filtered(run: _Run, logits: Any, level: int, place: Any = None) -> Any:
    """Return tempered logits (N, V) with -inf where the table or a filter does not allow a token.

    A row without a distribution is -inf throughout.
    """
    ops, filters = run.ops, run.filters
    check_logits(run.follower.size, logits.shape)
    x = logits / (ops.zeros((1, 1), like=logits) + (filters.temperature or 1.0))
    sound = _finite(ops.logsumexp(x))  # of all that the model has, as in `sample`
    x = x[:, : run.follower.size]
    x = run.follower.mask(x, level, place)
    total = ops.logsumexp(x)
    valid = _finite(total) & sound
    x = ops.where(valid[:, None], x, -float("inf"))
    if filters.temperature == 0:
        return x
    floor = _floor(ops, x, ops.where(valid, total, 0.0)[:, None], filters)
    return x if floor is None else ops.where(x >= floor, x, -float("inf"))


def _probabilities(ops: Any, x: Any, filters: _Filters) -> Any:
    """Return the distribution (N, V) of filtered logits; 0 throughout where there is none."""
    if filters.temperature == 0:
        best = x.argmax(-1)[:, None]
        first = ops.arange(x.shape[1], like=best) == best
        return ops.where(first & (x > -float("inf")), 1.0, ops.zeros((1, 1), like=x))
    total = ops.logsumexp(x)
    return ops.exp(x - ops.where(_finite(total), total, 0.0)[:, None])


def _log_probs(ops: Any, x: Any, token: Any, filters: _Filters) -> Any:
    """Return the log-probabilities of tokens (N,) under filtered logits; 0 of token -1."""
    if filters.temperature == 0:
        return ops.zeros((x.shape[0],), like=x)
    total = ops.logsumexp(x)
    found = ops.take(x, ops.where(token < 0, 0, token)[:, None])[:, 0] - ops.where(_finite(total), total, 0.0)
    return ops.where(token < 0, 0.0, ops.where(found > 0, 0.0, found))


def _accepts(ops: Any, uniform: Any, p: Any, q: Any) -> Any:
    """Return whether tokens of probability p and q (B, 1) are taken: min(1, p / q) of the time, never where p is 0."""
    return uniform * q[:, 0] < p[:, 0]


def _rest(ops: Any, p: Any, q: Any) -> Any:
    """Return what of p (B, V) is left after a token drawn from q was not taken."""
    rest = ops.where(p > q, p - q, 0.0)
    total = rest.sum(-1)[:, None]
    return ops.where(total > 0, rest / ops.where(total > 0, total, 1.0), p)  # nothing left: rejected by rounding


def _without(ops: Any, x: Any, token: Any) -> Any:
    """Return logits (N, V) without a token (N,) of each row."""
    return ops.where(ops.arange(x.shape[1], like=token) == token[:, None], -float("inf"), x)


def _drawn(run: _Run, weights: Any) -> Any:
    """Return a token drawn from each row of weights (N, V); -1 where all are 0."""
    ops = run.ops
    if run.filters.temperature == 0:
        found = weights.argmax(-1)
    else:
        found = _draw(ops, weights, _random(run, (weights.shape[0], 2), weights))
    return ops.where((weights > 0).any(-1), found, -1)


def _random(run: _Run, shape: tuple[int, ...], like: Any) -> Any:
    """Return uniform numbers; 0 at temperature 0, where nothing is left to chance."""
    if run.filters.temperature == 0:
        return run.ops.zeros(shape, like=like)
    now, run.random[0] = _split(run.ops, run.random[0])
    return _uniform(run.ops, now, shape, like)
