"""The best continuations of rows and of beams."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from ..device_table import AnyState, Candidates, DeviceTable, Selection, State, check_logits, check_rows
from ..dispatch import by_kind
from ..end_in_order import with_end
from . import arrays
from .arrays import gather, log_softmax, logsumexp, repeated_rows, take_inside, top_k, widen
from .edges import first_edges, ranked_edge, target_of, token_of
from .masks import mask_logits, unfold
from .states import accepting, advance, check_state_of, follow_token, map_state, only_where
from .tpu_layout import TpuTable


def draw(*_: Any) -> None:
    """Return None: drawing takes array operations, which XLA fuses."""


@by_kind(arrays)
def candidates(dev: DeviceTable, logits: Array, state: AnyState, width: int, level: int | None = None) -> Candidates:
    """Return the `width` best allowed continuations of each row, EOS among them, best first.

    Of several ends it is `eos` that is among them, with the probability of all ends together.
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
        _, token, allowed = first_edges(dev, state.node, shape.width)
        gathered = take_inside(log_probs, jnp.minimum(token, dev.vocab_size - 1))
        scores = jnp.where(allowed, gathered, -jnp.inf)
        if dev.eos is not None:
            last = jnp.where(accepting(dev, state), log_probs[:, dev.eos], -jnp.inf)
            scores, token = with_end(arrays, scores, token, last, dev.eos)
    best, at = top_k(jnp.where(jnp.isnan(scores), -jnp.inf, scores), width)
    tokens = at if token is None else take_inside(token, at)
    alive = best > -jnp.inf
    tokens = jnp.where(alive, tokens, 0)
    rows = map_state(lambda x: repeated_rows(x, width), state)
    reached = only_where(dev, alive.reshape(-1), advance(dev, rows, tokens.reshape(-1)))
    return Candidates(best, tokens, map_state(lambda x: x.reshape(*tokens.shape, *x.shape[1:]), reached))


@by_kind(arrays)
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
    if isinstance(dev, TpuTable):
        from . import tpu_selection  # which imports Pallas: others need not wait for that

        check_logits(dev.vocab_size, logits.shape)
        check_rows(logits.shape[0], state.node.shape)
        if tpu_selection.takes(dev, logits, level):
            return tpu_selection.select(dev, logits, state, scores, beams, level, renormalise)
    logits = widen(logits)
    node = state.node
    if dev is None or not renormalise:
        log_z = logsumexp(logits)
        sound = jnp.isfinite(log_z)
    if dev is None:
        width = logits.shape[1]
        x = jnp.where(sound[:, None], logits - log_z[:, None], -jnp.inf)
        best, at = top_k((x.reshape(batch, m, width) + scores[:, :, None]).reshape(batch, -1), beams)
        unused = jnp.zeros(batch * beams, node.dtype)
        return Selection(best, at // width, jnp.where(best > -jnp.inf, at % width, 0), State(unused))
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], node.shape)
    check_state_of(dev, state)
    shape = dev.level(level)
    # all states of level 0 are the root, whose edges need no look-up and no ranking in its mask
    dense = shape.dense and (level > 0 or not dev.is_trie)
    if dense:
        width = dev.sparse_width if not dev.is_trie else 1 if shape.tails else 0
        x = jnp.where(unfold(dev, state, dev.has_masks, width), logits[:, : dev.vocab_size], -jnp.inf)
    else:
        if level == 0:
            edge = jnp.broadcast_to(jnp.arange(shape.width, dtype=node.dtype), (batch * m, shape.width))
            token = token_of(dev, edge)
            allowed = (node == 0)[:, None]
        elif shape.rows:
            edge, token, allowed = first_edges(dev, node, shape.width)
        else:
            edge = (node + (dev.num_edges - dev.num_rows))[:, None]
            token = token_of(dev, edge)
            allowed = token < dev.vocab_size
        x = take_inside(logits, jnp.minimum(token, dev.vocab_size - 1))
        x = jnp.where(allowed, x, -jnp.inf)
    if renormalise:
        log_z = logsumexp(x)
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
                edges = ranked_edge(dev, state.node, tokens.reshape(-1))[0]
        else:
            tokens = take_inside(token.reshape(batch, -1), at)
            edges = take_inside(edge.reshape(batch, -1), at).reshape(-1)
    alive = best > -jnp.inf
    reached = State(target_of(dev, edges)) if dev.is_trie else follow_token(dev, state, tokens.reshape(-1))
    reached = reached._replace(node=reached.node.astype(node.dtype))
    return Selection(best, parents, jnp.where(alive, tokens, 0), only_where(dev, alive.reshape(-1), reached))


@by_kind(arrays)
def end_scores(dev: DeviceTable, logits: Array, state: AnyState, renormalise: bool = False) -> Array:
    """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere; `renormalise` as in `select`.

    Of several ends it is the probability that the model ends by any of them.
    """
    check_rows(logits.shape[0], state.node.shape)
    logits = widen(logits)
    log_z = logsumexp(mask_logits(dev, logits, state) if renormalise else logits)
    may_end = accepting(dev, state) & jnp.isfinite(log_z)
    return jnp.where(may_end, logits[:, dev.eos] - log_z, -jnp.inf)
