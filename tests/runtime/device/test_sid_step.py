"""A step of beam search over a trie in one Triton kernel: in Triton's interpreter, against numpy.

`test_triton.py` compiles the kernels; only a device can show how long they take, and that programs which run at the
same time wait for each other as they should.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode.beam import beam_search
from maskwright.runtime.device.device_table import State
from tests.runtime.device.interpreted import run_interpreted


def test_the_kernel_selects_as_numpy_does():
    """One process for all checks: Triton decides at import whether kernels are compiled or interpreted."""
    run("check_all")


@pytest.mark.slow
def test_the_kernel_selects_as_numpy_does_from_many_tables():
    run("check_many_tables")


def run(check: str) -> None:
    pytest.importorskip("torch")
    if not kernels_are_usable():
        pytest.skip("needs Triton 3.3")
    run_interpreted("tests.runtime.device.test_sid_step", check)


def kernels_are_usable() -> bool:
    from maskwright.runtime.device.torch import memory

    return memory.has_triton()


def counted() -> list[int]:
    """Return a list that grows by one for each step in the kernel."""
    from maskwright.runtime.device.torch.gpu import sid_step

    calls: list[int] = []
    select = sid_step.select
    sid_step.select = lambda *args: calls.append(1) or select(*args)
    return calls


def tables(seed: int) -> list[mw.TransitionTable]:
    """Tries of every type of tokens and level: with masks, sparse, of one child, with tails of different lengths."""
    rng = np.random.default_rng(seed)
    skewed = rng.integers(0, 300, (1500, 5))
    skewed[:400, :2] = skewed[0, :2]
    ragged = [rng.integers(1, 7, rng.integers(1, 6)).tolist() for _ in range(40)]
    one = [[3, 3, 3], [3, 3, 2]]
    return [
        mw.compile_sids(rng.integers(0, 33, (3000, 3)), 33),
        mw.compile_sids(skewed, 300),
        mw.compile_sids(rng.integers(0, 70_000, (300, 3)), 70_000),
        mw.compile_sequences(ragged, vocab_size=40, eos=0),
        mw.compile_sequences(ragged, vocab_size=300, eos=None),
        mw.compile_sids(one, 4),
    ]


def same_selection(
    table: mw.TransitionTable, logits: Any, node: np.ndarray, scores: np.ndarray, beams: int, level: int, alone: bool
) -> Any:
    """Select in the kernel and in numpy, check that both are the same, and return numpy's. alone: renormalize."""
    import torch

    from maskwright.runtime import torch_ops

    dev = torch_ops.to_device(table)
    there = State(torch.from_numpy(node))
    got = torch_ops.select(dev, logits, there, torch.from_numpy(scores), beams, level, alone)
    wanted = numpy_ops.select(table, logits.float().numpy(), State(node), scores, beams, level, alone)
    np.testing.assert_allclose(got.scores.numpy(), wanted.scores, rtol=1e-5, atol=3e-5)
    np.testing.assert_array_equal(got.tokens.numpy(), wanted.tokens)
    np.testing.assert_array_equal(got.state.node.numpy(), wanted.state.node)
    assert (got.parents is None) == (wanted.parents is None)
    if got.parents is not None:
        np.testing.assert_array_equal(got.parents.numpy(), wanted.parents)
    return wanted


def walk(table: mw.TransitionTable, kind: str, beams: int, seed: int, batch: int = 2) -> int:
    """Compare all steps of a search over a table, and one beyond; return how many there were."""
    import torch

    rng = np.random.default_rng(seed)
    node, scores = np.zeros(batch, np.int64), np.zeros((batch, 1), np.float32)
    for level in range(len(table.levels) + 1):
        columns = table.vocab_size + int(rng.integers(0, 3))  # some are padding, and rows lie apart
        rows = torch.from_numpy(rng.normal(size=(node.size, columns + 5)).astype(np.float32)).to(getattr(torch, kind))
        best = same_selection(table, rows[:, 2 : 2 + columns], node, scores, beams, level, level % 2 == seed % 2)
        node, scores = best.state.node, best.scores.astype(np.float32)
    return len(table.levels) + 1


def check_all() -> None:
    check_tables()
    check_rows_without_a_distribution()
    check_search()
    check_rounds()  # which makes programs smaller


def check_tables() -> None:
    """Every level of tables of every kind, in the three types of logits, under both softmaxes."""
    calls, kinds = counted(), ["float32", "float16", "bfloat16"]
    made = tables(0)
    assert {table.edges.token.dtype.itemsize for table in made} == {1, 2, 4}
    assert any(level.dense for table in made for level in table.levels[1:])
    assert any(level.width == 1 and level.rows for table in made for level in table.levels)
    steps = sum(walk(table, kinds[i % 3], (3, 4, 2)[i % 3], i) for i, table in enumerate(made))
    assert len(calls) == steps


def check_many_tables() -> None:
    for seed in range(1, 6):
        for i, table in enumerate(tables(seed)):
            for kind in ("float32", "float16", "bfloat16"):
                walk(table, kind, (3, 7, 40)[(seed + i) % 3], seed + i)


def check_rounds() -> None:
    """Lists that do not fit into one program are joined in rounds; states with many children are shared."""
    from maskwright.runtime.device.torch.gpu import sid_step

    sid_step.JOINED, sid_step.PIECE = 8, 16
    rounds, most = sid_step.plan(4, 33, 3, 8)
    assert (rounds.pieces, rounds.first, most) == (5, 2, 8)
    assert rounds.counters_stride == 10 + 5 + 3 + 2 + 1
    table = tables(0)[0]
    walk(table, "float32", 3, 0, batch=1)
    check_ties(table)


def check_ties(table: mw.TransitionTable) -> None:
    """Of equal scores the first beam's and the smallest token's comes first."""
    import torch

    rng = np.random.default_rng(0)
    node = table.walk(rng.integers(0, 33, (6, 1)))
    for beams in (3, 4):
        row = torch.from_numpy(rng.integers(0, 2, 33).astype(np.float32)).repeat(6, 1)
        same_selection(table, row, node, np.zeros((2, 3), np.float32), beams, 1, False)


def check_rows_without_a_distribution() -> None:
    """NaN, +inf and all -inf leave a row without continuations; so do dead, final and unknown states."""
    import torch

    calls = counted()
    table = tables(0)[3]
    rng = np.random.default_rng(1)
    first = table.walk(np.array([[token] for token in range(1, 7)]))
    node = np.concatenate([first, first[:2], [table.dead, table.after_eos]])
    logits = torch.from_numpy(rng.normal(size=(10, 40)).astype(np.float32))
    logits[0, 39], logits[1, 39], logits[2], logits[3, 1:] = torch.nan, torch.inf, -torch.inf, -torch.inf
    scores = np.array([[0, 0, 0, 0, -np.inf], [-1, -2, np.nan, 0, 0]], np.float32)
    for alone in (False, True):
        for beams in (5, 30):
            same_selection(table, logits, node, scores, beams, 1, alone)
        tails = np.arange(table.num_states - 10, table.num_states)
        same_selection(table, logits, tails, scores, 5, 4, alone)  # in place
    assert len(calls) == 6

    from maskwright.runtime import torch_ops

    stray = State(torch.tensor([-1, -(2**40), table.num_states, 2**40]))
    for beams, level in ((5, 1), (4, 4)):
        picked = torch_ops.select(torch_ops.to_device(table), logits[4:8], stray, torch.zeros(1, 4), beams, level, True)
        assert (picked.scores == -torch.inf).all()
        assert (picked.state.node == table.dead).all()
    empty = torch_ops.select(torch_ops.to_device(table), logits[:0], State(stray.node[:0]), torch.zeros(0, 4), 4, 5)
    assert empty.tokens.shape == (0, 4)
    assert len(calls) == 8, "nothing is launched for no rows"


def check_search() -> None:
    """A whole beam search is numpy's: sequences of one length, and of different lengths with an end token."""
    import torch

    from maskwright.runtime import torch_ops

    calls = counted()
    for table, alone in ((tables(0)[1], False), (tables(0)[3], True)):
        longest = len(table.levels)
        logits = np.random.default_rng(2).normal(size=(longest + 1, table.vocab_size, table.vocab_size))
        model = logits.astype(np.float32)
        there = torch.from_numpy(model)

        def search(ops: Any, given: Any, table=table, alone=alone, longest=longest) -> Any:
            return beam_search(
                lambda tokens, cache, t: (given[t][tokens], cache), None, ops.to_device(table), ops=ops, batch=2,
                beams=4, max_tokens=longest, renormalize=alone,
            )  # fmt: skip

        found, wanted = search(torch_ops, there), search(numpy_ops, model)
        np.testing.assert_allclose(found.scores.numpy(), wanted.scores, rtol=1e-5, atol=1e-4)
        for name in ("tokens", "lengths", "valid"):
            np.testing.assert_array_equal(getattr(found, name).numpy(), getattr(wanted, name))
        held = wanted.valid
        np.testing.assert_array_equal(found.states.numpy()[held], wanted.states[held])
    assert len(calls) == 10
