"""Naive oracles: sets of tuples and exhaustive scoring, against which everything fast is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

Tokens = tuple[int, ...]


def allowed_after(sequences: set[Tokens], prefix: Tokens, eos: int | None) -> set[int]:
    """Return the tokens that may follow a prefix: next tokens of sequences that begin with it, and EOS."""
    n = len(prefix)
    following = {s[n] for s in sequences if len(s) > n and s[:n] == prefix}
    return following | ({eos} if eos is not None and prefix in sequences else set())


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def ranking(
    sequences: set[Tokens],
    logits: np.ndarray,
    eos: int | None,
    penalty: float = 0.0,
    renormalize: bool = False,
) -> list[tuple[float, Tokens]]:
    """Score every sequence under logits (L + 1, V, V) indexed by step and previous token; best first."""
    scored = []
    for sequence in sequences:
        total, previous = 0.0, 0
        for t, token in enumerate(sequence + (() if eos is None else (eos,))):
            p = log_softmax(logits[t, previous])
            total += p[token]
            if renormalize:
                total -= np.log(sum(np.exp(p[a]) for a in allowed_after(sequences, sequence[:t], eos)))
            previous = token
        scored.append((total / len(sequence) ** penalty, sequence))
    return sorted(scored, key=lambda pair: -pair[0])


def prefixes(sequences: set[Tokens]) -> list[Tokens]:
    return sorted({s[:n] for s in sequences for n in range(len(s) + 1)})


@st.composite
def sid_sets(draw: Any) -> tuple[list[Tokens], int]:
    """Rows of one length with duplicates and shared prefixes, and a vocabulary size."""
    vocab = draw(st.sampled_from([1, 2, 3, 5, 31, 32, 33, 64, 100, 255, 256, 300]))
    length = draw(st.integers(1, 6))
    token = st.integers(0, min(vocab, draw(st.sampled_from([2, 4, 1000]))) - 1)
    rows = draw(st.lists(st.tuples(*[token] * length), min_size=1, max_size=40))
    return rows, vocab


@st.composite
def ragged_sets(draw: Any, eos: int | None = None) -> tuple[list[Tokens], int]:
    """Rows of different lengths, some the prefix of others, that never hold EOS."""
    vocab = draw(st.sampled_from([3, 4, 33, 64, 257]))
    low = 1 if eos == 0 else 0
    token = st.integers(low, min(vocab, draw(st.sampled_from([3, 6, 1000]))) - 1)
    rows = draw(st.lists(st.lists(token, min_size=1, max_size=7).map(tuple), min_size=1, max_size=30))
    if draw(st.booleans()):
        rows += [row[: draw(st.integers(1, len(row)))] for row in rows[:5]]
    return rows, vocab


def flatten(rows: Sequence[Tokens], dtype: Any = np.int64) -> tuple[np.ndarray, np.ndarray]:
    """Return values and offsets."""
    return np.array([t for row in rows for t in row], dtype), np.cumsum([0, *map(len, rows)])
