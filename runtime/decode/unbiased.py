"""Sampling from a model's own distribution over what a table allows: arXiv 2504.09135.

Masking alone draws x with probability P(x) / score(x), where score(x) is the product over all steps of P(allowed): what
leads into a corner of the set is drawn too often. Here that is made up for.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple, TypeVar

from ..device.backend import Array, Cache, Operations, Placed, Random
from .beam import Beams, Step
from .sampling import Sequences, _filters, _number, _split, _uniform, choose, sample_sequences

Candidates = TypeVar("Candidates", Sequences, Beams)


class Unbiased(NamedTuple):
    """One sequence for each input; rows that are not `valid` hold nothing."""

    tokens: Array  # (B, L), -1 past a sequence's end and where not valid
    lengths: Array  # (B,), EOS not counted
    log_probs: Array  # (B,) under constrained decoding; log_probs + log_mass is that under the model
    log_mass: Array  # (B,) the log of the importance score
    valid: Array  # bool (B,)
    states: Array  # (B,) final state of each sequence, before EOS, for `TransitionTable.input_rows`
    accepted: Array  # (B,) which of the first K candidates was accepted; -1 if none was
    candidates: Array  # (B,) how many candidates it took one after the other: up to the accepted one, or 2 K


def sample_unbiased(
    step: Step,
    cache: Cache,
    dev: Placed,
    random: Random,
    *,
    ops: Operations,
    batch: int,
    candidates: int,
    max_tokens: int,
    temperature: float = 1.0,
    start_token: int = 0,
) -> Unbiased:
    """Return a sequence of the table for each of `batch` inputs, drawn from P(x) / P(S): algorithm 1 of the paper.

    P is the model at this temperature, S what `sample_sequences` can draw within max_tokens: ended by EOS, or of the
    one length of a table without. `candidates`, K of them, are drawn at once by masking; each is accepted with its
    score as probability, and the first accepted one is exactly from P(x) / P(S). If none is, K more are drawn, and
    one of these with probability proportional to its score. With p = 1 - P(S), that is so p ** K of the time, the
    divergence from P(x) / P(S) is at most p ** K (sqrt(p / ((1 - p) K)) + p / (2 (1 - p) K)), and it takes
    (1 - p ** K) / (1 - p) + K p ** K candidates on average (theorem 3.1).

    step and cache: as in `sample_sequences`, with B * K rows; both rounds begin with the cache given here, so a step
    must not write to it in place. What is not complete in time, of a table put without distances, counts as rejected.
    There are no filters such as top-k, since they change what P is. random: as in `sample`; or a tuple of uniform
    numbers for candidates (steps, B * K, 2), acceptance (B, K), candidates again, and the choice among those (B, 2).

    One value is read on the host, whether the second round is needed; where values are only traced it always runs.

    Raises TypeError, ValueError.
    """
    xp = ops.arrays
    if not _filters(temperature, None, None, None).temperature:
        raise ValueError("temperature=0 leaves nothing to draw: sample_sequences takes the best token at each step")
    _number("candidates", candidates, Integral, "an integer")
    if candidates < 1:
        raise ValueError(f"candidates={candidates} must be 1 or more")

    def draw(random: Random) -> Any:
        return sample_sequences(
            step, cache, dev, random, ops=ops, batch=batch, samples=candidates, max_tokens=max_tokens,
            temperature=temperature, start_token=start_token,
        )  # fmt: skip

    now, random = _split(ops, random)
    drawn = draw(now)
    now, random = _split(ops, random)
    score = xp.exp(drawn.log_mass)
    accepted = drawn.valid & (_uniform(ops, now, (batch, candidates), score) < score)
    first, any_accepted = xp.where(accepted, 1, 0).argmax(-1), accepted.any(-1)
    chosen = _pick(ops, drawn, first)
    if not xp.all_known_true(any_accepted):
        now, random = _split(ops, random)
        again = draw(now)
        now, _ = _split(ops, random)
        other = rerank(again, again.log_mass, now, ops=ops)
        chosen = type(drawn)(*(_where(ops, any_accepted, a, b) for a, b in zip(chosen, other, strict=True)))
    taken = xp.where(any_accepted, first + 1, 2 * candidates)
    accepted_at = xp.where(any_accepted, first, -1)
    return Unbiased(**chosen._asdict(), accepted=accepted_at, candidates=taken)


def rerank(found: Candidates, log_scores: Array, random: Random, *, ops: Operations) -> Candidates:
    """Return one of the candidates of each input, drawn with probability proportional to its score.

    found: `Sequences` or `Beams`, (B, M, ..); what comes back has no axis M. log_scores: (B, M). Of samples these are
    their `log_mass`; of beams, which are not drawn at random, their log-probabilities under the model. Only valid
    candidates are drawn; where there are none, or the scores have NaN, the result is not valid.
    random: as in `sample`; of uniform numbers, (B, 2).
    """
    xp = ops.arrays
    if tuple(log_scores.shape) != tuple(found.valid.shape):
        raise ValueError(
            f"log_scores have shape {tuple(log_scores.shape)}, there are {tuple(found.valid.shape)} candidates: "
            "one score a candidate is needed"
        )
    scores = xp.where(found.valid, log_scores, -float("inf"))
    at, _, _, valid = choose(ops, scores, random, _filters(1.0, None, None, None))
    chosen = _pick(ops, found, at)
    valid = chosen.valid & valid
    nothing = {
        "tokens": -1,
        "lengths": 0,
        "scores": -float("inf"),
        "log_probs": -float("inf"),
        "log_mass": -float("inf"),
    }
    blank = {
        name: xp.where(valid.reshape(-1, *(1 for _ in array.shape[1:])), array, nothing[name])
        for name, array in chosen._asdict().items()
        if name in nothing
    }
    return chosen._replace(**blank, valid=valid)


def _pick(ops: Operations, found: Candidates, at: Array) -> Candidates:
    """Return candidate at (B,) of each row of a tuple of arrays (B, M, ..)."""
    rows = ops.arrays.arange(at.shape[0], like=at)
    return type(found)(*(array[rows, at] for array in found))


def _where(ops: Operations, condition: Array, a: Array, b: Array) -> Any:
    """Return a (B, ..) where a condition (B,) holds, else b."""
    return ops.arrays.where(condition.reshape(-1, *(1 for _ in a.shape[1:])), a, b)
