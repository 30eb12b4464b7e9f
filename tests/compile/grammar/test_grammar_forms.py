"""What grammars say in each notation: lark judges its own, `re` the terminals, a naive recogniser reads all of them."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import LarkError, UnexpectedInput
from lark.load_grammar import _get_parser, stdlib_loader

from maskwright.automata.budget import Budget
from maskwright.automata.utf8 import char_class
from maskwright.compile.grammar.ebnf import read_ebnf, read_gbnf
from maskwright.compile.grammar.form import Choice, Grammar, Repeat, Rule, Sequence, Special, Terminal, Text
from maskwright.compile.grammar.lark import read_lark
from maskwright.compile.grammar.lark_parser import parsed, parser, parser_tables
from maskwright.compile.grammar.terminals import in_any_case, words
from maskwright.compile.regex.lower import to_dfa
from maskwright.errors import BudgetError, ConstraintError, GrammarError, RegexError
from tests.oracles.naive_grammar import accepts, members

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def texts(alphabet: str, longest: int) -> Iterator[str]:
    return ("".join(word) for n in range(longest + 1) for word in itertools.product(alphabet, repeat=n))


# ------------------------------------------------------------------------------------------------------- terminals


def preferred(pattern: str, alphabet: str, longest: int) -> set[str]:
    """Return the texts that are all of what `re.match` finds at their start."""
    judge = re.compile(pattern)
    found = ((text, judge.match(text)) for text in texts(alphabet, longest))
    return {text for text, match in found if match and match.end() == len(text)}


def taken(pattern: str, alphabet: str, longest: int) -> set[str]:
    dfa = words(pattern)
    return {text for text in texts(alphabet, longest) if dfa.accepts(text.encode())}


@pytest.mark.parametrize(
    ("pattern", "alphabet"),
    [
        ("a|ab", "ab"),
        ("ab|a", "ab"),
        ("(a|ab)(c|bcd)", "abcd"),
        ("a*?", "ab"),
        ("a+?b??", "ab"),
        ('".*?"', '"ab'),
        ('".*?(?<!\\\\)(\\\\\\\\)*?"', '"\\a'),  # common.ESCAPED_STRING
        (r"/\*(.|\n)*?\*/", "/*a\n"),  # common.C_COMMENT
        ("(|a)*", "ab"),
        ("(|a)+b", "ab"),
        ("(a??){0,3}b", "ab"),
        ("(?:(?:b)*?|b[ab])+a", "ab"),
        ("(?:|ab){0,2}a", "ab"),
        ("(?:a??b?)*", "ab"),
        ("[^a]+?b|é+", "aébß"),
        ("(?i)k|ſs", "kKs\u212aſ"),
        ("(?s).", "a\n"),
        ("(?:(?!ab).)*ab", "ab"),
        (r"(?!if\b)[a-z]+", "ifa"),
        (r"(?!(?:if|fi)\b)[a-z]+?a", "ifa"),
        (r"(?!-?1\b)[1a-]+", "1a-"),
        (r"a(?=[bc])[a-c]+?", "abc"),
        (r"a\b.\bb|a\B.\Bb", "ab-"),
        (r"a(?:a|-(?<=a-)){1,3}?-", "a-"),
        (r"\w\B\w+?|-", "ab-"),
    ],
)
def test_a_terminal_takes_the_words_that_are_their_own_preferred_match(pattern: str, alphabet: str) -> None:
    assert taken(pattern, alphabet, 6) == preferred(pattern, alphabet, 6)


def patterns(asking: bool) -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["a", "b", "ab", "[ab]", "[^a]", ".", ""])
    if asking:
        asked = st.sampled_from(["(?=a)", "(?!b)", "(?!ab)", "(?<=a)", "(?<!b)", r"\b", r"\B", "(?=[ab]-)", "(?!a|-)"])
        leaves |= asked

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        often = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{0,3}", "{2,}"])
        return st.one_of(
            st.lists(inner, min_size=2, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
            st.builds(lambda part, many, lazy: f"(?:{part}){many}{lazy}", inner, often, st.sampled_from(["", "?"])),
        )

    return st.recursive(leaves, larger, max_leaves=7)


@given(patterns(False))
@settings(QUICK, max_examples=300)
def test_terminals_take_what_re_prefers(pattern: str) -> None:
    assert taken(pattern, "ab-", 4) == preferred(pattern, "ab-", 4)


@pytest.mark.long
@given(patterns(True), st.sampled_from(["a", "b-", "--", "(?:a|b-)"]))
@settings(QUICK, max_examples=200)
def test_terminals_with_assertions_take_what_re_prefers(pattern: str, end: str) -> None:
    pattern = f"a{pattern}{end}"
    try:
        found = taken(pattern, "ab-", 5)
    except RegexError:
        assume(False)
    assert found == preferred(pattern, "ab-", 5)


@pytest.mark.parametrize(
    "pattern", ["[a-z]+", r"[a-zA-Z_]\w*", r'"(?:[^"\\]|\\.)*"', r"-?\d+(\.\d+)?", "(?i:select)", "ab?c{2,4}d"]
)
def test_a_terminal_in_which_one_character_decides_takes_the_whole_language(pattern: str) -> None:
    assert (words(pattern).transition == to_dfa(pattern).transition).all()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"\bfoo", "boundary of words may ask for what is before"),
        (r"foo\b", "boundary of words may ask for what follows"),
        ("^a", "anchor may ask for what is before"),
        ("a$", "anchor may ask for what follows"),
        (r"a\Z", "anchor may ask for what follows"),
        ("a(?=b)", "lookahead may ask for what follows"),
        ("a(?!b)", "lookahead may ask for what follows"),
        ("(?:a|(?=b))*", "lookahead may ask for what follows"),
        ("(?<=a)b", "lookbehind may ask for what is before"),
        ("a?(?<!a)b", "lookbehind may ask for what is before"),
        ("(?!.*--)[a-z-]+", "lookahead may ask for what follows"),
        ("(?!if )[a-z]+", "lookahead may ask for what follows"),
        ("(?=(?<=b)a)a", "lookahead may ask for what is before"),
        ("[a-z]++", "lookahead may ask for what follows"),
        (r"(a)\1", "back-reference"),
        ("(a)?(?(1)b)", "a conditional in a terminal is not supported"),
        (r"(?>ab|a)", "lookahead may ask for what follows"),
    ],
)
def test_a_terminal_that_asks_for_the_text_around_is_refused_with_a_caret(pattern: str, message: str) -> None:
    with pytest.raises(RegexError, match=re.escape(message)) as caught:
        words(pattern)
    assert str(caught.value).endswith("^")


@pytest.mark.parametrize("text", ["select", "Kiss", "a b", "é_9", "ΣςI", "ǆ", "(", "😀"])
def test_a_text_in_any_case_is_what_the_flag_says(text: str) -> None:
    one, other = in_any_case(text), to_dfa(f"(?i:{re.escape(text)})")
    assert (one.class_of == other.class_of).all()
    assert (one.transition == other.transition).all()
    assert (one.accepting == other.accepting).all()


def test_a_terminal_keeps_within_its_budget() -> None:
    with pytest.raises(BudgetError):
        words("(?:a|ab){1,100000}?c", Budget(states=1000).begin())
    with pytest.raises(BudgetError):
        words("(?:.*?a.{12}){2}b", Budget(states=1000).begin())


# ------------------------------------------------------------------------------------------------------------ lark


def lark_accepts(text: str, lexer: str = "dynamic_complete") -> Callable[[str], bool]:
    parser = Lark(text, parser="earley", lexer=lexer)

    def judged(data: str) -> bool:
        try:
            parser.parse(data)
        except UnexpectedInput:
            return False
        return True

    return judged


def agree(text: str, alphabet: str, longest: int) -> set[str]:
    """Check that lark and we accept the same of all short texts, and return them."""
    judge, ours = lark_accepts(text), read_lark(text)
    theirs = {data for data in texts(alphabet, longest) if judge(data)}
    assert {data for data in texts(alphabet, longest) if accepts(ours, data.encode())} == theirs
    return theirs


CALC = r"""
?start: sum
?sum: product | sum "+" product -> add | sum "-" product -> sub
?product: atom | product "*" atom -> mul
?atom: NUMBER -> number | "-" atom -> neg | NAME -> var | "(" sum ")"
%import common.CNAME -> NAME
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
"""

# grammar, alphabet, longest text, one text that is in it
LARK: list[tuple[str, str, int, str]] = [
    (CALC, "1a+(). ", 4, "1+a"),
    ('start: "a" start "b" |', "ab", 6, "aabb"),
    ('start: start "a" | "b"', "ab", 4, "baa"),
    ('start: a*\na: "x" | a "y"', "xy", 4, "xyxy"),
    ('start: "a"~2..3 "b"~2 ("c"~0..1)', "abc", 6, "aaabbc"),
    ('start: "a"+ ["b"] ("c" | "d")? "e"*', "abcde", 4, "abce"),
    ('!start: _x -> y\n_x: "a" | ("b" | "c")~1..2', "abc", 3, "cb"),
    ('start: "abc"i', "abcABC", 3, "aBc"),
    ('start: A "b"i?\nA: "a"i | "Ab" | "aBc"i', "abABc", 4, "aBcB"),
    ('start: "a".."c" "é".."ë"', "abcdéêf", 3, "bê"),
    ('start: /a|ab/ "b"?', "ab", 4, "ab"),
    ("start: A B\nA: /a+?/\nB: /[ab]+/", "ab", 4, "aab"),
    ('start: A "c"\nA: "a" | "ab" | "abb"', "abc", 4, "abbc"),
    ('start: A\nA: /a|b/ "c"', "abc", 3, "bc"),  # joined as text, as lark does it: a or bc
    ('start: A B\nA: ("a" | /b+/)* "c"\nB: [A] "d"', "abcd", 4, "abcd"),
    ('start: A\nA: "a"~2 ("b" | "c"~1..2)+ /d/?', "abcd", 5, "aabcc"),
    ('start: A+\nA: /A/i | "x"', "aAx", 3, "aAx"),
    ('start: _sep{item, ","}\n_sep{x, s}: x (s x)*\nitem: "a" | "[" _sep{item, ";"} "]"', "a,;[]", 5, "[a;a]"),
    ('start: twice{once, "a"}\nonce{x}: x "b"\ntwice{f, x}: f{x} f{x}', "ab", 5, "abab"),
    ('start: "a" "b"\n%ignore " "', "ab ", 5, " a b "),
    ('start: "a"*\n%ignore /#[^\\n]*\\n/\n%ignore "b"', "a#\nb", 4, "a#a\n"),
    ('start: A\nA: "a" " "? "b"\n%ignore " "+', "ab ", 5, " ab "),
    ('start: S ("," S)*\n%import common.ESCAPED_STRING -> S', '"\\,a', 5, '"\\""'),
    ('start: NAME | "if" NAME\nNAME: /[a-z]+/\n%ignore " "', "if ", 5, "if f"),
    ("start: w+\nw: WORD\n%import common (WORD, LETTER, WS)\n%ignore WS", "aB \n", 3, "a B"),
    ('start: WORD\n%import common.LETTER\n%import common.WORD\n%extend LETTER: "1"', "a1", 3, "a1a"),
    ('start: WORD\n%import common.WORD\n%override WORD: "1"+', "a1", 3, "11"),
    ('start: a\na: "x"\n%extend a: "y"\n%extend start: "z"', "xyz", 2, "y"),
    ('start.2: a | b\na.1: "x"\nb.-1: "x" "y"', "xy", 2, "xy"),
    ("start: A B?\nA.2: /ab?/\nB.-3: /b/", "ab", 3, "abb"),
    ('start: "a" // comment "\n   | "b" # another\n   | "//" \\\n "x"', "ab/x", 3, "//x"),
    ("start: /\\/(?:a|\\\\\\/)+\\// | /[ \\t]b c/x", "/a\\ bc\t", 4, "/a/"),
    ('start: x\nx: y | "a"\ny: x', "a", 2, "a"),
    ('start: e e "a" e\ne: | e e | "b"', "ab", 4, "bab"),
]


@pytest.mark.parametrize(("text", "alphabet", "longest", "one"), LARK)
def test_a_lark_grammar_accepts_what_lark_parses(text: str, alphabet: str, longest: int, one: str) -> None:
    found = agree(text, alphabet, longest)
    assert one in found


def test_texts_are_parsed_by_larks_tables_as_lark_does_it() -> None:
    assert parser_tables() is not None
    library = [stdlib_loader(None, f"{name}.lark")[1] for name in ("common", "lark", "python", "unicode")]
    for text in [*(case[0] for case in LARK), *library, "", "\n\n"]:
        ours, same = parsed(text + "\n", Budget().begin()), parser().parse(text + "\n", "start")
        assert ours == same
        tokens = [[(t, t.type, t.start_pos) for t in tree.scan_values(bool)] for tree in (ours, same)]
        assert tokens[0] == tokens[1]
        for rule in ours.find_data(
            "rule"
        ):  # and what lark's own tables make of it, but for what only the additions say
            rule.children = [
                part for part in rule.children if getattr(part, "data", "") not in ("parameter", "attributes")
            ]
        assert ours == _get_parser().parse(text + "\n", "start")


PARTS = ['"a"', '"b"', '"ab"', "/a+/", "/a+?b?/", "/a|ab/", '"B"i', "A", "B", "x", "y", "_z{x}", "_z{A}", '"a".."b"']


def expressions() -> st.SearchStrategy[str]:
    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        often = st.sampled_from(["*", "+", "?", "~2", "~0..2", "~1..2"])
        return st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(" ".join),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
            inner.map(lambda part: f"[{part}]"),
            st.builds(lambda part, many: f"({part}){many}", inner, often),
        )

    return st.recursive(st.sampled_from(PARTS), larger, max_leaves=5)


@pytest.mark.long
@given(
    st.tuples(expressions(), expressions(), expressions(), expressions()),
    st.sampled_from(['"a"', "/[ab]+?/", '"b" | "bb"', '("a" | "b")+ "b"', '/b/ | "ab"~1..2']),
    st.sampled_from(["", '%ignore " "+', '%ignore " "\n%ignore /-+/']),
)
@QUICK
def test_random_lark_grammars_accept_what_lark_parses(rules: tuple[str, ...], terminal: str, ignored: str) -> None:
    start, x, y, z = rules
    text = f'start: {start}\nx: {x} | "a"\ny: | {y}\n_z{{t}}: t {z} | "b" t\nA: {terminal}\nB: A "a"\n{ignored}\n'
    try:
        Lark(text, parser="earley", lexer="dynamic_complete")
    except LarkError:
        assume(False)  # such as rules that come out twice
    except RecursionError:
        assume(False)
    agree(text, "ab -" if ignored else "abB", 3)


def test_longest_matches_only_are_what_the_other_dynamic_lexer_takes() -> None:
    text = 'start: A "ab"\nA: /a+b?/'
    assert lark_accepts(text)("aaab")
    assert accepts(read_lark(text), b"aaab")
    assert not lark_accepts(text, "dynamic")("aaab")  # A takes all of it


def test_what_is_ignored_may_end_anywhere_where_lark_takes_the_longest() -> None:
    text = 'start: "a" " b"\n%ignore / +/'
    assert accepts(read_lark(text), b"a  b")
    assert not lark_accepts(text)("a  b")
    assert lark_accepts(text)("a b")


def test_a_lookahead_is_judged_by_the_word_where_lark_looks_on() -> None:
    text = 'start: NAME "f1"?\nNAME: /(?!if\\b)[a-z]+/'
    ours, lark = read_lark(text), lark_accepts(text)
    assert (
        [accepts(ours, t) for t in (b"if", b"ifs", b"i")]
        == [lark(t) for t in ("if", "ifs", "i")]
        == [False, True, True]
    )
    assert accepts(ours, b"if1")  # i and f1
    assert lark("if1")  # lark sees no boundary behind "if" here, and takes i as well
    text = 'start: NAME "f+"\nNAME: /(?!if\\b)[a-z]+/'
    assert accepts(read_lark(text), b"if+")
    assert not lark_accepts(text)("if+")


def test_priorities_choose_among_trees_and_not_among_texts() -> None:
    for first, second in itertools.product((-2, 0, 3), repeat=2):
        text = f'start: (a | b)+\na.{first}: A\nb.{second}: "a" "b"?\nA.{second}: /a+b*/\nB.{first}: "b"'
        assert "aba" in agree(text, "ab", 4)


def test_lark_library_grammars_are_read_where_their_terminals_can_be() -> None:
    names = "DIGIT HEXDIGIT INT SIGNED_INT DECIMAL FLOAT SIGNED_FLOAT NUMBER SIGNED_NUMBER ESCAPED_STRING LCASE_LETTER"
    names += " UCASE_LETTER LETTER WORD CNAME WS_INLINE WS CR LF NEWLINE SH_COMMENT CPP_COMMENT C_COMMENT SQL_COMMENT"
    for name in names.split():
        agree(f"start: {name}\n%import common.{name}", '1aE.+-"\\/*#\n', 3)
    assert accepts(read_lark("start: f\n%import unicode.WS -> F\nf: F"), "\u00a0".encode())
    imported = read_lark(
        "start: subscript\n%import python (number, _cs_list)\nsubscript: _cs_list{number}".replace("number", "name")
    )
    assert accepts(imported, b"a,match,c,")


def test_a_declared_terminal_and_a_name_in_angle_brackets_are_special_tokens() -> None:
    grammar = read_lark('start: TOOL <|sep|> "<|no|>" (/<a>/ <|sep|>)*  // <|not|>\n%declare TOOL')
    data = ["TOOL", "<|sep|>", *b"<|no|>"]
    assert accepts(grammar, data)
    assert accepts(grammar, [*data, *b"<a>", "<|sep|>"])
    assert not accepts(grammar, [*b"TOOL", "<|sep|>", *b"<|no|>"])


def test_a_terminal_may_be_empty() -> None:
    assert members(read_lark('start: A "b"\nA: /a*/'), [b"a", b"b"], 2) == {b"b", b"ab"}


def test_texts_are_joined_where_nothing_can_be_ignored_between_them() -> None:
    joined = read_lark('start: "a" ("b" "c")').rules["start"]
    assert isinstance(joined, Text)
    assert joined.data == b"abc"
    assert isinstance(read_lark('start: "a" "b"\n%ignore " "').rules["start"], Sequence)


def test_plain_alternatives_are_texts_and_equal_terminals_one_object() -> None:
    grammar = read_lark('start: A B A /c+/ /c+/\nA: "x" | "yy"\nB: /b/')
    items = grammar.rules["start"].items  # type: ignore[union-attr]
    assert [item.data for item in items[0].items] == [b"yy", b"x"]  # type: ignore[union-attr]
    assert items[0] is items[2]
    assert isinstance(items[3], Terminal)
    assert items[3] is items[4]


# a grammar, a part of the message, and where it points: line and column, from 1
LARK_ERRORS: list[tuple[str, str, int, int]] = [
    ("start: (", "unclosed parenthesis", 1, 9),
    ('start: "a"\n  ] x', "has no place here", 2, 3),
    ("start: a\nb: 'x'", '"\'" has no place here', 2, 4),
    ("start: a", "there is no rule a", 1, 8),
    ("start: b\nb: C", "there is no terminal C", 2, 4),
    ("start: A\nA: B", "there is no terminal B", 2, 4),
    ('start: "a"\nstart: "b"', "start is defined more than once", 2, 1),
    ('a: "a"', "no rule 'start'", 1, 1),
    ("start: a{x}\na{y}: y", "there is no rule x", 1, 10),
    ('start: a\na{y}: y "b"', "needs arguments", 1, 8),
    ('start: a{"b", "c"}\na{y}: y "b"', "takes 1 arguments, not 2", 1, 8),
    ('start: a{"b"}', "there is no template a", 1, 8),
    ('start: a{"b"}\na{x}: "c" a{b{x}} |\nb{x}: x', "ever larger", 2, 11),
    ('start: a{"b"}\na{x, x}: x', "two parameters", 2, 1),
    ('start: "a"~3..2', "3 to 2 times", 1, 11),
    ('start: "a"~1..99999999999', "repeats more often than", 1, 11),
    ('start: "a"~-1', "times is never", 1, 11),
    ('start: "a".."bc"', "one character at either end", 1, 8),
    ('start: "b".."a"', "backwards", 1, 8),
    ('start: A\nA: a\na: "b"', "a rule has no place in a terminal", 2, 4),
    ('start: A\nA: "a" B\nB: A', "made of itself", 2, 1),
    ('start: A\nA: "a" | /b$/', "anchor may ask for what follows", 2, 12),
    ("start: A\nA: /x/ /(/", "never closed", 2, 9),
    ("start: /a$/", "anchor may ask for what follows", 1, 10),
    ("start: /a(?P<x>b)(?P=x)/", "back-reference", 1, 18),
    ("start: A\n%import common.NO -> A", "common has no NO", 2, 9),
    ("start: A\n%import nothing.A", "no grammar nothing in lark's library", 2, 9),
    ("start: A\n%import .mine.A", "relative to this grammar's file", 2, 10),
    ("start: A\n%import common", "nothing is imported", 2, 9),
    ('start: A\n%import common.INT -> A\nA: "b"', "defined more than once", 3, 1),
    ('start: A\n%override A: "b"', "no A to override", 2, 11),
    ('start: A\n%extend A: "b"', "no A to extend", 2, 9),
    ("start: a\n%declare a", "a rule cannot be declared", 2, 10),
    ("start: A\nA: <|x|>", "a special token cannot be part of a terminal", 2, 4),
    ("start: <[*]>", "all tokens, <[*]>, and all but some", 1, 8),
    ("start: <[^1,2]>", "all tokens, <[*]>, and all but some", 1, 8),
    ("start: <[5-3]>", "there is no token from 5 to 3: exchange the numbers", 1, 8),
    ("start: <[1-2-3]>", "tokens by their numbers are written <[1]>", 1, 8),
    ("start: <|x", "'<' has no place here", 1, 8),
    ('start: A\nA: %json {"type": "object"}', "JSON cannot be part of a terminal", 2, 10),
    ('start: A\nA: %lark { start: "a" }', "a grammar cannot be part of a terminal", 2, 10),
    ('start: "a" %json [1]', "an object in braces must follow %json", 1, 18),
    ('start: %json {"a": 1', "this { is never closed: add }", 1, 14),
    ("start: %regex {}", "and this has 0 of them", 1, 15),
    ('start: %regex {"substring_words": "a",\n"substring_chars": "a"}', "and this has 2 of them", 1, 15),
    ('start: %regex {"substring_words": 1}', "substring_words takes a text", 1, 15),
    ('start: %regex {"substring_chunks": ["a", 1]}', "substring_chunks takes a list of texts", 1, 15),
    ('start: %regex {"words": 1}', "%regex has no 'words'", 1, 15),
    ('start: "a"\n%llguidance {"fast": true}', "there is no option 'fast'", 2, 13),
    ('start: "a"\n%llguidance {"no_forcing": 1}', "the option no_forcing is true or false", 2, 13),
    ('start: "a"\n%llguidance {"no_forcing" true}', "this is no JSON", 2, 27),
    ('%llguidance {"allow_invalid_utf8": true}\nstart: "a"', "allow_invalid_utf8 is not supported", 1, 13),
    ('start: A & B\nA: "a"\nB: /./', "& stands between terminals only", 1, 8),
    ("start: A\nA: /a*?/ & /a/", "a lazy quantifier says what a matcher prefers", 2, 6),
    ("start: A\nA: /a(?=b)/ & /a/", "lookahead may ask for what follows", 2, 6),
    ('start: A\nA: ~B\nB: A "b"', "the terminal A is made of itself", 2, 1),
    ('start: x\nx[color=1]: "b"', "there is no attribute color", 2, 3),
    ("start: x\nx[lazy, lazy]: /b/", "the attribute lazy is given twice", 2, 9),
    ("start: x\nx[lazy=1]: /b/", "lazy takes no value", 2, 3),
    ("start: x\nx[stop=1]: /b/", "stop takes a text, a pattern or a terminal", 2, 3),
    ("start: x\nx[capture=/a/]: /b/", "capture takes a name in quotes", 2, 3),
    ("start: x\nx[temperature=A]: /b/", "temperature takes a number", 2, 3),
    ("start: x\nx[max_tokens=5]: /b/", "max_tokens is not supported", 2, 3),
    ('start: x\nx[stop="a", suffix="b"]: /b/', "stop and suffix exclude each other", 2, 13),
    ('start: x\nx[stop_capture="a"]: /b/', "and there is neither", 2, 3),
    ('start: x\nx[lazy]: y\ny: "b"', "a rule has no place in a terminal", 2, 10),
    ('start: x::1\nx: "b"', "there is no rule x with a parameter", 1, 8),
    ('start: x\nx::_: "b"', "the rule x needs a parameter: write x::0", 1, 8),
    ('start: "a" %if bit_set(0)', "it asks for a parameter, and the rule has none", 1, 12),
    ('start: x::0\nx::_: "a" %if lt([3:3], 1)', "the bits [3:3] are none", 2, 11),
    ('start: x::0\nx::_: "a" %if lt([0:65], 1)', "65 is too large: the most is 64", 2, 11),
    ('start: x::0\nx::_: "a" %if big(_)', "there is no condition 'big'", 2, 11),
    ('start: x::grow(1)\nx::_: "a"', "there is no 'grow' of a parameter", 1, 9),
    ('start: x::0\nx::1: "a"', "the parameter of a rule has no name", 2, 2),
    ('start: x::0\nx::_: "a" x::incr(_)', "more than 10,000 rules with different parameters", 2, 11),
    ("start: @other", "another grammar, by its name, is not supported", 1, 8),
    ('start: "a"\nx: %lark {\n  start: b\n}', "there is no rule b", 3, 10),
    ('start [a] "x"', "has no place here", 1, 11),
    ("start: /a/l", "the flag l, for a locale's letters", 1, 8),
]


@pytest.mark.parametrize(("text", "message", "line", "column"), LARK_ERRORS)
def test_errors_in_lark_grammars_point_at_what_is_wrong(text: str, message: str, line: int, column: int) -> None:
    check_error(read_lark, text, message, line, column)


@pytest.mark.parametrize(
    ("read", "text"),
    [(read_lark, 'start: "a"~1..{}'), (read_gbnf, 'root ::= "a"{{1,{}}}'), (read_ebnf, 'root ::= "a"{{{}}}')],
)
def test_numbers_longer_than_python_reads_are_refused_by_name(read: Callable[[str], Grammar], text: str) -> None:
    with pytest.raises(GrammarError, match="repeats more often than"):
        read(text.format("9" * 5000))


def check_error(read: Callable[[str], Grammar], text: str, message: str, line: int, column: int) -> None:
    with pytest.raises(GrammarError, match=re.escape(message)) as caught:
        read(text)
    error = caught.value
    assert (error.line, error.column) == (line, column), str(error)
    shown, caret = str(error).split("\n")[-2:]
    assert len(caret) == 4 + column  # under the column
    assert shown.strip() == text.split("\n")[line - 1].strip()


@pytest.mark.long
def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(GrammarError, match="nested more than"):
        read_lark(f'start: {"(" * 5000}"a"{")" * 5000}')
    for read in (read_gbnf, read_ebnf):
        with pytest.raises(GrammarError, match="nested more than"):
            read(f'root ::= {"(" * 5000}"a"{")" * 5000}')


def test_lark_is_imported_only_for_its_own_notation() -> None:
    code = "import sys, maskwright, maskwright.compile.grammar.ebnf\nassert 'lark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------------------------------------------- GBNF and EBNF

# text, accepted, rejected; the same in both notations
BOTH: list[tuple[str, list[str], list[str]]] = [
    ('root ::= "a" | "bc"', ["a", "bc"], ["", "ab"]),
    ('root ::= "(" root ")" | ""', ["", "(())"], ["(", ")("]),
    ('root ::= root "a" | "b"', ["b", "baa"], ["a", ""]),
    ("root ::= [a-c]+ [^a-c\\n]", ["ab-", "cé", "c😀"], ["ab", "-", "ab\n"]),
    ("root ::= . .", ["a\n", "éé"], ["a", "abc"]),
    ('root ::= "a"{2} "b"{1,} "c"{0,2}', ["aab", "aabbcc"], ["ab", "aac", "aabccc"]),
    ('root ::= ("a" "b"?)* "c"+', ["c", "abacc"], ["", "bc"]),
    (r'root ::= "\"\\\n\t\x41\u00e9\U0001F600" [\]\-\\"]', ['"\\\n\tAé😀]', '"\\\n\tAé😀-'], ['"\\\n\tAé😀']),
    ("root ::= [a-] [-a] [a\\-z]", ["a-z", "---"], ["abz", "b-z"]),
    (
        '# a comment\nroot ::= a b # another\na ::= "x" |\n  "y"\nb ::= (\n "z"\n\n | "w" # in a group\n)\n',
        ["xz", "yw"],
        ["x"],
    ),
    ('root ::= item-1 ("," item-1)*\nitem-1 ::= [0-9]', ["1", "1,2"], ["1,"]),
    ('root ::= "a" # one\n | "b"\n  | c\nc ::= "c"', ["a", "b", "c"], ["ab"]),
    ('\r\nroot ::= "a"\r\n | x\r\nx ::= "b"\r\n', ["a", "b"], [""]),
    ("root::=x\nx::=[é-ü#]", ["é", "#"], ["e"]),
]


@pytest.mark.parametrize("read", [read_gbnf, read_ebnf])
@pytest.mark.parametrize(("text", "accepted", "rejected"), BOTH)
def test_grammars_in_both_notations(
    read: Callable[[str], Grammar], text: str, accepted: list[str], rejected: list[str]
) -> None:
    grammar = read(text)
    assert [t for t in accepted if not accepts(grammar, t.encode())] == []
    assert [t for t in rejected if accepts(grammar, t.encode())] == []


@pytest.mark.parametrize(
    ("read", "text", "accepted", "rejected"),
    [
        (read_gbnf, 'root ::= "a" | ', ["a", ""], ["b"]),
        (read_gbnf, 'root ::= ("a" | )? 1x\n1x ::= "b"', ["ab", "b"], ["a"]),
        (read_gbnf, 'root ::= "a\nb"', ["a\nb"], ["ab"]),
        (read_gbnf, 'root ::= ("a"+)?*', ["", "aa"], ["b"]),
        (read_ebnf, 'root ::= "a" "b"\n"c" x.y x.y ::= "d"', ["abcd"], ["ab"]),
        (read_ebnf, "root ::= 'a\"' #x41 [#x42-#x44#xe9] /* a | b */ \"'\"", ["a\"AB'", "a\"Aé'"], ["a\"A'"]),
        (read_ebnf, "root ::= [^#x61]", ["b"], ["a"]),
        (read_ebnf, "root ::= [#xa-]", ["#", "x", "-"], ["\n"]),
        (read_ebnf, "root ::= ([a-e] - [b-c])+ ([a-b] | 'x') - 'b'", ["aex", "da"], ["b", "ab"]),
        (read_ebnf, 'root ::= [^] "\\e\\0\\x4\\?"', ["\n\x1b\0\x04?"], [""]),
    ],
)
def test_grammars_in_one_notation(
    read: Callable[[str], Grammar], text: str, accepted: list[str], rejected: list[str]
) -> None:
    grammar = read(text)
    assert [t for t in accepted if not accepts(grammar, t.encode())] == []
    assert [t for t in rejected if accepts(grammar, t.encode())] == []


@pytest.mark.parametrize("read", [read_gbnf, read_ebnf])
def test_a_name_in_angle_brackets_is_a_special_token(read: Callable[[str], Grammar]) -> None:
    grammar = read('root ::= <think> [^<]* </think> "<x>"')
    assert accepts(grammar, ["<think>", *b"so", "</think>", *b"<x>"])
    assert not accepts(grammar, b"<think>so</think><x>")


# dialects, text, part of the message, line and column
ERRORS: list[tuple[str, str, str, int, int]] = [
    ("ge", 'root ::= "a" b', "there is no rule b", 1, 14),
    ("ge", 'root ::= "a"\nroot ::= "b"', "a rule root already", 2, 1),
    ("ge", 'start ::= "a"', "no rule 'root' to start with: there is start", 1, 1),
    ("ge", "", "it has no rules", 1, 1),
    ("ge", 'root = "a"', "::= is missing", 1, 6),
    ("ge", 'root ::= "a', "this text is never closed", 1, 10),
    ("ge", "root ::= [ab", "this class is never closed", 1, 10),
    ("ge", 'root ::= ("a"', "this group is never closed", 1, 10),
    ("ge", 'root ::= "a" )', "this ) closes no group", 1, 14),
    ("ge", r'root ::= "a\q"', r"there is no escape \q", 1, 12),
    ("ge", r'root ::= "a\u12"', r"\u needs 4 hexadecimal digits", 1, 12),
    ("ge", r'root ::= "a\ud800"', "half a surrogate pair", 1, 12),
    ("ge", r'root ::= "a\U00110000"', "no such character", 1, 12),
    ("ge", r"root ::= [a\d]", r"\d is not supported", 1, 12),
    ("ge", "root ::= [xz-a]", "runs backwards", 1, 12),
    ("ge", "root ::= []", "holds no character", 1, 10),
    ("ge", r"root ::= [^\x00-\U0010FFFF]", "no character is left", 1, 10),
    ("ge", 'root ::= "a"{3,2}', "exchange the numbers", 1, 13),
    ("ge", 'root ::= "a"{,2}', "is written {2}", 1, 13),
    ("ge", 'root ::= "a"{99999999999999999999999}', "lower the number", 1, 13),
    ("ge", "root ::= <[12]>", "by their numbers", 1, 10),
    ("ge", "root ::= <a", "this token is never closed", 1, 10),
    ("ge", 'root ::= "a" ; "b"', "';' has no place here", 1, 14),
    ("ge", 'root ::= * "b"', "'*' has no place here", 1, 10),
    ("e", "root ::= [a-z] -", "is missing behind this sign", 1, 16),
    ("e", "root ::= [a-z] - #x", "is missing behind this sign", 1, 16),
    ("g", 'root ::= "a"\n"b"', "this is no name", 2, 1),
    ("g", "root ::= !<a>", "any token but one", 1, 10),
    ("g", "root ::= 'a'", "has no place here", 1, 10),
    ("e", 'root ::= "a" (= "b") "b"', "a lookahead assertion", 1, 14),
    ("e", 'root ::= "a" TagDispatch(("a", x))', "there is no rule x", 1, 32),
    ("e", 'root ::= TagDispatch(("a", root), ("a", root))', "the tag 'a' is given twice", 1, 10),
    ("e", 'root ::= TagDispatch(("", root))', "TagDispatch takes pairs of a tag and a rule", 1, 10),
    ("e", 'root ::= TagDispatch("a")', "TagDispatch takes pairs of a tag and a rule", 1, 10),
    ("e", 'root ::= TagDispatch(("ab", x), excludes=("a"))', "begins a tag, which could never come", 1, 10),
    ("e", 'root ::= TagDispatch(excludes=("a"), excludes=("a"))', "the option excludes is given twice", 1, 38),
    ("e", "root ::= TagDispatch(excludes=true)", "the option excludes is a tuple", 1, 10),
    ("e", "root ::= TagDispatch(stop=true)", "TagDispatch has no option stop", 1, 10),
    ("e", 'root ::= TagDispatch(excludes=("a"), ("a", root))', "this stands behind an option", 1, 38),
    ("e", 'root ::= TagDispatch(("a", root)', "add )", 1, 21),
    ("e", 'root ::= TagDispatch((("a"), root))', "a text in quotes, a number, true", 1, 23),
    ("e", "root ::= Token(a)\na ::= Token()", "Token takes the numbers of tokens", 1, 10),
    ("e", 'root ::= Regex("(")', "the pattern cannot be compiled: this group is never closed", 1, 10),
    ("e", 'root ::= Regex("a", json_string=true)', "json_string=true is not supported", 1, 10),
    ("e", "root ::= ExcludeToken(1)", "the macro ExcludeToken is not supported", 1, 10),
    ("e", 'root ::= TokenSet("a", "b")', "macro TokenSet", 1, 10),
    ("e", "root ::= AnyTokens(1)", "macro AnyTokens", 1, 10),
    ("e", 'root ::= a\na[max_tokens=3] ::= "b"', "attributes of rules", 2, 2),
    ("e", 'root ::= "a" | ', "nothing stands here", 1, 16),
    ("e", 'root ::= "a"+?', "repeated already", 1, 14),
    ("e", 'root ::= "ab" - "a"', "a difference", 1, 15),
    ("e", "root ::= [a] - [a]", "no character is left", 1, 14),
    ("e", "root ::= 'a\n'", "this text is never closed", 1, 10),
    ("e", "root ::= 'a' /* b", "this comment is never closed", 1, 14),
]


@pytest.mark.parametrize(("dialect", "text", "message", "line", "column"), ERRORS)
def test_errors_point_at_what_is_wrong(dialect: str, text: str, message: str, line: int, column: int) -> None:
    for letter in dialect:
        check_error(read_gbnf if letter == "g" else read_ebnf, text, message, line, column)


def character_patterns() -> st.SearchStrategy[tuple[str, str]]:
    """Return pairs of a grammar's expression and a pattern that say the same."""
    leaves = st.sampled_from(
        [('"a"', "a"), ('"ab"', "ab"), ("[ab]", "[ab]"), ("[^a]", "[^a]"), ('""', ""), ('"é"', "é"), (".", "(?s:.)")]
    )

    def larger(inner: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
        often = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}"])
        many = st.lists(inner, min_size=2, max_size=3)
        return st.one_of(
            many.map(lambda parts: (" ".join(p for p, _ in parts), "".join(q for _, q in parts))),
            many.map(lambda parts: (f"({' | '.join(p for p, _ in parts)})", f"(?:{'|'.join(q for _, q in parts)})")),
            st.builds(lambda part, times: (f"({part[0]}){times}", f"(?:{part[1]}){times}"), inner, often),
        )

    return st.recursive(leaves, larger, max_leaves=6)


@given(character_patterns())
@QUICK
def test_grammars_without_recursion_accept_what_patterns_do(pair: tuple[str, str]) -> None:
    text, pattern = pair
    judge = re.compile(pattern)
    expected = {t.encode() for t in texts("abé", 3) if judge.fullmatch(t)}
    for read in (read_gbnf, read_ebnf):
        assert members(read(f"root ::= x\nx ::= {text}"), [b"a", b"b", "é".encode()], 3) == expected


def test_a_grammar_must_be_text() -> None:
    for read in (read_lark, read_gbnf, read_ebnf):
        with pytest.raises(ConstraintError, match="must be a str, not bytes"):
            read(b"root ::= x")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ the naive recogniser


def test_the_naive_recogniser_reads_cycles_left_recursion_and_what_is_ignored() -> None:
    letter = Terminal("letter", char_class(((97, 99),)))
    rules = {
        "a": Choice((Rule("a"), Sequence((Rule("a"), Rule("e"), Text(b"+"), letter)), letter)),
        "e": Choice((Rule("e"), Sequence(()), Repeat(Rule("e"), 0, None))),
    }
    grammar = Grammar(rules, "a", char_class(((32, 32),)))
    assert members(grammar, [b"a", b"+", b" "], 3) == {b"a", b" a", b"a ", b"  a", b" a ", b"a  ", b"a+a"}
    assert accepts(Grammar({"s": Special("<x>")}, "s"), ["<x>"])
    assert not accepts(Grammar({"s": Rule("s")}, "s"), b"")


@pytest.mark.parametrize("rule", ["lark.value", "python.comp_op", "python.augassign_op"])
def test_rules_of_larks_library_whose_parts_have_other_names_are_imported(rule):
    """Which of a rule's ways are called what is for the tree: lark.value has one called template_usage."""
    source = f"%import {rule}\nstart: {rule.rpartition('.')[2]}"
    Lark(source, parser="earley")
    assert "start" in read_lark(source).rules
