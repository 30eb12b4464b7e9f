r"""Patterns as automata: `re.fullmatch` is the judge of Python's dialect, tables are of ECMA 262's and of errors."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.automata.dfa import Dfa
from maskwright.automata.utf8 import Ranges
from maskwright.compile.regex.lower import to_dfa
from maskwright.compile.regex.parse import parse
from maskwright.compile.regex.tree import Chars
from maskwright.compile.regex.unicode import ecma_ignoring_case, ignoring_case, property_of, shorthand, union
from maskwright.depth import MOST_GROUPS
from maskwright.errors import BudgetError, ConstraintError, RegexError
from tests.strategies.patterns import patterns

# --------------------------------------------------------------------------------------- the language, by examples

# pattern, texts that match as a whole, texts that do not
LANGUAGE: list[tuple[str, list[str], list[str]]] = [
    ("", [""], ["a"]),
    ("abc", ["abc"], ["", "ab", "abcd", "ABC"]),
    ("a|bc|", ["a", "bc", ""], ["b", "abc"]),
    ("(ab)+c?", ["ab", "ababc"], ["", "aba", "c"]),
    ("(?P<year>[0-9]{4})-(?:[0-9]{2})", ["2024-05"], ["24-05", "2024-5"]),
    ("a{2}b{1,2}c{,2}d{2,}", ["aabdd", "aabbccddd"], ["abdd", "aabd", "aabcccdd"]),
    ("a{,}b{}c{x}{", ["b{}c{x}{", "aab{}c{x}{"], ["b"]),
    ("a*?b+?c??", ["b", "aabbc"], ["", "a"]),
    (r"\a\f\n\r\t\v\\\0\x41\u00e9\U0001F600\101\08", ["\a\f\n\r\t\v\\\0Aé😀A\08"], [""]),
    (r"\N{EM DASH}\N{LATIN SMALL LETTER E WITH ACUTE}", ["—é"], ["-e"]),
    (r"\.\*\é\ \-\"", ['.*é -"'], []),
    (r"[]a-][^]b][a\-c][\b][[:x]", ["]c-\b[", "-a-\b:"], ["b]a\bx"]),
    ("[a-c0-9_-]+", ["a-9_"], ["d", ""]),
    (r"[^\d\s]", ["a", "é", "😀"], ["1", "٣", " ", "\u3000", "aa"]),
    ("[+--c][x&&y][p||q][[a]", [",xp[", "c&|a"], ["axpa"]),
    (".", ["a", "é", "😀", "\r", "\u2028"], ["\n", "", "aa"]),
    ("(?s).", ["\n"], [""]),
    ("(?s:.).", ["\na"], ["a\n"]),
    (r"\d+", ["12", "٣४"], ["a", "²"]),
    (r"(?a)\d+", ["12"], ["٣"]),
    (r"\w+", ["aé_1", "日本"], ["a b", "-"]),
    (r"(?a)\w+", ["a_1"], ["é"]),
    (r"(?a:\w)\w", ["aé"], ["éa"]),
    (r"\s+", [" \t\u00a0\u2003\u3000\x1c"], ["\u200b", "\ufeff"]),
    (r"(?a)\s+", [" \t\n\r\f\v"], ["\x1c", "\u00a0"]),
    (r"\D\S\W", ["ab-"], ["1b-", "a -", "abc"]),
    ("(?i)straße", ["STRAßE", "Straẞe"], ["strasse"]),
    ("(?i)k[s]\u00b5", ["\u212as\u03bc", "kſ\u039c", "kS\u00b5"], ["xs\u00b5"]),
    ("(?ai)k[s]", ["KS"], ["\u212as", "kſ"]),
    ("(?i:a)b", ["Ab", "ab"], ["aB"]),
    ("(?i)a(?-i:b)", ["Ab"], ["AB"]),
    ("(?i)[^a]", ["b"], ["a", "A"]),
    ("(?i)[α-ω]", ["Σ", "ς", "σ"], ["a"]),
    ("(?x) a b # comment\n [ ] \\  c", ["ab  c"], ["ab c", "a b"]),
    ("(?x: a b)c d", ["abc d"], ["a bc d"]),
    ("a(?#comment \\) still)b", ["ab"], ["a"]),
    ("^abc$", ["abc"], ["abc\n"]),
    ("a$\n", ["a\n"], ["a", "a\n\n"]),
    ("a$\n?", ["a", "a\n"], ["a\n\n"]),
    (r"a\Z\n?", ["a"], ["a\n"]),
    (r"\Aa|^b|c$", ["a", "b", "c"], ["bc"]),
    ("(?:^a|b$|c)*", ["acc", "ccb", "acb", ""], ["ca", "bc", "bb"]),
    ("(?m)(?:^a$\n?)*", ["a\na\na", "a\n"], ["aa"]),
    ("a^b|a$b|^$", [""], ["ab"]),
    (r"\bword\b", ["word"], ["words"]),
    (r"a\b.\bb|a\B.\Bb", ["a-b", "axb"], ["ab"]),
    (r"(?:\b\w+\b\W*)+", ["one, two", "é"], ["", "-"]),
    (r"(?:a\b|\B-|b)*", ["ba", "b", "--"], ["ab", "b-", "a-"]),
    (r"(?a:\b)é", [], ["é"]),
    (r"^(?!foo|bar$)\w+$", ["baz", "barn", "fo"], ["foo", "food", "bar"]),
    (r"(?=.*\d)(?=.*[a-z]).{3,5}", ["a1_", "123a"], ["a1", "abc", "123", "a12345"]),
    ("((?!-->).)*-->", ["-->", "a--b-->"], ["-->-->", "a--"]),
    ("(?:a(?=b)|b(?=c)|c)*", ["abc", "c", "bcabc"], ["a", "ab", "acb"]),
    ("x*(?=y).*", ["xxy", "yz"], ["xx", "xz"]),
    ("(?<=a)b|a(?<=a)b|(?<!a)c", ["ab", "c"], ["b"]),
    (".*(?<!foo)(?<=r)", ["bar"], ["foo", "", "foos"]),
    (r".*(?<=a+b*)c", ["ac", "xaabc"], ["bc", "c"]),  # `re` has no lookbehind of varying width
    ("(?:a(?=.*(?<=b)c)|b|c)*", ["abc", "bcb", "aabc"], ["ac", "acb"]),
    ("(?:(?=a))*(?:(?!b))?a|(?=a)*b", ["a", "b"], ["ab"]),
    ("(?=a)b|[^\\0-\\U0010ffff]|(?!)", [], ["", "a", "b"]),
    (r"\p{Lu}\p{Ll}+\pN\P{L}", ["Éa1-", "Ab٣1"], ["éa1-", "Éa1a"]),
    (r"\p{Script=Greek}\p{Greek}\p{L&}\p{^L}[\p{Lu}\p{Nd}][^\p{L}]", ["αβa-A1", "αβA٣٣-"], ["αba-A1", "αβ中-A1"]),
    (r"(?i)\p{Lu}", ["a", "A"], ["中"]),
    (r"(?i)\P{Lu}", ["中"], ["a", "A"]),
    ("[\ud800-\udfff]|[^\ud800-\udfff]", ["a"], []),
]


@pytest.mark.parametrize(("pattern", "accepted", "rejected"), LANGUAGE)
def test_a_pattern_accepts_these_texts_and_not_those(pattern: str, accepted: list[str], rejected: list[str]) -> None:
    dfa = to_dfa(pattern)
    assert [text for text in accepted if not dfa.accepts(text.encode())] == []
    assert [text for text in rejected if dfa.accepts(text.encode())] == []
    judge = compiled(pattern)
    if judge:  # the table itself is judged where `re` reads the pattern
        assert [text for text in accepted if not judge.fullmatch(text)] == []
        assert [text for text in rejected if judge.fullmatch(text)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"a*+a",
        r"a++b",
        r"a?+ab",
        r"[ab]*+c",
        r"a{1,2}+a",
        r"a{1,2}+[ab]c?",
        r"(?:a{2}+b)+",
        r"a{,2}+a*",
        r"(?i)a*+Ab",
    ],
)
def test_a_possessive_character_takes_as_many_as_there_are(pattern: str) -> None:
    dfa, judge = to_dfa(pattern), re.compile(pattern)
    for text in short_texts("abcA", 5):
        assert dfa.accepts(text.encode()) == bool(judge.fullmatch(text)), (pattern, text)


def test_flags_given_apart_mean_what_they_mean_inside_a_pattern() -> None:
    for flags, pattern in (("i", "aé"), ("s", "."), ("m", "(?:^a$\n?)*"), ("x", "a b"), ("a", r"\w\d"), ("ims", "^.K")):
        assert same(to_dfa(pattern, flags=flags), to_dfa(f"(?{flags}){pattern}"))
        assert not same(to_dfa(pattern, flags=flags), to_dfa(pattern))
    for dialect in ("python", "ecma"):  # "u" says nothing new
        assert same(to_dfa(r"\w", flags="u", dialect=dialect), to_dfa(r"\w", dialect=dialect))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pattern", ["a", "^a", "a$", "^a$|b", "(^|,)a(,|$)", r"\ba\b", "(?m)^a$", "(?<=b)a(?!b)", "$", "^a?$"]
)
def test_a_search_finds_a_match_anywhere(pattern: str) -> None:
    dfa, judge = to_dfa(pattern, search=True), re.compile(pattern)
    for text in short_texts("ab,\n", 5):
        assert dfa.accepts(text.encode()) == bool(judge.search(text)), (pattern, text)
    assert not dfa.accepts(b"a\xff")


# ----------------------------------------------------------------------------------------- the language, at random


def compiled(pattern: str) -> re.Pattern[str] | None:
    """The pattern as `re` reads it, or None."""
    with warnings.catch_warnings(), contextlib.suppress(re.error, OverflowError, ValueError, RecursionError):
        warnings.simplefilter("ignore")
        return re.compile(pattern)
    return None


def same(a: Dfa, b: Dfa) -> bool:
    """Whether two canonical DFAs have the same language."""
    return (
        np.array_equal(a.transition, b.transition)
        and np.array_equal(a.class_of, b.class_of)
        and np.array_equal(a.accepting, b.accepting)
    )


def short_texts(letters: str, longest: int) -> Iterator[str]:
    for length in range(longest + 1):
        for text in itertools.product(letters, repeat=length):
            yield "".join(text)


LETTERS = "abAkK\u212a1_- \n\r\u00e9s\u017f"


@pytest.mark.long
@settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(patterns, st.lists(st.text(LETTERS, max_size=5), max_size=30), st.integers(0, 2**32 - 1))
def test_random_patterns_accept_exactly_what_re_fullmatch_accepts(pattern: str, texts: list[str], seed: int) -> None:
    judge = compiled(pattern)
    assume(judge)
    assert judge is not None
    dfa = to_dfa(pattern)
    rng = np.random.default_rng(seed)
    candidates = {"", *texts, *(word.decode() for word in dfa.members(8))}
    for length in (1, 3, 6) if not dfa.is_empty else ():
        with contextlib.suppress(ConstraintError):  # no member is as short
            candidates.add(dfa.sample(rng, length).decode())
    for text in list(candidates):  # near misses
        at, letter = int(rng.integers(len(text) + 1)), LETTERS[int(rng.integers(len(LETTERS)))]
        candidates |= {text[:at] + letter + text[at:], text[:at] + text[at + 1 :], text[:at] + letter + text[at + 1 :]}
    for text in candidates:
        if len(text) <= 9:  # `re` can take exponential time
            assert dfa.accepts(text.encode()) == bool(judge.fullmatch(text)), text


PIECES = r"""(?: (?P<n> (?= (?<=a) (?i) (?x) (?i: (?-i: (?# {1,2} {,2} {2} \d \b \x41 \u0041 \N{DASH} \012 \0 [a- [^ \q
\Z \8 \777 {2,1} \x4 (?z (?au {99999999999} (?L) (?i-i: \U00110000"""
pieces = st.sampled_from([*r"ab(){}[]*+?|^$.,-\12:=!<>#Pimsx é", *PIECES.split(), "\n", r"\N{EM DASH}"])
OURS = ("back-reference", "atomic group", "possessive", "a conditional ", "surrogate")


@pytest.mark.long
@settings(deadline=None, max_examples=1500)
@given(st.lists(pieces, min_size=1, max_size=7).map("".join))
def test_a_pattern_is_malformed_where_re_says_so_and_nowhere_else(pattern: str) -> None:
    judge, error = compiled(pattern), None
    try:
        parse(pattern)
    except RegexError as raised:
        error = raised
    if judge:
        assert error is None or any(reason in str(error) for reason in OURS)
    else:
        assert error
        assert 0 <= error.position <= len(pattern)


def test_random_trees_of_assertions_agree_with_re_on_all_short_texts() -> None:
    for pattern in (
        "(?:a(?=b(?!c))|b(?<!bb)|c)*",
        r"(?:a(?=.\bc)|b(?=.*(?<=a)c)|c| )*",
        r"(?m)(?:a(?<=^a(?=.*b))|b(?=.*(?<=a)c$)|c|(?<!a\B)\n)*",
        r"(\Ba|b)*\B",
        r"(?:(?=a)|b)*a?",
        "(?:(?!(?=a(?!b))).)*c",
        "(?:a|(?<=a(?=b))b|(?<![^c])c)*",
        "a?(?:^|b|$)*a?",
    ):
        dfa, judge = to_dfa(pattern), re.compile(pattern)
        for text in short_texts("abc \n", 5):
            assert dfa.accepts(text.encode()) == bool(judge.fullmatch(text)), (pattern, text)


@settings(deadline=None, max_examples=100)
@given(patterns)
def test_every_member_is_valid_utf8(pattern: str) -> None:
    dfa = to_dfa(pattern)
    for word in dfa.members(20):
        word.decode()
    assert not dfa.accepts(b"\xff")
    assert not dfa.accepts(b"\xc3")


def test_equal_languages_are_equal_automata_however_they_are_written() -> None:
    for one, other in (
        (r"\bfoo\b", "foo"),
        ("(?=a)[ab]", "a"),
        ("a*?b", "a*b"),
        ("(?!b)[ab]+", "a[ab]*"),
        ("((?!--).)*", "(?:(?!--).)*(?<!--)"),
        (r"[^\W\d_]", r"(?![\d_])\w"),
        (r"(?:(?=a|b).)*", "[ab]*"),
        (r".*\bfoo\b.*", r"(?:.*[^\w\n])?foo(?:[^\w\n].*)?"),
    ):
        assert same(to_dfa(one), to_dfa(other)), one


# ----------------------------------------------------------------------------------------------------- characters


def points(ranges: Ranges) -> set[int]:
    return {point for low, high in ranges for point in range(low, high + 1)}


EVERY = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]


@pytest.mark.parametrize("letter", "dDsSwW")
@pytest.mark.parametrize("ascii_only", [False, True])
def test_shorthands_hold_the_characters_that_re_matches(letter: str, ascii_only: bool) -> None:
    judge = re.compile(f"\\{letter}", re.ASCII if ascii_only else re.UNICODE)
    assert points(shorthand(letter, ascii_only)) == {ord(c) for c in EVERY if judge.match(c)}


@pytest.mark.parametrize("ascii_only", [False, True])
def test_ignoring_case_a_letter_stands_for_the_letters_that_re_matches(ascii_only: bool) -> None:
    cased = [c for c in EVERY if c.lower() != c or c.upper() != c]
    text = "".join(cased)
    for c in cased[:: 1 if ascii_only else 2]:
        judge = re.compile(re.escape(c), re.IGNORECASE | (re.ASCII if ascii_only else re.UNICODE))
        assert points(ignoring_case(((ord(c), ord(c)),), ascii_only)) == {ord(d) for d in judge.findall(text)}
    re.purge()


@pytest.mark.long
def test_ignoring_case_a_range_stands_for_the_characters_that_re_matches() -> None:
    for low, high in (("a", "f"), ("0", "ÿ"), ("α", "ω"), ("Ā", "￿"), ("𐐀", "𐐧"), (" ", "\U0010ffff")):
        judge = re.compile(f"[{low}-{high}]", re.IGNORECASE)
        ranges = union(((ord(low), ord(high)),))
        assert points(ignoring_case(ranges, False)) == {ord(c) for c in EVERY if judge.match(c)}


@pytest.mark.parametrize("name", ["L", "Lu", "LC", "Script=Greek", "Greek", "White_Space", "Nd", "sc=Latn", "gc=P"])
def test_properties_hold_the_characters_that_the_regex_package_matches(name: str) -> None:
    judge = regex.compile(f"\\p{{{name}}}")
    assert points(property_of(name, False)) == {ord(c) for c in EVERY if judge.match(c)}


def test_ecma_case_folding_is_simple_and_symmetric() -> None:
    for letters in (
        "kK\u212a",
        "sS\u017f",
        "ß\u1e9e",
        "\u00b5\u03bc\u039c",
        "σςΣ",
        "\u00e5\u00c5\u212b",
        "\u1f80\u1f88",
    ):
        for c in letters:
            assert points(ecma_ignoring_case(((ord(c), ord(c)),))) == {ord(d) for d in letters}
    for c in "İı1":
        assert points(ecma_ignoring_case(((ord(c), ord(c)),))) == {ord(c)}


# ----------------------------------------------------------------------------------------------------------- ECMA

ECMA: list[tuple[str, list[str], list[str]]] = [
    (r"\d\w\s", ["1a\ufeff", "9_\u2028", "0Z\u00a0"], ["٣a ", "1é ", "1a\u200b", "1a\x1c"]),
    (r"\D\W\S", ["aé1", "٣-\x1c"], ["1-1"]),
    (".", ["a", "😀", "\u0085"], ["\n", "\r", "\u2028", "\u2029"]),
    (r"\u{1F600}\uD83D\uDE00\u0041\x42\cJ\0\t\v\f", ["😀😀AB\n\0\t\v\f"], []),
    (r"(?<year>\d{4})", ["2024"], ["24"]),
    ("[^]", ["a", "\n", "😀"], ["", "aa"]),
    ("[]|a", ["a"], ["", "]"]),
    ("a$", ["a"], ["a\n"]),
    ("a$\\n", [], ["a", "a\n"]),
    (r"[\w-.]+\-\_\/\@", ["a-.b-_/@"], ["a"]),
    (r"[\b]", ["\b"], ["b"]),
    ("a{,2}}]", ["a{,2}}]"], ["a"]),
    (
        r"\p{Lu}\p{Letter}\p{General_Category=Nd}\p{sc=Grek}\P{ASCII}\p{Alphabetic}",
        ["Éa1βéx"],
        [],
    ),
    (r"\p{Script_Extensions=Greek}\p{scx=Latin}\p{Emoji_Presentation}\p{Any}", ["αa😀x"], []),
    (r"(?i:k\w[^a])b", ["\u212aſxb", "kKXb"], ["kkAb", "kkab", "kkxB"]),
    (r"(?i:\P{Lu})", ["a", "A"], []),
    (r"(?i:\W)", ["-"], ["k", "\u212a", "ſ", "s"]),
    ("(?s-i:.)", ["\n"], []),
    (r"\B", [""], ["a"]),
    (r"(?<=a+)b|a(?<!b)c|\bé\b", ["ac"], ["b", "é"]),
    ("(?m:^a$)\\u2028(?m:^)b", ["a\u2028b"], []),
    ("(?=a){1}a*", ["a", "aaa"], [""]),
]


@pytest.mark.parametrize(("pattern", "accepted", "rejected"), ECMA)
def test_an_ecma_pattern_accepts_these_texts_and_not_those(
    pattern: str, accepted: list[str], rejected: list[str]
) -> None:
    dfa = to_dfa(pattern, dialect="ecma")
    assert [text for text in accepted if not dfa.accepts(text.encode())] == []
    assert [text for text in rejected if dfa.accepts(text.encode())] == []


def test_an_ecma_search_is_what_json_schema_asks() -> None:
    for pattern, accepted, rejected in (
        ("^foo$", ["foo"], ["foo\n", "xfoo"]),
        ("oo", ["foo", "oo\n", "\noo"], ["fo"]),
        (r"^\S+\s$", ["a "], ["a", " "]),
        ("^(?!.*--)[a-z-]+$", ["a-b"], ["a--b"]),
        ("(^|x)a", ["a", "ba x xa"], ["ba"]),
        ("(?m:^a)", ["b\u2028a", "a"], ["ba"]),
    ):
        dfa = to_dfa(pattern, dialect="ecma", search=True)
        assert [text for text in accepted if not dfa.accepts(text.encode())] == []
        assert [text for text in rejected if dfa.accepts(text.encode())] == []


# --------------------------------------------------------------------------------------------------------- errors

# pattern, position of the caret, part of the message
ERRORS = [
    ("(a", 0, "this group is never closed: add )"),
    ("a)", 1, "this ) closes no group"),
    ("a[b", 1, "this set is never closed: add ]"),
    ("a[z-a]", 2, "this range runs backwards, from 'z' to 'a'"),
    (r"[\d-z]", 3, "a range needs a character at either end"),
    ("*a", 0, "there is nothing to repeat"),
    ("a|*", 2, "there is nothing to repeat"),
    ("a**", 2, "what is repeated is repeated already"),
    (r"\b+", 2, "a place in the text cannot be repeated"),
    ("a{3,2}", 1, "at least 3 and at most 2 times is never"),
    ("a{4294967295}", 1, "repeats more often than"),
    ("abc\\", 3, "the pattern ends in a backslash"),
    (r"a\q", 1, r"there is no escape \q: write q"),
    (r"[\Z]", 1, r"there is no escape \Z inside brackets"),
    (r"\x4", 0, r"\x needs 2 hexadecimal digits"),
    (r"\u12", 0, r"\u needs 4 hexadecimal digits"),
    (r"\U00110000", 0, "Unicode ends at 10FFFF"),
    (r"\ud83d\ude00", 0, "half a surrogate pair"),
    (r"\477", 0, "the last character in octal"),
    (r"\N{NO SUCH}", 0, "there is no character named 'NO SUCH'"),
    (r"a\p{Foo}", 1, "there is no property 'Foo'"),
    (r"\p{L", 0, "this property is never closed"),
    (r"(a)\1", 3, r"a back-reference, \1, is not supported: to repeat what a group matched is not regular in general"),
    ("(?P<a>x)(?P=a)", 8, "a back-reference, (?P=...), is not supported"),
    ("((a)?b(?(2)c|a))+", 6, "a conditional and its group are repeated together"),
    ("((a)|(?(1)b|c))", 5, "a conditional stands within the group that it asks for"),
    ("(?:(a)?b){2}(?(1)c)", 12, "a conditional asks for a group that only some rounds of a repeat match"),
    ("(?=(a))(?(1)a|b)", 7, "a conditional asks for a group within a lookaround"),
    ("(a)?(?(2)b)", 4, "there is no group 2: a conditional asks for one of 1"),
    ("(a)(?(1)b|c|d)", 3, "a conditional has two branches"),
    ("(?(x)a)(?P<x>b)", 0, "there is no group named 'x' before this"),
    ("(?(1", 0, "a conditional begins with the number or the name of a group"),
    ("x(?>(?=a)a*)", 1, "around a lookaround, a boundary, an anchor or another such group is not supported"),
    (r"(?:a\b)*+", 8, "around a lookaround, a boundary, an anchor or another such group is not supported"),
    ("(?>(?:(?:a|b)*a(?:a|b){9}))", 0, "too large to be taken apart"),
    ("(?P<1>a)", 4, "'1' is no name for a group"),
    ("(?P<a>x)(?P<a>y)", 12, "there is a group named 'a' already"),
    ("(?<a>x)", 0, "name a group with (?P<name>...)"),
    ("(?Px)", 0, "there is no group that begins with (?Px"),
    ("(?", 0, "the pattern ends inside (?"),
    ("(?#a", 0, "this comment is never closed"),
    ("a(?i)b", 1, "flags for the whole pattern stand at its start"),
    ("(?iz)", 3, "'z' is no flag"),
    ("(?L)a", 2, 'the flag "L" is for bytes patterns'),
    ("(?au)", 3, 'the flags "a" and "u" exclude each other'),
    ("(?i-i:a)", 5, "a flag is turned on and off at once"),
    ("(?-a:x)", 3, 'the flag "a" cannot be turned off'),
    ("(" * (MOST_GROUPS + 1), MOST_GROUPS, "nested more than"),
]

ECMA_ERRORS = [
    (r"\Afoo", 0, r"there is no escape \A in ECMA 262: write ^"),
    (r"foo\Z", 3, r"there is no escape \Z in ECMA 262: write $"),
    (r"\a", 0, r"there is no escape \a in ECMA 262"),
    (r"\u{110000}", 0, "Unicode ends at 10FFFF"),
    (r"\u{x}", 0, r"\u{ needs hexadecimal digits"),
    (r"\uD83D", 0, "half a surrogate pair"),
    (r"\01", 0, "characters are not written in octal here"),
    (r"(?<a>x)\k<a>", 7, r"a back-reference, \k, is not supported"),
    (r"(x)\1", 3, r"a back-reference, \1, is not supported"),
    (r"\p{Greek}", 0, "there is no property 'Greek'"),
    (r"\pL", 0, "a property needs braces"),
    ("(?P<a>x)", 0, "there is no group that begins with (?P"),
    ("(?i)a", 3, "flags that change part of a pattern need a group"),
    ("a++", 2, "what is repeated is repeated already"),
]


@pytest.mark.parametrize(
    ("pattern", "position", "message", "dialect"),
    [(*row, "python") for row in ERRORS] + [(*row, "ecma") for row in ECMA_ERRORS],
)
def test_an_error_says_what_is_wrong_with_a_caret_under_the_place(
    pattern: str, position: int, message: str, dialect: str
) -> None:
    with pytest.raises(RegexError) as raised:
        to_dfa(pattern, dialect=dialect)  # type: ignore[arg-type]
    first, shown, caret = str(raised.value).split("\n")
    assert message in first
    assert ": " in first or "needs" in first  # what is wrong, and what to do
    assert (raised.value.pattern, raised.value.position) == (pattern, position)
    under = shown[caret.index("^") :]
    assert pattern[position:].startswith(under.removesuffix("...")[:20])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pattern": b"a"}, "a pattern must be a str, not bytes"),
        ({"pattern": "a", "flags": "q"}, "flags must be letters out of \"aimsx\", not 'q'"),
        ({"pattern": "a", "flags": "au"}, 'the flags "a" and "u" exclude each other'),
        ({"pattern": "a", "flags": "x", "dialect": "ecma"}, 'flags must be letters out of "ims"'),
        ({"pattern": "a", "dialect": "perl"}, 'dialect must be "python" or "ecma"'),
    ],
)
def test_arguments_of_another_kind_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(message)):
        to_dfa(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: mw.compile_regex("a", v, flags=None), 'flags must be a str of letters, such as "im", not NoneType'),
        (lambda v: mw.compile_regex("a", v, flags=re.I), 'flags must be a str of letters, such as "im", not RegexFlag'),
        (lambda v: mw.compile_regex("a", v, flags=["i", "m"]), "flags must be a str of letters"),
        (lambda v: mw.compile_regex("a", v, budget=5), "budget must be a Budget, not int"),
        (lambda v: mw.compile_choices(None, v), "choices must be a list of texts, or another iterable, not NoneType"),
        (lambda v: mw.compile_choices(5, v), "choices must be a list of texts, or another iterable, not int"),
    ],
)
def test_compiling_from_arguments_of_another_kind_is_a_type_error(call: Any, message: str) -> None:
    vocabulary = mw.Vocabulary.from_bytes([b"", b"a"], eos=0)
    with pytest.raises(TypeError, match=re.escape(message)):
        call(vocabulary)


# ----------------------------------------------------------------------------------------------------------- size


@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("(?:", ")?"), ("(?:b|", ")"), ("(?i:", "){2}?")])
def test_groups_may_nest_more_than_200_deep(opening: str, closing: str) -> None:
    depth = 6 if "{" in closing else 240
    assert to_dfa(opening * depth + "a" + closing * depth).accepts(b"a" * (64 if "{" in closing else 1))


def test_anchors_and_lookarounds_may_nest() -> None:
    assert to_dfa("(?:" * 200 + r"^a\b" + "|b)" * 200).accepts(b"a")
    assert same(to_dfa("(?=" * 20 + "a" + ")" * 20 + ".*"), to_dfa("a.*"))
    with pytest.raises(RegexError, match="lookarounds are nested"):
        to_dfa("(?=" * 60 + "a" + ")" * 60)


def test_a_call_with_little_stack_left_raises_a_regex_error() -> None:
    def deep(levels: int) -> Dfa:
        return deep(levels - 1) if levels else to_dfa("(?:" * 240 + r"^a\b" + "|b)" * 240)

    frame, used = sys._getframe(), 0
    while frame:
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    with pytest.raises(RegexError, match="stack of calls is nearly full"):
        deep(sys.getrecursionlimit() - used - 60)


def test_long_counted_repeats_compile() -> None:
    dfa = to_dfa("(?:ab){2,3000}")
    assert dfa.num_states == 6001
    assert [dfa.accepts(b"ab" * n) for n in (1, 2, 3000, 3001)] == [False, True, True, False]


def test_a_pattern_beyond_the_budget_raises_a_budget_error() -> None:
    with pytest.raises(BudgetError):
        to_dfa("(a{1000}){1000}", meter=Budget(states=10_000).begin())
    with pytest.raises(BudgetError):
        to_dfa("(?:a|b)*a(?:a|b){20}", meter=Budget(states=10_000).begin())


def test_a_set_is_one_node_of_ranges() -> None:
    node = parse("[a-cb-d\ud900x]")
    assert isinstance(node, Chars)
    assert node.ranges == ((97, 100), (120, 120))


@pytest.mark.parametrize("pattern", ["(?=a)" * 50_000 + "a", r"\b" * 50_000 + "a", "^" * 50_000 + "a" + "$" * 50_000])
def test_many_assertions_end_within_the_budget(pattern):
    vocabulary = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    begin = time.process_time()
    with contextlib.suppress(mw.errors.ConstraintError):
        mw.compile_regex(pattern, vocabulary, budget=mw.Budget(seconds=1))
    assert time.process_time() - begin < 5
