"""Gathers from a table: edges, tokens, targets and bases of rows."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from ..device_table import DeviceTable
from .arrays import gathered


def first_edge(dev: DeviceTable, node: Array) -> Array:
    """Return the first edge of each state; a state ends where the next one starts."""
    return gathered(dev.row_start, jnp.minimum(node, dev.num_rows)) + jnp.maximum(node - dev.num_rows, 0)


def token_of(dev: DeviceTable, edge: Array) -> Array:
    """Return the token of each edge."""
    return gathered(dev.edge_token, edge).astype(jnp.int32)


def first_edges(dev: DeviceTable, node: Array, width: int) -> tuple[Array, Array, Array]:
    """Return the first `width` edges of each state, their tokens, and which of them are allowed: (n, width)."""
    edge = first_edge(dev, node)[:, None] + jnp.arange(width, dtype=node.dtype)
    token = token_of(dev, edge)
    return edge, token, (edge < first_edge(dev, node + 1)[:, None]) & (token < dev.vocab_size)


def target_of(dev: DeviceTable, edge: Array) -> Array:
    """Return the state each edge leads to."""
    target = gathered(dev.edge_target, jnp.minimum(edge, max(dev.num_edges - 1, 0)))
    return jnp.where(edge < dev.num_edges, target, edge + (dev.num_rows - dev.num_edges + 1))


def base_of(dev: DeviceTable, node: Array) -> Array:
    """Return the base of each state; the last, which allows nothing, where it has none."""
    return gathered(dev.base_row, jnp.minimum(node, dev.base_row.shape[0] - 1))


def find_edge(dev: DeviceTable, node: Array, token: Array) -> tuple[Array, Array]:
    """Return the edge of each state (n,) of a trie that carries a token (n,), and whether there is one."""
    inside = (token >= 0) & (token < dev.vocab_size)
    token = jnp.clip(token, 0, dev.vocab_size - 1).astype(jnp.int32)
    low, found = find_token(dev.edge_token, first_edge(dev, node), first_edge(dev, node + 1), token, dev.sparse_width)
    if dev.has_masks:
        ranked, masked, present = ranked_edge(dev, node, token)
        low, found = jnp.where(masked, ranked, low), jnp.where(masked, present, found)
    return low, found & inside


def find_token(tokens: Array, low: Array, last: Array, token: Array, width: int) -> tuple[Array, Array]:
    """Return where a token (n,) stands among the sorted tokens[low:last] of at most `width`, and whether it does."""
    high = last
    for _ in range(width.bit_length()):
        middle = low + ((high - low) >> 1)
        below = gathered(tokens, middle).astype(jnp.int32) < token
        searching = low < high
        low, high = jnp.where(searching & below, middle + 1, low), jnp.where(searching & ~below, middle, high)
    return low, (low < last) & (gathered(tokens, low).astype(jnp.int32) == token)


def class_target(dev: DeviceTable, node: Array, base: Array, name: Array) -> Array:
    """Return where each state leads by a token of its base that has this class."""
    code = gathered(dev.base_target, gathered(dev.base_start, base) + name)
    return jnp.clip((code >> 1) + (code & 1) * node, 0, dev.dead)


def target_in_base(dev: DeviceTable, node: Array, base: Array, token: Array) -> Array:
    """Return where a token (n,) of its base's mask leads from each state (n,)."""
    classes = gathered(dev.base_classes, base)
    low, last = gathered(dev.class_start, classes), gathered(dev.class_start, classes + 1)
    at, found = find_token(dev.class_token, low, last, token, dev.class_width)
    return class_target(dev, node, base, jnp.where(found, gathered(dev.class_id, at), 0))


def step(dev: DeviceTable, node: Array, token: Array) -> Array:
    """Return where a token (n,) leads from each state (n,) of a graph; the dead state if nowhere, and by EOS."""
    inside = (token >= 0) & (token < dev.vocab_size)
    token = jnp.clip(token, 0, dev.vocab_size - 1).astype(jnp.int32)
    edge, own = find_token(dev.edge_token, first_edge(dev, node), first_edge(dev, node + 1), token, dev.sparse_width)
    following = jnp.where(own, gathered(dev.edge_target, jnp.minimum(edge, dev.edge_target.shape[0] - 1)), dev.dead)
    if dev.has_masks:
        base = base_of(dev, node)
        byte = gathered(dev.masks, gathered(dev.base_mask, base), token >> 3)
        target = target_in_base(dev, node, base, token)
        allowed = ((byte >> (token & 7).astype(jnp.uint8)) & 1).astype(bool)
        following = jnp.where(allowed & ~own, target, following)
    return jnp.where(inside, following, dev.dead)


def ranked_edge(dev: DeviceTable, node: Array, token: Array) -> tuple[Array, Array, Array]:
    """Return the edge of each state (n,) for a token (n,), whether it has a mask, and whether the token is in it.

    The bits set before a token's own are the edges before its own. A state without a mask gets its first edge.
    """
    base = base_of(dev, node)
    byte = gathered(dev.masks, base, token >> 3).astype(jnp.uint32)
    bit = (token & 7).astype(jnp.uint32)
    before = lax.population_count(byte & ((jnp.uint32(1) << bit) - 1)).astype(node.dtype)
    before = before + gathered(dev.rank, base, token >> 3).astype(node.dtype)
    return first_edge(dev, node) + before, base < dev.masks.shape[0] - 1, ((byte >> bit) & 1).astype(bool)


def in_mask(dev: DeviceTable, base: Array, token: Array) -> Array:
    """Return whether tokens (n, k) are in the masks of bases (n,)."""
    byte = gathered(dev.masks, gathered(dev.base_mask, base)[:, None], token >> 3)
    return ((byte >> (token & 7).astype(jnp.uint8)) & 1).astype(bool)
