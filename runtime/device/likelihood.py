"""Log-probabilities of whole sequences under a table, written once for the libraries that have derivatives.

States of all positions are found first, which takes no logits. Then one softmax is over the rows of all positions: of
the allowed logits alone where few are allowed, else of all logits behind a mask.
"""

from __future__ import annotations

from typing import Any, Protocol

from .backend import Array, Backend, Placed, States
from .checks import check_floating, check_logits, check_rows, is_end, not_put
from .static_width import NARROW, edges_of, static_width


class Walker(Protocol):
    """What a likelihood asks of a kind of constraint: a `Cursor` has all of it."""

    ops: Backend

    def start(self, dev: Placed, batch: int) -> Any:
        """Return the state of `batch` sequences with nothing written yet."""

    def walk(self, dev: Placed, state: States, tokens: Array) -> tuple[Any, Array]:
        """Return states before all tokens (B * T,) and nodes after them (B, T); a negative token leaves a state."""

    def allowed_tokens(
        self, dev: Placed, state: States, width: int, remaining: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the first tokens that states allow, and ends, and which of them there are."""

    def mask_logits(self, dev: Placed, logits: Array, state: States, remaining: Array | None = None) -> Array:
        """Return logits with -inf at every token that is not allowed."""


def log_probs(
    cursor: Walker,
    dev: Placed,
    logits: Array,
    tokens: Array,
    state: States,
    remaining: Array | None,
    renormalize: bool,
) -> Array:
    """Return the log-probability of each token (B, T), as `log_probs` of the libraries says."""
    check_likelihood(dev, logits, tokens, state, remaining, renormalize)
    ops, (batch, length) = cursor.ops, tokens.shape
    state = cursor.start(dev, batch) if state is None else state
    tokens = ops.integers(tokens, state.node)
    written = tokens >= 0
    if dev.ends:
        ends = ops.where(is_end(dev, tokens), 1, 0)
        written = written & (ends.cumsum(-1) == ends)  # up to the first end
    before, after = cursor.walk(dev, state, ops.where(written, tokens, -1))
    follows = (written & (after != dev.dead)).reshape(-1)
    token = ops.where(follows, tokens.reshape(-1), 0)[:, None]
    rows = logits.reshape(batch * length, -1)
    x, place = rows, token
    if renormalize:
        room = None if remaining is None else _room(ops, remaining, written)
        width = static_width(dev)
        if width is not None and NARROW * width <= rows.shape[1]:
            offered, allowed = cursor.allowed_tokens(dev, before, edges_of(dev, width), room)
            x = ops.where(allowed, ops.take(rows, offered), -float("inf"))
            here = allowed & (offered == token)
            follows = follows & here.any(-1)
            place = ops.where(here, 1, 0).argmax(-1)[:, None]
        else:
            x = cursor.mask_logits(dev, rows, before, room)
    highest = ops.take(x, x.argmax(-1)[:, None])[:, 0]  # NaN where there is one
    follows = follows & (highest > -float("inf")) & (highest < float("inf"))
    x = ops.where(follows[:, None], x, 0.0)  # no derivative passes through a row that has no distribution
    found = ops.take(ops.log_softmax(x), place)[:, 0]
    none = ops.where(written.reshape(-1), -float("inf"), 0.0)
    scores: Array = ops.where(follows, found, none)
    return scores.reshape(batch, length)


def _room(ops: Backend, remaining: Array, written: Array) -> Array:
    """Return how many tokens may still be written at each position (B * T,), of `remaining` (B,) at the first."""
    count = ops.where(written, 1, 0)
    return (remaining[:, None] - (count.cumsum(-1) - count)).reshape(-1)


def check_likelihood(
    dev: Placed, logits: Array, tokens: Array, state: States, remaining: Array | None, renormalize: bool
) -> None:
    """Raise unless there is one row of logits (B, T, V) and one integer for each token (B, T).

    Raises TypeError, ValueError, VocabularyMismatchError.
    """
    if not hasattr(dev, "min_length"):
        raise not_put(dev)
    if len(logits.shape) != 3 or len(tokens.shape) != 2 or tuple(logits.shape[:2]) != tuple(tokens.shape):
        raise ValueError(
            f"logits {tuple(logits.shape)} and tokens {tuple(tokens.shape)} must have shapes (B, T, V) and (B, T): "
            "logits[:, t] are those that tokens[:, t] was chosen from"
        )
    if tokens.shape[1] < 1:
        raise ValueError("tokens have no positions: there must be at least one")
    check_floating("float" in str(logits.dtype) and "float8" not in str(logits.dtype), logits.dtype)
    if "int" not in str(tokens.dtype):
        raise TypeError(f"tokens must be integers, not {tokens.dtype}")
    check_logits(dev.vocab_size, tuple(logits.shape[1:]))
    if state is not None:
        check_rows(tokens.shape[0], state.node.shape)
    if remaining is not None and not renormalize:
        raise ValueError("remaining says what is allowed, which the full softmax does not depend on: leave one out")
    if remaining is not None and tuple(remaining.shape) != (tokens.shape[0],):
        raise ValueError(
            f"remaining has shape {tuple(remaining.shape)}, there are {tokens.shape[0]} sequences: "
            "one number of tokens a sequence is needed"
        )
