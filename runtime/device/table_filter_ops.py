"""Operations on a table of sequences under filters, written once against the array functions of an operations module.

States are those of the table, and the number of a filter. A state that is not dead has a kept sequence below it, and
what is allowed leads to states that have: of a row, the edges whose bits are set; of a tail, its one token.
`dispatch.by_kind` puts the operations of this file behind those of the same names on tables.
"""

from __future__ import annotations

from ...kernels.limits import UNREACHABLE
from .backend import Array, Backend, Cache
from .device_table import (
    Candidates,
    DeviceTable,
    FilteredTableState,
    Selection,
    check_floating,
    check_logits,
    check_remaining,
    check_rows,
    check_sids,
    check_starts,
    check_tokens,
)
from .end_in_order import with_end
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
    is_integer = "int" in str(remaining.dtype)
    check_remaining(state.node.shape[0], remaining.shape, is_integer, remaining.dtype, dev.table.distance.shape[0] > 0)
    room = ops.integers(remaining, state.node)
    return ops.where(room < 0, 0, ops.where(room < UNREACHABLE, room, UNREACHABLE - 1))[:, None]


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
    may_end = ops.where(accepting(ops, dev, state), -1, 0)[:, None]
    return ops.scatter(mask, (node * 0 + table.eos)[:, None], ops.integers(may_end, dev.kept.edges))


def _scored(
    ops: Backend, dev: DeviceFilteredTable, x: Array, state: FilteredTableState, level: int
) -> tuple[Array, Array, Array]:
    """Return x (n, V') of what states at one depth allow (n, w), else -inf, their tokens, and the edges of these.

    Tokens and edges None: all of V. EOS is not among them.
    """
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
            return kept, None, None
        in_tail, token = _entry(ops, table, node)
        goes = (in_tail & (token < size))[:, None]
        token = ops.where(goes, token[:, None], 0)
        return ops.scatter(kept, token, ops.where(goes, ops.take(x, token), kept[:, :1])), None, None
    elif shape.rows:
        edge, token, inside = _edges(ops, dev, node, which, shape.width)
    else:
        edge = (node + (table.num_edges - table.num_rows))[:, None]
        token = _token(ops, table, edge)
        inside = token < table.vocab_size
    scores = ops.where(inside, ops.take(x, ops.where(inside, token, 0)), -float("inf"))
    return scores, token, edge


def _check(dev: DeviceFilteredTable, logits: Array, state: FilteredTableState) -> None:
    check_floating("float" in str(logits.dtype), logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)


# ------------------------------------------------------------------------------------------------ operations


def start(ops: Backend, dev: DeviceFilteredTable, batch: int) -> FilteredTableState:
    """Return the state of `batch` sequences with nothing written yet: the dead one under a filter that keeps nothing.

    Filters: the i-th of `of` is that of the i-th share of the batch, which must have equal shares.
    """
    shares = dev.kept.of.shape[0]
    check_starts(shares, batch)
    which = ops.gather(dev.kept.of, ops.arange(batch, like=dev.kept.of) // (batch // shares))
    return FilteredTableState(ops.where(ops.lookup(dev.kept.some, which) > 0, which * 0, dev.dead), which)


def first_tokens(ops: Backend, dev: DeviceFilteredTable, cache: Cache, count: int, token: int) -> Array:
    """Return `count` copies of the token a model is first fed with, where the table is."""
    return ops.zeros((count,), like=dev.kept.of) + token


def accepting(ops: Backend, dev: DeviceFilteredTable, state: FilteredTableState) -> Array:
    """Return whether each sequence may end where it stands: bool (B,)."""
    in_tail, entry = _entry(ops, dev.table, state.node)
    ends = in_tail & (entry == dev.vocab_size)
    if not dev.kept.ends_in_rows:
        return ends
    row = ops.where(in_tail, 0, state.node)
    return ends | (~in_tail & _bit(ops, dev.kept.ends, _which(state) * dev.kept.end_words, row))


def distance(ops: Backend, dev: DeviceFilteredTable, state: FilteredTableState) -> Array:
    """Return the tokens (B,) in which each sequence can be complete, at least one of which is always allowed.

    The table must have been put with budgets.
    """
    return _distance(ops, dev, state.node, _which(state))


def bitmask(ops: Backend, dev: DeviceFilteredTable, state: FilteredTableState, remaining: Array | None = None) -> Array:
    """Return the tokens allowed in each state, packed, as of a table."""
    return ops.pack(_allowed(ops, dev, state, remaining)[:, : dev.vocab_size])


def mask_logits(
    ops: Backend, dev: DeviceFilteredTable, logits: Array, state: FilteredTableState, remaining: Array | None = None
) -> Array:
    """Return logits (B, V') with -inf at every token that is not allowed; what is allowed is left untouched."""
    _check(dev, logits, state)
    return ops.keep(logits, _allowed(ops, dev, state, remaining), dev.vocab_size)


def mask_logits_(
    ops: Backend, dev: DeviceFilteredTable, logits: Array, state: FilteredTableState, remaining: Array | None = None
) -> Array:
    """Mask logits (B, V') as `mask_logits` does, in place, and return them."""
    logits[...] = mask_logits(ops, dev, logits, state, remaining)
    return logits


def candidates(
    ops: Backend,
    dev: DeviceFilteredTable,
    logits: Array,
    state: FilteredTableState,
    width: int,
    level: int | None = None,
) -> Candidates:
    """Return the `width` best allowed continuations of each row, EOS among them, best first.

    level: the depth of all states, where it is known.
    """
    _check(dev, logits, state)
    log_probs, token = ops.log_softmax(logits), None
    if level is None or dev.table.level(level).dense:
        scores = ops.keep(log_probs, _allowed(ops, dev, state, None), dev.vocab_size)
    else:
        scores, token, _ = _scored(ops, dev, log_probs, state, level)
        if dev.eos is not None:
            last = ops.where(accepting(ops, dev, state), log_probs[:, dev.eos], -float("inf"))
            scores, token = with_end(ops, scores, token, last, dev.eos)
    best, at = ops.top_k(ops.where(scores == scores, scores, -float("inf")), width)
    alive = best > -float("inf")
    tokens = ops.where(alive, ops.integers(at, state.node) if token is None else ops.take(token, at), 0)
    row = ops.arange(tokens.shape[0] * width, like=dev.kept.of) // width
    rows: FilteredTableState = ops.gather(state, row)
    node = advance(ops, dev, rows, tokens.reshape(-1)).node.reshape(tokens.shape)
    reached = FilteredTableState(ops.where(alive, node, dev.dead), rows.filter.reshape(tokens.shape))
    return Candidates(best, tokens, reached)


def select(
    ops: Backend,
    dev: DeviceFilteredTable,
    logits: Array,
    state: FilteredTableState,
    scores: Array,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, EOS aside, as of a table."""
    _check(dev, logits, state)
    table, (batch, m) = dev.table, scores.shape
    shape = table.level(level)
    logits = logits + ops.zeros((1, 1), like=logits) if renormalise else ops.log_softmax(logits)
    x, token, edge = _scored(ops, dev, logits, state, level)
    if renormalise:
        offered = x
        if dev.eos is not None:
            last = ops.where(accepting(ops, dev, state), logits[:, dev.eos], -float("inf"))
            offered = ops.concatenate([x, last[:, None]], 1)
        mass = ops.logsumexp(offered)[:, None]
        sound = (mass > -float("inf")) & (mass < float("inf"))
        x = ops.where(sound, x - ops.where(sound, mass, 0.0), -float("inf"))
    parents, which = None, state.filter
    if m == beams and shape.width == 1 and token is not None:  # nothing branches: each beam goes on in its place
        best = scores + x.reshape(batch, m)
        best = ops.where(best == best, best, -float("inf"))
        tokens, edges = token.reshape(batch, m), edge.reshape(-1)
    else:
        best, at = ops.top_of_beams(x.reshape(batch, m, -1), scores, beams)
        at = ops.integers(at, state.node)
        width = x.shape[1]
        parents = at // width
        row = (parents + m * ops.arange(batch, like=at)[:, None]).reshape(-1)
        which = ops.gather(state.filter, row)
        if token is None:
            tokens, node = at - parents * width, ops.gather(state.node, row)
            edges = _first_edge(ops, table, node) + _in_mask(ops, table, node, tokens.reshape(-1))[1]
        else:
            tokens = ops.take(token.reshape(batch, -1), at)
            edges = ops.take(edge.reshape(batch, -1), at).reshape(-1)
    alive = best > -float("inf")
    reached = ops.where(alive.reshape(-1), _target(ops, table, edges), dev.dead)
    return Selection(best, parents, ops.where(alive, tokens, 0), FilteredTableState(reached, which))


def end_scores(
    ops: Backend, dev: DeviceFilteredTable, logits: Array, state: FilteredTableState, renormalise: bool = False
) -> Array:
    """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere; `renormalise` as in `select`."""
    _check(dev, logits, state)
    rows = mask_logits(ops, dev, logits, state) if renormalise else logits
    last = ops.log_softmax(rows)[:, dev.eos]
    return ops.where(accepting(ops, dev, state) & (last <= float("inf")), last, -float("inf"))


def advance(ops: Backend, dev: DeviceFilteredTable, state: FilteredTableState, tokens: Array) -> FilteredTableState:
    """Return the state after one more token (B,) each; the dead state where it was not allowed."""
    check_tokens(state.node.shape[0], tokens.shape, "int" in str(tokens.dtype), tokens.dtype)
    table, node, which = dev.table, state.node, _which(state)
    token = ops.integers(tokens, node)
    inside = (token >= 0) & (token < dev.vocab_size)
    edge, found = _find(ops, table, node, ops.where(inside, token, 0))
    found = inside & found & _kept(ops, dev, which, edge)
    reached = ops.where(found, _target(ops, table, edge), dev.dead)
    if dev.eos is not None:
        ended = ops.where(node < table.num_rows, table.after_eos, node)
        reached = ops.where((token == dev.eos) & accepting(ops, dev, state), ended, reached)
    return FilteredTableState(reached, which)


def log_mass(ops: Backend, dev: DeviceFilteredTable, logits: Array, state: FilteredTableState) -> Array:
    """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold."""
    return ops.logsumexp(mask_logits(ops, dev, ops.log_softmax(logits), state))


def contains(ops: Backend, dev: DeviceFilteredTable, sids: Array) -> Array:
    """Return whether each row of sids (N, L) is in the set, whatever filters keep: bool (N,)."""
    check_sids(sids.shape)
    check_tokens(sids.shape[0], sids.shape[:1], "int" in str(sids.dtype), sids.dtype)
    table, node = dev.table, ops.zeros((sids.shape[0],), like=dev.kept.of)
    ends = node > 0  # bool, where the sequence may end
    for t in range(sids.shape[1]):
        token = ops.integers(sids[:, t], node)
        if dev.eos is not None:
            is_end = token == dev.eos
            for end in dev.other_ends:
                is_end = is_end | (token == end)
            ended = ops.where(is_end & ends, ops.where(node < table.num_rows, table.after_eos, node), dev.dead)
        inside = (token >= 0) & (token < dev.vocab_size)
        edge, found = _find(ops, table, node, ops.where(inside, token, 0))
        reached = ops.where(inside & found, _target(ops, table, edge), dev.dead)
        node = reached if dev.eos is None else ops.where(is_end, ended, reached)
        in_tail, entry = _entry(ops, table, node)
        in_row = ~in_tail & ops.lookup(table.accepting, ops.where(in_tail, 0, node))
        ends = in_row | (in_tail & (entry == dev.vocab_size))
    return ends


def allowed_tokens(
    ops: Backend, dev: DeviceFilteredTable, state: FilteredTableState, width: int, remaining: Array | None = None
) -> tuple[Array, Array]:
    """Return tokens of the first `width` edges of each state, and ends: (B, W), and which of them are allowed.

    W is `width`, and one more for each end token; these have the last columns. Tokens ascend, 0 where one is not
    allowed. remaining: as for `bitmask`.
    """
    which = _which(state)
    edge, token, allowed = _edges(ops, dev, state.node, which, width)
    if remaining is not None:
        room = _checked_remaining(ops, dev, state, remaining)
        target = ops.where(allowed, _target(ops, dev.table, ops.where(allowed, edge, 0)), dev.dead)
        allowed = allowed & (_distance(ops, dev, target, which[:, None]) < room)
    if dev.eos is not None:
        token = ops.concatenate([token, token[:, :1] * 0 + dev.eos], 1)
        allowed = ops.concatenate([allowed, accepting(ops, dev, state)[:, None]], 1)
    return ops.where(allowed, token, 0), allowed
