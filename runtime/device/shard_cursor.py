"""Sorted matrices and live sets in shards as kinds of constraints, which have the operations of beam search alone.

The first two tokens are chosen in the head, on all devices alike. From then on the rows of a beam are in one shard, and
its device alone follows it. All devices choose the same beams at each step, in one of two ways. Where few tokens may
follow, the devices sum what may follow each beam: one of them has it, the others have zeros. Else each chooses the best
of its own beams, and all take the best of these.

Between the third token and the last but one a state is of the device that holds it, and dead on others.
"""

from __future__ import annotations

from typing import Any

from ...table.sharded_matrix import HEAD
from . import live_cursor, matrix_cursor
from .backend import Array, Backend, Cache, Offer, Placed, States
from .checks import check_floating, check_logits, check_rows
from .cursor import Cursor
from .device_matrix import DeviceMatrix
from .device_shards import Collectives, DeviceShards
from .device_table import AnyMatrixState, FilteredState, LiveState, MatrixState, Selection

_GATHERED = 2  # numbers for each candidate that devices gather: a score and a place

Rows = tuple[Array, ...]
"""The rows (n,) that begin with prefixes: low and high; of a live set those of the base, then those of the delta."""


class ShardsCursor(Cursor):
    """A sorted matrix over the devices of a mesh, with filters or without."""

    has = ("start", "first_tokens", "select")
    refusal = "does not take a matrix in shards: beam_search does. Put the whole matrix for others"

    def check_state(self, dev: Placed, state: States) -> None:
        self.kinds.of(dev.head).check_state(dev.head, state)

    def start(self, dev: Placed, batch: int) -> Any:
        return self.kinds.of(dev.head).start(dev.head, batch)

    def first_tokens(self, dev: Placed, cache: Cache, count: int, token: int) -> Array:
        return self.kinds.of(dev.head).first_tokens(dev.head, cache, count, token)

    def select(
        self,
        dev: Placed,
        logits: Array,
        state: States,
        scores: Array,
        beams: int,
        level: int,
        renormalize: bool = False,
    ) -> Selection:
        """Return the `beams` best continuations over all beams of each batch element, as of a table.

        logits: (B * m, V), alike on all devices. level: the tokens that all sequences have. A state has rows of the
        head up to depth 2, of its device up to depth L - 1, and at depth L those of the whole set.
        """
        check_floating(self.ops.is_floating(logits), logits.dtype)
        check_logits(dev.vocab_size, tuple(logits.shape))
        check_rows(logits.shape[0], state.depth.shape)
        self.check_state(dev, state)
        run, sizes = dev.collectives.run, (beams, level, renormalize)
        if level < HEAD:
            found = run(_in_head, (self, *sizes), (dev.head, logits, tuple(state), scores), (), (False,) * 4)
            best, parents, tokens, columns = found
            return Selection(best, parents, tokens, type(state)(*columns))
        statics = (self, dev.collectives, dev.count, *sizes)
        spread = level > HEAD  # each device has states of its own
        last = level + 1 >= dev.length
        rows, filters = self.rows_of(state)
        shared = (self.head_arrays(dev, spread), logits, scores, () if spread else rows, filters)
        own = (dev.part, self.begins(dev), rows if spread else ())
        is_own = (False, False, False, False, False, not last)
        best, parents, tokens, depth, filters, reached = run(_in_shards, statics, shared, own, is_own)
        return Selection(best, parents, tokens, self.state_of(reached, depth, filters))

    # ------------------------------------------------------------------------------------------- of a sorted matrix

    def rows_of(self, state: States) -> tuple[Rows, tuple[Array, ...]]:
        """Return the rows of a state, and the number of its filter, if there is one."""
        return tuple(state[:2]), tuple(state[3:])

    def state_of(self, rows: Rows, depth: Array, filters: tuple[Array, ...]) -> AnyMatrixState:
        """Return the state that has these rows."""
        return self.state_of_columns((*rows, depth, *filters))

    def state_of_columns(self, columns: tuple[Array, ...]) -> AnyMatrixState:
        """Return the state that has these arrays."""
        return FilteredState(*columns) if len(columns) == len(FilteredState._fields) else MatrixState(*columns)

    def begins(self, dev: DeviceShards) -> Array:
        """Return the number of a device's first row among all."""
        return dev.begin

    def head_arrays(self, dev: DeviceShards, spread: bool) -> Any:
        """Return what `own_rows` reads of the head; spread: states are past it."""
        return dev.pair_starts

    def own_rows(self, part: DeviceMatrix, pair_starts: Any, begin: Array, rows: Rows, number: Array | None) -> Rows:
        """Return the rows of pairs (n,) of the head, on one device; none where another device has them."""
        ops, pair = self.ops, rows[0]
        last = pair_starts.shape[0] - 1
        low = ops.lookup(pair_starts, pair) - begin
        high = ops.lookup(pair_starts, ops.where(pair < last, pair + 1, last)) - begin
        here = (low >= 0) & (high <= part.count) & (low < high)
        word = ops.lookup(part.words[0], ops.where(here, low, 0))
        here = here & (word < 1 << (part.bits * part.per_word))  # behind the own rows lie words above all of rows
        return ops.where(here, low, part.count), ops.where(here, high, part.count)

    def places(self, part: DeviceMatrix, rows: Rows, level: int, number: Array | None) -> tuple[Array, Array]:
        """Return the tokens (n, w) that a device's rows offer, and which of them count."""
        low, high = rows
        parts = (low[:, None], high[:, None], None, number)
        token, inside = matrix_cursor.offered(self.ops, part, parts, level, part.read(level), once=True)
        return token, inside & (low < high)[:, None]

    def is_unbranched(self, part: DeviceMatrix, level: int) -> bool:
        """Return whether every prefix of a depth has one continuation."""
        return part.branches[level] == 1

    def follow_rows(self, part: DeviceMatrix, rows: Rows, level: int, tokens: Array, number: tuple[Array, ...]) -> Rows:
        """Return the rows (n,) that tokens (n, 1) lead to."""
        low, high = (array[:, None] for array in rows)
        return _flat(matrix_cursor.follow(self.ops, part, low, high, level, tokens))

    def within(self, part: DeviceMatrix, rows: Rows, going: Array) -> Rows:
        """Return rows where they are `going` and there are any, else those of the dead state."""
        ops, (low, high) = self.ops, rows
        here = going & (low < high)
        return ops.where(here, low, part.count), ops.where(here, high, part.count)

    def at_end(
        self, part: DeviceMatrix, rows: Rows, begin: Array, count: int, going: Array, collectives: Collectives
    ) -> Rows:
        """Return the rows of whole sequences among those of all devices, which all learn."""
        ops, (low, high) = self.ops, rows
        row = collectives.sum(ops.where(going & (low < high), low + begin, 0))
        row = ops.where(going, row, count)
        return row, ops.where(going, row + 1, count)


class LiveShardsCursor(ShardsCursor):
    """A live set over the devices of a mesh: the head is a live set of pairs."""

    def rows_of(self, state: States) -> tuple[Rows, tuple[Array, ...]]:
        return (state.node, state.high, state.delta, state.delta_high), (state.filter,)

    def state_of(self, rows: Rows, depth: Array, filters: tuple[Array, ...]) -> LiveState:
        low, high, delta, delta_high = rows
        return LiveState(low, high, depth, delta, delta_high, *filters)

    def state_of_columns(self, columns: tuple[Array, ...]) -> LiveState:
        return LiveState(*columns)

    def begins(self, dev: Placed) -> Array:
        return dev.begins

    def head_arrays(self, dev: Placed, spread: bool) -> Any:
        return () if spread else dev.head

    def own_rows(self, part: Placed, head: Any, begin: Array, rows: Rows, number: Array | None) -> Rows:
        """Return the rows on one device, of base and delta, that begin with pairs (n,) of the head."""
        ops = self.ops
        node, _, delta, _ = rows
        size, capacity = part.base.count, part.delta.count
        in_base, dead = (node < head.base.count)[:, None], (node == head.base.count)[:, None]
        low = ops.zeros((node.shape[0], 1), like=node)
        own = (low, low + part.sizes[:1], low, low + part.sizes[1:])
        for depth in range(HEAD):
            token = ops.where(
                in_base,
                matrix_cursor.tokens_at(ops, head.base, ops.where(in_base, node[:, None], 0), depth),
                matrix_cursor.tokens_at(ops, head.delta, ops.where(in_base | dead, 0, delta[:, None]), depth),
            )
            own = live_cursor.follow(ops, part, (*own, depth, number), depth, ops.where(dead, 0, token))
        old = matrix_cursor.any_kept(ops, part.base, number, own[0], own[1]) & ~dead
        new = matrix_cursor.any_kept(ops, part.delta, number, own[2], own[3]) & ~dead
        found = (
            ops.where(old, own[0], size), ops.where(old, own[1], size),
            ops.where(new, own[2], capacity), ops.where(new, own[3], capacity),
        )  # fmt: skip
        return _flat(found)

    def places(self, part: Placed, rows: Rows, level: int, number: Array | None) -> tuple[Array, Array]:
        return live_cursor.read(self.ops, part, (*(array[:, None] for array in rows), level, number), level)

    def is_unbranched(self, part: Placed, level: int) -> bool:
        return False

    def follow_rows(self, part: Placed, rows: Rows, level: int, tokens: Array, number: tuple[Array, ...]) -> Rows:
        columns = (*(array[:, None] for array in rows), level, *number)
        return _flat(live_cursor.follow(self.ops, part, columns, level, tokens))

    def within(self, part: Placed, rows: Rows, going: Array) -> Rows:
        ops, (low, high, delta, delta_high) = self.ops, rows
        old, new, size, capacity = going & (low < high), going & (delta < delta_high), part.base.count, part.delta.count
        here = (ops.where(old, low, size), ops.where(old, high, size))
        return *here, ops.where(new, delta, capacity), ops.where(new, delta_high, capacity)

    def at_end(
        self, part: Placed, rows: Rows, begins: Array, count: int, going: Array, collectives: Collectives
    ) -> Rows:
        ops, (low, high, delta, delta_high), capacity = self.ops, rows, part.delta.count
        old, new = going & (low < high), going & (delta < delta_high)
        node = ops.where(old, low + begins[:1], ops.where(new, delta + (begins[1:] + (count + 1)), 0))
        node = ops.where(going, collectives.sum(node), count)
        added = node > count
        delta = ops.where(added, node - (count + 1), capacity)
        high = ops.where(node < count, node + 1, count)
        return node, high, delta, ops.where(added, delta + 1, capacity)


def _flat(rows: Any) -> Rows:
    """Return rows (n,) of rows (n, 1)."""
    return tuple(array[:, 0] for array in rows)


def _in_head(cursor: ShardsCursor, beams: int, level: int, renormalize: bool, shared: Any, own: Any) -> tuple[Any, ...]:
    """Return what `select` does at the first tokens: the same on all devices, without a collective."""
    ops, (head, logits, columns, scores) = cursor.ops, shared
    found = cursor.kinds.of(head).select(
        head, logits, cursor.state_of_columns(columns), scores, beams, level, renormalize
    )
    parents = found.parents
    if parents is None:
        parents = ops.zeros(found.tokens.shape, like=found.tokens) + ops.arange(beams, like=found.tokens)
    return found.scores, parents, found.tokens, tuple(found.state)


def _in_shards(
    cursor: ShardsCursor, collectives: Collectives, count: int, beams: int, level: int, renormalize: bool,
    shared: Any, own: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Return what `select` does from the third token on, on one device."""
    ops = cursor.ops
    head, logits, scores, in_head, filters = shared
    part, begin, rows = own
    number = filters[0][:, None] if filters else None
    rows = cursor.own_rows(part, head, begin, in_head, number) if in_head else rows
    batch, m = scores.shape
    places = cursor.places(part, rows, level, number)
    in_place = m == beams and cursor.is_unbranched(part, level)  # nothing branches: each beam goes on in its place
    best, parents, tokens = _chosen(
        ops, collectives, part.vocab_size, logits, scores, places, beams, renormalize, in_place
    )
    going = (best > -float("inf")).reshape(-1)
    at = (parents + m * ops.arange(batch, like=parents)[:, None]).reshape(-1)
    rows = tuple(ops.gather(array, at) for array in rows)
    rows = cursor.follow_rows(part, rows, level, tokens.reshape(-1, 1), filters)
    depth = ops.where(going, level + 1, part.length) + rows[0] * 0
    filters = tuple(ops.gather(each, at) for each in filters)
    if level + 1 < part.length:
        rows = cursor.within(part, rows, going)
    else:
        rows = cursor.at_end(part, rows, begin, count, going, collectives)
    return best, parents, tokens, depth, filters, rows


def _chosen(
    ops: Backend, collectives: Collectives, vocab_size: int, logits: Array, scores: Array, places: tuple[Array, Array],
    beams: int, renormalize: bool, in_place: bool = False,
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

    def offer(x: Array, _: bool) -> Offer:
        return Offer(ops.where(inside, ops.take(x, ops.where(inside, token, 0)), -float("inf")), token)

    if not renormalize:
        x = ops.softmax_of(logits, offer).scores
    else:
        x = offer(ops.widen(logits), False).scores
        mass = ops.logsumexp(x)[:, None]
        sound = (mass > -float("inf")) & (mass < float("inf"))
        x = ops.where(sound, x - ops.where(sound, mass, 0.0), -float("inf"))
    if in_place:
        best = ops.without_nan(scores + x.reshape(batch, m))
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
