"""Grammars: what is read token by token, and what tables hold, against a naive recogniser."""

from __future__ import annotations

import itertools
import random
import time

import pytest

import maskwright as mw
from maskwright.automata.budget import Budget
from maskwright.compile.grammar.build import compile_form
from maskwright.compile.grammar.form import Choice, Grammar, Rule, Sequence, Text
from tests.oracles.naive_grammar import accepts
from tests.strategies.grammars import a_node

WORDS = [bytes(word) for n in range(6) for word in itertools.product(b"ab", repeat=n)]
LONGER = [b"ab", b"ba", b"aab", b"bb", b"abab", b"a "]


@pytest.fixture(scope="module")
def vocab() -> mw.Vocabulary:
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *LONGER], eos=0)


def spelled(data: bytes) -> list[int]:
    return [1 + byte for byte in data]


def allowed_bytes(matcher: mw.Matcher) -> bytes:
    mask = matcher.mask()
    return bytes(byte for byte in range(256) if mask[1 + byte >> 5] >> (1 + byte & 31) & 1)


@pytest.mark.parametrize("part", range(4))
def test_random_grammars_allow_what_a_naive_recogniser_accepts(part, vocab):
    """Read as it is and, where no rule embeds itself, as a table: the same members and the same masks."""
    complete = read = 0
    for seed in range(40 * part, 40 * part + 40):
        rng = random.Random(seed)
        names = ["start", "x", "y", "z"][: rng.randint(1, 4)]
        grammar = Grammar({name: a_node(rng, 3, names) for name in names}, "start")
        try:
            table = compile_form(grammar, vocab, source="test", meter=Budget(states=20_000).begin())
        except mw.errors.GrammarError:
            continue
        read += 1
        members = [word for word in WORDS if accepts(grammar, word)]
        assert [word for word in WORDS if table.accepts(spelled(word))] == members, seed
        reader = mw.Matcher(table)
        if table.is_nested:
            continue
        table.to_table()
        complete += 1
        assert [word for word in WORDS if table.accepts(spelled(word))] == members, seed
        for word in members[:6]:
            reader.reset()
            whole = mw.Matcher(table)
            for byte in word:
                assert (reader.mask() == whole.mask()).all(), (seed, word)
                assert (reader.advance(1 + byte), whole.advance(1 + byte)) == (True, True)
            assert (reader.mask() == whole.mask()).all(), (seed, word)
    assert min(read - 10, complete) > 10


def test_a_mask_allows_the_tokens_behind_which_a_member_can_follow(vocab):
    """Palindromes are no regular language; each token is judged by all words it can still become."""
    grammar = Grammar(
        {"start": Choice((Text(b""), *(Sequence((Text(c), Rule("start"), Text(c))) for c in (b"a", b"b"))))}, "start"
    )
    table = compile_form(grammar, vocab, source="test", meter=Budget().begin())
    matcher = mw.Matcher(table)
    for byte in b"aab":
        assert matcher.advance(1 + byte)
    mask = matcher.mask()
    allowed = [i for i in range(len(vocab.tokens)) if mask[i >> 5] >> (i & 31) & 1]
    assert allowed == [1 + ord("a"), 1 + ord("b"), *(257 + i for i in range(5))]  # never at an end, never a space
    for byte in b"baa":
        assert matcher.advance(1 + byte)
    assert matcher.is_accepting


LISTS = {
    "right": 'start: "a" start | "a"',
    "left": 'start: start "a" | "a"',
    "mutual": 'start: "a" x | "a"\nx: "a" start | "a"',
    "operators": 'start: start "+" x | x\nx: x "*" "a" | "a"',
}


@pytest.mark.parametrize("name", sorted(LISTS))
def test_lists_are_regular_and_take_few_states(name, vocab):
    table = mw.compile_grammar(LISTS[name], vocab)
    matcher = mw.Matcher(table)
    for _ in range(500):
        assert matcher.advance(1 + ord("a"))
        if name == "operators":
            assert matcher.advance(1 + ord("+"))
    assert table.machine.num_states < 12
    assert not table.is_nested
    assert table.to_table().num_states < 12


def test_deep_nesting_is_followed_and_closed(vocab):
    table = mw.compile_grammar('start: "(" start ")" | "a"', vocab)
    matcher = mw.Matcher(table)
    for byte in b"(" * 3000 + b"a" + b")" * 2999:
        assert matcher.advance(1 + byte)
    assert not matcher.is_accepting
    assert not matcher.advance(1 + ord("a"))
    assert matcher.advance(1 + ord(")"))
    assert matcher.is_finished


def test_a_grammar_without_a_finite_table_says_so(vocab):
    """Of a palindrome without a middle the input does not say where that is."""
    table = mw.compile_grammar('start: "a" start "a" | "b" start "b" | "a" | "b"', vocab)
    with pytest.raises(mw.errors.ConstraintError, match="no finite table"):
        table.to_table()
    assert [table.accepts(spelled(word)) for word in (b"abbba", b"abba")] == [True, False]


def test_a_chain_of_rules_is_read_however_long(vocab):
    chain = "\n".join(f'r{i}: "a" r{i + 1} "b"' for i in range(2000))
    table = mw.compile_grammar(f'start: r0\n{chain}\nr2000: "c"', vocab)
    assert table.accepts(spelled(b"a" * 2000 + b"c" + b"b" * 2000))
    assert not table.accepts(spelled(b"a" * 2000 + b"c" + b"b" * 1999))


@pytest.mark.parametrize("levels", [99, 100, 101, 350, 640])
@pytest.mark.parametrize(
    ("syntax", "before"),
    [("ebnf", """"(" ')' /* ) ( */ #x5D [)(]? # (\n"""), ("gbnf", """"()" "]" [)(]? # (\n""")],
    ids=["ebnf", "gbnf"],
)
def test_groups_deep_in_others_say_what_the_same_groups_say_elsewhere(levels, syntax, before, vocab):
    behind = """ # )\n)*")" """
    grammar = f"root ::= {f'({before}' * levels}[a)] | root{behind * levels}"
    table = mw.compile_grammar(grammar, vocab, syntax=syntax)
    opened, closed = "()]" * levels, ")" * levels
    for text, accepted in (
        (f"{opened}a{closed}", True), (f"{opened}){closed}", True), (f"{opened[3:]}{opened}a{closed}{closed}", True),
        (f"{opened}(a{closed}", True), (f"{opened}a{closed[1:]}", False), (f"{opened}]{closed}", False), (")", True),
    ):  # fmt: skip
        assert table.accepts(spelled(text.encode())) == accepted, text


@pytest.mark.parametrize("levels", [1, 100, 101, 500])
def test_a_group_deep_in_others_that_is_never_closed_is_named(levels, vocab):
    with pytest.raises(mw.errors.GrammarError, match="never closed") as error:
        mw.compile_grammar(f"root ::= {'(' * levels} [)] ')'", vocab, syntax="ebnf")
    assert error.value.position == 9 + levels - 1


def test_groups_deep_in_others_are_as_many_as_rules_may_be(vocab):
    inside = '("a")'
    few, many = (f"root ::= {'(' * 100}{inside * count}{')' * 100}" for count in (300, 6001))
    assert mw.compile_grammar(few, vocab, syntax="ebnf").accepts(spelled(b"a" * 300))
    with pytest.raises(mw.errors.GrammarError, match="more than 6,000 groups stand 100 deep") as error:
        mw.compile_grammar(many, vocab, syntax="ebnf")
    assert (error.value.limit, error.value.allowed) == ("depth", 6000)


@pytest.mark.parametrize("levels", [1, 101, 350, 600])
@pytest.mark.parametrize(
    ("inside", "at"), [('"a""', 3), ('"a"{",2}', 3), ("TagDispatch((\"<a>', w))", 13), ('"a" (* x', 5)]
)
def test_what_is_wrong_deep_in_groups_is_told_where_it_stands(levels, inside, at, vocab):
    with pytest.raises(mw.errors.GrammarError) as error:
        mw.compile_grammar(f"root ::= {'(' * levels}{inside}{')' * levels}\nw ::= 'w'", vocab, syntax="ebnf")
    assert error.value.position == 9 + levels + at


def test_terminals_of_terminals_end_at_the_budget(vocab):
    lines = "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(40))
    with pytest.raises(mw.errors.BudgetError, match="putting the terminal"):
        mw.compile_grammar(f'start: T0\n{lines}\nT40: "a"', vocab)


def test_a_terminal_of_one_state_is_one(vocab):
    table = mw.compile_grammar("start: /[ab]*/", vocab)
    assert [table.accepts(spelled(word)) for word in (b"", b"abba", b"c")] == [True, True, False]


def test_where_the_budget_ends_one_text_ends_and_others_begin_anew(vocab):
    table = mw.compile_grammar('start: "a" start "a" | "b" start "b" | "c"', vocab, budget=Budget(states=300))
    rng = random.Random(0)
    ended = 0
    before = mw.Matcher(table)
    assert before.advance(1 + ord("a"))
    for _ in range(200):
        matcher, word = mw.Matcher(table), bytes(rng.choices(b"ab", k=25))
        try:
            assert all(matcher.advance(1 + byte) for byte in word)
            assert allowed_bytes(matcher) == b"abc"
        except mw.errors.BudgetError:
            ended += 1
    assert 10 < ended < 100
    with pytest.raises(mw.errors.BudgetError, match="where all was forgotten"):
        before.advance(1 + ord("b"))


def test_the_arrays_of_a_lazy_grammar_are_saved(vocab, tmp_path):
    table = mw.compile_grammar('start: "(" start ")" | "a"', vocab)
    table.save(tmp_path / "table.mw")
    assert mw.TransitionTable.load(tmp_path / "table.mw").accepts(spelled(b"((a))"))


def test_rules_that_derive_nothing_are_named(vocab):
    with pytest.raises(mw.errors.GrammarError, match=r"(?s)line 2.*no text at all.*x"):
        mw.compile_grammar('start: "a"\nx: "b" x', vocab)  # though nothing leads to it
    with pytest.raises(mw.errors.GrammarError, match=r"(?s)line 2.*no text at all.*x"):
        mw.compile_grammar('start: "a" | x\nx: "b" x', vocab)


def test_an_ambiguous_grammar_ends_in_an_answer_or_at_its_budget(vocab):
    table = mw.compile_grammar('start: start start start | start start | "a"', vocab, budget=mw.Budget(states=100))
    matcher = mw.Matcher(table)
    with pytest.raises(mw.errors.BudgetError, match="states"):
        all(matcher.advance(1 + ord("a")) for _ in range(1000))


def test_one_mask_of_rules_that_are_all_empty_ends_in_time(vocab):
    rules = [f'n{i} ::= "a"? n{(i + 1) % 700}? n{(i + 2) % 700}?' for i in range(700)]
    grammar = "\n".join(["root ::= n0", *rules])
    table = mw.compile_grammar(grammar, vocab, syntax="gbnf", budget=mw.Budget(seconds=0.5))
    began = time.thread_time()
    with pytest.raises(mw.errors.BudgetError) as raised:
        mw.Matcher(table).mask()
    assert raised.value.limit == "seconds"
    assert time.thread_time() - began < 2


def test_a_vocabulary_that_lacks_bytes_is_refused_or_trimmed():
    small = mw.Vocabulary.from_bytes([b"", b"(", b"a", b")", b"b(", b"ab"], eos=0)
    with pytest.raises(mw.errors.ConstraintError, match="no token for the single byte b'b'"):
        mw.compile_grammar('start: "(" start ")" | "a" | "b"', small)
    table = mw.compile_grammar('start: "a" start | "b" "("  | "b"', small)
    assert [table.accepts(tokens) for tokens in ([2, 5], [2, 4], [2])] == [True, True, False]


def test_the_other_notations_are_read(vocab):
    gbnf = mw.compile_grammar('root ::= "(" root ")" | [0-9]+', vocab, syntax="gbnf")
    ebnf = mw.compile_grammar('root ::= "(" root ")" | [0-9]+', vocab, syntax="ebnf")
    for table in (gbnf, ebnf):
        assert [table.accepts(spelled(word)) for word in (b"((42))", b"((42)")] == [True, False]
    with pytest.raises(ValueError, match="'gbnf'"):
        mw.compile_grammar("root ::= x", vocab, syntax="bnf")  # type: ignore[arg-type]
