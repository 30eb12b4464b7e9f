"""Rows of so many tokens that they become bases: masks, class lists and targets, each kept once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...automata.state_ranges import DEAD
from ...kernels.arrays import Int32Array
from ...kernels.compiled import kernel
from ...table.groups import Bases, TokenClasses
from ...vocabulary.characters import BEHIND, BYTE_GROUP, UNCLEAN
from ...vocabulary.token_trie import TokenTrie
from .arrays import TrieArrays


class FreeTokens(NamedTuple):
    """Tokens of some groups of characters alone, and the state that they all lead to."""

    groups: int  # as bits; see `BYTE_GROUP`
    token: NDArray[np.int32]
    state: int


class WideRows:
    """Bases in the making."""

    def __init__(self, vocab_size: int) -> None:
        self._width = -(-vocab_size // 32)
        self._words: dict[int, NDArray[np.uint32]] = {}  # the mask of tokens of some groups of characters
        self._masks: dict[bytes, int] = {}
        self._lists: dict[bytes, int] = {}
        self._classes: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._made: list[tuple[int, int, NDArray[Any]]] = []  # mask, class list, targets
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._made)

    def add(self, token: NDArray[Any], code: NDArray[Any], free: FreeTokens | None = None) -> int:
        """Return the number of a new base, of tokens and the states that they lead to, and of free tokens beside."""
        key, tokens, state = free or (0, token[:0], -1)
        words = self._words.get(key)
        if words is None:
            bits = np.zeros(32 * self._width, np.uint8)
            bits[tokens] = 1
            words = self._words[key] = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
        words = words.copy()
        count = _mark_tokens(token, code, words, int(code.max(initial=state)) + 1)
        mask = words.tobytes()
        if state >= 0:
            count[state] += tokens.size
        targets = np.flatnonzero(count)
        targets = targets[np.argsort(-count[targets], kind="stable")]
        if state >= 0 and targets[0] != state:  # more lead elsewhere
            order = np.argsort(np.append(token, tokens))
            token = np.append(token, tokens)[order]
            code = np.append(code, np.full(tokens.size, state, code.dtype))[order]
        classes = _ranked(token, code, targets, count.size)
        found = self._lists.setdefault(classes[0].tobytes() + classes[1].tobytes(), len(self._classes))
        if found == len(self._classes):
            self._classes.append(classes)
            self.nbytes += 2 * classes[0].nbytes
        if mask not in self._masks:
            self._masks[mask] = len(self._masks)
            self.nbytes += len(mask)
        self._made.append((self._masks[mask], found, (2 * targets).astype(np.int32)))
        return len(self._made) - 1

    def groups(self) -> tuple[Bases, TokenClasses]:
        """Return the arrays of the bases."""
        none = np.zeros(0, np.int32)
        bases = Bases(
            masks=np.frombuffer(b"".join(self._masks), np.uint32).reshape(-1, self._width),
            mask=np.array([mask for mask, _, _ in self._made], np.int32),
            class_list=np.array([classes for _, classes, _ in self._made], np.int32),
            target_start=starts([codes for _, _, codes in self._made]),
            target=np.concatenate([none, *(codes for _, _, codes in self._made)]),
        )
        classes = TokenClasses(
            start=starts([token for token, _ in self._classes]),
            token=np.concatenate([none, *(token for token, _ in self._classes)]),
            number=np.concatenate([none, *(which for _, which in self._classes)]),
        )
        return bases, classes


def starts(parts: Sequence[NDArray[Any]]) -> NDArray[np.int32]:
    """Return where each of some arrays begins when they lie one after the other, and where the last ends."""
    return np.cumsum([0, *map(len, parts)]).astype(np.int32)


def free_tokens(groups: int, trie: TokenTrie) -> NDArray[np.int32]:
    """Return the tokens of some groups of characters alone. groups: as bits."""
    found: NDArray[np.int32] = _tokens_of(TrieArrays.of(trie), np.uint64(groups))
    return found


@kernel
def loops_of(rows: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return the groups of characters that lead from each state of rows (N, 256) back to it (N,), as bits."""
    out = np.zeros(rows.shape[0], np.uint64)
    one = np.uint64(1)
    for s in range(rows.shape[0]):
        others = one << np.uint64(UNCLEAN)
        for b in range(0xF5):
            group = one << np.uint64(BYTE_GROUP[b])
            if others & group:
                continue
            here = rows[s, b]
            low, high = BEHIND[b, 0], BEHIND[b, 1]
            for _ in range(BEHIND[b, 2]):
                if here < 0:
                    break
                after = rows[here, low]
                for c in range(low + 1, high + 1):
                    if rows[here, c] != after:
                        after = np.int32(DEAD)
                        break
                here = after
                low, high = 0x80, 0xBF
            if here != s:
                others |= group
        out[s] = ~others
    return out


@kernel
def _tokens_of(trie: TrieArrays, groups: np.uint64) -> NDArray[np.int32]:
    """Return the tokens in parts of a trie where all characters are of some groups, behind none that are not."""
    byte, content, skip, token_start, token = trie.byte, trie.content, trie.skip, trie.token_start, trie.token
    out = np.empty(token.size, np.int32)
    count, i = 0, np.int64(0)
    while i < skip.size:
        if content[i] & ~groups == 0:  # with all that is below
            for x in range(token_start[i], token_start[skip[i]]):
                out[count] = token[x]
                count += 1
            i = np.int64(skip[i])
        elif is_of(byte[i], groups):
            i += 1
        else:
            i = np.int64(skip[i])
    return out[:count]


@kernel(inline="always")
def is_of(byte: int, groups: np.uint64) -> Any:
    """Return whether a byte is of a character of some groups, as far as it says: bytes behind the first say nothing."""
    return (0x80 <= byte < 0xC0) or groups >> np.uint64(BYTE_GROUP[byte]) & np.uint64(1) != 0


@kernel
def _mark_tokens(token: Int32Array, code: Int32Array, words: NDArray[np.uint32], codes: int) -> NDArray[np.int64]:
    """Set the bits of tokens (n,) in words, and return how many have each code, (codes,)."""
    count = np.zeros(codes, np.int64)
    for k in range(token.size):
        words[token[k] >> 5] |= np.uint32(1) << np.uint32(token[k] & 31)
        count[code[k]] += 1
    return count


@kernel
def _ranked(
    token: Int32Array, code: Int32Array, targets: NDArray[np.int64], codes: int
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return the tokens whose code is not the first of some targets, and the place of their codes among these."""
    rank_of = np.empty(codes, np.int32)
    for rank in range(targets.size):
        rank_of[targets[rank]] = rank
    out, rank_out = np.empty(token.size, token.dtype), np.empty(token.size, np.int32)
    n = 0
    for k in range(token.size):
        out[n], rank_out[n] = token[k], rank_of[code[k]]
        n += rank_of[code[k]] > 0
    return out[:n].copy(), rank_out[:n].copy()
