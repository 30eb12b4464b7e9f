"""llguidance's additions to Lark's notation, against naive readings of what its documents say."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable

import pytest

import maskwright as mw
from maskwright.compile.grammar.lark import read_lark
from maskwright.compile.grammar.lark_objects import words_of
from maskwright.errors import ConstraintError, GrammarError, SchemaError
from tests.oracles.naive_grammar import members

SYSTEM, USER, END = 257, 258, 259


@pytest.fixture(scope="module")
def vocab() -> mw.Vocabulary:
    tokens = [b"", *(bytes([b]) for b in range(256)), b"", b"", b"", b"ab", b"ba"]
    return mw.Vocabulary.from_bytes(tokens, eos=0, special={"<|system|>": SYSTEM, "<|user|>": USER, "<|end|>": END})


def full(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def first_end(pattern: str) -> Callable[[str], bool]:
    """Return whether a text is matched and no beginning of it is."""
    return lambda text: [i for i in range(len(text) + 1) if re.fullmatch(pattern, text[:i])] == [len(text)]


def parts_of(chunks: list[str]) -> Callable[[str], bool]:
    return lambda text: (
        text in {"".join(chunks[i:j]) for i in range(len(chunks) + 1) for j in range(i, len(chunks) + 1)}
    )


def up_to_a_stop(body: str, stop: str, alphabet: str, longest: int) -> Callable[[str], bool]:
    """Return whether a text is what stands before the first stop, which is looked for in all short texts."""
    ends = ["".join(word) for n in range(longest + 1) for word in itertools.product(alphabet, repeat=n)]
    ends = [end for end in ends if re.fullmatch(stop, end)]
    whole = first_end(f"(?:{body})(?:{stop})")
    return lambda text: any(whole(text + end) for end in ends)


def in_two(text: str, belongs: Callable[[str], bool]) -> bool:
    return any(belongs(text[:i]) and belongs(text[i:]) for i in range(len(text) + 1))


def no_letter_twice(text: str) -> bool:
    return len(set(text)) == len(text)


# grammar, alphabet, longest text, which of the texts are in it
ADDITIONS: list[tuple[str, str, int, Callable[[str], bool]]] = [
    ('start: x{2,3}\nx: "a" | "b"', "ab", 4, full("[ab]{2,3}")),
    ('start: "a"{2} "b"{,2} "c"{1,}', "abc", 6, full("a{2}b{0,2}c+")),
    ("start: A B\nA: /[ab]/{ 1 , 2 }\nB: A{0} /c/{,1}", "abc", 4, full("[ab]{1,2}c?")),
    ("start: A\nA: /[ab]+/ & /.{2,3}/", "ab", 4, full("[ab]{2,3}")),
    ("start: A\nA: /a+/ | /[bc]+/ & /[cd]+/", "abcd", 3, full("a+|c+")),
    ("start: A\nA: (/a+/ | /[bc]+/) & /[cd]+/", "abcd", 3, full("c+")),
    ("start: A\nA: /[ab]/+ & B & /.*b/\nB: /.{1,2}/", "ab", 3, full("b|[ab]b")),
    ("start: A\nA: /[abc]+/ & ~/.*b.*/", "abc", 4, full("[ac]+")),
    ('start: A "!"\nA: ~("a" | B){2} & /[ab!]*/\nB: /b+/', "ab!", 3,
     lambda t: t[-1:] == "!" and in_two(t[:-1], full("(?!(a|b+)$).*"))),
    ('start: A\nA: ~"a"+ & /[ab]{1,3}/', "ab", 3, lambda t: bool(t) and t != "a"),
    ('start: /x/ ~/[^a]*/ "x"', "ax", 4, full("x.*a.*x")),
    ('start: A\nA: /0|0x[0-9]/ & /.*/', "0x1", 3, full("0|0x[01]")),  # a language, and no preferred match
    ('start: "foo" | A\nA: /ab/ & /b/', "fo", 3, full("foo")),
    ('start: %regex {"substring_chars": "abab"} "!"', "ab!", 5, lambda t: t[-1:] == "!" and t[:-1] in "abab"),
    ('start: A\nA: "a" %regex {"substring_chunks": ["a", "", "ab", "b", "a"]}', "ab", 6,
     lambda t: t[:1] == "a" and parts_of(["a", "ab", "b", "a"])(t[1:])),
    ('start: %regex {"substring_words": "a b, a"}', "ab, ", 6, parts_of(["a", " ", "b", ",", " ", "a"])),
    ('start: x "!"\nx[lazy]: /[ab]+/ "b"', "ab!", 5, lambda t: t[-1:] == "!" and first_end("[ab]+b")(t[:-1])),
    ('start: x\nx[lazy]: /a*/', "a", 3, lambda t: not t),
    ('start: x\nx[suffix=B, capture, stop_capture="y"]: /[ab]*/\nB: /ba+/', "ab", 5, first_end("[ab]*ba+")),
    ('start: x\nx[stop="ab"]: /[ab]*/', "ab", 4, up_to_a_stop("[ab]*", "ab", "ab", 2)),
    ('start: x "ab"\nx[stop="ab"]: /[abc]*/', "abc", 5, lambda t: t.find("ab") == len(t) - 2 and t.endswith("ab")),
    ('start: x\nx[stop=/aa|b/]: /[ab]*/', "ab", 5, up_to_a_stop("[ab]*", "aa|b", "ab", 2)),
    ('start: x "b"\nx[stop="", temperature=0.7]: /a*/', "ab", 4, full("a*b")),
    ('start: "a" x "b"\nx[max_tokens=0]: /c/', "abc", 3, full("ab")),
    ('start: p::0\np::_: "x" %if is_ones([0:3]) | "a" p::set_bit(0) %if bit_clear(0)\n'
     ' | "b" p::set_bit(1) %if bit_clear(1)\n | "c" p::set_bit(2) %if bit_clear(2)', "abcx", 4,
     lambda t: len(t) == 4 and t[-1] == "x" and no_letter_twice(t)),
    ('start: p::0x0 "y"?\np::_: "x" | "a" p::incr([0:2]) %if lt([0:2], 2) | "b" p::incr([2:4]) %if ne([2:4], 1)',
     "abxy", 5, lambda t: full("[ab]*xy?")(t) and t.count("a") < 3 and t.count("b") < 2),
    ('start: p::5\np::_: "a" p::decr(_) %if gt(_, 3) | "b" %if and(eq(_, 3), not(bit_set(5)))', "ab", 4, full("aab")),
    ('start: p::0\np::_: "x" %if bit_count_ge(_, 1)\n | "a" p::set_bit(0) %if and(bit_clear(0), bit_count_lt(_, 2))\n'
     ' | "b" p::set_bit(1) %if and(bit_clear(1), bit_count_lt(_, 2))\n'
     ' | "c" p::bit_or(4) %if and(bit_clear(2), bit_count_lt(_, 2))', "abcx", 4,
     lambda t: full("[abc]{1,2}x")(t) and no_letter_twice(t)),
    ('start: p::0\np::_: e::_ f::_ | "a" p::set_bit(0) %if bit_clear(0) | "b" p::set_bit(1) %if bit_clear(1)\n'
     'e::_: "" %if is_ones([0:1])\nf::_: "" %if is_ones([1:2])', "ab", 3, lambda t: sorted(t) == ["a", "b"]),
    ('start: "x" %lark {\n  start: "a" b\n  b: "b" // a brace } in a comment\n} b?\nb: "c"', "xabc", 4, full("xabc?")),
    ('start: a-b{2}\na-b: A-B | "c" -> d-e\nA-B: "a"', "abc", 3, full("[ac]{2}")),
    ('%llguidance {"no_forcing": true}\n%llguidance {}\nstart: "" | "a"', "a", 2, full("a?")),
    ('%llguidance {"ignore_once": true}\nstart: "a" "b"\n%ignore /-{1,2}/', "ab-", 6, full("-{0,2}a-{0,2}b-{0,2}")),
    ('start: "a" "b" %lark { start: "c" "d"\n%ignore "_" } "e"\n%ignore "-"', "abcde-_", 6,
     full("-*a-*b-*_*c_*d_*-*e-*")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "alphabet", "longest", "belongs"), ADDITIONS)
def test_an_addition_derives_what_a_naive_reading_says(
    text: str, alphabet: str, longest: int, belongs: Callable[[str], bool]
) -> None:
    expected = {
        "".join(word)
        for n in range(longest + 1)
        for word in itertools.product(alphabet, repeat=n)
        if belongs("".join(word))
    }
    assert expected
    found = members(read_lark(text), [c.encode() for c in alphabet], longest)
    assert {word.decode() for word in found} == expected


def random_terminal(rng: random.Random, depth: int) -> tuple[str, Callable[[str], bool]]:
    """Return a terminal with operators, and whether a text of a, b and c is in it, by trying all ways."""
    kind = rng.choice(["leaf", "and", "or", "not", "row", "often"]) if depth else "leaf"
    if kind == "leaf":
        pattern = rng.choice(["a", "b|ab", "[ab]*", ".", "a{1,2}", "(?:ab)*", "[^b]+", "(?!ab)[abc]{2}"])
        return f"/{pattern}/", full(pattern)
    one, in_one = random_terminal(rng, depth - 1)
    if kind == "not":
        return f"~({one})", lambda text: not in_one(text)
    if kind == "often":
        low, high = sorted((rng.randint(0, 2), rng.randint(1, 3)))

        def often(text: str, times: int = 0) -> bool:
            if low <= times <= high and not text:
                return True
            return times < high and any(in_one(text[:i]) and often(text[i:], times + 1) for i in range(len(text) + 1))

        return f"({one}){{{low},{high}}}", often
    two, in_two = random_terminal(rng, depth - 1)
    if kind == "and":
        return f"({one} & {two})", lambda text: in_one(text) and in_two(text)
    if kind == "or":
        return f"({one} | {two})", lambda text: in_one(text) or in_two(text)
    return f"({one} {two})", lambda text: any(in_one(text[:i]) and in_two(text[i:]) for i in range(len(text) + 1))


@pytest.mark.parametrize("part", range(3))
def test_random_operators_derive_what_sets_of_texts_do(part: int) -> None:
    texts = ["".join(word) for n in range(5) for word in itertools.product("abc", repeat=n)]
    some = 0
    for seed in range(60 * part, 60 * part + 60):
        terminal, belongs = random_terminal(random.Random(seed), 3)
        expected = [text for text in texts if belongs(text)]
        try:
            grammar = read_lark(f"start: A\nA: {terminal} & ~/d/")
        except mw.errors.RegexError:
            continue
        some += 0 < len(expected) < len(texts)
        dfa = grammar.rules["start"].dfa  # type: ignore[attr-defined]
        assert [text for text in texts if dfa.accepts(text.encode())] == expected, (seed, terminal)
    assert some > 20


def lexed(alternatives: list[tuple[str, bool, str]], text: str) -> bool:
    """Whether a text is some alternatives in a row, as a lexer reads them: (terminal, whether lazy, what follows).

    A lazy terminal that is complete ends all that began with it.
    """
    if not text:
        return True
    cuts = [
        i for i in range(1, len(text) + 1)
        if any(lazy and re.fullmatch(pattern, text[:i]) for pattern, lazy, _ in alternatives)
    ]  # fmt: skip
    first = min(cuts, default=len(text) + 1)
    for pattern, lazy, behind in alternatives:
        for i in range(1, len(text) + 1):
            if not re.fullmatch(pattern, text[:i]) or i > first or (i == first and not lazy):
                continue
            if text[i:].startswith(behind) and lexed(alternatives, text[i + len(behind) :]):
                return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_a_lazy_terminal_ends_all_that_began_with_it(seed: int) -> None:
    rng = random.Random(seed)
    patterns = rng.sample(["[ab]+", "[ab]*b", "a+", "[abc]*ab", "abc?", "[bc]*a", "a?b", "c+"], 3)
    alternatives = [(pattern, rng.random() < 0.6, f"{i}") for i, pattern in enumerate(patterns)]
    rules = "".join(
        f'x{i}: y{i} "{behind}"\ny{i}{"[lazy]" if lazy else ""}: /{pattern}/\n'
        for i, (pattern, lazy, behind) in enumerate(alternatives)
    )
    grammar = read_lark(f"start: (x0 | x1 | x2)*\n{rules}")
    letters = "abc012"
    texts = ["".join(word) for n in range(5) for word in itertools.product(letters, repeat=n)]
    expected = {text for text in texts if lexed(alternatives, text)}
    assert {word.decode() for word in members(grammar, [c.encode() for c in letters], 4)} == expected


def test_a_terminal_goes_on_where_no_lazy_one_begins(vocab: mw.Vocabulary) -> None:
    """One rule has two calls, of which a lazy terminal is beside the first alone."""
    table = mw.compile_grammar('start: word "0" | x "1" | "(" word ")" start?\nword: /ab/\nx[lazy]: /[ab]+/', vocab)
    texts = {"(ab)": True, "(ab)a1": True, "ab0": False, "a1": True, "(ab)ab0": False, "ab1": False}
    assert {text: table.accepts(vocab.encode(text)) for text in texts} == texts
    with pytest.raises(GrammarError, match=r"some rules derive no text at all, .*: start, y"):
        mw.compile_grammar('start: "ab" | x y\nx[lazy]: /a/\ny: A\nA: /a/ & /b/', vocab)


def test_a_grammar_of_llguidances_has_languages_for_terminals(vocab: mw.Vocabulary) -> None:
    rules = 'start: A "."\nA: /0|0x[0-9]+/ | B\nB: "a" | "ab"'
    for head, right in (("", [True, False, True]), ("%llguidance {}\n", [True, True, True])):
        table = mw.compile_grammar(head + rules, vocab)
        assert [table.accepts(vocab.encode(text)) for text in ("0.", "0x1.", "ab.")] == right
    with pytest.raises(GrammarError, match="a lazy quantifier says what a matcher prefers"):
        read_lark("%llguidance {}\nstart: /a*?/")


def test_free_text_ends_where_a_lazy_rule_does(vocab: mw.Vocabulary) -> None:
    text = 'start: (f | g)* TEXT\nTEXT: /(.|\\n)*/\nfh[lazy]: TEXT "<f"\nf: fh "=a>" /[a-z]+/ "</f>"\n'
    text += 'gh[lazy]: TEXT "<f"\ng: gh "=b>" %json {"type": "integer"} "</f>"'
    table = mw.compile_grammar(text, vocab)
    taken = ["", "a\n<", "a<f=a>xy</f>", "a<f=a>x</f><f=b>12</f>b<", "<f=b>-1</f><f=a>x</f>"]
    refused = ["<f", "a<fx", "<f=c>", "<f=a>1</f>", "<f=b>x</f>", "<f=a>x</f> <f "]
    assert [t for t in taken + refused if table.accepts(vocab.encode(t))] == taken


def test_json_in_a_grammar_is_what_its_schema_says(vocab: mw.Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", 1]}, "b": {"type": "array"}}, "required": ["a"]}
    alone = mw.compile_json_schema(schema, vocab)
    table = mw.compile_grammar(
        f'start: "<" value ">" | "(" start ")"\nvalue: %json {json.dumps(schema, indent=2)} // }}', vocab
    )
    texts = ['{"a": "x"}', '{"a":1,"b":[{}, "}"]}', '{"b": [],"a": 1}', '{"a": 2}', "{}", '{"a": 1', '{"a": 1} ', "[]"]
    right = [alone.accepts(vocab.encode(text)) for text in texts]
    assert True in right
    assert False in right
    for begin, end in (("<", ">"), ("(<", ">)")):
        assert [table.accepts(vocab.encode(begin + text + end)) for text in texts] == right
    assert not table.accepts(vocab.encode("(" + texts[0] + ")"))


def test_two_values_may_stand_at_one_place(vocab: mw.Vocabulary) -> None:
    table = mw.compile_grammar('start: a | b "!"\na: %json {"enum": ["x", 1]}\nb: %json {"enum": ["x", 2]}', vocab)
    other = mw.compile_grammar('start: %json {"enum": ["x", 1]} | %json {"enum": ["x", 2]} "!"', vocab)
    texts = ['"x"', '"x"!', "1", "1!", "2", "2!"]
    assert [other.accepts(vocab.encode(text)) for text in texts] == [True, True, True, False, False, True]
    assert [table.accepts(vocab.encode(text)) for text in texts] == [True, True, True, False, False, True]


def test_values_stand_in_rules_that_come_back(vocab: mw.Vocabulary) -> None:
    table = mw.compile_grammar('start: <|user|> %json {"enum": [1, 23]} | "(" start y\ny: ")" | "," start ")"', vocab)
    texts = {"1": True, "23": True, "2": False, "(1)": True, "(1,((23)))": True, "(1,(23)": False, "((1)": False}
    found = {}
    for text in texts:
        tokens = [i for c in text for i in ([USER] if c in "12" else []) + vocab.encode(c)]
        found[text] = table.accepts(tokens)
    assert found == texts


def test_a_grammar_in_a_tag_has_json(vocab: mw.Vocabulary) -> None:
    text = 'start: "(" x ")" | x\nx: %json {"enum": ["y", 1]} %json {"type": "boolean"}'
    inside = {"type": "grammar", "grammar": text, "syntax": "lark"}
    tag = {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": {"const": 5}}, inside]}
    table = mw.compile_structural_tag(tag, vocab)
    texts = {'5("y"true)': True, "51false": True, "5(1true": False, "5true": False, "1true": False}
    assert {text: table.accepts(vocab.encode(text)) for text in texts} == texts
    wrong = {"type": "grammar", "grammar": 'start: %json {"x-guidance": {}}', "syntax": "lark"}
    with pytest.raises(ConstraintError, match="where white space may stand is said for all of a tag"):
        mw.compile_structural_tag(wrong, vocab)


def test_what_is_ignored_stands_around_json_and_not_within(vocab: mw.Vocabulary) -> None:
    schema = '{"type": "array", "items": {"type": "boolean"}, "x-guidance": {"whitespace_flexible": false}}'
    table = mw.compile_grammar(f'start: "a" %json {schema} "b"\n%ignore "-"', vocab)
    for text, right in (("a[true,false]b", True), ("-a--[]-b-", True), ("a[-]b", False), ("a[true,-false]b", False)):
        assert table.accepts(vocab.encode(text)) == right, text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"x-guidance": {"json_allowed_escapes": "n"}}', "'json_allowed_escapes' is not supported"),
        ('{"x-guidance": {"whitespace_flexible": false, "item_separator": ";"}}', "a separator is a comma or a colon"),
        ('{"x-guidance": []}', "the options of %json are an object"),
        ('{"type": "integr"}', "/type"),
        ('{"type": }', "%json of line 2"),
    ],
)
def test_a_wrong_schema_names_its_line(vocab: mw.Vocabulary, schema: str, message: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(message)) as caught:
        mw.compile_grammar(f"start: x\nx: %json {schema}", vocab)
    assert str(caught.value.pointer).startswith("%json of line 2")


def test_white_space_is_said_once_for_all_json(vocab: mw.Vocabulary) -> None:
    text = 'start: %json {} %json {"x-guidance": {"whitespace_flexible": false}}'
    with pytest.raises(SchemaError, match="white space is said for all JSON"):
        mw.compile_grammar(text, vocab)


def test_tokens_stand_by_their_names_and_numbers(vocab: mw.Vocabulary) -> None:
    text = f'start: (<|user|>"a" | <[{SYSTEM},{END}]>)* <[{SYSTEM}-{USER}]> <[260]>?'
    table = mw.compile_grammar(text, vocab)
    a, ab = 1 + ord("a"), 260
    texts = {
        (SYSTEM,): True, (USER,): True, (END,): False, (USER, a, USER): True, (USER, a, END, SYSTEM, SYSTEM): True,
        (USER, USER): False, (SYSTEM, ab): True, (SYSTEM, a, 1 + ord("b")): False, (END, a, USER): False,
    }  # fmt: skip
    for each in (table, table.to_table()):
        assert {tokens: each.accepts(tokens) for tokens in texts} == texts
    with pytest.raises(ConstraintError, match="is the single byte"):
        mw.compile_grammar("start: <[1-300]>", vocab)
    with pytest.raises(ConstraintError, match=r"token 999999 is outside the vocabulary"):
        mw.compile_grammar("start: <[257-999999]>", vocab)


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("lark", 'start: A\nA: "<|us" "er|>"'), ("lark", "start: /<.user.>|x<\\|user\\|>/"),
        ("lark", 'start: "<|USER|>"i'), ("lark", 'start: "<|us" "er|>"'),
        ("gbnf", 'root ::= "<|user" "|>"'), ("ebnf", "root ::= '<|user|>' [a-z]"),
    ],
)  # fmt: skip
def test_the_name_of_a_control_token_in_quotes_is_refused(vocab: mw.Vocabulary, syntax: str, text: str) -> None:
    with pytest.raises(GrammarError, match=r"'<\|user\|>' is the name of a control token: write <\|user\|> without"):
        mw.compile_grammar(text, vocab, syntax=syntax)  # type: ignore[arg-type]
    plain = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)
    assert mw.compile_grammar(text, plain, syntax=syntax) is not None  # type: ignore[arg-type]


def test_no_text_begins_that_no_word_ends(vocab: mw.Vocabulary) -> None:
    """Where operators or conditions leave nothing of a branch, no mask leads into it."""
    for text in ('start: "foo" | "fb" A\nA: /ab/ & /b/', 'start: "foo" | "fb" x::1\nx::_: "c" %if eq(_, 2)'):
        matcher = mw.Matcher(mw.compile_grammar(text, vocab))
        assert matcher.advance(1 + ord("f"))
        mask = matcher.mask()
        assert [i for i in range(vocab.size) if mask[i >> 5] >> (i & 31) & 1] == [1 + ord("o")]
    with pytest.raises(GrammarError, match="a rule derives no text at all"):
        mw.compile_grammar("start: A\nA: /ab/ & /b/", vocab)


def test_words_are_runs_of_one_kind() -> None:
    for text in ("", "a", "a_1 é-- \n b", "日本 語。x"):
        assert "".join(words_of(text)) == text
    assert words_of("a_1 é-- \n b") == ["a_1", " ", "é", "--", " \n ", "b"]


def test_a_long_text_has_all_its_parts_and_no_others(vocab: mw.Vocabulary) -> None:
    rng = random.Random(0)
    words = words_of(" ".join("".join(rng.choices("abcde", k=rng.randint(1, 6))) for _ in range(600)))
    table = mw.compile_grammar(f'start: %regex {{"substring_words": {json.dumps("".join(words))}}}', vocab)
    known = {"".join(words[i:j]) for i in range(len(words)) for j in range(i, min(i + 5, len(words)) + 1)}
    for _ in range(300):
        i = rng.randrange(len(words))
        part = "".join(words[i : i + rng.randint(0, 5)])
        assert table.accepts(vocab.encode(part))
        other = part[: rng.randint(0, len(part))] + rng.choice("abcde ") + part[rng.randint(0, len(part)) :]
        if len(words_of(other)) <= 5:
            assert table.accepts(vocab.encode(other)) == (other in known), other
