"""Operations on a sorted matrix, written once against the array functions of an operations module.

A prefix is the interval of rows that begin with it. Each row of the matrix lies on the device as a few words, of as
many tokens as fit, so that one binary search of the first word follows a token from any state that is not deeper, and
the few rows of an interval are read as they are. Only where intervals are longer than the vocabulary all tokens are
searched for; after no token, and after one where that costs little, a bit mask says what is allowed.

`dispatch.by_kind` puts the operations of this file behind those of the same names on tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import TableError
from ...kernels.limits import UNREACHABLE
from ...table.sorted_matrix import SortedMatrix
from ...table.transition_table import Level
from .backend import Array, Backend, Cache
from .device_table import (
    Candidates,
    MatrixState,
    Selection,
    check_floating,
    check_logits,
    check_remaining,
    check_rows,
    check_sids,
    check_tokens,
)

_MASK_SHARE = 8  # masks after one token are made where they take at most 1/8 of the matrix
_MOST_NARROW = 1 << 30  # rows where positions have 32 bits: a search looks at most twice as far
_CHUNK = 1 << 15  # rows packed at once, which then stay in cache
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # (256, 8)


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A `SortedMatrix` in device arrays: Q rows of L tokens, `bits` bits a token, `per_word` tokens a word.

    A word holds tokens most significant first, so that words sort as the tokens do; the last one ends with zeros.
    """

    words: tuple[Array, ...]  # of (Q,)
    masks: Array  # (R, K) uint8: the first of what may come first, the last of nothing, else of what may come second
    mask_after: Array  # (V,) int32 the mask after a first token, where `masked` is 2
    byte_bits: Array  # (256, 8) int32: -1 where the bit of a byte is set
    steps: Array  # (L,) 0 .. L - 1, of the type of positions
    vocab_size: int
    length: int
    count: int  # Q
    bits: int
    per_word: int
    masked: int  # depths that have masks, 1 or 2
    widths: tuple[int, ...]  # (L,) longest interval by depth
    branches: tuple[int, ...]  # (L,) most tokens allowed by depth
    top: int | None  # how many logits of a row are verified; None for all

    # what decoders ask of a table
    eos = None
    calls = None
    is_trie = True
    has_masks = False

    @property
    def fixed_length(self) -> int:
        """The length of every sequence, L."""
        return self.length

    min_length = max_length = fixed_length

    @property
    def num_states(self) -> int:
        """One more than the node of the dead state."""
        return self.count + 1

    @property
    def dead(self) -> int:
        """The node of the state that allows nothing."""
        return self.count

    @property
    def levels(self) -> tuple[Level, ...]:
        """What is static at each depth 0 .. L - 1; the width counts rows, V if there are more or logits are needed."""
        most = self.vocab_size
        widths = (most if self.top is not None else min(width, most) for width in self.widths)
        return tuple(Level(width, depth < self.masked, True, False) for depth, width in enumerate(widths))


def place(
    matrix: SortedMatrix, convert: Callable[[NDArray[Any]], Any], top: int | None, wide: bool = True
) -> DeviceMatrix:
    """Lay a matrix out for searches; each array goes through `convert`. wide: there are integers of 64 bits.

    Raises TypeError, ValueError; TableError where a token needs more bits than there are.
    """
    if top is not None and (isinstance(top, bool) or not isinstance(top, int)):
        raise TypeError(f"top must be an integer or None, not a {type(top).__name__}")
    if top is not None and top < 1:
        raise ValueError(f"top={top} must be 1 or more; leave it out to verify all tokens")
    room = 62 if wide else 30  # one more and a search for what follows the last would overflow
    bits = max(1, (matrix.vocab_size - 1).bit_length())
    if bits > room:
        raise TableError(
            f"tokens below {matrix.vocab_size:,} need {bits} bits, in JAX's 32-bit mode a word has {room}: "
            "set jax.config.update('jax_enable_x64', True)"
        )
    length, count = matrix.columns.shape
    if not wide and count >= _MOST_NARROW:
        raise TableError(
            f"{count:,} rows are more than JAX's 32-bit mode can search, {_MOST_NARROW:,}: "
            "set jax.config.update('jax_enable_x64', True)"
        )
    per_word = min(length, room // bits)
    kind = np.int64 if wide else np.int32
    words: list[Any] = [np.empty(count, kind) for _ in range(-(-length // per_word))]
    for lo in range(0, count, _CHUNK):
        for at, word in enumerate(words):
            part = word[lo : lo + _CHUNK]
            part[:] = 0
            for depth in range(at * per_word, (at + 1) * per_word):
                part <<= bits
                if depth < length:
                    part |= matrix.columns[depth, lo : lo + _CHUNK]
    masks, after = _masks(matrix)
    return DeviceMatrix(
        words=tuple(convert(word) for word in words),
        masks=convert(masks),
        mask_after=convert(after),
        byte_bits=convert(-_BITS.astype(np.int32)),
        steps=convert(np.arange(length, dtype=kind)),
        vocab_size=matrix.vocab_size,
        length=length,
        count=count,
        bits=bits,
        per_word=per_word,
        masked=1 if len(masks) == 2 else 2,
        widths=matrix.widths,
        branches=matrix.branches,
        top=None if top is None or top >= matrix.vocab_size else top,
    )


def _masks(matrix: SortedMatrix) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return masks (R, K), and which of them (V,) is that after a first token.

    The first mask is of first tokens, the last of none; between them those of second tokens, where they are worth it.
    8 K is a multiple of 64 and more than V: there is always a column to write to what is not allowed.
    """
    size, columns = matrix.vocab_size, matrix.columns
    width = 64 * (size // 64 + 1)
    first = np.unique(columns[0])
    second = (
        matrix.length > 1 and matrix.widths[1] > size // 8 and first.size * width * _MASK_SHARE <= 64 * columns.nbytes
    )
    bits = np.zeros((2 + first.size * second, width), np.bool_)
    bits[0, first] = True
    number = np.full(size, len(bits) - 1, np.int32)
    if second:
        number[first] = np.arange(1, 1 + first.size)
        new = np.append(True, (columns[0, 1:] != columns[0, :-1]) | (columns[1, 1:] != columns[1, :-1]))
        at = np.flatnonzero(new)
        bits[number[columns[0, at]], columns[1, at]] = True
    return np.packbits(bits, axis=1, bitorder="little"), number


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


def _tokens_at(ops: Backend, dev: DeviceMatrix, row: Array, depth: Array) -> Array:
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


def _follow(
    ops: Backend, dev: DeviceMatrix, low: Array, high: Array, depth: Array, token: Array
) -> tuple[Array, Array]:
    """Return the rows of low .. high (n, 1) that have a token (n, k) at a depth: their low, high (n, k).

    depth: one for all, or (n, 1), below L. Tokens lie in 0 .. V - 1. Where no row has it, both are the same.
    """
    static = isinstance(depth, int)
    if static and dev.branches[depth] == 1:
        same = _tokens_at(ops, dev, low, depth) == token
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


# ------------------------------------------------------------------------------------------------ what is allowed


def _all_tokens(ops: Backend, dev: DeviceMatrix, low: Array) -> Array:
    """Return all tokens for each row: (n, V)."""
    return low * 0 + ops.arange(dev.vocab_size, like=dev.steps)


def _rows(ops: Backend, dev: DeviceMatrix, low: Array, width: int) -> Array:
    """Return the first `width` rows of each interval (n, width), whether they are in it or not."""
    return low + ops.arange(width, like=dev.steps)


def _first(ops: Backend, token: Array) -> Array:
    """Return which of the ascending tokens (n, k) are unlike the one before."""
    return ops.concatenate([token[:, :1] == token[:, :1], token[:, 1:] != token[:, :-1]], 1)


def _unfold(ops: Backend, dev: DeviceMatrix, number: Array) -> Array:
    """Return masks (n, 8 K) by their numbers (n, 1): int32, -1 where a token is allowed, else 0."""
    packed = ops.integers(ops.gather(dev.masks, number[:, 0]), dev.steps)
    return ops.gather(dev.byte_bits, packed.reshape(-1)).reshape(number.shape[0], -1)


def _mask_after(ops: Backend, dev: DeviceMatrix, low: Array) -> Array:
    """Return the number of the mask of what may follow the first token of rows (n, 1)."""
    return ops.integers(ops.lookup(dev.mask_after, _tokens_at(ops, dev, low, 0)), low)


def _fits(ops: Backend, dev: DeviceMatrix, state: MatrixState, remaining: Array) -> Array:
    """Return whether so many tokens (n,) are enough for what each sequence lacks: (n, 1)."""
    check_remaining(state.node.shape[0], remaining.shape, _is(remaining, "int"), remaining.dtype, True)
    return (ops.integers(remaining, state.depth) >= dev.length - state.depth)[:, None]


def _allowed(ops: Backend, dev: DeviceMatrix, state: MatrixState, remaining: Array) -> Array:
    """Return int32 (n, V or more): -1 for tokens that are allowed from states at any depths, else 0."""
    low, high, depth = (array[:, None] for array in state)
    live = (low < high) & (depth < dev.length)
    if remaining is not None:
        live = live & _fits(ops, dev, state, remaining)
    number = ops.where(live & (depth == 0), 0, dev.masks.shape[0] - 1)
    if dev.masked == 2:
        number = ops.where(live & (depth == 1), _mask_after(ops, dev, low), number)
    mask = _unfold(ops, dev, number)
    width = max(dev.widths[dev.masked :], default=0)
    if width == 0:
        return mask
    depth = ops.where(live, depth, 0)  # of those that have masks it only says the same again
    if width <= dev.vocab_size:
        row = _rows(ops, dev, low, width)
        return _write(ops, mask, _tokens_at(ops, dev, row, depth), live & (row < high))
    lower, upper = _follow(ops, dev, low, high, depth, _all_tokens(ops, dev, low))
    found = -ops.integers(live & (lower < upper), mask)
    return mask[:, : dev.vocab_size] | found


def _write(ops: Backend, mask: Array, token: Array, inside: Array) -> Array:
    """Return a mask (n, 8 K) in which tokens (n, k) are allowed where `inside`; the last column is no token."""
    return ops.scatter(mask, ops.where(inside, token, mask.shape[1] - 1), -1)


def _verified(
    ops: Backend, dev: DeviceMatrix, x: Array, state: MatrixState, level: int | None
) -> tuple[Array, Array, Array]:
    """Return the M best of x (n, V'), their tokens, and which of them are allowed: (n, M) each.

    level: the depth of all states; None where they have their own.
    """
    assert dev.top is not None
    x = x[:, : dev.vocab_size]
    best, token = ops.top_k(ops.where(x == x, x, -float("inf")), dev.top)
    low, high, depth = (array[:, None] for array in state)
    live = (low < high) & (depth < dev.length)
    token = ops.integers(token, low)
    lower, upper = _follow(ops, dev, low, high, ops.where(live, depth, 0) if level is None else level, token)
    return best, token, live & (lower < upper)


def _masked(ops: Backend, dev: DeviceMatrix, x: Array, state: MatrixState, remaining: Array | None = None) -> Array:
    """Return x (n, V') with -inf where a token is not allowed from states at any depths."""
    if dev.top is None:
        mask = _allowed(ops, dev, state, remaining)
    else:
        _, token, found = _verified(ops, dev, x, state, None)
        if remaining is not None:
            found = found & _fits(ops, dev, state, remaining)
        mask = _write(ops, _unfold(ops, dev, state.node[:, None] * 0 + (dev.masks.shape[0] - 1)), token, found)
    return ops.keep(x, mask, dev.vocab_size)


def _scored(ops: Backend, dev: DeviceMatrix, x: Array, state: MatrixState, level: int) -> tuple[Array, Array]:
    """Return x (n, V') of what states at one depth allow (n, w), else -inf, and the tokens; None: all of V.

    A state of another depth allows nothing.
    """
    here = state.depth == level
    state = MatrixState(ops.where(here, state.node, dev.count), ops.where(here, state.high, dev.count), state.depth)
    low, high = state.node[:, None], state.high[:, None]
    if level >= dev.length:
        return ops.where(low < 0, x[:, :1], -float("inf")), low * 0
    if dev.top is not None:
        best, token, found = _verified(ops, dev, x, state, level)
        return ops.where(found, best, -float("inf")), token
    width = 1 if dev.branches[level] == 1 else dev.widths[level]
    if level < dev.masked and width > 1:
        none = dev.masks.shape[0] - 1
        number = _mask_after(ops, dev, low) if level else low * 0
        return ops.keep(
            x[:, : dev.vocab_size], _unfold(ops, dev, ops.where(low < high, number, none)), dev.vocab_size
        ), None
    if width <= dev.vocab_size:
        row = _rows(ops, dev, low, width)
        token = _tokens_at(ops, dev, row, level)
        inside = (row < high) & _first(ops, token) if width > 1 else row < high
        return ops.where(inside, ops.take(x, token), -float("inf")), token
    lower, upper = _follow(ops, dev, low, high, level, _all_tokens(ops, dev, low))
    return ops.where(lower < upper, x[:, : dev.vocab_size], -float("inf")), None


def _is(x: Array, kind: str) -> bool:
    """Return whether an array is of a kind, "int" or "float", whatever library it is of."""
    return kind in str(x.dtype)


def _check(dev: DeviceMatrix, logits: Array, state: MatrixState) -> None:
    check_floating(_is(logits, "float"), logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)


def _reached(ops: Backend, dev: DeviceMatrix, low: Array, high: Array, depth: Array, alive: Array) -> MatrixState:
    """Return the state of these rows and this many tokens where it is alive, else the dead state."""
    return MatrixState(
        ops.where(alive, low, dev.count), ops.where(alive, high, dev.count), ops.where(alive, depth, dev.length)
    )


# ------------------------------------------------------------------------------------------------ operations


def start(ops: Backend, dev: DeviceMatrix, batch: int) -> MatrixState:
    """Return the state of `batch` sequences with nothing written yet."""
    zero = ops.zeros((batch,), like=dev.steps)
    return MatrixState(zero, zero + dev.count, zero)


def first_tokens(ops: Backend, dev: DeviceMatrix, cache: Cache, count: int, token: int) -> Array:
    """Return `count` copies of the token a model is first fed with, where the matrix is."""
    return ops.zeros((count,), like=dev.steps) + token


def accepting(ops: Backend, dev: DeviceMatrix, state: MatrixState) -> Array:
    """Return whether each sequence is complete: bool (B,)."""
    return (state.depth == dev.length) & (state.node < state.high)


def distance(ops: Backend, dev: DeviceMatrix, state: MatrixState) -> Array:
    """Return the tokens (B,) that each sequence lacks."""
    return ops.where(state.node < state.high, dev.length - state.depth, UNREACHABLE)


def bitmask(ops: Backend, dev: DeviceMatrix, state: MatrixState, remaining: Array | None = None) -> Array:
    """Return the tokens allowed in each state, packed, as of a table; ValueError where top= is set."""
    _need_all(dev, "bitmask")
    return ops.pack(_allowed(ops, dev, state, remaining)[:, : dev.vocab_size])


def mask_logits(
    ops: Backend, dev: DeviceMatrix, logits: Array, state: MatrixState, remaining: Array | None = None
) -> Array:
    """Return logits (B, V') with -inf at every token that is not allowed; what is allowed is left untouched."""
    _check(dev, logits, state)
    return _masked(ops, dev, logits, state, remaining)


def mask_logits_(
    ops: Backend, dev: DeviceMatrix, logits: Array, state: MatrixState, remaining: Array | None = None
) -> Array:
    """Mask logits (B, V') as `mask_logits` does, in place, and return them."""
    logits[...] = mask_logits(ops, dev, logits, state, remaining)
    return logits


def candidates(
    ops: Backend, dev: DeviceMatrix, logits: Array, state: MatrixState, width: int, level: int | None = None
) -> Candidates:
    """Return the `width` best allowed continuations of each row, best first.

    level: the depth of all states, where it is known; a state of another depth then has none.
    """
    _check(dev, logits, state)
    log_probs = ops.log_softmax(logits)
    if level is None:
        scores, token = _masked(ops, dev, log_probs, state), None
    else:
        scores, token = _scored(ops, dev, log_probs, state, level)
    best, at = ops.top_k(ops.where(scores == scores, scores, -float("inf")), width)
    alive = best > -float("inf")
    low, high, depth = (array[:, None] for array in state)
    tokens = ops.where(alive, ops.integers(at, low) if token is None else ops.take(token, at), 0)
    if level is not None and level < dev.length:
        lower, upper = _follow(ops, dev, low, high, level, tokens)
    else:
        lower, upper = _follow(ops, dev, low, high, ops.where(depth < dev.length, depth, 0), tokens)
    return Candidates(best, tokens, _reached(ops, dev, lower, upper, depth + 1, alive))


def select(
    ops: Backend,
    dev: DeviceMatrix,
    logits: Array,
    state: MatrixState,
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
    in_place = m == beams and dev.top is None and (level >= dev.length or dev.branches[level] == 1)
    if in_place:  # nothing branches: each beam goes on in its place
        best = scores + x.reshape(batch, m)
        best = ops.where(best == best, best, -float("inf"))
        parents, tokens = None, token
        low, high = state.node[:, None], state.high[:, None]
    else:
        best, at = ops.top_of_beams(x.reshape(batch, m, -1), scores, beams)
        at = ops.integers(at, state.node)
        width = x.shape[1]
        parents = at // width
        tokens = at - parents * width if token is None else ops.take(token.reshape(batch, -1), at)
        row = (parents + m * ops.arange(batch, like=at)[:, None]).reshape(-1)
        low, high = ops.gather(state.node, row)[:, None], ops.gather(state.high, row)[:, None]
    alive = best > -float("inf")
    tokens = ops.where(alive, tokens.reshape(batch, beams), 0)
    if level < dev.length and not in_place:
        low, high = _follow(ops, dev, low, high, level, tokens.reshape(-1, 1))
    going = alive.reshape(-1)
    reached = _reached(ops, dev, low[:, 0], high[:, 0], low[:, 0] * 0 + (level + 1), going)
    return Selection(best, parents, tokens, reached)


def end_scores(ops: Backend, dev: DeviceMatrix, logits: Array, state: MatrixState, renormalise: bool = False) -> Array:
    """Raise ValueError: there is no EOS."""
    raise ValueError("a sorted matrix has no EOS, its sequences end by themselves: compile_sids(.., eos=) has one")


def advance(ops: Backend, dev: DeviceMatrix, state: MatrixState, tokens: Array) -> MatrixState:
    """Return the state after one more token (B,) each; the dead state where it was not allowed."""
    check_tokens(state.node.shape[0], tokens.shape, _is(tokens, "int"), tokens.dtype)
    low, high, depth = (array[:, None] for array in state)
    token = ops.integers(tokens, state.node)[:, None]
    inside = (token >= 0) & (token < dev.vocab_size) & (low < high) & (depth < dev.length)
    lower, upper = _follow(ops, dev, low, high, ops.where(inside, depth, 0), ops.where(inside, token, 0))
    alive = (inside & (lower < upper))[:, 0]
    return _reached(ops, dev, lower[:, 0], upper[:, 0], state.depth + 1, alive)


def log_mass(ops: Backend, dev: DeviceMatrix, logits: Array, state: MatrixState) -> Array:
    """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold, of those verified."""
    _check(dev, logits, state)
    return ops.logsumexp(_masked(ops, dev, ops.log_softmax(logits), state))


def contains(ops: Backend, dev: DeviceMatrix, sids: Array) -> Array:
    """Return whether each row of sids (N, L) is in the set: bool (N,).

    One search of the first words; only where rows share those, one of the next within what was found.
    """
    check_sids(sids.shape)
    check_tokens(sids.shape[0], sids.shape[:1], _is(sids, "int"), sids.dtype)
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
        if at + 1 < len(dev.words) and dev.widths[(at + 1) * dev.per_word] > 1:  # the next word needs the end as well
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


def allowed_tokens(
    ops: Backend, dev: DeviceMatrix, state: MatrixState, width: int, remaining: Array | None = None
) -> tuple[Array, Array]:
    """Return tokens (B, width) of the first `width` rows of each state, and which are allowed: each once.

    Tokens ascend, 0 where there is none. They are all that are allowed where no interval has more rows than `width`:
    see `SortedMatrix.widths`. ValueError where top= is set, as it has no logits.
    """
    _need_all(dev, "allowed_tokens")
    low, high, depth = (array[:, None] for array in state)
    live = depth < dev.length
    if remaining is not None:
        live = live & _fits(ops, dev, state, remaining)
    row = _rows(ops, dev, low, width)
    token = _tokens_at(ops, dev, row, ops.where(depth < dev.length, depth, 0))
    allowed = live & (row < high) & _first(ops, token)
    return ops.where(allowed, token, 0), allowed


def _need_all(dev: DeviceMatrix, name: str) -> None:
    if dev.top is not None:
        raise ValueError(
            f"{name} is given no logits, and of this matrix only the {dev.top} best of each row are verified: "
            "put it without top="
        )
