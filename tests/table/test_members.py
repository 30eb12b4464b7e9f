"""Random members of tables and sorted matrices, against sets that are listed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.table.members import MemberSampler
from tests.oracles import naive

RAGGED = [[1], [1, 2], [1, 2, 3], [4, 1], [5, 6, 7, 8], [1, 2], [5, 6, 7, 9, 9, 9]]
SIDS = [[1, 2, 3], [1, 2, 5], [1, 4, 3], [7, 7, 7], [7, 2, 1], [1, 2, 3]]
MAKE = {
    "ragged": lambda: (mw.compile_sequences(RAGGED, vocab_size=10, eos=0), RAGGED),
    "sids": lambda: (mw.compile_sids(SIDS, 10), SIDS),
    "matrix": lambda: (mw.sort_sids(SIDS, 10), SIDS),
    "matrix of a sorted set": lambda: (mw.sort_sids(sorted(SIDS)[1:], 10), sorted(SIDS)[1:]),
}


def counted(tokens: np.ndarray) -> Counter[naive.Tokens]:
    return Counter(tuple(t for t in row if t >= 0) for row in tokens.tolist())


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("weighted", [False, True])
def test_members_are_as_likely_as_their_weights_say(kind, weighted):
    table, rows = MAKE[kind]()
    weights = np.arange(len(rows)) % 4 if weighted else None  # some are 0
    expected: Counter[naive.Tokens] = Counter()
    for i, row in enumerate(rows):
        expected[tuple(row)] = expected[tuple(row)] + weights[i] if weighted else 1
    n = 20_000
    drawn = MemberSampler(table, weights).sample(n, seed=0)
    found, total = counted(drawn.tokens), sum(expected.values())
    assert set(found) == {row for row, weight in expected.items() if weight}
    statistic = sum((found[r] - n * w / total) ** 2 / (n * w / total) for r, w in expected.items() if w)
    chi2 = pytest.importorskip("scipy.stats").chi2
    assert statistic < chi2.ppf(1 - 1e-6, len(found) - 1)
    assert drawn.lengths.tolist() == (drawn.tokens >= 0).sum(-1).tolist()
    for row, back in zip(drawn.tokens[:50].tolist(), table.input_rows(drawn.states[:50]), strict=True):
        assert [rows[i] for i in back.tolist()] == [[t for t in row if t >= 0]] * len(back)
        assert len(back)


@settings(deadline=None, max_examples=25)
@given(st.one_of(naive.sid_sets(), naive.ragged_sets(eos=None)), st.integers(0, 1000))
def test_each_member_has_one_rank(case, seed):
    rows, vocab = case
    fixed = len({len(row) for row in rows}) == 1
    tables = [mw.compile_sequences([list(row) for row in rows], vocab_size=vocab)]
    tables += [mw.sort_sids(np.array(rows), vocab)] if fixed else []
    for table in tables:
        sampler = MemberSampler(table)
        ranked = sampler.of_ranks(np.arange(len(set(rows))))
        assert [tuple(t for t in row if t >= 0) for row in ranked.tokens.tolist()] == sorted(set(rows))
        one = np.zeros(len(rows))
        one[seed % len(rows)] = 0.5
        assert set(counted(MemberSampler(table, one).sample(3, seed).tokens)) == {tuple(rows[seed % len(rows)])}


def test_a_generator_goes_on_and_a_seed_begins_again():
    sampler = MemberSampler(mw.compile_sids(SIDS, 10))
    assert np.array_equal(sampler.sample(20, 1).tokens, sampler.sample(20, 1).tokens)
    random = np.random.default_rng(1)
    assert not np.array_equal(sampler.sample(20, random).tokens, sampler.sample(20, random).tokens)
    assert sampler.sample(0, 1).tokens.shape == (0, 3)


def test_what_has_no_members_to_draw_is_refused():
    table = mw.compile_sids(SIDS, 10)
    for weights in ([1] * 5, [[1] * 6], [-1] + [1] * 5, [0] * 6, [np.nan] + [1] * 5, ["a"] * 6):
        with pytest.raises(ValueError, match="weights must be"):
            MemberSampler(table, weights)
    with pytest.raises(ValueError, match="n=-1"):
        MemberSampler(table).sample(-1, 0)
    pattern = mw.compile_regex("a*", mw.Vocabulary.from_bytes([b"a", b""], eos=1))
    with pytest.raises(TypeError, match="draw texts with sample_sequences"):
        MemberSampler(pattern)
