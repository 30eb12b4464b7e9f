"""Derivatives of random patterns against their whole DFAs, both dialects, searches and nested assertions included."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

import maskwright as mw
from maskwright.automata.alphabet import Alphabet
from maskwright.automata.budget import Budget
from maskwright.automata.dfa import Dfa
from maskwright.compile.regex.lower import to_dfa
from maskwright.compile.regex.pattern_rules import PatternRules
from maskwright.errors import BudgetError, RegexError

VOCABULARY = mw.Vocabulary.from_bytes([*(bytes([b]) for b in range(256)), b"aaa", b"abc"])
ATOMS = [
    *"abc1 é😀.",
    "ab",
    "ba",
    "abc",
    "[ab]",
    "[^a]",
    "[a-c]",
    "[éa]",
    r"[^\s\S]",
    r"\w",
    r"\W",
    r"\d",
    r"\s",
    r"\n",
]
PLACES = [r"\b", r"\B", "^", "$"]
PYTHON_PLACES = [*PLACES, r"\A", r"\Z", "(?m:^)", "(?m:$)", r"(?a:\b)", r"(?a:\B)"]
REPEATS = ["*", "+", "?", "*?", "{0}", "{2}", "{3}", "{1,2}", "{2,3}", "{2,}", "{0,3}", "{1,3}", "{3,5}"]
MOST_STATES = 600


def some_pattern(rng: random.Random, depth: int, places: list[str]) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        return rng.choice(ATOMS)
    if kind < 0.28:
        return rng.choice(places)
    inner = [some_pattern(rng, depth - 1, places) for _ in range(rng.choice([2, 2, 3]))]
    if kind < 0.5:
        return "".join(inner)
    if kind < 0.62:
        return f"(?:{'|'.join(inner)})"
    if kind < 0.8:
        return f"(?:{inner[0]}){rng.choice(REPEATS)}"
    return f"(?{rng.choice(['=', '!', '<=', '<!'])}{inner[0]})"


def some_characters(rng: random.Random, alphabet: Alphabet) -> list[list[bytes]]:
    """Return the bytes of some characters of each class."""
    points = defaultdict(list)
    stops = [*alphabet.starts.tolist()[1:], 0x110000]
    for start, stop, c in zip(alphabet.starts.tolist(), stops, alphabet.class_of_range.tolist(), strict=True):
        points[c] += [start, stop - 1]
    chosen = [rng.sample(points[c], min(2, len(points[c]))) for c in range(alphabet.classes)]
    return [[chr(point).encode() for point in each] for each in chosen]


def check(rng: random.Random, rules: PatternRules, dfa: Dfa) -> None:
    """Walk both together: the same characters lead to what can be completed, and texts end at the same places."""
    characters = some_characters(rng, rules.alphabets[0])
    seen = {(0, 0)}
    todo = [(0, 0)]
    while todo and len(seen) < MOST_STATES:
        state, q = todo.pop()
        assert rules.accepts(state) == dfa.accepting[q]
        for after, texts in zip(rules.row(state), characters, strict=True):
            for text in texts:
                to = q
                for byte in text:
                    to = dfa.step(to, byte) if to >= 0 else -1
                assert (to >= 0) == (after >= 0), text
                if to >= 0 and (after, to) not in seen:
                    seen.add((after, to))
                    todo.append((after, to))


@pytest.mark.parametrize("seed", range(24))
def test_states_of_random_patterns_are_those_of_their_dfas(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        dialect = rng.choice(["python", "python", "ecma"])
        options = {
            "dialect": dialect,
            "flags": rng.choice(["", "", "i", "m", "s"] + ["a"] * (dialect == "python")),
            "search": rng.random() < 0.25,
        }
        pattern = some_pattern(rng, rng.choice([2, 3, 4, 5]), PYTHON_PLACES if dialect == "python" else PLACES)
        if len(pattern) > 100:
            continue
        try:
            dfa = to_dfa(pattern, meter=Budget(states=20_000).begin(), **options)  # type: ignore[arg-type]
        except (RegexError, BudgetError):
            continue
        rules = PatternRules(pattern, VOCABULARY, **options)  # type: ignore[arg-type]
        assert rules.is_empty == dfa.is_empty, (pattern, options)
        if not dfa.is_empty:
            check(rng, rules, dfa)


@pytest.mark.parametrize(
    "pattern",
    [
        r".{20,90}(?<=a.{12})(?<=bb.{9})", r"[ab]{20,40}(?<=aab[ab]{8})(?<!b.{4})",
        r"(?!.*(.{3}a.{9}b)).{50,90}(?<=a.{12})", r"(?=.*x.{40}y)(?=.*y.{37}z).{200,400}",
        r"(?=.*[A-Z])(?=.*\d).{100,5000}(?<=x)",
    ],
)  # fmt: skip
def test_a_search_for_an_end_goes_straight_to_it(pattern: str) -> None:
    rules = PatternRules(pattern, VOCABULARY)
    assert not rules.is_empty
    assert rules.nbytes < 4_000_000
