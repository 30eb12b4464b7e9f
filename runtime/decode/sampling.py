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
from ..device.checks import check_floating, check_logits, check_rows, is_end
from ..device.device_table import AnyState
from ..device.on_demand import counts_tokens
from ..device.static_width import NARROW, edges_of, static_width
from .beam import Step
from .continuation import Continuation, check_room, start_of, table_of

WHOLE = 1024  # weights that are drawn from in one go; of more, first a block is drawn
BLOCK = 256
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


class CheckedFilters(NamedTuple):
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
    remaining: (N,) distances, as in `mask_logits`. level: a depth of a trie at which all states are: then only as many
    logits as a state there can allow are looked at, and where a state is of another depth some are left out.
    log_mass: False where nobody reads it: a kernel on a CPU then exponentiates nothing that is not drawn from.

    random: a numpy Generator, a torch.Generator on the device (None for torch's own: `torch.compile` takes no other)
    or a JAX key; or uniform numbers in [0, 1), (N, 2), and then this is a pure function of them.

    Of several end tokens each is drawn as itself. Rows in which nothing is allowed, or is possible, or whose logits
    hold NaN or +inf, are flagged as not valid.

    Raises TypeError, ValueError, VocabularyMismatchError.
    """
    xp = ops.arrays
    filters = _filters(temperature, top_k, top_p, min_p)
    _check_dev(dev)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    width = static_width(dev, level)
    if width is not None and NARROW * width > logits.shape[1]:
        width = None
    if width is None:

        def uniforms() -> Any:
            return _uniform(ops, random, (logits.shape[0], 2), xp.zeros((1, 1), like=logits))

        drawn = ops.draw(dev, logits, state, uniforms, filters, remaining, log_mass)
        if drawn is not None:
            return Sample(*drawn)
    zero = xp.zeros((1, 1), like=logits)
    scale = zero + (filters.temperature or 1.0)
    check_floating(scale.dtype == zero.dtype, logits.dtype)
    # in at least 32 bits; what is neither wide nor tempered is not copied
    x = logits if scale.dtype == logits.dtype and filters.temperature in (0.0, 1.0) else logits / scale
    log_z = xp.logsumexp(x)
    tokens = None
    if width is not None:
        tokens, allowed = ops.allowed_tokens(dev, state, edges_of(dev, width), remaining)
        x = xp.where(allowed, xp.take(x, tokens), -float("inf"))
    else:
        x = ops.mask_logits(dev, x, state, remaining)
    at, log_probs, mass, valid = choose(ops, x, random, filters, _finite(log_z))
    share = xp.where(valid, mass - xp.where(valid, log_z, 0.0), -float("inf"))
    share = xp.where(share > 0, 0.0, share)  # by rounding
    found = at if tokens is None else xp.take(tokens, at[:, None])[:, 0]
    return Sample(xp.where(valid, found, -1), log_probs, share if log_mass else None, valid)


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
    xp = ops.arrays
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
    return xp.where(allowed, tokens, -1), xp.where(allowed, logits, -float("inf"))


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
    xp = ops.arrays
    filters = _filters(temperature, top_k, top_p, min_p)
    if len(logits.shape) != 2 or tuple(tokens.shape) != tuple(logits.shape):
        raise ValueError(f"tokens {tuple(tokens.shape)} and logits {tuple(logits.shape)} must both have shape (N, W)")
    zero = xp.zeros((1, 1), like=logits)
    scale = zero + (filters.temperature or 1.0)
    check_floating(scale.dtype == zero.dtype, logits.dtype)
    at, log_probs, _, valid = choose(ops, logits / scale, random, filters)
    return Sample(xp.where(valid, xp.take(tokens, at[:, None])[:, 0], -1), log_probs, None, valid)


def sample_sequences(
    step: Step,
    cache: Cache,
    dev: Placed,
    random: Random,
    *,
    ops: Operations,
    batch: int,
    max_tokens: int,
    samples: int = 1,
    start_token: int = 0,
    **options: Unpack[FilterOptions],
) -> Sequences:
    """Return `samples` sequences of the table for each of `batch` inputs, each step drawn as `sample` does.

    dev: from `ops.to_device`; a `Continuation` begins where sequences stand already.
    step: step(tokens (B * S,), cache, t) -> (logits (B * S, V), cache), where tokens are those chosen at t - 1,
    `start_token` at t = 0 and where a sequence has ended. cache: anything; rows never change places.
    max_tokens: the most tokens of a sequence, EOS not counted. A table with EOS takes one step more, to draw it; of
    one without, all sequences must have one length. Where the table was put with distances, what could not be complete
    by then is not allowed, and of nested tables some of what could, since their distances are upper bounds; else what
    is not complete is flagged in `valid`, as are rows whose model has no distribution.
    random: as in `sample`; of uniform numbers, (steps, B * S, 2). options: see `FilterOptions`.

    Without filters log_probs + log_mass is the log-probability of a sequence under the model; of several end tokens,
    with the one that was drawn.

    Raises TypeError; ValueError if nothing in the table is complete within max_tokens.
    """
    xp = ops.arrays
    filters = _filters(**options)
    given, (dev, depth) = dev, table_of(dev)
    _check_run(dev, depth, batch, samples, max_tokens)
    most = None if dev.max_length is None else dev.max_length - depth
    steps = max_tokens if most is None else min(max_tokens, most)
    shortened = most is None or steps < most
    distances = shortened and counts_tokens(dev)
    fixed = dev.eos is None
    rows = batch * samples
    if isinstance(given, Continuation):
        state = start_of(ops, given, batch).state
        state = xp.gather(state, xp.arange(rows, like=state.node) // samples)
    else:
        state = ops.start(dev, rows)
    tokens = ops.first_tokens(dev, cache, rows, start_token)
    count = xp.zeros((rows,), like=tokens)
    lengths, nodes = count, xp.zeros((rows,), like=state.node) + dev.dead
    live = tokens == tokens
    done = ~live
    written_so_far, log_probs, log_mass = [], None, None
    for t in range(steps if fixed else steps + 1):
        logits, cache = step(tokens, cache, t)
        now, random = _split(ops, random)
        drawn = sample(
            dev, logits, state, now, ops=ops, **filters._asdict(), level=depth + t if dev.is_trie else None,
            remaining=count + (max_tokens - t) if distances else None,
        )  # fmt: skip
        if log_probs is None:
            log_probs = log_mass = xp.zeros((rows,), like=drawn.log_probs)
        going = live & drawn.valid
        log_probs = xp.where(going, log_probs + drawn.log_probs, log_probs)
        log_mass = xp.where(going, log_mass + drawn.log_mass, log_mass)
        live = going
        if not fixed:
            ends = going & is_end(dev, drawn.tokens)
            nodes, done, live = xp.where(ends, state.node, nodes), done | ends, going & ~ends
        if t == steps:
            break
        written_so_far.append(xp.where(live, drawn.tokens, -1)[:, None])
        lengths = lengths + xp.where(live, 1, 0)
        state = ops.advance(dev, state, written_so_far[-1][:, 0])
        tokens = xp.where(live, drawn.tokens, start_token)
    valid, nodes = (live, state.node) if fixed else (done, nodes)
    found = xp.concatenate(written_so_far, 1)
    return Sequences(
        xp.where(valid[:, None], found, -1).reshape(batch, samples, -1),
        xp.where(valid, lengths, 0).reshape(batch, samples),
        xp.where(valid, log_probs, -float("inf")).reshape(batch, samples),
        xp.where(valid, log_mass, -float("inf")).reshape(batch, samples),
        valid.reshape(batch, samples),
        xp.where(valid, nodes, dev.dead).reshape(batch, samples),
    )


# ------------------------------------------------------------------------------------------------ one draw


def choose(
    ops: Operations, x: Array, random: Random, filters: CheckedFilters, sound: Array | None = None
) -> tuple[Any, Any, Any, Any]:
    """Return where each row of tempered logits (N, W) was drawn, its log-probability, their log-sum and which hold.

    -inf is what is not allowed. sound: (N,) rows that may be drawn from.
    """
    xp = ops.arrays
    total = xp.logsumexp(x)
    valid = _finite(total) if sound is None else _finite(total) & sound
    x = xp.where(valid[:, None], x, -float("inf"))
    if filters.temperature == 0:
        at = x.argmax(-1)
        return at, xp.where(valid, xp.zeros((x.shape[0],), like=total), -float("inf")), total, valid
    floor = _floor(ops, x, xp.where(valid, total, 0.0)[:, None], filters)
    kept = total
    if floor is not None:
        x = xp.where(x >= floor, x, -float("inf"))
        kept = xp.logsumexp(x)
    kept = xp.where(valid, kept, 0.0)
    at = draw(ops, xp.exp(x - kept[:, None]), _uniform(ops, random, (x.shape[0], 2), x))
    log_probs = xp.take(x, at[:, None])[:, 0] - kept
    log_probs = xp.where(log_probs > 0, 0.0, log_probs)  # by rounding
    return at, xp.where(valid, log_probs, -float("inf")), total, valid


def _floor(ops: Operations, x: Array, total: Array, filters: CheckedFilters) -> Any:
    """Return the least of x (N, W) that the filters keep, (N, 1), or None without filters; total (N, 1): log-sum."""
    xp = ops.arrays
    top_p = None if filters.top_p == 1 else filters.top_p
    min_p = None if filters.min_p == 0 else filters.min_p
    floor = None
    largest = x  # the largest of each row, in order, as far as they are needed
    if filters.top_k is not None:
        largest, _ = xp.top_k(x, min(filters.top_k, x.shape[1]))
        floor = largest[:, -1:]
    if top_p is not None:
        if filters.top_k is None:
            largest = xp.sort(x)
        else:  # renormalized; those as probable as the k-th are kept with it
            left = xp.logsumexp(xp.where(x >= floor, x, -float("inf")))[:, None]
            total = xp.where(_finite(left), left, 0.0)
        p = xp.exp(largest - total)
        before = p.cumsum(-1) - p  # what those further in front hold
        before = xp.where(before > 0, before, 0.0)
        last = xp.where(before < top_p, 1, 0).sum(-1) - 1
        last = xp.where(last > 0, last, 0)  # a top_p that is 0 in the logits' type keeps the best
        floor = xp.take(largest, last[:, None])
    if min_p is not None:
        best = xp.take(x, x.argmax(-1)[:, None])
        least = best + math.log(min_p)
        floor = least if floor is None else xp.where(floor > least, floor, least)
    return floor


def draw(ops: Operations, weights: Array, uniforms: Array) -> Any:
    """Return where each row of weights (N, W) is drawn, given two uniform numbers (N, 2).

    Wide rows are drawn from in two goes, a block and one of its weights: a running sum over 100,000 weights in 32 bits
    would round more than small weights are, and takes longer.
    """
    xp = ops.arrays
    rows, width = weights.shape
    if width <= WHOLE:
        return draw_one(ops, weights, uniforms[:, 1])
    if width % BLOCK:
        padding = xp.zeros((rows, BLOCK - width % BLOCK), like=weights)
        weights = xp.concatenate([weights, padding], 1)
    blocks = weights.reshape(rows, -1, BLOCK)
    block = draw_one(ops, blocks.sum(-1), uniforms[:, 0])
    inside = blocks[xp.arange(rows, like=block), block]
    return block * BLOCK + draw_one(ops, inside, uniforms[:, 1])


def draw_one(ops: Operations, weights: Array, uniform: Array) -> Any:
    """Return the first place in each row (N, W) at which the running sum is above a share (N,) of all.

    Never one of weight 0, whichever way a device rounds its sums.
    """
    xp = ops.arrays
    running = weights.cumsum(-1)
    above = (weights > 0) & (running > (uniform * running[:, -1])[:, None])
    return xp.where(above.any(-1), xp.where(above, 1, 0).argmax(-1), weights.argmax(-1))


def _finite(x: Array) -> Any:
    """Return where x is neither infinite nor NaN."""
    return (x > -float("inf")) & (x < float("inf"))


# ---------------------------------------------------------------------------------------------- random numbers


def _are_uniforms(random: Random) -> bool:
    return "float" in str(getattr(random, "dtype", ""))


def _uniform(ops: Operations, random: Random, shape: tuple[int, ...], like: Array) -> Any:
    """Return uniform numbers of a shape: drawn, or those that were given."""
    if not _are_uniforms(random):
        return ops.arrays.uniform(random, shape, like)
    if tuple(random.shape) != shape:
        raise ValueError(f"the uniform numbers have shape {tuple(random.shape)}, {shape} are needed")
    return random


def _split(ops: Operations, random: Random) -> tuple[Any, Any]:
    """Return what to draw from now and what to draw from later; of numbers, or a tuple, the first and the rest."""
    if isinstance(random, tuple) or _are_uniforms(random):
        if len(random) == 0:
            raise ValueError("too few uniform numbers: there must be some for each step")
        return random[0], random[1:]
    now, later = ops.arrays.split(random)
    return now, later


# ------------------------------------------------------------------------------------------------------ checks


def _number(name: str, value: object, kind: type, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, known when a step is traced, not a {type(value).__name__}")


def _filters(
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None
) -> CheckedFilters:
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
    return CheckedFilters(
        float(temperature), None if top_k is None else int(top_k), top_p and float(top_p), min_p and float(min_p)
    )


def _check_dev(dev: Placed) -> None:
    if not hasattr(dev, "min_length"):
        raise TypeError(f"dev must come from ops.to_device, not be a {type(dev).__name__}")


def _check_run(dev: Placed, depth: int, batch: int, samples: int, max_tokens: int) -> None:
    """Raise unless sequences can be drawn: TypeError, ValueError."""
    if batch < 1 or samples < 1 or max_tokens < 1:
        raise ValueError(f"batch, samples and max_tokens must be positive, not {batch}, {samples} and {max_tokens}")
    _check_dev(dev)
    check_room(dev, depth, max_tokens)
    if dev.max_length is not None and dev.max_length <= depth:
        raise ValueError(f"the table allows no more than {depth} tokens: there is nothing to draw")
    if dev.eos is None and dev.fixed_length is None:
        raise ValueError(
            "the table has no EOS and its sequences have different lengths, so that nothing says how probable it is "
            "that one ends: compile it with eos="
        )
