"""A table as an accelerator holds it, and the checks every backend shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import TableError
from ...table.constraint import Constraint
from ...table.several_ends import all_ends
from ...table.sid_filter import SidFilter
from ...table.snapshot import LiveFilter, Snapshot
from ...table.sorted_matrix import SortedMatrix
from ...table.states import NestedState
from ...table.transition_table import Level, TransitionTable
from ..host.table_pointers import HostTable
from .backend import Array
from .device_matrix import Origin

DENSE_SITES = 1 << 16  # entries of a site's targets by symbol that are always worth their memory
MOST_FRAMES = 1 << 30  # that must fit for what cannot be done
SPARSE_SITES = 4  # how many times as many as the sites' own are worth it besides


class State(NamedTuple):
    """Where each sequence of a batch stands in its table: a tuple of integer arrays with the batch first."""

    node: Array  # (B,)


class MatrixState(NamedTuple):
    """Where each sequence of a batch stands: the rows that begin with it, and how many tokens it has."""

    node: Array  # (B,) the first of these rows; Q in the dead state
    high: Array  # (B,) the row after the last; Q in the dead state
    depth: Array  # (B,) L in the dead state


class FilteredState(NamedTuple):
    """A `MatrixState` under filters, of which each sequence has one."""

    node: Array  # (B,)
    high: Array  # (B,)
    depth: Array  # (B,)
    filter: Array  # (B,) the number of its filter


class FilteredTableState(NamedTuple):
    """A `State` of a table of sequences under filters, of which each sequence has one."""

    node: Array  # (B,)
    filter: Array  # (B,) the number of its filter


class LiveState(NamedTuple):
    """Where each sequence of a batch stands in a live set: the rows that begin with it, of base and delta."""

    node: Array  # (B,) the first row of the base; of a whole sequence of the delta, behind the dead state's
    high: Array  # (B,)
    depth: Array  # (B,)
    delta: Array  # (B,) the first row of the delta
    delta_high: Array  # (B,)
    filter: Array  # (B,) the number of its filter; 0 without filters


AnyMatrixState = MatrixState | FilteredState | LiveState

AnyState = State | NestedState
"""A state of a table without calls, or of one with: that has a stack as well."""


class Candidates(NamedTuple):
    """The best allowed continuations of each row, best first; unused slots score -inf."""

    scores: Array  # (B, width) log-probabilities under the full softmax
    tokens: Array  # (B, width)
    states: AnyState | AnyMatrixState | FilteredTableState  # (B, width)


class Selection(NamedTuple):
    """The beams that one step of beam search keeps; unused slots score -inf.

    Best first, except where nothing branches: then each beam continues in its place, `parents` is None, and a
    model's cache can stay as it is.
    """

    scores: Array  # (B, M) totals
    parents: Array  # (B, M) which beam each continues, 0 .. m - 1; None for itself
    tokens: Array  # (B, M); 0 in unused slots, so that a model can always be fed
    state: AnyState | AnyMatrixState | FilteredTableState  # (B * M,); the dead state in unused slots


@dataclass(frozen=True, eq=False)
class DeviceCalls:
    """What a nested table has beside a graph, in device arrays with one more entry wherever "none" is looked up.

    There is one more exit list and one more site, L and K, which are empty, and an action that pushes nothing, before
    all others: code c is action max(c - dead, 0). `site_target` is by site and symbol, the dead state where a site has
    no such symbol; where that would take too much memory, it is as of a table, and `site_symbol` is searched.
    """

    row_exit: Array  # (S + 1,); (0,) where no row has exits of its own
    base_exit: Array  # (R + 1,); (0,) where no base has exits
    exit_start: Array  # (L + 2,)
    exit_token: Array  # (N + exit_width + 1,)
    exit_symbol: Array  # (N + exit_width + 1,)
    base_push: Array  # (S + 1,) a site or -1; (0,) where no row has one
    site_start: Array  # (K + 2,)
    site_symbol: Array  # (M + 1,); (0,) where targets are by site and symbol
    site_target: Array  # (K + 1, Y), or (M + 1,)
    site_frames: Array  # (K + 1,) int32: 0 of a leaf, else 1
    site_room: Array  # (K + 1,) how many more frames must fit for the site to be pushed, its own among them
    site_distance: Array  # (K + 1,), or (0,) if distances were not put, or where ends are told apart
    end_distance: Array  # (C, F, K + 1) the same by ends; (0,)
    distance_room: Array  # (C, S + 2 + A) more frames that must fit for a distance; (0,) where all fit
    site_distance_room: Array  # (C, F, K + 1); (0,)
    action_state: Array  # (A + 1,)
    action_start: Array  # (A + 2,)
    action_push: Array  # (max(P, 1),)
    action_room: Array  # (A + 1,) how many more frames must fit for an action to be followed
    state_room: Array  # (S + 2,) the same of states; (0,) where it is 0 of all
    depth: int
    slots: int
    symbols: int  # Y
    exit_width: int  # most tokens in an exit list
    site_width: int  # most symbols of a site; 0 where targets are by site and symbol
    pops: int  # most frames that one token can leave


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """A `TransitionTable` in device arrays, padded so that gathers of static width stay inside.

    States without a base point to one more base, whose mask is one more row of `masks` that is all zeros. Masks are
    bytes here, K of them a row, with 8 K a multiple of 64. Of a trie, `rank` counts the bits set before each byte.
    """

    row_start: Array  # (S + 1,)
    edge_token: Array  # (E + T + 2 + width,)
    edge_target: Array  # (max(E, 1),)
    accepting: Array  # (S,)
    base_row: Array  # (H + 1,)
    masks: Array  # (U + 1, K) uint8: bit i of byte k is token 8 * k + i
    rank: Array  # (U + 1, K); (1, 1) of a graph
    base_mask: Array  # (R + 1,)
    base_classes: Array  # (R + 1,)
    base_start: Array  # (R + 1,)
    base_target: Array  # (X + 1,)
    class_start: Array  # (lists + 2,): one more list, which is empty, for the base that allows nothing
    class_token: Array  # (Z + class_width + 1,)
    class_id: Array  # (Z + class_width + 1,)
    distance: Array  # (num_states,), of a nested table (num_states + A,) by code, or (C, num_states + A) where C > 1
    # ends are told apart; (0,) if it was not put
    starts: Array  # the states in which sequences start: (1,), of an arena (B,) after `with_start_states`, else (0,)
    calls: DeviceCalls | None  # of a nested table
    vocab_size: int
    num_rows: int
    num_edges: int
    num_states: int
    eos: int | None
    other_ends: tuple[int, ...]  # tokens that end a sequence, beside eos
    fixed_length: int | None
    min_length: int
    max_length: int | None
    levels: tuple[Level, ...]
    sparse_width: int  # most edges of a row without a mask; of a graph, of any row
    class_width: int  # most tokens in a class list
    has_masks: bool
    is_trie: bool
    start_accepting: bool
    host: HostTable | None  # the table itself, for operations that run on the host
    arena: int  # the number of the arena whose tables these are, 0 of one table
    origin: Origin  # the table, of which filters may be; none of an arena

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence, `eos` first; () where sequences end by themselves."""
        return all_ends(self.eos, self.other_ends)

    @property
    def dead(self) -> int:
        """The state that allows nothing."""
        return self.num_states - 1

    @property
    def after_eos(self) -> int:
        """The final state that EOS leads to from an accepting row."""
        return self.num_states - 2

    def level(self, depth: int) -> Level:
        """Return what is static of states at a depth; at and beyond the longest sequence all are final."""
        if not self.is_trie:
            return Level(self.vocab_size, True, True, False)
        return self.levels[depth] if depth < len(self.levels) else Level(1, False, False, True)


def arrays_of(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that hold arrays: those of type `Array`, or of a tuple of them."""
    return tuple(field.name for field in fields(kind) if field.type in ("Array", "tuple[Array, ...]"))


def parts_of(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that have arrays of their own."""
    return tuple(
        field.name
        for field in fields(kind)
        if field.type in ("DeviceCalls | None", "DeviceFilters | None", "DeviceMatrix")
    )


def statics_of(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that neither hold arrays nor have arrays of their own."""
    others = {*arrays_of(kind), *parts_of(kind)}
    return tuple(field.name for field in fields(kind) if field.name not in others)


CALL_ARRAYS = arrays_of(DeviceCalls)

DEVICE_NAMES = {
    "rows.edge_start": "row_start", "rows.accepting": "accepting", "rows.base": "base_row",
    "edges.token": "edge_token", "edges.target": "edge_target", "bases.masks": "masks", "bases.mask": "base_mask",
    "bases.class_list": "base_classes", "bases.target_start": "base_start", "bases.target": "base_target",
    "classes.start": "class_start", "classes.token": "class_token", "classes.number": "class_id",
    "actions.state": "action_state", "actions.push_start": "action_start", "actions.push": "action_push",
    "exits.of_row": "row_exit", "exits.of_base": "base_exit", "exits.start": "exit_start",
    "exits.token": "exit_token", "exits.symbol": "exit_symbol", "sites.start": "site_start",
    "sites.symbol": "site_symbol", "sites.target": "site_target", "sites.is_leaf": "site_frames",
    "sites.frames_required": "site_room", "sites.of_row": "base_push",
}  # fmt: skip
"""The field of a device table that an array of the declaration in `table/groups.py` becomes."""


Made = TypeVar("Made", bound=DeviceTable)


def device_table(
    table: TransitionTable,
    convert: Callable[[NDArray[Any]], Any],
    kind: type[Made],
    distances: bool,
    host: TransitionTable | None = None,
    **more: NDArray[Any],
) -> Made:
    """Lay a table out for gathers, as a `kind` that may have `more` arrays; each array goes through `convert`.

    distances: with the distances that `remaining` needs. host: the table, where operations may run on the host.
    """
    check_table(table)
    size = table.vocab_size
    words = table.bases.masks.astype("<u4").view(np.uint8)
    masks = np.zeros((table.bases.masks.shape[0] + 1, 8 * -(-size // 64)), np.uint8)
    masks[:-1, : words.shape[1]] = words[:, : masks.shape[1]]
    rank = np.zeros((1, 1), np.int32)
    if table.is_trie:
        bits = np.bitwise_count(masks).astype(np.int32)
        rank = np.cumsum(bits, axis=1, dtype=np.int32) - bits
    none = table.bases.mask.size
    base_row = np.append(np.where(table.rows.base < 0, none, table.rows.base), none).astype(np.int32)
    levels = table.levels
    edges = np.diff(table.rows.edge_start)
    if table.is_trie:
        sparse_width = max((level.width for level in levels if not level.dense), default=1)
        width = max(sparse_width, *(level.width for level in levels))
    else:
        width = sparse_width = max(1, int(edges.max()))
    class_width = max(1, int(np.diff(table.classes.start).max(initial=0)))
    end = np.full(width, size, table.edges.token.dtype)
    no_class = np.zeros(class_width + 1, np.int32)
    arrays = {
        "row_start": table.rows.edge_start,
        "edge_token": np.concatenate([table.edges.token, end]),
        "edge_target": table.edges.target if table.num_edges else np.zeros(1, table.edges.target.dtype),
        "accepting": table.rows.accepting,
        "base_row": base_row,
        "masks": masks,
        "rank": rank.astype(np.uint16) if size < 2**16 else rank,
        "base_mask": np.append(table.bases.mask, len(table.bases.masks)).astype(np.int32),
        "base_classes": np.append(table.bases.class_list, table.classes.start.size - 1).astype(np.int32),
        "base_start": table.bases.target_start,
        "base_target": np.append(table.bases.target, 0).astype(np.int32),
        "class_start": np.append(table.classes.start, table.classes.start[-1:]).astype(np.int32),
        "class_token": np.concatenate([table.classes.token, np.full(no_class.size, size, table.classes.token.dtype)]),
        "class_id": np.concatenate([table.classes.number, no_class]),
        "distance": _distance(table) if distances else np.zeros(0, np.int32),
        "starts": np.zeros(1, np.int32),
        **more,
    }
    return kind(
        **{name: convert(array) for name, array in arrays.items()},
        calls=_device_calls(table, convert, distances) if table.is_nested else None,
        vocab_size=size,
        num_rows=table.num_rows,
        num_edges=table.num_edges,
        num_states=table.num_states,
        eos=table.eos,
        other_ends=table.other_ends,
        fixed_length=table.fixed_length,
        min_length=table.min_length,
        max_length=table.max_length,
        levels=levels,
        sparse_width=sparse_width,
        class_width=class_width,
        has_masks=bool(table.bases.masks.shape[0]),
        is_trie=table.is_trie,
        start_accepting=bool(table.rows.accepting[0]),
        host=host,
        arena=0,
        origin=Origin(table),
    )


def _distance(table: TransitionTable) -> NDArray[np.int32]:
    """Return the distance of each state, of a nested table of each code, by ends where there are several."""
    if not table.is_nested:
        return table.distance
    by_end: NDArray[np.int32] = np.ascontiguousarray(table.distances.code.T.astype(np.int32))
    return by_end if len(by_end) > 1 else by_end[0]


def _rooms(table: TransitionTable, distances: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return how many more frames must fit for the distances of codes and sites, (0,) where nothing need be asked."""
    if not distances or not table.distances.code_frames.size:
        return (np.zeros(0, np.int32),) * 2
    by_code = np.ascontiguousarray(table.distances.code_frames.T.clip(max=MOST_FRAMES).astype(np.int32))
    by_site = table.distances.site_frames.transpose(1, 2, 0).clip(max=MOST_FRAMES).astype(np.int32)
    return by_code, np.concatenate([by_site, np.zeros((*by_site.shape[:2], 1), np.int32)], axis=2)


def _site_distances(table: TransitionTable, distances: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the distance of each site, 0 of the one that is none: of one end, and by ends; (0,) for the other."""
    nothing = np.zeros(0, np.int32)
    if not distances:
        return nothing, nothing
    ends = table.distances.site.transpose(1, 2, 0).astype(np.int32)
    by_end: NDArray[np.int32] = np.concatenate([ends, np.zeros((*ends.shape[:2], 1), np.int32)], axis=2)
    return (nothing, by_end) if len(by_end) > 1 else (by_end[0, 0], nothing)


def _device_calls(table: TransitionTable, convert: Callable[[NDArray[Any]], Any], distances: bool) -> DeviceCalls:
    """Lay out what a nested table has beside a graph; each array goes through `convert`."""
    rows, sites, symbols, dead = table.num_rows, table.num_sites, table.num_symbols, table.dead
    none = table.exits.start.size - 1
    exit_width = int(np.diff(table.exits.start).max(initial=0))
    no_exit = np.zeros(exit_width + 1, np.int32)
    counts = np.diff(table.sites.start)
    need = table.sites.frames_required if table.sites.frames_required.size else np.zeros(sites, np.int32)
    dense = (sites + 1) * symbols <= max(DENSE_SITES, SPARSE_SITES * table.sites.symbol.size)
    if dense:
        site_symbol = table.sites.symbol[:0]
        site_target = np.full((sites + 1, symbols), dead, np.int32)
        site_target[np.repeat(np.arange(sites), counts), table.sites.symbol] = table.sites.target
    else:
        site_symbol = np.append(table.sites.symbol, 0).astype(np.int32)
        site_target = np.append(table.sites.target, dead).astype(np.int32)
    by_site, rooms = _site_distances(table, distances), _rooms(table, distances)
    any_need = table.rows.frames_required.size and table.rows.frames_required.any()
    nothing = np.zeros(1, np.int32)

    def or_none(lists: NDArray[np.int32]) -> NDArray[np.int32]:
        found = np.append(np.where(lists < 0, none, lists), none).astype(np.int32)
        return found if (found < none).any() else found[:0]

    arrays = {
        "row_exit": or_none(table.exits.of_row),
        "base_exit": or_none(table.exits.of_base),
        "exit_start": np.append(table.exits.start, table.exits.start[-1:]),
        "exit_token": np.concatenate([table.exits.token, no_exit.astype(table.exits.token.dtype)]),
        "exit_symbol": np.concatenate([table.exits.symbol, no_exit]),
        "base_push": np.append(table.sites.of_row, np.int32(-1)) if (table.sites.of_row >= 0).any() else nothing[:0],
        "site_start": np.append(table.sites.start, table.sites.start[-1:]),
        "site_symbol": site_symbol,
        "site_target": site_target,
        "site_frames": np.append(~table.sites.is_leaf, False).astype(np.int32),
        "site_room": np.append(np.maximum(~table.sites.is_leaf, need), 0).astype(np.int32),
        "site_distance": by_site[0],
        "end_distance": by_site[1],
        "distance_room": rooms[0],
        "site_distance_room": rooms[1],
        "action_state": np.concatenate([nothing, table.actions.state]),
        "action_start": np.concatenate([nothing, table.actions.push_start]),
        "action_push": table.actions.push if table.actions.push.size else nothing,
        "action_room": np.concatenate([nothing, table.code_frames_required[rows + 2 :]]).astype(np.int32),
        "state_room": table.code_frames_required[: rows + 2].astype(np.int32) if any_need else nothing[:0],
    }
    return DeviceCalls(
        **{name: convert(array) for name, array in arrays.items()},
        depth=table.depth,
        slots=table.slots,
        symbols=symbols,
        exit_width=exit_width,
        site_width=0 if dense else max(1, int(counts.max())),
        pops=most_pops(table),
    )


def most_pops(table: TransitionTable) -> int:
    """Return the most frames that one token can leave."""
    return min(table.slots, int(pops_by_symbol(table).max(initial=1)))


def pops_by_symbol(table: TransitionTable) -> NDArray[np.int64]:
    """Return the most frames that each symbol (Y,) can leave: one, and one more for each symbol that it leaves with.

    They are `slots` for all symbols where one comes back to itself.
    """
    leaves = table.sites.target < 0
    pairs = np.unique(np.stack([table.sites.symbol[leaves], -1 - table.sites.target[leaves]]), axis=1)
    longest = np.zeros(table.num_symbols, np.int64)  # by the symbol that leaves first
    for _ in range(table.slots):
        before = longest.copy()
        np.maximum.at(longest, pairs[0], before[pairs[1]] + 1)
        if np.array_equal(longest, before):
            return np.minimum(longest + 1, table.slots)
        if longest.max() >= table.num_symbols:  # a symbol comes back to itself
            break
    return np.full(table.num_symbols, table.slots, np.int64)


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of dicts, lists and tuples, named ones too, with `function` applied to its leaves but None."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: map_tree(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tree(function, value) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tree(function, value) for value in tree)
    return function(tree)


def whole(table: Any) -> TransitionTable | SortedMatrix | SidFilter | Snapshot | LiveFilter:
    """Return a constraint as it is put on a device, a lazy table with its arrays. Raises TypeError for others."""
    if not isinstance(table, Constraint):
        raise not_a_table(table)
    return table.to_table()


def not_a_table(found: object) -> TypeError:
    """Return the error for what `to_device` does not take."""
    return TypeError(
        "to_device takes a TransitionTable, a LazyTable, a SortedMatrix, a SidFilter, a Snapshot, a LiveFilter or an "
        f"Arena, not {type(found).__name__}"
    )


def check_table(table: TransitionTable) -> None:
    """Raise TypeError unless this is a table."""
    if not isinstance(table, TransitionTable):
        raise not_a_table(table)


def unbranched(table: TransitionTable, depth: int) -> bool:
    """Return whether it is known that every state at a depth has at most one continuation, EOS aside."""
    return table.is_trie and (depth >= len(table.levels) or table.levels[depth].width == 1)


def refuse_wide(table: TransitionTable) -> None:
    """Raise TableError where indices of 64 bits would be needed."""
    check_table(table)
    if table.rows.edge_start.dtype.itemsize > 4:
        raise TableError(
            "this table has more than 2^31 entries, so JAX needs 64-bit indices for it: "
            "set jax.config.update('jax_enable_x64', True)"
        )
