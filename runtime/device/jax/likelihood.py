"""Log-probabilities of whole sequences, with derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import likelihood
from ..backend import Placed
from ..device_table import AnyState
from ..on_demand import OnDemandTable
from . import arrays
from .masks import allowed_tokens, mask_logits
from .states import advance, start


def log_probs(
    dev: Placed,
    logits: Array,
    tokens: Array,
    state: AnyState | None = None,
    *,
    remaining: Array | None = None,
    renormalise: bool = True,
    by_position: bool = False,
) -> Array:
    """Return the log-probability of each sequence (B,), as `numpy_ops.log_probs` says; `jax.grad` derives it by logits.

    Beside the logits it takes one copy of them, or where a state allows at most a quarter of the vocabulary, and that
    is known before, one of these alone.
    """
    by_token: Array = likelihood.log_probs(arrays, _STEPS, dev, logits, tokens, state, remaining, renormalise)
    return by_token if by_position else by_token.sum(-1)


def _walk(dev: Placed, state: AnyState, tokens: Array) -> tuple[AnyState, Array]:
    """Return states before all tokens (B * T,) and nodes after them (B, T); a negative token leaves a state."""
    if isinstance(dev, OnDemandTable):  # followed on the host
        before, after = [], []
        for token in tokens.T:
            before.append(state)
            state = _after(dev, state, token)
            after.append(state.node)
        stacked, nodes = jax.tree.map(lambda *parts: jnp.stack(parts), *before), jnp.stack(after)
    else:
        stacked, nodes = _scan(dev, state, tokens)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:]), stacked), nodes.T


@jax.jit  # for calls outside of a compiled function: a loop by itself would be compiled at each of them
def _scan(dev: Placed, state: AnyState, tokens: Array) -> tuple[AnyState, Array]:
    """Return states before tokens, (T, B, ..), and nodes after them (T, B)."""

    def one(state: AnyState, token: Array) -> tuple[AnyState, tuple[AnyState, Array]]:
        following = _after(dev, state, token)
        return following, (state, following.node)

    found: tuple[AnyState, Array] = lax.scan(one, state, tokens.T)[1]
    return found


def _after(dev: Placed, state: AnyState, token: Array) -> AnyState:
    """Return the state after tokens (B,); a negative token leaves it."""
    stays = token < 0

    def chosen(old: Array, new: Array) -> Array:
        return jnp.where(stays.reshape(-1, *(1 for _ in new.shape[1:])), old, new)

    after: AnyState = jax.tree.map(chosen, state, advance(dev, state, token))
    return after


_STEPS = likelihood.Steps(start, _walk, allowed_tokens, mask_logits)
