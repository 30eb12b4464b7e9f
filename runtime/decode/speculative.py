"""Speculative decoding under a table: a small model drafts, a large one reads the whole draft in one pass.

What comes out has exactly the large model's masked distribution. A draft is a chain or a tree. A node's children are
drawn without replacement, and tried one after the other by recursive rejection sampling (arXiv 2305.09781, 2402.12374):
child j, drawn from q_j, is taken with probability min(1, p_j(x) / q_j(x)); if it is not, p_{j+1} is max(p_j - q_j, 0),
normalized, and q_{j+1} is q_j without x, normalized. With p_1 = p, what is taken, or is drawn from what is left of p
after the last child, is distributed as p: each trial alone keeps p_j, whatever came before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from ...table.constraint import Constraint
from ..device.backend import Array, Operations, Placed, Random
from ..host.matcher import Spelling
from .draft_tree import Draft, DraftLayout, ReadingModel
from .followers import DeviceFollower, HostFollower, Row
from .jump import row_matchers, sequences
from .reader import Reader, check_prompts, padded
from .rejection import Run, accepts, drawn_from, filtered, log_probs_of, probabilities, rest_of, uniforms, without
from .sampling import FilterOptions, _check_run, _filters


class Speculated(NamedTuple):
    """Sequences sampled by speculation; rows that are not `valid` hold nothing."""

    tokens: Array  # (B, L), -1 past a sequence's end and where not valid
    lengths: Array  # (B,), EOS not counted
    log_probs: Array  # (B,) under the target's masked distribution, EOS included; -inf where not valid
    valid: Array  # bool (B,)
    tried: NDArray[np.int64]  # (B,) depths of drafts at which a drafted token was looked for, up to the first without
    accepted: NDArray[np.int64]  # (B,) of these, with a token that was taken; forced ones behind it aside
    forced: NDArray[np.int64]  # (B,) tokens that were taken without either model
    calls: int  # of the target
    draft_calls: int


def speculative_sample(
    target: Reader,
    draft: Reader,
    dev: Placed,
    random: Random,
    *,
    ops: Operations,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    branches: Sequence[int] = (1, 1, 1, 1),
    table: Constraint | Sequence[Constraint] | None = None,
    vocabulary: Spelling | None = None,
    distances: bool = True,
    **options: Unpack[FilterOptions],
) -> Speculated:
    """Return a sequence of the table for each prompt, distributed as the target's own masked sampling has it.

    target, draft: see `Reader`; `keep` is called only where drafts branch. Both have the vocabulary of the table.
    dev: from `ops.to_device`; with distances, nothing is drawn that could not be complete within max_tokens, else such
    rows are flagged. prompts, max_tokens, filters: as for `sample_jumping`; temperature 0 gives the target's greedy
    sequence. The distributions of both models are masked, then filtered. branches: children of each drafted token, by
    depth: (1, 1, 1, 1) is a chain of four, (3, 2, 1) a tree of 15 tokens. A round calls the draft once for each depth,
    and the target once.

    table: with dev None, the table on the host, or one for each row, lazy ones and sorted matrices too; `distances` as
    for `sample_jumping`. Then forced spans are taken by jumping, and the distribution is that of `sample_jumping`: what
    is forced behind a drafted token is part of the draft, and costs no call of either model. vocabulary: to do so in
    text.

    random: a generator or a key, as in `sample`; not needed at temperature 0. One read on the host for each round: what
    was taken; with `table` one more for each depth, as what is forced depends on what was drafted. The states of all
    drafted tokens are kept until the target has spoken, so that nothing is followed twice on the device.

    Raises TypeError, ValueError, VocabularyMismatchError.
    """
    xp = ops.arrays
    filters = _filters(**options)
    written = check_prompts(prompts, max_tokens, target, draft)
    batch = len(written)
    if not isinstance(branches, Sequence) or not all(
        isinstance(one, Integral) and not isinstance(one, bool) and one > 0 for one in branches
    ):
        raise ValueError(f"branches={branches!r} must be positive numbers of children, one for each depth")
    branches = tuple(int(one) for one in branches)
    if (dev is None) == (table is None):
        raise ValueError("pass dev, from ops.to_device, or dev=None and the table itself, to jump forward as well")
    if table is None and (vocabulary is not None or not distances):
        raise ValueError("vocabulary= and distances= go with table=: dev has distances if it was put with them")
    follower: DeviceFollower | HostFollower
    if table is None:
        _check_run(dev, 0, batch, 1, max_tokens)
        follower = DeviceFollower(ops, dev, batch, max_tokens)
    else:
        follower = HostFollower(ops, row_matchers(table, vocabulary, batch, max_tokens if distances else None))
    rows = [Row(tokens, max_tokens) for tokens in written]
    run = Run(ops, follower, filters, [random])
    models = ReadingModel(target, batch), ReadingModel(draft, batch)
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
    tokens, lengths = sequences([row.tokens[row.start :] for row in rows], done, max_tokens)
    valid = xp.to_device(done, log_probs)
    return Speculated(
        xp.to_device(tokens, log_probs),
        xp.to_device(lengths, log_probs),
        xp.where(valid, log_probs, -float("inf")),
        valid,
        np.array([row.tried for row in rows]),
        np.array([row.accepted for row in rows]),
        np.array([row.forced for row in rows]),
        models[0].calls,
        models[1].calls,
    )


def _round(run: Run, models: tuple[ReadingModel, ReadingModel], rows: Sequence[Row], branches: tuple[int, ...]) -> Any:
    """Draft, verify and write; return the log-probabilities of what was written, (B,)."""
    follower = run.follower
    target, draft = models
    batch = len(rows)
    layout = DraftLayout(batch, branches)
    follower.open(rows)
    drafted = Draft([], [])
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
    taken, log_probs = verify(run, layout, drafted, logits)

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
    run: Run, model: ReadingModel, rows: Sequence[Row], layout: DraftLayout, drafted: Draft
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Draft a tree; return how much of each row was pending, and where each depth lies behind `lengths`."""
    ops, follower, branches = run.ops, run.follower, layout.branches
    pending = model.pending(rows)
    counts = np.array([len(tokens) for tokens in pending])
    trunk = model.lengths + counts
    bases = [counts, counts]
    logits = model.extend(padded(pending), model.lengths, np.maximum(counts - 1, 0)[:, None])
    for level, children in enumerate(branches, 1):
        width = layout.widths[level - 1]
        x = filtered(run, logits.reshape(layout.batch * width, -1), level - 1)
        drafted.x.append(x.reshape(layout.batch, width, -1))
        columns = []
        for _ in range(children):
            token = drawn_from(run, probabilities(ops, x, run.filters))
            columns.append(token[:, None])
            x = without(ops, x, token)
        tokens = ops.arrays.concatenate(columns, 1).reshape(layout.batch, -1)
        drafted.tokens.append(tokens)
        follower.grow(tokens, children)
        spans = follower.forced(level)
        layout.add(spans)
        if level == len(branches) or not follower.is_open(level):
            layout.branches = branches[:level]
            break
        most = int(layout.total(level).max())
        if spans is None:
            tokens = ops.arrays.where(tokens < 0, 0, tokens)
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
    run: Run, layout: DraftLayout, drafted: Draft, pending: list[list[int]], bases: list[NDArray[np.int64]]
) -> tuple[Any, NDArray[np.int64]]:
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
    drawn = ops.arrays.concatenate(drafted.tokens, 1)
    both = ops.arrays.concatenate([ops.arrays.to_device(known, drawn), ops.arrays.where(drawn < 0, 0, drawn)], 1)
    nodes = drawn.shape[1]
    n = int(bases[0].max()) + nodes
    index = np.zeros((batch, n), np.int64)
    for b, count in enumerate(bases[0]):
        index[b, :count] = np.arange(count)
        index[b, count : count + nodes] = known.shape[1] + np.arange(nodes)
    return ops.arrays.take(both, ops.arrays.to_device(index, drawn)), columns


def verify(run: Run, layout: DraftLayout, drafted: Draft, logits: Array) -> tuple[NDArray[np.int64], Any]:
    """Walk down the draft as far as it is accepted, and draw the token after that.

    Return, on the host, (B, 2 D + 1): which child was taken at each depth and its token, -1 from where none was, and
    the token drawn, -1 where there was no distribution; and the log-probabilities of all these, (B,).
    """
    ops, follower, batch = run.ops, run.follower, layout.batch
    rows = ops.arrays.arange(batch, like=logits[:, 0].argmax(-1))
    node = ops.arrays.zeros((batch,), like=rows)
    place = follower.place(0, node)
    x = filtered(run, logits[:, 0], 0, place)
    p = left = probabilities(ops, x, run.filters)
    going = rows >= 0
    log_probs = ops.arrays.zeros((batch,), like=x)
    offset = 1
    chosen, path = [], []
    for level, children in enumerate(layout.branches, 1):
        guess = drafted.x[level - 1][rows, node]
        trying, taken, token = (
            going,
            ops.arrays.zeros((batch,), like=rows) - 1,
            ops.arrays.zeros((batch,), like=rows) - 1,
        )
        for child in range(children):
            tried = drafted.tokens[level - 1][rows, node * children + child]
            q = probabilities(ops, guess, run.filters)
            at = ops.arrays.where(tried < 0, 0, tried)[:, None]
            uniform = uniforms(run, (batch,), p)
            accepted = trying & (tried >= 0) & accepts(ops, uniform, ops.arrays.take(left, at), ops.arrays.take(q, at))
            taken, token = ops.arrays.where(accepted, child, taken), ops.arrays.where(accepted, tried, token)
            trying = trying & ~accepted
            left = ops.arrays.where(trying[:, None], rest_of(ops, left, q), left)
            guess = without(ops, guess, tried)
        going = taken >= 0
        log_probs = log_probs + log_probs_of(ops, x, token, run.filters)
        node = ops.arrays.where(going, node * children + taken, 0)
        there = follower.place(level, node)
        place = follower.choose(going, there, place)
        below = filtered(run, logits[rows, offset + node], level, there)
        x = ops.arrays.where(going[:, None], below, x)
        p = probabilities(ops, below, run.filters)
        left = ops.arrays.where(going[:, None], p, left)
        offset += layout.widths[level]
        chosen.append(taken[:, None])
        path.append(token[:, None])
    last = drawn_from(run, left)
    follower.close(place, last)
    log_probs = log_probs + log_probs_of(ops, x, last, run.filters)
    return ops.arrays.to_host(ops.arrays.concatenate([*chosen, *path, last[:, None]], 1)), log_probs


def _settle(
    model: ReadingModel,
    layout: DraftLayout,
    kept: list[list[int]],
    counts: NDArray[np.int64],
    bases: list[NDArray[np.int64]],
) -> None:
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
