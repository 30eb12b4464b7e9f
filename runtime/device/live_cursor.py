"""A live set as a kind of constraint: base and delta are sorted matrices, joined.

A state is an interval of rows of each. In the base's some rows may be gone, but in one of the two there is a row of the
set, unless the state is dead. Nothing here has a shape that depends on what is in the set.
"""

from __future__ import annotations

from ...kernels.limits import UNREACHABLE
from . import matrix_cursor as matrix
from .backend import Array, Backend, Offer
from .checks import check_starts
from .cursor import Chosen, Cursor
from .device_live import DeviceLive
from .device_matrix import DeviceMatrix
from .device_table import LiveState

Columns = tuple[Array, ...]

_FEW = 64  # rows of an interval that are counted rather than searched
PAIRS = 4  # by token of the vocabulary: pairs of tokens of base and delta that are compared, rather than marked


def _columns(state: LiveState) -> Columns:
    """Return low and high of the base, of the delta, the depth, and the number of the filter: (n, 1) each."""
    _check_state(state)
    node, high, depth, delta, delta_high, number = (array[:, None] for array in state)
    return node, high, delta, delta_high, depth, number


def _check_state(state: object) -> None:
    if not isinstance(state, LiveState):
        raise ValueError("the state is not one of a live set: begin with start of what is decoded with")


def _is_open(low: Array, high: Array, delta: Array, delta_high: Array) -> Array:
    return (low < high) | (delta < delta_high)


def _offered(
    ops: Backend, dev: DeviceLive, columns: Columns, depth: Array, wide: tuple[int, int], *, once: bool
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return what `matrix_cursor.offered` does, of base and delta; wide: how many places are read of each."""
    low, high, delta, delta_high, _, number = columns
    base_parts, delta_parts = (low, high, depth, number), (delta, delta_high, depth, number)
    return (
        matrix.offered(ops, dev.base, base_parts, depth, wide[0], once=once),
        matrix.offered(ops, dev.delta, delta_parts, depth, wide[1], once=once),
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
    return wide[0] * wide[1] > PAIRS * dev.vocab_size


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
            matrix.tokens_at(ops, dev.base, low, 0),
            matrix.tokens_at(ops, dev.delta, delta, 0),
        )
        second = going & (depth == 1)
        after = ops.integers(ops.lookup(dev.base.mask_after, ops.where(second, first, 0)), low)
        number = ops.where(second, after, number)
    return matrix.unfold(ops, dev.base, number, which)


def _allowed(ops: Backend, dev: DeviceLive, state: LiveState, remaining: Array | None) -> Array:
    """Return int32 (n, V or more): -1 for tokens that are allowed from states at any depths, else 0."""
    columns = _columns(state)
    depth = columns[4]
    going = _is_open(*columns[:4]) & (depth < dev.length)
    if remaining is not None:
        going = going & matrix.fits(ops, dev.base, state, remaining)
    mask = _mask(ops, dev, columns, depth, going)
    wide = _widths(dev)
    if not wide[0]:
        return mask
    return _write(ops, dev, mask, columns, ops.where(going, depth, 0), wide, going & (depth >= dev.base.masked))


def follow(ops: Backend, dev: DeviceLive, columns: Columns, depth: Array, token: Array) -> Columns:
    """Return the rows that have a token (n, k) at a depth, one for all or (n, 1): of the base and of the delta."""
    low, high, delta, delta_high = columns[:4]
    return *_rows_of(ops, dev.base, low, high, depth, token), *_rows_of(ops, dev.delta, delta, delta_high, depth, token)


def _rows_of(ops: Backend, dev: DeviceMatrix, low: Array, high: Array, depth: Array, token: Array) -> Columns:
    """Return the rows of low .. high (n, 1) that have a token (n, k) at a depth, as `follow` does.

    Short intervals are counted in place of searched: in a second word, a search is many small operations.
    """
    if not isinstance(depth, int) or depth < dev.masked or dev.widths[depth] > _FEW or token.shape[1] > 1:
        return matrix.follow(ops, dev, low, high, depth, token)
    row = low + ops.arange(dev.widths[depth], like=dev.steps)
    held, inside = matrix.tokens_at(ops, dev, row, depth), row < high
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
    in_base = matrix.any_kept(ops, dev.base, number, low, high)
    return in_base | matrix.any_kept(ops, dev.delta, number, delta, delta_high)


# ------------------------------------------------------------------------------------------------ the kind


class LiveCursor(Cursor):
    """A snapshot of a live set, with filters or without."""

    def anchor(self, dev: DeviceLive) -> Array:
        return dev.base.steps

    def check_state(self, dev: DeviceLive, state: LiveState) -> None:
        _check_state(state)

    def start(self, dev: DeviceLive, batch: int) -> LiveState:
        """Return the state of `batch` sequences with nothing written yet: the dead one where nothing is kept.

        Filters: the i-th of `of` is that of the i-th share of the batch, which must have equal shares.
        """
        ops, kept = self.ops, dev.base.kept
        assert kept is not None
        shares = kept.of.shape[0]
        check_starts(shares, batch)
        zero = ops.zeros((batch,), like=dev.base.steps)
        rows = zero, zero + dev.sizes[:1], zero, zero + dev.sizes[1:]
        number = ops.gather(kept.of, ops.arange(batch, like=dev.base.steps) // (batch // shares))
        live = _any_kept(ops, dev, tuple(array[:, None] for array in rows), number[:, None])
        return _reached(ops, dev, rows, zero, live[:, 0], number)

    def accepting(self, dev: DeviceLive, state: LiveState) -> Array:
        return (state.depth == dev.length) & (state.node != dev.base.count)

    def distance(self, dev: DeviceLive, state: LiveState) -> Array:
        alive = (state.node < state.high) | (state.delta < state.delta_high)
        return self.ops.where(alive, dev.length - state.depth, UNREACHABLE)

    def allowed(self, dev: DeviceLive, state: LiveState, remaining: Array | None) -> Array:
        return _allowed(self.ops, dev, state, remaining)

    def offers(self, dev: DeviceLive, x: Array, state: LiveState, level: int, normalized: bool) -> Offer:
        """Return what states at one depth offer; a state of another depth offers nothing."""
        ops = self.ops
        low, high, delta, delta_high, depth, number = _columns(state)
        here = depth == level
        columns = low, ops.where(here, high, low), delta, ops.where(here, delta_high, delta), depth, number
        if level >= dev.length:
            return Offer(ops.where(low < 0, x[:, :1], -float("inf")), low * 0)
        if level < dev.base.masked:
            mask = _mask(ops, dev, columns, depth, _is_open(*columns[:4]))
            return Offer(ops.keep(x[:, : dev.vocab_size], mask, dev.vocab_size), None)
        wide = _widths(dev, level)
        if _are_many(dev, wide):
            mask = ops.zeros((low.shape[0], dev.vocab_size + 1), like=dev.base.byte_bits)
            mask = _write(ops, dev, mask, columns, level, wide, low == low)
            return Offer(ops.keep(x[:, : dev.vocab_size], mask, dev.vocab_size), None)
        token, inside = _read(ops, dev, columns, level, wide)
        return Offer(ops.where(inside, ops.take(x, token), -float("inf")), token)

    def follow(
        self, dev: DeviceLive, state: LiveState, tokens: Array, level: int | None, alive: Array | None
    ) -> LiveState:
        ops, columns = self.ops, _columns(state)
        depth, number = columns[4], columns[5]
        token = ops.integers(tokens, state.node)
        inside = None
        if alive is None:
            inside = (token >= 0) & (token < dev.vocab_size) & _is_open(*columns[:4]) & (depth < dev.length)
            token, below = ops.where(inside, token, 0), ops.where(inside, depth, 0)
        else:
            below = level if level is not None and level < dev.length else ops.where(depth < dev.length, depth, 0)
        rows = follow(ops, dev, columns, below, token)
        if inside is not None:
            alive = inside & _any_kept(ops, dev, rows, number)
        if token.shape[1] > 1:
            number, depth = number + token * 0, depth + token * 0
        after = depth + 1 if level is None else level + 1
        return _reached(ops, dev, rows, after, alive, number)

    def reached(self, dev: DeviceLive, chosen: Chosen) -> LiveState:
        low, high, _, delta, delta_high, number = map(chosen.of_parents, chosen.before)
        rows: Columns = low, high, delta, delta_high
        if chosen.level < dev.length:
            columns = tuple(array[:, None] for array in rows)
            found = follow(self.ops, dev, columns, chosen.level, chosen.tokens[:, None])
            rows = tuple(array[:, 0] for array in found)
        return _reached(self.ops, dev, rows, chosen.level + 1, chosen.alive, number)

    def first_offers(
        self, dev: DeviceLive, state: LiveState, width: int, remaining: Array | None
    ) -> tuple[Array, Array]:
        """Return tokens (n, width) that states offer, of those that are read, and which there are: each once.

        They are all that are allowed where `width` is that of the depth's `Level` or more, and that is not `dense`.
        """
        ops, columns = self.ops, _columns(state)
        depth = columns[4]
        going = _is_open(*columns[:4]) & (depth < dev.length)
        if remaining is not None:
            going = going & matrix.fits(ops, dev.base, state, remaining)
        base, delta = _widths(dev)
        token, inside = _read(ops, dev, columns, ops.where(going, depth, 0), (max(1, min(base, width)), max(1, delta)))
        key = ops.where(inside & going, -token, -dev.vocab_size)
        if width > key.shape[1]:
            padding = ops.zeros((key.shape[0], width - key.shape[1]), like=key) - dev.vocab_size
            key = ops.concatenate([key, padding], -1)
        key = ops.sort(key)[:, :width]  # the smallest token first
        allowed = key > -dev.vocab_size
        return -key, allowed
