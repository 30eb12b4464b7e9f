"""Binding byte automata to vocabularies: every row against a byte-by-byte simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.automata.dfa import Dfa
from maskwright.automata.nfa import Nfa
from maskwright.automata.subsets import determinize
from maskwright.compile.bind.bind import bind
from maskwright.compile.regex.lower import to_dfa
from maskwright.runtime import numpy_ops
from maskwright.vocabulary.vocabulary import Vocabulary
from tests.strategies import tokenizer_zoo


def dfa_of(tree, most: int = 20_000) -> Dfa:
    """Return the automaton of a tree of tuples: bytes, ("+", ...), (".", ...), ("{}", tree, low, high)."""
    nfa = Nfa()

    def build(node):
        if isinstance(node, bytes):
            return nfa.literal(node)
        kind, *rest = node
        if kind == "[]":
            return nfa.symbols([(b, b) for b in sorted(rest[0])])
        if kind == "{}":
            return nfa.repeat(build(rest[0]), rest[1], rest[2])
        parts = [build(part) for part in rest]
        return nfa.union(parts) if kind == "|" else nfa.concat(parts)

    return determinize(nfa, build(tree), Budget(states=most).begin())


def run(dfa: Dfa, state: int, text: bytes) -> int:
    for byte in text:
        if state >= 0:
            state = int(dfa.transition[state, dfa.class_of[byte]])
    return state


def finishing(dfa: Dfa, tokens: list[bytes]) -> set[int]:
    """Return the states from which tokens lead to an accepting one, by the definition."""
    out = {s for s in range(dfa.num_states) if dfa.accepting[s]}
    while True:
        more = {s for s in range(dfa.num_states) for t in tokens if t and run(dfa, s, t) in out} - out
        if not more:
            return out
        out |= more


def check(dfa: Dfa, vocabulary: Vocabulary) -> None:
    """Compare every reachable row of the table with the simulation, or see it refused if there is nothing to write."""
    good = finishing(dfa, list(vocabulary.tokens))
    if dfa.is_empty or 0 not in good:
        with pytest.raises(mw.errors.ConstraintError):
            bind(dfa, vocabulary, source="", meter=Budget().begin())
        return
    table = bind(dfa, vocabulary, source="", meter=Budget().begin())
    pairs = {0: 0}  # table state -> automaton state
    queue = [0]
    while queue:
        node = queue.pop()
        state = pairs[node]
        expected = {t: run(dfa, state, text) for t, text in enumerate(vocabulary.tokens) if text}
        expected = {t: target for t, target in expected.items() if target in good}
        found = numpy_ops.edges(table, node)
        ending = found.pop(vocabulary.eos, None)
        assert (ending is not None) == bool(dfa.accepting[state])
        assert ending in (None, table.after_eos)
        assert set(found) == set(expected)
        assert found or ending is not None, "a dead end"
        for token, target in found.items():
            if target not in pairs:
                pairs[target] = expected[token]
                queue.append(target)
            assert pairs[target] == expected[token]
    assert sorted(pairs) == list(range(table.num_rows)), "rows that no token reaches"
    assert len(set(pairs.values())) == len(pairs), "equal states are one row"


LETTERS = b"abcd"
words = st.text("abcd", min_size=1, max_size=6).map(str.encode)
leaves = st.one_of(
    st.text("abcd", max_size=3).map(str.encode), st.sets(st.sampled_from(LETTERS), min_size=1).map(lambda s: ("[]", s))
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["|", "."]), inner, inner),
        st.tuples(st.just("{}"), inner, st.integers(0, 3), st.one_of(st.none(), st.integers(3, 60))),
    ),
    max_leaves=7,
)


@given(trees, st.sets(words, min_size=1, max_size=40), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_row_is_what_a_simulation_allows(tree, tokens, complete):
    tokens = tokens | {bytes([b]) for b in LETTERS} if complete else tokens
    try:
        dfa = dfa_of(tree, most=400)
    except mw.errors.BudgetError:  # repetitions inside repetitions can need exponentially many states
        reject()
    check(dfa, Vocabulary.from_bytes([b"", *sorted(tokens)], eos=0))


def all_words(length: int) -> list[bytes]:
    return [bytes(w) for n in range(1, length + 1) for w in itertools.product(LETTERS, repeat=n)]


@pytest.fixture(scope="module")
def wide() -> Vocabulary:
    """Every word of up to five letters and some longer ones: rows wide enough for masks and bases."""
    rng = np.random.default_rng(0)
    longer = {bytes(rng.choice(list(LETTERS), rng.integers(6, 12)).tolist()) for _ in range(600)}
    every = [bytes([b]) for b in range(256) if b not in LETTERS]
    return Vocabulary.from_bytes([b"", *all_words(5), *sorted(longer), *every], eos=0)


@pytest.fixture(scope="module")
def gappy() -> Vocabulary:
    """Wide as well, but without single bytes: what bytes could finish, tokens may not."""
    return Vocabulary.from_bytes([b"", *(w for w in all_words(5) if len(w) in (2, 3, 5) and w[:1] != b"d")], eos=0)


any_letter = ("[]", frozenset(LETTERS))


@pytest.mark.long
@pytest.mark.parametrize(
    "tree",
    [
        ("{}", any_letter, 0, None),
        ("{}", any_letter, 1, 50),
        ("{}", any_letter, 40, 45),
        (".", ("{}", any_letter, 0, 60), b"x", ("{}", any_letter, 0, 60)),
        (".", b'"', ("{}", ("|", any_letter, b"\\x"), 0, None), b'"'),
        (".", ("{}", any_letter, 0, None), b"abc", ("{}", any_letter, 0, None)),
        ("{}", (".", ("{}", ("[]", frozenset(b"ab")), 0, 7), b"c"), 0, 8),
        ("{}", ("|", b"ab", ("[]", frozenset(b"cd"))), 5, 70),
        ("|", ("{}", any_letter, 3, 40), (".", ("{}", any_letter, 0, None), b"dd")),
        (".", ("{}", ("[]", frozenset(b"abc")), 0, 9), ("{}", ("[]", frozenset(b"bcd")), 8, 9)),
    ],
    ids=str,
)
def test_rows_that_share_bases_are_what_a_simulation_allows(tree, wide, gappy):
    check(dfa_of(tree), wide)
    check(dfa_of(tree), gappy)


@pytest.mark.long
@pytest.mark.parametrize(
    "pattern",
    [
        r".*",
        r"[^\s]+é?",
        r"\w+( \w+)*",
        r'"([^"\\]|\\.)*"',
        r"[一-鿿]{0,60}x?",
        r"(?s:.){3,90}",
        r"[^\x80-\uffff]*[à-ü]+",
    ],
)
def test_rows_over_a_real_vocabulary_are_what_a_simulation_allows(pattern):
    """Whole subtrees of the token trie are taken at once where their characters lead back to the same state."""
    vocabulary = tokenizer_zoo.mistral_sentencepiece()[1]
    dfa = to_dfa(pattern)
    table = bind(dfa, vocabulary, source="", meter=Budget().begin())
    rng = np.random.default_rng(0)
    pairs = {0: 0}
    for _ in range(12):
        node = list(pairs)[rng.integers(len(pairs))]
        found = numpy_ops.edges(table, node)
        found.pop(vocabulary.eos, None)
        expected = {t: run(dfa, pairs[node], text) for t, text in enumerate(vocabulary.tokens) if text}
        expected = {t: target for t, target in expected.items() if target >= 0}
        assert set(found) == set(expected)
        for token, target in found.items():
            assert pairs.setdefault(target, expected[token]) == expected[token]


@pytest.mark.long
def test_a_long_repetition_takes_room_for_a_few_rows_only(wide):
    table = bind(dfa_of(("{}", any_letter, 1, 3000)), wide, source="", meter=Budget().begin())
    assert table.num_rows == 3001
    assert len(table.bases.masks) <= 16
    assert table.nbytes < 200_000  # 3,000 rows of 4,000 edges each would be 72 MB
    assert (table.min_length, table.max_length) == (1, 3000)
    check(dfa_of(("{}", any_letter, 1, 100)), wide)


def test_all_rows_of_equal_masks_share_one():
    vocabulary = Vocabulary.from_bytes([b"", *all_words(4)], eos=0)
    any_text = ("{}", any_letter, 0, None)
    table = bind(dfa_of((".", any_text, b"abcabd", any_text)), vocabulary, source="", meter=Budget().begin())
    assert len(table.bases.masks) == 1


def test_a_constraint_that_the_vocabulary_cannot_spell_is_refused():
    vocabulary = Vocabulary.from_bytes([b"", b"a", b"bb"], eos=0)
    with pytest.raises(mw.errors.ConstraintError, match="no text that fits the constraint can be written"):
        bind(dfa_of(b"ab"), vocabulary, source="", meter=Budget().begin())
    assert bind(dfa_of(b"abb"), vocabulary, source="", meter=Budget().begin()).accepts([1, 2, 0])


def test_tokens_with_the_same_bytes_are_edges_each():
    vocabulary = Vocabulary.from_bytes([b"", b"a", b"a", b"b"], eos=0)
    table = bind(dfa_of(b"ab"), vocabulary, source="", meter=Budget().begin())
    assert table.accepts([1, 3])
    assert table.accepts([2, 3, 0])
    assert not table.accepts([3])


def test_binding_stops_at_its_budget():
    vocabulary = Vocabulary.from_bytes([b"", *all_words(4)], eos=0)
    with pytest.raises(mw.errors.BudgetError, match="binding to the vocabulary"):
        bind(dfa_of(("{}", any_letter, 0, 50)), vocabulary, source="", meter=Budget(bytes=10_000).begin())
