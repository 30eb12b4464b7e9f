"""Speculation: the target's masked distribution whatever the draft is, chains and trees, with and without jumps.

Whatever is random has a fixed seed. A chi-square test fails a correct program with probability 1e-6.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime import numpy_ops
from maskwright.runtime.decode import sample_jumping, speculative, speculative_sample
from tests.marks import marked
from tests.oracles import readers
from tests.oracles.readers import Mixed, Toy
from tests.support.backends import backend, out
from tests.support.draws import PROMPTS, case, fits, rows_of, seeded, subject

DRAFTS = {"equal": (1.0, 0.0), "good": (0.8, 0.5), "bad": (-1.0, 0.3)}  # times the target, and noise
TREE = (3, 2, 1)


def run(
    kind: str, draft: str, branches: tuple[int, ...], *, name: str = "torch", draws: int = 2500, seed: int = 0,
    jumping: bool = False, sharp: float = 1.0, **options: Any,
) -> tuple[Toy, Toy, Any]:  # fmt: skip
    table, vocabulary, most = subject(kind)
    ops, into = backend(name)
    target = Toy(table.vocab_size, into, sharp=sharp)
    drafting = Mixed(target, *DRAFTS[draft])
    if jumping:
        options = {"dev": None, "table": table, "vocabulary": vocabulary, **options}
    prompts = [PROMPTS[i % 2] for i in range(draws)]
    options = {"max_tokens": most, "dev": None if jumping else ops.to_device(table, distances=True), **options}
    found = speculative_sample(
        target, drafting, random=seeded(name, seed), ops=ops, prompts=prompts, branches=branches, **options
    )
    return target, drafting, found


def check(target: Toy, kind: str, found: Any, **options: Any) -> None:
    """Compare with all sequences, listed with logits that are computed from each text as a whole."""
    table, vocabulary, most = subject(kind)
    options = {"max_tokens": most, **options}
    if options.get("jumping"):
        options["vocabulary"] = vocabulary
    for i, prompt in enumerate(PROMPTS):
        expected = readers.enumerate_sequences(target, table, prompt, **options)
        rows = rows_of(found)[i::2]
        fits(Counter(rows), expected)
        log_probs = [np.log(expected[row]) if row is not None else -np.inf for row in rows]
        np.testing.assert_allclose(out(found.log_probs)[i::2], log_probs, atol=5e-5)


# ------------------------------------------------------------------------------------------------- distributions


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["ragged", "lists", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sids", "endless"))]
)
@pytest.mark.parametrize(
    ("draft", "branches"),
    [
        ("equal", (1, 1)), ("good", (1,)), ("bad", (1,)), ("bad", (1, 1)), ("good", (1, 1, 1, 1)),
        ("bad", (1, 1, 1, 1)), ("equal", TREE), ("good", TREE), ("bad", TREE), ("bad", (2, 2)),
    ],
)  # fmt: skip
def test_sequences_have_the_targets_masked_distribution_and_carry_its_log_probabilities(kind, draft, branches):
    target, _, found = run(kind, draft, branches)
    assert out(found.valid).all()
    assert (found.accepted <= found.tried).all()
    if draft == "equal":
        assert (found.accepted == found.tried).mean() > 0.999  # but for rounding
    elif draft == "bad" and set(branches) == {1}:
        assert found.accepted.sum() < 0.8 * found.tried.sum()
    check(target, kind, found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind", "branches"),
    [
        ("numpy", "sids with eos", (2, 1)),
        pytest.param("jax", "sids", (1,), marks=pytest.mark.slow),  # each shape compiles
        pytest.param("jax", "sids with eos", (2, 2), marks=pytest.mark.slow),
    ],
)
def test_the_same_holds_in_numpy_and_jax(name, kind, branches):
    target, _, found = run(kind, "bad", branches, name=name, draws=1500)
    check(target, kind, found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "branches"),
    [
        ({"temperature": 0.4}, (1, 1, 1)), ({"temperature": 2.5}, TREE), ({"top_k": 2}, TREE), ({"top_k": 2}, (1, 1)),
        ({"top_p": 0.6}, (2, 2)), ({"min_p": 0.3, "temperature": 0.7}, (1, 1)),
        ({"top_k": 3, "top_p": 0.8, "min_p": 0.2, "temperature": 1.4}, (2, 1)),
    ],
)  # fmt: skip
def test_filters_are_those_of_the_target(options, branches):
    target, _, found = run("endless", "bad", branches, **options)
    check(target, "endless", found, **options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "draft", "branches"),
    marked(
        [("sids", "bad", (2, 2)), ("lists", "good", (1, 1)), ("record", "bad", (1, 1)), ("record", "good", TREE),
         ("tree", "bad", (2, 1))],
        slow=[("record", "good", TREE)],
    ),
)  # fmt: skip
def test_with_jumps_the_distribution_is_that_of_sampling_with_jumps(kind, draft, branches):
    target, _, found = run(kind, draft, branches, jumping=True, draws=1500)
    check(target, kind, found, jumping=True)
    assert found.forced.sum() > 0 or kind == "lists"


@pytest.mark.long
@pytest.mark.parametrize(
    ("jumping", "name", "branches"),
    marked(
        [
            (jumping, name, branches)
            for jumping in (True, False)
            for name, branches in [
                ("numpy", (1, 1)),
                ("numpy", TREE),
                ("torch", TREE),
                ("torch", (1, 1)),
                ("jax", (1,)),
            ]
        ],
        slow=[(False, "jax", (1,))],
    ),
)
def test_with_a_sorted_matrix_all_is_as_with_the_table_of_the_same_set(name, branches, jumping):
    rows = np.random.default_rng(3).integers(1, 8, (60, 4))
    rows[::3, 1:] = [2, 7, 7]  # so that some is forced
    ops, into = backend(name)
    count = 6 if name == "jax" else 40  # each shape compiles
    found = []
    for budgets in (True, False) if jumping else (True,):
        for one in (mw.compile_sids(rows, 40), mw.sort_sids(rows, 40)):
            target = Toy(40, into)
            run = speculative_sample(
                target, Mixed(target, *DRAFTS["bad"]),
                None if jumping else ops.to_device(one, distances=True), seeded(name),
                ops=ops, prompts=[PROMPTS[i % 2] for i in range(count)], max_tokens=4 if budgets else 5,
                branches=branches, **({"table": one, "distances": budgets} if jumping else {}),
            )  # fmt: skip
            found.append(run)
        by_table, by_matrix = found[-2:]
        assert rows_of(by_matrix) == rows_of(by_table)
        np.testing.assert_allclose(out(by_matrix.log_probs), out(by_table.log_probs), rtol=1e-5)
        for field in ("tried", "accepted", "forced", "calls", "draft_calls"):
            assert np.array_equal(getattr(by_matrix, field), getattr(by_table, field)), field
        assert by_matrix.forced.sum() > 0 or not jumping
        assert out(by_matrix.valid).all()
        assert mw.sort_sids(rows, 40).contains(out(by_matrix.tokens)[:, :4]).all()


@pytest.mark.long
def test_with_jumps_over_a_sorted_matrix_the_distribution_is_the_targets():
    c = case("sids")
    matrix = mw.sort_sids(sorted(c.rows), 40)
    target, _, found = run("sids", "bad", (2, 1), jumping=True, draws=1500, table=matrix)
    check(target, "sids", found, jumping=True)


@pytest.mark.long
@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("branches", [(1, 1), (2, 1)])
def test_constraints_of_different_vocabulary_sizes_each_give_their_own_rows_the_targets_distribution(name, branches):
    """A row never has a token beyond its own vocabulary, however wide the model and the others' are."""
    rng = np.random.default_rng(2)
    few, more = rng.integers(1, 5, (9, 3)), rng.integers(1, 11, (12, 4))
    more[::3, 2:] = [9, 4]  # so that some is forced
    tables = [mw.sort_sids(few, 5), mw.compile_sids(more, 11, eos=0), mw.sort_sids(more, 12)]
    ops, into = backend(name)
    target, count = Toy(14, into), 600
    for given in (tables, tables[::-1]):
        found = speculative_sample(
            target, Mixed(target, *DRAFTS["good"]), None, seeded(name), ops=ops, prompts=[PROMPTS[0]] * 3 * count,
            max_tokens=4, branches=branches, table=given * count,
        )  # fmt: skip
        assert out(found.valid).all()
        assert found.forced.any()
        for i, one in enumerate(given):
            expected = readers.enumerate_sequences(target, one, PROMPTS[0], 4, jumping=True)
            rows = rows_of(found)[i::3]
            fits(Counter(rows), expected)
            np.testing.assert_allclose(out(found.log_probs)[i::3], [np.log(expected[row]) for row in rows], atol=5e-5)


def _always(ops: Any, uniform: Any, p: Any, q: Any) -> Any:
    return (p[:, 0] > 0) | (q[:, 0] < 0)


MUTANTS: dict[str, Any] = {
    "_accepts always": ("accepts", _always),
    "_accepts by p alone": ("accepts", lambda ops, uniform, p, q: uniform < p[:, 0]),
    "_accepts by the greater": ("accepts", lambda ops, uniform, p, q: p[:, 0] >= q[:, 0]),
    "_rest is all of p": ("rest_of", lambda ops, p, q: p),
    "_rest keeps what the draft has": ("rest_of", lambda ops, p, q: ops.arrays.where(p > 0, p * (q < p) + 1e-9, 0.0)),
    "_without leaves the token in": ("without", lambda ops, x, token: x),
}


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("kind", ["endless", "sids"])
def test_each_wrong_rule_is_found_out(kind, mutant, monkeypatch):
    """Sampling with replacement is right as well, where q is left as it is: the last one is no mutant, but a check."""
    name, function = MUTANTS[mutant]
    monkeypatch.setattr(speculative, name, function)
    target, _, found = run(kind, "bad", (2, 2), draws=4000)
    if name == "without":
        return check(target, kind, found)
    with pytest.raises(AssertionError, match="statistic"):
        check(target, kind, found)
    return None


@pytest.mark.long
def test_children_drawn_without_replacement_but_tried_as_if_with_it_are_found_out(monkeypatch):
    """q must be normalised anew after each child: here the second is weighed by its first probability."""
    real = speculative.verify

    def verify(run: Any, layout: Any, drafted: Any, logits: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(speculative, "without", lambda ops, x, token: x)
            return real(run, layout, drafted, logits)

    monkeypatch.setattr(speculative, "verify", verify)
    target, _, found = run("sids", "bad", (3, 3), draws=8000)
    with pytest.raises(AssertionError, match="statistic"):
        check(target, "sids", found)


@pytest.mark.parametrize("what", [np.nan, -np.inf, np.inf])
def test_a_draft_model_that_breaks_down_costs_speed_and_nothing_else(what):
    class Broken(Mixed):
        def extend(self, *args: Any) -> Any:
            logits, cache = super().extend(*args)
            if len(self.seen) % 2:
                logits[::3] = what
            return logits, cache

    table, _, most = subject("endless")
    ops, into = backend("torch")
    target = Toy(table.vocab_size, into)
    found = speculative_sample(
        target, Broken(target, 0.8, 0.5), ops.to_device(table, distances=True), seeded("torch"), ops=ops,
        prompts=[PROMPTS[i % 2] for i in range(1500)], max_tokens=most, branches=(1, 1),
    )  # fmt: skip
    check(target, "endless", found)


def test_a_target_that_breaks_down_is_flagged_and_disturbs_no_other_row():
    class Broken(Toy):
        def extend(self, *args: Any) -> Any:
            logits, cache = super().extend(*args)
            if len(self.seen) == 2:
                logits[0] = np.nan
            return logits, cache

    table, _, most = subject("sids")
    ops, into = backend("torch")
    options = {"ops": ops, "prompts": [[0]] * 3, "max_tokens": most, "temperature": 0, "branches": (1,)}
    target, dev = Toy(40, into), ops.to_device(table)
    whole = speculative_sample(target, Mixed(target, -1.0, 0.0), dev, None, **options)
    found = speculative_sample(Broken(40, into), Mixed(target, -1.0, 0.0), dev, None, **options)
    assert found.valid.tolist() == [False, True, True]
    assert found.tokens[0].tolist() == [-1] * 3
    assert found.log_probs[0] == -np.inf
    assert (found.tokens[1:] == whole.tokens[1:]).all()


# -------------------------------------------------------------------------------------------------------- greedy


@pytest.mark.parametrize(
    ("kind", "draft", "branches"),
    list(itertools.product(["ragged", "sids", "endless", "lists"], ["good", "bad"], [(1, 1, 1), (2, 2), TREE])),
)
def test_at_temperature_0_the_text_is_the_targets_greedy_one(kind, draft, branches):
    table, _, most = subject(kind)
    target, _, found = run(kind, draft, branches, draws=4, temperature=0)
    plain = [readers.enumerate_sequences(target, table, prompt, most, temperature=0) for prompt in PROMPTS]
    assert rows_of(found) == [next(iter(plain[i % 2])) for i in range(4)]
    assert (out(found.log_probs) == 0).all()


@pytest.mark.parametrize("name", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
def test_greedy_texts_need_no_random_numbers_and_are_the_same_in_every_backend(name):
    table, _, most = subject("sids")
    found = []
    for ops, into in (backend(name), backend("torch")):
        target = Toy(table.vocab_size, into)
        options = {"ops": ops, "prompts": PROMPTS, "max_tokens": most, "temperature": 0}
        for branches in ((1,), (2, 1)):
            run = speculative_sample(
                target, Mixed(target, -1.0, 0.0), ops.to_device(table), None, branches=branches, **options
            )
            found.append(rows_of(run))
        greedy = [readers.enumerate_sequences(target, table, prompt, most, temperature=0) for prompt in PROMPTS]
        assert found[-1] == [next(iter(one)) for one in greedy]
        jumped = rows_of(sample_jumping(target, table, None, **options))
        assert jumped == found[-1]
    assert found[0] == found[1] == found[2] == found[3]


def test_with_jumps_greedy_texts_are_those_of_sampling_with_jumps():
    for kind, branches in itertools.product(["record", "tree", "sids"], [(1, 1), TREE]):
        table, vocabulary, most = subject(kind)
        target, _, found = run(kind, "bad", branches, draws=2, temperature=0, jumping=True)
        ops, _ = backend("torch")
        options = {"ops": ops, "prompts": PROMPTS, "max_tokens": most, "vocabulary": vocabulary, "temperature": 0}
        plain = sample_jumping(target, table, None, **options)
        assert rows_of(found) == rows_of(plain)
        assert found.forced.tolist() == plain.forced.tolist()
        assert found.calls <= plain.calls


# ---------------------------------------------------------------------------------------------- calls and caches


def test_a_draft_that_is_always_right_saves_as_many_calls_as_it_is_long():
    vocab = mw.Vocabulary.from_bytes([b"", b"a", b"b", b"c", b"d"], eos=0)
    table = mw.compile_regex("[abcd]{23}", vocab)
    ops, into = backend("torch")
    target = Toy(5, into)
    for k in (1, 2, 4):
        equal = Mixed(target, 1.0, 0.0)
        target.seen.clear()
        found = speculative_sample(
            target,
            equal,
            ops.to_device(table),
            seeded("torch"),
            ops=ops,
            prompts=[[0]],
            max_tokens=23,
            branches=(1,) * k,
        )
        assert found.lengths.tolist() == [23]
        assert found.calls == len(target.seen) == -(-24 // (k + 1))  # with EOS
        assert found.draft_calls == len(equal.seen)
        assert found.draft_calls <= k * found.calls
        assert found.accepted.tolist() == found.tried.tolist()
        assert target.kept == equal.kept == 0  # chains lie in order


def test_what_is_forced_costs_no_call_of_either_model():
    target, drafting, found = run("record", "equal", (1,) * 4, draws=1, jumping=True)
    length = int(found.lengths[0])
    drawn = length - int(found.forced[0])
    assert found.forced[0] > drawn
    assert found.calls == len(target.seen) == -(-drawn // 5)
    assert found.draft_calls == len(drafting.seen) <= drawn
    table, vocabulary, most = subject("record")
    replay, at = mw.Matcher(table, vocabulary, max_tokens=most), 0
    (row,) = rows_of(found)
    while at < length:  # the segmentation is the matcher's
        span = readers.forced(replay, vocabulary)
        assert row[at : at + len(span)] == tuple(span)
        at += len(span)
        if at < length:
            assert replay.advance(row[at])
            at += 1


@pytest.mark.parametrize("branches", [(1, 1, 1), TREE])
def test_the_host_reads_once_a_round_and_with_jumps_once_more_a_depth(branches, monkeypatch):
    ops, _ = backend("torch")
    real, count = ops.arrays.to_host, []
    monkeypatch.setattr(ops.arrays, "to_host", lambda array: count.append(array.numel()) or real(array))
    _, _, found = run("endless", "good", branches, draws=5)
    assert len(count) == found.calls
    assert max(count) == 5 * (2 * len(branches) + 1)
    count.clear()
    _, _, found = run("record", "good", branches, draws=5, jumping=True)
    assert len(count) == found.calls + found.draft_calls


def test_rows_advance_by_different_amounts_and_lengths_stay_where_rows_have_ended():
    target, _, found = run("endless", "good", (1, 1, 1), draws=40, max_tokens=9)
    assert len(set(out(found.lengths).tolist())) > 3
    lengths = np.array([lengths for _, lengths, _, _ in target.seen])
    steps = np.diff(lengths, axis=0)
    assert (steps >= 0).all()
    assert len(set(steps[0].tolist())) > 1
    assert any((step == 0).any() for step in steps)


# ------------------------------------------------------------------------------------------- budgets and the rest


@pytest.mark.parametrize("kind", ["endless", "lists", "tree"])
@pytest.mark.parametrize("branches", [(1, 1, 1), (2, 2)])
def test_budgets_complete_everything_in_time_and_without_them_the_rest_is_flagged(kind, branches):
    table, _, _ = subject(kind)
    ops, _ = backend("torch")
    most = table.to_table().min_length + 2
    options = {"jumping": True} if kind == "tree" else {}
    target, _, found = run(kind, "bad", branches, draws=1500, max_tokens=most, **options)
    assert out(found.valid).all()
    assert out(found.lengths).max() <= most
    check(target, kind, found, max_tokens=most, **options)
    if kind != "tree":
        target, _, found = run(kind, "bad", branches, draws=1500, max_tokens=most, dev=ops.to_device(table))
    else:
        target, _, found = run(kind, "bad", branches, draws=1500, max_tokens=most, distances=False, **options)
    assert 0 < out(found.valid).mean() < 1
    expected = readers.enumerate_sequences(
        target, table, PROMPTS[0], most, distances=False, vocabulary=subject(kind)[1], **options
    )
    fits(Counter(rows_of(found)[::2]), expected)
    assert np.isneginf(out(found.log_probs)[~out(found.valid)]).all()


def test_the_same_seed_gives_the_same_and_another_does_not():
    for jumping in (False, True):
        first, again, other = (run("endless", "good", TREE, draws=30, seed=s, jumping=jumping)[2] for s in (4, 4, 5))
        assert rows_of(first) == rows_of(again) != rows_of(other)


def test_without_a_draft_it_is_plain_sampling_and_lazy_tables_are_read_as_far_as_texts_come():
    target, drafting, found = run("endless", "good", (), draws=1500)
    check(target, "endless", found)
    assert found.draft_calls == len(drafting.seen) == 0
    _, vocabulary, _ = subject("record")
    lazy = mw.compile_json_schema({"enum": ["a", "bc", 17]}, vocabulary, whitespace="compact")
    assert isinstance(lazy, mw.LazyTable)
    ops, into = backend("torch")
    target = Toy(vocabulary.size, into)
    options = {"ops": ops, "prompts": [[1]] * 20, "max_tokens": 9, "table": [lazy] * 20, "vocabulary": vocabulary}
    found = speculative_sample(target, Mixed(target, 1.0, 1.0), None, seeded("torch"), distances=False, **options)
    assert not lazy.is_complete
    assert {vocabulary.decode(row) for row in rows_of(found)} == {b'"a"', b'"bc"', b"17"}


def test_what_cannot_be_done_is_refused():
    table, _, most = subject("sids")
    ops, into = backend("torch")
    target, dev = Toy(40, into), ops.to_device(table)

    def attempt(dev: Any = dev, **options: Any) -> Any:
        options = {"prompts": [[0]], "max_tokens": most, **options}
        return speculative_sample(target, target, dev, seeded("torch"), ops=ops, **options)

    ragged = ops.to_device(mw.compile_sequences([[1], [1, 2]], vocab_size=4))
    wide = mw.compile_sids([[1, 2, 3], [4, 5, 6]], 41)
    for options, error, message in (
        ({"prompts": [[0], []]}, ValueError, "one token at least"),
        ({"branches": (1, 0)}, ValueError, "branches"),
        ({"branches": (1.5,)}, ValueError, "branches"),
        ({"dev": None}, ValueError, "pass dev"),
        ({"table": table}, ValueError, "pass dev"),
        ({"dev": ragged}, ValueError, "no EOS"),
        ({"dev": object()}, TypeError, "ops.to_device"),
        ({"max_tokens": 2}, ValueError, "max_tokens=2"),
        ({"top_k": 0}, ValueError, "top_k"),
        ({"dev": None, "table": table, "max_tokens": 2}, ValueError, "max_tokens=2"),
        ({"dev": ops.to_device(wide)}, mw.errors.VocabularyMismatchError, "columns"),
        ({"dev": None, "table": wide}, mw.errors.VocabularyMismatchError, "columns"),
    ):
        with pytest.raises(error, match=message):
            attempt(**options)


def test_a_row_whose_padding_has_no_distribution_is_flagged_as_in_every_other_decoder():
    class Torn(Toy):
        def extend(self, *args):
            logits, cache = super().extend(*args)
            logits = np.array(logits)
            logits[0, ..., -1] = np.nan  # beyond the table's vocabulary
            return logits, cache

    table = mw.compile_sids([[1, 2], [3, 1]], vocab_size=5)
    for dev, of in ((numpy_ops.to_device(table), None), (None, table)):
        found = speculative_sample(
            Torn(6), Torn(6, seed=1), dev, np.random.default_rng(0), ops=numpy_ops, prompts=[[1], [2]], max_tokens=2,
            table=of,
        )  # fmt: skip
        assert found.valid.tolist() == [False, True]


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"branches": (True,)}, ValueError, "branches"), ({"branches": 3}, ValueError, "branches"),
    ({"max_tokens": 3.0}, TypeError, "max_tokens"), ({"distances": False}, ValueError, "go with table"),
])  # fmt: skip
def test_options_that_would_not_count_are_refused(options, error, message):
    dev = numpy_ops.to_device(mw.compile_sids([[1, 2], [3, 1]], vocab_size=5))
    with pytest.raises(error, match=message):
        speculative_sample(
            Toy(5), Toy(5), dev, np.random.default_rng(0), ops=numpy_ops, prompts=[[1]],
            **{"max_tokens": 2, **options},
        )  # fmt: skip
    found = speculative_sample(
        Toy(5), Toy(5), dev, np.random.default_rng(0), ops=numpy_ops, prompts=[[1]], max_tokens=2,
        branches=(np.int64(2),),
    )  # fmt: skip
    assert found.valid.all()
