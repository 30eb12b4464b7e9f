"""Sources that once went on outside their budgets end in an error in time."""

from __future__ import annotations

import contextlib
import itertools
import time
from functools import partial

import numpy as np
import pytest
from lark.load_grammar import _get_parser

import maskwright as mw
from maskwright.automata.budget import Meter
from maskwright.automata.formulas import uncollected
from maskwright.compile.bind.bind import bind
from maskwright.compile.grammar.lark import read_lark
from maskwright.compile.grammar.lark_parser import parser as parser_of_ours
from maskwright.compile.regex.lower import to_dfa
from maskwright.kernels import deadline
from tests.fuzz import attacks

VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
BUDGET = mw.Budget(seconds=0.3)
SOURCES = {
    "a rule in which all others may be left out": (mw.compile_grammar, "start: " + "r " * 3_000 + '\nr: "a"?'),
    "keys of 16 patterns, any of which may hold together": (
        partial(mw.compile_json_schema, lazy=False),
        {"patternProperties": {chr(97 + n): {"type": "integer", "minimum": n} for n in range(16)}},
    ),
    "a pattern of many pairs": (
        partial(mw.compile_regex, lazy=False),
        "|".join(f"(.*k{n}.*z{n}.*q{n})" for n in range(12)),
    ),
    "tags that each have a trigger": (
        mw.compile_structural_tag,
        {
            "type": "structural_tag",
            "structures": [{"begin": f"<{i}>", "schema": True, "end": "</>"} for i in range(20_000)],
            "triggers": [f"<{i}>" for i in range(20_000)],
        },
    ),
    "lazy terminals that may begin at one place": (
        mw.compile_grammar,
        "start: ("
        + " | ".join(f"x{i}" for i in range(400))
        + ")*\n"
        + "\n".join(f'x{i}[lazy]: /[a-z]*/ "{i}"' for i in range(400)),
    ),
    "a terminal that few texts are not": (mw.compile_grammar, "start: A\nA: ~/.*a.{18}/"),
    "tags in free text": (
        partial(mw.compile_grammar, syntax="ebnf"),
        "root ::= TagDispatch(" + ",".join(f'("<tag{i}>", x)' for i in range(1_500)) + ')\nx ::= "y"',
    ),
    "keys of many branches, of which one holds": (
        partial(mw.compile_json_schema, lazy=False),
        attacks.many_branches(150),
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_hostile_source_ends_in_time(name):
    compile_, source = SOURCES[name]
    began = time.thread_time()
    with pytest.raises(mw.errors.BudgetError) as raised:
        compile_(source, VOCAB, budget=BUDGET)
    assert raised.value.limit == "seconds"
    assert time.thread_time() - began < 3  # collecting garbage of all tests before it takes part of that


def words(count: int, size: int) -> list[str]:
    return ["".join(each) for each in np.random.default_rng(0).choice(list("abcdefghij"), (count, size))]


LARGE = {
    "objects with values of their own": (
        mw.compile_json_schema, {"enum": [{"k": i, "l": [i]} for i in range(5_000)]},
    ),
    "numbers": (mw.compile_json_schema, {"enum": list(range(200_000))}),
    "keys of patterns with values of their own": (
        mw.compile_json_schema,
        {"patternProperties": {f"^{word}": {"const": i} for i, word in enumerate(words(2_000, 6))}},
    ),
    "choices": (mw.compile_choices, words(150_000, 8)),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_a_large_source_is_never_read_for_long_without_a_look_at_the_deadline(name, monkeypatch):
    compile_, source = LARGE[name]
    is_any_late, check = deadline.is_any_late, Meter.check
    looked = [time.thread_time()]

    def seen_late():
        looked.append(time.thread_time())
        return is_any_late()

    def seen_check(meter, **given):
        looked.append(time.thread_time())
        check(meter, **given)

    monkeypatch.setattr(deadline, "is_any_late", seen_late)
    monkeypatch.setattr(Meter, "check", seen_check)
    with uncollected():  # a collection walks what all tests of the process left
        with contextlib.suppress(mw.errors.BudgetError):
            compile_(source, VOCAB, budget=mw.Budget(seconds=60))
        looked.append(time.thread_time())
    whole = looked[-1] - looked[0]  # a slow machine takes longer for each part of it
    assert np.diff(looked).max() < max(1, whole / 3)


def test_what_is_kept_of_objects_with_keys_of_their_own_counts_as_bytes():
    schema = {"enum": [{f"k{i}": i} for i in range(5_000)]}
    began = time.thread_time()
    with pytest.raises(mw.errors.BudgetError) as raised:
        mw.compile_json_schema(schema, VOCAB, lazy=False, budget=mw.Budget(seconds=20, bytes=20_000_000))
    assert raised.value.limit == "bytes"
    assert time.thread_time() - began < 3


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("a pattern of many pairs", "k1..k3...z3.q3", "k1..k3...q3.z3"),
        ("keys of 16 patterns, any of which may hold together", '{"xc": 2}', '{"xc": 1}'),
        ("keys of many branches, of which one holds", '{"k7": 3}', "{}"),
    ],
)
def test_what_has_no_table_in_time_is_read_at_once(name, right, wrong):
    compile_, source = SOURCES[name]
    began = time.thread_time()
    matcher = mw.Matcher(compile_.func(source, VOCAB, budget=BUDGET), VOCAB)
    matcher.mask()
    assert time.thread_time() - began < 3
    assert [matcher.accepts(VOCAB.encode(text)) for text in (right, wrong)] == [True, False]


def test_a_grammar_of_many_brackets_is_refused_for_its_depth():
    began = time.thread_time()
    with pytest.raises(mw.errors.GrammarError) as raised:
        mw.compile_grammar("start: " + "(" * 300_000 + '"a"', VOCAB, budget=BUDGET)
    assert raised.value.limit == "depth"
    assert time.thread_time() - began < 3


SLASHES, QUOTES, LINES = r"\/" * 100_000, r"\"" * 100_000, "\n" * 300_000
MALFORMED = {
    "backslashes in a pattern without an end": "start: /" + "\\" * 80,
    "backslashes in a text without an end": 'start: "' + "\\" * 80,
    "backslashes before a token": "start: <a> /" + "\\" * 80,
    "slashes in a pattern without an end": "start: /" + "(" * 101 + SLASHES,
    "slashes in a pattern without an end, before a token": f"start: <a> /{SLASHES}",
    "quotes in a text without an end": 'start: "' + "(" * 101 + QUOTES,
    "quotes in a text without an end, before a token": f'start: <a> "{QUOTES}',
    "lines without anything": f"start: ?{LINES}",
}


@pytest.mark.parametrize("repeat", ["a*", "a?", "(a|b)*"])
def test_a_pattern_of_many_repeats_in_a_row_is_read_in_time(repeat):
    began = time.thread_time()
    table = mw.compile_regex(repeat * 4_000, VOCAB, budget=mw.Budget(seconds=1))
    assert table.accepts(VOCAB.encode("aaa"))
    assert time.thread_time() - began < 2


def test_a_state_of_many_parts_is_read_within_the_budget():
    def read():
        matcher = mw.Matcher(mw.compile_regex("a*b?" * 5_000, VOCAB, budget=BUDGET), VOCAB)
        for token in VOCAB.encode("aa"):
            matcher.mask()
            matcher.advance(token)

    began = time.thread_time()
    with pytest.raises(mw.errors.BudgetError) as raised:
        read()
    assert raised.value.limit == "seconds"
    assert time.thread_time() - began < 3


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_grammar_is_refused_in_time(name):
    began = time.thread_time()
    with pytest.raises(mw.errors.GrammarError):
        mw.compile_grammar(MALFORMED[name], VOCAB, budget=BUDGET)
    assert time.thread_time() - began < 1


def test_lines_without_anything_take_no_time():
    began = time.thread_time()
    table = mw.compile_grammar(f'start: "a"{LINES}| "b"{LINES}', VOCAB, budget=BUDGET)
    assert time.thread_time() - began < 1
    assert table.accepts(VOCAB.encode("b"))


def test_tokens_of_grammars_are_those_of_lark_but_for_what_ends_in_an_escape():
    theirs, ours = (each.lexer.scanner._mres[0] for each in (_get_parser(), parser_of_ours()))
    for length in range(1, 6):
        for letters in itertools.product('/\\"\n|a ', repeat=length):
            text = "".join(letters)
            expected, found = theirs.match(text), ours.match(text)
            if expected is not None and expected.group()[-2:] in ("\\/", '\\"') and found is None:
                continue  # its pattern or text ends in the middle of an escape, which is an error
            assert (expected is None) == (found is None)
            assert expected is None or (expected.lastgroup, expected.group()) == (found.lastgroup, found.group())


def test_a_rule_of_many_symbols_in_a_row_ends_in_time():
    grammar = "root ::= " + "a b " * 50_000 + '\na ::= "x" | "y"\nb ::= "z" | "u"'
    began = time.thread_time()
    with contextlib.suppress(mw.errors.BudgetError):  # a quick machine reads it within its second
        mw.compile_grammar(grammar, VOCAB, syntax="gbnf", budget=mw.Budget(seconds=1))
    assert time.thread_time() - began < 3


def test_texts_in_a_row_are_joined_at_once():
    grammar = "start: " + f'"{"a" * 100}" ' * 100_000
    began = time.thread_time()
    assert read_lark(grammar).rules["start"].data == b"a" * 10_000_000
    assert time.thread_time() - began < 8


def test_the_time_to_spell_a_word_grows_with_its_length_alone():
    """Keys are counted by name, so that a class of a single long key is read back from its automaton."""
    schema = {"propertyNames": {"not": {"const": "abcdefghij" * 3_000}}, "maxProperties": 3}
    table = mw.compile_json_schema(schema, VOCAB, budget=mw.Budget(seconds=10))
    assert table.accepts(VOCAB.encode('{"abcdefghij": 1}'))


def test_binding_many_states_to_many_tokens_ends_in_time():
    rng = np.random.default_rng(0)
    words = {rng.integers(97, 123, n).astype(np.uint8).tobytes() for n in rng.integers(2, 9, 60_000)}
    vocabulary = mw.Vocabulary.from_bytes(
        [b"", *(bytes([byte]) for byte in range(256)), b" " * 64, *sorted(words)], eos=0
    )
    dfa = to_dfa(r"(?=.*[A-Z])(?=.*[a-z])(?=.*\d)(?=.*[^\w\s]).{8,60}", meter=mw.Budget(seconds=60).begin())
    assert vocabulary.trie is not None
    meter = mw.Budget(seconds=0.2).begin()
    began = time.thread_time()
    with pytest.raises(mw.errors.BudgetError) as raised, meter:
        bind(dfa, vocabulary, source="", meter=meter)
    assert raised.value.limit == "seconds"
    assert time.thread_time() - began < 0.8
