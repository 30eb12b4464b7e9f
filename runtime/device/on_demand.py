"""Operations on a table that is read as texts come to its states, written once against an operations module.

A grammar whose nesting the text does not delimit has no finite table; others have none within their budget. A `Matcher`
reads them without one. This module numbers the places that matchers reach. The device holds each distinct mask once,
and the mask of every number, so that operations that only ask what is allowed need no host. `advance` and `select`
read states and tokens on the host, follow them there as a matcher does, and write all new rows at once before they
return.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import Advice, BudgetError, ConstraintError
from ...lazy.lazy_table import LazyTable
from ...table.transition_table import TransitionTable
from ..host.host_reader import HostReader
from ..host.matcher import Matcher
from .backend import Array, Backend, Cache, Placed
from .device_table import (
    Candidates,
    DeviceTable,
    Selection,
    State,
    check_floating,
    check_logits,
    check_rows,
    check_sids,
    check_tokens,
)

DEAD = 0  # the row that allows nothing
MOST_BYTES = 1 << 30  # of masks on a device, and of rows
_ROW_BYTES = 512  # that a row may take, nearly all of it on the host: 200 are measured, and 8 for each open call
_ROWS = 1024  # that there is room for at first
_MASKS_BYTES = 1 << 24  # of masks that there is room for at first, if these are at least
_LEAST, _MOST = 64, 1024


class Arrays(NamedTuple):
    """What is on a device of R rows and U masks, of which the first are in use."""

    masks: Array  # (U, ceil(V / 32)) in the type of a `bitmask`; the first is of nothing
    mask_of: Array  # (R,) which mask each row has
    may_end: Array  # bool (R,) whether a sequence may end there
    but_eos: Array  # (1, ceil(V / 32)) a mask of all tokens but EOS


class Stored(NamedTuple):
    """What has been reached, and what it takes."""

    rows: int
    masks: int  # that differ
    nbytes: int  # on the device, with room for more
    taken: int  # bytes of rows and masks, of which there may be `most_bytes`


class Rows:
    """Places that sequences have come to, by number, and their masks on a device.

    Threads may share one, except in JAX, where what is written takes the place of what another thread may be reading.

    A place is one of a matcher: what stands here is what tells it which tokens are allowed and where they lead. Several
    tables of one vocabulary may have their places among the same rows.
    """

    def __init__(
        self, ops: Backend, convert: Callable[[NDArray[Any]], Array], size: int, eos: int | None, most: int
    ) -> None:
        self.ops, self.vocab_size, self.eos, self.most_bytes = ops, size, eos, most
        self.words = -(-size // 32)
        self._lock = threading.RLock()
        self._places: list[tuple[HostReader[Any], Any] | None] = [None]  # by row; None where there is none
        self._keys: list[Any] = [None]
        self._rows: dict[Any, int] = {}  # the row of each place, by what tells it from others
        self._masks: list[bytes | None] = [bytes(4 * self.words)]  # None where there is none
        self._numbers = {self._masks[0]: 0}  # of each mask
        self._uses = [1]  # rows that have each mask
        self._mask_of = [0]
        self._free_rows: list[int] = []
        self._free_masks: list[int] = []
        self._new_rows: list[int] = []  # not on the device yet
        self._new_masks: list[int] = []
        but_eos = np.full((1, self.words), 0xFFFFFFFF, np.uint32)
        if eos is not None:
            but_eos[0, eos >> 5] ^= np.uint32(1 << (eos & 31))
        masks = max(_LEAST, min(_MOST, _MASKS_BYTES // (4 * self.words)))
        self.arrays = Arrays(
            convert(np.zeros((masks, self.words), np.uint32)),
            convert(np.zeros(_ROWS, np.int64)),
            convert(np.zeros(_ROWS, np.bool_)),
            convert(but_eos),
        )
        self._kept = Stored(0, 0, 0, 0)  # what was left by the last `keep`

    @property
    def stored(self) -> Stored:
        """What has been reached, and what it takes."""
        with self._lock:
            rows, masks = len(self._places) - len(self._free_rows), len(self._uses) - len(self._free_masks)
            return Stored(rows, masks, sum(int(array.nbytes) for array in self.arrays), self._bytes(rows, masks))

    def _bytes(self, rows: int, masks: int) -> int:
        return _ROW_BYTES * rows + 4 * self.words * masks

    @property
    def is_full(self) -> bool:
        """Whether to call `keep`: more than half of the room on the device, or of `most_bytes`, is taken.

        Rows that the last `keep` left in place do not count; otherwise this would hold at every step.
        """
        stored, kept, (masks, mask_of, _, _) = self.stored, self._kept, self.arrays
        return bool(
            stored.masks > max(masks.shape[0] // 2, 2 * kept.masks)
            or stored.rows > max(mask_of.shape[0] // 2, 2 * kept.rows)
            or 2 * stored.taken > self.most_bytes + kept.taken
        )

    def of(self, matcher: Matcher) -> int:
        """Return the row of where a matcher stands; inside of `adding`. Raises BudgetError."""
        return self._row(matcher._reader, matcher._place)

    def place(self, row: int) -> tuple[HostReader[Any], Any] | None:
        """Return what a row stands for; None for `DEAD`. Raises ValueError for a row that is none."""
        found = self._places[row] if 0 <= row < len(self._places) else None
        if found is None and row != DEAD:
            raise ValueError(
                f"state {row} is none of this table's, which has {len(self._places) - len(self._free_rows)} so far: it "
                "comes from another one, or was not kept"
            )
        return found

    def follow(self, nodes: NDArray[Any], tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Return the rows (n,) that tokens (n,) lead to, written to the device. Raises ValueError, BudgetError."""
        wanted = (tokens >= 0) & (tokens < self.vocab_size) & (nodes != DEAD)
        keys, back = np.unique(nodes[wanted].astype(np.int64) * self.vocab_size + tokens[wanted], return_inverse=True)
        found = np.full(len(keys), DEAD, np.int64)
        with self.adding():
            for i, key in enumerate(keys.tolist()):
                place = self.place(key // self.vocab_size)
                assert place is not None, "the dead state is left out above"
                host, here = place
                following = host.step(here, key % self.vocab_size)
                if following != host.nowhere:
                    found[i] = self._row(host, following)
        out = np.full(len(nodes), DEAD, np.int64)
        out[wanted] = found[back]
        return out

    def keep(self, nodes: NDArray[Any]) -> None:
        """Forget all rows but these, which keep their numbers; a freed number allows nothing until a new row has it."""
        kept = {DEAD, *nodes.reshape(-1).tolist()}
        with self._lock:
            left = [row for row, place in enumerate(self._places) if place is not None and row not in kept]
            for row in left:
                self._forget(row)
            self._kept = self.stored
            if left:
                masks, mask_of, may_end, but_eos = self.arrays
                rows, nothing = np.array(left, np.int64), np.zeros(len(left), np.int64)
                mask_of = self.ops.put_rows(mask_of, rows, nothing)
                self.arrays = Arrays(masks, mask_of, self.ops.put_rows(may_end, rows, nothing != 0), but_eos)

    # ------------------------------------------------------------------------------------------------ adding

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Write the rows added inside to the device on leaving, even after an error; forget them all if that fails."""
        with self._lock:
            try:
                yield
            finally:
                try:
                    self._write()
                except BaseException:
                    for row in self._new_rows:
                        self._forget(row)
                    raise
                finally:
                    self._new_rows, self._new_masks = [], []

    def _row(self, host: HostReader[Any], place: Any) -> int:
        """Return the row of a place, which is added if it has none."""
        key = (host, *host.configuration(place))
        row = self._rows.get(key)
        if row is not None:
            return row
        mask = host.mask(place).tobytes()
        number = self._numbers.get(mask, -1)
        rows, masks = len(self._places) - len(self._free_rows), len(self._uses) - len(self._free_masks)
        if self._bytes(rows + 1, masks + (number < 0)) > self.most_bytes:
            raise BudgetError(
                f"the states that were reached and their masks, {rows:,} and {masks:,}, would take more than "
                f"{self.most_bytes:,} bytes",
                limit="bytes",
                allowed=self.most_bytes,
                reached=self._bytes(rows + 1, masks + (number < 0)),
                remedies=[
                    Advice(
                        "Forget those that are not needed any more, in a loop of your own with dev.keep(state) between "
                        "steps, otherwise with dev.keep() between calls, as a decoder keeps all that it comes to; "
                        "where one call is too much, give it fewer sequences or a smaller max_length"
                    )
                ],
            )
        if number < 0:
            if self._free_masks:
                number = self._free_masks.pop()
            else:
                number = len(self._masks)
                self._masks.append(None)
                self._uses.append(0)
            self._masks[number], self._numbers[mask] = mask, number
            self._new_masks.append(number)
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self._places)
            self._places.append(None)
            self._keys.append(None)
            self._mask_of.append(0)
        self._places[row], self._keys[row], self._mask_of[row] = (host, place), key, number
        self._uses[number] += 1
        self._rows[key] = row
        self._new_rows.append(row)
        return row

    def _forget(self, row: int) -> None:
        number = self._mask_of[row]
        del self._rows[self._keys[row]]
        self._places[row] = self._keys[row] = None
        self._free_rows.append(row)
        self._uses[number] -= 1
        if not self._uses[number]:
            mask, self._masks[number] = self._masks[number], None
            if mask is not None:
                del self._numbers[mask]
            self._free_masks.append(number)

    def _write(self) -> None:
        """Write what is new to the device."""
        if not self._new_rows:
            return
        ops = self.ops
        masks, mask_of, may_end, but_eos = self.arrays
        while masks.shape[0] < len(self._uses):
            masks = ops.doubled(masks)
        while mask_of.shape[0] < len(self._places):
            mask_of, may_end = ops.doubled(mask_of), ops.doubled(may_end)
        if self._new_masks:
            added = bytearray().join(self._masks[number] or b"" for number in self._new_masks)
            values = np.frombuffer(added, np.uint32).reshape(-1, self.words)
            masks = ops.put_rows(masks, np.array(self._new_masks, np.int64), values)
        rows = np.array(self._new_rows, np.int64)
        mask_of = ops.put_rows(mask_of, rows, np.array([self._mask_of[row] for row in self._new_rows], np.int64))
        ends = []
        for row in self._new_rows:
            host, place = self._places[row] or (None, None)
            ends.append(host is not None and host.ends(place))
        self.arrays = Arrays(masks, mask_of, ops.put_rows(may_end, rows, np.array(ends, np.bool_)), but_eos)


@dataclass(frozen=True, eq=False)
class OnDemandTable:
    """A table that is read as texts come to its states. A state is a row's number, which means the same from then on.

    What has been reached stays, until `keep` says what is still needed: 16 KB on the device for each mask that differs
    over 131,072 tokens, and for each row 9 bytes there and up to 0.5 KB on the host; beyond 1 GB it is a BudgetError.
    Decoders keep all that they come to: `keep` is for their caller, between calls. All is read by the table's own
    reader, within the `Budget` that it was compiled with.

    given: its arrays where they are traced, inside a compiled function that the table is an argument of.
    """

    rows: Rows
    start_row: int
    given: Arrays | None = None

    # what decoders ask of a table
    fixed_length = None
    max_length = None
    is_trie = False
    is_nested = True
    dead = DEAD

    @property
    def arrays(self) -> Arrays:
        """What is on the device now."""
        return self.rows.arrays if self.given is None else self.given

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return self.rows.vocab_size

    @property
    def eos(self) -> int | None:
        """The token that ends a sequence."""
        return self.rows.eos

    @property
    def start_accepting(self) -> bool:
        """Whether the empty sequence is complete."""
        place = self.rows.place(self.start_row)
        return place is not None and place[0].ends(place[1])

    @property
    def min_length(self) -> int:
        """No sequence has fewer tokens; how many the shortest has is not known."""
        return 0 if self.start_accepting else 1

    @property
    def stored(self) -> Stored:
        """What has been reached, and what it takes."""
        return self.rows.stored

    def keep(self, *states: State) -> None:
        """Forget all states but the start and these, whose numbers stay.

        Others mean nothing any more: nothing is allowed there, until their numbers are those of new states.
        """
        nodes = [np.array([self.start_row]), *(self.rows.ops.to_host(state.node).reshape(-1) for state in states)]
        self.rows.keep(np.concatenate(nodes))

    def __repr__(self) -> str:
        stored = self.stored
        return f"OnDemandTable({stored.rows:,} states so far, {stored.masks:,} masks, vocab_size={self.vocab_size})"

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDemandTable:
        return self  # rows do not change what they mean


def counts_tokens(dev: Placed) -> bool:
    """Return whether it is known of a table on a device how far its states are from an end, for `remaining`."""
    if isinstance(dev, OnDemandTable):
        return False
    return not isinstance(dev, DeviceTable) or dev.distance.shape[0] > 0  # of others it is at hand


def is_read(table: Any, on_demand: bool | None) -> bool:
    """Return whether a table is read on demand: as is said, or else where it has no arrays, or none within its budget.

    Raises TypeError.
    """
    if on_demand is not None and not isinstance(on_demand, bool):
        raise TypeError(f"on_demand must be True, False or None, not {on_demand!r}")
    if on_demand and not isinstance(table, TransitionTable | LazyTable):
        raise TypeError(f"on_demand=True is for tables, not for a {type(table).__name__}")
    return bool(on_demand) or (on_demand is None and not has_lengths(table))


def has_lengths(table: Any) -> bool:
    """Return whether a constraint has arrays within its budget, so that it is known how far its states are from an end.

    Works out a lazy table.
    """
    return not isinstance(table, LazyTable) or table.has_arrays()


def check_budgets(table: TransitionTable, budgets: bool) -> None:
    """Raise ConstraintError if budgets are asked for: an on-demand table does not know its distances to an end."""
    if budgets:
        raise ConstraintError(
            "how many tokens an end is away is not known of a table that is read on demand: put it without budgets, "
            "let max_length be generous, and look at `valid`"
        )


def read(
    ops: Backend,
    convert: Callable[[NDArray[Any]], Array],
    table: TransitionTable,
    budgets: bool = False,
    top: Any = None,
) -> OnDemandTable:
    """Return a table that is read on demand, with its start on the device; each array goes through `convert`."""
    if top is not None:
        raise ValueError(f"top={top} is for a sorted matrix: a table knows of all tokens at no cost, leave it out")
    check_budgets(table, budgets)
    rows = Rows(ops, convert, table.vocab_size, table.eos, MOST_BYTES)
    with rows.adding():
        return OnDemandTable(rows, rows.of(Matcher(table)))


# ------------------------------------------------------------------------------------------------------ checks


def _is(x: Array, kind: str) -> bool:
    """Return whether an array is of a kind, "int" or "float", whatever library it is of."""
    return kind in str(x.dtype)


def _current(ops: Backend, dev: OnDemandTable, *given: Array) -> Arrays:
    """Return what is on the device. Raises TypeError where a compiled function would keep it as it is now."""
    arrays = dev.arrays
    if dev.given is None and ops.is_recording(*given):
        raise TypeError(
            "a table that is read on demand grows from step to step, and what is being traced here would keep it as "
            "it is now: in JAX, let it be an argument of the jitted function; in a CUDA graph, write `bitmask` to an "
            "array of your own before each replay; vmap is not needed, as the batch is the first axis"
        )
    return arrays


def _of_rows(ops: Backend, array: Array, nodes: Array) -> Array:
    """Return what states have in an array of rows. Raises ValueError where a library says that there is no such row."""
    try:
        return ops.lookup(array, nodes)
    except IndexError as error:
        raise ValueError(
            f"there are states that are none of this table's, which has room for {array.shape[0]:,}: they come from "
            f"another one ({error})"
        ) from error


def _check_known(ops: Backend, name: str, *given: Array) -> None:
    """Raise TypeError where what must be read on the host is only traced."""
    if not ops.is_concrete(*given):
        raise TypeError(
            f"{name} reads states and tokens of a table without arrays on the host, so it cannot be inside jit, scan, "
            "vmap, torch.compile or a CUDA graph: call it between steps. mask_logits and whatever else only asks what "
            "is allowed can be inside of jit, with the table as an argument, and of torch.compile"
        )


def _check_budget(remaining: Array | None) -> None:
    if remaining is not None:
        raise ValueError(
            "remaining is for tables whose distances are known, and this one is read on demand: leave it out, let "
            "max_length be generous, and look at `valid`"
        )


def _check(dev: OnDemandTable, logits: Array, state: Any) -> None:
    check_floating(_is(logits, "float"), logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)


# -------------------------------------------------------------------------------------------------- operations


def start(ops: Backend, dev: OnDemandTable, batch: int) -> State:
    """Return the state of `batch` sequences with nothing written yet."""
    return State(ops.zeros((batch,), like=dev.arrays.mask_of) + dev.start_row)


def first_tokens(ops: Backend, dev: OnDemandTable, cache: Cache, count: int, token: int) -> Array:
    """Return `count` copies of the token a model is first fed with, where the masks are."""
    return ops.zeros((count,), like=dev.arrays.mask_of) + token


def accepting(ops: Backend, dev: OnDemandTable, state: State) -> Array:
    """Return whether each sequence may end where it stands: bool (B,)."""
    return _of_rows(ops, _current(ops, dev, state.node).may_end, state.node)


def distance(ops: Backend, dev: OnDemandTable, state: State) -> Array:
    """Raise ValueError: an on-demand table does not know its distances to an end."""
    raise ValueError(
        "how many tokens an end is away is not known of a table that is read on demand: leave max_tokens out"
    )


def bitmask(ops: Backend, dev: OnDemandTable, state: State, remaining: Array | None = None) -> Array:
    """Return the tokens allowed in each state, packed, as of a table; ValueError for `remaining`."""
    _check_budget(remaining)
    arrays = _current(ops, dev, state.node)
    return ops.gather(arrays.masks, _of_rows(ops, arrays.mask_of, state.node))


def mask_logits(ops: Backend, dev: OnDemandTable, logits: Array, state: State, remaining: Array | None = None) -> Array:
    """Return logits (B, V') with -inf at every token that is not allowed; what is allowed is left untouched."""
    _check(dev, logits, state)
    return ops.keep_packed(logits, bitmask(ops, dev, state, remaining), dev.vocab_size)


def mask_logits_(
    ops: Backend, dev: OnDemandTable, logits: Array, state: State, remaining: Array | None = None
) -> Array:
    """Mask logits (B, V') as `mask_logits` does, in place, and return them."""
    _check(dev, logits, state)
    return ops.keep_packed(logits, bitmask(ops, dev, state, remaining), dev.vocab_size, True)


def candidates(
    ops: Backend, dev: OnDemandTable, logits: Array, state: State, width: int, level: int | None = None
) -> Candidates:
    """Return the `width` best allowed continuations of each row, EOS among them, best first.

    Each is followed on the host, so that a mask is made for whatever was not reached before.
    """
    _check(dev, logits, state)
    _check_known(ops, "candidates", state.node, logits)
    scores = ops.keep_packed(ops.log_softmax(logits), bitmask(ops, dev, state), dev.vocab_size)[:, : dev.vocab_size]
    best, at = ops.top_k(ops.where(scores == scores, scores, -float("inf")), width)
    alive = best > -float("inf")
    tokens = ops.where(alive, ops.integers(at, state.node), 0)
    parents = ops.arange(tokens.shape[0] * width, like=state.node) // width
    reached = _followed(ops, dev, ops.gather(state.node, parents), ops.where(alive, tokens, -1).reshape(-1))
    return Candidates(best, tokens, State(reached.reshape(tokens.shape)))


def select(
    ops: Backend,
    dev: OnDemandTable,
    logits: Array,
    state: State,
    scores: Array,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, EOS aside, as of a table."""
    _check(dev, logits, state)
    _check_known(ops, "select", state.node, logits, scores)
    batch, m = scores.shape
    words, size = bitmask(ops, dev, state), dev.vocab_size
    but_eos = words & dev.arrays.but_eos
    if renormalise:
        x = ops.keep_packed(logits + ops.zeros((1, 1), like=logits), words, size)  # in at least 32 bits
        mass = ops.logsumexp(x)[:, None]
        sound = (mass > -float("inf")) & (mass < float("inf"))
        x = ops.where(sound, x - ops.where(sound, mass, 0.0), -float("inf"))
        x = ops.keep_packed(x, but_eos, size) if dev.eos is not None else x
    else:
        x = ops.keep_packed(ops.log_softmax(logits), but_eos, size)
    x = x[:, :size]
    best, at = ops.top_of_beams(x.reshape(batch, m, size), scores, beams)
    at = ops.integers(at, state.node)
    parents = at // size
    alive = best > -float("inf")
    tokens = ops.where(alive, at - parents * size, 0)
    row = (parents + m * ops.arange(batch, like=at)[:, None]).reshape(-1)
    reached = _followed(ops, dev, ops.gather(state.node, row), ops.where(alive, tokens, -1).reshape(-1))
    return Selection(best, parents, tokens, State(reached))


def end_scores(ops: Backend, dev: OnDemandTable, logits: Array, state: State, renormalise: bool = False) -> Array:
    """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere; `renormalise` as in `select`."""
    if dev.eos is None:
        raise ValueError("this table has no EOS: its vocabulary has none")
    masked = mask_logits(ops, dev, logits, state) if renormalise else logits
    last = ops.log_softmax(masked)[:, dev.eos]
    return ops.where(accepting(ops, dev, state) & (last <= float("inf")), last, -float("inf"))


def advance(ops: Backend, dev: OnDemandTable, state: State, tokens: Array) -> State:
    """Return the state after one more token (B,) each; the dead state where it was not allowed.

    Reads states and tokens on the host, once. Raises BudgetError.
    """
    check_tokens(state.node.shape[0], tokens.shape, _is(tokens, "int"), tokens.dtype)
    _check_known(ops, "advance", state.node, tokens)
    return State(_followed(ops, dev, state.node, ops.integers(tokens, state.node)))


def _followed(ops: Backend, dev: OnDemandTable, nodes: Array, tokens: Array) -> Array:
    """Return the rows (n,) that tokens (n,) lead to."""
    both = ops.to_host(ops.concatenate([nodes, tokens], 0))  # one read
    count = nodes.shape[0]
    return ops.to_device(dev.rows.follow(both[:count], both[count:]), dev.rows.arrays.mask_of)


def log_mass(ops: Backend, dev: OnDemandTable, logits: Array, state: State) -> Array:
    """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold."""
    return ops.logsumexp(mask_logits(ops, dev, ops.log_softmax(logits), state))


def contains(ops: Backend, dev: OnDemandTable, sids: Array) -> Array:
    """Return whether each row of sids (N, L) is in the set: bool (N,). It is read on the host, and adds no rows."""
    check_sids(sids.shape)
    check_tokens(sids.shape[0], sids.shape[:1], _is(sids, "int"), sids.dtype)
    _check_known(ops, "contains", sids)
    begin = dev.rows.place(dev.start_row)
    found = np.zeros(sids.shape[0], np.bool_)
    for i, tokens in enumerate(ops.to_host(sids).tolist() if begin is not None else []):
        assert begin is not None, "there is nothing to read otherwise"
        host, place = begin
        for token in tokens:
            place = host.step(place, token) if 0 <= token < host.size else host.nowhere
            if place == host.nowhere:
                break
        found[i] = place != host.nowhere and host.ends(place)
    return ops.to_device(found, dev.arrays.mask_of)


def allowed_tokens(
    ops: Backend, dev: OnDemandTable, state: State, width: int, remaining: Array | None = None
) -> tuple[Array, Array]:
    """Return the first `width` tokens that each state allows, and EOS, as of a table."""
    words = bitmask(ops, dev, state, remaining)
    bits = ops.unpack(words & dev.arrays.but_eos, dev.vocab_size)
    place = ops.arange(dev.vocab_size, like=state.node)
    # the first of them are the largest of these; in 32 bits they are exact for 16 million tokens
    order, token = ops.top_k(ops.where(bits, place * -1.0, -float("inf")), width)
    allowed = order > -float("inf")
    token = ops.integers(token, state.node)
    if dev.eos is not None:
        token = ops.concatenate([token, token[:, :1] * 0 + dev.eos], 1)
        allowed = ops.concatenate([allowed, accepting(ops, dev, state)[:, None]], 1)
    return ops.where(allowed, token, 0), allowed
