"""Where texts occur first, against a search that reads every text from its start; in time that grows with the texts."""

from __future__ import annotations

import itertools
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.compile.tags.occurrences import Occurrences

WORDS = st.lists(st.text("ab", min_size=1, max_size=5).map(str.encode), min_size=1, max_size=4)
BEFORE = [bytes(letters) for size in range(6) for letters in itertools.product(b"ab", repeat=size)]
LONG = b"a" * 60_000


def found_in(patterns: list[bytes]) -> Occurrences:
    return Occurrences(patterns, mw.Budget(seconds=60).begin())


def first_end(text: bytes, patterns: list[bytes]) -> tuple[int, bytes] | None:
    """Return where the first occurrence ends, and the longest pattern that ends there."""
    for end in range(len(text) + 1):
        here = [each for each in patterns if text[:end].endswith(each)]
        if here:
            return end, max(here, key=len)
    return None


@settings(deadline=None)
@given(WORDS, st.data())
def test_a_pattern_begins_what_occurs_first_as_a_search_says(patterns: list[bytes], data: st.DataObject) -> None:
    found = found_in(patterns)
    which = data.draw(st.sets(st.sampled_from(patterns)))
    for text in patterns:
        begun, closed = found.begun(text, which), found.closed(text)
        for before in BEFORE:
            if first_end(before, patterns) is not None:
                continue
            at = 0
            for byte in before:
                at = int(found.rows[at, byte])
            end, pattern = first_end(before + text, patterns) or (0, b"")
            assert begun[at] == (pattern in which and end - len(pattern) == len(before))
            assert closed[at] == (pattern == text and end == len(before) + len(text))
        assert not (begun | closed)[found.ended].any()


@given(WORDS, st.text("ab", max_size=8).map(str.encode))
def test_a_text_begins_with_the_shortest_pattern_that_is_its_prefix(patterns: list[bytes], text: bytes) -> None:
    prefixes = [each for each in patterns if text.startswith(each)]
    assert found_in(patterns).prefix(text, patterns) == min(prefixes, key=len, default=None)


def test_a_long_text_costs_time_by_its_length() -> None:
    began = time.thread_time()
    found = found_in([LONG])
    assert np.flatnonzero(found.begun(LONG, {LONG})).tolist() == [0]
    assert np.flatnonzero(found.closed(LONG)).tolist() == [0]
    assert time.thread_time() - began < 3
