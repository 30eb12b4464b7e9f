"""A small model with a cache whose every entry shows, and what its masked sampling gives, by listing all sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import maskwright as mw
from tests.oracles import naive


class Toy:
    """A `Reader` whose logits depend on each token it should see and on where that stands, and on nothing else.

    Its cache holds tokens. What was never written is far off, so that any entry too many or too few shows.
    """

    most: int | None = None

    def __init__(
        self, size: int, into: Callable[[np.ndarray], Any] = np.asarray, seed: int = 0, sharp: float = 1.0
    ) -> None:
        self.size, self.into, self.sharp = size, into, sharp
        rng = np.random.default_rng(seed)
        self.weights = rng.normal(size=(min(size, 1 + 2**20 // size), size))  # by the last token
        few = min(size, 12)
        self.phase, self.speed = rng.random(few) * 7, rng.random(few) * 3
        self.weights[:, 9:] -= 6  # of bytes that no list has, or no case
        self.seen: list[Any] = []  # (tokens, lengths, at, sees) of all calls
        self.kept = 0

    def logits(self, last: Any, history: Any) -> np.ndarray:
        """Return logits (.., V) after the last tokens (..,), of the sums over what they see (..,)."""
        out = self.weights[last % len(self.weights)]
        out[..., : self.phase.size] += np.cos(np.asarray(history)[..., None] * self.speed + self.phase)
        return (self.sharp * out).astype(np.float32)

    def of(self, text: naive.Tokens) -> np.ndarray:
        """Return the logits (V,) after a text."""
        tokens = np.array(text)
        return self.logits(tokens[-1:], (tokens * _wave(np.arange(len(text)))).sum(keepdims=True))[0]

    def extend(self, tokens: Any, cache: Any, lengths: Any, at: Any, sees: Any = None) -> tuple[Any, Any]:
        tokens = np.asarray(tokens)
        self.seen.append((tokens, lengths.copy(), at, sees))
        batch, n = tokens.shape
        if sees is None:
            sees = np.broadcast_to(np.tri(n, dtype=bool), (batch, n, n))
        m = sees.shape[2]
        need = int(lengths.max()) + m
        cache = np.zeros((batch, 0)) if cache is None else cache
        if cache.shape[1] < need:
            cache = np.pad(cache, ((0, 0), (0, need - cache.shape[1])), constant_values=1e3)
        block = lengths[:, None] + np.arange(m)
        position = lengths[:, None] + sees.sum(2) - 1
        rows = np.arange(batch)[:, None]
        cache[rows, block[:, m - n :]] = tokens * _wave(position)  # as keys hold their positions
        trunk = np.where(np.arange(cache.shape[1]) < lengths[:, None], cache, 0).sum(1)
        own = np.where(sees, cache[rows, block][:, None], 0).sum(2)
        history = trunk[:, None] + own
        return self.into(self.logits(tokens[rows, at], history[rows, at])), cache

    def keep(self, cache: Any, lengths: Any, entries: Any) -> Any:
        self.kept += 1
        rows = np.arange(len(lengths))[:, None]
        cache[rows, lengths[:, None] + np.arange(entries.shape[1])] = cache[rows, lengths[:, None] + entries]
        return cache


def _wave(position: Any) -> Any:
    return np.sin(np.asarray(position) * 1.3 + 1)


class Mixed(Toy):
    """A draft for another toy: its logits times a factor, and some of its own."""

    def __init__(self, other: Toy, factor: float, noise: float) -> None:
        super().__init__(other.size, other.into, 77)
        self.other, self.factor, self.noise = other, factor, noise

    def logits(self, last: Any, history: Any) -> np.ndarray:
        own = self.noise * super().logits(last, history)
        return (self.factor * self.other.logits(last, history) + own).astype(np.float32)


def filtered(logits: np.ndarray, allowed: list[int], options: dict[str, Any]) -> dict[int, float]:
    """Return the distribution that `sample` draws from, by what its documentation says."""
    temperature = options.get("temperature", 1.0)
    if temperature == 0:
        return {max(allowed, key=lambda t: (logits[t], -t)): 1.0}
    x = logits[allowed].astype(np.float64) / temperature
    p = np.exp(naive.log_softmax(x))
    if options.get("top_k") is not None:
        p = np.where(p >= np.sort(p)[::-1][: options["top_k"]][-1], p, 0)
        p = p / p.sum()
    if options.get("top_p") is not None:
        ordered = np.sort(p)[::-1]
        before = np.cumsum(ordered) - ordered
        p = np.where(p >= ordered[before < options["top_p"]][-1], p, 0)
        p = p / p.sum()
    if options.get("min_p") is not None:
        p = np.where(p >= options["min_p"] * p.max(), p, 0)
    p = p / p.sum()
    return {t: float(q) for t, q in zip(allowed, p, strict=True) if q > 0}


def allowed(matcher: mw.Matcher) -> list[int]:
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return [t for t in np.flatnonzero(bits).tolist() if t < matcher.table.vocab_size]


def forced(matcher: mw.Matcher, vocabulary: Any) -> list[int]:
    """Take what must follow, as the documentation of `take_forced` says, and return it."""
    taken: list[int] = []
    while True:
        choices = allowed(matcher)
        if not choices or (choices == [matcher.table.eos]):
            return taken
        tokens = matcher.forced_tokens() if vocabulary is not None else []
        tokens = tokens or (choices if len(choices) == 1 else [])
        if not tokens:
            return taken
        assert all(matcher.advance(t) for t in tokens)
        taken += tokens


def enumerate_sequences(
    model: Toy,
    table: mw.TransitionTable,
    prompt: naive.Tokens,
    max_tokens: int,
    *,
    jumping: bool = False,
    vocabulary: Any = None,
    distances: bool = True,
    **options: Any,
) -> dict[Any, float]:
    """Return the probability of each sequence under masked sampling; None: what is not complete in time."""
    found: dict[Any, float] = {}

    def end(key: Any, p: float) -> None:
        found[key] = found.get(key, 0.0) + p

    def go(matcher: mw.Matcher, text: naive.Tokens, p: float) -> None:
        text = text + tuple(forced(matcher, vocabulary)) if jumping else text
        if len(text) > max_tokens:
            return end(None, p)
        choices = allowed(matcher)
        if not choices:
            return end(text, p)
        if jumping and choices == [table.eos]:
            return end(text, p)
        for token, q in filtered(model.of((*prompt, *text)), choices, options).items():
            if token == table.eos:
                end(text, p * q)
            elif len(text) == max_tokens:
                end(None, p * q)
            else:
                following = matcher.copy()
                assert following.advance(token)
                go(following, (*text, token), p * q)
        return None

    go(mw.Matcher(table, vocabulary, max_tokens=max_tokens if distances else None), (), 1.0)
    return found
