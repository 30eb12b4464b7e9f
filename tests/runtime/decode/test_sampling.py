"""Sampling, plain and unbiased, in numpy, torch and JAX, against exact distributions of sets that can be listed.

Whatever is random has a fixed seed. A chi-square test fails a correct program with probability 1e-6.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import (
    allowed_logits,
    beam_search,
    rerank,
    sample,
    sample_allowed,
    sample_sequences,
    sample_unbiased,
    sampling,
)
from maskwright.runtime.device.device_table import State
from maskwright.table.states import NestedState
from tests.marks import marked
from tests.oracles import naive
from tests.strategies.tables import every_node
from tests.support.backends import ALL, FAST, backend, out
from tests.support.draws import Case, case, fits, seeded

SOME = ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)]  # compiling takes JAX seconds
DRAWS = {"numpy": 2000, "torch": 20_000, "jax": 8000}  # numpy goes through rows one by one


CASES = ["sids", "sids with eos", "ragged", "regex", "choices", "lists"]


def weights_of(c: Case, seed: int = 0) -> np.ndarray:
    """Logits (L + 1, V, V) by step and previous token."""
    weights = np.random.default_rng(seed).normal(size=(c.max_tokens + 1, c.vocab, c.vocab)).astype(np.float32)
    weights[:, :, 9:] -= 6  # of bytes that no list has, or no case
    return weights


def likely(c: Case, seed: int = 0) -> np.ndarray:
    """Logits of a model that often stays among the sequences."""
    weights = weights_of(c, seed) * 0.5
    for row in c.rows:
        for t, (before, token) in enumerate(itertools.pairwise((0, *row, 0))):
            weights[t, before, token] = abs(weights[t, before, token]) + 1.0
    return weights


def bigram(name: str, weights: np.ndarray) -> Any:
    table = backend(name).into(weights)
    return lambda tokens, cache, t: (table[t, tokens], cache)


def run(decoder: Any, name: str, weights: np.ndarray, dev: Any, random: Any, **options: Any) -> Any:
    """Run a decoder on a bigram model; in JAX compiled, except of nested tables, whose parts compile sooner."""
    ops, into = backend(name)

    def whole(table: Any, random: Any) -> Any:
        return decoder(lambda tokens, cache, t: (table[t, tokens], cache), None, dev, random, ops=ops, **options)

    if name == "jax" and dev.calls is None:
        import jax

        whole = jax.jit(whole)
    return whole(into(weights), random)


def exact(c: Case, weights: np.ndarray, temperature: float = 1.0) -> dict[naive.Tokens, tuple[float, float]]:
    """Return log P(x) under the model and the log importance score of every sequence."""
    found = {}
    for row in c.rows:
        log_p, mass, previous = 0.0, 0.0, 0
        for t, token in enumerate(row + (() if c.table.eos is None else (c.table.eos,))):
            p = naive.log_softmax(weights[t, previous].astype(np.float64) / temperature)
            log_p += p[token]
            mass += np.logaddexp.reduce(p[sorted(naive.allowed_after(c.rows, row[:t], c.table.eos))])
            previous = token
        found[row] = log_p, mass
    return found


def sequences(found: Any) -> list[naive.Tokens]:
    """Return the tokens of valid sequences (B, S, L) or (B, L), in order."""
    tokens, lengths = out(found.tokens), out(found.lengths).reshape(-1)
    tokens, valid = tokens.reshape(lengths.size, -1), out(found.valid).reshape(-1)
    assert all((row[n:] == -1).all() for row, n in zip(tokens, lengths, strict=True))
    return [tuple(row[:n].tolist()) for row, n, ok in zip(tokens, lengths, valid, strict=True) if ok]


# -------------------------------------------------------------------------------------------- whole sequences


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=pytest.mark.slow)
        if name == "jax" and kind not in ("sids", "ragged")
        else (name, kind)
        for name, kind in itertools.product(ALL, CASES)
    ],
)
def test_sequences_have_the_distribution_of_constrained_decoding(name, kind):
    """P(x) / score(x); and each sequence carries both parts of log P(x)."""
    c = case(kind)
    assert 4 <= len(c.rows) <= 400 or kind == "choices"
    weights = weights_of(c)
    ops = backend(name).ops
    dev = ops.to_device(c.table, distances=True)
    options = {"batch": 4, "samples": DRAWS[name] // 4, "max_tokens": c.max_tokens, "temperature": 1.5}
    found = run(sample_sequences, name, weights, dev, seeded(name), **options)
    assert out(found.valid).all()
    assert found.tokens.shape[:2] == (4, DRAWS[name] // 4)
    truth, drawn = exact(c, weights, 1.5), sequences(found)
    fits(Counter(drawn), {x: math.exp(p - mass) for x, (p, mass) in truth.items()})
    log_probs, log_mass = out(found.log_probs).reshape(-1), out(found.log_mass).reshape(-1)
    np.testing.assert_allclose(log_mass[:200], [truth[x][1] for x in drawn[:200]], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose((log_probs + log_mass)[:200], [truth[x][0] for x in drawn[:200]], rtol=1e-3, atol=1e-4)
    if (table := c.table.to_table()).is_trie:
        states = out(found.states).reshape(-1)[:50]
        assert all(len(at) > 0 for at in table.input_rows(states))


@pytest.mark.long
@pytest.mark.parametrize("kind", CASES)
def test_backends_agree_exactly_given_the_same_uniform_numbers(kind):
    c = case(kind)
    weights = weights_of(c, 1)
    uniforms = np.random.default_rng(5).random((c.max_tokens + 1, 60, 2), np.float32)
    options = {"batch": 60, "max_tokens": c.max_tokens, "top_k": 3, "top_p": 0.95, "min_p": 0.05}
    found = {}
    names = ALL if kind in ("sids with eos", "regex") else ["numpy", "torch"]  # compiling takes JAX seconds
    for name in names:
        ops, into = backend(name)
        dev = ops.to_device(c.table, distances=True)
        found[name] = run(sample_sequences, name, weights, dev, into(uniforms), **options)
    for name in names[1:]:
        for mine, wanted in zip(found[name], found["numpy"], strict=True):
            np.testing.assert_allclose(out(mine), wanted, rtol=1e-4, atol=1e-5)
    assert len(set(sequences(found["numpy"]))) > 1


@pytest.mark.parametrize("name", SOME)
def test_the_same_seed_gives_the_same_tokens_and_another_does_not(name):
    c, ops = case("ragged"), backend(name).ops
    dev, step = ops.to_device(c.table), bigram(name, weights_of(c))

    def run(seed):
        found = sample_sequences(step, None, dev, seeded(name, seed), ops=ops, batch=2, samples=20, max_tokens=4)
        return out(found.tokens).tolist()

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(1)[0] != run(1)[1]


@pytest.mark.parametrize(
    ("name", "kind"), [("numpy", "endless"), ("torch", "endless"), ("numpy", "lists"), ("torch", "lists")]
)
def test_budgets_complete_everything_in_time_and_without_them_the_rest_is_flagged(name, kind):
    c, ops = case(kind), backend(name).ops
    every = case("lists without budgets" if kind == "lists" else kind).rows
    weights = weights_of(c)
    weights[:, :, 1] += 2  # the model would open lists forever, or write "a"
    options = {"batch": 200, "max_tokens": 5}
    found = run(sample_sequences, name, weights, ops.to_device(c.table, distances=True), seeded(name), **options)
    assert out(found.valid).all()
    assert set(sequences(found)) <= c.rows <= every
    if name == "numpy":  # which has distances at hand always
        return
    found = run(sample_sequences, name, weights, ops.to_device(c.table), seeded(name), **options)
    valid = out(found.valid)
    assert 0 < valid.sum() < 200
    assert set(sequences(found)) <= every
    assert (out(found.tokens)[~valid] == -1).all()
    assert (out(found.log_mass)[~valid] == -np.inf).all()
    assert (out(found.states)[~valid] == c.table.to_table().dead).all()


@pytest.mark.parametrize("name", SOME)
def test_a_trie_that_is_cut_short_gives_its_short_sequences_alone(name):
    c, ops = case("ragged"), backend(name).ops
    short = Case(c.table, {row for row in c.rows if len(row) <= 2}, 2)
    weights = weights_of(short)
    dev = ops.to_device(c.table, distances=True)
    found = run(sample_sequences, name, weights, dev, seeded(name), batch=1500, max_tokens=2)
    truth = exact(short, weights)
    fits(Counter(sequences(found)), {x: math.exp(p - mass) for x, (p, mass) in truth.items()})


@pytest.mark.parametrize("name", SOME)
def test_the_cache_is_passed_on_and_the_model_is_fed_what_was_drawn(name):
    c, ops = case("sids with eos"), backend(name).ops
    inner, seen = bigram(name, weights_of(c)), []

    def step(tokens, cache, t):
        assert cache == t
        seen.append(out(tokens))
        return inner(tokens, None, t)[0], cache + 1

    found = sample_sequences(step, 0, ops.to_device(c.table), seeded(name), ops=ops, batch=3, samples=2, max_tokens=3)
    assert len(seen) == 4
    assert (seen[0] == 0).all()
    np.testing.assert_array_equal(np.stack(seen[1:], 1), out(found.tokens).reshape(6, 3))


# ---------------------------------------------------------------------------------------------------- one step


def oracle(logits: np.ndarray, allowed: list[int], options: dict[str, Any]) -> dict[int, float]:
    """The distribution of one row, filter by filter, as a dictionary of probabilities."""
    temperature = options["temperature"]
    if temperature == 0:
        return {max(allowed, key=lambda token: (logits[token], -token)): 1.0}
    p = np.exp(naive.log_softmax(logits[allowed].astype(np.float64) / temperature))
    left = dict(zip(allowed, p.tolist(), strict=True))

    def keep(condition: Any) -> dict[int, float]:
        kept = {token: q for token, q in left.items() if q > 0 and condition(q)}
        return {token: q / sum(kept.values()) for token, q in kept.items()}

    if (k := options["top_k"]) is not None:
        least = sorted(left.values(), reverse=True)[:k][-1]
        left = keep(lambda q: q >= least)
    if (top_p := options["top_p"]) is not None:
        left = keep(lambda q: sum(r for r in left.values() if r > q) < top_p or top_p == 1)
    if (min_p := options["min_p"]) is not None:
        left = keep(lambda q: q >= min_p * max(left.values()))
    return keep(lambda q: True)


OPTIONS = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
    for t, k, p, m in itertools.product([0.6, 1.0], [None, 1, 4], [None, 0.45, 0.9, 1], [None, 0, 0.15])
] + [
    {"temperature": 0, "top_k": 4, "top_p": 0.9, "min_p": 0.1},
    {"temperature": 0, "top_k": None, "top_p": None, "min_p": None},
]


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_filters_agree_with_the_oracle_in_every_combination(name):
    """On uniform numbers in even steps each token is drawn as often as its probability says, within one draw."""
    ops, into = backend(name)
    allowed = [0, 2, 3, 5, 6, 7, 8, 10, 11, 12]
    table = mw.compile_sids([[token] for token in allowed], 14)
    dev, draws = ops.to_device(table), 100
    rng = np.random.default_rng(8)
    logits = rng.normal(size=(4, 15)).astype(np.float32) * 2  # one column of padding
    logits[1] = np.round(logits[1])  # many are equal
    logits[2, [0, 3, 5, 6, 8, 10, 11]] = -np.inf  # fewer left than top_k = 4
    logits[3] = 1.0  # all are equal
    uniforms = np.zeros((4 * draws, 2), np.float32)
    uniforms[:, 1] = np.tile((np.arange(draws) + 0.5) / draws, 4)
    state, x = ops.start(dev, 4 * draws), into(np.repeat(logits, draws, axis=0))
    for options in OPTIONS:
        found = sample(dev, x, state, into(uniforms), ops=ops, **options)
        assert out(found.valid).all()
        tokens, log_probs = out(found.tokens).reshape(4, draws), out(found.log_probs).reshape(4, draws)
        for row in range(4):
            wanted = oracle(logits[row], allowed, options)
            counts = Counter(tokens[row].tolist())
            assert set(counts) <= set(wanted), options
            assert all(abs(counts[token] - draws * p) <= 1 + 1e-3 for token, p in wanted.items()), options
            drawn_at = [math.log(wanted[token]) for token in tokens[row].tolist()]
            np.testing.assert_allclose(log_probs[row], drawn_at, rtol=1e-4, atol=1e-5)
            temperature = options["temperature"] or 1.0
            mass = np.logaddexp.reduce(naive.log_softmax(logits[row].astype(np.float64) / temperature)[allowed])
            np.testing.assert_allclose(out(found.log_mass)[row * draws], mass, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", marked(ALL, slow=["jax"]))
def test_each_row_has_its_own_constraint_wherever_it_stands(name, monkeypatch):
    """All states at once, with few tokens gathered and with masks: the same tokens, all allowed, the same masses."""
    c, (ops, into) = case("ragged"), backend(name)
    dev, nodes = ops.to_device(c.table, distances=True), every_node(c.table)
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(nodes.size, 9)).astype(np.float32)  # one column of padding
    uniforms = into(rng.random((nodes.size, 2), np.float32))
    state, room = State(into(nodes)), rng.integers(0, 3, nodes.size)
    for remaining in (None, room):
        bits = numpy_ops.bitmask(c.table, State(nodes), remaining)[:, 0]
        given = None if remaining is None else into(remaining)
        for narrow, temperature in itertools.product((0, 10**9), (0, 1.0)):  # wherever widths are known; never
            monkeypatch.setattr(sampling, "NARROW", narrow)
            options = {"ops": ops, "remaining": given, "temperature": temperature}
            found = sample(dev, into(logits), state, uniforms, **options)
            tokens, valid = out(found.tokens), out(found.valid)
            np.testing.assert_array_equal(valid, bits != 0)
            assert ((bits[valid] >> tokens[valid]) & 1).all()
            assert (tokens[~valid] == -1).all()
            assert (out(found.log_probs)[~valid] == -np.inf).all()
            masked = numpy_ops.mask_logits(c.table, logits, State(nodes), remaining)
            total = numpy_ops.arrays.logsumexp(masked)
            np.testing.assert_allclose(
                out(found.log_mass), total - numpy_ops.arrays.logsumexp(logits), rtol=1e-4, atol=1e-5
            )
            if temperature == 0:
                np.testing.assert_array_equal(tokens[valid], masked.argmax(1)[valid])
                assert (out(found.log_probs)[valid] == 0).all()
            else:
                log_p = np.take_along_axis(masked, tokens[:, None], 1)[:, 0] - np.where(valid, total, 0)
                np.testing.assert_allclose(out(found.log_probs)[valid], log_p[valid], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("kind", ["sids with eos", "ragged", "sids"])
def test_at_a_known_level_only_its_width_is_gathered_and_nothing_changes(name, kind, monkeypatch):
    c, (ops, into) = case(kind), backend(name)
    dev, rng = ops.to_device(c.table), np.random.default_rng(6)
    widths = []
    real = ops.allowed_tokens
    monkeypatch.setattr(ops, "allowed_tokens", lambda *args: widths.append(args[2]) or real(*args))
    for level in range(c.max_tokens + 1):
        nodes = c.table.walk(np.array(sorted({row[:level] for row in c.rows if len(row) >= level})))
        logits, uniforms = rng.normal(size=(nodes.size, c.vocab)), rng.random((nodes.size, 2), np.float32)
        logits = logits.astype(np.float32)
        for options in ({"temperature": 0}, {"temperature": 0.7, "top_p": 0.8}):
            found = []
            for narrow in (0, 10**9):
                monkeypatch.setattr(sampling, "NARROW", narrow)
                given = into(logits), State(into(nodes)), into(uniforms)
                found.append(sample(dev, *given, ops=ops, level=level, **options))
            for field in (
                found[0]._fields if c.table.eos is None or not options["temperature"] else ("log_mass", "valid")
            ):
                mine, wanted = (out(getattr(one, field)) for one in found)  # EOS comes last among few tokens
                np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)
    assert widths == np.repeat([*c.table.widths, 1], 2).tolist()


@pytest.mark.long
@pytest.mark.parametrize(
    ("special", "name"),
    marked(
        itertools.product(["tempered", "dtype"], ALL),
        slow=[("dtype", "numpy"), ("tempered", "numpy"), ("tempered", "torch")],
    ),
)
def test_wide_rows_are_drawn_from_in_blocks_with_the_right_probabilities(name, special):
    """On an even grid of both uniform numbers; 3,000 weights are no multiple of a block."""
    ops, into = backend(name)
    rng, grid, V = np.random.default_rng(1), 40, 3000
    table = mw.compile_sids(np.arange(0, V, 2)[:, None], V)
    logits = rng.normal(size=V).astype(np.float16).astype(np.float32) * 2
    logits[rng.integers(0, V, 3)] += 9
    logits[1] = 50.0  # not allowed, and all of the model's mass
    points = ((np.arange(grid) + 0.5) / grid).astype(np.float32)
    uniforms = np.stack(np.meshgrid(points, points, indexing="ij"), -1).reshape(-1, 2)
    x = into(np.repeat(logits[None], len(uniforms), 0))
    if special == "dtype":
        half = {"numpy": lambda: x.astype(np.float16), "torch": lambda: x.half(), "jax": lambda: x.astype("float16")}
        x = half[name]()
    options = {"ops": ops, "temperature": 0.5 if special == "tempered" else 1.0}
    found = sample(ops.to_device(table), x, ops.start(ops.to_device(table), len(uniforms)), into(uniforms), **options)
    log_p = np.full(V, -np.inf)
    log_p[::2] = naive.log_softmax(logits[::2].astype(np.float64) / options["temperature"])
    tokens = out(found.tokens)
    assert (tokens % 2 == 0).all()
    np.testing.assert_allclose(out(found.log_probs), log_p[tokens], rtol=1e-3, atol=1e-3)
    p = np.append(np.exp(log_p), np.zeros(-V % sampling.BLOCK)).reshape(-1, sampling.BLOCK)
    of_block, counts = p.sum(1), Counter(tokens.tolist())
    for token in range(0, V, 2):
        block, inside = divmod(token, sampling.BLOCK)
        share = p[block, inside] / of_block[block]
        low = max(0, grid * of_block[block] - 1.01) * max(0, grid * share - 1.01)
        assert low <= counts[token] <= (grid * of_block[block] + 1.01) * (grid * share + 1.01)


FILTERS = [
    (0.0, None, None, None),
    (1.0, None, None, None),
    (0.7, 40, None, None),
    (1.0, None, 0.9, None),
    (2.5, 300, 0.6, 0.02),
    (0.3, 10**6, 1, 0.3),
    (1e39, 1 << 70, None, None),
]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_the_kernel_draws_what_array_operations_draw(kind):
    """Rows of many widths, masks from none to all, each row with filters of its own, by threads and without."""
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops
    from maskwright.runtime.device.torch import drawing
    from maskwright.runtime.host.draw import BLOCK, WHOLE, Filters

    assert (WHOLE, BLOCK) == (sampling.WHOLE, sampling.BLOCK)  # or equal uniform numbers draw other tokens
    rng = np.random.default_rng(4)
    same = seen = 0
    for columns in (1, 31, 255, 256, 1024, 1025, 3000, 40_000):
        rows = 24
        words = -(-columns // 32)
        logits = torch.from_numpy(rng.normal(size=(rows, columns)) * rng.choice([0.5, 4, 30], (rows, 1)))
        logits = logits.to(getattr(torch, kind))
        logits[0] = torch.round(logits[0])  # many are equal
        logits[1, rng.integers(0, columns, columns // 3)] = -torch.inf
        logits[2, -1] = torch.nan
        logits[3, 0] = torch.inf
        logits[4] = -torch.inf
        logits[5, 0] = -torch.nan
        allowed = rng.random((rows, columns)) < rng.choice([0.02, 0.5, 1.0], (rows, 1))
        allowed[6] = False
        logits[7, 0], allowed[7, 0] = 60_000.0, False  # all of the mass, and not allowed
        masks = torch_ops.arrays.pack(torch.from_numpy(allowed))
        assert masks.shape[1] == words
        uniforms = torch.from_numpy(rng.random((rows, 2)).astype(np.float32))
        asked = [FILTERS[i] for i in rng.integers(0, len(FILTERS), rows)]
        assert drawing.can_draw(logits, masks)
        found = drawing.draw_packed(masks, logits, uniforms, Filters.of(asked))
        quick = drawing.draw_packed(masks, logits, uniforms, Filters.of(asked), mass=False)
        assert (quick.valid == found.valid).all()
        assert np.isnan(quick.log_mass[quick.valid]).all()
        np.testing.assert_allclose(quick.log_probs, found.log_probs, rtol=1e-4, atol=1e-5)
        for i, filters in enumerate(asked):
            x = (logits[i : i + 1].float() / (filters[0] or 1.0)).clone()
            log_z = torch.logsumexp(x, -1)
            x[0, torch.from_numpy(~allowed[i])] = -torch.inf
            options = sampling.CheckedFilters(*filters)
            at, log_probs, total, valid = sampling.choose(
                torch_ops, x, uniforms[i : i + 1], options, torch.isfinite(log_z)
            )
            assert found.valid[i] == bool(valid)
            if not found.valid[i]:
                assert found.tokens[i] == -1
                assert found.log_probs[i] == found.log_mass[i] == -np.inf
                continue
            token = int(found.tokens[i])
            assert allowed[i, token]
            np.testing.assert_allclose(found.log_mass[i], float(total - log_z), rtol=1e-4, atol=2e-5)
            seen, same = seen + 1, same + (token == int(at))
            if token == int(at):
                np.testing.assert_allclose(found.log_probs[i], float(log_probs), rtol=1e-4, atol=2e-5)
            else:  # a share that rounding puts on the other side: another token of the same block, or beside it
                assert filters[0] > 0
            if filters[0] == 0:
                assert x[0, token] == x[0].max()
    assert same > 0.97 * seen


def test_the_kernel_takes_one_of_the_last_tokens_where_a_share_rounds_to_all():
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops
    from maskwright.runtime.device.torch import drawing
    from maskwright.runtime.host.draw import Filters

    rng = np.random.default_rng(0)
    for columns in (200, 256, 1024, 5000):
        allowed = rng.random((200, columns)) < 0.5
        allowed[:, 0] = True
        masks = torch_ops.arrays.pack(torch.from_numpy(allowed))
        logits = torch.from_numpy(rng.normal(size=(200, columns)).astype(np.float32))
        uniforms = torch.full((200, 2), 1.0, dtype=torch.float64, requires_grad=True)
        found = drawing.draw_packed(masks, logits, uniforms, Filters.of([(1.0, None, None, None)]))
        last = columns - 1 - allowed[:, ::-1].argmax(1)
        assert (found.tokens >= last - 8).all()
        assert np.take_along_axis(allowed, found.tokens[:, None], 1).all()


def test_the_kernel_exponentiates_as_well_as_float32_can():
    from maskwright.runtime.host import draw as packed_draw

    x = -np.abs(np.random.default_rng(0).normal(size=64 * packed_draw.BLOCK) * 40).astype(np.float32)
    x[:4] = 0, -87, -87.1, -np.inf
    found = np.empty_like(x)
    for at in range(0, x.size, packed_draw.BLOCK):
        packed_draw.weigh(x[at : at + packed_draw.BLOCK], np.float32(0), found[at : at + packed_draw.BLOCK])
    wanted = np.where(x < -87, 0, np.exp(x.astype(np.float64)))
    np.testing.assert_allclose(found, wanted, rtol=3e-7)
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = np.array([packed_draw.half(np.int64(each)) for each in bits])
    np.testing.assert_array_equal(halves.astype(np.float32), bits.view(np.float16).astype(np.float32))


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_nothing_of_probability_zero_is_drawn_at_either_end_of_the_uniform_numbers(name):
    ops, into = backend(name)
    for width in (5, 1500):
        weights = np.zeros((3, width), np.float32)
        weights[0, 2:4] = 0.1
        weights[1, -2] = 1e-30
        weights[2, 1 : width - 1] = np.float32(1 / 3)
        for u in (0.0, 0.5, 1 - 2.0**-24, 1.0):  # 1 is never drawn, but products round to it
            at = out(sampling.draw(ops, into(weights), into(np.full((3, 2), u, np.float32))))
            assert (np.take_along_axis(weights, at[:, None], 1) > 0).all()


@pytest.mark.parametrize("name", ALL)
def test_a_running_sum_that_is_not_monotone_draws_nothing_of_probability_zero(name):
    """As parallel sums round, on a device: here they are made to."""
    ops, into = backend(name)

    class Rounded:
        def __init__(self, x):
            self.x = x

        def cumsum(self, axis):
            return self.x.cumsum(axis) + into(np.float32([[0, 0.01, 0, 0.01, 0]]))

        def __gt__(self, other):
            return self.x > other

        def argmax(self, axis):
            return self.x.argmax(axis)

    weights = np.tile(np.float32([0.5, 0, 0.5, 0, 0]), (3, 1))
    uniforms = np.float32([0.4975, 0.499, 1.0])
    at = out(sampling.draw_one(ops, Rounded(into(weights)), into(uniforms)))
    assert set(at.tolist()) <= {0, 2}


@pytest.mark.parametrize("name", SOME)
def test_rows_without_a_distribution_are_flagged_and_disturb_no_other(name):
    ops, into = backend(name)
    dev = ops.to_device(mw.compile_sids([[0, 1], [2, 0], [3, 3]], 6))
    logits = np.zeros((8, 6), np.float32)
    logits[1, 2] = np.nan  # allowed
    logits[2, 5] = np.nan  # not allowed
    logits[3, 0] = np.inf
    logits[4, 5] = np.inf
    logits[5, [0, 2, 3]] = -np.inf
    logits[6] = -np.inf
    nodes = np.zeros(8, np.int64)
    nodes[7] = numpy_ops.advance(mw.compile_sids([[0, 1], [2, 0], [3, 3]], 6), State(nodes[:1]), np.array([5])).node[0]
    uniforms = np.full((8, 2), 0.5, np.float32)
    for options in ({}, {"temperature": 0.5, "top_k": 2, "top_p": 0.9, "min_p": 0.1}, {"temperature": 0}):
        found = sample(dev, into(logits), State(into(nodes)), into(uniforms), ops=ops, **options)
        assert out(found.valid).tolist() == [True] + [False] * 7
        assert out(found.tokens)[0] in (0, 2, 3)
        assert (out(found.tokens)[1:] == -1).all()
        assert (out(found.log_probs)[1:] == -np.inf).all()
        assert (out(found.log_mass)[1:] == -np.inf).all()
        np.testing.assert_allclose(out(found.log_mass)[0], math.log(0.5), rtol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_a_model_that_breaks_down_in_the_middle_is_flagged_there(name):
    ops, _ = backend(name)
    table = mw.compile_sids([[0, 1, 1], [2, 0, 1]], 3)
    weights = np.zeros((3, 3, 3), np.float32)
    weights[1, 2] = np.nan
    found = run(sample_sequences, name, weights, ops.to_device(table), seeded(name), batch=60, max_tokens=3)
    valid = out(found.valid)[:, 0]
    assert 0 < valid.sum() < 60
    assert set(sequences(found)) == {(0, 1, 1)}
    assert (out(found.tokens)[~valid] == -1).all()
    assert (out(found.lengths)[~valid] == 0).all()
    assert (out(found.log_probs)[~valid] == -np.inf).all()


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperature": -1}, ValueError, "temperature=-1 must be finite and 0 or more"),
        ({"temperature": math.nan}, ValueError, "temperature=nan must be finite"),
        ({"temperature": "1"}, TypeError, "temperature must be a number, known when a step is traced, not a str"),
        ({"top_k": 0}, ValueError, "top_k=0 must be 1 or more; leave it out"),
        ({"top_k": 2.0}, TypeError, "top_k must be an integer, .* not a float"),
        ({"top_k": True}, TypeError, "top_k must be an integer, .* not a bool"),
        ({"top_p": 0}, ValueError, "top_p=0 must be above 0 and at most 1"),
        ({"top_p": 1.5}, ValueError, "top_p=1.5 must be above 0"),
        ({"min_p": -0.1}, ValueError, "min_p=-0.1 must be between 0 and 1"),
        ({"min_p": [0.1]}, TypeError, "min_p must be a number, .* not a list"),
        ({"level": -1}, ValueError, "level=-1 must be a depth"),
        ({"random": "seed"}, TypeError, "random must be a .*, not a str"),
        ({"random": np.zeros((3, 2), np.float32)}, ValueError, r"uniform numbers have shape \(3, 2\), \(2, 2\) are"),
        ({"dev": [[0, 1]]}, TypeError, "dev must come from ops.to_device, not be a list"),
        ({"logits": np.zeros((2, 6), np.int32)}, TypeError, "logits must be floating-point numbers"),
        ({"logits": np.zeros((2, 5), np.float32)}, mw.errors.VocabularyMismatchError, "logits have 5 columns"),
        ({"logits": np.zeros((3, 6), np.float32)}, ValueError, "one state a row is needed"),
    ],
)
def test_bad_options_are_refused(name, options, error, message):
    ops, into = backend(name)
    dev = ops.to_device(mw.compile_sids([[0, 5]], 6))
    state = ops.start(dev, 2)
    dev, random = options.get("dev", dev), options.get("random", seeded(name))
    logits = into(options.get("logits", np.zeros((2, 6), np.float32)))
    rest = {key: value for key, value in options.items() if key not in ("dev", "random", "logits")}
    with pytest.raises(error, match=message):
        sample(dev, logits, state, into(random) if isinstance(random, np.ndarray) else random, ops=ops, **rest)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_impossible_runs_are_refused(name):
    ops = backend(name).ops
    step, random = bigram(name, np.zeros((3, 3, 3), np.float32)), seeded(name)
    dev = ops.to_device(mw.compile_sids([[0, 1, 2]], 3))
    with pytest.raises(ValueError, match="max_tokens=2 is less than the shortest sequence, 3 tokens"):
        sample_sequences(step, None, dev, random, ops=ops, batch=1, max_tokens=2)
    with pytest.raises(ValueError, match="must be positive, not 1, 0 and 3"):
        sample_sequences(step, None, dev, random, ops=ops, batch=1, samples=0, max_tokens=3)
    ragged = ops.to_device(mw.compile_sequences([[0], [1, 2]], vocab_size=3))
    few = backend(name).into(np.zeros((2, 1, 2), np.float32))
    with pytest.raises(ValueError, match="the table has no EOS and its sequences have different lengths"):
        sample_sequences(step, None, ragged, random, ops=ops, batch=1, max_tokens=3)
    with pytest.raises(ValueError, match="too few uniform numbers"):
        sample_sequences(step, None, dev, few, ops=ops, batch=1, max_tokens=3)
    with pytest.raises(ValueError, match="temperature=0 leaves nothing to draw"):
        sample_unbiased(step, None, dev, random, ops=ops, batch=1, candidates=2, max_tokens=3, temperature=0)
    with pytest.raises(ValueError, match="candidates=0 must be 1 or more"):
        sample_unbiased(step, None, dev, random, ops=ops, batch=1, candidates=0, max_tokens=3)


# -------------------------------------------------------------------------------------------- allowed logits


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("kind", ["sids with eos", "choices"])
def test_allowed_logits_are_the_masked_full_logits(name, kind):
    c, (ops, into) = case(kind), backend(name)
    dev, rng = ops.to_device(c.table, distances=True), np.random.default_rng(4)
    weight, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((c.vocab, 16), (c.vocab,)))
    nodes = every_node(c.table)
    hidden = rng.normal(size=(nodes.size, 16)).astype(np.float32)
    full, room = hidden @ weight.T + bias, rng.integers(0, 4, nodes.size)
    for remaining in (None, room):
        given = None if remaining is None else into(remaining)
        tokens, logits = allowed_logits(
            into(hidden), into(weight), dev, State(into(nodes)), ops=ops, bias=into(bias), remaining=given
        )
        tokens, logits = out(tokens), out(logits)
        assert tokens.shape[1] == sampling.static_width(c.table) < c.vocab
        got = np.full_like(full, -np.inf)
        rows, columns = np.nonzero(tokens >= 0)
        got[rows, tokens[rows, columns]] = logits[rows, columns]
        assert (logits[tokens < 0] == -np.inf).all()
        assert len(rows) == len({*zip(rows.tolist(), tokens[rows, columns].tolist(), strict=True)})
        wanted = numpy_ops.mask_logits(c.table, full, State(nodes), remaining)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    if not c.table.is_trie:
        return
    for level in range(1, 4):  # of one level fewer; EOS is one of them
        at = c.table.walk(np.array(sorted({row[:level] for row in c.rows})))
        tokens, logits = allowed_logits(into(hidden[: at.size]), into(weight), dev, State(into(at)), level, ops=ops)
        assert tokens.shape[1] == [*c.table.widths, 1][level] + 1
        counts = (numpy_ops.mask_logits(c.table, full[: at.size], State(at)) > -np.inf).sum(1)
        np.testing.assert_array_equal((out(tokens) >= 0).sum(1), counts)


@pytest.mark.parametrize("name", marked(ALL, slow=["jax"]))
def test_sampling_from_allowed_logits_is_sampling_from_all_of_them(name):
    c, (ops, into) = case("choices"), backend(name)
    dev, rng = ops.to_device(c.table), np.random.default_rng(9)
    weight = into(rng.normal(size=(c.vocab, 8)).astype(np.float32))
    hidden = into(rng.normal(size=(80, 8)).astype(np.float32))
    state, uniforms = State(into(np.zeros(80, np.int64))), into(rng.random((80, 2), np.float32))
    for options in ({}, {"temperature": 0.7, "top_p": 0.6}, {"temperature": 0}):
        pairs = sample_allowed(*allowed_logits(hidden, weight, dev, state, ops=ops), uniforms, ops=ops, **options)
        whole = sample(dev, hidden @ weight.T, state, uniforms, ops=ops, **options)
        np.testing.assert_array_equal(out(pairs.tokens), out(whole.tokens))
        np.testing.assert_allclose(out(pairs.log_probs), out(whole.log_probs), rtol=1e-4, atol=1e-5)
        assert pairs.log_mass is None
    dead = ops.advance(dev, state, into(np.full(80, -1)))
    assert not out(sample_allowed(*allowed_logits(hidden, weight, dev, dead, ops=ops), uniforms, ops=ops).valid).any()


@pytest.mark.parametrize("name", ALL)
def test_where_widths_are_not_known_allowed_logits_are_refused_by_name(name):
    ops, into = backend(name)
    hidden, weight = into(np.zeros((2, 4), np.float32)), into(np.zeros((300, 4), np.float32))
    for c, level, where in (
        (Case(mw.compile_sids([[i, 0] for i in range(9)], 9), set(), 2), 0, "states at level 0"),
        (Case(mw.compile_sids([[i, 0] for i in range(9)], 9), set(), 2), None, "any of its states"),
        (case("lists"), None, "any of its states"),
    ):
        dev = ops.to_device(c.table)
        with pytest.raises(ValueError, match=f"how few tokens {where} allow .* compute all logits"):
            allowed_logits(hidden, weight, dev, ops.start(dev, 2), level, ops=ops)
    with pytest.raises(mw.errors.VocabularyMismatchError, match="weight has 5 rows, the table's vocabulary has 262"):
        allowed_logits(hidden, weight[:5], dev, ops.start(dev, 2), ops=ops)
    with pytest.raises(ValueError, match=r"must have shapes \(N, H\) and \(V, H\)"):
        allowed_logits(hidden, weight[:, :3], dev, ops.start(dev, 2), ops=ops)


# ------------------------------------------------------------------------------------------------- unbiased


def algorithm(truth: dict[Any, tuple[float, float]], K: int) -> dict[Any, float]:
    """Return the exact distribution of algorithm 1 with K candidates, by going through all second rounds."""
    p = 1 - sum(math.exp(log_p) for log_p, _ in truth.values())
    by_masking = {x: math.exp(log_p - mass) for x, (log_p, mass) in truth.items()}
    score = {x: math.exp(mass) for x, (_, mass) in truth.items()}
    second = dict.fromkeys(truth, 0.0)
    for chosen in itertools.product(truth, repeat=K):
        weight = math.prod(by_masking[x] for x in chosen) / sum(score[x] for x in chosen)
        for x in chosen:
            second[x] += weight * score[x]
    return {x: (1 - p**K) * math.exp(truth[x][0]) / (1 - p) + p**K * second[x] for x in truth}


def divergence(p: dict[Any, float], q: dict[Any, float]) -> float:
    return sum(v * math.log(v / q[x]) for x, v in p.items())


def bound(p: float, K: int) -> float:
    """Theorem 3.1, with the constants of its proof."""
    return p**K / (1 - p) * (math.sqrt(p * (1 - p) / K) + p / (2 * K))


def count_of_candidates(p: float, K: int) -> tuple[float, float]:
    """Return mean and standard deviation of how many candidates it takes."""
    by_count = {k: p ** (k - 1) * (1 - p) for k in range(1, K + 1)}
    by_count[2 * K] = by_count.get(2 * K, 0) + p**K
    mean = sum(k * q for k, q in by_count.items())
    assert abs(mean - ((1 - p**K) / (1 - p) + K * p**K)) < 1e-12
    return mean, math.sqrt(sum(k * k * q for k, q in by_count.items()) - mean**2)


def theorem_2_1(bad: float, eps: float) -> tuple[Case, np.ndarray]:
    """The proof's model: of what starts with v2, of probability `bad`, only a share of eps is in the set."""
    table = mw.compile_sids([[0, 0], [0, 1], [1, 0]], 2)
    weights = np.zeros((2, 2, 2), np.float32)
    weights[0] = np.log([1 - bad, bad])
    weights[1, 1] = np.log([eps, 1 - eps])
    return Case(table, {(0, 0), (0, 1), (1, 0)}, 2), weights


def test_masking_alone_is_as_far_from_the_model_as_theorem_2_1_says():
    for bad, eps in ((0.5, 0.1), (0.9, 0.01), (0.99, 1e-4)):
        c, weights = theorem_2_1(bad, eps)
        truth = exact(c, weights)
        inside = sum(math.exp(log_p) for log_p, _ in truth.values())
        target = {x: math.exp(log_p) / inside for x, (log_p, _) in truth.items()}
        masked = {x: math.exp(log_p - mass) for x, (log_p, mass) in truth.items()}
        good = (1 - bad) / (1 - bad + bad * eps)
        by_proof = good * math.log(good / (1 - bad)) + (1 - good) * math.log(eps / (1 - bad + bad * eps))
        assert abs(divergence(target, masked) - by_proof) < 1e-6
        assert abs(masked[1, 0] - bad) < 1e-6
        for K in range(1, 6):
            assert divergence(target, algorithm(truth, K)) < divergence(target, masked)
    assert by_proof > 0.9 * math.log(1 / (1 - bad))


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("K", [1, 2, 4, 7])
def test_unbiased_samples_have_the_distribution_and_take_the_candidates_of_theorem_3_1(name, K):
    """Exactly that of the algorithm; its divergence from P(x) / P(S) is within the bound, and falls with K."""
    if (name == "numpy" and K not in (1, 4)) or (name == "jax" and K != 4):
        pytest.skip("one by one takes numpy long, compiling JAX")
    c, weights = theorem_2_1(0.7, 0.15)
    ops, draws = backend(name).ops, DRAWS[name]
    options = {"batch": draws, "candidates": K, "max_tokens": 2}
    found = run(sample_unbiased, name, weights, ops.to_device(c.table), seeded(name, K), **options)
    truth = exact(c, weights)
    inside = sum(math.exp(log_p) for log_p, _ in truth.values())
    target = {x: math.exp(log_p) / inside for x, (log_p, _) in truth.items()}
    exactly = [divergence(target, algorithm(truth, k)) for k in (K, K + 1)]
    assert exactly[1] < exactly[0] <= bound(1 - inside, K)
    counts = Counter(sequences(found))
    assert sum(counts.values()) == draws
    fits(counts, algorithm(truth, K))
    with pytest.raises(AssertionError, match="statistic"):  # and masking alone does not
        fits(counts, {x: math.exp(log_p - mass) for x, (log_p, mass) in truth.items()})
    mean, deviation = count_of_candidates(1 - inside, K)
    taken, accepted = out(found.candidates), out(found.accepted)
    assert abs(taken.mean() - mean) < 4.9 * deviation / math.sqrt(draws)  # 1e-6 on both sides
    np.testing.assert_array_equal(taken, np.where(accepted < 0, 2 * K, accepted + 1))
    rejected = (accepted < 0).mean()
    assert abs(rejected - (1 - inside) ** K) < 4.9 * math.sqrt((1 - inside) ** K / draws)
    log_p = [truth[x][0] for x in sequences(found)[:100]]
    np.testing.assert_allclose((out(found.log_probs) + out(found.log_mass))[:100], log_p, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["ragged", "lists"])
def test_with_many_candidates_unbiased_samples_are_the_models_own(kind):
    """Among sequences with EOS, of which the model puts most probability outside, and in nested tables with budgets."""
    c = case(kind)
    weights = likely(c)
    truth = exact(c, weights)
    inside = sum(math.exp(log_p) for log_p, _ in truth.values())
    K = math.ceil(math.log(1e-4) / math.log(1 - inside))  # then no test of this size sees what is left of the bias
    assert 5 < K < 100
    dev = backend("torch").ops.to_device(c.table, distances=True)
    options = {"batch": 1000, "max_tokens": c.max_tokens}
    found = run(sample_unbiased, "torch", weights, dev, seeded("torch"), candidates=K, **options)
    target = {x: math.exp(log_p) / inside for x, (log_p, _) in truth.items()}
    fits(Counter(sequences(found)), target)
    masked = Counter(sequences(run(sample_sequences, "torch", weights, dev, seeded("torch"), **options)))
    with pytest.raises(AssertionError, match="statistic"):
        fits(masked, target)


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), [("torch", "lists without budgets"), ("jax", "endless")])
def test_candidates_that_are_not_complete_in_time_count_as_rejected(name, kind):
    """Without budgets the target is P(x) given that x is complete by then."""
    c, ops = case(kind), backend(name).ops
    weights = likely(c)
    options = {"batch": 600, "candidates": 8, "max_tokens": c.max_tokens}
    found = run(sample_unbiased, name, weights, ops.to_device(c.table), seeded(name), **options)
    accepted = out(found.accepted) >= 0
    truth = exact(c, weights)
    inside = sum(math.exp(log_p) for log_p, _ in truth.values())
    assert accepted.sum() > 200
    assert out(found.valid)[accepted].all()
    drawn = [x for x, ok in zip(sequences(found), accepted[out(found.valid)], strict=True) if ok]
    fits(Counter(drawn), {x: math.exp(log_p) / inside for x, (log_p, _) in truth.items()})


@pytest.mark.long
def test_backends_agree_exactly_on_unbiased_samples_given_the_same_uniform_numbers():
    c, weights = theorem_2_1(0.8, 0.1)
    rng = np.random.default_rng(0)
    shapes = ((2, 120, 2), (40, 3), (2, 120, 2), (40, 2))
    uniforms = [rng.random(shape, np.float32) for shape in shapes]
    found = {}
    for name in ALL:
        ops, into = backend(name)
        random = tuple(map(into, uniforms))
        options = {"batch": 40, "candidates": 3, "max_tokens": 2}
        found[name] = run(sample_unbiased, name, weights, ops.to_device(c.table), random, **options)
    for name in FAST:
        for mine, wanted in zip(found[name], found["numpy"], strict=True):
            np.testing.assert_allclose(out(mine), wanted, rtol=1e-4, atol=1e-5)
    assert {-1, 0, 1, 2} == set(found["numpy"].accepted.tolist())
    drawn = sample_sequences(
        bigram("numpy", weights), None, c.table, uniforms[0], ops=numpy_ops, batch=40, samples=3, max_tokens=2
    )
    accepted = uniforms[1] < np.exp(drawn.log_mass)  # as the paper says it, one after the other
    for b in range(40):
        first = next((k for k in range(3) if accepted[b, k]), -1)
        assert found["numpy"].accepted[b] == first
        if first >= 0:
            assert found["numpy"].tokens[b].tolist() == drawn.tokens[b, first].tolist()


@pytest.mark.parametrize("name", SOME)
def test_a_second_round_is_drawn_only_where_it_is_needed(name):
    table = mw.compile_sids([[0, 1], [1, 0]], 2)
    weights, calls = np.zeros((2, 2, 2), np.float32), []
    weights[1, 0, 1] = weights[1, 1, 0] = 40.0  # the model never leaves the set
    inner, ops = bigram(name, weights), backend(name).ops

    def step(tokens, cache, t):
        calls.append(t)
        return inner(tokens, cache, t)

    found = sample_unbiased(
        step, None, ops.to_device(table), seeded(name), ops=ops, batch=5, candidates=1, max_tokens=2
    )
    assert calls == [0, 1]
    assert out(found.accepted).tolist() == [0] * 5
    weights[1, 0], weights[1, 1] = [40.0, 0.0], [0.0, 40.0]  # it always does
    inner = bigram(name, weights)
    found = sample_unbiased(
        step, None, ops.to_device(table), seeded(name), ops=ops, batch=5, candidates=3, max_tokens=2
    )
    assert calls == [0, 1] * 3
    assert out(found.accepted).tolist() == [-1] * 5
    assert out(found.candidates).tolist() == [6] * 5
    assert out(found.valid).all()


@pytest.mark.parametrize("name", SOME)
def test_beams_are_reranked_in_proportion_to_their_scores(name):
    """On uniform numbers in even steps; beams that do not exist are never drawn."""
    c, (ops, into), draws = case("ragged"), backend(name), 100
    weights = weights_of(c)
    step = bigram(name, weights)
    options = {"ops": ops, "batch": draws, "beams": 10, "max_tokens": 4}
    beams = beam_search(lambda tokens, cache, t: step(tokens, cache, t), None, ops.to_device(c.table), **options)
    uniforms = np.zeros((draws, 2), np.float32)
    uniforms[:, 1] = (np.arange(draws) + 0.5) / draws
    found = rerank(beams, beams.scores, into(uniforms), ops=ops)
    assert type(found) is type(beams)
    truth = exact(c, weights)
    inside = sum(math.exp(log_p) for log_p, _ in truth.values())
    counts = Counter(sequences(found))
    assert sum(counts.values()) == draws
    assert all(abs(counts[x] - draws * math.exp(log_p) / inside) <= 1.01 for x, (log_p, _) in truth.items())
    none = rerank(beams._replace(valid=beams.valid & ~beams.valid), beams.scores, into(uniforms), ops=ops)
    assert not out(none.valid).any()
    with pytest.raises(ValueError, match=r"log_scores have shape \(100,\), there are \(100, 10\) candidates"):
        rerank(beams, beams.scores[:, 0], into(uniforms), ops=ops)


# ------------------------------------------------------------------------------------------ traced and compiled


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ragged", pytest.param("lists", marks=pytest.mark.slow)])
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_all_of_it_compiles_whole_in_torch(kind, compiler):
    torch = pytest.importorskip("torch")
    c, ops = case(kind), backend("torch").ops
    dev, step = ops.to_device(c.table, distances=True), bigram("torch", weights_of(c))
    options = {"ops": ops, "batch": 6, "max_tokens": 3, "temperature": 0.9}
    first, accept, second, choice = (
        torch.rand(shape, generator=seeded("torch")) for shape in ((4, 18, 2), (6, 3), (4, 18, 2), (6, 2))
    )

    def run(first, accept, second, choice):
        plain = sample_sequences(step, None, dev, first, samples=3, top_k=4, top_p=0.9, min_p=0.01, **options)
        return plain, sample_unbiased(step, None, dev, (first, accept, second, choice), candidates=3, **options)

    quick = torch.compile(run, fullgraph=True, dynamic=False, backend=compiler)(first, accept, second, choice)
    for mine, wanted in zip(itertools.chain(*quick), itertools.chain(*run(first, accept, second, choice)), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
    own = torch.compile(  # with torch's own generator
        lambda: sample(dev, step(torch.zeros(6, dtype=torch.int64), None, 0)[0], ops.start(dev, 6), None, ops=ops),
        fullgraph=True, dynamic=False, backend=compiler,
    )  # fmt: skip
    assert own().valid.all()


@pytest.mark.long
def test_nothing_of_it_needs_a_value_on_the_host():
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    ops = backend("torch").ops
    for kind in CASES:
        c = case(kind)
        dev = ops.to_device(c.table, distances=True)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            logits = mode.from_tensor(torch.zeros(12, c.vocab))
            for random in (None, torch.Generator())[: 1 if kind == "lists" else 2]:
                found = sample_unbiased(
                    lambda tokens, cache, t, logits=logits: (logits, cache), None, dev, random, ops=ops, batch=4,
                    candidates=3, max_tokens=c.max_tokens,
                )  # fmt: skip
                assert found.tokens.shape == (4, c.max_tokens)
            filters = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1}
            for options in (filters, {"temperature": 0}):
                assert sample(dev, logits, ops.start(dev, 12), None, ops=ops, **options).tokens.shape == (12,)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sids with eos", "regex", "lists"])
def test_all_of_it_jits_in_jax_with_the_table_as_an_argument(kind):
    jax = pytest.importorskip("jax")

    c, (ops, into) = case(kind), backend("jax")
    weights = into(weights_of(c))

    def run(dev, weights, key):
        step = lambda tokens, cache, t: (weights[t, tokens], cache)  # noqa: E731
        options = {"ops": ops, "batch": 6, "max_tokens": 3}
        plain = sample_sequences(step, None, dev, key, top_k=4, top_p=0.9, min_p=0.01, **options)
        return plain, sample_unbiased(step, None, dev, key, candidates=3, **options)

    dev, key = ops.to_device(c.table, distances=True), jax.random.key(3)
    quick, plain = jax.jit(run)(dev, weights, key), run(dev, weights, key)
    for mine, wanted in zip(itertools.chain(*quick), itertools.chain(*plain), strict=True):
        np.testing.assert_allclose(out(mine), out(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("kind", ["sids with eos", "ragged", "choices"])
def test_allowed_tokens_agree_with_numpy_at_every_state(name, kind):
    c, (ops, into) = case(kind), backend(name)
    dev, nodes = ops.to_device(c.table, distances=True), every_node(c.table)
    most = sampling.static_width(c.table) - 1  # without EOS
    for width, remaining in itertools.product((1, most), (None, nodes % 4)):
        given = None if remaining is None else into(remaining)
        found = ops.allowed_tokens(dev, State(into(nodes)), width, given)
        wanted = numpy_ops.allowed_tokens(c.table, State(nodes), width, remaining)
        if (
            width == most or remaining is None
        ):  # a budget leaves tokens out after the first `width` are taken, or before
            for mine, theirs in zip(found, wanted, strict=True):
                a, b = (
                    np.sort(np.where(out(found[1]), out(found[0]), -1)),
                    np.sort(np.where(wanted[1], wanted[0], -1)),
                )
                np.testing.assert_array_equal(a, b)
                assert out(mine).shape == theirs.shape


def test_a_nested_state_is_carried_through():
    """A guard for the tests above: the recursive schema's table has a stack."""
    c = case("lists")
    assert isinstance(numpy_ops.start(c.table.to_table(), 1), NestedState)
    assert (1, 6, 2) in c.rows  # [ [] ]
    assert all(isinstance(row, tuple) for row in c.rows)


def test_a_choice_among_candidates_that_has_no_distribution_holds_nothing():
    found = sampling.Sequences(
        np.array([[[1, 2], [3, 4]]] * 2), np.full((2, 2), 2), np.zeros((2, 2)), np.zeros((2, 2)), np.ones((2, 2), bool),
        np.zeros((2, 2), np.int64),
    )  # fmt: skip
    scores = np.array([[np.nan, 0.0], [0.0, -np.inf]])
    chosen = rerank(found, scores, np.full((2, 2), 0.5), ops=numpy_ops)
    assert chosen.valid.tolist() == [False, True]
    assert chosen.tokens.tolist() == [[-1, -1], [1, 2]]
    assert chosen.lengths.tolist() == [0, 2]
    assert chosen.log_probs.tolist() == [-np.inf, 0.0]


def test_options_that_are_no_numbers_of_their_kind_are_refused():
    table = mw.compile_sids([[1, 2]], 4)
    with pytest.raises(TypeError, match="candidates"):
        sample_unbiased(None, None, table, None, ops=numpy_ops, batch=1, candidates=2.5, max_tokens=2)
    with pytest.raises(ValueError, match="too small to divide"):
        sample(table, np.zeros((1, 4)), numpy_ops.start(table, 1), np.random.default_rng(0), ops=numpy_ops, temperature=1e-50)  # fmt: skip  # noqa: E501


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_a_top_p_that_is_nothing_in_the_logits_type_keeps_the_best(name):
    ops, array = backend(name)
    dev = ops.to_device(mw.compile_sids([[0], [2], [3]], 4))
    logits = array(np.array([[1.0, 9.0, 3.0, 2.0]], np.float32))
    drawn = sample(dev, logits, ops.start(dev, 1), array(np.full((1, 2), 0.9, np.float32)), ops=ops, top_p=1e-300)
    assert np.asarray(drawn.tokens).tolist() == [2]
