"""Gathers from a table: edges, tokens, targets and bases of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from .table import TorchTable


def unsigned(array: Tensor, largest: int) -> Tensor:
    """Return int64 values of an array that holds unsigned numbers up to `largest` in a signed type."""
    out = array.long()
    bits = 8 * array.element_size()
    return out & ((1 << bits) - 1) if array.dtype != torch.uint8 and largest >> (bits - 1) else out


def is_narrow(dev: TorchTable) -> bool:
    """Return whether a table has fewer than 2^31 entries, as Triton kernels take it."""
    return int(dev.row_start.element_size()) == 4


def first_edge(dev: TorchTable, node: Tensor) -> Tensor:
    """Return the first edge of each state; a state ends where the next one starts."""
    row: Tensor = dev.row_start.take(node.clamp(max=dev.num_rows))
    return row + (node - dev.num_rows).clamp(min=0)


def token_of(dev: TorchTable, edge: Tensor) -> Tensor:
    """Return the token of each edge."""
    return unsigned(dev.edge_token.take(edge), dev.vocab_size + 1)


def first_edges(dev: TorchTable, node: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first `width` edges of each state, their tokens, and which of them are allowed: (n, width)."""
    bounds = first_edge(dev, torch.cat([node, node + 1])).view(2, -1, 1)
    edge = bounds[0] + torch.arange(width, device=node.device)
    token = token_of(dev, edge)
    return edge, token, (edge < bounds[1]) & (token < dev.vocab_size)


def target_of(dev: TorchTable, edge: Tensor) -> Tensor:
    """Return the state each edge leads to."""
    target = dev.edge_target.take(edge.clamp(max=max(dev.num_edges - 1, 0))).long()
    return torch.where(edge < dev.num_edges, target, edge + (dev.num_rows - dev.num_edges + 1))


def base_of(dev: TorchTable, node: Tensor) -> Tensor:
    """Return the base of each state; the last, which allows nothing, where it has none."""
    base: Tensor = dev.base_row.take(node.clamp(max=dev.base_row.shape[0] - 1))
    return base.long()


def find_edge(dev: TorchTable, node: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edge of each state (n,) of a trie that carries a token (n,), and whether there is one."""
    inside = (token >= 0) & (token < dev.vocab_size)
    token = token.clamp(0, dev.vocab_size - 1)
    low, last = first_edge(dev, node), first_edge(dev, node + 1)
    low, found = find_token(dev.edge_token, dev.vocab_size + 1, low, last, token, dev.sparse_width)
    if dev.has_masks:
        base = base_of(dev, node)
        masked = base < dev.masks.shape[0] - 1
        byte = dev.masks.take(base * dev.masks.shape[1] + (token >> 3))
        low = torch.where(masked, first_edge(dev, node) + rank_of(dev, node, token), low)
        found = torch.where(masked, ((byte >> (token & 7)) & 1).bool(), found)
    return low, found & inside


def rank_of(dev: TorchTable, node: Tensor, token: Tensor) -> Tensor:
    """Return how many bits of each state's mask (n,) are set before a token's (n,): its edges before that one.

    A state without a mask gets 0, the rank of its only edge where this is asked.
    """
    at = base_of(dev, node) * dev.masks.shape[1] + (token >> 3)
    inside = dev.byte_rank.take((dev.masks.take(at).long() << 3) + (token & 7))
    return inside + unsigned(dev.rank.take(at), dev.vocab_size)


def find_token(
    tokens: Tensor, largest: int, low: Tensor, last: Tensor, token: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Return where a token (n,) stands among the sorted tokens[low:last] of at most `width`, and whether it does."""
    high = last
    for _ in range(width.bit_length()):
        middle = (low + high) >> 1
        below = unsigned(tokens.take(middle), largest) < token
        searching = low < high
        low = torch.where(searching & below, middle + 1, low)
        high = torch.where(searching & ~below, middle, high)
    return low, (low < last) & (unsigned(tokens.take(low), largest) == token)


def class_target(dev: TorchTable, node: Tensor, base: Tensor, name: Tensor) -> Tensor:
    """Return where each state leads by a token of its base that has this class."""
    code = dev.base_target.take(dev.base_start.take(base).long() + name).long()
    target: Tensor = (code >> 1) + (code & 1) * node
    return target.clamp(0, dev.dead)


def target_in_base(dev: TorchTable, node: Tensor, base: Tensor, token: Tensor) -> Tensor:
    """Return where a token (n,) of its base's mask leads from each state (n,)."""
    classes = dev.base_classes.take(base).long()
    low, last = dev.class_start.take(classes).long(), dev.class_start.take(classes + 1).long()
    at, found = find_token(dev.class_token, dev.vocab_size, low, last, token, dev.class_width)
    return class_target(dev, node, base, torch.where(found, dev.class_id.take(at), 0))


def step(dev: TorchTable, node: Tensor, token: Tensor) -> Tensor:
    """Return where a token (n,) leads from each state (n,) of a graph; the dead state if nowhere, and by EOS."""
    inside = (token >= 0) & (token < dev.vocab_size)
    token = token.clamp(0, dev.vocab_size - 1)
    edge, own = find_token(
        dev.edge_token, dev.vocab_size + 1, first_edge(dev, node), first_edge(dev, node + 1), token, dev.sparse_width
    )
    following = torch.where(own, dev.edge_target.take(edge.clamp(max=dev.edge_target.shape[0] - 1)).long(), dev.dead)
    if dev.has_masks:
        base = base_of(dev, node)
        byte = dev.masks.take(dev.base_mask.take(base).long() * dev.masks.shape[1] + (token >> 3))
        target = target_in_base(dev, node, base, token)
        following = torch.where(((byte >> (token & 7)) & 1).bool() & ~own, target, following)
    return torch.where(inside, following, dev.dead)


def in_mask(dev: TorchTable, base: Tensor, token: Tensor) -> Tensor:
    """Return whether tokens (n, k) are in the masks of bases (n,)."""
    row = dev.base_mask.take(base).long()[:, None] * dev.masks.shape[1]
    byte: Tensor = dev.masks.take(row + (token >> 3))
    return ((byte >> (token & 7)) & 1).bool()
