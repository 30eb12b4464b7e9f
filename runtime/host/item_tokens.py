"""The tokens of a vocabulary by what they do to the items of an array."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ...lazy.unique.values import string_value
from ...vocabulary.vocabulary import Vocabulary

_STRING_END = re.compile(rb'((?:[^"\\]|\\.)*)"', re.DOTALL)
_STRING = re.compile(rb'[ \t\n\r]*"((?:[^"\\]|\\.)*)"', re.DOTALL)
_NEXT_STRING = re.compile(rb'[ \t\n\r]*,[ \t\n\r]*"((?:[^"\\]|\\.)*)"', re.DOTALL)
_NUMBER_END = re.compile(rb"((?:[-+.0-9eE]*[0-9])?)[ \t\n\r,\]}]")
_FEW = 8  # tokens that are taken out one by one
_MOST_KEPT = 64  # sets of tokens below a node of the trie


class TokenSet:
    """Some tokens, to be taken out of masks."""

    __slots__ = ("_mask", "ids")

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = list(ids)
        self._mask: NDArray[np.uint32] | None = None

    def take_out_of(self, mask: NDArray[np.uint32]) -> None:
        """Clear the bits of these tokens."""
        if len(self.ids) < _FEW:
            for token in self.ids:
                mask[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
            return
        if self._mask is None:
            ids, bits = np.array(self.ids), np.zeros_like(mask)
            np.bitwise_or.at(bits, ids >> 5, np.uint32(1) << (ids & 31).astype(np.uint32))
            self._mask = ~bits
        mask &= self._mask


class ItemTokens:
    """The tokens of a vocabulary that has one for each byte of UTF-8: see `UniqueWalk`.

    closing, strings, next_strings: those that end a string, write a whole one, or write one behind a comma, by its
    characters that are in the token. number_ends: those that end a number, by what of it is in the token.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        trie, tokens = vocabulary.trie, vocabulary.tokens
        self.tokens = tokens
        self.byte, self.skip = trie.byte.data, trie.skip.data
        self.start, self.root = trie.token_start.data, trie.root_start.data
        of_byte = {text[0]: token for token, text in enumerate(tokens) if len(text) == 1}
        self.byte_tokens = [of_byte.get(byte, -1) for byte in range(256)]  # -1 for a byte that UTF-8 does not use
        commas = [token for token, text in enumerate(tokens) if b"," in text]
        self.commas = np.array(commas, np.int64)
        self.commas_behind_quotes = np.array([token for token in commas if b'"' in tokens[token]], np.int64)
        openers = [token for token, text in enumerate(tokens) if b"[" in text or b"{" in text]
        self.openers = np.array(openers, np.int64)
        self.openers_behind_quotes = np.array([token for token in openers if b'"' in tokens[token]], np.int64)
        quoted = [(token, text) for token, text in enumerate(tokens) if b'"' in text]
        self.quotes = np.array([token for token, _ in quoted], np.int64)
        self.closing = _by_content(quoted, _STRING_END)
        self.strings, self.next_strings = _by_content(quoted, _STRING), _by_content(quoted, _NEXT_STRING)
        ends = [(token, text) for token, text in enumerate(tokens) if text and text[0] in b"+-.0123456789eE \t\n\r,]}"]
        self.number_ends = _by_content(ends, _NUMBER_END)
        self._order = trie.token
        self._quotes = np.concatenate(([0], np.cumsum(trie.byte == 34))).astype(np.int32).data
        self._below: dict[tuple[int, int], TokenSet] = {}

    def has_quote_below(self, node: int) -> bool:
        """Return whether a quote stands below a node of the trie."""
        return bool(self._quotes[self.skip[node]] > self._quotes[node + 1])

    def between(self, first: int, stop: int) -> TokenSet:
        """Return the tokens from one place of the trie's order to before another."""
        found = self._below.get((first, stop))
        if found is None:
            found = TokenSet(self._order[first:stop].tolist())
            if stop - first >= _FEW:
                if len(self._below) > _MOST_KEPT:
                    self._below.clear()
                self._below[first, stop] = found
        return found


def _by_content(tokens: Iterable[tuple[int, bytes]], pattern: re.Pattern[bytes]) -> dict[bytes, TokenSet]:
    """Return the tokens that begin like a pattern, by the part of a value in them."""
    found: dict[bytes, list[int]] = {}
    for token, text in tokens:
        match = pattern.match(text)
        if match is None:
            continue
        try:
            content = match[1] if pattern is _NUMBER_END else string_value(match[1])
        except ValueError:  # no escape of JSON
            continue
        found.setdefault(content, []).append(token)
    return {content: TokenSet(ids) for content, ids in found.items()}
