"""Filters of tables of sequences: against sets of Python's tuples, in every operation and decoder."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.arena.arena import check_held
from maskwright.runtime.decode import beam_search, sample, sample_sequences, sample_unbiased
from maskwright.runtime.device.device_table import FilteredTableState
from tests.marks import marked
from tests.support.backends import ALL, backend, out

Tokens = tuple[int, ...]


class Case(NamedTuple):
    """A table, and the sequences that it was made of, in their order."""

    table: mw.TransitionTable
    rows: list[Tokens]
    vocab: int

    def kept(self, keep: np.ndarray) -> set[Tokens]:
        return {row for row, is_kept in zip(self.rows, keep, strict=True) if is_kept}

    def allowed(self, kept: set[Tokens], prefix: Tokens, room: int | None = None) -> list[int]:
        """Tokens after which a kept sequence can go on, and end within `room` tokens; ends where one may end."""
        at = len(prefix)
        below = [row for row in kept if row[:at] == prefix]
        tokens = {row[at] for row in below if len(row) > at and (room is None or len(row) - at <= room)}
        return sorted(tokens | (set(self.table.ends) if prefix in kept else set()))


def _fixed(count: int, vocab: int, length: int, skew: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(count + vocab)
    return (vocab * rng.random((count, length)) ** (1 + skew)).astype(np.int64)


@cache
def case(kind: str) -> Case:
    rng = np.random.default_rng(7)
    fixed = {
        "masks": (3_000, 20, 4, 0.0), "tails beside masks": (700, 24, 4, 3.0), "sparse": (400, 3_000, 4, 1.0),
        "one token": (12, 40, 1, 0.0), "one row": (1, 9, 4, 0.0), "wide": (300, 70_000, 3, 4.0),
    }  # fmt: skip
    if kind in fixed:
        count, vocab, length, skew = fixed[kind]
        sids = _fixed(count, vocab, length, skew)
        return Case(mw.compile_sids(sids, vocab), list(map(tuple, sids.tolist())), vocab)
    ends: Any = {"lengths": None, "lengths and eos": 0, "lengths and two ends": [0, 31], "eos": 0}[kind]
    vocab = 33
    longest = [4] * 500 if kind == "eos" else rng.integers(1, 6, 500)
    rows = [tuple((1 + 24 * rng.random(length) ** 2).astype(int).tolist()) for length in longest]
    rows += rows[:40]  # several items on one sequence
    return Case(mw.compile_sequences([list(row) for row in rows], vocab_size=vocab, eos=ends), rows, vocab)


CASES = [
    "masks", "tails beside masks", "sparse", "wide", "one token", "one row",
    "eos", "lengths", "lengths and eos", "lengths and two ends",
]  # fmt: skip
FEW = ["tails beside masks", "lengths and eos"]  # what JAX is given: compiling takes seconds


def keeps(c: Case, seed: int) -> list[np.ndarray]:
    """Four choices of items: half, few, none of one first token, all."""
    rng = np.random.default_rng(seed)
    half, few = rng.random(len(c.rows)) < 0.5, rng.random(len(c.rows)) < 0.03
    few[rng.integers(len(c.rows))] = half[0] = True
    rare = np.array([row[0] != c.rows[0][0] for row in c.rows])
    rare[-1] = True
    return [half, few, rare, np.ones(len(c.rows), bool)]


def logits_of(count: int, vocab: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, vocab + 3)).astype(np.float32)


def walked(ops: Any, dev: Any, prefixes: list[Tokens], into: Any) -> FilteredTableState:
    """States that `advance` comes to after prefixes."""
    state = ops.start(dev, len(prefixes))
    for at in range(max(map(len, prefixes))):
        tokens = np.array([row[at] if at < len(row) else 0 for row in prefixes], np.int64)
        after = ops.advance(dev, state, into(tokens))
        going = into(np.array([at < len(row) for row in prefixes]))
        state = FilteredTableState(*(ops.arrays.where(going, a, b) for a, b in zip(after, state, strict=True)))
    return state


def bits_of(words: Any, vocab: int) -> list[list[int]]:
    bits = np.unpackbits(out(words).view(np.uint8), axis=1, bitorder="little", count=vocab)
    return [np.flatnonzero(row).tolist() for row in bits]


@pytest.mark.parametrize(("name", "kind"), marked([(n, k) for n in ALL for k in CASES if n != "jax" or k in FEW]))
def test_each_row_is_allowed_what_leads_to_a_sequence_that_its_filter_keeps(name, kind):
    c, (ops, into) = case(kind), backend(name)
    chosen, count = keeps(c, 5), 48
    sets = [c.kept(keep) for keep in chosen]
    rng = np.random.default_rng(6)
    of = np.tile([0, 1, 2, 3], 12)
    prefixes = []
    for i, f in enumerate(of):
        pool = sorted(sets[f]) if i % 3 else c.rows
        row = pool[rng.integers(len(pool))]
        prefixes.append(row[: rng.integers(0, len(row) + 1)])
    filters = [c.table.filter(keep) for keep in chosen]
    placed = c.table if name == "numpy" else ops.to_device(c.table, distances=True)
    dev = ops.with_filters(placed, filters, of)
    logits, width = logits_of(count, c.vocab, 2), max(c.table.widths)
    room = rng.integers(-1, 6, count)

    def all_of(dev: Any, logits: Any, state: Any, tokens: Any, room: Any) -> Any:
        return (
            ops.mask_logits(dev, logits, state), ops.bitmask(dev, state), ops.bitmask(dev, state, room),
            ops.allowed_tokens(dev, state, width), ops.allowed_tokens(dev, state, width, room),
            ops.accepting(dev, state), ops.log_mass(dev, logits, state), ops.candidates(dev, logits, state, 3),
            ops.advance(dev, state, tokens),
        )  # fmt: skip

    if name == "jax":
        import jax

        all_of = jax.jit(all_of)
    state = walked(ops, dev, prefixes, into)
    tokens = rng.integers(0, c.vocab, count)
    for i in range(0, count, 2):
        offered = c.allowed(sets[of[i]], prefixes[i])
        tokens[i] = offered[i % len(offered)] if offered else tokens[i]
    found = all_of(dev, into(logits), state, into(tokens), into(room))
    masked, bits, short, listed, listed_short, accepting, mass, best, after = found
    log_probs = numpy_ops.arrays.log_softmax(logits)
    far = out(ops.distance(dev, state))
    ends = set(c.table.ends)
    for i in range(count):
        kept, prefix = sets[of[i]], prefixes[i]
        alive = any(row[: len(prefix)] == prefix for row in kept)
        allowed = c.allowed(kept, prefix)
        assert bits_of(bits, c.vocab)[i] == allowed
        assert bits_of(short, c.vocab)[i] == c.allowed(kept, prefix, max(int(room[i]), 0))
        assert np.flatnonzero(out(masked)[i] > -np.inf).tolist() == allowed
        for (which, are), within in ((listed, None), (listed_short, max(int(room[i]), 0))):
            assert sorted(out(which)[i][out(are)[i]].tolist()) == c.allowed(kept, prefix, within)
        assert bool(out(accepting)[i]) == (prefix in kept)
        np.testing.assert_allclose(
            out(mass)[i], numpy_ops.arrays.logsumexp(np.append(log_probs[i, allowed], np.float32(-np.inf))[None])[0],
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
        if len(ends) < 2:  # of several, candidates have the first, which stands for all
            order = sorted(allowed, key=lambda token: -logits[i, token])[:3]
            assert out(best.tokens)[i][: len(order)].tolist() == order
            np.testing.assert_allclose(out(best.scores)[i][: len(order)], log_probs[i, order], rtol=1e-4, atol=1e-5)
            assert (out(best.scores)[i][len(order) :] == -np.inf).all()
        assert (out(after.node)[i] != c.table.dead) == (int(tokens[i]) in allowed)
        assert (out(state.node)[i] != c.table.dead) == alive
        assert out(after.filter)[i] == of[i]
        if far is not None and alive:
            assert far[i] == min(len(row) - len(prefix) for row in kept if row[: len(prefix)] == prefix)


@pytest.mark.parametrize(
    ("name", "kind"),
    marked([(n, k) for n in ALL for k in CASES if n != "jax" or k in FEW], slow=[("jax", FEW[0])]),
)
@pytest.mark.parametrize("renormalize", [False, True])
def test_a_step_of_beam_search_is_that_of_the_table_of_the_kept_sequences(name, kind, renormalize):
    c, (ops, into) = case(kind), backend(name)
    chosen = keeps(c, 3)[:3]
    beams, longest = 4, max(map(len, c.rows))
    weights = logits_of(longest + 1, c.vocab, 3)

    def run(ops: Any, dev: Any, into: Any, batch: int) -> Any:
        def step(tokens: Any, cache: Any, t: int) -> Any:
            return into(weights[np.full(len(tokens), t)]), cache

        def search(dev: Any) -> Any:
            return beam_search(
                step, None, dev, ops=ops, batch=batch, beams=beams, max_tokens=longest, renormalize=renormalize
            )

        if ops.__name__.endswith("jax_ops"):
            import jax

            search = jax.jit(search)
        return search(dev)

    filters = [c.table.filter(keep) for keep in chosen]
    found = run(ops, ops.with_filters(ops.to_device(c.table), filters), into, 3)
    for b, keep in enumerate(chosen):
        rows = [list(row) for row, is_kept in zip(c.rows, keep, strict=True) if is_kept]
        ends: Any = list(c.table.ends) or None
        table = mw.compile_sequences(rows, vocab_size=c.vocab, eos=ends)
        wanted = run(numpy_ops, table, np.asarray, 1)
        valid = wanted.valid[0]
        np.testing.assert_array_equal(out(found.valid)[b], valid)
        np.testing.assert_array_equal(out(found.tokens)[b][valid], wanted.tokens[0][valid])
        np.testing.assert_allclose(out(found.scores)[b][valid], wanted.scores[0][valid], rtol=1e-4, atol=1e-4)
        items = filters[b].input_rows(out(found.states)[b][valid])
        for held, tokens in zip(items, wanted.tokens[0][valid].tolist(), strict=True):
            sequence = tuple(token for token in tokens if token >= 0)
            assert sorted(held.tolist()) == [i for i, row in enumerate(c.rows) if row == sequence and keep[i]]


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_samples_are_kept_sequences_and_end_in_time(name, kind):
    c, (ops, into) = case(kind), backend(name)
    chosen = keeps(c, 7)[:3]
    filters = [c.table.filter(keep) for keep in chosen]
    dev = ops.with_filters(ops.to_device(c.table, distances=True), filters)
    weights, longest = logits_of(1, c.vocab, 4), max(map(len, c.rows))

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return into(weights.repeat(len(tokens), 0)), cache

    random: Any = np.random.default_rng(0)
    if name == "torch":
        import torch

        random = torch.Generator().manual_seed(0)
    if c.table.ends or c.table.fixed_length is not None:
        drawn = sample_unbiased(step, None, dev, random, ops=ops, batch=3, candidates=4, max_tokens=longest)
        assert out(drawn.valid).all()
        most = max(min(map(len, c.kept(keep))) for keep in chosen)
        several = sample_sequences(step, None, dev, random, ops=ops, batch=3, samples=6, max_tokens=most)
        assert out(several.valid).all()
        for b, keep in enumerate(chosen):
            kept = c.kept(keep)
            for tokens in [*out(several.tokens)[b], out(drawn.tokens)[b]]:
                assert tuple(tokens[tokens >= 0].tolist()) in kept
    first = sample(dev, into(weights.repeat(3, 0)), ops.start(dev, 3), random, ops=ops, level=0)
    assert out(first.valid).all()


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_row_whose_filter_keeps_nothing_holds_nothing_and_leaves_the_others_alone(name):
    c, (ops, into) = case("tails beside masks"), backend(name)
    nothing, everything = (c.table.filter(np.full(len(c.rows), keep)) for keep in (False, True))
    assert nothing.num_sequences == 0
    dev = ops.with_filters(ops.to_device(c.table), [nothing, everything])
    weights = logits_of(1, c.vocab, 3)

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return into(weights.repeat(len(tokens), 0)), cache

    found = beam_search(step, None, dev, ops=ops, batch=2, beams=3, max_tokens=4)
    plain = beam_search(step, None, ops.to_device(c.table), ops=ops, batch=1, beams=3, max_tokens=4)
    assert not out(found.valid)[0].any()
    np.testing.assert_array_equal(out(found.tokens)[1], out(plain.tokens)[0])
    assert not out(ops.bitmask(dev, ops.start(dev, 2)))[0].any()
    with pytest.raises(mw.errors.ConstraintError, match="the filter keeps no item"):
        mw.Matcher(nothing)
    with pytest.raises(TypeError, match="an Arena holds tables, not a SidFilter"):
        check_held(nothing)


@pytest.mark.parametrize("name", marked(["torch", "jax"], slow=["jax"]))
def test_log_probs_are_those_of_the_kept_sequences(name):
    c, (ops, into) = case("lengths and eos"), backend(name)
    keep = keeps(c, 2)[0]
    rows = [list(row) for row, is_kept in zip(c.rows, keep, strict=True) if is_kept]
    table = mw.compile_sequences(rows, vocab_size=c.vocab, eos=0)
    tokens = np.array([[*row, *[0] * 5][:5] for row in [*rows[:3], c.rows[np.argmin(keep)]]])
    logits = logits_of(20, c.vocab).reshape(4, 5, -1)
    dev = ops.with_filters(ops.to_device(c.table), [c.table.filter(keep)])
    found = out(ops.log_probs(dev, into(logits), into(tokens)))
    np.testing.assert_allclose(found, numpy_ops.log_probs(table, logits, tokens), rtol=1e-4, atol=1e-4)


def test_another_filter_compiles_nothing_again():
    jax = pytest.importorskip("jax")
    from maskwright.runtime import jax_ops

    c, traces = case("tails beside masks"), []

    @jax.jit
    def masked(dev: Any, logits: Any) -> Any:
        traces.append(1)
        return jax_ops.mask_logits(dev, logits, jax_ops.start(dev, 2))

    dev, logits = jax_ops.to_device(c.table), logits_of(2, c.vocab)
    kept = set()
    for seed in range(4):
        filters = [c.table.filter(np.random.default_rng(seed).random(len(c.rows)) < 0.02) for _ in "12"]
        kept.add((np.asarray(masked(jax_ops.with_filters(dev, filters), logits)) > -np.inf).tobytes())
    assert len(kept) > 1
    assert len(traces) == 1


def test_torch_compile_and_a_table_with_filters_agree_with_eager():
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops

    c = case("tails beside masks")
    dev = torch_ops.with_filters(torch_ops.to_device(c.table), [c.table.filter(keep) for keep in keeps(c, 1)[:2]])
    logits = torch.tensor(logits_of(2, c.vocab))
    step = torch.compile(torch_ops.select, backend="eager", fullgraph=True)
    state, scores = torch_ops.start(dev, 2), torch.zeros(2, 1)
    for level in range(4):
        rows = logits[torch.arange(len(state.node)) % 2]
        mine = step(dev, rows, state, scores, 3, level)
        theirs = torch_ops.select(dev, rows, state, scores, 3, level)
        assert torch.equal(mine.tokens, theirs.tokens)
        state, scores = theirs.state, theirs.scores


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("budget", [False, True])
def test_a_matcher_under_a_filter_allows_what_leads_to_a_kept_sequence(kind, budget):
    c = case(kind)
    for seed, keep in enumerate(keeps(c, 8)):
        kept, one = c.kept(keep), c.table.filter(keep)
        assert one.min_length == min(map(len, kept))
        limit = one.min_length + 1 if budget else None
        rng = np.random.default_rng(seed)
        for _ in range(4):
            matcher = mw.Matcher(one, max_tokens=limit)
            prefix: Tokens = ()
            while not matcher.is_terminated:
                room = None if limit is None else limit - len(prefix)
                allowed = c.allowed(kept, prefix, room)
                assert bits_of(matcher.mask()[None], c.vocab)[0] == allowed
                assert matcher.is_accepting == (prefix in kept)
                outside = np.setdiff1d(np.arange(c.vocab), allowed)
                assert not outside.size or not matcher.advance(int(rng.choice(outside)))
                if not allowed:
                    break
                token = int(rng.choice(allowed))
                assert matcher.advance(token)
                if token not in c.table.ends:
                    prefix += (token,)
        if budget and one.min_length > 1:
            with pytest.raises(ValueError, match="less than the shortest match"):
                mw.Matcher(one, max_tokens=one.min_length - 1)


def test_the_logits_processor_gives_each_element_its_filter_and_keeps_an_end_in_reach():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.transformers import ConstraintLogitsProcessor

    for kind in ("tails beside masks", "lengths and eos"):
        c = case(kind)
        chosen = keeps(c, 9)[:2]
        filters = [c.table.filter(keep) for keep in chosen]
        eos = c.table.eos if c.table.eos is not None else c.vocab
        most = max(min(map(len, c.kept(keep))) for keep in chosen)
        processor = ConstraintLogitsProcessor(filters, max_tokens=most, eos_token_ids=eos)
        ids = torch.zeros(4, 1, dtype=torch.int64)
        generator = torch.Generator().manual_seed(0)
        for _ in range(most):
            scores = processor(ids, torch.randn(4, c.vocab + 1, generator=generator))
            ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], 1)
        assert (processor(ids, torch.zeros(4, c.vocab + 1)).argmax(-1) == eos).all()
        for row, tokens in enumerate(ids[:, 1:].tolist()):
            sequence = tuple(tokens[: tokens.index(eos)] if eos in tokens else tokens)
            assert sequence in c.kept(chosen[row // 2])
        with pytest.raises(mw.errors.ConstraintError, match="the filter keeps no item"):
            ConstraintLogitsProcessor([filters[0] & ~filters[0]], eos_token_ids=eos)


def test_what_is_of_another_table_or_without_filters_is_refused():
    table, other = mw.compile_sids([[3, 1], [0, 2]], 4), mw.compile_sids([[3, 1], [0, 2]], 4)
    kept, foreign = table.filter([True, False]), other.filter([True, False])
    with pytest.raises(mw.errors.ConstraintError, match="filters of different tables"):
        kept & foreign
    for name in ALL:
        ops, into = backend(name)
        placed = ops.to_device(table)
        dev = ops.with_filters(placed, [kept])
        assert out(ops.contains(dev, into(np.array([[3, 1], [0, 2], [0, 1]])))).tolist() == [True, True, False]
        with pytest.raises(mw.errors.ConstraintError, match="of another table") as found:
            ops.with_filters(placed, [foreign])
        assert found.value.argument == "filters"
        with pytest.raises(ValueError, match="begin with start"):
            ops.bitmask(dev, ops.start(placed, 1))
        with pytest.raises(ValueError, match="begin with start"):
            ops.bitmask(placed, ops.start(dev, 1))
        assert bits_of(ops.bitmask(ops.to_device(kept), ops.start(ops.to_device(kept), 1)), 4) == [[3]]
        again = ops.with_filters(dev, [~kept])
        assert bits_of(ops.bitmask(again, ops.start(again, 1)), 4) == [[0]]
        text = ops.to_device(mw.compile_regex("a", mw.Vocabulary.from_bytes([b"", b"a"], eos=0)))
        with pytest.raises(TypeError, match="of a table of sequences"):
            ops.with_filters(text, [kept])
    with pytest.raises(TypeError, match="the table of a text has no items"):
        mw.compile_regex("a", mw.Vocabulary.from_bytes([b"", b"a"], eos=0)).filter([True])
    copied = pickle.loads(pickle.dumps(kept))
    assert copied.contains([[3, 1], [0, 2]]).tolist() == [True, False]
