"""Bits of a filter, and kernels over them: against loops over booleans."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from maskwright.table.filter_bits import (
    Runs,
    booleans_of,
    count_before,
    place_bits,
    put_in_order,
    spread_bits,
    take_bits,
    words_of,
)

COUNTS = (1, 31, 32, 33, 64, 3000)
BEGINS = (0, 5, 31, 32, 77)


@pytest.mark.parametrize("longest", [1, 3, 40, 500])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_a_run_is_set_if_one_of_its_bits_is(longest, share):
    rng = np.random.default_rng(longest)
    for count in COUNTS:
        bits = rng.random(count) < share
        start, alone = [0], min(count, 700)
        while start[-1] < count:  # runs of one row, and then others
            start.append(min(count, start[-1] + (1 if start[-1] < alone else int(rng.integers(1, longest + 1)))))
        wanted = [bool(bits[a:b].any()) for a, b in pairwise(start)]
        words, runs = words_of(bits), Runs.of(np.array(start))
        assert runs.count == len(wanted)
        for begin in BEGINS:
            out = np.zeros((begin + len(wanted)) // 32 + 1, np.uint32)
            out[0] = 1  # what stands before is kept
            runs.write_any(words, out, begin)
            found = booleans_of(out, 32 * out.size)
            assert found[begin : begin + len(wanted)].tolist() == [wanted[0] or not begin, *wanted[1:]]
            assert found.sum() == sum(wanted) + (begin > 0 or not wanted[0])
        before = np.empty(words.size, np.int32)
        count_before(words, before)
        assert before.tolist() == [int(bits[: 32 * w].sum()) for w in range(words.size)]


def test_no_run_writes_nothing():
    out = np.full(1, 5, np.uint32)
    Runs.of(np.zeros(1, np.int64)).write_any(words_of(np.zeros(0, np.bool_)), out, 3)
    assert out.tolist() == [5]


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.98, 1.0])
def test_bits_at_the_places_of_a_mask_are_taken_and_spread(share):
    rng = np.random.default_rng(int(100 * share))
    for count in COUNTS:
        bits, mask = rng.random(count) < 0.5, rng.random(count) < share
        taken = np.zeros(int(mask.sum()) // 32 + 1, np.uint32)
        take_bits(words_of(bits), words_of(mask), taken)
        np.testing.assert_array_equal(taken, words_of(bits[mask]))
        for begin in BEGINS:
            shifted = words_of(np.r_[rng.random(begin) < 0.5, bits[mask]])
            already = rng.random(count) < 0.1
            out = words_of(already)
            spread_bits(shifted, begin, words_of(mask), out)
            np.testing.assert_array_equal(out, words_of(already | (bits & mask)))


def test_bits_are_placed_behind_others():
    rng = np.random.default_rng(0)
    for count in COUNTS:
        for begin in BEGINS:
            first, second = rng.random(begin) < 0.5, rng.random(count) < 0.5
            both = words_of(np.r_[first, second])
            out = words_of(first, begin + count)
            place_bits(words_of(second), begin, out)
            np.testing.assert_array_equal(out, both)


def test_bits_are_put_in_any_order():
    rng = np.random.default_rng(0)
    for count in COUNTS:
        bits, order = rng.random(count) < 0.5, rng.permutation(count)
        out = np.zeros(count // 32 + 1, np.uint32)
        put_in_order(words_of(bits), order.astype(np.uint32), out)
        np.testing.assert_array_equal(out, words_of(bits[order]))
