"""Kernels over the bits of a filter: against loops over bits of Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from maskwright.table.filter_bits import count_before, mark, mark_runs


def words_of(bits: np.ndarray) -> np.ndarray:
    words = np.zeros(bits.size // 32 + 1, np.uint32)
    packed = np.packbits(bits, bitorder="little")
    words.view(np.uint8)[: packed.size] = packed
    return words


def bits_of(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)


@pytest.mark.parametrize("longest", [1, 3, 40, 500])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_a_run_is_marked_if_one_of_its_rows_is(longest, share):
    rng = np.random.default_rng(longest)
    for count in (1, 31, 32, 64, 3000):
        bits = rng.random(count) < share
        start, alone = [0], min(count, 700)
        while start[-1] < count:  # runs of one row, and then others
            start.append(min(count, start[-1] + (1 if start[-1] < alone else int(rng.integers(1, longest + 1)))))
        wanted = [bool(bits[a:b].any()) for a, b in pairwise(start)]
        words, starts = words_of(bits), np.array(start, np.int32)
        for begin in (0, 5, 32, 77):
            out = np.zeros((begin + len(wanted)) // 32 + 1, np.uint32)
            mark_runs(words, starts, begin, out)
            found = bits_of(out)
            assert found[begin : begin + len(wanted)].tolist() == wanted
            assert found.sum() == sum(wanted)
            again = np.zeros_like(out)
            mark(words, starts, np.arange(begin, begin + len(wanted), dtype=np.int32), again)
            np.testing.assert_array_equal(again, out)
        before = np.empty(words.size, np.int32)
        count_before(words, before)
        assert before.tolist() == [int(bits[: 32 * w].sum()) for w in range(words.size)]
