"""A table of sequences under filters as a kind of constraint, written once for all libraries of arrays.

States are those of the table, and the number of a filter. A state that is not dead has a kept sequence below it, and
what is allowed leads to states that have: of a row, the edges whose bits are set; of a tail, its one token.
"""

from __future__ import annotations

from ...kernels.limits import UNREACHABLE
from .backend import Array, Backend, Offer
from .checks import check_remaining, check_sids, check_starts, check_tokens, is_end
from .cursor import Chosen, Cursor
from .device_table import DeviceTable, FilteredTableState
from .table_filters import DeviceFilteredTable

# ------------------------------------------------------------------------------------------------ the table


def _first_edge(ops: Backend, table: DeviceTable, node: Array) -> Array:
    """Return the first edge of each state; a state ends where the next one starts."""
    rows = table.num_rows
    row = ops.integers(ops.lookup(table.row_start, ops.where(node < rows, node, rows)), node)
    return row + ops.where(node > rows, node - rows, 0)


def _bounds(ops: Backend, table: DeviceTable, node: Array) -> tuple[Array, Array]:
    """Return the first edge of states (n,) and the one behind their last."""
    bounds = _first_edge(ops, table, ops.concatenate([node, node + 1], 0))
    return bounds[: node.shape[0]], bounds[node.shape[0] :]


def _token(ops: Backend, table: DeviceTable, edge: Array) -> Array:
    """Return the token of each edge; a library may hold those of 16 bits in a signed type."""
    token = ops.integers(ops.lookup(table.edge_token, edge), edge)
    return token & 0xFFFF if 1 << 15 <= table.vocab_size + 1 < 1 << 16 else token


def _target(ops: Backend, table: DeviceTable, edge: Array) -> Array:
    """Return the state that each edge leads to."""
    own = edge < table.num_edges
    target = ops.integers(ops.lookup(table.edge_target, ops.where(own, edge, 0)), edge)
    return ops.where(own, target, edge + (table.num_rows - table.num_edges + 1))


def _base(ops: Backend, table: DeviceTable, node: Array) -> Array:
    """Return the mask of each state; the last, which allows nothing, where it has none."""
    last = table.base_row.shape[0] - 1
    return ops.integers(ops.lookup(table.base_row, ops.where(node < last, node, last)), node)


def _in_mask(ops: Backend, table: DeviceTable, node: Array, token: Array) -> tuple[Array, Array]:
    """Return whether tokens (n,) are in the table's masks of states (n,), and the edges of a state before them.

    Both are 0 for a state without a mask.
    """
    at = _base(ops, table, node) * table.masks.shape[1] + (token >> 3)
    byte, bit = ops.integers(ops.lookup(table.masks.reshape(-1), at), node), token & 7
    before = byte & ((1 << bit) - 1)
    before = before - ((before >> 1) & 0x55)
    before = (before & 0x33) + ((before >> 2) & 0x33)
    before = (before + (before >> 4)) & 0x0F
    rank = ops.integers(ops.lookup(table.rank.reshape(-1), at), node)
    return (byte >> bit) & 1 != 0, before + (rank & 0xFFFF if table.vocab_size < 1 << 16 else rank)


def _find(ops: Backend, table: DeviceTable, node: Array, token: Array) -> tuple[Array, Array]:
    """Return the edge of each state (n,) that has a token (n,) of 0 .. V - 1, and whether there is one."""
    first, last = _bounds(ops, table, node)
    low, high = first, last
    for _ in range(table.sparse_width.bit_length()):
        middle = (low + high) >> 1
        below, going = _token(ops, table, middle) < token, low < high
        low, high = ops.where(going & below, middle + 1, low), ops.where(going & ~below, middle, high)
    found = (low < last) & (_token(ops, table, low) == token)
    if not table.has_masks:
        return low, found
    masked = _base(ops, table, node) < table.masks.shape[0] - 1
    inside, before = _in_mask(ops, table, node, token)
    return ops.where(masked, first + before, low), ops.where(masked, inside, found)


def _entry(ops: Backend, table: DeviceTable, node: Array) -> tuple[Array, Array]:
    """Return whether each state (n,) is the entry of a tail, and what stands there."""
    in_tail = node >= table.num_rows
    return in_tail, _token(ops, table, ops.where(in_tail, node - table.num_rows, 0) + table.num_edges)


# ------------------------------------------------------------------------------------------------ filters


def _which(state: FilteredTableState) -> Array:
    """Return the filter of each state. Raises ValueError for a state without."""
    if not isinstance(state, FilteredTableState):
        raise ValueError(
            "the state is of the table without filters: begin with start of what is decoded with, which has some"
        )
    return state.filter


def _bit(ops: Backend, words: Array, begin: Array, at: Array) -> Array:
    """Return whether bit `at` is set in the words from `begin` on."""
    return (ops.integers(ops.lookup(words, begin + (at >> 5)), at) >> (at & 31)) & 1 != 0


def _kept(ops: Backend, dev: DeviceFilteredTable, which: Array, edge: Array) -> Array:
    """Return whether edges (n,) lead to what the filters `which` keep, as each entry of a tail that is reached does."""
    edges = dev.table.num_edges
    return _bit(ops, dev.kept.edges, which * dev.kept.words, ops.where(edge < edges, edge, edges))


def _kept_from(ops: Backend, dev: DeviceFilteredTable, which: Array, first: Array, width: int) -> Array:
    """Return what `_kept` does of `width` edges from the first ones (n,) on: (n, width).

    Words are read, shifted until they begin with the first edge, and unpacked: fewer passes over (n, width) than to
    read each bit. Of a tail only the first is true for certain.
    """
    edges, count = dev.table.num_edges, -(-width // 32)
    first = ops.where(first < edges, first, edges)
    at = (which * dev.kept.words + (first >> 5))[:, None] + ops.arange(count + 1, like=dev.kept.of)
    words, shift = ops.lookup(dev.kept.edges, at), ops.integers(first & 31, dev.kept.edges)[:, None]
    above = (ops.zeros(shift.shape, like=shift) - 2) << (
        31 - shift
    )  # bits that the next word gives; a shift by 32 is 0
    moved = ((words[:, :-1] >> shift) & ~above) | ((words[:, 1:] << 1) << (31 - shift))
    return ops.unpack(moved, width)


def _mask_words(ops: Backend, dev: DeviceFilteredTable, node: Array, which: Array) -> Array:
    """Return what the masks of states (n,) allow under filters: (n, ceil(V / 32)), 0 for states without a mask."""
    return ops.gather(dev.kept.masks, which * dev.table.masks.shape[0] + _base(ops, dev.table, node))


def _edges(ops: Backend, dev: DeviceFilteredTable, node: Array, which: Array, width: int) -> tuple[Array, Array, Array]:
    """Return the first `width` edges of each state, their tokens, and which of them are allowed: (n, width)."""
    first, last = _bounds(ops, dev.table, node)
    edge = first[:, None] + ops.arange(width, like=dev.kept.of)
    token = _token(ops, dev.table, edge)
    inside = (edge < last[:, None]) & (token < dev.vocab_size)
    return edge, token, inside & _kept_from(ops, dev, which, first, width)


def _distance(ops: Backend, dev: DeviceFilteredTable, node: Array, which: Array) -> Array:
    """Return the fewest tokens (n, k) from states to the end of a kept sequence."""
    table = dev.table
    near = ops.integers(ops.lookup(table.distance, node), node)
    if not dev.kept.distance.shape[0]:  # all sequences below a state are as long
        return near
    in_row = node < table.num_rows
    far = ops.lookup(dev.kept.distance, which * table.num_rows + ops.where(in_row, node, 0))
    return ops.where(in_row, ops.integers(far, node), near)


# ------------------------------------------------------------------------------------------------ what is allowed


def _checked_remaining(ops: Backend, dev: DeviceFilteredTable, state: FilteredTableState, remaining: Array) -> Array:
    """Return how many tokens (n, 1) may be written, no fewer than 0, in the type of states."""
    is_integer = ops.is_integral(remaining)
    check_remaining(state.node.shape[0], remaining.shape, is_integer, remaining.dtype, dev.table.distance.shape[0] > 0)
    room = ops.integers(remaining, state.node)
    return ops.where(room < 0, 0, ops.where(room < UNREACHABLE, room, UNREACHABLE - 1))[:, None]


def _accepting(ops: Backend, dev: DeviceFilteredTable, state: FilteredTableState) -> Array:
    """Return whether sequences (n,) may end where they stand."""
    in_tail, entry = _entry(ops, dev.table, state.node)
    ends = in_tail & (entry == dev.vocab_size)
    if not dev.kept.ends_in_rows:
        return ends
    row = ops.where(in_tail, 0, state.node)
    return ends | (~in_tail & _bit(ops, dev.kept.ends, _which(state) * dev.kept.end_words, row))


def _allowed(ops: Backend, dev: DeviceFilteredTable, state: FilteredTableState, remaining: Array | None) -> Array:
    """Return int32 (n, V + 1): -1 for tokens that are allowed, EOS among them, else 0."""
    table, node, which = dev.table, state.node, _which(state)
    room = None if remaining is None else _checked_remaining(ops, dev, state, remaining)
    by_edge = room is not None and dev.kept.distance.shape[0] > 0  # masks do not say where their tokens lead
    mask = ops.zeros((node.shape[0], table.vocab_size + 1), like=dev.kept.edges)
    if table.has_masks and not by_edge:
        bits = ops.unpack(_mask_words(ops, dev, node, which), table.vocab_size)
        mask = ops.concatenate([-ops.integers(bits, dev.kept.edges), mask[:, :1]], 1)
    width = table.sparse_width
    if by_edge:
        width = max([width, *[level.width for level in table.levels]])
    edge, token, inside = _edges(ops, dev, node, which, width)
    if room is not None and by_edge:
        target = ops.where(inside, _target(ops, table, ops.where(inside, edge, 0)), table.dead)
        inside = inside & (_distance(ops, dev, target, which[:, None]) < room)
    mask = ops.scatter(mask, ops.where(inside, token, table.vocab_size), -1)
    if room is not None and not by_edge:
        mask = ops.where(_distance(ops, dev, node[:, None], which[:, None]) <= room, mask, mask * 0)
    if table.eos is None:
        return mask
    may_end = ops.where(_accepting(ops, dev, state), -1, 0)[:, None]
    return ops.scatter(mask, (node * 0 + table.eos)[:, None], ops.integers(may_end, dev.kept.edges))


# ------------------------------------------------------------------------------------------------ the kind


class FilteredTableCursor(Cursor):
    """A table of sequences under filters."""

    def anchor(self, dev: DeviceFilteredTable) -> Array:
        return dev.kept.of

    def check_state(self, dev: DeviceFilteredTable, state: FilteredTableState) -> None:
        _which(state)

    def start(self, dev: DeviceFilteredTable, batch: int) -> FilteredTableState:
        """Return the state of `batch` sequences with nothing written yet: the dead one under a filter without rows.

        Filters: the i-th of `of` is that of the i-th share of the batch, which must have equal shares.
        """
        ops = self.ops
        shares = dev.kept.of.shape[0]
        check_starts(shares, batch)
        which = ops.gather(dev.kept.of, ops.arange(batch, like=dev.kept.of) // (batch // shares))
        return FilteredTableState(ops.where(ops.lookup(dev.kept.some, which) > 0, which * 0, dev.dead), which)

    def accepting(self, dev: DeviceFilteredTable, state: FilteredTableState) -> Array:
        return _accepting(self.ops, dev, state)

    def distance(self, dev: DeviceFilteredTable, state: FilteredTableState) -> Array:
        return _distance(self.ops, dev, state.node, _which(state))

    def allowed(self, dev: DeviceFilteredTable, state: FilteredTableState, remaining: Array | None) -> Array:
        return _allowed(self.ops, dev, state, remaining)

    def offers(
        self, dev: DeviceFilteredTable, x: Array, state: FilteredTableState, level: int, normalized: bool
    ) -> Offer:
        ops = self.ops
        table, node, which = dev.table, state.node, _which(state)
        shape = table.level(level)
        if level == 0:  # all states are the start, whose edges need no look-up
            edge = ops.arange(shape.width, like=dev.kept.of) + node[:, None] * 0
            token = _token(ops, table, edge)
            inside = (node == 0)[:, None] & _kept_from(ops, dev, which, node * 0, shape.width)
        elif shape.dense:
            size = table.vocab_size
            kept = ops.keep_packed(x[:, :size], _mask_words(ops, dev, node, which), size)
            if not shape.tails:
                return Offer(kept, None)
            in_tail, token = _entry(ops, table, node)
            goes = (in_tail & (token < size))[:, None]
            token = ops.where(goes, token[:, None], 0)
            return Offer(ops.scatter(kept, token, ops.where(goes, ops.take(x, token), kept[:, :1])), None)
        elif shape.rows:
            edge, token, inside = _edges(ops, dev, node, which, shape.width)
        else:
            edge = (node + (table.num_edges - table.num_rows))[:, None]
            token = _token(ops, table, edge)
            inside = (token < table.vocab_size) & (edge >= table.num_edges)  # not of a state that is not that deep
        scores = ops.where(inside, ops.take(x, ops.where(inside, token, 0)), -float("inf"))
        return Offer(scores, token, edge)

    def follow(
        self, dev: DeviceFilteredTable, state: FilteredTableState, tokens: Array, level: int | None, alive: Array | None
    ) -> FilteredTableState:
        width = tokens.shape[1]
        row = self.ops.arange(tokens.shape[0] * width, like=dev.kept.of) // width
        rows = state if width == 1 else self.ops.gather(state, row)
        node, which = self.after(dev, rows, tokens.reshape(-1))
        node = node.reshape(tokens.shape)
        if alive is not None:
            node = self.ops.where(alive, node, dev.dead)
        return FilteredTableState(node, which.reshape(tokens.shape))

    def after(self, dev: DeviceFilteredTable, state: FilteredTableState, tokens: Array) -> FilteredTableState:
        ops = self.ops
        table, node, which = dev.table, state.node, _which(state)
        token = ops.integers(tokens, node)
        inside = (token >= 0) & (token < dev.vocab_size)
        edge, found = _find(ops, table, node, ops.where(inside, token, 0))
        found = inside & found & _kept(ops, dev, which, edge)
        reached = ops.where(found, _target(ops, table, edge), dev.dead)
        if dev.eos is not None:
            ended = ops.where(node < table.num_rows, table.after_eos, node)
            reached = ops.where((token == dev.eos) & _accepting(ops, dev, state), ended, reached)
        return FilteredTableState(reached, which)

    def reached(self, dev: DeviceFilteredTable, chosen: Chosen) -> FilteredTableState:
        ops, table, (node, which) = self.ops, dev.table, chosen.states()
        if chosen.edges is None:
            edges = _first_edge(ops, table, node) + _in_mask(ops, table, node, chosen.tokens)[1]
        else:
            edges = chosen.edges()
        return FilteredTableState(ops.where(chosen.alive, _target(ops, table, edges), dev.dead), which)

    def first_offers(
        self, dev: DeviceFilteredTable, state: FilteredTableState, width: int, remaining: Array | None
    ) -> tuple[Array, Array]:
        ops = self.ops
        which = _which(state)
        edge, token, allowed = _edges(ops, dev, state.node, which, width)
        if remaining is not None:
            room = _checked_remaining(ops, dev, state, remaining)
            target = ops.where(allowed, _target(ops, dev.table, ops.where(allowed, edge, 0)), dev.dead)
            allowed = allowed & (_distance(ops, dev, target, which[:, None]) < room)
        return token, allowed

    def contains(self, dev: DeviceFilteredTable, sids: Array) -> Array:
        ops = self.ops
        check_sids(sids.shape)
        check_tokens(sids.shape[0], sids.shape[:1], ops.is_integral(sids), sids.dtype)
        table, node = dev.table, ops.zeros((sids.shape[0],), like=dev.kept.of)
        ends = node > 0  # bool, where the sequence may end
        for t in range(sids.shape[1]):
            token = ops.integers(sids[:, t], node)
            if dev.eos is not None:
                at_end = is_end(dev, token)
                ended = ops.where(at_end & ends, ops.where(node < table.num_rows, table.after_eos, node), dev.dead)
            inside = (token >= 0) & (token < dev.vocab_size)
            edge, found = _find(ops, table, node, ops.where(inside, token, 0))
            reached = ops.where(inside & found, _target(ops, table, edge), dev.dead)
            node = reached if dev.eos is None else ops.where(at_end, ended, reached)
            in_tail, entry = _entry(ops, table, node)
            in_row = ~in_tail & ops.lookup(table.accepting, ops.where(in_tail, 0, node))
            ends = in_row | (in_tail & (entry == dev.vocab_size))
        return ends
