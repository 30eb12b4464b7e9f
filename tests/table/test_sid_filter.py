"""Filters of sorted matrices: against tables of the items that are kept, in every operation and decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.kernels.limits import UNREACHABLE
from maskwright.runtime import numpy_ops
from maskwright.runtime.arena.arena import check_held
from maskwright.runtime.decode import beam_search, sample, sample_unbiased
from maskwright.runtime.device.device_table import FilteredState
from maskwright.table.filter_bits import booleans_of
from maskwright.table.kept_edges import kept_edges
from maskwright.table.sorted_matrix import SortedMatrix
from tests.marks import marked
from tests.oracles import naive
from tests.strategies.item_sets import CASES, case, some_logits
from tests.support.backends import ALL, backend, out

FEW = ["skewed"]  # what JAX is given: compiling takes seconds


def keeps(matrix: SortedMatrix, seed: int) -> list[np.ndarray]:
    """Three choices of items: half, few, and none of one first token."""
    rng = np.random.default_rng(seed)
    half, few = rng.random(matrix.num_items) < 0.5, rng.random(matrix.num_items) < 0.04
    few[rng.integers(matrix.num_items)] = True
    rare = half.copy()
    rare[matrix.input_rows(0)[0]] = False
    rare[matrix.input_rows(matrix.num_sequences - 1)[0]] = True
    half[matrix.input_rows(0)[0][0]] = True
    return [half, few, rare]


@settings(deadline=None, max_examples=40)
@given(naive.sid_sets(), st.data())
def test_filters_join_item_by_item_and_give_back_kept_items_alone(drawn, data):
    rows, vocab = drawn
    matrix = mw.sort_sids(np.array(rows), vocab)
    one, other = (np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))) for _ in "12")
    a, b = matrix.filter(one), matrix.filter(other)
    for made, keep in ((a, one), (a & b, one & other), (a | b, one | other), (~a, ~one), (~(a | b), ~(one | other))):
        kept = {row for row, is_kept in zip(rows, keep, strict=True) if is_kept}
        assert made.num_items == keep.sum()
        assert made.num_sequences == len(kept)
        assert made.contains(rows).tolist() == [row in kept for row in rows]
        nodes = matrix.find(np.array(rows))
        for row, items in zip(rows, made.input_rows(nodes), strict=True):
            assert sorted(items.tolist()) == [i for i, each in enumerate(rows) if each == row and keep[i]]


def naive_kept(table, kept):
    """Return the edges that sequences go along, and the rows in which they end."""
    edges, ends = set(), set()
    for sequence in kept:
        state = 0
        for token in sequence:
            if state >= table.num_rows:
                break
            low, high = table.rows.edge_start[state : state + 2]
            edge = int(low) + table.edges.token[low:high].tolist().index(token)
            edges.add(edge)
            state = int(table.edges.target[edge])
        else:
            if state < table.num_rows:
                ends.add(state)
    return edges, ends


@settings(deadline=None, max_examples=40)
@given(naive.ragged_sets(eos=0), st.sampled_from([None, 0]), st.data())
def test_filters_of_tables_join_item_by_item_and_give_back_kept_items_alone(drawn, eos, data):
    rows, vocab = drawn
    table = mw.compile_sequences([list(row) for row in rows], vocab_size=vocab, eos=eos)
    one, other = (np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))) for _ in "12")
    a, b = table.filter(one), table.filter(other)
    for made, keep in ((a, one), (a & b, one & other), (a | b, one | other), (~a, ~one), (~(a | b), ~(one | other))):
        kept = {row for row, is_kept in zip(rows, keep, strict=True) if is_kept}
        assert (made.num_items, made.num_sequences) == (keep.sum(), len(kept))
        assert made.min_length == min(map(len, kept or set(rows)))
        for row in rows:
            assert made.contains([row]).tolist() == [row in kept]
            assert eos is None or made.contains([(*row, eos, eos)]).tolist() == [row in kept]
            assert not made.contains([(*row, vocab - 1, 1, 1, 1, 1, 1, 1, 1)]).any()
            items = made.input_rows(table.walk([row]))[0]
            assert sorted(items.tolist()) == [i for i, each in enumerate(rows) if each == row and keep[i]]
        masks = np.zeros_like(table.bases.masks)
        found = kept_edges(table, made.rows, distances=True, masks=masks)
        edges, ends = naive_kept(table, kept)
        assert set(np.flatnonzero(booleans_of(found.edges, 32 * found.edges.size)).tolist()) == edges
        assert set(np.flatnonzero(booleans_of(found.ends, 32 * found.ends.size)).tolist()) == ends
        row = dict(zip(sorted(edges), np.searchsorted(table.rows.edge_start, sorted(edges), "right") - 1, strict=True))
        masked = [edge for edge in edges if row[edge] < table.rows.base.size and table.rows.base[row[edge]] >= 0]
        in_masks = {(int(table.rows.base[row[edge]]), int(table.edges.token[edge])) for edge in masked}
        places = np.argwhere(np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")).tolist()
        assert set(map(tuple, places)) == in_masks
        assert found.any == bool(kept)
        assert found.distance is not None
        assert int(found.distance[0]) == min(map(len, kept), default=UNREACHABLE)


def test_columns_of_other_libraries_are_taken_and_null_is_refused():
    matrix = mw.sort_sids([[3, 1], [0, 2], [3, 1]], 4)
    wanted = matrix.filter([True, False, False]).items
    pa = pytest.importorskip("pyarrow")
    for column in (pa.array([True, False, False]), pa.chunked_array([[True], [False, False]])):
        np.testing.assert_array_equal(matrix.filter(column).items, wanted)
    masked = np.ma.array([True, False, False])
    np.testing.assert_array_equal(matrix.filter(masked).items, wanted)
    masked[1] = np.ma.masked
    for column in (pa.array([True, None, False]), pa.chunked_array([[True], [None, False]]), masked):
        with pytest.raises(mw.errors.ConstraintError, match="keep has 1 nulls") as found:
            matrix.filter(column)
        assert found.value.argument == "keep"
        assert found.value.remedies


def test_what_is_no_choice_among_the_items_is_refused():
    matrix, other = mw.sort_sids([[3, 1], [0, 2]], 4), mw.sort_sids([[3, 1], [0, 2]], 4)
    for keep, message in (
        ([1, 0], "must be booleans, not int"),
        ([True], r"shape \(1,\), one boolean is needed for each of the 2"),
        ([[True, False]], r"shape \(1, 2\)"),
        ([None, True], "must be booleans, not object"),
    ):
        with pytest.raises(mw.errors.ConstraintError, match=message):
            matrix.filter(keep)
    kept, foreign = matrix.filter([True, False]), other.filter([True, False])
    with pytest.raises(mw.errors.ConstraintError, match="filters of different matrices"):
        kept & foreign
    dev = numpy_ops.to_device(matrix)
    with pytest.raises(mw.errors.ConstraintError, match="of another matrix"):
        numpy_ops.with_filters(dev, [foreign])
    with pytest.raises(ValueError, match="filters is empty"):
        numpy_ops.with_filters(dev, [])
    with pytest.raises(ValueError, match=r"numbers of the 1 filters, 0 \.\. 0"):
        numpy_ops.with_filters(dev, [kept], of=[1])
    with pytest.raises(ValueError, match="begin with start"):
        numpy_ops.bitmask(numpy_ops.with_filters(dev, [kept]), numpy_ops.start(dev, 1))


def walked(ops: Any, dev: Any, rows: np.ndarray, depths: np.ndarray, of: np.ndarray, into: Any) -> FilteredState:
    """States that `advance` comes to after the first tokens of rows, `depths` of them."""
    state = ops.start(dev, len(rows))
    state = state._replace(**dict(zip(("node", "high", "depth"), state[:3], strict=True)))
    for at in range(rows.shape[1]):
        after = ops.advance(dev, state, into(rows[:, at].astype(np.int64)))
        going = into(depths > at)
        state = FilteredState(*(ops.arrays.where(going, a, b) for a, b in zip(after, state, strict=True)))
    return state


@pytest.mark.parametrize(("name", "kind"), marked([(n, k) for n in ALL for k in CASES if n != "jax" or k in FEW]))
def test_each_row_is_allowed_what_the_table_of_its_kept_items_allows(name, kind):
    c, (ops, into) = case(kind), backend(name)
    chosen = keeps(c.matrix, 5)
    tables = [mw.compile_sids(c.rows[keep], c.vocab) for keep in chosen]
    rng = np.random.default_rng(6)
    of, depths = np.tile([0, 1, 2], 16), rng.integers(0, c.matrix.length + 1, 48)
    rows = np.stack([c.rows[rng.choice(np.flatnonzero(chosen[f]) if i % 3 else len(c.rows))] for i, f in enumerate(of)])
    dev = ops.with_filters(ops.to_device(c.matrix), [c.matrix.filter(keep) for keep in chosen], of)
    logits, width = some_logits(48, c.vocab, 2), max(c.matrix.widths)

    def all_of(dev: Any, logits: Any, state: Any, tokens: Any) -> Any:
        return (
            ops.mask_logits(dev, logits, state), ops.bitmask(dev, state), ops.allowed_tokens(dev, state, width),
            ops.accepting(dev, state), ops.log_mass(dev, logits, state), ops.candidates(dev, logits, state, 3),
            ops.advance(dev, state, tokens),
        )  # fmt: skip

    if name == "jax":
        import jax

        all_of = jax.jit(all_of)
    state = walked(ops, dev, rows, depths, of, into)
    tokens = rng.integers(0, c.vocab, 48)
    found = all_of(dev, into(logits), state, into(tokens))
    masked, bits, (listed, are), accepting, mass, best, after = found
    for i in range(48):
        table = tables[of[i]]
        node = table.walk(rows[i : i + 1, : depths[i]]) if depths[i] else np.zeros(1, np.int64)
        wanted = numpy_ops.bitmask(table, numpy_ops.State(node))
        np.testing.assert_array_equal(out(bits)[i].view(np.uint32), wanted[0])
        allowed = np.flatnonzero(np.unpackbits(wanted.view(np.uint8), bitorder="little"))
        np.testing.assert_array_equal(np.flatnonzero(out(masked)[i] > -np.inf), allowed)
        np.testing.assert_array_equal(out(listed)[i][out(are)[i]], allowed)
        assert bool(out(accepting)[i]) == bool(numpy_ops.accepting(table, numpy_ops.State(node))[0])
        expected = numpy_ops.candidates(table, logits[i : i + 1], numpy_ops.State(node), 3)
        np.testing.assert_array_equal(out(best.tokens)[i], expected.tokens[0])
        np.testing.assert_allclose(out(best.scores)[i], expected.scores[0], rtol=1e-4, atol=1e-5)
        total = numpy_ops.log_mass(table, logits[i : i + 1], numpy_ops.State(node))[0]
        np.testing.assert_allclose(out(mass)[i], total, rtol=1e-4, atol=1e-5)
        assert (out(after.node)[i] == c.matrix.num_sequences) == (tokens[i] not in allowed)
        assert out(after.filter)[i] == of[i]


@pytest.mark.parametrize(
    ("name", "kind"),
    marked([(n, k) for n in ALL for k in CASES if n != "jax" or k in FEW], slow=[("jax", k) for k in FEW]),
)
def test_beams_and_samples_are_those_of_the_kept_items(name, kind):
    c, (ops, into) = case(kind), backend(name)
    chosen = keeps(c.matrix, 7)
    filters = [c.matrix.filter(keep) for keep in chosen]
    dev = ops.with_filters(ops.to_device(c.matrix), filters)
    beams, length = 5, c.matrix.length
    weights = some_logits(length, c.vocab, 3)

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return into(weights[np.full(len(tokens), t)]), cache

    def search(dev: Any) -> Any:
        return beam_search(step, None, dev, ops=ops, batch=3, beams=beams, max_tokens=length)

    if name == "jax":
        import jax

        search = jax.jit(search)
    found = search(dev)
    for b, keep in enumerate(chosen):
        table = mw.compile_sids(c.rows[keep], c.vocab)
        wanted = beam_search(
            lambda tokens, cache, t: (weights[np.full(len(tokens), t)], cache), None, table, ops=numpy_ops, batch=1,
            beams=beams, max_tokens=length,
        )  # fmt: skip
        np.testing.assert_array_equal(out(found.valid)[b], wanted.valid[0])
        np.testing.assert_array_equal(out(found.tokens)[b], wanted.tokens[0])
        np.testing.assert_allclose(out(found.scores)[b], wanted.scores[0], rtol=1e-4, atol=1e-4)
        valid = wanted.valid[0]
        for items, tokens in zip(
            filters[b].input_rows(out(found.states)[b][valid]), wanted.tokens[0][valid], strict=True
        ):
            assert sorted(items.tolist()) == [
                i for i, row in enumerate(c.rows.tolist()) if row == tokens.tolist() and keep[i]
            ]
    if name == "jax":  # drawing compiles for long, and is array operations on what is masked above
        return
    random: Any = np.random.default_rng(0)
    if name == "torch":
        import torch

        random = torch.Generator().manual_seed(0)
    drawn = sample_unbiased(step, None, dev, random, ops=ops, batch=3, candidates=4, max_tokens=length)
    assert out(drawn.valid).all()
    for tokens, one in zip(out(drawn.tokens), filters, strict=True):
        assert one.contains(tokens[None]).all()
    first = sample(dev, into(weights[:1].repeat(3, 0)), ops.start(dev, 3), random, ops=ops, level=0)
    assert out(first.valid).all()


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_row_whose_filter_keeps_nothing_holds_nothing_and_leaves_the_others_alone(name):
    c, (ops, into) = case("few tokens"), backend(name)
    nothing, everything = (c.matrix.filter(np.full(c.matrix.num_items, keep)) for keep in (False, True))
    assert nothing.num_sequences == 0
    dev = ops.with_filters(ops.to_device(c.matrix), [nothing, everything])
    weights = some_logits(1, c.vocab, 3)

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return into(weights.repeat(len(tokens), 0)), cache

    found = beam_search(step, None, dev, ops=ops, batch=2, beams=3, max_tokens=c.matrix.length)
    assert not out(found.valid)[0].any()
    plain = beam_search(step, None, ops.to_device(c.matrix), ops=ops, batch=1, beams=3, max_tokens=c.matrix.length)
    np.testing.assert_array_equal(out(found.tokens)[1], out(plain.tokens)[0])
    assert not out(ops.bitmask(dev, ops.start(dev, 2)))[0].any()


def test_another_filter_compiles_nothing_again():
    jax = pytest.importorskip("jax")
    from maskwright.runtime import jax_ops

    c = case("few tokens")
    traces = []

    @jax.jit
    def masked(dev: Any, logits: Any) -> Any:
        traces.append(1)
        return jax_ops.mask_logits(dev, logits, jax_ops.start(dev, 2))

    dev, logits = jax_ops.to_device(c.matrix), some_logits(2, c.vocab)
    kept = set()
    for seed in range(4):
        filters = [c.matrix.filter(keep) for keep in keeps(c.matrix, seed)[:2]]
        kept.add((np.asarray(masked(jax_ops.with_filters(dev, filters), logits)) > -np.inf).tobytes())
    assert len(kept) > 1
    assert len(traces) == 1


def test_a_filter_is_put_as_a_matrix_is():
    c = case("skewed")
    keep = keeps(c.matrix, 1)[0]
    one = c.matrix.filter(keep)
    table = mw.compile_sids(c.rows[keep], c.vocab)
    logits = some_logits(1, c.vocab)
    row = c.rows[keep][:1]
    dev = numpy_ops.to_device(one)
    state, node = numpy_ops.start(dev, 1), np.zeros(1, np.int64)
    for depth in range(row.shape[1]):
        wanted = numpy_ops.mask_logits(table, logits, numpy_ops.State(node))
        np.testing.assert_array_equal(numpy_ops.mask_logits(dev, logits, state), wanted)
        state, node = numpy_ops.advance(dev, state, row[:, depth]), table.walk(row[:, : depth + 1])
    assert numpy_ops.accepting(dev, state).all()
    assert (one & ~one).num_items == 0


@pytest.mark.parametrize("kind", ["few tokens", "masks", "more rows than tokens", "skewed", "one token"])
def test_a_matcher_under_a_filter_allows_what_the_table_of_the_kept_items_allows(kind):
    c = case(kind)
    for seed, keep in enumerate(keeps(c.matrix, 8)):
        table = mw.compile_sids(c.rows[keep], c.vocab)
        mine, theirs = mw.Matcher(c.matrix.filter(keep)), mw.Matcher(table)
        rng = np.random.default_rng(seed)
        while not mine.is_accepting:
            np.testing.assert_array_equal(mine.mask(), theirs.mask())
            inside = np.flatnonzero(np.unpackbits(theirs.mask().view(np.uint8), bitorder="little"))
            outside = np.setdiff1d(np.arange(c.vocab), inside)
            assert not outside.size or not mine.advance(int(rng.choice(outside)))
            token = int(rng.choice(inside))
            assert mine.advance(token)
            assert theirs.advance(token)
        assert theirs.is_accepting


def test_what_must_write_something_refuses_a_filter_that_keeps_nothing():
    nothing = case("few tokens").matrix.filter(np.zeros(60, bool))
    with pytest.raises(mw.errors.ConstraintError, match="the filter keeps no item"):
        mw.Matcher(nothing)
    with pytest.raises(TypeError, match="an Arena holds tables, not a SidFilter"):
        check_held(nothing)


def test_the_logits_processor_gives_each_element_its_filter():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.transformers import ConstraintLogitsProcessor

    c = case("few tokens")
    chosen = keeps(c.matrix, 9)[:2]
    filters = [c.matrix.filter(keep) for keep in chosen]
    eos = c.vocab
    processor = ConstraintLogitsProcessor(filters, eos_token_ids=eos)
    ids = torch.zeros(4, 1, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(c.matrix.length):
        scores = processor(ids, torch.randn(4, c.vocab + 1, generator=generator))
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], 1)
    assert (processor(ids, torch.zeros(4, c.vocab + 1)).argmax(-1) == eos).all()
    for row, tokens in enumerate(ids[:, 1:]):
        assert filters[row // 2].contains(tokens[None]).all()
    with pytest.raises(mw.errors.ConstraintError, match="the filter keeps no item"):
        ConstraintLogitsProcessor([filters[0] & ~filters[0]], eos_token_ids=eos)
