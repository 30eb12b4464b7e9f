"""A sorted matrix as a kind of constraint, written once for all libraries of arrays.

A prefix is the interval of rows that begin with it. `device_matrix` says how the matrix lies on a device, and what of
an interval is read for what it allows. Under filters a state that is not dead has a kept row in its interval, and what
is allowed leads to states that have.
"""

from __future__ import annotations

from ...kernels.limits import UNREACHABLE
from .backend import Array, Backend, Offer
from .checks import check_remaining, check_sids, check_starts, check_tokens
from .cursor import Chosen, Cursor
from .device_matrix import DeviceFilters, DeviceMatrix
from .device_table import AnyMatrixState, FilteredState, MatrixState

_READ_SHARE = 8  # logits that stay are written over -inf where at most 1/8 of the vocabulary is read

# ------------------------------------------------------------------------------------------------ intervals


def _read(ops: Backend, dev: DeviceMatrix, row: Array, at: Array) -> Array:
    """Return a word of rows (n, k): word number `at`, one for all or (n, 1)."""
    row = ops.where(row < dev.count, row, dev.count - 1)
    if isinstance(at, int):
        return ops.lookup(dev.words[at], row)
    found = ops.lookup(dev.words[0], row)
    for number, word in enumerate(dev.words[1:], 1):
        found = ops.where(at == number, ops.lookup(word, row), found)
    return found


def _place_of(dev: DeviceMatrix, depth: Array) -> tuple[Array, Array]:
    """Return in which word the token at a depth is, and by how many bits it is shifted."""
    at = depth // dev.per_word
    return at, (dev.per_word - 1 - (depth - at * dev.per_word)) * dev.bits


def tokens_at(ops: Backend, dev: DeviceMatrix, row: Array, depth: Array) -> Array:
    """Return the token of rows (n, k) at a depth below L, one for all or (n, 1)."""
    at, shift = _place_of(dev, depth)
    token = (_read(ops, dev, row, at) >> shift) & ((1 << dev.bits) - 1)
    return ops.integers(token, row)


def _halve(ops: Backend, dev: DeviceMatrix, at: Array, low: Array, high: Array, query: Array, width: int) -> Array:
    """Return the first row in low .. high (n, 1) whose word is not below a query (n, k); intervals up to `width`."""
    found = low + ops.zeros(query.shape, like=low)
    for step in reversed(range(width.bit_length())):
        probe = found + ((1 << step) - 1)
        below = (_read(ops, dev, probe, at) < query) & (probe < high)
        found = ops.where(below, found + (1 << step), found)
    return found


def follow(ops: Backend, dev: DeviceMatrix, low: Array, high: Array, depth: Array, token: Array) -> tuple[Array, Array]:
    """Return the rows of low .. high (n, 1) that have a token (n, k) at a depth: their low, high (n, k).

    depth: one for all, or (n, 1), below L. Tokens lie in 0 .. V - 1. Where no row has it, both are the same.
    """
    static = isinstance(depth, int)
    if static and dev.branches[depth] == 1:
        same = tokens_at(ops, dev, low, depth) == token
        return low, ops.where(same, high, low)
    at, shift = _place_of(dev, depth)
    rest, token = shift + dev.bits, ops.integers(token, dev.words[0])
    prefix = (_read(ops, dev, low, at) >> rest) << rest
    query = ops.concatenate([prefix | (token << shift), prefix + ((token + 1) << shift)], -1)
    if static:
        found = _search(ops, dev, query, low) if at == 0 else _halve(ops, dev, at, low, high, query, dev.widths[depth])
    else:
        found = _search(ops, dev, query, low)
        if len(dev.words) > 1:
            later = _halve(ops, dev, at, low, high, query, max(dev.widths[dev.per_word :]))
            found = ops.where(at == 0, found, later)
    lower, upper = found[:, : token.shape[1]], found[:, token.shape[1] :]
    return lower, ops.where(low < high, upper, lower)


def _search(ops: Backend, dev: DeviceMatrix, query: Array, like: Array) -> Array:
    """Return the first of all rows whose first word is not below a query (n, k)."""
    return ops.integers(ops.search(dev.words[0], query), like)


# ------------------------------------------------------------------------------------------------ filters


def check_filters(dev: DeviceMatrix, state: AnyMatrixState) -> None:
    """Raise ValueError for a state under filters where there are none, and one without where there are."""
    if (dev.kept is None) is isinstance(state, FilteredState):
        raise ValueError(
            "the state is of the matrix with other filters or none: begin with start of what is decoded with"
        )


def _parts(dev: DeviceMatrix, state: AnyMatrixState) -> tuple[Array, Array, Array, Array]:
    """Return low, high and depth of a state, (n, 1) each, and the number of its filter; None where there is none."""
    check_filters(dev, state)
    low, high, depth = (array[:, None] for array in state[:3])
    return low, high, depth, state.filter[:, None] if isinstance(state, FilteredState) else None


def _bit(ops: Backend, words: Array, begin: Array, at: Array) -> Array:
    """Return whether bit `at` (n, k) is set in the words from `begin` (n, 1) on."""
    return (ops.integers(ops.lookup(words, begin + (at >> 5)), at) >> (at & 31)) & 1 != 0


def _kept_before(ops: Backend, kept: DeviceFilters, number: Array, row: Array) -> Array:
    """Return how many rows before row (n, k), at most Q, are kept by filter number (n, 1)."""
    at = number * kept.words + (row >> 5)
    bits = ops.integers(ops.lookup(kept.rows, at), row) & ((1 << (row & 31)) - 1)
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    bits = bits + (bits >> 8)
    return ops.integers(ops.lookup(kept.before, at), row) + ((bits + (bits >> 16)) & 63)


def any_kept(ops: Backend, dev: DeviceMatrix, number: Array, low: Array, high: Array) -> Array:
    """Return whether there is a row in low .. high (n, k), which number (n, 1) keeps; None: any row."""
    if dev.kept is None:
        return low < high
    before = _kept_before(ops, dev.kept, number, ops.concatenate([low, high], -1))
    return before[:, : low.shape[1]] < before[:, low.shape[1] :]


# ------------------------------------------------------------------------------------------------ what is allowed


def _rows(ops: Backend, dev: DeviceMatrix, low: Array, width: int) -> Array:
    """Return the first `width` rows of each interval (n, width), whether they are in it or not."""
    return low + ops.arange(width, like=dev.steps)


def offered(
    ops: Backend, dev: DeviceMatrix, state: tuple[Array, ...], depth: Array, width: int, *, once: bool
) -> tuple[Array, Array]:
    """Return what the first `width` places that are read of intervals hold: tokens, and which of them count.

    state: `_parts`. Tokens (n, width) ascend. Each of the interval counts, if `width` is as much as is read at the
    depth, and a row below it is kept. depth: one for all, or (n, 1), below L. once: count a token that several places
    hold at one of them alone.
    """
    low, high, _, number = state
    levels = [depth] if isinstance(depth, int) else range(dev.length)
    kept = [(level, firsts) for level in levels if (firsts := dev.firsts[level]) is not None]
    token = inside = None
    if len(kept) < len(levels):
        row = _rows(ops, dev, low, width)
        token = tokens_at(ops, dev, row, depth)
        inside = row < high
        if dev.kept is not None:
            inside = _kept_rows(ops, dev, number, row, inside, depth)
        if once and width > 1:
            inside = inside & (_first(ops, token) if dev.kept is None else _first_inside(ops, token, inside))
    if not kept:
        return token, inside
    at, end = low * 0, low * 0
    known = at > 0
    for level, (begin, stop) in kept:  # an interval begins and ends where a token of it and of the next one begins
        rows = dev.first_rows[begin:stop]
        bounds = ops.integers(ops.search(rows, ops.integers(ops.concatenate([low, high], -1), rows)), low) + begin
        if isinstance(depth, int):
            at, end = bounds[:, :1], bounds[:, 1:]
        else:
            here = depth == level
            at, end = ops.where(here, bounds[:, :1], at), ops.where(here, bounds[:, 1:], end)
            known = known | here
    at = at + ops.arange(width, like=dev.steps)
    within = at < end
    if dev.kept is not None:
        within = within & _bit(ops, dev.kept.firsts, number * dev.kept.first_words, ops.where(within, at, 0))
    first = ops.integers(ops.lookup(dev.first_tokens, ops.where(within, at, 0)), low)
    if token is None:
        return first, within
    return ops.where(known, first, token), ops.where(known, within, inside)


def _first(ops: Backend, token: Array) -> Array:
    """Return which of the ascending tokens (n, k) are unlike the one before."""
    return ops.concatenate([token[:, :1] == token[:, :1], token[:, 1:] != token[:, :-1]], 1)


def _first_inside(ops: Backend, token: Array, inside: Array) -> Array:
    """Return which of the ascending tokens (n, k) are unlike all that are inside before them."""
    before = ops.running_max(ops.where(inside, token, -1))
    return ops.concatenate([token[:, :1] == token[:, :1], token[:, 1:] != before[:, :-1]], 1)


def _kept_rows(ops: Backend, dev: DeviceMatrix, number: Array, row: Array, inside: Array, depth: Array) -> Array:
    """Return which of the rows that are `inside` (n, k) are kept by filter number (n, 1).

    Where nothing branches, only the first of an interval's rows are read, and all count: one of the interval is kept.
    """
    assert dev.kept is not None
    if isinstance(depth, int) and dev.branches[depth] == 1:
        return inside
    kept = inside & _bit(ops, dev.kept.rows, number * dev.kept.words, ops.where(inside, row, 0))
    alone = [level for level in range(dev.length) if dev.branches[level] == 1 and dev.widths[level] > 1]
    if isinstance(depth, int) or not alone:
        return kept
    same = depth == alone[0]
    for level in alone[1:]:
        same = same | (depth == level)
    return ops.where(same, inside, kept)


def _mask_bytes(ops: Backend, dev: DeviceMatrix, number: Array, which: Array) -> Array:
    """Return masks (n, K) of bytes by their numbers (n, 1); which: (n, 1) the filter whose masks they are."""
    masks = dev.masks
    if dev.kept is not None:
        masks, number = dev.kept.masks, number + which * dev.masks.shape[0]
    return ops.gather(masks, number[:, 0])


def unfold(ops: Backend, dev: DeviceMatrix, number: Array, which: Array) -> Array:
    """Return what `_mask_bytes` does, a number a token (n, 8 K): int32, -1 where a token is allowed, else 0."""
    packed = ops.integers(_mask_bytes(ops, dev, number, which), dev.steps)
    return ops.gather(dev.byte_bits, packed.reshape(-1)).reshape(number.shape[0], 8 * packed.shape[1])


def _mask_at(ops: Backend, dev: DeviceMatrix, low: Array, high: Array, level: int) -> Array:
    """Return the number of the mask of intervals (n, 1) at a depth that has masks; the last allows nothing."""
    number = _mask_after(ops, dev, low) if level else low * 0
    return ops.where(low < high, number, dev.masks.shape[0] - 1)


def _mask_after(ops: Backend, dev: DeviceMatrix, low: Array) -> Array:
    """Return the number of the mask of what may follow the first token of rows (n, 1)."""
    return ops.integers(ops.lookup(dev.mask_after, tokens_at(ops, dev, low, 0)), low)


def fits(ops: Backend, dev: DeviceMatrix, state: AnyMatrixState, remaining: Array) -> Array:
    """Return whether so many tokens (n,) are enough for what each sequence lacks: (n, 1)."""
    check_remaining(state.node.shape[0], remaining.shape, ops.is_integral(remaining), remaining.dtype, True)
    return (ops.integers(remaining, state.depth) >= dev.length - state.depth)[:, None]


def _allowed(ops: Backend, dev: DeviceMatrix, state: AnyMatrixState, remaining: Array) -> Array:
    """Return int32 (n, V or more): -1 for tokens that are allowed from states at any depths, else 0."""
    low, high, depth, which = parts = _parts(dev, state)
    live = (low < high) & (depth < dev.length)
    if remaining is not None:
        live = live & fits(ops, dev, state, remaining)
    if dev.masked == 0:
        mask = ops.zeros((low.shape[0], 8 * dev.masks.shape[1]), like=dev.byte_bits)
    else:
        number = ops.where(live & (depth == 0), 0, dev.masks.shape[0] - 1)
        if dev.masked == 2:
            number = ops.where(live & (depth == 1), _mask_after(ops, dev, low), number)
        mask = unfold(ops, dev, number, which)
    width = max([0, *[dev.read(level) for level in range(dev.masked, dev.length)]])  # torch.compile knows no default
    if width == 0:
        return mask
    depth = ops.where(live, depth, 0)  # of those that have masks it only says the same again
    token, inside = offered(ops, dev, parts, depth, width, once=False)
    return ops.scatter(mask, ops.where(live & inside, token, mask.shape[1] - 1), -1)  # the last column is no token


def _reached(ops: Backend, dev: DeviceMatrix, low: Array, high: Array, depth: Array, alive: Array) -> MatrixState:
    """Return the state of these rows and this many tokens where it is alive, else the dead state."""
    return MatrixState(
        ops.where(alive, low, dev.count), ops.where(alive, high, dev.count), ops.where(alive, depth, dev.length)
    )


# ------------------------------------------------------------------------------------------------ the kind


class MatrixCursor(Cursor):
    """A sorted matrix, with filters or without."""

    def anchor(self, dev: DeviceMatrix) -> Array:
        return dev.steps

    def check_state(self, dev: DeviceMatrix, state: AnyMatrixState) -> None:
        check_filters(dev, state)

    def start(self, dev: DeviceMatrix, batch: int) -> AnyMatrixState:
        """Return the state of `batch` sequences with nothing written yet: the dead one under a filter without rows.

        Filters: the i-th of `of` is that of the i-th share of the batch, which must have equal shares.
        """
        ops = self.ops
        zero = ops.zeros((batch,), like=dev.steps)
        state = MatrixState(zero, zero + dev.count, zero)
        if dev.kept is None:
            return state
        shares = dev.kept.of.shape[0]
        check_starts(shares, batch)
        which = ops.gather(dev.kept.of, ops.arange(batch, like=dev.steps) // (batch // shares))
        alive = any_kept(ops, dev, which[:, None], state.node[:, None], state.high[:, None])[:, 0]
        return FilteredState(*_reached(ops, dev, *state, alive), which)

    def accepting(self, dev: DeviceMatrix, state: AnyMatrixState) -> Array:
        return (state.depth == dev.length) & (state.node < state.high)

    def distance(self, dev: DeviceMatrix, state: AnyMatrixState) -> Array:
        return self.ops.where(state.node < state.high, dev.length - state.depth, UNREACHABLE)

    def allowed(self, dev: DeviceMatrix, state: AnyMatrixState, remaining: Array | None) -> Array:
        return _allowed(self.ops, dev, state, remaining)

    def masked(self, dev: DeviceMatrix, x: Array, state: AnyMatrixState, remaining: Array | None = None) -> Array:
        """Return x (n, V') with -inf where a token is not allowed. Where few are read, these are written over -inf."""
        width = max(map(dev.read, range(dev.length)))
        if dev.masked or width * _READ_SHARE > dev.vocab_size:
            return super().masked(dev, x, state, remaining)
        token, allowed = self.first_offers(dev, state, width, remaining, once=False)
        return self.alone(x, token, allowed, ordered=dev.kept is None)

    def masked_at(self, dev: DeviceMatrix, x: Array, state: AnyMatrixState, level: int, in_place: bool) -> Array:
        ops = self.ops
        if level >= dev.length:
            return super().masked_at(dev, x, state, level, in_place)
        low, high, _, which = parts = self._parts_at(dev, state, level)
        if level < dev.masked and dev.read(level) > 1:
            words = ops.words(_mask_bytes(ops, dev, _mask_at(ops, dev, low, high, level), which))
            return ops.keep_packed(x, words[:, : -(-dev.vocab_size // 32)], dev.vocab_size, in_place)
        token, allowed = offered(ops, dev, parts, level, dev.read(level), once=False)
        return self.alone(x, token, allowed, in_place, dev.kept is None)

    def _parts_at(self, dev: DeviceMatrix, state: AnyMatrixState, level: int) -> tuple[Array, ...]:
        """Return what `_parts` does, of which states of another depth have no rows."""
        ops, here = self.ops, state.depth == level
        dead = dev.count
        return _parts(
            dev, state._replace(node=ops.where(here, state.node, dead), high=ops.where(here, state.high, dead))
        )

    def offers(self, dev: DeviceMatrix, x: Array, state: AnyMatrixState, level: int, normalized: bool) -> Offer:
        """Return what states at one depth offer; a state of another depth offers nothing."""
        ops = self.ops
        low, high, _, which = parts = self._parts_at(dev, state, level)
        if level >= dev.length:
            return Offer(ops.where(low < 0, x[:, :1], -float("inf")), low * 0, low)
        width = dev.read(level)
        if level < dev.masked and width > 1:
            mask = unfold(ops, dev, _mask_at(ops, dev, low, high, level), which)
            return Offer(ops.keep(x[:, : dev.vocab_size], mask, dev.vocab_size), None)
        token, inside = offered(ops, dev, parts, level, width, once=True)
        scores = ops.where(inside, ops.take(x, token), -float("inf"))
        return Offer(scores, token, low if width == 1 else None)  # one token alone leads on with all rows

    def follow(
        self, dev: DeviceMatrix, state: AnyMatrixState, tokens: Array, level: int | None, alive: Array | None
    ) -> AnyMatrixState:
        ops, (low, high, depth, which) = self.ops, _parts(dev, state)
        token = ops.integers(tokens, state.node)
        inside = None
        if alive is None:
            inside = (token >= 0) & (token < dev.vocab_size) & (low < high) & (depth < dev.length)
            token, below = ops.where(inside, token, 0), ops.where(inside, depth, 0)
        elif level is not None and level < dev.length:
            below = level
        else:
            below = ops.where(depth < dev.length, depth, 0)
        lower, upper = follow(ops, dev, low, high, below, token)
        if inside is not None:
            alive = inside & any_kept(ops, dev, which, lower, upper)
        return self._under_filters(_reached(ops, dev, lower, upper, depth + 1, alive), which)

    def reached(self, dev: DeviceMatrix, chosen: Chosen) -> AnyMatrixState:
        ops, (low, high, _, *which) = self.ops, chosen.before
        low, high = chosen.of_parents(low), chosen.of_parents(high)
        if chosen.edges is None and chosen.level < dev.length:
            low, high = follow(ops, dev, low[:, None], high[:, None], chosen.level, chosen.tokens[:, None])
            low, high = low[:, 0], high[:, 0]
        state = _reached(ops, dev, low, high, low * 0 + (chosen.level + 1), chosen.alive)
        return self._under_filters(state, *map(chosen.of_parents, which))

    def _under_filters(self, state: MatrixState, which: Array | None = None) -> AnyMatrixState:
        """Return a state under filters, if there are any, whose numbers are broadcast."""
        if which is None:
            return state
        if which.shape != state.node.shape:
            which = which + self.ops.zeros(state.node.shape, like=which)
        return FilteredState(*state, which)

    def first_offers(
        self, dev: DeviceMatrix, state: AnyMatrixState, width: int, remaining: Array | None, once: bool = True
    ) -> tuple[Array, Array]:
        """Return the tokens of the first `width` rows that are read of each state, and which are allowed: each once.

        They are all that are allowed where `width` is that of the depth's `Level` or more, and that is not `dense`.
        """
        _, _, depth, _ = parts = _parts(dev, state)
        live = depth < dev.length
        if remaining is not None:
            live = live & fits(self.ops, dev, state, remaining)
        token, inside = offered(self.ops, dev, parts, self.ops.where(live, depth, 0), width, once=once)
        return token, live & inside

    def contains(self, dev: DeviceMatrix, sids: Array) -> Array:
        """Return whether each row of sids (N, L) is in the set, whatever filters keep: bool (N,).

        One search of the first words; only where rows share those, one of the next within what was found.
        """
        ops = self.ops
        check_sids(sids.shape)
        check_tokens(sids.shape[0], sids.shape[:1], ops.is_integral(sids), sids.dtype)
        sids = ops.integers(sids, dev.steps)
        if sids.shape[1] != dev.length:
            return (sids[:, :1] != sids[:, :1]).any(-1) if sids.shape[1] else ops.zeros((sids.shape[0],), dev.steps) > 0
        inside = (sids >= 0) & (sids < dev.vocab_size)
        token = ops.integers(ops.where(inside, sids, 0), dev.words[0])
        found, low, high = inside.all(-1)[:, None], None, None
        for at in range(len(dev.words)):
            word = token[:, :1] * 0
            for depth in range(at * dev.per_word, min((at + 1) * dev.per_word, dev.length)):
                word = word | (token[:, depth : depth + 1] << _place_of(dev, depth)[1])
            query = word
            if (
                at + 1 < len(dev.words) and dev.widths[(at + 1) * dev.per_word] > 1
            ):  # the next word needs the end as well
                query = ops.concatenate([word, word + 1], -1)
            if at == 0:
                bounds = _search(ops, dev, query, sids)
                low, high = bounds[:, :1], bounds[:, -1:]
            elif dev.widths[at * dev.per_word] > 1:
                bounds = _halve(ops, dev, at, low, high, query, dev.widths[at * dev.per_word])
                found = found & (bounds[:, :1] < high)
                low, high = bounds[:, :1], bounds[:, -1:]
            found = found & (_read(ops, dev, low, at) == word)
        return found[:, 0]
