"""Models of transformers as a `Reader`: several tokens at once, by different amounts in each row, and back again."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from . import compat
from .tree_beams import CACHE, check_model, penalty

if TYPE_CHECKING:
    from transformers import (
        PretrainedConfig,
        PreTrainedModel,
    )


MOST_AT_ONCE = 512  # tokens of a long prompt in one pass: a mask has as many rows


class TransformersReader:
    """A decoder-only model of transformers as jump-forward and speculation read it: see `runtime.decode.Reader`.

    Each token's keys and values lie in its row's own column, at its place in the text, so prompts of different lengths
    need no padding in the cache. A mask says what each token sees, and its position is how much that is.

    model: attention over all that came before, by "sdpa" or "eager". Raises TypeError for what is no model of
    transformers, ValueError for one that cannot be told what a token sees or where it stands.

    >>> TransformersReader.prompts(torch.tensor([[0, 5, 7], [3, 4, 9]]), torch.tensor([[0, 1, 1], [1, 1, 1]]))
    [[5, 7], [3, 4, 9]]
    """

    def __init__(self, model: PreTrainedModel) -> None:
        check_model(model, "read several tokens of each row at once", "Decode with model.generate(..)")
        if compat.counts_places_from_padding(model):
            raise ValueError(
                f"{type(model).__name__} cannot read several tokens of each row at once: it counts positions from its "
                "padding on. Decode with model.generate(..)"
            )
        self.model = model
        self.most: int | None = getattr(model.config, "max_position_embeddings", None)
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    @staticmethod
    def prompts(input_ids: Tensor, attention_mask: Tensor | None = None) -> list[list[int]]:
        """Return prompts (B, P) as lists of tokens, without what is masked (B, P): padding, on either side."""
        rows = input_ids.tolist()
        if attention_mask is None:
            return cast(list[list[int]], rows)
        masks = attention_mask.tolist()
        return [[t for t, seen in zip(row, mask, strict=True) if seen] for row, mask in zip(rows, masks, strict=True)]

    @torch.no_grad()
    def extend(
        self,
        tokens: ArrayLike,
        cache: PlacedCache,
        lengths: NDArray[np.int64],
        at: NDArray[np.int64],
        sees: NDArray[np.bool_] | None = None,
    ) -> tuple[Tensor, PlacedCache]:
        """Return logits (B, w, V) after the tokens in columns `at`, and the cache: see `Reader.extend`."""
        device = self.model.device
        tokens = torch.as_tensor(tokens, device=device)
        batch, n = tokens.shape
        cache = PlacedCache(self.model.config) if cache is None else cache
        columns = np.unique(at)
        before = 0 if sees is None else sees.shape[2] - n
        found = []
        for start in range(0, n, MOST_AT_ONCE):
            stop = min(n, start + MOST_AT_ONCE)
            if sees is None:
                own = np.broadcast_to(np.tri(stop - start, stop, start, dtype=bool), (batch, stop - start, stop))
            else:
                own = sees[:, start:stop, : before + stop]
            wanted = columns[(columns >= start) & (columns < stop)] - start
            logits = self._pass(tokens[:, start:stop], cache, lengths, own, wanted)
            found.append(logits[:, : len(wanted)])
        index = torch.as_tensor(np.searchsorted(columns, at), device=device)
        return torch.cat(found, dim=1)[torch.arange(batch, device=device)[:, None], index], cache

    def _pass(
        self,
        tokens: Tensor,
        cache: PlacedCache,
        lengths: NDArray[np.int64],
        sees: NDArray[np.bool_],
        columns: NDArray[np.int64],
    ) -> Tensor:
        """Return the logits (B, U, V) after some columns of tokens (B, n), or of one where none is named."""
        device = self.model.device
        batch, n = tokens.shape
        first = lengths + sees.shape[2] - n
        width = int(first.max()) + n
        # all that is computed from lengths is computed here, and moved to the device at once
        seen = np.broadcast_to(np.arange(width) < lengths[:, None, None], (batch, n, width)).copy()
        for row, length, own in zip(seen, lengths, sees, strict=True):
            row[:, length : length + sees.shape[2]] = own
        positions = lengths[:, None] + sees.sum(2) - 1
        if self.most is not None:  # beyond are only drafts that are given up again: see `Reader.most`
            positions = np.minimum(positions, self.most - 1)
        index = torch.as_tensor(columns if len(columns) else [0], device=device)
        cache.place(torch.as_tensor(first[:, None] + np.arange(n), device=device), width)
        logits: Tensor = self.model(
            input_ids=tokens,
            attention_mask=penalty(torch.as_tensor(seen, device=device)[:, None], self.model.dtype),
            position_ids=torch.as_tensor(positions, device=device),
            use_cache=True,
            **{CACHE: cache, **({"logits_to_keep": index} if self._selects else {})},
        ).logits
        return logits if self._selects else logits[:, index]

    @torch.no_grad()
    def keep(self, cache: PlacedCache, lengths: NDArray[np.int64], entries: NDArray[np.int64]) -> PlacedCache:
        """Return the cache with entry lengths + entries[:, i] of each row moved to lengths + i."""
        device = self.model.device
        source = torch.as_tensor(lengths[:, None] + entries, device=device)
        cache.move(source, torch.as_tensor(lengths[:, None] + np.arange(entries.shape[1]), device=device))
        return cache


class PlacedCache(Cache):
    """Keys and values of which each row's new ones are put at columns that are given before each pass."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(layers=[cast(Any, PlacedLayer)() for _ in DynamicCache(config=config).layers])

    def place(self, columns: Tensor, width: int) -> None:
        """Let the next pass write at columns (B, n), and see the first `width` columns."""
        for layer in cast(list[PlacedLayer], self.layers):
            layer.columns, layer.width = columns, width

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy columns `source` (B, m) of all layers to columns `target` (B, m)."""
        for layer in cast(list[Any], self.layers):
            for array in (layer.keys, layer.values):
                array.scatter_(2, _spread(target, array), array.gather(2, _spread(source, array)))


class PlacedLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # what transformers does with each subclass
    """One layer's keys and values (B, H, C, D), in buffers that grow by doubling."""

    columns: Tensor
    width: int
    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Put new keys and values (B, H, n, D) at their columns, and return all that are seen."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = (
                states.new_zeros(*states.shape[:2], 0, states.shape[3]) for states in (key_states, value_states)
            )
        if self.keys.shape[2] < self.width:
            room = max(self.width, 2 * self.keys.shape[2]) - self.keys.shape[2]
            self.keys, self.values = (torch.nn.functional.pad(old, (0, 0, 0, room)) for old in (self.keys, self.values))
        self.keys.scatter_(2, _spread(self.columns, key_states), key_states)
        self.values.scatter_(2, _spread(self.columns, value_states), value_states)
        return self.keys[:, :, : self.width], self.values[:, :, : self.width]


def _spread(columns: Tensor, array: Tensor) -> Tensor:
    """Return columns (B, n) as an index into an array (B, H, .., D)."""
    return columns[:, None, :, None].expand(-1, array.shape[1], -1, array.shape[3])
