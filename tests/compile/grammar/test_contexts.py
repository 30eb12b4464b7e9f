"""Terminals that ask for what follows them, against `re` and a naive recogniser."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from lark.load_grammar import stdlib_loader

import maskwright as mw
from maskwright.automata import ops
from maskwright.automata.budget import Budget
from maskwright.compile.grammar.contexts import asks_for_contexts, without_contexts
from maskwright.compile.grammar.form import Choice, Grammar, Node, Repeat, Sequence, Terminal
from maskwright.compile.grammar.lark import read_lark
from maskwright.compile.grammar.terminals import words_in_context
from tests.oracles.naive_grammar import accepts, members
from tests.strategies.grammars import a_node

PLAIN = [
    r"a+(?!b)",
    r"[?](?![a-z])",
    r"a(?=bc?)",
    r"[ab]+\b",
    r"a\B",
    r"a(?!b(?!c))",
    r"(?:ab)*(?![bc]a)",
    "a(?=.*c)",
]
"""Whose words are their language: one character decides how to go on."""
PREFERRED = [
    r"[ab]++",
    r"(?>a+|b)c?",
    r"(?:a|ab)++",
    r"a|ab(?!c)",
    r"a+?(?=b)b?",
    r'"(?!"").*?"',
    r"(?:a|ab)(?=c)",
    r"a*(?!a)b?",
]


@pytest.mark.parametrize("pattern", PLAIN + PREFERRED)
def test_words_are_told_apart_by_what_may_follow(pattern: str) -> None:
    """A word is taken if `re` finds it in the text, and where it is taken, some way through the pattern ends there."""
    parts = words_in_context(pattern, Budget().begin())
    letters = 'abc?"'
    texts = ["".join(word) for n in range(5) for word in itertools.product(letters, repeat=n)]
    for text in texts:
        first = re.match(pattern, text)
        for end in range(len(text) + 1):
            word, behind = text[:end].encode(), text[end:].encode()
            taken = any(own.accepts(word) and after.accepts(behind) for own, after in parts)
            some = re.match(rf"(?:{pattern})(?<=\A.{{{end}}})", text) is not None
            if pattern in PLAIN:
                assert taken == some, (text, end)
            assert taken or first is None or first.end() != end, (text, end)
            assert some or not taken, (text, end)


def asking(node: Node, rng: random.Random, terminals: list[Terminal]) -> Node:
    """Return a node with terminals that ask here and there."""
    if isinstance(node, (Sequence, Choice)):
        items = [asking(item, rng, terminals) for item in node.items]
        if rng.random() < 0.6:
            items.insert(rng.randint(0, len(items)), rng.choice(terminals))
        return type(node)(tuple(items))
    return Repeat(asking(node.item, rng, terminals), node.low, node.high) if isinstance(node, Repeat) else node


@pytest.mark.parametrize("part", range(3))
def test_random_grammars_without_contexts_derive_the_same(part: int) -> None:
    terminals = []
    for pattern in (r"a(?!b)", r"b+(?=a)", r"a(?!ba)", r"[ab]\b", r"ab?(?!aa)"):
        parts = words_in_context(pattern, Budget().begin())
        terminals.append(Terminal(pattern, ops.unions([own for own, _ in parts]), pattern, parts))
    some = 0
    for seed in range(25 * part, 25 * part + 25):
        rng = random.Random(seed)
        names = ["start", "x", "y"][: rng.randint(1, 3)]
        grammar = Grammar({name: asking(a_node(rng, 3, names), rng, terminals) for name in names}, "start")
        if not asks_for_contexts(grammar.rules):
            continue
        try:
            made = without_contexts(grammar, Budget().begin())
        except mw.errors.GrammarError:
            continue
        words = [bytes(word) for n in range(6) for word in itertools.product(b"ab", repeat=n)]
        expected = {word for word in words if accepts(grammar, word)}
        assert {word for word in words if accepts(made, word)} == expected, seed
        some += len(expected) not in (0, len(words))
    assert some > 5


VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)


def test_what_is_ignored_is_text_that_follows() -> None:
    grammar = read_lark('start: A ("b" | "c")\nA: /a(?!b)/\n%ignore " "')
    found = members(grammar, [b"a", b"b", b"c", b" "], 3)
    assert found == {b"ac", b"a b", b"a c", b"ac ", b" ac"}


def test_a_matcher_keeps_to_contexts() -> None:
    table = mw.compile_grammar('start: OP NAME? | "[" start "]"\nOP: /[?](?![a-z])/\nNAME: /[a-zA-Z]+/', VOCAB)
    texts = {"?": True, "?A": True, "?a": False, "?Aa": True, "[?]": True, "[?a]": False, "[?Ab]": True}
    assert {text: table.accepts(VOCAB.encode(text)) for text in texts} == texts
    matcher = mw.Matcher(table)
    assert matcher.advance(1 + ord("?"))
    mask = matcher.mask()
    assert not mask[1 + ord("a") >> 5] >> (1 + ord("a") & 31) & 1
    assert mask[1 + ord("A") >> 5] >> (1 + ord("A") & 31) & 1


def test_no_context_is_open_before_json_and_few_counts_are_beside_one() -> None:
    with pytest.raises(mw.errors.GrammarError, match="a JSON value cannot stand behind"):
        read_lark("start: A %json {}\nA: /a(?!b)/")
    assert read_lark('start: A "c" %json {}\nA: /a(?!b)/') is not None
    with pytest.raises(mw.errors.GrammarError, match="repeated more than 64 times"):
        read_lark("start: A{100}\nA: /a(?!b)/")
    with pytest.raises(mw.errors.GrammarError, match="a rule derives no text at all"):
        mw.compile_grammar('start: A "b"\nA: /a(?!b)/', VOCAB)


def test_larks_own_grammars_are_read() -> None:
    for name, start in (("lark", "start"), ("python", "file_input"), ("python", "single_input")):
        assert read_lark(stdlib_loader(None, f"{name}.lark")[1], start).rules


PYTHON = {
    "x = 1\n": True, "x = ''\n": True, "x = ''''\n": False,
    "f(0, 00, 0_0)\n": True, "f(01)\n": False, "x = 0 1\n": False,
    "x = (1\n": False,
    "def f(a, *b): return a if b else 'c'\n": True, "x = \"a\\\"b\"\n": True, "x = '''a\nb'''\n": True,
    "if x:\n\0": False, "import a.b as c; y = [i for i in c]\n": True, "x = 0x1F + 1.5e3j\n": True, "x == = 1\n": False,
}  # fmt: skip


def test_larks_python_grammar_reads_python() -> None:
    text = stdlib_loader(None, "python.lark")[1]
    vocab = mw.Vocabulary.from_bytes(
        [b"", *(bytes([b]) for b in range(256)), b"", b""], eos=0, special={"_INDENT": 257, "_DEDENT": 258}
    )
    table = mw.compile_grammar(text, vocab, start="file_input")
    assert {code: table.accepts(vocab.encode(code)) for code in PYTHON} == PYTHON
    nested = [*vocab.encode("if x:\n"), 257, *vocab.encode("y()\n"), 258]
    assert table.accepts(nested)
    assert not table.accepts(nested[:-1])


def test_larks_own_notation_is_what_its_grammar_says() -> None:
    table = mw.compile_grammar(stdlib_loader(None, "lark.lark")[1], VOCAB)
    texts = {
        'a: "b"\n': True,
        "a: b? c\n": True,
        "a: b ? c\n": True,
        "a: ?\n": False,
        "A.2: /x/i | B*\n": True,
        "a: (b\n": False,
        "a: //\n": True,
    }
    assert {text: table.accepts(VOCAB.encode(text)) for text in texts} == texts
