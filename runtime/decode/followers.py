"""Following a draft through the table, depth by depth: on the device, or by matchers on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..device.backend import Array, Operations, Placed
from ..device.on_demand import counts_tokens
from ..host.matcher import Matcher
from .jump import allowed, take_forced
from .unbiased import _where


class Row:
    """One sequence on the host."""

    def __init__(self, prompt: list[int], max_tokens: int) -> None:
        self.tokens = prompt
        self.start, self.most = len(prompt), max_tokens
        self.live, self.done = True, False
        self.tried = self.accepted = self.forced = 0

    @property
    def room(self) -> int:
        """How many more tokens may be written."""
        return self.start + self.most - len(self.tokens)

    def end(self, done: bool) -> None:
        """Write no more; done: the sequence is complete."""
        self.live, self.done = False, done


class DeviceFollower:
    """States of a round's draft, depth by depth, on the device."""

    def __init__(self, ops: Operations, dev: Placed, batch: int, max_tokens: int) -> None:
        self.ops, self.dev, self.batch = ops, dev, batch
        self.size, self.ends, self.length = dev.vocab_size, dev.ends, dev.fixed_length
        shortened = dev.max_length is None or max_tokens < dev.max_length
        self.distances = shortened and counts_tokens(dev)
        self.root = ops.start(dev, batch)
        self.levels: list[Any] = []
        self.room: Array = None

    def begin(self, b: int, row: Row) -> None:
        """Begin a row."""

    def open(self, rows: Sequence[Row]) -> None:
        """Begin a draft where the rows are."""
        self.levels = [self.root]
        if self.distances:
            self.room = self.ops.arrays.to_device(np.array([row.room for row in rows]), self.root.node)

    def grow(self, tokens: Array, children: int) -> None:
        """Follow drafted tokens (B, w * children)."""
        parents = self.ops.arrays.arange(tokens.shape[0] * tokens.shape[1], like=self.root.node) // children
        state = self.ops.arrays.gather(self.levels[-1], parents)
        self.levels.append(self.ops.advance(self.dev, state, tokens.reshape(-1)))

    def place(self, level: int, at: Array) -> Any:
        """Return where node `at` (B,) of a depth stands."""
        state = self.levels[level]
        width = state.node.shape[0] // self.batch
        return self.ops.arrays.gather(state, self.ops.arrays.arange(self.batch, like=at) * width + at)

    def mask(self, x: Array, level: int, place: Array | None = None) -> Any:
        """Return x (B * w, V) masked for all nodes of a depth, or (B, V) for one place of each row."""
        state = self.levels[level] if place is None else place
        remaining = None
        if self.distances:
            each = state.node.shape[0] // self.batch
            rows = self.ops.arrays.arange(state.node.shape[0], like=self.root.node) // each
            left = self.room - level
            remaining = self.ops.arrays.where(left > 0, left, 0)[rows]
        return self.ops.mask_logits(self.dev, x, state, remaining)

    def choose(self, condition: Array, a: Array, b: Array) -> Any:
        """Return place a where a condition (B,) holds, else b."""
        return type(a)(*(_where(self.ops, condition, x, y) for x, y in zip(a, b, strict=True)))

    def close(self, place: Array, token: Array) -> None:
        """Go on from a place by one more token (B,)."""
        self.root = self.ops.advance(self.dev, place, token)

    def take(self, b: int, row: Row, token: int) -> None:
        """Write a token of a row, which may end it."""
        if token < 0 or (token not in self.ends and row.room == 0):
            row.end(False)
        elif token in self.ends:
            row.end(True)
        else:
            row.tokens.append(token)
            if not self.ends and len(row.tokens) - row.start == self.length:
                row.end(True)

    def forced(self, level: int) -> list[list[int]] | None:
        """Return what is forced behind each node of a depth, its token in front; None: nothing is looked for."""
        return None

    def is_open(self, level: int) -> bool:
        """Return whether a node of a depth may go on, as far as is known on the host."""
        return True


class HostFollower:
    """Matchers of a round's draft, depth by depth, with jumps: what is forced behind a token belongs to it."""

    def __init__(self, ops: Operations, matchers: list[Matcher]) -> None:
        self.ops, self.matchers, self.batch = ops, matchers, len(matchers)
        self.size = max(matcher.table.vocab_size for matcher in matchers)
        self.levels: list[list[Matcher | None]] = []
        self.spans: list[list[list[int]]] = []
        self.masks: list[Any] = []

    def begin(self, b: int, row: Row) -> None:
        """Write what is forced at the beginning."""
        self._write(row, [], take_forced(self.matchers[b]), self.matchers[b])

    def open(self, rows: Sequence[Row]) -> None:
        """Begin a draft where the rows are."""
        self.levels = [[matcher if row.live else None for matcher, row in zip(self.matchers, rows, strict=True)]]
        self.spans, self.masks = [[[] for _ in rows]], []

    def grow(self, tokens: Array, children: int) -> None:
        """Follow drafted tokens (B, w * children), and what is forced behind each."""
        following: list[Matcher | None] = []
        spans = []
        for node, token in enumerate(self.ops.arrays.to_host(tokens).reshape(-1).tolist()):
            parent = self.levels[-1][node // children]
            matcher = None if parent is None or token < 0 else parent.copy()
            if matcher is not None and not matcher.advance(token):
                matcher = None
            spans.append([max(token, 0)] + ([] if matcher is None else take_forced(matcher)))
            following.append(matcher)
        self.levels.append(following)
        self.spans.append(spans)

    def place(self, level: int, at: Array) -> Any:
        """Return what node `at` (B,) of a depth allows."""
        masks = self._masks(level, at)
        width = masks.shape[0] // self.batch
        return masks[self.ops.arrays.arange(self.batch, like=at) * width + at]

    def mask(self, x: Array, level: int, place: Array | None = None) -> Any:
        """Return x (B * w, V) masked for all nodes of a depth, or (B, V) for one place of each row."""
        return self.ops.arrays.where(self._masks(level, x) if place is None else place, x, -float("inf"))

    def _masks(self, level: int, like: Array) -> Any:
        if level == len(self.masks):
            matchers = self.levels[level]
            self.masks.append(self.ops.arrays.to_device(allowed(matchers, [True] * len(matchers), self.size), like))
        return self.masks[level]

    def choose(self, condition: Array, a: Array, b: Array) -> Any:
        """Return place a where a condition (B,) holds, else b."""
        return _where(self.ops, condition, a, b)

    def close(self, place: Array, token: Array) -> None:
        """Go on from a place by one more token (B,): known once it is written."""

    def take(self, b: int, row: Row, token: int) -> None:
        """Write a token of a row and what is forced behind it, which may end it."""
        matcher = self.matchers[b]
        if token < 0 or (token not in matcher.table.ends and row.room == 0) or not matcher.advance(token):
            row.end(False)
        elif token in matcher.table.ends:
            row.end(True)
        else:
            self._write(row, [token], take_forced(matcher), matcher)

    def _write(self, row: Row, drawn: list[int], forced: list[int], matcher: Matcher) -> None:
        row.tokens += drawn + forced
        row.forced += len(forced)
        if row.room < 0 or matcher.is_finished:
            row.end(row.room >= 0)

    def forced(self, level: int) -> list[list[int]] | None:
        """Return what is forced behind each node of a depth, its token in front."""
        return self.spans[level]

    def is_open(self, level: int) -> bool:
        """Return whether a node of a depth may go on."""
        return any(matcher is not None and not matcher.is_finished for matcher in self.levels[level])
