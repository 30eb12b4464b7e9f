"""A table that is read on demand as a kind of constraint, written once for all libraries of arrays.

Operations that only ask what is allowed read arrays on the device and need no host. `advance`, `candidates` and
`select` read states and tokens on the host, follow them there as a matcher does, and write all new rows at once before
they return.


"""

from __future__ import annotations

from typing import cast

import numpy as np

from .backend import Array, Backend, Offer
from .checks import check_sids, check_tokens
from .cursor import Cursor
from .device_table import Candidates, Selection, State
from .on_demand import OnDemandTable, ReachedArrays

# ------------------------------------------------------------------------------------------------------ checks


def _current(ops: Backend, dev: OnDemandTable, *given: Array) -> ReachedArrays:
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
            "max_tokens be generous, and look at `valid`"
        )


# ------------------------------------------------------------------------------------------------ the kind


class OnDemandCursor(Cursor):
    """A table that is read as texts reach its states."""

    def anchor(self, dev: OnDemandTable) -> Array:
        return dev.arrays.mask_of

    def start(self, dev: OnDemandTable, batch: int) -> State:
        return State(self.ops.zeros((batch,), like=dev.arrays.mask_of) + dev.start_row)

    def accepting(self, dev: OnDemandTable, state: State) -> Array:
        return _of_rows(self.ops, _current(self.ops, dev, state.node).may_end, state.node)

    def distance(self, dev: OnDemandTable, state: State) -> Array:
        """Raise ValueError: an on-demand table does not know its distances to an end."""
        raise ValueError(
            "how many tokens an end is away is not known of a table that is read on demand: leave max_tokens out"
        )

    def mask_words(self, dev: OnDemandTable, state: State, remaining: Array | None) -> Array:
        _check_budget(remaining)
        arrays = _current(self.ops, dev, state.node)
        return self.ops.gather(arrays.masks, _of_rows(self.ops, arrays.mask_of, state.node))

    def masked(self, dev: OnDemandTable, x: Array, state: State, remaining: Array | None = None) -> Array:
        return self.ops.keep_packed(x, self.mask_words(dev, state, remaining), dev.vocab_size)

    def mask_in_place(self, dev: OnDemandTable, x: Array, state: State, remaining: Array | None) -> Array:
        return self.ops.keep_packed(x, self.mask_words(dev, state, remaining), dev.vocab_size, True)

    def offers(self, dev: OnDemandTable, x: Array, state: State, level: int, normalized: bool) -> Offer:
        words, size = self.mask_words(dev, state, None), dev.vocab_size
        return Offer(self.ops.keep_packed(x, words & dev.arrays.but_eos, size)[:, :size], None)

    def follow(self, dev: OnDemandTable, state: State, tokens: Array, level: int | None, alive: Array | None) -> State:
        """Return where tokens lead. Reads states and tokens on the host, once. Raises BudgetError."""
        ops, width = self.ops, tokens.shape[1]
        nodes, chosen = state.node, tokens if alive is None else ops.where(alive, tokens, -1)
        if width > 1:
            nodes = ops.gather(nodes, ops.arange(tokens.shape[0] * width, like=nodes) // width)
        both = ops.to_host(ops.concatenate([nodes, chosen.reshape(-1)], 0))  # one read
        count = nodes.shape[0]
        rows = ops.to_device(dev.rows.follow(both[:count], both[count:]), dev.rows.arrays.mask_of)
        return State(rows.reshape(tokens.shape))

    def advance(self, dev: OnDemandTable, state: State, tokens: Array) -> State:
        _check_known(self.ops, "advance", state.node, tokens)
        return cast(State, super().advance(dev, state, tokens))

    def candidates(
        self, dev: OnDemandTable, logits: Array, state: State, width: int, level: int | None = None
    ) -> Candidates:
        """Return what `Cursor.candidates` does. Each is followed, so that a mask is made for what is new."""
        _check_known(self.ops, "candidates", state.node, logits)
        return super().candidates(dev, logits, state, width)

    def select(
        self,
        dev: OnDemandTable,
        logits: Array,
        state: State,
        scores: Array,
        beams: int,
        level: int,
        renormalize: bool = False,
    ) -> Selection:
        _check_known(self.ops, "select", state.node, logits, scores)
        return super().select(dev, logits, state, scores, beams, level, renormalize)

    def first_offers(
        self, dev: OnDemandTable, state: State, width: int, remaining: Array | None
    ) -> tuple[Array, Array]:
        ops = self.ops
        words = self.mask_words(dev, state, remaining)
        bits = ops.unpack(words & dev.arrays.but_eos, dev.vocab_size)
        place = ops.arange(dev.vocab_size, like=state.node)
        # the first of them are the largest of these; in 32 bits they are exact for 16 million tokens
        order, token = ops.top_k(ops.where(bits, place * -1.0, -float("inf")), width)
        allowed = order > -float("inf")
        return ops.integers(token, state.node), allowed

    def contains(self, dev: OnDemandTable, sids: Array) -> Array:
        """Return whether each row of sids (N, L) is in the set: bool (N,). It is read on the host, and adds no rows."""
        ops = self.ops
        check_sids(sids.shape)
        check_tokens(sids.shape[0], sids.shape[:1], ops.is_integral(sids), sids.dtype)
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
