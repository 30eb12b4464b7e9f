"""PPV: parallel binary search for every candidate in a sorted matrix (arXiv 2504.09135, algorithm 2).

The matrix stays on the device. A beam's prefix is an interval of its rows, kept from step to step, so that a
step compares one token per probe and not a whole prefix. `top=None` verifies all V tokens and is exact;
`top=50` is the paper's approximation, which verifies only the tokens with the highest probabilities.
"""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from maskwright.runtime import jax_ops, torch_ops

from ..beams import jax_best, jax_pick, torch_best, torch_pick
from .rows import Array, check, node_starts, sorted_columns


@dataclass(frozen=True, eq=False)
class SortedMatrix:
    """The sorted, distinct rows, stored column after column: a step reads one column only."""

    columns: Array = field(repr=False)  # (L, N) int16 or int32
    vocab_size: int
    top: int | None
    iterations: tuple[int, ...]  # of the binary search, per level

    @property
    def nbytes(self) -> int:
        """Bytes kept on the device."""
        return self.columns.nbytes


def build(sids: Any, vocab_size: int, top: int | None = None, narrow: bool = False) -> SortedMatrix:
    """Return the sorted matrix of an (N, L) array of semantic IDs.

    The search takes ceil(log2(N + 1)) iterations at every level, as published. With `narrow`, which the paper
    does not have, a level takes only as many as its widest interval needs.
    """
    columns = sorted_columns(check(sids, vocab_size), vocab_size)
    length, count = columns.shape
    widest = [count] * length
    if narrow:
        for level, starts in enumerate(node_starts(columns)[:-1]):
            widest[level + 1] = int(np.diff(np.append(np.flatnonzero(starts), count)).max())
    # Searches ask for tokens up to V, the end of the last one, which must be representable too.
    narrowed = columns.astype(np.int16 if vocab_size < 1 << 15 else np.int32)
    return SortedMatrix(narrowed, vocab_size, top, tuple(width.bit_length() for width in widest))


class TorchPrefixVerification:
    """The carry is each prefix's interval of rows: low and high, (B, m) int32."""

    def __init__(self, built: SortedMatrix, device: Any = "cpu") -> None:
        self.device = torch.device(device)
        self.columns = torch.from_numpy(built.columns).to(self.device)
        self.tokens = torch.arange(built.vocab_size + 1, device=self.device).to(self.columns.dtype)
        self.top = None if built.top is None or built.top >= built.vocab_size else built.top
        self.iterations = built.iterations

    def start(self, batch: int) -> tuple[Any, Any]:
        low = torch.zeros((batch, 1), dtype=torch.int32, device=self.device)
        return low, torch.full_like(low, self.columns.shape[1])

    def _lower_bounds(self, level: int, low: Any, high: Any, queries: Any) -> Any:
        """Return the first row in [low, high) not below the query: (n, 1), (n, 1), (n, q) -> (n, q)."""
        column = self.columns[level]
        last = column.shape[0] - 1
        found = low.expand(queries.shape)
        for shift in reversed(range(self.iterations[level])):
            probe = found + ((1 << shift) - 1)
            value = column.index_select(0, probe.clamp_max(last).view(-1)).view(probe.shape)
            found = found.add((value < queries).logical_and_(probe < high), alpha=1 << shift)
        return found

    def select(
        self, logits: Any, scores: Any, carry: tuple[Any, Any], level: int, beams: int
    ) -> tuple[Any, Any, Any, tuple[Any, Any]]:
        batch, m = scores.shape
        low, high = (bound.view(-1, 1) for bound in carry)
        if self.top is None:
            log_probs = logits.log_softmax(-1, dtype=torch.float32)
            bounds = self._lower_bounds(level, low, high, self.tokens.expand(len(logits), -1))
            lower, upper = bounds[:, :-1], bounds[:, 1:]
        else:
            log_probs, candidates = torch_ops.arrays.top_k(logits.log_softmax(-1, dtype=torch.float32), self.top)
            queries = torch.cat([candidates, candidates + 1], dim=1).to(self.columns.dtype)
            bounds = self._lower_bounds(level, low, high, queries)
            lower, upper = bounds[:, : self.top], bounds[:, self.top :]
        masked = torch.where(lower < upper, log_probs, -torch.inf)
        scores, parents, slots = torch_best(masked.view(batch, m, -1) + scores.unsqueeze(-1), beams)
        tokens = slots if self.top is None else torch_pick(candidates.view(batch, m, -1), parents, slots)
        bounds = bounds.view(batch, m, -1)
        low = torch_pick(bounds, parents, slots)
        high = torch_pick(bounds, parents, slots + (1 if self.top is None else self.top))
        return scores, parents, tokens, (low, high)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["columns"], meta_fields=["vocab_size", "top", "iterations"]
)
@dataclass(frozen=True)
class JaxPrefixVerification:
    """The carry is each prefix's interval of rows: low and high, (B, m) int32."""

    columns: Any
    vocab_size: int
    top: int | None
    iterations: tuple[int, ...]

    def start(self, batch: int) -> tuple[Any, Any]:
        low = jnp.zeros((batch, 1), jnp.int32)
        return low, jnp.full_like(low, self.columns.shape[1])

    def _lower_bounds(self, level: int, low: Any, high: Any, queries: Any) -> Any:
        """Return the first row in [low, high) not below the query: (n, 1), (n, 1), (n, q) -> (n, q)."""
        column = self.columns[level]
        iterations = self.iterations[level]

        def halve(index: Any, found: Any) -> Any:
            size = jnp.left_shift(jnp.int32(1), iterations - 1 - index)
            probe = found + (size - 1)
            value = column.at[probe].get(mode="clip")
            return found + jnp.where((value < queries) & (probe < high), size, 0)

        return jax.lax.fori_loop(0, iterations, halve, jnp.broadcast_to(low, queries.shape))

    def select(
        self, logits: Any, scores: Any, carry: tuple[Any, Any], level: int, beams: int
    ) -> tuple[Any, Any, Any, tuple[Any, Any]]:
        batch, m = scores.shape
        low, high = (bound.reshape(-1, 1) for bound in carry)
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        candidates = None
        if self.top is None:
            every = jnp.arange(self.vocab_size + 1, dtype=self.columns.dtype)
            queries = jnp.broadcast_to(every, (batch * m, self.vocab_size + 1))
            bounds = self._lower_bounds(level, low, high, queries)
            lower, upper = bounds[:, :-1], bounds[:, 1:]
        else:
            log_probs, candidates = jax_ops.arrays.top_k(log_probs, self.top)
            queries = jnp.concatenate([candidates, candidates + 1], axis=1).astype(self.columns.dtype)
            bounds = self._lower_bounds(level, low, high, queries)
            lower, upper = bounds[:, : self.top], bounds[:, self.top :]
        masked = jnp.where(lower < upper, log_probs, -jnp.inf)
        scores, parents, slots = jax_best(masked.reshape(batch, m, -1) + scores[:, :, None], beams)
        tokens = slots if candidates is None else jax_pick(candidates.reshape(batch, m, -1), parents, slots)
        bounds = bounds.reshape(batch, m, -1)
        low = jax_pick(bounds, parents, slots)
        high = jax_pick(bounds, parents, slots + (1 if self.top is None else self.top))
        return scores, parents, tokens, (low, high)


def to_torch(built: SortedMatrix, device: Any = "cpu") -> TorchPrefixVerification:
    """Return the PyTorch method of a sorted matrix."""
    return TorchPrefixVerification(built, device)


def to_jax(built: SortedMatrix) -> JaxPrefixVerification:
    """Return the JAX method of a sorted matrix."""
    top = None if built.top is None or built.top >= built.vocab_size else built.top
    return JaxPrefixVerification(jnp.asarray(built.columns), built.vocab_size, top, built.iterations)
