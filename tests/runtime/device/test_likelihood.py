"""Log-probabilities of whole sequences, against sums over a set that is listed, decoders, and dense masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime.decode import beam_search, sample_sequences
from maskwright.table.live_sids import LiveSids
from tests.marks import marked
from tests.oracles import naive
from tests.support.backends import ALL, backend, out

ROWS = [(1, 2, 3), (1, 2, 5), (1, 4, 3), (7, 7, 7), (7, 2, 1), (9, 2, 1)]
RAGGED = [(1,), (1, 2), (1, 2, 3), (4, 1), (5, 6, 7, 8)]
EOS = 0


def tables(vocab: int) -> dict[str, tuple[Any, set[naive.Tokens], int | None]]:
    """Return constraints with all that they hold, by what they are: a large vocabulary has few tokens allowed."""
    return {
        "sids": (mw.compile_sids(ROWS, vocab), set(ROWS), None),
        "sids with eos": (mw.compile_sids(ROWS, vocab, eos=EOS), set(ROWS), EOS),
        "ragged with eos": (mw.compile_sequences(RAGGED, vocab_size=vocab, eos=EOS), set(RAGGED), EOS),
        "matrix": (mw.sort_sids(ROWS, vocab), set(ROWS), None),
    }


KINDS = list(tables(10))
SOME = ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)]  # compiling takes JAX seconds
COMPILED = {("matrix", 10), ("ragged with eos", 100)}


def cases(names: list[str]) -> list[Any]:
    """Return backends, kinds and sizes of vocabularies; of JAX few, as compiling takes it seconds."""
    found = [(name, kind, vocab) for name in names for kind in KINDS for vocab in (10, 100)]
    return marked(found, slow=[(name, *rest) for name, *rest in found if name == "jax" and tuple(rest) not in COMPILED])


def log_probs(b: Any, dev: Any, logits: np.ndarray, tokens: np.ndarray, **options: Any) -> np.ndarray:
    """Return what a library finds; of JAX compiled as one, which takes less time here."""

    def score(dev: Any, logits: Any, tokens: Any) -> Any:
        return b.ops.log_probs(dev, logits, tokens, **options)

    if b.ops.__name__.endswith("jax_ops"):
        import jax

        score = jax.jit(score)
    return out(score(dev, b.into(logits), b.into(tokens)))


def expected(
    rows: set[naive.Tokens], eos: int | None, logits: np.ndarray, tokens: np.ndarray, renormalize: bool
) -> Any:
    """Return log-probabilities (B, T) by listing what may follow each prefix."""
    scores = np.zeros(tokens.shape)
    for b, row in enumerate(tokens.tolist()):
        prefix, ended, alive = (), False, True
        for t, token in enumerate(row):
            if token < 0 or ended:
                continue
            allowed = sorted(naive.allowed_after(rows, prefix, eos))
            alive = alive and token in allowed
            if alive:
                p = naive.log_softmax(logits[b, t])
                scores[b, t] = p[token] - (np.log(np.exp(p[allowed]).sum()) if renormalize else 0.0)
                prefix = (*prefix, token)
            else:
                scores[b, t] = -np.inf
            ended = token == eos
    return scores


GIVEN = np.array(
    [
        [
            1,
            2,
            3,
            0,
            0,
            1,
        ],  # whole; what follows its end is padding where that is EOS, and not allowed where it is none
        [1, 2, 5, -1, -1, -1],
        [-100, -100, 1, 4, 3, -1],  # behind a prompt
        [7, -1, 2, -1, 1, -1],
        [1, 2, -1, -1, -1, -1],  # a prefix
        [1, 3, 3, 0, -1, -1],  # not in the set
        [1, 0, 0, 0, 0, 0],
        [5, 6, 7, 8, 0, -1],
        [-1, -1, -1, -1, -1, -1],
        [9, 2, 1, 999, -1, -1],  # outside the vocabulary
    ]
)


@pytest.mark.parametrize(("name", "kind", "vocab"), cases(["numpy", "torch", "jax"]))
def test_a_sequence_counts_the_shares_of_its_tokens_among_what_is_allowed(name, kind, vocab):
    b = backend(name)
    table, rows, eos = tables(vocab)[kind]
    logits = np.random.default_rng(vocab).normal(size=(*GIVEN.shape, vocab + 3)).astype(np.float32)
    for renormalize in (True, False):
        want = expected(rows, eos, logits, GIVEN, renormalize)
        dev = b.ops.to_device(table)
        found = log_probs(b, dev, logits, GIVEN, renormalize=renormalize, by_position=True)
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
        if name != "jax" or renormalize:
            whole = log_probs(b, dev, logits, GIVEN, renormalize=renormalize)
            np.testing.assert_allclose(whole, want.sum(-1), rtol=1e-4, atol=1e-5)
        assert np.isneginf(want.sum(-1)).any()
        assert np.isfinite(want.sum(-1)).any()


def test_rows_without_a_distribution_count_nothing():
    table = mw.compile_sids(ROWS, 10)
    logits = np.zeros((4, 3, 10), np.float32)
    logits[0, 1, 2], logits[1, 1, 2], logits[2, 1, 2], logits[2, 1, 4] = np.nan, np.inf, -np.inf, -np.inf
    logits[3, 1, 2] = -np.inf  # a token that the model rules out
    tokens = np.array([[1, 2, 3]] * 3 + [[1, 4, 3]])
    for name in ("numpy", "torch"):
        b = backend(name)
        found = out(b.ops.log_probs(b.ops.to_device(table), b.into(logits), b.into(tokens), by_position=True))
        third, half = np.log(1 / 3), np.log(1 / 2)
        want = [[third, -np.inf, half]] * 3 + [[third, 0, 0]]
        np.testing.assert_allclose(found, want, atol=1e-6)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("kind", KINDS)
def test_decoders_report_what_it_says(name, kind):
    """Of what they return, with EOS put behind it."""
    b = backend(name)
    table, _, eos = tables(10)[kind]
    dev, batch, steps = b.ops.to_device(table), 2, 3 + (eos is not None) + (kind == "ragged with eos")
    model = b.into(np.random.default_rng(3).normal(size=(steps + 1, 10, 10)).astype(np.float32))

    def step(tokens: Any, cache: Any, t: int) -> tuple[Any, Any]:
        return model[t][tokens], cache

    def likelihood(tokens: Any, renormalize: bool) -> np.ndarray:
        tokens = out(tokens).reshape(-1, tokens.shape[-1])
        if eos is not None:
            lengths = (tokens >= 0).sum(-1)
            tokens = np.pad(tokens, ((0, 0), (0, 1)), constant_values=-1)
            tokens[np.arange(len(tokens)), lengths] = eos
        before = np.concatenate([np.zeros((len(tokens), 1), int), np.maximum(tokens[:, :-1], 0)], 1)
        logits = np.stack([out(model)[t][before[:, t]] for t in range(tokens.shape[1])], 1)
        return out(b.ops.log_probs(dev, b.into(logits), b.into(tokens), renormalize=renormalize))

    random = {"numpy": np.random.default_rng(0)}.get(name)
    if name == "jax":
        import jax

        random = jax.random.key(0)
    drawn = sample_sequences(step, None, dev, random, ops=b.ops, batch=batch, samples=5, max_tokens=4)
    assert out(drawn.valid).all()
    np.testing.assert_allclose(likelihood(drawn.tokens, True), out(drawn.log_probs).reshape(-1), atol=1e-5)
    both = out(drawn.log_probs + drawn.log_mass).reshape(-1)
    np.testing.assert_allclose(likelihood(drawn.tokens, False), both, atol=1e-5)
    for renormalize in (True, False):
        beams = beam_search(
            step, None, dev, ops=b.ops, batch=batch, beams=4, max_tokens=4, renormalize=renormalize
        )  # fmt: skip
        assert out(beams.valid).all()
        np.testing.assert_allclose(likelihood(beams.tokens, renormalize), out(beams.scores).reshape(-1), atol=1e-5)


@pytest.mark.parametrize(("name", "kind", "vocab"), cases(["torch", "jax"]))
def test_its_derivatives_are_those_of_a_dense_mask(name, kind, vocab):
    b = backend(name)
    table, rows, eos = tables(vocab)[kind]
    dev = b.ops.to_device(table)
    logits = np.random.default_rng(vocab).normal(size=(*GIVEN.shape, vocab)).astype(np.float32)
    logits[1, 1, 8], logits[1, 4] = np.nan, np.nan  # where nothing is allowed, and beyond the end
    allowed = np.zeros((*logits.shape,), bool)
    sound = np.isfinite(expected(rows, eos, np.nan_to_num(logits), GIVEN, True)) & (GIVEN >= 0)
    weight = np.random.default_rng(1).normal(size=GIVEN.shape).astype(np.float32)
    for i, row in enumerate(GIVEN.tolist()):
        prefix: naive.Tokens = ()
        for t, token in enumerate(row):
            if eos is not None and eos in row[:t]:
                sound[i, t] = False
            elif sound[i, t]:
                allowed[i, t, sorted(naive.allowed_after(rows, prefix, eos))] = True
                prefix = (*prefix, token)
    inside = np.where(sound, GIVEN, 0)
    p = np.where(allowed, np.exp(np.nan_to_num(logits)), 0)
    p /= np.where(sound, p.sum(-1), 1)[:, :, None]
    want = (np.eye(vocab)[inside] - p) * (sound * weight)[:, :, None]

    def loss(x: Any) -> Any:
        scores = b.ops.log_probs(dev, x, b.into(GIVEN), by_position=True)
        return (b.ops.arrays.where(b.into(sound), scores, 0.0) * b.into(weight)).sum()

    if name == "torch":
        x = b.into(logits).requires_grad_()
        loss(x).backward()
        found = x.grad.numpy()
    else:
        import jax

        found = np.asarray(jax.jit(jax.grad(loss))(b.into(logits)))
    np.testing.assert_allclose(found, want, atol=1e-5)
    assert np.abs(want).sum() > 1


@pytest.mark.parametrize("name", SOME)
def test_a_state_and_a_budget_say_where_a_sequence_starts_and_when_it_must_end(name):
    b = backend(name)
    table, rows, eos = tables(100)["ragged with eos"]
    dev = b.ops.to_device(table, distances=True)
    logits = np.random.default_rng(5).normal(size=(3, 4, 100)).astype(np.float32)
    state = b.ops.advance(dev, b.ops.start(dev, 3), b.into(np.array([1, 1, 5])))
    tokens = np.array([[2, 3, 0, -1], [2, 0, -1, -1], [6, 7, 8, 0]])
    before = np.array([[1], [1], [5]])
    whole = expected(rows, eos, np.pad(logits, ((0, 0), (1, 0), (0, 0))), np.concatenate([before, tokens], 1), True)
    found = b.ops.log_probs(dev, b.into(logits), b.into(tokens), state, by_position=True)
    np.testing.assert_allclose(out(found), whole[:, 1:], rtol=1e-4, atol=1e-5)

    room = b.into(np.array([1, 1, 3]))
    found = out(b.ops.log_probs(dev, b.into(logits), b.into(tokens), state, remaining=room, by_position=True))
    assert np.isneginf(found[0, 1])  # 3 is one token too many
    np.testing.assert_allclose(found[1, 1], 0, atol=1e-6)  # EOS alone is left
    np.testing.assert_allclose(found[2], whole[2, 1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_texts_of_a_pattern_are_scored_with_and_without_arrays(name):
    b = backend(name)
    vocabulary = mw.Vocabulary.from_bytes([b"a", b"b", b"ab", b""], eos=3)
    table = mw.compile_regex("(ab|b)*", vocabulary)
    tokens = np.array([[2, 1, 3, -1, -1], [0, 1, 1, 2, 3], [0, 0, 1, -1, -1]])
    logits = np.random.default_rng(6).normal(size=(3, 5, 4)).astype(np.float32)
    may_follow = {"": [0, 1, 2, 3], "a": [1]}
    want = np.zeros(3)
    for i, row in enumerate(tokens.tolist()):
        place = ""
        for t, token in enumerate(row):
            if token < 0:
                break
            p = naive.log_softmax(logits[i, t])
            allowed = may_follow[place]
            want[i] += p[token] - np.log(np.exp(p[allowed]).sum()) if token in allowed else -np.inf
            place = "a" if token == 0 else ""
    for on_demand in (False, True):
        found = b.ops.log_probs(b.ops.to_device(table, on_demand=on_demand), b.into(logits), b.into(tokens))
        np.testing.assert_allclose(out(found), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_filters_and_live_sets_are_scored_as_the_sets_that_they_leave(name):
    b = backend(name)
    matrix = mw.sort_sids(ROWS, 10)
    live = LiveSids(matrix, capacity=8)
    new, gone = [(1, 2, 4), (8, 8, 8), (3, 3, 3), (7, 7, 8)], [(9, 2, 1), (1, 4, 3)]
    live.insert(new)
    live.delete(gone)
    tokens = np.array([*new, *gone, (1, 2, 5), (7, 2, 1)])
    logits = np.random.default_rng(0).normal(size=(8, 3, 10)).astype(np.float32)
    found = b.ops.log_probs(b.ops.to_device(live.publish()), b.into(logits), b.into(tokens), by_position=True)
    want = expected({*ROWS, *new} - {*gone}, None, logits, tokens, True)
    np.testing.assert_allclose(out(found), want, rtol=1e-4, atol=1e-5)

    keep = np.arange(len(ROWS)) % 3 != 1
    filters = [matrix.filter(keep), matrix.filter(~keep)]
    of = np.array([0, 1, 0, 1, 1, 0, 1, 0])
    dev = b.ops.with_filters(b.ops.to_device(matrix), filters, of=of)
    tokens = np.array([*ROWS, ROWS[1], ROWS[0]])
    found = b.ops.log_probs(dev, b.into(logits), b.into(tokens), by_position=True)
    kept = [{row for row, holds in zip(ROWS, side, strict=True) if holds} for side in (keep, ~keep)]
    want = [expected(kept[i], None, logits[[at]], tokens[[at]], True)[0] for at, i in enumerate(of)]
    np.testing.assert_allclose(out(found), want, rtol=1e-4, atol=1e-5)
    assert 0 < np.isneginf(np.array(want)).any(-1).sum() < 8


@pytest.mark.parametrize("name", ALL)
def test_what_it_cannot_score_is_refused(name):
    b = backend(name)
    dev = b.ops.to_device(mw.compile_sids(ROWS, 10))
    logits, tokens = b.into(np.zeros((2, 3, 10), np.float32)), b.into(np.zeros((2, 3), np.int64))
    for wrong, error, said in [
        ((logits[0], tokens), ValueError, r"must have shapes \(B, T, V\) and \(B, T\)"),
        ((logits, tokens[:, :2]), ValueError, r"must have shapes"),
        ((logits[:, :0], tokens[:, :0]), ValueError, "at least one"),
        ((logits, b.into(np.zeros((2, 3), np.float32))), TypeError, "tokens must be integers"),
        ((b.into(np.zeros((2, 3, 10), np.int64)), tokens), TypeError, "logits must be floating-point"),
        ((logits[:, :, :9], tokens), mw.errors.VocabularyMismatchError, "9 columns"),
        ((logits, tokens, b.ops.start(dev, 3)), ValueError, "one state a row"),
    ]:
        with pytest.raises(error, match=said):
            b.ops.log_probs(dev, *wrong)
    with pytest.raises(ValueError, match="leave one out"):
        b.ops.log_probs(dev, logits, tokens, remaining=tokens[:, 0], renormalize=False)
    with pytest.raises(ValueError, match="one number of tokens a sequence"):
        b.ops.log_probs(dev, logits, tokens, remaining=tokens[:1, 0])
    with pytest.raises(TypeError, match="a constraint from to_device is needed"):
        b.ops.log_probs(ROWS, logits, tokens)


def test_half_precision_is_summed_in_32_bits():
    torch = pytest.importorskip("torch")
    from maskwright.runtime import torch_ops

    for vocab in (10, 100):
        dev = torch_ops.to_device(mw.compile_sids(ROWS, vocab))
        logits = torch.randn(2, 3, vocab, generator=torch.Generator().manual_seed(0)).bfloat16()
        tokens = torch.tensor([[1, 2, 3], [7, 7, 7]])
        found = torch_ops.log_probs(dev, logits, tokens)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, torch_ops.log_probs(dev, logits.float(), tokens))
