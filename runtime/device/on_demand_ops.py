"""Operations on a table that is read on demand, written once against the array functions of an operations module.

Operations that only ask what is allowed read arrays on the device and need no host. `advance`, `candidates` and
`select` read states and tokens on the host, follow them there as a matcher does, and write all new rows at once before
they return.

`dispatch.by_kind` puts the operations of this file behind those of the same names on tables.
"""

from __future__ import annotations

import numpy as np

from .backend import Array, Backend, Cache
from .device_table import (
    Candidates,
    Selection,
    State,
    check_floating,
    check_logits,
    check_rows,
    check_sids,
    check_tokens,
)
from .on_demand import OnDemandTable, ReachedArrays

# ------------------------------------------------------------------------------------------------------ checks


def _is(x: Array, kind: str) -> bool:
    """Return whether an array is of a kind, "int" or "float", whatever library it is of."""
    return kind in str(x.dtype)


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


def _check(dev: OnDemandTable, logits: Array, state: State) -> None:
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
    """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere; `renormalise` as in `select`.

    Of several ends it is the probability that the model ends by any of them.
    """
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
