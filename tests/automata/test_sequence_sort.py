"""Sequences in order, and the tokens that neighbours share."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.automata import sequence_sort
from maskwright.automata.sequence_sort import sort


def shared_by(a: list[int], b: list[int]) -> int:
    """Return how many first tokens two sequences share, -1 if they are equal."""
    return (
        -1 if a == b else sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    )


@pytest.mark.parametrize("vocab_size", [2, 300, 70_000])
@pytest.mark.parametrize("chunk", [3, 1 << 20])
@given(data=st.data())
def test_sequences_are_sorted_as_lists_are(vocab_size: int, chunk: int, data: st.DataObject) -> None:
    token = st.integers(0, vocab_size - 1) | st.sampled_from([0, 1, vocab_size - 1])
    rows = data.draw(st.lists(st.lists(token, min_size=1, max_size=40), min_size=1, max_size=40))
    offsets = np.cumsum([0, *map(len, rows)])
    values = np.array(list(itertools.chain(*rows)), np.int32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sequence_sort, "CHUNK", chunk)
        index, shared = sort(values, offsets, 0, len(rows), vocab_size)
    order = sorted(range(len(rows)), key=rows.__getitem__)  # which keeps equal ones in their order
    assert index.tolist() == order
    assert shared[1:].tolist() == [shared_by(rows[a], rows[b]) for a, b in itertools.pairwise(order)]


def test_progress_tells_of_all_sequences_at_each_stage() -> None:
    calls: list[tuple[str, int, int]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sequence_sort, "CHUNK", 10)
        sort(np.arange(100) % 7, np.zeros(0, np.int64), 2, 50, 7, lambda *call: calls.append(call))
    for stage in ("reading", "sorting"):
        done = [done for name, done, total in calls if name == stage and total == 50]
        assert len(done) > 1
        assert done == sorted(done)
        assert done[-1] == 50


def test_a_token_outside_the_vocabulary_is_named_by_its_place() -> None:
    for bad in (-1, 5):
        with pytest.raises(IndexError) as error:
            sort(np.array([0, 1, bad, 3]), np.zeros(0, np.int64), 2, 2, 5)
        assert error.value.args == (2,)
