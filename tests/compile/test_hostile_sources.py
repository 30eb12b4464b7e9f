"""Sources that once went on outside their budgets end in an error in time."""

from __future__ import annotations

import time

import pytest

import maskwright as mw
from tests.fuzz import attacks

VOCAB = mw.Vocabulary.from_bytes([b"", *(bytes([byte]) for byte in range(256))], eos=0)
BUDGET = mw.Budget(seconds=0.3)
SOURCES = {
    "a rule in which all others may be left out": (mw.compile_grammar, "start: " + "r " * 3_000 + '\nr: "a"?'),
    "a grammar of many brackets": (mw.compile_grammar, "start: " + "(" * 300_000 + '"a"'),
    "keys of many branches, of which one holds": (mw.compile_json_schema, attacks.many_branches(150)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_hostile_source_ends_in_time(name):
    compile_, source = SOURCES[name]
    began = time.thread_time()
    with pytest.raises(mw.BudgetError) as raised:
        compile_(source, VOCAB, budget=BUDGET)
    assert raised.value.limit == "seconds"
    assert time.thread_time() - began < 3  # collecting garbage of all tests before it takes part of that
