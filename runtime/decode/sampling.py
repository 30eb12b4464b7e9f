"""Sampling from what a table allows, one step or whole sequences, written once against an operations module.

Every filter is a threshold: tokens that are equally probable are kept or dropped together, so that what is kept does
not depend on the order of equals, and is the same in every backend.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, NamedTuple, TypedDict, Unpack

from ...errors import VocabularyMismatchError
from ..device.backend import Array, Cache, Operations, Placed, Random
from ..device.device_table import AnyState, check_floating, check_logits, check_rows
from ..device.on_demand import counts_tokens
from ..device.several_ends import is_end
from ..device.static_width import NARROW, edges_of, static_width
from .beam import Step
from .continuation import Continuation, check_room, start_of, table_of

_WHOLE = 1024  # weights that are drawn from in one go; of more, first a block is drawn
_BLOCK = 256
_COLDEST = 1e-6  # logits of 10,000 divided by this are still far from infinite in 32 bits


class Sample(NamedTuple):
    """One token for each row; rows that are not `valid` have no distribution: token -1 and -inf."""

    tokens: Array  # (N,) -1 where not valid, which `advance` takes to the dead state
    log_probs: Array  # (N,) under the distribution they were drawn from, after all filters
    log_mass: (
        Array  # (N,) log P(allowed) under the model's softmax; None if only allowed logits were given, or not asked
    )
    valid: Array  # bool (N,)


class Sequences(NamedTuple):
    """Sampled sequences; rows that are not `valid` hold nothing."""

    tokens: Array  # (B, S, L), -1 past a sequence's end and where not valid
    lengths: Array  # (B, S), EOS not counted
    log_probs: Array  # (B, S) under the distribution they were drawn from, EOS included; -inf where not valid
    log_mass: (
        Array  # (B, S) sum over all steps of log P(allowed): the log of the importance score; -inf where not valid
    )
    valid: Array  # bool (B, S)
    states: Array  # (B, S) final state of each sequence, before EOS, for `TransitionTable.input_rows`


class FilterOptions(TypedDict, total=False):
    """Options of a draw, as `sample` has them."""

    temperature: float  # 1.0 if left out; 0 takes the best token
    top_k: int | None
    top_p: float | None
    min_p: float | None


class _Filters(NamedTuple):
    """Checked options of a draw."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None


def sample(
    dev: Placed,
    logits: Array,
    state: AnyState,
    random: Random,
    *,
    ops: Operations,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    remaining: Array | None = None,
    level: int | None = None,
    log_mass: bool = True,
) -> Sample:
    """Return a token for each row (N,), drawn from the softmax of the allowed logits alone.

    logits: (N, V). state: (N,), each row anywhere in the table. The distribution of the allowed tokens is divided by
    the temperature and then filtered, each filter over what the one before has left:
    top_k: tokens at least as probable as the k-th best. top_p: the most probable ones that hold this much together.
    min_p: those at least so many times as probable as the best.
    temperature 0: the best allowed token, at log-probability 0; log_mass is then at temperature 1.
    remaining: (N,) budgets, as in `mask_logits`. level: a depth of a trie at which all states are: then only as many
    logits as a state there can allow are looked at, and where a state is of another depth some are left out.
    log_mass: False where nobody reads it: a kernel on a CPU then exponentiates nothing that is not drawn from.

    random: a numpy Generator, a torch.Generator on the device (None for torch's own: `torch.compile` takes no other)
    or a JAX key; or uniform numbers in [0, 1), (N, 2), and then this is a pure function of them.

    Of several end tokens each is drawn as itself. Rows in which nothing is allowed, or is possible, or whose logits
    hold NaN or +inf, are flagged as not valid.

    Raises TypeError, ValueError, VocabularyMismatchError.
    """
    filters = _filters(temperature, top_k, top_p, min_p)
    _check_dev(dev)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    width = static_width(dev, level)
    if width is not None and NARROW * width > logits.shape[1]:
        width = None
    if width is None:

        def uniforms() -> Any:
            return _uniform(ops, random, (logits.shape[0], 2), ops.zeros((1, 1), like=logits))

        drawn = ops.draw(dev, logits, state, uniforms, filters, remaining, log_mass)
        if drawn is not None:
            return Sample(*drawn)
    zero = ops.zeros((1, 1), like=logits)
    scale = zero + (filters.temperature or 1.0)
    check_floating(scale.dtype == zero.dtype, logits.dtype)
    # in at least 32 bits; what is neither wide nor tempered is not copied
    x = logits if scale.dtype == logits.dtype and filters.temperature in (0.0, 1.0) else logits / scale
    log_z = ops.logsumexp(x)
    tokens = None
    if width is not None:
        tokens, allowed = ops.allowed_tokens(dev, state, edges_of(dev, width), remaining)
        x = ops.where(allowed, ops.take(x, tokens), -float("inf"))
    else:
        x = ops.mask_logits(dev, x, state, remaining)
    at, log_probs, mass, valid = _choose(ops, x, random, filters, _finite(log_z))
    share = ops.where(valid, mass - ops.where(valid, log_z, 0.0), -float("inf"))
    share = ops.where(share > 0, 0.0, share)  # by rounding
    found = at if tokens is None else ops.take(tokens, at[:, None])[:, 0]
    return Sample(ops.where(valid, found, -1), log_probs, share if log_mass else None, valid)


def allowed_logits(
    hidden: Array,
    weight: Array,
    dev: Placed,
    state: AnyState,
    level: int | None = None,
    *,
    ops: Operations,
    bias: Array | None = None,
    remaining: Array | None = None,
) -> tuple[Any, Any]:
    """Return the tokens that each state allows (N, W) and their logits, from those rows of the output projection alone.

    hidden: (N, H). weight: (V, H), as of `torch.nn.Linear`. bias: (V,). W is the static width of the level, as in
    `sample`; where a state allows fewer, the rest are token -1 with logit -inf. The softmax over all tokens is not
    known from these, so neither is log P(allowed).

    Raises ValueError where there is no static width that is less than the vocabulary.
    """
    _check_dev(dev)
    if len(hidden.shape) != 2 or len(weight.shape) != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)} and weight {tuple(weight.shape)} must have shapes (N, H) and (V, H)"
        )
    if weight.shape[0] < dev.vocab_size:
        raise VocabularyMismatchError(
            f"weight has {weight.shape[0]} rows, the table's vocabulary has {dev.vocab_size}: "
            "it was compiled for another model"
        )
    check_rows(hidden.shape[0], state.node.shape)
    width = static_width(dev, level)
    if width is None:
        where = "any of its states" if level is None else f"states at level {level}"
        raise ValueError(
            f"how few tokens {where} allow is not known before, or they allow all {dev.vocab_size}: "
            "compute all logits, hidden @ weight.T, and mask them"
        )
    tokens, allowed = ops.allowed_tokens(dev, state, edges_of(dev, width), remaining)
    logits = (weight[tokens] @ hidden[:, :, None])[:, :, 0]
    if bias is not None:
        logits = logits + bias[tokens]
    return ops.where(allowed, tokens, -1), ops.where(allowed, logits, -float("inf"))


def sample_allowed(
    tokens: Array,
    logits: Array,
    random: Random,
    *,
    ops: Operations,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Sample:
    """Return a token for each row, drawn as `sample` does from what `allowed_logits` returned: (N, W) each.

    Its `log_mass` is None: the other logits are not known.
    """
    filters = _filters(temperature, top_k, top_p, min_p)
    if len(logits.shape) != 2 or tuple(tokens.shape) != tuple(logits.shape):
        raise ValueError(f"tokens {tuple(tokens.shape)} and logits {tuple(logits.shape)} must both have shape (N, W)")
    zero = ops.zeros((1, 1), like=logits)
    scale = zero + (filters.temperature or 1.0)
    check_floating(scale.dtype == zero.dtype, logits.dtype)
    at, log_probs, _, valid = _choose(ops, logits / scale, random, filters)
    return Sample(ops.where(valid, ops.take(tokens, at[:, None])[:, 0], -1), log_probs, None, valid)


def sample_sequences(
    step: Step,
    cache: Cache,
    dev: Placed,
    random: Random,
    *,
    ops: Operations,
    batch: int,
    max_length: int,
    samples: int = 1,
    start_token: int = 0,
    **options: Unpack[FilterOptions],
) -> Sequences:
    """Return `samples` sequences of the table for each of `batch` inputs, each step drawn as `sample` does.

    dev: from `ops.put`; a `Continuation` begins where sequences stand already.
    step: step(tokens (B * S,), cache, t) -> (logits (B * S, V), cache), where tokens are those chosen at t - 1,
    `start_token` at t = 0 and where a sequence has ended. cache: anything; rows never change places.
    max_length: the most tokens of a sequence, EOS not counted. A table with EOS takes one step more, to draw it; of
    one without, all sequences must have one length. Where the table was put with budgets, what could not be complete
    by then is not allowed, and of nested tables some of what could, since their distances are upper bounds; else what
    is not complete is flagged in `valid`, as are rows whose model has no distribution.
    random: as in `sample`; of uniform numbers, (steps, B * S, 2). options: see `FilterOptions`.

    Without filters log_probs + log_mass is the log-probability of a sequence under the model; of several end tokens,
    with the one that was drawn.

    Raises TypeError; ValueError if nothing in the table is complete within max_length.
    """
    filters = _filters(**options)
    given, (dev, depth) = dev, table_of(dev)
    _check_run(dev, depth, batch, samples, max_length)
    most = None if dev.max_length is None else dev.max_length - depth
    steps = max_length if most is None else min(max_length, most)
    shortened = most is None or steps < most
    budgets = shortened and counts_tokens(dev)
    fixed = dev.eos is None
    rows = batch * samples
    if isinstance(given, Continuation):
        state = start_of(ops, given, batch).state
        state = ops.gather(state, ops.arange(rows, like=state.node) // samples)
    else:
        state = ops.start(dev, rows)
    tokens = ops.first_tokens(dev, cache, rows, start_token)
    count = ops.zeros((rows,), like=tokens)
    lengths, nodes = count, ops.zeros((rows,), like=state.node) + dev.dead
    live = tokens == tokens
    done = ~live
    written_so_far, log_probs, log_mass = [], None, None
    for t in range(steps if fixed else steps + 1):
        logits, cache = step(tokens, cache, t)
        now, random = _split(ops, random)
        drawn = sample(
            dev, logits, state, now, ops=ops, **filters._asdict(), level=depth + t if dev.is_trie else None,
            remaining=count + (max_length - t) if budgets else None,
        )  # fmt: skip
        if log_probs is None:
            log_probs = log_mass = ops.zeros((rows,), like=drawn.log_probs)
        going = live & drawn.valid
        log_probs = ops.where(going, log_probs + drawn.log_probs, log_probs)
        log_mass = ops.where(going, log_mass + drawn.log_mass, log_mass)
        live = going
        if not fixed:
            ends = going & is_end(dev, drawn.tokens)
            nodes, done, live = ops.where(ends, state.node, nodes), done | ends, going & ~ends
        if t == steps:
            break
        written_so_far.append(ops.where(live, drawn.tokens, -1)[:, None])
        lengths = lengths + ops.where(live, 1, 0)
        state = ops.advance(dev, state, written_so_far[-1][:, 0])
        tokens = ops.where(live, drawn.tokens, start_token)
    valid, nodes = (live, state.node) if fixed else (done, nodes)
    found = ops.concatenate(written_so_far, 1)
    return Sequences(
        ops.where(valid[:, None], found, -1).reshape(batch, samples, -1),
        ops.where(valid, lengths, 0).reshape(batch, samples),
        ops.where(valid, log_probs, -float("inf")).reshape(batch, samples),
        ops.where(valid, log_mass, -float("inf")).reshape(batch, samples),
        valid.reshape(batch, samples),
        ops.where(valid, nodes, dev.dead).reshape(batch, samples),
    )


# ------------------------------------------------------------------------------------------------ one draw


def _choose(
    ops: Operations, x: Array, random: Random, filters: _Filters, sound: Array | None = None
) -> tuple[Any, Any, Any, Any]:
    """Return where each row of tempered logits (N, W) was drawn, its log-probability, their log-sum and which hold.

    -inf is what is not allowed. sound: (N,) rows that may be drawn from.
    """
    total = ops.logsumexp(x)
    valid = _finite(total) if sound is None else _finite(total) & sound
    x = ops.where(valid[:, None], x, -float("inf"))
    if filters.temperature == 0:
        at = x.argmax(-1)
        return at, ops.where(valid, ops.zeros((x.shape[0],), like=total), -float("inf")), total, valid
    floor = _floor(ops, x, ops.where(valid, total, 0.0)[:, None], filters)
    kept = total
    if floor is not None:
        x = ops.where(x >= floor, x, -float("inf"))
        kept = ops.logsumexp(x)
    kept = ops.where(valid, kept, 0.0)
    at = _draw(ops, ops.exp(x - kept[:, None]), _uniform(ops, random, (x.shape[0], 2), x))
    log_probs = ops.take(x, at[:, None])[:, 0] - kept
    log_probs = ops.where(log_probs > 0, 0.0, log_probs)  # by rounding
    return at, ops.where(valid, log_probs, -float("inf")), total, valid


def _floor(ops: Operations, x: Array, total: Array, filters: _Filters) -> Any:
    """Return the least of x (N, W) that the filters keep, (N, 1), or None without filters; total (N, 1): log-sum."""
    top_p = None if filters.top_p == 1 else filters.top_p
    min_p = None if filters.min_p == 0 else filters.min_p
    floor = None
    largest = x  # the largest of each row, in order, as far as they are needed
    if filters.top_k is not None:
        largest, _ = ops.top_k(x, min(filters.top_k, x.shape[1]))
        floor = largest[:, -1:]
    if top_p is not None:
        if filters.top_k is None:
            largest = ops.sort(x)
        else:  # renormalised; those as probable as the k-th are kept with it
            left = ops.logsumexp(ops.where(x >= floor, x, -float("inf")))[:, None]
            total = ops.where(_finite(left), left, 0.0)
        p = ops.exp(largest - total)
        before = p.cumsum(-1) - p  # what those further in front hold
        before = ops.where(before > 0, before, 0.0)
        last = ops.where(before < top_p, 1, 0).sum(-1) - 1
        last = ops.where(last > 0, last, 0)  # a top_p that is 0 in the logits' type keeps the best
        floor = ops.take(largest, last[:, None])
    if min_p is not None:
        best = ops.take(x, x.argmax(-1)[:, None])
        least = best + math.log(min_p)
        floor = least if floor is None else ops.where(floor > least, floor, least)
    return floor


def _draw(ops: Operations, weights: Array, uniforms: Array) -> Any:
    """Return where each row of weights (N, W) is drawn, given two uniform numbers (N, 2).

    Wide rows are drawn from in two goes, a block and one of its weights: a running sum over 100,000 weights in 32 bits
    would round more than small weights are, and takes longer.
    """
    rows, width = weights.shape
    if width <= _WHOLE:
        return _draw_one(ops, weights, uniforms[:, 1])
    if width % _BLOCK:
        padding = ops.zeros((rows, _BLOCK - width % _BLOCK), like=weights)
        weights = ops.concatenate([weights, padding], 1)
    blocks = weights.reshape(rows, -1, _BLOCK)
    block = _draw_one(ops, blocks.sum(-1), uniforms[:, 0])
    inside = blocks[ops.arange(rows, like=block), block]
    return block * _BLOCK + _draw_one(ops, inside, uniforms[:, 1])


def _draw_one(ops: Operations, weights: Array, uniform: Array) -> Any:
    """Return the first place in each row (N, W) at which the running sum is above a share (N,) of all.

    Never one of weight 0, whichever way a device rounds its sums.
    """
    running = weights.cumsum(-1)
    above = (weights > 0) & (running > (uniform * running[:, -1])[:, None])
    return ops.where(above.any(-1), ops.where(above, 1, 0).argmax(-1), weights.argmax(-1))


def _finite(x: Array) -> Any:
    """Return where x is neither infinite nor NaN."""
    return (x > -float("inf")) & (x < float("inf"))


# ---------------------------------------------------------------------------------------------- random numbers


def _are_uniforms(random: Random) -> bool:
    return "float" in str(getattr(random, "dtype", ""))


def _uniform(ops: Operations, random: Random, shape: tuple[int, ...], like: Array) -> Any:
    """Return uniform numbers of a shape: drawn, or those that were given."""
    if not _are_uniforms(random):
        return ops.uniform(random, shape, like)
    if tuple(random.shape) != shape:
        raise ValueError(f"the uniform numbers have shape {tuple(random.shape)}, {shape} are needed")
    return random


def _split(ops: Operations, random: Random) -> tuple[Any, Any]:
    """Return what to draw from now and what to draw from later; of numbers, or a tuple, the first and the rest."""
    if isinstance(random, tuple) or _are_uniforms(random):
        if len(random) == 0:
            raise ValueError("too few uniform numbers: there must be some for each step")
        return random[0], random[1:]
    now, later = ops.split(random)
    return now, later


# ------------------------------------------------------------------------------------------------------ checks


def _number(name: str, value: object, kind: type, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, known when a step is traced, not a {type(value).__name__}")


def _filters(
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None
) -> _Filters:
    """Return checked options; TypeError, ValueError."""
    _number("temperature", temperature, Real, "a number")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be finite and 0 or more; 0 takes the best token")
    if 0 < temperature < _COLDEST:
        raise ValueError(f"temperature={temperature} is too small to divide logits by: 0 takes the best token")
    if top_k is not None:
        _number("top_k", top_k, Integral, "an integer")
        if top_k < 1:
            raise ValueError(f"top_k={top_k} must be 1 or more; leave it out to keep all that is allowed")
    if top_p is not None:
        _number("top_p", top_p, Real, "a number")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p={top_p} must be above 0 and at most 1; 1 keeps all that is allowed")
    if min_p is not None:
        _number("min_p", min_p, Real, "a number")
        if not 0 <= min_p <= 1:
            raise ValueError(f"min_p={min_p} must be between 0 and 1; 0 keeps all that is allowed")
    return _Filters(
        float(temperature), None if top_k is None else int(top_k), top_p and float(top_p), min_p and float(min_p)
    )


def _check_dev(dev: Placed) -> None:
    if not hasattr(dev, "min_length"):
        raise TypeError(f"dev must come from ops.put, not be a {type(dev).__name__}")


def _check_run(dev: Placed, depth: int, batch: int, samples: int, max_length: int) -> None:
    """Raise unless sequences can be drawn: TypeError, ValueError."""
    if batch < 1 or samples < 1 or max_length < 1:
        raise ValueError(f"batch, samples and max_length must be positive, not {batch}, {samples} and {max_length}")
    _check_dev(dev)
    check_room(dev, depth, max_length)
    if dev.max_length is not None and dev.max_length <= depth:
        raise ValueError(f"the table allows no more than {depth} tokens: there is nothing to draw")
    if dev.eos is None and dev.fixed_length is None:
        raise ValueError(
            "the table has no EOS and its sequences have different lengths, so that nothing says how probable it is "
            "that one ends: compile it with eos="
        )
