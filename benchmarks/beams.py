"""Beam search by whatever method constrains it: one loop for all, so that only the constraint differs.

A *method* is one way to constrain beam search, on one backend. It has two functions:

    start(batch) -> carry
        the constraint's state for `batch` rows of one beam each
    select(logits (B*m, V), scores (B, m), carry, level, beams) -> (scores, parents, tokens (B, beams), carry)
        one step: log-softmax over V, the constraint, beam totals, the `beams` best (beam, token) pairs

`level` and `beams` are static. A beam that no valid sequence is left for has the score -inf; its parent and
token are in range and mean nothing. The final top-k is the same for all, so that only the constraint differs.
PyTorch methods are plain objects; JAX methods are pytrees, so that their arrays enter `jax.jit` as arguments and
are not compiled in.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import torch

from maskwright.runtime import jax_ops, torch_ops
from maskwright.runtime.decode import beam_search


class Method(Protocol):
    """One way to constrain beam search on one backend; the module's docstring defines its functions."""

    def start(self, batch: int) -> Any: ...

    def select(self, logits: Any, scores: Any, carry: Any, level: int, beams: int) -> tuple[Any, Any, Any, Any]: ...


def torch_best(totals: Any, beams: int) -> tuple[Any, Any, Any]:
    """Return the `beams` best of all beams' candidates: (B, m, W) -> scores, parents, slots (B, beams).

    Where there are fewer than `beams` candidates, the rest have the score -inf.
    """
    batch, m, width = totals.shape
    flat = totals.reshape(batch, m * width)
    missing = beams - m * width
    if missing > 0:
        flat = torch.nn.functional.pad(flat, (0, missing), value=-torch.inf)
    scores, index = torch_ops.arrays.top_k(flat, beams)
    if missing > 0:
        index = index.clamp_max(m * width - 1)
    return scores, index // width, index % width


def jax_best(totals: Any, beams: int) -> tuple[Any, Any, Any]:
    """Return the `beams` best of all beams' candidates: (B, m, W) -> scores, parents, slots (B, beams).

    Where there are fewer than `beams` candidates, the rest have the score -inf.
    """
    batch, m, width = totals.shape
    flat = totals.reshape(batch, m * width)
    missing = beams - m * width
    if missing > 0:
        flat = jnp.pad(flat, ((0, 0), (0, missing)), constant_values=-jnp.inf)
    scores, index = jax_ops.arrays.top_k(flat, beams)
    if missing > 0:
        index = jnp.minimum(index, m * width - 1)
    return scores, index // width, index % width


def torch_pick(values: Any, parents: Any, slots: Any) -> Any:
    """Return `values[b, parents[b, i], slots[b, i]]`: (B, m, W) and twice (B, k) -> (B, k)."""
    return values.flatten(1).gather(1, parents * values.shape[2] + slots)


def jax_pick(values: Any, parents: Any, slots: Any) -> Any:
    """Return `values[b, parents[b, i], slots[b, i]]`: (B, m, W) and twice (B, k) -> (B, k)."""
    batch, m, width = values.shape
    return jnp.take_along_axis(values.reshape(batch, m * width), parents * width + slots, axis=1)


class TorchUnconstrained:
    """Beam search without a constraint: the lower bound on a step's time."""

    def start(self, batch: int) -> tuple[()]:
        return ()

    def select(
        self, logits: Any, scores: Any, carry: tuple[()], level: int, beams: int
    ) -> tuple[Any, Any, Any, tuple[()]]:
        batch, m = scores.shape
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        totals = log_probs.view(batch, m, -1) + scores.unsqueeze(-1)
        scores, parents, tokens = torch_best(totals, beams)
        return scores, parents, tokens, carry


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclass(frozen=True)
class JaxUnconstrained:
    """Beam search without a constraint: the lower bound on a step's time."""

    def start(self, batch: int) -> tuple[()]:
        return ()

    def select(
        self, logits: Any, scores: Any, carry: tuple[()], level: int, beams: int
    ) -> tuple[Any, Any, Any, tuple[()]]:
        batch, m = scores.shape
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
        totals = log_probs.reshape(batch, m, -1) + scores[:, :, None]
        scores, parents, tokens = jax_best(totals, beams)
        return scores, parents, tokens, carry


def decode_torch(method: Method, logits: Sequence[Any], batch: int, beams: int) -> tuple[Any, Any]:
    """Run beam search over given logits, so that a method's own cost is all there is.

    `logits` holds one array per level: (B, V) for the first, (B*M, V) for the others.
    Returns tokens (B, M, L) and scores (B, M), best first.
    """
    scores = logits[0].new_zeros((batch, 1), dtype=torch.float32)
    carry = method.start(batch)
    steps = []
    for level, step_logits in enumerate(logits):
        scores, parents, tokens, carry = method.select(step_logits, scores, carry, level, beams)
        steps.append((parents, tokens))
    beam = torch.arange(beams, device=scores.device).expand(batch, beams)
    backwards = []
    for parents, tokens in reversed(steps):
        backwards.append(tokens.gather(1, beam))
        beam = parents.gather(1, beam)
    return torch.stack(backwards[::-1], dim=-1), scores


@functools.partial(jax.jit, static_argnames=("batch", "beams"))
def decode_jax(method: Method, logits: Sequence[Any], batch: int, beams: int) -> tuple[Any, Any]:
    """Run beam search over given logits, all levels in one compiled program; see `decode_torch`."""
    scores = jnp.zeros((batch, 1), jnp.float32)
    carry = method.start(batch)
    steps = []
    for level, step_logits in enumerate(logits):
        scores, parents, tokens, carry = method.select(step_logits, scores, carry, level, beams)
        steps.append((parents, tokens))
    beam = jnp.broadcast_to(jnp.arange(beams), (batch, beams))
    backwards = []
    for parents, tokens in reversed(steps):
        backwards.append(jnp.take_along_axis(tokens, beam, axis=1))
        beam = jnp.take_along_axis(parents, beam, axis=1)
    return jnp.stack(backwards[::-1], axis=-1), scores


def search_torch(dev: Any, logits: Sequence[Any], batch: int, beams: int) -> Any:
    """Run maskwright's own beam search over given logits, one array (B*M, V) per level."""
    return beam_search(
        lambda tokens, cache, t: (logits[t], cache),
        None,
        dev,
        ops=torch_ops,
        batch=batch,
        beams=beams,
        max_length=len(logits),
    )


@functools.partial(jax.jit, static_argnames=("batch", "beams"))
def search_jax(dev: Any, logits: Sequence[Any], batch: int, beams: int) -> Any:
    """Run maskwright's own beam search over given logits, compiled whole; see `search_torch`."""
    return beam_search(
        lambda tokens, cache, t: (logits[t], cache),
        None,
        dev,
        ops=jax_ops,
        batch=batch,
        beams=beams,
        max_length=len(logits),
    )


def for_search(logits: Sequence[np.ndarray[Any, Any]], beams: int) -> list[np.ndarray[Any, Any]]:
    """Return logits of `random_logits` with the first level's rows repeated: a search feeds all beams."""
    return [np.repeat(logits[0], beams, axis=0), *logits[1:]]


def random_logits(batch: int, beams: int, vocab_size: int, length: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Return float32 standard normal logits for `decode_torch`: (B, V), then L - 1 times (B*M, V)."""
    rng = np.random.default_rng(seed)
    rows = [batch] + [batch * beams] * (length - 1)
    return [rng.standard_normal((n, vocab_size), dtype=np.float32) for n in rows]
