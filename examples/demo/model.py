"""A small decoder-only transformer over semantic-ID tokens, with a key-value cache for beam search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .dataset import Ints

START = 0
"""The token that asks for an item. Code c, at any level, is token c + 1."""

Cache: TypeAlias = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values of every layer, (B*M, H, t, D): what the beams have written so far."""

Step: TypeAlias = Callable[[Tensor, Cache, int], tuple[Tensor, Cache]]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the transformer; `history` is the number of past items that it reads."""

    width: int = 128
    layers: int = 2
    heads: int = 4
    history: int = 10
    dropout: float = 0.1


def tokens_of(sids: Ints) -> Ints:
    """Return the tokens of codes, of any shape: the ids that logits and constraints share."""
    return sids + START + 1


def blocks_of(histories: Sequence[Ints], sids: Ints, history: int) -> tuple[Tensor, Tensor]:
    """Return the last `history` items of each row as tokens, and how many there are.

    A block is the start token followed by an item's L tokens; rows begin at block 0 and end in padding:
    (B, N, L + 1) and (B,), N the most items in any row.
    """
    kept = [items[-history:] for items in histories]
    counts = np.array([len(items) for items in kept])
    blocks = np.full((len(kept), max(1, counts.max()), sids.shape[1] + 1), START, dtype=np.int64)
    for row, items in enumerate(kept):
        blocks[row, : len(items), 1:] = tokens_of(sids[items])
    return torch.from_numpy(blocks), torch.from_numpy(counts)


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.before_attention = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.merge = nn.Linear(config.width, config.width, bias=False)
        self.before_mlp = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )
        self.drop = nn.Dropout(config.dropout)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of (..., T, width) at positions (..., T): each (..., H, T, D)."""
        split = self.qkv(self.before_attention(x)).reshape(*x.shape[:-1], 3, self.heads, -1)
        query, key, value = split.movedim(-3, 0).transpose(-3, -2)
        return _rotate(query, positions), _rotate(key, positions), value

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output, given its input (..., T, width) and attention's (..., H, T, D)."""
        x = x + self.drop(self.merge(attended.transpose(-3, -2).flatten(-2)))
        out: Tensor = x + self.drop(self.mlp(self.before_mlp(x)))
        return out


def _rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Return (..., H, T, D) with rotary position embedding (Su et al. 2021) for positions (..., T)."""
    half = x.shape[-1] // 2
    rate = torch.pow(10_000.0, -torch.arange(half) / half)
    angle = positions.unsqueeze(-1) * rate  # (..., T, D / 2)
    sine, cosine = angle.sin().unsqueeze(-3), angle.cos().unsqueeze(-3)
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cosine - right * sine, left * sine + right * cosine), dim=-1)


def _attend(query: Tensor, past: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], padding: Tensor) -> Tensor:
    """Return what beams (B*M, H, 1, D) read from their user's history and from what they wrote themselves.

    past: keys and values (B, H, T, D), used where padding (B, T) is false. own: (B*M, H, t, D).
    """
    batch, heads, read, size = past[0].shape
    query = query.reshape(batch, -1, heads, size)
    key, value = (x.reshape(*query.shape[:3], -1, size) for x in own)  # (B, M, H, t, D)
    past_score = torch.einsum("bmhd,bhtd->bmht", query, past[0])
    past_score = past_score.masked_fill(padding[:, None, None], -torch.inf)
    own_score = torch.einsum("bmhd,bmhtd->bmht", query, key)
    weight = (torch.cat((past_score, own_score), dim=-1) / math.sqrt(size)).softmax(dim=-1)
    attended = torch.einsum("bmht,bhtd->bmhd", weight[..., :read], past[1])
    attended = attended + torch.einsum("bmht,bmhtd->bmhd", weight[..., read:], value)
    return attended.reshape(-1, heads, 1, size)


class Transformer(nn.Module):
    """Predicts the next item's tokens from the tokens of the items before it.

    The vocabulary, V = codes + 1, is shared by the levels; embeddings are not: token v after t tokens of
    its item is row (t, v) of the embedding, read on the way in and, one level on, on the way out.
    """

    def __init__(self, config: ModelConfig, *, levels: int, codes: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = codes + 1
        self.embedding = nn.Parameter(torch.randn(levels + 1, self.vocab_size, config.width))
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, blocks: Tensor) -> Tensor:
        """Return the logits of every token of every item of (B, N, L + 1): (B, N, L, V)."""
        x, _ = self._read(blocks)
        x = self.norm(x.reshape(*blocks.shape, -1)[:, :, :-1])
        return self._logits(torch.einsum("bnlw,lvw->bnlv", x, self.embedding[1:]))

    def decoder(self, blocks: Tensor, counts: Tensor, beams: int) -> tuple[Step, Cache]:
        """Read every history once; return the step that writes the next item, and its empty cache.

        blocks (B, N, L + 1) and counts (B,) are histories, as `blocks_of` makes them. The step maps tokens
        (B*M,), cache and t to logits (B*M, V) and the next cache. Histories are the same for all beams of a
        user, and a beam's parent is one of the same user's, so their keys stay (B, ...) and are not in the
        cache: with 10 items of 4 tokens, regathering them would move ten times what the beams have written.
        """
        with torch.no_grad():
            _, past = self._read(blocks)
        written = counts * blocks.shape[2]  # (B,) tokens of history that are not padding
        padding = torch.arange(past[0][0].shape[2]) >= written[:, None]  # (B, T)
        start = written.repeat_interleave(beams)[:, None]  # (B*M, 1)

        @torch.no_grad()
        def step(tokens: Tensor, cache: Cache, t: int) -> tuple[Tensor, Cache]:
            x = self.embedding[t][tokens][:, None]  # (B*M, 1, width)
            grown = []
            for layer, read, (key, value) in zip(self.layers, past, cache, strict=True):
                assert isinstance(layer, _Layer)
                query, new_key, new_value = layer.project(x, start + t)
                own = torch.cat((key, new_key), dim=2), torch.cat((value, new_value), dim=2)
                x = layer.finish(x, _attend(query, read, own, padding))
                grown.append(own)
            return self._logits(self.norm(x[:, 0]) @ self.embedding[t + 1].T), tuple(grown)

        empty = torch.zeros(len(counts) * beams, self.config.heads, 0, self.config.width // self.config.heads)
        return step, tuple((empty, empty) for _ in self.layers)

    def prefill(self, blocks: Tensor, counts: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what reads every history and P placeholders (P, width) once, for a head that drafts from them.

        blocks (B, N, L + 1) and counts (B,) are histories, as `blocks_of` makes them. It returns the activations
        (B, 1 + P, width) of the token that asks for the next item and of the placeholders behind it.
        """

        def read(placeholders: Tensor) -> Tensor:
            batch, _, size = blocks.shape
            x = self.embedding[torch.arange(size), blocks].flatten(1, 2)
            asks = self.embedding[:1, START].expand(batch, -1, -1)
            end = torch.cat((asks, placeholders.expand(batch, -1, -1)), dim=1)  # (B, 1 + P, width)
            place = (counts * size)[:, None] + torch.arange(end.shape[1])  # right behind each history
            x = torch.cat((x, torch.zeros_like(end)), dim=1)
            index = place[:, :, None].expand(-1, -1, x.shape[2])
            x, _ = self._run(x.scatter(1, index, end), torch.arange(x.shape[1]), None)
            out: Tensor = self.norm(x.gather(1, index))
            return out

        return read

    def read_prefixes(self, blocks: Tensor, placeholders: Tensor) -> Tensor:
        """Return what `prefill` gives for all prefixes of (B, N, L + 1) at once: (B, N, 1 + P, width).

        Entry n is of the history of the first n items. Each prefix has placeholders of its own, behind all items, at
        the positions that they would have; they see what is before them and nothing sees them but their successors.
        """
        batch, count, size = blocks.shape
        extra = placeholders.shape[0]
        place = torch.arange(count * size)
        owner = torch.arange(count).repeat_interleave(extra)  # (N * P,) which prefix
        at = torch.arange(extra).repeat(count)  # which placeholder
        before = torch.cat((place, owner * size), dim=0)  # the last token of the items that each one sees
        positions = torch.cat((place, owner * size + 1 + at))
        seen = place <= before[:, None]
        own = (owner == owner[:, None]) & (at <= at[:, None])
        seen = torch.cat((seen, torch.cat((own.new_zeros(len(place), len(own)), own))), dim=1)
        x = self.embedding[torch.arange(size), blocks].flatten(1, 2)
        x = torch.cat((x, placeholders.repeat(count, 1).expand(batch, -1, -1)), dim=1)
        x, _ = self._run(x, positions, seen)
        asks = x[:, : count * size : size, None]  # (B, N, 1, width)
        out: Tensor = self.norm(torch.cat((asks, x[:, count * size :].reshape(batch, count, extra, x.shape[2])), dim=2))
        return out

    def _logits(self, products: Tensor) -> Tensor:
        """Scale products of unit-variance activations and embeddings to logits of about unit variance."""
        return products / math.sqrt(self.config.width)

    def _read(self, blocks: Tensor) -> tuple[Tensor, Cache]:
        """Return activations (B, T, width) of (B, N, L + 1) blocks, T tokens in all, and keys and values."""
        level = torch.arange(blocks.shape[2])
        x = self.embedding[level, blocks].flatten(1, 2)
        return self._run(x, torch.arange(x.shape[1]), None)

    def _run(self, x: Tensor, positions: Tensor, seen: Tensor | None) -> tuple[Tensor, Cache]:
        """Return activations (B, T, width) of embedded tokens at positions (T,), and keys and values.

        seen: (T, T), what each token attends to; None: itself and all before it.
        """
        x = self.drop(x)
        past = []
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            query, key, value = layer.project(x, positions)
            attended = functional.scaled_dot_product_attention(query, key, value, seen, is_causal=seen is None)
            x = layer.finish(x, attended)
            past.append((key, value))
        return x, tuple(past)
