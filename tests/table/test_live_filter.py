"""Filters of live sets: against sets of Python, and in every operation and decoder against tables of what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import beam_search
from maskwright.table.live_sids import LiveSids
from maskwright.table.snapshot import LiveFilter, Snapshot
from tests.marks import marked
from tests.strategies.item_sets import KINDS, Changing, some_logits, walked
from tests.support.backends import ALL, backend, out

Kept = set[tuple[int, ...]]


def drawn(c: Changing, snapshot: Snapshot, share: float) -> tuple[LiveFilter, Kept]:
    """A random filter of a snapshot, and what it keeps."""
    keep = c.rng.random(snapshot.num_sequences) < share
    return snapshot.filter(keep), set(map(tuple, snapshot.sids[keep].tolist()))


def changed(c: Changing, times: int = 4) -> Snapshot:
    """The set after some updates, which leave rows in the delta and take some of the base."""
    for _ in range(times):
        c.update(30)
    return c.live.publish()


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_keeps_the_sequences_it_is_told_to(kind):
    c = Changing(kind, 11)
    asked = np.concatenate([c.base.sids.astype(np.int64), c.draw(300)])
    for step in range(8):
        snapshot = changed(c, 2)
        assert sorted(map(tuple, snapshot.sids.tolist())) == sorted(c.items)
        (a, in_a), (b, in_b) = drawn(c, snapshot, 0.5), drawn(c, snapshot, 0.3)
        for kept, wanted in ((a, in_a), (a & b, in_a & in_b), (a | b, in_a | in_b), (~a, set(c.items) - in_a)):
            assert kept.num_sequences == len(wanted)
            found = kept.contains(asked)
            assert found.tolist() == [row in wanted for row in map(tuple, asked.tolist())]
            assert not wanted or kept.contains([*wanted]).all()
        if step == 4:
            c.live.compact()


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_is_taken_over_to_a_later_snapshot_and_asks_for_what_came(kind):
    c = Changing(kind, 12)
    for step in range(6):
        before = changed(c, 2)
        kept, wanted = drawn(c, before, 0.5)
        there = set(c.items)
        if step % 3 == 2:
            c.live.compact()
        after = changed(c, 2)
        came = set(c.items) - there
        for new in (False, True):
            moved = kept.at(after, new=new)
            expected = (wanted & set(c.items)) | (came if new else set())
            assert moved.num_sequences == len(expected)
            assert not expected or moved.contains([*expected]).all()
        asked: list[Any] = []

        def even(rows: np.ndarray, asked: list[Any] = asked) -> Any:
            asked.extend(map(tuple, rows.tolist()))
            return rows.sum(axis=1) % 2 == 0

        moved = kept.at(after, new=even)
        assert sorted(asked) == sorted(came)
        expected = (wanted & set(c.items)) | {row for row in came if sum(row) % 2 == 0}
        assert moved.num_sequences == len(expected)
        assert not expected or moved.contains([*expected]).all()


@pytest.mark.parametrize(  # compiling takes JAX seconds
    ("name", "kind"),
    marked([(n, k) for n in ALL for k in KINDS if n != "jax" or k == "skewed"], slow=[("jax", "skewed")]),
)
def test_operations_agree_with_the_tables_of_what_filters_keep(name, kind):
    c, (ops, into) = Changing(kind, 13), backend(name)
    states = 24
    logits = some_logits(states, c.vocab, 2)
    dev = ops.to_device(c.live.publish())
    width = max(level.width for level in dev.levels)

    def all_of(dev: Any, logits: Any, state: Any, tokens: Any) -> Any:
        return (
            ops.mask_logits(dev, logits, state), ops.bitmask(dev, state), ops.allowed_tokens(dev, state, width),
            ops.accepting(dev, state), ops.candidates(dev, logits, state, 3), ops.advance(dev, state, tokens),
        )  # fmt: skip

    if name == "jax":
        import jax

        all_of = jax.jit(all_of)
    for _ in range(3):
        snapshot = changed(c)
        dev = ops.with_snapshot(dev, snapshot)
        filters = [drawn(c, snapshot, share) for share in (0.5, 0.05, 0.9)]
        of = [2, 0, 1]
        under = ops.with_filters(dev, [kept for kept, _ in filters], of)
        known = np.array(list(c.items))
        depths = c.rng.integers(0, c.length + 1, states)
        rows = np.concatenate([known[c.rng.integers(0, len(known), 16)], c.draw(states - 16)])
        for share in range(3):  # rows that a filter keeps, too
            own = filters[of[share]][1]
            rows[8 * share : 8 * share + 4] = [[*own][i % len(own)] for i in range(4)] if own else rows[:4]
        tokens = c.draw(states)[:, 0]
        state = walked(ops, under, rows, depths, into)
        masked, bits, (listed, are), accepting, best, after = all_of(under, into(logits), state, into(tokens))
        for i in range(states):
            kept = filters[of[i // 8]][1]
            if not kept:
                assert not out(bits)[i].any()
                continue
            table = mw.compile_sids(np.array(sorted(kept)), c.vocab)
            node = table.walk(rows[i : i + 1, : depths[i]]) if depths[i] else np.zeros(1, np.int64)
            wanted = numpy_ops.bitmask(table, numpy_ops.State(node))
            np.testing.assert_array_equal(out(bits)[i].view(np.uint32), wanted[0])
            allowed = np.flatnonzero(np.unpackbits(wanted.view(np.uint8), bitorder="little"))
            np.testing.assert_array_equal(np.flatnonzero(out(masked)[i] > -np.inf), allowed)
            if depths[i] >= under.base.masked:
                np.testing.assert_array_equal(out(listed)[i][out(are)[i]], allowed)
            assert bool(out(accepting)[i]) == bool(numpy_ops.accepting(table, numpy_ops.State(node))[0])
            expected = numpy_ops.candidates(table, logits[i : i + 1], numpy_ops.State(node), 3)
            np.testing.assert_array_equal(out(best.tokens)[i], expected.tokens[0])
            np.testing.assert_allclose(out(best.scores)[i], expected.scores[0], rtol=1e-4, atol=1e-5)
            assert (out(after.node)[i] == under.dead) == (tokens[i] not in allowed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_beam_search_under_filters_is_that_of_tables(name, kind):
    c, (ops, into) = Changing(kind, 14), backend(name)
    weights = some_logits(c.length, c.vocab, 3)

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return into(weights[np.full(len(tokens), t)]), cache

    def plain(tokens: Any, cache: Any, t: int) -> Any:
        return weights[np.full(len(tokens), t)], cache

    dev = ops.to_device(c.live.publish())
    for _ in range(3):
        snapshot = changed(c)
        dev = ops.with_snapshot(ops.with_filters(dev, [drawn(c, dev.base.origin.snapshot, 0.5)[0]]), snapshot)
        nothing = snapshot.filter(np.zeros(len(c.items), np.bool_))
        filters = [drawn(c, snapshot, 0.4), drawn(c, snapshot, 0.02), (nothing, set())]
        options: dict[str, Any] = {"beams": 7, "max_tokens": c.length}
        under = ops.with_filters(dev, [kept for kept, _ in filters])
        found = beam_search(step, None, under, ops=ops, batch=3, **options)
        whole = beam_search(step, None, dev, ops=ops, batch=1, **options)  # the filters are gone after `with_snapshot`
        table = mw.compile_sids(np.array(list(c.items)), c.vocab)
        wanted = beam_search(plain, None, table, ops=numpy_ops, batch=1, **options)
        np.testing.assert_array_equal(out(whole.tokens), wanted.tokens)
        for row, (kept, rows) in enumerate(filters):
            if not rows:
                assert not out(found.valid)[row].any()
                continue
            table = mw.compile_sids(np.array(sorted(rows)), c.vocab)
            wanted = beam_search(plain, None, table, ops=numpy_ops, batch=1, **options)
            np.testing.assert_array_equal(out(found.tokens)[row], wanted.tokens[0])
            np.testing.assert_allclose(out(found.scores)[row], wanted.scores[0], rtol=1e-4, atol=1e-4)
            valid = wanted.valid[0]
            np.testing.assert_array_equal(
                kept.sequences(out(found.states)[row][valid]), wanted.tokens[0][valid].astype(np.int64)
            )
            alone = beam_search(step, None, ops.to_device(kept), ops=ops, batch=1, **options)
            np.testing.assert_array_equal(out(alone.tokens)[0], wanted.tokens[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_matcher_allows_what_a_snapshot_holds_and_a_filter_keeps(kind):
    c = Changing(kind, 15)
    for _ in range(3):
        snapshot = changed(c)
        kept, rows = drawn(c, snapshot, 0.3)
        for constraint, wanted in ((snapshot, set(c.items)), (kept, rows)):
            matcher = mw.Matcher(constraint, max_tokens=c.length)
            for row in [*list(wanted)[:20], *map(tuple, c.draw(10).tolist())]:
                matcher.reset()
                for depth in range(c.length):
                    allowed = {other[depth] for other in wanted if other[:depth] == row[:depth]}
                    bits = np.unpackbits(matcher.mask().astype("<u4").view(np.uint8), bitorder="little")
                    assert set(np.flatnonzero(bits).tolist()) == allowed
                    assert matcher.advance(row[depth]) == (row[depth] in allowed)
                    if row[depth] not in allowed:
                        break
                else:
                    assert matcher.is_terminated
                    assert constraint.sequences(matcher.state)[0].tolist() == list(row)
                    matcher.rollback(1)
                    assert not matcher.is_accepting
        with pytest.raises(mw.errors.ConstraintError, match="keeps nothing of it"):
            mw.Matcher(kept & ~kept)


def test_a_filter_belongs_to_its_snapshot_and_says_so():
    live = LiveSids(mw.sort_sids([[1, 1], [2, 2], [2, 0]], 3), capacity=8)
    first = live.publish()
    dev = numpy_ops.to_device(first)
    live.insert([[0, 1]])
    second = live.publish()
    old, new = first.filter([True, False, True]), second.filter([True, False, True, True])
    with pytest.raises(mw.errors.ConstraintError, match="snapshot 1 cannot be joined with one of snapshot 2"):
        old & new
    with pytest.raises(mw.errors.ConstraintError, match="is of snapshot 2, and on this device is snapshot 1"):
        numpy_ops.with_filters(dev, [old, new])
    with pytest.raises(TypeError, match="must be LiveFilters"):
        numpy_ops.with_filters(dev, [live.base.filter([True, False, True])])
    with pytest.raises(TypeError, match="must be SidFilters"):
        numpy_ops.with_filters(numpy_ops.to_device(live.base), [old])
    with pytest.raises(ValueError, match="filters is empty"):
        numpy_ops.with_filters(dev, [])
    with pytest.raises(
        mw.errors.ConstraintError, match=r"keep has shape \(3,\), one boolean .* each of the 4 sequences"
    ):
        second.filter([True, False, True])
    with pytest.raises(mw.errors.ConstraintError, match="keep must be booleans"):
        first.filter([1, 0, 1])
    with pytest.raises(mw.errors.ConstraintError, match=r"has shape \(2,\), \(1,\) is needed"):
        old.at(second, new=lambda rows: np.ones(2, bool))
    with pytest.raises(mw.errors.ConstraintError, match="of another live set"):
        old.at(LiveSids(mw.sort_sids([[1]], 3)).publish(), new=True)
    with pytest.raises(TypeError, match="joined with a filter"):
        old | True
    assert (
        numpy_ops.with_filters(numpy_ops.with_snapshot(dev, second), [old.at(second, new=False)]).base.kept is not None
    )


def test_nothing_is_compiled_again_for_other_filters_and_snapshots():
    jax = pytest.importorskip("jax")
    from maskwright.runtime import jax_ops

    c = Changing("skewed", 16)
    traces = []

    @jax.jit
    def masked(dev: Any, logits: Any) -> Any:
        traces.append(1)
        return jax_ops.mask_logits(dev, logits, jax_ops.start(dev, 2))

    dev, logits = jax_ops.to_device(c.live.publish()), some_logits(2, c.vocab)
    for step in range(5):
        snapshot = changed(c, 1)
        dev = jax_ops.with_snapshot(dev, snapshot)
        filters = [drawn(c, snapshot, share) for share in (0.5, 0.1)]
        found = np.asarray(masked(jax_ops.with_filters(dev, [kept for kept, _ in filters]), logits))
        for row, (_, kept) in enumerate(filters):
            assert np.flatnonzero(found[row] > -np.inf).tolist() == sorted({first for first, *_ in kept})
        if step == 2:
            c.live.compact()
    assert len(traces) == 1


def test_the_logits_processor_takes_filters_of_snapshots():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.transformers import ConstraintLogitsProcessor

    c = Changing("few tokens", 17)
    snapshot = changed(c)
    tables = [drawn(c, snapshot, 0.3)[0], snapshot, drawn(c, snapshot, 0.6)[0]]
    processor = ConstraintLogitsProcessor(tables, eos_token_ids=c.vocab)
    ids = torch.zeros(9, 1, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(c.length):
        scores = processor(ids, torch.randn(9, c.vocab + 1, generator=generator))
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], 1)
    for row, tokens in enumerate(ids[:, 1:]):
        assert tables[row // 3].contains(tokens[None]).all()
    with pytest.raises(mw.errors.ConstraintError, match="keeps no item"):
        ConstraintLogitsProcessor(tables[0] & ~tables[0], eos_token_ids=c.vocab)
