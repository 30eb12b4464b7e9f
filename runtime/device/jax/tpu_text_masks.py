"""A kernel for masks of text on a TPU: each row of a batch has its own lists copied, and no others.

As on the host (`host/nested_masks.py`), a mask starts as a copy of the base's. The classes of the base that may not be
followed are taken out, exits add what the stack makes of their symbols, and the row's own edges have the last word.

A TPU cannot set bits at addresses that lie in lanes. The bits of 128 tokens come from one product of matrices instead:
a column of the left one has 2^b in the row that stands for a token's byte in a word, the right one has a 1 in its word.
Tokens of one list differ, so each sum is a byte of the mask, exact in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ....kernels.limits import UNREACHABLE
from ....table.states import NestedState
from ..device_table import AnyState
from .tpu_layout import LANES
from .tpu_parts import Placed, Ref, Scalar, copies, each_beam, held_in_hbm, row_block, shape_of, stay
from .tpu_text_layout import (
    ACCEPTING,
    BASE_EXIT_COUNT,
    BASE_EXIT_FIRST,
    CLASS_DISTANCE,
    CLASS_ROOM,
    CLASSES,
    EXIT_COUNT,
    EXIT_FIRST,
    FEWEST_BLOCKS,
    MASK,
    OWN_COUNT,
    OWN_FIRST,
    POPS,
    PUSH,
    PUSH_DISTANCE,
    PUSH_FRAMES,
    PUSH_ROOM,
    RECORD,
    TpuTextTable,
    has_distances,
    mask_height,
    symbols_wide,
)

_MOST_ROWS = 64  # of a program
_WINDOW_BYTES = 8 << 20  # of VMEM for what a program copies and writes
_STACK_WORDS = 1 << 15  # of SMEM for the stacks of a program, three times
_PER_ROW = LANES // RECORD  # records
_TILE = (8, LANES)
_TABLE_OF = {"own": "own_rows", "exit": "exit_rows", "base_exit": "exit_rows"}
"""The array that each list of a row is copied from."""


class _Sizes(NamedTuple):
    """What is static of a table."""

    states: int
    eos: int | None
    depth: int
    slots: int
    pops: int  # 0 of a graph
    symbol_rows: int  # of 128 symbols
    height: int  # rows of a mask
    planes: int  # rows of an own block: tokens, needs, and distances where those were put
    limited: bool  # classes of a base may have no room
    counted: bool  # a budget is given


class _States(NamedTuple):
    """What there is of each row of a batch."""

    node: Placed  # (n,) int32
    height: Placed  # (n,)
    last: Placed  # (n,) one token less than may still be written
    stack: tuple[Placed, ...]  # (n, slots) of a nested table


class _Place(NamedTuple):
    """Where a row of a batch stands, as scalars."""

    row: Scalar
    frames: Scalar  # of the stack that are no leaves
    height: Scalar
    top: Scalar  # the height with the site of the base
    base_frames: Scalar
    has_base: Scalar  # there is room for that site


class _Program:
    """What one program reads: some rows of a batch, their records, and the table."""

    def __init__(
        self, sizes: _Sizes, sites: list[Ref], states: _States, tables: dict[str, Ref], scratch: dict[str, Ref]
    ) -> None:
        """Take what lies in SMEM of sites and states: nodes, heights and `last` of all rows, stacks of the program's.

        sites: which of them are no leaves, as bits, then with a budget their distances.
        """
        self.sizes, self.sites, self.states, self.tables, self.scratch = sizes, sites, states, tables, scratch
        self.rows = scratch["records"].shape[0]
        self.begin = pl.program_id(0) * self.rows

    def node(self, row: Scalar) -> Scalar:
        """Return the state of a row."""
        return jnp.clip(self.states.node[self.begin + row], 0, self.sizes.states - 1)

    def of(self, row: Scalar, word: int) -> Scalar:
        """Return a word of the record of a row's state."""
        at = (self.node(row) & (_PER_ROW - 1)) * RECORD + word
        return self.scratch["records"][row, 0, 0, at]

    def first_row(self, first: int, planes: int, row: Scalar) -> Scalar:
        """Return where a list begins in its table. first: the word of a record that says which entry is the first."""
        return (self.of(row, first) >> 7) * planes

    def height(self, row: Scalar) -> Scalar:
        """Return how many frames are open."""
        return jnp.clip(self.states.height[self.begin + row], 0, self.sizes.slots)

    def site(self, row: Scalar, below: Scalar) -> Scalar:
        """Return the site on a stack that so many lie below."""
        sites = self.tables["site_rows"].shape[0] // self._site_size
        return jnp.clip(self.states.stack[0][row, below], 0, sites - 1)

    @property
    def _site_size(self) -> int:
        """Rows of a site."""
        return self.sizes.symbol_rows * (self.sizes.planes - 1)

    def is_frame(self, site: Scalar) -> Scalar:
        """Return 0 of a leaf, else 1."""
        return lax.shift_right_logical(self.sites[0][site >> 5], site & 31) & 1

    def sum_up(self, row: Scalar) -> None:
        """Note how many frames of a stack are no leaves, and with a budget in how many tokens each height is left."""
        far = self.scratch.get("far")
        if far is not None:
            far[row, 0] = 0

        def one(at: Scalar, frames: Scalar) -> Scalar:
            site = self.site(row, at)
            if far is not None:
                so_far = far[row, at]
                far[row, at + 1] = so_far + jnp.minimum(self.sites[1][site], UNREACHABLE - so_far)
            return frames + self.is_frame(site)

        self.scratch["frames"][0, row] = lax.fori_loop(0, self.height(row), one, jnp.int32(0))

    def place(self, row: Scalar) -> _Place:
        """Return where a row stands."""
        height, push = self.height(row), self.of(row, PUSH)
        frames = self.scratch["frames"][0, row] if self.sizes.pops else jnp.int32(0)
        top, pushes = height + (push >= 0).astype(jnp.int32), push >= 0
        fits = (frames + self.of(row, PUSH_ROOM) <= self.sizes.depth) & (top <= self.sizes.slots)
        base_frames = frames + self.of(row, PUSH_FRAMES)
        return _Place(row, frames, height, top, base_frames, jnp.logical_not(pushes) | fits)

    def spare(self, row: Scalar, below: Scalar) -> Scalar:
        """Return the tokens that are left for what lies above the lowest frames of a stack; -1 if an end is too far."""
        if not self.sizes.counted:
            return jnp.int32(UNREACHABLE)
        last = self.states.last[self.begin + row]
        return jnp.maximum(last - self.scratch["far"][row, below], -1) if self.sizes.pops else last

    def spare_on_top(self, place: _Place) -> Scalar:
        """Return the same above the site of the base."""
        return self.spare(place.row, place.height) - self.of(place.row, PUSH_DISTANCE)

    # -------------------------------------------------------------------------------- copies

    def copy_sites(self, row: Scalar) -> None:
        """Start copies of the sites that exits of a row may leave, and count them."""
        size, window, pops, push = self._site_size, self.scratch["sites"], self.of(row, POPS), self.of(row, PUSH)
        height = self.height(row)

        def one(site: Scalar, slot: Scalar) -> None:
            source = self.tables["site_rows"].at[pl.ds(site * size, size)]
            pltpu.make_async_copy(source, window.at[row, slot], self.scratch["sites_arrived"]).start()

        on_top = (push >= 0) & (pops >> 16 > 0)

        @pl.when(on_top)
        def _() -> None:
            one(push, 0)

        def of_stack(pop: Scalar, _: None) -> None:
            one(self.site(row, height - 1 - pop), 1 + pop)

        frames = jnp.minimum(jnp.maximum(pops & 0xFFFF, pops >> 16), height)
        lax.fori_loop(0, frames, of_stack, None)
        self.scratch["site_copies"][0, 0] += frames + on_top.astype(jnp.int32)

    def wait_for_sites(self) -> None:
        """Wait for all copies of sites, which are of one size."""
        window: Any = self.scratch["sites"].at[0, 0]

        def one(_: Scalar, __: None) -> None:
            copy: Any = pltpu.make_async_copy(window, window, self.scratch["sites_arrived"])
            copy.wait()

        lax.fori_loop(0, self.scratch["site_copies"][0, 0], one, None)

    def fetch(self, source: Ref, into: Ref) -> None:
        """Copy rows of a table now."""
        copy: Any = pltpu.make_async_copy(source, into, self.scratch["fetched"])
        copy.start()
        copy.wait()

    # -------------------------------------------------------------------------------- lists

    def each_block(
        self, name: str, row: Scalar, first: Scalar, count: Scalar, planes: int, words: Array,
        write: Callable[[list[Array], Array, Array], Array],
    ) -> Array:  # fmt: skip
        """Return words after write(planes of a block, which of its lanes are of a list, words) for all its blocks."""
        window, lane = self.scratch[name], lax.broadcasted_iota(jnp.int32, _TILE, 1)
        start = first & (LANES - 1)

        def one(block: Scalar, words: Array) -> Array:
            slot = lax.rem(block, FEWEST_BLOCKS)

            @pl.when((slot == 0) & (block > 0))
            def _() -> None:  # a list of more than what was copied ahead
                size = FEWEST_BLOCKS * planes
                self.fetch(
                    self.tables[_TABLE_OF[name]].at[pl.ds(((first >> 7) + block) * planes, size)], window.at[row]
                )

            fields = [
                jnp.broadcast_to(window[row, slot * planes + plane], _TILE) for plane in range(planes)
            ]  # a copy of the row in each sublane
            at = lane + block * LANES - start
            return write(fields, (at >= 0) & (at < count), words)

        blocks = jnp.where(count > 0, (start + count + LANES - 1) >> 7, 0)
        out: Array = lax.fori_loop(0, blocks, one, words)
        return out

    def bits_of(self, token: Array, inside: Array, allowed: Array | None) -> tuple[Array, Array]:
        """Return the tokens (8, 128), alike in each sublane, that are inside, and those allowed, as words of masks."""
        height = self.sizes.height
        at = jnp.where(inside, (token >> 12) + height * ((token & 31) >> 3), -1)
        rows, value = 4 * height, jnp.left_shift(1, token & 7).astype(jnp.float32)
        here = lax.broadcasted_iota(jnp.int32, (rows, LANES), 0) == _spread(at, rows)
        left = jnp.where(here, _spread(value, rows), 0.0).astype(jnp.bfloat16)
        if allowed is not None:
            followed = jnp.where(allowed, value, 0.0)
            left = jnp.concatenate([left, jnp.where(here, _spread(followed, rows), 0.0).astype(jnp.bfloat16)])
        lane = (token >> 5) & (LANES - 1)
        right = lax.broadcasted_iota(jnp.int32, (LANES, LANES), 0) == _spread(lane, LANES)
        found = lax.dot_general(
            left,
            jnp.where(right, 1.0, 0.0).astype(jnp.bfloat16),
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        ).astype(jnp.int32)
        both = [_joined(found[first : first + rows], height) for first in range(0, found.shape[0], rows)]
        return both[0], both[-1]

    def fits(self, need: Array, frames: Scalar, height: Scalar) -> Array:
        """Return whether there is room for what codes need."""
        room = (need >> 16) <= self.sizes.depth - frames
        found: Array = room & ((need & 0xFFFF) <= self.sizes.slots - height)
        return found

    def write_own(self, place: _Place, words: Array) -> Array:
        """Return words with what the row's own edges say."""
        spare = self.spare(place.row, place.height)

        def write(fields: list[Array], inside: Array, words: Array) -> Array:
            allowed = self.fits(fields[1], place.frames, place.height)
            if self.sizes.counted:
                allowed &= fields[2] <= spare
            named, followed = self.bits_of(fields[0], inside, allowed)
            return (words & ~named) | followed

        first, count = self.of(place.row, OWN_FIRST), self.of(place.row, OWN_COUNT)
        return self.each_block("own", place.row, first, count, self.sizes.planes, words, write)

    def write_exits(self, place: _Place, words: Array, base: Array | None) -> Array:
        """Return words with what exits say: the state's own, or, given the mask of the base, those of the base."""
        row, name = place.row, "exit" if base is None else "base_exit"
        first = self.of(row, EXIT_FIRST if base is None else BASE_EXIT_FIRST)
        count = self.of(row, EXIT_COUNT if base is None else BASE_EXIT_COUNT)
        pops = self.of(row, POPS)
        if base is None:
            followed = self.symbols(place, place.height, pops & 0xFFFF)
        else:
            count = jnp.where(place.has_base, count, 0)
            followed = self.symbols(place, place.top, jnp.where(place.has_base, pops >> 16, 0))

        def write(fields: list[Array], inside: Array, words: Array) -> Array:
            allowed = _in_rows(followed, fields[1]) != 0
            if base is not None:  # what is in the base's mask is none of its exits
                return words | (self.bits_of(fields[0], inside & allowed, None)[0] & ~base)
            named, bits = self.bits_of(fields[0], inside, allowed)
            return (words & ~named) | bits

        return self.each_block(name, row, first, count, 2, words, write)

    def symbols(self, place: _Place, top: Scalar, pops: Scalar) -> list[Array]:
        """Return which symbols may be left with from stacks of a height, at most `pops` frames: int32 (8, 128) each.

        A symbol leaves the frame on top for a code, or for a symbol that leaves the next.
        """
        rows, planes, window = self.sizes.symbol_rows, self.sizes.planes - 1, self.scratch["sites"]
        pushed = top - place.height  # the site of the base lies on top, in slot 0

        def leave(pop: Scalar, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            symbol, allowed, frames = carry
            below = top - 1 - pop
            slot = pop + 1 - pushed
            on_stack = below < place.height
            site = self.site(place.row, jnp.minimum(below, self.sizes.slots - 1))
            frames -= jnp.where(on_stack, self.is_frame(site), self.of(place.row, PUSH_FRAMES))
            table = [
                [jnp.broadcast_to(window[place.row, slot, plane * rows + part], _TILE) for part in range(rows)]
                for plane in range(planes)
            ]
            spare = self.spare(place.row, below)
            symbols, found = [], []
            for part in range(rows):
                target = _in_rows(table[0], symbol[part])
                leaving = symbol[part] >= 0
                follows = leaving & (target >= 0) & self.fits(target, frames, below)
                if self.sizes.counted:
                    follows &= _in_rows(table[1], symbol[part]) <= spare
                found.append(allowed[part] | follows.astype(jnp.int32))
                symbols.append(jnp.where(leaving & (target < 0), -1 - target, -1))
            return symbols, found, frames

        lane = lax.broadcasted_iota(jnp.int32, _TILE, 1)
        begin = [lane + LANES * part for part in range(rows)]
        nothing = [jnp.zeros(_TILE, jnp.int32)] * rows
        frames = place.frames + (place.base_frames - place.frames) * pushed
        out = lax.fori_loop(0, jnp.minimum(pops, top), leave, (begin, nothing, frames))
        found: list[Array] = out[1]
        return found

    def write_classes(self, place: _Place, base: Array, words: Array) -> Array:
        """Return words without the classes of the base that may not be followed."""
        row, room = place.row, self.sizes.depth - place.base_frames
        spare = self.spare_on_top(place)
        of_class = self.scratch["classes"]
        size = of_class.shape[0]

        def look() -> Array:
            self.fetch(self.tables["class_rows"].at[pl.ds(self.of(row, CLASSES) * size, size)], of_class)
            count, first = _word(of_class, 0), _word(of_class, 1)

            def fits(name: Scalar) -> Scalar:
                followed = _word(of_class, 2 + name) <= room
                if self.sizes.counted:
                    followed &= _word(of_class, 2 + count + name) <= spare
                return followed.astype(jnp.int32)

            most = fits(0)  # what tokens that are in no list lead to

            def change(name: Scalar, words: Array) -> Array:
                followed = fits(name)

                def changed() -> Array:
                    named = self.scratch["named"]
                    self.fetch(self.tables["class_masks"].at[pl.ds(first + name - 1, 1)], named)
                    return jnp.where(followed > 0, words | (named[0] & base), words & ~named[0])

                out: Array = lax.cond(followed != most, changed, lambda: words)
                return out

            out: Array = lax.fori_loop(1, count, change, jnp.where(most > 0, words, 0))
            return out

        hold = (self.of(row, CLASS_ROOM) > room) | (
            (self.of(row, CLASS_DISTANCE) > spare) if self.sizes.counted else False
        )
        found: Array = lax.cond(place.has_base & (self.of(row, CLASSES) >= 0) & hold, look, lambda: words)
        return found

    def mask(self, row: Scalar) -> Array:
        """Return the mask of a row: (R, 128) words."""
        sizes, place = self.sizes, self.place(row)
        base = self.scratch["masks"][row, 0]
        words = jnp.where(place.has_base & (place.base_frames <= sizes.depth), base, 0)
        if sizes.limited:
            words = self.write_classes(place, base, words)
        if sizes.pops:
            words = self.write_exits(place, words, base)
            words = self.write_exits(place, words, None)
        words = self.write_own(place, words)
        if sizes.eos is not None:
            ends = (self.of(row, ACCEPTING) != 0) & (place.height == 0)
            at = lax.broadcasted_iota(jnp.int32, words.shape, 0) * LANES
            at += lax.broadcasted_iota(jnp.int32, words.shape, 1)
            bit = sizes.eos & 31
            value = (1 << bit) - (1 << 32 if bit == 31 else 0)
            words |= jnp.where((at == sizes.eos >> 5) & ends, value, 0)
        return words


def _spread(x: Array, rows: int) -> Array:
    """Return x (8, 128), alike in each sublane, in so many rows."""
    return jnp.broadcast_to(x[:1], (rows, LANES))


def _joined(parts: Array, height: int) -> Array:
    """Return words (R, 128) of four bytes each: (4 R, 128), the lowest first."""
    words: Array = parts[:height]
    for byte in range(1, 4):
        words |= parts[byte * height : (byte + 1) * height] << (8 * byte)
    return words


def _in_rows(rows: list[Array], at: Array) -> Array:
    """Return what lies at places (8, 128) in rows of 128 words, (8, 128) each and alike in each sublane."""
    lane = at & (LANES - 1)
    found = jnp.take_along_axis(rows[0], lane, axis=1, mode="promise_in_bounds")
    for part, row in enumerate(rows[1:], 1):
        here = jnp.take_along_axis(row, lane, axis=1, mode="promise_in_bounds")
        found = jnp.where(at >> 7 == part, here, found)
    return found


def _word(rows: Ref, at: Scalar) -> Scalar:
    """Return a word of rows (n, 1, 128) in SMEM."""
    return rows[at >> 7, 0, at & (LANES - 1)]


def _masks_kernel(
    node: Ref,
    height: Ref,
    last: Ref,
    sites: list[Ref],
    stack: tuple[Ref, ...],
    tables: dict[str, Ref],
    out: Ref,
    scratch: dict[str, Ref],
    *,
    sizes: _Sizes,
) -> None:
    """Write the masks of the rows of one program: (rows / 8, R, 8, 128)."""
    program = _Program(sizes, sites, _States(node, height, last, stack), tables, scratch)
    rows, arrived = program.rows, scratch["arrived"]
    start, wait = copies(
        tables["states"], lambda row: program.node(row) >> _PER_ROW.bit_length() - 1, 1, scratch["records"], arrived
    )
    start()
    if sizes.pops:
        each_beam(rows, program.sum_up)
    wait()
    lists = [("own", OWN_FIRST, sizes.planes)]
    if sizes.pops:
        lists += [("exit", EXIT_FIRST, 2), ("base_exit", BASE_EXIT_FIRST, 2)]
    begun = [copies(tables["mask_rows"], lambda row: program.of(row, MASK), 1, scratch["masks"], arrived)]
    for name, first, planes in lists:
        row_of, blocks = functools.partial(program.first_row, first, planes), FEWEST_BLOCKS * planes
        begun.append(copies(tables[_TABLE_OF[name]], row_of, blocks, scratch[name], arrived))
    for start, _ in begun:
        start()
    if sizes.pops:
        scratch["site_copies"][0, 0] = 0
        each_beam(rows, program.copy_sites)
    for _, wait in begun:
        wait()
    if sizes.pops:
        program.wait_for_sites()

    def write(row: Scalar, _: None) -> None:
        words = lax.bitcast_convert_type(program.mask(row), jnp.uint32)
        for part in range(sizes.height):
            out[row >> 3, part, pl.ds(row & 7, 1), :] = words[part : part + 1]

    lax.fori_loop(0, rows, write, None)


def takes(dev: TpuTextTable, state: AnyState, remaining: Array | None) -> bool:
    """Return whether the kernel makes the masks: of some rows, with a budget only where no ends are told apart."""
    return state.node.shape[0] > 0 and (remaining is None or has_distances(dev))


def bitmask(dev: TpuTextTable, state: AnyState, remaining: Array | None) -> Array:
    """Return packed masks as `masks.bitmask` does, with whole rows of 128 words: (B, 128 R)."""
    node, calls = jnp.asarray(state.node).astype(jnp.int32), dev.calls
    last = jnp.zeros_like(node) if remaining is None else jnp.clip(remaining, 0, UNREACHABLE).astype(jnp.int32) - 1
    states = _States(node, jnp.zeros_like(node), last, ())
    if calls is not None:
        assert isinstance(state, NestedState)
        height, stack = (jnp.asarray(x).astype(jnp.int32) for x in (state.height, state.stack))
        states = states._replace(height=height, stack=(stack,))
    sizes = _Sizes(
        states=dev.num_states,
        eos=dev.eos,
        depth=0 if calls is None else calls.depth,
        slots=0 if calls is None else calls.slots,
        pops=0 if calls is None else calls.pops,
        symbol_rows=1 if calls is None else symbols_wide(calls) // LANES,
        height=mask_height(dev.vocab_size),
        planes=3 if has_distances(dev) else 2,
        limited=remaining is not None or (calls is not None and calls.state_room.shape[0] > 0),
        counted=remaining is not None,
    )
    masks: Array = _masks(dev, states, sizes)
    return masks


@functools.partial(jax.jit, static_argnames="sizes")
def _masks(dev: TpuTextTable, states: _States, sizes: _Sizes) -> Array:
    """Return masks: (n, 128 R) uint32."""
    n = states.node.shape[0]
    names = ["states", "mask_rows", "own_rows"]
    names += ["exit_rows", "site_rows"] if sizes.pops else []
    names += ["class_rows", "class_masks"] if sizes.limited else []
    held, scratch = held_in_hbm(dev, *names), _windows(sizes)
    words = sum(math.prod(shape) for shape in scratch.values()) + 2 * sizes.height * LANES
    most = min(_MOST_ROWS, _WINDOW_BYTES // (4 * words), _STACK_WORDS // (sizes.slots + LANES))
    rows = max(8, min(most, n + 7) // 8 * 8)
    programs = -(-n // rows)
    memory: dict[str, Any] = {name: pltpu.VMEM((rows, *shape), jnp.int32) for name, shape in scratch.items()}
    memory |= {
        "records": pltpu.SMEM((rows, 1, 1, LANES), jnp.int32),
        "arrived": pltpu.SemaphoreType.DMA,
        "fetched": pltpu.SemaphoreType.DMA,
    }
    sites = []
    if sizes.pops:
        assert dev.calls is not None
        memory |= {
            "frames": pltpu.SMEM((1, rows), jnp.int32),
            "site_copies": pltpu.SMEM((1, 1), jnp.int32),
            "sites_arrived": pltpu.SemaphoreType.DMA,
        }
        sites = [dev.site_bits]
        if sizes.counted:
            memory["far"] = pltpu.SMEM((rows, sizes.slots + 1), jnp.int32)
            sites.append(dev.calls.site_distance)
    if sizes.limited:
        memory |= {
            "classes": pltpu.SMEM((dev.class_blocks, 1, LANES), jnp.int32),
            "named": pltpu.VMEM((1, sizes.height, LANES), jnp.int32),
        }
    states = jax.tree.map(lambda x: jnp.pad(x, [(0, rows * programs - n)] + [(0, 0)] * (x.ndim - 1)), states)

    def of_program(x: Array) -> Any:
        return pl.BlockSpec((rows, x.shape[1]), row_block, memory_space=pltpu.SMEM)

    out: Array = pl.pallas_call(
        functools.partial(_masks_kernel, sizes=sizes),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(programs,),
            in_specs=[
                [pl.BlockSpec(memory_space=pltpu.SMEM) for _ in sites],
                tuple(map(of_program, states.stack)),
                stay(held),
            ],
            out_specs=pl.BlockSpec((rows // 8, sizes.height, 8, LANES), lambda program, *_: (program, 0, 0, 0)),
            scratch_shapes=[memory],
        ),
        out_shape=shape_of((rows * programs // 8, sizes.height, 8, LANES), jnp.uint32),
        name="text_masks",
    )(states.node, states.height, states.last, sites, states.stack, held)
    # in memory this is what XLA makes of (n, 128 R): tiles of 8 rows and 128 columns, so that nothing is moved
    return out.swapaxes(1, 2).reshape(rows * programs, -1)[:n]


def _windows(sizes: _Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what is copied of each row into VMEM."""
    windows: dict[str, tuple[int, ...]] = {
        "masks": (1, sizes.height, LANES),
        "own": (FEWEST_BLOCKS * sizes.planes, 1, LANES),
    }
    if sizes.pops:
        windows["exit"] = windows["base_exit"] = (FEWEST_BLOCKS * 2, 1, LANES)
        windows["sites"] = (sizes.pops + 1, sizes.symbol_rows * (sizes.planes - 1), 1, LANES)  # that of the base first
    return windows
