"""Operations on tables with several end tokens, written once for all libraries around those that know of one.

The arrays of a table know one end, `eos`. What an operation says of it is copied to the other ends, and these are taken
as `eos` on the way in. Where continuations are ranked, to end is one continuation: `eos` has the probability of all
ends together, and no other end is ranked beside it, as it would be the same sequence once more.

`dispatch.by_kind` puts these around operations. Tables with one end, or none, never come here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .backend import Array, Backend, Placed
from .device_table import Candidates, Selection, check_floating, check_logits

Operation = Callable[..., Any]


def is_end(dev: Placed, tokens: Array) -> Array:
    """Return which tokens, of any shape, are ends of a table that has some."""
    found = tokens == dev.eos
    for end in dev.other_ends:
        found = found | (tokens == end)
    return found


def _columns(ops: Backend, at: list[int], like: Array) -> Array:
    """Return column numbers for each row: (B, k) of integers (B,)."""
    zero = ops.zeros((like.shape[0], 1), like=like)
    return ops.concatenate([zero + column for column in at], 1) if len(at) > 1 else zero + at[0]


def _merged(ops: Backend, dev: Placed, logits: Array, like: Array) -> Array:
    """Return logits (B, V') in at least 32 bits in which `eos` has the weight of all ends, and others have none."""
    check_floating("float" in str(logits.dtype), logits.dtype)
    check_logits(dev.vocab_size, tuple(logits.shape))
    x = logits + ops.zeros((1, 1), like=logits)
    ends = ops.concatenate([x[:, end : end + 1] for end in dev.ends], 1)
    values = ops.concatenate([ops.logsumexp(ends)[:, None], ops.lowest(ends[:, 1:])], 1)
    return ops.scatter(x, _columns(ops, list(dev.ends), like), values)


def advance(ops: Backend, accepting: Operation, operation: Operation, dev: Placed, state: Any, tokens: Array) -> Any:
    """Return the state after one more token (B,) each, an end among them leading where `eos` does."""
    if "int" in str(tokens.dtype):  # others are refused
        tokens = ops.integers(tokens, state.node)  # a narrow type would wrap what it is compared with
        tokens = ops.where(is_end(dev, tokens), dev.eos, tokens)
    return operation(dev, state, tokens)


def bitmask(
    ops: Backend, accepting: Operation, operation: Operation, dev: Placed, state: Any, remaining: Array | None = None
) -> Array:
    """Return packed masks (B, ceil(V / 32)) with the bits of all ends where that of `eos` is set."""
    words = operation(dev, state, remaining)
    may_end = (words[:, dev.eos >> 5] >> (dev.eos & 31)) & 1
    found: dict[int, Array] = {}
    for end in dev.other_ends:
        word = end >> 5
        found[word] = found.get(word, words[:, word]) | (may_end << (end & 31))
    values = [value[:, None] for value in found.values()]
    value = ops.concatenate(values, 1) if len(values) > 1 else values[0]
    return ops.scatter(words, _columns(ops, list(found), state.node), value)


def mask_logits(
    ops: Backend,
    accepting: Operation,
    operation: Operation,
    dev: Placed,
    logits: Array,
    state: Any,
    remaining: Array | None = None,
) -> Array:
    """Return logits (B, V) with -inf at every token that is not allowed, in place if the operation masks in place."""
    check_logits(dev.vocab_size, tuple(logits.shape))
    may_end = accepting(dev, state)[:, None]
    values = [ops.where(may_end, logits[:, end : end + 1], -float("inf")) for end in dev.other_ends]
    value = ops.concatenate(values, 1) if len(values) > 1 else values[0]
    masked = operation(dev, logits, state, remaining)
    return ops.scatter(masked, _columns(ops, list(dev.other_ends), state.node), value)


def allowed_tokens(
    ops: Backend,
    accepting: Operation,
    operation: Operation,
    dev: Placed,
    state: Any,
    width: int,
    remaining: Array | None = None,
) -> tuple[Array, Array]:
    """Return the first `width` tokens that each state allows, `eos`, and the other ends: (B, width + ends)."""
    tokens, allowed = operation(dev, state, width, remaining)
    may_end, zero = allowed[:, -1:], tokens[:, -1:] * 0
    others = [ops.where(may_end, zero + end, zero) for end in dev.other_ends]
    return ops.concatenate([tokens, *others], 1), ops.concatenate([allowed, *[may_end] * len(others)], 1)


def candidates(
    ops: Backend,
    accepting: Operation,
    operation: Operation,
    dev: Placed,
    logits: Array,
    state: Any,
    width: int,
    level: int | None = None,
) -> Candidates:
    """Return the `width` best continuations of each row; `eos`, for all ends, has the sum of their probabilities."""
    found: Candidates = operation(dev, _merged(ops, dev, logits, state.node), state, width, level)
    return found


def select(
    ops: Backend,
    accepting: Operation,
    operation: Operation,
    dev: Placed,
    logits: Array,
    state: Any,
    scores: Array,
    beams: int,
    level: int,
    renormalise: bool = False,
) -> Selection:
    """Return the `beams` best continuations, ends aside; the mass of what is allowed has that of all ends."""
    found: Selection = operation(dev, _merged(ops, dev, logits, state.node), state, scores, beams, level, renormalise)
    return found


def end_scores(
    ops: Backend,
    accepting: Operation,
    operation: Operation,
    dev: Placed,
    logits: Array,
    state: Any,
    renormalise: bool = False,
) -> Array:
    """Return the log-probability (B,) that the model ends, by any end, where a sequence may; -inf elsewhere."""
    return operation(dev, _merged(ops, dev, logits, state.node), state, renormalise)


def log_mass(ops: Backend, accepting: Operation, operation: Operation, dev: Placed, logits: Array, state: Any) -> Array:
    """Return log P(allowed) (B,), all ends counted."""
    return operation(dev, _merged(ops, dev, logits, state.node), state)


OPERATIONS: dict[str, Operation] = {
    "advance": advance,
    "bitmask": bitmask,
    "mask_logits": mask_logits,
    "mask_logits_": mask_logits,
    "allowed_tokens": allowed_tokens,
    "candidates": candidates,
    "select": select,
    "end_scores": end_scores,
    "log_mass": log_mass,
}
"""By the names of the operations that they go around. Others do not depend on how many ends there are."""
