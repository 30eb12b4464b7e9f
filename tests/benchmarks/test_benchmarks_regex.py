"""The benchmark of regular expressions: its patterns mean what they say, and it calls a wrong engine wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import peers
from benchmarks.harness import ROOT
from benchmarks.suites.regexes import worker
from benchmarks.suites.regexes.patterns import PATTERNS, Pattern, check, mutations
from benchmarks.suites.regexes.patterns.hard import between, segments

TOY = peers.Tokenizer(
    [b"", b"", b"", *(bytes([i]) for i in range(256)), b"ab", b"ba"],
    [0, 1, 2],
    2,
    lambda text: [259 if piece == "ab" else ord(piece) + 3 for piece in re.findall("ab|.", text, re.DOTALL)],
)


class Naive:
    """An exact engine by brute force: a token is allowed if some continuation of up to two letters matches."""

    package = "naive"

    def __init__(self, tokenizer, accepts_more=None, refuses=None, commits=True, forbids=None):
        self.tokenizer, self.accepts_more, self.refuses, self.commits = tokenizer, accepts_more, refuses, commits
        self.forbids = forbids

    def compile(self, pattern):
        re.compile(pattern.pattern)
        return pattern

    def matches(self, pattern, text):
        if text == self.refuses:
            return False
        return text == self.accepts_more or re.fullmatch(pattern.pattern, text) is not None

    def session(self, pattern):
        text, bits = [""], np.zeros(9, np.uint32)

        def alive(text):
            return any(self.matches(pattern, text + rest) for rest in ("", "a", "b", "ab", "ba"))

        def mask():
            bits[:] = 0
            for i, token in enumerate(self.tokenizer.tokens):
                allowed = alive(text[0] + token.decode("latin-1")) if token else i == 2 and self.matches(pattern, *text)
                allowed &= i != self.forbids
                bits[i >> 5] |= np.uint32(allowed) << np.uint32(i & 31)

        def commit(token):
            text[0] += self.tokenizer.tokens[token].decode("latin-1")
            return self.commits and alive(text[0])

        return peers.Session(mask, commit, lambda: bits, peers.no_fault)


def verdicts(**wrong):
    pattern = Pattern("few", "toy", "a(ba)*b?", ("aba", "abab", "a"), ("", "b", "aa"))
    return worker.verdicts(Naive(TOY, **wrong), pattern, pattern, TOY)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name)
def test_every_text_matches_or_not_as_it_is_listed(pattern):
    check(pattern)


@pytest.mark.parametrize(
    ("positive", "negative"), [(("a", "b", "c"), ("x", "y", "z")), (("b",) * 3, ("x", "y", "z")), (("b", "bb"), ("x",))]
)
def test_a_text_that_is_listed_wrongly_is_found_and_so_are_too_few(positive, negative):
    with pytest.raises(ValueError, match="pattern 'p'"):
        check(Pattern("p", "toy", "b+", positive, negative))


def test_there_are_forty_usual_patterns_and_no_name_twice():
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS)
    assert sum(pattern.group not in ("hard", "irregular") for pattern in PATTERNS) >= 40
    assert sum(pattern.group == "hard" for pattern in PATTERNS) >= 15
    assert max(len(pattern.choices) for pattern in PATTERNS) == 10_000


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p.choices], ids=lambda p: p.name)
def test_a_list_of_choices_is_what_its_pattern_matches(pattern):
    matches = pattern.truth()
    assert pattern.pattern == "|".join(pattern.choices)
    assert len(set(pattern.choices)) == len(pattern.choices)
    assert not any(set("|()[]{}?*+.\\^$") & set(choice) for choice in pattern.choices)
    assert all(map(matches, pattern.choices[:200]))
    assert not any(map(matches, {*pattern.positive, *pattern.negative} - {*pattern.choices}))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name)
def test_mutations_are_new_texts_and_the_same_every_time(pattern):
    texts = mutations(pattern)
    assert texts == mutations(pattern)
    assert len({*texts, *pattern.positive, *pattern.negative}) == 20 + len({*pattern.positive, *pattern.negative})


def test_most_mutations_match_no_more_and_some_still_do():
    matching = [matches(text) for pattern in PATTERNS for matches in [pattern.truth()] for text in mutations(pattern)]
    assert 0.1 < np.mean(matching) < 0.6


@given(st.text("xy\n", max_size=12), st.integers(0, 3), st.integers(1, 4))
def test_segments_says_what_re_says(text, longest, times):
    assert segments(longest, times)(text) == bool(re.fullmatch(f"(.{{0,{longest}}}x){{{times}}}", text))


@given(st.text("ab", max_size=12), st.integers(1, 5))
def test_between_says_what_re_says(text, count):
    assert between(count)(text) == bool(re.fullmatch(f"(?:a?){{{count}}}a{{{count}}}", text))


def test_an_exact_engine_is_called_exact():
    found = verdicts()
    assert found == {"texts": 2 * (6 + 20), "narrow": 0, "wrong_accepts": [], "wrong_rejects": [], "faults": []}


def test_an_engine_that_accepts_too_much_is_called_wrong():
    assert verdicts(accepts_more="aa")["wrong_accepts"] == [
        {"text": "aa", "by": "tokens"},
        {"text": "aa", "by": "bytes"},
    ]


def test_an_engine_that_accepts_too_little_is_called_wrong():
    found = verdicts(refuses="abab")
    assert {"text": "abab", "by": "tokens"} in found["wrong_rejects"]
    assert not found["wrong_accepts"]


def test_an_engine_that_refuses_what_its_mask_allows_is_called_faulty():
    found = verdicts(commits=False)
    assert "which its mask allows" in found["faults"][0]["error"]


def test_a_mask_that_forbids_a_token_the_engine_takes_is_called_narrow_not_wrong():
    found = verdicts(forbids=TOY.spell("b")[0])
    assert found["narrow"] >= 2
    assert not found["wrong_rejects"]


@pytest.mark.parametrize("text", ["", "aab", "naïve 日本", "\n"])
def test_both_ways_to_cut_a_text_spell_it(text):
    assert b"".join(TOY.tokens[token] for token in TOY.spell(text)) == text.encode()


def test_a_worker_answers_each_pattern_twice_or_says_why_it_refuses():
    pytest.importorskip("outlines_core")
    pytest.importorskip("mistral_common")
    names = ["date", "repeated word"]
    out = subprocess.run(
        [sys.executable, "-m", worker.__name__, "outlines-core"],
        input="\n".join(names) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    ready, compiled, found, refused = map(json.loads, out.stdout.splitlines())
    assert ready == {"ready": True}
    assert compiled["compiled"] > 0
    assert found["texts"] == 2 * (len(PATTERNS[0].positive) + len(PATTERNS[0].negative) + 20)
    assert "refused" in refused
