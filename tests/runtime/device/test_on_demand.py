"""Tables that are read as texts come to their states: numpy, torch and JAX against Matchers, and against arrays."""

from __future__ import annotations

import functools
import gc
import itertools
import random
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.compile.grammar.build import compile_form
from maskwright.compile.grammar.form import Grammar
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import beam_search, sample_jumping, sample_sequences, sample_unbiased, speculative_sample
from maskwright.runtime.device import on_demand
from maskwright.runtime.device.device_table import State
from tests.strategies.grammars import a_node
from tests.support.backends import ALL, FAST, backend, out

TOKENS = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"bb", b"abab"]
SMALL = mw.Vocabulary.from_bytes(TOKENS, eos=0)
BYTES = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
V = SMALL.size
PALINDROMES = 'start: "a" start "a" | "b" start "b" | "ab"'
AMBIGUOUS = 'start: "a" start "b" | "b" start "a" | start start | "ab"'  # nothing says which of them opens
SEEDS = [
    *range(8),
    53,
    91,
    101,
    104,
    111,
    113,
    130,
    142,
]  # the latter embed themselves, most of them without delimiters
WIDE = 'start: x* "a" x~14 "b"\nx: "a" | "b"'  # regular, with a state for each set of places
REGULAR = 'start: "a" "b"* start | "ba"'
LETTERS = mw.Vocabulary.from_bytes([b"", *(bytes([97 + i]) for i in range(8))], eos=0)
MANY = """
start: s | "c" s "a" | "ef"
s: "a" s "a" | "b" s "b" | "a" | "a" "g" | "h" "c" | "a" "b" "e"
"""  # masks of many kinds, and some that seldom come back


@functools.cache
def grammar(source: str, states: int = 100_000) -> mw.TransitionTable:
    return mw.compile_grammar(source, SMALL, budget=Budget(states=states))


def a_table(seed: int) -> mw.TransitionTable | None:
    rng = random.Random(seed)
    names = ["start", "x", "y"][: rng.randint(1, 3)]
    form = Grammar({name: a_node(rng, 3, names) for name in names}, "start")
    try:
        return compile_form(form, SMALL, source=f"random {seed}", meter=Budget(states=20_000).begin())
    except mw.errors.GrammarError:
        return None


def masks_of(matchers: list[Any]) -> np.ndarray:
    nothing = np.zeros(-(-V // 32), np.uint32)
    return np.stack([nothing if m is None else m.mask() for m in matchers])


def tokens_of(mask: np.ndarray) -> list[int]:
    return [t for t in range(V) if mask[t >> 5] >> (t & 31) & 1]


def packed(array: Any) -> np.ndarray:
    return out(array).view(np.uint32)


def logits_for(rows: int, seed: int, special: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, V)).astype(np.float32)
    if special:
        for value in (-np.inf, np.nan, np.inf):
            logits[rng.random(logits.shape) < 0.04] = value
        logits[-1] = -np.inf
    return logits


# ------------------------------------------------------------------------------------------- against matchers


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_rows_of_random_grammars_stand_where_matchers_do(name):
    """Eight rows go their own ways, over what is not allowed and over ends as well; masks agree bit for bit."""
    ops, into = backend(name)
    endless = 0
    tables = [grammar(PALINDROMES), grammar(AMBIGUOUS), *map(a_table, SEEDS)]
    for seed, table in enumerate(tables):
        if table is None:
            continue
        endless += not table.has_arrays()
        rng = random.Random(seed)
        matchers: list[Any] = [mw.Matcher(table) for _ in range(8)]
        dev = ops.to_device(table, on_demand=True)
        state = ops.start(dev, 8)
        for step in range(7):
            masks = masks_of(matchers)
            assert (packed(ops.bitmask(dev, state)) == masks).all(), seed
            ends = [m is not None and m.is_accepting for m in matchers]
            assert out(ops.accepting(dev, state)).tolist() == ends
            logits = logits_for(8, step)
            masked = out(ops.mask_logits(dev, into(logits), state))
            allowed = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :V] == 1
            assert (masked == np.where(allowed, logits, -np.inf)).all()
            assert ((out(state.node) == on_demand.DEAD_ROW) == [m is None for m in matchers]).all()
            tokens = [rng.choice(tokens_of(mask) or [0]) if rng.random() < 0.9 else rng.randrange(V) for mask in masks]
            tokens[0] = [3, -1, V, 1, 1, 1, 1][step] if seed % 3 == 0 else tokens[0]
            state = ops.advance(dev, state, into(np.array(tokens)))
            matchers = [
                m if m is not None and 0 <= t < V and m.advance(t) else None
                for m, t in zip(matchers, tokens, strict=True)
            ]
    assert endless > 2


@pytest.mark.parametrize("name", ALL)
def test_a_lazy_schema_read_on_demand_is_its_table(name):
    """A machine with a stack: its rows tell stacks apart."""
    ops, into = backend(name)
    vocab = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), b"[[", b"]]", b"],"], eos=0)
    schema = {"$ref": "#/$defs/l", "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}}
    table = mw.compile_json_schema(schema, vocab, depth=3)
    dev = ops.to_device(table, on_demand=True)
    assert not table.is_complete
    whole = mw.compile_json_schema(schema, vocab, depth=3).to_table()
    rng = random.Random(0)
    matchers = [mw.Matcher(whole) for _ in range(6)]
    state = ops.start(dev, 6)
    for _ in range(12):
        masks = np.stack([m.mask() for m in matchers])
        assert (packed(ops.bitmask(dev, state)) == masks).all()
        choices = [[t for t in range(vocab.size) if mask[t >> 5] >> (t & 31) & 1] for mask in masks]
        tokens = [rng.choice([t for t in choice if t] or [0]) for choice in choices]
        assert all(m.advance(t) for m, t in zip(matchers, tokens, strict=True))
        state = ops.advance(dev, state, into(np.array(tokens)))


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        lambda: mw.compile_regex("(ab|c)*", BYTES),
        lambda: mw.compile_json_schema({"items": {"$ref": "#"}, "type": "array"}, BYTES, depth=2),
        lambda: mw.compile_json_schema({"items": {"$ref": "#"}, "type": "array"}, BYTES, depth=2, lazy=False),
        lambda: mw.compile_json_schema({"items": {"$ref": "#"}, "type": "array"}, BYTES, depth=2).to_table(),
    ],
)
def test_what_is_read_on_demand_needs_nobody_else_to_hold_the_table(make):
    table = make()
    devs = numpy_ops.to_device(table, on_demand=True), numpy_ops.to_device(make(), on_demand=True)
    gc.collect()
    states = [numpy_ops.start(dev, 1) for dev in devs]
    for _ in range(4):
        masks = [numpy_ops.bitmask(dev, state) for dev, state in zip(devs, states, strict=True)]
        assert np.array_equal(*masks)
        allowed = np.flatnonzero(np.unpackbits(masks[0].view(np.uint8), bitorder="little"))
        token = allowed[allowed.size // 2, None]
        states = [numpy_ops.advance(dev, state, token) for dev, state in zip(devs, states, strict=True)]


def test_a_grammar_without_a_finite_table_is_read_on_demand_by_itself():
    assert isinstance(numpy_ops.to_device(grammar(PALINDROMES)), on_demand.OnDemandTable)
    regular = mw.compile_grammar(REGULAR, SMALL)
    assert isinstance(numpy_ops.to_device(regular), mw.TransitionTable)
    assert regular.is_complete
    assert isinstance(numpy_ops.to_device(regular, on_demand=True), on_demand.OnDemandTable)
    with pytest.raises(mw.errors.ConstraintError, match="no finite table"):
        backend("torch").ops.to_device(grammar(PALINDROMES), on_demand=False)
    wide = grammar(WIDE, 2000)
    assert not wide.has_arrays()
    dev = numpy_ops.to_device(wide)
    assert isinstance(dev, on_demand.OnDemandTable)
    assert (numpy_ops.bitmask(dev, numpy_ops.start(dev, 1))[0] == mw.Matcher(wide).mask()).all()
    with pytest.raises(mw.errors.BudgetError, match="states"):
        backend("torch").ops.to_device(wide, on_demand=False)


# --------------------------------------------------------------------------------------------- against arrays


@functools.cache
def both(name: str) -> Any:
    """A regular grammar on demand, and by numpy's arrays: eight states of each, the dead one and an end among them."""
    ops, into = backend(name)
    read = ops.to_device(mw.compile_grammar(REGULAR, SMALL), on_demand=True)
    arrays = mw.compile_grammar(REGULAR, SMALL).to_table()
    at, there = numpy_ops.start(arrays, 8), ops.start(read, 8)
    for column in np.array([[1, 1, 2, 3, 3, 1, 5, 2], [1, 2, 1, 4, 3, 3, 1, 2], [1, 2, 0, 0, 1, 2, 2, 1]]):
        at, there = numpy_ops.advance(arrays, at, column), ops.advance(read, there, into(column))
    return ops, into, arrays, read, at, there


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("special", [False, True])
def test_every_operation_says_what_it_says_of_arrays(name, special):
    ops, into, arrays, read, at, there = both(name)
    plain = logits_for(8, 1, special)
    x = into(plain)
    mass = out(ops.log_mass(read, x, there)), numpy_ops.log_mass(arrays, plain, at)
    np.testing.assert_allclose(*mass, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out(ops.mask_logits(read, x, there)), numpy_ops.mask_logits(arrays, plain, at))
    assert (packed(ops.bitmask(read, there)) == numpy_ops.bitmask(arrays, at)).all()
    assert out(ops.accepting(read, there)).tolist() == numpy_ops.accepting(arrays, at).tolist()
    for width in (2, 5):
        few = ops.allowed_tokens(read, there, width), numpy_ops.allowed_tokens(arrays, at, width)
        for a, b in zip(*few, strict=True):
            assert out(a).tolist() == b.tolist()
    for renormalize in (False, True):
        ends = out(ops.end_scores(read, x, there, renormalize)), numpy_ops.end_scores(arrays, plain, at, renormalize)
        np.testing.assert_allclose(*ends, rtol=1e-5, atol=1e-6)
        scores = np.linspace(0, -1, 8).astype(np.float32).reshape(2, 4)
        beams = 30 if renormalize else 5  # more than there are continuations, and fewer
        chosen = ops.select(read, x, there, into(scores), beams, 3, renormalize)
        wanted = numpy_ops.select(arrays, plain, at, scores, beams, 3, renormalize)
        np.testing.assert_allclose(out(chosen.scores), wanted.scores, rtol=1e-5)
        alive = wanted.scores > -np.inf
        assert (out(chosen.parents) == wanted.parents)[alive].all()
        assert (out(chosen.tokens) == wanted.tokens).all()
        assert (packed(ops.bitmask(read, chosen.state)) == numpy_ops.bitmask(arrays, wanted.state)).all()
    found, best = ops.candidates(read, x, there, 4), numpy_ops.candidates(arrays, plain, at, 4)
    np.testing.assert_allclose(out(found.scores), best.scores, rtol=1e-5)
    assert (out(found.tokens) == best.tokens).all()
    masks = packed(ops.bitmask(read, State(found.states.node.reshape(-1))))
    assert (masks == numpy_ops.bitmask(arrays, State(best.states.node.reshape(-1)))).all()


@pytest.mark.parametrize("name", ALL)
def test_membership_is_that_of_the_table(name):
    ops, into = backend(name)
    dev = ops.to_device(grammar(AMBIGUOUS))
    words = np.array(list(itertools.product([0, 1, 2, 3, 4, -1], repeat=4)))
    expected = [grammar(AMBIGUOUS).accepts(word) for word in words]
    assert out(ops.contains(dev, into(words))).tolist() == expected
    assert any(expected)
    assert dev.stored.rows == 2  # nothing was added: the dead state and the start


# ---------------------------------------------------------------------------------------------------- decoders


def ranked(table: Any, weights: np.ndarray, longest: int, renormalize: bool) -> list[tuple[float, tuple[int, ...]]]:
    """Return all sequences of a table by their scores under a bigram model, best first."""
    found = []

    def go(matcher: mw.Matcher, sequence: tuple[int, ...], total: float) -> None:
        x = weights[len(sequence), sequence[-1] if sequence else 0].astype(np.float64)
        allowed = tokens_of(matcher.mask())
        z = np.log(np.exp(x[allowed] if renormalize else x).sum())
        for token in allowed:
            ahead = matcher.copy()
            ahead.advance(token)
            score = total + x[token] - z
            if token == 0:
                found.append((score, sequence))
            elif len(sequence) < longest:
                go(ahead, (*sequence, token), score)

    go(mw.Matcher(table), (), 0.0)
    return sorted(found, key=lambda pair: -pair[0])


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("source", "renormalize"), [(PALINDROMES, False), (AMBIGUOUS, True)])
def test_with_enough_beams_the_result_is_the_exact_ranking(name, source, renormalize):
    ops, into = backend(name)
    longest, beams = 3, 400  # as many as there are prefixes: some that go on would not be complete in time
    weights = np.random.default_rng(3).normal(size=(longest + 1, V, V)).astype(np.float32)
    model = into(weights)
    dev = ops.to_device(grammar(source))
    found = beam_search(
        lambda tokens, cache, t: (model[t, tokens], cache), None, dev, ops=ops, batch=1, beams=beams,
        max_tokens=longest, renormalize=renormalize,
    )  # fmt: skip
    tokens, lengths, scores, valid, _ = (out(x)[0] for x in found)
    expected = ranked(grammar(source), weights, longest, renormalize)
    assert 5 < len(expected) < beams
    assert valid.sum() == len(expected)
    for i, (score, sequence) in enumerate(expected):
        assert tuple(tokens[i, : lengths[i]].tolist()) == sequence
        assert abs(scores[i] - score) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_samples_are_members_or_flagged_and_those_of_arrays_where_there_are_any(name):
    ops, into = backend(name)
    longest = 6
    weights = into(np.random.default_rng(1).normal(size=(longest + 1, V, V)).astype(np.float32))

    def step(tokens: Any, cache: Any, t: int) -> Any:
        return weights[t, tokens], cache

    uniforms = into(np.random.default_rng(2).random((longest + 1, 32, 2)).astype(np.float32))
    options = {"ops": ops, "batch": 4, "samples": 8, "max_tokens": longest}
    drawn = sample_sequences(step, None, ops.to_device(grammar(AMBIGUOUS)), uniforms, **options)
    valid, tokens = out(drawn.valid).reshape(-1), out(drawn.tokens).reshape(32, -1)
    for row, holds in zip(tokens, valid, strict=True):
        assert (row[0] != -1) == holds
        assert not holds or grammar(AMBIGUOUS).accepts(row[row >= 0])
    assert 0 < valid.sum() < 32
    if name == "torch":
        regular = mw.compile_grammar(REGULAR, SMALL)
        read = sample_sequences(step, None, ops.to_device(regular, on_demand=True), uniforms, **options)
        arrays = sample_sequences(step, None, ops.to_device(regular), uniforms, **options)
        for a, b in zip(read[:-1], arrays[:-1], strict=True):
            np.testing.assert_allclose(out(a), out(b), rtol=1e-5)


class _Bigram:
    """A `Reader` whose logits depend on the token before alone."""

    most = None

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def extend(self, tokens: Any, cache: Any, lengths: Any, at: Any, sees: Any = None) -> Any:
        return self.weights[np.take_along_axis(out(tokens), at, axis=1)], ()

    def keep(self, cache: Any, lengths: Any, entries: Any) -> Any:
        return cache


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_the_other_decoders_take_it_as_it_is(name):
    ops, into = backend(name)
    table = grammar(AMBIGUOUS)
    weights = np.random.default_rng(5).normal(size=(V, V)).astype(np.float32)
    weights[:, 0] += 2
    model = into(weights)
    rng: Any = np.random.default_rng(0)
    if name == "torch":
        import torch

        rng = torch.Generator().manual_seed(0)
    found = [
        sample_unbiased(
            lambda tokens, cache, t: (model[tokens], cache), None, ops.to_device(table), rng, ops=ops, batch=8,
            candidates=4, max_tokens=8,
        ),
        speculative_sample(
            _Bigram(model), _Bigram(model + 0.1 * model**2), ops.to_device(table), rng, ops=ops, prompts=[[1]] * 8,
            max_tokens=8, branches=(2, 1),
        ),
        sample_jumping(
            _Bigram(model), table, rng, ops=ops, prompts=[[1]] * 8, max_tokens=8, vocabulary=SMALL, distances=False
        ),
    ]  # fmt: skip
    for drawn in found:
        valid = out(drawn.valid)
        assert valid.any()
        for row, length in zip(out(drawn.tokens)[valid], out(drawn.lengths)[valid], strict=True):
            assert table.accepts(row[:length])


def test_speculation_writes_what_the_target_would_alone():
    """At temperature 0; drafts are followed, and left, on rows that are made on the way."""
    weights = np.random.default_rng(5).normal(size=(V, V)).astype(np.float32)
    weights[:, 0] += 1
    dev = numpy_ops.to_device(grammar(AMBIGUOUS))
    drafted = speculative_sample(
        _Bigram(weights), _Bigram(weights[::-1].copy()), dev, None, ops=numpy_ops, prompts=[[t] for t in range(1, 5)],
        max_tokens=8, branches=(2, 2), temperature=0.0,
    )  # fmt: skip
    for first, row in zip(range(1, 5), drafted.tokens, strict=True):
        matcher, expected, last = mw.Matcher(grammar(AMBIGUOUS)), [], first
        while len(expected) < 8:
            last = max(tokens_of(matcher.mask()), key=lambda t: weights[last, t])
            if last == 0:
                break
            matcher.advance(last)
            expected.append(last)
        assert row[row >= 0].tolist() == (expected if matcher.is_accepting else [])


# ------------------------------------------------------------------------------------------------ growing, keeping


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_rows_and_masks_grow_and_numbers_stay(name, monkeypatch):
    for limit in ("FIRST_ROWS", "LEAST_MASKS", "MOST_MASKS"):
        monkeypatch.setattr(on_demand, limit, 2)
    ops, into = backend(name)
    dev = ops.to_device(grammar(PALINDROMES))
    before = dev.arrays.masks.shape[0]
    seen: list[tuple[Any, np.ndarray]] = []
    state, matchers = ops.start(dev, 4), [mw.Matcher(grammar(PALINDROMES)) for _ in range(4)]
    for column in np.array([[1, 2, 3, 4], [2, 1, 2, 5], [1, 1, 2, 1], [2, 2, 1, 3], [1, 3, 2, 1], [1, 3, 4, 2]]):
        seen.append((state, masks_of(matchers)))
        state = ops.advance(dev, state, into(column))
        for i, token in enumerate(column.tolist()):
            if matchers[i] is not None and not matchers[i].advance(token):
                matchers[i] = None
    assert dev.arrays.masks.shape[0] >= 2 * before
    assert dev.arrays.mask_of.shape[0] >= 8 * before
    for earlier, masks in seen:
        assert (packed(ops.bitmask(dev, earlier)) == masks).all()
    assert dev.stored.masks < dev.stored.rows  # those that are alike are there once


@pytest.mark.parametrize("name", ALL)
def test_what_is_not_kept_is_forgotten_and_its_room_used_again(name):
    ops, into = backend(name)
    dev = ops.to_device(grammar(PALINDROMES))
    kept = ops.advance(dev, ops.start(dev, 3), into(np.array([1, 2, 3])))
    masks = packed(ops.bitmask(dev, kept))
    left = ops.advance(dev, kept, into(np.array([1, 2, 0])))
    rows = dev.stored.rows
    dev.keep(kept)
    assert dev.stored.rows == rows - 3
    assert (packed(ops.bitmask(dev, kept)) == masks).all()
    with pytest.raises(ValueError, match="was not kept"):
        ops.advance(dev, left, into(np.array([1, 1, 0])))
    assert not packed(ops.bitmask(dev, left)).any()
    assert not out(ops.accepting(dev, left)).any()
    assert dev.stored.rows == rows - 3
    again = ops.advance(dev, kept, into(np.array([1, 2, 0])))
    assert dev.stored.rows == rows
    assert out(ops.accepting(dev, again)).tolist() == [False, False, True]
    assert out(ops.start(dev, 1).node).tolist() == out(ops.start(ops.to_device(grammar(PALINDROMES)), 1).node).tolist()


@pytest.mark.parametrize("name", ALL)
def test_numbers_that_are_used_again_stand_for_what_came_last(name):
    """All but where texts stand is forgotten after every step, and some begin again; masks agree bit for bit."""
    ops, into = backend(name)
    table, numbers = mw.compile_grammar(MANY, LETTERS), 0
    for seed in range(16):
        rng = random.Random(seed)
        dev = ops.to_device(table, on_demand=True)
        state, matchers = ops.start(dev, 3), [mw.Matcher(table) for _ in range(3)]
        for step in range(12):
            masks = np.stack([m.mask() for m in matchers])
            assert (packed(ops.bitmask(dev, state)) == masks).all(), (seed, step)
            assert out(ops.accepting(dev, state)).tolist() == [m.is_accepting for m in matchers]
            tokens = [rng.choice([t for t in range(LETTERS.size) if mask[0] >> t & 1]) for mask in masks]
            assert all(m.advance(t) for m, t in zip(matchers, tokens, strict=True))
            state = ops.advance(dev, state, into(np.array(tokens)))
            dev.keep(state)
            assert dev.stored.rows <= 5  # the dead state and the start besides
            numbers = max(numbers, int(out(state.node).max()))
            if step == 7:
                state, matchers = ops.start(dev, 3), [mw.Matcher(table) for _ in range(3)]
    assert numbers < 12


def test_rows_have_a_bound_as_masks_have():
    dev = numpy_ops.to_device(grammar(PALINDROMES))
    dev.rows.most_bytes = dev.rows.bytes_for(20, 10)
    state = numpy_ops.start(dev, 1)

    def walk(state: Any) -> Any:
        for i in range(60):
            state = numpy_ops.advance(dev, state, np.array([1 + i % 2]))
            if kept:
                dev.keep(state)
        return state

    kept = True
    assert walk(state).node[0] != on_demand.DEAD_ROW
    kept = False
    with pytest.raises(
        mw.errors.BudgetError, match=r"in a loop of your own with dev\.keep\(state\).* dev\.keep\(\) between calls"
    ):
        walk(state)
    assert 15 < dev.stored.rows <= 21
    assert dev.rows.is_full
    dev.keep()
    assert dev.stored.rows == 2
    assert not dev.rows.is_full


def test_it_is_time_to_forget_again_once_twice_as_much_is_there(monkeypatch):
    """Where much has to stay, it is not asked for at every step."""
    monkeypatch.setattr(on_demand, "FIRST_ROWS", 4)
    dev = numpy_ops.to_device(grammar(PALINDROMES))
    states, asked = [numpy_ops.start(dev, 1)], 0
    for i in range(200):
        states.append(numpy_ops.advance(dev, states[-1], np.array([1 + i % 2])))
        if dev.rows.is_full:
            dev.keep(*states)
            asked += 1
    assert dev.stored.rows == 202
    assert 3 < asked < 10


@pytest.mark.parametrize("name", ALL)
def test_a_budget_that_runs_out_says_so_and_leaves_what_is_there(name, monkeypatch):
    monkeypatch.setattr(on_demand, "ROW_BYTES", 0)
    ops, into = backend(name)
    dev = ops.to_device(grammar(PALINDROMES))
    dev.rows.most_bytes = 3 * 4 * -(-V // 32)
    start = ops.start(dev, 2)

    def walk(dev: Any, columns: Any) -> None:
        state = ops.start(dev, 2)
        for column in columns:
            state = ops.advance(dev, state, into(np.array(column)))

    with pytest.raises(
        mw.errors.BudgetError, match=r"dev\.keep"
    ):  # what comes first, where an end may be, and what after it
        walk(dev, [[1, 2], [2, 1], [0, 1]])
    matcher = mw.Matcher(grammar(PALINDROMES))
    assert (packed(ops.bitmask(dev, start))[0] == matcher.mask()).all()
    dev.keep(start)
    matcher.advance(1)
    assert (packed(ops.bitmask(dev, ops.advance(dev, start, into(np.array([1, 1])))))[0] == matcher.mask()).all()

    small = mw.compile_grammar(PALINDROMES, SMALL, budget=Budget(states=200))  # the reader's own
    dev = ops.to_device(small)
    with pytest.raises(mw.errors.BudgetError, match="states"):
        walk(dev, ([1 + i % 2, 1] for i in range(300)))
    assert out(ops.accepting(dev, ops.start(dev, 1))).tolist() == [False]


def test_an_interrupted_write_leaves_no_row_without_a_mask(monkeypatch):
    dev = numpy_ops.to_device(grammar(PALINDROMES))
    start = numpy_ops.start(dev, 1)

    def fails(*args: Any) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(dev.rows.ops, "put_rows", fails)
        with pytest.raises(MemoryError):
            numpy_ops.advance(dev, start, np.array([1]))
    after = numpy_ops.advance(dev, start, np.array([1]))
    matcher = mw.Matcher(grammar(PALINDROMES))
    matcher.advance(1)
    assert (numpy_ops.bitmask(dev, after)[0] == matcher.mask()).all()


# --------------------------------------------------------------------------------------- compiled functions, errors


def test_what_only_reads_is_right_under_jit_and_the_rest_is_refused(monkeypatch):
    jax = pytest.importorskip("jax")
    ops, into = backend("jax")
    monkeypatch.setattr(on_demand, "LEAST_MASKS", 2)
    monkeypatch.setattr(on_demand, "MOST_MASKS", 2)
    dev = ops.to_device(grammar(PALINDROMES))
    mask = jax.jit(lambda dev, x, state: ops.mask_logits(dev, x, state))
    state, x = ops.start(dev, 2), into(np.zeros((2, V), np.float32))
    for column in ([1, 2], [1, 2], [2, 1], [2, 3]):  # beyond what there was room for when it was compiled
        assert (out(mask(dev, x, state)) == out(ops.mask_logits(dev, x, state))).all()
        state = ops.advance(dev, state, into(np.array(column)))
    assert (out(ops.mask_logits_(dev, x + 0, state)) == out(ops.mask_logits(dev, x, state))).all()
    tokens = into(np.array([1, 2]))
    refused = [
        (lambda: jax.jit(lambda s: ops.mask_logits(dev, x, s))(state), "argument of the jitted function"),
        (lambda: jax.vmap(lambda s: ops.accepting(dev, s))(state), "vmap is not needed"),
        (lambda: jax.jit(ops.advance)(dev, state, tokens), "advance reads states and tokens"),
        (lambda: jax.jit(lambda s: ops.advance(dev, s, tokens))(state), "call it between steps"),
        (lambda: jax.lax.scan(lambda s, t: (ops.advance(dev, s, t), None), state, tokens[None]), "advance reads"),
        (lambda: jax.jit(lambda d, s: ops.contains(d, s))(dev, tokens[None]), "contains reads"),
        (
            lambda: jax.jit(lambda d, s: ops.select(d, x, s, x[:, :1], 1, 0))(dev, state),
            "select reads states and tokens",
        ),
    ]
    for call, message in refused:
        with pytest.raises(TypeError, match=message):
            call()


def test_what_only_reads_compiles_whole_in_torch_and_the_rest_is_refused(monkeypatch):
    torch = pytest.importorskip("torch")
    ops, into = backend("torch")
    monkeypatch.setattr(on_demand, "LEAST_MASKS", 2)
    monkeypatch.setattr(on_demand, "MOST_MASKS", 2)
    dev = ops.to_device(grammar(PALINDROMES))
    state, x = ops.start(dev, 2), torch.zeros(2, V)
    mask = torch.compile(lambda x, state: ops.mask_logits(dev, x, state), fullgraph=True, backend="eager")
    for column in ([1, 2], [1, 2], [2, 1], [2, 3]):
        assert (mask(x, state) == ops.mask_logits(dev, x, state)).all()
        state = ops.advance(dev, state, into(np.array(column)))
    tokens = torch.tensor([1, 2])
    with pytest.raises(Exception, match="advance reads states and tokens"):
        torch.compile(lambda s, t: ops.advance(dev, s, t), fullgraph=True, backend="eager")(state, tokens)
    broken = torch.compile(lambda s, t: ops.advance(dev, s, t).node + 1, backend="eager")
    try:  # where a graph may break, it goes on between two
        assert (broken(state, tokens) == ops.advance(dev, state, tokens).node + 1).all()
    except TypeError as error:
        assert "advance reads" in str(error)  # noqa: PT017
    with pytest.raises(TypeError, match="advance reads"):
        torch.func.vmap(lambda s, t: ops.advance(dev, State(s[None]), t[None]).node)(state.node, tokens)


def test_torch_tensors_of_all_modes_go_in():
    """Rows that come in inference mode can be written to outside of it; derivatives pass what is allowed."""
    torch = pytest.importorskip("torch")
    ops, _ = backend("torch")
    with torch.inference_mode():
        dev = ops.to_device(grammar(PALINDROMES))
        state = ops.advance(dev, ops.start(dev, 2), torch.tensor([1, 2]))
    state = ops.advance(dev, State(state.node.clone()), torch.tensor([2, 1], dtype=torch.int16))
    x = torch.randn(2, V, requires_grad=True)
    masked = ops.mask_logits(dev, x, state)
    masked[masked > -torch.inf].sum().backward()
    assert ((x.grad == 1) == (masked > -torch.inf)).all()
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        given = torch.zeros(2, V + 3, dtype=kind)
        assert (ops.mask_logits(dev, given, state)[:, :V] > -torch.inf).tolist() == (masked > -torch.inf).tolist()
        back = ops.mask_logits_(dev, given, state)
        assert back is given
        assert (given[:, V:] == -torch.inf).all()


@pytest.mark.parametrize("name", ALL)
def test_what_cannot_be_known_is_refused_by_name(name):
    ops, into = backend(name)
    table = grammar(AMBIGUOUS)
    dev = ops.to_device(table)
    state, x = ops.start(dev, 2), into(np.zeros((2, V), np.float32))
    two = into(np.array([5, 5]))
    unending = mw.Vocabulary.from_bytes(TOKENS)
    no_eos = ops.to_device(mw.compile_grammar(AMBIGUOUS, unending))
    vocab = mw.Vocabulary.from_bytes(TOKENS, eos=0)
    refused = [
        (lambda: ops.to_device(table, distances=True), mw.errors.ConstraintError, "do without distances"),
        (lambda: ops.to_device(table, on_demand="yes"), TypeError, "on_demand must be"),
        (
            lambda: ops.to_device(mw.sort_sids(np.array([[1, 2]]), 9), on_demand=True),
            TypeError,
            "not for a SortedMatrix",
        ),
        (lambda: ops.mask_logits(dev, x, state, two), ValueError, "remaining is for tables"),
        (lambda: ops.bitmask(dev, state, two), ValueError, "remaining is for tables"),
        (lambda: ops.allowed_tokens(dev, state, 2, two), ValueError, "remaining is for tables"),
        (lambda: ops.end_scores(no_eos, x, ops.start(no_eos, 2)), ValueError, "has no EOS"),
        (lambda: ops.advance(dev, State(into(np.array([0, 99]))), two), ValueError, "state 99 is none of"),
        (lambda: ops.advance(dev, state, into(np.array([1, 1, 1]))), ValueError, "tokens have shape"),
        (lambda: ops.advance(dev, state, x[:, 0]), TypeError, "tokens must be integers"),
        (lambda: ops.mask_logits(dev, x[:, 1:], state), mw.errors.VocabularyMismatchError, "columns"),
        (lambda: ops.mask_logits(dev, x[:1], state), ValueError, "one state a row"),
        (
            lambda: sample_jumping(_Bigram(x), table, None, ops=ops, prompts=[[1]], max_tokens=4),
            mw.errors.ConstraintError,
            "pass distances=False",
        ),
        (lambda: mw.Arena(vocab).add(table), mw.errors.ArenaError, r"no finite table.*ops\.to_device\(table\)"),
        (lambda: mw.Arena(vocab).fits(table), mw.errors.ArenaError, "no finite table"),
    ]
    if name != "jax":  # on a device nobody looks
        far = State(into(np.array([0, 5000])))
        refused += [
            (lambda: ops.bitmask(dev, far), ValueError, "room for 1,024"),
            (lambda: ops.accepting(dev, far), ValueError, "room for 1,024"),
        ]
    if name != "numpy":
        refused.append((lambda: ops.distance(dev, state), ValueError, "leave max_tokens out"))
    for call, kind, message in refused:
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("name", FAST)
def test_a_step_reads_the_host_once_and_writes_what_is_new_at_once(name, monkeypatch):
    ops, into = backend(name)
    dev = ops.to_device(grammar(PALINDROMES))
    state = ops.start(dev, 4)
    counts = {"to_host": 0, "put_rows": 0}
    for what in counts:
        plain = getattr(dev.rows.ops, what)

        def counted(*args: Any, what: str = what, plain: Any = plain) -> Any:
            counts[what] += 1
            return plain(*args)

        monkeypatch.setattr(dev.rows.ops, what, counted)
    state = ops.advance(dev, state, into(np.array([1, 2, 3, 4])))
    assert counts == {"to_host": 1, "put_rows": 3}  # masks, which of them rows have, and where they may end
    ops.mask_logits(dev, into(np.zeros((4, V), np.float32)), state)
    ops.advance(dev, ops.start(dev, 4), into(np.array([4, 3, 2, 1])))
    assert counts == {"to_host": 2, "put_rows": 3}  # nothing was new


# ---------------------------------------------------------------------------------------------------- integrations


@functools.cache
def llama() -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, eos_token_id=0, pad_token_id=0, bos_token_id=None, initializer_range=0.5,
        max_position_embeddings=256,
    )  # fmt: skip
    with torch.random.fork_rng():  # whoever asks first has seeded the generator for something else
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).double().eval()


MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
}


@pytest.mark.parametrize("mode", sorted(MODES))
def test_transformers_writes_members_or_what_is_cut_off(mode):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.generate import constrained_generate
    from maskwright.runtime.integrations.processor import ConstraintLogitsProcessor

    table, ids = grammar(AMBIGUOUS), torch.tensor([[1, 2], [3, 1]])
    tables = [table, mw.compile_grammar(REGULAR, SMALL)]
    ways: list[dict[str, Any]] = [
        {"logits_processor": [ConstraintLogitsProcessor(tables)]},
        {"custom_generate": constrained_generate, "tables": tables, "distances": False},
    ]
    whole = 0
    for way in ways:
        torch.manual_seed(1)
        rows = llama().generate(ids, max_new_tokens=14, **MODES[mode], **way)[:, 2:].tolist()
        each = len(rows) // 2
        for i, row in enumerate(rows):
            matcher = mw.Matcher(tables[i // each])
            assert all(matcher.advance(t) for t in row), (row, way)
            whole += matcher.is_accepting
            assert matcher.is_accepting or (i < each and "tables" in way) or "logits_processor" in way
    assert whole
    with pytest.raises(mw.errors.ConstraintError, match="distances=False"):
        llama().generate(ids, max_new_tokens=5, custom_generate=constrained_generate, tables=table, **MODES[mode])
    with pytest.raises(mw.errors.ConstraintError, match="leave max_tokens out"):
        ConstraintLogitsProcessor(table, max_tokens=9)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "mode", "most"),
    [
        ("processor", "greedy", 30), ("processor", "sampling", 80), ("processor", "beams", 100),
        ("processor", "assisted", 30),
        ("generate", "greedy", 12), ("generate", "sampling", 24), ("generate", "beams", 24),
    ],
)  # fmt: skip
def test_generation_forgets_what_it_cannot_come_back_to(how, mode, most, monkeypatch):
    """With room for fewer states than one text comes to, or than several do, it writes what it would with more."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.generate import constrained_generate
    from maskwright.runtime.integrations.processor import ConstraintLogitsProcessor

    table = grammar(AMBIGUOUS if (mode, how) == ("beams", "generate") else PALINDROMES)  # of which some end in time
    made: list[Any] = []
    plain = on_demand.ReachedRows.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(on_demand.ReachedRows, "__init__", init)
    written = []
    for room in (1 << 30, on_demand.ROW_BYTES * most):
        monkeypatch.setattr(on_demand, "MOST_BYTES", room)
        processor = ConstraintLogitsProcessor(table)
        way: dict[str, Any] = {"custom_generate": constrained_generate, "tables": table, "distances": False}
        if how == "processor":
            way = {"logits_processor": [processor]}
        way |= {"assistant_model": llama()} if mode == "assisted" else MODES[mode]
        rows = []
        for seed in range(8):
            torch.manual_seed(seed)
            ids = torch.tensor([[1 + seed % 7, 2 + seed // 4]])
            rows.append(llama().generate(ids, max_new_tokens=24, **way)[:, 2:].tolist())
        written.append(rows)
    assert written[0] == written[1]
    assert max(r.stored.rows for r in made) >= min(most - 8, 60)  # where there is room
    for each in written[0]:
        for row in each:
            matcher = mw.Matcher(table)
            assert all(matcher.advance(t) for t in row)


def an_engine() -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from maskwright.runtime.integrations.engine import Engine

    return Engine(llama(), SMALL, rows=3)


def test_an_engine_writes_by_such_grammars_what_it_would_alone():
    """Beside free text and a grammar that has a table, more than there are rows."""
    regular = mw.compile_grammar(REGULAR, SMALL)
    tables = [grammar(AMBIGUOUS), None, grammar(PALINDROMES), regular, grammar(AMBIGUOUS), grammar(PALINDROMES)]
    together = an_engine()
    requests = [
        together.add([1 + i % 4], t, max_tokens=20, seed=i, jump=i % 2 == 0, complete=False)
        for i, t in enumerate(tables)
    ]
    together.run()
    ended = 0
    for i, (table, request) in enumerate(zip(tables, requests, strict=True)):
        alone = an_engine()
        other = alone.add([1 + i % 4], table, max_tokens=20, seed=i, jump=i % 2 == 0, complete=False)
        alone.run()
        assert (request.tokens, request.finished) == (other.tokens, other.finished)
        if table is not None:
            matcher = mw.Matcher(table)
            assert all(matcher.advance(t) for t in request.tokens)
            assert request.finished == "length" or matcher.is_accepting
            ended += request.finished == "stop"
    assert ended


def test_a_budget_that_runs_out_ends_one_request_of_an_engine_alone():
    small = mw.compile_grammar('start: "a" start "b" start | "b" start "a" | "ab"', SMALL, budget=Budget(states=70))
    engine = an_engine()
    requests = [
        engine.add([1], table, max_tokens=60, seed=3, jump=False, complete=False)
        for table in (small, grammar(AMBIGUOUS))
    ]
    engine.run()
    assert [request.finished == "budget" for request in requests] == [True, False]


def test_an_engine_tells_grammars_apart_where_their_states_have_the_same_numbers():
    """Two that begin with different tokens, side by side."""
    tables = [grammar(f'start: "{first}" x\n{PALINDROMES.replace("start", "x")}') for first in "ab"]
    assert not any(table.has_arrays() for table in tables)
    starts = masks_of([mw.Matcher(table) for table in tables])
    assert (starts[0] & starts[1] == 0).all()
    engine = an_engine()
    requests = [
        engine.add([1], table, max_tokens=6, seed=i, jump=False, complete=False) for i, table in enumerate(tables)
    ]
    engine.run()
    for table, request in zip(tables, requests, strict=True):
        matcher = mw.Matcher(table)
        assert request.tokens
        assert all(matcher.advance(token) for token in request.tokens)


def test_what_an_engine_cannot_promise_is_refused_before_anything_begins():
    table = grammar(PALINDROMES)
    with pytest.raises(mw.errors.ConstraintError, match=r"no finite table|no table"):
        an_engine().add([1], table, max_tokens=5)
    other = mw.Vocabulary.from_bytes([*TOKENS, b"aaaa"], eos=0)
    with pytest.raises(mw.errors.VocabularyMismatchError, match="pass the vocabulary that it was compiled with"):
        an_engine().add([1], mw.compile_grammar(PALINDROMES, other), max_tokens=5)


@pytest.mark.long
def test_what_jax_compiled_keeps_no_table_alive():
    jax = pytest.importorskip("jax")
    ops, array = backend("jax")
    read = jax.jit(lambda dev, state, x: ops.mask_logits(dev, x, state))
    kept = []
    for compiled in (False, True):
        dev = ops.to_device(mw.compile_grammar(PALINDROMES, SMALL))
        state, x = ops.start(dev, 2), array(np.zeros((2, V), np.float32))
        if compiled:
            read(dev, state, x)
        else:
            ops.mask_logits_(dev, x, state)
        kept.append(weakref.ref(dev.rows))
        del dev
    gc.collect()
    assert [rows() for rows in kept] == [None, None]


def test_a_table_that_was_completed_after_all_has_arrays():
    tried = []

    def around(make):
        tried.append(1)
        if len(tried) == 1:
            raise mw.errors.BudgetError("no time")
        return make()

    table = mw.compile_grammar('start: "a" start "b" | "ab"', SMALL)
    table.keep_with(around)
    assert not table.has_arrays()
    table.to_table()
    assert table.has_arrays()


def test_threads_share_rows():
    """Each goes its own ways among rows that the others add at the same time."""
    table, wrong = grammar(PALINDROMES), []
    dev = numpy_ops.to_device(table)

    def walk(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(12):
            state, matcher = numpy_ops.start(dev, 1), mw.Matcher(table)
            for token in rng.integers(1, 3, 12).tolist():
                state = numpy_ops.advance(dev, state, np.array([token]))
                matcher.advance(token)
                if not (numpy_ops.bitmask(dev, state)[0] == matcher.mask()).all():
                    wrong.append((seed, token))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=walk, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    places = [key for key in dev.rows.keys if key is not None]
    assert len(places) == len(set(places)) == dev.stored.rows - 1  # each place once


@pytest.mark.long
@pytest.mark.parametrize("what", ["masks", "bytes"])
def test_what_has_to_stay_is_not_asked_about_again(what, monkeypatch):
    if what == "masks":
        monkeypatch.setattr(on_demand, "LEAST_MASKS", 2)
        monkeypatch.setattr(on_demand, "MOST_MASKS", 2)
    table = mw.compile_grammar(MANY, LETTERS)
    dev = numpy_ops.to_device(table, on_demand=True)
    states, matchers = [numpy_ops.start(dev, 1)], [mw.Matcher(table)]
    for i in range(40):
        for token in range(1, LETTERS.size):
            ahead = matchers[i].copy()
            if ahead.advance(token):
                matchers.append(ahead)
                states.append(numpy_ops.advance(dev, states[i], np.array([token])))
    if what == "bytes":
        dev.rows.most_bytes = dev.stored.taken + 1000
    assert dev.rows.is_full
    dev.keep(*states)
    assert not dev.rows.is_full
    dev.keep()
    assert dev.stored.masks == 2  # that of nothing, and the start's
