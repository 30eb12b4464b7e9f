"""Which characters tokens have, as compilers and lazy masks ask."""

from __future__ import annotations

import codecs
import functools
import operator

import numpy as np
import pytest

from maskwright.vocabulary.characters import BEHIND, BYTE_GROUP, UNCLEAN
from maskwright.vocabulary.vocabulary import Vocabulary
from tests.strategies import tokenizer_zoo as zoo


def test_bytes_that_begin_characters_say_which_bytes_may_follow() -> None:
    for first in range(256):
        encodings = []
        for second in range(256):
            for count in range(4):
                rest = bytes([second, *[0x80] * (count - 1)]) if count else b""
                try:
                    if len((bytes([first]) + rest).decode()) == 1:
                        encodings.append((second, count))
                except UnicodeDecodeError:
                    pass
        assert (int(BYTE_GROUP[first]) == UNCLEAN) is (not encodings)
        if encodings:
            low, high, follow = BEHIND[first].tolist()
            assert {count for _, count in encodings} == {follow}
            assert not follow or (min(encodings)[0], max(encodings)[0]) == (low, high)


def test_content_says_which_characters_lie_below_a_node() -> None:
    _, vocab = zoo.mistral_sentencepiece()
    trie, tokens = vocab.trie, vocab.tokens

    def groups(text: bytes) -> int:
        try:
            return sum({1 << int(BYTE_GROUP[c.encode()[0]]) for c in text.decode()})
        except UnicodeDecodeError:
            return 1 << UNCLEAN

    for node in np.random.default_rng(0).integers(0, trie.byte.size, 2000).tolist():
        before = int(trie.depth[node]) - 1
        below = [tokens[t] for t in trie.token[trie.token_start[node] : trie.token_start[trie.skip[node]]]]
        expected = functools.reduce(operator.or_, (groups(token[before:]) for token in below))
        if groups(below[0][:before]) >> UNCLEAN or expected >> UNCLEAN:
            assert int(trie.content[node]) >> UNCLEAN
        else:
            assert int(trie.content[node]) == expected


def test_characters_of_tokens_are_those_that_begin_in_them() -> None:
    _, vocab = zoo.mistral_sentencepiece()
    odd = [
        b"",
        b"\xc3",
        b"a\xe2\x82",
        b"\x82a",
        b"\xe2(",
        b"\xc3\xa9\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
        b"\xf5",
        b"a\x00\xff",
    ]
    for each in (vocab, Vocabulary.from_bytes(odd)):
        groups, length, number = each.characters
        assert (groups[length == 0] == 2**64 - 1).all()
        for token, text in enumerate(each.tokens):
            if not length[token]:
                continue
            assert length[token] == len(text)
            try:
                codecs.getincrementaldecoder("utf-8")().decode(text)  # which may end inside a character
            except UnicodeDecodeError:
                assert int(groups[token]) >> UNCLEAN, text
            else:
                begun = {1 << int(BYTE_GROUP[b]) for b in text if b < 0x80 or b >= 0xC0}
                assert int(groups[token]) == sum(begun), text
                assert number[token] == sum(b < 0x80 or b >= 0xC0 for b in text), text


def test_shares_are_of_tokens_without_a_group_behind_their_first_byte() -> None:
    vocab = Vocabulary.from_bytes([b"a", b"1a", b"a1", b"abc", b"", b'a"'])
    shares, digit, quote = vocab.shares, int(BYTE_GROUP[0x30]), int(BYTE_GROUP[0x22])
    assert shares[digit] == shares[quote] == 5 / 6
    assert shares[int(BYTE_GROUP[0x61])] == pytest.approx(4 / 6)
    assert shares[64:].tolist() == [1 / 6, 2 / 6, 5 / 6, 1]
