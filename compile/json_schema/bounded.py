"""Strings by their length alone: rows put together from what is known of every token, without walking.

A string of low .. high characters is high copies of the library's string, one for each number of characters read so
far. State (k, q) is state q of the string after k characters, numbered k * Q + q, so that a token of c characters leads
c * Q further: all copies share the library's masks, with relative targets. Only where the end is near, some tokens are
too long: those rows are the same for all lengths, and are made once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...automata.budget import Meter
from ...automata.state_ranges import DEAD, RETURN
from ...kernels.compiled import kernel
from ...table.groups import Bases, Exits, TokenClasses
from ..bind.arrays import KILL, TrieArrays
from ..bind.fragment import Fragment, exits_of_rows
from ..bind.wide_rows import starts

_FEW = 256  # tokens of a row that are listed rather than kept as a mask


@dataclass(eq=False)
class Lengths:
    """What is known of the tokens inside strings: where each leads from each state, and over how many characters."""

    rows: NDArray[np.int32]  # (Q, 256) codes of the string's states, counted from 0, which is its body
    first: int  # the library's state of the body
    size: int  # of the vocabulary
    start: NDArray[np.int64]  # (Q + 1,) by state
    token: NDArray[np.int32]  # sorted within a state
    target: NDArray[np.int32]  # state
    characters: NDArray[np.int32]  # completed on the way
    exit_start: NDArray[np.int64]
    exit_token: NDArray[np.int32]
    exit_symbol: NDArray[np.int32]
    exit_characters: NDArray[np.int32]
    reach: int  # positions that a token which opens a string can come to
    masks: list[NDArray[np.uint32]] = field(default_factory=list)
    bases: list[tuple[int, int, NDArray[np.int32]]] = field(default_factory=list)  # mask, class list, targets by class
    known: dict[Any, int] = field(default_factory=dict)
    made: dict[tuple[int, int | None], Fragment] = field(default_factory=dict)

    @property
    def states(self) -> int:
        """Q: states of a string at one position."""
        return len(self.rows)

    @cached_property
    def needed(self) -> NDArray[np.int32]:
        """The characters a token takes, one that it only begins included."""
        needed: NDArray[np.int32] = self.characters + (self.target != 0)
        return needed

    @cached_property
    def classes(self) -> list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]]:
        """For each state: listed tokens, their class, and each class's target state and characters."""
        out = []
        for q in range(self.states):
            part = slice(self.start[q], self.start[q + 1])
            kinds, which = np.unique(self.characters[part] * self.states + self.target[part], return_inverse=True)
            by_count = np.argsort(-np.bincount(which, minlength=1), kind="stable")
            rank = np.argsort(by_count)[which].astype(np.int32) if kinds.size else which.astype(np.int32)
            kinds = kinds[by_count] if kinds.size else np.zeros(1, np.int64)
            listed = rank > 0
            out.append(
                (
                    self.token[part][listed], rank[listed],
                    (kinds % self.states).astype(np.int32), (kinds // self.states).astype(np.int32),
                )
            )  # fmt: skip
        return out

    def base(self, q: int, most: int | None, least: int) -> int:
        """Return the base of state q that allows tokens of at most `most` characters.

        least: from so many characters on a token leads to the library's string, which has no bound; 0 for never.
        """
        key = (q, most, least)
        found = self.known.get(key)
        if found is None:
            mask = self._mask(q, most)
            _, _, target, characters = self.classes[q]
            codes = 2 * (characters * self.states + target - q) + 1
            if least:
                codes = np.where(characters >= least, 2 * (self.first + target), codes)
            found = self.known[key] = len(self.bases)
            self.bases.append((mask, q, codes.astype(np.int32)))
        return found

    def near(self) -> None:
        """Make the masks of the body for all numbers of characters that may be left, which strings soon ask for."""
        part = slice(self.start[0], self.start[1])
        order = np.argsort(self.needed[part], kind="stable")
        tokens = self.token[part][order]
        behind = np.searchsorted(self.needed[part][order], np.arange(self.most_needed + 1), "right")
        bits = np.zeros(-(-self.size // 32) * 32, np.uint8)
        done = 0
        for left in range(1, self.most_needed):
            bits[tokens[done : behind[left]]] = 1
            done = behind[left]
            if ("mask", 0, left) not in self.known:
                self.known["mask", 0, left] = len(self.masks)
                self.masks.append(np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32))

    def mask_of(self, q: int, most: int | None) -> NDArray[np.uint32]:
        """Return the tokens that stay in the string from state q over at most so many characters."""
        return self.masks[self._mask(q, most)]

    def _mask(self, q: int, most: int | None) -> int:
        key = ("mask", q, most)
        found = self.known.get(key)
        if found is None:
            part = slice(self.start[q], self.start[q + 1])
            tokens = self.token[part] if most is None else self.token[part][self.needed[part] <= most]
            bits = np.zeros(-(-self.size // 32) * 32, np.uint8)
            bits[tokens] = 1
            found = self.known[key] = len(self.masks)
            self.masks.append(np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32))
        return found

    @cached_property
    def most_needed(self) -> int:
        """The most characters that one token takes."""
        return int(self.needed.max(initial=1))

    @cached_property
    def tail(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """The last positions of any bounded string: (row counts, tokens, relative targets, bases), as they lie.

        The positions with most_needed .. 1 characters left, Q states each.
        """
        counts, bases = [], []
        tokens, steps = [], []
        for left in range(self.most_needed, 0, -1):
            for q in range(self.states):
                part = slice(self.start[q], self.start[q + 1])
                needed, token = self.needed[part], self.token[part]
                fits = needed <= left
                allowed = int(np.count_nonzero(fits))
                if needed.size - allowed <= _FEW and needed.size > _FEW:
                    bases.append(self.base(q, None, 0))
                    chosen = np.flatnonzero(~fits)
                    step = np.full(chosen.size, KILL, np.int32)
                elif allowed <= _FEW:
                    bases.append(-1)
                    chosen = np.flatnonzero(fits)
                    step = self.characters[part][chosen] * self.states + self.target[part][chosen] - q
                else:
                    bases.append(self.base(q, left, 0))
                    chosen, step = np.zeros(0, np.int64), np.zeros(0, np.int32)
                counts.append(chosen.size)
                tokens.append(token[chosen])
                steps.append(step)
        return (
            np.array(counts, np.int32), np.concatenate(tokens).astype(np.int32),
            np.concatenate(steps).astype(np.int32), np.array(bases, np.int32),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------- one string

    def opening(self, low: int, high: int | None, origin: int) -> NDArray[np.int32]:
        """Return the rows (n, 256) of the first positions as codes of a machine in which they begin at `origin`."""
        count = self.count(low, high)
        positions = min(-(-count // self.states), self.reach + 1)
        out = np.full((positions * self.states, 256), DEAD, np.int32)
        for k in range(positions):
            block = out[k * self.states : (k + 1) * self.states]
            rows = self.rows
            done = (rows == 0).astype(np.int32) + k  # characters after the byte
            goes = (rows >= 0) if high is None else (rows >= 0) & (done + (rows > 0) <= high)
            within = (done < positions) if high is not None else (done < min(positions, low))
            block[goes & within] = (origin + done * self.states + rows)[goes & within]
            if high is None:
                block[goes & (done >= low)] = (self.first + rows)[goes & (done >= low)]
            if k >= low and (high is None or k <= high):
                block[rows <= RETURN] = RETURN
        return out[:count]

    def count(self, low: int, high: int | None) -> int:
        """Return the number of states that read a string of low to high characters.

        high: None for a string without an upper bound; low is at least 1 then.
        """
        return low * self.states if high is None else high * self.states + 1

    def fragment(self, low: int, high: int | None, meter: Meter) -> Fragment:
        """Return the rows of such a string; their bases are this object's."""
        found = self.made.get((low, high))
        if found is not None:
            return found
        count, states = self.count(low, high), self.states
        meter.check(bytes=32 * count, doing=f"counting the {high or low} characters of a string")
        row_count = np.zeros(count, np.int32)
        base_row = np.empty(count, np.int32)
        if high is None:
            token = step = np.zeros(0, np.int32)
            for q in range(states):
                part = slice(self.start[q], self.start[q + 1])
                longest = int(self.characters[part].max(initial=0))
                far = self.base(q, None, 0) if part.stop > part.start else -1
                column = base_row[q::states]
                column[:] = far
                for k in range(max(0, low - longest), low if far >= 0 else 0):
                    column[k] = self.base(q, None, low - k)
        else:
            counts, tokens, steps, bases = self.tail
            near = min(high, self.most_needed)
            for q in range(states):
                base_row[q : count - 1 : states] = self.base(q, None, 0) if self.start[q + 1] > self.start[q] else -1
            at = (high - near) * states
            skipped = (self.most_needed - near) * states
            row_count[at : count - 1] = counts[skipped:]
            base_row[at : count - 1] = bases[skipped:]
            base_row[count - 1] = -1
            dropped = int(counts[:skipped].sum())
            token, step = tokens[dropped:], steps[dropped:]
        at_state = np.repeat(np.arange(count, dtype=np.int32), row_count)
        target = np.where(step == KILL, count, at_state + step).astype(np.int32)
        none, no_lists = np.zeros(0, np.int32), np.zeros(1, np.int32)
        no_tokens: NDArray[Any] = none
        found = Fragment(
            row_count, token, target, base_row, Bases(np.zeros((0, 0), np.uint32), none, none, no_lists, none),
            TokenClasses(no_lists, no_tokens, none), self._exits(low, high, count),
        )  # fmt: skip
        if count < 20_000:
            self.made[(low, high)] = found
        return found

    def shared_bases(self) -> tuple[Bases, TokenClasses]:
        """Return the bases of all fragments that were made so far, and a class list for each state of a string."""
        codes = [codes for _, _, codes in self.bases]
        bases = Bases(
            masks=np.array(self.masks),
            mask=np.array([mask for mask, _, _ in self.bases], np.int32),
            class_list=np.array([q for _, q, _ in self.bases], np.int32),
            target_start=starts(codes),
            target=np.concatenate(codes),
        )
        listed: list[NDArray[Any]] = [token for token, _, _, _ in self.classes]
        numbers = np.concatenate([number for _, number, _, _ in self.classes])
        tokens: NDArray[Any] = np.concatenate(listed)
        return bases, TokenClasses(starts(listed), tokens, numbers)

    def _exits(self, low: int, high: int | None, count: int) -> Exits:
        """Return the exit lists of such a string."""
        states = self.states
        row_exit = np.full(count, -1, np.int32)
        tokens: list[NDArray[np.int32]] = []
        symbols: list[NDArray[np.int32]] = []
        lists: dict[bytes, int] = {}
        for q in range(states):
            part = slice(self.exit_start[q], self.exit_start[q + 1])
            characters = self.exit_characters[part]
            if not characters.size:
                continue
            most = int(characters.max())
            k = np.arange(len(row_exit[q::states]))
            lacking = np.minimum(np.maximum(low - k, 0), most + 1)
            left = np.full(k.size, most) if high is None else np.minimum(high - k, most)
            keys, which = np.unique(lacking * (most + 2) + left, return_inverse=True)
            ids = np.full(keys.size, -1, np.int32)
            for i, key in enumerate(keys.tolist()):
                least, room = divmod(key, most + 2)
                chosen = (characters >= least) & (characters <= room)
                if not chosen.any():
                    continue
                token, symbol = self.exit_token[part][chosen], self.exit_symbol[part][chosen]
                name = token.tobytes() + b"/" + symbol.tobytes()
                known = lists.get(name)
                if known is None:
                    known = lists[name] = len(lists)
                    tokens.append(token)
                    symbols.append(symbol)
                ids[i] = known
            row_exit[q::states] = ids[which]
        empty = np.zeros(0, np.int32)
        return exits_of_rows(
            row_exit, starts(tokens), np.concatenate([empty, *tokens]), np.concatenate([empty, *symbols]), 0
        )


@kernel
def follow_string(
    rows: NDArray[np.int32], trie: TrieArrays, q: int, out: NDArray[np.int32], exits: NDArray[np.int32]
) -> tuple[int, int]:
    """Walk all tokens from state q of a string; return how many stay in it and how many end it.

    out (n, 3): token, state, characters completed; exits (n, 3): token, bytes read at the end, characters.
    """
    byte, skip, depth, token_start = trie.byte, trie.skip, trie.depth, trie.token_start
    token, root_start = trie.token, trie.root_start
    levels = 2
    for i in range(depth.size):
        if depth[i] + 2 > levels:
            levels = depth[i] + 2
    state, read = np.zeros(levels, np.int32), np.zeros(levels, np.int32)
    state[0] = q
    stay = leave = 0
    for b in range(256):
        if rows[q, b] == DEAD:
            continue
        i, last = root_start[b], root_start[b + 1]
        while i < last:
            d = depth[i] - 1
            code = rows[state[d], byte[i]]
            if code == DEAD:
                i = skip[i]
                continue
            if code <= RETURN:
                for x in range(token_start[i], token_start[skip[i]]):
                    exits[leave, 0], exits[leave, 1], exits[leave, 2] = token[x], d + 1, read[d]
                    leave += 1
                i = skip[i]
                continue
            state[d + 1], read[d + 1] = code, read[d] + (code == 0)
            for x in range(token_start[i], token_start[i + 1]):
                out[stay, 0], out[stay, 1], out[stay, 2] = token[x], code, read[d + 1]
                stay += 1
            i += 1
    return stay, leave
