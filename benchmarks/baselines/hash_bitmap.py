"""A Bloom-style bitmap of hashed prefixes (arXiv 2602.22647, section 5.2, item 5).

The paper gives the idea and a rate, not the hash; this one is chosen to be cheap. It is tabulation hashing: a
prefix hashes to the xor of one random word per (position, token), so that all V continuations of a beam cost
one xor with a row of the table. A valid continuation is never refused; an invalid one is accepted with the
probability that its bits happen to be set.
"""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..beams import jax_best, torch_best
from .rows import Array, check, node_starts, sorted_columns


@dataclass(frozen=True, eq=False)
class HashBitmap:
    """Bit h of the bitmap is bit h & 31 of word h >> 5; more than one hash takes bits h1 + i * h2."""

    bitmap: Array = field(repr=False)  # (2^log2_bits / 32,) uint32
    words: Array = field(repr=False)  # (lanes, L, V) uint32, one random word per position and token
    log2_bits: int
    hashes: int

    @property
    def nbytes(self) -> int:
        """Bytes kept on the device."""
        return self.bitmap.nbytes + self.words.nbytes

    @property
    def fill(self) -> float:
        """The share of bits that are set; to the power of `hashes`, the expected false-positive rate."""
        return float(np.bitwise_count(self.bitmap).sum(dtype=np.int64)) / (1 << self.log2_bits)

    def positions(self, lanes: Array, index: int) -> Any:
        """Return the bit that hash number `index` takes: (lanes, ...) uint32 -> (...) uint32."""
        taken = lanes[0] if index == 0 else lanes[0] + np.uint32(index) * lanes[1]
        return taken & np.uint32((1 << self.log2_bits) - 1)

    def contains(self, lanes: Array) -> Array:
        """Return whether all of a prefix's bits are set: (lanes, ...) uint32 -> (...) bool."""
        found = np.ones(lanes.shape[1:], bool)
        for index in range(self.hashes):
            bits = self.positions(lanes, index)
            found &= (self.bitmap[bits >> 5] >> (bits & 31) & 1).astype(bool)
        return found

    def false_positives(self, sids: Any, trials: int, seed: int = 0) -> tuple[int, int]:
        """Return how many random invalid continuations of valid prefixes are accepted, and of how many.

        Each trial takes a random row of `sids` (the built set), a random position and a random token; those
        that turn out valid are not counted, so the second number can be below `trials`.
        """
        length, vocab_size = self.words.shape[1:]
        columns = sorted_columns(check(sids, vocab_size), vocab_size)
        starts = node_starts(columns)
        rng = np.random.default_rng(seed)
        level = rng.integers(length, size=trials)
        row = rng.integers(columns.shape[1], size=trials)
        token = rng.integers(vocab_size, size=trials)
        accepted = tried = 0
        node = np.zeros(columns.shape[1], np.int64)  # each row's node at the current level
        lanes = np.zeros((len(self.words), columns.shape[1]), np.uint32)
        for position, column in enumerate(columns):
            edges = (node * vocab_size + column)[starts[position]]  # sorted and distinct, as the rows are
            here = level == position
            wanted = node[row[here]] * vocab_size + token[here]
            found = np.searchsorted(edges, wanted)
            invalid = edges[np.minimum(found, len(edges) - 1)] != wanted
            hashed = lanes[:, row[here]] ^ self.words[:, position, token[here]]
            accepted += int(self.contains(hashed[:, invalid]).sum())
            tried += int(invalid.sum())
            node = np.cumsum(starts[position]) - 1
            lanes ^= self.words[:, position, column]
        return accepted, tried


def build(sids: Any, vocab_size: int, log2_bits: int = 30, hashes: int = 1, seed: int = 0) -> HashBitmap:
    """Return the bitmap of all prefixes of an (N, L) array of semantic IDs, 2^log2_bits bits (5 to 31)."""
    if not 5 <= log2_bits <= 31 or hashes < 1:
        raise ValueError(f"log2_bits must be 5 to 31 and hashes at least 1, not {log2_bits} and {hashes}")
    rows = check(sids, vocab_size)
    rng = np.random.default_rng(seed)
    lane_count = 1 if hashes == 1 else 2
    words = rng.integers(1 << 32, size=(lane_count, rows.shape[1], vocab_size), dtype=np.uint32)
    built = HashBitmap(np.zeros((1 << log2_bits) // 32, np.uint32), words, log2_bits, hashes)
    lanes = np.zeros((lane_count, len(rows)), np.uint32)
    for position in range(rows.shape[1]):
        lanes ^= words[:, position, rows[:, position]]
        for index in range(hashes):
            bits = built.positions(lanes, index)
            for bit in range(32):  # one bit at a time, so that rows which share a word cannot undo each other
                built.bitmap[bits[bits & 31 == bit] >> 5] |= np.uint32(1 << bit)
    return built


class TorchHashBitmap:
    """The carry is each prefix's hash, one int32 (B, m) per lane."""

    def __init__(self, built: HashBitmap, device: Any = "cpu") -> None:
        self.device = torch.device(device)
        self.bitmap = torch.from_numpy(built.bitmap.view(np.int32)).to(self.device)
        self.words = torch.from_numpy(built.words.view(np.int32)).to(self.device)
        self.hashes = built.hashes
        self.bit_mask = (1 << built.log2_bits) - 1

    def start(self, batch: int) -> tuple[Any, ...]:
        return tuple(torch.zeros((batch, 1), dtype=torch.int32, device=self.device) for _ in range(len(self.words)))

    def select(
        self, logits: Any, scores: Any, carry: tuple[Any, ...], level: int, beams: int
    ) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        batch, m = scores.shape
        words = self.words[:, level]
        lanes = [state.view(-1, 1) ^ word for state, word in zip(carry, words, strict=True)]
        mask = None
        for index in range(self.hashes):
            bits = (lanes[0] if index == 0 else lanes[0] + index * lanes[1]) & self.bit_mask
            word = self.bitmap.index_select(0, (bits >> 5).view(-1)).view(bits.shape)
            bit = (word >> (bits & 31)) & 1
            mask = bit if mask is None else mask & bit
        assert mask is not None
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        masked = torch.where(mask.bool(), log_probs, -torch.inf)
        scores, parents, tokens = torch_best(masked.view(batch, m, -1) + scores.unsqueeze(-1), beams)
        carry = tuple(state.gather(1, parents) ^ word[tokens] for state, word in zip(carry, words, strict=True))
        return scores, parents, tokens, carry


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["bitmap", "words"], meta_fields=["log2_bits", "hashes"]
)
@dataclass(frozen=True)
class JaxHashBitmap:
    """The carry is each prefix's hash, one uint32 (B, m) per lane."""

    bitmap: Any
    words: Any
    log2_bits: int
    hashes: int

    def start(self, batch: int) -> tuple[Any, ...]:
        return tuple(jnp.zeros((batch, 1), jnp.uint32) for _ in range(self.words.shape[0]))

    def select(
        self, logits: Any, scores: Any, carry: tuple[Any, ...], level: int, beams: int
    ) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        batch, m = scores.shape
        words = [self.words[lane, level] for lane in range(len(carry))]
        lanes = [state[:, :, None] ^ word for state, word in zip(carry, words, strict=True)]
        mask = jnp.ones(lanes[0].shape, jnp.uint32)
        for index in range(self.hashes):
            bits = lanes[0] if index == 0 else lanes[0] + jnp.uint32(index) * lanes[1]
            bits &= jnp.uint32((1 << self.log2_bits) - 1)
            mask &= self.bitmap[bits >> 5] >> (bits & 31)
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(batch, m, -1)
        masked = jnp.where(mask != 0, log_probs, -jnp.inf)
        scores, parents, tokens = jax_best(masked + scores[:, :, None], beams)
        carry = tuple(
            jnp.take_along_axis(state, parents, axis=1) ^ word[tokens] for state, word in zip(carry, words, strict=True)
        )
        return scores, parents, tokens, carry


def to_torch(built: HashBitmap, device: Any = "cpu") -> TorchHashBitmap:
    """Return the PyTorch method of a built bitmap."""
    return TorchHashBitmap(built, device)


def to_jax(built: HashBitmap) -> JaxHashBitmap:
    """Return the JAX method of a built bitmap."""
    return JaxHashBitmap(jnp.asarray(built.bitmap), jnp.asarray(built.words), built.log2_bits, built.hashes)
