"""Stepping of nested tables, written once for PyTorch and JAX: where a token leads, and the frames that it leaves.

A *code* is a state, or an action that enters a state and pushes return sites. A frame is an open return site; a symbol
leaves the frame on top for the code, or the further symbol, that its site has for it.

`torch.stacks` and `jax.stacks` are the two modules that have what `StackBackend` asks for. What costs operations or
time to share stays there: summing distances over stacks, which JAX scans and PyTorch sums up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeAlias

from ...kernels.limits import UNREACHABLE
from ...table.states import NestedState
from .backend import Array, Placed
from .device_table import AnyState, DeviceCalls, DeviceTable

Carry: TypeAlias = tuple[Array, Array]


class Stacks(NamedTuple):
    """The stacks of a batch."""

    sites: Array  # (n, slots)
    height: Array  # (n,) open frames
    frames: Array  # (n, slots + 1) how many of the lowest 0, 1, .. frames are no leaves
    far: Array | None  # (n, slots + 1) tokens in which those are left, where there is a budget; (.., C) by ends


class Around(NamedTuple):
    """What is on the stacks that codes (n, k) are followed from, of a shape that broadcasts with theirs."""

    height: Array
    frames: Array
    far: Array | None  # with one more axis, of C, where ends are told apart


class StackBackend(Protocol):
    """What stepping asks of a library."""

    def where(self, condition: Array, a: Array, b: Array, /) -> Array:
        """Return a where a condition holds, else b."""

    def concatenate(self, arrays: list[Array], axis: int = ..., /) -> Array:
        """Return arrays one behind the other."""

    def lookup(self, array: Array, index: Array) -> Array:
        """Return array (n,) at indices of any shape."""

    def pick(self, array: Array, row: Array, column: Array) -> Array:
        """Return array (n, k) at rows and columns."""

    def take(self, array: Array, index: Array) -> Array:
        """Return array (B, n) gathered at index (B, k) along the second axis."""

    def take_far(self, far: Array, height: Array) -> Array:
        """Return distances of stacks (n, slots + 1), or (.., C) by ends, at heights (n, k)."""

    def arange(self, n: int, like: Array) -> Array:
        """Return 0 .. n - 1, of the type of `like`, where that is."""

    def filled(self, like: Array, value: int) -> Array:
        """Return an array of the shape of `like` with one value."""

    def expand(self, x: Array, like: Array) -> Array:
        """Return x broadcast to the shape of `like`."""

    def repeated(self, x: Array) -> Array:
        """Return x (n,) twice, one behind the other."""

    def index(self, x: Array) -> Array:
        """Return whole numbers in a type that can index."""

    def as_sites(self, x: Array) -> Array:
        """Return whole numbers in the type of a state's stack."""

    def integers(self, x: Array, like: Array) -> Array:
        """Return whole numbers in the type of `like`."""

    def at_least(self, x: Array, low: int) -> Array:
        """Return the larger of x and a number."""

    def at_most(self, x: Array, high: int) -> Array:
        """Return the smaller of x and a number."""

    def between(self, x: Array, low: int, high: int) -> Array:
        """Return x, or the nearest of two bounds."""

    def larger(self, a: Array, b: Array, /) -> Array:
        """Return the larger of two."""

    def smaller(self, a: Array, b: Array, /) -> Array:
        """Return the smaller of two arrays, element by element."""

    def plus(self, a: Array, b: Array) -> Array:
        """Return the sum of distances, which does not overflow."""

    def wrapped(self, x: Array, n: int) -> Array:
        """Return x, but n - 1 for -1."""

    def ends(self, distance: Array) -> Iterable[Array]:
        """Return distances by end (C, n), one end after the other."""

    def column(self, x: Array, at: Array | int) -> Array:
        """Return one column of x (n, k): (n, 1)."""

    def times(self, count: int, body: Callable[[Array | int, Carry], Carry], carry: Carry) -> Carry:
        """Return what comes out after `count` rounds of body(round, carry)."""

    def inside(self, token: Array, size: int) -> Array:
        """Return tokens moved into 0 .. size - 1, in a type that compares with the table's."""

    def nested_state(self, node: Array, stack: Array, height: Array) -> NestedState:
        """Return a state in the types of states."""

    def stacks_of(self, calls: DeviceCalls, state: AnyState, budget: bool) -> Stacks:
        """Return the stacks of a state (n,); budget: with distances."""

    def far_with(self, calls: DeviceCalls, far: Array, frames: Array, site: Array) -> Array:
        """Return distances of stacks (.., C) of so many frames (..,) with one more site (..,) on them, by ends."""

    def first_edge(self, dev: Placed, node: Array, /) -> Array:
        """Return the first edge of each state."""

    def base_of(self, dev: Placed, node: Array, /) -> Array:
        """Return the base of each state; the last, which allows nothing, where it has none."""

    def in_mask(self, dev: Placed, base: Array, token: Array, /) -> Array:
        """Return whether tokens (n, k) are in the masks of bases (n,)."""

    def target_in_base(self, dev: Placed, node: Array, base: Array, token: Array, /) -> Array:
        """Return where a token (n,) of its base's mask leads from each state (n,)."""

    def find_token(
        self, tokens: Array, largest: int, low: Array, last: Array, token: Array, width: int
    ) -> tuple[Array, Array]:
        """Return where a token stands among the sorted tokens[low:last] of at most `width`, and whether it does."""


def around_of(ops: StackBackend, stack: Stacks, height: Array) -> Around:
    """Return what is on stacks of which the lowest frames (n, k) are left."""
    far = None if stack.far is None else ops.take_far(stack.far, height)
    return Around(height, ops.take(stack.frames, height), far)


def may_follow(ops: StackBackend, dev: DeviceTable, code: Array, around: Around | None, last: Array | None) -> Array:
    """Return whether codes (n, k) may be followed from stacks, with `last` tokens (n, 1) left where they lead to."""
    fits = code != dev.dead
    far = None if last is None or dev.distance.ndim > 1 else ops.lookup(dev.distance, code)
    if dev.calls is not None and around is not None:
        calls = dev.calls
        action = ops.at_least(code - dev.dead, 0)
        room = ops.lookup(calls.action_room, action)
        if calls.state_room.shape[0]:
            room = ops.larger(room, ops.lookup(calls.state_room, ops.at_most(code, dev.dead)))
        pushed = ops.lookup(calls.action_start, action + 1) - ops.lookup(calls.action_start, action)
        fits = fits & (around.frames + room <= calls.depth) & (around.height + pushed <= calls.slots)
        if far is not None and around.far is not None:
            far = ops.plus(far, around.far)
        elif last is not None and around.far is not None:  # one end after the other: many are rare, and codes are many
            for end, distance in enumerate(ops.ends(dev.distance)):
                by_end = ops.plus(ops.lookup(distance, code), around.far[..., end])
                if calls.distance_room.shape[0]:
                    possible = around.frames + ops.lookup(calls.distance_room[end], code) <= calls.depth
                    by_end = ops.where(possible, by_end, UNREACHABLE)
                far = by_end if far is None else ops.smaller(far, by_end)
    return fits if far is None or last is None else fits & (far <= last)


def base_site(ops: StackBackend, calls: DeviceCalls, node: Array) -> Array:
    """Return the site (n, 1) that each row's base lies on, or -1."""
    if not calls.base_push.shape[0]:
        return ops.filled(node, -1)[:, None]
    return ops.index(ops.lookup(calls.base_push, ops.at_most(node, calls.base_push.shape[0] - 1)))[:, None]


def with_site(ops: StackBackend, calls: DeviceCalls, around: Around, push: Array) -> tuple[Around, Array]:
    """Return what is on stacks with a site (n, 1) in addition, where that is not -1, and whether there is room."""
    site = ops.wrapped(push, calls.site_frames.shape[0])  # -1: the last, which is none
    height = around.height + (push >= 0)
    fits = (push < 0) | (around.frames + ops.lookup(calls.site_room, site) <= calls.depth) & (height <= calls.slots)
    far = around.far
    if far is not None and not calls.end_distance.shape[0]:
        far = ops.plus(far, ops.lookup(calls.site_distance, site))
    elif far is not None:
        far = ops.where(push[..., None] < 0, far, ops.far_with(calls, far, around.frames, site))
    return Around(height, around.frames + ops.lookup(calls.site_frames, site), far), fits


def resolve(
    ops: StackBackend, dev: DeviceTable, calls: DeviceCalls, stack: Stacks, push: Array, target: Array
) -> tuple[Array, Array]:
    """Return the code that each target (n, k) comes to and how many frames are left below it: (n, k) each.

    A target is a code, or -1 - y: symbol y leaves the frame on top. push: a site (n, 1) that lies there besides, or
    -1. A token leaves few frames, `pops` at most, and all of one row leave the same ones.
    """
    top = stack.height[:, None] + (push >= 0)
    at = top - 1 - ops.arange(calls.pops, like=top)
    sites = ops.take(stack.sites, ops.between(at, 0, calls.slots - 1))
    sites = ops.where(at < stack.height[:, None], sites, push)
    sites = ops.where(at < 0, calls.site_frames.shape[0] - 1, sites)

    def leave(pop: Array | int, carry: Carry) -> Carry:
        target, left = carry
        leaves = target < 0
        symbol = ops.at_least(-1 - target, 0)
        found = ops.integers(_site_target(ops, calls, ops.column(sites, pop), symbol, dev.dead), target)
        return ops.where(leaves, found, target), ops.where(leaves, ops.column(at, pop), left)

    target, left = ops.times(calls.pops, leave, (target, ops.expand(top, target)))
    return ops.where(target < 0, dev.dead, target), ops.at_least(left, 0)


def _site_target(ops: StackBackend, calls: DeviceCalls, site: Array, symbol: Array, dead: int) -> Array:
    """Return what symbols (n, k) come to at sites (n, 1): a code, the dead state where a site has none, or -1 - y."""
    if not calls.site_width:
        return ops.index(ops.pick(calls.site_target, site, symbol))
    low, last = (ops.index(ops.lookup(calls.site_start, each)) for each in (site, site + 1))
    low, last = ops.expand(low, symbol), ops.expand(last, symbol)
    at, found = ops.find_token(calls.site_symbol, calls.symbols, low, last, symbol, calls.site_width)
    return ops.where(found, ops.index(ops.lookup(calls.site_target, at)), dead)


def exit_list(ops: StackBackend, calls: DeviceCalls, lists: Array, at: Array) -> Array:
    """Return the exit list of each row or base (n,), the empty one where it has none."""
    if not lists.shape[0]:
        return ops.filled(at, calls.exit_start.shape[0] - 2)
    return ops.index(ops.lookup(lists, ops.at_most(at, lists.shape[0] - 1)))


def step_nested(
    ops: StackBackend, dev: DeviceTable, calls: DeviceCalls, state: NestedState, token: Array
) -> NestedState:
    """Return where a token (n,) leads from each state (n,) of a nested table; the dead state if nowhere, and by EOS."""
    node, stack = state.node, ops.stacks_of(calls, state, False)
    around = around_of(ops, stack, stack.height[:, None])
    inside = (token >= 0) & (token < dev.vocab_size)
    token = ops.inside(token, dev.vocab_size)
    first, last = ops.first_edge(dev, node), ops.first_edge(dev, node + 1)
    edge, own = ops.find_token(dev.edge_token, dev.vocab_size + 1, first, last, token, dev.sparse_width)

    base = ops.base_of(dev, node)
    lists = [exit_list(ops, calls, calls.row_exit, node), exit_list(ops, calls, calls.base_exit, base)]
    which = ops.concatenate(lists)
    low, stop = (ops.index(ops.lookup(calls.exit_start, each)) for each in (which, which + 1))
    at, leaves = ops.find_token(calls.exit_token, dev.vocab_size, low, stop, ops.repeated(token), calls.exit_width)
    leaving = ops.where(leaves, -1 - ops.index(ops.lookup(calls.exit_symbol, at)), dev.dead).reshape(2, -1)
    target = ops.index(ops.lookup(dev.edge_target, ops.at_most(edge, dev.edge_target.shape[0] - 1)))
    target = ops.where(own, target, leaving[0])
    push = ops.filled(node, -1)[:, None]
    if dev.has_masks:
        taken = own | leaves.reshape(2, -1)[0]
        masked = ops.in_mask(dev, base, token[:, None]).reshape(-1)
        inner = ops.where(masked, ops.target_in_base(dev, node, base, token), leaving[1])
        push = ops.where(taken[:, None], -1, base_site(ops, calls, node))
        fits = with_site(ops, calls, around, push)[1].reshape(-1)
        target = ops.where(taken, target, ops.where(fits, inner, dev.dead))

    code, left = resolve(ops, dev, calls, stack, push, target[:, None])
    kept = ops.where(target[:, None] >= 0, push, -1)  # an exit of the base has left the site again
    left = ops.where(kept >= 0, stack.height[:, None], left)
    around, _ = with_site(ops, calls, around_of(ops, stack, left), kept)
    code = ops.where(inside[:, None] & may_follow(ops, dev, code, around, None), code, dev.dead)
    return _entered(ops, dev, calls, state, code, left, kept)


def _entered(
    ops: StackBackend,
    dev: DeviceTable,
    calls: DeviceCalls,
    state: NestedState,
    code: Array,
    left: Array,
    push: Array,
) -> NestedState:
    """Return the state after codes (n, 1) from the `left` (n, 1) lowest frames of a stack, and a site or -1 on them."""
    action = ops.at_least(code - dev.dead, 0)
    first = ops.lookup(calls.action_start, action)
    pushed = ops.lookup(calls.action_start, action + 1) - first
    node = ops.where(action > 0, ops.lookup(calls.action_state, action), code).reshape(-1)
    slot = ops.arange(calls.slots, like=left)
    over = ops.at_least(slot - left, -1)  # frames above those that are left
    opened = ops.lookup(calls.action_push, ops.between(first + over, 0, calls.action_push.shape[0] - 1))
    stack = ops.where(over < 0, state.stack, ops.where(over < pushed, opened, 0))
    stack = ops.where((over == 0) & (push >= 0), ops.as_sites(push), stack)
    height = ops.where(code < dev.num_rows, left + (push >= 0), ops.where(action > 0, left + pushed, 0))
    stack = ops.where(slot < height, stack, 0)
    return ops.nested_state(node, stack, height.reshape(-1))
