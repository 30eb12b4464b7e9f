"""Drawing tokens on the host from what packed masks allow: logits are read where they lie, and none is written.

It says what `decode.sampling` says step by step with array operations, whose dozen passes over a batch of wide rows
take a hundred times what masking them does. Here a row is read once for its best logit, once more for sums of its
weights, and one block of it to draw; filters are thresholds that a radix search finds in a few passes more.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels.arrays import Int
from ...kernels.compiled import NativeLoop, intrinsic, kernel, native_loop
from ...kernels.pointers import address_of, array_at
from .logits import AHEAD, AT, COLUMNS, COUNT, END_OF_LOGITS, Logits
from .mask_jobs import LONGEST, compose_row, sizes, stray_in
from .thread_pool import Team, next_row, pays

if TYPE_CHECKING:
    from ...kernels.compiled import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value

WHOLE = 1024  # weights that are drawn from in one go; of more, first a block is drawn
BLOCK = 256

FLOATS = {"float32": 0, "bfloat16": 1, "float16": 2}
"""The types of logits that are read as they are, and their numbers."""

_WORDS = BLOCK // 32
_LEAST = np.float32(-87.0)  # whose exponential is the least that is not subnormal
_LOG2_E = np.float32(1 / math.log(2))
_LN2_HIGH = np.float32(355 / 512)  # has 9 bits, so that multiples of it are exact
_LN2_LOW = np.float32(math.log(2) - 355 / 512)
_C2, _C3, _C4, _C5, _C6 = (np.float32(1 / math.factorial(n)) for n in range(2, 7))
_NEAR = np.float32(40)  # below the best of all within which weights are taken of that, too: they are not subnormal
_DIGIT = 11  # bits of a key that a pass of the radix search looks at
_NOTHING = np.float32(-np.inf)
_HOTTEST = float(np.finfo(np.float32).max)  # temperature: all weights are alike long before
_ALL = 1 << 62  # tokens


class Filters(NamedTuple):
    """What is asked of each row's draw, (n,) each, or of all alike, (1,)."""

    temperature: NDArray[np.float32]  # 0: the best token
    top_k: NDArray[np.int64]  # 0: all
    top_p: NDArray[np.float32]  # 1: all
    min_p: NDArray[np.float32]  # 0: all

    @staticmethod
    def of(asked: Sequence[tuple[float, int | None, float | None, float | None]]) -> Filters:
        """Return the temperature, top_k, top_p and min_p of each row, None where there is none."""
        temperature, top_k, top_p, min_p = zip(*asked, strict=True)
        return Filters(
            np.array([min(t, _HOTTEST) for t in temperature], np.float32),
            np.array([min(k or 0, _ALL) for k in top_k], np.int64),
            np.array([1 if p is None else p for p in top_p], np.float32),
            np.array([p or 0 for p in min_p], np.float32),
        )


class Drawn(NamedTuple):
    """What was drawn; (n,) each."""

    tokens: NDArray[np.int64]  # -1 where not valid
    log_probs: NDArray[np.float32]
    log_mass: NDArray[np.float32]  # NaN where nobody asked for it
    valid: NDArray[np.bool_]


class Row(NamedTuple):
    """A row of logits, where it lies, and what is allowed of it."""

    at: int
    kind: int  # one of the numbers in `FLOATS`
    columns: int
    scale: np.float32  # by which logits are divided
    mask: NDArray[np.uint32]


class Room(NamedTuple):
    """Memory that a thread works in."""

    x: NDArray[np.float32]  # the logits of a block
    weights: NDArray[np.float32]  # their weights
    bits: NDArray[np.uint32]  # the mask of the block
    sums: NDArray[np.float64]  # of the weights of each block


# an order goes on behind `Logits` with these numbers
(
    _KIND, _MASKS, _MASK_WORDS, _FILTERS, _TEMPERATURE, _TOP_K, _TOP_P, _MIN_P, _UNIFORMS, _MASS, _TOKENS, _LOG_PROBS,
    _LOG_MASS, _VALID, _STRAY,
) = range(END_OF_LOGITS, END_OF_LOGITS + 15)  # fmt: skip


def draw(
    masks: NDArray[np.uint32] | array[int],
    logits: Logits,
    kind: str,
    filters: Filters,
    uniforms: NDArray[np.float64],
    mass: bool,
    threads: int,
    team: Team | None,
    tokens: object = np.int32,
) -> Drawn | int:
    """Return a token for each row of logits (n, V') among those whose bit in masks (n, words) is set.

    masks: packed, or what `order_of` returns, and each is composed when its row is drawn from. tokens: the type of that
    table's. kind: one of `FLOATS`. uniforms: (n, 2) in [0, 1). mass: whether the share of all weight that is allowed is
    wanted, for which all logits are exponentiated. See `decode.sampling.sample`. Returns a row instead that stands
    nowhere in the table.
    """
    rows = logits.rows
    out = Drawn(np.empty(rows, np.int64), np.empty(rows, np.float32), np.empty(rows, np.float32), np.empty(rows, bool))
    composed = isinstance(masks, np.ndarray)
    at, words = (address_of(masks), masks.shape[1]) if isinstance(masks, np.ndarray) else (masks.buffer_info()[0], 0)
    arrays: list[NDArray[Any]] = [*filters, uniforms, *out]
    where = [address_of(each) for each in arrays]
    size = filters.temperature.size
    order = array("q", (0, *logits, FLOATS[kind], at, words, size, *where[:5], int(mass), *where[5:], -1))
    part = _part_of(None if composed else tokens)
    if team is None or not pays(rows, logits.columns, threads):
        part(order.buffer_info()[0])
    else:
        team(part.address, order.buffer_info()[0], threads)
    return out if order[_STRAY] < 0 else order[_STRAY]


@lru_cache(maxsize=4)
def _part_of(kind: object) -> NativeLoop:
    """Return the native function that a team's threads call: see `draw`. kind: the type of tokens, None for masks."""
    return native_loop(_draw_rows) if kind is None else native_loop(_draw_composed, kind)


@intrinsic
def _float_of(typing: TypingContext, bits: NumbaType) -> Intrinsic:
    """Return the number that 32 bits are."""
    from llvmlite import ir
    from numba import types

    def generate(context: Context, builder: Builder, signature: Signature, arguments: Sequence[Value]) -> Value:
        return builder.bitcast(builder.trunc(arguments[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), generate


@intrinsic
def _bits_of(typing: TypingContext, value: NumbaType) -> Intrinsic:
    """Return the 32 bits that a number is, with their sign."""
    from llvmlite import ir
    from numba import types

    def generate(context: Context, builder: Builder, signature: Signature, arguments: Sequence[Value]) -> Value:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@kernel
def _read(row: Row, block: Int, x: NDArray[np.float32]) -> None:
    """Write the logits of a block into x (BLOCK,), divided by the scale; -inf behind the last. No zero is -0."""
    first = BLOCK * block
    at, kind, temperature, count = row.at, row.kind, row.scale, min(BLOCK, row.columns - first)
    if kind == 0:
        from_float = array_at(at + 4 * first, count, np.float32)
        for j in range(count):
            x[j] = from_float[j] + np.float32(0)
    else:
        halves = array_at(at + 2 * first, count, np.uint16)
        if kind == 1:
            for j in range(count):
                x[j] = _float_of(np.int64(halves[j]) << 16) + np.float32(0)
        else:
            for j in range(count):
                x[j] = half(np.int64(halves[j])) + np.float32(0)
    if temperature != 1:  # dividing takes longer than all else
        for j in range(count):
            x[j] = x[j] / temperature + np.float32(0)
    for j in range(count, BLOCK):
        x[j] = _NOTHING


@kernel
def half(bits: Int) -> np.float32:
    """Return the number that 16 bits are: its exponent is moved, by multiplying, as that takes subnormal ones along."""
    size = _float_of((bits & 0x7FFF) << 13) * np.float32(2.0**112)
    wide = np.int64(_bits_of(size))
    if size >= np.float32(65536):
        wide |= 0x7F800000
    found: np.float32 = _float_of(wide | (bits & 0x8000) << 16)
    return found


@kernel
def _key(x: np.float32) -> np.int32:
    """Return an integer that orders as numbers do, NaN beyond the infinities."""
    bits = _bits_of(x)
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@kernel
def _of_key(key: Int | np.int32) -> np.float32:
    """Return the number that a key is of."""
    key = np.int64(key)
    found: np.float32 = _float_of(key ^ ((key >> 63) & 0x7FFFFFFF))
    return found


@kernel(fastmath={"contract"})
def _exp(x: np.float32) -> np.float32:
    """Return the exponential of a number, as of 0 where it is above that; 0 where it would be subnormal.

    Without branches or calls, so that loops of it become vector code.
    """
    t = min(max(x, _LEAST), np.float32(0))
    n = np.int32(t * _LOG2_E - np.float32(0.5))
    whole = np.float32(n)
    r = t - whole * _LN2_HIGH - whole * _LN2_LOW
    one = np.float32(1)
    p = one + r * (one + r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * _C6)))))
    return p * _float_of((np.int64(n) + 127) << 23) if x >= _LEAST else np.float32(0)


@kernel(fastmath={"reassoc"})
def _sum(weights: NDArray[np.float32]) -> float:
    """Return the sum of weights (BLOCK,), taken in whichever order is quickest."""
    total = np.float32(0)
    for j in range(BLOCK):
        total += weights[j]
    return np.float64(total)


@kernel
def weigh(x: NDArray[np.float32], best: np.float32, weights: NDArray[np.float32]) -> None:
    """Write the weights of logits x (BLOCK,); those above `best`, which are not allowed, weigh as much as that."""
    for j in range(BLOCK):
        weights[j] = _exp(x[j] - best)


@kernel
def _only(bits: NDArray[np.uint32], x: NDArray[np.float32], floor: np.float32, weights: NDArray[np.float32]) -> None:
    """Set weights (BLOCK,) to 0 of what is not allowed, or lies below a floor."""
    for k in range(_WORDS):
        word = bits[k]
        for j in range(32):
            at = 32 * k + j
            goes = ((word >> np.uint32(j)) & np.uint32(1) == 0) | (x[at] < floor)
            weights[at] = np.float32(0) if goes else weights[at]


@kernel
def _allowed(mask: NDArray[np.uint32], block: Int, bits: NDArray[np.uint32]) -> int:
    """Write the words of a block's mask; return 0 if no token of it is allowed, 2 if all are, else 1."""
    some, every = np.uint32(0), np.uint32(0xFFFFFFFF)
    for k in range(_WORDS):
        at = _WORDS * block + k
        bits[k] = mask[at] if at < mask.size else np.uint32(0)
        some |= bits[k]
        every &= bits[k]
    return 0 if some == 0 else 2 if every == np.uint32(0xFFFFFFFF) else 1


@kernel
def _draw_rows(address: int) -> None:
    """Draw from one row after the other that no other thread has taken, by masks that are there."""
    order = array_at(address, _STRAY + 1, np.int64)
    room, words = _room_for(order), order[_MASK_WORDS]
    while True:
        i = next_row(order.ctypes.data)
        if i >= order[COUNT]:
            return
        _draw_from(order, i, array_at(order[_MASKS] + 4 * words * i, words, np.uint32), room)


@kernel
def _draw_composed(address: int, kind: type[np.generic]) -> None:
    """Do the same, composing the mask of each. kind: the type of tokens."""
    order = array_at(address, _STRAY + 1, np.int64)
    composing = array_at(order[_MASKS], LONGEST, np.int64)
    stray = stray_in(composing)
    if stray >= 0:  # all threads look at all rows
        order[_STRAY] = stray
        return
    words, symbols = sizes(composing)
    room, mask, alive = _room_for(order), np.empty(words, np.uint32), np.zeros(symbols, np.uint8)
    while True:
        i = next_row(order.ctypes.data)
        if i >= order[COUNT]:
            return
        compose_row(composing, kind, i, mask, alive)
        _draw_from(order, i, mask, room)


@kernel
def _room_for(order: NDArray[np.int64]) -> Room:
    """Return the room that one thread needs."""
    blocks = (order[COLUMNS] + BLOCK - 1) // BLOCK
    return Room(
        np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(_WORDS, np.uint32),
        np.empty(blocks, np.float64),
    )  # fmt: skip


@kernel
def _draw_from(order: NDArray[np.int64], i: int, mask: NDArray[np.uint32], room: Room) -> None:
    """Draw from row i."""
    rows, asked = order[COUNT], order[_FILTERS]
    temperature, top_k = array_at(order[_TEMPERATURE], asked, np.float32), array_at(order[_TOP_K], asked, np.int64)
    top_p, min_p = array_at(order[_TOP_P], asked, np.float32), array_at(order[_MIN_P], asked, np.float32)
    uniforms = array_at(order[_UNIFORMS], 2 * rows, np.float64)
    tokens, valid = array_at(order[_TOKENS], rows, np.int64), array_at(order[_VALID], rows, np.uint8)
    log_probs, log_mass = array_at(order[_LOG_PROBS], rows, np.float32), array_at(order[_LOG_MASS], rows, np.float32)
    own = i if asked > 1 else 0
    scale = temperature[own] if temperature[own] > 0 else np.float32(1)
    row = Row(order[AT] + order[AHEAD] * i, order[_KIND], order[COLUMNS], scale, mask)
    tokens[i], log_probs[i], log_mass[i] = _draw_row(
        row, temperature[own], top_k[own], top_p[own], min_p[own], uniforms[2 * i], uniforms[2 * i + 1],
        order[_MASS] != 0, room,
    )  # fmt: skip
    valid[i] = tokens[i] >= 0


@kernel
def _draw_row(
    row: Row, temperature: np.float32, top_k: int, top_p: np.float32, min_p: np.float32, first: float, second: float,
    mass: bool, room: Room,
) -> tuple[Int, np.float32, np.float32]:  # fmt: skip
    """Return the token that is drawn from a row, its log-probability, and the log of the share that is allowed."""
    x, weights, bits, sums = room
    highest = best = _key(_NOTHING)
    lowest, best_block = np.int32(0), np.int64(-1)
    for b in range(sums.size):
        _read(row, b, x)
        above = _key(_NOTHING)
        for j in range(BLOCK):
            key = _key(x[j])
            above, lowest = max(above, key), min(lowest, key)
        highest = max(highest, above)
        if above <= best:
            continue
        some = _allowed(row.mask, b, bits)
        if some == 2:
            best, best_block = above, np.int64(b)
        if some != 1:
            continue
        own = _key(_NOTHING)
        for k in range(_WORDS):
            word = bits[k]
            for j in range(32):
                key = _key(x[32 * k + j])
                own = max(own, key if (word >> np.uint32(j)) & np.uint32(1) else _key(_NOTHING))
        if own > best:
            best, best_block = own, np.int64(b)
    if lowest < _key(_NOTHING) or highest >= _key(-_NOTHING) or best_block < 0:
        return np.int64(-1), _NOTHING, _NOTHING
    peak, top = _of_key(highest), _of_key(best)
    greedy = temperature == 0
    if greedy and not mass:
        return _first(row, best_block, top, room), np.float32(0), np.float32(np.nan)
    floor = _NOTHING
    if not greedy:
        floor = _floor(row, top_k, top_p, min_p, top, room)
    together = mass and peak - top <= _NEAR  # weights by the best of all are good for what is allowed, too
    by = peak if together else top
    everything = allowed = kept = 0.0
    for b in range(sums.size):
        some = _allowed(row.mask, b, bits)
        sums[b] = 0.0
        if not some and not mass:
            continue
        _read(row, b, x)
        if mass:
            weigh(x, peak, weights)
            everything += _sum(weights)
        if some:
            if not together:
                weigh(x, top, weights)
            if some == 1:
                _only(bits, x, _NOTHING, weights)
            sums[b] = _sum(weights)
            allowed += sums[b]
            if floor > _NOTHING:
                _only(bits, x, floor, weights)
                sums[b] = _sum(weights)
            kept += sums[b]
    share = np.float32(np.nan)
    if mass:
        log_mass = math.log(allowed) - math.log(everything) + (0.0 if together else np.float64(top) - np.float64(peak))
        share = np.float32(min(log_mass, 0.0))
    if greedy:
        return _first(row, best_block, top, room), np.float32(0), share
    token, logit = _pick(row, floor, by, first, second, kept, room)
    return token, np.float32(min(np.float64(logit) - np.float64(by) - math.log(kept), 0.0)), share


@kernel
def _first(row: Row, block: Int, best: np.float32, room: Room) -> Int:
    """Return the first token of a block that is allowed and has the best logit."""
    x, bits = room.x, room.bits
    _allowed(row.mask, block, bits)
    _read(row, block, x)
    for j in range(BLOCK):
        if (bits[j >> 5] >> np.uint32(j & 31)) & np.uint32(1) and x[j] == best:
            return np.int64(BLOCK * block + j)
    return np.int64(-1)


@kernel
def _pick(
    row: Row, floor: np.float32, by: np.float32, first: float, second: float, kept: float, room: Room
) -> tuple[Int, np.float32]:
    """Return the token at which the running sum of weights is above a share of all, and its logit.

    Of wide rows `first` is the share at which a block is, and `second` that of the block's own.
    """
    x, weights, bits, sums = room
    whole = row.columns <= WHOLE
    goal, running, block, last = (second if whole else first) * kept, 0.0, np.int64(-1), np.int64(0)
    for b in range(sums.size):
        if sums[b] > 0:
            last = np.int64(b)
            if running + sums[b] > goal:
                block = last
                break
            running += sums[b]
    if block < 0:  # by rounding
        block, goal = last, np.inf
    if not whole:
        goal, running = second * sums[block], 0.0
    _allowed(row.mask, block, bits)
    _read(row, block, x)
    weigh(x, by, weights)
    _only(bits, x, floor, weights)
    found = np.int64(0)
    for j in range(BLOCK):
        running += weights[j]
        if weights[j] > 0:
            found = np.int64(j)  # the last of all, by rounding
            if running > goal:
                break
    return BLOCK * block + found, x[found]


# ------------------------------------------------------------------------------------------------------ filters


@kernel
def _floor(row: Row, top_k: int, top_p: np.float32, min_p: np.float32, best: np.float32, room: Room) -> np.float32:
    """Return the least logit that filters keep, -inf if that is all."""
    floor = _NOTHING
    if top_k > 0:
        floor = _kept_by(row, np.float64(top_k), False, floor, best, room)
    if top_p < 1:
        floor = _kept_by(row, np.float64(top_p), True, floor, best, room)
    if min_p > 0:
        floor = max(floor, np.float32(best + np.float32(math.log(min_p))))
    return floor


@kernel
def _kept_by(row: Row, goal: float, by_weight: bool, floor: np.float32, best: np.float32, room: Room) -> np.float32:
    """Return the least logit, not below a floor, of which all greater ones are fewer than a goal.

    by_weight: or together hold less than that share of the weight of all that are not below the floor. It is found
    digit by digit of its key: those that have the digits found so far are added up by their next.
    """
    x, weights, bits, blocks = room.x, room.weights, room.bits, room.sums.size
    held, count = np.empty(1 << _DIGIT, np.float64), np.empty(1 << _DIGIT, np.int64)
    prefix, above, bits_left = np.uint32(0), 0.0, 32
    while bits_left:
        digit = min(_DIGIT, bits_left)
        shift = np.uint32(bits_left - digit)
        held[:], count[:] = 0.0, 0
        for b in range(blocks):
            if not _allowed(row.mask, b, bits):
                continue
            _read(row, b, x)
            if by_weight:
                weigh(x, best, weights)
            else:
                weights[:] = np.float32(1)
            for j in range(BLOCK):
                if not (bits[j >> 5] >> np.uint32(j & 31)) & np.uint32(1) or x[j] < floor or x[j] == _NOTHING:
                    continue
                key = np.uint32(np.int64(_key(x[j])) + 0x80000000)
                if bits_left < 32 and key >> np.uint32(bits_left) != prefix:
                    continue
                own = (key >> shift) & np.uint32((1 << digit) - 1)
                held[own] += weights[j]
                count[own] += 1
        if by_weight and bits_left == 32:
            goal *= held.sum()
        found, below = np.int64(-1), above
        for d in range((1 << digit) - 1, -1, -1):
            if not count[d]:
                continue
            if found >= 0 and below >= goal:
                break
            found, above = np.int64(d), below
            below += held[d]
        prefix = np.uint32((np.int64(prefix) << digit) | found)
        bits_left -= digit
    return _of_key(np.int64(prefix) - 0x80000000)
