"""Decoding that begins where a sequence stands already, such as behind a code that a user has chosen."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..device.backend import Array, Operations, Placed
from ..device.checks import check_rows, check_sids


class Continuation(NamedTuple):
    """A table on a device, and where each input's sequence stands in it: decoders take it in the table's place.

    What a decoder then returns, scores and lengths among it, is of the tokens that come next, and its `max_tokens`
    counts these alone; final states are those of whole sequences. The model is fed `start_token` first all the same:
    what it has read before is the caller's, in the cache.
    """

    dev: Placed
    state: Any  # (B,)
    depth: int  # how many tokens all of them have; of a trie or a matrix, no state may have another number


def continue_from(dev: Placed, tokens: Array, *, ops: Operations) -> Continuation:
    """Return a table with each input's sequence behind tokens (B, P), from `ops.to_device`.

    A sequence that cannot begin so has no results: they are flagged in `valid`.
    """
    check_sids(tokens.shape)
    state = ops.start(dev, tokens.shape[0])
    for t in range(tokens.shape[1]):
        state = ops.advance(dev, state, tokens[:, t])
    return Continuation(dev, state, tokens.shape[1])


def start_of(ops: Operations, dev: Placed, batch: int) -> Continuation:
    """Return a table and where each of `batch` inputs starts in it. Raises ValueError for as many others."""
    if isinstance(dev, Continuation):
        check_rows(batch, dev.state.node.shape)
        return dev
    return Continuation(dev, ops.start(dev, batch), 0)


def check_room(dev: Placed, depth: int, max_tokens: int) -> None:
    """Raise ValueError if nothing in a table can be complete within max_tokens tokens more than `depth`."""
    if max_tokens < dev.min_length - depth:
        raise ValueError(
            f"max_tokens={max_tokens} is less than the shortest sequence, {dev.min_length - depth} tokens: "
            "nothing could be complete"
        )


def table_of(dev: Placed) -> tuple[Any, int]:
    """Return the table itself, and how many tokens sequences have already."""
    return (dev.dev, dev.depth) if isinstance(dev, Continuation) else (dev, 0)
