"""Beam search over what a table allows, written once against an operations module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..device.backend import Array, Cache, Operations, Placed
from ..device.device_table import State
from .continuation import check_room, start_of, table_of

Step = Callable[[Any, Any, int], tuple[Any, Any]]
"""step(tokens (B * M,), cache, t) -> (logits (B * M, V), cache); tokens are those chosen at t - 1."""


class Beams(NamedTuple):
    """What a beam search found, best first; rows that are not `valid` hold nothing."""

    tokens: Array  # (B, M, L), -1 past a sequence's end and where not valid
    lengths: Array  # (B, M), EOS not counted
    scores: Array  # (B, M), -inf where not valid
    valid: Array  # bool (B, M)
    states: Array  # (B, M) final state of each sequence, for `TransitionTable.input_rows`


class _Finished(NamedTuple):
    """The best sequences that have ended: where their back pointers start, and what they score."""

    scores: Array  # (B, M) by which they are ranked
    lengths: Array  # (B, M)
    beams: Array  # (B, M) beam that held the last token, at step length - 1
    states: Array  # (B, M)


def beam_search(
    step: Step,
    cache: Cache,
    dev: Placed,
    *,
    ops: Operations,
    batch: int,
    beams: int,
    max_tokens: int,
    start_token: int = 0,
    length_penalty: float = 0.0,
    renormalize: bool = False,
    count_eos: bool = False,
    gather: Callable[[Any, Any], Any] | None = None,
) -> Beams:
    """Return the `beams` best sequences of the table for each of `batch` inputs.

    At every step the best M of *all* allowed continuations of all beams go on; nothing is cut by unmasked scores
    first. With at least as many beams as there are sequences of any one length, the result is the exact best M.

    step: step(tokens (B * M,), cache, t) -> (logits (B * M, V), cache), where tokens are those chosen at t - 1,
    `start_token` at t = 0, when the M rows of a batch element must be alike. cache: a tree of arrays whose first
    axis is B * M, regathered by parent beam after each step; `gather(cache, index (B * M,))` does it another way. At
    depths where no sequence branches any more nothing is regathered.
    dev: from `ops.to_device`, or None for no constraint; a `Continuation` begins where sequences stand already.
    ops: torch_ops, jax_ops or numpy_ops. max_tokens: the most tokens of a result, EOS not counted; a table with an EOS
    takes one step more, to score it.

    Scores are sums of log-probabilities under the model's full softmax; renormalize: under the softmax of the
    allowed tokens alone. Sequences of different lengths are ranked by score / length ** length_penalty, and then
    that is the score returned; count_eos: with EOS in the length. The empty sequence counts as one token there. A table
    without EOS lets a sequence that is the prefix of another end at no cost. To end counts with the probability of all
    end tokens together, so that no sequence comes twice.

    Where there are fewer sequences than beams, or a model rules some out with logits of -inf or NaN, the rest is
    flagged in `valid` and holds no tokens. So is what is not complete within max_tokens: nothing is held back for an
    end here, so where sequences may go on for ever a search can end with none. `constrained_generate`, and all that
    samples, keep room for one.

    Raises ValueError if nothing in the table is complete within max_tokens.
    """
    xp = ops.arrays
    if batch < 1 or beams < 1 or max_tokens < 1:
        raise ValueError(f"batch, beams and max_tokens must be positive, not {batch}, {beams} and {max_tokens}")
    given, (dev, depth) = dev, table_of(dev)
    if dev is not None and not hasattr(dev, "min_length"):
        raise TypeError(f"dev must come from ops.to_device, or be None, not a {type(dev).__name__}")
    if dev is not None:
        check_room(dev, depth, max_tokens)
    if dev is not None and dev.max_length is not None and dev.max_length <= depth:
        raise ValueError(f"the table allows no more than {depth} tokens: there is nothing to search")
    steps = max_tokens if dev is None or dev.max_length is None else min(max_tokens, dev.max_length - depth)
    fixed = dev is None or dev.fixed_length is not None
    scores_end = not fixed and dev.eos is not None
    regather = gather or xp.gather

    root = None if dev is None else start_of(ops, given, batch).state
    tokens = ops.first_tokens(dev, cache, batch * beams, start_token)
    logits, cache = step(tokens, cache, 0)
    logits = logits.reshape(batch, beams, -1)[:, 0]  # all beams are one still
    scores = xp.zeros((batch, 1), like=logits)
    state = State(xp.zeros((batch,), like=tokens)) if root is None else root
    finished: _Finished | None = None
    history: list[tuple[Any, Any]] = []  # (parents or None, tokens) of each step

    def finish(totals: Array, length: int) -> _Finished:
        counted = max(1, length + (1 if count_eos and scores_end else 0))
        return _merge(ops, finished, totals, length, state.node.reshape(batch, beams), counted**length_penalty)

    def finish_with_eos(length: int) -> _Finished:
        return finish(scores + ops.end_scores(dev, logits, state, renormalize).reshape(batch, beams), length)

    if root is not None and not fixed and dev.min_length <= depth:  # what is written so far may be all
        if scores_end:
            end = ops.end_scores(dev, logits, root, renormalize)
        else:
            end = xp.where(ops.accepting(dev, root), scores[:, 0], -float("inf"))
        totals = xp.where(xp.arange(beams, like=tokens) == 0, end[:, None], -float("inf"))
        nodes = xp.zeros((batch, beams), like=tokens) + root.node[:, None]
        finished = _merge(ops, None, totals, 0, nodes, 1.0)
    for t in range(steps):
        if t > 0:
            logits, cache = step(tokens.reshape(-1), cache, t)
            if scores_end:
                finished = finish_with_eos(t)
        scores, parents, tokens, state = ops.select(dev, logits, state, scores, beams, depth + t, renormalize)
        history.append((parents, tokens))
        if not fixed and not scores_end:
            may_end = ops.accepting(dev, state).reshape(batch, beams)
            finished = finish(xp.where(may_end, scores, -float("inf")), t + 1)
        if cache is not None and parents is not None and (scores_end or t + 1 < steps):
            first = xp.arange(batch, like=parents)[:, None] * beams
            cache = regather(cache, (first + parents).reshape(-1))
    if scores_end:
        logits, cache = step(tokens.reshape(-1), cache, steps)
        finished = finish_with_eos(steps)
    elif fixed:
        finished = finish(scores, steps)
    assert finished is not None
    return _read_back(ops, finished, history, fixed)


def _merge(
    ops: Operations, finished: _Finished | None, totals: Array, length: int, states: Array, divisor: float
) -> _Finished:
    """Put the beams that end now, with totals and states (B, M), among the best that have ended before."""
    xp = ops.arrays
    beams, scores = states.shape[1], xp.without_nan(totals)
    if divisor != 1:
        scores = scores / divisor
    if finished is None:
        best, at = xp.top_k(scores, beams)
        at = xp.integers(at, states)
        return _Finished(best, at * 0 + length, at, xp.take(states, at))
    pool = _Finished(
        scores,
        xp.zeros(states.shape, like=states) + length,
        xp.zeros(states.shape, like=states) + xp.arange(beams, like=states),
        states,
    )
    pool = _Finished(*(xp.concatenate([a, b], 1) for a, b in zip(finished, pool, strict=True)))
    best, at = xp.top_k(pool.scores, beams)
    return _Finished(best, *(xp.take(x, at) for x in pool[1:]))


def _read_back(ops: Operations, finished: _Finished, history: list[tuple[Any, Any]], fixed: bool) -> Beams:
    """Follow the back pointers of each finished sequence from its last token to its first; fixed: all are as long."""
    xp = ops.arrays
    valid = finished.scores > -float("inf")
    lengths = xp.where(valid, finished.lengths, 0)
    beam, (batch, count) = finished.beams, valid.shape
    written, chosen = [], []  # tokens of all beams, and which of them each sequence has: (B, M) a step, the last first
    for t in range(len(history) - 1, -1, -1):
        parents, tokens = history[t]
        written.append(tokens)
        chosen.append(beam)
        if parents is not None:
            parent = xp.integers(xp.take(parents, beam), beam)
            beam = parent if fixed else xp.where(t < lengths, parent, beam)
    # one look-up for all steps: (B, steps * M), the tokens of a step behind those of the step before
    tokens = xp.take(xp.concatenate(written[::-1], 1), _behind_each_other(ops, chosen[::-1], history[0][1].shape[1]))
    tokens = tokens.reshape(batch, len(history), count).swapaxes(1, 2)
    holds = valid[:, :, None] if fixed else xp.arange(len(history), like=lengths) < lengths[:, :, None]
    return Beams(xp.where(holds, tokens, -1), lengths, finished.scores, valid, finished.states)


def _behind_each_other(ops: Operations, places: list[Array], width: int) -> Array:
    """Return places (B, M) in each of some arrays (B, width) as places in all of them, one behind the other."""
    xp = ops.arrays
    joined = xp.concatenate(places, 1)
    count = places[0].shape[1]
    return joined + xp.arange(joined.shape[1], like=joined) // count * width
