"""Groups that depend on the order in which a matcher tries things, and on other groups: what Python's `re` says."""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections.abc import Iterator

import pytest

from maskwright.compile.regex.lower import to_dfa
from maskwright.errors import RegexError


def texts_of(letters: str, longest: int) -> Iterator[str]:
    return ("".join(word) for n in range(longest + 1) for word in itertools.product(letters, repeat=n))


def compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None


def a_pattern_of(kinds: str, rng: random.Random, depth: int, groups: list[int]) -> str:
    """Return a pattern of letters, rows, branches, repeats, and of these kinds: possessive, atomic, group, if."""
    kind = rng.choice(kinds) if depth else "letter"

    def inner() -> str:
        return a_pattern_of(kinds, rng, depth - 1, groups)

    match kind:
        case "c":
            return inner() + inner()
        case "b":
            return f"(?:{inner()}|{inner()})"
        case "r":
            return f"(?:{inner()}){rng.choice(['*', '+', '?', '{1,2}', '*?', '+?', '??'])}"
        case "p":
            return f"(?:{inner()}){rng.choice(['*+', '++', '?+', '{1,2}+'])}"
        case "a":
            return f"(?>{inner()}|{inner()})"
        case "g":
            groups[0] += 1
            return f"({inner()}){rng.choice(['', '?', '*'])}"
        case "i" if groups[0]:
            return f"(?({rng.randint(1, groups[0])}){inner()}|{inner()})"
    return rng.choice("abc")


@pytest.mark.parametrize(
    ("kinds", "sign", "least"),
    [
        pytest.param(
            "cbrpa", r"\?>|[*+?}]\+", 200,
            marks=pytest.mark.skipif(sys.version_info < (3, 11, 5), reason="re itself is wrong about these"),
        ),
        ("cbrgi", r"\(\?\(", 150),
    ],
)  # fmt: skip
def test_groups_that_depend_on_the_order_of_trying_are_what_re_says(kinds: str, sign: str, least: int) -> None:
    compared = 0
    texts = list(texts_of("abc", 5))
    for seed in range(3000):
        pattern = a_pattern_of(kinds, random.Random(seed), 4, [0])
        if not re.search(sign, pattern) or (judge := compiled(pattern)) is None:
            continue
        try:
            dfa = to_dfa(pattern)
        except RegexError:
            continue
        compared += 1
        expected = [text for text in texts if judge.fullmatch(text)]
        assert [text for text in texts if dfa.accepts(text.encode())] == expected, pattern
    assert compared > least


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)?b(?(1)c|d)", r"(?:(a)|(b))(?(1)c|(?(2)a|b))", r"(?P<x><)?a(?(x)>)", r"(?:x|(a))(?:b(?(1)c|a))*",
        r"(?(1)a|b)(c)?", r"(?:(a)b)?(?:c|(?(1)a|b)){1,2}", r"(a)?(?=(?(1)b|c)).", r"((a)|b)(?(2)c)(?(1)a)",
        r"(a)*(?(1)b|c)",
        r"(?>a|ab)c", r"(?>a*?)b", r"(?:ab|a)++b?", r'"(?>[^"\\]+|\\.)*"', r"(?>(?i:aB)|a)c*", r"x(?>a*)", r"(a)*+",
    ],
)  # fmt: skip
def test_conditionals_and_atomic_groups_are_what_re_says(pattern: str) -> None:
    dfa, judge = to_dfa(pattern), re.compile(pattern)
    for text in texts_of('abcdx<>"\\B'[: 7 if '"' not in pattern else 12], 4):
        assert dfa.accepts(text.encode()) == bool(judge.fullmatch(text)), (pattern, text)
