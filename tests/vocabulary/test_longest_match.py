"""Texts written with the longest token at each position."""

from __future__ import annotations

import pytest

import maskwright as mw
from maskwright.vocabulary.longest_match import LongestMatch, shortened


def test_the_longest_token_is_taken_after_which_the_rest_can_be_written() -> None:
    match = LongestMatch([b"a", b"ab", b"abc", b"cd", b"", b"ab"])
    assert match.encode(b"abcab") == [2, 1]
    assert match.encode(b"abcd") == [1, 3], "abc would leave a d"
    assert match.encode(b"") == []


def test_bytes_that_no_tokens_spell_are_refused_with_their_place() -> None:
    with pytest.raises(mw.errors.ConstraintError, match=r"b'aab!' cannot be written .* at byte 3, b'!'"):
        LongestMatch([b"a", b"ab"]).encode(b"aab!")


def test_long_bytes_are_cut_for_messages() -> None:
    assert shortened(b"a" * 40) == repr(b"a" * 40)
    assert shortened(b"a" * 41) == repr(b"a" * 40) + "..."
