"""The published baselines, against oracles that keep the set as Python tuples; the harness they run in."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import jax.numpy as jnp
import torch

from benchmarks import baselines, harness
from benchmarks.beams import JaxUnconstrained, TorchUnconstrained, decode_jax, decode_torch, random_logits
from benchmarks.memory import peak_memory

EXACT = {
    "dict_trie": ("dict_trie", {}, {}),
    "prefix_verification": ("prefix_verification", {}, {}),
    "prefix_verification, narrow": ("prefix_verification", {"narrow": True}, {}),
    "prefix_verification, top 50": ("prefix_verification", {"top": 50}, {}),
    "prefix_verification, top V": ("prefix_verification", {"top": 12}, {}),
    "dense_csr": ("dense_csr", {}, {}),
    "dense_csr, children only": ("dense_csr", {}, {"project": False}),
    "hash_bitmap": ("hash_bitmap", {"log2_bits": 26}, {}),  # no false positive among the prefixes tried here
    "hash_bitmap, three hashes": ("hash_bitmap", {"log2_bits": 24, "hashes": 3}, {}),
}


def random_sids(seed, count=40, vocab_size=12, length=4, tokens=5):
    """A set with shared prefixes, some rows twice, in no order."""
    rng = np.random.default_rng(seed)
    sids = rng.choice(vocab_size, tokens, replace=False)[rng.integers(tokens, size=(count, length))]
    return rng.permutation(np.concatenate([sids, sids[: count // 4]]))


def log_softmax(logits):
    logits = logits.astype(np.float64)
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def naive_beam_search(sids, logits, batch, beams):
    """Beam search over Python tuples: per batch row, a list of (score, tokens), best first."""
    prefixes = [{tuple(row[: t + 1]) for row in sids.tolist()} for t in range(len(logits))]
    found = []
    for b in range(batch):
        live = [(0.0, (), 0)]
        for level, step in enumerate(logits):
            rows = log_softmax(step).reshape(batch, -1, step.shape[-1])[b]
            live = sorted(
                (
                    (score + rows[beam, token], (*prefix, token))
                    for score, prefix, beam in live
                    for token in range(step.shape[-1])
                    if (*prefix, token) in prefixes[level]
                ),
                reverse=True,
            )[:beams]
            live = [(score, prefix, beam) for beam, (score, prefix) in enumerate(live)]
        found.append([(score, prefix) for score, prefix, _ in live])
    return found


@pytest.fixture
def decode_both():
    """Both backends' (tokens, scores) for one of the methods in EXACT, or without a constraint (None)."""

    def decode(name, sids, logits, batch, beams):
        if name is None:
            methods = TorchUnconstrained(), JaxUnconstrained()
        else:
            module, build_options, options = EXACT[name]
            module = getattr(baselines, module)
            built = module.build(sids, logits[0].shape[-1], **build_options)
            methods = module.to_torch(built, **options), module.to_jax(built, **options)
        ours = decode_torch(methods[0], [torch.from_numpy(step) for step in logits], batch, beams)
        theirs = decode_jax(methods[1], [jnp.asarray(step) for step in logits], batch, beams)
        return [[np.asarray(array) for array in found] for found in (ours, theirs)]

    return decode


def check_against(expected, found):
    """The same sequences with the same scores in the same order, and -inf for every beam beyond them."""
    for tokens, scores in found:
        assert len(tokens) == len(scores) == len(expected)
        for row, row_tokens, row_scores in zip(expected, tokens.tolist(), scores, strict=True):
            live = len(row)
            assert [tuple(sequence) for sequence in row_tokens[:live]] == [sequence for _, sequence in row]
            np.testing.assert_allclose(row_scores[:live], [score for score, _ in row], rtol=1e-5)
            assert np.isneginf(row_scores[live:]).all()


@pytest.mark.long
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("seed", range(2))
def test_more_beams_than_sequences_decode_the_whole_set(decode_both, name, seed):
    sids, batch, beams = random_sids(seed), 3, 48
    logits = random_logits(batch, beams, 12, sids.shape[1], seed)
    for step in logits[1:]:  # the same logits for all beams of a row: a score depends on the sequence alone
        step[:] = np.repeat(step[::beams], beams, axis=0)
    whole = {tuple(row) for row in sids.tolist()}
    assert len(whole) < min(beams, len(sids))
    expected = []
    for b in range(batch):
        rows = [log_softmax(step)[b * (len(step) // batch)] for step in logits]
        scored = ((sum(row[t] for row, t in zip(rows, sid, strict=True)), sid) for sid in whole)
        expected.append(sorted(scored, reverse=True))
    check_against(expected, decode_both(name, sids, logits, batch, beams))


@pytest.mark.long
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("count", "beams", "length"), [(40, 5, 4), (3, 4, 3), (1, 2, 3), (30, 6, 2), (9, 3, 1)])
def test_beam_search_equals_the_naive_one(decode_both, name, count, beams, length):
    sids, batch = random_sids(7, count, length=length), 2
    logits = random_logits(batch, beams, 12, length)
    expected = naive_beam_search(sids, logits, batch, beams)
    check_against(expected, decode_both(name, sids, logits, batch, beams))


@pytest.mark.long
@pytest.mark.parametrize("name", EXACT)
def test_a_wider_vocabulary_is_no_different(decode_both, name):
    """V = 1,001 is no multiple of 8, and its states have from one child to many."""
    if "top" in name or name == "hash_bitmap":
        pytest.skip("an approximation at this size")
    sids, batch, beams = np.random.default_rng(1).integers(1001, size=(20_000, 3)), 2, 9
    logits = random_logits(batch, beams, 1001, 3)
    expected = naive_beam_search(sids, logits, batch, beams)
    check_against(expected, decode_both(name, sids, logits, batch, beams))


def test_all_methods_are_listed():
    assert set(baselines.BASELINES) == {"dict_trie", "hash_bitmap", "prefix_verification", "dense_csr"}
    for module in baselines.BASELINES.values():
        assert module.build(random_sids(0), 12).nbytes >= 0


@pytest.mark.parametrize(
    "sids",
    [np.zeros((0, 4), int), np.zeros(4, int), np.zeros((2, 2)), np.array([[12, 0]]), np.array([[-1, 0]])],
)
def test_what_is_not_a_set_of_sids_is_refused(sids):
    for module in baselines.BASELINES.values():
        with pytest.raises(ValueError, match="sids must"):
            module.build(sids, 12)


def test_top_50_verifies_fifty_tokens_only(decode_both):
    """The one valid token is the 51st best, so the published approximation loses it."""
    logits = [np.linspace(1, 0, 60, dtype=np.float32)[None]]
    for token, lost in ((49, False), (50, True)):
        for tokens, scores in decode_both("prefix_verification, top 50", np.array([[token]]), logits, 1, 70):
            assert np.isneginf(scores[0, 0]) == lost
            assert lost or tokens[0, 0, 0] == token


def test_unconstrained_beam_search_equals_the_naive_one(decode_both):
    logits = random_logits(2, 5, 6, 3)
    everything = np.stack(np.meshgrid(*[np.arange(6)] * 3), -1).reshape(-1, 3)
    expected = naive_beam_search(everything, logits, 2, 5)
    check_against(expected, decode_both(None, None, logits, 2, 5))


class TestHashBitmap:
    @pytest.mark.parametrize(("log2_bits", "hashes"), [(10, 1), (12, 3), (24, 1), (24, 2)])
    def test_no_valid_prefix_is_refused(self, log2_bits, hashes):
        sids = np.random.default_rng(0).integers(100, size=(500, 5))
        built = baselines.hash_bitmap.build(sids, 100, log2_bits=log2_bits, hashes=hashes)
        method = baselines.hash_bitmap.to_torch(built)
        for prefix in sids[:50]:
            carry, scores = method.start(1), torch.zeros(1, 1)
            for level, token in enumerate(prefix):
                logits = torch.full((1, 100), -20.0)
                logits[0, int(token)] = 20.0
                scores, _, tokens, carry = method.select(logits, scores, carry, level, 1)
                assert tokens.item() == token
            assert scores.item() == pytest.approx(0, abs=1e-3)

    def test_false_positives_fall_with_size(self):
        sids = np.random.default_rng(0).integers(100, size=(2000, 5))
        for log2_bits, hashes, low, high in (
            (12, 1, 0.5, 1),
            (14, 2, 0.2, 0.6),
            (17, 1, 0.01, 0.12),
            (26, 1, 0, 1e-3),
        ):
            built = baselines.hash_bitmap.build(sids, 100, log2_bits, hashes)
            accepted, tried = built.false_positives(sids, 20_000)
            assert 10_000 < tried < 20_000
            assert low <= accepted / tried <= high
            assert accepted / tried == pytest.approx(built.fill**hashes, abs=0.05)

    def test_false_positives_are_counted_among_invalid_continuations(self):
        full = np.stack(np.meshgrid(np.arange(4), np.arange(4)), -1).reshape(-1, 2)
        built = baselines.hash_bitmap.build(full, 4, log2_bits=10)
        assert built.false_positives(full, 100) == (0, 0)  # nothing is invalid
        built = baselines.hash_bitmap.build(full[:3], 4, log2_bits=5)
        built.bitmap[:] = 0xFFFFFFFF
        accepted, tried = built.false_positives(full[:3], 1000)
        assert 0 < accepted == tried < 1000

    def test_sizes_out_of_range_are_refused(self):
        with pytest.raises(ValueError, match="log2_bits must be 5 to 31"):
            baselines.hash_bitmap.build(random_sids(0), 12, log2_bits=32)


class TestDenseCsr:
    @pytest.mark.parametrize(("count", "vocab_size", "length"), [(3000, 64, 8), (50_000, 256, 6), (100, 16, 2)])
    def test_its_size_follows_the_papers_bound(self, count, vocab_size, length):
        """Random rows come close to the bound; pointers and padding are all that can exceed it."""
        sids = np.random.default_rng(0).integers(vocab_size, size=(count, length))
        built = baselines.dense_csr.build(sids, vocab_size)
        bound = baselines.dense_csr.upper_bound(vocab_size, length, count)
        assert 0.85 * bound < built.nbytes < bound + 2000

    def test_its_size_is_that_of_its_nodes(self):
        sids = random_sids(3, count=300, length=6)
        built = baselines.dense_csr.build(sids, 12)
        nodes = [len({tuple(row[:depth]) for row in sids.tolist()}) for depth in range(1, 7)]
        assert built.dense_mask.nbytes == 12 * 2
        assert built.dense_states.nbytes == 4 * 12**2
        assert built.row_pointers.nbytes == 4 * (sum(nodes[1:-1]) + 2)
        assert built.pairs.nbytes == 8 * (sum(nodes[2:]) + max(built.branches[2:]))

    def test_branches_are_the_widest_rows(self):
        sids = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 2, 0], [1, 2, 1], [1, 2, 2], [3, 0, 0]])
        built = baselines.dense_csr.build(sids, 4)
        assert built.branches == (3, 2, 3)
        assert built.sort_seconds >= 0
        assert built.build_seconds >= 0

    def test_the_papers_figure_for_a_million(self):
        """90 MB for a million rows with V = 2,048 and L = 8 (appendix B.3), 1.46 GB for 20 million (B.2)."""
        assert baselines.dense_csr.upper_bound(2048, 8, 10**6) == pytest.approx(89.3e6, rel=1e-3)
        assert baselines.dense_csr.upper_bound(2048, 8, 20 * 10**6) == pytest.approx(1.457e9, rel=1e-3)


class TestHarness:
    def test_functions_run_in_turn_and_none_always_first(self):
        calls = []
        functions = {name: lambda name=name: calls.append(name) for name in "abc"}
        ticks = iter(range(100))
        times = harness.time_interleaved(functions, 3, warmup=1, clock=lambda: next(ticks))
        assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
        assert times == {"a": [1, 1, 1], "b": [1, 1, 1], "c": [1, 1, 1]}
        assert harness.ratios(times, "a")["a"] == (1, 1, 1)

    def test_the_spread_is_the_quartiles(self):
        assert harness.spread([5.0, 1.0, 2.0, 4.0, 3.0]) == (2, 3, 4)

    def test_peak_memory_is_what_a_call_adds(self):
        small = peak_memory(np.ones, 1000)
        large = peak_memory(np.ones, 8_000_000)
        assert small.bytes_above_start < 4e6
        assert 60e6 < large.bytes_above_start < 80e6
        assert large.seconds > 0

    def test_peak_memory_passes_errors_on(self):
        with pytest.raises(ZeroDivisionError):
            peak_memory(divmod, 1, 0)

    def test_records_are_json_with_the_machine(self, tmp_path):
        path = tmp_path / "results" / "record.json"
        harness.write_json(path, {"times": np.array([1.5, 2.0]), "count": np.int64(3)})
        record = json.loads(path.read_text())
        assert record["results"] == {"times": [1.5, 2.0], "count": 3}
        assert record["machine"]["cores"] >= 1
        assert record["machine"]["versions"]["torch"]
