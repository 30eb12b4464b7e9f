"""Operations on a table in numpy: the specification the other backends agree with, one row at a time.

Every function takes the table first. A state is a tuple of integer arrays, (B,) each; `start` makes one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..table import TransitionTable
from .device_table import (
    Candidates,
    Selection,
    State,
    check_floating,
    check_logits,
    check_remaining,
    check_rows,
    check_sids,
    check_tokens,
    map_tree,
    unbranched,
)

Array = NDArray[Any]


def put(table: TransitionTable, device: Any = None, *, budgets: bool = False) -> TransitionTable:
    """Return the table itself: in numpy it is used where it is, and distances are at hand.

    budgets: on a device, also copy the distances that `remaining` needs.
    """
    return table


def start(dev: TransitionTable, batch: int) -> State:
    """Return the state of `batch` sequences with nothing written yet."""
    return State(np.zeros(batch, np.int64))


def edges(dev: TransitionTable, node: int) -> dict[int, int]:
    """Return the tokens that one state allows and the state each leads to; EOS included where accepting."""
    rows, size = dev.num_rows, dev.vocab_size
    out: dict[int, int] = {}
    if node < rows:
        if not dev.is_trie and dev.base_row[node] >= 0:
            out = _base_edges(dev, node)
        span = slice(dev.row_start[node], dev.row_start[node + 1])
        out.update(zip(dev.edge_token[span].tolist(), dev.edge_target[span].tolist(), strict=True))
        out = {token: target for token, target in out.items() if target != dev.dead}
    else:
        token = int(dev.edge_token[dev.num_edges + node - rows])
        if token < size:
            out[token] = node + 1
    if dev.eos is not None and dev.is_accepting(node):
        out[dev.eos] = dev.after_eos if node < rows else node
    return out


def _base_edges(dev: TransitionTable, node: int) -> dict[int, int]:
    """Return the tokens that the base of a row allows and the state each leads to from there."""
    base = dev.base_row[node]
    classes = dev.base_classes[base]
    span = slice(dev.class_start[classes], dev.class_start[classes + 1])
    class_of = dict(zip(dev.class_token[span].tolist(), dev.class_id[span].tolist(), strict=True))
    allowed = np.unpackbits(dev.masks[dev.base_mask[base]].astype("<u4").view(np.uint8), bitorder="little")
    out = {}
    for token in np.flatnonzero(allowed).tolist():
        code = int(dev.base_target[dev.base_start[base] + class_of.get(token, 0)])
        out[token] = (code >> 1) + (code & 1) * node
    return out


def accepting(dev: TransitionTable, state: State) -> Array:
    """Return whether each sequence may end where it stands: bool (B,)."""
    return dev.is_accepting(state.node)


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities (B, V) over all columns; NaN throughout a row that has no distribution."""
    with np.errstate(all="ignore"):
        x = logits.astype(np.promote_types(logits.dtype, np.float32))
        shifted = x - x.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def bitmask(dev: TransitionTable, state: State, remaining: Array | None = None) -> Array:
    """Return the tokens allowed in each state, packed: uint32 (B, ceil(V / 32)), token 32 * w + i is bit i of word w.

    remaining: (B,) how many tokens may still be written, EOS aside. Then only tokens are allowed from whose target an
    end can be reached within the others, so that there is always one in reach.
    """
    words = -(-dev.vocab_size // 32)
    if remaining is not None:
        check_remaining(state.node.size, remaining.shape, remaining.dtype.kind in "iu", remaining.dtype, True)
    bits = np.zeros((state.node.size, 32 * words), bool)
    for row, node in enumerate(state.node.tolist()):
        room = None if remaining is None else int(remaining[row]) - 1
        for token, target in edges(dev, node).items():
            bits[row, token] = room is None or token == dev.eos or dev.distance[target] <= room
    return np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def mask_logits(dev: TransitionTable, logits: Array, state: State, remaining: Array | None = None) -> Array:
    """Return logits (B, V) with -inf at every token that is not allowed; what is allowed is left untouched.

    remaining: as for `bitmask`.
    """
    check_floating(logits.dtype.kind == "f", logits.dtype)
    check_logits(dev.vocab_size, logits.shape)
    check_rows(logits.shape[0], state.node.shape)
    bits = np.unpackbits(bitmask(dev, state, remaining).astype("<u4").view(np.uint8), axis=1, bitorder="little")
    out = np.full_like(logits, -np.inf)
    for row in range(logits.shape[0]):
        allowed = np.flatnonzero(bits[row])
        out[row, allowed] = logits[row, allowed]
    return out


def mask_logits_(dev: TransitionTable, logits: Array, state: State, remaining: Array | None = None) -> Array:
    """Mask logits (B, V) as `mask_logits` does, in place, and return them."""
    logits[...] = mask_logits(dev, logits, state, remaining)
    return logits


def candidates(dev: TransitionTable, logits: Array, state: State, width: int, level: int | None = None) -> Candidates:
    """Return the `width` best allowed continuations of each row, EOS among them, best first.

    Scores are log-probabilities under the full softmax. Unused slots score -inf and lead to the dead state. `level`
    is a depth at which all the states must be: other backends are quicker for it, and leave tokens of others out.
    """
    masked = mask_logits(dev, log_softmax(logits), state)
    batch = logits.shape[0]
    scores = np.full((batch, width), -np.inf, masked.dtype)
    tokens = np.zeros((batch, width), np.int64)
    states = np.full((batch, width), dev.dead, np.int64)
    for row, node in enumerate(state.node.tolist()):
        allowed = edges(dev, node)
        order = sorted((t for t in allowed if masked[row, t] > -np.inf), key=lambda t: (-masked[row, t], t))
        for slot, token in enumerate(order[:width]):
            scores[row, slot], tokens[row, slot], states[row, slot] = (
                masked[row, token],
                token,
                allowed[token],
            )
    return Candidates(scores, tokens, State(states))


def select(
    dev: TransitionTable | None,
    logits: Array,
    state: State,
    scores: Array,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations over all beams of each batch element, EOS aside.

    Best first; where no state at this depth branches and m = `beams`, each beam's own one instead, in place.
    logits: (B * m, V). state: (B * m,), all at depth `level`. scores: (B, m) totals so far, to which log-probabilities
    under the full softmax are added; renormalise: under that of the allowed tokens alone. A row of logits that has
    no distribution (NaN, +inf, all -inf) has no continuations. dev None: no constraint.
    """
    batch, m = scores.shape
    in_place = dev is not None and m == beams and unbranched(dev, level)
    out = Selection(
        np.full((batch, beams), -np.inf, scores.dtype),
        np.zeros((batch, beams), np.int64),
        np.zeros((batch, beams), np.int64),
        State(np.full(batch * beams, 0 if dev is None else dev.dead, np.int64)),
    )
    for b in range(batch):
        found = []
        for beam in range(m):
            row = b * m + beam
            following = dict.fromkeys(range(logits.shape[1]), 0) if dev is None else edges(dev, int(state.node[row]))
            log_probs = log_softmax(logits[row])
            if renormalise:
                allowed = list(following)
                log_probs[allowed] = log_softmax(logits[row, allowed]) if allowed else 0
            for token, target in following.items():
                total = scores[b, beam] + log_probs[token]
                if total > -np.inf and (dev is None or token != dev.eos):  # neither impossible nor NaN
                    found.append((total, beam, token, target))
        if in_place:
            slots = [(item[1], item) for item in found]
        else:
            slots = list(enumerate(sorted(found, key=lambda item: -item[0])[:beams]))
        for slot, (total, beam, token, target) in slots:
            out.scores[b, slot], out.parents[b, slot], out.tokens[b, slot] = total, beam, token
            out.state.node[b * beams + slot] = target
    return out._replace(parents=None) if in_place else out


def end_scores(dev: TransitionTable, logits: Array, state: State, renormalise: bool = False) -> Array:
    """Return the log-probability of EOS (B,) where a sequence may end, -inf elsewhere; `renormalise` as in `select`."""
    last = log_softmax(mask_logits(dev, logits, state) if renormalise else logits)[:, dev.eos]
    return np.where(accepting(dev, state) & ~np.isnan(last), last, -np.inf)


def advance(dev: TransitionTable, state: State, tokens: Array) -> State:
    """Return the state after one more token (B,) each; the dead state where it was not allowed."""
    check_tokens(state.node.size, tokens.shape, tokens.dtype.kind in "iu", tokens.dtype)
    pairs = zip(state.node.tolist(), tokens.tolist(), strict=True)
    return State(np.array([edges(dev, node).get(token, dev.dead) for node, token in pairs], np.int64))


def log_mass(dev: TransitionTable, logits: Array, state: State) -> Array:
    """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold."""
    masked = mask_logits(dev, log_softmax(logits), state)
    with np.errstate(all="ignore"):
        return np.asarray(np.logaddexp.reduce(masked, axis=-1))


def contains(dev: TransitionTable, sids: Array) -> Array:
    """Return whether each row of sids (N, L) is in the set: bool (N,)."""
    check_sids(sids.shape)
    state = start(dev, sids.shape[0])
    for t in range(sids.shape[1]):
        state = advance(dev, state, sids[:, t])
    return accepting(dev, state)


# ------------------------------------------------------------------------- array functions for decoders


def top_k(scores: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest of each row (B, n) and where they stand, largest first; k <= n."""
    order = np.argsort(-scores, axis=-1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=-1), order


def take(array: Array, index: Array) -> Array:
    """Return array (B, n) gathered at index (B, k) along the second axis."""
    return np.take_along_axis(array, index, axis=1)


def gather(cache: Any, index: Array) -> Any:
    """Return a tree of arrays gathered at index (n,) along each array's first axis."""
    return map_tree(lambda leaf: leaf[index], cache)


def first_tokens(dev: TransitionTable | None, cache: Any, count: int, token: int) -> Array:
    """Return `count` copies of the token a model is first fed with."""
    return np.full(count, token, np.int64)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros of the type of `like`, in at least 32 bits."""
    return np.zeros(shape, np.promote_types(like.dtype, np.float32) if like.dtype.kind == "f" else like.dtype)


def arange(n: int, like: Array) -> Array:
    """Return 0 .. n - 1, of the type of `like`."""
    return np.arange(n, dtype=like.dtype)


where = np.where
concatenate = np.concatenate
