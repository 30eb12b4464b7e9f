"""Jump-forward: what is forced is not asked for, what is drawn has the right distribution, the cache is right.

Whatever is random has a fixed seed. A chi-square test fails a correct program with probability 1e-6.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.runtime.decode import count_forced, sample_jumping, take_forced
from maskwright.runtime.decode.jump import rejoin
from tests.oracles import readers
from tests.oracles.readers import Toy
from tests.strategies import tokenizer_zoo
from tests.support.backends import backend, out
from tests.support.draws import PROMPTS, case, fits, rows_of, seeded, subject, words


def run(kind: str, name: str, draws: int, seed: int = 0, **options: Any) -> Any:
    table, vocabulary, most = subject(kind)
    ops, into = backend(name)
    model = Toy(table.vocab_size, into)
    prompts = [PROMPTS[i % 2] for i in range(draws)]
    options = {"max_tokens": most, "vocabulary": vocabulary, **options}
    return model, sample_jumping(model, table, seeded(name, seed), ops=ops, prompts=prompts, **options)


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5, "top_k": 2},
    {"top_p": 0.7, "min_p": 0.1},
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        *itertools.product(["torch"], ["ragged", "sids", "endless", "lists", "record", "tree"], FILTERS[:1]),
        *itertools.product(["torch"], ["sids", "record"], FILTERS[1:]),
        ("numpy", "record", {}),
        ("jax", "sids", {}),
    ],
)
def test_what_is_drawn_has_the_masked_distribution_and_the_rest_is_forced(name, kind, options):
    """Listed with logits computed from each text as a whole: so the cache is right at every token too."""
    table, vocabulary, most = subject(kind)
    model, found = run(kind, name, 3000, **options)
    for i, prompt in enumerate(PROMPTS):
        expected = readers.enumerate_sequences(
            model, table, prompt, most, jumping=True, vocabulary=vocabulary, **options
        )
        rows = rows_of(found)[i::2]
        assert None not in expected
        fits(Counter(rows), expected)
        # of each sequence there is one way only, so its probability is that of its draws
        np.testing.assert_allclose(out(found.log_probs)[i::2], [np.log(expected[row]) for row in rows], atol=2e-5)


@pytest.mark.parametrize("kind", ["ragged", "sids", "lists", "record", "tree"])
def test_forced_tokens_are_those_of_the_matcher_and_are_counted_and_all_are_members(kind):
    table, vocabulary, most = subject(kind)
    _, found = run(kind, "torch", 50)
    for row, free, end in zip(rows_of(found), found.forced, found.matchers, strict=True):
        assert row is not None
        assert mw.Matcher(table).accepts(row)
        assert end.is_accepting
        assert end.state == mw.Matcher(table, max_tokens=most).state or end.num_tokens == len(row)
        matcher, at, count = mw.Matcher(table, vocabulary, max_tokens=most), 0, 0
        while True:
            span = readers.forced(matcher, vocabulary)
            assert row[at : at + len(span)] == tuple(span)
            at, count = at + len(span), count + len(span)
            if at == len(row):
                break
            assert matcher.advance(row[at])
            at += 1
        assert count == free


@pytest.mark.parametrize("kind", ["sids", "record", "tree"])
def test_the_model_is_called_once_for_each_choice_and_reads_each_token_once(kind):
    model, found = run(kind, "torch", 1)
    (row,) = rows_of(found)
    drawn = len(row) - found.forced[0]
    assert found.forced[0] > 0
    assert drawn <= found.calls <= drawn + 1  # and once more, where ending is a choice
    assert found.calls == len(model.seen)
    assert found.fed <= 1 + len(row)
    read = [int(at[0, 0]) + 1 for _, _, at, _ in model.seen]
    assert [int(lengths[0]) for _, lengths, _, _ in model.seen] == np.cumsum([0, *read[:-1]]).tolist()
    text = [t for (tokens, _, _, _), n in zip(model.seen, read, strict=True) for t in tokens[0, :n].tolist()]
    assert text == [0, *row][: len(text)]
    assert found.fed == len(text)
    if kind == "record":
        assert found.calls <= 8
        assert len(row) > 20


def test_rows_that_have_ended_are_not_read_on():
    """What a finished row is fed lies beyond its length, and lengths stay."""
    model, found = run("endless", "torch", 40)
    assert len(set(out(found.lengths).tolist())) > 2
    last = {}
    for _, lengths, _, _ in model.seen:
        for row, n in enumerate(lengths.tolist()):
            assert n >= last.get(row, 0)
            last[row] = n
    assert len({n - len(PROMPTS[i % 2]) for i, n in last.items()}) > 1


@pytest.mark.parametrize("kind", ["endless", "lists", "tree"])
def test_budgets_complete_everything_in_time_and_without_them_the_rest_is_flagged(kind):
    table, vocabulary, _ = subject(kind)
    most = table.to_table().min_length + 2
    model, found = run(kind, "torch", 3000, max_tokens=most)
    assert out(found.valid).all()
    assert out(found.lengths).max() <= most
    model, found = run(kind, "torch", 3000, max_tokens=most, distances=False)
    expected = readers.enumerate_sequences(
        model, table, PROMPTS[0], most, jumping=True, vocabulary=vocabulary, distances=False
    )
    assert 0 < expected[None] < 1
    fits(Counter(rows_of(found)[::2]), expected)
    missing = ~out(found.valid)
    assert np.isneginf(out(found.log_probs)[missing]).all()
    assert (found.forced[missing] == 0).all()


def test_lazy_tables_are_read_as_far_as_the_text_comes_and_each_row_has_its_own():
    ops, into = backend("torch")
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["x", "yy"]}, "ok": {"const": True}},
        "required": ["name", "ok"],
    }
    lazy = mw.compile_json_schema({**schema, "additionalProperties": False}, words(), whitespace="compact")
    assert isinstance(lazy, mw.LazyTable)
    record = subject("record")[0]
    options = {"ops": ops, "prompts": [[1], [2, 3]], "max_tokens": 70, "vocabulary": words(), "distances": False}
    found = sample_jumping(Toy(words().size, into), [lazy, record], seeded("torch"), **options)
    assert not lazy.is_complete
    first, second = (words().decode(row) for row in rows_of(found))
    assert json.loads(first)["name"] in ("x", "yy")
    assert json.loads(second)["name"] in ("Ada", "Alan", "Bo")
    assert found.calls < 10


def test_where_nothing_is_a_choice_the_model_is_not_called():
    ops, into = backend("torch")
    table = mw.compile_sids([[4, 2, 1]], 8)
    model = Toy(8, into)
    found = sample_jumping(model, table, None, ops=ops, prompts=[[0], [1]], max_tokens=3)
    assert found.tokens.tolist() == [[4, 2, 1]] * 2
    assert found.log_probs.tolist() == [0, 0]
    assert (found.calls, found.fed, model.seen) == (0, 0, [])


def test_a_model_that_breaks_down_is_flagged_and_disturbs_no_other_row():
    class Broken(Toy):
        def extend(self, *args: Any) -> Any:
            logits, cache = super().extend(*args)
            if len(self.seen) == 2:
                logits[0] = np.nan
            return logits, cache

    table, _, most = subject("sids")
    ops, into = backend("torch")
    options = {"ops": ops, "prompts": [[0]] * 3, "max_tokens": most, "temperature": 0}
    whole = sample_jumping(Toy(40, into), table, None, **options)
    found = sample_jumping(Broken(40, into), table, None, **options)
    assert found.valid.tolist() == [False, True, True]
    assert found.tokens[0].tolist() == [-1] * 3
    assert (found.tokens[1:] == whole.tokens[1:]).all()


@pytest.mark.long
def test_the_same_seed_gives_the_same_and_numbers_may_be_given():
    for name in ("numpy", "torch"):
        first, again, other = (run("record", name, 30, seed)[1] for seed in (4, 4, 5))
        assert rows_of(first) == rows_of(again) != rows_of(other)
    uniforms = np.random.default_rng(0).random((12, 30, 2)).astype(np.float32)
    table, vocabulary, most = subject("record")
    found = []
    for name in ("numpy", "torch", "jax"):
        ops, into = backend(name)
        model = Toy(table.vocab_size, into)
        options = {"ops": ops, "prompts": [[0]] * 30, "max_tokens": most, "vocabulary": vocabulary}
        found.append(rows_of(sample_jumping(model, table, into(uniforms), **options)))
    assert found[0] == found[1] == found[2]


@pytest.mark.long
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("budget", [None, 0, 2])
def test_with_a_sorted_matrix_all_is_as_with_the_table_of_the_same_set(name, budget):
    rows = np.random.default_rng(3).integers(1, 8, (60, 4))
    rows[::3, 1:] = [2, 7, 7]  # so that some is forced
    table, matrix = mw.compile_sids(rows, 40), mw.sort_sids(rows, 40)
    ops, into = backend(name)
    uniforms = into(np.random.default_rng(1).random((6, 30, 2)).astype(np.float32))
    most = 4 + (budget or 0)
    options = {"ops": ops, "prompts": [PROMPTS[i % 2] for i in range(30)], "max_tokens": most, "top_p": 0.95}
    options["distances"] = budget is not None
    by_table, by_matrix, mixed = (
        sample_jumping(Toy(40, into), of, uniforms, **options) for of in (table, matrix, [matrix, table] * 15)
    )
    assert by_table.forced.sum() > 20
    assert len(set(rows_of(by_table))) > 10
    for other in (by_matrix, mixed):
        assert rows_of(other) == rows_of(by_table)
        assert out(other.log_probs).tolist() == out(by_table.log_probs).tolist()
        assert other.forced.tolist() == by_table.forced.tolist()
        assert (other.calls, other.fed) == (by_table.calls, by_table.fed)
    for row, end in zip(rows_of(by_matrix), by_matrix.matchers, strict=True):
        wanted = np.flatnonzero((rows == row).all(axis=1))
        assert matrix.input_rows(end.state)[0].tolist() == wanted.tolist()


def test_of_a_sorted_matrix_the_distribution_is_the_masked_one():
    c = case("sids")
    matrix = mw.sort_sids(sorted(c.rows), 40)
    ops, into = backend("torch")
    model, prompts = Toy(40, into), [PROMPTS[i % 2] for i in range(3000)]
    found = sample_jumping(model, matrix, seeded("torch"), ops=ops, prompts=prompts, max_tokens=3)
    for i, prompt in enumerate(PROMPTS):
        fits(Counter(rows_of(found)[i::2]), readers.enumerate_sequences(model, c.table, prompt, 3, jumping=True))


# ---------------------------------------------------------------------------------------------- the tokenizer's way


def test_without_retokenising_what_was_drawn_stays_and_with_it_the_tokenizer_decides():
    """The vocabulary writes "north" as one token; a model that draws "n" leaves "orth" to be forced."""
    vocab = words()
    table = mw.compile_choices(["north pole!", "south pole!"], vocab)
    ops, into = backend("torch")
    n, nor, north, th, pole, bang = (vocab.encode(t)[0] for t in ("n", "nor", "north", "th", " pole", "!"))

    class Drawing(Toy):
        def logits(self, last: Any, history: Any) -> np.ndarray:
            out = np.zeros((*np.asarray(last).shape, self.size), np.float32)
            out[..., self.chosen] = 50
            return out

        chosen = n

    def write(chosen: int, **options: Any) -> Any:
        model = Drawing(vocab.size, into)
        model.chosen = chosen
        return sample_jumping(
            model, table, None, ops=ops, prompts=[[0]], max_tokens=12, vocabulary=vocab, temperature=0, **options
        )

    apart, joined = write(n), write(n, retokenise=True)
    assert rows_of(joined) == [(north, pole, bang)] == [tuple(vocab.encode("north pole!"))]
    assert rows_of(apart)[0][0] == n
    assert vocab.decode(rows_of(apart)[0]) == b"north pole!"
    assert rows_of(apart)[0][1:] == tuple(vocab.encode("orth pole!"))
    assert rows_of(write(nor)) == [(nor, th, pole, bang)]
    assert rows_of(write(nor, retokenise=True)) == [(north, pole, bang)]
    assert rows_of(write(north, retokenise=True)) == rows_of(write(north))
    assert joined.calls == apart.calls == 1
    assert joined.matchers[0].is_accepting


@pytest.mark.long
@pytest.mark.parametrize("animal", ["byte_level_bpe", "tekken"])
def test_with_a_real_tokenizer_more_texts_are_as_it_writes_them_if_retokenised(animal):
    _, vocab = getattr(tokenizer_zoo, animal)()
    table = mw.compile_regex(r'\{"(firstName|firstBorn|lastName)": "[a-c]{1,3}", "occupation": null\}', vocab)
    ops, into = backend("torch")
    canonical = np.zeros(2, int)
    for seed in range(3):
        options = {"ops": ops, "prompts": [[1]] * 10, "max_tokens": 40, "vocabulary": vocab}
        plain = sample_jumping(Toy(vocab.size, into, seed, 0.3), table, seeded("torch", seed), **options)
        joined = sample_jumping(
            Toy(vocab.size, into, seed, 0.3), table, seeded("torch", seed), retokenise=True, **options
        )
        for row in rows_of(plain) + rows_of(joined):
            assert table.accepts([*row, vocab.eos])
        own = [[row == tuple(vocab.encode(vocab.decode(row))) for row in rows_of(found)] for found in (plain, joined)]
        canonical += np.sum(own, axis=1)
    assert canonical[0] < canonical[1]


def test_the_text_that_jumps_write_is_what_the_tokenizer_writes_where_the_model_draws_its_tokens():
    _, vocab = tokenizer_zoo.tekken()
    schema = {
        "type": "object",
        "properties": {"firstName": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["firstName", "age", "tags"],
        "additionalProperties": False,  # else other keys may come anywhere, and no key is forced
    }
    table = mw.compile_json_schema(schema, vocab, whitespace=(", ", ": "))
    text = json.dumps({"firstName": "Ada Lovelace", "age": 36, "tags": ["a", None]}).encode()
    matcher = mw.Matcher(table, vocab)
    counted = count_forced(matcher, text)
    assert matcher.is_finished
    assert counted.tokens == len(vocab.encode(text))
    assert counted.forced >= 9
    assert counted.calls == counted.tokens - counted.forced
    matcher.reset()
    assert vocab.decode(take_forced(matcher)) == b'{"firstName":'
    assert take_forced(matcher) == []


def test_texts_that_are_not_allowed_are_not_counted():
    _, vocab, _ = subject("record")
    table = subject("record")[0]
    for text, message in (
        (b'{"name": "Eve"', "not allowed"),
        (b"[", "must follow"),
        (b'{"name": "Ada"', "must follow"),
    ):
        with pytest.raises(ValueError, match=message):
            count_forced(mw.Matcher(table, vocab), text)
    with pytest.raises(ValueError, match="not complete"):
        count_forced(mw.Matcher(mw.compile_regex("(ab)+c?(d|e)", vocab), vocab), b"ab")


# ------------------------------------------------------------------------------------------------------ refusals


def test_what_cannot_be_done_is_refused():
    ops, into = backend("torch")
    table, vocabulary, most = subject("record")
    model = Toy(table.vocab_size, into)

    def attempt(table: Any = table, **options: Any) -> Any:
        options = {"prompts": [[0]], "max_tokens": most, "vocabulary": vocabulary, **options}
        return sample_jumping(model, table, seeded("torch"), ops=ops, **options)

    ragged = mw.compile_sequences([[1], [1, 2]], vocab_size=4)
    wide = mw.compile_sids([[1, 2, 3], [4, 5, 6]], table.vocab_size + 1)
    for options, error, message in (
        ({"prompts": [[0], []]}, ValueError, "one token at least"),
        ({"prompts": []}, ValueError, "one token at least"),
        ({"max_tokens": 3}, ValueError, "max_tokens=3"),
        ({"max_tokens": 0, "distances": False}, ValueError, "must be positive"),
        ({"vocabulary": None, "retokenise": True}, ValueError, "vocabulary="),
        ({"table": [table, table]}, ValueError, "2 tables and 1 prompts"),
        ({"table": ragged, "vocabulary": None}, ValueError, "no EOS"),
        ({"table": ragged}, ValueError, "no EOS"),
        ({"table": mw.sort_sids([[1, 2]], 4), "max_tokens": 1, "vocabulary": None}, ValueError, "max_tokens=1"),
        ({"table": mw.sort_sids([[1, 2]], 4)}, mw.errors.VocabularyMismatchError, "compiled for"),
        ({"table": [mw.sort_sids([[1, 2]], 4)] * 2, "vocabulary": None}, ValueError, "2 tables and 1 prompts"),
        ({"table": case("sids").table}, mw.errors.VocabularyMismatchError, "compiled for"),
        ({"table": object()}, TypeError, "table must be a TransitionTable or a SortedMatrix, .* not object"),
        ({"table": ops.to_device(table)}, TypeError, "not TorchTable: .* pass the constraint itself"),
        (
            {"table": ops.to_device(mw.sort_sids([[1, 2]], 4))},
            TypeError,
            "not DeviceMatrix: .* pass the constraint itself",
        ),
        ({"table": [ops.to_device(mw.sort_sids([[1, 2]], 4))]}, TypeError, "not DeviceMatrix"),
        ({"temperature": -1}, ValueError, "temperature"),
        ({"table": wide, "vocabulary": None}, mw.errors.VocabularyMismatchError, "columns"),
    ):
        with pytest.raises(error, match=message):
            attempt(**options)


@pytest.mark.parametrize(("pattern", "drawn", "segments", "expected"), [
    ("north!(a|b)", "nor", {"north!": ["n", "orth!"]}, None),  # less than was drawn would be left
    ("north st(a|b)", "n", {"north st": ["north", " st"]}, ["north"]),  # what follows may be joined with the last
    ("north st", "n", {"north st": ["north", " st"]}, ["north", " st"]),
    ("north(a|b)", "n", {"north": ["north"]}, None),
])  # fmt: skip
def test_a_token_is_written_anew_only_as_far_as_nothing_can_change_it_again(pattern, drawn, segments, expected):
    words = ["nor", "orth!", "north", " st"]
    tokens = [b"", *(bytes([b]) for b in range(256)), *(word.encode() for word in words)]
    number = {token.decode("latin-1"): i for i, token in enumerate(tokens)}

    def encode(text):
        return [number[part] for part in segments.get(text, text)]

    vocab = mw.Vocabulary.from_bytes(tokens, eos=0, encode=encode)
    matcher = mw.Matcher(mw.compile_regex(pattern, vocab), vocab)
    assert matcher.advance(number[drawn])
    found = rejoin(matcher, vocab)
    assert found == (None if expected is None else [number[part] for part in expected])
    assert list(matcher.tokens) == [number[part] for part in expected or [drawn]]
