"""What decoders need of a model that reads several tokens at once and forgets some of them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Reader(Protocol):
    """A model with a cache of one entry a token, of which each row of a batch says how many count.

    Going back is calling with smaller `lengths`: what lies beyond is seen by nobody and written over. Rows thus advance
    by different amounts. What depends on lengths alone is known on the host, so no shape needs a value of the device.
    """

    def extend(
        self,
        tokens: Any,
        cache: Any,
        lengths: NDArray[np.int64],
        at: NDArray[np.int64],
        sees: NDArray[np.bool_] | None = None,
    ) -> tuple[Any, Any]:
        """Return the logits (B, w, V) that follow the tokens in columns `at` (B, w), and the cache with all tokens.

        tokens: (B, n), an array of numpy or of the device; rows that have fewer end in columns that no `at` names.
        cache: what came back last, None before anything is read; it may be written to. lengths: (B,) entries of each
        row that all new tokens see. Without `sees`, the new ones are put right behind those, and each also sees the new
        ones before it. sees: bool (B, n, e + n), for trees: the new ones are put behind e more entries, and each sees
        those of the e and of the n that are named, itself among them. The position of a token is how many it sees
        besides itself.
        """

    def keep(self, cache: Any, lengths: NDArray[np.int64], entries: NDArray[np.int64]) -> Any:
        """Return the cache with entry lengths + entries[:, i] moved to lengths + i; entries (B, m), only for trees."""


def padded(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return tokens (B, n), each row's from the left, with 0 behind."""
    out = np.zeros((len(rows), max(1, *map(len, rows))), np.int64)
    for row, tokens in zip(out, rows, strict=True):
        row[: len(tokens)] = tokens
    return out


def check_prompts(prompts: Any) -> list[list[int]]:
    """Return prompts as lists of tokens; ValueError unless each has one token at least."""
    lists = [[int(token) for token in prompt] for prompt in prompts]
    if not lists or not all(lists):
        raise ValueError(
            "prompts must be one list of tokens for each row, each with one token at least: "
            "where there is nothing to read, the token that your model begins with"
        )
    return lists
