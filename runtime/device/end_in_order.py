"""The end of a sequence among the other continuations of a state."""

from __future__ import annotations

from .backend import Array, Backend


def with_end(ops: Backend, scores: Array, token: Array, last: Array, end: int) -> tuple[Array, Array]:
    """Return scores and tokens (n, w + 1) with an end of score `last` (n,) where it belongs in the order of tokens.

    Tokens (n, w) ascend where their scores are not -inf: of equal scores the first is chosen, which is then the lowest
    token.
    """
    width = scores.shape[1]
    goes_before = (scores > -float("inf")) & (token < end)
    number = ops.where(goes_before, ops.arange(width, like=token) + 1, 0)
    place = ops.running_max(number)[:, -1:]
    column = ops.arange(width + 1, like=token)
    ends, last = token[:, :1] * 0 + end, last[:, None]

    def inserted(own: Array, others: Array) -> Array:
        before, behind = ops.concatenate([others, own], 1), ops.concatenate([own, others], 1)
        return ops.where(column < place, before, ops.where(column == place, own, behind))

    return inserted(last, scores), inserted(ends, token)
