"""Generation with transformers: what is written always matches, and states are those of a walk from the start."""

from __future__ import annotations

import itertools
import math
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.table.sorted_matrix import SortedMatrix
from tests.strategies import tokenizer_zoo

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import BartConfig, BartForConditionalGeneration, LlamaConfig, LlamaForCausalLM  # noqa: E402

from maskwright.runtime.integrations import batch, processor  # noqa: E402
from maskwright.runtime.integrations.generate import constrained_generate  # noqa: E402
from maskwright.runtime.integrations.placed import place  # noqa: E402
from maskwright.runtime.integrations.processor import ConstraintLogitsProcessor  # noqa: E402
from maskwright.runtime.integrations.tree_beams import tree_beam_search  # noqa: E402

PATTERN = r"(ab|cd|\d{2,4}[xyz]){1,5}"
EOS = 0
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 0.7, "top_k": 30, "top_p": 0.9},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "beams, long first": {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 2.0},
    "beams, stopping early": {"num_beams": 3, "early_stopping": True, "length_penalty": 0.0},
    "beams, never stopping early": {"num_beams": 4, "early_stopping": "never", "length_penalty": 1.0},
    "sampled beams": {"num_beams": 4, "do_sample": True, "num_return_sequences": 2},
}


@cache
def llama(size: int, eos: int | tuple[int, ...] = EOS, seed: int = 0) -> Any:
    ends = list(eos) if isinstance(eos, tuple) else eos
    config = LlamaConfig(
        vocab_size=size, num_key_value_heads=2, eos_token_id=ends, pad_token_id=EOS, bos_token_id=None,
        initializer_range=0.5, **SHAPE,
    )  # fmt: skip
    with torch.random.fork_rng():  # whoever asks first may have seeded the generator for something else
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


@cache
def bart(size: int) -> Any:
    config = BartConfig(
        vocab_size=size, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.5,
        bos_token_id=1, eos_token_id=EOS, pad_token_id=3, decoder_start_token_id=5, forced_eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BartForConditionalGeneration(config).eval()


@cache
def vocabulary() -> mw.Vocabulary:
    return tokenizer_zoo.byte_level_bpe()[1]


@cache
def table(pattern: str = PATTERN) -> mw.TransitionTable:
    return mw.compile_regex(pattern, vocabulary())


@cache
def letters() -> mw.Vocabulary:
    """A vocabulary with few ways to write a text."""
    return mw.Vocabulary.from_bytes(
        [b"", b"", b"", b"a", b"b", b"c", b"ab", b"bc", b"cab", b"d"], eos=EOS, special=[0, 1, 2]
    )


def prompts(rows: int = 2, length: int = 4) -> dict[str, Any]:
    """Inputs of which all but the first row are padded on the left."""
    ids = torch.arange(10, 10 + rows * length).view(rows, length) % 200
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        ids[row, :row] = EOS
        mask[row, :row] = 0
    return {"input_ids": ids, "attention_mask": mask}


def written(out: Any, prompt: int, ends: tuple[int, ...] = (EOS,)) -> list[tuple[list[int], bool]]:
    """Return what each row wrote before its first end, and whether it wrote one."""
    rows = []
    for row in out[:, prompt:].tolist():
        at = next((i for i, token in enumerate(row) if token in ends), None)
        rows.append((row[:at], at is not None))
    return rows


def matches(vocab: mw.Vocabulary, tokens: list[int], pattern: str = PATTERN) -> bool:
    return re.fullmatch(pattern, vocab.decode(tokens).decode()) is not None


def generate(model: Any, inputs: dict[str, Any], seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    options = {"max_new_tokens": 13, **options}
    return model.generate(**inputs, **options)


class Checked(transformers.LogitsProcessor):
    """A processor whose every answer is compared with a walk of each row from the start of its text."""

    def __init__(self, inner: Any, tables: list[Any], prompt: int, max_tokens: int | None = None, sinks: bool = True):
        self.inner, self.tables, self.prompt, self.max_tokens = inner, tables, prompt, max_tokens
        self.sinks = sinks  # whether what follows after an end or no match matters
        self.calls = self.sunk = 0

    def __call__(self, input_ids, scores):
        out = self.inner(input_ids, scores)
        assert torch.isfinite(out.softmax(dim=-1)).all()
        each = len(input_ids) // len(self.tables)
        for i, row in enumerate(input_ids[:, self.prompt :].tolist()):
            of_row = self.tables[i // each]
            if of_row is None:
                assert torch.equal(out[i], scores[i])
                continue
            expected = allowed(of_row, row, self.max_tokens)
            self.sunk += expected == {of_row.eos}
            if expected == {of_row.eos} and not self.sinks:
                continue
            assert set(torch.isfinite(out[i]).nonzero().view(-1).tolist()) == expected
            kept = sorted(expected)
            assert torch.equal(out[i, kept], scores[i, kept])
        self.calls += 1
        return out


def allowed(of_row: mw.TransitionTable, tokens: list[int], max_tokens: int | None) -> set[int]:
    """Return what may follow these tokens: EOS alone after EOS, and after what is no match."""
    matcher = mw.Matcher(of_row, max_tokens=max_tokens)
    for token in tokens:
        ended = token == of_row.eos and matcher.is_accepting
        if ended or token >= of_row.vocab_size or not matcher.advance(token):
            return {of_row.eos}
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


# ------------------------------------------------------------------------------------- what is written matches


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["processor", "custom_generate"])
def test_every_text_is_a_complete_match_with_left_padding(mode, how):
    vocab, options = vocabulary(), MODES[mode]
    model = llama(vocab.size + 5)  # logits wider than the vocabulary
    if how == "processor":
        options = {**options, "logits_processor": [ConstraintLogitsProcessor(table(), max_tokens=12)]}
    elif mode == "sampled beams":
        pytest.skip("refused, which another test shows")
    else:
        options = {**options, "custom_generate": constrained_generate, "tables": table()}
    for seed in range(3):
        found = written(generate(model, prompts(3), seed, **options), 4)
        assert len(found) == 3 * options.get("num_return_sequences", 1)
        for tokens, _ in found:
            assert matches(vocab, tokens), vocab.decode(tokens)
            assert len(tokens) <= 13


@pytest.mark.parametrize("mode", ["greedy", "sampling", "beams"])
def test_texts_of_a_large_sentencepiece_vocabulary_match(mode):
    _, vocab = tokenizer_zoo.mistral_sentencepiece()
    pattern = r"\{\"name\": \"[a-z]{1,8}\", \"age\": [1-9]\d?\}"
    constraint = ConstraintLogitsProcessor(mw.compile_regex(pattern, vocab), max_tokens=30)
    model = llama(vocab.size, vocab.eos)
    out = generate(model, prompts(), logits_processor=[constraint], max_new_tokens=31, **MODES[mode])
    for tokens, ended in written(out, 4, (vocab.eos,)):
        assert ended
        assert matches(vocab, tokens, pattern)


@pytest.mark.parametrize("mode", MODES)
def test_without_a_budget_what_ends_is_a_match(mode):
    vocab = vocabulary()
    constraint = ConstraintLogitsProcessor(table(PATTERN + "[a-z]*"))
    found = written(generate(llama(vocab.size), prompts(), logits_processor=[constraint], **MODES[mode]), 4)
    assert all(matches(vocab, tokens, PATTERN + "[a-z]*") for tokens, ended in found if ended)
    assert all(table(PATTERN + "[a-z]*").to_table().walk([tokens])[0] != table().to_table().dead for tokens, _ in found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["processor", "custom_generate"])
def test_each_element_of_a_batch_has_its_own_constraint(mode, how):
    vocab, options = vocabulary(), MODES[mode]
    patterns = [PATTERN, r"[a-f]{3}-?\d", None, PATTERN]
    tables = [None if pattern is None else table(pattern) for pattern in patterns]
    limits = [5, 6, None, 12]
    if how == "processor":
        options = {**options, "logits_processor": [ConstraintLogitsProcessor(tables, max_tokens=limits)]}
    elif mode == "sampled beams":
        pytest.skip("refused, which another test shows")
    else:
        options = {**options, "custom_generate": constrained_generate, "tables": tables, "max_tokens": limits}
    found = written(generate(llama(vocab.size), prompts(4), **options), 4)
    each = len(found) // 4
    for i, (tokens, _) in enumerate(found):
        if patterns[i // each] is not None:
            assert matches(vocab, tokens, patterns[i // each])
            assert len(tokens) <= limits[i // each]
    free = generate(llama(vocab.size), prompts(4), **MODES["greedy"])
    if mode == "greedy":
        assert written(free, 4)[2] == found[2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["processor", "custom_generate"])
def test_encoder_decoder_models_write_matches(mode, how):
    vocab, options = vocabulary(), MODES[mode]
    if how == "processor":
        options = {**options, "logits_processor": [ConstraintLogitsProcessor([table(), table()], max_tokens=12)]}
    elif mode == "sampled beams":
        pytest.skip("refused, which another test shows")
    else:
        options = {**options, "custom_generate": constrained_generate, "tables": table()}
    out = generate(bart(vocab.size), prompts(), **options)
    assert (out[:, 0] == 5).all()
    assert all(matches(vocab, [t for t in tokens if t != 3]) for tokens, _ in written(out, 1))


# ---------------------------------------------------------------------------------------------- sorted matrices


@cache
def sids() -> tuple[np.ndarray, mw.TransitionTable, SortedMatrix]:
    """Sequences of which some are forced after a token or two, as a table and as a matrix."""
    rows = np.random.default_rng(0).integers(1, 12, (80, 4))
    rows[::4, 1:] = [5, 5, 7]
    return rows, mw.compile_sids(rows, 20), mw.sort_sids(rows, 20)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["processor", "custom_generate"])
@pytest.mark.parametrize("limit", [None, 6])
def test_with_a_sorted_matrix_all_is_as_with_the_table_of_the_same_set(mode, how, limit):
    if how == "custom_generate" and mode == "sampled beams":
        pytest.skip("refused, which another test shows")
    rows, of_table, matrix = sids()
    model, found = llama(25), []
    inputs = {"input_ids": torch.arange(1, 13).view(3, 4)}
    for one in (of_table, matrix):
        if how == "processor":
            processor = ConstraintLogitsProcessor(one, max_tokens=limit, eos_token_ids=EOS)
            options = {"logits_processor": [processor]}
        else:
            options = {"custom_generate": constrained_generate, "tables": one, "max_tokens": limit}
        found.append([generate(model, inputs, seed, **options, **MODES[mode], max_new_tokens=5) for seed in range(2)])
    for by_table, by_matrix in zip(*found, strict=True):
        assert torch.equal(by_table, by_matrix)
        members = set(map(tuple, rows.tolist()))
        for tokens, ended in written(by_matrix, 4):
            assert ended is (how == "processor")  # the other way they are complete as they stand
            assert tuple(tokens) in members


@pytest.mark.parametrize("mode", MODES)
def test_tables_of_all_kinds_and_sorted_matrices_share_a_batch(mode):
    """A nested table, a matrix, none, a graph, the matrix again, and a table nested less deep: each by its own."""
    vocab = vocabulary()
    wide = mw.sort_sids(sids()[0], vocab.size)
    lists = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"enum": [1, 22]}]}}
    nested, shallow = (mw.compile_json_schema(lists, vocab, depth=n, whitespace="compact") for n in (3, 1))
    assert nested.to_table().slots > shallow.to_table().slots > 0
    limits = [9, 4, None, 12, 7, 8]
    options = {**MODES[mode], "max_new_tokens": 13}
    inputs = {"input_ids": torch.arange(10, 34).view(6, 4)}
    tables = [nested, wide, None, table(), wide, shallow]
    inner = ConstraintLogitsProcessor(tables, max_tokens=limits, eos_token_ids=EOS)
    out = generate(llama(vocab.size), inputs, logits_processor=[inner], **options)
    each = len(out) // 6
    of_table = mw.compile_sids(sids()[0], vocab.size)
    twin = [of_table if one is wide else one for one in tables]
    inner = ConstraintLogitsProcessor(twin, max_tokens=limits, eos_token_ids=EOS)
    assert torch.equal(generate(llama(vocab.size), inputs, logits_processor=[inner], **options), out)
    members = set(map(tuple, sids()[0].tolist()))
    for i, (tokens, _) in enumerate(written(out, 4)):
        one = tables[i // each]
        if one is wide:
            assert tuple(tokens) in members
        elif one is not None:
            assert mw.Matcher(one, max_tokens=limits[i // each]).accepts(tokens)


def test_after_its_end_a_row_of_a_sorted_matrix_gets_nothing_but_ends_and_a_stray_row_too():
    _, _, matrix = sids()
    wanted = tuple(sids()[0][0].tolist())
    processor = ConstraintLogitsProcessor(matrix, eos_token_ids=[EOS, 22])
    scores = torch.randn(3, 25)
    stray = [19, *wanted[1:], EOS, EOS, EOS]
    early = [*wanted[:2], EOS, EOS, EOS, EOS, EOS]
    text = torch.tensor([[*wanted, 22, EOS, 22], stray, early])
    for t in range(8):
        out = processor(torch.cat([torch.full((3, 2), 9), text[:, :t]], dim=1), scores)
        finite = [set(row.isfinite().nonzero().view(-1).tolist()) for row in out]
        kept = torch.isfinite(out)
        assert torch.equal(out[kept], scores[kept])
        following = {row[t] for row in sids()[0].tolist() if tuple(row[:t]) == wanted[:t]} if t < 4 else set()
        assert finite[0] == (following if t < 4 else {EOS, 22})
        assert finite[1] == (following if t == 0 else {EOS, 22})
        assert finite[2] == (following if t <= 2 else {EOS, 22})


@pytest.mark.parametrize("end", [4, [EOS, 2]])
def test_an_end_that_stands_inside_sequences_is_refused_by_name(end):
    rows = [[1, 2, 3], [1, 4, 3], [4, 2, 2]]
    inside = end if isinstance(end, int) else 2
    message = f"token {inside} ends generation and stands in sequences of table 1, .* constrained_generate"
    dense = np.stack(np.meshgrid(*[np.arange(1, 25)] * 3), -1).reshape(-1, 3)  # all that masks and forced tails hold
    for one in (
        mw.compile_sids(rows, 25), mw.sort_sids(rows, 25), mw.compile_sids(rows, 25, eos=22), mw.sort_sids(dense, 25),
        mw.compile_sids(dense, 25, eos=EOS), mw.compile_sequences([[1, 5], [3, 5, 4, 6, 2]], vocab_size=25),
    ):  # fmt: skip
        for beside in (mw.sort_sids([[1, 5, 3]], 25), None):
            with pytest.raises(mw.errors.ConstraintError, match=message):
                ConstraintLogitsProcessor([beside, one], eos_token_ids=end)
        if one.eos is not None:
            of_same_end = mw.compile_sids([[1, 5, 3]], 25, eos=one.eos)
            for options in ({}, {"num_beams": 3}, {"do_sample": True}):
                with pytest.raises(mw.errors.ConstraintError, match=message):
                    generate(
                        llama(25), prompts(2), custom_generate=constrained_generate, tables=[of_same_end, one],
                        eos_token_id=end, **options,
                    )  # fmt: skip
    for one in (mw.compile_sids(rows, 25), mw.sort_sids(rows, 25)):  # without EOS none is written, whatever it is
        out = generate(llama(25), prompts(2), custom_generate=constrained_generate, tables=one, eos_token_id=end)
        assert {tuple(row) for row in out[:, 4:].tolist()} <= set(map(tuple, rows))
        ConstraintLogitsProcessor(one, eos_token_ids=[7, 22, 90])


def test_what_a_table_holds_is_found_out_once(monkeypatch):
    found = []
    tokens_of = batch.tokens_of
    monkeypatch.setattr(batch, "tokens_of", lambda one: found.append(one) or tokens_of(one))
    for one in (mw.compile_sids([[1, 2, 3]], 9), mw.sort_sids([[1, 2, 3]], 9), mw.compile_regex("ab", letters())):
        for end in (7, 8, 8):
            ConstraintLogitsProcessor(one, eos_token_ids=end)(torch.zeros(1, 2).long(), torch.zeros(1, 12))
        assert found.pop() is one
        assert not found


def test_the_tokens_of_a_table_are_those_of_its_sequences_and_none_is_missed():
    for pattern in ("ab*", "[ab]{0,3}(c|d)", "(a|bc)(a|d{2})"):
        one = mw.compile_regex(pattern, letters())
        expected = {token for tokens in sequences_of(one, 6) for token in tokens}
        assert set(np.flatnonzero(batch.tokens_of(one)).tolist()) == expected
    lists = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "string"}, {"enum": [1, 22]}]}}
    for one in (table(), mw.compile_json_schema(lists, vocabulary(), whitespace="compact")):
        rng, held = np.random.default_rng(0), batch.tokens_of(one)
        matcher = mw.Matcher(one)
        for _ in range(300):
            following = [token for token in allowed_by(matcher) if token != EOS]
            assert held[following].all()
            if not following or rng.random() < 0.05:
                matcher.reset()
            else:
                assert matcher.advance(int(rng.choice(following)))
    assert not batch.tokens_of(table("[a-c]{2}"))[vocabulary().tokens.index(b"d")]


def allowed_by(matcher: mw.Matcher) -> list[int]:
    """Return the tokens that a matcher allows."""
    return np.flatnonzero(np.unpackbits(matcher.mask().astype("<u4").view(np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize("mode", ["greedy", "sampling", "beams"])
@pytest.mark.parametrize("how", ["processor", "custom_generate"])
def test_a_text_that_only_an_end_could_continue_is_an_error_and_not_some_token(mode, how):
    """Token 9 alone spells "d"; "b" is token 4, and "ab" is also one of its own."""
    model, inputs = llama(letters().size), small_inputs()

    def found(pattern: str, end: int) -> Any:
        one = mw.compile_regex(pattern, letters())
        options = {"custom_generate": constrained_generate, "tables": one, "eos_token_ids": [EOS, end]}
        if how == "processor":
            options = {"logits_processor": [ConstraintLogitsProcessor(one, eos_token_ids=[EOS, end])]}
        return generate(model, inputs, **options, **MODES[mode])

    message = r"a text of table 0 can only go on with token 9, which ends generation|leave no match: .* eos_token_ids"
    with pytest.raises(ValueError, match=message):
        found("ad|d", 9)
    if how == "custom_generate" and mode == "beams":  # the beams that come to nothing make room for others
        assert {tuple(tokens) for tokens, ended in written(found("ab", 4)[::2], 4) if ended} == {(6,)}


def test_ends_inside_texts_of_a_grammar_without_a_finite_table_are_seen_when_they_are_met():
    """It is not worked out to find them; of one that has a table they are known once it is on a device."""
    endless = 'start: "a" start "b" | "b" start "a" | start start | "cd"'
    for rules, finite in ((endless, False), ('start: "a"* ("cd" | "b")', True)):
        one = mw.compile_grammar(rules, letters())
        processor = ConstraintLogitsProcessor(one, eos_token_ids=[EOS, 9])  # which is "d"
        assert isinstance(one, mw.LazyTable)
        assert not one.is_complete
        scores = torch.zeros(2, letters().size)
        at_start = processor(torch.tensor([[7, 7], [7, 7]]), scores)[1].isfinite().nonzero().view(-1)
        assert at_start.tolist() == allowed_by(mw.Matcher(one))
        assert torch.isfinite(processor(torch.tensor([[7, 7, 3], [7, 7, 3]]), scores)).any(dim=1).all()
        assert one.is_complete is finite
        with pytest.raises(mw.errors.ConstraintError, match="a text of table 0 can only go on with token 9"):
            processor(torch.tensor([[7, 7, 3, 3], [7, 7, 3, 5]]), scores)


def test_ends_inside_texts_of_several_tables_are_read_at_once(monkeypatch):
    rules = [
        'start: "a" start "b" | "b" start "a" | start start | "cd"',
        'start: "b" start "b" | start start | "cd"',
    ]
    tables = [mw.compile_grammar(each, letters()) for each in rules]
    rows = batch.BatchConstraint(tables, None, [EOS, 9]).rows(2, torch.device("cpu"))
    reads: list[int] = []
    read = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: reads.append(x.numel()) or read(x))
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda x: pytest.fail("a value is read by itself"))
    rows.mask(torch.zeros(2, letters().size), rows.start(), 0)
    assert reads == [2]  # one read, of a flag for each table


def test_explicit_ends_are_not_left_aside_without_a_word():
    matrix, of_table = mw.sort_sids([[1, 2, 3]], 25), mw.compile_sids([[1, 2, 3]], 25)
    inputs, options = prompts(2), {"custom_generate": constrained_generate}
    for beams, tables in itertools.product((1, 2), (matrix, of_table, [matrix, of_table])):
        with pytest.raises(ValueError, match="eos_token_ids=22 would not be written: no table here has an EOS"):
            generate(llama(25), inputs, tables=tables, eos_token_ids=22, num_beams=beams, **options)
        reason = "end with EOS, here token 22, and the tables of this call have none, as a sorted matrix never has"
        both = [tables, None] if tables in (matrix, of_table) else [matrix, None]
        with pytest.raises(ValueError, match=reason):
            generate(llama(25), inputs, tables=both, eos_token_ids=22, eos_token_id=22, num_beams=beams, **options)


@pytest.mark.parametrize("searched", ["generate", "shared cache"])
def test_beams_of_tables_and_matrices_in_one_batch_are_those_of_exhaustive_search(searched):
    """In any order, with prompts padded or not: each element starts under its own."""
    rng = np.random.default_rng(3)
    model = llama(12).double()
    sets = [np.unique(rng.integers(3, 12, (6, 3)), axis=0) for _ in range(2)]
    makers = (mw.compile_sids, mw.sort_sids)
    inputs = small_inputs()
    for makes in itertools.product(makers, makers):
        tables = [make(rows, 12) for make, rows in zip(makes, sets, strict=True)]
        options = {
            "custom_generate": constrained_generate, "tables": tables, "num_return_sequences": 4,
            "max_new_tokens": 3, "length_penalty": 0.0,
        }  # fmt: skip
        if searched == "generate":
            out = generate(model, inputs, num_beams=6, return_dict_in_generate=True, **options)
            scores = out.sequences_scores
        else:
            out = tree_beam_search(model, **inputs, beams=6, collect=2, **options)
            scores = out.scores
        for i in range(2):
            with torch.no_grad():
                expected = brute_force(model, inputs, i, list(map(tuple, sets[i].tolist())), 0.0, ())[:4]
            assert [tuple(row) for row in out.sequences[4 * i : 4 * i + 4, 4:].tolist()] == [s for _, s in expected]
            np.testing.assert_allclose(scores[4 * i : 4 * i + 4], [score for score, _ in expected], rtol=1e-9)
    model.float()


def test_without_eos_what_a_sorted_matrix_allows_ends_by_itself_and_is_all_of_it():
    rows, of_table, matrix = sids()
    distinct = {tuple(row) for row in rows.tolist()}
    model = llama(25)
    inputs = {"input_ids": torch.tensor([[3, 9, 14, 2]])}
    options = {"custom_generate": constrained_generate, "eos_token_id": None, "max_new_tokens": 6, "num_beams": 90}
    options |= {"num_return_sequences": 90, "return_dict_in_generate": True, "pad_token_id": 0}
    by_table, by_matrix = (generate(model, inputs, tables=one, **options) for one in (of_table, matrix))
    assert torch.equal(by_table.sequences, by_matrix.sequences)
    assert torch.equal(by_table.sequences_scores, by_matrix.sequences_scores)
    kept = by_matrix.sequences[by_matrix.sequences_scores > -math.inf][:, 4:]
    assert kept.shape == (len(distinct), 4)
    assert set(map(tuple, kept.tolist())) == distinct
    single = {key: value for key, value in options.items() if "num" not in key} | {"do_sample": True}
    drawn = generate(model, {"input_ids": inputs["input_ids"].repeat(30, 1)}, tables=matrix, **single).sequences[:, 4:]
    assert drawn.shape == (30, 4)
    assert matrix.contains(drawn.numpy()).all()


def test_assisted_decoding_under_a_sorted_matrix_goes_forth_and_back():
    _, of_table, matrix = sids()
    texts = []
    for one in (of_table, matrix):
        processor = ConstraintLogitsProcessor(one, eos_token_ids=EOS)
        inputs = {"input_ids": torch.tensor([[5, 5, 7, 3, 5, 5, 7, 3]]), "attention_mask": torch.ones(1, 8)}
        options = {"prompt_lookup_num_tokens": 3, "max_new_tokens": 5, "logits_processor": [processor]}
        texts.append(generate(llama(25), inputs, **options).tolist())
    assert texts[0] == texts[1]
    assert matrix.contains([texts[1][0][8:12]]).all()


def test_what_is_refused_of_a_table_without_eos_is_refused_of_a_sorted_matrix():
    _, *both = sids()
    attempts = (
        lambda one: ConstraintLogitsProcessor(one, max_tokens=3, eos_token_ids=EOS),
        lambda one: ConstraintLogitsProcessor([one, table()]),
        lambda one: ConstraintLogitsProcessor(one, eos_token_ids=EOS)(torch.zeros(2, 3).long(), torch.randn(2, 19)),
        lambda one: ConstraintLogitsProcessor([one] * 2, eos_token_ids=EOS)(torch.zeros(3, 3).long(), torch.ones(3, 9)),
        lambda one: generate(llama(25), prompts(1), custom_generate=constrained_generate, tables=one, max_new_tokens=3),
        lambda one: generate(
            llama(vocabulary().size), prompts(2), custom_generate=constrained_generate, tables=[one, table()]
        ),
    )
    for attempt in attempts:
        said = []
        for one in both:
            with pytest.raises(ValueError, match=r"\w") as error:
                attempt(one)
            said.append((error.type, str(error.value)))
        assert said[0] == said[1]


# ----------------------------------------------------------------------------------------- states, call by call


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_tokens", [None, 7])
@pytest.mark.parametrize("one_table", [True, False])
def test_every_call_answers_as_a_walk_from_the_start_does(mode, max_tokens, one_table):
    tables = [table()] if one_table else [table(), None, table(r"[a-f]+\d")]
    inner = ConstraintLogitsProcessor(table() if one_table else tables, max_tokens=max_tokens)
    checked = Checked(inner, tables, 4, max_tokens)
    for seed in range(2):
        generate(llama(vocabulary().size), prompts(3), seed, logits_processor=[checked], **MODES[mode])
    assert checked.calls > 8


@pytest.mark.parametrize("mode", [mode for mode in MODES if "beams" in mode])
@pytest.mark.parametrize("choices", [["d"], ["ab"], ["ab", "cd"], ["ab", "abcd", "cd"]])
def test_where_legal_continuations_run_out_rows_sink_and_nothing_is_nan(mode, choices):
    """transformers fills up with prefixes that are no match; what it returns for them repeats a match, or is empty."""
    vocab = letters()
    few = mw.compile_choices(choices, vocab)
    checked = Checked(ConstraintLogitsProcessor(few), [few], 4)
    model = llama(vocab.size + 3)
    inputs = {"input_ids": torch.tensor([[3, 4, 5, 6], [9, 8, 7, 6]]), "attention_mask": torch.ones(2, 4)}
    options = {**MODES[mode], "num_beams": 6, "num_return_sequences": 6}  # more than there are
    out = generate(model, inputs, logits_processor=[checked], **options)
    assert checked.sunk > 3
    texts = [vocab.decode(tokens).decode() for tokens, _ in written(out, 4)]
    for of_element in (texts[:6], texts[6:]):
        assert set(of_element) <= {*choices, ""}
        assert of_element[0] in choices
        if "sampled" not in mode:
            assert set(of_element) >= set(choices)


def test_prefixes_that_are_no_match_sink_and_stay_there():
    constraint = ConstraintLogitsProcessor([table()] * 4, max_tokens=[4, 4, 4, 10])
    scores = torch.randn(4, vocabulary().size)
    end = torch.tensor([EOS])
    a, b, digit = (vocabulary().tokens.index(text) for text in (b"a", b"b", b"1"))
    texts = [[a, b, a, b, EOS, EOS], [b, a, b, a, b, a], [digit] * 6, [a, b] * 3]  # the third is soon too long
    constraint(torch.zeros(4, 0, dtype=torch.int64), scores)
    for t in range(1, 7):
        out = constraint(torch.tensor([text[:t] for text in texts]), scores)
        finite = [row.isfinite().nonzero().view(-1) for row in out]
        assert torch.equal(finite[0], end) == (t >= 4)
        assert torch.equal(finite[1], end)
        assert torch.equal(finite[2], end) == (t >= 4)
        assert not torch.equal(finite[3], end)


def test_assisted_decoding_goes_forth_and_back():
    model, vocab = llama(vocabulary().size), vocabulary()
    pattern = "(ab|cd|12)+"
    guess = tokenizer_zoo.byte_level_bpe()[0].encode("abcdabcdabab12ab").ids
    inputs = {"input_ids": torch.tensor([guess]), "attention_mask": torch.ones(1, len(guess))}
    # EOS can be guessed, and transformers asks for more all the same; what it is told there it throws away
    tables = [table(pattern)]
    length = inputs["input_ids"].shape[1]
    constraint = ConstraintLogitsProcessor(tables[0], max_tokens=20)
    plain = generate(model, inputs, logits_processor=[constraint], max_new_tokens=21)
    for options in ({"prompt_lookup_num_tokens": 4}, {"assistant_model": llama(vocab.size, seed=1)}):
        checked = Checked(ConstraintLogitsProcessor(tables[0], max_tokens=20), tables, length, 20, sinks=False)
        out = generate(model, inputs, logits_processor=[checked], max_new_tokens=21, **options)
        assert written(out, length) == written(plain, length)


def test_an_assistants_guesses_start_where_the_text_stands():
    """A model that assists itself guesses right each time, so that it is rarely asked for a token alone."""
    model, vocab = llama(vocabulary().size), vocabulary()
    twin = LlamaForCausalLM(model.config).eval()
    twin.load_state_dict(model.state_dict())
    twin.generation_config.num_assistant_tokens = 5
    twin.generation_config.num_assistant_tokens_schedule = "constant"
    twin.generation_config.assistant_confidence_threshold = 0.0
    pattern = "(a1|b2)c3d4e5f6g7h8i9"  # of which no part is like its beginning
    used = ConstraintLogitsProcessor(table(pattern), max_tokens=18)
    passes: list[int] = []
    handle = model.register_forward_hook(lambda *_: passes.append(1))
    for _ in range(2):
        passes.clear()
        out = generate(model, prompts(1), logits_processor=[used], assistant_model=twin, max_new_tokens=19)
        ((tokens, ended),) = written(out, 4)
        assert ended
        assert matches(vocab, tokens, pattern)
        assert len(passes) <= math.ceil((len(tokens) + 1) / 6) + 1
    handle.remove()


def test_tokens_that_come_several_at_once_are_all_taken_in_one_run():
    constraint, vocab = ConstraintLogitsProcessor(table(), max_tokens=12), vocabulary()
    run = transformers.LogitsProcessorList([Checked(constraint, [table()], 2, 12)])
    text = [7, 8, *(vocab.tokens.index(bytes([c])) for c in b"ab12x345ycd")]
    scores = torch.randn(1, vocab.size)
    for length in (2, 5, 6, 12, 7, 8, 3, 13):
        run(torch.tensor([text[:length]]), scores)


def test_nothing_waits_for_the_device():
    """Tensors without values have nothing to wait for: reading one raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        constraint = ConstraintLogitsProcessor([table(), None], max_tokens=9)
        for length in (3, 4, 5, 9, 7):
            ids = torch.zeros(4, length, dtype=torch.int64)
            assert constraint(ids, torch.zeros(4, vocabulary().size)).shape == (4, vocabulary().size)


# ------------------------------------------------------------------------------------------------- a second call


@pytest.mark.parametrize("mode", ["greedy", "beams", "several samples"])
@pytest.mark.parametrize("per_row", [False, True])
def test_a_processor_serves_one_call_after_another(mode, per_row):
    """Each call writes what a new processor writes, also where prompts differ in length by one."""
    model, options = llama(vocabulary().size), MODES[mode]
    tables = [table(), table()] if per_row else table()
    used = ConstraintLogitsProcessor(tables, max_tokens=12)
    for length in (4, 4, 16, 17, 18, 5, 6, 4, 90, 30):
        inputs = prompts(2, length)
        new = ConstraintLogitsProcessor(tables, max_tokens=12)
        expected = generate(model, inputs, logits_processor=[new], **options)
        assert torch.equal(generate(model, inputs, logits_processor=[used], **options), expected)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["greedy", "several samples", "beams"])
@pytest.mark.parametrize("more", [-5, -1, 0, 1, 3])
@pytest.mark.parametrize("pattern", [r"\d{3}", PATTERN, "(ab|cd)*"])
def test_a_second_call_starts_anew_whatever_its_prompt_has_of_the_first_ones_output(mode, more, pattern):
    """more: tokens that its prompt has more than the output, EOS included, or less."""
    vocab = vocabulary()
    model, options = llama(vocab.size), MODES[mode]
    used = ConstraintLogitsProcessor(table(pattern), max_tokens=12)
    for seed in range(2):
        first = generate(model, prompts(1), seed, logits_processor=[used], **options)
        # as many rows as in the last call, so that only what they hold could tell the calls apart
        again = {**options, "num_return_sequences": 1}
        if mode == "beams":
            first = first[:1]
        short = first[:, : max(1, first.shape[1] + more)]
        first = short if more < 0 else torch.nn.functional.pad(first, (0, more), value=9)
        inputs = {"input_ids": first, "attention_mask": torch.ones_like(first)}
        new = ConstraintLogitsProcessor(table(pattern), max_tokens=12)
        expected = generate(model, inputs, seed, logits_processor=[new], **again)
        second = generate(model, inputs, seed, logits_processor=[used], **again)
        assert torch.equal(second, expected)
        assert all(matches(vocab, tokens, pattern) for tokens, _ in written(second, first.shape[1]))


@pytest.mark.parametrize("beams", [1, 2, 4])
def test_a_second_call_starts_anew_where_the_first_ended_in_its_last_step(beams):
    """Its prompt is then the last call's best row and one token."""
    vocab, options = letters(), {"num_beams": beams}
    two_tokens = mw.compile_choices(["dd", "dc", "da", "cd"], vocab)
    used = ConstraintLogitsProcessor(two_tokens)
    inputs = {"input_ids": torch.tensor([[5, 4]]), "attention_mask": torch.ones(1, 2)}
    for _ in range(3):
        length = inputs["input_ids"].shape[1]
        out = generate(llama(vocab.size), inputs, logits_processor=[used], **options)
        ((tokens, ended),) = written(out, length)
        assert vocab.decode(tokens).decode() in ("dd", "dc", "da", "cd")
        assert ended
        assert out.shape[1] == length + 3
        inputs = {"input_ids": out, "attention_mask": torch.ones_like(out)}


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_was_cut_short_or_interrupted_does_not_go_on(wrapped):
    """Also where the processor is called by another one, and where an exception keeps the first run's frames alive."""
    vocab, model = vocabulary(), llama(vocabulary().size)
    constraint = ConstraintLogitsProcessor(table(r"\d{8}"))
    used = (lambda input_ids, scores: constraint(input_ids, scores)) if wrapped else constraint
    cut = generate(model, prompts(1), logits_processor=[used], max_new_tokens=2)

    def interrupt(ids, scores, **_):
        if ids.shape[1] == 6:
            raise KeyboardInterrupt
        return torch.zeros(len(ids), dtype=torch.bool)

    with pytest.raises(KeyboardInterrupt) as kept:
        generate(model, prompts(1), logits_processor=[used], stopping_criteria=[interrupt])
    inputs = {"input_ids": cut, "attention_mask": torch.ones_like(cut)}
    out = generate(model, inputs, logits_processor=[used])
    assert kept.tb is not None
    assert matches(vocab, written(out, 6)[0][0], r"\d{8}")


def following(constraint, *rows: list[int]) -> list[set[int]]:
    """Return the tokens that may follow each row."""
    out = constraint(torch.tensor(rows), torch.randn(len(rows), vocabulary().size))
    return [set(torch.isfinite(row).nonzero().view(-1).tolist()) for row in out]


def test_rows_are_recognised_by_what_they_hold():
    """They go on, go back, change places and leave; whatever continues none of them is an error, not a new text."""
    vocab = vocabulary()
    a, b, digit = (vocab.tokens.index(text) for text in (b"a", b"b", b"1"))
    constraint = ConstraintLogitsProcessor(table())
    at_start, then = allowed(table(), [], None), {t: allowed(table(), [t], None) for t in (a, digit)}
    assert following(constraint, [7, 8], [9, 8]) == [at_start] * 2
    assert following(constraint, [7, 8, a], [9, 8, digit]) == [then[a], then[digit]]
    assert following(constraint, [9, 8, digit], [7, 8, a]) == [then[digit], then[a]]  # they have changed places
    assert following(constraint, [9, 8, a], [7, 8, digit]) == [then[a], then[digit]]  # they went back
    after = allowed(table(), [a, b], None)
    assert following(constraint, [9, 8, a, b]) == [after]  # one has left
    assert following(constraint, [9, 8, a, b], [9, 8, a, a]) == [after, allowed(table(), [a, a], None)]  # two go on
    assert following(constraint, [9, 8], [9, 8]) == [at_start] * 2
    for strays in ([[7, 8], [9, 8]], [[9, 8, a], [9, 9, a]], [[9, 8, a]] * 2 + [[7, 8, a]], [[9], [9]]):
        with pytest.raises(ValueError, match=r"call reset\(\) before it"):
            following(constraint, *strays)
    constraint.reset()
    assert following(constraint, [7, 8, a, b]) == [at_start]


def test_rows_that_leave_in_the_middle_are_followed():
    """A batch of semantic IDs loses rows and is shuffled at each step; what is left stays in the set."""
    rng = np.random.default_rng(3)
    sequences = rng.integers(0, 20, (40, 6))
    of_sids = mw.compile_sids(sequences, vocab_size=24, eos=23)
    members = {tuple(row) for row in sequences.tolist()}
    constraint = ConstraintLogitsProcessor(of_sids)
    rows = torch.full((12, 3), 21)
    for _ in range(6):
        out = constraint(rows, torch.randn(len(rows), 24))
        rows = torch.cat([rows, out.softmax(-1).multinomial(1)], dim=1)
        kept = torch.from_numpy(rng.permutation(len(rows))[: max(3, len(rows) - 2)].copy())
        rows = rows[kept]
    assert {tuple(row) for row in rows[:, 3:].tolist()} <= members


def test_rows_do_not_leave_a_batch_in_which_each_element_has_its_own_table():
    constraint = ConstraintLogitsProcessor([table(), table(r"\d{2}")])
    following(constraint, [7, 8], [7, 8])
    with pytest.raises(ValueError, match=r"there are 1 rows, and there were 2 .* each element has its own table"):
        following(constraint, [7, 8])
    constraint.reset()
    digit = vocabulary().tokens.index(b"1")
    following(constraint, [7, 8], [9, 8])
    with pytest.raises(ValueError, match=r"rows \[0, 1\] continue no row"):  # they have changed elements
        following(constraint, [9, 8, digit], [7, 8, digit])


def test_on_an_accelerator_a_stray_row_may_only_end_and_a_later_call_says_so(monkeypatch):
    """No value is read before the device is done with it: what is then found out is raised at the next call."""
    done: list[bool] = []
    monkeypatch.setattr(processor, "check_known", check := Reads(processor.check_known))
    monkeypatch.setattr(processor, "report_of", lambda unknown: processor.Report(unknown, lambda: bool(done)))
    monkeypatch.setattr(processor, "is_on_host", lambda ids: False)  # as on an accelerator
    constraint = ConstraintLogitsProcessor(table())
    digit = vocabulary().tokens.index(b"1")
    two = allowed(table(), [digit, digit], None)
    following(constraint, [7, 8], [9, 8])
    assert following(constraint, [7, 8, digit], [9, 9, digit]) == [allowed(table(), [digit], None), {EOS}]
    assert following(constraint, [7, 8, digit, digit], [9, 9, digit, EOS]) == [two, {EOS}]
    assert check.reads == 0
    done.append(True)
    with pytest.raises(ValueError, match=r"rows \[1\] continue no row"):
        following(constraint, [7, 8, digit, digit, digit], [9, 9, digit, EOS, EOS])


class Reads:
    """A function with a count of the tensors whose values it reads."""

    def __init__(self, function: Any) -> None:
        self.function, self.reads = function, 0

    def __call__(self, *args: Any) -> Any:
        from torch.utils._python_dispatch import TorchDispatchMode

        owner = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                owner.reads += func is torch.ops.aten._local_scalar_dense.default
                return func(*args, **(kwargs or {}))

        with Mode():
            return self.function(*args)


def test_an_assistants_run_with_other_tokens_starts_anew():
    """An assistant with a tokenizer of its own is given the text in other tokens, of which nothing is known."""
    constraint = ConstraintLogitsProcessor(table())
    digit = vocabulary().tokens.index(b"1")
    outer, scores = transformers.LogitsProcessorList([constraint]), torch.randn(1, vocabulary().size)

    def asked(processors: Any, *row: int) -> set[int]:
        out = processors(torch.tensor([row]), scores)
        return set(out[0].isfinite().nonzero().view(-1).tolist())

    def _assisted_decoding(logits_processor: Any, *row: int) -> set[int]:
        return asked(transformers.LogitsProcessorList([constraint]), *row)

    at_start, then = allowed(table(), [], None), allowed(table(), [digit], None)
    assert asked(outer, 7, 8) == at_start
    assert asked(outer, 7, 8, digit) == then
    assert _assisted_decoding(outer, 7, 8, digit) == then
    assert _assisted_decoding(outer, 7, 9, digit) == at_start
    assert _assisted_decoding(outer, 7) == at_start
    assert asked(outer, 7, 8, digit, digit) == allowed(table(), [digit, digit], None)


def test_in_a_loop_of_ones_own_reset_says_where_a_text_starts():
    digits = table(r"\d{2}")
    digit = vocabulary().tokens.index(b"1")
    constraint, scores = ConstraintLogitsProcessor(digits), torch.randn(1, vocabulary().size)

    def following(*row: int) -> set[int]:
        return set(constraint(torch.tensor([row]), scores)[0].isfinite().nonzero().view(-1).tolist())

    assert following(7, 8) == allowed(digits, [], None)
    assert following(7, 8, digit) == allowed(digits, [digit], None)
    assert following(7, 8, digit, digit) == {EOS}
    assert following(7, 8, digit, digit, EOS) == {EOS}
    constraint.reset()
    assert following(7, 8, digit, digit, EOS, 9) == allowed(digits, [], None)
    assert following(7, 8, digit, digit, EOS, 9, digit) == allowed(digits, [digit], None)


# ----------------------------------------------------------------------------------------- ends and other limits


@pytest.mark.parametrize("how", ["processor", "custom_generate", "beams"])
def test_all_tokens_that_the_model_ends_with_mean_eos(how):
    """Token "z" of the text ends generation too, so it may not be written inside one."""
    vocab = vocabulary()
    z = vocab.tokens.index(b"z")
    ends = (EOS, z, vocab.size - 1)
    model = llama(vocab.size, ends)
    ended_by = set()
    for seed in range(12):
        options: dict[str, Any] = {"do_sample": True, "temperature": 3.0, "custom_generate": constrained_generate}
        if how == "processor":
            constraint = ConstraintLogitsProcessor(table(), max_tokens=12, eos_token_ids=ends)
            options = {"do_sample": True, "temperature": 3.0, "logits_processor": [constraint]}
        else:
            options["tables"] = table()
        if how == "beams":
            options |= {"do_sample": False, "temperature": None, "num_beams": 4, "num_return_sequences": 4}
        out = generate(model, prompts(3), seed, **options)
        for row, (tokens, ended) in zip(out[:, 4:].tolist(), written(out, 4, ends), strict=True):
            assert matches(vocab, tokens)
            if ended:
                ended_by.add(row[len(tokens)])
        if how == "beams":
            break
    assert ended_by == {EOS} if how == "beams" else len(ended_by) > 1


def test_a_model_that_does_not_end_with_the_tables_eos_writes_nothing_else_after_the_match():
    vocab = vocabulary()
    model, other = llama(vocab.size), vocab.size - 1
    for mode in ("greedy", "sampling", "several samples", "beams"):
        constraint = ConstraintLogitsProcessor(table(r"\d{3}"))
        out = generate(model, prompts(), logits_processor=[constraint], eos_token_id=other, **MODES[mode])
        assert out.shape[1] == 4 + 13
        for row in out[:, 4:].tolist():
            tokens = row[: row.index(EOS)]
            assert matches(vocab, tokens, r"\d{3}")
            assert set(row[len(tokens) :]) == {EOS}


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("config_ends", [7, None])
def test_custom_generate_ends_with_the_tables_eos_whatever_the_model_ends_with(beams, config_ends):
    vocab = vocabulary()
    model = LlamaForCausalLM(llama(vocab.size).config).eval()
    model.load_state_dict(llama(vocab.size).state_dict())
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = config_ends
    further = vocab.tokens.index(b"x")
    for ends in (further, [further, EOS]):
        out = generate(
            model, prompts(), custom_generate=constrained_generate, tables=table(), num_beams=beams, eos_token_ids=ends,
        )  # fmt: skip
        for tokens, ended in written(out, 4, (EOS, further, 7)):
            assert ended
            assert matches(vocab, tokens)


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "num_return_sequences": 3}, {"num_beams": 3}])
def test_tables_without_eos_are_complete_without_one(options):
    """Even where semantic ids hold the token that ends the model's other texts."""
    sids = np.random.default_rng(0).integers(0, 12, (30, 3))
    for max_new_tokens in (3, 9):
        out = generate(
            llama(12), small_inputs(), custom_generate=constrained_generate, tables=mw.compile_sids(sids, 12),
            max_new_tokens=max_new_tokens, **options,
        )  # fmt: skip
        assert {tuple(row) for row in out[:, 4:].tolist()} <= set(map(tuple, sids.tolist()))


@pytest.mark.parametrize("make", [mw.compile_sids, mw.sort_sids])
@pytest.mark.parametrize("mode", MODES)
def test_a_processor_needs_no_end_where_all_sequences_are_as_long(mode, make):
    """Even where semantic ids hold the token that ends the model's other texts."""
    sids = np.random.default_rng(0).integers(0, 12, (30, 3))
    inputs, options = small_inputs(), {**MODES[mode], "max_new_tokens": 3, "eos_token_id": None}
    for tables in (make(sids, 12), [make(sids, 12), make(sids[:4], 12)]):
        processor = ConstraintLogitsProcessor(tables)
        out = generate(llama(12), inputs, logits_processor=[processor], **options)[:, 4:]
        per = len(out) // 2
        assert {tuple(row) for row in out[:per].tolist()} <= set(map(tuple, sids.tolist()))
        of_second = sids[:4] if isinstance(tables, list) else sids
        assert {tuple(row) for row in out[per:].tolist()} <= set(map(tuple, of_second.tolist()))


def test_without_an_end_transformers_ranks_by_the_sequences_alone():
    sids = np.unique(np.random.default_rng(0).integers(0, 12, (30, 3)), axis=0)
    model = llama(12).double()
    out = generate(
        model, small_inputs(), logits_processor=[ConstraintLogitsProcessor(mw.compile_sids(sids, 12))], num_beams=30,
        num_return_sequences=5, max_new_tokens=3, eos_token_id=None, length_penalty=0.0, return_dict_in_generate=True,
        output_scores=True,
    )  # fmt: skip
    for i in range(2):
        with torch.no_grad():
            expected = brute_force(model, small_inputs(), i, sorted(map(tuple, sids.tolist())), 0.0, ())[:5]
        assert [tuple(row) for row in out.sequences[5 * i : 5 * i + 5, 4:].tolist()] == [s for _, s in expected]
        np.testing.assert_allclose(out.sequences_scores[5 * i : 5 * i + 5], [score for score, _ in expected], rtol=1e-5)
    model.float()


def test_where_an_endless_table_has_too_few_sequences_the_rest_sinks():
    few = mw.compile_sids([[1, 2, 3], [4, 5, 6]], 12)
    for more in ({}, {"do_sample": True}):
        out = generate(
            llama(12), small_inputs(), logits_processor=[ConstraintLogitsProcessor(few)], num_beams=4,
            num_return_sequences=4, max_new_tokens=3, eos_token_id=None, return_dict_in_generate=True,
            output_scores=True, **more,
        )  # fmt: skip
        scores = out.sequences_scores.view(2, 4)
        assert few.contains(out.sequences[:, 4:]).reshape(2, 4)[:, :2].all()
        assert not scores.isnan().any()
        assert (scores[:, 2:] < scores[:, 1:2] - 1000).all()


def test_assisted_decoding_needs_no_end_either():
    of_table = mw.compile_sids([[5, 7, 3, 5], [5, 7, 3, 7], [3, 5, 5, 7]], 25)
    inputs = {"input_ids": torch.tensor([[5, 5, 7, 3, 5, 5, 7, 3]]), "attention_mask": torch.ones(1, 8)}
    options = {"max_new_tokens": 4, "eos_token_id": None}
    found = [
        generate(llama(25), inputs, logits_processor=[ConstraintLogitsProcessor(of_table)], **options, **more)
        for more in (
            {},
            {"prompt_lookup_num_tokens": 3},
            {"prompt_lookup_num_tokens": 3, "do_sample": True, "top_k": 1},
        )
    ]
    assert torch.equal(*found[:2])
    assert torch.equal(*found[1:])
    assert of_table.contains(found[0][:, 8:]).all()


@pytest.mark.parametrize("make", [mw.compile_sids, mw.sort_sids])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_a_placed_table_is_copied_once(make, options, monkeypatch):
    sids = np.random.default_rng(0).integers(0, 12, (30, 3))
    given = {**options, "max_new_tokens": 3, "custom_generate": constrained_generate}
    expected = generate(llama(12), small_inputs(), tables=make(sids, 12), **given)
    lies = place(make(sids, 12))

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the table is put again")

    monkeypatch.setattr("maskwright.runtime.torch_ops.to_device", fail)
    assert torch.equal(generate(llama(12), small_inputs(), tables=lies, **given), expected)
    assert torch.equal(generate(llama(12), small_inputs(), tables=[lies, lies], **given), expected)
    processor = ConstraintLogitsProcessor(lies, max_tokens=3)
    by_processor = generate(
        llama(12), small_inputs(), logits_processor=[processor], max_new_tokens=3, eos_token_id=None, **options
    )  # fmt: skip
    assert lies.table.contains(by_processor[:, 4:]).all()


def test_a_placed_table_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"needs distances: place\(table, distances=True\)"):
        generate(llama(12), small_inputs(), custom_generate=constrained_generate,
                 tables=place(mw.compile_sids([[1, 2]], 12), distances=False), max_new_tokens=3)  # fmt: skip
    with pytest.raises(ValueError, match="the table is on meta, the model's scores are on cpu"):
        generate(llama(12), small_inputs(), custom_generate=constrained_generate,
                 tables=place(mw.compile_sids([[1, 2]], 12), "meta"), max_new_tokens=3)  # fmt: skip
    endless = mw.compile_grammar('start: "a" start "b" | "b" start "a" | start start | "cd"', letters())
    with pytest.raises(mw.errors.ConstraintError, match="read on demand, anew in each call"):
        place(endless)


@pytest.mark.parametrize("mode", ["greedy", "sampling", "beams", "beams, long first"])
def test_a_first_token_that_transformers_forces_is_let_pass(mode):
    vocab = vocabulary()
    model, options = bart(vocab.size), MODES[mode]
    constraint = ConstraintLogitsProcessor(table(), max_tokens=12)
    custom = {"custom_generate": constrained_generate, "tables": table()}
    for how in ({"logits_processor": [constraint]}, custom):
        out = generate(model, prompts(), forced_bos_token_id=1, max_new_tokens=14, **how, **options)
        assert (out[:, :2] == torch.tensor([5, 1])).all()
        for tokens, ended in written(out, 2):
            assert ended
            assert matches(vocab, tokens)
        start = {**prompts(), "decoder_input_ids": torch.tensor([[5, 1]] * 2)}
        if how is custom or mode == "greedy":  # transformers draws, and scores, the forced token too
            assert torch.equal(generate(model, start, max_new_tokens=13, **how, **options), out)


def test_other_processors_cannot_break_the_constraint():
    """They forbid the only tokens that are allowed; softmax and argmax still find those."""
    vocab, model = vocabulary(), llama(vocabulary().size)
    for options in ({}, {"do_sample": True, "temperature": 0.1}, {"num_beams": 3}):
        out = generate(
            model, prompts(), logits_processor=[ConstraintLogitsProcessor(table("ab|cd"))], min_new_tokens=6,
            bad_words_ids=[[vocab.tokens.index(b"a")], [vocab.tokens.index(b"c")]], **options,
        )  # fmt: skip
        for tokens, _ in written(out, 4):
            assert matches(vocab, tokens, "ab|cd")


def test_wrong_use_is_refused():
    size, scores = vocabulary().size, torch.zeros(2, vocabulary().size)
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(mw.errors.VocabularyMismatchError, match="logits have 100 columns"):
        ConstraintLogitsProcessor(table())(ids, scores[:, :100])
    with pytest.raises(mw.errors.VocabularyMismatchError, match=f"EOS is token {size + 7}: this is another model's"):
        ConstraintLogitsProcessor(table(), eos_token_ids=[size + 7])(ids, scores)
    with pytest.raises(TypeError, match="floating-point"):
        ConstraintLogitsProcessor(table())(ids, scores.int())
    with pytest.raises(ValueError, match="there are 2 rows and 3 tables"):
        ConstraintLogitsProcessor([table()] * 3)(ids, scores)
    with pytest.raises(ValueError, match="max_tokens=2 is less than the shortest match of table 1, 4 tokens"):
        ConstraintLogitsProcessor([table(), mw.compile_choices(["dddd"], letters())], max_tokens=2)
    with pytest.raises(ValueError, match="max_tokens has 1 entries, tables has 2"):
        ConstraintLogitsProcessor([table(), table()], max_tokens=[3])
    with pytest.raises(ValueError, match="tables is empty"):
        ConstraintLogitsProcessor([])
    with pytest.raises(ValueError, match=r"table 0 has no EOS and its sequences differ.*which is the eos of the Vocab"):
        ConstraintLogitsProcessor(mw.compile_sequences([[1, 2], [3]], vocab_size=9))
    of_two = mw.compile_sids([[1, 2]], 9)
    for beside in (None, mw.compile_sids([[1, 2, 3]], 9), mw.compile_sids([[1, 2]], 9, eos=3), table()):
        with pytest.raises(ValueError, match="others here have other lengths or an end"):
            ConstraintLogitsProcessor([of_two, beside])
    at_end = ConstraintLogitsProcessor(of_two)
    for tokens in ([5], [5, 1]):
        at_end(torch.tensor([tokens]), torch.zeros(1, 9))
    with pytest.raises(ValueError, match=r"complete after 2 tokens.*pass max_new_tokens=2 to generate"):
        at_end(torch.tensor([[5, 1, 2]]), torch.zeros(1, 9))
    with pytest.raises(ValueError, match="must not be negative"):
        ConstraintLogitsProcessor(table(), eos_token_ids=-1)


def test_what_is_no_table_is_named():
    said = "tables must be a TransitionTable, which compile_regex and the like return"
    for wrong in ("red", None, 3, ["red"], [table(), 3]):
        with pytest.raises(TypeError, match=said):
            ConstraintLogitsProcessor(wrong)
        with pytest.raises(TypeError, match=said):
            generate(llama(vocabulary().size), prompts(), custom_generate=constrained_generate, tables=wrong)


def test_numbers_may_be_numpys_and_must_be_whole():
    vocab = vocabulary()
    for max_tokens in (np.int32(12), [np.int64(12), None], np.array([12, 12])):
        constraint = ConstraintLogitsProcessor([table(), table()], max_tokens=max_tokens, eos_token_ids=np.int64(EOS))
        out = generate(llama(vocab.size), prompts(), logits_processor=[constraint])
        assert matches(vocab, written(out, 4)[0][0])
    for max_tokens in (12.0, True, "12", [None, 3.5], [np.float32(7), 7]):
        with pytest.raises(TypeError, match="max_tokens must be a whole number of tokens"):
            ConstraintLogitsProcessor([table(), table()], max_tokens=max_tokens)
    for ends in ("0", 0.0, True, None, [0.5]):
        with pytest.raises(TypeError, match="eos_token_ids must be a token id, or a list of them"):
            ConstraintLogitsProcessor(table(), eos_token_ids=ends)


def test_what_custom_generate_does_not_do_is_refused():
    model, inputs = llama(vocabulary().size), prompts()
    options: dict[str, Any] = {"custom_generate": constrained_generate, "tables": table()}
    with pytest.raises(ValueError, match="does without do_sample"):
        generate(model, inputs, num_beams=2, do_sample=True, **options)
    with pytest.raises(ValueError, match="does without output_attentions, MaxTimeCriteria"):
        generate(
            model, inputs, num_beams=2, output_attentions=True, return_dict_in_generate=True, max_time=9.0, **options
        )
    with pytest.raises(ValueError, match="leave no match"):
        generate(model, inputs, num_beams=2, min_new_tokens=9, **{**options, "tables": table("ab|cd")})
    with pytest.raises(ValueError, match=r"matches differ in length, so there would be no telling.*num_beams=2"):
        generate(model, inputs, **{**options, "tables": mw.compile_sequences([[1, 2], [3]], vocab_size=9)})
    with pytest.raises(ValueError, match="forced_bos_token_id=3 is for encoder-decoder models"):
        generate(model, prompts(1, 1), forced_bos_token_id=3, **options)


@pytest.mark.parametrize("beams", [1, 2])
def test_greedy_and_beam_search_refuse_alike(beams):
    model, inputs = llama(vocabulary().size), prompts()
    options: dict[str, Any] = {"custom_generate": constrained_generate, "num_beams": beams}
    message = (
        "max_new_tokens=2 leaves room for 1 tokens of a match besides EOS, and the shortest needs 2: raise it to 3"
    )
    with pytest.raises(ValueError, match=message):
        generate(model, inputs, max_new_tokens=2, tables=table("ab|[c]d"), **options)
    assert generate(model, inputs, max_new_tokens=3, tables=table("ab|[c]d"), **options).shape[1] == 4 + 3
    with pytest.raises(ValueError, match="leaves room for 2 tokens of a match, and the shortest needs 3: raise it to"):
        generate(model, inputs, max_new_tokens=2, tables=mw.compile_sids([[1, 2, 3]], 9), **options)
    with pytest.raises(ValueError, match=r"max_new_tokens=13 leaves room for 11 tokens.*needs 12: raise it to 14"):
        generate(bart(vocabulary().size), inputs, forced_bos_token_id=1, tables=table("z{12}"), **options)
    sids = mw.compile_sids([[1, 2]], 9)
    with pytest.raises(ValueError, match="must have the same EOS, or none of them one, not"):
        generate(model, inputs, tables=[table(), sids], **options)
    with pytest.raises(ValueError, match="rows without a constraint end with EOS"):
        generate(model, inputs, tables=[None, sids], **options)


# ------------------------------------------------------------------------------------- exact search, and caches


def sequences_of(of_row: mw.TransitionTable, most: int) -> list[tuple[int, ...]]:
    """Return all token sequences of a table, EOS aside."""
    done, growing = [], [()]
    while growing:
        prefix = growing.pop()
        following = allowed(of_row, list(prefix), most)
        if of_row.contains(np.array([prefix], np.int64).reshape(1, -1))[0]:
            done.append(prefix)
        growing += [(*prefix, token) for token in following - {of_row.eos} if len(prefix) < most]
    return done


def brute_force(
    model: Any, inputs: dict[str, Any], row: int, found: list[tuple[int, ...]], penalty: float, ends: tuple[int, ...]
):
    """Return (score, tokens) of each sequence by one forward pass without a cache, best first; with any of the ends."""
    ids, mask = inputs["input_ids"][[row]], inputs["attention_mask"][[row]]
    prompt = ids[mask.bool()]
    scored = []
    for tokens in found:
        full = [*tokens, *ends[:1]]
        if model.config.is_encoder_decoder:
            logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.tensor([[5, *full]])).logits[
                0, :-1
            ]
        else:
            logits = model(input_ids=torch.cat([prompt, torch.tensor(full, dtype=torch.int64)])[None]).logits[0]
            logits = logits[len(prompt) - 1 : -1]
        p = logits.double().log_softmax(-1)
        total = sum(p[t, token].item() for t, token in enumerate(tokens))
        if ends:
            total += math.log(sum(math.exp(p[len(tokens), end]) for end in ends))
        scored.append((total / len(full) ** penalty, tokens))
    return sorted(scored, key=lambda pair: -pair[0])


def small_inputs() -> dict[str, Any]:
    ids = torch.tensor([[3, 4, 5, 9], [0, 3, 9, 4]])
    return {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])}


@pytest.mark.parametrize("kind", ["llama", "llama without a cache", "bart", "llama with several ends"])
@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5])
def test_custom_beam_search_finds_the_best_sequences_of_all(kind, penalty):
    """In double precision against a forward pass for each sequence, so that a beam with another's cache would show."""
    vocab = letters()
    model = (bart if kind == "bart" else llama)(vocab.size + 3).double()
    ends = (EOS, 1, 11) if kind == "llama with several ends" else (EOS,)
    tables = [mw.compile_choices(["abc", "cabd", "ab", "d", ""], vocab), mw.compile_regex("(ab|c|bc){1,2}", vocab)]
    found = [sequences_of(t, 6) for t in tables]
    beams = max(map(len, found))
    assert 5 < len(found[0]) < beams < 60
    out = generate(
        model, small_inputs(), custom_generate=constrained_generate, tables=tables, num_beams=beams, max_new_tokens=7,
        num_return_sequences=beams, length_penalty=penalty, return_dict_in_generate=True,
        use_cache=kind != "llama without a cache", eos_token_ids=ends,
    )  # fmt: skip
    start = 1 if kind == "bart" else 4
    rows = out.sequences[:, start:].tolist()
    for i, of_row in enumerate(found):
        with torch.no_grad():
            expected = brute_force(model, small_inputs(), i, of_row, penalty, ends)
        mine = rows[i * beams : (i + 1) * beams]
        texts = [tuple(row[: row.index(EOS)]) for row in mine[: len(of_row)]]
        assert texts == [tokens for _, tokens in expected]
        scores = out.sequences_scores[i * beams : (i + 1) * beams].tolist()
        np.testing.assert_allclose(scores[: len(of_row)], [score for score, _ in expected], rtol=1e-9)
        assert all(score == -math.inf for score in scores[len(of_row) :])
        assert all(set(row) == {model.config.pad_token_id} for row in mine[len(of_row) :])
        assert all(set(row[row.index(EOS) + 1 :]) <= {model.config.pad_token_id} for row in mine[: len(of_row)])
    model.float()


def test_transformers_own_beam_search_agrees_where_beams_are_plenty():
    vocab = letters()
    model, few = llama(vocab.size), mw.compile_choices(["abc", "cab", "ab", "d"], vocab)
    options = {"num_beams": 40, "early_stopping": "never", "length_penalty": 1.0, "num_return_sequences": 4,
               "output_scores": True, "return_dict_in_generate": True}  # fmt: skip
    ours = generate(model, small_inputs(), custom_generate=constrained_generate, tables=few, **options)
    theirs = generate(model, small_inputs(), logits_processor=[ConstraintLogitsProcessor(few)], **options)
    assert written(ours.sequences, 4) == written(theirs.sequences, 4)
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores)


def test_semantic_ids_without_eos_are_found_best_first():
    rng = np.random.default_rng(0)
    sids = rng.integers(3, 12, (30, 3))
    model = llama(12).double()
    out = generate(
        model, small_inputs(), custom_generate=constrained_generate, tables=mw.compile_sids(sids, 12), num_beams=30,
        num_return_sequences=5, max_new_tokens=3, return_dict_in_generate=True, length_penalty=0.0,
    )  # fmt: skip
    for i in range(2):
        with torch.no_grad():
            expected = brute_force(model, small_inputs(), i, sorted(set(map(tuple, sids.tolist()))), 0.0, ())[:5]
        assert [tuple(row) for row in out.sequences[5 * i : 5 * i + 5, 4:].tolist()] == [s for _, s in expected]
        np.testing.assert_allclose(out.sequences_scores[5 * i : 5 * i + 5], [score for score, _ in expected], rtol=1e-9)
    model.float()


def test_without_beams_custom_generate_writes_what_a_processor_does():
    model = llama(vocabulary().size)
    for mode, seed in itertools.product(["greedy", "sampling", "several samples"], range(2)):
        constraint = ConstraintLogitsProcessor(table(), max_tokens=12)
        expected = generate(model, prompts(3), seed, logits_processor=[constraint], **MODES[mode])
        options = {"custom_generate": constrained_generate, "tables": table(), **MODES[mode]}
        assert torch.equal(generate(model, prompts(3), seed, **options), expected)


def test_parents_are_found_in_blocks(monkeypatch):
    now, before = torch.tensor([[1, 2, 3], [4, 5, 6], [1, 2, 4]]), torch.tensor([[4, 5, 6], [1, 2, 3], [1, 2, 3]])
    for block in (1, 1 << 24):
        monkeypatch.setattr(processor, "BLOCK", block)
        parent, found = processor.find_parents(now, before, 3)
        found = found.view(-1)
        assert parent[:2].tolist() in ([1, 0], [2, 0])
        assert found.tolist() == [True, True, False]
        assert not processor.find_parents(now, before, 1)[1].any()


@cache
def ending(several: bool = True) -> mw.Vocabulary:
    """A vocabulary whose texts end with any of three tokens, or with the first of them alone."""
    size = vocabulary().size + 4
    ends = [EOS, size - 3, size - 1] if several else EOS
    return mw.Vocabulary.from_transformers(tokenizer_zoo.byte_level_bpe()[0], size=size, eos=ends)


@pytest.mark.parametrize("mode", ["greedy", "sampling", "beams"])
@pytest.mark.parametrize("way", ["processor", "method"])
def test_tables_with_all_ends_of_a_model_need_no_others_named(mode, way):
    vocab = ending()
    made = mw.compile_regex(PATTERN, vocab)
    model = llama(vocab.size, vocab.ends)
    seen = set()
    for seed in range(4):
        options = {"max_new_tokens": 13, **MODES[mode]}
        torch.manual_seed(seed)
        if way == "method":
            out = model.generate(**prompts(), custom_generate=constrained_generate, tables=made, **options)
        else:
            limited = ConstraintLogitsProcessor(made, max_tokens=12)
            out = model.generate(**prompts(), logits_processor=[limited], **options)
        for (tokens, ended), row in zip(written(out, 4, vocab.ends), out.tolist(), strict=True):
            assert ended
            assert matches(vocab, tokens)
            seen.add(row[4 + len(tokens)])
    if mode == "sampling":
        assert len(seen) > 1  # ends are drawn as they are
    if mode == "beams" and way == "method":
        assert seen == {EOS}  # the one that stands for all


def test_beam_search_ranks_an_end_by_what_all_ends_hold():
    """A table with all ends, and one with one end and the others named, are one constraint."""
    vocab = ending()
    model = llama(vocab.size, vocab.ends)
    options = {"custom_generate": constrained_generate, "max_new_tokens": 9, "num_beams": 4,
               "num_return_sequences": 4, "return_dict_in_generate": True}  # fmt: skip
    several, one = (mw.compile_regex("[ab]{1,4}", ending(each)) for each in (True, False))
    got = model.generate(**prompts(), tables=several, **options)
    wanted = model.generate(**prompts(), tables=one, eos_token_ids=vocab.ends[1:], **options)
    assert torch.equal(got.sequences, wanted.sequences)
    torch.testing.assert_close(got.sequences_scores, wanted.sequences_scores)


def test_tables_of_one_call_that_end_by_different_tokens_are_refused():
    made = [mw.compile_regex("ab", ending(each)) for each in (True, False)]
    with pytest.raises(ValueError, match="must have the same EOS"):
        llama(ending().size).generate(**prompts(), custom_generate=constrained_generate, tables=made, max_new_tokens=9)
