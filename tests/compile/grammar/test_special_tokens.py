"""Special tokens by their names: what vocabularies know, and grammars that have some, against a naive recogniser."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Sequence
from typing import Any

import pytest

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.compile.grammar.build import compile_form
from maskwright.compile.grammar.form import Choice, Grammar, Node, Repeat, Special
from maskwright.compile.grammar.form import Sequence as Row
from maskwright.compile.tags.build import compile_structural_tag
from tests.oracles.naive_grammar import accepts
from tests.strategies import tokenizer_zoo as zoo
from tests.strategies.grammars import a_node

LONGER = [b"ab", b"ba", b"aab", b"abab"]
X, Y, T = 257 + len(LONGER), 258 + len(LONGER), 259 + len(LONGER)
LETTERS: list[Any] = [ord("a"), ord("b"), "<|x|>", "<|y|>", "<t>"]
TOKEN_OF = {ord("a"): 1 + ord("a"), ord("b"): 1 + ord("b"), "<|x|>": X, "<|y|>": Y, "<t>": T}
WORDS = [word for n in range(5) for word in itertools.product(LETTERS, repeat=n)]


@pytest.fixture(scope="module")
def vocab() -> mw.Vocabulary:
    tokens = [b"", *(bytes([b]) for b in range(256)), *LONGER, b"", b"", b"ab<t>"]
    return mw.Vocabulary.from_bytes(tokens, eos=0, special={"<|x|>": X, "<|y|>": Y}, names={"<t>": T})


def with_specials(node: Node, rng: random.Random) -> Node:
    """Return a node with special tokens here and there."""
    if isinstance(node, (Row, Choice)):
        items = tuple(with_specials(item, rng) for item in node.items)
        return type(node)((*items, Special(rng.choice(LETTERS[2:])))) if rng.random() < 0.4 else type(node)(items)
    return Repeat(with_specials(node.item, rng), node.low, node.high) if isinstance(node, Repeat) else node


@pytest.mark.parametrize("part", range(3))
def test_random_grammars_with_special_tokens_allow_what_a_naive_recogniser_accepts(part, vocab):
    """Read as it is, and as arrays where there are some: the same members, and masks that are what can be taken."""
    read = complete = 0
    for seed in range(40 * part, 40 * part + 40):
        rng = random.Random(seed)
        names = ["start", "x", "y"][: rng.randint(1, 3)]
        rules = {name: with_specials(a_node(rng, 3, names), rng) for name in names}
        grammar = Grammar(rules, "start")
        try:
            table = compile_form(grammar, vocab, source="test", meter=Budget(states=20_000).begin())
        except mw.errors.GrammarError:
            continue
        named = {i for i in (X, Y, T) if table.machine.vocabulary.tokens[i] != vocab.tokens[i]}
        if not named:
            continue
        read += 1
        words = [word for word in WORDS if all(isinstance(c, int) or TOKEN_OF[c] in named for c in word)]
        expected = [accepts(grammar, list(word)) for word in words]
        assert [table.accepts([TOKEN_OF[c] for c in word]) for word in words] == expected, seed
        members = [word for word, fits in zip(words, expected, strict=True) if fits][:8]
        for word in members:
            check_masks(table, word, vocab)
        try:
            table.to_table()
        except mw.errors.ConstraintError:
            continue
        complete += 1
        assert [table.accepts([TOKEN_OF[c] for c in word]) for word in words] == expected, seed
        for word in members:
            check_masks(table, word, vocab)
    assert min(read, complete) > 8, (read, complete)


def check_masks(table: mw.TransitionTable, word: Sequence[Any], vocab: mw.Vocabulary) -> None:
    matcher = mw.Matcher(table)
    for c in [*word, None]:
        mask = matcher.mask()
        bits = {i for i in range(vocab.size) if mask[i >> 5] >> (i & 31) & 1}
        assert bits == {i for i in range(vocab.size) if matcher.copy().advance(i)}
        for i, token in enumerate(LONGER):
            single = matcher.copy()
            assert (257 + i in bits) == all(single.advance(1 + byte) for byte in token)
        if c is not None:
            assert matcher.advance(TOKEN_OF[c])


def test_all_notations_name_special_tokens(vocab):
    texts = {(X, 98, Y): True, (X, Y): False, (98,): False, (X, 98): False}
    for grammar, syntax in (
        ('start: <|x|> "a" <|y|>', "lark"),
        ('root ::= <|x|> "a" <|y|>', "gbnf"),
    ):
        table = mw.compile_grammar(grammar, vocab, syntax=syntax)
        for each in (table, table.to_table()):
            assert {tokens: each.accepts(tokens) for tokens in texts} == texts
            assert each.vocabulary == vocab.fingerprint
    with pytest.raises(mw.errors.ConstraintError, match=r"no special token of the name '<\|q\|>'"):
        mw.compile_grammar('start: <|q|> "a"', vocab)


def test_what_is_forced_stops_before_a_special_token_and_goes_on_behind_it(vocab):
    table = mw.compile_grammar('start: "ab" <|x|> "ba" <t>', vocab)
    matcher = mw.Matcher(table, vocab)
    assert matcher.forced_text() == b"ab"
    assert matcher.forced_tokens() == []  # a token might join it with what follows
    assert all(map(matcher.advance, (257, X)))
    assert matcher.forced_text().startswith(b"ba")
    for token in (1 + ord("b"), 1 + ord("a")):
        assert matcher.advance(token)
    assert not matcher.advance(257)
    assert matcher.advance(T)
    assert matcher.is_finished


def test_a_vocabulary_keeps_the_names_of_its_special_tokens(vocab):
    assert vocab.special_ids == {"<|x|>": X, "<|y|>": Y, "<t>": T}
    assert vocab.special == {0, X, Y}
    assert pickle.loads(pickle.dumps(vocab)).special_ids == vocab.special_ids
    without = mw.Vocabulary.from_bytes(vocab.tokens, eos=0, special=[X, Y])
    assert (without.special_ids, without.fingerprint) == ({}, vocab.fingerprint)
    with pytest.raises(mw.errors.ConstraintError, match=r"did you mean '<\|x\|>'"):
        vocab.id_of("|x|")
    with pytest.raises(mw.errors.ConstraintError, match="names must map to token ids from 0 to 0, not 3"):
        mw.Vocabulary.from_bytes([b"a"], names={"x": 3})
    with pytest.raises(mw.errors.ConstraintError, match="must be text"):
        mw.Vocabulary.from_bytes([b"a", b""], special={1: 1})  # type: ignore[dict-item]


def test_tokenizers_say_the_names_of_theirs():
    for name, make in (
        ("<|end|>", zoo.byte_level_bpe),
        ("</s>", zoo.metaspace_unigram),
        ("</s>", zoo.byte_fallback_bpe),
    ):
        tok, vocab = make()
        assert vocab.id_of(name) == tok.token_to_id(name)
    tok, vocab = zoo.byte_level_bpe()
    assert vocab.tokens[vocab.id_of("<tool>")] == b"<tool>"  # added, not special
    assert vocab.id_of("<tool>") not in vocab.special
    _, vocab = zoo.tekken()
    assert vocab.id_of("[TOOL_CALLS]") in vocab.special
    _, vocab = zoo.mistral_sentencepiece()
    assert vocab.id_of("[TOOL_CALLS]") in vocab.special


def test_tiktoken_says_the_names_of_its_special_tokens():
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([b]): b for b in range(256)}
    enc = tiktoken.Encoding("small", pat_str=".", mergeable_ranks=ranks, special_tokens={"<|a|>": 256, "<|b|>": 258})
    assert mw.Vocabulary.from_tiktoken(enc).special_ids == {"<|a|>": 256, "<|b|>": 258}


def test_marks_take_the_place_of_tokens_without_changing_the_others(vocab):
    marked = vocab.marked(((X,), (T,)))
    assert marked.tokens[X] == b"\xff"
    assert marked.tokens[T] == b"\xfe"
    assert marked.tokens[1 + 0xFF] == marked.tokens[1 + 0xFE] == b""
    assert marked.tokens[: 1 + 0xFE] == vocab.tokens[: 1 + 0xFE]
    assert vocab.marked(((X,), (T,))) is marked
    assert vocab.marked(()) is vocab
    assert marked.fingerprint == vocab.fingerprint
    with pytest.raises(mw.errors.ConstraintError, match="the most is 13"):
        vocab.marked(tuple((i,) for i in range(257, 257 + 14)))


def test_those_marked_last_are_kept_and_a_copy_is_the_same_vocabulary(vocab):
    first = vocab.marked(((X,),))
    for i in range(1 + ord("a"), 1 + ord("j")):
        vocab.marked(((i,), (T,)))
    assert vocab.marked(((X,),)) is not first
    copied = pickle.loads(pickle.dumps(first))
    assert copied == first
    assert copied.fingerprint == vocab.fingerprint
    assert copied.spelling == first.spelling != vocab.spelling == vocab.fingerprint


def test_a_library_on_disk_is_of_tokens_as_they_are_spelt(tmp_path, monkeypatch):
    """Where a byte that is a mark stands in a token, that token is none while the mark is one."""
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path))
    tokens = [b"", *(bytes([b]) for b in range(256)), b'"<\xc0', b'"<']
    names = {f"<|{i}|>": len(tokens) + i for i in range(13)}
    vocab = mw.Vocabulary.from_bytes([*tokens, *[b""] * 13], eos=0, special=names)
    text = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": {"type": "string"}}}
    specials = {"type": "or", "elements": [{"type": "token", "token": name} for name in names]}
    for more in ([], [specials]):
        elements = [{**text, "end": "<f"}, *more]
        table = compile_structural_tag({"type": "sequence", "elements": elements}, vocab)
        for each in (table, table.to_table()):
            matcher = mw.Matcher(each)
            for byte in b'<f>"a':
                assert matcher.advance(1 + byte)
            assert [matcher.copy().advance(token) for token in (257, 258)] == [False, True]


def test_a_token_that_ends_texts_beside_others_is_not_named_in_a_grammar(vocab):
    several = vocab.with_ends([X, 98, T])
    assert several.ends == (0, X, T)  # and not 98, which spells a letter
    assert several.tokens[T] == b""
    assert vocab.tokens[T] != b""
    for name in ("<|x|>", "<t>"):
        with pytest.raises(mw.errors.ConstraintError, match="is one of the tokens that end a text"):
            mw.compile_grammar(f"start: {name} | <|y|>", several)
    assert mw.compile_grammar("start: <|y|>", several).accepts([Y, T])
