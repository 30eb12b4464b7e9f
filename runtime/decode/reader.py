"""What decoders need of a model that reads several tokens at once and forgets some of them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..device.backend import Array, Cache


class Reader(Protocol):
    """A model with a cache of one entry a token, of which each row of a batch says how many count.

    Going back is calling with smaller `lengths`: what lies beyond is seen by nobody and written over. Rows thus advance
    by different amounts. What depends on lengths alone is known on the host, so no shape needs a value of the device.
    """

    @property
    def most(self) -> int | None:
        """How many tokens of a row the model has positions for; None for any number.

        Decoders begin no text that could become longer. What is fed beyond are drafts that will not be kept, and what
        comes back for these may be anything.
        """

    def extend(
        self,
        tokens: Array,
        cache: Cache,
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

    def keep(self, cache: Cache, lengths: NDArray[np.int64], entries: NDArray[np.int64]) -> Any:
        """Return the cache with entry lengths + entries[:, i] moved to lengths + i; entries (B, m), only for trees."""


def padded(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return tokens (B, n), each row's from the left, with 0 behind."""
    out = np.zeros((len(rows), max(1, *map(len, rows))), np.int64)
    for row, tokens in zip(out, rows, strict=True):
        row[: len(tokens)] = tokens
    return out


def check_prompts(prompts: Iterable[Iterable[int]], max_tokens: object, *models: Reader) -> list[list[int]]:
    """Return prompts as lists of tokens; TypeError, ValueError unless each has one, and its text has room in models."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, Integral):
        raise TypeError(f"max_tokens must be an integer, not {type(max_tokens).__name__}")
    if int(max_tokens) < 1:
        raise ValueError(f"max_tokens must be positive, not {max_tokens}")
    lists = [[int(token) for token in prompt] for prompt in prompts]
    if not lists or not all(lists):
        raise ValueError(
            "prompts must be one list of tokens for each row, each with one token at least: "
            "where there is nothing to read, the token that your model begins with"
        )
    longest = max(map(len, lists))
    for model in models:
        if model.most is not None and longest + int(max_tokens) > model.most:
            raise ValueError(
                f"a prompt of {longest} tokens and max_tokens={max_tokens} are more than the {model.most} that the "
                "model has positions for: shorten one of them"
            )
    return lists
