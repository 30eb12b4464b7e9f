"""Decoders that draw token by token, under several end tokens: a sequence ends by any, as often as the model says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime.decode import sample_jumping, speculative_sample
from tests.oracles.readers import Mixed, Toy
from tests.support.backends import backend
from tests.support.draws import rows_of, seeded

ENDS = [0, 1, 2]
ROWS = [[5], [5, 6], [5, 6, 4], [7, 3, 3], [7, 4]]
DRAWS = 1500


class Merged(Toy):
    """The model in which the first end has the weight of all."""

    def logits(self, last: Any, history: Any) -> np.ndarray:
        out = super().logits(last, history)
        out[..., 0] = np.log(np.exp(out[..., ENDS]).sum(-1))
        return out


def drawn(way: str, name: str, model: type[Toy], ends: Any) -> Counter[Any]:
    ops, into = backend(name)
    table = mw.compile_sequences(ROWS, vocab_size=12, eos=ends)
    toy, prompts = model(12, into), [(8,)] * DRAWS
    options: dict[str, Any] = {"ops": ops, "prompts": prompts, "max_tokens": 3}
    if way == "jumping":
        return Counter(rows_of(sample_jumping(toy, table, seeded(name, 3), **options)))
    place = {"dev": None, "table": table} if "host" in way else {"dev": ops.to_device(table, distances=True)}
    found = speculative_sample(
        toy, Mixed(toy, 0.8, 0.5), random=seeded(name, 3), branches=(2, 1), **place, **options
    )  # fmt: skip
    return Counter(rows_of(found))


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("way", ["jumping", "speculative", "speculative on the host"])
def test_sequences_end_as_often_as_under_one_end_of_the_same_weight(way, name):
    several, one = drawn(way, name, Toy, ENDS), drawn(way, name, Merged, 0)
    assert set(several) <= {tuple(row) for row in ROWS}
    assert len(several) == len(ROWS)
    for row in ROWS:
        a, b = several[tuple(row)], one[tuple(row)]
        assert abs(a - b) <= 5 * np.sqrt(a + b) + 1
