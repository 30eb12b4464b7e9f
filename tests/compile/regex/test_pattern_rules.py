"""Patterns read by derivatives, against `re`, and against their whole DFAs."""

from __future__ import annotations

import itertools
import random
import re
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata.alphabet import NOTHING
from maskwright.automata.budget import Budget
from maskwright.automata.dfa import Dfa
from maskwright.compile.regex.lower import to_dfa
from maskwright.compile.regex.pattern_rules import PatternRules
from maskwright.errors import BudgetError
from tests.strategies.patterns import patterns

TEXT = st.text(st.sampled_from("abAkK1_- s\né.\u212a"), max_size=7)
LONGEST = 4
VOCAB = mw.Vocabulary.from_bytes([*(bytes([b]) for b in range(256)), *(c * LONGEST for c in (b"a", b"b", b"x", b"0"))])


def rules_of(pattern: str, **options: object) -> PatternRules:
    return PatternRules(pattern, VOCAB, **options)  # type: ignore[arg-type]


def read(rules: PatternRules, text: str) -> int:
    """Return the state behind a text, -1 if there is none."""
    state = 0
    for c in text:
        state = rules.row(state)[rules.alphabets[0].class_of(c)]
        if state < 0:
            return -1
    return state


def same_states(rules: PatternRules, dfa: Dfa, most: int) -> int:
    """Compare what can be completed, and where a text may end, in rules and a minimal DFA; return the states seen."""
    alphabet = rules.alphabets[0]
    seen = {(0, 0, -1)}
    todo = list(seen)
    while todo and len(seen) < most:
        state, q, inner = todo.pop()
        row = rules.row(state)
        if inner < 0:
            assert rules.accepts(state) == bool(dfa.accepting[q])
        for byte in {
            0x41,
            0x61,
            0x31,
            0x20,
            0x0A,
            0x5F,
            0xC3,
            0xA9,
            0xE2,
            0x84,
            0xAA,
            0xF0,
            0x9F,
            0x98,
            0x80,
            0x62,
            0x4B,
            0x6B,
            0x73,
        }:
            found = int(alphabet.root[byte] if inner < 0 else alphabet.inner[inner, byte])
            to = int(dfa.transition[q, dfa.class_of[byte]])
            if found == NOTHING:
                assert to < 0
                continue
            if found < 0:
                assert (row[~found] >= 0) == (to >= 0), (state, byte)
                after = (row[~found], to, -1)
            else:
                reached = any(
                    int(alphabet.reach[found, c >> 6]) >> (c & 63) & 1 and row[c] >= 0 for c in range(alphabet.classes)
                )
                assert reached == (to >= 0)
                after = (state, to, found)
            if to >= 0 and after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen)  # fmt: skip


def check(pattern: str, texts: list[str], **options: object) -> int:
    """Compare the states of a pattern; return how many were seen."""
    rules = rules_of(pattern, **options)
    dfa = to_dfa(pattern, meter=Budget(states=20_000).begin(), **options)  # type: ignore[arg-type]
    assert rules.is_empty == dfa.is_empty
    if dfa.is_empty:
        return 1
    for text in texts:
        state = read(rules, text)
        assert (state >= 0 and rules.accepts(state)) == dfa.accepts(text.encode())
    return same_states(rules, dfa, 2000)


@settings(max_examples=400)
@given(patterns, st.lists(TEXT, max_size=8))
def test_states_of_random_patterns_are_those_of_their_dfas(pattern: str, texts: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = re.compile(pattern)
        except re.error:
            return
    try:
        check(pattern, texts)
    except BudgetError:
        return
    rules = rules_of(pattern)
    for text in texts:
        state = -1 if rules.is_empty else read(rules, text)
        assert (state >= 0 and rules.accepts(state)) == (compiled.fullmatch(text) is not None)


@settings(max_examples=150)
@given(patterns, st.lists(TEXT, max_size=4))
def test_a_search_is_that_of_its_dfa(pattern: str, texts: list[str]) -> None:
    try:
        re.compile(pattern)
        check(pattern, texts, search=True)
    except (re.error, BudgetError):
        return


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:\ba?){3}b", r"(?:(?=a)|b){2,3}a", r"(?:\b){5}ab", r"(?:a|\b){3}", r"(?:a?\B){2,}b", r"(?:(?<=a)|b){2}",
        r"(?<=(?<=a)b)c|ab(?<=(?<=a)b)c", r"x*(?<!x{3})y", r"(?:ab|a)*(?<=b)a(?<!ba)", r"(?m:^a$\n?)+", r"a$\n?",
        r"(?<![ab]{2})c|[ab]*(?<![ab]{2})c", r"\B", r"\b", r"$", r"^^a$$", r"(?!)", r"a(?!)|b", r"(?:a(?=b)|b(?!b))*",
        r"(?=(a|b)*c)[abc]{2,4}(?<=c)", r"([ab]{3}|[bc]{5}){1,4}", r"(.{0,4}x){3}", r"(a|b)*a(a|b){5}",
        r"(a{2,3}){2,3}", r"(a{0,2}b{0,2}){1,3}", r"(?:(?:a{2}){2}){2}", r"(?=.*[A-Z])(?=.*\d).{3,5}",
        r"(?:a(?:b(?:c?){3}){2}){2}", r"[^a]*\p{L}{2,3}", r"(?i)k+\u212a", r"a(?<=a(?=b)b?)b",
        r"(?:a|b)*(?<!a(?!b|$).?)", r"(?<=(?!ab)a(?=.b)(?:\b)?)", r"(?:[ab]c?)*(?<=\b(?=a).c?(?<=b(?!c)|a(?=$)c?))",
        r"a*(?<=a{2}(?=b(?<=a.)))b*", r"(?:foo|bar\b)*(?<=o\b) ?x", r"(?:a|ab|abc)+c", r"a{3,}?b{,2}",
        r"(?<=^a)b|ab(?<=^ab)",
    ],
)  # fmt: skip
def test_states_of_odd_patterns_are_those_of_their_dfas(pattern: str) -> None:
    assert check(pattern, ["", "a", "ab", "abc", "aab", "b\n", "ba"])


def words(rules: PatternRules, state: int, left: int) -> set[str]:
    """Return the texts of up to so many characters that are read from a state, with a mark where a text may end."""
    found = {"$"} if rules.accepts(state) else set()
    if left:
        row = rules.row(state)
        for c, point in enumerate(rules.alphabets[0].representatives):
            if row[c] >= 0:
                found.add(chr(point))
                found |= {chr(point) + word for word in words(rules, row[c], left - 1) if word != "$"}
    return found


@pytest.mark.parametrize(
    "pattern",
    [
        "a{1,40}", ".{30,}b", "(a{3}|b){20,50}", "[ab]{9,40}c{7}", "(a{1,9}b){2,30}", "(?=a)a{20}", "a{12}|b{3,15}",
        "(a|bb){7,}", "x(a{30,60}y){9}", "(?:a?b{20}){11}", "(ab){1,99}c?", ".*foo.{20}",
    ],
)  # fmt: skip
def test_states_that_stand_for_others_read_the_same(pattern: str) -> None:
    rules = PatternRules(pattern, VOCAB)
    state, seen = 0, 0
    for _ in range(60):
        other = rules.alike(state)
        seen += other != state
        assert words(rules, other, LONGEST) == words(rules, state, LONGEST)
        row = [to for to in rules.row(state) if to >= 0]
        if not row:
            break
        state = row[seen % len(row)]
    assert seen or "(?=" in pattern


@pytest.mark.parametrize("pattern", [r".{1,2000}", r"[ab]{100,5000}", r"\w{0,1000}x"])
def test_counts_beyond_a_token_share_masks(pattern: str) -> None:
    rules = PatternRules(pattern, VOCAB)
    state, alike = 0, set()
    for _ in range(300):
        alike.add(rules.alike(state))
        state = rules.row(state)[rules.alphabets[0].class_of("a")]
    assert len(alike) <= 2 * LONGEST + 6


@pytest.mark.parametrize(
    "pattern",
    [
        r"\p{L}{1,500}", r".*foo.{20}", r"(a|b)*a(a|b){18}", r"([ab]{3}|[bc]{5}|[ca]{7}){1,50}", r"(.{0,40}x){20}",
        r"(\w+\s){1,300}",
    ],
)  # fmt: skip
def test_states_are_made_as_texts_reach_them(pattern: str) -> None:
    rules = PatternRules(pattern, VOCAB)
    rules.row(0)
    assert rules.num_states < 8


def test_a_search_that_takes_long_holds_up_no_text_and_is_counted() -> None:
    """A text of a and b has no a and b in the same place from its end, which takes 2 ** 19 states to see."""
    never = "(?=[ab]*a[ab]{18}$)(?=[ab]*b[ab]{18}$)[ab]*"
    began = time.thread_time()
    table = mw.compile_regex(f"x|y(?:z{never}|w)", VOCAB)
    matcher = mw.Matcher(table)
    assert matcher.advance(ord("y"))
    mask = matcher.mask()
    assert [b for b in range(256) if mask[b >> 5] >> (b & 31) & 1] == [ord("w")]
    assert time.thread_time() - began < 10
    assert isinstance(table, mw.LazyTable)
    assert table.left_out == 1
    assert mw.compile_regex("x|yw", VOCAB).left_out == 0  # type: ignore[union-attr]


WORDS = [
    *("hello", "Hello", "aa", "aaa", "aAa", "AA", "12", "1a", "a1", " a", "a ", "aa bb", "-a", "#a"),
    *("é", "éa", "aé", "éé", '"a', 'a"'),
    *("a" * 9, "1" * 9, "é" * 5, "aB" * 4, "x\n", "\nx", "а", "ая", "中文", "a中"),
]  # fmt: skip
OF_WORDS = mw.Vocabulary.from_bytes(
    [b"", *(bytes([b]) for b in range(256)), *(word.encode()[:n] for word in WORDS for n in (-1, None))],
    eos=0,
)  # fmt: skip


def same_masks(pattern: str, seed: int) -> None:
    """Compare masks along random texts with those of the whole table, over words."""
    rng = random.Random(seed)
    try:
        tables = [mw.compile_regex(pattern, OF_WORDS, lazy=lazy, budget=mw.Budget(seconds=5)) for lazy in (True, False)]
    except mw.errors.ConstraintError:
        return
    for _ in range(4):
        matchers, text = [mw.Matcher(table) for table in tables], b""
        for _ in range(10):
            mine, whole = (np.unpackbits(m.mask().view(np.uint8), bitorder="little") for m in matchers)
            assert np.array_equal(mine, whole), (pattern, text, np.flatnonzero(mine != whole)[:9])
            tokens = np.flatnonzero(mine[1 : OF_WORDS.size])
            if not tokens.size:
                break
            token = 1 + int(rng.choice(tokens))
            text += OF_WORDS.tokens[token]
            assert all(m.advance(token) for m in matchers)


@pytest.mark.parametrize("pattern", [
    r"[A-Z]?[a-z]*", r"-?\w*", r"[A-Z]{1,3}[a-z]*", r"[a-z]?[a-z ]*", r"[a-z]{0,2}[A-Z]*", r"(?:#?[a-z]*)x",
    r"[a-z]{2,6}",
    r"[a-z]{5}[0-9]{3}", r"[a-z ]{1,12}\.", r"[^\n]{0,8}", r"[^a]{2,5}a", r"\w{3}(?:[a-z]{1,3}[0-9]){1,3}",
    r"[\s\S]{4,8}$",
    r"[^\x00-\x7f]{1,3}", r"[a-zé]{1,4}", r"(?:[a-z]{1,3}){2,4}", r"[ab]{2,4}[ab]{2,4}", r"(?i)[a-z]{2,6}s",
    r"^.{0,4}é.{2}$", r"^a|b$", r"(^a|^b)c$", r"^^a$$", r"(?=[a-z]{3})\w{1,5}", r".{3}(?<=aa)", r"\b[a-z]{1,4}\b",
])  # fmt: skip
def test_masks_over_words_are_those_of_the_table(pattern: str) -> None:
    same_masks(pattern, 0)


@settings(max_examples=150)
@given(patterns, st.integers(0, 99))
def test_masks_of_random_patterns_over_words_are_those_of_their_tables(pattern: str, seed: int) -> None:
    same_masks(pattern, seed)


@pytest.mark.parametrize(
    "pattern", [r"(?:[a-z]{10}|[a-z]{3}!)", r"[a-z]{12}|[0-9]{3}", r"[ab]{40}|[a-z]{2,9}!", r"[a-z]{30}"]
)
@pytest.mark.parametrize("most", [4, 5, 6, 9, 12, 31, 45])
def test_texts_are_complete_within_a_budget(pattern: str, most: int) -> None:
    table = mw.compile_regex(pattern, OF_WORDS)
    for seed in range(10):
        rng = random.Random(seed)
        try:
            matcher = mw.Matcher(table, max_tokens=most)
        except mw.errors.ConstraintError:
            assert pattern == r"[a-z]{30}"
            assert most < 31
            return
        while not matcher.is_terminated:
            tokens = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
            assert tokens.size, (pattern, most)
            assert matcher.advance(int(rng.choice(tokens)))


@pytest.mark.parametrize("pattern", [
    r"(?:\d*[a-zé]{0,1}(?=.{3,40}x)){8}", r"(?:\d*[a-zé]{0,1}(?=.{3,40}x)){5}y", r"(?:\d*(?=.{3,40}x)[a-z]?){8}",
    r"(?:a(?=.{3,40}x)|ab(?=.{5,30}y)){3,}.{0,3}", r"(?<=(?=.{3,40}x)\d*)(?=.{9}x.{2,5})[a-z]{8}",
])  # fmt: skip
def test_lookahead_that_asks_for_more_than_may_follow_is_seen_soon(pattern: str) -> None:
    began = time.process_time()
    assert rules_of(pattern).is_empty
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("pattern", [
    r"(?:[ab](?=.{1,2}x)){2}[abx]{0,2}", r"(?:a(?=.x)|b(?=bb)){1,3}.{0,2}", r"a(?=..$)b?x?", r"(?:a?(?=x)){2}x",
    r"(?:a(?!bx)){2}b?", r"a(?=b(?=x))b?x", r"(?:(?=ab)a?){2}b", r"a(?=bb|)b", r"(?<=a(?=b))b|a(?<=a(?=bx))b",
])  # fmt: skip
def test_lookahead_beside_the_ends_of_texts_is_that_of_re(pattern: str) -> None:
    rules = rules_of(pattern)
    for n in range(6):
        for letters in itertools.product("abx", repeat=n):
            text = "".join(letters)
            state = read(rules, text)
            assert (state >= 0 and rules.accepts(state)) == bool(re.fullmatch(pattern, text)), text
