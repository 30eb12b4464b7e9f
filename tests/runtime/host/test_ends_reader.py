"""Matchers of constraints with several end tokens, against the same constraints with one."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime.host.bitmask_rows import fill_bitmasks
from maskwright.runtime.host.readers import reader_of
from tests.strategies import end_tokens
from tests.support.backends import bits_of

SEEDS = range(3)


def bits(mask: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros((1, size), bool)
    out[0] = bits_of(mask[None], size)[0]
    return out


def matchers(kind: str, seed: int, whole: bool, budget: bool) -> tuple[end_tokens.Pair, mw.Matcher, mw.Matcher]:
    pair = end_tokens.pair(kind, seed)
    both = [table.to_table() if whole else table for table in pair[:2]]
    most = None if not budget else both[1].to_table().min_length + 4
    return pair, *(mw.Matcher(table, max_tokens=most) for table in both)


@pytest.mark.parametrize("budget", [False, True], ids=["", "budget"])
@pytest.mark.parametrize("whole", [False, True], ids=["lazy", "whole"])
@pytest.mark.parametrize("kind", end_tokens.KINDS)
def test_every_end_is_allowed_where_one_is_and_leads_where_it_leads(kind, whole, budget):
    for seed in SEEDS:
        pair, several, one = matchers(kind, seed, whole, budget)
        rng, size = np.random.default_rng(seed), pair.one.vocab_size
        words = np.full((1, -(-size // 32) + 1), -1, np.int32)
        for _ in range(40):
            allowed = bits(one.mask(), size)
            assert np.array_equal(bits(several.mask(), size), pair.allowed(allowed))
            several.fill_bitmask(words)
            assert np.array_equal(words[0, :-1].view(np.uint32), several.mask())
            assert several.is_accepting == one.is_accepting
            assert several.is_finished == one.is_finished
            assert several.is_terminated == one.is_terminated
            assert several.num_tokens == one.num_tokens
            legal = np.flatnonzero(pair.allowed(allowed))
            token = int(rng.choice(legal)) if legal.size and rng.random() < 0.8 else int(rng.integers(size))
            if rng.random() < 0.2:
                token = int(rng.choice(pair.ends))
            mapped = int(pair.mapped(np.array(token)))
            draft = [token, pair.ends[-1], pair.ends[0]]
            assert several.validate_tokens(draft) == one.validate_tokens(pair.mapped(np.array(draft)).tolist())
            assert several.accepts(draft) == one.accepts(pair.mapped(np.array(draft)).tolist())
            assert several.advance(token) == one.advance(mapped)
            if several.is_terminated or rng.random() < 0.1:
                n = int(rng.integers(several.num_tokens + 1))
                several.rollback(n)
                one.rollback(n)


@pytest.mark.parametrize("kind", end_tokens.KINDS)
def test_a_table_holds_the_same_sequences_however_they_end(kind):
    pair = end_tokens.pair(kind, 7)
    table, rng = pair.several.to_table(), np.random.default_rng(7)
    rows = np.full((40, 14), pair.ends[1])
    for row in rows:  # walks that end soon; behind an end any end may stand
        matcher = mw.Matcher(table, max_tokens=max(9, table.min_length))
        for t in range(row.size):
            allowed = np.flatnonzero(bits(matcher.mask(), table.vocab_size))
            ends = np.intersect1d(allowed, pair.ends)
            row[t] = rng.choice(ends if ends.size and rng.random() < 0.5 else allowed)
            matcher.advance(int(row[t]))
    rows[::5, -1] = rng.integers(table.vocab_size, size=8)
    wanted = pair.one.to_table().contains(pair.mapped(rows))
    assert wanted.any()
    assert not wanted.all()
    assert np.array_equal(table.contains(rows), wanted)
    lazy = end_tokens.pair(kind, 7).several
    assert np.array_equal(lazy.contains(rows), wanted)
    assert [lazy.accepts(row) for row in rows] == wanted.tolist()


def test_copies_pickles_and_jumps_keep_all_ends():
    pair = end_tokens.pair("choices", 1)
    assert pair.vocabularies is not None
    vocabulary = pair.vocabularies[0]
    matcher = mw.Matcher(pair.several.to_table(), vocabulary)
    assert matcher.accept_tokens(vocabulary.encode("green"))
    matcher.rollback(2)
    assert vocabulary.decode(matcher.forced_tokens()) == matcher.forced_text()
    matcher.accept_tokens(matcher.forced_tokens())
    assert matcher.advance(pair.ends[-1])
    for other in (copy.copy(matcher), pickle.loads(pickle.dumps(matcher))):
        assert other.is_terminated
        assert other.num_tokens == matcher.num_tokens
        assert np.array_equal(other.mask(), matcher.mask())


def test_a_batch_of_bitmasks_has_all_ends():
    pair = end_tokens.pair("any text", 2)
    several = [mw.Matcher(pair.several), mw.Matcher(pair.several.to_table())]
    words = np.zeros((2, -(-pair.one.vocab_size // 32)), np.uint32)
    fill_bitmasks(several, words, threads=2)
    found = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, bitorder="little").astype(bool)
    assert found[:, list(pair.ends)].all()


def test_what_is_shared_between_matchers_of_one_end_is_not_changed():
    """Masks of the reader inside are kept and shown to others: other ends are written to copies."""
    pair = end_tokens.pair("any text", 3)
    table = pair.several.to_table()
    before = reader_of(table, False).inside.mask(0).copy()
    mw.Matcher(table).mask()
    after = reader_of(table, False).inside.mask(0)
    assert np.array_equal(before, after)
    assert not bits(after, table.vocab_size)[0, list(pair.ends[1:])].any()
