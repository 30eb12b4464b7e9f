"""A prefix tree of dictionaries in host memory, asked at every step (arXiv 2602.22647, section 5.2, item 2).

The partial beams go to the host, each is walked from the root, and a (B*m, V) mask comes back. Nothing is
kept on the device. This is also what a `prefix_allowed_tokens_fn` does.
"""

import functools
import gc
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..beams import jax_best, torch_best
from .rows import check, node_starts, sorted_columns

_LEAF: dict[int, Any] = {}


@dataclass(frozen=True, eq=False)
class DictTrie:
    """A trie of dictionaries: token -> child."""

    root: dict[int, Any] = field(repr=False)
    vocab_size: int
    nbytes: int = 0

    def mask(self, prefixes: Any) -> np.ndarray[Any, Any]:
        """Return the tokens each prefix may go on with, none after an invalid one: (n, t) -> (n, V) bool."""
        rows = np.asarray(prefixes)
        allowed = np.zeros((len(rows), self.vocab_size), bool)
        children, counts = [], []
        for prefix in rows.tolist():
            node = self.root
            for token in prefix:
                node = node.get(token, _LEAF)
            children.append(node)
            counts.append(len(node))
        tokens = np.fromiter(chain.from_iterable(children), np.intp, sum(counts))
        allowed[np.repeat(np.arange(len(rows)), counts), tokens] = True
        return allowed


def build(sids: Any, vocab_size: int) -> DictTrie:
    """Return the trie of an (N, L) array of semantic IDs, sorted first: each adds only its new tail."""
    columns = sorted_columns(check(sids, vocab_size), vocab_size)
    length = len(columns)
    shared = length - node_starts(columns).sum(axis=0)
    root: dict[int, Any] = {}
    path = [root] * length
    collecting = gc.isenabled()
    gc.disable()  # millions of new containers, none of them garbage: collections would take most of the time
    try:
        for row, depth in zip(columns.T.tolist(), shared.tolist(), strict=True):
            for level in range(depth, length - 1):
                path[level][row[level]] = path[level + 1] = {}
            path[-1][row[-1]] = _LEAF
    finally:
        if collecting:
            gc.enable()
    return DictTrie(root, vocab_size)


class TorchDictTrie:
    """The carry is the partial beams, (B, m, t) on the device."""

    def __init__(self, built: DictTrie, device: Any = "cpu") -> None:
        self.built = built
        self.device = torch.device(device)

    def start(self, batch: int) -> Any:
        return torch.zeros((batch, 1, 0), dtype=torch.int64, device=self.device)

    def select(self, logits: Any, scores: Any, carry: Any, level: int, beams: int) -> tuple[Any, Any, Any, Any]:
        batch, m = scores.shape
        mask = torch.from_numpy(self.built.mask(carry.flatten(0, 1).cpu())).to(self.device)
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        masked = torch.where(mask, log_probs, -torch.inf)
        scores, parents, tokens = torch_best(masked.view(batch, m, -1) + scores.unsqueeze(-1), beams)
        prefixes = carry.gather(1, parents.unsqueeze(-1).expand(-1, -1, level))
        return scores, parents, tokens, torch.cat([prefixes, tokens.unsqueeze(-1)], dim=-1)


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["built"])
@dataclass(frozen=True)
class JaxDictTrie:
    """The carry is the partial beams, (B, m, t); the mask comes through `jax.pure_callback`."""

    built: DictTrie

    def start(self, batch: int) -> Any:
        return jnp.zeros((batch, 1, 0), jnp.int32)

    def select(self, logits: Any, scores: Any, carry: Any, level: int, beams: int) -> tuple[Any, Any, Any, Any]:
        batch, m = scores.shape
        shape: Any = jax.eval_shape(lambda: jnp.zeros((batch * m, self.built.vocab_size), bool))
        mask = jax.pure_callback(self.built.mask, shape, carry.reshape(batch * m, level))
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        masked = jnp.where(mask, log_probs, -jnp.inf)
        scores, parents, tokens = jax_best(masked.reshape(batch, m, -1) + scores[:, :, None], beams)
        prefixes = jnp.take_along_axis(carry, parents[:, :, None], axis=1)
        return scores, parents, tokens, jnp.concatenate([prefixes, tokens[:, :, None]], axis=-1)


def to_torch(built: DictTrie, device: Any = "cpu") -> TorchDictTrie:
    """Return the PyTorch method of a built trie."""
    return TorchDictTrie(built, device)


def to_jax(built: DictTrie) -> JaxDictTrie:
    """Return the JAX method of a built trie."""
    return JaxDictTrie(built)
