"""Triton kernels of a step of beam search over a trie: `sid_step` launches them and says what they do.

Arguments stand in groups: named tuples, of which Triton takes each member as an argument of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Rows(NamedTuple):
    """What the beams bring along, B elements with m beams each."""

    states: Tensor  # (B * m,) int64
    scores: Tensor  # (B * m,) float32


class Edges(NamedTuple):
    """The arrays of a `TorchTable` that say where tokens lead."""

    row_start: Tensor
    edge_token: Tensor
    edge_target: Tensor
    accepting: Tensor  # as uint8: 1 where a row is the end of a sequence


class Kept(NamedTuple):
    """The beams that a step keeps, M an element."""

    scores: Tensor  # (B, M) float32
    parents: Tensor  # (B, M) int64
    tokens: Tensor  # (B, M) int64
    states: Tensor  # (B, M) int64


class Scratch(NamedTuple):
    """Memory of a step, one row an element."""

    entries: Tensor  # (B, entries_stride) int64: the first edge of each beam, then lists of continuations
    counters: Tensor  # (B, counters_stride) int32: how many programs of each team are done; 0 before and after a step


class Sizes(NamedTuple):
    """Numbers that a step needs beside its arrays."""

    columns: int  # of logits
    vocab_size: int
    eos: int  # -1 where there is none
    num_rows: int
    num_edges: int
    num_states: int
    width: int  # the most children of a state at this depth
    before: int  # m, beams of an element that come in
    after: int  # M, beams of an element that are kept
    renormalize: int  # 1: scores are under the softmax of the allowed tokens alone


class Rounds(NamedTuple):
    """How the continuations of an element come together: lists are joined by teams until one is left."""

    pieces: int  # lists of each beam: a piece of its children each
    length: int  # entries of each of these lists
    first: int  # lists that a team joins in the first round
    later: int  # and in each later round
    entries_stride: int
    counters_stride: int


# an entry is a continuation: its score, so coded that integers order alike, times 2^32, and its place
# beam * width + child. Continuations that score -inf are none
NO_SCORE: tl.constexpr = tl.constexpr(-2139095041)
NO_ENTRY: tl.constexpr = tl.constexpr(-2139095041 << 32)
PLACE: tl.constexpr = tl.constexpr((1 << 31) - 1)
CHUNK: tl.constexpr = tl.constexpr(16)  # winners that all winners are compared with at once


@triton.jit
def _ordered(x):  # type: ignore[no-untyped-def]
    """Return int32 that order as float32 do; -inf where x is NaN, and one zero for both."""
    x = tl.where(x == x, x, float("-inf"))
    x = tl.where(x == 0, 0.0, x)
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _score(key):  # type: ignore[no-untyped-def]
    """Return the float32 that a key stands for."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _span(table, sizes, state):  # type: ignore[no-untyped-def]
    """Return the first edge of a state and how many it has; none of a number that is no state."""
    known = (state >= 0) & (state < sizes.num_states)
    state = tl.where(known, state, sizes.num_states - 1)
    row, rows = state, sizes.num_rows
    low = tl.load(table.row_start + tl.minimum(row, rows)).to(tl.int64) + tl.maximum(row - rows, 0)
    high = tl.load(table.row_start + tl.minimum(row + 1, rows)).to(tl.int64) + tl.maximum(row + 1 - rows, 0)
    return low, tl.where(known, tl.minimum(high - low, sizes.width), 0).to(tl.int32)


@triton.jit
def _tokens(table, edge, holds):  # type: ignore[no-untyped-def]
    """Return the tokens of edges as int32; 0 where `holds` is not so. Arrays hold unsigned numbers in signed types."""
    token = tl.load(table.edge_token + edge, mask=holds, other=0).to(tl.int32)
    if table.edge_token.dtype.element_ty == tl.int16:
        token = token & 0xFFFF
    return token


@triton.jit
def _targets(table, sizes, edge, holds):  # type: ignore[no-untyped-def]
    """Return the states that edges lead to; an edge of a tail leads to the next entry."""
    own = edge < sizes.num_edges
    target = tl.load(table.edge_target + edge, mask=holds & own, other=0).to(tl.int64)
    return tl.where(own, target, edge + (sizes.num_rows - sizes.num_edges + 1))


@triton.jit
def _added(top, total, x):  # type: ignore[no-untyped-def]
    """Return the largest of all logits so far, and the sums of exponentials below it, with a block x in addition.

    total (n,) has the sums of each lane apart. NaN and +inf make them NaN.
    """
    best = tl.maximum(top, tl.max(x, 0))
    shift = tl.where(best == float("-inf"), 0.0, best)  # nothing but -inf so far
    return best, total * tl.exp(top - shift) + tl.exp(x - shift)


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_of_row(row, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the largest logit of a row, and the logarithm of the sum of all exponentials below it."""
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(row + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        top, total = _added(top, total, x)
    return top, tl.log(tl.sum(total, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_of_allowed(row, table, sizes, state, low, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the same of the tokens that a state allows alone: its children, and EOS where a sequence may end."""
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        child = start + tl.arange(0, BLOCK)
        token = _tokens(table, low + child, child < count)
        allowed = (child < count) & (token < sizes.vocab_size)
        x = tl.load(row + token, mask=allowed, other=float("-inf")).to(tl.float32)
        top, total = _added(top, total, x)
    if (sizes.eos >= 0) & (count > 0):  # a number that is no state has no children
        if state < sizes.num_rows:
            ends = tl.load(table.accepting + state).to(tl.int32)
        else:
            ends = (_tokens(table, low, True) == sizes.vocab_size).to(tl.int32)
        lane = tl.arange(0, BLOCK)
        x = tl.load(row + sizes.eos + lane, mask=lane < ends, other=float("-inf")).to(tl.float32)
        top, total = _added(top, total, x)
    return top, tl.log(tl.sum(total, 0))


@triton.jit
def _places_of_best(key, most):  # type: ignore[no-untyped-def]
    """Return the places that the `most` best of keys (n,) take, in the order in which they stand, and their number.

    Of equal keys the first are taken. Keys that are not taken, and those without a score, get -1. A binary search finds
    the worst key that is taken: some 14 sums over keys that stay in registers, where a sort of 8,192 takes 91 passes.
    """
    low = tl.full([], NO_SCORE + 1, tl.int32)
    there = tl.sum((key >= low).to(tl.int32), 0)
    wanted = tl.minimum(there, most)
    high = tl.where(there > most, tl.max(key, 0), low)
    while low < high:  # `low` has at least as many as wanted above or at it, `high` + 1 has fewer
        middle = (low | high) - ((low ^ high) >> 1)  # their mean, rounded up, without an overflow
        found = tl.sum((key >= middle).to(tl.int32), 0)
        high = tl.where(found >= wanted, high, middle - 1)
        low = tl.where(found >= wanted, middle, low)
        high = tl.where(found == wanted, low, high)
    spare = wanted - tl.sum((key > low).to(tl.int32), 0)  # how many of those equal to the worst are taken
    counts = tl.cumsum(tl.where(key > low, 1 << 16, (key == low).to(tl.int32)), 0)  # two sums in one: n is below 2^15
    equal = counts & 0xFFFF
    taken = (key > low) | ((key == low) & (equal <= spare))
    return tl.where(taken, (counts >> 16) + tl.minimum(equal, spare) - 1, -1), wanted


@triton.jit  # type: ignore[untyped-decorator]
def _write_continuations(  # type: ignore[no-untyped-def]
    logits, stride, rows, table, entries, sizes, rounds, BLOCK: tl.constexpr, PIECE: tl.constexpr,
    KEPT: tl.constexpr,
):  # fmt: skip
    """Write the best continuations of one piece of a beam's children to that piece's list, in their order."""
    list_ = tl.program_id(0) % (sizes.before * rounds.pieces)
    beam = list_ // rounds.pieces
    row = tl.program_id(0) // rounds.pieces
    state = tl.load(rows.states + row)
    low, count = _span(table, sizes, state)
    child = list_ % rounds.pieces * PIECE + tl.arange(0, PIECE)
    token = _tokens(table, low + child, child < count)
    allowed = (child < count) & (token < sizes.vocab_size)
    logits += row.to(tl.int64) * stride
    x = tl.load(logits + token, mask=allowed, other=float("-inf")).to(tl.float32)
    some = tl.sum(allowed.to(tl.int32), 0) > 0  # else nothing need be read
    if sizes.renormalize != 0:
        top, mass = _softmax_of_allowed(logits, table, sizes, state, low, tl.where(some, count, 0), PIECE)
    else:
        top, mass = _softmax_of_row(logits, tl.where(some, sizes.columns, 0), BLOCK)
    total = tl.load(rows.scores + row) + ((x - top) - mass)
    key = _ordered(tl.where(allowed, total, float("-inf")))
    entry = (key.to(tl.int64) << 32) | (beam * sizes.width + child)

    tl.store(entries + beam, low, mask=list_ % rounds.pieces == 0)  # one writer: others would race with it
    out = entries + sizes.before + list_ * rounds.length
    at = tl.arange(0, PIECE)
    if rounds.length < tl.minimum(sizes.width, PIECE):
        place, found = _places_of_best(key, rounds.length)
        tl.store(out + place, entry, mask=place >= 0)
        rest = tl.arange(0, KEPT)  # a list is no longer than M
        tl.store(out + rest, NO_ENTRY, mask=(rest >= found) & (rest < rounds.length))
    else:
        tl.store(out + at, entry, mask=at < rounds.length)


@triton.jit  # type: ignore[untyped-decorator]
def _join(scratch, sizes, rounds, MOST: tl.constexpr, KEPT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Join the lists of an element, round by round; return where the last one is, and whether this program made it.

    Of each team of lists the last program to be done joins all. Which one that is does not change what it writes: lists
    keep the order of places.

    Why a program sees what the others of its team wrote, in the terms of PTX's memory model: all threads of a program
    store, then pass a barrier of the block, then one of them adds to the counter. The barrier orders stores of all
    threads before that addition, which releases at the scope of the device: order is transitive. The additions of a
    team to one counter read from each other in a chain, and each acquires as well, so the last follows all stores of
    all programs. Triton hands the sum to the other threads through shared memory and one more barrier, so their loads
    follow too. These loads are served by L2 (.cg): a line of L1 may be older. The counter is set back by a plain store:
    all additions to it are over, and the next launch in a stream begins after this one has ended.
    """
    of_element = sizes.before * rounds.pieces
    element = tl.program_id(0) // of_element
    mine = tl.program_id(0) % of_element
    lists = of_element
    length = rounds.length
    team = rounds.first
    source = scratch.entries + element.to(tl.int64) * rounds.entries_stride + sizes.before
    counter = scratch.counters + element * rounds.counters_stride
    going = lists > 0
    while going:
        tl.debug_barrier()
        number = mine // team
        members = tl.minimum(team, lists - number * team)
        done = tl.atomic_add(counter + number, 1, sem="acq_rel", scope="gpu")
        going = done == members - 1
        after = source + lists * length
        if going:
            tl.store(counter + number, 0)
            given = source + number * team * length
            at = tl.arange(0, MOST)
            inside = at < members * length
            words = given.to(tl.pointer_type(tl.int32), bitcast=True)  # the upper one of each entry is its score
            key = tl.load(words + 2 * at + 1, mask=inside, other=NO_SCORE, cache_modifier=".cg")
            place, found = _places_of_best(key, sizes.after)
            out = after + number * sizes.after
            entry = tl.load(given + at, mask=place >= 0, cache_modifier=".cg")  # again: few are left
            tl.store(out + place, entry, mask=place >= 0)
            rest = tl.arange(0, KEPT)
            tl.store(out + rest, NO_ENTRY, mask=(rest >= found) & (rest < sizes.after))
            mine = number
            counter += tl.cdiv(lists, team)
            lists = tl.cdiv(lists, team)
            length = sizes.after
            source = after
            team = rounds.later
            going = lists > 1
    return source, lists == 1


@triton.jit  # type: ignore[untyped-decorator]
def _write_winners(element, entries, winners, table, kept, sizes, KEPT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the beams that are kept, best first, from a list of M entries that stand in the order of their places."""
    tl.debug_barrier()  # other threads of this program wrote the list
    at = tl.arange(0, KEPT)
    within = at < sizes.after
    entry = tl.load(winners + at, mask=within, other=NO_ENTRY, cache_modifier=".cg")
    key = (entry >> 32).to(tl.int32)
    rank = tl.zeros([KEPT], tl.int32)  # how many go before each
    for start in range(0, sizes.after, CHUNK):
        other = start + tl.arange(0, CHUNK)
        found = tl.load(winners + other, mask=other < sizes.after, other=NO_ENTRY, cache_modifier=".cg")
        one = (found >> 32).to(tl.int32)[None, :]
        sooner = (one > key[:, None]) | ((one == key[:, None]) & (other[None, :] < at[:, None]))
        rank += tl.sum((sooner & (other < sizes.after)[None, :]).to(tl.int32), 1)
    alive = within & (key > NO_SCORE)
    place = (entry & PLACE).to(tl.int32)
    parent = tl.where(alive, place // sizes.width, 0)
    edge = tl.load(entries + parent, mask=alive, other=0, cache_modifier=".cg") + place % sizes.width
    _write(kept, element * sizes.after + rank, within, alive, _score(key), edge, table, sizes)
    tl.store(kept.parents + element * sizes.after + rank, parent.to(tl.int64), mask=within)


@triton.jit
def _write(kept, at, within, alive, score, edge, table, sizes):  # type: ignore[no-untyped-def]
    """Write scores, tokens and states of beams that go on by an edge where they are alive, to places `at`."""
    tl.store(kept.scores + at, tl.where(alive, score, float("-inf")), mask=within)
    token = _tokens(table, edge, alive).to(tl.int64)
    target = _targets(table, sizes, edge, alive)
    tl.store(kept.tokens + at, tl.where(alive, token, 0), mask=within)
    tl.store(kept.states + at, tl.where(alive, target, sizes.num_states - 1), mask=within)


@triton.jit(do_not_specialize=["sizes", "rounds"])  # type: ignore[untyped-decorator]
def branch(  # type: ignore[no-untyped-def]
    logits, stride, rows, table, kept, scratch, sizes, rounds,
    BLOCK: tl.constexpr, PIECE: tl.constexpr, MOST: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """Keep the best continuations of all beams of each element: a program for each piece of each beam's children.

    BLOCK: logits read at once. PIECE: children of a beam in one program. MOST: entries that a team joins at once.
    KEPT: at least M. All are powers of two.
    """
    element = tl.program_id(0) // (sizes.before * rounds.pieces)
    entries = scratch.entries + element.to(tl.int64) * rounds.entries_stride
    _write_continuations(logits, stride, rows, table, entries, sizes, rounds, BLOCK, PIECE, KEPT)
    winners, last = _join(scratch, sizes, rounds, MOST, KEPT)
    if last:
        _write_winners(element, entries, winners, table, kept, sizes, KEPT)


@triton.jit(do_not_specialize=["sizes"])  # type: ignore[untyped-decorator]
def go_on(  # type: ignore[no-untyped-def]
    logits, stride, rows, table, kept, sizes, BLOCK: tl.constexpr
):  # fmt: skip
    """Let each beam go on in its place, where no state branches: a program a beam."""
    row = tl.program_id(0)
    state = tl.load(rows.states + row)
    low, count = _span(table, sizes, state)
    token = _tokens(table, low, count > 0)
    allowed = (count > 0) & (token < sizes.vocab_size)
    logits += row.to(tl.int64) * stride
    x = tl.load(logits + token, mask=allowed, other=float("-inf")).to(tl.float32)
    if sizes.renormalize != 0:
        top, mass = _softmax_of_allowed(logits, table, sizes, state, low, tl.where(allowed, count, 0), 1)
    else:
        top, mass = _softmax_of_row(logits, tl.where(allowed, sizes.columns, 0), BLOCK)
    total = tl.load(rows.scores + row) + ((x - top) - mass)
    alive = allowed & (total > float("-inf"))  # which is not so of NaN
    _write(kept, row, True, alive, total, low, table, sizes)
