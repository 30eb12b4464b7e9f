"""Automata whose words have labels, against dicts of words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.automata import ops
from maskwright.automata.budget import Budget
from maskwright.automata.labelled import relabelled, spelled
from maskwright.automata.nfa import Nfa
from maskwright.automata.subsets import determinize
from maskwright.errors import BudgetError

texts = st.dictionaries(st.binary(max_size=6), st.integers(0, 2), min_size=1, max_size=12)


@given(texts, st.integers(0, 3), st.integers(1, 12))
def test_words_are_those_of_a_label_the_shortest_first_unless_there_are_too_many(words, label, most):
    meter = Budget().begin()
    found = spelled(words, meter).words(label, most, meter)
    wanted = sorted((word for word, own in words.items() if own == label), key=lambda word: (len(word), word))
    assert found == (wanted if len(wanted) <= most else None)


def test_words_without_end_are_too_many():
    nfa = Nfa()
    a = determinize(nfa, nfa.literal(b"ab"))
    assert relabelled(ops.star(a), 0).words(0, 1_000, Budget().begin()) is None


def test_words_of_any_length_are_read_back():
    words = {b"x" * 70_000 + bytes([byte]): 0 for byte in range(3)}
    meter = Budget(bytes=1 << 26).begin()
    automaton = spelled(words, meter)
    assert automaton.words(0, 3, meter) == sorted(words)
    with pytest.raises(BudgetError, match="spelling words"):
        automaton.words(0, 3, Budget(bytes=1 << 16).begin())
