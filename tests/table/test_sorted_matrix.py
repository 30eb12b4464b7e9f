"""Sorted matrices: against tables of the same sets in every operation and decoder, and against sets of tuples."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.compile import sequences
from maskwright.errors import TableError
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import (
    allowed_logits,
    beam_search,
    rerank,
    sample,
    sample_allowed,
    sample_sequences,
    sample_unbiased,
)
from maskwright.runtime.device.device_table import MatrixState, State
from maskwright.table.sorted_matrix import SortedMatrix
from tests.marks import marked
from tests.oracles import naive
from tests.strategies.item_sets import CASES, case, some_logits
from tests.support.backends import ALL, backend, out

COMPILED = ["few tokens", "skewed", "late"]  # what JAX is given: compiling takes seconds


def pairs(cases: list[str] = CASES, jax: list[str] = COMPILED, slow: Collection[tuple[str, str]] = ()) -> Any:
    """Every backend with every case, JAX with a few; some are slow."""
    some = [(name, kind) for name in ALL for kind in cases if name != "jax" or kind in jax]
    return pytest.mark.parametrize(("name", "kind"), marked(some, slow=slow))


def into_state(into: Any, state: MatrixState) -> MatrixState:
    return MatrixState(*map(into, state))


# ------------------------------------------------------------------------------------------------ on the host


@settings(deadline=None, max_examples=60)
@given(naive.sid_sets(), st.sampled_from([np.int8, np.uint16, np.int64, np.uint64]), st.booleans())
def test_a_matrix_holds_exactly_the_given_sids_in_order(drawn, dtype, ordered):
    rows, vocab = drawn
    rows = sorted(rows) if ordered else rows
    dtype = np.int32 if max(map(max, rows)) > np.iinfo(dtype).max else dtype
    matrix = mw.sort_sids(np.array(rows, dtype), vocab)
    distinct = sorted(set(rows))
    assert list(map(tuple, matrix.sids.tolist())) == distinct
    assert matrix.columns.dtype == np.min_scalar_type(vocab - 1)
    assert (matrix.num_sequences, matrix.num_items, matrix.length) == (len(distinct), len(rows), len(rows[0]))
    assert matrix.contains(rows).all()
    asked = [(*row[:-1], (row[-1] + 1) % vocab) for row in rows] + [row[1:] + row[:1] for row in rows]
    assert matrix.contains(asked).tolist() == [row in set(rows) for row in asked]
    for at, row in enumerate(distinct):
        assert matrix.input_rows(at)[0].tolist() == [i for i, other in enumerate(rows) if other == row]
        assert matrix.find([row]).tolist() == [at]
    assert matrix.input_rows([len(distinct)])[0].size == 0
    for depth, (width, branch) in enumerate(zip(matrix.widths, matrix.branches, strict=True)):
        heads = {row[:depth] for row in distinct}
        assert width == max(sum(row[:depth] == head for row in distinct) for head in heads)
        assert branch == max(len(naive.allowed_after(set(rows), head, None)) for head in heads)


def test_what_is_sorted_already_is_not_sorted_again_and_a_file_of_it_is_enough(tmp_path, monkeypatch):
    matrix = case("masks").matrix
    np.save(tmp_path / "sids.npy", matrix.sids)

    def refuse(*_: Any) -> None:
        raise AssertionError("sorted")

    monkeypatch.setattr(sequences, "sort", refuse)
    again = mw.sort_sids(np.load(tmp_path / "sids.npy", mmap_mode="r"), matrix.vocab_size)
    np.testing.assert_array_equal(again.columns, matrix.columns)
    assert again.item_row.size == again.item_start.size == 0
    twice = mw.sort_sids(np.repeat(matrix.sids, 2, axis=0), matrix.vocab_size)
    np.testing.assert_array_equal(twice.columns, matrix.columns)
    assert twice.input_rows(3)[0].tolist() == [6, 7]
    with pytest.raises(AssertionError, match="sorted"):
        mw.sort_sids(matrix.sids[::-1], matrix.vocab_size)


@pytest.mark.parametrize(
    ("sids", "vocab"),
    [
        ([], 4), (np.zeros((0, 3), int), 4), (np.zeros((3, 0), int), 4), ([1, 2], 4), ([[1, 2], [3]], 4),
        ([[0.5, 1.0]], 4), ([[0, 1], [4, 0]], 4), ([[0, 1], [0, -1]], 4), ([[3, 1], [0, 9]], 4), ([[0, 1]], 0),
        ([[0, 1]], True), ([[0, 1]], 2**40), (np.array([[0, 1], [2**63, 0]], np.uint64), 4),
    ],
)  # fmt: skip
def test_errors_are_those_of_compile_sids(sids, vocab):
    with pytest.raises(mw.errors.ConstraintError) as expected:
        mw.compile_sids(sids, vocab)
    with pytest.raises(mw.errors.ConstraintError) as found:
        mw.sort_sids(sids, vocab)
    assert str(found.value) == str(expected.value)


def test_arrow_columns_are_taken():
    pa = pytest.importorskip("pyarrow")
    matrix = mw.sort_sids(pa.array([[3, 1], [0, 2]]), 4)
    assert matrix.sids.tolist() == [[0, 2], [3, 1]]


def test_arrays_that_are_no_sorted_matrix_are_refused(monkeypatch):
    def columns(*rows: list[int]) -> np.ndarray:
        return np.array(rows, np.uint8).T

    for array, message in (
        (columns([1, 0], [0, 2]), "row 1 does not come after row 0"),
        (columns([0, 2], [1, 1], [1, 1]), "row 2 does not come after row 1"),
        (columns([0, 2], [1, 4]), r"token 4, outside 0 \.\. 3"),
        (np.zeros((2, 3), np.int32), "unsigned integers"),
        (np.zeros((2, 0), np.uint8), "unsigned integers"),
    ):
        with pytest.raises(TableError, match=message):
            SortedMatrix(4, array)
    with pytest.raises(TableError, match="item_start has 1 entries, 2 are needed"):
        SortedMatrix(4, columns([0, 2]), np.zeros(1, np.int32))
    with pytest.raises(TableError, match="item_row has 3 entries, there are 2 input rows"):
        SortedMatrix(4, columns([0, 2]), np.array([0, 2], np.int32), np.zeros(3, np.int32))
    with pytest.raises(ValueError, match=r"state 3 is none of this matrix: its states are 0 \.\. 2"):
        mw.sort_sids([[0, 2], [1, 1]], 4).input_rows([3])
    with pytest.raises(ValueError, match="sids must be integers"):
        mw.sort_sids([[0, 2]], 4).contains([0, 2])
    monkeypatch.setattr(sequences, "MOST_ROWS", 1)
    with pytest.raises(
        mw.errors.ConstraintError, match=r"2 rows are more than a sorted matrix may have, 1: use compile_sids"
    ):
        mw.sort_sids([[0, 2], [1, 1]], 4)


# ------------------------------------------------------------------------------------------------ one operation


def every_operation(ops: Any, dev: Any, logits: Any, state: Any, tokens: Any, remaining: Any, width: int) -> Any:
    """All that needs no level, of states at any depths."""
    sound = ops.arrays.where(logits == logits, logits, 0.0)
    return {
        "mask": ops.mask_logits(dev, logits, state),
        "mask in time": ops.mask_logits(dev, logits, state, remaining),
        "bits": ops.bitmask(dev, state),
        "bits in time": ops.bitmask(dev, state, remaining),
        "accepting": ops.accepting(dev, state),
        "mass": ops.log_mass(dev, ops.arrays.where(sound > 50, 50.0, sound), state),
        "best": ops.candidates(dev, logits, state, 3),
        "after": ops.advance(dev, state, tokens),
        "tokens": ops.allowed_tokens(dev, state, width),
        "tokens in time": ops.allowed_tokens(dev, state, width, remaining),
    }


@pytest.mark.parametrize(
    ("name", "kind", "special"),
    marked(
        [(name, kind, special) for name in ("numpy", "torch") for kind in CASES for special in (False, True)]
        + [("jax", "few tokens", False), ("jax", "late", True)],
        slow=[("jax", "late", True)],
    ),
)
def test_operations_at_all_prefixes_agree_with_the_table(name, kind, special):
    c, (ops, into) = case(kind), backend(name)
    pick = c.some(60)
    nodes, state = c.nodes[pick], MatrixState(*(array[pick] for array in c.state))
    assert set(state.depth) == set(range(c.matrix.length + 1))
    rng = np.random.default_rng(3)
    logits = some_logits(60, c.vocab, 1, special)
    allowed = numpy_ops.mask_logits(c.table, np.zeros((60, c.vocab), np.float32), State(nodes))
    tokens = (allowed + rng.random(allowed.shape)).argmax(axis=1)
    tokens[::4] = rng.integers(-2, c.vocab + 2, 15)
    remaining = rng.integers(-1, c.matrix.length + 2, 60)
    # all rows that a state can have: as many as the vocabulary has tokens may not be enough
    width = max(c.matrix.widths)
    run = functools.partial(every_operation, ops)
    if name == "jax":
        import jax

        run = jax.jit(run, static_argnums=5)
    dev = ops.to_device(c.matrix)
    found = run(dev, into(logits), into_state(into, state), into(tokens), into(remaining), width)
    wanted = every_operation(
        numpy_ops, c.table, logits, State(nodes), tokens, remaining, max(level.width for level in c.table.levels)
    )
    for key in ("mask", "mask in time", "accepting"):
        np.testing.assert_array_equal(out(found[key]), wanted[key], err_msg=key)
    for key in ("bits", "bits in time"):
        np.testing.assert_array_equal(out(found[key]).view(np.uint32), wanted[key], err_msg=key)
    np.testing.assert_allclose(out(found["mass"]), wanted["mass"], rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(found["after"], c.as_matrix(wanted["after"].node), strict=True):
        np.testing.assert_array_equal(out(mine), theirs)
    best, expected = found["best"], wanted["best"]
    np.testing.assert_allclose(out(best.scores), expected.scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(out(best.tokens), expected.tokens)
    for mine, theirs in zip(best.states, c.as_matrix(expected.states.node.ravel()), strict=True):
        np.testing.assert_array_equal(out(mine).ravel(), theirs)
    for key in ("tokens", "tokens in time"):
        for mine, there, theirs, are in zip(*map(out, found[key]), *wanted[key], strict=True):
            np.testing.assert_array_equal(mine[there], theirs[are], err_msg=key)
            assert (mine[~there] == 0).all()
    in_place = into(logits.copy())
    masked = ops.mask_logits_(dev, in_place, into_state(into, state))
    np.testing.assert_array_equal(out(masked), wanted["mask"])
    if name != "jax":
        assert masked is in_place
        if name != "jax":  # which tests of matrices compile as a whole
            alive = nodes != c.table.dead
            distance = out(ops.distance(dev, into_state(into, state)))
            np.testing.assert_array_equal(distance[alive], c.table.distance[nodes[alive]])
            assert (distance[~alive] == 2**31 - 1).all()


@pytest.mark.long
@pairs(slow=[("jax", "late")])
def test_candidates_and_select_at_each_level_agree_with_the_table(name, kind):
    c, (ops, into) = case(kind), backend(name)
    dev = ops.to_device(c.matrix)
    beams = 6

    def at_level(dev: Any, logits: Any, state: Any, scores: Any, level: int, renormalize: bool) -> Any:
        return (
            ops.select(dev, logits, state, scores, beams, level, renormalize),
            ops.candidates(dev, logits, state, 4, level=level),
        )

    run = at_level
    if name == "jax":
        import jax

        run = jax.jit(at_level, static_argnums=(4, 5))
    for special, renormalize in ((True, True),) if name == "jax" else np.ndindex(2, 2):
        first = 6 if name == "jax" and kind == "late" else 0  # where it begins to branch
        expected = State(np.repeat(c.nodes[c.state.depth == first][:1], 2))
        state = into_state(into, c.as_matrix(expected.node))
        scores = np.zeros((2, 1), np.float32)
        for level in range(first, c.matrix.length + 1):
            logits = some_logits(len(expected.node), c.vocab, level, bool(special) and level > 0)
            mine = run(dev, into(logits), state, into(scores), level, bool(renormalize))
            wanted = numpy_ops.select(c.table, logits, expected, scores, beams, level, renormalize)
            picked, best = mine
            np.testing.assert_allclose(out(picked.scores), wanted.scores, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(out(picked.tokens), wanted.tokens)
            assert (picked.parents is None) == (wanted.parents is None)
            if wanted.parents is not None:
                alive = wanted.scores > -np.inf
                np.testing.assert_array_equal(out(picked.parents)[alive], wanted.parents[alive])
            for one, other in zip(picked.state, c.as_matrix(wanted.state.node), strict=True):
                np.testing.assert_array_equal(out(one), other)
            each = numpy_ops.candidates(c.table, logits, expected, 4)
            np.testing.assert_allclose(out(best.scores), each.scores, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(out(best.tokens), each.tokens)
            for one, other in zip(best.states, c.as_matrix(each.states.node.ravel()), strict=True):
                np.testing.assert_array_equal(out(one).ravel(), other)
            state, expected, scores = picked.state, wanted.state, wanted.scores.astype(np.float32)


def test_each_way_to_find_what_is_allowed_is_taken():
    """A guard for the tests above: masks or none, rows of intervals, first rows of tokens, and later words."""
    put = {kind: backend("torch").ops.to_device(case(kind).matrix) for kind in CASES}
    assert {kind: put[kind].masked for kind in ("masks", "one token", "two words")} == {
        "masks": 2, "one token": 1, "two words": 0,
    }  # fmt: skip
    assert len(put["two words"].words) == 3
    assert put["two words"].widths[put["two words"].per_word] > 1
    kept = {kind: [first is not None for first in dev.firsts[dev.masked :]] for kind, dev in put.items()}
    assert not any(kept["masks"])
    assert kept["skewed"] == [True, True, False]  # the last token is another one in each row of an interval
    for dev in put.values():
        assert all(dev.read(depth) <= dev.vocab_size for depth in range(dev.length))


def test_what_is_read_follows_the_branches_of_a_skewed_matrix():
    rng = np.random.default_rng(0)
    first = np.where(rng.random(20_000) < 0.5, 7, rng.integers(0, 64, 20_000))  # half of all items share a first code
    rows = np.stack([first, *(rng.zipf(1.3, (3, 20_000)) % 64)], axis=1)
    matrix = mw.sort_sids(rows, 4096)
    dev = backend("torch").ops.to_device(matrix)
    assert matrix.widths[1] > 50 * matrix.branches[1]
    assert [level.width for level in dev.levels] == list(matrix.branches)
    assert dev.first_rows.shape[0] < 2 * matrix.num_sequences


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_tokens_and_budgets_of_any_integer_type_mean_the_same(name, dtype):
    ops = backend(name).ops
    dev = ops.to_device(mw.sort_sids([[7, 9, 300], [100, 2, 5], [120, 5, 0]], 65_536))
    asked = np.array([[7, 9], [7, 5], [100, 2], [120, 5], [5, 5]])
    if name == "torch":
        import torch

        if dtype in ("uint16", "uint32", "uint64"):
            pytest.skip("torch has few operations on these")
        tokens = torch.tensor(asked).to(getattr(torch, dtype))
    elif name == "jax":
        import jax.numpy as jnp

        if dtype not in ("int8", "uint32", "int32"):
            pytest.skip("compiling takes JAX seconds, and 64 bits it has only in another mode")
        tokens = jnp.asarray(asked, dtype)
    else:
        tokens = asked.astype(dtype)
    state = ops.advance(dev, ops.advance(dev, ops.start(dev, 5), tokens[:, 0]), tokens[:, 1])
    assert out(state.node < state.high).tolist() == [True, False, True, True, False]
    bits = out(ops.bitmask(dev, state, tokens[:, 0] * 0 + 1)).view(np.uint32)
    assert bits.any(axis=1).tolist() == [True, False, True, True, False]
    if not dtype.startswith("u"):
        assert not out(ops.bitmask(dev, state, tokens[:, 0] * 0 - 1)).any()
    if dtype in ("uint32", "uint64"):
        huge = tokens[:, 0] * 0 - 1 if name == "jax" else np.full(5, np.iinfo(dtype).max, dtype)
        assert out(ops.bitmask(dev, state, huge)).view(np.uint32).any(axis=1).sum() == 3
        assert (out(ops.advance(dev, state, huge).node) == 3).all()


@pytest.mark.long
@pytest.mark.parametrize(("name", "dtype"), [("torch", "float16"), ("torch", "bfloat16"), ("jax", "bfloat16")])
def test_narrow_logits_keep_their_type_and_bits(name, dtype):
    c, (ops, into) = case("masks"), backend(name)
    dev, state = ops.to_device(c.matrix), into_state(into, MatrixState(*(array[:60] for array in c.state)))
    x = into(some_logits(60, c.vocab))
    x = x.to(getattr(__import__("torch"), dtype)) if name == "torch" else x.astype(dtype)
    masked = ops.mask_logits(dev, x, state)
    assert masked.dtype == x.dtype
    allowed = numpy_ops.mask_logits(c.table, np.zeros((60, c.vocab + 3), np.float32), State(c.nodes[:60])) == 0
    np.testing.assert_array_equal(out(masked)[allowed], out(x)[allowed])
    assert (out(masked)[~allowed] == -np.inf).all()


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_contains_agrees_with_a_set_on_many_rows(name):
    ops, into = backend(name)
    for kind in ("two words", "late") if name == "jax" else ("masks", "two words", "late", "one token", "two in all"):
        c = case(kind)
        rng = np.random.default_rng(6)
        count = 100_000
        asked = c.rows[rng.integers(0, len(c.rows), count)]
        at = rng.integers(0, c.matrix.length, count)
        changed = rng.random(count) < 0.6
        asked[changed, at[changed]] = c.rows[rng.integers(0, len(c.rows), count), at][changed]
        asked[::50, rng.integers(0, c.matrix.length)] = rng.integers(-3, 70_000, count // 50)
        members = set(map(tuple, c.rows.tolist()))
        wanted = np.array([row in members for row in map(tuple, asked.tolist())])
        assert 0.01 < (~wanted).mean() < 0.99
        np.testing.assert_array_equal(out(ops.contains(ops.to_device(c.matrix), into(asked))), wanted)
        np.testing.assert_array_equal(c.matrix.contains(asked), wanted)
    for length in (0, 1, 3):
        assert not out(
            ops.contains(ops.to_device(case("few tokens").matrix), into(np.zeros((4, length), np.int64)))
        ).any()


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("vocab", "length"), [(128, 10), (2, 66)])
def test_the_last_of_all_tokens_does_not_overflow_a_full_word(name, vocab, length):
    ops, into = backend(name)
    rows = np.full((3, length), vocab - 1)
    rows[0], rows[1, -1] = 0, 0
    dev = ops.to_device(mw.sort_sids(rows, vocab))
    asked = np.concatenate([rows, np.roll(rows[1:2], 1, axis=1)])
    assert out(ops.contains(dev, into(asked))).tolist() == [True, True, True, False]
    if name != "jax":
        state = ops.start(dev, 4)
        for t in range(length):
            state = ops.advance(dev, state, into(asked[:, t]))
        assert out(state.node).tolist() == [0, 1, 2, 3]
        assert out(ops.accepting(dev, state)).tolist() == [True, True, True, False]


@pytest.mark.parametrize("name", ALL)
def test_what_cannot_be_is_refused_by_name(name):
    ops, into = backend(name)
    matrix = mw.sort_sids([[0, 5], [1, 2]], 6)
    dev = ops.to_device(matrix)
    state, logits = ops.start(dev, 2), into(np.zeros((2, 6), np.float32))
    with pytest.raises(ValueError, match=r"this constraint has no EOS, .* compile_sids\(.., eos=\) has one"):
        ops.end_scores(dev, logits, state)
    with pytest.raises(TypeError, match=r"tokens must be integers, not .*float"):
        ops.advance(dev, state, logits[:, 0])
    with pytest.raises(ValueError, match=r"tokens have shape \(2, 2\), there are 2 states"):
        ops.advance(dev, state, into(np.zeros((2, 2), np.int64)))
    with pytest.raises(TypeError, match=r"logits must be floating-point numbers of 16 bits or more, not .*int"):
        ops.mask_logits(dev, into(np.zeros((2, 6), np.int64)), state)
    with pytest.raises(mw.errors.VocabularyMismatchError, match="logits have 5 columns, the table's vocabulary has 6"):
        ops.select(dev, logits[:, :5], state, into(np.zeros((2, 1), np.float32)), 2, 0)
    with pytest.raises(ValueError, match="one state a row"):
        ops.candidates(dev, logits[:1], state, 2)
    with pytest.raises(ValueError, match=r"remaining has shape \(1,\), there are 2 rows"):
        ops.bitmask(dev, state, into(np.zeros(1, np.int64)))
    with pytest.raises(ValueError, match=r"sids must have shape \(N, L\), not \(3,\)"):
        ops.contains(dev, into(np.zeros(3, np.int64)))
    if name == "jax":
        with pytest.raises(mw.errors.TableError, match="jax_enable_x64"):
            ops.to_device(mw.sort_sids([[0, 2**30]], 2**30 + 1))
    else:
        last = 2**20
        wide = ops.to_device(mw.sort_sids([[last, last, last], [0, 0, 0]], last + 1))
        assert out(ops.contains(wide, into(np.array([[last, last, last], [0, 0, last]])))).tolist() == [True, False]
    if name != "numpy":
        with pytest.raises(TypeError, match="a constraint from to_device is needed, not a SortedMatrix"):
            ops.start(matrix, 2)


# ------------------------------------------------------------------------------------------------ decoders


def bigram(weights: Any, rows: Any) -> Any:
    """A model whose logits (L, B, V, V') depend on step, batch element and previous token."""
    return lambda tokens, cache, t: (weights[t, rows, tokens], cache)


def decoders(ops: Any, dev: Any, weights: Any, rows: Any, uniforms: Any, length: int) -> Any:
    """What every decoder finds, given the same random numbers."""
    step = bigram(weights, rows)
    options = {"ops": ops, "batch": 2, "max_tokens": length}
    first, accept, second, choice = uniforms
    beams = beam_search(step, None, dev, beams=4, **options)
    logits = weights[1, rows, rows * 0]
    state = ops.start(dev, 8)
    return {
        "beams": beams,
        "renormalized": beam_search(step, None, dev, beams=4, renormalize=True, **options),
        "sequences": sample_sequences(step, None, dev, first, samples=4, top_k=9, top_p=0.95, **options),
        "unbiased": sample_unbiased(step, None, dev, (first, accept, second, choice), candidates=4, **options),
        "rerank": rerank(beams, beams.scores, choice, ops=ops),
        "sample": sample(dev, logits, state, first[0], ops=ops, temperature=0.7),
        "sample at a level": sample(dev, logits, state, first[0], ops=ops, level=0, min_p=0.01),
    }


@pytest.mark.long
@pairs(jax=["few tokens"], slow=[("jax", "few tokens")])
def test_decoders_find_with_a_matrix_what_they_find_with_a_table(name, kind):
    c, (ops, into) = case(kind), backend(name)
    rng = np.random.default_rng(8)
    length = c.matrix.length
    weights = rng.normal(size=(length + 1, 2, min(c.vocab, 300), c.vocab)).astype(np.float32)
    if c.vocab > 300:  # of what is written before only the remainder counts
        index = np.arange(c.vocab) % 300
        weights = weights[:, :, index] if c.vocab < 1000 else weights[:, :, :1].repeat(c.vocab, axis=2)
    uniforms = [rng.random(s, np.float32) for s in ((length, 8, 2), (2, 4), (length, 8, 2), (2, 2))]
    rows = np.repeat(np.arange(2), 4)
    wanted = decoders(numpy_ops, c.table, weights, rows, uniforms, length)
    run = functools.partial(decoders, ops)
    if name == "jax":
        import jax

        run = jax.jit(run, static_argnums=4)
    found = run(ops.to_device(c.matrix), into(weights), into(rows), tuple(map(into, uniforms)), length)
    for key, mine in found.items():
        for field, theirs in wanted[key]._asdict().items():
            if field != "states":
                np.testing.assert_allclose(
                    out(getattr(mine, field)), out(theirs), rtol=1e-3, atol=1e-4, err_msg=f"{key} {field}"
                )
        if hasattr(mine, "states"):
            at = c.matrix.input_rows(out(mine.states).ravel())
            expected = c.table.input_rows(out(wanted[key].states).ravel())
            for one, other, ok in zip(at, expected, out(mine.valid).ravel(), strict=True):
                assert not ok or one.tolist() == sorted(other.tolist())
    beams = found["beams"]
    tokens = out(beams.tokens)[out(beams.valid)]
    assert len(tokens)
    assert c.table.contains(tokens).all()


@pairs(["few tokens", "one token"], jax=[])
def test_only_allowed_rows_of_the_projection_are_computed(name, kind):
    c, (ops, into) = case(kind), backend(name)
    rng = np.random.default_rng(9)
    hidden, weight = (into(rng.normal(size=s).astype(np.float32)) for s in ((60, 8), (c.vocab, 8)))
    level = c.matrix.length - 1
    at = np.resize(np.flatnonzero(c.state.depth == level), 60)
    state = into_state(into, MatrixState(*(array[at] for array in c.state)))
    tokens, logits = allowed_logits(hidden, weight, ops.to_device(c.matrix), state, level, ops=ops)
    whole = out(ops.mask_logits(ops.to_device(c.matrix), hidden @ weight.T, state))
    for one, at_token, row in zip(out(logits), out(tokens), whole, strict=True):
        np.testing.assert_allclose(one[at_token >= 0], row[row > -np.inf], rtol=1e-3, atol=1e-4)
    drawn = sample_allowed(tokens, logits, into(rng.random((60, 2), np.float32)), ops=ops)
    assert out(drawn.valid).all()


# ------------------------------------------------------------------------------------------ traced and compiled


@pytest.mark.parametrize("kind", ["masks", "late"])
def test_no_torch_operation_needs_a_value_on_the_host(kind):
    """Under fake tensors there are no values: whatever asks for one fails, as it would in a CUDA graph."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    c, ops = case(kind), backend("torch").ops
    dev = ops.to_device(c.matrix)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        logits = mode.from_tensor(torch.zeros(6, c.vocab))
        zero = mode.from_tensor(torch.zeros(6, dtype=torch.int64))
        state = MatrixState(zero, zero + 1, zero)
        every_operation(ops, dev, logits, state, zero, zero, 4)
        ops.contains(dev, mode.from_tensor(torch.zeros(5, c.matrix.length, dtype=torch.int64)))
        ops.mask_logits_(dev, logits, state, zero)
        ops.advance(dev, state, zero)
        for level in range(c.matrix.length + 1):
            ops.candidates(dev, logits, state, 3, level=level)
            for renormalize in (False, True):
                scores = mode.from_tensor(torch.zeros(2, 3))
                assert ops.select(dev, logits, state, scores, 3, level, renormalize).scores.shape == (2, 3)


@pytest.mark.long
def test_a_whole_search_compiles_in_torch():
    torch = pytest.importorskip("torch")
    c, ops = case("masks"), backend("torch").ops
    weights = torch.tensor(np.random.default_rng(0).normal(size=(3, 2, 1, 100)), dtype=torch.float32)
    step = bigram(weights.expand(3, 2, 100, 100), torch.arange(2).repeat_interleave(5))
    dev = ops.to_device(c.matrix)

    def run() -> Any:
        found = beam_search(step, None, dev, ops=ops, batch=2, beams=5, max_tokens=3)
        return found, ops.contains(dev, found.tokens.reshape(-1, 3))

    (plain, _), (quick, inside) = run(), torch.compile(run, fullgraph=True, backend="aot_eager")()
    assert torch.equal(plain.tokens, quick.tokens)
    torch.testing.assert_close(plain.scores, quick.scores)
    assert torch.equal(inside, quick.valid.reshape(-1))


@pytest.mark.long
def test_jax_has_words_of_64_bits_where_it_is_told_to():
    jax = pytest.importorskip("jax")
    c, (ops, into) = case("few tokens"), backend("jax")
    short = ops.to_device(case("two words").matrix)
    with jax.enable_x64(True):
        long = ops.to_device(case("two words").matrix)
        assert (len(short.words), len(long.words)) == (6, 3)
        dev = ops.to_device(c.matrix)
        state = MatrixState(*(jax.numpy.asarray(array) for array in c.state))
        logits = some_logits(len(c.nodes), c.vocab)
        masked = ops.mask_logits(dev, into(logits), state)
        np.testing.assert_array_equal(out(masked), numpy_ops.mask_logits(c.table, logits, State(c.nodes)))
        assert out(ops.contains(dev, jax.numpy.asarray(c.rows))).all()


@pytest.mark.long
def test_jax_scans_and_maps_over_states():
    jax = pytest.importorskip("jax")
    c, (ops, into) = case("few tokens"), backend("jax")
    dev, tokens = ops.to_device(c.matrix), into(c.rows[:4].T)

    @jax.jit
    def scanned(dev: Any, tokens: Any) -> Any:
        return jax.lax.scan(
            lambda state, token: (ops.advance(dev, state, token), state.high), ops.start(dev, 4), tokens
        )

    state, _ = scanned(dev, tokens)
    assert out(ops.accepting(dev, state)).all()
    assert out(state.node).tolist() == c.matrix.find(c.rows[:4]).tolist()
    masks = jax.vmap(lambda node: ops.bitmask(dev, MatrixState(node, node + 1, node * 0)))(
        into(np.arange(6).reshape(2, 3))
    )
    assert masks.shape == (2, 3, 1)


@pytest.mark.parametrize("name", ALL)
def test_sids_that_are_no_integers_are_refused(name):
    ops, array = backend(name)
    dev = ops.to_device(mw.sort_sids([[3, 1, 2], [3, 1, 0], [0, 2, 2]], 4))
    for sids in (np.array([[3.7, 1.2, 0.9]], np.float32), np.array([[True, True, False]])):
        with pytest.raises(TypeError, match="integers"):
            ops.contains(dev, array(sids))


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_a_state_of_another_depth_has_no_candidates(name):
    ops, array = backend(name)
    dev = ops.to_device(mw.sort_sids([[3, 1, 2], [3, 1, 0], [0, 2, 2]], 4))
    state = ops.advance(dev, ops.start(dev, 2), array(np.array([3, 1])))  # the second is in the dead state
    for level, some in ((0, False), (1, True), (2, False), (3, False)):
        found = ops.candidates(dev, array(np.zeros((2, 4), np.float32)), state, 4, level)
        assert (np.asarray(found.scores)[0] > -np.inf).sum() == some
        assert not (np.asarray(found.scores)[1] > -np.inf).any()
        dead = np.asarray(found.states.node) == 3
        assert np.array_equal(dead, np.asarray(found.scores) == -np.inf)


def test_tokens_of_64_bits_do_not_wrap_where_jax_has_32():
    pytest.importorskip("jax")
    from maskwright.runtime import jax_ops

    dev = jax_ops.to_device(mw.sort_sids([[3, 1, 2], [3, 1, 0], [0, 2, 2]], 4))
    far = np.array([[2**32 + 3, 1, 2], [3, 2**32 + 1, 0], [3, 1, 2], [-(2**32) + 3, 1, 2]])
    assert np.asarray(jax_ops.contains(dev, far)).tolist() == [False, False, True, False]
    state = jax_ops.advance(dev, jax_ops.start(dev, 2), np.array([2**32 + 3, 3]))
    assert (np.asarray(state.node) == dev.dead).tolist() == [True, False]


@pytest.mark.parametrize(("fields", "message"), [
    ({"vocab_size": 300}, "cannot hold the tokens"), ({"vocab_size": 4.5}, "must be an integer"),
    ({"item_start": np.array([0, 2, 2])}, "must begin with 0 and rise"),
    ({"item_start": np.array([1, 2, 3])}, "must begin with 0 and rise"),
    ({"item_start": np.array([0, 1, 3]), "item_row": np.array([0, 1, 3])}, "outside 0 .. 2"),
])  # fmt: skip
def test_fields_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(TableError, match=message):
        SortedMatrix(**{"vocab_size": 7, "columns": np.array([[0, 1], [5, 6]], np.uint8), **fields})


def test_a_matrix_that_came_back_from_a_pickle_or_a_copy_cannot_be_written_to():
    matrix = mw.sort_sids([[3, 1], [0, 2], [3, 1]], 4)
    assert matrix.contains([[3, 1]]).all()  # which works out more arrays
    for other in (matrix, pickle.loads(pickle.dumps(matrix)), copy.deepcopy(matrix), copy.copy(matrix)):
        arrays = [array for array in vars(other).values() if isinstance(array, np.ndarray)]
        assert len(arrays) >= 3
        for array in (other.columns, other.item_start, other.item_row, other.sids):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        assert other.contains([[3, 1], [1, 3]]).tolist() == [True, False]
        assert (other.widths, other.branches) == (matrix.widths, matrix.branches)
        assert [rows.tolist() for rows in other.input_rows([0, 1])] == [[1], [0, 2]]


def test_columns_of_any_byte_order_are_taken():
    native = mw.sort_sids([[3, 1], [0, 2], [3, 1], [300, 7]], 400)
    fields = {"columns": ">u2", "item_start": ">i4", "item_row": ">i8"}
    swapped = SortedMatrix(400, **{name: getattr(native, name).astype(kind) for name, kind in fields.items()})
    assert swapped.columns.dtype.isnative
    assert swapped.sids.tolist() == native.sids.tolist()
    assert [rows.tolist() for rows in swapped.input_rows([0, 1, 2])] == [[1], [0, 2], [3]]
    matcher = mw.Matcher(swapped)
    assert matcher.accepts([300, 7])
    assert np.array_equal(matcher.mask(), mw.Matcher(native).mask())
    dev = numpy_ops.to_device(swapped)
    assert numpy_ops.contains(dev, np.array([[300, 7], [7, 300]])).tolist() == [True, False]


def test_look_ups_take_any_byte_order_and_nothing():
    matrix = mw.sort_sids([[3, 1], [0, 2]], 4)
    assert matrix.contains(np.array([[3, 1], [1, 3]], ">i4")).tolist() == [True, False]
    assert matrix.contains([]).tolist() == []


@pytest.mark.parametrize("vocab_size", [5, 300, 70_000])
@pytest.mark.parametrize(
    "kind", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, ">i4"]
)
def test_sequences_of_any_type_of_integers_are_found(kind, vocab_size):
    matrix = mw.sort_sids([[1, 2], [3, 4], [1, 3]], vocab_size)
    asked = np.array([[1, 3], [3, 3], [3, 4]], kind)
    for given_rows in (asked, np.asfortranarray(asked), asked[::-1][::-1]):
        assert matrix.find(given_rows).tolist() == [1, 3, 2]


def test_columns_wider_than_any_vocabulary_needs_are_taken():
    columns = np.array([[1, 1, 3], [2, 3, 4]], np.uint64)
    matrix = SortedMatrix(9, np.asfortranarray(columns))
    assert matrix.find([[1, 3], [2, 2]]).tolist() == [1, 3]
