"""Operations on a table in JAX: under `jit`, `vmap` and `lax.scan`, on CPU, GPU and TPU.

A table from `put` is a pytree: pass it to a jitted function as an argument. Names and meaning of the operations are
those of `numpy_ops`, the specification.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from ..table.sorted_matrix import SortedMatrix
from ..table.transition_table import NEVER, NestedState, TransitionTable
from .arena.arena import Arena, Handle, starts_of
from .device import matrix_ops
from .device.device_table import (
    ARRAYS,
    CALL_ARRAYS,
    CALL_STATICS,
    STATICS,
    AnyState,
    Candidates,
    DeviceCalls,
    DeviceTable,
    Selection,
    State,
    check_floating,
    check_logits,
    check_put,
    check_remaining,
    check_rows,
    check_sids,
    check_starts,
    check_state,
    check_tokens,
    check_top,
    device_table,
    refuse_wide,
)
from .device.dispatch import by_kind
from .device.matrix_ops import DeviceMatrix, place
from .device.on_demand import Arrays, OnDemandTable, is_read, read

_UNROLLED = 8  # frames that a token leaves without a loop, which XLA cannot fuse
_BLOCK = 64  # scores per block maximum in `top_k`
_FEWEST = 16  # rows of masks that are written at once
_LEAST = 64  # entries of an arena's arrays that are written at once

jax.tree_util.register_dataclass(DeviceCalls, data_fields=list(CALL_ARRAYS), meta_fields=list(CALL_STATICS))
jax.tree_util.register_dataclass(DeviceTable, data_fields=[*ARRAYS, "calls"], meta_fields=list(STATICS))
jax.tree_util.register_dataclass(
    DeviceMatrix, data_fields=list(matrix_ops.ARRAYS), meta_fields=list(matrix_ops.STATICS)
)


def _given(kind: Any, arrays: Any) -> OnDemandTable:
    """Return a table that is read on demand with its arrays where they are traced, else as they are by then."""
    kept, start_row = kind
    rows = kept()
    if rows is None:
        raise ReferenceError("the table that these arrays are of is gone: keep what put() returned")
    traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
    return OnDemandTable(rows, start_row, Arrays(*arrays) if traced else None)


def _taken(dev: OnDemandTable) -> tuple[Any, Any]:
    """Return the arrays of a table that is read on demand, and what is static: compiled functions keep no table."""
    return tuple(dev.arrays), (weakref.ref(dev.rows), dev.start_row)


jax.tree_util.register_pytree_node(OnDemandTable, _taken, _given)


@overload
def put(
    table: TransitionTable,
    device: jax.Device | None = None,
    *,
    budgets: bool = False,
    top: None = None,
    on_demand: Literal[False] | None = None,
) -> DeviceTable: ...
@overload
def put(
    table: TransitionTable,
    device: jax.Device | None = None,
    *,
    budgets: bool = False,
    top: None = None,
    on_demand: Literal[True],
) -> OnDemandTable: ...
@overload
def put(
    table: SortedMatrix, device: jax.Device | None = None, *, budgets: bool = False, top: int | None = None
) -> DeviceMatrix: ...
@overload
def put(table: Arena, device: jax.Device | None = None, *, budgets: bool = False, top: None = None) -> DeviceTable: ...
def put(
    table: TransitionTable | SortedMatrix | Arena,
    device: jax.Device | None = None,
    *,
    budgets: bool = False,
    top: int | None = None,
    on_demand: bool | None = None,
) -> DeviceTable | DeviceMatrix | OnDemandTable:
    """Copy a table or a sorted matrix to a device, once; every other function takes what this returns.

    budgets: also copy the distances that `remaining` needs; a matrix needs none. top: of a matrix, only the `top` best
    logits of each row are verified; others count as not allowed, so that a row may lose continuations, or all.
    on_demand: of a table, whether to read it as texts come to its states, on the host between steps, instead of copying
    it. Left out, this is done where there is no finite one, as of grammars whose nesting a text does not delimit: see
    `on_demand.OnDemandTable`.

    Of an arena, call it again once tables were added: its arrays take the place of those that were returned before,
    which are used up. Writing them compiles once for each array and size, some tenths of a second in the first adds.
    """
    wide = bool(jnp.arange(0).dtype == jnp.int64)  # else JAX is in its 32-bit mode

    def convert(array: NDArray[Any]) -> Array:
        placed: Array = jax.device_put(array, device)
        return placed

    if is_read(table, on_demand):
        return read(sys.modules[__name__], convert, cast(Any, table), budgets, top)
    if isinstance(table, SortedMatrix):
        return place(table, convert, top, wide)
    check_top(top)
    if isinstance(table, Arena):
        arena = table
        arena.check_budgets(budgets)
        return arena.mirror(("jax", device), lambda: _Mirror(arena, convert))
    if not wide:
        refuse_wide(table)

    return device_table(table, convert, DeviceTable, budgets)


class _Mirror:
    """An arena's arrays on a device; what they were before is given up to what they are now."""

    def __init__(self, arena: Arena, convert: Callable[[NDArray[Any]], Array]) -> None:
        self._arrays: dict[str, Array] = {}
        self._by_ends = arena.by_ends

        def keep(name: str, array: NDArray[Any]) -> Array:
            self._arrays[name] = convert(array)
            return self._shown(name)

        self.dev = arena.on_device(keep, DeviceTable, False)

    def _shown(self, name: str) -> Array:
        array = self._arrays[name]
        return jnp.moveaxis(array, 0, -1) if name in self._by_ends else array

    def write(self, changes: list[tuple[str, int, NDArray[Any]]]) -> None:
        for name, start, values in changes:
            size = max(_LEAST, 1 << (len(values) - 1).bit_length())  # few sizes, each of which is compiled for once
            padded = np.zeros((size, *values.shape[1:]), values.dtype)
            padded[: len(values)] = values
            self._arrays[name] = _overwritten(self._arrays[name], padded, start, len(values))
        shown: dict[str, Any] = {name: self._shown(name) for name in {name for name, _, _ in changes}}
        assert self.dev.calls is not None, "an arena's tables may be nested"
        calls = replace(self.dev.calls, **{name: shown.pop(name) for name in CALL_ARRAYS if name in shown})
        self.dev = replace(self.dev, calls=calls, **shown)


@partial(jax.jit, donate_argnums=0)
def _overwritten(array: Array, values: Array, start: Array, count: Array) -> Array:
    """Return an array with the first `count` of some values from `start` on."""
    rows = jnp.arange(values.shape[0])
    to = jnp.where(rows < count, start + rows, array.shape[0])
    return array.at[to].set(values.astype(array.dtype), mode="drop")


def at(dev: DeviceTable, handles: Sequence[Handle]) -> DeviceTable:
    """Return an arena in which the rows of a batch start in the tables of handles (B,): as many rows in each."""
    return replace(dev, starts=jnp.asarray(starts_of(handles, dev.arena)))


@by_kind
def start(dev: DeviceTable, batch: int) -> AnyState:
    """Return the state of `batch` sequences with nothing written yet."""
    check_put(dev)
    check_starts(dev.starts.shape[0], batch)
    node = jnp.repeat(dev.starts.astype(dev.row_start.dtype), batch // dev.starts.shape[0], total_repeat_length=batch)
    if dev.calls is None:
        return State(node)
    return _nested(node, jnp.zeros((batch, dev.calls.slots)), jnp.zeros(batch))


# ---------------------------------------------------------------------------------------------- gathers


def _at(array: Array, *index: Array) -> Array:
    """Return array[index]; all indices made here are inside, so none needs a check."""
    return array.at[index].get(mode="promise_in_bounds")


def _first(dev: DeviceTable, node: Array) -> Array:
    """Return the first edge of each state; a state ends where the next one starts."""
    return _at(dev.row_start, jnp.minimum(node, dev.num_rows)) + jnp.maximum(node - dev.num_rows, 0)


def _token(dev: DeviceTable, edge: Array) -> Array:
    """Return the token of each edge."""
    return _at(dev.edge_token, edge).astype(jnp.int32)


def _expand(dev: DeviceTable, node: Array, width: int) -> tuple[Array, Array, Array]:
    """Return the first `width` edges of each state, their tokens, and which of them are allowed: (n, width)."""
    edge = _first(dev, node)[:, None] + jnp.arange(width, dtype=node.dtype)
    token = _token(dev, edge)
    return edge, token, (edge < _first(dev, node + 1)[:, None]) & (token < dev.vocab_size)


def _follow(dev: DeviceTable, edge: Array) -> Array:
    """Return the state each edge leads to."""
    target = _at(dev.edge_target, jnp.minimum(edge, max(dev.num_edges - 1, 0)))
    return jnp.where(edge < dev.num_edges, target, edge + (dev.num_rows - dev.num_edges + 1))


def _base(dev: DeviceTable, node: Array) -> Array:
    """Return the base of each state; the last, which allows nothing, where it has none."""
    return _at(dev.base_row, jnp.minimum(node, dev.base_row.shape[0] - 1))


def _edge_of(dev: DeviceTable, node: Array, token: Array) -> tuple[Array, Array]:
    """Return the edge of each state (n,) of a trie that carries a token (n,), and whether there is one."""
    inside = (token >= 0) & (token < dev.vocab_size)
    token = jnp.clip(token, 0, dev.vocab_size - 1).astype(jnp.int32)
    low, found = _search(dev.edge_token, _first(dev, node), _first(dev, node + 1), token, dev.sparse_width)
    if dev.has_masks:
        ranked, masked, present = _ranked_edge(dev, node, token)
        low, found = jnp.where(masked, ranked, low), jnp.where(masked, present, found)
    return low, found & inside


def _search(tokens: Array, low: Array, last: Array, token: Array, width: int) -> tuple[Array, Array]:
    """Return where a token (n,) stands among the sorted tokens[low:last] of at most `width`, and whether it does."""
    high = last
    for _ in range(width.bit_length()):
        middle = low + ((high - low) >> 1)
        below = _at(tokens, middle).astype(jnp.int32) < token
        searching = low < high
        low, high = jnp.where(searching & below, middle + 1, low), jnp.where(searching & ~below, middle, high)
    return low, (low < last) & (_at(tokens, low).astype(jnp.int32) == token)


def _class_target(dev: DeviceTable, node: Array, base: Array, name: Array) -> Array:
    """Return where each state leads by a token of its base that has this class."""
    code = _at(dev.base_target, _at(dev.base_start, base) + name)
    return jnp.clip((code >> 1) + (code & 1) * node, 0, dev.dead)


def _of_base(dev: DeviceTable, node: Array, base: Array, token: Array) -> Array:
    """Return where a token (n,) of its base's mask leads from each state (n,)."""
    classes = _at(dev.base_classes, base)
    low, last = _at(dev.class_start, classes), _at(dev.class_start, classes + 1)
    at, found = _search(dev.class_token, low, last, token, dev.class_width)
    return _class_target(dev, node, base, jnp.where(found, _at(dev.class_id, at), 0))


def _step(dev: DeviceTable, node: Array, token: Array) -> Array:
    """Return where a token (n,) leads from each state (n,) of a graph; the dead state if nowhere, and by EOS."""
    inside = (token >= 0) & (token < dev.vocab_size)
    token = jnp.clip(token, 0, dev.vocab_size - 1).astype(jnp.int32)
    edge, own = _search(dev.edge_token, _first(dev, node), _first(dev, node + 1), token, dev.sparse_width)
    following = jnp.where(own, _at(dev.edge_target, jnp.minimum(edge, dev.edge_target.shape[0] - 1)), dev.dead)
    if dev.has_masks:
        base = _base(dev, node)
        byte = _at(dev.masks, _at(dev.base_mask, base), token >> 3)
        target = _of_base(dev, node, base, token)
        allowed = ((byte >> (token & 7).astype(jnp.uint8)) & 1).astype(bool)
        following = jnp.where(allowed & ~own, target, following)
    return jnp.where(inside, following, dev.dead)


def _ranked_edge(dev: DeviceTable, node: Array, token: Array) -> tuple[Array, Array, Array]:
    """Return the edge of each state (n,) for a token (n,), whether it has a mask, and whether the token is in it.

    The bits set before a token's own are the edges before its own. A state without a mask gets its first edge.
    """
    base = _base(dev, node)
    byte = _at(dev.masks, base, token >> 3).astype(jnp.uint32)
    bit = (token & 7).astype(jnp.uint32)
    before = lax.population_count(byte & ((jnp.uint32(1) << bit) - 1)).astype(node.dtype)
    before = before + _at(dev.rank, base, token >> 3).astype(node.dtype)
    return _first(dev, node) + before, base < dev.masks.shape[0] - 1, ((byte >> bit) & 1).astype(bool)


def _mask(dev: DeviceTable, state: AnyState, masked: bool, width: int, remaining: Array | None = None) -> Array:
    """Return bool (n, V) of the tokens allowed, EOS aside.

    masked: some of the states have masks. width: most own edges of a state that its mask does not say; 0 if all have
    masks.
    """
    node, calls = state.node, dev.calls
    rows = jnp.arange(node.shape[0])[:, None]
    last = None if remaining is None else (remaining - 1)[:, None]
    stack = None if calls is None else _stack(calls, state, last is not None)
    around = None if stack is None else _above(stack, stack.height[:, None])
    base = _base(dev, node)
    if masked:
        mask, base = _base_mask(dev, node, base, around, last)
    else:
        mask = jnp.zeros((node.shape[0], 8 * dev.masks.shape[1]), bool)
    if calls is not None and stack is not None and calls.exit_width:
        mask = _write_exits(dev, calls, stack, last, node, base, mask)
    if width:
        edge, token, inside = _expand(dev, node, width)
        value: Array | bool = True
        if last is not None or not dev.is_trie:
            value = _fits(dev, jnp.where(inside, _follow(dev, edge), dev.dead), around, last)
        mask = mask.at[rows, jnp.where(inside, token, mask.shape[1])].set(value, mode="drop")
    return mask[:, : dev.vocab_size]


def _base_mask(
    dev: DeviceTable, node: Array, base: Array, around: _Around | None, last: Array | None
) -> tuple[Array, Array]:
    """Return bool (n, 8 K) of what bases allow, and the bases (n,), the last where there is no room for one."""
    calls, none, shown = dev.calls, dev.base_mask.shape[0] - 1, base
    if calls is not None and around is not None:
        around, fits = _pushed(calls, around, _base_push(calls, node))
        base = jnp.where(fits[:, 0], base, none)
        shown = jnp.where(around.frames[:, 0] <= calls.depth, base, none)
    if dev.is_trie or (last is None and (calls is None or not calls.state_room.shape[0])):
        return jnp.unpackbits(_at(dev.masks, _at(dev.base_mask, shown)), axis=1, bitorder="little").astype(bool), base
    # what classes lead to may be too far from an end, or need too much room
    zero = _fits(dev, _class_target(dev, node, base, jnp.zeros_like(base))[:, None], around, last)
    shown = jnp.where(zero[:, 0], shown, none)
    mask = jnp.unpackbits(_at(dev.masks, _at(dev.base_mask, shown)), axis=1, bitorder="little").astype(bool)
    classes = _at(dev.base_classes, base)
    at = _at(dev.class_start, classes)[:, None] + jnp.arange(dev.class_width, dtype=jnp.int32)
    own = at < _at(dev.class_start, classes + 1)[:, None]
    token = jnp.where(own, _at(dev.class_token, at).astype(jnp.int32), 0)
    target = _class_target(dev, node[:, None], base[:, None], jnp.where(own, _at(dev.class_id, at), 0))
    allowed = _in_mask(dev, base, token) & _fits(dev, target, around, last)
    rows = jnp.arange(node.shape[0])[:, None]
    return mask.at[rows, jnp.where(own, token, mask.shape[1])].set(allowed, mode="drop"), base


def _in_mask(dev: DeviceTable, base: Array, token: Array) -> Array:
    """Return whether tokens (n, k) are in the masks of bases (n,)."""
    byte = _at(dev.masks, _at(dev.base_mask, base)[:, None], token >> 3)
    return ((byte >> (token & 7).astype(jnp.uint8)) & 1).astype(bool)


def _allowed(dev: DeviceTable, state: AnyState, remaining: Array | None) -> Array:
    """Return bool (n, V) of the tokens allowed, EOS among them."""
    width = dev.sparse_width
    if remaining is not None:
        if remaining.dtype.itemsize < 4:
            remaining = remaining.astype(jnp.int32)
        remaining = jnp.clip(remaining, 0, NEVER).astype(jnp.int32)  # so that 1 less does not wrap in any type
        if dev.is_trie:  # whose masks do not say where their tokens lead
            width = max(width, *(level.width for level in dev.levels))
    mask = _mask(dev, state, dev.has_masks, width, remaining)
    if dev.eos is not None:
        mask = mask.at[:, dev.eos].set(mask[:, dev.eos] | accepting(dev, state))
    return mask


# ------------------------------------------------------------------------------------------------- calls


class _Stack(NamedTuple):
    """The stacks of a batch."""

    sites: Array  # (n, slots)
    height: Array  # (n,) open frames
    frames: Array  # (n, slots + 1) how many of the lowest 0, 1, .. frames are no leaves
    far: Array | None  # (n, slots + 1) uint32 tokens in which those are left, where there is a budget; (.., C) by ends


class _Around(NamedTuple):
    """What is on the stacks that codes (n, k) are followed from, of a shape that broadcasts with theirs."""

    height: Array
    frames: Array
    far: Array | None  # with one more axis, of C, where ends are told apart


def _plus(a: Array, b: Array) -> Array:
    """Return the sum of distances, NEVER at most: two of them fit into 32 bits without a sign."""
    return jnp.minimum(a.astype(jnp.uint32) + b.astype(jnp.uint32), jnp.uint32(NEVER))


def _stack(calls: DeviceCalls, state: AnyState, budget: bool) -> _Stack:
    """Return the stacks of a state (n,)."""
    assert isinstance(state, NestedState)
    sites, height = jnp.asarray(state.stack), jnp.asarray(state.height)
    inside = jnp.arange(calls.slots, dtype=height.dtype) < height[:, None]
    open_sites = jnp.where(inside, sites, calls.site_frames.shape[0] - 1)  # of no frame: the site that is none
    none = ((0, 0), (1, 0))
    frames = jnp.pad(jnp.cumsum(_at(calls.site_frames, open_sites), axis=1, dtype=jnp.int32), none)
    far = None
    if budget and not calls.end_distance.shape[0]:
        far = lax.associative_scan(_plus, _at(calls.site_distance, open_sites).astype(jnp.uint32), axis=1)
        far = jnp.pad(far, none)
    elif budget:
        start = jnp.full((sites.shape[0], calls.end_distance.shape[0]), NEVER, jnp.uint32).at[:, 0].set(0)

        def returned(far: Array, below: tuple[Array, Array]) -> tuple[Array, Array]:
            further = _returned(calls, far, *below)
            return further, further

        _, above = lax.scan(returned, start, (frames[:, :-1].T, open_sites.T))
        far = jnp.moveaxis(jnp.concatenate([start[None], above]), 0, 1)
    return _Stack(sites, height, frames, far)


def _returned(calls: DeviceCalls, far: Array, frames: Array, site: Array) -> Array:
    """Return distances of stacks (.., C) of so many frames (..,) with one more site (..,) on them, by ends."""

    def of_sites(values: Array) -> Array:
        return values.at[:, :, site].get(mode="promise_in_bounds")

    steps = of_sites(calls.end_distance)
    if calls.site_distance_room.shape[0]:
        steps = jnp.where(frames + of_sites(calls.site_distance_room) <= calls.depth, steps, NEVER)
    steps = jnp.moveaxis(steps, (0, 1), (-2, -1))
    return _plus(steps, far[..., None, : steps.shape[-1]]).min(axis=-1)


def _above(stack: _Stack, height: Array) -> _Around:
    """Return what is on stacks of which the lowest frames (n, k) are left."""
    far = stack.far
    if far is not None:
        far = take(far, height) if far.ndim == 2 else jnp.take_along_axis(far, height[:, :, None], axis=1)
    return _Around(height, take(stack.frames, height), far)


def _fits(dev: DeviceTable, code: Array, around: _Around | None, last: Array | None) -> Array:
    """Return whether codes (n, k) may be followed from stacks, with `last` tokens (n, 1) left where they lead to."""
    fits = code != dev.dead
    far = None if last is None or dev.distance.ndim > 1 else _at(dev.distance, code)
    if dev.calls is not None and around is not None:
        calls = dev.calls
        action = jnp.maximum(code - dev.dead, 0)
        room = _at(calls.action_room, action)
        if calls.state_room.shape[0]:
            room = jnp.maximum(room, _at(calls.state_room, jnp.minimum(code, dev.dead)))
        pushed = _at(calls.action_start, action + 1) - _at(calls.action_start, action)
        fits &= (around.frames + room <= calls.depth) & (around.height + pushed <= calls.slots)
        if far is not None and around.far is not None:
            far = _plus(far, around.far).astype(jnp.int32)
        elif last is not None and around.far is not None:  # one end after the other: many are rare, and codes are many
            for end in range(dev.distance.shape[0]):
                by_end = _plus(_at(dev.distance[end], code), around.far[..., end]).astype(jnp.int32)
                if calls.distance_room.shape[0]:
                    possible = around.frames + _at(calls.distance_room[end], code) <= calls.depth
                    by_end = jnp.where(possible, by_end, NEVER)
                far = by_end if far is None else jnp.minimum(far, by_end)
    return fits if far is None or last is None else fits & (far <= last)


def _base_push(calls: DeviceCalls, node: Array) -> Array:
    """Return the site (n, 1) that each row's base lies on, or -1."""
    if not calls.base_push.shape[0]:
        return jnp.full((node.shape[0], 1), -1, jnp.int32)
    return _at(calls.base_push, jnp.minimum(node, calls.base_push.shape[0] - 1))[:, None]


def _pushed(calls: DeviceCalls, around: _Around, push: Array) -> tuple[_Around, Array]:
    """Return what is on stacks with a site (n, 1) in addition, where that is not -1, and whether there is room."""
    site = jnp.where(push < 0, calls.site_frames.shape[0] - 1, push)
    height = around.height + (push >= 0)
    fits = (push < 0) | (around.frames + _at(calls.site_room, site) <= calls.depth) & (height <= calls.slots)
    far = around.far
    if far is not None:
        one = not calls.end_distance.shape[0]
        far = (
            _plus(far, _at(calls.site_distance, site))
            if one
            else jnp.where(push[..., None] < 0, far, _returned(calls, far, around.frames, site))
        )
    return _Around(height, around.frames + _at(calls.site_frames, site), far), fits


def _resolve(dev: DeviceTable, calls: DeviceCalls, stack: _Stack, push: Array, target: Array) -> tuple[Array, Array]:
    """Return the code that each target (n, k) comes to and how many frames are left below it: (n, k) each.

    A target is a code, or -1 - y: symbol y leaves the frame on top. push: a site (n, 1) that lies there besides, or
    -1. A token leaves few frames, `pops` at most, and all of one row leave the same ones.
    """
    top = stack.height[:, None] + (push >= 0)
    at = top - 1 - jnp.arange(calls.pops, dtype=top.dtype)
    sites = jnp.where(at < stack.height[:, None], take(stack.sites, jnp.clip(at, 0, calls.slots - 1)), push)
    sites = jnp.where(at < 0, calls.site_frames.shape[0] - 1, sites)

    def leave(pop: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        target, left = carry
        leaves = target < 0
        site, below = (lax.dynamic_slice_in_dim(x, pop, 1, axis=1) for x in (sites, at))
        found = _site_target(calls, site, jnp.maximum(-1 - target, 0), dev.dead).astype(target.dtype)
        return jnp.where(leaves, found, target), jnp.where(leaves, below, left)

    carry = target, jnp.broadcast_to(top, target.shape)
    if calls.pops <= _UNROLLED:
        for pop in range(calls.pops):
            carry = leave(pop, carry)
    else:
        carry = lax.fori_loop(0, calls.pops, leave, carry)
    target, left = carry
    return jnp.where(target < 0, dev.dead, target), jnp.maximum(left, 0)


def _site_target(calls: DeviceCalls, site: Array, symbol: Array, dead: int) -> Array:
    """Return what symbols (n, k) come to at sites (n, 1): a code, the dead state where a site has none, or -1 - y."""
    if not calls.site_width:
        return _at(calls.site_target, site, symbol)
    low, last = _at(calls.site_start, site), _at(calls.site_start, site + 1)
    low, last = jnp.broadcast_to(low, symbol.shape), jnp.broadcast_to(last, symbol.shape)
    at, found = _search(calls.site_symbol, low, last, symbol, calls.site_width)
    return jnp.where(found, _at(calls.site_target, at), dead)


def _exit_list(calls: DeviceCalls, lists: Array, at: Array) -> Array:
    """Return the exit list of each row or base (n,), the empty one where it has none."""
    if not lists.shape[0]:
        return jnp.full(at.shape, calls.exit_start.shape[0] - 2, jnp.int32)
    return _at(lists, jnp.minimum(at, lists.shape[0] - 1))


def _write_exits(
    dev: DeviceTable, calls: DeviceCalls, stack: _Stack, last: Array | None, node: Array, base: Array, mask: Array
) -> Array:
    """Return mask (n, 8 K) with what exits say: those of bases, then those of rows; all are resolved at once."""
    n, rows = node.shape[0], jnp.arange(node.shape[0])[:, None]
    lists, push = [], []
    if calls.base_exit.shape[0]:
        lists.append(_exit_list(calls, calls.base_exit, base))
        push.append(_base_push(calls, node))
    if calls.row_exit.shape[0]:
        lists.append(_exit_list(calls, calls.row_exit, node))
        push.append(jnp.full((n, 1), -1, jnp.int32))
    if not lists:
        return mask

    def for_each_list(x: Array) -> Array:
        return jnp.concatenate([x] * len(lists))

    which = jnp.concatenate(lists)
    at = _at(calls.exit_start, which)[:, None] + jnp.arange(calls.exit_width, dtype=jnp.int32)
    inside = at < _at(calls.exit_start, which + 1)[:, None]
    token = jnp.where(inside, _at(calls.exit_token, at).astype(jnp.int32), mask.shape[1])
    stacks = _Stack(*(cast(Array, None if x is None else for_each_list(x)) for x in stack))
    code, left = _resolve(dev, calls, stacks, jnp.concatenate(push), -1 - _at(calls.exit_symbol, at))
    fits = _fits(dev, code, _above(stacks, left), None if last is None else for_each_list(last))
    if calls.base_exit.shape[0]:  # what is in the base's mask is none of its exits
        masked = _in_mask(dev, base, jnp.minimum(token[:n], dev.vocab_size - 1))
        mask = mask.at[rows, jnp.where(masked, mask.shape[1], token[:n])].set(fits[:n], mode="drop")
    if calls.row_exit.shape[0]:
        mask = mask.at[rows, token[-n:]].set(fits[-n:], mode="drop")
    return mask


def _step_nested(dev: DeviceTable, calls: DeviceCalls, state: AnyState, token: Array) -> NestedState:
    """Return where a token (n,) leads from each state (n,) of a nested table; the dead state if nowhere, and by EOS."""
    node, stack = state.node, _stack(calls, state, False)
    around = _above(stack, stack.height[:, None])
    inside = (token >= 0) & (token < dev.vocab_size)
    token = jnp.clip(token, 0, dev.vocab_size - 1).astype(jnp.int32)
    edge, own = _search(dev.edge_token, _first(dev, node), _first(dev, node + 1), token, dev.sparse_width)

    base = _base(dev, node)
    lists = jnp.concatenate([_exit_list(calls, calls.row_exit, node), _exit_list(calls, calls.base_exit, base)])
    low, stop = _at(calls.exit_start, lists), _at(calls.exit_start, lists + 1)
    at, leaves = _search(calls.exit_token, low, stop, jnp.tile(token, 2), calls.exit_width)
    leaving = jnp.where(leaves, -1 - _at(calls.exit_symbol, at), dev.dead).reshape(2, -1)
    target = _at(dev.edge_target, jnp.minimum(edge, dev.edge_target.shape[0] - 1))
    target = jnp.where(own, target, leaving[0])
    push = jnp.full((node.shape[0], 1), -1, jnp.int32)
    if dev.has_masks:
        taken = own | leaves.reshape(2, -1)[0]
        masked = _in_mask(dev, base, token[:, None])[:, 0]
        inner = jnp.where(masked, _of_base(dev, node, base, token), leaving[1])
        push = jnp.where(taken[:, None], -1, _base_push(calls, node))
        _, fits = _pushed(calls, around, push)
        target = jnp.where(taken, target, jnp.where(fits[:, 0], inner, dev.dead))

    code, left = _resolve(dev, calls, stack, push, target[:, None])
    kept = jnp.where(target[:, None] >= 0, push, -1)  # an exit of the base has left the site again
    left = jnp.where(kept >= 0, stack.height[:, None], left)
    around, _ = _pushed(calls, _above(stack, left), kept)
    code = jnp.where(inside[:, None] & _fits(dev, code, around, None), code, dev.dead)
    return _entered(dev, calls, stack, code, left, kept)


def _entered(dev: DeviceTable, calls: DeviceCalls, stack: _Stack, code: Array, left: Array, push: Array) -> NestedState:
    """Return the state after codes (n, 1) from the `left` (n, 1) lowest frames of a stack, and a site or -1 on them."""
    action = jnp.maximum(code - dev.dead, 0)
    first = _at(calls.action_start, action)
    pushed = _at(calls.action_start, action + 1) - first
    node = jnp.where(action > 0, _at(calls.action_state, action), code)[:, 0]
    slot = jnp.arange(calls.slots, dtype=left.dtype)
    over = jnp.maximum(slot - left, -1)  # frames above those that are left
    opened = _at(calls.action_push, jnp.clip(first + over, 0, calls.action_push.shape[0] - 1))
    sites = jnp.where(over < 0, stack.sites, jnp.where(over < pushed, opened, 0))
    sites = jnp.where((over == 0) & (push >= 0), push, sites)
    height = jnp.where(code < dev.num_rows, left + (push >= 0), jnp.where(action > 0, left + pushed, 0))
    sites = jnp.where(slot < height, sites, 0)
    return _nested(node, sites, height[:, 0])


def _nested(node: Any, stack: Any, height: Any) -> NestedState:
    """Return a state of arrays that are none of numpy."""
    return NestedState(node, stack.astype(jnp.int32), height.astype(jnp.int32))


def _reached(dev: DeviceTable, state: AnyState, token: Array) -> AnyState:
    """Return where a token (n,) leads from each state (n,) of a graph; the dead state if nowhere, and by EOS."""
    if dev.calls is None:
        return State(_step(dev, jnp.asarray(state.node), token))
    return _step_nested(dev, dev.calls, state, token)


def _only(dev: DeviceTable, holds: Array, state: AnyState) -> AnyState:
    """Return a state (n,) with the dead state where `holds` (n,) is not so."""
    node = jnp.where(holds, state.node, dev.dead)
    if not isinstance(state, NestedState):
        return State(node)
    return _nested(node, jnp.where(holds[:, None], state.stack, 0), jnp.where(holds, state.height, 0))


def _map(function: Any, state: AnyState) -> Any:
    """Return a state whose arrays have gone through a function."""
    return type(state)(*(function(array) for array in state))


def _check_state(dev: DeviceTable, state: AnyState) -> None:
    if dev.calls is not None:
        check_state(dev.calls.slots, state)


# ---------------------------------------------------------------------------------------------- operations


@by_kind
def accepting(dev: DeviceTable, state: AnyState) -> Array:
    """Return whether each sequence may end where it stands: bool (B,)."""
    _check_state(dev, state)
    node = state.node
    rows = _at(dev.accepting, jnp.minimum(node, dev.num_rows - 1))
    entry = _token(dev, jnp.maximum(node - dev.num_rows, 0) + dev.num_edges)
    ends = jnp.where(node < dev.num_rows, rows, entry == dev.vocab_size)
    return ends & (state.height == 0) if isinstance(state, NestedState) else ends


@by_kind
def distance(dev: DeviceTable, state: AnyState) -> Array:
    """Return the tokens (B,) in which each sequence can be complete, NEVER at most; one of them is always allowed.

    The table must have been put with budgets.
    """
    near = _at(dev.distance, state.node) if dev.distance.ndim == 1 else _at(dev.distance.T, state.node)
    if dev.calls is None:
        return near
    _check_state(dev, state)
    stack = _stack(dev.calls, state, True)
    far = _above(stack, stack.height[:, None]).far
    assert far is not None
    by_end = _plus(near, far[:, 0]).astype(jnp.int32)
    if near.ndim == 1:
        return by_end
    if dev.calls.distance_room.shape[0]:
        frames = take(stack.frames, stack.height[:, None])
        room = _at(dev.calls.distance_room.T, state.node)
        by_end = jnp.where(frames + room <= dev.calls.depth, by_end, NEVER)
    return by_end.min(axis=1)


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities (B, V) over all columns; NaN throughout a row that has no distribution."""
    return jax.nn.log_softmax(_wide(logits), axis=-1)


def _wide(logits: Array) -> Array:
    """Return logits in at least 32 bits."""
    return logits if logits.dtype == jnp.float64 else logits.astype(jnp.float32)


def _log_z(logits: Array) -> Array:
    """Return the logarithm of each row's sum of exponentials (n,); not finite for a row without a distribution."""
    highest = lax.stop_gradient(logits.max(axis=-1))
    highest = jnp.where(highest == -jnp.inf, 0.0, highest)  # a row of -inf alone: its sum is 0
    return highest + jnp.log(jnp.exp(logits - highest[:, None]).sum(axis=-1))


@by_kind
def bitmask(dev: DeviceTable, state: AnyState, remaining: Array | None = None) -> Array:
    """Return the tokens allowed in each state, packed: uint32 (B, ceil(V / 32)), token 32 * w + i is bit i of word w.

    remaining: (B,) how many tokens may still be written, EOS aside. Then only tokens are allowed from whose target an
    end can be reached within the others, so that there is always one in reach.
    """
    _check_state(dev, state)
    if remaining is not None:
        _check_remaining(dev, state.node.shape[0], remaining)
    return pack(_allowed(dev, state, remaining))


@by_kind
def mask_logits(dev: DeviceTable, logits: Array, state: AnyState, remaining: Array | None = None) -> Array:
    """Return logits (B, V) with -inf at every token that is not allowed; what is allowed is left untouched.

    remaining: as for `bitmask`.
    """
    check_floating(jnp.issubdtype(logits.dtype, jnp.floating), logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    _check_state(dev, state)
    if remaining is not None:
        _check_remaining(dev, logits.shape[0], remaining)
    return keep(logits, _allowed(dev, state, remaining), dev.vocab_size)


def _check_remaining(dev: DeviceTable, rows: int, remaining: Array) -> None:
    integers = jnp.issubdtype(remaining.dtype, jnp.integer)
    check_remaining(rows, remaining.shape, integers, remaining.dtype, dev.distance.shape[0] > 0)


def mask_logits_(dev: DeviceTable, logits: Array, state: AnyState, remaining: Array | None = None) -> Array:
    """Mask logits (B, V) as `mask_logits` does, in their memory: the array given is donated, use what comes back."""
    masked: Array = _mask_donated(dev, logits, state, remaining)
    return masked


_mask_donated = jax.jit(mask_logits, donate_argnums=1)


def draw(*_: Any) -> None:
    """Return None: drawing takes array operations, which XLA fuses."""


@by_kind
def candidates(dev: DeviceTable, logits: Array, state: AnyState, width: int, level: int | None = None) -> Candidates:
    """Return the `width` best allowed continuations of each row, EOS among them, best first.

    Scores are log-probabilities under the full softmax. Unused slots score -inf and lead to the dead state. `level`
    is a depth at which all the states must be: only as many edges as a state there can have are read, and where a
    state is of another depth some of its tokens are left out.
    """
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    log_probs = log_softmax(logits)
    shape = None if level is None else dev.level(level)
    if shape is None or shape.dense:
        scores = mask_logits(dev, log_probs, state)
        token = None
    else:
        _, token, allowed = _expand(dev, state.node, shape.width)
        gathered = jnp.take_along_axis(log_probs, jnp.minimum(token, dev.vocab_size - 1), axis=1)
        scores = jnp.where(allowed, gathered, -jnp.inf)
        if dev.eos is not None:
            last = jnp.where(accepting(dev, state), log_probs[:, dev.eos], -jnp.inf)
            scores = jnp.concatenate([scores, last[:, None]], axis=1)
            token = jnp.pad(token, ((0, 0), (0, 1)), constant_values=dev.eos)
    best, at = top_k(jnp.where(jnp.isnan(scores), -jnp.inf, scores), width)
    tokens = at if token is None else take(token, at)
    alive = best > -jnp.inf
    tokens = jnp.where(alive, tokens, 0)
    rows = _map(lambda x: jnp.repeat(x, width, axis=0), state)
    reached = _only(dev, alive.reshape(-1), advance(dev, rows, tokens.reshape(-1)))
    return Candidates(best, tokens, _map(lambda x: x.reshape(*tokens.shape, *x.shape[1:]), reached))


@by_kind
def select(
    dev: DeviceTable | None,
    logits: Array,
    state: AnyState,
    scores: Array,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, EOS aside.

    logits: (B * m, V). state: (B * m,), all at depth `level`. scores: (B, m) totals so far, to which log-probabilities
    under the full softmax are added; renormalise: under that of the allowed tokens alone. A row of logits that has
    no distribution (NaN, +inf, all -inf) has no continuations. dev None: no constraint.
    """
    batch, m = scores.shape
    logits = _wide(logits)
    node = state.node
    if dev is None or not renormalise:
        log_z = _log_z(logits)
        sound = jnp.isfinite(log_z)
    if dev is None:
        width = logits.shape[1]
        x = jnp.where(sound[:, None], logits - log_z[:, None], -jnp.inf)
        best, at = top_k((x.reshape(batch, m, width) + scores[:, :, None]).reshape(batch, -1), beams)
        unused = jnp.zeros(batch * beams, node.dtype)
        return Selection(best, at // width, jnp.where(best > -jnp.inf, at % width, 0), State(unused))
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], node.shape)
    _check_state(dev, state)
    shape = dev.level(level)
    # all states of level 0 are the root, whose edges need no look-up and no ranking in its mask
    dense = shape.dense and (level > 0 or not dev.is_trie)
    if dense:
        width = dev.sparse_width if not dev.is_trie else 1 if shape.tails else 0
        x = jnp.where(_mask(dev, state, dev.has_masks, width), logits[:, : dev.vocab_size], -jnp.inf)
    else:
        if level == 0:
            edge = jnp.broadcast_to(jnp.arange(shape.width, dtype=node.dtype), (batch * m, shape.width))
            token = _token(dev, edge)
            allowed = (node == 0)[:, None]
        elif shape.rows:
            edge, token, allowed = _expand(dev, node, shape.width)
        else:
            edge = (node + (dev.num_edges - dev.num_rows))[:, None]
            token = _token(dev, edge)
            allowed = token < dev.vocab_size
        x = jnp.take_along_axis(logits, jnp.minimum(token, dev.vocab_size - 1), axis=1)
        x = jnp.where(allowed, x, -jnp.inf)
    if renormalise:
        log_z = _log_z(x)
        if dev.eos is not None:
            log_z = jnp.logaddexp(log_z, jnp.where(accepting(dev, state), logits[:, dev.eos], -jnp.inf))
        sound = jnp.isfinite(log_z)
    x = jnp.where(sound[:, None], x - log_z[:, None], -jnp.inf)
    parents: Array | None = None
    if m == beams and shape.width == 1 and not dense:  # nothing branches: each beam goes on in its place
        best = scores + x.reshape(batch, m)
        tokens, edges = token.reshape(batch, m), edge.reshape(-1)
    else:
        best, at = top_k((x.reshape(batch, m, -1) + scores[:, :, None]).reshape(batch, -1), beams)
        width = x.shape[1]
        parents = at // width
        if dense:
            tokens = at - parents * width
            row = (parents + m * jnp.arange(batch, dtype=at.dtype)[:, None]).reshape(-1)
            state = gather(state, row)
            if dev.is_trie:
                edges = _ranked_edge(dev, state.node, tokens.reshape(-1))[0]
        else:
            tokens = take(token.reshape(batch, -1), at)
            edges = take(edge.reshape(batch, -1), at).reshape(-1)
    alive = best > -jnp.inf
    reached = State(_follow(dev, edges)) if dev.is_trie else _reached(dev, state, tokens.reshape(-1))
    reached = reached._replace(node=reached.node.astype(node.dtype))
    return Selection(best, parents, jnp.where(alive, tokens, 0), _only(dev, alive.reshape(-1), reached))


@by_kind
def end_scores(dev: DeviceTable, logits: Array, state: AnyState, renormalise: bool = False) -> Array:
    """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere; `renormalise` as in `select`."""
    check_rows(logits.shape[0], state.node.shape)
    logits = _wide(logits)
    log_z = _log_z(mask_logits(dev, logits, state) if renormalise else logits)
    may_end = accepting(dev, state) & jnp.isfinite(log_z)
    return jnp.where(may_end, logits[:, dev.eos] - log_z, -jnp.inf)


@by_kind
def advance(dev: DeviceTable, state: AnyState, tokens: Array) -> AnyState:
    """Return the state after one more token (B,) each; the dead state where it was not allowed."""
    check_tokens(state.node.shape[0], tokens.shape, jnp.issubdtype(tokens.dtype, jnp.integer), tokens.dtype)
    _check_state(dev, state)
    if tokens.dtype.itemsize < 4:  # before any comparison: a narrow type would wrap what it is compared with
        tokens = tokens.astype(jnp.int32)
    if dev.is_trie:
        edge, found = _edge_of(dev, jnp.asarray(state.node), tokens)
        reached: AnyState = State(jnp.where(found, _follow(dev, edge), dev.dead))
    else:
        reached = _reached(dev, state, tokens)
    node = reached.node
    if dev.eos is not None:  # which leads to the dead state so far, with nothing on its stack
        ended = jnp.where(state.node < dev.num_rows, dev.after_eos, state.node)
        node = jnp.where((tokens == dev.eos) & accepting(dev, state), ended, node)
    return reached._replace(node=node.astype(state.node.dtype))


@by_kind
def log_mass(dev: DeviceTable, logits: Array, state: AnyState) -> Array:
    """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold."""
    return jax.nn.logsumexp(mask_logits(dev, log_softmax(logits), state), axis=-1)


@by_kind
def contains(dev: DeviceTable, sids: Array) -> Array:
    """Return whether each row of sids (N, L) is in the set: bool (N,)."""
    check_sids(sids.shape)
    state = start(dev, sids.shape[0])
    for t in range(sids.shape[1]):
        state = advance(dev, state, sids[:, t])
    return accepting(dev, state)


@by_kind
def allowed_tokens(
    dev: DeviceTable, state: AnyState, width: int, remaining: Array | None = None
) -> tuple[Array, Array]:
    """Return the first `width` tokens that each state allows, and EOS: tokens (B, W), and which of them there are.

    W is `width`, and one more of a table with EOS, which has the last column. Tokens ascend; 0 where there are fewer.
    remaining: as for `bitmask`. width: at most what any state has, known of tries and of graphs without masks or calls.
    """
    edge, token, allowed = _expand(dev, jnp.asarray(state.node), width)
    if remaining is not None:
        _check_remaining(dev, state.node.shape[0], remaining)
    if remaining is not None or not dev.is_trie:
        last = None
        if remaining is not None:
            remaining = remaining.astype(jnp.int32) if remaining.dtype.itemsize < 4 else remaining
            last = (jnp.clip(remaining, 0, NEVER).astype(jnp.int32) - 1)[:, None]
        allowed &= _fits(dev, jnp.where(allowed, _follow(dev, edge), dev.dead), None, last)
    if dev.eos is not None:
        token = jnp.pad(token, ((0, 0), (0, 1)), constant_values=dev.eos)
        allowed = jnp.concatenate([allowed, accepting(dev, state)[:, None]], axis=1)
    return jnp.where(allowed, token, 0), allowed


# ------------------------------------------------------------------------- array functions for decoders


def top_k(scores: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest of each row (B, n) and where they stand, largest first; -inf fills up where k > n.

    Exact, in two passes for wide rows: the k blocks with the largest maxima hold k of the largest scores, so only
    those are looked into.
    """
    batch, n = scores.shape
    if k > n:
        scores = jnp.pad(scores, ((0, 0), (0, k - n)), constant_values=-jnp.inf)
    elif n >= 4 * k * _BLOCK:
        scores = jnp.pad(scores, ((0, 0), (0, -n % _BLOCK)), constant_values=-jnp.inf)
        blocks = scores.reshape(batch, -1, _BLOCK)
        _, block = lax.top_k(blocks.max(axis=-1), k)
        inside = jnp.take_along_axis(blocks, block[:, :, None], axis=1).reshape(batch, -1)
        best, at = lax.top_k(inside, k)
        return best, take(block, at // _BLOCK) * _BLOCK + at % _BLOCK
    best, at = lax.top_k(scores, k)
    return best, jnp.minimum(at, n - 1)


def top_of_beams(x: Array, scores: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest of x (B, m, w) + scores (B, m) and where they stand in (B, m * w); NaN counts as -inf."""
    totals = (x + scores[:, :, None]).reshape(x.shape[0], -1)
    return top_k(jnp.where(jnp.isnan(totals), -jnp.inf, totals), k)


def take(array: Array, index: Array) -> Array:
    """Return array (B, n) gathered at index (B, k) along the second axis."""
    return jnp.take_along_axis(array, index, axis=1)


def gather(cache: Any, index: Array) -> Any:
    """Return a tree of arrays gathered at index (n,) along each array's first axis."""
    return jax.tree.map(lambda leaf: leaf[index], cache)


def first_tokens(dev: DeviceTable | None, cache: Any, count: int, token: int) -> Array:
    """Return `count` copies of the token a model is first fed with."""
    return jnp.full(count, token, jnp.int32)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros of the type of `like`, in at least 32 bits."""
    return jnp.zeros(shape, jnp.promote_types(like.dtype, jnp.float32) if like.dtype.kind in "fV" else like.dtype)


def arange(n: int, like: Array) -> Array:
    """Return 0 .. n - 1, of the type of `like`."""
    return jnp.arange(n, dtype=like.dtype)


def uniform(random: Any, shape: tuple[int, ...], like: Array) -> Array:
    """Return random numbers in [0, 1) of the type of `like`, from a JAX key."""
    dtype = getattr(random, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32):
        kind = type(random).__name__
        raise TypeError(f"random must be a JAX key, as jax.random.key(seed) makes one, not a {kind}")
    return jax.random.uniform(random, shape, like.dtype)


def split(random: Any) -> tuple[Any, Any]:
    """Return what to draw from now and what to draw from later: two new keys."""
    now, later = jax.random.split(random)
    return now, later


def logsumexp(x: Array) -> Array:
    """Return the logarithm of each row's sum of exponentials (B,); not finite for a row without a distribution."""
    return _log_z(x)


def lookup(array: Array, index: Array) -> Array:
    """Return array (n,) at indices of any shape."""
    return _at(array, index)


def integers(x: Array, like: Array) -> Array:
    """Return whole numbers in the type of `like`; what is too large for that, or too small, is as far out as may be."""
    if isinstance(x, np.ndarray) and x.dtype.itemsize > 4:  # which JAX would wrap in its 32-bit mode
        x = np.clip(x, 0 if x.dtype.kind == "u" else -NEVER, NEVER)
    return (jnp.minimum(x, NEVER) if x.dtype == jnp.uint32 else x).astype(like.dtype)


def search(ascending: Array, query: Array) -> Array:
    """Return how many of ascending numbers (n,) are below each of query."""
    return jnp.searchsorted(ascending, query)


def scatter(array: Array, index: Array, value: int) -> Array:
    """Return array (B, n) with a value at index (B, k)."""
    return array.at[jnp.arange(array.shape[0])[:, None], index].set(value, mode="promise_in_bounds")


def keep(x: Array, mask: Array, size: int) -> Array:
    """Return x (B, n) with -inf where mask (B, >= size) is 0, and from column `size` on; a mask is 0 or -1."""
    return jnp.where(jnp.pad(mask[:, :size] != 0, ((0, 0), (0, x.shape[1] - size))), x, -jnp.inf)


def pack(mask: Array) -> Array:
    """Return a mask (B, n) as bits: uint32 (B, ceil(n / 32))."""
    words = -(-mask.shape[1] // 32)
    bits = jnp.pad(mask != 0, ((0, 0), (0, -mask.shape[1] % 32))).reshape(mask.shape[0], words, 32)
    return (bits.astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32)).sum(axis=-1, dtype=jnp.uint32)


def unpack(words: Array, size: int) -> Array:
    """Return which of `size` bits are set in words (B, ceil(size / 32)): bool (B, size)."""
    bits = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & jnp.uint32(1)
    found: Array = bits.reshape(words.shape[0], -1)[:, :size] != 0
    return found


def keep_packed(x: Array, words: Array, size: int, in_place: bool = False) -> Array:
    """Return x (B, n) with -inf where no bit is set in words (B, ceil(size / 32)), and from column `size` on.

    in_place: has no meaning here, as arrays do not change.
    """
    return keep(x, unpack(words, size), size)


def grown(array: Array) -> Array:
    """Return an array with as many rows again behind its own, which are 0."""
    return jnp.concatenate([array, jnp.zeros_like(array)])


def put_rows(array: Array, index: NDArray[Any], values: NDArray[Any]) -> Array:
    """Return an array with values (n, ..) of the host in rows index (n,); the one given is used up."""
    size = max(_FEWEST, 1 << (len(index) - 1).bit_length())  # few sizes, each of which is compiled for once
    to = np.full(size, array.shape[0], index.dtype)
    to[: len(index)] = index
    padded = np.zeros((size, *values.shape[1:]), values.dtype)
    padded[: len(index)] = values
    placed: Array = _with_rows(array, to, padded)
    return placed


@partial(jax.jit, donate_argnums=0)
def _with_rows(array: Array, index: Array, values: Array) -> Array:
    """Return an array with values in rows, but those behind its last."""
    return array.at[index].set(values.astype(array.dtype), mode="drop")


def known(*arrays: Array) -> bool:
    """Return whether the values of arrays can be read now, instead of being traced."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)


def baked(*arrays: Array) -> bool:
    """Return whether what is computed from arrays is recorded, with all else as it is now."""
    return not known(*arrays)


def sort(x: Array) -> Array:
    """Return each row (B, n) with the largest first."""
    return -jnp.sort(-x, axis=-1)


def surely(holds: Array) -> bool:
    """Return whether `holds` is so throughout and that can be known now: False where values are only traced."""
    return not isinstance(holds, jax.core.Tracer) and bool(holds.all())


def to_device(array: NDArray[Any], like: Array) -> Array:
    """Return an array of the host where `like` is."""
    out: Array = jax.device_put(jnp.asarray(array), next(iter(like.devices())))
    return out


def to_host(array: Array) -> NDArray[Any]:
    """Return an array on the host, once it is there."""
    return np.asarray(array)


where = jnp.where
concatenate = jnp.concatenate
exp = jnp.exp
