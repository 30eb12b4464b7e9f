"""Operations on a live set: those of `matrix_ops` on its base and its delta, joined.

A state is an interval of rows of each. In the base's some rows may be gone, but in one of the two there is a row of the
set, unless the state is dead. Nothing here has a shape that depends on what is in the set.
"""

from __future__ import annotations

from typing import Any

from ...kernels.limits import UNREACHABLE
from . import matrix_ops
from .backend import Array, Backend, Cache
from .device_live import DeviceLive
from .device_matrix import DeviceMatrix
from .device_table import (
    Candidates,
    LiveState,
    Selection,
    check_floating,
    check_logits,
    check_rows,
    check_sids,
    check_starts,
    check_tokens,
)

Columns = tuple[Array, ...]

_FEW = 64  # rows of an interval that are counted rather than searched
_PAIRS = 4  # by token of the vocabulary: pairs of tokens of base and delta that are compared, rather than marked


def _columns(state: LiveState) -> Columns:
    """Return low and high of the base, of the delta, the depth, and the number of the filter: (n, 1) each."""
    if not isinstance(state, LiveState):
        raise ValueError("the state is not one of a live set: begin with start of what is decoded with")
    node, high, depth, delta, delta_high, number = (array[:, None] for array in state)
    return node, high, delta, delta_high, depth, number


def _is_open(low: Array, high: Array, delta: Array, delta_high: Array) -> Array:
    return (low < high) | (delta < delta_high)


def _offered(
    ops: Backend, dev: DeviceLive, columns: Columns, depth: Array, wide: tuple[int, int], *, once: bool
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return what `matrix_ops.offered` does, of the base and of the delta; wide: how many places are read of each."""
    low, high, delta, delta_high, _, number = columns
    base_parts, delta_parts = (low, high, depth, number), (delta, delta_high, depth, number)
    return (
        matrix_ops.offered(ops, dev.base, base_parts, depth, wide[0], once=once),
        matrix_ops.offered(ops, dev.delta, delta_parts, depth, wide[1], once=once),
    )


def _write(
    ops: Backend, dev: DeviceLive, mask: Array, columns: Columns, depth: Array, wide: tuple[int, int], going: Array
) -> Array:
    """Return a mask (n, V or more) in which what states that are `going` (n, 1) offer is -1; the last is no token."""
    base, delta = _offered(ops, dev, columns, depth, wide, once=False)
    token, inside = (ops.concatenate(list(both), -1) for both in zip(base, delta, strict=True))
    return ops.scatter(mask, ops.where(inside & going, token, mask.shape[1] - 1), -1)


def _read(ops: Backend, dev: DeviceLive, columns: Columns, depth: Array, wide: tuple[int, int]) -> tuple[Array, Array]:
    """Return tokens (n, k) that states offer at a depth, one for all or (n, 1), and which of them count, each once.

    wide: how many places are read of base and delta.
    """
    (token, inside), (new, is_new) = _offered(ops, dev, columns, depth, wide, once=True)
    known = _known(ops, dev, token, inside, new)
    inside = ops.concatenate([inside, is_new & ~known], -1)
    return ops.concatenate([token, new], -1), inside  # tokens behind the last row are 0


def _are_many(dev: DeviceLive, wide: tuple[int, int]) -> bool:
    """Return whether tokens of base and delta are marked in the vocabulary, which is cheaper than to compare them."""
    return wide[0] * wide[1] > _PAIRS * dev.vocab_size


def _known(ops: Backend, dev: DeviceLive, token: Array, inside: Array, new: Array) -> Array:
    """Return which tokens of the delta (n, d) are among those of the base (n, b) that count."""
    if not _are_many(dev, (token.shape[1], new.shape[1])):
        return ((new[:, :, None] == token[:, None, :]) & inside[:, None, :]).any(-1)
    offered = ops.zeros((token.shape[0], dev.vocab_size + 1), like=dev.base.byte_bits)
    offered = ops.scatter(offered, ops.where(inside, token, dev.vocab_size), 1)
    return ops.take(offered, new) > 0


def read(ops: Backend, dev: DeviceLive, columns: Columns, depth: int) -> tuple[Array, Array]:
    """Return the tokens (n, k) that states offer, and which of these count; each token counts once.

    depth: that of all states. It has no masks.
    """
    return _read(ops, dev, columns, depth, _widths(dev, depth))


def _widths(dev: DeviceLive, depth: int | None = None) -> tuple[int, int]:
    """Return how many places are read of base and delta at a depth, or at any that has no masks."""
    depths = range(dev.base.masked, dev.length) if depth is None else [depth]
    base = max([0, *[dev.base.read(level) for level in depths]])  # torch.compile knows no max with a default
    return base, max([0, *[dev.delta.widths[level] for level in depths]])


def _mask(ops: Backend, dev: DeviceLive, columns: Columns, depth: Array, going: Array) -> Array:
    """Return masks (n, 8 K) of what states that are `going` (n, 1) allow at depths that have masks: -1, else 0."""
    low, high, delta, _, _, which = columns
    number = ops.where(going & (depth == 0), 0, dev.base.masks.shape[0] - 1)
    if dev.base.masked == 2:
        first = ops.where(
            low < high,
            matrix_ops.tokens_at(ops, dev.base, low, 0),
            matrix_ops.tokens_at(ops, dev.delta, delta, 0),
        )
        second = going & (depth == 1)
        after = ops.integers(ops.lookup(dev.base.mask_after, ops.where(second, first, 0)), low)
        number = ops.where(second, after, number)
    return matrix_ops.unfold(ops, dev.base, number, which)


def _allowed(ops: Backend, dev: DeviceLive, state: LiveState, remaining: Array | None) -> Array:
    """Return int32 (n, V or more): -1 for tokens that are allowed from states at any depths, else 0."""
    columns = _columns(state)
    depth = columns[4]
    going = _is_open(*columns[:4]) & (depth < dev.length)
    if remaining is not None:
        going = going & matrix_ops.fits(ops, dev.base, state, remaining)
    mask = _mask(ops, dev, columns, depth, going)
    wide = _widths(dev)
    if not wide[0]:
        return mask
    return _write(ops, dev, mask, columns, ops.where(going, depth, 0), wide, going & (depth >= dev.base.masked))


def _scored(ops: Backend, dev: DeviceLive, x: Array, state: LiveState, level: int) -> tuple[Array, Array]:
    """Return x (n, V') of what states at one depth allow (n, w), else -inf, and the tokens; None: all of V."""
    low, high, delta, delta_high, depth, number = _columns(state)
    here = depth == level
    columns = low, ops.where(here, high, low), delta, ops.where(here, delta_high, delta), depth, number
    if level >= dev.length:
        return ops.where(low < 0, x[:, :1], -float("inf")), low * 0
    if level < dev.base.masked:
        mask = _mask(ops, dev, columns, depth, _is_open(*columns[:4]))
        return ops.keep(x[:, : dev.vocab_size], mask, dev.vocab_size), None
    wide = _widths(dev, level)
    if _are_many(dev, wide):
        mask = ops.zeros((low.shape[0], dev.vocab_size + 1), like=dev.base.byte_bits)
        return ops.keep(
            x[:, : dev.vocab_size], _write(ops, dev, mask, columns, level, wide, low == low), dev.vocab_size
        ), None
    token, inside = _read(ops, dev, columns, level, wide)
    return ops.where(inside, ops.take(x, token), -float("inf")), token


def follow(ops: Backend, dev: DeviceLive, columns: Columns, depth: Array, token: Array) -> Columns:
    """Return the rows that have a token (n, k) at a depth, one for all or (n, 1): of the base and of the delta."""
    low, high, delta, delta_high = columns[:4]
    return *_rows_of(ops, dev.base, low, high, depth, token), *_rows_of(ops, dev.delta, delta, delta_high, depth, token)


def _rows_of(ops: Backend, dev: DeviceMatrix, low: Array, high: Array, depth: Array, token: Array) -> Columns:
    """Return the rows of low .. high (n, 1) that have a token (n, k) at a depth, as `follow` does.

    Short intervals are counted in place of searched: in a second word, a search is many small operations.
    """
    if not isinstance(depth, int) or depth < dev.masked or dev.widths[depth] > _FEW or token.shape[1] > 1:
        return matrix_ops.follow(ops, dev, low, high, depth, token)
    row = low + ops.arange(dev.widths[depth], like=dev.steps)
    held, inside = matrix_ops.tokens_at(ops, dev, row, depth), row < high
    lower = low + ops.integers((inside & (held < token)).sum(-1)[:, None], low)
    return lower, lower + ops.integers((inside & (held == token)).sum(-1)[:, None], low)


def _reached(ops: Backend, dev: DeviceLive, rows: Columns, depth: Array, alive: Array, number: Array) -> LiveState:
    """Return the state of these rows and this many tokens, one for all or (n,), where it is alive, else the dead one.

    The node of a whole sequence that the base does not have is its place in the delta, behind the dead state's. Of any
    other prefix that the base does not have it is 0: what a search found there may be the node of the dead state.
    """
    low, high, delta, delta_high = rows
    count, capacity = dev.base.count, dev.delta.count
    held = low < high
    node, high, after = ops.where(alive, ops.where(held, low, 0), count), ops.where(held, high, 0), alive
    if not isinstance(depth, int) or depth >= dev.length:
        added = alive & (depth == dev.length) & ~held
        node, after = ops.where(added, delta + (count + 1), node), alive & ~added
    return LiveState(
        node,
        ops.where(after, high, count),
        ops.where(alive, low * 0 + depth if isinstance(depth, int) else depth, dev.length),
        ops.where(alive, delta, capacity),
        ops.where(alive, delta_high, capacity),
        number,
    )


def _any_kept(ops: Backend, dev: DeviceLive, rows: Columns, number: Array) -> Array:
    """Return whether base or delta has a row in `rows` that is in the set and kept by filters number (n, 1)."""
    low, high, delta, delta_high = rows
    in_base = matrix_ops.any_kept(ops, dev.base, number, low, high)
    return in_base | matrix_ops.any_kept(ops, dev.delta, number, delta, delta_high)


def _check(dev: DeviceLive, logits: Array, state: LiveState) -> None:
    check_floating("float" in str(logits.dtype), logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)


# ------------------------------------------------------------------------------------------------ operations


def start(ops: Backend, dev: DeviceLive, batch: int) -> LiveState:
    """Return the state of `batch` sequences with nothing written yet: the dead one where nothing is kept.

    Filters: the i-th of `of` is that of the i-th share of the batch, which must have equal shares.
    """
    kept = dev.base.kept
    assert kept is not None
    shares = kept.of.shape[0]
    check_starts(shares, batch)
    zero = ops.zeros((batch,), like=dev.base.steps)
    rows = zero, zero + dev.sizes[:1], zero, zero + dev.sizes[1:]
    number = ops.gather(kept.of, ops.arange(batch, like=dev.base.steps) // (batch // shares))
    live = _any_kept(ops, dev, tuple(array[:, None] for array in rows), number[:, None])
    return _reached(ops, dev, rows, zero, live[:, 0], number)


def first_tokens(ops: Backend, dev: DeviceLive, cache: Cache, count: int, token: int) -> Array:
    """Return `count` copies of the token a model is first fed with, where the set is."""
    return ops.zeros((count,), like=dev.base.steps) + token


def accepting(ops: Backend, dev: DeviceLive, state: LiveState) -> Array:
    """Return whether each sequence is complete: bool (B,)."""
    return (state.depth == dev.length) & (state.node != dev.base.count)


def distance(ops: Backend, dev: DeviceLive, state: LiveState) -> Array:
    """Return the tokens (B,) that each sequence lacks."""
    alive = (state.node < state.high) | (state.delta < state.delta_high)
    return ops.where(alive, dev.length - state.depth, UNREACHABLE)


def bitmask(ops: Backend, dev: DeviceLive, state: LiveState, remaining: Array | None = None) -> Array:
    """Return the tokens allowed in each state, packed, as of a table."""
    return ops.pack(_allowed(ops, dev, state, remaining)[:, : dev.vocab_size])


def mask_logits(
    ops: Backend, dev: DeviceLive, logits: Array, state: LiveState, remaining: Array | None = None
) -> Array:
    """Return logits (B, V') with -inf at every token that is not allowed; what is allowed is left untouched."""
    _check(dev, logits, state)
    return ops.keep(logits, _allowed(ops, dev, state, remaining), dev.vocab_size)


def mask_logits_(
    ops: Backend, dev: DeviceLive, logits: Array, state: LiveState, remaining: Array | None = None
) -> Array:
    """Mask logits (B, V') as `mask_logits` does, in place, and return them."""
    logits[...] = mask_logits(ops, dev, logits, state, remaining)
    return logits


def candidates(
    ops: Backend, dev: DeviceLive, logits: Array, state: LiveState, width: int, level: int | None = None
) -> Candidates:
    """Return the `width` best allowed continuations of each row, best first.

    level: the depth of all states, where it is known; a state of another depth then has none.
    """
    _check(dev, logits, state)
    log_probs = ops.log_softmax(logits)
    if level is None:
        scores, token = ops.keep(log_probs, _allowed(ops, dev, state, None), dev.vocab_size), None
    else:
        scores, token = _scored(ops, dev, log_probs, state, level)
    best, at = ops.top_k(ops.where(scores == scores, scores, -float("inf")), width)
    alive = best > -float("inf")
    columns = _columns(state)
    depth = columns[4]
    tokens = ops.where(alive, ops.integers(at, depth) if token is None else ops.take(token, at), 0)
    known = level is not None and level < dev.length
    rows = follow(ops, dev, columns, level if known else ops.where(depth < dev.length, depth, 0), tokens)
    number = columns[5] + tokens * 0
    return Candidates(best, tokens, _reached(ops, dev, rows, depth + 1 + tokens * 0, alive, number))


def select(
    ops: Backend,
    dev: DeviceLive,
    logits: Array,
    state: LiveState,
    scores: Array,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, as of a table."""
    _check(dev, logits, state)
    batch, m = scores.shape
    if renormalise:
        x, token = _scored(ops, dev, logits + ops.zeros((1, 1), like=logits), state, level)
        mass = ops.logsumexp(x)[:, None]
        sound = (mass > -float("inf")) & (mass < float("inf"))
        x = ops.where(sound, x - ops.where(sound, mass, 0.0), -float("inf"))
    else:
        x, token = _scored(ops, dev, ops.log_softmax(logits), state, level)
    best, at = ops.top_of_beams(x.reshape(batch, m, -1), scores, beams)
    at = ops.integers(at, state.node)
    width = x.shape[1]
    parents = at // width
    tokens = at - parents * width if token is None else ops.take(token.reshape(batch, -1), at)
    row = (parents + m * ops.arange(batch, like=at)[:, None]).reshape(-1)
    columns: Any = tuple(ops.gather(array, row)[:, None] for array in state)
    columns = columns[0], columns[1], columns[3], columns[4], columns[2], columns[5]
    alive = best > -float("inf")
    tokens = ops.where(alive, tokens.reshape(batch, beams), 0)
    rows = columns[:4]
    if level < dev.length:
        rows = follow(ops, dev, columns, level, tokens.reshape(-1, 1))
    rows = tuple(array[:, 0] for array in rows)
    return Selection(best, parents, tokens, _reached(ops, dev, rows, level + 1, alive.reshape(-1), columns[5][:, 0]))


def end_scores(ops: Backend, dev: DeviceLive, logits: Array, state: LiveState, renormalise: bool = False) -> Array:
    """Raise ValueError: there is no EOS."""
    raise ValueError("a live set has no EOS, its sequences end by themselves: compile_sids(.., eos=) has one")


def advance(ops: Backend, dev: DeviceLive, state: LiveState, tokens: Array) -> LiveState:
    """Return the state after one more token (B,) each; the dead state where it was not allowed."""
    check_tokens(state.node.shape[0], tokens.shape, "int" in str(tokens.dtype), tokens.dtype)
    columns = _columns(state)
    depth = columns[4]
    token = ops.integers(tokens, state.node)[:, None]
    inside = (token >= 0) & (token < dev.vocab_size) & _is_open(*columns[:4]) & (depth < dev.length)
    rows = follow(ops, dev, columns, ops.where(inside, depth, 0), ops.where(inside, token, 0))
    alive = (inside & _any_kept(ops, dev, rows, columns[5]))[:, 0]
    return _reached(ops, dev, tuple(array[:, 0] for array in rows), state.depth + 1, alive, state.filter)


def log_mass(ops: Backend, dev: DeviceLive, logits: Array, state: LiveState) -> Array:
    """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold."""
    return ops.logsumexp(mask_logits(ops, dev, ops.log_softmax(logits), state))


def contains(ops: Backend, dev: DeviceLive, sids: Array) -> Array:
    """Return whether each row of sids (N, L) is in the set: bool (N,)."""
    check_sids(sids.shape)
    state = start(ops, dev, sids.shape[0])
    for depth in range(sids.shape[1]):
        state = advance(ops, dev, state, sids[:, depth])
    return accepting(ops, dev, state)


def allowed_tokens(
    ops: Backend, dev: DeviceLive, state: LiveState, width: int, remaining: Array | None = None
) -> tuple[Array, Array]:
    """Return tokens (B, width) that each state allows, of those that are read of it, and which there are: each once.

    Tokens ascend, 0 where there is none. They are all that are allowed where `width` is that of the depth's `Level` or
    more, and that is not `dense`.
    """
    columns = _columns(state)
    depth = columns[4]
    going = _is_open(*columns[:4]) & (depth < dev.length)
    if remaining is not None:
        going = going & matrix_ops.fits(ops, dev.base, state, remaining)
    base, delta = _widths(dev)
    token, inside = _read(ops, dev, columns, ops.where(going, depth, 0), (max(1, min(base, width)), max(1, delta)))
    key = ops.where(inside & going, -token, -dev.vocab_size)
    if width > key.shape[1]:
        padding = ops.zeros((key.shape[0], width - key.shape[1]), like=key) - dev.vocab_size
        key = ops.concatenate([key, padding], -1)
    key = ops.sort(key)[:, :width]  # the smallest token first
    allowed = key > -dev.vocab_size
    return ops.where(allowed, -key, 0), allowed
