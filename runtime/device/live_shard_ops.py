"""Beam search on a live set in shards: that of `shard_ops`, on base and delta.

The first two tokens are chosen in the head, a live set of pairs. From then on the rows of a beam, of base and delta,
are on one device.
"""

from __future__ import annotations

from typing import Any

from ...table.sharded_matrix import HEAD
from . import live_ops, matrix_ops
from .backend import Array, Backend, Cache
from .device_live import DeviceLive
from .device_live_shards import DeviceLiveShards
from .device_shards import Collectives
from .device_table import LiveState, Selection, check_floating, check_logits, check_rows
from .shard_ops import chosen


def start(ops: Backend, dev: DeviceLiveShards, batch: int) -> LiveState:
    """Return the state of `batch` sequences with nothing written yet: the dead one where nothing is kept."""
    return live_ops.start(ops, dev.head, batch)


def first_tokens(ops: Backend, dev: DeviceLiveShards, cache: Cache, count: int, token: int) -> Array:
    """Return `count` copies of the token a model is first fed with, where the head is."""
    return live_ops.first_tokens(ops, dev.head, cache, count, token)


def select(
    ops: Backend,
    dev: DeviceLiveShards,
    logits: Array,
    state: LiveState,
    scores: Array,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, as of a table.

    logits: (B * m, V), alike on all devices. level: the tokens that all sequences have. A state is of the head up to
    depth 2, of its device's rows up to depth L - 1, and at depth L its node is that of the whole set.
    """
    check_floating("float" in str(logits.dtype), logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.depth.shape)
    run, sizes = dev.collectives.run, (beams, level, renormalise)
    if level < HEAD:
        best, parents, tokens, reached = run(
            _in_head, (ops, *sizes), (dev.head, logits, tuple(state), scores), (), (False,) * 4
        )
        return Selection(best, parents, tokens, LiveState(*reached))
    rows = state.node, state.high, state.delta, state.delta_high
    spread = level > HEAD  # each device has states of its own
    last = level + 1 >= dev.length
    head = () if spread else (dev.head, *rows)
    shared = (logits, scores, state.filter, head)
    own = (dev.part, dev.begins, rows if spread else ())
    best, parents, tokens, depth, number, reached = run(
        _in_shards,
        (ops, dev.collectives, dev.count, *sizes),
        shared,
        own,
        (False, False, False, False, False, not last),
    )
    low, high, delta, delta_high = reached
    return Selection(best, parents, tokens, LiveState(low, high, depth, delta, delta_high, number))


def _in_head(ops: Backend, beams: int, level: int, renormalise: bool, shared: Any, own: Any) -> tuple[Any, ...]:
    """Return what `select` does at the first tokens: the same on all devices, without a collective."""
    head, logits, state, scores = shared
    found = live_ops.select(ops, head, logits, LiveState(*state), scores, beams, level, renormalise)
    return found.scores, found.parents, found.tokens, tuple(found.state)


def _in_shards(
    ops: Backend, collectives: Collectives, count: int, beams: int, level: int, renormalise: bool,
    shared: Any, own: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Return what `select` does from the third token on, on one device."""
    logits, scores, number, in_head = shared
    part, begins, rows = own
    rows = _own_rows(ops, part, in_head[0], in_head[1:], number[:, None]) if in_head else rows
    columns = (*(array[:, None] for array in rows), level, number[:, None])
    places = live_ops.read(ops, part, columns, level)
    batch, m = scores.shape
    best, parents, tokens = chosen(ops, collectives, part.vocab_size, logits, scores, places, beams, renormalise)
    alive = best > -float("inf")
    at = (parents + m * ops.arange(batch, like=parents)[:, None]).reshape(-1)
    columns = (*(ops.gather(array, at)[:, None] for array in rows), level, number)
    found = live_ops.follow(ops, part, columns, level, tokens.reshape(-1, 1))
    low, high, delta, delta_high = (array[:, 0] for array in found)
    going = alive.reshape(-1)
    number = ops.gather(number, at)
    depth = ops.where(going, level + 1, part.length) + low * 0
    old, new = going & (low < high), going & (delta < delta_high)
    size, capacity = part.base.count, part.delta.count
    if level + 1 < part.length:
        here = (ops.where(old, low, size), ops.where(old, high, size))
        added = (ops.where(new, delta, capacity), ops.where(new, delta_high, capacity))
        return best, parents, tokens, depth, number, (*here, *added)
    node = ops.where(old, low + begins[:1], ops.where(new, delta + (begins[1:] + (count + 1)), 0))
    node = ops.where(going, collectives.sum(node), count)  # at the end all know where a sequence stands
    added = node > count
    delta = ops.where(added, node - (count + 1), capacity)
    high = ops.where(node < count, node + 1, count)
    return best, parents, tokens, depth, number, (node, high, delta, ops.where(added, delta + 1, capacity))


def _own_rows(
    ops: Backend, part: DeviceLive, head: DeviceLive, rows: tuple[Array, ...], number: Array
) -> tuple[Array, ...]:
    """Return the rows on one device, of base and delta, that begin with pairs (n,) of the head; none where it has none.

    rows: of the head, what a `LiveState` says.
    """
    node, _, delta, _ = rows
    size, capacity = part.base.count, part.delta.count
    in_base, dead = (node < head.base.count)[:, None], (node == head.base.count)[:, None]
    low = ops.zeros((node.shape[0], 1), like=node)
    own = (low, low + part.sizes[:1], low, low + part.sizes[1:])
    for depth in range(HEAD):
        token = ops.where(
            in_base,
            matrix_ops.tokens_at(ops, head.base, ops.where(in_base, node[:, None], 0), depth),
            matrix_ops.tokens_at(ops, head.delta, ops.where(in_base | dead, 0, delta[:, None]), depth),
        )
        own = live_ops.follow(ops, part, (*own, depth, number), depth, ops.where(dead, 0, token))
    old = matrix_ops.any_kept(ops, part.base, number, own[0], own[1]) & ~dead
    new = matrix_ops.any_kept(ops, part.delta, number, own[2], own[3]) & ~dead
    found = (
        ops.where(old, own[0], size), ops.where(old, own[1], size),
        ops.where(new, own[2], capacity), ops.where(new, own[3], capacity),
    )  # fmt: skip
    return tuple(array[:, 0] for array in found)
