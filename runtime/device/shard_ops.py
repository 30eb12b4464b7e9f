"""Beam search on a sorted matrix in shards, written once against the array functions of an operations module.

The first two tokens are chosen in the head, on all devices alike. From then on the rows of a beam are in one shard, and
its device alone follows it. All devices choose the same beams at each step, in one of two ways. Where few tokens may
follow, the devices sum what may follow each beam: one of them has it, the others have zeros. Else each chooses the best
of its own beams, and all take the best of these.

Between the third token and the last but one a state is of the device that holds it, and dead on others.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ...table.sharded_matrix import HEAD
from . import matrix_ops
from .backend import Array, Backend, Cache
from .device_shards import Collectives, DeviceShards
from .device_table import (
    AnyMatrixState,
    FilteredState,
    MatrixState,
    Selection,
    check_floating,
    check_logits,
    check_rows,
)

_GATHERED = 2  # numbers for each candidate that devices gather: a score and a place


def start(ops: Backend, dev: DeviceShards, batch: int) -> AnyMatrixState:
    """Return the state of `batch` sequences with nothing written yet; under a filter without rows, the dead one."""
    return matrix_ops.start(ops, dev.head, batch)


def first_tokens(ops: Backend, dev: DeviceShards, cache: Cache, count: int, token: int) -> Array:
    """Return `count` copies of the token a model is first fed with, where the head is."""
    return matrix_ops.first_tokens(ops, dev.head, cache, count, token)


def select(
    ops: Backend,
    dev: DeviceShards,
    logits: Array,
    state: AnyMatrixState,
    scores: Array,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, as of a table.

    logits: (B * m, V), alike on all devices. level: the tokens that all sequences have. A state has the pair's number
    up to depth 2, a row of its device's up to depth L - 1, and at depth L its row among all.
    """
    check_floating("float" in str(logits.dtype), logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.depth.shape)
    matrix_ops.check_filters(dev.head, state)
    run, sizes = dev.collectives.run, (beams, level, renormalise)
    if level < HEAD:
        shared: tuple[Any, ...] = (dev.head, logits, tuple(state), scores)
        best, parents, tokens, reached = run(_in_head, (ops, *sizes), shared, (), (False,) * 4)
        return Selection(best, parents, tokens, _state(reached))
    statics = (ops, dev.collectives, dev.count, *sizes)
    spread = level > HEAD  # each device has states of its own
    last = level + 1 >= dev.length
    shared = (dev.pair_starts, logits, scores, () if spread else tuple(state[:2]), tuple(state[3:]))
    own = (dev.part, dev.begin, tuple(state[:2]) if spread else ())
    best, parents, tokens, depth, filters, reached = run(
        _in_shards, statics, shared, own, (False, False, False, False, False, not last)
    )
    return Selection(best, parents, tokens, _state((*reached, depth, *filters)))


def _state(columns: tuple[Array, ...]) -> MatrixState | FilteredState:
    """Return the state of these columns; the fourth is the number of a filter."""
    return FilteredState(*columns) if len(columns) == len(FilteredState._fields) else MatrixState(*columns)


def _in_head(ops: Backend, beams: int, level: int, renormalise: bool, shared: Any, own: Any) -> tuple[Any, ...]:
    """Return what `select` does at the first tokens: the same on all devices, without a collective."""
    head, logits, state, scores = shared
    found = matrix_ops.select(ops, head, logits, _state(state), scores, beams, level, renormalise)
    parents = found.parents
    if parents is None:
        parents = ops.zeros(found.tokens.shape, like=found.tokens) + ops.arange(beams, like=found.tokens)
    return found.scores, parents, found.tokens, tuple(found.state)


def _in_shards(
    ops: Backend, collectives: Collectives, count: int, beams: int, level: int, renormalise: bool,
    shared: Any, own: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Return what `select` does from the third token on, on one device."""
    pair_starts, logits, scores, in_head, filters = shared
    part, begin, rows = own
    number = filters[0][:, None] if filters else None
    low, high = _own_rows(ops, part, pair_starts, begin, *in_head) if in_head else rows
    batch, m = scores.shape
    width = part.read(level)
    places = matrix_ops.offered(ops, part, (low[:, None], high[:, None], None, number), level, width, once=True)
    places = places[0], places[1] & (low < high)[:, None]
    in_place = m == beams and part.branches[level] == 1  # nothing branches: each beam goes on in its place
    best, parents, tokens = chosen(
        ops, collectives, part.vocab_size, logits, scores, places, beams, renormalise, in_place
    )
    alive = best > -float("inf")
    at = (parents + m * ops.arange(batch, like=parents)[:, None]).reshape(-1)
    low, high = matrix_ops.follow(
        ops, part, ops.gather(low, at)[:, None], ops.gather(high, at)[:, None], level, tokens.reshape(-1, 1)
    )
    low, high, going = low[:, 0], high[:, 0], alive.reshape(-1)
    here = going & (low < high)
    depth = ops.where(going, level + 1, part.length) + low * 0
    filters = tuple(ops.gather(each, at) for each in filters)
    if level + 1 < part.length:
        return (
            best,
            parents,
            tokens,
            depth,
            filters,
            (ops.where(here, low, part.count), ops.where(here, high, part.count)),
        )
    row = collectives.sum(ops.where(here, low + begin, 0))  # at the end all know where a sequence stands
    row = ops.where(going, row, count)
    return best, parents, tokens, depth, filters, (row, ops.where(going, row + 1, count))


def chosen(
    ops: Backend, collectives: Collectives, vocab_size: int, logits: Array, scores: Array, places: tuple[Array, Array],
    beams: int, renormalise: bool, in_place: bool = False,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return scores, parents and tokens (B, beams) of the best continuations over all devices.

    places: tokens (B * m, w) that a device's own rows offer, and which of them count. in_place: each beam has at most
    one continuation, which takes its place. Where a score is -inf the parent and the token are 0.
    """
    token, inside = places
    (batch, m), width = scores.shape, token.shape[1]
    summed = width <= _GATHERED * collectives.size
    if summed:  # one device has a beam's tokens: the sum of all is that device's
        token = collectives.sum(ops.where(inside, token + 1, 0)) - 1
        inside, token = token >= 0, ops.where(token >= 0, token, 0)
    x = (logits + ops.zeros((1, 1), like=logits)) if renormalise else ops.log_softmax(logits)
    x = ops.where(inside, ops.take(x, ops.where(inside, token, 0)), -float("inf"))
    if renormalise:
        mass = ops.logsumexp(x)[:, None]
        sound = (mass > -float("inf")) & (mass < float("inf"))
        x = ops.where(sound, x - ops.where(sound, mass, 0.0), -float("inf"))
    if in_place:
        best = scores + x.reshape(batch, m)
        best = ops.where(best == best, best, -float("inf"))
        tokens = token.reshape(batch, m)
        parents = ops.zeros(tokens.shape, like=tokens) + ops.arange(m, like=tokens)
    else:
        best, at = ops.top_of_beams(x.reshape(batch, m, width), scores, beams)
        at = ops.integers(at, token)
        parents, tokens = at // width, ops.take(token.reshape(batch, -1), at)
        if not summed:
            best, at = collectives.best(best, parents * vocab_size + tokens, beams, m * vocab_size)
            at = ops.integers(at, token)
            parents, tokens = at // vocab_size, at - at // vocab_size * vocab_size
    alive = best > -float("inf")
    return best, ops.where(alive, parents, 0), ops.where(alive, tokens, 0)


def _own_rows(ops: Backend, part: Any, pair_starts: Array, begin: Array, pair: Array, _: Array) -> tuple[Array, Array]:
    """Return the rows of pairs (n,), by number, on one device; none where another device has them."""
    last = pair_starts.shape[0] - 1
    low = ops.lookup(pair_starts, pair) - begin
    high = ops.lookup(pair_starts, ops.where(pair < last, pair + 1, last)) - begin
    here = (low >= 0) & (high <= part.count) & (low < high)
    word = ops.lookup(part.words[0], ops.where(here, low, 0))
    here = here & (word < 1 << (part.bits * part.per_word))  # behind the own rows lie words above all of rows
    return ops.where(here, low, part.count), ops.where(here, high, part.count)


def refused(name: str) -> Any:
    """Return an operation that raises ValueError: shards have the operations of beam search alone."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"{name} does not take a matrix in shards: beam_search does. Put the whole matrix for others")

    return refuse
