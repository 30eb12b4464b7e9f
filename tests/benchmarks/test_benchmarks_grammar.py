"""The benchmark of grammars: its texts are what they say, its grammars mean them, a wrong engine is called wrong."""

from __future__ import annotations

import ast
import configparser
import csv
import io
import json
import re
import sqlite3
import sys
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import numpy as np
import pytest
from lark import Lark
from lark.exceptions import UnexpectedInput

import maskwright as mw
from benchmarks import peers
from benchmarks.suites.grammar import __main__ as suite
from benchmarks.suites.grammar import cases as texts_of
from benchmarks.suites.grammar import measuring, report
from benchmarks.suites.grammar.cases import Case
from benchmarks.suites.grammar.ebnf import to_ebnf

LONGER = [
    b'": ',
    b'"}',
    b"((",
    b"))",
    b"  ",
    b" e",
    b"sel",
    b"ect ",
    b" = ",
    b"ab",
    b"==",
    b"</",
    b"/>",
    b"1.",
    b"\xc3\xa9",
    b"();\n",
]
CASES = texts_of.cases()
DATABASE = """
create table users (id, name, age, city);
create table orders (id, user_id, total, placed);
create table items (order_id, sku, quantity, price);
create table odd (selected, fromage, android, ordering);
"""


@pytest.fixture(scope="module")
def vocab() -> mw.Vocabulary:
    return mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256)), *LONGER], eos=0)


def tokens(text: str) -> list[int]:
    """Return a text in the longest tokens from the left."""
    data, out = text.encode(), []
    while data:
        long = max((word for word in LONGER if data.startswith(word)), key=len, default=b"")
        out.append(257 + LONGER.index(long) if long else 1 + data[0])
        data = data[len(long) or 1 :]
    return out


# ---------------------------------------------------------------------------------------------- what Python can read


def no_constant(name: str) -> None:
    raise ValueError(name)


def prepared(text: str) -> None:
    with sqlite3.connect(":memory:") as database:
        database.executescript(DATABASE)
        database.execute("explain " + text)
    database.close()


def rows(text: str) -> None:
    list(csv.reader(io.StringIO(text, newline=""), strict=True))


def parsed(text: str) -> None:
    if not text.strip():
        raise SyntaxError("nothing")
    ast.parse(text)


READERS: dict[str, Callable[[str], object]] = {
    "arithmetic": lambda text: ast.parse(text.strip(" \t"), mode="eval"),
    "csv": rows,
    "ini": lambda text: configparser.RawConfigParser().read_string(text),
    "json": lambda text: json.loads(text, parse_constant=no_constant),
    "python": parsed,
    "regex": re.compile,
    "sql": prepared,
    "xml": lambda text: ElementTree.fromstring(text.encode()),
}


def reads(name: str, text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            READERS[name](text)
    except (ValueError, SyntaxError, csv.Error, configparser.Error, sqlite3.Error, re.error):
        return False
    return True


@pytest.mark.parametrize("case", [case for case in CASES if case.name in READERS], ids=lambda case: case.name)
def test_a_reader_of_the_language_takes_the_texts_inside_and_beyond_and_no_others(case):
    said = {text: reads(case.name, text) for text, _ in case.texts}
    assert [text for text in case.inside if not said[text]] == []
    assert [text for text in case.outside if said[text]] == []
    assert [text for text in case.beyond if not said[text]] == []


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in READERS], ids=lambda case: case.name)
def test_lark_takes_the_short_texts_inside_and_no_others(case):
    """Where Python has no reader of the language, lark's slowest and most complete parser reads the grammar."""
    parser = Lark(case.lark, parser="earley", lexer="dynamic_complete")

    def parses(text: str) -> bool:
        try:
            parser.parse(text)
        except UnexpectedInput:
            return False
        return True

    short = [(text, inside) for text, inside in case.texts if len(text) <= 24]
    assert len(short) > 40
    assert [text for text, inside in short if parses(text) != inside] == []


def test_there_are_enough_grammars_and_texts():
    assert len(CASES) >= 13
    for case in CASES:
        assert min(len(case.inside), len(case.outside)) >= 20, case.name
        assert len({text for text, _ in case.texts}) == len(case.texts), case.name
        assert max(map(len, case.inside)) >= 35, case.name


# --------------------------------------------------------------------------------------------------- what they mean


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_grammar_means_its_texts(case, vocab):
    """Each text is walked as it is written: what is inside is allowed token by token, and then its end."""
    table = mw.compile_grammar(case.lark, vocab)
    for text, inside in case.texts:
        matcher, allowed = mw.Matcher(table), True
        for token in [*tokens(text), 0]:
            bits = matcher.mask()
            allowed = bool(bits[token >> 5] >> (token & 31) & 1)
            assert matcher.advance(token) == allowed
            if not allowed:
                break
        assert allowed == inside, text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_ebnf_made_for_a_peer_means_the_same(case, vocab):
    table = mw.compile_grammar(to_ebnf(case.lark), vocab, syntax="ebnf")
    wrong = [text for text, inside in case.texts if table.accepts([*tokens(text), 0]) != inside]
    assert wrong == []


def test_an_automaton_is_written_as_rules_with_the_same_words(vocab):
    lark = r"""
start: A "é" B*
A: /(?!(?:if|in)\b)[a-zé-ü\ud000-\uf000\U00010000-\U0010ffff]+/
B: /"(?:[^"\\]|\\.)*"/
"""
    one, other = mw.compile_grammar(lark, vocab), mw.compile_grammar(to_ebnf(lark), vocab, syntax="ebnf")
    texts = ["ifé", "iffé", "ùé", "é", "éé", "\ue000é", "\U0010ffffé", "\u0100é", 'aé"\\""', 'aé"', 'aé"é\U0001f600""']
    assert [one.accepts([*tokens(t), 0]) for t in texts] == [other.accepts([*tokens(t), 0]) for t in texts]
    assert 3 < sum(one.accepts([*tokens(text), 0]) for text in texts) < len(texts)


# ---------------------------------------------------------------------------------------------------- the measuring

TOY = peers.Tokenizer(
    [b"", b"", b"", *(bytes([i]) for i in range(256))], [0, 1, 2], 2, lambda text: [b + 3 for b in text.encode()]
)
TOY_CASE = Case("toy", "", "", "", ("ab", "b"), ("abb", "c"), ())


class Naive:
    """An engine that takes a's and b's, and lets a text end if it is one of these."""

    def __init__(self, takes=("ab", "b"), forbids="", fault=""):
        self.takes, self.forbids, self.fault, self.compiled = takes, forbids, fault, 0

    def compile(self, case):
        if case.lark == "refuse":
            raise ValueError("no")
        self.compiled += 1
        return case

    def forget(self):
        pass

    def size(self, compiled):
        return 7

    def session(self, case):
        text, bits = bytearray(), np.zeros(9, np.uint32)

        def mask():
            bits[:] = 0
            for token in {ord("a") + 3, ord("b") + 3} - {ord(c) + 3 for c in self.forbids}:
                bits[token >> 5] |= np.uint32(1 << (token & 31))
            bits[0] = 4 * (text.decode() in self.takes)

        def commit(token):
            text.append(token - 3)
            return text[-1] in b"ab"

        return peers.Session(mask, commit, lambda: bits, lambda: self.fault)


def ask(engine, case=TOY_CASE, rounds=1):
    return measuring.ask(engine, case, TOY, rounds, 10.0)


@pytest.mark.long
def test_an_engine_that_is_right_is_called_right_and_each_step_is_timed_twice():
    engine = Naive()
    found = ask(engine, rounds=3)
    assert (found["wrong"], found["read"], found["narrow"], found["bytes"]) == ([], 4, 0, 7)
    assert [len(found["steps_ns"][which]) for which in ("first", "again")] == [7, 7]
    assert (len(found["first_ms"]), len(found["again_ms"]), engine.compiled) == (3, 2, 5)


def test_an_engine_that_is_wrong_is_called_wrong_with_its_text():
    assert ask(Naive(takes=("ab", "abb")))["wrong"] == [
        {"text": "b", "said": "refuses"},
        {"text": "abb", "said": "accepts"},
    ]
    assert ask(Naive(forbids="b"))["narrow"] == 2
    assert [one["said"] for one in ask(Naive(fault="tired"))["wrong"]] == ["gives up: tired"] * 4


def test_refusing_a_grammar_is_kept_with_its_reason():
    found = ask(Naive(), Case("toy", "", "refuse", "", ("a",), (), ()))
    assert (found["refused"], found["read"]) == ("ValueError: no", 0)


def test_a_grammar_that_takes_too_long_is_read_no_further():
    found = measuring.ask(Naive(), TOY_CASE, TOY, 5, 0.0)
    assert (found["read"], len(found["first_ms"])) == (0, 1)


def test_bars_are_held_against_what_was_measured():
    def record(engine, name, first, us, wrong=(), **more):
        steps = {key: [1000 * us] for key in ("first", "again", "whole", "whole, again")}
        found = {"engine": engine, "grammar": name, "texts": 4, "read": 4, "narrow": 0, "wrong": list(wrong)}
        return {**found, "first_ms": [first], "again_ms": [first], "steps_ns": steps, **more}

    def held(records):
        names = ["maskwright", "llguidance"]
        results = {"versions": dict.fromkeys(names, "1"), "grammars": report.rows(records)}
        return [row[3] for row in report.bars({**results, "summary": report.summary(records, names)})]

    theirs = [record("llguidance", "a", 1.0, 9), record("llguidance", "b", 2.0, 9)]
    tabled = {"way": "regular", "whole_ms": 1.0}
    ours = [record("maskwright", "a", 2.0, 4, **tabled), record("maskwright", "b", 5.0, 7, way="as it is read")]
    assert held([*ours, *theirs]) == [True] * 5 + [None, None, True]
    slow = [record("maskwright", "a", 9.0, 30, **tabled), record("maskwright", "b", 9.0, 9, way="as it is read")]
    assert held([*slow, *theirs]) == [True, *[False] * 4, None, None, False]
    without = record("maskwright", "a", 2.0, 4, way="delimited")  # a table that there ought to be
    assert held([without, ours[1], *theirs])[3:5] == [False, False]
    wrong = record("maskwright", "a", 2.0, 4, ({"text": "x", "said": "accepts"},), **tabled)
    assert held([wrong, ours[1], *theirs])[0] is False
    assert held([{**ours[0], "whole_wrong": [{"text": "x", "said": "accepts"}]}, ours[1], *theirs])[0] is False


@pytest.mark.long
def test_it_runs_and_writes_what_it_measured(tmp_path, monkeypatch):
    options = ["--quick", "--only", "units", "--engines", "maskwright", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["grammar.py", *options])
    suite.main()
    results = json.loads((tmp_path / "grammar.json").read_text())["results"]
    assert results["grammars"][0]["wrong"] == []
    assert "| units |" in (tmp_path / "grammar.md").read_text()
    assert (tmp_path / "grammar.png").stat().st_size > 5_000
