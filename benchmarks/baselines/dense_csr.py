"""STATIC: a trie as dense tables for two levels and CSR below (arXiv 2602.22647, section 4, appendix A).

Levels 0 and 1 are looked up in a bit-packed V x V mask and V x V next states (d = 2). Below them a state's
children are a row of interleaved (token, next state) pairs; a step reads as many pairs as the level's widest
row has (speculative slicing), blanks those past the row's end, and scatters the rest into a row of V
log-probabilities (algorithms 1 and 2).
"""

import functools
import time
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..beams import jax_best, jax_pick, torch_best, torch_pick
from .rows import Array, check, node_starts, sorted_columns


@dataclass(frozen=True, eq=False)
class DenseCsr:
    """State 0 has no children; depth-1 states are their tokens, deeper ones numbered by depth, then row."""

    start_mask: Array = field(repr=False)  # (ceil(V/8),) uint8, bit 0 of byte 0 is token 0
    dense_mask: Array = field(repr=False)  # (V, ceil(V/8)) uint8
    dense_states: Array = field(repr=False)  # (V, V) int32
    row_pointers: Array = field(repr=False)  # (S + 1,) int32
    pairs: Array = field(repr=False)  # (E + widest row, 2) int32: padded, so that slices stay inside
    branches: tuple[int, ...]  # the widest row of each level
    vocab_size: int
    sort_seconds: float
    build_seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes kept on the device."""
        arrays = (self.start_mask, self.dense_mask, self.dense_states, self.row_pointers, self.pairs)
        return sum(array.nbytes for array in arrays)


def upper_bound(vocab_size: int, length: int, count: int) -> float:
    """Return the paper's bound on the size in bytes (section 5.3) with K1 = 12, K2 = 4, d = 2."""
    sparse: int = sum(min(vocab_size**level, count) for level in range(3, length + 1))
    return (1 / 8 + 4) * vocab_size**2 + 12 * sparse


def build(sids: Any, vocab_size: int) -> DenseCsr:
    """Return the tables of an (N, L) array of semantic IDs, with the seconds sorting and building took."""
    rows = check(sids, vocab_size)
    begin = time.perf_counter()
    columns = sorted_columns(rows, vocab_size)
    sorted_at = time.perf_counter()
    length = len(columns)
    starts = node_starts(columns)
    at = np.flatnonzero(starts[0])
    start_mask = np.zeros(vocab_size, bool)
    start_mask[columns[0, at]] = True
    branches = [len(at)]
    dense_mask = np.zeros((0, (vocab_size + 7) // 8), np.uint8)
    dense_states = np.zeros((0, vocab_size), np.int32)
    if length > 1:
        at = np.flatnonzero(starts[1])
        dense_states = np.zeros((vocab_size, vocab_size), np.int32)
        dense_states[columns[0, at], columns[1, at]] = np.arange(1, len(at) + 1)
        dense_mask = np.packbits(dense_states != 0, axis=1, bitorder="little")
        branches.append(int(np.bincount(columns[0, at]).max()))
    edges = [int(np.count_nonzero(level)) for level in starts]
    total = sum(edges[2:])
    parents = sum(edges[1:-1]) if length > 2 else 0
    row_pointers = np.zeros(parents + 2, np.int32)
    pairs = np.zeros((total + vocab_size, 2), np.int32)  # room for the padding, cut once its size is known
    edge, state = 0, 1
    for level in range(2, length):
        above, at = at, np.flatnonzero(starts[level])
        pairs[edge : edge + len(at), 0] = columns[level, at]
        first_child = state + len(above)
        last = level == length - 1
        pairs[edge : edge + len(at), 1] = 0 if last else np.arange(first_child, first_child + len(at))
        pointers = edge + np.flatnonzero(starts[level - 1, at])
        row_pointers[state:first_child] = pointers
        edge += len(at)
        branches.append(int(np.diff(np.append(pointers, edge)).max()))
        state = first_child
    row_pointers[-1] = edge
    pairs = pairs[: total + max(branches[2:], default=0)]
    done = time.perf_counter()
    return DenseCsr(
        np.packbits(start_mask, bitorder="little"),
        dense_mask,
        dense_states,
        row_pointers,
        pairs,
        tuple(branches),
        vocab_size,
        sorted_at - begin,
        done - sorted_at,
    )


class TorchDenseCsr:
    """The carry is each prefix's state, (B, m) int32.

    `project=False` leaves out algorithm 2's last phase, the projection onto V columns, and looks for the best
    among the children alone.
    """

    def __init__(self, built: DenseCsr, device: Any = "cpu", project: bool = True) -> None:
        self.device = torch.device(device)
        self.start_mask = torch.from_numpy(built.start_mask).to(self.device)
        self.dense_mask = torch.from_numpy(built.dense_mask).to(self.device)
        self.dense_states = torch.from_numpy(built.dense_states).to(self.device)
        self.row_pointers = torch.from_numpy(built.row_pointers).to(self.device)
        self.pairs = torch.from_numpy(built.pairs).to(self.device)
        self.branches = built.branches
        self.vocab_size = built.vocab_size
        self.project = project
        # A byte's eight bits as 0 or -inf, to be added: on CPU 5 to 10 times as fast as unpack and `where`.
        byte = torch.arange(256).unsqueeze(-1) >> torch.arange(8)
        self.penalty = torch.zeros(256, 8).masked_fill(byte & 1 == 0, -torch.inf).to(self.device)

    def start(self, batch: int) -> Any:
        return torch.zeros((batch, 1), dtype=torch.int32, device=self.device)

    def _penalties(self, packed: Any) -> Any:
        """0 where a bit is set and -inf elsewhere: (n, ceil(V/8)) uint8 -> (n, V) float32."""
        spread = self.penalty.index_select(0, packed.reshape(-1).int())
        return spread.view(packed.shape[0], -1)[:, : self.vocab_size]

    def select(self, logits: Any, scores: Any, carry: Any, level: int, beams: int) -> tuple[Any, Any, Any, Any]:
        batch, m = scores.shape
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        states = carry.view(-1)
        if level < 2:
            packed = self.start_mask.unsqueeze(0) if level == 0 else self.dense_mask.index_select(0, states)
            totals = (log_probs + self._penalties(packed)).view(batch, m, -1) + scores.unsqueeze(-1)
            scores, parents, tokens = torch_best(totals, beams)
            if level == 0:
                return scores, parents, tokens, tokens.int()
            flat = carry.gather(1, parents).long() * self.vocab_size + tokens
            return scores, parents, tokens, self.dense_states.view(-1)[flat]
        width = self.branches[level]
        bounds = self.row_pointers.index_select(0, torch.cat([states, states + 1])).view(2, -1, 1)
        index = bounds[0] + torch.arange(width, dtype=torch.int32, device=self.device)
        row = self.pairs.index_select(0, index.view(-1)).view(-1, width, 2)
        children, after = row[..., 0].long(), row[..., 1].reshape(batch, m, width)
        valid = index < bounds[1]
        candidates = torch.where(valid, log_probs.gather(1, children), -torch.inf)
        if not self.project:
            totals = candidates.view(batch, m, width) + scores.unsqueeze(-1)
            scores, parents, slots = torch_best(totals, beams)
            children = children.view(batch, m, width)
            return scores, parents, torch_pick(children, parents, slots), torch_pick(after, parents, slots)
        # Slots past a row's end hold another row's tokens: they all go to an extra column, which is dropped.
        masked = torch.full((batch * m, self.vocab_size + 1), -torch.inf, device=self.device)
        columns = torch.where(valid, children, self.vocab_size)
        masked.scatter_(1, columns, candidates)
        totals = masked.view(batch, m, -1)[:, :, :-1] + scores.unsqueeze(-1)
        scores, parents, tokens = torch_best(totals, beams)
        by_parent = parents.unsqueeze(-1).expand(-1, -1, width)
        chosen = columns.view(batch, m, width).gather(1, by_parent) == tokens.unsqueeze(-1)
        return scores, parents, tokens, (after.gather(1, by_parent) * chosen).sum(-1, dtype=torch.int32)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["start_mask", "dense_mask", "dense_states", "row_pointers", "pairs"],
    meta_fields=["branches", "vocab_size", "project"],
)
@dataclass(frozen=True)
class JaxDenseCsr:
    """The carry is each prefix's state, (B, m) int32; `project` as in `TorchDenseCsr`."""

    start_mask: Any
    dense_mask: Any
    dense_states: Any
    row_pointers: Any
    pairs: Any
    branches: tuple[int, ...]
    vocab_size: int
    project: bool

    def start(self, batch: int) -> Any:
        return jnp.zeros((batch, 1), jnp.int32)

    def select(self, logits: Any, scores: Any, carry: Any, level: int, beams: int) -> tuple[Any, Any, Any, Any]:
        batch, m = scores.shape
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(batch, m, -1)
        if level < 2:
            packed = self.start_mask if level == 0 else self.dense_mask[carry]
            bits = jnp.unpackbits(packed, axis=-1, count=self.vocab_size, bitorder="little")
            totals = jnp.where(bits != 0, log_probs, -jnp.inf) + scores[:, :, None]
            scores, parents, tokens = jax_best(totals, beams)
            if level == 0:
                return scores, parents, tokens, tokens
            before = jnp.take_along_axis(carry, parents, axis=1)
            return scores, parents, tokens, self.dense_states[before, tokens]
        width = self.branches[level]
        index = self.row_pointers[carry][:, :, None] + jnp.arange(width, dtype=jnp.int32)
        row = self.pairs[index]
        children, after = row[..., 0], row[..., 1]
        valid = index < self.row_pointers[carry + 1][:, :, None]
        candidates = jnp.where(valid, jnp.take_along_axis(log_probs, children, axis=2), -jnp.inf)
        if not self.project:
            scores, parents, slots = jax_best(candidates + scores[:, :, None], beams)
            return scores, parents, jax_pick(children, parents, slots), jax_pick(after, parents, slots)
        # Slots past a row's end hold another row's tokens: out of range, so the scatter drops them.
        columns = jnp.where(valid, children, self.vocab_size)
        at = (jnp.arange(batch)[:, None, None], jnp.arange(m)[:, None], columns)
        masked = jnp.full((batch, m, self.vocab_size), -jnp.inf).at[at].set(candidates, mode="drop")
        scores, parents, tokens = jax_best(masked + scores[:, :, None], beams)
        by_parent = parents[:, :, None]
        chosen = jnp.take_along_axis(columns, by_parent, axis=1) == tokens[:, :, None]
        after = jnp.take_along_axis(after, by_parent, axis=1)
        return scores, parents, tokens, jnp.where(chosen, after, 0).sum(-1)


def to_torch(built: DenseCsr, device: Any = "cpu", project: bool = True) -> TorchDenseCsr:
    """Return the PyTorch method of built tables."""
    return TorchDenseCsr(built, device, project)


def to_jax(built: DenseCsr, project: bool = True) -> JaxDenseCsr:
    """Return the JAX method of built tables."""
    return JaxDenseCsr(
        jnp.asarray(built.start_mask),
        jnp.asarray(built.dense_mask),
        jnp.asarray(built.dense_states),
        jnp.asarray(built.row_pointers),
        jnp.asarray(built.pairs),
        built.branches,
        built.vocab_size,
        project,
    )
