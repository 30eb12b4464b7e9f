"""Operations on a table in numpy: the specification the other backends agree with, one row at a time.

Every function takes the table first. A state is a tuple of integer arrays with the batch first; `start` makes one: a
`State` of a table without calls, a `NestedState` of one with. Its rows are read and written here as *configurations*:
a node and the tuple of sites on its stack, the outermost first; () without calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..kernels.limits import UNREACHABLE
from ..table.constraint import Constraint
from ..table.sid_filter import SidFilter
from ..table.snapshot import LiveFilter, Snapshot
from ..table.transition_table import TransitionTable
from .arena.arena import Arena, Handle, starts_in, starts_of
from .arena.view import ArenaView, HostTable
from .device import device_filters, device_live
from .device import numpy_arrays as arrays
from .device.backend import Placed
from .device.checks import (
    check_floating,
    check_has_end,
    check_logits,
    check_remaining,
    check_rows,
    check_sids,
    check_starts,
    check_tokens,
    is_end,
    not_put,
)
from .device.cursor import Cursor, Kinds
from .device.device_live import DeviceLive
from .device.device_matrix import DeviceMatrix
from .device.device_table import AnyState, Candidates, DeviceTable, Selection, State, device_table, unbranched
from .device.likelihood import check_likelihood
from .device.live_cursor import LiveCursor
from .device.matrix_cursor import MatrixCursor
from .device.numpy_arrays import log_softmax, unpack
from .device.on_demand import OnDemandTable
from .device.on_demand_cursor import OnDemandCursor
from .device.placing import place
from .device.table_filter_cursor import FilteredTableCursor
from .device.table_filters import DeviceFilteredTable
from .numpy_moves import Configuration, configurations_of, edges, fewest_tokens, moves, state_of

__all__ = [
    "accepting",
    "advance",
    "allowed_tokens",
    "arrays",
    "bitmask",
    "candidates",
    "contains",
    "distance",
    "draw",
    "edges",
    "end_scores",
    "fewest_tokens",
    "first_tokens",
    "log_mass",
    "log_probs",
    "mask_logits",
    "mask_logits_",
    "moves",
    "select",
    "start",
    "to_device",
    "with_filters",
    "with_snapshot",
    "with_start_states",
]

Array = NDArray[Any]

P = ParamSpec("P")
Result = TypeVar("Result")

_OTHER_KINDS = Kinds(
    arrays,
    {
        DeviceMatrix: MatrixCursor,
        DeviceLive: LiveCursor,
        DeviceFilteredTable: FilteredTableCursor,
        OnDemandTable: OnDemandCursor,
    },
)


def _for_all_kinds(operation: Callable[Concatenate[Any, P], Result]) -> Callable[Concatenate[Any, P], Result]:
    """Return an operation on tables that takes the other kinds too, which have cursors as in the other libraries."""
    of_others = _OTHER_KINDS.operation(getattr(Cursor, operation.__name__))

    @functools.wraps(operation)
    def run(dev: Any, *args: P.args, **options: P.kwargs) -> Result:
        if not (isinstance(dev, HostTable) or dev in _OTHER_KINDS or (dev is None and operation.__name__ == "select")):
            raise not_put(dev)
        result: Result = (of_others if dev in _OTHER_KINDS else operation)(dev, *args, **options)
        return result

    return cast(Callable[Concatenate[Any, P], Result], run)


def to_device(
    constraint: Constraint | Arena, device: object = None, *, distances: bool = False, on_demand: bool | None = None
) -> Placed:
    """Return the table itself: in numpy it is used where it is, and distances are at hand; of a matrix, its words.

    Of an arena it is the table that its arrays form, which change as tables come and go.

    distances: on a device, also copy the distances that `remaining` needs.
    on_demand: read a table on the host between steps, as texts reach its states, instead of copying it. By default this
    holds for tables without a finite form, such as grammars whose nesting the text does not delimit: see
    `on_demand.OnDemandTable`.
    """
    if isinstance(constraint, Arena) and not on_demand:
        constraint.check_budgets(distances)
        return constraint.table
    return place(_Library(), cast(Constraint, constraint), distances, on_demand)


class _Library:
    """Arrays of numpy. See `placing.Library`."""

    arrays, wide = arrays, True

    def convert(self, array: Array) -> Array:
        return np.asarray(array)

    def table(self, table: TransitionTable, distances: bool) -> TransitionTable:
        return table

    def with_filters(self, dev: Placed, filters: Sequence[SidFilter]) -> Placed:
        return with_filters(dev, filters)

    def lasting(self) -> AbstractContextManager[object]:
        return nullcontext()


def with_filters(dev: Placed, filters: Sequence[SidFilter | LiveFilter], of: ArrayLike | None = None) -> Any:
    """Return a matrix, live set or table with filters of it, one for each row of a batch.

    Whatever is allowed leads to a kept item. dev: from `to_device` of a sorted matrix or of a table of sequences, or
    from `to_device` or `with_snapshot` of a snapshot; it can be given other filters at any time. of: (B,) the number of
    each row's filter; None: filter i is that of the i-th share of a batch. Under a filter that keeps nothing a row is
    dead from the start: its beams and samples are not valid. A search that began keeps the filters of its states.

    Raises TypeError, ValueError; ConstraintError for a filter of another matrix, snapshot or table.
    """
    placed: Any = dev
    if isinstance(dev, TransitionTable) and dev.is_trie:
        placed = device_table(dev, np.asarray, DeviceTable, True)
    return device_filters.filtered(placed, filters, of, np.asarray)


def with_snapshot(dev: DeviceLive, snapshot: Snapshot) -> DeviceLive:
    """Return another snapshot of a live set on a device, in the place of one: a base they share is not put again.

    dev: from `to_device` of a snapshot, or from here; it stays what it is, so that a search goes on with it. Shapes are
    the same, unless `compact` has made a base that has no room in them.
    """
    return device_live.refreshed(dev, snapshot, np.asarray)


def with_start_states(dev: HostTable, handles: Sequence[Handle]) -> HostTable:
    """Return an arena in which the rows of a batch start in the tables of handles (B,): as many rows in each."""
    starts = starts_of(handles, dev.number if isinstance(dev, ArenaView) else 0)  # which refuses a table of its own
    return cast(ArenaView, dev).starting(starts)


@_for_all_kinds
def start(dev: HostTable, batch: int) -> AnyState:
    """Return the state of `batch` sequences with nothing written yet."""
    starts = starts_in(dev)
    check_starts(len(starts), batch)
    return state_of(dev, [(int(node), ()) for node in starts.repeat(batch // len(starts))], (batch,))


@_for_all_kinds
def accepting(dev: HostTable, state: AnyState) -> Array:
    """Return whether each sequence may end where it stands: bool (B,)."""
    bottom = [not stack for _, stack in configurations_of(dev, state)]
    return np.asarray(dev.is_accepting(state.node) & np.array(bottom, bool))


@_for_all_kinds
def distance(dev: HostTable, state: AnyState) -> Array:
    """Return the tokens (B,) in which each sequence can be complete, at least one of which is always allowed.

    On a device the table must have been put there with distances.
    """
    return np.array([fewest_tokens(dev, row) for row in configurations_of(dev, state)], np.int64)


@_for_all_kinds
def bitmask(dev: HostTable, state: AnyState, remaining: Array | None = None) -> Array:
    """Return the tokens allowed in each state, packed: uint32 (B, ceil(V / 32)), token 32 * w + i is bit i of word w.

    remaining: (B,) how many tokens may still be written, EOS aside. Then only tokens are allowed from whose target an
    end can be reached within the others, so that there is always one in reach.
    """
    words = -(-dev.vocab_size // 32)
    if remaining is not None:
        check_remaining(state.node.size, remaining.shape, remaining.dtype.kind in "iu", remaining.dtype, True)
    bits = np.zeros((state.node.size, 32 * words), bool)
    for row, configuration in enumerate(configurations_of(dev, state)):
        reached = moves(dev, configuration)
        allowed = list(reached)
        if remaining is not None:
            room = min(int(remaining[row]) - 1, UNREACHABLE - 1)
            soon = {target: fewest_tokens(dev, target) <= room for target in set(reached.values())}
            allowed = [token for token, target in reached.items() if token == dev.eos or soon[target]]
        bits[row, allowed] = True
        if dev.eos is not None and dev.eos in allowed:
            bits[row, list(dev.ends)] = True
    return np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)


@_for_all_kinds
def mask_logits(
    dev: HostTable, logits: Array, state: AnyState, remaining: Array | None = None, level: int | None = None
) -> Array:
    """Return logits (B, V) with -inf at every token that is not allowed; what is allowed is left untouched.

    remaining: as for `bitmask`. level: a depth at which all states must be that are not dead; other backends are
    quicker for it.
    """
    check_floating(logits.dtype.kind == "f", logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    bits = unpack(bitmask(dev, state, remaining), dev.vocab_size)
    out = np.full_like(logits, -np.inf)
    for row in range(logits.shape[0]):
        allowed = np.flatnonzero(bits[row])
        out[row, allowed] = logits[row, allowed]
    return out


@_for_all_kinds
def mask_logits_(
    dev: HostTable, logits: Array, state: AnyState, remaining: Array | None = None, level: int | None = None
) -> Array:
    """Mask logits (B, V) as `mask_logits` does, in place, and return them."""
    logits[...] = mask_logits(dev, logits, state, remaining, level)
    return logits


def _with_one_end(dev: HostTable, logits: Array) -> Array:
    """Return logits (B, V') in which `eos` has the weight of all ends, and the others have none."""
    if len(dev.ends) < 2:
        return logits
    check_floating(logits.dtype.kind == "f", logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    merged = logits.astype(np.promote_types(logits.dtype, np.float32))
    with np.errstate(all="ignore"):
        weight = np.logaddexp.reduce(merged[:, list(dev.ends)], axis=1)
    merged[:, list(dev.ends)] = -np.inf
    merged[:, dev.eos] = weight
    return merged


def draw(*_: Any) -> None:
    """Return None: drawing takes array operations here, as everybody can read them."""


@_for_all_kinds
def candidates(dev: HostTable, logits: Array, state: AnyState, width: int, level: int | None = None) -> Candidates:
    """Return the `width` best allowed continuations of each row, EOS among them, best first.

    Of several ends it is `eos` that is among them, with the probability of all ends together.
    Scores are log-probabilities under the full softmax. Unused slots score -inf and lead to the dead state. `level`
    is a depth at which all the states must be: other backends are quicker for it, and leave tokens of others out.
    """
    masked = mask_logits(dev, log_softmax(_with_one_end(dev, logits)), state)
    batch = logits.shape[0]
    scores = np.full((batch, width), -np.inf, masked.dtype)
    tokens = np.zeros((batch, width), np.int64)
    states: list[Configuration] = [(dev.dead, ())] * (batch * width)
    for row, configuration in enumerate(configurations_of(dev, state)):
        allowed = moves(dev, configuration)
        order = sorted((t for t in allowed if masked[row, t] > -np.inf), key=lambda t: (-masked[row, t], t))
        for slot, token in enumerate(order[:width]):
            scores[row, slot], tokens[row, slot] = masked[row, token], token
            states[row * width + slot] = allowed[token]
    return Candidates(scores, tokens, state_of(dev, states, (batch, width)))


@_for_all_kinds
def select(
    dev: HostTable | None,
    logits: Array,
    state: AnyState,
    scores: Array,
    beams: int,
    level: int,
    renormalize: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, EOS aside.

    Best first, of equal scores the first beam's and of these the lowest token; where no state at this depth branches
    and m = `beams`, each beam's own one instead, in place.
    logits: (B * m, V). state: (B * m,), all at depth `level`. scores: (B, m) totals so far, to which log-probabilities
    under the full softmax are added; renormalize: under that of the allowed tokens alone. A row of logits that has
    no distribution (NaN, +inf, all -inf) has no continuations. dev None: no constraint.
    """
    batch, m = scores.shape
    in_place = dev is not None and m == beams and isinstance(dev, TransitionTable) and unbranched(dev, level)
    best = np.full((batch, beams), -np.inf, scores.dtype)
    parents, picked = np.zeros((batch, beams), np.int64), np.zeros((batch, beams), np.int64)
    nowhere: Configuration = (0 if dev is None else dev.dead, ())
    reached = [nowhere] * (batch * beams)
    rows = [nowhere] * (batch * m) if dev is None else configurations_of(dev, state)
    logits = logits if dev is None else _with_one_end(dev, logits)
    for b in range(batch):
        found = []
        for beam in range(m):
            row = b * m + beam
            legal = dict.fromkeys(range(logits.shape[1]), nowhere) if dev is None else moves(dev, rows[row])
            log_probs = log_softmax(logits[row])
            if renormalize:
                allowed = list(legal)
                log_probs[allowed] = log_softmax(logits[row, allowed]) if allowed else 0
            for token, target in legal.items():
                total = scores[b, beam] + log_probs[token]
                if total > -np.inf and (dev is None or token != dev.eos):  # neither impossible nor NaN
                    found.append((total, beam, token, target))
        if in_place:
            slots = [(item[1], item) for item in found]
        else:
            slots = list(enumerate(sorted(found, key=lambda item: (-item[0], item[1], item[2]))[:beams]))
        for slot, (total, beam, token, target) in slots:
            best[b, slot], parents[b, slot], picked[b, slot] = total, beam, token
            reached[b * beams + slot] = target
    following = State(np.zeros(batch * beams, np.int64)) if dev is None else state_of(dev, reached, (len(reached),))
    return Selection(best, None if in_place else parents, picked, following)


@_for_all_kinds
def end_scores(dev: HostTable, logits: Array, state: AnyState, renormalize: bool = False) -> Array:
    """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere; `renormalize` as in `select`.

    Of several ends it is the probability that the model ends by any of them.
    """
    check_has_end(dev)
    logits = _with_one_end(dev, logits)
    last = log_softmax(mask_logits(dev, logits, state) if renormalize else logits)[:, dev.eos]
    return np.where(accepting(dev, state) & ~np.isnan(last), last, -np.inf)


@_for_all_kinds
def advance(dev: HostTable, state: AnyState, tokens: Array) -> AnyState:
    """Return the state after one more token (B,) each; the dead state where it was not allowed."""
    check_tokens(state.node.size, tokens.shape, tokens.dtype.kind in "iu", tokens.dtype)
    chosen: list[Any] = [dev.eos if token in dev.ends else token for token in tokens.tolist()]
    pairs = zip(configurations_of(dev, state), chosen, strict=True)
    return state_of(dev, [moves(dev, row).get(token, (dev.dead, ())) for row, token in pairs], (len(tokens),))


@_for_all_kinds
def log_mass(dev: HostTable, logits: Array, state: AnyState) -> Array:
    """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold."""
    masked = mask_logits(dev, log_softmax(logits), state)
    with np.errstate(all="ignore"):
        return np.asarray(np.logaddexp.reduce(masked, axis=-1))


def log_probs(
    dev: Placed,
    logits: Array,
    tokens: Array,
    state: AnyState | None = None,
    *,
    remaining: Array | None = None,
    renormalize: bool = True,
    by_position: bool = False,
) -> Array:
    """Return the log-probability of each sequence of tokens (B, T): (B,), or by_position of each token: (B, T).

    logits: (B, T, V), where logits[:, t] are those that tokens[:, t] is chosen from. Each token counts with its share
    of the softmax of what is allowed there, as `sample` reports it at temperature 1 and without filters, and
    `beam_search` with renormalize; without `renormalize` with that of the full softmax. At another temperature, divide
    the logits by it. A token that is not allowed, or whose row of logits has no distribution, counts -inf, and so does
    every token after one that is not allowed.

    A negative token is none: it counts 0 and leads nowhere, so that prompts and padding may be -1 or -100. Whatever
    follows EOS counts 0 too. A sequence that has not ended counts as the prefix that it is; EOS counts where it is
    among the tokens, which it is not in what `sample_sequences` and `beam_search` return. Of several ends each counts
    as itself.

    state: where each sequence starts (B,), the start of the table if left out. remaining: (B,) how many tokens might be
    written from there, as for `bitmask`.

    Raises TypeError, ValueError, VocabularyMismatchError.
    """
    check_likelihood(dev, logits, tokens, state, remaining, renormalize)
    batch, length = tokens.shape
    here = start(dev, batch) if state is None else state
    going = np.ones(batch, bool)
    scores = np.zeros((batch, length), np.promote_types(logits.dtype, np.float32))
    for t in range(length):
        written = going & (tokens[:, t] >= 0)
        reached = advance(dev, here, np.where(written, tokens[:, t], -1))
        rows = mask_logits(dev, logits[:, t], here, remaining) if renormalize else logits[:, t]
        found = log_softmax(rows)[np.arange(batch), np.clip(tokens[:, t], 0, rows.shape[1] - 1)]
        follows = written & (reached.node != dev.dead) & ~np.isnan(found)
        scores[:, t] = np.where(follows, found, np.where(written, -np.inf, 0))
        here = type(here)(
            *(
                np.where(written.reshape(-1, *(1 for _ in new.shape[1:])), new, old)
                for old, new in zip(here, reached, strict=True)
            )
        )
        if dev.ends:
            going &= ~is_end(dev, tokens[:, t])
        if remaining is not None:
            remaining = remaining - written
    return scores if by_position else np.asarray(scores.sum(axis=-1))


@_for_all_kinds
def contains(dev: HostTable, sids: Array) -> Array:
    """Return whether each row of sids (N, L) is in the set: bool (N,)."""
    check_sids(sids.shape)
    state = start(dev, sids.shape[0])
    for t in range(sids.shape[1]):
        state = advance(dev, state, sids[:, t])
    return accepting(dev, state)


@_for_all_kinds
def allowed_tokens(dev: HostTable, state: AnyState, width: int, remaining: Array | None = None) -> tuple[Array, Array]:
    """Return the first `width` tokens that each state allows, and ends: tokens (B, W), and which of them there are.

    W is `width`, and one more for each end token; these have the last columns. Tokens ascend; 0 where there are fewer.
    remaining: as for `bitmask`. width: at most what any state has, known of tries and of graphs without masks or calls.
    """
    bits = unpack(bitmask(dev, state, remaining), dev.vocab_size)
    tokens = np.zeros((state.node.size, width + len(dev.ends)), np.int64)
    allowed = np.zeros(tokens.shape, bool)
    for row in range(len(tokens)):
        found = [token for token in np.flatnonzero(bits[row]).tolist() if token not in dev.ends][:width]
        tokens[row, : len(found)], allowed[row, : len(found)] = found, True
        if dev.eos is not None and bits[row, dev.eos]:
            tokens[row, width:], allowed[row, width:] = dev.ends, True
    return tokens, allowed


def first_tokens(dev: HostTable | None, cache: Any, count: int, token: int) -> Array:
    """Return `count` copies of the token a model is first fed with."""
    return np.full(count, token, np.int64)
